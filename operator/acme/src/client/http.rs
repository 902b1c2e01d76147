//! Owns requests to a CA over HTTPS. It trusts the issuer's bundle or the usual roots, bounds time and size, and
//! follows no redirects.
//!
//! Whoever writes an issuer chooses what Vestibule connects to. So nothing of an answer gets out except problem
//! documents. For a tenant's issuer, every address is checked when it is connected to, so that nobody can point a name
//! elsewhere between the check and the connection.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, Identifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::net::TcpStream;
use tower::Service;
use vestibule_model::certificate::chain::costly_key;
use vestibule_model::endpoint::{AuthorityRules, Denied};

use super::Directory;
use super::ordered_chains::OrderedChains;
use crate::effects::Answered;
use crate::problem::Problem;

/// Longest answer, in bytes. The longest chain that a Secret may have (32 KiB as DER) takes 45 KiB in PEM. An order for 400
/// hostnames takes about as much.
const MAX_BODY: usize = 64 * 1024;
/// Longest directory, or other document that needs no account, in bytes. Those of public CAs have about 1 KiB.
const MAX_DIRECTORY: usize = 32 * 1024;
/// Longest head of an answer, in bytes. The library keeps the nonce that is in it.
const MAX_HEAD: usize = 16 * 1024;
/// Deadline for one request with its answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// Deadline for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest duration that is taken from Retry-After.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(7 * 24);

tokio::task_local! {
    static HEARD: RefCell<Heard>;
}

/// The parts of a future's answers that the library does not return.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The Retry-After of the last answer.
    pub(super) retry_after: Option<Duration>,
    /// The identifiers of the last order.
    pub(super) identifiers: Option<BTreeSet<String>>,
    /// The status in the last document.
    pub(super) status: Option<String>,
}

/// The fields of every document that the library does not return.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    identifiers: Option<Vec<Identifier>>,
    status: Option<String>,
}

/// Runs a future, and also returns what its answers say.
pub(super) async fn heard<T>(future: impl Future<Output = T>) -> (T, Heard) {
    HEARD
        .scope(RefCell::default(), async {
            let result = future.await;
            (result, HEARD.with(RefCell::take))
        })
        .await
}

/// The identifiers of the last order within [`heard`].
pub(super) fn identifiers() -> Option<BTreeSet<String>> {
    let heard = HEARD.try_with(|heard| heard.borrow().identifiers.clone());
    heard.ok().flatten()
}

/// Notes what an answer says, for [`heard`].
pub(super) fn hear(body: &[u8], retry_after: Option<Duration>) {
    let _ = HEARD.try_with(|heard| {
        let document: Document = serde_json::from_slice(body).unwrap_or_default();
        let mut heard = heard.borrow_mut();
        heard.retry_after = retry_after;
        heard.status = document.status;
        if let Some(identifiers) = document.identifiers {
            let names = identifiers.into_iter();
            let names = names.map(|name| name.authorized(false).to_string().to_ascii_lowercase());
            heard.identifiers = Some(names.collect());
        }
    });
}

/// Why there is no good answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpError {
    /// There is no answer.
    #[error("{0}")]
    Unreachable(&'static str),
    /// Nothing was asked, because a tenant's issuer leads to where only the admin's may.
    #[error("{0} has no address that may be connected to")]
    NotAllowed(String),
    /// Nothing was asked, because the URL is not at the CA.
    #[error("it is not a URL of the CA")]
    OtherOrigin,
    /// The CA answered with an error status.
    #[error("status {status}")]
    Refused {
        status: u16,
        problem: Option<Problem>,
        retry_after: Option<Duration>,
    },
}

/// Counts the result of a request.
pub(super) type Count = Arc<dyn Fn(Answered) + Send + Sync>;

type Body = BodyWrapper<Bytes>;

/// A client for one CA.
#[derive(Clone)]
pub(super) struct Http {
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
    count: Count,
    gate: Option<Arc<Gate>>,
}

