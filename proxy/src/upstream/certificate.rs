//! Owns the client certificate that a Gateway shows to its backends over TLS.

use std::fmt;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use super::next_id;

/// One version of a certificate that is shown to backends. Listeners refer to its slot in the snapshot, so a new
/// version does not change any listener.
pub struct ClientCertificate {
    /// Identifies the version. It is never 0.
    id: u64,
    pub(super) certified: Arc<CertifiedKey>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl ClientCertificate {
    pub(crate) fn new(certified: Arc<CertifiedKey>) -> Self {
        Self {
            id: next_id(),
            certified,
        }
    }
}

/// The credentials that one connection shows to a backend.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    /// The Gateway shows nothing.
    None,
    /// The Gateway has a certificate, and shows it only to other backends.
    Withheld,
    /// The Gateway should have a certificate, and it is not held. No connection is made.
    Missing,
    /// This certificate.
    Certificate(Arc<ClientCertificate>),
}

impl Credentials {
    /// Identifies the version; 0 if nothing is shown. `Missing` has a number of its own, because a connection that was
    /// opened without a certificate must not be used when one has to be shown.
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::None | Self::Withheld => 0,
            Self::Missing => u64::MAX,
            Self::Certificate(certificate) => certificate.id,
        }
    }
}
