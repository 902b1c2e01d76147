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

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mimalloc::MiMalloc;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use vestibule_model::endpoint::{EndpointArguments, EndpointRules};
use vestibule_proxy::bounds::Bounds;
use vestibule_proxy::limits::{
    EscapedSlashes, HttpLimits, ProxyLimits, Repeat, UdpLimits, Underscores,
};
use vestibule_proxy::proxy::{ConfigSource, Proxy, ProxyConfig, tcp_connector};
use vestibule_serve::log_filter;
use vestibule_serve::log_format::{LogError, LogFormat};
use vestibule_serve::log_queue::FlushGuard;
use vestibule_stream::ProxyIdentity;
use vestibule_stream::client::{self, Tls, TlsError};

/// `docs/adr/0027-memory-that-is-given-back.md` says why.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The data plane of Vestibule: relays TLS connections by their server name, and routes HTTP requests.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Args {
    #[command(flatten)]
    source: Source,
    /// Name of this proxy towards the operator: its pod's name.
    #[arg(long, env = "POD_NAME", default_value = "vestibule-proxy")]
    name: String,
    /// Address of the endpoint for people: health, readiness, metrics and the configuration in force.
    /// It authenticates nobody: keep it on loopback.
    #[arg(long, env = "VESTIBULE_ADMIN", default_value = "127.0.0.1:15000")]
    admin: SocketAddr,
    /// Address of the endpoint for probes and scrapers, which serves /healthz, /readyz, /servingz and
    /// /metrics and nothing else, such as [::]:15021 [default: none].
    #[arg(long, env = "VESTIBULE_HEALTH")]
    health: Option<SocketAddr>,
    #[command(flatten)]
    tls: StreamTls,
    /// Worker threads [default: one per core].
    #[arg(long, env = "VESTIBULE_WORKERS")]
    workers: Option<usize>,
    /// Whether to log a line per connection.
    #[arg(long, env = "VESTIBULE_ACCESS_LOG", default_value_t = true, action = clap::ArgAction::Set)]
    access_log: bool,
    /// Most of these lines per second for one tenant; 0: as many as there are.
    #[arg(long, default_value_t = ProxyLimits::default().access_log_lines_per_second)]
    access_log_lines_per_second: u32,
    /// Percent of these lines that are logged, chosen at random.
    #[arg(
        long,
        default_value_t = ProxyLimits::default().access_log_percent,
        value_parser = clap::value_parser!(u8).range(..=100),
    )]
    access_log_percent: u8,
    /// Seconds from SIGTERM for which new connections are still accepted. The proxy is unready at
    /// once, and this is the time for everybody to hear of it. If connections still come then, it accepts until
    /// none came for this time, or half of the time to drain is over.
    #[arg(long, env = "VESTIBULE_SHUTDOWN_DELAY_SECONDS", default_value_t = 10)]
    shutdown_delay_seconds: u64,
    /// Seconds that open connections then have to end.
    #[arg(long, env = "VESTIBULE_DRAIN_SECONDS", default_value_t = 60)]
    drain_seconds: u64,
    /// Seconds from accept to a complete `ClientHello`.
    #[arg(long, default_value_t = ProxyLimits::default().hello_deadline.as_secs())]
    hello_seconds: u64,
    /// Longest `ClientHello` in bytes.
    #[arg(long, default_value_t = ProxyLimits::default().hello_bytes)]
    hello_bytes: usize,
    /// Seconds to connect to a backend.
    #[arg(long, default_value_t = ProxyLimits::default().connect_deadline.as_secs())]
    connect_seconds: u64,
    /// Most connections of all tenants at one time.
    #[arg(long, default_value_t = ProxyLimits::default().max_connections)]
    max_connections: usize,
    /// Percent of them that is kept for the tenants, in equal shares; the rest goes to whoever comes.
    #[arg(
        long,
        default_value_t = ProxyLimits::default().guaranteed_percent,
        value_parser = clap::value_parser!(u8).range(..=100),
    )]
    guaranteed_percent: u8,
    /// Most new connections of one source (an IPv4 address or an IPv6 /64) per second; 0: as many as come.
    #[arg(long, default_value_t = ProxyLimits::default().source_connections_per_second)]
    source_connections_per_second: u32,
    /// Percent of the memory limit, of the open files or of the connections in use from which on less is offered: no
    /// connections are kept for later, then no further ones for those who have most, then the shortest timeouts. 100: never.
    #[arg(
        long,
        default_value_t = ProxyLimits::default().overload_percent,
        value_parser = clap::value_parser!(u8).range(1..=100),
    )]
    overload_percent: u8,
    /// Seconds that a tunnel (a passed-through or terminated TLS connection, or a WebSocket) may go without a
    /// byte in either direction; 0: any time.
    #[arg(long, env = "VESTIBULE_TUNNEL_IDLE_SECONDS", default_value_t = seconds(ProxyLimits::default().bounds.tunnel_idle))]
    tunnel_idle_seconds: u64,
    /// Maximum age of a connection in seconds (±10 %). After this time, HTTP clients are told to end it, and have
    /// `--drain-seconds` to finish; tunnels are closed after that time too; 0: any age.
    #[arg(long, env = "VESTIBULE_MAX_CONNECTION_AGE_SECONDS", default_value_t = seconds(ProxyLimits::default().bounds.connection_age))]
    max_connection_age_seconds: u64,
    /// Whether a backend may have a loopback address, which leads to this proxy's own host. Allow it where backends run
    /// beside the proxy, as in tests, and not in a cluster.
    #[arg(long, env = "VESTIBULE_ALLOW_LOOPBACK_ENDPOINTS", default_value_t = false, action = clap::ArgAction::Set)]
    allow_loopback_endpoints: bool,
    #[command(flatten)]
    endpoints: EndpointArguments,
    #[command(flatten)]
    udp: UdpArgs,
    #[command(flatten)]
    http: HttpArgs,
}

