//! Owns a connection that became a WebSocket: bytes both ways until both are done.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::record::RequestRecord;
use crate::connection::CloseReason;

/// Two connections whose HTTP is over.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) backend: OnUpgrade,
    pub(super) record: RequestRecord,
}

impl Tunnel {
    /// Copies until both directions have ended.
    pub(super) async fn run(mut self) -> CloseReason {
        let (client, backend) = match futures::future::try_join(self.client, self.backend).await {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "an upgrade failed");
                self.record.reason = "BackendBroken";
                return CloseReason::BackendReset;
            }
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        match tokio::io::copy_bidirectional(&mut client, &mut backend).await {
            Ok((up, down)) => {
                self.record.tunnelled(up, down);
                CloseReason::ClientClosed
            }
            Err(error) => {
                tracing::debug!(%error, "a WebSocket broke");
                self.record.reason = "TunnelBroken";
                CloseReason::ClientReset
            }
        }
    }
}
