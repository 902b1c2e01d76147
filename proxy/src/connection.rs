//! Owns the life of one client connection: hello, selection, backend, relay, and why it ended.
//!
//! Where nothing matches, the connection is closed without a TLS alert: whoever asks for a name that
//! is not here learns nothing about what is.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::accesslog::ConnectionRecord;
use crate::backend::Backend;
use crate::challenge::{self, Challenge, ChallengeOutcome, ChallengeQuery, ChallengeReply};
use crate::client_address;
use crate::cut::{Cut, linger, unless_cut};
use crate::deadline::within;
use crate::dial::{self, Carries};
use crate::gate::{self, HandshakeCost, InTurn, Moves, QueueFull};
use crate::hello::{HelloReader, Progress, Rejection, ServerName};
use crate::http::tunnel::Direction;
use crate::http::{self, Begun, Version};
use crate::lifetime::{TunnelTimeout, unless_over};
use crate::plane::HelloPermit;
use crate::relay::{self, End, Moved, Relay, Side};
use crate::table::{
    Beginning, Layer, Listener, Mode, NotServing, Pick, Route, Selection, Snapshot, Unmatched,
};
use crate::terminate::{self, HandshakeError, TlsSession, Tunnel, TunnelEnd};
use crate::tried::Tried;
use crate::upstream::{Credentials, Stream};

/// What a CA's handshake costs at the gate: the operator makes its key, of ECDSA.
const CHALLENGE_UNITS: u8 = 1;
/// How long a tunnel that is over has to end in order.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Why a connection ended. Closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both directions were closed in order, the client's first.
    ClientClosed,
    /// Both directions were closed in order, the backend's first.
    BackendClosed,
    /// Both directions were closed, but a terminated client left without `close_notify`.
    ClientTruncated,
    /// The client's connection broke.
    ClientReset,
    /// The backend's connection broke.
    BackendReset,
    /// The client closed before it sent a byte.
    ClientSilent,
    /// The client closed within its hello.
    HelloIncomplete,
    /// The first bytes are not TLS.
    NotTls,
    /// An SSL 2.0 hello.
    SslV2,
    /// The hello did not come within the deadline.
    HelloTimeout,
    /// The hello is longer than the limit.
    HelloTooLarge,
    /// The hello cannot be decoded.
    MalformedHello,
    /// The hello has no server name, and nothing serves such.
    NoServerName,
    /// No listener has a hostname that matches, or the server name is not a hostname.
    UnknownServerName,
    /// The port has no listener any more.
    NoListener,
    /// The listener selected has no route for the name.
    NoRoute,
    /// A reference of the route is invalid and its share of connections closed.
    InvalidBackend,
    /// The backend has no endpoints.
    NoEndpoints,
    /// The backend could not be connected to.
    BackendConnectFailed,
    /// The backend did not accept within the deadline.
    BackendConnectTimeout,
    /// The backend's endpoint is a socket of this proxy itself. No connection was made.
    BackendLoop,
    /// The backend is to be spoken to over TLS, and its policy is not valid or what it needs is not
    /// held. No connection was made.
    BackendTlsInvalid,
    /// The TLS handshake with the backend failed: it is not who the policy wants, for instance.
    BackendTlsFailed,
    /// Both directions were closed, but the backend left without `close_notify`.
    BackendTruncated,
    /// The listener has no usable certificate.
    NoCertificate,
    /// The listener validates its clients, and holds no certificate to do it by.
    NoTrustBundle,
    /// The client was a CA that checked a hostname, and got its answer.
    ChallengeAnswered,
    /// The client was a CA that checks a hostname of which this listener knows no challenge.
    NoChallenge,
    /// The TLS handshake failed.
    HandshakeFailed,
    /// The TLS handshake did not end within the deadline.
    HandshakeTimeout,
    /// A request's head did not come to its end within the deadline.
    RequestTimeout,
    /// The client neither sent the rest of a request nor took the rest of an answer for too long.
    ClientStalled,
    /// No request came for too long.
    IdleTimeout,
    /// Nothing came through a tunnel, from either side, for too long.
    TunnelIdleTimeout,
    /// An answer took longer than a limit when its head was sent already, so that HTTP/1.1 could not go on.
    AnswerTimeout,
    /// The connection was too old.
    MaxConnectionAge,
    /// The client broke the HTTP protocol.
    HttpError,
    /// The client of an HTTP/2 connection cancelled too many requests.
    TooManyCancels,
    /// The client of an HTTP/2 connection sent too many frames that ask for nothing.
    TooManyFrames,
    /// A terminated client broke the TLS protocol after the handshake.
    TlsError,
    /// A terminated connection protected as many records as its keys allow.
    KeysExhausted,
    /// A defect of this proxy: the connection's task panicked.
    Internal,
    /// This proxy ended, and its time to drain was over.
    Drained,
    /// The peer may not say who the client is, and sent a PROXY header, or nobody but who may is let in.
    UntrustedPeer,
    /// A PROXY header has to come first, and did not.
    ProxyHeaderMissing,
    /// The PROXY header cannot be read, or is longer than the limit.
    ProxyHeaderMalformed,
    /// More connections than the limit, or than one source may have, of which it is not known what they are for.
    Limit,
    /// The tenant has all connections that it may have.
    TenantLimit,
    /// The source opened more connections in a second than one may.
    SourceRate,
    /// Too many TLS handshakes of the tenant waited for their turn, and this one had waited longest.
    TooManyHandshakes,
    /// The connection was idle while this proxy was short of memory, open files or connections.
    Overload,
}

