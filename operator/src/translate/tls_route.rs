//! TLSRoutes: the resource.

use vestibule_model::key::ObjectKey;
use vestibule_model::reference::BackendRef;
use vestibule_model::route::{Route, TlsRoute};
use vestibule_stream::proto;

use super::Translator;
use super::route_state::{Body, Judged, References};

impl Translator {
    /// The backends of a route that routes no requests, with their shares, and what the references come to.
    pub(super) fn weighted(
        &self,
        route: &ObjectKey,
        backends: &[BackendRef],
    ) -> (Vec<proto::WeightedBackend>, References) {
        let mut references = References::default();
        let mut weighted = |backend: &BackendRef| proto::WeightedBackend {
            backend: self.resolve_backend(route, backend, &mut references),
            weight: backend.weight,
        };
        let backends = backends.iter().map(&mut weighted).collect();
        (backends, references)
    }

    pub(super) fn judge_tls_route(&self, route: &TlsRoute) -> Judged {
        let findings = self.settings.policy.judge_route(route);
        let key = Route::Tls(route).key();
        let (backends, references) = self.weighted(&key, &route.backends);
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
