//! Requests to a CA over HTTPS: trusted by the issuer's bundle or the usual roots, bounded in time and
//! size, and never redirected. Whoever writes an issuer chooses what is connected to, so nothing of an
//! answer gets out that is not a problem document.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{RETRY_AFTER, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::super::effects::Answered;
use super::super::problem::Problem;

/// Longest answer; a chain is at most some tens of KiB.
const MAX_BODY: usize = 256 * 1024;
/// For one request with its answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// For a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest that Retry-After may say.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(7 * 24);

tokio::task_local! {
    /// What the last answer within the scope said in Retry-After.
    static SAID: Cell<Option<Duration>>;
}

/// Runs a future and says what the last answer in it had as Retry-After.
pub(super) async fn with_retry_after<T>(future: impl Future<Output = T>) -> (T, Option<Duration>) {
    SAID.scope(Cell::new(None), async {
        let result = future.await;
        (result, SAID.with(Cell::get))
    })
    .await
}

/// Why there is no good answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpError {
    /// There is none at all.
    #[error("{0}")]
    Unreachable(&'static str),
    /// The CA says no.
    #[error("status {status}")]
    Refused {
        status: u16,
        problem: Option<Problem>,
        retry_after: Option<Duration>,
    },
}

/// Counts what became of a request.
pub(super) type Count = Arc<dyn Fn(Answered) + Send + Sync>;

type Body = BodyWrapper<Bytes>;

/// A client for one CA.
#[derive(Clone)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    count: Count,
}

impl Http {
    /// `bundle`: PEM of the authorities to trust instead of the usual ones.
    pub(super) fn new(bundle: Option<&str>, count: Count) -> Result<Self, &'static str> {
        let mut roots = RootCertStore::empty();
        match bundle {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    certificate
                        .ok()
                        .and_then(|certificate| roots.add(certificate).ok())
                        .ok_or("holds something that is not a certificate in PEM")?;
                }
                if roots.is_empty() {
                    return Err("holds no certificate");
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .map_err(|_| "cannot be used")?
        .with_root_certificates(roots)
        .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(4)
            .build(connector);
        Ok(Self { client, count })
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
        let agent = concat!("vestibule/", env!("CARGO_PKG_VERSION"));
        request
            .headers_mut()
            .insert(USER_AGENT, http::HeaderValue::from_static(agent));
        let result = self.bounded(request).await;
        (self.count)(match &result {
            Ok(_) => Answered::Ok,
            Err(HttpError::Refused { .. }) => Answered::Problem,
            Err(HttpError::Unreachable(_)) => Answered::Unreachable,
        });
        result
    }

    async fn bounded(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| HttpError::Unreachable(words(&error)))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_BODY)
                .collect()
                .await
                .map_err(|_| HttpError::Unreachable("its answer is too long, or broke off"))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        let response = tokio::time::timeout(DEADLINE, exchange)
            .await
            .map_err(|_| HttpError::Unreachable("it does not answer in time"))??;
        let said = retry_after(&response);
        let _ = SAID.try_with(|cell| cell.set(said));
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let problem = Problem::read(response.body());
        let bad_nonce = status == StatusCode::BAD_REQUEST
            && problem.as_ref().is_some_and(|p| p.short() == "badNonce");
        if bad_nonce {
            // The library tries again with the nonce of this answer.
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
            let body = body
                .collect()
                .await
                .map_or_else(|never| match never {}, http_body_util::Collected::to_bytes);
            let request = Request::from_parts(parts, Full::new(body));
            let response = this.exchange(request).await.map_err(other)?;
            Ok(BytesResponse::from(response.map(Full::new)))
        })
    }
}

/// What went wrong with a connection, without what the other side said.
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

/// Retry-After in seconds or as a date, bounded.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if let Ok(seconds) = text.parse::<u64>() {
        seconds
    } else {
        let date = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        u64::try_from(date.as_second() - super::super::clock::wall()).unwrap_or_default()
    };
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_bundle_must_hold_certificates() {
        let count: Count = Arc::new(|_| ());
        for bundle in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n",
        ] {
            assert!(Http::new(Some(bundle), count.clone()).is_err(), "{bundle}");
        }
        assert!(Http::new(None, count).is_ok());
    }

    #[tokio::test]
    async fn nothing_but_https() {
        let http = Http::new(None, Arc::new(|_| ())).expect("a client");
        assert!(http.get("http://127.0.0.1:1/").await.is_err());
    }
}
