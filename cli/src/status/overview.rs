//! Builds the rows of the overview from the statuses in a cluster, or from the statuses that the objects of a
//! directory would have.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::ListenerSet;
use vestibule_model::hostname::HostPattern;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{Kind, ObjectKey, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::reference::ParentRef;

use crate::explain::cluster_state::ClusterState;
use crate::explain::conditions::{ISSUED, PROGRAMMED, ReportedStatus, conditions_in, reported_in};
use crate::explain::unread;
use crate::hints::hints;

/// The overview. Rows with problems come first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Overview {
    pub(super) objects: Vec<Row>,
    /// What could not be read, with one entry each.
    pub(super) unread: Vec<String>,
    /// The same for people.
    #[serde(skip)]
    pub(super) unread_lines: Vec<String>,
}

/// The state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObjectHealth {
    /// A part of it is refused or not in force.
    Wrong,
    /// It is not in force yet, or its status is about an older version.
    Waiting,
    /// It is in force, but there is a warning.
    Warning,
    /// Nothing is wrong.
    Ok,
}

/// The row of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) health: ObjectHealth,
    /// Its problems, the worst first.
    pub(super) problems: Vec<Problem>,
    /// A short description of what the object contains.
    pub(super) summary: String,
}

/// A problem of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    pub(super) health: ObjectHealth,
    /// The listener or parent in the object that has the problem. Empty if the object itself has it.
    pub(super) part: String,
    /// Type of the condition that reports the problem; empty if no condition does.
    pub(super) condition: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Writes `Reason at part: message`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if !self.part.is_empty() {
            write!(f, " at {}", self.part)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message.replace(char::is_control, " "))?;
        }
        Ok(())
    }
}

/// Builds the overview. With `namespace`, it contains only the objects of that namespace, and no classes.
pub(super) fn overview(cluster_state: &ClusterState, namespace: Option<&str>) -> Overview {
    // Hints need every object. A directory is complete, but in a cluster this command does not read the objects that
    // others refer to.
    let hints = match cluster_state.live {
        None => hints(&cluster_state.translator),
        Some(_) => BTreeMap::new(),
    };
    let mut objects: Vec<Row> = cluster_state
        .translator
        .objects()
        .filter(|(key, _)| namespace.is_none_or(|only| key.name.namespace.as_ref() == only))
        .filter(|(key, _)| !cluster_state.is_assumed(key))
        .filter_map(|(key, object)| row(cluster_state, key, object, hints.get(key)))
        .collect();
    objects.sort_by(|a, b| {
        let order = |row: &Row| {
            (
                row.health,
                rank(row.kind),
                row.namespace.clone(),
                row.name.clone(),
            )
        };
        order(a).cmp(&order(b))
    });
    Overview {
        objects,
        unread: unread::each(cluster_state),
        unread_lines: unread::grouped(cluster_state),
    }
}

fn rank(kind: &str) -> usize {
    let kinds = Kind::ALL.into_iter();
    kinds.take_while(|one| one.as_str() != kind).count()
}

fn row(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    object: &Object,
    hints: Option<&Vec<Finding>>,
) -> Option<Row> {
    let has_status = matches!(
        key.kind,
        Kind::GatewayClass | Kind::Gateway | Kind::ListenerSet | Kind::HostnameGrant
    );
    if !has_status && !key.kind.is_route() || is_foreign(cluster_state, object) {
        return None;
    }
    let computed = cluster_state
        .live
        .is_none()
        .then(|| cluster_state.computed(key))
        .flatten();
    let status = computed.as_ref().or_else(|| cluster_state.written(key));
    let mut problems = Vec::new();
    let mut summary = String::new();
    match object {
        Object::Unreadable(_, _, finding) => {
            problems.push(of_finding(finding, ObjectHealth::Wrong));
        }
        Object::GatewayClass(class) => {
            summary = format!("of controller {}", class.controller);
            problems.extend(of_said(
                cluster_state,
                key,
                status.and_then(conditions_in),
                "",
            ));
        }
        Object::HostnameGrant(grant) => {
            summary = grant_summary(grant);
            problems.extend(of_said(
                cluster_state,
                key,
                status.and_then(conditions_in),
                "",
            ));
        }
        Object::ListenerSet(set) if absent_gateway(cluster_state, set).is_some() => {
            problems.extend(absent_gateway(cluster_state, set));
        }
        Object::Gateway(_) | Object::ListenerSet(_) => {
            problems.extend(of_said(
                cluster_state,
                key,
                status.and_then(conditions_in),
                "",
            ));
            let entries = status.and_then(|status| status.get("listeners")?.as_array());
            let entries = entries.map(Vec::as_slice).unwrap_or_default();
            for entry in entries {
                let part = format!("listener {}", entry["name"].as_str().unwrap_or_default());
                problems.extend(of_said(cluster_state, key, conditions_in(entry), &part));
            }
            summary = listeners_summary(status, entries);
        }
        route => {
            let parents = route.as_route()?.parents();
            problems.extend(of_route(cluster_state, key, status, parents));
            problems.extend(of_parentless(cluster_state, key, parents));
            let count = parents.len();
            summary = format!("{count} {}", if count == 1 { "parent" } else { "parents" });
        }
    }
    problems.extend(
        hints
            .into_iter()
            .flatten()
            .map(|one| of_finding(one, ObjectHealth::Warning)),
    );
    problems.sort_by_key(|problem| problem.health);
    // The listeners themselves report which of them are not valid.
    if problems.iter().any(|one| !one.part.is_empty()) {
        problems.retain(|one| {
            let is_of_listeners = matches!(
                Reason::from_text(&one.reason),
                Some(Reason::ListenersNotValid | Reason::ListenersNotResolved)
            );
            !one.part.is_empty() || !is_of_listeners
        });
    }
    Some(Row {
        kind: key.kind.as_str(),
        namespace: key.name.namespace.to_string(),
        name: key.name.name.to_string(),
        health: problems
            .first()
            .map_or(ObjectHealth::Ok, |problem| problem.health),
        problems,
        summary,
    })
}

