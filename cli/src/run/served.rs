//! Tracks the listeners that the proxy was given: where clients reach them, and whether they are in force.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use vestibule_model::condition::{Condition, Reason, Truth};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ListenerKey, ObjectName};
use vestibule_stream::ResourceKey;

/// Ports below need rights that a user does not have.
const PRIVILEGED: u16 = 1024;

/// A listener that the proxy is to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) gateway: ObjectName,
    pub(super) listener: ListenerKey,
    pub(super) hostname: HostPattern,
    pub(super) address: SocketAddr,
    pub(super) how: String,
    /// Its Programmed condition.
    pub(super) programmed: Condition,
    /// Its own port.
    pub(super) port: u16,
    /// Resources of the certificates it serves with.
    pub(super) terminates: BTreeSet<ResourceKey>,
    /// Translation says that it cannot be in force, so its verdict says why.
    pub(super) judged: bool,
    /// The proxy did not take the listener itself.
    pub(super) listener_rejected: bool,
    /// The proxy could not have the port.
    pub(super) port_unavailable: bool,
}

/// `hostname on address (listener of Gateway, how)`.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hostname {
            HostPattern::Any => f.write_str("every name")?,
            pattern => write!(f, "{pattern}")?,
        }
        write!(
            f,
            " on {} ({} of Gateway {}, {})",
            self.address, self.listener, self.gateway, self.how
        )
    }
}

impl Served {
    pub(super) fn is_in_force(&self) -> bool {
        self.programmed.truth == Truth::True
    }

    /// Why it is not in force, if it is not on its way.
    pub(super) fn rejected(&self) -> Option<String> {
        if self.is_in_force() || self.programmed.reason == Reason::Pending {
            return None;
        }
        let mut why = self.programmed.message.clone();
        if self.port_unavailable {
            why.push_str(&self.port_hint());
        }
        Some(why)
    }

    fn port_hint(&self) -> String {
        let (listener, bound) = (self.port, self.address.port());
        if bound < PRIVILEGED {
            let other = bound + 8000;
            format!(
                "; ports below {PRIVILEGED} need privileges, so map it: --port-map {listener}={other}"
            )
        } else {
            format!(
                "; if another process has port {bound}, stop it (this is tried again), or use \
                 --port-map {listener}=OTHER"
            )
        }
    }

    /// Whether the proxy goes on with what it had of it, `last`, as long as this is not in force: it
    /// keeps the last good version of a resource that it rejects.
    pub(super) fn keeps(&self, last: &Self) -> bool {
        self.listener_rejected || last.terminates.is_empty() || self.keeps_certificate(last)
    }

    /// Whether what it keeps is a certificate.
    pub(super) fn keeps_certificate(&self, last: &Self) -> bool {
        !self.listener_rejected && !self.terminates.is_disjoint(&last.terminates)
    }

    /// Says the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.hostname, &self.address, &self.how) == (&other.hostname, &other.address, &other.how)
    }
}
