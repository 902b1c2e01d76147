//! Owns the bytes below HTTP: plaintext or TLS, preceded by bytes that were already read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::activity::Activity;
use super::frames::Frames;
use super::guard::{Guard, Stop};
use super::heads::Heads;
use crate::gate::yield_now;
use crate::lifetime::{Alarm, in_ticks, ticks};
use crate::replayed::Replayed;
use crate::terminate::TlsStream;

/// The stream below HTTP.
pub(super) enum Transport {
    Plain(Replayed),
    Tls(Box<TlsStream>),
}

impl Transport {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut (dyn Stream + '_)> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream.as_mut()),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream.socket(),
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// Waits for the [loss](crate::client_socket::ClientSocket::poll_lost) of a client that has ended its sending
    /// direction.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            Self::Plain(stream) => stream.poll_lost(cx),
            Self::Tls(stream) => stream.poll_lost(cx),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Most bytes of a client that wait until it is known whether its request switches the connection to another protocol.
/// Further bytes stay in the socket.
const MAX_HELD: usize = 16 * 1024;
/// Bytes that hyper accepts in no head. It answers them with 400, after the responses to the requests before. hyper
/// looks at a head again only when that may be whole, so the bytes contain the end of a head.
const POISON: &[u8] = b"\0\r\n\r\n";
/// Most reads in a row of bytes that a refused client still sends. They are read so that closing the socket does not
/// reset the response.
const MAX_DISCARDS: usize = 8;
/// How long a client that has its response may continue to send.
const LINGER: Duration = Duration::from_secs(3);

/// Most bytes that are copied together before they are written.
const MAX_TOGETHER: usize = 1024;

/// Writes several pieces. Short ones, such as a head and a short body, are copied together first: a vectored write
/// takes the kernel longer than the copy.
pub(super) fn write_together<S: AsyncWrite + ?Sized>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    pieces: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [piece] = pieces {
        return stream.poll_write(cx, piece);
    }
    let length = pieces.iter().map(|piece| piece.len()).sum();
    if length > MAX_TOGETHER {
        return stream.poll_write_vectored(cx, pieces);
    }
    let mut together = [0; MAX_TOGETHER];
    let mut rest = &mut together[..];
    for piece in pieces {
        // This cannot fail, because the pieces together are not longer than the array.
        let _ = io::Write::write_all(&mut rest, piece);
    }
    let together = together.get(..length).unwrap_or_default();
    stream.poll_write(cx, together)
}

/// A transport that counts bytes. It also guards those of HTTP/1, and counts the frames of HTTP/2.
pub(super) struct Counted {
    transport: Transport,
    activity: Arc<Activity>,
    /// The guard for HTTP/1; `None` for HTTP/2.
    guard: Option<Box<Guarded>>,
    frames: Frames,
    heads: Heads,
    /// Whether the client has been told that nothing more follows.
    shut_down: bool,
    /// Set while the bytes after the last response are read and dropped.
    lingering: Option<Lingering>,
}

/// The time until which a client may continue to send.
struct Lingering {
    end: u32,
    alarm: Alarm,
}

#[derive(Default)]
struct Guarded {
    guard: Guard,
    /// Whether the client has ended its side and waits for responses.
    half_closed: bool,
    /// Bytes that were read and not passed on yet.
    held: Vec<u8>,
    /// Why nothing is passed on any more.
    refused: Option<Stop>,
}

impl Guarded {
    /// Passes on bytes that are held.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let now = self.held.len().min(buffer.remaining());
        buffer.put_slice(self.held.get(..now).unwrap_or_default());
        self.held.drain(..now);
    }
}

impl Counted {
    /// The client's socket.
    pub(super) fn socket(&self) -> &TcpStream {
        self.transport.socket()
    }

    /// What is known of the connection.
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Whether the next byte of the client is the first one of a request in HTTP/1, and every request before is answered.
    pub(super) fn is_between(&self) -> bool {
        let Some(guarded) = &self.guard else {
            return false;
        };
        let reads_on =
            guarded.refused.is_none() && !guarded.half_closed && self.lingering.is_none();
        reads_on
            && guarded.held.is_empty()
            && guarded.guard.is_between()
            && guarded.guard.requests() == self.activity.answered()
    }

    /// `guarded` means that the connection speaks HTTP/1. Otherwise, `most_fields` is the most fields of a head before it
    /// is decoded, and `streams` is the most requests at one time.
    pub(super) fn new(
        transport: Transport,
        activity: Arc<Activity>,
        guarded: bool,
        most_fields: usize,
        streams: u32,
    ) -> Self {
        Self {
            transport,
            activity,
            guard: guarded.then(Box::default),
            frames: Frames::new(),
            heads: Heads::new(most_fields, streams),
            shut_down: false,
            lingering: None,
        }
    }

    fn inner(self: Pin<&mut Self>) -> Pin<&mut (dyn Stream + '_)> {
        Pin::new(&mut self.get_mut().transport).inner()
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.transport).inner().poll_read(cx, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        self.activity.received(read as u64);
        Poll::Ready(Ok(()))
    }

