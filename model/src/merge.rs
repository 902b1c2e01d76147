//! The merge: which ListenerSets extend which Gateway, and which of all their listeners hold a hostname or a port.
//!
//! The operator translates with this index, and the webhook admits with it, so both judge by the same facts. Each
//! change returns everything whose verdict it may have changed. Nothing else has to be computed again.

mod first_grant;
mod names;
mod nearest;
mod ownership;
mod port_limits;
mod port_routes;
mod preview;
mod route_size;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attach::{admit_set, supported_kinds};
use crate::claim::ClaimKey;
use crate::conflict::{Claim, Conflict, Precedence};
use crate::finding::Finding;
use crate::gateway::{Gateway, GatewayClass, Listener, ListenerSet};
use crate::hostname::HostPattern;
use crate::hostname_grant::HostnameGrant;
use crate::key::{ListenerKey, ObjectKey, ObjectName, ParentKey, PortKey};
use crate::names::{GatewayNames, NameDecision, NameSource};
use crate::ownership::{GrantChecks, HostnameGrants, PortLimits};
use crate::port::{Changed, Neighbour, PortClaims};
use crate::protocol::Protocol;
use crate::selector::Labels;
use crate::small::{Members, SmallMap, SmallSet};

pub use names::RouteAsks;
pub use nearest::NearestOwners;
pub use ownership::Owners;

/// Whether a Gateway exists, and whether it belongs to our controller.
type Presence = (bool, bool);

/// Whether a ListenerSet extends its Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetVerdict {
    /// Its Gateway does not exist or belongs to another controller. The set has no effect and gets no status.
    Orphan,
    /// The Gateway does not allow it. The set has no effect.
    NotAllowed(Finding),
    /// The set extends the Gateway.
    Allowed,
}

/// Everything whose verdict a change may have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affected {
    /// Gateways that changed themselves, or whose class did.
    pub gateways: BTreeSet<ObjectName>,
    /// ListenerSets.
    pub sets: BTreeSet<ObjectName>,
    /// Listeners.
    pub listeners: BTreeSet<ListenerKey>,
    /// Namespaces whose routes may own other hostnames now; see [`Merge::is_touched`].
    pub owners: Vec<Owners>,
    /// Routes that have other names now, or no longer wait for a name.
    pub routes: BTreeSet<ObjectKey>,
    /// Keys whose holder may have changed, or whose next holder may have.
    pub claims: BTreeSet<ClaimKey>,
    /// Names that may belong to another namespace now, by Gateway; see [`GatewayNames::owner_at`].
    pub owned: BTreeSet<(ObjectName, HostPattern)>,
    /// Names for which a TLS listener came or went. [`Merge::overlaps`] may have changed for each of their
    /// [`Merge::neighbours`].
    pub overlaps: BTreeSet<(PortKey, HostPattern)>,
    /// Versions of grants that began or ceased to limit connections, each once. [`Merge::connection_limits`] may have changed
    /// for each namespace that they select.
    pub limiting: Vec<Arc<HostnameGrant>>,
}

impl Affected {
    fn on_port(&mut self, at: &PortKey, changed: Changed) {
        self.listeners.extend(changed.listeners);
        self.routes.extend(changed.routes);
        let overlaps = changed.overlaps.into_iter();
        self.overlaps
            .extend(overlaps.map(|names| (at.clone(), names)));
    }
}

