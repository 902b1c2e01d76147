//! The loop of the operator. It takes the events of the watches and of the other tasks, and starts the work that
//! results from them.

mod wiring;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use vestibule_crds::watch::{Event, Scope, Watched};
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;

use super::claims::ClaimWriter;
use super::health::Health;
use super::lease::elector::Role;
use super::metrics::Metrics;
use super::ports::allocation::Allocation;
use super::services::ServiceStates;
use super::sources::{self, READS, Read};
use super::statuses::plan::{LiveStatus, Next, WriteFailure};
use super::statuses::write::Writer;
use super::store::{SOURCES, Store};
use super::sync::{self, StartProgress};
use super::watch_queue::WatchQueue;
use super::{OperatorSettings, clock, events, lease, statuses};
use crate::claims::{ClaimStore, WriteOutcome, WriteProblem};
use crate::control::ControlLoop;
use crate::issuance::EngineLink;
use crate::map_channel::MapFollower;
use crate::publish::Publisher;
use crate::translate::{SessionKeys, Translator};

/// Largest number of events that wait in the channel, and that are taken out of it at once.
const BATCH: usize = 1024;
/// Largest number of Secrets and ConfigMaps that wait. It is smaller, because each may be large.
const SOURCE_BATCH: usize = 16;
/// Largest number of statuses that are being written at the same time.
const WRITES: usize = 8;
/// Largest number of `HostnameClaim`s that are being written at the same time.
const CLAIM_WRITES: usize = 64;
/// Largest number of statuses to look at before events get their turn again.
const LOOKS: usize = 64;
/// Wait before a Secret or ConfigMap that could not be read is read again.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The loop runs at least this often.
const BEAT: Duration = Duration::from_secs(20);
/// Time after which a proxy that has not acknowledged is examined, since statuses may have to say so.
const LAG: Duration = Duration::from_secs(12);

/// Longest time that the end of the process waits for the Lease to be given up.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(9);

/// The loop of the operator: the store, and the channels to the tasks around it.
pub(super) struct Controller {
    store: Store,
    settings: OperatorSettings,
    publisher: Arc<Publisher>,
    health: Health,
    metrics: Metrics,
    writer: Writer,
    claim_writer: ClaimWriter,
    events: mpsc::Receiver<Event>,
    event_sender: mpsc::Sender<Event>,
    /// The events that wait for translation.
    queue: WatchQueue,
    sources: mpsc::Receiver<Event>,
    source_sender: mpsc::Sender<Event>,
    persisted: watch::Receiver<Option<Arc<Allocation>>>,
    service_states: watch::Receiver<Option<Arc<ServiceStates>>>,
    session_keys: watch::Receiver<Option<SessionKeys>>,
    /// The link to the built-in engine.
    engine_link: EngineLink,
    engine_link_changed: watch::Receiver<()>,
    /// The states of certificates from the engine for cert-manager.
    certificates: MapFollower<Issuance>,
    proxies_known: watch::Receiver<bool>,
    installed: watch::Receiver<bool>,
    leading: watch::Sender<bool>,
    role_sender: watch::Sender<Role>,
    role: watch::Receiver<Role>,
    doubt: Arc<Notify>,
    end: CancellationToken,
    /// The task that takes part in leader election, once it has begun.
    lease: JoinSet<()>,
    /// The task that lists claims. A new leader needs the list before its own memory of claims counts.
    lists: JoinSet<Vec<Watched>>,
    progress: StartProgress,
    /// The term in which statuses are written; `None` if this replica does not lead.
    term: Option<u64>,
    /// When to check whether a proxy lags behind.
    lag: Option<Instant>,
    superseded: Option<u64>,
}

type Written = (ObjectKey, Result<LiveStatus, WriteFailure>);
type Answered = (ObjectName, WriteOutcome);

/// The work that is under way.
#[derive(Default)]
struct PendingWork {
    writes: JoinSet<Written>,
    claims: JoinSet<Answered>,
    reads: JoinSet<Read>,
    /// Timers of the Secrets and ConfigMaps that will be read again.
    again: JoinSet<ObjectKey>,
}

