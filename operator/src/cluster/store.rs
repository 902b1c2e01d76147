//! The state of the operator's loop. It passes objects to the translator, resources to the publisher, and desired ports
//! and Services to the tasks that write them. It is synchronous, and only the loop uses it.
//!
//! This file decides: it has the control loop run, and passes on what comes out. `watch_events` takes what the watches show,
//! `used_sources` what is read beside them, `claim_requests` is for the store of claims, and `publication` gives the result
//! to the publisher.
//!
//! The module is public for the scale benchmark, which replaces the loop and the API server.

mod claim_requests;
mod publication;
mod used_sources;
mod watch_events;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, info};
use vestibule_model::finding::Finding;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::protocol::Port;
use vestibule_stream::{Encoded, ResourceKey};

use super::absences::Absences;
use super::clock;
use super::events::{self, EventRecorder};
use super::findings_log::FindingsLog;
use super::metrics::Metrics;
use super::ports::allocation::Allocation;
use super::secrets::Namespaces;
use super::services::{DesiredServices, ServiceState, ServiceStates};
use super::sources::ReadQueue;
use super::statuses::plan::Planner;
use super::statuses::rejects::RejectLog;
use super::statuses::room::FullStatuses;
use crate::claims::ClaimStore;
use crate::control::ControlLoop;
use crate::issuance::{CertificateRegistry, EngineUpdate};
use crate::map_channel::MapChanges;
use crate::publish::Publisher;
use crate::publish::settle::Settle;
use crate::translate::{
    Change, DesiredPort, DesiredService, Output, SessionKeys, Settings, Translator,
};

/// Largest number of listeners that are judged again in each [`PACE`] after another listener has begun to overlap with
/// them. A tenant could create and delete a listener for a wide hostname again and again, and this bounds how many
/// statuses that causes.
const OVERLAPS: usize = 64;
const PACE: Duration = Duration::from_millis(100);

/// Channels to the tasks that write. They are empty until everything is known.
#[derive(Debug)]
pub struct StoreChannels {
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
    pub(super) event_recorder: EventRecorder,
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
    /// ListenerSets that had a status of ours in this process and have lost their Gateway.
    pub orphans: BTreeSet<ObjectKey>,
    /// The objects whose statuses have no room for our entries.
    pub(super) full_statuses: FullStatuses,
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
        channels: StoreChannels,
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
            full_statuses: FullStatuses::new(),
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

    fn learn(&mut self, key: &ObjectKey) {
        if self.known.insert(key.clone()) {
            self.metrics.objects(key.kind, 1);
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.orphans.remove(key);
        self.full_statuses.forget(key);
        if key.kind == Kind::Secret {
            self.metrics.certificates.lasts(&key.name, None);
        }
        if self.known.remove(key) {
            self.metrics.objects(key.kind, -1);
        }
        self.metrics.sources(self.kept.len());
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
            self.metrics.object_log_lines_dropped(lines);
            info!(%namespace, lines, "findings about objects of a namespace were left out of the log; the statuses of the objects have all findings");
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

fn log_findings(log: &mut FindingsLog, key: &ObjectKey, findings: &[Finding], now: Instant) {
    for finding in log.news(key, findings, now) {
        if finding.refuses() {
            info!(object = %key, reason = %finding.reason, "{finding}");
        } else {
            debug!(object = %key, reason = %finding.reason, "{finding}");
        }
    }
}
