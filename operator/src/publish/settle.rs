//! Decides which changes are published at once, and which a little later. Time is an input.
//!
//! Objects that belong together arrive by separate watches. A route may be known before the Service and the
//! EndpointSlices that were created before it. An EndpointSlice, a grant or a policy that is replaced may be gone
//! before its successor arrives. The translation of such a moment is correct for the objects seen so far, but it would
//! fail requests that work both before and after it.
//!
//! So a change that makes requests fail is published only after a grace, and only if it still does so by then. Any
//! other change is published at once. If a later change repairs the configuration, the wait ends.
//!
//! The wait is longer while the API server, which may be starting anew, does not tell all there is: while a watch is
//! interrupted, or if the change needs a Secret or `ConfigMap` for which it was asked. No other cause makes a change
//! wait that long.
//!
//! During the wait the proxies keep the whole former resource, and for a route also the backends that it leads to. So
//! a request meets either the configuration before the change or the one after it, and never a mixture. The names that
//! a route is attached to are never kept (`docs/adr/0019-settling.md`).
//!
//! A pass judges only the changes about which something is new, and those that are connected with them: a change is
//! connected with the changes of the resources that it or its former version needs. The verdict about a change depends
//! on nothing else, so all others wait on. If it judged all of them, many changes after an outage would cost the square.
//! Whether something is new in what [`Present`] says is asked in each pass: once for each source, however many changes need
//! it, and for each removal of a listener. A removal that is judged is asked about again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use vestibule_stream::proto::{self, http_filter, resource};
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

/// How long a change that makes requests fail waits.
pub const GRACE: Duration = Duration::from_secs(1);
/// How long a change waits at most, if other changes wait that would break without what it takes away.
pub const LONGEST: Duration = Duration::from_secs(2);
/// How long a change waits at most for an API server that does not answer.
pub const UNANSWERED: Duration = Duration::from_mins(1);

/// Changes to publish. `None` is a removal.
pub type Pending = BTreeMap<ResourceKey, Option<Encoded>>;

/// The present state, with which changes are compared.
pub struct Present<'a> {
    /// Returns the resource that was published last.
    pub published: &'a dyn Fn(&ResourceKey) -> Option<Encoded>,
    /// Whether a listener whose removal is pending only waits for the record of its names or for a port, and will then
    /// have at least the names that it has now. A pass asks this about each such removal, so the answer has to cost little.
    pub waits: &'a dyn Fn(&ResourceKey, &proto::Listener) -> bool,
    /// Whether the Secret or `ConfigMap` behind a certificate or a trust bundle is being read. A pass asks this once for each
    /// of them that a change needs, and [`Self::unanswered`] as well.
    pub reads: &'a dyn Fn(&ResourceKey) -> bool,
    /// Whether the API server was asked for the Secret or `ConfigMap` behind a certificate or a trust bundle, and has not
    /// answered.
    pub unanswered: &'a dyn Fn(&ResourceKey) -> bool,
    /// The time until which the operator may know some objects in an older state than others, because a watch is
    /// interrupted, or was a moment ago.
    pub uneven_until: Option<Instant>,
}

impl Present<'_> {
    fn decoded(&self, key: &ResourceKey) -> Option<resource::Resource> {
        (self.published)(key)?.decode()
    }
}

/// Changes that are not published yet.
#[derive(Debug, Default)]
pub struct Settle {
    pending: BTreeMap<ResourceKey, Change>,
    /// The changes that need a resource, themselves or in their former version.
    needed_by: BTreeMap<ResourceKey, BTreeSet<ResourceKey>>,
    /// Changes about which something is new since the last pass.
    touched: BTreeSet<ResourceKey>,
    /// Removals of listeners, whose verdicts depend on [`Present::waits`].
    removals: BTreeSet<ResourceKey>,
    /// The certificates and trust bundles that changes need.
    sources: BTreeMap<ResourceKey, Source>,
    /// When a wait of each change ends next.
    ends: BTreeSet<(Instant, ResourceKey)>,
    /// Whether the objects were known in different states at the last pass.
    was_uneven: bool,
    /// When the first wait ends: the grace of a change, its longest wait, or the time in which the objects are uneven.
    deadline: Option<Instant>,
    /// Resources that have a change waiting and had none, or the opposite, since somebody asked.
    moved: BTreeSet<ResourceKey>,
}