/// The value of a flag for a limit.
fn seconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| time.as_secs())
}

/// The limit for the value of a flag.
fn limit(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// What clients of UDP listeners may have.
#[derive(Debug, clap::Args)]
struct UdpArgs {
    /// Most UDP sessions of all tenants at one time. Each takes one of the ports that the kernel has for such sockets:
    /// 28,232 by default.
    #[arg(long, default_value_t = ProxyLimits::default().udp.max_sessions)]
    max_udp_sessions: usize,
    /// Seconds without a datagram in either direction after which a UDP session ends.
    #[arg(
        long,
        default_value_t = ProxyLimits::default().udp.idle.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    udp_idle_seconds: u64,
    /// Most new UDP sessions of one source (an IPv4 address or an IPv6 /64) per second; 0: as many as come.
    #[arg(long, default_value_t = ProxyLimits::default().udp.source_sessions_per_second)]
    source_udp_sessions_per_second: u32,
}

impl From<UdpArgs> for UdpLimits {
    fn from(args: UdpArgs) -> Self {
        Self {
            max_sessions: args.max_udp_sessions,
            idle: Duration::from_secs(args.udp_idle_seconds),
            source_sessions_per_second: args.source_udp_sessions_per_second,
        }
    }
}

/// What clients of HTTP and HTTPS listeners may do.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct HttpArgs {
    /// Most bytes of a request's head.
    #[arg(long, env = "VESTIBULE_HTTP_HEAD_BYTES", default_value_t = ProxyLimits::default().http.head_bytes)]
    http_head_bytes: u32,
    /// Most fields in a request's head. In HTTP/2, cookies may have twice as many in addition.
    #[arg(long, env = "VESTIBULE_HTTP_FIELDS", default_value_t = ProxyLimits::default().http.fields)]
    http_fields: usize,
    /// Seconds from the first byte of a request's head to its end.
    #[arg(long, env = "VESTIBULE_HTTP_HEAD_SECONDS", default_value_t = ProxyLimits::default().http.head_deadline.as_secs())]
    http_head_seconds: u64,
    /// Seconds that a connection may stay without a request.
    #[arg(long, env = "VESTIBULE_HTTP_IDLE_SECONDS", default_value_t = ProxyLimits::default().http.idle.as_secs())]
    http_idle_seconds: u64,
    /// Seconds in which a client has to send at least 1 KiB of a request that it has begun, or take as
    /// much of an answer.
    #[arg(long, env = "VESTIBULE_HTTP_STALL_SECONDS", default_value_t = ProxyLimits::default().http.stall.as_secs())]
    http_stall_seconds: u64,
    /// Seconds that a request may go without a byte of its body, of its answer's head or of its answer's body;
    /// 0: any time.
    #[arg(long, env = "VESTIBULE_HTTP_STREAM_IDLE_SECONDS", default_value_t = seconds(ProxyLimits::default().bounds.stream_idle))]
    http_stream_idle_seconds: u64,
    /// Seconds from the head of a request to the end of its answer, for routes whose rule has no
    /// timeouts.request; 0: any time.
    #[arg(long, env = "VESTIBULE_HTTP_REQUEST_SECONDS", default_value_t = seconds(ProxyLimits::default().bounds.request))]
    http_request_seconds: u64,
    /// Most bytes of a request's body; 0: any number.
    #[arg(long, env = "VESTIBULE_HTTP_BODY_BYTES", default_value_t = ProxyLimits::default().bounds.request_body.unwrap_or(0))]
    http_body_bytes: u64,
    /// Most requests at one time on an HTTP/2 connection.
    #[arg(long, env = "VESTIBULE_HTTP_STREAMS", default_value_t = ProxyLimits::default().http.streams)]
    http_streams: u32,
    /// Requests that a client may take back faster than they are looked at, on an HTTP/2 connection.
    #[arg(long, env = "VESTIBULE_HTTP_RESETS", default_value_t = ProxyLimits::default().http.resets)]
    http_resets: usize,
    /// Requests that a client may cancel before their answer is complete, on an HTTP/2 connection, beyond as
    /// many as it lets come to their end, and a few in a second.
    #[arg(long, env = "VESTIBULE_HTTP_CANCELS", default_value_t = ProxyLimits::default().http.cancels)]
    http_cancels: u32,
    /// Which requests are tried again, once, after their connection to the backend broke before an answer.
    #[arg(long, env = "VESTIBULE_HTTP_REPEAT", default_value = "idempotent")]
    http_repeat: RepeatArg,
    /// What becomes of request headers whose name has an underscore, which some backends read as a dash.
    #[arg(long, env = "VESTIBULE_HTTP_UNDERSCORES", default_value = "drop")]
    http_underscores: UnderscoresArg,
    /// What becomes of requests whose path has a slash written as `%2f`, `\` or `%5c`, which backends may
    /// take for a slash and routes do not.
    #[arg(long, env = "VESTIBULE_HTTP_ESCAPED_SLASHES", default_value = "refuse")]
    http_escaped_slashes: EscapedSlashesArg,
}