/// Classes, Gateways, ListenerSets and namespaces, and the claims that follow from them.
#[derive(Debug, Clone, Default)]
pub struct Merge {
    controller: Arc<str>,
    classes: BTreeMap<Arc<str>, GatewayClass>,
    gateways: BTreeMap<ObjectName, Arc<Gateway>>,
    sets: BTreeMap<ObjectName, Arc<ListenerSet>>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    gateways_by_class: BTreeMap<Arc<str>, BTreeSet<ObjectName>>,
    sets_by_gateway: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    sets_by_namespace: BTreeMap<Arc<str>, SmallSet<ObjectName>>,
    ports: BTreeMap<PortKey, PortClaims>,
    /// The port to which each listener of an object has a claim.
    claimed: BTreeMap<ParentKey, SmallMap<ListenerKey, PortKey>>,
    /// The names of each Gateway, with the namespaces that hold them or ask for them.
    names: BTreeMap<ObjectName, GatewayNames>,
    /// The Gateways whose names have to be settled; see [`Self::settle_names`].
    unsettled: BTreeSet<ObjectName>,
    /// The listeners of each object that are in `names`, and the Gateway under which they are.
    named: BTreeMap<ParentKey, (ObjectName, SmallSet<NameSource>)>,
    /// The Gateways on which each route asks for names, and as what.
    asking: BTreeMap<ObjectKey, SmallSet<(ObjectName, NameSource)>>,
    /// The ports of Gateways where each TCPRoute or UDPRoute is attached to a listener of the Gateway itself.
    on_ports: BTreeMap<ObjectKey, BTreeSet<PortKey>>,
    /// The ports for which each Gateway and ListenerSet has listeners of its own that are refused for a mistake.
    refused_ports: BTreeMap<ParentKey, BTreeSet<PortKey>>,
    /// Most names of a namespace on a Gateway, where no grant says otherwise.
    names_per_namespace: Option<u32>,
    /// Most ports of a Gateway that a namespace may use, where no grant says otherwise.
    ports_per_namespace: Option<u32>,
    /// Whether the next holder of a name already counts as its holder; see [`Self::assuming`].
    assumes: bool,
    /// The next holder of each name when it was computed last, if `assumes`.
    assumed: BTreeMap<(ObjectName, HostPattern), Arc<str>>,
    /// The `HostnameGrant` objects, which say who may use which names.
    pub(crate) grants: HostnameGrants,
    pub(crate) grant_checks: GrantChecks,
    port_limits: PortLimits,
}

impl Merge {
    /// An empty merge for the GatewayClasses of `controller`.
    pub fn new(controller: impl Into<Arc<str>>) -> Self {
        Self {
            controller: controller.into(),
            ..Self::default()
        }
    }

    /// The controller whose GatewayClasses are ours.
    #[must_use]
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// Takes a new version of a GatewayClass, or its removal.
    pub fn put_class(&mut self, name: &Arc<str>, class: Option<GatewayClass>) -> Affected {
        let gateways = self.gateways_by_class.get(name).cloned();
        let gateways = gateways.unwrap_or_default();
        let before: Vec<Presence> = gateways.iter().map(|of| self.presence(of)).collect();
        match class {
            Some(class) => self.classes.insert(name.clone(), class),
            None => self.classes.remove(name),
        };
        let mut affected = Affected::default();
        for (gateway, before) in gateways.iter().zip(before) {
            self.settle_gateway(gateway, before, &mut affected);
        }
        // Each of these Gateways brings the grants that are for it, and a grant may be for several of them. No grant has changed,
        // so each has one version.
        let limiting = &mut affected.limiting;
        limiting.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        limiting.dedup_by(|a, b| a.name == b.name);
        affected
    }

    /// Takes a new version of a Gateway, or its removal.
    pub fn put_gateway(&mut self, name: &ObjectName, gateway: Option<Arc<Gateway>>) -> Affected {
        let before = self.presence(name);
        if let Some(old) = self.gateways.remove(name) {
            forget(&mut self.gateways_by_class, &old.class, name);
        }
        if let Some(gateway) = gateway {
            self.gateways_by_class
                .entry(gateway.class.clone())
                .or_default()
                .insert(name.clone());
            self.gateways.insert(name.clone(), gateway);
        }
        let mut affected = Affected::default();
        self.settle_gateway(name, before, &mut affected);
        affected
    }

    /// Takes a new version of a ListenerSet, or its removal.
    pub fn put_set(&mut self, name: &ObjectName, set: Option<Arc<ListenerSet>>) -> Affected {
        if let Some(old) = self.sets.remove(name) {
            if let Some(gateway) = &old.gateway {
                forget(&mut self.sets_by_gateway, gateway, name);
            }
            forget(&mut self.sets_by_namespace, &name.namespace, name);
        }
        if let Some(set) = set {
            if let Some(gateway) = &set.gateway {
                self.sets_by_gateway
                    .entry(gateway.clone())
                    .or_default()
                    .insert(name.clone());
            }
            self.sets_by_namespace
                .entry(name.namespace.clone())
                .or_default()
                .insert(name.clone());
            self.sets.insert(name.clone(), set);
        }
        let mut affected = Affected::default();
        self.settle_sets(BTreeSet::from([name.clone()]), &mut affected);
        affected
    }

