//! Sends requests to HTTP/1.1 backends and reads their responses. A connection has one request at a time.
//!
//! Nothing that waits holds a buffer: the request's own task writes the request and reads the head of the response, and
//! whoever takes the body reads it from the socket. So a client that takes nothing of a hundred responses makes the proxy
//! hold one small piece of each, and an idle connection is little more than its socket. (hyper's client has a task, a channel
//! and two buffers of 8 KiB for each connection, as long as it is open.)
//!
//! Only a request that is still being sent when its response begins gets a task of its own for the rest, because the client may
//! take nothing of the response before it has sent everything.
//!
//! `request_writer` has what is not written yet. `response_reader` reads what comes, with `response_head` and `body_decoder`,
//! and knows nothing of connections.

mod body_decoder;
mod error;
mod fields;
mod request_writer;
mod response_head;
mod response_reader;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

pub use self::error::Http1Error;
use self::request_writer::RequestWriter;
pub use self::response_reader::{BegunResponse, ResponseReader};
use super::patient::Patient;
use super::scratch::{SCRATCH, with_scratch};
use super::unsent::Share;
use crate::quota::QuotaGuard;
use crate::upstream;

/// Most bytes that are read at one time of a body that comes faster than it is taken.
const FAST_READ: usize = 64 * 1024;

/// A connection to a backend, as it is given to HTTP/1.1.
pub(super) type ToBackend<T = upstream::Stream> = Patient<T>;

/// The bytes of a request's body: those of a client, or of a test.
pub(super) trait RequestBody:
    Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + Send + 'static
{
}

impl<B> RequestBody for B where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static
{
}

/// The stream below a connection: TCP, TLS, or a pipe of a test.
pub(super) trait Carrier: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Carrier for T {}

/// A connection. If it is dropped, it ends, with the exchange that is under way on it.
pub(super) struct Http1Backend<T: Carrier, B: RequestBody> {
    shared: Arc<Mutex<Http1State<T, B>>>,
    /// Whether dropping it leaves the connection to whoever else has it.
    is_retired: bool,
}

/// One exchange after the other on a connection.
struct Http1State<T, B> {
    /// `None` once the connection has ended, or is not HTTP any more.
    stream: Option<ToBackend<T>>,
    request: RequestWriter<B>,
    response: ResponseReader,
    /// Whether the last read got as much as it could take.
    is_fast: bool,
    /// Wakes the task that sends the rest of the request after the response began.
    sender: Option<Waker>,
    /// Wakes the task that takes the response, while there is such a task.
    receiver: Option<Waker>,
    /// Whether nobody takes the response any more, because it has ended.
    is_answered: bool,
    _place: Option<QuotaGuard>,
}

/// A request without a response.
pub(super) struct Unanswered<B> {
    /// The request, if it is certain that the backend has seen nothing of it.
    pub(super) unseen: Option<Box<Request<B>>>,
    pub(super) error: Http1Error,
}

/// A connection that is not HTTP any more, and the bytes that were read of it behind the head of the response.
pub(super) struct Upgraded {
    pub(super) stream: ToBackend,
    pub(super) read: Bytes,
}

impl<T: Carrier, B: RequestBody> Http1Backend<T, B> {
    /// A new connection. As long as HTTP is spoken on it, it has `place`.
    pub(super) fn new(stream: T, place: Option<QuotaGuard>) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Http1State {
                stream: Some(Patient::new(stream)),
                request: RequestWriter::default(),
                response: ResponseReader::default(),
                is_fast: false,
                sender: None,
                receiver: None,
                is_answered: true,
                _place: place,
            })),
            is_retired: false,
        }
    }

    /// Whether an idle connection can have a request. If something has come without one, nobody knows what it is.
    pub(super) fn is_open(&self) -> bool {
        // The budget of the task that asks must not hide what has come.
        let look = poll_fn(|cx| Poll::Ready(self.shared.lock().is_quiet(cx)));
        let look = pin!(tokio::task::unconstrained(look));
        look.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(true)
    }

    /// Whether the last exchange is over on both sides, and another one may follow.
    pub(super) fn is_reusable(&self) -> bool {
        let shared = self.shared.lock();
        shared.response.lets_another_follow() && shared.request.is_done() && shared.stream.is_some()
    }

    /// Lets the connection end when the rest of its request is sent.
    pub(super) fn retire(mut self) {
        let mut shared = self.shared.lock();
        shared.is_answered = true;
        if shared.request.is_done() {
            shared.end();
        } else if let Some(sender) = shared.sender.take() {
            sender.wake();
        }
        drop(shared);
        self.is_retired = true;
    }

    /// Sends a request, and returns the response when its head has come. At most `piece` bytes are read at one time, until the
    /// body turns out to be one that comes fast, or follows a [`Share`].
    pub(super) async fn send(
        &mut self,
        request: Request<B>,
        piece: usize,
    ) -> Result<Response<Http1Answer<T, B>>, Unanswered<B>> {
        let (mut head, body) = request.into_parts();
        let (body, none) = if body.is_end_stream() {
            (None, Some(body))
        } else {
            (Some(Box::new(body)), None)
        };
        let begun = self.shared.lock().begin(&mut head, body);
        let taken = match begun {
            Ok(taken) => taken,
            Err(error) => {
                return Err(Unanswered {
                    unseen: None,
                    error,
                });
            }
        };
        let mut unseen = none.map(|none| Request::from_parts(head, none));
        let answered = poll_fn(|cx| {
            let mut shared = self.shared.lock();
            let answered = shared.poll_answer(cx, piece);
            // The head is not kept for as long as the backend takes to answer.
            if shared.taken() != taken {
                unseen = None;
            }
            answered
        });
        match answered.await {
            Ok(begun) => Ok(self.answer(begun, piece)),
            Err(error) => Err(Unanswered {
                unseen: unseen.map(Box::new),
                error,
            }),
        }
    }

    fn answer(&self, begun: BegunResponse, piece: usize) -> Response<Http1Answer<T, B>> {
        let shared = self.shared.lock();
        if !shared.request.is_done() {
            let rest = Arc::clone(&self.shared);
            tokio::spawn(poll_fn(move |cx| rest.lock().poll_rest(cx)));
        }
        let (first, behind) = if begun.response.status() == StatusCode::SWITCHING_PROTOCOLS {
            (Bytes::new(), begun.first)
        } else {
            (begun.first, Bytes::new())
        };
        begun.response.map(|()| Http1Answer {
            shared: Arc::clone(&self.shared),
            first,
            behind,
            is_over: shared.response.is_over(),
            left: shared.response.left(),
            share: None,
            piece,
        })
    }
}

