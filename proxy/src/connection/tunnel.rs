//! Owns the tunnels that need a box of their own, and the end of tunnels that this proxy cuts off.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::accesslog::ConnectionRecord;
use crate::cut::{Cut, linger, unless_cut};
use crate::deadline::within;
use crate::gate::{InTurn, Moves};
use crate::http::tunnel::Direction;
use crate::lifetime::{Watched, unless_over};
use crate::relay::{self, End, Moved};
use crate::side::{Side, lost};
use crate::terminate::{TlsSession, Tunnel};
use crate::upstream::TlsToBackend;

/// How long the orderly end of a tunnel may take.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);

/// Which sides of a tunnel end in order when this proxy cuts it off. These are the sides that speak TLS, because TLS
/// itself shows that something is missing.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    Both,
    Client,
    Neither,
}

/// Ends both sides of a tunnel that this proxy cuts off. Within TLS, the missing `close_notify` shows that the stream
/// is not whole, so the TCP connection can end in order. Plain TCP can show this only by a reset.
pub(super) async fn part(client: TcpStream, backend: TcpStream, ending: Ending) {
    match ending {
        Ending::Both => _ = tokio::join!(linger(client), linger(backend)),
        // The `Drop` of the tunnel has prepared this socket, so closing it sends a reset.
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
pub(super) async fn reencrypt(
    mut client: TcpStream,
    mut backend: Box<TlsToBackend>,
    mut session: Box<TlsSession>,
    mut record: ConnectionRecord,
) {
    let (line, lifetime) = (record.line(), record.lifetime());
    let (basis, moved) = (&record.basis, &mut record.moved);
    let tunnel = Tunnel::new(&mut client, &mut *backend, moved, &mut session);
    let tunnel = InTurn::new(tunnel, line);
    let ended = unless_cut(unless_over(lifetime, || basis.is_served(), tunnel)).await;
    if let Ok(Ok(end)) = ended {
        record.reason = end.into();
        return;
    }
    // The `Drop` of the tunnel has prepared this socket, so closing it sends a reset.
    drop(backend);
    if let Ok(Err(over)) = ended {
        record.reason = over.into();
        let _ = within(LAST_WORDS, linger(client)).await;
    } else {
        linger(client).await;
    }
}

/// Relays between a client of a TCP listener and a backend that is spoken to over TLS. `first` are bytes of the client
/// that were already read.
pub(super) async fn originate(
    mut client: TcpStream,
    mut backend: Box<TlsToBackend>,
    first: Vec<u8>,
    mut record: ConnectionRecord,
) {
    let (line, lifetime) = (record.line(), record.lifetime());
    let (basis, moved) = (&record.basis, &mut record.moved);
    let relayed = Originated {
        client: &mut client,
        backend: &mut backend,
        moved,
        up: Direction::after(first),
        down: Direction::default(),
        first: None,
    };
    let relayed = InTurn::new(relayed, line);
    match unless_cut(unless_over(lifetime, || basis.is_served(), relayed)).await {
        Ok(Ok(end)) => {
            record.reason = end.into();
            if matches!(end, End::Closed(_)) {
                return;
            }
        }
        Ok(Err(over)) => record.reason = over.into(),
        Err(Cut) => {}
    }
    // After an orderly end, a client without TLS would take what it has received for the whole stream.
    relay::reset(&client);
    relay::reset(backend.socket());
}

/// The relay of [`originate`].
struct Originated<'a> {
    client: &'a mut TcpStream,
    backend: &'a mut TlsToBackend,
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

impl Watched for Originated<'_> {
    fn is_stalled(&self) -> bool {
        self.up.is_stalled() || self.down.is_stalled()
    }

    fn lost(&self) -> Option<Side> {
        lost(self.client, self.backend.socket())
    }

    fn bytes(&self) -> u64 {
        self.moved()
    }
}

impl Future for Originated<'_> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        let Moved { up, down } = &mut *this.moved;
        let (client, backend) = (&mut *this.client, &mut *this.backend);
        let to_backend = match this.up.poll(client, backend, cx, &mut |n| *up += n) {
            Poll::Ready(Err(broken)) => {
                return Poll::Ready(End::Broken(broken.side(Side::Client)));
            }
            to_backend => to_backend.is_ready(),
        };
        if to_backend {
            this.first.get_or_insert(Side::Client);
        }
        let to_client = match this.down.poll(backend, client, cx, &mut |n| *down += n) {
            Poll::Ready(Err(broken)) => {
                return Poll::Ready(End::Broken(broken.side(Side::Backend)));
            }
            to_client => to_client.is_ready(),
        };
        if to_client {
            this.first.get_or_insert(Side::Backend);
        }
        match this.first {
            Some(first) if to_backend && to_client => Poll::Ready(End::Closed(first)),
            _ => Poll::Pending,
        }
    }
}
