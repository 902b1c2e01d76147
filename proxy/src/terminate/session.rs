//! Owns the TLS side of a connection after its handshake: the records of the client, opened where they were read, and
//! the records for it, sealed where they are written from.
//!
//! An idle session holds no buffer. The caller lends one, which all connections of a thread share. A session keeps only
//! the start of a record whose rest has not arrived, and sealed records that the client has not taken.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::payload_length;
use crate::record::{Fatal, HEADER, Keys, MAX_PLAINTEXT, alert, content};
use crate::relay::Rest;

/// A piece of plaintext that is shorter than this is moved next to the piece before it. A longer one becomes a slice of
/// its own.
const MOVED_BELOW: usize = 2048;
/// Largest number of slices of plaintext of one read.
pub(super) const SLICES: usize = 16;
/// Largest number of key updates, warnings and similar records that a client may send for each [`CONTROL_PER`].
pub(super) const MAX_CONTROL: u8 = 32;
/// Bytes of data after which a client may send another [`MAX_CONTROL`] such records. A single byte is not enough,
/// because each of these records costs more than a record with one byte.
pub(super) const CONTROL_PER: usize = 64 * 1024;
/// `key_update` with `update_not_requested` (RFC 8446 section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// This would be a bug, because the scratch buffers are large enough for everything that is put into them.
pub(super) const NO_ROOM: Fatal = Fatal(alert::INTERNAL_ERROR);

/// The TLS side of a terminated connection after its handshake.
pub struct TlsSession {
    /// The key schedule, for key updates.
    kernel: KernelConnection<ServerConnectionData>,
    opening: Keys,
    pub(super) sealing: Keys,
    /// The start of a record whose rest has not arrived.
    pub(super) partial: Box<[u8]>,
    /// Whether `partial` is what the handshake left over. Then it may contain whole records.
    pub(super) fresh: bool,
    /// Number of control records since `data` was last 0.
    control: u8,
    /// Number of bytes of data, up to [`CONTROL_PER`].
    data: usize,
    /// Records that the client has not taken.
    rest: Option<Rest>,
    /// Session tickets. They wait for whatever record is sent first, and go before it.
    tickets: Vec<u8>,
    /// Records without data. They are sent before the next record with data.
    pub(super) queued: Vec<u8>,
    /// Whether no record may follow those that are sealed.
    ended: bool,
}

/// Why nothing more can be read from a client.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Its connection broke, or it sent a fatal alert.
    Client(io::Error),
    /// It broke the protocol, and is to get this alert.
    Protocol(Fatal),
}

impl From<Fatal> for Unreadable {
    fn from(fatal: Fatal) -> Self {
        Self::Protocol(fatal)
    }
}

/// The records of one read, opened.
#[derive(Default)]
pub(super) struct OpenedRecords {
    /// The ranges with plaintext, in order.
    slices: [Range<usize>; SLICES],
    used: usize,
    /// Number of bytes of plaintext.
    pub(super) total: usize,
    /// Number of bytes of whole records.
    consumed: usize,
    /// Whether the client sent `close_notify`.
    pub(super) closed: bool,
    /// Whether the client ended its connection without it.
    pub(super) truncated: bool,
}

impl OpenedRecords {
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

    /// The plaintext in `bytes`, in order. There are at most [`SLICES`] slices.
    pub(super) fn slices<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let used = self.slices.iter().take(self.used);
        used.map(|at| bytes.get(at.clone()).unwrap_or_default())
    }

    /// The plaintext in `bytes` after the first `skipped` bytes.
    pub(super) fn after(&self, bytes: &[u8], mut skipped: usize) -> Option<Rest> {
        let mut rest = Vec::with_capacity(self.total.saturating_sub(skipped));
        for part in self.slices(bytes) {
            let skip = skipped.min(part.len());
            skipped -= skip;
            rest.extend_from_slice(part.get(skip..).unwrap_or_default());
        }
        Rest::new(rest.into_boxed_slice())
    }
}

impl TlsSession {
    /// Takes over from rustls. `leftover` are bytes that were read after the client's last handshake record, and
    /// `tickets` the records of session tickets, sealed and not sent. `None` means that version or cipher are not known
    /// here, or that the configuration does not hand over its keys.
    pub(super) fn new(
        tls: UnbufferedServerConnection,
        leftover: Vec<u8>,
        mut tickets: Vec<u8>,
    ) -> Option<Self> {
        // An idle connection keeps them.
        tickets.shrink_to_fit();
        let version = tls.protocol_version()?;
        let (secrets, kernel) = tls.dangerous_into_kernel_connection().ok()?;
        Some(Self {
            kernel,
            opening: Keys::new(version, secrets.rx)?,
            sealing: Keys::new(version, secrets.tx)?,
            fresh: !leftover.is_empty(),
            partial: leftover.into_boxed_slice(),
            control: 0,
            data: 0,
            rest: None,
            tickets,
            queued: Vec::new(),
            ended: false,
        })
    }

