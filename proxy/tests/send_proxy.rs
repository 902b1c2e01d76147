//! PROXY headers for backends that expect them, by real connections on loopback: a header comes before everything else,
//! names the client that the proxy believes, and is one that `ppp` reads.

use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use ppp::{HeaderResult, v1, v2};
use proto::SendProxyProtocol::{Unspecified, V1, V2};
use proto::resource::Resource as Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use vestibule_proxy_testing::web::{get, http_route, quiet, rule, serve_http};
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};

const NAME: &str = "a.example.com";
const BACKEND: &str = "team-a/web:443";
/// The name that the policy gives the backend.
const INNER: &str = "backend.internal";
const BUNDLE: &str = "ConfigMap/team-a/ca";
/// The header of a balancer, and what it says: the client and the address that the client connected to.
const BALANCER: &[u8] = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n";
const CLIENT: &str = "[2001:db8::7]:4711";
const DESTINATION: &str = "[2001:db8::1]:443";

/// The backend of these tests, which expects such headers.
fn expecting(address: SocketAddr, version: proto::SendProxyProtocol) -> Resource {
    let mut resource = backend(BACKEND, &[address]);
    if let Some(Wire::Backend(backend)) = &mut resource.resource {
        backend.send_proxy_protocol = version.into();
    }
    resource
}

/// The same, which is spoken to over TLS.
fn secured(address: SocketAddr, version: proto::SendProxyProtocol) -> Resource {
    let mut resource = expecting(address, version);
    if let Some(Wire::Backend(backend)) = &mut resource.resource {
        backend.tls = Some(proto::BackendTls {
            hostname: INNER.into(),
            trust_bundles: vec![BUNDLE.into()],
            ..Default::default()
        });
    }
    resource
}

/// A listener behind a balancer that sends [`BALANCER`].
fn behind(listener: Resource) -> [Resource; 2] {
    let settings = proto::GatewaySettings {
        client_address: Some(proto::ClientAddress {
            proxy_protocol: Some(proto::ProxyProtocol {
                mode: proto::ProxyProtocolMode::Strict.into(),
                trusted_cidrs: vec!["127.0.0.0/8".into()],
            }),
            forwarded_headers: None,
        }),
        ..Default::default()
    };
    with_settings(listener, settings)
}

/// A TCP listener, its route and its backend.
fn raw(port: u16, backend: Resource) -> Vec<Resource> {
    vec![
        tcp(port, "db"),
        tcp_route("db", 0, "db", &[(BACKEND, 1)]),
        backend,
    ]
}

/// Reads the header with which a connection begins, and nothing after it.
async fn read_header(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![within("a byte", stream.read_u8()).await.unwrap()];
    if bytes[0] == b'P' {
        while !bytes.ends_with(b"\r\n") {
            bytes.push(within("a byte", stream.read_u8()).await.unwrap());
        }
        return bytes;
    }
    let mut fixed = [0; 15];
    let read = stream.read_exact(&mut fixed);
    within("a header", read).await.unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[13], fixed[14]]))];
    let read = stream.read_exact(&mut rest);
    within("a header", read).await.unwrap();
    bytes.extend(fixed);
    bytes.extend(rest);
    bytes
}

/// What a header says.
#[derive(Debug, PartialEq)]
struct Told {
    /// The client, and the address that it connected to.
    addresses: Option<(SocketAddr, SocketAddr)>,
    server_name: Option<String>,
}

const NOBODY: Told = Told {
    addresses: None,
    server_name: None,
};

fn told(bytes: &[u8]) -> Told {
    let at = |address: std::net::IpAddr, port| SocketAddr::new(address, port);
    match HeaderResult::parse(bytes) {
        HeaderResult::V1(Ok(header)) => Told {
            addresses: match header.addresses {
                v1::Addresses::Tcp4(of) => Some((
                    at(of.source_address.into(), of.source_port),
                    at(of.destination_address.into(), of.destination_port),
                )),
                v1::Addresses::Tcp6(of) => Some((
                    at(of.source_address.into(), of.source_port),
                    at(of.destination_address.into(), of.destination_port),
                )),
                v1::Addresses::Unknown => None,
            },
            server_name: None,
        },
        HeaderResult::V2(Ok(header)) => Told {
            addresses: match (header.command, header.addresses) {
                (v2::Command::Proxy, v2::Addresses::IPv4(of)) => Some((
                    at(of.source_address.into(), of.source_port),
                    at(of.destination_address.into(), of.destination_port),
                )),
                (v2::Command::Proxy, v2::Addresses::IPv6(of)) => Some((
                    at(of.source_address.into(), of.source_port),
                    at(of.destination_address.into(), of.destination_port),
                )),
                (v2::Command::Local, v2::Addresses::Unspecified) => None,
                other => panic!("{other:?}"),
            },
            server_name: header.tlvs().map(Result::unwrap).find_map(|value| {
                let is_name = value.kind == u8::from(v2::Type::Authority);
                is_name.then(|| String::from_utf8(value.value.to_vec()).unwrap())
            }),
        },
        _ => panic!("{}", bytes.escape_ascii()),
    }
}