#[derive(Debug)]
struct Change {
    resource: Option<Encoded>,
    /// Since when it waits, for itself or for another change. A change of a resource that replaces a change that waits
    /// has waited as long, so nobody can put off the publication of a resource by changing it again and again.
    since: Option<Instant>,
    /// The resources on which the verdict depends.
    needs: BTreeSet<ResourceKey>,
    /// The listener that it removes, if that may only wait to be recorded, and whether it does.
    removed: Option<(Box<proto::Listener>, bool)>,
    /// The certificates and trust bundles that the new version needs itself.
    sources: BTreeSet<ResourceKey>,
    /// When one of its waits ends next.
    end: Option<Instant>,
}

/// A certificate or trust bundle that changes need.
#[derive(Debug)]
struct Source {
    state: SourceState,
    needed_by: BTreeSet<ResourceKey>,
}

/// The state of a certificate or trust bundle, as [`Present`] knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SourceState {
    is_read: bool,
    is_unanswered: bool,
}

impl SourceState {
    fn of(source: &ResourceKey, present: &Present<'_>) -> Self {
        Self {
            is_read: (present.reads)(source),
            is_unanswered: (present.unanswered)(source),
        }
    }
}

impl Settle {
    /// Takes changes. A later change of a key replaces the earlier one, and its wait ends when that of the earlier one
    /// does.
    pub fn add(&mut self, changes: impl IntoIterator<Item = (ResourceKey, Option<Encoded>)>) {
        for (key, resource) in changes {
            self.touched.insert(key.clone());
            if let Some(change) = self.pending.get_mut(&key) {
                change.resource = resource;
                continue;
            }
            self.moved.insert(key.clone());
            let change = Change {
                resource,
                since: None,
                needs: BTreeSet::new(),
                removed: None,
                sources: BTreeSet::new(),
                end: None,
            };
            self.pending.insert(key, change);
        }
    }

    /// Returns the number of resources that have a change waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether no change waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the resources for which it may be different than at the last call whether they have a change waiting, each
    /// with whether it has one.
    pub fn withheld(&mut self) -> BTreeMap<ResourceKey, bool> {
        let moved = std::mem::take(&mut self.moved).into_iter();
        moved
            .map(|key| {
                let waits = self.pending.contains_key(&key);
                (key, waits)
            })
            .collect()
    }

    /// Returns the time at which [`Self::due`] returns something even if no change is added.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Removes and returns all changes, even those that make requests fail.
    pub fn all(&mut self) -> Pending {
        let Self { pending, moved, .. } = std::mem::take(self);
        self.moved = moved;
        self.moved.extend(pending.keys().cloned());
        let changes = pending.into_iter();
        changes
            .map(|(key, change)| (key, change.resource))
            .collect()
    }

    /// Removes and returns the changes to publish now, in one generation.
    pub fn due(&mut self, now: Instant, present: &Present<'_>) -> Pending {
        let judged = self.take_to_judge(now, present);
        // This ends: a change in `ended` is not held again, and only held changes are late, so `ended` grows each time.
        let mut ended = BTreeSet::new();
        let held = loop {
            let mut held = self.hold(&judged, &ended, now, present);
            let late = self.keep_references(&judged, &mut held, &ended, now, present);
            if late.is_empty() {
                break held;
            }
            ended.extend(late);
        };
        for key in &held {
            self.wait_on(key, now);
        }
        let due: Pending = judged
            .into_iter()
            .filter(|key| !held.contains(key))
            .filter_map(|key| {
                let change = self.take(&key)?;
                Some((key, change.resource))
            })
            .collect();
        // A resource that is published now has changed for the waiting ones that need it, so they are judged again.
        for key in due.keys() {
            let waiting = self.needed_by.get(key).into_iter().flatten();
            self.touched.extend(waiting.cloned());
        }
        self.sources
            .retain(|_, source| !source.needed_by.is_empty());
        let even = present.uneven_until.filter(|_| !self.pending.is_empty());
        let even = even.filter(|even| now < *even);
        let end = self.ends.first().map(|(end, _)| *end);
        self.deadline = end.into_iter().chain(even).min();
        due
    }

