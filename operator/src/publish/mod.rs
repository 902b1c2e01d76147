//! The operator's end of the configuration stream. It keeps the published resources, brings every proxy up to date,
//! and knows from the acknowledgements of the proxies what is programmed.
//!
//! Every replica feeds its [`Publisher`] with the same content. The replica that holds the Lease leads
//! ([`Publisher::lead`]) and serves proxies. The others tell proxies who the leader is. One batch per proxy is in
//! flight at a time, and later changes are merged into the next one.

pub mod auth;
mod content;
mod in_process;
mod ledger;
mod metrics;
mod places;
mod session;
pub mod settle;
mod stream_slots;
pub mod tls;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tonic::{Request, Status, Streaming, transport::Server};
use vestibule_stream::{
    Digest, Encoded, Generation, ResourceKey,
    proto::{OperatorMessage, ProxyMessage},
};

pub use content::Changes;
pub use in_process::InProcess;
pub use ledger::{AckProgress, Acknowledged, ProxyId, Rejects};
pub use metrics::PublisherMetrics;
pub use wire::StreamServer;

use auth::{Authenticator, SubscriberIdentity};
use content::Content;
use ledger::Ledger;
use places::BatchPlaces;
use stream_slots::StreamSlots;
use tls::{ConnectionPermit, StreamGuard};

/// Deadlines and bounds of the publisher.
#[derive(Debug, Clone)]
pub struct Config {
    /// Time for the first message of a stream.
    pub handshake: Duration,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Longest silence of a proxy. After it, the proxy counts as gone.
    pub silence: Duration,
    /// Time for a proxy to read a message, and to acknowledge a batch. If it takes longer, its stream ends.
    pub patience: Duration,
    /// Largest number of proxies at the same time.
    pub max_proxies: usize,
    /// Largest number of bytes of large batches that are under way at the same time, to all proxies together. Each has a
    /// list of its resources, until the proxy has read it. When many proxies start at once, they take turns. A batch that
    /// is longer than this is sent alone.
    pub batch_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            heartbeat: Duration::from_secs(15),
            silence: Duration::from_secs(45),
            patience: Duration::from_mins(1),
            max_proxies: 1024,
            batch_bytes: 256 << 20,
        }
    }
}

/// The requested term is below one that this replica has led, so its view of the Lease is out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("term {term} is below {present}, which was led already")]
pub struct TermFell {
    /// The requested term.
    pub term: u64,
    /// The highest term so far.
    pub present: u64,
}

/// An attempt to lead that is under way.
#[derive(Debug)]
pub struct LeadershipAttempt(Arc<Publisher>);

impl Drop for LeadershipAttempt {
    fn drop(&mut self) {
        self.0.attempt.send_replace(false);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Follower {
        leader: String,
    },
    /// It led, and publishes no more. The streams of proxies stay open until the next leader is known.
    Resigned,
    Leader {
        term: u64,
    },
}

#[derive(Debug)]
struct State {
    role: Role,
    content: Content,
    ledger: Ledger,
    /// Resources whose last change waits to be published.
    withheld: BTreeSet<ResourceKey>,
    superseded: Option<u64>,
}

/// The publisher of one replica. Translation feeds it, the server reads it, and the code that writes statuses asks it
/// what is programmed.
#[derive(Debug)]
pub struct Publisher {
    config: Config,
    metrics: PublisherMetrics,
    state: Mutex<State>,
    /// Signals that the content changed.
    published: watch::Sender<Generation>,
    /// Signals that the role changed. All streams end then.
    epoch: watch::Sender<u64>,
    /// Whether an attempt to lead is under way. Its outcome decides the answer to a proxy that asks meanwhile.
    attempt: watch::Sender<bool>,
    /// Signals that an answer of [`Publisher::programmed`] may have changed.
    acks: watch::Sender<u64>,
    /// Signals that a stream replaced an older one of the same proxy.
    replaced: watch::Sender<u64>,
    sessions: AtomicU64,
    streams: Arc<Semaphore>,
    slots: StreamSlots,
    places: BatchPlaces,
}

impl Publisher {
    /// Returns a follower that does not know the leader and has no content.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        // Streams that wait for their Hello count as well, and so do streams that a newer one replaces.
        let streams = Arc::new(Semaphore::new(config.max_proxies.saturating_mul(2)));
        let places = BatchPlaces::new(config.batch_bytes);
        Arc::new(Self {
            config,
            metrics: PublisherMetrics::default(),
            state: Mutex::new(State {
                role: Role::Follower {
                    leader: String::new(),
                },
                content: Content::default(),
                ledger: Ledger::default(),
                withheld: BTreeSet::new(),
                superseded: None,
            }),
            published: watch::Sender::new(Generation::default()),
            epoch: watch::Sender::new(0),
            attempt: watch::Sender::new(false),
            acks: watch::Sender::new(0),
            replaced: watch::Sender::new(0),
            sessions: AtomicU64::new(0),
            streams,
            slots: StreamSlots::default(),
            places,
        })
    }

