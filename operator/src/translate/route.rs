//! Routes of all kinds: the state of each, and its resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::attach::Attached;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey};
use vestibule_model::route::Route;
use vestibule_model::small::SmallSet;
use vestibule_stream::proto;
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::claim::Sharing;
use super::reach::SharedListenerRoutes;
use super::route_size::JudgedParents;
use super::route_state::{Judged, RouteState};
use super::{Dirty, Output, Translator, Work, set_user};

impl Translator {
    pub(super) fn translate_routes(&mut self, dirty: &mut Dirty, output: &mut Output) {
        let mut judged = self.count_routes(dirty);
        for key in std::mem::take(&mut dirty.routes) {
            output.work.routes += 1;
            let (state, resource) = match self.route(&key) {
                Some(route) => {
                    let judged = judged.remove(&key);
                    let (state, resource) = self.judge_route(route, judged, &mut output.work);
                    // Lists in the copy have no room for more entries, which would be held for as long as the route.
                    (Some(Arc::new(state.clone())), resource)
                }
                None => (None, None),
            };
            self.settle_resource(route_resource(&key), resource, output);
            dirty.others.insert(key.clone());
            let old = match state.clone() {
                Some(state) => self.routes.insert(key.clone(), state),
                None => self.routes.remove(&key),
            };
            let shared = SharedListenerRoutes::of(self.route(&key), state.as_deref());
            let former = if shared == SharedListenerRoutes::default() {
                self.shared.remove(&key)
            } else {
                self.shared.insert(key.clone(), shared.clone())
            };
            let interests = self
                .challenge_index
                .move_route(&former.unwrap_or_default(), &shared);
            self.mark_interested(interests, dirty);
            let listeners = |s: &Option<Arc<RouteState>>| s.as_deref().map(RouteState::listeners);
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
            self.settle_queues(&key, state.as_deref(), dirty);
            let backends = |s: &Option<Arc<RouteState>>| {
                let backends = s.as_ref().map(|state| state.backends.clone());
                backends.unwrap_or_default()
            };
            let (before, after) = (backends(&old), backends(&state));
            for backend in before.symmetric_difference(&after) {
                let uses = after.contains(backend);
                set_user(&mut self.backend_users, backend, &key, uses);
                dirty.backends.insert(backend.clone());
            }
        }
    }

    /// The state of a route and its resource. `judged` is what [`Self::judge_parents`] says of a route that nothing
    /// refuses, if it is known.
    fn judge_route(
        &self,
        route: Route<'_>,
        judged: Option<JudgedParents>,
        work: &mut Work,
    ) -> (RouteState, Option<Encoded>) {
        let Judged {
            mut findings,
            mut refused,
            dropped,
            references,
            body,
        } = match route {
            Route::Tls(route) => self.judge_tls_route(route),
            Route::Http(route) => self.judge_http_route(route),
            Route::Port(route) => self.judge_port_route(route),
        };
        let key = route.key();
        if refused.is_none() {
            refused = self.route_budgets.refusal(&key);
            findings.extend(refused.clone());
        }
        let (mut parents, left_out) = match (&refused, judged) {
            (None, Some(judged)) => judged,
            (refused, _) => self.judge_parents(route, refused.as_ref()),
        };
        findings.extend(left_out);
        let (served, waiting) = self.claimed_by_route(route, &mut parents, &mut findings, work);
        let mut in_part = SmallSet::default();
        let attachments = attachments(served.iter(), |listener, names| {
            let sharing = self.sharing(&key, listener, names);
            if matches!(sharing, Sharing::Parts(_)) {
                in_part.insert((listener.clone(), names.clone()));
            }
            sharing
        });
        let mut resource = None;
        // Which backends are in use must not depend on the size of the route, since their names are part of it only as long
        // as they are within the budget.
        let is_attached = !attachments.is_empty();
        if is_attached {
            let whole = Resource::new(route.name().to_string(), body.attached(attachments));
            match Encoded::new(&whole) {
                Ok(encoded) => {
                    let counted = self.route_budgets.bytes(&key);
                    debug_assert!(
                        encoded.len() as u64 <= counted,
                        "{key} has {} bytes, and counts {counted}",
                        encoded.len()
                    );
                    resource = Some(encoded);
                }
                Err(error) => {
                    let finding = Finding::refused(
                        Reason::UnsupportedValue,
                        "spec",
                        format!("is more than the proxies take: {error}"),
                        "spread its hostnames and rules over more routes",
                    );
                    for (_, outcome) in parents.iter_mut() {
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
        let mut state = RouteState {
            parents,
            waiting,
            unresolved: references.unresolved.map(Box::new),
            dropped,
            findings,
            backends: if is_attached {
                references.backends
            } else {
                SmallSet::default()
            },
            services: references.services,
            in_part,
        };
        let problems = references.policy_problems;
        if !problems.is_empty() && self.connects(&key, &state.listeners()) {
            state.add_policy_problems(problems);
        }
        (state, resource)
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

/// The attachments of a route, one for each listener, because two references may lead to the same one. `sharing`
/// says which names the route only shares with their holder.
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
