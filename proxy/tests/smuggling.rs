//! Requests that two readers could read differently: each is refused, whole or in pieces, in plaintext
//! and within TLS, and nothing that it carries is ever a request to a backend.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/web:80";
const ADMIN: &str = "team-a/admin:80";
/// Comes behind each of them.
const HIDDEN: &[u8] = b"GET /admin HTTP/1.1\r\nhost: a.example.com\r\n\r\n";

/// The requests, with the number of whole ones in front of what is wrong.
fn corpus() -> Vec<(String, Vec<u8>, usize)> {
    include_str!("smuggling/corpus.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (_, request) = line.split_once(' ').unwrap();
            let (right, _) = request.split_once('¦').unwrap();
            let whole = unescape(&request.replace('¦', ""));
            let heads = right.matches("\\r\\n\\r\\n").count();
            (line.to_owned(), whole, heads)
        })
        .collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            bytes.push(u8::try_from(char).unwrap());
            continue;
        }
        bytes.push(match chars.next().unwrap() {
            'r' => b'\r',
            'n' => b'\n',
            't' => b'\t',
            '0' => 0,
            'x' => {
                let digits: String = chars.by_ref().take(2).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            other => panic!("\\{other}"),
        });
    }
    bytes
}

/// Everything that comes until the end, be it a reset.
async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A proxy in plaintext and one of TLS in front of the same backends.
struct World {
    plain: Rig,
    secure: Rig,
    identity: Identity,
    echo: Echo,
    /// Where `/admin` would be answered.
    admin: Echo,
}

async fn world() -> World {
    let (echo, identity) = (Echo::start("web").await, Identity::new(HOST));
    let admin = Echo::start("admin").await;
    let limits = ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    };
    let resources = |port, certificate| {
        vec![
            http(port, "web", HOST, certificate),
            http_route("web", HOST, vec![rule("/", BACKEND), rule("/admin", ADMIN)]),
            backend(BACKEND, &[echo.address]),
            backend(ADMIN, &[admin.address]),
            identity.resource("team-a/cert"),
        ]
    };
    let plain = Rig::start(&limits, |port| resources(port, None));
    let secure = Rig::start(&limits, |port| resources(port, Some("team-a/cert")));
    World {
        plain,
        secure,
        identity,
        echo,
        admin,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_refused_and_carries_no_request() {
    let corpus = corpus();
    assert!(corpus.len() > 90);
    assert!(corpus.iter().all(|(.., heads)| *heads <= 1));
    // A head in front of what is wrong may be at the backend before the rest is refused, and be counted
    // late: those have a backend to themselves, and the other one hears of nothing at all.
    let (none, one) = (world().await, world().await);
    let mut connections = 0;
    for (line, bytes, heads) in &corpus {
        let world = if *heads == 0 { &none } else { &one };
        let all = [bytes, HIDDEN].concat();
        for pieces in [false, true] {
            let mut stream = world.plain.connect().await;
            stream.set_nodelay(true).unwrap();
            refuse(&mut stream, &all, pieces, line).await;
            connections += heads;
        }
        let mut config = client_config(&world.identity);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tcp = world.secure.connect().await;
        let mut stream = tls(tcp, config, HOST).await.unwrap();
        refuse(&mut stream, &all, false, line).await;
        connections += heads;
    }
    for world in [&none, &one] {
        for rig in [&world.plain, &world.secure] {
            wait("the ends", || rig.plane.active() == 0).await;
        }
        // It is the client's doing, and said to be.
        assert!(world.plain.closed(CloseReason::HttpError) > 0);
        assert_eq!(world.admin.requests(), 0);
    }
    assert_eq!(none.echo.requests(), 0);
    assert!(one.echo.requests() <= connections);
}

async fn refuse(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: &[u8],
    pieces: bool,
    line: &str,
) {
    if pieces {
        for byte in bytes {
            // It may be refused before it is all out.
            if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
                break;
            }
        }
    } else {
        let _ = stream.write_all(bytes).await;
    }
    let _ = stream.flush().await;
    let answers = read_all(stream).await;
    assert!(!answers.contains("/admin"), "{line}\n{answers}");
    // Of what comes in pieces, the answer may be overtaken by the reset that the pieces behind it meet.
    if !pieces {
        let last = answers.rfind("HTTP/1.1 ").map(|at| &answers[at..]);
        let is_400 = last.is_some_and(|last| last.starts_with("HTTP/1.1 400 "));
        assert!(is_400, "{line}\n{answers}");
    }
}

/// Not by a deadline that happens to come by.
#[tokio::test(flavor = "multi_thread")]
async fn pipelined_request_goes_on_with_the_answer_that_it_waits_for() {
    let (echo, limits) = (Echo::start("web").await, ProxyLimits::default());
    let hour = std::time::Duration::from_hours(1);
    let limits = ProxyLimits {
        access_log: false,
        http: vestibule_proxy::limits::HttpLimits {
            head_deadline: hour,
            idle: hour,
            ..limits.http
        },
        ..limits
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", HOST, None),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[echo.address]),
        ]
    });
    let mut stream = rig.connect().await;
    let first = "GET /one HTTP/1.1\r\nhost: a.example.com\r\nupgrade: h2c\r\n\r\n";
    let last = "GET /two HTTP/1.1\r\nhost: a.example.com\r\nconnection: close\r\n\r\n";
    stream
        .write_all([first, last].concat().as_bytes())
        .await
        .unwrap();
    let answers = read_all(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2, "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_requests_go_through_in_pieces_and_pipelined() {
    let World { plain, echo, .. } = world().await;
    let requests = [
        "POST /one HTTP/1.1\r\nhost: a.example.com\r\ncontent-length: 5\r\n\r\nhello",
        "\r\nGET /two HTTP/1.1\r\nHost: a.example.com\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        "POST /three HTTP/1.1\r\nhost: a.example.com\r\ntransfer-encoding: chunked\r\n\r\n\
         5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nx-trailer: y\r\n\r\n",
        "GET /four HTTP/1.1\r\nhost: a.example.com\r\nconnection: close\r\n\r\n",
    ]
    .concat();
    for size in [1, 7, usize::MAX] {
        let mut stream = plain.connect().await;
        stream.set_nodelay(true).unwrap();
        for piece in requests.as_bytes().chunks(size.min(requests.len())) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let answers = read_all(&mut stream).await;
        assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 4, "{answers}");
        for path in ["/one", "/two", "/three", "/four"] {
            assert!(answers.contains(path), "{answers}");
        }
        assert!(answers.contains("hello world"), "{answers}");
    }
    assert_eq!(echo.requests(), 12);
}
