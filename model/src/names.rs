//! Whose a hostname is on one Gateway: **it belongs to one namespace, on every port, for every protocol and every
//! kind of route.**
//!
//! [`GatewayNames`] takes the facts one by one (recorded claims; listeners and routes with the names they want) and
//! answers, after each of them, who may have which name ([`GatewayNames::decide`]), who should get a name that
//! nobody holds ([`GatewayNames::next`]), whom a concrete hostname belongs to ([`GatewayNames::owner`]), and what
//! became of a claim ([`GatewayNames::claim_state`]). Each change returns whose answer it changed.
//!
//! Ports and protocols do not occur: that two listeners of one port cannot stand side by side is another question
//! ([`crate::conflict`]), as is on which ports a grant gives a name.
//!
//! **Why it is right.** A decision about a pattern depends on the claim to that very pattern, on the nearest
//! pattern *around* it, and on the permissions of the namespace that asks. It never depends on who else asks, nor
//! on anything inside the pattern. From this follow three things that a tenant can rely on: nobody gets a name by
//! asking in another way (another port, a wildcard, no hostname); a holder loses a name only by letting go, by
//! losing the permission, or to the Gateway; and the order in which facts arrive does not matter.
//!
//! **Cost.** A change at a pattern looks at what asks for that pattern and, if it is a wildcard, at what asks for a
//! pattern inside it that nobody holds. Names that are held are not looked at, and nothing around the pattern is:
//! an edit below a wildcard costs the same however many namespaces ask for the wildcard.
//!
//! [`crate::merge::Merge`] has one of these for each Gateway (`docs/adr/0021-one-name-one-namespace.md`).

mod decide;
mod decision;
mod permissions;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hostname::HostPattern;
use crate::key::ObjectName;
use crate::reversed::Patterns;

pub use decision::NameDecision;
pub use permissions::{Permissions, is_narrow};
pub use source::{AskedBy, NameSource, Rank};

/// The state of a recorded claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameClaimState {
    /// Its holder asks for the name, and has it.
    Used,
    /// Its holder does not ask for the name, and may come back: the grace runs.
    Idle,
    /// Its holder may not have the name any more: a grant went, the Gateway does not let the namespace in, or has
    /// taken the name itself. The claim counts for nothing, and should be removed or handed over at once. Or an admin
    /// takes the name from its holder, and somebody else waits for it.
    Revoked,
}

/// Whose answer a change may have changed. Whatever is not in here has the same answer as before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affected {
    /// Patterns for which [`GatewayNames::next`] or [`GatewayNames::claim_state`] may answer otherwise. Who keeps the
    /// record looks at each of these once, however many ask for it.
    pub records: BTreeSet<HostPattern>,
    /// What asks for a pattern and has another [`GatewayNames::decision`] now, or its first one.
    pub asks: BTreeSet<(HostPattern, NameSource)>,
    /// The [`GatewayNames::owner`] of a hostname may be another one if one of these patterns matches it.
    pub owners: BTreeSet<HostPattern>,
}

impl Affected {
    /// Adds what another change affects.
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
    /// Whether the holder may still have it. For everybody else, a claim that does not count is as good as gone.
    counts: bool,
}

/// A listener or route that asks for a pattern: its rank, and what was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NameRequest {
    rank: Rank,
    decision: NameDecision,
}

/// Everything that asks for one pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NameRequests {
    by_namespace: BTreeMap<Arc<str>, BTreeMap<NameSource, NameRequest>>,
    /// What may have the pattern and waits for it, in upstream's order. It is what makes [`GatewayNames::next`]
    /// cheap when many ask.
    free: BTreeSet<(Rank, NameSource)>,
}

impl NameRequests {
    fn insert(&mut self, source: &NameSource, rank: Rank, decision: NameDecision) {
        if decision == NameDecision::Free {
            self.free.insert((rank.clone(), source.clone()));
        }
        let of_namespace = self.by_namespace.entry(source.namespace().clone());
        let ask = NameRequest { rank, decision };
        of_namespace.or_default().insert(source.clone(), ask);
    }

    fn remove(&mut self, source: &NameSource) {
        let Some(of_namespace) = self.by_namespace.get_mut(source.namespace()) else {
            return;
        };
        if let Some(ask) = of_namespace.remove(source) {
            self.free.remove(&(ask.rank, source.clone()));
        }
        if of_namespace.is_empty() {
            self.by_namespace.remove(source.namespace());
        }
    }