    /// Reads from the client into `scratch`, and opens the whole records there.
    pub(super) fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncRead + Unpin),
        scratch: &mut [u8],
    ) -> Poll<Result<OpenedRecords, Unreadable>> {
        let held = self.partial.len();
        let (front, back) = scratch.split_at_mut_checked(held).ok_or(NO_ROOM)?;
        let mut read = 0;
        let mut opened = OpenedRecords::default();
        if !std::mem::take(&mut self.fresh) {
            let mut buffer = ReadBuf::new(back);
            ready!(Pin::new(client).poll_read(cx, &mut buffer)).map_err(Unreadable::Client)?;
            read = buffer.filled().len();
            if read == 0 {
                // The stream ends within a record, so something is certainly missing.
                if held > 0 {
                    let cut = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(Unreadable::Client(cut)));
                }
                opened.truncated = true;
                return Poll::Ready(Ok(opened));
            }
        }
        front.copy_from_slice(&self.partial);
        let bytes = scratch.get_mut(..held + read).ok_or(NO_ROOM)?;
        self.open_records(bytes, &mut opened)?;
        self.partial = if opened.closed {
            Box::default()
        } else {
            bytes.get(opened.consumed..).unwrap_or_default().into()
        };
        Poll::Ready(Ok(opened))
    }

    fn open_records(
        &mut self,
        bytes: &mut [u8],
        opened: &mut OpenedRecords,
    ) -> Result<(), Unreadable> {
        while !opened.closed {
            let record = bytes.get_mut(opened.consumed..).unwrap_or_default();
            let Some((header, rest)) = record.split_first_chunk_mut::<HEADER>() else {
                break;
            };
            self.opening.check(*header)?;
            let length = payload_length(*header);
            let Some(payload) = rest.get_mut(..length) else {
                break;
            };
            let (kind, at) = self.opening.open(*header, payload)?;
            match kind {
                content::DATA if !at.is_empty() => {
                    self.earn_control(at.len());
                    // `push` moves plaintext to the front only, where the bytes are opened already. So it cannot overwrite
                    // a record that still has to be opened.
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
    pub(super) fn control_record(&mut self, kind: u8, message: &[u8]) -> Result<bool, Unreadable> {
        let tls13 = self.sealing.can_update();
        self.count_control()?;
        match (kind, message) {
            (content::ALERT, [_, alert::CLOSE_NOTIFY]) => Ok(true),
            (content::ALERT, [_, alert::USER_CANCELED]) => Ok(false),
            (content::ALERT, [1, _]) if !tls13 => Ok(false),
            (content::ALERT, [_, _]) => {
                let fatal = io::Error::other("the client ended the connection with an alert");
                Err(Unreadable::Client(fatal))
            }
            (content::ALERT, _) => Err(Fatal(alert::DECODE_ERROR).into()),
            (content::HANDSHAKE, [24, 0, 0, 1, request @ (0 | 1)]) if tls13 => {
                let secret = self.kernel.update_rx_secret().ok();
                self.opening = self.keys(secret)?;
                // One answer is enough for all requests before it (RFC 8446 section 4.6.3). So a client that does not
                // read cannot make answers pile up.
                if *request == 1 && self.queued.is_empty() {
                    self.update_sealing()?;
                }
                Ok(false)
            }
            // The client wants to renegotiate, which the server may decline (RFC 5246 section 7.2.2).
            (content::HANDSHAKE, [1, ..]) if !tls13 => {
                if self.queued.is_empty() {
                    self.queue(content::ALERT, &[1, alert::NO_RENEGOTIATION])?;
                }
                Ok(false)
            }
            _ => Err(Fatal(alert::UNEXPECTED_MESSAGE).into()),
        }
    }

    fn earn_control(&mut self, data: usize) {
        self.data += data;
        if self.data >= CONTROL_PER {
            self.data = 0;
            self.control = 0;
        }
    }

    fn count_control(&mut self) -> Result<(), Fatal> {
        self.control += 1;
        if self.control > MAX_CONTROL {
            return Err(Fatal(alert::UNEXPECTED_MESSAGE));
        }
        Ok(())
    }

    fn keys(&self, secret: Option<(u64, rustls::ConnectionTrafficSecrets)>) -> Result<Keys, Fatal> {
        secret
            .and_then(|secret| Keys::new(self.kernel.protocol_version(), secret))
            .ok_or(Fatal(alert::INTERNAL_ERROR))
    }

    /// Number of bytes of the client that are kept.
    pub(super) fn held_of_client(&self) -> usize {
        self.partial.len()
    }

    /// Number of bytes that are kept for a client that does not read.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.tickets.len() + self.queued.len() + self.rest.as_ref().map_or(0, Rest::held)
    }

    /// Whether records wait that the client has not taken.
    pub(super) fn is_stalled(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether records wait that hold no data.
    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Changes the keys towards the client. The client is told so in a record under the present keys.
    pub(super) fn update_sealing(&mut self) -> Result<(), Fatal> {
        if self.ended {
            return Ok(());
        }
        self.queue(content::HANDSHAKE, &KEY_UPDATE)?;
        let secret = self.kernel.update_tx_secret().ok();
        self.sealing = self.keys(secret)?;
        Ok(())
    }

    /// Seals a record without data, and queues it after the records that are already sealed. Nothing may follow the
    /// end of the sending direction, so nothing is queued after it.
    fn queue(&mut self, kind: u8, message: &[u8]) -> Result<(), Fatal> {
        if self.ended {
            return Ok(());
        }
        let record = self.seal_control(kind, message).ok_or(NO_ROOM)?;
        self.queued.append(&mut self.tickets);
        self.queued.extend_from_slice(&record);
        Ok(())
    }

    fn seal_control(&mut self, kind: u8, message: &[u8]) -> Option<Vec<u8>> {
        let keys = &mut self.sealing;
        let mut record = vec![0; keys.head() + message.len() + keys.tail()];
        record
            .get_mut(keys.head()..)?
            .get_mut(..message.len())?
            .copy_from_slice(message);
        keys.seal(kind, &mut record, message.len())?;
        Some(record)
    }

    /// Ends the sending direction with `close_notify`. The client gets it with the next [`Self::poll_send`].
    pub(super) fn close(&mut self) -> Result<(), Fatal> {
        self.queue(content::ALERT, &[1, alert::CLOSE_NOTIFY])?;
        self.ended = true;
        Ok(())
    }

    /// Ends the sending direction without `close_notify`, because data are missing that the client was to get.
    pub(super) fn truncate(&mut self) {
        self.ended = true;
    }

    /// Sends what is sealed. It is ready when nothing is left.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while self.rest.is_some() || !self.queued.is_empty() {
            let queued = &mut self.queued;
            let next = || Rest::new(std::mem::take(queued).into_boxed_slice());
            self.rest = self.rest.take().or_else(next);
            if let Some(rest) = &mut self.rest {
                ready!(rest.poll_write(cx, client))?;
                self.rest = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The places for plaintext in `scratch`, each in the record that it will be.
    pub(super) fn places<'a>(
        &self,
        scratch: &'a mut [u8],
    ) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        let head = self.sealing.head();
        let records = scratch.chunks_exact_mut(self.stride());
        records.filter_map(move |record| record.get_mut(head..head + MAX_PLAINTEXT))
    }

    /// The length of a full record.
    fn stride(&self) -> usize {
        self.sealing.head() + MAX_PLAINTEXT + self.sealing.tail()
    }

    /// Seals the first `count` bytes of plaintext in the places of `scratch`, and writes them. Returns whether the client
    /// has taken all of them. The rest is kept. Nothing else may be waiting ([`Self::poll_send`]).
    pub(super) fn seal_and_send(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
        scratch: &mut [u8],
        count: usize,
    ) -> Result<io::Result<bool>, Fatal> {
        let (mut sealed, mut left) = (0, count);
        for record in scratch.chunks_exact_mut(self.stride()) {
            let length = left.min(MAX_PLAINTEXT);
            if length == 0 {
                break;
            }
            let keys = &mut self.sealing;
            sealed += keys.seal(content::DATA, record, length).ok_or(NO_ROOM)?;
            left -= length;
        }
        // All records but the last one are full, so they follow one another without gaps.
        let records = scratch.get(..sealed).ok_or(NO_ROOM)?;
        let tickets = std::mem::take(&mut self.tickets);
        let both = [IoSlice::new(&tickets), IoSlice::new(records)];
        let sent = if tickets.is_empty() {
            Pin::new(client).poll_write(cx, records)
        } else {
            Pin::new(client).poll_write_vectored(cx, &both)
        };
        let written = match sent {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Ok(Err(error)),
            Poll::Pending => 0,
        };
        let rest = if let Some(tickets) = tickets.get(written..) {
            [tickets, records].concat().into()
        } else {
            let written = written - tickets.len();
            records.get(written..).unwrap_or_default().into()
        };
        self.rest = Rest::new(rest);
        Ok(Ok(self.rest.is_none()))
    }

    /// Sends the alert that ends the connection, if it can go at once. Returns whether it could.
    pub(super) fn send_last(&mut self, client: &TcpStream, message: &[u8]) -> bool {
        if self.rest.is_some() || self.ended {
            return false;
        }
        let mut bytes = std::mem::take(&mut self.tickets);
        bytes.append(&mut self.queued);
        let Some(record) = self.seal_control(content::ALERT, message) else {
            return false;
        };
        bytes.extend_from_slice(&record);
        self.ended = true;
        client.try_write(&bytes).is_ok()
    }
}
