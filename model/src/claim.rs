//! Claims: which namespace holds which hostname on a Gateway, and which protocol each of its ports speaks.
//!
//! Gateway API gives precedence to the older object. If an old object later added a hostname, it would therefore take
//! the hostname from a younger object that already serves it. A claim records who was there first, and so prevents
//! this. A hostname is held on the whole Gateway, for every port, protocol and kind of route ([`crate::names`]). A
//! port is held for the protocol that it speaks ([`crate::port`]). Where nobody holds anything yet, the precedence of
//! Gateway API decides (ADR 16).
//!
//! Only the operator writes claims. They are `HostnameClaim` objects in the namespace of the Gateway.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use sha2::Digest as _;

use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::{ObjectName, PortKey};
use crate::meta::Meta;
use crate::protocol::{Group, Port, Transport};

/// How many characters of a Gateway's name go into the name of a claim object. Names of objects have 253 at most.
const MOST_OF_A_NAME: usize = 200;

/// Something that a namespace can hold on a Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claimed {
    /// Hostnames, on every port. [`HostPattern::Any`] stands for every name that no other claim covers.
    Names(HostPattern),
    /// The protocol that a port speaks.
    Port(Port, Transport),
}

/// The subject of one claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey {
    /// The Gateway.
    pub gateway: ObjectName,
    /// The hostname or port that is held on the Gateway.
    pub of: Claimed,
}

impl ClaimKey {
    /// The claim to hostnames on a Gateway.
    #[must_use]
    pub fn names(gateway: &ObjectName, names: &HostPattern) -> Self {
        Self {
            gateway: gateway.clone(),
            of: Claimed::Names(names.clone()),
        }
    }

    /// The claim to a port.
    #[must_use]
    pub fn port(port: &PortKey) -> Self {
        Self {
            gateway: port.gateway.clone(),
            of: Claimed::Port(port.port, port.transport),
        }
    }

    /// The port, if the claim is one to a port.
    #[must_use]
    pub fn port_key(&self) -> Option<PortKey> {
        match self.of {
            Claimed::Names(_) => None,
            Claimed::Port(port, transport) => Some(PortKey {
                gateway: self.gateway.clone(),
                port,
                transport,
            }),
        }
    }

    /// The least key of a Gateway.
    #[must_use]
    pub fn first_of_gateway(gateway: &ObjectName) -> Self {
        Self::names(gateway, &HostPattern::Any)
    }

    /// The name of the `HostnameClaim` object for this key.
    ///
    /// It consists of the Gateway's name (as much of it as there is room for) and 128 bits of the SHA-256 of the
    /// Gateway's name and the key. Two claims of one key therefore have the same name, so the API server accepts only
    /// one of them. And nobody can find another key with the name of a given one.
    #[must_use]
    pub fn object_name(&self) -> ObjectName {
        let gateway = &self.gateway;
        let text = match &self.of {
            Claimed::Names(names) => format!("{}\0hostname/{names}", gateway.name),
            Claimed::Port(port, transport) => {
                format!("{}\0port/{port}/{}", gateway.name, transport.as_str())
            }
        };
        let digest = sha2::Sha256::digest(text.as_bytes());
        let mut name = gateway.name.get(..MOST_OF_A_NAME).unwrap_or(&gateway.name);
        name = name.trim_end_matches(['.', '-']);
        let mut name = format!("{name}-");
        for byte in digest.iter().take(16) {
            let _ = write!(name, "{byte:02x}");
        }
        ObjectName::new(gateway.namespace.clone(), name)
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = &self.gateway;
        match &self.of {
            Claimed::Names(HostPattern::Any) => write!(f, "{gateway}/*"),
            Claimed::Names(names) => write!(f, "{gateway}/{names}"),
            Claimed::Port(port, transport) => {
                write!(f, "{gateway}:{port}/{}", transport.as_str())
            }
        }
    }
}

/// The holder of a hostname or of a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// The namespace.
    pub namespace: Arc<str>,
    /// For a port, the group of protocols that it speaks.
    pub speaks: Option<Group>,
    /// For hostnames: the namespace got them only because routes of other namespaces asked for them on listeners of
    /// its ListenerSets.
    pub for_guests: bool,
}

impl Holder {
    /// The holder of a port that speaks a protocol of this group.
    #[must_use]
    pub fn of_port(namespace: Arc<str>, group: Group) -> Self {
        Self {
            namespace,
            speaks: Some(group),
            for_guests: false,
        }
    }
}

/// The holder of hostnames.
impl From<Arc<str>> for Holder {
    fn from(namespace: Arc<str>) -> Self {
        Self {
            namespace,
            speaks: None,
            for_guests: false,
        }
    }
}

/// The holder of hostnames.
impl From<&str> for Holder {
    fn from(namespace: &str) -> Self {
        Self::from(Arc::<str>::from(namespace))
    }
}

