//! The owner of each hostname on one Gateway. The rule: **a hostname belongs to one namespace, on every port, for every
//! protocol and every kind of route.**
//!
//! [`GatewayNames`] takes the facts one by one: recorded claims, and listeners and routes with the names that they ask
//! for. After each of them it answers these questions:
//!
//! - Who may have a name? ([`GatewayNames::decide`])
//! - Who should get a name that nobody holds? ([`GatewayNames::next`])
//! - To whom does a concrete hostname belong? ([`GatewayNames::owner`])
//! - What is the state of a claim? ([`GatewayNames::claim_state`])
//!
//! Each change returns everything whose answer it changed.
//!
//! Ports and protocols play no part here. Whether two listeners of one port conflict is decided in
//! [`crate::conflict`], and on which ports a grant gives a name in [`crate::ownership`].
//!
//! **Why it is right.** A decision about a pattern depends on the claim to exactly that pattern, on the nearest
//! pattern *around* it, and on the permissions of the namespace that asks. It never depends on who else asks for the
//! same pattern, nor on anything inside the pattern. Three guarantees for tenants follow from this:
//!
//! - Nobody gets a name by asking for it in another way: on another port, by a wildcard, or without a hostname.
//! - A holder loses a name only if it lets go, if it loses the permission, if the Gateway takes the name itself, or if
//!   an admin takes it away.
//! - The order in which facts arrive does not matter.
//!
//! **Wildcards that nobody holds yet.** Several requests can come before any of them is recorded, as at a start without
//! claims. Then a wildcard belongs to the request that should get it ([`GatewayNames::next`]), for every request that
//! comes after that one in Gateway API's precedence. So the requests come out as if their objects had been applied one
//! after the other, the oldest first, and each had been recorded before the next one. This has one definition: a request
//! depends only on wildcards around its pattern, and these only on wildcards around them.
//!
//! A request that becomes the first one for a wildcard changes decisions inside it. They are made again in
//! [`GatewayNames::settle`] and not at once, so a thousand requests for one wildcard cost one pass over the names inside
//! it.
//!
//! **Cost.** A change of a pattern looks at everything that asks for that pattern. If the pattern is a wildcard, it
//! also looks at what asks for a pattern inside it that nobody holds. It looks neither at names that are held, nor at
//! anything around the pattern. So an edit below a wildcard costs the same however many namespaces ask for the
//! wildcard.
//!
//! [`crate::merge::Merge`] has one of these for each Gateway (`docs/adr/0021-one-name-one-namespace.md`).

mod decide;
mod decision;
mod permissions;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::claim::Holder;
use crate::hostname::{HostPattern, Specificity};
use crate::key::ObjectName;
use crate::reversed::Patterns;
use crate::small::{SmallMap, SmallSet};

pub use decision::NameDecision;
pub use permissions::{Permissions, is_narrow};
pub use source::{AskedBy, NameSource, Rank};

/// The state of a recorded claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameClaimState {
    /// Its holder asks for the name, and has it. If the namespace got it only for guests, they are enough.
    Used,
    /// Its holder does not ask for the name now, though guests may. The holder may come back during the grace period.
    Idle,
    /// The claim should be removed, or handed over to another namespace, at once. Either its holder may no longer have
    /// the name: it lost a grant, the Gateway no longer allows the namespace, or the Gateway has taken the name itself.
    /// Such a claim no longer counts. Or an admin takes the name from its holder, and another namespace waits for it.
    Revoked,
}

/// Everything whose answer a change may have changed. All other answers are the same as before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedNames {
    /// Patterns for which the answer of [`GatewayNames::next`] or [`GatewayNames::claim_state`] may have changed. The
    /// keeper of claims looks at each of them once, however many ask for it.
    pub records: BTreeSet<HostPattern>,
    /// Sources that ask for a pattern and have a new [`GatewayNames::decision`].
    pub asks: BTreeSet<(HostPattern, NameSource)>,
    /// The [`GatewayNames::owner`] of a hostname may have changed if one of these patterns matches it.
    pub owners: BTreeSet<HostPattern>,
}

impl AffectedNames {
    /// Adds what another change affected.
    pub fn extend(&mut self, more: Self) {
        self.records.extend(more.records);
        self.asks.extend(more.asks);
        self.owners.extend(more.owners);
    }
}

/// A recorded claim.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordedHolder {
    holder: Arc<str>,
    /// See [`Holder::for_guests`].
    for_guests: bool,
    /// Whether the holder may still have it. If not, decisions ignore the claim as if it were already removed.
    counts: bool,
}

