//! Owns the pool of connections to backends. Each worker thread has a pool of its own: a connection stays on its
//! thread, so nothing has to be locked.
//!
//! An HTTP/1.1 connection is in the pool while it has no request. An HTTP/2 connection carries several requests, and is
//! in the pool as long as it is open. A connection is used again only for the same backend and endpoint, and only if a
//! new one would have the same protocol and TLS settings. Connections are dropped if they have been idle for too long,
//! if their endpoint is gone, or if there are too many. The backends of one namespace never use up the whole pool.
//!
//! Only requests of one tenant share an HTTP/2 connection, and one on which the proxy gave up many requests gets no further
//! ones.
//!
//! This file has the places of connections: which are kept, which one a request gets, and which are dropped. `connection` has
//! the handles of connections, `lease` has a connection while a request uses it, and `opening` has the wait for a connection
//! that another request opens.

mod connection;
mod lease;
mod opening;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plane::DataPlane;
use crate::table::Snapshot;
pub(super) use connection::{Http1Sender, Http2Sender, Key, MOST_RESETS, STREAMS, Sender};
pub(super) use lease::Lease;
use opening::SharedDial;
pub(super) use opening::{Turn, turn};

/// Most idle HTTP/1.1 connections that a worker keeps to one endpoint. If more requests than this come and go in waves, a
/// connection is opened for each that is too many, which costs as much as two requests.
const IDLE_PER_ENDPOINT: usize = 256;
/// Most idle connections that a worker keeps in total.
const IDLE_IN_ALL: usize = 4096;
/// How long an idle HTTP/1.1 connection is kept. Common servers close theirs after 5 s, and a request that is on its
/// way at that moment fails.
const IDLE_ONE: Duration = Duration::from_secs(4);
/// How long an HTTP/2 connection without requests is kept. It may be kept longer, because servers announce its end.
const IDLE_TWO: Duration = Duration::from_mins(1);
/// Most HTTP/2 connections to an endpoint that a request looks at, so that a tenant with thousands of them makes no request
/// costly. Those of them that are full go to the end, so the next request looks at other ones.
const LOOKED_AT: usize = 32;
/// How often the pool is swept.
const SWEEP: Duration = Duration::from_secs(1);

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::default());
}

struct Pool {
    endpoints: HashMap<Key, Kept>,
    /// Number of HTTP/1.1 connections to the backends of each namespace.
    namespaces: HashMap<Box<str>, Rc<Cell<usize>>>,
    /// HTTP/2 connections that are being opened.
    opening: HashMap<Key, Arc<SharedDial>>,
    /// Number of HTTP/1.1 connections in the pool.
    idle: usize,
    /// How many there may be.
    most: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            endpoints: HashMap::new(),
            namespaces: HashMap::new(),
            opening: HashMap::new(),
            idle: 0,
            most: IDLE_IN_ALL,
        }
    }
}

struct Kept {
    /// Number of HTTP/1.1 connections to all backends of the namespace.
    of_namespace: Rc<Cell<usize>>,
    /// HTTP/1.1 connections. The one that was used last is at the end.
    one: VecDeque<(Http1Sender, Instant)>,
    /// HTTP/2 connections. Those that were found to be full are at the end.
    two: VecDeque<Shared>,
}

impl Kept {
    /// The HTTP/2 connection with the fewest requests among the next [`LOOKED_AT`], if one of them takes another request.
    /// Full ones go to the end. The others stay in front, so that those which nobody needs get no requests and end.
    fn take_two(&mut self, alone: bool) -> Option<Http2Sender> {
        let most_here = if alone { 1 } else { STREAMS as usize };
        let mut free = Vec::new();
        for _ in 0..self.two.len().min(LOOKED_AT) {
            let Some(shared) = self.two.pop_front() else {
                break;
            };
            if shared.two.is_closed() {
                continue;
            }
            let requests = shared.two.meter.requests();
            if requests < shared.two.most().min(most_here) {
                free.push((requests, shared));
            } else {
                self.two.push_back(shared);
            }
        }
        let best = free.iter_mut().min_by_key(|(requests, _)| *requests);
        let best = best.map(|(_, shared)| {
            shared.idle_since = Instant::now();
            shared.two.clone()
        });
        for (_, shared) in free.into_iter().rev() {
            self.two.push_front(shared);
        }
        best
    }
}

/// An HTTP/2 connection.
struct Shared {
    two: Http2Sender,
    idle_since: Instant,
}

/// Takes a connection that is open.
pub(super) fn take(key: &Key) -> Option<Lease> {
    POOL.with(|pool| pool.borrow_mut().take(key))
}

