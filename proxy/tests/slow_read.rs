//! HTTP/2 clients that ask for much and take nothing. In a process of its own, since it measures the
//! process.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::web::*;
use common::*;
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
const CONNECTIONS: usize = 3;
const REQUESTS: usize = 100;
const MIB: usize = 1024 * 1024;
/// What a connection of this test may cost at most, with its 100 connections to the backend, both ends of
/// which are in this process: twice what was measured. Without a bound it was 34 MB.
const MOST: usize = 11 * MIB;
/// Fewer than end a connection by themselves.
const PINGS: usize = 800;

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// Windows as large as there are, and requests.
fn requests() -> Vec<u8> {
    let window = 0x7fff_ffff_u32.to_be_bytes();
    let more = (0x7fff_ffff_u32 - 65_535).to_be_bytes();
    // :method GET, :scheme http, :path /, :authority
    let mut block = vec![0x82, 0x86, 0x84, 0x41, u8::try_from(HOST.len()).unwrap()];
    block.extend_from_slice(HOST.as_bytes());
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[&[0, 4][..], &window].concat()));
    bytes.extend(frame(8, 0, 0, &more));
    for n in 0..u32::try_from(REQUESTS).unwrap() {
        bytes.extend(frame(1, 5, 2 * n + 1, &block));
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_is_held_little_and_ended() {
    let file = Bytes::from(vec![7; 10 * MIB]);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream: TcpStream| {
        let (file, asked) = (file.clone(), Arc::clone(&count));
        serve_http(stream, false, move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Response::new(Full::new(file.clone())))
        })
    })
    .await;
    let limits = ProxyLimits {
        access_log: false,
        http: HttpLimits {
            head_deadline: Duration::from_secs(1),
            stall: Duration::from_secs(5),
            ..HttpLimits::default()
        },
        ..ProxyLimits::default()
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend(BACKEND, &[address]),
        ]
    });
    let before = resident();
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = rig.connect().await;
        stream.write_all(&requests()).await.unwrap();
        streams.push(stream);
    }
    // For as long as they stand, which pings do not prolong.
    let ended = u64::try_from(CONNECTIONS).unwrap();
    let (mut peak, mut pings) = (0, 0);
    let ends = async {
        let ping = frame(6, 0, 0, &[0; 8]);
        while rig.closed(CloseReason::ClientStalled) < ended {
            peak = resident().max(peak);
            pings += 1;
            for stream in &streams {
                if pings < PINGS {
                    let _ = stream.try_write(&ping);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the end of the connections", ends).await;
    assert!(asked.load(Ordering::SeqCst) > 0);
    let each = peak.saturating_sub(before) / CONNECTIONS;
    assert!(each < MOST, "{each} bytes for each connection");
}
