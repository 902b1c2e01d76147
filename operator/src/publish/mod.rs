//! The operator's end of the configuration stream: keeps what is published, brings every proxy to it,
//! and knows from their acks what is programmed.
//!
//! Every replica feeds its [`Publisher`] with the same content; the one that holds the Lease leads
//! ([`Publisher::lead`]) and serves proxies, the others name the leader. Per proxy one batch is in
//! flight; what changes meanwhile is merged into the next one.

pub mod auth;
mod content;
mod in_process;
mod ledger;
mod metrics;
mod session;
pub mod settle;
mod stream_slots;
pub mod tls;

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
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};
use vestibule_stream::{
    Digest, Encoded, Generation, Reject, ResourceKey,
    limits::{MAX_MESSAGE_BYTES, MAX_PROXY_MESSAGE_BYTES},
    proto::{
        OperatorMessage, ProxyMessage,
        config_stream_server::{ConfigStream, ConfigStreamServer},
    },
};

pub use content::Changes;
pub use in_process::InProcess;
pub use ledger::{AckProgress, Acknowledged, ProxyId, Sent};
pub use metrics::Metrics;

use auth::{Authenticator, SubscriberIdentity};
use content::Content;
use ledger::Ledger;
use stream_slots::StreamSlots;
use tls::{ConnectionPermit, StreamGuard};

/// Deadlines and bounds of the publisher.
#[derive(Debug, Clone)]
pub struct Config {
    /// Time for the first message of a stream.
    pub handshake: Duration,
    /// A heartbeat is sent this often.
    pub heartbeat: Duration,
    /// A proxy that was silent for longer is gone.
    pub silence: Duration,
    /// Time for a proxy to read a message, and to acknowledge a batch; one that takes longer is cut.
    pub patience: Duration,
    /// Most proxies at a time.
    pub max_proxies: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            heartbeat: Duration::from_secs(15),
            silence: Duration::from_secs(45),
            patience: Duration::from_mins(1),
            max_proxies: 1024,
        }
    }
}

/// The Lease's term went back: this replica's view of the Lease is older than what it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("term {term} is below {present}, which was led already")]
pub struct TermFell {
    /// The term asked for.
    pub term: u64,
    /// The highest so far.
    pub present: u64,
}

/// What one proxy is known for; for status, metrics and support.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyStatus {
    /// Has a stream.
    pub connected: bool,
    /// The last generation it acknowledged to this leadership.
    pub acked: Option<Generation>,
    /// Resources of which it does not have the last version in force.
    pub rejects: Vec<Reject>,
    /// Resource kinds it knows.
    pub capabilities: Vec<String>,
    /// What was sent to it.
    pub sent: Sent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Follower { leader: String },
    Leader { term: u64 },
}

#[derive(Debug)]
struct State {
    role: Role,
    content: Content,
    ledger: Ledger,
    /// Resources of which a change is published later.
    withheld: BTreeSet<ResourceKey>,
    superseded: Option<u64>,
}

/// The publisher of one replica. Shared: by the translator that feeds it, the server, and whoever
/// writes statuses.
#[derive(Debug)]
pub struct Publisher {
    config: Config,
    metrics: Metrics,
    state: Mutex<State>,
    /// Moves when content changes.
    published: watch::Sender<Generation>,
    /// Moves when the role changes; streams end then.
    epoch: watch::Sender<u64>,
    /// Moves when an answer of [`Publisher::programmed`] may have changed.
    acks: watch::Sender<u64>,
    /// Moves when a stream takes the place of an older one of the same proxy.
    replaced: watch::Sender<u64>,
    sessions: AtomicU64,
    streams: Arc<Semaphore>,
    slots: StreamSlots,
}

