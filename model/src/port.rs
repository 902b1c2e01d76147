//! Every claim to one port of one Gateway. A change of one claim costs as much as the claims whose verdict it can
//! change, and not as much as all claims to the port.
//!
//! A namespace holds the port for the group of protocols that it speaks (ADR 16), so an older object cannot make it
//! speak something else. If the group is HTTP or TLS, every namespace with a hostname may use the port. If it is raw
//! ([`Group::Raw`]), only the holder may. Nobody changes the group, not even the holder: it is given out anew when the
//! port has been unused for the grace. Otherwise a namespace that is alone for a moment, while another one deletes its
//! objects and makes them again, could lock the other out, or get its connections as raw bytes.

mod judge;
mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::claim::Holder;
use crate::conflict::{Claim, Precedence};
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectKey, ObjectName};
use crate::protocol::Group;
use crate::reversed::Patterns;
use crate::small::{SmallMap, SmallSet};

pub use judge::PortClaimState;
pub use routes::{PortAskedBy, PortDecision};
use routes::{PortRoutes, RoutesState};

/// Everything whose verdict a change of a port may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// The listeners.
    pub listeners: BTreeSet<ListenerKey>,
    /// The names for which a TLS listener came into force, or no longer is. [`PortClaims::overlaps`] may have changed
    /// for listeners with *other* names, and there may be very many of them. Nothing else about them has changed.
    pub overlaps: BTreeSet<HostPattern>,
    /// The TCPRoutes and UDPRoutes on the Gateway's own listener whose decision may have changed.
    pub routes: BTreeSet<ObjectKey>,
}

/// A TLS listener whose names overlap with certain others. It is also the place from which [`PortClaims::neighbours`]
/// can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    names: HostPattern,
    rank: ListenerRank,
}

impl Neighbour {
    /// The listener.
    #[must_use]
    pub fn listener(&self) -> &ListenerKey {
        &self.rank.2
    }
}

/// The part of a rank that comes before the order of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// A listener of the Gateway itself.
    Gateway,
    /// A listener whose namespace has the hostname. For bytes and datagrams, whose namespace holds the port.
    Has,
    /// A listener whose namespace only asks for it.
    Asks,
}

/// The rank of a listener on its port. The key is part of it, because two listeners of an object can have the same
/// precedence for a moment, while their indexes change.
type ListenerRank = (Tier, Precedence, ListenerKey);

/// The same among the listeners of all ListenerSets, in the order of upstream: whether a namespace has its hostname says
/// nothing about what the port speaks.
type SetRank = (Precedence, ListenerKey);

/// Listeners in order.
type Bucket = SmallSet<ListenerRank>;

/// Every claim to one port (of one transport) of one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortClaims {
    claims: BTreeMap<ListenerKey, Box<Claim>>,
    /// The number of the Gateway's own claims in each group.
    own: BTreeMap<Group, usize>,
    /// The protocols that the Gateway's own listeners would speak if they were not refused for a mistake.
    refused_own: BTreeSet<Group>,
    /// The claims of ListenerSets in order.
    sets: BTreeMap<SetRank, Group>,
    /// The claims to the same names, for each group.
    buckets: BTreeMap<Group, Patterns<Bucket>>,
    /// The names for which a TLS listener is in force and served, so that others can overlap with it.
    tls_in_force: Patterns<()>,
    /// The claims of each namespace's ListenerSets, for each group.
    tenants: BTreeMap<Arc<str>, SmallMap<Group, SmallSet<SetRank>>>,
    /// ListenerSets with a listener for the port that is refused for a mistake of its own, by namespace, each with whether
    /// the namespace may have the port for TCP or UDP.
    refused: BTreeMap<Arc<str>, BTreeMap<ObjectName, bool>>,
    /// The holder of the port.
    holder: Option<(Arc<str>, Group)>,
    /// The TCPRoutes and UDPRoutes on the Gateway's own listener.
    routes: PortRoutes,
}

/// A set of groups. It is computed for every verdict, so it is no collection on the heap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Groups(u8);

impl Groups {
    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn contains(self, group: Group) -> bool {
        self.0 & Self::bit(group) != 0
    }

