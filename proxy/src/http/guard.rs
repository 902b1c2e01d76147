//! Owns the guard against request smuggling in HTTP/1. It lets only such requests reach the parser that every reader
//! reads in the same way. If two readers disagree about the end of a request, bytes of one client can become part of
//! another client's request.
//!
//! hyper is as lenient as RFC 9112 allows (bare LF, `Transfer-Encoding` beside `Content-Length`), and a load balancer
//! in front of this proxy may have read the same bytes differently. So the guard reads all bytes before hyper gets
//! them. It reads them as they arrive and keeps none of them: its state is a few words. A request is refused at its
//! first wrong byte, so nothing after that byte is ever parsed.

/// Most bytes of a method. The longest registered method has 18.
pub(super) const MAX_METHOD: usize = 32;
/// Most digits of a chunk's size. With more digits, it might not fit into 64 bits.
const MAX_SIZE_DIGITS: u8 = 15;
/// Most digits of a `Content-Length`, for the same reason.
const MAX_LENGTH_DIGITS: u8 = 18;
/// Most bytes of the extensions of one chunk. They are hardly ever used.
const MAX_EXTENSION: u16 = 256;
/// Most options of a connection. Each is looked up in all fields, by several readers. Usual requests have one or two.
pub(super) const MAX_OPTIONS: u8 = 64;
/// Length of the longest field name that matters to the guard.
const NAME: usize = "transfer-encoding".len();
const CHUNKED: &[u8] = b"chunked";

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The method is not a token, or too long.
    #[error("the method is malformed")]
    Method,
    /// The target is empty, or has a byte that no target may have.
    #[error("the target is malformed")]
    Target,
    /// The version is neither HTTP/1.1 nor HTTP/1.0.
    #[error("the version is not known")]
    Version,
    /// There is a CR without LF, or an LF without CR.
    #[error("a line does not end with CR LF")]
    LineEnd,
    /// A field continues on the next line (obsolete line folding).
    #[error("a field is folded")]
    Folded,
    /// A field name is not a token directly before the colon.
    #[error("a field's name is malformed")]
    Name,
    /// A field value has a control character.
    #[error("a field's value is malformed")]
    Value,
    /// `Content-Length` is not one number, or the number is too large.
    #[error("Content-Length is malformed")]
    Length,
    /// There are two statements of the body's length, even if both are in the same field.
    #[error("the length of the body is given more than once")]
    TwoLengths,
    /// `Transfer-Encoding` is something else than `chunked`, or is used in HTTP/1.0.
    #[error("Transfer-Encoding is not chunked alone")]
    Encoding,
    /// `Connection` has too many options.
    #[error("Connection has more than {MAX_OPTIONS} options")]
    Options,
    /// The size of a chunk is not a number, too large, or followed by something else.
    #[error("the size of a chunk is malformed")]
    ChunkSize,
    /// A chunk extension is too long, or has control characters.
    #[error("an extension of a chunk is malformed")]
    ChunkExtension,
    /// A trailer would change what was already read.
    #[error("a trailer cannot be this field")]
    Trailer,
}

/// The position in the stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a request. One empty line may pass.
    Start,
    StartLf,
    Method(u8),
    /// In the target; true if it has a byte already.
    Target(bool),
    /// In the query of the target.
    Query,
    /// In `HTTP/1.x` and its line end, with the number of bytes that were read.
    Version(u8),
    /// At the start of a line of fields.
    Line,
    Name(u8),
    /// In a value; true if it has a byte that is not white space.
    Value(bool),
    ValueLf,
    /// Before the LF of the empty line after the fields.
    EndLf,
    /// In a body of known length, with the number of bytes that are left.
    Body(u64),
    /// In the size of a chunk, with the number of digits that were read.
    Size(u8),
    Extension(u16),
    SizeLf,
    /// In a chunk, with the number of bytes that are left.
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// The meaning of the next bytes depends on the response.
    Undecided,
    /// In another protocol, after an upgrade.
    Raw,
    Refused(Stop),
}

/// A field whose value matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Other,
    Length,
    Encoding,
    /// `Connection`, of which only the options are counted.
    Connection,
}

/// How the body of the present request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// The result for some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardOutcome {
    /// How many of them, from the first on, may reach the parser.
    pub passed: usize,
    /// Why these are not all of them, if so.
    pub stopped: Option<Stop>,
}

/// Why bytes may not reach the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The request before them may switch the connection to another protocol. Pass them to the guard again when that is
    /// known ([`Guard::decide`]).
    Undecided,
    /// The first of them is wrong, and is in a head.
    Head(Refusal),
    /// The first of them is wrong, and is in the framing of a body whose request is already under way.
    Body(Refusal),
}

