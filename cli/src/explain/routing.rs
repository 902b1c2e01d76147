//! The step of the chain about routes: which route has the name on a listener, or why none has it.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ParentKey};
use vestibule_model::reference::ParentRef;

use super::candidates::{Candidate, references, serves};
use super::chain::Chain;
use super::cluster_state::{ClusterState, Unread};
use super::conditions::StatusSource;
use super::ownership::{WAIT, holders, is_guarded, is_told, refusal};
use super::report::{ChainStep, Check, StepOutcome, listener_text};
use super::steps::step;

impl Chain<'_> {
    /// The step for a route that waits until the operator has recorded its hostnames. Translation here does not see
    /// that.
    fn waits(&self, key: &ObjectKey) -> Option<ChainStep> {
        let route = self.cluster_state.translator.object(key)?.as_route()?;
        references(route, self.candidate).find_map(|reference| {
            let written = self.cluster_state.written_of_route(key, reference)?;
            let accepted = written.get("Accepted")?;
            let waits = accepted.is("False") && accepted.is_for(Reason::Pending);
            waits.then(|| self.wrong(Check::Route, key, accepted, StatusSource::Status))
        })
    }

    /// Whether the proxies ignore a route because the name belongs to another namespace.
    fn is_left_out(&self, route: &ObjectKey) -> bool {
        let ParentKey::Gateway(gateway) = &self.candidate.key.parent else {
            return false;
        };
        !serves(&self.cluster_state.translator, gateway, route, self.query)
    }

    /// The step about routes: which route has the name, or why none has it.
    pub(super) fn route(&self) -> Option<ChainStep> {
        if let Some(first) = self.routes.first() {
            let route = &first.key;
            if let Some(waits) = self.waits(route) {
                return Some(waits);
            }
            let subject = route.to_string();
            let message = if route.kind.routes_ports() {
                "is attached to the listener, and has its port"
            } else {
                "is attached to the listener for this name"
            };
            return Some(step(
                Check::Route,
                StepOutcome::Ok,
                &subject,
                "",
                message.into(),
                String::new(),
            ));
        }
        for rejected in self.rejected {
            let route = self
                .cluster_state
                .translator
                .object(rejected)
                .and_then(|object| object.as_route())?;
            for reference in references(route, self.candidate) {
                let reported = self.cluster_state.reported_on_route(rejected, reference);
                if let Some(cond) = reported.get("Accepted").filter(|c| c.is("False")) {
                    // Callers who may read grants also see what was granted instead.
                    let refusal = cond.is_for(Reason::HostnameNotOwned).then(|| {
                        route_refusal(self.cluster_state, self.candidate, rejected, self.query)
                    });
                    let wrong = || self.wrong(Check::Route, rejected, cond, reported.by);
                    return Some(refusal.flatten().unwrap_or_else(wrong));
                }
            }
            let left_out = references(route, self.candidate).find_map(|reference| {
                left_out(self.cluster_state, rejected, reference, self.query)
            });
            if left_out.is_some() {
                return left_out;
            }
            // The route may have other hostnames that are granted, while this one is not.
            let refusal = route_refusal(self.cluster_state, self.candidate, rejected, self.query);
            if refusal.is_some() {
                return refusal;
            }
            if self.cluster_state.is_whole()
                && let Some(loss) =
                    route_loss(self.cluster_state, self.candidate, rejected, self.query)
            {
                return Some(loss);
            }
            // A route with a wildcard, or without a hostname, does not get names that belong to others. As with
            // listeners, the owner is only known if it is known which grants are for the namespace.
            let (gateway, namespace) = (&self.candidate.gateway, &rejected.name.namespace);
            let is_known = is_told(self.cluster_state, gateway, namespace);
            if is_known && self.is_left_out(rejected) {
                let taken = self.taken(rejected);
                return Some(ChainStep {
                    check: Check::Route,
                    ..taken
                });
            }
        }
        Some(self.no_route())
    }

    /// The step for a listener that has no route for the name, as far as the caller can see.
    fn no_route(&self) -> ChainStep {
        let key = &self.candidate.key;
        let subject = listener_text(key);
        let kinds = self.candidate.route_kinds();
        let live = self.cluster_state.live.as_ref();
        let unread = live.and_then(|live| {
            let mut kinds = kinds.iter();
            kinds.find_map(|kind| Some((kind, live.unread.get(kind)?)))
        });
        let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        let kind = names.join(" or ");
        let known = self.cluster_state.attached_routes(key);
        let has_port = kinds.iter().all(|kind| kind.routes_ports());
        let for_it = if has_port { "" } else { " for this name" };
        let (outcome, message) = match unread {
            Some(_) if known == Some(0) => (StepOutcome::Wrong, format!("has no {kind}")),
            None => (StepOutcome::Wrong, format!("has no {kind}{for_it}")),
            Some((kind, Unread::Elsewhere(namespace))) => (
                StepOutcome::Unknown,
                format!("has no {kind}{for_it} in namespace {namespace}; others may not be read"),
            ),
            Some((kind, Unread::Everywhere)) => {
                (StepOutcome::Unknown, format!("{kind}s may not be read"))
            }
        };
        let article = article_of(kinds);
        let names = if has_port {
            String::new()
        } else {
            format!(" with hostname {}", self.query)
        };
        let action = format!(
            "create {article} {kind}{names} whose parentRefs name {}, sectionName {}",
            key.parent.object(),
            key.listener
        );
        step(Check::Route, outcome, &subject, "NoRoute", message, action)
    }
}

