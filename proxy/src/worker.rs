//! Owns the worker threads and the sockets they listen on: one single-threaded runtime per worker,
//! each with its own `SO_REUSEPORT` socket per bind, so that a connection stays on one thread from
//! accept to end and workers share nothing but the snapshot and the counters.
//!
//! Sockets outlive configuration: a bind's sockets stay as long as any listener is on it, and a
//! connection keeps what it started with whatever happens to its bind.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::accesslog::Record;
use crate::connection::{self, CloseReason};
use crate::fair::{Shares, Source};
use crate::http::HttpLimits;
use crate::listen::{self, BACKLOG, Binds, Listening, Sockets};
use crate::metrics::Metrics;
use crate::table::{BindKey, Snapshot};
use crate::{cut, deadline};

/// How long connections have, once they are cut, to end in order.
const LINGER: Duration = Duration::from_secs(2);
/// Accepting fails many times a second while descriptors are short; it is logged this often.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// What one proxy process allows.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest ClientHello in bytes, as it comes on the wire.
    pub hello_bytes: usize,
    /// Time from accept until the ClientHello is complete.
    pub hello_deadline: Duration,
    /// Time from the ClientHello until the TLS handshake is done.
    pub handshake_deadline: Duration,
    /// Time to connect to a backend.
    pub connect_deadline: Duration,
    /// Time without traffic after which the kernel asks whether a peer is still there.
    pub keepalive: Duration,
    /// Connections at one time, over all workers.
    pub max_connections: usize,
    /// Connections at one time that have not finished hello and handshake. Each may hold 32 KiB of
    /// what its client sent. One source address alone can hold half of them.
    pub max_hellos: usize,
    /// What clients of HTTP and HTTPS listeners may do.
    pub http: HttpLimits,
    /// Whether a line is logged per connection or request.
    pub access_log: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hello_bytes: 16 * 1024,
            hello_deadline: Duration::from_secs(5),
            handshake_deadline: Duration::from_secs(10),
            connect_deadline: Duration::from_secs(5),
            keepalive: Duration::from_mins(2),
            max_connections: 100_000,
            max_hellos: 10_000,
            http: HttpLimits::default(),
            access_log: true,
        }
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct DataPlane {
    /// The configuration in force; loaded once per connection.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Where connections are counted.
    pub metrics: Arc<Metrics>,
    /// What is allowed.
    pub limits: Limits,
    active: AtomicUsize,
    hellos: Shares,
    /// This proxy is about to end.
    leaving: AtomicBool,
    /// Cancelled when this proxy stops accepting.
    closing: CancellationToken,
    /// Told when the last connection ends.
    idle: Notify,
    accept_errors: Seldom,
}

/// Says when to log again what may happen all the time.
#[derive(Debug, Default)]
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }
}

impl DataPlane {
    /// The shared part of a data plane without workers.
    #[must_use]
    pub fn new(snapshot: Arc<ArcSwap<Snapshot>>, metrics: Arc<Metrics>, limits: Limits) -> Self {
        Self {
            snapshot,
            metrics,
            active: AtomicUsize::new(0),
            hellos: Shares::new(limits.max_hellos),
            limits,
            leaving: AtomicBool::new(false),
            closing: CancellationToken::new(),
            idle: Notify::new(),
            accept_errors: Seldom::default(),
        }
    }

    /// Connections open now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Goes on as before, and has clients that can be told go elsewhere with their next request.
    pub fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Cancelled when this proxy stops accepting: who can tell its client to go elsewhere does.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Returns when no connection is open.
    async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.active() == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(crate) fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self) {
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Random bits for the choice of a backend: fast, and nothing that must not be foreseen.
    #[expect(clippy::unused_self, reason = "tests may come to want a seed here")]
    pub(crate) fn random(&self) -> u64 {
        thread_local! {
            static STATE: Cell<u64> = Cell::new(seed());
        }
        // SplitMix64.
        STATE.with(|state| {
            let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            state.set(next);
            let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        })
    }

    /// A place among the connections that have not finished hello and handshake.
    pub(crate) fn permit(self: &Arc<Self>, peer: IpAddr) -> Option<HelloPermit> {
        if self.active() > self.limits.max_connections {
            return None;
        }
        let source = self.hellos.take(peer)?;
        Some(HelloPermit {
            plane: Arc::clone(self),
            source,
        })
    }

    /// Takes a connection over.
    fn accept(self: &Arc<Self>, client: TcpStream, peer: SocketAddr, bind: BindKey) {
        // On a socket of both families an IPv4 client has an address in IPv6.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let mut record = Record::new(Arc::clone(self), peer, bind);
        match self.permit(peer.ip()) {
            Some(permit) => {
                tokio::spawn(connection::serve(client, record, permit));
            }
            None => record.reason = CloseReason::Limit,
        }
    }
}

