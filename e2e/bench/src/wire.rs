//! What client and backend say to each other: a command, carried either in the random of a real
//! `ClientHello` (passthrough: the proxy must parse the hello, nothing behind it needs to be TLS) or
//! in plain bytes (terminate: inside the proxy's TLS).

use std::io;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// Length of an encoded command.
pub(crate) const COMMAND: usize = 9;

/// Length of the backend's first answer and of every message echoed.
pub(crate) const MESSAGE: usize = 64;

/// Where the random of a hello is: record header, handshake header, version.
const RANDOM: usize = 5 + 4 + 2;

/// The n-th path of a host with several routes.
pub(crate) fn path(index: usize) -> String {
    format!("/p{index}/")
}

/// What the client wants of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// One message now, then whatever comes in goes back.
    Echo,
    /// So many bytes, then the end.
    Bulk(u64),
    /// So many bytes come, then one byte goes back.
    Sink(u64),
    /// So many bytes go and come at once, then the end.
    Both(u64),
}

impl Command {
    /// As sent.
    pub(crate) fn encode(self) -> [u8; COMMAND] {
        let (kind, count) = match self {
            Self::Echo => (b'e', 0),
            Self::Bulk(count) => (b'b', count),
            Self::Sink(count) => (b's', count),
            Self::Both(count) => (b'2', count),
        };
        let mut bytes = [kind; COMMAND];
        bytes[1..].copy_from_slice(&count.to_be_bytes());
        bytes
    }

    /// Reads what [`Command::encode`] wrote.
    pub(crate) fn decode(bytes: [u8; COMMAND]) -> io::Result<Self> {
        let [kind, count @ ..] = bytes;
        match kind {
            b'e' => Ok(Self::Echo),
            b'b' => Ok(Self::Bulk(u64::from_be_bytes(count))),
            b's' => Ok(Self::Sink(u64::from_be_bytes(count))),
            b'2' => Ok(Self::Both(u64::from_be_bytes(count))),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a command")),
        }
    }

    /// Reads the command out of a hello.
    pub(crate) fn of_hello(record: &[u8]) -> io::Result<Self> {
        record
            .get(RANDOM..RANDOM + COMMAND)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "hello too short"))
            .and_then(Self::decode)
    }
}

/// A hello as rustls sends it (about 1,500 bytes with the hybrid key share, as from a browser) that
/// carries the command.
pub(crate) fn hello(config: &Arc<ClientConfig>, name: &str, command: Command) -> Result<Vec<u8>> {
    let name = ServerName::try_from(name.to_owned())?;
    let mut connection = ClientConnection::new(Arc::clone(config), name)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    bytes
        .get_mut(RANDOM..RANDOM + COMMAND)
        .context("hello too short")?
        .copy_from_slice(&command.encode());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls;

    #[test]
    fn a_hello_carries_its_command() {
        let config = tls::client_config(tls::Groups::Hybrid, false).unwrap();
        let commands = [
            Command::Echo,
            Command::Bulk(123_456_789_000),
            Command::Sink(1),
            Command::Both(u64::MAX),
        ];
        for command in commands {
            let bytes = hello(&config, "raw.bench.test", command).unwrap();
            assert!(
                bytes.len() > 1_200,
                "a hybrid share makes a hello span segments"
            );
            assert_eq!(Command::of_hello(&bytes).unwrap(), command);
        }
    }

    #[test]
    fn garbage_is_no_command() {
        assert!(Command::of_hello(&[0; 10]).is_err());
        assert!(Command::decode([0; COMMAND]).is_err());
    }
}
