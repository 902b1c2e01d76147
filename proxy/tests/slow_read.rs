//! Clients that ask for much and take nothing, in each protocol: what they make the proxy hold, and that they are ended.
//! That is in processes of its own, since it measures the process. And which requests of an HTTP/2 connection reach a
//! backend while its client takes nothing, or takes the answers slowly.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use proto::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use vestibule_proxy::bounds::Bounds;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy_testing::frames::*;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
const REQUESTS: usize = 100;
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Variables of the environment that say which case a process runs, and where its backend is.
const CASE: &str = "SLOW_READ_CASE";
const ADDRESS: &str = "SLOW_READ_BACKEND";
/// Fewer than end a connection by themselves.
const PINGS: usize = 800;

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Windows as large as there are.
fn large_windows() -> Vec<u8> {
    let window = 0x7fff_ffff_u32.to_be_bytes();
    let more = (0x7fff_ffff_u32 - 65_535).to_be_bytes();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[&[0, 4][..], &window].concat()));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &more));
    bytes
}

/// The requests of these numbers, on a connection of HTTP/2.
fn requests(numbers: Range<usize>) -> Vec<u8> {
    // :method GET, :scheme http, :path /, :authority
    let mut block = vec![0x82, 0x86, 0x84, 0x41, u8::try_from(HOST.len()).unwrap()];
    block.extend_from_slice(HOST.as_bytes());
    let request = |n| frame(HEADERS, END_STREAM | END_HEADERS, stream_of(n), &block);
    numbers.flat_map(request).collect()
}

/// The stream of the request with a number.
fn stream_of(number: usize) -> u32 {
    u32::try_from(2 * number + 1).unwrap()
}

fn http2() -> Vec<u8> {
    [large_windows(), requests(0..REQUESTS)].concat()
}

fn http1() -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n")
        .repeat(REQUESTS)
        .into_bytes()
}

fn websocket() -> Vec<u8> {
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k";
    format!("GET /socket HTTP/1.1\r\nhost: {HOST}\r\n{upgrade}\r\n\r\n").into_bytes()
}

static PIECE: [u8; 64 * KIB] = [7; 64 * KIB];
const ENDLESS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";

/// A backend that sends each client as much as it takes.
async fn endless() -> SocketAddr {
    serve(|mut stream: TcpStream| async move {
        let mut head = [0; 512];
        let length = stream.read(&mut head).await.unwrap_or(0);
        let upgrade = "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-accept: a";
        let answer = if head[..length].starts_with(b"GET /socket") {
            format!("HTTP/1.1 {upgrade}\r\n\r\n")
        } else {
            "HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n".to_owned()
        };
        let _ = stream.write_all(answer.as_bytes()).await;
        while stream.write_all(&PIECE).await.is_ok() {}
    })
    .await
}

/// The same with 10 MiB, by HTTP/2.
async fn large_http2() -> SocketAddr {
    let file = Bytes::from(vec![7; 10 * MIB]);
    serve(move |stream: TcpStream| {
        let file = file.clone();
        serve_http(stream, true, move |_| {
            std::future::ready(Response::new(Full::new(file.clone())))
        })
    })
    .await
}

/// Clients that read nothing.
struct Case {
    name: &'static str,
    protocol: BackendProtocol,
    connections: usize,
    sends: Vec<u8>,
    /// Whether they send pings as well.
    pings: bool,
    ended: CloseReason,
    /// Bytes that one connection may cost at most. `docs/http.md` promises it. On a busy machine the backends are slow, so more
    /// requests of HTTP/2 reach them than otherwise, and these are the bounds for all of them.
    most: usize,
}

fn cases() -> [Case; 4] {
    [
        Case {
            name: "WebSocket",
            protocol: BackendProtocol::Unspecified,
            connections: 20,
            sends: websocket(),
            pings: false,
            ended: CloseReason::TunnelIdleTimeout,
            most: 256 * KIB,
        },
        Case {
            name: "HTTP/1.1, pipelined",
            protocol: BackendProtocol::Unspecified,
            connections: 20,
            sends: http1(),
            pings: false,
            ended: CloseReason::ClientStalled,
            most: 512 * KIB,
        },
        Case {
            name: "HTTP/2, with HTTP/2 to the backend",
            protocol: BackendProtocol::H2c,
            connections: 20,
            sends: http2(),
            pings: true,
            ended: CloseReason::ClientStalled,
            most: 12 * MIB,
        },
        Case {
            name: "HTTP/2, with HTTP/1.1 to the backend",
            protocol: BackendProtocol::Unspecified,
            // So many have few connections to the backend, and none of them is refused.
            connections: 20,
            sends: http2(),
            pings: true,
            ended: CloseReason::ClientStalled,
            most: 5 * MIB,
        },
    ]
}

