//! The progress of a certificate, as the engine that issues it reports it. Listeners show it in their condition
//! `vestibule.dev/CertificateIssued`.

use std::sync::Arc;

use crate::condition::Reason;

/// The progress of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuance {
    /// The progress in one word.
    pub state: IssuanceState,
    /// Reason of the condition.
    pub reason: Reason,
    /// For people: what the state is, and what to do. It names nothing that belongs to another tenant.
    pub message: Arc<str>,
}

/// The progress of a certificate, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IssuanceState {
    /// It exists and will be renewed. The condition is True.
    Issued,
    /// It is being issued. The condition is False.
    Pending,
    /// It cannot be issued, or not before something changes. The condition is False.
    Failed,
}
