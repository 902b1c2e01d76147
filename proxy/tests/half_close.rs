//! HTTP/1.1 clients that close their side after their request: they get the whole answer. Clients that
//! are gone do not keep a backend busy.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

/// A listener with one route to `address`, in plaintext or with a certificate.
fn rig(limits: &ProxyLimits, address: SocketAddr, identity: Option<&Identity>) -> Rig {
    Rig::start(limits, |port| {
        let name = "team-a/own";
        let certificate = identity.map(|own| own.resource(name));
        certificate
            .into_iter()
            .chain([
                http(port, "web", HOST, identity.map(|_| name)),
                http_route("web", HOST, vec![rule("/", BACKEND)]),
                backend(BACKEND, &[address]),
            ])
            .collect()
    })
}

/// A backend whose connections the test answers.
struct Held(TcpListener);

impl Held {
    async fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self(listener), address)
    }

    /// The next connection, once its request is here up to `end`.
    async fn request(&self, end: &str) -> TcpStream {
        let accepted = within("a connection", self.0.accept()).await;
        let (mut stream, _) = accepted.unwrap();
        read_until(&mut stream, end).await;
        stream
    }
}

/// Reads until what came ends like this.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut text = String::new();
    let read = async {
        while !text.ends_with(end) {
            text.push(char::from(stream.read_u8().await.unwrap()));
        }
    };
    within(end, read).await;
    text
}

/// The bodies of the answers in `text`, none of which may be cut.
fn bodies(mut text: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    while !text.is_empty() {
        let (head, rest) = text.split_once("\r\n\r\n").expect("a whole head");
        let answer = parse(head);
        assert_eq!(answer.status, 200, "{text}");
        let mut body = String::new();
        if let Some(length) = answer.header("content-length") {
            let (whole, rest) = rest.split_at(length.parse().unwrap());
            body.push_str(whole);
            text = rest;
        } else if answer.header("transfer-encoding") == Some("chunked") {
            text = rest;
            loop {
                let (size, rest) = text.split_once("\r\n").expect("the size of a chunk");
                let size = usize::from_str_radix(size, 16).unwrap();
                body.push_str(&rest[..size]);
                text = rest[size..].strip_prefix("\r\n").expect("a whole chunk");
                if size == 0 {
                    break;
                }
            }
        } else {
            body.push_str(rest);
            text = "";
        }
        bodies.push(body);
    }
    bodies
}

fn request(line: &str, rest: &str) -> String {
    format!("{line}\r\nhost: {HOST}\r\n{rest}")
}

/// Requests, and how each of them ends at the backend.
fn requests() -> [(String, &'static str); 5] {
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let chunked = "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    [
        (request("GET / HTTP/1.1", "\r\n"), "\r\n\r\n"),
        (request("GET / HTTP/1.0", "\r\n"), "\r\n\r\n"),
        (request("GET / HTTP/1.1", upgrade), "\r\n\r\n"),
        (
            request("POST / HTTP/1.1", "content-length: 5\r\n\r\nhello"),
            "hello",
        ),
        (request("POST / HTTP/1.1", chunked), "hello\r\n0\r\n\r\n"),
    ]
}

/// The two halves of an answer with the body `first and second`.
const ANSWERS: [(&str, &str); 3] = [
    ("content-length: 16\r\n\r\nfirst", " and second"),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        "b\r\n and second\r\n0\r\n\r\n",
    ),
    ("\r\nfirst", " and second"),
];

