//! Owns the decision about the Certificate of one request: the action, and the progress that listeners show.

use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};

use super::desired::{Certificate, Foreign};
use super::present::{CertificateAttempts, PresentCertificate, PresentCertificates};
use super::progress::issuance_of;
use super::{CertManagerSettings, Maker};

/// The action for one Certificate.
#[derive(Debug, Clone, PartialEq)]
pub enum CertificateAction {
    /// It is not there: make it.
    Create(Value),
    /// It is there (with this UID) and differs: make it like this.
    Apply(String, Value),
    /// It is there (with this UID) and has to go. Its Secret stays.
    Delete(String),
}

/// The result for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct CertificateVerdict {
    /// The action, if one is needed.
    pub action: Option<CertificateAction>,
    /// The progress that listeners show.
    pub issuance: Issuance,
}

/// Whether cert-manager's Certificates can be read and made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability<'a> {
    /// They are watched.
    Watched,
    /// The kind is not installed.
    NotInstalled,
    /// They cannot be read, and why.
    Unreadable(&'a str),
}

/// Decides what to do for a request, and which progress to show. `desired_certificate` is the result of
/// [`super::desired`] for it.
#[must_use]
pub fn judge(
    request: &CertificateRequest,
    desired_certificate: &Result<Certificate, Foreign>,
    settings: &CertManagerSettings,
    availability: Availability<'_>,
    present: &PresentCertificates,
    attempts: &CertificateAttempts,
) -> CertificateVerdict {
    let there = present.get(&request.secret);
    let progress = |there: &PresentCertificate| {
        let attempt = attempts.latest(&request.secret);
        let name = &request.secret.name;
        there.progress.issuance(name, there.generation, attempt)
    };
    let say = |state, reason, message: String| CertificateVerdict {
        action: None,
        issuance: issuance_of(state, reason, message),
    };
    match availability {
        Availability::Watched => {}
        Availability::NotInstalled => {
            let message = "the issuer is cert-manager's, and cert-manager is not installed: there is no kind Certificate of \
                cert-manager.io/v1";
            let reason = Reason::EngineNotAvailable;
            return say(IssuanceState::Failed, reason, message.into());
        }
        Availability::Unreadable(problem) => {
            let message = format!("Vestibule cannot read Certificates: {problem}");
            return say(IssuanceState::Failed, Reason::EngineNotAvailable, message);
        }
    }
    let name = &request.secret.name;
    if there.is_some_and(|there| there.deleting) {
        let message = format!("Certificate {name} is being deleted");
        return say(IssuanceState::Pending, Reason::Pending, message);
    }
    let kind = request.owner.kind;
    if settings.maker(kind) == Maker::CertManager {
        return theirs(request, there, progress);
    }
    let desired_certificate = match desired_certificate {
        Ok(desired_certificate) => desired_certificate,
        Err(foreign) => {
            return CertificateVerdict {
                action: there.and_then(delete),
                issuance: issuance_of(
                    IssuanceState::Failed,
                    Reason::InvalidAnnotation,
                    foreign.to_string(),
                ),
            };
        }
    };
    match there {
        Some(there) if there.ours.is_none() => CertificateVerdict {
            action: None,
            issuance: stand_back(request, name, there),
        },
        Some(there) => {
            let manifest = desired_certificate.manifest();
            let same = there
                .ours
                .as_deref()
                .is_some_and(|ours| holds(ours, &manifest));
            CertificateVerdict {
                action: (!same).then(|| CertificateAction::Apply(there.uid.clone(), manifest)),
                issuance: progress(there),
            }
        }
        None => match present.other_of(&request.secret) {
            Some((other, there)) => CertificateVerdict {
                action: None,
                issuance: stand_back(request, other, there),
            },
            None => CertificateVerdict {
                action: Some(CertificateAction::Create(desired_certificate.manifest())),
                issuance: issuance_of(
                    IssuanceState::Pending,
                    Reason::Pending,
                    format!("Certificate {name} is being made"),
                ),
            },
        },
    }
}

/// Decides what to do with a Certificate that nobody requests.
#[must_use]
pub fn stale(there: &PresentCertificate) -> Option<CertificateAction> {
    delete(there)
}

