//! The key of a backend: a port of a Service, and its name on the stream.

use std::fmt;
use std::ops::{RangeFrom, RangeInclusive};
use std::sync::Arc;

use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::protocol::{Port, Transport, TransportPort};
use vestibule_stream::{ResourceKey, ResourceKind};

/// A port of a Service. Prints as its name on the stream: `<namespace>/<service>:<port>`, or
/// `<namespace>/<service>:<port>/udp`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackendKey {
    pub(super) service: ObjectName,
    pub(super) port: TransportPort,
}

impl BackendKey {
    pub(super) fn new(service: ObjectName, port: TransportPort) -> Self {
        Self { service, port }
    }

    /// Every port of a Service.
    pub(super) fn range_of(service: &ObjectName) -> RangeInclusive<Self> {
        let at = |port| Self::new(service.clone(), port);
        at((Port::MIN, Transport::Tcp))..=at((Port::MAX, Transport::Udp))
    }

    /// The keys of every Service in a namespace, and in the namespaces after it.
    pub(super) fn range_in(namespace: &Arc<str>) -> RangeFrom<Self> {
        let first = (Port::MIN, Transport::Tcp);
        Self::new(ObjectName::new(namespace.clone(), ""), first)..
    }

    pub(super) fn namespace(&self) -> &Arc<str> {
        &self.service.namespace
    }

    pub(super) fn is_in(&self, namespace: &Arc<str>) -> bool {
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

/// The key of a backend's resource.
pub(super) fn backend_resource(key: &BackendKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, key.to_string())
}

impl BackendKey {
    /// The key of the backend among those that its namespace's budget counts.
    pub(super) fn counted(&self) -> ObjectKey {
        let whole = self.to_string();
        let name = whole
            .split_once('/')
            .map_or(whole.as_str(), |(_, name)| name);
        ObjectKey {
            kind: Kind::Service,
            name: ObjectName::new(self.namespace().clone(), name),
        }
    }

    /// The backend with this key among those that are counted.
    pub(super) fn of_counted(key: &ObjectKey) -> Option<Self> {
        let (service, port) = key.name.name.rsplit_once(':')?;
        let (number, transport) = match port.strip_suffix("/udp") {
            Some(number) => (number, Transport::Udp),
            None => (port, Transport::Tcp),
        };
        let number = Port::new(number.parse().ok()?)?;
        let service = ObjectName::new(key.name.namespace.clone(), service);
        Some(Self::new(service, (number, transport)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_counted_backend_leads_back_to_it() {
        let port = |number| Port::new(number).expect("a port");
        for at in [(port(1), Transport::Tcp), (port(65_535), Transport::Udp)] {
            let key = BackendKey::new(ObjectName::new("a", "app"), at);
            assert_eq!(BackendKey::of_counted(&key.counted()), Some(key));
        }
    }
}
