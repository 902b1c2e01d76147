//! Owns the bytes below HTTP: plaintext or TLS, with what was read before handed out first.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;
use super::frames::Frames;
use super::guard::{Guard, Stop};
use crate::gate::yield_now;
use crate::lifetime::{Alarm, in_ticks, ticks};
use crate::replayed::Replayed;

/// What HTTP is spoken over.
pub(super) enum Transport {
    Plain(Replayed),
    Tls(Box<TlsStream<Replayed>>),
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
            Self::Tls(stream) => stream.get_ref().0.socket(),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Most bytes of a client that wait until it is known what its request made of the connection. More
/// stay in the socket.
const MAX_HELD: usize = 16 * 1024;
/// What hyper takes in no head: it answers with 400 where it meets it, behind the answers to the requests
/// before. It looks at a head again only when that may be whole, hence the end.
const POISON: &[u8] = b"\0\r\n\r\n";
/// Reads that are done of what a refused client goes on sending, so that closing does not reset what it
/// was answered.
const MAX_DISCARDS: usize = 8;
/// How long a client that has its answer is let finish what it sends.
const LINGER: Duration = Duration::from_secs(3);

/// Most bytes that are written as one piece.
const MAX_TOGETHER: usize = 1024;

/// Writes several pieces. Short ones, such as a head and a short body, are made one first: the kernel takes longer to
/// look at a list of pieces than it takes to copy them.
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
        // It cannot fail: the length of all of them is that of the array at most.
        let _ = io::Write::write_all(&mut rest, piece);
    }
    let together = together.get(..length).unwrap_or_default();
    stream.poll_write(cx, together)
}

/// A transport whose bytes are counted, those of HTTP/1 guarded, and the frames of HTTP/2 counted too.
pub(super) struct Counted {
    transport: Transport,
    activity: Arc<Activity>,
    /// `None`: HTTP/2 is spoken.
    guard: Option<Box<Guarded>>,
    frames: Frames,
    /// What a client sends after its last answer is being read away.
    lingering: Option<Lingering>,
}

/// Ends at a tick.
struct Lingering {
    end: u32,
    alarm: Alarm,
}

/// Watches for the loss of a client that sends nothing more. The end of a stream stays readable for
/// ever, so reading on would show nothing: this waits for the error that the kernel reports when the
/// client resets the connection, or does not answer its probes (TCP keepalive).
struct Loss(Pin<Box<dyn Future<Output = io::Error> + Send>>);

impl Loss {
    /// Has a descriptor of its own, since a wait for errors borrows the stream, and HTTP goes on with
    /// that.
    fn of(socket: &TcpStream) -> io::Result<Self> {
        let socket = TcpStream::from_std(SockRef::from(socket).try_clone()?.into())?;
        Ok(Self(Box::pin(async move {
            let lost = || io::ErrorKind::ConnectionReset.into();
            match socket.ready(Interest::ERROR).await {
                Ok(_) => socket.take_error().ok().flatten().unwrap_or_else(lost),
                Err(error) => error,
            }
        })))
    }
}

#[derive(Default)]
struct Guarded {
    guard: Guard,
    /// The client has ended its side and waits for answers.
    half_closed: Option<Loss>,
    /// Requests whose answers the transport has taken to their last byte.
    answered: u64,
    /// Read, and not passed on yet.
    held: Vec<u8>,
    /// Why nothing is passed on any more.
    refused: Option<Stop>,
}

impl Guarded {
    /// Passes on of what is held.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let now = self.held.len().min(buffer.remaining());
        buffer.put_slice(self.held.get(..now).unwrap_or_default());
        self.held.drain(..now);
    }
}

impl Counted {
    /// `guarded`: HTTP/1 is spoken.
    pub(super) fn new(transport: Transport, activity: Arc<Activity>, guarded: bool) -> Self {
        Self {
            transport,
            activity,
            guard: guarded.then(Box::default),
            frames: Frames::new(),
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

    /// Reads HTTP/2. A client that does too much to no purpose is read no further than to the end of a
    /// frame: from there on h2 gets what it ends such connections for.
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
        Poll::Ready(Ok(()))
    }

    /// While it is not known what comes, it is only kept.
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

    /// The client's last byte has come. hyper takes an end for the end of the client, so it is told only
    /// when every request that came whole has its answer: a client may end its side and wait (RFC 9112
    /// section 9.6). The end of a request that did not come whole is told at once, as nothing completes it.
    fn poll_end(&mut self, cx: &mut Context<'_>, guarded: &mut Guarded) -> Poll<io::Result<()>> {
        let owes = guarded.answered < guarded.guard.requests();
        if !owes || !guarded.guard.is_between() {
            guarded.half_closed = None;
            return Poll::Ready(Ok(()));
        }
        self.activity.wait(cx);
        let loss = match &mut guarded.half_closed {
            Some(loss) => loss,
            none => none.insert(Loss::of(self.transport.socket())?),
        };
        loss.0.as_mut().poll(cx).map(Err)
    }

    /// Reads away what a client sends that has its answer, until it ends or its time is over: a close with
    /// something unread is a reset, which may overtake the answer.
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
                // Nothing comes behind the poison.
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
            let left = bytes.get(outcome.passed..).unwrap_or_default().to_vec();
            buffer.set_filled(before + outcome.passed);
            match outcome.stopped {
                None => {}
                Some(Stop::Undecided) => {
                    // In front of what was held, of which these may be the first.
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
            // hyper flushes when it has written all that it has.
            let ended = this.activity.ended();
            if guarded.answered < ended {
                guarded.answered = ended;
                if guarded.half_closed.is_some() {
                    this.activity.wake();
                }
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
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.transport).inner().poll_shutdown(cx))?;
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