/// Runs the proxy and the clients of a case.
async fn run(case: Case, address: SocketAddr) {
    let limits = ProxyLimits {
        access_log: false,
        http: HttpLimits {
            // Heads come late if the machine is busy, and no case is about them.
            head_deadline: Duration::from_secs(30),
            stall: Duration::from_secs(5),
            ..HttpLimits::default()
        },
        bounds: Bounds {
            tunnel_idle: Some(Duration::from_secs(5)),
            ..Bounds::default()
        },
        ..ProxyLimits::default()
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], case.protocol),
        ]
    });
    let before = resident();
    let mut streams = Vec::new();
    for _ in 0..case.connections {
        let mut stream = rig.connect().await;
        stream.write_all(&case.sends).await.unwrap();
        streams.push(stream);
    }
    // They are measured for as long as they stand, which pings do not prolong.
    let ended = u64::try_from(case.connections).unwrap();
    let (mut peak, mut pings) = (0, 0);
    let ends = async {
        let ping = frame(6, 0, 0, &[0; 8]);
        while rig.closed(case.ended) < ended {
            peak = resident().max(peak);
            pings += 1;
            for stream in &streams {
                if case.pings && pings < PINGS {
                    let _ = stream.try_write(&ping);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(case.name, ends).await;
    let each = peak.saturating_sub(before) / case.connections;
    assert!(each < case.most, "{}: {each} bytes for each", case.name);
}

/// The backends are in this process. The proxy of each case is in a process of its own, which is this test again.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_is_held_little_and_ended() {
    if let (Ok(case), Ok(address)) = (std::env::var(CASE), std::env::var(ADDRESS)) {
        let mut cases = cases().into_iter();
        let case = cases.nth(case.parse().unwrap()).unwrap();
        return run(case, address.parse().unwrap()).await;
    }
    let (one, two) = (endless().await, large_http2().await);
    for (number, case) in cases().into_iter().enumerate() {
        let address = match case.protocol {
            BackendProtocol::H2c => two,
            _ => one,
        };
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture"]);
        command.arg("who_takes_nothing_is_held_little_and_ended");
        command.env(CASE, number.to_string());
        command.env(ADDRESS, address.to_string());
        let ran = tokio::task::spawn_blocking(move || command.status()).await;
        assert!(ran.unwrap().unwrap().success(), "{}", case.name);
    }
}

/// Requests of a client that reads nothing that reach a backend at once, as `docs/http.md` says.
const BEGUN: usize = 32;
/// Most of its requests that reach one later, each after twice the time of the one before. It takes 100 seconds until there are
/// so many, and a client is ended earlier.
const LATER: usize = 10;

/// The counts of a backend whose answers have no end.
#[derive(Default)]
struct Counts {
    /// Bytes that were sent on each of its connections.
    sent: Mutex<Vec<usize>>,
}

impl Counts {
    fn sent(&self) -> Vec<usize> {
        self.sent.lock().clone()
    }

    fn connections(&self) -> usize {
        self.sent().len()
    }

    /// Waits until the backend can send nothing more on any connection, because nobody takes it.
    async fn halt(&self) {
        let halts = async {
            let mut last = Vec::new();
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let sent = self.sent();
                if !sent.contains(&0) && sent == last {
                    return;
                }
                last = sent;
            }
        };
        within("a halt", halts).await;
    }
}

/// As [`endless`], with counts.
async fn counted() -> (SocketAddr, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let all = Arc::clone(&counts);
    let address = serve(move |mut stream: TcpStream| {
        let counts = Arc::clone(&all);
        let number = {
            let mut sent = counts.sent.lock();
            sent.push(0);
            sent.len() - 1
        };
        async move {
            let _ = stream.read(&mut [0; 512]).await;
            let _ = stream.write_all(ENDLESS).await;
            while let Ok(sent) = stream.write(&PIECE).await {
                counts.sent.lock()[number] += sent;
            }
        }
    })
    .await;
    (address, counts)
}

/// A proxy that leads to a backend of HTTP/1.1, and ends clients that take nothing for ten seconds.
fn rig(address: SocketAddr) -> Rig {
    let limits = ProxyLimits {
        http: HttpLimits {
            stall: Duration::from_secs(10),
            ..HttpLimits::default()
        },
        ..quiet()
    };
    Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend(BACKEND, &[address]),
        ]
    })
}