/// `HostnameClaim`, Vestibule's own kind: which namespace holds a hostname or a port of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostnameClaim {
    /// Name; the namespace is the Gateway's.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.gateway.name`.
    pub gateway: Arc<str>,
    /// `spec.gateway.uid`: the UID that the Gateway had when the claim was last written.
    pub gateway_uid: Arc<str>,
    /// The subject of the claim; `None` if it cannot be read.
    pub key: Option<ClaimKey>,
    /// The namespace that holds it (`spec.holder`) and, for a port, what the port speaks (`spec.protocol`).
    pub holder: Holder,
    /// `spec.since`: when the holder got it, in seconds since the Unix epoch.
    pub since: i64,
    /// `spec.unusedSince`: when the holder stopped using it, in seconds since the Unix epoch.
    pub unused_since: Option<i64>,
    /// `metadata.annotations["vestibule.dev/take-from"]`: an admin takes it from this namespace.
    pub take_from: Option<Arc<str>>,
    /// The findings about the object.
    pub findings: Vec<Finding>,
}

/// The annotation with which an admin takes a hostname from the namespace that holds it. Its value is that namespace,
/// so that a command that comes late does not affect the next holder.
pub const TAKE_FROM: &str = "vestibule.dev/take-from";

impl HostnameClaim {
    /// The holder, if an admin takes the name from this namespace.
    #[must_use]
    pub fn taken_from(&self) -> Option<&Arc<str>> {
        let holder = &self.holder.namespace;
        (self.take_from.as_ref() == Some(holder)).then_some(holder)
    }

    /// The Gateway.
    #[must_use]
    pub fn gateway(&self) -> ObjectName {
        ObjectName::new(self.name.namespace.clone(), self.gateway.clone())
    }

    /// The key that the holder holds, or `None` if the object does not count. An object does not count if it cannot be
    /// read, or if its name is not the one that belongs to its key ([`ClaimKey::object_name`]). Otherwise two objects
    /// could name different holders for one key.
    #[must_use]
    pub fn held_key(&self) -> Option<&ClaimKey> {
        let key = self.key.as_ref()?;
        let refused = self.findings.iter().any(Finding::refuses);
        (!refused && key.object_name() == self.name).then_some(key)
    }
}

/// All `HostnameClaim` objects, and who holds what according to them. At most one object counts for a key, so they
/// cannot contradict each other.
#[derive(Debug, Clone, Default)]
pub struct Holders {
    objects: BTreeMap<ObjectName, Arc<HostnameClaim>>,
    keys: BTreeMap<ClaimKey, Arc<HostnameClaim>>,
}

impl Holders {
    /// Takes a new version of an object, or its removal. Returns the keys whose holder may have changed, each with its
    /// present holder.
    pub fn put(
        &mut self,
        name: &ObjectName,
        claim: Option<Arc<HostnameClaim>>,
    ) -> BTreeMap<ClaimKey, Option<Holder>> {
        let mut changes = BTreeMap::new();
        let old = self.objects.remove(name);
        if let Some(key) = old.as_ref().and_then(|old| old.held_key()) {
            self.keys.remove(key);
            changes.insert(key.clone(), None);
        }
        if let Some(claim) = claim {
            if let Some(key) = claim.held_key() {
                self.keys.insert(key.clone(), claim.clone());
                changes.insert(key.clone(), Some(claim.holder.clone()));
            }
            self.objects.insert(name.clone(), claim);
        }
        changes
    }

    /// Returns, for each key that [`Self::put`] returned, the namespace from which an admin takes it; `None` if no
    /// admin does.
    #[must_use]
    pub fn taken(
        &self,
        changes: &BTreeMap<ClaimKey, Option<Holder>>,
    ) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        let taken = changes.keys().map(|key| {
            let claim = self.keys.get(key);
            let taken_from = claim.and_then(|claim| claim.taken_from());
            (key.clone(), taken_from.cloned())
        });
        taken.collect()
    }

    /// Returns, for each key that [`Self::put`] returned, when its holder got it; `None` if nobody holds it.
    #[must_use]
    pub fn since(
        &self,
        changes: &BTreeMap<ClaimKey, Option<Holder>>,
    ) -> BTreeMap<ClaimKey, Option<i64>> {
        let since = |key| self.keys.get(key).map(|claim| claim.since);
        changes
            .keys()
            .map(|key| (key.clone(), since(key)))
            .collect()
    }

    /// The object that names the holder of a key.
    #[must_use]
    pub fn claim(&self, key: &ClaimKey) -> Option<&Arc<HostnameClaim>> {
        self.keys.get(key)
    }

    /// An object, whether or not it counts.
    #[must_use]
    pub fn object(&self, name: &ObjectName) -> Option<&Arc<HostnameClaim>> {
        self.objects.get(name)
    }
}
