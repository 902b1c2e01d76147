//! Conditions, their reasons, and statuses as values. The crate `crds` renders them to the wire.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::key::{ListenerKey, ObjectName};
use crate::reference::ParentRef;
use crate::small::SmallSet;

macro_rules! named {
    (@text $variant:ident) => { stringify!($variant) };
    (@text $variant:ident $text:literal) => { $text };
    ($(#[$meta:meta])* $name:ident {
        $($(#[$vmeta:meta])* $variant:ident $(= $text:literal)?),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The text the API uses.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => named!(@text $variant $($text)?)),+ }
            }

            /// The value the API's text stands for.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

named! {
    /// Types of conditions that Vestibule writes: upstream's, and ours beside them.
    ConditionType {
        /// The object is semantically valid and will have effect.
        Accepted,
        /// Every reference resolved.
        ResolvedRefs,
        /// The configuration is in force in every ready proxy.
        Programmed,
        /// The listener conflicts with another one (negative polarity).
        Conflicted,
        /// TLS hostnames of this port overlap (negative polarity, GEP-3567).
        OverlappingTLSConfig,
        /// Some rules of the route are not valid and take no effect (negative polarity).
        PartiallyInvalid,
        /// Clients without a valid certificate are let in (negative polarity, GEP-91).
        InsecureFrontendValidationMode,
        /// On listeners for which a certificate is requested: it is issued, and will be renewed.
        CertificateIssued = "vestibule.dev/CertificateIssued",
        /// On routes, for each parent that accepts them: the last change is in force in every ready proxy.
        RouteProgrammed = "vestibule.dev/Programmed",
        /// On issuers: the CA knows the account.
        Ready,
    }
}

named! {
    /// Reasons of conditions, findings and rejects; upstream's wherever one exists.
    Reason {
        // Positive.
        /// Positive reason of Accepted.
        Accepted,
        /// Positive reason of ResolvedRefs.
        ResolvedRefs,
        /// Positive reason of Programmed.
        Programmed,
        /// Not known yet.
        Pending,
        // Gateway, ListenerSet and their listeners.
        /// Some, or all, listeners are not valid.
        ListenersNotValid,
        /// The parent does not allow this object.
        NotAllowed,
        /// The parent is not accepted.
        ParentNotAccepted,
        /// The parent is not programmed.
        ParentNotProgrammed,
        /// The configuration is not valid.
        Invalid,
        /// Parameters do not resolve.
        InvalidParameters,
        /// Address type not supported.
        UnsupportedAddress,
        /// Address not usable.
        AddressNotUsable,
        /// Nobody assigned an address.
        AddressNotAssigned,
        /// Port cannot be used.
        PortUnavailable,
        /// Protocol not supported.
        UnsupportedProtocol,
        /// Over a limit on listeners.
        TooManyListeners,
        /// A value or field that this release does not support.
        UnsupportedValue,
        /// Another listener has the hostname on that port.
        HostnameConflict,
        /// Another listener speaks another protocol on that port.
        ProtocolConflict,
        /// Both kinds of conflict at once.
        ListenerConflict,
        /// No conflict.
        NoConflicts,
        /// Hostnames of TLS listeners overlap.
        OverlappingHostnames,
        /// A certificate reference does not lead to a usable certificate.
        InvalidCertificateRef,
        /// HTTPS without a usable TLS configuration.
        InvalidTLSConfig,
        /// A kind in allowedRoutes that the protocol does not take.
        InvalidRouteKinds,
        /// No ReferenceGrant permits the reference.
        RefNotPermitted,
        // TLS towards clients and backends.
        /// None of the CA certificates can be used.
        NoValidCACertificate,
        /// A reference does not lead to CA certificates.
        InvalidCACertificateRef,
        /// The kind of a reference to CA certificates is not supported.
        InvalidCACertificateKind,
        /// The reference to the Gateway's client certificate does not lead to a usable one.
        InvalidClientCertificateRef,
        /// A reference of some listener does not resolve.
        ListenersNotResolved,
        /// Clients without a valid certificate are let in.
        ConfigurationChanged,
        /// Another policy with precedence applies to the target.
        Conflicted,
        /// The target of a policy does not exist.
        TargetNotFound,
        // Routes.
        /// No listener of the parent allows routes of this kind and namespace.
        NotAllowedByListeners,
        /// Filters that cannot be combined in one rule.
        IncompatibleFilters,
        /// No hostname in common with a listener.
        NoMatchingListenerHostname,
        /// No such listener in the parent.
        NoMatchingParent,
        /// The backend does not exist.
        BackendNotFound,
        /// The kind of a reference is not supported.
        InvalidKind,
        // Ours.
        /// A text that is not a valid hostname.
        InvalidHostname,
        /// A wildcard hostname in a TLSRoute, where the admission mode refuses it.
        WildcardHostname,
        /// A hostname of one label, which no public name is.
        SingleLabelHostname,
        /// A wildcard directly below a suffix under which names are given out to anybody.
        PublicSuffixWildcard,
        /// The namespace was not granted the hostname on this Gateway.
        HostnameNotOwned,
        /// More than the namespace may have.
        QuotaExceeded,
        /// The namespace was not granted the issuer.
        IssuerNotAllowed,
        /// Several TCPRoutes or UDPRoutes are attached to a listener, and the oldest gets all of its traffic.
        ListenerShared,
        /// The Gateway's own listener without names, to which the TCPRoute or UDPRoute is attached, belongs to another
        /// namespace.
        PortConflict,
        /// No backend may have these endpoints.
        EndpointNotAllowed,
        /// The BackendTLSPolicy for a backend cannot be applied, so the proxies do not connect to the backend.
        InvalidBackendTLSPolicy,
        /// The object cannot be decoded.
        Unreadable,
        /// A field that this release does not know.
        UnknownField,
        /// Issuer annotations contradict one another.
        ContradictingIssuers,
        /// Positive reason of `vestibule.dev/CertificateIssued`.
        Issued,
        /// Positive reason of Ready of an issuer.
        Registered,
        /// No certificate has needed the issuer yet, so its account is not registered.
        NotRegistered,
        /// The issuer leads to an address that the operator does not connect to for tenants.
        AddressNotAllowed,
        /// An annotation with a value that is not valid.
        InvalidAnnotation,
        /// No certificate can be issued for the listener: its hostname is a wildcard or absent, or its Secret is in
        /// another namespace.
        NotIssuable,
        /// Nothing listens on the port that the CA connects to.
        NoChallengeListener,
        /// Another namespace serves the name on the port that the CA connects to.
        ServedByOthers,
        /// Another object asks for a different certificate in the same Secret.
        RequestsDiffer,
        /// Vestibule did not make the Secret, so it does not write it.
        SecretNotOurs,
        /// The Certificate of that name belongs to another controller.
        CertificateNotOurs,
        /// The issuer does not exist.
        IssuerNotFound,
        /// The issuer cannot be used, or not yet.
        IssuerNotReady,
        /// The engine that the annotations choose is not available.
        EngineNotAvailable,
        /// A limit on orders is reached. The order is made later.
        OverBudget,
        /// The CA refused, or could not check the name.
        OrderFailed,
        /// The CA cannot be reached, or does not answer as it should.
        Unreachable,
        /// The renewal fails. The present certificate is still served.
        RenewalFailed,
        /// The certificate has expired. It is still served, because there is no other.
        Expired,
        /// No certificate of the listener is for its hostname.
        CertificateNameMismatch,
        /// A value outside its range.
        InvalidValue,
        /// The object exists more than once.
        Duplicate,
        /// The object has no effect on Vestibule.
        Ignored,
    }
}

impl Reason {
    /// The reason to write in a condition. If upstream has a more general reason for the same thing, that one is
    /// written, and the message keeps the detail.
    #[must_use]
    pub fn in_condition(self) -> Self {
        match self {
            Self::InvalidHostname
            | Self::WildcardHostname
            | Self::Unreadable
            | Self::UnknownField
            | Self::InvalidValue
            | Self::Duplicate => Self::UnsupportedValue,
            other => other,
        }
    }
}

/// Value of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Truth {
    /// "True"
    True,
    /// "False"
    False,
    /// "Unknown"
    Unknown,
}

impl Truth {
    /// The text the API uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition. The writer adds times and the observed generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: ConditionType,
    /// Its value.
    pub truth: Truth,
    /// Why, as one word for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl Condition {
    /// A condition with status True.
    pub fn holds(kind: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            kind,
            truth: Truth::True,
            reason,
            message: message.into(),
        }
    }

    /// A condition with status False.
    pub fn fails(kind: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            truth: Truth::False,
            ..Self::holds(kind, reason, message)
        }
    }
}

/// Something that has to happen before the proxies are given an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// A controller has to look at the object.
    Controller,
    /// A Secret or `ConfigMap` has to be read. The text says which one.
    Source(String),
    /// The claim on a hostname or port has to be recorded.
    Claim,
    /// An internal port has to be allocated.
    InternalPort,
}

