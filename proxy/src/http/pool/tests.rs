use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::super::backend_http1::Http1Backend;
use super::opening::DialGuard;
use super::*;
use crate::backend::Backend;
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::slot_map::SlotAllocator;
use crate::upstream::{Alpn, Meter, Metered, OnMeter, Stream};

/// An established connection, and its other end.
async fn connection() -> (Http1Sender, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await;
    let meter = Meter::test();
    let stream = Stream::Plain(Metered::new(near.unwrap(), Arc::clone(&meter)));
    let one = Http1Sender {
        connection: Http1Backend::new(stream, None),
        meter,
    };
    (one, listener.accept().await.unwrap().0)
}

fn key(slots: &mut SlotAllocator<Backend>, namespace: &str, host: u8) -> Key {
    let name = format!("{namespace}/web:80");
    Key {
        backend: Arc::new(Backend::new(name.into(), slots.allocate())),
        endpoint: ([10, 0, 0, host], 80).into(),
        alpn: Alpn::Http1,
        tls: None,
        send_proxy: None,
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
fn opening(key: &Key, waiting: usize) -> (DialGuard, VecDeque<Waiting<'_>>, Arc<Woken>) {
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
        two: Http2Sender::new(sender, most, Meter::test()),
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
            two: Http2Sender::new(sender, watch::channel(Some(1)).1, meter),
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
        let (one, other) = connection().await;
        far.push(other);
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
