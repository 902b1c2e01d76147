//! A history of what TLS and HTTPRoutes are no part of: connections and datagrams that a port alone selects, of one port
//! number, and calls of gRPC. The model is the specification once more, over the resources as they come.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use proto::BackendProtocol;
use proto::grpc_method::{Method, Service};
use proto::http_match::Path;
use proto::resource::Resource as Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::limits::UdpLimits;
use vestibule_stream::{ResourceKind as Kind, proto};

use super::bed::Reserved;
use super::history::Random;
use super::ledger::{Config, Ledger, difference};
use vestibule_proxy_testing::web::{backend_of, calls, grpc_route, serve_http, to};
use vestibule_proxy_testing::{
    PATIENCE, Rig, backend, echo, http, refusing, serve, tcp, tcp_route,
};
use vestibule_proxy_testing::{udp, udp_route, within};

/// Servers of each kind. The first two are endpoints of one backend, the others of another one.
const SERVERS: usize = 4;
/// Which calls a rule takes, and which are made; an empty text is any.
const CALLS: [(&str, &str); 5] = [("", ""), ("a", ""), ("b", ""), ("a", "x"), ("", "y")];
const ASKED: [(&str, &str); 4] = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "y")];
/// Clients of each kind.
const CLIENTS: u64 = 4;
/// Sockets of a client of UDP at most. None is closed, so that no other client gets its port, and its session.
const SOCKETS: usize = 40;
/// Connections that a client of TCP keeps open.
const KEPT: usize = 5;

/// What an edit may change, by kind of route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Speaks {
    Tcp,
    Udp,
    Grpc,
}

const ALL: [Speaks; 3] = [Speaks::Tcp, Speaks::Udp, Speaks::Grpc];

impl Speaks {
    fn backend(self, index: usize) -> String {
        match self {
            Self::Tcp => format!("team-a/tcp{index}:1"),
            Self::Udp => format!("team-a/udp{index}:1/udp"),
            Self::Grpc => format!("team-a/grpc{index}:1"),
        }
    }

    fn routes(self) -> Kind {
        match self {
            Self::Tcp => Kind::TcpRoute,
            Self::Udp => Kind::UdpRoute,
            Self::Grpc => Kind::GrpcRoute,
        }
    }
}

/// The server that answered, by its index. If nobody serves a connection, the proxy closes it, drops it, or says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServedBy {
    Server(usize),
    Nobody,
    /// A call that no rule takes.
    Unknown,
}

/// Servers that say which they are.
struct Servers {
    of: BTreeMap<Speaks, Vec<SocketAddr>>,
    dead: SocketAddr,
}

impl Servers {
    async fn start() -> Self {
        let mut of = BTreeMap::<Speaks, Vec<SocketAddr>>::new();
        for index in 0..SERVERS {
            let name = u8::try_from(index).unwrap();
            let tcp = serve(move |mut stream: TcpStream| async move {
                if stream.write_all(&[name]).await.is_ok() {
                    echo(stream).await;
                }
            });
            of.entry(Speaks::Tcp).or_default().push(tcp.await);
            let grpc = serve(move |stream| {
                serve_http(stream, true, move |request: Request<Incoming>| async move {
                    let _ = request.into_body().collect().await;
                    Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", "0")
                        .header("x-server", name.to_string())
                        .body(Empty::<Bytes>::new())
                        .unwrap()
                })
            });
            of.entry(Speaks::Grpc).or_default().push(grpc.await);
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            of.entry(Speaks::Udp).or_default().push(address);
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                loop {
                    let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                        continue;
                    };
                    let answer = [&[name], &buffer[..length]].concat();
                    let _ = socket.send_to(&answer, from).await;
                }
            });
        }
        Self {
            of,
            dead: refusing(),
        }
    }

    /// Which server has this address.
    fn at(&self, speaks: Speaks, endpoint: &proto::Endpoint) -> Option<usize> {
        let endpoint: SocketAddr = format!("{}:{}", endpoint.address, endpoint.port)
            .parse()
            .unwrap();
        self.of[&speaks].iter().position(|of| *of == endpoint)
    }
}

// ---- The model

struct Model<'a> {
    servers: &'a Servers,
    config: &'a Config,
}

