//! The limit on ports in the merge: it passes facts to [`crate::ownership`], and says which ListenerSets have listeners
//! with another verdict.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Affected, Merge, first_of_name, set_claims};
use crate::claim::{ClaimKey, Claimed, Holder};
use crate::finding::Finding;
use crate::gateway::{Gateway, ListenerSet};
use crate::key::{ObjectName, ParentKey, PortKey};
use crate::ownership::{GatewayTenant, GrantCheck, PortAsk, PortFacts};
use crate::port::PortClaims;
use crate::protocol::Group;

impl PortFacts for Merge {
    fn is_own(&self, at: &PortKey) -> bool {
        self.ports.get(at).is_some_and(PortClaims::is_of_gateway)
    }

    fn is_joined(&self, ask: &PortAsk) -> bool {
        let holder = self.ports.get(&ask.at).and_then(PortClaims::holder);
        let names = self.names.get(&ask.at.gateway);
        ask.group != Group::Raw
            && holder.is_some_and(|holder| holder.speaks == Some(ask.group))
            && names.and_then(|of| of.recorded(&ask.names))
                == Some(&ask.listener.parent.name().namespace)
    }
}

impl Merge {
    /// A merge in which the ListenerSets of a namespace may use this many ports of a Gateway, unless a grant says
    /// otherwise.
    #[must_use]
    pub fn with_ports_per_namespace(mut self, most: u32) -> Self {
        self.ports_per_namespace = Some(most);
        self
    }

    /// Counts the ports of these sets, and returns all sets with a listener that is over or under the limit by that.
    pub(super) fn count_ports_of(
        &mut self,
        sets: &BTreeSet<ObjectName>,
        affected: &mut Affected,
    ) -> BTreeSet<ObjectName> {
        let mut touched = BTreeSet::new();
        for name in sets {
            let asks = self.set_in_force(name).map(|(set, gateway)| {
                let tenant = GatewayTenant {
                    gateway: gateway.name.clone(),
                    namespace: name.namespace.clone(),
                };
                let is_given = |ask: &Arc<PortAsk>| {
                    let refusal = self.grant_checks.refusal(name, &ask.listener);
                    refusal.is_none()
                };
                (tenant, asks(set, gateway).filter(is_given).collect())
            });
            touched.extend(self.port_limits.put(name, asks));
        }
        self.recount_ports(&touched, affected)
    }

    /// Notes who holds a port or a name from now on, and returns the tenants whose ports have to be counted again. They
    /// are those that get or lose a port, and of those beyond their limit everybody for whom the order may be another
    /// one.
    pub(super) fn count_holder(
        &mut self,
        key: &ClaimKey,
        former: Option<&Holder>,
        holder: Option<&Holder>,
    ) -> BTreeSet<GatewayTenant> {
        let tenant = |of: &Holder| GatewayTenant {
            gateway: key.gateway.clone(),
            namespace: of.namespace.clone(),
        };
        let (former, holder) = (former.map(tenant), holder.map(tenant));
        let concerned = former.iter().chain(&holder);
        let (Claimed::Port(..), Some(at)) = (&key.of, key.port_key()) else {
            let exceeding = concerned.filter(|tenant| self.port_limits.exceeds(tenant));
            return exceeding.cloned().collect();
        };
        if former != holder {
            if let Some(former) = &former {
                self.port_limits.hold(former, &at, false);
            }
            if let Some(holder) = &holder {
                self.port_limits.hold(holder, &at, true);
            }
        }
        let others = self.port_limits.exceeding_at(&at);
        concerned.chain(others).cloned().collect()
    }

    /// Compares the ports of these tenants with their limits, and returns all sets with a listener whose verdict is
    /// another one than before.
    pub(super) fn recount_ports(
        &mut self,
        tenants: &BTreeSet<GatewayTenant>,
        affected: &mut Affected,
    ) -> BTreeSet<ObjectName> {
        let mut sets = BTreeSet::new();
        let mut limits = std::mem::take(&mut self.port_limits);
        for tenant in tenants {
            for listener in limits.recount(tenant, self.most_ports(tenant), self) {
                if let ParentKey::ListenerSet(set) = &listener.parent {
                    sets.insert(set.clone());
                }
                affected.listeners.insert(listener);
            }
        }
        self.port_limits = limits;
        sets
    }

    /// How many ports a tenant may use; `None` if there is no limit. The Gateway's own namespace has none.
    fn most_ports(&self, tenant: &GatewayTenant) -> Option<u32> {
        let GatewayTenant { gateway, namespace } = tenant;
        if gateway.namespace == *namespace {
            return None;
        }
        self.limits(gateway, namespace)
            .ports
            .or(self.ports_per_namespace)
    }

    /// Findings about listeners that a ListenerSet would get by a change from `old`, if their ports are more than its
    /// namespace may use. A listener that is there already on the same port is not judged again, so that a set over the
    /// limit can still be edited. Listeners that no grant gives are left out, because they use nothing.
    #[must_use]
    pub fn ports_of_change(&self, old: Option<&ListenerSet>, set: &ListenerSet) -> Vec<Finding> {
        let Some((tenant, check)) = self.check_grants(set) else {
            return Vec::new();
        };
        let gateway = self.gateway(&tenant.gateway);
        let (Some(limit), Some(gateway)) = (self.most_ports(&tenant), gateway) else {
            return Vec::new();
        };
        let given = |set: &ListenerSet, check: &GrantCheck| -> Vec<Arc<PortAsk>> {
            let listeners = first_of_name(&set.listeners);
            let refused = listeners.filter(|(index, _)| check.refused.contains_key(index));
            let refused: BTreeSet<&str> = refused.map(|(_, listener)| &*listener.name).collect();
            let is_given = |ask: &Arc<PortAsk>| !refused.contains(&*ask.listener.listener);
            asks(set, gateway).filter(is_given).collect()
        };
        let old = old.filter(|old| old.gateway == set.gateway);
        let before = old.and_then(|old| Some(given(old, &self.check_grants(old)?.1)));
        let (former, new) = (before.unwrap_or_default(), given(set, &check));
        self.port_limits
            .of_change(&tenant, &set.name, limit, &former, &new, self)
    }
}

/// The listeners of a set that ask for ports.
fn asks<'a>(set: &'a ListenerSet, gateway: &'a Gateway) -> impl Iterator<Item = Arc<PortAsk>> + 'a {
    set_claims(set, &gateway.name, Some(gateway)).map(|(listener, at, claim)| {
        Arc::new(PortAsk {
            group: claim.protocol.group(),
            names: claim.names().clone(),
            precedence: claim.precedence,
            listener: claim.listener,
            at,
            field: listener.field.clone(),
        })
    })
}
