//! Connects the operator and the proxy of one process, with the same gRPC over a pipe in memory. `vestibule run` and
//! tests use it.

use std::{io, sync::Arc};

use hyper_util::rt::TokioIo;
use tonic::transport::Channel;
use vestibule_stream::client::{Connect, ConnectError, endpoint};

use super::{Publisher, server, service};

/// Capacity of the pipe in each direction, in bytes.
const PIPE_BYTES: usize = 256 << 10;

/// Connects a [`vestibule_stream::client::Client`] to a publisher of the same process, whatever the
/// address.
#[derive(Debug, Clone)]
pub struct InProcess(Arc<Publisher>);

impl InProcess {
    /// Returns a connector to `publisher`.
    #[must_use]
    pub fn new(publisher: &Arc<Publisher>) -> Self {
        Self(Arc::clone(publisher))
    }
}

impl Connect for InProcess {
    async fn connect(&self, _address: &str) -> Result<Channel, ConnectError> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let incoming = tokio_stream::once(Ok::<_, io::Error>(far));
        tokio::spawn(
            server()
                .add_service(service(&self.0))
                .serve_with_incoming(incoming),
        );
        let mut near = Some(near);
        let connector = tower::service_fn(move |_| {
            let near = near.take().ok_or(io::ErrorKind::NotConnected);
            async move { near.map(TokioIo::new).map_err(io::Error::from) }
        });
        Ok(endpoint("in-process.invalid:1")?
            .connect_with_connector(connector)
            .await?)
    }
}
