//! Claims: which names wait to be held, and which ones their holders make use of.

mod route;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::claim::{ClaimKey, ClaimUse, Holders};
use vestibule_model::conflict::{Conflict, Group, Transport};
use vestibule_model::hostname::{HostPattern, Specificity};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::PortKey;
use vestibule_model::object::{Object, Port, Protocol};
use vestibule_model::ownership::Owners;
use vestibule_model::reversed::Patterns;

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
    /// Whether the proxies get it, once it holds its name.
    served: bool,
    /// Whether it does, or need not.
    claimed: bool,
    key: Option<ClaimKey>,
}

/// A route that contends for a hostname: the Gateway's own namespace before guests, then as upstream has it:
/// the more specific hostname as written, the older route, `namespace/name`.
type Contender = (bool, Reverse<Specificity>, i64, Arc<str>, ObjectKey);

/// Who contends for what.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// `HostnameClaim` objects that were put.
    objects: Holders,
    listeners: BTreeMap<ListenerKey, Stake>,
    /// The names that each route has on ports, and its rank where connections for them come to it.
    routes: BTreeMap<ObjectKey, BTreeMap<ClaimKey, Option<Contender>>>,
    /// The other way round: the routes that have a name on a port, and those that connections come to.
    candidates: BTreeMap<PortKey, Patterns<BTreeSet<ObjectKey>>>,
    contenders: BTreeMap<ClaimKey, BTreeSet<Contender>>,
    standings: BTreeMap<ClaimKey, Standing>,
    idle: Idle,
}

/// Names that are held and not made use of, be it that their Gateway is not there.
#[derive(Debug, Default)]
struct Idle {
    holders: BTreeMap<ClaimKey, Arc<str>>,
    by_holder: BTreeMap<Arc<str>, BTreeSet<ClaimKey>>,
}

impl Idle {
    fn set(&mut self, key: &ClaimKey, holder: Option<&Arc<str>>) {
        if self.holders.get(key) == holder {
            return;
        }
        if let Some(old) = self.holders.remove(key) {
            set_user(&mut self.by_holder, &old, key, false);
        }
        if let Some(holder) = holder {
            self.holders.insert(key.clone(), holder.clone());
            set_user(&mut self.by_holder, holder, key, true);
        }
    }

    /// Those on a Gateway, with their holders.
    fn on<'a>(
        &'a self,
        gateway: &'a ObjectName,
    ) -> impl Iterator<Item = (&'a ClaimKey, &'a Arc<str>)> {
        let least = ClaimKey::first_of(&PortKey {
            gateway: gateway.clone(),
            port: Port::MIN,
            transport: Transport::Tcp,
        });
        let from = self.holders.range(least..);
        from.take_while(move |(key, _)| key.gateway == *gateway)
    }

    fn of(&self, holder: &str) -> impl Iterator<Item = &ClaimKey> {
        self.by_holder.get(holder).into_iter().flatten()
    }
}

impl Contest {
    fn winner(&self, key: &ClaimKey) -> Option<&Contender> {
        self.contenders.get(key)?.first()
    }

    /// Whether the Gateway's own namespace has a route for it.
    fn is_own(&self, key: &ClaimKey) -> bool {
        self.winner(key).is_some_and(|(guest, ..)| !guest)
    }

    /// Routes that have these names, or some of them, on a port.
    fn covered<'a>(
        &'a self,
        port: &PortKey,
        names: &'a HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a BTreeSet<ObjectKey>)> + use<'a> {
        let candidates = self.candidates.get(port).into_iter();
        candidates.flat_map(move |all| all.covered(names))
    }

