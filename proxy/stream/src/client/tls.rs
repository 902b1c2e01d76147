//! Owns the connection to an operator over TLS. It reads the roots it trusts and the token it shows
//! from their files for each connection, so that a rotation needs no restart.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Uri};
use zeroize::Zeroizing;

use super::{Connect, ConnectError, Token, endpoint};

/// Time for one address to accept the connection and finish the handshake. A replica that vanished
/// must not use up the time of the whole attempt.
const PER_ADDRESS: Duration = Duration::from_secs(3);
/// Number of addresses that one attempt tries.
const MAX_ADDRESSES: usize = 16;
/// Longest prefix of a file of roots or of a token that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Connects to an operator replica with TLS 1.3, trusts one bundle, and shows a token.
///
/// A name may have several addresses: a headless Service has one per replica. Each attempt resolves
/// the name and tries every address, and successive attempts begin at different ones.
#[derive(Debug)]
pub struct Tls {
    roots: PathBuf,
    server_name: ServerName<'static>,
    token: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    /// Counts attempts. The address at which an attempt begins depends on it.
    turn: AtomicUsize,
}

/// Why there is no connection. The text says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate can be for this name.
    #[error("{0:?} is not a name that a certificate can be for")]
    ServerName(String),
    /// A file cannot be read.
    #[error("cannot read {what} in {path}: {source}; check that it is mounted there", path = path.display())]
    File {
        /// The content that the file should have.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No certificate is in the bundle.
    #[error("no certificate in {}: it must be a PEM bundle of the authorities that sign the operator's certificate", .0.display())]
    NoRoots(PathBuf),
    /// The file is empty, or has characters that no header can have.
    #[error("no token in {}: check the projected volume of the proxy's pod", .0.display())]
    NoToken(PathBuf),
    /// The name does not resolve.
    #[error(
        "cannot resolve {address}: {source}; check that the operator's Service exists and has a ready replica"
    )]
    Resolve {
        /// `host:port`.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// No address could be connected to. The text has the reason for each.
    #[error("{0}")]
    Connect(String),
    /// The TLS library refuses its settings.
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] rustls::Error),
}

impl Tls {
    /// Trusts the authorities in the PEM file `roots`, expects a certificate for `server_name`, and
    /// shows the token in the file `token`, if any.
    pub fn new(
        roots: impl Into<PathBuf>,
        server_name: &str,
        token: Option<PathBuf>,
    ) -> Result<Self, TlsError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| TlsError::ServerName(server_name.to_owned()))?;
        // Proxies that start together should not all begin at the same replica.
        let turn = usize::try_from(RandomState::new().hash_one(server_name) >> 33).unwrap_or(0);
        Ok(Self {
            roots: roots.into(),
            server_name: name,
            token,
            provider: Arc::new(aws_lc_rs::default_provider()),
            turn: AtomicUsize::new(turn),
        })
    }

    fn config(&self) -> Result<ClientConfig, TlsError> {
        let pem = read("trusted certificates", &self.roots)?;
        let mut roots = RootCertStore::empty();
        let parsed = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        // A certificate that this release cannot parse must not keep it from using the others.
        roots.add_parsable_certificates(parsed);
        if roots.is_empty() {
            return Err(TlsError::NoRoots(self.roots.clone()));
        }
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Each connection proves the operator's identity anew.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    /// The addresses of `address` (`host:port`), in the order to try them.
    async fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, TlsError> {
        let failed = |source| TlsError::Resolve {
            address: address.to_owned(),
            source,
        };
        let mut found: Vec<_> = lookup_host(address).await.map_err(failed)?.collect();
        if found.is_empty() {
            return Err(failed(io::Error::new(
                io::ErrorKind::NotFound,
                "no address",
            )));
        }
        self.order(&mut found);
        Ok(found)
    }

    /// Begins each attempt at another address, so that the client does not ask the same replica for
    /// ever if that one answers and does not lead.
    fn order(&self, found: &mut Vec<SocketAddr>) {
        // Resolvers shuffle the addresses. With a fixed order, counting attempts reaches every
        // address.
        found.sort_unstable();
        found.dedup();
        if found.len() > 1 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % found.len();
            found.rotate_left(turn);
        }
        found.truncate(MAX_ADDRESSES);
    }

    /// Connects to the first of `addresses` that accepts a connection.
    async fn reach(
        &self,
        config: ClientConfig,
        addresses: &[SocketAddr],
    ) -> Result<TlsStream<TcpStream>, TlsError> {
        let connector = TlsConnector::from(Arc::new(config));
        let mut failures = Vec::new();
        for at in addresses {
            match self.dial(&connector, *at).await {
                Ok(stream) => return Ok(stream),
                Err(why) => failures.push(format!("{at}: {why}")),
            }
        }
        Err(TlsError::Connect(failures.join("; ")))
    }

    async fn dial(
        &self,
        connector: &TlsConnector,
        address: SocketAddr,
    ) -> Result<TlsStream<TcpStream>, String> {
        let dial = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            connector.connect(self.server_name.clone(), stream).await
        };
        match timeout(PER_ADDRESS, dial).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => Err(format!("no answer within {} s", PER_ADDRESS.as_secs())),
        }
    }

    /// Explains an error of the handshake to the person who runs the proxy.
    fn explain(&self, error: &io::Error) -> String {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let Some(rustls::Error::InvalidCertificate(invalid)) = inner else {
            return error.to_string();
        };
        let roots = self.roots.display();
        match invalid {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "no authority in {roots} signed the operator's certificate; the file must be the \
                 bundle that the operator publishes, and is read again for the next attempt"
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!(
                    "the operator's certificate is not for {}: give the name that it is for \
                     (--config-server-name); {invalid}",
                    self.server_name.to_str()
                )
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => format!(
                "the operator's certificate is not valid now ({invalid}): check the clocks, and \
                 that the operator can write its Secrets"
            ),
            other => format!("the operator's certificate does not verify: {other}"),
        }
    }
}