/// Follows the bytes of one connection.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about what was read"
)]
pub struct Guard {
    state: State,
    /// The field name that was read so far, in lower case.
    name: [u8; NAME],
    field: Field,
    /// For a value that matters: the number of its digits, or how much of `chunked` was read.
    digits: u8,
    number: u64,
    /// Options of the connection in the present head or trailers, empty ones included.
    options: u8,
    /// Whether there was white space after a value that matters.
    over: bool,
    framing: Framing,
    old: bool,
    /// Whether an empty line has passed before the request.
    skipped: bool,
    /// Whether the request is a CONNECT or asks for an upgrade.
    leaves: bool,
    /// Whether the present fields are trailers.
    trailers: bool,
    requests: u64,
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

/// The classes to which each byte belongs, as bits.
static CLASSES: [u8; 256] = classes();
/// `tchar` of RFC 9110 section 5.6.2.
const TOKEN: u8 = 1;
/// Bytes of a field value, white space included (RFC 9110 section 5.5).
const TEXT: u8 = 2;
/// Bytes of a target up to its query. `#` is not among them: clients do not send fragments, and a parser that drops one
/// would read another target. Nor are those that the parser of targets refuses after this one, with an answer that nobody
/// could explain.
const TARGET: u8 = 4;
/// The same for the query, in which the parser refuses other bytes.
const QUERY: u8 = 8;

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = u8::MAX;
    loop {
        let is_mark = matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        let mut class = 0;
        if byte.is_ascii_alphanumeric() || is_mark {
            class |= TOKEN;
        }
        if byte == b'\t' || (byte >= b' ' && byte != 0x7f) {
            class |= TEXT;
        }
        let is_in_no_target = matches!(byte, b'#' | b'<' | b'>');
        if byte.is_ascii_graphic() && !is_in_no_target {
            if byte != b'?' && byte != b'`' {
                class |= TARGET;
            }
            if byte != b'"' {
                class |= QUERY;
            }
        }
        #[expect(clippy::indexing_slicing, reason = "every byte has a place")]
        {
            classes[byte as usize] = class;
        }
        if byte == 0 {
            return classes;
        }
        byte -= 1;
    }
}

fn is(byte: u8, class: u8) -> bool {
    let classes = CLASSES.get(usize::from(byte)).copied();
    classes.unwrap_or_default() & class != 0
}

fn is_token(byte: u8) -> bool {
    is(byte, TOKEN)
}

fn is_text(byte: u8) -> bool {
    is(byte, TEXT)
}

