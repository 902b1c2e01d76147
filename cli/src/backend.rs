//! Backends as translation makes them: their endpoints, and the BackendTLSPolicy that keeps the proxies from them.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
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

/// A BackendTLSPolicy that cannot be applied. The proxies do not connect to its targets at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidPolicy {
    /// The policy.
    pub(crate) key: ObjectKey,
    /// The finding that refuses it.
    pub(crate) finding: Finding,
}

impl InvalidPolicy {
    /// Returns the problem as a clause, with the policy and the field.
    #[must_use]
    pub(crate) fn message(&self) -> String {
        let Finding { field, message, .. } = &self.finding;
        let key = &self.key;
        match field.as_str() {
            "" => format!("{key} cannot be applied: {message}"),
            field => format!("{key} cannot be applied: {field}: {message}"),
        }
    }
}

/// Returns the policy that keeps the proxies from a port of a Service, where `backend` is what they get for that port.
#[must_use]
pub(crate) fn invalid_policy(
    translator: &Translator,
    service: &ObjectName,
    port: TransportPort,
    backend: &proto::Backend,
) -> Option<InvalidPolicy> {
    backend.tls.as_ref().filter(|tls| tls.invalid)?;
    let Some(policy) = policy_of(translator, service, port) else {
        return unreadable_policy(translator, service);
    };
    let key = ObjectKey {
        kind: Kind::BackendTlsPolicy,
        name: policy.name.clone(),
    };
    // These are about a single target, and do not refuse the policy.
    let of_target = |reason| matches!(reason, Reason::Conflicted | Reason::TargetNotFound);
    let findings = translator.findings().get(&key)?;
    let finding = findings
        .iter()
        .find(|finding| finding.refuses() && !of_target(finding.reason))?
        .clone();
    Some(InvalidPolicy { key, finding })
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

/// Returns a policy in the namespace of a Service that cannot be read. Any Service there may be its target.
fn unreadable_policy(translator: &Translator, service: &ObjectName) -> Option<InvalidPolicy> {
    translator
        .objects()
        .find_map(|(key, object)| match object.as_ref() {
            Object::Unreadable(_, _, finding)
                if key.kind == Kind::BackendTlsPolicy
                    && key.name.namespace == service.namespace =>
            {
                Some(InvalidPolicy {
                    key: key.clone(),
                    finding: finding.clone(),
                })
            }
            _ => None,
        })
}