impl Model<'_> {
    /// The servers that are endpoints of a backend.
    fn endpoints(&self, speaks: Speaks, name: &str) -> BTreeSet<usize> {
        let found = self.config.get(Kind::Backend, name);
        let Some(Wire::Backend(backend)) = found.and_then(|of| of.resource.as_ref()) else {
            return BTreeSet::new();
        };
        let endpoints = backend.endpoints.iter();
        endpoints
            .filter_map(|of| self.servers.at(speaks, of))
            .collect()
    }

    /// Where backends with weights lead to.
    fn shares<'b>(
        &self,
        speaks: Speaks,
        backends: impl Iterator<Item = (&'b str, u32)>,
    ) -> BTreeSet<ServedBy> {
        let mut possible = BTreeSet::new();
        for (name, _) in backends.filter(|(_, weight)| *weight > 0) {
            let endpoints = self.endpoints(speaks, name);
            if endpoints.is_empty() {
                possible.insert(ServedBy::Nobody);
            }
            possible.extend(endpoints.into_iter().map(ServedBy::Server));
        }
        if possible.is_empty() {
            possible.insert(ServedBy::Nobody);
        }
        possible
    }

    /// The possible results of a connection, or of the first datagram of a session.
    fn by_port(&self, speaks: Speaks) -> BTreeSet<ServedBy> {
        self.shares(speaks, self.backends_of_port(speaks))
    }

    /// The route that has a port: it is the oldest one, then the first one by name.
    fn route_of_port(&self, speaks: Speaks) -> Option<(&str, &proto::TcpRoute)> {
        let routes = self.config.of(speaks.routes()).filter_map(|(name, of)| {
            match of.resource.as_ref()? {
                Wire::TcpRoute(route) | Wire::UdpRoute(route) => Some((route.created, name, route)),
                _ => None,
            }
        });
        let first = routes.min_by_key(|(created, name, _)| (*created, *name));
        first.map(|(_, name, route)| (name, route))
    }

    /// Its backends with their weights.
    fn backends_of_port(&self, speaks: Speaks) -> impl Iterator<Item = (&str, u32)> {
        let first = self.route_of_port(speaks).into_iter();
        let backends = first.flat_map(|(_, route)| &route.backends);
        backends.map(|of| (&*of.backend, of.weight))
    }

    /// The possible results of a call. The longest service wins, then the longest method, the oldest route, the first
    /// one by name, and its first rule.
    fn by_call(&self, service: &str, method: &str) -> BTreeSet<ServedBy> {
        let mut best = None;
        for (name, of) in self.config.of(Kind::GrpcRoute) {
            let Some(Wire::GrpcRoute(route)) = &of.resource else {
                continue;
            };
            for (index, rule) in route.rules.iter().enumerate() {
                let Some(Path::GrpcMethod(of)) = &rule.matches[0].path else {
                    continue;
                };
                let wanted = match &of.service {
                    Some(Service::ExactService(text)) => text.as_str(),
                    _ => "",
                };
                let called = match &of.method {
                    Some(Method::ExactMethod(text)) => text.as_str(),
                    _ => "",
                };
                let takes = |of: &str, text: &str| of.is_empty() || of == text;
                if !takes(wanted, service) || !takes(called, method) {
                    continue;
                }
                let lengths = (usize::MAX - wanted.len(), usize::MAX - called.len());
                let rank = (lengths, route.created, name, index);
                if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                    best = Some((rank, rule));
                }
            }
        }
        let Some((_, rule)) = best else {
            return [ServedBy::Unknown].into();
        };
        let backends = rule.backends.iter();
        self.shares(Speaks::Grpc, backends.map(|of| (&*of.backend, of.weight)))
    }

    /// Whether a session with a server stays there: the route names its backend, with whatever weight, and the backend
    /// has the endpoint.
    fn stands(&self, server: usize) -> bool {
        let backend = Speaks::Udp.backend(server / 2);
        let mut named = self.backends_of_port(Speaks::Udp);
        named.any(|(of, _)| of == backend)
            && self.endpoints(Speaks::Udp, &backend).contains(&server)
    }
}

// ---- The history

struct History<'a> {
    random: Random,
    servers: &'a Servers,
    config: Config,
    what: Vec<String>,
}

