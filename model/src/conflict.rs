//! Which listeners of one Gateway and port can stand side by side, and who wins where they cannot.
//!
//! GEP-1713 and `gateway_types.go` ("Distinct Listeners"). The Gateway's own listeners come first,
//! then its ListenerSets, oldest first, ties by `namespace/name`; within a set, spec order. Two
//! regimes: among the Gateway's own listeners nobody wins and all that cannot be told apart are
//! conflicted, yet keep their slot; across objects, and inside one ListenerSet, the first one wins
//! and only later ones are marked.
//!
//! Between namespaces whoever holds a name ([`crate::claim`]) comes before whoever does not, however old.
//!
//! [`PortClaims`] answers for one port and is kept up to date claim by claim: a change costs the
//! claims whose verdict it can change, not the port.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::claim::{Holdings, Profile};
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::key::{ListenerKey, ObjectName};
use crate::object::Protocol;

/// A claim's place in the merge order as upstream has it; less comes first. Whether it is held comes before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// The Gateway's own listener, by index.
    Gateway(usize),
    /// A ListenerSet's listener.
    Set {
        /// Creation of the set, seconds since the epoch.
        created: i64,
        /// `namespace/name` of the set, compared as one text, as upstream does.
        object: Arc<str>,
        /// Index in the set.
        index: usize,
    },
}

impl Precedence {
    /// Of the listener with this index in this set.
    #[must_use]
    pub fn of_set(created: i64, name: &ObjectName, index: usize) -> Self {
        Self::Set {
            created,
            object: name.to_string().into(),
            index,
        }
    }

    fn is_own(&self) -> bool {
        matches!(self, Self::Gateway(_))
    }
}

/// What comes before the order of upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// The Gateway's own.
    Gateway,
    /// The namespace holds the name; or it alone has and holds anything on the port, and speaks another
    /// protocol there, too.
    Held,
    /// Neither.
    Set,
}

/// What protocols have to agree on to share a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// HTTP.
    Http,
    /// HTTPS and TLS: told apart by server name.
    Tls,
    /// TCP and UDP: no names.
    Raw,
}

/// The transport whose port numbers a protocol uses: TCP and UDP ports never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Transport {
    /// The text the API uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Reads the API's text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }
}

impl Protocol {
    /// Its transport; `None` for protocols this release does not know.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::Http | Self::Https | Self::Tls | Self::Tcp => Some(Transport::Tcp),
            Self::Udp => Some(Transport::Udp),
            Self::Other(_) => None,
        }
    }

    /// What it has to agree on with others on its port.
    #[must_use]
    pub fn group(&self) -> Group {
        match self {
            Self::Http => Group::Http,
            Self::Https | Self::Tls => Group::Tls,
            Self::Tcp | Self::Udp | Self::Other(_) => Group::Raw,
        }
    }
}

/// A listener's claim to a hostname on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whose.
    pub listener: ListenerKey,
    /// Its place in the order.
    pub precedence: Precedence,
    /// What it wants to speak.
    pub protocol: Protocol,
    /// For which names.
    pub hostname: HostPattern,
}

impl Claim {
    /// Who makes it.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        &self.listener.parent.name().namespace
    }

    /// What it is about: its hostname, or, where bytes have no names, the port.
    #[must_use]
    pub fn names(&self) -> &HostPattern {
        match self.protocol.group() {
            Group::Raw => &HostPattern::Any,
            Group::Http | Group::Tls => &self.hostname,
        }
    }

    /// Where its rivals are.
    fn bucket(&self) -> (Group, Reversed) {
        (self.protocol.group(), Reversed::of(self.names()))
    }
}

/// Why a listener cannot stand beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflict {
    /// Same protocol and hostname.
    Hostname,
    /// The port, or the hostname on it, speaks another protocol.
    Protocol,
    /// Both at once.
    Both,
}

