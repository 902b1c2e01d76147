//! Finds the listeners and routes that concern a name, whether they serve it or not.

use std::collections::BTreeSet;

use vestibule_model::gateway::Listener;
use vestibule_model::hostname::{HostPattern, route_precedence};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::names::{AskedBy, NameDecision};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Group, Port, Protocol};
use vestibule_model::reference::ParentRef;
use vestibule_model::route::Route;
use vestibule_operator::translate::Translator;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

/// A listener whose hostname covers the name.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) key: ListenerKey,
    /// The Gateway to which it belongs, or would belong.
    pub(super) gateway: ObjectName,
    pub(super) listener: Listener,
    /// Creation of its object. Listeners of the Gateway itself come first.
    pub(super) created: (bool, i64),
}

impl Candidate {
    /// The order of candidates: the more specific one comes first, and then the older one.
    pub(super) fn order(&self) -> impl Ord + use<> {
        (
            std::cmp::Reverse(self.listener.hostname.specificity()),
            self.created,
            self.key.clone(),
        )
    }

    pub(super) fn port(&self) -> Option<Port> {
        self.listener.port
    }

    /// Another namespace to which the name belongs, with the pattern by which it does. It is only set for a listener of
    /// a ListenerSet.
    pub(super) fn other_owner(
        &self,
        translator: &Translator,
        query: &HostPattern,
    ) -> Option<(HostPattern, String)> {
        let ParentKey::ListenerSet(set) = &self.key.parent else {
            return None;
        };
        let has_names = self.listener.protocol.group() != Group::Raw;
        let owner = has_names.then(|| owner(translator, &self.gateway, query));
        owner
            .flatten()
            .filter(|(_, namespace)| **namespace != *set.namespace)
    }

    /// The kinds of routes for such a listener, the usual one first.
    pub(super) fn route_kinds(&self) -> &'static [Kind] {
        match self.listener.protocol {
            Protocol::Http | Protocol::Https => &[Kind::HttpRoute, Kind::GrpcRoute],
            Protocol::Tcp => &[Kind::TcpRoute],
            Protocol::Udp => &[Kind::UdpRoute],
            _ => &[Kind::TlsRoute],
        }
    }
}

/// All listeners, of any controller, whose hostname covers `query`.
pub(super) fn candidates(translator: &Translator, query: &HostPattern) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (_, object) in translator.objects() {
        let (parent, gateway, listeners, created) = match object.as_ref() {
            Object::Gateway(gateway) => {
                let created = (false, gateway.meta.created);
                let parent = gateway.parent_key();
                (parent, &gateway.name, &gateway.listeners, created)
            }
            Object::ListenerSet(set) => {
                let Some(gateway) = &set.gateway else {
                    continue;
                };
                let created = (true, set.meta.created);
                (set.parent_key(), gateway, &set.listeners, created)
            }
            _ => continue,
        };
        for listener in listeners {
            // An invalid hostname is read as any hostname, and a finding says so.
            let broken = listener
                .findings
                .iter()
                .any(|f| f.field.ends_with(".hostname"));
            if listener.hostname.covers(query) && !broken {
                all.push(Candidate {
                    key: listener.key(&parent),
                    gateway: gateway.clone(),
                    listener: listener.clone(),
                    created,
                });
            }
        }
    }
    all.sort_by_key(Candidate::order);
    all
}

/// Routes that ask for the name from the object of a candidate, or have it as a hostname themselves.
pub(super) fn routes_of_interest(
    translator: &Translator,
    query: &HostPattern,
    candidates: &[Candidate],
) -> BTreeSet<ObjectKey> {
    let parents: BTreeSet<_> = candidates.iter().map(|c| &c.key.parent).collect();
    let wants = |route: Route<'_>| {
        let hostnames = || route.hostnames().iter().map(|(_, pattern)| pattern);
        if !hostnames().any(|pattern| pattern.covers(query)) {
            return false;
        }
        let named = hostnames().any(|p| p.covers(query) && *p != HostPattern::Any);
        let namespace = &route.name().namespace;
        let mut leads = route.parents().iter().filter_map(|p| p.parent(namespace));
        named || leads.any(|parent| parents.contains(&parent))
    };
    let routes = translator.objects().filter_map(|(key, object)| {
        let route = object.as_route()?;
        wants(route).then(|| key.clone())
    });
    routes.collect()
}

/// A route that is attached to a listener, with a hostname that covers the name.
#[derive(Debug, Clone)]
pub(super) struct AttachedRoute {
    pub(super) key: ObjectKey,
    /// Its hostname as written.
    pub(super) rank: HostPattern,
    /// The paths of the name to which it is restricted, because a grant shares only these. If empty, it has all of
    /// them.
    pub(super) paths: Vec<String>,
    created: i64,
}

/// The owner of a name on a Gateway, as the proxies are told: the pattern and the namespace. The proxies ignore
/// listeners and routes of other namespaces for the name.
pub(super) fn owner(
    translator: &Translator,
    gateway: &ObjectName,
    query: &HostPattern,
) -> Option<(HostPattern, String)> {
    around(query).into_iter().find_map(|names| {
        let owner = translator.merge().owner_at(gateway, &names)?.to_string();
        Some((names, owner))
    })
}

