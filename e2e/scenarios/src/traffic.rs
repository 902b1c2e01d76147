//! Clients of every kind that go on while something happens, and what came of their requests.
//!
//! Those that arrive do so at a fixed rate, whether or not those before them are done (open loop); those that stay ask
//! again when they were answered (closed loop); those that hold keep one connection open and ask on it now and then.
//! None of them tries anything twice. The one exception is what RFC 9113 asks for: a request that came too late for a GOAWAY,
//! and so was not processed, is sent on a new connection. These are counted by themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::client::{Conversation, Failure, Target};
use crate::clock;
use crate::requests::{Connection, Origin, Version, WebSocket};

/// How many requests a client that stays makes on one connection, before it opens another one: that may lead to
/// another proxy.
const ON_ONE: usize = 200;
/// How often a client that holds a connection asks.
const SOMETIMES: Duration = Duration::from_millis(500);
/// How long a client waits before it comes back after a failure.
const PAUSE: Duration = Duration::from_millis(20);

/// How a client comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// A new connection for each request.
    New(Version),
    /// A new passed-through TLS connection for each request.
    NewPassed,
    /// One request after another on a connection that is kept.
    Kept(Version),
    /// A WebSocket that is held open.
    WebSocket,
    /// A passed-through TLS connection that is held open.
    HeldPassed,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New(Version::One) => "new HTTP/1.1",
            Self::New(Version::Two) => "new HTTP/2",
            Self::NewPassed => "new passed-through TLS",
            Self::Kept(Version::One) => "kept HTTP/1.1",
            Self::Kept(Version::Two) => "kept HTTP/2",
            Self::WebSocket => "held WebSocket",
            Self::HeldPassed => "held passed-through TLS",
        })
    }
}

/// Numbers of requests by their result.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tallies {
    ok: u64,
    /// Those that were sent on another connection, because they came too late for a GOAWAY.
    moved: u64,
    failed: BTreeMap<(Way, String), u64>,
    /// The first ones that failed, at most [`EXAMPLES`].
    examples: Vec<Example>,
}

/// How many of the failures are kept with their times.
const EXAMPLES: usize = 16;

/// One request that failed.
#[derive(Debug, Clone)]
struct Example {
    started: Timestamp,
    ended: Timestamp,
    way: Way,
    host: String,
    failure: Failure,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            started,
            ended,
            way,
            host,
            failure,
        } = self;
        write!(f, "{started} to {ended}: {way} to {host}: {failure:?}")
    }
}

impl Tallies {
    fn add<T>(&mut self, way: Way, host: &str, started: Timestamp, result: Result<T, Failure>) {
        match result {
            Ok(_) => self.ok += 1,
            Err(failure) => {
                let why = match &failure {
                    Failure::Answer(text) | Failure::Tls(text) | Failure::Other(text) => {
                        text.clone()
                    }
                    failure => failure.reason().to_owned(),
                };
                *self.failed.entry((way, why)).or_default() += 1;
                if self.examples.len() < EXAMPLES {
                    self.examples.push(Example {
                        started,
                        ended: clock::now(),
                        way,
                        host: host.to_owned(),
                        failure,
                    });
                }
            }
        }
    }

    /// How many there were.
    pub(crate) fn requests(&self) -> u64 {
        self.ok + self.failed()
    }

    /// How many of them failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Adds those of another time.
    pub(crate) fn merge(&mut self, other: Self) {
        self.ok += other.ok;
        self.moved += other.moved;
        for (what, count) in other.failed {
            *self.failed.entry(what).or_default() += count;
        }
        let room = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// Which failed, and how many of each; then the first ones with their times and everything that is known of them.
    pub(crate) fn reasons(&self) -> String {
        let mut reasons: Vec<String> = self
            .failed
            .iter()
            .map(|((way, why), count)| format!("{count} × {way}: {why}"))
            .collect();
        reasons.extend(self.examples.iter().map(ToString::to_string));
        reasons.join("; ")
    }
}

impl fmt::Display for Tallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {} failed", self.requests(), self.failed())?;
        if self.moved > 0 {
            write!(f, ", {} too late for a GOAWAY and sent again", self.moved)?;
        }
        if self.failed() > 0 {
            write!(f, " [{}]", self.reasons())?;
        }
        Ok(())
    }
}

