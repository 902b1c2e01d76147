//! Owns the copying of a passthrough connection: both directions, half-close, reset, byte counts.
//!
//! An idle connection holds no buffer. Bytes are read into one scratch buffer per thread and
//! written through at once; only what the other side does not take is kept, in a box of its size.
//! A direction that moves in bulk changes to a kernel pipe (`splice`), and back when it has become
//! a conversation of small messages.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::close_reason::CloseReason;
use crate::gate::{Moves, yield_now};
use crate::splice::{PIPE_TURN, Pipe};

/// Size of the scratch buffer of each thread, and so of one read.
const SCRATCH: usize = 64 * 1024;
/// Bytes that one direction moves before other connections of the thread get their turn.
pub(crate) const TURN: usize = 256 * 1024;
/// Bytes that flow in one direction before it changes to a pipe.
const BULK_AFTER: u32 = 128 * 1024;
/// Bytes that flow before one that found no pipe asks again. To ask at every burst would cost more than copying.
const ASK_AGAIN_AFTER: u32 = 16 * 1024 * 1024;
/// In place of such a number: no pipe is asked for any more.
const NO_PIPE: u32 = u32::MAX;
/// A burst (what is read until the source is empty) below this is small.
const SMALL_BURST: u16 = 8 * 1024;
/// After so many small bursts in a row a direction is no longer in bulk.
const SMALL_BURSTS: u8 = 16;

thread_local! {
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// One of the two peers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who connected to us.
    Client,
    /// Whom we connected to.
    Backend,
}

/// How a relayed connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both directions were closed in order; the side that closed its direction first.
    Closed(Side),
    /// One side's connection broke (reset, timed out); it was passed on to the other side.
    Broken(Side),
}

/// Bytes that were passed on, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From client to backend.
    pub up: u64,
    /// From backend to client.
    pub down: u64,
}

/// Bytes that wait for the receiver.
pub(crate) struct Rest {
    bytes: Box<[u8]>,
    sent: usize,
}

impl Rest {
    pub(crate) fn new(bytes: Box<[u8]>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, sent: 0 })
    }

    /// Writes on; ready when nothing is left.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while let Some(left) = self.bytes.get(self.sent..).filter(|left| !left.is_empty()) {
            self.sent += ready!(Pin::new(&mut *to).poll_write(cx, left))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Copies between two sockets until both directions are closed or one breaks.
///
/// The counts are updated as bytes are passed on, so that they hold when the future is dropped.
pub struct Relay<'a> {
    client: &'a mut TcpStream,
    backend: &'a mut TcpStream,
    moved: &'a mut Moved,
    owner: u32,
    up: Flow,
    down: Flow,
    first: Option<Side>,
}

impl<'a> Relay<'a> {
    /// A relay that first sends `replay` (what was read of the client so far) to the backend. Pipes are shared between
    /// owners: tenants, as whatever tells them apart.
    pub fn new(
        client: &'a mut TcpStream,
        backend: &'a mut TcpStream,
        moved: &'a mut Moved,
        owner: usize,
        replay: Box<[u8]>,
    ) -> Self {
        let mut up = Flow::default();
        moved.up += replay.len() as u64;
        up.rest = Rest::new(replay);
        Self {
            client,
            backend,
            moved,
            owner: narrow(owner),
            up,
            down: Flow::default(),
            first: None,
        }
    }
}

impl Moves for Relay<'_> {
    fn moved(&self) -> u64 {
        self.moved.up + self.moved.down
    }
}

/// In four bytes, since every connection has one. What tells owners apart are addresses, of which the last three bits are
/// none; two owners that come to be one share their pipes.
fn narrow(owner: usize) -> u32 {
    u32::try_from(owner >> 3 & 0xffff_ffff).unwrap_or(u32::MAX)
}

impl Future for Relay<'_> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        let (client, backend) = (&mut *this.client, &mut *this.backend);
        let owner = this.owner;
        let last = this.down.state == State::Ended;
        let up = this
            .up
            .poll(cx, client, backend, &mut this.moved.up, owner, last);
        let last = this.up.state == State::Ended;
        let down = this
            .down
            .poll(cx, backend, client, &mut this.moved.down, owner, last);
        let broken = match (up, down) {
            (Poll::Ready(Err(Broken::Source)), _) | (_, Poll::Ready(Err(Broken::Sink))) => {
                Side::Client
            }
            (Poll::Ready(Err(Broken::Sink)), _) | (_, Poll::Ready(Err(Broken::Source))) => {
                Side::Backend
            }
            (up, down) => {
                let first = match (this.up.ended(), this.down.ended()) {
                    (true, _) => Some(Side::Client),
                    (_, true) => Some(Side::Backend),
                    _ => None,
                };
                let first = *this.first.get_or_insert(match first {
                    Some(side) => side,
                    None => return Poll::Pending,
                });
                return match (up, down) {
                    (Poll::Ready(_), Poll::Ready(_)) => Poll::Ready(End::Closed(first)),
                    _ => Poll::Pending,
                };
            }
        };
        reset(match broken {
            Side::Client => this.backend,
            Side::Backend => this.client,
        });
        Poll::Ready(End::Broken(broken))
    }
}