    /// Whether it has a group other than this one.
    fn has_others_than(self, group: Group) -> bool {
        self.0 & !Self::bit(group) != 0
    }

    fn bit(group: Group) -> u8 {
        match group {
            Group::Http => 1,
            Group::Tls => 2,
            Group::Raw => 4,
        }
    }
}

impl<'a> FromIterator<&'a Group> for Groups {
    fn from_iter<T: IntoIterator<Item = &'a Group>>(groups: T) -> Self {
        let bits = groups.into_iter().map(|group| Self::bit(*group));
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

/// The facts about the port as a whole. The verdict about a claim depends on these, and on the other claims to the same
/// names.
#[derive(PartialEq)]
struct PortState {
    of_gateway: Groups,
    of_sets: SpokenBySets,
}

/// The protocols that listeners of ListenerSets may speak on a port, unless the Gateway's own listeners decide it.
#[derive(PartialEq)]
enum SpokenBySets {
    /// Nobody holds the port. It is the group of the first of these listeners, if there is one.
    First(Option<Group>),
    /// The port is held for HTTP or TLS. Every namespace with a hostname may speak that, whoever the holder is.
    Names(Group),
    /// The port is held for bytes or datagrams, so only this namespace may use it.
    Raw(Arc<str>),
}

impl PortClaims {
    /// Whether nobody claims or holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
            && self.refused.is_empty()
            && self.refused_own.is_empty()
            && self.holder.is_none()
            && self.routes.is_empty()
    }

    /// Adds a claim in place of the listener's former one. Returns everything whose verdict may have changed, including
    /// the listener itself.
    pub fn insert(&mut self, claim: Claim) -> Changed {
        let mut affected = self.remove(&claim.listener);
        affected.listeners.insert(claim.listener.clone());
        let (group, names) = (claim.protocol.group(), claim.names().clone());
        let (before, routes) = (self.port_state(), self.routes_state());
        self.add(claim);
        self.settle(group, &names, &before, &mut affected);
        affected.routes.extend(self.routes_unless(&routes));
        affected
    }

    /// Removes a listener's claim. Returns everything whose verdict may have changed.
    pub fn remove(&mut self, listener: &ListenerKey) -> Changed {
        let mut affected = Changed::default();
        let Some(claim) = self.claim(listener) else {
            return affected;
        };
        let (group, names) = (claim.protocol.group(), claim.names().clone());
        let (before, routes) = (self.port_state(), self.routes_state());
        self.take(listener);
        self.settle(group, &names, &before, &mut affected);
        affected.routes = self.routes_unless(&routes);
        affected
    }

    /// Records whether a ListenerSet has a listener for the port that is refused for a mistake of its own, and whether its
    /// namespace may have the port for TCP or UDP (`None`: it has no such listener). Such a listener claims nothing, but its
    /// namespace keeps the port if it holds it for something that it may still have. So a mistake in an edit gives no port
    /// to somebody who waits for it. No verdict about a listener depends on this.
    pub fn put_refused(&mut self, set: &ObjectName, refused: Option<bool>) {
        let namespace = &set.namespace;
        if let Some(may_be_raw) = refused {
            let sets = self.refused.entry(namespace.clone()).or_default();
            sets.insert(set.clone(), may_be_raw);
        } else if let Some(sets) = self.refused.get_mut(namespace) {
            sets.remove(set);
            if sets.is_empty() {
                self.refused.remove(namespace);
            }
        }
    }

    /// Records who holds the port. Returns everything whose verdict may have changed. A holder without a group of
    /// protocols does not count.
    pub fn hold(&mut self, holder: Option<&Holder>) -> Changed {
        let (before, routes) = (self.port_state(), self.routes_state());
        // The rank of these depends on the holder.
        let raw: Vec<Claim> = self.buckets.get(&Group::Raw).map_or_else(Vec::new, |all| {
            let ranks = all
                .covered(&HostPattern::Any)
                .flat_map(|(_, bucket)| bucket);
            let claims = ranks.filter(|rank| rank.0 != Tier::Gateway);
            claims
                .filter_map(|rank| self.claim(&rank.2))
                .cloned()
                .collect()
        });
        for claim in &raw {
            self.take(&claim.listener);
        }
        self.holder = holder.and_then(|holder| Some((holder.namespace.clone(), holder.speaks?)));
        for claim in raw {
            self.add(claim);
        }
        self.all_unless(&before, &routes)
    }