    /// Whether something of the namespace has the pattern.
    fn has(&self, namespace: &str) -> bool {
        let mut asks = self
            .by_namespace
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values);
        asks.any(|ask| ask.decision == NameDecision::Has)
    }

    /// Decides anew for one namespace, and returns what has another decision now.
    fn judge(
        &mut self,
        namespace: &str,
        decide: impl Fn(AskedBy) -> NameDecision,
    ) -> Vec<NameSource> {
        let mut changed = Vec::new();
        // It is the same for everything of one namespace that asks in one way.
        let mut decisions: BTreeMap<AskedBy, NameDecision> = BTreeMap::new();
        let asks = self.by_namespace.get_mut(namespace);
        for (source, ask) in asks.into_iter().flatten() {
            let by = source.asked_by();
            let decision = *decisions.entry(by).or_insert_with(|| decide(by));
            if decision == ask.decision {
                continue;
            }
            ask.decision = decision;
            let place = (ask.rank.clone(), source.clone());
            if decision == NameDecision::Free {
                self.free.insert(place);
            } else {
                self.free.remove(&place);
            }
            changed.push(source.clone());
        }
        changed
    }
}

/// Who has and who wants which names on one Gateway.
///
/// Two of these that were given the same facts are equal, whatever the order. [`Permissions`] are no part of it:
/// give the present ones with each change, and say which namespaces have others ([`GatewayNames::recheck`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayNames {
    gateway: ObjectName,
    /// What each listener and route names.
    sources: BTreeMap<NameSource, (Rank, BTreeSet<HostPattern>)>,
    /// What is recorded.
    claims: Patterns<RecordedHolder>,
    /// How many names each namespace is recorded for.
    held: BTreeMap<Arc<str>, usize>,
    /// From whom an admin takes a name: whoever else asks for it comes first.
    taken_from: Patterns<Arc<str>>,
    /// What the Gateway's own listeners, and routes of its namespace, name.
    own: Patterns<BTreeSet<NameSource>>,
    /// What everything else asks for.
    asks: Patterns<NameRequests>,
    /// Patterns that are asked for and that nobody holds, or that are taken from their holder: only these can be closed
    /// by a wildcard around them.
    unheld: Patterns<()>,
    /// The patterns that each namespace holds or asks for, and how many times.
    by_namespace: BTreeMap<Arc<str>, BTreeMap<HostPattern, usize>>,
}

impl GatewayNames {
    /// Those of a Gateway about which nothing is known yet.
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

