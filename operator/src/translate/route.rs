//! Routes: where each attaches, what its backends resolve to, and its resource.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::attach::{Attached, attach_tls_route};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::{BackendRef, Object, TlsRoute};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::backend::BackendKey;
use super::{Dirty, Output, Translator, set_user};

/// What became of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteState {
    /// Per parent reference that leads to a Gateway of ours: its index, and where it attached.
    pub(super) parents: BTreeMap<usize, Result<Vec<Attached>, Finding>>,
    /// Why not every backend resolves: the first one that does not.
    pub(super) unresolved: Option<Finding>,
    /// Everything to say about it.
    pub(super) findings: Vec<Finding>,
    backends: BTreeSet<BackendKey>,
}

impl RouteState {
    fn listeners(&self) -> BTreeSet<ListenerKey> {
        self.parents
            .values()
            .flatten()
            .flatten()
            .map(|attached| attached.listener.clone())
            .collect()
    }
}

impl Translator {
    pub(super) fn translate_routes(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for name in std::mem::take(&mut dirty.routes) {
            output.work.routes += 1;
            let (state, resource) = match self.tls_route(&name) {
                Some(route) => {
                    let (state, resource) = self.judge_route(route);
                    (Some(state), resource)
                }
                None => (None, None),
            };
            let key = ResourceKey::new(ResourceKind::TlsRoute, name.to_string());
            self.settle_resource(key, resource, output);
            dirty.others.insert(ObjectKey {
                kind: Kind::TlsRoute,
                name: name.clone(),
            });
            let old = match state.clone() {
                Some(state) => self.routes.insert(name.clone(), state),
                None => self.routes.remove(&name),
            };
            let listeners = |s: &Option<RouteState>| s.as_ref().map(RouteState::listeners);
            let (before, after) = (
                listeners(&old).unwrap_or_default(),
                listeners(&state).unwrap_or_default(),
            );
            for listener in before.symmetric_difference(&after) {
                set_user(
                    &mut self.attached,
                    listener,
                    &name,
                    after.contains(listener),
                );
                dirty.parents.insert(listener.parent.clone());
            }
            let backends =
                |s: Option<RouteState>| s.map(|state| state.backends).unwrap_or_default();
            let (before, after) = (backends(old), backends(state));
            for backend in before.symmetric_difference(&after) {
                set_user(
                    &mut self.backend_users,
                    backend,
                    &name,
                    after.contains(backend),
                );
                dirty.backends.insert(backend.clone());
            }
        }
    }

    fn judge_route(&self, route: &TlsRoute) -> (RouteState, Option<Encoded>) {
        let mut findings = self.settings.policy.judge_route(route);
        let refused = findings.iter().find(|f| f.refuses()).cloned();
        let mut parents = BTreeMap::new();
        for (index, reference) in route.parents.iter().enumerate() {
            let Some(parent) = reference.parent(&route.name.namespace) else {
                continue;
            };
            let Some((listeners, gateway)) = self.merge.listeners(&parent) else {
                continue;
            };
            if self.merge.gateway(gateway).is_none() {
                continue;
            }
            let outcome = if route.meta.deleting {
                continue;
            } else if let Some(refused) = &refused {
                Err(refused.clone())
            } else if let Some(finding) = self.closed_parent(&parent, index) {
                Err(finding)
            } else {
                attach_tls_route(
                    route,
                    index,
                    reference,
                    &parent,
                    listeners,
                    self.merge.labels(&route.name.namespace),
                )
            };
            if let Err(finding) = &outcome
                && !findings.contains(finding)
            {
                findings.push(finding.clone());
            }
            parents.insert(index, outcome);
        }

        let referrer = ObjectKey {
            kind: Kind::TlsRoute,
            name: route.name.clone(),
        };
        let mut unresolved = None;
        let mut weighted = Vec::new();
        let mut backends = BTreeSet::new();
        for backend in &route.backends {
            let resolved = self.resolve_backend(&referrer, backend);
            weighted.push(proto::WeightedBackend {
                backend: resolved
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                weight: backend.weight,
            });
            match resolved {
                Ok(key) => {
                    backends.insert(key);
                }
                Err(finding) => {
                    findings.push(finding.clone());
                    unresolved.get_or_insert(finding);
                }
            }
        }
        let attached = merge_attachments(parents.values().flatten().flatten());
        if attached.is_empty() {
            backends.clear();
        }
        let resource = (!attached.is_empty())
            .then(|| encode(route, &attached, weighted))
            .flatten();
        let state = RouteState {
            parents,
            unresolved,
            findings,
            backends,
        };
        (state, resource)
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

    fn resolve_backend(
        &self,
        referrer: &ObjectKey,
        backend: &BackendRef,
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
        let found = backend
            .port
            .and_then(|port| service.ports.iter().find(|p| p.port == port));
        match (found, backend.port) {
            (Some(port), _) if !port.tcp => refuse(
                Reason::UnsupportedProtocol,
                format!("port {} of Service {target} is not TCP", port.port),
                "refer to a TCP port",
            ),
            (Some(port), _) => Ok(BackendKey::new(target, port.port)),
            (None, Some(port)) => refuse(
                Reason::BackendNotFound,
                format!("Service {target} has no port {port}"),
                "refer to one of its ports",
            ),
            (None, None) => refuse(
                Reason::BackendNotFound,
                "names no port of the Service".into(),
                "name one",
            ),
        }
    }
}

/// Attachments by listener: two references may lead to the same one.
fn merge_attachments<'a>(
    attached: impl Iterator<Item = &'a Attached>,
) -> BTreeMap<&'a ListenerKey, BTreeSet<(String, String)>> {
    let mut merged: BTreeMap<&ListenerKey, BTreeSet<_>> = BTreeMap::new();
    for attached in attached {
        merged.entry(&attached.listener).or_default().extend(
            attached
                .hostnames
                .iter()
                .map(|h| (h.matches.to_string(), h.rank.to_string())),
        );
    }
    merged
}

fn encode(
    route: &TlsRoute,
    attached: &BTreeMap<&ListenerKey, BTreeSet<(String, String)>>,
    backends: Vec<proto::WeightedBackend>,
) -> Option<Encoded> {
    let attachments = attached
        .iter()
        .map(|(listener, hostnames)| proto::Attachment {
            listener: listener.to_string(),
            hostnames: hostnames
                .iter()
                .map(|(matches, rank)| proto::RouteHostname {
                    r#match: matches.clone(),
                    rank: rank.clone(),
                })
                .collect(),
        })
        .collect();
    let resource = proto::TlsRoute {
        tenant: route.name.namespace.to_string(),
        created: route.meta.created,
        attachments,
        backends,
    };
    Encoded::new(&Resource::new(
        route.name.to_string(),
        resource::Resource::TlsRoute(resource),
    ))
    .ok()
}

/// The status of a route's parents needs the declared references again.
pub(super) fn parent_outcomes<'a>(
    route: &'a TlsRoute,
    state: &'a RouteState,
) -> impl Iterator<
    Item = (
        &'a vestibule_model::object::ParentRef,
        &'a Result<Vec<Attached>, Finding>,
    ),
> {
    state
        .parents
        .iter()
        .filter_map(|(index, outcome)| Some((route.parents.get(*index)?, outcome)))
}
