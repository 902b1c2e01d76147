//! TLSRoutes: the verdict that depends on the kind, and the resource.

use vestibule_model::route::{Route, TlsRoute};
use vestibule_stream::proto;

use super::Translator;
use super::route_state::{Body, Judged};

impl Translator {
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
