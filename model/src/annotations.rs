//! Checks the certificate annotations of a Gateway or ListenerSet against the listeners that the object declares.

use crate::certificate::CertificateAnnotations;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::gateway::{Gateway, Listener, ListenerSet, TlsMode};
use crate::hostname::{HostPattern, Hostname};
use crate::issuer::{Engine, IssuerAnnotations, IssuerRef, choose};

/// The finding that keeps the built-in engine from issuing for a listener of a ListenerSet, if cert-manager issues for
/// it as well.
///
/// This matters only where cert-manager itself makes the certificates of ListenerSets. If the set names an issuer of
/// the built-in engine, cert-manager still follows the annotation of the Gateway. Both engines would then write the
/// same Secret in turn.
#[must_use]
pub fn asked_twice(set: &ListenerSet, gateway: &Gateway, listener: &str) -> Option<Finding> {
    let own = set.issuers.choice().ok()??;
    // cert-manager does not know our annotations, so it sees no contradiction if the Gateway carries both.
    let theirs = IssuerAnnotations {
        acme_issuer: None,
        acme_cluster_issuer: None,
        ..gateway.issuers.clone()
    };
    theirs.choice().ok()??;
    let twice = own.engine == Engine::Acme;
    let excepted = Engine::CertManager.ignores(&set.certificates.options, listener);
    (twice && !excepted).then(|| {
        Finding::refused(
            Reason::ContradictingIssuers,
            "spec.parentRef",
            format!(
                "cert-manager makes the certificates of ListenerSets here and follows annotation {} of Gateway {}, so the issuer that this set names is not asked",
                gateway.issuers.named().unwrap_or_default(),
                gateway.name
            ),
            "name the listener in annotation cert-manager.io/ignore-tls-listeners, or name an issuer of cert-manager's instead",
        )
    })
}

/// Judges the certificate annotations of a ListenerSet. If its Gateway does not exist (yet), `gateway` is `None`, and
/// only the annotations of the set itself are judged.
#[must_use]
pub fn problems_of_set(set: &ListenerSet, gateway: Option<&Gateway>) -> Vec<Finding> {
    let choice = match gateway {
        Some(gateway) => choose(&set.issuers, &gateway.issuers, &gateway.name),
        None => set.issuers.choice(),
    };
    problems(choice, &set.certificates, &set.listeners)
}

/// Judges the certificate annotations of a Gateway, which are about its own listeners.
#[must_use]
pub fn problems_of_gateway(gateway: &Gateway) -> Vec<Finding> {
    let choice = gateway.issuers.choice();
    problems(choice, &gateway.certificates, &gateway.listeners)
}

fn problems(
    choice: Result<Option<IssuerRef>, Finding>,
    annotations: &CertificateAnnotations,
    listeners: &[Listener],
) -> Vec<Finding> {
    match choice {
        Err(finding) => vec![finding],
        Ok(Some(issuer)) => match issuer.engine {
            Engine::CertManager => certificate_problems(annotations, listeners),
            // The built-in engine ignores cert-manager's annotations, except those that add names.
            Engine::Acme => annotations.left_out_by_acme(),
        },
        Ok(None) => Vec::new(),
    }
}

/// Judges the certificate annotations of an object that declares these listeners. If one of the findings refuses, no
/// certificate is requested from cert-manager.
#[must_use]
pub fn certificate_problems(
    annotations: &CertificateAnnotations,
    listeners: &[Listener],
) -> Vec<Finding> {
    let mut problems = annotations.findings.clone();
    if let Some(name) = &annotations.options.common_name
        && !carries(listeners, name)
    {
        problems.push(Finding::refused(
            Reason::InvalidAnnotation,
            "metadata.annotations[cert-manager.io/common-name]",
            "is no hostname of a listener of this object that terminates TLS, so no certificate is requested",
            "name one of them, or remove it",
        ));
    }
    problems
}

/// Whether a listener that terminates TLS has this hostname.
fn carries(listeners: &[Listener], name: &str) -> bool {
    let Ok(name) = Hostname::parse(name) else {
        return false;
    };
    let exact = HostPattern::Exact(name);
    listeners.iter().any(|listener| {
        let tls = listener.tls.as_ref();
        tls.is_some_and(|tls| tls.mode == TlsMode::Terminate) && listener.hostname == exact
    })
}
