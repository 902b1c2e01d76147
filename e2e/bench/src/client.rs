//! The client process: makes one kind of load against one address, prints one JSON line, ends.

mod bulk;
mod calls;
pub(crate) mod datagrams;
mod failing;
mod paced;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use self::calls::CallArgs;
use self::datagrams::DatagramArgs;
use self::failing::FailingArgs;
use self::paced::PacedArgs;
use crate::http1;
use crate::tls::{self, Groups};
use crate::wire::{self, Command, MESSAGE};

/// Options of the client process.
#[derive(Args, Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are options of a command line, which are independent of one another"
)]
pub(crate) struct ClientArgs {
    /// Whom to connect to.
    #[arg(long)]
    pub(crate) target: SocketAddr,
    /// Server name to ask for; with --hosts, ignored.
    #[arg(long, default_value = tls::RAW_HOST)]
    pub(crate) name: String,
    /// Make real TLS handshakes with the target, for a proxy that terminates.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Offer the session tickets that came with earlier connections.
    #[arg(long)]
    resume: bool,
    /// Key exchange to offer.
    #[arg(long, value_enum, default_value = "x25519")]
    pub(crate) groups: Groups,
    /// Spread connections or requests over so many hosts.
    #[arg(long)]
    pub(crate) hosts: Option<usize>,
    /// Spread requests over so many paths of each host.
    #[arg(long)]
    pub(crate) paths: Option<usize>,
    /// Speak HTTP/1.1 with the proxy, and not the backend's commands.
    #[arg(long)]
    pub(crate) http: bool,
    /// Give up after so many seconds.
    #[arg(long, default_value_t = 60)]
    pub(crate) limit: u64,
    /// Say the backend's commands in plain bytes, to a proxy that does not look at them.
    #[arg(long, conflicts_with_all = ["tls", "http"])]
    pub(crate) plain: bool,
    #[command(subcommand)]
    load: Load,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Load {
    /// Move so many bytes on each of so many connections at once.
    Bulk {
        /// Where to.
        direction: Direction,
        /// Connections at once.
        connections: usize,
        /// Bytes on each, in each direction.
        bytes: u64,
    },
    /// Connect, exchange one message, close; so many times.
    Connect {
        /// Connections in all.
        count: usize,
        /// Connections at once.
        concurrency: usize,
    },
    /// Messages at a rate, or as fast as answers come.
    Paced(PacedArgs),
    /// Datagrams that come back.
    Datagrams(DatagramArgs),
    /// Calls of gRPC.
    Calls(CallArgs),
    /// Requests that fail.
    Failing(FailingArgs),
    /// Open so many, exchange one message on each, then hold them until standard input closes.
    Idle {
        /// Connections.
        connections: usize,
    },
    /// One TLS connection, verified against a root, and one message.
    Check {
        /// The root, DER.
        #[arg(long)]
        root: PathBuf,
    },
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// From the backend.
    Down,
    /// To the backend.
    Up,
    /// Both at once.
    Both,
}

/// Figures of one load, as the client saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadOutcome {
    /// Wall time of the load, seconds.
    pub(crate) seconds: f64,
    /// Connections made.
    pub(crate) connections: usize,
    /// Messages or requests that were answered.
    pub(crate) answered: usize,
    /// Messages that were not.
    pub(crate) lost: usize,
    /// Requests that the backend saw of those that were answered.
    pub(crate) tries: u64,
    /// Payload moved, all directions together, bytes.
    pub(crate) bytes: u64,
    /// TLS handshakes that resumed a session.
    pub(crate) resumed: usize,
    /// Median time to an answer, microseconds.
    pub(crate) p50: f64,
    /// 99th percentile of times to an answer, microseconds.
    pub(crate) p99: f64,
    /// How late the client itself began, 99th percentile, microseconds.
    pub(crate) late: f64,
}

impl LoadOutcome {
    /// How much of what was begun never came back.
    pub(crate) fn lost_percent(&self) -> f64 {
        let begun = self.answered + self.lost;
        self.lost as f64 * 100.0 / begun.max(1) as f64
    }
}

