//! The proxy's end of the stream over gRPC: connects, reconnects, feeds batches to [`Held`].
//!
//! The client owns the record of what the proxy holds for the life of the process. Whatever happens on the network, and
//! whatever an operator sends, the configuration in force stays in force until the client accepts a batch that replaces
//! it.

mod connect;
mod target;
mod tls;

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use tracing::{debug, info, warn};
use vestibule_backoff::{Backoff, shortened};

use crate::{
    Apply, Held, ProxyIdentity,
    limits::{MAX_MESSAGE_BYTES, cut},
    negotiate,
    proto::{
        Ack, Batch, Generation, OperatorMessage, ProxyMessage, Refused,
        config_stream_client::ConfigStreamClient, operator_message, proxy_message,
    },
};

pub use connect::{Connect, ConnectError, Tcp, Token, endpoint};
use target::{Target, generator};
pub use tls::{Tls, TlsError};

/// Settings of the client.
#[derive(Debug, Clone)]
pub struct Config {
    /// The identity that the proxy states.
    pub identity: ProxyIdentity,
    /// Operator replicas to ask, `host:port`, in turn.
    pub addresses: Vec<String>,
    /// A connection attempt that takes longer fails.
    pub connect_timeout: Duration,
    /// If the operator sends nothing for longer than this, the client gives the stream up. The operator sends a
    /// heartbeat every 15 s.
    pub silence: Duration,
    /// Waits between attempts. Each is shortened by up to a half at random.
    pub backoff: Backoff,
    /// Longest wait after a replica answered that it does not lead and knows no leader. It is short because a replica
    /// soon will lead.
    pub backoff_follower: Duration,
    /// Wait after the operator refused this proxy.
    pub backoff_refused: Duration,
}

impl Config {
    /// The defaults for a proxy that asks `addresses`.
    #[must_use]
    pub fn new(identity: ProxyIdentity, addresses: Vec<String>) -> Self {
        Self {
            identity,
            addresses,
            // A follower may still name a leader whose pod is gone, and nothing answers there.
            connect_timeout: Duration::from_secs(2),
            silence: Duration::from_secs(45),
            // While leaders change, endpoints that are gone stay in force. An attempt costs the operator a handshake,
            // and strangers have few places there, so hundreds of proxies do not keep it from its work.
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(3)),
            backoff_follower: Duration::from_secs(1),
            backoff_refused: Duration::from_mins(1),
        }
    }
}

/// The state of the client, for readiness, metrics and the admin endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientState {
    /// The replica that welcomed this proxy, while the stream is up.
    pub connected: Option<String>,
    /// The generation in force. The proxy is ready once there is one.
    pub held: Option<Generation>,
    /// Number of streams so far that an operator welcomed.
    pub welcomed: u64,
    /// The last refusal or failure.
    pub last_refusal: Option<LastRefusal>,
    /// Number of refusals and failures so far, by reason (see [`LastRefusal::reason`]).
    pub refusals: BTreeMap<&'static str, u64>,
    /// Number of resources that were rejected from the last batch that had any entry.
    pub rejects: usize,
}

/// Something that this proxy refused, or that was refused to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRefusal {
    /// A CamelCase word from a bounded set. For a batch it is a reason of [`crate::Refusal`]. For a stream it is
    /// `Unreachable`, `Unauthorized` (the token), `Silent`, `Broken` (the stream ended), `NotLeader`, `Refused` or
    /// `Protocol`.
    pub reason: &'static str,
    /// The explanation for people.
    pub message: String,
}

