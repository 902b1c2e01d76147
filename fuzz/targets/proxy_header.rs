//! The reader of PROXY headers: what it says of the first bytes of a connection does not change with what comes behind
//! them, and whoever it says that a connection is from, `ppp` says the same.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use ppp::{HeaderResult, v1, v2};
use vestibule_proxy::proxy_header::{Header, MAX_V1, MAX_V2, Progress, Source, read};

fuzz_target!(|data: &[u8]| {
    let whole = read(data);
    let mut told = false;
    for end in 0..=data.len() {
        let part = read(&data[..end]);
        assert!(
            !told || part != Progress::NeedMore,
            "it was told before {end}"
        );
        if part != Progress::NeedMore {
            assert_eq!(part, whole, "told at {end}");
            told = true;
        }
    }
    match whole {
        Progress::Header(header) => {
            assert!(header.length <= data.len());
            assert!(header.length <= if header.version == 1 { MAX_V1 } else { MAX_V2 });
            // Of headers that name nobody it refuses some for what is to be ignored.
            let theirs = oracle(data).or((header.source == Source::Peer).then_some(header));
            assert_eq!(Some(header), theirs, "ppp reads something else");
        }
        // There is always an end to the waiting.
        Progress::NeedMore => assert!(data.len() < MAX_V2),
        Progress::Malformed | Progress::Absent => {
            let theirs = oracle(data);
            // It takes longer ones, ports with a sign, and unknown words in those that name nobody.
            let named = theirs.filter(|header| {
                let is_signed = header.version == 1 && data.contains(&b'+');
                let is_client = matches!(header.source, Source::Client { .. });
                is_client && !is_signed && header.length <= MAX_V2
            });
            assert_eq!(named, None, "ppp reads a client");
        }
    }
});

/// What `ppp` makes of the bytes.
fn oracle(data: &[u8]) -> Option<Header> {
    let at = |address: IpAddr, port| SocketAddr::new(address.to_canonical(), port);
    let (version, source, length) = match HeaderResult::parse(data) {
        HeaderResult::V1(Ok(header)) => {
            let source = match header.addresses {
                v1::Addresses::Tcp4(of) => Source::Client {
                    client: at(of.source_address.into(), of.source_port),
                    destination: at(of.destination_address.into(), of.destination_port),
                },
                v1::Addresses::Tcp6(of) => Source::Client {
                    client: at(of.source_address.into(), of.source_port),
                    destination: at(of.destination_address.into(), of.destination_port),
                },
                v1::Addresses::Unknown => Source::Peer,
            };
            (1, source, header.header.len())
        }
        HeaderResult::V2(Ok(header)) => {
            let is_tcp =
                header.command == v2::Command::Proxy && header.protocol == v2::Protocol::Stream;
            let source = match header.addresses {
                v2::Addresses::IPv4(of) if is_tcp => Source::Client {
                    client: at(of.source_address.into(), of.source_port),
                    destination: at(of.destination_address.into(), of.destination_port),
                },
                v2::Addresses::IPv6(of) if is_tcp => Source::Client {
                    client: at(of.source_address.into(), of.source_port),
                    destination: at(of.destination_address.into(), of.destination_port),
                },
                _ => Source::Peer,
            };
            (2, source, header.len())
        }
        _ => return None,
    };
    Some(Header {
        version,
        source,
        length,
    })
}
