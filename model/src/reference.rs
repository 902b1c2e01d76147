//! References from one object to another, as they are written.

use std::sync::Arc;

use crate::key::{GATEWAY_GROUP, Kind, ObjectName, ParentKey};
use crate::protocol::Port;

/// A reference to an object as written, defaults filled in, before any check.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    /// API group; empty for core.
    pub group: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Target, its namespace defaulted to the referrer's.
    pub target: ObjectName,
    /// Path in the object.
    pub field: String,
}

impl Reference {
    /// Whether it names this kind.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        *self.group == *kind.group() && *self.kind == *kind.as_str()
    }
}

/// A parent reference of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentRef {
    /// Group as written, if it was.
    pub group: Option<Arc<str>>,
    /// Kind as written, if it was.
    pub kind: Option<Arc<str>>,
    /// Namespace as written, if it was.
    pub namespace: Option<Arc<str>>,
    /// Name.
    pub name: Arc<str>,
    /// `sectionName`.
    pub section: Option<Arc<str>>,
    /// `port`.
    pub port: Option<Port>,
    /// Its position in `spec.parentRefs`. It differs from that in [`crate::route::Route::parents`] if parents before it
    /// are named twice, because those are left out there.
    pub index: usize,
}

impl ParentRef {
    /// Its field: `spec.parentRefs[1]`.
    #[must_use]
    pub fn field(&self) -> String {
        format!("spec.parentRefs[{}]", self.index)
    }

    /// Whether `other` is the same parent, wherever it is in the list.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let index = other.index;
        Self {
            index,
            ..self.clone()
        } == *other
    }

    /// The parent it leads to from a route in `namespace`; `None` for kinds that are no parents.
    #[must_use]
    pub fn parent(&self, namespace: &Arc<str>) -> Option<ParentKey> {
        if self.group.as_deref().unwrap_or(GATEWAY_GROUP) != GATEWAY_GROUP {
            return None;
        }
        let name = ObjectName::new(
            self.namespace.as_ref().unwrap_or(namespace).clone(),
            self.name.clone(),
        );
        match self.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => Some(ParentKey::Gateway(name)),
            "ListenerSet" => Some(ParentKey::ListenerSet(name)),
            _ => None,
        }
    }
}

/// A backend of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendRef {
    /// The object that it refers to.
    pub reference: Reference,
    /// Port of the Service.
    pub port: Option<Port>,
    /// Share of the connections, 0 to 1,000,000.
    pub weight: u32,
}
