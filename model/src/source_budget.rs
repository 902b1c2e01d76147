//! The budget for what the Secrets and ConfigMaps of one namespace bring into the configuration: certificate chains with
//! their keys, and CA certificates. Every proxy has a copy of all of them.
//!
//! Only what is in use counts, once for each Secret or ConfigMap, however many objects use it. It counts in its own
//! namespace, also if objects of another namespace use it.
//!
//! Older ones come first, and those of the same age by name. One that does not fit in what the older ones leave is not
//! used at all, and leaves its room to younger ones. So a new one takes no place from one in service.
//! The proxies do not keep a last good version of it: an old Secret that grows could otherwise push out one that the
//! proxies still hold, and the next older one again, until the namespace has many times its budget.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBudgets(NamespaceBudgets);

impl SourceBudgets {
    /// Budgets of `most` bytes for each namespace.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self(NamespaceBudgets::new(most, Beyond::LeavesItsRoom))
    }

    /// Takes the age of a Secret or ConfigMap, and how many bytes it brings into the configuration. One that brings none
    /// has no part in the budget. The change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, source: &ObjectKey, created: i64, bytes: u64) {
        self.0.put(source, created, bytes);
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.0.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed. Returns the Secrets and ConfigMaps that went over their budget by this, or
    /// came back under it.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        self.0.settle()
    }

    /// Whether a Secret or ConfigMap is over the budget.
    #[must_use]
    pub fn is_over(&self, source: &ObjectKey) -> bool {
        self.0.over(source).is_some()
    }

    /// Why the reference in `field` is refused, if the Secret or ConfigMap that it leads to is over the budget.
    #[must_use]
    pub fn refusal(&self, source: &ObjectKey, field: &str) -> Option<Finding> {
        let bytes = self.0.over(source)?;
        Some(Finding::refused(
            Reason::QuotaExceeded,
            field,
            format!(
                "{source} brings {bytes} bytes of certificates and keys into every proxy, which is more than older \
                 Secrets and ConfigMaps leave of the {} MiB that those in use of namespace {} may bring",
                self.0.most() >> 20,
                source.name.namespace
            ),
            "use fewer of them, such as one certificate for several listeners and one bundle for several Services, leave \
             out CA certificates that are not needed, or ask the platform admin for more (tenants.certificateMib)",
        ))
    }
}
