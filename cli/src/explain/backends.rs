//! The step of the chain for the backends behind a listener.

use super::report::{ChainStep, Check, ObjectView, RouteView, RuleView, StepOutcome};
use super::routes::answers;
use super::steps::step;

/// The step about the backends of the routes for a name.
pub(super) fn backends(routes: &[RouteView]) -> Option<ChainStep> {
    // The first TLSRoute gets every connection. For HTTPRoutes, each rule gets its own requests.
    let serving: Vec<&RouteView> = routes.iter().filter(|route| !route.shadowed).collect();
    let first = serving.first()?;
    let rules = || serving.iter().flat_map(|route| &route.rules);
    let answered: Vec<Option<bool>> = rules().map(answers).collect();
    let (any, unknown) = (answered.contains(&Some(true)), answered.contains(&None));
    let trouble = serving.iter().find_map(|route| {
        let trouble = route.rules.iter().find_map(trouble)?;
        Some((*route, trouble))
    });
    let verdict = |route: &RouteView, outcome, reason: &str, message: String, action: String| {
        let ObjectView {
            kind,
            namespace,
            name,
        } = &route.object;
        let subject = format!("{kind} {namespace}/{name}");
        Some(step(
            Check::Backends,
            outcome,
            &subject,
            reason,
            message,
            action,
        ))
    };
    match trouble {
        None if any => {
            let message = "has ready endpoints".into();
            verdict(first, StepOutcome::Ok, "", message, String::new())
        }
        None if unknown => {
            let message = "leads to Services or endpoints that may not be read".into();
            verdict(first, StepOutcome::Unknown, "", message, String::new())
        }
        None => None,
        Some((route, (reason, message, action))) => {
            let outcome = match (any, unknown) {
                (true, _) => StepOutcome::Warning,
                (false, true) => StepOutcome::Unknown,
                (false, false) => StepOutcome::Wrong,
            };
            verdict(route, outcome, &reason, message, action)
        }
    }
}

/// What is wrong with a rule: reason, message and action.
fn trouble(rule: &RuleView) -> Option<(String, String, String)> {
    let reported = |reason: &str, message: String, action: &str| {
        Some((reason.to_owned(), message, action.to_owned()))
    };
    let mut used = rule.backends.iter().filter(|one| one.weight > 0);
    let broken = used.find_map(|one| {
        let service = format!("Service {}/{}", one.service.namespace, one.service.name);
        match (one.problem.split_once(": "), one.ready) {
            (Some((reason, message)), _) => reported(reason, message.to_owned(), &one.remedy),
            (None, Some(0)) => reported(
                "NoEndpoints",
                format!("{service} has no ready endpoint on port {}", one.port),
                "see whether its pods are ready and its selector fits them",
            ),
            _ => None,
        }
    });
    if broken.is_some() {
        return broken;
    }
    if !rule.problem.is_empty() {
        return reported(&rule.reason, rule.problem.clone(), &rule.remedy);
    }
    if answers(rule) == Some(false) {
        let action = "name a backend with a weight above 0";
        return reported(
            "NoBackends",
            "has no backend that takes a share".into(),
            action,
        );
    }
    None
}
