//! Owns terminated connections: the TLS handshake on the replayed bytes, and the tunnel between TLS on the client's
//! side and plain TCP, or TLS again, on the backend's side.
//!
//! rustls does the handshake. After that, only its key schedule is kept, for key updates, and its traffic keys go to
//! `crate::record`, which works in place. As in passthrough, an idle connection holds no buffer. There is one scratch
//! buffer for each thread. A connection keeps only the start of a record whose rest has not arrived, and bytes that the
//! receiver has not taken. TLS towards the backend is that of rustls, with its buffers.

mod backend;
mod handshake;
mod session;
mod stream;

use std::cell::RefCell;
use std::future::Future;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::{CommonState, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub(crate) use backend::BackendIo;
pub(crate) use handshake::refuse;
pub use handshake::{HandshakeError, Handshaken, handshake};
pub use session::TlsSession;
pub(crate) use stream::TlsStream;

use crate::close_reason::CloseReason;
use crate::gate::{Moves, yield_now};
use crate::lifetime::Watched;
use crate::record::{Fatal, HEADER, MAX_PLAINTEXT, alert};
use crate::relay::{Moved, Rest, TURN, reset};
use crate::side::{Side, bound_unsent, had_ended, lost};

use session::{NO_ROOM, OpenedRecords, SLICES, Unreadable};

/// Largest number of bytes of ciphertext that are read at once.
const INBOUND: usize = 128 * 1024;
/// Largest number of records that are read from the backend, sealed and written at once. This also bounds how much a
/// connection holds for a slow client.
const MAX_BATCH: usize = 4;
/// Largest number of bytes that a record adds to its plaintext.
const MAX_OVERHEAD: usize = 32;
/// Largest number of reads from the client before other connections of the thread get their turn.
const ROUNDS_UP: usize = TURN / INBOUND;
/// The same for reads from the backend.
const ROUNDS_DOWN: usize = TURN / (MAX_BATCH * MAX_PLAINTEXT);
/// Largest number of reads that drop bytes which a client has already sent, before its connection is closed.
const MAX_DISCARDS: usize = 8;
/// Most bytes that the kernel holds for a side whose window is closed.
const MOST_UNSENT: u32 = 512 * 1024;
thread_local! {
    static IN: RefCell<Box<[u8]>> = RefCell::new(vec![0; INBOUND].into());
    static OUT: RefCell<Box<[u8]>> =
        RefCell::new(vec![0; MAX_BATCH * (MAX_PLAINTEXT + MAX_OVERHEAD)].into());
}

/// Sets what this module needs in a configuration: the hand-over of traffic keys, and no early data, which could be
/// replayed to the backend.
pub fn prepare(config: &mut ServerConfig) {
    config.enable_secret_extraction = true;
    config.max_early_data_size = 0;
}

/// The parameters that the handshake agreed on, for the log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiatedTls {
    /// The version, `1.2` or `1.3`.
    pub version: &'static str,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// The application protocol.
    pub alpn: Option<Box<[u8]>>,
}

impl NegotiatedTls {
    /// The parameters that `session` agreed on, after its handshake.
    pub(crate) fn of(session: &CommonState) -> Self {
        let tls13 = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        Self {
            version: if tls13 { "1.3" } else { "1.2" },
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            alpn: session.alpn_protocol().map(Into::into),
        }
    }
}

fn payload_length([_, _, _, high, low]: [u8; HEADER]) -> usize {
    usize::from(u16::from_be_bytes([high, low]))
}

/// Reads and drops bytes that have arrived, so that closing the socket does not send a reset. If the client sends
/// without end, only some of them are read.
fn discard_unread(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) {
    IN.with_borrow_mut(|scratch| {
        for _ in 0..MAX_DISCARDS {
            if !read(scratch).is_ok_and(|count| count > 0) {
                return;
            }
        }
    });
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both directions were closed in order. The value is the side that closed first.
    Closed(Side),
    /// The same as `Closed`, but this side left without `close_notify`, so its data may be truncated.
    Truncated(Side),
    /// The connection of one side broke, and the other side was told by a reset.
    Broken(Side),
    /// The client broke the protocol, and got this alert.
    Protocol(u8),
    /// The keys have protected as many records as they may, and cannot be updated before TLS 1.3. The client got
    /// `close_notify`, as with rustls.
    Exhausted,
}

/// Relays between a terminated client and its backend until both directions are closed.
pub struct Tunnel<'a, B: BackendIo = TcpStream> {
    client: &'a mut TcpStream,
    backend: &'a mut B,
    moved: &'a mut Moved,
    session: &'a mut TlsSession,
    up: Up,
    down: Down,
    first: Option<Side>,
}

impl<'a, B: BackendIo> Tunnel<'a, B> {
    /// A tunnel. Its byte counts are of plaintext, and are right even if the future is dropped.
    pub fn new(
        client: &'a mut TcpStream,
        backend: &'a mut B,
        moved: &'a mut Moved,
        session: &'a mut TlsSession,
    ) -> Self {
        bound_unsent(client, MOST_UNSENT);
        bound_unsent(backend.socket(), MOST_UNSENT);
        Self {
            client,
            backend,
            moved,
            session,
            up: Up::default(),
            down: Down::default(),
            first: None,
        }
    }
}

