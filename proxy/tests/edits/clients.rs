//! Clients of every kind, and the comparison of what they get with what the model says.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::gate::{Gate, Stop, Stopped};
use super::ledger::{Config, Ledger, Spell};
use super::model::{Ask, Basis, CLOSED, Dial, Hello, Link, MISDIRECTED, Model, is_late, waits};
use super::servers::Props;
use super::wire::{Answer, Io, Pace, config, one, two};
use vestibule_proxy_testing::{PATIENCE, within};

/// A configuration, by its number; the port and the server name of a connection; its result; a request.
type AskedOf = (usize, u16, Option<String>, Link, Ask);

/// The possible results of connections, by the number of the configuration.
type Links = HashMap<(usize, Dial), Arc<Vec<Link>>>;

/// Counts answers to requests that clients made after an edit, while it was the last one.
#[derive(Default)]
struct Since {
    edit: usize,
    answers: usize,
}

/// What all clients share.
pub(crate) struct World {
    pub(crate) props: Arc<Props>,
    pub(crate) ledger: Arc<Ledger>,
    /// How many requests were answered; ends of connections and echoes do not count.
    pub(crate) answers: AtomicUsize,
    /// How many of these a backend answered.
    pub(crate) served: AtomicUsize,
    /// How many of these were made after the last edit that was done.
    since: Mutex<Since>,
    /// Pairs of an answer and an edit that came while it was being made.
    pub(crate) met: AtomicUsize,
    /// By kind: an answer, or the end that was to be expected.
    pub(crate) kinds: Mutex<HashMap<String, usize>>,
    /// The faults found.
    pub(crate) faults: Mutex<Vec<String>>,
    pub(crate) ended: AtomicBool,
    configs: Mutex<HashMap<(Hello, bool), Arc<ClientConfig>>>,
    links: Mutex<Links>,
    said: Mutex<HashMap<AskedOf, Arc<Vec<String>>>>,
}

impl World {
    pub(crate) fn new(props: Arc<Props>, ledger: Arc<Ledger>) -> Self {
        Self {
            props,
            ledger,
            answers: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            since: Mutex::default(),
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
        let name = dial.tls.as_ref().map(|hello| hello.name.clone());
        let key = (address, dial.port, name, link.clone(), ask.clone());
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

    /// Forgets what the model said if there is much of it. The model works it out again if somebody asks.
    pub(crate) fn forget(&self) {
        const MANY: usize = 200_000;
        let (mut links, mut said) = (self.links.lock(), self.said.lock());
        if links.len() + said.len() > MANY {
            links.clear();
            said.clear();
        }
    }

    /// How many requests were answered that clients made after the edit `edit`, if that is the last one.
    pub(crate) fn answers_since(&self, edit: usize) -> usize {
        let since = self.since.lock();
        if since.edit == edit { since.answers } else { 0 }
    }

    /// Counts an answer to a request; `from` was the last edit when the client made it.
    fn count_answer(&self, text: &str, from: usize) {
        if text == CLOSED {
            return;
        }
        self.answers.fetch_add(1, Ordering::SeqCst);
        let served = text.contains("srv=");
        self.served.fetch_add(usize::from(served), Ordering::SeqCst);
        let mut since = self.since.lock();
        if from > since.edit {
            *since = Since {
                edit: from,
                answers: 0,
            };
        }
        since.answers += usize::from(from == since.edit);
    }

    fn count(&self, kind: &str, text: &str) {
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
    /// The basis on which it was admitted, if it is a relay.
    basis: Option<Basis>,
}

impl Candidate {
    fn new(world: &World, spell: &Spell, dial: &Dial, link: &Link) -> Self {
        let is_relay = matches!(link, Link::Relay { .. });
        let basis = is_relay.then(|| world.model(&spell.config).relayed_by(dial));
        Self {
            first: spell.first,
            link: link.clone(),
            basis: basis.flatten(),
        }
    }
}

/// A basis on which a tunnel may have been admitted, and the earliest edit with it.
#[derive(Debug)]
struct Tunnel {
    first: usize,
    basis: Basis,
}

enum Wire {
    One(Box<dyn Io>),
    Two(http2::SendRequest<Full<Bytes>>),
    Closed,
}

impl Wire {
    async fn ask(&mut self, ask: &Ask, pace: Pace, ledger: &Ledger) -> Option<Answer> {
        match self {
            Self::Closed => None,
            Self::One(stream) => one(stream, ask, pace, ledger).await,
            Self::Two(sender) => two(sender.clone(), ask, pace, ledger).await,
        }
    }
}

/// A client's connection with all that it may be.
pub(crate) struct Conn {
    world: Arc<World>,
    kind: &'static str,
    dial: Dial,
    wire: Wire,
    begun: usize,
    /// None until the test knows by when the configuration was chosen.
    candidates: Option<Vec<Candidate>>,
    /// The newest edit at that moment, until [`Self::decide_again`] takes it.
    settled: Option<usize>,
    shown: Option<String>,
    upgraded: bool,
    /// An answer of HTTP/2 was one with which the connection may end.
    refused: bool,
    /// What the connection was admitted by since it was upgraded: one of these.
    tunnels: Vec<Tunnel>,
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
            settled: None,
            shown: None,
            upgraded: false,
            refused: false,
            tunnels: Vec::new(),
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
            let settled = early.unwrap_or(world.ledger.newest());
            conn.settle(settled);
            conn.settled = Some(settled);
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
        // A client that resumes a session sees no certificate.
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
                // A client that is refused may have seen a certificate before.
                let fits = match (&self.shown, link.shown()) {
                    (Some(seen), Some(shown)) => seen == shown,
                    _ => true,
                };
                if fits {
                    let candidate = Candidate::new(&self.world, &spell, &self.dial, link);
                    candidates.push(candidate);
                }
            }
        }
        self.candidates = Some(candidates);
    }

