//! Owns reading the hello of a connection.

use tokio::io::AsyncReadExt;
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
    let mut chunk = [0; 4096];
    loop {
        let read = client
            .read(&mut chunk)
            .await
            .map_err(|_| CloseReason::ClientReset)?;
        if read == 0 {
            return Err(if reader.is_empty() {
                CloseReason::ClientSilent
            } else {
                CloseReason::HelloIncomplete
            });
        }
        match reader.push(chunk.get(..read).unwrap_or_default()) {
            Progress::NeedMore => {}
            Progress::Hello(hello) => return Ok(hello),
            Progress::Rejected(rejection) => return Err(rejection.into()),
        }
    }
}
