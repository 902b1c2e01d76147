//! The limit on ports: how many ports of a Gateway the ListenerSets of one namespace may use.
//!
//! Each port of a transport counts on which the namespace has a listener of a ListenerSet, or which it holds by a
//! recorded claim, and on which the Gateway has no listener of its own. Many listeners on one port count once. A
//! listener counts even if it conflicts, so the end of a conflict takes no port from another listener.
//!
//! A port that several namespaces share counts for each of them. If it counted only for its holder, two namespaces
//! could pass ports to each other: one joins the ports of the other one, which leaves them and takes new ones. Nobody
//! would be over the limit, and together they would have every port of the Gateway.
//!
//! If there are too many, these are kept, in this order:
//!
//! 1. The ports that the namespace holds. A lower limit takes none of them away.
//! 2. Ports that another namespace holds, and where a listener of this namespace has its hostname by a recorded claim.
//!    The namespace can be in service there without holding the port.
//! 3. All others.
//!
//! Within 2 and 3, the order of the merge decides, by the first listener of the namespace on the port. A new port that
//! nobody holds comes last, so it takes the place of no port in service. Nothing here depends on the listeners of other
//! namespaces, so nobody can take a port away from another namespace by asking for ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::GatewayTenant;
use crate::condition::Reason;
use crate::conflict::Precedence;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectName, PortKey};
use crate::protocol::Group;

/// A listener of a ListenerSet that uses a port, as far as grants allow it. The first field makes the order of the
/// merge the order of these values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortAsk {
    pub(crate) precedence: Precedence,
    pub(crate) listener: ListenerKey,
    pub(crate) at: PortKey,
    pub(crate) group: Group,
    pub(crate) names: HostPattern,
    /// The listener's field in its object, for findings.
    pub(crate) field: String,
}

/// The facts on which the limit depends besides the listeners and the holders of ports.
pub(crate) trait PortFacts {
    /// Whether the Gateway has a listener of its own on the port.
    fn is_own(&self, at: &PortKey) -> bool;

    /// Whether another namespace holds the port for what the listener speaks, and the namespace of the listener is
    /// recorded as the holder of its hostname.
    fn is_joined(&self, ask: &PortAsk) -> bool;
}

/// The ports of a tenant.
#[derive(Debug, Clone, Default)]
struct TenantPorts {
    asks: BTreeMap<PortKey, BTreeSet<Arc<PortAsk>>>,
    /// The ports that it holds by a recorded claim.
    held: BTreeSet<PortKey>,
    /// The listeners on ports beyond the limit.
    refused: BTreeMap<ListenerKey, Finding>,
}

impl TenantPorts {
    fn uses<'a>(&'a self, facts: &'a dyn PortFacts) -> impl Iterator<Item = &'a PortKey> {
        let all = self.asks.keys().chain(&self.held);
        all.filter(move |at| !facts.is_own(at))
    }

    /// Returns the ports beyond the limit; `None` if the tenant is within it.
    fn beyond(&self, limit: usize, facts: &dyn PortFacts) -> Option<Vec<&PortKey>> {
        let used: BTreeSet<&PortKey> = self.uses(facts).collect();
        if used.len() <= limit {
            return None;
        }
        let is_held = |at: &&&PortKey| self.held.contains(**at);
        // A held port is never beyond the limit, even if more are held than it allows: a lower limit takes nothing that
        // is in service.
        let room = limit.saturating_sub(used.iter().filter(is_held).count());
        let others = used.iter().filter(|at| !self.held.contains(**at));
        let mut ranked: Vec<(bool, &Arc<PortAsk>)> = others
            .filter_map(|at| {
                let asks = self.asks.get(*at)?;
                let joined = asks.iter().find(|ask| facts.is_joined(ask));
                // `false` comes first: the ports where the namespace is in service come before new ones.
                Some((joined.is_none(), joined.or(asks.first())?))
            })
            .collect();
        ranked.sort();
        Some(ranked.iter().skip(room).map(|(_, ask)| &ask.at).collect())
    }
}

/// The ports of all tenants.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortLimits {
    tenants: BTreeMap<GatewayTenant, TenantPorts>,
    sets: BTreeMap<ObjectName, (GatewayTenant, Vec<Arc<PortAsk>>)>,
    /// The tenants that use or ask for more than their limit. Only their verdicts depend on more than the number.
    exceeding: BTreeSet<GatewayTenant>,
}

impl PortLimits {
    /// Takes the listeners of a set, in place of its former ones, or `None` if the set takes no part. Returns the tenants
    /// that have to be counted again.
    pub(crate) fn put(
        &mut self,
        name: &ObjectName,
        now: Option<(GatewayTenant, Vec<Arc<PortAsk>>)>,
    ) -> BTreeSet<GatewayTenant> {
        let mut touched = BTreeSet::new();
        if let Some((tenant, asks)) = self.sets.remove(name) {
            if let Some(ports) = self.tenants.get_mut(&tenant) {
                for ask in &asks {
                    if let Some(of_port) = ports.asks.get_mut(&ask.at) {
                        of_port.remove(ask);
                        if of_port.is_empty() {
                            ports.asks.remove(&ask.at);
                        }
                    }
                }
            }
            touched.insert(tenant);
        }
        if let Some((tenant, asks)) = now {
            let ports = self.tenants.entry(tenant.clone()).or_default();
            for ask in &asks {
                let of_port = ports.asks.entry(ask.at.clone()).or_default();
                of_port.insert(ask.clone());
            }
            self.sets.insert(name.clone(), (tenant.clone(), asks));
            touched.insert(tenant);
        }
        touched
    }

