//! Owns the meeting of configuration and sockets: applies changes to the state and brings the
//! workers' sockets in line before the change is acknowledged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use vestibule_model::endpoint::EndpointRules;
use vestibule_stream::{Apply, Change, Reject, Resource, ResourceKey};

use crate::apply::{Binder, State, StateDump, reject_label};
use crate::bind::BindKey;
use crate::expiry::Expiries;
use crate::limits::ProxyLimits;
use crate::listen::Sockets;
use crate::metrics::Metrics;
use crate::plane::DataPlane;
use crate::table::Snapshot;
use crate::worker::Workers;

/// The control side of a proxy, shared by the configuration source, the admin endpoint and the
/// handle. Connections never touch it: they read the published snapshot.
#[derive(Clone)]
pub(crate) struct Control {
    inner: Arc<Mutex<Inner>>,
    plane: Arc<DataPlane>,
    readiness: Arc<Readiness>,
}

struct Inner {
    state: State,
    sockets: Open,
    /// None once the proxy drains.
    workers: Option<Workers>,
}

/// Ready: a configuration is in force and its sockets listen. What happens to the stream afterwards
/// changes nothing; leaving does.
#[derive(Debug, Default)]
struct Readiness {
    applied: AtomicBool,
    /// About to end: others are to send nobody here any more.
    leaving: AtomicBool,
    /// No longer listening.
    closing: AtomicBool,
}

impl Control {
    pub(crate) fn start(
        limits: ProxyLimits,
        endpoint_rules: EndpointRules,
        workers: usize,
    ) -> Result<Self, StartError> {
        let published = Arc::new(ArcSwap::<Snapshot>::default());
        let state = State::new(Arc::clone(&published), endpoint_rules)?;
        let (tenants, accounts) = (state.tenants().clone(), state.accounts().clone());
        let metrics = Metrics::observing(tenants, accounts, state.expiries().clone());
        let metrics = Arc::new(metrics);
        let plane = Arc::new(DataPlane::new(published, metrics, limits));
        let workers = Workers::start(Arc::clone(&plane), workers).map_err(StartError::Workers)?;
        let readiness = Arc::<Readiness>::default();
        let sockets = Open {
            sockets: workers.sockets(),
            readiness: Arc::clone(&readiness),
        };
        Ok(Self {
            inner: Arc::new(Mutex::new(Inner {
                state,
                sockets,
                workers: Some(workers),
            })),
            plane,
            readiness,
        })
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.plane.metrics
    }

    pub(crate) fn plane(&self) -> &Arc<DataPlane> {
        &self.plane
    }

    /// When the certificates in force expire.
    pub(crate) fn expiries(&self) -> Expiries {
        self.inner.lock().state.expiries().clone()
    }

    pub(crate) fn dump(&self) -> StateDump {
        self.inner.lock().state.dump()
    }

    pub(crate) fn counts(&self) -> crate::apply::Counts {
        self.inner.lock().state.counts()
    }

    pub(crate) fn bound(&self, bind: &BindKey) -> Option<SocketAddr> {
        let inner = self.inner.lock();
        inner.sockets.sockets.bound().get(bind).copied()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.applied.load(Ordering::Acquire)
            && !self.readiness.leaving.load(Ordering::Acquire)
    }

    /// Whether connections are accepted, also while the proxy ends.
    pub(crate) fn is_serving(&self) -> bool {
        self.readiness.applied.load(Ordering::Acquire)
            && !self.readiness.closing.load(Ordering::Acquire)
    }

    /// Becomes unready, and goes on accepting.
    pub(crate) fn leave(&self) {
        self.readiness.leaving.store(true, Ordering::Release);
        self.plane.begin_leaving();
        let metrics = self.metrics();
        metrics.ready.set(0);
        metrics.draining.set(1);
    }

    /// Stops accepting, and gives connections until `deadline` to end. Returns how many it cut.
    pub(crate) async fn drain(&self, deadline: Duration) -> usize {
        self.leave();
        self.readiness.closing.store(true, Ordering::Release);
        let workers = self.inner.lock().workers.take();
        match workers {
            Some(workers) => workers.drain(deadline).await,
            None => 0,
        }
    }
}

impl Apply for Control {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        let mut upserts = change.upserts.iter().cloned();
        let change = Change {
            upserts: Vec::new(),
            ..change.clone()
        };
        self.apply_each(change, &mut upserts)
    }

    fn apply_each(
        &mut self,
        change: Change,
        upserts: &mut dyn Iterator<Item = (ResourceKey, Resource)>,
    ) -> Vec<Reject> {
        let mut inner = self.inner.lock();
        let Inner { state, sockets, .. } = &mut *inner;
        let left_out = state.endpoints_left_out();
        let rejects = state.apply_each(&change, upserts, sockets);
        let metrics = self.metrics();
        let left_out = state.endpoints_left_out() - left_out;
        metrics.config_endpoints_left_out.inc_by(left_out);
        for reject in &rejects {
            metrics.rejected(reject_label(&reject.reason));
        }
        metrics.config_batches.inc();
        state.report(metrics);
        self.readiness.applied.store(true, Ordering::Release);
        metrics.ready.set(i64::from(self.is_ready()));
        rejects
    }
}

/// The workers' sockets, for as long as there are workers.
struct Open {
    sockets: Sockets,
    readiness: Arc<Readiness>,
}

impl Binder for Open {
    fn open(&mut self, bind: &BindKey) -> io::Result<()> {
        // Nobody would accept any more.
        if self.readiness.closing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.sockets.open(bind)
    }

    fn settle(&mut self, snapshot: &Snapshot) {
        self.sockets.settle(snapshot);
    }
}

/// Why a proxy could not start. Says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The TLS library could not be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A worker thread could not be started.
    #[error("cannot start the worker threads: {0}; raise the limits on threads and open files")]
    Workers(io::Error),
    /// The address of an endpoint for people and probes is not to be had.
    #[error("cannot listen on {address}: {source}; choose another address with {flag}")]
    Endpoint {
        /// The flag that chooses it.
        flag: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The recording cannot be read.
    #[error("cannot read the configuration in {path}: {why}")]
    File {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        why: String,
    },
}
