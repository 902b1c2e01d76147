//! Grants, invitations and public suffixes in the plainest form: lists that are gone through.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ListenerKey;
use vestibule_model::names::Permissions;

/// One hostname of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// To whom; `None`: to everybody.
    pub(crate) namespace: Option<&'static str>,
    pub(crate) names: HostPattern,
    pub(crate) shared: bool,
}

impl Entry {
    pub(crate) fn is_for(&self, namespace: &str) -> bool {
        self.namespace.is_none_or(|one| one == namespace)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    pub(crate) entries: Vec<Entry>,
    /// Namespaces that the Gateway does not let in.
    pub(crate) out: BTreeSet<Arc<str>>,
    /// The namespaces whose routes each of the Gateway's own listeners admits.
    pub(crate) admitted: BTreeMap<ListenerKey, BTreeSet<Arc<str>>>,
    /// How many names namespaces may hold; the others: any number.
    pub(crate) most: BTreeMap<Arc<str>, usize>,
    /// How often something was asked.
    pub(crate) asked: Cell<usize>,
}

impl Grants {
    fn count(&self) {
        self.asked.set(self.asked.get() + 1);
    }

    /// The patterns by which grants give all of `names` to a namespace.
    pub(crate) fn giving(&self, namespace: &str, names: &HostPattern) -> Vec<HostPattern> {
        let entries = self.entries.iter().filter(|entry| !entry.shared);
        let entries = entries.filter(|entry| entry.is_for(namespace) && entry.names.covers(names));
        entries.map(|entry| entry.names.clone()).collect()
    }
}

impl Permissions for Grants {
    fn is_guarded(&self) -> bool {
        !self.entries.is_empty()
    }

    fn granted(&self, namespace: &str, names: &HostPattern) -> Option<HostPattern> {
        self.count();
        let giving = self.giving(namespace, names).into_iter();
        giving.max_by_key(HostPattern::specificity)
    }

    fn shares(&self, namespace: &str, name: &Hostname) -> bool {
        self.count();
        let name = HostPattern::Exact(name.clone());
        let mut shared = self.entries.iter().filter(|entry| entry.shared);
        shared.any(|entry| entry.is_for(namespace) && entry.names == name)
    }

    fn lets_in(&self, namespace: &str) -> bool {
        !self.out.contains(namespace)
    }

    fn admits(&self, listener: &ListenerKey, namespace: &str) -> bool {
        self.count();
        let admitted = self.admitted.get(listener);
        admitted.is_some_and(|admitted| admitted.contains(namespace))
    }

    fn most_names(&self, namespace: &str) -> usize {
        self.most.get(namespace).copied().unwrap_or(usize::MAX)
    }

    /// As the list has it for names that it does not know: top-level domains; and one country's second level.
    fn is_public_suffix(&self, name: &Hostname) -> bool {
        name.labels() == 1 || name.as_str() == "co.uk"
    }
}
