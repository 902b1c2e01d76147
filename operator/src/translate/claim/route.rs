//! Hostnames of TLSRoutes: who contends for which, and what each route may serve.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::attach::{Attached, RouteHostname};
use vestibule_model::claim::{self, ClaimKey, ClaimUse};
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ParentKey};
use vestibule_model::route::Route;

use super::{Claims, Contender, Stake};
use crate::translate::route::Parents;
use crate::translate::{Dirty, Translator};

/// What a route may do with a hostname on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Serves,
    /// Serve it once it is held.
    Waits,
    /// Nothing: it is another's on this port.
    Lost(u16),
}

impl Translator {
    /// Brings up to date which hostnames the changed TLSRoutes contend for, and adds the routes whose part may
    /// be another one by that.
    pub(in crate::translate) fn stake_routes(&mut self, dirty: &mut Dirty) {
        let mut more = BTreeSet::new();
        for route in dirty.routes.iter().filter(|key| key.kind == Kind::TlsRoute) {
            let new = self.stakes_of(route);
            let old = self.contest.routes.remove(route).unwrap_or_default();
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let rank = |stakes: &BTreeMap<ClaimKey, Option<Contender>>| {
                    stakes.get(key).cloned().flatten()
                };
                let (former, now) = (rank(&old), rank(&new));
                if former != now {
                    let contenders = self.contest.contenders.entry(key.clone()).or_default();
                    if let Some(former) = former {
                        contenders.remove(&former);
                    }
                    contenders.extend(now);
                    if contenders.is_empty() {
                        self.contest.contenders.remove(key);
                    }
                    more.insert(key.clone());
                }
                let named = new.contains_key(key);
                if named != old.contains_key(key) {
                    self.contest.set_candidate(key, route, named);
                }
            }
            if !new.is_empty() {
                self.contest.routes.insert(route.clone(), new);
            }
        }
        for key in &more {
            let routes = self.contest.candidates(&key.port_key(), &key.names);
            dirty.routes.extend(routes.cloned());
        }
        dirty.claims.extend(more);
    }

    /// The hostnames that a TLSRoute has on the ports of its listeners, and its rank where connections for them
    /// come to such a listener.
    fn stakes_of(&self, key: &ObjectKey) -> BTreeMap<ClaimKey, Option<Contender>> {
        let mut stakes: BTreeMap<ClaimKey, Option<Contender>> = BTreeMap::new();
        let Some(route) = self.route(key) else {
            return stakes;
        };
        let refused = match route {
            Route::Tls(route) => self.settings.policy.judge_route(route),
            Route::Http(_) => return stakes,
        };
        if refused.iter().any(Finding::refuses) {
            return stakes;
        }
        let (parents, _) = self.judge_parents(route, None);
        for attached in parents.values().flatten().flatten() {
            let Some(stake) = self.contest.listeners.get(&attached.listener) else {
                continue;
            };
            let open = is_open(route, &attached.listener, stake);
            let guest = route.name().namespace != stake.port.gateway.namespace;
            for hostname in &attached.hostnames {
                let claim = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, &hostname.matches);
                let place = stakes.entry(claim).or_default();
                if !(open && self.comes_to(route, &attached.listener, stake, hostname)) {
                    continue;
                }
                let rank: Contender = (
                    guest,
                    Reverse(hostname.rank.specificity()),
                    route.meta().created,
                    route.name().to_string().into(),
                    key.clone(),
                );
                if place.as_ref().is_none_or(|best| rank < *best) {
                    *place = Some(rank);
                }
            }
        }
        stakes
    }

    /// Whether connections for a hostname come to this listener, and nobody holds them for a more specific one.
    fn comes_to(
        &self,
        route: Route<'_>,
        listener: &ListenerKey,
        stake: &Stake,
        hostname: &RouteHostname,
    ) -> bool {
        let (names, namespace) = (&hostname.matches, &route.name().namespace);
        let guest = *namespace != stake.port.gateway.namespace;
        self.merge.port(&stake.port).is_some_and(|port| {
            port.serving(names)
                .is_some_and(|at| at.listener == *listener)
                && !(guest && port.is_reserved(names, &stake.names, namespace))
        })
    }

    /// Takes out of what a route is attached to the hostnames that are not its to serve, with a finding for
    /// those that are another's; what only waits stays in its status. Returns what is to be served, and the
    /// parents (by index) where something waits to be recorded.
    pub(in crate::translate) fn claimed_by_route(
        &self,
        route: Route<'_>,
        parents: &mut Parents,
        findings: &mut Vec<Finding>,
    ) -> (Vec<Attached>, BTreeSet<usize>) {
        let (mut served, mut waiting) = (Vec::new(), BTreeSet::new());
        let mut said = BTreeSet::new();
        for (index, outcome) in parents.iter_mut() {
            let Ok(attached) = outcome else { continue };
            if route.kind() != Kind::TlsRoute {
                served.extend(attached.iter().cloned());
                continue;
            }
            let mut lost = None;
            attached.retain_mut(|attached| {
                let listener = attached.listener.clone();
                let mut hostnames = Vec::new();
                attached.hostnames.retain(|hostname| {
                    match self.part(route, &listener, &hostname.matches) {
                        Part::Serves => hostnames.push(hostname.clone()),
                        Part::Waits => {
                            waiting.insert(*index);
                        }
                        Part::Lost(port) => {
                            let finding = taken(route, &hostname.rank, port);
                            if said.insert(finding.clone()) {
                                findings.push(finding.clone());
                            }
                            lost.get_or_insert(finding);
                            return false;
                        }
                    }
                    true
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
        (served, waiting)
    }

    /// A holder is looked at before anything else: where connections go may be another matter in a moment.
    fn part(&self, route: Route<'_>, listener: &ListenerKey, names: &HostPattern) -> Part {
        let Some(stake) = self.contest.listeners.get(listener) else {
            return Part::Serves;
        };
        let namespace = &route.name().namespace;
        if *namespace == stake.port.gateway.namespace {
            return Part::Serves;
        }
        let key = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, names);
        let lost = Part::Lost(stake.port.port.get());
        if self.contest.is_own(&key) || self.merge.route_taken(namespace, listener, names).is_some()
        {
            return lost;
        }
        if self.merge.holder(&key).is_some() {
            return Part::Serves;
        }
        let waits = match self.contest.winner(&key) {
            Some((.., winner)) if winner.name.namespace != *namespace => return lost,
            Some(_) => true,
            // Where no connection comes nobody takes anything from anybody: they come to another listener
            // that the proxies have, or to none.
            None => self
                .merge
                .port(&stake.port)
                .and_then(|port| port.serving(names))
                .is_some_and(|at| at.listener == *listener || !self.is_claimed(&at.listener)),
        };
        if waits && self.settings.claims == Claims::Told {
            Part::Waits
        } else {
            Part::Serves
        }
    }
}

/// Whether a route counts on a listener. On one of another tenant it does only once that one holds its
/// names, or the route's claim would keep its own listener out.
fn is_open(route: Route<'_>, listener: &ListenerKey, stake: &Stake) -> bool {
    let parent = &listener.parent;
    let own = matches!(parent, ParentKey::Gateway(_))
        || parent.name().namespace == route.name().namespace;
    stake.served && (own || stake.claimed)
}

fn taken(route: Route<'_>, hostname: &HostPattern, port: u16) -> Finding {
    Finding {
        severity: Severity::Warning,
        ..claim::taken(route.hostname_field(hostname), hostname, port)
    }
}
