//! Serves one stream of one proxy: the handshake, then one batch at a time, each with its acknowledgement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use prost::Message as _;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tracing::{debug, info, warn};
use vestibule_stream::{
    ContentHash, Generation, PROTOCOL_VERSION, ResourceKey,
    limits::{MAX_ENTRIES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, cut},
    negotiate,
    proto::{
        Ack, Batch, BatchRefusal, Heartbeat, Hello, Inventory, InventoryRequest, NotLeader,
        OperatorMessage, ProxyMessage, Refused, Welcome, operator_message, proxy_message,
    },
};

use super::{
    Publisher, Rejects, Role, State, auth::SubscriberIdentity, content::BatchSize,
    content::Difference, metrics, places::BatchPlace,
};

/// Number of refusals in a row after which the stream ends. The proxy then connects again with a new Hello.
const MAX_REFUSALS: u32 = 3;

/// Largest number of generations that a proxy can be ahead of a publisher that restarted within its term. A larger
/// number is not credible.
const MAX_LEAP: u64 = 1 << 40;

/// Reason of a refusal, in statuses: the configuration does not fit in one batch.
const TOO_LARGE: &str = "TooLarge";

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The proxy or the network ended it.
    Gone,
    NotLeader,
    Refused,
    /// The proxy was silent, did not read, or did not acknowledge in time.
    Cut,
    /// The proxy sent a message that the protocol does not allow at this point.
    Protocol,
    /// A newer stream of the same proxy took over.
    Replaced,
    /// The proxy refused several batches in a row.
    Stuck,
    /// The token belongs to another pod.
    OtherPod,
    /// The token has expired.
    Expired,
    /// The configuration does not fit in one batch, or the inventory of the proxy is longer than the limit.
    TooLarge,
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::NotLeader => "NotLeader",
            Self::Refused => "Refused",
            Self::Cut => "Cut",
            Self::Protocol => "Protocol",
            Self::Replaced => "Replaced",
            Self::Stuck => "Stuck",
            Self::OtherPod => "OtherPod",
            Self::Expired => "Expired",
            Self::TooLarge => "TooLarge",
        }
    }
}

/// The content of the next batch.
#[derive(Debug)]
enum Next {
    /// Everything that is published.
    Full,
    /// Nothing. The proxy holds what is published, and only needs the generation.
    Equal,
    /// Unknown. The proxy first has to report what it holds.
    Ask,
    /// The difference to what the proxy holds.
    Resync(BTreeMap<ResourceKey, ContentHash>),
    /// The changes since the last acknowledged generation.
    Delta(Generation),
}

/// The message of the proxy that the session waits for.
#[derive(Debug)]
enum Waiting {
    Nothing,
    Inventory(BTreeMap<ResourceKey, ContentHash>, Instant),
    Ack(InFlight, Instant),
}

#[derive(Debug)]
struct InFlight {
    generation: Generation,
    /// The keys in the batch, or `None` if it covers everything.
    keys: Option<BTreeSet<ResourceKey>>,
    /// The place of a large batch. It becomes free with the acknowledgement, or with the stream.
    _place: Option<OwnedSemaphorePermit>,
}

struct Session {
    publisher: Arc<Publisher>,
    id: u64,
    proxy: String,
    outbound: mpsc::Sender<Result<OperatorMessage, Status>>,
    next: Next,
    waiting: Waiting,
    /// The place for the next batch, if it is large.
    place: BatchPlace,
    refusals: u32,
    /// When the token expires, and the proxy has to send its next one.
    expires: Option<Instant>,
}

