//! Owns the meter on the socket of a backend: how many bytes are read of it that lead to nothing.
//!
//! A backend can send bytes without end of which no client gets anything: interim heads, digits of a chunk's size,
//! frames of HTTP/2 that serve no request, data for a request that is gone, session tickets of TLS. The layers above
//! read on for as long as there are more. So the meter is below all of them, and counts the bytes of the socket:
//!
//! - After [`TURN`] bytes that carried nothing, reading waits at the gate for requests, in the line of the tenant.
//! - A connection has an allowance of bytes without progress, which each request and time enlarge, and bytes of bodies
//!   give back. When it is used up, the connection ends.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::gate::{self, BackendTurn};
use crate::metrics::Metrics;
use crate::quota::TenantQuota;
use crate::rate;

/// Most bytes without progress of a connection, and as many again for each of its requests. A request needs them for a
/// large head, trailers, and what waits of a body when its client goes.
pub(crate) const ALLOWANCE: u64 = 128 * 1024;
/// Bytes that each byte of a body gives back. A chunk of one byte has six.
const PER_BYTE: u64 = 16;
/// Bytes that each second gives back, for slow streams in the smallest of pieces, and for the probes of idle ones.
const PER_SECOND: u64 = 16 * 1024;
/// Bytes that carry nothing before a turn at the gate. A record of TLS is shorter.
const TURN: u64 = 20 * 1024;

/// The word for metrics and logs when the proxy gives up a connection.
const NO_PROGRESS: &str = "NoProgress";

/// A backend sends bytes of which no client gets anything.
#[derive(Debug, thiserror::Error)]
#[error("the backend sent too much that leads to nothing")]
struct NoProgress;

/// Counts what one connection to a backend brings. The connection and its requests share it, on one thread.
pub(crate) struct Meter {
    /// Bytes that may still be read without progress.
    left: AtomicU64,
    /// Requests on the connection now.
    requests: AtomicUsize,
    /// Bytes that were read since the last turn, and carried nothing.
    unpaid: AtomicU64,
    /// The tenant whose request was the last one.
    account: Mutex<Option<Arc<TenantQuota>>>,
    /// Whether all that comes through TLS, or the bytes themselves, are for the client.
    tunnel: AtomicBool,
    over: AtomicBool,
    /// Whether reading waits for no turn.
    skips_turns: AtomicBool,
    begun: Instant,
    /// Up to when time has given back, in milliseconds. The clock is read only when nothing is left.
    looked: AtomicU64,
    /// The size of the largest head that the backend takes, as it announced in HTTP/2.
    most_head: AtomicU32,
    metrics: Arc<Metrics>,
    /// Most lines of the log in a second for a tenant.
    log_lines_per_second: u32,
    endpoint: SocketAddr,
}

