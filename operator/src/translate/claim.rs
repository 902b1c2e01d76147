//! Claims: which names wait for a holder, which names their holders use, which hostnames a route may serve, and which
//! owners of hostnames the proxies have to know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::attach::{Attached, RouteHostname};
use vestibule_model::claim::{ClaimKey, Claimed, Holder};
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName, PortKey};
use vestibule_model::merge::{Merge, NearestOwners, RouteAsks};
use vestibule_model::names::{NameClaimState, NameDecision, NameSource};
use vestibule_model::object::Object;
use vestibule_model::path::PathPrefix;
use vestibule_model::port::{PortClaimState, PortDecision};
use vestibule_model::reversed::Patterns;
use vestibule_model::route::Route;
use vestibule_model::small::{SmallMap, SmallSet};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::output::ClaimState;
use super::route_state::Parents;
use super::{Dirty, Output, Translator, Work};

/// Whether a name that nobody holds is served at once, or when its claim is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClaimMode {
    /// At once. The namespace that comes first in upstream's order counts as the holder. This is for verdicts on
    /// manifests alone (`vestibule check`).
    #[default]
    Assumed,
    /// When [`Change::Claims`](super::Change::Claims) says that it is held. The caller has persisted the claim by then.
    Recorded,
}

/// Whether a route may serve a hostname on a listener.
enum HostnameDecision {
    Serves,
    /// The route serves it as soon as the claim is recorded.
    Waits,
    /// The route may not serve it: its namespace may not have the name, or the route reaches outside the paths that are
    /// shared with its namespace. `None` if another finding says so already.
    Lost(Option<Finding>),
}

/// How much of a name a route has because a grant shares the name with its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Nothing: the route has the name in another way, or not at all.
    Nothing,
    Whole,
    /// Only what lies below one of these paths. The list is never empty.
    Parts(Vec<PathPrefix>),
}

/// A name on a Gateway.
type InnerName = (ObjectName, HostPattern);

/// The names that routes have inside the wildcards of ListenerSets' listeners. The routes do not ask for these names. A
/// route loses one when another namespace gets it, or gets a narrower wildcard around it.
#[derive(Debug, Default)]
pub(super) struct InnerNames {
    of_routes: BTreeMap<ObjectKey, SmallSet<InnerName>>,
    routes: BTreeMap<ObjectName, Patterns<SmallSet<ObjectKey>>>,
}

impl InnerNames {
    /// Replaces the names of a route.
    fn put(&mut self, route: &ObjectKey, names: &BTreeSet<InnerName>) {
        let former = if names.is_empty() {
            self.of_routes.remove(route)
        } else {
            let names = names.iter().cloned().collect();
            self.of_routes.insert(route.clone(), names)
        };
        let former = former.unwrap_or_default();
        for (gateway, name) in former.iter().filter(|name| !names.contains(*name)) {
            let Some(of_gateway) = self.routes.get_mut(gateway) else {
                continue;
            };
            if let Some(routes) = of_gateway.get_mut(name) {
                routes.remove(route);
                if routes.is_empty() {
                    of_gateway.remove(name);
                }
            }
            if of_gateway.is_empty() {
                self.routes.remove(gateway);
            }
        }
        for (gateway, name) in names.iter().filter(|name| !former.contains(name)) {
            let of_gateway = self.routes.entry(gateway.clone()).or_default();
            of_gateway.or_default(name).insert(route.clone());
        }
    }

    /// The routes with names inside `pattern` that belong to the owner of `pattern`. Names inside a narrower pattern
    /// with an owner of its own are left out.
    fn below<'a>(
        &'a self,
        merge: &'a Merge,
        gateway: &'a ObjectName,
        pattern: &'a HostPattern,
    ) -> impl Iterator<Item = &'a SmallSet<ObjectKey>> {
        let of_gateway = self.routes.get(gateway).into_iter();
        let covered = of_gateway.flat_map(move |all| all.covered(pattern));
        covered
            .filter(move |(names, _)| {
                let nearest = merge.nearest_owner(gateway, names);
                nearest.is_none_or(|(nearest, _)| nearest.covers(pattern))
            })
            .map(|(_, routes)| routes)
    }
}

impl Translator {
    /// The claim state of everything that is held or asked for.
    #[must_use]
    pub fn claim_states(&self) -> &BTreeMap<ClaimKey, ClaimState> {
        &self.claim_states
    }

