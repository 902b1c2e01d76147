//! Claims: which namespace holds which name on which port of which Gateway, so that nobody takes it by
//! being older.
//!
//! Upstream's precedence goes by the age of objects, and so an old one that later adds a hostname would take
//! it from a younger one that serves it. A claim is the memory that stands against that: it decides between
//! namespaces; inside one, upstream's order holds. What is not held yet goes by upstream's order (ADR 16).
//!
//! Written by the operator only, as `HostnameClaim` objects in the Gateway's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::condition::Reason;
use crate::conflict::{Group, Transport};
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::ObjectName;
use crate::merge::PortKey;
use crate::object::{Meta, Port};
use crate::reversed::Patterns;

/// What a name is claimed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimUse {
    /// A listener that speaks HTTP.
    Http,
    /// A listener that speaks HTTPS or TLS.
    Tls,
    /// A listener of bytes or datagrams (TCP, UDP): it has the whole port.
    Raw,
    /// A hostname of TLSRoutes, as their listener leaves it.
    TlsRoute,
}

impl ClaimUse {
    /// The word in a `HostnameClaim`.
    #[must_use]
    pub fn as_str(self, transport: Transport) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Tls => "TLS",
            Self::Raw => transport.as_str(),
            Self::TlsRoute => "TLSRoute",
        }
    }

    /// Reads the word of a `HostnameClaim`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<(Self, Transport)> {
        Some(match text {
            "HTTP" => (Self::Http, Transport::Tcp),
            "TLS" => (Self::Tls, Transport::Tcp),
            "TLSRoute" => (Self::TlsRoute, Transport::Tcp),
            raw => (Self::Raw, Transport::from_text(raw)?),
        })
    }

    /// What protocols of listeners it stands for; none for routes.
    #[must_use]
    pub fn group(self) -> Option<Group> {
        match self {
            Self::Http => Some(Group::Http),
            Self::Tls => Some(Group::Tls),
            Self::Raw => Some(Group::Raw),
            Self::TlsRoute => None,
        }
    }
}

impl From<Group> for ClaimUse {
    fn from(group: Group) -> Self {
        match group {
            Group::Http => Self::Http,
            Group::Tls => Self::Tls,
            Group::Raw => Self::Raw,
        }
    }
}

/// What one namespace can hold: names, for a use, on a port of a Gateway. Ordered by port, so that
/// everything about one port is a range.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey {
    /// The Gateway.
    pub gateway: ObjectName,
    /// The port.
    pub port: Port,
    /// TCP or UDP.
    pub transport: Transport,
    /// What for.
    pub use_: ClaimUse,
    /// The names: as the listener writes them; what a route's hostname and its listener's have in common;
    /// [`HostPattern::Any`] for [`ClaimUse::Raw`].
    pub names: HostPattern,
}

impl ClaimKey {
    /// The key for `names` of a use on a port.
    #[must_use]
    pub fn new(port: &PortKey, use_: ClaimUse, names: &HostPattern) -> Self {
        Self {
            gateway: port.gateway.clone(),
            port: port.port,
            transport: port.transport,
            use_,
            names: match use_ {
                ClaimUse::Raw => HostPattern::Any,
                _ => names.clone(),
            },
        }
    }

    /// Its port.
    #[must_use]
    pub fn port_key(&self) -> PortKey {
        PortKey {
            gateway: self.gateway.clone(),
            port: self.port,
            transport: self.transport,
        }
    }

    /// The least key of a port.
    #[must_use]
    pub fn first_of(port: &PortKey) -> Self {
        Self::new(port, ClaimUse::Http, &HostPattern::Any)
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gateway,
            port,
            names,
            ..
        } = self;
        let use_ = self.use_.as_str(self.transport);
        match names {
            HostPattern::Any => write!(f, "{gateway}:{port}/{use_}"),
            names => write!(f, "{gateway}:{port}/{use_}/{names}"),
        }
    }
}

/// One entry of a `HostnameClaim`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimEntry {
    /// The port.
    pub port: Port,
    /// TCP or UDP.
    pub transport: Transport,
    /// What for.
    pub use_: ClaimUse,
    /// The names.
    pub names: HostPattern,
    /// Since when, in seconds since the epoch.
    pub since: i64,
}

