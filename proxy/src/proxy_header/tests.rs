//! Headers as senders write them, headers as nobody should, and `ppp` as the oracle for all others.

use ppp::{HeaderResult, PartialResult, v1, v2};
use proptest::prelude::*;

use super::*;

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [V2, &[command, family], &length, body].concat()
}

fn header(version: u8, source: Source, length: usize) -> Progress {
    Progress::Header(Header {
        version,
        source,
        length,
    })
}

fn from(client: &str, destination: &str) -> Source {
    Source::Client {
        client: client.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

#[test]
fn version_1_names_a_client_or_nobody() {
    for (line, source) in [
        (
            "PROXY TCP4 192.0.2.1 198.51.100.2 5678 443\r\n",
            from("192.0.2.1:5678", "198.51.100.2:443"),
        ),
        (
            "PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n",
            from("0.0.0.0:0", "0.0.0.0:0"),
        ),
        (
            "PROXY TCP6 2001:db8::1 ::1 65535 443\r\n",
            from("[2001:db8::1]:65535", "[::1]:443"),
        ),
        (
            "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 443\r\n",
            from("192.0.2.1:1", "[::1]:443"),
        ),
        ("PROXY UNKNOWN\r\n", Source::Peer),
        ("PROXY UNKNOWN whatever it says\r\n", Source::Peer),
    ] {
        assert_eq!(
            read(line.as_bytes()),
            header(1, source, line.len()),
            "{line:?}"
        );
        // What comes behind it is not looked at, and every part of it may become it.
        let longer = [line.as_bytes(), b"\x16\x03\x01"].concat();
        assert_eq!(read(&longer), header(1, source, line.len()));
        for end in 0..line.len() {
            assert_eq!(
                read(&line.as_bytes()[..end]),
                Progress::NeedMore,
                "{line:?} {end}"
            );
        }
    }
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(MAX_V1 - 16));
    assert_eq!(read(longest.as_bytes()), header(1, Source::Peer, MAX_V1));
}

#[test]
fn version_2_names_a_client_or_nobody() {
    let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0x16, 0x2e, 1, 187];
    let mut v6 = [0; 36];
    v6[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    v6[15] = 1;
    v6[32..].copy_from_slice(&[0x16, 0x2e, 1, 187]);
    let with_more = [&v4[..], &[4, 0, 2, 0, 0]].concat();
    let with_most = [&v4[..], &[0; MAX_V2 - 28]].concat();
    let named = from("192.0.2.1:5678", "198.51.100.2:443");
    for (bytes, source) in [
        (v2(0x21, 0x11, &v4), named),
        (v2(0x21, 0x21, &v6), from("[2001:db8::1]:5678", "[::]:443")),
        (v2(0x21, 0x11, &with_more), named),
        (v2(0x21, 0x11, &with_most), named),
        (v2(0x20, 0x11, &v4), Source::Peer),
        (v2(0x20, 0, &[]), Source::Peer),
        (v2(0x21, 0, &[]), Source::Peer),
        (v2(0x21, 0x12, &v4), Source::Peer),
        (v2(0x21, 0x31, &[0; 216]), Source::Peer),
    ] {
        assert_eq!(read(&bytes), header(2, source, bytes.len()));
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Progress::NeedMore, "{end}");
        }
    }
}

#[test]
fn header_that_cannot_be_read_is_malformed_and_other_bytes_count_as_absent() {
    let line = |text: &str| format!("PROXY {text}\r\n").into_bytes();
    let too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(MAX_V1 - 15));
    for bytes in [
        line(""),
        line("TCP4"),
        line("TCP5 192.0.2.1 192.0.2.2 1 2"),
        line("TCP4 192.0.2.1 192.0.2.2 1"),
        line("TCP4 192.0.2.1 192.0.2.2 1 2 3"),
        line("TCP4 192.0.2.1  192.0.2.2 1 2"),
        line("TCP4 192.0.2.1 192.0.2.2 01 2"),
        line("TCP4 192.0.2.1 192.0.2.2 +1 2"),
        line("TCP4 192.0.2.1 192.0.2.2 65536 2"),
        line("TCP4 192.0.2.1 192.0.2.2 1 -2"),
        line("TCP4 192.0.2.256 192.0.2.2 1 2"),
        line("TCP4 2001:db8::1 ::1 1 2"),
        line("TCP6 192.0.2.1 192.0.2.2 1 2"),
        line("TCP6 fe80::1%eth0 ::1 1 2"),
        line("unknown"),
        line("UNKNOWNx"),
        line("TCP4 \u{e4} 192.0.2.2 1 2"),
        too_long.into_bytes(),
        v2(0x11, 0x11, &[0; 12]),
        v2(0x31, 0x11, &[0; 12]),
        v2(0x22, 0x11, &[0; 12]),
        v2(0x21, 0x11, &[0; 11]),
        v2(0x21, 0x21, &[0; 35]),
        v2(0x21, 0x13, &[0; 36]),
        v2(0x21, 0x41, &[0; 36]),
        v2(0x21, 0x11, &[0; MAX_V2 - 15]),
    ] {
        assert_eq!(
            read(&bytes),
            Progress::Malformed,
            "{:?}",
            bytes.escape_ascii()
        );
    }
    // A length that is too long is not waited for.
    let announced = [V2, &[0x21, 0x11, 0xff, 0xff]].concat();
    assert_eq!(read(&announced), Progress::Malformed);
    for bytes in [
        &b"\x16\x03\x01"[..],
        b"GET / HTTP/1.1",
        b"POST",
        b"PROXY\r\n",
        b"proxy ",
        b"\r\n\r\n\0\r\nQUIT\r",
        b"\r\nGET",
        b"PRI * HTTP/2.0",
    ] {
        assert_eq!(read(bytes), Progress::Absent, "{:?}", bytes.escape_ascii());
    }
}

