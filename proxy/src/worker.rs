//! Owns the worker threads and the sockets they listen on: one single-threaded runtime per worker,
//! each with its own `SO_REUSEPORT` socket per bind, so that a connection stays on one thread from
//! accept to end and workers share nothing but the snapshot and the counters.
//!
//! Sockets outlive configuration: a bind's sockets stay as long as any listener is on it, and a
//! connection keeps what it started with whatever happens to its bind.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::accesslog::Record;
use crate::connection::{self, CloseReason};
use crate::metrics::Metrics;
use crate::table::{BindKey, Snapshot};

/// Connections that the kernel queues per socket until they are accepted.
const BACKLOG: i32 = 4096;
/// Commands that wait for a worker.
const COMMANDS: usize = 64;

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
    /// Connections at one time that have not finished hello and handshake.
    pub max_hellos: usize,
    /// Whether a line is logged per connection.
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
    hellos: AtomicUsize,
    /// Told when the last connection ends.
    idle: Notify,
}

impl DataPlane {
    /// The shared part of a data plane without workers.
    #[must_use]
    pub fn new(snapshot: Arc<ArcSwap<Snapshot>>, metrics: Arc<Metrics>, limits: Limits) -> Self {
        Self {
            snapshot,
            metrics,
            limits,
            active: AtomicUsize::new(0),
            hellos: AtomicUsize::new(0),
            idle: Notify::new(),
        }
    }

    /// Connections open now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
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
    fn permit(self: &Arc<Self>) -> Option<HelloPermit> {
        let before = self.hellos.fetch_add(1, Ordering::AcqRel);
        let permit = HelloPermit(Arc::clone(self));
        (before < self.limits.max_hellos && self.active() <= self.limits.max_connections)
            .then_some(permit)
    }

