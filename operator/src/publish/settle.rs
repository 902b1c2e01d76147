//! Which changes are published now, and which a little later. Pure; time is an input.
//!
//! Objects that belong together come by separate watches: a route may be known before the Service and the
//! EndpointSlices that were created before it, and a slice, a grant or a policy that is replaced may be gone
//! before its successor is there. What is translated in between is true of the objects seen so far, and it
//! would fail requests that the objects before and after both serve. So a change that takes something from
//! requests is published after a grace, if it is still so by then. A change that takes nothing is
//! published at once, and a change that ends the trouble ends the wait.
//!
//! What is kept meanwhile is the whole resource that the proxies have, and with a route the backends that
//! it leads to: a request meets the configuration before the change or the one after it. The names that a
//! route is attached to are never kept (`docs/adr/0019-settling.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use vestibule_stream::proto::{self, http_filter, resource};
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

/// How long a change waits that takes something from requests.
pub const GRACE: Duration = Duration::from_secs(1);

/// Changes that are to be published: `None` is a removal.
pub type Pending = BTreeMap<ResourceKey, Option<Encoded>>;

/// What changes are compared with, and judged by.
pub struct Present<'a> {
    /// The resource as it was published last.
    pub published: &'a dyn Fn(&ResourceKey) -> Option<Encoded>,
    /// Whether a listener that is to be removed only waits for a record or a port, and will then have at
    /// least the names that it has now.
    pub waits: &'a dyn Fn(&ResourceKey, &proto::Listener) -> bool,
}

impl Present<'_> {
    fn decoded(&self, key: &ResourceKey) -> Option<resource::Resource> {
        (self.published)(key)?.decode()
    }
}

/// Changes that wait, and since when.
#[derive(Debug, Default)]
pub struct Settle {
    pending: BTreeMap<ResourceKey, Change>,
    /// When the first of them has waited long enough.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Change {
    resource: Option<Encoded>,
    /// Until when it waits at most; none: it was not looked at yet, or waits with a route.
    until: Option<Instant>,
}

impl Settle {
    /// Takes changes; a later one of a key replaces the earlier one, and waits no longer than that.
    pub fn add(&mut self, changes: impl IntoIterator<Item = (ResourceKey, Option<Encoded>)>) {
        for (key, resource) in changes {
            let until = self.pending.get(&key).and_then(|change| change.until);
            self.pending.insert(key, Change { resource, until });
        }
    }

    /// The resources of which a change waits.
    #[must_use]
    pub fn withheld(&self) -> BTreeSet<ResourceKey> {
        self.pending.keys().cloned().collect()
    }

    /// When [`Self::due`] has something to give though nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Everything, whatever it takes away.
    pub fn all(&mut self) -> Pending {
        self.deadline = None;
        let pending = std::mem::take(&mut self.pending);
        let changes = pending.into_iter();
        changes
            .map(|(key, change)| (key, change.resource))
            .collect()
    }

    /// What is to be published now, in one generation.
    pub fn due(&mut self, now: Instant, present: &Present<'_>) -> Pending {
        let mut held = BTreeSet::new();
        // What refers to others after them: what is kept is as good as it was.
        let mut keys: Vec<ResourceKey> = self.pending.keys().cloned().collect();
        keys.sort_by_key(|key| match key.kind() {
            ResourceKind::Certificate | ResourceKind::TrustBundle => 0,
            ResourceKind::HttpRoute
            | ResourceKind::GrpcRoute
            | ResourceKind::TlsRoute
            | ResourceKind::TcpRoute
            | ResourceKind::UdpRoute => 2,
            _ => 1,
        });
        for key in keys {
            let worse = self.is_worse(&key, &held, present);
            let Some(change) = self.pending.get_mut(&key) else {
                continue;
            };
            if !worse {
                change.until = None;
            } else if now < *change.until.get_or_insert(now + GRACE) {
                held.insert(key);
            }
        }
        self.keep_references(&mut held, present);
        let waits = held.iter().filter_map(|key| self.pending.get(key)?.until);
        // What has waited long enough, and is held for another one, waits for that one.
        self.deadline = waits.filter(|until| now < *until).min();
        let due: Vec<ResourceKey> = self
            .pending
            .keys()
            .filter(|key| !held.contains(*key))
            .cloned()
            .collect();
        due.into_iter()
            .filter_map(|key| Some((key.clone(), self.pending.remove(&key)?.resource)))
            .collect()
    }

