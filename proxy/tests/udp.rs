//! Listeners of datagrams, by real clients and backends on loopback: a client has a session with an endpoint and a port
//! of its own, sessions end and give way as they should, and nobody is sent what no backend sent.
//!
//! Datagrams get lost where a queue is full. So a client here sends the next one when it has the answer to the one
//! before, or few enough that any queue takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use vestibule_proxy::limits::{ProxyLimits, UdpLimits};
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, ResourceKey, ResourceKind, proto};
use vestibule_test_support::free_port;

const BACKEND: &str = "team-a/dns:53/udp";

/// Where a test is not about idle sessions, none ends of it however slow the machine is.
fn quiet() -> ProxyLimits {
    let udp = UdpLimits {
        idle: Duration::from_hours(1),
        ..UdpLimits::default()
    };
    ProxyLimits {
        access_log: false,
        udp,
        ..ProxyLimits::default()
    }
}

fn limited(udp: UdpLimits) -> ProxyLimits {
    ProxyLimits { udp, ..quiet() }
}

fn serving(port: u16, addresses: &[SocketAddr]) -> Vec<Resource> {
    vec![
        udp(port, "dns"),
        udp_route("dns", 0, "dns", &[(BACKEND, 1)]),
        backend(BACKEND, addresses),
    ]
}

fn rig(limits: &ProxyLimits, addresses: &[SocketAddr]) -> Rig {
    Rig::start(limits, |port| serving(port, addresses))
}

async fn bound(address: &str) -> UdpSocket {
    UdpSocket::bind(address).await.unwrap()
}

/// A backend that answers each datagram with `name`, the port that it came from, and what it was.
async fn echo(name: &'static str) -> SocketAddr {
    echo_at("127.0.0.1:0", name).await
}

async fn echo_at(address: &str, name: &'static str) -> SocketAddr {
    echo_task(address, name).await.0
}

async fn echo_task(address: &str, name: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let socket = bound(address).await;
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            let mut answer = format!("{name} {} ", from.port()).into_bytes();
            answer.extend(&buffer[..length]);
            let _ = socket.send_to(&answer, from).await;
        }
    });
    (address, task)
}

/// A client of its own port.
async fn client(rig: &Rig) -> UdpSocket {
    client_of("127.0.0.1:0", rig.address).await
}

async fn client_of(from: &str, address: SocketAddr) -> UdpSocket {
    let socket = bound(from).await;
    socket.connect(address).await.unwrap();
    socket
}

async fn receive_one(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let received = within("an answer", client.recv(&mut buffer)).await;
    buffer.truncate(received.unwrap());
    buffer
}

/// Which backend answers, what port it sees, and what it got.
async fn ask(client: &UdpSocket, question: &[u8]) -> (String, u16, Vec<u8>) {
    client.send(question).await.unwrap();
    let answer = receive_one(client).await;
    let mut parts = answer.splitn(3, |byte| *byte == b' ');
    let mut text = || String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
    let (name, port) = (text(), text().parse().unwrap());
    (name, port, parts.next().unwrap().to_vec())
}

fn metric(rig: &Rig, series: &str) -> u64 {
    value(
        &rig.plane.metrics.encode().unwrap(),
        &format!("vestibule_proxy_{series}"),
    )
}

fn dropped(rig: &Rig, reason: &str) -> u64 {
    metric(
        rig,
        &format!("udp_datagrams_dropped_total{{reason=\"{reason}\"}}"),
    )
}

fn closed(rig: &Rig, reason: &str) -> u64 {
    metric(
        rig,
        &format!("udp_sessions_closed_total{{reason=\"{reason}\"}}"),
    )
}

/// Waits until so many datagrams have been sent on in a direction: they are counted when they are sent.
async fn relayed(rig: &Rig, direction: &str, count: u64) {
    let series = format!("udp_datagrams_total{{direction=\"{direction}\"}}");
    wait("the datagrams", || metric(rig, &series) >= count).await;
    assert_eq!(metric(rig, &series), count, "{direction}");
}

fn active(rig: &Rig) -> u64 {
    metric(rig, "udp_sessions_active")
}

