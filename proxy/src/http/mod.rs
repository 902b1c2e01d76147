//! Owns HTTP and HTTPS listeners, from an accepted connection to the responses on it.
//!
//! hyper serves a client's connection, HTTP/1.1 or HTTP/2, with bounds on everything that a client decides. A request passes
//! through `handle`, which uses these modules:
//!
//! - `authority` finds the host for which it is.
//! - `challenge` answers it, if it is the question of a CA.
//! - [`crate::http_route`] finds the rule that takes it, and `filters` applies the filters of the rule.
//! - `authorization` asks a server whether it may pass, if a filter says so.
//! - `forward` makes an attempt, and says what follows: the response, or another attempt.
//! - `exchange` sends the request of one attempt to a backend, on a connection of the `pool`: `backend_http1` or hyper's HTTP/2.
//! - `retry` sends it again if its route asks for that.
//! - `record` becomes its log line.
//!
//! A request that a backend may have seen is tried again only if [`Repeat`](crate::limits::Repeat) allows it.

mod activity;
mod authority;
mod authorization;
pub mod backend_http1;
mod body;
mod budget;
mod challenge;
mod download;
mod exchange;
mod field_names;
mod filters;
mod forward;
mod forwarded;
pub mod frames;
pub mod guard;
mod handle;
pub mod head_size;
mod headers;
pub mod heads;
mod held_heads;
mod http1_connection;
mod kept;
mod local_reply;
mod metered_frames;
mod mirror;
pub mod path;
mod patient;
pub(crate) mod pool;
mod received;
mod record;
mod request_id;
mod retry;
mod retry_state;
mod scratch;
mod serve;
mod shared;
mod timeouts;
mod transport;
pub(crate) mod tunnel;
mod unsent;
mod unsent_bytes;

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::deadline::within;
use crate::gate::{self, HandshakeCost};
use crate::plane::HelloPermit;
use crate::replayed::Replayed;
use crate::terminate::{self, Handshaken, TlsStream};
use crate::validation::{ProvenChain, after_handshake};

pub(crate) use serve::serve;

use transport::Transport;

/// Protocols that HTTPS listeners offer by ALPN, in order of preference.
pub(crate) const ALPN: [&[u8]; 2] = [H2, b"http/1.1"];
const H2: &[u8] = b"h2";
/// The first bytes of an HTTP/2 client with prior knowledge (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The version of HTTP on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

/// A connection on which HTTP begins.
pub(crate) struct Begun {
    transport: Transport,
    version: Version,
    record: ConnectionRecord,
    /// The certificate chain of the client.
    client_chain: ProvenChain,
    /// The place among connections whose tenant is not known yet.
    permit: Option<HelloPermit>,
}

impl Begun {
    /// A connection in plaintext, with the bytes that [`sniff`] read.
    pub(crate) fn plain(
        client: TcpStream,
        (head, version): (Vec<u8>, Version),
        record: ConnectionRecord,
        permit: HelloPermit,
    ) -> Self {
        Self {
            transport: Transport::Plain(Replayed::new(head, client)),
            version,
            record,
            client_chain: ProvenChain::default(),
            permit: Some(permit),
        }
    }

    /// Does the TLS handshake, and returns the connection within TLS.
    pub(crate) async fn tls(
        mut client: TcpStream,
        config: Arc<ServerConfig>,
        cost: HandshakeCost,
        replay: Vec<u8>,
        mut record: ConnectionRecord,
    ) -> Result<Self, (ConnectionRecord, CloseReason)> {
        let plane = Arc::clone(record.plane());
        let begun = tokio::time::Instant::now();
        let handshake = terminate::handshake(&mut client, config, replay);
        let handshake = gate::pass(cost, handshake);
        let Handshaken {
            mut session,
            negotiated,
            client_chain,
        } = match within(plane.limits.handshake_deadline, handshake).await {
            Ok(Ok(Ok(done))) => done,
            Ok(Err(crowded)) => return Err((record, crowded.into())),
            Ok(Ok(Err(error))) => return Err((record, error.into())),
            Err(_) => return Err((record, CloseReason::HandshakeTimeout)),
        };
        let version = match negotiated.alpn.as_deref() {
            Some(H2) => Version::Two,
            _ => Version::One,
        };
        let took = begun.elapsed().as_secs_f64();
        plane.metrics.handshake_seconds.observe(took);
        plane
            .metrics
            .handshake(negotiated.version, negotiated.resumed);
        let validation = record.listener().and_then(|of| of.validation.as_deref());
        // This is still the step of the handshake that has passed the gate last, and the cost of a handshake includes it.
        let client_chain = after_handshake(validation, client_chain, negotiated.resumed);
        record.set_negotiated(negotiated);
        let Some(client_chain) = client_chain else {
            terminate::refuse(&mut client, &mut session).await;
            return Err((record, CloseReason::NoLongerServed));
        };
        Ok(Self {
            transport: Transport::Tls(Box::new(TlsStream::new(client, session))),
            version,
            record,
            client_chain,
            permit: None,
        })
    }
}

/// Reads a plaintext connection until HTTP/2 with prior knowledge can be told from HTTP/1.1. `head` are the bytes that
/// were already read.
pub(crate) async fn sniff(
    client: &mut TcpStream,
    mut head: Vec<u8>,
    deadline: Duration,
) -> Result<(Vec<u8>, Version), CloseReason> {
    let read = async {
        if let Some(version) = told(&head) {
            return Ok((head, version));
        }
        head.reserve_exact(PREFACE.len());
        loop {
            let mut rest = client.take(PREFACE.len().saturating_sub(head.len()) as u64);
            match rest.read_buf(&mut head).await {
                Ok(0) if head.is_empty() => return Err(CloseReason::ClientSilent),
                Ok(0) => return Err(CloseReason::HelloIncomplete),
                Ok(_) => {}
                Err(_) => return Err(CloseReason::ClientReset),
            }
            if let Some(version) = told(&head) {
                return Ok((head, version));
            }
        }
    };
    match within(deadline, read).await {
        Ok(read) => read,
        Err(_) => Err(CloseReason::HelloTimeout),
    }
}

/// The version with which a connection begins, if that is clear already.
fn told(head: &[u8]) -> Option<Version> {
    if head.starts_with(PREFACE) {
        Some(Version::Two)
    } else {
        (!PREFACE.starts_with(head)).then_some(Version::One)
    }
}
