//! Statuses of routes of all kinds.

use vestibule_model::attach::Attached;
use vestibule_model::condition::{
    Condition, ConditionType, Reason, RouteParentStatus, RouteStatus,
};
use vestibule_model::finding::{Finding, Origin};
use vestibule_model::key::ObjectKey;

use super::route::{RouteState, parent_outcomes};
use super::status::{Status, fails};
use super::{Output, Translator};

const ACCEPTED: ConditionType = ConditionType::Accepted;
/// Warnings in the message of a condition.
const WARNINGS: usize = 3;

impl Translator {
    pub(super) fn assemble_route(&mut self, key: &ObjectKey, output: &mut Output) {
        let mut findings = self.own_findings(key);
        let status = match (self.route(key), self.routes.get(key)) {
            (Some(route), Some(state)) if !state.parents.is_empty() => {
                findings.extend(state.findings.iter().cloned());
                let resolved = match &state.unresolved {
                    None => Condition::holds(
                        ConditionType::ResolvedRefs,
                        Reason::ResolvedRefs,
                        "All references are resolved",
                    ),
                    Some(finding) => fails(ConditionType::ResolvedRefs, finding),
                };
                let parents = parent_outcomes(route, state)
                    .map(|(parent, outcome)| RouteParentStatus {
                        parent: parent.clone(),
                        conditions: route_conditions(state, outcome, &resolved),
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

/// What is said of a route towards one parent.
fn route_conditions(
    state: &RouteState,
    outcome: &Result<Vec<Attached>, Finding>,
    resolved: &Condition,
) -> Vec<Condition> {
    let accepted = match outcome {
        Ok(_) => Condition::holds(ACCEPTED, Reason::Accepted, accepted_with(&state.findings)),
        Err(finding) => fails(ACCEPTED, finding),
    };
    let mut conditions = vec![accepted, resolved.clone()];
    // Of a route that is not accepted there is nothing to drop.
    if let (Ok(_), Some((_, first))) = (outcome, state.dropped.first()) {
        let rules: Vec<&str> = state
            .dropped
            .iter()
            .map(|(rule, _)| rule.as_str())
            .collect();
        // The API wants this beginning.
        let message = format!(
            "Dropped Rule {}, whose requests are answered with 500: {first}",
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

/// That a route is accepted, and what of it has no effect.
fn accepted_with(findings: &[Finding]) -> String {
    let mut message = "The route is accepted".to_owned();
    let warnings = findings
        .iter()
        .filter(|finding| !finding.refuses() && finding.origin == Origin::Specification);
    for warning in warnings.take(WARNINGS) {
        message.push_str(". ");
        message.push_str(&warning.to_string());
    }
    message
}