/// Makes the close of a socket a reset, so that its peer does not take a truncated stream for a
/// whole one.
pub(crate) fn reset(socket: &TcpStream) {
    // Fails only where the socket is already beyond it.
    let _ = socket.set_zero_linger();
}

/// Which end of a direction failed. The error itself says nothing more: the peer is gone.
#[derive(Clone, Copy)]
enum Broken {
    Source,
    Sink,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended; what is left is to be delivered and the end passed on.
    Ending,
    Ended,
}

/// One direction.
struct Flow {
    rest: Option<Rest>,
    pipe: Option<Pipe>,
    /// Bytes that are still to flow before it asks for a pipe; [`NO_PIPE`] if it asks for none any more.
    until_pipe: u32,
    /// Bytes since the source was last empty, or as many as fit.
    burst: u16,
    small_bursts: u8,
    state: State,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            rest: None,
            pipe: None,
            until_pipe: BULK_AFTER,
            burst: 0,
            small_bursts: 0,
            state: State::Open,
        }
    }
}

impl Flow {
    fn ended(&self) -> bool {
        self.state != State::Open
    }

    /// Moves what can be moved; ready when the direction is closed. `last`: the other one is.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        moved: &mut u64,
        owner: u32,
        last: bool,
    ) -> Poll<Result<(), Broken>> {
        if self.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        let mut left = if self.pipe.is_some() { PIPE_TURN } else { TURN };
        while left > 0 {
            if let Some(rest) = &mut self.rest {
                ready!(rest.poll_write(cx, to)).map_err(|_| Broken::Sink)?;
                self.rest = None;
            }
            if let Some(pipe) = &mut self.pipe {
                ready!(pipe.poll_drain(cx, to)).map_err(|_| Broken::Sink)?;
            }
            if self.state == State::Ending {
                self.pipe = None;
                // With the other direction at its end nothing is left to read either, so the close
                // that follows says the same.
                if !last {
                    ready!(Pin::new(to).poll_shutdown(cx)).map_err(|_| Broken::Sink)?;
                }
                self.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            if self.pipe.is_none() && self.until_pipe == 0 {
                self.pipe = Pipe::take(owner);
                if self.pipe.is_none() {
                    self.until_pipe = ASK_AGAIN_AFTER;
                }
            }
            let read = if self.pipe.is_some() {
                self.poll_fill(cx, from, left)
            } else {
                self.poll_copy(cx, from, to, left)
            };
            match read {
                Poll::Ready(Ok(0)) => self.state = State::Ending,
                Poll::Ready(Ok(count)) => {
                    left = left.saturating_sub(count);
                    *moved += count as u64;
                    let flowed = u32::try_from(count).unwrap_or(u32::MAX);
                    let in_burst = u16::try_from(count).unwrap_or(u16::MAX);
                    self.burst = self.burst.saturating_add(in_burst);
                    if self.until_pipe != NO_PIPE {
                        self.until_pipe = self.until_pipe.saturating_sub(flowed);
                    }
                }
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Pending => {
                    self.source_is_empty();
                    return Poll::Pending;
                }
            }
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Fills the pipe from the source, with `most` bytes at most.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        most: usize,
    ) -> Poll<Result<usize, Broken>> {
        let Some(pipe) = &mut self.pipe else {
            return Poll::Pending;
        };
        match ready!(pipe.poll_fill(cx, from, most)) {
            Ok(count) => Poll::Ready(Ok(count)),
            // The kernel does not splice this socket: copy, without losing anything.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.pipe = None;
                self.until_pipe = NO_PIPE;
                yield_now(cx);
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(Broken::Source)),
        }
    }

    /// Reads `most` bytes at most into the scratch buffer and writes on at once; keeps what was not taken.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        most: usize,
    ) -> Poll<Result<usize, Broken>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let (scratch, _) = scratch.split_at_mut(most.min(SCRATCH));
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(from).poll_read(cx, &mut buffer)).map_err(|_| Broken::Source)?;
            let read = buffer.filled();
            if read.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let written = match Pin::new(to).poll_write(cx, read) {
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Sink)),
                Poll::Pending => 0,
            };
            self.rest = Rest::new(read.get(written..).unwrap_or_default().into());
            Poll::Ready(Ok(read.len()))
        })
    }

    /// The source has nothing now: give the pipe back, and count small bursts.
    fn source_is_empty(&mut self) {
        self.pipe = None;
        if self.burst == 0 {
            return;
        }
        if self.burst < SMALL_BURST {
            self.small_bursts = self.small_bursts.saturating_add(1);
            if self.small_bursts >= SMALL_BURSTS && self.until_pipe == 0 {
                self.until_pipe = BULK_AFTER;
            }
        } else {
            self.small_bursts = 0;
        }
        self.burst = 0;
    }
}

