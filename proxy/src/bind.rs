//! The sockets that listeners share.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A socket that listeners share: one address and port of one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindKey {
    /// `::` binds dual stack.
    pub address: IpAddr,
    /// Never 0 in configuration; tests bind 0 to be given a free port.
    pub port: u16,
    /// A port of TCP and one of UDP are two, whatever their numbers.
    pub transport: Transport,
}

impl BindKey {
    /// A port of TCP.
    #[must_use]
    pub const fn tcp(address: IpAddr, port: u16) -> Self {
        Self {
            address,
            port,
            transport: Transport::Tcp,
        }
    }

    /// A port of UDP.
    #[must_use]
    pub const fn udp(address: IpAddr, port: u16) -> Self {
        Self {
            address,
            port,
            transport: Transport::Udp,
        }
    }

    /// What the socket is bound to.
    #[must_use]
    pub const fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for BindKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket_address().fmt(f)?;
        f.write_str(match self.transport {
            Transport::Tcp => "",
            Transport::Udp => "/udp",
        })
    }
}

/// What carries the bytes of a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}
