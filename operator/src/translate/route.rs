//! Routes of all kinds: where each attaches, and what its backends resolve to.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::attach::{Attached, attach_route};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::{Object, Service, ServicePort};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::route::Route;
use vestibule_stream::proto;
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::backend::{Speaks, speaks};
use super::backend_key::BackendKey;
use super::claim::Sharing;
use super::reach::SharedListenerRoutes;
use super::route_state::{Judged, Parents, References, RouteState};
use super::{Dirty, Output, Translator, http_route, set_user};

impl Translator {
    pub(super) fn translate_routes(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for key in std::mem::take(&mut dirty.routes) {
            output.work.routes += 1;
            let (state, resource) = match self.route(&key) {
                Some(route) => {
                    let (state, resource) = self.judge_route(route);
                    (Some(state), resource)
                }
                None => (None, None),
            };
            self.settle_resource(route_resource(&key), resource, output);
            dirty.others.insert(key.clone());
            let old = match state.clone() {
                Some(state) => self.routes.insert(key.clone(), state),
                None => self.routes.remove(&key),
            };
            let shared = SharedListenerRoutes::of(self.route(&key), state.as_ref());
            let former = if shared == SharedListenerRoutes::default() {
                self.shared.remove(&key)
            } else {
                self.shared.insert(key.clone(), shared.clone())
            };
            let interests = self
                .challenge_index
                .move_route(&former.unwrap_or_default(), &shared);
            self.mark_interested(interests, dirty);
            let listeners = |s: &Option<RouteState>| s.as_ref().map(RouteState::listeners);
            let (before, after) = (
                listeners(&old).unwrap_or_default(),
                listeners(&state).unwrap_or_default(),
            );
            let services = state.as_ref().map(|state| state.services.clone());
            self.settle_service_uses(&key, &after, services.unwrap_or_default(), dirty);
            for listener in before.symmetric_difference(&after) {
                set_user(&mut self.attached, listener, &key, after.contains(listener));
                dirty.parents.insert(listener.parent.clone());
            }
            self.settle_queues(&key, state.as_ref(), dirty);
            let backends =
                |s: Option<RouteState>| s.map(|state| state.backends).unwrap_or_default();
            let (before, after) = (backends(old), backends(state));
            for backend in before.symmetric_difference(&after) {
                let uses = after.contains(backend);
                set_user(&mut self.backend_users, backend, &key, uses);
                dirty.backends.insert(backend.clone());
            }
        }
    }

    fn judge_route(&self, route: Route<'_>) -> (RouteState, Option<Encoded>) {
        let Judged {
            mut findings,
            refused,
            dropped,
            references,
            body,
        } = match route {
            Route::Tls(route) => self.judge_tls_route(route),
            Route::Http(route) => self.judge_http_route(route),
            Route::Port(route) => self.judge_port_route(route),
        };
        let (mut parents, left_out) = self.judge_parents(route, refused.as_ref());
        findings.extend(left_out);
        let (served, waiting) = self.claimed_by_route(route, &mut parents, &mut findings);
        let key = route.key();
        let mut in_part = BTreeSet::new();
        let attachments = attachments(served.iter(), |listener, names| {
            let sharing = self.sharing(&key, listener, names);
            if matches!(sharing, Sharing::Parts(_)) {
                in_part.insert((listener.clone(), names.clone()));
            }
            sharing
        });
        let mut resource = None;
        if !attachments.is_empty() {
            let whole = Resource::new(route.name().to_string(), body.attached(attachments));
            match Encoded::new(&whole) {
                Ok(encoded) => resource = Some(encoded),
                Err(error) => {
                    let finding = Finding::refused(
                        Reason::UnsupportedValue,
                        "spec",
                        format!("is more than the proxies take: {error}"),
                        "spread its hostnames and rules over more routes",
                    );
                    for outcome in parents.values_mut() {
                        *outcome = Err(finding.clone());
                    }
                }
            }
        }
        for finding in parents
            .values()
            .filter_map(|outcome| outcome.as_ref().err())
        {
            if !findings.contains(finding) {
                findings.push(finding.clone());
            }
        }
        findings.extend(references.findings);
        let state = RouteState {
            parents,
            waiting,
            unresolved: references.unresolved,
            dropped,
            findings,
            backends: match resource {
                Some(_) => references.backends,
                None => BTreeSet::new(),
            },
            services: references.services,
            in_part,
        };
        (state, resource)
    }