    /// Adds the ways in which the proxy may decide again. It does so if no endpoint of the backend that it chose can be
    /// reached: then it selects by the configuration in force at that moment, among those with the certificate that the
    /// client saw.
    fn decide_again(&mut self, newest: usize) {
        let Some(settled) = self.settled.take() else {
            return;
        };
        let world = &self.world;
        let mut before = world.ledger.within(self.begun..=settled).into_iter();
        if !before.any(|spell| world.model(&spell.config).may_fail(&self.dial)) {
            return;
        }
        let later = world.ledger.within(settled..=newest);
        let again = later.iter().flat_map(|spell| {
            let links = world.links(&spell.config, &self.dial);
            let of = |link| Candidate::new(world, spell, &self.dial, link);
            links.iter().map(of).collect::<Vec<_>>()
        });
        // A client that resumes a session sees no certificate.
        let fits = |link: &Link| match (&self.shown, link.shown()) {
            (Some(seen), Some(shown)) => seen == shown,
            _ => true,
        };
        let again = again.filter(|candidate| fits(&candidate.link));
        self.candidates.get_or_insert_default().extend(again);
    }

    /// Whether edits since the one with this number may have ended a tunnel.
    fn may_be_ended(&self, since: usize, basis: &Basis) -> bool {
        let serves = |config: &Config| self.world.model(config).still_serves(basis);
        self.world.ledger.may_have_ended(since, serves)
    }

    /// Whether edits may have ended a connection of HTTPS that began in this way, because they no longer admit its client.
    fn may_be_dismissed(&self, began: &Candidate) -> bool {
        let admits = |config: &Config| {
            let model = self.world.model(config);
            model.still_admits(&self.dial, &began.link)
        };
        self.world.ledger.may_have_ended(began.first, admits)
    }

    /// The bases on which a request may have been admitted whose answer `text` made the connection a WebSocket.
    fn tunnels_of(&self, ask: &Ask, text: &str, spells: &[Spell]) -> Vec<Tunnel> {
        let world = &self.world;
        let candidates = self.candidates.iter().flatten();
        candidates
            .flat_map(|candidate| {
                if let Some(basis) = &candidate.basis {
                    let (first, basis) = (candidate.first, basis.clone());
                    return vec![Tunnel { first, basis }];
                }
                let of = |spell: &Spell| {
                    let said = world.said(&spell.config, &self.dial, &candidate.link, ask);
                    let model = world.model(&spell.config);
                    let basis = model.upgraded_by(&self.dial, &candidate.link, ask);
                    let basis = basis.filter(|_| said.iter().any(|said| said == text))?;
                    let first = spell.first;
                    Some(Tunnel { first, basis })
                };
                spells.iter().filter_map(of).collect()
            })
            .collect()
    }

