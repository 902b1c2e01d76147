//! Owns the reasons for which a backend's HTTP/1.1 connection fails.

use std::io;

/// A request that was not sent completely, or a response that did not arrive completely.
#[derive(Debug, thiserror::Error)]
pub enum Http1Error {
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The backend closed the connection before the response was complete.
    #[error("the connection ended before the response did")]
    Incomplete,
    /// The connection was given up by whoever has the other side of the exchange.
    #[error("the connection was given up")]
    GivenUp,
    /// The head or the trailers are not HTTP.
    #[error("the response is malformed: {0}")]
    Malformed(#[from] httparse::Error),
    /// The head has more bytes than a head may have.
    #[error("the head of the response is too large")]
    HeadTooLarge,
    /// The trailers have more bytes than trailers may have.
    #[error("the trailers of the response are too large")]
    TrailersTooLarge,
    /// Nobody knows how long the body is (RFC 9112 section 6.3).
    #[error("the length of the response is not known: {0}")]
    Length(&'static str),
    /// The framing of a chunk is wrong (RFC 9112 section 7.1).
    #[error("a chunk of the response is malformed: {0}")]
    Chunk(&'static str),
    /// The body of the request broke.
    #[error("the body of the request failed: {0}")]
    Request(Box<dyn std::error::Error + Send + Sync>),
    /// The body of the request is not as long as its head says.
    #[error("the body of the request is not as long as its head says")]
    RequestLength,
}