    /// Takes a connection over.
    fn accept(self: &Arc<Self>, client: TcpStream, peer: SocketAddr, bind: BindKey) {
        let mut record = Record::new(Arc::clone(self), peer, bind);
        match self.permit() {
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
pub(crate) struct HelloPermit(Arc<DataPlane>);

impl Drop for HelloPermit {
    fn drop(&mut self) {
        self.0.hellos.fetch_sub(1, Ordering::AcqRel);
    }
}

enum Command {
    Listen(BindKey, std::net::TcpListener),
    Unlisten(BindKey),
}

/// A bind whose sockets could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {bind}: {source}")]
pub struct BindError {
    /// Where.
    pub bind: BindKey,
    /// Why.
    pub source: io::Error,
}

/// The worker threads of a data plane.
///
/// Dropping it ends all connections at once; [`Self::drain`] first gives them time.
pub struct Workers {
    plane: Arc<DataPlane>,
    workers: Vec<Worker>,
    bound: BTreeMap<BindKey, SocketAddr>,
    /// Cancelled to stop accepting.
    closing: CancellationToken,
    /// Cancelled to end the threads.
    ending: CancellationToken,
    /// Accept loops that still run.
    accepting: watch::Receiver<usize>,
}

struct Worker {
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads (at least one) that listen nowhere yet.
    pub fn start(plane: Arc<DataPlane>, count: usize) -> io::Result<Self> {
        let closing = CancellationToken::new();
        let ending = CancellationToken::new();
        let (accepts, accepting) = watch::channel(0);
        let accepts = Arc::new(accepts);
        let workers = (0..count.max(1))
            .map(|index| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_io()
                    .enable_time()
                    .build()?;
                let (commands, inbox) = mpsc::channel(COMMANDS);
                let plane = Arc::clone(&plane);
                let (closing, ending) = (closing.clone(), ending.clone());
                let accepts = Arc::clone(&accepts);
                let thread = std::thread::Builder::new()
                    .name(format!("worker-{index}"))
                    .spawn(move || {
                        runtime.block_on(async {
                            tokio::select! {
                                () = run(inbox, &plane, &closing, &accepts) => {}
                                () = ending.cancelled() => {}
                            }
                        });
                        // Drops the connections that are left, which logs and counts them.
                        drop(runtime);
                    })?;
                Ok(Worker {
                    commands,
                    thread: Some(thread),
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            plane,
            workers,
            bound: BTreeMap::new(),
            closing,
            ending,
            accepting,
        })
    }

    /// Opens the sockets of binds that the snapshot has and closes those of binds that it has no
    /// longer. Existing connections are not touched. Returns the binds that could not be opened;
    /// they are tried again with the next call.
    pub async fn reconcile(&mut self) -> Vec<BindError> {
        let wanted: BTreeSet<BindKey> = self.plane.snapshot.load().binds().copied().collect();
        let gone: Vec<BindKey> = self
            .bound
            .keys()
            .filter(|bind| !wanted.contains(bind))
            .copied()
            .collect();
        for bind in gone {
            self.bound.remove(&bind);
            for worker in &self.workers {
                // Fails only where the thread is gone, and its sockets with it.
                let _ = worker.commands.send(Command::Unlisten(bind)).await;
            }
        }
        let mut errors = Vec::new();
        for bind in wanted {
            if self.bound.contains_key(&bind) {
                continue;
            }
            match open(bind, self.workers.len(), self.plane.limits.keepalive) {
                Ok((address, listeners)) => {
                    self.bound.insert(bind, address);
                    for (worker, listener) in self.workers.iter().zip(listeners) {
                        let _ = worker.commands.send(Command::Listen(bind, listener)).await;
                    }
                }
                Err(source) => errors.push(BindError { bind, source }),
            }
        }
        self.plane
            .metrics
            .binds
            .set(i64::try_from(self.bound.len()).unwrap_or(i64::MAX));
        errors
    }

    /// The addresses listened on, by bind. They differ where a bind's port is 0.
    #[must_use]
    pub fn bound(&self) -> &BTreeMap<BindKey, SocketAddr> {
        &self.bound
    }

    /// Stops accepting, after what the kernel has queued, and waits until the connections have
    /// ended or `deadline` is over; then ends what is left. Returns how many those were.
    pub async fn drain(mut self, deadline: Duration) -> usize {
        self.closing.cancel();
        let plane = Arc::clone(&self.plane);
        let closed = async {
            // What the accept loops took from the queues counts too.
            let _ = self.accepting.wait_for(|accepting| *accepting == 0).await;
            loop {
                let idle = plane.idle.notified();
                if plane.active() == 0 {
                    break;
                }
                idle.await;
            }
        };
        let left = match tokio::time::timeout(deadline, closed).await {
            Ok(()) => 0,
            Err(_) => plane.active(),
        };
        self.ending.cancel();
        let threads: Vec<_> = self
            .workers
            .iter_mut()
            .filter_map(|w| w.thread.take())
            .collect();
        // The threads end at once; joining them must not hold up this runtime all the same.
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

/// Opens one socket per worker on a bind.
fn open(
    bind: BindKey,
    count: usize,
    keepalive: Duration,
) -> io::Result<(SocketAddr, Vec<std::net::TcpListener>)> {
    let mut address = SocketAddr::new(bind.address, bind.port);
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let domain = if address.is_ipv6() {
            Domain::IPV6
        } else {
            Domain::IPV4
        };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(!bind.address.is_unspecified())?;
        }
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit both of these on Linux.
        socket.set_tcp_nodelay(true)?;
        connection::set_keepalive(&socket, keepalive)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = std::net::TcpListener::from(socket);
        // A port of 0 is chosen once and then shared.
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok((address, listeners))
}

/// One worker: follows the commands and accepts on its sockets.
async fn run(
    mut inbox: mpsc::Receiver<Command>,
    plane: &Arc<DataPlane>,
    closing: &CancellationToken,
    accepting: &Arc<watch::Sender<usize>>,
) {
    let mut listening: HashMap<BindKey, CancellationToken> = HashMap::new();
    while let Some(command) = inbox.recv().await {
        match command {
            Command::Listen(bind, listener) => {
                let stop = closing.child_token();
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        listening.insert(bind, stop.clone());
                        let plane = Arc::clone(plane);
                        let count = Accepting::new(accepting);
                        tokio::spawn(async move {
                            accept(&listener, bind, &plane, &stop).await;
                            drop(listener);
                            drop(count);
                        });
                    }
                    Err(error) => tracing::error!(%bind, %error, "cannot listen"),
                }
            }
            Command::Unlisten(bind) => {
                if let Some(stop) = listening.remove(&bind) {
                    stop.cancel();
                }
            }
        }
    }
    // The handle is gone, but its connections may have time to end.
    std::future::pending::<()>().await;
}

/// Counts an accept loop while it runs.
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

/// Accepts until `stop`, and then what is queued: closing the socket would reset it.
async fn accept(
    listener: &TcpListener,
    bind: BindKey,
    plane: &Arc<DataPlane>,
    stop: &CancellationToken,
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
                tracing::warn!(%bind, %error, "cannot accept");
                // Out of file descriptors or memory: what ends connections also ends this, so only
                // not to spin.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let socket = SockRef::from(listener);
    while let Ok((client, peer)) = socket.accept() {
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
