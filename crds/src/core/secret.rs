//! Converts a Secret. Only the entries with certificates and their keys are kept, and the rest is erased.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use vestibule_model::certificate::ACME_LABEL;
use vestibule_model::object;
use zeroize::{Zeroize, Zeroizing};

use crate::meta;

/// Converts a Secret. `stringData`, which only manifests have, replaces `data`, as on the server.
pub(crate) fn convert(wire: Secret) -> object::Secret {
    let name = meta::name(&wire.metadata);
    let mut data = wire.data.unwrap_or_default();
    for (key, text) in wire.string_data.unwrap_or_default() {
        let replaced = data.insert(key, k8s_openapi::ByteString(text.into_bytes()));
        if let Some(mut old) = replaced {
            old.0.zeroize();
        }
    }
    let mut take = |key: &str| data.remove(key).map(|bytes| Zeroizing::new(bytes.0));
    let mut plain = |key: &str| take(key).map(|bytes| Arc::from(bytes.as_slice()));
    let certificate = plain("tls.crt");
    let authorities = plain("ca.crt");
    let private_key = take("tls.key").map(Arc::new);
    for bytes in data.values_mut() {
        bytes.0.zeroize();
    }
    let labels = wire.metadata.labels.as_ref();
    let acme = labels.and_then(|labels| labels.get(ACME_LABEL));
    object::Secret {
        meta: meta::convert(&wire.metadata),
        secret_type: wire.type_.as_deref().unwrap_or("Opaque").into(),
        certificate,
        private_key,
        authorities,
        acme: acme.is_some_and(|value| value == "true"),
        name,
    }
}
