//! Bulk transfers: blocking connections, a thread for each direction of each.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use socket2::SockRef;

use super::{ClientArgs, Direction, LoadOutcome};
use crate::sys;
use crate::tls;
use crate::wire::{self, Command};

/// How much the kernel is asked to discard at once.
const DISCARD: usize = 1 << 20;
/// What has to be there for a reader to be woken.
const WAKE: u32 = 256 << 10;
/// How much is written at once.
const PIECE: usize = 256 << 10;

/// Moves so many bytes on each of so many connections.
pub(super) fn run(
    args: &ClientArgs,
    direction: Direction,
    connections: usize,
    bytes: u64,
) -> Result<LoadOutcome> {
    ensure!(
        !args.tls || direction != Direction::Both,
        "no two directions at once over TLS"
    );
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(args.limit);
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let args = args.clone();
            thread::spawn(move || one(&args, direction, bytes, deadline))
        })
        .collect();
    for thread in threads {
        joined(thread.join())?;
    }
    let each = match direction {
        Direction::Down | Direction::Up => bytes,
        Direction::Both => 2 * bytes,
    };
    Ok(LoadOutcome {
        seconds: begin.elapsed().as_secs_f64(),
        connections,
        bytes: each * connections as u64,
        ..LoadOutcome::default()
    })
}

fn joined(result: thread::Result<Result<()>>) -> Result<()> {
    result.map_err(|_| anyhow::anyhow!("a client thread panicked"))?
}

/// One connection, from its first byte to its last.
fn one(args: &ClientArgs, direction: Direction, bytes: u64, deadline: Instant) -> Result<()> {
    let command = match direction {
        Direction::Down => Command::Bulk(bytes),
        Direction::Up => Command::Sink(bytes),
        Direction::Both => Command::Both(bytes),
    };
    let (mut stream, session) = open(args, command)?;
    match direction {
        Direction::Down => receive(args, &stream, bytes, deadline),
        Direction::Up => {
            if let Some(mut session) = session {
                let mut secure = rustls::Stream::new(&mut session, &mut stream);
                send(&mut secure, bytes, deadline)?;
                confirmed(&mut secure)
            } else {
                send(&mut stream, bytes, deadline)?;
                confirmed(&mut stream)
            }
        }
        Direction::Both => {
            let mut writer = stream.try_clone()?;
            let sender = thread::spawn(move || send(&mut writer, bytes, deadline));
            let received = receive_open(&stream, bytes, deadline);
            joined(sender.join())?;
            received?;
            say_no_more(&stream)
        }
    }
}

/// Nothing more comes from here. A proxy may have ended all of the connection by now.
fn say_no_more(stream: &TcpStream) -> Result<()> {
    match stream.shutdown(Shutdown::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => Ok(other?),
    }
}

/// The backend has everything.
fn confirmed(stream: &mut impl Read) -> Result<()> {
    let mut byte = [0];
    let read = stream.read_exact(&mut byte);
    read.context("waiting for the backend to have everything")
}

/// A blocking connection that has sent its command.
fn open(args: &ClientArgs, command: Command) -> Result<(TcpStream, Option<ClientConnection>)> {
    let mut stream = TcpStream::connect(args.target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(args.limit)))?;
    stream.set_write_timeout(Some(Duration::from_secs(args.limit)))?;
    if args.plain {
        stream.write_all(&command.encode())?;
        return Ok((stream, None));
    }
    let config = tls::client_config(args.groups, false)?;
    if !args.tls {
        stream.write_all(&wire::hello(&config, &args.name, command)?)?;
        return Ok((stream, None));
    }
    let mut session = ClientConnection::new(config, ServerName::try_from(args.name.clone())?)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    session.writer().write_all(&command.encode())?;
    while session.wants_write() {
        session.write_tls(&mut stream)?;
    }
    Ok((stream, Some(session)))
}

fn send(stream: &mut impl Write, bytes: u64, deadline: Instant) -> Result<()> {
    let piece = vec![0xa5; PIECE];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        stream.write_all(&piece[..length]).context("sending")?;
        left -= length as u64;
        ensure!(Instant::now() < deadline, "the client's time limit passed");
    }
    Ok(stream.flush()?)
}

fn receive(args: &ClientArgs, stream: &TcpStream, bytes: u64, deadline: Instant) -> Result<()> {
    let got = discard(stream, bytes, true, deadline)?;
    // What a terminating proxy sends is a little longer than the payload.
    let whole = if args.tls { got >= bytes } else { got == bytes };
    ensure!(whole, "the transfer ended after {got} of {bytes} bytes");
    Ok(())
}

/// Does not tell the other side that nothing more comes, because more does.
fn receive_open(stream: &TcpStream, bytes: u64, deadline: Instant) -> Result<()> {
    let got = discard(stream, bytes, false, deadline)?;
    ensure!(
        got == bytes,
        "the transfer ended after {got} of {bytes} bytes"
    );
    Ok(())
}

/// Reads to the end without copying: with `MSG_TRUNC` the kernel drops the bytes, so that the client
/// takes as little as possible of the core it shares with the backend. It is woken for large pieces
/// only: on loopback the proxy pays for waking its client, which it does not across a network.
///
/// Once `whole` bytes came it says that it has no more to say if it may, as some proxies keep the connection until
/// then; otherwise it leaves the rest.
fn discard(stream: &TcpStream, whole: u64, ends: bool, deadline: Instant) -> Result<u64> {
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
                    if !ends {
                        return Ok(total);
                    }
                    say_no_more(stream)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading bulk data"),
        }
        ensure!(Instant::now() < deadline, "the client's time limit passed");
    }
}
