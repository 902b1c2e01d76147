//! Owns the view of the heads of an HTTP/2 client below hyper: how many requests it begins, how many fields each head
//! has, and which heads belong to nothing.
//!
//! h2 bounds a head by its size, which allows about 1900 fields in 64 KiB. A client sends a field with one byte if it
//! has sent the field before, and the decoded field takes more than a hundred. So the fields are counted before h2
//! decodes them. The count needs no decoding: HPACK (RFC 7541 section 6) says at the beginning of each field, and of
//! each string, where it ends.
//!
//! A stream has one head and one set of trailers. h2 decodes and drops what comes after that on a stream that it has
//! reset. So what comes in addition counts as frames that serve no request.

use super::frames::{CONTINUATION, END_STREAM, FrameHeader, FramePosition, HEADERS};

const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes that the flag `PRIORITY` adds.
const PRIORITY_BYTES: usize = 5;
/// A field that no decoder accepts: the entry 0 of the table (RFC 7541 section 6.1). h2 ends the connection at once.
const REFUSED: u8 = 0x80;
/// Most bytes of a number that follow its prefix. h2 accepts fewer.
const NUMBER: u8 = 5;

/// Follows the bytes that a client sends.
pub struct Heads {
    /// Most fields of one head. The pseudo-header fields count.
    most: usize,
    position: FramePosition,
    part: Part,
    /// Bytes at the end of the payload that are padding.
    padding: usize,
    at: At,
    /// Fields of the present head so far.
    fields: usize,
    /// The highest stream that was opened.
    last: u32,
    /// Most requests at one time.
    streams: u32,
    /// How many requests may still have trailers.
    trailers: u32,
    /// Whether the present frames with fields are neither a head nor trailers.
    is_idle: bool,
}

/// The part of a frame's payload to which its next byte belongs.
#[derive(Clone, Copy)]
enum Part {
    /// The frame has no part of a head.
    Other,
    /// The byte that says how long the padding is. The flag says whether a priority follows.
    PadLength(bool),
    /// This many bytes are left of the priority.
    Priority(usize),
    Block,
}

/// The position of the next byte in a block of fields.
#[derive(Clone, Copy)]
enum At {
    Field,
    /// The index of a field or of its name, or a size of the table. So many strings follow.
    Number(u8),
    /// The length of a string. It is the last of so many.
    Length(u8),
    /// More bytes of that length.
    MoreLength {
        strings: u8,
        length: usize,
        bytes: u8,
    },
    /// So many bytes of a string.
    Text(u8, usize),
    /// The block is refused, or h2 will refuse it.
    Refused,
}

/// What some bytes of a client contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that begin.
    pub requests: u32,
    /// Fields of heads and trailers.
    pub fields: u64,
    /// Frames with fields that belong to no request: its trailers came before, or it has none.
    pub idle: u32,
}

impl Heads {
    /// The state at the beginning of a connection. `most` is the most fields of one head, and `streams` is the most
    /// requests at one time.
    #[must_use]
    pub fn new(most: usize, streams: u32) -> Self {
        Self {
            most,
            streams,
            trailers: 0,
            is_idle: false,
            position: FramePosition::of_client(),
            part: Part::Other,
            padding: 0,
            at: At::Field,
            fields: 0,
            last: 0,
        }
    }

