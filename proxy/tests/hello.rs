//! The hello reader against real clients, against hostile bytes, and against rustls' own parser.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName as Name;
use vestibule_proxy::hello::{Hello, HelloReader, Progress, Rejection, ServerName};
use vestibule_test_support::properties::keep_failures_with_cases;

const LIMIT: usize = 16 * 1024;

fn recorded() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hellos");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "bin"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    all.sort();
    assert!(all.len() >= 10, "recordings are missing");
    all
}

fn read(bytes: &[u8]) -> Progress {
    HelloReader::new(LIMIT).push(bytes)
}

fn hello(bytes: &[u8]) -> Hello {
    match read(bytes) {
        Progress::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

/// The handshake message within records.
fn message(mut records: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = records {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        out.extend_from_slice(&rest[..length]);
        records = &rest[length..];
    }
    out
}

fn record(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![22, 3, 1];
    out.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out
}

#[test]
fn recorded_hellos_are_read() {
    for (name, bytes) in recorded() {
        let hello = hello(&bytes);
        let expected = match name.as_str() {
            "openssl-no-sni" => ServerName::Absent,
            _ => ServerName::Name("a.example.com".parse_name()),
        };
        assert_eq!(hello.server_name, expected, "{name}");
        let alpn: Vec<&[u8]> = hello.alpn.iter().collect();
        match name.as_str() {
            "openssl" | "gnutls" | "go" | "go-mlkem" | "curl" | "rustls" => {
                assert_eq!(alpn, [&b"h2"[..], b"http/1.1"], "{name}");
            }
            _ => assert!(hello.alpn.is_empty(), "{name}"),
        }
        if matches!(name.as_str(), "go-mlkem" | "rustls") {
            assert!(bytes.len() > 1400, "{name} has no X25519MLKEM768 share");
        }
    }
}

trait ParseName {
    fn parse_name(&self) -> vestibule_model::hostname::Hostname;
}

impl ParseName for str {
    fn parse_name(&self) -> vestibule_model::hostname::Hostname {
        vestibule_model::hostname::Hostname::parse(self).unwrap()
    }
}

#[test]
fn segments_make_no_difference() {
    for (name, bytes) in recorded() {
        let whole = hello(&bytes);
        for at in 1..bytes.len() {
            let mut reader = HelloReader::new(LIMIT);
            assert_eq!(
                reader.push(&bytes[..at]),
                Progress::NeedMore,
                "{name} at {at}"
            );
            assert_eq!(
                reader.push(&bytes[at..]),
                Progress::Hello(whole.clone()),
                "{name} at {at}"
            );
            assert_eq!(reader.into_bytes(), bytes);
        }
        let mut reader = HelloReader::new(LIMIT);
        let (last, start) = bytes.split_last().unwrap();
        for byte in start {
            assert_eq!(reader.push(&[*byte]), Progress::NeedMore);
        }
        assert_eq!(reader.push(&[*last]), Progress::Hello(whole));
    }
}

#[test]
fn records_make_no_difference() {
    for (name, bytes) in recorded() {
        let whole = hello(&bytes);
        let message = message(&bytes);
        for at in 1..message.len() {
            let cut = [record(&message[..at]), record(&message[at..])].concat();
            assert_eq!(read(&cut), Progress::Hello(whole.clone()), "{name} at {at}");
        }
        let tiny: Vec<u8> = message.iter().flat_map(|byte| record(&[*byte])).collect();
        assert_eq!(read(&tiny), Progress::Hello(whole.clone()), "{name}");
        // What follows the hello (early data, say) is kept for the replay.
        let mut reader = HelloReader::new(LIMIT);
        let more = [&bytes[..], &[23, 3, 3, 0, 1, 7]].concat();
        assert_eq!(reader.push(&more), Progress::Hello(whole));
        assert_eq!(reader.into_bytes(), more);
    }
}

#[test]
fn bytes_that_are_no_client_hello_are_rejected_at_once() {
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], Rejection::NotTls),
        (b"G", Rejection::NotTls),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Rejection::NotTls),
        (b"\x00\x00\x00\x00\x00", Rejection::NotTls),
        // SSL 2.0 hello that offers up to TLS 1.2.
        (
            b"\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10",
            Rejection::SslV2,
        ),
        (b"\x80\x2e\x02", Rejection::NotTls),
        // An alert as the first record; a record of an unknown major version; an empty record.
        (b"\x15\x03\x01\x00\x02\x02\x28", Rejection::NotTls),
        (b"\x16\x04", Rejection::NotTls),
        (b"\x16\x03\x01\x00\x00", Rejection::NotTls),
        (b"\x16\x03\x01\xff\xff", Rejection::NotTls),
        // A handshake message, but not a ClientHello.
        (
            b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
            Rejection::Malformed,
        ),
        (b"\x16\x03\x01\x00\x04\x02", Rejection::Malformed),
        // Something else between two records of one hello.
        (b"\x16\x03\x01\x00\x01\x01\x17", Rejection::Malformed),
    ] {
        assert_eq!(read(bytes), Progress::Rejected(why), "{bytes:?}");
    }
    assert_eq!(read(b"\x16\x03"), Progress::NeedMore);
    assert_eq!(read(b"\x80\x2e"), Progress::NeedMore);
}

