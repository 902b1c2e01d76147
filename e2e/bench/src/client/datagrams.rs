//! Sends datagrams that the backend sends back: a fixed number under way at a time, or a given number each second. It
//! is one thread without a runtime, as for messages.
//!
//! Each datagram carries a number. So the client knows which are lost, and does not take one that comes late for another.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::paced::{WARM_UP, microseconds, percentile};
use super::{ClientArgs, LoadOutcome};
use crate::backend::datagrams::LARGEST;
use crate::sys;

/// A datagram that has not come back after this time counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// The most that are sent in a row when this process is late. The queue of a socket might not hold more, and the proxy
/// would be blamed for the loss.
const BURST: u32 = 32;
/// Bytes of the number.
const NUMBER: usize = size_of::<u64>();

/// Options of the load.
#[derive(Args, Clone, Debug)]
pub(crate) struct DatagramArgs {
    /// Length of each.
    bytes: usize,
    /// Sessions, each from a port of its own, in turn.
    sessions: usize,
    /// How long.
    seconds: f64,
    /// Datagrams under way at a time, where there is no rate.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Datagrams a second, whatever comes back [default: the next when one came back].
    #[arg(long)]
    rate: Option<f64>,
    /// End once each session had one.
    #[arg(long, conflicts_with = "rate")]
    once: bool,
}

/// Makes the load.
pub(super) fn run(args: &ClientArgs, load: &DatagramArgs) -> Result<LoadOutcome> {
    ensure!(load.sessions > 0 && load.window > 0, "nothing to send");
    ensure!((NUMBER..=LARGEST).contains(&load.bytes), "such a length");
    sys::wake_in_time();
    let warm_up = Duration::from_secs_f64(load.seconds * WARM_UP);
    let mut exchange = Exchange::new(args.target, load.sessions, load.bytes, warm_up)?;
    let begin = exchange.last;
    let end = begin + Duration::from_secs_f64(load.seconds);
    match load.rate {
        Some(rate) => {
            ensure!(rate > 0.0, "a rate of nothing");
            exchange.open_loop(rate, begin, end)?;
        }
        None => exchange.closed_loop(load, end)?,
    }
    ensure!(exchange.answered > 0, "no datagram came back");
    exchange.times.sort_by(f64::total_cmp);
    exchange.late.sort_by(f64::total_cmp);
    Ok(LoadOutcome {
        seconds: (exchange.last - begin).as_secs_f64(),
        connections: load.sessions,
        answered: exchange.answered,
        lost: exchange.lost,
        p50: percentile(&exchange.times, 50),
        p99: percentile(&exchange.times, 99),
        late: percentile(&exchange.late, 99),
        ..LoadOutcome::default()
    })
}

fn session(target: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(target.ip(), 0))?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

struct Exchange {
    sockets: Vec<UdpSocket>,
    /// Datagrams under way on each socket.
    pending: Vec<usize>,
    message: Vec<u8>,
    /// Datagrams under way on all of them.
    under_way: usize,
    /// When each was sent, by number. A number's session is its remainder by the number of sessions.
    sent: Vec<Instant>,
    /// Whether each has come back or counts as lost.
    settled: Vec<bool>,
    /// All before this one are settled.
    oldest: usize,
    answered: usize,
    lost: usize,
    /// When the last one came back; the beginning if none has.
    last: Instant,
    /// From when on times count.
    counts: Instant,
    /// Microseconds to each answer that counts.
    times: Vec<f64>,
    /// Microseconds that this process was late.
    late: Vec<f64>,
}

impl Exchange {
    /// Begins now.
    fn new(target: SocketAddr, sessions: usize, bytes: usize, warm_up: Duration) -> Result<Self> {
        let sockets = (0..sessions).map(|_| session(target));
        let sockets = sockets.collect::<Result<_>>()?;
        let now = Instant::now();
        Ok(Self {
            sockets,
            pending: vec![0; sessions],
            message: vec![b'd'; bytes],
            under_way: 0,
            sent: Vec::new(),
            settled: Vec::new(),
            oldest: 0,
            answered: 0,
            lost: 0,
            last: now,
            counts: now + warm_up,
            times: Vec::new(),
            late: Vec::new(),
        })
    }

