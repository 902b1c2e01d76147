//! Owns the view of HTTP/2 below hyper: where each frame ends, and which frames serve no request.
//!
//! h2 itself bounds empty DATA frames, CONTINUATION frames and resets of its own. But it answers every PING and
//! SETTINGS frame, and processes every other frame, without a limit.

use tokio::io::ReadBuf;

use super::PREFACE;

/// Bytes of a frame header: length, type, flags, stream (RFC 9113 section 4.1).
pub(super) const HEAD: usize = 9;
const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const SETTINGS: u8 = 4;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// How many frames [`Frames::poison`] writes at one time.
const POISON: usize = 16;

/// The header of a frame.
pub(super) struct FrameHeader {
    /// Bytes of the payload.
    length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// The identifier of the stream, with the reserved bit.
    pub(super) stream: [u8; 4],
}

/// The position of the next byte among the frames that one side of a connection sends.
pub(super) struct FramePosition {
    /// Bytes of the preface that have not arrived.
    preface: usize,
    head: [u8; HEAD],
    /// Bytes of the header that have arrived.
    begun: usize,
    /// Bytes of the payload that have not arrived.
    left: usize,
}

impl FramePosition {
    /// The beginning of what a client sends.
    pub(super) fn of_client() -> Self {
        Self {
            preface: PREFACE.len(),
            ..Self::of_server()
        }
    }

    /// The beginning of what a server sends, which has no preface.
    pub(super) fn of_server() -> Self {
        Self {
            preface: 0,
            head: [0; HEAD],
            begun: 0,
            left: 0,
        }
    }

    /// Whether the next byte is the first of a frame.
    fn is_between(&self) -> bool {
        self.preface == 0 && self.begun == 0 && self.left == 0
    }

    /// Bytes of the payload that have not arrived.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Takes bytes of the preface or of a frame header. Returns how many, and the header if it is complete now; `None`
    /// if the next byte belongs to a payload.
    pub(super) fn header(&mut self, bytes: &[u8]) -> Option<(usize, Option<FrameHeader>)> {
        if self.preface > 0 {
            let taken = self.preface.min(bytes.len());
            self.preface -= taken;
            return Some((taken, None));
        }
        if self.left > 0 {
            return None;
        }
        let taken = (HEAD - self.begun).min(bytes.len());
        for (to, from) in self.head.iter_mut().skip(self.begun).zip(bytes) {
            *to = *from;
        }
        self.begun += taken;
        if self.begun < HEAD {
            return Some((taken, None));
        }
        self.begun = 0;
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.left = usize::try_from(length).unwrap_or(usize::MAX);
        let header = FrameHeader {
            length,
            kind,
            flags,
            stream,
        };
        Some((taken, Some(header)))
    }

    /// Takes bytes of the payload, at most this many. Returns how many.
    pub(super) fn payload(&mut self, most: usize) -> usize {
        let taken = self.left.min(most);
        self.left -= taken;
        taken
    }
}

/// Follows the bytes that one side of a connection sends.
pub struct Frames {
    position: FramePosition,
    /// The stream whose header block continues in the next frame.
    open: Option<[u8; 4]>,
    /// Bytes of the poison that were written.
    poisoned: usize,
}

/// The use of a frame for the requests of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It has a head or trailers, or a part of them.
    Head,
    /// It has this many bytes of a body, or its end.
    Data(u32),
    /// It serves no request.
    None,
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

impl Frames {
    /// The state at the beginning of a connection, before the preface.
    #[must_use]
    pub fn new() -> Self {
        Self::at(FramePosition::of_client())
    }

    /// The state at the beginning of what a server sends, which has no preface.
    #[must_use]
    pub(super) fn of_server() -> Self {
        Self::at(FramePosition::of_server())
    }

    fn at(position: FramePosition) -> Self {
        Self {
            position,
            open: None,
            poisoned: 0,
        }
    }

