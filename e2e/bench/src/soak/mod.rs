//! The soak: `vestibule run` with the manifests of many tenants and mixed traffic, while routes are edited,
//! certificates rotate, backends die and come back, and one of two proxies is restarted again and again. No request
//! fails that a client without retries would blame on the proxy, and memory and descriptors stay where they are.
//!
//! Two processes serve the same directory, each operator and proxy in one, behind a balancer that passes bytes. One
//! of them is never restarted, and is the one whose memory is looked at. The other one drains at SIGTERM as in a
//! cluster: the balancer gives it no new connections first, which is what a Service does.

mod backends;
mod balancer;
mod clients;
mod ledger;
mod trend;
mod world;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use tokio::time::sleep;

use self::backends::{Backend, Ports, Speaks};
use self::balancer::{Balancer, Doors, Upstream};
use self::clients::Clients;
use self::ledger::{Kind, Ledger};
use self::trend::Trend;
use self::world::{EDITS, Site, TCP_PORT, World};
use crate::child::{self, Guarded, Output};
use crate::peers::free_address;
use crate::tls::{Authority, server_config, verifying_config};
use crate::{proc, sys};

/// Time for connections to end at a restart: longer than any connection of the clients that carries bytes.
const DRAIN: u64 = 15;
/// Between two looks at memory and descriptors.
const SAMPLE: Duration = Duration::from_secs(2);
/// Between two deaths, and how long a backend stays dead.
const DEATHS: Duration = Duration::from_secs(7);
const DEAD: Duration = Duration::from_secs(4);
/// Growth that is none: bytes, and descriptors.
const MEMORY_ROOM: f64 = 8e6;
const DESCRIPTOR_ROOM: f64 = 50.0;

/// The backends, with the kinds of traffic that they carry.
type Backends = [(Vec<Kind>, Vec<Backend>); 7];

/// Options of `vestibule-bench soak`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakArgs {
    /// How long.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Tenants.
    #[arg(long, default_value_t = 50)]
    tenants: usize,
    /// Requests a second of each tenant's HTTP/1.1 client. The HTTP/2 client makes twice as many, and there are
    /// half as many gRPC calls, and a quarter as many uploads.
    #[arg(long, default_value_t = 2.0)]
    rate: f64,
    /// Seconds between two restarts.
    #[arg(long, default_value_t = 60)]
    restart_seconds: u64,
    /// The vestibule command [default: beside this binary]
    #[arg(long)]
    vestibule: Option<PathBuf>,
    /// Write the samples of memory and descriptors there, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a process of `vestibule run` is started.
struct Launch {
    binary: PathBuf,
    folder: PathBuf,
    name: &'static str,
    doors: Doors,
    admin: SocketAddr,
}

impl Launch {
    fn start(&self) -> Result<Guarded> {
        let mut command = Command::new(&self.binary);
        command.arg("run").arg(self.folder.join("manifests"));
        for (port, door) in [(443, self.doors.tls), (TCP_PORT, self.doors.tcp)] {
            command.args(["--port-map", &format!("{port}={}", door.port())]);
        }
        command.args(["--admin", &self.admin.to_string()]);
        command
            .arg("--state-dir")
            .arg(self.folder.join(format!("state-{}", self.name)));
        command.args(["--workers", "1", "--drain-seconds", &DRAIN.to_string()]);
        let log = self.folder.join(format!("{}.log", self.name));
        Guarded::start_with(command, self.name, &[], &log, Output::Null)
    }

    /// Whether it says that it is ready.
    fn is_ready(&self) -> bool {
        let ask = || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&self.admin, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n\r\n")?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
    }

    /// Starts it and waits until it is ready.
    async fn serve(&self) -> Result<Guarded> {
        let mut process = self.start()?;
        let deadline = Instant::now() + Duration::from_mins(2);
        while !self.is_ready() {
            if let Some(status) = process.ended()? {
                let log = self.folder.join(format!("{}.log", self.name));
                let text = fs::read_to_string(log).unwrap_or_default();
                bail!("{} ended: {status}: {}", self.name, text.trim());
            }
            ensure!(
                Instant::now() < deadline,
                "{} does not become ready",
                self.name
            );
            sleep(Duration::from_millis(100)).await;
        }
        Ok(process)
    }
}

/// Runs, prints, and fails if something did.
pub(crate) fn run(args: &SoakArgs) -> Result<()> {
    println!("Loopback of {}.\n", crate::network(false));
    sys::raise_open_files(20_000)?;
    crate::watch_for_stop()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // The children are started by this thread, with which the kernel ends them.
    runtime.block_on(soak(args))
}