/// What `ppp` makes of whole headers within the bounds.
fn oracle(bytes: &[u8]) -> Progress {
    let peer = |version, length| header(version, Source::Peer, length);
    match HeaderResult::parse(bytes) {
        HeaderResult::V1(Ok(read)) => {
            let length = read.header.len();
            match read.addresses {
                v1::Addresses::Tcp4(of) => {
                    let ports = (of.source_port, of.destination_port);
                    let (from, to) = (of.source_address.into(), of.destination_address.into());
                    header(1, client(from, to, ports), length)
                }
                v1::Addresses::Tcp6(of) => {
                    let ports = (of.source_port, of.destination_port);
                    let (from, to) = (of.source_address.into(), of.destination_address.into());
                    header(1, client(from, to, ports), length)
                }
                v1::Addresses::Unknown => peer(1, length),
            }
        }
        HeaderResult::V2(Ok(read)) => {
            let length = read.len();
            match (read.command, read.protocol, read.addresses) {
                (v2::Command::Proxy, v2::Protocol::Stream, v2::Addresses::IPv4(of)) => {
                    let ports = (of.source_port, of.destination_port);
                    let (from, to) = (of.source_address.into(), of.destination_address.into());
                    header(2, client(from, to, ports), length)
                }
                (v2::Command::Proxy, v2::Protocol::Stream, v2::Addresses::IPv6(of)) => {
                    let ports = (of.source_port, of.destination_port);
                    let (from, to) = (of.source_address.into(), of.destination_address.into());
                    header(2, client(from, to, ports), length)
                }
                _ => peer(2, length),
            }
        }
        other if other.is_incomplete() => Progress::NeedMore,
        _ => Progress::Malformed,
    }
}

proptest! {
    /// Every header that `ppp` writes is read as it was meant, whole and cut anywhere.
    #[test]
    fn written_headers_are_read_back(
        source: [u8; 16],
        ports: (u16, u16),
        is_v4: bool,
        is_binary: bool,
        more in proptest::collection::vec(any::<u8>(), 0..300),
        cut: prop::sample::Index,
    ) {
        let (v4, v6) = ([source[0], source[1], source[2], source[3]], Ipv6Addr::from(source));
        let address: IpAddr = if is_v4 { Ipv4Addr::from(v4).into() } else { v6.into() };
        let bytes = match (is_binary, address) {
            (false, IpAddr::V4(ip)) => {
                v1::Addresses::new_tcp4(ip, ip, ports.0, ports.1).to_string().into_bytes()
            }
            (false, IpAddr::V6(ip)) => {
                v1::Addresses::new_tcp6(ip, ip, ports.0, ports.1).to_string().into_bytes()
            }
            (true, address) => {
                let from = SocketAddr::new(address, ports.0);
                let to = SocketAddr::new(address, ports.1);
                let built = v2::Builder::with_addresses(
                    v2::Version::Two | v2::Command::Proxy,
                    v2::Protocol::Stream,
                    (from, to),
                );
                built.write_tlv(v2::Type::NoOp, &more).unwrap().build().unwrap()
            }
        };
        let version = if is_binary { 2 } else { 1 };
        let source = client(address, address, ports);
        prop_assert_eq!(read(&bytes), header(version, source, bytes.len()));
        let part = &bytes[..cut.index(bytes.len())];
        prop_assert_eq!(read(part), Progress::NeedMore);
        let longer = [&bytes[..], &more].concat();
        prop_assert_eq!(read(&longer), read(&bytes));
    }

    /// What begins like a header and is whole is what `ppp` says it is; nothing panics; more bytes never change a
    /// verdict.
    #[test]
    fn nothing_is_read_otherwise_than_by_others(
        is_binary: bool,
        head in proptest::sample::select(vec![
            &b"TCP4 192.0.2.1 192.0.2.2 1 2\r\n"[..], b"TCP6 ::1 ::2 1 2\r\n", b"UNKNOWN\r\n",
            b"\x21\x11\x00\x0c", b"\x21\x21\x00\x24", b"\x20\x00\x00\x00", b"\x21\x31\x00\xd8",
        ]),
        noise in proptest::collection::vec(any::<u8>(), 0..260),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = [if is_binary { V2 } else { V1 }, head, &noise].concat();
        let start = if is_binary { V2.len() } else { V1.len() };
        for (at, byte) in edits {
            let at = start + at.index(bytes.len() - start);
            bytes[at] = byte;
        }
        let verdict = read(&bytes);
        match verdict {
            Progress::Header(of) => {
                let theirs = oracle(&bytes);
                // Of headers that name nobody they refuse some for what is to be ignored.
                let laxer = of.source == Source::Peer && !matches!(theirs, Progress::Header(_));
                prop_assert!(laxer || verdict == theirs, "{:?} {:?}", verdict, theirs);
            }
            Progress::Malformed | Progress::NeedMore => {
                let theirs = oracle(&bytes);
                // They take lengths, words and ports with a sign that we do not.
                let stricter = bytes.contains(&b'+')
                    || matches!(theirs, Progress::Header(of) if of.source == Source::Peer);
                prop_assert!(stricter || !matches!(theirs, Progress::Header(_)), "{:?}", theirs);
            }
            Progress::Absent => prop_assert!(false, "it begins like one"),
        }
        let longer = [&bytes[..], b"x"].concat();
        if verdict != Progress::NeedMore {
            prop_assert_eq!(read(&longer), verdict);
        }
    }
}
