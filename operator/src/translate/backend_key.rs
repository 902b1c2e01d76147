//! The key of a backend on the stream.

use vestibule_model::backend_key::BackendKey;
use vestibule_stream::{ResourceKey, ResourceKind};

/// The key of a backend's resource.
pub(super) fn backend_resource(key: &BackendKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, key.to_string())
}