impl From<End> for CloseReason {
    fn from(end: End) -> Self {
        match end {
            End::Closed(Side::Client) => Self::ClientClosed,
            End::Closed(Side::Backend) => Self::BackendClosed,
            End::Broken(Side::Client) => Self::ClientReset,
            End::Broken(Side::Backend) => Self::BackendReset,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A socket of the runtime and a blocking one at its other end.
    async fn connected() -> (TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await;
        (near.unwrap(), listener.accept().unwrap().0)
    }

    /// A client that sends without end and a backend that takes all of it.
    async fn flood() -> (TcpStream, TcpStream) {
        let (client, mut sends) = connected().await;
        let (backend, mut takes) = connected().await;
        let bytes = vec![0; 1 << 18];
        std::thread::spawn(move || while sends.write_all(&bytes).is_ok() {});
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 18];
            while takes.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
        (client, backend)
    }

    #[tokio::test]
    async fn who_gets_no_pipe_asks_again_later() {
        let taken: Vec<Pipe> = (1..=128).filter_map(Pipe::take).collect();
        assert!(taken.len() <= 128, "{}", taken.len());
        let (mut client, mut backend) = flood().await;
        let mut moved = Moved::default();
        let mut relay = Relay::new(&mut client, &mut backend, &mut moved, 0, Box::default());
        let mut taken = Some(taken);
        let mut refused_at = None;
        while relay.up.pipe.is_none() {
            let mut once = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut relay).poll(&mut once).is_pending());
            // From here on there are pipes again.
            if refused_at.is_none() && relay.up.until_pipe > BULK_AFTER {
                refused_at = Some(relay.moved.up);
                taken = None;
            }
            tokio::task::yield_now().await;
        }
        assert!(taken.is_none());
        let since = relay.moved.up - refused_at.unwrap();
        assert!(since + (TURN as u64) >= ASK_AGAIN_AFTER.into(), "{since}");
    }

    #[tokio::test]
    async fn one_turn_moves_a_bounded_number_of_bytes() {
        for (until_pipe, most) in [(NO_PIPE, TURN), (0, PIPE_TURN)] {
            let (mut client, mut backend) = flood().await;
            let mut moved = Moved::default();
            let mut relay = Relay::new(&mut client, &mut backend, &mut moved, 0, Box::default());
            relay.up.until_pipe = until_pipe;
            let mut whole = 0;
            while whole < 3 {
                let before = relay.moved.up;
                let mut once = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut relay).poll(&mut once).is_pending());
                let turn = relay.moved.up - before;
                assert!(turn <= most as u64, "{turn}");
                // It moves much, and stops although there is more.
                whole += u32::from(turn >= TURN as u64);
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn who_is_never_empty_waits_behind_the_driver() {
        let (mut client, mut backend) = flood().await;
        let mut moved = Moved::default();
        let mut relay = Relay::new(&mut client, &mut backend, &mut moved, 0, Box::default());
        relay.up.until_pipe = NO_PIPE;
        loop {
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            let poll = Pin::new(&mut relay).poll(&mut Context::from_waker(&waker));
            let woken = count.0.load(Ordering::SeqCst);
            assert!(poll.is_pending());
            let up = &relay.up;
            // It could have gone on, and stopped for the others.
            if up.burst > 0 && up.rest.is_none() {
                assert_eq!(woken, 0, "before the driver was looked at");
                tokio::task::yield_now().await;
                assert_ne!(count.0.load(Ordering::SeqCst), 0, "and then at once");
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
