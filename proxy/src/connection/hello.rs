//! Owns reading the hello of a connection.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use crate::acknowledgement;
use crate::close_reason::CloseReason;
use crate::hello::{Hello, HelloReader, Progress};

pub(super) async fn read(
    client: &mut TcpStream,
    reader: &mut HelloReader,
    first: Vec<u8>,
) -> Result<Hello, CloseReason> {
    if !first.is_empty() {
        match reader.push(&first) {
            Progress::NeedMore => {}
            Progress::Hello(hello) => return Ok(hello),
            Progress::Rejected(rejection) => return Err(rejection.into()),
        }
    }
    drop(first);
    loop {
        let progress = poll_fn(|cx| {
            // The buffer does not live across an await. Otherwise every waiting connection would have room for it in
            // its future, and copy that room when it begins.
            let mut space = [MaybeUninit::uninit(); 4096];
            let mut chunk = ReadBuf::uninit(&mut space);
            let read = ready!(Pin::new(&mut *client).poll_read(cx, &mut chunk));
            let pushed = read.map(|()| match chunk.filled() {
                [] => None,
                bytes => Some(reader.push(bytes)),
            });
            Poll::Ready(pushed)
        });
        match progress.await.map_err(|_| CloseReason::ClientReset)? {
            None if reader.is_empty() => return Err(CloseReason::ClientSilent),
            None => return Err(CloseReason::HelloIncomplete),
            Some(Progress::NeedMore) => acknowledgement::at_once(client),
            Some(Progress::Hello(hello)) => return Ok(hello),
            Some(Progress::Rejected(rejection)) => return Err(rejection.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use socket2::SockRef;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// The kernel says whether it waits with acknowledgements until there are data to send along.
    #[tokio::test]
    async fn a_piece_of_a_hello_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        acknowledgement::with_reply(&listener).unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, (mut accepted, _)) = (client.unwrap(), accepted.unwrap());
        let same = accepted.as_fd().try_clone_to_owned().unwrap();
        let same = SockRef::from(&same);
        assert!(!same.tcp_quickack().unwrap(), "accepted sockets inherit it");
        // The type of a record, and nothing more.
        client.write_all(&[22]).await.unwrap();
        let mut reader = HelloReader::new(1024);
        tokio::select! {
            read = read(&mut accepted, &mut reader, Vec::new()) => panic!("{read:?}"),
            () = async {
                while !same.tcp_quickack().unwrap() {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    }
}