/// Why a direction cannot continue.
#[derive(Clone, Copy)]
enum TunnelError {
    Client,
    /// Reading from the backend or writing to it failed like this.
    Backend(ErrorKind),
    Protocol(Fatal),
    Exhausted,
}

impl TunnelError {
    #[allow(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
    fn of_backend(error: std::io::Error) -> Self {
        Self::Backend(error.kind())
    }
}

impl From<Fatal> for TunnelError {
    fn from(fatal: Fatal) -> Self {
        Self::Protocol(fatal)
    }
}

impl From<Unreadable> for TunnelError {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Client(_) => Self::Client,
            Unreadable::Protocol(fatal) => Self::Protocol(fatal),
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The source has ended. The rest has to be delivered, and the end passed on.
    Ending,
    Ended,
}

impl<B: BackendIo> Moves for Tunnel<'_, B> {
    fn moved(&self) -> u64 {
        self.moved.up + self.moved.down
    }
}

impl<B: BackendIo> Watched for Tunnel<'_, B> {
    fn is_stalled(&self) -> bool {
        self.up.rest.is_some() || self.up.flushing || self.session.is_stalled()
    }

    fn lost(&self) -> Option<Side> {
        lost(self.client, self.backend.socket())
    }

    fn bytes(&self) -> u64 {
        self.moved()
    }
}

impl<B: BackendIo> Future for Tunnel<'_, B> {
    type Output = TunnelEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TunnelEnd> {
        let this = self.get_mut();
        let polled = match this.poll_up(cx) {
            Poll::Ready(Err(broken)) => {
                if let TunnelError::Backend(failed_write) = broken {
                    // The bytes that the backend sent before its reset are still passed on, and the reset follows in any case.
                    let _ = this.poll_down(cx, !had_ended(failed_write));
                }
                Err(broken)
            }
            // This comes after `up`, which may have queued a record for the client.
            up => match this.poll_down(cx, false) {
                Poll::Ready(Err(broken)) => Err(broken),
                down => Ok(up.is_ready() && down.is_ready()),
            },
        };
        let broken = match polled {
            Err(broken) => broken,
            Ok(both_ended) => {
                if this.first.is_none() {
                    this.first = match (this.up.state, this.down.state) {
                        (State::Open, State::Open) => None,
                        (State::Open, _) => Some(Side::Backend),
                        _ => Some(Side::Client),
                    };
                }
                return match this.first {
                    Some(first) if both_ended => Poll::Ready(if this.up.truncated {
                        TunnelEnd::Truncated(Side::Client)
                    } else if this.down.truncated {
                        TunnelEnd::Truncated(Side::Backend)
                    } else {
                        TunnelEnd::Closed(first)
                    }),
                    _ => Poll::Pending,
                };
            }
        };
        Poll::Ready(match broken {
            TunnelError::Client => {
                reset(this.backend.socket());
                TunnelEnd::Broken(Side::Client)
            }
            TunnelError::Backend(_) => {
                reset(this.client);
                TunnelEnd::Broken(Side::Backend)
            }
            TunnelError::Protocol(Fatal(description)) => {
                reset(this.backend.socket());
                this.send_last(&[2, description]);
                TunnelEnd::Protocol(description)
            }
            TunnelError::Exhausted => {
                reset(this.backend.socket());
                this.send_last(&[1, alert::CLOSE_NOTIFY]);
                TunnelEnd::Exhausted
            }
        })
    }
}

impl<B: BackendIo> Drop for Tunnel<'_, B> {
    /// Resets the backend's connection if the tunnel did not end in order. This includes the end of draining and a
    /// panic. Plain TCP has no other way to tell the backend that it did not get everything.
    fn drop(&mut self) {
        if self.up.state != State::Ended {
            reset(self.backend.socket());
        }
    }
}

/// The direction from client to backend.
#[derive(Default)]
struct Up {
    /// Plaintext that the backend has not taken.
    rest: Option<Rest>,
    /// Whether a TLS backend has not taken what is sealed.
    flushing: bool,
    state: State,
    /// Whether the client ended without `close_notify`. Then a backend with TLS does not get one either.
    truncated: bool,
}

/// The direction from backend to client.
#[derive(Default)]
struct Down {
    /// Binary logarithm of the number of records that are read at once.
    batch: u8,
    state: State,
    /// Whether the backend ended without `close_notify`. Then the client does not get one either.
    truncated: bool,
}

