//! Owns the loop of a UDP listener on one worker. It receives what clients send, finds or begins their sessions, and
//! forwards it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::SessionEnd;
use super::run::Run;
use super::session::{Carrying, Chosen, Session};
use super::sessions::{SessionKey, Sessions};
use super::socket::{BoundSocket, ListenSocket, SessionSocket};
use crate::bind::BindKey;
use crate::cut::unless_cut;
use crate::health::EndpointFailure;
use crate::plane::DataPlane;
use crate::table::{Generation, Pick, Selection, Snapshot};
use crate::udp_places::{DropReason, Permit};

/// Largest number of endpoints that are tried for one session.
const ATTEMPTS: usize = 3;

/// Serves a bind on the present worker until `stop`, which also ends its sessions.
pub(crate) async fn serve(
    socket: BoundSocket,
    bind: BindKey,
    plane: Arc<DataPlane>,
    stop: CancellationToken,
) {
    match ListenSocket::new(socket) {
        Ok(socket) => UdpListener::new(socket, bind, plane).run(&stop).await,
        Err(error) => tracing::error!(%bind, %error, "the proxy cannot listen for datagrams"),
    }
}

/// A session in the table.
struct Handle {
    session: Arc<Session>,
    task: AbortHandle,
    /// The last configuration in which its endpoint was looked up.
    looked: Generation,
}

impl Handle {
    fn end(&self, end: SessionEnd) {
        self.session.end(end);
        self.task.abort();
    }
}

/// The entry of a session in the table. The session's task owns it, so that the entry goes when the task ends, even if
/// the task panics.
struct TableEntry<S> {
    sessions: Arc<Mutex<Sessions<S>>>,
    key: SessionKey,
    number: u64,
}

impl<S> Drop for TableEntry<S> {
    fn drop(&mut self) {
        let session = self.sessions.lock().remove(&self.key, self.number);
        // The lock on the table is released here. Dropping the session may take other locks and write a log line.
        drop(session);
    }
}

struct UdpListener {
    plane: Arc<DataPlane>,
    bind: BindKey,
    socket: Arc<ListenSocket>,
    /// Sessions remove themselves when they end, on the same thread.
    sessions: Arc<Mutex<Sessions<Handle>>>,
}

impl UdpListener {
    fn new(socket: ListenSocket, bind: BindKey, plane: Arc<DataPlane>) -> Self {
        Self {
            plane,
            bind,
            socket: Arc::new(socket),
            sessions: Arc::default(),
        }
    }

    async fn run(&self, stop: &CancellationToken) {
        loop {
            let readable = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                readable = self.socket.readable() => readable,
            };
            // The snapshot is loaded only once a datagram is here. So a datagram that was sent after an edit never
            // meets the configuration before it.
            let mut snapshot = None;
            let received = readable.and_then(|()| {
                self.socket.receive(|run| {
                    let snapshot = snapshot.get_or_insert_with(|| self.plane.snapshot.load_full());
                    self.take(snapshot, &run);
                })
            });
            drop(snapshot);
            match received {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => {
                    if self.plane.may_warn(Instant::now()) {
                        tracing::warn!(bind = %self.bind, %error, "cannot receive datagrams");
                    }
                    // The pause only prevents a busy loop: the fault is not the clients'.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            // Handle one batch at a time, no matter how much anybody sends.
            tokio::task::yield_now().await;
        }
        let all: Vec<Handle> = self.sessions.lock().clear().collect();
        for handle in all {
            handle.end(SessionEnd::NoListener);
        }
    }

    /// Forwards what a client sent to its backend, or drops it.
    fn take(&self, snapshot: &Snapshot, run: &Run<'_>) {
        let key = SessionKey {
            client: run.sender,
            local: run.local,
        };
        // Try twice: if the endpoint refused earlier datagrams, it will not take this one either, but another one may.
        for _ in 0..2 {
            let session = match self.known(snapshot, &key) {
                Some(session) => Ok(session),
                None => self.begin(snapshot, key),
            };
            let forwarded = match session {
                Ok(session) => session.forward(run),
                Err(reason) => return self.dropped(reason, run),
            };
            let Err(end) = forwarded else { return };
            self.end(&key, end);
        }
        self.dropped(DropReason::BackendRefused, run);
    }

    fn dropped(&self, reason: DropReason, run: &Run<'_>) {
        tracing::debug!(bind = %self.bind, client = %run.sender, reason = reason.reason(), "a datagram is dropped");
        self.plane
            .metrics
            .udp_dropped(reason.reason(), run.datagrams());
    }

    /// The session of a client, unless its endpoint has gone from the configuration.
    fn known(&self, snapshot: &Snapshot, key: &SessionKey) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        let handle = sessions.get_mut(key)?;
        let generation = snapshot.generation();
        if handle.looked != generation && !handle.session.stands(snapshot) {
            drop(sessions);
            self.end(key, SessionEnd::EndpointGone);
            return None;
        }
        handle.looked = generation;
        let session = Arc::clone(&handle.session);
        sessions.confirm(key);
        Some(session)
    }