impl<T: Carrier, B: RequestBody> Drop for Http1Backend<T, B> {
    fn drop(&mut self) {
        if !self.is_retired {
            self.shared.lock().end();
        }
    }
}

impl<T: Carrier, B: RequestBody> Http1State<T, B> {
    /// Ends the connection. Whoever still has it learns of that.
    fn end(&mut self) {
        if let Some(mut stream) = self.stream.take()
            && self.request.is_done()
        {
            // With TLS, the backend is told that this is an end in order. Nobody waits for it to be sent.
            let mut cx = Context::from_waker(Waker::noop());
            let _told = Pin::new(&mut stream).poll_shutdown(&mut cx);
        }
        let wakers = [self.sender.take(), self.receiver.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// How many bytes the connection has taken until now.
    fn taken(&self) -> Option<u64> {
        self.stream.as_ref().map(Patient::taken)
    }

    fn begin(
        &mut self,
        head: &mut hyper::http::request::Parts,
        body: Option<Box<B>>,
    ) -> Result<Option<u64>, Http1Error> {
        self.is_answered = false;
        self.is_fast = false;
        // Those of the last exchange would keep what its tasks hold.
        (self.sender, self.receiver) = (None, None);
        self.response = ResponseReader::to(head.method == Method::HEAD);
        self.request.begin(head, body)?;
        Ok(self.taken())
    }

    /// Writes the request, and reads the head of the response with the first bytes of its body.
    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        piece: usize,
    ) -> Poll<Result<BegunResponse, Http1Error>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Err(Http1Error::GivenUp));
        };
        let sent = self.request.poll(stream, cx);
        // A response that comes early is the answer all the same.
        if let Poll::Ready(answer) = self.poll_head(cx, piece) {
            return Poll::Ready(answer);
        }
        match sent {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        piece: usize,
    ) -> Poll<Result<BegunResponse, Http1Error>> {
        loop {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(Http1Error::GivenUp));
            };
            let response = &mut self.response;
            let read = poll_scratch(stream, cx, piece, |bytes| {
                if bytes.is_empty() {
                    return Err(Http1Error::Incomplete);
                }
                response.head(bytes)
            });
            if let Some(begun) = ready!(read)? {
                return Poll::Ready(Ok(begun));
            }
        }
    }

    /// Sends the rest of a request whose response has begun. It is ready when the connection needs that no more.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else {
            self.request.give_up();
            return Poll::Ready(());
        };
        match self.request.poll(stream, cx) {
            Poll::Ready(Ok(())) => {
                if self.is_answered {
                    self.end();
                }
                return Poll::Ready(());
            }
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "the rest of a request was not sent");
                self.request.give_up();
                // A backend that takes no more may have sent its response before.
                if self.is_answered || !matches!(error, Http1Error::Io(_)) {
                    self.end();
                }
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
        // Nobody else reads any more, and so nobody else would notice that the backend has closed.
        if self.is_answered && !self.is_quiet(cx) {
            self.request.give_up();
            self.end();
            return Poll::Ready(());
        }
        self.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the connection is open, and nothing has come on it. If so, the task is woken when something does.
    fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let stream = self.stream.as_mut();
        stream.is_some_and(|stream| Pin::new(stream).poll_read(cx, &mut buffer).is_pending())
    }

    /// Reads the next piece of the body, of at most `most` bytes.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        loop {
            self.response.check()?;
            if let Some(trailers) = self.response.take_trailers() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            if self.response.has_arrived() {
                return Poll::Ready(None);
            }
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Some(Err(Http1Error::GivenUp)));
            };
            let left = self
                .response
                .left()
                .and_then(|left| usize::try_from(left).ok());
            let most = left.map_or(most, |left| left.min(most));
            let read = if self.is_fast {
                poll_fast(stream, &mut self.response, cx, most)
            } else {
                poll_small(stream, &mut self.response, cx, most)
            };
            let Poll::Ready(read) = read else {
                // Only if the connection may end by another task, somebody has to wake this one.
                if !self.request.is_done() {
                    self.receiver = Some(cx.waker().clone());
                }
                return Poll::Pending;
            };
            let (content, count) = read?;
            let room = if self.is_fast { FAST_READ } else { SCRATCH };
            self.is_fast = count == most.min(room);
            if !content.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(content))));
            }
        }
    }
}

