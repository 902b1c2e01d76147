//! Takes part in leader election. One replica at a time holds the Lease and publishes, and the others know its address.
//! [`elector`] decides, and this module makes the requests.

pub mod elector;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{clock, follow};
use crate::publish::{LeadershipAttempt, Publisher};
use elector::{DesiredLease, ElectionStep, ElectionTiming, Elector, LeaseRecord, Role};

/// Annotation that contains the term.
const TERM: &str = "vestibule.dev/term";
/// Annotation with the holder's address, `host:port`.
const ADDRESS: &str = "vestibule.dev/address";
/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of milliseconds that a term reported by a proxy may be ahead of the clock. A higher term is ignored.
const MAX_AHEAD: u64 = 366 * 24 * 3600 * 1000;
/// How long a leader that ends keeps the streams of its proxies open until the next leader is known. A candidate that
/// watches takes the Lease over within milliseconds; without one, the proxies are let go after this.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(3);
/// Time before a report of a proxy may raise the term again.
const RAISE_AGAIN: Duration = Duration::from_mins(1);

/// The Lease, and the candidate for it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The identity of the candidate, unique to this process.
    pub identity: String,
    /// The address at which this process serves proxies, as `host:port`.
    pub address: String,
    /// The owner of the Lease object, if it has one.
    pub owner: Option<OwnerReference>,
    /// Durations of the election.
    pub timing: ElectionTiming,
}

/// Takes part in the election until `end`, and then gives the Lease up. The publisher leads or follows accordingly, and
/// `role` gets the role. A signal on `doubt` has the Lease read at once.
///
/// The Lease is also watched, so that the next attempt is made as soon as its holder changes: a candidate takes a Lease
/// over when it is given up, and a follower names the new leader. Without the watch both would wait for the next
/// attempt, and meanwhile proxies would find nobody who publishes. The watch decides nothing. Each attempt reads.
pub async fn run(
    client: kube::Client,
    config: Config,
    publisher: Arc<Publisher>,
    role: watch::Sender<Role>,
    doubt: Arc<Notify>,
    end: CancellationToken,
) {
    let mut candidate = Candidate {
        api: Api::namespaced(client, &config.namespace),
        elector: Elector::new(
            config.identity.clone(),
            config.address.clone(),
            config.timing,
        ),
        lease: None,
        current: false,
        floor: 0,
        raised: None,
        config,
        publisher,
        role,
    };
    let selection =
        watcher::Config::default().fields(&format!("metadata.name={}", candidate.config.name));
    let mut events = pin!(follow::objects(
        candidate.api.clone(),
        selection,
        "the Lease of the operators"
    ));
    while !end.is_cancelled() {
        let under_way = candidate.attempt().await;
        candidate.settle();
        drop(under_way);
        let mut pause = pin!(tokio::time::sleep(candidate.config.timing.retry));
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = candidate.deadline() => {
                    candidate.settle();
                    break;
                }
                () = doubt.notified() => {
                    candidate.doubt().await;
                    break;
                }
                Some(event) = events.next() => if candidate.is_news(&event) {
                    candidate.current = false;
                    break;
                },
                () = end.cancelled() => break,
            }
        }
    }
    candidate.release(events).await;
}

struct Candidate {
    api: Api<Lease>,
    config: Config,
    publisher: Arc<Publisher>,
    role: watch::Sender<Role>,
    elector: Elector,
    /// The Lease as it was read or written last. Writes keep the parts that others have put into it.
    lease: Option<Lease>,
    /// Whether the server still has this version, as far as is known.
    current: bool,
    /// A term that was led, as reported by a proxy.
    floor: u64,
    /// When a report of a proxy last raised the term.
    raised: Option<Instant>,
}

impl Candidate {
    /// Reads the Lease if necessary, and writes it if that is due. Returns the attempt to lead, if this was one; it is
    /// under way until the publisher has the role.
    async fn attempt(&mut self) -> Option<LeadershipAttempt> {
        // The holder renews the version that it wrote. Every other candidate reads the Lease first.
        if !self.current && !self.read().await {
            return None;
        }
        let floor = self.publisher.generation().term.max(self.floor);
        let step = self.elector.plan(Instant::now(), clock::millis(), floor);
        let under_way = step.acquires().then(|| self.publisher.attempt());
        self.write(step).await;
        under_way
    }