/// `HostnameClaim`, Vestibule's own kind: some of what a namespace holds on a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostnameClaim {
    /// Name; the namespace is the Gateway's.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.gateway.name`.
    pub gateway: Arc<str>,
    /// `spec.gateway.uid`.
    pub gateway_uid: Arc<str>,
    /// `spec.namespace`: who holds it.
    pub namespace: Arc<str>,
    /// What it holds; entries that cannot be read are left out.
    pub entries: Vec<ClaimEntry>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl HostnameClaim {
    /// The Gateway.
    #[must_use]
    pub fn gateway(&self) -> ObjectName {
        ObjectName::new(self.name.namespace.clone(), self.gateway.clone())
    }

    /// The keys it holds, and since when.
    pub fn keys(&self) -> impl Iterator<Item = (ClaimKey, i64)> {
        let gateway = self.gateway();
        self.entries.iter().map(move |entry| {
            let port = PortKey {
                gateway: gateway.clone(),
                port: entry.port,
                transport: entry.transport,
            };
            (ClaimKey::new(&port, entry.use_, &entry.names), entry.since)
        })
    }
}

/// What is to be said of a route's hostname that another namespace holds.
#[must_use]
pub fn taken(field: String, hostname: &HostPattern, port: u16) -> Finding {
    let name = match hostname {
        HostPattern::Any => "every hostname".to_owned(),
        pattern => format!("hostname {:?}", pattern.to_string()),
    };
    Finding::refused(
        Reason::HostnameConflict,
        field,
        format!("{name} is another's on port {port}, and left out here"),
        "use another hostname, or have the present route or listener removed first",
    )
}

/// Who says to hold a key: since when, the namespace, and the object that says it. The least one does.
type Contender = (i64, Arc<str>, ObjectName);

/// What `HostnameClaim` objects come to: where they contradict each other, who has held a name longer holds
/// it; of two since the same second, the namespace that is first by name.
#[derive(Debug, Clone, Default)]
pub struct Holders {
    objects: BTreeMap<ObjectName, Arc<HostnameClaim>>,
    keys: BTreeMap<ClaimKey, BTreeSet<Contender>>,
}

impl Holders {
    /// Takes a new version of an object, or its removal, and returns the keys whose holder may have changed,
    /// each with its present one.
    pub fn put(
        &mut self,
        name: &ObjectName,
        claim: Option<Arc<HostnameClaim>>,
    ) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        let mut touched = BTreeSet::new();
        if let Some(old) = self.objects.remove(name) {
            for (key, since) in old.keys() {
                if let Some(contenders) = self.keys.get_mut(&key) {
                    contenders.remove(&(since, old.namespace.clone(), name.clone()));
                    if contenders.is_empty() {
                        self.keys.remove(&key);
                    }
                }
                touched.insert(key);
            }
        }
        if let Some(claim) = claim {
            for (key, since) in claim.keys() {
                let contender = (since, claim.namespace.clone(), name.clone());
                self.keys.entry(key.clone()).or_default().insert(contender);
                touched.insert(key);
            }
            self.objects.insert(name.clone(), claim);
        }
        touched
            .into_iter()
            .map(|key| {
                let holder = self.holder(&key).map(|(namespace, _)| namespace.clone());
                (key, holder)
            })
            .collect()
    }

    /// Who holds a key, and since when.
    #[must_use]
    pub fn holder(&self, key: &ClaimKey) -> Option<(&Arc<str>, i64)> {
        let (since, namespace, _) = self.keys.get(key)?.first()?;
        Some((namespace, *since))
    }

    /// The object that a key's holder has it by.
    #[must_use]
    pub fn place(&self, key: &ClaimKey) -> Option<&ObjectName> {
        let (.., name) = self.keys.get(key)?.first()?;
        Some(name)
    }

    /// How many keys are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// An object.
    #[must_use]
    pub fn object(&self, name: &ObjectName) -> Option<&Arc<HostnameClaim>> {
        self.objects.get(name)
    }

    /// Every object.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<HostnameClaim>> {
        self.objects.values()
    }

    /// Every key that is held, with its holder and since when.
    pub fn iter(&self) -> impl Iterator<Item = (&ClaimKey, &Arc<str>, i64)> {
        self.keys.iter().filter_map(|(key, contenders)| {
            let (since, namespace, _) = contenders.first()?;
            Some((key, namespace, *since))
        })
    }
}

