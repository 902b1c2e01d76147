//! What clients write and read: requests at their pace, answers as lines, handshakes with anybody.

use std::fmt::Write as _;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use rustls::ClientConfig;
use rustls::client::Resumption;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::ledger::Ledger;
use super::model::{ANSWERED, Ask, Hello};
use super::servers::{BODY, DRIPS, NEVER, Props, SEEN, UNTIL};
use vestibule_proxy_testing::acme::{ca, takes_any};
use vestibule_proxy_testing::web::{self, read_answer};
use vestibule_proxy_testing::{PATIENCE, within};

/// What HTTP is spoken over.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What came back.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// The connection is not to be used again.
    pub(crate) last: bool,
}

/// The text of an answer that did not come. No configuration allows it.
const NOTHING: &str = "nothing, for longer than a test waits";

impl Answer {
    fn nothing() -> Self {
        let text = NOTHING.to_owned();
        Self { text, last: true }
    }

    fn last(self) -> Self {
        Self { last: true, ..self }
    }
}

impl From<web::Answer> for Answer {
    fn from(answer: web::Answer) -> Self {
        let status = answer.status;
        let mut text = status.to_string();
        if let Some(seen) = answer.header(SEEN) {
            text = format!("{text} {seen}");
            if status == 200 && answer.body != BODY {
                text += " cut";
            }
        } else if let Some(location) = answer.header("location") {
            let host = location.split('/').nth(2).unwrap_or_default();
            let host = host.split(':').next().unwrap_or_default();
            text = format!("{text} to={host}");
        } else if status == 200 {
            text = format!("{text} {}", answer.body);
        }
        let answered: Vec<_> = answer.headers(ANSWERED).collect();
        if !answered.is_empty() {
            text = format!("{text} answered={}", answered.join(","));
        }
        let last = answer.header("connection") == Some("close");
        Self { text, last }
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
    /// For ever: the backend does not answer it.
    Never,
}

impl Pace {
    /// The field that asks the backend for it.
    fn field(self, ledger: &Ledger) -> Option<(&'static str, String)> {
        let after = |edits: usize| (ledger.newest() + edits).to_string();
        match self {
            Self::Held(edits) => Some((UNTIL, after(edits))),
            Self::Drips(edits) => Some((DRIPS, after(edits))),
            Self::Never => Some((UNTIL, NEVER.to_owned())),
            Self::Straight | Self::Head(_) | Self::Body(_) => None,
        }
    }
}

fn head(ask: &Ask, pace: Pace, ledger: &Ledger) -> String {
    let (host, method, target) = (&ask.host, ask.method, ask.target());
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n");
    if let Some(variant) = ask.variant {
        write!(text, "{}: {variant}\r\n", super::rules::VARIANT).unwrap();
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
        Pace::Straight | Pace::Held(_) | Pace::Drips(_) | Pace::Never => None,
    };
    bytes.resize(bytes.len() + ask.body, b'b');
    let mut came = Vec::with_capacity(512);
    let at = stop.map_or(0, |(at, _)| at);
    stream.write_all(&bytes[..at]).await.ok()?;
    if let Some((_, edits)) = stop {
        stream.flush().await.ok()?;
        let until = ledger.newest() + edits;
        let mut told = ledger.told();
        // A client that gets its answer before it has sent everything stops sending, because the proxy may have closed.
        tokio::select! {
            early = read_answer(stream, &mut came) => return early.map(|it| Answer::from(it).last()),
            waited = within("edits", told.wait_for(|done| *done >= until)) => waited.ok()?,
        };
    }
    let rest = async {
        stream.write_all(&bytes[at..]).await?;
        stream.flush().await
    };
    // The proxy may have answered meanwhile and closed: its answer counts all the same.
    let cut = rest.await.is_err();
    match tokio::time::timeout(PATIENCE, read_answer(stream, &mut came)).await {
        Ok(answer) if cut => answer.map(|it| Answer::from(it).last()),
        Ok(answer) => answer.map(Answer::from),
        Err(_) => Some(Answer::nothing()),
    }
}

/// A request over HTTP/2.
pub(crate) async fn two(
    mut sender: http2::SendRequest<Full<Bytes>>,
    ask: &Ask,
    pace: Pace,
    ledger: &Ledger,
) -> Option<Answer> {
    let uri = format!("https://{}{}", ask.host, ask.target());
    let mut request = Request::builder().method(ask.method).uri(uri);
    if let Some(variant) = ask.variant {
        request = request.header(super::rules::VARIANT, variant);
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
        let mut head = String::new();
        for (name, value) in &parts.headers {
            writeln!(head, "{name}: {}", value.to_str().ok()?).unwrap();
        }
        Some(web::Answer {
            status: parts.status.as_u16(),
            head,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(answer) => answer.map(Answer::from),
        Err(_) => Some(Answer::nothing()),
    }
}

/// A client that takes any certificate, and says which.
pub(crate) fn config(props: &Props, hello: &Hello, resumes: bool) -> ClientConfig {
    if hello.alpn == ["acme-tls/1"] {
        return ca(&[b"acme-tls/1"], &[&rustls::version::TLS13]);
    }
    let builder = takes_any(rustls::ALL_VERSIONS);
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