    /// The holder of everything that is held. Where nobody records claims ([`ClaimMode::Assumed`]), whoever should get a
    /// name or port counts as its holder.
    #[must_use]
    pub fn holders(&self) -> BTreeMap<ClaimKey, Option<Holder>> {
        let states = self.claim_states.iter();
        let holders = states.filter_map(|(key, state)| {
            let assumed = || match state {
                ClaimState::Wanted(holder) if self.merge.assumes() => Some(holder.clone()),
                _ => None,
            };
            let holder = self.merge.holder(key).or_else(assumed)?;
            Some((key.clone(), Some(holder)))
        });
        holders.collect()
    }

    pub(super) fn take_claims(
        &mut self,
        changes: BTreeMap<ClaimKey, Option<Holder>>,
        dirty: &mut Dirty,
    ) {
        let affected = self.merge.put_claims(changes);
        self.spread(affected, dirty);
    }

    pub(super) fn take_taken(
        &mut self,
        changes: BTreeMap<ClaimKey, Option<Arc<str>>>,
        dirty: &mut Dirty,
    ) {
        let affected = self.merge.put_taken(changes);
        self.spread(affected, dirty);
    }

    /// A `HostnameClaim` is new, has changed or is gone.
    pub(super) fn take_claim_object(
        &mut self,
        name: &ObjectName,
        object: Option<&Object>,
        dirty: &mut Dirty,
    ) {
        let claim = match object {
            Some(Object::HostnameClaim(claim)) => Some(Arc::clone(claim)),
            _ => None,
        };
        let changes = self.claim_objects.put(name, claim);
        let taken = self.claim_objects.taken(&changes);
        let since = self.claim_objects.since(&changes);
        self.take_claims(changes, dirty);
        self.take_taken(taken, dirty);
        self.take_since(since, dirty);
    }

    /// Brings up to date which names the changed routes ask for. This comes before listeners and routes are judged, so
    /// whatever the names affect is judged in the same pass.
    pub(super) fn ask_for_routes(&mut self, dirty: &mut Dirty) {
        for key in dirty.routes.clone() {
            let created = self.route(&key).map_or(0, |route| route.meta().created);
            let affected = if key.kind.routes_ports() {
                let ports = self.asked_ports(&key);
                let is_refused = self.route(&key).is_some_and(|route| self.is_refused(route));
                self.merge.put_port_route(&key, created, &ports, is_refused)
            } else {
                let (asks, inner) = self.names_of(&key);
                self.inner_names.put(&key, &inner);
                self.merge.put_route(&key, created, asks)
            };
            self.spread(affected, dirty);
        }
        // All objects of the pass ask now. What asks inside a wildcard is decided once for all of them.
        let affected = self.merge.settle_names();
        self.spread(affected, dirty);
        for (gateway, names) in &dirty.owned {
            // The holder of a name decides whether a grant restricts a route to some paths of it, so routes that ask
            // for it are judged again.
            let asking = self.merge.names(gateway).into_iter();
            let asking = asking.flat_map(|of| of.askers(names));
            dirty
                .routes
                .extend(asking.filter_map(|source| match source {
                    NameSource::Route(route) => Some(route.clone()),
                    NameSource::Listener(_) | NameSource::Guest(_) | NameSource::Refused(_) => None,
                }));
            dirty.routes.extend(
                self.inner_names
                    .below(&self.merge, gateway, names)
                    .flatten()
                    .cloned(),
            );
        }
    }

    /// The names that a route asks for, and the names that it has inside the wildcards of ListenerSets' listeners. It
    /// asks for names on listeners of Gateways themselves, and on those listeners of ListenerSets that have no
    /// hostname. A route that is refused asks for nothing, but its namespace keeps those of the names that it holds.
    fn names_of(&self, key: &ObjectKey) -> (RouteAsks, BTreeSet<InnerName>) {
        let (mut asks, mut inner) = (RouteAsks::new(), BTreeSet::new());
        let Some(route) = self.route(key) else {
            return (asks, inner);
        };
        let is_refused = self.is_refused(route);
        let (parents, _) = self.judge_parents(route, None);
        for attached in parents.values().flatten().flatten() {
            let names = attached.hostnames.iter().map(|name| name.matches.clone());
            if let Some((gateway, source)) = self.merge.asker(key, &attached.listener) {
                let source = if is_refused {
                    NameSource::Refused(Box::new(source))
                } else {
                    source
                };
                asks.entry((gateway, source)).or_default().extend(names);
            } else if is_refused {
                // It serves nothing, and the listener itself asks for the names.
            } else if let Some((listeners, gateway)) =
                self.merge.listeners(&attached.listener.parent)
            {
                let own = |names: &HostPattern| {
                    listeners.iter().any(|listener| {
                        listener.name == attached.listener.listener && listener.hostname == *names
                    })
                };
                let names = names.filter(|names| !own(names));
                inner.extend(names.map(|names| (gateway.clone(), names)));
            }
        }
        (asks, inner)
    }

