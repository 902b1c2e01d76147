//! Owns what a connection is between two of its steps: what the selection says to do next, a connection that is ready to
//! be relayed, and the way from the beginning to the end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::net::TcpStream;

use super::tunnel::Ending;
use crate::accesslog::ConnectionRecord;
use crate::challenge::Challenge;
use crate::gate::HandshakeCost;
use crate::http::Version;
use crate::plane::HelloPermit;
use crate::terminate::TlsSession;
use crate::upstream::TlsToBackend;

/// The next step of a connection, after the selection.
pub(super) enum Step {
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

/// The result of the beginning of a connection.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would cost every connection that is relayed"
)]
pub(super) enum Opened {
    Relayed(Open),
    /// The future that serves the connection to its end. Its box has no room for the state of the beginning.
    Otherwise(Pin<Box<dyn Future<Output = ()> + Send>>),
    Ended,
}

/// A connection until it is relayed, or to its end if it is served in another way. It is not an async function, because
/// the future of such a function would have room for both of these phases at once.
pub(super) enum Opening {
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
pub(super) struct Open {
    pub(super) client: TcpStream,
    pub(super) backend: TcpStream,
    pub(super) record: ConnectionRecord,
    pub(super) kind: Kind,
    pub(super) ending: Ending,
}

/// How a connection is relayed. Every idle connection has one of these. With two variants of which one is a box, it
/// needs little room.
pub(super) enum Kind {
    /// TLS that is passed through, or bytes of TCP, with the bytes that were already read.
    Passed(Box<[u8]>),
    Terminated(Box<TlsSession>),
}
