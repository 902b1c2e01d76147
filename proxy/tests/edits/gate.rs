//! A client's socket that stops in the middle of what it says until so many edits are done.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::ledger::Ledger;

/// Where a client stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Never,
    /// After so many bytes.
    After(usize),
    /// Before it answers the first bytes of the other side.
    Answering,
}

/// The result of a stop.
#[derive(Debug)]
pub(crate) struct Stopped(AtomicUsize);

impl Stopped {
    /// The newest edit by the time that the client had stopped.
    pub(crate) fn at(&self) -> Option<usize> {
        let at = self.0.load(Ordering::SeqCst);
        (at != usize::MAX).then_some(at)
    }
}

/// A socket with a stop.
pub(crate) struct Gate {
    tcp: TcpStream,
    stop: Stop,
    /// Bytes that were sent and received.
    sent: usize,
    received: usize,
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    ledger: Arc<Ledger>,
    /// How many edits are waited for.
    edits: usize,
    pub(crate) stopped: Arc<Stopped>,
}

impl Gate {
    pub(crate) fn new(tcp: TcpStream, stop: Stop, edits: usize, ledger: &Arc<Ledger>) -> Self {
        Self {
            tcp,
            stop,
            sent: 0,
            received: 0,
            wait: None,
            ledger: Arc::clone(ledger),
            edits,
            stopped: Arc::new(Stopped(AtomicUsize::new(usize::MAX))),
        }
    }

    /// How much may be sent now; ready when anything may.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let room = match self.stop {
            Stop::Never => return Poll::Ready(usize::MAX),
            Stop::After(most) => most.saturating_sub(self.sent),
            Stop::Answering if self.received == 0 => usize::MAX,
            Stop::Answering => 0,
        };
        if room > 0 {
            return Poll::Ready(room);
        }
        let wait = self.wait.get_or_insert_with(|| {
            let newest = self.ledger.newest();
            self.stopped.0.store(newest, Ordering::SeqCst);
            let (mut told, until) = (self.ledger.told(), newest + self.edits);
            Box::pin(async move {
                let _ = told.wait_for(|done| *done >= until).await;
            })
        });
        ready!(wait.as_mut().poll(cx));
        self.stop = Stop::Never;
        self.wait = None;
        Poll::Ready(usize::MAX)
    }
}

impl AsyncRead for Gate {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.tcp).poll_read(cx, buffer))?;
        this.received += buffer.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gate {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let room = ready!(this.poll_room(cx)).min(bytes.len());
        let sent = ready!(Pin::new(&mut this.tcp).poll_write(cx, &bytes[..room]))?;
        this.sent += sent;
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}