impl CloseReason {
    /// The word for metrics and logs.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::ClientClosed => "ClientClosed",
            Self::BackendClosed => "BackendClosed",
            Self::ClientTruncated => "ClientTruncated",
            Self::ClientReset => "ClientReset",
            Self::BackendReset => "BackendReset",
            Self::ClientSilent => "ClientSilent",
            Self::HelloIncomplete => "HelloIncomplete",
            Self::NotTls => "NotTls",
            Self::SslV2 => "SslV2",
            Self::HelloTimeout => "HelloTimeout",
            Self::HelloTooLarge => "HelloTooLarge",
            Self::MalformedHello => "MalformedHello",
            Self::NoServerName => "NoServerName",
            Self::UnknownServerName => "UnknownServerName",
            Self::NoListener => "NoListener",
            Self::NoRoute => "NoRoute",
            Self::InvalidBackend => "InvalidBackend",
            Self::NoEndpoints => "NoEndpoints",
            Self::BackendConnectFailed => "BackendConnectFailed",
            Self::BackendConnectTimeout => "BackendConnectTimeout",
            Self::BackendLoop => "BackendLoop",
            Self::BackendTlsInvalid => "BackendTlsInvalid",
            Self::BackendTlsFailed => "BackendTlsFailed",
            Self::BackendTruncated => "BackendTruncated",
            Self::NoCertificate => "NoCertificate",
            Self::NoTrustBundle => "NoTrustBundle",
            Self::ChallengeAnswered => "ChallengeAnswered",
            Self::NoChallenge => "NoChallenge",
            Self::HandshakeFailed => "HandshakeFailed",
            Self::HandshakeTimeout => "HandshakeTimeout",
            Self::RequestTimeout => "RequestTimeout",
            Self::ClientStalled => "ClientStalled",
            Self::IdleTimeout => "IdleTimeout",
            Self::TunnelIdleTimeout => "TunnelIdleTimeout",
            Self::AnswerTimeout => "AnswerTimeout",
            Self::MaxConnectionAge => "MaxConnectionAge",
            Self::HttpError => "HttpError",
            Self::TooManyCancels => "TooManyCancels",
            Self::TooManyFrames => "TooManyFrames",
            Self::TlsError => "TlsError",
            Self::KeysExhausted => "KeysExhausted",
            Self::Internal => "Internal",
            Self::Drained => "Drained",
            Self::UntrustedPeer => "UntrustedPeer",
            Self::ProxyHeaderMissing => "ProxyHeaderMissing",
            Self::ProxyHeaderMalformed => "ProxyHeaderMalformed",
            Self::Limit => "Limit",
            Self::TenantLimit => "TenantLimit",
            Self::SourceRate => "SourceRate",
            Self::TooManyHandshakes => "TooManyHandshakes",
            Self::Overload => "Overload",
        }
    }
}

impl From<Rejection> for CloseReason {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotTls => Self::NotTls,
            Rejection::SslV2 => Self::SslV2,
            Rejection::TooLarge => Self::HelloTooLarge,
            Rejection::Malformed => Self::MalformedHello,
        }
    }
}

impl From<NotServing> for CloseReason {
    fn from(reason: NotServing) -> Self {
        match reason {
            NotServing::NoCertificate => Self::NoCertificate,
            NotServing::NoTrustBundle => Self::NoTrustBundle,
        }
    }
}

