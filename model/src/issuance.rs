//! How far the certificate of a Secret is, as the engine that issues it tells: what listeners say in their
//! condition `vestibule.dev/CertificateIssued`.

use std::sync::Arc;

use crate::condition::Reason;

/// How far a certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuance {
    /// In one word.
    pub state: IssuanceState,
    /// Reason of the condition.
    pub reason: Reason,
    /// For people: what is, and what to do. Names nothing of another tenant.
    pub message: Arc<str>,
}

/// How far a certificate is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IssuanceState {
    /// It is there and will be renewed: the condition is True.
    Issued,
    /// It is being made: the condition is False.
    Pending,
    /// It cannot be made, or not before something changes: the condition is False.
    Failed,
}
