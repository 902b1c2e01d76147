//! The ClientHello reader: what it says does not depend on how the bytes are cut, and where rustls
//! takes a hello, it takes it too and reads the same name and protocols.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustls::server::Acceptor;
use vestibule_model::hostname::Hostname;
use vestibule_proxy::hello::{Hello, HelloReader, Progress, ServerName};

/// Above every input (`-max_len`), so that the limit is not what ends the reading.
const LIMIT: usize = 16 << 10;
/// One that is.
const SMALL_LIMIT: usize = 300;

fuzz_target!(|data: &[u8]| {
    let whole = read(data, LIMIT, std::iter::repeat(data.len().max(1)));
    assert_eq!(
        whole,
        read(data, LIMIT, std::iter::repeat(1)),
        "byte by byte"
    );
    assert_eq!(whole, read(data, LIMIT, cuts(data)), "cut anywhere");

    // A smaller limit refuses more, and reads nothing else.
    if let Progress::Hello(hello) = read(data, SMALL_LIMIT, std::iter::repeat(1)) {
        assert_eq!(whole, Progress::Hello(hello));
    }
    // A hello is a hello whatever comes after it.
    if let Progress::Hello(_) = whole {
        let mut longer = data.to_vec();
        longer.extend_from_slice(b"\x17\x03\x03\x00\x01x");
        assert_eq!(
            whole,
            read(&longer, LIMIT, cuts(data)),
            "with more behind it"
        );
    }

    if let Some((name, protocols)) = oracle(data) {
        let Progress::Hello(hello) = &whole else {
            panic!("rustls takes it, we say {whole:?}");
        };
        compare(name.as_deref(), &protocols, hello);
    }
});

/// Pushes `data` in chunks of the sizes given until there is a verdict.
fn read(data: &[u8], limit: usize, sizes: impl Iterator<Item = usize>) -> Progress {
    let mut reader = HelloReader::new(limit);
    let mut rest = data;
    let mut progress = Progress::NeedMore;
    for size in sizes {
        if rest.is_empty() || progress != Progress::NeedMore {
            break;
        }
        let (chunk, tail) = rest.split_at(size.min(rest.len()));
        progress = reader.push(chunk);
        rest = tail;
    }
    let taken = data.len() - rest.len();
    assert_eq!(
        reader.into_bytes(),
        data[..taken],
        "the replay is what came"
    );
    progress
}

/// Chunk sizes that depend on nothing but the input: its bytes, by a multiplicative hash.
fn cuts(data: &[u8]) -> impl Iterator<Item = usize> {
    let mut state = data.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    });
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Mostly short, at times long.
        let bits = usize::try_from(state >> 56).unwrap_or(0);
        if bits > 200 { bits } else { bits % 9 + 1 }
    })
}

/// What rustls makes of the bytes.
fn oracle(data: &[u8]) -> Option<(Option<String>, Vec<Vec<u8>>)> {
    let mut acceptor = Acceptor::default();
    let mut left = data;
    loop {
        let read = acceptor.read_tls(&mut left).ok()?;
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(str::to_ascii_lowercase);
                let protocols = hello
                    .alpn()
                    .into_iter()
                    .flatten()
                    .map(<[u8]>::to_vec)
                    .collect();
                return Some((name, protocols));
            }
            Ok(None) if read > 0 => {}
            _ => return None,
        }
    }
}

fn compare(name: Option<&str>, protocols: &[Vec<u8>], hello: &Hello) {
    match (name, &hello.server_name) {
        (Some(theirs), ServerName::Name(ours)) => {
            assert_eq!(theirs.strip_suffix('.').unwrap_or(theirs), ours.as_str());
        }
        // rustls takes names that cannot be served (underscores, a number at the end).
        (Some(theirs), ServerName::Invalid) => {
            assert!(Hostname::parse(theirs).is_err(), "{theirs:?}");
        }
        // rustls passes IP addresses over as if nothing had been said.
        (None, ServerName::Absent | ServerName::Invalid) => {}
        (theirs, ours) => panic!("rustls reads {theirs:?}, we read {ours:?}"),
    }
    let ours: Vec<&[u8]> = hello.alpn.iter().collect();
    assert_eq!(ours, protocols);
}