impl From<QueueFull> for CloseReason {
    fn from(_: QueueFull) -> Self {
        Self::TooManyHandshakes
    }
}

impl From<Unmatched> for CloseReason {
    fn from(unmatched: Unmatched) -> Self {
        match unmatched {
            Unmatched::NoBind => Self::NoListener,
            Unmatched::NoListener => Self::UnknownServerName,
            Unmatched::NoServerName => Self::NoServerName,
        }
    }
}

/// Serves one connection to its end. The future is what an idle connection costs, so the phases
/// before the relay live in a box of their own that is gone by then.
pub(crate) fn serve(
    client: TcpStream,
    record: ConnectionRecord,
    permit: HelloPermit,
    beginning: Beginning,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(open(client, record, permit, beginning));
    async move {
        let Some(Open {
            mut client,
            mut backend,
            mut record,
            kind,
            ending,
        }) = opening.await
        else {
            return;
        };
        let (line, lifetime) = (record.line(), record.lifetime());
        let ended = match kind {
            Kind::Passed(replay) => {
                let moved = &mut record.moved;
                let passed = Relay::new(&mut client, &mut backend, moved, line, replay);
                unless_cut(unless_over(lifetime, InTurn::new(passed, line)))
                    .await
                    .map(|ended| ended.map(CloseReason::from))
            }
            Kind::Terminated(mut session) => {
                let moved = &mut record.moved;
                let tunnel = Tunnel::new(&mut client, &mut backend, moved, &mut session);
                // In a box beside the session's, so that what is passed through does not pay for it.
                let tunnel = unless_over(lifetime, InTurn::new(tunnel, line));
                unless_cut(Box::pin(tunnel))
                    .await
                    .map(|ended| ended.map(CloseReason::from))
            }
        };
        match ended {
            Ok(Ok(reason)) => record.reason = reason,
            Ok(Err(over)) => {
                record.reason = over.into();
                let parted = part(client, backend, ending);
                let _ = Box::pin(within(LAST_WORDS, parted)).await;
            }
            Err(Cut) => Box::pin(part(client, backend, ending)).await,
        }
    }
}

/// Which sides of a tunnel that could have gone on end in order: those that speak TLS, where it shows that something
/// is missing.
#[derive(Clone, Copy)]
enum Ending {
    Both,
    Client,
    Neither,
}

/// Ends both sides of a tunnel that could have gone on. What is missing shows within TLS, so the ends of TCP
/// can be orderly. Plain TCP has only the reset to say it with.
async fn part(client: TcpStream, backend: TcpStream, ending: Ending) {
    match ending {
        Ending::Both => _ = tokio::join!(linger(client), linger(backend)),
        // The tunnel has asked for the reset.
        Ending::Client => {
            drop(backend);
            linger(client).await;
        }
        Ending::Neither => {
            relay::reset(&client);
            relay::reset(&backend);
        }
    }
}

/// Relays between a terminated client and a backend that is spoken to over TLS.
async fn reencrypt(
    mut client: TcpStream,
    mut backend: Box<TlsStream<TcpStream>>,
    mut session: Box<TlsSession>,
    mut record: ConnectionRecord,
) {
    let (line, lifetime) = (record.line(), record.lifetime());
    let moved = &mut record.moved;
    let tunnel = Tunnel::new(&mut client, &mut *backend, moved, &mut session);
    let ended = unless_cut(unless_over(lifetime, InTurn::new(tunnel, line))).await;
    if let Ok(Ok(end)) = ended {
        record.reason = end.into();
        return;
    }
    // A reset, which the tunnel has asked for.
    drop(backend);
    if let Ok(Err(over)) = ended {
        record.reason = over.into();
        let _ = within(LAST_WORDS, linger(client)).await;
    } else {
        linger(client).await;
    }
}

/// Relays between a client whose bytes are nobody's business and a backend that is spoken to over TLS. `first` is what
/// was read of the client.
async fn originate(
    mut client: TcpStream,
    mut backend: Box<TlsStream<TcpStream>>,
    first: Vec<u8>,
    mut record: ConnectionRecord,
) {
    let (line, lifetime) = (record.line(), record.lifetime());
    let relayed = Originated {
        client: &mut client,
        backend: &mut backend,
        moved: &mut record.moved,
        up: Direction::after(first),
        down: Direction::default(),
        first: None,
    };
    match unless_cut(unless_over(lifetime, InTurn::new(relayed, line))).await {
        Ok(Ok(end)) => {
            record.reason = end.into();
            if matches!(end, End::Closed(_)) {
                return;
            }
        }
        Ok(Err(over)) => record.reason = over.into(),
        Err(Cut) => {}
    }
    // A client without TLS would take what it has for all there is.
    relay::reset(&client);
    relay::reset(backend.get_ref().0);
}

