//! Every claim to one port of one Gateway, kept up to date claim by claim: a change costs the claims whose
//! verdict it can change, not the port.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::claim::{Holdings, Profile};
use crate::conflict::{Claim, Group, Precedence};
use crate::hostname::HostPattern;
use crate::key::ListenerKey;
use crate::reversed::Patterns;

/// What comes before the order of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// The Gateway's own.
    Gateway,
    /// The namespace holds the name; or it alone has and holds anything on the port, and speaks another
    /// protocol there, too.
    Held,
    /// Neither.
    Set,
}

/// A listener's place. The key is part of it because, while an object's listeners change places, two
/// of them can have one place for a moment.
type Place = (Tier, Precedence, ListenerKey);

/// Listeners in order.
type Bucket = BTreeSet<Place>;

/// Every claim to one port (of one transport) of one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortClaims {
    claims: BTreeMap<ListenerKey, (Claim, Tier)>,
    /// Number of the Gateway's own claims by group.
    own: BTreeMap<Group, usize>,
    /// The ListenerSets' claims in order.
    sets: BTreeMap<Place, Group>,
    /// Claims that want the same names of the same group.
    buckets: BTreeMap<Group, Patterns<Bucket>>,
    /// Listeners that are out because routes of another namespace hold names of theirs.
    barred: BTreeSet<ListenerKey>,
    /// How many claims of ListenerSets each namespace has, and how many of each group there are.
    tenants: BTreeMap<Arc<str>, usize>,
    groups: BTreeMap<Group, usize>,
    /// Who holds what.
    holdings: Holdings,
}

/// Who has the port for itself, and what is held there: the tier of names that nobody holds depends on it.
type Estate = (Option<Arc<str>>, BTreeSet<Group>);

/// What the port as a whole has settled on: a claim's verdict depends on it and on its bucket, and on what
/// routes hold of its names.
type Ground = (Vec<Group>, Option<Group>, Profile);

/// What other verdicts than those of its own bucket can depend on, before a change.
struct Picture {
    ground: Ground,
    estate: Estate,
    /// Whether a listener with the names is in force and served, so that others overlap with it.
    stands: bool,
}