/// How a stream ended.
enum End {
    /// No replica answered, or none answered in time.
    Unreachable(String),
    /// The proxy has no token to show, or the operator does not accept it.
    Unauthorized(String),
    /// The operator sent no message for [`Config::silence`].
    Silent,
    /// The transport broke, or the operator ended the call.
    Broken(String),
    /// A message does not decode. The transport cannot go on after it.
    Malformed(String),
    /// The operator sent a message that the protocol does not allow here.
    Protocol(&'static str),
    NotLeader(String),
    Refused(Refused),
}

impl End {
    fn describe(&self) -> LastRefusal {
        let (reason, message) = match self {
            Self::Unreachable(text) => ("Unreachable", text.clone()),
            Self::Unauthorized(text) => ("Unauthorized", text.clone()),
            Self::Silent => ("Silent", "no message within the deadline".to_owned()),
            Self::Broken(text) => ("Broken", text.clone()),
            Self::Malformed(text) => ("Malformed", text.clone()),
            Self::Protocol(text) => ("Protocol", (*text).to_owned()),
            Self::NotLeader(leader) if leader.is_empty() => {
                ("NotLeader", "and the leader is not known".to_owned())
            }
            Self::NotLeader(leader) => ("NotLeader", format!("the leader is {leader}")),
            Self::Refused(refused) => {
                let Refused { reason, message } = refused;
                ("Refused", format!("{reason}: {message}"))
            }
        };
        LastRefusal {
            reason,
            message: cut(message),
        }
    }
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        // tonic reports a message that prost cannot decode with the same code as a broken transport, so only the text
        // tells them apart. A message longer than the limit has a code of its own.
        let undecodable = status.code() == Code::Internal && status.message().contains("decode");
        if matches!(
            status.code(),
            Code::Unauthenticated | Code::PermissionDenied
        ) {
            let why = status.message();
            let why = if why.is_empty() {
                "no reason given"
            } else {
                why
            };
            return Self::Unauthorized(format!(
                "the operator does not take this proxy's token: {why}; the token must be a projected \
                 one of the proxies' ServiceAccount, for the audience that the operator expects"
            ));
        }
        if undecodable || status.code() == Code::OutOfRange {
            Self::Malformed(status.to_string())
        } else {
            Self::Broken(status.to_string())
        }
    }
}

/// With more entries than this, a batch is applied off the asynchronous threads. A full batch
/// always is.
const LARGE_BATCH: usize = 64;
/// With more bytes of resources than this, a batch is applied there too. A single one can have 4 MiB.
const LARGE_BATCH_BYTES: usize = 256 << 10;

/// Whether a batch takes so long to apply that it must not hold up an asynchronous thread.
fn is_large(batch: &Batch) -> bool {
    let entries = batch.upserts.len().saturating_add(batch.removals.len());
    let bytes = batch.upserts.iter().map(|upsert| upsert.resource.len());
    batch.full || entries > LARGE_BATCH || bytes.sum::<usize>() > LARGE_BATCH_BYTES
}

/// The client. Run it as a task of its own.
#[derive(Debug)]
pub struct Client<C, A> {
    config: Config,
    connector: C,
    sink: A,
    held: Held,
    state: watch::Sender<ClientState>,
}

impl<C: Connect, A: Apply + Send> Client<C, A> {
    /// A client that holds nothing yet and applies to `sink`, and its state.
    pub fn new(config: Config, connector: C, sink: A) -> (Self, watch::Receiver<ClientState>) {
        Self::resume(config, connector, sink, Held::new())
    }

    /// Like [`Client::new`], but `held` is in force in `sink` already, from a recording.
    pub fn resume(
        config: Config,
        connector: C,
        sink: A,
        held: Held,
    ) -> (Self, watch::Receiver<ClientState>) {
        let (state, watch) = watch::channel(ClientState {
            held: held.generation(),
            ..ClientState::default()
        });
        let client = Self {
            config,
            connector,
            sink,
            held,
            state,
        };
        (client, watch)
    }