impl Meter {
    /// A meter for a connection to `endpoint`. A tenant has at most `log_lines_per_second` in the log.
    pub(crate) fn new(
        metrics: &Arc<Metrics>,
        log_lines_per_second: u32,
        endpoint: SocketAddr,
    ) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(ALLOWANCE),
            requests: AtomicUsize::new(0),
            unpaid: AtomicU64::new(0),
            account: Mutex::default(),
            tunnel: AtomicBool::new(false),
            over: AtomicBool::new(false),
            skips_turns: AtomicBool::new(false),
            begun: Instant::now(),
            looked: AtomicU64::new(0),
            most_head: AtomicU32::new(u32::MAX),
            metrics: Arc::clone(metrics),
            log_lines_per_second,
            endpoint,
        })
    }

    /// A meter of no real connection.
    #[cfg(test)]
    pub(crate) fn test() -> Arc<Self> {
        Self::new(&Arc::new(Metrics::new()), 0, ([127, 0, 0, 1], 1).into())
    }

    /// How many requests are on the connection.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether the proxy gave up the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Records the size of the largest head that the backend takes.
    pub(crate) fn announced(&self, most: u32) {
        self.most_head.store(most, Ordering::Relaxed);
    }

    /// Whether the backend takes a head of this size, as far as it has said.
    pub(crate) fn takes_head(&self, size: usize) -> bool {
        let most = self.most_head.load(Ordering::Relaxed);
        u32::try_from(size).is_ok_and(|size| size <= most)
    }

    /// Sets the tenant in whose line reading waits.
    pub(crate) fn charge(&self, account: Option<&Arc<TenantQuota>>) {
        *self.account.lock() = account.map(Arc::clone);
    }

    /// From here on, everything that is not TLS itself is for the client.
    pub(crate) fn become_tunnel(&self) {
        self.tunnel.store(true, Ordering::Relaxed);
    }

    /// Records that so many of the bytes that were read belong to a body. They take no turn.
    pub(crate) fn carried(&self, bytes: usize) {
        let unpaid = self.unpaid.load(Ordering::Relaxed);
        let unpaid = unpaid.saturating_sub(wide(bytes));
        self.unpaid.store(unpaid, Ordering::Relaxed);
    }

    /// Records that so many bytes of a body were handed on, in one of the directions.
    pub(crate) fn progressed(&self, bytes: usize) {
        self.earn(wide(bytes).saturating_mul(PER_BYTE));
    }

    /// Calls `look`, in which reading the connection waits for no turn. The bytes count all the same.
    pub(crate) fn without_turns<R>(&self, look: impl FnOnce() -> R) -> R {
        self.skips_turns.store(true, Ordering::Relaxed);
        let seen = look();
        self.skips_turns.store(false, Ordering::Relaxed);
        seen
    }

    /// Records bytes that came out of the layer above the socket.
    pub(super) fn passed(&self, bytes: usize) {
        if self.tunnel.load(Ordering::Relaxed) {
            self.carried(bytes);
            self.progressed(bytes);
        }
    }

    fn most(&self) -> u64 {
        ALLOWANCE.saturating_mul(wide(self.requests()).saturating_add(1))
    }

    fn earn(&self, bytes: u64) {
        let left = self.left.load(Ordering::Relaxed);
        let more = left.saturating_add(bytes).min(self.most());
        // The end of a request lowers the most, and leaves what is there: bytes that were sent for it may still be on
        // their way.
        self.left.store(left.max(more), Ordering::Relaxed);
    }

    /// Takes bytes that were read. `now` returns the time of the connection in milliseconds.
    fn read(&self, bytes: usize, now: impl FnOnce() -> u64) -> io::Result<()> {
        let bytes = wide(bytes);
        let unpaid = self.unpaid.load(Ordering::Relaxed);
        self.unpaid
            .store(unpaid.saturating_add(bytes), Ordering::Relaxed);
        if self.left.load(Ordering::Relaxed) < bytes {
            let now = now();
            let passed = now.saturating_sub(self.looked.swap(now, Ordering::Relaxed));
            self.earn(passed.saturating_mul(PER_SECOND) / 1000);
        }
        if let Some(left) = self.left.load(Ordering::Relaxed).checked_sub(bytes) {
            self.left.store(left, Ordering::Relaxed);
            return Ok(());
        }
        if !self.over.swap(true, Ordering::Relaxed) {
            self.metrics.backend_given_up(NO_PROGRESS);
            self.log_end();
        }
        Err(io::Error::other(NoProgress))
    }

    /// Logs that the proxy gives up the connection, in the name of the tenant whose request was the last one.
    fn log_end(&self) {
        let account = self.account.lock().clone();
        let nobody = self.metrics.accounts().nobody();
        let counts = account.as_deref().map_or(nobody, TenantQuota::counts);
        let Some(_turn) = counts.line(self.log_lines_per_second, rate::now()) else {
            return;
        };
        tracing::info!(
            endpoint = %self.endpoint,
            reason = NO_PROGRESS,
            "a connection to a backend is given up",
        );
    }
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// One request on a connection. Its `Drop` ends it.
pub(crate) struct OnMeter(Arc<Meter>);

impl OnMeter {
    pub(crate) fn new(meter: &Arc<Meter>) -> Self {
        meter.requests.fetch_add(1, Ordering::Relaxed);
        meter.earn(ALLOWANCE);
        Self(Arc::clone(meter))
    }
}

impl Drop for OnMeter {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket with its meter.
pub(crate) struct Metered<S = TcpStream> {
    socket: S,
    meter: Arc<Meter>,
    turn: BackendTurn,
}

impl<S> Metered<S> {
    pub(crate) fn new(socket: S, meter: Arc<Meter>) -> Self {
        Self {
            socket,
            meter,
            turn: BackendTurn::new(),
        }
    }

    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    pub(crate) fn into_socket(self) -> S {
        self.socket
    }

