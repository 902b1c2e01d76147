//! The names for which a route is attached to a listener.

use std::sync::Arc;

use vestibule_model::hostname::HostPattern;
use vestibule_model::path::PathPrefix;

use crate::quota::Account;

/// The names for which a route is attached to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachedNames {
    /// The pattern that a server name or host has to match.
    pub(crate) pattern: HostPattern,
    /// The hostname as the route has it. Routes that match are ranked by it.
    pub(crate) rank: HostPattern,
    /// Whether the route shares the names with their owner.
    pub(crate) shared: bool,
    /// The paths of the name to which the route is restricted, if it shares only these with the owner. If empty, it has
    /// the whole name.
    pub(crate) paths: Box<[PathPrefix]>,
}

/// Takes the pattern and the account of a route.
pub(crate) type EachRoute<'a> = dyn FnMut(&HostPattern, &Arc<Account>) + 'a;
