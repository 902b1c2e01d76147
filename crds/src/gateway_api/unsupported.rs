//! Findings about what this release can read but does not support, as far as the object alone says so. Admission and
//! status share them.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::Kind;
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::Reference;

/// The refusal of a listener whose protocol this release does not serve.
#[must_use]
pub fn unsupported_protocol(listener: &Listener) -> Option<Finding> {
    match &listener.protocol {
        Protocol::Http | Protocol::Https | Protocol::Tls | Protocol::Tcp | Protocol::Udp => None,
        Protocol::Other(protocol) => Some(Finding::refused(
            Reason::UnsupportedProtocol,
            format!("{}.protocol", listener.field),
            format!("this release does not serve {:?}", &**protocol),
            "use HTTP, HTTPS, TLS, TCP or UDP",
        )),
    }
}

/// The refusal of a `parametersRef` that leads to a kind other than GatewayParameters.
#[must_use]
pub fn unsupported_parameters(reference: &Reference) -> Option<Finding> {
    if reference.is(Kind::GatewayParameters) {
        return None;
    }
    Some(Finding::refused(
        Reason::InvalidParameters,
        &reference.field,
        format!(
            "{:?} of group {:?} is not supported",
            reference.kind, reference.group
        ),
        "refer to GatewayParameters of group vestibule.dev, or remove it",
    ))
}
