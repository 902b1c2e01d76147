//! What objects ask for, and what takes a name from a namespace: read in the plainest way, with nothing of the code
//! under test.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::gateway::{Gateway, Listener};
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::route::Route;
use vestibule_model::selector::{NamespaceScope, Requirement};

use crate::table::covers;

/// The namespace of the Gateway.
pub(crate) const OWN: &str = "platform";

/// Objects, as the API server has them or as a replica knows them.
pub(crate) struct View<'a>(BTreeMap<&'a ObjectKey, &'a Object>);

impl<'a> View<'a> {
    pub(crate) fn of(objects: impl Iterator<Item = (&'a ObjectKey, &'a Object)>) -> Self {
        Self(objects.collect())
    }

    fn gateway(&self) -> &'a Gateway {
        let mut objects = self.0.values();
        let gateway = objects.find_map(|object| match object {
            Object::Gateway(gateway) => Some(gateway),
            _ => None,
        });
        gateway.expect("the Gateway is always there")
    }

    /// The Gateway's own listeners on a port.
    pub(crate) fn own_on(&self, port: u16) -> impl Iterator<Item = &'a Listener> {
        let own = self.gateway().listeners.iter();
        own.filter(move |listener| number(listener) == port)
    }

    fn own(&self, name: &str) -> Option<&'a Listener> {
        let mut own = self.gateway().listeners.iter();
        own.find(|listener| *listener.name == *name)
    }

    /// Whether a namespace's sets are let in.
    pub(crate) fn admits_sets(&self, namespace: &str) -> bool {
        admits(&self.gateway().allowed_listeners, namespace)
    }

    /// Whether the Gateway's shared listeners take a namespace's routes.
    pub(crate) fn admits_routes(&self, namespace: &str) -> bool {
        let plain = self.own("plain").expect("it is always there");
        admits(&plain.allowed_namespaces, namespace)
    }

    /// Every listener that a namespace declares in sets, with the name of its set, as far as the sets are let in.
    pub(crate) fn declared(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Listener)> {
        let admitted = self.admits_sets(namespace);
        let objects = self.0.values();
        let sets = objects.filter_map(move |object| match object {
            Object::ListenerSet(set) if admitted && *set.name.namespace == *namespace => Some(set),
            _ => None,
        });
        let sets: Vec<_> = sets.collect();
        let listeners = sets.into_iter();
        listeners.flat_map(|set| set.listeners.iter().map(|of| (&*set.name.name, of)))
    }

    /// A namespace's routes on the Gateway's own listeners.
    fn routes(&self, namespace: &str) -> impl Iterator<Item = Route<'a>> {
        let routes = self.0.values().filter_map(|object| match object {
            Object::TlsRoute(route) => Some(Route::Tls(route)),
            Object::HttpRoute(route) => Some(Route::Http(route)),
            _ => None,
        });
        let is_on_gateway = |route: &Route<'_>| {
            let mut parents = route.parents().iter();
            parents.any(|parent| parent.kind.as_deref() == Some("Gateway"))
        };
        let routes = routes.filter(|route| *route.name().namespace == *namespace);
        let routes: Vec<_> = routes.filter(is_on_gateway).collect();
        routes.into_iter()
    }

    /// Whether something of a namespace asks for a pattern. What routes ask for on sets' listeners without a hostname
    /// is left out: nobody checks that it is kept.
    pub(crate) fn asks(&self, namespace: &str, names: &str) -> bool {
        let listener = |(_, listener): (&str, &Listener)| {
            !matches!(listener.protocol, Protocol::Tcp | Protocol::Udp)
                && listener.allowed_kinds.is_empty()
                && listener.hostname.to_string() == names
        };
        self.declared(namespace).any(listener) || self.asks_by_route(namespace, names)
    }

    fn asks_by_route(&self, namespace: &str, names: &str) -> bool {
        // The shared listeners have no hostname, so what is left of a route's is what it says.
        self.admits_routes(namespace)
            && self.routes(namespace).any(|route| {
                let tls = matches!(route, Route::Tls(_));
                let mut hostnames = route.hostnames().iter();
                (!tls || self.shares_tls()) && hostnames.any(|(_, h)| h.to_string() == names)
            })
    }

    /// Whether a grant shares all of a name with a namespace.
    pub(crate) fn shares(&self, namespace: &str, name: &str) -> bool {
        self.grants_of(namespace)
            .any(|grant| grant.shared.iter().any(|of| of.to_string() == name))
    }

    /// The paths of a name that grants share with a namespace.
    pub(crate) fn shared_paths(&self, namespace: &str, name: &str) -> Vec<String> {
        let grants = self.grants_of(namespace);
        let paths = grants.flat_map(|grant| &grant.shared_paths);
        let paths = paths.filter(|(of, _)| of.to_string() == name);
        paths
            .flat_map(|(_, paths)| paths.iter().map(ToString::to_string))
            .collect()
    }

    /// The exact hostnames that a namespace's HTTPRoutes have on the Gateway's own listeners, with the name of the
    /// route, and whether it is the one that stays inside of [`PATH`].
    pub(crate) fn http_names(&self, namespace: &str) -> BTreeSet<(String, String, bool)> {
        let mut names = BTreeSet::new();
        if self.admits_routes(namespace) {
            let http = |route: &Route<'_>| matches!(route, Route::Http(_));
            for route in self.routes(namespace).filter(http) {
                let exact = route.hostnames().iter().map(|(_, h)| h.to_string());
                let exact = exact.filter(|name| !name.is_empty() && !name.starts_with('*'));
                let resource = route.name().to_string();
                let inside = &*route.name().name == "route-1";
                names.extend(exact.map(|name| (name, resource.clone(), inside)));
            }
        }
        names
    }

    /// Whether a namespace has a TCPRoute on the Gateway's listener for bytes.
    pub(crate) fn asks_for_bytes(&self, namespace: &str) -> bool {
        let mut objects = self.0.values();
        (namespace == OWN || self.admits_routes(namespace) && self.grants(namespace, ""))
            && objects.any(|object| match object {
                Object::PortRoute(route) => *route.name.namespace == *namespace,
                _ => false,
            })
    }

    fn shares_tls(&self) -> bool {
        let shared = self.own("shared").expect("it is always there");
        shared.protocol == Protocol::Tls
    }

    /// Whether a namespace may not have a pattern, whoever holds it.
    pub(crate) fn takes(&self, namespace: &str, names: &str) -> bool {
        let lets_in = self.admits_sets(namespace) || self.admits_routes(namespace);
        !lets_in || !self.grants(namespace, names) || self.reserves(names)
    }

    /// Whether a pattern is the Gateway's own: of its own listener, or of a route of its namespace.
    pub(crate) fn is_own(&self, names: &str) -> bool {
        let own = &self.gateway().listeners;
        own.iter().any(|own| own.hostname.to_string() == names) || self.asks_by_route(OWN, names)
    }

    fn reserves(&self, names: &str) -> bool {
        !names.is_empty() && !names.starts_with('*') && self.is_own(names)
    }

    fn grants_of(&self, namespace: &str) -> impl Iterator<Item = &'a HostnameGrant> {
        let grants = self.all_grants();
        grants.filter(move |grant| grant.namespaces.names.contains(namespace))
    }

    fn all_grants(&self) -> impl Iterator<Item = &'a HostnameGrant> {
        self.0.values().filter_map(|object| match object {
            Object::HostnameGrant(grant) => Some(grant.as_ref()),
            _ => None,
        })
    }

    /// Whether grants let a namespace have a pattern; without any there, nobody needs one.
    fn grants(&self, namespace: &str, names: &str) -> bool {
        self.all_grants().next().is_none() || self.is_granted_inside(namespace, names, "")
    }

    /// Whether a grant at or below `around` gives a namespace the names.
    pub(crate) fn is_granted_inside(&self, namespace: &str, names: &str, around: &str) -> bool {
        let mut mine = self
            .grants_of(namespace)
            .flat_map(|grant| &grant.hostnames)
            .map(ToString::to_string);
        mine.any(|granted| covers(&granted, names) && covers(around, &granted))
    }
}

pub(crate) fn number(listener: &Listener) -> u16 {
    listener.port.map_or(0, std::num::NonZero::get)
}

fn admits(scope: &NamespaceScope, namespace: &str) -> bool {
    let NamespaceScope::Selector(selector) = scope else {
        panic!("{scope:?}")
    };
    selector.requirements.iter().all(|r| match r {
        Requirement::In(_, names) => names.iter().any(|name| **name == *namespace),
        other => panic!("{other:?}"),
    })
}
