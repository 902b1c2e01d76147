//! Routes beside what is there: hostnames that their namespace does not own or that another one holds, and
//! references that nobody permits.

use std::collections::BTreeSet;

use vestibule_model::attach::{Attached, RouteHostname, attach_route};
use vestibule_model::claim::{ClaimKey, ClaimUse};
use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ParentKey;
use vestibule_model::object::Object;
use vestibule_model::route::Route;

use super::{not_permitted, warning};
use crate::facts::Facts;

/// What there is to say of `route`, which takes the place of `old` if there is one.
///
/// A hostname is refused where it comes to nothing at all. One that is left out of one listener and stays on
/// another is told, and so is one that the former version had on the same parents: a grant that is gone does
/// not stop every edit.
pub(super) fn findings(facts: &Facts, old: Option<&Object>, route: Route<'_>) -> Vec<Finding> {
    let former = old
        .and_then(Object::as_route)
        .filter(|old| old.parents() == route.parents());
    let had = |field: &str| {
        former.is_some_and(|old| {
            let mut written = route.hostnames().iter();
            written.any(|(index, name)| {
                field_of(*index, name) == field
                    && old.hostnames().iter().any(|(_, other)| other == name)
            })
        })
    };
    let (mut served, mut lost) = (BTreeSet::new(), Vec::new());
    for (index, reference) in route.parents().iter().enumerate() {
        let Some(parent) = reference.parent(&route.name().namespace) else {
            continue;
        };
        let Some((listeners, _)) = facts.merge().listeners(&parent) else {
            continue;
        };
        let labels = facts.merge().labels(&route.name().namespace);
        let attached = attach_route(route, index, reference, &parent, listeners, labels);
        // That a parent does not take it (yet) refuses nothing.
        let Ok(attached) = attached else { continue };
        let (left, not_owned) = owned(facts, route, &parent, attached);
        lost.extend(not_owned);
        for attached in &left {
            for hostname in &attached.hostnames {
                let field = field_of_name(route, &hostname.rank);
                match held_by_others(facts, route, &parent, attached, hostname) {
                    Some(port) => lost.push(taken(field, &hostname.rank, port)),
                    None => _ = served.insert(field),
                }
            }
        }
    }
    let mut findings: Vec<Finding> = Vec::new();
    for finding in lost {
        let told = served.contains(&finding.field) || had(&finding.field);
        let finding = Finding {
            severity: if told {
                Severity::Warning
            } else {
                Severity::Refused
            },
            ..finding
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    let backends = route.backends().map(|backend| &backend.reference);
    findings.extend(not_permitted(facts, &route.key(), backends).map(warning));
    findings
}

/// What of the attachments the route's namespace owns, and a finding for each hostname that it does not.
fn owned(
    facts: &Facts,
    route: Route<'_>,
    parent: &ParentKey,
    attached: Vec<Attached>,
) -> (Vec<Attached>, Vec<Finding>) {
    let merge = facts.merge();
    let each: Vec<Attached> = attached.iter().flat_map(one_by_one).collect();
    let (left, findings) = merge.owned_by_route(route, parent, attached);
    if !left.is_empty() || findings.is_empty() {
        return (left, findings);
    }
    // Where nothing is left only the first one is told, which may be one that was there before.
    let of_each = |one| merge.owned_by_route(route, parent, vec![one]).1;
    (left, each.into_iter().flat_map(of_each).collect())
}

fn one_by_one(attached: &Attached) -> impl Iterator<Item = Attached> {
    attached.hostnames.iter().map(|hostname| Attached {
        listener: attached.listener.clone(),
        hostnames: vec![hostname.clone()],
    })
}

/// The port on which another namespace holds this hostname for its TLSRoutes, if one does, where connections
/// for it come to the listener. The Gateway's own namespace stands above claims.
fn held_by_others(
    facts: &Facts,
    route: Route<'_>,
    parent: &ParentKey,
    attached: &Attached,
    hostname: &RouteHostname,
) -> Option<u16> {
    let Route::Tls(_) = route else { return None };
    let merge = facts.merge();
    let namespace = &route.name().namespace;
    let (_, gateway) = merge.listeners(parent)?;
    if gateway.namespace == *namespace {
        return None;
    }
    let (port, claim) = merge.claim(&attached.listener)?;
    if merge.port(port)?.selected(&hostname.matches) != Some(claim.names()) {
        return None;
    }
    // As the listener leaves it, or as it is written.
    let mut held = [&hostname.matches, &hostname.rank]
        .into_iter()
        .filter_map(|names| merge.holder(&ClaimKey::new(port, ClaimUse::TlsRoute, names)));
    held.any(|holder| holder != namespace)
        .then_some(port.port.get())
}

fn taken(field: String, hostname: &HostPattern, port: u16) -> Finding {
    let name = match hostname {
        HostPattern::Any => "every hostname".to_owned(),
        pattern => format!("hostname {:?}", pattern.to_string()),
    };
    Finding::refused(
        Reason::HostnameConflict,
        field,
        format!("{name} is served by another route on port {port}, and left out here"),
        "use another hostname, or have the present route removed first",
    )
}

fn field_of_name(route: Route<'_>, name: &HostPattern) -> String {
    let at = route.hostnames().iter().find(|(_, other)| other == name);
    at.map_or_else(
        || "spec.hostnames".to_owned(),
        |(index, name)| field_of(*index, name),
    )
}

fn field_of(index: usize, name: &HostPattern) -> String {
    match name {
        HostPattern::Any => "spec.hostnames".to_owned(),
        _ => format!("spec.hostnames[{index}]"),
    }
}