    /// Whether publishing a change would take something from requests that may be back in a moment.
    fn is_worse(
        &self,
        key: &ResourceKey,
        held: &BTreeSet<ResourceKey>,
        present: &Present<'_>,
    ) -> bool {
        use resource::Resource::{Backend, Listener};
        let change = self.pending.get(key);
        let new = change.and_then(|change| change.resource.as_ref());
        if matches!(
            key.kind(),
            ResourceKind::Certificate | ResourceKind::TrustBundle
        ) {
            // Without it a listener closes, or a backend is not connected to.
            return new.is_none() && (present.published)(key).is_some();
        }
        let after = |key: &ResourceKey| self.after(key, held, present);
        let old = present.decoded(key);
        match (new.and_then(Encoded::decode), old) {
            (Some(Backend(new)), Some(Backend(old))) => {
                is_usable(&old, present.published)
                    && (!is_usable(&new, &after) || (old.tls.is_some() && new.tls.is_none()))
            }
            (Some(Listener(new)), Some(Listener(old))) => {
                shows_certificate(&old, present.published) && !shows_certificate(&new, &after)
            }
            (None, Some(Listener(old))) => (present.waits)(key, &old),
            (Some(new), old) if is_route(&new) => {
                let good = |old: &resource::Resource| {
                    let usable = |target: &String| is_target_usable(target, present.published);
                    is_attached_within(old, &new) && targets(old).iter().all(usable)
                };
                let whole = |target: &String| is_target_usable(target, &after);
                !targets(&new).iter().all(whole) && old.as_ref().is_none_or(good)
            }
            // A backend that goes is kept for as long as a route is kept that leads to it.
            _ => false,
        }
    }

    /// A resource once what is not held is published.
    fn after(
        &self,
        key: &ResourceKey,
        held: &BTreeSet<ResourceKey>,
        present: &Present<'_>,
    ) -> Option<Encoded> {
        match self.pending.get(key) {
            Some(change) if !held.contains(key) => change.resource.clone(),
            _ => (present.published)(key),
        }
    }

    /// Holds the changes that would take from a resource that is held what it refers to.
    fn keep_references(&self, held: &mut BTreeSet<ResourceKey>, present: &Present<'_>) {
        let mut next: Vec<ResourceKey> = held.iter().cloned().collect();
        while let Some(key) = next.pop() {
            let kept = present.decoded(&key);
            for key in kept.iter().flat_map(references) {
                let after = |key: &ResourceKey| self.after(key, held, present);
                let there = match key.kind() {
                    ResourceKind::Backend => is_target_usable(&key.name, &after),
                    _ => after(&key).is_some(),
                };
                if !there && self.pending.contains_key(&key) && held.insert(key.clone()) {
                    next.push(key);
                }
            }
        }
    }
}

fn backend_key(name: String) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, name)
}

fn is_route(resource: &resource::Resource) -> bool {
    use resource::Resource::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, UdpRoute};
    matches!(
        resource,
        HttpRoute(_) | GrpcRoute(_) | TlsRoute(_) | TcpRoute(_) | UdpRoute(_)
    )
}