fn delete(there: &PresentCertificate) -> Option<CertificateAction> {
    (there.ours.is_some() && !there.deleting).then(|| CertificateAction::Delete(there.uid.clone()))
}

/// Where cert-manager's own annotation support makes the Certificates.
fn theirs(
    request: &CertificateRequest,
    there: Option<&PresentCertificate>,
    progress: impl Fn(&PresentCertificate) -> Issuance,
) -> CertificateVerdict {
    let name = &request.secret.name;
    let setting = CertManagerSettings::setting(request.owner.kind);
    let Some(there) = there else {
        let message = format!(
            "cert-manager has made no Certificate {name} yet, and {setting} leaves that to it: cert-manager needs its Gateway \
             API support (and for ListenerSets the gate ListenerSets=true); or set {setting} to vestibule"
        );
        return CertificateVerdict {
            action: None,
            issuance: issuance_of(IssuanceState::Pending, Reason::Pending, message),
        };
    };
    CertificateVerdict {
        // One that Vestibule made before would keep cert-manager from making its own; the Secret stays.
        action: delete(there),
        issuance: progress(there),
    }
}

/// Somebody else's Certificate is in the way: it is left alone.
fn stand_back(request: &CertificateRequest, name: &str, there: &PresentCertificate) -> Issuance {
    let kind = request.owner.kind;
    let setting = CertManagerSettings::setting(kind);
    let what = if *name == *request.secret.name {
        format!("Certificate {name}")
    } else {
        format!(
            "Certificate {name}, which writes Secret {},",
            request.secret.name
        )
    };
    let owner = format!("{} {}", kind.as_str(), request.owner.name.name);
    let message = match &there.controller {
        Some(controller) if *controller == owner => format!(
            "{what} is cert-manager's own for {owner}: set {setting} to cert-manager; or switch cert-manager's support for \
             {}s off and delete the Certificate (its Secret stays), and Vestibule makes it",
            kind.as_str()
        ),
        Some(controller) => format!(
            "{what} is controlled by {controller}, not by Vestibule: name another Secret in the listener, or remove the \
             Certificate"
        ),
        None => format!(
            "{what} was made by somebody else: delete it (its Secret stays) and Vestibule makes it, or remove the issuer \
             annotation"
        ),
    };
    let covers = request
        .hostnames
        .iter()
        .all(|wanted| there.names.iter().any(|name| name == wanted.as_str()));
    if covers && there.progress.is_ready(there.generation) {
        let message = format!("{message}. Until then it is ready, and serves");
        return issuance_of(IssuanceState::Issued, Reason::CertificateNotOurs, message);
    }
    issuance_of(IssuanceState::Failed, Reason::CertificateNotOurs, message)
}

/// Whether everything in `desired_certificate` is in `there`. Fields and owners that somebody added are theirs; lists are
/// whole, since one more name in a certificate is another certificate.
fn holds(there: &Value, desired_certificate: &Value) -> bool {
    match (there, desired_certificate) {
        (Value::Object(there), Value::Object(desired_certificate)) => desired_certificate
            .iter()
            .all(|(field, desired_certificate)| {
                let Some(there) = there.get(field) else {
                    return false;
                };
                match (field.as_str(), there, desired_certificate) {
                    ("ownerReferences", Value::Array(there), Value::Array(desired_certificate)) => {
                        desired_certificate.iter().all(|desired_certificate| {
                            there.iter().any(|there| holds(there, desired_certificate))
                        })
                    }
                    _ => holds(there, desired_certificate),
                }
            }),
        (there, desired_certificate) => there == desired_certificate,
    }
}

impl CertificateAction {
    /// In one word, for logs and metrics.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Apply(..) => "apply",
            Self::Delete(_) => "delete",
        }
    }

    /// Whether both make the same object. The UID does not count, because the server chooses it.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let manifest = |action: &Self| match action {
            Self::Create(manifest) | Self::Apply(_, manifest) => Some(manifest.clone()),
            Self::Delete(_) => None,
        };
        manifest(self).is_some() && manifest(self) == manifest(other)
    }
}
