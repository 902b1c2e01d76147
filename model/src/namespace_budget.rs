//! Owns the order in which the objects of a namespace share a budget, and which of them are over it.
//!
//! Older objects come first, and objects of the same age by name. An object is over the budget as a whole. Unless a budget
//! [keeps what is in service](NamespaceBudgets::keep_in_service), the result depends only on the objects of the namespace,
//! and not on the order in which they arrived. If it does, the objects that were in service come first, by age, and then those
//! that wait, by age. So the result of one [`NamespaceBudgets::settle`] depends only on the objects, and on which of them were
//! in service before. An object that is gone for a moment waits by its age when it is back, as if it had not been there.
//!
//! All namespaces together may have [a total](NamespaceBudgets::sharing) as well. A namespace asks for what its objects use of
//! it, and has [its share](crate::fair_total) at most. It asks for those over its own budget too, up to the most that objects
//! within that budget can use, if that is known. Which of them are in service may depend on the share, and what a namespace
//! asks for must not depend on it. Otherwise shares could go back and forth. The total may count in another unit than the
//! budget. An object is in service if it fits in both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::backend_key::BackendKey;
use crate::fair_total::{Demand, FairTotal};
use crate::key::{Kind, ListenerKey, ObjectKey, ObjectName};
use crate::protocol::TransportPort;

/// The key of what a budget counts.
pub(crate) trait Counted: Ord {
    /// Identifies it within its namespace. Those of the same age are in this order, so a name comes first.
    type Id: Debug + Clone + Eq + Ord;

    fn namespace(&self) -> &Arc<str>;
    fn id(&self) -> Self::Id;
    fn new(namespace: &Arc<str>, id: &Self::Id) -> Self;
}

impl Counted for ObjectKey {
    type Id = (Arc<str>, Kind);

    fn namespace(&self) -> &Arc<str> {
        &self.name.namespace
    }

    fn id(&self) -> Self::Id {
        (self.name.name.clone(), self.kind)
    }

    fn new(namespace: &Arc<str>, (name, kind): &Self::Id) -> Self {
        Self {
            kind: *kind,
            name: ObjectName::new(namespace.clone(), name.clone()),
        }
    }
}

impl Counted for ListenerKey {
    /// It is one pointer, as any part of it would be.
    type Id = Self;

    fn namespace(&self) -> &Arc<str> {
        &self.parent.name().namespace
    }

    fn id(&self) -> Self {
        self.clone()
    }

    fn new(_: &Arc<str>, id: &Self) -> Self {
        id.clone()
    }
}

impl Counted for BackendKey {
    type Id = (Arc<str>, TransportPort);

    fn namespace(&self) -> &Arc<str> {
        self.namespace()
    }

    fn id(&self) -> Self::Id {
        (self.service.name.clone(), self.port)
    }

    fn new(namespace: &Arc<str>, (service, port): &Self::Id) -> Self {
        Self::new(ObjectName::new(namespace.clone(), service.clone()), *port)
    }
}

/// Bytes that each resource has in a batch besides its own: its kind, tags and lengths.
pub(crate) const FRAME: usize = 16;

/// Bytes that a resource counts for in a total at least. A batch also has a limit on the number of its resources, about a
/// million. Totals of 240 MiB have room for 983,040 resources of this size.
pub(crate) const LEAST_BYTES: u64 = 256;

/// The part of the budget that an object that does not fit leaves to younger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Nothing. All younger objects that use the budget are over it as well.
    LeavesNothing,
    /// The room that it did not fit in.
    LeavesItsRoom,
}

/// How much an object uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uses {
    /// Of the budget of its namespace. An object that uses nothing of it has no part in the total either.
    pub(crate) own: u64,
    /// Of the total of all namespaces, which may be counted in another unit.
    pub(crate) of_total: u64,
}

impl From<u64> for Uses {
    /// As much of the one as of the other.
    fn from(uses: u64) -> Self {
        Self {
            own: uses,
            of_total: uses,
        }
    }
}

/// The limit that an object does not fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// The budget of its namespace.
    Own,
    /// The share of the total that its namespace has.
    Share,
    /// The share, of which exempt namespaces leave nothing to anybody.
    NoShare,
}

