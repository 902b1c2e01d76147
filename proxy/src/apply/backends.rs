//! Owns the backends: those that the operator sent, and those that routes refer to before they have come. Each has a slot
//! of the snapshot, and its next version takes the place of the one before there.

use std::sync::Arc;

use super::State;
use super::backend_tls::TlsSpec;
use crate::backend::{Backend, Target};
use crate::slot_map::Slot;

/// A backend that the operator sent, or to which a route refers.
pub(super) struct HeldBackend {
    /// The slot of the snapshot with its present version.
    pub(super) slot: Slot<Backend>,
    /// Whether the operator sent it. If not, routes only refer to it, and it has no endpoints.
    pub(super) held: bool,
    pub(super) references: u32,
    /// In a box, because most backends have none.
    pub(super) tls: Option<Box<TlsSpec>>,
}

impl State {
    /// The slot of a backend, for a route that refers to it. The backend need not be held.
    pub(super) fn refer(&mut self, name: &str) -> Slot<Backend> {
        let entry = self.backend_entry(name);
        entry.references += 1;
        entry.slot
    }

    /// The entry of a backend. It is created if there is none.
    pub(super) fn backend_entry(&mut self, name: &str) -> &mut HeldBackend {
        let key: Arc<str> = name.into();
        self.backends.entry(key).or_insert_with_key(|key| {
            let slot = self.backend_slots.allocate();
            let backend = Backend::new(Arc::clone(key), slot);
            self.snapshot.set_backend(slot, Some(Arc::new(backend)));
            HeldBackend {
                slot,
                held: false,
                references: 0,
                tls: None,
            }
        })
    }

    /// Releases a slot that [`Self::refer`] returned.
    pub(super) fn release(&mut self, slot: Option<Slot<Backend>>) {
        let backend = slot.and_then(|slot| self.snapshot.backend(slot).cloned());
        let Some(backend) = backend else {
            return;
        };
        if let Some(entry) = self.backends.get_mut(&backend.key) {
            entry.references = entry.references.saturating_sub(1);
        }
        self.sweep_backend(&backend.key);
    }

    /// Removes a backend that is neither held nor referred to.
    pub(super) fn sweep_backend(&mut self, name: &str) {
        let idle = |entry: &HeldBackend| entry.references == 0 && !entry.held;
        if self.backends.get(name).is_some_and(idle)
            && let Some(entry) = self.backends.remove(name)
        {
            self.snapshot.set_backend(entry.slot, None);
            self.backend_slots.free(entry.slot);
        }
    }

    pub(super) fn hold_backend(&mut self, name: &str, mut target: Target, tls: Option<TlsSpec>) {
        self.work.endpoint_lists += 1;
        let entry = self.backend_entry(name);
        let is_new = !std::mem::replace(&mut entry.held, true);
        self.backends_held += usize::from(is_new);
        target.tls = self.settle_backend_tls(name, tls);
        self.renew_backend(name, target);
    }

    pub(super) fn drop_backend(&mut self, name: &str) {
        let Some(entry) = self.backends.get_mut(name) else {
            return;
        };
        for bundle in entry.tls.take().iter().flat_map(|tls| tls.bundles()) {
            self.backend_trust.remove(bundle, &name.into());
        }
        self.backends_held -= usize::from(entry.held);
        entry.held = false;
        self.renew_backend(name, Target::default());
        self.sweep_backend(name);
    }
}
