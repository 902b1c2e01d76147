//! Clients of every kind, and the comparison of what they get with what the model says.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, HandshakeKind, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::gate::{Gate, Stop, Stopped};
use super::ledger::{Config, Ledger};
use super::model::{ANSWERED, Ask, CLOSED, Dial, Hello, Link, Model};
use super::servers::{BODY, DRIPS, Props, SEEN, UNTIL};
use crate::common::acme::ca;
use crate::common::{provider, within};

type AskedOf = (usize, u16, Link, Ask);

/// What all clients share.
pub(crate) struct World {
    pub(crate) props: Arc<Props>,
    pub(crate) ledger: Arc<Ledger>,
    /// Answers so far.
    pub(crate) answers: AtomicUsize,
    /// Of these, by a backend.
    pub(crate) served: AtomicUsize,
    /// Pairs of an answer and an edit that came while it was being made.
    pub(crate) met: AtomicUsize,
    /// By kind: an answer, or the end that was to be expected.
    pub(crate) kinds: Mutex<HashMap<String, usize>>,
    /// The faults found.
    pub(crate) faults: Mutex<Vec<String>>,
    pub(crate) ended: AtomicBool,
    configs: Mutex<HashMap<(Hello, bool), Arc<ClientConfig>>>,
    links: Mutex<HashMap<(usize, Dial), Arc<Vec<Link>>>>,
    said: Mutex<HashMap<AskedOf, Arc<Vec<String>>>>,
}

