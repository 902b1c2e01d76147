//! Heads in HTTP/2: the number of their fields is bounded before they are decoded, and they say nothing that a reader
//! of HTTP/1 would read otherwise.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy_testing::frames::*;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

/// A backend that answers with the number of fields that it got, and counts requests.
async fn counted() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|request: Request<Incoming>| async move {
        let names = request.headers().keys();
        let own = names.filter(|name| name.as_str().starts_with("n-")).count();
        let cookies = request.headers().get_all(COOKIE).iter().count();
        Response::new(Full::new(Bytes::from(format!("{own} {cookies}"))))
    })
    .await
}

fn rig(backend: &Resource) -> Rig {
    let mut limits = quiet();
    // The backends have a limit of 100, and get some fields of the proxy in addition.
    limits.http.fields = 50;
    Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule("/", BACKEND)]),
            backend.clone(),
        ]
    })
}

async fn client(rig: &Rig) -> http2::SendRequest<Empty<Bytes>> {
    let io = TokioIo::new(rig.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A request with so many fields and cookies.
fn request(fields: usize, cookies: usize) -> Request<Empty<Bytes>> {
    let uri = format!("http://{HOST}/");
    let mut request = Request::get(uri).body(Empty::new()).unwrap();
    let headers = request.headers_mut();
    for n in 0..fields {
        let name = HeaderName::try_from(format!("n-{n}")).unwrap();
        headers.insert(name, HeaderValue::from_static("v"));
    }
    for n in 0..cookies {
        headers.append(COOKIE, format!("c{n}=v").parse().unwrap());
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_has_a_number_of_fields_and_its_cookies_twice_as_many() {
    let (address, asked) = counted().await;
    let rig = rig(&backend(BACKEND, &[address]));
    let mut client = client(&rig).await;
    for (fields, cookies, status, text) in [
        (50, 0, 200, "50 0"),
        (50, 100, 200, "50 1"),
        (51, 0, 431, ""),
        (0, 101, 431, ""),
        (1, 1, 200, "1 1"),
    ] {
        let answer = within("an answer", client.send_request(request(fields, cookies))).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status, "{fields} and {cookies}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        if status == 200 {
            assert_eq!(body, text);
        }
    }
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_do_not_begin_or_end_with_white_space() {
    let (address, asked) = counted().await;
    let rig = rig(&backend(BACKEND, &[address]));
    let mut client = client(&rig).await;
    for (value, status) in [
        ("1", 200),
        ("", 200),
        ("1 ", 400),
        (" 1", 400),
        ("1\t", 400),
    ] {
        let mut request = request(0, 0);
        let value = HeaderValue::from_static(value);
        request.headers_mut().insert("n-admin", value.clone());
        let answer = within("an answer", client.send_request(request)).await;
        assert_eq!(answer.unwrap().status(), status, "{value:?}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// `:method` GET, `:scheme` http, `:path` /, `:authority`, and these fields.
fn head(stream: u32, fields: &[u8]) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x84, 0x01, u8::try_from(HOST.len()).unwrap()];
    block.extend_from_slice(HOST.as_bytes());
    block.extend_from_slice(fields);
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
}

/// A field that becomes an entry of the table, and a byte that repeats it.
fn entry(value: usize) -> Vec<u8> {
    let mut field = vec![0x40, 1, b'a'];
    field.push(0x7f);
    let mut length = value - 127;
    while length >= 128 {
        field.push(u8::try_from(length % 128).unwrap() | 0x80);
        length /= 128;
    }
    field.push(u8::try_from(length).unwrap());
    field.extend(std::iter::repeat_n(b'b', value));
    field
}
const AGAIN: u8 = 0xbe;

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_large_end_the_connection() {
    let all = [
        // Before h2 decodes it: the first one alone is enough.
        ("far too many fields", 130, 1800, PROTOCOL_ERROR, 1),
        ("too many fields", 130, 101, ENHANCE_YOUR_CALM, 2000),
        // h2 answers these itself.
        ("too many bytes", 3900, 20, ENHANCE_YOUR_CALM, 2000),
    ];
    for (what, value, fields, code, heads) in all {
        let (address, asked) = counted().await;
        let rig = rig(&backend(BACKEND, &[address]));
        let (mut read, mut write) = rig.connect().await.into_split();
        let mut flood = [preface(), head(1, &entry(value))].concat();
        for n in 1..=heads {
            flood.extend(head(2 * n + 1, &vec![AGAIN; fields]));
        }
        let sends = tokio::spawn(async move {
            let _ = write.write_all(&flood).await;
            write
        });
        let mut answer = Vec::new();
        let _ = within(what, read.read_to_end(&mut answer)).await;
        assert_eq!(goaway(&answer), Some(code), "{what}");
        let _ = sends.await;
        rig.wait_closed(CloseReason::HttpError, 1).await;
        assert!(asked.load(Ordering::SeqCst) <= 1, "{what}");
    }
}

/// A backend for HTTP/2 that answers with so many fields and so many trailers.
async fn answering(fields: usize, trailers: usize) -> SocketAddr {
    serve(move |stream: TcpStream| {
        let answer = move |_| async move {
            let many = |count: usize| -> HeaderMap {
                let name = |n| HeaderName::try_from(format!("n-{n}")).unwrap();
                let value = HeaderValue::from_static("v");
                (0..count).map(|n| (name(n), value.clone())).collect()
            };
            let frames = [
                Frame::data(Bytes::from_static(b"body")),
                Frame::trailers(many(trailers)),
            ];
            let frames = frames.map(Ok::<_, Infallible>);
            let body = StreamBody::new(futures::stream::iter(frames));
            let mut response = Response::new(body);
            *response.headers_mut() = many(fields);
            Ok::<_, Infallible>(response)
        };
        async move {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let service = hyper::service::service_fn(answer);
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_http2_backends_have_a_number_of_fields() {
    for (fields, trailers, status, is_whole) in [
        (98, 100, 200, true),
        (101, 0, 502, true),
        (1, 101, 200, false),
    ] {
        let address = answering(fields, trailers).await;
        let rig = rig(&backend_of(
            BACKEND,
            &[address],
            proto::BackendProtocol::H2c,
        ));
        let mut client = client(&rig).await;
        let answer = within("an answer", client.send_request(request(0, 0))).await;
        let answer = answer.unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(answer.status(), status, "{fields} and {trailers}");
        let body = within("the body", answer.into_body().collect()).await;
        assert_eq!(body.is_ok(), is_whole, "{fields} and {trailers}");
    }
}