    /// Keeps a stream to the leader for ever; drop the future to stop. Dropping it is safe at any time, because
    /// applying a batch has no await point at which it could be cut short.
    pub async fn run(mut self) {
        let mut random = generator(&self.config.identity.proxy);
        let mut target = Target::default();
        loop {
            let address = target.address(&self.config.addresses);
            let welcomed = self.state.borrow().welcomed;
            let end = self.stream(&address).await;
            let end_text = end.describe();
            let served = self.state.borrow().welcomed > welcomed;
            self.state.send_modify(|state| state.connected = None);
            self.note(&end_text);
            if served {
                target.served();
            }

            let wait = match &end {
                End::Refused(_) => {
                    warn!(
                        address,
                        message = end_text.message,
                        "the operator refuses this proxy"
                    );
                    target.rotate();
                    Some(self.config.backoff_refused)
                }
                End::NotLeader(leader) => {
                    debug!(address, leader, "the replica at this address does not lead");
                    if target.redirect(leader) {
                        None
                    } else {
                        let wait = target.backoff(self.config.backoff);
                        Some(wait.min(self.config.backoff_follower))
                    }
                }
                End::Unreachable(_) | End::Unauthorized(_) => {
                    warn!(
                        address,
                        reason = end_text.reason,
                        message = end_text.message,
                        "there is no stream to the operator; the configuration in force stays"
                    );
                    target.rotate();
                    Some(target.backoff(self.config.backoff))
                }
                _ => {
                    info!(
                        address,
                        reason = end_text.reason,
                        message = end_text.message,
                        "the stream to the operator ended; the configuration in force stays"
                    );
                    target.rotate();
                    Some(target.backoff(self.config.backoff))
                }
            };
            if let Some(wait) = wait {
                sleep(shortened(wait, random.u64(..))).await;
            }
        }
    }

