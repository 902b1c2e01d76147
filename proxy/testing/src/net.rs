//! Backends of bytes, addresses, and streams that show loss, doubling and reordering.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use vestibule_test_support::free_port;

use crate::waiting::within;

/// A recorded hello with the server name `a.example.com`.
pub const HELLO: &[u8] = include_bytes!("../../tests/hellos/go-mlkem.bin");
/// One without a server name.
pub const HELLO_NO_NAME: &[u8] = include_bytes!("../../tests/hellos/openssl-no-sni.bin");

/// A backend that hands every connection to `serve`.
pub async fn serve<F, S>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A backend that hands its first connection over to the test.
pub async fn one_connection() -> (SocketAddr, impl Future<Output = TcpStream>) {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    (address, async move {
        within("a connection", listener.accept()).await.unwrap().0
    })
}

/// Sends back what comes until the end, then ends too.
pub async fn echo(mut stream: TcpStream) {
    let (mut read, mut write) = stream.split();
    if tokio::io::copy(&mut read, &mut write).await.is_ok() {
        let _ = write.shutdown().await;
    }
}

/// An address where nobody listens.
pub fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// An address at which nobody listens, and nobody can begin to, be it for connections or for datagrams.
pub fn refusing() -> SocketAddr {
    loop {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let Ok(datagrams) = std::net::UdpSocket::bind(address) else {
            continue;
        };
        // A socket that is connected to itself takes from nobody else, and so the kernel says that nobody is there.
        datagrams.connect(address).unwrap();
        std::mem::forget((socket, datagrams));
        return address;
    }
}

/// Reads to the end; `Err` is a reset.
pub async fn read_to_end(stream: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within("the end of the stream", stream.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

/// A stream of bytes that differ from place to place, so that loss, doubling and reordering show.
struct Pattern {
    state: u64,
    left: u64,
}

impl Pattern {
    fn new(seed: u64, length: u64) -> Self {
        let state = seed.wrapping_mul(2).wrapping_add(1);
        Self {
            state,
            left: length,
        }
    }

    fn next(&mut self, buffer: &mut [u8]) -> usize {
        let length = usize::try_from(self.left.min(buffer.len() as u64)).unwrap();
        // Whole words only, except at the end.
        let length = if length as u64 == self.left {
            length
        } else {
            length / 8 * 8
        };
        for chunk in buffer[..length].chunks_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            chunk.copy_from_slice(&self.state.to_le_bytes()[..chunk.len()]);
        }
        self.left -= length as u64;
        length
    }
}

/// Sends a pattern in pieces of many sizes.
pub async fn send(stream: &mut (impl AsyncWriteExt + Unpin), seed: u64, length: u64) {
    let mut pattern = Pattern::new(seed, length);
    let mut buffer = vec![0; 200_000];
    let mut size = 1000;
    loop {
        let length = pattern.next(&mut buffer[..size]);
        if length == 0 {
            break;
        }
        let written = stream.write_all(&buffer[..length]);
        within("room", written).await.unwrap();
        size = (size * 7 + 13) % 199_000 + 8;
    }
    within("room", stream.flush()).await.unwrap();
}

/// Receives what [`send`] sent.
pub async fn receive(stream: &mut (impl AsyncReadExt + Unpin), seed: u64, length: u64) {
    let mut pattern = Pattern::new(seed, length);
    let (mut expected, mut got) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut at = 0;
    loop {
        let length = pattern.next(&mut expected);
        if length == 0 {
            return;
        }
        let read = stream.read_exact(&mut got[..length]);
        within("the rest", read).await.unwrap();
        assert!(
            expected[..length] == got[..length],
            "bytes differ near {at}"
        );
        at += length;
    }
}

/// Has the two ends of a connection send this much to each other at the same time, and then end. Everything has to arrive.
/// Each end is what it reads from and what it writes to. Gives them back, so that both are there until the test drops them.
pub async fn both_send<R, W, FarR, FarW>(
    (mut read, mut write): (R, W),
    (mut far_read, mut far_write): (FarR, FarW),
    length: u64,
) -> ((R, W), (FarR, FarW))
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
    FarR: AsyncRead + Unpin + Send + 'static,
    FarW: AsyncWrite + Unpin + Send + 'static,
{
    let there = tokio::spawn(async move {
        send(&mut write, 3, length).await;
        write.shutdown().await.unwrap();
        write
    });
    let back = tokio::spawn(async move {
        send(&mut far_write, 4, length).await;
        far_write.shutdown().await.unwrap();
        far_write
    });
    let received = tokio::spawn(async move {
        receive(&mut far_read, 3, length).await;
        assert_eq!(read_to_end(&mut far_read).await.unwrap(), b"");
        far_read
    });
    receive(&mut read, 4, length).await;
    assert_eq!(read_to_end(&mut read).await.unwrap(), b"");
    let write = there.await.unwrap();
    let far = (received.await.unwrap(), back.await.unwrap());
    ((read, write), far)
}

/// Has one end of a connection say something and end. After that the other one sends a lot, which has to arrive, and ends
/// too.
pub async fn one_ends_first<F, S>(first: &mut F, mut second: S)
where
    F: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const LENGTH: u64 = 3_000_000;
    first.write_all(b"all there is").await.unwrap();
    first.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut second).await.unwrap(), b"all there is");
    let sending = tokio::spawn(async move {
        send(&mut second, 1, LENGTH).await;
        second.shutdown().await.unwrap();
        second
    });
    receive(first, 1, LENGTH).await;
    // In TLS, an end without close_notify would be an error here.
    assert_eq!(read_to_end(first).await.unwrap(), b"");
    sending.await.unwrap();
}
