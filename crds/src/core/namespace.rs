//! Converts a Namespace.

use k8s_openapi::api::core::v1::Namespace;
use vestibule_model::object;

pub(crate) fn convert(wire: Namespace) -> object::Namespace {
    object::Namespace {
        name: wire.metadata.name.as_deref().unwrap_or_default().into(),
        labels: wire.metadata.labels.unwrap_or_default(),
    }
}
