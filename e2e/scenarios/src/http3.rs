//! HTTP/3 by quinn and h3: a backend, and clients whose connections share a source port.

mod client;
mod server;

use std::sync::Arc;

use quinn::TransportConfig;

pub(crate) use client::{Client, Connection};
pub(crate) use server::{Args, run};

/// What both sides agree on.
const ALPN: &[u8] = b"h3";
/// Code of a connection's end in order: `H3_NO_ERROR`.
const NO_ERROR: u32 = 0x100;

/// A machine that has no turn for a while is no reason to give a connection up.
fn patient() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    Arc::new(transport)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Authority;

    const NAME: &str = "www.http3.test";

    #[tokio::test]
    async fn many_connections_of_a_client_are_answered_over_one_source_port() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let authority = Authority::new("http3").unwrap();
        let leaf = authority.leaf(&[NAME]).unwrap();
        let config =
            server::configuration(leaf.chain.as_bytes(), leaf.key.as_bytes()).expect("its own");
        let address = "127.0.0.1:0".parse().unwrap();
        let endpoint = quinn::Endpoint::server(config, address).unwrap();
        let address = endpoint.local_addr().unwrap();
        let serving = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { server::serve(&endpoint, "pod-1").await }
        });
        let client = Client::new(address, NAME, authority.roots().unwrap()).unwrap();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let mut connection = client.connect().await.unwrap();
            answers.push(connection.ask().await.unwrap());
            answers.push(connection.ask().await.unwrap());
        }
        assert_eq!(answers[0].pod, "pod-1");
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let stranger = Client::new(address, "other.http3.test", authority.roots().unwrap());
        assert!(stranger.unwrap().connect().await.is_err());
        endpoint.close(NO_ERROR.into(), b"");
        serving.await.unwrap();
    }
}