    /// Whether a route is accepted nowhere, by itself.
    pub(super) fn is_refused(&self, route: Route<'_>) -> bool {
        match route {
            Route::Tls(route) => {
                let findings = self.settings.policy.judge_route(route);
                findings.iter().any(Finding::refuses)
            }
            Route::Http(route) => {
                http_route::refusal(route).is_some()
                    || self.patterns.refusal(&route.key()).is_some()
            }
            Route::Port(route) => route.findings.iter().any(Finding::refuses),
        }
    }

    /// Where a route attaches, and warnings about hostnames that are left out of it.
    pub(super) fn judge_parents(
        &self,
        route: Route<'_>,
        refused: Option<&Finding>,
    ) -> (Parents, BTreeSet<Finding>) {
        let (mut parents, mut left_out) = (BTreeMap::new(), BTreeSet::new());
        if route.meta().deleting {
            return (parents, left_out);
        }
        let namespace = &route.name().namespace;
        for (index, reference) in route.parents().iter().enumerate() {
            let Some(parent) = reference.parent(namespace) else {
                continue;
            };
            let Some((listeners, gateway)) = self.merge.listeners(&parent) else {
                continue;
            };
            if self.merge.gateway(gateway).is_none() {
                continue;
            }
            let outcome = if let Some(refused) = refused {
                Err(refused.clone())
            } else if let Some(finding) = self.closed_parent(&parent, index) {
                Err(finding)
            } else {
                let labels = self.merge.labels(namespace);
                attach_route(route, index, reference, &parent, listeners, labels).and_then(
                    |attached| {
                        let (owned, findings) = self.merge.owned_by_route(route, &parent, attached);
                        match findings.into_iter().next() {
                            Some(refusal) if refusal.refuses() => Err(refusal),
                            Some(warning) => {
                                left_out.insert(warning);
                                Ok(owned)
                            }
                            None => Ok(owned),
                        }
                    },
                )
            };
            parents.insert(index, outcome);
        }
        (parents, left_out)
    }

    /// Why a parent takes no routes at all.
    fn closed_parent(&self, parent: &ParentKey, index: usize) -> Option<Finding> {
        let ParentKey::ListenerSet(name) = parent else {
            return None;
        };
        let set = self.merge.set(name)?;
        matches!(self.merge.verdict(set), SetVerdict::NotAllowed(_)).then(|| {
            Finding::refused(
                Reason::NoMatchingParent,
                format!("spec.parentRefs[{index}]"),
                format!("ListenerSet {name} is not let in by its Gateway"),
                "see the status of the ListenerSet",
            )
        })
    }

    /// The name of a backend's resource; empty if the reference does not resolve.
    pub(super) fn resolve_backend(
        &self,
        referrer: &ObjectKey,
        backend: &BackendRef,
        references: &mut References,
    ) -> String {
        let outcome = self.backend_of(referrer, backend, &mut references.services);
        match outcome {
            Ok(key) => {
                let name = key.to_string();
                references.backends.insert(key);
                name
            }
            Err(finding) => {
                references.broken(finding);
                String::new()
            }
        }
    }

