//! Addresses of the release itself: those of its pods, and those of its Gateways. No backend of a tenant may have one.
//! Otherwise the proxies would connect to themselves and to one another, again and again. Or clients would reach ports
//! that are not for them: those of health and metrics, and the configuration stream.
//!
//! The pods are those behind the release's own Services, ready or not. The addresses of a Gateway are those of its
//! Service, and only together with the ports of the Service. On clusters whose load balancer is a port of every node,
//! the same address with another port belongs to somebody else.
//!
//! EndpointSlices in the release's own namespace are not judged by this, because the admin of the release chooses
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vestibule_model::endpoint::{Denied, forms};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{EndpointSlice, Object};
use vestibule_model::protocol::{Port, Transport, TransportPort};

use super::{Dirty, Translator, set_user};

/// The addresses, each with whatever has it, because a pod may be in several slices, and Gateways may share an
/// address.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    /// The addresses of pods, with the slices that name them.
    pods: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
    /// The addresses of Gateways, with the UIDs of the Gateways.
    gateways: BTreeMap<(IpAddr, TransportPort), BTreeSet<Arc<str>>>,
}

impl OwnAddresses {
    /// Why no backend of a tenant may have this address with this port. Without a port, only the addresses of pods are
    /// denied.
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

    /// Whether it may be denied to backends, with some port at least.
    fn has(&self, address: IpAddr) -> bool {
        forms(address).any(|form| {
            let first = (form, (Port::MIN, Transport::Tcp));
            let mut gateways = self.gateways.range(first..);
            self.pods.contains_key(&form)
                || gateways.next().is_some_and(|((one, _), _)| *one == form)
        })
    }
}

impl Translator {
    /// Why a slice of this namespace may not have this address, if it may not.
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

    /// Whether a slice of this namespace may not have this address with some port. If not, no port has to be looked at.
    pub(super) fn may_be_denied(&self, namespace: &str, address: IpAddr) -> bool {
        self.settings.policy.endpoints.denies(address).is_some()
            || (!self.is_namespace_of_release(namespace) && self.own.has(address))
    }

    fn is_namespace_of_release(&self, namespace: &str) -> bool {
        let services = self.settings.binds.services();
        services.is_some_and(|settings| &*settings.namespace == namespace)
    }

    /// Whether a slice belongs to a Service of the release itself.
    fn has_own_pods(&self, slice: &EndpointSlice) -> bool {
        let services = self.settings.binds.services();
        services
            .zip(slice.service.as_ref())
            .is_some_and(|(settings, service)| {
                settings.namespace == slice.name.namespace && settings.components.contains(service)
            })
    }

    /// Takes a change of a slice, if the slice has pods of the release.
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

    /// Takes the addresses and ports at which the Gateway with this UID is reached.
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

    /// Marks what has an address among its endpoints, after the release got or lost that address.
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
                let slices = &mut dirty.slices;
                set_user(slices, name, &service, true);
                dirty
                    .routes
                    .extend(self.index.routes_of_service(&service).cloned());
                self.dirty_backends(&service, dirty);
            }
        }
    }
}
