//! The names for which a route is on a listener.

use vestibule_model::hostname::HostPattern;
use vestibule_model::path::PathPrefix;

/// The names for which a route is on a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachedNames {
    /// What is matched.
    pub(crate) pattern: HostPattern,
    /// What ranks the route among those that match: the hostname as written.
    pub(crate) rank: HostPattern,
    /// Whether it serves them beside whoever owns them.
    pub(crate) shared: bool,
    /// The only parts of the one name that it serves, beside whoever owns the name; none: all of it.
    pub(crate) paths: Box<[PathPrefix]>,
}
