//! `http3`: a backend. Answers every request with who it is and whom it saw.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use h3::server::RequestResolver;
use quinn::crypto::rustls::QuicServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::{ALPN, NO_ERROR, patient};
use crate::echo::Answer;

/// How long clients have to hear that their connections end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `http3`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address for datagrams. Connections of TCP to the same number say that it is ready.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Directory with tls.crt and tls.key.
    #[arg(long)]
    certificate: PathBuf,
    /// Seconds to go on as before when told to stop, until everybody knows.
    #[arg(long, default_value_t = 0)]
    linger: u64,
    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "")]
    pod: String,
}

/// Serves until it is told to stop.
pub(crate) async fn run(args: Args) -> Result<()> {
    let read = |name| std::fs::read(args.certificate.join(name)).context(name);
    let config = configuration(&read("tls.crt")?, &read("tls.key")?)?;
    // The first process of a container is not ended by a signal that it does not handle.
    let mut terminated = signal(SignalKind::terminate())?;
    let endpoint = quinn::Endpoint::server(config, args.listen)?;
    // Kubernetes has no probe of QUIC. Whoever connects here knows that the socket above is bound.
    let probed = TcpListener::bind(args.listen).await?;
    let mut told = pin!(async {
        terminated.recv().await;
        tokio::time::sleep(Duration::from_secs(args.linger)).await;
    });
    let mut serving = pin!(serve(&endpoint, &args.pod));
    loop {
        tokio::select! {
            () = &mut told => break,
            () = &mut serving => break,
            // To be closed at once is an answer.
            _ = probed.accept() => {}
        }
    }
    endpoint.close(NO_ERROR.into(), b"");
    let _ = timeout(PATIENCE, endpoint.wait_idle()).await;
    Ok(())
}

/// With a certificate and its key, as PEM.
pub(super) fn configuration(chain: &[u8], key: &[u8]) -> Result<quinn::ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
    let mut tls = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicServerConfig::try_from(tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(patient());
    Ok(config)
}

/// Serves connections until the endpoint is closed.
pub(super) async fn serve(endpoint: &quinn::Endpoint, pod: &str) {
    let pod: Arc<str> = pod.into();
    while let Some(incoming) = endpoint.accept().await {
        let pod = Arc::clone(&pod);
        tokio::spawn(async move {
            // A client that goes away in the middle is that client's business.
            let _ = connection(incoming, &pod).await;
        });
    }
}

async fn connection(incoming: quinn::Incoming, pod: &str) -> Result<()> {
    let quic = incoming.await?;
    let mut requests =
        h3::server::Connection::<_, Bytes>::new(h3_quinn::Connection::new(quic.clone())).await?;
    while let Some(request) = requests.accept().await? {
        let answer = Answer {
            pod: pod.to_owned(),
            namespace: String::new(),
            sni: None,
            // With the port, which is the session's.
            peer: quic.remote_address().to_string(),
            port: 0,
        };
        tokio::spawn(async move {
            let _ = respond(request, &answer).await;
        });
    }
    Ok(())
}

async fn respond(
    request: RequestResolver<h3_quinn::Connection, Bytes>,
    answer: &Answer,
) -> Result<()> {
    let (_, mut stream) = request.resolve_request().await?;
    // A stream that is dropped before its end was read is refused to the client, who may still be sending the end.
    while stream.recv_data().await?.is_some() {}
    let head = http::Response::builder().header(http::header::CONTENT_TYPE, "application/json");
    stream.send_response(head.body(())?).await?;
    stream.send_data(serde_json::to_vec(answer)?.into()).await?;
    stream.finish().await?;
    Ok(())
}
