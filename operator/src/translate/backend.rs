//! Backends: the endpoints of a Service's port. Only those that a route in force uses.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::{Object, Port};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::{Dirty, Output, Translator};

/// A port of a Service. Prints as `<namespace>/<service>:<port>`, its name on the stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackendKey {
    service: ObjectName,
    port: Port,
}

impl BackendKey {
    pub(super) fn new(service: ObjectName, port: Port) -> Self {
        Self { service, port }
    }

    /// Every port of a Service.
    pub(super) fn range_of(service: &ObjectName) -> RangeInclusive<Self> {
        Self::new(service.clone(), Port::MIN)..=Self::new(service.clone(), Port::MAX)
    }
}

impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.port)
    }
}

impl Translator {
    pub(super) fn translate_backends(&mut self, dirty: &Dirty, output: &mut Output) {
        for key in &dirty.backends {
            output.work.backends += 1;
            let resource = self
                .backend_users
                .contains_key(key)
                .then(|| self.endpoints(key))
                .flatten()
                .and_then(|endpoints| encode(key, &endpoints));
            let name = ResourceKey::new(ResourceKind::Backend, key.to_string());
            self.settle_resource(name, resource, output);
        }
    }

    /// The ready endpoints of a port, in order; `None` if the Service or the port is not there.
    fn endpoints(&self, key: &BackendKey) -> Option<BTreeSet<(IpAddr, u16)>> {
        let Some(Object::Service(service)) = self.get(Kind::Service, &key.service) else {
            return None;
        };
        let port = service.ports.iter().find(|port| port.port == key.port)?;
        let mut endpoints = BTreeSet::new();
        for slice in self.index.slices_of(&key.service) {
            let Some(Object::EndpointSlice(slice)) = self.get(Kind::EndpointSlice, slice) else {
                continue;
            };
            for (_, number) in slice.ports.iter().filter(|(name, _)| *name == port.name) {
                endpoints.extend(
                    slice
                        .addresses
                        .iter()
                        .map(|address| (*address, number.get())),
                );
            }
        }
        Some(endpoints)
    }
}

fn encode(key: &BackendKey, endpoints: &BTreeSet<(IpAddr, u16)>) -> Option<Encoded> {
    let backend = proto::Backend {
        endpoints: endpoints
            .iter()
            .map(|(address, port)| proto::Endpoint {
                address: address.to_string(),
                port: (*port).into(),
            })
            .collect(),
        ..Default::default()
    };
    Encoded::new(&Resource::new(
        key.to_string(),
        resource::Resource::Backend(backend),
    ))
    .ok()
}
