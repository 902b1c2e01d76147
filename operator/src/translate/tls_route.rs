//! TLSRoutes: the resource.

use vestibule_model::object::TlsRoute;
use vestibule_model::route::Route;
use vestibule_stream::proto;

use super::Translator;
use super::route::{Body, Judged, References};

impl Translator {
    pub(super) fn judge_tls_route(&self, route: &TlsRoute) -> Judged {
        let findings = self.settings.policy.judge_route(route);
        let key = Route::Tls(route).key();
        let mut references = References::default();
        let backends = route
            .backends
            .iter()
            .map(|backend| proto::WeightedBackend {
                backend: self.resolve_backend(&key, backend, &mut references),
                weight: backend.weight,
            })
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