    async fn read(&mut self) -> bool {
        let answer = tokio::time::timeout(self.patience(), self.api.get_opt(&self.config.name));
        let lease = match answer.await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => {
                warn!(lease = %self.config.name, %error, "cannot read the Lease");
                return false;
            }
            Err(_) => {
                warn!(lease = %self.config.name, "the API server does not answer to a read of the Lease");
                return false;
            }
        };
        let record = lease.as_ref().map(record);
        self.lease = lease;
        self.elector.observe(record, Instant::now());
        true
    }

    async fn write(&mut self, step: ElectionStep) {
        let sent = Instant::now();
        let parameters = PostParams::default();
        let (wanted, version) = match step {
            ElectionStep::Wait => return,
            ElectionStep::Create(wanted) => (wanted, None),
            ElectionStep::Replace(version, wanted) => (wanted, Some(version)),
        };
        let lease = self.lease_with(&wanted, version.as_deref());
        let patience = self.patience();
        let answer = async {
            if version.is_none() {
                self.api.create(&parameters, &lease).await
            } else {
                let name = &self.config.name;
                self.api.replace(name, &parameters, &lease).await
            }
        };
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(lease)) => {
                self.elector.written(record(&lease), sent);
                self.lease = Some(lease);
                // Only a holder continues from the version that it wrote.
                self.current = !wanted.holder.is_empty();
            }
            Ok(Err(kube::Error::Api(status)))
                if status.is_conflict() || status.is_already_exists() =>
            {
                self.current = false;
            }
            Ok(Err(error)) => {
                self.current = false;
                warn!(lease = %self.config.name, %error, "cannot write the Lease");
            }
            Err(_) => {
                self.current = false;
                warn!(lease = %self.config.name, "the API server does not answer to a write of the Lease");
            }
        }
    }

    /// Handles the report of a proxy that it was served in a later term.
    ///
    /// If this replica holds the Lease nevertheless, the Lease was deleted while the clock was behind. Then a term
    /// above the reported one begins; otherwise that proxy would refuse this leader for ever. A single proxy cannot be
    /// trusted, so this is limited in frequency and in the size of the term.
    async fn doubt(&mut self) {
        self.current = false;
        if !self.read().await {
            return;
        }
        let now = Instant::now();
        let Some(later) = self.publisher.superseded() else {
            return;
        };
        let in_bounds = later < clock::millis().saturating_add(MAX_AHEAD);
        let again = self.raised.is_none_or(|at| now >= at + RAISE_AGAIN);
        if let Some(term) = self.elector.role(now).term(now)
            && later > term
            && in_bounds
            && again
        {
            warn!(
                term,
                later,
                "this replica holds the Lease, and yet a proxy was served in a later term; it begins a term above that one"
            );
            self.raised = Some(now);
            self.floor = later;
            self.elector.resign();
        }
    }

    /// Returns the time for one request. It ends before leadership does, so that no leader still waits for a response
    /// then.
    fn patience(&self) -> Duration {
        match self.elector.role(Instant::now()) {
            Role::Leading { until, .. } => PATIENCE.min(until.duration_since(Instant::now())),
            Role::Following { .. } => PATIENCE,
        }
    }

    /// Waits until this process has to stop leading.
    async fn deadline(&self) {
        match self.elector.role(Instant::now()) {
            Role::Leading { until, .. } => tokio::time::sleep_until(until.into()).await,
            Role::Following { .. } => std::future::pending().await,
        }
    }

    /// Gives the publisher the role that the elector decided on.
    fn settle(&mut self) {
        let role = self.elector.role(Instant::now());
        let before = self.role.borrow().clone();
        match &role {
            Role::Leading { term, .. } => {
                if !matches!(before, Role::Leading { term: led, .. } if led == *term) {
                    if let Err(error) = self.publisher.lead(*term) {
                        error!(%error, "this replica cannot lead");
                        self.elector.resign();
                        self.current = false;
                        return;
                    }
                    info!(term, "this replica leads");
                }
                self.role.send_replace(role);
            }
            Role::Following { leader } => {
                if before == role {
                    return;
                }
                if let Role::Leading { term, .. } = before {
                    warn!(term, "this replica no longer leads");
                }
                info!(
                    leader = leader.as_deref().unwrap_or("unknown"),
                    "this replica follows the leader"
                );
                let leader = leader.clone();
                // The tasks that write learn of the role first. Only then are proxies sent away.
                self.role.send_replace(role);
                self.publisher.follow(leader);
            }
        }
    }

    /// Whether the Lease has another holder, by this event, than the one that was read or written last.
    fn is_news(&self, event: &Event<Lease>) -> bool {
        match event {
            Event::Apply(lease) | Event::InitApply(lease) => {
                let known = self.lease.as_ref().map(record);
                known.is_none_or(|known| known.holder != record(lease).holder)
            }
            Event::Delete(_) => true,
            Event::Init | Event::InitDone => false,
        }
    }

    /// Gives the Lease up, if this candidate holds it, and sends the proxies to the next leader.
    ///
    /// The tasks that write stop first. The publisher sends nothing more from then on, but the proxies keep their
    /// streams until it is known who leads next, so that each makes one step to it.
    async fn release(&mut self, events: impl Stream<Item = Event<Lease>> + Unpin) {
        let Some(step) = self.elector.release() else {
            return;
        };
        self.elector.resign();
        self.role.send_replace(Role::Following { leader: None });
        let has_proxies = self.publisher.resign();
        self.write(step).await;
        let released = self.lease.as_ref().map(record).unwrap_or_default();
        let is_released = released.holder.is_empty();
        if is_released {
            info!(lease = %self.config.name, "the Lease is given up");
        }
        let mut leader = None;
        if is_released && has_proxies {
            let next = successor(events, released.term);
            leader = tokio::time::timeout(SUCCESSOR_TIMEOUT, next)
                .await
                .unwrap_or_default();
            let leader = leader.as_deref().unwrap_or("unknown");
            info!(leader, "proxies go to the next leader");
        }
        self.publisher.follow(leader);
    }

    fn lease_with(&self, wanted: &DesiredLease, version: Option<&str>) -> Lease {
        let mut lease = match (version, &self.lease) {
            (Some(_), Some(lease)) => lease.clone(),
            _ => Lease {
                metadata: ObjectMeta {
                    name: Some(self.config.name.clone()),
                    namespace: Some(self.config.namespace.clone()),
                    owner_references: self.config.owner.clone().map(|owner| vec![owner]),
                    ..ObjectMeta::default()
                },
                ..Lease::default()
            },
        };
        lease.metadata.resource_version = version.map(str::to_owned);
        lease.metadata.managed_fields = None;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(TERM.to_owned(), wanted.term.to_string());
        annotations.insert(ADDRESS.to_owned(), wanted.address.clone());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let now = MicroTime(clock::now());
        if wanted.acquired {
            spec.acquire_time = Some(now.clone());
        }
        spec.renew_time = Some(now);
        spec.holder_identity = Some(wanted.holder.clone());
        spec.lease_duration_seconds = i32::try_from(wanted.duration.as_secs()).ok();
        spec.lease_transitions = Some(wanted.transitions);
        lease
    }
}

/// Returns the address of the first holder after `term`.
async fn successor(
    mut events: impl Stream<Item = Event<Lease>> + Unpin,
    term: u64,
) -> Option<String> {
    while let Some(event) = events.next().await {
        if let Event::Apply(lease) | Event::InitApply(lease) = event {
            let record = record(&lease);
            if record.term > term && !record.holder.is_empty() && !record.address.is_empty() {
                return Some(record.address);
            }
        }
    }
    None
}

fn record(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let none = BTreeMap::new();
    let annotations = lease.metadata.annotations.as_ref().unwrap_or(&none);
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        term: annotations
            .get(TERM)
            .and_then(|term| term.parse().ok())
            .unwrap_or_default(),
        address: annotations.get(ADDRESS).cloned().unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}