    fn closed_loop(&mut self, load: &DatagramArgs, end: Instant) -> Result<()> {
        loop {
            while self.under_way < load.window {
                let over = if load.once {
                    self.sent.len() == load.sessions
                } else {
                    Instant::now() >= end
                };
                if over {
                    return self.rest();
                }
                self.send()?;
            }
            self.receive(LOST_AFTER)?;
        }
    }

    fn open_loop(&mut self, rate: f64, begin: Instant, end: Instant) -> Result<()> {
        let every = Duration::from_secs_f64(1.0 / rate);
        let mut next = begin;
        while next < end {
            let now = Instant::now();
            if let Some(earliest) = now.checked_sub(every * BURST) {
                next = next.max(earliest);
            }
            while next <= now && next < end {
                if next >= self.counts {
                    self.late.push(microseconds(now - next));
                }
                self.send()?;
                next += every;
            }
            self.receive(next.saturating_duration_since(Instant::now()))?;
        }
        self.rest()
    }

    /// Waits for those that are still under way.
    fn rest(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.receive(LOST_AFTER)?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let number = self.sent.len();
        let session = number % self.sockets.len();
        self.message[..NUMBER].copy_from_slice(&(number as u64).to_be_bytes());
        self.sent.push(Instant::now());
        self.settled.push(false);
        self.sockets[session]
            .send(&self.message)
            .context("sending a datagram")?;
        self.pending[session] += 1;
        self.under_way += 1;
        Ok(())
    }

    /// Waits until a datagram comes back or the time is over, and gives up those that are lost.
    fn receive(&mut self, wait: Duration) -> Result<()> {
        let busy: Vec<usize> = (0..self.sockets.len())
            .filter(|session| self.pending[*session] > 0)
            .collect();
        let mut polled: Vec<libc::pollfd> = busy
            .iter()
            .map(|session| libc::pollfd {
                fd: self.sockets[*session].as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        sys::wait_readable(&mut polled, wait)?;
        let ready = busy.into_iter().zip(polled);
        for (session, _) in ready.filter(|(_, socket)| socket.revents != 0) {
            self.read(session)?;
        }
        self.give_up(Instant::now());
        Ok(())
    }

    /// Reads what came back in a session.
    fn read(&mut self, session: usize) -> Result<()> {
        let mut buffer = [0; LARGEST];
        while self.pending[session] > 0 {
            let length = match self.sockets[session].recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("receiving a datagram"),
            };
            ensure!(length == self.message.len(), "a datagram of {length} bytes");
            let number = buffer.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let number = usize::try_from(number.context("a datagram without a number")?)?;
            if number % self.sockets.len() != session || number >= self.sent.len() {
                bail!("datagram {number} came back in session {session}");
            }
            if self.settle(number) {
                let sent = self.sent[number];
                self.last = Instant::now();
                self.answered += 1;
                if sent >= self.counts {
                    self.times.push(microseconds(self.last - sent));
                }
            }
        }
        Ok(())
    }

    /// Counts the datagrams as lost that have been under way for too long.
    fn give_up(&mut self, now: Instant) {
        while let Some(sent) = self.sent.get(self.oldest) {
            if !self.settled[self.oldest] {
                if now.saturating_duration_since(*sent) < LOST_AFTER {
                    return;
                }
                self.settle(self.oldest);
                self.lost += 1;
            }
            self.oldest += 1;
        }
    }

    /// Takes the datagram out of those under way. Returns false if it was not among them.
    fn settle(&mut self, number: usize) -> bool {
        let before = std::mem::replace(&mut self.settled[number], true);
        if !before {
            self.pending[number % self.sockets.len()] -= 1;
            self.under_way -= 1;
        }
        !before
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    /// A server that answers each datagram but every fourth, and every third twice.
    fn server() -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; LARGEST];
            for count in 0_usize.. {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                let times = match count {
                    count if count % 4 == 3 => 0,
                    count if count % 3 == 2 => 2,
                    _ => 1,
                };
                for _ in 0..times {
                    socket.send_to(&buffer[..length], from).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn datagrams_that_are_lost_or_answered_twice_are_counted_once() {
        let mut exchange = Exchange::new(server(), 3, 64, Duration::ZERO).unwrap();
        for _ in 0..20 {
            exchange.send().unwrap();
        }
        exchange.rest().unwrap();
        assert_eq!((exchange.answered, exchange.lost), (15, 5));
        assert_eq!(exchange.times.len(), 15);
        assert_eq!((exchange.under_way, exchange.oldest), (0, 20));
    }
}