    /// Runs one stream, from connecting to its end.
    async fn stream(&mut self, address: &str) -> End {
        if address.is_empty() {
            return End::Unreachable("no address of an operator is configured".to_owned());
        }
        let connect = timeout(self.config.connect_timeout, self.connector.connect(address));
        let channel = match connect.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return End::Unreachable(chain(&*error)),
            Err(_) => return End::Unreachable("no connection within the deadline".to_owned()),
        };
        let mut client = ConfigStreamClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (outbound, messages) = mpsc::channel(4);
        let hello = proxy_message::Message::Hello(self.held.hello(&self.config.identity));
        if let Err(end) = self.send(&outbound, hello).await {
            return end;
        }
        let mut request = Request::new(ReceiverStream::new(messages));
        match self.connector.token() {
            Ok(Some(token)) => {
                request.metadata_mut().insert("authorization", token);
            }
            Ok(None) => {}
            Err(error) => return End::Unauthorized(chain(&*error)),
        }
        let call = client.subscribe(request);
        let mut inbound = match timeout(self.config.silence, call).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return status.into(),
            Err(_) => return End::Silent,
        };
        let mut welcomed = false;
        loop {
            let message = match timeout(self.config.silence, inbound.message()).await {
                Ok(Ok(Some(OperatorMessage { message }))) => message,
                Ok(Ok(None)) => return End::Broken("the operator ended the stream".to_owned()),
                Ok(Err(status)) => return status.into(),
                Err(_) => return End::Silent,
            };
            if let Err(end) = self.take(address, &mut welcomed, message, &outbound).await {
                return end;
            }
        }
    }

    /// Acts on one message of the operator.
    async fn take(
        &mut self,
        address: &str,
        welcomed: &mut bool,
        message: Option<operator_message::Message>,
        outbound: &mpsc::Sender<ProxyMessage>,
    ) -> Result<(), End> {
        use operator_message::Message;
        match message {
            Some(Message::NotLeader(not_leader)) => Err(End::NotLeader(cut(not_leader.leader))),
            Some(Message::Refused(refused)) => Err(End::Refused(refused)),
            Some(Message::Welcome(welcome)) if !*welcomed => {
                if negotiate(welcome.protocol) != Some(welcome.protocol) {
                    return Err(End::Protocol("a version that this proxy does not speak"));
                }
                *welcomed = true;
                info!(
                    address,
                    term = welcome.term,
                    release = cut(welcome.release),
                    "the stream to the operator is up"
                );
                self.state.send_modify(|state| {
                    state.connected = Some(address.to_owned());
                    state.welcomed += 1;
                });
                Ok(())
            }
            Some(Message::Heartbeat(beat)) => {
                self.send(outbound, proxy_message::Message::Heartbeat(beat))
                    .await
            }
            Some(Message::InventoryRequest(_)) if *welcomed => {
                for chunk in self.held.inventory() {
                    self.send(outbound, proxy_message::Message::Inventory(chunk))
                        .await?;
                }
                Ok(())
            }
            Some(Message::Batch(batch)) if *welcomed => {
                let ack = self.apply(&batch);
                drop(batch);
                self.send(outbound, proxy_message::Message::Ack(ack)).await
            }
            Some(Message::Welcome(_)) => Err(End::Protocol("a second welcome")),
            Some(_) => Err(End::Protocol("a message before the welcome")),
            // A later release added this message. An operator that needs an answer to it sees that none comes.
            None => Ok(()),
        }
    }

    fn apply(&mut self, batch: &Batch) -> Ack {
        let entries = batch.upserts.len().saturating_add(batch.removals.len());
        let ack = if is_large(batch)
            && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
        {
            tokio::task::block_in_place(|| self.held.offer(batch, &mut self.sink))
        } else {
            self.held.offer(batch, &mut self.sink)
        };
        if let Some(refusal) = &ack.refusal {
            warn!(
                reason = refusal.reason,
                message = refusal.message,
                "the proxy refuses a batch"
            );
            self.note(&LastRefusal {
                reason: crate::held::static_reason(&refusal.reason),
                message: refusal.message.clone(),
            });
        } else {
            debug!(
                entries,
                rejects = ack.rejects.len(),
                "the proxy has applied a batch"
            );
            for reject in ack.rejects.iter().take(10) {
                let key = reject
                    .key
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                warn!(
                    key,
                    reason = reject.reason,
                    message = reject.message,
                    "the proxy rejects a resource"
                );
            }
            self.state.send_modify(|state| {
                state.held = self.held.generation();
                if entries > 0 {
                    state.rejects = ack.rejects.len();
                }
            });
        }
        ack
    }

    async fn send(
        &self,
        outbound: &mpsc::Sender<ProxyMessage>,
        message: proxy_message::Message,
    ) -> Result<(), End> {
        let message = ProxyMessage {
            message: Some(message),
        };
        match timeout(self.config.silence, outbound.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Broken("the operator ended the stream".to_owned())),
            Err(_) => Err(End::Silent),
        }
    }

    fn note(&self, refusal: &LastRefusal) {
        self.state.send_modify(|state| {
            *state.refusals.entry(refusal.reason).or_default() += 1;
            state.last_refusal = Some(refusal.clone());
        });
    }
}

/// The text of an error with its causes: tonic's own text is only "transport error".
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ResourceKey, Upsert};

    #[test]
    fn a_batch_is_large_by_its_entries_or_by_its_bytes() {
        let of = |upserts: usize, bytes: usize| Batch {
            upserts: vec![
                Upsert {
                    kind: 0,
                    resource: vec![0; bytes].into(),
                };
                upserts
            ],
            ..Batch::default()
        };
        assert!(!is_large(&of(LARGE_BATCH, 100)));
        assert!(is_large(&of(LARGE_BATCH + 1, 100)));
        assert!(!is_large(&of(1, LARGE_BATCH_BYTES)));
        assert!(is_large(&of(2, LARGE_BATCH_BYTES / 2 + 1)));
        let mut removals = of(1, 1);
        removals.removals = vec![ResourceKey::default(); LARGE_BATCH];
        assert!(is_large(&removals));
        let full = Batch {
            full: true,
            ..Batch::default()
        };
        assert!(is_large(&full));
    }
}
