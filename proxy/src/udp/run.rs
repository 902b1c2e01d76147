//! Owns what a run of datagrams is, and what became of it when it was sent.

use std::io;
use std::net::{IpAddr, SocketAddr};

use quinn_udp::EcnCodepoint;

/// A datagram, or a run of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) sender: SocketAddr,
    /// The address that it was sent to, where the socket tells.
    pub(crate) local: Option<IpAddr>,
    pub(super) bytes: &'a [u8],
    /// The length of each datagram but the last, which may be shorter.
    pub(super) stride: usize,
    /// Marks of congestion on the way, which endpoints have to see.
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

    /// How many datagrams these are. One without bytes is one.
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

/// What became of a run.
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