/// What the header is to say of a connection that has a server name.
fn named(client: SocketAddr, destination: SocketAddr, version: proto::SendProxyProtocol) -> Told {
    Told {
        addresses: Some((client, destination)),
        server_name: (version == V2).then(|| NAME.to_owned()),
    }
}

/// The address of a client that says nothing of itself.
fn own(client: &TcpStream) -> SocketAddr {
    client.local_addr().unwrap()
}

async fn receives(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    within("the bytes", stream.read_exact(&mut got))
        .await
        .unwrap();
    assert!(got == expected, "{}", got.escape_ascii());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_passed_through_comes_behind_the_header() {
    for version in [V1, V2] {
        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| {
            vec![
                listener(port, "web", NAME, None),
                route("web", NAME, Some(BACKEND)),
                expecting(address, version),
            ]
        });
        let mut client = rig.connect().await;
        let sent = [HELLO, b"more"].concat();
        client.write_all(&sent).await.unwrap();
        let mut server = accepted.await;
        let header = told(&read_header(&mut server).await);
        assert_eq!(header, named(own(&client), rig.address, version));
        receives(&mut server, &sent).await;
        server.write_all(b"back").await.unwrap();
        drop(server);
        assert_eq!(read_to_end(&mut client).await.unwrap(), b"back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_is_the_one_that_a_trusted_balancer_names() {
    let (client, destination) = (CLIENT.parse().unwrap(), DESTINATION.parse().unwrap());
    for version in [V1, V2] {
        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| {
            let [listener, settings] = behind(listener(port, "web", NAME, None));
            vec![
                listener,
                settings,
                route("web", NAME, Some(BACKEND)),
                expecting(address, version),
            ]
        });
        let mut stream = rig.connect().await;
        stream.write_all(&[BALANCER, HELLO].concat()).await.unwrap();
        let mut server = accepted.await;
        let header = told(&read_header(&mut server).await);
        assert_eq!(header, named(client, destination, version));
        receives(&mut server, HELLO).await;

        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| {
            let [listener, settings] = behind(tcp(port, "db"));
            let route = tcp_route("db", 0, "db", &[(BACKEND, 1)]);
            vec![listener, settings, route, expecting(address, version)]
        });
        let mut stream = rig.connect().await;
        stream
            .write_all(&[BALANCER, b"hello"].concat())
            .await
            .unwrap();
        let mut server = accepted.await;
        let header = told(&read_header(&mut server).await);
        assert_eq!(header.addresses, Some((client, destination)));
        receives(&mut server, b"hello").await;
    }
}

/// What a client sends is no header of the proxy, whatever it looks like.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_names_nobody_but_itself() {
    for version in [V1, V2] {
        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| raw(port, expecting(address, version)));
        let mut client = rig.connect().await;
        client.write_all(BALANCER).await.unwrap();
        let mut server = accepted.await;
        let header = told(&read_header(&mut server).await);
        assert_eq!(header.addresses, Some((own(&client), rig.address)));
        assert_eq!(header.server_name, None);
        receives(&mut server, BALANCER).await;
        // Enough for pipes.
        let length = 3_000_001;
        let sent = tokio::spawn(async move {
            send(&mut client, 7, length).await;
            client
        });
        receive(&mut server, 7, length).await;
        sent.await.unwrap();
    }
}

/// Some servers speak first, and have to know the client before.
#[tokio::test(flavor = "multi_thread")]
async fn the_header_does_not_wait_for_the_client() {
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&quiet(), |port| raw(port, expecting(address, V2)));
    let mut client = rig.connect().await;
    let mut server = accepted.await;
    let header = told(&read_header(&mut server).await);
    assert_eq!(header.addresses, Some((own(&client), rig.address)));
    server.write_all(b"220 ready\r\n").await.unwrap();
    receives(&mut client, b"220 ready\r\n").await;
    drop(server);
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
}

