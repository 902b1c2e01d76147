//! Why a resource is rejected.

use vestibule_model::hostname::HostnameError;

use crate::bind::BindKey;
use crate::listener::Layer;

/// Why a resource was rejected.
#[derive(Debug, thiserror::Error)]
pub enum RejectReason {
    /// A kind, protocol or mode that this release does not know.
    #[error("this release of the proxy does not know what {0} carries")]
    UnknownResource(&'static str),
    /// The name does not have the form of its kind.
    #[error("the name is not of the form {0}")]
    InvalidName(&'static str),
    /// A field that must be set is empty.
    #[error("{0} is empty")]
    MissingField(&'static str),
    /// A hostname or pattern.
    #[error("hostname {0:?} {1}")]
    InvalidHostname(String, HostnameError),
    /// A hostname on a listener whose connections carry no names.
    #[error("a listener of TCP or UDP has no hostname, and this one has {0:?}")]
    NamedBytes(String),
    /// The bind address or port.
    #[error("{0}")]
    InvalidBind(String),
    /// The resource cannot use the transport of its bind.
    #[error("only UDP listeners use UDP, and they use nothing else")]
    UnsupportedTransport,
    /// An endpoint's address or port.
    #[error("{0}")]
    InvalidEndpoint(String),
    /// The certificate chain does not parse.
    #[error("certificate {0} of the chain: {1}")]
    InvalidCertificate(usize, String),
    /// The private key does not parse, or is of a kind that is not supported.
    #[error("the private key is malformed or of an unsupported kind")]
    InvalidKey,
    /// The private key belongs to another certificate.
    #[error("the private key does not fit the certificate")]
    KeyMismatch,
    /// The certificate has expired, while the one that is held is still valid.
    #[error("the certificate was valid until {0}, and the one held is still valid")]
    Expired(String),
    /// A challenge that cannot be the answer to a CA.
    #[error("the challenge cannot be answered: {0}")]
    InvalidChallenge(&'static str),
    /// The port of a challenge has no listener. Challenges do not open ports.
    #[error("no listener of the Gateway speaks {1} on {0}, where a CA would ask")]
    NoListener(BindKey, Layer),
    /// A certificate of a trust bundle does not parse.
    #[error("certificate {0} of the bundle: {1}")]
    InvalidTrustBundle(usize, String),
    /// The resource is larger than its limit.
    #[error("{0} is larger than the limit")]
    TooLarge(&'static str),
    /// A match of an HTTP route that no request can fulfil.
    #[error("{0} in a match is malformed")]
    InvalidMatch(&'static str),
    /// Paths of a hostname to which a route cannot be restricted.
    #[error("paths that are shared {0}")]
    InvalidPaths(&'static str),
    /// A regular expression does not compile, or not within bounds.
    #[error("a regular expression {0}")]
    InvalidRegex(String),
    /// A filter that asks for something impossible.
    #[error("a filter cannot be in force: {0}")]
    InvalidFilter(&'static str),
    /// A block of trusted addresses that is not valid.
    #[error("{0:?} is no address and no block of addresses")]
    InvalidBlock(String),
    /// Another listener has the same place: the same bind and hostname.
    #[error("another listener has this hostname on {0}")]
    HostnameConflict(BindKey),
    /// The bind already speaks another layer. Connections to one bind must all begin in the same way.
    #[error("other listeners on {0} speak {1}")]
    ProtocolConflict(BindKey, Layer),
    /// The socket could not be bound.
    #[error("cannot listen on {0}: {1}")]
    PortUnavailable(BindKey, std::io::Error),
}

impl RejectReason {
    /// Metric label and condition reason. It is one of a fixed set of words.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownResource(_) => vestibule_stream::UNKNOWN_RESOURCE,
            Self::InvalidName(_) => "InvalidName",
            Self::MissingField(_) => "MissingField",
            Self::InvalidHostname(..) | Self::NamedBytes(_) => "InvalidHostname",
            Self::InvalidBind(_) => "InvalidBind",
            Self::UnsupportedTransport => "UnsupportedTransport",
            Self::InvalidEndpoint(_) => "InvalidEndpoint",
            Self::InvalidCertificate(..) => "InvalidCertificate",
            Self::InvalidKey => "InvalidKey",
            Self::KeyMismatch => "KeyMismatch",
            Self::Expired(_) => "Expired",
            Self::InvalidChallenge(_) => "InvalidChallenge",
            Self::NoListener(..) => "NoListener",
            Self::InvalidTrustBundle(..) => "InvalidTrustBundle",
            Self::TooLarge(_) => "TooLarge",
            Self::InvalidMatch(_) => "InvalidMatch",
            Self::InvalidPaths(_) => "InvalidPaths",
            Self::InvalidRegex(_) => "InvalidRegex",
            Self::InvalidFilter(_) => "InvalidFilter",
            Self::InvalidBlock(_) => "InvalidBlock",
            Self::HostnameConflict(_) => "HostnameConflict",
            Self::ProtocolConflict(..) => "ProtocolConflict",
            Self::PortUnavailable(..) => "PortUnavailable",
        }
    }
}

/// Every [`RejectReason::reason`].
pub(super) const REASONS: [&str; 22] = [
    vestibule_stream::UNKNOWN_RESOURCE,
    "InvalidName",
    "MissingField",
    "InvalidHostname",
    "InvalidBind",
    "UnsupportedTransport",
    "InvalidEndpoint",
    "InvalidCertificate",
    "InvalidKey",
    "KeyMismatch",
    "Expired",
    "InvalidChallenge",
    "NoListener",
    "InvalidTrustBundle",
    "TooLarge",
    "InvalidMatch",
    "InvalidRegex",
    "InvalidFilter",
    "InvalidBlock",
    "HostnameConflict",
    "ProtocolConflict",
    "PortUnavailable",
];