    /// The ports for which a TCPRoute or UDPRoute asks, on listeners of Gateways themselves. They include those of a
    /// route that is refused: it asks for nothing, but its namespace keeps those of the ports that it holds.
    fn asked_ports(&self, key: &ObjectKey) -> BTreeSet<PortKey> {
        let parents = self
            .route(key)
            .map(|route| self.judge_parents(route, None).0);
        let attached = parents
            .iter()
            .flat_map(SmallMap::values)
            .flatten()
            .flatten();
        attached
            .filter_map(|attached| self.merge.own_port(&attached.listener))
            .collect()
    }

    /// Removes from `parents` the hostnames, or ports, that the route may not serve, and adds a finding for each. What
    /// waits for its claim stays, because the status counts it as attached. Returns what the route serves now, and the
    /// indexes of the parents where something waits for a claim.
    pub(super) fn claimed_by_route(
        &self,
        route: Route<'_>,
        parents: &mut Parents,
        findings: &mut Vec<Finding>,
        work: &mut Work,
    ) -> (Vec<Attached>, SmallSet<usize>) {
        let key = route.key();
        let (mut served, mut waiting) = (Vec::new(), SmallSet::default());
        let mut said = BTreeSet::new();
        let mut owners = NearestOwners::new(&self.merge);
        for (index, outcome) in parents.iter_mut() {
            let Ok(attached) = outcome else { continue };
            let mut lost = None;
            attached.retain_mut(|attached| {
                let listener = attached.listener.clone();
                let Some((_, gateway)) = self.merge.listeners(&listener.parent) else {
                    return true;
                };
                let asker = self.merge.asker(&key, &listener);
                let source = asker.as_ref().map(|(_, source)| source);
                let mut hostnames = Vec::new();
                attached.hostnames.retain(|hostname| {
                    let hostname_decision = if route.has_names() {
                        let owners = &mut owners;
                        self.hostname_decision(owners, gateway, source, route, &listener, hostname)
                    } else {
                        self.port_decision(&key, &listener)
                    };
                    let finding = match hostname_decision {
                        HostnameDecision::Serves => {
                            hostnames.push(hostname.clone());
                            return true;
                        }
                        HostnameDecision::Waits => {
                            waiting.insert(*index);
                            return true;
                        }
                        HostnameDecision::Lost(finding) => finding,
                    };
                    if let Some(finding) = finding {
                        let finding = Finding {
                            severity: Severity::Warning,
                            ..finding
                        };
                        if said.insert(finding.clone()) {
                            findings.push(finding.clone());
                        }
                        lost.get_or_insert(finding);
                    }
                    false
                });
                if !hostnames.is_empty() {
                    served.push(Attached {
                        listener,
                        hostnames,
                    });
                }
                !attached.hostnames.is_empty()
            });
            if attached.is_empty()
                && let Some(finding) = lost
            {
                findings.retain(|other| *other != finding);
                let severity = Severity::Refused;
                *outcome = Err(Finding {
                    severity,
                    ..finding
                });
            }
        }
        work.owners += owners.looked_up();
        (served, waiting)
    }

    /// How much of a name a route may have on a listener only because a grant shares the name with its namespace.
    pub(super) fn sharing(
        &self,
        route: &ObjectKey,
        listener: &ListenerKey,
        names: &HostPattern,
    ) -> Sharing {
        let Some((gateway, source)) = self.merge.asker(route, listener) else {
            return Sharing::Nothing;
        };
        let parts = self.merge.shared_paths(route, listener, names);
        if !parts.is_empty() {
            return Sharing::Parts(parts);
        }
        let Some(of) = self.merge.names(&gateway) else {
            return Sharing::Nothing;
        };
        // A namespace that neither holds the name nor owns the Gateway can have it only because the name is shared.
        let shares = !source.is_own_of(&gateway)
            && of.holder(names) != Some(source.namespace())
            && of.decision(&source, names) == Some(NameDecision::Has);
        if shares {
            Sharing::Whole
        } else {
            Sharing::Nothing
        }
    }

