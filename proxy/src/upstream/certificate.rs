//! Owns what a Gateway shows to its backends over TLS.

use std::fmt;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use super::next_id;

/// One version of a certificate that is shown to backends. Listeners name its slot in the snapshot, so
/// that a new version makes no listener anew.
pub struct ClientCertificate {
    /// Differs from version to version, and is never 0.
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

/// What one connection to a backend shows.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    /// The Gateway shows nothing.
    None,
    /// The Gateway has a certificate, and shows it to other backends.
    Withheld,
    /// The Gateway has a certificate, and it is not held: no connection is made.
    Missing,
    /// This.
    Certificate(Arc<ClientCertificate>),
}

impl Credentials {
    /// Tells versions apart; 0 where nothing is shown. `Missing` is another one: a connection that was opened
    /// without a certificate must not be used where one has to be shown.
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::None | Self::Withheld => 0,
            Self::Missing => u64::MAX,
            Self::Certificate(certificate) => certificate.id,
        }
    }
}
