//! Backends as translation makes them: their endpoints, and the BackendTLSPolicy for them.

use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Transport, TransportPort};
use vestibule_model::tls_policy::BackendTlsPolicy;
use vestibule_operator::translate::Translator;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

/// Returns the backend that the proxies get for a port of a Service, if a route in force uses it.
#[must_use]
pub(crate) fn translated(
    translator: &Translator,
    service: &ObjectName,
    (port, transport): TransportPort,
) -> Option<proto::Backend> {
    let suffix = match transport {
        Transport::Tcp => "",
        Transport::Udp => "/udp",
    };
    let key = ResourceKey::new(ResourceKind::Backend, format!("{service}:{port}{suffix}"));
    match translator.resources().get(&key)?.decode()? {
        resource::Resource::Backend(backend) => Some(backend),
        _ => None,
    }
}

/// Returns the policy that holds for a port of a Service.
#[must_use]
pub(crate) fn policy_of<'a>(
    translator: &'a Translator,
    service: &ObjectName,
    (number, transport): TransportPort,
) -> Option<&'a BackendTlsPolicy> {
    let key = ObjectKey {
        kind: Kind::Service,
        name: service.clone(),
    };
    let Object::Service(object) = translator.object(&key)?.as_ref() else {
        return None;
    };
    translator.policy_of(object, object.port(number, transport)?)
}