    /// Reads HTTP/2. If a client has used up one of its budgets, it is read only to the end of the present frame. After
    /// that, h2 gets bytes for which it ends the connection ([`Frames::poison`]).
    fn poll_framed(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.activity.poll_abuse(cx).is_ready() && self.frames.is_between() {
            self.frames.poison(buffer);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(self.poll_receive(cx, buffer))?;
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        let activity = &self.activity;
        let passed = self.frames.follow(
            bytes,
            || activity.idle_frame(),
            || activity.abuse().is_some(),
        );
        buffer.set_filled(before + passed);
        let bytes = buffer.filled_mut().get_mut(before..);
        activity.heads(self.heads.follow(bytes.unwrap_or_default()));
        Poll::Ready(Ok(()))
    }

    /// Reads bytes and only keeps them, while it is not known which protocol follows.
    fn poll_hold(&mut self, cx: &mut Context<'_>, guarded: &mut Guarded) -> Poll<io::Result<()>> {
        let mut scratch = [0; 1024];
        loop {
            if guarded.held.len() >= MAX_HELD {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(self.poll_receive(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return self.poll_end(cx, guarded);
            }
            guarded.held.extend_from_slice(buffer.filled());
        }
    }

    /// Handles the end of the client's bytes.
    ///
    /// A client may end its side and wait for responses (RFC 9112 section 9.6). But hyper takes the end of the bytes
    /// for the end of the client. So hyper learns of it only when every complete request has its response. If the last
    /// request is not complete, hyper learns of it at once, because nothing can complete that request.
    fn poll_end(&mut self, cx: &mut Context<'_>, guarded: &mut Guarded) -> Poll<io::Result<()>> {
        let owes = self.activity.answered() < guarded.guard.requests();
        if !owes || !guarded.guard.is_between() {
            guarded.half_closed = false;
            return Poll::Ready(Ok(()));
        }
        self.activity.wait(cx);
        guarded.half_closed = true;
        self.transport.poll_lost(cx).map(Err)
    }

    /// Reads and drops what a client sends after its last response, until it ends or its time is over. If the socket
    /// were closed with unread bytes, the kernel would send a reset, which could overtake the response.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let lingering = self.lingering.get_or_insert_with(|| Lingering {
            end: ticks().saturating_add(in_ticks(LINGER)),
            alarm: Alarm::default(),
        });
        if ticks() >= lingering.end {
            return Poll::Ready(Ok(()));
        }
        lingering.alarm.set(cx, lingering.end);
        let mut scratch = [0; 4096];
        for _ in 0..MAX_DISCARDS {
            let mut unread = ReadBuf::new(&mut scratch);
            match ready!(self.poll_receive(cx, &mut unread)) {
                Ok(()) if !unread.filled().is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
        yield_now(cx);
        Poll::Pending
    }

    fn poll_guarded(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        guarded: &mut Guarded,
    ) -> Poll<io::Result<()>> {
        loop {
            match guarded.refused {
                Some(Stop::Body(refusal)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal)));
                }
                // The reader gets the rest of `POISON`, and nothing after it.
                Some(_) => {
                    guarded.give(buffer);
                    return Poll::Ready(Ok(()));
                }
                None => {}
            }
            if guarded.guard.is_undecided() {
                self.activity.wait(cx);
                if self.activity.is_upgraded() {
                    guarded.guard.decide(true);
                } else if self.activity.ended() >= guarded.guard.requests() {
                    guarded.guard.decide(false);
                } else {
                    return self.poll_hold(cx, guarded);
                }
            }
            let before = buffer.filled().len();
            if guarded.held.is_empty() {
                ready!(self.poll_receive(cx, buffer))?;
                if buffer.filled().len() == before {
                    return self.poll_end(cx, guarded);
                }
            } else {
                guarded.give(buffer);
            }
            let bytes = buffer.filled().get(before..).unwrap_or_default();
            let outcome = guarded.guard.check(bytes);
            self.activity.in_head(guarded.guard.is_in_head());
            let left = bytes.get(outcome.passed..).unwrap_or_default().to_vec();
            buffer.set_filled(before + outcome.passed);
            match outcome.stopped {
                None => {}
                Some(Stop::Undecided) => {
                    // These bytes came before those that are still held, so they go to the front.
                    guarded.held.splice(..0, left);
                }
                Some(stop @ (Stop::Head(refusal) | Stop::Body(refusal))) => {
                    tracing::debug!(%refusal, "a request is refused");
                    guarded.refused = Some(stop);
                    guarded.held = match stop {
                        Stop::Head(_) => POISON.to_vec(),
                        _ => Vec::new(),
                    };
                }
            }
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(mut guarded) = this.guard.take() else {
            return this.poll_framed(cx, buffer);
        };
        let polled = this.poll_guarded(cx, buffer, &mut guarded);
        this.guard = Some(guarded);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.as_mut().inner().poll_write(cx, bytes))?;
        self.activity.sent(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(write_together(self.as_mut().inner(), cx, bytes))?;
        self.activity.sent(written as u64);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().inner().poll_flush(cx))?;
        let this = self.get_mut();
        if let Some(guarded) = &mut this.guard {
            // hyper flushes after it has written everything that it has.
            if this.activity.flushed() && guarded.half_closed {
                this.activity.wake();
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let refused = match &self.guard {
            Some(guarded) => guarded.refused.is_some(),
            None => self.activity.abuse().is_some(),
        };
        let this = self.get_mut();
        if !this.shut_down {
            ready!(Pin::new(&mut this.transport).inner().poll_shutdown(cx))?;
            this.shut_down = true;
        }
        if this.activity.lingers() {
            return this.poll_linger(cx);
        }
        let mut scratch = [0; 4096];
        let discards = if refused { MAX_DISCARDS } else { 0 };
        for _ in 0..discards {
            let mut unread = ReadBuf::new(&mut scratch);
            match this.poll_receive(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