/// Clients that go on until they are stopped.
pub(crate) struct Clients {
    shared: Shared,
    turn: watch::Sender<usize>,
    running: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
struct Shared {
    tallies: Arc<Mutex<Tallies>>,
    stop: watch::Sender<bool>,
}

impl Shared {
    fn count<T>(&self, way: Way, host: &str, started: Timestamp, result: Result<T, Failure>) {
        self.tallies.lock().add(way, host, started, result);
    }
}

impl Clients {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            shared: Shared {
                tallies: Arc::default(),
                stop: watch::Sender::new(false),
            },
            turn: watch::Sender::new(0),
            running: Vec::new(),
        }
    }

    /// So many a second come, each with a connection and a request.
    pub(crate) fn arrive(&mut self, origin: &Origin, rate: u32) {
        let (way, origin) = (Way::New(origin.version()), origin.clone());
        self.at_rate(way, origin.host.clone(), rate, move || {
            let origin = origin.clone();
            async move { origin.ask().await?.answer().map(drop) }
        });
    }

    /// The same through to the backend's own TLS.
    pub(crate) fn arrive_passed(&mut self, target: &Target, rate: u32) {
        let target = target.clone();
        self.at_rate(Way::NewPassed, target.host(), rate, move || {
            let target = target.clone();
            async move { target.ask().await.map(drop) }
        });
    }

    fn at_rate<F>(
        &mut self,
        way: Way,
        host: String,
        rate: u32,
        ask: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let shared = self.shared.clone();
        let host: Arc<str> = host.into();
        let mut stopped = shared.stop.subscribe();
        self.running.push(tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
            // Late ticks are made up for: the rate is what the scenario says.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut under_way = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    _ = stopped.changed() => break,
                    Some(_) = under_way.join_next() => {}
                    _ = ticks.tick() => {
                        let (asked, shared, host) = (ask(), shared.clone(), Arc::clone(&host));
                        under_way.spawn(async move {
                            let started = clock::now();
                            shared.count(way, &host, started, asked.await);
                        });
                    }
                }
            }
            under_way.join_all().await;
        }));
    }

    /// One that asks again as soon as it was answered and this has passed, on one connection for as long as that goes.
    pub(crate) fn stay(&mut self, origin: &Origin, pause: Duration) {
        let (shared, origin) = (self.shared.clone(), origin.clone());
        let way = Way::Kept(origin.version());
        self.running.push(tokio::spawn(async move {
            let mut stopped = shared.stop.subscribe();
            let mut connection = None;
            while !*stopped.borrow() {
                let started = clock::now();
                let result = ask_kept(&origin, &mut connection, &shared).await;
                let failed = result.is_err();
                shared.count(way, &origin.host, started, result);
                let pause = if failed { PAUSE } else { pause };
                if !pause.is_zero() {
                    let _ = timeout(pause, stopped.changed()).await;
                }
            }
        }));
    }

    /// One that holds a WebSocket. Each [`Self::take`] has it opened anew.
    pub(crate) fn hold_websocket(&mut self, origin: &Origin) {
        let origin = origin.clone();
        self.hold(Way::WebSocket, origin.host.clone(), move || {
            let origin = origin.clone();
            async move { WebSocket::open(&origin).await.map(Held::WebSocket) }
        });
    }

    /// One that holds a passed-through connection, anew for each [`Self::take`].
    pub(crate) fn hold_passed(&mut self, target: &Target) {
        let target = target.clone();
        self.hold(Way::HeldPassed, target.host(), move || {
            let target = target.clone();
            async move { target.open().await.map(|open| Held::Passed(Box::new(open))) }
        });
    }

    fn hold<F>(&mut self, way: Way, host: String, open: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Held, Failure>> + Send + 'static,
    {
        let shared = self.shared.clone();
        let (mut stopped, mut turn) = (shared.stop.subscribe(), self.turn.subscribe());
        self.running.push(tokio::spawn(async move {
            let mut held: Option<Held> = None;
            loop {
                let started = clock::now();
                let result = match held.take() {
                    Some(held) => held.asked().await,
                    None => match open().await {
                        Ok(opened) => opened.asked().await,
                        Err(failure) => Err(failure),
                    },
                };
                let (result, now) = match result {
                    Ok(held) => (Ok(()), Some(held)),
                    Err(failure) => (Err(failure), None),
                };
                held = now;
                shared.count(way, &host, started, result);
                let changed = async {
                    tokio::select! {
                        _ = stopped.changed() => true,
                        _ = turn.changed() => false,
                    }
                };
                match timeout(SOMETIMES, changed).await {
                    Err(_) => {}
                    // It was there to the end: asked once more, and closed.
                    Ok(over) => {
                        if let Some(held) = held.take() {
                            let started = clock::now();
                            shared.count(way, &host, started, held.asked().await);
                        }
                        if over {
                            return;
                        }
                    }
                }
            }
        }));
    }

    /// Returns the results of the requests since the last call. Requests that hold something begin anew.
    pub(crate) fn take(&self) -> Tallies {
        let taken = std::mem::take(&mut *self.shared.tallies.lock());
        self.turn.send_modify(|turn| *turn += 1);
        taken
    }

    /// Has them all stop, waits for what is under way, and gives what came since the last time.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Tallies> {
        self.shared.stop.send_replace(true);
        for client in std::mem::take(&mut self.running) {
            client.await?;
        }
        Ok(std::mem::take(&mut *self.shared.tallies.lock()))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &self.running {
            client.abort();
        }
    }
}

