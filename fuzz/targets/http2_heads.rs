//! Heads of an HTTP/2 client as they are counted below hyper: a byte that says how the rest is read, a byte each for the
//! bounds on fields and on requests, then the client's bytes, against a plain reader of RFC 9113 and RFC 7541 that has
//! all bytes at once.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use vestibule_proxy::http::PREFACE;
use vestibule_proxy::http::heads::{Heads, Seen};

/// Bytes of the header of a frame.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// What takes the place of a field that is one too many.
const REFUSED: u8 = 0x80;
/// Most bytes that follow the prefix of a length.
const LENGTH: usize = 5;

fuzz_target!(|data: &[u8]| {
    let [mode, most, streams, rest @ ..] = data else {
        return;
    };
    // Mutations seldom leave the preface whole, or the length of a frame right.
    let frames = match mode % 2 {
        0 => rest.to_vec(),
        _ => [PREFACE, &frames(rest)].concat(),
    };
    let (most, streams) = (usize::from(most % 64), u32::from(streams % 8));
    let expected = read(&frames, most, streams);
    let size = usize::from(mode / 2) + 1;
    for size in [frames.len().max(1), size, 1] {
        let found = follow(&frames, most, streams, size);
        assert_eq!(found, expected, "in pieces of {size}");
    }
});

/// Frames of which the input says kind, flags, stream, length and payload.
fn frames(mut input: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let [kind, flags, stream, length, rest @ ..] = input {
        let kind = [HEADERS, CONTINUATION, 0, 4][usize::from(kind % 4)];
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        all.extend([0, 0, payload.len() as u8, kind, *flags, 0, 0, 0, *stream]);
        all.extend(payload);
        input = rest;
    }
    all
}

/// What `Heads` sees, and the bytes that it passes on.
fn follow(bytes: &[u8], most: usize, streams: u32, size: usize) -> (Seen, Vec<u8>) {
    let mut bytes = bytes.to_vec();
    let mut heads = Heads::new(most, streams);
    let mut all = Seen::default();
    for piece in bytes.chunks_mut(size) {
        let seen = heads.follow(piece);
        all.requests += seen.requests;
        all.fields += seen.fields;
        all.idle += seen.idle;
    }
    (all, bytes)
}

/// The same as the specifications read.
fn read(bytes: &[u8], most: usize, streams: u32) -> (Seen, Vec<u8>) {
    let mut bytes = bytes.to_vec();
    let mut seen = Seen::default();
    // Each block as the places of its bytes. What continues nothing is a block as well.
    let mut blocks: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut last, mut trailers, mut is_idle) = (0, 0, false);
    let mut at = PREFACE.len();
    while let Some(header) = bytes.get(at..at + HEAD) {
        let length =
            usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        let (kind, flags) = (header[3], header[4]);
        let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
        at += HEAD;
        if kind == HEADERS {
            blocks.push(Vec::new());
            if stream > last {
                (last, is_idle) = (stream, false);
                seen.requests += 1;
                if flags & END_STREAM == 0 {
                    trailers = streams.min(trailers + 1);
                }
            } else {
                is_idle = trailers == 0;
                trailers -= u32::from(!is_idle);
            }
        }
        if kind == HEADERS || kind == CONTINUATION {
            seen.idle += u32::from(is_idle);
            let block = block(kind, flags, length, bytes.get(at));
            let there = block.map(|place| at + place);
            let there = there.filter(|place| *place < bytes.len());
            blocks.last_mut().expect("a block").extend(there);
        }
        at += length;
    }
    for block in blocks {
        seen.fields += count(&mut bytes, &block, most);
    }
    (seen, bytes)
}

/// The places of a payload that are not padding or a priority.
fn block(kind: u8, flags: u8, length: usize, first: Option<&u8>) -> Range<usize> {
    let has = |flag| kind == HEADERS && flags & flag != 0;
    let (mut begin, mut padding) = (0, 0);
    if has(PADDED) {
        begin += 1;
        padding = first.copied().unwrap_or_default().into();
    }
    if has(PRIORITY) {
        begin += 5;
    }
    begin..length.saturating_sub(padding)
}

/// Counts the fields of a block, and refuses the first that is one too many.
fn count(bytes: &mut [u8], block: &[usize], most: usize) -> u64 {
    let text: Vec<u8> = block.iter().map(|place| bytes[*place]).collect();
    let (mut at, mut fields) = (0, 0);
    while let Some(first) = text.get(at) {
        if fields == most {
            bytes[block[at]] = REFUSED;
            break;
        }
        fields += 1;
        match behind(&text, at, *first) {
            Some(next) => at = next,
            None => break,
        }
    }
    fields as u64
}

/// Where the next field begins, if this one is there as a whole.
fn behind(text: &[u8], at: usize, first: u8) -> Option<usize> {
    let (bits, strings) = match first {
        0x80.. => (7, 0),
        0x40.. => (6, 1),
        0x20.. => (5, 0),
        _ => (4, 1),
    };
    let mask = (1_u8 << bits) - 1;
    let strings = strings * if first & mask == 0 { 2 } else { 1 };
    let mut at = at + 1;
    if first & mask == mask {
        at += text.get(at..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
    }
    for _ in 0..strings {
        let prefix = text.get(at)? & 0x7f;
        at += 1;
        let mut length = usize::from(prefix);
        if prefix == 0x7f {
            let more = text.get(at..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
            if more > LENGTH {
                return None;
            }
            for (number, byte) in text[at..at + more].iter().enumerate() {
                length += usize::from(byte & 0x7f) << (7 * number);
            }
            at += more;
        }
        at += length;
    }
    Some(at)
}
