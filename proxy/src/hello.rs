//! Owns the reading of a ClientHello: bounded, incremental, without I/O and without a TLS library.
//!
//! Passthrough needs the server name and nothing else, so the reader takes every hello that is
//! well formed down to those two extensions, including those that a TLS library would refuse for
//! other reasons (no `signature_algorithms`, no cipher suite in common): that verdict is the
//! backend's. What it cannot read is rejected, never guessed: there is no default to fall to.

use vestibule_model::hostname::Hostname;

use crate::close_reason::CloseReason;

/// Record header: type, version, length.
const RECORD_HEADER: usize = 5;
/// Handshake header: type, 24-bit length.
const MESSAGE_HEADER: usize = 4;
/// Record content type of handshake messages (RFC 8446 section 5.1).
const CONTENT_HANDSHAKE: u8 = 22;
/// Handshake message type of a ClientHello (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;
/// Longest record payload that is read. Plaintext records end at 2^14; the slack that protected
/// records may have is granted here too, as TLS libraries do.
const MAX_RECORD: usize = (1 << 14) + 2048;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ALPN: u16 = 16;
const NAME_TYPE_HOST_NAME: u8 = 0;

/// What a ClientHello says that routing and the access log use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The `host_name` of the SNI extension (RFC 6066 section 3).
    pub server_name: ServerName,
    /// The protocols the client offers (RFC 7301), in its order.
    pub alpn: Alpn,
}

/// The server name of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerName {
    /// No SNI extension, or one without a `host_name`.
    Absent,
    /// A `host_name` that is not a hostname (an IP address, bad characters): matches nothing.
    Invalid,
    /// A hostname in canonical form.
    Name(Hostname),
}

/// A list of application protocols in wire form: each a length byte and that many bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Alpn(Box<[u8]>);

impl Alpn {
    /// The protocols in the client's order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut cursor = Cursor(&self.0);
        std::iter::from_fn(move || cursor.vector8().ok())
    }

    /// Whether the client offered `protocol` and nothing else.
    #[must_use]
    pub fn is_only(&self, protocol: &[u8]) -> bool {
        self.0
            .split_first()
            .is_some_and(|(length, name)| usize::from(*length) == name.len() && name == protocol)
    }

    /// Whether the client offered none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Alpn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.iter().map(String::from_utf8_lossy))
            .finish()
    }
}

/// Why the bytes are not a ClientHello that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The first bytes are no TLS record, e.g. plain HTTP.
    #[error("the first bytes are not TLS")]
    NotTls,
    /// An SSL 2.0 ClientHello, also the one that offers newer versions (RFC 6176 forbids both).
    #[error("an SSL 2.0 hello")]
    SslV2,
    /// Longer than the limit, in itself or by how it is cut into records.
    #[error("the hello is longer than the limit")]
    TooLarge,
    /// TLS records, but not a ClientHello that can be decoded.
    #[error("the hello is malformed")]
    Malformed,
}

/// Where the reader stands after some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So far so good: more bytes are needed.
    NeedMore,
    /// A whole ClientHello.
    Hello(Hello),
    /// The connection is to be closed.
    Rejected(Rejection),
}

/// Collects the bytes of one connection until its ClientHello is complete.
///
/// Work is linear in the bytes, whatever their segmentation; memory is bounded by twice the limit
/// plus the last chunk pushed.
#[derive(Debug)]
pub struct HelloReader {
    limit: usize,
    /// All bytes of the connection so far, for the replay.
    raw: Vec<u8>,
    /// Where in `raw` the first record header that is not yet taken starts.
    next: usize,
    /// The handshake message so far, once it spans more than one record.
    assembled: Vec<u8>,
}

impl HelloReader {
    /// A reader that gives up when the hello is not complete within `limit` bytes, counted on the
    /// wire with the record headers.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            raw: Vec::new(),
            next: 0,
            assembled: Vec::new(),
        }
    }

    /// Takes the next bytes of the connection.
    pub fn push(&mut self, bytes: &[u8]) -> Progress {
        self.raw.extend_from_slice(bytes);
        match self.advance() {
            Ok(Some(hello)) => Progress::Hello(hello),
            Ok(None) if self.raw.len() >= self.limit => Progress::Rejected(Rejection::TooLarge),
            Ok(None) => Progress::NeedMore,
            Err(rejection) => Progress::Rejected(rejection),
        }
    }

    /// Whether no byte has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Everything that was pushed, the hello and what followed it: what is replayed to the backend
    /// or to the TLS library.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.raw
    }

    fn advance(&mut self) -> Result<Option<Hello>, Rejection> {
        loop {
            let record = self.raw.get(self.next..).unwrap_or_default();
            let first = self.next == 0;
            let Some((header, rest)) = record.split_first_chunk::<RECORD_HEADER>() else {
                check_record_start(record, first)?;
                return Ok(None);
            };
            check_record_start(header, first)?;
            let [_, _, _, high, low] = *header;
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length == 0 || length > MAX_RECORD {
                return Err(if first {
                    Rejection::NotTls
                } else {
                    Rejection::Malformed
                });
            }
            let Some(payload) = rest.get(..length) else {
                if self.assembled.is_empty() {
                    self.check_message_start(rest)?;
                }
                return Ok(None);
            };
            // The usual hello is one record and is read where it lies.
            if first && let Some(body) = self.check_message_start(payload)? {
                return read_hello(body).map(Some);
            }
            self.assembled.extend_from_slice(payload);
            self.next += RECORD_HEADER + length;
            if let Some(body) = self.check_message_start(&self.assembled)? {
                return read_hello(body).map(Some);
            }
        }
    }

    /// The body of the ClientHello if all of it is in `message`; what follows it is not looked at.
    fn check_message_start<'a>(&self, message: &'a [u8]) -> Result<Option<&'a [u8]>, Rejection> {
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Rejection::Malformed);
        }
        let Some(([_, a, b, c], rest)) = message.split_first_chunk::<MESSAGE_HEADER>() else {
            return Ok(None);
        };
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if length + MESSAGE_HEADER + RECORD_HEADER > self.limit {
            return Err(Rejection::TooLarge);
        }
        Ok(rest.get(..length))
    }
}

