//! The two sides of a connection, and what the kernel knows and holds of them.

use std::io;

use socket2::SockRef;
use tokio::net::TcpStream;

/// One of the two peers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer that connected to this proxy.
    Client,
    /// The peer to which this proxy connected.
    Backend,
}

/// The end at which a direction between the two sides failed, and why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectionError {
    /// Nothing more can be read.
    #[error("reading failed: {0}")]
    Source(io::Error),
    /// Nothing more can be written.
    #[error("writing failed: {0}")]
    Sink(io::Error),
}

impl DirectionError {
    /// The side that failed, if the direction leads away from `source`.
    pub(crate) fn side(&self, source: Side) -> Side {
        match (self, source) {
            (Self::Source(_), _) => source,
            (Self::Sink(_), Side::Client) => Side::Backend,
            (Self::Sink(_), Side::Backend) => Side::Client,
        }
    }
}

/// Whether the peer had ended its direction in order before a write to it failed like this. If not, the end that a read
/// finds after the write is none.
///
/// The kernel reports a reset once. When a write has taken the report, the next reads return what had arrived, and then an
/// end, as if the peer had closed in order. The peer's own end can be told from it: with that, the write fails with a broken
/// pipe.
pub(crate) fn had_ended(failed_write: io::ErrorKind) -> bool {
    failed_write == io::ErrorKind::BrokenPipe
}

/// The side whose connection is lost: it was reset, or its peer does not answer keepalive probes. This reads the error
/// that the kernel keeps for the socket, so nothing else shows it afterwards.
pub(crate) fn lost(client: &TcpStream, backend: &TcpStream) -> Option<Side> {
    let is_lost = |socket: &TcpStream| !matches!(socket.take_error(), Ok(None));
    if is_lost(client) {
        Some(Side::Client)
    } else if is_lost(backend) {
        Some(Side::Backend)
    } else {
        None
    }
}

/// Bounds the bytes that the kernel takes for a peer before it may send them. Without this, it takes several megabytes
/// for a peer that once read fast and then stops. What is on its way to the peer does not count, so no transfer becomes
/// slower.
pub(crate) fn bound_unsent(socket: &TcpStream, most: u32) {
    // If the kernel does not know the option, its own bound holds.
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(most);
}

/// Waits until both directions of a connection are over.
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by it")]
pub(crate) async fn over(socket: &TcpStream) {
    let any = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
    while !socket.ready(any).await.unwrap().is_write_closed() {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of a connection.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await;
        (near.unwrap(), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_reset_is_seen_without_a_read() {
        let ((client, far_client), (backend, far_backend)) = (connected().await, connected().await);
        assert_eq!(lost(&client, &backend), None);
        far_backend.try_write(b"unread").unwrap();
        far_backend.set_zero_linger().unwrap();
        drop(far_backend);
        let mut seen = lost(&client, &backend);
        while seen.is_none() {
            tokio::task::yield_now().await;
            seen = lost(&client, &backend);
        }
        assert_eq!(seen, Some(Side::Backend));
        // An end in order is none.
        drop(far_client);
        client.readable().await.unwrap();
        assert_eq!(client.try_read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(lost(&client, &backend), None);
    }

    #[tokio::test]
    async fn the_kernel_holds_little_for_a_peer_that_takes_nothing() {
        let (near, _far) = connected().await;
        bound_unsent(&near, 128 * 1024);
        let piece = vec![0; 16 * 1024];
        let mut taken = 0;
        near.writable().await.unwrap();
        while let Ok(count) = near.try_write(&piece) {
            taken += count;
        }
        assert!(taken < 1024 * 1024, "{taken} bytes");
    }
}
