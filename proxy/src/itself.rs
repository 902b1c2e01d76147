//! Owns the list of this proxy's own sockets, so that no connection to a backend leads back into the proxy.
//!
//! If a passthrough connection came back, it would be a new connection with the same ClientHello. It would be sent to
//! the same backend again, in a loop, until its tenant has no connection left. HTTP has `CDN-Loop` against loops, but a
//! stream of bytes cannot be marked. The admin endpoint is one of these sockets too, because no backend may be there.
//!
//! The proxy can recognize only addresses of its own host. The operator leaves out addresses that are translated on the
//! way, such as that of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use parking_lot::RwLock;

/// The sockets that this proxy listens on.
#[derive(Debug, Default)]
pub(crate) struct OwnSockets(RwLock<BTreeMap<u16, BTreeSet<IpAddr>>>);

impl OwnSockets {
    pub(crate) fn insert(&self, socket: SocketAddr) {
        let mut ports = self.0.write();
        ports.entry(socket.port()).or_default().insert(socket.ip());
    }

    pub(crate) fn remove(&self, socket: SocketAddr) {
        let mut ports = self.0.write();
        if let Some(addresses) = ports.get_mut(&socket.port()) {
            addresses.remove(&socket.ip());
            if addresses.is_empty() {
                ports.remove(&socket.port());
            }
        }
    }

    /// Whether a connection to `endpoint` would be one to this proxy.
    pub(crate) fn contain(&self, endpoint: SocketAddr) -> bool {
        let ip = endpoint.ip().to_canonical();
        let any = {
            let ports = self.0.read();
            // This is nearly always the answer: no listener has the port of the backend.
            let Some(addresses) = ports.get(&endpoint.port()) else {
                return false;
            };
            if addresses.iter().any(|own| own.to_canonical() == ip) {
                return true;
            }
            addresses.iter().any(IpAddr::is_unspecified)
        };
        any && is_of_this_host(ip)
    }
}

/// Whether an address belongs to this host (or pod). If it does, the kernel chooses the same address as the source of a
/// connection. Nothing is sent to find that out.
fn is_of_this_host(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Connecting a datagram socket only looks for a route. The port does not matter, as long as it is not 0.
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn own_sockets_are_told_by_address_and_port() {
        let own = OwnSockets::default();
        own.insert(at("127.0.0.1:443"));
        assert!(own.contain(at("127.0.0.1:443")));
        assert!(own.contain(at("[::ffff:127.0.0.1]:443")));
        for other in [
            "127.0.0.1:444",
            "127.0.0.2:443",
            "[::1]:443",
            "192.0.2.1:443",
        ] {
            assert!(!own.contain(at(other)), "{other}");
        }
        own.remove(at("127.0.0.1:443"));
        assert!(!own.contain(at("127.0.0.1:443")));
        assert!(own.0.read().is_empty());
    }

    #[test]
    fn a_socket_for_any_address_has_every_address_of_this_host() {
        let own = OwnSockets::default();
        for any in ["0.0.0.0:443", "[::]:8443"] {
            own.insert(at(any));
        }
        for address in ["127.0.0.1:443", "127.1.2.3:8443", "[::1]:8443"] {
            assert!(own.contain(at(address)), "{address}");
        }
        // For documentation: no host has these.
        for address in ["192.0.2.1:443", "[2001:db8::1]:8443", "127.0.0.1:80"] {
            assert!(!own.contain(at(address)), "{address}");
        }
        // Whatever address this host has besides loopback.
        let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect("192.0.2.1:9")?;
            socket.local_addr()
        });
        if let Ok(own_address) = route {
            assert!(own.contain(SocketAddr::new(own_address.ip(), 443)));
            assert!(!own.contain(SocketAddr::new(own_address.ip(), 80)));
        }
    }
}
