//! External authorization on loopback: who is asked, what the server gets, and that nothing passes without its permission.
//! The servers of gRPC use the messages of the crate `envoy-types`, which somebody else wrote.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::ext_authz::v3::pb::{
    Authorization, AuthorizationServer, CheckRequest, CheckResponse, HttpStatusCode,
};
use envoy_types::ext_authz::v3::{
    CheckResponseExt, DeniedHttpResponseBuilder, OkHttpResponseBuilder,
};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{HOST as HOST_FIELD, HeaderName};
use hyper::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use proto::external_auth::Protocol;
use proto::http_filter::Filter;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tonic::Status;
use tower::Service;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto;

const HOST: &str = "a.example.com";
const ONE: &str = "team-a/one:80";
const AUTH: &str = "team-a/auth:80";

/// A question that a server got.
#[derive(Clone, Debug)]
struct Asked {
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A server that is asked by HTTP. It lets pass who has the token, after the semaphore has let it pass itself.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    async fn start() -> Self {
        Self::after(Arc::new(Semaphore::new(Semaphore::MAX_PERMITS))).await
    }

    async fn after(turn: Arc<Semaphore>) -> Self {
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let connections = Arc::new(AtomicUsize::new(0));
        let (kept, count) = (Arc::clone(&asked), Arc::clone(&connections));
        let address = serve(move |stream| {
            count.fetch_add(1, Ordering::SeqCst);
            let (kept, turn) = (Arc::clone(&kept), Arc::clone(&turn));
            serve_http(stream, false, move |request| {
                let (kept, turn) = (Arc::clone(&kept), Arc::clone(&turn));
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let target = format!("{} {}", head.method, head.uri.path_and_query().unwrap());
                    let token = head.headers.get("authorization").cloned();
                    kept.lock().push(Asked {
                        target,
                        headers: head.headers,
                        body,
                    });
                    turn.acquire().await.unwrap().forget();
                    answer(token.as_ref().and_then(|token| token.to_str().ok()))
                }
            })
        })
        .await;
        Self {
            address,
            asked,
            connections,
        }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

fn answer(token: Option<&str>) -> Response<Full<Bytes>> {
    let response = Response::builder();
    let response = match token {
        Some("Bearer good") => response
            .header("x-user", "alice")
            .header("x-user", "of team-a")
            .header("x-other", "too")
            .header("content-type", "text/of-the-server"),
        Some("Bearer created") => response.status(201),
        Some(_) => response.status(403),
        None => response.status(302).header("location", "https://login/"),
    };
    let text = Bytes::from_static(b"says the server");
    response.body(Full::new(text)).unwrap()
}

type Decide = fn(&CheckRequest) -> Result<CheckResponse, Status>;

/// A server of Envoy's protocol.
#[derive(Clone)]
struct Checker {
    asked: Arc<Mutex<Vec<CheckRequest>>>,
    answer: Decide,
}

#[tonic::async_trait]
impl Authorization for Checker {
    async fn check(
        &self,
        request: tonic::Request<CheckRequest>,
    ) -> Result<tonic::Response<CheckResponse>, Status> {
        let request = request.into_inner();
        self.asked.lock().push(request.clone());
        (self.answer)(&request).map(tonic::Response::new)
    }
}

impl Checker {
    async fn start(answer: Decide) -> (Self, SocketAddr) {
        let checker = Self {
            asked: Arc::default(),
            answer,
        };
        let server = AuthorizationServer::new(checker.clone());
        let address = serve(move |stream: TcpStream| {
            let server = server.clone();
            serve_http(
                stream,
                true,
                move |request: Request<hyper::body::Incoming>| {
                    let mut server = server.clone();
                    async move { server.call(request).await.unwrap() }
                },
            )
        })
        .await;
        (checker, address)
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn by(protocol: Protocol, max_body: u32) -> proto::HttpFilter {
    filter(Filter::ExternalAuth(proto::ExternalAuth {
        backend: AUTH.into(),
        protocol: Some(protocol),
        max_body,
    }))
}

fn by_http(settings: proto::HttpAuth, max_body: u32) -> proto::HttpFilter {
    by(Protocol::Http(settings), max_body)
}

fn by_grpc(request_headers: &[&str], max_body: u32) -> proto::HttpFilter {
    let request_headers = names(request_headers);
    by(
        Protocol::Grpc(proto::GrpcAuth { request_headers }),
        max_body,
    )
}

fn plain() -> proto::HttpFilter {
    by_http(proto::HttpAuth::default(), 0)
}

fn guarded(filters: Vec<proto::HttpFilter>) -> proto::HttpRule {
    proto::HttpRule {
        filters,
        ..rule("/", ONE)
    }
}

fn rig(rule: &proto::HttpRule, one: &Echo, auth: &[SocketAddr]) -> Rig {
    Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![rule.clone()]),
            backend(ONE, &[one.address]),
            backend(AUTH, auth),
        ]
    })
}

