//! Annotations about certificates: cert-manager's, read as its own annotation support reads them.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use vestibule_model::certificate::{CertificateAnnotations, CertificateOptions};

/// Reads the annotations of a Gateway or ListenerSet.
pub(crate) fn annotations(meta: &ObjectMeta) -> CertificateAnnotations {
    let options = CertificateOptions {
        labels: meta.labels.clone().unwrap_or_default(),
        ..CertificateOptions::default()
    };
    CertificateAnnotations {
        options: Arc::new(options),
        findings: Vec::new(),
    }
}
