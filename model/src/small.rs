//! Ordered sets and maps for the many places where nearly every one has one entry, or none. A B-tree allocates room for
//! eleven entries with the first of them; these have room for no more than they hold while they hold few.
//!
//! A tenant can make some of them large, so above a few entries they are B-trees: a change never moves many entries.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::Bound;
use std::{iter, mem, slice, vec};

/// Most entries that are kept in a sorted list.
const FEW: usize = 16;

/// An ordered map that is small while it has few entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallMap<K, V>(Entries<K, V>);

/// The number of entries alone decides which of the two it is, so equal maps are equal values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entries<K, V> {
    /// At most [`FEW`], sorted by key.
    Few(Vec<(K, V)>),
    /// More than that.
    Many(Box<Tree<K, V>>),
}

/// A map of more than a few entries. It is in a box so that the many maps of few entries have the size of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree<K, V>(BTreeMap<K, V>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Entries::Few(Vec::new()))
    }
}

impl<K, V> SmallMap<K, V> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Entries::Few(few) => few.len(),
            Entries::Many(many) => many.0.len(),
        }
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        let (few, many) = match &self.0 {
            Entries::Few(few) => (few.iter(), btree_map::Iter::default()),
            Entries::Many(many) => (slice::Iter::default(), many.0.iter()),
        };
        Iter { few, many }
    }

    /// The entries in the order of their keys, for changes of values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let (few, many) = match &mut self.0 {
            Entries::Few(few) => (few.iter_mut(), btree_map::IterMut::default()),
            Entries::Many(many) => (slice::IterMut::default(), many.0.iter_mut()),
        };
        few.map(|(key, value)| (&*key, value)).chain(many)
    }

    /// The keys in order.
    #[must_use]
    pub fn keys(&self) -> Keys<'_, K, V> {
        Keys(self.iter())
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match &self.0 {
            Entries::Few(few) => Some(&few.get(place(few, key).ok()?)?.1),
            Entries::Many(many) => many.0.get(key),
        }
    }

    /// The value of a key, for a change.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Entries::Few(few) => {
                let at = place(few, key).ok()?;
                Some(&mut few.get_mut(at)?.1)
            }
            Entries::Many(many) => many.0.get_mut(key),
        }
    }

    /// Whether there is an entry with this key.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The value of a key. If there is none, a default value is inserted.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.make_room(&key);
        match &mut self.0 {
            Entries::Few(few) => {
                let at = place(few, &key).unwrap_or_else(|at| {
                    few.reserve_exact(1);
                    few.insert(at, (key, V::default()));
                    at
                });
                &mut few[at].1
            }
            Entries::Many(many) => many.0.entry(key).or_default(),
        }
    }

    /// Sets the value of a key, and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.make_room(&key);
        match &mut self.0 {
            Entries::Few(few) => match place(few, &key) {
                Ok(at) => Some(mem::replace(&mut few[at].1, value)),
                Err(at) => {
                    few.reserve_exact(1);
                    few.insert(at, (key, value));
                    None
                }
            },
            Entries::Many(many) => many.0.insert(key, value),
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Entries::Few(few) => {
                let (_, value) = few.remove(place(few, key).ok()?);
                few.shrink_to_fit();
                Some(value)
            }
            Entries::Many(many) => {
                let value = many.0.remove(key)?;
                if many.0.len() <= FEW {
                    let mut few = Vec::with_capacity(FEW);
                    few.extend(mem::take(&mut many.0));
                    self.0 = Entries::Few(few);
                }
                Some(value)
            }
        }
    }

    /// Makes a tree of the list if a new entry with this key would be one too many for it.
    fn make_room(&mut self, key: &K) {
        if let Entries::Few(few) = &mut self.0
            && few.len() == FEW
            && place(few, key).is_err()
        {
            let many = mem::take(few).into_iter().collect();
            self.0 = Entries::Many(Box::new(Tree(many)));
        }
    }
}

/// Where the entry with this key is; otherwise, where it would have to be.
fn place<K: Borrow<Q>, V, Q: Ord + ?Sized>(few: &[(K, V)], key: &Q) -> Result<usize, usize> {
    few.binary_search_by(|(at, _)| at.borrow().cmp(key))
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = iter::Chain<vec::IntoIter<(K, V)>, btree_map::IntoIter<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        let (few, many) = match self.0 {
            Entries::Few(few) => (few, BTreeMap::new()),
            Entries::Many(many) => (Vec::new(), many.0),
        };
        few.into_iter().chain(many)
    }
}

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The entries of a [`SmallMap`]: those of its list and those of its tree, one of which has none.
pub struct Iter<'a, K, V> {
    few: slice::Iter<'a, (K, V)>,
    many: btree_map::Iter<'a, K, V>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let few = self.few.next().map(|(key, value)| (key, value));
        few.or_else(|| self.many.next())
    }
}

/// The keys of a [`SmallMap`], or the members of a [`SmallSet`].
pub struct Keys<'a, K, V>(Iter<'a, K, V>);

impl<'a, K, V> Iterator for Keys<'a, K, V> {
    type Item = &'a K;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, _)| key)
    }
}

/// An ordered set that is small while it has few members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallSet<T>(SmallMap<T, ()>);

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self(SmallMap::default())
    }
}

