//! Owns the `vestibule-operator` binary: arguments, logging, signals.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod arguments;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use mimalloc::MiMalloc;
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use vestibule_crds::watch::{configured, restored};
use vestibule_operator::cluster::health::{Health, router};
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::{self, Outside, owner};
use vestibule_operator::publish::auth::{Authenticator, KubeReviewer};
use vestibule_operator::publish::tls::Secure;
use vestibule_operator::publish::{self, Publisher};
use vestibule_serve::log_filter;
use vestibule_serve::log_format::{LogError, LogFormat};
use vestibule_serve::log_queue::FlushGuard;
use vestibule_serve::probes;

use arguments::Arguments;

/// `docs/adr/0027-memory-that-is-given-back.md` says why.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Time for what is under way to end after the signal.
const GRACE: Duration = Duration::from_secs(12);
/// The log levels of kube unless `RUST_LOG` says otherwise. kube logs bodies that do not parse, and they may be
/// Secrets, so the level is never below error.
const QUIET: &str = "kube_client=error,kube_runtime=error";

fn main() -> ExitCode {
    vestibule_serve::memory::refuse_huge_pages();
    let arguments = Arguments::parse();
    // The last lines are written when the guard is dropped, at the end.
    let _log = match init_log(arguments.log_format) {
        Ok(guard) => guard,
        Err(error) => {
            let _ = writeln!(io::stderr(), "vestibule-operator: {error}");
            return ExitCode::FAILURE;
        }
    };
    // At least two threads: a long pass of translation must not hold up the Lease.
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "the operator cannot start");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(serve(arguments));
    // Whatever is still at work has had its time.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "the operator ends");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let end = CancellationToken::new();
    tokio::spawn(end_on_signal(end.clone())?);
    let mut config = kube::Config::infer()
        .await
        .context("cannot find the API server's address and credentials")?;
    // The audit log tells who wrote.
    let agent = concat!("vestibule-operator/", env!("CARGO_PKG_VERSION"));
    config.headers.push((
        http::header::USER_AGENT,
        http::HeaderValue::from_static(agent),
    ));
    let client = kube::Client::try_from(configured(config)).context("cannot make a client")?;

    let registry = Arc::new(RwLock::new(Registry::default()));
    let metrics = Metrics::default();
    metrics.register(&mut registry.write());
    let publisher = Publisher::new(publish::Config::default());
    publisher.metrics().register(&mut registry.write());
    let health = Health::default();
    let (leading, leads) = watch::channel(false);
    let auth = Authenticator::new(arguments.fleets(), KubeReviewer::new(client.clone()));
    auth.metrics().register(&mut registry.write());

    let admin = listen(arguments.admin)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.admin))?;
    let stream = listen(arguments.stream)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.stream))?;
    // From the first moment on, whether the API server answers or not.
    let mut admin = tokio::spawn(probes::serve(
        admin,
        router(health.clone(), Arc::clone(&registry)),
    ));
    info!(admin = %arguments.admin, stream = %arguments.stream, release = %arguments.release, "the operator started");

    let owner = match arguments.owner_cluster_role.as_str() {
        "" => None,
        name => tokio::select! {
            owner = owner::find(&client, name, &health) => Some(owner),
            () = end.cancelled() => return Ok(()),
        },
    };
    let (reconciler, certificates) =
        vestibule_internal_ca::start(client.clone(), arguments.serving(owner.clone()));
    reconciler.metrics().register(&mut registry.write());
    let mut reconciler = tokio::spawn(reconciler.run(leads));
    let secure = Secure::new(
        Arc::clone(&publisher),
        certificates.resolver(),
        Arc::new(auth),
    );
    secure.metrics.register(&mut registry.write());
    let ended = end.clone();
    let mut server = tokio::spawn(secure.serve(stream, async move { ended.cancelled().await }));

    let settings = arguments.settings(owner.clone())?;
    let outside = Outside {
        health,
        metrics,
        leading,
    };
    let replaced = async {
        match &owner {
            Some(owner) => owner::replaced(&client, owner, owner::LOOK).await,
            None => std::future::pending().await,
        }
    };
    let running = cluster::run(
        client.clone(),
        settings,
        Arc::clone(&publisher),
        outside,
        end.clone(),
    );
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return outcome,
        outcome = &mut server => {
            outcome.context("the configuration stream ended early")??;
            if !end.is_cancelled() {
                bail!("the configuration stream ended early");
            }
        }
        _ = &mut reconciler => bail!("the task for certificates ended"),
        _ = &mut admin => bail!("the endpoint for probes ended"),
        () = replaced => {
            warn!("the ClusterRole that owns the operator's objects was replaced; the operator starts again with the new one");
            end.cancel();
        }
        restored = restored(&client) => {
            warn!("{restored}; the operator starts again, so that nothing later than that counts");
            end.cancel();
        }
        () = end.cancelled() => {}
    }
    // The streams end when the Lease is given up, and then the proxies have been told who leads next.
    let rest = async {
        let outcome = running.await;
        if !server.is_finished() {
            let _ = server.await;
        }
        outcome
    };
    within_grace(rest).await
}

/// Waits until what is under way has ended, for [`GRACE`] at most.
async fn within_grace(rest: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    if let Ok(outcome) = tokio::time::timeout(GRACE, rest).await {
        outcome?;
    } else {
        warn!("some tasks of the operator did not end in time");
    }
    info!("the operator ended");
    Ok(())
}

/// Listens on `address`; on `[::]` where there is no IPv6, on every address of IPv4.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    /// `EAFNOSUPPORT` of Linux, which has no kind of its own.
    const NO_SUCH_FAMILY: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

fn end_on_signal(end: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("the operator is about to end");
        end.cancel();
    })
}

/// Logs to standard output; `RUST_LOG` filters.
fn init_log(format: LogFormat) -> Result<FlushGuard, LogError> {
    let asked = log_filter::asked();
    let asked = asked.as_deref().unwrap_or("info");
    let filter = log_filter::filter(&format!("{QUIET},{asked}"))?;
    format.init(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_lack_of_ipv6_falls_back_to_ipv4() {
        assert!(is_without_ipv6(&io::Error::from_raw_os_error(97)));
        let taken = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
        let taken = taken.unwrap();
        let error = listen(taken.local_addr().unwrap()).await.unwrap_err();
        assert!(!is_without_ipv6(&error));
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let any = listen(any).await.unwrap();
        let port = any.local_addr().unwrap().port();
        let reached = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        reached.await.unwrap();
    }
}