impl Limit {
    /// The remedy for a namespace that is over the limit. `action` is what the namespace can do itself. `own` and
    /// `total` are the chart values that set the budget of a namespace and the total.
    pub(crate) fn remedy(self, action: &str, own: &str, total: &str) -> String {
        let ask = |setting| format!("{action}, or ask the platform admin for more ({setting})");
        match self {
            Self::Own => ask(own),
            Self::Share => ask(total),
            Self::NoShare => format!(
                "nothing that this namespace changes helps: ask the platform admin to raise {total}, or to use less in the \
                 namespaces that have a Gateway"
            ),
        }
    }
}

/// The budgets of all namespaces, each of the same size, for objects with keys of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceBudgets<K: Counted> {
    most: u64,
    /// The bound on what all namespaces have together, if there is one.
    total: Option<Total>,
    /// The most that a namespace may use of the total, as of the last [`Self::settle`]; `u64::MAX` if there is enough.
    share: u64,
    beyond: Beyond,
    /// Whether the objects in service come first.
    keeps: bool,
    namespaces: BTreeMap<Arc<str>, Budget<K::Id>>,
    /// Namespaces without a limit.
    exempt: BTreeSet<Arc<str>>,
    /// Namespaces with changes that [`Self::settle`] has not looked at.
    changed: BTreeSet<Arc<str>>,
}

/// The bound on what all namespaces have together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Total {
    fair: FairTotal,
    /// The most of it that objects within the budget of one namespace can use; `u64::MAX` if that is not known.
    each: u64,
}

/// The objects of one namespace, and what they use of its budget.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Budget<I> {
    /// The sum of what all objects use of the budget, also those over it.
    own: u128,
    /// The sum of what they use of the total.
    of_total: u128,
    /// Objects that use the budget, in order, with how much each uses.
    objects: BTreeMap<(Created, I), Uses>,
    ages: BTreeMap<I, Created>,
    /// The objects that are over, with the limit that each does not fit in.
    over: BTreeMap<I, Limit>,
    /// The shares with which the last judgement has this result, as long as no object changes.
    steady: RangeInclusive<u64>,
    /// The objects that came or went since the last [`NamespaceBudgets::settle`], each with whether it was in service then.
    moved: BTreeMap<I, bool>,
}

/// When an object was created, in seconds since the epoch.
type Created = i64;

impl<I> Default for Budget<I> {
    fn default() -> Self {
        Self {
            own: 0,
            of_total: 0,
            objects: BTreeMap::new(),
            ages: BTreeMap::new(),
            over: BTreeMap::new(),
            steady: 0..=u64::MAX,
            moved: BTreeMap::new(),
        }
    }
}

