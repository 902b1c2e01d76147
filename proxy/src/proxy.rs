//! Owns the assembly of a proxy: workers, configuration source and admin endpoint behind one handle. The binary and
//! `vestibule run` both use it.

use std::fs::File;
use std::future::Future;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::Channel;
use vestibule_model::endpoint::EndpointRules;
use vestibule_serve::probes;
use vestibule_stream::client::{self, Client, Connect, ConnectError};
use vestibule_stream::{Held, Reject, recording};

use crate::apply::{Counts, StateDump};
use crate::bind::BindKey;
use crate::control::Control;
pub use crate::control::StartError;
use crate::limits::ProxyLimits;
use crate::metrics::Metrics;
use crate::{admin, listen, overload_watch, shutdown};

/// Makes the transport to an operator replica at `host:port`.
pub type Connector =
    Arc<dyn Fn(String) -> BoxFuture<'static, Result<Channel, ConnectError>> + Send + Sync>;

/// Where the configuration comes from.
#[derive(Clone)]
pub enum ConfigSource {
    /// From operators. `connector` may use TCP, TLS or a pipe in memory.
    Stream {
        /// Identity, addresses and times to wait.
        client: client::Config,
        /// How to reach an address.
        connector: Connector,
    },
    /// From operators over TLS, with a token.
    Tls {
        /// Identity, addresses and times to wait.
        client: client::Config,
        /// The CA to trust, and the token to show.
        tls: Arc<client::Tls>,
    },
    /// From a recording of length-delimited batches, once at the start.
    File(PathBuf),
    /// From nowhere: the caller applies batches with [`Proxy::apply`].
    Caller,
}

impl std::fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream { client, .. } => {
                f.debug_tuple("Stream").field(&client.addresses).finish()
            }
            Self::Tls { client, .. } => f.debug_tuple("Tls").field(&client.addresses).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Caller => f.write_str("Caller"),
        }
    }
}

/// Plaintext over TCP, for loopback.
#[must_use]
pub fn tcp_connector() -> Connector {
    Arc::new(|address| Box::pin(async move { client::Tcp.connect(&address).await }))
}

/// The settings of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Worker threads, at least one.
    pub workers: usize,
    /// The address of the admin endpoint. Port 0 takes a free one.
    pub admin: Option<SocketAddr>,
    /// The address where health, readiness and metrics are served to the cluster. Port 0 takes a free one.
    pub health: Option<SocketAddr>,
    /// Further routes of the admin endpoint. Their paths must differ from its own.
    pub admin_routes: axum::Router,
    /// Deadlines, sizes, counts, and whether connections are logged.
    pub limits: ProxyLimits,
    /// Which endpoints backends may have.
    pub endpoint_rules: EndpointRules,
    /// Where the configuration comes from.
    pub source: ConfigSource,
}

impl ProxyConfig {
    /// One worker per core, no endpoints of its own, default limits. No backend may have a loopback address.
    #[must_use]
    pub fn new(source: ConfigSource) -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            admin: None,
            health: None,
            admin_routes: axum::Router::new(),
            limits: ProxyLimits::default(),
            endpoint_rules: EndpointRules::default(),
            source,
        }
    }
}

/// A running proxy. Its `Drop` ends it at once, while [`Proxy::drain`] gives connections time.
pub struct Proxy {
    control: Control,
    held: Held,
    admin: Option<SocketAddr>,
    health: Option<SocketAddr>,
    stream: Option<watch::Receiver<client::ClientState>>,
    tasks: Tasks,
}

