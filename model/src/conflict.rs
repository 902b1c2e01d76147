//! Conflicts between listeners that share a port of a Gateway: which listeners are distinct, and which of two wins if
//! they are not.
//!
//! The rules come from GEP-1713 and `gateway_types.go` ("Distinct Listeners"). The Gateway's own listeners come first.
//! Its ListenerSets follow, oldest first, and sets of the same age by `namespace/name`. Within one object the order
//! of the spec counts. There are two rules:
//!
//! - Among the Gateway's own listeners nobody wins. All that are not distinct are conflicted, and each of them still
//!   keeps listeners of sets off its name.
//! - Between objects, and within one ListenerSet, the first listener wins. Only the later ones are conflicted.
//!
//! Another question is decided before: to which namespace a hostname belongs on the Gateway ([`crate::names`]). A
//! listener whose namespace may not have its hostname takes no part here. A listener whose namespace holds the
//! hostname comes before one that only asks for it, even if that one is older.
//!
//! [`PortClaims`](crate::port::PortClaims) gives the answers for one port.

use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectName};
use crate::protocol::{Group, Protocol, Transport};

/// Position of a claim in the merge order of Gateway API. The lesser one comes first. It decides only between claims of
/// which both, or neither, have their hostname ([`Claim::has_name`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// The Gateway's own listener, by index.
    Gateway(usize),
    /// A ListenerSet's listener.
    Set {
        /// Creation of the set, in seconds since the Unix epoch.
        created: i64,
        /// `namespace/name` of the set, compared as one text, as upstream does.
        object: Arc<str>,
        /// Index in the set.
        index: usize,
    },
}

impl Precedence {
    /// The precedence of the listener with this index in this set.
    #[must_use]
    pub fn of_set(created: i64, name: &ObjectName, index: usize) -> Self {
        Self::Set {
            created,
            object: name.to_string().into(),
            index,
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Gateway(_))
    }
}

/// A listener's claim to a hostname on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The listener that makes the claim.
    pub listener: ListenerKey,
    /// Its position in the merge order.
    pub precedence: Precedence,
    /// The protocol that the listener wants to speak.
    pub protocol: Protocol,
    /// The hostname that it wants to serve.
    pub hostname: HostPattern,
    /// Whether the listener takes some kind of route and, for protocol TLS, says how TLS is served. A listener that
    /// does not is never served, so it asks for no hostname either.
    pub takes_routes: bool,
    /// Whether the proxies get the listener if it has no conflict: it takes routes, and `spec.tls` of its Gateway does
    /// not refuse it. Other listeners never get a connection.
    pub served: bool,
    /// Whether its namespace already has the hostname on the Gateway. Otherwise it only asks for it.
    pub has_name: bool,
}

impl Claim {
    /// The namespace of the listener.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        &self.listener.parent.name().namespace
    }

    /// The names that the claim is about: its hostname, or every name for TCP and UDP, which carry no names.
    #[must_use]
    pub fn names(&self) -> &HostPattern {
        match self.protocol.group() {
            Group::Raw => &HostPattern::Any,
            Group::Http | Group::Tls => &self.hostname,
        }
    }
}

/// Why a listener is not distinct from the others on its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflict {
    /// Another listener has the same protocol and hostname.
    Hostname,
    /// Another listener speaks another protocol on the port, or for the hostname.
    Protocol,
    /// Both kinds of conflict at once.
    Both,
}

impl Conflict {
    pub(crate) fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Both }
    }

    /// The reason that the conditions Conflicted, Accepted and Programmed of the listener give
    /// (`conformance/tests/listenerset-{hostname,protocol}-conflict.go`).
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Hostname => Reason::HostnameConflict,
            Self::Protocol => Reason::ProtocolConflict,
            Self::Both => Reason::ListenerConflict,
        }
    }

    /// The finding for the author of `claim`, whose listener is at `field` and on `port` of `gateway`.
    #[must_use]
    pub fn finding(self, claim: &Claim, field: &str, port: u16, gateway: &ObjectName) -> Finding {
        if claim.protocol.group() == Group::Raw {
            return Finding::refused(
                self.reason(),
                format!("{field}.protocol"),
                format!(
                    "{} port {port} of Gateway {gateway} is another listener's, and {} has no names by which two could share it",
                    claim.protocol.transport().map_or("the", Transport::as_str),
                    claim.protocol
                ),
                "use another port",
            );
        }
        let name = match &claim.hostname {
            HostPattern::Any => "every hostname".to_owned(),
            pattern => format!("hostname {:?}", pattern.to_string()),
        };
        let (at, message, action) = match self {
            Self::Hostname => (
                "hostname",
                format!("{name} on port {port} is taken by another listener on Gateway {gateway}"),
                "use another hostname or port, or have the present listener removed first",
            ),
            Self::Protocol => (
                "protocol",
                format!(
                    "{name} on port {port} cannot speak {} because another listener on Gateway {gateway} speaks another protocol there",
                    claim.protocol
                ),
                "use another port, or the protocol that the port already speaks",
            ),
            Self::Both => (
                "port",
                format!(
                    "{name} on port {port} is claimed by other listeners on Gateway {gateway}, with the same and with another protocol"
                ),
                "use another hostname or port",
            ),
        };
        Finding::refused(self.reason(), format!("{field}.{at}"), message, action)
    }
}
