//! Owns the reading of one response from the bytes of a connection, in whatever pieces they come.

use bytes::Bytes;
use hyper::{HeaderMap, Response, StatusCode};

use super::body_decoder::{BodyDecoder, Framing};
use super::error::Http1Error;
use super::response_head::{self, ResponseHead};

/// Most bytes of a response's head.
const MAX_HEAD: usize = 64 * 1024;

/// The head of a response, and the bytes that were read behind it.
#[derive(Debug)]
pub struct BegunResponse {
    /// The head.
    pub response: Response<()>,
    /// The beginning of the body, as far as it was read. If the response switches protocols, these bytes are not HTTP.
    pub first: Bytes,
}

/// Reads one response. It keeps nothing but the beginning of a head, and trailers.
#[derive(Debug)]
pub struct ResponseReader {
    /// Whether the request was a HEAD, whose response has no body.
    to_head: bool,
    /// The beginning of a head that has not arrived completely.
    partial: Vec<u8>,
    body: BodyDecoder,
    /// Whether the head says that the connection goes on.
    keeps_alive: bool,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self::to(false)
    }
}

impl ResponseReader {
    /// A reader of the response to a request that may have been a HEAD.
    #[must_use]
    pub fn to(head: bool) -> Self {
        Self {
            to_head: head,
            partial: Vec::new(),
            body: BodyDecoder::new(Framing::Length(0)),
            keeps_alive: false,
        }
    }

    /// Takes bytes until the head is complete, and returns it then. Interim responses are dropped (RFC 9110 section 15.2).
    ///
    /// # Errors
    /// The head is not HTTP, is too large, or does not say where the body ends; or the first bytes of the body are framed
    /// wrongly.
    pub fn head(&mut self, bytes: &mut [u8]) -> Result<Option<BegunResponse>, Http1Error> {
        let mut kept = std::mem::take(&mut self.partial);
        let before = kept.len();
        let bytes = if before == 0 {
            bytes
        } else {
            kept.extend_from_slice(bytes);
            // So a head that comes byte by byte is parsed when a line may be its last one, and not once for each byte.
            let unseen = kept.get(before.saturating_sub(3)..).unwrap_or_default();
            if !has_empty_line(unseen) {
                self.keep(kept)?;
                return Ok(None);
            }
            &mut kept
        };
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let Some((head, length)) = response_head::parse(rest, self.to_head)? else {
                break;
            };
            at += length;
            let status = head.response.status();
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                let rest = rest.get_mut(length..).unwrap_or_default();
                return self.begin(head, rest).map(Some);
            }
        }
        // Empty lines may come before a head. Each would be looked at again with every piece.
        let rest = without_empty_lines(bytes.get(at..).unwrap_or_default());
        self.keep(rest.to_vec())?;
        Ok(None)
    }

    fn begin(&mut self, head: ResponseHead, rest: &mut [u8]) -> Result<BegunResponse, Http1Error> {
        let ResponseHead {
            response,
            framing,
            keeps_alive,
        } = head;
        let is_http = response.status() != StatusCode::SWITCHING_PROTOCOLS;
        self.body = BodyDecoder::new(framing);
        self.keeps_alive = keeps_alive && is_http;
        let content = if is_http {
            self.body.decode(rest)?
        } else {
            rest.len()
        };
        let first = Bytes::copy_from_slice(rest.get(..content).unwrap_or_default());
        Ok(BegunResponse { response, first })
    }

    fn keep(&mut self, bytes: Vec<u8>) -> Result<(), Http1Error> {
        if bytes.len() >= MAX_HEAD {
            return Err(Http1Error::HeadTooLarge);
        }
        self.partial = bytes;
        Ok(())
    }

    /// Takes bytes behind the head, and moves what is content to their front. Returns how many bytes that is.
    ///
    /// # Errors
    /// The framing is wrong.
    pub fn body(&mut self, bytes: &mut [u8]) -> Result<usize, Http1Error> {
        self.body.decode(bytes)
    }

    /// Asks whether what follows the content so far is known to be wrong, without any more bytes.
    ///
    /// # Errors
    /// It is.
    pub fn check(&mut self) -> Result<(), Http1Error> {
        self.body.check()
    }

    /// Records that the connection has ended.
    ///
    /// # Errors
    /// The response is not complete.
    pub fn end(&mut self) -> Result<(), Http1Error> {
        self.body.end()
    }

    /// Takes the trailers, if there are any.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.body.take_trailers()
    }

    /// Whether the body has arrived completely, though its trailers may not have been taken.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        self.body.is_over()
    }

    /// Whether nothing more follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.body.is_over() && !self.body.has_trailers()
    }

    /// How many bytes of the body are left, if the head says how long it is.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.body.left()
    }

    /// Whether the response has ended, and the connection can have another request. If bytes came behind the end, nobody
    /// knows what they are.
    #[must_use]
    pub fn lets_another_follow(&self) -> bool {
        self.keeps_alive && self.body.ends_in_order()
    }
}

/// These bytes without the empty lines at their beginning.
fn without_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b"\r\n").or(bytes.strip_prefix(b"\n")) {
        bytes = rest;
    }
    bytes
}

/// Whether an empty line may be among these bytes, whichever line ends there are.
fn has_empty_line(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(1).peekable();
    // What follows the last line end is no line yet.
    while let Some(line) = lines.next() {
        if lines.peek().is_some() && (line.is_empty() || line == b"\r") {
            return true;
        }
    }
    false
}
