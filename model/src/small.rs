//! Ordered sets and maps for the many places where nearly every one has one entry, or none. A B-tree allocates room for
//! eleven entries with the first of them; these have no room for more than they hold, until they hold many.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::iter;
use std::ops::Bound;
use std::{slice, vec};

/// Most entries that are kept in a sorted list. Above that, a change would move too many of them.
const FEW: usize = 16;

/// An ordered map that is small while it has few entries.
#[derive(Clone)]
pub struct SmallMap<K, V>(Entries<K, V>);

#[derive(Clone)]
enum Entries<K, V> {
    /// At most [`FEW`], sorted by key.
    Few(Vec<(K, V)>),
    /// More than that, or fewer after removals.
    Many(Box<BTreeMap<K, V>>),
}

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
            Entries::Many(many) => many.len(),
        }
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> MapIter<'_, K, V> {
        MapIter(match &self.0 {
            Entries::Few(few) => Iter::Few(few.iter()),
            Entries::Many(many) => Iter::Many(many.iter()),
        })
    }

    /// The keys in order.
    pub fn keys(&self) -> SetIter<'_, K, V> {
        SetIter(self.iter())
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the least key.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
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
            Entries::Few(few) => {
                let at = place(few, key).ok()?;
                few.get(at).map(|(_, value)| value)
            }
            Entries::Many(many) => many.get(key),
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
                few.get_mut(at).map(|(_, value)| value)
            }
            Entries::Many(many) => many.get_mut(key),
        }
    }

    /// The entries in the order of their keys, for changes of values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let (few, many) = match &mut self.0 {
            Entries::Few(few) => (Some(few), None),
            Entries::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten();
        let many = many.into_iter().flat_map(|many| many.iter_mut());
        few.map(|(key, value)| (&*key, value)).chain(many)
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
            Entries::Many(many) => many.entry(key).or_default(),
        }
    }

    /// Makes the list a tree if it has no room for one more entry with this key.
    fn make_room(&mut self, key: &K) {
        if let Entries::Few(few) = &mut self.0
            && few.len() == FEW
            && place(few, key).is_err()
        {
            let many = std::mem::take(few).into_iter().collect();
            self.0 = Entries::Many(Box::new(many));
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

    /// Sets the value of a key, and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.make_room(&key);
        match &mut self.0 {
            Entries::Few(few) => match place(few, &key) {
                Ok(at) => {
                    let (_, old) = few.get_mut(at)?;
                    Some(std::mem::replace(old, value))
                }
                Err(at) => {
                    few.reserve_exact(1);
                    few.insert(at, (key, value));
                    None
                }
            },
            Entries::Many(many) => many.insert(key, value),
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Entries::Few(few) => {
                let at = place(few, key).ok()?;
                let (_, value) = few.remove(at);
                few.shrink_to_fit();
                Some(value)
            }
            Entries::Many(many) => {
                let value = many.remove(key);
                // Half as many, so that one entry that comes and goes moves nothing.
                if many.len() <= FEW / 2 {
                    let few = std::mem::take(many.as_mut()).into_iter().collect();
                    self.0 = Entries::Few(few);
                }
                value
            }
        }
    }
}

/// Where an entry with this key is, or would be.
fn place<K: Borrow<Q>, V, Q: Ord + ?Sized>(few: &[(K, V)], key: &Q) -> Result<usize, usize> {
    few.binary_search_by(|(there, _)| there.borrow().cmp(key))
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SmallMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SmallMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other)
    }
}

impl<K: Eq, V: Eq> Eq for SmallMap<K, V> {}

impl<K: Ord, V> Extend<(K, V)> for SmallMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        let entries = match self.0 {
            Entries::Few(few) => few,
            Entries::Many(many) => many.into_iter().collect(),
        };
        entries.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = MapIter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The entries of a [`SmallMap`].
pub struct MapIter<'a, K, V>(Iter<'a, K, V>);

enum Iter<'a, K, V> {
    Few(slice::Iter<'a, (K, V)>),
    Many(btree_map::Iter<'a, K, V>),
    Range(btree_map::Range<'a, K, V>),
}

impl<'a, K, V> Iterator for MapIter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Iter::Few(few) => few.next().map(|(key, value)| (key, value)),
            Iter::Many(many) => many.next(),
            Iter::Range(many) => many.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Iter::Few(few) => few.size_hint(),
            Iter::Many(many) => many.size_hint(),
            Iter::Range(many) => many.size_hint(),
        }
    }
}

/// An ordered set that is small while it has few members.
#[derive(Clone)]
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
    pub fn iter(&self) -> SetIter<'_, T, ()> {
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
    pub fn after(&self, last: Option<&T>) -> SetIter<'_, T, ()> {
        SetIter(MapIter(match &self.0.0 {
            Entries::Few(few) => {
                let begin =
                    last.map_or(0, |last| few.partition_point(|(member, ())| member <= last));
                Iter::Few(few.get(begin..).unwrap_or_default().iter())
            }
            Entries::Many(many) => {
                let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
                Iter::Range(many.range((begin, Bound::Unbounded)))
            }
        }))
    }

    /// Adds a member, and returns whether it is new.
    pub fn insert(&mut self, member: T) -> bool {
        self.0.insert(member, ()).is_none()
    }

    /// Removes a member, and returns whether it was one.
    pub fn remove(&mut self, member: &T) -> bool {
        self.0.remove(member).is_some()
    }

    /// The members that are not in `other`, in order.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.iter().filter(|member| !other.contains(member))
    }

    /// The members of both: first those of this set, and then those that only the other one has.
    pub fn union<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.iter().chain(other.difference(self))
    }

    /// What is a member of only one of both: first the members of this set, and then those of the other one.
    pub fn symmetric_difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.difference(other).chain(other.difference(self))
    }
}

impl<T: fmt::Debug> fmt::Debug for SmallSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl<T: PartialEq> PartialEq for SmallSet<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for SmallSet<T> {}

impl<T: Ord> PartialOrd for SmallSet<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for SmallSet<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other)
    }
}

impl<T: Ord> Extend<T> for SmallSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, members: I) {
        for member in members {
            self.insert(member);
        }
    }
}

impl<T: Ord> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        let mut set = Self::default();
        set.extend(members);
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
    type IntoIter = iter::Map<vec::IntoIter<(T, ())>, fn((T, ())) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(member, ())| member)
    }
}

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = SetIter<'a, T, ()>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The members of a [`SmallSet`], or the keys of a [`SmallMap`].
pub struct SetIter<'a, T, V>(MapIter<'a, T, V>);

impl<'a, T, V> Iterator for SetIter<'a, T, V> {
    type Item = &'a T;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(member, _)| member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

/// A set whose members come and go one by one.
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
                    Some(value) => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(&model));
                prop_assert_eq!(map.first(), model.first_key_value());
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                prop_assert_eq!(&map, &model.clone().into_iter().collect());
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
                    assert!(set.iter().eq(&model));
                    let after = (Bound::Excluded(member), Bound::Unbounded);
                    assert!(set.after(Some(member)).eq(model.range(after)));
                }
                (set, model)
            };
            let ((one, one_model), (two, two_model)) = (set(&one), set(&two));
            prop_assert_eq!(one.cmp(&two), one_model.cmp(&two_model));
            prop_assert!(one.difference(&two).eq(one_model.difference(&two_model)));
            let both: BTreeSet<&u8> = one.symmetric_difference(&two).collect();
            prop_assert!(both.into_iter().eq(one_model.symmetric_difference(&two_model)));
        }
    }
}