impl World {
    pub(crate) fn new(props: Arc<Props>, ledger: Arc<Ledger>) -> Self {
        Self {
            props,
            ledger,
            answers: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            met: AtomicUsize::new(0),
            kinds: Mutex::default(),
            faults: Mutex::default(),
            ended: AtomicBool::new(false),
            configs: Mutex::default(),
            links: Mutex::default(),
            said: Mutex::default(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst) || !self.faults.lock().is_empty()
    }

    fn model<'a>(&'a self, config: &'a Config) -> Model<'a> {
        Model {
            props: &self.props,
            config,
        }
    }

    fn links(&self, config: &Arc<Config>, dial: &Dial) -> Arc<Vec<Link>> {
        // Every configuration lives as long as the ledger: the address is a name.
        let key = (Arc::as_ptr(config) as usize, dial.clone());
        let mut links = self.links.lock();
        let known = links.entry(key);
        let known = known.or_insert_with(|| Arc::new(self.model(config).connect(dial)));
        Arc::clone(known)
    }

    fn said(&self, config: &Arc<Config>, dial: &Dial, link: &Link, ask: &Ask) -> Arc<Vec<String>> {
        let address = Arc::as_ptr(config) as usize;
        let key = (address, dial.port, link.clone(), ask.clone());
        let mut said = self.said.lock();
        let known = said.entry(key);
        let known = known.or_insert_with(|| Arc::new(self.model(config).answer(dial, link, ask)));
        Arc::clone(known)
    }

    fn config(&self, hello: &Hello, resumes: bool) -> Arc<ClientConfig> {
        let mut configs = self.configs.lock();
        let known = configs.entry((hello.clone(), resumes));
        Arc::clone(known.or_insert_with(|| Arc::new(config(&self.props, hello, resumes))))
    }

    fn count(&self, kind: &str, text: &str) {
        self.answers.fetch_add(1, Ordering::SeqCst);
        let served = text.contains("srv=");
        self.served.fetch_add(usize::from(served), Ordering::SeqCst);
        let first = text.split(' ').next().unwrap_or_default();
        *self
            .kinds
            .lock()
            .entry(format!("{kind} {first}"))
            .or_default() += 1;
    }
}

/// One way in which a connection may have begun.
struct Candidate {
    /// When its configuration was in force first.
    first: usize,
    link: Link,
}

enum Wire {
    One(Box<dyn Io>),
    Two(http2::SendRequest<Full<Bytes>>),
    Closed,
}

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A client's connection with all that it may be.
pub(crate) struct Conn {
    world: Arc<World>,
    kind: &'static str,
    dial: Dial,
    wire: Wire,
    begun: usize,
    /// None before it is known when the configuration was chosen at the latest.
    candidates: Option<Vec<Candidate>>,
    shown: Option<String>,
    upgraded: bool,
    history: Vec<String>,
}

impl Conn {
    /// Connects. Whatever comes of it, something has to be asked then.
    pub(crate) async fn open(
        world: &Arc<World>,
        kind: &'static str,
        dial: &Dial,
        stop: Stop,
        edits: usize,
    ) -> Self {
        let begun = world.ledger.oldest();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, dial.port));
        let mut conn = Self {
            world: Arc::clone(world),
            kind,
            dial: dial.clone(),
            wire: Wire::Closed,
            begun,
            candidates: None,
            shown: None,
            upgraded: false,
            history: Vec::new(),
        };
        let Ok(tcp) = within("a connection", TcpStream::connect(address)).await else {
            return conn;
        };
        let _ = tcp.set_nodelay(true);
        let gate = Gate::new(tcp, stop, edits, &world.ledger);
        let Some(hello) = &dial.tls else {
            conn.wire = Wire::One(Box::new(gate));
            return conn;
        };
        let stopped = Arc::clone(&gate.stopped);
        if conn.secure(hello, gate).await.is_some() {
            let early = (stop == Stop::Answering)
                .then(|| Stopped::at(&stopped))
                .flatten();
            conn.settle(early.unwrap_or(world.ledger.newest()));
        }
        conn
    }

    async fn secure(&mut self, hello: &Hello, gate: Gate) -> Option<()> {
        let name = ServerName::try_from(hello.name.clone()).unwrap();
        let resumes = self.kind == "resumes";
        let connector = TlsConnector::from(self.world.config(hello, resumes));
        let stream = within("a handshake", connector.connect(name, gate))
            .await
            .ok()?;
        let session = stream.get_ref().1;
        // Who resumes a session sees no certificate.
        if session.handshake_kind() != Some(HandshakeKind::Resumed) {
            let der = session.peer_certificates()?.first()?;
            self.shown = Some(self.world.props.label(der).to_owned());
        }
        let two = session.alpn_protocol() == Some(b"h2");
        self.wire = if two {
            Self::two(Box::new(stream))
                .await
                .map_or(Wire::Closed, Wire::Two)
        } else {
            Wire::One(Box::new(stream))
        };
        Some(())
    }

    async fn two(stream: Box<dyn Io>) -> Option<http2::SendRequest<Full<Bytes>>> {
        let builder = http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }

    /// Goes on as HTTP/2 by prior knowledge.
    pub(crate) async fn know_two(&mut self) {
        if let Wire::One(stream) = std::mem::replace(&mut self.wire, Wire::Closed) {
            self.wire = Self::two(stream).await.map_or(Wire::Closed, Wire::Two);
        }
    }

    pub(crate) fn is_two(&self) -> bool {
        matches!(self.wire, Wire::Two(_))
    }

    /// The last answer made a WebSocket of it.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded && matches!(self.wire, Wire::One(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.wire, Wire::Closed)
    }

    /// The configuration that the connection keeps was chosen by `newest`.
    fn settle(&mut self, newest: usize) {
        if self.candidates.is_some() {
            return;
        }
        let mut candidates = Vec::new();
        for spell in self.world.ledger.within(self.begun..=newest) {
            for link in &*self.world.links(&spell.config, &self.dial) {
                // Who is refused may have seen a certificate before.
                let fits = match (&self.shown, link.shown()) {
                    (Some(seen), Some(shown)) => seen == shown,
                    _ => true,
                };
                if fits {
                    let (first, link) = (spell.first, link.clone());
                    candidates.push(Candidate { first, link });
                }
            }
        }
        self.candidates = Some(candidates);
    }

    /// Compares what came in answer to a request that began at `from`.
    fn check(&mut self, ask: &Ask, text: &str, from: usize) {
        let to = self.world.ledger.newest();
        self.world.count(self.kind, text);
        self.world.met.fetch_add(to - from, Ordering::SeqCst);
        self.settle(to);
        let spells = self.world.ledger.within(from..=to);
        let world = &self.world;
        let fits = |candidate: &Candidate| {
            spells.iter().any(|spell| {
                let said = world.said(&spell.config, &self.dial, &candidate.link, ask);
                spell.last >= candidate.first && said.iter().any(|said| said == text)
            })
        };
        let candidates = self.candidates.get_or_insert_default();
        let before = candidates.len();
        let (keep, rest): (Vec<_>, Vec<_>) = candidates.drain(..).partition(fits);
        *candidates = keep;
        self.history
            .push(format!("{from}..={to} {} {}: {text}", ask.host, ask.path));
        if !candidates.is_empty() {
            return;
        }
        let mut fault = format!(
            "{}: {:?}\n  shown {:?}, begun {}; asked {ask:?}\n  got {text}\n  on the connection: {:#?}\n",
            self.kind, self.dial, self.shown, self.begun, self.history,
        );
        for spell in world.ledger.within(self.begun..=to) {
            let links = world.links(&spell.config, &self.dial);
            fault += &format!("  {}..={}: {links:?}\n", spell.first, spell.last);
        }
        fault += &format!("  {before} candidates before\n");
        for candidate in rest.iter().take(4) {
            fault += &format!("  if {:?} since {}:\n", candidate.link, candidate.first);
            for spell in &spells {
                let said = world.said(&spell.config, &self.dial, &candidate.link, ask);
                fault += &format!("    {}..={}: {said:?}\n", spell.first, spell.last);
            }
        }
        world.faults.lock().push(fault);
        self.wire = Wire::Closed;
    }

    /// Asks, and compares what comes.
    pub(crate) async fn ask(&mut self, ask: &Ask, pace: Pace) {
        let from = self.world.ledger.oldest();
        let answer = match &mut self.wire {
            Wire::Closed => None,
            Wire::One(stream) => one(stream, ask, pace, &self.world.ledger).await,
            Wire::Two(sender) => two(sender.clone(), ask, pace, &self.world.ledger).await,
        };
        let text = answer.as_ref().map_or(CLOSED, |answer| &answer.text);
        // Who is not read to the end of its body, as nobody wants it, may find the connection closed.
        let unread = ask.body > 0 && !text.contains("srv=");
        if unread || answer.as_ref().is_none_or(|answer| answer.last) {
            self.wire = Wire::Closed;
        }
        self.upgraded = text.starts_with("101 ");
        self.check(ask, text, from);
    }

    /// Asks several at one time.
    pub(crate) async fn ask_all(&mut self, asks: &[Ask]) {
        let from = self.world.ledger.oldest();
        let Wire::Two(sender) = &self.wire else {
            return self.ask(&asks[0], Pace::Straight).await;
        };
        let all = asks
            .iter()
            .map(|ask| two(sender.clone(), ask, Pace::Straight, &self.world.ledger));
        let answers = futures::future::join_all(all).await;
        for (ask, answer) in asks.iter().zip(answers) {
            if answer.is_none() {
                self.wire = Wire::Closed;
            }
            let text = answer.as_ref().map_or(CLOSED, |answer| &answer.text);
            self.check(ask, text, from);
        }
    }

    /// A handshake that carries nothing came to its end, or did not.
    pub(crate) fn no_ask(&mut self) {
        self.settle(self.world.ledger.newest());
        self.world.count(
            self.kind,
            if self.shown.is_some() {
                "shown"
            } else {
                CLOSED
            },
        );
        let candidates = self.candidates.get_or_insert_default();
        let shown = self.shown.as_deref();
        if candidates
            .iter()
            .all(|candidate| candidate.link.shown() != shown)
        {
            let to = self.world.ledger.newest();
            let mut fault = format!("{}: {:?}: shown {shown:?}\n", self.kind, self.dial);
            for spell in self.world.ledger.within(self.begun..=to) {
                let links = self.world.links(&spell.config, &self.dial);
                fault += &format!("  {}..={}: {links:?}\n", spell.first, spell.last);
            }
            self.world.faults.lock().push(fault);
        }
    }

    /// Has bytes come back on a connection that was upgraded.
    pub(crate) async fn echo(&mut self, bytes: &[u8]) {
        let Wire::One(stream) = &mut self.wire else {
            return;
        };
        let mut back = vec![0; bytes.len()];
        let echoed = async {
            stream.write_all(bytes).await?;
            stream.flush().await?;
            stream.read_exact(&mut back).await
        };
        let echoed = within("an echo", echoed).await;
        self.world.count(self.kind, "echo");
        if echoed.is_err() || back != bytes {
            let now = self.world.ledger.newest();
            let fault = format!(
                "{}: a standing connection was cut by {now}: {echoed:?}\n  {:?}\n  {:#?}",
                self.kind, self.dial, self.history
            );
            self.world.faults.lock().push(fault);
            self.wire = Wire::Closed;
        }
    }
}

/// What came back.
struct Answer {
    text: String,
    /// The connection is not to be used again.
    last: bool,
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
        text += &format!("x-variant: {variant}\r\n");
    }
    if ask.upgrade {
        text += "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n";
    }
    if method == "POST" {
        text += &format!("content-length: {}\r\n", ask.body);
    }
    if let Some((name, until)) = pace.field(ledger) {
        text += &format!("{name}: {until}\r\n");
    }
    text + "\r\n"
}

/// A request over HTTP/1.1.
async fn one(stream: &mut Box<dyn Io>, ask: &Ask, pace: Pace, ledger: &Ledger) -> Option<Answer> {
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
async fn two(
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
fn config(props: &Props, hello: &Hello, resumes: bool) -> ClientConfig {
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
