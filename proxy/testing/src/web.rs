//! HTTP routes, backends that say what they were asked, and clients that ask.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

use crate::net::{read_to_end, serve};
use crate::resources::{backend, route};
use crate::rig::Rig;
use crate::waiting::within;

/// A backend that answers with what it was asked: the request line, then its fields, then its body.
pub struct Echo {
    /// Where it listens.
    pub address: SocketAddr,
    /// Connections so far.
    connections: Arc<AtomicUsize>,
    /// Requests so far.
    requests: Arc<AtomicUsize>,
}

impl Echo {
    /// HTTP/1.1.
    pub async fn start(name: &'static str) -> Self {
        Self::of(name, false).await
    }

    /// HTTP/2 by prior knowledge.
    pub async fn h2c(name: &'static str) -> Self {
        Self::of(name, true).await
    }

    async fn of(name: &'static str, two: bool) -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(AtomicUsize::new(0));
        let (count, asked) = (Arc::clone(&connections), Arc::clone(&requests));
        let address = serve(move |stream: TcpStream| {
            count.fetch_add(1, Ordering::SeqCst);
            let asked = Arc::clone(&asked);
            serve_http(stream, two, move |request| {
                asked.fetch_add(1, Ordering::SeqCst);
                echo_request(name, request)
            })
        })
        .await;
        Self {
            address,
            connections,
            requests,
        }
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Answers the requests of a connection until it ends, in HTTP/1.1 or, if `two` says so, in HTTP/2.
pub async fn serve_http<I, F, A, B>(stream: I, two: bool, answer: F)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    // Clients notice by themselves when a connection breaks off.
    let _ = if two {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // The timeouts of a proxy may end many requests at once, which is no attack.
        builder.max_pending_accept_reset_streams(1000);
        builder.serve_connection(io, service).await
    } else {
        let connection = http1::Builder::new().serve_connection(io, service);
        connection.with_upgrades().await
    };
}

/// A backend of HTTP/1.1 with these answers, and the number of requests that it got.
pub async fn counting<F, A, B>(answer: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = serve(move |stream: TcpStream| {
        let (asked, answer) = (Arc::clone(&count), answer.clone());
        serve_http(stream, false, move |request| {
            asked.fetch_add(1, Ordering::SeqCst);
            answer(request)
        })
    })
    .await;
    (address, asked)
}

/// `delay` in the query is milliseconds to wait, `status` what to answer.
async fn echo_request(name: &str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let param = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value.parse::<u64>().ok())
    };
    if let Some(delay) = param("delay") {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let mut text = format!(
        "{} {} {:?}\n",
        request.method(),
        request.uri(),
        request.version()
    );
    for (name, value) in request.headers() {
        writeln!(text, "{name}: {}", value.to_str().unwrap()).unwrap();
    }
    let body = request.into_body().collect().await;
    let body = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    text.push('\n');
    text.push_str(&String::from_utf8_lossy(&body));
    let status = u16::try_from(param("status").unwrap_or(200)).unwrap();
    Response::builder()
        .status(status)
        .header("x-backend", name)
        .header("x-remove", "me")
        .header("keep-alive", "timeout=5")
        .body(Full::new(Bytes::from(text)))
        .unwrap()
}

/// A route on a listener of the same name, for the listener's hostname.
pub fn http_route(name: &str, hostname: &str, rules: Vec<proto::HttpRule>) -> Resource {
    let mut resource = route(name, hostname, None);
    if let Some(Wire::TlsRoute(route)) = resource.resource.take() {
        resource.resource = Some(Wire::HttpRoute(proto::HttpRoute {
            tenant: route.tenant,
            created: route.created,
            attachments: route.attachments,
            rules,
        }));
    }
    resource
}

/// No log lines.
pub fn quiet() -> ProxyLimits {
    ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    }
}

/// A listener under another name, of the namespace that the name says.
pub fn called(name: &str, mut resource: Resource) -> Resource {
    name.clone_into(&mut resource.name);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        name.split('/')
            .nth(1)
            .unwrap()
            .clone_into(&mut listener.tenant);
    }
    resource
}

/// A namespace's route for a hostname on a listener, which leads to the backend called as the namespace.
pub fn route_of(tenant: &str, at: &str, hostname: &str, path: proto::http_match::Path) -> Resource {
    let mut leads = rule("/", &format!("{tenant}/web:80"));
    leads.matches[0].path = Some(path);
    let mut made = http_route(tenant, hostname, vec![leads]);
    made.name = format!("{tenant}/web");
    if let Some(Wire::HttpRoute(route)) = &mut made.resource {
        tenant.clone_into(&mut route.tenant);
        // Among equals, team-b's is before team-a's.
        route.created = i64::from(tenant == "team-a");
        at.clone_into(&mut route.attachments[0].listener);
    }
    made
}

