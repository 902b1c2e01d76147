//! Owns the messages between translation and the engines that issue certificates: the request for a certificate, and
//! its progress. Listeners show the progress in their condition `vestibule.dev/CertificateIssued`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::certificate::CertificateOptions;
use crate::challenge::Reaches;
use crate::condition::Reason;
use crate::hostname::Hostname;
use crate::issuer::IssuerRef;
use crate::key::{ObjectKey, ObjectName};

/// A request for a certificate that listeners want and may have. Such a listener is allowed, accepted and without
/// conflict, and its hostname is exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The Secret that the listener refers to, in the listener's own namespace.
    pub secret: ObjectName,
    /// The hostnames of the listeners that refer to it, and those that annotations add.
    pub hostnames: BTreeSet<Hostname>,
    /// The issuer that the annotations choose; without one only `vestibule run` issues.
    pub issuer: Option<IssuerRef>,
    /// The object that asks: the first one, in the order of the merge.
    pub owner: ObjectKey,
    /// Its UID.
    pub owner_uid: Arc<str>,
    /// The Gateway that serves the names.
    pub gateway: ObjectName,
    /// Its UID.
    pub gateway_uid: Arc<str>,
    /// The options that the owner's annotations set beside the issuer.
    pub options: Arc<CertificateOptions>,
    /// Whether the challenges for each name may be answered.
    pub reach: BTreeMap<Hostname, Reaches>,
}

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
