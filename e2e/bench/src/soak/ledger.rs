//! What was done and what failed, and what of that is the proxy's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures that are written out.
const SHOWN: usize = 20;
/// What a backend's death broke is noticed this long after it at most.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Requests on connections that stay.
    Http1,
    /// The same, four at a time.
    Http2,
    /// Connections that are upgraded, with a message a second.
    WebSocket,
    /// TLS that a backend ends.
    Passthrough,
    /// TLS that the proxy ends.
    Terminated,
    /// gRPC calls, two at a time, to a backend that speaks HTTP/2 in plaintext.
    Grpc,
    /// Requests with a long body, whose answer says what of it arrived.
    Upload,
    /// Bytes on a port of their own.
    Tcp,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 8] = [
        Self::Http1,
        Self::Http2,
        Self::WebSocket,
        Self::Passthrough,
        Self::Terminated,
        Self::Grpc,
        Self::Upload,
        Self::Tcp,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1 requests",
            Self::Http2 => "HTTP/2 requests",
            Self::WebSocket => "WebSockets",
            Self::Passthrough => "passed-through TLS connections",
            Self::Terminated => "terminated TLS connections",
            Self::Grpc => "gRPC calls",
            Self::Upload => "uploads",
            Self::Tcp => "TCP connections",
        }
    }

    /// Whether it consists of requests, each of which is counted. Otherwise, connections are counted.
    pub(super) fn is_of_requests(self) -> bool {
        matches!(self, Self::Http1 | Self::Http2 | Self::Grpc | Self::Upload)
    }

    /// Whether a backend that dies in the middle takes what it carries with it, whoever is in between. GETs are
    /// not among that, because they are made again elsewhere. Calls and uploads are, because a proxy must not send
    /// again what a backend may have seen.
    fn dies_with_its_backend(self) -> bool {
        !matches!(self, Self::Http1 | Self::Http2)
    }
}

/// An answer that is not the one that was asked for. No death of a backend excuses it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongAnswer(pub(super) String);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Ended by a backend that died meanwhile.
    pub(super) excused: u64,
}

/// Everything that is counted.
pub(super) struct Ledger {
    begun: Instant,
    counts: Mutex<BTreeMap<Kind, Counts>>,
    failures: Mutex<Vec<String>>,
    deaths: Mutex<Vec<(Kind, Instant)>>,
    edits: Mutex<BTreeMap<String, u64>>,
    restarts: Mutex<u64>,
    certificates: Mutex<BTreeSet<Vec<u8>>>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            counts: Mutex::default(),
            failures: Mutex::default(),
            deaths: Mutex::default(),
            edits: Mutex::default(),
            restarts: Mutex::default(),
            certificates: Mutex::default(),
        }
    }

    pub(super) fn done(&self, kind: Kind) {
        self.counts.lock().entry(kind).or_default().done += 1;
    }

    /// Something that began at `since` did not come to its end.
    pub(super) fn failed(&self, kind: Kind, tenant: usize, since: Instant, error: &anyhow::Error) {
        let is_death = |(of, at): &(Kind, Instant)| *of == kind && *at + AFTERMATH >= since;
        let excused = kind.dies_with_its_backend()
            && !error.is::<WrongAnswer>()
            && self.deaths.lock().iter().any(is_death);
        let mut counts = self.counts.lock();
        let counts = counts.entry(kind).or_default();
        if excused {
            counts.excused += 1;
            return;
        }
        counts.failed += 1;
        let mut failures = self.failures.lock();
        if failures.len() < SHOWN {
            failures.push(format!(
                "after {:.1} s, tenant {tenant}, {}: {error:#}",
                self.begun.elapsed().as_secs_f64(),
                kind.title()
            ));
        }
    }

    /// Something that is not of one tenant went wrong.
    pub(super) fn broke(&self, what: String) {
        eprintln!("{what}");
        self.failures.lock().push(what);
    }

    /// A backend of these kinds died.
    pub(super) fn died(&self, kinds: &[Kind]) {
        let now = Instant::now();
        let deaths = kinds.iter().map(|kind| (*kind, now));
        self.deaths.lock().extend(deaths);
    }

    pub(super) fn edited(&self, what: &str) {
        *self.edits.lock().entry(what.to_owned()).or_default() += 1;
    }

    pub(super) fn restarted(&self) {
        *self.restarts.lock() += 1;
    }

    /// A client was shown this certificate.
    pub(super) fn saw(&self, certificate: Option<&[u8]>) {
        if let Some(certificate) = certificate {
            self.certificates.lock().insert(certificate.to_vec());
        }
    }

    /// Failures to be blamed on the proxy, and whatever else broke.
    pub(super) fn blamed(&self) -> u64 {
        let failed: u64 = self
            .counts
            .lock()
            .values()
            .map(|counts| counts.failed)
            .sum();
        failed.max(self.failures.lock().len() as u64)
    }

    /// The tables.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::from(
            "| Traffic | Done | Failed | Ended by a backend's death |\n|---|---:|---:|---:|\n",
        );
        for (kind, counts) in &*self.counts.lock() {
            let Counts {
                done,
                failed,
                excused,
            } = counts;
            let title = kind.title();
            let excused = if kind.dies_with_its_backend() {
                excused.to_string()
            } else {
                "–".to_owned()
            };
            let _ = writeln!(text, "| {title} | {done} | {failed} | {excused} |");
        }
        let edits = self.edits.lock();
        let sum: u64 = edits.values().sum();
        let kinds: Vec<String> = edits
            .iter()
            .map(|(what, n)| format!("{what} {n}"))
            .collect();
        let mut deaths: Vec<Instant> = self.deaths.lock().iter().map(|(_, at)| *at).collect();
        deaths.dedup();
        let _ = writeln!(
            text,
            "\n{sum} edits ({}), {} certificates seen by clients, {} deaths of backends, {} restarts.\n",
            kinds.join(", "),
            self.certificates.lock().len(),
            deaths.len(),
            self.restarts.lock()
        );
        for failure in &*self.failures.lock() {
            let _ = writeln!(text, "- {failure}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_excuses_what_it_takes_with_it_and_no_get() {
        let ledger = Ledger::new();
        let error = anyhow::anyhow!("ended");
        let before = Instant::now();
        ledger.failed(Kind::WebSocket, 1, before, &error);
        assert_eq!(ledger.blamed(), 1);
        ledger.died(&[Kind::WebSocket, Kind::Http1]);
        ledger.failed(Kind::WebSocket, 1, before, &error);
        assert_eq!(ledger.blamed(), 1);
        ledger.failed(Kind::Http1, 1, before, &error);
        ledger.failed(Kind::Passthrough, 1, before, &error);
        assert_eq!(ledger.blamed(), 3);
    }

    #[test]
    fn a_death_excuses_the_upload_that_it_met_and_none_that_began_long_after_it() {
        let ledger = Ledger::new();
        let error = anyhow::anyhow!("ended");
        let before = Instant::now();
        ledger.died(&[Kind::Upload, Kind::Grpc]);
        for kind in [Kind::Upload, Kind::Grpc] {
            ledger.failed(kind, 1, before, &error);
        }
        assert_eq!(ledger.blamed(), 0);
        let wrong = WrongAnswer("half of it".to_owned()).into();
        ledger.failed(Kind::Upload, 1, before, &wrong);
        assert_eq!(ledger.blamed(), 1);
        let long_after = Instant::now() + AFTERMATH * 2;
        ledger.failed(Kind::Upload, 1, long_after, &error);
        assert_eq!(ledger.blamed(), 2);
    }
}
