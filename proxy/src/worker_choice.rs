//! Owns the choice of the worker that serves a new connection.
//!
//! The kernel spreads connections over the sockets of a bind by a hash of the addresses. It does not know which
//! connections end early and which stay, so one worker can end up with many more than another. A worker that has far
//! more than its share gives new connections to the one that has the least. A connection that a worker has begun to
//! serve stays there to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::runtime::RuntimeMetrics;
use tokio::sync::mpsc;

use crate::bind::BindKey;

/// Most connections that wait for a worker to take them. A worker that takes none gets no more.
const MAX_WAITING: usize = 16;

/// A worker may have this many tasks more than 5/4 of the mean before it gives connections away. To move a connection
/// costs several system calls, so small differences are not worth it.
const SLACK: usize = 16;

/// A connection that another worker accepted.
pub(crate) struct Passed<G> {
    client: std::net::TcpStream,
    peer: SocketAddr,
    bind: BindKey,
    /// Counts as a worker that may still accept, until somebody serves the connection.
    guard: G,
}

impl<G> Passed<G> {
    /// Registers the socket with the runtime of the worker that calls this, and serves it there.
    pub(crate) fn take(self, serve: impl FnOnce(TcpStream, SocketAddr, BindKey)) -> io::Result<()> {
        serve(TcpStream::from_std(self.client)?, self.peer, self.bind);
        drop(self.guard);
        Ok(())
    }
}

/// How much another worker has to do, and how it gets connections.
struct Colleague<G> {
    /// Tasks of a worker are its connections, and the requests and backend connections of these.
    tasks: RuntimeMetrics,
    inbox: mpsc::Sender<Passed<G>>,
}

