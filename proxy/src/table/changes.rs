//! Owns the patterns of the listeners and owners that a change of the configuration touches, by bind and layer.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::reversed::Patterns;

use crate::bind::BindKey;
use crate::listener::Layer;

/// The patterns whose listener or owner has changed, by bind and layer.
#[derive(Default)]
pub(crate) struct Changes(BTreeMap<(BindKey, Layer), ChangedNames>);

impl Changes {
    /// Notes that the listener at a place has changed.
    pub(super) fn note_listener(&mut self, place: (BindKey, Layer), pattern: &HostPattern) {
        let names = self.0.entry(place).or_default();
        add(&mut names.exact, &mut names.listeners, pattern);
    }

    /// Notes that a pattern has another owner on the Gateway of a place.
    pub(super) fn note_owner(&mut self, place: (BindKey, Layer), pattern: &HostPattern) {
        let names = self.0.entry(place).or_default();
        add(&mut names.exact, &mut names.owners, pattern);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&(BindKey, Layer), &ChangedNames)> {
        self.0.iter()
    }
}

fn add(exact: &mut BTreeSet<Hostname>, wide: &mut Patterns<()>, pattern: &HostPattern) {
    match pattern {
        HostPattern::Exact(name) => _ = exact.insert(name.clone()),
        HostPattern::Wildcard(_) | HostPattern::Any => _ = wide.insert(pattern, ()),
    }
}

/// Patterns that have changed. A question to them costs the same for one and for thousands, because a Gateway that is
/// deleted takes thousands along.
#[derive(Default)]
pub(super) struct ChangedNames {
    /// The names with another listener or owner.
    pub(super) exact: BTreeSet<Hostname>,
    /// The wildcards with another listener, and the pattern for every name.
    pub(super) listeners: Patterns<()>,
    /// Those with another owner.
    pub(super) owners: Patterns<()>,
}
