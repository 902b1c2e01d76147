//! Ownership of hostnames in the merge: it passes facts to [`crate::names`], and derives from the answers what
//! listeners and routes may have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Affected, Merge, PortKey, first_of_name, gateway_claims, set_claims};
use crate::claim::{ClaimKey, Claimed, Holder};
use crate::conflict::{Claim, Conflict};
use crate::finding::Finding;
use crate::gateway::Listener;
use crate::hostname::{HostPattern, Hostname};
use crate::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};
use crate::names::{self, AskedBy, GatewayNames, NameDecision, NameSource, Permissions, Rank};
use crate::path::{self, PathPrefix};
use crate::policy;
use crate::protocol::Group;
use crate::route::Route;

/// The names that a route asks for, by Gateway and by what it asks as.
pub type RouteAsks = BTreeMap<(ObjectName, NameSource), BTreeSet<HostPattern>>;

/// The permissions of namespaces on one Gateway, by the present classes, Gateways, namespaces and grants.
struct Rights<'a> {
    merge: &'a Merge,
    gateway: &'a ObjectName,
}

impl Permissions for Rights<'_> {
    fn is_guarded(&self) -> bool {
        self.merge.is_guarded(self.gateway)
    }

    fn granted(&self, namespace: &str, names: &HostPattern) -> Option<HostPattern> {
        let labels = self.merge.labels(namespace);
        let tenant_grants = self
            .merge
            .grants
            .tenant_grants(self.gateway, namespace, labels);
        tenant_grants.granted(names).cloned()
    }

    fn shares(&self, namespace: &str, name: &Hostname) -> bool {
        let labels = self.merge.labels(namespace);
        let tenant_grants = self
            .merge
            .grants
            .tenant_grants(self.gateway, namespace, labels);
        tenant_grants.shares(name)
    }

    fn lets_in(&self, namespace: &str) -> bool {
        self.merge.lets_in(self.gateway, namespace)
    }

    fn admits(&self, listener: &ListenerKey, namespace: &str) -> bool {
        let listeners = self.merge.listeners(&listener.parent);
        let mut listeners = listeners.into_iter().flat_map(|(all, _)| all);
        listeners.any(|own| {
            own.name == listener.listener
                && own.allowed_namespaces.admits(
                    &self.gateway.namespace,
                    namespace,
                    self.merge.labels(namespace),
                )
        })
    }

    fn most_names(&self, namespace: &str) -> usize {
        let granted = self.merge.limits(self.gateway, namespace).hostnames;
        let limit = granted.or(self.merge.names_per_namespace);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        limit.unwrap_or(usize::MAX)
    }

    fn is_public_suffix(&self, name: &Hostname) -> bool {
        policy::is_public_suffix(name.as_str())
    }
}

impl Merge {
    /// A merge in which the next holder of a free name already counts as its holder. It is for verdicts about
    /// manifests, where nobody records claims.
    #[must_use]
    pub fn assuming(mut self) -> Self {
        self.assumes = true;
        self
    }

    /// Whether this is a merge that is [`Self::assuming`].
    #[must_use]
    pub fn assumes(&self) -> bool {
        self.assumes
    }

    /// A merge in which a namespace may hold this many names on a Gateway, unless a grant says otherwise.
    #[must_use]
    pub fn with_names_per_namespace(mut self, most: u32) -> Self {
        self.names_per_namespace = Some(most);
        self
    }

    /// Takes, for each key, the namespace from which an admin takes the name, or `None` if nobody takes it. Claims to
    /// ports cannot be taken this way, so they are ignored.
    pub fn put_taken(&mut self, changes: BTreeMap<ClaimKey, Option<Arc<str>>>) -> Affected {
        let mut affected = Affected::default();
        for (key, namespace) in changes {
            if let Claimed::Names(names) = &key.of {
                self.change_names(&key.gateway, &mut affected, |of, rights| {
                    of.take_from(rights, names, namespace.as_ref())
                });
            }
        }
        affected
    }

