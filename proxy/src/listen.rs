//! Owns listening sockets: it opens one per worker on each bind, and closes those of TCP without a reset. It also
//! handles hosts without IPv6.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tokio::sync::watch;

use crate::apply::Binder;
use crate::bind::{BindKey, Transport};
use crate::itself::OwnSockets;
use crate::plane::DataPlane;
use crate::table::Snapshot;
use crate::{keepalive, udp};

/// How many connections the kernel queues per socket until they are accepted.
pub(crate) const BACKLOG: u16 = 4096;
/// How long clients that have begun to connect have to finish, after new ones are dropped. It is enough for a round
/// trip around the world.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);

/// The listening sockets of one bind, one per worker, until each has taken its own.
pub(crate) struct Listening {
    address: SocketAddr,
    sockets: Mutex<Vec<Option<WorkerSocket>>>,
}

/// The socket of one worker.
pub(crate) enum WorkerSocket {
    Tcp(std::net::TcpListener),
    Udp(std::net::UdpSocket),
}

impl Listening {
    pub(crate) fn take(&self, worker: usize) -> Option<WorkerSocket> {
        self.sockets.lock().get_mut(worker)?.take()
    }
}

/// The binds that are open. A bind that is closed and opened again has another `Arc`.
pub(crate) type Binds = BTreeMap<BindKey, Arc<Listening>>;

/// Opens and closes the sockets of a data plane. Clones share the same sockets.
#[derive(Clone)]
pub struct Sockets {
    plane: Arc<DataPlane>,
    binds: watch::Sender<Binds>,
    /// Binds that this process had before. A socket of its own may still be closing there.
    ours: Arc<Mutex<BTreeSet<BindKey>>>,
    workers: usize,
}

impl Sockets {
    pub(crate) fn new(plane: Arc<DataPlane>, binds: watch::Sender<Binds>, workers: usize) -> Self {
        Self {
            plane,
            binds,
            ours: Arc::default(),
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
    /// Returns when the kernel accepts connections on the bind. The workers take them from the queue.
    fn open(&mut self, bind: &BindKey) -> io::Result<()> {
        if self.binds.borrow().contains_key(bind) {
            return Ok(());
        }
        if self.ours.lock().insert(*bind) {
            // With SO_REUSEPORT, two processes can share a port if both set it. A first bind without it fails if a
            // second proxy is there, which would take half of the connections.
            if let Err(error) = probe(bind) {
                self.ours.lock().remove(bind);
                return Err(error);
            }
        }
        let listening = Arc::new(open(bind, self.workers, self.plane.limits.keepalive)?);
        self.own(bind).insert(listening.address);
        self.binds.send_modify(|binds| {
            binds.insert(*bind, listening);
            self.count(binds);
        });
        Ok(())
    }

    fn settle(&mut self, snapshot: &Snapshot) {
        let wanted: BTreeSet<&BindKey> = snapshot.binds().collect();
        self.binds.send_if_modified(|binds| {
            let before = binds.len();
            binds.retain(|bind, sockets| {
                let keeps = wanted.contains(bind);
                if !keeps {
                    self.own(bind).remove(sockets.address);
                }
                keeps
            });
            self.count(binds);
            binds.len() < before
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
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind_one(bind.transport, address, true)?;
        // If the port is 0, the kernel chooses one for the first socket, and the others share it.
        let bound = socket.local_addr()?.as_socket();
        address = bound.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        sockets.push(Some(match bind.transport {
            Transport::Tcp => {
                socket.listen(BACKLOG.into())?;
                // On Linux, accepted sockets inherit both of these settings.
                socket.set_tcp_nodelay(true)?;
                keepalive::set_keepalive(&socket, keepalive)?;
                WorkerSocket::Tcp(socket.into())
            }
            Transport::Udp => WorkerSocket::Udp(socket.into()),
        }));
    }
    Ok(Listening {
        address,
        sockets: Mutex::new(sockets),
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

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
    async fn who_has_begun_finishes_and_who_has_not_does_not_begin() {
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
}