/// The relay of [`originate`].
struct Originated<'a> {
    client: &'a mut TcpStream,
    backend: &'a mut TlsStream<TcpStream>,
    moved: &'a mut Moved,
    up: Direction,
    down: Direction,
    first: Option<Side>,
}

impl Moves for Originated<'_> {
    fn moved(&self) -> u64 {
        self.moved.up + self.moved.down
    }
}

impl Future for Originated<'_> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        let Moved { up, down } = &mut *this.moved;
        let (client, backend) = (&mut *this.client, &mut *this.backend);
        let to_backend = this.up.poll(client, backend, cx, &mut |n| *up += n);
        let Ok(to_backend) = swap(to_backend) else {
            return Poll::Ready(End::Broken(Side::Client));
        };
        if to_backend.is_ready() {
            this.first.get_or_insert(Side::Client);
        }
        let to_client = this.down.poll(backend, client, cx, &mut |n| *down += n);
        let Ok(to_client) = swap(to_client) else {
            return Poll::Ready(End::Broken(Side::Backend));
        };
        if to_client.is_ready() {
            this.first.get_or_insert(Side::Backend);
        }
        match (to_backend, to_client, this.first) {
            (Poll::Ready(()), Poll::Ready(()), Some(first)) => Poll::Ready(End::Closed(first)),
            _ => Poll::Pending,
        }
    }
}

fn swap(polled: Poll<io::Result<()>>) -> io::Result<Poll<()>> {
    match polled {
        Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
        Poll::Ready(Err(error)) => Err(error),
        Poll::Pending => Ok(Poll::Pending),
    }
}

impl From<TunnelTimeout> for CloseReason {
    fn from(over: TunnelTimeout) -> Self {
        match over {
            TunnelTimeout::Idle => Self::TunnelIdleTimeout,
            TunnelTimeout::Age => Self::MaxConnectionAge,
        }
    }
}

impl From<End> for CloseReason {
    fn from(end: End) -> Self {
        match end {
            End::Closed(Side::Client) => Self::ClientClosed,
            End::Closed(Side::Backend) => Self::BackendClosed,
            End::Broken(Side::Client) => Self::ClientReset,
            End::Broken(Side::Backend) => Self::BackendReset,
        }
    }
}

impl From<TunnelEnd> for CloseReason {
    fn from(end: TunnelEnd) -> Self {
        match end {
            TunnelEnd::Closed(Side::Client) => Self::ClientClosed,
            TunnelEnd::Closed(Side::Backend) => Self::BackendClosed,
            TunnelEnd::Truncated(Side::Client) => Self::ClientTruncated,
            TunnelEnd::Truncated(Side::Backend) => Self::BackendTruncated,
            TunnelEnd::Broken(Side::Client) => Self::ClientReset,
            TunnelEnd::Broken(Side::Backend) => Self::BackendReset,
            TunnelEnd::Protocol(_) => Self::TlsError,
            TunnelEnd::Exhausted => Self::KeysExhausted,
        }
    }
}

/// A connection that is ready to be relayed.
struct Open {
    client: TcpStream,
    backend: TcpStream,
    record: ConnectionRecord,
    kind: Kind,
    ending: Ending,
}

/// Two variants, so that it needs no room for a tag: every idle connection has one.
enum Kind {
    /// TLS that is passed through, or any bytes; with what was read of them.
    Passed(Box<[u8]>),
    Terminated(Box<TlsSession>),
}

/// What was selected for a connection.
enum Step {
    Relay(TcpStream, Kind, Ending),
    /// Terminated, and TLS again.
    Reencrypt(Box<TlsStream<TcpStream>>, Box<TlsSession>),
    /// Bytes, and TLS towards the backend.
    Originate(Box<TlsStream<TcpStream>>, Vec<u8>),
    /// Plaintext, with what was read of it.
    Http(Vec<u8>, Version, HelloPermit),
    /// A handshake that is to be done on the replayed hello.
    Https(Arc<ServerConfig>, HandshakeCost, Vec<u8>, HelloPermit),
    /// A CA's handshake that is to be done.
    Challenge(Arc<Challenge>, Vec<u8>, HelloPermit),
    /// A CA that asks for a challenge which is not there.
    NoChallenge,
}