    /// Takes, for each key, its holder from now on, or `None` if nobody holds it.
    pub fn put_claims(&mut self, changes: BTreeMap<ClaimKey, Option<Holder>>) -> Affected {
        let mut affected = Affected::default();
        let mut counted = BTreeSet::new();
        for (key, holder) in changes {
            let former = self.holder(&key);
            if former == holder {
                continue;
            }
            counted.extend(self.count_holder(&key, former.as_ref(), holder.as_ref()));
            match (&key.of, key.port_key()) {
                (Claimed::Names(names), _) => {
                    self.change_names(&key.gateway, &mut affected, |of, rights| {
                        of.hold(rights, names, holder.as_ref())
                    });
                }
                (Claimed::Port(..), Some(at)) => {
                    self.change_port(&at, &mut affected, |port| port.hold(holder.as_ref()));
                }
                (Claimed::Port(..), None) => {}
            }
            affected.claims.insert(key);
        }
        for set in self.recount_ports(&counted, &mut affected) {
            self.settle_names_of(&set, &mut affected);
            self.settle_ports_of(&set, &mut affected);
        }
        affected
    }

    /// Decides again about names inside wildcards that another request should get than before. Call this when the changes
    /// of a turn are complete. So each wildcard is looked at once, however many objects ask for it
    /// ([`GatewayNames::settle`]).
    pub fn settle_names(&mut self) -> Affected {
        let mut affected = Affected::default();
        for gateway in std::mem::take(&mut self.unsettled) {
            if self.names.contains_key(&gateway) {
                self.change_names(&gateway, &mut affected, |of, rights| of.settle(rights));
            }
        }
        affected
    }

    /// The recorded holder of a key, even if that namespace may no longer have it.
    #[must_use]
    pub fn holder(&self, key: &ClaimKey) -> Option<Holder> {
        match &key.of {
            Claimed::Names(names) => self.names.get(&key.gateway)?.recorded_holder(names),
            Claimed::Port(..) => self.ports.get(&key.port_key()?)?.holder(),
        }
    }

    /// Takes the names that a route asks for, in place of those that it asked for before. Without any, the route is
    /// removed.
    pub fn put_route(&mut self, route: &ObjectKey, created: i64, asks: RouteAsks) -> Affected {
        let mut affected = Affected::default();
        let rank = Rank::of(created, &route.name);
        let places = asks.keys().cloned().collect();
        let former = if asks.is_empty() {
            self.asking.remove(route)
        } else {
            self.asking.insert(route.clone(), places)
        };
        for (gateway, source) in former.unwrap_or_default() {
            if !asks.contains_key(&(gateway.clone(), source.clone())) {
                self.change_names(&gateway, &mut affected, |of, rights| {
                    of.remove(rights, &source)
                });
            }
        }
        for ((gateway, source), names) in asks {
            self.change_names(&gateway, &mut affected, |of, rights| {
                of.put(rights, &source, &rank, &names)
            });
        }
        affected
    }

    /// The Gateway on which a route on this listener asks for its names, and what it asks as. It is `None` if the route
    /// uses the names of the listener.
    #[must_use]
    pub fn asker(
        &self,
        route: &ObjectKey,
        listener: &ListenerKey,
    ) -> Option<(ObjectName, NameSource)> {
        match &listener.parent {
            ParentKey::Gateway(gateway) => {
                Some((gateway.clone(), NameSource::Route(route.clone())))
            }
            ParentKey::ListenerSet(_) => {
                let (listeners, gateway) = self.listeners(&listener.parent)?;
                let mut same = listeners.iter().filter(|l| l.name == listener.listener);
                same.any(|l| l.hostname == HostPattern::Any).then(|| {
                    let source = NameSource::Guest(Box::new((listener.clone(), route.clone())));
                    (gateway.clone(), source)
                })
            }
        }
    }

    /// The names of a Gateway: who holds and who asks for each of them.
    #[must_use]
    pub fn names(&self, gateway: &ObjectName) -> Option<&GatewayNames> {
        self.names.get(gateway)
    }

    /// Our Gateways on which somebody holds or asks for a name, in order of their names.
    pub fn gateways_with_names(&self) -> impl Iterator<Item = &ObjectName> {
        let gateways = self.names.keys();
        gateways.filter(|gateway| self.gateway(gateway).is_some())
    }

