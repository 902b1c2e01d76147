//! Owns the relay of a passthrough connection: it copies both directions, passes on half-closes and resets, and counts
//! bytes.
//!
//! An idle connection holds no buffer. Bytes are read into one scratch buffer of the thread and written at once. Only
//! the bytes that the other side does not take are kept, in a box of that size. A direction with a bulk transfer
//! changes to a kernel pipe (`splice`). It changes back when only small messages follow.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::close_reason::CloseReason;
use crate::gate::{Moves, yield_now};
use crate::lifetime::Watched;
pub use crate::side::Side;
use crate::side::{DirectionError, bound_unsent, had_ended, lost};
use crate::splice::{Filled, PIPE_TURN, Pipe};

/// Size of the scratch buffer of each thread, which is also the size of one read.
const SCRATCH: usize = 64 * 1024;
/// Bytes that one direction may move before other connections of the thread get their turn.
pub(crate) const TURN: usize = 256 * 1024;
/// Bytes after which a direction changes to a pipe.
const BULK_AFTER: u32 = 128 * 1024;
/// Bytes after which a direction that got no pipe asks again. Asking for each burst would cost more than copying.
const ASK_AGAIN_AFTER: u32 = 16 * 1024 * 1024;
/// Most bytes of a bulk transfer that the kernel holds for a receiver whose window is closed. This is a full pipe.
const MOST_UNSENT: u32 = 1024 * 1024;
/// A value in place of such a number. It means that the direction never asks for a pipe again.
const NO_PIPE: u32 = u32::MAX;
/// A burst with fewer bytes than this is small. A burst is everything that is read until the source is empty.
const SMALL_BURST: u16 = 8 * 1024;
/// Number of small bursts in a row after which a bulk transfer counts as over.
const SMALL_BURSTS: u8 = 16;

thread_local! {
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// How a relayed connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both directions were closed in order. The value is the side that closed first.
    Closed(Side),
    /// The connection of one side broke (by a reset or a timeout), and the other side was told by a reset.
    Broken(Side),
}

/// Number of bytes that were passed on in each direction.
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

    /// Number of bytes in memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// All the bytes, whether they were written or not.
    pub(crate) fn into_bytes(self) -> Box<[u8]> {
        self.bytes
    }

    /// Writes the rest. It is ready when nothing is left.
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
/// The counts are updated when bytes are passed on, so they are right even if the future is dropped.
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
    /// A relay that first sends `replay` to the backend, which are the bytes that were already read of the client.
    /// `owner` identifies the tenant, because tenants share pipes fairly.
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

impl Watched for Relay<'_> {
    fn is_stalled(&self) -> bool {
        self.up.is_stalled() || self.down.is_stalled()
    }

    fn lost(&self) -> Option<Side> {
        lost(self.client, self.backend)
    }

    fn bytes(&self) -> u64 {
        self.moved.up + self.moved.down
    }
}

