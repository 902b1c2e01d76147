//! The part of `metadata` that every object carries.

use std::sync::Arc;

/// The metadata that every object carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// UID. It is empty if the object was never on an API server.
    pub uid: Arc<str>,
    /// Creation, in seconds since the Unix epoch.
    pub created: i64,
    /// Generation of the spec.
    pub generation: i64,
    /// Whether it is being deleted. Such an object makes no claims.
    pub deleting: bool,
}
