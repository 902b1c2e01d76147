//! The key of a backend: its name on the stream, and the Service and the port that it stands for.

use vestibule_model::backend_key::BackendKey;
use vestibule_model::key::Kind;
use vestibule_model::object::{Object, Service, ServicePort};
use vestibule_stream::{ResourceKey, ResourceKind};

use super::Translator;

/// The key of a backend's resource.
pub(super) fn backend_resource(key: &BackendKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, key.to_string())
}

impl Translator {
    /// The Service and the port of a backend, if they exist.
    pub(super) fn port_of(&self, key: &BackendKey) -> Option<(&Service, &ServicePort)> {
        let Some(Object::Service(service)) = self.get(Kind::Service, &key.service) else {
            return None;
        };
        let (number, transport) = key.port;
        Some((service, service.port(number, transport)?))
    }
}
