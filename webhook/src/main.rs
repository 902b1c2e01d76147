//! Owns the `vestibule-webhook` binary: arguments, logging, signals.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use mimalloc::MiMalloc;
use tokio::signal::unix::{SignalKind, signal};
use vestibule_crds::watch;
use vestibule_model::policy::PolicyArguments;
use vestibule_serve::log_filter;
use vestibule_serve::log_format::{LogError, LogFormat};
use vestibule_serve::log_queue::FlushGuard;
use vestibule_webhook::Admission;
use vestibule_webhook::server::{WATCHED, Webhook, WebhookConfig};

/// `docs/adr/0027-memory-that-is-given-back.md` says why.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Validating admission for Vestibule: refuses objects that the API server would accept but that would not be
/// served.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Args {
    /// Address of HTTPS, where API servers send reviews (POST /validate).
    #[arg(long, env = "VESTIBULE_LISTEN", default_value = "[::]:9443")]
    listen: SocketAddr,
    /// Address of plain HTTP for probes and metrics.
    #[arg(long, env = "VESTIBULE_ADMIN", default_value = "[::]:8080")]
    admin: SocketAddr,
    /// Directory with tls.crt and tls.key. Both may come later and change.
    #[arg(long, env = "VESTIBULE_TLS_DIR", default_value = "/tls")]
    tls_dir: PathBuf,
    /// Controller whose `GatewayClasses` are ours.
    #[arg(
        long,
        env = "VESTIBULE_CONTROLLER",
        default_value = "vestibule.dev/gateway-controller"
    )]
    controller: String,
    #[command(flatten)]
    policy: PolicyArguments,
    /// Seconds that requests are still taken after SIGTERM, until everybody knows that it ends.
    #[arg(long, env = "VESTIBULE_SHUTDOWN_DELAY_SECONDS", default_value_t = 10)]
    shutdown_delay_seconds: u64,
    /// Seconds after that for requests that have begun.
    #[arg(long, env = "VESTIBULE_DRAIN_SECONDS", default_value_t = 15)]
    drain_seconds: u64,
    /// Form of the log. `RUST_LOG` says how much.
    #[arg(long, env = "VESTIBULE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    vestibule_serve::memory::refuse_huge_pages();
    let args = Args::parse();
    // The last lines are written when the guard is dropped, at the end.
    let _log = match init_log(args.log_format) {
        Ok(guard) => guard,
        Err(error) => {
            let _ = writeln!(io::stderr(), "vestibule-webhook: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard output; `RUST_LOG` filters.
fn init_log(format: LogFormat) -> Result<FlushGuard, LogError> {
    let filter = log_filter::filter(log_filter::asked().as_deref().unwrap_or("info"))?;
    format.init(filter)
}

async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to signals")?;
    let policy = args.policy.policy();
    tracing::info!(
        controller = args.controller,
        mode = %policy.mode,
        exempt = ?policy.exempt,
        version = env!("CARGO_PKG_VERSION"),
        "admission judges with these settings"
    );
    let config = kube::Config::infer()
        .await
        .context("no way to the API server: neither in a cluster nor with a kubeconfig")?;
    let client = kube::Client::try_from(watch::configured(config))
        .context("cannot make a client of the API server")?;
    let admission = Admission::new(args.controller, policy);
    let settings = WebhookConfig::new(args.listen, args.admin, args.tls_dir);
    let mut webhook = Webhook::start(settings, admission)
        .with_context(|| format!("cannot serve on {} and {}", args.listen, args.admin))?;
    webhook.follow(watch::watch(&client, &watch::Scope::new(WATCHED)));
    let restored = watch::restored(&client);
    tracing::info!(listen = %webhook.address(), admin = %webhook.admin(), "the webhook runs");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        restored = restored => anyhow::bail!("{restored}; the webhook starts again, to judge by what is there"),
        () = webhook.ended() => anyhow::bail!("a part of the webhook ended early"),
    }
    tracing::info!(
        seconds = args.shutdown_delay_seconds,
        "the webhook is about to end"
    );
    let known = async {
        // A second signal ends the delay, because it says that everybody knows already.
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(args.shutdown_delay_seconds)) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let drain = Duration::from_secs(args.drain_seconds);
    let ended = webhook.stop(known, drain).await;
    tracing::info!(cut = !ended, "the webhook ended");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_hold_together() {
        Args::command().debug_assert();
        // The last one of equal arguments counts, so that the chart's `extraArgs` override its own arguments.
        let twice = [
            "vestibule-webhook",
            "--drain-seconds=1",
            "--drain-seconds=2",
        ];
        assert_eq!(Args::parse_from(twice).drain_seconds, 2);
    }
}
