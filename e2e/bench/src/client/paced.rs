//! Messages and requests that begin at given times, whatever became of those before (an open loop), or as fast as
//! answers come (a closed one). One thread without a runtime, since timers of a runtime count in milliseconds.
//!
//! What has to wait for a free connection counts from when it should have begun, as `wrk2` does it. What begins late
//! because this process was late counts from when it began, and the outcome says how late that was.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::{ClientArgs, LoadOutcome, request, spread, tiny};
use crate::sys;
use crate::tls;
use crate::web::{BINARY, FROM_CLIENT, FROM_SERVER, PAYLOAD};
use crate::wire::{self, Command, MESSAGE};

/// Share of the time that passes before anything counts.
pub(super) const WARM_UP: f64 = 0.1;
/// Longest time that the last answers may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of the load.
#[derive(Args, Clone, Debug)]
pub(crate) struct PacedArgs {
    /// What is sent.
    #[arg(value_enum)]
    kind: Kind,
    /// Connections.
    connections: usize,
    /// How long.
    seconds: f64,
    /// Messages a second [default: the next when an answer came].
    #[arg(long)]
    rate: Option<f64>,
}

/// What is sent, and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// 64 bytes, which come back.
    Message,
    /// An HTTP/1.1 request for a tiny answer.
    Request,
    /// A WebSocket message with 64 bytes, which come back.
    Socket,
}

/// One connection.
struct Lane {
    stream: TcpStream,
    session: Option<ClientConnection>,
    /// From when the message under way counts; none is under way otherwise.
    since: Option<Instant>,
    got: Vec<u8>,
}

/// Makes the load.
pub(super) fn run(args: &ClientArgs, paced: &PacedArgs) -> Result<LoadOutcome> {
    ensure!(paced.connections > 0, "no connections");
    sys::wake_in_time();
    let config = tls::client_config(args.groups, false)?;
    let lanes = (0..paced.connections).map(|_| Lane::open(args, paced.kind, &config));
    let mut clock = Clock {
        args,
        kind: paced.kind,
        lanes: lanes.collect::<Result<_>>()?,
        begun: 0,
        times: Vec::new(),
        late: Vec::new(),
    };
    let begin = Instant::now();
    let counts = begin + Duration::from_secs_f64(paced.seconds * WARM_UP);
    let end = begin + Duration::from_secs_f64(paced.seconds);
    match paced.rate {
        Some(rate) => {
            ensure!(rate > 0.0, "a rate of nothing");
            clock.open_loop(rate, [begin, counts, end])?;
        }
        None => clock.closed_loop([begin, counts, end])?,
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Those of the warm-up are answered too, and cost CPU.
    let answered = clock.begun;
    clock.times.sort_by(f64::total_cmp);
    clock.late.sort_by(f64::total_cmp);
    Ok(LoadOutcome {
        seconds,
        connections: paced.connections,
        answered,
        p50: percentile(&clock.times, 50),
        p99: percentile(&clock.times, 99),
        late: percentile(&clock.late, 99),
        ..LoadOutcome::default()
    })
}

struct Clock<'a> {
    args: &'a ClientArgs,
    kind: Kind,
    lanes: Vec<Lane>,
    begun: usize,
    /// Microseconds to each answer that counts.
    times: Vec<f64>,
    /// Microseconds that this process was late.
    late: Vec<f64>,
}

impl Clock<'_> {
    fn closed_loop(&mut self, [_, counts, end]: [Instant; 3]) -> Result<()> {
        for lane in 0..self.lanes.len() {
            self.begin(lane, Instant::now())?;
        }
        while Instant::now() < end {
            for lane in self.answered(PATIENCE, counts)? {
                self.begin(lane, Instant::now())?;
            }
        }
        self.rest(counts)
    }

    fn open_loop(&mut self, rate: f64, [begin, counts, end]: [Instant; 3]) -> Result<()> {
        let every = Duration::from_secs_f64(1.0 / rate);
        let mut free: Vec<usize> = (0..self.lanes.len()).collect();
        let mut waiting: VecDeque<Instant> = VecDeque::new();
        let mut next = begin;
        loop {
            let now = Instant::now();
            while next <= now && next < end {
                match free.pop() {
                    Some(lane) => {
                        let from = Instant::now();
                        if next >= counts {
                            self.late.push(microseconds(from - next));
                        }
                        self.begin(lane, from)?;
                    }
                    None => waiting.push_back(next),
                }
                next += every;
            }
            if next >= end && waiting.is_empty() {
                return self.rest(counts);
            }
            // What waits at the end is done all the same: that it came late is what is measured.
            ensure!(
                now < end + PATIENCE,
                "the proxy does not carry the rate: {} messages wait",
                waiting.len()
            );
            let due = if next < end { next } else { end + PATIENCE };
            let wait = due.saturating_duration_since(Instant::now());
            for lane in self.answered(wait, counts)? {
                match waiting.pop_front() {
                    Some(due) => self.begin(lane, due)?,
                    None => free.push(lane),
                }
            }
        }
    }

    fn begin(&mut self, lane: usize, since: Instant) -> Result<()> {
        let index = self.begun;
        self.begun += 1;
        let message = match self.kind {
            Kind::Message => vec![b'm'; MESSAGE],
            Kind::Socket => socket_message(),
            Kind::Request => {
                let args = self.args;
                let host = args
                    .hosts
                    .map_or_else(|| args.name.clone(), |hosts| spread(index, hosts));
                request(&host, &tiny(index, args.paths))
            }
        };
        let lane = self.lanes.get_mut(lane).context("no such lane")?;
        lane.since = Some(since);
        lane.send(&message)
    }

    /// Waits for what comes, and returns the lanes whose answer is there.
    fn answered(&mut self, wait: Duration, counts: Instant) -> Result<Vec<usize>> {
        let busy: Vec<usize> = (0..self.lanes.len())
            .filter(|lane| self.lanes[*lane].since.is_some())
            .collect();
        let mut sockets: Vec<libc::pollfd> = busy
            .iter()
            .map(|lane| libc::pollfd {
                fd: self.lanes[*lane].stream.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        sys::wait_readable(&mut sockets, wait)?;
        let ready = busy.into_iter().zip(sockets);
        let ready = ready.filter(|(_, socket)| socket.revents != 0);
        let mut done = Vec::new();
        for (index, _) in ready {
            let lane = &mut self.lanes[index];
            if lane.receive(self.kind)?
                && let Some(since) = lane.since.take()
            {
                if since >= counts {
                    self.times.push(microseconds(since.elapsed()));
                }
                done.push(index);
            }
        }
        Ok(done)
    }

    /// The last answers.
    fn rest(&mut self, counts: Instant) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.lanes.iter().any(|lane| lane.since.is_some()) {
            self.answered(Duration::from_millis(10), counts)?;
            ensure!(Instant::now() < deadline, "the last answers do not come");
        }
        Ok(())
    }
}