/// Serves one stream until it ends. If there is an identity, the stream has to be of that proxy, and ends when the
/// token expires.
pub(super) async fn run(
    publisher: Arc<Publisher>,
    id: u64,
    identity: Option<SubscriberIdentity>,
    mut inbound: impl Stream<Item = Result<ProxyMessage, Status>> + Unpin,
    outbound: mpsc::Sender<Result<OperatorMessage, Status>>,
) {
    let metrics = publisher.metrics.clone();
    let first = timeout(publisher.config.handshake, inbound.next()).await;
    let hello = match first {
        Ok(Some(Ok(ProxyMessage {
            message: Some(proxy_message::Message::Hello(hello)),
        }))) => hello,
        Ok(None | Some(Err(_))) => return metrics.ended(End::Gone.reason()),
        Ok(Some(Ok(_))) => {
            let status = Status::invalid_argument("the first message is not a Hello");
            let _ = outbound.try_send(Err(status));
            return metrics.ended(End::Protocol.reason());
        }
        Err(_) => return metrics.ended(End::Cut.reason()),
    };
    let proxy = cut(hello.proxy.clone());
    if let Some(identity) = &identity
        && identity.proxy != hello.proxy
    {
        let pod = &identity.proxy;
        warn!(
            proxy,
            pod, "a proxy says that it is another pod than its token"
        );
        let status = Status::permission_denied(format!(
            "the token is of pod {pod}, and the proxy says that it is {proxy}; let it say its pod's name"
        ));
        let _ = outbound.try_send(Err(status));
        return metrics.ended(End::OtherPod.reason());
    }
    let mut session = Session {
        publisher,
        id,
        proxy,
        outbound,
        next: Next::Ask,
        waiting: Waiting::Nothing,
        place: BatchPlace::None,
        refusals: 0,
        expires: identity.map(|identity| identity.until),
    };
    let end = session.serve(&hello, inbound).await;
    let Session {
        publisher, proxy, ..
    } = session;
    {
        let mut state = publisher.state.lock();
        state.ledger.disconnect(&proxy, id);
        gauge(&publisher, &state);
    }
    publisher.moved();
    metrics.ended(end.reason());
    info!(proxy, reason = end.reason(), "the stream of a proxy ended");
}

/// Waits until `time`, or for ever if it is `None`.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn gauge(publisher: &Publisher, state: &State) {
    let connected = i64::try_from(state.ledger.connected()).unwrap_or(i64::MAX);
    publisher.metrics.proxies.set(connected);
}

