//! Owns the socket of a client with whom this proxy speaks HTTP, and the wait for the loss of one that only listens.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::keepalive::expect_loss;

/// A client's socket. It has one descriptor, whether its loss is waited for or not.
pub(crate) struct ClientSocket {
    /// It is shared only with `loss`.
    stream: Arc<TcpStream>,
    loss: Option<Loss>,
}

type Loss = Pin<Box<dyn Future<Output = io::Error> + Send>>;

impl ClientSocket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            loss: None,
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits for the loss of a client that has ended its sending direction. Such a socket is always readable, so a read
    /// would show nothing. This waits for the error that the kernel reports when the client resets the connection, or
    /// does not answer keepalive probes. From the first call on, these probes come in short intervals.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let stream = &self.stream;
        let loss = self.loss.get_or_insert_with(|| {
            // If the kernel does not take the setting, its former one holds.
            let _ = expect_loss(&SockRef::from(&**stream));
            let stream = Arc::clone(stream);
            Box::pin(async move {
                let lost = || io::ErrorKind::ConnectionReset.into();
                match stream.ready(Interest::ERROR).await {
                    Ok(_) => stream.take_error().ok().flatten().unwrap_or_else(lost),
                    Err(error) => error,
                }
            })
        });
        loss.as_mut().poll(cx)
    }

    /// The stream, as long as nothing waits for its loss. Reads and writes of tokio need it for themselves, and make fewer
    /// system calls than those that can share it.
    fn own(&mut self) -> Option<Pin<&mut TcpStream>> {
        Arc::get_mut(&mut self.stream).map(Pin::new)
    }

    /// Writes to a stream that is shared.
    fn poll_write_shared(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let stream = &self.stream;
        poll_shared(|| stream.poll_write_ready(cx), || write(stream))
    }
}

/// Does something with a stream that is shared, as soon as the stream is ready for it.
fn poll_shared(
    mut poll_ready: impl FnMut() -> Poll<io::Result<()>>,
    mut act: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_ready())?;
        match act() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return Poll::Ready(done),
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(stream) = self.own() {
            return stream.poll_read(cx, buffer);
        }
        let stream = &self.stream;
        let read = ready!(poll_shared(
            || stream.poll_read_ready(cx),
            || stream.try_read(buffer.initialize_unfilled())
        ))?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.own() {
            Some(stream) => stream.poll_write(cx, bytes),
            None => self.poll_write_shared(cx, |stream| stream.try_write(bytes)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.own() {
            Some(stream) => stream.poll_write_vectored(cx, pieces),
            None => self.poll_write_shared(cx, |stream| stream.try_write_vectored(pieces)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = SockRef::from(&*self.stream).shutdown(Shutdown::Write);
        Poll::Ready(match ended {
            // The client is gone already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A client that has ended its sending direction, and the socket of the proxy, at which its loss is waited for.
    async fn half_closed() -> (TcpStream, ClientSocket) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut client = client.unwrap();
        client.shutdown().await.unwrap();
        let mut socket = ClientSocket::new(listener.accept().await.unwrap().0);
        assert_eq!(socket.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(futures::poll!(std::future::poll_fn(|cx| socket.poll_lost(cx))).is_pending());
        (client, socket)
    }

    #[tokio::test]
    async fn a_client_that_only_listens_gets_everything() {
        let (mut client, mut socket) = half_closed().await;
        let sends = async {
            for _ in 0..100 {
                // Once in one piece, and once in two.
                socket.write_all(&vec![7; 50_000]).await.unwrap();
                let pieces = [io::IoSlice::new(&[7; 2]), io::IoSlice::new(&[7; 3])];
                assert_eq!(socket.write_vectored(&pieces).await.unwrap(), 5);
            }
            assert_eq!(socket.read(&mut [0; 8]).await.unwrap(), 0);
            socket.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(sends, client.read_to_end(&mut got));
        assert_eq!(read.unwrap(), 100 * 50_005);
        assert!(got.iter().all(|byte| *byte == 7));
    }

    #[tokio::test]
    async fn a_reset_ends_the_wait() {
        let (client, mut socket) = half_closed().await;
        client.set_zero_linger().unwrap();
        drop(client);
        let error = std::future::poll_fn(|cx| socket.poll_lost(cx)).await;
        // This is how Linux reports a reset after the peer's end.
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
