//! The sockets that listeners share.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A socket that listeners share: one address and port of one transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindKey {
    /// Address. `::` binds dual stack.
    pub address: IpAddr,
    /// Port. It is never 0 in configuration. Tests bind 0 to get a free port.
    pub port: u16,
    /// Transport. Ports of TCP and UDP are different binds, even with the same number.
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

    /// The address to which the socket is bound.
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

/// The transport of a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}