/// Makes a request, ends the client's side, and only then lets the backend answer, in two parts.
async fn ends_its_side(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    held: &Held,
    (request, end): (&str, &str),
    (first, second): (&str, &str),
) {
    client.write_all(request.as_bytes()).await.unwrap();
    let mut backend = held.request(end).await;
    client.shutdown().await.unwrap();
    let text = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{first}");
    backend.write_all(text.as_bytes()).await.unwrap();
    // By now the proxy has seen the end, and goes on.
    let mut text = read_until(&mut client, "first").await;
    backend.write_all(second.as_bytes()).await.unwrap();
    drop(backend);
    let rest = read_to_end(&mut client).await;
    let rest = rest.unwrap_or_else(|error| panic!("{error} after {request}{text}"));
    text.push_str(&String::from_utf8(rest).unwrap());
    assert_eq!(bodies(&text), ["first and second"], "{request}\n{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_its_side_gets_the_whole_answer() {
    let (held, address) = Held::start().await;
    let rig = rig(&quiet(), address, None);
    let mut count = 0;
    for (request, end) in &requests() {
        for answer in ANSWERS {
            ends_its_side(rig.connect().await, &held, (request, end), answer).await;
            count += 1;
        }
    }
    rig.wait_closed(CloseReason::ClientClosed, count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_does_one_within_tls() {
    let (held, address) = Held::start().await;
    let own = Identity::new(HOST);
    let rig = rig(&quiet(), address, Some(&own));
    for (request, end) in requests() {
        for answer in ANSWERS {
            let stream = tls(rig.connect().await, client_config(&own), HOST);
            // Its end is a close_notify, and then the end of the TCP stream.
            let stream = stream.await.unwrap();
            ends_its_side(stream, &held, (&request, end), answer).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_that_came_whole_is_answered() {
    let (held, address) = Held::start().await;
    let rig = rig(&quiet(), address, None);
    let mut client = rig.connect().await;
    let one = request("GET / HTTP/1.1", "\r\n");
    let two = request("POST / HTTP/1.1", "content-length: 5\r\n\r\nhello");
    let cut = request("GET / HTTP/1.1", "x-cut");
    // What is behind it waits until it is known that nothing comes of it.
    let asks = request(
        "GET / HTTP/1.1",
        "connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    );
    for parts in [vec![&one, &two], vec![&one, &two, &cut], vec![&asks, &two]] {
        let all: String = parts.into_iter().map(String::as_str).collect();
        client.write_all(all.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        for (end, text) in [("\r\n\r\n", "one"), ("hello", "two")] {
            let mut backend = held.request(end).await;
            let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\n";
            backend.write_all(answer.as_bytes()).await.unwrap();
            backend.write_all(text.as_bytes()).await.unwrap();
        }
        let text = read_to_end(&mut client).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(bodies(&text), ["one", "two"], "{text}");
        client = rig.connect().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_gets_all_of_a_long_answer() {
    const LENGTH: usize = 8 * 1024 * 1024;
    let (held, address) = Held::start().await;
    let own = Identity::new(HOST);
    for identity in [None, Some(&own)] {
        let rig = rig(&quiet(), address, identity);
        // Little room, so that the end of the answer waits in the proxy.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(rig.address).await.unwrap();
        if identity.is_some() {
            let stream = tls(stream, client_config(&own), HOST).await.unwrap();
            late(stream, &held, LENGTH).await;
        } else {
            late(stream, &held, LENGTH).await;
        }
    }
}

async fn late(mut client: impl AsyncRead + AsyncWrite + Unpin, held: &Held, length: usize) {
    let text = request("GET / HTTP/1.1", "\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    let mut backend = held.request("\r\n\r\n").await;
    client.shutdown().await.unwrap();
    let sends = tokio::spawn(async move {
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        backend.write_all(text.as_bytes()).await.unwrap();
        send(&mut backend, 7, length as u64).await;
        backend
    });
    read_until(&mut client, "\r\n\r\n").await;
    receive(&mut client, 7, length as u64).await;
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
    sends.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_takes_its_time_is_waited_for() {
    let one = Echo::start("one").await;
    let soon = Duration::from_millis(300);
    let limits = ProxyLimits {
        http: HttpLimits {
            head_deadline: soon,
            idle: soon,
            stall: soon,
            ..HttpLimits::default()
        },
        ..quiet()
    };
    let rig = rig(&limits, one.address, None);
    let mut client = rig.connect().await;
    let text = request("GET /?delay=1500 HTTP/1.1", "\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let text = read_to_end(&mut client).await.unwrap();
    assert_eq!(bodies(&String::from_utf8(text).unwrap()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_goes_on_into_a_websocket() {
    let (held, address) = Held::start().await;
    let rig = rig(&quiet(), address, None);
    let mut client = rig.connect().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let text = request("GET / HTTP/1.1", upgrade);
    client.write_all(text.as_bytes()).await.unwrap();
    let mut backend = held.request("\r\n\r\n").await;
    client.shutdown().await.unwrap();
    let switch = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}");
    backend.write_all(switch.as_bytes()).await.unwrap();
    assert_eq!(read_to_end(&mut backend).await.unwrap(), b"");
    backend.write_all(b"good-bye").await.unwrap();
    drop(backend);
    let text = read_to_end(&mut client).await.unwrap();
    assert!(text.ends_with(b"\r\n\r\ngood-bye"));
}

/// What the kernel says of the proxy's end of a client's connection.
struct ProxyEnd {
    /// Seconds until its keepalive timer expires, if this is the timer that runs.
    probe: Option<f64>,
    /// How many descriptors of this process it has.
    descriptors: usize,
}

impl ProxyEnd {
    fn of(client: &TcpStream) -> Self {
        let hex = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => format!("{:08X}:{:04X}", ip.to_bits().swap_bytes(), address.port()),
            IpAddr::V6(_) => panic!("the tests use IPv4"),
        };
        let ends = [client.peer_addr(), client.local_addr()].map(|end| hex(end.unwrap()));
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let mut rows = table.lines().map(|row| row.split_whitespace().collect());
        let row: Vec<&str> = rows
            .find(|row: &Vec<&str>| row[1] == ends[0] && row[2] == ends[1])
            .expect("the proxy's end of the connection");
        let (timer, ticks) = row[5].split_once(':').unwrap();
        let ticks = u32::from_str_radix(ticks, 16).unwrap();
        let name = format!("socket:[{}]", row[9]);
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
            let target = entry.and_then(|entry| std::fs::read_link(entry.path()));
            target.is_ok_and(|target| target.as_os_str() == name.as_str())
        };
        Self {
            probe: (timer == "02").then(|| f64::from(ticks) / 100.0),
            descriptors: descriptors.map(is_it).filter(|is| *is).count(),
        }
    }
}

/// Makes a request and ends its side. Returns the connection of the backend, which has the request.
async fn ask_and_end(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), held: &Held) -> TcpStream {
    let text = request("GET / HTTP/1.1", "\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let backend = held.request("\r\n\r\n").await;
    stream.shutdown().await.unwrap();
    backend
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_listens_costs_one_descriptor_and_is_looked_after() {
    let (held, address) = Held::start().await;
    let own = Identity::new(HOST);
    for identity in [None, Some(&own)] {
        let rig = rig(&quiet(), address, identity);
        let mut client = rig.connect().await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\nfirst";
        let mut backend;
        if identity.is_some() {
            let mut stream = tls(client, client_config(&own), HOST).await.unwrap();
            backend = ask_and_end(&mut stream, &held).await;
            backend.write_all(answer).await.unwrap();
            read_until(&mut stream, "first").await;
            client = stream.into_inner().0;
        } else {
            backend = ask_and_end(&mut client, &held).await;
            backend.write_all(answer).await.unwrap();
            read_until(&mut client, "first").await;
        }
        // By now the proxy has seen the end, and waits for the rest of the answer.
        assert_eq!(ProxyEnd::of(&client).descriptors, 1);
        // Otherwise the first probe comes two minutes after the last byte.
        let is_probed_soon = || ProxyEnd::of(&client).probe.is_some_and(|wait| wait <= 10.0);
        wait("a probe that comes soon", is_probed_soon).await;
    }
}

/// Waits until the proxy has given up a connection to a backend.
async fn given_up(backend: &mut TcpStream) {
    // An error is an end, too.
    let _ = read_to_end(backend).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_cut_is_given_up() {
    let (held, address) = Held::start().await;
    let rig = rig(&quiet(), address, None);
    let mut client = rig.connect().await;
    let cut = request("POST / HTTP/1.1", "content-length: 9\r\n\r\nhello");
    client.write_all(cut.as_bytes()).await.unwrap();
    let mut backend = held.request("hello").await;
    client.shutdown().await.unwrap();
    given_up(&mut backend).await;
    let text = read_to_end(&mut client).await.unwrap();
    assert_eq!(parse(&String::from_utf8(text).unwrap()).status, 400);

    let mut client = rig.connect().await;
    let text = request("GET / HTTP/1.1", "x-cut");
    client.write_all(text.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await.unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_behind_the_end_gives_the_request_up_at_once() {
    let (held, address) = Held::start().await;
    let own = Identity::new(HOST);
    for identity in [None, Some(&own)] {
        let rig = rig(&quiet(), address, identity);
        let mut client = rig.connect().await;
        let mut backend = if identity.is_some() {
            let mut stream = tls(client, client_config(&own), HOST).await.unwrap();
            let backend = ask_and_end(&mut stream, &held).await;
            client = stream.into_inner().0;
            backend
        } else {
            ask_and_end(&mut client, &held).await
        };
        SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(client);
        given_up(&mut backend).await;
        rig.wait_closed(CloseReason::ClientReset, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closed_is_missed_when_the_answer_comes() {
    let (held, address) = Held::start().await;
    let rig = rig(&quiet(), address, None);
    let mut client = rig.connect().await;
    let text = request("GET / HTTP/1.1", "\r\n");
    client.write_all(text.as_bytes()).await.unwrap();
    let mut backend = held.request("\r\n\r\n").await;
    // To the proxy this is no different from ending one side, until it writes.
    drop(client);
    let text = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
    backend.write_all(text).await.unwrap();
    let writes = async { while backend.write_all(b"more").await.is_ok() {} };
    within("the end of the exchange", writes).await;
    rig.wait_closed(CloseReason::ClientReset, 1).await;
}
