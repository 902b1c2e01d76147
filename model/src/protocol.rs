//! Owns ports, transports and the protocols of listeners and backends.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

/// A port of a listener or backend.
pub type Port = NonZeroU16;

/// A port number with its transport. The same number is a different port for TCP and for UDP.
pub type TransportPort = (Port, Transport);

/// The protocol of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP
    Http,
    /// HTTPS
    Https,
    /// TLS
    Tls,
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// A protocol this release does not know.
    Other(Arc<str>),
}

impl Protocol {
    /// The text the API uses.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Other(text) => text,
        }
    }

    /// Reads the API's text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match text {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            other => Self::Other(other.into()),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Groups of protocols. Listeners can share a port only if their protocols are in the same group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// HTTP.
    Http,
    /// HTTPS and TLS. Their connections are distinguished by server name.
    Tls,
    /// TCP and UDP, which carry no names.
    Raw,
}

/// The transport of a protocol. Ports of TCP and UDP with the same number are independent of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The text the API uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Reads the API's text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }
}

impl Protocol {
    /// Its transport; `None` for protocols this release does not know.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::Http | Self::Https | Self::Tls | Self::Tcp => Some(Transport::Tcp),
            Self::Udp => Some(Transport::Udp),
            Self::Other(_) => None,
        }
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> Group {
        match self {
            Self::Http => Group::Http,
            Self::Https | Self::Tls => Group::Tls,
            Self::Tcp | Self::Udp | Self::Other(_) => Group::Raw,
        }
    }
}
