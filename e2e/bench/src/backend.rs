//! The backend process: one thread that answers commands on loopback ports, and another one for datagrams, until its
//! standard input closes.

pub(crate) mod datagrams;
mod failing;

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockRef, Socket, Type};
use std::net::{IpAddr, SocketAddr};
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub(crate) use self::failing::SEEN;
use crate::grpc;
use crate::sys;
use crate::tls;
use crate::wire::{COMMAND, Command, MESSAGE};

/// Size of the file that bulk data is sent from, over and over: more than a core's own cache.
const CHUNK: usize = 16 << 20;

/// How much the kernel is asked to drop at once.
const DISCARD: usize = 1 << 20;

/// Options of the backend process.
#[derive(Args, Debug)]
pub(crate) struct BackendArgs {
    /// Certificate of the TLS port, DER.
    #[arg(long)]
    certificate: PathBuf,
    /// Key of the TLS port, PKCS#8 DER.
    #[arg(long)]
    key: PathBuf,
    /// File that bulk data is sent from, made by [`data`].
    #[arg(long)]
    data: PathBuf,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1")]
    loopback: IpAddr,
}

/// Makes the file of bulk data.
pub(crate) fn data(path: &Path) -> io::Result<()> {
    fs::write(path, vec![0xa5; CHUNK])
}

/// Where the backend listens; its first line of output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ports {
    /// Takes a hello that carries a command, and answers in raw bytes.
    pub(crate) raw: SocketAddr,
    /// Takes a plain command.
    pub(crate) plain: SocketAddr,
    /// Terminates TLS itself and takes a command inside.
    pub(crate) tls: SocketAddr,
    /// Takes calls of gRPC.
    pub(crate) grpc: SocketAddr,
    /// Sends datagrams back.
    pub(crate) datagrams: SocketAddr,
    /// Answer every request of HTTP with 503.
    pub(crate) failing: [SocketAddr; FAILING],
}

/// Endpoints that fail: one for each try of a request, since some proxies try each endpoint only once.
const FAILING: usize = 4;

/// Serves until standard input closes.
pub(crate) fn run(args: &BackendArgs) -> Result<()> {
    let acceptor = TlsAcceptor::from(tls::server_config(
        fs::read(&args.certificate)?,
        fs::read(&args.key)?,
    )?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = crate::stdin_closed();
    runtime.block_on(async move {
        // Bulk data goes out as from a server of static files, without a copy: the core that backend and
        // client share must not be what limits a proxy.
        let bulk = Arc::new(File::open(&args.data)?);
        let listen = || listen(args.loopback);
        let (raw, plain, secure, calls) = (listen()?, listen()?, listen()?, listen()?);
        let seen = Arc::new(AtomicU64::new(0));
        let mut failing = [raw.local_addr()?; FAILING];
        for address in &mut failing {
            let listener = listen()?;
            *address = listener.local_addr()?;
            let seen = Arc::clone(&seen);
            tokio::spawn(accept(listener, move |stream| {
                failing::serve(stream, Arc::clone(&seen))
            }));
        }
        let ports = Ports {
            raw: raw.local_addr()?,
            plain: plain.local_addr()?,
            tls: secure.local_addr()?,
            grpc: calls.local_addr()?,
            datagrams: datagrams::serve(SocketAddr::new(args.loopback, 0))?,
            failing,
        };
        println!("{}", serde_json::to_string(&ports)?);
        tokio::spawn(accept(calls, grpc::serve));
        let data = Arc::clone(&bulk);
        tokio::spawn(accept(raw, move |stream| {
            serve_raw(stream, Arc::clone(&data))
        }));
        tokio::spawn(accept(plain, move |stream| {
            serve_plain(stream, Arc::clone(&bulk))
        }));
        tokio::spawn(accept(secure, move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let mut stream = acceptor.accept(stream).await?;
                match command(&mut stream).await? {
                    Command::Echo => echo(stream).await,
                    Command::Bulk(_) | Command::Sink(_) | Command::Both(_) => {
                        Err(io::ErrorKind::Unsupported.into())
                    }
                }
            }
        }));
        ended.await.context("waiting for the end of standard input")
    })
}

/// A loopback port with a long queue.
pub(crate) fn listen(loopback: IpAddr) -> io::Result<TcpListener> {
    let address = SocketAddr::new(loopback, 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Serves every connection in a task of its own.
pub(crate) async fn accept<F, S>(listener: TcpListener, serve: S)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
    S: Fn(TcpStream) -> F,
{
    loop {
        // Out of descriptors or an aborted connection: the client notices and reports.
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(serve(stream));
        }
    }
}

async fn serve_raw(mut stream: TcpStream, data: Arc<File>) -> io::Result<()> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).await?;
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    let mut record = vec![0; header.len() + length];
    record[..header.len()].copy_from_slice(&header);
    stream.read_exact(&mut record[header.len()..]).await?;
    let command = Command::of_hello(&record)?;
    drop(record);
    answer(stream, command, &data).await
}

async fn serve_plain(mut stream: TcpStream, data: Arc<File>) -> io::Result<()> {
    let command = command(&mut stream).await?;
    answer(stream, command, &data).await
}

async fn command(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Command> {
    let mut command = [0; COMMAND];
    stream.read_exact(&mut command).await?;
    Command::decode(command)
}

async fn answer(mut stream: TcpStream, command: Command, data: &File) -> io::Result<()> {
    match command {
        Command::Echo => return echo(stream).await,
        Command::Bulk(count) => source(&stream, data, count).await?,
        Command::Sink(count) => {
            sink(&stream, count).await?;
            stream.write_all(b"d").await?;
        }
        Command::Both(count) => {
            tokio::try_join!(source(&stream, data, count), sink(&stream, count))?;
        }
    }
    stream.shutdown().await
}

async fn source(stream: &TcpStream, data: &File, mut left: u64) -> io::Result<()> {
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let send = || sys::send_file(stream, data, length);
        left -= stream.async_io(Interest::WRITABLE, send).await? as u64;
    }
    Ok(())
}

/// Has the kernel drop what comes.
async fn sink(stream: &TcpStream, mut left: u64) -> io::Result<()> {
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); DISCARD];
    let socket = SockRef::from(stream);
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(DISCARD).min(DISCARD);
        let receive = || socket.recv_with_flags(&mut buffer[..length], libc::MSG_TRUNC);
        let received = stream.async_io(Interest::READABLE, receive).await?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= received as u64;
    }
    Ok(())
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut message = [b'm'; MESSAGE];
    stream.write_all(&message).await?;
    stream.flush().await?;
    loop {
        let length = stream.read(&mut message).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&message[..length]).await?;
        stream.flush().await?;
    }
}
