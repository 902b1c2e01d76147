//! Counts certificates by namespace and by issuer.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::key::{ObjectKey, ObjectName};

#[derive(Debug, Default)]
pub(super) struct Tally {
    members: BTreeMap<ObjectName, Option<ObjectKey>>,
    namespaces: BTreeMap<Arc<str>, usize>,
    issuers: BTreeMap<ObjectKey, usize>,
}

impl Tally {
    pub(super) fn insert(&mut self, secret: &ObjectName, issuer: Option<&ObjectKey>) {
        self.remove(secret);
        self.members.insert(secret.clone(), issuer.cloned());
        *self.namespaces.entry(secret.namespace.clone()).or_default() += 1;
        if let Some(issuer) = issuer {
            *self.issuers.entry(issuer.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, secret: &ObjectName) {
        if let Some(issuer) = self.members.remove(secret) {
            less(&mut self.namespaces, &secret.namespace);
            if let Some(issuer) = issuer {
                less(&mut self.issuers, &issuer);
            }
        }
    }

    /// Whether a certificate is counted for this issuer.
    pub(super) fn has(&self, secret: &ObjectName, issuer: Option<&ObjectKey>) -> bool {
        self.members
            .get(secret)
            .is_some_and(|of| of.as_ref() == issuer)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn of_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    pub(super) fn of_issuer(&self, issuer: &ObjectKey) -> usize {
        self.issuers.get(issuer).copied().unwrap_or_default()
    }
}

/// Subtracts one, and removes a count of zero.
fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::Kind;

    use super::*;

    #[test]
    fn each_is_counted_once_and_nothing_is_left() {
        let mut tally = Tally::default();
        let (a, b) = (ObjectName::new("n", "a"), ObjectName::new("n", "b"));
        let issuer = ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca");
        let other = ObjectKey::new(Kind::AcmeIssuer, "n", "ca");
        tally.insert(&a, Some(&issuer));
        tally.insert(&a, Some(&other));
        tally.insert(&b, None);
        assert!(tally.has(&a, Some(&other)) && !tally.has(&a, Some(&issuer)));
        assert_eq!((tally.len(), tally.of_namespace("n")), (2, 2));
        assert_eq!((tally.of_issuer(&issuer), tally.of_issuer(&other)), (0, 1));
        tally.remove(&a);
        tally.remove(&a);
        tally.remove(&b);
        assert_eq!(tally.of_namespace("n"), 0);
        assert!(tally.namespaces.is_empty() && tally.issuers.is_empty());
    }
}