fn count(rig: &Rig, result: &str) -> u64 {
    let page = rig.plane.metrics.encode().unwrap();
    let series = format!("vestibule_proxy_requests_authorized_total{{result=\"{result}\"}}");
    value(&page, &series)
}

async fn with_token(rig: &Rig, token: &str, path: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {token}");
    ask(rig, &head, "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_what_the_api_says_and_the_backend_gets_its_fields() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let settings = proto::HttpAuth {
        path_prefix: "/check".into(),
        request_headers: names(&["x-listed", "content-length", "x-forwarded-for"]),
        response_headers: Vec::new(),
    };
    let rig = rig(
        &guarded(vec![by_http(settings, 0)]),
        &one,
        &[server.address],
    );
    let head = format!(
        "POST /a/b?c=d HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\n\
         x-listed: 1\r\nx-listed: 2\r\ncookie: secret\r\nx-user: root\r\n\
         x-forwarded-for: 192.0.2.1\r\ncontent-type: text/plain\r\ncontent-length: 5"
    );
    let answer = ask(&rig, &head, "hello").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.ends_with("hello"));
    let asked = server.asked();
    let [question] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(question.target, "POST /check/a/b?c=d");
    assert_eq!(question.body, "");
    let mut fields: Vec<_> = question.headers.keys().map(HeaderName::as_str).collect();
    fields.sort_unstable();
    let all = [
        "authorization",
        "cdn-loop",
        "content-length",
        "host",
        "x-forwarded-for",
        "x-listed",
    ];
    assert_eq!(fields, all);
    assert_eq!(question.headers[HOST_FIELD], HOST);
    assert_eq!(question.headers["content-length"], "0");
    // Nobody may say who they are.
    assert_eq!(question.headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(question.headers.get_all("x-listed").iter().count(), 2);
    assert_eq!(answer.echoed("x-user").as_deref(), Some("alice,of team-a"));
    assert_eq!(answer.echoed("x-other").as_deref(), Some("too"));
    assert_eq!(answer.echoed("content-type").as_deref(), Some("text/plain"));
    assert_eq!(answer.echoed("cookie").as_deref(), Some("secret"));
    assert_eq!(count(&rig, "Allowed"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backend_gets_only_the_listed_fields_of_an_answer() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let settings = proto::HttpAuth {
        response_headers: names(&["x-user", "x-absent", "authorization"]),
        ..Default::default()
    };
    let rig = rig(
        &guarded(vec![by_http(settings, 0)]),
        &one,
        &[server.address],
    );
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\nx-user: root\r\n\
         x-absent: root\r\nx-other: mine"
    );
    let answer = ask(&rig, &head, "").await;
    assert_eq!(answer.echoed("x-user").as_deref(), Some("alice,of team-a"));
    assert_eq!(answer.echoed("x-absent"), None);
    assert_eq!(answer.echoed("x-other").as_deref(), Some("mine"));
    assert_eq!(
        answer.echoed("authorization").as_deref(),
        Some("Bearer good")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_the_client_and_not_the_backend() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let rig = rig(&guarded(vec![plain()]), &one, &[server.address]);
    let mut stream = rig.connect().await;
    for (token, status) in [("", 302), ("authorization: Bearer bad\r\n", 403)] {
        let text =
            format!("POST / HTTP/1.1\r\nhost: {HOST}\r\n{token}content-length: 5\r\n\r\nhello");
        stream.write_all(text.as_bytes()).await.unwrap();
        let answer = one_answer(&mut stream).await.unwrap();
        assert_eq!((answer.status, &*answer.body), (status, "says the server"));
        let login = (status == 302).then_some("https://login/");
        assert_eq!(answer.header("location"), login);
    }
    // Only 200 is a permission.
    assert_eq!(with_token(&rig, "created", "/").await.status, 201);
    assert_eq!((one.requests(), count(&rig, "Denied")), (0, 3));
    // The connection still serves whoever has the permission.
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 200);
    assert_eq!(one.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_without_an_answer() {
    let one = Echo::start("one").await;
    let breaking = serve(|stream: TcpStream| async move { drop(stream) }).await;
    let garbage = serve(|mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 O").await;
    })
    .await;
    let no_server: [&[SocketAddr]; 4] = [&[], &[refusing()], &[breaking], &[garbage]];
    for (index, addresses) in no_server.into_iter().enumerate() {
        let rig = rig(&guarded(vec![plain()]), &one, addresses);
        let answer = with_token(&rig, "good", "/").await;
        assert_eq!(answer.status, 503, "{index}: {answer:?}");
        assert_eq!((one.requests(), count(&rig, "Failed")), (0, 1), "{index}");
    }
    let silent = Server::after(Arc::new(Semaphore::new(0))).await;
    let hasty = proto::HttpRule {
        timeouts: Some(proto::HttpTimeouts {
            request: Some(100),
            backend_request: None,
        }),
        ..guarded(vec![plain()])
    };
    let rig = rig(&hasty, &one, &[silent.address]);
    assert_eq!(with_token(&rig, "good", "/").await.status, 504);
    assert_eq!(one.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_the_body_and_the_backend_gets_it_after() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let rule = guarded(vec![by_http(proto::HttpAuth::default(), 8)]);
    let rig = rig(&rule, &one, &[server.address]);
    let post = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good");
    let length = |length: usize| format!("{post}\r\ncontent-length: {length}");
    let chunked = format!("{post}\r\ntransfer-encoding: chunked");
    for (head, body) in [
        (length(8), "12345678"),
        (chunked.clone(), "4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n"),
    ] {
        let answer = ask(&rig, &head, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.ends_with("12345678"), "{answer:?}");
        let asked = server.asked();
        let question = asked.last().unwrap();
        assert_eq!(question.body, "12345678");
        assert_eq!(question.headers["content-length"], "8");
    }
    for (head, body) in [
        (length(9), "123456789"),
        (chunked, "4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n"),
    ] {
        assert_eq!(ask(&rig, &head, body).await.status, 413);
    }
    assert_eq!((server.asked().len(), one.requests()), (2, 2));
    assert_eq!(count(&rig, "Failed"), 2);
}

/// The answer to the old question is no permission by the new rule.
#[tokio::test(flavor = "multi_thread")]
async fn a_permission_is_for_the_filter_that_asked() {
    let turn = Arc::new(Semaphore::new(0));
    let one = Echo::start("one").await;
    let (old, new) = (
        Server::after(Arc::clone(&turn)).await,
        Server::start().await,
    );
    let mut rig = rig(&guarded(vec![plain()]), &one, &[old.address]);
    let mut stream = rig.connect().await;
    // The old server accepts this token, and the new rule takes it away before it asks.
    let text = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    wait("the question", || old.asked().len() == 1).await;
    let removed = filter(Filter::RequestHeaders(proto::HeaderModifier {
        remove: names(&["authorization"]),
        ..Default::default()
    }));
    let rejected = rig.apply(vec![
        http_route("web", "", vec![guarded(vec![removed, plain()])]),
        backend(AUTH, &[new.address]),
    ]);
    assert!(rejected.is_empty(), "{rejected:?}");
    turn.add_permits(1);
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 302);
    assert_eq!((new.asked().len(), one.requests()), (1, 0));
}

/// The backend gets the path that was allowed, or nothing, although the treatment of escaped slashes changes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_permission_is_for_the_path_of_the_question() {
    use proto::EscapedSlashes::{Keep, Unescape};
    let settings = |slashes: proto::EscapedSlashes| proto::GatewaySettings {
        http: Some(proto::HttpSettings {
            escaped_slashes: slashes.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    for (before, after, question, line) in [
        (Unescape, Keep, "GET /a/b", Some("GET /a/b HTTP/1.1\n")),
        (Keep, Unescape, "GET /a%2Fb", None),
    ] {
        let turn = Arc::new(Semaphore::new(0));
        let one = Echo::start("one").await;
        let server = Server::after(Arc::clone(&turn)).await;
        let mut rig = Rig::start(&quiet(), |port| {
            let web = http(port, "web", "", None);
            let [listener, of_gateway] = with_settings(web, settings(before));
            vec![
                listener,
                of_gateway,
                http_route("web", "", vec![guarded(vec![plain()])]),
                backend(ONE, &[one.address]),
                backend(AUTH, &[server.address]),
            ]
        });
        let mut stream = rig.connect().await;
        let head = format!("GET /a%2Fb HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good");
        let text = format!("{head}\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        wait("the question", || server.asked().len() == 1).await;
        assert_eq!(server.asked()[0].target, question);
        let rejected = rig.apply(vec![gateway_settings(settings(after))]);
        assert!(rejected.is_empty(), "{rejected:?}");
        turn.add_permits(1);
        let answer = one_answer(&mut stream).await.unwrap();
        match line {
            Some(line) => assert!(answer.body.starts_with(line), "{answer:?}"),
            None => assert_eq!((answer.status, one.requests()), (400, 0)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_question_is_enough_for_all_attempts() {
    let server = Server::start().await;
    let (failing, tried) = counting(|_| async {
        let response = Response::builder().status(503);
        response.body(Full::new(Bytes::new())).unwrap()
    })
    .await;
    let retried = proto::HttpRule {
        retry: Some(proto::HttpRetry {
            codes: vec![503],
            attempts: 2,
            backoff: None,
        }),
        ..guarded(vec![plain()])
    };
    let rig = Rig::start(&quiet(), |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![retried.clone()]),
            backend(ONE, &[failing]),
            backend(AUTH, &[server.address]),
        ]
    });
    assert_eq!(with_token(&rig, "good", "/").await.status, 503);
    let tried = tried.load(Ordering::SeqCst);
    assert_eq!((tried, server.asked().len()), (3, 1));
}

/// A question has no body of the client, so a body that nobody has read says nothing about its connection.
#[tokio::test(flavor = "multi_thread")]
async fn questions_about_requests_with_bodies_share_a_connection() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let rig = rig(&guarded(vec![plain()]), &one, &[server.address]);
    let mut stream = rig.connect().await;
    for _ in 0..3 {
        let text = format!(
            "POST / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\n\
             content-length: 5\r\n\r\nhello"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        assert_eq!(one_answer(&mut stream).await.unwrap().status, 200);
    }
    assert_eq!(server.asked().len(), 3);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_act_in_their_order() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let set = |value: &str| {
        filter(Filter::RequestHeaders(proto::HeaderModifier {
            set: vec![proto::HttpField {
                name: "x-user".into(),
                value: value.into(),
            }],
            ..Default::default()
        }))
    };
    let settings = proto::HttpAuth {
        request_headers: names(&["x-user"]),
        ..Default::default()
    };
    let rule = guarded(vec![set("before"), by_http(settings, 0), set("after")]);
    let mut rig = rig(&rule, &one, &[server.address]);
    let answer = with_token(&rig, "good", "/").await;
    assert_eq!(answer.echoed("x-user").as_deref(), Some("after"));
    assert_eq!(server.asked()[0].headers["x-user"], "before");
    let redirect = filter(Filter::Redirect(proto::HttpRedirect {
        status: 301,
        scheme: "https".into(),
        ..Default::default()
    }));
    for (filters, without, with) in [
        (vec![plain(), redirect.clone()], 302, 301),
        (vec![redirect, plain()], 301, 301),
    ] {
        let rule = proto::HttpRule {
            backends: Vec::new(),
            ..guarded(filters)
        };
        assert!(
            rig.apply(vec![http_route("web", "", vec![rule])])
                .is_empty()
        );
        assert_eq!(get(&rig, HOST, "/").await.status, without);
        assert_eq!(with_token(&rig, "good", "/").await.status, with);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_ask_for_cors_without_a_permission_and_may_read_a_refusal() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let cors = filter(Filter::Cors(proto::Cors {
        allow_origins: names(&["https://shop.example.com"]),
        max_age: 5,
        ..Default::default()
    }));
    let rig = rig(&guarded(vec![plain(), cors]), &one, &[server.address]);
    let origin = format!("host: {HOST}\r\norigin: https://shop.example.com");
    let preflight = format!("OPTIONS / HTTP/1.1\r\n{origin}\r\naccess-control-request-method: GET");
    assert_eq!(ask(&rig, &preflight, "").await.status, 204);
    assert_eq!(server.asked().len(), 0);
    let refused = ask(&rig, &format!("GET / HTTP/1.1\r\n{origin}"), "").await;
    assert_eq!(refused.status, 302);
    let allowed = refused.header("access-control-allow-origin");
    assert_eq!(allowed, Some("https://shop.example.com"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_through_servers_does_not_grow() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let rig = rig(&guarded(vec![plain()]), &one, &[server.address]);
    let passed = |times: usize| {
        let list = vec!["vestibule.dev"; times].join(", ");
        format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\ncdn-loop: {list}")
    };
    assert_eq!(ask(&rig, &passed(1), "").await.status, 200);
    assert_eq!(ask(&rig, &passed(2), "").await.status, 508);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_needs_a_permission_too() {
    let (one, server) = (Echo::start("one").await, Server::start().await);
    let rig = rig(&guarded(vec![plain()]), &one, &[server.address]);
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut stream = rig.connect().await;
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 302);
    assert_eq!(one.requests(), 0);
    assert!(!server.asked()[0].headers.contains_key("upgrade"));
}

/// Lets pass who has the token, as Envoy's own examples do.
#[expect(clippy::unnecessary_wraps, reason = "it is one of several answers")]
fn by_token(request: &CheckRequest) -> Result<CheckResponse, Status> {
    let http = request
        .attributes
        .as_ref()
        .and_then(|of| of.request.as_ref()?.http.as_ref());
    let token = http.and_then(|http| http.headers.get("authorization"));
    if token.is_some_and(|token| token == "Bearer good") {
        let mut ok = OkHttpResponseBuilder::new();
        ok.add_header("x-user", "alice", None, false);
        ok.add_response_header("x-seen", "by the server", None, false);
        ok.remove_header("authorization");
        let mut response = CheckResponse::with_status(Status::ok("good"));
        response.set_http_response(ok);
        return Ok(response);
    }
    let mut denied = DeniedHttpResponseBuilder::new();
    denied.set_http_status(HttpStatusCode::Unauthorized);
    denied.add_header("www-authenticate", "Bearer", None, false);
    denied.set_body("show a token");
    let mut response = CheckResponse::with_status(Status::unauthenticated("no token"));
    response.set_http_response(denied);
    Ok(response)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_envoys_protocol_decides() {
    let one = Echo::start("one").await;
    let (checker, address) = Checker::start(by_token).await;
    let rig = rig(&guarded(vec![by_grpc(&[], 100)]), &one, &[address]);
    let head = format!(
        "POST /a?b=c HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer good\r\nx-user: root\r\n\
         x-many: 1\r\nx-many: 2\r\ncontent-length: 5"
    );
    let answer = ask(&rig, &head, "hello").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.ends_with("hello"));
    assert_eq!(answer.echoed("x-user").as_deref(), Some("alice"));
    assert_eq!(answer.echoed("authorization"), None);
    assert_eq!(answer.header("x-seen"), Some("by the server"));
    let refused = get(&rig, HOST, "/").await;
    assert_eq!((refused.status, &*refused.body), (401, "show a token"));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(
        (
            one.requests(),
            count(&rig, "Allowed"),
            count(&rig, "Denied")
        ),
        (1, 1, 1)
    );
    let asked = checker.asked.lock().clone();
    let attributes = asked[0].attributes.clone().unwrap();
    let http = attributes.request.unwrap().http.unwrap();
    assert_eq!(
        (&*http.method, &*http.path, &*http.host),
        ("POST", "/a?b=c", HOST)
    );
    assert_eq!((&*http.scheme, &*http.protocol), ("http", "HTTP/1.1"));
    assert_eq!((&*http.body, http.size), ("hello", 5));
    assert_eq!(http.headers["x-many"], "1,2");
    assert_eq!(http.headers[":path"], "/a?b=c");
    assert_eq!(http.headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(http.id, http.headers["x-request-id"]);
    let source = attributes.source.unwrap().address.unwrap();
    assert!(format!("{source:?}").contains("127.0.0.1"), "{source:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_envoys_protocol_gets_only_the_listed_fields() {
    let one = Echo::start("one").await;
    let (checker, address) = Checker::start(by_token).await;
    let rig = rig(
        &guarded(vec![by_grpc(&["authorization"], 0)]),
        &one,
        &[address],
    );
    assert_eq!(with_token(&rig, "good", "/").await.status, 200);
    let asked = checker.asked.lock().clone();
    let http = asked[0]
        .attributes
        .clone()
        .unwrap()
        .request
        .unwrap()
        .http
        .unwrap();
    let names: Vec<_> = http.headers.keys().collect();
    assert_eq!(names, ["authorization"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_lets_nothing_pass() {
    let answers: [Decide; 2] = [
        |_| Err(Status::internal("out of order")),
        |_| {
            let mut ok = OkHttpResponseBuilder::new();
            ok.set_query_parameter("admin", "false");
            let mut response = CheckResponse::with_status(Status::ok("good"));
            response.set_http_response(ok);
            Ok(response)
        },
    ];
    let one = Echo::start("one").await;
    for answer in answers {
        let (_, address) = Checker::start(answer).await;
        let rig = rig(&guarded(vec![by_grpc(&[], 0)]), &one, &[address]);
        assert_eq!(with_token(&rig, "good", "/").await.status, 503);
        assert_eq!((one.requests(), count(&rig, "Failed")), (0, 1));
    }
    // It is not asked by HTTP/1.1, and a server of that is no permission.
    let other = Server::start().await;
    let limits = vestibule_proxy::limits::ProxyLimits {
        connect_deadline: Duration::from_secs(1),
        ..quiet()
    };
    let rig = Rig::start(&limits, |port| {
        vec![
            http(port, "web", "", None),
            http_route("web", "", vec![guarded(vec![by_grpc(&[], 0)])]),
            backend(ONE, &[one.address]),
            backend(AUTH, &[other.address]),
        ]
    });
    assert_eq!(with_token(&rig, "good", "/").await.status, 503);
    assert_eq!(one.requests(), 0);
}
