//! Statuses of routes of all kinds.

use std::sync::Arc;

use vestibule_model::attach::Attached;
use vestibule_model::condition::{
    Condition, ConditionType, Reason, RouteParentStatus, RouteStatus, Wait,
};
use vestibule_model::finding::{Finding, Origin};
use vestibule_model::key::ObjectKey;
use vestibule_stream::ResourceKey;

use super::backend_key::backend_resource;
use super::listener::ListenerState;
use super::output::Status;
use super::report::fails;
use super::route::route_resource;
use super::route_parents::parent_outcomes;
use super::route_state::RouteState;
use super::{Output, Translator, source};

const ACCEPTED: ConditionType = ConditionType::Accepted;
/// The message of Programmed where no listener is served. A route is accepted all the same, as Gateway API says.
const NOT_SERVED: &str =
    "No listener that the route is attached to here is served; see the status of the listeners";
/// Most warnings in the message of a condition.
const WARNINGS: usize = 3;

/// What has to be in force for a route to be served on one of its parents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteNeeds {
    /// The route's resource, and those of its backends.
    pub own: Vec<ResourceKey>,
    /// The resources of its listeners there.
    pub listeners: Vec<ResourceKey>,
    /// What the route waits for before it can be published, if anything.
    pub waits: Option<Wait>,
}

impl Translator {
    /// What an accepted route needs on the parent at this place of its status.
    #[must_use]
    pub fn route_needs(&self, route: &ObjectKey, place: usize) -> RouteNeeds {
        let mut needs = RouteNeeds::default();
        let state = self.routes.get(route);
        let Some((state, (index, Ok(attached)))) =
            state.and_then(|state| Some((state, state.parents.iter().nth(place)?)))
        else {
            return needs;
        };
        let own = state.backends.iter().map(backend_resource);
        needs.own = std::iter::once(route_resource(route))
            .chain(own)
            .filter(|key| self.resources.contains_key(key))
            .collect();
        if state.waiting.contains(index) {
            needs.waits = Some(Wait::Claim);
        }
        for attached in attached {
            let listener = self.listeners.get(&attached.listener);
            let resources = self.resources_of(&attached.listener);
            let there = resources
                .into_iter()
                .filter(|key| self.resources.contains_key(key));
            needs.listeners.extend(there);
            match listener.filter(|listener| listener.is_served()) {
                Some(listener) if !listener.claimed => needs.waits = Some(Wait::Claim),
                Some(listener) if !listener.bound => needs.waits = Some(Wait::InternalPort),
                _ => {}
            }
        }
        needs
    }

    /// Whether the proxies get at least one of the listeners to which a route is attached, and do not close all of its
    /// connections, as they do without a certificate.
    fn is_served_on(&self, attached: &[Attached]) -> bool {
        let mut listeners = attached
            .iter()
            .filter_map(|at| self.listeners.get(&at.listener).map(Arc::as_ref));
        listeners.any(ListenerState::carries_routes)
    }

    pub(super) fn assemble_route(&mut self, key: &ObjectKey, output: &mut Output) {
        let mut findings = self.own_findings(key);
        let status = match (self.route(key), self.routes.get(key)) {
            (Some(route), Some(state)) if !state.parents.is_empty() => {
                findings.extend(state.findings.iter().cloned());
                let queued = self.queue_findings(key);
                findings.extend(queued.iter().cloned());
                let resolved = match &state.unresolved {
                    None => Condition::holds(
                        ConditionType::ResolvedRefs,
                        Reason::ResolvedRefs,
                        "All references are resolved",
                    ),
                    Some(finding) => fails(ConditionType::ResolvedRefs, finding),
                };
                let parents = parent_outcomes(route, state)
                    .map(|(parent, outcome)| {
                        let mut conditions = route_conditions(state, &queued, outcome, &resolved);
                        if let Ok(attached) = outcome
                            && !self.is_served_on(attached)
                        {
                            conditions.push(Condition::fails(
                                ConditionType::RouteProgrammed,
                                Reason::Invalid,
                                NOT_SERVED,
                            ));
                        }
                        RouteParentStatus {
                            parent: parent.clone(),
                            conditions,
                        }
                    })
                    .collect();
                Some(Status::Route(RouteStatus { parents }))
            }
            (_, state) => {
                findings.extend(state.into_iter().flat_map(|s| s.findings.iter().cloned()));
                None
            }
        };
        self.settle_status(key.clone(), status, output);
        self.settle_findings(key, findings, output);
    }
}

/// The conditions of a route for one parent.
fn route_conditions(
    state: &RouteState,
    queued: &[Finding],
    outcome: &Result<Vec<Attached>, Finding>,
    resolved: &Condition,
) -> Vec<Condition> {
    let accepted = match outcome {
        Ok(_) => {
            let message = accepted_with(queued.iter().chain(&state.findings));
            Condition::holds(ACCEPTED, Reason::Accepted, message)
        }
        Err(finding) => fails(ACCEPTED, finding),
    };
    let mut conditions = vec![accepted, resolved.clone()];
    // A route that is not accepted serves no rules, so none of them is dropped.
    if let (Ok(_), Some((_, first))) = (outcome, state.dropped.first()) {
        let rules: Vec<&str> = state
            .dropped
            .iter()
            .map(|(rule, _)| rule.as_str())
            .collect();
        // The specification requires that the message begins like this.
        let message = format!(
            "Dropped Rule {}, whose requests are answered with 500 as far as its matches can be read: {first}",
            rules.join(", ")
        );
        conditions.push(Condition::holds(
            ConditionType::PartiallyInvalid,
            first.reason.in_condition(),
            message,
        ));
    }
    conditions
}

/// The message that a route is accepted, with warnings about what has no effect.
fn accepted_with<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let mut message = "The route is accepted".to_owned();
    // ResolvedRefs says that a source is being read.
    let warnings = findings.filter(|finding| {
        !finding.refuses() && finding.origin == Origin::Specification && !source::is_unread(finding)
    });
    for warning in warnings.take(WARNINGS) {
        message.push_str(". ");
        message.push_str(&warning.to_string());
    }
    message
}
