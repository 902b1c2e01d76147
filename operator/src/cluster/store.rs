//! The state of the operator's loop. It passes objects to the translator, resources to the publisher, and desired ports
//! and Services to the tasks that write them. It is synchronous, and only the loop uses it.
//!
//! The module is public for the scale benchmark, which replaces the loop and the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use vestibule_crds::watch::{Event, Touched, Watched};
use vestibule_model::finding::Finding;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;
use vestibule_stream::{Encoded, ResourceKey};

use super::absences::Absences;
use super::events::{self, EventRecorder};
use super::findings_log::FindingsLog;
use super::metrics::Metrics;
use super::ports::allocation::Allocation;
use super::secrets::Namespaces;
use super::services::{DesiredServices, ServiceState, ServiceStates};
use super::sources::{Read, ReadError, ReadQueue};
use super::statuses::plan::{LiveStatus, Planner};
use super::statuses::rejects::RejectLog;
use super::watch_queue::WatchQueue;
use super::{claims, clock};
use crate::claims::{ClaimRequest, ClaimStore, GatewayState, WriteOutcome};
use crate::control::ControlLoop;
use crate::issuance::{CertificateRegistry, EngineUpdate};
use crate::map_channel::MapChanges;
use crate::publish::settle::{GRACE, Pending, Present, Settle, UNANSWERED};
use crate::publish::{Changes, Publisher};
use crate::translate::{
    Change, DesiredPort, DesiredService, Output, SessionKeys, Settings, Translator, source_of,
};

/// Largest number of listeners that are judged again in each [`PACE`] after another listener has begun to overlap with
/// them. A tenant could create and delete a listener for a wide hostname again and again, and this bounds how many
/// statuses that causes.
const OVERLAPS: usize = 64;
const PACE: Duration = Duration::from_millis(100);
/// Largest number of resources of one publication that are remembered, to see when proxies acknowledge it.
const SAMPLE: usize = 16;

/// Channels to the tasks that write. They are empty until everything is known.
#[derive(Debug)]
pub struct Channels {
    /// Ports that need an internal one.
    pub ports: watch::Sender<Option<Arc<BTreeSet<DesiredPort>>>>,
    /// Services in front of Gateways.
    pub services: watch::Sender<Option<Arc<DesiredServices>>>,
    /// The certificates that are requested.
    pub certificates: CertificateRegistry,
    /// Events about objects.
    pub event_recorder: EventRecorder,
}

/// The state of the loop.
pub struct Store {
    /// Translation, certificate requests and claims.
    pub control: ControlLoop<ClaimStore>,
    /// Plans the writes of statuses.
    pub planner: Planner,
    publisher: Arc<Publisher>,
    metrics: Metrics,
    desired_ports: watch::Sender<Option<Arc<BTreeSet<DesiredPort>>>>,
    desired_services: watch::Sender<Option<Arc<DesiredServices>>>,
    event_recorder: EventRecorder,
    /// Kinds of which the watch has shown every object.
    synced: BTreeSet<Kind>,
    /// Kinds whose watch is interrupted, and since when.
    interrupted: BTreeMap<Kind, Instant>,
    /// When the last of such watches went on.
    resumed: Option<Instant>,
    /// Sources (Secrets and ConfigMaps) that something may use.
    used: BTreeSet<ObjectKey>,
    /// Sources that are kept, and so are in the translator.
    kept: BTreeSet<ObjectKey>,
    /// Sources that have to be read or are being read.
    reads: ReadQueue,
    /// Sources that do not exist, as a read says, until translation gets to know.
    absent: Absences,
    /// Sources that the first list of the watch will show if they exist.
    listed: BTreeSet<ObjectKey>,
    /// Changes that are not published yet. `dirty_since` is when the first event that led to them came.
    unpublished: BTreeMap<ResourceKey, Option<Encoded>>,
    dirty_since: Option<Instant>,
    /// Changes that wait for a grace, because they would make requests fail.
    settle: Settle,
    /// Some resources of the last publication. They stand for all of it, since proxies acknowledge it as a whole.
    published: Vec<ResourceKey>,
    /// The objects in the translator.
    known: BTreeSet<ObjectKey>,
    /// ListenerSets that had a status of ours and have lost their Gateway.
    pub orphans: BTreeSet<ObjectKey>,
    ports: BTreeMap<DesiredPort, Port>,
    allocation: Arc<Allocation>,
    session_keys: SessionKeys,
    /// The state of the Services in front of Gateways.
    pub service_states: Arc<ServiceStates>,
    /// Whether sources are watched. Then each source that is newly used has to be read.
    sources_live: bool,
    is_synced: bool,
    /// When to judge the next listeners that others overlap with.
    look_at: Option<Instant>,
    findings_log: FindingsLog,
    /// The resources that the proxies rejected, at the last look.
    rejects: RejectLog,
}

