//! The budget for what the Secrets and ConfigMaps of one namespace bring into the configuration: certificate chains with
//! their keys, and CA certificates. Every proxy has a copy of all of them.
//!
//! Only what is in use counts, once for each Secret or ConfigMap, however many objects use it. It counts in its own
//! namespace, also if objects of another namespace use it.
//!
//! Older ones come first, and those of the same age by name. One that does not fit in what those before it leave is not
//! used at all, and leaves its room to those behind it. From [`SourceBudgets::keep_in_service`] on, those in service come
//! before all others. So one that comes into use, or fits again, takes no place from one in service, however old it is.
//! The proxies do not keep a last good version of it: an old Secret that grows could otherwise push out one that the
//! proxies still hold, and the next older one again, until the namespace has many times its budget.
//! One that is gone for a moment waits by its age when it is back.
//!
//! A new proxy gets all of them in one batch, and a batch has a limit. So there is also a total for all namespaces, which they
//! [share](crate::fair_total). A namespace without a limit counts as well, and leaves less of the total to the others. Only
//! what a batch has counts there ([`SourceBytes`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::condition::Reason;
use crate::fair_total::FairTotal;
use crate::finding::Finding;
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets, Uses};

/// How many bytes a Secret or ConfigMap brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceBytes {
    /// The most that a proxy holds of it. This counts in the budget of its namespace.
    pub held: u64,
    /// Its part in a batch with everything, no more than a proxy holds. This counts in the total. It is less for a Secret
    /// that cannot be used: the proxies may hold a former version, but nobody sends them one.
    pub sent: u64,
}

impl From<u64> for SourceBytes {
    /// A proxy holds what it is sent.
    fn from(bytes: u64) -> Self {
        Self {
            held: bytes,
            sent: bytes,
        }
    }
}

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBudgets {
    budgets: NamespaceBudgets<ObjectKey>,
}

impl SourceBudgets {
    /// Budgets of `most` bytes for each namespace, and of `total` for all of them together.
    #[must_use]
    pub fn new(most: u64, total: u64) -> Self {
        let budgets = NamespaceBudgets::new(most, Beyond::LeavesItsRoom);
        Self {
            budgets: budgets.sharing_the_same(total),
        }
    }

    /// Takes the age of a Secret or ConfigMap, and how many bytes it brings. One that brings none has no part in the budget.
    /// The change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, source: &ObjectKey, created: i64, bytes: impl Into<SourceBytes>) {
        let SourceBytes { held, sent } = bytes.into();
        let uses = Uses {
            own: held,
            of_total: sent,
        };
        self.budgets.put(source, created, uses);
    }

    /// From now on, what comes into use takes no place from what is in service. Before, only ages count, so the result does
    /// not depend on the order in which the objects are read.
    pub fn keep_in_service(&mut self) {
        self.budgets.keep_in_service();
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.budgets.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed, and those whose share of the total did. Returns the Secrets and ConfigMaps of
    /// which [`Self::refusal`] says something else by this.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        self.budgets.settle()
    }

    /// Whether a Secret or ConfigMap is over the budget.
    #[must_use]
    pub fn is_over(&self, source: &ObjectKey) -> bool {
        self.budgets.exceeded(source).is_some()
    }

    /// The total, and what each namespace asks for of it.
    #[must_use]
    pub fn total(&self) -> Option<&FairTotal> {
        self.budgets.total()
    }

    /// Why the reference in `field` is refused, if the Secret or ConfigMap that it leads to is over the budget. How much it
    /// brings is not said: the users of one that stays over are not judged again when it changes, so that would be a
    /// number of the past.
    #[must_use]
    pub fn refusal(&self, source: &ObjectKey, field: &str) -> Option<Finding> {
        let limit = self.budgets.exceeded(source)?;
        let namespace = &source.name.namespace;
        let share = self
            .budgets
            .share_in_words(limit, namespace, "those in use");
        let left_of = share.unwrap_or_else(|| {
            let most = self.budgets.most() >> 20;
            format!("the {most} MiB that those in use of namespace {namespace} may have")
        });
        Some(Finding::refused(
            Reason::QuotaExceeded,
            field,
            format!(
                "{source} brings more bytes of certificates and keys into every proxy than the Secrets and ConfigMaps \
                 before it leave of {left_of}"
            ),
            limit.remedy(
                "use fewer of them, such as one certificate for several listeners and one bundle for several Services, leave \
                 out CA certificates that are not needed",
                "tenants.certificateMib",
                "tenants.allCertificatesMib",
            ),
        ))
    }
}