    /// Returns the changes about which something is new, and all that are connected with them.
    fn take_to_judge(&mut self, now: Instant, present: &Present<'_>) -> BTreeSet<ResourceKey> {
        let mut next: Vec<ResourceKey> = std::mem::take(&mut self.touched).into_iter().collect();
        let over = self.ends.iter().take_while(|(end, _)| *end <= now);
        next.extend(over.map(|(_, key)| key.clone()));
        let is_uneven = present.uneven_until.is_some_and(|until| now < until);
        if std::mem::replace(&mut self.was_uneven, is_uneven) != is_uneven {
            next.extend(self.pending.keys().cloned());
        }
        self.ask_again(present, &mut next);
        // The verdict about a change may turn on whether one that it needs, or that needs it, is held. So changes are judged
        // together with all that are connected with them, in both directions. About the others there is nothing new, so
        // they go on waiting.
        let mut judged = BTreeSet::new();
        while let Some(key) = next.pop() {
            if judged.contains(&key) {
                continue;
            }
            let Some(former) = self.look_at(&key, present) else {
                continue;
            };
            let needs = self.pending.get(&key).into_iter();
            let needs = needs.flat_map(|change| &change.needs).chain(&former);
            next.extend(
                needs
                    .filter(|need| self.pending.contains_key(*need))
                    .cloned(),
            );
            next.extend(self.needed_by.get(&key).into_iter().flatten().cloned());
            judged.insert(key);
        }
        judged
    }

    /// Adds the changes for which [`Present`] says something else than before to `next`.
    fn ask_again(&mut self, present: &Present<'_>, next: &mut Vec<ResourceKey>) {
        for (key, source) in &mut self.sources {
            let state = SourceState::of(key, present);
            if std::mem::replace(&mut source.state, state) != state {
                next.extend(source.needed_by.iter().cloned());
            }
        }
        let others = self.removals.iter().filter(|key| {
            let change = self.pending.get(*key);
            let removed = change.and_then(|change| change.removed.as_ref());
            removed.is_some_and(|(listener, waits)| (present.waits)(key, listener) != *waits)
        });
        next.extend(others.cloned());
    }

    /// Brings up to date what the verdict about a change depends on. Returns the resources that it needed before, if there
    /// is a change.
    fn look_at(
        &mut self,
        key: &ResourceKey,
        present: &Present<'_>,
    ) -> Option<BTreeSet<ResourceKey>> {
        let new = self.pending.get(key)?.resource.as_ref();
        let (new, old) = match key.kind() {
            // They need nothing.
            ResourceKind::Certificate | ResourceKind::TrustBundle => (None, None),
            _ => (new.and_then(Encoded::decode), present.decoded(key)),
        };
        let mut needs = BTreeSet::new();
        for resource in [&new, &old].into_iter().flatten() {
            for need in references(resource) {
                if need.kind() == ResourceKind::Backend {
                    // Whether a backend can be used depends on its trust bundles, before the change and after it.
                    let change = self.pending.get(&need);
                    let versions = [
                        change.and_then(|change| change.resource.as_ref()?.decode()),
                        present.decoded(&need),
                    ];
                    needs.extend(versions.iter().flatten().flat_map(references));
                }
                needs.insert(need);
            }
        }
        let removed = match (&new, old) {
            (None, Some(resource::Resource::Listener(old))) => {
                let waits = (present.waits)(key, &old);
                Some((Box::new(old), waits))
            }
            _ => None,
        };
        if removed.is_some() {
            self.removals.insert(key.clone());
        } else {
            self.removals.remove(key);
        }
        let sources = new.iter().flat_map(references);
        let sources = sources.filter(is_source);
        let sources: BTreeSet<ResourceKey> = sources.collect();
        for source in &sources {
            let known = self.sources.entry(source.clone());
            let known = known.or_insert_with(|| Source {
                state: SourceState::of(source, present),
                needed_by: BTreeSet::new(),
            });
            known.needed_by.insert(key.clone());
        }
        let change = self.pending.get_mut(key)?;
        change.removed = removed;
        let former = std::mem::replace(&mut change.sources, sources);
        for source in former.difference(&change.sources) {
            if let Some(known) = self.sources.get_mut(source) {
                known.needed_by.remove(key);
            }
        }
        let former = std::mem::replace(&mut change.needs, needs);
        for need in former.difference(&change.needs) {
            forget(&mut self.needed_by, need, key);
        }
        for need in change.needs.difference(&former) {
            let of = self.needed_by.entry(need.clone()).or_default();
            of.insert(key.clone());
        }
        Some(former)
    }