impl Connect for Tls {
    async fn connect(&self, address: &str) -> Result<Channel, ConnectError> {
        let config = self.config()?;
        let addresses = self.resolve(address).await?;
        let stream = self.reach(config, &addresses).await?;
        self.channel(address, stream).await
    }

    fn token(&self) -> Result<Option<Token>, ConnectError> {
        let Some(path) = &self.token else {
            return Ok(None);
        };
        let bytes = read("a token", path)?;
        let text = std::str::from_utf8(&bytes).map_or("", str::trim);
        let no_token = || TlsError::NoToken(path.clone());
        if text.is_empty() {
            return Err(no_token().into());
        }
        let header = Zeroizing::new(format!("Bearer {text}"));
        let mut token = Token::try_from(header.as_str()).map_err(|_| no_token())?;
        token.set_sensitive(true);
        Ok(Some(token))
    }
}

impl Tls {
    /// Speaks HTTP/2 over `stream` and never over another: a new connection is a new attempt.
    async fn channel(
        &self,
        address: &str,
        stream: TlsStream<TcpStream>,
    ) -> Result<Channel, ConnectError> {
        let stream = Mutex::new(Some(TokioIo::new(stream)));
        let once = tower::service_fn(move |_: Uri| {
            let stream = stream.lock().take();
            async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
        });
        let port = address.rsplit_once(':').map_or("443", |(_, port)| port);
        let origin = format!("https://{}:{port}", self.server_name.to_str()).parse()?;
        Ok(endpoint(address)?
            .origin(origin)
            .connect_with_connector(once)
            .await?)
    }
}

/// Reads a file in one go. Blocking is fine, since the files are small and mounted from memory.
fn read(what: &'static str, path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    use io::Read;
    let failed = |source| TlsError::File {
        what,
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    // A buffer that grows would leave copies of a token behind.
    let length = file.metadata().map_err(failed)?.len().min(MAX_FILE);
    let room = usize::try_from(length).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_gets_its_turn() {
        let tls = Tls::new("ca.crt", "operator.ns.svc", None).unwrap();
        let address = |n: u8| SocketAddr::from(([10, 0, 0, n], 9443));
        let mut first = Vec::new();
        for resolved in [[2, 1, 3], [3, 2, 1], [1, 2, 3]] {
            let mut found = resolved.map(address).to_vec();
            tls.order(&mut found);
            assert_eq!(found.len(), 3);
            first.push(found[0]);
        }
        first.sort_unstable();
        assert_eq!(first, [1, 2, 3].map(address));
        let mut twice = vec![address(9), address(8), address(9)];
        tls.order(&mut twice);
        assert_eq!(twice.len(), 2);
        let mut one = vec![address(9)];
        tls.order(&mut one);
        assert_eq!(one, [address(9)]);
    }

    #[tokio::test]
    async fn a_dead_address_is_passed_over() {
        let dead = SocketAddr::from(([127, 0, 0, 1], vestibule_test_support::free_port()));
        let made = rcgen::generate_simple_self_signed(["operator.ns.svc".to_owned()]).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.unwrap())
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let accepted = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            acceptor.accept(stream).await
        });
        let roots = tempfile(&made.cert.pem());
        let tls = Tls::new(&roots, "operator.ns.svc", None).unwrap();
        let config = tls.config().unwrap();
        let stream = tls.reach(config, &[dead, live]).await.unwrap();
        assert_eq!(stream.get_ref().0.peer_addr().unwrap(), live);
        drop(stream);
        let _ = accepted.await.unwrap();
        std::fs::remove_file(roots).unwrap();
    }

    fn tempfile(pem: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vestibule-tls-{}.pem", std::process::id()));
        std::fs::write(&path, pem).unwrap();
        path
    }
}