/// An endpoint that refuses gets nothing, and the next one gets a header as if it were the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_after_one_that_refuses_gets_one_header() {
    for version in [V1, V2] {
        let (sender, mut begun) = mpsc::channel(1);
        let good = serve(move |mut stream: TcpStream| {
            let sender = sender.clone();
            async move {
                let header = told(&read_header(&mut stream).await);
                let rest = read_to_end(&mut stream).await.unwrap();
                let _ = sender.send((header, rest)).await;
            }
        })
        .await;
        let rig = Rig::start(&quiet(), |port| {
            let mut resource = expecting(good, version);
            if let Some(Wire::Backend(backend)) = &mut resource.resource {
                backend.endpoints.insert(0, endpoint(&refusing()));
            }
            raw(port, resource)
        });
        // Chance decides which endpoint is the first one for a connection.
        for n in 0..100 {
            let mut client = rig.connect().await;
            let from = own(&client);
            client.write_all(b"hello").await.unwrap();
            client.shutdown().await.unwrap();
            let (header, rest) = within("a connection", begun.recv()).await.unwrap();
            assert_eq!(header.addresses, Some((from, rig.address)), "{n}");
            assert_eq!(rest, b"hello", "{n}");
            if rig.plane.metrics.connect_retries.get() > 0 {
                break;
            }
        }
        assert!(rig.plane.metrics.connect_retries.get() > 0, "{version:?}");
    }
}

