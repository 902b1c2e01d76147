//! Owns the queue of reviews that wait to be judged. It is round robin between sources and, within a source, between
//! the namespaces of the objects, because one API server asks for all tenants.
//!
//! A source or namespace with many or slow reviews waits only for its own. Judging cannot be interrupted. So no source
//! may take all places, and no namespace all places of its source.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How many reviews are judged at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    /// Reviews of all sources together.
    pub(super) all: usize,
    /// Reviews of one source.
    pub(super) of_source: usize,
    /// Reviews of one namespace of a source.
    pub(super) of_namespace: usize,
}

/// The queue. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct JudgingQueue {
    limits: QueueLimits,
    state: Arc<Mutex<QueueState>>,
}

#[derive(Debug, Default)]
struct QueueState {
    judged: usize,
    sources: Rotation<IpAddr, SourceQueue>,
}

/// The reviews of one source.
#[derive(Debug, Default)]
struct SourceQueue {
    judged: usize,
    namespaces: Rotation<String, NamespaceQueue>,
}

/// The reviews of one namespace of a source.
#[derive(Debug, Default)]
struct NamespaceQueue {
    judged: usize,
    waiting: VecDeque<oneshot::Sender<JudgingPermit>>,
}

/// Entries, and the order of turns among those with waiting reviews.
#[derive(Debug)]
struct Rotation<K, V> {
    entries: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Rotation<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }
}

/// Permission to judge one review. Its `Drop` lets the next review begin.
#[derive(Debug)]
pub(super) struct JudgingPermit {
    source: IpAddr,
    namespace: String,
    queue: JudgingQueue,
}

impl JudgingQueue {
    pub(super) fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            state: Arc::default(),
        }
    }

    /// Waits for a permit. If the future is dropped, the review leaves the queue.
    pub(super) async fn wait(&self, source: IpAddr, namespace: &str) -> JudgingPermit {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.state
                .lock()
                .wait(source.to_canonical(), namespace, sender);
            self.grant();
            // A sender is never dropped while its receiver waits.
            if let Ok(permit) = receiver.await {
                return permit;
            }
        }
    }

    /// Gives free places to the reviews that have their turn.
    fn grant(&self) {
        let mut granted = Vec::new();
        let mut state = self.state.lock();
        while state.judged < self.limits.all
            && let Some((sender, source, namespace)) = state.next(&self.limits)
        {
            let queue = self.clone();
            granted.push((
                sender,
                JudgingPermit {
                    source,
                    namespace,
                    queue,
                },
            ));
        }
        drop(state);
        // This happens without the lock. If a receiver has just stopped waiting, its permit is dropped here, which
        // takes the lock to free the place.
        for (sender, permit) in granted {
            let _ = sender.send(permit);
        }
    }

    /// How many reviews are being judged, and how many wait.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        let waiting = state
            .sources
            .entries
            .values()
            .flat_map(|source| source.namespaces.entries.values())
            .flat_map(|namespace| &namespace.waiting)
            .filter(|sender| !sender.is_closed());
        (state.judged, waiting.count())
    }
}

impl QueueState {
    fn wait(&mut self, address: IpAddr, name: &str, sender: oneshot::Sender<JudgingPermit>) {
        let source = self.sources.entries.entry(address).or_default();
        if source.namespaces.order.is_empty() {
            self.sources.order.push_back(address);
        }
        let namespace = source.namespaces.entries.entry(name.to_owned());
        let namespace = namespace.or_default();
        if namespace.waiting.is_empty() {
            source.namespaces.order.push_back(name.to_owned());
        }
        namespace.waiting.push_back(sender);
    }

    /// Takes the next review that waits and may be judged, and counts it. It skips at most as many sources and
    /// namespaces as have reviews being judged, because one without any may always have a turn.
    fn next(
        &mut self,
        limits: &QueueLimits,
    ) -> Option<(oneshot::Sender<JudgingPermit>, IpAddr, String)> {
        for _ in 0..self.sources.order.len() {
            let address = self.sources.order.pop_front()?;
            let Some(source) = self.sources.entries.get_mut(&address) else {
                continue;
            };
            let next = if source.judged < limits.of_source {
                source.next(limits)
            } else {
                None
            };
            if !source.namespaces.order.is_empty() {
                self.sources.order.push_back(address);
            } else if source.judged == 0 {
                self.sources.entries.remove(&address);
            }
            if let Some((sender, name)) = next {
                self.judged += 1;
                return Some((sender, address, name));
            }
        }
        None
    }

