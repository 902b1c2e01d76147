//! Owns terminated connections: the TLS handshake on the replayed bytes, and the tunnel between TLS on the client's
//! side and plain TCP, or TLS again, on the backend's side.
//!
//! rustls does the handshake. After that, only its key schedule is kept, for key updates, and its traffic keys go to
//! `crate::record`, which works in place. As in passthrough, an idle connection holds no buffer. There is one scratch
//! buffer for each thread. A connection keeps only the start of a record whose rest has not arrived, and bytes that the
//! receiver has not taken. TLS towards the backend is that of rustls, with its buffers.

mod backend;
mod handshake;

use std::cell::RefCell;
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{CommonState, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub(crate) use backend::BackendIo;
pub use handshake::{HandshakeError, handshake};

use crate::close_reason::CloseReason;
use crate::gate::{Moves, yield_now};
use crate::record::{Fatal, HEADER, Keys, MAX_PLAINTEXT, alert, content};
use crate::relay::{Moved, Rest, Side, TURN, reset};

/// Largest number of bytes of ciphertext that are read at once.
const INBOUND: usize = 128 * 1024;
/// Largest number of records that are read from the backend, sealed and written at once. This also bounds how much a
/// connection holds for a slow client.
const MAX_BATCH: usize = 4;
/// Largest number of bytes that a record adds to its plaintext.
const MAX_OVERHEAD: usize = 32;
/// A piece of plaintext that is shorter than this is moved next to the piece before it. A longer one becomes a slice of
/// its own in the write.
const MOVED_BELOW: usize = 2048;
/// Largest number of slices of one write.
const SLICES: usize = 16;
/// Largest number of reads from the client before other connections of the thread get their turn.
const ROUNDS_UP: usize = TURN / INBOUND;
/// The same for reads from the backend.
const ROUNDS_DOWN: usize = TURN / (MAX_BATCH * MAX_PLAINTEXT);
/// Largest number of key updates, warnings and similar records that a client may send for each [`CONTROL_PER`].
const MAX_CONTROL: u8 = 32;
/// Bytes of data after which a client may send another [`MAX_CONTROL`] such records. A single byte is not enough,
/// because each of these records costs more than a record with one byte.
const CONTROL_PER: usize = 64 * 1024;
/// Largest number of reads that drop bytes which a client has already sent, before its connection is closed.
const MAX_DISCARDS: usize = 8;
/// `key_update` with `update_not_requested` (RFC 8446 section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

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

/// What the handshake agreed on, for the log line.
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
    /// What `session` agreed on, after its handshake.
    pub(crate) fn of(session: &CommonState) -> Self {
        let tls13 = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        Self {
            version: if tls13 { "1.3" } else { "1.2" },
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            alpn: session.alpn_protocol().map(Into::into),
        }
    }
}

/// The TLS side of a terminated connection after its handshake.
pub struct TlsSession {
    /// The key schedule, for key updates.
    kernel: KernelConnection<ServerConnectionData>,
    opening: Keys,
    sealing: Keys,
    /// Bytes that were read after the client's last handshake record.
    leftover: Box<[u8]>,
    /// Number of control records since `data` was last 0.
    control: u8,
    /// Number of bytes of data, up to [`CONTROL_PER`].
    data: usize,
}

