//! Owns the worker threads and their listening sockets. Each worker has a single-threaded runtime, and its own
//! `SO_REUSEPORT` socket for each bind. A worker that accepts a connection serves it to its end, unless it has far more
//! to do than another worker, which then gets the connection at once. Workers share nothing but the snapshot and the
//! counters.
//!
//! The sockets of a bind stay open as long as there is any listener on it. What happens to a
//! bind ends no connection; a tunnel ends when the configuration no longer serves it, and an HTTPS connection when it no
//! longer admits its client (`lifetime`).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::bind::{BindKey, Transport};
use crate::listen::{self, BACKLOG, Binds, Listening, Sockets, WorkerSocket};
use crate::plane::DataPlane;
use crate::worker_choice::{Passed, WorkerChoice};
use crate::{connection, cut, deadline, gate, http, lifetime, udp};

/// How long connections have to end in order after they are cut.
const LINGER: Duration = Duration::from_secs(2);

/// HTTP/1.1 connections without a request are closed after one of this many parts of the time to drain. Until then,
/// their next request is served, and its response tells the client that the connection ends. If they were closed
/// earlier, a request could already be on its way.
const IDLE_PART: u32 = 2;

/// Most connections that are accepted before open connections get their turn.
const ACCEPTS: u32 = 16;

/// The worker threads of a data plane.
///
/// Their `Drop` ends all connections at once, while [`Self::drain`] first gives them time.
pub struct Workers {
    plane: Arc<DataPlane>,
    threads: Vec<JoinHandle<()>>,
    sockets: Sockets,
    /// Cancelled to cut the connections.
    cutting: CancellationToken,
    /// Cancelled to end the threads.
    ending: CancellationToken,
    /// Number of workers that may still accept.
    accepting: watch::Receiver<usize>,
}

impl Workers {
    /// Starts `count` threads (at least one). They do not listen anywhere yet.
    pub fn start(plane: Arc<DataPlane>, count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let closing = plane.closing().clone();
        let cutting = CancellationToken::new();
        let ending = CancellationToken::new();
        let (accepts, accepting) = watch::channel(0);
        let accepts = Arc::new(accepts);
        let binds = watch::Sender::new(Binds::new());
        let mut threads = Vec::with_capacity(count);
        let mut runtimes = Vec::with_capacity(count);
        for _ in 0..count {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtimes.push(runtime.enable_io().enable_time().build()?);
        }
        let choices = WorkerChoice::of_all(runtimes.iter().map(Runtime::metrics));
        for (index, (runtime, (choice, passed))) in runtimes.into_iter().zip(choices).enumerate() {
            let worker = Worker {
                index,
                plane: Arc::clone(&plane),
                closing: closing.clone(),
                cutting: cutting.clone(),
                accepting: Arc::clone(&accepts),
                choice: Arc::new(choice),
            };
            let (binds, ending) = (binds.subscribe(), ending.clone());
            let running = Accepting::new(&accepts);
            let run = move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = worker.run(binds, passed, running) => {}
                        () = ending.cancelled() => {}
                    }
                });
                // This drops the connections that are left, and so counts and logs them.
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
            cutting,
            ending,
            accepting,
        })
    }

    /// A handle to open and close the sockets of these workers.
    #[must_use]
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Stops accepting, after it has accepted clients that have already begun to connect. Then waits until all
    /// connections have ended or `deadline` has passed, and cuts those that are left. Returns how many these were.
    /// Connections without a request have half of that time.
    pub async fn drain(mut self, deadline: Duration) -> usize {
        self.plane.metrics.draining.set(1);
        self.plane.begin_leaving();
        self.plane.close();
        let plane = Arc::clone(&self.plane);
        let closed = async {
            // Connections that the accept loops still take from the queues count as well.
            let _ = self.accepting.wait_for(|accepting| *accepting == 0).await;
            plane.idle().await;
        };
        let mut closed = pin!(closed);
        let first = deadline / IDLE_PART;
        let mut ended = tokio::time::timeout(first, closed.as_mut()).await;
        if ended.is_err() {
            plane.close_idle();
            ended = tokio::time::timeout(deadline.saturating_sub(first), closed).await;
        }
        let left = ended.map_or_else(|_| plane.active(), |()| 0);
        if left > 0 {
            self.cutting.cancel();
            let _ = tokio::time::timeout(LINGER, plane.idle()).await;
        }
        self.ending.cancel();
        let threads = std::mem::take(&mut self.threads);
        // The threads end at once. But joining them blocks, which must not happen on a thread of this runtime.
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
        self.plane.close();
        self.ending.cancel();
    }
}

