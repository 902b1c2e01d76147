//! The client process: makes one kind of load against one address, prints one JSON line, ends.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::sys;
use crate::tls::{self, Groups};
use crate::wire::{self, Command, MESSAGE};

/// How much the kernel is asked to discard at once in a bulk transfer.
const DISCARD: usize = 1 << 20;
/// What has to be there for a bulk reader to be woken.
const WAKE: u32 = 256 << 10;

/// Options of the client process.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Whom to connect to.
    #[arg(long)]
    target: SocketAddr,
    /// Server name to ask for; with --hosts, ignored.
    #[arg(long, default_value = tls::RAW_HOST)]
    name: String,
    /// Make real TLS handshakes with the target, for a proxy that terminates.
    #[arg(long)]
    tls: bool,
    /// Offer the session tickets that came with earlier connections.
    #[arg(long)]
    resume: bool,
    /// Key exchange to offer.
    #[arg(long, value_enum, default_value = "x25519")]
    groups: Groups,
    /// Spread connections over so many terminated hosts.
    #[arg(long)]
    hosts: Option<usize>,
    /// Give up after so many seconds.
    #[arg(long, default_value_t = 60)]
    limit: u64,
    #[command(subcommand)]
    load: Load,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Load {
    /// Fetch so many bytes on each of so many connections at once.
    Bulk {
        /// Connections at once.
        connections: usize,
        /// Bytes on each.
        bytes: u64,
    },
    /// Connect, exchange one message, close; so many times.
    Connect {
        /// Connections in all.
        count: usize,
        /// Connections at once.
        concurrency: usize,
    },
    /// So many messages over so many connections, on each the next when the one before came back.
    RoundTrips {
        /// Messages.
        count: usize,
        /// Connections at once.
        connections: usize,
    },
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

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Wall time of the load, seconds.
    pub(crate) seconds: f64,
    /// Connections made.
    pub(crate) connections: usize,
    /// Payload received, bytes.
    pub(crate) bytes: u64,
    /// TLS handshakes that resumed a session.
    pub(crate) resumed: usize,
    /// Median round trip, microseconds.
    pub(crate) p50: f64,
    /// 99th percentile of round trips, microseconds.
    pub(crate) p99: f64,
}