/// Background tasks that end with the proxy.
#[derive(Default)]
struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }

    /// Serves `router`, and returns the address.
    fn serve(
        &mut self,
        flag: &'static str,
        address: SocketAddr,
        router: axum::Router,
    ) -> Result<SocketAddr, StartError> {
        let unavailable = |source| StartError::Endpoint {
            flag,
            address,
            source,
        };
        let listener = listen::listener(address).map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        self.spawn(probes::serve(listener, router));
        Ok(address)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("admin", &self.admin)
            .field("generation", &self.held.generation())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts workers, admin endpoint and configuration source on the current tokio runtime.
    pub async fn start(config: ProxyConfig) -> Result<Self, StartError> {
        let control = Control::start(config.limits, config.endpoint_rules, config.workers)?;
        let mut proxy = Self {
            control: control.clone(),
            held: Held::new(),
            admin: None,
            health: None,
            stream: None,
            tasks: Tasks::default(),
        };
        proxy.tasks.spawn(control.expiries().watch());
        proxy
            .tasks
            .spawn(overload_watch::watch(Arc::clone(control.plane())));
        if let Some(address) = config.admin {
            let router = admin::admin(control.clone()).merge(config.admin_routes);
            let address = proxy.tasks.serve("--admin", address, router)?;
            control.plane().own_sockets.insert(address);
            proxy.admin = Some(address);
        }
        if let Some(address) = config.health {
            let router = admin::health(control.clone());
            let address = proxy.tasks.serve("--health", address, router)?;
            control.plane().own_sockets.insert(address);
            proxy.health = Some(address);
        }
        match config.source {
            ConfigSource::Caller => {}
            ConfigSource::File(path) => {
                // This runs outside of the async threads, because reading and applying may take a second.
                let mut control = control.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let held = replay(&path, &mut control);
                    held.map_err(|why| StartError::File { path, why })
                });
                proxy.held = match read.await {
                    Ok(held) => held?,
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                };
            }
            ConfigSource::Stream { client, connector } => {
                proxy.follow(client, Dynamic(connector));
            }
            ConfigSource::Tls { client, tls } => proxy.follow(client, Shared(tls)),
        }
        Ok(proxy)
    }

    /// Takes the configuration from operators from here on.
    fn follow(&mut self, client: client::Config, connector: impl Connect + 'static) {
        let (client, state) = Client::new(client, connector, self.control.clone());
        self.stream = Some(state.clone());
        self.tasks.spawn(client.run());
        self.tasks.spawn(watch_stream(state, self.control.clone()));
    }

    /// Applies a batch. It is for [`ConfigSource::Caller`], or adds to the configuration of a file.
    pub fn apply(&mut self, batch: &vestibule_stream::Batch) -> vestibule_stream::proto::Ack {
        let ack = self.held.offer(batch, &mut self.control);
        log_rejects(&ack.rejects);
        if let Some(refusal) = &ack.refusal {
            tracing::warn!(
                reason = refusal.reason,
                "the proxy refuses a batch: {}",
                refusal.message
            );
            self.control
                .metrics()
                .refused(refusal_label(&refusal.reason));
        }
        ack
    }

    /// Where the admin endpoint listens.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The address where health, readiness and metrics are served to the cluster.
    #[must_use]
    pub fn health(&self) -> Option<SocketAddr> {
        self.health
    }

    /// The local address of `bind`; `None` if no listener is on it.
    #[must_use]
    pub fn bound(&self, bind: &BindKey) -> Option<SocketAddr> {
        self.control.bound(bind)
    }

    /// Whether a configuration is in force and the proxy is not about to end.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.control.is_ready()
    }

    /// The state of the configuration stream, if that is the source.
    #[must_use]
    pub fn stream(&self) -> Option<watch::Receiver<client::ClientState>> {
        self.stream.clone()
    }

    /// The metrics, also served by the admin endpoint.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.control.metrics()
    }

    /// Client connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.control.plane().active()
    }

    /// How many resources are in force.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.control.counts()
    }

    /// The configuration in force, as the admin endpoint shows it.
    #[must_use]
    pub fn dump(&self) -> StateDump {
        self.control.dump()
    }

    /// Becomes unready at once, but continues to accept, to serve and to follow the configuration for `delay`. In this
    /// time, load balancers learn that they must not send connections here. Where somebody does not learn it, as
    /// kube-proxy while the API server is away, the proxy accepts for longer: until no connection and no UDP session came
    /// for `delay`, or half of `deadline` is over. After that, it does the same as [`Self::drain`], in what is left of
    /// `delay` and `deadline` together.
    pub async fn shut_down(self, delay: Duration, deadline: Duration) -> usize {
        let begun = Instant::now();
        self.control.leave();
        let metrics = self.control.metrics();
        let is_quiet = shutdown::until_quiet(|| metrics.arrivals(), delay, deadline / 2).await;
        let accepted_for = begun.elapsed();
        tracing::info!(
            seconds = accepted_for.as_secs(),
            is_quiet,
            "the sockets close"
        );
        let left = (delay + deadline).saturating_sub(accepted_for);
        self.drain(left.min(deadline)).await
    }

    /// Becomes unready, stops accepting, and gives connections until `deadline` to end. Then it cuts those that are
    /// left: in order at first, and for good 2 s later. Returns how many these were. The endpoints serve until the end,
    /// and report that the proxy is not ready.
    pub async fn drain(self, deadline: Duration) -> usize {
        self.control.drain(deadline).await
    }
}

/// Applies every batch of a recording.
fn replay(path: &Path, control: &mut Control) -> Result<Held, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut held = Held::new();
    let mut rejected = String::new();
    for batch in recording::Reader::new(BufReader::new(file)) {
        let ack = held.offer(&batch.map_err(|error| error.to_string())?, control);
        if let Some(refusal) = ack.refusal {
            // A batch may be refused because an earlier one is not completely in force.
            return Err(format!("{}: {}{rejected}", refusal.reason, refusal.message));
        }
        log_rejects(&ack.rejects);
        if let (true, Some(reject)) = (rejected.is_empty(), ack.rejects.first()) {
            let key = reject.key.clone().unwrap_or_default();
            rejected = format!(", after {key} was rejected: {}", reject.message);
        }
    }
    if held.generation().is_none() {
        return Err("it has no batch".to_owned());
    }
    Ok(held)
}

/// Logs the first rejects. The metrics count all of them. For a stream, its client does the same.
fn log_rejects(rejects: &[Reject]) {
    for reject in rejects.iter().take(10) {
        let key = reject.key.clone().unwrap_or_default();
        tracing::warn!(resource = %key, reason = reject.reason, "a resource is rejected: {}", reject.message);
    }
}

struct Dynamic(Connector);

impl Connect for Dynamic {
    fn connect(&self, address: &str) -> impl Future<Output = Result<Channel, ConnectError>> + Send {
        (self.0)(address.to_owned())
    }
}

struct Shared(Arc<client::Tls>);

impl Connect for Shared {
    fn connect(&self, address: &str) -> impl Future<Output = Result<Channel, ConnectError>> + Send {
        self.0.connect(address)
    }

    fn token(&self) -> Result<Option<client::Token>, ConnectError> {
        self.0.token()
    }
}

/// Keeps the metrics about the stream up to date, until the stream ends.
async fn watch_stream(mut state: watch::Receiver<client::ClientState>, control: Control) {
    let mut seen = std::collections::BTreeMap::new();
    loop {
        let now = state.borrow_and_update().clone();
        let metrics = control.metrics();
        metrics
            .stream_connected
            .set(i64::from(now.connected.is_some()));
        for (reason, count) in now.refusals {
            let before = seen.insert(reason, count).unwrap_or(0);
            for _ in before..count {
                metrics.refused(reason);
            }
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

fn refusal_label(reason: &str) -> &'static str {
    ["StaleGeneration", "BaseMismatch", "NotFull", "Malformed"]
        .into_iter()
        .find(|known| *known == reason)
        .unwrap_or("Other")
}
