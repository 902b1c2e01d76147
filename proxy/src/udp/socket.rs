//! Owns the sockets of datagrams: how they are opened, and how many datagrams move with one system call.
//!
//! `recvmmsg` receives datagrams of many clients at a time. With GRO the kernel hands over a run of datagrams of one
//! client as one piece, and with GSO such a run is sent in one piece. All three come through `quinn-udp`. A run keeps
//! its boundaries: several datagrams leave as several.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::{Condvar, Mutex};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::run::{Run, Sent};
use super::sender::Sender;

/// Number of pieces that one system call receives. Each is a datagram, or a run of up to 64 of one sender.
pub(super) const BATCH: usize = 16;
/// Length in bytes that no datagram and no run exceeds.
const LONGEST: usize = 65_536;
/// Number of bytes that the kernel may queue for a listener until the worker takes them, if the system allows as much.
const RECEIVE_BUFFER: usize = 1024 * 1024;

thread_local! {
    /// The buffer that datagrams pass through. A worker has one, whatever the number of its sessions.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Opens a socket for datagrams and binds it to `address`. With `reuse_port`, workers can share the address. `::`
/// accepts IPv4 too.
///
/// A shared socket receives nothing before [`let_in`]. The kernel chooses the socket for a client by the number of
/// sockets on the address. While sockets are still being added, a client would move to another worker, which has no
/// session for it.
pub(crate) fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    // `SO_REUSEADDR` is wrong here: for UDP, anybody who sets it too could share the port.
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    if reuse_port {
        // If the system has no filters, the first datagrams of a client may begin an extra session. That is harmless.
        let _ = socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]); // return 0
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Lets a shared socket receive datagrams. Call it when all sockets that share the address are bound.
pub(crate) fn let_in(socket: &Socket) -> io::Result<()> {
    match socket.detach_filter() {
        // No filter was attached.
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
        detached => detached,
    }
}

/// The socket of a listener before a worker serves it.
pub(crate) struct BoundSocket {
    pub(super) socket: std::net::UdpSocket,
    pub(super) open: OpenSocket,
}

impl BoundSocket {
    /// One of the sockets that `all` counts.
    pub(crate) fn new(socket: Socket, all: &Arc<OpenSockets>) -> Self {
        Self {
            socket: socket.into(),
            open: OpenSocket::new(all),
        }
    }
}

/// Counts the open sockets of a bind, whichever worker has them.
#[derive(Debug, Default)]
pub(crate) struct OpenSockets {
    count: Mutex<usize>,
    closed: Condvar,
}

impl OpenSockets {
    /// Waits until all of them are closed. Returns false if that takes longer than `patience`.
    pub(crate) fn wait_until_closed(&self, patience: Duration) -> bool {
        let mut count = self.count.lock();
        let waited = self
            .closed
            .wait_while_for(&mut count, |count| *count > 0, patience);
        !waited.timed_out()
    }
}

/// A count of one in [`OpenSockets`]. It is held beside a socket, and dropped after it.
#[derive(Debug)]
pub(super) struct OpenSocket(Arc<OpenSockets>);

impl OpenSocket {
    fn new(all: &Arc<OpenSockets>) -> Self {
        *all.count.lock() += 1;
        Self(Arc::clone(all))
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count = count.saturating_sub(1);
        self.0.closed.notify_all();
    }
}

/// The socket of a listener on one worker.
#[derive(Debug)]
pub(crate) struct ListenSocket {
    socket: UdpSocket,
    sender: Sender,
    /// Whether it is bound to every address of the host, so that answers have to name the one they come from.
    is_wildcard: bool,
    /// This field comes after the socket, so that the socket is closed before this counts it as closed.
    _open: OpenSocket,
}