impl History<'_> {
    fn begin(&mut self, number: u16, of_calls: u16) {
        self.config.set(tcp(number, "bytes"));
        self.config.set(udp(number, "datagrams"));
        self.config.set(http(of_calls, "calls", "", None));
        for speaks in ALL {
            for index in 0..SERVERS / 2 {
                self.set_backend(speaks, index);
                self.set_route(speaks, index);
            }
        }
    }

    fn set_backend(&mut self, speaks: Speaks, index: usize) {
        let mut addresses = self.servers.of[&speaks][index * 2..][..2].to_vec();
        match self.random.below(8) {
            0 => addresses.clear(),
            1..4 => drop(addresses.pop()),
            4 | 5 => drop(addresses.remove(0)),
            _ => {}
        }
        // Of an endpoint that refuses, datagrams get lost, and a client of UDP would wait for many an answer.
        if speaks != Speaks::Udp && self.random.once_in(5) {
            addresses.push(self.servers.dead);
        }
        let name = speaks.backend(index);
        self.config.set(match speaks {
            Speaks::Grpc => backend_of(&name, &addresses, BackendProtocol::H2c),
            Speaks::Tcp | Speaks::Udp => backend(&name, &addresses),
        });
    }

    fn set_route(&mut self, speaks: Speaks, index: usize) {
        let name = format!("route{index}");
        let created = i64::try_from(self.random.below(2)).unwrap();
        if speaks == Speaks::Grpc {
            let mut rules = Vec::new();
            for _ in 0..=self.random.below(3) {
                let (service, method) = *self.random.pick(&CALLS);
                let mut rule = calls(service, method, "");
                let backends = self.backends(speaks);
                rule.backends = backends.iter().map(|(name, of)| to(name, *of)).collect();
                rules.push(rule);
            }
            let mut route = grpc_route(&name, "", rules);
            if let Some(Wire::GrpcRoute(route)) = &mut route.resource {
                route.created = created;
                route.attachments[0].listener = "ListenerSet/team-a/calls/tls".into();
            }
            return self.config.set(route);
        }
        let backends = self.backends(speaks);
        let backends: Vec<_> = backends.iter().map(|(name, of)| (&**name, *of)).collect();
        self.config.set(match speaks {
            Speaks::Tcp => tcp_route(&name, created, "bytes", &backends),
            _ => udp_route(&name, created, "datagrams", &backends),
        });
    }

    /// One backend or both; now and then a reference that is invalid, or no weight.
    fn backends(&mut self, speaks: Speaks) -> Vec<(String, u32)> {
        let first = self.random.below(SERVERS / 2);
        let count = 1 + usize::from(self.random.once_in(3));
        let backends = (0..count).map(|of| {
            let name = match self.random.below(12) {
                0 => String::new(),
                _ => speaks.backend((first + of) % (SERVERS / 2)),
            };
            let weight = u32::from(!self.random.once_in(8)) * 2;
            (name, weight)
        });
        backends.collect()
    }

    /// The next edit: of several things at once.
    fn next(&mut self) {
        self.what.clear();
        for _ in 0..=self.random.below(3) {
            let speaks = *self.random.pick(&ALL);
            let index = self.random.below(SERVERS / 2);
            let what = match self.random.below(6) {
                0..2 => {
                    self.set_backend(speaks, index);
                    "a backend"
                }
                2 => {
                    let name = format!("team-a/route{index}");
                    self.config.remove(speaks.routes(), &name);
                    "a route goes"
                }
                _ => {
                    self.set_route(speaks, index);
                    "a route"
                }
            };
            self.what.push(format!("{speaks:?}: {what} {index}"));
        }
    }
}

// ---- Clients

/// What all clients share.
struct World {
    servers: Arc<Servers>,
    ledger: Ledger,
    /// Port of TCP and UDP, and of calls.
    address: SocketAddr,
    of_calls: SocketAddr,
    /// The last edit, and the number of tries since then by kind.
    since: Mutex<(usize, BTreeMap<Speaks, usize>)>,
    kinds: Mutex<BTreeMap<String, usize>>,
    faults: Mutex<Vec<String>>,
    ended: AtomicBool,
    moved: AtomicUsize,
}