/// Whether an object is known to belong to another controller.
fn is_foreign(cluster_state: &ClusterState, object: &Object) -> bool {
    let merge = cluster_state.translator.merge();
    match object {
        Object::GatewayClass(class) => class.controller != cluster_state.controller,
        Object::Gateway(gateway) => merge.is_foreign(&gateway.name),
        // If all Gateways that the grant is for belong to other controllers, Vestibule does not write its status.
        Object::HostnameGrant(grant) => {
            let mut gateways = merge
                .gateways_in(&grant.name.namespace)
                .filter(|gateway| grant.is_for(&gateway.name))
                .peekable();
            gateways.peek().is_some() && gateways.all(|gateway| merge.is_foreign(gateway))
        }
        Object::ListenerSet(set) => set
            .gateway
            .as_ref()
            .is_some_and(|name| merge.is_foreign(name)),
        object => object.as_route().is_some_and(|route| {
            let namespace = &route.name().namespace;
            let mut gateways = route.parents().iter().map(|parent| {
                let parent = parent.parent(namespace)?;
                merge
                    .listeners(&parent)
                    .map(|(_, gateway)| gateway.clone())
                    .or(match parent {
                        ParentKey::Gateway(name) => Some(name),
                        ParentKey::ListenerSet(_) => None,
                    })
            });
            !route.parents().is_empty()
                && gateways.all(|gateway| gateway.is_none_or(|name| merge.is_foreign(&name)))
                && route.parents().iter().any(|parent| {
                    parent.parent(namespace).is_some_and(|parent| {
                        merge.listeners(&parent).is_none() && merge.is_foreign(parent.name())
                    })
                })
        }),
    }
}

/// Describes a grant as `*.a.example, b.example to namespaces a, b`.
fn grant_summary(grant: &HostnameGrant) -> String {
    const NAMED: usize = 3;
    let few = |all: Vec<String>| match all.len().saturating_sub(NAMED) {
        0 => all.join(", "),
        more => format!("{} and {more} more", all[..NAMED].join(", ")),
    };
    let hostnames = grant.hostnames.iter().map(|hostname| match hostname {
        HostPattern::Any => "every hostname".to_owned(),
        hostname => hostname.to_string(),
    });
    let names = &grant.namespaces.names;
    let mut to = Vec::new();
    if !names.is_empty() {
        let all = names.iter().map(ToString::to_string).collect();
        to.push(format!("namespace {}", few(all)));
    }
    match &grant.namespaces.selector {
        Some(selector) if selector.requirements.is_empty() => to.push("every namespace".to_owned()),
        Some(_) => to.push("namespaces by label".to_owned()),
        None => {}
    }
    format!("{} to {}", few(hostnames.collect()), to.join(" and "))
}

fn listeners_summary(status: Option<&Value>, entries: &[Value]) -> String {
    let many =
        |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let routes = entries
        .iter()
        .filter_map(|entry| entry["attachedRoutes"].as_u64());
    let mut parts = vec![
        many(entries.len() as u64, "listener"),
        many(routes.sum(), "route"),
    ];
    let sets = status.and_then(|status| status.get("attachedListenerSets")?.as_u64());
    if let Some(sets) = sets {
        parts.push(many(sets, "ListenerSet"));
    }
    let addresses = status.and_then(|status| status.get("addresses")?.as_array());
    let addresses: Vec<&str> = addresses
        .into_iter()
        .flatten()
        .filter_map(|one| one.get("value")?.as_str())
        .collect();
    if !addresses.is_empty() {
        parts.push(format!("address {}", addresses.join(", ")));
    }
    parts.join(", ")
}

