//! Owns listening sockets: it opens one per worker on each bind, and closes those of TCP without a reset. It also
//! handles hosts without IPv6.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tokio::sync::watch;
#[cfg(test)]
use vestibule_stream::{
    Change, Generation, Resource,
    proto::{self, resource::Resource as Wire},
};

use crate::apply::Binder;
use crate::bind::{BindKey, Transport};
use crate::itself::OwnSockets;
use crate::plane::DataPlane;
use crate::table::Snapshot;
use crate::{acknowledgement, keepalive, udp};

/// How many connections the kernel queues per socket until they are accepted.
pub(crate) const BACKLOG: u16 = 4096;
/// How long clients that have begun to connect have to finish, after new ones are dropped. It is enough for a round
/// trip around the world.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);

/// How long the binds that one change opens again wait, together, for the workers to close the sockets that they had.
/// Workers do it at once, unless their thread has no turn.
const CLOSING: Duration = Duration::from_secs(1);

/// The listening sockets of one bind, one per worker, until each has taken its own.
pub(crate) struct Listening {
    address: SocketAddr,
    sockets: Mutex<Vec<Option<WorkerSocket>>>,
    /// Those for datagrams that are open, also after they were taken.
    open: Arc<udp::OpenSockets>,
}

/// The socket of one worker.
pub(crate) enum WorkerSocket {
    Tcp(std::net::TcpListener),
    Udp(udp::BoundSocket),
}

impl Listening {
    pub(crate) fn take(&self, worker: usize) -> Option<WorkerSocket> {
        self.sockets.lock().get_mut(worker)?.take()
    }

    /// Closes the sockets for datagrams that no worker has taken. Those for connections are closed in order.
    fn close(&self) {
        for socket in &mut *self.sockets.lock() {
            socket.take_if(|socket| matches!(socket, WorkerSocket::Udp(_)));
        }
    }
}

/// The binds that are open. A bind that is closed and opened again has another `Arc`.
pub(crate) type Binds = BTreeMap<BindKey, Arc<Listening>>;

/// Opens and closes the sockets of a data plane. Clones share the same sockets.
#[derive(Clone)]
pub struct Sockets {
    plane: Arc<DataPlane>,
    binds: watch::Sender<Binds>,
    /// Those of a change that is about to be in force. The workers get them afterwards: what came first of all would
    /// meet a configuration without its listener.
    opened: Arc<Mutex<Binds>>,
    /// Binds that this process had, with their last sockets: one of its own may still be closing.
    ours: Arc<Mutex<BTreeMap<BindKey, Arc<udp::OpenSockets>>>>,
    /// When the change that is being made has waited for long enough.
    patience: Option<Instant>,
    workers: usize,
}

impl Sockets {
    pub(crate) fn new(plane: Arc<DataPlane>, binds: watch::Sender<Binds>, workers: usize) -> Self {
        Self {
            plane,
            binds,
            opened: Arc::default(),
            ours: Arc::default(),
            patience: None,
            workers,
        }
    }

    /// The local addresses by bind. They differ from the bind if its port is 0.
    #[must_use]
    pub fn bound(&self) -> BTreeMap<BindKey, SocketAddr> {
        self.binds
            .borrow()
            .iter()
            .map(|(bind, sockets)| (*bind, sockets.address))
            .collect()
    }

    /// The sockets that a change has opened, before the workers get them.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> Binds {
        self.opened.lock().clone()
    }

    /// The list of the proxy's own sockets to which a bind belongs.
    fn own(&self, bind: &BindKey) -> &OwnSockets {
        match bind.transport {
            Transport::Tcp => &self.plane.own_sockets,
            Transport::Udp => &self.plane.own_datagram_sockets,
        }
    }

    fn count(&self, binds: &Binds) {
        self.plane
            .metrics
            .binds
            .set(i64::try_from(binds.len()).unwrap_or(i64::MAX));
    }
}

impl Binder for Sockets {
    /// Returns once the kernel takes connections or datagrams for the bind. They wait there for the workers, which get
    /// the sockets with [`Self::settle`].
    fn open(&mut self, bind: &BindKey) -> io::Result<()> {
        let mut opened = self.opened.lock();
        if opened.contains_key(bind) || self.binds.borrow().contains_key(bind) {
            return Ok(());
        }
        let mut ours = self.ours.lock();
        let now = Instant::now();
        let patience = *self.patience.get_or_insert(now + CLOSING);
        let patience = patience.saturating_duration_since(now);
        match ours.get(bind) {
            // Another process may share a port if both say SO_REUSEPORT. Not saying it finds a
            // second proxy, which would take half of the connections.
            None => probe(bind)?,
            // The kernel would give them a part of the clients, and that of nobody when they close.
            Some(before) if !before.wait_until_closed(patience) => {
                tracing::warn!(%bind, "a port is opened again while workers have sockets of it");
            }
            Some(_) => {}
        }
        let listening = Arc::new(open(bind, self.workers, self.plane.limits.keepalive)?);
        ours.insert(*bind, Arc::clone(&listening.open));
        self.own(bind).insert(listening.address);
        opened.insert(*bind, listening);
        Ok(())
    }

