//! Which listeners of one Gateway and port can stand side by side, and who wins where they cannot.
//!
//! GEP-1713 and `gateway_types.go` ("Distinct Listeners"). The Gateway's own listeners come first,
//! then its ListenerSets, oldest first, ties by `namespace/name`; within a set, spec order. Two
//! regimes: among the Gateway's own listeners nobody wins and all that cannot be told apart are
//! conflicted, yet keep their slot; across objects, and inside one ListenerSet, the first one wins
//! and only later ones are marked.
//!
//! Whose a hostname is on the Gateway is another question ([`crate::names`]), and comes first: a listener whose
//! namespace may not have its hostname takes no part here, and one whose namespace holds it comes before one that
//! only asks for it, however old.
//!
//! [`PortClaims`](crate::port::PortClaims) answers for one port.

use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectName};
use crate::protocol::{Group, Protocol, Transport};

/// A claim's place in the merge order as upstream has it; less comes first. Whether it is held comes before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// The Gateway's own listener, by index.
    Gateway(usize),
    /// A ListenerSet's listener.
    Set {
        /// Creation of the set, seconds since the epoch.
        created: i64,
        /// `namespace/name` of the set, compared as one text, as upstream does.
        object: Arc<str>,
        /// Index in the set.
        index: usize,
    },
}

impl Precedence {
    /// Of the listener with this index in this set.
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
    /// Whose.
    pub listener: ListenerKey,
    /// Its place in the order.
    pub precedence: Precedence,
    /// What it wants to speak.
    pub protocol: Protocol,
    /// For which names.
    pub hostname: HostPattern,
    /// Whether it takes some kind of route, and says how TLS is served. One that does not is never served, so it asks
    /// for no hostname either.
    pub takes_routes: bool,
    /// Whether the proxies get it once nothing stands in its way: it takes routes, and its Gateway lets its protocol
    /// be served. No connection comes to another one.
    pub served: bool,
    /// Whether its namespace has the hostname on the Gateway, rather than asking for it.
    pub has_name: bool,
}

impl Claim {
    /// Who makes it.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        &self.listener.parent.name().namespace
    }

    /// What it is about: its hostname, or, where bytes have no names, the port.
    #[must_use]
    pub fn names(&self) -> &HostPattern {
        match self.protocol.group() {
            Group::Raw => &HostPattern::Any,
            Group::Http | Group::Tls => &self.hostname,
        }
    }
}

/// Why a listener cannot stand beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflict {
    /// Same protocol and hostname.
    Hostname,
    /// The port, or the hostname on it, speaks another protocol.
    Protocol,
    /// Both at once.
    Both,
}

impl Conflict {
    pub(crate) fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Both }
    }

    /// The reason of the conditions Conflicted, Accepted and Programmed alike
    /// (`conformance/tests/listenerset-{hostname,protocol}-conflict.go`).
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Hostname => Reason::HostnameConflict,
            Self::Protocol => Reason::ProtocolConflict,
            Self::Both => Reason::ListenerConflict,
        }
    }

    /// What to tell the author of `claim`, whose listener is at `field` and on `port` of `gateway`.
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