    /// Takes a namespace's labels, or its removal.
    pub fn put_namespace(&mut self, name: &Arc<str>, labels: Option<Labels>) -> Affected {
        match labels {
            Some(labels) => self.namespaces.insert(name.clone(), labels),
            None => self.namespaces.remove(name),
        };
        let mut affected = Affected::default();
        let gateways: Vec<ObjectName> = self.names.keys().cloned().collect();
        let namespaces = BTreeSet::from([name.clone()]);
        for gateway in gateways {
            self.recheck_names(&gateway, Some(&namespaces), &mut affected);
        }
        for gateway in self.gateways.keys() {
            self.mark_held_ports(gateway, Some(name), &mut affected);
        }
        let sets = self.sets_by_namespace.get(name).into_iter().flatten();
        let sets = sets.cloned().collect();
        self.settle_sets(sets, &mut affected);
        affected
    }

    /// Takes a new version of a HostnameGrant, or its removal. Pass [`HostnameGrant::unreadable`] for one that cannot
    /// be read.
    pub fn put_grant(&mut self, name: &ObjectName, grant: Option<Arc<HostnameGrant>>) -> Affected {
        let guarded: BTreeSet<ObjectName> = self.guarded_in(&name.namespace);
        let old = self.grants.put(name, grant.clone());
        let after = self.guarded_in(&name.namespace);
        let mut affected = Affected::default();
        if old == grant {
            return affected;
        }
        let versions: Vec<Arc<HostnameGrant>> = old.into_iter().chain(grant).collect();
        affected.limiting.extend(limiting(&versions).cloned());
        let mut sets = BTreeSet::new();
        let gateways: Vec<ObjectName> = self.gateways_in(&name.namespace).cloned().collect();
        for gateway in gateways {
            let flipped = guarded.contains(&gateway) != after.contains(&gateway);
            let versions: Vec<_> = versions
                .iter()
                .filter(|version| version.is_for(&gateway.name))
                .cloned()
                .collect();
            if versions.is_empty() && !flipped {
                continue;
            }
            let owners = Owners {
                gateway: gateway.clone(),
                grants: (!flipped).then_some(versions),
            };
            let namespaces = (!flipped).then(|| {
                let all = self.names(&gateway).into_iter();
                let all = all.flat_map(GatewayNames::namespaces);
                all.filter(|namespace| self.is_touched(&owners, namespace))
                    .cloned()
                    .collect()
            });
            self.recheck_names(&gateway, namespaces.as_ref(), &mut affected);
            self.mark_held_ports(&gateway, None, &mut affected);
            let touched = self
                .sets_of(&gateway)
                .filter(|set| self.is_touched(&owners, &set.namespace));
            sets.extend(touched.cloned());
            affected.owners.push(owners);
        }
        self.settle_sets(sets, &mut affected);
        affected
    }

    /// Whether a Gateway allows ListenerSets of this namespace.
    #[must_use]
    pub fn admits(&self, gateway: &ObjectName, namespace: &str) -> bool {
        self.gateway(gateway).is_some_and(|gateway| {
            gateway.allowed_listeners.admits(
                &gateway.name.namespace,
                namespace,
                self.labels(namespace),
            )
        })
    }

    /// Whether a Gateway lets anything of this namespace in: ListenerSets, or routes on one of its own listeners. A
    /// Gateway that does not exist (any more) may come back, so its tenants keep their claims until then.
    pub(crate) fn lets_in(&self, gateway: &ObjectName, namespace: &str) -> bool {
        let Some(known) = self.gateway(gateway) else {
            return true;
        };
        let labels = self.labels(namespace);
        let takes_routes = |own: &Listener| {
            own.allowed_namespaces
                .admits(&gateway.namespace, namespace, labels)
        };
        self.admits(gateway, namespace) || known.listeners.iter().any(takes_routes)
    }