/// Opens a connection that is relayed, or serves one that is not.
async fn open(
    mut client: TcpStream,
    mut record: ConnectionRecord,
    permit: HelloPermit,
    beginning: Beginning,
) -> Option<Open> {
    let step = begin(&mut client, &mut record, permit, &beginning).await;
    let begun = match step {
        Ok(Step::Relay(backend, kind, ending)) => {
            return Some(Open {
                client,
                backend,
                record,
                kind,
                ending,
            });
        }
        // It has buffers of rustls', so that what the phases before it leave is nothing beside them.
        Ok(Step::Reencrypt(backend, session)) => {
            Box::pin(reencrypt(client, backend, session, record)).await;
            return None;
        }
        Ok(Step::Originate(backend, first)) => {
            Box::pin(originate(client, backend, first, record)).await;
            return None;
        }
        Ok(Step::Challenge(challenge, replay, permit)) => {
            Box::pin(answer(client, challenge, replay, &mut record)).await;
            drop(permit);
            return None;
        }
        Ok(Step::NoChallenge) => {
            record.reason = CloseReason::NoChallenge;
            challenge::refuse_tls(client).await;
            return None;
        }
        Ok(Step::Http(head, version, permit)) => {
            Ok(Begun::plain(client, (head, version), record, permit))
        }
        Ok(Step::Https(config, cost, replay, permit)) => {
            let begun = Box::pin(Begun::tls(client, config, cost, replay, record)).await;
            drop(permit);
            begun
        }
        Err(reason) => {
            if beginning.layer == Layer::Bytes {
                // Refused, rather than a stream that is empty and whole.
                relay::reset(&client);
            }
            Err((record, reason))
        }
    };
    match begun {
        Ok(begun) => Box::pin(http::serve(begun)).await,
        Err((mut record, reason)) => record.reason = reason,
    }
    None
}

/// Reads what the connection begins with: a PROXY header where one is expected, then TLS or a request. All of it within
/// the time for a hello.
async fn begin(
    client: &mut TcpStream,
    record: &mut ConnectionRecord,
    mut permit: HelloPermit,
    beginning: &Beginning,
) -> Result<Step, CloseReason> {
    let mut first = First {
        bytes: Vec::new(),
        left: record.plane().limits.hello_deadline,
    };
    if let Some(protocol) = beginning.proxy_protocol()
        && (beginning.layer != Layer::Bytes || protocol.trusts(record.client().ip()))
    {
        // Who is not trusted may wait for the backend to begin, and so there is nothing to look for.
        let introduced = client_address::introduce(client, record, &mut permit, protocol);
        let introduced = within(first.left, Box::pin(introduced)).await;
        first.bytes = introduced.map_err(|_| CloseReason::HelloTimeout)??;
        first.left = first.left.saturating_sub(record.started().elapsed());
    }
    match beginning.layer {
        Layer::Plain => {
            let (head, version) = http::sniff(client, first.bytes, first.left).await?;
            Ok(Step::Http(head, version, permit))
        }
        Layer::Tls => try_open(client, record, permit, first).await,
        Layer::Bytes => open_tcp(record, permit, first.bytes).await,
    }
}

/// Connects to a backend by the port alone, whatever the client says and when. `first` was read of it already.
async fn open_tcp(
    record: &mut ConnectionRecord,
    permit: HelloPermit,
    first: Vec<u8>,
) -> Result<Step, CloseReason> {
    let plane = Arc::clone(record.plane());
    let random = plane.random();
    let snapshot = plane.snapshot.load_full();
    let selection = snapshot.select_by_port(record.bind())?;
    let (_, _, credentials) = take(&snapshot, record, selection, random)?;
    drop((permit, snapshot));
    Ok(match connect(record, random, Some(credentials)).await? {
        Stream::Plain(backend) => Step::Relay(backend, Kind::Passed(first.into()), Ending::Neither),
        Stream::Tls(backend) => Step::Originate(backend, first),
    })
}

/// What was read of a connection, and how much time there is for the rest of the hello.
struct First {
    bytes: Vec<u8>,
    left: Duration,
}

