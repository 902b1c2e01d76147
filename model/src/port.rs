//! Every claim to one port of one Gateway, kept up to date claim by claim: a change costs the claims whose
//! verdict it can change, not the port.
//!
//! What a port speaks is held by a namespace (ADR 16), so that nobody who is older makes it speak something else. HTTP
//! and TLS are everybody's who has a name for it; a port of bytes is its holder's alone. The holder may change what
//! its port speaks while nobody else is there.

mod judge;
mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::claim::Holder;
use crate::conflict::{Claim, Precedence};
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectKey, ObjectName};
use crate::protocol::Group;
use crate::reversed::Patterns;

pub use judge::PortClaimState;
use routes::PortRoutes;
pub use routes::{PortAskedBy, PortDecision};

/// Whose verdict a change of a port may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// These listeners'.
    pub listeners: BTreeSet<ListenerKey>,
    /// TLS listeners for these names came to be in force, or no longer are. So [`PortClaims::overlaps`] may say
    /// something else of listeners for *other* names, of which there may be very many; nothing else about them changed.
    pub overlaps: BTreeSet<HostPattern>,
    /// These TCPRoutes or UDPRoutes on the Gateway's own listener may, or may no longer, have what comes there.
    pub routes: BTreeSet<ObjectKey>,
}

/// A TLS listener whose names overlap with some others: where a look at all of these goes on.
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

/// What comes before the order of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// The Gateway's own.
    Gateway,
    /// The namespace has the name, or needs none.
    Has,
    /// It asks for it.
    Asks,
}

/// The rank of a listener on its port. The key is part of it because, while an object's listeners change ranks, two
/// of them can have the same one for a moment.
type ListenerRank = (Tier, Precedence, ListenerKey);

/// Listeners in order.
type Bucket = BTreeSet<ListenerRank>;

/// Every claim to one port (of one transport) of one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortClaims {
    claims: BTreeMap<ListenerKey, Claim>,
    /// Number of the Gateway's own claims by group.
    own: BTreeMap<Group, usize>,
    /// The ListenerSets' claims in order.
    sets: BTreeMap<ListenerRank, Group>,
    /// Claims that want the same names of the same group.
    buckets: BTreeMap<Group, Patterns<Bucket>>,
    /// Names for which a TLS listener is in force and served, so that others overlap with it.
    tls_in_force: Patterns<()>,
    /// How many claims of ListenerSets each namespace has, and how many of each group there are.
    tenants: BTreeMap<Arc<str>, BTreeMap<Group, usize>>,
    groups: BTreeMap<Group, usize>,
    /// ListenerSets with a listener for the port that is refused for a mistake of its own, by namespace.
    refused: BTreeMap<Arc<str>, BTreeSet<ObjectName>>,
    /// Who holds the port.
    holder: Option<(Arc<str>, Group)>,
    /// What is attached to the Gateway's own listener, where the port alone selects a route.
    routes: PortRoutes,
}

/// What holds for the port as a whole. A claim's verdict depends on it and on the claim's bucket.
#[derive(PartialEq)]
struct PortState {
    own: Vec<Group>,
    spoken: Option<Group>,
    held: Option<Group>,
    /// Whose the port is and who is alone there, where either decides about anybody.
    holder: Option<Arc<str>>,
    sole: Option<Arc<str>>,
}

