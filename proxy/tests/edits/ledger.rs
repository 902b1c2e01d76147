//! Which configurations were in force when: what an answer is compared with.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;
use vestibule_stream::{Resource, ResourceKey, ResourceKind, proto};

use proto::resource::Resource as Wire;

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

/// The part of a resource by which tunnels are served. It is `None` if there is none.
fn serving(resource: &Resource) -> Option<Wire> {
    use proto::listener::Protocol;
    use proto::tls_listener::Mode;
    let mut wire = resource.resource.clone()?;
    match &mut wire {
        Wire::Listener(listener) => {
            listener.limits = None;
            let terminate = match listener.protocol.as_mut() {
                Some(Protocol::Http(http)) => http.terminate.as_mut(),
                Some(Protocol::Tls(tls)) => match tls.mode.as_mut() {
                    Some(Mode::Terminate(terminate)) => Some(terminate),
                    _ => None,
                },
                _ => None,
            };
            if let Some(terminate) = terminate {
                terminate.certificates.clear();
            }
        }
        Wire::TlsRoute(route) => {
            route.created = 0;
            route.backends.clear();
        }
        Wire::TcpRoute(route) | Wire::UdpRoute(route) => {
            route.created = 0;
            route.backends.clear();
        }
        Wire::HttpRoute(route) | Wire::GrpcRoute(route) => {
            route.created = 0;
            route.rules.clear();
        }
        Wire::HostnameOwner(_) | Wire::TrustBundle(_) => {}
        _ => return None,
    }
    Some(wire)
}

/// Whether a step from one configuration to the next may end a tunnel. It may if a listener, a route, an owner or a trust
/// bundle goes or changes, or if a listener or an owner comes, which may take a name from another one.
fn takes_away(before: &Config, after: &Config) -> bool {
    let goes = before.0.iter().any(|(key, resource)| {
        let served = serving(resource);
        served.is_some() && after.0.get(key).and_then(|of| serving(of)) != served
    });
    let mut new = after.0.keys().filter(|key| !before.0.contains_key(*key));
    goes || new.any(|key| {
        matches!(
            key.kind(),
            ResourceKind::Listener | ResourceKind::HostnameOwner
        )
    })
}

/// A configuration and the first and last time that it was in force.
pub(crate) struct Spell {
    pub(crate) config: Arc<Config>,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The configurations so far. An edit begins when it may take effect from then on, and is done when
/// what was before it is gone.
pub(crate) struct Ledger {
    configs: RwLock<Vec<Arc<Config>>>,
    begun: AtomicUsize,
    done: AtomicUsize,
    /// As `done`, for those who wait.
    told: watch::Sender<usize>,
}

impl Ledger {
    pub(crate) fn new(first: Arc<Config>) -> Self {
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
        configs.push(Arc::clone(config));
        let number = configs.len() - 1;
        self.begun.store(number, Ordering::SeqCst);
        number
    }

    /// To be called after it.
    pub(crate) fn end(&self, number: usize) {
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

    /// Whether an edit since `begun` may have ended a tunnel.
    pub(crate) fn may_have_ended_a_tunnel(&self, begun: usize) -> bool {
        let configs = self.configs.read();
        let since = configs.get(begun..).unwrap_or_default();
        since
            .windows(2)
            .any(|pair| matches!(pair, [before, after] if takes_away(before, after)))
    }

    /// The configurations in force within a time, each once.
    pub(crate) fn within(&self, time: RangeInclusive<usize>) -> Vec<Spell> {
        let configs = self.configs.read();
        let mut found: Vec<Spell> = Vec::new();
        for number in time {
            let Some(config) = configs.get(number) else {
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
