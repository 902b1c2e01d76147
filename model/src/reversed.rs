//! A map by hostname pattern, in an order in which all patterns below a suffix form one range.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::hostname::{HostPattern, Hostname};

/// A pattern as a sort key: the labels in reverse order, each followed by a dot, and whether it is a wildcard.
///
/// `*.example.com` has the text `com.example.`, as `example.com` has. So the texts of `example.com`, and of all patterns
/// below it, begin with `com.example.`, and no others do. They form one range of the map, because texts with a common
/// prefix are adjacent in text order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reversed {
    text: String,
    is_wildcard: bool,
}

impl Reversed {
    fn of(pattern: &HostPattern) -> Self {
        let (text, is_wildcard) = match pattern {
            HostPattern::Any => (String::new(), true),
            HostPattern::Wildcard(suffix) => (Self::labels(suffix), true),
            HostPattern::Exact(name) => (Self::labels(name), false),
        };
        Self { text, is_wildcard }
    }

    fn labels(name: &Hostname) -> String {
        let name = name.as_str();
        name.rsplit('.')
            .fold(String::with_capacity(name.len() + 1), |mut text, label| {
                text.push_str(label);
                text.push('.');
                text
            })
    }
}

/// A text and whether it is a wildcard's, by which sort keys are compared. The texts of the wildcards around a name are
/// slices of the name's own text, so the map finds them without a key of their own.
trait Place {
    fn place(&self) -> (&str, bool);
}

impl Place for Reversed {
    fn place(&self) -> (&str, bool) {
        (&self.text, self.is_wildcard)
    }
}

impl Place for (&str, bool) {
    fn place(&self) -> (&str, bool) {
        *self
    }
}

impl<'a> Borrow<dyn Place + 'a> for Reversed {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Place + '_ {}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

/// Values by hostname pattern. The patterns that cover another one, and those that it covers, are found without a look
/// at the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patterns<V>(BTreeMap<Reversed, (HostPattern, V)>);

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
        self.0.get(&Reversed::of(pattern)).map(|(_, value)| value)
    }

    /// The value of a pattern, for a change.
    pub fn get_mut(&mut self, pattern: &HostPattern) -> Option<&mut V> {
        let found = self.0.get_mut(&Reversed::of(pattern));
        found.map(|(_, value)| value)
    }

    /// The value of a pattern. If there is none, a default value is inserted.
    pub fn or_default(&mut self, pattern: &HostPattern) -> &mut V
    where
        V: Default,
    {
        let entry = self.0.entry(Reversed::of(pattern));
        let (_, value) = entry.or_insert_with(|| (pattern.clone(), V::default()));
        value
    }

    /// Sets the value of a pattern, and returns the former one.
    pub fn insert(&mut self, pattern: &HostPattern, value: V) -> Option<V> {
        let old = self
            .0
            .insert(Reversed::of(pattern), (pattern.clone(), value));
        old.map(|(_, value)| value)
    }

    /// Removes a pattern, and returns its value.
    pub fn remove(&mut self, pattern: &HostPattern) -> Option<V> {
        let old = self.0.remove(&Reversed::of(pattern));
        old.map(|(_, value)| value)
    }

    /// The patterns that cover all of `names` and more, the most specific one first. This is one look-up for each
    /// label, and none before somebody asks for the next pattern.
    pub fn above<'a>(
        &'a self,
        names: &HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> + use<'a, V> {
        let text = match names {
            HostPattern::Any => String::new(),
            HostPattern::Wildcard(name) | HostPattern::Exact(name) => Reversed::labels(name),
        };
        let mut end = text.len();
        std::iter::from_fn(move || {
            // Every label ends with a dot. Without the last label, the text is that of the next wildcard.
            while let Some(rest) = text[..end].strip_suffix('.') {
                end = rest.rfind('.').map_or(0, |dot| dot + 1);
                let place: &dyn Place = &(&text[..end], true);
                if let Some((pattern, value)) = self.0.get(place) {
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
    ) -> impl Iterator<Item = (&'a HostPattern, &'a V)> {
        let prefix = match names {
            HostPattern::Any => Some(String::new()),
            HostPattern::Wildcard(suffix) => Some(Reversed::labels(suffix)),
            HostPattern::Exact(_) => None,
        };
        let first = first.map(Reversed::of);
        prefix.into_iter().flat_map(move |prefix| {
            let from = first.clone().unwrap_or_else(|| Reversed {
                text: prefix.clone(),
                is_wildcard: false,
            });
            self.0
                .range((Bound::Included(from), Bound::Unbounded))
                .take_while(move |(key, _)| key.text.starts_with(&prefix))
                // The text of `example.com` also begins with `com.example.`, but `*.example.com` does not cover it.
                .filter(move |(_, (pattern, _))| pattern != names && names.covers(pattern))
                .map(|(_, (pattern, value))| (pattern, value))
        })
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
        let found = self.0.get(&Reversed::of(names));
        found.map(|(pattern, value)| (pattern, value)).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn what_covers_and_what_is_covered_is_found() {
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