    /// Reads bytes. If a head has too many fields, the first of these is replaced by one for which h2 ends the
    /// connection before it decodes more of the head.
    pub fn follow(&mut self, bytes: &mut [u8]) -> Seen {
        let mut seen = Seen::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = if let Some((taken, header)) = self.position.header(rest) {
                if let Some(header) = header {
                    self.begin(&header, &mut seen);
                }
                taken
            } else {
                let taken = self.payload(rest, &mut seen);
                self.position.payload(taken)
            };
            rest = rest.get_mut(taken..).unwrap_or_default();
        }
        seen
    }

    /// Takes a complete frame header.
    fn begin(&mut self, header: &FrameHeader, seen: &mut Seen) {
        let (kind, flags) = (header.kind, header.flags);
        self.padding = 0;
        let has_priority = flags & PRIORITY != 0;
        self.part = match kind {
            HEADERS if flags & PADDED != 0 => Part::PadLength(has_priority),
            HEADERS if has_priority => Part::Priority(PRIORITY_BYTES),
            HEADERS | CONTINUATION => Part::Block,
            _ => Part::Other,
        };
        if kind == HEADERS {
            (self.at, self.fields) = (At::Field, 0);
            let stream = u32::from_be_bytes(header.stream) & (u32::MAX >> 1);
            if stream > self.last {
                self.last = stream;
                seen.requests += 1;
                self.is_idle = false;
                if flags & END_STREAM == 0 {
                    // Of requests that ended without trailers, no more are remembered than can be open.
                    self.trailers = self.trailers.saturating_add(1).min(self.streams);
                }
            } else {
                // These are trailers of a stream that was opened before, or come after its end.
                self.is_idle = self.trailers == 0;
                self.trailers = self.trailers.saturating_sub(1);
            }
        }
        if self.is_idle && (kind == HEADERS || kind == CONTINUATION) {
            seen.idle += 1;
        }
    }

    /// Takes bytes of a payload. Returns how many.
    fn payload(&mut self, bytes: &mut [u8], seen: &mut Seen) -> usize {
        let all = self.position.left().min(bytes.len());
        match self.part {
            Part::Other => all,
            Part::PadLength(has_priority) => {
                self.padding = bytes.first().copied().unwrap_or_default().into();
                self.part = if has_priority {
                    Part::Priority(PRIORITY_BYTES)
                } else {
                    Part::Block
                };
                1
            }
            Part::Priority(left) => {
                let taken = left.min(all);
                self.part = match left - taken {
                    0 => Part::Block,
                    left => Part::Priority(left),
                };
                taken
            }
            Part::Block => {
                let block = self.position.left().saturating_sub(self.padding).min(all);
                if block == 0 {
                    return all;
                }
                let before = self.fields;
                self.block(bytes.get_mut(..block).unwrap_or_default());
                seen.fields += self.fields.saturating_sub(before) as u64;
                block
            }
        }
    }

    /// Takes bytes of a block of fields.
    fn block(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while let Some((first, behind)) = rest.split_first_mut() {
            let byte = *first;
            self.at = match self.at {
                At::Refused => return,
                At::Text(strings, left) => {
                    let taken = left.min(behind.len() + 1);
                    rest = behind.get_mut(taken - 1..).unwrap_or_default();
                    self.at = text(strings, left - taken);
                    continue;
                }
                At::Field if self.fields == self.most => {
                    *first = REFUSED;
                    At::Refused
                }
                At::Field => {
                    self.fields += 1;
                    field(byte)
                }
                At::Number(strings) if byte & 0x80 != 0 => At::Number(strings),
                At::Number(strings) => strings_of(strings),
                At::Length(strings) if byte & 0x7f == 0x7f => At::MoreLength {
                    strings,
                    length: 0x7f,
                    bytes: 0,
                },
                At::Length(strings) => text(strings, usize::from(byte & 0x7f)),
                At::MoreLength { bytes: NUMBER, .. } => At::Refused,
                At::MoreLength {
                    strings,
                    length,
                    bytes,
                } => {
                    let more = usize::from(byte & 0x7f) << (7 * bytes);
                    let length = length.saturating_add(more);
                    if byte & 0x80 == 0 {
                        text(strings, length)
                    } else {
                        At::MoreLength {
                            strings,
                            length,
                            bytes: bytes + 1,
                        }
                    }
                }
            };
            rest = behind;
        }
    }
}

/// The position after the first byte of a field.
fn field(byte: u8) -> At {
    let (mask, is_literal) = match byte {
        // An entry of the table.
        0x80.. => (0x7f, false),
        // A value that becomes an entry.
        0x40.. => (0x3f, true),
        // A new size of the table.
        0x20.. => (0x1f, false),
        // A value that does not become an entry.
        _ => (0x0f, true),
    };
    let index = byte & mask;
    // A name that is not in the table is a string as well.
    let strings = match (is_literal, index) {
        (false, _) => 0,
        (true, 0) => 2,
        (true, _) => 1,
    };
    if index == mask {
        At::Number(strings)
    } else {
        strings_of(strings)
    }
}

fn strings_of(strings: u8) -> At {
    match strings {
        0 => At::Field,
        strings => At::Length(strings),
    }
}