/// A client that has so many answers under way as may be without being read, and reads nothing of them.
async fn blocked(rig: &Rig, counts: &Counts) -> TcpStream {
    let mut stream = rig.connect().await;
    let first = [large_windows(), requests(0..BEGUN)].concat();
    stream.write_all(&first).await.unwrap();
    let begun = || counts.connections() == BEGUN;
    wait("the first requests", begun).await;
    counts.halt().await;
    assert_eq!(counts.connections(), BEGUN);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn no_further_request_reaches_a_backend_while_nothing_is_read() {
    let (address, counts) = counted().await;
    let rig = rig(address);
    let mut stream = blocked(&rig, &counts).await;
    stream.write_all(&requests(BEGUN..REQUESTS)).await.unwrap();
    rig.wait_closed(CloseReason::ClientStalled, 1).await;
    let begun = counts.connections();
    assert!((BEGUN..=BEGUN + LATER).contains(&begun), "{begun}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_reset_leave_their_places_to_others() {
    let (address, counts) = counted().await;
    let rig = rig(address);
    let mut stream = blocked(&rig, &counts).await;
    // These wait.
    let waiting = BEGUN..BEGUN + 2 * LATER;
    stream.write_all(&requests(waiting.clone())).await.unwrap();
    let cancel = 8_u32.to_be_bytes();
    let reset = |n| frame(RST_STREAM, 0, stream_of(n), &cancel);
    let resets: Vec<u8> = (0..waiting.end).flat_map(reset).collect();
    // A piece of one answer is already half sent, and keeps its place.
    let more = BEGUN - 1;
    let next = requests(waiting.end..waiting.end + more);
    stream.write_all(&[resets, next].concat()).await.unwrap();
    let begun = || counts.connections() >= BEGUN + more;
    wait("the requests after them", begun).await;
    rig.wait_closed(CloseReason::ClientStalled, 1).await;
    // Those that were reset while they waited have not come, but for the few that began before that.
    let begun = counts.connections();
    assert!(begun <= BEGUN + more + LATER, "{begun}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_late_gets_every_answer() {
    let file = Bytes::from(vec![7; MIB]);
    let (address, asked) = counting(move |_: Request<Incoming>| {
        std::future::ready(Response::new(Full::new(file.clone())))
    })
    .await;
    let rig = rig(address);
    let mut stream = rig.connect().await;
    stream.write_all(&http2()).await.unwrap();
    let begun = || asked.load(Ordering::SeqCst) >= BEGUN;
    wait("the first requests", begun).await;
    let mut stream = BufReader::new(stream);
    let reads = async {
        let (mut head, mut payload) = ([0; 9], Vec::new());
        let (mut ended, mut read) = (0, 0);
        while ended < REQUESTS {
            stream.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]);
            payload.resize(usize::try_from(length).unwrap(), 0);
            stream.read_exact(&mut payload).await.unwrap();
            assert!(![RST_STREAM, GOAWAY].contains(&kind), "{head:?}");
            // DATA, of the type 0, is what has the answers.
            read += if kind == 0 { payload.len() } else { 0 };
            ended += usize::from(kind == 0 && flags & END_STREAM > 0);
        }
        read
    };
    assert_eq!(within("all answers", reads).await, REQUESTS * MIB);
    assert_eq!(asked.load(Ordering::SeqCst), REQUESTS);
}

/// A backend that has an answer without end for `/big`, and a short one for everything else.
async fn big_and_small() -> SocketAddr {
    serve(|mut stream: TcpStream| async move {
        let mut head = [0; 1024];
        while let Ok(1..) = stream.read(&mut head).await {
            if head.starts_with(b"GET /big") {
                let _ = stream.write_all(ENDLESS).await;
                while stream.write_all(&PIECE).await.is_ok() {}
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole";
            let _ = stream.write_all(answer).await;
        }
    })
    .await
}

/// Both fewer and more downloads than may be under way without being read.
#[tokio::test(flavor = "multi_thread")]
async fn downloads_that_are_read_leave_room_for_other_requests() {
    let rig = rig(big_and_small().await);
    let request = |path: &str| {
        let uri = format!("http://{HOST}{path}");
        Request::get(uri).body(Empty::<Bytes>::new()).unwrap()
    };
    for downloads in [1, BEGUN + 4] {
        let io = TokioIo::new(rig.connect().await);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let flowing = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..downloads {
            let answer = sender.send_request(request("/big"));
            let flowing = Arc::clone(&flowing);
            tasks.spawn(async move {
                let mut body = answer.await.unwrap().into_body();
                body.frame().await.unwrap().unwrap();
                flowing.fetch_add(1, Ordering::SeqCst);
                while let Some(Ok(_)) = body.frame().await {}
            });
        }
        let all_flow = || flowing.load(Ordering::SeqCst) == downloads;
        wait("the downloads", all_flow).await;
        for _ in 0..50 {
            let answer = within("an answer", sender.send_request(request("/small"))).await;
            let body = answer.unwrap().into_body().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "whole");
        }
    }
}