impl Publisher {
    /// A follower that does not know the leader and has no content.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        // Streams that wait for their Hello count too, and so do those that a newer one replaces.
        let streams = Arc::new(Semaphore::new(config.max_proxies.saturating_mul(2)));
        Arc::new(Self {
            config,
            metrics: Metrics::default(),
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
            acks: watch::Sender::new(0),
            replaced: watch::Sender::new(0),
            sessions: AtomicU64::new(0),
            streams,
            slots: StreamSlots::default(),
        })
    }

    /// Publishes `changes` as one generation and returns it; the present one if nothing changes by
    /// them. A follower keeps them for the time it leads.
    pub fn update(&self, changes: Changes) -> Generation {
        let generation = {
            let mut state = self.state.lock();
            let generation = state.content.apply(changes);
            let resources = i64::try_from(state.content.len()).unwrap_or(i64::MAX);
            self.metrics.resources.set(resources);
            generation
        };
        if self.published.send_replace(generation) != generation {
            self.moved();
        }
        generation
    }

    /// Leads `term` (of the Lease): proxies are served from now on. Returns the generation of the
    /// content at this point. Does nothing if it leads that term already.
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

    /// Stops serving proxies: they are told where the leader is (`host:port`), if that is known. No
    /// fact is known here until this replica leads again.
    pub fn follow(&self, leader: Option<String>) {
        let leader = leader.unwrap_or_default();
        let led = {
            let mut state = self.state.lock();
            let led = matches!(state.role, Role::Leader { .. });
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

    /// Says which proxies are ready, connected or not. Those that are connected and acknowledged a full
    /// batch are expected as well. One that disconnects stays expected while it is in this set, or
    /// until this is called for the first time. To be called at every change of the cluster's view: a
    /// proxy that was ready and is not any more has to say again what it holds.
    pub fn set_ready(&self, ready: BTreeSet<ProxyId>) {
        self.state.lock().ledger.set_ready(ready);
        // Wakes the streams, so that one that lost its proxy ends.
        self.published.send_modify(|_| {});
        self.moved();
    }

    /// Says of which resources a change is published later ([`settle`]); it does not count as in force.
    pub fn withhold(&self, keys: BTreeSet<ResourceKey>) {
        let mut state = self.state.lock();
        let changes = state.withheld != keys;
        state.withheld = keys;
        drop(state);
        if changes {
            self.moved();
        }
    }

    /// Whether the last change of each of `keys` is in force at every proxy that is expected. Ask with
    /// the keys of what is published for an object.
    #[must_use]
    pub fn programmed(&self, keys: &[ResourceKey]) -> AckProgress {
        let state = self.state.lock();
        let (withheld, keys): (Vec<_>, Vec<_>) = keys
            .iter()
            .cloned()
            .partition(|key| state.withheld.contains(key));
        state.ledger.programmed(&keys, withheld, &state.content)
    }

    /// Whether everything that is published is in force, or rejected, at every proxy that is expected.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.withheld.is_empty() && state.ledger.has_acked(state.content.last_change())
    }

    /// Moves whenever an answer of [`Publisher::programmed`] may have changed.
    #[must_use]
    pub fn acks(&self) -> watch::Receiver<u64> {
        self.acks.subscribe()
    }

    /// The last generation given out.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.state.lock().content.generation()
    }

    /// A resource as it is published; none if it is not.
    #[must_use]
    pub fn resource(&self, key: &ResourceKey) -> Option<Encoded> {
        self.state.lock().content.resource(key).cloned()
    }

    /// Digest over everything published.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.state.lock().content.digest()
    }

    /// A term above the one led here, if a proxy said it was served in one: the Lease is probably lost.
    /// To be checked against the Lease, not to be acted upon: it is one proxy's word.
    #[must_use]
    pub fn superseded(&self) -> Option<u64> {
        self.state.lock().superseded
    }

    /// Every proxy known to this leadership.
    #[must_use]
    pub fn proxies(&self) -> BTreeMap<ProxyId, ProxyStatus> {
        let state = self.state.lock();
        let status = |(proxy, entry): (&ProxyId, &ledger::Proxy)| {
            let status = ProxyStatus {
                connected: entry.session.is_some(),
                acked: entry.acked,
                rejects: entry.rejects.values().cloned().collect(),
                capabilities: entry.capabilities.clone(),
                sent: entry.sent,
            };
            (proxy.clone(), status)
        };
        state.ledger.proxies.iter().map(status).collect()
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn moved(&self) {
        self.acks
            .send_modify(|moves| *moves = moves.wrapping_add(1));
    }
}

/// A tonic server builder with the HTTP/2 settings that the stream wants.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .tcp_nodelay(true)
}

/// The gRPC service of `publisher`, with the message limits of the stream.
#[must_use]
pub fn service(publisher: &Arc<Publisher>) -> ConfigStreamServer<Service> {
    limited(Service {
        publisher: Arc::clone(publisher),
        authenticator: None,
    })
}

/// The same for whoever shows a good token, on connections of [`tls::Secure`].
fn secured_service(
    publisher: &Arc<Publisher>,
    authenticator: &Arc<Authenticator>,
) -> ConfigStreamServer<Service> {
    limited(Service {
        publisher: Arc::clone(publisher),
        authenticator: Some(Arc::clone(authenticator)),
    })
}

fn limited(service: Service) -> ConfigStreamServer<Service> {
    ConfigStreamServer::new(service)
        .max_decoding_message_size(MAX_PROXY_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Answers calls with a session each.
#[derive(Debug, Clone)]
pub struct Service {
    publisher: Arc<Publisher>,
    /// None within a process, where nobody else can connect.
    authenticator: Option<Arc<Authenticator>>,
}

impl Service {
    /// Who it is that calls, and the stay of its connection.
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
}

#[tonic::async_trait]
impl ConfigStream for Service {
    type SubscribeStream = ReceiverStream<Result<OperatorMessage, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<ProxyMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        // Before anything is taken that proxies need, and before any message is read.
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
        // One message beside the one that the transport holds: more would be a queue.
        let (outbound, messages) = mpsc::channel(1);
        let id = self.publisher.sessions.fetch_add(1, Ordering::Relaxed);
        let publisher = Arc::clone(&self.publisher);
        tokio::spawn(async move {
            let (identity, stream_guard) = admitted.unzip();
            session::run(publisher, id, identity, request.into_inner(), outbound).await;
            drop((permit, slot, stream_guard));
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}
