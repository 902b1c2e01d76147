//! Converts the metadata of objects.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use vestibule_model::issuer::{ANNOTATIONS, IssuerAnnotations};
use vestibule_model::key::ObjectName;
use vestibule_model::meta::Meta;

/// Converts metadata. A time that is absent becomes the Unix epoch.
pub(crate) fn convert(meta: &ObjectMeta) -> Meta {
    Meta {
        uid: meta.uid.as_deref().unwrap_or_default().into(),
        created: meta
            .creation_timestamp
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
        generation: meta.generation.unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

/// Namespace and name. `decode` has checked both.
pub(crate) fn name(meta: &ObjectMeta) -> ObjectName {
    ObjectName::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// The issuer annotations.
pub(crate) fn issuers(meta: &ObjectMeta) -> IssuerAnnotations {
    let [issuer, cluster_issuer, kind, group, acme, cluster_acme] = ANNOTATIONS.map(|key| {
        let value = meta.annotations.as_ref()?.get(key)?;
        Some(Arc::from(value.as_str()))
    });
    // This is the same as in cert-manager: an empty name of an issuer counts as a (wrong) choice, while an empty kind
    // or group counts as absent.
    let said = |value: Option<Arc<str>>| value.filter(|value| !value.is_empty());
    let (kind, group) = (said(kind), said(group));
    IssuerAnnotations {
        cert_manager_issuer: issuer,
        cert_manager_cluster_issuer: cluster_issuer,
        cert_manager_kind: kind,
        cert_manager_group: group,
        acme_issuer: acme,
        acme_cluster_issuer: cluster_acme,
    }
}