impl World {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst) || !self.faults.lock().is_empty()
    }

    /// Whether a configuration from `begun` on may be as `says` says.
    fn some(&self, begun: usize, says: impl Fn(Model<'_>) -> bool) -> bool {
        let spells = self.ledger.within(begun..=self.ledger.newest());
        spells.iter().any(|spell| {
            says(Model {
                servers: &self.servers,
                config: &spell.config,
            })
        })
    }

    fn count(&self, speaks: Speaks, begun: usize, seen: Option<ServedBy>) {
        let kind = match seen {
            Some(ServedBy::Server(_)) => "served",
            Some(ServedBy::Nobody) | None => "nobody",
            Some(ServedBy::Unknown) => "unknown",
        };
        *self
            .kinds
            .lock()
            .entry(format!("{speaks:?} {kind}"))
            .or_default() += 1;
        let mut since = self.since.lock();
        if begun > since.0 {
            *since = (begun, BTreeMap::new());
        }
        if begun == since.0 {
            *since.1.entry(speaks).or_default() += 1;
        }
    }

    fn fault(&self, text: String) {
        self.faults.lock().push(text);
    }
}

/// A connection that is kept.
struct Kept {
    stream: TcpStream,
    /// The routes by which it may have been selected, and when at the earliest.
    routes: Vec<(usize, String)>,
}

impl Kept {
    fn new(world: &World, stream: TcpStream, begun: usize, server: usize) -> Self {
        let spells = world.ledger.within(begun..=world.ledger.newest());
        let routes = spells.iter().filter_map(|spell| {
            let model = Model {
                servers: &world.servers,
                config: &spell.config,
            };
            let (route, _) = model.route_of_port(Speaks::Tcp)?;
            let possible = model.by_port(Speaks::Tcp);
            let is_it = possible.contains(&ServedBy::Server(server));
            is_it.then(|| (spell.first, route.to_owned()))
        });
        Self {
            routes: routes.collect(),
            stream,
        }
    }

    /// Whether its route was away for so long that the proxy may have ended it.
    fn may_have_ended(&self, world: &World) -> bool {
        self.routes.iter().any(|(first, route)| {
            let serves = |config: &Config| config.get(Kind::TcpRoute, route).is_some();
            world.ledger.may_have_ended(*first, serves)
        })
    }

    /// Has bytes come back. Returns whether it goes on.
    async fn echo(&mut self, world: &World) -> bool {
        let mut back = [0; 4];
        let sent = self.stream.write_all(b"ping").await;
        let read = within("an echo", self.stream.read_exact(&mut back)).await;
        let goes_on = sent.is_ok() && read.is_ok();
        if goes_on && back == *b"ping" {
            return true;
        }
        if goes_on || !self.may_have_ended(world) {
            let routes = &self.routes;
            world.fault(format!("TCP: a connection of {routes:?} was cut"));
        }
        false
    }

    /// Checks it when there are no more edits. If the last configuration has not its route, it ends.
    async fn last(&mut self, world: &World) {
        let last = world.ledger.last();
        let is_there = |route: &str| last.get(Kind::TcpRoute, route).is_some();
        if self.routes.iter().any(|(_, route)| is_there(route)) {
            self.echo(world).await;
            return;
        }
        let ended = tokio::time::timeout(PATIENCE / 2, self.stream.read_u8()).await;
        if !matches!(ended, Ok(Err(_))) {
            let routes = &self.routes;
            world.fault(format!("TCP: a connection outlived {routes:?}: {ended:?}"));
        }
    }
}

/// Connects again and again. What is connected stays so, unless an edit takes its route or listener away.
async fn of_tcp(world: Arc<World>, mut random: Random) {
    let mut kept: Vec<Kept> = Vec::new();
    while !world.is_over() {
        let begun = world.ledger.oldest();
        let mut seen = ServedBy::Nobody;
        if let Ok(mut stream) = within("a connection", TcpStream::connect(world.address)).await {
            let mut name = [0];
            let read = within("a byte or the end", stream.read(&mut name)).await;
            if read.is_ok_and(|length| length == 1) {
                let server = name[0].into();
                seen = ServedBy::Server(server);
                kept.push(Kept::new(&world, stream, begun, server));
            }
        }
        if !world.some(begun, |of| of.by_port(Speaks::Tcp).contains(&seen)) {
            world.fault(format!("TCP: {seen:?} from {begun} on"));
        }
        world.count(Speaks::Tcp, begun, Some(seen));
        if kept.len() > KEPT {
            kept.swap_remove(random.below(kept.len()));
        }
        let at = random.below(kept.len() + 1);
        if let Some(of) = kept.get_mut(at)
            && !of.echo(&world).await
        {
            kept.swap_remove(at);
        }
    }
    if world.faults.lock().is_empty() {
        for of in &mut kept {
            of.last(&world).await;
        }
    }
}