impl<K: Counted> NamespaceBudgets<K> {
    pub(crate) fn new(most: u64, beyond: Beyond) -> Self {
        Self {
            most,
            total: None,
            share: u64::MAX,
            beyond,
            keeps: false,
            namespaces: BTreeMap::new(),
            exempt: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// The same budgets, except that all namespaces together may use at most `total`. Exempt namespaces count, and have no
    /// limit.
    pub(crate) fn sharing(self, total: u64) -> Self {
        debug_assert_eq!(self.beyond, Beyond::LeavesItsRoom, "see `Budget::judge`");
        let (fair, each) = (FairTotal::new(total), u64::MAX);
        Self {
            total: Some(Total { fair, each }),
            ..self
        }
    }

    /// The same budgets, except that the total has the unit of the budget of a namespace. So what fits in that budget uses no
    /// more of the total, and no namespace asks for more.
    pub(crate) fn sharing_the_same(self, total: u64) -> Self {
        let (fair, each) = (FairTotal::new(total), self.most);
        Self {
            total: Some(Total { fair, each }),
            ..self
        }
    }

    /// From now on, objects that are in service come before all others. So one that comes, or is over the budget and would fit
    /// again, pushes nothing out, but one that grows can.
    pub(crate) fn keep_in_service(&mut self) {
        self.keeps = true;
    }

    /// The budget of each namespace.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The bound on what all namespaces have together, if there is one, and what each asks for as of the last
    /// [`Self::settle`].
    pub(crate) fn total(&self) -> Option<&FairTotal> {
        self.total.as_ref().map(|total| &total.fair)
    }

    /// The words for what an object of a namespace does not fit in, if that is the share. `all` names the objects that count.
    /// The total is in bytes.
    pub(crate) fn share_in_words(
        &self,
        limit: Limit,
        namespace: &str,
        all: &str,
    ) -> Option<String> {
        let total = self.total.as_ref()?.fair.total() >> 20;
        match limit {
            Limit::Own => None,
            Limit::Share => Some(format!(
                "what namespace {namespace} may have at present: {all} of all namespaces may have {total} MiB together, and \
                 need more, so namespaces with little have all that they need, and each of the others has an equal share of \
                 the rest"
            )),
            Limit::NoShare => Some(format!(
                "what namespace {namespace} may have at present, which is nothing: {all} of all namespaces may have {total} \
                 MiB together, and the namespaces that have a Gateway, which are not limited, use up all of it"
            )),
        }
    }

    /// Takes the age of an object, and how much it uses. An object that uses nothing has no part in the budget. The change has
    /// an effect at the next [`Self::settle`].
    pub(crate) fn put(&mut self, key: &K, created: Created, uses: impl Into<Uses>) {
        let uses = Some(uses.into()).filter(|uses| uses.own > 0);
        let namespace = key.namespace();
        if uses.is_none() && !self.namespaces.contains_key(namespace) {
            return;
        }
        let id = key.id();
        let of = self.namespaces.entry(namespace.clone()).or_default();
        let former = of.ages.remove(&id).and_then(|created| {
            let uses = of.objects.remove(&(created, id.clone()))?;
            Some((created, uses))
        });
        if let Some((_, uses)) = former {
            of.own -= u128::from(uses.own);
            of.of_total -= u128::from(uses.of_total);
        }
        if former.is_some() != uses.is_some() {
            let was_in_service = former.is_some() && !of.over.contains_key(&id);
            of.moved.entry(id.clone()).or_insert(was_in_service);
        }
        if let Some(uses) = uses {
            of.ages.insert(id.clone(), created);
            of.objects.insert((created, id), uses);
            of.own += u128::from(uses.own);
            of.of_total += u128::from(uses.of_total);
        }
        if former != uses.map(|uses| (created, uses)) {
            self.changed.insert(namespace.clone());
        }
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub(crate) fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        let differs = if is_exempt {
            self.exempt.insert(namespace.clone())
        } else {
            self.exempt.remove(namespace)
        };
        if differs {
            self.changed.insert(namespace.clone());
        }
    }

    /// Judges the namespaces that changed, and those whose share did. Returns the objects that went over a limit by this, or
    /// came back under it, and those that do not fit in another limit than before. The cost grows with the objects of those of
    /// the namespaces that are over their limits and that changed, or for whose objects another share makes a difference. For
    /// the others it is small.
    pub(crate) fn settle(&mut self) -> BTreeSet<K> {
        let mut judged = std::mem::take(&mut self.changed);
        // Nothing else moves the share, and what it costs to compute grows with the namespaces above it.
        if judged.is_empty() {
            return BTreeSet::new();
        }
        judged.extend(self.settle_total(&judged));
        let mut moved = BTreeSet::new();
        for namespace in judged {
            let Some(of) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            let (over, steady) = if self.exempt.contains(&namespace) {
                (BTreeMap::new(), 0..=u64::MAX)
            } else {
                let each = self.total.as_ref().map_or(self.most, |total| total.each);
                let limits = Limits {
                    own: self.most,
                    share: self.share,
                    each,
                };
                of.judge(limits, self.beyond, self.keeps)
            };
            let ids = of.over.keys().chain(over.keys());
            let differ = ids.filter(|id| of.over.get(id) != over.get(id));
            moved.extend(differ.map(|id| K::new(&namespace, id)));
            (of.over, of.steady) = (over, steady);
            of.moved.clear();
            if of.objects.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        moved
    }

    /// Brings the share up to date after some namespaces changed. Returns the namespaces with objects for which it makes a
    /// difference. The others have the same result with both shares.
    fn settle_total(&mut self, changed: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let Some(Total { fair, each }) = &mut self.total else {
            return BTreeSet::new();
        };
        for namespace in changed {
            let used = self.namespaces.get(namespace).map_or(0, |of| of.of_total);
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            let demand = if self.exempt.contains(namespace) {
                Demand::Exempt(used)
            } else {
                Demand::Limited(used.min(*each))
            };
            fair.put(namespace, demand);
        }
        let share = fair.share().map_or(u64::MAX, coarse);
        let former = std::mem::replace(&mut self.share, share);
        if former == share {
            return BTreeSet::new();
        }
        let above = fair.above(former.min(share));
        let differs = |namespace: &&Arc<str>| {
            let of = self.namespaces.get(*namespace);
            of.is_some_and(|of| !of.steady.contains(&share))
        };
        above.filter(differs).cloned().collect()
    }

    /// Which limit an object does not fit in, if it is over one.
    pub(crate) fn exceeded(&self, key: &K) -> Option<Limit> {
        let of = self.namespaces.get(key.namespace())?;
        // Mostly nobody is.
        if of.over.is_empty() {
            return None;
        }
        of.over.get(&key.id()).copied()
    }

    /// How much an object uses, if it has a part in the budget.
    pub(crate) fn uses(&self, key: &K) -> Option<Uses> {
        let of = self.namespaces.get(key.namespace())?;
        let id = key.id();
        let created = *of.ages.get(&id)?;
        of.objects.get(&(created, id)).copied()
    }
}

/// The share without what is less than a 64th of it. What namespaces ask for changes all the time, most of all with the
/// endpoints of their backends. So most small changes of others make no difference to those that have the share; one across a
/// step does.
fn coarse(share: u64) -> u64 {
    let low_bits = share.checked_ilog2().unwrap_or(0).saturating_sub(6);
    share >> low_bits << low_bits
}

/// The limits for the objects of one namespace.
#[derive(Debug, Clone, Copy)]
struct Limits {
    own: u64,
    share: u64,
    /// The most that what fits in `own` can use of the share.
    each: u64,
}

impl<I: Clone + Ord> Budget<I> {
    /// Which objects are over which limit, and the shares with which the same comes out.
    ///
    /// Each object needs a certain share at its turn: what those before it have taken, and its own part. With another share it
    /// needs the same, as long as all objects before it have the same result as now. So the results are the same while the share
    /// stays above what is enough for some objects now, and below what would be enough for the others.
    ///
    /// With `keeps`, those in service come first at the next judgement. That makes no difference here: together they take the
    /// same in either order, and those that are over need as much as now, or more.
    ///
    /// If an object leaves nothing to younger ones, what these need depends on the share itself, so such budgets share no total.
    fn judge(
        &self,
        limits: Limits,
        beyond: Beyond,
        keeps: bool,
    ) -> (BTreeMap<I, Limit>, RangeInclusive<u64>) {
        let Limits { own, share, each } = limits;
        if self.own <= u128::from(own) && self.of_total <= u128::from(share) {
            let used = u64::try_from(self.of_total).unwrap_or(u64::MAX);
            return (BTreeMap::new(), used..=u64::MAX);
        }
        let is_first = |id: &I| !keeps || self.was_in_service(id);
        let first = self.objects.iter().filter(|((_, id), _)| is_first(id));
        let others = self.objects.iter().filter(|((_, id), _)| !is_first(id));
        let (mut own_left, mut share_left) = (own, share);
        let (mut least, mut most) = (0, u64::MAX);
        let mut over = BTreeMap::new();
        for ((_, id), uses) in first.chain(others) {
            // What the objects before this one use does not depend on the share, as long as their verdicts do not change. So
            // its own verdict turns on one number, whether the share is `enough`. Every share between the largest such number
            // that is reached and the smallest that is not gives the same result.
            let own_rest = own_left.checked_sub(uses.own);
            let needed = (share - share_left).saturating_add(uses.of_total);
            // Of two limits that it does not fit in, the smaller one is named.
            let enough = match own_rest {
                Some(_) => needed,
                None => needed.min(each),
            };
            if share >= enough {
                least = least.max(enough);
            } else {
                most = most.min(enough - 1);
            }
            let limit = match own_rest {
                Some(rest) if share >= enough => {
                    own_left = rest;
                    share_left -= uses.of_total;
                    continue;
                }
                None if share >= enough => Limit::Own,
                _ if share > 0 => {
                    least = least.max(1);
                    Limit::Share
                }
                _ => {
                    most = 0;
                    Limit::NoShare
                }
            };
            over.insert(id.clone(), limit);
            if beyond == Beyond::LeavesNothing {
                (own_left, share_left) = (0, 0);
            }
        }
        (over, least..=most)
    }

    /// Whether an object was in service before the changes since the last [`NamespaceBudgets::settle`].
    fn was_in_service(&self, id: &I) -> bool {
        let moved = self.moved.get(id).copied();
        moved.unwrap_or_else(|| !self.over.contains_key(id))
    }
}
