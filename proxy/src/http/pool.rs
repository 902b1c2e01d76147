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

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::Version;
use hyper::client::conn::{http1, http2};
use tokio::sync::{Notify, watch};

use super::body::{Upload, UploadState};
use super::throttle::Throttle;
use crate::backend::Backend;
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::deadline::within;
use crate::plane::DataPlane;
use crate::table::Snapshot;
use crate::upstream::{Alpn, Meter, OnMeter, TlsIdentity};

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
/// Most requests at one time on an HTTP/2 connection. For more requests, another connection is opened.
pub(super) const STREAMS: u32 = 100;
/// Requests on an HTTP/2 connection that the proxy may give up before the connection gets no further ones. Each is a reset
/// for the backend, and common servers end a connection with a few hundred of them, with all requests on it. Together with
/// those that are under way by then, there are fewer than 150.
const MAX_GIVEN_UP: usize = 50;
/// Most HTTP/2 connections to an endpoint that a request looks at, so that a tenant with thousands of them makes no request
/// costly. Those of them that are full go to the end, so the next request looks at other ones.
const LOOKED_AT: usize = 32;
/// Most requests on an HTTP/2 connection that the proxy gives up. Those that are under way when it has given up many may all
/// follow.
pub(super) const MOST_RESETS: usize = MAX_GIVEN_UP + STREAMS as usize;
/// How often the pool is swept.
const SWEEP: Duration = Duration::from_secs(1);

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::default());
}

/// The purpose of a connection. Connections with equal keys can replace each other.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The backend, in any version.
    pub(super) backend: Arc<Backend>,
    pub(super) endpoint: SocketAddr,
    /// The protocols that were offered when it was opened.
    pub(super) alpn: Alpn,
    pub(super) tls: Option<TlsIdentity>,
    /// Whether it has one request at a time in HTTP/2 too. The backend might end the connection because of a request,
    /// and that ends all requests on it.
    pub(super) alone: bool,
    /// The tenant whose requests share it in HTTP/2, where one request can disturb the others. Tenants may have routes to
    /// one Service.
    pub(super) tenant: TenantKey,
}

/// What a connection has to have in common with a new one.
type Purpose = (Alpn, Option<TlsIdentity>, bool, TenantKey);

impl Key {
    /// Whether requests at the same time share one connection.
    pub(super) fn is_shared(&self) -> bool {
        self.alpn == Alpn::Http2 && !self.alone
    }