#[test]
fn length_is_bounded() {
    // Announced: known to be too long before it comes.
    assert_eq!(
        read(b"\x16\x03\x01\x40\x00\x01\x01\x00\x00"),
        Progress::Rejected(Rejection::TooLarge)
    );
    // Cut into records of one byte, so that the headers are what is too long.
    let (_, bytes) = recorded()
        .into_iter()
        .find(|(name, _)| name == "go-mlkem")
        .unwrap();
    let tiny: Vec<u8> = message(&bytes)
        .iter()
        .flat_map(|byte| record(&[*byte]))
        .collect();
    let mut reader = HelloReader::new(4096);
    let mut pushed = 0;
    let end = loop {
        pushed += 1;
        match reader.push(&tiny[pushed - 1..pushed]) {
            Progress::NeedMore => {}
            other => break other,
        }
    };
    assert_eq!(end, Progress::Rejected(Rejection::TooLarge));
    assert_eq!(pushed, 4096);
}

/// A hello of which only the extensions matter.
fn with_extensions(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    let mut list = Vec::new();
    for (kind, data) in extensions {
        list.extend_from_slice(&kind.to_be_bytes());
        list.extend_from_slice(&vector16(data));
    }
    body.extend_from_slice(&vector16(&list));
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    record(&[&[1, length[1], length[2], length[3]], &body[..]].concat())
}

fn vector16(data: &[u8]) -> Vec<u8> {
    [&u16::try_from(data.len()).unwrap().to_be_bytes(), data].concat()
}

fn sni(name: &[u8]) -> (u16, Vec<u8>) {
    (0, vector16(&[&[0], &vector16(name)[..]].concat()))
}

#[test]
fn server_names() {
    let name = |bytes: &[u8]| match read(bytes) {
        Progress::Hello(hello) => hello.server_name,
        other => panic!("{other:?}"),
    };
    let good = ServerName::Name("a.example.com".parse_name());
    // Without signature_algorithms, which rustls would refuse.
    assert_eq!(name(&with_extensions(&[sni(b"a.example.com")])), good);
    assert_eq!(name(&with_extensions(&[sni(b"A.eXample.com.")])), good);
    assert_eq!(name(&with_extensions(&[])), ServerName::Absent);
    for invalid in [
        &b"10.0.0.1"[..],
        b"::1",
        b"a..b",
        b"-",
        b"a b",
        b"\xff\xfe",
        b"a\0b",
    ] {
        assert_eq!(
            name(&with_extensions(&[sni(invalid)])),
            ServerName::Invalid,
            "{invalid:?}"
        );
    }
    // A name type of the future, first or last.
    let (_, list) = sni(b"a.example.com");
    let behind = [&list[2..], &[9, 1, 2, 3]].concat();
    assert_eq!(name(&with_extensions(&[(0, vector16(&behind))])), good);
    assert_eq!(
        name(&with_extensions(&[(0, vector16(&[9, 1, 2, 3]))])),
        ServerName::Absent
    );
    for malformed in [
        vec![sni(b"a.example.com"), sni(b"b.example.com")],
        vec![sni(b"a.example.com"), (5, vec![]), sni(b"a.example.com")],
        vec![(0, vector16(&[&list[2..], &list[2..]].concat()))],
        vec![sni(b"")],
        vec![(0, vec![])],
        vec![(0, vec![0, 0])],
        vec![(0, [&list[..], &[0]].concat())],
        vec![(16, vec![0, 0])],
        vec![(16, vec![0, 1, 0])],
        vec![(16, vec![0, 2, 2, b'h'])],
        vec![(16, vec![0, 2, 1, b'h']), (16, vec![0, 2, 1, b'h'])],
    ] {
        let bytes = with_extensions(&malformed);
        assert_eq!(
            read(&bytes),
            Progress::Rejected(Rejection::Malformed),
            "{malformed:?}"
        );
    }
}