/// Differs from thread to thread and from process to process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::thread::current().id())
}

/// Held by a connection until its hello and handshake are done.
pub(crate) struct HelloPermit {
    plane: Arc<DataPlane>,
    source: Source,
}

impl Drop for HelloPermit {
    fn drop(&mut self) {
        self.plane.hellos.give_back(self.source);
    }
}

/// The worker threads of a data plane.
///
/// Dropping it ends all connections at once; [`Self::drain`] first gives them time.
pub struct Workers {
    plane: Arc<DataPlane>,
    threads: Vec<JoinHandle<()>>,
    sockets: Sockets,
    /// Cancelled to stop accepting.
    closing: CancellationToken,
    /// Cancelled to cut the connections.
    cutting: CancellationToken,
    /// Cancelled to end the threads.
    ending: CancellationToken,
    /// How many may still accept.
    accepting: watch::Receiver<usize>,
}

impl Workers {
    /// Starts `count` threads (at least one) that listen nowhere yet.
    pub fn start(plane: Arc<DataPlane>, count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let closing = plane.closing.clone();
        let cutting = CancellationToken::new();
        let ending = CancellationToken::new();
        let (accepts, accepting) = watch::channel(0);
        let accepts = Arc::new(accepts);
        let binds = watch::Sender::new(Binds::new());
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build()?;
            let worker = Worker {
                index,
                plane: Arc::clone(&plane),
                closing: closing.clone(),
                cutting: cutting.clone(),
                accepting: Arc::clone(&accepts),
            };
            let (binds, ending) = (binds.subscribe(), ending.clone());
            let running = Accepting::new(&accepts);
            let run = move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = worker.run(binds, running) => {}
                        () = ending.cancelled() => {}
                    }
                });
                // Drops the connections that are left, which counts and logs them.
                drop(runtime);
            };
            let name = format!("worker-{index}");
            threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        let sockets = Sockets::new(Arc::clone(&plane), binds, count);
        Ok(Self {
            plane,
            threads,
            sockets,
            closing,
            cutting,
            ending,
            accepting,
        })
    }

    /// What opens and closes the sockets of these workers.
    #[must_use]
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Stops accepting, after who has begun to connect, and waits until the connections have ended or
    /// `deadline` is over; then cuts what is left. Returns how many those were.
    pub async fn drain(mut self, deadline: Duration) -> usize {
        self.plane.metrics.draining.set(1);
        self.closing.cancel();
        let plane = Arc::clone(&self.plane);
        let closed = async {
            // What the accept loops take from the queues counts too.
            let _ = self.accepting.wait_for(|accepting| *accepting == 0).await;
            plane.idle().await;
        };
        let left = match tokio::time::timeout(deadline, closed).await {
            Ok(()) => 0,
            Err(_) => plane.active(),
        };
        if left > 0 {
            self.cutting.cancel();
            let _ = tokio::time::timeout(LINGER, plane.idle()).await;
        }
        self.ending.cancel();
        let threads = std::mem::take(&mut self.threads);
        // The threads end at once, but joining them must not hold up this runtime all the same.
        let _ = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        })
        .await;
        left
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.closing.cancel();
        self.ending.cancel();
    }
}

/// One worker thread's part.
struct Worker {
    index: usize,
    plane: Arc<DataPlane>,
    closing: CancellationToken,
    cutting: CancellationToken,
    accepting: Arc<watch::Sender<usize>>,
}