impl TlsSession {
    fn earn_control(&mut self, data: usize) {
        self.data += data;
        if self.data >= CONTROL_PER {
            self.data = 0;
            self.control = 0;
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
        let partial = std::mem::take(&mut session.leftover);
        let fresh = !partial.is_empty();
        let up = Up {
            partial,
            fresh,
            ..Up::default()
        };
        Self {
            client,
            backend,
            moved,
            session,
            up,
            down: Down::default(),
            first: None,
        }
    }
}

/// Why a direction cannot continue.
#[derive(Clone, Copy)]
enum Broken {
    Client,
    Backend,
    Protocol(Fatal),
    Exhausted,
}

impl From<Fatal> for Broken {
    fn from(fatal: Fatal) -> Self {
        Self::Protocol(fatal)
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

impl<B: BackendIo> Future for Tunnel<'_, B> {
    type Output = TunnelEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TunnelEnd> {
        let this = self.get_mut();
        let up = this.poll_up(cx);
        // This comes after `up`, which may have queued a record for the client.
        let down = this.poll_down(cx);
        let broken = match (up, down) {
            (Poll::Ready(Err(broken)), _) | (_, Poll::Ready(Err(broken))) => broken,
            (up, down) => {
                if this.first.is_none() {
                    this.first = match (this.up.state, this.down.state) {
                        (State::Open, State::Open) => None,
                        (State::Open, _) => Some(Side::Backend),
                        _ => Some(Side::Client),
                    };
                }
                return match (up, down, this.first) {
                    (Poll::Ready(_), Poll::Ready(_), Some(first)) => {
                        Poll::Ready(if this.up.truncated {
                            TunnelEnd::Truncated(Side::Client)
                        } else if this.down.truncated {
                            TunnelEnd::Truncated(Side::Backend)
                        } else {
                            TunnelEnd::Closed(first)
                        })
                    }
                    _ => Poll::Pending,
                };
            }
        };
        Poll::Ready(match broken {
            Broken::Client => {
                reset(this.backend.socket());
                TunnelEnd::Broken(Side::Client)
            }
            Broken::Backend => {
                reset(this.client);
                TunnelEnd::Broken(Side::Backend)
            }
            Broken::Protocol(Fatal(description)) => {
                reset(this.backend.socket());
                this.send_last(&[2, description]);
                TunnelEnd::Protocol(description)
            }
            Broken::Exhausted => {
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
    /// The start of a record whose rest has not arrived.
    partial: Box<[u8]>,
    /// Whether `partial` is what the handshake left over. Then it may contain whole records.
    fresh: bool,
    /// Plaintext that the backend has not taken.
    rest: Option<Rest>,
    state: State,
    /// Whether the client ended without `close_notify`. Then a backend with TLS does not get one either.
    truncated: bool,
}

/// The direction from backend to client.
#[derive(Default)]
struct Down {
    /// Records that the client has not taken.
    rest: Option<Rest>,
    /// Records without data. They are sent before the next record with data.
    control: Vec<u8>,
    /// Binary logarithm of the number of records that are read at once.
    batch: u8,
    state: State,
    /// Whether the backend ended without `close_notify`. Then the client does not get one either.
    truncated: bool,
}

/// The records of one read, opened.
#[derive(Default)]
struct Opened {
    /// The ranges with plaintext, in order.
    slices: [Range<usize>; SLICES],
    used: usize,
    /// Number of bytes of plaintext.
    total: usize,
    /// Number of bytes of whole records.
    consumed: usize,
    /// Whether the client sent `close_notify`.
    closed: bool,
}

impl Opened {
    /// Adds the plaintext at `at`. If it is short, or if there are too many slices, it is moved next to the one before
    /// it.
    fn push(&mut self, bytes: &mut [u8], at: Range<usize>) {
        self.total += at.len();
        let full = self.used == SLICES;
        let last = self
            .used
            .checked_sub(1)
            .and_then(|last| self.slices.get_mut(last));
        match last {
            Some(last) if full || at.len() < MOVED_BELOW => {
                let end = last.end + at.len();
                bytes.copy_within(at, last.end);
                last.end = end;
            }
            _ => {
                if let Some(place) = self.slices.get_mut(self.used) {
                    *place = at;
                    self.used += 1;
                }
            }
        }
    }

    /// Writes the plaintext, and returns the part that is not taken at once.
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Option<Rest>, Broken> {
        if self.total == 0 {
            return Ok(None);
        }
        let parts = || {
            let used = self.slices.iter().take(self.used);
            used.map(|at| bytes.get(at.clone()).unwrap_or_default())
        };
        let mut vector = [IoSlice::new(&[]); SLICES];
        for (place, part) in vector.iter_mut().zip(parts()) {
            *place = IoSlice::new(part);
        }
        let vector = vector.get(..self.used).unwrap_or_default();
        let mut written = match Pin::new(to).poll_write_vectored(cx, vector) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) => return Err(Broken::Backend),
            Poll::Pending => 0,
        };
        if written == self.total {
            return Ok(None);
        }
        let mut rest = Vec::with_capacity(self.total.saturating_sub(written));
        for part in parts() {
            let skipped = written.min(part.len());
            written -= skipped;
            rest.extend_from_slice(part.get(skipped..).unwrap_or_default());
        }
        Ok(Rest::new(rest.into_boxed_slice()))
    }
}

/// This would be a bug, because the scratch buffers are large enough for everything that is put into them.
const NO_ROOM: Broken = Broken::Protocol(Fatal(alert::INTERNAL_ERROR));

impl<B: BackendIo> Tunnel<'_, B> {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.up.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..ROUNDS_UP {
            if let Some(rest) = &mut self.up.rest {
                ready!(rest.poll_write(cx, self.backend)).map_err(|_| Broken::Backend)?;
                self.up.rest = None;
            }
            // TLS towards the backend keeps sealed records until the socket has room.
            let flushed = Pin::new(&mut *self.backend).poll_flush(cx);
            ready!(flushed).map_err(|_| Broken::Backend)?;
            if self.up.state == State::Ending {
                // A `close_notify` of this proxy would claim that the data are complete, but they may be truncated.
                let closed = if self.up.truncated {
                    self.backend.poll_truncate(cx)
                } else {
                    Pin::new(&mut *self.backend).poll_shutdown(cx)
                };
                ready!(closed).map_err(|_| Broken::Backend)?;
                self.up.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            ready!(IN.with_borrow_mut(|scratch| self.poll_open(cx, scratch)))?;
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Reads from the client, opens the whole records, and passes them on.
    fn poll_open(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), Broken>> {
        let held = self.up.partial.len();
        let (front, back) = scratch.split_at_mut_checked(held).ok_or(NO_ROOM)?;
        let mut read = 0;
        if !std::mem::take(&mut self.up.fresh) {
            let mut buffer = ReadBuf::new(back);
            let ready = Pin::new(&mut *self.client).poll_read(cx, &mut buffer);
            ready!(ready).map_err(|_| Broken::Client)?;
            read = buffer.filled().len();
            if read == 0 {
                // The stream ends within a record, so something is certainly missing.
                if held > 0 {
                    return Poll::Ready(Err(Broken::Client));
                }
                self.up.state = State::Ending;
                self.up.truncated = true;
                return Poll::Ready(Ok(()));
            }
        }
        front.copy_from_slice(&self.up.partial);
        let bytes = scratch.get_mut(..held + read).ok_or(NO_ROOM)?;
        let mut opened = Opened::default();
        self.open_records(bytes, &mut opened)?;
        self.moved.up += opened.total as u64;
        self.up.rest = opened.poll_write(cx, bytes, self.backend)?;
        if opened.closed {
            self.up.partial = Box::default();
            self.up.state = State::Ending;
        } else {
            self.up.partial = bytes.get(opened.consumed..).unwrap_or_default().into();
        }
        Poll::Ready(Ok(()))
    }

    fn open_records(&mut self, bytes: &mut [u8], opened: &mut Opened) -> Result<(), Broken> {
        while !opened.closed {
            let record = bytes.get_mut(opened.consumed..).unwrap_or_default();
            let Some((header, rest)) = record.split_first_chunk_mut::<HEADER>() else {
                break;
            };
            self.session.opening.check(*header)?;
            let length = payload_length(*header);
            let Some(payload) = rest.get_mut(..length) else {
                break;
            };
            let (kind, at) = self.session.opening.open(*header, payload)?;
            match kind {
                content::DATA if !at.is_empty() => {
                    self.session.earn_control(at.len());
                    let start = opened.consumed + HEADER;
                    opened.push(bytes, start + at.start..start + at.end);
                }
                content::DATA => self.count_control()?,
                _ => {
                    let message = payload.get(at).unwrap_or_default();
                    opened.closed = self.control_record(kind, message)?;
                }
            }
            opened.consumed += HEADER + length;
        }
        Ok(())
    }

    /// Handles an alert or handshake message. Returns true if it is `close_notify`.
    fn control_record(&mut self, kind: u8, message: &[u8]) -> Result<bool, Broken> {
        let tls13 = self.session.sealing.can_update();
        self.count_control()?;
        match (kind, message) {
            (content::ALERT, [_, alert::CLOSE_NOTIFY]) => Ok(true),
            (content::ALERT, [_, alert::USER_CANCELED]) => Ok(false),
            (content::ALERT, [1, _]) if !tls13 => Ok(false),
            // This is a fatal alert of the client.
            (content::ALERT, [_, _]) => Err(Broken::Client),
            (content::ALERT, _) => Err(Fatal(alert::DECODE_ERROR).into()),
            (content::HANDSHAKE, [24, 0, 0, 1, request @ (0 | 1)]) if tls13 => {
                let secret = self.session.kernel.update_rx_secret().ok();
                self.session.opening = self.keys(secret)?;
                // One answer is enough for all requests before it (RFC 8446 section 4.6.3). So a client that does not
                // read cannot make answers pile up.
                if *request == 1 && self.down.control.is_empty() {
                    self.update_sealing()?;
                }
                Ok(false)
            }
            // The client wants to renegotiate, which the server may decline (RFC 5246 section 7.2.2).
            (content::HANDSHAKE, [1, ..]) if !tls13 => {
                if self.down.control.is_empty() {
                    self.queue(content::ALERT, &[1, alert::NO_RENEGOTIATION])?;
                }
                Ok(false)
            }
            _ => Err(Fatal(alert::UNEXPECTED_MESSAGE).into()),
        }
    }

    fn count_control(&mut self) -> Result<(), Broken> {
        self.session.control += 1;
        if self.session.control > MAX_CONTROL {
            return Err(Fatal(alert::UNEXPECTED_MESSAGE).into());
        }
        Ok(())
    }

    fn keys(
        &self,
        secret: Option<(u64, rustls::ConnectionTrafficSecrets)>,
    ) -> Result<Keys, Broken> {
        secret
            .and_then(|secret| Keys::new(self.session.kernel.protocol_version(), secret))
            .ok_or(Fatal(alert::INTERNAL_ERROR).into())
    }

    /// Changes the keys towards the client. The client is told so in a record under the present keys.
    fn update_sealing(&mut self) -> Result<(), Broken> {
        if self.down.state != State::Open {
            return Ok(());
        }
        self.queue(content::HANDSHAKE, &KEY_UPDATE)?;
        let secret = self.session.kernel.update_tx_secret().ok();
        self.session.sealing = self.keys(secret)?;
        Ok(())
    }

    /// Seals a record without data, and queues it after the records that are already sealed.
    fn queue(&mut self, kind: u8, message: &[u8]) -> Result<(), Broken> {
        // Nothing may follow close_notify.
        if self.down.state != State::Open {
            return Ok(());
        }
        let record = self.seal_control(kind, message).ok_or(NO_ROOM)?;
        self.down.control.extend_from_slice(&record);
        Ok(())
    }

    fn seal_control(&mut self, kind: u8, message: &[u8]) -> Option<Vec<u8>> {
        let keys = &mut self.session.sealing;
        let mut record = vec![0; keys.head() + message.len() + keys.tail()];
        record
            .get_mut(keys.head()..)?
            .get_mut(..message.len())?
            .copy_from_slice(message);
        keys.seal(kind, &mut record, message.len())?;
        Some(record)
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.down.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..ROUNDS_DOWN {
            while self.down.rest.is_some() || !self.down.control.is_empty() {
                let control = &mut self.down.control;
                let next = || Rest::new(std::mem::take(control).into_boxed_slice());
                self.down.rest = self.down.rest.take().or_else(next);
                if let Some(rest) = &mut self.down.rest {
                    ready!(rest.poll_write(cx, self.client)).map_err(|_| Broken::Client)?;
                    self.down.rest = None;
                }
            }
            if self.down.state == State::Ending {
                let closed = Pin::new(&mut *self.client).poll_shutdown(cx);
                ready!(closed).map_err(|_| Broken::Client)?;
                self.down.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            if self.session.sealing.is_exhausted() {
                if !self.session.sealing.can_update() {
                    return Poll::Ready(Err(Broken::Exhausted));
                }
                self.update_sealing()?;
                continue;
            }
            ready!(OUT.with_borrow_mut(|scratch| self.poll_seal(cx, scratch)))?;
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Reads from the backend to the place where the bytes are sealed, seals them, and passes them on.
    fn poll_seal(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), Broken>> {
        let keys = &mut self.session.sealing;
        let head = keys.head();
        let stride = head + MAX_PLAINTEXT + keys.tail();
        let batch = 1usize << self.down.batch;
        let mut places = scratch
            .chunks_exact_mut(stride)
            .filter_map(|record| record.get_mut(head..head + MAX_PLAINTEXT));
        let mut buffer = ReadBuf::new(places.next().ok_or(NO_ROOM)?);
        match ready!(Pin::new(&mut *self.backend).poll_read(cx, &mut buffer)) {
            Ok(()) => {}
            // A `close_notify` of this proxy would claim that the data are complete, but they may be truncated.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.down.truncated = true;
                self.down.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            Err(_) => return Poll::Ready(Err(Broken::Backend)),
        }
        let mut read = buffer.filled().len();
        if read == 0 {
            self.queue(content::ALERT, &[1, alert::CLOSE_NOTIFY])?;
            self.down.state = State::Ending;
            return Poll::Ready(Ok(()));
        }
        if read == MAX_PLAINTEXT && batch > 1 {
            let mut vector: [IoSliceMut<'_>; MAX_BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut used = 0;
            for (slot, place) in vector.iter_mut().zip(places.take(batch - 1)) {
                *slot = IoSliceMut::new(place);
                used += 1;
            }
            let vector = vector.get_mut(..used).unwrap_or_default();
            match self.backend.try_read_more(vector) {
                Ok(more) => read += more,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(Err(Broken::Backend)),
            }
        }
        let mut sealed = 0;
        let mut left = read;
        for record in scratch.chunks_exact_mut(stride) {
            let length = left.min(MAX_PLAINTEXT);
            if length == 0 {
                break;
            }
            sealed += keys.seal(content::DATA, record, length).ok_or(NO_ROOM)?;
            left -= length;
        }
        self.moved.down += read as u64;
        let records = scratch.get(..sealed).ok_or(NO_ROOM)?;
        let written = match Pin::new(&mut *self.client).poll_write(cx, records) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Client)),
            Poll::Pending => 0,
        };
        self.down.rest = Rest::new(records.get(written..).unwrap_or_default().into());
        if self.down.rest.is_some() {
            self.down.batch = self.down.batch.saturating_sub(1);
        } else if read == batch * MAX_PLAINTEXT && batch < MAX_BATCH {
            self.down.batch += 1;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the alert that ends the connection, if it can go at once.
    fn send_last(&mut self, message: &[u8]) {
        if self.down.rest.is_some() || self.down.state != State::Open {
            return;
        }
        let mut bytes = std::mem::take(&mut self.down.control);
        if let Some(record) = self.seal_control(content::ALERT, message) {
            bytes.extend_from_slice(&record);
            let _ = self.client.try_write(&bytes);
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