    /// Compares what came in answer to a request that began at `from`.
    fn check(&mut self, ask: &Ask, text: &str, from: usize) {
        let to = self.world.ledger.newest();
        self.world.count(self.kind, text);
        self.world.count_answer(text, from);
        self.world.met.fetch_add(to - from, Ordering::SeqCst);
        self.settle(to);
        self.decide_again(to);
        let spells = self.world.ledger.within(from..=to);
        let candidates = self.candidates.take().unwrap_or_default();
        let world = &self.world;
        let fits = |candidate: &Candidate| {
            spells.iter().any(|spell| {
                let said = world.said(&spell.config, &self.dial, &candidate.link, ask);
                spell.last >= candidate.first && said.iter().any(|said| said == text)
            })
        };
        let before = candidates.len();
        let (keep, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(fits);
        let may_be_ended = |of: &Candidate| match &of.basis {
            Some(basis) => self.may_be_ended(of.first, basis),
            None => self.refused || self.may_be_dismissed(of),
        };
        let is_ended = text == CLOSED && keep.is_empty() && rest.iter().any(may_be_ended);
        let is_fault = keep.is_empty() && !is_ended;
        // Several requests may have been under way on a connection that ended.
        let (keep, rest) = if is_ended { (rest, keep) } else { (keep, rest) };
        self.candidates = Some(keep);
        if text.starts_with("101 ") {
            self.tunnels = self.tunnels_of(ask, text, &spells);
        }
        self.history.push(format!(
            "{from}..={to} {} {}: {text}",
            ask.host,
            ask.target()
        ));
        if !is_fault {
            return;
        }
        let mut fault = format!(
            "{}: {:?}\n  shown {:?}, begun {}; asked {ask:?}\n  got {text}\n  on the connection: {:#?}\n",
            self.kind, self.dial, self.shown, self.begun, self.history,
        );
        for spell in world.ledger.within(self.begun..=to) {
            let links = world.links(&spell.config, &self.dial);
            writeln!(fault, "  {}..={}: {links:?}", spell.first, spell.last).unwrap();
        }
        writeln!(fault, "  {before} candidates before").unwrap();
        for candidate in rest.iter().take(4) {
            writeln!(
                fault,
                "  if {:?} since {}:",
                candidate.link, candidate.first
            )
            .unwrap();
            for spell in &spells {
                let said = world.said(&spell.config, &self.dial, &candidate.link, ask);
                writeln!(fault, "    {}..={}: {said:?}", spell.first, spell.last).unwrap();
            }
        }
        world.faults.lock().push(fault);
        self.wire = Wire::Closed;
    }

    /// Asks, and compares what comes.
    pub(crate) async fn ask(&mut self, ask: &Ask, pace: Pace) {
        let from = self.world.ledger.oldest();
        let answer = self.wire.ask(ask, pace, &self.world.ledger).await;
        self.take(ask, answer.as_ref(), from);
    }

    /// Takes the answer to a request that began at `from`.
    fn take(&mut self, ask: &Ask, answer: Option<&Answer>, from: usize) {
        let (text, is_two) = (answer.map_or(CLOSED, |answer| &answer.text), self.is_two());
        // If nobody wants a request's body, the proxy does not read it to its end, and may close the connection.
        let unread = ask.body > 0 && !text.contains("srv=");
        if unread || answer.is_none_or(|answer| answer.last) {
            self.wire = Wire::Closed;
        }
        self.upgraded = text.starts_with("101 ");
        self.check(ask, text, from);
        self.refused |= is_two && text == MISDIRECTED;
    }

    /// Whether every configuration since the edit `from` puts an end to a request that no backend answers.
    fn ends(&self, ask: &Ask, from: usize) -> bool {
        self.outcomes(ask, from)
            .is_some_and(|all| !all.iter().any(|said| waits(said)))
    }

    /// Whether a timeout of the present configuration ends a request that no backend answers.
    pub(crate) fn is_timed(&self, ask: &Ask) -> bool {
        let now = self.world.ledger.newest();
        let late = |said: &Arc<Vec<String>>| said.iter().any(|said| is_late(said));
        self.ends(ask, now)
            && self
                .outcomes(ask, now)
                .is_some_and(|all| all.iter().any(late))
    }

    /// What the configurations since the edit `from` say of a request. None: the proxy may relay the connection
    /// without reading it.
    fn outcomes(&self, ask: &Ask, from: usize) -> Option<Vec<Arc<Vec<String>>>> {
        let (world, to) = (&self.world, self.world.ledger.newest());
        let mut links: Vec<Link> = Vec::new();
        if let Some(candidates) = &self.candidates {
            links.extend(candidates.iter().map(|of| of.link.clone()));
        } else {
            for spell in world.ledger.within(self.begun..=to) {
                links.extend_from_slice(&world.links(&spell.config, &self.dial));
            }
        }
        let mut outcomes = Vec::new();
        for spell in world.ledger.within(from..=to) {
            for link in &links {
                if matches!(link, Link::Relay { .. }) {
                    return None;
                }
                outcomes.push(world.said(&spell.config, &self.dial, link, ask));
            }
        }
        Some(outcomes)
    }

    /// Asks what no backend answers: a timeout has to end it. The client leaves when a configuration comes
    /// that has no timeout for it.
    pub(crate) async fn ask_in_vain(&mut self, ask: &Ask) {
        let from = self.world.ledger.oldest();
        let mut told = self.world.ledger.told();
        let mut wire = std::mem::replace(&mut self.wire, Wire::Closed);
        let ledger = Arc::clone(&self.world.ledger);
        let answer = {
            let mut asked = pin!(wire.ask(ask, Pace::Never, &ledger));
            loop {
                if !self.ends(ask, from) {
                    self.world.count(self.kind, "left");
                    return;
                }
                tokio::select! {
                    answer = &mut asked => break answer,
                    Ok(()) = told.changed() => {}
                }
            }
        };
        self.wire = wire;
        self.take(ask, answer.as_ref(), from);
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
        // The connection takes no more requests from then on, and some of these may have come too late.
        let mut got = answers.iter().flatten();
        self.refused |= got.any(|answer| answer.text == MISDIRECTED);
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
                writeln!(fault, "  {}..={}: {links:?}", spell.first, spell.last).unwrap();
            }
            self.world.faults.lock().push(fault);
        }
    }

    /// Has bytes come back on a connection that was upgraded. It may have ended only if edits took away what admitted
    /// it.
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
        let mut tunnels = self.tunnels.iter();
        if echoed.is_err() && tunnels.any(|of| self.may_be_ended(of.first, &of.basis)) {
            self.world.count(self.kind, "ended");
            self.wire = Wire::Closed;
        } else if echoed.is_err() || back != bytes {
            self.cut(&format!("a standing connection was cut: {echoed:?}"));
        }
    }

    /// Checks a connection that was upgraded when there are no more edits. If the last configuration does not serve it,
    /// it ends.
    pub(crate) async fn last(&mut self, bytes: &[u8]) {
        let last = self.world.ledger.last();
        let model = self.world.model(&last);
        let mut tunnels = self.tunnels.iter();
        if tunnels.any(|of| model.still_serves(&of.basis)) {
            return self.echo(bytes).await;
        }
        let Wire::One(stream) = &mut self.wire else {
            return;
        };
        // It ends in order or by a reset.
        let ended = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        match ended {
            Ok(Err(_)) => self.world.count(self.kind, "gone"),
            other => self.cut(&format!("a connection outlived its route: {other:?}")),
        }
    }

    /// Notes a fault of a connection that was upgraded.
    fn cut(&mut self, what: &str) {
        let now = self.world.ledger.newest();
        let fault = format!(
            "{}: by {now}: {what}\n  {:?}\n  {:#?}\n  {:#?}",
            self.kind, self.dial, self.history, self.tunnels
        );
        self.world.faults.lock().push(fault);
        self.wire = Wire::Closed;
    }
}