/// The request of a listener or route for a pattern: its rank, and the decision about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NameRequest {
    rank: Rank,
    decision: NameDecision,
}

/// All requests for one pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NameRequests {
    by_namespace: SmallMap<Arc<str>, SmallMap<NameSource, NameRequest>>,
    /// Requests with decision `Free`, in order. The first of them is the answer of [`GatewayNames::next`], so that
    /// answer is cheap even if many ask.
    free: SmallSet<NameRank>,
}

/// The rank of a request among those for names that nobody holds. Guests come last, because the namespace that they ask
/// for does not want the name itself. Gateway API's precedence decides about the rest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NameRank {
    is_guest: bool,
    rank: Rank,
    source: NameSource,
}

impl NameRank {
    fn of(source: &NameSource, rank: &Rank) -> Self {
        Self {
            is_guest: source.is_guest(),
            rank: rank.clone(),
            source: source.clone(),
        }
    }

    /// Whether it comes before the request of `source`, which has the rank `rank`. The order is the derived one.
    fn is_before(&self, source: &NameSource, rank: &Rank) -> bool {
        let other = (source.is_guest(), rank, source);
        (self.is_guest, &self.rank, &self.source) < other
    }
}

impl NameRequests {
    fn insert(&mut self, source: &NameSource, rank: Rank, decision: NameDecision) {
        if decision == NameDecision::Free {
            self.free.insert(NameRank::of(source, &rank));
        }
        let of_namespace = self.by_namespace.or_default(source.namespace().clone());
        let ask = NameRequest { rank, decision };
        of_namespace.insert(source.clone(), ask);
    }

    fn remove(&mut self, source: &NameSource) {
        let Some(of_namespace) = self.by_namespace.get_mut(source.namespace()) else {
            return;
        };
        if let Some(ask) = of_namespace.remove(source) {
            self.free.remove(&NameRank::of(source, &ask.rank));
        }
        if of_namespace.is_empty() {
            self.by_namespace.remove(source.namespace());
        }
    }

    /// Whether a listener or route has the pattern by this claim: one of the holder's namespace, or a guest, if the
    /// holder got the pattern for guests. Otherwise a guest could keep what its host lets go.
    fn uses(&self, held: &RecordedHolder) -> bool {
        let mut asks = self
            .by_namespace
            .get(&held.holder)
            .into_iter()
            .flat_map(SmallMap::iter);
        asks.any(|(source, ask)| {
            ask.decision == NameDecision::Has && (held.for_guests || !source.is_guest())
        })
    }

    /// Decides again for one namespace, and returns the sources whose decision changed.
    fn judge(
        &mut self,
        namespace: &str,
        mut decide: impl FnMut(&NameSource, &Rank) -> NameDecision,
    ) -> Vec<NameSource> {
        let mut changed = Vec::new();
        let asks = self.by_namespace.get_mut(namespace);
        for (source, ask) in asks.into_iter().flat_map(SmallMap::iter_mut) {
            let decision = decide(source, &ask.rank);
            if decision == ask.decision {
                continue;
            }
            ask.decision = decision;
            let name_rank = NameRank::of(source, &ask.rank);
            if decision == NameDecision::Free {
                self.free.insert(name_rank);
            } else {
                self.free.remove(&name_rank);
            }
            changed.push(source.clone());
        }
        changed
    }
}

/// The names on one Gateway, with the namespaces that hold them or ask for them.
///
/// Two settled values that were given the same facts are equal, whatever the order was. [`Permissions`] are not part of the
/// value: each change is called with the present ones. If they change for a namespace, call [`GatewayNames::recheck`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayNames {
    gateway: ObjectName,
    /// The names of each listener and route.
    sources: BTreeMap<NameSource, (Rank, SmallSet<HostPattern>)>,
    /// The recorded claims.
    claims: Patterns<RecordedHolder>,
    /// How many recorded claims each namespace has.
    held: BTreeMap<Arc<str>, usize>,
    /// The namespace from which an admin takes a name. Every other namespace that asks for the name comes before it.
    taken_from: Patterns<Arc<str>>,
    /// Names of the Gateway's own listeners and of routes in its namespace.
    own: Patterns<SmallSet<NameSource>>,
    /// Names that all other listeners and routes ask for.
    asks: Patterns<NameRequests>,
    /// Patterns that something asks for, and that nobody holds or that an admin takes from their holder. A change of a
    /// wildcard around a pattern can change the decision only for these.
    unheld: Patterns<()>,
    /// The request that should get each wildcard that nobody holds. For all requests after it, the wildcard belongs to
    /// its namespace.
    expected: Patterns<NameRank>,
    /// Wildcards that have another entry in `expected` since [`Self::settle`]. The widest ones come first.
    unsettled: BTreeSet<(Specificity, HostPattern)>,
    /// The patterns that each namespace holds or asks for, and how many times.
    by_namespace: BTreeMap<Arc<str>, BTreeMap<HostPattern, usize>>,
}