/// Writes the opened plaintext in `bytes`, and returns the part that is not taken at once.
fn poll_write_opened(
    cx: &mut Context<'_>,
    opened: &OpenedRecords,
    bytes: &[u8],
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<Rest>, TunnelError> {
    if opened.total == 0 {
        return Ok(None);
    }
    let mut vector = [IoSlice::new(&[]); SLICES];
    let mut used = 0;
    for (place, part) in vector.iter_mut().zip(opened.slices(bytes)) {
        *place = IoSlice::new(part);
        used += 1;
    }
    let vector = vector.get(..used).unwrap_or_default();
    let written = match Pin::new(to).poll_write_vectored(cx, vector) {
        Poll::Ready(Ok(written)) => written,
        Poll::Ready(Err(error)) => return Err(TunnelError::of_backend(error)),
        Poll::Pending => 0,
    };
    if written == opened.total {
        return Ok(None);
    }
    Ok(opened.after(bytes, written))
}

impl<B: BackendIo> Tunnel<'_, B> {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelError>> {
        if self.up.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..ROUNDS_UP {
            if let Some(rest) = &mut self.up.rest {
                ready!(rest.poll_write(cx, self.backend)).map_err(TunnelError::of_backend)?;
                self.up.rest = None;
            }
            // TLS towards the backend keeps sealed records until the socket has room.
            let flushed = Pin::new(&mut *self.backend).poll_flush(cx);
            self.up.flushing = flushed.is_pending();
            ready!(flushed).map_err(TunnelError::of_backend)?;
            if self.up.state == State::Ending {
                // A `close_notify` of this proxy would claim that the data are complete, but they may be truncated.
                let closed = if self.up.truncated {
                    self.backend.poll_truncate(cx)
                } else {
                    Pin::new(&mut *self.backend).poll_shutdown(cx)
                };
                ready!(closed).map_err(TunnelError::of_backend)?;
                self.up.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            ready!(IN.with_borrow_mut(|scratch| self.poll_open(cx, scratch)))?;
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Reads from the client, opens the whole records, and passes them on.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Poll<Result<(), TunnelError>> {
        let opened = ready!(self.session.poll_open(cx, self.client, scratch))?;
        self.moved.up += opened.total as u64;
        self.up.rest = poll_write_opened(cx, &opened, scratch, self.backend)?;
        self.up.truncated = opened.truncated;
        if opened.closed || opened.truncated {
            self.up.state = State::Ending;
        }
        Poll::Ready(Ok(()))
    }

    /// Moves what the backend sends. `is_reset` says whether a write has met the backend's reset.
    fn poll_down(&mut self, cx: &mut Context<'_>, is_reset: bool) -> Poll<Result<(), TunnelError>> {
        if self.down.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..ROUNDS_DOWN {
            let sent = self.session.poll_send(cx, self.client);
            ready!(sent).map_err(|_| TunnelError::Client)?;
            if self.down.state == State::Ending {
                let closed = Pin::new(&mut *self.client).poll_shutdown(cx);
                ready!(closed).map_err(|_| TunnelError::Client)?;
                self.down.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            if self.session.sealing.is_exhausted() {
                if !self.session.sealing.can_update() {
                    return Poll::Ready(Err(TunnelError::Exhausted));
                }
                self.session.update_sealing()?;
                continue;
            }
            ready!(OUT.with_borrow_mut(|scratch| self.poll_seal(cx, scratch, is_reset)))?;
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Reads from the backend to the place where the bytes are sealed, seals them, and passes them on. After a reset, an
    /// end counts only if the backend has proven it.
    fn poll_seal(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        is_reset: bool,
    ) -> Poll<Result<(), TunnelError>> {
        let batch = 1usize << self.down.batch;
        let mut places = self.session.places(scratch);
        let mut buffer = ReadBuf::new(places.next().ok_or(NO_ROOM)?);
        match ready!(Pin::new(&mut *self.backend).poll_read(cx, &mut buffer)) {
            Ok(()) => {}
            // A `close_notify` of this proxy would claim that the data are complete, but they may be truncated.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !is_reset => {
                self.down.truncated = true;
                self.session.truncate();
                self.down.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            Err(error) => return Poll::Ready(Err(TunnelError::of_backend(error))),
        }
        let mut read = buffer.filled().len();
        if read == 0 && is_reset && !B::PROVES_ITS_END {
            return Poll::Ready(Err(TunnelError::Backend(ErrorKind::ConnectionReset)));
        }
        if read == 0 {
            self.session.close()?;
            self.down.state = State::Ending;
            return Poll::Ready(Ok(()));
        }
        if read == MAX_PLAINTEXT && batch > 1 {
            let mut vector: [IoSliceMut<'_>; MAX_BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut used = 0;
            for (slot, place) in vector.iter_mut().zip(places.by_ref().take(batch - 1)) {
                *slot = IoSliceMut::new(place);
                used += 1;
            }
            let vector = vector.get_mut(..used).unwrap_or_default();
            match self.backend.try_read_more(vector) {
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(TunnelError::of_backend(error))),
            }
        }
        drop(places);
        self.moved.down += read as u64;
        let sent = self.session.seal_and_send(cx, self.client, scratch, read)?;
        if !sent.map_err(|_| TunnelError::Client)? {
            self.down.batch = self.down.batch.saturating_sub(1);
        } else if read == batch * MAX_PLAINTEXT && batch < MAX_BATCH {
            self.down.batch += 1;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the alert that ends the connection, if it can go at once.
    fn send_last(&mut self, message: &[u8]) {
        if self.session.send_last(self.client, message) {
            discard_unread(|buffer| self.client.try_read(buffer));
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

#[cfg(test)]
mod tests;