    fn end(&mut self, address: IpAddr, name: &str) {
        self.judged = self.judged.saturating_sub(1);
        let Some(source) = self.sources.entries.get_mut(&address) else {
            return;
        };
        source.judged = source.judged.saturating_sub(1);
        if let Some(namespace) = source.namespaces.entries.get_mut(name) {
            namespace.judged = namespace.judged.saturating_sub(1);
            if namespace.is_idle() {
                source.namespaces.entries.remove(name);
            }
        }
        if source.namespaces.entries.is_empty() {
            self.sources.entries.remove(&address);
        }
    }
}

impl SourceQueue {
    fn next(&mut self, limits: &QueueLimits) -> Option<(oneshot::Sender<JudgingPermit>, String)> {
        for _ in 0..self.namespaces.order.len() {
            let name = self.namespaces.order.pop_front()?;
            let Some(namespace) = self.namespaces.entries.get_mut(&name) else {
                continue;
            };
            let mut next = None;
            if namespace.judged < limits.of_namespace {
                // Reviews that no longer wait are skipped.
                while next.is_none()
                    && let Some(sender) = namespace.waiting.pop_front()
                {
                    next = Some(sender).filter(|sender| !sender.is_closed());
                }
            }
            namespace.judged += usize::from(next.is_some());
            self.judged += usize::from(next.is_some());
            if !namespace.waiting.is_empty() {
                self.namespaces.order.push_back(name.clone());
            } else if namespace.is_idle() {
                self.namespaces.entries.remove(&name);
            }
            if let Some(sender) = next {
                return Some((sender, name));
            }
        }
        None
    }
}

impl NamespaceQueue {
    fn is_idle(&self) -> bool {
        self.judged == 0 && self.waiting.is_empty()
    }
}

