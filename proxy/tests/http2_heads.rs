//! Heads in HTTP/2: the number of their fields is bounded before they are decoded, and they say nothing that a reader
//! of HTTP/1 would read otherwise. Backends get none that they do not take.

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
use tokio::sync::mpsc;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};
use vestibule_test_support::frames::*;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
/// Most bytes of heads and trailers that a client or backend of these tests takes, which is more than the proxy does.
const LARGE: u32 = 1024 * 1024;

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
    client_of(rig).await
}

async fn client_of<B>(rig: &Rig) -> http2::SendRequest<B>
where
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let io = TokioIo::new(rig.connect().await);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_header_list_size(LARGE);
    let (sender, connection) = builder.handshake(io).await.unwrap();
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

/// In HTTP/2, a client can repeat a long list with one byte for each field.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxies_that_a_request_has_passed_are_a_number() {
    let (address, asked) = counted().await;
    let rig = rig(&backend(BACKEND, &[address]));
    let mut client = client(&rig).await;
    for (fields, entries, status) in [(1, 32, 200), (1, 33, 431), (2, 16, 200), (2, 17, 431)] {
        let mut request = request(0, 0);
        let list = HeaderValue::try_from(vec!["a"; entries].join(",")).unwrap();
        for _ in 0..fields {
            request.headers_mut().append("cdn-loop", list.clone());
        }
        let answer = within("an answer", client.send_request(request)).await;
        assert_eq!(answer.unwrap().status(), status, "{fields} of {entries}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
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

/// So many fields of a value that is so long.
fn many(count: usize, value: usize) -> HeaderMap {
    let name = |n| HeaderName::try_from(format!("n-{n}")).unwrap();
    let value = HeaderValue::try_from("v".repeat(value)).unwrap();
    (0..count).map(|n| (name(n), value.clone())).collect()
}

type Ending =
    StreamBody<futures::stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 2>>>;

/// A body with trailers.
fn ending(trailers: HeaderMap) -> Ending {
    let frames = [
        Frame::data(Bytes::from_static(b"body")),
        Frame::trailers(trailers),
    ];
    StreamBody::new(futures::stream::iter(frames.map(Ok)))
}

/// A backend for HTTP/2 that answers with so many fields and these trailers. Of each request it reports how many
/// trailers came; `None` if its body broke off.
async fn answering(
    fields: usize,
    trailers: HeaderMap,
) -> (SocketAddr, mpsc::Receiver<Option<usize>>) {
    let (sender, receiver) = mpsc::channel(4);
    let address = serve(move |stream: TcpStream| {
        let (trailers, sender) = (trailers.clone(), sender.clone());
        let answer = move |request: Request<Incoming>| {
            let (trailers, sender) = (trailers.clone(), sender.clone());
            async move {
                let body = request.into_body().collect().await.ok();
                let got = body.map(|body| body.trailers().map_or(0, HeaderMap::len));
                let _ = sender.send(got).await;
                let mut response = Response::new(ending(trailers));
                *response.headers_mut() = many(fields, 1);
                Ok::<_, Infallible>(response)
            }
        };
        async move {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(LARGE);
            let service = hyper::service::service_fn(answer);
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await;
    (address, receiver)
}

fn rig_of_h2c(address: SocketAddr) -> Rig {
    let protocol = proto::BackendProtocol::H2c;
    rig(&backend_of(BACKEND, &[address], protocol))
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_http2_backends_have_a_number_of_fields() {
    for (fields, trailers, status, is_whole) in [
        (98, 100, 200, true),
        (101, 0, 502, true),
        (1, 101, 200, false),
    ] {
        let (address, _got) = answering(fields, many(trailers, 1)).await;
        let rig = rig_of_h2c(address);
        let mut client = client(&rig).await;
        let answer = within("an answer", client.send_request(request(0, 0))).await;
        let answer = answer.unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(answer.status(), status, "{fields} and {trailers}");
        let body = within("the body", answer.into_body().collect()).await;
        assert_eq!(body.is_ok(), is_whole, "{fields} and {trailers}");
    }
}

/// Trailers by their number and the length of each, and whether they pass. The proxy takes 64 KiB, of which each field
/// has 32 bytes more.
const TRAILERS: [(usize, usize, bool); 5] = [
    (1, 3000, true),
    (10, 3000, true),
    (11, 3000, false),
    // Of these, h2 would leave out the last ones silently.
    (21, 3000, false),
    (30, 3000, false),
];

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_backend_come_whole_or_the_answer_breaks_off() {
    for (count, length, is_whole) in TRAILERS {
        let (address, _got) = answering(1, many(count, length)).await;
        let rig = rig_of_h2c(address);
        let mut client = client(&rig).await;
        let answer = within("an answer", client.send_request(request(0, 0))).await;
        let body = answer.unwrap().into_body();
        let body = within("the body", body.collect()).await.ok();
        let trailers = body.map(|body| body.trailers().map_or(0, HeaderMap::len));
        assert_eq!(trailers, is_whole.then_some(count), "{count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_client_come_whole_or_the_request_breaks_off() {
    for (count, length, is_whole) in TRAILERS {
        let (address, mut got) = answering(1, HeaderMap::new()).await;
        let rig = rig_of_h2c(address);
        let mut client = client_of(&rig).await;
        let uri = format!("http://{HOST}/");
        let request = Request::post(uri).body(ending(many(count, length)));
        let answer = within("an end", client.send_request(request.unwrap())).await;
        let got = within("a request", got.recv()).await.unwrap();
        assert_eq!(got, is_whole.then_some(count), "{count}");
        assert_eq!(answer.is_ok_and(|answer| answer.status() == 200), is_whole);
    }
}

/// A request with a field of this length.
fn large(path: &str, length: usize) -> Request<Empty<Bytes>> {
    let uri = format!("http://{HOST}{path}");
    let request = Request::post(uri).header("n", "v".repeat(length));
    request.body(Empty::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_no_larger_than_the_backend_announces() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream: TcpStream| {
        let count = Arc::clone(&count);
        let service = hyper::service::service_fn(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
        });
        async move {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(6000);
            let io = TokioIo::new(stream);
            let _ = builder.serve_connection(io, service).await;
        }
    })
    .await;
    let rig = rig_of_h2c(address);
    let mut client = client(&rig).await;
    // The settings arrive at the latest with the first answer.
    for (length, status) in [(1, 200), (4000, 200), (7000, 431), (1, 200)] {
        let answer = within("an answer", client.send_request(large("/", length))).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status, "{length}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        // The backend itself has no words for it.
        assert_eq!(body.is_empty(), status == 200, "{length}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_head_breaks_no_connection_of_others() {
    let (asked, opened) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let counts = (
        Arc::clone(&asked),
        Arc::clone(&opened),
        Arc::clone(&release),
    );
    // It ends the whole connection for a large head, and answers others when it is told to.
    let address = serve(move |stream: TcpStream| {
        let (asked, opened, release) = counts.clone();
        opened.fetch_add(1, Ordering::SeqCst);
        let over = Arc::new(tokio::sync::Notify::new());
        let end = Arc::clone(&over);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            asked.fetch_add(1, Ordering::SeqCst);
            let is_broken = request.uri().path() == "/break";
            let (release, end) = (Arc::clone(&release), Arc::clone(&end));
            async move {
                if is_broken {
                    end.notify_one();
                    std::future::pending::<()>().await;
                }
                release.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        async move {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(LARGE);
            tokio::select! {
                _ = builder.serve_connection(TokioIo::new(stream), service) => {}
                () = over.notified() => {}
            }
        }
    })
    .await;
    let rig = rig_of_h2c(address);
    let mut client = client(&rig).await;
    let waits = client.send_request(large("/", 1));
    let waits = tokio::spawn(waits);
    wait("a request", || asked.load(Ordering::SeqCst) == 1).await;
    for _ in 0..3 {
        let answer = client.send_request(large("/break", 9000));
        assert_eq!(within("an answer", answer).await.unwrap().status(), 502);
    }
    release.add_permits(1);
    let answer = within("an answer", waits).await.unwrap();
    assert_eq!(answer.unwrap().status(), 200);
    // Those that are answered take turns on one connection, as soon as the proxy knows that it is free.
    let (before, requests) = (opened.load(Ordering::SeqCst), 20);
    release.add_permits(requests);
    for _ in 0..requests {
        let answer = client.send_request(large("/", 9000));
        assert_eq!(within("an answer", answer).await.unwrap().status(), 200);
    }
    assert!(opened.load(Ordering::SeqCst) < before + requests);
}
