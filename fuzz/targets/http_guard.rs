//! What the guard in front of hyper lets pass of a client's bytes: a byte that says how they are cut,
//! then the bytes, against httparse (hyper's parser) and a reader of bodies that is as plain as can be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_proxy::http::guard::{Guard, Stop};

/// More than fit into the longest input.
const MAX_FIELDS: usize = 2048;

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let whole = run(bytes, usize::MAX);
    assert_eq!(run(bytes, usize::from(*cut) + 1), whole);
    let (passed, stopped, requests) = whole;
    let passed = &bytes[..passed];
    assert_eq!(stopped.is_none(), passed.len() == bytes.len());
    let heads = heads(passed, matches!(stopped, Some(Stop::Undecided)));
    assert_eq!(heads, requests, "{:?}", String::from_utf8_lossy(passed));
});

fn run(bytes: &[u8], size: usize) -> (usize, Option<Stop>, u64) {
    let mut guard = Guard::new();
    let mut passed = 0;
    for piece in bytes.chunks(size.min(bytes.len().max(1))) {
        let outcome = guard.check(piece);
        passed += outcome.passed;
        if outcome.stopped.is_some() {
            return (passed, outcome.stopped, guard.requests());
        }
        assert_eq!(outcome.passed, piece.len());
    }
    (passed, None, guard.requests())
}

/// Heads that httparse finds, with bodies where the heads say.
fn heads(mut bytes: &[u8], undecided: bool) -> u64 {
    let mut count = 0;
    loop {
        let mut fields = vec![httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => {
                count += 1;
                let body = &bytes[length..];
                let Some(rest) = behind(&request, body) else {
                    return count;
                };
                bytes = rest;
            }
            Ok(httparse::Status::Partial) => {
                assert!(!undecided || bytes.is_empty());
                return count;
            }
            // hyper would refuse it too, and read nothing behind it.
            Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(bytes)),
        }
    }
}

/// What is behind the body of a request, if all of it is there.
fn behind<'a>(request: &httparse::Request<'_, '_>, body: &'a [u8]) -> Option<&'a [u8]> {
    let values = |name: &str| -> Vec<String> {
        let of_name = request
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name));
        of_name
            .map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
            .collect()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    assert!(lengths.len() + codings.len() <= 1);
    if let Some(coding) = codings.first() {
        assert!(coding.eq_ignore_ascii_case("chunked") && request.version == Some(1));
        return behind_chunks(body);
    }
    let length = lengths
        .first()
        .map_or(0, |length| length.parse::<u64>().expect("a number"));
    body.get(usize::try_from(length).ok()?..)
}

fn behind_chunks(mut body: &[u8]) -> Option<&[u8]> {
    loop {
        let line = take_line(&mut body)?;
        let size = line.split(|byte| *byte == b';').next()?;
        let size = std::str::from_utf8(size).expect("ASCII");
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            while !take_line(&mut body)?.is_empty() {}
            return Some(body);
        }
        body = body.get(size..)?;
        if !take_line(&mut body)?.is_empty() {
            panic!("something behind a chunk");
        }
    }
}

fn take_line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &bytes[..end];
    *bytes = &bytes[end + 2..];
    Some(line)
}
