//! The admission server: HTTPS for the API server, plain HTTP for probes, and the watch that feeds it.

mod accept;
mod admin;
mod certificate;
mod clock;
mod handler;
mod judging_queue;
mod metrics;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use rustls::crypto::aws_lc_rs;
use rustls::server::NoServerSessionStorage;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use vestibule_crds::watch::Event;
use vestibule_model::key::Kind;
use vestibule_serve::probes;

use crate::admission::Admission;
use accept::{Acceptor, Phase};
use certificate::{Follower, Serving};
use metrics::Metrics;

pub use accept::ConnectionLimits;

/// The kinds by which admission judges. Nothing else is read from the API server: neither Secrets, nor routes, of which
/// there may be very many.
pub const WATCHED: [Kind; 7] = [
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::Namespace,
    Kind::ReferenceGrant,
    Kind::HostnameGrant,
    Kind::HostnameClaim,
];

/// How often admitted sets that the watch never showed are forgotten.
const EXPIRY_TICK: Duration = Duration::from_millis(500);

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct WebhookConfig {
    /// Address of HTTPS.
    pub listen: SocketAddr,
    /// Address of health, readiness and metrics.
    pub admin: SocketAddr,
    /// Directory with `tls.crt` and `tls.key`.
    pub tls_dir: PathBuf,
    /// How often this directory is checked.
    pub tls_poll: Duration,
    /// Limits on connections.
    pub limits: ConnectionLimits,
}

impl WebhookConfig {
    /// Settings with the usual limits.
    pub fn new(listen: SocketAddr, admin: SocketAddr, tls_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            admin,
            tls_dir: tls_dir.into(),
            tls_poll: Duration::from_secs(5),
            limits: ConnectionLimits::default(),
        }
    }
}

/// The state that all parts of a server share.
#[derive(Debug)]
struct Shared {
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    serving: Arc<Serving>,
    bounds: handler::Bounds,
    synced: AtomicBool,
    phase: watch::Sender<Phase>,
}

