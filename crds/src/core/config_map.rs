//! Converts a ConfigMap. Only CA certificates are kept.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use vestibule_model::tls_policy;

use crate::meta;

/// Converts a ConfigMap.
pub(crate) fn convert(wire: ConfigMap) -> tls_policy::ConfigMap {
    let authorities = wire
        .data
        .and_then(|mut data| data.remove("ca.crt"))
        .map(|text| Arc::from(text.into_bytes()));
    tls_policy::ConfigMap {
        name: meta::name(&wire.metadata),
        created: meta::convert(&wire.metadata).created,
        authorities,
    }
}
