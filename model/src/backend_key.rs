//! The key of a backend: a port of a Service.

use std::fmt;
use std::ops::{RangeFrom, RangeInclusive};
use std::sync::Arc;

use crate::key::ObjectName;
use crate::protocol::{Port, Transport, TransportPort};

/// A port of a Service. Prints as its name on the stream: `<namespace>/<service>:<port>`, or
/// `<namespace>/<service>:<port>/udp`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendKey {
    /// The Service.
    pub service: ObjectName,
    /// Its port.
    pub port: TransportPort,
}

impl BackendKey {
    /// The key of a port of a Service.
    #[must_use]
    pub fn new(service: ObjectName, port: TransportPort) -> Self {
        Self { service, port }
    }

    /// Every port of a Service.
    #[must_use]
    pub fn range_of(service: &ObjectName) -> RangeInclusive<Self> {
        let at = |port| Self::new(service.clone(), port);
        at((Port::MIN, Transport::Tcp))..=at((Port::MAX, Transport::Udp))
    }

    /// The keys of every Service in a namespace, and in the namespaces after it.
    #[must_use]
    pub fn range_in(namespace: &Arc<str>) -> RangeFrom<Self> {
        let first = (Port::MIN, Transport::Tcp);
        Self::new(ObjectName::new(namespace.clone(), ""), first)..
    }

    /// The namespace of the Service.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        &self.service.namespace
    }

    /// Whether the Service is in this namespace.
    #[must_use]
    pub fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.service.namespace == *namespace
    }
}

impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, transport) = self.port;
        write!(f, "{}:{port}", self.service)?;
        match transport {
            Transport::Tcp => Ok(()),
            Transport::Udp => f.write_str("/udp"),
        }
    }
}