impl Lane {
    /// Connects, and has the answer to what comes first.
    fn open(args: &ClientArgs, kind: Kind, config: &Arc<ClientConfig>) -> Result<Self> {
        let mut stream = TcpStream::connect(args.target).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut session = None;
        if args.tls {
            let name = ServerName::try_from(args.name.clone())?;
            let mut new = ClientConnection::new(Arc::clone(config), name)?;
            while new.is_handshaking() {
                new.complete_io(&mut stream).context("TLS handshake")?;
            }
            session = Some(new);
        }
        let first = match kind {
            Kind::Message if args.tls || args.plain => {
                Some((Command::Echo.encode().to_vec(), kind))
            }
            Kind::Message => {
                let hello = wire::hello(config, &args.name, Command::Echo)?;
                Some((hello, kind))
            }
            // The end of the head is the end of this answer, too.
            Kind::Socket => {
                let head = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                            sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
                let name = &args.name;
                let text = format!("GET /socket HTTP/1.1\r\nhost: {name}\r\n{head}");
                Some((text.into_bytes(), Kind::Request))
            }
            Kind::Request => None,
        };
        stream.set_nonblocking(true)?;
        let mut lane = Self {
            stream,
            session,
            since: None,
            got: Vec::new(),
        };
        if let Some((first, answer)) = first {
            lane.send(&first)?;
            let deadline = Instant::now() + PATIENCE;
            while !lane.receive(answer)? {
                let mut socket = [libc::pollfd {
                    fd: lane.stream.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                }];
                sys::wait_readable(&mut socket, PATIENCE)?;
                ensure!(Instant::now() < deadline, "no first answer");
            }
        }
        Ok(lane)
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        // Messages are small, and nothing of the one before is left: the socket has room.
        match &mut self.session {
            None => self.stream.write_all(message).context("sending"),
            Some(session) => {
                session.writer().write_all(message)?;
                while session.wants_write() {
                    session.write_tls(&mut self.stream).context("sending")?;
                }
                Ok(())
            }
        }
    }

    /// Reads what is there; whether it is a whole answer.
    fn receive(&mut self, kind: Kind) -> Result<bool> {
        let mut buffer = [0; 4096];
        loop {
            let read = match &mut self.session {
                None => self.stream.read(&mut buffer),
                Some(session) => secure(session, &mut self.stream, &mut buffer),
            };
            match read {
                Ok(0) => bail!("the connection ended"),
                Ok(length) => self.got.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("reading an answer"),
            }
            let length = match kind {
                Kind::Message => Some(MESSAGE),
                Kind::Socket => Some(FROM_SERVER),
                Kind::Request => http_length(&self.got)?,
            };
            if length.is_some_and(|length| self.got.len() >= length) {
                ensure!(length == Some(self.got.len()), "more than one answer");
                self.got.clear();
                return Ok(true);
            }
        }
    }
}

/// Reads what is decrypted, or decrypts what is there.
fn secure(
    session: &mut ClientConnection,
    stream: &mut TcpStream,
    buffer: &mut [u8],
) -> io::Result<usize> {
    loop {
        match session.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        if session.read_tls(stream)? == 0 {
            return Ok(0);
        }
        session.process_new_packets().map_err(io::Error::other)?;
    }
}

/// Length of the answer that begins here, if its head has ended.
fn http_length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(matches!(status, "200" | "101"), "status {status}");
    let mut length = 0;
    for line in head.lines().skip(1) {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    Ok(Some(end + 4 + length))
}

/// A message with a mask that changes nothing.
fn socket_message() -> Vec<u8> {
    let mut message = vec![b'm'; FROM_CLIENT];
    message[..2].copy_from_slice(&[BINARY, 0x80 | u8::try_from(PAYLOAD).unwrap_or_default()]);
    message[2..6].fill(0);
    message
}

pub(super) fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Of sorted figures; 0 of none.
pub(super) fn percentile(sorted: &[f64], share: usize) -> f64 {
    let index = sorted.len() * share / 100;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_length_once_its_head_has_ended() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(http_length(bytes).unwrap(), Some(bytes.len()));
        assert_eq!(http_length(&bytes[..30]).unwrap(), None);
        assert!(http_length(b"HTTP/1.1 503 Busy\r\n\r\n").is_err());
    }
}
