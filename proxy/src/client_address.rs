//! Owns who the client of a connection is where a load balancer is in front of this proxy: what the connection begins
//! with, who is believed, and what the connection counts towards until it is known.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use vestibule_model::client_address::{ProxyProtocol, ProxyProtocolMode};

use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::metrics::ProxyHeader;
use crate::plane::HelloPermit;
use crate::proxy_header::{self, Progress, Source};

/// Finds out who the client is, by the header that the connection begins with. Returns what was read of the connection
/// behind it.
pub(crate) async fn introduce(
    stream: &mut TcpStream,
    record: &mut ConnectionRecord,
    permit: &mut HelloPermit,
    protocol: &ProxyProtocol,
) -> Result<Vec<u8>, CloseReason> {
    let trusted = protocol.trusts(record.client().ip());
    let mut bytes = Vec::new();
    let progress = read(stream, &mut bytes).await?;
    let said = match progress {
        Progress::Header(_) | Progress::Malformed if !trusted => {
            return Err(CloseReason::UntrustedPeer);
        }
        Progress::Absent if trusted && protocol.mode == ProxyProtocolMode::Strict => {
            return Err(CloseReason::ProxyHeaderMissing);
        }
        Progress::Malformed | Progress::NeedMore => {
            return Err(CloseReason::ProxyHeaderMalformed);
        }
        Progress::Absent => ProxyHeader::Absent,
        Progress::Header(header) => {
            bytes.drain(..header.length);
            match header.source {
                Source::Client(client) => {
                    record.introduce(client);
                    ProxyHeader::Client
                }
                Source::Peer => ProxyHeader::Peer,
            }
        }
    };
    record.plane().metrics.proxy_header(said);
    // From here on it counts towards what its own source may have, rather than the balancer's.
    permit.name(record.client().ip())?;
    Ok(bytes)
}

/// Reads until it is known whether there is a header, and all of it is there.
async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<Progress, CloseReason> {
    let mut chunk = [0; 4096];
    loop {
        let read = stream
            .read(&mut chunk)
            .await
            .map_err(|_| CloseReason::ClientReset)?;
        if read == 0 {
            return Err(if bytes.is_empty() {
                CloseReason::ClientSilent
            } else {
                CloseReason::HelloIncomplete
            });
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
        match proxy_header::read(bytes) {
            Progress::NeedMore => {}
            progress => return Ok(progress),
        }
    }
}
