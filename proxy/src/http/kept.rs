//! Owns bodies of requests that are kept while they are sent, so that they can be sent again: to another endpoint if
//! the first one fails, and to mirrors.
//!
//! The limit is on what is kept, and not on the request. A larger body is still passed on, but cannot be sent again. An
//! attempt can begin before the body is whole: it first gets what was kept, and then reads the rest from the client.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::received::{Polled, ReceiveError, Received};
use crate::shares::Shares;

/// Why a body is not kept to its end.
pub(super) const INCOMPLETE: &str = "BodyIncomplete";
pub(super) const TOO_LARGE: &str = "BodyTooLarge";
pub(super) const LIMIT: &str = "Limit";

/// Most bytes that are kept of one body.
pub(super) const BODY: usize = 64 * 1024;
/// Most bytes that a worker keeps of all bodies together.
const IN_ALL: usize = 16 * 1024 * 1024;
/// Bytes that are sent again at a time.
const PIECE: usize = 16 * 1024;

thread_local! {
    static ROOM: RefCell<Shares> = RefCell::new(Shares::new(IN_ALL));
}

/// Bytes that are kept, counted for the worker and for the namespace.
pub(super) struct Room {
    namespace: Arc<str>,
    bytes: usize,
}

impl Room {
    /// Counts for a namespace, nothing as yet.
    pub(super) fn of(namespace: &Arc<str>) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            bytes: 0,
        }
    }

    /// Counts up to this number of bytes. Returns false if there is no room for them.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        self.grow(bytes.saturating_sub(self.bytes))
    }

    fn grow(&mut self, bytes: usize) -> bool {
        let taken = ROOM.try_with(|room| room.borrow_mut().take(&self.namespace, bytes));
        let taken = taken.unwrap_or(false);
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let give = |room: &RefCell<Shares>| {
            room.borrow_mut().give_back(&self.namespace, self.bytes);
        };
        let _ = ROOM.try_with(give);
    }
}

/// A body that has arrived completely.
#[derive(Clone)]
pub(super) struct Whole {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// It counts the bytes as long as anybody has them.
    _room: Arc<Room>,
}

impl Whole {
    /// A body of the proxy's own, which `room` counts.
    pub(super) fn of(data: Bytes, room: Room) -> Self {
        Self {
            data,
            trailers: None,
            _room: Arc::new(room),
        }
    }

    /// The same body without trailers.
    pub(super) fn without_trailers(self) -> Self {
        Self {
            trailers: None,
            ..self
        }
    }

    pub(super) fn data(&self) -> &Bytes {
        &self.data
    }
}

/// Something that waits for a whole body.
pub(super) trait Waiter: Send {
    /// Takes the whole body.
    fn whole(self: Box<Self>, body: Whole);

    /// Is called if the body will not become whole. The reason is one of the words above.
    fn give_up(self: Box<Self>, why: &'static str);
}

/// The state of a body.
enum State {
    Coming {
        data: Vec<u8>,
        room: Room,
    },
    Whole(Whole),
    /// It is too large, or broke off.
    GivenUp,
}

struct Inner {
    /// The body as it arrives from the client; `None` if a whole body is sent to mirrors only.
    client: Option<Received>,
    state: State,
    /// Number of the attempt that may read. Earlier attempts get nothing more.
    turn: u32,
    /// Mirrors that get a copy when the body is whole.
    mirrors: Vec<Box<dyn Waiter>>,
}

/// A body that is kept.
pub(super) struct KeptBody(Mutex<Inner>);

impl KeptBody {
    /// Keeps the body of a request for a route in `namespace`.
    pub(super) fn new(client: Received, namespace: &Arc<str>) -> Arc<Self> {
        let room = Room::of(namespace);
        let state = State::Coming {
            data: Vec::new(),
            room,
        };
        Arc::new(Self(Mutex::new(Inner {
            client: Some(client),
            state,
            turn: 0,
            mirrors: Vec::new(),
        })))
    }

    /// A body that is already whole.
    pub(super) fn whole(whole: Whole) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            client: None,
            state: State::Whole(whole),
            turn: 0,
            mirrors: Vec::new(),
        })))
    }

    /// Gives a mirror a copy when the body is whole.
    pub(super) fn copy_to(&self, mirror: Box<dyn Waiter>) {
        self.0.lock().mirrors.push(mirror);
    }

    /// Whether the body can be sent again, as far as it has come.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.0.lock().state, State::GivenUp)
    }

    /// The body, if all of it has arrived and is kept.
    pub(super) fn as_whole(&self) -> Option<Whole> {
        match &self.0.lock().state {
            State::Whole(whole) => Some(whole.clone()),
            State::Coming { .. } | State::GivenUp => None,
        }
    }

    /// A reader for another attempt, which begins at the first byte. It is `None` if the body cannot be sent again.
    pub(super) fn again(self: &Arc<Self>) -> Option<Reader> {
        let mut inner = self.0.lock();
        if matches!(inner.state, State::GivenUp) {
            return None;
        }
        inner.turn += 1;
        Some(Reader {
            turn: inner.turn,
            kept: Arc::clone(self),
            at: 0,
            ended: false,
        })
    }
}

/// The result of a read.
pub(super) enum Read {
    /// A frame that came from the client.
    Client(Polled),
    /// A frame of what was kept.
    Kept(Option<Frame<Bytes>>),
    /// Nothing, because another attempt reads the body now.
    Replaced,
}

