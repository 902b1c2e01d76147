//! A map by hostname pattern, in an order in which all patterns below a suffix form one range.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::hostname::HostPattern;

/// A hostname, or a part of one that ends where it does, and whether a pattern stands for what is below it. Patterns are
/// sorted by it: by the labels in reverse order, and then the exact name before the wildcard.
///
/// `*.example.com` has the name `example.com`, as `example.com` itself has. So all patterns below a name form one range
/// of the map that begins with the name. The wildcards around a name are slices of it, so the map finds them without keys
/// of their own.
trait SortKey {
    fn sort_key(&self) -> (&str, bool);
}

impl SortKey for HostPattern {
    fn sort_key(&self) -> (&str, bool) {
        match self {
            Self::Any => ("", true),
            Self::Wildcard(suffix) => (suffix.as_str(), true),
            Self::Exact(name) => (name.as_str(), false),
        }
    }
}

impl SortKey for (&str, bool) {
    fn sort_key(&self) -> (&str, bool) {
        *self
    }
}

/// The labels of a name from the last one on.
fn labels(name: &str) -> impl Iterator<Item = &str> {
    name.rsplit('.').skip(usize::from(name.is_empty()))
}

/// Whether a name is `suffix` or below it.
fn is_at_or_below(name: &str, suffix: &str) -> bool {
    suffix.is_empty()
        || name
            .strip_suffix(suffix)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl PartialEq for dyn SortKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.sort_key() == other.sort_key()
    }
}

impl Eq for dyn SortKey + '_ {}

impl PartialOrd for dyn SortKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn SortKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((name, is_wildcard), (other, other_is_wildcard)) = (self.sort_key(), other.sort_key());
        labels(name)
            .cmp(labels(other))
            .then(is_wildcard.cmp(&other_is_wildcard))
    }
}

/// A pattern as a key of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key(HostPattern);

impl<'a> Borrow<dyn SortKey + 'a> for Key {
    fn borrow(&self) -> &(dyn SortKey + 'a) {
        &self.0
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let (this, other): (&dyn SortKey, &dyn SortKey) = (&self.0, &other.0);
        this.cmp(other)
    }
}

/// Values by hostname pattern. The patterns that cover another one, and those that it covers, are found without a look
/// at the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patterns<V>(BTreeMap<Key, V>);

impl<V> Default for Patterns<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> Patterns<V> {
    /// Whether there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a pattern.
    #[must_use]
    pub fn get(&self, pattern: &HostPattern) -> Option<&V> {
        let key: &dyn SortKey = pattern;
        self.0.get(key)
    }

    /// The value of a pattern, for a change.
    pub fn get_mut(&mut self, pattern: &HostPattern) -> Option<&mut V> {
        let key: &dyn SortKey = pattern;
        self.0.get_mut(key)
    }

    /// The value of a pattern. If there is none, a default value is inserted.
    pub fn or_default(&mut self, pattern: &HostPattern) -> &mut V
    where
        V: Default,
    {
        self.0.entry(Key(pattern.clone())).or_default()
    }

    /// Sets the value of a pattern, and returns the former one.
    pub fn insert(&mut self, pattern: &HostPattern, value: V) -> Option<V> {
        self.0.insert(Key(pattern.clone()), value)
    }

    /// Removes a pattern, and returns its value.
    pub fn remove(&mut self, pattern: &HostPattern) -> Option<V> {
        let key: &dyn SortKey = pattern;
        self.0.remove(key)
    }