    /// Notes when a change that waits has to be judged again.
    fn wait_on(&mut self, key: &ResourceKey, now: Instant) {
        let Some(change) = self.pending.get_mut(key) else {
            return;
        };
        let ends = [GRACE, LONGEST, UNANSWERED].into_iter();
        let ends = change
            .since
            .into_iter()
            .flat_map(|since| ends.clone().map(move |wait| since + wait));
        let end = ends.filter(|end| now < *end).min();
        let former = std::mem::replace(&mut change.end, end);
        if former != end {
            if let Some(former) = former {
                self.ends.remove(&(former, key.clone()));
            }
            self.ends.extend(end.map(|end| (end, key.clone())));
        }
    }

    /// Removes a change and returns it.
    fn take(&mut self, key: &ResourceKey) -> Option<Change> {
        let change = self.pending.remove(key)?;
        self.moved.insert(key.clone());
        self.removals.remove(key);
        for source in &change.sources {
            if let Some(known) = self.sources.get_mut(source) {
                known.needed_by.remove(key);
            }
        }
        if let Some(end) = change.end {
            self.ends.remove(&(end, key.clone()));
        }
        for need in &change.needs {
            forget(&mut self.needed_by, need, key);
        }
        Some(change)
    }

    /// Returns those of the changes that wait for themselves. Those in `ended` wait no more.
    fn hold(
        &mut self,
        judged: &BTreeSet<ResourceKey>,
        ended: &BTreeSet<ResourceKey>,
        now: Instant,
        present: &Present<'_>,
    ) -> BTreeSet<ResourceKey> {
        let mut held = BTreeSet::new();
        // Each resource is judged after those that it refers to. If one of those is held, it works as before, so it is
        // no reason to hold a resource that refers to it.
        let mut keys: Vec<ResourceKey> = judged.iter().cloned().collect();
        keys.retain(|key| !ended.contains(key));
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
            let grace = self.wait_of(&key, GRACE, now, present);
            if self.is_worse(&key, &held, present)
                && let Some(change) = self.pending.get_mut(&key)
                && now < *change.since.get_or_insert(now) + grace
            {
                held.insert(key);
            }
        }
        held
    }

    /// How long a change waits at most: `usual`, if the API server tells all that the change depends on.
    fn wait_of(
        &self,
        key: &ResourceKey,
        usual: Duration,
        now: Instant,
        present: &Present<'_>,
    ) -> Duration {
        let is_unanswered = || {
            let change = self.pending.get(key).into_iter();
            let mut sources = change.flat_map(|change| &change.sources);
            sources.any(|source| {
                let state = self.state_of(source);
                state.is_some_and(|state| state.is_unanswered)
            })
        };
        if present.uneven_until.is_some_and(|until| now < until) || is_unanswered() {
            UNANSWERED
        } else {
            usual
        }
    }

    /// Whether publishing a change would make requests fail that may work again in a moment.
    fn is_worse(
        &self,
        key: &ResourceKey,
        held: &BTreeSet<ResourceKey>,
        present: &Present<'_>,
    ) -> bool {
        use resource::Resource::{Backend, GatewaySettings, Listener};
        let change = self.pending.get(key);
        let new = change.and_then(|change| change.resource.as_ref());
        if matches!(
            key.kind(),
            ResourceKind::Certificate | ResourceKind::TrustBundle
        ) {
            // Without this resource, a listener closes, or no connection to a backend is made.
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
                let closes =
                    shows_certificate(&old, present.published) && !shows_certificate(&new, &after);
                closes || self.needs_unread(&old, &new)
            }
            // The proxies keep the whole former settings until the certificate is read.
            (Some(GatewaySettings(new)), Some(GatewaySettings(old))) => {
                let before = shown_certificate(&old);
                shown_certificate(&new).is_some_and(|key| {
                    let state = self.state_of(&key);
                    before.as_ref() != Some(&key) && state.is_some_and(|state| state.is_read)
                })
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
            // The removal of a backend is no reason to wait. It waits with a route that leads to it, if that is held.
            _ => false,
        }
    }

    /// Whether a listener that stays on its place now needs something that is being read. The proxies keep it as it is
    /// until that is known, so a certificate or an authority is replaced without a gap.
    fn needs_unread(&self, old: &proto::Listener, new: &proto::Listener) -> bool {
        let place = |listener: &proto::Listener| (listener.hostname.clone(), listener.port);
        let before = sources(old);
        let is_read = |key: &ResourceKey| self.state_of(key).is_some_and(|state| state.is_read);
        place(old) == place(new)
            && sources(new)
                .iter()
                .any(|key| !before.contains(key) && is_read(key))
    }

    /// The state of a certificate or trust bundle that a change needs, as [`Present`] knows it in this pass.
    fn state_of(&self, source: &ResourceKey) -> Option<SourceState> {
        Some(self.sources.get(source)?.state)
    }

    /// Returns a resource as it will be after all changes that are not held are published.
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

    /// Also holds the changes that would break a reference of a resource that is held. The proxies keep the former
    /// version of that resource, so everything that it refers to has to stay as well, and so on along the references.
    /// This ends, because each step adds a pending change that was not held before.
    ///
    /// No change is held for longer than [`LONGEST`] in this way. Otherwise somebody who may use a certificate of
    /// another namespace could edit their listeners in turn, and that certificate could never be withdrawn. What waits
    /// for an answer of the API server may keep it as long as it waits. Returns the changes that cannot wait any longer,
    /// since what they need goes now.
    fn keep_references(
        &mut self,
        judged: &BTreeSet<ResourceKey>,
        held: &mut BTreeSet<ResourceKey>,
        ended: &BTreeSet<ResourceKey>,
        now: Instant,
        present: &Present<'_>,
    ) -> BTreeSet<ResourceKey> {
        let mut late = BTreeSet::new();
        let of_holder = |key: &ResourceKey| {
            let longest = self.wait_of(key, LONGEST, now, present);
            (key.clone(), longest)
        };
        let mut next: Vec<(ResourceKey, Duration)> = held.iter().map(of_holder).collect();
        while let Some((holder, longest)) = next.pop() {
            let kept = present.decoded(&holder);
            for key in kept.iter().flat_map(references) {
                let after = |key: &ResourceKey| self.after(key, held, present);
                let there = match key.kind() {
                    ResourceKind::Backend => is_target_usable(&key.name, &after),
                    _ => after(&key).is_some(),
                };
                if there || held.contains(&key) {
                    continue;
                }
                debug_assert!(judged.contains(&key) || !self.pending.contains_key(&key));
                let Some(change) = self.pending.get_mut(&key) else {
                    continue;
                };
                let goes =
                    ended.contains(&key) || *change.since.get_or_insert(now) + longest <= now;
                if goes {
                    late.insert(holder.clone());
                } else {
                    held.insert(key.clone());
                    next.push((key, longest));
                }
            }
        }
        late
    }
}