/// A reader of a body, for one attempt.
pub(super) struct Reader {
    kept: Arc<KeptBody>,
    turn: u32,
    /// Number of bytes that it has read.
    at: usize,
    /// Whether it has read everything.
    ended: bool,
}

impl Reader {
    pub(super) fn kept(&self) -> &Arc<KeptBody> {
        &self.kept
    }

    /// Whether this reader waits for the client.
    pub(super) fn reads_client(&self) -> bool {
        let inner = self.kept.0.lock();
        inner.turn == self.turn && inner.client.is_some()
    }

    /// Whether the body is read by another attempt.
    pub(super) fn is_replaced(&self) -> bool {
        self.kept.0.lock().turn != self.turn
    }

    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> Read {
        let mut inner = self.kept.0.lock();
        let inner = &mut *inner;
        if inner.turn != self.turn {
            return Read::Replaced;
        }
        let held: &[u8] = match &inner.state {
            State::Coming { data, .. } => data,
            State::Whole(whole) => {
                let rest = whole.data.slice(self.at.min(whole.data.len())..);
                if !rest.is_empty() {
                    let piece = rest.slice(..rest.len().min(PIECE));
                    self.at += piece.len();
                    return Read::Kept(Some(Frame::data(piece)));
                }
                let trailers = whole.trailers.clone().filter(|_| !self.ended);
                self.ended = true;
                return Read::Kept(trailers.map(Frame::trailers));
            }
            State::GivenUp => &[],
        };
        if let Some(rest) = held.get(self.at..).filter(|rest| !rest.is_empty()) {
            let piece = Bytes::copy_from_slice(rest.get(..PIECE).unwrap_or(rest));
            self.at += piece.len();
            return Read::Kept(Some(Frame::data(piece)));
        }
        let Some(client) = &mut inner.client else {
            return Read::Kept(None);
        };
        let polled = Pin::new(&mut *client).poll_frame(cx);
        let ends = client.is_end_stream();
        if let Poll::Ready(frame) = &polled {
            self.ended |= !matches!(frame, Some(Ok(frame)) if frame.is_data());
            self.at += inner.keep(frame.as_ref(), ends);
        }
        Read::Client(polled)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let inner = self.kept.0.lock();
        match &inner.state {
            State::Whole(whole) => {
                self.at >= whole.data.len() && (self.ended || whole.trailers.is_none())
            }
            _ => inner.client.as_ref().is_none_or(|client| {
                let held = inner.state.held().saturating_sub(self.at);
                held == 0 && client.is_end_stream()
            }),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let inner = self.kept.0.lock();
        let held = inner.state.held().saturating_sub(self.at) as u64;
        let client = match &inner.state {
            State::Whole(_) => SizeHint::with_exact(0),
            _ => inner
                .client
                .as_ref()
                .map_or(SizeHint::with_exact(0), Body::size_hint),
        };
        let mut hint = SizeHint::new();
        // Trailers need chunks in HTTP/1.1, and with an exact length there would be none.
        let has_trailers = matches!(&inner.state, State::Whole(whole) if whole.trailers.is_some());
        if let Some(upper) = client.upper().filter(|_| !has_trailers) {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(client.lower().saturating_add(held));
        hint
    }
}

impl State {
    fn held(&self) -> usize {
        match self {
            Self::Coming { data, .. } => data.len(),
            Self::Whole(whole) => whole.data.len(),
            Self::GivenUp => 0,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.give_up(INCOMPLETE);
    }
}

impl Inner {
    /// Keeps a frame that came from the client. `ends` says that it is the last one. Returns its number of bytes.
    fn keep(&mut self, frame: Option<&Result<Frame<Bytes>, ReceiveError>>, ends: bool) -> usize {
        let State::Coming { data, room } = &mut self.state else {
            return 0;
        };
        let (mut size, mut trailers) = (0, None);
        match frame {
            Some(Ok(frame)) => {
                if let Some(piece) = frame.data_ref() {
                    size = piece.remaining();
                    if data.len() + size > BODY {
                        return self.give_up(TOO_LARGE);
                    }
                    if !room.grow(size) {
                        return self.give_up(LIMIT);
                    }
                    data.extend_from_slice(piece);
                }
                trailers = frame.trailers_ref().cloned();
            }
            Some(Err(_)) => return self.give_up(INCOMPLETE),
            None => {}
        }
        if ends || frame.is_none() || trailers.is_some() {
            self.complete(trailers);
        }
        size
    }

    fn complete(&mut self, trailers: Option<HeaderMap>) {
        let state = std::mem::replace(&mut self.state, State::GivenUp);
        let State::Coming { data, room } = state else {
            self.state = state;
            return;
        };
        let whole = Whole {
            data: data.into(),
            trailers,
            _room: Arc::new(room),
        };
        for mirror in std::mem::take(&mut self.mirrors) {
            mirror.whole(whole.clone());
        }
        self.state = State::Whole(whole);
    }

    fn give_up(&mut self, why: &'static str) -> usize {
        self.state = State::GivenUp;
        for mirror in std::mem::take(&mut self.mirrors) {
            mirror.give_up(why);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_trailers_has_no_exact_length() {
        let copy = |trailers| {
            let room = Room::of(&"team-a".into());
            let whole = Whole {
                data: Bytes::from_static(b"hello"),
                trailers,
                _room: Arc::new(room),
            };
            KeptBody::whole(whole).again().unwrap()
        };
        assert_eq!(copy(None).size_hint().exact(), Some(5));
        let hint = copy(Some(HeaderMap::new())).size_hint();
        assert_eq!((hint.lower(), hint.exact()), (5, None));
    }
}
