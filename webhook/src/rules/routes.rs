//! The findings about a route together with the objects that exist: hostnames and ports that its namespace may not have
//! on the Gateway, references that no grant permits, and more entries than the namespace may have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::attach::{Attached, attach_route};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::{Merge, NearestOwners, SetVerdict};
use vestibule_model::names::{AskedBy, NameDecision};
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_model::reference::ParentRef;
use vestibule_model::route::{Route, field_of_hostname};
use vestibule_model::route_budget::too_many;

use super::{not_permitted, warning};
use crate::admission_state::AdmissionState;

const HOSTNAMES: &str = "spec.hostnames";
/// The field of findings about ports, for routes without hostnames.
const PARENTS: &str = "spec.parentRefs";
/// Most hostnames that are checked, counted once for each listener. A review takes time from those of all others. A
/// route with more hostnames is allowed with a warning, and the status shows what is served.
const MOST_HOSTNAMES: usize = 8192;

/// The findings about `route`, which replaces `old` if there is one.
pub(super) fn findings(
    state: &AdmissionState,
    policy: &Policy,
    old: Option<&Object>,
    route: Route<'_>,
) -> Vec<Finding> {
    let former = old.and_then(Object::as_route);
    let attachments = Attachments::of(state, route);
    let mut findings = if attachments.unjudged.is_empty() {
        findings_of_hostnames(state, former, route, &attachments.parents)
    } else {
        vec![too_many_hostnames(MOST_HOSTNAMES)]
    };
    let entries = attachments.entries(state, route);
    findings.extend(over_budget(state, policy, former, entries));
    let backends = route.all_backends().map(|backend| &backend.reference);
    findings.extend(not_permitted(state, &route.key(), backends).map(warning));
    findings
}

