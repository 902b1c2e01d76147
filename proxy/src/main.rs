//! Owns the `vestibule-proxy` binary: arguments, logging, signals.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use vestibule_proxy::proxy::{ConfigSource, Proxy, ProxyConfig, tcp_connector};
use vestibule_proxy::worker::Limits;
use vestibule_stream::Identity;
use vestibule_stream::client;

/// The data plane of Vestibule: relays TLS connections by their server name.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    source: Source,
    /// Name of this proxy towards the operator: its pod's name.
    #[arg(long, env = "POD_NAME", default_value = "vestibule-proxy")]
    name: String,
    /// Address of the endpoint for health, readiness, metrics and the configuration in force. It
    /// authenticates nobody: keep it on loopback.
    #[arg(long, env = "VESTIBULE_ADMIN", default_value = "127.0.0.1:15000")]
    admin: SocketAddr,
    /// Worker threads [default: one per core].
    #[arg(long, env = "VESTIBULE_WORKERS")]
    workers: Option<usize>,
    /// Whether to log a line per connection.
    #[arg(long, env = "VESTIBULE_ACCESS_LOG", default_value_t = true, action = clap::ArgAction::Set)]
    access_log: bool,
    /// Seconds that connections have to end after SIGTERM.
    #[arg(long, default_value_t = 60)]
    drain_seconds: u64,
    /// Seconds from accept to a complete `ClientHello`.
    #[arg(long, default_value_t = Limits::default().hello_deadline.as_secs())]
    hello_seconds: u64,
    /// Longest `ClientHello` in bytes.
    #[arg(long, default_value_t = Limits::default().hello_bytes)]
    hello_bytes: usize,
    /// Seconds to connect to a backend.
    #[arg(long, default_value_t = Limits::default().connect_deadline.as_secs())]
    connect_seconds: u64,
    /// Most connections at one time.
    #[arg(long, default_value_t = Limits::default().max_connections)]
    max_connections: usize,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// Operator replicas to take the configuration from, as `host:port` or `http://host:port`.
    #[arg(long, env = "VESTIBULE_CONFIG_STREAM", value_delimiter = ',', value_parser = address)]
    config_stream: Vec<String>,
    /// A recording to take the configuration from, instead.
    #[arg(long, env = "VESTIBULE_CONFIG_FILE")]
    config_file: Option<PathBuf>,
}

/// `host:port` out of what people write.
fn address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    match bare.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0) => {
            Ok(bare.to_owned())
        }
        _ => Err("write it as host:port, such as operator:15010".to_owned()),
    }
}

fn config(args: Args) -> ProxyConfig {
    let defaults = Limits::default();
    let limits = Limits {
        hello_bytes: args.hello_bytes,
        hello_deadline: Duration::from_secs(args.hello_seconds),
        connect_deadline: Duration::from_secs(args.connect_seconds),
        max_connections: args.max_connections,
        access_log: args.access_log,
        ..defaults
    };
    let source = match args.source.config_file {
        Some(path) => ConfigSource::File(path),
        None => ConfigSource::Stream {
            client: client::Config::new(Identity::new(args.name), args.source.config_stream),
            connector: tcp_connector(),
        },
    };
    let mut config = ProxyConfig::new(source);
    config.limits = limits;
    config.admin = Some(args.admin);
    if let Some(workers) = args.workers {
        config.workers = workers;
    }
    config
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .init();
    let args = Args::parse();
    let deadline = Duration::from_secs(args.drain_seconds);
    let (mut terminate, mut interrupt) = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot listen to signals");
            return ExitCode::FAILURE;
        }
    };
    let proxy = match Proxy::start(config(args)).await {
        Ok(proxy) => proxy,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(admin) = proxy.admin() {
        tracing::info!(%admin, "the proxy runs");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!(
        seconds = deadline.as_secs(),
        connections = proxy.connections(),
        "draining"
    );
    // A second signal means now.
    tokio::select! {
        cut = proxy.drain(deadline) => tracing::info!(cut, "drained"),
        _ = terminate.recv() => tracing::info!("ended without draining"),
        _ = interrupt.recv() => tracing::info!("ended without draining"),
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_hold_together() {
        Args::command().debug_assert();
        let parse = |args: &[&str]| Args::try_parse_from([&["vestibule-proxy"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--config-stream", "nonsense"]).is_err());
        assert!(parse(&["--config-stream", "a:1", "--config-file", "b"]).is_err());
        let args = parse(&["--config-stream", "http://a:1,b:2"]).unwrap();
        assert_eq!(args.source.config_stream, ["a:1", "b:2"]);
        let args = parse(&[
            "--config-file",
            "x",
            "--access-log",
            "false",
            "--workers",
            "3",
        ]);
        let config = config(args.unwrap());
        assert!(!config.limits.access_log);
        assert_eq!(config.workers, 3);
    }
}
