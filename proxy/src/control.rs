//! Owns the meeting of configuration and sockets: applies changes to the state and brings the
//! workers' sockets in line before the change is acknowledged.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use vestibule_stream::{Apply, Change, Reject};

use crate::apply::{Binder, State, StateDump, is_dual_stack, reject_label};
use crate::metrics::Metrics;
use crate::table::{BindKey, Snapshot};
use crate::worker::{DataPlane, Limits, Sockets, Workers};

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
    sockets: Exclusive,
    /// None once the proxy drains.
    workers: Option<Workers>,
}

/// Ready: a configuration is in force and its sockets listen. What happens to the stream afterwards
/// changes nothing; draining does.
#[derive(Debug, Default)]
struct Readiness {
    applied: AtomicBool,
    draining: AtomicBool,
}

impl Control {
    pub(crate) fn start(limits: Limits, workers: usize) -> Result<Self, StartError> {
        let published = Arc::new(ArcSwap::<Snapshot>::default());
        let metrics = Arc::new(Metrics::new());
        let state = State::new(Arc::clone(&published))?;
        let plane = Arc::new(DataPlane::new(published, metrics, limits));
        let workers = Workers::start(Arc::clone(&plane), workers).map_err(StartError::Workers)?;
        let readiness = Arc::<Readiness>::default();
        let sockets = Exclusive {
            sockets: workers.sockets(),
            ours: HashSet::new(),
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
            && !self.readiness.draining.load(Ordering::Acquire)
    }

    /// Becomes unready, stops accepting, and gives connections until `deadline` to end. Returns how
    /// many it cut.
    pub(crate) async fn drain(&self, deadline: Duration) -> usize {
        self.readiness.draining.store(true, Ordering::Release);
        let workers = self.inner.lock().workers.take();
        match workers {
            Some(workers) => workers.drain(deadline).await,
            None => 0,
        }
    }
}

impl Apply for Control {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        let mut inner = self.inner.lock();
        let Inner { state, sockets, .. } = &mut *inner;
        let rejects = state.apply(change, sockets);
        let metrics = self.metrics();
        for reject in &rejects {
            metrics.rejected(reject_label(&reject.reason));
        }
        metrics.config_batches.inc();
        state.report(metrics);
        self.readiness.applied.store(true, Ordering::Release);
        rejects
    }
}

/// The workers' sockets, on ports that nobody else listens on.
struct Exclusive {
    sockets: Sockets,
    /// Binds that this process had: a socket of its own may still be closing.
    ours: HashSet<BindKey>,
    readiness: Arc<Readiness>,
}

impl Binder for Exclusive {
    fn open(&mut self, bind: &BindKey) -> io::Result<()> {
        if self.readiness.draining.load(Ordering::Acquire) {
            return Ok(());
        }
        // The workers share a port by SO_REUSEPORT, and so would another proxy of the same user, each
        // with half of the connections. A socket that does not say it finds the other one.
        if bind.port != 0 && !self.ours.contains(bind) {
            try_alone(bind)?;
        }
        self.sockets.open(bind)?;
        self.ours.insert(*bind);
        Ok(())
    }

    fn settle(&mut self, snapshot: &Snapshot) {
        self.sockets.settle(snapshot);
    }
}

/// Binds, without listening, and lets go.
fn try_alone(bind: &BindKey) -> io::Result<()> {
    let address = SocketAddr::new(bind.address, bind.port);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!is_dual_stack(bind))?;
    }
    // Connections of a former process in TIME_WAIT are no reason to refuse.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
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
    /// The admin endpoint's address is not to be had.
    #[error(
        "cannot listen on {address} for the admin endpoint: {source}; choose another --admin address"
    )]
    Admin {
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