/// A socket with what is known of its session.
struct Client {
    socket: UdpSocket,
    /// The server that answered last, and the time of that request.
    last: Option<(usize, usize)>,
    /// When the first question was asked that was not answered since.
    open: Option<usize>,
}

/// Asks from many sockets in turn. A session stays with its server as long as that is an endpoint of what the route names.
async fn of_udp(world: Arc<World>, mut random: Random) {
    let mut clients: Vec<Client> = Vec::new();
    let mut number = 0_u64;
    while !world.is_over() {
        if clients.is_empty() || clients.len() < SOCKETS && random.once_in(10) {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect(world.address).await.unwrap();
            clients.push(Client {
                socket,
                last: None,
                open: None,
            });
        }
        let at = random.below(clients.len());
        number += 1;
        clients[at].ask(&world, number).await;
    }
}

impl Client {
    async fn ask(&mut self, world: &World, number: u64) {
        let begun = world.ledger.oldest();
        let open = *self.open.get_or_insert(begun);
        let Some(server) = self.answer(world, number, begun).await else {
            return world.count(Speaks::Udp, begun, None);
        };
        let seen = ServedBy::Server(server);
        let is_new = || world.some(open, |of| of.by_port(Speaks::Udp).contains(&seen));
        let fits = match self.last {
            Some((last, _)) if last == server => {
                world.some(begun, |of| of.stands(server)) || is_new()
            }
            Some((last, at)) => world.some(at, |of| !of.stands(last)) && is_new(),
            None => is_new(),
        };
        if !fits {
            let last = self.last;
            world.fault(format!(
                "UDP: {seen:?} to what was asked from {open} and {begun} on, after {last:?}"
            ));
        }
        if self.last.is_some_and(|(last, _)| last != server) {
            world.moved.fetch_add(1, Ordering::SeqCst);
        }
        self.last = Some((server, begun));
        self.open = None;
        world.count(Speaks::Udp, begun, Some(seen));
    }

    /// The server that answers. `None`: nobody does, as some configuration may have it.
    async fn answer(&self, world: &World, number: u64, begun: usize) -> Option<usize> {
        let asked = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let _ = self.socket.send(&number.to_be_bytes()).await;
            let answered = tokio::time::timeout(Duration::from_millis(40), async {
                let mut buffer = [0; 64];
                loop {
                    let Ok(length) = self.socket.recv(&mut buffer).await else {
                        // The port was not bound a moment ago.
                        continue;
                    };
                    // What was asked before may be answered late, or twice.
                    if buffer[1..length] == number.to_be_bytes() {
                        return usize::from(buffer[0]);
                    }
                }
            });
            if let Ok(server) = answered.await {
                return Some(server);
            }
            // A session that stood all the time answers.
            let ended = |(last, at)| world.some(at, |of| !of.stands(last));
            let may_be = self.last.is_none_or(ended)
                && world.some(begun, |of| {
                    of.by_port(Speaks::Udp).contains(&ServedBy::Nobody)
                });
            if tries >= 2 && may_be || world.is_over() {
                return None;
            }
            if asked.elapsed() > PATIENCE {
                world.fault(format!("UDP: no answer from {begun} on"));
                return None;
            }
        }
    }
}

