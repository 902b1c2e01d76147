//! The end of a proxy in a cluster: unready at once, accepting until everybody knows, then drained;
//! and the endpoint that probes and scrapers see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::{ConfigSource, Proxy};
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_test_support::eventually;
use vestibule_test_support::{free_port, http_get};

const SET: &str = "ListenerSet/team-b/web/tls";
const HOST: &str = "b.example.com";

/// A proxy of four workers with one passthrough host, and the backend's certificate.
async fn start(backend_address: SocketAddr) -> (Proxy, SocketAddr) {
    let mut config = proxy_config(ConfigSource::Caller);
    config.workers = 4;
    config.admin = Some("127.0.0.1:0".parse().unwrap());
    config.health = Some("[::]:0".parse().unwrap());
    config.limits = ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    };
    let mut proxy = Proxy::start(config).await.unwrap();
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let ack = proxy.apply(&Operator::default().batch(
        &[
            listener_at(SET, bind, HOST, None),
            tls_route("team-b/web", SET, HOST, "team-b/web:443"),
            backend("team-b/web:443", &[backend_address]),
        ],
        &[],
    ));
    assert_eq!((ack.rejects, ack.refusal), (vec![], None));
    (proxy, bind)
}

/// Where IPv4 reaches an endpoint on `[::]`.
fn v4(endpoint: SocketAddr) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], endpoint.port()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_sees_health_and_nothing_else() {
    let own = Identity::new(HOST);
    let (proxy, _) = start(tls_backend("b", "127.0.0.1:0", &own).await).await;
    let health = v4(proxy.health().unwrap());
    assert_eq!(http_get(health, "/healthz").await.0, 200);
    assert_eq!(http_get(health, "/readyz").await.0, 200);
    assert_eq!(http_get(health, "/servingz").await.0, 200);
    let (status, metrics) = http_get(health, "/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("vestibule_proxy_ready 1"), "{metrics}");
    for path in ["/", "/config", "/status", "/config/", "//config"] {
        assert_eq!(http_get(health, path).await.0, 404, "{path}");
    }
    assert_eq!(http_get(proxy.admin().unwrap(), "/config").await.0, 200);
}

/// The admin endpoint listens on loopback so that nobody but the pod itself reaches it, and the pod itself is a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn no_backend_is_the_admin_or_the_health_endpoint() {
    let own = Identity::new(HOST);
    let (mut proxy, bind) = start(tls_backend("b", "127.0.0.1:0", &own).await).await;
    let mut operator = Operator::default();
    operator.batch(&[], &[]);
    let endpoints = [proxy.admin().unwrap(), v4(proxy.health().unwrap())];
    for (count, endpoint) in (1..).zip(endpoints) {
        let ack = proxy.apply(&operator.batch(&[backend("team-b/web:443", &[endpoint])], &[]));
        assert_eq!((ack.rejects, ack.refusal), (vec![], None));
        request(bind, HOST, &own.chain[0]).await.unwrap_err();
        eventually("the connection was refused", async || {
            proxy.metrics().closed_count("BackendLoop") == count
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_however_many_connections_one_client_holds() {
    let own = Identity::new(HOST);
    let (proxy, _) = start(tls_backend("b", "127.0.0.1:0", &own).await).await;
    let health = v4(proxy.health().unwrap());
    // One pod that takes all it gets, and a kubelet with another address.
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(TcpStream::connect(health).await.unwrap());
    }
    let kubelet = tokio::net::TcpSocket::new_v4().unwrap();
    kubelet.bind("127.0.0.9:0".parse().unwrap()).unwrap();
    let mut probe = kubelet.connect(health).await.unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    probe.write_all(request).await.unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(held);
}

/// Clients that come and go all the time until they are told to stop.
struct Load {
    stop: AtomicBool,
    served: AtomicUsize,
    /// When a client was refused or reset, and how.
    failures: parking_lot::Mutex<Vec<(Instant, String)>>,
}

impl Load {
    fn start(address: SocketAddr, root: &[u8]) -> Arc<Self> {
        let load = Arc::new(Self {
            stop: AtomicBool::new(false),
            served: AtomicUsize::new(0),
            failures: parking_lot::Mutex::default(),
        });
        for _ in 0..32 {
            let (load, root) = (Arc::clone(&load), root.to_vec());
            tokio::spawn(async move {
                while !load.stop.load(Ordering::Acquire) {
                    load.one(address, &root).await;
                }
            });
        }
        load
    }

    async fn one(&self, address: SocketAddr, root: &[u8]) {
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => {
                let refused = (Instant::now(), format!("not connected: {error}"));
                return self.failures.lock().push(refused);
            }
        };
        // Whoever is connected is served, whenever that was.
        let answer = async { Client::over(stream, HOST, root).await?.ask("hi").await };
        match answer.await {
            Ok(_) => {
                self.served.fetch_add(1, Ordering::AcqRel);
            }
            Err(error) => {
                let broken = (Instant::now(), format!("connected, then: {error}"));
                self.failures.lock().push(broken);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_come_after_the_delay_are_still_served() {
    let own = Identity::new(HOST);
    let (proxy, bind) = start(tls_backend("b", "127.0.0.1:0", &own).await).await;
    let health = v4(proxy.health().unwrap());
    let load = Load::start(bind, &own.chain[0]);
    eventually("some load", async || {
        load.served.load(Ordering::Acquire) > 100
    })
    .await;

    let delay = Duration::from_secs(1);
    let begun = Instant::now();
    let ended = tokio::spawn(proxy.shut_down(delay, PATIENCE));
    let unready = async {
        while http_get(health, "/readyz").await.0 != 503 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, unready).await.unwrap();
    assert_eq!(http_get(health, "/servingz").await.0, 200);
    // It goes on taking connections, unready as it is, for as long as they come: some load balancer has not heard of it.
    eventually("the delay is over", async || begun.elapsed() > 2 * delay).await;
    let before = load.served.load(Ordering::Acquire);
    eventually("served while it leaves", async || {
        load.served.load(Ordering::Acquire) > before + 10
    })
    .await;
    assert!(!ended.is_finished());
    load.stop.store(true, Ordering::Release);
    assert_eq!(ended.await.unwrap(), 0, "none was cut");
    let failures = load.failures.lock();
    assert!(failures.is_empty(), "{failures:?}");
}

/// A backend that talks all the time, and what it got in the end.
async fn chatty() -> (SocketAddr, tokio::task::JoinHandle<std::io::Result<usize>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = stream.into_split();
        tokio::spawn(async move {
            while write.write_all(&[7; 64]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let mut taken = Vec::new();
        read.read_to_end(&mut taken).await
    });
    (address, taken)
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_is_cut_ends_in_order_however_much_is_under_way() {
    let (address, taken) = chatty().await;
    let (mut proxy, bind) = start(address).await;
    let mut operator = Operator::default();
    operator.batch(&[], &[]);
    let host = "a.example.com";
    let edit = operator.batch(
        &[
            listener_at(SET, bind, host, None),
            tls_route("team-b/web", SET, host, "team-b/web:443"),
        ],
        &[],
    );
    assert_eq!(proxy.apply(&edit).rejects, []);

    let (mut read, mut write) = TcpStream::connect(bind).await.unwrap().into_split();
    write
        .write_all(include_bytes!("hellos/go-mlkem.bin"))
        .await
        .unwrap();
    assert_eq!(read.read_u8().await.unwrap(), 7);
    // Both talk all the time, so that something is always unread when the end comes.
    tokio::spawn(async move { while write.write_all(&[8; 64]).await.is_ok() {} });
    let got = tokio::spawn(async move {
        let mut got = Vec::new();
        read.read_to_end(&mut got).await
    });
    let cut = proxy.shut_down(Duration::ZERO, Duration::ZERO).await;
    assert_eq!(cut, 1);
    for end in [got, taken] {
        let end = tokio::time::timeout(PATIENCE, end).await.unwrap();
        let bytes = end.unwrap().expect("an end, not a reset");
        assert!(bytes > 0);
    }
}
