//! Owns bodies of requests that are kept while they flow, so that they can be sent once more: to another endpoint when
//! the first one does not do, and to mirrors.
//!
//! The bound is on what is kept, never on the request: a body that is larger flows on, and cannot be sent again. What
//! has not been read of the client yet is read by the attempt that is under way, so an attempt can begin before the
//! body is whole.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

use super::shares::Shares;

/// Why a body is not kept to its end.
pub(super) const INCOMPLETE: &str = "BodyIncomplete";
pub(super) const TOO_LARGE: &str = "BodyTooLarge";
pub(super) const LIMIT: &str = "Limit";

/// Most bytes that are kept of one body.
pub(super) const BODY: usize = 64 * 1024;
/// Most bytes that a worker keeps of all bodies.
const IN_ALL: usize = 16 * 1024 * 1024;
/// Bytes that are sent again at a time.
const PIECE: usize = 16 * 1024;

thread_local! {
    static ROOM: RefCell<Shares> = RefCell::new(Shares::new(IN_ALL));
}

/// Bytes that are kept, as the worker and the namespace count them.
struct Room {
    namespace: Arc<str>,
    bytes: usize,
}

impl Room {
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

/// A body that came whole.
#[derive(Clone)]
pub(super) struct Whole {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// For as long as anybody has the bytes.
    _room: Arc<Room>,
}

/// Who waits for the whole of a body.
pub(super) trait Waiter: Send {
    /// It is whole.
    fn whole(self: Box<Self>, body: Whole);

    /// It is not going to be: one of the words above.
    fn give_up(self: Box<Self>, why: &'static str);
}

/// How far a body has come.
enum State {
    Coming {
        data: Vec<u8>,
        room: Room,
    },
    Whole(Whole),
    /// It is too large, or broke.
    GivenUp,
}

struct Inner {
    /// None: it is for mirrors alone.
    client: Option<Incoming>,
    state: State,
    /// The attempt that reads. Those before it get nothing more.
    turn: u32,
    /// Those that get a copy once it is whole.
    mirrors: Vec<Box<dyn Waiter>>,
}

/// A body that is kept.
pub(super) struct Kept(Mutex<Inner>);

impl Kept {
    /// Of a request for a route of `namespace`.
    pub(super) fn new(client: Incoming, namespace: &Arc<str>) -> Arc<Self> {
        let room = Room {
            namespace: Arc::clone(namespace),
            bytes: 0,
        };
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

    /// One that is there already.
    pub(super) fn whole(whole: Whole) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            client: None,
            state: State::Whole(whole),
            turn: 0,
            mirrors: Vec::new(),
        })))
    }

    /// Has a mirror get a copy when it is whole.
    pub(super) fn copy_to(&self, mirror: Box<dyn Waiter>) {
        self.0.lock().mirrors.push(mirror);
    }

    /// From its beginning, for another attempt; none if it cannot be had once more.
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

/// What was read.
pub(super) enum Read {
    /// Of the client: for the first time.
    Client(Poll<Option<Result<Frame<Bytes>, hyper::Error>>>),
    /// Of what was kept.
    Kept(Option<Frame<Bytes>>),
    /// Nothing: another attempt reads.
    Replaced,
}

/// One reading of a body.
pub(super) struct Reader {
    kept: Arc<Kept>,
    turn: u32,
    /// Bytes so far.
    at: usize,
    /// All of it was read.
    ended: bool,
}

impl Reader {
    pub(super) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// Whether the client is waited for by this reading.
    pub(super) fn reads_client(&self) -> bool {
        let inner = self.kept.0.lock();
        inner.turn == self.turn && inner.client.is_some()
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
        if let Some(upper) = client.upper() {
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
    /// Takes note of what came of the client; `ends` says that nothing more will. Returns how many bytes it was.
    fn keep(&mut self, frame: Option<&Result<Frame<Bytes>, hyper::Error>>, ends: bool) -> usize {
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
