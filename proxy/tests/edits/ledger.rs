//! Which configurations were in force when: what an answer is compared with.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tokio::sync::watch;
use vestibule_stream::{Resource, ResourceKey, ResourceKind};

/// How long a tunnel is not served at least before the proxy ends it. If it is served again before that, it goes on.
const GRACE: Duration = Duration::from_secs(1);

/// Everything that is in force at one moment.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Config(pub(crate) BTreeMap<ResourceKey, Arc<Resource>>);

impl Config {
    /// A resource in force.
    pub(crate) fn get(&self, kind: ResourceKind, name: &str) -> Option<&Resource> {
        let key = ResourceKey::new(kind, name);
        self.0.get(&key).map(|resource| &**resource)
    }

    /// The resources of a kind, by name.
    pub(crate) fn of(&self, kind: ResourceKind) -> impl Iterator<Item = (&str, &Resource)> {
        let all = self.0.iter();
        all.filter(move |(key, _)| key.kind() == kind)
            .map(|(key, resource)| (key.name.as_str(), &**resource))
    }

    pub(crate) fn set(&mut self, resource: Resource) {
        self.0.insert(resource.key().unwrap(), Arc::new(resource));
    }

    pub(crate) fn remove(&mut self, kind: ResourceKind, name: &str) {
        self.0.remove(&ResourceKey::new(kind, name));
    }
}

impl Clone for Config {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What differs: resources to put and keys to take away.
pub(crate) fn difference(
    from: &Config,
    to: &Config,
) -> (Vec<(ResourceKey, Resource)>, Vec<ResourceKey>) {
    let new =
        |(key, resource): &(&ResourceKey, &Arc<Resource>)| from.0.get(*key) != Some(*resource);
    let upserts = to.0.iter().filter(new);
    let upserts = upserts.map(|(key, resource)| (key.clone(), Resource::clone(resource)));
    let removals = from.0.keys().filter(|key| !to.0.contains_key(*key));
    (upserts.collect(), removals.cloned().collect())
}

/// A configuration and the first and last time that it was in force.
pub(crate) struct Spell {
    pub(crate) config: Arc<Config>,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// A configuration, and when it was put in force.
struct Put {
    config: Arc<Config>,
    begun: Instant,
    /// It is `None` as long as the one before it may be in force.
    done: Option<Instant>,
}

/// The configurations so far. An edit begins when it may take effect from then on, and is done when
/// what was before it is gone.
pub(crate) struct Ledger {
    configs: RwLock<Vec<Put>>,
    begun: AtomicUsize,
    done: AtomicUsize,
    /// As `done`, for those who wait.
    told: watch::Sender<usize>,
}

impl Ledger {
    pub(crate) fn new(first: Arc<Config>) -> Self {
        let now = Instant::now();
        let first = Put {
            config: first,
            begun: now,
            done: Some(now),
        };
        Self {
            configs: RwLock::new(vec![first]),
            begun: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            told: watch::Sender::new(0),
        }
    }

    /// What is in force from now on, at the earliest.
    pub(crate) fn oldest(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// What may have been in force up to now, at the latest.
    pub(crate) fn newest(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// To be called before an edit; says its number.
    pub(crate) fn begin(&self, config: &Arc<Config>) -> usize {
        let mut configs = self.configs.write();
        configs.push(Put {
            config: Arc::clone(config),
            begun: Instant::now(),
            done: None,
        });
        let number = configs.len() - 1;
        self.begun.store(number, Ordering::SeqCst);
        number
    }

    /// To be called after it.
    pub(crate) fn end(&self, number: usize) {
        if let Some(put) = self.configs.write().get_mut(number) {
            put.done = Some(Instant::now());
        }
        self.done.store(number, Ordering::SeqCst);
        self.told.send_replace(number);
    }

    /// How many edits are done; more than any number when nobody is to wait any more.
    pub(crate) fn told(&self) -> watch::Receiver<usize> {
        self.told.subscribe()
    }

    /// Lets everybody go who waits for an edit.
    pub(crate) fn release(&self) {
        self.told.send_replace(usize::MAX);
    }

    /// Whether edits since the one with this number may have ended a tunnel. They may if configurations that do not
    /// serve it were in force at two moments with the grace in between.
    pub(crate) fn may_have_ended(&self, since: usize, serves: impl Fn(&Config) -> bool) -> bool {
        let configs = self.configs.read();
        let mut away: Option<(Instant, Instant)> = None;
        for (number, put) in configs.iter().enumerate().skip(since) {
            if serves(&put.config) {
                continue;
            }
            let next = configs.get(number + 1).and_then(|next| next.done);
            let last = next.unwrap_or_else(Instant::now);
            let first = away.map_or(put.begun, |(first, _)| first);
            away = Some((first, last));
        }
        away.is_some_and(|(first, last)| last.duration_since(first) >= GRACE)
    }

    /// The configuration that is in force when no edit is under way.
    pub(crate) fn last(&self) -> Arc<Config> {
        let configs = self.configs.read();
        Arc::clone(&configs[configs.len() - 1].config)
    }

    /// The configurations in force within a time, each once.
    pub(crate) fn within(&self, time: RangeInclusive<usize>) -> Vec<Spell> {
        let configs = self.configs.read();
        let mut found: Vec<Spell> = Vec::new();
        for number in time {
            let Some(Put { config, .. }) = configs.get(number) else {
                break;
            };
            match found
                .iter_mut()
                .find(|spell| Arc::ptr_eq(&spell.config, config))
            {
                Some(spell) => spell.last = number,
                None => found.push(Spell {
                    config: Arc::clone(config),
                    first: number,
                    last: number,
                }),
            }
        }
        found
    }
}
