//! Owns the reader of ClientHello messages. It is bounded and incremental, and needs neither I/O nor a TLS library.
//!
//! The proxy needs only the server name and ALPN. So the reader accepts every hello that is well formed as far as these
//! two extensions are concerned. It accepts hellos that a TLS library would refuse for other reasons (no
//! `signature_algorithms`, no cipher suite in common), because that is for the backend to decide. A hello that cannot
//! be read is rejected. The reader never guesses, and there is no default listener to fall back to.

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
/// Longest record payload that is read. A plaintext record has at most 2^14 bytes. The additional bytes that only
/// protected records may have are accepted here too, as TLS libraries do.
const MAX_RECORD: usize = (1 << 14) + 2048;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ALPN: u16 = 16;
const NAME_TYPE_HOST_NAME: u8 = 0;

/// The parts of a ClientHello that routing and the access log use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The `host_name` of the SNI extension (RFC 6066 section 3).
    pub server_name: ServerName,
    /// The protocols the client offers (RFC 7301), in its order.
    pub alpn: OfferedProtocols,
}

/// The server name of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerName {
    /// No SNI extension, or one without a `host_name`.
    Absent,
    /// A `host_name` that is not a hostname (an IP address, bad characters). It matches nothing.
    Invalid,
    /// A hostname in canonical form.
    Name(Hostname),
}

/// A list of application protocols in wire form. Each of them is a length byte, followed by that many bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OfferedProtocols(Box<[u8]>);

impl OfferedProtocols {
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

impl std::fmt::Debug for OfferedProtocols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.iter().map(String::from_utf8_lossy))
            .finish()
    }
}

/// Why the bytes are not a ClientHello that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The first bytes are not a TLS record, but for instance plain HTTP.
    #[error("the first bytes are not TLS")]
    NotTls,
    /// An SSL 2.0 ClientHello, even if it offers newer versions (RFC 6176 forbids both).
    #[error("an SSL 2.0 hello")]
    SslV2,
    /// Longer than the limit, either itself or by the headers of the records into which it is cut.
    #[error("the hello is longer than the limit")]
    TooLarge,
    /// TLS records, but not a ClientHello that can be decoded.
    #[error("the hello is malformed")]
    Malformed,
}

/// The state of the reader after some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything is well formed so far, and more bytes are needed.
    NeedMore,
    /// A whole ClientHello.
    Hello(Hello),
    /// The bytes are not a hello that can be served. The connection has to be closed.
    Rejected(Rejection),
}

/// Collects the bytes of one connection until its ClientHello is complete.
///
/// The work is linear in the number of bytes, however they are segmented. The memory is bounded by twice the limit plus
/// the chunk that was pushed last.
#[derive(Debug)]
pub struct HelloReader {
    limit: usize,
    /// All bytes of the connection so far, for the replay.
    raw: Vec<u8>,
    /// The position in `raw` of the first record header that was not yet read.
    next: usize,
    /// The handshake message so far, if it spans more than one record.
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

    /// Everything that was pushed: the hello and the bytes after it. They are replayed to the backend or to the TLS
    /// library.
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
            // Most hellos are in one record. Then they are read without a copy.
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

    /// The body of the ClientHello, if all of it is in `message`. Bytes after it are ignored.
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

/// Checks as much of a record header as has arrived. It must be a handshake record of some version 3.x.
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
    // This version has no meaning since TLS 1.3, and the backend decides whether it accepts it.
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
    // Before TLS 1.2 a hello may end here, without a length of extensions.
    if !cursor.is_empty() {
        let mut extensions = Cursor(cursor.vector16()?);
        if !cursor.is_empty() {
            return Err(Rejection::Malformed);
        }
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            let data = extensions.vector16()?;
            // No extension may occur twice (RFC 8446 section 4.2). Otherwise this proxy and the backend could read
            // different names.
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
        // The form of other name types is not defined, so nothing after such an entry can be read.
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

fn read_alpn(data: &[u8]) -> Result<OfferedProtocols, Rejection> {
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
    Ok(OfferedProtocols(wire.into()))
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