impl Session {
    async fn serve(
        &mut self,
        hello: &Hello,
        mut inbound: impl Stream<Item = Result<ProxyMessage, Status>> + Unpin,
    ) -> End {
        self.attempt_decided().await;
        // Subscribe before the role is read, so that no change of the role is missed.
        let mut epoch = self.publisher.epoch.subscribe();
        let mut published = self.publisher.published.subscribe();
        let mut replaced = self.publisher.replaced.subscribe();
        let greeting = self.admit(hello);
        let refused = match &greeting {
            operator_message::Message::NotLeader(_) => Some(End::NotLeader),
            operator_message::Message::Refused(_) => Some(End::Refused),
            _ => None,
        };
        if let Err(end) = self.send(greeting).await {
            return end;
        }
        if let Some(end) = refused {
            return end;
        }

        let config = self.publisher.config.clone();
        let mut heard = Instant::now();
        let mut heartbeat = interval(config.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        loop {
            let ended = epoch.has_changed().unwrap_or(true);
            if !ended && let Err(end) = self.advance().await {
                return end;
            }
            let (idle, deadline) = match &self.waiting {
                Waiting::Nothing => (true, heard + config.silence),
                Waiting::Inventory(_, until) | Waiting::Ack(_, until) => (false, *until),
            };
            tokio::select! {
                biased;
                _ = epoch.changed() => {
                    let message = self.publisher.state.lock().not_leader();
                    let _ = self.send(message).await;
                    return End::NotLeader;
                }
                message = inbound.next() => {
                    let Some(Ok(ProxyMessage { message })) = message else {
                        return End::Gone;
                    };
                    heard = Instant::now();
                    if let Err(end) = self.take(message) {
                        if end == End::TooLarge {
                            let _ = self.send(too_large("the inventory is too long")).await;
                        }
                        return end;
                    }
                }
                () = self.place.turn(), if self.place.is_waiting() => {}
                _ = published.changed(), if idle => {}
                _ = replaced.changed() => {
                    if !self.speaks() {
                        return End::Replaced;
                    }
                }
                // The stream does not end between a batch and its acknowledgement. Otherwise the next stream would have
                // to find out again what the proxy holds.
                () = until(self.expires), if idle => {
                    let status = Status::aborted("the token has expired; show the next one");
                    let _ = self.outbound.try_send(Err(status));
                    return End::Expired;
                }
                () = sleep_until(deadline) => {
                    warn!(proxy = self.proxy, "a proxy did not acknowledge a batch in time; its stream is cut");
                    return End::Cut;
                }
                _ = heartbeat.tick() => {
                    let message = Some(operator_message::Message::Heartbeat(Heartbeat {}));
                    // If there is no room, another message is under way, and it serves as a heartbeat.
                    let _ = self.outbound.try_send(Ok(OperatorMessage { message }));
                }
            }
        }
    }

    /// Waits until no attempt to lead is under way. If one takes longer than a handshake may, the present role counts.
    async fn attempt_decided(&self) {
        let mut attempt = self.publisher.attempt.subscribe();
        let decided = attempt.wait_for(|under_way| !under_way);
        let _ = timeout(self.publisher.config.handshake, decided).await;
    }

    /// Decides on a Hello, and enters the proxy into the ledger if it accepts the proxy. Returns the response.
    fn admit(&mut self, hello: &Hello) -> operator_message::Message {
        let refuse = |reason: &str, message: String| {
            operator_message::Message::Refused(Refused {
                reason: reason.to_owned(),
                message,
            })
        };
        let publisher = Arc::clone(&self.publisher);
        let mut state = publisher.state.lock();
        let Role::Leader { term } = state.role else {
            return state.not_leader();
        };
        let Some(protocol) = negotiate(hello.protocol) else {
            let message = format!(
                "protocol {} is not spoken any more; this operator speaks {PROTOCOL_VERSION}",
                hello.protocol
            );
            return refuse("UnsupportedProtocol", message);
        };
        if hello.proxy.is_empty() || hello.proxy.len() > MAX_NAME_BYTES {
            return refuse("InvalidIdentity", "no name, or too long a name".to_owned());
        }
        let known = state.ledger.proxies.contains_key(&hello.proxy);
        if !known && state.ledger.proxies.len() >= publisher.config.max_proxies {
            return refuse("TooManyProxies", "too many proxies".to_owned());
        }
        if let Some(held) = hello.held {
            if held.term > term {
                // Another replica led that later term. It still leads or led since, and this replica does not know yet.
                state.superseded = state.superseded.max(Some(held.term));
                return operator_message::Message::NotLeader(NotLeader::default());
            }
            let present = state.content.generation();
            if held > present {
                if held.counter.saturating_sub(present.counter) > MAX_LEAP {
                    return refuse("InvalidGeneration", format!("{held} was never given out"));
                }
                state.content.rise_above(held);
            }
        }

        self.next = match hello.held {
            None => Next::Full,
            Some(_) if hello.held_digest == state.content.digest().to_vec() => Next::Equal,
            Some(_) => Next::Ask,
        };
        let replaced = state.ledger.connect(&self.proxy, self.id, hello.held);
        if replaced {
            // The older stream ends now, whatever it waits for.
            let replaced = &self.publisher.replaced;
            replaced.send_modify(|moves| *moves = moves.wrapping_add(1));
        }
        gauge(&publisher, &state);
        info!(
            proxy = self.proxy,
            release = cut(hello.release.clone()),
            "a proxy connected"
        );
        operator_message::Message::Welcome(Welcome {
            protocol,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            term,
        })
    }

    /// Sends the next batch, if nothing is in flight and there is something to send.
    async fn advance(&mut self) -> Result<(), End> {
        if !matches!(self.waiting, Waiting::Nothing) || !self.publisher.leads() {
            return Ok(());
        }
        if matches!(self.place, BatchPlace::None) {
            let Some(mut size) = self.next_size() else {
                return self.ask().await;
            };
            if excess(size).is_some() {
                // A difference also names what is gone, so all that is published may fit where the difference does not.
                self.next = Next::Full;
                size = self.publisher.state.lock().content.size();
            }
            if let Some(problem) = excess(size) {
                return self.refuse(problem).await;
            }
            self.place = self.publisher.places.ask(size.bytes);
        }
        if self.place.is_waiting() {
            return Ok(());
        }
        let place = self.place.take();
        if let Some((batch, in_flight)) = self.batch(place)? {
            // The deadline grows by a second for each MiB.
            let size = Duration::from_secs((batch.encoded_len() >> 20) as u64);
            self.waiting = Waiting::Ack(in_flight, self.until(size));
            return self.send(operator_message::Message::Batch(batch)).await;
        }
        self.ask().await
    }

    /// Asks the proxy what it holds, if the next batch depends on that.
    async fn ask(&mut self) -> Result<(), End> {
        if !matches!(self.next, Next::Ask) {
            return Ok(());
        }
        self.waiting = Waiting::Inventory(BTreeMap::new(), self.until(Duration::ZERO));
        let request = operator_message::Message::InventoryRequest(InventoryRequest {});
        self.send(request).await
    }

    /// Returns the size of the next batch. `None` if there is nothing to send, or if the proxy has to be asked first.
    fn next_size(&self) -> Option<BatchSize> {
        let state = self.publisher.state.lock();
        let content = &state.content;
        match &self.next {
            Next::Ask => None,
            Next::Equal => Some(BatchSize::default()),
            Next::Full => Some(content.size()),
            Next::Resync(held) => Some(content.size_beside(held)),
            Next::Delta(base) => content
                .changed_since(*base)
                .then(|| content.size_since(*base)),
        }
    }

    /// Ends the stream, because a batch does not fit in one message. The proxy serves what it holds, and comes back
    /// after a longer wait. Statuses say what the problem is.
    async fn refuse(&mut self, problem: String) -> Result<(), End> {
        warn!(
            proxy = self.proxy,
            problem, "the configuration is too large for one batch, so the proxy gets none"
        );
        let message = too_large(&problem);
        {
            let mut state = self.publisher.state.lock();
            if let Some(entry) = state.ledger.of_session(&self.proxy, self.id) {
                entry.refusal = Some(BatchRefusal {
                    reason: TOO_LARGE.to_owned(),
                    message: problem,
                });
            }
        }
        self.publisher.moved();
        let _ = self.send(message).await;
        Err(End::TooLarge)
    }

    /// Whether this stream still counts for the proxy.
    fn speaks(&self) -> bool {
        let mut state = self.publisher.state.lock();
        state.ledger.of_session(&self.proxy, self.id).is_some()
    }

    fn until(&self, more: Duration) -> Instant {
        Instant::now() + self.publisher.config.patience + more
    }

    /// Returns the next batch. `None` if there is nothing to send, or if the proxy has to be asked first.
    fn batch(
        &mut self,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Option<(Batch, InFlight)>, End> {
        let publisher = Arc::clone(&self.publisher);
        let mut state = publisher.state.lock();
        let State {
            content, ledger, ..
        } = &mut *state;
        let entry = ledger
            .of_session(&self.proxy, self.id)
            .ok_or(End::Replaced)?;

        let mut batch = Batch::default();
        let (kind, difference) = match &self.next {
            Next::Ask => return Ok(None),
            Next::Delta(base) => {
                if !content.changed_since(*base) {
                    return Ok(None);
                }
                let Some(difference) = content.since(*base) else {
                    self.next = Next::Ask;
                    return Ok(None);
                };
                batch.base = Some(*base);
                batch.generation = Some(content.generation());
                ("delta", difference)
            }
            Next::Full => ("full", content.all()),
            Next::Equal => ("equal", Difference::default()),
            Next::Resync(held) => ("resync", content.compare(held)),
        };
        let generation = batch.generation.unwrap_or_else(|| content.renew());
        batch.generation = Some(generation);
        batch.full = batch.base.is_none();
        batch.keep_held = batch.full && kind != "full";
        // The digest covers everything as it is published. It is left out if the proxy rejected a resource that this
        // batch does not contain, because the proxy does not hold that resource as it is published.
        if batch.full
            || entry
                .rejects
                .keys()
                .all(|key| difference.keys.contains(key))
        {
            batch.digest = content.digest().to_vec();
        }
        batch.upserts = difference.upserts;
        batch.removals = difference.removals;

        let bytes = batch.encoded_len() as u64;
        let resources = batch
            .upserts
            .iter()
            .map(|upsert| upsert.resource.len() as u64)
            .sum();
        publisher
            .metrics
            .batches
            .get_or_create(&metrics::Kind { kind })
            .inc();
        publisher.metrics.sent.inc_by(bytes);
        publisher.metrics.resource_bytes.inc_by(resources);
        debug!(proxy = self.proxy, %generation, kind, bytes, "a batch is sent");
        let keys = (!batch.full).then_some(difference.keys);
        let in_flight = InFlight {
            generation,
            keys,
            _place: place,
        };
        Ok(Some((batch, in_flight)))
    }

    /// Handles one message of the proxy.
    fn take(&mut self, message: Option<proxy_message::Message>) -> Result<(), End> {
        use proxy_message::Message;
        match (
            message,
            std::mem::replace(&mut self.waiting, Waiting::Nothing),
        ) {
            (Some(Message::Inventory(chunk)), Waiting::Inventory(mut held, until)) => {
                let last = chunk.last;
                collect(&mut held, chunk)?;
                if last {
                    self.next = Next::Resync(held);
                } else {
                    self.waiting = Waiting::Inventory(held, until);
                }
                Ok(())
            }
            (Some(Message::Ack(ack)), Waiting::Ack(in_flight, _)) => {
                self.acknowledged(ack, &in_flight)
            }
            // `None` is a message that a later release added.
            (Some(Message::Heartbeat(_)) | None, waiting) => {
                self.waiting = waiting;
                Ok(())
            }
            (Some(Message::Hello(_) | Message::Inventory(_) | Message::Ack(_)), _) => {
                Err(End::Protocol)
            }
        }
    }

    fn acknowledged(&mut self, ack: Ack, in_flight: &InFlight) -> Result<(), End> {
        let publisher = Arc::clone(&self.publisher);
        let mut state = publisher.state.lock();
        let State {
            content, ledger, ..
        } = &mut *state;
        let entry = ledger
            .of_session(&self.proxy, self.id)
            .ok_or(End::Replaced)?;
        if let Some(refusal) = ack.refusal {
            let refusal = BatchRefusal {
                reason: cut(refusal.reason),
                message: cut(refusal.message),
            };
            warn!(
                proxy = self.proxy,
                generation = %in_flight.generation,
                reason = refusal.reason,
                message = refusal.message,
                "a proxy refuses a batch"
            );
            self.refusals += 1;
            let (reason, next) = match refusal.reason.as_str() {
                "NotFull" => ("NotFull", Some(Next::Full)),
                "BaseMismatch" => ("BaseMismatch", Some(Next::Ask)),
                "Malformed" => ("Malformed", Some(Next::Ask)),
                // The proxy holds a later generation than its Hello said.
                "StaleGeneration" => ("StaleGeneration", None),
                _ => ("Other", None),
            };
            entry.refusal = Some(refusal);
            publisher
                .metrics
                .refusals
                .get_or_create(&metrics::Reason { reason })
                .inc();
            self.next = next
                .filter(|_| self.refusals < MAX_REFUSALS)
                .ok_or(End::Stuck)?;
            drop(state);
            publisher.moved();
            return Ok(());
        }
        if ack.generation != Some(in_flight.generation) {
            return Err(End::Protocol);
        }
        self.refusals = 0;
        self.next = Next::Delta(in_flight.generation);
        entry.refusal = None;
        entry.acked = Some(in_flight.generation);
        publisher.metrics.rejects.inc_by(ack.rejects.len() as u64);
        let is_sent = |key: &ResourceKey| {
            in_flight
                .keys
                .as_ref()
                .is_none_or(|keys| keys.contains(key))
        };
        if !ack.rejects.is_empty() || entry.rejects.keys().any(is_sent) {
            let mut rejects = Rejects::clone(&entry.rejects);
            rejects.retain(|key, _| !is_sent(key));
            for mut reject in ack.rejects {
                if let Some(key) = &reject.key
                    && content.changed(key).is_some()
                {
                    reject.reason = cut(reject.reason);
                    reject.message = cut(reject.message);
                    rejects.insert(key.clone(), reject);
                }
            }
            if rejects != *entry.rejects {
                entry.rejects = Arc::new(rejects);
            }
        }
        drop(state);
        publisher.moved();
        Ok(())
    }

    /// Sends a message. If the proxy does not read it in time, the stream ends.
    async fn send(&self, message: operator_message::Message) -> Result<(), End> {
        let message = OperatorMessage {
            message: Some(message),
        };
        let sending = self.outbound.send(Ok(message));
        match timeout(self.publisher.config.patience, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Gone),
            Err(_) => Err(End::Cut),
        }
    }
}

impl State {
    fn not_leader(&self) -> operator_message::Message {
        let leader = match &self.role {
            Role::Follower { leader } => leader.clone(),
            // Either the next leader is not known yet, or this replica leads again and the proxy can come back to it.
            Role::Resigned | Role::Leader { .. } => String::new(),
        };
        operator_message::Message::NotLeader(NotLeader { leader })
    }
}

/// Returns what is wrong with a batch of this size, if a proxy would not take it.
fn excess(size: BatchSize) -> Option<String> {
    let BatchSize { entries, bytes } = size;
    // The message around the batch has its generations and a digest.
    let fits = entries <= MAX_ENTRIES && bytes.saturating_add(1024) <= MAX_MESSAGE_BYTES as u64;
    (!fits).then(|| {
        format!(
            "the configuration has {entries} entries with {} MiB, and one batch can have {MAX_ENTRIES} with {} MiB; \
             spread the Gateways over several releases",
            bytes >> 20,
            MAX_MESSAGE_BYTES >> 20
        )
    })
}

fn too_large(message: &str) -> operator_message::Message {
    operator_message::Message::Refused(Refused {
        reason: TOO_LARGE.to_owned(),
        message: message.to_owned(),
    })
}

/// Adds a chunk to an inventory, within the limits.
fn collect(held: &mut BTreeMap<ResourceKey, ContentHash>, chunk: Inventory) -> Result<(), End> {
    for entry in chunk.entries {
        let hash = ContentHash::try_from(entry.hash.as_slice()).map_err(|_| End::Protocol)?;
        let key = entry.key.ok_or(End::Protocol)?;
        if key.name.len() > MAX_NAME_BYTES {
            return Err(End::Protocol);
        }
        if held.len() >= MAX_ENTRIES {
            return Err(End::TooLarge);
        }
        held.insert(key, hash);
    }
    Ok(())
}
