//! The noisy tenant and its clients, a process of their own: one attack until standard input closes, bounded
//! in connections at one time.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http1;
use crate::tls::{self, Groups, client_config};
use crate::wire::{self, Command};

/// Where attackers come from: another address than everybody else's, so that a limit per source can tell.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Time for an attack to be in place.
const IN_PLACE: Duration = Duration::from_mins(1);
/// Before somebody who was refused tries again.
const PAUSE: Duration = Duration::from_millis(5);
/// HTTP/2's client preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window there is.
const WINDOW: u32 = (1 << 31) - 1;
/// Requests of one turn on an HTTP/2 connection.
const REQUESTS: u32 = 100;
/// Length of the paths that regular expressions are tried on.
const PATH: usize = 64_000;
/// A slow client's hello is given up after this time, if the proxy has not ended it.
const SLOW: Duration = Duration::from_secs(15);

/// What is done to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// 200 passed-through connections that take all they get.
    Bulk,
    /// Hellos as fast as they are answered; the client does no cryptography.
    Handshakes,
    /// Passed-through connections as fast as their backend answers.
    Tunnels,
    /// Connections that made a request and then do nothing.
    Idle,
    /// 50 HTTP/2 connections ask for 100 large files each and read nothing.
    SlowRead,
    /// 10 HTTP/2 connections make 100 requests and take them back 50 ms later, again and again.
    RapidReset,
    /// Paths of 64,000 bytes for a route with 60 large regular expressions.
    Regex,
    /// 1,000 connections a second send a hello byte by byte.
    SlowHellos,
    /// As `Handshakes`, for a hostname whose key is RSA with 4096 bits.
    Rsa,
}

/// Options of the process.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttackArgs {
    /// What to do.
    #[arg(value_enum)]
    kind: Kind,
    /// The proxy's HTTPS port.
    #[arg(long)]
    target: SocketAddr,
    /// The proxy's port for passthrough.
    #[arg(long)]
    passthrough: SocketAddr,
    /// Hostname to ask for.
    #[arg(long)]
    name: String,
    /// Connections at one time, where the kind does not say how many.
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

/// First line of output: the attack is in place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Connections that stand.
    pub(crate) standing: u64,
}

/// Second line: what was done in all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Connections that were opened.
    pub(crate) opened: u64,
    /// Connections that the proxy refused or ended.
    pub(crate) ended: u64,
    /// Answers, turns, or transfers, as the kind has it.
    pub(crate) turns: u64,
    /// Bytes that were taken.
    pub(crate) bytes: u64,
}

#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    ended: AtomicU64,
    turns: AtomicU64,
    bytes: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

struct Attack {
    args: AttackArgs,
    name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    /// A hello that anybody may send again and again.
    hello: Vec<u8>,
    /// The same, for the hostname that is passed through.
    passed_hello: Vec<u8>,
    counts: Counts,
    /// How many are in place.
    placed: Semaphore,
}

/// Attacks until standard input closes.
pub(crate) fn run(args: &AttackArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = crate::stdin_closed();
    let http1 = client_config(Groups::X25519, false)?;
    let mut http2 = (*http1).clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let attack = Arc::new(Attack {
        name: ServerName::try_from(args.name.clone())?,
        hello: wire::hello(&http1, &args.name, Command::Echo)?,
        passed_hello: wire::hello(&http1, tls::RAW_HOST, Command::Echo)?,
        http1,
        http2: Arc::new(http2),
        args: args.clone(),
        counts: Counts::default(),
        placed: Semaphore::new(0),
    });
    runtime.block_on(async {
        let lanes = match args.kind {
            Kind::Bulk => 200,
            Kind::SlowRead => 50,
            Kind::RapidReset => 10,
            Kind::Regex => 8,
            Kind::SlowHellos => 1,
            Kind::Handshakes | Kind::Tunnels | Kind::Idle | Kind::Rsa => args.connections,
        };
        let opening = Arc::new(Semaphore::new(32));
        for _ in 0..lanes {
            let (attack, opening) = (Arc::clone(&attack), Arc::clone(&opening));
            tokio::spawn(async move { attack.lane(&opening).await });
        }
        let all = u32::try_from(lanes)?;
        // The counts tell of clients that do not get in. They do not hold up the measurement.
        let _ = timeout(IN_PLACE, attack.placed.acquire_many(all)).await;
        let opened = attack.counts.opened.load(Ordering::Relaxed);
        let standing = opened.saturating_sub(attack.counts.ended.load(Ordering::Relaxed));
        println!("{}", serde_json::to_string(&Ready { standing })?);
        ended
            .await
            .context("waiting for the end of standard input")?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = Done {
            opened: get(&attack.counts.opened),
            ended: get(&attack.counts.ended),
            turns: get(&attack.counts.turns),
            bytes: get(&attack.counts.bytes),
        };
        println!("{}", serde_json::to_string(&done)?);
        anyhow::Ok(())
    })?;
    // What is under way is not waited for.
    runtime.shutdown_background();
    Ok(())
}