impl Conflict {
    fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Both }
    }

    /// The reason of the conditions Conflicted, Accepted and Programmed alike
    /// (`conformance/tests/listenerset-{hostname,protocol}-conflict.go`).
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Hostname => Reason::HostnameConflict,
            Self::Protocol => Reason::ProtocolConflict,
            Self::Both => Reason::ListenerConflict,
        }
    }

    /// What to tell the author of `claim`, whose listener is at `field` and on `port` of `gateway`.
    #[must_use]
    pub fn finding(self, claim: &Claim, field: &str, port: u16, gateway: &ObjectName) -> Finding {
        let name = match &claim.hostname {
            HostPattern::Any => "every hostname".to_owned(),
            pattern => format!("hostname {:?}", pattern.to_string()),
        };
        let (at, message, action) = match self {
            Self::Hostname => (
                "hostname",
                format!("{name} on port {port} is taken by another listener on Gateway {gateway}"),
                "use another hostname or port, or have the present listener removed first",
            ),
            Self::Protocol => (
                "protocol",
                format!(
                    "{name} on port {port} cannot speak {} because another listener on Gateway {gateway} speaks another protocol there",
                    claim.protocol
                ),
                "use another port, or the protocol that the port already speaks",
            ),
            Self::Both => (
                "port",
                format!(
                    "{name} on port {port} is claimed by other listeners on Gateway {gateway}, with the same and with another protocol"
                ),
                "use another hostname or port",
            ),
        };
        Finding::refused(self.reason(), format!("{field}.{at}"), message, action)
    }
}

/// A pattern as a sort key under which everything below a suffix is one range: labels reversed, each
/// followed by a dot, and a `*` for wildcards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reversed(String);

impl Reversed {
    fn of(pattern: &HostPattern) -> Self {
        match pattern {
            HostPattern::Any => Self("*".into()),
            HostPattern::Wildcard(suffix) => Self(Self::labels(suffix.as_str()) + "*"),
            HostPattern::Exact(name) => Self(Self::labels(name.as_str())),
        }
    }

    fn labels(name: &str) -> String {
        name.rsplit('.')
            .fold(String::with_capacity(name.len() + 2), |mut text, label| {
                text.push_str(label);
                text.push('.');
                text
            })
    }

    fn wildcard_above(suffix: &str) -> Self {
        Self(Self::labels(suffix) + "*")
    }
}

/// A listener's place. The key is part of it because, while an object's listeners change places, two
/// of them can have one place for a moment.
type Place = (Tier, Precedence, ListenerKey);

/// Listeners in order.
type Bucket = BTreeSet<Place>;

/// Every claim to one port (of one transport) of one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortClaims {
    claims: BTreeMap<ListenerKey, (Claim, Tier)>,
    /// Number of the Gateway's own claims by group.
    own: BTreeMap<Group, usize>,
    /// The ListenerSets' claims in order.
    sets: BTreeMap<Place, Group>,
    /// Claims that want the same names of the same group.
    buckets: BTreeMap<(Group, Reversed), Bucket>,
    /// How many claims of ListenerSets each namespace has, and how many of each group there are.
    tenants: BTreeMap<Arc<str>, usize>,
    groups: BTreeMap<Group, usize>,
    /// Who holds what.
    holdings: Holdings,
}

/// Who has the port for itself, and what is held there: the tier of names that nobody holds depends on it.
type Estate = (Option<Arc<str>>, BTreeSet<Group>);

/// What the port as a whole has settled on: a claim's verdict depends on it and on its bucket only.
type Ground = (Vec<Group>, Option<Group>, Profile);