    /// Publishes `changes` as one generation and returns it. Returns the present generation if they change nothing. A
    /// follower keeps the content for the time when it leads.
    pub fn update(&self, changes: Changes) -> Generation {
        let generation = {
            let mut state = self.state.lock();
            let generation = state.content.apply(changes);
            self.metrics.published(state.content.size());
            generation
        };
        if self.published.send_replace(generation) != generation {
            self.moved();
        }
        generation
    }

    /// Begins to lead in the `term` of the Lease, and serves proxies from now on. Returns the generation of the content
    /// at this point. Does nothing if this replica leads that term already.
    pub fn lead(&self, term: u64) -> Result<Generation, TermFell> {
        let generation = {
            let mut state = self.state.lock();
            let present = state.content.generation().term;
            if term < present {
                return Err(TermFell { term, present });
            }
            if state.role == (Role::Leader { term }) {
                return Ok(state.content.generation());
            }
            state.role = Role::Leader { term };
            state.superseded = None;
            state.ledger.clear();
            state.content.begin(term)
        };
        self.epoch.send_modify(|epoch| *epoch += 1);
        self.moved();
        Ok(generation)
    }

    /// Says that an attempt to lead is under way, until the returned guard is dropped. If the attempt succeeds, call
    /// [`Publisher::lead`] before that.
    ///
    /// The API server may tell others of the new leader sooner than the leader itself. A proxy that they send here would
    /// find a follower; so it is answered after the attempt.
    #[must_use]
    pub fn attempt(self: &Arc<Self>) -> LeadershipAttempt {
        self.attempt.send_replace(true);
        LeadershipAttempt(Arc::clone(self))
    }

    /// Stops publishing, and keeps the streams of proxies open. [`Publisher::follow`] then sends the proxies to the next
    /// leader in one step, so they need not look for it. Does nothing unless this replica leads. Returns whether a proxy
    /// is connected.
    pub fn resign(&self) -> bool {
        let mut state = self.state.lock();
        if matches!(state.role, Role::Leader { .. }) {
            state.role = Role::Resigned;
        }
        state.ledger.connected() > 0
    }

    /// Stops serving proxies. They are told the address of the leader (`host:port`), if it is known. Until this replica
    /// leads again, it knows nothing about what is in force.
    pub fn follow(&self, leader: Option<String>) {
        let leader = leader.unwrap_or_default();
        let led = {
            let mut state = self.state.lock();
            let led = !matches!(state.role, Role::Follower { .. });
            if led {
                state.ledger.clear();
            }
            state.role = Role::Follower { leader };
            led
        };
        if led {
            self.epoch.send_modify(|epoch| *epoch += 1);
            self.moved();
        }
    }

    /// Sets which proxies are ready, connected or not. Only if all expected proxies acknowledged a change, it counts as
    /// in force. The ready proxies are expected, and also connected ones that acknowledged a full batch. A proxy that
    /// disconnects stays expected while it is in this set, or until the first call.
    ///
    /// Call this at every change in the cluster. A proxy that was ready and no longer is has to report again what it
    /// holds.
    pub fn set_ready(&self, ready: BTreeSet<ProxyId>) {
        self.state.lock().ledger.set_ready(ready);
        // This wakes the streams, so that a stream whose proxy no longer counts ends.
        self.published.send_modify(|_| {});
        self.moved();
    }

    /// Takes the resources of which a last change began (true) or ceased (false) to wait to be published ([`settle`]). The
    /// changes that wait do not count as in force.
    pub fn withhold(&self, keys: BTreeMap<ResourceKey, bool>) {
        let mut state = self.state.lock();
        let mut changes = false;
        for (key, waits) in keys {
            changes |= if waits {
                state.withheld.insert(key)
            } else {
                state.withheld.remove(&key)
            };
        }
        drop(state);
        if changes {
            self.moved();
        }
    }

    /// Returns at which of the expected proxies the last change of each of `keys` is in force. `keys` are all resources
    /// that are published for an object.
    #[must_use]
    pub fn programmed(&self, keys: &[ResourceKey]) -> AckProgress {
        let state = self.state.lock();
        let (withheld, keys): (Vec<_>, Vec<_>) = keys
            .iter()
            .cloned()
            .partition(|key| state.withheld.contains(key));
        state.ledger.programmed(&keys, withheld, &state.content)
    }

    /// Whether every expected proxy has acknowledged everything that is published, and no change of a resource that
    /// `matters` waits to be published. A resource that a proxy rejected counts as acknowledged.
    #[must_use]
    pub fn is_settled(&self, matters: impl Fn(&ResourceKey) -> bool) -> bool {
        let state = self.state.lock();
        !state.withheld.iter().any(matters) && state.ledger.has_acked(state.content.last_change())
    }