impl Worker {
    /// Follows the binds and accepts on them, until told to close; then waits for the end.
    async fn run(self, mut binds: watch::Receiver<Binds>, running: Accepting) {
        tokio::spawn(deadline::tick());
        let mut loops: BTreeMap<BindKey, (Arc<Listening>, CancellationToken)> = BTreeMap::new();
        loop {
            let wanted = binds.borrow_and_update().clone();
            loops.retain(|bind, (listening, stop)| {
                let stays = wanted
                    .get(bind)
                    .is_some_and(|other| Arc::ptr_eq(listening, other));
                if !stays {
                    stop.cancel();
                }
                stays
            });
            for (bind, listening) in wanted {
                loops.entry(bind).or_insert_with(|| {
                    let stop = self.closing.child_token();
                    self.listen(bind, &listening, &stop);
                    (listening, stop)
                });
            }
            tokio::select! {
                changed = binds.changed() => if changed.is_err() { break },
                () = self.closing.cancelled() => break,
            }
        }
        drop(running);
        // The connections, which are tasks of this runtime, may have time to end.
        self.cutting.cancelled().await;
        cut::cut();
        std::future::pending::<()>().await;
    }

    fn listen(&self, bind: BindKey, listening: &Listening, stop: &CancellationToken) {
        let Some(socket) = listening.take(self.index) else {
            return;
        };
        match TcpListener::from_std(socket) {
            Ok(listener) => {
                let plane = Arc::clone(&self.plane);
                let stop = stop.clone();
                let running = Accepting::new(&self.accepting);
                tokio::spawn(async move {
                    accept(&listener, bind, &plane, &stop, BACKLOG).await;
                    drop(listener);
                    drop(running);
                });
            }
            Err(error) => tracing::error!(%bind, %error, "cannot listen"),
        }
    }
}

/// Counts what may still accept while it runs.
struct Accepting(Arc<watch::Sender<usize>>);

impl Accepting {
    fn new(counter: &Arc<watch::Sender<usize>>) -> Self {
        counter.send_modify(|count| *count += 1);
        Self(Arc::clone(counter))
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Accepts until `stop`, and then who has begun to connect: closing the socket would reset them. No
/// more of those than a whole `queue`.
async fn accept(
    listener: &TcpListener,
    bind: BindKey,
    plane: &Arc<DataPlane>,
    stop: &CancellationToken,
    queue: u16,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((client, peer)) => take(plane, client, peer, bind),
            Err(error) => {
                if plane.accept_errors.is_due(Instant::now()) {
                    tracing::warn!(%bind, %error, "cannot accept");
                }
                // Out of file descriptors or memory: what ends connections also ends this, so only
                // not to spin.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // Clients that never stop coming must not put it off.
        if stop.is_cancelled() {
            break;
        }
    }
    let mut queue = queue;
    if listen::refuse_new(&SockRef::from(listener)).is_ok() {
        let mut settled = pin!(tokio::time::sleep(listen::SETTLE));
        while queue > 0 {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut settled => break,
            };
            let Ok((client, peer)) = accepted else { break };
            take(plane, client, peer, bind);
            queue -= 1;
        }
    }
    let socket = SockRef::from(listener);
    for _ in 0..queue {
        let Ok((client, peer)) = socket.accept() else {
            return;
        };
        let client: std::net::TcpStream = client.into();
        if client.set_nonblocking(true).is_ok()
            && let Ok(client) = TcpStream::from_std(client)
            && let Some(peer) = peer.as_socket()
        {
            take(plane, client, peer, bind);
        }
    }
}

fn take(plane: &Arc<DataPlane>, client: TcpStream, peer: SocketAddr, bind: BindKey) {
    #[cfg(not(target_os = "linux"))]
    let _ = client.set_nodelay(true);
    plane.accept(client, peer, bind);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn what_is_accepted_after_the_stop_is_bounded() {
        let limits = Limits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let bind = BindKey {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _clients: Vec<_> = (0..9)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        // The driver sees that there is something to accept.
        tokio::task::yield_now().await;
        let stop = CancellationToken::new();
        stop.cancel();
        accept(&listener, bind, &plane, &stop, 3).await;
        // The one that came before the stop was looked at, and those.
        assert!((3..=4).contains(&plane.active()), "{}", plane.active());
        accept(&listener, bind, &plane, &stop, BACKLOG).await;
        assert_eq!(plane.active(), 9);
    }

    #[test]
    fn what_fails_all_the_time_is_logged_seldom() {
        let seldom = Seldom::default();
        let start = Instant::now();
        let every = Duration::from_millis(10);
        let logged = (0..1000).filter(|step| seldom.is_due(start + every * *step));
        assert_eq!(logged.count(), 10);
    }
}
