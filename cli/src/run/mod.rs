//! `vestibule run` serves a directory of manifests, with the operator, the admission rules and the proxy in one
//! process.

mod engine;
mod log;
mod served;
mod serving;
mod view;

use std::collections::BTreeMap;
use std::env;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::Router;
use axum::http::header;
use axum::routing::get;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use vestibule_backoff::{Backoff, Delays};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::selector::LabelSelector;
use vestibule_operator::issuance;
use vestibule_operator::localca::{LocalCa, LocalCaError};
use vestibule_operator::publish::{InProcess, Publisher};
use vestibule_proxy::proxy::{ConfigSource, Proxy, ProxyConfig};
use vestibule_serve::log_format::LogFormat;
use vestibule_stream::ProxyIdentity;
use vestibule_stream::client::{self, Connect};

use crate::clock;
use crate::manifests::files;
use crate::manifests::follow::{DirectoryChange, follow};
use crate::settings::{PolicyArgs, settings};
use engine::Engine;
use view::View;

/// Name of the only proxy in statuses.
const PROXY: &str = "the proxy";
/// The only term of the publisher. There is no other replica that could take over.
const TERM: u64 = 1;
/// Waits between two attempts at ports that are taken.
const PORTS_AGAIN: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));
/// Orders in an hour: below what public CAs give to one account.
const ORDERS: NonZeroU32 = NonZeroU32::new(100).expect("above zero");
/// Time between two looks for certificates that are due for renewal.
const RENEWAL: Duration = Duration::from_mins(1);

/// Serves a directory of manifests, without a cluster, and follows its edits.
///
/// Certificates that listeners refer to and that are not in the directory are issued by the issuer that
/// the annotations name, or by a local CA if they name none.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Directory of manifests: *.yaml, *.yml and *.json, in it and below it
    directory: PathBuf,
    /// Where the local CA, and certificates and accounts of others, are kept; by default vestibule in the user's state directory
    /// (`$XDG_STATE_HOME`, or `~/.local/state`)
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Address that listeners are bound to
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::LOCALHOST.into())]
    listen: IpAddr,
    /// Serve a listener's port on another one, such as 443=8443; may be given several times
    #[arg(long, value_name = "PORT=BOUND", value_parser = port_map)]
    port_map: Vec<(u16, u16)>,
    /// Address of health, metrics, configuration and status; it authenticates nobody
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Worker threads of the proxy [default: one per core]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Do not log a line per connection
    #[arg(long)]
    no_access_log: bool,
    /// How to log, on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Seconds that connections have to end after the first SIGTERM or Ctrl-C, or after they reached their maximum age
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain_seconds: u64,
    #[command(flatten)]
    policy: PolicyArgs,
}

impl RunArgs {
    /// Time that connections have to end by themselves.
    fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}

fn port_map(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| {
        let number = text.parse::<u16>().ok().filter(|port| *port != 0);
        number.ok_or_else(|| format!("{text:?} is not a port; ports are numbers from 1 to 65535"))
    };
    let (from, to) = text
        .split_once('=')
        .ok_or("write it as PORT=BOUND, such as 443=8443")?;
    Ok((port(from)?, port(to)?))
}

/// The port on which each port of a listener is served, if it is another one.
fn ports(pairs: &[(u16, u16)]) -> Result<BTreeMap<u16, u16>, String> {
    let mut ports = BTreeMap::new();
    for (port, bound) in pairs {
        if let Some(other) = ports.insert(*port, *bound) {
            return Err(format!(
                "--port-map serves port {port} twice, on {other} and on {bound}; keep one of them"
            ));
        }
    }
    Ok(ports)
}

/// Runs the command until a signal ends it.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let _log = log::init(args.log_format)?;
    let ports = match ports(&args.port_map) {
        Ok(ports) => ports,
        Err(error) => {
            writeln!(io::stderr(), "vestibule run: {error}")?;
            return Ok(ExitCode::from(2));
        }
    };
    if let Err(error) = files::look(&args.directory) {
        writeln!(io::stderr(), "vestibule run: {error}")?;
        return Ok(ExitCode::from(2));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime; raise the limits on threads and open files")?;
    let outcome = runtime.block_on(serve(args, ports));
    // A second signal means "now": nobody waits for work that is still under way.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: RunArgs, ports: BTreeMap<u16, u16>) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let state = state_directory(args.state_dir.clone())?;
    let ca = LocalCa::open(&state, clock::now()).map_err(|error| match error {
        LocalCaError::Io { .. } => anyhow::Error::new(error).context(
            "cannot keep the local CA; name a directory that is writable with --state-dir",
        ),
        other => other.into(),
    })?;
    let mut directory_change = follow(args.directory.clone()).context("cannot start a thread")?;
    let publisher = Publisher::new(vestibule_operator::publish::Config::default());
    let policy = args.policy.policy();
    let translation = settings(policy, args.listen, ports.clone());
    let (mut engine, mut channels) = Engine::new(translation, ca, &state, Arc::clone(&publisher));
    let mut view = View::new(args.listen, ports);
    let (status, served_status) = watch::channel(Arc::<str>::from("[]"));

    // The first full batch contains everything in the directory, so the proxy is not ready before it.
    tokio::select! {
        first = directory_change.recv() => take(&mut engine, first)?,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    }
    engine.begin();
    publisher.lead(TERM)?;
    let mut config = proxy_config(&args, &publisher, served_status);
    config.endpoint_rules = engine.translator().policy().endpoints.clone();
    let proxy = Proxy::start(config).await?;
    let admin = proxy.admin().unwrap_or(args.admin);
    log::started(&args.directory, admin, &engine.ca().certificate_path());

    let mut facts = publisher.acks();
    let (mut told, mut issued) = (channels.engine_link.for_loop(), engine.acme().changed());
    let acme = issuance::run(
        acme_settings(),
        Arc::clone(engine.acme()),
        vestibule_acme::wall,
        &publisher,
        &mut channels,
    );
    tokio::pin!(acme);
    let mut renewal = tokio::time::interval(RENEWAL);
    let mut retry = Retry::new();
    loop {
        let document = view.refresh(&engine, clock::now());
        status.send_replace(document);
        retry.plan(!view.waiting_for_ports().is_empty(), Instant::now());
        tokio::select! {
            item = directory_change.recv() => take(&mut engine, item)?,
            changed = facts.changed() => changed?,
            changed = told.changed() => {
                changed?;
                engine.told(clock::now());
            }
            changed = issued.changed() => {
                changed?;
                engine.told(clock::now());
            }
            () = &mut acme => bail!("the task that asks CAs for certificates ended"),
            () = at(engine.claims_until()) => engine.renew(clock::now()),
            () = at(engine.source().held_until()) => engine.release(clock::now()),
            () = at(retry.next) => {
                retry.again(Instant::now());
                engine.offer_again(view.waiting_for_ports());
            }
            _ = renewal.tick() => engine.renew(clock::now()),
            () = signals.next() => break,
        }
    }
    drain(proxy, &mut signals, args.drain_time()).await;
    Ok(ExitCode::SUCCESS)
}