fn forget(
    needed_by: &mut BTreeMap<ResourceKey, BTreeSet<ResourceKey>>,
    need: &ResourceKey,
    user: &ResourceKey,
) {
    if let Some(of) = needed_by.get_mut(need) {
        of.remove(user);
        if of.is_empty() {
            needed_by.remove(need);
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

/// Returns the names of the backends that get a share of a route's requests, and of the servers that authorize requests.
/// A name is empty if the reference does not resolve.
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
            route.rules.iter().flat_map(targets_of_rule).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Returns the same for a rule. What follows a filter that responds by itself does not matter.
fn targets_of_rule(rule: &proto::HttpRule) -> Vec<String> {
    let mut names = Vec::new();
    for filter in &rule.filters {
        match &filter.filter {
            Some(http_filter::Filter::ExternalAuth(auth)) => names.push(auth.backend.clone()),
            Some(http_filter::Filter::Redirect(_)) => return names,
            Some(http_filter::Filter::Fail(_)) => {
                // A rule that is refused has nothing but this filter. In any other rule, it stands for a filter whose
                // reference does not resolve.
                if rule.filters.len() > 1 || !rule.backends.is_empty() {
                    names.push(String::new());
                }
                return names;
            }
            _ => {}
        }
    }
    let some = rule.backends.iter().filter(|backend| backend.weight > 0);
    names.extend(some.map(|backend| backend.backend.clone()));
    names
}

fn bundle_key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::TrustBundle, name)
}

fn certificate_key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Certificate, name)
}