impl<T> SmallSet<T> {
    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The members in order.
    #[must_use]
    pub fn iter(&self) -> Keys<'_, T, ()> {
        self.0.keys()
    }

    /// The least member.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }
}

impl<T: Ord> SmallSet<T> {
    /// Whether this is a member.
    #[must_use]
    pub fn contains(&self, member: &T) -> bool {
        self.0.contains_key(member)
    }

    /// The members behind `last`, in order; without it, all of them.
    pub fn after<'a>(&'a self, last: Option<&'a T>) -> impl Iterator<Item = &'a T> {
        let range: (Bound<&T>, _) = (
            last.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let (few, many) = match &self.0.0 {
            Entries::Few(few) => {
                let begin = last.map_or(0, |last| few.partition_point(|(at, ())| at <= last));
                let behind = few.get(begin..).unwrap_or_default();
                (behind.iter(), btree_map::Range::default())
            }
            Entries::Many(many) => (slice::Iter::default(), many.0.range::<T, _>(range)),
        };
        let few = few.map(|(member, ())| member);
        few.chain(many.map(|(member, ())| member))
    }

    /// Adds a member, and returns whether it is new.
    pub fn insert(&mut self, member: T) -> bool {
        self.0.insert(member, ()).is_none()
    }

    /// Removes a member, and returns whether it was one.
    pub fn remove(&mut self, member: &T) -> bool {
        self.0.remove(member).is_some()
    }

    /// The members of both: first those of this set, and then those that only the other one has.
    pub fn union<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.iter().chain(other.difference(self))
    }

    /// The members that only one of both has: first those of this set, and then those of the other one.
    pub fn symmetric_difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.difference(other).chain(other.difference(self))
    }

    fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.iter().filter(|member| !other.contains(member))
    }
}

impl<T: Ord> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        let mut set = Self::default();
        for member in members {
            set.insert(member);
        }
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SmallSet<T> {
    fn from(members: [T; N]) -> Self {
        members.into_iter().collect()
    }
}

impl<T> IntoIterator for SmallSet<T> {
    type Item = T;
    type IntoIter = iter::Map<<SmallMap<T, ()> as IntoIterator>::IntoIter, fn((T, ())) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(member, ())| member)
    }
}

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = Keys<'a, T, ()>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A set of either kind, for functions that keep an index of sets.
pub trait Members<T>: Default {
    /// Adds a member, and returns whether it is new.
    fn insert(&mut self, member: T) -> bool;
    /// Removes a member, and returns whether it was one.
    fn remove(&mut self, member: &T) -> bool;
    /// Whether there is no member.
    fn is_empty(&self) -> bool;
}

impl<T: Ord> Members<T> for SmallSet<T> {
    fn insert(&mut self, member: T) -> bool {
        Self::insert(self, member)
    }

    fn remove(&mut self, member: &T) -> bool {
        Self::remove(self, member)
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

impl<T: Ord> Members<T> for BTreeSet<T> {
    fn insert(&mut self, member: T) -> bool {
        Self::insert(self, member)
    }

    fn remove(&mut self, member: &T) -> bool {
        Self::remove(self, member)
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Changes, with keys few enough to meet and many enough for a tree.
    fn changes() -> impl Strategy<Value = Vec<(u8, Option<u8>)>> {
        prop::collection::vec((0..24_u8, any::<Option<u8>>()), 0..200)
    }

    proptest! {
        #[test]
        fn a_small_map_is_a_map(changes in changes()) {
            let (mut map, mut model) = (SmallMap::default(), BTreeMap::new());
            for (key, value) in changes {
                match value {
                    Some(value) if value % 2 == 0 => {
                        prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                    }
                    Some(value) => {
                        *map.or_default(key) ^= value;
                        *model.entry(key).or_default() ^= value;
                    }
                    None => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(&model));
                prop_assert!(map.iter_mut().eq(model.iter_mut()));
                prop_assert!(map.clone().into_iter().eq(model.clone()));
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                let mut same = SmallMap::default();
                for (key, value) in &model {
                    same.insert(*key, *value);
                }
                prop_assert_eq!(&map, &same);
            }
        }

        #[test]
        fn a_small_set_is_a_set(one in changes(), two in changes()) {
            let set = |changes: &[(u8, Option<u8>)]| {
                let (mut set, mut model) = (SmallSet::default(), BTreeSet::new());
                for (member, there) in changes {
                    if there.is_some() {
                        assert_eq!(set.insert(*member), model.insert(*member));
                    } else {
                        assert_eq!(set.remove(member), model.remove(member));
                    }
                    assert_eq!(set.first(), model.first());
                    assert!(set.iter().eq(&model));
                    assert!(set.after(None).eq(&model));
                    let after = (Bound::Excluded(member), Bound::Unbounded);
                    assert!(set.after(Some(member)).eq(model.range::<u8, _>(after)));
                }
                (set, model)
            };
            let ((one, one_model), (two, two_model)) = (set(&one), set(&two));
            let all: BTreeSet<&u8> = one.union(&two).collect();
            prop_assert!(all.into_iter().eq(one_model.union(&two_model)));
            let differ: BTreeSet<&u8> = one.symmetric_difference(&two).collect();
            prop_assert!(differ.into_iter().eq(one_model.symmetric_difference(&two_model)));
            prop_assert_eq!(one == two, one_model == two_model);
        }
    }
}
