//! Routes beside what is there: hostnames and ports that their namespace may not have on the Gateway, and references that
//! nobody permits.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::attach::attach_route;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::names::NameDecision;
use vestibule_model::object::Object;
use vestibule_model::route::{Route, field_of_hostname};

use super::{not_permitted, warning};
use crate::admission_state::AdmissionState;

const HOSTNAMES: &str = "spec.hostnames";
/// What a route without names may not have is a port.
const PARENTS: &str = "spec.parentRefs";
/// Most hostnames on listeners, counted once for each listener, that are looked at: a review takes its time
/// from everybody's. Who has more is let in with a warning, and the status says what is served.
const MOST_HOSTNAMES: usize = 8192;

/// What there is to say of `route`, which takes the place of `old` if there is one.
///
/// A hostname is refused where it comes to nothing at all. One that is left out of one listener and stays on
/// another is told, and so is one that the former version had on the same parents: a grant that is gone does
/// not stop every edit. The same goes for a match that reaches outside of what is shared of a hostname.
pub(super) fn findings(
    state: &AdmissionState,
    old: Option<&Object>,
    route: Route<'_>,
) -> Vec<Finding> {
    let merge = state.merge();
    let (key, namespace) = (route.key(), &route.name().namespace);
    let fields = fields_of(route);
    let old = old
        .and_then(Object::as_route)
        .filter(|old| old.parents() == route.parents());
    let mut had: BTreeSet<&str> = old
        .into_iter()
        .flat_map(Route::hostnames)
        .filter_map(|(_, name)| fields.get(name))
        .map(String::as_str)
        .collect();
    if old.is_some_and(|old| old.hostnames().is_empty()) && fields.is_empty() {
        had.insert(HOSTNAMES);
    }
    // Whether the former version reached outside of what is shared with it just so.
    let was_outside = |listener: &ListenerKey, names: &HostPattern, field: &str| {
        let old = old.filter(|_| had.contains(field));
        old.is_some_and(|old| merge.outside_shared_paths(old, listener, names).is_some())
    };
    // Of what is lost, the field of the hostname beside each finding.
    let (mut served, mut lost) = (BTreeSet::new(), Vec::new());
    let (mut room, mut said) = (MOST_HOSTNAMES, BTreeSet::new());
    for (index, reference) in route.parents().iter().enumerate() {
        let Some(parent) = reference.parent(namespace) else {
            continue;
        };
        // That a parent takes no part (yet), or does not take it (yet), refuses nothing.
        let Some((listeners, gateway)) =
            merge.listeners(&parent).filter(|_| is_open(state, &parent))
        else {
            continue;
        };
        let labels = merge.labels(namespace);
        let attached = attach_route(route, index, reference, &parent, listeners, labels);
        let Ok(attached) = attached else { continue };
        let hostnames = attached.iter().map(|attached| attached.hostnames.len());
        let Some(rest) = room.checked_sub(hostnames.sum()) else {
            lost.clear();
            lost.push((HOSTNAMES.to_owned(), too_many(MOST_HOSTNAMES)));
            break;
        };
        room = rest;
        let (left, not_owned) = merge.left_to_route(route, &parent, attached);
        lost.extend(
            not_owned
                .into_iter()
                .filter(|finding| said.insert(finding.clone()))
                .map(|finding| (finding.field.clone(), told_if_had(&had, finding))),
        );
        for attached in &left {
            for hostname in &attached.hostnames {
                let field = fields.get(&hostname.rank).map_or(HOSTNAMES, String::as_str);
                let (listener, names) = (&attached.listener, &hostname.matches);
                let refused = if route.has_names() {
                    // Without an asker, it uses the listener's names.
                    let decision = match merge.asker(&key, listener) {
                        Some((_, source)) => {
                            merge.decide(gateway, source.namespace(), names, source.asked_by())
                        }
                        None => merge.lost_on(listener, names).unwrap_or(NameDecision::Has),
                    };
                    decision.finding(field, names, gateway)
                } else {
                    // On a listener of a ListenerSet, it uses the set's port.
                    let port = merge.own_port(listener);
                    port.and_then(|at| merge.decide_port(at, &key).finding(at))
                };
                let outside = || {
                    let finding = merge.outside_shared_paths(route, listener, names)?;
                    let is_old = was_outside(listener, names, field);
                    Some(if is_old { warning(finding) } else { finding })
                };
                let refused = refused.map(|finding| told_if_had(&had, finding));
                match refused.or_else(outside) {
                    Some(finding) => {
                        if said.insert(finding.clone()) {
                            lost.push((field.to_owned(), finding));
                        }
                    }
                    None => _ = served.insert(field),
                }
            }
        }
    }
    let mut findings: Vec<Finding> = lost
        .into_iter()
        .map(|(hostname, finding)| {
            if served.contains(hostname.as_str()) {
                warning(finding)
            } else {
                finding
            }
        })
        .collect();
    let backends = route
        .backends_and_mirrors()
        .map(|backend| &backend.reference);
    findings.extend(not_permitted(state, &key, backends).map(warning));
    findings
}

/// Where each of a route's hostnames is written; of a route without names, where it asks for a port.
fn fields_of(route: Route<'_>) -> BTreeMap<&HostPattern, String> {
    let hostnames = route.hostnames().iter().rev();
    let fields = hostnames.map(|(index, name)| {
        let field = if route.has_names() {
            field_of_hostname(Some(*index), name)
        } else {
            PARENTS.to_owned()
        };
        (name, field)
    });
    fields.collect()
}

/// A finding about a hostname, which refuses nothing if the former version had the hostname.
fn told_if_had(had: &BTreeSet<&str>, finding: Finding) -> Finding {
    if had.contains(finding.field.as_str()) {
        warning(finding)
    } else {
        finding
    }
}

/// Whether a parent takes part in anything, as its Gateway has it.
fn is_open(state: &AdmissionState, parent: &ParentKey) -> bool {
    let merge = state.merge();
    match parent {
        ParentKey::Gateway(name) => merge.gateway(name).is_some(),
        ParentKey::ListenerSet(name) => merge
            .set(name)
            .is_some_and(|set| !set.meta.deleting && merge.verdict(set) == SetVerdict::Allowed),
    }
}

fn too_many(most: usize) -> Finding {
    Finding::warning(
        Reason::HostnameNotOwned,
        HOSTNAMES,
        format!(
            "come to more than {most}, counted once for each listener, so it was not looked at whose they are"
        ),
        "see in its status which ones are served, or spread them over more routes",
    )
}
