//! Owns connections that became WebSocket connections: it copies bytes in both directions until both have ended.
//!
//! An idle tunnel holds no buffer. Bytes are read into a buffer of the thread, and kept only if the other side does not
//! take them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use vestibule_model::hostname::Hostname;

use super::authority::host;
use super::backend_http1::{ToBackend, Upgraded};
use super::record::RequestRecord;
use super::scratch::with_scratch;
use super::shared::{AfterHttp, Shared};
use super::transport::Counted;
use crate::close_reason::CloseReason;
use crate::gate::yield_now;
use crate::http_route::HttpRoute;
use crate::lifetime::{Lifetime, Watched, unless_over};
use crate::listener::Listener;
use crate::relay::End;
use crate::side::{DirectionError, Side, lost};
use crate::table::{RouteKind, SelectedBy};

/// Most reads of one direction before other tasks get their turn.
const TURN: usize = 16;

/// A connection to a backend that has finished HTTP, for a client's connection that has.
pub(super) struct Tunnel {
    pub(super) backend: Upgraded,
    pub(super) lifetime: Lifetime,
    pub(super) record: Box<RequestRecord>,
}

impl AfterHttp for Tunnel {
    fn run(
        self: Box<Self>,
        client: Counted,
        read: Bytes,
    ) -> Pin<Box<dyn Future<Output = CloseReason> + Send>> {
        Box::pin(self.carry(client, read))
    }
}

impl Tunnel {
    /// Copies until both directions have ended.
    async fn carry(self, client: Counted, read: Bytes) -> CloseReason {
        let mut record = self.record;
        let selected = Selected::of(&record);
        let relayed = Relayed {
            up: Direction::after(read.into()),
            down: Direction::after(self.backend.read.into()),
            client,
            backend: self.backend.stream,
            received: &mut record.tunnelled_in,
            sent: &mut record.sent,
            first: None,
        };
        let is_served = || selected.as_ref().is_none_or(Selected::is_served);
        match unless_over(self.lifetime, is_served, relayed).await {
            Ok(Ok(first)) => first,
            Ok(Err((side, error))) => {
                tracing::debug!(?side, %error, "a WebSocket broke");
                record.reason = "TunnelBroken";
                End::Broken(side).into()
            }
            Err(over) => {
                let over = CloseReason::from(over);
                record.reason = over.reason();
                over
            }
        }
    }
}

/// What the request that became a tunnel was selected by.
struct Selected {
    shared: Arc<Shared>,
    host: Option<Hostname>,
    path: Box<str>,
    listener: Arc<Listener>,
    route: Arc<HttpRoute>,
}

impl Selected {
    fn of(record: &RequestRecord) -> Option<Self> {
        Some(Self {
            shared: Arc::clone(&record.shared),
            host: record.authority.as_deref().and_then(host),
            path: record.path.clone(),
            listener: record.listener.clone()?,
            route: Arc::clone(&record.found.as_ref()?.route),
        })
    }

    /// Whether the configuration in force serves the tunnel.
    fn is_served(&self) -> bool {
        let snapshot = self.shared.plane.snapshot.load();
        let serving = snapshot.still_serves(&SelectedBy {
            bind: &self.shared.bind,
            name: self.host.as_ref(),
            listener: &self.listener,
            route: (
                RouteKind::of_http(self.route.grpc),
                Arc::clone(&self.route.key),
            ),
            path: Some(&self.path),
        });
        serving.is_some_and(|serving| self.shared.is_admitted(serving))
    }
}

/// The relay of a [`Tunnel`]. Its output is the side that ended first, or the one that broke.
struct Relayed<'a> {
    client: Counted,
    backend: ToBackend,
    up: Direction,
    down: Direction,
    received: &'a mut u64,
    sent: &'a mut u64,
    first: Option<CloseReason>,
}

impl Watched for Relayed<'_> {
    fn is_stalled(&self) -> bool {
        self.up.is_stalled() || self.down.is_stalled()
    }

    fn lost(&self) -> Option<Side> {
        lost(self.client.socket(), self.backend.get_ref().socket())
    }

    fn bytes(&self) -> u64 {
        *self.received + *self.sent
    }
}

impl Future for Relayed<'_> {
    type Output = Result<CloseReason, (Side, DirectionError)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (client, backend) = (&mut this.client, &mut this.backend);
        let count = &mut |n| *this.received += n;
        let up = match this.up.poll(client, backend, cx, count) {
            Poll::Ready(Err(error)) => return broken(Side::Client, error),
            up => up.is_ready(),
        };
        if up {
            this.first.get_or_insert(CloseReason::ClientClosed);
        }
        let count = &mut |n| *this.sent += n;
        let down = match this.down.poll(backend, client, cx, count) {
            Poll::Ready(Err(error)) => return broken(Side::Backend, error),
            down => down.is_ready(),
        };
        if down {
            this.first.get_or_insert(CloseReason::BackendClosed);
        }
        match this.first {
            Some(first) if up && down => Poll::Ready(Ok(first)),
            _ => Poll::Pending,
        }
    }
}

