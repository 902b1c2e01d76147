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
use crate::validation::after_handshake;

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
        mut session,
        negotiated,
        client_chain,
    } = result.map_err(|_| CloseReason::HandshakeTimeout)???;
    let metrics = &record.plane().metrics;
    metrics
        .handshake_seconds
        .observe(begun.elapsed().as_secs_f64());
    metrics.handshake(negotiated.version, negotiated.resumed);
    let validation = record.listener().and_then(|of| of.validation.as_deref());
    // This is still the step of the handshake that has passed the gate last, and the cost of a handshake includes it.
    let chain = after_handshake(validation, client_chain, negotiated.resumed);
    record.set_negotiated(negotiated);
    let Some(chain) = chain else {
        terminate::refuse(client, &mut session).await;
        return Err(CloseReason::NoLongerServed);
    };
    record.basis.show(chain);
    Ok(session)
}
