use proptest::prelude::*;

use super::*;

/// What the guard lets pass of `bytes` when they come in pieces of `size`, and why not all.
fn run(bytes: &[u8], size: usize) -> (usize, Option<Stop>, u64) {
    let mut guard = Guard::new();
    let mut passed = 0;
    for piece in bytes.chunks(size.max(1)) {
        let outcome = guard.check(piece);
        passed += outcome.passed;
        if outcome.stopped.is_some() {
            // The guard stays stopped.
            assert_eq!(
                guard.check(b"GET"),
                GuardOutcome {
                    passed: 0,
                    ..outcome
                }
            );
            return (passed, outcome.stopped, guard.requests());
        }
        assert_eq!(outcome.passed, piece.len());
    }
    (passed, None, guard.requests())
}

fn all_sizes(bytes: &[u8]) -> (usize, Option<Stop>, u64) {
    let whole = run(bytes, usize::MAX);
    for size in [1, 2, 3, 7, 16] {
        assert_eq!(
            run(bytes, size),
            whole,
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
    whole
}

const HOST: &str = "host: a.example.com\r\n";

#[test]
fn requests_that_every_reader_reads_alike_pass() {
    let chunked = "transfer-encoding: chunked\r\n";
    let cases: [(String, u64); 15] = [
        (format!("GET / HTTP/1.1\r\n{HOST}\r\n"), 1),
        ("GET / HTTP/1.0\r\n\r\n".into(), 1),
        (format!("\r\nGET / HTTP/1.1\r\n{HOST}\r\n"), 1),
        (format!("OPTIONS * HTTP/1.1\r\n{HOST}\r\n"), 1),
        (
            format!("M-SEARCH http://a/x?y=%20'()[] HTTP/1.1\r\n{HOST}\r\n"),
            1,
        ),
        (
            format!(
                "POST / HTTP/1.1\r\n{HOST}content-length: 3\r\n\r\nabcGET / HTTP/1.1\r\n{HOST}\r\n"
            ),
            2,
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nContent-Length:\t 003 \t\r\n{HOST}\r\n\r\n\nGET / HTTP/1.1\r\n"
            ),
            1,
        ),
        (
            format!("POST / HTTP/1.1\r\n{HOST}content-length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            2,
        ),
        (
            format!("POST / HTTP/1.1\r\n{HOST}{chunked}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            2,
        ),
        (
            format!(
                "POST / HTTP/1.1\r\n{HOST}Transfer-Encoding:  CHUNKED \r\n\r\n3;a=b;c=\"d e\"\r\n\r\n\r\r\n0aB\r\n{}\r\n0\r\nx: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                "0".repeat(0xab)
            ),
            2,
        ),
        (
            format!("GET / HTTP/1.1\r\n{HOST}x:\r\ny:  \r\nz: \t a\tb  \r\nutf: \u{fc}\r\n\r\n"),
            1,
        ),
        (
            format!("GET / HTTP/1.1\r\n{HOST}transfer-encodings: x\r\ncontent-lengt: x\r\n\r\n"),
            1,
        ),
        ("GET / HTTP/1.1\r\nx: y\r\n".into(), 0),
        (
            format!("POST / HTTP/1.1\r\n{HOST}expect: 100-continue\r\ncontent-length: 1\r\n\r\nx"),
            1,
        ),
        (
            format!("GET / HTTP/1.1\r\n{HOST}\r\n\r\nGET / HTTP/1.1\r\n{HOST}\r\n"),
            2,
        ),
    ];
    for (bytes, requests) in cases {
        let outcome = all_sizes(bytes.as_bytes());
        assert_eq!(outcome, (bytes.len(), None, requests), "{bytes:?}");
    }
}

#[test]
fn a_connection_has_a_number_of_options() {
    let head = |fields: &str| format!("GET / HTTP/1.1\r\n{HOST}{fields}\r\n");
    let options = |count| format!("Connection: {}\r\n", vec!["a"; count].join(" ,"));
    let most = usize::from(MAX_OPTIONS);
    let refused = |bytes: &str| {
        let (_, stopped, requests) = all_sizes(bytes.as_bytes());
        (stopped, requests)
    };
    let too_many = Some(Stop::Head(Refusal::Options));
    assert_eq!(refused(&head(&options(most))), (None, 1));
    assert_eq!(refused(&head(&options(most + 1))), (too_many, 0));
    // Empty ones count too, in one field or in several.
    let empty = |commas| format!("connection:{}\r\n", ",".repeat(commas));
    assert_eq!(refused(&head(&empty(most - 1))), (None, 1));
    assert_eq!(refused(&head(&empty(most))), (too_many, 0));
    assert_eq!(refused(&head(&options(1).repeat(most))), (None, 1));
    assert_eq!(refused(&head(&options(1).repeat(most + 1))), (too_many, 0));
    let other = format!("x: {}\r\n", ",".repeat(1000));
    assert_eq!(refused(&head(&other)), (None, 1));
    // Each request has its own, and so have trailers.
    let one = head(&options(most));
    assert_eq!(refused(&one.repeat(3)), (None, 3));
    let chunked = head(&format!("transfer-encoding: chunked\r\n{}", options(most)));
    let with = |count| format!("{chunked}0\r\n{}\r\n", options(count));
    assert_eq!(refused(&with(most)), (None, 1));
    let in_trailers = Some(Stop::Body(Refusal::Options));
    assert_eq!(refused(&with(most + 1)), (in_trailers, 1));
}

#[test]
fn requests_that_two_readers_could_read_differently_are_refused_at_that_byte() {
    let cases = corpus();
    assert!(cases.len() > 90, "{}", cases.len());
    for (bytes, at, refusal) in cases {
        let (passed, stopped, _) = all_sizes(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        let refused = match stopped {
            Some(Stop::Head(refusal) | Stop::Body(refusal)) => format!("{refusal:?}"),
            _ => String::new(),
        };
        assert_eq!(refused, refusal, "{text:?}");
        assert_eq!(passed, at, "{text:?}");
    }
}

/// Requests that the guard must refuse, each with the number of valid bytes at its start and the reason of the
/// refusal.
fn corpus() -> Vec<(Vec<u8>, usize, String)> {
    include_str!("../../../tests/smuggling/corpus.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (refusal, request) = line.split_once(' ').unwrap();
            let (right, wrong) = request.split_once('¦').unwrap();
            let right = unescape(right);
            let whole = [&right[..], &unescape(wrong)].concat();
            (whole, right.len(), refusal.to_owned())
        })
        .collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, char == '\\') {
            (_, true) => match chars.next().unwrap() {
                'r' => bytes.push(b'\r'),
                'n' => bytes.push(b'\n'),
                't' => bytes.push(b'\t'),
                '0' => bytes.push(0),
                'x' => {
                    let digits: String = chars.by_ref().take(2).collect();
                    bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                }
                other => panic!("\\{other}"),
            },
            _ => bytes.push(u8::try_from(char).unwrap()),
        }
    }
    bytes
}

#[test]
fn requests_that_may_leave_http_wait_for_the_answer() {
    for head in [
        "GET /chat HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n",
        "CONNECT a.example.com:443 HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nupgrade: x\r\ncontent-length: 2\r\n\r\nhi",
        "POST / HTTP/1.1\r\nupgrade: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let bytes = [head.as_bytes(), b"\x81\x05"].concat();
        let (passed, stopped, requests) = all_sizes(&bytes);
        let expected = (head.len(), Some(Stop::Undecided), 1);
        assert_eq!((passed, stopped, requests), expected, "{head:?}");
        let mut guard = Guard::new();
        guard.check(head.as_bytes());
        assert!(guard.is_undecided());
        let mut upgraded = guard.clone();
        upgraded.decide(true);
        assert_eq!(upgraded.check(b"\x81\0\n").passed, 3);
        guard.decide(false);
        let again = guard.check(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!((again.stopped, guard.requests()), (None, 2));
        assert_eq!(guard.check(b"\x81").passed, 0);
    }
    let mut guard = Guard::new();
    guard.check(b"CONNECTS / HTTP/1.1\r\n\r\n");
    assert!(!guard.is_undecided());
}

/// A request, and its parts joined.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let target = "/[!\"$-;=@-_a-~]{0,12}(\\?[!$-;=?-~]{0,12})?";
    let line = ("[A-Z]{1,12}", target, prop::bool::ANY);
    let field = ("x-[a-z]{0,30}", "[ -~\t]{0,40}");
    let fields = prop::collection::vec(field, 0..5);
    let body = prop_oneof![
        Just(None),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|body| Some((body, None))),
        (
            prop::collection::vec(any::<u8>(), 0..200),
            1..50_usize,
            "(;[a-z]{1,8}(=[a-z]{1,8})?){0,2}"
        )
            .prop_map(|(body, size, extension)| Some((body, Some((size, extension))))),
    ];
    (line, fields, body).prop_map(|((method, target, old), fields, body)| {
        let chunked = body.as_ref().is_some_and(|(_, chunks)| chunks.is_some());
        let version = if old && !chunked { "1.0" } else { "1.1" };
        let mut bytes = format!("{method} {target} HTTP/{version}\r\n").into_bytes();
        for (name, value) in fields {
            bytes.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
        }
        match body {
            None => bytes.extend_from_slice(b"\r\n"),
            Some((body, None)) => {
                bytes.extend_from_slice(
                    format!("content-length: {}\r\n\r\n", body.len()).as_bytes(),
                );
                bytes.extend_from_slice(&body);
            }
            Some((body, Some((size, extension)))) => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(size) {
                    bytes.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
            }
        }
        bytes
    })
}