/// Asks on the connection, if it is open and not used up, or else on a new one.
async fn ask_kept(
    origin: &Origin,
    kept: &mut Option<(Connection, usize)>,
    shared: &Shared,
) -> Result<(), Failure> {
    let (mut connection, mut asked) = match kept.take() {
        Some((mut connection, asked)) => {
            if asked < ON_ONE && connection.is_open().await {
                (connection, asked)
            } else {
                (origin.open().await?, 0)
            }
        }
        None => (origin.open().await?, 0),
    };
    let mut got = connection.ask("/").await;
    if let Err(Failure::NotProcessed) = got {
        shared.tallies.lock().moved += 1;
        (connection, asked) = (origin.open().await?, 0);
        got = connection.ask("/").await;
    }
    got?.answer()?;
    *kept = Some((connection, asked + 1));
    Ok(())
}

enum Held {
    WebSocket(WebSocket),
    Passed(Box<Conversation>),
}

impl Held {
    /// Itself, if it answers.
    async fn asked(mut self) -> Result<Self, Failure> {
        match &mut self {
            Self::WebSocket(socket) => socket.ask().await?,
            Self::Passed(conversation) => conversation.ask().await.map(drop)?,
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_client_and_reason() {
        let mut tallies = Tallies::default();
        let (now, way) = (Timestamp::UNIX_EPOCH, Way::Kept(Version::One));
        tallies.add(way, "a.test", now, Ok(()));
        let gone = || Err::<(), _>(Failure::Answer("503 gone".to_owned()));
        tallies.add(way, "a.test", now, gone());
        tallies.add(way, "a.test", now, gone());
        tallies.add(Way::WebSocket, "a.test", now, Err::<(), _>(Failure::Reset));
        assert_eq!((tallies.requests(), tallies.failed()), (4, 3));
        let reasons = tallies.reasons();
        assert!(reasons.starts_with("2 × kept HTTP/1.1: 503 gone; 1 × held WebSocket: reset"));
        let mut sum = Tallies::default();
        sum.merge(tallies.clone());
        sum.merge(tallies);
        assert_eq!((sum.requests(), sum.failed()), (8, 6));
    }
}
