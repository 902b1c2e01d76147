//! The tests of several crates share these helpers. With them, tests wait until something is so, get ports of their own,
//! look at a port for probes, run processes, write frames of HTTP/2, and configure properties.

pub mod frames;
pub mod process;
pub mod properties;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait of [`eventually`]. Nothing waits so long unless it has failed: it is no statement of how soon anything
/// has to happen.
pub const BOUND: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(25);

/// What a look gives: `bool` for a condition, `Option` for something that is to be found.
pub trait Look {
    /// What there is once it is so.
    type Found;

    /// It; `None` as long as it is not so.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Looks until it is so.
///
/// # Panics
/// If it is not so within [`BOUND`].
pub async fn eventually<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    within(BOUND, what, look).await
}

/// Looks until it is so, for at most so long.
///
/// # Panics
/// If it is not so within `bound`.
pub async fn within<L: Look>(
    bound: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> L,
) -> L::Found {
    let end = Instant::now() + bound;
    loop {
        // A look at something that never answers has an end as well.
        let look = timeout_at(end, look()).await;
        let Ok(look) = look else {
            panic!("not within {bound:?}: {what}");
        };
        if let Some(found) = look.found() {
            return found;
        }
        assert!(Instant::now() < end, "not within {bound:?}: {what}");
        sleep(POLL).await;
    }
}

/// A port on which nobody listens, for connections or for datagrams, and which nobody gets meanwhile: neither another
/// caller, nor a socket whose port the kernel chooses, since those are above 32,767.
///
/// # Panics
/// If there are no more such ports.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    const FIRST: u16 = 12_000;
    const PORTS: usize = 20_000;
    // Another process with tests begins elsewhere.
    let start = usize::try_from(std::process::id()).unwrap_or_default() * 37;
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(given < PORTS, "no port is left");
        let offset = u16::try_from((start + given) % PORTS).unwrap_or_default();
        let address = (Ipv4Addr::LOCALHOST, FIRST + offset);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address.1;
        }
    }
}

/// Asks a port for probes and metrics: the status, and the body.
///
/// # Panics
/// If it does not answer.
pub async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.expect("it takes the request");
    let mut text = String::new();
    let read = stream.read_to_string(&mut text).await;
    read.expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("HTTP");
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
    (status.expect("a status"), body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_is_repeated_until_it_finds_something() {
        let mut looks = 0;
        let found = eventually("the third look", async || {
            looks += 1;
            (looks == 3).then_some("here")
        });
        assert_eq!(found.await, "here");
        eventually("a condition", async || true).await;
    }

    #[test]
    fn free_ports_are_never_given_to_two_callers() {
        let given: BTreeSet<u16> = (0..200).map(|_| free_port()).collect();
        assert_eq!(given.len(), 200);
        assert!(given.iter().all(|port| *port < 32_768));
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 1s: never so")]
    async fn condition_that_never_holds_fails_at_the_bound() {
        within(Duration::from_secs(1), "never so", async || false).await;
    }
}