    fn backend_of(
        &self,
        referrer: &ObjectKey,
        backend: &BackendRef,
        services: &mut BTreeSet<ObjectName>,
    ) -> Result<BackendKey, Finding> {
        let reference = &backend.reference;
        let refuse = |reason, message: String, action: &str| {
            Err(Finding::refused(reason, &reference.field, message, action))
        };
        if !reference.is(Kind::Service) {
            return refuse(
                Reason::InvalidKind,
                format!(
                    "{:?} of group {:?} is not supported",
                    reference.kind, reference.group
                ),
                "refer to a Service",
            );
        }
        let target = self.permit(referrer, reference)?;
        services.insert(target.clone());
        let service = match self.get(Kind::Service, &target) {
            Some(Object::Service(service)) => service,
            Some(_) => {
                return refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} cannot be read, as its own finding says"),
                    "mend it, or refer to another one",
                );
            }
            None => {
                return refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} does not exist"),
                    "create it, or refer to another one",
                );
            }
        };
        if service.external_name {
            return refuse(
                Reason::InvalidKind,
                format!("Service {target} has type ExternalName, which leads outside the cluster"),
                "refer to a Service with endpoints",
            );
        }
        let Some(number) = backend.port else {
            return refuse(
                Reason::BackendNotFound,
                "names no port of the Service".into(),
                "name one",
            );
        };
        let transport = referrer.kind.transport();
        let Some(port) = service.port(number, transport) else {
            return if service.ports.iter().any(|port| port.port == number) {
                refuse(
                    Reason::UnsupportedProtocol,
                    format!(
                        "port {number} of Service {target} is not {}",
                        transport.as_str()
                    ),
                    &format!("refer to a {} port", transport.as_str()),
                )
            } else {
                refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} has no port {number}"),
                    "refer to one of its ports",
                )
            };
        };
        if referrer.kind.routes_requests()
            && let Err((message, action)) = self.speaks_http(referrer.kind, service, port)
        {
            return refuse(Reason::UnsupportedProtocol, message, action);
        }
        if let Some((address, denied)) = self.only_denied(&target, transport) {
            return refuse(
                Reason::EndpointNotAllowed,
                format!(
                    "no backend may have the endpoints of Service {target}: {address} {denied}"
                ),
                "have the Service select pods, or ask the platform admin which endpoints there may be",
            );
        }
        Ok(BackendKey::new(target, (number, transport)))
    }

    /// Whether HTTP can be spoken to a port, by its `appProtocol` (GEP-1911); if not, why, and what to
    /// do.
    fn speaks_http(
        &self,
        route: Kind,
        service: &Service,
        port: &ServicePort,
    ) -> Result<(), (String, &'static str)> {
        let says = || {
            format!(
                "port {} of Service {} has appProtocol {:?}",
                port.port,
                service.name,
                port.app_protocol.as_deref().unwrap_or_default()
            )
        };
        match speaks(port) {
            Speaks::Http {
                protocol: proto::BackendProtocol::Websocket,
                ..
            } if route == Kind::GrpcRoute => Err((
                format!("{}, and gRPC is HTTP/2", says()),
                "refer to a port that speaks HTTP/2, or correct its appProtocol",
            )),
            Speaks::Http { tls: false, .. } => Ok(()),
            Speaks::Http { tls: true, .. } if self.has_tls_policy(service, port) => Ok(()),
            Speaks::Http { tls: true, .. } => Err((
                format!("{}, and no BackendTLSPolicy says how to trust it", says()),
                "add a BackendTLSPolicy for the Service",
            )),
            Speaks::Other => Err((
                format!("{}, which is not HTTP", says()),
                "refer to a port that speaks HTTP, or correct its appProtocol",
            )),
        }
    }
}

pub(super) fn route_resource(route: &ObjectKey) -> ResourceKey {
    let kind = match route.kind {
        Kind::HttpRoute => ResourceKind::HttpRoute,
        Kind::GrpcRoute => ResourceKind::GrpcRoute,
        Kind::TcpRoute => ResourceKind::TcpRoute,
        Kind::UdpRoute => ResourceKind::UdpRoute,
        _ => ResourceKind::TlsRoute,
    };
    ResourceKey::new(kind, route.name.to_string())
}

/// Attachments by listener: two references may lead to the same one. `sharing` says which names a route only shares
/// with whoever holds them.
fn attachments<'a>(
    attached: impl Iterator<Item = &'a Attached>,
    mut sharing: impl FnMut(&ListenerKey, &HostPattern) -> Sharing,
) -> Vec<proto::Attachment> {
    let mut merged: BTreeMap<&ListenerKey, BTreeSet<_>> = BTreeMap::new();
    for attached in attached {
        merged
            .entry(&attached.listener)
            .or_default()
            .extend(attached.hostnames.iter().map(|h| (&h.matches, &h.rank)));
    }
    merged
        .into_iter()
        .map(|(listener, hostnames)| proto::Attachment {
            listener: listener.to_string(),
            hostnames: hostnames
                .into_iter()
                .map(|(matches, rank)| {
                    let sharing = sharing(listener, matches);
                    proto::RouteHostname {
                        r#match: matches.to_string(),
                        rank: rank.to_string(),
                        shared: sharing == Sharing::Whole,
                        paths: match sharing {
                            Sharing::Parts(parts) => {
                                parts.iter().map(ToString::to_string).collect()
                            }
                            Sharing::Nothing | Sharing::Whole => Vec::new(),
                        },
                    }
                })
                .collect(),
        })
        .collect()
}

/// The status of a route's parents needs the declared references again.
pub(super) fn parent_outcomes<'a>(
    route: Route<'a>,
    state: &'a RouteState,
) -> impl Iterator<Item = (&'a ParentRef, &'a Result<Vec<Attached>, Finding>)> {
    state
        .parents
        .iter()
        .filter_map(move |(index, outcome)| Some((route.parents().get(*index)?, outcome)))
}
