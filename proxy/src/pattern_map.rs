//! Owns a persistent map by hostname pattern, which finds the patterns that match a name in order of specificity.
//! Clones share structure.

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

use crate::attached_names::Visited;

/// Values by hostname pattern.
#[derive(Clone)]
pub(crate) struct PatternMap<V> {
    exact: HashTrieMapSync<Hostname, V>,
    wildcard: HashTrieMapSync<Hostname, V>,
    any: Option<V>,
}

impl<V: Clone> PatternMap<V> {
    pub(crate) fn new() -> Self {
        Self {
            exact: HashTrieMapSync::new_sync(),
            wildcard: HashTrieMapSync::new_sync(),
            any: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.any.is_none() && self.exact.is_empty() && self.wildcard.is_empty()
    }

    pub(crate) fn get(&self, pattern: &HostPattern) -> Option<&V> {
        match pattern {
            HostPattern::Any => self.any.as_ref(),
            HostPattern::Wildcard(suffix) => self.wildcard.get(suffix),
            HostPattern::Exact(name) => self.exact.get(name),
        }
    }

    pub(crate) fn insert(&mut self, pattern: HostPattern, value: V) {
        match pattern {
            HostPattern::Any => self.any = Some(value),
            HostPattern::Wildcard(suffix) => self.wildcard.insert_mut(suffix, value),
            HostPattern::Exact(name) => self.exact.insert_mut(name, value),
        }
    }

    pub(crate) fn remove(&mut self, pattern: &HostPattern) {
        match pattern {
            HostPattern::Any => self.any = None,
            HostPattern::Wildcard(suffix) => {
                self.wildcard.remove_mut(suffix);
            }
            HostPattern::Exact(name) => {
                self.exact.remove_mut(name);
            }
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.exact
            .values()
            .chain(self.wildcard.values())
            .chain(self.any.as_ref())
    }

    /// The values of every pattern that matches `name`, most specific pattern first.
    pub(crate) fn matching<'a>(&'a self, name: &'a Hostname) -> impl Iterator<Item = &'a V> {
        self.exact
            .get(name)
            .into_iter()
            .chain(
                name.parents()
                    .filter_map(|suffix| self.wildcard.get(suffix)),
            )
            .chain(self.any.as_ref())
    }

    /// The same as [`Self::matching`]. Without a name, it is only the value of [`HostPattern::Any`].
    pub(crate) fn matching_or_any<'a>(
        &'a self,
        name: Option<&'a Hostname>,
    ) -> impl Iterator<Item = &'a V> {
        let named = name.into_iter().flat_map(|name| self.matching(name));
        named.chain(self.any.as_ref().filter(|_| name.is_none()))
    }

    /// The values of the patterns that have all names of `pattern` and more, most specific pattern first.
    pub(crate) fn around<'a>(&'a self, pattern: &'a HostPattern) -> impl Iterator<Item = &'a V> {
        let name = name_of(pattern);
        let wildcards = name.into_iter().flat_map(Hostname::parents);
        wildcards
            .filter_map(|suffix| self.wildcard.get(suffix))
            .chain(self.any.as_ref().filter(|_| name.is_some()))
    }

    /// Whether there is a value for `pattern` itself, or for one around it that is narrower than `outer`.
    pub(crate) fn has_within(&self, outer: &HostPattern, pattern: &HostPattern) -> bool {
        let outer = name_of(outer).map_or(0, |name| name.as_str().len());
        let mut wildcards = name_of(pattern).into_iter().flat_map(Hostname::parents);
        self.get(pattern).is_some()
            || wildcards.any(|suffix| suffix.len() > outer && self.wildcard.contains_key(suffix))
    }

    /// Visits values with the patterns that are included. For one name, its values come with the name itself.
    pub(crate) fn each(&self, visited: Visited<'_>, each: &mut dyn FnMut(&HostPattern, &V)) {
        match visited {
            Visited::All => self
                .iter()
                .for_each(|(pattern, value)| each(&pattern, value)),
            Visited::For(name) => {
                let pattern = HostPattern::Exact(name.clone());
                self.matching(name).for_each(|value| each(&pattern, value));
            }
            Visited::At(pattern) => {
                if let Some(value) = self.get(pattern) {
                    each(pattern, value);
                }
            }
        }
    }

    /// Every pattern with its value, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (HostPattern, &V)> {
        let exact = self.exact.iter();
        let wildcard = self.wildcard.iter();
        exact
            .map(|(name, value)| (HostPattern::Exact(name.clone()), value))
            .chain(wildcard.map(|(name, value)| (HostPattern::Wildcard(name.clone()), value)))
            .chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }
}

/// The name of a pattern, or that below which its names lie.
fn name_of(pattern: &HostPattern) -> Option<&Hostname> {
    match pattern {
        HostPattern::Any => None,
        HostPattern::Wildcard(name) | HostPattern::Exact(name) => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_around_a_pattern_are_found() {
        let all = ["", "*.com", "*.a.com", "*.b.a.com", "a.com", "x.b.a.com"];
        let all = all.map(|text| HostPattern::parse(text).unwrap());
        let mut patterns = PatternMap::new();
        for pattern in &all {
            patterns.insert(pattern.clone(), pattern.clone());
        }
        let others = ["*.org", "y.b.a.com", "*.x.b.a.com", "com"];
        let others = others.map(|text| HostPattern::parse(text).unwrap());
        for pattern in all.iter().chain(&others) {
            let mut expected: Vec<_> = all
                .iter()
                .filter(|of| of.covers(pattern) && *of != pattern)
                .collect();
            expected.sort_by_key(|of| std::cmp::Reverse(of.specificity()));
            let around: Vec<_> = patterns.around(pattern).collect();
            assert_eq!(around, expected, "{pattern:?}");
            for outer in all
                .iter()
                .filter(|outer| outer.covers(pattern) && *outer != pattern)
            {
                let inner =
                    |of: &&HostPattern| of.covers(pattern) && outer.covers(of) && of != &outer;
                assert_eq!(
                    patterns.has_within(outer, pattern),
                    all.iter().any(|of| inner(&of)),
                    "{pattern:?} within {outer:?}"
                );
            }
        }
    }
}