impl PortClaims {
    /// Whether nobody claims or holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.holdings.is_empty()
    }

    /// Adds a claim, in place of the listener's former one, and returns the listeners whose verdict
    /// may have changed, its own included.
    pub fn insert(&mut self, claim: Claim) -> BTreeSet<ListenerKey> {
        let mut affected = self.remove(&claim.listener);
        affected.insert(claim.listener.clone());
        let (group, names) = (claim.protocol.group(), claim.names().clone());
        let before = self.picture(group, &names);
        self.add(claim);
        self.settle(group, &names, &before, &mut affected);
        affected
    }

    /// Takes a listener's claim away and returns the listeners whose verdict may have changed.
    pub fn remove(&mut self, listener: &ListenerKey) -> BTreeSet<ListenerKey> {
        let mut affected = BTreeSet::new();
        let Some(claim) = self.claim(listener) else {
            return affected;
        };
        let (group, names) = (claim.protocol.group(), claim.names().clone());
        let before = self.picture(group, &names);
        self.take(listener);
        self.settle(group, &names, &before, &mut affected);
        affected
    }

    /// Records which namespace holds `names` for listeners, and returns the listeners whose verdict may have
    /// changed.
    pub fn hold(
        &mut self,
        group: Group,
        names: &HostPattern,
        holder: Option<Arc<str>>,
    ) -> BTreeSet<ListenerKey> {
        let mut affected = BTreeSet::new();
        if self.holdings.holder(group, names) == holder.as_ref() {
            return affected;
        }
        let before = self.picture(group, names);
        self.holdings.set(group, names, holder);
        let rivals = self.bucket(group, names).into_iter().flatten();
        let rivals: Vec<ListenerKey> = rivals.map(|at| at.2.clone()).collect();
        self.place_anew(rivals, &mut affected);
        self.settle(group, names, &before, &mut affected);
        affected
    }

    /// Records which namespace holds `names` for TLSRoutes, and returns the listeners whose verdict may have
    /// changed.
    pub fn hold_route(
        &mut self,
        names: &HostPattern,
        holder: Option<Arc<str>>,
    ) -> BTreeSet<ListenerKey> {
        let mut affected = BTreeSet::new();
        self.holdings.set_route(names, holder);
        self.bar(names, &mut affected);
        affected
    }

    /// Which namespace holds `names` for listeners.
    #[must_use]
    pub fn holder(&self, group: Group, names: &HostPattern) -> Option<&Arc<str>> {
        self.holdings.holder(group, names)
    }

    /// Which namespace holds `names` for TLSRoutes.
    #[must_use]
    pub fn route_holder(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.holdings.route_holder(names)
    }

    /// The claim of a listener.
    #[must_use]
    pub fn claim(&self, listener: &ListenerKey) -> Option<&Claim> {
        self.claims.get(listener).map(|(claim, _)| claim)
    }

    fn bucket(&self, group: Group, names: &HostPattern) -> Option<&Bucket> {
        self.buckets.get(&group)?.get(names)
    }

    fn estate(&self) -> Estate {
        (self.sole().cloned(), self.holdings.groups())
    }

    /// The namespace that has the port for itself: it holds all that is held, and nobody else wants anything.
    fn sole(&self) -> Option<&Arc<str>> {
        let holder = self.holdings.only_holder()?;
        self.tenants
            .keys()
            .all(|tenant| tenant == holder)
            .then_some(holder)
    }

    /// The estate was another one: brings tiers in line that depend on it, and says whether any was not.
    fn rearrange(&mut self, before: &Estate, affected: &mut BTreeSet<ListenerKey>) -> bool {
        let after = self.estate();
        let held = |group: &Group| before.1.contains(group) && after.1.contains(group);
        // Where every group is held, before and after, nothing depends on it.
        let moves = |group: &Group| self.groups.contains_key(group) && !held(group);
        let moving: Vec<Group> = [Group::Http, Group::Tls, Group::Raw]
            .into_iter()
            .filter(moves)
            .collect();
        if *before == after || moving.is_empty() {
            return false;
        }
        let places = self.sets.iter();
        let places = places.filter(|(_, group)| moving.contains(group));
        let listeners = places.map(|(at, _)| at.2.clone()).collect();
        self.place_anew(listeners, affected)
    }

    fn place_anew(
        &mut self,
        listeners: Vec<ListenerKey>,
        affected: &mut BTreeSet<ListenerKey>,
    ) -> bool {
        let mut moved = false;
        for listener in listeners {
            let stale = |(claim, tier): &(Claim, Tier)| *tier != self.tier(claim);
            if self.claims.get(&listener).is_some_and(stale)
                && let Some(claim) = self.take(&listener)
            {
                self.add(claim);
                affected.insert(listener);
                moved = true;
            }
        }
        moved
    }

    fn add(&mut self, claim: Claim) {
        let group = claim.protocol.group();
        let place = self.place(&claim);
        let tier = place.0;
        let buckets = self.buckets.entry(group).or_default();
        buckets.or_default(claim.names()).insert(place.clone());
        if tier == Tier::Gateway {
            *self.own.entry(group).or_default() += 1;
        } else {
            self.sets.insert(place, group);
            *self.groups.entry(group).or_default() += 1;
            *self.tenants.entry(claim.namespace().clone()).or_default() += 1;
        }
        self.claims.insert(claim.listener.clone(), (claim, tier));
    }

    fn take(&mut self, listener: &ListenerKey) -> Option<Claim> {
        let (claim, tier) = self.claims.remove(listener)?;
        let place = (tier, claim.precedence.clone(), listener.clone());
        let group = claim.protocol.group();
        self.barred.remove(listener);
        if tier == Tier::Gateway {
            count_down(&mut self.own, &group);
        } else {
            self.sets.remove(&place);
            count_down(&mut self.groups, &group);
            count_down(&mut self.tenants, claim.namespace());
        }
        if let Some(buckets) = self.buckets.get_mut(&group) {
            if let Some(bucket) = buckets.get_mut(claim.names()) {
                bucket.remove(&place);
                if bucket.is_empty() {
                    buckets.remove(claim.names());
                }
            }
            if buckets.is_empty() {
                self.buckets.remove(&group);
            }
        }
        Some(claim)
    }

    fn tier(&self, claim: &Claim) -> Tier {
        if claim.precedence.is_own() {
            return Tier::Gateway;
        }
        let (group, namespace) = (claim.protocol.group(), claim.namespace());
        let holds = self.holdings.holder(group, claim.names()) == Some(namespace)
            || self.sole() == Some(namespace) && !self.holdings.has(group);
        if holds { Tier::Held } else { Tier::Set }
    }

    fn place(&self, claim: &Claim) -> Place {
        (
            self.tier(claim),
            claim.precedence.clone(),
            claim.listener.clone(),
        )
    }

    fn ground(&self) -> Ground {
        (
            self.own.keys().copied().collect(),
            self.spoken(),
            self.holdings.profile(),
        )
    }

    fn picture(&self, group: Group, names: &HostPattern) -> Picture {
        Picture {
            ground: self.ground(),
            estate: self.estate(),
            stands: self.stands(group, names),
        }
    }

    fn stands(&self, group: Group, names: &HostPattern) -> bool {
        let bucket = self.bucket(group, names);
        let victor = bucket.and_then(|bucket| self.victor(bucket));
        group == Group::Tls && victor.is_some_and(|claim| claim.served)
    }

    /// Something of these names has changed: brings the rest in line with it.
    fn settle(
        &mut self,
        group: Group,
        names: &HostPattern,
        before: &Picture,
        affected: &mut BTreeSet<ListenerKey>,
    ) {
        let moved = self.rearrange(&before.estate, affected);
        let elsewhere = self.ground() != before.ground;
        if elsewhere {
            affected.extend(self.claims.keys().cloned());
        } else {
            self.spread(group, names, before.stands, affected);
        }
        if moved || elsewhere {
            self.bar_all(affected);
        } else if group == Group::Tls {
            self.bar(names, affected);
        }
    }

    /// Those whose verdict depends on who has these names; what is said of overlaps does on whether anybody has.
    fn spread(
        &self,
        group: Group,
        names: &HostPattern,
        stood: bool,
        affected: &mut BTreeSet<ListenerKey>,
    ) {
        let bucket = self.bucket(group, names).into_iter();
        let flips = self.stands(group, names) != stood;
        let neighbours = flips.then(|| self.neighbours(names));
        for bucket in bucket.chain(neighbours.into_iter().flatten()) {
            affected.extend(bucket.iter().map(|at| at.2.clone()));
        }
    }

    /// Brings up to date which listeners are out because routes hold names of theirs, where something about
    /// `names` has changed.
    fn bar(&mut self, names: &HostPattern, affected: &mut BTreeSet<ListenerKey>) {
        if !self.holdings.has_routes() && self.barred.is_empty() {
            return;
        }
        let covering = self.buckets.get(&Group::Tls);
        // The most specific ones first: whether a listener is out depends on those inside its names.
        let covering = covering.into_iter().flat_map(|all| all.covering(names));
        let patterns: Vec<HostPattern> = covering.map(|(pattern, _)| pattern.clone()).collect();
        for pattern in patterns {
            self.bar_at(&pattern, affected);
        }
    }

    fn bar_all(&mut self, affected: &mut BTreeSet<ListenerKey>) {
        if !self.holdings.has_routes() && self.barred.is_empty() {
            return;
        }
        let unheld = self.sets.iter().rev();
        let unheld = unheld.take_while(|(at, _)| at.0 == Tier::Set);
        let unheld = unheld.filter(|(_, group)| **group == Group::Tls);
        let names = unheld.filter_map(|(at, _)| Some(self.claim(&at.2)?.names().clone()));
        let names: BTreeSet<HostPattern> = names.collect();
        let mut names: Vec<HostPattern> = names.into_iter().collect();
        names.sort_by_key(|names| std::cmp::Reverse(names.specificity()));
        for names in names {
            self.bar_at(&names, affected);
        }
    }

    fn bar_at(&mut self, names: &HostPattern, affected: &mut BTreeSet<ListenerKey>) {
        let bucket = self.bucket(Group::Tls, names).into_iter().flatten();
        let of_sets = bucket.filter(|at| at.0 != Tier::Gateway);
        // It is the same for all listeners of one namespace.
        let mut answers: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
        let mut flips: Vec<(ListenerKey, bool)> = Vec::new();
        for (tier, _, listener) in of_sets {
            let Some(claim) = self.claim(listener) else {
                continue;
            };
            let barred = *tier == Tier::Set
                && *answers
                    .entry(claim.namespace())
                    .or_insert_with(|| self.is_held_by_routes(claim));
            if barred != self.barred.contains(listener) {
                flips.push((listener.clone(), barred));
            }
        }
        if flips.is_empty() {
            return;
        }
        let stood = self.stands(Group::Tls, names);
        for (listener, barred) in flips {
            if barred {
                self.barred.insert(listener);
            } else {
                self.barred.remove(&listener);
            }
        }
        self.spread(Group::Tls, names, stood, affected);
    }

    /// TLS buckets of other patterns that overlap with this one.
    fn neighbours<'a>(&'a self, names: &'a HostPattern) -> impl Iterator<Item = &'a Bucket> {
        let buckets = self.buckets.get(&Group::Tls).into_iter();
        buckets
            .flat_map(move |all| all.above(names).chain(all.below(names)))
            .map(|(_, bucket)| bucket)
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
