//! Owns the PROXY headers with which connections to backends begin, if the backends expect them (versions 1 and 2 of the
//! PROXY protocol).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use vestibule_model::hostname::Hostname;
use vestibule_model::send_proxy::HeaderVersion;

use super::V2;

/// Version 2 with the command LOCAL: the connection is one of the sender's own.
const LOCAL: u8 = 0x20;
/// Version 2 with the command PROXY: the connection is made for a client.
const PROXY: u8 = 0x21;
/// No addresses.
const UNSPECIFIED: u8 = 0x00;
/// TCP over IPv4.
const TCP4: u8 = 0x11;
/// TCP over IPv6.
const TCP6: u8 = 0x21;
/// `PP2_TYPE_AUTHORITY`: the name that the client asked for.
const AUTHORITY: u8 = 0x02;
/// Version 1 for a connection whose client is not told.
const UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";

/// The connection of a client, as a backend hears of it. Nothing else that a client chooses is in a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientConnection<'a> {
    /// The client.
    pub(crate) client: SocketAddr,
    /// The address that it connected to.
    pub(crate) destination: SocketAddr,
    /// The server name in its ClientHello.
    pub(crate) server_name: Option<&'a Hostname>,
}

/// The header of a connection to a backend. `client` is the connection whose bytes it carries; `None` if it carries
/// those of several clients, or none of a client's. Then the header says that the connection is the proxy's own.
pub(crate) fn header(version: HeaderVersion, client: Option<&ClientConnection<'_>>) -> Vec<u8> {
    match (version, client) {
        (HeaderVersion::V1, client) => client.and_then(v1).unwrap_or_else(|| UNKNOWN.to_vec()),
        (HeaderVersion::V2, None) => v2(LOCAL, UNSPECIFIED, &[]),
        (HeaderVersion::V2, Some(client)) => v2_of(client),
    }
}

/// A line of version 1. It is `None` if the addresses are of two families, for which version 1 has no form.
fn v1(of: &ClientConnection<'_>) -> Option<Vec<u8>> {
    let (source, destination) = (of.client.ip(), of.destination.ip());
    let (source, destination) = (source.to_canonical(), destination.to_canonical());
    let family = match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => "TCP4",
        (IpAddr::V6(_), IpAddr::V6(_)) => "TCP6",
        _ => return None,
    };
    let (port, other_port) = (of.client.port(), of.destination.port());
    Some(format!("PROXY {family} {source} {destination} {port} {other_port}\r\n").into_bytes())
}

fn v2_of(of: &ClientConnection<'_>) -> Vec<u8> {
    let (source, destination) = (of.client.ip(), of.destination.ip());
    let mut body = Vec::new();
    let family = match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            body.extend(source.octets());
            body.extend(destination.octets());
            TCP4
        }
        // A header has one family, in which an IPv4 address has a form too.
        (source, destination) => {
            body.extend(in_v6(source).octets());
            body.extend(in_v6(destination).octets());
            TCP6
        }
    };
    body.extend(of.client.port().to_be_bytes());
    body.extend(of.destination.port().to_be_bytes());
    let name = of.server_name.map(|name| name.as_str().as_bytes());
    let length = name.and_then(|name| u16::try_from(name.len()).ok());
    if let (Some(name), Some(length)) = (name, length) {
        body.push(AUTHORITY);
        body.extend(length.to_be_bytes());
        body.extend(name);
    }
    v2(PROXY, family, &body)
}