/// Keeps a registration at the host for which it was counted, even if the directory changes between our reading it and
/// the library's.
#[derive(Debug)]
pub(super) struct Gate {
    host: Arc<str>,
    /// There is an account now, so requests may go anywhere.
    open: AtomicBool,
    /// Whether the CA made a new account. It is also true while a request has no answer yet.
    created: Arc<AtomicBool>,
}

impl Gate {
    /// Lets all later requests through.
    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// The host, if the CA made a new account there.
    pub(super) fn created_at(&self) -> Option<Arc<str>> {
        let created = self.created.load(Ordering::Relaxed);
        created.then(|| self.host.clone())
    }

    fn refuses<B>(&self, request: &Request<B>) -> bool {
        request.method() == Method::POST
            && !self.open.load(Ordering::Relaxed)
            && request.uri().host().map(plain) != Some(self.host.to_string())
    }
}

/// The host of a URL without its port, in the form in which budgets know it.
pub(crate) fn host_of(url: &str) -> Option<Arc<str>> {
    let uri: Uri = url.parse().ok()?;
    Some(plain(uri.host()?).into())
}

fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

impl Http {
    /// Makes a client. `bundle` has the authorities to trust instead of the usual ones, in PEM.
    pub(super) fn new(
        bundle: Option<&str>,
        rules: Arc<AuthorityRules>,
        count: Count,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match bundle {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    const NONE: &str = "holds something that is not a certificate in PEM";
                    let certificate = certificate.map_err(|_| NONE)?;
                    if let Some(key) = costly_key(&certificate) {
                        return Err(format!("holds an authority with {key}"));
                    }
                    roots.add(certificate).map_err(|_| NONE)?;
                }
                if roots.is_empty() {
                    return Err("holds no certificate".to_owned());
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(roots);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = verifier.build().map_err(|_| "cannot be used")?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| "cannot be used")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OrderedChains(verifier)))
            .with_no_client_auth();
        // A CA is asked seldom, and its tickets may be large.
        config.resumption = Resumption::disabled();
        let mut tcp = HttpConnector::new_with_resolver(Resolver {
            rules: rules.clone(),
        });
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .wrap_connector(Connector { tcp, rules });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(4)
            .http1_max_buf_size(MAX_HEAD)
            .build(connector);
        Ok(Self {
            client,
            count,
            gate: None,
        })
    }

    /// The same client for the registration of an account at this host. `created` says afterwards whether the CA made
    /// one.
    pub(super) fn gated(&self, host: Arc<str>, created: Arc<AtomicBool>) -> (Self, Arc<Gate>) {
        let gate = Arc::new(Gate {
            host,
            open: AtomicBool::new(false),
            created,
        });
        let this = Self {
            gate: Some(gate.clone()),
            ..self.clone()
        };
        (this, gate)
    }

    /// Gets a document that needs no account.
    pub(super) async fn get(&self, url: &str) -> Result<(Bytes, Option<Duration>), HttpError> {
        let uri: Uri = url
            .parse()
            .map_err(|_| HttpError::Unreachable("the URL is not one"))?;
        let request = Request::get(uri)
            .body(Full::default())
            .map_err(|_| HttpError::Unreachable("the URL is not one"))?;
        let response = self.exchange(request).await?;
        let said = retry_after(&response);
        Ok((response.into_body(), said))
    }

    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, HttpError> {
        if self
            .gate
            .as_ref()
            .is_some_and(|gate| gate.refuses(&request))
        {
            return Err(HttpError::Unreachable(
                "its directory has just moved accounts to another host",
            ));
        }
        let agent = concat!("vestibule/", env!("CARGO_PKG_VERSION"));
        request
            .headers_mut()
            .insert(USER_AGENT, http::HeaderValue::from_static(agent));
        let gate = self
            .gate
            .as_ref()
            .filter(|gate| request.method() == Method::POST && !gate.open.load(Ordering::Relaxed));
        if let Some(gate) = gate {
            gate.created.store(true, Ordering::Relaxed);
        }
        let result = self.bounded(request).await;
        if let Some(gate) = gate {
            let response = result.as_ref();
            let created = response.is_ok_and(|r| r.status() == StatusCode::CREATED);
            gate.created.store(created, Ordering::Relaxed);
        }
        (self.count)(match &result {
            Ok(_) => Answered::Ok,
            Err(HttpError::Refused { .. }) => Answered::Problem,
            Err(HttpError::Unreachable(_)) => Answered::Unreachable,
            Err(HttpError::NotAllowed(_) | HttpError::OtherOrigin) => Answered::NotAllowed,
        });
        result
    }

    async fn bounded(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let longest = longest(request.method());
        let exchange = async {
            let response = self.client.request(request).await;
            let response = response.map_err(|error| unanswered(&error, host))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, longest)
                .collect()
                .await
                .map_err(|_| HttpError::Unreachable("its answer is too long, or broke off"))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        let response = tokio::time::timeout(DEADLINE, exchange)
            .await
            .map_err(|_| HttpError::Unreachable("it does not answer in time"))??;
        let said = retry_after(&response);
        hear(response.body(), said);
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let problem = Problem::read(response.body());
        let bad_nonce = status == StatusCode::BAD_REQUEST
            && problem.as_ref().is_some_and(|p| p.short() == "badNonce");
        if bad_nonce {
            // The library tries again with the nonce of this answer, so it must see the answer.
            return Ok(response);
        }
        Err(HttpError::Refused {
            status: status.as_u16(),
            problem,
            retry_after: said,
        })
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<Body>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let other = |error: HttpError| instant_acme::Error::Other(Box::new(error));
            let (parts, body) = request.into_parts();
            let of_directory = parts.method == Method::GET;
            let body = body
                .collect()
                .await
                .map_or_else(|never| match never {}, http_body_util::Collected::to_bytes);
            let request = Request::from_parts(parts, Full::new(body));
            let response = this.exchange(request).await.map_err(other)?;
            let response = if of_directory {
                response.map(urls_only)
            } else {
                response
            };
            Ok(BytesResponse::from(response.map(Full::new)))
        })
    }
}

