//! Owns reading the hello of a connection.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

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
            Some(Progress::NeedMore) => {}
            Some(Progress::Hello(hello)) => return Ok(hello),
            Some(Progress::Rejected(rejection)) => return Err(rejection.into()),
        }
    }
}
