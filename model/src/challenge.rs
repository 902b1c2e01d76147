//! ACME challenges: how a CA checks a name, and for which namespace the proxies may answer the check.
//!
//! If a name belongs to a tenant, its challenges are answered for that tenant only. For any other name, look at the
//! listener that is selected for the name on the port of the challenge. The challenge is answered in three cases:
//!
//! - The listener belongs to the namespace that requests the certificate.
//! - No listener matches.
//! - The listener is the Gateway's own, and no route of another namespace is selected for the name on it.
//!
//! Without this rule, a tenant who terminates a name on some other port would get a certificate for what another
//! tenant serves under that name on port 443.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::hostname::Hostname;
use crate::key::ObjectName;

/// How a CA checks a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChallengeType {
    /// `tls-alpn-01` (RFC 8737): a handshake with the name on port 443.
    TlsAlpn01,
    /// `http-01` (RFC 8555, 8.3): a request for a token of the name on port 80.
    Http01,
}

impl ChallengeType {
    /// Both types, in the order in which [`Reaches`] has them.
    pub const ALL: [Self; 2] = [Self::TlsAlpn01, Self::Http01];

    /// The port that the CA connects to.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::TlsAlpn01 => 443,
            Self::Http01 => 80,
        }
    }

    /// The identifier of the challenge type in RFC 8555. Resources of the configuration stream are named with it too.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        }
    }

    /// The word for it in `spec.challenges` of an issuer.
    #[must_use]
    pub fn in_spec(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "TLS-ALPN-01",
            Self::Http01 => "HTTP-01",
        }
    }

    /// Reads what [`Self::in_spec`] writes.
    #[must_use]
    pub fn from_spec(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.in_spec() == text)
    }
}

impl fmt::Display for ChallengeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.in_spec())
    }
}

/// Whether the challenge for a name may be answered on its port of a Gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reach {
    /// The challenge may be answered; the documentation of the module has the rule.
    Ours,
    /// Nothing listens on the port with a protocol that carries the challenge.
    NoListener,
    /// The name belongs to another namespace, or another namespace is selected there. It does not say which one.
    Others,
}

/// The reach of one name, first for TLS-ALPN-01 and then for HTTP-01.
///
/// If it is [`Reach::Others`] for TLS-ALPN-01, it is so for HTTP-01 as well. Visitors take the namespace that serves a
/// name on port 443 for its owner, so no other namespace can get a certificate for the name through port 80.
pub type Reaches = [Reach; 2];

/// Identifies a challenge on one Gateway: a type, a name and, for HTTP-01, a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChallengeKey {
    /// The Gateway whose proxies answer.
    pub gateway: ObjectName,
    /// The type of the challenge.
    pub kind: ChallengeType,
    /// The name.
    pub hostname: Hostname,
    /// The token of HTTP-01; empty for TLS-ALPN-01.
    pub token: Arc<str>,
}

/// `<namespace>/<gateway>/tls-alpn-01/<hostname>` or `<namespace>/<gateway>/http-01/<hostname>/<token>`:
/// its name on the configuration stream.
impl fmt::Display for ChallengeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str();
        write!(f, "{}/{kind}/{}", self.gateway, self.hostname)?;
        match self.kind {
            ChallengeType::TlsAlpn01 => Ok(()),
            ChallengeType::Http01 => write!(f, "/{}", self.token),
        }
    }
}

/// The answer to a challenge, with the namespace that it is given for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChallengeAnswer {
    /// The namespace that asked for the certificate.
    pub tenant: Arc<str>,
    /// The answer. Its type is the one in the key.
    pub answer: ChallengeProof,
}

/// The answer of the proxies to a challenge.
#[derive(Clone, PartialEq, Eq)]
pub enum ChallengeProof {
    /// A self-signed certificate that carries the key authorization.
    TlsAlpn01 {
        /// DER.
        certificate: Vec<u8>,
        /// Its key, DER.
        private_key: Zeroizing<Vec<u8>>,
    },
    /// The key authorization itself.
    Http01 {
        /// Token and thumbprint of the account's key.
        key_authorization: Arc<str>,
    },
}

impl ChallengeProof {
    /// The type of challenge that it answers.
    #[must_use]
    pub fn kind(&self) -> ChallengeType {
        match self {
            Self::TlsAlpn01 { .. } => ChallengeType::TlsAlpn01,
            Self::Http01 { .. } => ChallengeType::Http01,
        }
    }
}

impl fmt::Debug for ChallengeProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Answer").field(&self.kind()).finish()
    }
}
