//! Owns the sockets of datagrams: how they are opened, and how many datagrams move with one system call.
//!
//! `recvmmsg` takes datagrams of many clients at a time, GRO has the kernel hand over a run of datagrams of one client as
//! one piece, and GSO sends such a run on in one piece. All three come through `quinn-udp`. A run keeps its boundaries:
//! what was several datagrams leaves as several.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll, ready};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Pieces that are taken with one system call. Each is a datagram, or a run of up to 64 of one sender.
pub(super) const BATCH: usize = 16;
/// No datagram and no run is longer.
const LONGEST: usize = 65_536;
/// What the kernel may queue for a listener until the worker takes it, if the system allows as much.
const RECEIVE_BUFFER: usize = 1024 * 1024;

thread_local! {
    /// Where datagrams are while they pass: a worker has one, whatever the number of its sessions.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A datagram, or a run of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) sender: SocketAddr,
    /// The address that it was sent to, where the socket tells.
    pub(crate) local: Option<IpAddr>,
    bytes: &'a [u8],
    /// The length of each datagram but the last, which may be shorter.
    stride: usize,
    /// Marks of congestion on the way, which endpoints have to see.
    ecn: Option<EcnCodepoint>,
}

impl Run<'_> {
    /// One datagram.
    #[cfg(test)]
    pub(super) fn one(sender: SocketAddr, bytes: &[u8]) -> Run<'_> {
        Run {
            sender,
            local: None,
            bytes,
            stride: bytes.len(),
            ecn: None,
        }
    }

    /// How many datagrams these are. One without bytes is one.
    pub(crate) fn datagrams(&self) -> u64 {
        if self.is_one() {
            return 1;
        }
        self.bytes.len().div_ceil(self.stride) as u64
    }

    fn is_one(&self) -> bool {
        self.stride == 0 || self.bytes.len() <= self.stride
    }
}

/// What became of a run.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Why the rest was not sent.
    pub(crate) error: Option<io::Error>,
}

impl Sent {
    fn add(&mut self, bytes: usize) {
        self.datagrams += 1;
        self.bytes += bytes as u64;
    }
}

/// Whether the other end's host says that nobody listens there.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

/// Whether a socket has no room just now.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || is(error, Errno::NOBUFS)
}

/// Whether a datagram is longer than the next hop takes.
pub(crate) fn is_too_large(error: &io::Error) -> bool {
    is(error, Errno::MSGSIZE)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// A socket for datagrams that is bound to `address`, for workers to share if `reuse_port`. `::` takes IPv4 too.
pub(crate) fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    // Not SO_REUSEADDR: for UDP it lets anybody share the port who sets it too.
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The socket of a listener on one worker.
#[derive(Debug)]
pub(crate) struct ListenSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Answers have to say which of the host's addresses they are from.
    is_wildcard: bool,
}

impl ListenSocket {
    /// Only on a runtime.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        fragment(&socket)?;
        Ok(Self {
            is_wildcard: socket.local_addr()?.ip().is_unspecified(),
            socket: UdpSocket::from_std(socket)?,
            state,
        })
    }

    /// Returns when there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Takes a batch of what clients sent. Returns how many pieces that were.
    pub(crate) fn receive(&self, each: impl FnMut(Run<'_>)) -> io::Result<usize> {
        let is_wildcard = self.is_wildcard;
        receive(&self.state, &self.socket, each, |meta| {
            meta.dst_ip.filter(|_| is_wildcard)
        })
    }

    /// Sends a run to a client, from the address that the client sends to.
    pub(crate) fn send(&self, client: SocketAddr, local: Option<IpAddr>, run: &Run<'_>) -> Sent {
        send(&self.state, run, |bytes, segment_size| {
            let transmit = Transmit {
                destination: client,
                ecn: run.ecn,
                contents: bytes,
                segment_size,
                src_ip: local,
            };
            self.state.try_send((&self.socket).into(), &transmit)
        })
    }
}

/// Undoes what `quinn-udp` sets because QUIC looks for the largest datagram that passes: others rely on fragments.
fn fragment(socket: &std::net::UdpSocket) -> io::Result<()> {
    let is_v6 = socket.local_addr()?.is_ipv6();
    // Of a socket of both families as well.
    set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT)?;
    if is_v6 {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(socket, sockopt::Ipv6DontFrag, &false)?;
    }
    Ok(())
}

