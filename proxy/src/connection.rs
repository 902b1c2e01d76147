//! Owns the life of one client connection: hello, selection, backend, relay, and the reason of its end.
//!
//! If nothing matches, the connection is closed without a TLS alert. So a client that asks for an unknown name learns
//! nothing about the names that exist.

mod challenge;
mod connect;
mod handshake;
mod hello;
mod select;
mod tunnel;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use vestibule_model::client_address::ProxyProtocolMode;

use crate::accesslog::ConnectionRecord;
use crate::acknowledgement;
use crate::bind::BindKey;
use crate::challenge::{Challenge, ChallengeQuery};
use crate::client_address::{self, Introduced};
use crate::close_reason::CloseReason;
use crate::cut::{Cut, unless_cut};
use crate::deadline::within;
use crate::gate::{HandshakeCost, InTurn};
use crate::hello::{HelloReader, ServerName};
use crate::http::{self, Begun, Version};
use crate::lifetime::unless_over;
use crate::listener::{Layer, Mode};
use crate::plane::{DataPlane, HelloPermit};
use crate::relay::{self, Relay};
use crate::table::Beginning;
use crate::terminate::{TlsSession, Tunnel};
use crate::upstream::{Stream, TlsToBackend};
use connect::connect;
use handshake::handshake;
use select::{Decision, decide, take};
use tunnel::{Ending, LAST_WORDS, originate, part, reencrypt};

/// Takes a connection that was accepted, and spawns the task that serves it.
pub(crate) fn accept(plane: &Arc<DataPlane>, client: TcpStream, peer: SocketAddr, bind: BindKey) {
    // On a dual-stack socket, an IPv4 client has an IPv4-mapped IPv6 address.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let mut record = ConnectionRecord::new(Arc::clone(plane), peer, bind);
    let beginning = plane.snapshot.load().beginning(&bind);
    if beginning.closed {
        record.reason = CloseReason::NoListener;
        return;
    }
    let permit = match beginning.proxy_protocol() {
        // The connections of a load balancer come from many sources, so they do not count as those of one.
        Some(protocol) if protocol.trusts(peer.ip()) => plane.unnamed_permit(),
        Some(protocol) if protocol.mode == ProxyProtocolMode::Strict => {
            record.reason = CloseReason::UntrustedPeer;
            return;
        }
        _ => plane.permit(peer.ip()),
    };
    match permit {
        Ok(permit) => {
            tokio::spawn(serve(client, record, permit, beginning));
        }
        Err(reason) => record.reason = reason,
    }
}

/// Serves one connection to its end.
///
/// An idle connection costs as much memory as this future has. So everything before the relay is in a box of its own,
/// which is freed when the relay begins.
pub(crate) fn serve(
    client: TcpStream,
    record: ConnectionRecord,
    permit: HelloPermit,
    beginning: Beginning,
) -> impl Future<Output = ()> + Send {
    let opening = Opening::Begins(Box::pin(open(client, record, permit, beginning)));
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
                let (basis, moved) = (&record.basis, &mut record.moved);
                let passed = Relay::new(&mut client, &mut backend, moved, line, replay);
                let passed = InTurn::new(passed, line);
                unless_cut(unless_over(lifetime, || basis.is_served(), passed))
                    .await
                    .map(|ended| ended.map(CloseReason::from))
            }
            Kind::Terminated(mut session) => {
                let (basis, moved) = (&record.basis, &mut record.moved);
                let tunnel = Tunnel::new(&mut client, &mut backend, moved, &mut session);
                let tunnel = InTurn::new(tunnel, line);
                // In a box, so that the future of passthrough connections has no room for it.
                let tunnel = unless_over(lifetime, || basis.is_served(), tunnel);
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

/// The result of the beginning of a connection.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would cost every connection that is relayed"
)]
enum Opened {
    Relayed(Open),
    /// The future that serves the connection to its end. Its box has no room for the state of the beginning.
    Otherwise(Pin<Box<dyn Future<Output = ()> + Send>>),
    Ended,
}