/// Makes the load within its limit and prints the outcome.
pub(crate) fn run(args: &ClientArgs) -> Result<()> {
    let outcome = match args.load {
        Load::Bulk {
            direction,
            connections,
            bytes,
        } => Some(bulk::run(args, direction, connections, bytes)?),
        Load::Paced(ref paced) => Some(paced::run(args, paced)?),
        Load::Datagrams(ref load) => Some(datagrams::run(args, load)?),
        Load::Connect { .. }
        | Load::Idle { .. }
        | Load::Check { .. }
        | Load::Calls(_)
        | Load::Failing(_) => {
            let limit = Duration::from_secs(args.limit);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let ended = crate::stdin_closed();
            runtime.block_on(async {
                let work = async {
                    match &args.load {
                        Load::Connect { count, concurrency } => {
                            connect(args, *count, *concurrency).await.map(Some)
                        }
                        Load::Check { root } => check(args, root).await.map(Some),
                        Load::Idle { connections } => idle(args, *connections, ended).await,
                        Load::Calls(load) => calls::run(args, load).await.map(Some),
                        Load::Failing(load) => failing::run(args, load).await.map(Some),
                        Load::Bulk { .. } | Load::Paced(_) | Load::Datagrams(_) => {
                            bail!("not an asynchronous load")
                        }
                    }
                };
                tokio::time::timeout(limit, work)
                    .await
                    .context("the client's time limit passed")?
            })?
        }
    };
    if let Some(outcome) = outcome {
        println!("{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}

/// What one asynchronous connection needs, shared by all of them.
struct Dialer {
    target: SocketAddr,
    name: String,
    hosts: Option<usize>,
    /// What is sent at first.
    first: Vec<u8>,
    /// Whether an HTTP answer comes back, and not a message.
    http: bool,
    tls: Option<TlsConnector>,
}

/// A connection that exchanged its first message.
enum Open {
    Raw(tokio::net::TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>),
}

impl Dialer {
    fn new(args: &ClientArgs) -> Result<Arc<Self>> {
        let first = if args.http {
            request(&args.name, "/tiny")
        } else if args.tls || args.plain {
            Command::Echo.encode().to_vec()
        } else {
            // Browsers send the hybrid share, so that a hello spans two segments on a real network.
            let hybrid = tls::client_config(Groups::Hybrid, false)?;
            wire::hello(&hybrid, &args.name, Command::Echo)?
        };
        let tls = if args.tls {
            let config = tls::client_config(args.groups, args.resume)?;
            Some(TlsConnector::from(config))
        } else {
            None
        };
        Ok(Arc::new(Self {
            target: args.target,
            name: args.name.clone(),
            hosts: args.hosts,
            first,
            http: args.http,
            tls,
        }))
    }

    async fn open(&self, index: usize) -> Result<(Open, bool)> {
        let mut stream = tokio::net::TcpStream::connect(self.target)
            .await
            .context("connecting")?;
        stream.set_nodelay(true)?;
        let Some(connector) = &self.tls else {
            self.first_message(&mut stream).await?;
            return Ok((Open::Raw(stream), false));
        };
        let name = self
            .hosts
            .map_or_else(|| self.name.clone(), |hosts| spread(index, hosts));
        let mut stream = connector
            .connect(ServerName::try_from(name)?, stream)
            .await
            .context("TLS handshake")?;
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        self.first_message(&mut stream).await?;
        Ok((Open::Tls(Box::new(stream)), resumed))
    }

    async fn first_message(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<()> {
        stream.write_all(&self.first).await?;
        stream.flush().await?;
        if self.http {
            let answer = http1::answer(stream).await?;
            ensure!(answer.status == 200, "status {}", answer.status);
        } else {
            first_message(stream).await?;
        }
        Ok(())
    }
}

/// The host of the n-th connection or request. The stride is a prime far from any power, so that neighbours in time
/// are not neighbours in the tables.
fn spread(index: usize, hosts: usize) -> String {
    tls::host(index.wrapping_mul(7919) % hosts)
}

fn request(host: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").into_bytes()
}

async fn first_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    let mut message = [0; MESSAGE];
    stream
        .read_exact(&mut message)
        .await
        .context("reading the backend's answer")?;
    Ok(())
}

impl Open {
    async fn close(self) -> Result<()> {
        match self {
            Self::Raw(stream) => drop(stream),
            Self::Tls(mut stream) => stream.shutdown().await?,
        }
        Ok(())
    }
}

async fn connect(args: &ClientArgs, count: usize, concurrency: usize) -> Result<LoadOutcome> {
    // Each lane has a session store of its own: rustls keeps eight tickets per name, too few for all.
    let mut dialers = Vec::new();
    for index in 0..concurrency {
        let dialer = Dialer::new(args)?;
        if args.resume {
            // Every later connection is to find a ticket.
            dialer.open(index).await?.0.close().await?;
        }
        dialers.push(dialer);
    }
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (lane, dialer) in dialers.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut resumed = 0;
            for index in (lane..count).step_by(concurrency) {
                let (stream, again) = dialer.open(index).await?;
                resumed += usize::from(again);
                stream.close().await?;
            }
            anyhow::Ok(resumed)
        });
    }
    let mut resumed = 0;
    while let Some(lane) = tasks.join_next().await {
        resumed += lane??;
    }
    Ok(LoadOutcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: count,
        resumed,
        ..LoadOutcome::default()
    })
}