impl Controller {
    /// Runs the loop until `end`. It fails if one of its tasks ends.
    pub(super) async fn run(
        &mut self,
        client: &kube::Client,
        tasks: &mut JoinSet<&'static str>,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        let kinds = sync::KINDS
            .into_iter()
            .filter(|kind| !SOURCES.contains(kind));
        let mut scope = Scope::new(kinds);
        scope.copied = self.settings.copied_annotations.clone();
        tasks.spawn(follow(client.clone(), scope, self.event_sender.clone()));
        self.store.time(clock::now().as_second(), Instant::now());
        let mut acks = self.publisher.acks();
        let mut beat = tokio::time::interval(BEAT);
        let mut work = PendingWork::default();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.health.beat();
            self.take_events();
            self.progress(client, tasks);
            self.tell_time();
            self.keep_claims(&mut work);
            self.store.look_on(Instant::now());
            self.read_sources(client, &mut work);
            let more = self.write_statuses(&mut work) || !self.queue.is_empty();
            let wake = self.wake(&work);
            tokio::select! {
                // The loop's head takes events too, so while there is more to do, no event has to wake it.
                count = self.events.recv_many(&mut batch, BATCH), if !more => {
                    if count == 0 {
                        bail!("nothing watches any more");
                    }
                    let now = Instant::now();
                    batch.drain(..).for_each(|event| self.queue.push(event, now));
                }
                Some(event) = self.sources.recv() => {
                    let more = std::iter::from_fn(|| self.sources.try_recv().ok()).take(SOURCE_BATCH);
                    self.store.take(std::iter::once(event).chain(more), Instant::now());
                }
                changed = self.persisted.changed() => {
                    changed.context("nobody keeps the ports")?;
                }
                changed = self.service_states.changed() => {
                    changed.context("nobody keeps the Services")?;
                }
                changed = self.session_keys.changed() => {
                    changed.context("nobody keeps the keys of sessions")?;
                }
                changed = self.engine_link_changed.changed() => {
                    changed.context("nobody issues")?;
                    self.store.issued(self.engine_link.take(), Instant::now());
                }
                changed = self.certificates.changed() => {
                    changed.context("nobody keeps Certificates")?;
                    self.store.issued_by_others(self.certificates.take(), Instant::now());
                }
                changed = self.proxies_known.changed(), if !*self.proxies_known.borrow() => {
                    changed.context("nobody knows which proxies are ready")?;
                }
                changed = self.installed.changed(), if !*self.installed.borrow() => {
                    changed.context("nobody looks for the Gateway API")?;
                }
                changed = self.role.changed() => {
                    changed.context("nobody elects")?;
                    self.role_changed();
                }
                changed = acks.changed() => {
                    changed.context("nobody publishes")?;
                    self.acks_moved();
                }
                Some(written) = work.writes.join_next() => {
                    self.statuses_written(written, &mut work)?;
                }
                Some(answered) = work.claims.join_next() => {
                    self.claims_answered(answered, &mut work)?;
                }
                Some(listed) = self.lists.join_next() => {
                    self.claims_listed(listed.context("a list of claims ended early")?);
                }
                Some(read) = work.reads.join_next() => {
                    self.sources_read(read, &mut work)?;
                }
                Some(again) = work.again.join_next() => {
                    let source = again.context("a pause ended early")?;
                    self.store.read_again(&source, Instant::now());
                }
                Some(ended) = self.lease.join_next() => {
                    ended.context("the election ended early")?;
                    bail!("the election ended");
                }
                Some(ended) = tasks.join_next() => {
                    let what = ended.context("a task ended early")?;
                    bail!("the task for {what} ended");
                }
                () = clock::at(wake), if !more => {}
                // There is more to translate or to look at, but events come first.
                () = tokio::task::yield_now(), if more => {}
                _ = beat.tick() => if let Some(why) = self.health.unready() {
                    info!("this replica is not ready: {why}");
                },
                () = end.cancelled() => return Ok(()),
            }
        }
    }

    /// Has the events of the next turn translated. Whatever has come by now takes part in it.
    fn take_events(&mut self) {
        let now = Instant::now();
        let arrived = std::iter::from_fn(|| self.events.try_recv().ok());
        self.queue.fill(arrived, now);
        self.store.take_turn(&mut self.queue, now);
    }

    /// Gives the Lease up and sends the proxies to the next leader.
    pub(super) async fn finish(mut self) {
        self.end.cancel();
        let ended = tokio::time::timeout(RESIGN_TIMEOUT, self.lease.join_next()).await;
        if ended.is_err() {
            warn!("the Lease could not be given up in time; it runs out");
        }
    }

    /// Takes the next steps of the start. When everything is known, desired ports and Services are sent. When these are
    /// known as well, the replica becomes ready and takes part in leader election.
    fn progress(&mut self, client: &kube::Client, tasks: &mut JoinSet<&'static str>) {
        let now = Instant::now();
        let allocation = self.persisted.borrow_and_update().clone();
        if let Some(allocation) = allocation {
            self.progress.ports = true;
            self.store.allocation(allocation, now);
        }
        let service_states = self.service_states.borrow_and_update().clone();
        if let Some(service_states) = service_states {
            self.progress.services = true;
            self.store.service_states(service_states, now);
        }
        let session_keys = self.session_keys.borrow_and_update().clone();
        if let Some(session_keys) = session_keys {
            self.progress.session_keys = true;
            self.store.session_keys(session_keys, now);
        }
        if self.progress.ready {
            return;
        }
        self.progress.proxies = *self.proxies_known.borrow_and_update();
        self.progress.installed = *self.installed.borrow_and_update();
        self.progress.missing = sync::KINDS
            .into_iter()
            .filter(|kind| !self.store.synced().contains(kind))
            .collect();
        if self.progress.only_missing(&SOURCES) && !self.progress.sources {
            // Now it is known which Secrets and ConfigMaps are used, and the others need not be kept.
            self.progress.sources = true;
            self.store.sources_are_watched();
            let mut scope = Scope::new(SOURCES);
            if let Some(namespaces) = &self.settings.secret_namespaces {
                let names = namespaces.iter().map(ToString::to_string);
                scope.namespaces.insert(Kind::Secret, names.collect());
            }
            tasks.spawn(follow(client.clone(), scope, self.source_sender.clone()));
        }
        if self.progress.missing.is_empty() && self.progress.ports {
            self.store.send_desired(now);
        }
        let unready = self.progress.unready();
        self.progress.ready = unready.is_none();
        if self.health.set(unready.clone()) {
            if let Some(why) = unready {
                debug!("this replica is not ready: {why}");
            } else {
                info!("this replica is ready");
            }
        }
        if self.progress.ready && self.lease.is_empty() {
            // A leader publishes everything, so that the content is complete.
            self.store.publish_all(now);
            let election = lease::run(
                client.clone(),
                self.settings.lease.clone(),
                Arc::clone(&self.publisher),
                self.role_sender.clone(),
                Arc::clone(&self.doubt),
                self.end.clone(),
            );
            self.lease.spawn(election);
        }
    }

    fn role_changed(&mut self) {
        let term = self.role.borrow_and_update().term(Instant::now());
        if term == self.term {
            return;
        }
        self.term = term;
        self.metrics.role(term);
        self.leading.send_replace(term.is_some());
        // Another replica may have held the Lease between two terms of this one. A new leader may also lack claims,
        // since the watch of claims is a connection of its own and may be behind. So the claims are listed first.
        self.store.lead(false, Instant::now());
        self.lists = JoinSet::new();
        self.store.planner.follow();
        if term.is_some() {
            self.list_claims();
            self.store.planner.lead(Instant::now());
        }
    }

    fn list_claims(&mut self) {
        self.store.list_claims();
        self.lists.spawn(self.claim_writer.clone().list());
    }

    /// Takes the list of claims. This replica now knows what the former leader wrote, so its own memory counts.
    fn claims_listed(&mut self, list: Vec<Watched>) {
        let now = Instant::now();
        if self.store.claims_listed(list, now) {
            self.store.lead(true, now);
        } else {
            self.list_claims();
        }
    }

    /// Handles a change of the proxies or of their acknowledgements.
    fn acks_moved(&mut self) {
        self.store.acks_moved();
        let behind = self.behind();
        self.metrics.not_acked(behind);
        match (behind > 0, self.lag) {
            (true, None) => self.lag = Some(Instant::now() + LAG),
            (false, Some(_)) => self.lag = None,
            _ => {}
        }
        let superseded = self.publisher.superseded();
        if superseded != self.superseded {
            self.superseded = superseded;
            if let Some(term) = superseded {
                warn!(
                    term,
                    "a proxy was served in a later term; the Lease is read"
                );
                self.doubt.notify_one();
            }
        }
    }

    /// Returns how many proxies have not acknowledged the published content.
    fn behind(&self) -> usize {
        self.term.map_or(0, |_| self.store.behind())
    }

    /// Frees names whose grace is over, and starts the requests about claims that are due.
    fn keep_claims(&mut self, work: &mut PendingWork) {
        let now = Instant::now();
        self.store.pass(now);
        let leads = self.term.is_some() && self.role.borrow().term(now).is_some();
        while leads
            && work.claims.len() < CLAIM_WRITES
            && let Some(request) = self.store.claim_request(now)
        {
            work.claims.spawn(self.claim_writer.clone().make(request));
        }
    }

    /// Takes the answer to a request about a claim, and all others that have come by now.
    fn claims_answered(
        &mut self,
        first: Result<Answered, JoinError>,
        work: &mut PendingWork,
    ) -> anyhow::Result<()> {
        for answered in ended(first, &mut work.claims) {
            let (name, outcome) = answered.context("a request about a claim ended early")?;
            self.store.claim_answered(&name, outcome, Instant::now());
        }
        Ok(())
    }

    fn read_sources(&mut self, client: &kube::Client, work: &mut PendingWork) {
        if work.reads.len() >= READS {
            return;
        }
        let room = READS - work.reads.len();
        for key in self.store.sources_to_read(room, Instant::now()) {
            let client = client.clone();
            work.reads.spawn(async move {
                let source = sources::fetch(&client, &key).await;
                (key, source)
            });
        }
    }

    /// Takes a read that has ended, and all others that have ended by now: they are translated together.
    fn sources_read(
        &mut self,
        first: Result<Read, JoinError>,
        work: &mut PendingWork,
    ) -> anyhow::Result<()> {
        let reads: Result<Vec<Read>, _> = ended(first, &mut work.reads).collect();
        let reads = reads.context("a read of a Secret or ConfigMap ended early")?;
        let failed = reads.iter().filter(|(_, source)| source.is_err());
        for (key, _) in failed {
            let key = key.clone();
            work.again.spawn(async move {
                tokio::time::sleep(READ_AGAIN).await;
                key
            });
        }
        self.store.sources_read(reads, Instant::now());
        Ok(())
    }

    /// Publishes the changes, and starts the writes of statuses that are due. Returns whether there is more to look at.
    fn write_statuses(&mut self, work: &mut PendingWork) -> bool {
        let now = Instant::now();
        self.store.publish(now);
        if self.lag.is_some_and(|at| at <= now) {
            self.lag = None;
            if self.behind() > 0 {
                self.store.planner.touch_all();
                self.lag = Some(now + LAG);
            }
        }
        let leads = self.role.borrow().term(now).is_some();
        let mut more = false;
        while leads && self.term.is_some() && work.writes.len() < WRITES {
            let seconds = clock::now().as_second();
            let Store {
                planner,
                control,
                service_states,
                orphans,
                full_statuses,
                event_recorder,
                ..
            } = &mut self.store;
            let ControlLoop {
                translator,
                claims,
                certificates,
                ..
            } = control;
            let inputs = statuses::StatusInputs {
                translator,
                publisher: &self.publisher,
                controller: &self.settings.translation.controller,
                service_states,
                orphans,
                issuers: certificates.issuers(),
                issuer_selector: self.settings.acme.as_ref().map(|acme| &acme.issuers),
                issuance_known: certificates.is_known(),
            };
            let next = planner.next(now, LOOKS, |key, live, old| {
                let mut due = statuses::judge(&inputs, seconds, (key, live, old))?;
                if let Some(trouble) = trouble(claims, translator, key) {
                    statuses::waits::explain(&mut due.status, trouble);
                }
                if let Some(note) = full_statuses.note(key, live.generation, due.left_out)
                    && let Some(object) = translator.object(key)
                {
                    event_recorder.record(events::of_full_status(key, object, note));
                }
                Some(due)
            });
            match next {
                Next::Write(job) => {
                    work.writes.spawn(self.writer.clone().write(job));
                }
                Next::More => {
                    more = true;
                    break;
                }
                Next::Idle => break,
            }
        }
        self.metrics.waiting(self.store.planner.waiting());
        more
    }

    /// Takes the outcome of a write of a status, and all others that have come by now.
    fn statuses_written(
        &mut self,
        first: Result<Written, JoinError>,
        work: &mut PendingWork,
    ) -> anyhow::Result<()> {
        for written in ended(first, &mut work.writes) {
            let (key, outcome) = written.context("a write of a status ended early")?;
            self.store.planner.done(&key, outcome, Instant::now());
        }
        Ok(())
    }

    /// Passes the time to translation if a certificate has become valid or has expired, or the clock was set back.
    fn tell_time(&mut self) {
        self.store
            .pass_time(clock::now().as_second(), Instant::now());
    }

    /// Returns the time at which [`Self::tell_time`] has something to do.
    fn time_due(&self) -> Option<Instant> {
        let due = self.store.control.translator.next_deadline()?;
        let left = u64::try_from(due - clock::now().as_second()).unwrap_or_default();
        // The loop runs earlier anyway if the time is far away.
        let left = Duration::from_secs(left).min(BEAT);
        Some(Instant::now() + left.max(Duration::from_millis(100)))
    }

    /// Returns the time at which there is something to do even if nothing happens.
    fn wake(&self, work: &PendingWork) -> Option<Instant> {
        let leads = self.role.borrow().term(Instant::now()).is_some();
        // If there is no room for more writes, the end of a write wakes the loop. Only the leader writes.
        let claims = leads && work.claims.len() < CLAIM_WRITES;
        let claims = claims.then(|| self.store.claims_deadline()).flatten();
        // A write that ends wakes the loop by itself.
        let writes = leads && work.writes.len() < WRITES;
        let planned = writes.then(|| self.store.planner.deadline()).flatten();
        let (publish, look) = (self.store.publish_at(), self.store.look_at());
        [planned, claims, publish, look, self.lag, self.time_due()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Returns the result of a task that has ended, and those of all others that have ended by now.
fn ended<T: 'static>(
    first: Result<T, JoinError>,
    tasks: &mut JoinSet<T>,
) -> impl Iterator<Item = Result<T, JoinError>> {
    let others = std::iter::from_fn(move || tasks.try_join_next());
    std::iter::once(first).chain(others)
}

/// Returns why the names of a ListenerSet could not be recorded, if that is so.
fn trouble(claims: &ClaimStore, translator: &Translator, key: &ObjectKey) -> Option<WriteProblem> {
    match translator.object(key)?.as_ref() {
        Object::ListenerSet(set) => claims.trouble(set.gateway.as_ref()?, &key.name.namespace),
        _ => None,
    }
}

/// Watches the objects in the scope and passes the events on.
async fn follow(client: kube::Client, scope: Scope, events: mpsc::Sender<Event>) -> &'static str {
    let mut stream = Box::pin(vestibule_crds::watch::watch(&client, &scope));
    while let Some(event) = stream.next().await {
        if events.send(event).await.is_err() {
            break;
        }
    }
    "watching"
}