/// The part of one worker thread.
struct Worker {
    index: usize,
    plane: Arc<DataPlane>,
    closing: CancellationToken,
    cutting: CancellationToken,
    accepting: Arc<watch::Sender<usize>>,
    choice: Arc<WorkerChoice<Accepting>>,
}

impl Worker {
    /// Follows the binds and accepts on them until it is told to close. Then waits for the end.
    async fn run(
        self,
        mut binds: watch::Receiver<Binds>,
        passed: mpsc::Receiver<Passed<Accepting>>,
        running: Accepting,
    ) {
        tokio::spawn(deadline::tick());
        tokio::spawn(gate::keep());
        tokio::spawn(cut::rouse_at_each(self.plane.changes()));
        tokio::spawn(lifetime::tick());
        let inbox = self.plane.snapshot.load().concerned().subscribe();
        let metrics = Arc::clone(&self.plane.metrics);
        tokio::spawn(lifetime::ring_at_changes(inbox, move |count| {
            metrics.tunnels_judged.inc_by(count);
        }));
        tokio::spawn(http::pool::sweep(Arc::clone(&self.plane)));
        tokio::spawn(take_passed(Arc::clone(&self.plane), passed));
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
                    let stop = match bind.transport {
                        Transport::Tcp => self.closing.child_token(),
                        // The socket of a UDP bind carries the sessions, which continue until they are cut.
                        Transport::Udp => CancellationToken::new(),
                    };
                    self.listen(bind, &listening, &stop);
                    (listening, stop)
                });
            }
            tokio::select! {
                // Sockets that were bound just before the end listen already, so they are taken first. Otherwise nobody
                // would accept what is in their queues.
                biased;
                changed = binds.changed() => if changed.is_err() { break },
                () = self.closing.cancelled() => break,
            }
        }
        drop(running);
        // The connections are tasks of this runtime, so it must run while they have time to end.
        self.cutting.cancelled().await;
        cut::cut();
        std::future::pending::<()>().await;
    }

    fn listen(&self, bind: BindKey, listening: &Listening, stop: &CancellationToken) {
        let Some(socket) = listening.take(self.index) else {
            return;
        };
        let socket = match socket {
            WorkerSocket::Tcp(socket) => socket,
            WorkerSocket::Udp(socket) => {
                let plane = Arc::clone(&self.plane);
                tokio::spawn(udp::serve(socket, bind, plane, stop.clone()));
                return;
            }
        };
        match TcpListener::from_std(socket) {
            Ok(listener) => {
                let plane = Arc::clone(&self.plane);
                let stop = stop.clone();
                let running = Accepting::new(&self.accepting);
                let (choice, accepting) = (Arc::clone(&self.choice), Arc::clone(&self.accepting));
                tokio::spawn(async move {
                    let guard = || Accepting::new(&accepting);
                    let keep = |client, peer| {
                        let kept = choice.keep(client, peer, bind, guard);
                        if matches!(kept, Ok(None)) {
                            plane.metrics.connections_passed.inc();
                        }
                        kept
                    };
                    accept(&listener, bind, &plane, &stop, BACKLOG, keep).await;
                    drop(listener);
                    drop(running);
                });
            }
            Err(error) => tracing::error!(%bind, %error, "the proxy cannot listen for connections"),
        }
    }
}

/// Counts a worker that may still accept, until it is dropped.
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

/// Takes the connections that other workers pass on.
async fn take_passed(plane: Arc<DataPlane>, mut passed: mpsc::Receiver<Passed<Accepting>>) {
    while let Some(connection) = passed.recv().await {
        let taken = connection.take(|client, peer, bind| take(&plane, client, peer, bind));
        if let Err(error) = taken
            && plane.may_warn(Instant::now())
        {
            tracing::warn!(%error, "cannot take a connection of another worker");
        }
    }
}

