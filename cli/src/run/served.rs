//! Describes the listeners that the proxy was given: where clients reach them, and whether they are in force.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use vestibule_model::condition::{Condition, Reason, Truth};
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectName};
use vestibule_stream::{ResourceKey, ResourceKind};

/// Ports below this one need rights that an ordinary user does not have.
const PRIVILEGED: u16 = 1024;

/// A listener that the proxy is to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) gateway: ObjectName,
    pub(super) listener: ListenerKey,
    pub(super) hostname: HostPattern,
    pub(super) address: SocketAddr,
    pub(super) how: String,
    /// Its Programmed condition.
    pub(super) programmed: Condition,
    /// The port in the listener. `address` has the port that it is mapped to.
    pub(super) port: u16,
    /// The certificates that it terminates TLS with.
    pub(super) certificates: BTreeSet<ResourceKey>,
    /// Translation found that the listener cannot be in force. Its verdict gives the reason.
    pub(super) judged: bool,
    /// The proxy rejected the listener itself, not one of its other resources.
    pub(super) listener_rejected: bool,
    /// The proxy could not bind the port.
    pub(super) port_unavailable: bool,
}

/// Those of the resources that a listener needs that are the certificates with which it terminates TLS. The others are
/// its trust bundles, and the certificate that its Gateway shows to backends.
pub(super) fn own_certificates(
    listener: &Listener,
    needed: &[ResourceKey],
) -> BTreeSet<ResourceKey> {
    let tls = listener.tls.as_ref();
    let tls = tls.filter(|tls| tls.mode == TlsMode::Terminate);
    let references = tls.into_iter().flat_map(|tls| &tls.certificates);
    let certificates = references
        .filter(|reference| reference.is(Kind::Secret))
        .map(|reference| ResourceKey::new(ResourceKind::Certificate, reference.target.to_string()));
    certificates.filter(|key| needed.contains(key)).collect()
}

/// Writes `hostname on address (listener of Gateway, how)`.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hostname {
            HostPattern::Any => f.write_str("every name")?,
            pattern => write!(f, "{pattern}")?,
        }
        write!(
            f,
            " on {} ({} of Gateway {}, {})",
            self.address, self.listener, self.gateway, self.how
        )
    }
}

impl Served {
    pub(super) fn is_in_force(&self) -> bool {
        self.programmed.truth == Truth::True
    }

    /// Returns why the listener is not in force; `None` if it is, or if it is still on its way.
    pub(super) fn rejected(&self) -> Option<String> {
        if self.is_in_force() || self.programmed.reason == Reason::Pending {
            return None;
        }
        let mut why = self.programmed.message.clone();
        if self.port_unavailable {
            why.push_str(&self.port_hint());
        }
        Some(why)
    }

    fn port_hint(&self) -> String {
        let (listener, bound) = (self.port, self.address.port());
        if bound < PRIVILEGED {
            let other = bound + 8000;
            format!(
                "; ports below {PRIVILEGED} need privileges, so map it: --port-map {listener}={other}"
            )
        } else {
            format!(
                "; if another process has port {bound}, stop it (this is tried again), or use \
                 --port-map {listener}=OTHER"
            )
        }
    }

    /// Whether the proxy keeps serving the version `last` while this one is not in force. The proxy keeps the last good
    /// version of a resource that it rejects.
    pub(super) fn keeps(&self, last: &Self) -> bool {
        self.listener_rejected || last.certificates.is_empty() || self.keeps_certificate(last)
    }

    /// Whether the proxy keeps a certificate of the version `last`.
    pub(super) fn keeps_certificate(&self, last: &Self) -> bool {
        !self.listener_rejected && !self.certificates.is_disjoint(&last.certificates)
    }

    /// Whether both have the same text for people.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.hostname, &self.address, &self.how) == (&other.hostname, &other.address, &other.how)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vestibule_crds::decode;
    use vestibule_model::object::Object;

    use super::*;

    fn listener(tls: &Value) -> Listener {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "platform"},
            "spec": {"gatewayClassName": "vestibule", "listeners": [
                {"name": "web", "port": 443, "protocol": "TLS", "tls": tls},
            ]},
        });
        match decode(gateway).into_object() {
            Some((Object::Gateway(gateway), _)) => gateway.listeners[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn trust_and_the_certificate_for_backends_are_no_certificates_of_a_listener() {
        let certificate =
            |name: &str| ResourceKey::new(ResourceKind::Certificate, format!("platform/{name}"));
        let needed = [
            certificate("web"),
            certificate("for-backends"),
            ResourceKey::new(ResourceKind::TrustBundle, "ConfigMap/platform/ca"),
        ];
        let terminate =
            json!({"mode": "Terminate", "certificateRefs": [{"name": "web"}, {"name": "absent"}]});
        let own = own_certificates(&listener(&terminate), &needed);
        assert_eq!(own, BTreeSet::from([certificate("web")]));
        let passthrough = json!({"mode": "Passthrough"});
        assert!(own_certificates(&listener(&passthrough), &needed).is_empty());
    }
}