    fn candidates<'a>(
        &'a self,
        port: &PortKey,
        names: &HostPattern,
    ) -> impl Iterator<Item = &'a ObjectKey> + use<'a> {
        let candidates = self.candidates.get(port);
        let routes = candidates.and_then(|all| all.get(names));
        routes.into_iter().flatten()
    }

    fn set_candidate(&mut self, key: &ClaimKey, route: &ObjectKey, there: bool) {
        let port = key.port_key();
        let candidates = self.candidates.entry(port.clone()).or_default();
        let routes = candidates.or_default(&key.names);
        if there {
            routes.insert(route.clone());
        } else {
            routes.remove(route);
        }
        if routes.is_empty() {
            candidates.remove(&key.names);
        }
        if candidates.is_empty() {
            self.candidates.remove(&port);
        }
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
            let port = key.port_key();
            match key.use_ {
                ClaimUse::TlsRoute => {
                    let routes = self.contest.candidates(&port, &key.names);
                    dirty.routes.extend(routes.cloned());
                }
                // Routes on less specific listeners cannot have these names while they are another's.
                ClaimUse::Tls => {
                    let covered = self.contest.covered(&port, &key.names);
                    let routes = covered.flat_map(|(_, routes)| routes);
                    dirty.routes.extend(routes.cloned());
                }
                ClaimUse::Http | ClaimUse::Raw => {}
            }
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

    /// A Gateway is another one, or lets others in: names on it that nobody makes use of are looked at again.
    pub(super) fn mark_idle_on(&self, gateway: &ObjectName, dirty: &mut Dirty) {
        let idle = self.contest.idle.on(gateway);
        dirty.claims.extend(idle.map(|(key, _)| key.clone()));
    }

    /// Whom a namespace is to may have changed: names that it holds and does not make use of are looked at again.
    pub(super) fn mark_idle_of(&self, namespace: &str, dirty: &mut Dirty) {
        let idle = self.contest.idle.of(namespace);
        dirty.claims.extend(idle.cloned());
    }

    /// The same for namespaces that may own other names.
    pub(super) fn mark_idle_of_owners(&self, owners: &Owners, dirty: &mut Dirty) {
        let idle = self.contest.idle.on(&owners.gateway);
        let touched = idle.filter(|(_, holder)| self.merge.is_touched(owners, holder));
        dirty.claims.extend(touched.map(|(key, _)| key.clone()));
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
            served: state.is_some_and(ListenerState::is_served),
            claimed: state.is_some_and(|state| state.claimed),
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
        let serves = |stake: &&Stake| stake.group == Group::Tls && stake.served;
        for stake in stakes.filter(serves) {
            let Some(port) = self.merge.port(&stake.port) else {
                continue;
            };
            // But for those that come to a listener inside its names, before and after.
            let elsewhere = |names: &HostPattern| {
                let inside = |at: &HostPattern| stake.names != *at && stake.names.covers(at);
                port.serving(names).is_some_and(|at| inside(at.names()))
            };
            let covered = self.contest.covered(&stake.port, &stake.names);
            let routes = covered.filter(|(names, _)| !elsewhere(names));
            dirty
                .routes
                .extend(routes.flat_map(|(_, routes)| routes.iter().cloned()));
        }
    }

    /// Judges how it stands with names for which something has changed.
    pub(super) fn translate_claims(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for key in std::mem::take(&mut dirty.claims) {
            output.work.claims += 1;
            let standing = self.standing(&key);
            let holder = self.merge.holder(&key);
            let idle = holder.filter(|_| standing != Some(Standing::Kept));
            self.contest.idle.set(&key, idle);
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
        Some(if self.is_closed(key) || self.is_overruled(key, holder) {
            Standing::Revoked
        } else if self.makes_use(key, holder) {
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
            let (.., route) = self.contest.winner(key)?;
            return Some(route.name.namespace.clone());
        };
        let port = self.merge.port(&key.port_key())?;
        let first = port.first(group, &key.names)?;
        // One that the proxies never get would keep others' routes from a name that nobody serves.
        let served = group != Group::Tls || first.served;
        (served && port.conflict(first).is_none()).then(|| first.namespace().clone())
    }

    /// Whether the Gateway's own namespace has a route for what another one holds for routes.
    fn is_overruled(&self, key: &ClaimKey, holder: &Arc<str>) -> bool {
        key.use_ == ClaimUse::TlsRoute
            && *holder != key.gateway.namespace
            && self.contest.is_own(key)
    }

    /// Whether the Gateway's own listeners speak something else on the port.
    fn is_closed(&self, key: &ClaimKey) -> bool {
        let group = key.use_.group().unwrap_or(Group::Tls);
        self.merge
            .port(&key.port_key())
            .is_some_and(|port| port.is_closed_to(group))
    }

    /// Whether a namespace's routes may be where connections for a name come to, if that is a listener of the
    /// Gateway itself. Whom a ListenerSet's takes is up to its own namespace.
    fn takes_routes(&self, key: &ClaimKey, namespace: &str) -> bool {
        let port = self.merge.port(&key.port_key());
        let Some(at) = port.and_then(|port| port.serving(&key.names)) else {
            return true;
        };
        let parent = &at.listener.parent;
        let ParentKey::Gateway(gateway) = parent else {
            return true;
        };
        let listeners = self.merge.listeners(parent).map(|(all, _)| all);
        listeners
            .into_iter()
            .flatten()
            .filter(|listener| listener.name == at.listener.listener)
            .all(|listener| {
                let labels = self.merge.labels(namespace);
                let admits = &listener.allowed_namespaces;
                admits.admits(&gateway.namespace, namespace, labels)
            })
    }

    fn makes_use(&self, key: &ClaimKey, holder: &Arc<str>) -> bool {
        match key.use_.group() {
            // The holder's come first. Where it wants the port for another protocol itself, it lets go.
            Some(group) => self.merge.port(&key.port_key()).is_some_and(|port| {
                port.first(group, &key.names).is_some_and(|claim| {
                    let conflict = port.conflict(claim);
                    let otherwise = matches!(conflict, Some(Conflict::Protocol | Conflict::Both));
                    claim.namespace() == holder && !otherwise
                })
            }),
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
            ClaimUse::TlsRoute => self.takes_routes(key, holder),
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