    /// The decision about a listener or route that asks for names.
    #[must_use]
    pub fn name_decision(
        &self,
        gateway: &ObjectName,
        source: &NameSource,
        names: &HostPattern,
    ) -> Option<NameDecision> {
        let of = self.names.get(gateway)?;
        let decision = of.decision(source, names)?;
        let waits = match decision {
            NameDecision::Free => true,
            // The holder of exactly this pattern counts before wildcards around it.
            NameDecision::Inside => of.holder(names).is_none() && of.next(names).is_some(),
            _ => false,
        };
        if !waits || !self.assumes {
            return Some(decision);
        }
        // A name that an admin takes from its holder still belongs to the holder until the claim is handed over.
        let is_next = of.holder(names).is_none() && of.next(names) == Some(source.namespace());
        Some(if is_next {
            NameDecision::Has
        } else {
            NameDecision::Taken
        })
    }

    /// Whether a namespace may have names on a Gateway if it asks for them in this way from now on. Admission asks
    /// this. Routes of the Gateway's own namespace may have every name.
    #[must_use]
    pub fn decide(
        &self,
        gateway: &ObjectName,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
    ) -> NameDecision {
        if by.is_route() && *gateway.namespace == *namespace {
            return NameDecision::Has;
        }
        let rights = Rights {
            merge: self,
            gateway,
        };
        match self.names.get(gateway) {
            Some(of) => of.decide(&rights, namespace, names, by),
            None => GatewayNames::new(gateway.clone()).decide(&rights, namespace, names, by),
        }
    }

    /// The paths of a name to which a route is restricted on a listener. It is restricted if a grant shares only these
    /// paths with its namespace, and the namespace does not hold the name or may not use it on this listener. If the
    /// list is empty, the route is not restricted (but it may not have the name at all).
    #[must_use]
    pub fn shared_paths(
        &self,
        route: &ObjectKey,
        listener: &ListenerKey,
        names: &HostPattern,
    ) -> Vec<PathPrefix> {
        let (HostPattern::Exact(name), ParentKey::Gateway(gateway)) = (names, &listener.parent)
        else {
            return Vec::new();
        };
        if !route.kind.routes_requests() {
            return Vec::new();
        }
        let namespace = &route.name.namespace;
        let labels = self.labels(namespace);
        let tenant_grants = self.grants.tenant_grants(gateway, namespace, labels);
        let parts = tenant_grants.shared_paths(name);
        if parts.is_empty() {
            return Vec::new();
        }
        let of = self.names.get(gateway);
        let next = |of: &'_ GatewayNames| of.next(names).filter(|_| self.assumes).cloned();
        let holder = of.and_then(|of| of.holder(names).cloned().or_else(|| next(of)));
        // Even a holder may use the name only on ports and with protocols that its grants give.
        let owns = || {
            let (listeners, _) = self.listeners(&listener.parent)?;
            let own = listeners.iter().find(|l| l.name == listener.listener)?;
            tenant_grants.owns(own.port?, &own.protocol, names).ok()
        };
        if holder.as_ref() == Some(namespace) && owns().is_some() {
            return Vec::new();
        }
        parts.into_iter().collect()
    }

    /// The finding for a route whose namespace shares only some paths of a name, if one of its matches reaches outside
    /// of these.
    #[must_use]
    pub fn outside_shared_paths(
        &self,
        route: Route<'_>,
        listener: &ListenerKey,
        names: &HostPattern,
    ) -> Option<Finding> {
        let Route::Http(http) = route else {
            return None;
        };
        let parts = self.shared_paths(&route.key(), listener, names);
        let gateway = listener.parent.name();
        (!parts.is_empty())
            .then(|| path::reaching_outside(http, &parts, names, gateway))
            .flatten()
    }

    /// The owner of those names of a pattern that do not match a narrower pattern with an owner. The proxies are told
    /// this owner.
    #[must_use]
    pub fn owner_at(&self, gateway: &ObjectName, names: &HostPattern) -> Option<&Arc<str>> {
        let of = self.names.get(gateway)?;
        let next = || of.next(names).filter(|_| self.assumes);
        of.holder(names)
            .or_else(next)
            .or_else(|| of.owner_at(names))
    }

