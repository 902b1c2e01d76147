//! ListenerSets that were admitted a moment ago, and that the watch has not shown yet.
//!
//! The watch is always a little behind. In this time, two sets that conflict could both be admitted, one right after
//! the other. So if a set may conflict with one that was just admitted, its answer waits until the watch has shown that
//! one, or until [`PATIENCE`] has passed. After that, only the objects that exist decide.
//!
//! No set is ever refused because of another set that was only reviewed. Anybody who reaches the port could send
//! reviews that were made up.
//!
//! Other replicas do not know what was admitted here. So this makes the gap smaller, but does not close it. The status
//! has the last word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::gateway::ListenerSet;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectName, PortKey};
use vestibule_model::protocol::Group;

/// How long an admitted ListenerSet counts as pending, which is also the longest time that another one waits for it.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// Most ListenerSets that are remembered at one time. Further ones are not remembered.
const MAX_SETS: usize = 1024;
/// Most listeners that are remembered of one set. The CRD allows as many.
const MAX_LISTENERS: usize = 64;

/// The protocol and the hostnames that a listener asks for on a port.
type Want = (Group, HostPattern);

#[derive(Debug)]
pub(crate) struct Pending {
    patience: Duration,
    sets: BTreeMap<ObjectName, (Arc<ListenerSet>, Instant)>,
    /// The sets that ask for something, by port.
    wants: BTreeMap<PortKey, BTreeMap<Want, BTreeSet<ObjectName>>>,
}

impl Pending {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            sets: BTreeMap::new(),
            wants: BTreeMap::new(),
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// How many sets there are.
    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Remembers a set that was admitted, in place of a former version of it.
    pub(crate) fn admit(&mut self, set: &ListenerSet, now: Instant) {
        self.forget(&set.name);
        if set.listeners.len() > MAX_LISTENERS {
            return;
        }
        if self.sets.len() >= MAX_SETS {
            self.expire(now);
        }
        if self.sets.len() >= MAX_SETS {
            return;
        }
        for (port, want) in wants(set) {
            let names = self.wants.entry(port).or_default();
            names.entry(want).or_default().insert(set.name.clone());
        }
        let entry = (Arc::new(set.clone()), now);
        self.sets.insert(set.name.clone(), entry);
    }

    /// Takes a version of a set from the watch.
    pub(crate) fn see(&mut self, set: &ListenerSet) {
        let shown = |(admitted, _): &(Arc<ListenerSet>, Instant)| {
            admitted.gateway == set.gateway && admitted.listeners == set.listeners
        };
        if self.sets.get(&set.name).is_some_and(shown) {
            self.forget(&set.name);
        }
    }

    /// Forgets sets that the watch did not show in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        let names: Vec<ObjectName> = self
            .sets
            .iter()
            .filter(|(_, (_, since))| !self.is_awaited(*since, now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.forget(&name);
        }
    }

    /// Whether a set asks for something that another, pending set asks for as well.
    pub(crate) fn meets(&self, set: &ListenerSet, now: Instant) -> bool {
        let other = |names: &BTreeSet<ObjectName>| {
            names
                .iter()
                .filter(|name| **name != set.name)
                .filter_map(|name| self.sets.get(name))
                .any(|(_, since)| self.is_awaited(*since, now))
        };
        wants(set)
            .take(MAX_LISTENERS)
            .any(|(port, (group, pattern))| {
                self.wants.get(&port).is_some_and(|wanted| {
                    let same = wanted.get(&(group, pattern));
                    let unlike = [Group::Http, Group::Tls, Group::Raw]
                        .into_iter()
                        .filter(|other| *other != group);
                    // For another protocol the first few are enough, because any of them conflicts with all.
                    let mut unlike = unlike.flat_map(|other| {
                        wanted
                            .range((other, HostPattern::Any)..)
                            .take_while(move |((group, _), _)| *group == other)
                            .take(MAX_LISTENERS + 1)
                            .map(|(_, names)| names)
                    });
                    same.is_some_and(other) || unlike.any(other)
                })
            })
    }

    fn is_awaited(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) < self.patience
    }

    fn forget(&mut self, name: &ObjectName) {
        let Some((set, _)) = self.sets.remove(name) else {
            return;
        };
        for (port, want) in wants(&set) {
            let Some(wanted) = self.wants.get_mut(&port) else {
                continue;
            };
            if let Some(names) = wanted.get_mut(&want) {
                names.remove(name);
                if names.is_empty() {
                    wanted.remove(&want);
                }
            }
            if wanted.is_empty() {
                self.wants.remove(&port);
            }
        }
    }
}

/// Everything that the listeners of a set ask for.
fn wants(set: &ListenerSet) -> impl Iterator<Item = (PortKey, Want)> {
    let gateway = set.gateway.as_ref();
    set.listeners.iter().filter_map(move |listener| {
        let group = listener.protocol.group();
        let port = PortKey {
            gateway: gateway?.clone(),
            port: listener.port?,
            transport: listener.protocol.transport()?,
        };
        let names = match group {
            Group::Raw => HostPattern::Any,
            Group::Http | Group::Tls => listener.hostname.clone(),
        };
        Some((port, (group, names)))
    })
}