    fn parts(&self) -> (usize, SocketAddr, Purpose) {
        let identity = self.backend.identity();
        let purpose = (self.alpn, self.tls, self.alone, self.tenant);
        (identity, self.endpoint, purpose)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// The handle by which requests are sent on a connection.
pub(super) enum Sender {
    One(One),
    Two(Two),
}

/// The handle of an HTTP/2 connection.
#[derive(Clone)]
pub(super) struct Two {
    pub(super) sender: http2::SendRequest<Upload>,
    /// How many requests the backend takes at one time; `None` until it has said so.
    most: watch::Receiver<Option<u32>>,
    pub(super) meter: Arc<Meter>,
    /// How many of its requests the proxy gave up.
    given_up: Arc<AtomicUsize>,
}

impl Two {
    pub(super) fn new(
        sender: http2::SendRequest<Upload>,
        most: watch::Receiver<Option<u32>>,
        meter: Arc<Meter>,
    ) -> Self {
        Self {
            sender,
            most,
            meter,
            given_up: Arc::default(),
        }
    }

    /// How many requests it may have at one time. As long as the backend has not said how many it takes, that is one, as a
    /// rule the one which opened the connection: those beyond the bound would wait behind the others, or be refused.
    fn most(&self) -> usize {
        let most = self.most.borrow().unwrap_or(1);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Waits until the backend has said how many requests it takes. The result is false if the connection ends before.
    pub(super) fn settles(&self) -> impl Future<Output = bool> + use<> {
        let mut most = self.most.clone();
        async move {
            let known = most.wait_for(Option::is_some).await;
            known.is_ok()
        }
    }
}

/// An HTTP/1.1 connection.
pub(super) struct One {
    /// hyper allocates room for 32 requests on each connection, so bodies are in boxes to keep that small.
    pub(super) sender: http1::SendRequest<Box<Upload>>,
    /// The bound on how fast it is read.
    pub(super) throttle: Arc<Throttle>,
    pub(super) meter: Arc<Meter>,
}

impl One {
    pub(super) fn new(
        sender: http1::SendRequest<Box<Upload>>,
        throttle: Arc<Throttle>,
        meter: Arc<Meter>,
    ) -> Self {
        Self {
            sender,
            throttle,
            meter,
        }
    }
}

impl Sender {
    fn meter(&self) -> &Arc<Meter> {
        match self {
            Self::One(one) => &one.meter,
            Self::Two(two) => &two.meter,
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        // If nobody wants the response, hyper ends the connection at its next read, so the read must not be held back.
        self.throttle.release();
    }
}

struct Pool {
    endpoints: HashMap<Key, Kept>,
    /// Number of HTTP/1.1 connections to the backends of each namespace.
    namespaces: HashMap<Box<str>, Rc<Cell<usize>>>,
    /// HTTP/2 connections that are being opened.
    opening: HashMap<Key, Arc<Attempt>>,
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
    one: VecDeque<(One, Instant)>,
    /// HTTP/2 connections. Those that were found to be full are at the end.
    two: VecDeque<Shared>,
}

impl Kept {
    /// The HTTP/2 connection with the fewest requests among the next [`LOOKED_AT`], if one of them takes another request.
    /// Full ones go to the end. The others stay in front, so that those which nobody needs get no requests and end.
    fn take_two(&mut self, alone: bool) -> Option<Two> {
        let most_here = if alone { 1 } else { STREAMS as usize };
        let mut free = Vec::new();
        for _ in 0..self.two.len().min(LOOKED_AT) {
            let Some(shared) = self.two.pop_front() else {
                break;
            };
            if shared.is_closed() {
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
    two: Two,
    idle_since: Instant,
}

impl Shared {
    /// Whether it gets no further requests. Those under way go on.
    fn is_closed(&self) -> bool {
        let is_worn = self.two.given_up.load(Ordering::Relaxed) >= MAX_GIVEN_UP;
        is_worn || self.two.sender.is_closed() || self.two.meter.is_over()
    }
}

/// A connection that a request has.
pub(super) struct Lease {
    key: Key,
    pub(super) sender: Sender,
    /// Counts the request until it is over. Its body has this too.
    active: Arc<OnMeter>,
    /// Whether no other request may have the connection.
    spent: bool,
    /// The request that was sent on it, as long as it has not ended.
    request: Option<SentRequest>,
}

/// A request that was sent on an HTTP/2 connection. If it is dropped before its end, the backend gets a reset.
struct SentRequest {
    given_up: Arc<AtomicUsize>,
    upload: Arc<UploadState>,
    /// Whether it has come to its end on both sides, or the backend itself ended it.
    ended: bool,
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Lease {
    /// A lease of a new connection. From here on, other requests can use it if it is one of HTTP/2.
    pub(super) fn new(key: Key, sender: Sender) -> Self {
        let active = Arc::new(OnMeter::new(sender.meter()));
        if let Sender::Two(two) = &sender {
            let shared = Shared {
                two: two.clone(),
                idle_since: Instant::now(),
            };
            let _ = POOL.try_with(|pool| {
                pool.borrow_mut()
                    .kept_for(key.clone())
                    .two
                    .push_back(shared);
            });
        }
        Self {
            key,
            sender,
            active,
            spent: false,
            request: None,
        }
    }

    /// Records that a request is sent on the connection. Unless it [ends](Self::ended), it counts as given up.
    pub(super) fn sends(&mut self, upload: &mut Upload) {
        let Sender::Two(two) = &self.sender else {
            return upload.take_place(None);
        };
        upload.take_place(Some(Arc::clone(&self.active)));
        self.request = Some(SentRequest {
            given_up: Arc::clone(&two.given_up),
            upload: Arc::clone(upload.state()),
            ended: false,
        });
    }

    /// Records that the connection did not send the request, or that the backend ended it.
    pub(super) fn ended(&mut self) {
        if let Some(request) = &mut self.request {
            request.ended = true;
        }
    }

    /// Keeps the connection from being used again.
    pub(super) fn spend(&mut self) {
        self.spent = true;
    }

    /// The version of HTTP that is spoken on the connection.
    pub(super) fn version(&self) -> Version {
        match &self.sender {
            Sender::One(_) => Version::HTTP_11,
            Sender::Two(..) => Version::HTTP_2,
        }
    }

    /// The meter of the connection.
    pub(super) fn meter(&self) -> &Arc<Meter> {
        self.sender.meter()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.key.tls.is_some()
    }

    /// Gives the connection back, because its response was read to the end. Its request may not have been sent to the
    /// end yet; the connection is not used again before that.
    pub(super) fn give_back(self) {
        let Self {
            key,
            sender,
            active,
            spent,
            request,
        } = self;
        if let Some(mut request) = request {
            // A request whose response came early may still be sent. Its client may break it off.
            request.ended = request.upload.is_whole();
        }
        drop(active);
        let Sender::One(one) = sender else { return };
        if spent || one.sender.is_closed() {
            return;
        }
        one.throttle.release();
        // If a connection does not stay in the pool, it is dropped outside of the borrow.
        let _ = POOL.try_with(|pool| pool.borrow_mut().put(key, one));
    }

    /// The bound on how fast the connection is read. Only HTTP/1.1 connections have this.
    pub(super) fn throttle(&self) -> Option<&Throttle> {
        match &self.sender {
            Sender::One(one) => Some(&one.throttle),
            Sender::Two(..) => None,
        }
    }
}

/// What a request does that needs an HTTP/2 connection which many requests can share.
pub(super) enum Turn {
    /// It opens the connection.
    Open(Opening),
    /// It looks for a connection, because another request has opened one, or because its patience is at its end.
    Look,
    /// It does without, because another request failed to open the connection.
    Failed(CloseReason),
}

/// An HTTP/2 connection that one request opens, and for which others wait.
#[derive(Default)]
struct Attempt {
    over: Notify,
    /// Why it cannot be opened.
    failure: OnceLock<CloseReason>,
    /// Whether the request that opened it is gone, and another one has to.
    vacant: AtomicBool,
}

/// A request holds it while it opens a connection. If it is dropped, one of the requests that wait opens the connection
/// instead.
pub(super) struct Opening {
    key: Key,
    attempt: Arc<Attempt>,
    is_over: bool,
}

impl Opening {
    /// Tells the requests that wait about the connection as soon as its backend has said how many it takes, so that no more
    /// of them get it. If the backend does not say so in the time `allowed`, or the connection ends, that is their failure,
    /// and they go to another endpoint. If it `was_late`, the request that opened it had little time left, which says
    /// nothing to them, and another one opens a connection.
    pub(super) async fn end_when_settled(
        self,
        settles: impl Future<Output = bool>,
        allowed: Duration,
        was_late: bool,
    ) {
        match within(allowed, settles).await {
            Ok(true) => self.end(None),
            Ok(false) => self.end(Some(CloseReason::BackendReset)),
            Err(_) if was_late => drop(self),
            Err(_) => self.end(Some(CloseReason::BackendConnectTimeout)),
        }
    }

    /// Tells all requests that wait that the connection is open, or why it cannot be opened. All of them have the same
    /// failure, because one after the other would only fail again.
    pub(super) fn end(mut self, failure: Option<CloseReason>) {
        if let Some(failure) = failure {
            // This is the only place that sets it, and it comes here once.
            let _ = self.attempt.failure.set(failure);
        }
        self.is_over = true;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // The pool and this value have it, and each request that waits.
        let is_over = self.is_over || Arc::strong_count(&self.attempt) <= 2;
        if is_over {
            let removed = POOL.try_with(|pool| pool.borrow_mut().opening.remove(&self.key));
            drop(removed);
            self.attempt.over.notify_waiters();
        } else {
            self.attempt.vacant.store(true, Ordering::Relaxed);
            self.attempt.over.notify_one();
        }
    }
}

/// Asks whether to open an HTTP/2 connection, and waits, for as long as `patience` allows, if another request opens it.
pub(super) async fn turn(key: &Key, patience: Duration) -> Turn {
    let end = Instant::now() + patience;
    loop {
        let attempt = match POOL.with_borrow_mut(|pool| pool.begin(key)) {
            Ok(opening) => return Turn::Open(opening),
            Err(attempt) => attempt,
        };
        let left = end.saturating_duration_since(Instant::now());
        if within(left, attempt.over.notified()).await.is_err() {
            return Turn::Look;
        }
        if let Some(failure) = attempt.failure.get() {
            return Turn::Failed(*failure);
        }
        if !attempt.vacant.load(Ordering::Relaxed) {
            return Turn::Look;
        }
        // Nobody else was told that the request which opened it is gone, so this one does it without any further wait.
    }
}

/// Takes a connection that is open.
pub(super) fn take(key: &Key) -> Option<Lease> {
    POOL.with(|pool| pool.borrow_mut().take(key))
}

impl Pool {
    /// Begins to open an HTTP/2 connection, unless another request does.
    fn begin(&mut self, key: &Key) -> Result<Opening, Arc<Attempt>> {
        let attempt = match self.opening.get(key) {
            Some(attempt) if !attempt.vacant.swap(false, Ordering::Relaxed) => {
                return Err(Arc::clone(attempt));
            }
            Some(vacant) => Arc::clone(vacant),
            None => {
                let attempt = Arc::default();
                self.opening.insert(key.clone(), Arc::clone(&attempt));
                attempt
            }
        };
        Ok(Opening {
            key: key.clone(),
            attempt,
            is_over: false,
        })
    }

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
    fn put(&mut self, key: Key, one: One) -> Option<One> {
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
        let lease = |sender: Sender| Lease {
            key: key.clone(),
            active: Arc::new(OnMeter::new(sender.meter())),
            spent: false,
            request: None,
            sender,
        };
        if let Some(two) = kept.take_two(key.alone) {
            return Some(lease(Sender::Two(two)));
        }
        let before = kept.one.len();
        let mut busy = Vec::new();
        let taken = loop {
            let Some(last) = kept.one.pop_back() else {
                break None;
            };
            if last.0.sender.is_ready() {
                break Some(last);
            }
            // A connection that is not ready still sends the rest of a request.
            if !last.0.sender.is_closed() {
                busy.push(last);
            }
        };
        kept.one.extend(busy.into_iter().rev());
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
                !(gone || over || one.sender.is_closed())
            });
            kept.two.retain_mut(|shared| {
                if shared.two.meter.requests() > 0 {
                    shared.idle_since = now;
                    return !(gone || shared.is_closed());
                }
                let allowed = if key.alone { IDLE_ONE } else { IDLE_TWO };
                let over = now.saturating_duration_since(shared.idle_since) >= allowed;
                !(gone || over || shared.is_closed())
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
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};

    use hyper_util::rt::TokioIo;

    use super::*;
    use crate::slot_map::SlotAllocator;

    /// An established connection, and the values that keep it alive.
    async fn connection() -> (http1::SendRequest<Box<Upload>>, impl Sized) {
        let (near, far) = tokio::io::duplex(64);
        let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
        let driver = tokio::spawn(connection);
        sender.ready().await.unwrap();
        (sender, (far, driver))
    }

    fn key(slots: &mut SlotAllocator<Backend>, namespace: &str, host: u8) -> Key {
        let name = format!("{namespace}/web:80");
        Key {
            backend: Arc::new(Backend::new(name.into(), slots.allocate())),
            endpoint: ([10, 0, 0, host], 80).into(),
            alpn: Alpn::Http1,
            tls: None,
            alone: false,
            tenant: TenantKey::default(),
        }
    }

    /// Counts how often tasks are woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = Turn> + 'a>>;

    /// The request that opens a connection, others that wait for it, and how often these were woken.
    fn opening(key: &Key, waiting: usize) -> (Opening, VecDeque<Waiting<'_>>, Arc<Woken>) {
        let woken = Arc::<Woken>::default();
        let begin = || -> Waiting<'_> { Box::pin(turn(key, Duration::from_mins(1))) };
        let Poll::Ready(Turn::Open(opening)) = poll(&mut begin(), &woken) else {
            panic!("the first request waits");
        };
        let mut waiting: VecDeque<_> = (0..waiting).map(|_| begin()).collect();
        for of in &mut waiting {
            assert!(poll(of, &woken).is_pending());
        }
        (opening, waiting, woken)
    }

    fn poll(waiting: &mut Waiting<'_>, woken: &Arc<Woken>) -> Poll<Turn> {
        let waker = Waker::from(Arc::clone(woken));
        waiting.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// If each request opened the connection again, and all others were woken each time, this would be half a million.
    #[test]
    fn a_connection_that_cannot_be_opened_wakes_each_request_once() {
        let key = key(&mut SlotAllocator::default(), "dead", 1);
        let failure = CloseReason::BackendConnectFailed;
        let (opens, mut waiting, woken) = opening(&key, 1000);
        opens.end(Some(failure));
        for of in &mut waiting {
            let told = poll(of, &woken);
            assert!(matches!(told, Poll::Ready(Turn::Failed(of)) if of == failure));
        }
        assert_eq!(woken.0.load(Ordering::SeqCst), 1000);
        // The next one tries again, and this time the others look for its connection.
        let (opens, mut waiting, woken) = opening(&key, 10);
        opens.end(None);
        for of in &mut waiting {
            assert!(matches!(poll(of, &woken), Poll::Ready(Turn::Look)));
        }
    }

    #[test]
    fn another_request_opens_the_connection_of_one_that_is_gone() {
        let key = key(&mut SlotAllocator::default(), "slow", 1);
        let (mut opens, mut waiting, woken) = opening(&key, 1000);
        for count in 1..=500 {
            drop(opens);
            assert_eq!(woken.0.load(Ordering::SeqCst), 2 * count - 1);
            // Another one that is gone just when it was to open the connection.
            drop(waiting.pop_front());
            assert_eq!(woken.0.load(Ordering::SeqCst), 2 * count);
            let mut next = waiting.pop_front().unwrap();
            let Poll::Ready(Turn::Open(opening)) = poll(&mut next, &woken) else {
                panic!("nobody opens the connection");
            };
            opens = opening;
        }
        drop(opens);
        assert!(POOL.with_borrow(|pool| pool.opening.is_empty()));
    }

    #[tokio::test]
    async fn requests_wait_until_the_backend_has_said_how_many_it_takes() {
        let key = key(&mut SlotAllocator::default(), "settling", 1);
        let (opens, mut waiting, woken) = opening(&key, 10);
        // There was too little time for that, so another request opens one.
        let never = std::future::pending;
        opens.end_when_settled(never(), Duration::ZERO, true).await;
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let mut next = waiting.pop_front().unwrap();
        let Poll::Ready(Turn::Open(opens)) = poll(&mut next, &woken) else {
            panic!("nobody opens the connection");
        };
        let settled = std::future::ready(true);
        opens.end_when_settled(settled, Duration::ZERO, false).await;
        for of in &mut waiting {
            assert!(matches!(poll(of, &woken), Poll::Ready(Turn::Look)));
        }
        // A backend that does not say it, or that ends the connection, is a failure for all.
        for (said, expected) in [
            (Some(false), CloseReason::BackendReset),
            (None, CloseReason::BackendConnectTimeout),
        ] {
            let (opens, mut waiting, woken) = opening(&key, 10);
            let settles = async move {
                match said {
                    Some(said) => said,
                    None => never().await,
                }
            };
            opens.end_when_settled(settles, Duration::ZERO, false).await;
            for of in &mut waiting {
                let turn = poll(of, &woken);
                assert!(matches!(turn, Poll::Ready(Turn::Failed(why)) if why == expected));
            }
        }
    }

    #[tokio::test]
    async fn a_connection_has_as_many_requests_as_its_backend_takes() {
        let mut pool = Pool::default();
        let key = key(&mut SlotAllocator::default(), "new", 1);
        let (near, _far) = tokio::io::duplex(1024);
        let builder = http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
        let driver = tokio::spawn(connection);
        let (says, most) = watch::channel(None);
        let shared = Shared {
            two: Two::new(sender, most, Meter::test()),
            idle_since: Instant::now(),
        };
        pool.kept_for(key.clone()).two.push_back(shared);
        let mut leases = Vec::new();
        for (said, more) in [
            (None, 1),
            (Some(3), 2),
            (Some(2), 0),
            (Some(0), 0),
            (Some(u32::MAX), STREAMS as usize - 3),
        ] {
            says.send_replace(said);
            let before = leases.len();
            while let Some(lease) = pool.take(&key) {
                leases.push(lease);
            }
            assert_eq!(leases.len() - before, more, "{said:?}");
        }
        driver.abort();
    }

    #[tokio::test]
    async fn a_request_looks_at_few_of_many_connections() {
        let mut slots = SlotAllocator::default();
        let mut pool = Pool::default();
        let key = key(&mut slots, "busy", 1);
        let (mut meters, mut far) = (Vec::new(), Vec::new());
        for _ in 0..3 * LOOKED_AT {
            let (near, other) = tokio::io::duplex(1024);
            let builder = http2::Builder::new(hyper_util::rt::TokioExecutor::new());
            let (sender, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
            far.push((other, tokio::spawn(connection)));
            let meter = Meter::test();
            meters.push(Arc::clone(&meter));
            let shared = Shared {
                two: Two::new(sender, watch::channel(Some(1)).1, meter),
                idle_since: Instant::now(),
            };
            pool.kept_for(key.clone()).two.push_back(shared);
        }
        // All but the last one have a request.
        let last = meters.len() - 1;
        let busy: Vec<OnMeter> = meters[..last].iter().map(OnMeter::new).collect();
        let first = |pool: &mut Pool| {
            let meter = &pool.kept_for(key.clone()).two[0].two.meter;
            meters.iter().position(|of| Arc::ptr_eq(of, meter))
        };
        assert!(pool.take(&key).is_none());
        assert_eq!(first(&mut pool), Some(LOOKED_AT));
        assert!(pool.take(&key).is_none());
        // The free one is in front from then on, so those that nobody needs are not used.
        for _ in 0..3 {
            let lease = pool.take(&key).unwrap();
            assert!(Arc::ptr_eq(lease.meter(), &meters[last]));
            assert_eq!(first(&mut pool), Some(last));
        }
        // Those that have ended are dropped when they are met.
        drop(busy);
        for (_, driver) in far {
            driver.abort();
            let _ = driver.await;
        }
        assert!(pool.take(&key).is_none());
        assert_eq!(pool.kept_for(key.clone()).two.len(), 2 * LOOKED_AT);
    }

    #[tokio::test]
    async fn connections_of_one_namespace_leave_room_for_others() {
        let mut slots = SlotAllocator::default();
        let mut pool = Pool {
            most: 8,
            ..Pool::default()
        };
        let mut far = Vec::new();
        let mut put = async |pool: &mut Pool, key: &Key| {
            let (sender, other) = connection().await;
            far.push(other);
            let one = One::new(sender, Arc::default(), Meter::test());
            pool.put(key.clone(), one).is_none()
        };
        // These go to many endpoints, so that the bound per endpoint is not reached.
        let mut kept = 0;
        let busy: Vec<Key> = (0..20).map(|n| key(&mut slots, "busy", n)).collect();
        for key in &busy {
            kept += usize::from(put(&mut pool, key).await);
        }
        assert_eq!(kept, 4);
        let (second, third) = (key(&mut slots, "second", 1), key(&mut slots, "third", 1));
        for (key, expected) in [
            (&second, true),
            (&second, true),
            (&second, false),
            (&third, true),
        ] {
            assert_eq!(put(&mut pool, key).await, expected);
        }
        assert_eq!(pool.idle, 7);
        // Connections that are taken no longer count.
        assert!(pool.take(&busy[0]).is_some());
        assert!(pool.take(&busy[1]).is_some());
        assert!(pool.take(&busy[7]).is_none());
        assert_eq!(pool.idle, 5);
        assert!(put(&mut pool, &busy[9]).await);
        // None of these backends is in force, so the sweep closes every connection.
        pool.sweep(&Snapshot::default(), Instant::now());
        assert_eq!((pool.idle, pool.kept(), pool.namespaces.len()), (0, 0, 0));
        assert!(put(&mut pool, &busy[0]).await);
    }
}