/// An owner in four bytes, because every connection has one. Owners are identified by addresses, whose last three bits
/// are zero. If two owners get the same number, they share their pipes, which does no harm.
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
        // The bytes that the backend sent before its reset are still passed on. But the failed write has taken the report of the
        // reset, so the backend seems to end in order now. The client must not be told of such an end.
        let last = match &up {
            Poll::Ready(Err(DirectionError::Sink(error))) => !had_ended(error.kind()),
            Poll::Ready(Err(DirectionError::Source(_))) => true,
            _ => this.up.state == State::Ended,
        };
        let down = this
            .down
            .poll(cx, backend, client, &mut this.moved.down, owner, last);
        let broken = match (up, down) {
            (Poll::Ready(Err(broken)), _) => broken.side(Side::Client),
            (_, Poll::Ready(Err(broken))) => broken.side(Side::Backend),
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

/// Prepares a socket so that closing it sends a reset. Then its peer does not take a truncated stream for a whole one.
pub(crate) fn reset(socket: &TcpStream) {
    // This fails only if the socket is already closed or reset.
    let _ = socket.set_zero_linger();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended. The rest has to be delivered, and the end passed on.
    Ending,
    Ended,
}

/// One direction of a relay.
struct Flow {
    rest: Option<Rest>,
    pipe: Option<Pipe>,
    /// Number of bytes that are left before it asks for a pipe, or [`NO_PIPE`] if it never asks again.
    until_pipe: u32,
    /// Number of bytes since the source was last empty. It saturates.
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
    /// Whether bytes wait for the receiver.
    fn is_stalled(&self) -> bool {
        self.rest.is_some() || self.pipe.as_ref().is_some_and(|pipe| !pipe.is_empty())
    }

    fn ended(&self) -> bool {
        self.state != State::Open
    }

    /// Moves as many bytes as possible. It is ready when the direction is closed. `last` says whether the other
    /// direction is already closed or broken.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        moved: &mut u64,
        owner: u32,
        last: bool,
    ) -> Poll<Result<(), DirectionError>> {
        if self.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        let mut left = if self.pipe.is_some() { PIPE_TURN } else { TURN };
        while left > 0 {
            if let Some(rest) = &mut self.rest {
                ready!(rest.poll_write(cx, to)).map_err(DirectionError::Sink)?;
                self.rest = None;
            }
            if let Some(pipe) = &mut self.pipe {
                ready!(pipe.poll_drain(cx, to)).map_err(DirectionError::Sink)?;
            }
            if self.state == State::Ending {
                self.pipe = None;
                // If the other direction is over as well, the sockets are closed next, which tells the peer the same, or
                // reset.
                if !last {
                    ready!(Pin::new(to).poll_shutdown(cx)).map_err(DirectionError::Sink)?;
                }
                self.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            if self.pipe.is_none() && self.until_pipe == 0 {
                self.pipe = Pipe::take(owner);
                if self.pipe.is_none() {
                    self.until_pipe = ASK_AGAIN_AFTER;
                }
                bound_unsent(to, MOST_UNSENT);
            }
            let read = if self.pipe.is_some() {
                self.poll_fill(cx, from, to, left)
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

    /// Fills the pipe from the source, with at most `most` bytes, or passes some of them on as [`Self::poll_copy`] does.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        most: usize,
    ) -> Poll<Result<usize, DirectionError>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let Some(pipe) = &mut self.pipe else {
                return Poll::Pending;
            };
            match ready!(pipe.poll_fill(cx, from, most, scratch)) {
                Ok(Filled::Piped(count)) => Poll::Ready(Ok(count)),
                Ok(Filled::Read(count)) => {
                    let read = scratch.get(..count).unwrap_or_default();
                    Poll::Ready(self.pass_on(cx, to, read))
                }
                // The kernel cannot splice this socket, so the direction copies from now on. No bytes are lost.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.pipe = None;
                    self.until_pipe = NO_PIPE;
                    yield_now(cx);
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(DirectionError::Source(error))),
            }
        })
    }

    /// Reads at most `most` bytes into the scratch buffer, and passes them on.
    ///
    /// A read stops at the mark of urgent data, and tokio takes a short read for the last one. So if there are bytes behind
    /// the mark by then, they wait until more bytes or the end come. A second look after each short read would cost a
    /// system call for each message.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        most: usize,
    ) -> Poll<Result<usize, DirectionError>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let (scratch, _) = scratch.split_at_mut(most.min(SCRATCH));
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(from).poll_read(cx, &mut buffer)).map_err(DirectionError::Source)?;
            Poll::Ready(self.pass_on(cx, to, buffer.filled()))
        })
    }

    /// Writes bytes of the source at once, keeps those that are not taken, and returns their number. 0 is the end of the
    /// source.
    fn pass_on(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut TcpStream,
        read: &[u8],
    ) -> Result<usize, DirectionError> {
        if read.is_empty() {
            return Ok(0);
        }
        let written = match Pin::new(to).poll_write(cx, read) {
            Poll::Ready(written) => written.map_err(DirectionError::Sink)?,
            Poll::Pending => 0,
        };
        self.rest = Rest::new(read.get(written..).unwrap_or_default().into());
        Ok(read.len())
    }

    /// Handles a source that is empty now: counts small bursts, and gives the pipe back.
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
    use std::net::Shutdown;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;
    use crate::side::over;

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

    /// The client's bytes wait, so the reset is met by a write before it is met by a read.
    #[tokio::test]
    async fn a_reset_that_a_write_has_met_is_no_end() {
        for ends_before in [false, true] {
            let (mut client, mut far_client) = connected().await;
            let (mut backend, mut far_backend) = connected().await;
            far_backend.write_all(b"half an answer").unwrap();
            if ends_before {
                far_backend.shutdown(Shutdown::Write).unwrap();
            }
            let linger = SockRef::from(&far_backend).set_linger(Some(Duration::ZERO));
            linger.unwrap();
            drop(far_backend);
            over(&backend).await;
            let mut moved = Moved::default();
            let waiting: Box<[u8]> = Box::from(b"a request".as_slice());
            let relay = Relay::new(&mut client, &mut backend, &mut moved, 0, waiting);
            assert_eq!(relay.await, End::Broken(Side::Backend));
            drop((client, backend));
            let mut got = Vec::new();
            let read = far_client.read_to_end(&mut got);
            assert_eq!(got, b"half an answer");
            assert_eq!(read.is_ok(), ends_before, "{read:?}");
        }
    }

    #[tokio::test]
    async fn direction_that_gets_no_pipe_asks_again_later() {
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
            // From now on there are pipes again.
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
                // It moves many bytes, and stops although there are more.
                whole += u32::from(turn >= TURN as u64);
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn relay_whose_source_is_never_empty_waits_behind_the_driver() {
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
            // It could have continued, and stopped for the other connections.
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