/// Accepts until `stop`, and serves what `keep` returns. After that, it accepts clients that have already begun to
/// connect, because closing the socket would reset them. There are at most as many of these as a `queue` holds.
async fn accept(
    listener: &TcpListener,
    bind: BindKey,
    plane: &Arc<DataPlane>,
    stop: &CancellationToken,
    queue: u16,
    keep: impl Fn(TcpStream, SocketAddr) -> io::Result<Option<TcpStream>>,
) {
    let mut left = ACCEPTS;
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let kept = accepted.and_then(|(client, peer)| Ok((keep(client, peer)?, peer)));
        match kept {
            Ok((Some(client), peer)) => take(plane, client, peer, bind),
            Ok((None, _)) => {}
            Err(error) => {
                if plane.may_warn(Instant::now()) {
                    tracing::warn!(%bind, %error, "the proxy cannot accept connections");
                }
                // There are no more file descriptors or memory. This ends when connections end, so the pause only
                // keeps the loop from spinning.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // New clients that never stop arriving must not delay the end.
        if stop.is_cancelled() {
            break;
        }
        left -= 1;
        if left == 0 {
            left = ACCEPTS;
            tokio::task::yield_now().await;
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
    connection::accept(plane, client, peer, bind);
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::net::Ipv4Addr;
    use std::task::Poll;

    use vestibule_model::endpoint::EndpointRules;
    use vestibule_stream::proto::{self, tls_listener::Mode};

    use super::*;
    use crate::apply::{Binder, State};
    use crate::limits::ProxyLimits;
    use crate::table::Snapshot;

    #[tokio::test]
    async fn those_that_stand_do_not_wait_for_all_that_come() {
        let plane = Arc::new(DataPlane::new(
            Arc::default(),
            Arc::default(),
            ProxyLimits::default(),
        ));
        let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..100)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let stop = CancellationToken::new();
        let mut accepting = pin!(accept(
            &listener,
            bind,
            &plane,
            &stop,
            BACKLOG,
            |client, _| Ok(Some(client))
        ));
        let (mut accepted, mut most) = (0, 0);
        // They end at once, because there is no configuration.
        while accepted < clients.len() as u64 {
            poll_fn(|cx| Poll::Ready(accepting.as_mut().poll(cx).is_pending())).await;
            let now = plane.metrics.connections_accepted.get();
            most = most.max(now - accepted);
            accepted = now;
            tokio::task::yield_now().await;
        }
        assert_eq!(most, u64::from(ACCEPTS));
    }

    /// Leaves all clients to the first worker.
    struct OneWorker(Sockets);

    impl Binder for OneWorker {
        fn open(&mut self, bind: &BindKey) -> io::Result<()> {
            self.0.open(bind)?;
            drop(self.0.opened().get(bind).and_then(|bind| bind.take(1)));
            Ok(())
        }

        fn settle(&mut self, snapshot: &Snapshot) {
            self.0.settle(snapshot);
        }
    }

    #[tokio::test]
    async fn a_worker_with_all_the_clients_passes_some_of_them_on() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let workers = Workers::start(Arc::clone(&plane), 2).unwrap();
        let mut state = State::new(Arc::clone(&plane.snapshot), EndpointRules::default()).unwrap();
        let protocol = proto::listener::Protocol::Tls(proto::TlsListener {
            mode: Some(Mode::Passthrough(proto::TlsPassthrough {})),
        });
        let mut binder = OneWorker(workers.sockets());
        listen::listen_anywhere(&mut state, &mut binder, proto::Transport::Tcp, &protocol);
        let address = *workers.sockets().bound().values().next().unwrap();
        // Each of them is waited for, because workers compare what they have.
        let mut clients = Vec::new();
        for number in 1..=80 {
            clients.push(TcpStream::connect(address).await.unwrap());
            while plane.active() < number {
                tokio::task::yield_now().await;
            }
        }
        let passed = plane.metrics.connections_passed.get();
        assert!((8..40).contains(&passed), "{passed}");
        // All of them end with their clients, whichever worker has them.
        drop(clients);
        assert_eq!(workers.drain(Duration::from_hours(1)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_request_do_not_use_up_the_time_to_drain() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let workers = Workers::start(Arc::clone(&plane), 1).unwrap();
        plane.enter();
        let mut changes = plane.changes();
        let idle = tokio::spawn({
            let plane = Arc::clone(&plane);
            async move {
                let _ = changes.wait_for(|()| plane.is_closing_idle()).await;
                plane.leave();
            }
        });
        assert_eq!(workers.drain(Duration::from_hours(1)).await, 0);
        idle.await.unwrap();
    }

    #[tokio::test]
    async fn connections_accepted_after_the_stop_are_limited() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _clients: Vec<_> = (0..9)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        // The driver sees that there is something to accept.
        tokio::task::yield_now().await;
        let stop = CancellationToken::new();
        stop.cancel();
        accept(&listener, bind, &plane, &stop, 3, |client, _| {
            Ok(Some(client))
        })
        .await;
        // The one that came before the stop was looked at, and those.
        assert!((3..=4).contains(&plane.active()), "{}", plane.active());
        accept(&listener, bind, &plane, &stop, BACKLOG, |client, _| {
            Ok(Some(client))
        })
        .await;
        assert_eq!(plane.active(), 9);
    }
}
