//! Owns the framing of a response's body in HTTP/1.1: where it ends, and which of the bytes are its content.
//!
//! It reads each byte once, in whatever pieces they come, and keeps none but those of trailers. It is strict where two readers
//! could disagree about the end, because bytes behind the end would be taken for the response to another client's request.

use hyper::HeaderMap;
use hyper::header::HeaderValue;

use super::error::Http1Error;
use super::fields::append;
use crate::http::head_size::FIELDS;

/// Most bytes of the extensions of all chunks of a body. They are hardly ever used.
const MAX_EXTENSIONS: u16 = 16 * 1024;
/// Most bytes of trailers. Those that are passed on have a bound of their own.
const MAX_TRAILERS: usize = 64 * 1024;

/// The end of a body (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk and its trailers.
    Chunked,
    /// With the connection.
    UntilClose,
}

/// The position in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Content, with the number of bytes that are left.
    Length(u64),
    UntilClose,
    /// In the size of a chunk. `None` if it has no digit yet.
    Size(Option<u64>),
    /// Behind the size, where white space is allowed.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    /// In a chunk, with the number of bytes that are left.
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    Trailers,
    Over,
    /// Behind an error.
    Failed,
}

/// Follows the bytes of one body.
#[derive(Debug)]
pub(super) struct BodyDecoder {
    state: State,
    /// Whether the head says how long the body is.
    has_length: bool,
    /// Bytes of extensions so far.
    extensions: u16,
    /// The trailers as they arrive.
    trailers: Vec<u8>,
    /// Trailers that arrived and were not taken.
    fields: Option<HeaderMap>,
    /// Whether bytes came behind the end, or the connection ended.
    has_excess: bool,
    /// The error that follows content which was decoded.
    failure: Option<Http1Error>,
}

impl BodyDecoder {
    pub(super) fn new(framing: Framing) -> Self {
        Self {
            state: match framing {
                Framing::Length(0) => State::Over,
                Framing::Length(length) => State::Length(length),
                Framing::Chunked => State::Size(None),
                Framing::UntilClose => State::UntilClose,
            },
            has_length: matches!(framing, Framing::Length(_)),
            extensions: 0,
            trailers: Vec::new(),
            fields: None,
            has_excess: false,
            failure: None,
        }
    }

    /// Whether all of the body has arrived.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the body has ended before the connection, and no byte came behind its end.
    pub(super) fn ends_in_order(&self) -> bool {
        self.is_over() && !self.has_excess
    }