impl Wait {
    /// The message of a condition that waits for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Controller => "Waiting for controller",
            Self::Source(text) => text,
            Self::Claim => {
                "Waiting for its hostname or port to be recorded as held by its namespace"
            }
            Self::InternalPort => "Waiting for an internal port",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The fact that the value of the Programmed condition depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgrammedBasis {
    /// It is False: the proxies are given nothing of the object, for this reason, and time alone does not change that.
    NotPublished(Reason, String),
    /// It is False with reason Pending: the proxies are given nothing of the object until this has happened.
    NotYet(Wait),
    /// It becomes True when every ready proxy has acknowledged the last change of these listeners. If a part of the
    /// object is not valid, the message says so.
    WhenAcknowledged(SmallSet<ListenerKey>),
}

impl ProgrammedBasis {
    /// The condition of an object of which the proxies are given nothing; `None` if the proxies decide.
    #[must_use]
    pub fn unpublished(&self) -> Option<Condition> {
        let (reason, message) = match self {
            Self::NotPublished(reason, message) => (*reason, message.clone()),
            Self::NotYet(wait) => (Reason::Pending, wait.to_string()),
            Self::WhenAcknowledged(_) => return None,
        };
        Some(Condition::fails(ConditionType::Programmed, reason, message))
    }
}

/// Status of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name in the object.
    pub name: Arc<str>,
    /// Route kinds it takes, as (group, kind).
    pub supported_kinds: Vec<(&'static str, &'static str)>,
    /// Routes with Accepted=True for it.
    pub attached_routes: usize,
    /// All conditions but Programmed.
    pub conditions: Vec<Condition>,
    /// The fact that its Programmed depends on.
    pub programmed: ProgrammedBasis,
}

