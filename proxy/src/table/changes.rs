//! Owns the patterns of the listeners and owners that a change of the configuration touches, by bind and layer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use vestibule_model::hostname::{HostPattern, Hostname};

use crate::bind::BindKey;
use crate::listener::Layer;
use crate::pattern_map::PatternMap;

/// The patterns whose listener or owner has changed, by bind and layer.
#[derive(Default)]
pub(crate) struct Changes(BTreeMap<(BindKey, Layer), ChangedNames>);

impl Changes {
    pub(super) fn note(&mut self, place: (BindKey, Layer), pattern: &HostPattern) {
        self.0
            .entry(place)
            .or_insert_with(ChangedNames::new)
            .add(pattern);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&(BindKey, Layer), &ChangedNames)> {
        self.0.iter()
    }
}

/// Patterns that have changed. A question to them costs the same for one and for thousands, because a Gateway that is
/// deleted takes thousands along.
pub(super) struct ChangedNames {
    exact: BTreeSet<Hostname>,
    /// Wildcards and the pattern for every name.
    wildcards: PatternMap<()>,
    /// The suffixes of all wildcards inside which one of these lies.
    around: HashSet<Box<str>>,
}

impl ChangedNames {
    fn new() -> Self {
        Self {
            exact: BTreeSet::new(),
            wildcards: PatternMap::new(),
            around: HashSet::new(),
        }
    }

    fn add(&mut self, pattern: &HostPattern) {
        match pattern {
            HostPattern::Exact(name) => _ = self.exact.insert(name.clone()),
            HostPattern::Wildcard(suffix) => {
                self.around.extend(suffix.parents().map(Into::into));
                self.wildcards.insert(pattern.clone(), ());
            }
            HostPattern::Any => self.wildcards.insert(HostPattern::Any, ()),
        }
    }

    /// The exact names.
    pub(super) fn exact(&self) -> impl Iterator<Item = &Hostname> {
        self.exact.iter()
    }

    /// Whether there are others.
    pub(super) fn has_wildcards(&self) -> bool {
        !self.wildcards.is_empty()
    }

    /// Whether one of the wildcards, or the pattern for every name, has a name in common with `pattern`.
    pub(super) fn wildcards_overlap(&self, pattern: &HostPattern) -> bool {
        match pattern {
            HostPattern::Exact(name) => self.wildcards.matching(name).next().is_some(),
            HostPattern::Wildcard(suffix) => {
                self.around.contains(suffix.as_str())
                    || self.wildcards.get(pattern).is_some()
                    || self.wildcards.matching(suffix).next().is_some()
            }
            HostPattern::Any => self.has_wildcards(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_overlap_as_each_by_itself_does() {
        let patterns = [
            "",
            "*.com",
            "*.a.com",
            "*.b.a.com",
            "*.b.com",
            "*.org",
            "com",
            "a.com",
            "x.a.com",
            "b.a.com",
            "x.b.a.com",
            "x.org",
        ]
        .map(|text| HostPattern::parse(text).unwrap());
        for chosen in 0..1_usize << patterns.len() {
            let changed: Vec<_> = (0..patterns.len())
                .filter(|index| (chosen >> index) & 1 == 1)
                .map(|index| &patterns[index])
                .collect();
            let mut names = ChangedNames::new();
            for pattern in &changed {
                names.add(pattern);
            }
            let is_wide = |pattern: &HostPattern| !matches!(pattern, HostPattern::Exact(_));
            for pattern in &patterns {
                let expected = changed.iter().any(|of| is_wide(of) && of.overlaps(pattern));
                assert_eq!(
                    names.wildcards_overlap(pattern),
                    expected,
                    "{pattern:?}: {changed:?}"
                );
            }
        }
    }
}
