//! TCPRoutes and UDPRoutes on the Gateways' own listeners: which of them ask for a port, and which may have it.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;

use super::{Affected, Merge, first_of_name};
use crate::claim::{ClaimKey, Holder};
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectKey, ObjectName, ParentKey, PortKey};
use crate::names::Rank;
use crate::port::{Changed, PortAskedBy, PortClaims, PortDecision};
use crate::protocol::{Group, Protocol, Transport};

impl Merge {
    /// Takes the ports for which a route asks, in place of those for which it asked before. Without any, the route is
    /// removed. A route asks for the port of a listener of the Gateway itself ([`Self::own_port`]) to which it is
    /// attached. `is_refused` says that the route has a mistake of its own ([`PortAskedBy::Refused`]).
    pub fn put_port_route(
        &mut self,
        route: &ObjectKey,
        created: i64,
        ports: &BTreeSet<PortKey>,
        is_refused: bool,
    ) -> Affected {
        let mut affected = Affected::default();
        let former = if ports.is_empty() {
            self.on_ports.remove(route)
        } else {
            self.on_ports.insert(route.clone(), ports.clone())
        };
        let mut put = |this: &mut Self, at: &PortKey, rank: Option<Rank>| {
            let by = match (is_own(at, route), is_refused) {
                (true, _) => PortAskedBy::Own,
                (false, true) => PortAskedBy::Refused,
                (false, false) => PortAskedBy::Tenant,
            };
            let asks = rank.map(|rank| (rank, by));
            this.change_port(at, &mut affected, |port| port.put_route(route, asks));
            affected.claims.insert(ClaimKey::port(at));
        };
        for at in former.iter().flatten().filter(|at| !ports.contains(at)) {
            put(self, at, None);
        }
        for at in ports {
            put(self, at, Some(Rank::of(created, &route.name)));
        }
        affected
    }

    /// The port of a Gateway's own TCP or UDP listener, which has no names, so that a route asks for the port, even while
    /// the listener is refused for a mistake. `None` for every other listener. On a ListenerSet's listener, a route uses
    /// the port that the namespace of the set holds.
    #[must_use]
    pub fn own_port(&self, listener: &ListenerKey) -> Option<PortKey> {
        let ParentKey::Gateway(gateway) = &listener.parent else {
            return None;
        };
        let own = &self.gateway(gateway)?.listeners;
        let (_, own) = first_of_name(own).find(|(_, own)| own.name == listener.listener)?;
        if own.protocol.group() != Group::Raw {
            return None;
        }
        Some(PortKey {
            gateway: gateway.clone(),
            port: own.port?,
            transport: own.protocol.transport()?,
        })
    }

    /// Whether a route may have the traffic of the Gateway's own listener of a port ([`Self::own_port`]).
    #[must_use]
    pub fn decide_port(&self, at: &PortKey, route: &ObjectKey) -> PortDecision {
        let Some(port) = self.ports.get(at) else {
            return PortDecision::Has;
        };
        let namespace = &route.name.namespace;
        let decision = port.decide_route(namespace, is_own(at, route));
        if decision != PortDecision::Free || !self.assumes {
            return decision;
        }
        if port.next_of_routes() == Some(namespace) {
            PortDecision::Has
        } else {
            PortDecision::Taken
        }
    }

    /// Whether the holder of a port that does not use it may use it again. For HTTP or TLS, the Gateway has to allow
    /// ListenerSets of the holder's namespace. For TCP or UDP, grants have to give the namespace the port, and a
    /// listener of the Gateway itself on the port has to take its routes. If the Gateway has no such listener, which
    /// may be a mistake that is corrected a moment later, it is enough that the Gateway lets the namespace in
    /// anywhere.
    #[must_use]
    pub fn may_return_to(&self, at: &PortKey, holder: &Holder) -> bool {
        let namespace = &holder.namespace;
        if holder.speaks != Some(Group::Raw) {
            return self.admits(&at.gateway, namespace);
        }
        let protocol = match at.transport {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        };
        let any = HostPattern::Any;
        let granted = self.owns(&at.gateway, namespace, at.port, &protocol, &any);
        if granted.is_err() {
            return false;
        }
        let own = self.gateway(&at.gateway).into_iter();
        let own = own.flat_map(|gateway| &gateway.listeners);
        let mut here = own
            .filter(|own| own.port == Some(at.port) && own.protocol == protocol)
            .peekable();
        if here.peek().is_none() {
            let takes = self.takes_every_name(&at.gateway, namespace, at.port, &protocol);
            return takes.is_ok() && self.lets_in(&at.gateway, namespace);
        }
        let (gateway, labels) = (&at.gateway.namespace, self.labels(namespace));
        here.any(|own| own.allowed_namespaces.admits(gateway, namespace, labels))
    }

    /// Marks the ports of a Gateway that any namespace holds, or just the one in `only`, because the answer of
    /// [`Self::may_return_to`] may have changed.
    pub(super) fn mark_held_ports(
        &self,
        gateway: &ObjectName,
        only: Option<&Arc<str>>,
        affected: &mut Affected,
    ) {
        let held = self.ports_of(gateway).filter(|(_, port)| {
            let holder = port.holder();
            holder.is_some_and(|holder| only.is_none_or(|only| holder.namespace == *only))
        });
        affected
            .claims
            .extend(held.map(|(at, _)| ClaimKey::port(at)));
    }