/// Reads at most `most` bytes into the buffer of the thread, and has `take` use them there. There are none at the end of the
/// stream.
fn poll_scratch<S: AsyncRead + Unpin, R>(
    stream: &mut S,
    cx: &mut Context<'_>,
    most: usize,
    take: impl FnOnce(&mut [u8]) -> Result<R, Http1Error>,
) -> Poll<Result<R, Http1Error>> {
    with_scratch(|scratch| {
        let most = most.min(scratch.len());
        let mut buffer = ReadBuf::new(scratch.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(take(buffer.filled_mut()))
    })
}

/// Content, and the number of bytes that were read for it.
type Read = Poll<Result<(Bytes, usize), Http1Error>>;

/// Reads into the buffer of the thread, and copies the content, which is exactly as large as it has to be.
fn poll_small<S: AsyncRead + Unpin>(
    stream: &mut S,
    response: &mut ResponseReader,
    cx: &mut Context<'_>,
    most: usize,
) -> Read {
    poll_scratch(stream, cx, most, |bytes| {
        let count = bytes.len();
        if count == 0 {
            response.end()?;
        }
        let content = response.body(bytes)?;
        let content = bytes.get(..content).unwrap_or_default();
        Ok((Bytes::copy_from_slice(content), count))
    })
}

/// Reads into a buffer that is passed on as it is.
fn poll_fast<S: AsyncRead + Unpin>(
    stream: &mut S,
    response: &mut ResponseReader,
    cx: &mut Context<'_>,
    most: usize,
) -> Read {
    let mut bytes = BytesMut::with_capacity(most.min(FAST_READ)).limit(most.min(FAST_READ));
    let count = ready!(poll_read_buf(Pin::new(stream), cx, &mut bytes))?;
    let mut bytes = bytes.into_inner();
    if count == 0 {
        response.end()?;
    }
    let content = response.body(&mut bytes)?;
    bytes.truncate(content);
    let content = if content < count / 2 || count < SCRATCH / 2 {
        Bytes::copy_from_slice(&bytes)
    } else {
        bytes.freeze()
    };
    Poll::Ready(Ok((content, count)))
}

/// The body of a response. It reads from its connection when it is polled.
pub(super) struct Http1Answer<T, B> {
    shared: Arc<Mutex<Http1State<T, B>>>,
    /// The part of it that came together with the head.
    first: Bytes,
    /// The bytes behind the head that are not HTTP.
    behind: Bytes,
    /// Whether nothing follows but `first`.
    is_over: bool,
    /// How many bytes follow `first`, if that is known.
    left: Option<u64>,
    /// The bytes of it that wait for its client, if they are bounded.
    share: Option<Arc<Share>>,
    /// Most bytes that are read at one time, if they are not.
    piece: usize,
}

impl<T, B> Http1Answer<T, B> {
    /// From here on, takes no more at one time than `share` has room for.
    pub(super) fn follow(&mut self, share: &Arc<Share>) {
        self.share = Some(Arc::clone(share));
    }
}

impl<B: RequestBody> Http1Answer<upstream::Stream, B> {
    /// Takes the connection of a response that switches protocols. It is `None` if the connection has ended.
    pub(super) fn into_upgraded(self) -> Option<Upgraded> {
        let mut shared = self.shared.lock();
        let stream = shared.stream.take();
        // Nothing is left to end but a request that is still being sent.
        shared.end();
        drop(shared);
        Some(Upgraded {
            stream: stream?,
            read: self.behind,
        })
    }
}

impl<T: Carrier, B: RequestBody> Body for Http1Answer<T, B> {
    type Data = Bytes;
    type Error = Http1Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.is_over {
            return Poll::Ready(None);
        }
        let most = this
            .share
            .as_ref()
            .map_or(this.piece, |share| share.piece_size());
        let mut shared = this.shared.lock();
        let polled = ready!(shared.poll_body(cx, most));
        (this.is_over, this.left) = (shared.response.is_over(), shared.response.left());
        // Only clients of HTTP/2 have a bound.
        if this.share.is_none() && shared.is_fast {
            this.piece = FAST_READ;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.len() as u64;
        match self.left {
            Some(left) => SizeHint::with_exact(left.saturating_add(first)),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
