//! Claims: which names wait to be held, which ones their holders make use of, and what a route may serve.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::attach::Attached;
use vestibule_model::claim::{self, ClaimKey, ClaimUse, Holders};
use vestibule_model::conflict::Group;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};
use vestibule_model::merge::PortKey;
use vestibule_model::object::{Object, Protocol};
use vestibule_model::route::Route;

use super::listener::ListenerState;
use super::{Change, Dirty, Output, Translator, set_user};

/// What a name that nobody holds waits for before it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Claims {
    /// For nothing: whoever comes first, by upstream's order, counts as its holder. For verdicts on objects
    /// alone (`vestibule check`).
    #[default]
    Assumed,
    /// Until it is told ([`Change::Claims`]) that it is held: whoever tells has persisted it.
    Told,
}

/// How it stands with a name that somebody holds, or is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody holds it; this namespace is to.
    Wished(Arc<str>),
    /// Its holder makes use of it.
    Kept,
    /// Its holder does not make use of it, and may come back.
    Left,
    /// Its holder may not have it any more.
    Revoked,
}

/// What a listener that takes part is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stake {
    port: PortKey,
    group: Group,
    names: HostPattern,
    in_force: bool,
    key: Option<ClaimKey>,
}

/// A route that contends for a hostname: the Gateway's own namespace before guests, then as upstream has it.
type Contender = (bool, i64, Arc<str>, ObjectKey);

/// Who contends for what.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// `HostnameClaim` objects that were put.
    objects: Holders,
    listeners: BTreeMap<ListenerKey, Stake>,
    /// What each route names, and whether connections for it come to a listener that the route is on.
    routes: BTreeMap<ObjectKey, BTreeMap<ClaimKey, bool>>,
    /// The same by name: every route, and those that connections would come to.
    candidates: BTreeMap<ClaimKey, BTreeSet<ObjectKey>>,
    contenders: BTreeMap<ClaimKey, BTreeSet<Contender>>,
    standings: BTreeMap<ClaimKey, Standing>,
    /// Names that are held and not made use of, be it that their Gateway is not there.
    idle: BTreeSet<ClaimKey>,
}

impl Contest {
    fn winner(&self, key: &ClaimKey) -> Option<&Contender> {
        self.contenders.get(key)?.first()
    }

    /// Whether the Gateway's own namespace has a route for it.
    fn is_own(&self, key: &ClaimKey) -> bool {
        self.winner(key).is_some_and(|(guest, ..)| !guest)
    }
}

impl Translator {
    /// How it stands with every name that is held or wished for.
    #[must_use]
    pub fn standings(&self) -> &BTreeMap<ClaimKey, Standing> {
        &self.contest.standings
    }

    /// Takes who holds what; see [`Change::Claims`].
    pub fn claims(&mut self, changes: BTreeMap<ClaimKey, Option<Arc<str>>>) -> Output {
        self.apply([Change::Claims(changes)])
    }

