//! The certificate that this replica serves with. It comes from the operator's Secret. While that Secret has no usable
//! certificate, the replica keeps the last good one.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{info, warn};

use super::material::certified_key;
use super::store::pair_of;

/// The certificate in force. Clones share it.
#[derive(Clone)]
pub struct CurrentCertificate(watch::Receiver<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificates")
            .field(&self.is_present())
            .finish()
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

impl CurrentCertificate {
    /// Whether there is one. Without one every handshake fails.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// For a server's settings.
    #[must_use]
    pub fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::new(self.clone())
    }

    /// Waits until there is one; false if there never will be.
    pub async fn present(&mut self) -> bool {
        self.0.wait_for(Option::is_some).await.is_ok()
    }
}

/// Where the certificate is put.
pub(crate) struct CertificateSource(watch::Sender<Option<Arc<CertifiedKey>>>);

impl CertificateSource {
    pub(crate) fn new() -> (Self, CurrentCertificate) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), CurrentCertificate(receiver))
    }

    /// Takes what a Secret holds.
    pub(crate) fn take(&self, secret: &Secret) {
        let (certificate, key) = pair_of(secret);
        match certified_key(certificate, key) {
            Ok(new) => {
                let changed = self.0.send_if_modified(|present| {
                    let same = present.as_ref().is_some_and(|held| held.cert == new.cert);
                    if !same {
                        *present = Some(Arc::new(new));
                    }
                    !same
                });
                if changed {
                    info!("the configuration stream has a new certificate");
                }
            }
            Err(why) => warn!(
                %why,
                "the Secret with the configuration stream's certificate cannot be used; the last \
                 good certificate stays in use, if there was one"
            ),
        }
    }
}
