//! Counts what the backends in use take in the proxies. It is bounded for each namespace.

use prost::Message as _;
use vestibule_model::backend_budget::entries_of_backend;
use vestibule_model::backend_key::BackendKey;

use super::{Dirty, Translator};

impl Translator {
    /// Counts the backends that may have changed in this pass, before their endpoints are put together, and marks those that
    /// are over the budget by this or come back under it, with the routes that lead to them. Returns whether there are any.
    pub(super) fn settle_backend_budgets(&mut self, dirty: &mut Dirty) -> bool {
        for key in &dirty.backends {
            let (created, entries) = self.entries_of(key).unwrap_or_default();
            self.backend_budgets.put(key, created, entries);
        }
        let moved = self.backend_budgets.settle();
        for key in &moved {
            let users = self.backend_users.get(key).into_iter().flatten();
            dirty.routes.extend(users.cloned());
        }
        let any = !moved.is_empty();
        dirty.backends.extend(moved);
        any
    }

    /// When the Service of a backend was created, and how many entries the backend has; `None` if it is not in use or does
    /// not exist. Endpoints in several slices count once for each, and so do those that no backend may have.
    fn entries_of(&self, key: &BackendKey) -> Option<(i64, u64)> {
        if !self.backend_users.contains_key(key) {
            return None;
        }
        let (service, port) = self.port_of(key)?;
        let (mut ready, mut terminating) = (0_usize, 0_usize);
        for slice in self.slices_of(&key.service) {
            let numbers = slice.numbers_of(port).count();
            let count = |addresses: usize| addresses.saturating_mul(numbers);
            ready = ready.saturating_add(count(slice.addresses.len()));
            terminating = terminating.saturating_add(count(slice.terminating.len()));
        }
        // Which of them it has depends on which are denied.
        let endpoints = ready.max(terminating);
        let bytes = key.to_string().len() + self.bare_backend(key, service, port).encoded_len();
        Some((service.meta.created, entries_of_backend(bytes, endpoints)))
    }
}
