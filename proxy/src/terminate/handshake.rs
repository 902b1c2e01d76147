//! Owns the TLS handshake of a client on the replayed bytes.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{NegotiatedTls, TlsSession, discard_unread, payload_length};
use crate::record::{HEADER, Keys, MAX_PROTECTED};

/// Handshake bytes of a client that are held unread: more than a whole record, whatever its length.
/// With the limit on hellos at one time this bounds what handshakes hold: 10,000 of them 320 MiB.
const MAX_HANDSHAKE: usize = 32 * 1024;
const _: () = assert!(MAX_HANDSHAKE > HEADER + MAX_PROTECTED);
/// How much the buffer of a handshake grows at once.
const HANDSHAKE_STEP: usize = 4 * 1024;

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client went away.
    #[error("the client closed during the handshake")]
    Closed,
    /// The client's connection broke.
    #[error("the client's connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// The two do not come together, or the client broke the protocol.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The client sends more than any handshake needs.
    #[error("the handshake is longer than the limit")]
    TooLarge,
    /// The configuration does not hand over its keys, or a cipher that is not known here.
    #[error("the configuration was not prepared for termination")]
    NotPrepared,
}

/// Does the handshake of a client of which `replay` was read already.
pub async fn handshake(
    client: &mut TcpStream,
    config: Arc<ServerConfig>,
    replay: Vec<u8>,
) -> Result<(Box<TlsSession>, NegotiatedTls), HandshakeError> {
    let mut tls = UnbufferedServerConnection::new(config)?;
    let mut incoming = replay;
    let mut outgoing = Vec::new();
    // rustls sees one record at a time, so that what follows its last one stays ours to open.
    let mut shown = 0;
    loop {
        let UnbufferedStatus {
            mut discard, state, ..
        } = tls.process_tls_records(incoming.get_mut(..shown).unwrap_or_default());
        let mut done = false;
        let mut more = false;
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, &mut outgoing),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                client.write_all(&outgoing).await?;
                outgoing.clear();
                data.done();
            }
            Ok(ConnectionState::BlockedHandshake) => more = true,
            Ok(ConnectionState::WriteTraffic(_)) => done = true,
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                return Err(HandshakeError::Closed);
            }
            // Early data is not offered, and no data is shown before the handshake is done.
            Ok(_) => return Err(HandshakeError::TooLarge),
            Err(error) => {
                send_alert(&mut tls, client).await;
                return Err(error.into());
            }
        }
        discard = discard.min(incoming.len());
        incoming.drain(..discard);
        shown = shown.saturating_sub(discard);
        if done {
            break;
        }
        if more {
            loop {
                let next = incoming.get(shown..).unwrap_or_default();
                if let Some(length) = record_length(next) {
                    shown += length;
                    break;
                }
                if incoming.len() >= MAX_HANDSHAKE {
                    return Err(HandshakeError::TooLarge);
                }
                if incoming.capacity() == incoming.len() {
                    let room = MAX_HANDSHAKE - incoming.len();
                    incoming.reserve_exact(room.min(HANDSHAKE_STEP));
                }
                if client.read_buf(&mut incoming).await? == 0 {
                    return Err(HandshakeError::Closed);
                }
            }
        }
    }
    let version = tls.protocol_version().ok_or(HandshakeError::NotPrepared)?;
    let negotiated = NegotiatedTls::of(&tls);
    let (secrets, kernel) = tls.dangerous_into_kernel_connection()?;
    let session = TlsSession {
        kernel,
        opening: Keys::new(version, secrets.rx).ok_or(HandshakeError::NotPrepared)?,
        sealing: Keys::new(version, secrets.tx).ok_or(HandshakeError::NotPrepared)?,
        leftover: incoming.into_boxed_slice(),
        control: 0,
        data: 0,
    };
    Ok((Box::new(session), negotiated))
}

/// The length of the record at the front of `bytes` with its header, if all of it is there.
fn record_length(bytes: &[u8]) -> Option<usize> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let length = payload_length(*header);
    // Too long is for rustls to refuse, as soon as it is certain.
    (rest.len() >= length.min(MAX_PROTECTED)).then_some(HEADER + length.min(rest.len()))
}

/// Appends a handshake record to what is to be sent.
fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) {
    let start = outgoing.len();
    let mut space = 1024;
    loop {
        outgoing.resize(start + space, 0);
        match data.encode(outgoing.get_mut(start..).unwrap_or_default()) {
            Ok(written) => return outgoing.truncate(start + written),
            Err(EncodeError::InsufficientSize(needs)) if needs.required_size > space => {
                space = needs.required_size;
            }
            Err(_) => return outgoing.truncate(start),
        }
    }
}

/// Tells the client why the handshake failed, if that can be done without waiting.
async fn send_alert(tls: &mut UnbufferedServerConnection, client: &mut TcpStream) {
    let mut outgoing = Vec::new();
    // Without anything to send, rustls would go on with what it knows of the bytes that it was
    // shown before, and panic as they are not here.
    while tls.wants_write()
        && let UnbufferedStatus {
            state: Ok(ConnectionState::EncodeTlsData(mut data)),
            ..
        } = tls.process_tls_records(&mut [])
    {
        encode(&mut data, &mut outgoing);
    }
    if client.write_all(&outgoing).await.is_ok() {
        // Without this, unread bytes would turn the close into a reset that overtakes the alert.
        let _ = client.shutdown().await;
        discard_unread(|buffer| client.try_read(buffer));
    }
}