    fn end(&self, key: &SessionKey, end: SessionEnd) {
        let handle = self.sessions.lock().take(key);
        if let Some(handle) = handle {
            handle.end(end);
        }
    }

    /// Begins a session for a client that has none.
    fn begin(&self, snapshot: &Snapshot, key: SessionKey) -> Result<Arc<Session>, DropReason> {
        let plane = &self.plane;
        if plane.is_closing() {
            return Err(DropReason::Draining);
        }
        let selection = snapshot.select_by_port(&self.bind);
        let selection = selection.map_err(|_| DropReason::NoListener)?;
        if selection.route.is_none() {
            return Err(DropReason::NoRoute);
        }
        plane.may_begin_session((key.source(), self.bind))?;
        // Both sources are forged: no client sends from port 0, and a listener of this proxy sends only to addresses
        // that sent to it before. A session for the second could make two listeners answer each other for ever.
        if key.client.port() == 0 || plane.own_datagram_sockets.contain(key.client) {
            return Err(DropReason::InvalidSource);
        }
        // Choose before asking for a place: a datagram that is dropped anyway must displace no session.
        let chosen = self.choose(snapshot, &selection)?;
        let permit = self.permit(&key, &selection)?;
        let (chosen, socket) = self.connect(snapshot, &selection, chosen)?;
        let session = Session::new(
            plane,
            &self.socket,
            (key, self.bind),
            chosen,
            socket,
            permit,
        );
        let session = Arc::new(session);
        self.keep(key, Arc::clone(&session), snapshot.generation());
        Ok(session)
    }

    /// Spawns the task of a session, and puts the session into the table.
    fn keep(&self, key: SessionKey, session: Arc<Session>, looked: Generation) {
        let number = self.sessions.lock().next_number();
        // The lock is not held here, because dropping the task takes it.
        let task = tokio::spawn({
            let session = Arc::clone(&session);
            let entry = TableEntry {
                sessions: Arc::clone(&self.sessions),
                key,
                number,
            };
            async move {
                let carried = unless_cut(Carrying::new(Arc::clone(&session), looked)).await;
                session.end(carried.unwrap_or(SessionEnd::Drained));
                drop(entry);
            }
        });
        let handle = Handle {
            session,
            task: task.abort_handle(),
            looked,
        };
        let before = self.sessions.lock().insert(key, handle);
        // `before` is `None`, because the client had no session.
        drop(before);
    }

    /// Chooses a backend by weight and one of its endpoints.
    fn choose(&self, snapshot: &Snapshot, selection: &Selection) -> Result<Chosen, DropReason> {
        let route = selection.route.as_ref().ok_or(DropReason::NoRoute)?;
        let (endpoint, backend) = match route.pick(snapshot, self.plane.random()) {
            Pick::Endpoint(endpoint, backend) => (endpoint, backend),
            Pick::InvalidBackend => return Err(DropReason::InvalidBackend),
            Pick::NoEndpoints | Pick::NoWeight => return Err(DropReason::NoEndpoints),
        };
        if self.plane.own_datagram_sockets.contain(endpoint) {
            tracing::debug!(%endpoint, "a backend is this proxy itself");
            return Err(DropReason::BackendLoop);
        }
        Ok(Chosen {
            listener: Arc::clone(&selection.listener),
            route: Arc::clone(route),
            backend,
            endpoint,
        })
    }