    /// Records what the Gateway's own listeners on the port would speak that are refused for a mistake. Such a listener
    /// is not served, but while the Gateway has no other one there, and nobody holds the port for something else, the
    /// port is still kept for it. Otherwise a mistake in the only listener on port 443 would let a tenant have all of it.
    pub fn put_refused_own(&mut self, refused: BTreeSet<Group>) -> Changed {
        let (before, routes) = (self.port_state(), self.routes_state());
        self.refused_own = refused;
        self.all_unless(&before, &routes)
    }

    /// Everything whose verdict may have changed with the facts about the port as a whole.
    fn all_unless(&mut self, before: &PortState, routes: &RoutesState) -> Changed {
        let mut affected = Changed {
            routes: self.routes_unless(routes),
            ..Changed::default()
        };
        if self.port_state() != *before {
            self.update_all_in_force();
            affected.listeners = self.claims.keys().cloned().collect();
        }
        affected
    }

    /// The holder of the port.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        let (namespace, group) = self.holder.clone()?;
        Some(Holder::of_port(namespace, group))
    }

    /// Whether the Gateway itself has a listener on the port, even one that is refused for a mistake.
    #[must_use]
    pub fn is_of_gateway(&self) -> bool {
        !self.own.is_empty() || !self.refused_own.is_empty()
    }

    /// The claim of a listener.
    #[must_use]
    pub fn claim(&self, listener: &ListenerKey) -> Option<&Claim> {
        self.claims.get(listener).map(AsRef::as_ref)
    }

    fn bucket(&self, group: Group, names: &HostPattern) -> Option<&Bucket> {
        self.buckets.get(&group)?.get(names)
    }

    /// The protocols that the Gateway's own listeners decide for the port. It is empty if they leave that to others.
    fn of_gateway(&self) -> Groups {
        if !self.own.is_empty() {
            return self.own.keys().collect();
        }
        let held = self.holder.as_ref().map(|(_, group)| group);
        if held.is_none_or(|group| self.refused_own.contains(group)) {
            self.refused_own.iter().collect()
        } else {
            Groups::default()
        }
    }

    fn add(&mut self, claim: Claim) {
        let group = claim.protocol.group();
        let rank = self.rank(&claim);
        let buckets = self.buckets.entry(group).or_default();
        buckets.or_default(claim.names()).insert(rank.clone());
        if rank.0 == Tier::Gateway {
            *self.own.entry(group).or_default() += 1;
        } else {
            let (_, precedence, listener) = rank;
            let rank = (precedence, listener);
            let of_tenant = self.tenants.entry(claim.namespace().clone()).or_default();
            of_tenant.or_default(group).insert(rank.clone());
            self.sets.insert(rank, group);
        }
        self.claims.insert(claim.listener.clone(), Box::new(claim));
    }

    fn take(&mut self, listener: &ListenerKey) {
        let Some(claim) = self.claims.remove(listener) else {
            return;
        };
        let rank = self.rank(&claim);
        let group = claim.protocol.group();
        if rank.0 == Tier::Gateway {
            count_down(&mut self.own, &group);
        } else {
            let rank = (rank.1.clone(), rank.2.clone());
            self.sets.remove(&rank);
            if let Some(of_tenant) = self.tenants.get_mut(claim.namespace()) {
                let of_group = of_tenant.or_default(group);
                of_group.remove(&rank);
                if of_group.is_empty() {
                    of_tenant.remove(&group);
                }
                if of_tenant.is_empty() {
                    self.tenants.remove(claim.namespace());
                }
            }
        }
        if let Some(buckets) = self.buckets.get_mut(&group) {
            if let Some(bucket) = buckets.get_mut(claim.names()) {
                bucket.remove(&rank);
                if bucket.is_empty() {
                    buckets.remove(claim.names());
                }
            }
            if buckets.is_empty() {
                self.buckets.remove(&group);
            }
        }
    }

    fn rank(&self, claim: &Claim) -> ListenerRank {
        let holds = || {
            let holder = self.holder.as_ref().map(|(namespace, _)| namespace);
            holder == Some(claim.namespace())
        };
        let tier = if claim.precedence.is_own() {
            Tier::Gateway
        } else if match claim.protocol.group() {
            Group::Raw => holds(),
            Group::Http | Group::Tls => claim.has_name,
        } {
            Tier::Has
        } else {
            Tier::Asks
        };
        (tier, claim.precedence.clone(), claim.listener.clone())
    }

    fn port_state(&self) -> PortState {
        PortState {
            of_gateway: self.of_gateway(),
            of_sets: match &self.holder {
                None => SpokenBySets::First(self.spoken()),
                Some((_, group @ (Group::Http | Group::Tls))) => SpokenBySets::Names(*group),
                Some((holder, Group::Raw)) => SpokenBySets::Raw(holder.clone()),
            },
        }
    }

    fn is_in_force(&self, names: &HostPattern) -> bool {
        let bucket = self.bucket(Group::Tls, names);
        let victor = bucket.and_then(|bucket| self.victor(bucket));
        victor.is_some_and(|claim| claim.served)
    }

    /// Records whether a TLS listener for these names is in force and served. Returns whether that has changed.
    fn update_in_force(&mut self, names: &HostPattern) -> bool {
        match (self.tls_in_force.get(names), self.is_in_force(names)) {
            (None, true) => _ = self.tls_in_force.insert(names, ()),
            (Some(()), false) => _ = self.tls_in_force.remove(names),
            _ => return false,
        }
        true
    }

    /// The same for all names. Returns those for which it has changed.
    fn update_all_in_force(&mut self) -> BTreeSet<HostPattern> {
        let buckets = self.buckets.get(&Group::Tls).into_iter();
        let claimed = buckets.flat_map(|all| all.covered(&HostPattern::Any));
        let claimed = claimed.map(|(names, _)| names);
        let tls_in_force = self.tls_in_force.covered(&HostPattern::Any);
        let tls_in_force = tls_in_force.map(|(names, ())| names);
        let all: BTreeSet<HostPattern> = claimed.chain(tls_in_force).cloned().collect();
        all.into_iter()
            .filter(|names| self.update_in_force(names))
            .collect()
    }

    /// Adds to `affected` whatever depends on a changed claim to these names. Other claims to the same names depend on
    /// which of them is first. Overlaps of other names depend only on whether any of them is in force.
    fn settle(
        &mut self,
        group: Group,
        names: &HostPattern,
        before: &PortState,
        affected: &mut Changed,
    ) {
        let port_state = self.port_state();
        if port_state != *before {
            self.update_all_in_force();
            affected.listeners.extend(self.claims.keys().cloned());
            return;
        }
        if group == Group::Tls && self.update_in_force(names) {
            affected.overlaps.insert(names.clone());
        }
        let bucket = self.bucket(group, names).into_iter().flatten();
        affected.listeners.extend(bucket.map(|at| at.2.clone()));
    }

    /// The TLS listeners for other names that overlap with these, in a fixed order. With `after`, the iterator begins
    /// behind that one.
    pub fn neighbours<'a>(
        &'a self,
        names: &'a HostPattern,
        after: Option<&'a Neighbour>,
    ) -> impl Iterator<Item = Neighbour> + 'a {
        let last = after.map(|after| &after.names);
        let is_below = last.is_some_and(|last| names.covers(last));
        let above = self.buckets.get(&Group::Tls).filter(|_| !is_below);
        let above = above.into_iter().flat_map(|all| all.above(names));
        // The most specific patterns come first, so those before the last one are skipped.
        let above = above.skip_while(move |(names, _)| {
            last.is_some_and(|last| names.specificity() > last.specificity())
        });
        let below = self.buckets.get(&Group::Tls).into_iter();
        let below = below.flat_map(move |all| all.below_from(names, last.filter(|_| is_below)));
        above.chain(below).flat_map(move |(names, bucket)| {
            let after = after.filter(|after| after.names == *names);
            let ranks = bucket.after(after.map(|after| &after.rank));
            ranks.map(|rank| Neighbour {
                names: names.clone(),
                rank: rank.clone(),
            })
        })
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