    /// How many bytes are left of a body whose length is known.
    pub(super) fn left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Over if self.has_length => Some(0),
            _ => None,
        }
    }

    /// Takes the trailers, if there are any.
    pub(super) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.fields.take()
    }

    pub(super) fn has_trailers(&self) -> bool {
        self.fields.is_some()
    }

    /// Fails if what follows the content so far is known to be wrong.
    pub(super) fn check(&mut self) -> Result<(), Http1Error> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Records that the connection has ended.
    ///
    /// # Errors
    /// The body is not complete.
    pub(super) fn end(&mut self) -> Result<(), Http1Error> {
        self.check()?;
        match self.state {
            State::UntilClose | State::Over => {
                self.state = State::Over;
                self.has_excess = true;
                Ok(())
            }
            _ => Err(Http1Error::Incomplete),
        }
    }

    /// Takes the next bytes of the connection, and moves what is content to their front. Returns how many bytes that is.
    ///
    /// # Errors
    /// The framing is wrong. No byte behind the error is looked at. If there is content before it, the next call fails, so that
    /// the content is passed on however the bytes were cut.
    pub(super) fn decode(&mut self, bytes: &mut [u8]) -> Result<usize, Http1Error> {
        self.check()?;
        let (mut at, mut content) = (0, 0);
        while let Some(&byte) = bytes.get(at) {
            let left = bytes.len() - at;
            match &mut self.state {
                State::UntilClose => return Ok(left),
                State::Over => {
                    self.has_excess = true;
                    return Ok(content);
                }
                State::Length(rest) | State::Chunk(rest) => {
                    let count = left.min(usize::try_from(*rest).unwrap_or(usize::MAX));
                    *rest -= count as u64;
                    if content != at {
                        bytes.copy_within(at..at + count, content);
                    }
                    at += count;
                    content += count;
                    match self.state {
                        State::Length(0) => self.state = State::Over,
                        State::Chunk(0) => self.state = State::ChunkCr,
                        _ => {}
                    }
                }
                _ => match self.step(byte) {
                    Ok(next) => {
                        self.state = next;
                        at += 1;
                    }
                    Err(error) => {
                        self.state = State::Failed;
                        if content == 0 {
                            return Err(error);
                        }
                        self.failure = Some(error);
                        return Ok(content);
                    }
                },
            }
        }
        Ok(content)
    }

    /// The state after one byte of framing.
    fn step(&mut self, byte: u8) -> Result<State, Http1Error> {
        let next = match (self.state, byte) {
            (State::Size(size), _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                let size = size.unwrap_or(0).checked_mul(16);
                let size = size.and_then(|size| size.checked_add(digit.into()));
                State::Size(Some(
                    size.ok_or(Http1Error::Chunk("its size is too large"))?,
                ))
            }
            // Some servers always write sizes of the same width.
            (State::Size(Some(size)) | State::Space(size), b' ' | b'\t') => State::Space(size),
            (State::Size(Some(size)) | State::Space(size), b';') => State::Extension(size),
            (State::Size(Some(size)) | State::Space(size) | State::Extension(size), b'\r') => {
                State::SizeLf(size)
            }
            (State::Size(_) | State::Space(_), _) => {
                return Err(Http1Error::Chunk("its size is not a number"));
            }
            (State::Extension(size), b'\t' | b' '..=b'~' | 0x80..) => {
                self.count_extension()?;
                State::Extension(size)
            }
            (State::Extension(_), _) => {
                return Err(Http1Error::Chunk("an extension has a control character"));
            }
            (State::SizeLf(0), b'\n') => State::Trailers,
            (State::SizeLf(size), b'\n') => State::Chunk(size),
            (State::ChunkCr, b'\r') => State::ChunkLf,
            (State::ChunkLf, b'\n') => State::Size(None),
            (State::SizeLf(_) | State::ChunkCr | State::ChunkLf, _) => {
                return Err(Http1Error::Chunk("a line does not end with CR LF"));
            }
            (State::Trailers, _) => return self.trailer(byte),
            (State::Failed, _) => return Err(Http1Error::Chunk("one before it is")),
            // These are not framing.
            (State::Length(_) | State::UntilClose | State::Chunk(_) | State::Over, _) => self.state,
        };
        Ok(next)
    }

    fn count_extension(&mut self) -> Result<(), Http1Error> {
        self.extensions += 1;
        if self.extensions > MAX_EXTENSIONS {
            return Err(Http1Error::Chunk("extensions are too long"));
        }
        Ok(())
    }

    fn trailer(&mut self, byte: u8) -> Result<State, Http1Error> {
        self.trailers.push(byte);
        if self.trailers == b"\r\n" {
            self.trailers = Vec::new();
            return Ok(State::Over);
        }
        if !self.trailers.ends_with(b"\r\n\r\n") {
            if self.trailers.len() >= MAX_TRAILERS {
                return Err(Http1Error::TrailersTooLarge);
            }
            return Ok(State::Trailers);
        }
        let trailers = std::mem::take(&mut self.trailers);
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let (length, fields) = match httparse::parse_headers(&trailers, &mut fields)? {
            httparse::Status::Complete(parsed) => parsed,
            httparse::Status::Partial => return Err(Http1Error::Incomplete),
        };
        if length != trailers.len() {
            return Err(Http1Error::Chunk("trailers end more than once"));
        }
        let mut parsed = HeaderMap::with_capacity(fields.len());
        for field in fields {
            append(
                &mut parsed,
                field.name,
                HeaderValue::from_bytes(field.value),
            )?;
        }
        self.fields = Some(parsed);
        Ok(State::Over)
    }
}
