//! Owns the run of datagrams, and the result of sending one.

use std::io;
use std::net::{IpAddr, SocketAddr};

use quinn_udp::EcnCodepoint;

/// A datagram, or several of one sender that the kernel handed over in one piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) sender: SocketAddr,
    /// The address that it was sent to, if the socket reports it.
    pub(crate) local: Option<IpAddr>,
    pub(super) bytes: &'a [u8],
    /// The length of each datagram. Only the last one may be shorter.
    pub(super) stride: usize,
    /// Congestion marks set on the way, which endpoints must see.
    pub(super) ecn: Option<EcnCodepoint>,
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

    /// The number of datagrams. A single empty datagram counts as one.
    pub(crate) fn datagrams(&self) -> u64 {
        if self.is_one() {
            return 1;
        }
        self.bytes.len().div_ceil(self.stride) as u64
    }

    pub(super) fn is_one(&self) -> bool {
        self.stride == 0 || self.bytes.len() <= self.stride
    }
}

/// The result of sending a run.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Why the rest was not sent.
    pub(crate) error: Option<io::Error>,
}

impl Sent {
    /// Adds a datagram.
    pub(super) fn add(&mut self, bytes: usize) {
        self.datagrams += 1;
        self.bytes += bytes as u64;
    }
}
