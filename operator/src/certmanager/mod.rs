//! The cert-manager engine, pure: which `Certificate` each request needs, which writes follow, and the progress of each.
//!
//! The Certificates are those that cert-manager itself makes from the annotations of a Gateway or ListenerSet (its
//! `certificate-shim`), with two differences. The owner reference is not a controller's, because the shim takes a
//! Certificate that the object controls for its own, and rewrites or deletes it. And only requested Certificates are
//! made, so there is none for a listener that is not allowed, in conflict or somebody else's.

mod desired;
mod plan;
mod present;
mod progress;

use vestibule_model::key::Kind;

pub use desired::{Certificate, Foreign, desired};
pub use plan::{Availability, CertificateAction, CertificateVerdict, judge, stale};
pub use present::{
    CertificateAttempt, CertificateAttempts, PresentCertificate, PresentCertificates,
};
pub use progress::{CertificateProgress, Condition};

/// Annotation of the Certificates that Vestibule makes: `<namespace>/<name>` of the release. Labels are the
/// owner's, as the shim's are.
pub const MANAGED_BY: &str = "vestibule.dev/managed-by";
/// Annotation with a digest of what was applied, so that what is no longer desired shows as well.
pub const APPLIED: &str = "vestibule.dev/applied";
/// Group and version of `Certificate`.
pub const API_VERSION: &str = "cert-manager.io/v1";

/// The component that makes the Certificates of an object's listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// Vestibule does, for what is allowed and not conflicted.
    Vestibule,
    /// cert-manager's own annotation support does. Vestibule only reports the progress.
    CertManager,
}

impl Maker {
    /// As settings have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vestibule => "vestibule",
            Self::CertManager => "cert-manager",
        }
    }

    /// Reads what settings have.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Vestibule, Self::CertManager]
            .into_iter()
            .find(|maker| maker.as_str() == text)
    }
}

/// The settings that decide which component makes Certificates, and the identity that Vestibule puts on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertManagerSettings {
    /// Of the listeners of ListenerSets (`certManager.listenerSets`).
    pub listener_sets: Maker,
    /// Of Gateways' own listeners (`certManager.gateways`).
    pub gateways: Maker,
    /// Value of [`MANAGED_BY`]: `<namespace>/<name>` of the release.
    pub identity: String,
}

impl CertManagerSettings {
    /// The component that makes the Certificates of an object of this kind.
    #[must_use]
    pub fn maker(&self, owner: Kind) -> Maker {
        match owner {
            Kind::Gateway => self.gateways,
            _ => self.listener_sets,
        }
    }

    /// The setting that says so, as the chart has it.
    #[must_use]
    pub fn setting(owner: Kind) -> &'static str {
        match owner {
            Kind::Gateway => "certManager.gateways",
            _ => "certManager.listenerSets",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