fn begun(rig: &Rig) -> u64 {
    metric(rig, "udp_sessions_total")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_keeps_its_session_and_its_port_and_gets_its_own_answers() {
    let rig = rig(&quiet(), &[echo("a").await, echo("b").await]);
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(client(&rig).await);
    }
    let mut seen = BTreeMap::new();
    for round in 0..4 {
        for (number, client) in clients.iter().enumerate() {
            let question = format!("question {round} of {number}");
            let (name, port, got) = ask(client, question.as_bytes()).await;
            assert_eq!(got, question.as_bytes());
            let before = seen.entry(number).or_insert_with(|| (name.clone(), port));
            assert_eq!(*before, (name, port), "client {number} in round {round}");
        }
    }
    let ports: BTreeSet<u16> = seen.values().map(|(_, port)| *port).collect();
    assert_eq!(ports.len(), clients.len());
    let names: BTreeSet<&str> = seen.values().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a", "b"].into());
    assert_eq!((begun(&rig), active(&rig)), (50, 50));
    relayed(&rig, "upstream", 200).await;
    relayed(&rig, "downstream", 200).await;
    assert_eq!(rig.plane.active(), 50);
}

/// Sends a datagram and waits until the proxy has sent it on or dropped it. Says which.
async fn deliver(rig: &Rig, client: &UdpSocket, bytes: &[u8]) -> bool {
    let handled = || {
        let page = rig.plane.metrics.encode().unwrap();
        let dropped = page.lines().filter_map(|line| {
            let rest = line.strip_prefix("vestibule_proxy_udp_datagrams_dropped_total{")?;
            rest.rsplit_once(' ')?.1.parse::<u64>().ok()
        });
        let upstream = "vestibule_proxy_udp_datagrams_total{direction=\"upstream\"}";
        (value(&page, upstream), dropped.sum::<u64>())
    };
    let (sent_on, dropped) = handled();
    client.send(bytes).await.unwrap();
    wait("what becomes of a datagram", || {
        let (now_on, now_dropped) = handled();
        now_on + now_dropped > sent_on + dropped
    })
    .await;
    handled().0 > sent_on
}

/// Sends the same datagram until it is answered, as a client of UDP has to.
async fn insist(client: &UdpSocket, question: &[u8]) -> (String, u16) {
    let answered = async {
        loop {
            let asked = ask(client, question);
            // How long does not matter: it is sent again.
            if let Ok((name, port, _)) =
                tokio::time::timeout(Duration::from_millis(200), asked).await
            {
                return (name, port);
            }
        }
    };
    within("an answer at last", answered).await
}