    pub(super) fn take_claims(
        &mut self,
        changes: BTreeMap<ClaimKey, Option<Arc<str>>>,
        dirty: &mut Dirty,
    ) {
        let affected = self.merge.put_claims(changes);
        for key in &affected.claims {
            let routes = self.contest.candidates.get(key);
            dirty.routes.extend(routes.into_iter().flatten().cloned());
        }
        dirty.claims.extend(affected.claims.iter().cloned());
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
            Some(Object::HostnameClaim(claim)) => Some(Arc::new(claim.clone())),
            _ => None,
        };
        let changes = self.contest.objects.put(name, claim);
        self.take_claims(changes, dirty);
    }

    /// Who is let in, or may have what, may have changed: names that nobody makes use of are looked at again.
    pub(super) fn mark_idle_claims(&self, dirty: &mut Dirty) {
        dirty.claims.extend(self.contest.idle.iter().cloned());
    }

    /// Whether what a listener wants is its namespace's, so that it may be served.
    pub(super) fn is_claimed(&self, listener: &ListenerKey) -> bool {
        let Some(key) = self.merge.claim_key(listener) else {
            return true;
        };
        match self.merge.holder(&key) {
            Some(holder) => *holder == listener.parent.name().namespace,
            None => self.settings.claims == Claims::Assumed,
        }
    }

    /// A listener was judged.
    pub(super) fn stake_listener(
        &mut self,
        listener: &ListenerKey,
        state: Option<&ListenerState>,
        dirty: &mut Dirty,
    ) {
        let new = self.merge.claim(listener).map(|(port, claim)| Stake {
            port: port.clone(),
            group: claim.protocol.group(),
            names: claim.names().clone(),
            in_force: state.is_some_and(ListenerState::takes_part),
            key: self.merge.claim_key(listener),
        });
        let old = match new.clone() {
            Some(new) => self.contest.listeners.insert(listener.clone(), new),
            None => self.contest.listeners.remove(listener),
        };
        let stakes = [&old, &new].into_iter().flatten();
        dirty
            .claims
            .extend(stakes.clone().filter_map(|stake| stake.key.clone()));
        if old == new {
            return;
        }
        let routes = self.index.routes_to(&listener.parent).into_iter();
        dirty
            .routes
            .extend(routes.filter(|route| route.kind == Kind::TlsRoute));
        // Connections for these names may come to another listener now, and so to other routes.
        for stake in stakes.filter(|stake| stake.group == Group::Tls) {
            let candidates = &self.contest.candidates;
            let exact = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, &stake.names);
            if let HostPattern::Exact(_) = stake.names {
                let routes = candidates.get(&exact).into_iter().flatten();
                dirty.routes.extend(routes.cloned());
                continue;
            }
            let first = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, &HostPattern::Any);
            let on_port = candidates.range(first..).take_while(|(key, _)| {
                key.use_ == ClaimUse::TlsRoute && key.port_key() == stake.port
            });
            let covered = on_port.filter(|(key, _)| stake.names.covers(&key.names));
            dirty
                .routes
                .extend(covered.flat_map(|(_, routes)| routes.iter().cloned()));
        }
    }

    /// Brings up to date which hostnames the changed TLSRoutes contend for, and adds the routes whose part may
    /// be another one by that.
    pub(super) fn stake_routes(&mut self, dirty: &mut Dirty) {
        let mut more = BTreeSet::new();
        for route in dirty.routes.iter().filter(|key| key.kind == Kind::TlsRoute) {
            let new = self.stakes_of(route);
            let rank = |key: &ClaimKey| self.rank(route, key);
            let old = self.contest.routes.get(route).cloned().unwrap_or_default();
            // Created anew under its name it has another place.
            let ranks: BTreeMap<ClaimKey, Contender> = new
                .iter()
                .filter(|(_, counts)| **counts)
                .filter_map(|(key, _)| Some((key.clone(), rank(key)?)))
                .collect();
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let contenders = self.contest.contenders.entry(key.clone()).or_default();
                let former = contenders
                    .iter()
                    .find(|(.., other)| other == route)
                    .cloned();
                let now = ranks.get(key).cloned();
                if former != now {
                    if let Some(former) = former {
                        contenders.remove(&former);
                    }
                    contenders.extend(now);
                    more.insert(key.clone());
                }
                if contenders.is_empty() {
                    self.contest.contenders.remove(key);
                }
                let named = new.contains_key(key);
                set_user(&mut self.contest.candidates, key, route, named);
            }
            if new.is_empty() {
                self.contest.routes.remove(route);
            } else {
                self.contest.routes.insert(route.clone(), new);
            }
        }
        for key in &more {
            let routes = self.contest.candidates.get(key);
            dirty.routes.extend(routes.into_iter().flatten().cloned());
        }
        dirty.claims.extend(more);
    }

    fn rank(&self, route: &ObjectKey, key: &ClaimKey) -> Option<Contender> {
        let created = self.route(route)?.meta().created;
        let guest = route.name.namespace != key.gateway.namespace;
        Some((guest, created, route.name.to_string().into(), route.clone()))
    }

    /// The hostnames of a TLSRoute on the ports of its listeners that are in force, and whether connections
    /// for each come to such a listener.
    fn stakes_of(&self, key: &ObjectKey) -> BTreeMap<ClaimKey, bool> {
        let mut stakes = BTreeMap::new();
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
            for hostname in &attached.hostnames {
                let key = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, &hostname.rank);
                let selected = || {
                    let port = self.merge.port(&stake.port)?;
                    port.selected(&hostname.matches)
                };
                let counts = stake.in_force && selected() == Some(&stake.names);
                *stakes.entry(key).or_default() |= counts;
            }
        }
        stakes
    }

    /// Takes out of what a route is attached to the hostnames that are not its to serve, with a finding for
    /// those that are another's; what only waits stays in its status. Returns what is to be served.
    pub(super) fn claimed_by_route(
        &self,
        route: Route<'_>,
        parents: &mut BTreeMap<usize, Result<Vec<Attached>, Finding>>,
        findings: &mut Vec<Finding>,
    ) -> Vec<Attached> {
        let mut served = Vec::new();
        for outcome in parents.values_mut() {
            let Ok(attached) = outcome else { continue };
            if route.kind() != Kind::TlsRoute {
                served.extend(attached.iter().cloned());
                continue;
            }
            let mut lost = None;
            attached.retain_mut(|attached| {
                let mut mine = attached.clone();
                let listener = &attached.listener;
                attached.hostnames.retain(|hostname| {
                    let part = self.part(route, listener, &hostname.rank, &hostname.matches);
                    if part != Part::Serves {
                        mine.hostnames.retain(|other| other != hostname);
                    }
                    if let Part::Lost(port) = part {
                        lost.get_or_insert_with(|| {
                            let finding = taken(route, &hostname.rank, port);
                            if !findings.contains(&finding) {
                                findings.push(finding.clone());
                            }
                            finding
                        });
                    }
                    !matches!(part, Part::Lost(_))
                });
                if !mine.hostnames.is_empty() {
                    served.push(mine);
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
        served
    }

    fn part(
        &self,
        route: Route<'_>,
        listener: &ListenerKey,
        written: &HostPattern,
        matches: &HostPattern,
    ) -> Part {
        let Some(stake) = self.contest.listeners.get(listener) else {
            return Part::Serves;
        };
        let namespace = &route.name().namespace;
        let selected = self
            .merge
            .port(&stake.port)
            .and_then(|port| port.selected(matches));
        // Where no connection comes nobody takes anything from anybody.
        if *namespace == stake.port.gateway.namespace
            || !stake.in_force
            || selected != Some(&stake.names)
        {
            return Part::Serves;
        }
        let key = ClaimKey::new(&stake.port, ClaimUse::TlsRoute, written);
        let lost = Part::Lost(stake.port.port.get());
        if self.contest.is_own(&key) {
            return lost;
        }
        match self.merge.holder(&key) {
            Some(holder) if holder == namespace => Part::Serves,
            Some(_) => lost,
            None => match self.contest.winner(&key) {
                Some((.., winner)) if winner.name.namespace != *namespace => lost,
                _ if self.settings.claims == Claims::Assumed => Part::Serves,
                _ => Part::Waits,
            },
        }
    }

    /// Judges how it stands with names for which something has changed.
    pub(super) fn translate_claims(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for key in std::mem::take(&mut dirty.claims) {
            let standing = self.standing(&key);
            let held = self.merge.holder(&key).is_some();
            let idle = held && standing != Some(Standing::Kept);
            set_member(&mut self.contest.idle, &key, idle);
            let old = match standing.clone() {
                Some(standing) => self.contest.standings.insert(key.clone(), standing),
                None => self.contest.standings.remove(&key),
            };
            if old != standing {
                output.claims.insert(key, standing);
            }
        }
    }

    fn standing(&self, key: &ClaimKey) -> Option<Standing> {
        let Some(holder) = self.merge.holder(key) else {
            return self.wish(key).map(Standing::Wished);
        };
        // Of a Gateway that is not ours there is nothing to say.
        self.merge.gateway(&key.gateway)?;
        Some(if self.makes_use(key, holder) {
            Standing::Kept
        } else if self.may_hold(key, holder) {
            Standing::Left
        } else {
            Standing::Revoked
        })
    }

    /// Who is to hold what nobody holds.
    fn wish(&self, key: &ClaimKey) -> Option<Arc<str>> {
        let Some(group) = key.use_.group() else {
            let (guest, .., route) = self.contest.winner(key)?;
            return guest.then(|| route.name.namespace.clone());
        };
        let port = self.merge.port(&key.port_key())?;
        let first = port.first(group, &key.names)?;
        port.conflict(first)
            .is_none()
            .then(|| first.namespace().clone())
    }

    fn makes_use(&self, key: &ClaimKey, holder: &Arc<str>) -> bool {
        match key.use_.group() {
            // The holder's come first.
            Some(group) => self
                .merge
                .port(&key.port_key())
                .and_then(|port| port.first(group, &key.names))
                .is_some_and(|claim| claim.namespace() == holder),
            None => self
                .contest
                .contenders
                .get(key)
                .into_iter()
                .flatten()
                .any(|(.., route)| route.name.namespace == *holder),
        }
    }

    /// Whether a holder that does not make use of a name could do so again.
    fn may_hold(&self, key: &ClaimKey, holder: &Arc<str>) -> bool {
        let protocols: &[Protocol] = match key.use_ {
            ClaimUse::Http => &[Protocol::Http],
            ClaimUse::Tls => &[Protocol::Tls, Protocol::Https],
            ClaimUse::TlsRoute => &[Protocol::Tls],
            ClaimUse::Raw => &[Protocol::Tcp, Protocol::Udp],
        };
        let admitted = match key.use_ {
            // Whom a route may attach to is up to each listener.
            ClaimUse::TlsRoute => true,
            _ => self.merge.admits(&key.gateway, holder),
        };
        let owns = |protocol: &Protocol| {
            self.merge
                .owns(&key.gateway, holder, key.port, protocol, &key.names)
                .is_ok()
        };
        admitted
            && protocols
                .iter()
                .filter(|protocol| protocol.transport() == Some(key.transport))
                .any(owns)
    }
}

/// What a route may do with a hostname.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Serves,
    /// Serve it once it is held.
    Waits,
    /// Nothing: it is another's on this port.
    Lost(u16),
}

fn taken(route: Route<'_>, hostname: &HostPattern, port: u16) -> Finding {
    let index = route
        .hostnames()
        .iter()
        .position(|(_, written)| written == hostname);
    let field = index.map_or_else(
        || "spec.hostnames".to_owned(),
        |index| format!("spec.hostnames[{index}]"),
    );
    Finding {
        severity: Severity::Warning,
        ..claim::taken(field, hostname, port)
    }
}

fn set_member<T: Ord + Clone>(set: &mut BTreeSet<T>, member: &T, is: bool) {
    if is {
        set.insert(member.clone());
    } else {
        set.remove(member);
    }
}
