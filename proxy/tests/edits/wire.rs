//! What clients write and read: requests at their pace, answers as lines, handshakes with anybody.

use std::fmt::Write as _;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::HeaderMap;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ledger::Ledger;
use super::model::{ANSWERED, Ask, Hello};
use super::servers::{BODY, DRIPS, Props, SEEN, UNTIL};
use crate::common::acme::ca;
use crate::common::{provider, within};

/// What HTTP is spoken over.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What came back.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// The connection is not to be used again.
    pub(crate) last: bool,
}

impl Answer {
    fn new(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let field = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        let mut text = status.to_string();
        if let Some(seen) = field(SEEN) {
            text = format!("{text} {seen}");
            if status == 200 && body != BODY.as_bytes() {
                text += " cut";
            }
        } else if let Some(location) = field("location") {
            let host = location.split('/').nth(2).unwrap_or_default();
            let host = host.split(':').next().unwrap_or_default();
            text = format!("{text} to={host}");
        } else if status == 200 {
            text = format!("{text} {}", String::from_utf8_lossy(body));
        }
        let answered = headers.get_all(ANSWERED).iter();
        let answered: Vec<_> = answered.map(|value| value.to_str().unwrap()).collect();
        if !answered.is_empty() {
            text = format!("{text} answered={}", answered.join(","));
        }
        let close = field("connection").is_some_and(|value| value == "close");
        Self { text, last: close }
    }

    fn last(self) -> Self {
        Self { last: true, ..self }
    }
}

/// Where a request waits for so many edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Straight,
    /// In the middle of its head.
    Head(usize),
    /// In the middle of its body.
    Body(usize),
    /// Before its answer begins.
    Held(usize),
    /// In the middle of its answer's body.
    Drips(usize),
}

impl Pace {
    /// The field that asks the backend for it.
    fn field(self, ledger: &Ledger) -> Option<(&'static str, usize)> {
        match self {
            Self::Held(edits) => Some((UNTIL, ledger.newest() + edits)),
            Self::Drips(edits) => Some((DRIPS, ledger.newest() + edits)),
            Self::Straight | Self::Head(_) | Self::Body(_) => None,
        }
    }
}

fn head(ask: &Ask, pace: Pace, ledger: &Ledger) -> String {
    let (host, path, method) = (&ask.host, &ask.path, ask.method);
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
    if let Some(variant) = ask.variant {
        write!(text, "x-variant: {variant}\r\n").unwrap();
    }
    if ask.upgrade {
        text += "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n";
    }
    if method == "POST" {
        write!(text, "content-length: {}\r\n", ask.body).unwrap();
    }
    if let Some((name, until)) = pace.field(ledger) {
        write!(text, "{name}: {until}\r\n").unwrap();
    }
    text + "\r\n"
}

/// A request over HTTP/1.1.
pub(crate) async fn one(
    stream: &mut Box<dyn Io>,
    ask: &Ask,
    pace: Pace,
    ledger: &Ledger,
) -> Option<Answer> {
    let mut bytes = head(ask, pace, ledger).into_bytes();
    let stop = match pace {
        Pace::Head(edits) => Some((bytes.len() / 2, edits)),
        Pace::Body(edits) => Some((bytes.len() + ask.body / 2, edits)),
        Pace::Straight | Pace::Held(_) | Pace::Drips(_) => None,
    };
    bytes.resize(bytes.len() + ask.body, b'b');
    let at = stop.map_or(0, |(at, _)| at);
    stream.write_all(&bytes[..at]).await.ok()?;
    if let Some((_, edits)) = stop {
        stream.flush().await.ok()?;
        let until = ledger.newest() + edits;
        let mut told = ledger.told();
        // Who is answered before all was sent does not go on: the proxy may have closed.
        tokio::select! {
            early = read_answer(stream) => return early.map(Answer::last),
            waited = within("edits", told.wait_for(|done| *done >= until)) => waited.ok()?,
        };
    }
    stream.write_all(&bytes[at..]).await.ok()?;
    stream.flush().await.ok()?;
    within("an answer", read_answer(stream)).await
}

async fn read_answer(stream: &mut Box<dyn Io>) -> Option<Answer> {
    let mut bytes = Vec::with_capacity(512);
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|at| at == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?;
    let status = status.get(..3)?.parse().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        let name = hyper::header::HeaderName::try_from(name).ok()?;
        headers.append(name, value.parse().ok()?);
    }
    let length = headers.get("content-length");
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    while bytes.len() < end + length.unwrap_or(0) {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(Answer::new(status, &headers, &bytes[end..]))
}

/// A request over HTTP/2.
pub(crate) async fn two(
    mut sender: http2::SendRequest<Full<Bytes>>,
    ask: &Ask,
    pace: Pace,
    ledger: &Ledger,
) -> Option<Answer> {
    let uri = format!("https://{}{}", ask.host, ask.path);
    let mut request = Request::builder().method(ask.method).uri(uri);
    if let Some(variant) = ask.variant {
        request = request.header("x-variant", variant);
    }
    if let Some((name, until)) = pace.field(ledger) {
        request = request.header(name, until);
    }
    let body = Full::from(vec![b'b'; ask.body]);
    let request = request.body(body).unwrap();
    let answered = async {
        let response = sender.send_request(request).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Answer::new(parts.status.as_u16(), &parts.headers, &body))
    };
    within("an answer", answered).await
}

/// A client that takes any certificate, and says which.
pub(crate) fn config(props: &Props, hello: &Hello, resumes: bool) -> ClientConfig {
    if hello.alpn == ["acme-tls/1"] {
        return ca(&[b"acme-tls/1"], &[&rustls::version::TLS13]);
    }
    let verifier = Arc::new(Anyone(provider().signature_verification_algorithms));
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match hello.shows {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let leaf = &props.showing[authority];
            builder
                .with_client_auth_cert(leaf.chain.clone(), leaf.key())
                .unwrap()
        }
    };
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    config.alpn_protocols = hello
        .alpn
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    config
}

#[derive(Debug)]
struct Anyone(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