impl GatewayNames {
    /// The names of a Gateway about which nothing is known yet.
    #[must_use]
    pub fn new(gateway: ObjectName) -> Self {
        Self {
            gateway,
            sources: BTreeMap::new(),
            claims: Patterns::default(),
            held: BTreeMap::new(),
            taken_from: Patterns::default(),
            own: Patterns::default(),
            asks: Patterns::default(),
            unheld: Patterns::default(),
            expected: Patterns::default(),
            unsettled: BTreeSet::new(),
            by_namespace: BTreeMap::new(),
        }
    }

    /// Whether nobody holds or names anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.claims.is_empty() && self.taken_from.is_empty()
    }

    /// The namespaces that hold or ask for anything.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_namespace.keys()
    }

    /// Takes the recorded holder of `names`, or `None` if there is none.
    pub fn hold(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        holder: Option<&Holder>,
    ) -> AffectedNames {
        let mut affected = AffectedNames::default();
        let former = self.recorded_holder(names);
        if former.as_ref() == holder {
            return affected;
        }
        let former = former.map(|former| former.namespace);
        let for_guests = holder.is_some_and(|holder| holder.for_guests);
        let holder = holder.map(|holder| &holder.namespace);
        // A namespace that reaches its limit by this, or falls below it, may have all of its decisions changed.
        let concerned: BTreeSet<&Arc<str>> = former.iter().chain(holder).collect();
        let fullness = |this: &Self, of: &Arc<str>| {
            let for_guests = this.is_full_for_guests(permissions, of);
            (this.is_full(permissions, of), for_guests)
        };
        let before: Vec<(bool, bool)> = concerned.iter().map(|of| fullness(self, of)).collect();
        if let Some(former) = &former {
            self.count(former, names, false);
            count_down(&mut self.held, former);
        }
        if let Some(holder) = holder {
            self.count(holder, names, true);
            *self.held.entry(holder.clone()).or_default() += 1;
        }
        affected.records.insert(names.clone());
        self.change(permissions, names, &mut affected, |this| {
            if let Some(holder) = holder.cloned() {
                // `change` decides right after this whether it counts.
                let counts = false;
                let held = RecordedHolder {
                    holder,
                    for_guests,
                    counts,
                };
                this.claims.insert(names, held);
            } else {
                this.claims.remove(names);
            }
        });
        for (namespace, before) in concerned.into_iter().zip(before) {
            if fullness(self, namespace) != before {
                affected.extend(self.recheck(permissions, namespace));
            }
        }
        affected
    }

    /// Takes the namespace from which an admin takes `names`, or `None` if there is none.
    ///
    /// If another namespace asks for the names, it gets them. If nobody else asks, the namespace keeps them. Nothing
    /// changes for any other holder.
    pub fn take_from(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        namespace: Option<&Arc<str>>,
    ) -> AffectedNames {
        let mut affected = AffectedNames::default();
        if self.taken_from.get(names) == namespace {
            return affected;
        }
        match namespace {
            Some(namespace) => _ = self.taken_from.insert(names, namespace.clone()),
            None => _ = self.taken_from.remove(names),
        }
        affected.records.insert(names.clone());
        self.list_unheld(names);
        self.judge(permissions, names, None, &mut affected);
        affected
    }

    /// Takes all names of a listener or route, in place of its former ones. Without any, it is removed.
    ///
    /// For a route, the names are those that are left after intersection, on all of the Gateway's own listeners
    /// together. If a listener of the Gateway admits routes of other namespaces than before, it must be put again.
    pub fn put(
        &mut self,
        permissions: &dyn Permissions,
        source: &NameSource,
        rank: &Rank,
        names: &BTreeSet<HostPattern>,
    ) -> AffectedNames {
        let mut affected = AffectedNames::default();
        let old = if names.is_empty() {
            self.sources.remove(source)
        } else {
            let new = (rank.clone(), names.iter().cloned().collect());
            self.sources.insert(source.clone(), new)
        };
        let (same_rank, former) = match old {
            Some((former_rank, former)) => (former_rank == *rank, former),
            None => (false, SmallSet::default()),
        };
        if source.is_own_of(&self.gateway) {
            for pattern in former.iter().filter(|former| !names.contains(*former)) {
                self.set_own(permissions, pattern, source, false, &mut affected);
            }
            for pattern in names {
                self.set_own(permissions, pattern, source, true, &mut affected);
            }
            return affected;
        }
        // A source with a new rank asks again for everything, because its place among the requests changes.
        for pattern in &former {
            if !(same_rank && names.contains(pattern)) {
                self.retract(pattern, source, &mut affected);
            }
        }
        for pattern in names {
            if !(same_rank && former.contains(pattern)) {
                self.ask(permissions, pattern, source, rank, &mut affected);
            }
        }
        affected
    }

    /// Removes a listener or route.
    pub fn remove(&mut self, permissions: &dyn Permissions, source: &NameSource) -> AffectedNames {
        let Some((rank, _)) = self.sources.get(source) else {
            return AffectedNames::default();
        };
        let rank = rank.clone();
        self.put(permissions, source, &rank, &BTreeSet::new())
    }

    /// Decides again about everything that a namespace holds and asks for. Call it when the permissions of the
    /// namespace have changed: its grants, its labels, or what the Gateway allows. The cost grows with the names of the
    /// namespace, and with the names inside its wildcards that nobody holds.
    pub fn recheck(
        &mut self,
        permissions: &dyn Permissions,
        namespace: &Arc<str>,
    ) -> AffectedNames {
        let mut affected = AffectedNames::default();
        let patterns = self.by_namespace.get(namespace).into_iter();
        let patterns: Vec<HostPattern> = patterns.flat_map(BTreeMap::keys).cloned().collect();
        for names in &patterns {
            let held = self.claims.get(names);
            if held.is_some_and(|held| held.holder == *namespace) {
                self.change(permissions, names, &mut affected, |_| {});
            }
            self.judge(permissions, names, Some(namespace), &mut affected);
        }
        affected
    }

    /// The same for every namespace. Call it when the Gateway got its first grant or lost its last one.
    pub fn recheck_all(&mut self, permissions: &dyn Permissions) -> AffectedNames {
        let mut affected = AffectedNames::default();
        let namespaces: Vec<Arc<str>> = self.by_namespace.keys().cloned().collect();
        for namespace in namespaces {
            affected.extend(self.recheck(permissions, &namespace));
        }
        affected
    }

    /// Decides again about the requests inside wildcards that another request should get than before. Until then, their
    /// decisions may be those from before. Call this when the changes of a turn are complete.
    ///
    /// The cost is one pass over the names that nobody holds inside each of these wildcards, however many ask for it.
    pub fn settle(&mut self, permissions: &dyn Permissions) -> AffectedNames {
        let mut affected = AffectedNames::default();
        // What changes inside a wildcard is narrower, so it comes later in the order, and no wildcard comes twice.
        while let Some((_, names)) = self.unsettled.pop_first() {
            self.judge_inside(permissions, &names, &mut affected);
        }
        affected
    }

    /// Whether every decision is up to date; see [`Self::settle`].
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    fn ask(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        source: &NameSource,
        rank: &Rank,
        affected: &mut AffectedNames,
    ) {
        let namespace = source.namespace();
        let around = self.around(names, source, rank);
        let by = source.asked_by();
        let decision = self.decide_inside(permissions, namespace, names, by, around);
        let asks = self.asks.or_default(names);
        asks.insert(source, rank.clone(), decision);
        self.count(namespace, names, true);
        self.list_unheld(names);
        affected.records.insert(names.clone());
        affected.asks.insert((names.clone(), source.clone()));
    }

    fn retract(&mut self, names: &HostPattern, source: &NameSource, affected: &mut AffectedNames) {
        if let Some(asks) = self.asks.get_mut(names) {
            asks.remove(source);
            if asks.by_namespace.is_empty() {
                self.asks.remove(names);
            }
        }
        self.count(source.namespace(), names, false);
        self.list_unheld(names);
        affected.records.insert(names.clone());
    }

    fn set_own(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        source: &NameSource,
        there: bool,
        affected: &mut AffectedNames,
    ) {
        self.change(permissions, names, affected, |this| {
            let sources = this.own.or_default(names);
            if there {
                sources.insert(source.clone());
            } else {
                sources.remove(source);
            }
            if sources.is_empty() {
                this.own.remove(names);
            }
        });
        // A name of the Gateway may be open to routes of other namespaces than before, even if its holder is the same.
        if matches!(names, HostPattern::Exact(_)) {
            self.judge(permissions, names, None, affected);
        }
    }

    /// Changes the claim to a pattern, the permission for the claim, or whether the pattern is the Gateway's own. Then
    /// decides again about everything that depends on it. Requests for the same pattern depend on its holder. Requests
    /// for a pattern inside it that nobody holds depend on its owner.
    fn change(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        affected: &mut AffectedNames,
        change: impl FnOnce(&mut Self),
    ) {
        let holder = self.holder(names).cloned();
        let owner = self.owner_at(names).cloned();
        change(self);
        let held = self.claims.get(names);
        let counts = held.is_some_and(|held| self.may_hold(permissions, &held.holder, names));
        if let Some(held) = self.claims.get_mut(names) {
            held.counts = counts;
        }
        self.list_unheld(names);
        if self.holder(names) != holder.as_ref() {
            affected.records.insert(names.clone());
            self.judge(permissions, names, None, affected);
        }
        if self.owner_at(names) != owner.as_ref() {
            affected.owners.insert(names.clone());
            self.judge_inside(permissions, names, affected);
        }
    }

    /// Decides again about the patterns inside a wildcard that has a new owner, or that another request should get.
    ///
    /// Only the nearest pattern around a pattern matters for a decision. So a pattern is skipped if another owned
    /// pattern lies between it and the wildcard: its decision cannot have changed.
    fn judge_inside(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        affected: &mut AffectedNames,
    ) {
        // `Any` keeps nobody from a name, whoever has it.
        if !names.is_wildcard() {
            return;
        }
        self.unsettled.remove(&(names.specificity(), names.clone()));
        let elsewhere = |inner: &HostPattern| {
            let nearest = self.above(inner);
            nearest.is_some_and(|(nearest, _)| nearest != names && names.covers(nearest))
        };
        let inner = self.unheld.below(names).map(|(inner, ())| inner);
        let inner: Vec<HostPattern> = inner.filter(|inner| !elsewhere(inner)).cloned().collect();
        for inner in &inner {
            self.judge(permissions, inner, None, affected);
        }
    }

    /// Decides again about the requests for a pattern, for one namespace or for all of them.
    fn judge(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        only: Option<&Arc<str>>,
        affected: &mut AffectedNames,
    ) {
        let Some(mut asks) = self.asks.remove(names) else {
            return;
        };
        let namespaces: Vec<Arc<str>> = match only {
            Some(namespace) => vec![namespace.clone()],
            None => asks.by_namespace.keys().cloned().collect(),
        };
        for namespace in namespaces {
            // All sources of one namespace that ask in the same way, and inside the same pattern, get the same decision,
            // so it is made once.
            let mut decisions = BTreeMap::new();
            let decide = |source: &NameSource, rank: &Rank| {
                let (by, around) = (source.asked_by(), self.around(names, source, rank));
                *decisions.entry((by, around)).or_insert_with(|| {
                    self.decide_inside(permissions, &namespace, names, by, around)
                })
            };
            for source in asks.judge(&namespace, decide) {
                affected.records.insert(names.clone());
                affected.asks.insert((names.clone(), source));
            }
        }
        self.asks.insert(names, asks);
        self.expect(names);
    }

    /// Brings [`Self::expected`] up to date for a pattern, and notes a change for [`Self::settle`].
    fn expect(&mut self, names: &HostPattern) {
        // Nothing else closes what is inside it.
        if !names.is_wildcard() {
            return;
        }
        let is_free = self.holder(names).is_none();
        let next = self.next_request(names).filter(|_| is_free);
        if self.expected.get(names) == next {
            return;
        }
        match next.cloned() {
            Some(next) => _ = self.expected.insert(names, next),
            None => _ = self.expected.remove(names),
        }
        self.unsettled.insert((names.specificity(), names.clone()));
    }

    fn list_unheld(&mut self, names: &HostPattern) {
        // The holder of a name keeps it inside any wildcard, so names that are held need no look when a wildcard
        // changes.
        let is_open = self.holder(names).is_none() || self.is_taken(names);
        if is_open && self.asks.get(names).is_some() {
            self.unheld.insert(names, ());
        } else {
            self.unheld.remove(names);
        }
        self.expect(names);
    }

    fn count(&mut self, namespace: &Arc<str>, names: &HostPattern, more: bool) {
        let patterns = self.by_namespace.entry(namespace.clone()).or_default();
        if more {
            *patterns.entry(names.clone()).or_default() += 1;
        } else {
            count_down(patterns, names);
        }
        if patterns.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}