/// Whether a route on a listener of the Gateway itself may serve a name. It may if its namespace holds the name, if no
/// namespace holds it, if the route is in the Gateway's namespace, or if it shares the name.
pub(super) fn serves(
    translator: &Translator,
    gateway: &ObjectName,
    route: &ObjectKey,
    query: &HostPattern,
) -> bool {
    let namespace = &route.name.namespace;
    let Some((_, owner)) = owner(translator, gateway, query) else {
        return true;
    };
    let shares = || {
        let by = AskedBy::HttpRoute;
        let decision = translator.merge().decide(gateway, namespace, query, by);
        route.kind.routes_requests() && decision == NameDecision::Has
    };
    **namespace == *owner || *namespace == gateway.namespace || shares()
}

/// A pattern and every one around it, the most specific first.
fn around(query: &HostPattern) -> Vec<HostPattern> {
    let mut all = vec![query.clone()];
    let text = query.to_string();
    let mut rest = text.strip_prefix("*.").unwrap_or(&text);
    while let Some((_, above)) = rest.split_once('.') {
        all.extend(HostPattern::parse(&format!("*.{above}")));
        rest = above;
    }
    if *query != HostPattern::Any {
        all.push(HostPattern::Any);
    }
    all
}

/// The routes that translation attached to a listener for this name, in order of precedence. On a listener of the
/// Gateway itself, routes that may not serve the name are left out ([`serves`]).
pub(super) fn attached(
    translator: &Translator,
    listener: &ListenerKey,
    query: &HostPattern,
    of_interest: &BTreeSet<ObjectKey>,
) -> Vec<AttachedRoute> {
    let own = match &listener.parent {
        ParentKey::Gateway(gateway) => Some(gateway),
        ParentKey::ListenerSet(_) => None,
    };
    let listener = listener.to_string();
    let mut routes: Vec<AttachedRoute> = of_interest
        .iter()
        .filter_map(|key| {
            let (created, attachments) = attachments(translator, key)?;
            let has_names = !key.kind.routes_ports();
            let own = own.filter(|_| has_names);
            let is_admitted = own.is_none_or(|gateway| serves(translator, gateway, key, query));
            if !is_admitted {
                return None;
            }
            let ranks = attachments
                .iter()
                .filter(|attachment| attachment.listener == listener)
                .flat_map(|attachment| &attachment.hostnames)
                .filter(|hostname| {
                    HostPattern::parse(&hostname.r#match).is_ok_and(|p| p.covers(query))
                })
                .filter_map(|hostname| {
                    let rank = HostPattern::parse(&hostname.rank).ok()?;
                    Some((rank, hostname.paths.clone()))
                });
            let (rank, paths) = ranks.max_by_key(|(rank, _)| rank.specificity())?;
            Some(AttachedRoute {
                key: key.clone(),
                rank,
                paths,
                created,
            })
        })
        .collect();
    routes.sort_by(|a, b| {
        let (a_name, b_name) = (a.key.name.to_string(), b.key.name.to_string());
        route_precedence((&a.rank, a.created, &a_name), (&b.rank, b.created, &b_name))
    });
    routes
}

fn attachments(translator: &Translator, key: &ObjectKey) -> Option<(i64, Vec<proto::Attachment>)> {
    let kind = match key.kind {
        Kind::HttpRoute => ResourceKind::HttpRoute,
        Kind::GrpcRoute => ResourceKind::GrpcRoute,
        Kind::TcpRoute => ResourceKind::TcpRoute,
        Kind::UdpRoute => ResourceKind::UdpRoute,
        _ => ResourceKind::TlsRoute,
    };
    let name = ResourceKey::new(kind, key.name.to_string());
    match translator.resources().get(&name)?.decode()? {
        resource::Resource::TlsRoute(route) => Some((route.created, route.attachments)),
        resource::Resource::HttpRoute(route) | resource::Resource::GrpcRoute(route) => {
            Some((route.created, route.attachments))
        }
        resource::Resource::TcpRoute(route) | resource::Resource::UdpRoute(route) => {
            let everything = proto::RouteHostname::default();
            let attachments = route.listeners.into_iter();
            let attachments = attachments.map(|listener| proto::Attachment {
                listener,
                hostnames: vec![everything.clone()],
            });
            Some((route.created, attachments.collect()))
        }
        _ => None,
    }
}

/// Whether the proxies get a listener.
pub(super) fn is_published(translator: &Translator, listener: &ListenerKey) -> bool {
    let key = ResourceKey::new(ResourceKind::Listener, listener.to_string());
    translator.resources().contains_key(&key)
}

/// The references of a route that lead to a listener, whether or not it takes the route.
pub(super) fn references<'a>(
    route: Route<'a>,
    candidate: &'a Candidate,
) -> impl Iterator<Item = &'a ParentRef> {
    let namespace = &route.name().namespace;
    let listener = &candidate.key;
    route.parents().iter().filter(move |reference| {
        let section = reference.section.as_ref();
        reference.parent(namespace).as_ref() == Some(&listener.parent)
            && section.is_none_or(|section| *section == listener.listener)
            && reference
                .port
                .is_none_or(|port| candidate.port() == Some(port))
    })
}