/// A port of UDP that refuses, and that nobody can bind.
async fn refusing_datagrams() -> SocketAddr {
    let socket = bound("127.0.0.1:0").await;
    // It hears one peer alone, and for everybody else there is nobody.
    socket.connect("127.0.0.1:9").await.unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_kept_by_sessions_and_the_share_of_an_invalid_backend_is_dropped() {
    let mut sinks = Vec::new();
    for _ in 0..3 {
        sinks.push(bound("127.0.0.1:0").await);
    }
    let addresses: Vec<_> = sinks
        .iter()
        .map(|sink| sink.local_addr().unwrap())
        .collect();
    let rig = Rig::start(&quiet(), |port| {
        let backends = [
            ("team-a/one:1/udp", 6),
            ("team-a/two:1/udp", 2),
            ("team-a/no:1/udp", 0),
            ("", 2),
        ];
        vec![
            udp(port, "dns"),
            udp_route("dns", 0, "dns", &backends),
            backend("team-a/one:1/udp", &addresses[..1]),
            backend("team-a/two:1/udp", &addresses[1..2]),
            backend("team-a/no:1/udp", &addresses[2..]),
        ]
    });
    let count = |sink: &UdpSocket| {
        let mut buffer = [0; 9];
        std::iter::from_fn(|| sink.try_recv(&mut buffer).ok()).count()
    };
    let mut counts = [0; 3];
    let mut clients = Vec::new();
    for _ in 0..300 {
        let client = client(&rig).await;
        deliver(&rig, &client, b"x").await;
        clients.push(client);
        // What is read has no part in a queue that could be full.
        for (sum, sink) in counts.iter_mut().zip(&sinks) {
            *sum += count(sink);
        }
    }
    let invalid = usize::try_from(dropped(&rig, "InvalidBackend")).unwrap();
    wait("the datagrams", || {
        for (sum, sink) in counts.iter_mut().zip(&sinks) {
            *sum += count(sink);
        }
        counts.iter().sum::<usize>() + invalid == clients.len()
    })
    .await;
    assert_eq!(counts[2], 0, "without a weight it gets nothing");
    // Six standard deviations each.
    assert!(counts[0].abs_diff(180) < 51, "{counts:?}, {invalid}");
    assert!(counts[1].abs_diff(60) < 42, "{counts:?}, {invalid}");
    assert!(invalid.abs_diff(60) < 42, "{counts:?}, {invalid}");
}

#[tokio::test(flavor = "multi_thread")]
async fn datagram_that_cannot_be_served_is_dropped_silently_and_its_reason_counted() {
    let mut rig = Rig::start(&quiet(), |port| vec![udp(port, "dns")]);
    let client = client(&rig).await;
    let silent = async |rig: &Rig, reason| {
        assert!(!deliver(rig, &client, b"anybody?").await, "{reason}");
        assert_eq!(dropped(rig, reason), 1, "{reason}");
    };
    silent(&rig, "NoRoute").await;
    rig.apply(vec![udp_route("dns", 0, "dns", &[("", 1)])]);
    silent(&rig, "InvalidBackend").await;
    rig.apply(vec![udp_route("dns", 0, "dns", &[(BACKEND, 1)])]);
    silent(&rig, "NoEndpoints").await;
    // This proxy itself.
    rig.apply(vec![backend(BACKEND, &[rig.address])]);
    silent(&rig, "BackendLoop").await;
    assert_eq!(
        client.try_recv(&mut [0; 9]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    relayed(&rig, "downstream", 0).await;
    assert_eq!((begun(&rig), rig.plane.active()), (0, 0));
    rig.apply(vec![backend(BACKEND, &[echo("a").await])]);
    assert_eq!(ask(&client, b"now?").await.0, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_sent_what_its_endpoint_sends_and_nothing_else() {
    let endpoint = bound("127.0.0.1:0").await;
    let rig = rig(&quiet(), &[endpoint.local_addr().unwrap()]);
    let client = client(&rig).await;
    client.send(b"subscribe").await.unwrap();
    let mut buffer = [0; 64];
    let received = within("it", endpoint.recv_from(&mut buffer)).await;
    let (length, session) = received.unwrap();
    assert_eq!(&buffer[..length], b"subscribe");
    let stranger = bound("127.0.0.1:0").await;
    // As many answers as the endpoint likes, whenever it likes, each in its turn.
    for answer in ["one", "two", "three", ""] {
        stranger.send_to(b"forged", session).await.unwrap();
        endpoint.send_to(answer.as_bytes(), session).await.unwrap();
        assert_eq!(receive_one(&client).await, answer.as_bytes());
    }
    relayed(&rig, "downstream", 4).await;
    relayed(&rig, "upstream", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_datagram_passes_both_ways() {
    let endpoint = bound("127.0.0.1:0").await;
    let rig = rig(&quiet(), &[endpoint.local_addr().unwrap()]);
    let client = client(&rig).await;
    let longest: Vec<u8> = (0..=250).cycle().take(65_507).collect();
    client.send(&longest).await.unwrap();
    let mut buffer = vec![0; 70_000];
    let received = within("it", endpoint.recv_from(&mut buffer)).await;
    let (length, session) = received.unwrap();
    assert!(buffer[..length] == longest);
    endpoint.send_to(&longest, session).await.unwrap();
    assert!(receive_one(&client).await == longest);
}

/// Bursts as QUIC sends them: the kernel may carry one as a single piece, and it arrives as the datagrams that it was.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_arrive_whole_and_in_order() {
    const STRIDE: usize = 1200;
    const DATAGRAMS: usize = 24;
    let burst: Vec<u8> = (0..=250).cycle().take(STRIDE * DATAGRAMS - 7).collect();
    // Of another socket: it sets options, which those of the test are not to have.
    let other = bound("127.0.0.1:0").await;
    let state = quinn_udp::UdpSocketState::new((&other).into()).unwrap();
    let send_burst = |socket: &UdpSocket, to: SocketAddr| {
        let several = state.max_gso_segments() >= DATAGRAMS;
        let pieces = if several { burst.len() } else { STRIDE };
        for contents in burst.chunks(pieces) {
            let transmit = quinn_udp::Transmit {
                destination: to,
                ecn: None,
                contents,
                segment_size: several.then_some(STRIDE),
                src_ip: None,
            };
            state.try_send(socket.into(), &transmit).unwrap();
        }
    };
    let endpoint = bound("127.0.0.1:0").await;
    let rig = rig(&quiet(), &[endpoint.local_addr().unwrap()]);
    let client = client(&rig).await;
    // Often enough for the session to expect runs of its endpoint.
    for _ in 0..4 {
        let sender = rig.address;
        send_burst(&client, sender);
        let (mut buffer, mut session) = (vec![0; 3000], sender);
        for expected in burst.chunks(STRIDE) {
            let received = within("a datagram", endpoint.recv_from(&mut buffer)).await;
            let (length, from) = received.unwrap();
            assert!(buffer[..length] == *expected);
            session = from;
        }
        send_burst(&endpoint, session);
        for expected in burst.chunks(STRIDE) {
            assert!(receive_one(&client).await == *expected);
        }
    }
    let each = 4 * DATAGRAMS as u64;
    relayed(&rig, "upstream", each).await;
    relayed(&rig, "downstream", each).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_is_passed_over() {
    let rig = rig(&quiet(), &[refusing_datagrams().await, echo("a").await]);
    for _ in 0..40 {
        let client = client(&rig).await;
        assert_eq!(insist(&client, b"who?").await.0, "a");
    }
    assert!(closed(&rig, "BackendRefused") > 0);
    let passed_over = "endpoints_passed_over_total{reason=\"BackendRefused\"}";
    assert!(metric(&rig, passed_over) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_endpoints_that_all_refuse_is_told_nothing() {
    let rig = rig(&quiet(), &[refusing_datagrams().await]);
    let client = client(&rig).await;
    for _ in 0..20 {
        deliver(&rig, &client, b"x").await;
    }
    wait("the refusals", || closed(&rig, "BackendRefused") > 0).await;
    wait("the last one", || active(&rig) <= 1).await;
    relayed(&rig, "downstream", 0).await;
    assert!(client.try_recv(&mut [0; 9]).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_silent_ends_and_the_next_datagram_begins_another() {
    let limits = limited(UdpLimits {
        idle: Duration::from_secs(1),
        ..UdpLimits::default()
    });
    let rig = rig(&limits, &[echo("a").await]);
    let client = client(&rig).await;
    assert_eq!(insist(&client, b"1").await.0, "a");
    wait("the end", || closed(&rig, "IdleTimeout") > 0).await;
    wait("its place", || rig.plane.active() == 0).await;
    assert_eq!(active(&rig), 0);
    let before = begun(&rig);
    assert_eq!(insist(&client, b"2").await.0, "a");
    assert!(begun(&rig) > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_leave_sessions_where_they_are_as_long_as_their_endpoint_is_there() {
    const OTHER: &str = "team-a/other:53/udp";
    let (a, b, c) = (echo("a").await, echo("b").await, echo("c").await);
    let mut rig = rig(&quiet(), &[a]);
    let (old, new) = (client(&rig).await, client(&rig).await);
    let (_, port, _) = ask(&old, b"1").await;
    // Another backend is for new sessions, and the one before is still named.
    rig.apply(vec![
        backend(OTHER, &[b]),
        udp_route("dns", 0, "dns", &[(OTHER, 1), (BACKEND, 0)]),
    ]);
    rig.apply(vec![udp_route("second", 5, "dns", &[(BACKEND, 1)])]);
    assert_eq!(
        ask(&new, b"2").await.0,
        "b",
        "the oldest route has the listener"
    );
    let (name, same, _) = ask(&old, b"3").await;
    assert_eq!((&*name, same), ("a", port));
    // More endpoints change nothing for those that have one.
    rig.apply(vec![backend(BACKEND, &[a, c])]);
    assert_eq!(ask(&old, b"4").await.1, port);
    assert_eq!(closed(&rig, "EndpointGone"), 0);
    // Without theirs they begin anew, by the configuration in force, with the very next datagram.
    rig.apply(vec![backend(BACKEND, &[c])]);
    assert_eq!(ask(&old, b"5").await.0, "b");
    assert_eq!(closed(&rig, "EndpointGone"), 1);
    rig.apply(vec![backend(OTHER, &[])]);
    assert!(!deliver(&rig, &old, b"6").await);
    rig.apply(vec![backend(OTHER, &[c])]);
    assert_eq!(ask(&old, b"7").await.0, "c");
    // With the oldest route gone the next one has the listener.
    rig.remove(ResourceKind::UdpRoute, "team-a/dns");
    assert_eq!(ask(&new, b"8").await.0, "c");
    rig.apply(vec![backend(BACKEND, &[a])]);
    assert_eq!(ask(&old, b"9").await.0, "a");
}

/// The backend stays, because another route leads to it. Without the right to refer to it a route has an invalid
/// reference in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_when_its_route_no_longer_names_the_backend() {
    const OTHER: &str = "team-a/other:53/udp";
    let (a, b) = (echo("a").await, echo("b").await);
    let mut rig = rig(&quiet(), &[a]);
    let elsewhere = second_listener(&mut rig);
    let client = client(&rig).await;
    assert_eq!(ask(&client, b"1").await.0, "a");
    rig.apply(vec![
        backend(OTHER, &[b]),
        udp_route("dns", 0, "dns", &[(OTHER, 1)]),
    ]);
    assert_eq!(ask(&client, b"2").await.0, "b");
    rig.apply(vec![udp_route("dns", 0, "dns", &[("", 1)])]);
    assert!(!deliver(&rig, &client, b"3").await);
    rig.apply(vec![udp_route("dns", 0, "dns", &[(BACKEND, 1)])]);
    assert_eq!(ask(&client, b"4").await.0, "a");
    rig.remove(ResourceKind::UdpRoute, "team-a/dns");
    assert!(!deliver(&rig, &client, b"5").await);
    assert_eq!(closed(&rig, "EndpointGone"), 3);
    let other = client_of("127.0.0.1:0", elsewhere).await;
    assert_eq!(ask(&other, b"6").await.0, "a");
}

/// The bind stays open, since a listener is on it before and after, and clients go on from the ports that they have.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_passes_to_another_namespace_leads_nowhere_of_the_one_before() {
    const OTHER: &str = "team-b/dns:53/udp";
    let (a, b) = (echo("a").await, echo("b").await);
    let mut rig = rig(&quiet(), &[a]);
    let client = client(&rig).await;
    assert_eq!(ask(&client, b"1").await.0, "a");
    let port = rig.address.port();
    let rejects = rig.change(
        vec![
            of_tenant("team-b", udp(port, "theirs")),
            of_tenant("team-b", udp_route("theirs", 0, "theirs", &[(OTHER, 1)])),
            backend(OTHER, &[b]),
            // Somebody else still refers to it.
            backend(BACKEND, &[a]),
        ],
        vec![ResourceKey::new(
            ResourceKind::Listener,
            "ListenerSet/team-a/dns/tls",
        )],
    );
    assert_eq!(rejects, Vec::<String>::new());
    assert_eq!(ask(&client, b"2").await.0, "b");
}

/// The listener is the Gateway's own before and after, and the former holder's backend is still in use elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_the_gateway_that_passes_to_another_namespace_leads_nowhere_of_the_one_before() {
    const OTHER: &str = "team-b/dns:53/udp";
    let (a, b) = (echo("a").await, echo("b").await);
    let mut rig = rig(&quiet(), &[a]);
    let port = rig.address.port();
    // The listener that the rig begins with stands for the Gateway's own.
    rig.apply(vec![of_tenant("platform", udp(port, "dns"))]);
    let client = client(&rig).await;
    assert_eq!(ask(&client, b"1").await.0, "a");
    let rejects = rig.change(
        vec![
            of_tenant("team-b", udp_route("theirs", 0, "dns", &[(OTHER, 1)])),
            backend(OTHER, &[b]),
            backend(BACKEND, &[a]),
        ],
        vec![ResourceKey::new(ResourceKind::UdpRoute, "team-a/dns")],
    );
    assert_eq!(rejects, Vec::<String>::new());
    assert_eq!(ask(&client, b"2").await.0, "b");
}

/// A client that says nothing, and a backend that never stops: an edit ends that too.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_gone_is_heard_no_longer() {
    let endpoint = bound("127.0.0.1:0").await;
    let mut rig = rig(&quiet(), &[endpoint.local_addr().unwrap()]);
    let client = client(&rig).await;
    client.send(b"subscribe").await.unwrap();
    let received = within("it", endpoint.recv_from(&mut [0; 64])).await;
    let (_, session) = received.unwrap();
    endpoint.send_to(b"one", session).await.unwrap();
    assert_eq!(receive_one(&client).await, b"one");
    rig.apply(vec![backend(BACKEND, &[])]);
    endpoint.send_to(b"two", session).await.unwrap();
    wait("the end", || closed(&rig, "EndpointGone") == 1).await;
    relayed(&rig, "downstream", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_used_up_one_listener_has_another_one() {
    let limits = limited(UdpLimits {
        max_sessions: 8,
        source_sessions_per_second: 6,
        ..UdpLimits::default()
    });
    let a = echo("a").await;
    let mut rig = rig(&limits, &[a]);
    let elsewhere = second_listener(&mut rig);
    // It could be anybody who says to be this source.
    for _ in 0..10 {
        let client = client(&rig).await;
        for _ in 0..2 {
            deliver(&rig, &client, b"x").await;
        }
    }
    assert!(dropped(&rig, "Limit") + dropped(&rig, "SourceRate") > 0);
    let client = client_of("127.0.0.1:0", elsewhere).await;
    assert_eq!(ask(&client, b"me too").await.0, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_goes_takes_its_sessions_and_its_port_along() {
    let a = echo("a").await;
    let mut rig = rig(&quiet(), &[a]);
    let client = client(&rig).await;
    ask(&client, b"1").await;
    rig.remove(ResourceKind::Listener, "ListenerSet/team-a/dns/tls");
    wait("the end", || closed(&rig, "NoListener") == 1).await;
    wait("its place", || rig.plane.active() == 0).await;
    let refused = async {
        loop {
            // The port is closed, which the client's own host says.
            let _ = client.send(b"2").await;
            let mut buffer = [0; 9];
            let waited = client.recv(&mut buffer);
            let waited = tokio::time::timeout(Duration::from_millis(50), waited);
            if let Ok(Err(error)) = waited.await {
                return error.kind();
            }
        }
    };
    let refused = within("a closed port", refused).await;
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
    let rejects = rig.apply(vec![udp(rig.address.port(), "dns")]);
    // Somebody else may have taken the port meanwhile.
    if rejects.is_empty() {
        assert_eq!(insist(&client, b"3").await.0, "a");
    }
}

/// The sockets that it had would have a part of the clients for as long as they are open.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_comes_back_at_once_serves_every_client() {
    let a = echo("a").await;
    let mut rig = rig(&quiet(), &[a]);
    let mut clients = Vec::new();
    for _ in 0..10 {
        rig.remove(ResourceKind::Listener, "ListenerSet/team-a/dns/tls");
        let rejects = rig.apply(vec![udp(rig.address.port(), "dns")]);
        if !rejects.is_empty() {
            // Somebody else has taken the port meanwhile.
            break;
        }
        let mut ports = Vec::new();
        for _ in 0..8 {
            let client = client(&rig).await;
            ports.push(ask(&client, b"1").await.1);
            clients.push(client);
        }
        let of_this = clients.iter().rev().take(8).rev();
        for (client, port) in of_this.zip(ports) {
            assert_eq!(ask(client, b"2").await.1, port);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_number_is_a_port_of_tcp_and_one_of_udp() {
    const TCP: &str = "team-a/dns:53";
    let (datagrams, stream) = (echo("a").await, serve(vestibule_proxy_testing::echo).await);
    let both = || {
        Rig::start(&quiet(), |port| {
            let mut all = serving(port, &[datagrams]);
            all.push(tcp(port, "dns-tcp"));
            all.push(tcp_route("dns", 0, "dns-tcp", &[(TCP, 1)]));
            all.push(backend(TCP, &[stream]));
            all
        })
    };
    let over_tcp = async |rig: &Rig| {
        let mut tcp = TcpStream::connect(rig.address).await.unwrap();
        tcp.write_all(b"over TCP").await.unwrap();
        tcp.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut tcp).await.unwrap(), b"over TCP");
    };
    let mut rig = both();
    let udp_client = client(&rig).await;
    over_tcp(&rig).await;
    assert_eq!(ask(&udp_client, b"over UDP").await.2, b"over UDP");
    // One listener has a port of UDP.
    let second = rig.apply(vec![udp(rig.address.port(), "second")]);
    assert_eq!(second.len(), 1, "{second:?}");
    assert!(second[0].starts_with("HostnameConflict"), "{second:?}");
    // Each goes by itself.
    rig.remove(ResourceKind::Listener, "ListenerSet/team-a/dns-tcp/tls");
    assert_eq!(ask(&udp_client, b"still").await.2, b"still");
    let mut rig = both();
    rig.remove(ResourceKind::Listener, "ListenerSet/team-a/dns/tls");
    over_tcp(&rig).await;
}

/// As one source that floods: it has its part of the sessions, and others have theirs.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_bounded_by_source_and_in_total() {
    const ALL: u64 = 16;
    let limits = limited(UdpLimits {
        max_sessions: usize::try_from(ALL).unwrap(),
        ..UdpLimits::default()
    });
    let rig = rig(&limits, &[echo("a").await]);
    let mut clients = Vec::new();
    for source in 1..=6 {
        for _ in 0..ALL {
            let client = client_of(&format!("127.0.0.{source}:0"), rig.address).await;
            // Twice, so that it gives way to nobody.
            for _ in 0..2 {
                deliver(&rig, &client, b"x").await;
            }
            clients.push(client);
            assert!(active(&rig) <= ALL);
        }
        if source == 1 {
            assert!(active(&rig) <= ALL / 2, "{}", active(&rig));
        }
        assert!(begun(&rig) >= source, "each source gets something");
    }
    assert!(dropped(&rig, "Limit") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_sessions_of_a_source_are_bounded_in_a_second() {
    let limits = limited(UdpLimits {
        source_sessions_per_second: 1,
        ..UdpLimits::default()
    });
    let rig = rig(&limits, &[echo("a").await]);
    let mut clients = Vec::new();
    for _ in 0..100 {
        let client = client(&rig).await;
        deliver(&rig, &client, b"x").await;
        clients.push(client);
    }
    // They would have to take two minutes for all to be let in.
    assert!(dropped(&rig, "SourceRate") > 0);
    assert!(begun(&rig) < 100);
    // A session that there is has no such bound.
    let first = &clients[0];
    for _ in 0..50 {
        assert!(deliver(&rig, first, b"x").await);
    }
}

/// Clients of DNS, and whoever makes up sources: they displace one another, and none that was heard twice.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_one_datagram_give_way_to_new_ones_and_others_do_not() {
    let limits = limited(UdpLimits {
        max_sessions: 16,
        ..UdpLimits::default()
    });
    let a = echo("a").await;
    // One worker: it has to be the one that has the older ones.
    let rig = Rig::start_on(1, &limits, |port| serving(port, &[a]));
    let player = client_of("127.0.0.2:0", rig.address).await;
    let (_, port, _) = ask(&player, b"1").await;
    assert_eq!(ask(&player, b"2").await.1, port);
    let mut clients = Vec::new();
    for _ in 0..200 {
        let client = client(&rig).await;
        assert_eq!(ask(&client, b"question").await.0, "a");
        clients.push(client);
        assert!(active(&rig) <= 16 + 1, "one may be about to end");
    }
    assert!(closed(&rig, "Displaced") >= 200 - 16);
    assert_eq!(ask(&player, b"3").await.1, port);
    assert_eq!(dropped(&rig, "Limit"), 0);
}

fn of_tenant(tenant: &str, mut resource: Resource) -> Resource {
    use proto::resource::Resource as Wire;
    match resource.resource.as_mut().unwrap() {
        Wire::Listener(listener) => listener.tenant = tenant.into(),
        Wire::UdpRoute(route) => route.tenant = tenant.into(),
        _ => {}
    }
    resource
}

/// A listener of another tenant with the same backend.
fn second_listener(rig: &mut Rig) -> SocketAddr {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listener = of_tenant("team-b", udp(address.port(), "quiet"));
    let route = of_tenant("team-b", udp_route("quiet", 0, "quiet", &[(BACKEND, 1)]));
    assert_eq!(rig.apply(vec![listener, route]), Vec::<String>::new());
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_no_more_sessions_than_leave_others_their_share() {
    let limits = limited(UdpLimits {
        max_sessions: 12,
        ..UdpLimits::default()
    });
    let a = echo("a").await;
    let mut rig = rig(&limits, &[a]);
    let elsewhere = second_listener(&mut rig);
    let mut clients = Vec::new();
    for source in 1..=40 {
        let client = client_of(&format!("127.0.1.{source}:0"), rig.address).await;
        for _ in 0..2 {
            deliver(&rig, &client, b"x").await;
        }
        clients.push(client);
    }
    // A quarter is the share of each, and the half is lent.
    assert_eq!(active(&rig), 9);
    assert!(dropped(&rig, "TenantLimit") > 0);
    let refused = |reason: &str| {
        let labels = format!("{{tenant=\"team-a\",reason=\"{reason}\"}}");
        metric(&rig, &format!("tenant_refused_udp_sessions_total{labels}"))
    };
    assert!(refused("TenantLimit") > 0);
    assert_eq!(refused("Overload"), 0);
    assert_eq!(
        metric(&rig, "tenant_held_udp_sessions{tenant=\"team-a\"}"),
        9
    );
    for source in 1..=3 {
        let client = client_of(&format!("127.0.2.{source}:0"), elsewhere).await;
        assert_eq!(ask(&client, b"me too").await.0, "a");
        clients.push(client);
    }
    assert_eq!(active(&rig), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_on_while_a_proxy_drains_and_none_begin() {
    let (address, backend) = echo_task("127.0.0.1:0", "a").await;
    let mut rig = rig(&quiet(), &[address]);
    let (old, late) = (client(&rig).await, client(&rig).await);
    let (_, port, _) = ask(&old, b"1").await;
    let workers = rig.workers.take().unwrap();
    let drained = tokio::spawn(async move { workers.drain(Duration::from_hours(1)).await });
    wait("the stop", || rig.plane.is_closing()).await;
    for _ in 0..5 {
        assert!(!deliver(&rig, &late, b"x").await);
    }
    assert_eq!(dropped(&rig, "Draining"), 5);
    assert_eq!(ask(&old, b"2").await.1, port);
    // The last session ends, so there is nothing to wait for.
    backend.abort();
    let refused = async {
        while closed(&rig, "BackendRefused") == 0 {
            let _ = old.send(b"3").await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the end of the session", refused).await;
    assert_eq!(within("the end", drained).await.unwrap(), 0);
    assert_eq!((begun(&rig), closed(&rig, "Drained")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_left_when_the_drain_time_is_over_are_cut() {
    let mut rig = rig(&quiet(), &[echo("a").await]);
    let client = client(&rig).await;
    ask(&client, b"1").await;
    let workers = rig.workers.take().unwrap();
    let left = within("the end", workers.drain(Duration::ZERO)).await;
    assert_eq!((left, closed(&rig, "Drained")), (1, 1));
    assert_eq!(rig.plane.active(), 0);
}

fn on_address(address: &str, mut resource: Resource) -> Resource {
    if let Some(proto::resource::Resource::Listener(listener)) = &mut resource.resource {
        listener.bind.as_mut().unwrap().address = address.into();
    }
    resource
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_from_the_address_that_the_client_sent_to() {
    let a = echo("a").await;
    for any in ["0.0.0.0", "::"] {
        let rig = Rig::start(&quiet(), |port| {
            serving(port, &[a])
                .into_iter()
                .map(|resource| on_address(any, resource))
                .collect()
        });
        let client = bound("127.0.0.1:0").await;
        let mut ports = BTreeSet::new();
        for last in [1, 7, 200] {
            let to = SocketAddr::new(
                IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)),
                rig.address.port(),
            );
            client.send_to(b"x", to).await.unwrap();
            let mut buffer = [0; 64];
            let received = within("an answer", client.recv_from(&mut buffer)).await;
            let (length, from) = received.unwrap();
            assert_eq!(from, to, "on {any}");
            ports.insert(buffer[..length].to_vec());
        }
        // To the backend they are different clients.
        assert_eq!(ports.len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_on_either_side() {
    if UdpSocket::bind("[::1]:0").await.is_err() {
        return; // A host without IPv6.
    }
    let six = echo_at("[::1]:0", "six").await;
    let rig = Rig::start(&quiet(), |port| {
        serving(port, &[six])
            .into_iter()
            .map(|resource| on_address("::", resource))
            .collect()
    });
    let from_four = client(&rig).await;
    assert_eq!(ask(&from_four, b"x").await.0, "six");
    let to = SocketAddr::new("::1".parse().unwrap(), rig.address.port());
    let from_six = client_of("[::1]:0", to).await;
    let long = vec![7; 20_000];
    let (name, _, got) = ask(&from_six, &long).await;
    assert_eq!((&*name, got), ("six", long));
}

/// HTTP/3 and whatever else speaks QUIC: many connections of several clients through one listener.
#[tokio::test(flavor = "multi_thread")]
async fn quic_passes_with_many_connections() {
    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use std::sync::Arc;

    const NAME: &str = "h3.example.com";
    const CLIENTS: u64 = 8;
    const CONNECTIONS: u64 = 4;
    let identity = Identity::new(NAME);
    let mut server = identity.server_config();
    server.alpn_protocols = vec![b"h3".to_vec()];
    let server = QuicServerConfig::try_from(server).unwrap();
    // A slow machine is no reason to give up.
    let mut patient = quinn::TransportConfig::default();
    patient.max_idle_timeout(None);
    let patient = Arc::new(patient);
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
    server.transport_config(Arc::clone(&patient));
    let server = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let rig = rig(&quiet(), &[server.local_addr().unwrap()]);
    tokio::spawn(async move {
        while let Some(incoming) = server.accept().await {
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else {
                    return;
                };
                while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                    tokio::spawn(async move {
                        let all = receive.read_to_end(1 << 20).await.unwrap_or_default();
                        let _ = send.write_all(&all).await;
                        let _ = send.finish();
                    });
                }
            });
        }
    });
    let versions = [&rustls::version::TLS13];
    let mut config = client_config_with(&identity, provider(), &versions);
    config.alpn_protocols = vec![b"h3".to_vec()];
    let mut config =
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    config.transport_config(patient);
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        for connection in 0..CONNECTIONS {
            let (endpoint, config, address) = (endpoint.clone(), config.clone(), rig.address);
            tasks.push(tokio::spawn(async move {
                let connecting = endpoint.connect_with(config, address, NAME).unwrap();
                let connected = connecting.await.unwrap();
                let byte = u8::try_from(number * CONNECTIONS + connection).unwrap();
                let bytes = vec![byte; 50_000];
                for _ in 0..3 {
                    let (mut send, mut receive) = connected.open_bi().await.unwrap();
                    send.write_all(&bytes).await.unwrap();
                    send.finish().unwrap();
                    let echoed = receive.read_to_end(1 << 20).await.unwrap();
                    assert!(echoed == bytes);
                }
            }));
        }
    }
    for task in tasks {
        within("a connection's streams", task).await.unwrap();
    }
    assert_eq!(begun(&rig), CLIENTS);
}