/// The names of [`Repeat`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RepeatArg {
    /// Those that no backend has seen.
    Unseen,
    /// Also those without a body whose method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT, DELETE.
    Idempotent,
}

impl From<RepeatArg> for Repeat {
    fn from(repeat: RepeatArg) -> Self {
        match repeat {
            RepeatArg::Unseen => Self::Unseen,
            RepeatArg::Idempotent => Self::Idempotent,
        }
    }
}

/// The names of [`Underscores`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum UnderscoresArg {
    /// They are taken out.
    Drop,
    /// The request is answered with 400.
    Refuse,
    /// They are passed on, unless with dashes they are fields that the proxy sets or takes out.
    Allow,
}

impl From<UnderscoresArg> for Underscores {
    fn from(underscores: UnderscoresArg) -> Self {
        match underscores {
            UnderscoresArg::Drop => Self::Drop,
            UnderscoresArg::Refuse => Self::Refuse,
            UnderscoresArg::Allow => Self::Allow,
        }
    }
}

/// The names of [`EscapedSlashes`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EscapedSlashesArg {
    /// The request is answered with 400.
    Refuse,
    /// Each `%2f` is decoded once, before the path is matched and passed on. The others are answered with 400.
    Unescape,
    /// The path is matched and passed on as it is written.
    Keep,
}

impl From<EscapedSlashesArg> for EscapedSlashes {
    fn from(slashes: EscapedSlashesArg) -> Self {
        match slashes {
            EscapedSlashesArg::Refuse => Self::Refuse,
            EscapedSlashesArg::Unescape => Self::Unescape,
            EscapedSlashesArg::Keep => Self::Keep,
        }
    }
}

