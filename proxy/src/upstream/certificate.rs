//! Owns the certificate that a Gateway shows to its backends: a place that listeners share and whose
//! content is swapped, so that a new certificate makes no listener anew.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::sign::CertifiedKey;

use super::next_id;

/// A certificate that is shown to backends, held or not.
#[derive(Default)]
pub struct ClientCertificate(ArcSwapOption<Shown>);

/// One version of it.
pub(super) struct Shown {
    /// Differs from version to version, and is never 0.
    pub(super) id: u64,
    pub(super) certified: Arc<CertifiedKey>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.load().is_some() {
            "ClientCertificate"
        } else {
            "ClientCertificate (not held)"
        })
    }
}

impl ClientCertificate {
    pub(crate) fn set(&self, certified: Option<Arc<CertifiedKey>>) {
        self.0.store(certified.map(|certified| {
            Arc::new(Shown {
                id: next_id(),
                certified,
            })
        }));
    }

    pub(super) fn current(&self) -> Option<Arc<Shown>> {
        self.0.load_full()
    }
}