/// Prints its outcome while it holds the connections, so there is none at the end.
async fn idle(
    args: &ClientArgs,
    count: usize,
    ended: crate::StdinClosed,
) -> Result<Option<LoadOutcome>> {
    /// Opened at once; the listen queues are longer.
    const CONCURRENCY: usize = 32;
    let dialer = Dialer::new(args)?;
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..CONCURRENCY {
        let dialer = Arc::clone(&dialer);
        tasks.spawn(async move {
            let mut held = Vec::new();
            for index in (lane..count).step_by(CONCURRENCY) {
                held.push(dialer.open(index).await?.0);
            }
            anyhow::Ok(held)
        });
    }
    let mut held = Vec::with_capacity(count);
    while let Some(lane) = tasks.join_next().await {
        held.extend(lane??);
    }
    let outcome = LoadOutcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: held.len(),
        ..LoadOutcome::default()
    };
    println!("{}", serde_json::to_string(&outcome)?);
    ended
        .await
        .context("waiting for the end of standard input")?;
    Ok(None)
}

async fn check(args: &ClientArgs, root: &PathBuf) -> Result<LoadOutcome> {
    let begin = Instant::now();
    let mut stream = tokio::net::TcpStream::connect(args.target).await?;
    if args.plain || (args.http && !args.tls) {
        check_on(args, &mut stream).await?;
    } else {
        let root = std::fs::read(root).context("reading the root")?;
        let connector = TlsConnector::from(tls::verifying_config(&root)?);
        let name = ServerName::try_from(args.name.clone())?;
        let mut stream = connector.connect(name, stream).await?;
        check_on(args, &mut stream).await?;
        stream.shutdown().await?;
    }
    Ok(LoadOutcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: 1,
        ..LoadOutcome::default()
    })
}

async fn check_on(
    args: &ClientArgs,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<()> {
    if args.http {
        let last = args.paths.unwrap_or(1) - 1;
        stream
            .write_all(&request(&args.name, &tiny(last, args.paths)))
            .await?;
        stream.flush().await?;
        let answer = http1::answer(stream).await?;
        ensure!(answer.status == 200, "status {}", answer.status);
        return Ok(());
    }
    stream.write_all(&Command::Echo.encode()).await?;
    stream.flush().await?;
    first_message(stream).await?;
    let ping = [b'p'; MESSAGE];
    stream.write_all(&ping).await?;
    stream.flush().await?;
    let mut echo = [0; MESSAGE];
    stream.read_exact(&mut echo).await?;
    ensure!(ping == echo, "the echo differs");
    Ok(())
}

/// The path of the n-th request, whose answer is tiny.
fn tiny(index: usize, paths: Option<usize>) -> String {
    paths.map_or_else(
        || "/tiny".to_owned(),
        |paths| format!("{}tiny", wire::path(index % paths)),
    )
}