#[test]
fn a_hello_without_extensions_has_no_name() {
    let mut body = vec![3, 1];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0, 47, 1, 0]);
    let bytes = record(&[&[1, 0, 0, u8::try_from(body.len()).unwrap()], &body[..]].concat());
    assert_eq!(hello(&bytes).server_name, ServerName::Absent);
}

/// A hello of the rustls client.
fn rustls_hello(name: &str, alpn: &[Vec<u8>]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.to_vec();
    let name = Name::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// A hello of today's rustls reads as the recorded one. With `VESTIBULE_RECORD` set it replaces it.
#[test]
fn the_recording_of_rustls_is_what_it_sends_today() {
    let bytes = rustls_hello("a.example.com", &[b"h2".to_vec(), b"http/1.1".to_vec()]);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hellos/rustls.bin");
    if std::env::var_os("VESTIBULE_RECORD").is_some() {
        std::fs::write(&path, &bytes).unwrap();
    }
    let recorded = std::fs::read(path).unwrap();
    assert_eq!(hello(&bytes), hello(&recorded));
    assert_eq!(bytes.len(), recorded.len());
}

/// What rustls makes of the bytes: the name and the protocols, or nothing.
type Verdict = Option<(Option<String>, Vec<Vec<u8>>)>;

fn oracle(bytes: &[u8]) -> Verdict {
    let mut acceptor = rustls::server::Acceptor::default();
    let mut left = bytes;
    loop {
        // An error is also how it says that its buffer is full.
        let read = acceptor.read_tls(&mut left).ok()?;
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(str::to_ascii_lowercase);
                let alpn = hello
                    .alpn()
                    .into_iter()
                    .flatten()
                    .map(<[u8]>::to_vec)
                    .collect();
                return Some((name, alpn));
            }
            Ok(None) if read > 0 => {}
            _ => return None,
        }
    }
}

/// Whatever rustls takes we take, with the same name and protocols. The other way round we take more
/// (no `signature_algorithms`, for one), so nothing follows.
fn agrees_with_oracle(bytes: &[u8]) -> Result<(), TestCaseError> {
    let ours = read(bytes);
    let Some((name, alpn)) = oracle(bytes) else {
        return Ok(());
    };
    let Progress::Hello(hello) = ours else {
        return Err(TestCaseError::fail(format!(
            "rustls takes it, we say {ours:?}"
        )));
    };
    match (&name, &hello.server_name) {
        // Names that rustls takes and the model does not (underscores, say) match nothing.
        (_, ServerName::Invalid) | (None, ServerName::Absent) => {}
        (Some(theirs), ServerName::Name(ours)) => {
            prop_assert_eq!(theirs.trim_end_matches('.'), ours.as_str());
        }
        (theirs, ours) => {
            return Err(TestCaseError::fail(format!(
                "rustls {theirs:?}, we {ours:?}"
            )));
        }
    }
    let ours: Vec<Vec<u8>> = hello.alpn.iter().map(<[u8]>::to_vec).collect();
    prop_assert_eq!(ours, alpn);
    Ok(())
}

proptest! {
    #![proptest_config(keep_failures_with_cases(512))]

    #[test]
    fn generated_hellos_are_read_as_rustls_reads_them(
        name in "[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?(\\.[a-z]{1,6}){1,4}",
        alpn in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..12), 0..4),
        cut in 1usize..200,
    ) {
        let bytes = rustls_hello(&name, &alpn);
        agrees_with_oracle(&bytes)?;
        let cut: Vec<u8> = message(&bytes).chunks(cut).flat_map(record).collect();
        agrees_with_oracle(&cut)?;
        if cut.len() < LIMIT {
            prop_assert_eq!(read(&cut), read(&bytes));
        }
    }

    #[test]
    fn mutated_hellos_are_read_as_rustls_reads_them(
        which in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
        truncate in prop::bool::weighted(0.2),
    ) {
        let all = recorded();
        let mut bytes = which.get(&all).1.clone();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if truncate {
            bytes.truncate(keep.index(bytes.len()));
        }
        agrees_with_oracle(&bytes)?;
    }

    #[test]
    fn any_bytes_in_any_pieces_end_alike(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        tls in any::<bool>(),
        piece in 1usize..40,
    ) {
        let bytes = if tls { [&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], &bytes[..]].concat() } else { bytes };
        let mut reader = HelloReader::new(512);
        let mut last = Progress::NeedMore;
        for piece in bytes.chunks(piece) {
            last = reader.push(piece);
            if last != Progress::NeedMore {
                break;
            }
        }
        let whole = HelloReader::new(512).push(&bytes);
        // Too large is a matter of when one looks; everything else is not.
        if whole != Progress::Rejected(Rejection::TooLarge) && !bytes.is_empty() {
            prop_assert_eq!(last, whole);
        }
    }
}
