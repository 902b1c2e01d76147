//! HTTP/2 backends on loopback that take few requests at one time: no request waits behind others on a connection that is
//! full, and none is refused.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;
use vestibule_test_support::frames::{HEADERS, SETTINGS, frame};

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";

type Client = client::conn::http2::SendRequest<Empty<Bytes>>;

fn rig(address: SocketAddr) -> Rig {
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[address], BackendProtocol::H2c),
        ]
    })
}

/// The requests of one connection have one worker, and so one pool.
async fn client(rig: &Rig) -> Client {
    let io = TokioIo::new(rig.connect().await);
    let handshake = client::conn::http2::handshake(TokioExecutor::new(), io);
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The status and the body of the answer to a GET.
async fn ask_for(mut client: Client, path: &str) -> (u16, Bytes) {
    let request = Request::get(format!("http://{HOST}{path}"));
    let request = request.body(Empty::new()).unwrap();
    let answer = within("an answer", client.send_request(request)).await;
    let answer = answer.unwrap();
    let status = answer.status().as_u16();
    let body = within("a body", answer.into_body().collect()).await;
    (status, body.unwrap().to_bytes())
}

/// A backend that takes so many requests at one time on a connection, and the number of its connections.
async fn limited<F, A>(most: u32, answer: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let address = serve(move |stream: TcpStream| {
        count.fetch_add(1, Ordering::SeqCst);
        let answer = answer.clone();
        async move {
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let mut builder = server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(most);
            let io = TokioIo::new(stream);
            let _ = builder.serve_connection(io, service).await;
        }
    })
    .await;
    (address, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_does_not_wait_behind_one_that_has_the_whole_connection() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let (address, connections) = limited(1, move |request: Request<Incoming>| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            if request.uri().path() == "/held" {
                std::future::pending::<()>().await;
            }
            Response::new(Full::new(Bytes::from_static(b"ok")))
        }
    })
    .await;
    let rig = rig(address);
    let client = client(&rig).await;
    let held = tokio::spawn(ask_for(client.clone(), "/held"));
    wait("the request", || asked.load(Ordering::SeqCst) == 1).await;
    for _ in 0..3 {
        let answer = ask_for(client.clone(), "/").await;
        assert_eq!(answer, (200, Bytes::from_static(b"ok")));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    held.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_one_time_get_as_many_connections_as_they_need() {
    const LIMIT: u32 = 10;
    const CONNECTIONS: usize = 3;
    const ALL: usize = 10 * CONNECTIONS;
    // It answers none before it has all.
    let barrier = Arc::new(Barrier::new(ALL));
    let (address, connections) = limited(LIMIT, move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Response::new(Full::new(Bytes::from_static(b"ok")))
        }
    })
    .await;
    let rig = rig(address);
    let client = client(&rig).await;
    let asked = (0..ALL).map(|_| ask_for(client.clone(), "/"));
    for answer in futures::future::join_all(asked).await {
        assert_eq!(answer, (200, Bytes::from_static(b"ok")));
    }
    assert_eq!(connections.load(Ordering::SeqCst), CONNECTIONS);
}

/// The backend counts such a request, and a proxy that does not would put the next one behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_outlasts_its_answer_keeps_its_place() {
    let (address, connections) = limited(1, |request: Request<Incoming>| async move {
        tokio::spawn(request.into_body().collect());
        Response::new(Full::new(Bytes::from_static(b"ok")))
    })
    .await;
    let rig = rig(address);
    let (sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{HOST}/");
    let mut sender = sender.ready().await.unwrap();
    let post = Request::post(&uri).body(()).unwrap();
    let (answer, mut upload) = sender.send_request(post, false).unwrap();
    upload
        .send_data(Bytes::from_static(b"begin"), false)
        .unwrap();
    let answer = within("an answer", answer).await.unwrap();
    let mut body = answer.into_body();
    while let Some(piece) = within("the body", body.data()).await {
        piece.unwrap();
    }
    let mut sender = sender.ready().await.unwrap();
    let get = Request::get(&uri).body(()).unwrap();
    let (answer, _) = sender.send_request(get, true).unwrap();
    assert_eq!(within("an answer", answer).await.unwrap().status(), 200);
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    upload.send_data(Bytes::from_static(b"end"), true).unwrap();
}

/// Counts the heads that arrive on a connection to a backend.
async fn count_heads(mut read: impl AsyncReadExt + Unpin, heads: Arc<AtomicUsize>) {
    read.read_exact(&mut [0; 24]).await.unwrap();
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        if read.read_exact(&mut payload).await.is_err() {
            return;
        }
        if head[3] == HEADERS {
            heads.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_gets_one_request_before_it_has_said_how_many_it_takes() {
    const ALL: usize = 20;
    let (address, connection) = one_connection().await;
    let rig = rig(address);
    let client = client(&rig).await;
    let asked: Vec<_> = (0..ALL)
        .map(|_| tokio::spawn(ask_for(client.clone(), "/")))
        .collect();
    let (read, mut write) = connection.await.into_split();
    let heads = Arc::new(AtomicUsize::new(0));
    tokio::spawn(count_heads(read, Arc::clone(&heads)));
    wait("the first request", || heads.load(Ordering::SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(heads.load(Ordering::SeqCst), 1);
    // These bound nothing, so all others follow.
    write.write_all(&frame(SETTINGS, 0, 0, b"")).await.unwrap();
    wait("the others", || heads.load(Ordering::SeqCst) == ALL).await;
    asked.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_says_nothing_keeps_requests_from_no_other_endpoint() {
    const ALL: usize = 20;
    let silent = serve(|stream: TcpStream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let ok = |_| async { Response::new(Full::new(Bytes::from_static(b"ok"))) };
    let (working, _) = limited(100, ok).await;
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", HOST, vec![rule("/", BACKEND)]),
            backend_of(BACKEND, &[silent, working], BackendProtocol::H2c),
        ]
    });
    let client = client(&rig).await;
    let (answers, mut answered) = tokio::sync::mpsc::channel(ALL);
    let asked: Vec<_> = (0..ALL)
        .map(|_| {
            let (client, answers) = (client.clone(), answers.clone());
            tokio::spawn(async move { answers.send(ask_for(client, "/").await).await })
        })
        .collect();
    // Only the request that has opened the connection waits for an answer on it.
    for _ in 1..ALL {
        let answer = within("an answer", answered.recv()).await;
        assert_eq!(answer, Some((200, Bytes::from_static(b"ok"))));
    }
    asked.iter().for_each(tokio::task::JoinHandle::abort);
}