impl Store {
    /// Returns a store without objects.
    #[must_use]
    pub fn new(
        settings: Settings,
        publisher: Arc<Publisher>,
        planner: Planner,
        metrics: Metrics,
        secret_namespaces: Namespaces,
        claims: ClaimStore,
        channels: Channels,
    ) -> Self {
        let translator = Translator::new(settings)
            .reading_secrets_of(secret_namespaces)
            .reading_sources();
        Self {
            control: ControlLoop::new(translator, claims, channels.certificates),
            planner,
            publisher,
            metrics,
            desired_ports: channels.ports,
            desired_services: channels.services,
            event_recorder: channels.event_recorder,
            synced: BTreeSet::new(),
            interrupted: BTreeMap::new(),
            resumed: None,
            used: BTreeSet::new(),
            kept: BTreeSet::new(),
            reads: ReadQueue::new(),
            absent: Absences::default(),
            listed: BTreeSet::new(),
            unpublished: BTreeMap::new(),
            dirty_since: None,
            settle: Settle::default(),
            published: Vec::new(),
            known: BTreeSet::new(),
            orphans: BTreeSet::new(),
            ports: BTreeMap::new(),
            allocation: Arc::default(),
            session_keys: SessionKeys::default(),
            service_states: Arc::default(),
            sources_live: false,
            is_synced: false,
            look_at: None,
            findings_log: FindingsLog::new(),
            rejects: RejectLog::default(),
        }
    }

    /// Returns the kinds of which the watch has shown every object.
    #[must_use]
    pub fn synced(&self) -> &BTreeSet<Kind> {
        &self.synced
    }

