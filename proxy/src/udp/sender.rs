//! Sends the datagrams of a listener: a run in one piece where the kernel accepts that. It remembers which runs the kernel
//! does not accept.
//!
//! A device or a path may refuse runs in one piece (`UDP_SEGMENT`) with `EINVAL` or `EIO`, and there is no way to ask
//! before. The datagrams of such a run are then sent one by one, so nothing is lost. If the kernel accepts them, it
//! must have refused the run as such, and later runs with datagrams as long go one by one from the start. Shorter ones
//! are still tried. The reason is that older kernels also refuse with `EINVAL` a run whose datagrams are longer than
//! the path's MTU, and a client that sends long datagrams must not keep all others from sending runs.
//!
//! `quinn-udp` also remembers refusals, but too coarsely: after one `EINVAL` of any cause, it sends no more runs, and
//! IPv4 datagrams without congestion marks. Therefore its state is replaced after each refusal.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket as StdUdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use tokio::net::UdpSocket;

use super::run::{Run, Sent};

/// Whether the other end's host reports that nobody listens there.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

/// Whether a socket has no room at the moment.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || is(error, Errno::NOBUFS)
}

/// Whether a datagram is longer than the next hop accepts.
pub(crate) fn is_too_large(error: &io::Error) -> bool {
    is(error, Errno::MSGSIZE)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Sends for a listener on one worker and for the listener's sessions.
#[derive(Debug)]
pub(super) struct Sender {
    state: ArcSwap<UdpSocketState>,
    /// Largest number of datagrams in one piece.
    longest_run: u64,
    /// Runs whose datagrams have this length in bytes, or a greater one, are not tried in one piece.
    refused_from: AtomicUsize,
}

impl Sender {
    /// A sender with the state of the listener's socket.
    pub(super) fn new(state: UdpSocketState) -> Self {
        Self {
            longest_run: state.max_gso_segments() as u64,
            state: ArcSwap::from_pointee(state),
            refused_from: AtomicUsize::new(usize::MAX),
        }
    }

    /// Receives a batch.
    pub(super) fn receive(
        &self,
        socket: &UdpSocket,
        pieces: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.state.load().recv(socket.into(), pieces, metas)
    }

    /// Sends a datagram or a run in one piece.
    pub(super) fn transmit(&self, socket: &UdpSocket, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.load().try_send(socket.into(), transmit);
        if sent.as_ref().is_err_and(is_about_runs)
            && let Ok(state) = fresh_state()
        {
            self.state.store(state.into());
        }
        sent
    }

    /// Whether this system can send runs in one piece at all.
    #[cfg(test)]
    pub(super) fn takes_runs(&self) -> bool {
        self.longest_run > 1
    }

    /// Sends a run in one piece, or each datagram by itself if the kernel does not accept the run. `part` sends either
    /// one datagram, or several of the given length in one piece.
    pub(super) fn send(
        &self,
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
        let mut refused = false;
        if datagrams <= self.longest_run && run.stride < self.refused_from.load(Ordering::Relaxed) {
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
                // Each datagram by itself may still be short enough.
                Err(error) => refused = is_about_runs(&error),
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
        if refused && sent.error.is_none() {
            tracing::debug!(
                stride = run.stride,
                "the kernel does not take runs of datagrams in one piece"
            );
            self.refused_from.fetch_min(run.stride, Ordering::Relaxed);
        }
        sent
    }
}

/// Whether the error may mean that the kernel accepts no runs in one piece. `quinn-udp` assumes that it does.
fn is_about_runs(error: &io::Error) -> bool {
    is(error, Errno::INVAL) || is(error, Errno::IO)
}

/// A state without remembered refusals. It needs no socket of its own, because the options that it sets are set on the
/// listener's socket already.
fn fresh_state() -> io::Result<UdpSocketState> {
    let socket = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    UdpSocketState::new((&socket).into())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn sender() -> Sender {
        let sender = Sender::new(fresh_state().unwrap());
        Sender {
            longest_run: 64,
            ..sender
        }
    }

    fn run(bytes: &[u8], stride: usize) -> Run<'_> {
        Run {
            sender: SocketAddr::from(([192, 0, 2, 1], 53)),
            local: None,
            bytes,
            stride,
            ecn: None,
        }
    }

    /// A kernel that accepts no runs with datagrams of `from` bytes or longer. It keeps what it accepted, and counts
    /// what it refused.
    struct Kernel {
        from: usize,
        error: Errno,
        taken: Vec<Vec<u8>>,
        refused: usize,
    }

    impl Kernel {
        fn refusing(from: usize, error: Errno) -> Self {
            Self {
                from,
                error,
                taken: Vec::new(),
                refused: 0,
            }
        }

        fn part(&mut self, bytes: &[u8], stride: Option<usize>) -> io::Result<()> {
            if stride.is_some_and(|stride| stride >= self.from) {
                self.refused += 1;
                return Err(self.error.into());
            }
            let datagrams = bytes.chunks(stride.unwrap_or(bytes.len()));
            self.taken.extend(datagrams.map(<[u8]>::to_vec));
            Ok(())
        }
    }

    #[test]
    fn runs_that_are_refused_once_go_one_by_one_and_nothing_is_lost() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2500).collect();
        for error in [Errno::INVAL, Errno::IO] {
            let sender = sender();
            let mut kernel = Kernel::refusing(0, error);
            for round in 1..=3 {
                let run = run(&bytes, 1000);
                let sent = sender.send(&run, |bytes, stride| kernel.part(bytes, stride));
                assert!(sent.error.is_none(), "{sent:?}");
                assert_eq!((sent.datagrams, sent.bytes), (3, 2500));
                assert_eq!(kernel.taken.len(), 3 * round);
                assert!(
                    kernel
                        .taken
                        .iter()
                        .rev()
                        .take(3)
                        .rev()
                        .eq(bytes.chunks(1000))
                );
                assert_eq!(kernel.refused, 1, "it is remembered");
            }
        }
    }

    #[test]
    fn datagrams_that_are_too_long_for_a_path_cost_shorter_ones_nothing() {
        let (long, short) = (vec![1; 27_000], vec![2; 3600]);
        let sender = sender();
        let mut kernel = Kernel::refusing(1473, Errno::INVAL);
        for _ in 0..3 {
            let sent = sender.send(&run(&long, 9000), |bytes, stride| {
                kernel.part(bytes, stride)
            });
            assert_eq!(sent.datagrams, 3);
        }
        assert_eq!(kernel.refused, 1);
        let mut in_one_piece = 0;
        let sent = sender.send(&run(&short, 1200), |bytes, stride| {
            in_one_piece += usize::from(stride.is_some());
            kernel.part(bytes, stride)
        });
        assert_eq!((sent.datagrams, in_one_piece), (3, 1));
    }

    #[test]
    fn runs_are_tried_again_after_an_error_of_the_datagrams_themselves() {
        let bytes = [7; 2400];
        let sender = sender();
        let mut tries = 0;
        for _ in 0..2 {
            let sent = sender.send(&run(&bytes, 1200), |_, stride| {
                tries += usize::from(stride.is_some());
                Err(Errno::INVAL.into())
            });
            assert_eq!(sent.datagrams, 0);
            assert!(sent.error.is_some());
        }
        assert_eq!(tries, 2);
        // `EMSGSIZE` comes from a hop and not from the kernel, so the next run may take another path.
        let mut kernel = Kernel::refusing(0, Errno::MSGSIZE);
        for _ in 0..2 {
            let sent = sender.send(&run(&bytes, 1200), |bytes, stride| {
                kernel.part(bytes, stride)
            });
            assert_eq!(sent.datagrams, 2);
        }
        assert_eq!(kernel.refused, 2);
    }
}