impl From<HttpArgs> for HttpLimits {
    fn from(args: HttpArgs) -> Self {
        Self {
            head_bytes: args.http_head_bytes,
            fields: args.http_fields,
            head_deadline: Duration::from_secs(args.http_head_seconds),
            idle: Duration::from_secs(args.http_idle_seconds),
            stall: Duration::from_secs(args.http_stall_seconds),
            streams: args.http_streams,
            resets: args.http_resets,
            cancels: args.http_cancels,
            repeat: args.http_repeat.into(),
            underscores: args.http_underscores.into(),
            escaped_slashes: args.http_escaped_slashes.into(),
        }
    }
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

/// TLS towards the operator. Without an authority the stream is plaintext, for loopback.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct StreamTls {
    /// PEM bundle of the authorities that sign the operator's certificate. Read for each connection.
    #[arg(long, env = "VESTIBULE_CONFIG_CA", conflicts_with = "config_file")]
    config_ca: Option<PathBuf>,
    /// Name that the operator's certificate is for [default: the host of the first address].
    #[arg(long, env = "VESTIBULE_CONFIG_SERVER_NAME", requires = "config_ca")]
    config_server_name: Option<String>,
    /// Token to show to the operator: a projected `ServiceAccount` token. Read for each connection.
    #[arg(long, env = "VESTIBULE_CONFIG_TOKEN", requires = "config_ca")]
    config_token: Option<PathBuf>,
}

/// `host:port` out of what people write.
fn address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    match bare.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty()
                && !host.contains('/')
                && port.parse::<u16>().is_ok_and(|p| p != 0) =>
        {
            Ok(bare.to_owned())
        }
        _ => Err("write it as host:port, such as operator:9443".to_owned()),
    }
}

fn source(source: Source, tls: StreamTls, name: String) -> Result<ConfigSource, TlsError> {
    if let Some(path) = source.config_file {
        return Ok(ConfigSource::File(path));
    }
    let first = source.config_stream.first().cloned().unwrap_or_default();
    let client = client::Config::new(ProxyIdentity::new(name), source.config_stream);
    let Some(roots) = tls.config_ca else {
        return Ok(ConfigSource::Stream {
            client,
            connector: tcp_connector(),
        });
    };
    let host = first.rsplit_once(':').map_or(&*first, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let server_name = tls.config_server_name.as_deref().unwrap_or(host);
    let tls = Tls::new(roots, server_name, tls.config_token)?;
    Ok(ConfigSource::Tls {
        client,
        tls: Arc::new(tls),
    })
}

fn config(args: Args) -> Result<ProxyConfig, TlsError> {
    let defaults = ProxyLimits::default();
    let limits = ProxyLimits {
        hello_bytes: args.hello_bytes,
        hello_deadline: Duration::from_secs(args.hello_seconds),
        connect_deadline: Duration::from_secs(args.connect_seconds),
        max_connections: args.max_connections,
        guaranteed_percent: args.guaranteed_percent,
        source_connections_per_second: args.source_connections_per_second,
        overload_percent: args.overload_percent,
        access_log: args.access_log,
        access_log_lines_per_second: args.access_log_lines_per_second,
        access_log_percent: args.access_log_percent,
        bounds: Bounds {
            stream_idle: limit(args.http.http_stream_idle_seconds),
            request: limit(args.http.http_request_seconds),
            tunnel_idle: limit(args.tunnel_idle_seconds),
            connection_age: limit(args.max_connection_age_seconds),
            request_body: Some(args.http.http_body_bytes).filter(|bytes| *bytes > 0),
        },
        age_grace: Duration::from_secs(args.drain_seconds),
        http: args.http.into(),
        udp: args.udp.into(),
        ..defaults
    };
    let mut config = ProxyConfig::new(source(args.source, args.tls, args.name)?);
    config.limits = limits;
    config.endpoint_rules = EndpointRules {
        loopback: args.allow_loopback_endpoints,
        ..args.endpoints.rules()
    };
    config.admin = Some(args.admin);
    config.health = args.health;
    if let Some(workers) = args.workers {
        config.workers = workers;
    }
    Ok(config)
}

/// Raises the limit of open files as far as the system allows. The soft limit is often 1,024, because of programs that
/// use `select`.
fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    tracing::info!(
        limit = getrlimit(Resource::Nofile).current,
        "the proxy has a limit of open files"
    );
}