fn of_route(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    status: Option<&Value>,
    parents: &[ParentRef],
) -> Vec<Problem> {
    let namespace = &key.name.namespace;
    let mut problems = Vec::new();
    for parent in parents {
        let Some(parent_key) = parent.parent(namespace) else {
            continue;
        };
        let part = parent_key.object().to_string();
        let reported = status
            .and_then(|status| reported_in(status, &cluster_state.controller, parent, namespace));
        if reported.is_none()
            && let Some(absent) = absent(cluster_state, &parent_key)
        {
            problems.push(absent);
            continue;
        }
        // In a directory a hint reports a parent that does not exist.
        if reported.is_none() && cluster_state.live.is_none() {
            continue;
        }
        problems.extend(of_said(cluster_state, key, reported, &part));
    }
    problems
}

/// The findings about a route of a directory that refers to no parent. It has no status that could report them. In a
/// cluster nobody needs to know more than that it has no effect, and translation here may not see everything.
fn of_parentless(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    parents: &[ParentRef],
) -> Vec<Problem> {
    if cluster_state.live.is_some() || !parents.is_empty() {
        return Vec::new();
    }
    let findings = cluster_state.translator.findings().get(key);
    let findings = findings.into_iter().flatten();
    let problems = findings.map(|finding| {
        let health = if finding.refuses() {
            ObjectHealth::Wrong
        } else {
            ObjectHealth::Warning
        };
        of_finding(finding, health)
    });
    problems.collect()
}

/// Reports a parent that does not exist, for which nobody writes a status. `None` in a directory, where a hint
/// reports it.
fn absent(cluster_state: &ClusterState, parent: &ParentKey) -> Option<Problem> {
    let key = parent.object();
    (cluster_state.live.is_some() && cluster_state.is_missing(&key)).then(|| Problem {
        health: ObjectHealth::Waiting,
        part: String::new(),
        condition: String::new(),
        reason: "NotFound".into(),
        message: format!("{key} does not exist, and this waits for it"),
    })
}

fn absent_gateway(cluster_state: &ClusterState, set: &ListenerSet) -> Option<Problem> {
    absent(cluster_state, &ParentKey::Gateway(set.gateway.clone()?))
}

/// Collects the problems that conditions report.
fn of_said(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    reported: Option<ReportedStatus>,
    part: &str,
) -> Vec<Problem> {
    let problem = |health, condition: &str, reason: &str, message: &str| Problem {
        health,
        part: part.into(),
        condition: condition.into(),
        reason: reason.into(),
        message: message.into(),
    };
    let Some(reported) = reported.filter(|reported| !reported.is_empty()) else {
        if cluster_state.live.is_none() {
            return Vec::new();
        }
        let message = "no status of Vestibule's: another controller's object, or not processed yet";
        return vec![problem(ObjectHealth::Wrong, "", "NoStatus", message)];
    };
    let mut problems = Vec::new();
    for one in &reported.conditions {
        let health = match (one.kind.as_str(), one.truth.as_str()) {
            (PROGRAMMED | ISSUED, "False" | "Unknown") if one.is_for(Reason::Pending) => {
                // The objects of a directory are never in force, so that is no problem.
                if cluster_state.live.is_none() {
                    continue;
                }
                ObjectHealth::Waiting
            }
            ("Accepted", "False") if one.is_for(Reason::Pending) => ObjectHealth::Waiting,
            ("Accepted" | "ResolvedRefs" | PROGRAMMED | ISSUED, "False")
            | ("Conflicted" | "PartiallyInvalid", "True") => ObjectHealth::Wrong,
            ("Accepted" | "ResolvedRefs" | PROGRAMMED, "Unknown")
                if cluster_state.live.is_some() =>
            {
                ObjectHealth::Waiting
            }
            // The route is accepted, but parts of it are left out. The status of a live cluster says so only in the
            // message: Gateway API has neither a reason nor a field for it, and the findings of translation here can
            // differ from the operator's if the caller may not read everything. The first sentence says that the route
            // is accepted, and the others say what is left out.
            ("Accepted", "True") if key.kind.is_route() && one.message.contains(". ") => {
                ObjectHealth::Warning
            }
            _ => continue,
        };
        let message = match health {
            ObjectHealth::Warning => one.message.split_once(". ").map_or("", |(_, what)| what),
            _ => &one.message,
        };
        problems.push(problem(health, &one.kind, &one.reason, message));
    }
    // One cause can set several conditions. Only the first of them is shown.
    let mut seen: Vec<String> = Vec::new();
    problems.retain(|one| {
        let new = !seen.contains(&one.message);
        seen.push(one.message.clone());
        new
    });
    if problems.is_empty()
        && cluster_state.live.is_some()
        && reported.is_older_than(cluster_state.generation(key))
    {
        let message = "the status is about an older version of the object";
        problems.push(problem(ObjectHealth::Waiting, "", "Stale", message));
    }
    problems
}

fn of_finding(finding: &Finding, health: ObjectHealth) -> Problem {
    Problem {
        health,
        part: finding.field.clone(),
        condition: String::new(),
        reason: finding.reason.as_str().into(),
        message: format!("{}; {}", finding.message, finding.action),
    }
}
