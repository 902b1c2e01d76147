//! Owns the interface between the client and its transport, and the settings that every transport
//! gets.

use std::{future::Future, time::Duration};

use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

/// The error of a connector.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// The value of the `authorization` metadata.
pub type Token = MetadataValue<Ascii>;

/// Makes the transport to an operator replica: TCP, TLS, or a pipe in memory.
pub trait Connect: Send + Sync {
    /// Opens a channel to `address` (`host:port`), which is a configured address or the leader's as
    /// a replica reported it. Use [`endpoint`] for the settings that the stream needs.
    fn connect(&self, address: &str) -> impl Future<Output = Result<Channel, ConnectError>> + Send;

    /// The token that the proxy shows, which is sent as `authorization`. The client asks for it
    /// once per stream.
    fn token(&self) -> Result<Option<Token>, ConnectError> {
        Ok(None)
    }
}

/// Plaintext over TCP, for loopback.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Connect for Tcp {
    async fn connect(&self, address: &str) -> Result<Channel, ConnectError> {
        Ok(endpoint(address)?.connect().await?)
    }
}

/// HTTP/2 settings for the stream to `address` (`host:port`): windows for large batches, and
/// keepalives that detect a peer that vanished.
pub fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}