    /// The claims to each port of a Gateway.
    pub(super) fn ports_of<'a>(
        &'a self,
        gateway: &'a ObjectName,
    ) -> impl Iterator<Item = (&'a PortKey, &'a PortClaims)> {
        let ports = self.ports.range(PortKey::first_of(gateway)..);
        ports.take_while(move |(at, _)| at.gateway == *gateway)
    }

    /// Puts the ports for which a ListenerSet has listeners that are refused for a mistake of their own.
    pub(super) fn settle_refused_ports_of(&mut self, set: &ObjectName, affected: &mut Affected) {
        let ports = self.refused_ports_of(set);
        let all = ports.keys().cloned().collect();
        let former = self.note_refused_ports(ParentKey::ListenerSet(set.clone()), &all);
        for at in former.union(&all) {
            let refused = ports.get(at).copied();
            self.change_port(at, affected, |port| {
                port.put_refused(set, refused);
                Changed::default()
            });
            affected.claims.insert(ClaimKey::port(at));
        }
    }

    /// Puts what a Gateway's own listeners would speak that are refused for a mistake, on each port.
    pub(super) fn settle_refused_ports_of_gateway(
        &mut self,
        name: &ObjectName,
        affected: &mut Affected,
    ) {
        let mut refused: BTreeMap<PortKey, BTreeSet<Group>> = BTreeMap::new();
        let own = self.gateway(name).into_iter();
        let own = own.flat_map(|gateway| first_of_name(&gateway.listeners));
        for (_, listener) in own.filter(|(_, listener)| listener.is_refused()) {
            let (Some(port), Some(transport)) = (listener.port, listener.protocol.transport())
            else {
                continue;
            };
            let at = PortKey {
                gateway: name.clone(),
                port,
                transport,
            };
            let groups = refused.entry(at).or_default();
            groups.insert(listener.protocol.group());
        }
        let ports: BTreeSet<PortKey> = refused.keys().cloned().collect();
        let former = self.note_refused_ports(ParentKey::Gateway(name.clone()), &ports);
        for at in former.union(&ports) {
            let groups = refused.remove(at).unwrap_or_default();
            self.change_port(at, affected, |port| port.put_refused_own(groups));
            affected.claims.insert(ClaimKey::port(at));
        }
    }

    /// Records the ports for which an object has refused listeners, and returns those before.
    fn note_refused_ports(
        &mut self,
        parent: ParentKey,
        ports: &BTreeSet<PortKey>,
    ) -> BTreeSet<PortKey> {
        let former = if ports.is_empty() {
            self.refused_ports.remove(&parent)
        } else {
            self.refused_ports.insert(parent, ports.clone())
        };
        former.unwrap_or_default()
    }

    /// The ports of those listeners of a ListenerSet that are refused for a mistake of their own, as far as grants allow
    /// its namespace to have them. Where the mistake is the protocol, the port may be of either transport. Each port comes
    /// with whether the namespace may have it for TCP or UDP, since what the listener says of that may be the mistake.
    fn refused_ports_of(&self, name: &ObjectName) -> BTreeMap<PortKey, bool> {
        let Some((set, gateway)) = self.set_in_force(name) else {
            return BTreeMap::new();
        };
        let gateway = &gateway.name;
        let refused = first_of_name(&set.listeners).filter(|(_, listener)| listener.is_refused());
        let ports = refused.flat_map(|(_, listener)| {
            let transport = listener.protocol.transport();
            let possible = Transport::ALL.into_iter();
            let possible = possible.filter(move |of| transport.is_none_or(|known| known == *of));
            possible.filter_map(move |transport| {
                let raw = match transport {
                    Transport::Tcp => &Protocol::Tcp,
                    Transport::Udp => &Protocol::Udp,
                };
                // A protocol that cannot be read may be a mistake for any that its namespace may have.
                let readings: &[Protocol] = match (&listener.protocol, transport) {
                    (Protocol::Other(_), Transport::Tcp) => &[
                        Protocol::Tcp,
                        Protocol::Http,
                        Protocol::Https,
                        Protocol::Tls,
                    ],
                    (Protocol::Other(_), Transport::Udp) => slice::from_ref(raw),
                    (known, _) => slice::from_ref(known),
                };
                let (port, namespace) = (listener.port?, &set.name.namespace);
                let names = &listener.hostname;
                let mut readings = readings.iter();
                if !readings.any(|of| self.owns(gateway, namespace, port, of, names).is_ok()) {
                    return None;
                }
                self.takes_every_name(gateway, namespace, port, &listener.protocol)
                    .ok()?;
                let any = HostPattern::Any;
                let granted = self.owns(gateway, namespace, port, raw, &any);
                let granted =
                    granted.and_then(|()| self.takes_every_name(gateway, namespace, port, raw));
                let at = PortKey {
                    gateway: gateway.clone(),
                    port,
                    transport,
                };
                Some((at, granted.is_ok()))
            })
        });
        ports.collect()
    }

    /// Changes the claims to a port, and removes the port if none are left.
    pub(super) fn change_port(
        &mut self,
        at: &PortKey,
        affected: &mut Affected,
        change: impl FnOnce(&mut PortClaims) -> Changed,
    ) {
        let port = self.ports.entry(at.clone()).or_default();
        affected.on_port(at, change(port));
        if port.is_empty() {
            self.ports.remove(at);
        }
    }
}

/// Whether a route is in the Gateway's own namespace, so that it needs no claim.
fn is_own(at: &PortKey, route: &ObjectKey) -> bool {
    route.name.namespace == at.gateway.namespace
}
