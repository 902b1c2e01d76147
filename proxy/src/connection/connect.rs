//! Owns the attempts to connect to a backend for a client's connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpStream;

use super::select::decide_again;
use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::dial::{self, Carries};
use crate::proxy_header::write::ClientConnection;
use crate::tried::Tried;
use crate::upstream::{Credentials, Stream};

/// Connects to the endpoint that was chosen. After a failure, route, backend and endpoint are decided again, by the
/// snapshot that is then in force. The old configuration may be the very reason of the failure.
///
/// `named` is the address that the client connected to, if a PROXY header named it. `credentials` is `None` if the
/// client's TLS is passed through.
pub(super) async fn connect(
    client: &TcpStream,
    record: &mut ConnectionRecord,
    named: Option<SocketAddr>,
    random: u64,
    mut credentials: Option<Credentials>,
) -> Result<Stream, CloseReason> {
    let plane = Arc::clone(record.plane());
    let end = Instant::now() + plane.limits.connect_deadline;
    let mut tried = Tried::default();
    loop {
        let Some((endpoint, backend)) = record.backend.clone() else {
            return Err(CloseReason::NoEndpoints);
        };
        let left = end.saturating_duration_since(Instant::now());
        let allowed = tried.share(left, &backend.target, credentials.as_ref());
        let carries = credentials
            .as_ref()
            .map_or(Carries::Passthrough, Carries::Terminated);
        let told = match backend.target.send_proxy {
            Some(_) => Some(describe(client, record, named)?),
            None => None,
        };
        let told = told.as_ref();
        let dialled = dial::connect(&plane, &backend, endpoint, carries, told, allowed).await;
        let reason = match dialled {
            Ok(stream) => {
                let meter = stream.meter();
                meter.become_tunnel();
                meter.charge(record.account());
                return Ok(stream);
            }
            Err(CloseReason::BackendTlsInvalid) => return Err(CloseReason::BackendTlsInvalid),
            Err(reason) => reason,
        };
        tried.push(endpoint, &backend.target, credentials.as_ref());
        if Instant::now() >= end {
            return Err(reason);
        }
        let terminates = credentials.is_some();
        let again = decide_again(record, random, |backend, shown| {
            let shown = terminates.then_some(shown);
            tried.next(backend, random, shown)
        });
        if let Some(next) = again {
            credentials = credentials.map(|_| next);
        } else {
            // The present configuration gives no other endpoint for this connection. So another one of the backend
            // that was decided before is tried.
            let other = tried.next(&backend, random, credentials.as_ref());
            let other = other.ok_or(reason)?;
            record.backend = Some((other, backend));
        }
        plane.metrics.connect_retries.inc();
        record.connect_retries = record.connect_retries.saturating_add(1);
    }
}

/// The connection of the client, for a backend that expects a PROXY header.
fn describe<'a>(
    client: &TcpStream,
    record: &'a ConnectionRecord,
    named: Option<SocketAddr>,
) -> Result<ClientConnection<'a>, CloseReason> {
    let destination = match named {
        Some(named) => named,
        // Without the address of its socket, the header would have to say that no client is there.
        None => client.local_addr().map_err(|_| CloseReason::ClientReset)?,
    };
    Ok(ClientConnection {
        client: record.client(),
        destination,
        server_name: record.basis.server_name.as_ref(),
    })
}