/// The end of a tunnel whose direction away from `source` failed.
fn broken<T>(source: Side, error: DirectionError) -> Poll<Result<T, (Side, DirectionError)>> {
    Poll::Ready(Err((error.side(source), error)))
}

/// One direction of a tunnel.
#[derive(Default)]
pub(crate) struct Direction {
    /// Bytes that were read and not written yet, from `at` on.
    left: Vec<u8>,
    at: usize,
    /// Whether bytes were written since the last flush.
    unflushed: bool,
    /// Whether the source has ended.
    ended: bool,
    /// Whether the sink was told of the end.
    closed: bool,
}

impl Direction {
    /// A direction that begins with bytes that were already read.
    pub(crate) fn after(left: Vec<u8>) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }

    /// Whether bytes wait for the sink.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.left.is_empty()
    }

    /// Copies bytes. It is ready when the direction has ended.
    pub(crate) fn poll<R, W>(
        &mut self,
        from: &mut R,
        to: &mut W,
        cx: &mut Context<'_>,
        moved: &mut dyn FnMut(u64),
    ) -> Poll<Result<(), DirectionError>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..TURN {
            ready!(self.write_left(to, cx, moved)).map_err(DirectionError::Sink)?;
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(DirectionError::Sink)?;
                self.closed = true;
                return Poll::Ready(Ok(()));
            }
            let read = with_scratch(|buffer| -> Poll<Result<(), DirectionError>> {
                let mut buffer = ReadBuf::new(buffer);
                let read = ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer));
                read.map_err(DirectionError::Source)?;
                let read = buffer.filled();
                self.ended = read.is_empty();
                self.write(read, to, cx, moved)
                    .map_err(DirectionError::Sink)?;
                Poll::Ready(Ok(()))
            });
            if read?.is_pending() {
                if self.unflushed {
                    ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(DirectionError::Sink)?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Writes as many of `bytes` as the sink takes, and keeps the rest.
    fn write<W: AsyncWrite + Unpin>(
        &mut self,
        mut bytes: &[u8],
        to: &mut W,
        cx: &mut Context<'_>,
        moved: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut *to).poll_write(cx, bytes)? else {
                self.left = bytes.to_vec();
                self.at = 0;
                return Ok(());
            };
            bytes = self.count(bytes, written, moved)?;
        }
        Ok(())
    }

    fn write_left<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        cx: &mut Context<'_>,
        moved: &mut dyn FnMut(u64),
    ) -> Poll<io::Result<()>> {
        let left = std::mem::take(&mut self.left);
        let mut rest = left.get(self.at..).unwrap_or_default();
        while !rest.is_empty() {
            match Pin::new(&mut *to).poll_write(cx, rest)? {
                Poll::Ready(written) => rest = self.count(rest, written, moved)?,
                Poll::Pending => {
                    self.at = left.len() - rest.len();
                    self.left = left;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn count<'a>(
        &mut self,
        bytes: &'a [u8],
        written: usize,
        moved: &mut dyn FnMut(u64),
    ) -> io::Result<&'a [u8]> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.unflushed = true;
        moved(written as u64);
        Ok(bytes.get(written..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// A connection that is reset.
    struct Gone;

    impl AsyncRead for Gone {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    impl AsyncWrite for Gone {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_direction_names_the_side_that_failed() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let (mut there, _far) = duplex(100);
        let mut failed = |left: &[u8], from_gone: bool| {
            let mut direction = Direction::after(left.to_vec());
            let polled = if from_gone {
                direction.poll(&mut Gone, &mut there, &mut cx, &mut |_| ())
            } else {
                direction.poll(&mut there, &mut Gone, &mut cx, &mut |_| ())
            };
            let Poll::Ready(Err(error)) = polled else {
                panic!("it does not fail");
            };
            error.side(Side::Client)
        };
        assert_eq!(failed(b"", true), Side::Client);
        assert_eq!(failed(b"bytes", false), Side::Backend);
    }

    #[tokio::test]
    async fn a_direction_carries_everything_and_then_its_end() {
        // The receiver has room for little, so that most is kept for a while.
        let (mut source, mut from) = duplex(100_000);
        let (mut to, mut sink) = duplex(7);
        let sent: Vec<u8> = (0..200_000_u32)
            .map(|n| n.to_le_bytes()[n as usize % 3])
            .collect();
        let expected = sent.clone();
        let feed = async move {
            source.write_all(&sent).await.unwrap();
            source.shutdown().await.unwrap();
        };
        let mut direction = Direction::default();
        let mut count = 0;
        let copies =
            std::future::poll_fn(|cx| direction.poll(&mut from, &mut to, cx, &mut |n| count += n));
        let mut got = Vec::new();
        let receives = sink.read_to_end(&mut got);
        let ((), done, read) = tokio::join!(feed, copies, receives);
        done.unwrap();
        read.unwrap();
        assert_eq!((count, got), (200_000, expected));
        assert_eq!(direction.left.capacity(), 0);
    }
}
