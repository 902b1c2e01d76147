//! Backends as translation makes them: their endpoints, the BackendTLSPolicy for them, and the PROXY headers that they
//! expect.

use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Object, Service};
use vestibule_model::protocol::{Transport, TransportPort};
use vestibule_model::send_proxy::HeaderVersion;
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
    let object = object_of(translator, service)?;
    translator.policy_of(object, object.port(number, transport)?)
}

/// Returns the version of the PROXY header that a port of a Service expects, if it expects one.
#[must_use]
pub(crate) fn header_of(
    translator: &Translator,
    service: &ObjectName,
    (number, transport): TransportPort,
) -> Option<HeaderVersion> {
    let object = object_of(translator, service)?;
    object.port(number, transport)?.send_proxy.version()
}

fn object_of<'a>(translator: &'a Translator, service: &ObjectName) -> Option<&'a Service> {
    let key = ObjectKey {
        kind: Kind::Service,
        name: service.clone(),
    };
    match translator.object(&key)?.as_ref() {
        Object::Service(object) => Some(object),
        _ => None,
    }
}