impl<G> Colleague<G> {
    fn load(&self) -> Load {
        let free = self.inbox.capacity();
        let waiting = self.inbox.max_capacity() - free;
        Load {
            tasks: self.tasks.num_alive_tasks().saturating_add(waiting),
            takes: free > 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Load {
    tasks: usize,
    /// Whether there is room for a connection to wait.
    takes: bool,
}

/// All workers, as one of them sees them.
pub(crate) struct WorkerChoice<G> {
    all: Arc<[Colleague<G>]>,
    own: usize,
}

impl<G> WorkerChoice<G> {
    /// Gives every worker its view of all, and the connections that the others pass to it.
    pub(crate) fn of_all(
        tasks: impl Iterator<Item = RuntimeMetrics>,
    ) -> Vec<(Self, mpsc::Receiver<Passed<G>>)> {
        let (all, inboxes): (Vec<_>, Vec<_>) = tasks
            .map(|tasks| {
                let (inbox, passed) = mpsc::channel(MAX_WAITING);
                (Colleague { tasks, inbox }, passed)
            })
            .unzip();
        let all: Arc<[Colleague<G>]> = all.into();
        let inboxes = inboxes.into_iter().enumerate();
        inboxes
            .map(|(own, passed)| {
                let all = Arc::clone(&all);
                (Self { all, own }, passed)
            })
            .collect()
    }

    /// Passes the connection to another worker if this one has far too much. Otherwise returns it. Fails if the kernel
    /// does not let the socket go, which is closed then.
    pub(crate) fn keep(
        &self,
        client: TcpStream,
        peer: SocketAddr,
        bind: BindKey,
        guard: impl FnOnce() -> G,
    ) -> io::Result<Option<TcpStream>> {
        if self.all.len() < 2 {
            return Ok(Some(client));
        }
        let loads = self.all.iter().map(Colleague::load);
        let place = chosen(loads, self.own).and_then(|worker| {
            let inbox = &self.all.get(worker)?.inbox;
            inbox.try_reserve().ok()
        });
        let Some(place) = place else {
            return Ok(Some(client));
        };
        place.send(Passed {
            client: client.into_std()?,
            peer,
            bind,
            guard: guard(),
        });
        Ok(None)
    }
}

/// The worker that gets the next connection of the worker `own`, if that is another one.
fn chosen(loads: impl Iterator<Item = Load>, own: usize) -> Option<usize> {
    let (mut workers, mut sum, mut ours) = (0_usize, 0_usize, 0);
    let mut least: Option<(usize, usize)> = None;
    for (worker, load) in loads.enumerate() {
        workers += 1;
        sum = sum.saturating_add(load.tasks);
        if worker == own {
            ours = load.tasks.saturating_sub(SLACK);
        } else if load.takes && least.is_none_or(|(_, other)| load.tasks < other) {
            least = Some((worker, load.tasks));
        }
    }
    let (worker, theirs) = least?;
    // Multiplied by the number of workers and by four, so that nothing is lost to rounding.
    let has_too_much = ours.saturating_mul(4 * workers) > sum.saturating_mul(5);
    (has_too_much && theirs < ours).then_some(worker)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn load(tasks: usize) -> Load {
        Load { tasks, takes: true }
    }

    #[test]
    fn only_a_worker_with_far_too_much_gives_connections_away() {
        let chosen = |loads: &[usize], own| chosen(loads.iter().map(|tasks| load(*tasks)), own);
        assert_eq!(chosen(&[], 0), None);
        assert_eq!(chosen(&[1_000], 0), None);
        assert_eq!(chosen(&[100, 100], 0), None);
        assert_eq!(chosen(&[120, 100, 130], 0), None);
        assert_eq!(chosen(&[17, 0], 0), None);
        assert_eq!(chosen(&[60, 0], 0), Some(1));
        assert_eq!(chosen(&[60, 0], 1), None);
        assert_eq!(chosen(&[900, 100, 50, 400], 0), Some(2));
        assert_eq!(chosen(&[usize::MAX, 0], 0), None);
    }

    #[test]
    fn a_worker_that_takes_nothing_leaves_the_connection_to_the_next_one() {
        let mut loads = [900, 0, 50, 400].map(load);
        assert_eq!(chosen(loads.into_iter(), 0), Some(1));
        loads[1].takes = false;
        assert_eq!(chosen(loads.into_iter(), 0), Some(2));
        loads[2].takes = false;
        loads[3].takes = false;
        assert_eq!(chosen(loads.into_iter(), 0), None);
    }

    /// A connection to a socket of this process, as a worker accepts it.
    async fn accepted() -> (TcpStream, TcpStream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (server, peer) = listener.accept().await.unwrap();
        (client.unwrap(), server, peer)
    }

    #[test]
    fn a_worker_that_takes_nothing_gets_no_more_than_can_wait() {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap()
        };
        let (busy, free) = (runtime(), runtime());
        let mut choices = WorkerChoice::of_all([busy.metrics(), free.metrics()].into_iter());
        let (_, mut passed) = choices.pop().unwrap();
        let (choice, _) = choices.pop().unwrap();
        let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 0);
        let guards = Arc::new(());
        busy.block_on(async {
            for _ in 0..100 {
                tokio::spawn(std::future::pending::<()>());
            }
            let mut clients = Vec::new();
            for number in 0..=MAX_WAITING {
                let (client, server, peer) = accepted().await;
                let kept = choice.keep(server, peer, bind, || Arc::clone(&guards));
                let kept = kept.unwrap();
                assert_eq!(kept.is_some(), number == MAX_WAITING, "{number}");
                clients.push(client);
            }
            assert_eq!(Arc::strong_count(&guards), MAX_WAITING + 1);
            // The other worker serves them.
            let clients_of_other = clients.split_off(1);
            let mut first = clients.pop().unwrap();
            let serving = std::thread::spawn(move || {
                free.block_on(async {
                    let passed = passed.recv().await.unwrap();
                    let mut taken = None;
                    let take = |client, _, at| {
                        assert_eq!(at, bind);
                        taken = Some(client);
                    };
                    passed.take(take).unwrap();
                    taken.unwrap().write_all(b"served").await.unwrap();
                });
            });
            let mut answer = String::new();
            first.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "served");
            serving.join().unwrap();
            drop(clients_of_other);
        });
        // What nobody has taken counts no more, now that the other worker has ended.
        assert_eq!(Arc::strong_count(&guards), 1);
    }

    proptest! {
        /// Whatever the loads are, a connection goes only to a worker that has less, and from one above the mean.
        #[test]
        fn a_connection_goes_where_there_is_less(loads in prop::collection::vec(0..100_000_usize, 1..9), own: prop::sample::Index) {
            let own = own.index(loads.len());
            if let Some(worker) = chosen(loads.iter().map(|tasks| load(*tasks)), own) {
                prop_assert!(loads[worker] + SLACK < loads[own]);
                prop_assert!(loads.iter().all(|load| loads[worker] <= *load));
                prop_assert!(loads[own] * loads.len() > loads.iter().sum());
            }
        }
    }
}