    /// Takes events of the watches that have just come.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>, now: Instant) {
        self.take_since(events, now, now);
    }

    /// Takes the events of the next turn out of the queue. Returns whether there were any.
    pub fn take_turn(&mut self, queue: &mut WatchQueue, now: Instant) -> bool {
        let (batch, since) = queue.next_batch(now);
        self.metrics.watch_queue(queue.objects());
        if batch.is_empty() {
            return false;
        }
        self.take_since(batch, since, now);
        true
    }

    /// Takes events of the watches, of which the first came at `since`.
    fn take_since(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        since: Instant,
        now: Instant,
    ) {
        let dirty_before = self.dirty_since.take();
        let mut changes = Vec::new();
        for event in events {
            match event {
                Event::Put(watched) => changes.extend(self.put(*watched, now)),
                Event::Touched(touched) => self.touch(*touched),
                Event::Remove(key) => {
                    self.metrics.event(key.kind);
                    self.planner.forget(&key);
                    if is_source(key.kind) {
                        self.reads.overtake(&key);
                        self.control.certificates.secret(&key.name);
                        if !self.kept.remove(&key) {
                            continue;
                        }
                    }
                    self.forget(&key);
                    if key.kind == Kind::HostnameClaim {
                        self.control
                            .claims
                            .observe(&key.name, None, clock::both(now));
                        continue;
                    }
                    changes.push(Change::Remove(key));
                }
                Event::Interrupted(kind) => {
                    self.interrupted.insert(kind, now);
                }
                Event::Resumed(kind) => {
                    self.interrupted.remove(&kind);
                    self.resumed = Some(now);
                    // The server is back, however long it was away. So the others have their time from now on.
                    for since in self.interrupted.values_mut() {
                        *since = now;
                    }
                    // The publisher looks again at the changes that waited for it.
                    self.dirty_since.get_or_insert(now);
                }
                Event::Synced(kind) => {
                    self.synced.insert(kind);
                    self.metrics.synced(kind, true);
                    let first = ObjectKey::new(kind, "", "");
                    let listed = self.listed.range(first..);
                    let listed = listed.take_while(|source| source.kind == kind);
                    let listed: Vec<ObjectKey> = listed.cloned().collect();
                    for source in listed {
                        self.listed.remove(&source);
                        changes.push(Change::Absent(source));
                    }
                }
            }
        }
        self.apply(changes, now);
        let dirty_now = self.dirty_since.map(|_| since);
        self.dirty_since = dirty_before.into_iter().chain(dirty_now).min();
    }

    /// Notes that an object was written, but only its status changed.
    fn touch(&mut self, touched: Touched) {
        let Touched {
            key,
            generation,
            resource_version,
            status,
        } = touched;
        self.metrics.touched(key.kind);
        if has_status(key.kind) {
            let live = LiveStatus::new(resource_version, generation, &status);
            self.planner.observe(&key, live);
        }
    }

    fn put(&mut self, watched: Watched, now: Instant) -> Option<Change> {
        let Watched {
            key,
            object,
            findings,
            resource_version,
            status,
            ..
        } = watched;
        self.metrics.event(key.kind);
        for finding in findings {
            debug!(object = %key, finding = %finding, "read");
        }
        if is_source(key.kind) {
            self.reads.overtake(&key);
            if !self.used.contains(&key) {
                return None;
            }
            self.control.certificates.secret(&key.name);
            self.keep(&key, &object);
        }
        if has_status(key.kind) {
            let generation = object.meta().map_or(0, |meta| meta.generation);
            let live = LiveStatus::new(resource_version.clone(), generation, &status);
            self.planner.observe(&key, live);
        }
        self.learn(&key);
        if key.kind == Kind::HostnameClaim {
            let seen = claims::read(&object).map(|claim| (claim, resource_version.to_string()));
            if !self
                .control
                .claims
                .observe(&key.name, seen, clock::both(now))
            {
                warn!(claim = %key.name, "not as an operator writes it; the leader of its release puts it right");
            }
            return None;
        }
        Some(Change::Put(object))
    }

    fn keep(&mut self, source: &ObjectKey, object: &Object) {
        self.kept.insert(source.clone());
        self.listed.remove(source);
        self.reads.remove(source);
        if source.kind == Kind::Secret {
            let times = validity(object);
            self.metrics.certificates.lasts(&source.name, times);
        }
        self.metrics.sources(self.kept.len());
    }

    fn learn(&mut self, key: &ObjectKey) {
        if self.known.insert(key.clone()) {
            self.metrics.objects(key.kind, 1);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.orphans.remove(key);
        if key.kind == Kind::Secret {
            self.metrics.certificates.lasts(&key.name, None);
        }
        if self.known.remove(key) {
            self.metrics.objects(key.kind, -1);
        }
        self.metrics.sources(self.kept.len());
    }

    /// Notes that the watch has shown every source that is used. Sources that come to be used later have to be read.
    pub fn sources_are_watched(&mut self) {
        self.sources_live = true;
    }

    /// Returns up to `count` sources that have to be read now. The namespaces that wait for them take turns.
    pub fn sources_to_read(&mut self, count: usize, now: Instant) -> Vec<ObjectKey> {
        self.reads.begin(count, now)
    }

    /// Takes the results of reading sources. They are translated together, because each translation costs as much as all
    /// objects that refer to the sources.
    pub fn sources_read(&mut self, reads: impl IntoIterator<Item = Read>, now: Instant) {
        let mut changes = Vec::new();
        for (key, source) in reads {
            let is_answered = !matches!(source, Err(ReadError::NoAnswer(_)));
            if !self.reads.end(&key, is_answered) {
                // The watch has shown the source, perhaps while nothing used it.
                self.read_again(&key, now);
                continue;
            }
            if !self.used.contains(&key) {
                continue;
            }
            match source {
                Ok(Some(object)) => {
                    self.keep(&key, &object);
                    self.learn(&object.key());
                    changes.push(Change::Put(object));
                }
                Ok(None) => {
                    let readers = self.control.translator.readers_of(&key);
                    self.absent.insert(&key, readers, now);
                }
                Err(error) => {
                    if self.findings_log.admits(&key.name.namespace, now) {
                        warn!(object = %key, %error, "cannot read it; trying again");
                    }
                }
            }
        }
        if !changes.is_empty() {
            self.apply(changes, now);
        }
    }

    /// Whether a source is used, and it is not known yet what it is.
    #[must_use]
    pub fn is_wanting(&self, source: &ObjectKey) -> bool {
        self.control.translator.waits_for(source)
    }

    /// Schedules a source to be read again.
    pub fn read_again(&mut self, source: &ObjectKey, now: Instant) {
        if self.is_wanting(source) {
            for namespace in self.control.translator.readers_of(source) {
                self.reads.insert(&namespace, source, now);
            }
        }
    }

    /// Takes the persisted allocation of ports.
    pub fn allocation(&mut self, allocation: Arc<Allocation>, now: Instant) {
        if Arc::ptr_eq(&allocation, &self.allocation) {
            return;
        }
        let mut changed = BTreeMap::new();
        let mut there = BTreeMap::new();
        for (desired, port) in allocation.iter() {
            let Some(port) = Port::new(port) else {
                continue;
            };
            if self.ports.remove(desired) != Some(port) {
                changed.insert(desired.clone(), Some(port));
            }
            there.insert(desired.clone(), port);
        }
        self.allocation = allocation;
        let gone = std::mem::replace(&mut self.ports, there);
        changed.extend(gone.into_keys().map(|desired| (desired, None)));
        self.metrics.ports(self.ports.len());
        if !changed.is_empty() {
            self.apply(vec![Change::Ports(changed)], now);
        }
    }

    /// Takes the state of the Services.
    pub fn service_states(&mut self, service_states: Arc<ServiceStates>, now: Instant) {
        if Arc::ptr_eq(&service_states, &self.service_states) {
            return;
        }
        let before = std::mem::replace(&mut self.service_states, service_states);
        // Some listeners may have waited for their port.
        self.planner.touch_waiting();
        let mut changes = Vec::new();
        let uids: BTreeSet<&Arc<str>> = before.keys().chain(self.service_states.keys()).collect();
        for uid in uids {
            let (was, is) = (before.get(uid), self.service_states.get(uid));
            let assigned =
                |front: Option<&ServiceState>| front.and_then(|front| front.assigned.clone());
            if assigned(was) != assigned(is) {
                changes.push(Change::Addresses(uid.clone(), assigned(is)));
            }
            let alias = |front: Option<&ServiceState>| front.and_then(|front| front.alias.clone());
            if alias(was) != alias(is)
                && let Some(DesiredService::Make(service)) =
                    self.control.translator.services().get(uid)
            {
                self.planner.touch(&ObjectKey {
                    kind: Kind::Gateway,
                    name: service.gateway.clone(),
                });
            }
        }
        if !changes.is_empty() {
            self.apply(changes, now);
        }
    }

    /// Notes that everything is known, and begins to send desired ports, Services and certificate requests.
    pub fn send_desired(&mut self, now: Instant) {
        if !self.is_synced {
            self.is_synced = true;
            // The first statuses covered all overlaps at once. From now on, they are judged in steps.
            self.control.leave_overlaps();
            self.control.claims.begin(clock::both(now));
            self.run(now);
            self.control.translator.keep_in_service();
            self.send_ports();
            self.send_services();
            self.control.certificates.begin(&self.control.translator);
            self.control.certificates.tell();
            // Before this point, much seems to be missing only because it is not read yet.
            for (key, findings) in self.control.translator.findings() {
                log_findings(&mut self.findings_log, key, findings, now);
            }
        }
    }

    fn send_ports(&self) {
        if self.is_synced {
            let ports = Arc::new(self.control.translator.ports().clone());
            self.desired_ports.send_replace(Some(ports));
        }
    }

    fn send_services(&self) {
        if self.is_synced {
            let services = Arc::new(self.control.translator.services().clone());
            self.desired_services.send_replace(Some(services));
        }
    }

    /// Judges some more of the listeners that others overlap with, and those who refer to sources that do not exist, if
    /// it is time. Logs how much was left out of the log.
    pub fn look_on(&mut self, now: Instant) {
        let absent = self.absent.take_due(now);
        if !absent.is_empty() {
            self.apply(absent.into_iter().map(Change::Absent).collect(), now);
        }
        for (namespace, lines) in self.findings_log.notices(now) {
            self.metrics.log_lines_dropped(lines);
            info!(%namespace, lines, "left out of the log; the statuses of the objects have all findings");
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.control.look_at_overlaps(OVERLAPS);
            self.run(now);
        }
    }

    /// When [`Self::look_on`] has something to do.
    #[must_use]
    pub fn look_at(&self) -> Option<Instant> {
        let (absent, notices) = (self.absent.deadline(), self.findings_log.deadline());
        [self.look_at, absent, notices].into_iter().flatten().min()
    }

    fn apply(&mut self, changes: Vec<Change>, now: Instant) {
        self.control.add(changes);
        self.run(now);
    }

    /// Runs the control loop until it has no more changes.
    fn run(&mut self, now: Instant) {
        let (mut ports, mut services) = (false, false);
        let mut begin = Instant::now();
        while let Some(output) = self.control.step(clock::both(now)) {
            self.metrics.translated(begin.elapsed(), output.work);
            let totals = self.control.translator.totals();
            let totals = totals.map(|(part, total)| (part, total.in_use()));
            self.metrics.totals(totals);
            let Output {
                resources,
                statuses,
                findings,
                ports: new_ports,
                services: new_services,
                sources,
                readers,
                ..
            } = output;
            ports |= !new_ports.is_empty();
            services |= !new_services.is_empty();
            for (key, status) in statuses {
                let orphan = status.is_none() && key.kind == Kind::ListenerSet;
                if orphan && self.known.contains(&key) {
                    self.orphans.insert(key.clone());
                } else {
                    self.orphans.remove(&key);
                }
                self.planner.touch(&key);
            }
            if self.is_synced {
                for (key, findings) in findings {
                    log_findings(&mut self.findings_log, &key, &findings, now);
                    self.tell(&key, &findings);
                }
            }
            if !resources.is_empty() {
                self.unpublished.extend(resources);
                self.dirty_since.get_or_insert(now);
            }
            // Sources that are no longer used are removed from the translator, which may change more.
            let gone = self.use_sources(sources);
            self.control.add(gone);
            for (namespace, source) in readers {
                self.want(&namespace, source, now);
            }
            begin = Instant::now();
        }
        if self.control.translator.is_behind() {
            self.look_at.get_or_insert(now + PACE);
        }
        self.metrics.claims.are(self.control.claims.counts());
        if ports {
            self.send_ports();
        }
        if services {
            self.send_services();
        }
        if self.is_synced {
            self.control.certificates.tell();
        }
    }

    /// Begins or ends the leadership of this replica.
    pub fn lead(&mut self, leads: bool, now: Instant) {
        self.control.claims.lead(leads, clock::both(now));
        self.run(now);
    }

    /// Notes that the caller now begins to list all `HostnameClaim`s.
    pub fn list_claims(&mut self) {
        self.control.claims.list();
    }

    /// Takes a list of all `HostnameClaim`s. Returns `false` if another list is needed.
    pub fn claims_listed(&mut self, list: Vec<Watched>, now: Instant) -> bool {
        let objects = list.into_iter().filter_map(|watched| {
            let claim = claims::read(&watched.object)?;
            let version = watched.resource_version.to_string();
            Some((watched.key.name, (claim, version)))
        });
        let complete = self
            .control
            .claims
            .catch_up(objects.collect(), clock::both(now));
        self.run(now);
        complete
    }

    /// Frees names whose grace is over.
    pub fn pass(&mut self, now: Instant) {
        if self.control.claims.deadline().is_some_and(|at| at <= now) {
            self.control.claims.pass(clock::both(now));
            self.run(now);
        }
    }

    /// Returns the time at which [`Self::pass`] or [`Self::claim_request`] has something to do.
    #[must_use]
    pub fn claims_deadline(&self) -> Option<Instant> {
        self.control.claims.deadline()
    }

    /// Returns the next request about a `HostnameClaim` that is due.
    pub fn claim_request(&mut self, now: Instant) -> Option<ClaimRequest> {
        let ControlLoop {
            translator, claims, ..
        } = &mut self.control;
        let merge = translator.merge();
        let request = claims.next_request(now, |name| match merge.gateway(name) {
            Some(gateway) => GatewayState::Ours(gateway.meta.uid.clone()),
            None if merge.is_known_gateway(name) => GatewayState::NotOurs,
            None => GatewayState::Gone,
        });
        if request.is_some() {
            // A name that is being taken from its holder is served for no namespace.
            self.run(now);
        }
        request
    }

    /// Takes the outcome of a request about a `HostnameClaim`.
    pub fn claim_answered(&mut self, name: &ObjectName, outcome: WriteOutcome, now: Instant) {
        self.control.claims.done(name, outcome, clock::both(now));
        for (_, namespace) in self.control.claims.take_troubled() {
            let first = ObjectKey::new(Kind::ListenerSet, namespace.clone(), "");
            let sets = self
                .known
                .range(first..)
                .take_while(|key| key.kind == Kind::ListenerSet && key.name.namespace == namespace);
            for set in sets {
                self.planner.touch(set);
            }
        }
        self.run(now);
    }

    /// Records the events that findings about an object lead to.
    fn tell(&self, key: &ObjectKey, findings: &[Finding]) {
        if let Some(object) = self.control.translator.object(key) {
            for event in events::of_findings(key, object, findings) {
                self.event_recorder.record(event);
            }
        }
    }

    /// Takes the current time, in seconds since 1970, at the start.
    pub fn time(&mut self, seconds: i64, now: Instant) {
        self.apply(vec![Change::Time(seconds)], now);
    }

    /// Takes the current time, in seconds since 1970, if something depends on it.
    pub fn pass_time(&mut self, seconds: i64, now: Instant) {
        if self.control.translator.needs_time(seconds) {
            self.time(seconds, now);
        }
    }

    /// Takes the keys of sessions.
    pub fn session_keys(&mut self, keys: SessionKeys, now: Instant) {
        if self.session_keys != keys {
            self.session_keys = keys.clone();
            self.apply(vec![Change::SessionKeys(keys)], now);
        }
    }

    /// Takes an update of the built-in engine.
    pub fn issued(&mut self, update: EngineUpdate, now: Instant) {
        let knew = self.control.certificates.is_known();
        let (changes, issuers) = self.control.certificates.take(update);
        for issuer in issuers {
            self.planner.touch(&issuer);
        }
        self.apply(changes, now);
        if self.control.certificates.is_known() != knew {
            self.planner.touch_all();
        }
    }

    /// Takes what changed in the states of certificates from the engine for cert-manager.
    pub fn issued_by_others(&mut self, issuances: Option<MapChanges<Issuance>>, now: Instant) {
        let knew = self.control.certificates.is_known();
        let changes = self.control.certificates.take_others(issuances);
        self.apply(changes, now);
        if self.control.certificates.is_known() != knew {
            self.planner.touch_all();
        }
    }

    /// Takes that what the proxies acknowledged has changed. The statuses that may say so are looked at: those that wait,
    /// and those of the objects that a reject concerns that came or went.
    pub fn acks_moved(&mut self) {
        self.planner.touch_waiting();
        self.look_at_certificates();
        let translator = &self.control.translator;
        let concerned = self.rejects.update(self.publisher.rejects(), |resource| {
            translator.concerned_by(resource)
        });
        for object in concerned {
            self.planner.touch(&object);
        }
    }

    /// Records for metrics which certificates have reached every proxy.
    fn look_at_certificates(&mut self) {
        self.control.certificates.look(
            &self.control.translator,
            &self.publisher,
            |engine, after| {
                self.metrics.certificates.ready(engine, after);
            },
        );
    }

    /// Has a source read that an object of a namespace has come to use.
    fn want(&mut self, namespace: &Arc<str>, source: ObjectKey, now: Instant) {
        if !self.is_wanting(&source) {
            return;
        }
        if self.sources_live {
            self.reads.insert(namespace, &source, now);
        } else {
            self.listed.insert(source);
        }
    }

    fn use_sources(&mut self, sources: BTreeMap<ObjectKey, bool>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (source, used) in sources {
            if used {
                self.used.insert(source);
            } else {
                self.used.remove(&source);
                self.listed.remove(&source);
                self.reads.remove(&source);
                // If it is used again, it may exist by then.
                self.absent.remove(&source);
                if self.kept.remove(&source) {
                    self.forget(&source);
                    changes.push(Change::Remove(source));
                }
            }
        }
        changes
    }

    /// Publishes the changes, except those that would make requests fail or that need a source that is being read. Each
    /// of these waits alone and for a short time ([`Settle`]), so no namespace can hold up what belongs to others.
    ///
    /// Statuses are judged after that. The publisher knows which changes wait, so they do not count as in force.
    pub fn publish(&mut self, now: Instant) {
        let settled = self.settle.deadline().is_some_and(|at| at <= now);
        if self.dirty_since.is_none() && !settled {
            self.control.certificates.published();
            return;
        }
        self.settle.add(std::mem::take(&mut self.unpublished));
        let changes = if self.is_synced {
            let (publisher, translator) = (&self.publisher, &self.control.translator);
            let reads = &self.reads;
            self.settle.due(
                now,
                &Present {
                    published: &|key| publisher.resource(key),
                    waits: &|key, old| translator.listener_waits(key, old),
                    reads: &|key| translator.is_being_read(key),
                    unanswered: &|key| {
                        source_of(key).is_some_and(|source| reads.is_unanswered(&source))
                    },
                    uneven_until: self.uneven_until(),
                },
            )
        } else {
            // No proxy is served before everything is known, so nothing has to settle.
            self.settle.all()
        };
        self.give(changes, now);
    }

    /// The time until which the store may know older objects of one kind than of another. Events of watches that went on a
    /// moment ago may still be on their way. A watch that stays interrupted counts for a while only, since it may be one
    /// that the operator has no right to.
    fn uneven_until(&self) -> Option<Instant> {
        let interrupted = self.interrupted.values().map(|since| *since + UNANSWERED);
        interrupted.chain(self.resumed.map(|at| at + GRACE)).max()
    }

    /// Publishes everything, because it is complete from now on.
    pub(super) fn publish_all(&mut self, now: Instant) {
        self.settle.add(std::mem::take(&mut self.unpublished));
        let changes = self.settle.all();
        self.give(changes, now);
    }

    fn give(&mut self, due: Pending, now: Instant) {
        if !due.is_empty() {
            self.published = due.keys().take(SAMPLE).cloned().collect();
            // Changes that waited may be acknowledged already, or may have been taken back.
            self.planner.touch_waiting();
        }
        let mut changes = Changes::new();
        for (key, resource) in due {
            match resource {
                Some(encoded) => changes.upsert_encoded(encoded),
                None => changes.remove(key),
            }
        }
        let since = self.dirty_since.take().unwrap_or(now);
        if !changes.is_empty() {
            self.publisher.update(changes);
            self.metrics.published(since.elapsed());
        }
        self.publisher.withhold(self.settle.withheld());
        self.control.certificates.published();
    }

    /// Returns the number of proxies that have not acknowledged the last publication.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.publisher.programmed(&self.published).waiting_for.len()
    }

    /// Whether there are changes to publish, or sources to read that may lead to some.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty_since.is_some() || !self.reads.is_empty()
    }

    /// Returns the time at which [`Self::publish`] has something to do even if nothing happens.
    #[must_use]
    pub fn publish_at(&self) -> Option<Instant> {
        self.settle.deadline()
    }
}