/// Status of a Gateway or ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenersStatus {
    /// All conditions of the object but Programmed.
    pub conditions: Vec<Condition>,
    /// The fact that the object's Programmed depends on.
    pub programmed: ProgrammedBasis,
    /// One per listener of the object, in spec order.
    pub listeners: Vec<ListenerStatus>,
    /// Number of attached ListenerSets; for Gateways only.
    pub attached_listener_sets: usize,
    /// The addresses of a Gateway; `None` leaves those in the status as they are.
    pub addresses: Option<Vec<Address>>,
}

/// Status of an ACME issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerStatus {
    /// Ready.
    pub conditions: Vec<Condition>,
    /// URL of the account at the CA; `None` leaves the one in the status as it is.
    pub account_url: Option<Arc<str>>,
    /// The last error about the account, from the CA or from the connection to it; `None` if there is no open error.
    pub last_error: Option<IssuerError>,
}

/// Status of a HostnameGrant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantStatus {
    /// Accepted and ResolvedRefs.
    pub conditions: Vec<Condition>,
}

/// An error of a CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerError {
    /// Type of the CA's problem document, if it sent one.
    pub kind: Option<Arc<str>>,
    /// The message.
    pub message: Arc<str>,
    /// When it happened, in seconds since the Unix epoch.
    pub at: i64,
}

/// Status of a GatewayClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStatus {
    /// Accepted.
    pub conditions: Vec<Condition>,
    /// Names of the Gateway API features that every Gateway of the class supports, sorted. The list is empty if the
    /// class is not accepted.
    pub supported_features: Vec<&'static str>,
}

/// Status of a route: one entry per parent reference that leads to a Gateway of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteStatus {
    /// Entries in the order of the parent references.
    pub parents: Vec<RouteParentStatus>,
}

/// A route's status towards one parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteParentStatus {
    /// The reference as the route declares it.
    pub parent: ParentRef,
    /// Accepted, ResolvedRefs and, if only some rules are valid, `PartiallyInvalid`.
    pub conditions: Vec<Condition>,
}

/// Status of a policy: one entry for each of our Gateways that it affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Entries in the order of the Gateways' names.
    pub ancestors: Vec<PolicyAncestor>,
}

/// A policy's status towards one Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyAncestor {
    /// The Gateway.
    pub gateway: ObjectName,
    /// Accepted and ResolvedRefs.
    pub conditions: Vec<Condition>,
}

/// An address where a Gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name, as some load balancers have.
    Hostname(Arc<str>),
}
