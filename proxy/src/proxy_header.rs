//! Owns the reader of PROXY headers (versions 1 and 2 of the PROXY protocol). It is bounded and incremental, and does
//! no I/O. Its module `write` owns the headers that backends get.
//!
//! The crate `ppp` reads the same headers, and the tests compare with it. It is not used here for three reasons. It
//! cannot tell bytes that may still become a header from bytes that never will, which is needed where a header is
//! optional. It accepts v2 headers of 64 KiB. And it keeps the whole header for fields that are not used here.

pub(crate) mod write;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of version 1.
const V1: &[u8] = b"PROXY ";
/// The first bytes of version 2.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes after those in version 2: version and command, family, length.
const V2_FIXED: usize = 4;
/// Longest header of version 1 by its specification, with the end of the line.
pub const MAX_V1: usize = 107;
/// Longest header of version 2. Addresses take at most 232 bytes, so there is room for what senders add after them
/// (names, a client's certificate). It is still far less than the ClientHello for which the proxy waits as well.
pub const MAX_V2: usize = 4096;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1 or 2.
    pub version: u8,
    /// The source of the connection.
    pub source: Source,
    /// Length of the header in bytes. Everything after it comes from the client.
    pub length: usize,
}

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A client.
    Client {
        /// Its address.
        client: SocketAddr,
        /// The address that it connected to.
        destination: SocketAddr,
    },
    /// The peer itself. It is a health check by the sender (`LOCAL`), or the sender does not know the client's address,
    /// or the address is not one that a TCP connection can have.
    Peer,
}

/// The state of the reader after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It may be a header, and more bytes are needed.
    NeedMore,
    /// It is not a header.
    Absent,
    /// It is a header.
    Header(Header),
    /// It begins like a header, but cannot be read or is too long.
    Malformed,
}

/// Reads the first bytes of a connection.
#[must_use]
pub fn read(bytes: &[u8]) -> Progress {
    if bytes.starts_with(V1) {
        read_v1(bytes)
    } else if bytes.starts_with(V2) {
        read_v2(bytes)
    } else if V1.starts_with(bytes) || V2.starts_with(bytes) {
        Progress::NeedMore
    } else {
        Progress::Absent
    }
}

fn read_v1(bytes: &[u8]) -> Progress {
    let line = bytes.get(..MAX_V1).unwrap_or(bytes);
    let Some(end) = line.windows(2).position(|at| at == b"\r\n") else {
        return if line.len() == MAX_V1 {
            Progress::Malformed
        } else {
            Progress::NeedMore
        };
    };
    let words = line.get(V1.len()..end).unwrap_or_default();
    source_v1(words).map_or(Progress::Malformed, |source| {
        Progress::Header(Header {
            version: 1,
            source,
            length: end + 2,
        })
    })
}

/// Reads the line after `PROXY `.
fn source_v1(line: &[u8]) -> Option<Source> {
    let mut words = line.split(|byte| *byte == b' ');
    let family = words.next()?;
    // The rest of such a line has no meaning.
    if family == b"UNKNOWN" {
        return Some(Source::Peer);
    }
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (source, destination) = (word()?, word()?);
    let (port, other_port) = (word()?, word()?);
    let ports = (port_v1(port)?, port_v1(other_port)?);
    let source = match family {
        b"TCP4" => {
            let (source, destination): (Ipv4Addr, Ipv4Addr) =
                (source.parse().ok()?, destination.parse().ok()?);
            client(source.into(), destination.into(), ports)
        }
        b"TCP6" => {
            let (source, destination): (Ipv6Addr, Ipv6Addr) =
                (source.parse().ok()?, destination.parse().ok()?);
            client(source.into(), destination.into(), ports)
        }
        _ => return None,
    };
    words.next().is_none().then_some(source)
}

/// Reads a port: a decimal number without leading zeros.
fn port_v1(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0')))
        .then(|| text.parse().ok())
        .flatten()
}

fn read_v2(bytes: &[u8]) -> Progress {
    let fixed = bytes.get(V2.len()..).and_then(<[u8]>::split_first_chunk);
    let Some((&[command, family, high, low], rest)) = fixed else {
        return Progress::NeedMore;
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let whole = V2.len() + V2_FIXED + length;
    if whole > MAX_V2 {
        return Progress::Malformed;
    }
    let Some(body) = rest.get(..length) else {
        return Progress::NeedMore;
    };
    source_v2(command, family, body).map_or(Progress::Malformed, |source| {
        Progress::Header(Header {
            version: 2,
            source,
            length: whole,
        })
    })
}

/// Reads the part after the length. Fields after the addresses are ignored.
fn source_v2(command: u8, family: u8, body: &[u8]) -> Option<Source> {
    match (command, family) {
        // Version 2, command PROXY, TCP over IPv4 and IPv6: the addresses of source and destination, then their ports.
        (0x21, 0x11) => {
            let (source, rest) = body.split_first_chunk::<4>()?;
            let (destination, rest) = rest.split_first_chunk::<4>()?;
            let (source, destination) = (Ipv4Addr::from(*source), Ipv4Addr::from(*destination));
            Some(client(source.into(), destination.into(), ports(rest)?))
        }
        (0x21, 0x21) => {
            let (source, rest) = body.split_first_chunk::<16>()?;
            let (destination, rest) = rest.split_first_chunk::<16>()?;
            let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
            Some(client(source.into(), destination.into(), ports(rest)?))
        }
        // Command LOCAL, after which everything is ignored; and unspecified families, datagrams and UNIX sockets.
        (0x20, _) | (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Some(Source::Peer),
        _ => None,
    }
}

/// The ports of source and destination. Both have to be there.
fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let (source, rest) = bytes.split_first_chunk()?;
    let (destination, _) = rest.split_first_chunk()?;
    Some((
        u16::from_be_bytes(*source),
        u16::from_be_bytes(*destination),
    ))
}

fn client(source: IpAddr, destination: IpAddr, (port, destination_port): (u16, u16)) -> Source {
    Source::Client {
        client: SocketAddr::new(source.to_canonical(), port),
        destination: SocketAddr::new(destination.to_canonical(), destination_port),
    }
}

#[cfg(test)]
mod tests;