/// Kinds of which only the objects in use are kept. Their events do not pass through the queue.
pub const SOURCES: [Kind; 2] = [Kind::Secret, Kind::ConfigMap];

fn is_source(kind: Kind) -> bool {
    SOURCES.contains(&kind)
}

/// Kinds whose status Vestibule writes.
fn has_status(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::GatewayClass
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::TlsRoute
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TcpRoute
            | Kind::UdpRoute
            | Kind::BackendTlsPolicy
            | Kind::AcmeIssuer
            | Kind::ClusterAcmeIssuer
            | Kind::HostnameGrant
    )
}

/// Returns when the certificate in a Secret begins and ends to be valid, in seconds since 1970.
fn validity(object: &Object) -> Option<(i64, i64)> {
    let Object::Secret(secret) = object else {
        return None;
    };
    let pem = secret.certificate.as_ref()?;
    let leaf = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).ok()?;
    let validity = parsed.validity();
    let (begin, end) = (validity.not_before, validity.not_after);
    Some((begin.timestamp(), end.timestamp()))
}

fn log_findings(log: &mut FindingsLog, key: &ObjectKey, findings: &[Finding], now: Instant) {
    for finding in log.news(key, findings, now) {
        if finding.refuses() {
            info!(object = %key, reason = %finding.reason, "{finding}");
        } else {
            debug!(object = %key, reason = %finding.reason, "{finding}");
        }
    }
}