fn settings_key(gateway: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::GatewaySettings, gateway)
}

/// Whether a resource is made of a Secret or `ConfigMap`.
fn is_source(key: &ResourceKey) -> bool {
    matches!(
        key.kind(),
        ResourceKind::Certificate | ResourceKind::TrustBundle
    )
}

/// Returns the keys of the resources that a resource refers to.
fn references(resource: &resource::Resource) -> Vec<ResourceKey> {
    match resource {
        resource::Resource::Backend(backend) => {
            let tls = backend.tls.iter();
            tls.flat_map(|tls| &tls.trust_bundles)
                .map(|name| bundle_key(name))
                .collect()
        }
        resource::Resource::Listener(listener) => {
            // Without them the proxies serve nothing there.
            let settings = listener.needs_gateway_settings;
            let settings = settings.then(|| settings_key(&listener.gateway));
            sources(listener).into_iter().chain(settings).collect()
        }
        resource::Resource::GatewaySettings(settings) => {
            shown_certificate(settings).into_iter().collect()
        }
        route => targets(route).into_iter().map(backend_key).collect(),
    }
}

type Lookup<'a> = &'a dyn Fn(&ResourceKey) -> Option<Encoded>;

fn is_target_usable(target: &str, resource: Lookup<'_>) -> bool {
    let backend = resource(&backend_key(target.to_owned()));
    let backend = backend.as_ref().and_then(Encoded::decode);
    matches!(backend, Some(resource::Resource::Backend(backend)) if is_usable(&backend, resource))
}

/// Whether a backend has an endpoint, and a way to verify its certificate if it uses TLS.
fn is_usable(backend: &proto::Backend, resource: Lookup<'_>) -> bool {
    let trusts = |tls: &proto::BackendTls| {
        let mut bundles = tls.trust_bundles.iter();
        let any = bundles.any(|name| resource(&bundle_key(name)).is_some());
        !tls.invalid && (tls.system_trust || any)
    };
    !backend.endpoints.is_empty() && backend.tls.as_ref().is_none_or(trusts)
}

/// Whether a listener terminates TLS and at least one of its certificates exists.
fn shows_certificate(listener: &proto::Listener, resource: Lookup<'_>) -> bool {
    certificates(listener).any(|name| resource(&certificate_key(name)).is_some())
}

/// Returns the certificates and trust bundles that a listener refers to.
fn sources(listener: &proto::Listener) -> BTreeSet<ResourceKey> {
    let validation = terminate(listener).and_then(|it| it.client_validation.as_ref());
    let bundles = validation.into_iter().flat_map(|it| &it.trust_bundles);
    certificates(listener)
        .map(|name| certificate_key(name))
        .chain(bundles.map(|name| bundle_key(name)))
        .collect()
}

/// Returns the certificate that a Gateway shows to backends, if it has one.
fn shown_certificate(settings: &proto::GatewaySettings) -> Option<ResourceKey> {
    let names = [
        &settings.selective_backend_certificate,
        &settings.backend_certificate,
    ];
    let name = names.into_iter().find(|name| !name.is_empty())?;
    Some(certificate_key(name))
}

fn terminate(listener: &proto::Listener) -> Option<&proto::TlsTerminate> {
    match &listener.protocol {
        Some(proto::listener::Protocol::Tls(proto::TlsListener {
            mode: Some(proto::tls_listener::Mode::Terminate(terminate)),
        })) => Some(terminate),
        Some(proto::listener::Protocol::Http(http)) => http.terminate.as_ref(),
        _ => None,
    }
}

/// Returns the names of the certificates that a listener terminates TLS with.
fn certificates(listener: &proto::Listener) -> impl Iterator<Item = &String> {
    let terminate = terminate(listener).into_iter();
    terminate.flat_map(|terminate| &terminate.certificates)
}

/// Whether the new route still has every name on every listener that the old one had.
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
