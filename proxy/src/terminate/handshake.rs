//! Owns the TLS handshake with a client, which begins with replayed bytes.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{PeerMisbehaved, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{NegotiatedTls, TlsSession, discard_unread, payload_length};
use crate::acknowledgement;
use crate::close_reason::CloseReason;
use crate::record::{HEADER, MAX_PROTECTED, alert, content};

/// Largest number of handshake bytes of a client that are held unread. This is more than the longest record. With the
/// limit on hellos at one time, it bounds the memory of handshakes: 10,000 of them hold 320 MiB.
const MAX_HANDSHAKE: usize = 32 * 1024;
const _: () = assert!(MAX_HANDSHAKE > HEADER + MAX_PROTECTED);
/// Number of bytes by which the buffer of a handshake grows.
const HANDSHAKE_STEP: usize = 4 * 1024;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client went away.
    #[error("the client closed during the handshake")]
    Closed,
    /// The client's connection broke.
    #[error("the client's connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// The two sides have nothing in common, or the client broke the protocol.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The client sent more than any handshake needs.
    #[error("the handshake is longer than the limit")]
    TooLarge,
    /// The configuration does not hand over its keys, or the cipher is not known here.
    #[error("the configuration was not prepared for termination")]
    NotPrepared,
}

impl From<HandshakeError> for CloseReason {
    fn from(error: HandshakeError) -> Self {
        tracing::debug!(%error, "a handshake with a client failed");
        match error {
            HandshakeError::Io(_) => Self::ClientReset,
            HandshakeError::NotPrepared => Self::NoCertificate,
            HandshakeError::Closed | HandshakeError::Tls(_) | HandshakeError::TooLarge => {
                Self::HandshakeFailed
            }
        }
    }
}

/// The result of a handshake.
pub struct Handshaken {
    /// The session that reads and writes from then on.
    pub session: Box<TlsSession>,
    /// The parameters for the log line.
    pub negotiated: NegotiatedTls,
    /// The certificate chain that the client showed, its own certificate first. It is empty if the client showed none.
    /// Whether the client has proven that it has the key depends on the verifier in the configuration.
    pub client_chain: Vec<CertificateDer<'static>>,
}

/// Does the handshake with a client. `replay` are the bytes that were already read.
pub async fn handshake(
    client: &mut TcpStream,
    config: Arc<ServerConfig>,
    replay: Vec<u8>,
) -> Result<Handshaken, HandshakeError> {
    let mut tls = UnbufferedServerConnection::new(config)?;
    let mut incoming = replay;
    let mut outgoing = Vec::new();
    // rustls gets one record at a time. So the records after its last one are left for this proxy to open.
    let mut shown = 0;
    loop {
        // From then on, TLS 1.3 has nothing to send but session tickets. In TLS 1.2, `Finished` is still to be sent.
        let only_tickets =
            !tls.is_handshaking() && tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let UnbufferedStatus {
            mut discard, state, ..
        } = tls.process_tls_records(incoming.get_mut(..shown).unwrap_or_default());
        let mut done = false;
        let mut more = false;
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, &mut outgoing),
            // Tickets go with the first data, in one packet.
            Ok(ConnectionState::TransmitTlsData(data)) if only_tickets => data.done(),
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
            // Early data is not offered, and rustls gets no data before the handshake is done, so this cannot be data.
            Ok(_) => return Err(HandshakeError::TooLarge),
            Err(error) => {
                send_alert(&mut tls, client, &error).await;
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
    if incoming.is_empty() && tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
        // The client may send its first data only when its `Finished` is acknowledged. The tickets, which would carry the
        // acknowledgement, wait for that data. So both would wait.
        acknowledgement::at_once(client);
    }
    let negotiated = NegotiatedTls::of(&tls);
    let client_chain = tls.peer_certificates().map(<[_]>::to_vec);
    let session = TlsSession::new(tls, incoming, outgoing).ok_or(HandshakeError::NotPrepared)?;
    Ok(Handshaken {
        session: Box::new(session),
        negotiated,
        client_chain: client_chain.unwrap_or_default(),
    })
}

/// The length of the record at the front of `bytes` with its header, if all of it is there.
fn record_length(bytes: &[u8]) -> Option<usize> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let length = payload_length(*header);
    // A record that is too long is passed to rustls as soon as that is certain, and rustls refuses it.
    (rest.len() >= length.min(MAX_PROTECTED)).then_some(HEADER + length.min(rest.len()))
}

/// Appends a handshake record to the bytes that will be sent.
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
async fn send_alert(
    tls: &mut UnbufferedServerConnection,
    client: &mut TcpStream,
    error: &rustls::Error,
) {
    let mut outgoing = Vec::new();
    // If there is nothing to send, rustls would continue with the bytes that it got before. These are not here, so it
    // would panic.
    while tls.wants_write()
        && let UnbufferedStatus {
            state: Ok(ConnectionState::EncodeTlsData(mut data)),
            ..
        } = tls.process_tls_records(&mut [])
    {
        encode(&mut data, &mut outgoing);
    }
    let another_name = PeerMisbehaved::ServerNameDifferedOnRetry;
    if outgoing.is_empty() && *error == rustls::Error::PeerMisbehaved(another_name) {
        // rustls has no alert for this. At this point there are no keys yet, so an alert is in plaintext.
        let parameter = alert::ILLEGAL_PARAMETER;
        outgoing.extend_from_slice(&[content::ALERT, 3, 3, 0, 2, 2, parameter]);
    }
    if client.write_all(&outgoing).await.is_ok() {
        // Without this, unread bytes would turn the close into a reset, which could overtake the alert.
        let _ = client.shutdown().await;
        discard_unread(|buffer| client.try_read(buffer));
    }
}

/// Tells a client whose handshake is done that its certificate is not accepted, if that can be done without waiting. The
/// client then forgets its session.
pub(crate) async fn refuse(client: &mut TcpStream, session: &mut TlsSession) {
    if session.send_last(client, &[2, alert::CERTIFICATE_UNKNOWN]) {
        let _ = client.shutdown().await;
        discard_unread(|buffer| client.try_read(buffer));
    }
}