/// This test states the classes of bytes independently. The guard uses one table for runs of bytes and for single
/// ones, so comparing the two would not find a fault in it.
#[test]
fn targets_and_values_are_made_of_these_bytes_and_no_others() {
    for byte in 0..=u8::MAX {
        let is_refused = |before: &[u8], behind: &[u8]| {
            let bytes = [before, &[byte], behind].concat();
            Guard::new().check(&bytes).stopped.is_some()
        };
        let is_graphic = (0x21..=0x7e).contains(&byte);
        let in_path = is_graphic && !b"#<>`".contains(&byte);
        let in_query = is_graphic && !b"#<>\"".contains(&byte);
        // A space ends the target, and what is behind it is no version.
        assert_eq!(is_refused(b"GET /a", b"a"), !in_path, "{byte} in a path");
        let before = b"GET /a?b";
        assert_eq!(is_refused(before, b"a"), !in_query, "{byte} in a query");
        let in_value = byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
        let before = b"GET / HTTP/1.1\r\nx: a";
        assert_eq!(is_refused(before, b"a"), !in_value, "{byte} in a value");
        let in_name = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let before = b"GET / HTTP/1.1\r\nx";
        let ends = byte == b':';
        assert_eq!(
            is_refused(before, b"a"),
            !in_name && !ends,
            "{byte} in a name"
        );
    }
}

proptest! {
    #[test]
    fn valid_requests_pass_in_any_pieces(
        requests in prop::collection::vec(request(), 1..6),
        cuts in prop::collection::vec(1..100_usize, 1..40),
    ) {
        let bytes = requests.concat();
        let mut guard = Guard::new();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            let outcome = guard.check(now);
            prop_assert_eq!(outcome, GuardOutcome { passed: now.len(), stopped: None });
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(guard.requests(), requests.len() as u64);
    }

    #[test]
    fn pieces_change_nothing(bytes in prop::collection::vec(noise(), 0..200), size in 1..20_usize) {
        let bytes = bytes.concat();
        prop_assert_eq!(run(&bytes, size), run(&bytes, usize::MAX));
    }
}

/// Bytes that requests are made of, in any order.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n", "content-length: 5\r\n", "\r\n", "hello",
            "transfer-encoding: chunked\r\n", "5\r\n", "0\r\n", "0\r\n\r\n", "host: a\r\n", "upgrade: x\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}
