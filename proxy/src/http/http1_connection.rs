//! Owns a client's HTTP/1.1 connection, which holds the buffers of hyper only while it has something to do.
//!
//! hyper has two buffers of 8 KiB for each connection, and cannot give them back. So an idle connection is taken out of hyper,
//! and put back when the client sends something. hyper is told to end after what is under way, and ends at once if that is
//! nothing. [`Activity::quiet`] is asked before that, because hyper also ends at once if only a part of a head has arrived, and
//! because a connection that was told so cannot go on. [`Counted::is_between`] is asked after it, because hyper also ends
//! connections on which nobody knows where the next request begins.
//!
//! [`Activity::quiet`]: super::activity::Activity::quiet

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::rt::Write;
use hyper::server::conn::http1::{Builder, Connection, Parts};
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;

use super::activity::Activity;
use super::transport::Counted;

/// A connection that is served by hyper, or waits for the next request without it.
pub(super) struct Http1Connection<S: HttpService<Incoming>> {
    builder: Builder,
    state: State<S>,
    activity: Arc<Activity>,
    /// Whether it is to be taken out of hyper.
    releases: bool,
}

enum State<S: HttpService<Incoming>> {
    /// In a box, so that an idle connection has no room for it.
    Served(Box<Connection<TokioIo<Counted>, S>>),
    /// All requests are answered. The service is for the next one.
    Idle(TokioIo<Counted>, S),
    /// hyper has ended, with this result, and flushes and closes.
    Ending(Box<Connection<TokioIo<Counted>, S>>, hyper::Result<()>),
    /// It closes in order, without hyper.
    Closing(TokioIo<Counted>),
    /// HTTP has ended, and the bytes after the last request are not HTTP.
    Upgraded(Counted, Bytes),
    Closed,
}

impl<S, B> Http1Connection<S>
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible> + Unpin,
    S::Future: Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(builder: Builder, io: Counted, service: S) -> Self {
        let activity = Arc::clone(io.activity());
        let served = builder.serve_connection(TokioIo::new(io), service);
        Self {
            builder,
            state: State::Served(Box::new(served)),
            activity,
            releases: false,
        }
    }

    /// Gives back the buffers at the next poll, if nothing is under way. Only a connection that is
    /// [quiet](super::activity::Activity::quiet) may be asked, because another one would end after its present request.
    pub(super) fn release_buffers(&mut self) {
        self.releases = matches!(self.state, State::Served(_));
    }

    /// Takes no further requests. If one is under way, its response tells the client so.
    pub(super) fn end(&mut self) {
        self.releases = false;
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Served(mut served) => {
                Pin::new(&mut *served).graceful_shutdown();
                self.state = State::Served(served);
            }
            State::Idle(io, _) => self.state = State::Closing(io),
            other => self.state = other,
        }
    }

    /// The bytes below HTTP, and those that were read behind the last request, if the connection was upgraded.
    pub(super) fn into_upgraded(self) -> Option<(Counted, Bytes)> {
        match self.state {
            State::Upgraded(io, read) => Some((io, read)),
            _ => None,
        }
    }

    /// The next state of a connection that hyper has ended, with this result. An error means that the connection has broken
    /// off, and must not look complete.
    fn after(
        served: Box<Connection<TokioIo<Counted>, S>>,
        ended: hyper::Result<()>,
        releases: bool,
        is_upgraded: bool,
    ) -> hyper::Result<State<S>> {
        let next = match ended {
            Ok(()) if is_upgraded => {
                let Parts { io, read_buf, .. } = served.into_parts();
                State::Upgraded(io.into_inner(), read_buf)
            }
            Ok(()) if releases => {
                let Parts {
                    io,
                    read_buf,
                    service,
                    ..
                } = served.into_parts();
                if read_buf.is_empty() && io.inner().is_between() {
                    State::Idle(io, service)
                } else {
                    State::Closing(io)
                }
            }
            // hyper has flushed and closed already, unless a request has asked for an upgrade and not got it.
            Ok(()) => State::Ending(served, Ok(())),
            // The same, after its response to what it did not understand.
            Err(error) if error.is_parse() => State::Ending(served, Err(error)),
            Err(error) => return Err(error),
        };
        Ok(next)
    }
}

