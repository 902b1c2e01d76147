//! Owns finding the client of a connection if a load balancer is in front of this proxy: it reads the PROXY header,
//! decides whether to believe it, and counts the connection towards the right source.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use vestibule_model::client_address::{ProxyProtocol, ProxyProtocolMode};

use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::metrics::ProxyHeader;
use crate::plane::HelloPermit;
use crate::proxy_header::{self, Progress, Source};

/// What is known after the PROXY header.
pub(crate) struct Introduced {
    /// The bytes that were read after the header.
    pub(crate) rest: Vec<u8>,
    /// The address that the client connected to, if the header names it.
    pub(crate) destination: Option<SocketAddr>,
}

/// Reads the PROXY header with which the connection begins, and takes the client's address from it.
pub(crate) async fn introduce(
    stream: &mut TcpStream,
    record: &mut ConnectionRecord,
    permit: &mut HelloPermit,
    protocol: &ProxyProtocol,
) -> Result<Introduced, CloseReason> {
    let trusted = protocol.trusts(record.client().ip());
    let (mut bytes, mut told) = (Vec::new(), None);
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
                Source::Client {
                    client,
                    destination,
                } => {
                    record.introduce(client);
                    told = Some(destination);
                    ProxyHeader::Client
                }
                Source::Peer => ProxyHeader::Peer,
            }
        }
    };
    record.plane().metrics.proxy_header(said);
    // From here on the connection counts towards the limits of its own source, instead of the load balancer's.
    permit.name(record.client().ip())?;
    Ok(Introduced {
        rest: bytes,
        destination: told,
    })
}

/// Reads until it is known whether there is a header and, if so, until all of it has arrived.
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
