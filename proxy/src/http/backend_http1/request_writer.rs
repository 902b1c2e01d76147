//! Owns the part of a request that is not written yet: its head, and its body as it comes.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use tokio::io::AsyncWrite;

use super::error::Http1Error;
use crate::http::transport::write_together;

/// Bytes of a line besides its name and value: a colon, a space and a line end.
const LINE: usize = 4;

/// How the end of the body is told to the backend.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    /// By its length, of which so many bytes are left.
    Length(u64),
    Chunked,
}

/// Writes one request. A piece of the body is asked for when the last one was taken, so nothing waits here but that.
pub(super) struct RequestWriter<B> {
    /// The body, until its end.
    body: Option<Box<B>>,
    encoding: Encoding,
    /// The head, the size of a chunk, or trailers, of which `at` bytes are written.
    before: Vec<u8>,
    at: usize,
    data: Bytes,
    /// The end of a chunk.
    after: &'static [u8],
    is_unflushed: bool,
    /// Whether the request broke off. Then its end is never written, or the backend would take half of it for all.
    has_failed: bool,
}

impl<B> Default for RequestWriter<B> {
    fn default() -> Self {
        Self {
            body: None,
            encoding: Encoding::Length(0),
            before: Vec::new(),
            at: 0,
            data: Bytes::new(),
            after: b"",
            is_unflushed: false,
            has_failed: false,
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin>
    RequestWriter<B>
{
    /// Begins a request. Without a body, the head is all of it.
    ///
    /// # Errors
    /// The head does not say where the body ends, or says it wrongly.
    pub(super) fn begin(
        &mut self,
        head: &mut Parts,
        body: Option<Box<B>>,
    ) -> Result<(), Http1Error> {
        *self = Self::default();
        match &body {
            None => {
                head.headers.remove(TRANSFER_ENCODING);
                // The backend would take the next request for the body.
                if head
                    .headers
                    .get(CONTENT_LENGTH)
                    .is_some_and(|said| said != "0")
                {
                    return Err(Http1Error::RequestLength);
                }
            }
            Some(body) => self.encoding = encoding(&mut head.headers, &**body)?,
        }
        self.body = body;
        write_head(&mut self.before, head);
        Ok(())
    }

    /// Whether all of it is written.
    pub(super) fn is_done(&self) -> bool {
        let is_written = !self.has_unwritten() && !self.is_unflushed;
        self.body.is_none() && is_written && !self.has_failed
    }

    /// Gives up the rest.
    pub(super) fn give_up(&mut self) {
        *self = Self::default();
        self.has_failed = true;
    }

    /// Writes as much as the connection takes. It is ready when all is written. After an error there are only errors.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Http1Error>> {
        if self.has_failed {
            return Poll::Ready(Err(Http1Error::GivenUp));
        }
        let polled = self.poll_rest(stream, cx);
        self.has_failed = matches!(polled, Poll::Ready(Err(_)));
        polled
    }

    fn poll_rest<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Http1Error>> {
        loop {
            // The head waits for what there is of the body, so that both are one write.
            let is_waiting = self.fill(cx)?;
            while self.has_unwritten() {
                let written = ready!(self.poll_write(stream, cx))?;
                if written == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                self.advance(written);
                self.is_unflushed = true;
            }
            if self.is_unflushed && (is_waiting || self.body.is_none()) {
                ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                self.is_unflushed = false;
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            if is_waiting {
                return Poll::Pending;
            }
        }
    }

    /// Takes the next piece of the body, if the last one is written. Returns whether the body has none yet.
    fn fill(&mut self, cx: &mut Context<'_>) -> Result<bool, Http1Error> {
        if !(self.data.is_empty() && self.after.is_empty()) {
            return Ok(false);
        }
        let Some(body) = &mut self.body else {
            return Ok(false);
        };
        let Poll::Ready(frame) = Pin::new(&mut **body).poll_frame(cx) else {
            return Ok(true);
        };
        let frame = frame.transpose();
        match frame.map_err(|error| Http1Error::Request(error.into()))? {
            None => self.end(None)?,
            Some(frame) => match frame.into_data() {
                Ok(data) => self.add(data)?,
                Err(frame) => self.end(Frame::into_trailers(frame).ok())?,
            },
        }
        Ok(false)
    }

    fn add(&mut self, data: Bytes) -> Result<(), Http1Error> {
        let is_last = self.body.as_ref().is_some_and(Body::is_end_stream);
        match &mut self.encoding {
            Encoding::Length(left) => {
                let rest = left.checked_sub(data.len() as u64);
                *left = rest.ok_or(Http1Error::RequestLength)?;
            }
            // An empty chunk would end the body.
            Encoding::Chunked if data.is_empty() => {}
            Encoding::Chunked => {
                // Nothing fails here, because a vector takes everything.
                let _ = write!(self.before, "{:x}\r\n", data.len());
                self.after = b"\r\n";
            }
        }
        self.data = data;
        if !is_last {
            return Ok(());
        }
        if self.after.is_empty() {
            return self.end(None);
        }
        self.after = b"\r\n0\r\n\r\n";
        self.body = None;
        Ok(())
    }

    fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Http1Error> {
        self.body = None;
        match self.encoding {
            Encoding::Length(0) => Ok(()),
            Encoding::Length(_) => Err(Http1Error::RequestLength),
            Encoding::Chunked => {
                self.before.extend_from_slice(b"0\r\n");
                write_fields(&mut self.before, &trailers.unwrap_or_default());
                Ok(())
            }
        }
    }

    fn has_unwritten(&self) -> bool {
        self.at < self.before.len() || self.data.has_remaining() || !self.after.is_empty()
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = self.before.get(self.at..).unwrap_or_default();
        if self.data.is_empty() && self.after.is_empty() {
            return Pin::new(stream).poll_write(cx, before);
        }
        let pieces = [before, &self.data, self.after].map(IoSlice::new);
        write_together(Pin::new(stream), cx, &pieces)
    }

    fn advance(&mut self, written: usize) {
        let mut rest = written;
        let before = rest.min(self.before.len() - self.at);
        self.at += before;
        rest -= before;
        if self.at == self.before.len() {
            (self.before, self.at) = (Vec::new(), 0);
        }
        let data = rest.min(self.data.len());
        self.data.advance(data);
        rest -= data;
        self.after = self.after.get(rest..).unwrap_or_default();
    }
}

/// How the end of the body is told, which the head says afterwards.
fn encoding<B: Body>(headers: &mut HeaderMap, body: &B) -> Result<Encoding, Http1Error> {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        return Ok(Encoding::Chunked);
    }
    if let Some(said) = headers.get(CONTENT_LENGTH) {
        let said = said.to_str().ok().and_then(|said| said.parse().ok());
        return said.map(Encoding::Length).ok_or(Http1Error::RequestLength);
    }
    let length = body.size_hint().exact();
    let length = length.ok_or(Http1Error::RequestLength)?;
    headers.insert(CONTENT_LENGTH, length.into());
    Ok(Encoding::Length(length))
}

fn write_head(into: &mut Vec<u8>, head: &Parts) {
    let target = head
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let method = head.method.as_str();
    let line = method.len() + target.len() + " HTTP/1.1\r\n\r\n ".len();
    let fields = head.headers.iter();
    let fields: usize = fields
        .map(|(name, value)| name.as_str().len() + value.len() + LINE)
        .sum();
    into.reserve_exact(line + fields);
    for part in [method, " ", target, " HTTP/1.1\r\n"] {
        into.extend_from_slice(part.as_bytes());
    }
    write_fields(into, &head.headers);
}

/// Writes fields and the empty line behind them.
fn write_fields(into: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            into.extend_from_slice(part);
        }
    }
    into.extend_from_slice(b"\r\n");
}