/// The same for a client whose TLS ends at the proxy: the header comes, and then the server speaks first.
#[tokio::test(flavor = "multi_thread")]
async fn the_header_does_not_wait_for_a_client_of_tls() {
    let identity = Identity::new(NAME);
    for version in [V1, V2] {
        let (address, accepted) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| {
            vec![
                listener(port, "web", NAME, Some("team-a/cert")),
                route("web", NAME, Some(BACKEND)),
                expecting(address, version),
                identity.resource("team-a/cert"),
            ]
        });
        let tcp = rig.connect().await;
        let from = own(&tcp);
        let mut client = tls(tcp, client_config(&identity), NAME).await.unwrap();
        let mut server = accepted.await;
        let header = told(&read_header(&mut server).await);
        assert_eq!(header, named(from, rig.address, version));
        server.write_all(b"220 ready\r\n").await.unwrap();
        let mut greeting = [0; 11];
        let read = client.read_exact(&mut greeting);
        within("the greeting", read).await.unwrap();
        assert_eq!(&greeting, b"220 ready\r\n");
        client.write_all(b"quit").await.unwrap();
        receives(&mut server, b"quit").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_connection_begins_with_the_header_in_plaintext_and_over_tls() {
    let (identity, authority) = (Identity::new(NAME), Authority::new("inner"));
    let acceptor = authority.server(&[INNER], &[]).acceptor();
    for version in [V1, V2] {
        for over_tls in [false, true] {
            let (address, accepted) = one_connection().await;
            let rig = Rig::start(&quiet(), |port| {
                vec![
                    listener(port, "web", NAME, Some("team-a/cert")),
                    route("web", NAME, Some(BACKEND)),
                    if over_tls {
                        secured(address, version)
                    } else {
                        expecting(address, version)
                    },
                    Authority::bundle(BUNDLE, &[&authority]),
                    identity.resource("team-a/cert"),
                ]
            });
            let tcp = rig.connect().await;
            let from = own(&tcp);
            let mut client = tls(tcp, client_config(&identity), NAME).await.unwrap();
            client.write_all(b"secret").await.unwrap();
            let mut server = accepted.await;
            let header = told(&read_header(&mut server).await);
            assert_eq!(header, named(from, rig.address, version));
            let mut got = [0; 6];
            if over_tls {
                let accepting = acceptor.accept(server);
                let mut inner = within("the handshake", accepting).await.unwrap();
                let read = inner.read_exact(&mut got);
                within("the bytes", read).await.unwrap();
            } else {
                let read = server.read_exact(&mut got);
                within("the bytes", read).await.unwrap();
            }
            assert_eq!(&got, b"secret");
        }
    }
}

/// The TLS that a policy asks for begins behind the header on a TCP listener too.
#[tokio::test(flavor = "multi_thread")]
async fn tls_that_the_proxy_begins_comes_behind_the_header() {
    let authority = Authority::new("inner");
    let acceptor = authority.server(&[INNER], &[]).acceptor();
    let (address, accepted) = one_connection().await;
    let rig = Rig::start(&quiet(), |port| {
        let mut all = raw(port, secured(address, V2));
        all.push(Authority::bundle(BUNDLE, &[&authority]));
        all
    });
    let mut client = rig.connect().await;
    client.write_all(b"secret").await.unwrap();
    let mut server = accepted.await;
    let header = told(&read_header(&mut server).await);
    assert_eq!(header.addresses, Some((own(&client), rig.address)));
    let accepting = acceptor.accept(server);
    let mut inner = within("the handshake", accepting).await.unwrap();
    let mut got = [0; 6];
    within("the bytes", inner.read_exact(&mut got))
        .await
        .unwrap();
    assert_eq!(&got, b"secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_holds_for_the_next_connection() {
    let (address, first) = one_connection().await;
    let mut rig = Rig::start(&quiet(), |port| raw(port, expecting(address, Unspecified)));
    assert!(!rig.dump().contains("send_proxy_protocol"));
    let mut client = rig.connect().await;
    client.write_all(b"one").await.unwrap();
    let mut server = first.await;
    receives(&mut server, b"one").await;

    let (address, second) = one_connection().await;
    rig.apply(vec![expecting(address, V1)]);
    assert!(rig.dump().contains("\"send_proxy_protocol\":\"v1\""));
    let mut next = rig.connect().await;
    next.write_all(b"two").await.unwrap();
    let mut with_header = second.await;
    let header = told(&read_header(&mut with_header).await);
    assert_eq!(header.addresses, Some((own(&next), rig.address)));
    receives(&mut with_header, b"two").await;
    // The one before goes on as it began.
    client.write_all(b"three").await.unwrap();
    receives(&mut server, b"three").await;
}

/// A backend of HTTP that takes connections with a header and without, and tells which one each began with. Its answers
/// say which client the request names.
async fn web_backend(two: bool) -> (SocketAddr, mpsc::Receiver<Option<Told>>) {
    let (sender, begun) = mpsc::channel(16);
    let address = serve(move |mut stream: TcpStream| {
        let sender = sender.clone();
        async move {
            let mut start = [0; 4];
            loop {
                match stream.peek(&mut start).await {
                    Ok(4) => break,
                    Ok(1..) => tokio::task::yield_now().await,
                    _ => return,
                }
            }
            let has_header = start == *b"PROX" || start == *b"\r\n\r\n";
            let header = if has_header {
                Some(told(&read_header(&mut stream).await))
            } else {
                None
            };
            let _ = sender.send(header).await;
            serve_http(stream, two, |request: Request<Incoming>| {
                let client = request.headers()["x-real-ip"].clone();
                async move {
                    let answer = Response::builder().header("x-client", client);
                    answer.body(Full::new(Bytes::from("ok"))).unwrap()
                }
            })
            .await;
        }
    })
    .await;
    (address, begun)
}

/// Many clients share a connection, so a name in its header would be that of another client.
#[tokio::test(flavor = "multi_thread")]
async fn connections_for_requests_name_nobody() {
    for two in [false, true] {
        let (address, mut begun) = web_backend(two).await;
        let backend = |version| {
            let mut resource = expecting(address, version);
            if let Some(Wire::Backend(backend)) = &mut resource.resource {
                let protocol = if two {
                    proto::BackendProtocol::H2c
                } else {
                    proto::BackendProtocol::Unspecified
                };
                backend.protocol = protocol.into();
            }
            resource
        };
        // One worker, which has one pool.
        let mut rig = Rig::start_on(1, &quiet(), |port| {
            vec![
                http(port, "web", NAME, None),
                http_route("web", NAME, vec![rule("/", BACKEND)]),
                backend(Unspecified),
            ]
        });
        for (version, expected) in [(Unspecified, None), (V2, Some(NOBODY)), (V1, Some(NOBODY))] {
            // A connection that began in another way is not used again.
            rig.apply(vec![backend(version)]);
            for _ in 0..3 {
                let answer = get(&rig, NAME, "/").await;
                assert_eq!(answer.status, 200, "{version:?}");
                assert_eq!(answer.header("x-client"), Some("127.0.0.1"));
            }
            let first = within("a connection", begun.recv()).await.unwrap();
            assert_eq!(first, expected, "{version:?}");
            while let Ok(further) = begun.try_recv() {
                assert_eq!(further, expected, "{version:?}");
            }
        }
    }
}

/// With a policy for an HTTP backend, the header comes before TLS.
#[tokio::test(flavor = "multi_thread")]
async fn connections_for_requests_name_nobody_before_tls() {
    let authority = Authority::new("inner");
    let acceptor = authority.server(&[INNER], &[]).acceptor();
    for version in [V1, V2] {
        let (sender, mut begun) = mpsc::channel(16);
        let acceptor = acceptor.clone();
        let address = serve(move |mut stream: TcpStream| {
            let (sender, acceptor) = (sender.clone(), acceptor.clone());
            async move {
                let header = told(&read_header(&mut stream).await);
                let _ = sender.send(header).await;
                let inner = acceptor.accept(stream).await.unwrap();
                serve_http(inner, false, |_: Request<Incoming>| async {
                    Response::new(Full::new(Bytes::from("ok")))
                })
                .await;
            }
        })
        .await;
        let rig = Rig::start(&quiet(), |port| {
            vec![
                http(port, "web", NAME, None),
                http_route("web", NAME, vec![rule("/", BACKEND)]),
                secured(address, version),
                Authority::bundle(BUNDLE, &[&authority]),
            ]
        });
        assert_eq!(get(&rig, NAME, "/").await.status, 200, "{version:?}");
        let header = within("a connection", begun.recv()).await.unwrap();
        assert_eq!(header, NOBODY, "{version:?}");
    }
}