    /// The namespaces that are known by their labels, by a Gateway or by a ListenerSet. One may come several times.
    pub fn known_namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        let of_gateways = self.gateways.keys().map(|name| &name.namespace);
        let of_sets = self.sets_by_namespace.keys();
        self.namespaces.keys().chain(of_sets).chain(of_gateways)
    }

    /// Whether a namespace is one of [`Self::known_namespaces`].
    #[must_use]
    pub fn is_known_namespace(&self, namespace: &Arc<str>) -> bool {
        self.namespaces.contains_key(namespace)
            || self.sets_by_namespace.contains_key(namespace)
            || self.gateways_in(namespace).next().is_some()
    }

    /// The labels of a namespace, if known.
    #[must_use]
    pub fn labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }

    /// A GatewayClass.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&GatewayClass> {
        self.classes.get(name)
    }

    /// Whether a GatewayClass belongs to our controller.
    #[must_use]
    pub fn is_our_class(&self, name: &str) -> bool {
        self.classes
            .get(name)
            .is_some_and(|class| class.controller == self.controller)
    }

    /// A Gateway of one of our classes that is not being deleted.
    #[must_use]
    pub fn gateway(&self, name: &ObjectName) -> Option<&Arc<Gateway>> {
        self.gateways
            .get(name)
            .filter(|gateway| !gateway.meta.deleting && self.is_our_class(&gateway.class))
    }

    /// The Gateways that name a class, ours or not, in order of their names.
    pub fn gateways_of(&self, class: &str) -> impl Iterator<Item = &ObjectName> {
        self.gateways_by_class.get(class).into_iter().flatten()
    }

    /// Whether a Gateway is known, and known to be another controller's.
    #[must_use]
    pub fn is_foreign(&self, name: &ObjectName) -> bool {
        self.gateways
            .get(name)
            .and_then(|gateway| self.classes.get(&gateway.class))
            .is_some_and(|class| class.controller != self.controller)
    }

    /// Whether there is such a Gateway, ours or not.
    #[must_use]
    pub fn is_known_gateway(&self, name: &ObjectName) -> bool {
        self.gateways.contains_key(name)
    }

    /// The Gateways of a namespace, ours or not, in order of their names.
    pub fn gateways_in<'a>(
        &'a self,
        namespace: &'a Arc<str>,
    ) -> impl Iterator<Item = &'a ObjectName> {
        self.gateways
            .range(ObjectName::new(namespace.clone(), "")..)
            .map(|(name, _)| name)
            .take_while(move |name| name.namespace == *namespace)
    }

    /// A ListenerSet.
    #[must_use]
    pub fn set(&self, name: &ObjectName) -> Option<&Arc<ListenerSet>> {
        self.sets.get(name)
    }

    /// The ListenerSets that name a Gateway, in order of their names.
    pub fn sets_of(&self, gateway: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.sets_by_gateway.get(gateway).into_iter().flatten()
    }

    /// Whether a ListenerSet extends its Gateway.
    #[must_use]
    pub fn verdict(&self, set: &ListenerSet) -> SetVerdict {
        let Some(gateway) = set.gateway.as_ref().and_then(|name| self.gateway(name)) else {
            return SetVerdict::Orphan;
        };
        match admit_set(gateway, set, self.labels(&set.name.namespace)) {
            Ok(()) => SetVerdict::Allowed,
            Err(finding) => SetVerdict::NotAllowed(finding),
        }
    }

    /// The Gateway of a ListenerSet that counts there, because it is allowed and not being deleted.
    fn gateway_in_force(&self, set: &ListenerSet) -> Option<&Arc<Gateway>> {
        let counts = !set.meta.deleting && self.verdict(set) == SetVerdict::Allowed;
        self.gateway(set.gateway.as_ref()?).filter(|_| counts)
    }

    /// The ListenerSet of this name, if it counts, with its Gateway.
    fn set_in_force(&self, name: &ObjectName) -> Option<(&Arc<ListenerSet>, &Arc<Gateway>)> {
        let set = self.sets.get(name)?;
        Some((set, self.gateway_in_force(set)?))
    }

    /// The listeners that an object declares, and the Gateway they belong to.
    #[must_use]
    pub fn listeners(&self, parent: &ParentKey) -> Option<(&[Listener], &ObjectName)> {
        match parent {
            ParentKey::Gateway(name) => {
                let gateway = self.gateway(name)?;
                Some((&gateway.listeners, &gateway.name))
            }
            ParentKey::ListenerSet(name) => {
                let set = self.sets.get(name)?;
                Some((&set.listeners, set.gateway.as_ref()?))
            }
        }
    }

    /// The claims to a port.
    #[must_use]
    pub fn port(&self, key: &PortKey) -> Option<&PortClaims> {
        self.ports.get(key)
    }

    /// The claim of a listener to its port. It is `None` if the listener takes no part: its object is not allowed or is
    /// being deleted, or the listener itself is refused.
    #[must_use]
    pub fn claim(&self, listener: &ListenerKey) -> Option<(&PortKey, &Claim)> {
        let key = self.claimed.get(&listener.parent)?.get(listener)?;
        Some((key, self.ports.get(key)?.claim(listener)?))
    }

    /// The conflict of a listener, if any: with another listener of its port, or with the namespace that has its
    /// hostname.
    #[must_use]
    pub fn conflict(&self, listener: &ListenerKey) -> Option<Conflict> {
        // The name comes first: a listener that may not have its hostname makes no claim, so it has no conflict on the
        // port.
        let with_holder = self.refused_name(listener);
        if let Some(conflict) = with_holder.and_then(NameDecision::conflict) {
            return Some(conflict);
        }
        let (key, claim) = self.claim(listener)?;
        self.ports.get(key)?.conflict(claim)
    }

    /// The TLS listeners of a port whose names differ from `names` and overlap with them. With `after`, the iterator
    /// begins there, so that the work can be done in steps.
    pub fn neighbours<'a>(
        &'a self,
        at: &PortKey,
        names: &'a HostPattern,
        after: Option<&'a Neighbour>,
    ) -> impl Iterator<Item = Neighbour> + 'a {
        let port = self.ports.get(at).into_iter();
        port.flat_map(move |port| port.neighbours(names, after))
    }

    /// Whether a listener overlaps with another TLS listener of its port.
    #[must_use]
    pub fn overlaps(&self, listener: &ListenerKey) -> bool {
        self.claim(listener)
            .and_then(|(key, claim)| Some(self.ports.get(key)?.overlaps(claim)))
            .unwrap_or(false)
    }

    fn presence(&self, gateway: &ObjectName) -> Presence {
        (
            self.is_known_gateway(gateway),
            self.gateway(gateway).is_some(),
        )
    }

    fn settle_gateway(&mut self, name: &ObjectName, before: Presence, affected: &mut Affected) {
        affected.gateways.insert(name.clone());
        if self.presence(name) != before {
            self.mark_claims(name, affected);
            let grants = self.grants_in(&name.namespace);
            let grants = limiting(grants).filter(|grant| grant.is_for(&name.name));
            affected.limiting.extend(grants.cloned());
        }
        self.mark_held_ports(name, None, affected);
        self.settle_own_names(name, affected);
        self.settle_refused_ports_of_gateway(name, affected);
        let claims = self
            .gateway(name)
            .map(|gateway| gateway_claims(gateway))
            .unwrap_or_default();
        self.settle_claims(&ParentKey::Gateway(name.clone()), claims, affected);
        // The sets come last, because what they may have depends on the names and ports of the Gateway itself.
        let sets = self.sets_by_gateway.get(name).cloned();
        self.settle_sets(sets.unwrap_or_default(), affected);
    }

    fn guarded_in(&self, namespace: &Arc<str>) -> BTreeSet<ObjectName> {
        self.gateways_in(namespace)
            .filter(|gateway| self.grants.guards(gateway))
            .cloned()
            .collect()
    }

    /// Computes again what these sets have. Sets of the same namespaces whose listeners come over or under a limit by
    /// that are included.
    ///
    /// The order matters. Grants say which listeners count, the counts say which of them are over a limit, the ports of
    /// those that are left say which of them are over the limit on ports, and only the listeners that are left then ask
    /// for names. What a listener claims on its port depends, in turn, on its name.
    pub(crate) fn settle_sets(&mut self, mut sets: BTreeSet<ObjectName>, affected: &mut Affected) {
        affected.sets.extend(sets.iter().cloned());
        let mut recounted = BTreeSet::new();
        for name in &sets {
            let set = self.sets.get(name).cloned();
            let check = set
                .as_ref()
                .and_then(|set| Some((set, self.check_grants(set)?)));
            let check = check.map(|(set, (at, check))| (set.as_ref(), at, check));
            recounted.extend(self.grant_checks.put(name, check));
        }
        for at in recounted {
            let limits = self.limits(&at.gateway, &at.namespace);
            sets.extend(self.grant_checks.recount(&at, limits));
        }
        for name in &sets {
            let set = self.sets.get(name).map(Arc::as_ref);
            affected
                .listeners
                .extend(self.grant_checks.judge(name, set));
        }
        // Ports are counted after the verdicts above, because a listener without a grant or over a limit uses no port.
        sets.extend(self.count_ports_of(&sets, affected));
        for name in sets {
            self.settle_names_of(&name, affected);
            self.settle_ports_of(&name, affected);
            self.settle_refused_ports_of(&name, affected);
        }
    }

    fn settle_claims(
        &mut self,
        parent: &ParentKey,
        claims: Vec<(PortKey, Claim)>,
        affected: &mut Affected,
    ) {
        let mut before = self.claimed.remove(parent).unwrap_or_default();
        let mut after = SmallMap::default();
        for (key, claim) in claims {
            let listener = claim.listener.clone();
            // A listener that moved to another port gives up its claim to the former one first.
            let kept = before.remove(&listener);
            if let Some(old) = kept.filter(|old| *old != key) {
                self.retract(&old, &listener, affected);
            }
            let port = self.ports.get(&key);
            // An equal claim is not put again. Otherwise each edit of a set would concern everybody on all of its
            // ports.
            if port.and_then(|port| port.claim(&listener)) != Some(&claim) {
                self.change_port(&key, affected, |port| port.insert(claim));
                affected.claims.insert(ClaimKey::port(&key));
            }
            after.insert(listener, key);
        }
        for (listener, key) in before {
            self.retract(&key, &listener, affected);
            affected.listeners.insert(listener);
        }
        if !after.is_empty() {
            self.claimed.insert(parent.clone(), after);
        }
    }

    fn retract(&mut self, key: &PortKey, listener: &ListenerKey, affected: &mut Affected) {
        self.change_port(key, affected, |port| port.remove(listener));
        affected.claims.insert(ClaimKey::port(key));
    }
}