/// A match for every path.
pub fn all_paths() -> proto::http_match::Path {
    proto::http_match::Path::Prefix("/".into())
}

/// A rule for a prefix that leads to one backend; an empty name is an invalid reference.
pub fn rule(prefix: &str, backend: &str) -> proto::HttpRule {
    proto::HttpRule {
        matches: vec![proto::HttpMatch {
            path: Some(proto::http_match::Path::Prefix(prefix.into())),
            ..Default::default()
        }],
        backends: vec![to(backend, 1)],
        ..Default::default()
    }
}

/// A rule for a service and a method, each of any if it is empty, that leads to one backend.
pub fn calls(service: &str, method: &str, backend: &str) -> proto::HttpRule {
    use proto::grpc_method::{Method, Service};
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let of = proto::GrpcMethod {
        service: some(service).map(Service::ExactService),
        method: some(method).map(Method::ExactMethod),
    };
    let mut made = rule("/", backend);
    made.matches[0].path = Some(proto::http_match::Path::GrpcMethod(of));
    made
}

/// As [`http_route`], for calls of gRPC.
pub fn grpc_route(name: &str, hostname: &str, rules: Vec<proto::HttpRule>) -> Resource {
    let mut resource = http_route(name, hostname, rules);
    if let Some(Wire::HttpRoute(route)) = resource.resource.take() {
        resource.resource = Some(Wire::GrpcRoute(route));
    }
    resource
}

/// A backend of a rule, with its weight.
pub fn to(backend: &str, weight: u32) -> proto::HttpBackend {
    proto::HttpBackend {
        backend: backend.into(),
        weight,
        filters: Vec::new(),
    }
}

/// A filter of a rule.
pub fn filter(filter: proto::http_filter::Filter) -> proto::HttpFilter {
    proto::HttpFilter {
        filter: Some(filter),
    }
}

/// As [`backend`], of a protocol.
pub fn backend_of(
    name: &str,
    addresses: &[SocketAddr],
    protocol: proto::BackendProtocol,
) -> Resource {
    let mut resource = backend(name, addresses);
    if let Some(Wire::Backend(backend)) = &mut resource.resource {
        backend.protocol = protocol.into();
    }
    resource
}

/// An answer in parts.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The status line and the fields.
    pub head: String,
    /// What came behind the head.
    pub body: String,
}

impl Answer {
    /// The first field of a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    /// All fields of a name.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        self.head.lines().filter_map(move |line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// A field that the backend got; several are joined.
    pub fn echoed(&self, name: &str) -> Option<String> {
        let (head, _) = self.body.split_once("\n\n")?;
        let values = head.lines().filter_map(|line| {
            let (key, value) = line.split_once(": ")?;
            (key == name).then_some(value)
        });
        let values: Vec<_> = values.collect();
        (!values.is_empty()).then(|| values.join(","))
    }
}

/// One request on a connection of its own. `head` is without the empty line; `host` and
/// `connection: close` are added.
pub async fn ask(rig: &Rig, head: &str, body: &str) -> Answer {
    let mut stream = rig.connect().await;
    let text = format!("{head}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let bytes = read_to_end(&mut stream).await.unwrap();
    parse(&String::from_utf8_lossy(&bytes))
}

/// GET of a path for a host.
pub async fn get(rig: &Rig, host: &str, path: &str) -> Answer {
    ask(rig, &format!("GET {path} HTTP/1.1\r\nhost: {host}"), "").await
}

/// An answer as it came.
pub fn parse(text: &str) -> Answer {
    parts(text).unwrap_or_else(|| panic!("no status in {text:?}"))
}

fn parts(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// Reads one answer on a connection that stays; its length says where it ends. None: the connection ended
/// before. The test must not have asked for more, since what comes behind the answer is lost.
pub async fn one_answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    let mut bytes = Vec::with_capacity(512);
    within("an answer", read_answer(stream, &mut bytes)).await
}

/// As [`one_answer`], for a caller who may stop reading and go on later: `bytes` keeps what came so far.
pub async fn read_answer(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> Option<Answer> {
    loop {
        if let Some(end) = bytes.windows(4).position(|at| at == b"\r\n\r\n") {
            let head = parts(&String::from_utf8_lossy(&bytes[..end]))?;
            let length = head.header("content-length").map_or(Ok(0), str::parse);
            let whole = end + 4 + length.ok()?;
            if bytes.len() >= whole {
                let body = String::from_utf8_lossy(&bytes[end + 4..whole]).into_owned();
                return Some(Answer { body, ..head });
            }
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}