impl Drop for JudgingPermit {
    fn drop(&mut self) {
        self.queue.state.lock().end(self.source, &self.namespace);
        self.queue.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tokio::task::JoinHandle;

    use super::*;

    const LIMITS: QueueLimits = QueueLimits {
        all: 4,
        of_source: 3,
        of_namespace: 2,
    };

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn ask(queue: &JudgingQueue, last: u8, namespace: &str) -> JoinHandle<JudgingPermit> {
        let (queue, namespace) = (queue.clone(), namespace.to_owned());
        tokio::spawn(async move { queue.wait(source(last), &namespace).await })
    }

    /// Lets every task that can run go on.
    async fn settle() {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn namespace_or_source_never_gets_the_last_places() {
        let queue = JudgingQueue::new(LIMITS);
        let greedy: Vec<_> = (0..100).map(|_| ask(&queue, 1, "greedy")).collect();
        settle().await;
        assert_eq!(queue.counts(), (2, 98));
        // Another namespace of the same API server.
        let other = ask(&queue, 1, "other").await.unwrap();
        assert_eq!(queue.counts(), (3, 98));
        let third = ask(&queue, 1, "third");
        settle().await;
        assert!(!third.is_finished());
        // Another source with a namespace of the same name.
        let elsewhere = ask(&queue, 2, "greedy").await.unwrap();
        assert_eq!(queue.counts(), (4, 99));
        drop(other);
        let third = third.await.unwrap();
        drop((third, elsewhere));
        for permit in greedy {
            drop(permit.await.unwrap());
        }
        assert_eq!(queue.counts(), (0, 0));
        assert!(queue.state.lock().sources.entries.is_empty());
        assert!(queue.state.lock().sources.order.is_empty());
    }

    #[tokio::test]
    async fn a_single_review_waits_for_at_most_one_of_each_source_and_namespace() {
        let one = QueueLimits {
            all: 1,
            of_source: 1,
            of_namespace: 1,
        };
        let queue = JudgingQueue::new(one);
        let held = queue.wait(source(9), "held").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        let asked = [(1, "a", 500), (2, "a", 500), (1, "b", 1), (3, "c", 1)];
        for (last, namespace, count) in asked {
            for _ in 0..count {
                let (queue, order) = (queue.clone(), Arc::clone(&order));
                all.push(tokio::spawn(async move {
                    let permit = queue.wait(source(last), namespace).await;
                    order.lock().push((last, namespace));
                    drop(permit);
                }));
            }
        }
        settle().await;
        drop(held);
        for one in all {
            one.await.unwrap();
        }
        let order = order.lock();
        let first = [(1, "a"), (2, "a"), (3, "c"), (1, "b"), (2, "a"), (1, "a")];
        assert_eq!(order[..6], first);
        assert_eq!(order.len(), 1002);
    }

    #[tokio::test]
    async fn review_that_stops_waiting_takes_no_place() {
        let queue = JudgingQueue::new(LIMITS);
        let first = queue.wait(source(1), "a").await;
        let second = queue.wait(source(1), "a").await;
        let waiting: Vec<_> = (0..5000).map(|_| ask(&queue, 1, "a")).collect();
        settle().await;
        for one in &waiting {
            one.abort();
        }
        for one in waiting {
            assert!(one.await.is_err());
        }
        drop(first);
        drop(second);
        assert_eq!(queue.counts(), (0, 0));
        drop(queue.wait(source(1), "a").await);
        assert!(queue.state.lock().sources.entries.is_empty());
    }

    proptest! {
        /// Whatever comes and goes in whatever order, the limits hold, no place is idle that somebody may have, and
        /// in the end nothing is left.
        #[test]
        fn limits_hold_and_no_place_is_idle(
            steps in prop::collection::vec((0_u8..3, 0_u8..3, 0_u8..4), 1..200)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let queue = JudgingQueue::new(LIMITS);
                let mut asked: Vec<JoinHandle<JudgingPermit>> = Vec::new();
                let mut judged: Vec<JudgingPermit> = Vec::new();
                for (last, name, what) in steps {
                    match what {
                        0 | 1 => asked.push(ask(&queue, last, &format!("n{name}"))),
                        2 if !judged.is_empty() => drop(judged.remove(usize::from(last) % judged.len())),
                        3 if !asked.is_empty() => {
                            let gone = asked.swap_remove(usize::from(name) % asked.len());
                            gone.abort();
                        }
                        _ => {}
                    }
                    for _ in 0..asked.len() + 2 {
                        tokio::task::yield_now().await;
                    }
                    let (ready, still) = asked.into_iter().partition(JoinHandle::is_finished);
                    asked = still;
                    for one in Vec::from_iter::<Vec<JoinHandle<JudgingPermit>>>(ready) {
                        judged.extend(one.await);
                    }
                    check(&queue, &judged);
                }
                for one in &asked {
                    one.abort();
                }
                for one in asked {
                    drop(one.await);
                }
                drop(judged);
                assert_eq!(queue.counts(), (0, 0));
            });
        }
    }

    fn check(queue: &JudgingQueue, judged: &[JudgingPermit]) {
        let of_source = |address: IpAddr| judged.iter().filter(|t| t.source == address).count();
        let of = |address: IpAddr, name: &str| {
            let same = |t: &&JudgingPermit| t.source == address && t.namespace == name;
            judged.iter().filter(same).count()
        };
        assert!(judged.len() <= LIMITS.all);
        assert_eq!(queue.counts().0, judged.len());
        let mut seen = BTreeSet::new();
        for permit in judged {
            assert!(of_source(permit.source) <= LIMITS.of_source);
            assert!(of(permit.source, &permit.namespace) <= LIMITS.of_namespace);
            seen.insert((permit.source, permit.namespace.clone()));
        }
        if judged.len() == LIMITS.all {
            return;
        }
        let state = queue.state.lock();
        for (address, source) in &state.sources.entries {
            for (name, namespace) in &source.namespaces.entries {
                let waits = namespace.waiting.iter().any(|one| !one.is_closed());
                assert!(
                    !waits
                        || of_source(*address) >= LIMITS.of_source
                        || of(*address, name) >= LIMITS.of_namespace,
                    "{address} {name} could be judged"
                );
            }
        }
    }
}