/// Settings of the built-in engine. There is only one user, so only the limits of the CA matter.
fn acme_settings() -> vestibule_acme::EngineSettings {
    vestibule_acme::EngineSettings {
        // The account of a ClusterACMEIssuer is kept in this namespace.
        namespace: "vestibule".into(),
        issuers: LabelSelector::default(),
        budgets: vestibule_acme::Budgets {
            per_hour: ORDERS,
            per_issuer: ORDERS,
            per_namespace: ORDERS,
        },
        in_flight: 40,
        // Issuers come from the owner of this machine, so registrations need no limit of their own.
        registrations: ORDERS,
        authorities: AuthorityRules::Any,
        // The proxy is in this process and has bound the port when it acknowledges, so there is nothing to wait for.
        reach: Duration::ZERO,
        spread: RENEWAL,
        seed: RandomState::new().build_hasher().finish(),
    }
}

/// When listeners whose port was taken are offered again: less and less often.
#[derive(Debug)]
struct Retry {
    next: Option<Instant>,
    delays: Delays,
}

impl Retry {
    fn new() -> Self {
        Self {
            next: None,
            delays: PORTS_AGAIN.delays(),
        }
    }

    fn plan(&mut self, wanted: bool, now: Instant) {
        if !wanted {
            *self = Self::new();
        } else if self.next.is_none() {
            self.again(now);
        }
    }

    fn again(&mut self, now: Instant) {
        self.next = Some(now + self.delays.advance());
    }
}

/// Waits until `until`, or for ever if it is `None`.
async fn at(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

fn take(engine: &mut Engine, directory_change: Option<DirectoryChange>) -> anyhow::Result<()> {
    match directory_change {
        Some(DirectoryChange::Files(changes)) => engine.files(changes, clock::now()),
        Some(DirectoryChange::Gone(why)) => log::gone(&why),
        Some(DirectoryChange::Back) => log::back(),
        None => bail!("the thread that follows the directory ended"),
    }
    Ok(())
}

fn proxy_config(
    args: &RunArgs,
    publisher: &Arc<Publisher>,
    status: watch::Receiver<Arc<str>>,
) -> ProxyConfig {
    let connector = InProcess::new(publisher);
    let source = ConfigSource::Stream {
        client: client::Config::new(ProxyIdentity::new(PROXY), vec!["in-process:1".into()]),
        connector: Arc::new(move |address| {
            let connector = connector.clone();
            Box::pin(async move { connector.connect(&address).await })
        }),
    };
    let mut config = ProxyConfig::new(source);
    if let Some(workers) = args.workers {
        config.workers = workers;
    }
    config.admin = Some(args.admin);
    config.admin_routes = Router::new().route(
        "/status",
        get(move || {
            let document = status.borrow().to_string();
            async move { ([(header::CONTENT_TYPE, "application/json")], document) }
        }),
    );
    config.limits.access_log = !args.no_access_log;
    config.limits.age_grace = args.drain_time();
    config
}

async fn drain(proxy: Proxy, signals: &mut Signals, deadline: Duration) {
    log::draining(proxy.connections(), deadline);
    tokio::select! {
        cut = proxy.drain(deadline) => log::drained(cut),
        () = signals.next() => log::ended(),
    }
}

fn state_directory(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(directory) = given {
        return Ok(directory);
    }
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(directory) = absolute("XDG_STATE_HOME") {
        return Ok(directory.join("vestibule"));
    }
    match absolute("HOME") {
        Some(home) => Ok(home.join(".local/state/vestibule")),
        None => bail!("no home directory to keep the local CA in: give one with --state-dir"),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn the_time_of_a_drain_holds_for_connections_that_are_too_old() {
        let arguments = ["run", "manifests", "--drain-seconds", "7"];
        let args = Command::parse_from(arguments).run;
        let publisher = Publisher::new(vestibule_operator::publish::Config::default());
        let (_, status) = watch::channel(Arc::<str>::from("[]"));
        let config = proxy_config(&args, &publisher, status);
        assert_eq!(config.limits.age_grace, Duration::from_secs(7));
    }
}