    /// The decision by which a ListenerSet's listener may not have its hostname on the Gateway, if there is one. Such a
    /// listener takes no part on its port.
    #[must_use]
    pub fn refused_name(&self, listener: &ListenerKey) -> Option<NameDecision> {
        let ParentKey::ListenerSet(set) = &listener.parent else {
            return None;
        };
        let set = self.sets.get(set)?;
        let own = set.listeners.iter().find(|l| l.name == listener.listener)?;
        let source = NameSource::Listener(listener.clone());
        self.name_decision(set.gateway.as_ref()?, &source, &own.hostname)
            .filter(|decision| decision.is_refusal())
    }

    /// The most specific pattern that covers `names` and has an owner, with this owner.
    #[must_use]
    pub fn nearest_owner<'a>(
        &'a self,
        gateway: &ObjectName,
        names: &HostPattern,
    ) -> Option<(&'a HostPattern, &'a Arc<str>)> {
        let of = self.names.get(gateway)?;
        of.nearest_owner(names, self.assumes)
    }

    /// Whether all claims that a listener needs are recorded: its namespace holds the hostname, and the port is held
    /// for the protocol of the listener. The Gateway's own listeners need no claims.
    #[must_use]
    pub fn is_claimed(&self, listener: &ListenerKey) -> bool {
        let Some((at, claim)) = self.claim(listener) else {
            return true;
        };
        if claim.precedence.is_own() || self.assumes {
            return true;
        }
        let port = self.ports.get(at);
        claim.has_name && port.is_some_and(|port| port.is_settled_for(claim.protocol.group()))
    }

    /// Changes the names of a Gateway, and passes on what follows for routes, claims, and the ports of ListenerSets.
    pub(super) fn change_names(
        &mut self,
        gateway: &ObjectName,
        affected: &mut Affected,
        change: impl FnOnce(&mut GatewayNames, &dyn Permissions) -> names::AffectedNames,
    ) {
        // The names are taken out of the merge while they change, because the permissions are read from the merge
        // meanwhile.
        let of = self.names.remove(gateway);
        let mut of = of.unwrap_or_else(|| GatewayNames::new(gateway.clone()));
        let rights = Rights {
            merge: self,
            gateway,
        };
        let mut changed = change(&mut of, &rights);
        if self.assumes {
            // Here the next holder counts as the holder. So if it changes, the answer changes for everybody who asks.
            for names in &changed.records {
                let next = of.next(names).cloned();
                let key = (gateway.clone(), names.clone());
                let before = match next.clone() {
                    Some(next) => self.assumed.insert(key, next),
                    None => self.assumed.remove(&key),
                };
                if before == next {
                    continue;
                }
                let askers = of.askers(names).cloned();
                let asks = askers.map(|asker| (names.clone(), asker));
                changed.asks.extend(asks);
                changed.owners.insert(names.clone());
            }
        }
        if !of.is_settled() {
            self.unsettled.insert(gateway.clone());
        }
        if !of.is_empty() {
            self.names.insert(gateway.clone(), of);
        }
        let mut sets = BTreeSet::new();
        for (_, source) in changed.asks {
            match source {
                // The listener or route is refused, whoever has its names.
                NameSource::Refused(_) => {}
                NameSource::Listener(listener) => {
                    if let ParentKey::ListenerSet(set) = &listener.parent {
                        sets.insert(set.clone());
                    }
                    affected.listeners.insert(listener);
                }
                NameSource::Route(route) => _ = affected.routes.insert(route),
                NameSource::Guest(guest) => _ = affected.routes.insert(guest.1),
            }
        }
        let records = changed.records.iter();
        let records = records.map(|names| ClaimKey::names(gateway, names));
        affected.claims.extend(records);
        let owned = changed.owners.into_iter();
        affected
            .owned
            .extend(owned.map(|names| (gateway.clone(), names)));
        for set in sets {
            self.settle_ports_of(&set, affected);
        }
    }

    /// Puts the names of a Gateway's own listeners, including those with a mistake, and decides again about everybody
    /// else on this Gateway.
    pub(super) fn settle_own_names(&mut self, gateway: &ObjectName, affected: &mut Affected) {
        let own = self.gateway(gateway);
        let named = own.into_iter().flat_map(|own| {
            let claims = gateway_claims(own).into_iter();
            let claims = claims.filter(|(_, claim)| has_names(claim));
            // A hostname that cannot be read would stand for every name.
            let refused = refused(&own.listeners, own.parent_key())
                .filter(|(listener, _)| listener.hostname != HostPattern::Any);
            claims
                .map(|(_, claim)| (NameSource::Listener(claim.listener), claim.hostname))
                .chain(refused.map(|(listener, source)| (source, listener.hostname.clone())))
        });
        let named: BTreeMap<NameSource, HostPattern> = named.collect();
        let parent = ParentKey::Gateway(gateway.clone());
        let places = named.keys().cloned().collect();
        let former = self.named.insert(parent.clone(), (gateway.clone(), places));
        if named.is_empty() {
            self.named.remove(&parent);
        }
        let rank = Rank::of(0, gateway);
        self.change_names(gateway, affected, |of, rights| {
            let mut changed = names::AffectedNames::default();
            for source in former.into_iter().flat_map(|(_, sources)| sources) {
                if !named.contains_key(&source) {
                    changed.extend(of.remove(rights, &source));
                }
            }
            for (source, names) in named {
                let one = BTreeSet::from([names]);
                changed.extend(of.put(rights, &source, &rank, &one));
            }
            // The names that the Gateway reserves, and the namespaces that its listeners admit, concern all requests.
            changed.extend(of.recheck_all(rights));
            changed
        });
    }

    /// Puts the names that a ListenerSet asks for. If the set refers to another Gateway now, its names are removed from
    /// the former one.
    pub(super) fn settle_names_of(&mut self, name: &ObjectName, affected: &mut Affected) {
        let set = self.sets.get(name).cloned();
        let asking = self.claims_of(name);
        // A listener that can take no routes serves nobody, so it must not keep others from its name.
        let asking = asking.filter(|(_, claim)| has_names(claim) && claim.takes_routes);
        let asking =
            asking.map(|(_, claim)| (NameSource::Listener(claim.listener), claim.hostname));
        let named: BTreeMap<NameSource, HostPattern> =
            asking.chain(self.refused_names_of(name)).collect();
        let gateway = set.as_ref().and_then(|set| set.gateway.clone());
        let parent = ParentKey::ListenerSet(name.clone());
        let former = self.named.remove(&parent);
        if let Some((before, sources)) = former {
            let moved = Some(&before) != gateway.as_ref();
            let gone = sources
                .into_iter()
                .filter(|source| moved || !named.contains_key(source));
            let gone: Vec<NameSource> = gone.collect();
            if !gone.is_empty() {
                self.change_names(&before, affected, |of, rights| {
                    let mut changed = names::AffectedNames::default();
                    for source in gone {
                        changed.extend(of.remove(rights, &source));
                    }
                    changed
                });
            }
        }
        let (Some(set), Some(gateway)) = (set, gateway) else {
            return;
        };
        if named.is_empty() {
            return;
        }
        let places = named.keys().cloned().collect();
        self.named.insert(parent, (gateway.clone(), places));
        let rank = Rank::of(set.meta.created, name);
        self.change_names(&gateway, affected, |of, rights| {
            let mut changed = names::AffectedNames::default();
            for (source, names) in named {
                let one = BTreeSet::from([names]);
                changed.extend(of.put(rights, &source, &rank, &one));
            }
            changed
        });
    }

    /// The names of those listeners of a ListenerSet that are refused for a mistake of their own, as far as grants
    /// allow its namespace to have them.
    fn refused_names_of<'a>(
        &'a self,
        name: &ObjectName,
    ) -> impl Iterator<Item = (NameSource, HostPattern)> + use<'a> {
        let in_force = self.set_in_force(name).into_iter();
        in_force.flat_map(move |(set, gateway)| {
            let refused = refused(&set.listeners, set.parent_key());
            let granted = refused.filter(move |(listener, _)| {
                let Some(port) = listener.port else {
                    return true;
                };
                let namespace = &set.name.namespace;
                let owns = self.owns(
                    &gateway.name,
                    namespace,
                    port,
                    &listener.protocol,
                    &listener.hostname,
                );
                owns.is_ok()
            });
            granted.map(|(listener, source)| (source, listener.hostname.clone()))
        })
    }

    /// The claims of those listeners of a ListenerSet that grants allow, whoever has their names.
    pub(super) fn claims_of<'a>(
        &'a self,
        name: &ObjectName,
    ) -> impl Iterator<Item = (PortKey, Claim)> + use<'a> {
        let in_force = self.set_in_force(name).into_iter();
        in_force.flat_map(|(set, gateway)| {
            set_claims(set, &gateway.name, Some(gateway))
                .filter(|(_, _, claim)| self.not_owned(&claim.listener).is_none())
                .map(|(_, key, claim)| (key, claim))
        })
    }

    /// Puts the claims of a ListenerSet to ports. A listener that may not have its name makes none.
    pub(super) fn settle_ports_of(&mut self, name: &ObjectName, affected: &mut Affected) {
        let claims = self.claims_of(name).filter_map(|(key, mut claim)| {
            if has_names(&claim) {
                let source = NameSource::Listener(claim.listener.clone());
                let decision = self.name_decision(&key.gateway, &source, claim.names());
                if decision.is_some_and(NameDecision::is_refusal) {
                    return None;
                }
                // A name that is only `Free` may go to somebody else yet. So nobody should hold the port because of
                // this listener until its name is recorded.
                claim.has_name = decision == Some(NameDecision::Has);
            }
            Some((key, claim))
        });
        let claims = claims.collect();
        self.settle_claims(&ParentKey::ListenerSet(name.clone()), claims, affected);
    }

    /// Decides again about the names of namespaces whose permissions on a Gateway may have changed. `None` stands for
    /// all namespaces.
    pub(crate) fn recheck_names(
        &mut self,
        gateway: &ObjectName,
        namespaces: Option<&BTreeSet<Arc<str>>>,
        affected: &mut Affected,
    ) {
        if !self.names.contains_key(gateway) {
            return;
        }
        self.change_names(gateway, affected, |of, rights| match namespaces {
            None => of.recheck_all(rights),
            Some(namespaces) => {
                let mut changed = names::AffectedNames::default();
                for namespace in namespaces {
                    changed.extend(of.recheck(rights, namespace));
                }
                changed
            }
        });
    }

    /// Marks everything that is held or asked for on a Gateway as affected, because the Gateway came, went, or changed
    /// its controller.
    pub(super) fn mark_claims(&self, gateway: &ObjectName, affected: &mut Affected) {
        let names = self.names.get(gateway).into_iter();
        for names in names.flat_map(GatewayNames::known) {
            affected.claims.insert(ClaimKey::names(gateway, names));
            affected.owned.insert((gateway.clone(), names.clone()));
        }
        let ports = self.ports_of(gateway).map(|(at, _)| ClaimKey::port(at));
        affected.claims.extend(ports);
    }
}