/// The findings about the hostnames of a route, or about its ports if it has no hostnames.
///
/// A hostname is refused if no listener serves it. It is only a warning if another listener still serves it, or if the
/// former version had the hostname on the same parents. So a grant that is gone does not block every edit. The same
/// holds for a match that reaches outside of the shared paths of a hostname.
fn findings_of_hostnames(
    state: &AdmissionState,
    former: Option<Route<'_>>,
    route: Route<'_>,
    parents: &[AtParent<'_>],
) -> Vec<Finding> {
    let merge = state.merge();
    let key = route.key();
    let fields = fields_of(route);
    let old = former.filter(|old| old.parents() == route.parents());
    let mut had: BTreeSet<&str> = old
        .into_iter()
        .flat_map(Route::hostnames)
        .filter_map(|(_, name)| fields.get(name))
        .map(String::as_str)
        .collect();
    if old.is_some_and(|old| old.hostnames().is_empty()) && fields.is_empty() {
        had.insert(HOSTNAMES);
    }
    // Whether the former version reached outside of the shared paths in the same way.
    let was_outside = |listener: &ListenerKey, names: &HostPattern, field: &str| {
        let old = old.filter(|_| had.contains(field));
        old.is_some_and(|old| merge.outside_shared_paths(old, listener, names).is_some())
    };
    // `lost` has the field of the hostname with each finding.
    let (mut served, mut lost) = (BTreeSet::new(), Vec::new());
    let mut said: BTreeSet<Finding> = BTreeSet::new();
    let mut decisions = Decisions::new(merge);
    for at in parents {
        lost.extend(
            at.not_owned
                .iter()
                .filter(|finding| said.insert((*finding).clone()))
                .map(|finding| (finding.field.clone(), told_if_had(&had, finding.clone()))),
        );
        for attached in &at.left {
            for hostname in &attached.hostnames {
                let field = fields.get(&hostname.rank).map_or(HOSTNAMES, String::as_str);
                let (listener, names) = (&attached.listener, &hostname.matches);
                let refused = if route.has_names() {
                    let decision = decisions.of(&key, listener, at.gateway, names);
                    decision.finding(field, names, at.gateway)
                } else {
                    // On a listener of a ListenerSet, the route uses the port of the set.
                    let port = merge.own_port(listener);
                    port.and_then(|at| merge.decide_port(&at, &key).finding(&at))
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
    let lost = lost.into_iter().map(|(hostname, finding)| {
        if served.contains(hostname.as_str()) {
            warning(finding)
        } else {
            finding
        }
    });
    lost.collect()
}

/// The attachments of a route to its parents.
#[derive(Default)]
struct Attachments<'a> {
    parents: Vec<AtParent<'a>>,
    /// The attachments to the parent with which its hostnames become more than [`MOST_HOSTNAMES`]. None of its
    /// hostnames are judged then, and the parents behind that one are not looked at.
    unjudged: Vec<Attached>,
}

/// The attachments of a route to one of its parents.
struct AtParent<'a> {
    gateway: &'a ObjectName,
    /// The hostnames that it may ask for.
    left: Vec<Attached>,
    /// The findings about those that it may not ask for.
    not_owned: Vec<Finding>,
}

impl<'a> Attachments<'a> {
    fn of(state: &'a AdmissionState, route: Route<'_>) -> Self {
        let mut all = Self::default();
        let mut room = MOST_HOSTNAMES;
        for reference in route.parents() {
            let Some((parent, gateway, attached)) = attached_by(state, route, reference) else {
                continue;
            };
            let hostnames: usize = attached.iter().map(|at| at.hostnames.len()).sum();
            let Some(rest) = room.checked_sub(hostnames) else {
                all.unjudged = attached;
                break;
            };
            room = rest;
            let (left, not_owned) = state.merge().left_to_route(route, &parent, attached);
            all.parents.push(AtParent {
                gateway,
                left,
                not_owned,
            });
        }
        all
    }

    /// How many entries the route takes there in the tables of a proxy.
    fn entries(&self, state: &AdmissionState, route: Route<'_>) -> u64 {
        let left = self.parents.iter().flat_map(|at| &at.left);
        let (_, size) = state.merge().route_size(route, left.chain(&self.unjudged));
        size.entries
    }
}

/// Where a reference attaches a route, with the parent and its Gateway. A parent that takes no part (yet), or does not
/// take the route (yet), is no reason to refuse the route.
fn attached_by<'a>(
    state: &'a AdmissionState,
    route: Route<'_>,
    reference: &ParentRef,
) -> Option<(ParentKey, &'a ObjectName, Vec<Attached>)> {
    let (merge, namespace) = (state.merge(), &route.name().namespace);
    let parent = reference.parent(namespace)?;
    let (listeners, gateway) = merge
        .listeners(&parent)
        .filter(|_| is_open(state, &parent))?;
    let labels = merge.labels(namespace);
    let attached = attach_route(route, reference, &parent, listeners, labels).ok()?;
    Some((parent, gateway, attached))
}

/// The finding about a route that takes more entries than all routes of its namespace may have. The webhook does not
/// know the other routes, so this is only about the route alone. It is a warning if the former version took as many, so
/// that such a route can be edited.
///
/// The operator would refuse the route as a whole. So without this, an edit would end what the former version served.
fn over_budget(
    state: &AdmissionState,
    policy: &Policy,
    former: Option<Route<'_>>,
    entries: u64,
) -> Option<Finding> {
    let most = u64::from(policy.route_entries);
    if entries <= most {
        return None;
    }
    let finding = too_many(entries, most);
    let taken = former.map_or(0, |former| {
        Attachments::of(state, former).entries(state, former)
    });
    Some(if taken >= entries {
        warning(finding)
    } else {
        finding
    })
}

/// Decisions about the hostnames of a route. Many listeners need the same one, so each is made once.
struct Decisions<'a> {
    merge: &'a Merge,
    owners: NearestOwners<'a>,
    made: BTreeMap<(&'a ObjectName, Arc<str>, AskedBy, HostPattern), NameDecision>,
}

impl<'a> Decisions<'a> {
    fn new(merge: &'a Merge) -> Self {
        Self {
            merge,
            owners: NearestOwners::new(merge),
            made: BTreeMap::new(),
        }
    }

    /// The decision about `names` of a route on a listener. Without an asker, the route uses the names of the listener.
    fn of(
        &mut self,
        route: &ObjectKey,
        listener: &ListenerKey,
        gateway: &'a ObjectName,
        names: &HostPattern,
    ) -> NameDecision {
        let Some((_, source)) = self.merge.asker(route, listener) else {
            let lost = self.owners.lost_on(listener, names);
            return lost.unwrap_or(NameDecision::Has);
        };
        let (namespace, by) = (source.namespace(), source.asked_by());
        let made = self
            .made
            .entry((gateway, namespace.clone(), by, names.clone()));
        *made.or_insert_with(|| self.merge.decide(gateway, namespace, names, by))
    }
}

/// The field of each hostname of a route. For a route without hostnames, it is the field by which it asks for a port.
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

/// A finding about a hostname. It becomes a warning if the former version already had the hostname.
fn told_if_had(had: &BTreeSet<&str>, finding: Finding) -> Finding {
    if had.contains(finding.field.as_str()) {
        warning(finding)
    } else {
        finding
    }
}

/// Whether a parent takes part: its Gateway exists, is ours, and allows it.
fn is_open(state: &AdmissionState, parent: &ParentKey) -> bool {
    let merge = state.merge();
    match parent {
        ParentKey::Gateway(name) => merge.gateway(name).is_some(),
        ParentKey::ListenerSet(name) => merge
            .set(name)
            .is_some_and(|set| !set.meta.deleting && merge.verdict(set) == SetVerdict::Allowed),
    }
}

fn too_many_hostnames(most: usize) -> Finding {
    Finding::warning(
        Reason::HostnameNotOwned,
        HOSTNAMES,
        format!(
            "come to more than {most}, counted once for each listener, so it was not looked at whose they are"
        ),
        "see in its status which ones are served, or spread them over more routes",
    )
}
