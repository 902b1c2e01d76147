//! A data plane on loopback with its configuration.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use vestibule_model::endpoint::EndpointRules;
use vestibule_proxy::apply::State;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::metrics::Metrics;
use vestibule_proxy::plane::DataPlane;
use vestibule_proxy::table::Snapshot;
use vestibule_proxy::worker::Workers;
use vestibule_stream::{Change, Generation, Resource, ResourceKey, ResourceKind};
use vestibule_test_support::free_port;

use crate::waiting::wait_or;

/// A data plane that listens on one port of loopback.
pub struct Rig {
    /// Where it listens.
    pub address: SocketAddr,
    /// The data plane.
    pub plane: Arc<DataPlane>,
    /// Its workers, until the test stops them.
    pub workers: Option<Workers>,
    state: State,
    counter: u64,
}

impl Rig {
    /// Starts two workers. `configure` gets the port and says what is served.
    pub fn start(limits: &ProxyLimits, configure: impl Fn(u16) -> Vec<Resource>) -> Self {
        Self::start_on(2, limits, configure)
    }

    /// The same with so many workers.
    pub fn start_on(
        workers: usize,
        limits: &ProxyLimits,
        configure: impl Fn(u16) -> Vec<Resource>,
    ) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let published = Arc::new(ArcSwap::<Snapshot>::default());
        let rules = EndpointRules::with_loopback();
        let state = State::new(Arc::clone(&published), rules).unwrap();
        let (tenants, accounts) = (state.tenants().clone(), state.accounts().clone());
        let metrics = Metrics::observing(tenants, accounts, state.expiries().clone());
        let metrics = Arc::new(metrics);
        let plane = Arc::new(DataPlane::new(published, metrics, limits.clone()));
        let workers = Workers::start(Arc::clone(&plane), workers).unwrap();
        let mut rig = Self {
            address,
            plane,
            workers: Some(workers),
            state,
            counter: 0,
        };
        assert_eq!(rig.apply(configure(address.port())), Vec::<String>::new());
        rig
    }

    /// Applies resources; what was rejected is returned.
    pub fn apply(&mut self, upserts: Vec<Resource>) -> Vec<String> {
        self.change(upserts, Vec::new())
    }

    /// What is in force, as the admin endpoint shows it.
    pub fn dump(&self) -> String {
        serde_json::to_string(&self.state.dump()).unwrap()
    }

    /// Takes a resource away.
    pub fn remove(&mut self, kind: ResourceKind, name: &str) {
        let rejects = self.change(Vec::new(), vec![ResourceKey::new(kind, name)]);
        assert_eq!(rejects, Vec::<String>::new());
    }

    /// Applies resources and takes others away, in one batch; what was rejected is returned.
    pub fn change(&mut self, upserts: Vec<Resource>, removals: Vec<ResourceKey>) -> Vec<String> {
        self.counter += 1;
        let change = Change {
            generation: Generation::new(1, self.counter),
            full: false,
            upserts: upserts.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals,
        };
        let mut sockets = self.workers.as_ref().unwrap().sockets();
        let rejects = self.state.apply(&change, &mut sockets);
        rejects
            .into_iter()
            .map(|r| format!("{} {}", r.reason, r.message))
            .collect()
    }

    /// A connection to it.
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// How many connections have ended for `reason`.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.plane.metrics.closed_count(reason.reason())
    }

    /// Waits until as many connections have ended for `reason`.
    pub async fn wait_closed(&self, reason: CloseReason, count: u64) {
        let what = format!("{count} × {reason:?}");
        let metrics = || self.plane.metrics.encode().unwrap();
        wait_or(&what, || self.closed(reason) >= count, metrics).await;
        assert_eq!(self.closed(reason), count, "{reason:?}");
    }

    /// Waits until the proxy has given up a connection to a backend that sends without end what leads to nothing.
    pub async fn wait_backend_given_up(&self) {
        let series = "vestibule_proxy_backend_connections_given_up_total{reason=\"NoProgress\"}";
        let metrics = || self.plane.metrics.encode().unwrap();
        let given_up = || value(&metrics(), series) > 0;
        wait_or("a backend that is given up", given_up, metrics).await;
    }
}

/// What a series of a metrics page says; 0 if it is not there.
pub fn value(page: &str, series: &str) -> u64 {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}
