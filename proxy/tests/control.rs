//! The control side of a proxy with real sockets: sockets outlive configuration, acknowledgements
//! tell the truth about ports, the admin endpoint, and a stream over a pipe in memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use vestibule_proxy::bind::BindKey;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::proxy::Connector;
use vestibule_proxy::{ConfigSource, Proxy, ProxyConfig};
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto::config_stream_server::{ConfigStream, ConfigStreamServer};
use vestibule_stream::proto::{OperatorMessage, ProxyMessage, operator_message, proxy_message};
use vestibule_stream::{ResourceKey, ResourceKind, client};
use vestibule_test_support::eventually;
use vestibule_test_support::{free_port, http_get};

async fn start(source: ConfigSource) -> Proxy {
    let mut config = proxy_config(source);
    config.workers = 2;
    config.admin = Some("127.0.0.1:0".parse().unwrap());
    config.limits = ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    };
    Proxy::start(config).await.unwrap()
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn bind_key(address: SocketAddr) -> BindKey {
    BindKey::tcp(address.ip(), address.port())
}

/// Repeatable randomness.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

const SET: &str = "ListenerSet/team-b/web/tls";
const SET_TERMINATED: &str = "ListenerSet/team-c/web/tls";

/// Tenant A edits everything there is, most of it at random, on the shared port and on another.
fn edit_at_random(
    proxy: &mut Proxy,
    operator: &mut Operator,
    bind: SocketAddr,
    extra_bind: SocketAddr,
    endpoint: SocketAddr,
) {
    let certificates: Vec<_> = (0..4).map(|_| Identity::new("*.a.example.com")).collect();
    let mut random = Random(7);
    for step in 0..10_000 {
        let n = random.below(20);
        let set = format!("ListenerSet/team-a/web-{n}/tls");
        let route_name = format!("team-a/web-{n}");
        let backend_name = format!("team-a/web-{n}:443");
        let secret = format!("team-a/web-{}", n % 4);
        let host = match random.below(3) {
            0 => format!("*.h{n}.a.example.com"),
            1 => format!("h{n}.a.example.com"),
            _ => format!("h{n}.b.example.com"),
        };
        let place = if random.below(8) == 0 {
            extra_bind
        } else {
            bind
        };
        let mode: Option<&[&str]> = if n.is_multiple_of(2) {
            Some(&[&secret])
        } else {
            None
        };
        let number = usize::try_from(random.below(4)).unwrap();
        let (upserts, removals) = match random.below(9) {
            0 | 1 => (vec![listener_at(&set, place, &host, mode)], vec![]),
            2 | 3 => (
                vec![tls_route(&route_name, &set, &host, &backend_name)],
                vec![],
            ),
            4 => (vec![backend(&backend_name, &[endpoint])], vec![]),
            5 => (vec![certificates[number].resource(&secret)], vec![]),
            6 => (vec![], vec![ResourceKey::new(ResourceKind::Listener, &set)]),
            7 => (
                vec![],
                vec![ResourceKey::new(ResourceKind::TlsRoute, &route_name)],
            ),
            _ => (
                vec![],
                vec![
                    ResourceKey::new(ResourceKind::Certificate, &secret),
                    ResourceKey::new(ResourceKind::Backend, &backend_name),
                ],
            ),
        };
        let ack = proxy.apply(&operator.batch(&upserts, &removals));
        assert_eq!(ack.refusal, None, "step {step}");
        assert_eq!(ack.rejects, [], "step {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_outlive_edits_of_others_and_end_with_what_led_to_them() {
    let own = Identity::new("b.example.com");
    let terminated = Identity::new("c.example.com");
    let bind = local(free_port());
    let extra_bind = local(free_port());
    let backend_b = tls_backend("b", "127.0.0.1:0", &own).await;
    let backend_c = plain_backend("c", "127.0.0.1:0").await;
    let mut proxy = start(ConfigSource::Caller).await;
    let mut operator = Operator::default();
    let ack = proxy.apply(&operator.batch(
        &[
            listener_at(SET, bind, "b.example.com", None),
            listener_at(SET_TERMINATED, bind, "c.example.com", Some(&["team-c/web"])),
            terminated.resource("team-c/web"),
            tls_route("team-b/web", SET, "b.example.com", "team-b/web:443"),
            tls_route(
                "team-c/web",
                SET_TERMINATED,
                "c.example.com",
                "team-c/web:80",
            ),
            backend("team-b/web:443", &[backend_b]),
            backend("team-c/web:80", &[backend_c]),
        ],
        &[],
    ));
    assert_eq!(ack.rejects, []);
    assert!(proxy.is_ready());

    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push((
            "b",
            Client::connect(bind, "b.example.com", &own.chain[0])
                .await
                .unwrap(),
        ));
        let client = Client::connect(bind, "c.example.com", &terminated.chain[0]).await;
        clients.push(("c", client.unwrap()));
    }
    for (name, client) in &mut clients {
        assert_eq!(
            client.ask("before").await.unwrap(),
            format!("{name} before")
        );
    }
    assert_eq!(proxy.connections(), 200);

    edit_at_random(&mut proxy, &mut operator, bind, extra_bind, backend_b);
    for (name, client) in &mut clients {
        assert_eq!(client.ask("after").await.unwrap(), format!("{name} after"));
    }
    assert_eq!(proxy.connections(), 200);

    // Backends and certificates may go: a connection keeps what it started with.
    let ack = proxy.apply(&operator.batch(
        &[],
        &[
            ResourceKey::new(ResourceKind::Backend, "team-b/web:443"),
            ResourceKey::new(ResourceKind::Backend, "team-c/web:80"),
            ResourceKey::new(ResourceKind::Certificate, "team-c/web"),
        ],
    ));
    assert_eq!(ack.rejects, []);
    for (name, client) in &mut clients {
        assert_eq!(
            client.ask("orphan").await.unwrap(),
            format!("{name} orphan")
        );
    }
    // But not what admitted it.
    let ack = proxy.apply(&operator.batch(
        &[],
        &[
            ResourceKey::new(ResourceKind::Listener, SET),
            ResourceKey::new(ResourceKind::Listener, SET_TERMINATED),
            ResourceKey::new(ResourceKind::TlsRoute, "team-b/web"),
            ResourceKey::new(ResourceKind::TlsRoute, "team-c/web"),
        ],
    ));
    assert_eq!(ack.rejects, []);
    for (_, client) in &mut clients {
        while client.ask("still there").await.is_ok() {}
    }
    wait("the end of all", || proxy.connections() == 0).await;
    assert!(request(bind, "b.example.com", &own.chain[0]).await.is_err());

    drop(clients);
    assert_eq!(proxy.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ack_tells_the_truth_about_ports() {
    let own = Identity::new("b.example.com");
    let backend_b = tls_backend("b", "127.0.0.1:0", &own).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (bad, good) = (taken.local_addr().unwrap(), local(free_port()));
    let mut proxy = start(ConfigSource::Caller).await;
    assert!(!proxy.is_ready());
    let mut operator = Operator::default();
    let other = "ListenerSet/team-a/web/tls";
    let resources = [
        listener_at(other, bad, "", None),
        listener_at(SET, good, "b.example.com", None),
        tls_route("team-b/web", SET, "b.example.com", "team-b/web:443"),
        backend("team-b/web:443", &[backend_b]),
    ];
    let ack = proxy.apply(&operator.batch(&resources, &[]));
    assert_eq!(ack.rejects.len(), 1);
    assert_eq!(ack.rejects[0].reason, "PortUnavailable");
    assert_eq!(ack.rejects[0].key.as_ref().unwrap().name, other);
    assert_eq!(proxy.bound(&bind_key(bad)), None);
    assert_eq!(proxy.bound(&bind_key(good)), Some(good));
    // Acknowledged is served, at once.
    assert_eq!(
        request(good, "b.example.com", &own.chain[0]).await.unwrap(),
        "b hi"
    );

    // A second proxy of the same user does not get half of the connections.
    let mut second = start(ConfigSource::Caller).await;
    let ack = second.apply(&Operator::default().batch(&resources[1..2], &[]));
    assert_eq!(ack.rejects[0].reason, "PortUnavailable");

    // A rejected listener is not held, so it can be sent again when the port is free.
    drop(taken);
    let ack = proxy.apply(&operator.batch(&resources[..1], &[]));
    assert_eq!(ack.rejects, []);
    assert_eq!(proxy.bound(&bind_key(bad)), Some(bad));
    // A bind that goes and comes back at once is no conflict with itself.
    for _ in 0..20 {
        let gone = operator.batch(&[], &[ResourceKey::new(ResourceKind::Listener, other)]);
        assert_eq!(proxy.apply(&gone).rejects, []);
        assert_eq!(
            proxy.apply(&operator.batch(&resources[..1], &[])).rejects,
            []
        );
    }
    let metrics = proxy.metrics().encode().unwrap();
    let line = "vestibule_proxy_config_rejects_total{reason=\"PortUnavailable\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_on_loopback_are_refused_and_counted_unless_the_settings_allow_them() {
    let mut config = ProxyConfig::new(ConfigSource::Caller);
    config.workers = 1;
    let mut proxy = Proxy::start(config).await.unwrap();
    let pod = SocketAddr::from(([192, 0, 2, 7], 8080));
    let resources = [
        backend("team-a/web:80", &[local(8080), pod]),
        backend("team-b/web:80", &[local(8080)]),
    ];
    let ack = proxy.apply(&Operator::default().batch(&resources, &[]));
    assert_eq!(ack.rejects.len(), 1, "{ack:?}");
    assert_eq!(ack.rejects[0].reason, "InvalidEndpoint");
    assert_eq!(ack.rejects[0].key.as_ref().unwrap().name, "team-b/web:80");
    assert_eq!(proxy.counts().backends, 1);
    let metrics = proxy.metrics().encode().unwrap();
    for line in [
        "vestibule_proxy_config_rejects_total{reason=\"InvalidEndpoint\"} 1\n",
        "vestibule_proxy_config_endpoints_left_out_total 1\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }

    let mut allowed = start(ConfigSource::Caller).await;
    let ack = allowed.apply(&Operator::default().batch(&resources, &[]));
    assert_eq!((ack.rejects, ack.refusal), (vec![], None));
    assert_eq!(allowed.counts().backends, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unspecified_ipv6_bind_takes_both_families() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // Containers without IPv6: nothing to see here, and binds of other tests are IPv4.
        return;
    }
    let own = Identity::new("b.example.com");
    let backend_b = tls_backend("b", "[::1]:0", &own).await;
    let port = free_port();
    let bind = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
    let mut proxy = start(ConfigSource::Caller).await;
    let ack = proxy.apply(&Operator::default().batch(
        &[
            listener_at(SET, bind, "b.example.com", None),
            tls_route("team-b/web", SET, "b.example.com", "team-b/web:443"),
            backend("team-b/web:443", &[backend_b]),
        ],
        &[],
    ));
    assert_eq!(ack.rejects, []);
    for client in [local(port), format!("[::1]:{port}").parse().unwrap()] {
        let answer = request(client, "b.example.com", &own.chain[0]).await;
        assert_eq!(answer.unwrap(), "b hi", "{client}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_endpoint_shows_what_is_in_force_without_keys() {
    let terminated = Identity::new("c.example.com");
    let mut proxy = start(ConfigSource::Caller).await;
    let admin = proxy.admin().unwrap();
    assert_eq!(http_get(admin, "/healthz").await.0, 200);
    assert_eq!(http_get(admin, "/readyz").await.0, 503);
    assert_eq!(http_get(admin, "/servingz").await.0, 503);
    let mut operator = Operator::default();
    let bind = local(free_port());
    proxy.apply(&operator.batch(
        &[
            listener_at(SET_TERMINATED, bind, "c.example.com", Some(&["team-c/web"])),
            terminated.resource("team-c/web"),
        ],
        &[],
    ));
    assert_eq!(http_get(admin, "/readyz").await.0, 200);
    let (status, config) = http_get(admin, "/config").await;
    assert_eq!(status, 200);
    let dump: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(dump["listeners"][0]["name"], SET_TERMINATED);
    assert_eq!(dump["certificates"][0]["names"][0], "c.example.com");
    assert!(!config.contains("private"));
    let (_, metrics) = http_get(admin, "/metrics").await;
    for line in [
        "vestibule_proxy_config_generation 1",
        "vestibule_proxy_config_resources{kind=\"certificate\"} 1",
        "vestibule_proxy_binds 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
    // A stale batch is refused, counted, and changes nothing.
    let stale = Operator::default().batch(&[], &[]);
    assert_eq!(
        proxy.apply(&stale).refusal.unwrap().reason,
        "StaleGeneration"
    );
    assert_eq!(proxy.counts().listeners, 1);
    assert_eq!(http_get(admin, "/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_lets_connections_end_and_takes_no_new_ones() {
    let own = Identity::new("b.example.com");
    let backend_b = tls_backend("b", "127.0.0.1:0", &own).await;
    let bind = local(free_port());
    let mut proxy = start(ConfigSource::Caller).await;
    proxy.apply(&Operator::default().batch(
        &[
            listener_at(SET, bind, "b.example.com", None),
            tls_route("team-b/web", SET, "b.example.com", "team-b/web:443"),
            backend("team-b/web:443", &[backend_b]),
        ],
        &[],
    ));
    let admin = proxy.admin().unwrap();
    let mut client = Client::connect(bind, "b.example.com", &own.chain[0])
        .await
        .unwrap();
    assert_eq!(client.ask("x").await.unwrap(), "b x");
    let drained = tokio::spawn(proxy.drain(PATIENCE));
    let refused = async {
        while TcpStream::connect(bind).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(http_get(admin, "/readyz").await.0, 503);
    assert_eq!(client.ask("y").await.unwrap(), "b y");
    drop(client);
    assert_eq!(drained.await.unwrap(), 0);
}

/// An operator that sends what it is given and hands out the acks.
struct Publisher {
    batches: parking_lot::Mutex<Option<tokio::sync::mpsc::Receiver<vestibule_stream::Batch>>>,
    acks: tokio::sync::mpsc::Sender<vestibule_stream::proto::Ack>,
}

#[tonic::async_trait]
impl ConfigStream for Publisher {
    type SubscribeStream =
        futures::stream::BoxStream<'static, Result<OperatorMessage, tonic::Status>>;

    async fn subscribe(
        &self,
        request: tonic::Request<tonic::Streaming<ProxyMessage>>,
    ) -> Result<tonic::Response<Self::SubscribeStream>, tonic::Status> {
        use futures::StreamExt;
        let mut inbound = request.into_inner();
        let acks = self.acks.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = inbound.message().await {
                if let Some(proxy_message::Message::Ack(ack)) = message.message {
                    let _ = acks.send(ack).await;
                }
            }
        });
        let welcome = operator_message::Message::Welcome(vestibule_stream::proto::Welcome {
            protocol: vestibule_stream::PROTOCOL_VERSION,
            release: "test".into(),
            term: 1,
        });
        let batches = self.batches.lock().take().unwrap();
        let batches = futures::stream::unfold(batches, async |mut batches| {
            let batch = batches.recv().await?;
            Some((operator_message::Message::Batch(batch), batches))
        });
        let messages = futures::stream::once(async { welcome })
            .chain(batches)
            .map(|message| {
                Ok(OperatorMessage {
                    message: Some(message),
                })
            });
        Ok(tonic::Response::new(messages.boxed()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_a_pipe_in_memory_configures_the_proxy() {
    let own = Identity::new("b.example.com");
    let backend_b = tls_backend("b", "127.0.0.1:0", &own).await;
    let bind = local(free_port());

    let (send, batches) = tokio::sync::mpsc::channel(1);
    let (acks, mut acked) = tokio::sync::mpsc::channel(8);
    let publisher = Publisher {
        batches: parking_lot::Mutex::new(Some(batches)),
        acks,
    };
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(ConfigStreamServer::new(publisher))
            .serve_with_incoming(futures::stream::iter([Ok::<_, std::io::Error>(far)])),
    );
    let near = Arc::new(parking_lot::Mutex::new(Some(near)));
    let connector: Connector = Arc::new(move |address| {
        let pipe = near.lock().take();
        Box::pin(async move {
            let mut pipe = Some(pipe.ok_or("the pipe is used up")?);
            let service = tower::service_fn(move |_| {
                let pipe = pipe.take().map(hyper_util::rt::TokioIo::new);
                async { pipe.ok_or_else(|| std::io::Error::other("once")) }
            });
            Ok(client::endpoint(&address)?
                .connect_with_connector(service)
                .await?)
        })
    });
    let identity = vestibule_stream::ProxyIdentity::new("test");
    let proxy = start(ConfigSource::Stream {
        client: client::Config::new(identity, vec!["operator:1".into()]),
        connector,
    })
    .await;
    let mut operator = Operator::default();
    send.send(operator.batch(
        &[
            listener_at(SET, bind, "b.example.com", None),
            tls_route("team-b/web", SET, "b.example.com", "team-b/web:443"),
            backend("team-b/web:443", &[backend_b]),
        ],
        &[],
    ))
    .await
    .unwrap();
    let ack = tokio::time::timeout(PATIENCE, acked.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((ack.rejects, ack.refusal), (vec![], None));
    assert_eq!(
        request(bind, "b.example.com", &own.chain[0]).await.unwrap(),
        "b hi"
    );
    let connected = || proxy.metrics().encode().unwrap();
    eventually("connected", async || {
        connected().contains("stream_connected 1")
    })
    .await;

    // The operator goes: the proxy serves on, and stays ready.
    server.abort();
    drop(send);
    eventually("disconnected", async || {
        connected().contains("stream_connected 0")
    })
    .await;
    assert!(proxy.is_ready());
    assert_eq!(
        request(bind, "b.example.com", &own.chain[0]).await.unwrap(),
        "b hi"
    );
}