/// The position in a string of which so many bytes are left.
fn text(strings: u8, left: usize) -> At {
    match left {
        0 => strings_of(strings.saturating_sub(1)),
        left => At::Text(strings, left),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vestibule_test_support::frames::frame;

    use super::super::PREFACE;
    use super::*;

    /// A number with a prefix, as RFC 7541 section 5.1 writes it.
    fn number(pattern: u8, bits: u8, mut value: usize) -> Vec<u8> {
        let mask = (1_usize << bits) - 1;
        if value < mask {
            return vec![pattern | u8::try_from(value).unwrap()];
        }
        let mut all = vec![pattern | u8::try_from(mask).unwrap()];
        value -= mask;
        while value >= 128 {
            all.push(u8::try_from(value % 128).unwrap() | 0x80);
            value /= 128;
        }
        all.push(u8::try_from(value).unwrap());
        all
    }

    fn string(huffman: u8, length: usize) -> Vec<u8> {
        [number(huffman, 7, length), vec![0xff; length]].concat()
    }

    /// Any field: its kind, an index, and lengths of strings.
    fn any_field() -> impl Strategy<Value = Vec<u8>> {
        let length = prop_oneof![0_usize..4, 120_usize..140, 250_usize..600];
        let huffman = prop_oneof![Just(0_u8), Just(0x80)];
        let index = prop_oneof![0_usize..3, 10_usize..20, 60_usize..70, 120_usize..300];
        (0_usize..5, index, huffman, length.clone(), length).prop_map(
            |(kind, index, huffman, name, value)| {
                let (pattern, bits) = [(0x80, 7), (0x40, 6), (0x20, 5), (0, 4), (0x10, 4)][kind];
                let mut all = number(pattern, bits, index);
                if kind != 0 && kind != 2 {
                    if index == 0 {
                        all.extend(string(huffman, name));
                    }
                    all.extend(string(huffman, value));
                }
                all
            },
        )
    }

    #[test]
    fn a_request_has_trailers_once() {
        let head = |flags, stream| frame(HEADERS, flags, stream, &[0x82]);
        let trailers = |stream| head(5, stream);
        let parts = |stream| [head(1, stream), frame(CONTINUATION, 4, stream, &[0x82])].concat();
        for (what, bytes, idle) in [
            ("trailers", [head(4, 1), trailers(1)].concat(), 0),
            ("in two frames", [head(4, 1), parts(1)].concat(), 0),
            ("twice", [head(4, 1), trailers(1), trailers(1)].concat(), 1),
            (
                "twice, in two frames",
                [head(4, 1), trailers(1), parts(1)].concat(),
                2,
            ),
            ("after the end", [head(5, 1), trailers(1)].concat(), 1),
            (
                "of two requests",
                [head(4, 1), head(4, 3), trailers(1), trailers(3)].concat(),
                0,
            ),
            // With two at one time, one of the first three has ended.
            (
                "of three requests",
                [
                    head(4, 1),
                    head(4, 3),
                    head(4, 5),
                    trailers(3),
                    trailers(5),
                    trailers(5),
                ]
                .concat(),
                1,
            ),
        ] {
            let mut heads = Heads::new(100, 2);
            let seen = heads.follow(&mut [PREFACE, &bytes].concat());
            assert_eq!(seen.idle, idle, "{what}");
        }
    }

    proptest! {
        #[test]
        fn fields_are_counted_in_any_frames_and_pieces(
            fields in prop::collection::vec(any_field(), 0..40),
            cut in 1_usize..400,
            piece in 1_usize..400,
            padding in 0_usize..20,
            most in 1_usize..60,
        ) {
            let block = fields.concat();
            let mut blocks = block.chunks(cut);
            let first = blocks.next().unwrap_or_default();
            let padded = [
                &[u8::try_from(padding).unwrap()][..], &[1; PRIORITY_BYTES], first, &vec![0x82; padding],
            ].concat();
            let mut bytes = [
                PREFACE,
                &frame(4, 0, 0, &[0x82; 6]),
                &frame(HEADERS, PADDED | PRIORITY, 1, &padded),
            ].concat();
            for block in blocks {
                bytes.extend(frame(CONTINUATION, 0, 1, block));
            }
            bytes.extend(frame(0, 0, 1, &[0x82; 100]));
            // Trailers, and another request.
            bytes.extend(frame(HEADERS, 5, 1, &[0x82]));
            bytes.extend(frame(HEADERS, 5, 3, &[0x82]));
            let before = bytes.clone();
            let mut heads = Heads::new(most, 100);
            let mut seen = Seen::default();
            for piece in bytes.chunks_mut(piece) {
                let Seen { requests, fields, idle } = heads.follow(piece);
                seen.requests += requests;
                seen.fields += fields;
                seen.idle += idle;
            }
            let counted = fields.len().min(most) as u64 + 2;
            prop_assert_eq!(seen, Seen { requests: 2, fields: counted, idle: 0 });
            // One byte has changed if there are too many.
            let mut changed = before.iter().zip(&bytes).filter(|(old, new)| old != new);
            match fields.get(most) {
                Some(over) if over[0] != REFUSED => {
                    prop_assert_eq!(changed.next(), Some((&over[0], &REFUSED)));
                }
                _ => {}
            }
            prop_assert_eq!(changed.next(), None);
        }

        #[test]
        fn nothing_that_a_client_sends_is_too_much(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let begin = frame(HEADERS, 0, 1, &[]);
            let mut heads = Heads::new(100, 100);
            heads.follow(&mut [PREFACE, &begin[..3], &[1, 0, 0, 0, 0, 1]].concat());
            heads.follow(&mut frame(CONTINUATION, 0, 1, &bytes));
            heads.follow(&mut bytes);
        }
    }
}