/// Checks as much of a record header as has come: a handshake record of some 3.x version.
fn check_record_start(record: &[u8], first: bool) -> Result<(), Rejection> {
    let wrong = if first {
        Rejection::NotTls
    } else {
        Rejection::Malformed
    };
    match record {
        // The two-byte header of SSL 2.0 has its top bit set; the third byte is the message type.
        [0x80..=0xff, _, CLIENT_HELLO, ..] if first => Err(Rejection::SslV2),
        [0x80..=0xff] | [0x80..=0xff, _] if first => Ok(()),
        [] | [CONTENT_HANDSHAKE] | [CONTENT_HANDSHAKE, 3, ..] => Ok(()),
        _ => Err(wrong),
    }
}

/// Reads the body of a ClientHello (RFC 8446 section 4.1.2).
fn read_hello(body: &[u8]) -> Result<Hello, Rejection> {
    let mut cursor = Cursor(body);
    // The version has said nothing since TLS 1.3, and whether it will do is the backend's to say.
    cursor.u16()?;
    cursor.take(32)?;
    if cursor.vector8()?.len() > 32 {
        return Err(Rejection::Malformed);
    }
    let suites = cursor.vector16()?;
    if suites.is_empty() || suites.len() % 2 != 0 || cursor.vector8()?.is_empty() {
        return Err(Rejection::Malformed);
    }
    let mut server_name = None;
    let mut alpn = None;
    // Before TLS 1.2 a hello may end here, without the extensions' length.
    if !cursor.is_empty() {
        let mut extensions = Cursor(cursor.vector16()?);
        if !cursor.is_empty() {
            return Err(Rejection::Malformed);
        }
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            let data = extensions.vector16()?;
            // No extension may come twice (RFC 8446 section 4.2): here it would leave it to each
            // reader which of two names counts.
            let duplicate = match kind {
                EXTENSION_SERVER_NAME => server_name.replace(read_server_name(data)?).is_some(),
                EXTENSION_ALPN => alpn.replace(read_alpn(data)?).is_some(),
                _ => false,
            };
            if duplicate {
                return Err(Rejection::Malformed);
            }
        }
    }
    Ok(Hello {
        server_name: server_name.unwrap_or(ServerName::Absent),
        alpn: alpn.unwrap_or_default(),
    })
}

fn read_server_name(data: &[u8]) -> Result<ServerName, Rejection> {
    let mut data = Cursor(data);
    let mut list = Cursor(data.vector16()?);
    if !data.is_empty() || list.is_empty() {
        return Err(Rejection::Malformed);
    }
    let mut found = None;
    while !list.is_empty() {
        // The form of other name types is not defined, so nothing after one can be read.
        if list.u8()? != NAME_TYPE_HOST_NAME {
            break;
        }
        let name = list.vector16()?;
        if name.is_empty() || found.is_some() {
            return Err(Rejection::Malformed);
        }
        found = Some(
            std::str::from_utf8(name)
                .ok()
                .and_then(|text| Hostname::parse(text).ok())
                .map_or(ServerName::Invalid, ServerName::Name),
        );
    }
    Ok(found.unwrap_or(ServerName::Absent))
}

fn read_alpn(data: &[u8]) -> Result<Alpn, Rejection> {
    let mut data = Cursor(data);
    let wire = data.vector16()?;
    if !data.is_empty() || wire.is_empty() {
        return Err(Rejection::Malformed);
    }
    let mut list = Cursor(wire);
    while !list.is_empty() {
        if list.vector8()?.is_empty() {
            return Err(Rejection::Malformed);
        }
    }
    Ok(Alpn(wire.into()))
}

/// Reads the vectors of the TLS presentation language from the front of a slice.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Rejection> {
        let (head, tail) = self
            .0
            .split_at_checked(length)
            .ok_or(Rejection::Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, Rejection> {
        let (byte, tail) = self.0.split_first().ok_or(Rejection::Malformed)?;
        self.0 = tail;
        Ok(*byte)
    }

    fn u16(&mut self) -> Result<u16, Rejection> {
        let (bytes, tail) = self.0.split_first_chunk().ok_or(Rejection::Malformed)?;
        self.0 = tail;
        Ok(u16::from_be_bytes(*bytes))
    }

    fn vector8(&mut self) -> Result<&'a [u8], Rejection> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Result<&'a [u8], Rejection> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

impl From<Rejection> for CloseReason {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotTls => Self::NotTls,
            Rejection::SslV2 => Self::SslV2,
            Rejection::TooLarge => Self::HelloTooLarge,
            Rejection::Malformed => Self::MalformedHello,
        }
    }
}
