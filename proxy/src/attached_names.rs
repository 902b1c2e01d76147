//! The names for which a route is attached to a listener.

use std::sync::Arc;

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::path::PathPrefix;

use crate::quota::TenantQuota;

/// The names for which a route is attached to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachedNames {
    /// The pattern that a server name or host has to match.
    pub(crate) pattern: HostPattern,
    /// Whether the route shares the names with their owner.
    pub(crate) shared: bool,
    /// In a box, because most routes have no such names.
    unusual: Option<Box<Unusual>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Unusual {
    rank: HostPattern,
    paths: Box<[PathPrefix]>,
}

impl AttachedNames {
    /// The names of `pattern`. `rank` and `paths` are what the methods of these names return.
    pub(crate) fn new(
        pattern: HostPattern,
        rank: HostPattern,
        shared: bool,
        paths: Box<[PathPrefix]>,
    ) -> Self {
        let is_usual = rank == pattern && paths.is_empty();
        Self {
            pattern,
            shared,
            unusual: (!is_usual).then(|| Box::new(Unusual { rank, paths })),
        }
    }

    /// The hostname as the route has it. Routes that match are ranked by it.
    pub(crate) fn rank(&self) -> &HostPattern {
        let unusual = self.unusual.as_ref();
        unusual.map_or(&self.pattern, |unusual| &unusual.rank)
    }

    /// The paths of the name to which the route is restricted, if it shares only these with the owner. If empty, it has
    /// the whole name.
    pub(crate) fn paths(&self) -> &[PathPrefix] {
        self.unusual.as_ref().map_or(&[], |unusual| &unusual.paths)
    }
}

/// Which routes of a listener are visited.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Visited<'a> {
    All,
    /// Those that are attached for a name.
    For(&'a Hostname),
    /// Those that are attached for exactly this pattern.
    At(&'a HostPattern),
}

impl Visited<'_> {
    /// Whether routes are visited that are attached for `pattern`.
    pub(crate) fn includes(self, pattern: &HostPattern) -> bool {
        match self {
            Self::All => true,
            Self::For(name) => pattern.matches(name),
            Self::At(exactly) => pattern == exactly,
        }
    }
}

/// Takes the pattern and the quota of a route.
pub(crate) type EachRoute<'a> = dyn FnMut(&HostPattern, &Arc<TenantQuota>) + 'a;
