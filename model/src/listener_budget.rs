//! The budget for what the listeners of all namespaces take in the configuration that every proxy gets.
//!
//! How many listeners a namespace has is bounded by its hostnames and ports, and how large each of them is by the API. The
//! product of these bounds is large, and a new proxy gets all listeners in one batch, which has a limit. So there is a total
//! of bytes for all namespaces, which they [share](crate::fair_total). A namespace with a Gateway has no limit, and leaves less
//! to the others.
//!
//! Listeners of older objects come first, and those of one age by name. One that does not fit in what those before it leave is
//! refused, and leaves its room to those behind it. From [`ListenerBudgets::keep_in_service`] on, those in service come before
//! all others. So a new listener takes no place from one in service. One that is gone for a moment waits by its age when it is
//! back.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::condition::Reason;
use crate::fair_total::FairTotal;
use crate::finding::Finding;
use crate::key::{ListenerKey, ObjectName, ParentKey};
use crate::namespace_budget::{Beyond, FRAME, LEAST_BYTES, NamespaceBudgets};

/// The budgets of all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerBudgets(NamespaceBudgets<ListenerKey>);

impl ListenerBudgets {
    /// Budgets of `total` bytes for all namespaces together.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let budgets = NamespaceBudgets::new(u64::MAX, Beyond::LeavesItsRoom);
        Self(budgets.sharing(total))
    }

    /// From now on, a listener that comes takes no place from one in service. Before, only ages count, so the result does not
    /// depend on the order in which the objects are read.
    pub fn keep_in_service(&mut self) {
        self.0.keep_in_service();
    }

    /// Takes the age of the object of a listener, and how many bytes the listener has in the configuration, without what its
    /// Gateway asks of clients. One that is not sent has none. The change has an effect at the next [`Self::settle`].
    pub fn put(&mut self, listener: &ListenerKey, created: i64, bytes: u64) {
        let counted = match bytes {
            0 => 0,
            sent => sent.saturating_add(FRAME as u64).max(LEAST_BYTES),
        };
        self.0.put(listener, created, counted);
    }

    /// Takes the age of a Gateway, and how many bytes its settings for all listeners have in the configuration; 0: none. They
    /// are never refused, because the namespace of a Gateway has no limit, and they leave less of the total to others.
    pub fn put_settings(&mut self, gateway: &ObjectName, created: i64, bytes: u64) {
        // No listener is without a name.
        let settings = ListenerKey::new(ParentKey::Gateway(gateway.clone()), "");
        self.put(&settings, created, bytes);
    }

    /// Takes whether a namespace has no limit. The change has an effect at the next [`Self::settle`].
    pub fn exempt(&mut self, namespace: &Arc<str>, is_exempt: bool) {
        self.0.exempt(namespace, is_exempt);
    }

    /// Judges the namespaces that changed, and those whose share of the total did. Returns the listeners of which
    /// [`Self::refusal`] says something else by this.
    pub fn settle(&mut self) -> BTreeSet<ListenerKey> {
        self.0.settle()
    }

    /// The total, and what each namespace asks for of it.
    #[must_use]
    pub fn total(&self) -> Option<&FairTotal> {
        self.0.total()
    }

    /// Why a listener is refused, if it is over the budget. `field` is its place in its object.
    #[must_use]
    pub fn refusal(&self, listener: &ListenerKey, field: &str) -> Option<Finding> {
        let limit = self.0.exceeded(listener)?;
        let uses = self.0.uses(listener)?;
        let namespace = &listener.parent.name().namespace;
        let left_of = self.0.share_in_words(limit, namespace, "the listeners")?;
        Some(Finding::refused(
            Reason::QuotaExceeded,
            field,
            format!(
                "has {} bytes in the configuration of every proxy, which is more than the listeners before it leave of {left_of}",
                uses.of_total
            ),
            limit.remedy(
                "name fewer Secrets in its certificateRefs, use shorter names and fewer listeners",
                "tenants.allListenersMib",
                "tenants.allListenersMib",
            ),
        ))
    }
}