    /// Takes a place for a session. If none is free, another session may have to give its place up.
    fn permit(&self, key: &SessionKey, selection: &Selection) -> Result<Permit, DropReason> {
        let source = (key.source(), self.bind);
        let take = || self.plane.session_permit(source, &selection.account);
        take().or_else(|refused| {
            let whose = self.plane.displacement(source);
            let displaced =
                whose.and_then(|whose| self.sessions.lock().displace(key.source(), whose));
            let Some(handle) = displaced else {
                return Err(refused);
            };
            handle.end(SessionEnd::Displaced);
            take()
        })
    }

    /// Opens a socket to the chosen endpoint, or to another one if that one is unreachable.
    fn connect(
        &self,
        snapshot: &Snapshot,
        selection: &Selection,
        mut chosen: Chosen,
    ) -> Result<(Chosen, SessionSocket), DropReason> {
        for attempt in 1..=ATTEMPTS {
            let error = match SessionSocket::connect(chosen.endpoint) {
                Ok(socket) => return Ok((chosen, socket)),
                Err(error) => error,
            };
            let (endpoint, reason) = (chosen.endpoint, DropReason::BackendConnectFailed.reason());
            tracing::debug!(%endpoint, %error, "cannot open a socket to a backend");
            self.plane.metrics.connect_failed(reason);
            if !is_unreachable(&error) {
                // Descriptors or ports are used up, which would be so for every endpoint.
                if self.plane.may_warn(Instant::now()) {
                    tracing::warn!(bind = %self.bind, %error, "cannot open sockets for UDP sessions");
                }
                break;
            }
            let failure = EndpointFailure::Connect;
            self.plane
                .endpoint_failed(&chosen.backend, endpoint, failure, reason);
            if attempt < ATTEMPTS {
                chosen = self.choose(snapshot, selection)?;
            }
        }
        Err(DropReason::BackendConnectFailed)
    }
}