/// Those of some grants that limit connections.
fn limiting<'a>(
    grants: impl IntoIterator<Item = &'a Arc<HostnameGrant>>,
) -> impl Iterator<Item = &'a Arc<HostnameGrant>> {
    let grants = grants.into_iter();
    grants.filter(|grant| !grant.limits.connections.is_empty())
}

fn gateway_claims(gateway: &Gateway) -> Vec<(PortKey, Claim)> {
    let parent = gateway.parent_key();
    first_of_name(&gateway.listeners)
        .filter_map(|(index, listener)| {
            let precedence = Precedence::Gateway(index);
            claim(listener, &parent, &gateway.name, Some(gateway), precedence)
        })
        .collect()
}

fn set_claims<'a>(
    set: &'a ListenerSet,
    gateway: &'a ObjectName,
    known: Option<&'a Gateway>,
) -> impl Iterator<Item = (&'a Listener, PortKey, Claim)> {
    let parent = set.parent_key();
    first_of_name(&set.listeners).filter_map(move |(index, listener)| {
        let precedence = Precedence::of_set(set.meta.created, &set.name, index);
        let (key, claim) = claim(listener, &parent, gateway, known, precedence)?;
        Some((listener, key, claim))
    })
}

/// The listeners with their indexes. If several have the same name, only the first is returned, because a key stands
/// for one claim. (The decoder of objects refuses duplicate names.)
pub(crate) fn first_of_name(listeners: &[Listener]) -> impl Iterator<Item = (usize, &Listener)> {
    let mut names = BTreeSet::new();
    listeners
        .iter()
        .enumerate()
        .filter(move |(_, listener)| names.insert(&listener.name))
}

/// The claim of a listener on a Gateway. It is `None` if a finding of the listener itself refuses it. `known` is the
/// Gateway, if it is known.
fn claim(
    listener: &Listener,
    parent: &ParentKey,
    gateway: &ObjectName,
    known: Option<&Gateway>,
    precedence: Precedence,
) -> Option<(PortKey, Claim)> {
    if listener.is_refused() {
        return None;
    }
    let guard = known.and_then(|known| known.tls.guard(&listener.protocol, listener.port));
    let (kinds, _) = supported_kinds(listener);
    let bare = listener.protocol == Protocol::Tls && listener.tls.is_none();
    Some((
        PortKey {
            gateway: gateway.clone(),
            port: listener.port?,
            transport: listener.protocol.transport()?,
        },
        Claim {
            listener: listener.key(parent),
            precedence,
            protocol: listener.protocol.clone(),
            hostname: listener.hostname.clone(),
            takes_routes: !kinds.is_empty() && !bare,
            served: guard.is_none() && !kinds.is_empty() && !bare,
            has_name: true,
        },
    ))
}

fn forget<K: Ord, M: Members<ObjectName>>(index: &mut BTreeMap<K, M>, key: &K, name: &ObjectName) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}
