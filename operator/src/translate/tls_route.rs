//! TLSRoutes: the resource.

use vestibule_model::key::ObjectKey;
use vestibule_model::object::{BackendRef, TlsRoute};
use vestibule_model::route::Route;
use vestibule_stream::proto;

use super::Translator;
use super::route::{Body, Judged, References};

impl Translator {
    /// A backend of a route that has connections, with its share of them.
    pub(super) fn weighted(
        &self,
        route: &ObjectKey,
        backend: &BackendRef,
        references: &mut References,
    ) -> proto::WeightedBackend {
        proto::WeightedBackend {
            backend: self.resolve_backend(route, backend, references),
            weight: backend.weight,
        }
    }

    pub(super) fn judge_tls_route(&self, route: &TlsRoute) -> Judged {
        let findings = self.settings.policy.judge_route(route);
        let key = Route::Tls(route).key();
        let mut references = References::default();
        let backends = route
            .backends
            .iter()
            .map(|backend| self.weighted(&key, backend, &mut references))
            .collect();
        Judged {
            refused: findings.iter().find(|f| f.refuses()).cloned(),
            findings,
            dropped: Vec::new(),
            references,
            body: Body::Tls(proto::TlsRoute {
                tenant: route.name.namespace.to_string(),
                created: route.meta.created,
                attachments: Vec::new(),
                backends,
            }),
        }
    }
}