/// The step for an accepted route whose status says that this hostname is left out, because it belongs to another
/// namespace or was not granted. If not everything may be read, nothing more is known.
pub(super) fn left_out(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    reference: &ParentRef,
    query: &HostPattern,
) -> Option<ChainStep> {
    if cluster_state.is_whole() {
        return None;
    }
    let route = cluster_state.translator.object(key)?.as_route()?;
    let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
    let hostname = hostnames
        .filter(|hostname| hostname.covers(query))
        .max_by_key(|hostname| hostname.specificity())?;
    let reported = cluster_state.reported_on_route(key, reference);
    let accepted = reported
        .get("Accepted")
        .filter(|_| reported.by == StatusSource::Status)?;
    let field = format!("{}: ", route.hostname_field(hostname));
    let mut sentences = accepted.message.split(". ");
    let sentence = sentences.find(|sentence| sentence.starts_with(&field))?;
    let (message, action) = sentence.split_once("; ").unwrap_or((sentence, ""));
    Some(ChainStep {
        by: StatusSource::Status,
        ..step(
            Check::Route,
            StepOutcome::Wrong,
            &key.to_string(),
            "LeftOut",
            message.to_owned(),
            action.to_owned(),
        )
    })
}

/// Why a route does not serve the name on a listener: the name was not granted to its namespace, or only some paths are
/// shared and the route reaches outside of them.
fn route_refusal(
    cluster_state: &ClusterState,
    candidate: &Candidate,
    route: &ObjectKey,
    query: &HostPattern,
) -> Option<ChainStep> {
    let namespace = &route.name.namespace;
    let gateway = &candidate.gateway;
    if !is_guarded(cluster_state, gateway, namespace) || !is_told(cluster_state, gateway, namespace)
    {
        return None;
    }
    let merge = cluster_state.translator.merge();
    let own = cluster_state.translator.object(route)?.as_route()?;
    if let Some(outside) = merge.outside_shared_paths(own, &candidate.key, query) {
        return Some(step(
            Check::Route,
            StepOutcome::Wrong,
            &route.to_string(),
            outside.reason.as_str(),
            format!("{}: {}", outside.field, outside.message),
            outside.action,
        ));
    }
    let finding = merge
        .owns(
            &candidate.gateway,
            namespace,
            candidate.port()?,
            &candidate.listener.protocol,
            query,
        )
        .err()?;
    let (message, action) = refusal(cluster_state, &candidate.gateway, namespace, &finding);
    let reason = finding.reason.as_str();
    Some(step(
        Check::Route,
        StepOutcome::Wrong,
        &route.to_string(),
        reason,
        message,
        action,
    ))
}

/// Why a route that is attached to a listener does not serve the name there: the name belongs to another namespace.
fn route_loss(
    cluster_state: &ClusterState,
    candidate: &Candidate,
    route: &ObjectKey,
    query: &HostPattern,
) -> Option<ChainStep> {
    let hostnames = cluster_state
        .translator
        .object(route)?
        .as_route()?
        .hostnames();
    let at = |index: usize| format!("spec.hostnames[{index}]");
    let taken = |finding: &&Finding| {
        finding.reason == Reason::HostnameConflict
            && hostnames.iter().enumerate().any(|(index, (_, hostname))| {
                hostname.covers(query) && (finding.field == at(index) || hostnames.len() == 1)
            })
    };
    let findings = cluster_state.translator.findings().get(route)?;
    let finding = findings.iter().find(taken)?;
    let holders = holders(
        cluster_state,
        candidate,
        query,
        &[],
        std::slice::from_ref(route),
    );
    let left = holders.iter().any(|holder| !holder.in_use);
    let action = if left { WAIT } else { &finding.action };
    Some(step(
        Check::Route,
        StepOutcome::Wrong,
        &route.to_string(),
        finding.reason.as_str(),
        format!("{}: {}", finding.field, finding.message),
        action.to_owned(),
    ))
}

/// The article before the names of these kinds.
fn article_of(kinds: &[Kind]) -> &'static str {
    if kinds.contains(&Kind::HttpRoute) {
        "an"
    } else {
        "a"
    }
}