impl Attack {
    async fn lane(self: Arc<Self>, opening: &Semaphore) {
        let mut is_placed = false;
        let mut place = |attack: &Self| {
            if !std::mem::replace(&mut is_placed, true) {
                attack.placed.add_permits(1);
            }
        };
        loop {
            let result = match self.args.kind {
                Kind::Bulk => self.bulk(&mut place).await,
                Kind::Handshakes | Kind::Rsa => {
                    let target = self.args.target;
                    self.greet(target, &self.hello, &mut place).await
                }
                Kind::Tunnels => {
                    let target = self.args.passthrough;
                    self.greet(target, &self.passed_hello, &mut place).await
                }
                Kind::Idle => self.idle(opening, &mut place).await,
                Kind::SlowRead => self.slow_read(&mut place).await,
                Kind::RapidReset => self.rapid_reset(&mut place).await,
                Kind::Regex => self.regex(&mut place).await,
                Kind::SlowHellos => {
                    place(&self);
                    Arc::clone(&self).slow_hellos().await
                }
            };
            if result.is_err() {
                add(&self.counts.ended, 1);
                sleep(PAUSE).await;
            }
        }
    }

    async fn connect(&self, target: SocketAddr) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((SOURCE, 0)))?;
        let stream = socket.connect(target).await?;
        stream.set_nodelay(true)?;
        add(&self.counts.opened, 1);
        Ok(stream)
    }

    async fn secure(&self, config: &Arc<ClientConfig>) -> Result<TlsStream<TcpStream>> {
        let stream = self.connect(self.args.target).await?;
        let connector = TlsConnector::from(Arc::clone(config));
        let handshake = connector.connect(self.name.clone(), stream);
        Ok(timeout(Duration::from_secs(20), handshake).await??)
    }

    async fn bulk(&self, place: &mut impl FnMut(&Self)) -> Result<()> {
        const DISCARD: usize = 256 << 10;
        let mut stream = self.connect(self.args.passthrough).await?;
        let config = client_config(Groups::X25519, false)?;
        let hello = wire::hello(&config, tls::RAW_HOST, Command::Bulk(1 << 50))?;
        stream.write_all(&hello).await?;
        place(self);
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); DISCARD];
        loop {
            // The kernel drops the bytes.
            let take = || SockRef::from(&stream).recv_with_flags(&mut buffer, libc::MSG_TRUNC);
            match stream.async_io(Interest::READABLE, take).await? {
                0 => bail!("ended"),
                length => add(&self.counts.bytes, length),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends a hello and waits for the first bytes of the answer.
    async fn greet(
        &self,
        target: SocketAddr,
        hello: &[u8],
        place: &mut impl FnMut(&Self),
    ) -> Result<()> {
        let mut stream = self.connect(target).await?;
        // No TIME_WAIT: a flood would run out of ports.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        stream.write_all(hello).await?;
        place(self);
        let mut answer = [0; 4096];
        if timeout(Duration::from_secs(10), stream.read(&mut answer)).await?? == 0 {
            bail!("refused");
        }
        add(&self.counts.turns, 1);
        Ok(())
    }

    async fn idle(&self, opening: &Semaphore, place: &mut impl FnMut(&Self)) -> Result<()> {
        let turn = opening.acquire().await?;
        let made = async {
            let mut stream = self.secure(&self.http1).await?;
            self.ask(&mut stream, "/small").await?;
            anyhow::Ok(stream)
        };
        let made = made.await;
        drop(turn);
        place(self);
        let mut stream = made?;
        add(&self.counts.turns, 1);
        let mut answer = [0; 64];
        while stream.read(&mut answer).await? > 0 {}
        bail!("ended")
    }

    /// One request on HTTP/1.1 and its answer, whatever it is.
    async fn ask(&self, stream: &mut TlsStream<TcpStream>, path: &str) -> Result<()> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.args.name);
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let answer = http1::answer(stream).await?;
        add(&self.counts.bytes, answer.body.len());
        if answer.field("connection") == Some("close") {
            bail!("ended");
        }
        Ok(())
    }

    async fn slow_read(&self, place: &mut impl FnMut(&Self)) -> Result<()> {
        let mut stream = self.secure(&self.http2).await?;
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(
            4,
            0,
            0,
            &[&[0, 4][..], &WINDOW.to_be_bytes()].concat(),
        ));
        bytes.extend(frame(8, 0, 0, &(WINDOW - 65_535).to_be_bytes()));
        for number in 0..REQUESTS {
            bytes.extend(self.headers(1 + 2 * number, "/file"));
        }
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        place(self);
        add(&self.counts.turns, 1);
        loop {
            sleep(Duration::from_secs(1)).await;
            stream.write_all(&frame(6, 0, 0, &[7; 8])).await?;
            stream.flush().await?;
        }
    }

    async fn rapid_reset(&self, place: &mut impl FnMut(&Self)) -> Result<()> {
        let stream = self.secure(&self.http2).await?;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let read = async {
            let mut answer = vec![0; 16 << 10];
            while reader.read(&mut answer).await? > 0 {}
            anyhow::Ok(())
        };
        tokio::select! {
            ended = read => ended?,
            ended = self.take_back(&mut writer, place) => ended?,
        }
        bail!("ended")
    }

    /// Makes requests and takes them back until the connection ends.
    async fn take_back(
        &self,
        writer: &mut WriteHalf<TlsStream<TcpStream>>,
        place: &mut impl FnMut(&Self),
    ) -> Result<()> {
        writer.write_all(PREFACE).await?;
        writer.write_all(&frame(4, 0, 0, &[])).await?;
        let mut next = 1;
        loop {
            let streams = (0..REQUESTS).map(|number| next + 2 * number);
            let heads: Vec<u8> = streams
                .clone()
                .flat_map(|stream| self.headers(stream, "/late"))
                .collect();
            writer.write_all(&heads).await?;
            writer.flush().await?;
            place(self);
            sleep(Duration::from_millis(50)).await;
            let resets: Vec<u8> = streams
                .flat_map(|stream| frame(3, 0, stream, &8u32.to_be_bytes()))
                .collect();
            writer.write_all(&resets).await?;
            writer.flush().await?;
            next += 2 * REQUESTS;
            add(&self.counts.turns, 1);
        }
    }

    async fn regex(&self, place: &mut impl FnMut(&Self)) -> Result<()> {
        let mut stream = self.secure(&self.http1).await?;
        // Neither all alike nor soon the same again, so that every state of an automaton is met.
        let mut state = 1u32;
        let path: String = (0..PATH)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state >> 31 == 0 { '0' } else { '1' }
            })
            .collect();
        let path = format!("/{path}");
        place(self);
        loop {
            self.ask(&mut stream, &path).await?;
            add(&self.counts.turns, 1);
        }
    }

    async fn slow_hellos(self: Arc<Self>) -> Result<()> {
        /// At one time; more would be given up before the proxy's own deadline.
        const MOST: usize = 12_000;
        let room = Arc::new(Semaphore::new(MOST));
        let mut due = Instant::now();
        loop {
            due += Duration::from_millis(10);
            sleep_until(due).await;
            for _ in 0..10 {
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                    break;
                };
                let attack = Arc::clone(&self);
                tokio::spawn(async move {
                    let _permit = permit;
                    match timeout(SLOW, attack.slow_hello()).await {
                        Ok(Err(_)) => add(&attack.counts.ended, 1),
                        Ok(Ok(())) | Err(_) => add(&attack.counts.turns, 1),
                    }
                });
            }
        }
    }

    async fn slow_hello(&self) -> Result<()> {
        let mut stream = self.connect(self.args.target).await?;
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        let mut answer = [0; 64];
        for byte in &self.hello {
            stream.write_all(&[*byte]).await?;
            match timeout(Duration::from_secs(1), stream.read(&mut answer)).await {
                Ok(Ok(1..)) | Err(_) => {}
                Ok(Ok(0) | Err(_)) => bail!("ended"),
            }
        }
        Ok(())
    }

    /// HEADERS of a whole GET (RFC 7541: fields of the static table, and two literals).
    fn headers(&self, stream: u32, path: &str) -> Vec<u8> {
        let mut block = vec![0x82, 0x87];
        for (index, value) in [(4, path), (1, self.args.name.as_str())] {
            block.push(index);
            block.push(u8::try_from(value.len()).unwrap_or(0x7f) & 0x7f);
            block.extend_from_slice(value.as_bytes());
        }
        frame(1, 5, stream, &block)
    }
}

/// A frame (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