impl ListenSocket {
    /// Must be called on a runtime.
    pub(crate) fn new(bound: BoundSocket) -> io::Result<Self> {
        let BoundSocket { socket, open } = bound;
        let sender = Sender::new(UdpSocketState::new((&socket).into())?);
        fragment(&socket)?;
        Ok(Self {
            is_wildcard: socket.local_addr()?.ip().is_unspecified(),
            socket: UdpSocket::from_std(socket)?,
            sender,
            _open: open,
        })
    }

    /// Waits until there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives a batch of what clients sent. Returns the number of pieces in it.
    pub(crate) fn receive(&self, each: impl FnMut(Run<'_>)) -> io::Result<usize> {
        let is_wildcard = self.is_wildcard;
        receive(&self.sender, &self.socket, BATCH, each, |meta| {
            meta.dst_ip.filter(|_| is_wildcard)
        })
    }

    /// Sends a run to a client, from the address that the client sends to.
    pub(crate) fn send(&self, client: SocketAddr, local: Option<IpAddr>, run: &Run<'_>) -> Sent {
        self.sender.send(run, |bytes, segment_size| {
            let transmit = Transmit {
                destination: client,
                ecn: run.ecn,
                contents: bytes,
                segment_size,
                src_ip: local,
            };
            self.sender.transmit(&self.socket, &transmit)
        })
    }
}

/// Undoes an option of `quinn-udp`. It forbids fragments because QUIC probes for the largest datagram that passes, but
/// other protocols rely on fragments.
fn fragment(socket: &std::net::UdpSocket) -> io::Result<()> {
    let is_v6 = socket.local_addr()?.is_ipv6();
    // A socket of both families needs this for IPv4 as well.
    set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT)?;
    if is_v6 {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(socket, sockopt::Ipv6DontFrag, &false)?;
    }
    Ok(())
}

/// The socket of a session. It sends to one endpoint and hears only that one, from a port that no other session has.
#[derive(Debug)]
pub(crate) struct SessionSocket {
    socket: UdpSocket,
    endpoint: SocketAddr,
}

impl SessionSocket {
    /// Must be called on a runtime. It sends nothing.
    pub(crate) fn connect(endpoint: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(endpoint);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        // If this fails, only congestion marks get lost.
        let _ = if endpoint.is_ipv4() {
            socket.set_recv_tos_v4(true)
        } else {
            socket.set_recv_tclass_v6(true)
        };
        socket.connect(&endpoint.into())?;
        Ok(Self {
            socket: UdpSocket::from_std(socket.into())?,
            endpoint,
        })
    }

    /// Asks the kernel to hand over runs. This costs a system call, which most sessions are too short for.
    pub(crate) fn expect_runs(&self) {
        let _ = setsockopt(&self.socket, sockopt::UdpGroSegment, &true);
    }

    /// Receives a batch of what the endpoint sent, with the state of the listener's socket.
    pub(crate) fn poll_receive(
        &self,
        listener: &ListenSocket,
        cx: &mut Context<'_>,
        most: usize,
        mut each: impl FnMut(Run<'_>),
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            match receive(&listener.sender, &self.socket, most, &mut each, |_| None) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received.map(|_| ())),
            }
        }
    }

    /// Sends a run to the endpoint.
    pub(crate) fn send(&self, listener: &ListenSocket, run: &Run<'_>) -> Sent {
        listener.sender.send(run, |bytes, segment_size| {
            if run.ecn.is_none() && segment_size.is_none() {
                // With a destination address, the kernel would look up the route for each datagram.
                return SockRef::from(&self.socket).send(bytes).map(|_| ());
            }
            let transmit = Transmit {
                destination: self.endpoint,
                ecn: run.ecn,
                contents: bytes,
                segment_size,
                src_ip: None,
            };
            listener.sender.transmit(&self.socket, &transmit)
        })
    }
}