async fn soak(args: &SoakArgs) -> Result<()> {
    let folder =
        Folder(std::env::temp_dir().join(format!("vestibule-soak-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let authority = Authority::new()?;
    let web_config = verifying_config(&authority.root)?;
    let mut http2 = (*web_config).clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let (backends, ports) = start_backends(&authority, args.tenants)?;
    let world = World::new(&folder.0.join("manifests"), authority, ports, args.tenants)?;

    let binary = match &args.vestibule {
        Some(binary) => binary.clone(),
        None => std::env::current_exe()?.with_file_name("vestibule"),
    };
    let launch = |name| -> Result<Launch> {
        Ok(Launch {
            binary: binary.clone(),
            folder: folder.0.clone(),
            name,
            doors: Doors {
                tls: free_address()?,
                tcp: free_address()?,
            },
            admin: free_address()?,
        })
    };
    let (lasting, restarted) = (launch("lasting")?, launch("restarted")?);
    let mut kept = lasting.serve().await?;
    let other = restarted.serve().await?;
    let upstreams = [&lasting, &restarted].map(|launch| Arc::new(Upstream::new(launch.doors)));
    let (target, balancer) = Balancer::start(upstreams.to_vec()).await?;

    let ledger = Arc::new(Ledger::new());
    let clients = Arc::new(Clients {
        target,
        http1: web_config,
        http2: Arc::new(http2),
        ledger: Arc::clone(&ledger),
        ending: AtomicBool::new(false),
        every: Duration::from_secs_f64(1.0 / args.rate),
    });
    check(&clients, args.tenants).await?;
    println!(
        "{} tenants, {} minutes; load {}.",
        args.tenants,
        args.minutes,
        fs::read_to_string("/proc/loadavg")
            .unwrap_or_default()
            .trim()
    );
    let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let mut asking = tokio::task::JoinSet::new();
    for tenant in 0..args.tenants {
        for kind in Kind::ALL {
            asking.spawn(Arc::clone(&clients).ask(kind, tenant));
        }
    }
    let editing = tokio::spawn(edit(world, Arc::clone(&ledger), args.tenants, end));
    let killing = tokio::spawn(kill(backends, Arc::clone(&ledger), end));
    let [_, upstream] = upstreams;
    let every = Duration::from_secs(args.restart_seconds.max(DRAIN + 5));
    let restarting = tokio::spawn(restart(
        restarted,
        other,
        upstream,
        Arc::clone(&ledger),
        every,
        end,
    ));

    let samples = sample(&mut kept, &ledger, end).await?;
    clients.ending.store(true, Ordering::Relaxed);
    editing.await??;
    let backends = killing.await??;
    let other = restarting.await??;
    while asking.join_next().await.is_some() {}
    drop((kept, other, backends));
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec(&samples)?)?;
    }
    report(&samples, &ledger, balancer.refused.load(Ordering::Relaxed))
}

/// Checks that both proxies serve.
async fn check(clients: &Clients, tenants: usize) -> Result<()> {
    // All of them share the port of TCP.
    for (kind, tenants) in [
        (Kind::Http1, tenants),
        (Kind::Grpc, tenants),
        (Kind::Tcp, 1),
    ] {
        for tenant in 0..tenants {
            // Each of the two proxies once.
            for _ in 0..2 {
                let check = clients.check(kind, tenant).await;
                check.with_context(|| {
                    format!("{kind:?} of tenant {tenant} is not served at the beginning")
                })?;
            }
        }
    }
    Ok(())
}

/// Starts the backends of each kind of traffic.
fn start_backends(authority: &Authority, tenants: usize) -> Result<(Backends, Ports)> {
    let pass: Vec<String> = (0..tenants).map(|n| Site::Pass.hostname(n)).collect();
    let leaf = authority.der(&pass)?;
    let secure = Speaks::Tls(server_config(leaf.0, leaf.1)?);
    let start = |speaks: &Speaks, count: usize| -> Result<Vec<Backend>> {
        (0..count).map(|_| Backend::start(speaks.clone())).collect()
    };
    let backends = [
        (vec![Kind::Http1, Kind::Http2], start(&Speaks::Http, 3)?),
        (vec![Kind::WebSocket], start(&Speaks::Http, 2)?),
        (vec![Kind::Passthrough], start(&secure, 2)?),
        (vec![Kind::Terminated], start(&Speaks::Bytes, 2)?),
        (vec![Kind::Grpc], start(&Speaks::Grpc, 2)?),
        (vec![Kind::Upload], start(&Speaks::Uploads, 2)?),
        (vec![Kind::Tcp], start(&Speaks::Bytes, 2)?),
    ];
    let ports = Ports {
        web: ports(&backends[0].1)?,
        ws: ports(&backends[1].1)?,
        pass: ports(&backends[2].1)?,
        term: ports(&backends[3].1)?,
        grpc: ports(&backends[4].1)?,
        upload: ports(&backends[5].1)?,
        tcp: ports(&backends[6].1)?,
    };
    Ok((backends, ports))
}

fn ports<const N: usize>(backends: &[Backend]) -> Result<[u16; N]> {
    let ports: Vec<u16> = backends.iter().map(Backend::port).collect();
    let wrong = |_| anyhow::anyhow!("another number of backends");
    ports.try_into().map_err(wrong)
}

fn is_over(end: Instant) -> bool {
    Instant::now() >= end || child::stopped()
}

/// Sleeps, and no longer than to the end.
async fn pause(time: Duration, end: Instant) {
    let until = (Instant::now() + time).min(end);
    while Instant::now() < until && !child::stopped() {
        let left = until.saturating_duration_since(Instant::now());
        sleep(left.min(Duration::from_millis(200))).await;
    }
}

/// An edit every second, each kind in turn, for another tenant each time.
async fn edit(mut world: World, ledger: Arc<Ledger>, tenants: usize, end: Instant) -> Result<()> {
    let mut number = 0;
    while !is_over(end) {
        // A stride that meets every tenant, unless their number is a multiple of seven.
        let tenant = number * 7 % tenants;
        // One further in each round over the tenants, so that each of them meets every kind.
        let kind = EDITS[(number / tenants + tenant) % EDITS.len()];
        world.edit(tenant, kind)?;
        ledger.edited(&format!("{kind:?}").to_lowercase());
        number += 1;
        pause(Duration::from_secs(1), end).await;
    }
    Ok(())
}

/// One backend at a time dies and comes back.
async fn kill(mut backends: Backends, ledger: Arc<Ledger>, end: Instant) -> Result<Backends> {
    let mut number = 0;
    while !is_over(end) {
        pause(DEATHS.saturating_sub(DEAD), end).await;
        let groups = backends.len();
        let (kinds, of) = &mut backends[number % groups];
        let index = number / groups % of.len();
        let backend = of.get_mut(index).context("no such backend")?;
        ledger.died(kinds);
        backend.kill().await;
        pause(DEAD, end).await;
        backend.revive()?;
        number += 1;
    }
    // What is still asked is to be answered.
    Ok(backends)
}

/// Restarts the process again and again, as a rollout does.
async fn restart(
    launch: Launch,
    mut process: Guarded,
    upstream: Arc<Upstream>,
    ledger: Arc<Ledger>,
    every: Duration,
    end: Instant,
) -> Result<Guarded> {
    loop {
        pause(every, end).await;
        if is_over(end) {
            return Ok(process);
        }
        upstream.set_takes(false);
        // What the balancer has just passed on is accepted by then.
        sleep(Duration::from_millis(500)).await;
        sys::signal(process.pid(), false);
        let deadline = Instant::now() + Duration::from_secs(DRAIN + 10);
        while process.ended()?.is_none() {
            if Instant::now() > deadline {
                ledger.broke("the restarted process did not end when it was told to".to_owned());
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        drop(process);
        process = launch.serve().await?;
        upstream.set_takes(true);
        ledger.restarted();
    }
}

/// Memory and descriptors of the process that lasts.
async fn sample(
    process: &mut Guarded,
    ledger: &Ledger,
    end: Instant,
) -> Result<Vec<(f64, f64, f64)>> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    while !is_over(end) {
        if let Some(status) = process.ended()? {
            ledger.broke(format!("the process that was to last ended: {status}"));
            break;
        }
        let resident = proc::memory_alone(process.pid()).resident as f64;
        let descriptors = proc::descriptors(process.pid()) as f64;
        samples.push((begun.elapsed().as_secs_f64(), resident, descriptors));
        pause(SAMPLE, end).await;
    }
    Ok(samples)
}

fn report(samples: &[(f64, f64, f64)], ledger: &Ledger, refused: usize) -> Result<()> {
    println!("\n{}", ledger.markdown());
    let memory: Vec<(f64, f64)> = samples
        .iter()
        .map(|(at, memory, _)| (*at, *memory))
        .collect();
    let open: Vec<(f64, f64)> = samples.iter().map(|(at, _, open)| (*at, *open)).collect();
    let memory = Trend::of(&memory).context("too short to say anything")?;
    let open = Trend::of(&open).context("too short to say anything")?;
    println!("| The process that lasts | First quarter, median | Last quarter, median | Slope |");
    println!("|---|---:|---:|---:|");
    println!(
        "| Resident memory | {:.1} MB | {:.1} MB | {:+.2} MB in an hour |",
        memory.first / 1e6,
        memory.last / 1e6,
        memory.slope / 1e6
    );
    println!(
        "| Descriptors | {:.0} | {:.0} | {:+.1} in an hour |",
        open.first, open.last, open.slope
    );
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("\nLoad at the end: {}.", load.trim());
    ensure!(
        refused == 0,
        "{refused} connections were refused by a proxy that was ready"
    );
    ensure!(ledger.blamed() == 0, "{} failures", ledger.blamed());
    ensure!(memory.is_flat(MEMORY_ROOM), "memory grows");
    ensure!(open.is_flat(DESCRIPTOR_ROOM), "descriptors grow");
    println!("Nothing failed; memory and descriptors are flat.");
    Ok(())
}