    /// Whether the next byte is the first of a frame.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.position.is_between()
    }

    /// Reads bytes up to the end of the first frame at which `stop` returns true. Calls `idle` for each frame of a
    /// client that serves no request. Returns how many bytes were read.
    pub fn follow(
        &mut self,
        bytes: &[u8],
        mut idle: impl FnMut(),
        stop: impl Fn() -> bool,
    ) -> usize {
        let count = |frame| {
            // Those with heads are bounded elsewhere: by the number of requests, and by the size and pieces of a head.
            // Those that come after the trailers are counted together with the heads ([`super::heads`]).
            if frame == Use::None {
                idle();
            }
        };
        self.follow_until(bytes, count, stop)
    }

    /// Reads bytes, and calls `frame` for each frame that begins in them.
    pub(super) fn follow_all(&mut self, bytes: &[u8], frame: impl FnMut(Use)) {
        self.follow_until(bytes, frame, || false);
    }

    fn follow_until(
        &mut self,
        bytes: &[u8],
        mut frame: impl FnMut(Use),
        stop: impl Fn() -> bool,
    ) -> usize {
        let mut rest = bytes;
        while !(rest.is_empty() || self.is_between() && stop()) {
            let taken = if let Some((taken, header)) = self.position.header(rest) {
                if let Some(header) = header {
                    frame(self.begin(&header));
                }
                taken
            } else {
                self.position.payload(rest.len())
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        bytes.len() - rest.len()
    }

    /// Takes a complete frame header.
    fn begin(&mut self, header: &FrameHeader) -> Use {
        let FrameHeader {
            length,
            kind,
            flags,
            stream,
        } = *header;
        if kind == HEADERS || kind == CONTINUATION {
            self.open = (flags & END_HEADERS == 0).then_some(stream);
        }
        match kind {
            DATA if length > 0 || flags & END_STREAM != 0 => Use::Data(length),
            HEADERS | CONTINUATION => Use::Head,
            _ => Use::None,
        }
    }

    /// Writes bytes that make h2 end the connection with the error code `ENHANCE_YOUR_CALM`: a header block in more
    /// pieces than h2 accepts. hyper has no call for this. Use it only between frames.
    pub fn poison(&mut self, buffer: &mut ReadBuf<'_>) {
        let is_open = self.open.is_some();
        let [p, q, r, s] = self.open.unwrap_or([0, 0, 0, 1]);
        let room = buffer.remaining().min(HEAD * POISON);
        for _ in 0..room {
            let kind = if self.poisoned < HEAD && !is_open {
                HEADERS
            } else {
                CONTINUATION
            };
            let frame = [0, 0, 0, kind, 0, p, q, r, s];
            let byte = frame.get(self.poisoned % HEAD).copied();
            buffer.put_slice(&[byte.unwrap_or_default()]);
            self.poisoned += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use vestibule_test_support::frames::frame;

    use super::*;

    fn connection() -> Vec<u8> {
        [
            PREFACE,
            &frame(4, 0, 3, &[0; 12]),
            &frame(1, 4, 3, b"block"),
            &frame(0, 0, 3, &[7; 300]),
            &frame(0, 0, 3, b""),
            &frame(0, 1, 3, b""),
            &frame(6, 0, 3, &[0; 8]),
            &frame(3, 0, 3, &[0; 4]),
            &frame(1, 0, 3, b"open"),
        ]
        .concat()
    }

    #[test]
    fn frames_that_ask_for_nothing_are_seen_in_any_pieces() {
        let bytes = connection();
        for size in [1, 2, 7, 9, 24, bytes.len()] {
            let (mut frames, mut idle) = (Frames::new(), 0);
            for piece in bytes.chunks(size) {
                let passed = frames.follow(piece, || idle += 1, || false);
                assert_eq!(passed, piece.len());
            }
            assert!(frames.is_between());
            // SETTINGS, empty DATA, PING, RST_STREAM.
            assert_eq!(idle, 4, "in pieces of {size}");
            assert_eq!(frames.open, Some([0, 0, 0, 3]));
        }
    }

    #[test]
    fn frame_reader_stops_at_the_end_of_a_frame() {
        let bytes = connection();
        let end = PREFACE.len() + 9 + 12;
        let over = Cell::new(false);
        let mut frames = Frames::new();
        let passed = frames.follow(&bytes, || over.set(true), || over.get());
        assert_eq!(passed, end);
        assert!(frames.is_between());
        assert_eq!(frames.follow(&bytes[end..], || (), || over.get()), 0);
    }

    #[test]
    fn the_poison_is_a_header_block_without_end() {
        for (open, first) in [(None, HEADERS), (Some([0, 0, 0, 5]), CONTINUATION)] {
            let mut frames = Frames::new();
            frames.open = open;
            let stream = frames.open.map_or(1, |open| open[3]);
            let mut given = Vec::new();
            while given.len() < 900 {
                let mut space = [0; 13];
                let mut buffer = ReadBuf::new(&mut space);
                frames.poison(&mut buffer);
                given.extend_from_slice(buffer.filled());
            }
            for (n, frame) in given.chunks_exact(HEAD).enumerate() {
                let kind = if n == 0 { first } else { CONTINUATION };
                assert_eq!(frame, [0, 0, 0, kind, 0, 0, 0, 0, stream]);
            }
        }
    }
}
