//! Owns the plaintext of a terminated connection as a stream, for protocols that this proxy speaks itself.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::session::{TlsSession, Unreadable};
use super::{IN, MAX_BATCH, OUT, discard_unread};
use crate::client_socket::ClientSocket;
use crate::record::{Fatal, HEADER, MAX_PLAINTEXT, MAX_PROTECTED};

/// Number of bytes that are enough for any record.
const RECORD: usize = HEADER + MAX_PROTECTED;

/// A terminated connection. What is written is sealed at once, and at most [`MAX_BATCH`] records wait for a client that
/// does not read. Of what the client sends, at most a record waits that the reader has not taken.
///
/// Reads also send the answers to key updates. So one task has to poll both directions.
pub(crate) struct TlsStream {
    client: ClientSocket,
    pub(super) session: Box<TlsSession>,
    /// Plaintext that the reader has not taken.
    unread: Box<[u8]>,
    /// Number of bytes of `unread` that the reader has taken.
    given: usize,
    /// Whether the client sent `close_notify`.
    closed: bool,
    /// Binary logarithm of the number of records that are sealed and written at once.
    batch: u8,
}

impl TlsStream {
    pub(crate) fn new(client: TcpStream, session: Box<TlsSession>) -> Self {
        Self {
            client: ClientSocket::new(client),
            session,
            unread: Box::default(),
            given: 0,
            closed: false,
            batch: 0,
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.client.stream()
    }

    /// Waits for the [loss](ClientSocket::poll_lost) of a client that has ended its sending direction.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.client.poll_lost(cx)
    }

    /// Gives the reader what it has not taken.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let left = self.unread.get(self.given..).unwrap_or_default();
        let now = left.get(..buffer.remaining()).unwrap_or(left);
        buffer.put_slice(now);
        self.given += now.len();
        if self.given == self.unread.len() {
            self.unread = Box::default();
            self.given = 0;
        }
    }

    /// Reads from the client, and gives the reader what it has room for.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Unreadable>> {
        // No more than a record is read that the reader may have no room for. What the handshake left over may be longer.
        let room = self.session.held_of_client().max(RECORD) + buffer.remaining();
        let most = room.min(scratch.len());
        let scratch = scratch.get_mut(..most).unwrap_or_default();
        let opened = ready!(self.session.poll_open(cx, &mut self.client, scratch))?;
        if opened.truncated {
            // The end came without a close_notify, so bytes of the client may be missing.
            let cut = io::ErrorKind::UnexpectedEof.into();
            return Poll::Ready(Err(Unreadable::Client(cut)));
        }
        let mut given = 0;
        for part in opened.slices(scratch) {
            let now = part.get(..buffer.remaining()).unwrap_or(part);
            buffer.put_slice(now);
            given += now.len();
        }
        if let Some(rest) = opened.after(scratch, given) {
            self.unread = rest.into_bytes();
        }
        self.closed = opened.closed;
        Poll::Ready(Ok(()))
    }

    /// The error for the reader. A client that broke the protocol is told first.
    fn unreadable(&mut self, unreadable: Unreadable) -> io::Error {
        match unreadable {
            Unreadable::Client(error) => error,
            Unreadable::Protocol(Fatal(description)) => {
                let client = self.client.stream();
                if self.session.send_last(client, &[2, description]) {
                    discard_unread(|buffer| client.try_read(buffer));
                }
                let broken = format!("the client broke TLS, and got alert {description}");
                io::Error::new(io::ErrorKind::InvalidData, broken)
            }
        }
    }

    /// Takes bytes from `pieces`, in order, as many as it seals at once.
    fn poll_seal(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let batch = 1 << self.batch;
        let mut pieces = pieces.iter().map(|piece| &piece[..]);
        let mut next = || pieces.find(|piece| !piece.is_empty());
        let mut piece = next();
        let mut count = 0;
        for mut place in self.session.places(scratch).take(batch) {
            while let Some(from) = piece
                && !place.is_empty()
            {
                let now = from.len().min(place.len());
                // Both of these are as long as `now`, so nothing is left out.
                let (from, rest) = from.split_at(now);
                let (to, room) = place.split_at_mut(now);
                to.copy_from_slice(from);
                place = room;
                piece = if rest.is_empty() { next() } else { Some(rest) };
                count += now;
            }
        }
        if count == 0 {
            return Ok(0);
        }
        let sent = self
            .session
            .seal_and_send(cx, &mut self.client, scratch, count);
        if !sent.map_err(failed)?? {
            self.batch = self.batch.saturating_sub(1);
        } else if count == batch * MAX_PLAINTEXT && batch < MAX_BATCH {
            self.batch += 1;
        }
        Ok(count)
    }
}

/// The error of a connection that cannot go on because of this side.
fn failed(Fatal(description): Fatal) -> io::Error {
    io::Error::other(format!("no record can be sealed: alert {description}"))
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        loop {
            if !this.unread.is_empty() {
                this.give(buffer);
            }
            if this.closed || buffer.remaining() == 0 || buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            let read = IN.with_borrow_mut(|scratch| this.poll_open(cx, buffer, scratch));
            ready!(read).map_err(|unreadable| this.unreadable(unreadable))?;
            if this.session.has_queued()
                && let Poll::Ready(Err(error)) = this.session.poll_send(cx, &mut this.client)
            {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.session.sealing.is_exhausted() {
            if !this.session.sealing.can_update() {
                let used = "the keys have protected as many records as they may";
                return Poll::Ready(Err(io::Error::other(used)));
            }
            this.session.update_sealing().map_err(failed)?;
        }
        ready!(this.session.poll_send(cx, &mut this.client))?;
        Poll::Ready(OUT.with_borrow_mut(|scratch| this.poll_seal(cx, pieces, scratch)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.poll_send(cx, &mut this.client)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.close().map_err(failed)?;
        ready!(this.session.poll_send(cx, &mut this.client))?;
        Pin::new(&mut this.client).poll_shutdown(cx)
    }
}
