//! Owns a persistent map by hostname pattern, which finds the patterns that match a name in order of specificity.
//! Clones share structure.

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

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