async fn try_open(
    client: &mut TcpStream,
    record: &mut ConnectionRecord,
    permit: HelloPermit,
    first: First,
) -> Result<Step, CloseReason> {
    let plane = Arc::clone(record.plane());
    let limits = &plane.limits;
    let mut reader = HelloReader::new(limits.hello_bytes);
    let read = within(first.left, read_hello(client, &mut reader, first.bytes)).await;
    let hello = read.map_err(|_| CloseReason::HelloTimeout)??;
    plane
        .metrics
        .hello_seconds
        .observe(record.started().elapsed().as_secs_f64());
    record.server_name = match hello.server_name {
        ServerName::Name(name) => Some(name),
        ServerName::Absent => None,
        ServerName::Invalid => return Err(CloseReason::UnknownServerName),
    };
    let question = ChallengeQuery::of_hello(record.server_name.as_ref(), &hello.alpn);
    let replay = reader.into_bytes();
    let random = plane.random();
    let (mode, cost, credentials) = match decide(record, question.as_ref(), random)? {
        Decision::Challenge(challenge) => return Ok(Step::Challenge(challenge, replay, permit)),
        Decision::Serve(mode, cost, credentials) => (mode, cost, credentials),
    };
    match mode {
        // Its routes are selected by each request, whatever name the connection is for.
        Mode::Https(config) => {
            let config = config?;
            if let Some(question) = &question {
                plane
                    .metrics
                    .challenge(question.kind(), ChallengeOutcome::Absent);
                return Ok(Step::NoChallenge);
            }
            Ok(Step::Https(config, cost, replay, permit))
        }
        Mode::Passthrough => {
            drop(permit);
            match connect(record, random, None).await? {
                Stream::Plain(backend) => Ok(Step::Relay(
                    backend,
                    Kind::Passed(replay.into()),
                    Ending::Both,
                )),
                // Not opened for what is TLS already.
                Stream::Tls(_) => Err(CloseReason::Internal),
            }
        }
        Mode::Terminate(config) => {
            let config = config?;
            if let Some(question) = &question {
                plane
                    .metrics
                    .challenge(question.kind(), ChallengeOutcome::Absent);
                return Ok(Step::NoChallenge);
            }
            let begun = tokio::time::Instant::now();
            let handshake = terminate::handshake(client, config, replay);
            let handshake = gate::pass(cost, handshake);
            let result = within(limits.handshake_deadline, handshake).await;
            let (session, negotiated) = result
                .map_err(|_| CloseReason::HandshakeTimeout)??
                .map_err(|error| handshake_failed(&error))?;
            drop(permit);
            plane
                .metrics
                .handshake_seconds
                .observe(begun.elapsed().as_secs_f64());
            plane
                .metrics
                .handshake(negotiated.version, negotiated.resumed);
            record.set_negotiated(negotiated);
            Ok(match connect(record, random, Some(credentials)).await? {
                Stream::Plain(backend) => {
                    Step::Relay(backend, Kind::Terminated(session), Ending::Client)
                }
                Stream::Tls(backend) => Step::Reencrypt(backend, session),
            })
        }
        // Not selected by a server name: the configuration changed within this connection's hello.
        Mode::Http | Mode::Tcp | Mode::Udp => Err(CloseReason::NoListener),
    }
}

/// What becomes of a TLS connection.
enum Decision {
    Challenge(Arc<Challenge>),
    Serve(Mode, HandshakeCost, Credentials),
}

/// Decides all of it by one snapshot: challenge, listener, route, backend, endpoint, and what is shown to
/// it.
fn decide(
    record: &mut ConnectionRecord,
    question: Option<&ChallengeQuery>,
    random: u64,
) -> Result<Decision, CloseReason> {
    let plane = Arc::clone(record.plane());
    let snapshot = plane.snapshot.load();
    let challenge = question.and_then(|of| snapshot.challenge(record.bind(), of.clone()));
    if let Some(challenge) = challenge {
        return Ok(Decision::Challenge(challenge));
    }
    let selected = snapshot.select(record.bind(), record.server_name.as_ref());
    let (mode, cost, credentials) = take(&snapshot, record, selected?, random)?;
    Ok(Decision::Serve(mode, cost, credentials))
}