    fn settle(&mut self, snapshot: &Snapshot) {
        self.patience = None;
        let wanted: BTreeSet<&BindKey> = snapshot.binds().collect();
        let opened = std::mem::take(&mut *self.opened.lock());
        self.binds.send_if_modified(|binds| {
            let (before, new) = (binds.len(), opened.len());
            binds.extend(opened);
            binds.retain(|bind, sockets| {
                let keeps = wanted.contains(bind);
                if !keeps {
                    self.own(bind).remove(sockets.address);
                    sockets.close();
                }
                keeps
            });
            self.count(binds);
            new > 0 || binds.len() < before
        });
    }
}

/// Checks that no other process has the bind.
fn probe(bind: &BindKey) -> io::Result<()> {
    let socket = bind_one(bind.transport, bind.socket_address(), false)?;
    match bind.transport {
        Transport::Tcp => socket.listen(1),
        Transport::Udp => Ok(()),
    }
}

/// Opens one socket per worker on a bind.
fn open(bind: &BindKey, count: usize, keepalive: Duration) -> io::Result<Listening> {
    let mut address = bind.socket_address();
    let mut bound = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind_one(bind.transport, address, true)?;
        // A port of 0 is chosen once and then shared.
        let chosen = socket.local_addr()?.as_socket();
        address = chosen.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        bound.push(socket);
    }
    let open = Arc::default();
    let mut sockets = Vec::with_capacity(count);
    for socket in bound {
        sockets.push(Some(match bind.transport {
            Transport::Tcp => {
                socket.listen(BACKLOG.into())?;
                // On Linux, accepted sockets inherit all of these settings.
                socket.set_tcp_nodelay(true)?;
                keepalive::set_keepalive(&socket, keepalive)?;
                acknowledgement::with_reply(&socket)?;
                WorkerSocket::Tcp(socket.into())
            }
            Transport::Udp => {
                udp::let_in(&socket)?;
                WorkerSocket::Udp(udp::BoundSocket::new(socket, &open))
            }
        }));
    }
    Ok(Listening {
        address,
        sockets: Mutex::new(sockets),
        open,
    })
}

/// A listening socket outside of the data plane.
pub(crate) fn listener(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let socket = bind_one(Transport::Tcp, address, false)?;
    socket.listen(128)?;
    tokio::net::TcpListener::from_std(socket.into())
}

/// A socket that is bound to `address`. `::` accepts IPv4 as well, and becomes `0.0.0.0` on a host without IPv6.
fn bind_one(transport: Transport, address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let bind = |address| match transport {
        Transport::Tcp => try_bind(address, reuse_port),
        Transport::Udp => udp::bind(address, reuse_port),
    };
    match bind(address) {
        Err(error) => match without_ipv6(address, &error) {
            Some(address) => bind(address),
            None => Err(error),
        },
        bound => bound,
    }
}

fn try_bind(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    // Without this, connections of a former process in TIME_WAIT would block the port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The address to bind instead of `address`, if `error` shows that the host has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let missing = [
        Errno::AFNOSUPPORT,
        Errno::ADDRNOTAVAIL,
        Errno::PROTONOSUPPORT,
    ];
    let missing = missing.map(|errno| Some(errno.raw_os_error()));
    let any = address.ip() == Ipv6Addr::UNSPECIFIED;
    (any && missing.contains(&error.raw_os_error()))
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

/// Lets the kernel drop the first packet of new connections to a listening socket, as if the network had lost it. A
/// client that has already begun can finish, and is then in the queue. Without this, a connection could become open
/// between the last look at the queue and the close of the socket. It would be reset although its client was told that
/// it is open. (`net.ipv4.tcp_migrate_req` helps only if another socket of the port stays open.)
pub(crate) fn refuse_new(socket: &SockRef<'_>) -> io::Result<()> {
    // This is a classic BPF program on the TCP header. It cuts a SYN without ACK to 0 bytes, and passes everything
    // else.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    socket.attach_filter(&[
        SockFilter::new(0x30, 0, 0, FLAGS),     // load the byte
        SockFilter::new(0x54, 0, 0, SYN | ACK), // and
        SockFilter::new(0x15, 0, 1, SYN),       // if equal
        SockFilter::new(0x06, 0, 0, 0),         // return 0
        SockFilter::new(0x06, 0, 0, u32::MAX),  // return everything
    ])
}