    /// Returns a channel that signals when an answer of [`Publisher::programmed`] may have changed.
    #[must_use]
    pub fn acks(&self) -> watch::Receiver<u64> {
        self.acks.subscribe()
    }

    /// Returns the last generation given out.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.state.lock().content.generation()
    }

    /// Returns a resource as it is published, or `None` if it is not.
    #[must_use]
    pub fn resource(&self, key: &ResourceKey) -> Option<Encoded> {
        self.state.lock().content.resource(key).cloned()
    }

    /// Returns the digest over everything published.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.state.lock().content.digest()
    }

    /// Returns a term above the one led here, if a proxy reported that it was served in one. Then the Lease is probably
    /// lost. Only one proxy says so, so the caller has to check the Lease before it acts.
    #[must_use]
    pub fn superseded(&self) -> Option<u64> {
        self.state.lock().superseded
    }

    /// Returns what each proxy rejected, for those that rejected anything. As long as nothing of it changes, the answer is
    /// the same allocation.
    #[must_use]
    pub fn rejects(&self) -> BTreeMap<ProxyId, Arc<Rejects>> {
        let state = self.state.lock();
        let all = state.ledger.proxies.iter();
        all.filter(|(_, entry)| !entry.rejects.is_empty())
            .map(|(proxy, entry)| (proxy.clone(), Arc::clone(&entry.rejects)))
            .collect()
    }

    /// Returns the counters.
    #[must_use]
    pub fn metrics(&self) -> &PublisherMetrics {
        &self.metrics
    }

    fn leads(&self) -> bool {
        matches!(self.state.lock().role, Role::Leader { .. })
    }

    fn moved(&self) {
        self.acks
            .send_modify(|moves| *moves = moves.wrapping_add(1));
    }
}

/// Returns a tonic server builder with the HTTP/2 settings for the stream.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .tcp_nodelay(true)
}

/// Returns the gRPC service of `publisher`, with the message limits of the stream.
#[must_use]
pub fn service(publisher: &Arc<Publisher>) -> StreamServer {
    StreamServer(Calls {
        publisher: Arc::clone(publisher),
        authenticator: None,
    })
}

/// Returns the same service for connections of [`tls::Secure`]. It serves only clients with a valid token.
fn secured_service(publisher: &Arc<Publisher>, authenticator: &Arc<Authenticator>) -> StreamServer {
    StreamServer(Calls {
        publisher: Arc::clone(publisher),
        authenticator: Some(Arc::clone(authenticator)),
    })
}

/// Runs a session for each call.
#[derive(Debug, Clone)]
struct Calls {
    publisher: Arc<Publisher>,
    /// It is `None` within one process, where nobody else can connect.
    authenticator: Option<Arc<Authenticator>>,
}

impl Calls {
    /// Authenticates the caller. Returns its identity, and a guard that keeps its connection open.
    async fn admit<T>(
        &self,
        request: &Request<T>,
    ) -> Result<Option<(SubscriberIdentity, StreamGuard)>, Status> {
        let Some(authenticator) = &self.authenticator else {
            return Ok(None);
        };
        let permit = request.extensions().get::<Arc<ConnectionPermit>>().cloned();
        let permit = permit.ok_or_else(|| Status::internal("a connection of nobody"))?;
        let identity = authenticator
            .authenticate(request.metadata(), permit.source())
            .await?;
        Ok(Some((identity, permit.admit())))
    }

    /// Begins the session of a call, and returns its messages.
    async fn subscribe(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<mpsc::Receiver<Result<OperatorMessage, Status>>, Status> {
        // This comes before any message is read, and before the caller gets any resource that proxies need.
        let admitted = self.admit(&request).await?;
        let Ok(permit) = Arc::clone(&self.publisher.streams).try_acquire_owned() else {
            self.publisher.metrics.ended("TooManyStreams");
            return Err(Status::resource_exhausted("too many streams"));
        };
        let slot = match &admitted {
            Some((identity, _)) => {
                let slot = self.publisher.slots.take(&identity.proxy);
                if slot.is_none() {
                    self.publisher.metrics.ended("TooManyStreams");
                    let text = "this proxy has too many streams";
                    return Err(Status::resource_exhausted(text));
                }
                slot
            }
            None => None,
        };
        // There is room for one message besides the one in the transport. More room would only make a queue.
        let (outbound, messages) = mpsc::channel(1);
        let id = self.publisher.sessions.fetch_add(1, Ordering::Relaxed);
        let publisher = Arc::clone(&self.publisher);
        tokio::spawn(async move {
            let (identity, stream_guard) = admitted.unzip();
            session::run(publisher, id, identity, request.into_inner(), outbound).await;
            drop((permit, slot, stream_guard));
        });
        Ok(messages)
    }
}