/// Has a connection count for what was selected for it, and picks its backend unless its requests do that.
fn take(
    snapshot: &Snapshot,
    record: &mut ConnectionRecord,
    selection: Selection,
    random: u64,
) -> Result<(Mode, HandshakeCost, Credentials), CloseReason> {
    let Selection {
        listener,
        route,
        account,
    } = selection;
    let mode = listener.mode.clone();
    let units = listener.handshake_units;
    record.select(Arc::clone(&listener));
    if !matches!(mode, Mode::Https(_)) {
        pick(snapshot, record, route, random, |backend| {
            backend.endpoint(random, |_| true)
        })?;
    }
    let backend = record.backend.as_ref();
    // Without a backend nobody is shown anything: requests select theirs.
    let credentials = backend.map_or(Credentials::None, |(_, backend)| {
        snapshot.credentials(&listener, backend)
    });
    record.charge(&account)?;
    Ok((mode, HandshakeCost { account, units }, credentials))
}

/// Answers a CA.
async fn answer(
    client: TcpStream,
    challenge: Arc<Challenge>,
    replay: Vec<u8>,
    record: &mut ConnectionRecord,
) {
    let plane = Arc::clone(record.plane());
    let answered = match &challenge.answer {
        ChallengeReply::Tls(config) => {
            let cost = HandshakeCost {
                account: Arc::clone(&challenge.account),
                units: CHALLENGE_UNITS,
            };
            challenge::answer_tls(client, Arc::clone(config), cost, replay, &plane).await
        }
        // Not what a hello asks for.
        ChallengeReply::Http(_) => Err(CloseReason::Internal),
    };
    record.challenge(challenge);
    let (reason, outcome) = match answered {
        Ok(negotiated) => {
            record.set_negotiated(negotiated);
            (CloseReason::ChallengeAnswered, ChallengeOutcome::Answered)
        }
        Err(CloseReason::HandshakeTimeout) => {
            (CloseReason::HandshakeTimeout, ChallengeOutcome::Timeout)
        }
        Err(reason) => (reason, ChallengeOutcome::Failed),
    };
    record.reason = reason;
    plane.metrics.challenge(challenge::TLS_ALPN_01, outcome);
}

/// Picks an endpoint of a route's backend.
fn pick(
    snapshot: &Snapshot,
    record: &mut ConnectionRecord,
    route: Option<Arc<Route>>,
    random: u64,
    endpoint: impl FnOnce(&Backend) -> Option<SocketAddr>,
) -> Result<(), CloseReason> {
    let Some(route) = route else {
        let by_port = || {
            record
                .listener()
                .is_some_and(|of| matches!(of.mode, Mode::Tcp))
        };
        return Err(match record.server_name {
            None if !by_port() => CloseReason::NoServerName,
            _ => CloseReason::NoRoute,
        });
    };
    let pick = route.pick_with(snapshot, random, endpoint);
    record.route = Some(route);
    match pick {
        Pick::Endpoint(address, backend) => {
            record.backend = Some((address, backend));
            Ok(())
        }
        Pick::InvalidBackend => Err(CloseReason::InvalidBackend),
        Pick::NoEndpoints | Pick::NoWeight => Err(CloseReason::NoEndpoints),
    }
}

fn handshake_failed(error: &HandshakeError) -> CloseReason {
    tracing::debug!(%error, "handshake failed");
    match error {
        HandshakeError::Io(_) => CloseReason::ClientReset,
        HandshakeError::NotPrepared => CloseReason::NoCertificate,
        HandshakeError::Closed | HandshakeError::Tls(_) | HandshakeError::TooLarge => {
            CloseReason::HandshakeFailed
        }
    }
}

async fn read_hello(
    client: &mut TcpStream,
    reader: &mut HelloReader,
    first: Vec<u8>,
) -> Result<crate::hello::Hello, CloseReason> {
    if !first.is_empty() {
        match reader.push(&first) {
            Progress::NeedMore => {}
            Progress::Hello(hello) => return Ok(hello),
            Progress::Rejected(rejection) => return Err(rejection.into()),
        }
    }
    drop(first);
    let mut chunk = [0; 4096];
    loop {
        let read = client
            .read(&mut chunk)
            .await
            .map_err(|_| CloseReason::ClientReset)?;
        if read == 0 {
            return Err(if reader.is_empty() {
                CloseReason::ClientSilent
            } else {
                CloseReason::HelloIncomplete
            });
        }
        match reader.push(chunk.get(..read).unwrap_or_default()) {
            Progress::NeedMore => {}
            Progress::Hello(hello) => return Ok(hello),
            Progress::Rejected(rejection) => return Err(rejection.into()),
        }
    }
}

