//! Addresses of the release itself: of its pods, and of its Gateways. No backend of a tenant may have one: the proxies
//! would connect to themselves and to one another, again and again, or reach ports that are nobody's to reach from
//! outside: those of health and metrics, and the configuration stream.
//!
//! The pods are those behind the release's own Services, ready or not; the addresses of Gateways are those of the
//! Services in front of them, and only with their ports: on clusters whose load balancer is a port of every node, the
//! same addresses with other ports are other people's.
//!
//! What the release's own namespace has in its EndpointSlices is its admin's choice, and is not judged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vestibule_model::endpoint::{Denied, forms};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{EndpointSlice, Object};
use vestibule_model::protocol::TransportPort;

use super::{Dirty, Translator, set_user};

/// The addresses, and what has them: pods may be in several slices, and Gateways may share an address.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    /// Of pods, with the slices that name them.
    pods: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
    /// Of Gateways, by UID.
    gateways: BTreeMap<(IpAddr, TransportPort), BTreeSet<Arc<str>>>,
}

impl OwnAddresses {
    /// Why no backend of a tenant may have this address; without a port, whatever port it has.
    fn denies(&self, address: IpAddr, port: Option<TransportPort>) -> Option<Denied> {
        forms(address).find_map(|form| {
            if self.pods.contains_key(&form) {
                Some(Denied::OwnPod)
            } else {
                let gateways = |port| self.gateways.contains_key(&(form, port));
                port.is_some_and(gateways).then_some(Denied::Gateway)
            }
        })
    }
}

impl Translator {
    /// Why a slice of this namespace may not have this address.
    pub(super) fn denied(
        &self,
        namespace: &str,
        address: IpAddr,
        port: Option<TransportPort>,
    ) -> Option<Denied> {
        let by_rule = self.settings.policy.endpoints.denies(address);
        by_rule.or_else(|| {
            (!self.is_namespace_of_release(namespace))
                .then(|| self.own.denies(address, port))
                .flatten()
        })
    }

    fn is_namespace_of_release(&self, namespace: &str) -> bool {
        let services = self.settings.binds.services();
        services.is_some_and(|settings| &*settings.namespace == namespace)
    }

    /// Says whether a slice has pods of the release.
    fn has_own_pods(&self, slice: &EndpointSlice) -> bool {
        let services = self.settings.binds.services();
        services
            .zip(slice.service.as_ref())
            .is_some_and(|(settings, service)| {
                settings.namespace == slice.name.namespace && settings.components.contains(service)
            })
    }

    /// Takes a change of a slice, if it has pods of the release.
    pub(super) fn take_own_pods(
        &mut self,
        old: Option<&EndpointSlice>,
        new: Option<&EndpointSlice>,
        dirty: &mut Dirty,
    ) {
        let pods = |slice: Option<&EndpointSlice>| -> BTreeSet<IpAddr> {
            let slice = slice.filter(|slice| self.has_own_pods(slice));
            slice
                .into_iter()
                .flat_map(EndpointSlice::all)
                .map(|address| address.to_canonical())
                .collect()
        };
        let (before, after) = (pods(old), pods(new));
        let Some(name) = old.or(new).map(|slice| slice.name.clone()) else {
            return;
        };
        for address in before.symmetric_difference(&after) {
            let was = self.own.pods.contains_key(address);
            set_user(&mut self.own.pods, address, &name, after.contains(address));
            if self.own.pods.contains_key(address) != was {
                self.mark_endpoints_at(*address, dirty);
            }
        }
    }

    /// Takes where the Gateway with this UID is reached.
    pub(super) fn take_sockets(
        &mut self,
        uid: &Arc<str>,
        before: &BTreeSet<(IpAddr, TransportPort)>,
        after: &BTreeSet<(IpAddr, TransportPort)>,
        dirty: &mut Dirty,
    ) {
        for socket in before.symmetric_difference(after) {
            let own = (socket.0.to_canonical(), socket.1);
            let was = self.own.gateways.contains_key(&own);
            set_user(&mut self.own.gateways, &own, uid, after.contains(socket));
            if self.own.gateways.contains_key(&own) != was {
                self.mark_endpoints_at(own.0, dirty);
            }
        }
    }

    /// An address has come to be the release's, or is no longer: whoever has it among its endpoints.
    fn mark_endpoints_at(&self, address: IpAddr, dirty: &mut Dirty) {
        for name in self.index.slices_at(address) {
            let Some(Object::EndpointSlice(slice)) = self.get(Kind::EndpointSlice, name) else {
                continue;
            };
            dirty.others.insert(ObjectKey {
                kind: Kind::EndpointSlice,
                name: name.clone(),
            });
            if let Some(service) = &slice.service {
                let service = ObjectName::new(name.namespace.clone(), service.clone());
                dirty.routes.extend(self.index.routes_of_service(&service));
                self.dirty_backends(&service, dirty);
            }
        }
    }
}
