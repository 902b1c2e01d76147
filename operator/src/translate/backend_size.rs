//! Counts what the backends in use take in the proxies. It is bounded for each namespace, and for all of them together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use prost::Message as _;
use vestibule_model::backend_budget::{BackendSize, EndpointCounts};
use vestibule_model::backend_key::BackendKey;
use vestibule_model::key::{ObjectKey, ObjectName};

use super::{Dirty, Translator};

impl Translator {
    /// Counts the backends that may have changed in this pass, before their endpoints are put together, and marks those that
    /// are over a limit by this or come back under it, with the routes that lead to them.
    pub(super) fn settle_backend_budgets(&mut self, dirty: &mut Dirty) {
        for key in &dirty.backends {
            let (created, size) = self.size_of(key).unwrap_or_default();
            self.backend_budgets.put(key, created, size);
        }
        let moved = self.backend_budgets.settle();
        let services: BTreeSet<&ObjectName> = moved.iter().map(|key| &key.service).collect();
        for service in services {
            // Also a route that is attached nowhere, and so uses no backend, says that one is over a limit.
            let routes = self.index.routes_of_service(service);
            let referring = routes.filter(|key| self.refers_to(key, &moved));
            dirty.routes.extend(referring.cloned());
        }
        dirty.backends.extend(moved);
    }

    /// Whether a route refers to one of these backends, and may. A route that may not says only that, however large the backend
    /// is, so it is not judged again for a Service of others.
    fn refers_to(&self, key: &ObjectKey, backends: &BTreeSet<BackendKey>) -> bool {
        let Some(route) = self.route(key) else {
            return false;
        };
        let transport = key.kind.transport();
        let mut references = route.all_backends();
        references.any(|reference| {
            let service = &reference.reference.target;
            let backend = |number| BackendKey::new(service.clone(), (number, transport));
            let backend = reference.port.map(backend);
            backend.is_some_and(|backend| backends.contains(&backend))
                && self.permit(key, &reference.reference).is_ok()
        })
    }

    /// When the Service of a backend was created, and the size of the backend; `None` if it is not in use or does not
    /// exist. Endpoints in several slices count once for each, and so do those that no backend may have.
    fn size_of(&self, key: &BackendKey) -> Option<(i64, BackendSize)> {
        if !self.backend_users.contains_key(key) {
            return None;
        }
        let (service, port) = self.port_of(key)?;
        let (mut ready, mut terminating) = (EndpointCounts::default(), EndpointCounts::default());
        for slice in self.slices_of(&key.service) {
            let numbers = slice.numbers_of(port).count();
            if numbers == 0 {
                continue;
            }
            for (counts, addresses) in [
                (&mut ready, &slice.addresses),
                (&mut terminating, &slice.terminating),
            ] {
                // The addresses of a slice are of one family.
                let is_ipv6 = addresses.first().is_some_and(IpAddr::is_ipv6);
                let count = if is_ipv6 {
                    &mut counts.ipv6
                } else {
                    &mut counts.ipv4
                };
                *count = count.saturating_add(addresses.len().saturating_mul(numbers));
            }
        }
        // Which of them it has depends on which are denied.
        let endpoints = EndpointCounts {
            ipv4: ready.ipv4.max(terminating.ipv4),
            ipv6: ready.ipv6.max(terminating.ipv6),
        };
        let bytes = key.to_string().len() + self.bare_backend(key, service, port).encoded_len();
        Some((service.meta.created, BackendSize::new(bytes, endpoints)))
    }
}