/// Makes calls over one connection.
async fn of_grpc(world: Arc<World>, mut random: Random) {
    let stream = TcpStream::connect(world.of_calls).await.unwrap();
    let builder = http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    while !world.is_over() {
        let (service, method) = *random.pick(&ASKED);
        let request = Request::post(format!("http://calls.example.com/{service}/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let begun = world.ledger.oldest();
        let answer = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        let response = match within("a call", answer).await {
            Ok(response) => response,
            Err(error) => return world.fault(format!("gRPC: {error}")),
        };
        let text = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok()?.parse::<usize>().ok()
        };
        let seen = match (text("grpc-status"), text("x-server")) {
            (Some(0), Some(server)) => Some(ServedBy::Server(server)),
            (Some(14), None) => Some(ServedBy::Nobody),
            (Some(12), None) => Some(ServedBy::Unknown),
            _ => None,
        };
        let fits = |of: Model<'_>| seen.is_some_and(|it| of.by_call(service, method).contains(&it));
        if !world.some(begun, fits) {
            world.fault(format!(
                "gRPC: {seen:?} to /{service}/{method} from {begun} on: {response:?}"
            ));
        }
        world.count(Speaks::Grpc, begun, seen);
        let _ = response.into_body().collect().await;
    }
}

// ---- The run

/// Nothing ends because a machine is slow, or because one address asks for much.
fn limits() -> ProxyLimits {
    ProxyLimits {
        connect_deadline: Duration::from_mins(10),
        source_connections_per_second: 0,
        access_log: false,
        udp: UdpLimits {
            idle: Duration::from_hours(1),
            source_sessions_per_second: 0,
            ..UdpLimits::default()
        },
        ..ProxyLimits::default()
    }
}

/// Runs a history of so many edits, each with `tries` tries of each kind before the next one; panics with what was
/// wrong. Returns the results of the tries, and how many sessions moved.
pub(crate) async fn run(seed: u64, edits: usize, tries: usize) -> (BTreeMap<String, usize>, usize) {
    let servers = Arc::new(Servers::start().await);
    let of_calls = Reserved::new();
    let mut history = History {
        random: Random::new(seed),
        servers: &servers,
        config: Config::default(),
        what: Vec::new(),
    };
    // The port may turn out to be taken for UDP: then there is another one. The rest of the configuration comes after it.
    let mut rig = Rig::start(&limits(), |port| {
        vec![tcp(port, "bytes"), udp(port, "datagrams")]
    });
    history.begin(rig.address.port(), of_calls.port());
    let (upserts, _) = difference(&Config::default(), &history.config);
    let upserts = upserts.into_iter().map(|(_, resource)| resource).collect();
    assert_eq!(rig.apply(upserts), Vec::<String>::new());
    let mut config = Arc::new(history.config.clone());
    let world = Arc::new(World {
        servers: Arc::clone(&servers),
        ledger: Ledger::new(Arc::clone(&config)),
        address: rig.address,
        of_calls: SocketAddr::from((Ipv4Addr::LOCALHOST, of_calls.port())),
        since: Mutex::default(),
        kinds: Mutex::default(),
        faults: Mutex::default(),
        ended: AtomicBool::new(false),
        moved: AtomicUsize::new(0),
    });
    let mut clients = tokio::task::JoinSet::new();
    for index in 1..=CLIENTS {
        let random = |of: u64| Random::new(seed ^ (index << 32) ^ (of << 48));
        clients.spawn(of_tcp(Arc::clone(&world), random(1)));
        clients.spawn(of_udp(Arc::clone(&world), random(2)));
        clients.spawn(of_grpc(Arc::clone(&world), random(3)));
    }
    let mut whats = Vec::new();
    for _ in 0..edits {
        history.next();
        whats.push(history.what.join(", "));
        let next = Arc::new(history.config.clone());
        let (upserts, removals) = difference(&config, &next);
        let upserts = upserts.into_iter().map(|(_, resource)| resource).collect();
        let number = world.ledger.begin(&next);
        let rejects = rig.change(upserts, removals);
        world.ledger.end(number);
        assert_eq!(rejects, Vec::<String>::new(), "seed {seed}");
        config = next;
        let enough = || {
            let since = world.since.lock();
            let count = |of: Speaks| since.1.get(&of).copied().unwrap_or(0);
            since.0 == number && ALL.into_iter().all(|of| count(of) >= tries)
        };
        let end = Instant::now() + PATIENCE;
        while !enough() && !world.is_over() {
            assert!(
                Instant::now() < end,
                "seed {seed}: {:?}",
                world.since.lock()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if world.is_over() {
            break;
        }
    }
    world.ended.store(true, Ordering::SeqCst);
    while let Some(client) = within("the end of a client", clients.join_next()).await {
        client.unwrap();
    }
    let faults = world.faults.lock();
    let last = whats.len().saturating_sub(4);
    assert!(
        faults.is_empty(),
        "seed {seed}: {:#?}\nThe last edits, from number {} on: {:#?}\n{config:#?}",
        faults.iter().take(3).collect::<Vec<_>>(),
        last + 1,
        &whats[last..],
    );
    let kinds = world.kinds.lock().clone();
    (kinds, world.moved.load(Ordering::SeqCst))
}
