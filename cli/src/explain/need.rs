//! Decides what else has to be read from a cluster to answer a question. It is pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::tls_policy::{Authorities, PolicyTarget};
use vestibule_operator::translate::Translator;

use super::candidates::{Candidate, candidates, references, routes_of_interest};
use super::cluster_state::ServerState;

/// Something that has to be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// One object.
    Object(ObjectKey),
    /// The EndpointSlices of a Service.
    Endpoints(ObjectName),
    /// The ReferenceGrants of a namespace.
    Grants(Arc<str>),
    /// The objects of a kind in the namespace of a Gateway.
    Beside(Kind, Arc<str>),
}

/// Everything that is needed and not known yet.
pub(super) fn missing(
    translator: &Translator,
    live: &ServerState,
    query: Option<&HostPattern>,
) -> BTreeSet<Need> {
    let mut needs = Needs {
        translator,
        live,
        found: BTreeSet::new(),
    };
    needs.parents();
    if let Some(query) = query {
        let candidates = candidates(translator, query);
        for candidate in &candidates {
            needs.of_listener(candidate);
        }
        for key in routes_of_interest(translator, query, &candidates) {
            needs.of_route(&key, &candidates);
        }
    }
    needs.found
}

struct Needs<'a> {
    translator: &'a Translator,
    live: &'a ServerState,
    found: BTreeSet<Need>,
}

impl Needs<'_> {
    /// Adds one object, unless it is known, or its whole kind was read and the object does not exist.
    fn object(&mut self, kind: Kind, name: &ObjectName) {
        let name = name.clone();
        let key = ObjectKey { kind, name };
        let by_need = matches!(kind, Kind::Secret | Kind::ConfigMap | Kind::Service);
        let unread = by_need || self.live.unread.contains_key(&kind);
        if unread && self.translator.object(&key).is_none() {
            self.found.insert(Need::Object(key));
        }
    }

    fn cluster_object(&mut self, kind: Kind, name: &Arc<str>) {
        self.object(kind, &ObjectName::new("", name.clone()));
    }

    /// Adds the parents of sets and routes, and the objects to which Gateways refer.
    fn parents(&mut self) {
        let translator = self.translator;
        for (key, object) in translator.objects() {
            match object.as_ref() {
                Object::Gateway(gateway) => {
                    self.cluster_object(Kind::GatewayClass, &gateway.class);
                    if let Some(parameters) = &gateway.infrastructure.parameters {
                        self.reference(key, parameters);
                    }
                }
                Object::GatewayClass(class) => {
                    if let Some(parameters) = &class.parameters {
                        self.reference(key, parameters);
                    }
                }
                Object::ListenerSet(set) => {
                    let Some(gateway) = &set.gateway else {
                        continue;
                    };
                    self.object(Kind::Gateway, gateway);
                    let selects = translator.merge().gateway(gateway).is_some_and(|gateway| {
                        matches!(gateway.allowed_listeners, NamespaceScope::Selector(_))
                    });
                    if selects {
                        self.cluster_object(Kind::Namespace, &key.name.namespace);
                    }
                }
                route => {
                    let Some(route) = route.as_route() else {
                        continue;
                    };
                    for parent in route.parents() {
                        match parent.parent(&key.name.namespace) {
                            Some(ParentKey::Gateway(name)) => self.object(Kind::Gateway, &name),
                            Some(ParentKey::ListenerSet(name)) => {
                                self.object(Kind::ListenerSet, &name);
                            }
                            None => {}
                        }
                    }
                }
            }
        }
    }

    /// Adds the object to which a reference leads, and the grants that the reference may need.
    fn reference(&mut self, referrer: &ObjectKey, reference: &Reference) {
        let target = &reference.target;
        // All of these kinds have namespaces. A class may leave out that of its parameters, and then there is nothing to read.
        if target.namespace.is_empty() {
            return;
        }
        let kinds = [
            Kind::Secret,
            Kind::ConfigMap,
            Kind::Service,
            Kind::GatewayParameters,
        ];
        let Some(kind) = kinds.into_iter().find(|kind| reference.is(*kind)) else {
            return;
        };
        let elsewhere = target.namespace != referrer.name.namespace;
        if elsewhere
            && !referrer.name.namespace.is_empty()
            && self.live.unread.contains_key(&Kind::ReferenceGrant)
        {
            self.found.insert(Need::Grants(target.namespace.clone()));
        }
        self.object(kind, target);
        if kind == Kind::Service {
            self.found.insert(Need::Endpoints(target.clone()));
        }
    }

    fn of_listener(&mut self, candidate: &Candidate) {
        let referrer = candidate.key.parent.object();
        if let Some(tls) = &candidate.listener.tls {
            for reference in &tls.certificates {
                self.reference(&referrer, reference);
            }
        }
        for kind in [Kind::HostnameGrant, Kind::HostnameClaim] {
            let namespace = &candidate.gateway.namespace;
            if !self.live.reads_in(kind, namespace) {
                self.found.insert(Need::Beside(kind, namespace.clone()));
            }
        }
        let translator = self.translator;
        let mut grants = translator.merge().grants_in(&candidate.gateway.namespace);
        if grants.any(|grant| grant.namespaces.selector.is_some()) {
            self.cluster_object(Kind::Namespace, &referrer.name.namespace);
        }
        let Some(gateway) = translator.merge().gateway(&candidate.gateway) else {
            return;
        };
        let gateway_key = gateway.parent_key().object();
        let authorities = gateway.tls.validations().flat_map(|v| &v.authorities);
        for reference in authorities.chain(&gateway.tls.client_certificate) {
            self.reference(&gateway_key, reference);
        }
    }

    fn of_route(&mut self, key: &ObjectKey, candidates: &[Candidate]) {
        let translator = self.translator;
        let Some(route) = translator.object(key).and_then(|object| object.as_route()) else {
            return;
        };
        let is_selected = candidates.iter().any(|candidate| {
            let allowed = &candidate.listener.allowed_namespaces;
            matches!(allowed, NamespaceScope::Selector(_))
                && references(route, candidate).next().is_some()
        });
        if is_selected {
            self.cluster_object(Kind::Namespace, &key.name.namespace);
        }
        let mut services = BTreeSet::new();
        for backend in route.all_backends() {
            self.reference(key, &backend.reference);
            services.insert(backend.reference.target.clone());
        }
        for (key, object) in translator.objects() {
            let Object::BackendTlsPolicy(policy) = object.as_ref() else {
                continue;
            };
            let mut targets = policy.targets.iter().filter_map(PolicyTarget::service);
            if targets.any(|service| services.contains(service))
                && let Authorities::Bundles(bundles) = &policy.authorities
            {
                for bundle in bundles {
                    self.reference(key, bundle);
                }
            }
        }
    }
}