    /// Takes who is recorded as the holder of `names`, or (`None`) that nobody is.
    pub fn hold(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        holder: Option<&Arc<str>>,
    ) -> Affected {
        let mut affected = Affected::default();
        let former = self.claims.get(names).map(|held| held.holder.clone());
        if former.as_ref() == holder {
            return affected;
        }
        let concerned: BTreeSet<&Arc<str>> = former.iter().chain(holder).collect();
        let was_full = concerned.iter().filter(|of| self.is_full(permissions, of));
        let was_full: BTreeSet<&Arc<str>> = was_full.copied().collect();
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
                // Whether it counts is decided in a moment.
                let counts = false;
                this.claims.insert(names, RecordedHolder { holder, counts });
            } else {
                this.claims.remove(names);
            }
        });
        for namespace in concerned {
            if self.is_full(permissions, namespace) != was_full.contains(namespace) {
                affected.extend(self.recheck(permissions, namespace));
            }
        }
        affected
    }

    /// Takes from whom an admin takes `names`, or (`None`) that they are taken from nobody. It concerns this namespace
    /// alone, while it holds them and when they are given out the next time: others come first, and if nobody else
    /// asks, it goes on.
    pub fn take_from(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        namespace: Option<&Arc<str>>,
    ) -> Affected {
        let mut affected = Affected::default();
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

    /// Takes all the names of a listener or route, in place of its former ones; none of them removes it. For a
    /// route, these are the hostnames that are left after intersection, on all of the Gateway's own listeners
    /// together. A listener of the Gateway is to be put again when it admits routes of other namespaces than before.
    pub fn put(
        &mut self,
        permissions: &dyn Permissions,
        source: &NameSource,
        rank: &Rank,
        names: &BTreeSet<HostPattern>,
    ) -> Affected {
        let mut affected = Affected::default();
        let old = if names.is_empty() {
            self.sources.remove(source)
        } else {
            let new = (rank.clone(), names.clone());
            self.sources.insert(source.clone(), new)
        };
        let (same_rank, former) = match old {
            Some((former_rank, former)) => (former_rank == *rank, former),
            None => (false, BTreeSet::new()),
        };
        if source.is_own_of(&self.gateway) {
            for pattern in former.difference(names) {
                self.set_own(permissions, pattern, source, false, &mut affected);
            }
            for pattern in names {
                self.set_own(permissions, pattern, source, true, &mut affected);
            }
            return affected;
        }
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

    /// Takes a listener or route away.
    pub fn remove(&mut self, permissions: &dyn Permissions, source: &NameSource) -> Affected {
        let Some((rank, _)) = self.sources.get(source) else {
            return Affected::default();
        };
        let rank = rank.clone();
        self.put(permissions, source, &rank, &BTreeSet::new())
    }

    /// Looks again at what a namespace holds and asks for, as its permissions are others: a grant for it, its
    /// labels, or what the Gateway lets in. Costs what the namespace has there, and what that closes.
    pub fn recheck(&mut self, permissions: &dyn Permissions, namespace: &Arc<str>) -> Affected {
        let mut affected = Affected::default();
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

    /// The same for every namespace: the Gateway's first grant came, or its last one went.
    pub fn recheck_all(&mut self, permissions: &dyn Permissions) -> Affected {
        let mut affected = Affected::default();
        let namespaces: Vec<Arc<str>> = self.by_namespace.keys().cloned().collect();
        for namespace in namespaces {
            affected.extend(self.recheck(permissions, &namespace));
        }
        affected
    }

    fn ask(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        source: &NameSource,
        rank: &Rank,
        affected: &mut Affected,
    ) {
        let namespace = source.namespace();
        let decision = self.decide(permissions, namespace, names, source.asked_by());
        let asks = self.asks.or_default(names);
        asks.insert(source, rank.clone(), decision);
        self.count(namespace, names, true);
        self.list_unheld(names);
        affected.records.insert(names.clone());
        affected.asks.insert((names.clone(), source.clone()));
    }

    fn retract(&mut self, names: &HostPattern, source: &NameSource, affected: &mut Affected) {
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
        affected: &mut Affected,
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
        // Whom a reserved name is open to may be another matter although nobody else holds it than before.
        if matches!(names, HostPattern::Exact(_)) {
            self.judge(permissions, names, None, affected);
        }
    }

    /// Changes what is held of a pattern, or who may hold it, or whether it is the Gateway's own, and brings in line
    /// everything that depends on it: what asks for the same pattern, by its holder; what asks for a pattern inside
    /// it that nobody holds, by its owner.
    fn change(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        affected: &mut Affected,
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

    /// A wildcard has another owner: decides anew about what it is the nearest pattern around.
    fn judge_inside(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        affected: &mut Affected,
    ) {
        // `Any` closes nothing, whoever has it.
        if !names.is_wildcard() {
            return;
        }
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

    /// Decides anew about what asks for a pattern, for one namespace or for all of them.
    fn judge(
        &mut self,
        permissions: &dyn Permissions,
        names: &HostPattern,
        only: Option<&Arc<str>>,
        affected: &mut Affected,
    ) {
        let Some(mut asks) = self.asks.remove(names) else {
            return;
        };
        let namespaces: Vec<Arc<str>> = match only {
            Some(namespace) => vec![namespace.clone()],
            None => asks.by_namespace.keys().cloned().collect(),
        };
        for namespace in namespaces {
            let decide = |by| self.decide(permissions, &namespace, names, by);
            for source in asks.judge(&namespace, decide) {
                affected.records.insert(names.clone());
                affected.asks.insert((names.clone(), source));
            }
        }
        self.asks.insert(names, asks);
    }

    fn list_unheld(&mut self, names: &HostPattern) {
        let is_open = self.holder(names).is_none() || self.is_taken(names);
        if is_open && self.asks.get(names).is_some() {
            self.unheld.insert(names, ());
        } else {
            self.unheld.remove(names);
        }
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