impl PortClaims {
    /// Whether nobody claims or holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
            && self.refused.is_empty()
            && self.holder.is_none()
            && self.routes.is_empty()
    }

    /// Adds a claim, in place of the listener's former one, and returns whose verdict may have changed, its own
    /// included.
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

    /// Takes a listener's claim away and returns whose verdict may have changed.
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

    /// Records whether a ListenerSet has a listener for the port that is refused for a mistake of its own. Such a
    /// listener claims nothing, but its namespace keeps the port if it holds it, so a mistake in an edit gives no port to
    /// somebody who waits for it. No verdict about a listener depends on this.
    pub fn put_refused(&mut self, set: &ObjectName, has_refused: bool) {
        let namespace = &set.namespace;
        if has_refused {
            let sets = self.refused.entry(namespace.clone()).or_default();
            sets.insert(set.clone());
        } else if let Some(sets) = self.refused.get_mut(namespace) {
            sets.remove(set);
            if sets.is_empty() {
                self.refused.remove(namespace);
            }
        }
    }

    /// Records who holds the port, and returns whose verdict may have changed. A holder of which it is not known what
    /// the port speaks holds nothing.
    pub fn hold(&mut self, holder: Option<&Holder>) -> Changed {
        let (before, routes) = (self.port_state(), self.routes_state());
        self.holder = holder.and_then(|holder| Some((holder.namespace.clone(), holder.speaks?)));
        let mut affected = Changed {
            routes: self.routes_unless(&routes),
            ..Changed::default()
        };
        if self.port_state() != before {
            self.update_all_in_force();
            affected.listeners = self.claims.keys().cloned().collect();
        }
        affected
    }

    /// Who holds the port.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        let (namespace, group) = self.holder.clone()?;
        Some(Holder::of_port(namespace, group))
    }

    /// The claim of a listener.
    #[must_use]
    pub fn claim(&self, listener: &ListenerKey) -> Option<&Claim> {
        self.claims.get(listener)
    }

    fn bucket(&self, group: Group, names: &HostPattern) -> Option<&Bucket> {
        self.buckets.get(&group)?.get(names)
    }

    /// The one namespace whose ListenerSets want anything.
    fn sole(&self) -> Option<&Arc<str>> {
        let mut tenants = self.tenants.keys();
        tenants.next().filter(|_| tenants.next().is_none())
    }

    fn add(&mut self, claim: Claim) {
        let group = claim.protocol.group();
        let rank = rank(&claim);
        let buckets = self.buckets.entry(group).or_default();
        buckets.or_default(claim.names()).insert(rank.clone());
        if rank.0 == Tier::Gateway {
            *self.own.entry(group).or_default() += 1;
        } else {
            self.sets.insert(rank, group);
            *self.groups.entry(group).or_default() += 1;
            let of_tenant = self.tenants.entry(claim.namespace().clone()).or_default();
            *of_tenant.entry(group).or_default() += 1;
        }
        self.claims.insert(claim.listener.clone(), claim);
    }

    fn take(&mut self, listener: &ListenerKey) {
        let Some(claim) = self.claims.remove(listener) else {
            return;
        };
        let rank = rank(&claim);
        let group = claim.protocol.group();
        if rank.0 == Tier::Gateway {
            count_down(&mut self.own, &group);
        } else {
            self.sets.remove(&rank);
            count_down(&mut self.groups, &group);
            if let Some(of_tenant) = self.tenants.get_mut(claim.namespace()) {
                count_down(of_tenant, &group);
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

    fn port_state(&self) -> PortState {
        let held = self.holder.as_ref().map(|(_, group)| *group);
        let otherwise = held.is_some() && self.groups.keys().any(|group| Some(*group) != held);
        // Everybody with a name may speak HTTP or TLS on a port that is held for it, whoever holds it.
        let decides = otherwise || held == Some(Group::Raw);
        let holder = self.holder.as_ref().map(|(namespace, _)| namespace);
        PortState {
            own: self.own.keys().copied().collect(),
            spoken: self.spoken(),
            held,
            holder: holder.filter(|_| decides).cloned(),
            sole: self.sole().filter(|_| otherwise).cloned(),
        }
    }

    fn is_in_force(&self, names: &HostPattern) -> bool {
        let bucket = self.bucket(Group::Tls, names);
        let victor = bucket.and_then(|bucket| self.victor(bucket));
        victor.is_some_and(|claim| claim.served)
    }

    /// Notes whether the TLS names are those of a listener in force, and says whether that is news.
    fn update_in_force(&mut self, names: &HostPattern) -> bool {
        match (self.tls_in_force.get(names), self.is_in_force(names)) {
            (None, true) => _ = self.tls_in_force.insert(names, ()),
            (Some(()), false) => _ = self.tls_in_force.remove(names),
            _ => return false,
        }
        true
    }

    /// The same for all names there are. Returns those for which it is news.
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

    /// Something of these names has changed: adds those whose verdict may have, too. What is said of overlaps
    /// depends on whether anybody has the names, the rest on who has.
    fn settle(
        &mut self,
        group: Group,
        names: &HostPattern,
        before: &PortState,
        affected: &mut Changed,
    ) {
        let port_state = self.port_state();
        if port_state != *before {
            // Where it is settled for all what they may speak, it matters who holds the port, and whether anybody
            // else is there, to those alone who want to speak something else.
            let settled = port_state.held.filter(|held| {
                *held != Group::Raw
                    && (&port_state.own, port_state.spoken, port_state.held)
                        == (&before.own, before.spoken, before.held)
            });
            let Some(settled) = settled else {
                self.update_all_in_force();
                affected.listeners.extend(self.claims.keys().cloned());
                return;
            };
            for (group, buckets) in &self.buckets {
                if *group != settled {
                    let others = buckets.covered(&HostPattern::Any);
                    let others = others.flat_map(|(_, bucket)| bucket);
                    affected.listeners.extend(others.map(|at| at.2.clone()));
                }
            }
            if settled != Group::Tls {
                let changed = self.update_all_in_force();
                affected.overlaps.extend(changed);
            }
        }
        if group == Group::Tls && self.update_in_force(names) {
            affected.overlaps.insert(names.clone());
        }
        let bucket = self.bucket(group, names).into_iter().flatten();
        affected.listeners.extend(bucket.map(|at| at.2.clone()));
    }

    /// TLS listeners for other names that overlap with these, from one of them on.
    pub fn neighbours<'a>(
        &'a self,
        names: &'a HostPattern,
        after: Option<&'a Neighbour>,
    ) -> impl Iterator<Item = Neighbour> + 'a {
        let last = after.map(|after| &after.names);
        let is_below = last.is_some_and(|last| names.covers(last));
        let above = self.buckets.get(&Group::Tls).filter(|_| !is_below);
        let above = above.into_iter().flat_map(|all| all.above(names));
        // The most specific ones come first.
        let above = above.skip_while(move |(names, _)| {
            last.is_some_and(|last| names.specificity() > last.specificity())
        });
        let below = self.buckets.get(&Group::Tls).into_iter();
        let below = below.flat_map(move |all| all.below_from(names, last.filter(|_| is_below)));
        above.chain(below).flat_map(move |(names, bucket)| {
            let after = after.filter(|after| after.names == *names);
            let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(&after.rank));
            let ranks = bucket.range((from, Bound::Unbounded));
            ranks.map(|rank| Neighbour {
                names: names.clone(),
                rank: rank.clone(),
            })
        })
    }
}

fn rank(claim: &Claim) -> ListenerRank {
    let tier = if claim.precedence.is_own() {
        Tier::Gateway
    } else if claim.has_name {
        Tier::Has
    } else {
        Tier::Asks
    };
    (tier, claim.precedence.clone(), claim.listener.clone())
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