/// The listeners with names that are refused for a mistake of their own, and as what they ask.
fn refused(
    listeners: &[Listener],
    parent: ParentKey,
) -> impl Iterator<Item = (&Listener, NameSource)> {
    first_of_name(listeners)
        .map(|(_, listener)| listener)
        .filter(|listener| listener.is_refused() && listener.protocol.group() != Group::Raw)
        .map(move |listener| {
            let source = NameSource::Listener(listener.key(&parent));
            (listener, NameSource::Refused(Box::new(source)))
        })
}

/// Whether the claim is about a hostname. TCP and UDP carry no names.
fn has_names(claim: &Claim) -> bool {
    claim.protocol.group() != Group::Raw
}

impl NameDecision {
    /// The conflict of a listener that may not have its name, if another holder or the Gateway has it. If the namespace
    /// may not have the name at all, that is not a conflict.
    #[must_use]
    pub fn conflict(self) -> Option<Conflict> {
        match self {
            Self::Taken | Self::Inside | Self::Reserved => Some(Conflict::Hostname),
            Self::Has
            | Self::Free
            | Self::NotGranted
            | Self::TooWide
            | Self::OnlyHostnames
            | Self::TooMany
            | Self::TooManyOfGuests
            | Self::NotAsked => None,
        }
    }

    /// The finding for the author of a listener at `field` of an object.
    #[must_use]
    pub fn listener_finding(
        self,
        field: &str,
        names: &HostPattern,
        gateway: &ObjectName,
    ) -> Option<Finding> {
        self.finding(format!("{field}.hostname"), names, gateway)
    }
}