    fn hostname_decision(
        &self,
        owners: &mut NearestOwners<'_>,
        gateway: &ObjectName,
        source: Option<&NameSource>,
        route: Route<'_>,
        listener: &ListenerKey,
        hostname: &RouteHostname,
    ) -> HostnameDecision {
        let names = &hostname.matches;
        let refused = |decision: NameDecision| {
            let field = route.hostname_field(&hostname.rank);
            HostnameDecision::Lost(decision.finding(field, names, gateway))
        };
        let Some(source) = source else {
            // The route uses the names of the listener.
            let lost = owners.lost_on(listener, names);
            return lost.map_or(HostnameDecision::Serves, refused);
        };
        if source.is_own_of(gateway) {
            return HostnameDecision::Serves;
        }
        match self.merge.name_decision(gateway, source, names) {
            Some(NameDecision::Has) => {
                match self.merge.outside_shared_paths(route, listener, names) {
                    Some(outside) => HostnameDecision::Lost(Some(outside)),
                    None => HostnameDecision::Serves,
                }
            }
            Some(refusal) if refusal.is_refusal() => refused(refusal),
            _ => HostnameDecision::Waits,
        }
    }

    /// The same decision for a TCPRoute or UDPRoute, which has a port instead of hostnames.
    fn port_decision(&self, route: &ObjectKey, listener: &ListenerKey) -> HostnameDecision {
        // The route uses the port that the namespace of the ListenerSet holds.
        let Some(at) = self.merge.own_port(listener) else {
            return HostnameDecision::Serves;
        };
        match self.merge.decide_port(&at, route) {
            PortDecision::Has => HostnameDecision::Serves,
            PortDecision::Free => HostnameDecision::Waits,
            refusal => HostnameDecision::Lost(refusal.finding(&at)),
        }
    }

    /// Brings up to date what the proxies know about the owners of names.
    pub(super) fn translate_owners(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for (gateway, names) in std::mem::take(&mut dirty.owned) {
            let ours = self.merge.gateway(&gateway).is_some();
            let owner = self.merge.owner_at(&gateway, &names).filter(|_| ours);
            let key = ResourceKey::new(ResourceKind::HostnameOwner, format!("{gateway}/{names}"));
            let resource = owner.and_then(|owner| {
                let owner = proto::HostnameOwner {
                    gateway: gateway.to_string(),
                    hostname: names.to_string(),
                    tenant: owner.to_string(),
                };
                let owner = resource::Resource::HostnameOwner(owner);
                // Only a name could make it too large, and the API bounds names.
                Encoded::new(&Resource::new(key.name.clone(), owner)).ok()
            });
            if self.settle_resource(key, resource, output) {
                dirty.aged.insert((gateway, names));
            }
        }
        for (gateway, names) in std::mem::take(&mut dirty.aged) {
            let interests = self.whose_anywhere(&gateway, &names);
            self.mark_interested(interests, dirty);
        }
    }

    /// Brings up to date the claim states of names and ports.
    pub(super) fn translate_claims(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for key in std::mem::take(&mut dirty.claims) {
            output.work.claims += 1;
            let state = self.claim_state(&key);
            let old = match state.clone() {
                Some(state) => self.claim_states.insert(key.clone(), state),
                None => self.claim_states.remove(&key),
            };
            if old != state {
                output.claims.insert(key, state);
            }
        }
    }

    fn claim_state(&self, key: &ClaimKey) -> Option<ClaimState> {
        let gateway = &key.gateway;
        if self.merge.gateway(gateway).is_none() {
            // The Gateway of another controller has no claim states. A Gateway that is gone may come back, so its
            // claims stay, and are unused.
            let is_gone = !self.merge.is_known_gateway(gateway);
            return (is_gone && self.merge.holder(key).is_some()).then_some(ClaimState::Unused);
        }
        match &key.of {
            Claimed::Names(names) => {
                let of = self.merge.names(gateway)?;
                Some(match of.claim_state(names) {
                    None => ClaimState::Wanted(of.next_holder(names)?),
                    Some(NameClaimState::Used) => ClaimState::Used,
                    Some(NameClaimState::Idle) => ClaimState::Unused,
                    Some(NameClaimState::Revoked) => ClaimState::Revoked,
                })
            }
            Claimed::Port(..) => {
                let at = key.port_key()?;
                let port = self.merge.port(&at)?;
                Some(match port.claim_state() {
                    None => ClaimState::Wanted(port.next_holder()?),
                    Some(PortClaimState::Used) => ClaimState::Used,
                    Some(PortClaimState::Passed(to)) => ClaimState::Passed(to),
                    Some(PortClaimState::Idle) => {
                        let may = |holder: &Holder| self.merge.may_return_to(&at, holder);
                        if port.holder().as_ref().is_some_and(may) {
                            ClaimState::Unused
                        } else {
                            ClaimState::Revoked
                        }
                    }
                    Some(PortClaimState::Revoked) => ClaimState::Revoked,
                })
            }
        }
    }
}