    /// Waits for the turn of the tenant if much has come that carried nothing.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let unpaid = self.meter.unpaid.load(Ordering::Relaxed);
        if unpaid >= TURN && !self.meter.skips_turns.load(Ordering::Relaxed) {
            let line = self.meter.account.lock().as_ref().map_or(0, gate::line);
            ready!(self.turn.poll_bytes(cx, line, unpaid));
            self.meter.unpaid.store(0, Ordering::Relaxed);
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_turn(cx));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buffer))?;
        let begun = this.meter.begun;
        let now = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Poll::Ready(this.meter.read(buffer.filled().len() - before, now))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const MOST: usize = 128 * 1024;

    /// How many bytes can be read, in pieces of this size, before the connection is over.
    fn readable(meter: &Meter, piece: usize) -> usize {
        let mut read = 0;
        while meter.read(piece, || 0).is_ok() {
            read += piece;
            assert!(read < 1 << 30);
        }
        assert!(meter.is_over());
        let given_up = meter.metrics.encode().unwrap();
        let line = "backend_connections_given_up_total{reason=\"NoProgress\"} 1";
        assert!(given_up.contains(line));
        read
    }

    #[test]
    fn bytes_without_progress_have_a_limit_that_requests_raise() {
        assert_eq!(readable(&Meter::test(), 1024), MOST);
        // Requests allow more, as many as there are, and only once.
        let meter = Meter::test();
        let requests: Vec<_> = (0..3).map(|_| OnMeter::new(&meter)).collect();
        assert_eq!(readable(&meter, 1024), 4 * MOST);
        drop(requests);
        // What comes for those that are gone is theirs, and after that there is no more.
        let meter = Meter::test();
        for _ in 0..100 {
            drop(OnMeter::new(&meter));
        }
        meter.progressed(MOST);
        assert_eq!(readable(&meter, 1024), 2 * MOST);
    }

    #[test]
    fn connection_that_hands_on_bodies_is_not_ended() {
        let meter = Meter::test();
        for _ in 0..1000 {
            let _request = OnMeter::new(&meter);
            // A large head; chunks of one byte; trailers.
            meter.read(64 * 1024, || 0).unwrap();
            for _ in 0..1000 {
                meter.read(6, || 0).unwrap();
                meter.progressed(1);
            }
            meter.read(16 * 1024, || 0).unwrap();
        }
        // A body gives back no more than the allowance.
        let _request = OnMeter::new(&meter);
        meter.progressed(1 << 30);
        assert_eq!(readable(&meter, 1024), 2 * MOST);
    }

    #[test]
    fn whose_clients_leave_goes_on() {
        let meter = Meter::test();
        for _ in 0..100 {
            let requests: Vec<_> = (0..100).map(|_| OnMeter::new(&meter)).collect();
            // A window of each body waits, and another one is on its way.
            meter.read(100 * 64 * 1024, || 0).unwrap();
            drop(requests);
            meter.read(100 * 60 * 1024, || 0).unwrap();
        }
    }

    #[test]
    fn time_gives_back() {
        let meter = Meter::test();
        for second in 1..1000 {
            meter.read(16 * 1024, || second * 1000).unwrap();
        }
        // However much of it has passed.
        while meter.left.load(Ordering::Relaxed) >= 1024 {
            meter.read(1024, || 1_000_000).unwrap();
        }
        meter.read(MOST + 1, || 1 << 40).unwrap_err();
    }

    #[test]
    fn in_a_tunnel_only_tls_itself_leads_to_nothing() {
        let meter = Meter::test();
        meter.passed(MOST);
        meter.become_tunnel();
        for _ in 0..1000 {
            meter.read(MOST, || 0).unwrap();
            meter.passed(MOST - 1024);
        }
        assert_eq!(readable(&meter, 1024), MOST);
    }

    #[tokio::test]
    async fn a_look_waits_for_no_turn() {
        let meter = Meter::test();
        let socket = io::Cursor::new(vec![b'0'; 100]);
        let mut connection = Metered::new(socket, Arc::clone(&meter));
        meter.unpaid.store(TURN, Ordering::Relaxed);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        let read = meter.without_turns(|| {
            let mut buffer = ReadBuf::new(&mut byte);
            Pin::new(&mut connection).poll_read(&mut cx, &mut buffer)
        });
        assert!(read.is_ready());
        // What was read is to be paid by the next one.
        assert_eq!(meter.unpaid.load(Ordering::Relaxed), TURN + 1);
    }

    #[tokio::test]
    async fn connection_is_read_in_turns_only_while_it_carries_nothing() {
        let driver = tokio::spawn(gate::keep());
        tokio::task::yield_now().await;
        // Without a body, and with one.
        for (carries, expected) in [(0, MOST / (24 * 1024)), (4000, 0)] {
            let meter = Meter::test();
            let socket = io::Cursor::new(vec![b'0'; MOST]);
            let mut connection = Metered::new(socket, Arc::clone(&meter));
            let (mut turns, mut read) = (vec![0], 0);
            poll_fn(|cx| {
                while read < MOST {
                    let mut bytes = [0; 4096];
                    let mut buffer = ReadBuf::new(&mut bytes);
                    match Pin::new(&mut connection).poll_read(cx, &mut buffer) {
                        Poll::Ready(done) => {
                            done.unwrap();
                            meter.carried(carries);
                            read += buffer.filled().len();
                            *turns.last_mut().unwrap() += buffer.filled().len();
                        }
                        Poll::Pending => {
                            turns.push(0);
                            return Poll::Pending;
                        }
                    }
                }
                Poll::Ready(())
            })
            .await;
            if carries == 0 {
                // The first bytes are free.
                assert!(turns.iter().all(|bytes| *bytes <= 48 * 1024), "{turns:?}");
                assert!(turns.len() >= expected / 2, "{turns:?}");
            } else {
                assert_eq!(turns.len(), 1);
            }
        }
        driver.abort();
    }
}