/// Whether the host has no route to an endpoint.
fn is_unreachable(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::apply::{NoSockets, State};
    use crate::limits::ProxyLimits;
    use crate::udp::socket::BATCH;
    use vestibule_model::endpoint::EndpointRules;
    use vestibule_stream::proto::{self, resource::Resource as Wire};
    use vestibule_stream::{Change, Resource};

    const BIND: BindKey = BindKey::udp(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

    fn listener(plane: &Arc<DataPlane>) -> (UdpListener, SocketAddr) {
        let address = "127.0.0.1:0".parse().unwrap();
        let socket = crate::udp::bind(address, false).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let socket = BoundSocket::new(socket, &Arc::default());
        let socket = ListenSocket::new(socket).unwrap();
        (UdpListener::new(socket, BIND, Arc::clone(plane)), address)
    }

    fn plane() -> Arc<DataPlane> {
        let limits = ProxyLimits {
            access_log: false,
            ..ProxyLimits::default()
        };
        Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits))
    }

    /// Puts a `UDPRoute` with one endpoint in force.
    fn configure(plane: &DataPlane, endpoint: SocketAddr) {
        let resource = |name: &str, resource| Resource {
            name: name.into(),
            resource: Some(resource),
        };
        let all = vec![
            resource(
                "Gateway/team-a/edge/dns",
                Wire::Listener(proto::Listener {
                    gateway: "team-a/edge".into(),
                    tenant: "team-a".into(),
                    bind: Some(proto::Bind {
                        address: "127.0.0.1".into(),
                        port: 53,
                        transport: proto::Transport::Udp.into(),
                    }),
                    protocol: Some(proto::listener::Protocol::Udp(proto::UdpListener {})),
                    ..Default::default()
                }),
            ),
            resource(
                "team-a/dns",
                Wire::UdpRoute(proto::TcpRoute {
                    tenant: "team-a".into(),
                    created: 0,
                    listeners: vec!["Gateway/team-a/edge/dns".into()],
                    backends: vec![proto::WeightedBackend {
                        backend: "team-a/dns:53/udp".into(),
                        weight: 1,
                    }],
                }),
            ),
            resource(
                "team-a/dns:53/udp",
                Wire::Backend(proto::Backend {
                    endpoints: vec![proto::Endpoint {
                        address: endpoint.ip().to_string(),
                        port: endpoint.port().into(),
                    }],
                    ..Default::default()
                }),
            ),
        ];
        let change = Change {
            generation: vestibule_stream::Generation::new(1, 1),
            full: false,
            upserts: all.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals: Vec::new(),
        };
        let rules = EndpointRules::with_loopback();
        let mut state = State::new(Arc::clone(&plane.snapshot), rules).unwrap();
        assert_eq!(state.apply(&change, &mut NoSockets), []);
        assert_eq!(state.counts().udp_routes, 1);
        assert_eq!(state.dump().udp_routes.len(), 1);
    }

    #[tokio::test]
    async fn a_session_whose_task_panics_leaves_the_table() {
        let key = SessionKey {
            client: "127.0.0.1:1".parse().unwrap(),
            local: None,
        };
        let sessions = Arc::new(Mutex::new(Sessions::default()));
        let number = sessions.lock().next_number();
        let entry = TableEntry {
            sessions: Arc::clone(&sessions),
            key,
            number,
        };
        sessions.lock().insert(key, ());
        let task = tokio::spawn(async move {
            let _entry = entry;
            panic!("on purpose");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert!(sessions.lock().get_mut(&key).is_none());
        // An entry whose session ended leaves a later session of the same client in place.
        let entry = TableEntry {
            sessions: Arc::clone(&sessions),
            key,
            number,
        };
        sessions.lock().insert(key, ());
        drop(entry);
        assert!(sessions.lock().get_mut(&key).is_some());
    }

    #[tokio::test]
    async fn a_flood_lets_others_of_the_worker_have_their_turn() {
        const DATAGRAMS: u64 = 100;
        let plane = plane();
        let (listener, address) = listener(&plane);
        let flood = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..DATAGRAMS {
            flood.send_to(b"x", address).unwrap();
        }
        let stop = CancellationToken::new();
        let mut running = pin!(listener.run(&stop));
        let (mut handled, mut most) = (0, 0);
        // The listener drops them at once, because there is no configuration.
        let end = Instant::now() + Duration::from_mins(1);
        while handled < DATAGRAMS {
            assert!(Instant::now() < end, "{handled} of {DATAGRAMS} came");
            poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx).is_pending())).await;
            let now = plane.metrics.udp_dropped_count("NoListener");
            most = most.max(now - handled);
            handled = now;
            tokio::task::yield_now().await;
        }
        assert_eq!(most, BATCH as u64);
    }

    /// An endpoint can send to all of its sessions at one time, and never stop.
    #[tokio::test]
    async fn sessions_of_a_namespace_have_their_turns_together() {
        const SESSIONS: u8 = 200;
        const EACH: u64 = 16;
        let driver = tokio::spawn(crate::gate::keep());
        let plane = plane();
        let backend = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        configure(&plane, backend.local_addr().unwrap());
        let (listener, _) = listener(&plane);
        let snapshot = plane.snapshot.load_full();
        let sessions: Vec<SocketAddr> = (1..=SESSIONS)
            .map(|last| {
                let client = SocketAddr::from(([127, 1, 0, last], 9));
                listener.take(&snapshot, &Run::one(client, b"a question"));
                backend.recv_from(&mut [0; 16]).unwrap().1
            })
            .collect();
        let all = u64::from(SESSIONS) * EACH;
        // What is moved first is paid for when there is more to move.
        for wave in 1..=2 {
            for session in &sessions {
                for _ in 0..EACH {
                    backend.send_to(b"an answer", session).unwrap();
                }
            }
            let (mut moved, mut most) = (plane.metrics.udp_downstream.get(), 0);
            let end = Instant::now() + Duration::from_mins(1);
            while moved < wave * all {
                assert!(Instant::now() < end, "{moved} in wave {wave}");
                tokio::task::yield_now().await;
                let now = plane.metrics.udp_downstream.get();
                most = most.max(now - moved);
                moved = now;
            }
            // Two turns, of 64 units each, for 8 datagrams each.
            assert!(wave == 1 || most <= 1024, "{most} at once");
        }
        driver.abort();
    }

    /// Some protocols, such as syslog, have no answers by which an endpoint could show that it is back.
    #[tokio::test]
    async fn an_endpoint_that_does_not_refuse_is_avoided_no_longer() {
        let plane = plane();
        let backend = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        configure(&plane, backend.local_addr().unwrap());
        let (listener, _) = listener(&plane);
        let snapshot = plane.snapshot.load_full();
        let route = snapshot.select_by_port(&BIND).unwrap().route.unwrap();
        let Pick::Endpoint(endpoint, avoided) = route.pick(&snapshot, 0) else {
            panic!("no endpoint");
        };
        plane.endpoint_failed(
            &avoided,
            endpoint,
            EndpointFailure::Connect,
            "BackendRefused",
        );
        let client = "192.0.2.1:514".parse().unwrap();
        for _ in 0..3 {
            listener.take(&snapshot, &Run::one(client, b"a line"));
        }
        assert_eq!(plane.metrics.endpoints_taken_back.get(), 0);
        for _ in 0..2 {
            crate::lifetime::advance();
        }
        listener.take(&snapshot, &Run::one(client, b"another line"));
        assert_eq!(plane.metrics.endpoints_taken_back.get(), 1);
        assert_eq!(plane.metrics.udp_upstream.get(), 4);
    }

    #[tokio::test]
    async fn a_session_ends_when_it_was_silent_for_its_time_and_not_before() {
        let plane = plane();
        let backend = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        configure(&plane, backend.local_addr().unwrap());
        let (listener, _) = listener(&plane);
        let snapshot = plane.snapshot.load_full();
        let idle = crate::lifetime::in_ticks(plane.limits.udp.idle);
        let turn = async || {
            crate::lifetime::advance();
            // Every woken task gets its turn, and so does every task that it wakes in turn.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        let [early, late]: [SocketAddr; 2] =
            ["192.0.2.1:1", "192.0.2.2:1"].map(|client| client.parse().unwrap());
        listener.take(&snapshot, &Run::one(late, b"1"));
        turn().await;
        listener.take(&snapshot, &Run::one(early, b"1"));
        turn().await;
        // The session that began first is heard again, so it ends last.
        listener.take(&snapshot, &Run::one(late, b"2"));
        for _ in 1..idle {
            assert_eq!(plane.active(), 2);
            turn().await;
        }
        assert_eq!(plane.active(), 1);
        turn().await;
        assert_eq!(plane.active(), 0);
        assert_eq!(plane.metrics.udp_closed_count("IdleTimeout"), 2);
    }

    #[tokio::test]
    async fn a_source_that_no_client_can_have_gets_no_session() {
        let plane = plane();
        let backend = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        configure(&plane, backend.local_addr().unwrap());
        let (listener, _) = listener(&plane);
        // This source looks as if another listener of this proxy had sent the datagram.
        let own: SocketAddr = "127.0.0.1:5353".parse().unwrap();
        plane.own_datagram_sockets.insert(own);
        let snapshot = plane.snapshot.load_full();
        let begin = |client: SocketAddr| {
            let key = SessionKey {
                client,
                local: None,
            };
            listener.begin(&snapshot, key).map(|_| ())
        };
        assert_eq!(begin(own), Err(DropReason::InvalidSource));
        let mapped = "[::ffff:127.0.0.1]:5353".parse().unwrap();
        assert_eq!(begin(mapped), Err(DropReason::InvalidSource));
        let no_port = "192.0.2.1:0".parse().unwrap();
        assert_eq!(begin(no_port), Err(DropReason::InvalidSource));
        assert_eq!(begin("192.0.2.1:5353".parse().unwrap()), Ok(()));
        assert_eq!(plane.active(), 1);
    }
}