fn in_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    // Addresses take 36 bytes at most, and a name 256, so the length never saturates.
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    [V2, &[command, family], &length.to_be_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use ppp::{v1, v2};
    use proptest::prelude::*;

    use super::super::{Header, Progress, Source, read};
    use super::HeaderVersion::{V1, V2};
    use super::*;

    fn connection(client: &str, destination: &str) -> ClientConnection<'static> {
        ClientConnection {
            client: client.parse().unwrap(),
            destination: destination.parse().unwrap(),
            server_name: None,
        }
    }

    #[test]
    fn version_1_names_the_client_in_one_line() {
        for (client, destination, line) in [
            (
                "192.0.2.1:5678",
                "198.51.100.2:443",
                "PROXY TCP4 192.0.2.1 198.51.100.2 5678 443\r\n",
            ),
            (
                "[::ffff:192.0.2.1]:5678",
                "[::ffff:198.51.100.2]:443",
                "PROXY TCP4 192.0.2.1 198.51.100.2 5678 443\r\n",
            ),
            (
                "[2001:db8::1]:65535",
                "[2001:db8::2]:1",
                "PROXY TCP6 2001:db8::1 2001:db8::2 65535 1\r\n",
            ),
            ("192.0.2.1:5678", "[2001:db8::2]:443", "PROXY UNKNOWN\r\n"),
            (
                "[2001:db8::1]:5678",
                "198.51.100.2:443",
                "PROXY UNKNOWN\r\n",
            ),
        ] {
            let connection = connection(client, destination);
            let written = header(V1, Some(&connection));
            assert_eq!(String::from_utf8(written).unwrap(), line);
        }
        assert_eq!(header(V1, None), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_has_one_family_for_both_addresses() {
        let v4 = connection("192.0.2.1:5678", "198.51.100.2:443");
        assert_eq!(
            header(V2, Some(&v4)),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\x16\x2e\x01\xbb"
        );
        let mixed = connection("192.0.2.1:5678", "[2001:db8::2]:443");
        let written = header(V2, Some(&mixed));
        let read = v2::Header::try_from(&written[..]).unwrap();
        let v2::Addresses::IPv6(of) = read.addresses else {
            panic!("{read:?}");
        };
        assert_eq!(of.source_address.to_string(), "::ffff:192.0.2.1");
        assert_eq!(of.destination_address.to_string(), "2001:db8::2");
        assert_eq!((of.source_port, of.destination_port), (5678, 443));
        assert_eq!(header(V2, None), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }

    /// The longest name there is.
    #[test]
    fn version_2_names_the_server() {
        let label = "a".repeat(61);
        let name = [&*label, &label, &label, &label, "examp"].join(".");
        assert_eq!(name.len(), 253);
        let name = Hostname::parse(&name).unwrap();
        let connection = ClientConnection {
            server_name: Some(&name),
            ..connection("[2001:db8::1]:5678", "[2001:db8::2]:443")
        };
        let written = header(V2, Some(&connection));
        let read = v2::Header::try_from(&written[..]).unwrap();
        assert_eq!(read.len(), written.len());
        let values: Vec<_> = read.tlvs().map(Result::unwrap).collect();
        assert_eq!(values.len(), 1);
        assert_eq!(values[0].kind, u8::from(v2::Type::Authority));
        assert_eq!(*values[0].value, *name.as_str().as_bytes());
        // Version 1 has no room for it.
        let line = header(V1, Some(&connection));
        assert!(!line.windows(5).any(|part| part == b"aaaaa"));
    }

    fn an_address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from),
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        /// `ppp` reads both versions, and reads the addresses that were written. So does the reader of this proxy.
        #[test]
        fn others_read_what_is_written(client in an_address(), destination in an_address()) {
            let connection = ClientConnection { client, destination, server_name: None };
            let canonical = |of: SocketAddr| SocketAddr::new(of.ip().to_canonical(), of.port());
            let (client, destination) = (canonical(client), canonical(destination));

            let line = header(V1, Some(&connection));
            let read_v1 = v1::Header::try_from(&line[..]).unwrap();
            let of_one_family = client.is_ipv4() == destination.is_ipv4();
            let expected = match (client, destination) {
                (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                    v1::Addresses::new_tcp4(*from.ip(), *to.ip(), from.port(), to.port())
                }
                (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                    v1::Addresses::new_tcp6(*from.ip(), *to.ip(), from.port(), to.port())
                }
                _ => v1::Addresses::Unknown,
            };
            prop_assert_eq!(read_v1.addresses, expected);

            let binary = header(V2, Some(&connection));
            let read_v2 = v2::Header::try_from(&binary[..]).unwrap();
            prop_assert_eq!(read_v2.command, v2::Command::Proxy);
            prop_assert_eq!(read_v2.protocol, v2::Protocol::Stream);
            prop_assert_eq!(read_v2.len(), binary.len());
            let told = match read_v2.addresses {
                v2::Addresses::IPv4(of) => (
                    SocketAddr::from((of.source_address, of.source_port)),
                    SocketAddr::from((of.destination_address, of.destination_port)),
                ),
                v2::Addresses::IPv6(of) => (
                    canonical((of.source_address, of.source_port).into()),
                    canonical((of.destination_address, of.destination_port).into()),
                ),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(told, (client, destination));

            let named = Source::Client { client, destination };
            let of_line = if of_one_family { named } else { Source::Peer };
            for (version, bytes, source) in [(1, &line, of_line), (2, &binary, named)] {
                let length = bytes.len();
                let expected = Progress::Header(Header { version, source, length });
                prop_assert_eq!(read(bytes), expected);
            }
        }
    }
}