fn rest_of(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

/// How many bytes at the beginning belong to a class.
fn run(bytes: &[u8], class: u8) -> usize {
    let end = bytes.iter().position(|byte| !is(*byte, class));
    end.unwrap_or(bytes.len())
}

impl Guard {
    /// The state at the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Start,
            name: [0; NAME],
            field: Field::Other,
            digits: 0,
            number: 0,
            options: 0,
            over: false,
            framing: Framing::None,
            old: false,
            skipped: false,
            leaves: false,
            trailers: false,
            requests: 0,
        }
    }

    /// Number of complete heads so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether the next byte belongs to a body or to its framing.
    fn is_in_body(&self) -> bool {
        self.trailers
            || matches!(
                self.state,
                State::Body(_)
                    | State::Size(_)
                    | State::Extension(_)
                    | State::SizeLf
                    | State::Chunk(_)
                    | State::ChunkCr
                    | State::ChunkLf
            )
    }

    /// Whether every request that has begun has arrived completely.
    #[must_use]
    pub fn is_between(&self) -> bool {
        matches!(self.state, State::Start | State::Undecided)
    }

    /// Whether a request has begun whose head is not complete. The empty line that may come before it belongs to it.
    #[must_use]
    pub fn is_in_head(&self) -> bool {
        match self.state {
            State::Start => self.skipped,
            State::Undecided | State::Raw | State::Refused(_) => false,
            _ => !self.is_in_body(),
        }
    }

    /// Whether the meaning of the next bytes depends on the response to the last request.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.state == State::Undecided
    }

    /// Tells the guard whether the response has switched the connection to another protocol. If not, more requests
    /// follow.
    pub fn decide(&mut self, upgraded: bool) {
        if self.state == State::Undecided {
            self.state = if upgraded { State::Raw } else { State::Start };
        }
    }

    /// Checks the next bytes of the connection.
    pub fn check(&mut self, bytes: &[u8]) -> GuardOutcome {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let left = bytes.len() - at;
            let passed = match &mut self.state {
                State::Raw => left,
                State::Undecided => return stopped(at, Stop::Undecided),
                State::Refused(stop) => return stopped(at, *stop),
                State::Body(rest) | State::Chunk(rest) => {
                    let all = usize::try_from(*rest).unwrap_or(usize::MAX);
                    let now = left.min(all);
                    *rest -= now as u64;
                    now
                }
                // Most bytes of a head belong to these states and do not change them, so they are skipped in one go.
                State::Target(true) if is(byte, TARGET) => run(rest_of(bytes, at), TARGET),
                State::Query if is(byte, QUERY) => run(rest_of(bytes, at), QUERY),
                State::Value(_) if self.field == Field::Other && is_text(byte) => {
                    run(rest_of(bytes, at), TEXT)
                }
                _ => match self.step(byte) {
                    Ok(next) => {
                        self.state = next;
                        1
                    }
                    Err(refusal) => {
                        let stop = if self.is_in_body() {
                            Stop::Body(refusal)
                        } else {
                            Stop::Head(refusal)
                        };
                        self.state = State::Refused(stop);
                        return stopped(at, stop);
                    }
                },
            };
            at += passed;
            match self.state {
                State::Body(0) => self.state = self.next(),
                State::Chunk(0) => self.state = State::ChunkCr,
                _ => {}
            }
        }
        GuardOutcome {
            passed: at,
            stopped: None,
        }
    }

    fn step(&mut self, byte: u8) -> Result<State, Refusal> {
        match self.state {
            State::Start => self.start(byte),
            State::StartLf => expect(byte, b'\n', State::Start),
            State::Method(length) => match byte {
                b' ' => {
                    self.leaves = length == 7 && self.name.starts_with(b"CONNECT");
                    Ok(State::Target(false))
                }
                _ if is_token(byte) && usize::from(length) < MAX_METHOD => {
                    self.remember(length, byte);
                    Ok(State::Method(length + 1))
                }
                _ => Err(Refusal::Method),
            },
            State::Target(_) if is(byte, TARGET) => Ok(State::Target(true)),
            State::Target(true) if byte == b'?' => Ok(State::Query),
            State::Query if is(byte, QUERY) => Ok(State::Query),
            State::Target(true) | State::Query if byte == b' ' => Ok(State::Version(0)),
            State::Target(_) | State::Query => Err(Refusal::Target),
            State::Version(seen) => self.version(seen, byte),
            State::Line => self.line(byte),
            State::Name(length) => match byte {
                b':' => self.named(length),
                _ if is_token(byte) => {
                    self.remember(length, byte.to_ascii_lowercase());
                    Ok(State::Name(length.saturating_add(1)))
                }
                _ => Err(Refusal::Name),
            },
            State::Value(begun) => self.value(begun, byte),
            State::ValueLf => expect(byte, b'\n', State::Line),
            State::EndLf if byte == b'\n' => Ok(self.end_of_fields()),
            State::EndLf => Err(Refusal::LineEnd),
            State::Size(digits) => self.size(digits, byte),
            State::Extension(length) => match byte {
                b'\r' => Ok(State::SizeLf),
                _ if is_text(byte) && length < MAX_EXTENSION => Ok(State::Extension(length + 1)),
                _ => Err(Refusal::ChunkExtension),
            },
            State::SizeLf if byte != b'\n' => Err(Refusal::LineEnd),
            State::SizeLf if self.number == 0 => {
                self.trailers = true;
                Ok(State::Line)
            }
            State::SizeLf => Ok(State::Chunk(self.number)),
            State::ChunkCr => expect(byte, b'\r', State::ChunkLf),
            State::ChunkLf => {
                self.number = 0;
                expect(byte, b'\n', State::Size(0))
            }
            // These do not advance byte by byte; `check` handles them.
            state @ (State::Body(_)
            | State::Chunk(_)
            | State::Undecided
            | State::Raw
            | State::Refused(_)) => Ok(state),
        }
    }

    fn start(&mut self, byte: u8) -> Result<State, Refusal> {
        match byte {
            b'\r' if !self.skipped => {
                self.skipped = true;
                Ok(State::StartLf)
            }
            b'\r' | b'\n' => Err(Refusal::LineEnd),
            _ if is_token(byte) => {
                let requests = self.requests;
                *self = Self::new();
                self.requests = requests;
                self.remember(0, byte);
                Ok(State::Method(1))
            }
            _ => Err(Refusal::Method),
        }
    }

    fn remember(&mut self, place: u8, byte: u8) {
        if let Some(room) = self.name.get_mut(usize::from(place)) {
            *room = byte;
        }
    }

    fn version(&mut self, seen: u8, byte: u8) -> Result<State, Refusal> {
        const HEAD: &[u8] = b"HTTP/1.";
        match HEAD.get(usize::from(seen)) {
            Some(expected) if *expected == byte => Ok(State::Version(seen + 1)),
            Some(_) => Err(Refusal::Version),
            None => match (usize::from(seen) - HEAD.len(), byte) {
                (0, b'0' | b'1') => {
                    self.old = byte == b'0';
                    Ok(State::Version(seen + 1))
                }
                (0, _) => Err(Refusal::Version),
                (1, b'\r') => Ok(State::Version(seen + 1)),
                (2, b'\n') => Ok(State::Line),
                _ => Err(Refusal::LineEnd),
            },
        }
    }

    fn line(&mut self, byte: u8) -> Result<State, Refusal> {
        match byte {
            b'\r' => Ok(State::EndLf),
            b'\n' => Err(Refusal::LineEnd),
            b' ' | b'\t' => Err(Refusal::Folded),
            _ if is_token(byte) => {
                self.remember(0, byte.to_ascii_lowercase());
                Ok(State::Name(1))
            }
            _ => Err(Refusal::Name),
        }
    }

    /// Takes a field name that is complete.
    fn named(&mut self, length: u8) -> Result<State, Refusal> {
        let name = self.name.get(..usize::from(length)).unwrap_or_default();
        self.field = match name {
            b"content-length" => Field::Length,
            b"transfer-encoding" => Field::Encoding,
            b"connection" => Field::Connection,
            _ => Field::Other,
        };
        let routes = name == b"host";
        if name == b"upgrade" {
            self.leaves = true;
        }
        if self.field == Field::Connection {
            self.count_option()?;
        }
        if matches!(self.field, Field::Length | Field::Encoding) || routes {
            if self.trailers {
                return Err(Refusal::Trailer);
            }
            if !routes && self.framing != Framing::None {
                return Err(Refusal::TwoLengths);
            }
        }
        if self.field == Field::Encoding && self.old {
            return Err(Refusal::Encoding);
        }
        (self.digits, self.number, self.over) = (0, 0, false);
        Ok(State::Value(false))
    }

    fn count_option(&mut self) -> Result<(), Refusal> {
        if self.options == MAX_OPTIONS {
            return Err(Refusal::Options);
        }
        self.options += 1;
        Ok(())
    }

    fn value(&mut self, begun: bool, byte: u8) -> Result<State, Refusal> {
        if byte == b'\r' {
            match self.field {
                Field::Other | Field::Connection => {}
                Field::Length if self.digits > 0 => self.framing = Framing::Length(self.number),
                Field::Length => return Err(Refusal::Length),
                Field::Encoding if usize::from(self.digits) == CHUNKED.len() => {
                    self.framing = Framing::Chunked;
                }
                Field::Encoding => return Err(Refusal::Encoding),
            }
            return Ok(State::ValueLf);
        }
        if byte == b'\n' {
            return Err(Refusal::LineEnd);
        }
        if !is_text(byte) {
            return Err(Refusal::Value);
        }
        if byte == b' ' || byte == b'\t' {
            self.over = begun;
            return Ok(State::Value(begun));
        }
        match self.field {
            Field::Connection if byte == b',' => self.count_option()?,
            Field::Other | Field::Connection => {}
            Field::Length => {
                let digit = byte.is_ascii_digit() && !self.over;
                if !digit || self.digits == MAX_LENGTH_DIGITS {
                    return Err(Refusal::Length);
                }
                self.number = self.number * 10 + u64::from(byte - b'0');
                self.digits += 1;
            }
            Field::Encoding => {
                let expected = CHUNKED.get(usize::from(self.digits));
                if self.over || expected != Some(&byte.to_ascii_lowercase()) {
                    return Err(Refusal::Encoding);
                }
                self.digits += 1;
            }
        }
        Ok(State::Value(true))
    }

    fn end_of_fields(&mut self) -> State {
        self.options = 0;
        if std::mem::take(&mut self.trailers) {
            return self.next();
        }
        self.requests += 1;
        match self.framing {
            Framing::Length(length) if length > 0 => State::Body(length),
            Framing::Chunked => {
                self.number = 0;
                State::Size(0)
            }
            Framing::None | Framing::Length(_) => self.next(),
        }
    }

    /// The state after a request.
    fn next(&mut self) -> State {
        self.skipped = false;
        if self.leaves {
            State::Undecided
        } else {
            State::Start
        }
    }

    fn size(&mut self, digits: u8, byte: u8) -> Result<State, Refusal> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b';' if digits > 0 => return Ok(State::Extension(0)),
            b'\r' if digits > 0 => return Ok(State::SizeLf),
            _ => return Err(Refusal::ChunkSize),
        };
        if digits == MAX_SIZE_DIGITS {
            return Err(Refusal::ChunkSize);
        }
        self.number = self.number << 4 | u64::from(digit);
        Ok(State::Size(digits + 1))
    }
}

fn stopped(passed: usize, stop: Stop) -> GuardOutcome {
    GuardOutcome {
        passed,
        stopped: Some(stop),
    }
}

fn expect(byte: u8, expected: u8, next: State) -> Result<State, Refusal> {
    if byte == expected {
        Ok(next)
    } else {
        Err(Refusal::LineEnd)
    }
}

#[cfg(test)]
mod tests;