/// Connects to the endpoint picked. After a failure route, backend and endpoint are decided anew, by the
/// snapshot that is in force then: what the first one was decided by may be the reason why it failed.
/// `credentials`: none where the client's TLS is passed through.
async fn connect(
    record: &mut ConnectionRecord,
    random: u64,
    mut credentials: Option<Credentials>,
) -> Result<Stream, CloseReason> {
    let plane = Arc::clone(record.plane());
    let end = Instant::now() + plane.limits.connect_deadline;
    let mut tried = Tried::default();
    loop {
        let Some((endpoint, backend)) = record.backend.clone() else {
            return Err(CloseReason::NoEndpoints);
        };
        let left = end.saturating_duration_since(Instant::now());
        let allowed = tried.share(left, &backend.target, credentials.as_ref());
        let carries = credentials
            .as_ref()
            .map_or(Carries::Passthrough, Carries::Terminated);
        let dialled = dial::connect(&plane, &backend, endpoint, carries, allowed).await;
        let reason = match dialled {
            Ok(stream) => return Ok(stream),
            Err(CloseReason::BackendTlsInvalid) => return Err(CloseReason::BackendTlsInvalid),
            Err(reason) => reason,
        };
        tried.push(endpoint, &backend.target, credentials.as_ref());
        if Instant::now() >= end {
            return Err(reason);
        }
        let terminates = credentials.is_some();
        let again = decide_again(record, random, |backend, shown| {
            let shown = terminates.then_some(shown);
            tried.next(backend, random, shown)
        });
        if let Some(next) = again {
            credentials = credentials.map(|_| next);
        } else {
            // As it was decided before.
            let other = tried.next(&backend, random, credentials.as_ref());
            let other = other.ok_or(reason)?;
            record.backend = Some((other, backend));
        }
        plane.metrics.connect_retries.inc();
        record.connect_retries = record.connect_retries.saturating_add(1);
    }
}

/// Picks another endpoint by the snapshot in force; none if it does nothing for this connection as it has
/// begun. What the backend is shown comes with it.
fn decide_again(
    record: &mut ConnectionRecord,
    random: u64,
    next: impl FnOnce(&Backend, &Credentials) -> Option<SocketAddr>,
) -> Option<Credentials> {
    let plane = Arc::clone(record.plane());
    let snapshot = plane.snapshot.load();
    // Where TLS ends here, the client has seen this one's certificate, and was validated by it.
    let begun = record.listener()?;
    let is_tcp = |of: &Listener| matches!(of.mode, Mode::Tcp);
    let selected = if is_tcp(begun) {
        snapshot.select_by_port(record.bind())
    } else {
        snapshot.select(record.bind(), record.server_name.as_ref())
    };
    let Selection {
        listener, route, ..
    } = selected.ok()?;
    let passes = |of: &Listener| matches!(of.mode, Mode::Passthrough);
    let same = Arc::ptr_eq(&listener, begun)
        || (passes(&listener) && passes(begun))
        || (is_tcp(&listener) && is_tcp(begun));
    if !same {
        return None;
    }
    let before = (record.route.clone(), record.backend.clone());
    let mut shown = None;
    let picked = pick(&snapshot, record, route, random, |of| {
        let credentials = snapshot.credentials(&listener, of);
        next(of, shown.insert(credentials))
    });
    if picked.is_err() {
        (record.route, record.backend) = before;
        return None;
    }
    shown
}

/// Has the kernel find out about peers that vanished: asks after `idle`, and gives up after as many
/// questions as the system's settings say. Each setting is a system call per connection.
///
/// There is no `TCP_USER_TIMEOUT`: Linux also counts the time that a live peer keeps its window
/// closed, so it would cut who pauses a download.
pub(crate) fn set_keepalive(socket: &socket2::Socket, idle: Duration) -> io::Result<()> {
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(idle))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::metrics::Metrics;
    use crate::plane::{DataPlane, ProxyLimits};
    use crate::table::BindKey;

    #[tokio::test]
    async fn an_idle_connection_is_small() {
        let plane = Arc::new(DataPlane::new(
            Arc::default(),
            Arc::new(Metrics::new()),
            ProxyLimits::default(),
        ));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (_client, (accepted, peer)) = (client.unwrap(), accepted.unwrap());
        let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 443);
        let record = ConnectionRecord::new(Arc::clone(&plane), peer, bind);
        let permit = plane.permit(peer.ip()).unwrap();
        let future = serve(accepted, record, permit, Beginning::default());
        let size = size_of_val(&future);
        assert!(size <= 512, "{size} bytes per connection");
    }
}