/// Logs to standard output; `RUST_LOG` filters.
fn init_log() -> Result<FlushGuard, LogError> {
    let filter = log_filter::filter(log_filter::asked().as_deref().unwrap_or("info"))?;
    LogFormat::Json.init(log_filter::bounded(filter))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    vestibule_serve::memory::refuse_huge_pages();
    // The last lines are written when the guard is dropped, at the end.
    let _log = match init_log() {
        Ok(guard) => guard,
        Err(error) => {
            let _ = writeln!(io::stderr(), "vestibule-proxy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let args = Args::parse();
    allow_open_files();
    let delay = Duration::from_secs(args.shutdown_delay_seconds);
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
    let config = match config(args) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let proxy = match Proxy::start(config).await {
        Ok(proxy) => proxy,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    tracing::info!(
        admin = proxy.admin().map(tracing::field::display),
        health = proxy.health().map(tracing::field::display),
        "the proxy runs"
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!(
        accepting_seconds = delay.as_secs(),
        drain_seconds = deadline.as_secs(),
        connections = proxy.connections(),
        "the proxy is about to end, and is unready from now on"
    );
    // A second signal ends the process at once.
    tokio::select! {
        cut = proxy.shut_down(delay, deadline) => tracing::info!(cut, "the proxy ends; `cut` is the number of connections that it cut"),
        _ = terminate.recv() => tracing::info!("the proxy ends without draining"),
        _ = interrupt.recv() => tracing::info!("the proxy ends without draining"),
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
        // The last one of equal arguments counts, so that the chart's `extraArgs` override its own arguments.
        let twice = ["--config-file=x", "--http-cancels=1", "--http-cancels=2"];
        assert_eq!(parse(&twice).unwrap().http.http_cancels, 2);
        let args = parse(&[
            "--config-file",
            "x",
            "--access-log",
            "false",
            "--workers",
            "3",
            "--http-stall-seconds",
            "7",
            "--tunnel-idle-seconds",
            "0",
            "--max-connection-age-seconds",
            "3600",
            "--http-body-bytes",
            "1000",
        ]);
        let made = config(args.unwrap()).unwrap();
        assert!(!made.limits.access_log);
        assert_eq!(made.workers, 3);
        assert_eq!(made.limits.http.stall, Duration::from_secs(7));
        let bounds = Bounds {
            tunnel_idle: None,
            connection_age: Some(Duration::from_hours(1)),
            request_body: Some(1000),
            ..Bounds::default()
        };
        assert_eq!(made.limits.bounds, bounds);
        assert_eq!(made.endpoint_rules, EndpointRules::default());
        let rules = |args: &[&str]| {
            let args = parse(&[&["--config-file", "x"], args].concat());
            config(args.unwrap()).unwrap().endpoint_rules
        };
        assert_eq!(
            rules(&["--allow-loopback-endpoints=true"]),
            EndpointRules::with_loopback()
        );
        let denied = rules(&[
            "--allow-loopback-endpoints=false",
            "--deny-endpoint-cidrs=10.96.0.0/12,fd00::/8",
        ]);
        assert!(!denied.loopback);
        assert_eq!(denied.denied.len(), 2);
        assert!(parse(&["--config-file", "x", "--deny-endpoint-cidrs=10.96.0.1/12"]).is_err());
        assert!(parse(&["--config-stream", "https://a:1"]).is_err());
        assert!(parse(&["--config-file", "x", "--config-ca", "y"]).is_err());
        assert!(parse(&["--config-stream", "a:1", "--config-token", "y"]).is_err());
        let tls = [
            "--config-stream",
            "edge.ns.svc:9443",
            "--config-ca",
            "ca.crt",
        ];
        let made = config(parse(&tls).unwrap()).unwrap();
        assert!(matches!(made.source, ConfigSource::Tls { .. }));
        let wrong = [&tls[..], &["--config-server-name", "a b"]].concat();
        assert!(config(parse(&wrong).unwrap()).is_err());
    }
}