impl Pool {
    /// The entry of an endpoint. It is created if there is none.
    fn kept_for(&mut self, key: Key) -> &mut Kept {
        let namespaces = &mut self.namespaces;
        self.endpoints.entry(key).or_insert_with_key(|key| {
            let name = &*key.backend.key;
            let namespace = name
                .split_once('/')
                .map_or(name, |(namespace, _)| namespace);
            let known = namespaces.get(namespace).map(Rc::clone);
            Kept {
                of_namespace: known.unwrap_or_else(|| {
                    let new = Rc::<Cell<usize>>::default();
                    namespaces.insert(namespace.into(), Rc::clone(&new));
                    new
                }),
                one: VecDeque::new(),
                two: VecDeque::new(),
            }
        })
    }

    /// Keeps a connection, and returns one that cannot be kept.
    ///
    /// A namespace may keep another connection as long as it has fewer than there are free places. So one namespace
    /// alone has at most half of all places, and the next one still finds some.
    fn put(&mut self, key: Key, one: Http1Sender) -> Option<Http1Sender> {
        let room = self.most.saturating_sub(self.idle);
        let kept = self.kept_for(key);
        if kept.one.len() >= IDLE_PER_ENDPOINT {
            kept.one.push_back((one, Instant::now()));
            return kept.one.pop_front().map(|(oldest, _)| oldest);
        }
        let held = kept.of_namespace.get();
        if held >= room {
            return Some(one);
        }
        kept.one.push_back((one, Instant::now()));
        kept.of_namespace.set(held + 1);
        self.idle += 1;
        None
    }

    fn take(&mut self, key: &Key) -> Option<Lease> {
        let kept = self.endpoints.get_mut(key)?;
        let lease = |sender: Sender| Lease::of(key.clone(), sender);
        if let Some(two) = kept.take_two(key.alone) {
            return Some(lease(Sender::Two(two)));
        }
        let before = kept.one.len();
        // Connections that have ended meanwhile are dropped.
        let taken = std::iter::from_fn(|| kept.one.pop_back()).find(|(one, _)| one.is_open());
        let gone = before - kept.one.len();
        let held = kept.of_namespace.get();
        kept.of_namespace.set(held.saturating_sub(gone));
        self.idle -= gone;
        taken.map(|(one, _)| lease(Sender::One(one)))
    }

    /// Drops connections that have been idle for too long, and those whose endpoint is gone from the configuration.
    fn sweep(&mut self, snapshot: &Snapshot, now: Instant) {
        for (key, kept) in &mut self.endpoints {
            let present = snapshot.backend(key.backend.slot());
            let gone = !present.is_some_and(|present| {
                present.is_version_of(&key.backend) && present.has(key.endpoint)
            });
            kept.one.retain(|(one, since)| {
                let over = now.saturating_duration_since(*since) >= IDLE_ONE;
                !gone && !over && one.is_open()
            });
            kept.two.retain_mut(|shared| {
                if shared.two.meter.requests() > 0 {
                    shared.idle_since = now;
                    return !(gone || shared.two.is_closed());
                }
                let allowed = if key.alone { IDLE_ONE } else { IDLE_TWO };
                let over = now.saturating_duration_since(shared.idle_since) >= allowed;
                !(gone || over || shared.two.is_closed())
            });
        }
        self.endpoints
            .retain(|_, kept| !(kept.one.is_empty() && kept.two.is_empty()));
        // The last request that waited may be gone as well, just when it was to open the connection.
        self.opening
            .retain(|_, attempt| Arc::strong_count(attempt) > 1);
        self.namespaces.retain(|_, held| {
            held.set(0);
            // The entries of endpoints hold the other references.
            Rc::strong_count(held) > 1
        });
        self.idle = 0;
        for kept in self.endpoints.values() {
            let held = kept.of_namespace.get();
            kept.of_namespace.set(held + kept.one.len());
            self.idle += kept.one.len();
        }
        self.endpoints.shrink_to_fit();
    }

    fn kept(&self) -> usize {
        let two: usize = self.endpoints.values().map(|kept| kept.two.len()).sum();
        self.idle + two
    }
}

/// Sweeps the pool of this thread, and never returns. Run it once per worker thread.
pub(crate) async fn sweep(plane: Arc<DataPlane>) {
    let mut reported = 0;
    loop {
        tokio::time::sleep(SWEEP).await;
        let snapshot = plane.snapshot.load_full();
        let kept = POOL.with_borrow_mut(|pool| {
            pool.sweep(&snapshot, Instant::now());
            pool.kept()
        });
        drop(snapshot);
        let kept = i64::try_from(kept).unwrap_or(i64::MAX);
        plane.metrics.backend_kept.inc_by(kept - reported);
        reported = kept;
    }
}

#[cfg(test)]
mod tests;