    /// The patterns that cover all of `names` and more, the most specific one first. This is one look-up for each
    /// label, and none before somebody asks for the next pattern.
    pub fn above<'a>(
        &'a self,
        names: &HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> + use<'a, V> {
        let name = match names {
            HostPattern::Any => None,
            HostPattern::Wildcard(name) | HostPattern::Exact(name) => Some(name.clone()),
        };
        let mut begin = 0;
        std::iter::from_fn(move || {
            let text = name.as_ref()?.as_str();
            // Without its first label, a name is that of the next wildcard. Without any, it is that of `Any`.
            while begin < text.len() {
                let label = text[begin..].find('.');
                begin = label.map_or(text.len(), |dot| begin + dot + 1);
                let key: &dyn SortKey = &(&text[begin..], true);
                if let Some((Key(pattern), value)) = self.0.get_key_value(key) {
                    return Some((pattern, value));
                }
            }
            None
        })
    }

    /// The patterns that cover all of `names`, the most specific one first. `names` itself is included.
    pub fn covering<'a>(
        &'a self,
        names: &HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> + use<'a, V> {
        self.same(names).chain(self.above(names))
    }

    /// The patterns that `names` covers, without `names` itself.
    pub fn below<'a>(
        &'a self,
        names: &'a HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> {
        self.below_from(names, None)
    }

    /// The same, beginning with `first`. That pattern is included if it is in the map; it need not be there.
    pub fn below_from<'a>(
        &'a self,
        names: &'a HostPattern,
        first: Option<&HostPattern>,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> + use<'a, V> {
        let (suffix, is_wildcard) = names.sort_key();
        let own = (suffix, false);
        let from: &dyn SortKey = match first {
            Some(first) => first,
            None => &own,
        };
        let range: (Bound<&dyn SortKey>, Bound<&dyn SortKey>) =
            (Bound::Included(from), Bound::Unbounded);
        let all = is_wildcard.then(|| self.0.range::<dyn SortKey, _>(range));
        all.into_iter()
            .flatten()
            .map(|(Key(pattern), value)| (pattern, value))
            .take_while(move |(pattern, _)| is_at_or_below(pattern.sort_key().0, suffix))
            // `example.com` is at `example.com` too, but `*.example.com` does not cover it.
            .filter(move |(pattern, _)| *pattern != names && names.covers(pattern))
    }

    /// The patterns that `names` covers. `names` itself is included.
    pub fn covered<'a>(
        &'a self,
        names: &'a HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> {
        self.same(names).chain(self.below(names))
    }

    fn same<'a>(
        &'a self,
        names: &HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> + use<'a, V> {
        let key: &dyn SortKey = names;
        let found = self.0.get_key_value(key);
        found
            .map(|(Key(pattern), value)| (pattern, value))
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn patterns_that_cover_another_or_are_covered_by_it_are_found() {
        let all = [
            "",
            "*.com",
            "*.example.com",
            "example.com",
            "a.example.com",
            "*.a.example.com",
            "x.a.example.com",
            "a-b.example.com",
            "example.org",
            "*.examples.com",
        ];
        let mut patterns = Patterns::default();
        for (n, text) in all.iter().enumerate() {
            assert_eq!(patterns.insert(&pattern(text), n), None);
        }
        let others = ["*.org", "b.example.com", "*.x.a.example.com", "com"];
        for names in all.iter().chain(&others).map(|text| pattern(text)) {
            let texts = |found: Vec<(&HostPattern, &usize)>| {
                let mut texts: Vec<String> = found.iter().map(|(p, _)| p.to_string()).collect();
                texts.sort();
                texts
            };
            let expected = |is: &dyn Fn(&HostPattern) -> bool| {
                let found = all.iter().filter(|text| is(&pattern(text)));
                let mut texts: Vec<String> = found.map(ToString::to_string).collect();
                texts.sort();
                texts
            };
            let above = expected(&|p| p.covers(&names) && *p != names);
            assert_eq!(texts(patterns.above(&names).collect()), above, "{names:?}");
            let below = expected(&|p| names.covers(p) && *p != names);
            assert_eq!(texts(patterns.below(&names).collect()), below, "{names:?}");
            let covering = patterns.covering(&names).map(|(p, _)| p.specificity());
            let order: Vec<_> = covering.collect();
            assert!(order.is_sorted_by(|a, b| a > b), "{names:?}");
        }
    }
}