impl PortClaims {
    /// Whether nobody claims or holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.holdings.is_empty()
    }

    /// Adds a claim, in place of the listener's former one, and returns the listeners whose verdict
    /// may have changed, its own included.
    pub fn insert(&mut self, claim: Claim) -> BTreeSet<ListenerKey> {
        let mut affected = self.remove(&claim.listener);
        let (before, estate) = (self.ground(), self.estate());
        self.add(claim.clone());
        self.rearrange(&estate, &mut affected);
        self.affected_by(&claim.bucket(), claim.names(), &before, &mut affected);
        affected.insert(claim.listener);
        affected
    }

    /// Takes a listener's claim away and returns the listeners whose verdict may have changed.
    pub fn remove(&mut self, listener: &ListenerKey) -> BTreeSet<ListenerKey> {
        let mut affected = BTreeSet::new();
        let (before, estate) = (self.ground(), self.estate());
        if let Some(claim) = self.take(listener) {
            self.rearrange(&estate, &mut affected);
            self.affected_by(&claim.bucket(), claim.names(), &before, &mut affected);
        }
        affected
    }

    /// Records which namespace holds `names`, and returns the listeners whose verdict may have changed.
    pub fn hold(
        &mut self,
        group: Group,
        names: &HostPattern,
        holder: Option<Arc<str>>,
    ) -> BTreeSet<ListenerKey> {
        let mut affected = BTreeSet::new();
        if self.holdings.holder(group, names) == holder.as_ref() {
            return affected;
        }
        let (before, estate) = (self.ground(), self.estate());
        self.holdings.set(group, names, holder);
        let bucket = (group, Reversed::of(names));
        let rivals = self.buckets.get(&bucket).into_iter().flatten();
        let rivals: Vec<ListenerKey> = rivals.map(|at| at.2.clone()).collect();
        self.place_anew(rivals, &mut affected);
        self.rearrange(&estate, &mut affected);
        self.affected_by(&bucket, names, &before, &mut affected);
        affected
    }

    fn estate(&self) -> Estate {
        (self.sole().cloned(), self.holdings.groups())
    }

    /// The namespace that has the port for itself: it holds all that is held, and nobody else wants anything.
    fn sole(&self) -> Option<&Arc<str>> {
        let holder = self.holdings.only_holder()?;
        self.tenants
            .keys()
            .all(|tenant| tenant == holder)
            .then_some(holder)
    }

    /// The estate was another one: brings tiers in line that depend on it.
    fn rearrange(&mut self, before: &Estate, affected: &mut BTreeSet<ListenerKey>) {
        let after = self.estate();
        let held = |group: &Group| before.1.contains(group) && after.1.contains(group);
        // Where every group is held, before and after, nothing depends on it.
        let moves = |group: &Group| self.groups.contains_key(group) && !held(group);
        let moving: Vec<Group> = [Group::Http, Group::Tls, Group::Raw]
            .into_iter()
            .filter(moves)
            .collect();
        if *before == after || moving.is_empty() {
            return;
        }
        let places = self.sets.iter();
        let places = places.filter(|(_, group)| moving.contains(group));
        let listeners = places.map(|(at, _)| at.2.clone()).collect();
        self.place_anew(listeners, affected);
    }

    fn place_anew(&mut self, listeners: Vec<ListenerKey>, affected: &mut BTreeSet<ListenerKey>) {
        for listener in listeners {
            let stale = |(claim, tier): &(Claim, Tier)| *tier != self.tier(claim);
            if self.claims.get(&listener).is_some_and(stale)
                && let Some(claim) = self.take(&listener)
            {
                self.add(claim);
                affected.insert(listener);
            }
        }
    }

    /// Which namespace holds `names`.
    #[must_use]
    pub fn holder(&self, group: Group, names: &HostPattern) -> Option<&Arc<str>> {
        self.holdings.holder(group, names)
    }

    fn add(&mut self, claim: Claim) {
        let group = claim.protocol.group();
        let place = self.place(&claim);
        let tier = place.0;
        self.buckets
            .entry(claim.bucket())
            .or_default()
            .insert(place.clone());
        if tier == Tier::Gateway {
            *self.own.entry(group).or_default() += 1;
        } else {
            self.sets.insert(place, group);
            *self.groups.entry(group).or_default() += 1;
            *self.tenants.entry(claim.namespace().clone()).or_default() += 1;
        }
        self.claims.insert(claim.listener.clone(), (claim, tier));
    }

    fn take(&mut self, listener: &ListenerKey) -> Option<Claim> {
        let (claim, tier) = self.claims.remove(listener)?;
        let place = (tier, claim.precedence.clone(), listener.clone());
        let group = claim.protocol.group();
        if tier == Tier::Gateway {
            count_down(&mut self.own, &group);
        } else {
            self.sets.remove(&place);
            count_down(&mut self.groups, &group);
            count_down(&mut self.tenants, claim.namespace());
        }
        let at = claim.bucket();
        if let Some(bucket) = self.buckets.get_mut(&at) {
            bucket.remove(&place);
            if bucket.is_empty() {
                self.buckets.remove(&at);
            }
        }
        Some(claim)
    }

    fn tier(&self, claim: &Claim) -> Tier {
        if claim.precedence.is_own() {
            return Tier::Gateway;
        }
        let (group, namespace) = (claim.protocol.group(), claim.namespace());
        let holds = self.holdings.holder(group, claim.names()) == Some(namespace)
            || self.sole() == Some(namespace) && !self.holdings.has(group);
        if holds { Tier::Held } else { Tier::Set }
    }

    fn place(&self, claim: &Claim) -> Place {
        (
            self.tier(claim),
            claim.precedence.clone(),
            claim.listener.clone(),
        )
    }

    /// The claim of a listener.
    #[must_use]
    pub fn claim(&self, listener: &ListenerKey) -> Option<&Claim> {
        self.claims.get(listener).map(|(claim, _)| claim)
    }

    /// Who would have `names` of the ListenerSets, if the Gateway and what the port speaks let it: the first
    /// one in order.
    #[must_use]
    pub fn first(&self, group: Group, names: &HostPattern) -> Option<&Claim> {
        let bucket = self.buckets.get(&(group, Reversed::of(names)))?;
        let (.., listener) = bucket.iter().find(|at| at.0 != Tier::Gateway)?;
        self.claim(listener)
    }

    /// Whether `claim` conflicts with those before it. It need not be one of the claims held, and if
    /// it is, it is not compared with itself.
    #[must_use]
    pub fn conflict(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, false)
    }

    /// Whether `claim` would take something from, or be refused something by, another object that
    /// has it now, whatever the order: what admission asks, so that an older object does not evict a
    /// younger one by an edit. The present claims of the claim's own object do not count, nor do
    /// those of others that are not in force themselves (the Gateway's own always count).
    #[must_use]
    pub fn conflict_as_newcomer(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, true)
    }

    fn judge(&self, claim: &Claim, newcomer: bool) -> Option<Conflict> {
        let group = claim.protocol.group();
        let others = |at: &&Place| at.2 != claim.listener;
        let bucket = self.buckets.get(&claim.bucket());
        let clash = |rival: &ListenerKey| {
            let same = self
                .claim(rival)
                .is_some_and(|c| c.protocol == claim.protocol);
            if same && group != Group::Raw {
                Conflict::Hostname
            } else {
                Conflict::Protocol
            }
        };
        // The Gateway's own claims keep their slot even where they conflict with one another, so all
        // of them count, for one another and for the sets.
        // A claim that would take the place of the listener's former one does not meet that one.
        let former = self
            .claim(&claim.listener)
            .filter(|former| former.precedence.is_own())
            .map(|former| former.protocol.group());
        let other_group = self
            .own
            .iter()
            .any(|(g, count)| *g != group && *count > usize::from(former == Some(*g)));
        let with_own = bucket
            .into_iter()
            .flatten()
            .take_while(|at| at.0 == Tier::Gateway)
            .filter(others)
            .map(|at| clash(&at.2))
            .chain(other_group.then_some(Conflict::Protocol))
            .reduce(Conflict::and);
        if with_own.is_some() || claim.precedence.is_own() {
            return with_own;
        }
        // What another namespace holds is not to be had, whether or not it has a listener there now.
        let place = self.place(claim);
        if place.0 == Tier::Set {
            if self.holdings.is_foreign_to(group, claim.namespace()) {
                return Some(Conflict::Protocol);
            }
            if self.holdings.holder(group, claim.names()).is_some() {
                let first = bucket.into_iter().flatten().find(|at| at.0 == Tier::Held);
                return Some(first.map_or_else(
                    || match group {
                        Group::Raw => Conflict::Protocol,
                        Group::Http | Group::Tls => Conflict::Hostname,
                    },
                    |at| clash(&at.2),
                ));
            }
        }
        // Of the sets, only what is in force counts: the first claim of all settles what the port
        // speaks, the first one of a bucket has its names.
        let counts = |at: &&Place| {
            others(at)
                && if newcomer {
                    !same_object(&at.1, &claim.precedence) && self.in_force(&at.2)
                } else {
                    **at < place
                }
        };
        if self.own.is_empty()
            && let Some(spoken) = self.spoken()
            && spoken != group
            && self
                .sets
                .iter()
                .filter(|(_, g)| **g == spoken)
                .any(|(at, _)| counts(&at))
        {
            return Some(Conflict::Protocol);
        }
        bucket
            .into_iter()
            .flatten()
            .find(counts)
            .map(|at| clash(&at.2))
    }

    /// What the sets' listeners speak: what the first one speaks, but not if it is kept out by what is held.
    fn spoken(&self) -> Option<Group> {
        let first = self.sets.iter().next().map(|(at, group)| (at.0, *group));
        match (first, self.holdings.spoken()) {
            (Some((Tier::Held, group)), _) | (Some((_, group)), None) => Some(group),
            (_, held) => held,
        }
    }

    fn in_force(&self, listener: &ListenerKey) -> bool {
        self.claim(listener)
            .is_some_and(|claim| self.conflict(claim).is_none())
    }

    /// Whether another listener in force on this port matches some of the same TLS names
    /// (GEP-3567: such listeners carry the condition OverlappingTLSConfig).
    #[must_use]
    pub fn overlaps(&self, claim: &Claim) -> bool {
        claim.protocol.group() == Group::Tls
            && self.neighbours(&claim.hostname).any(|bucket| {
                bucket
                    .first()
                    .is_some_and(|(.., first)| self.in_force(first))
            })
    }

    /// The pattern of the listener that TLS connections for `names` go to: of those in force that cover all of
    /// them, the most specific one.
    #[must_use]
    pub fn selected(&self, names: &HostPattern) -> Option<&HostPattern> {
        let parents = match names {
            HostPattern::Any => None,
            HostPattern::Wildcard(name) | HostPattern::Exact(name) => Some(name),
        };
        std::iter::once(Reversed::of(names))
            .chain(
                parents
                    .into_iter()
                    .flat_map(Hostname::parents)
                    .map(Reversed::wildcard_above),
            )
            .chain(std::iter::once(Reversed::of(&HostPattern::Any)))
            .filter_map(|key| self.buckets.get(&(Group::Tls, key))?.first())
            .find(|(.., listener)| self.in_force(listener))
            .and_then(|(.., listener)| self.claim(listener).map(Claim::names))
    }

    /// TLS buckets of other patterns that overlap with this one.
    fn neighbours<'a>(&'a self, pattern: &'a HostPattern) -> impl Iterator<Item = &'a Bucket> {
        let own = Reversed::of(pattern);
        let (name, below): (Option<&Hostname>, Option<String>) = match pattern {
            HostPattern::Any => (None, Some(String::new())),
            HostPattern::Wildcard(suffix) => {
                (Some(suffix), Some(Reversed::labels(suffix.as_str())))
            }
            HostPattern::Exact(name) => (Some(name), None),
        };
        let above = name
            .into_iter()
            .flat_map(Hostname::parents)
            .map(Reversed::wildcard_above)
            .chain((*pattern != HostPattern::Any).then(|| Reversed("*".into())))
            .filter_map(|key| self.buckets.get(&(Group::Tls, key)));
        let below = below.into_iter().flat_map(move |prefix| {
            let own = own.clone();
            let apex = prefix.clone();
            let from = Bound::Included((Group::Tls, Reversed(prefix.clone())));
            self.buckets
                .range((from, Bound::Unbounded))
                .take_while(move |((group, key), _)| {
                    *group == Group::Tls && key.0.starts_with(&prefix)
                })
                // A wildcard does not match its own apex.
                .filter(move |((_, key), _)| *key != own && (apex.is_empty() || key.0 != apex))
                .map(|(_, bucket)| bucket)
        });
        above.chain(below)
    }

    fn ground(&self) -> Ground {
        (
            self.own.keys().copied().collect(),
            self.spoken(),
            self.holdings.profile(),
        )
    }

    /// Something of these names has changed, and perhaps the ground, which was `before`.
    fn affected_by(
        &self,
        bucket: &(Group, Reversed),
        names: &HostPattern,
        before: &Ground,
        affected: &mut BTreeSet<ListenerKey>,
    ) {
        if self.ground() != *before {
            affected.extend(self.claims.keys().cloned());
            return;
        }
        let tls = bucket.0 == Group::Tls;
        if let Some(bucket) = self.buckets.get(bucket) {
            affected.extend(bucket.iter().map(|at| at.2.clone()));
        }
        if tls {
            for bucket in self.neighbours(names) {
                affected.extend(bucket.iter().map(|at| at.2.clone()));
            }
        }
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn same_object(a: &Precedence, b: &Precedence) -> bool {
    match (a, b) {
        (Precedence::Gateway(_), Precedence::Gateway(_)) => true,
        (Precedence::Set { object: a, .. }, Precedence::Set { object: b, .. }) => a == b,
        _ => false,
    }
}