/// Applies a listener on a port that is free.
#[cfg(test)]
pub(crate) fn listen_anywhere(
    state: &mut crate::apply::State,
    binder: &mut impl Binder,
    transport: proto::Transport,
    protocol: &proto::listener::Protocol,
) {
    // Somebody else may take the port that was free: then there is another one.
    for counter in 1..20 {
        let local = "127.0.0.1:0".parse().unwrap();
        let of = match transport {
            proto::Transport::Udp => Transport::Udp,
            _ => Transport::Tcp,
        };
        let free = bind_one(of, local, false).unwrap();
        let port = free.local_addr().unwrap().as_socket().unwrap().port();
        drop(free);
        let listener = Resource {
            name: "Gateway/team-a/edge/listener".into(),
            resource: Some(Wire::Listener(proto::Listener {
                gateway: "team-a/edge".into(),
                tenant: "team-a".into(),
                bind: Some(proto::Bind {
                    address: "127.0.0.1".into(),
                    port: port.into(),
                    transport: transport.into(),
                }),
                protocol: Some(protocol.clone()),
                ..Default::default()
            })),
        };
        let change = Change {
            generation: Generation::new(1, counter),
            full: false,
            upserts: [(listener.key().unwrap(), listener)].into(),
            removals: Vec::new(),
        };
        if state.apply(&change, binder).is_empty() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use vestibule_model::endpoint::EndpointRules;

    use super::*;
    use crate::apply::State;
    use crate::limits::ProxyLimits;

    #[test]
    fn only_any_address_falls_back_and_only_without_ipv6() {
        let errno = |errno: Errno| io::Error::from(errno);
        let any = "[::]:443".parse().unwrap();
        let fallen = without_ipv6(any, &errno(Errno::AFNOSUPPORT));
        assert_eq!(fallen, Some("0.0.0.0:443".parse().unwrap()));
        assert_eq!(without_ipv6(any, &errno(Errno::ADDRINUSE)), None);
        let one = "[::1]:443".parse().unwrap();
        assert_eq!(without_ipv6(one, &errno(Errno::AFNOSUPPORT)), None);
        let v4 = "0.0.0.0:443".parse().unwrap();
        assert_eq!(without_ipv6(v4, &errno(Errno::ADDRNOTAVAIL)), None);
    }

    #[tokio::test]
    async fn connection_that_has_begun_finishes_and_one_that_has_not_does_not_begin() {
        let listener = listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = tokio::net::TcpStream::connect(address).await.unwrap();
        refuse_new(&SockRef::from(&listener)).unwrap();
        let late = tokio::spawn(tokio::net::TcpStream::connect(address));
        let (mut taken, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, queued.local_addr().unwrap());
        // The filter is inherited, and harmless there.
        queued.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 5];
        taken.read_exact(&mut bytes).await.unwrap();
        assert!(!late.is_finished());
        // Its next try finds nobody.
        drop(listener);
        assert!(late.await.unwrap().is_err());
    }

    /// Looks at what the workers have when a change is in force, and before they are told.
    struct Watched {
        sockets: Sockets,
        workers: watch::Receiver<Binds>,
        opened: Vec<BindKey>,
    }

    impl Binder for Watched {
        fn open(&mut self, bind: &BindKey) -> io::Result<()> {
            self.sockets.open(bind)?;
            self.opened.push(*bind);
            Ok(())
        }

        fn settle(&mut self, snapshot: &Snapshot) {
            assert!(!self.workers.has_changed().unwrap());
            let published = self.sockets.plane.snapshot.load_full();
            for bind in &self.opened {
                assert!(published.has_bind(bind) && snapshot.has_bind(bind));
            }
            self.sockets.settle(snapshot);
        }
    }

    /// What comes first of all is served like what comes later.
    #[test]
    fn workers_get_the_sockets_of_a_bind_when_its_configuration_is_in_force() {
        let limits = ProxyLimits::default();
        let plane = Arc::new(DataPlane::new(Arc::default(), Arc::default(), limits));
        let mut state = State::new(Arc::clone(&plane.snapshot), EndpointRules::default()).unwrap();
        let (binds, workers) = watch::channel(Binds::new());
        let mut watched = Watched {
            sockets: Sockets::new(plane, binds, 2),
            workers,
            opened: Vec::new(),
        };
        let protocol = proto::listener::Protocol::Udp(proto::UdpListener {});
        listen_anywhere(&mut state, &mut watched, proto::Transport::Udp, &protocol);
        assert!(watched.workers.has_changed().unwrap());
        let binds = watched.workers.borrow_and_update().clone();
        assert!(binds.keys().eq(&watched.opened) && binds.len() == 1);
        let (bind, listening) = binds.first_key_value().unwrap();
        assert!(listening.take(0).is_some());
        // Whoever takes it away closes what nobody has taken.
        watched.sockets.settle(&Snapshot::default());
        assert!(listening.take(1).is_none());
        assert!(!watched.sockets.bound().contains_key(bind));
        assert!(listening.open.wait_until_closed(Duration::ZERO));
    }
}