impl Shared {
    /// Why the server is not ready, if so. Once it is ready, only its own end changes that. If the API server is away,
    /// the objects that were read last are still the best knowledge.
    fn unready(&self) -> Option<&'static str> {
        if *self.phase.borrow() == Phase::Serving {
            self.not_serving()
        } else {
            Some("shuts down")
        }
    }

    /// Why the server does not answer reviews, if so. While it leaves, it still does.
    fn not_serving(&self) -> Option<&'static str> {
        if *self.phase.borrow() == Phase::Closing {
            Some("accepts no more connections")
        } else if !self.serving.is_there() {
            Some("waits for a certificate")
        } else if !self.synced.load(Ordering::Acquire) {
            Some("has not read everything yet")
        } else {
            None
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Webhook {
    shared: Arc<Shared>,
    address: SocketAddr,
    admin: SocketAddr,
    serve: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
}

impl Webhook {
    /// Begins to serve, on the present runtime. The server is ready when there is a certificate and [`Webhook::follow`]
    /// has read everything.
    pub fn start(config: WebhookConfig, admission: Admission) -> io::Result<Self> {
        let (listener, address) = bind(config.listen)?;
        let (admin_listener, admin) = bind(config.admin)?;
        let (phase, phases) = watch::channel(Phase::Serving);
        let metrics = Arc::new(Metrics::new());
        let serving = Arc::new(Serving::default());
        let shared = Arc::new(Shared {
            admission: Arc::new(admission),
            metrics: Arc::clone(&metrics),
            serving: Arc::clone(&serving),
            bounds: handler::Bounds::default(),
            synced: AtomicBool::new(false),
            phase,
        });
        let acceptor = Acceptor {
            tls: tls(Arc::clone(&serving))?,
            router: handler::router(Arc::clone(&shared)),
            limits: config.limits,
            metrics: Arc::clone(&metrics),
            phase: phases,
        };
        let follower = Follower::new(config.tls_dir, serving, metrics);
        let admin_router = admin::router(Arc::clone(&shared));
        Ok(Self {
            address,
            admin,
            serve: tokio::spawn(acceptor.serve(listener)),
            others: vec![
                tokio::spawn(follower.run(config.tls_poll)),
                tokio::spawn(probes::serve(admin_listener, admin_router)),
            ],
            shared,
        })
    }

    /// Where HTTPS is served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health, readiness and metrics are.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The admission by which it judges.
    #[must_use]
    pub fn admission(&self) -> &Arc<Admission> {
        &self.shared.admission
    }

    /// Takes the events of the watch. The server is ready when all of [`WATCHED`] are synced.
    pub fn follow(&mut self, events: impl Stream<Item = Event> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.others.push(tokio::spawn(follow(shared, events)));
    }

    /// Completes when a part of the server has ended by itself. None of them should: the rest would answer by outdated
    /// objects, or not at all.
    pub async fn ended(&mut self) {
        let parts = std::iter::once(&mut self.serve).chain(&mut self.others);
        let _ = futures::future::select_all(parts).await;
    }

    /// Ends the server. It is unready at once, and serves until `known` completes, while others learn of the end (every
    /// response ends its connection). Then it accepts nothing new, and waits for requests that have begun, for at most
    /// `drain`. Returns whether all of them ended by themselves.
    pub async fn stop(mut self, known: impl Future<Output = ()>, drain: Duration) -> bool {
        self.shared.metrics.draining.set(1);
        self.shared.phase.send_replace(Phase::Leaving);
        known.await;
        self.shared.phase.send_replace(Phase::Closing);
        let ended = timeout(drain, &mut self.serve).await;
        self.serve.abort();
        for task in self.others {
            task.abort();
            // The task is dropped only after it has ended, because until then it may still report an error.
            let _ = task.await;
        }
        ended.is_ok()
    }
}

async fn follow(shared: Arc<Shared>, events: impl Stream<Item = Event>) {
    let mut missing: BTreeSet<Kind> = WATCHED.into();
    let mut ticks = interval(EXPIRY_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(events);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = ticks.tick() => {
                shared.admission.expire(std::time::Instant::now());
                continue;
            }
        };
        match event {
            Some(Event::Put(watched)) => shared.admission.put(watched.object),
            // Admission does not judge by any status, and goes on judging by what is known.
            Some(Event::Touched(_) | Event::Interrupted(_) | Event::Resumed(_)) => {}
            Some(Event::Remove(key)) => shared.admission.remove(&key),
            Some(Event::Synced(kind)) => {
                if missing.remove(&kind) && missing.is_empty() {
                    shared.admission.settle();
                    shared.synced.store(true, Ordering::Release);
                    shared.metrics.store_synced.set(1);
                    tracing::info!("the webhook has read every kind");
                }
            }
            None => return,
        }
    }
}

/// TLS 1.2 and 1.3 with the certificate in force. Sessions are not resumed, so that after a rotation every connection
/// shows the new certificate.
fn tls(serving: Arc<Serving>) -> io::Result<TlsAcceptor> {
    let mut config =
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(serving);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A socket that accepts IPv4 and IPv6 on `[::]`. On a host without IPv6, it accepts IPv4 only.
fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = match listen(address) {
        Err(error) if is_without_ipv6(&error) && address.ip().is_unspecified() => {
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            listen(v4)?
        }
        other => other?,
    };
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

fn is_without_ipv6(error: &io::Error) -> bool {
    /// `EAFNOSUPPORT` of Linux. `io::ErrorKind` has no value for it.
    const NO_SUCH_FAMILY: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn every_family_there_is_reaches_the_socket() {
        let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        let (_listener, address) = bind(any).unwrap();
        let port = address.port();
        assert!(
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
        );
        if address.is_ipv6() {
            assert!(
                TcpStream::connect((Ipv6Addr::LOCALHOST, port))
                    .await
                    .is_ok()
            );
        }
    }
}
