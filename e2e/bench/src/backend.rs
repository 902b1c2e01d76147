//! The backend process: one thread that answers commands on three loopback ports until its standard
//! input closes.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::tls;
use crate::wire::{COMMAND, Command, MESSAGE};

/// Size of one write of bulk data.
const CHUNK: usize = 256 * 1024;

/// Options of the backend process.
#[derive(Args, Debug)]
pub(crate) struct BackendArgs {
    /// Certificate of the TLS port, DER.
    #[arg(long)]
    certificate: PathBuf,
    /// Key of the TLS port, PKCS#8 DER.
    #[arg(long)]
    key: PathBuf,
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
}

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
        let (raw, plain, secure) = (listen()?, listen()?, listen()?);
        let ports = Ports {
            raw: raw.local_addr()?,
            plain: plain.local_addr()?,
            tls: secure.local_addr()?,
        };
        println!("{}", serde_json::to_string(&ports)?);
        tokio::spawn(accept(raw, |stream| async move { serve_raw(stream).await }));
        tokio::spawn(accept(
            plain,
            |stream| async move { serve_plain(stream).await },
        ));
        tokio::spawn(accept(secure, move |stream| {
            let acceptor = acceptor.clone();
            async move { serve_plain(acceptor.accept(stream).await?).await }
        }));
        ended.await.context("waiting for the end of standard input")
    })
}

fn listen() -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

async fn accept<F, S>(listener: TcpListener, serve: S)
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

async fn serve_raw(mut stream: TcpStream) -> io::Result<()> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).await?;
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    let mut record = vec![0; header.len() + length];
    record[..header.len()].copy_from_slice(&header);
    stream.read_exact(&mut record[header.len()..]).await?;
    let command = Command::of_hello(&record)?;
    drop(record);
    answer(stream, command).await
}

async fn serve_plain(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut command = [0; COMMAND];
    stream.read_exact(&mut command).await?;
    answer(stream, Command::decode(command)?).await
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    command: Command,
) -> io::Result<()> {
    match command {
        Command::Echo => {
            let mut message = [b'm'; MESSAGE];
            stream.write_all(&message).await?;
            stream.flush().await?;
            loop {
                let length = stream.read(&mut message).await?;
                if length == 0 {
                    break;
                }
                stream.write_all(&message[..length]).await?;
                stream.flush().await?;
            }
        }
        Command::Bulk(mut left) => {
            let chunk = vec![0xa5; CHUNK];
            while left > 0 {
                let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                stream.write_all(&chunk[..length]).await?;
                left -= length as u64;
            }
        }
    }
    stream.shutdown().await
}