/// Names of the backends that have a share of a route's requests; empty where a reference does not resolve.
fn targets(route: &resource::Resource) -> BTreeSet<String> {
    let weighted = |backends: &[proto::WeightedBackend]| {
        let some = backends.iter().filter(|backend| backend.weight > 0);
        some.map(|backend| backend.backend.clone()).collect()
    };
    match route {
        resource::Resource::TlsRoute(route) => weighted(&route.backends),
        resource::Resource::TcpRoute(route) | resource::Resource::UdpRoute(route) => {
            weighted(&route.backends)
        }
        resource::Resource::HttpRoute(route) | resource::Resource::GrpcRoute(route) => {
            let backends = route.rules.iter().filter(|rule| !answers(rule));
            let backends = backends.flat_map(|rule| &rule.backends);
            let some = backends.filter(|backend| backend.weight > 0);
            some.map(|backend| backend.backend.clone()).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Whether a rule answers by itself, so that its backends do not matter.
fn answers(rule: &proto::HttpRule) -> bool {
    rule.filters.iter().any(|filter| {
        matches!(
            filter.filter,
            Some(http_filter::Filter::Fail(_) | http_filter::Filter::Redirect(_))
        )
    })
}

fn bundle_key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::TrustBundle, name)
}

fn certificate_key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Certificate, name)
}

/// What a resource refers to.
fn references(resource: &resource::Resource) -> Vec<ResourceKey> {
    match resource {
        resource::Resource::Backend(backend) => {
            let tls = backend.tls.iter();
            tls.flat_map(|tls| &tls.trust_bundles)
                .map(|name| bundle_key(name))
                .collect()
        }
        resource::Resource::Listener(listener) => certificates(listener)
            .map(|name| certificate_key(name))
            .collect(),
        route => targets(route).into_iter().map(backend_key).collect(),
    }
}

type Lookup<'a> = &'a dyn Fn(&ResourceKey) -> Option<Encoded>;

fn is_target_usable(target: &str, resource: Lookup<'_>) -> bool {
    let backend = resource(&backend_key(target.to_owned()));
    let backend = backend.as_ref().and_then(Encoded::decode);
    matches!(backend, Some(resource::Resource::Backend(backend)) if is_usable(&backend, resource))
}

/// Whether a backend can be connected to.
fn is_usable(backend: &proto::Backend, resource: Lookup<'_>) -> bool {
    let trusts = |tls: &proto::BackendTls| {
        let mut bundles = tls.trust_bundles.iter();
        let any = bundles.any(|name| resource(&bundle_key(name)).is_some());
        !tls.invalid && (tls.system_trust || any)
    };
    !backend.endpoints.is_empty() && backend.tls.as_ref().is_none_or(trusts)
}

/// Whether a listener ends TLS with a certificate that is there.
fn shows_certificate(listener: &proto::Listener, resource: Lookup<'_>) -> bool {
    certificates(listener).any(|name| resource(&certificate_key(name)).is_some())
}

/// The certificates that a listener ends TLS with.
fn certificates(listener: &proto::Listener) -> impl Iterator<Item = &String> {
    let terminate = match &listener.protocol {
        Some(proto::listener::Protocol::Tls(proto::TlsListener {
            mode: Some(proto::tls_listener::Mode::Terminate(terminate)),
        })) => Some(terminate),
        Some(proto::listener::Protocol::Http(http)) => http.terminate.as_ref(),
        _ => None,
    };
    terminate
        .into_iter()
        .flat_map(|terminate| &terminate.certificates)
}

/// Whether a route has every name on every listener that it had.
fn is_attached_within(old: &resource::Resource, new: &resource::Resource) -> bool {
    let new = names(new);
    names(old).is_subset(&new)
}

fn names(route: &resource::Resource) -> BTreeSet<(&str, &str)> {
    let attachments = match route {
        resource::Resource::TlsRoute(route) => &route.attachments,
        resource::Resource::HttpRoute(route) | resource::Resource::GrpcRoute(route) => {
            &route.attachments
        }
        resource::Resource::TcpRoute(route) | resource::Resource::UdpRoute(route) => {
            let listeners = route.listeners.iter();
            return listeners.map(|listener| (&**listener, "")).collect();
        }
        _ => return BTreeSet::new(),
    };
    let names = attachments.iter().flat_map(|attachment| {
        let hostnames = attachment.hostnames.iter();
        hostnames.map(|hostname| (&*attachment.listener, &*hostname.r#match))
    });
    names.collect()
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
