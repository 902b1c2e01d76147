//! Owns the life of one client connection: hello, selection, backend, relay, and the reason of its end.
//!
//! If nothing matches, the connection is closed without a TLS alert. So a client that asks for an unknown name learns
//! nothing about the names that exist.

mod carry;
mod challenge;
mod connect;
mod handshake;
mod hello;
mod select;
mod step;
#[cfg(test)]
mod tests;
mod tunnel;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use vestibule_model::client_address::ProxyProtocolMode;

use crate::accesslog::ConnectionRecord;
use crate::acknowledgement;
use crate::bind::BindKey;
use crate::challenge::ChallengeQuery;
use crate::client_address::{self, Introduced};
use crate::close_reason::CloseReason;
use crate::deadline::within;
use crate::hello::{HelloReader, ServerName};
use crate::http::{self, Begun};
use crate::listener::{Layer, Mode};
use crate::plane::{DataPlane, HelloPermit};
use crate::relay;
use crate::table::Beginning;
use crate::upstream::Stream;
use carry::carry;
use connect::connect;
use handshake::handshake;
use select::{Decision, decide, take};
use step::{Kind, Open, Opened, Opening, Step};
use tunnel::{Ending, originate, reencrypt};

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

/// What is known of a connection before its hello.
struct First {
    /// The bytes that were already read.
    bytes: Vec<u8>,
    /// The time that is left for the rest of the hello.
    left: Duration,
    /// The address that the client connected to, if a PROXY header named it.
    destination: Option<SocketAddr>,
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
    let opening = open(client, record, permit, beginning);
    carry(Opening::Begins(Box::pin(opening)))
}