fn receive(
    sender: &Sender,
    socket: &UdpSocket,
    most: usize,
    mut each: impl FnMut(Run<'_>),
    local: impl Fn(&RecvMeta) -> Option<IpAddr>,
) -> io::Result<usize> {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            *buffer = vec![0; BATCH * LONGEST];
        }
        let mut metas = [RecvMeta::default(); BATCH];
        let mut pieces = buffer.chunks_exact_mut(LONGEST);
        let mut pieces: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(pieces.next().unwrap_or_default()));
        let most = most.min(BATCH);
        let count = socket.try_io(Interest::READABLE, || {
            let pieces = pieces.get_mut(..most).unwrap_or_default();
            let metas = metas.get_mut(..most).unwrap_or_default();
            sender.receive(socket, pieces, metas)
        })?;
        for (meta, piece) in metas.iter().zip(&pieces).take(count) {
            each(Run {
                sender: meta.addr,
                local: local(meta),
                bytes: piece.get(..meta.len).unwrap_or_default(),
                stride: meta.stride,
                ecn: meta.ecn,
            });
        }
        Ok(count)
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use quinn_udp::EcnCodepoint;

    use super::*;

    fn listen(address: &str) -> (ListenSocket, SocketAddr) {
        let socket = bind(address.parse().unwrap(), false).unwrap();
        let socket = ListenSocket::new(BoundSocket::new(socket, &Arc::default())).unwrap();
        let address = socket.socket.local_addr().unwrap();
        (socket, address)
    }

    async fn next(socket: &ListenSocket) -> Vec<(SocketAddr, Option<IpAddr>, Vec<u8>, u64)> {
        loop {
            let wait = socket.readable();
            let wait = tokio::time::timeout(Duration::from_mins(1), wait);
            wait.await.expect("a datagram").unwrap();
            let mut all = Vec::new();
            let received = socket.receive(|run| {
                all.push((run.sender, run.local, run.bytes.to_vec(), run.datagrams()));
            });
            match received {
                Ok(_) => return all,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    #[tokio::test]
    async fn a_run_leaves_as_the_datagrams_that_it_was() {
        let (from, _) = listen("127.0.0.1:0");
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let patience = Some(Duration::from_mins(1));
        receiver.set_read_timeout(patience).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(2500).collect();
        for stride in [1000, 1250, 2500, 25] {
            let run = Run {
                sender: receiver.local_addr().unwrap(),
                local: None,
                bytes: &bytes,
                stride,
                ecn: None,
            };
            let sent = from.send(run.sender, None, &run);
            assert!(sent.error.is_none(), "{sent:?}");
            assert_eq!(sent.datagrams, run.datagrams());
            assert_eq!(sent.bytes, 2500);
            for expected in bytes.chunks(stride) {
                let mut got = [0; 3000];
                let length = receiver.recv(&mut got).unwrap();
                assert_eq!(got[..length], *expected);
            }
        }
        let empty = Run {
            sender: receiver.local_addr().unwrap(),
            local: None,
            bytes: &[],
            stride: 0,
            ecn: None,
        };
        assert_eq!(from.send(empty.sender, None, &empty).datagrams, 1);
        assert_eq!(receiver.recv(&mut [0; 9]).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_run_that_the_kernel_calls_invalid_costs_others_neither_runs_nor_marks() {
        let (from, _) = listen("0.0.0.0:0");
        let (to, client) = listen("127.0.0.1:0");
        let bytes = [3; 3000];
        let run = Run {
            sender: client,
            local: None,
            bytes: &bytes,
            stride: 1000,
            ecn: Some(EcnCodepoint::Ce),
        };
        let one = Run {
            bytes: &bytes[..1000],
            ..run
        };
        // A multicast address cannot be a source.
        let nobody = Some(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)));
        for run in [&one, &run] {
            let sent = from.send(client, nobody, run);
            let error = sent.error.expect("an address that nobody sends from");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        let takes_runs = from.sender.takes_runs();
        for (run, datagrams) in [(&one, 1), (&run, 3)] {
            let sent = from.send(client, None, run);
            assert!(sent.error.is_none(), "{sent:?}");
            let mut came = Vec::new();
            while came.iter().sum::<u64>() < datagrams {
                let wait = tokio::time::timeout(Duration::from_mins(1), to.readable());
                wait.await.expect("a datagram").unwrap();
                let _ = to.receive(|run| {
                    assert_eq!(run.ecn, Some(EcnCodepoint::Ce));
                    came.push(run.datagrams());
                });
            }
            let expected = if takes_runs {
                vec![datagrams]
            } else {
                came.clone()
            };
            assert_eq!(came, expected, "in one piece, as it was sent");
        }
    }

    #[tokio::test]
    async fn datagrams_too_long_for_a_hop_are_fragmented_rather_than_refused() {
        // Loopback takes 64 KiB in one piece, so the test can only read the option.
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(socket) = bind(address.parse().unwrap(), false) else {
                // The host has no IPv6.
                continue;
            };
            let socket = ListenSocket::new(BoundSocket::new(socket, &Arc::default())).unwrap();
            let discovery = rustix::net::sockopt::ip_mtu_discover(&socket.socket).unwrap();
            assert_eq!(discovery, Ipv4PathMtuDiscovery::WANT);
        }
    }

    #[tokio::test]
    async fn only_a_socket_for_any_address_says_which_one_was_meant() {
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (one, address) = listen("127.0.0.1:0");
        client.send_to(b"x", address).unwrap();
        let got = next(&one).await;
        let sender = client.local_addr().unwrap();
        assert_eq!(got, [(sender, None, b"x".to_vec(), 1)]);
        let (any, address) = listen("0.0.0.0:0");
        let meant = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 7));
        client.send_to(b"y", (meant, address.port())).unwrap();
        let got = next(&any).await;
        assert_eq!(got, [(sender, Some(meant), b"y".to_vec(), 1)]);
    }

    #[test]
    fn a_client_is_one_sockets_from_the_first_datagram_that_is_taken() {
        let first = bind("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let address = first.local_addr().unwrap().as_socket().unwrap();
        let clients: Vec<_> = (0..50)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let send = || {
            for client in &clients {
                client.send_to(b"x", address).unwrap();
            }
        };
        // The number of sockets differs at each call.
        send();
        let mut sockets = vec![first];
        for _ in 0..3 {
            sockets.push(bind(address, true).unwrap());
            send();
        }
        for socket in &sockets {
            let_in(socket).unwrap();
        }
        send();
        send();
        let taken: Vec<Vec<SocketAddr>> = sockets
            .into_iter()
            .map(|socket| {
                let socket = std::net::UdpSocket::from(socket);
                let mut buffer = [0; 9];
                let next = || Some(socket.recv_from(&mut buffer).ok()?.1);
                std::iter::from_fn(next).collect()
            })
            .collect();
        for client in &clients {
            let client = client.local_addr().unwrap();
            let mut of_sockets: Vec<usize> = taken
                .iter()
                .map(|all| all.iter().filter(|sender| **sender == client).count())
                .collect();
            of_sockets.sort_unstable();
            // Nothing arrived from before `let_in`, and everything after it arrived at one socket.
            assert_eq!(of_sockets, [0, 0, 0, 2]);
        }
    }

    #[tokio::test]
    async fn sockets_count_as_closed_when_the_last_one_is() {
        let all = Arc::new(OpenSockets::default());
        assert!(all.wait_until_closed(Duration::ZERO));
        let bound = || BoundSocket::new(bind("127.0.0.1:0".parse().unwrap(), true).unwrap(), &all);
        let (unserved, served) = (bound(), ListenSocket::new(bound()).unwrap());
        assert!(!all.wait_until_closed(Duration::ZERO));
        drop(unserved);
        assert!(!all.wait_until_closed(Duration::ZERO));
        let address = served.socket.local_addr().unwrap();
        let waiting = std::thread::spawn(move || {
            assert!(all.wait_until_closed(Duration::from_mins(1)));
            // The port is free now for a socket that does not share it.
            bind(address, false).map(|_| ())
        });
        drop(served);
        waiting.join().unwrap().unwrap();
    }
}