impl<S, B> Future for Http1Connection<S>
where
    S: HttpService<Incoming, ResBody = B, Error = Infallible> + Unpin,
    S::Future: Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Served(served) => {
                    let mut served = Pin::new(&mut **served);
                    let releases = std::mem::take(&mut this.releases);
                    let ended = ready!(if releases {
                        served.as_mut().graceful_shutdown();
                        served.poll_without_shutdown(cx)
                    } else {
                        served.poll(cx)
                    });
                    let is_upgraded = this.activity.is_upgraded();
                    if let State::Served(served) = std::mem::replace(&mut this.state, State::Closed)
                    {
                        this.state = Self::after(served, ended, releases, is_upgraded)?;
                    }
                }
                State::Ending(served, ended) => {
                    // The client may have closed before.
                    let _ = ready!(Pin::new(&mut **served).poll(cx));
                    let ended = std::mem::replace(ended, Ok(()));
                    this.state = State::Closed;
                    return Poll::Ready(ended);
                }
                State::Idle(io, _) => {
                    // An error is found again by the read.
                    let _ = ready!(io.inner().socket().poll_read_ready(cx));
                    if let State::Idle(io, service) =
                        std::mem::replace(&mut this.state, State::Closed)
                    {
                        this.activity.resume();
                        let served = this.builder.serve_connection(io, service);
                        this.state = State::Served(Box::new(served));
                    }
                }
                State::Closing(io) => {
                    // The client may have closed before.
                    let _ = ready!(Pin::new(io).poll_shutdown(cx));
                    this.state = State::Closed;
                }
                State::Upgraded(..) | State::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use std::future::{Ready, poll_fn, ready};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::transport::Transport;
    use super::*;
    use crate::limits::HttpLimits;
    use crate::replayed::Replayed;

    type Answer = Ready<Result<Response<Full<Bytes>>, Infallible>>;

    /// A client, its connection, and what is known of it. Each request is answered at once.
    async fn connected(
        answer: impl Into<Bytes>,
    ) -> (
        TcpStream,
        Http1Connection<
            impl HttpService<Incoming, ResBody = Full<Bytes>, Error = Infallible, Future = Answer>
            + Unpin,
        >,
        Arc<Activity>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let activity = Arc::new(Activity::new(&HttpLimits::default()));
        let answer = answer.into();
        let service = {
            let activity = Arc::clone(&activity);
            service_fn(move |_: Request<Incoming>| -> Answer {
                activity.begin();
                activity.end();
                ready(Ok(Response::new(answer.clone().into())))
            })
        };
        let transport = Transport::Plain(Replayed::new(Vec::new(), accepted.unwrap().0));
        let io = Counted::new(transport, Arc::clone(&activity), true, 100, 100);
        let connection = Http1Connection::new(Builder::new(), io, service);
        (client.unwrap(), connection, activity)
    }

    /// Runs the connection until `other` is over.
    async fn meanwhile<T>(
        connection: &mut (impl Future<Output = hyper::Result<()>> + Unpin),
        other: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            ended = connection => panic!("the connection has ended: {ended:?}"),
            done = other => done,
        }
    }

    /// Reads one response.
    async fn answer(client: &mut TcpStream) {
        let mut all = Vec::new();
        while !all.ends_with(b"\r\n\r\nok") {
            assert_ne!(client.read_buf(&mut all).await.unwrap(), 0, "{all:?}");
        }
    }

    async fn turn(connection: &mut (impl Future<Output = hyper::Result<()>> + Unpin)) {
        poll_fn(|cx| {
            assert!(Pin::new(&mut *connection).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[tokio::test]
    async fn an_idle_connection_leaves_hyper_and_comes_back_for_its_next_request() {
        let (mut client, mut connection, activity) = connected("ok").await;
        turn(&mut connection).await;
        connection.release_buffers();
        turn(&mut connection).await;
        assert!(
            matches!(connection.state, State::Idle(..)),
            "before the first request"
        );
        for _ in 0..3 {
            meanwhile(&mut connection, async {
                let (first, second) = REQUEST.split_at(7);
                client.write_all(first).await.unwrap();
                tokio::task::yield_now().await;
                client.write_all(second).await.unwrap();
                answer(&mut client).await;
            })
            .await;
            assert!(activity.quiet().is_some());
            connection.release_buffers();
            turn(&mut connection).await;
            assert!(matches!(connection.state, State::Idle(..)));
            turn(&mut connection).await;
            assert!(matches!(connection.state, State::Idle(..)));
        }
        drop(client);
        connection.await.unwrap();
    }

    #[tokio::test]
    async fn an_idle_connection_can_be_ended() {
        let (mut client, mut connection, _) = connected("ok").await;
        client.write_all(REQUEST).await.unwrap();
        meanwhile(&mut connection, answer(&mut client)).await;
        connection.release_buffers();
        turn(&mut connection).await;
        connection.end();
        connection.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    /// A connection whose next request has begun is not asked. If it is all the same, it ends, and nobody takes the rest of
    /// the head for a request.
    #[tokio::test]
    async fn the_beginning_of_a_head_is_never_lost() {
        let (mut client, mut connection, activity) = connected("ok").await;
        client.write_all(REQUEST).await.unwrap();
        meanwhile(&mut connection, answer(&mut client)).await;
        client.write_all(b"GET /secret HTTP/1.1\r\n").await.unwrap();
        meanwhile(&mut connection, async {
            while activity.quiet().is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        connection.release_buffers();
        client.write_all(b"host: a\r\n\r\n").await.unwrap();
        connection.await.unwrap();
        assert_eq!(activity.requests(), 1);
    }

    /// The beginning of the next head came with the request before, so it waits in a buffer of hyper.
    #[tokio::test]
    async fn connection_whose_next_head_began_with_the_last_request_is_not_quiet() {
        for next in [&b"\r\n"[..], b"GET /b HT"] {
            let (mut client, mut connection, activity) = connected("ok").await;
            client.write_all(&[REQUEST, next].concat()).await.unwrap();
            meanwhile(&mut connection, answer(&mut client)).await;
            assert_eq!(activity.quiet(), None, "{next:?}");
        }
    }

    /// hyper has nothing more to read or to make then, but much to write.
    #[tokio::test]
    async fn an_answer_before_the_end_of_the_request_arrives_completely() {
        for field in ["", "upgrade: h2c\r\n"] {
            let (mut client, connection, _) = connected(vec![b'x'; 8 << 20]).await;
            let request = format!(
                "POST / HTTP/1.1\r\nhost: a\r\n{field}content-length: 9000000\r\n\r\nbegin"
            );
            client.write_all(request.as_bytes()).await.unwrap();
            let read = async {
                let mut all = Vec::new();
                client.read_to_end(&mut all).await.map(|_| all)
            };
            let (ended, all) = tokio::join!(connection, read);
            ended.unwrap();
            let all = all.unwrap();
            let body = all.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            assert_eq!(all.len() - body, 8 << 20, "{field}");
        }
    }

    #[tokio::test]
    async fn an_end_comes_before_a_release() {
        let (mut client, mut connection, _) = connected("ok").await;
        client.write_all(REQUEST).await.unwrap();
        meanwhile(&mut connection, answer(&mut client)).await;
        connection.release_buffers();
        connection.end();
        connection.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_may_ask_for_the_end_after_a_release() {
        let (mut client, mut connection, activity) = connected("ok").await;
        turn(&mut connection).await;
        connection.release_buffers();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        connection.await.unwrap();
        answer(&mut client).await;
        assert_eq!(activity.requests(), 1);
    }
}