/// The socket of a session, which sends to and hears one endpoint alone, from a port that no other session has.
#[derive(Debug)]
pub(crate) struct SessionSocket {
    socket: UdpSocket,
    endpoint: SocketAddr,
}

impl SessionSocket {
    /// Only on a runtime. Nothing is sent.
    pub(crate) fn connect(endpoint: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(endpoint);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        // Without it marks of congestion get lost, and nothing else.
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

    /// Has the kernel hand over runs. It costs a system call, which most sessions are too short for.
    pub(crate) fn expect_runs(&self) {
        let _ = setsockopt(&self.socket, sockopt::UdpGroSegment, &true);
    }

    /// Takes a batch of what the endpoint sent, by the state of the listener's socket.
    pub(crate) fn poll_receive(
        &self,
        listener: &ListenSocket,
        cx: &mut Context<'_>,
        mut each: impl FnMut(Run<'_>),
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            match receive(&listener.state, &self.socket, &mut each, |_| None) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received.map(|_| ())),
            }
        }
    }

    /// Sends a run to the endpoint.
    pub(crate) fn send(&self, listener: &ListenSocket, run: &Run<'_>) -> Sent {
        send(&listener.state, run, |bytes, segment_size| {
            if run.ecn.is_none() && segment_size.is_none() {
                // With an address the kernel would look for the way anew.
                return SockRef::from(&self.socket).send(bytes).map(|_| ());
            }
            let transmit = Transmit {
                destination: self.endpoint,
                ecn: run.ecn,
                contents: bytes,
                segment_size,
                src_ip: None,
            };
            listener.state.try_send((&self.socket).into(), &transmit)
        })
    }
}

fn receive(
    state: &UdpSocketState,
    socket: &UdpSocket,
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
        let count = socket.try_io(Interest::READABLE, || {
            state.recv(socket.into(), &mut pieces, &mut metas)
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

/// Sends a run in one piece, or each datagram by itself where that cannot be.
fn send(
    state: &UdpSocketState,
    run: &Run<'_>,
    mut part: impl FnMut(&[u8], Option<usize>) -> io::Result<()>,
) -> Sent {
    let mut sent = Sent::default();
    if run.is_one() {
        match part(run.bytes, None) {
            Ok(()) => sent.add(run.bytes.len()),
            Err(error) => sent.error = Some(error),
        }
        return sent;
    }
    let datagrams = run.datagrams();
    if datagrams <= state.max_gso_segments() as u64 {
        match part(run.bytes, Some(run.stride)) {
            Ok(()) => {
                sent.datagrams = datagrams;
                sent.bytes = run.bytes.len() as u64;
                return sent;
            }
            Err(error) if is_busy(&error) || is_refused(&error) => {
                sent.error = Some(error);
                return sent;
            }
            // A device or a path that cannot: the datagrams themselves may be short enough.
            Err(_) => {}
        }
    }
    for datagram in run.bytes.chunks(run.stride) {
        match part(datagram, None) {
            Ok(()) => sent.add(datagram.len()),
            Err(error) => {
                let ends = is_busy(&error) || is_refused(&error);
                sent.error = Some(error);
                if ends {
                    break;
                }
            }
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn listen(address: &str) -> (ListenSocket, SocketAddr) {
        let socket = bind(address.parse().unwrap(), false).unwrap();
        let socket = ListenSocket::new(socket.into()).unwrap();
        let address = socket.socket.local_addr().unwrap();
        (socket, address)
    }

    async fn next(socket: &ListenSocket) -> Vec<(SocketAddr, Option<IpAddr>, Vec<u8>, u64)> {
        loop {
            let wait = socket.readable();
            let wait = tokio::time::timeout(std::time::Duration::from_mins(1), wait);
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
        let patience = Some(std::time::Duration::from_mins(1));
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
    async fn what_no_hop_takes_in_one_piece_is_fragmented_rather_than_refused() {
        // As loopback takes 64 KiB, the option is all that can be looked at.
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(socket) = bind(address.parse().unwrap(), false) else {
                // A host without IPv6.
                continue;
            };
            let socket = ListenSocket::new(socket.into()).unwrap();
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
}