/// Makes the load within its limit and prints the outcome.
pub(crate) fn run(args: &ClientArgs) -> Result<()> {
    let outcome = match args.load {
        Load::Bulk { connections, bytes } => Some(bulk(args, connections, bytes)?),
        Load::Connect { .. } | Load::RoundTrips { .. } | Load::Idle { .. } | Load::Check { .. } => {
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
                        Load::RoundTrips { count, connections } => {
                            round_trips(args, *count, *connections).await.map(Some)
                        }
                        Load::Check { root } => check(args, root).await.map(Some),
                        Load::Idle { connections } => idle(args, *connections, ended).await,
                        Load::Bulk { .. } => {
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

/// A blocking connection that has sent its command.
fn open(args: &ClientArgs, command: Command) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(args.target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(args.limit)))?;
    let config = tls::client_config(args.groups, false)?;
    if args.tls {
        let mut session = ClientConnection::new(config, ServerName::try_from(args.name.clone())?)?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        session.writer().write_all(&command.encode())?;
        while session.wants_write() {
            session.write_tls(&mut stream)?;
        }
    } else {
        stream.write_all(&wire::hello(&config, &args.name, command)?)?;
    }
    Ok(stream)
}

fn bulk(args: &ClientArgs, connections: usize, bytes: u64) -> Result<Outcome> {
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(args.limit);
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let args = args.clone();
            thread::spawn(move || -> Result<()> {
                let stream = open(&args, Command::Bulk(bytes))?;
                let got = discard(&stream, bytes, deadline)?;
                // What a terminating proxy sends is a little longer than the payload.
                let whole = if args.tls { got >= bytes } else { got == bytes };
                ensure!(whole, "the transfer ended after {got} of {bytes} bytes");
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client thread panicked"))??;
    }
    Ok(Outcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections,
        bytes: bytes * connections as u64,
        ..Outcome::default()
    })
}

/// Reads to the end without copying: with `MSG_TRUNC` the kernel drops the bytes, so that the client
/// takes as little as possible of the core it shares with the backend. It is woken for large pieces
/// only: on loopback the proxy pays for waking its client, which it does not across a network.
///
/// Once `whole` bytes came it says that it has no more to say, as some proxies keep the connection
/// until then.
fn discard(stream: &TcpStream, whole: u64, deadline: Instant) -> Result<u64> {
    let socket = SockRef::from(stream);
    sys::set_low_water(stream, WAKE)?;
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); DISCARD];
    let mut total = 0;
    loop {
        match socket.recv_with_flags(&mut buffer, libc::MSG_TRUNC) {
            Ok(0) => return Ok(total),
            Ok(length) => {
                let before = total;
                total += length as u64;
                let tail = whole.saturating_sub(2 * u64::from(WAKE));
                if before < tail && total >= tail {
                    // The rest may be less than would wake us.
                    sys::set_low_water(stream, 1)?;
                }
                if before < whole && total >= whole {
                    stream.shutdown(Shutdown::Write)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading bulk data"),
        }
        ensure!(Instant::now() < deadline, "the client's time limit passed");
    }
}

async fn round_trips(args: &ClientArgs, count: usize, connections: usize) -> Result<Outcome> {
    let dialer = Dialer::new(args)?;
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..connections {
        let dialer = Arc::clone(&dialer);
        tasks.spawn(async move {
            let Open::Raw(mut stream) = dialer.open(lane).await?.0 else {
                bail!("round trips are measured on passthrough")
            };
            let mut message = [0; MESSAGE];
            let mut times = Vec::with_capacity(count / connections + 1);
            for _ in (lane..count).step_by(connections) {
                let sent = Instant::now();
                stream.write_all(&message).await?;
                stream.read_exact(&mut message).await?;
                times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        });
    }
    let mut times = Vec::with_capacity(count);
    while let Some(lane) = tasks.join_next().await {
        times.extend(lane??);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    Ok(Outcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections,
        p50: at(50),
        p99: at(99),
        ..Outcome::default()
    })
}

/// What one asynchronous connection needs, shared by all of them.
struct Dialer {
    target: SocketAddr,
    name: String,
    hosts: Option<usize>,
    hello: Option<Vec<u8>>,
    config: Arc<ClientConfig>,
}

/// A connection that exchanged its first message.
enum Open {
    Raw(tokio::net::TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>),
}

impl Dialer {
    fn new(args: &ClientArgs) -> Result<Arc<Self>> {
        let config = tls::client_config(args.groups, args.resume)?;
        let hello = if args.tls {
            None
        } else {
            // Browsers send the hybrid share, so that a hello spans two segments on a real network.
            let hybrid = tls::client_config(Groups::Hybrid, false)?;
            Some(wire::hello(&hybrid, &args.name, Command::Echo)?)
        };
        Ok(Arc::new(Self {
            target: args.target,
            name: args.name.clone(),
            hosts: args.hosts,
            hello,
            config,
        }))
    }

    fn name(&self, index: usize) -> String {
        // The stride is a prime far from any power, so that neighbours in time are not neighbours in
        // the tables.
        self.hosts.map_or_else(
            || self.name.clone(),
            |hosts| tls::host(index.wrapping_mul(7919) % hosts),
        )
    }

    async fn open(&self, index: usize) -> Result<(Open, bool)> {
        let mut stream = tokio::net::TcpStream::connect(self.target)
            .await
            .context("connecting")?;
        stream.set_nodelay(true)?;
        if let Some(hello) = &self.hello {
            stream.write_all(hello).await?;
            first_message(&mut stream).await?;
            return Ok((Open::Raw(stream), false));
        }
        let name = ServerName::try_from(self.name(index))?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let mut stream = connector
            .connect(name, stream)
            .await
            .context("TLS handshake")?;
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        stream.write_all(&Command::Echo.encode()).await?;
        stream.flush().await?;
        first_message(&mut stream).await?;
        Ok((Open::Tls(Box::new(stream)), resumed))
    }
}

async fn first_message(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<()> {
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

async fn connect(args: &ClientArgs, count: usize, concurrency: usize) -> Result<Outcome> {
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
    Ok(Outcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: count,
        resumed,
        ..Outcome::default()
    })
}

/// Prints its outcome while it holds the connections, so there is none at the end.
async fn idle(
    args: &ClientArgs,
    count: usize,
    ended: crate::StdinClosed,
) -> Result<Option<Outcome>> {
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
    let outcome = Outcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: held.len(),
        ..Outcome::default()
    };
    println!("{}", serde_json::to_string(&outcome)?);
    ended
        .await
        .context("waiting for the end of standard input")?;
    Ok(None)
}

async fn check(args: &ClientArgs, root: &PathBuf) -> Result<Outcome> {
    let root = std::fs::read(root).context("reading the root")?;
    let connector = TlsConnector::from(tls::verifying_config(&root)?);
    let stream = tokio::net::TcpStream::connect(args.target).await?;
    let begin = Instant::now();
    let mut stream = connector
        .connect(ServerName::try_from(args.name.clone())?, stream)
        .await?;
    stream.write_all(&Command::Echo.encode()).await?;
    stream.flush().await?;
    first_message(&mut stream).await?;
    let ping = [b'p'; MESSAGE];
    stream.write_all(&ping).await?;
    stream.flush().await?;
    let mut echo = [0; MESSAGE];
    stream.read_exact(&mut echo).await?;
    ensure!(ping == echo, "the echo differs");
    stream.shutdown().await?;
    Ok(Outcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections: 1,
        ..Outcome::default()
    })
}