/// The largest number of bytes that the answer to a request may have. The library sends GET only for the directory.
fn longest(method: &Method) -> usize {
    if *method == Method::GET {
        MAX_DIRECTORY
    } else {
        MAX_BODY
    }
}

/// A directory without everything but its URLs, because the library keeps all of it for as long as the account is open.
fn urls_only(body: Bytes) -> Bytes {
    let directory: Option<Directory> = serde_json::from_slice(&body).ok();
    let urls = directory.and_then(|directory| serde_json::to_vec(&directory).ok());
    urls.map_or(body, Bytes::from)
}

/// Connects only to addresses that the rules allow.
#[derive(Debug, Clone)]
struct Connector {
    tcp: HttpConnector<Resolver>,
    rules: Arc<AuthorityRules>,
}

/// Resolves names to the addresses that the rules allow.
#[derive(Debug, Clone)]
struct Resolver {
    rules: Arc<AuthorityRules>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// An address that the rules forbid.
#[derive(Debug, thiserror::Error)]
#[error("it {0}")]
struct NotAllowed(Denied);

fn judge(rules: &AuthorityRules, address: IpAddr) -> Result<(), NotAllowed> {
    rules
        .denies(address)
        .map_or(Ok(()), |why| Err(NotAllowed(why)))
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Boxed<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The resolver does not see a literal address, so check it here.
        let host = uri.host().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = literal.parse()
            && let Err(why) = judge(&self.rules, address)
        {
            return Box::pin(std::future::ready(Err(why.into())));
        }
        let (connecting, rules) = (self.tcp.call(uri), self.rules.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            // Nothing is sent before the peer is checked, whatever the connector did.
            judge(&rules, stream.inner().peer_addr()?.ip())?;
            Ok(stream)
        })
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Boxed<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let rules = self.rules.clone();
        Box::pin(async move {
            let all: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut denied = None;
            let mut allowed = Vec::new();
            for address in all {
                match judge(&rules, address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(why) => denied = Some(why),
                }
            }
            match denied {
                Some(why) if allowed.is_empty() => Err(why.into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

/// Why there is no answer from this host.
fn unanswered(error: &(dyn std::error::Error + 'static), host: String) -> HttpError {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        let within = io.and_then(std::io::Error::get_ref);
        let within = within.and_then(|error| error.downcast_ref::<NotAllowed>());
        if error.is::<NotAllowed>() || within.is_some() {
            return HttpError::NotAllowed(host);
        }
        next = error.source();
    }
    HttpError::Unreachable(words(error))
}

/// Describes the error of a connection, without any words of the other side.
fn words(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            if error
                .get_ref()
                .is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
            {
                return "its certificate is not trusted, or it does not speak TLS";
            }
            return match error.kind() {
                std::io::ErrorKind::ConnectionRefused => "it refuses the connection",
                std::io::ErrorKind::TimedOut => "it does not answer in time",
                std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::UnexpectedEof => {
                    "it closes the connection"
                }
                _ => "no connection to it",
            };
        }
        next = error.source();
    }
    "no connection to it, or its name does not resolve"
}

/// Reads Retry-After in seconds or as a date, and bounds it.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if let Ok(seconds) = text.parse::<u64>() {
        seconds
    } else {
        let date = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        u64::try_from(date.as_second() - crate::clock::wall()).unwrap_or_default()
    };
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use vestibule_model::certificate::AddressBlock;

    use super::*;

    fn said(value: &str) -> Option<Duration> {
        let response = Response::builder()
            .header(RETRY_AFTER, value)
            .body(())
            .expect("a response");
        retry_after(&response)
    }

    #[test]
    fn retry_after_in_both_forms() {
        assert_eq!(said("121"), Some(Duration::from_secs(121)));
        assert_eq!(said("99999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(said("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert_eq!(said("soon"), None);
        assert_eq!(said("-1"), None);
    }

    fn client(rules: AuthorityRules) -> Http {
        Http::new(None, Arc::new(rules), Arc::new(|_| ())).expect("a client")
    }

    fn public() -> AuthorityRules {
        AuthorityRules::Public {
            allowed: Vec::new(),
        }
    }

    #[test]
    fn a_bundle_must_hold_certificates() {
        let count: Count = Arc::new(|_| ());
        let rules = Arc::new(AuthorityRules::Any);
        for bundle in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n",
        ] {
            let http = Http::new(Some(bundle), rules.clone(), count.clone());
            assert!(http.is_err(), "{bundle}");
        }
        assert!(Http::new(None, rules, count).is_ok());
    }

    #[test]
    fn a_directory_is_shorter_than_other_answers_and_kept_without_its_texts() {
        assert_eq!(longest(&Method::GET), MAX_DIRECTORY);
        assert_eq!(longest(&Method::POST), MAX_BODY);
        let profiles: serde_json::Map<String, serde_json::Value> = (0..1000)
            .map(|n| (n.to_string(), serde_json::json!({"description": "a text"})))
            .collect();
        let directory = serde_json::json!({
            "newNonce": "https://ca.test/nonce",
            "newAccount": "https://ca.test/new-account",
            "newOrder": "https://ca.test/new-order",
            "meta": {"profiles": profiles, "website": "https://ca.test"},
            "anything": "else",
        });
        let kept = urls_only(Bytes::from(directory.to_string()));
        let kept: serde_json::Value = serde_json::from_slice(&kept).expect("a document");
        let mut expected = directory;
        let all = expected.as_object_mut().expect("an object");
        all.remove("meta");
        all.remove("anything");
        all.insert("revokeCert".into(), serde_json::Value::Null);
        all.insert("renewalInfo".into(), serde_json::Value::Null);
        assert_eq!(kept, expected);
        // The library says what is wrong with anything else.
        let other = Bytes::from_static(b"no directory");
        assert_eq!(urls_only(other.clone()), other);
    }

    #[tokio::test]
    async fn nothing_but_https() {
        let http = client(AuthorityRules::Any);
        assert!(http.get("http://127.0.0.1:1/").await.is_err());
    }

    /// A server that counts connections.
    async fn listener() -> (u16, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let came = Arc::new(AtomicUsize::new(0));
        let count = came.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        (port, came)
    }

    #[tokio::test]
    async fn private_addresses_are_not_connected_to_by_whatever_name() {
        let (port, came) = listener().await;
        let http = client(public());
        for host in [
            "127.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "localhost",
        ] {
            let answer = http.get(&format!("https://{host}:{port}/directory")).await;
            assert_eq!(
                answer,
                Err(HttpError::NotAllowed(host.to_owned())),
                "{host}"
            );
        }
        // Some systems take these for addresses, and others for names.
        for host in ["0x7f.1", "2130706433", "0", "localhost."] {
            let answer = http.get(&format!("https://{host}:{port}/directory")).await;
            assert!(answer.is_err(), "{host}");
        }
        assert_eq!(came.load(Ordering::SeqCst), 0);
        let lab = AuthorityRules::Public {
            allowed: vec![AddressBlock::parse("127.0.0.1").expect("an address")],
        };
        for rules in [lab, AuthorityRules::Any] {
            let answer = client(rules)
                .get(&format!("https://127.0.0.1:{port}/"))
                .await;
            assert!(
                matches!(answer, Err(HttpError::Unreachable(_))),
                "{answer:?}"
            );
        }
        assert_eq!(came.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn an_address_behind_an_allowed_name_is_judged_where_it_is_connected_to() {
        // The connector checks the peer, whatever a resolver said before.
        let (port, came) = listener().await;
        let tcp = HttpConnector::new_with_resolver(Resolver {
            rules: Arc::new(AuthorityRules::Any),
        });
        let mut connector = Connector {
            tcp,
            rules: Arc::new(public()),
        };
        let uri: Uri = format!("http://localhost:{port}/").parse().expect("a URL");
        let connected = connector.call(uri).await;
        assert!(connected.is_err_and(|error| error.is::<NotAllowed>()));
        assert!(came.load(Ordering::SeqCst) <= 1);
    }

    #[tokio::test]
    async fn a_registration_goes_to_the_host_that_it_was_counted_for() {
        let created = Arc::new(AtomicBool::new(false));
        let (http, gate) = client(AuthorityRules::Any).gated("a.test".into(), created.clone());
        let ask = |method: Method, url: &str| {
            let request = Request::builder().method(method).uri(url);
            let request = request.body(Full::<Bytes>::default()).expect("a request");
            gate.refuses(&request)
        };
        assert!(!ask(Method::POST, "https://A.test.:8443/new"));
        assert!(!ask(Method::HEAD, "https://b.test/nonce"));
        assert!(ask(Method::POST, "https://b.test/new"));
        let request = Request::post("https://b.test/new").body(Full::default());
        let answer = http.exchange(request.expect("a request")).await;
        let Err(HttpError::Unreachable(words)) = answer else {
            panic!("{answer:?}");
        };
        assert!(words.contains("another host"), "{words}");
        assert!(!created.load(Ordering::Relaxed), "nothing was made");
        gate.open();
        assert!(!ask(Method::POST, "https://b.test/new"));
        assert_eq!(
            host_of("https://CA.test.:14000/dir").as_deref(),
            Some("ca.test")
        );
    }
}