/// A connection until it is relayed, or to its end if it is served in another way. It is not an async function, because
/// the future of such a function would have room for both of these phases at once.
enum Opening {
    Begins(Pin<Box<dyn Future<Output = Opened> + Send>>),
    Otherwise(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Future for Opening {
    type Output = Option<Open>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Open>> {
        loop {
            match &mut *self {
                Self::Begins(beginning) => match ready!(beginning.as_mut().poll(cx)) {
                    Opened::Relayed(open) => return Poll::Ready(Some(open)),
                    Opened::Otherwise(rest) => *self = Self::Otherwise(rest),
                    Opened::Ended => return Poll::Ready(None),
                },
                Self::Otherwise(rest) => return rest.as_mut().poll(cx).map(|()| None),
            }
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

/// How a connection is relayed. Every idle connection has one of these. With two variants of which one is a box, it
/// needs little room.
enum Kind {
    /// TLS that is passed through, or bytes of TCP, with the bytes that were already read.
    Passed(Box<[u8]>),
    Terminated(Box<TlsSession>),
}

/// The next step of a connection, after the selection.
enum Step {
    Relay(TcpStream, Kind, Ending),
    /// TLS was terminated, and the backend is spoken to over TLS.
    Reencrypt(Box<TlsToBackend>, Box<TlsSession>),
    /// The client sends plain bytes, and the backend is spoken to over TLS. The bytes are those that were already read.
    Originate(Box<TlsToBackend>, Vec<u8>),
    /// HTTP in plaintext, with the bytes that were already read.
    Http(Vec<u8>, Version, HelloPermit),
    /// HTTPS. The handshake has to be done, with the hello replayed.
    Https(Arc<ServerConfig>, HandshakeCost, Vec<u8>, HelloPermit),
    /// The handshake of a CA has to be answered.
    Challenge(Arc<Challenge>, Vec<u8>, HelloPermit),
    /// The client is a CA, and there is no challenge for its question.
    NoChallenge,
}

/// Runs the beginning of a connection: everything until it can be relayed or served.
async fn open(
    mut client: TcpStream,
    mut record: ConnectionRecord,
    permit: HelloPermit,
    beginning: Beginning,
) -> Opened {
    let step = begin(&mut client, &mut record, permit, &beginning).await;
    let begun = match step {
        Ok(Step::Relay(backend, kind, ending)) => {
            return Opened::Relayed(Open {
                client,
                backend,
                record,
                kind,
                ending,
            });
        }
        Ok(Step::Reencrypt(backend, session)) => {
            return Opened::Otherwise(Box::pin(reencrypt(client, backend, session, record)));
        }
        Ok(Step::Originate(backend, first)) => {
            return Opened::Otherwise(Box::pin(originate(client, backend, first, record)));
        }
        Ok(Step::Challenge(challenge, replay, permit)) => {
            Box::pin(challenge::answer(client, challenge, replay, &mut record)).await;
            drop(permit);
            return Opened::Ended;
        }
        Ok(Step::NoChallenge) => {
            record.reason = CloseReason::NoChallenge;
            challenge::refuse_tls(client).await;
            return Opened::Ended;
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
                // A reset says that the connection was refused. An orderly end would look like an empty stream that is
                // whole.
                relay::reset(&client);
            }
            Err((record, reason))
        }
    };
    match begun {
        Ok(begun) => Opened::Otherwise(Box::pin(http::serve(begun))),
        Err((mut record, reason)) => {
            record.reason = reason;
            Opened::Ended
        }
    }
}

/// Reads the first bytes of a connection: a PROXY header if one is expected, and then TLS or a request. All of this has
/// to arrive within the deadline for a hello.
async fn begin(
    client: &mut TcpStream,
    record: &mut ConnectionRecord,
    mut permit: HelloPermit,
    beginning: &Beginning,
) -> Result<Step, CloseReason> {
    let mut first = First {
        bytes: Vec::new(),
        left: record.plane().limits.hello_deadline,
        destination: None,
    };
    // A hello comes in one piece and has a reply. Everything else may come in several small pieces.
    if beginning.layer != Layer::Tls || beginning.proxy_protocol().is_some() {
        acknowledgement::at_once(client);
    }
    if let Some(protocol) = beginning.proxy_protocol()
        && (beginning.layer != Layer::Bytes || protocol.trusts(record.client().ip()))
    {
        // The protocol on a TCP listener may be one in which the server speaks first. So a peer that is not trusted may
        // send nothing, and nobody waits for a header from it.
        let introduced = client_address::introduce(client, record, &mut permit, protocol);
        let introduced = within(first.left, Box::pin(introduced)).await;
        let Introduced { rest, destination } =
            introduced.map_err(|_| CloseReason::HelloTimeout)??;
        (first.bytes, first.destination) = (rest, destination);
        first.left = first.left.saturating_sub(record.started().elapsed());
    }
    match beginning.layer {
        Layer::Plain => {
            let (head, version) = http::sniff(client, first.bytes, first.left).await?;
            Ok(Step::Http(head, version, permit))
        }
        Layer::Tls => open_tls(client, record, permit, first).await,
        Layer::Bytes => open_tcp(client, record, permit, first).await,
    }
}

/// Connects to a backend that is selected by port alone, without waiting for a byte of the client.
async fn open_tcp(
    client: &TcpStream,
    record: &mut ConnectionRecord,
    permit: HelloPermit,
    first: First,
) -> Result<Step, CloseReason> {
    let plane = Arc::clone(record.plane());
    let random = plane.random();
    let snapshot = plane.snapshot.load_full();
    let selection = snapshot.select_by_port(record.bind())?;
    let (_, _, credentials) = take(&snapshot, record, selection, random)?;
    drop((permit, snapshot));
    let named = first.destination;
    let connected = connect(client, record, named, random, Some(credentials)).await?;
    Ok(match connected {
        Stream::Plain(backend) => {
            let passed = Kind::Passed(first.bytes.into());
            Step::Relay(backend.into_socket(), passed, Ending::Neither)
        }
        Stream::Tls(backend) => Step::Originate(backend, first.bytes),
    })
}

/// What is known of a connection before its hello.
struct First {
    /// The bytes that were already read.
    bytes: Vec<u8>,
    /// The time that is left for the rest of the hello.
    left: Duration,
    /// The address that the client connected to, if a PROXY header named it.
    destination: Option<SocketAddr>,
}

/// Reads the hello, and does what the listener does that is selected by its server name: relays, terminates, or serves HTTPS.
async fn open_tls(
    client: &mut TcpStream,
    record: &mut ConnectionRecord,
    permit: HelloPermit,
    first: First,
) -> Result<Step, CloseReason> {
    let plane = Arc::clone(record.plane());
    let named = first.destination;
    let mut reader = HelloReader::new(plane.limits.hello_bytes);
    let read = within(first.left, hello::read(client, &mut reader, first.bytes)).await;
    let hello = read.map_err(|_| CloseReason::HelloTimeout)??;
    plane
        .metrics
        .hello_seconds
        .observe(record.started().elapsed().as_secs_f64());
    record.basis.server_name = match hello.server_name {
        ServerName::Name(name) => Some(name),
        ServerName::Absent => None,
        ServerName::Invalid => return Err(CloseReason::UnknownServerName),
    };
    let question = ChallengeQuery::of_hello(record.basis.server_name.as_ref(), &hello.alpn);
    let replay = reader.into_bytes();
    let random = plane.random();
    let (mode, cost, credentials) = match decide(record, question.as_ref(), random)? {
        Decision::Challenge(challenge) => return Ok(Step::Challenge(challenge, replay, permit)),
        Decision::Serve(mode, cost, credentials) => (mode, cost, credentials),
    };
    match mode {
        // Here each request selects its own route, by the host in it.
        Mode::Https(config) => {
            let config = config?;
            if challenge::is_unanswered(&plane, question.as_ref()) {
                return Ok(Step::NoChallenge);
            }
            Ok(Step::Https(config, cost, replay, permit))
        }
        Mode::Passthrough => {
            drop(permit);
            match connect(client, record, named, random, None).await? {
                Stream::Plain(backend) => Ok(Step::Relay(
                    backend.into_socket(),
                    Kind::Passed(replay.into()),
                    Ending::Both,
                )),
                // No TLS session is opened to the backend if the client's TLS is passed through.
                Stream::Tls(_) => Err(CloseReason::Internal),
            }
        }
        Mode::Terminate(config) => {
            let config = config?;
            if challenge::is_unanswered(&plane, question.as_ref()) {
                return Ok(Step::NoChallenge);
            }
            let session = handshake(client, config, replay, cost, record).await?;
            drop(permit);
            let connected = connect(client, record, named, random, Some(credentials)).await?;
            Ok(match connected {
                Stream::Plain(backend) => {
                    let socket = backend.into_socket();
                    Step::Relay(socket, Kind::Terminated(session), Ending::Client)
                }
                Stream::Tls(backend) => Step::Reencrypt(backend, session),
            })
        }
        // These are not selected by a server name. The configuration changed while the hello arrived.
        Mode::Http | Mode::Tcp | Mode::Udp => Err(CloseReason::NoListener),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::bind::BindKey;
    use crate::limits::ProxyLimits;
    use crate::metrics::Metrics;
    use crate::plane::DataPlane;

    #[tokio::test]
    async fn what_a_connection_begins_with_is_gone_while_http_is_served() {
        let (mut client, accepted, record, permit) = connection().await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let mut beginning = Beginning::default();
        beginning.layer = Layer::Plain;
        let opening = open(accepted, record, permit, beginning);
        let size = size_of_val(&opening);
        assert!(size <= 8 * 1024, "{size} bytes until the hello is there");
        let Opened::Otherwise(rest) = opening.await else {
            panic!("HTTP is served");
        };
        let size = size_of_val(&*rest);
        assert!(size <= 1024, "{size} bytes beside what hyper has");
    }

    #[tokio::test]
    async fn an_idle_connection_is_small() {
        let (_client, accepted, record, permit) = connection().await;
        let future = serve(accepted, record, permit, Beginning::default());
        let size = size_of_val(&future);
        assert!(size <= 560, "{size} bytes per connection");
    }

    /// A client, and what a worker has of it once it was accepted.
    async fn connection() -> (TcpStream, TcpStream, ConnectionRecord, HelloPermit) {
        let plane = Arc::new(DataPlane::new(
            Arc::default(),
            Arc::new(Metrics::new()),
            ProxyLimits::default(),
        ));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (client, (accepted, peer)) = (client.unwrap(), accepted.unwrap());
        let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 443);
        let record = ConnectionRecord::new(Arc::clone(&plane), peer, bind);
        let permit = plane.permit(peer.ip()).unwrap();
        (client, accepted, record, permit)
    }
}
