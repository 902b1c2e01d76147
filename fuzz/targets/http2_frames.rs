//! What of an HTTP/2 client's frames is counted below hyper: a byte that says how the bytes are cut, where to
//! stop and whether the preface is in them, then the bytes, against a plain reader of RFC 9113 section 4.1.
#![no_main]

use std::cell::Cell;

use libfuzzer_sys::fuzz_target;
use tokio::io::ReadBuf;
use vestibule_proxy::http::PREFACE;
use vestibule_proxy::http::frames::Frames;

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Frames of the poison that are looked at.
const POISON: usize = 20;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    // Mutations seldom leave the preface whole.
    let bytes = match mode % 2 {
        0 => rest.to_vec(),
        _ => [PREFACE, rest].concat(),
    };
    let expected = read(&bytes);
    let size = usize::from(mode / 2) + 1;
    for size in [bytes.len().max(1), size, 1] {
        assert_eq!(follow(&bytes, size), expected, "in pieces of {size}");
    }
    stop(&bytes, usize::from(mode / 16), &expected);
    if expected.is_between {
        poison(&bytes, size, &expected);
    }
});

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Frames that ask for nothing.
    idle: usize,
    is_between: bool,
    /// Last of the streams whose header block has not ended. Only the oracle knows.
    open: Option<[u8; 4]>,
}

impl Seen {
    fn of(idle: usize, frames: &Frames, expected: Option<[u8; 4]>) -> Self {
        Self {
            idle,
            is_between: frames.is_between(),
            open: expected,
        }
    }
}

/// As the specification reads: a preface, then heads and payloads.
fn read(bytes: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let Some(mut rest) = bytes.get(PREFACE.len()..) else {
        return seen;
    };
    while let Some((head, behind)) = rest.split_at_checked(HEAD) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        match kind {
            0 => seen.idle += usize::from(length == 0 && flags & 1 == 0),
            1 | 9 => {
                let stream = [head[5], head[6], head[7], head[8]];
                seen.open = (flags & 4 == 0).then_some(stream);
            }
            _ => seen.idle += 1,
        }
        match behind.get(length..) {
            Some(next) => rest = next,
            None => return seen,
        }
    }
    seen.is_between = rest.is_empty();
    seen
}

fn follow(bytes: &[u8], size: usize) -> Seen {
    let (mut frames, mut idle) = (Frames::new(), 0);
    for piece in bytes.chunks(size) {
        assert_eq!(frames.follow(piece, || idle += 1, || false), piece.len());
    }
    Seen::of(idle, &frames, read(bytes).open)
}

/// Stops once `limit` frames asked for nothing, and goes on from there.
fn stop(bytes: &[u8], limit: usize, expected: &Seen) {
    let (mut frames, idle) = (Frames::new(), Cell::new(0));
    let count = || idle.set(idle.get() + 1);
    let passed = frames.follow(bytes, count, || idle.get() >= limit);
    if passed < bytes.len() {
        assert!(frames.is_between());
        assert_eq!(idle.get(), limit);
        assert_eq!(frames.follow(&bytes[passed..], count, || true), 0);
        let before = read(&bytes[..passed]);
        assert!(before.is_between);
        assert_eq!(before.idle, limit);
    }
    frames.follow(&bytes[passed..], count, || false);
    assert_eq!(&Seen::of(idle.get(), &frames, expected.open), expected);
}

/// What is given to h2 in place of the client's bytes goes on with the open header block, or begins one, and
/// never ends it.
fn poison(bytes: &[u8], size: usize, expected: &Seen) {
    let mut frames = Frames::new();
    frames.follow(bytes, || (), || false);
    let mut given = Vec::new();
    while given.len() < HEAD * POISON {
        let mut space = vec![0; size];
        let mut buffer = ReadBuf::new(&mut space);
        frames.poison(&mut buffer);
        assert!(!buffer.filled().is_empty());
        given.extend_from_slice(buffer.filled());
    }
    let stream = expected.open.unwrap_or([0, 0, 0, 1]);
    for (number, frame) in given.chunks_exact(HEAD).enumerate() {
        let begins = number == 0 && expected.open.is_none();
        let kind = if begins { 1 } else { 9 };
        assert_eq!(frame[..5], [0, 0, 0, kind, 0]);
        assert_eq!(frame[5..], stream);
    }
}
