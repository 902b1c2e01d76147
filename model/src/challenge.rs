//! ACME challenges: how a CA checks a name, and whether the check may be answered for somebody.
//!
//! A challenge for a name that belongs to a tenant is answered for that one alone. One for any other name is
//! answered only where the listener selected for that name on that port belongs to the requester's namespace, or
//! none matches, or it is the Gateway's own and no other namespace's route is selected for the name on it.
//! Otherwise whoever terminates a name on some port would get a certificate for what somebody else serves under
//! that name on 443.

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
    /// Both, in the order in which [`Reaches`] has them.
    pub const ALL: [Self; 2] = [Self::TlsAlpn01, Self::Http01];

    /// The port that the CA connects to.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::TlsAlpn01 => 443,
            Self::Http01 => 80,
        }
    }

    /// As RFC 8555 writes it, and as resources of the stream are named.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        }
    }

    /// As an issuer's `spec.challenges` has it.
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
    /// The name is the requester's. Or it is no tenant's, and the listener selected for it belongs to the
    /// requester's namespace, or none matches, or it is the Gateway's own and no other namespace's route is selected
    /// for the name on it.
    Ours,
    /// Nothing listens on the port with a protocol that carries the challenge.
    NoListener,
    /// The name is somebody else's, or somebody else is selected there. Says nothing about whom.
    Others,
}

/// Of one name: for TLS-ALPN-01, then for HTTP-01.
///
/// Where TLS-ALPN-01 meets others, HTTP-01 does too: whoever serves a name on 443 is whom visitors take for
/// it, and nobody else gets a certificate by way of port 80.
pub type Reaches = [Reach; 2];

/// Which challenge: a name, a way and, for HTTP-01, a token, on one Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChallengeKey {
    /// The Gateway whose proxies answer.
    pub gateway: ObjectName,
    /// The way.
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

/// What the proxies answer a challenge with, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChallengeAnswer {
    /// The namespace that asked for the certificate.
    pub tenant: Arc<str>,
    /// The answer; of the kind that the key says.
    pub answer: ChallengeProof,
}

/// What the proxies answer a challenge with.
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
    /// What it answers.
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