    /// Takes whether a tenant holds a port.
    pub(crate) fn hold(&mut self, tenant: &GatewayTenant, at: &PortKey, holds: bool) {
        if holds {
            let ports = self.tenants.entry(tenant.clone()).or_default();
            ports.held.insert(at.clone());
        } else if let Some(ports) = self.tenants.get_mut(tenant) {
            ports.held.remove(at);
        }
    }

    /// The tenants beyond their limit that ask for a port. Who holds the port may change their verdicts.
    pub(crate) fn exceeding_at(&self, at: &PortKey) -> impl Iterator<Item = &GatewayTenant> {
        self.exceeding.iter().filter(|tenant| {
            let ports = self.tenants.get(*tenant);
            ports.is_some_and(|ports| ports.asks.contains_key(at))
        })
    }

    /// Whether a tenant uses or asks for more than its limit.
    pub(crate) fn exceeds(&self, tenant: &GatewayTenant) -> bool {
        self.exceeding.contains(tenant)
    }

    /// Compares the ports of a tenant with its limit (`None` if it has none), and returns the listeners whose verdict is
    /// another one than before.
    pub(crate) fn recount(
        &mut self,
        tenant: &GatewayTenant,
        limit: Option<u32>,
        facts: &dyn PortFacts,
    ) -> BTreeSet<ListenerKey> {
        let mut changed = BTreeSet::new();
        let Some(ports) = self.tenants.get_mut(tenant) else {
            return changed;
        };
        let mut refused = BTreeMap::new();
        let beyond = limit.and_then(|limit| {
            let most = usize::try_from(limit).unwrap_or(usize::MAX);
            Some((limit, ports.beyond(most, facts)?))
        });
        match &beyond {
            Some(_) => self.exceeding.insert(tenant.clone()),
            None => self.exceeding.remove(tenant),
        };
        for (limit, at) in beyond
            .iter()
            .flat_map(|(l, all)| all.iter().map(move |at| (*l, *at)))
        {
            for ask in ports.asks.get(at).into_iter().flatten() {
                let finding = too_many_ports(tenant, limit, at, &ask.field);
                refused.insert(ask.listener.clone(), finding);
            }
        }
        for (a, b) in [(&ports.refused, &refused), (&refused, &ports.refused)] {
            let differs = a
                .iter()
                .filter(|(key, finding)| b.get(*key) != Some(*finding));
            changed.extend(differs.map(|(key, _)| key.clone()));
        }
        ports.refused = refused;
        if ports.asks.is_empty() && ports.held.is_empty() {
            self.tenants.remove(tenant);
        }
        changed
    }

    /// Why a listener of a set is refused, if it is on a port beyond the limit.
    pub(crate) fn refusal(&self, set: &ObjectName, listener: &ListenerKey) -> Option<&Finding> {
        let (tenant, _) = self.sets.get(set)?;
        self.tenants.get(tenant)?.refused.get(listener)
    }

    /// The findings about new listeners of a set that is not applied yet. `asks` has all listeners of the new version
    /// in order, `former` those of the present version. Admission asks this.
    ///
    /// Whatever the namespace uses now comes before a new port. A listener that is there already on the same port is not
    /// judged again, so that a set beyond the limit can be edited.
    pub(crate) fn of_change(
        &self,
        tenant: &GatewayTenant,
        set: &ObjectName,
        limit: u32,
        former: &[Arc<PortAsk>],
        asks: &[Arc<PortAsk>],
        facts: &dyn PortFacts,
    ) -> Vec<Finding> {
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let empty = TenantPorts::default();
        let ports = self.tenants.get(tenant).unwrap_or(&empty);
        let is_kept = |ask: &&Arc<PortAsk>| {
            let same = |old: &Arc<PortAsk>| old.listener == ask.listener && old.at == ask.at;
            former.iter().any(same)
        };
        let of_others = ports.asks.iter().filter(|(_, asks)| {
            let mut asks = asks.iter();
            asks.any(|ask| ask.listener.parent.name() != set)
        });
        let mut used: BTreeSet<&PortKey> = of_others.map(|(at, _)| at).collect();
        used.extend(&ports.held);
        used.extend(asks.iter().filter(is_kept).map(|ask| &ask.at));
        used.retain(|at| !facts.is_own(at));
        // A listener on a port beyond the limit is refused as well. Admission must say so now, and not leave it to the
        // status.
        let is_beyond = |at: &PortKey| {
            let mut asks = ports.asks.get(at).into_iter().flatten();
            asks.any(|ask| ports.refused.contains_key(&ask.listener))
        };
        let mut findings = Vec::new();
        for ask in asks.iter().filter(|ask| !is_kept(ask)) {
            if facts.is_own(&ask.at) || used.contains(&ask.at) && !is_beyond(&ask.at) {
                continue;
            }
            if used.len() < most {
                used.insert(&ask.at);
            } else {
                findings.push(too_many_ports(tenant, limit, &ask.at, &ask.field));
            }
        }
        findings
    }
}

fn too_many_ports(tenant: &GatewayTenant, limit: u32, at: &PortKey, field: &str) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        format!("{field}.port"),
        format!(
            "{} port {} would be one more than the {limit} that namespace {} may use on Gateway {}",
            at.transport.as_str(),
            at.port,
            tenant.namespace,
            tenant.gateway
        ),
        "use a port that the namespace already uses or that the Gateway has itself, remove listeners on other ports, or ask the owner of the Gateway for a HostnameGrant with a higher limits.ports",
    )
}