/// What is held on one port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// By listeners.
    keys: BTreeMap<Group, Patterns<Arc<str>>>,
    /// How many keys each namespace holds, by group.
    counts: BTreeMap<Group, BTreeMap<Arc<str>, usize>>,
    /// By TLSRoutes.
    routes: Patterns<Arc<str>>,
}

/// Who holds something of which group: the one namespace, or (`None`) several.
pub(crate) type Profile = BTreeMap<Group, Option<Arc<str>>>;

impl Holdings {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.routes.is_empty()
    }

    /// Records who holds `names` for listeners.
    pub(crate) fn set(&mut self, group: Group, names: &HostPattern, holder: Option<Arc<str>>) {
        let keys = self.keys.entry(group).or_default();
        let old = match holder.clone() {
            Some(holder) => keys.insert(names, holder),
            None => keys.remove(names),
        };
        if keys.is_empty() {
            self.keys.remove(&group);
        }
        if let Some(old) = old
            && let Some(counts) = self.counts.get_mut(&group)
        {
            if let Some(count) = counts.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&old);
                }
            }
            if counts.is_empty() {
                self.counts.remove(&group);
            }
        }
        if let Some(holder) = holder {
            *self
                .counts
                .entry(group)
                .or_default()
                .entry(holder)
                .or_default() += 1;
        }
    }

    /// Records who holds `names` for TLSRoutes.
    pub(crate) fn set_route(&mut self, names: &HostPattern, holder: Option<Arc<str>>) {
        match holder {
            Some(holder) => self.routes.insert(names, holder),
            None => self.routes.remove(names),
        };
    }

    pub(crate) fn holder(&self, group: Group, names: &HostPattern) -> Option<&Arc<str>> {
        self.keys.get(&group)?.get(names)
    }

    pub(crate) fn route_holder(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.routes.get(names)
    }

    /// What is held for listeners that covers all of `names`, and by whom: the most specific first.
    pub(crate) fn covering<'a>(
        &'a self,
        group: Group,
        names: &'a HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a Arc<str>)> {
        let keys = self.keys.get(&group).into_iter();
        keys.flat_map(move |keys| keys.covering(names))
    }

    /// What is held for TLSRoutes of `names`, and by whom.
    pub(crate) fn routes_in<'a>(
        &'a self,
        names: &'a HostPattern,
    ) -> impl Iterator<Item = (&'a HostPattern, &'a Arc<str>)> {
        self.routes.covered(names)
    }

    pub(crate) fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    pub(crate) fn profile(&self) -> Profile {
        self.counts
            .iter()
            .map(|(group, counts)| {
                let mut namespaces = counts.keys();
                let first = namespaces.next().filter(|_| namespaces.next().is_none());
                (*group, first.cloned())
            })
            .collect()
    }

    /// The namespace that holds all that is held.
    pub(crate) fn only_holder(&self) -> Option<&Arc<str>> {
        let mut holders = self.counts.values().flat_map(BTreeMap::keys);
        let first = holders.next()?;
        holders.all(|holder| holder == first).then_some(first)
    }

    /// The groups of which something is held.
    pub(crate) fn groups(&self) -> BTreeSet<Group> {
        self.counts.keys().copied().collect()
    }

    /// Whether anything of this group is held.
    pub(crate) fn has(&self, group: Group) -> bool {
        self.counts.contains_key(&group)
    }

    /// Whether another namespace holds something that another group than this one speaks.
    pub(crate) fn is_foreign_to(&self, group: Group, namespace: &str) -> bool {
        self.counts.iter().any(|(held, counts)| {
            *held != group && counts.keys().any(|holder| **holder != *namespace)
        })
    }

    /// The group that is held, if one is.
    pub(crate) fn spoken(&self) -> Option<Group> {
        self.counts.keys().next().copied()
    }
}
