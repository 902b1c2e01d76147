//! Owns the TLS handshake with a client whose TLS is terminated: its place at the gate, its deadline, and what the record
//! of the connection and the metrics learn of it.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::accesslog::ConnectionRecord;
use crate::close_reason::CloseReason;
use crate::deadline::within;
use crate::gate::{self, HandshakeCost};
use crate::terminate::{self, Handshaken, TlsSession};

/// Does the handshake. `replay` are the bytes of the hello, which were already read.
pub(super) async fn handshake(
    client: &mut TcpStream,
    config: Arc<ServerConfig>,
    replay: Vec<u8>,
    cost: HandshakeCost,
    record: &mut ConnectionRecord,
) -> Result<Box<TlsSession>, CloseReason> {
    let begun = Instant::now();
    let deadline = record.plane().limits.handshake_deadline;
    let handshake = gate::pass(cost, terminate::handshake(client, config, replay));
    let result = within(deadline, handshake).await;
    let Handshaken {
        session,
        negotiated,
        client_chain,
    } = result.map_err(|_| CloseReason::HandshakeTimeout)???;
    let metrics = &record.plane().metrics;
    metrics
        .handshake_seconds
        .observe(begun.elapsed().as_secs_f64());
    metrics.handshake(negotiated.version, negotiated.resumed);
    record.set_negotiated(negotiated);
    record.basis.show(client_chain);
    Ok(session)
}
