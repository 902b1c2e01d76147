//! GatewayClass, Gateway, ListenerSet, and their listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::certificate::CertificateAnnotations;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::issuer::IssuerAnnotations;
use crate::key::{ListenerKey, ObjectName, ParentKey};
use crate::meta::Meta;
use crate::protocol::{Port, Protocol};
use crate::reference::Reference;
use crate::selector::{Labels, NamespaceScope};
use crate::tls_policy::GatewayTls;

/// GatewayClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayClass {
    /// Name.
    pub name: Arc<str>,
    /// Metadata.
    pub meta: Meta,
    /// `spec.controllerName`.
    pub controller: Arc<str>,
    /// `spec.parametersRef`.
    pub parameters: Option<Reference>,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

/// Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.gatewayClassName`.
    pub class: Arc<str>,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// `spec.allowedListeners`; absent is `None`.
    pub allowed_listeners: NamespaceScope,
    /// Those of `spec.addresses` that can be requested. Findings name the others.
    pub addresses: Vec<AddressRequest>,
    /// `spec.infrastructure`.
    pub infrastructure: Box<Infrastructure>,
    /// `spec.tls`.
    pub tls: Box<GatewayTls>,
    /// Issuer annotations.
    pub issuers: IssuerAnnotations,
    /// Annotations about certificates.
    pub certificates: CertificateAnnotations,
    /// The findings outside the listeners.
    pub findings: Vec<Finding>,
}

/// An entry of `spec.addresses` of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRequest {
    /// Path in the object, such as `spec.addresses[0]`.
    pub field: String,
    /// The address; `None` requests any address.
    pub ip: Option<IpAddr>,
}

/// `spec.infrastructure` of a Gateway: labels, annotations and parameters for the objects that are made for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infrastructure {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `parametersRef`.
    pub parameters: Option<Reference>,
}

/// ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSet {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// The Gateway that it extends; `None` if `parentRef` names another kind.
    pub gateway: Option<ObjectName>,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// Issuer annotations.
    pub issuers: IssuerAnnotations,
    /// Annotations about certificates.
    pub certificates: CertificateAnnotations,
    /// The findings outside the listeners.
    pub findings: Vec<Finding>,
}

/// One listener of a Gateway or ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Name, unique within the object.
    pub name: Arc<str>,
    /// Path in the object, such as `spec.listeners[0]`.
    pub field: String,
    /// Hostname. It is [`HostPattern::Any`] if it is absent, empty, or not valid (then a finding says so).
    pub hostname: HostPattern,
    /// Port; `None` if the number is not valid (then a finding says so).
    pub port: Option<Port>,
    /// Protocol.
    pub protocol: Protocol,
    /// TLS settings; `None` if they are absent, or if the protocol has no TLS.
    pub tls: Option<ListenerTls>,
    /// `allowedRoutes.namespaces`. If absent, it is `Same`, which means the namespace of the object that declares the
    /// listener.
    pub allowed_namespaces: NamespaceScope,
    /// `allowedRoutes.kinds` as (group, kind). If empty, the listener takes every kind that its protocol takes.
    pub allowed_kinds: Vec<(Arc<str>, Arc<str>)>,
    /// The findings about it. If one of them refuses, the listener makes no claim.
    pub findings: Vec<Finding>,
    /// Its key, once somebody has asked for it.
    pub shared_key: SharedKey,
}

/// The key of a listener, made when somebody first asks for it. A dozen indexes keep the key, and so they all share it.
/// The name and the parent say what the key is, so it plays no part in comparisons of listeners.
#[derive(Debug, Clone, Default)]
pub struct SharedKey(OnceLock<ListenerKey>);

impl PartialEq for SharedKey {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SharedKey {}

/// TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// Passthrough or Terminate.
    pub mode: TlsMode,
    /// `certificateRefs`, in order. With Passthrough they are ignored.
    pub certificates: Vec<Reference>,
}

/// Most bytes that the names of the certificates of one listener have together, each with its namespace.
pub const MAX_CERTIFICATE_NAMES_BYTES: usize = 4096;

impl ListenerTls {
    /// Why the listener is refused, if the names of its certificates are too long. They are in its configuration, once each.
    /// References and names have limits, but 64 references with the longest names have 20 KB, for each of the listeners.
    #[must_use]
    pub fn names_too_long(&self, field: &str) -> Option<Finding> {
        if self.mode == TlsMode::Passthrough {
            return None;
        }
        let names: BTreeSet<&ObjectName> = self.certificates.iter().map(|to| &to.target).collect();
        let bytes = |name: &ObjectName| name.namespace.len() + 1 + name.name.len();
        let bytes: usize = names.into_iter().map(bytes).sum();
        (bytes > MAX_CERTIFICATE_NAMES_BYTES).then(|| {
            Finding::refused(
                Reason::InvalidValue,
                format!("{field}.certificateRefs"),
                format!(
                    "the names of these Secrets have {bytes} bytes with their namespaces, and at most \
                     {MAX_CERTIFICATE_NAMES_BYTES} are allowed for one listener"
                ),
                "use one certificate with several names, several listeners, or shorter names of Secrets",
            )
        })
    }
}

/// The treatment of TLS on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsMode {
    /// The proxy copies the encrypted bytes without change.
    Passthrough,
    /// The proxy does the handshake and decrypts.
    Terminate,
}

impl Gateway {
    /// Its key as a parent.
    #[must_use]
    pub fn parent_key(&self) -> ParentKey {
        ParentKey::Gateway(self.name.clone())
    }
}

impl ListenerSet {
    /// Its key as a parent.
    #[must_use]
    pub fn parent_key(&self) -> ParentKey {
        ParentKey::ListenerSet(self.name.clone())
    }
}

impl Listener {
    /// Whether a finding of its own refuses it, so that it makes no claim.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.findings.iter().any(Finding::refuses)
    }

    /// Its key within `parent`.
    #[must_use]
    pub fn key(&self, parent: &ParentKey) -> ListenerKey {
        let new = || ListenerKey::new(parent.clone(), self.name.clone());
        let shared = self.shared_key.0.get_or_init(new);
        if shared.parent == *parent && shared.listener == self.name {
            shared.clone()
        } else {
            // This is a copy of the listener that somebody has put into another object, or has renamed.
            new()
        }
    }
}
