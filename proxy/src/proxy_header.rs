//! Owns the reading of a PROXY header (versions 1 and 2 of the PROXY protocol): bounded, incremental, without I/O.
//!
//! The crate `ppp` reads the same and is the oracle of the tests. It is not used here because it does not tell bytes
//! that may still become a header from those that never will, which decides where a header is optional; it takes v2
//! headers of 64 KiB; and it keeps the whole header for fields that nobody here asks for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What version 1 begins with.
const V1: &[u8] = b"PROXY ";
/// What version 2 begins with.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Behind that: version and command, family, length.
const V2_FIXED: usize = 4;
/// Longest header of version 1, with the end of its line: what the specification says.
pub const MAX_V1: usize = 107;
/// Longest header of version 2. Addresses take at most 232 bytes, so this leaves room for what senders add behind them
/// (names, a client's certificate), and is still far less than the ClientHello that is waited for as well.
pub const MAX_V2: usize = 4096;

/// A header that has come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1 or 2.
    pub version: u8,
    /// Whom the connection is from.
    pub source: Source,
    /// Bytes of the header; what comes behind them is the client's.
    pub length: usize,
}

/// Whom a connection is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This client.
    Client(SocketAddr),
    /// Whoever opened it: a check of the sender's own (`LOCAL`), or a client of which the sender does not know the
    /// address, or knows none that a TCP connection can have.
    Peer,
}

/// Where the reading of the first bytes of a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It may be a header: more bytes are needed.
    NeedMore,
    /// It is none.
    Absent,
    /// It is one.
    Header(Header),
    /// It begins like one, and cannot be read, or is longer than the limits.
    Malformed,
}

/// Reads what a connection begins with.
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

/// Reads the line behind `PROXY `.
fn source_v1(line: &[u8]) -> Option<Source> {
    let mut words = line.split(|byte| *byte == b' ');
    let family = words.next()?;
    // Whatever else the line says does not count.
    if family == b"UNKNOWN" {
        return Some(Source::Peer);
    }
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (source, destination) = (word()?, word()?);
    let (port, other_port) = (word()?, word()?);
    port_v1(other_port)?;
    let port = port_v1(port)?;
    let address = match family {
        b"TCP4" => {
            let _: Ipv4Addr = destination.parse().ok()?;
            IpAddr::V4(source.parse().ok()?)
        }
        b"TCP6" => {
            let _: Ipv6Addr = destination.parse().ok()?;
            IpAddr::V6(source.parse().ok()?)
        }
        _ => return None,
    };
    words.next().is_none().then(|| client(address, port))
}

/// A decimal number without leading zeros.
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

/// Reads what is behind the length. Fields behind the addresses do not count.
fn source_v2(command: u8, family: u8, body: &[u8]) -> Option<Source> {
    match (command, family) {
        // Version 2, command PROXY: TCP over IPv4 and IPv6, source and destination, then their ports.
        (0x21, 0x11) => {
            let (source, rest) = body.split_first_chunk::<4>()?;
            let (_, rest) = rest.split_first_chunk::<4>()?;
            Some(client(Ipv4Addr::from(*source).into(), ports(rest)?))
        }
        (0x21, 0x21) => {
            let (source, rest) = body.split_first_chunk::<16>()?;
            let (_, rest) = rest.split_first_chunk::<16>()?;
            Some(client(Ipv6Addr::from(*source).into(), ports(rest)?))
        }
        // Command LOCAL, whose rest is to be ignored; and what is unspecified, datagrams and UNIX sockets.
        (0x20, _) | (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Some(Source::Peer),
        _ => None,
    }
}

/// The source's port, of the two that have to be there.
fn ports(bytes: &[u8]) -> Option<u16> {
    let ([high, low, _, _], _) = bytes.split_first_chunk()?;
    Some(u16::from_be_bytes([*high, *low]))
}

fn client(address: IpAddr, port: u16) -> Source {
    Source::Client(SocketAddr::new(address.to_canonical(), port))
}

#[cfg(test)]
mod tests;
