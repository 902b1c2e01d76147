//! The budget for what the Secrets and ConfigMaps of one namespace bring into the configuration: certificate chains with
//! their keys, and CA certificates. Every proxy has a copy of all of them.
//!
//! Only what is in use counts, once for each Secret or ConfigMap, however many objects use it. It counts in its own
//! namespace, also if objects of another namespace use it.
//!
//! Older ones come first, and those of the same age by name. One that does not fit in what those before it leave is not
//! used at all, and leaves its room to those behind it. So a new one takes no place from one in service. Nor does an old one
//! that comes into use: from [`SourceBudgets::keep_in_service`] on, its place is behind all that count when it is read,
//! which may be long after somebody began to use it.
//! The proxies do not keep a last good version of it: an old Secret that grows could otherwise push out one that the
//! proxies still hold, and the next older one again, until the namespace has many times its budget.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::ObjectKey;
use crate::namespace_budget::{Beyond, NamespaceBudgets, Place};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBudgets {
    budgets: NamespaceBudgets,
    /// Whether what comes into use gets a place behind all others.
    keeps: bool,
    /// Those that came into use since then, each with the least place that it can have. That is the first one as long as
    /// nothing else counts.
    late: BTreeMap<ObjectKey, Place>,
}

impl SourceBudgets {
    /// Budgets of `most` bytes for each namespace.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self {
            budgets: NamespaceBudgets::new(most, Beyond::LeavesItsRoom),
            keeps: false,
            late: BTreeMap::new(),
        }
    }

    /// Takes the age of a Secret or ConfigMap, and how many bytes it brings into the configuration. One that brings none
    /// has no part in the budget. The change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, source: &ObjectKey, created: i64, bytes: u64) {
        if bytes > 0
            && self.budgets.place(source).is_none()
            && let Some(late) = self.late.get_mut(source)
            && let Some(behind) = self.budgets.behind(&source.name.namespace)
        {
            // Others may have come while it was read.
            *late = behind.max(*late);
        }
        let own = Place::of(created);
        let place = self.late.get(source).map_or(own, |late| own.max(*late));
        self.budgets.put_at(source, place, bytes);
    }

    /// From now on, what comes into use takes no place from what is in service. Before, only ages count, so the result does
    /// not depend on the order in which the objects are read.
    pub fn keep_in_service(&mut self) {
        self.keeps = true;
        self.budgets.keep_in_service();
    }

    /// Takes whether a Secret or `ConfigMap` that was not in use is so now, or the opposite. It has an effect at the next
    /// [`Self::put`].
    pub fn set_in_use(&mut self, source: &ObjectKey, is_in_use: bool) {
        if !is_in_use {
            self.late.remove(source);
        } else if self.keeps {
            let behind = self.budgets.behind(&source.name.namespace);
            // If nothing else counts yet, something else may by the time at which this one is read.
            let least = behind.unwrap_or(Place::FIRST);
            self.late.insert(source.clone(), least);
        }
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.budgets.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed. Returns the Secrets and ConfigMaps that went over their budget by this, or
    /// came back under it.
    pub fn settle(&mut self) -> BTreeSet<ObjectKey> {
        self.budgets.settle()
    }

    /// Whether a Secret or ConfigMap is over the budget.
    #[must_use]
    pub fn is_over(&self, source: &ObjectKey) -> bool {
        self.budgets.over(source).is_some()
    }

    /// Why the reference in `field` is refused, if the Secret or ConfigMap that it leads to is over the budget. How much it
    /// brings is not said: the users of one that stays over are not judged again when it changes, so that would be a
    /// number of the past.
    #[must_use]
    pub fn refusal(&self, source: &ObjectKey, field: &str) -> Option<Finding> {
        self.is_over(source).then(|| {
            Finding::refused(
                Reason::QuotaExceeded,
                field,
                format!(
                    "{source} brings more bytes of certificates and keys into every proxy than the Secrets and ConfigMaps \
                     before it leave of the {} MiB that those in use of namespace {} may bring",
                    self.budgets.most() >> 20,
                    source.name.namespace
                ),
                "use fewer of them, such as one certificate for several listeners and one bundle for several Services, \
                 leave out CA certificates that are not needed, or ask the platform admin for more \
                 (tenants.certificateMib)",
            )
        })
    }
}
