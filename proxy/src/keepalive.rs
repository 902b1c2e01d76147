//! Owns the settings by which the kernel detects peers that have vanished (TCP keepalive).

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long a client that has ended its sending direction may be silent before it gets a probe.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(10);
/// Interval and number of the probes without an answer after which it is lost: 18 s after it was last heard of.
const HALF_CLOSED_INTERVAL: Duration = Duration::from_secs(2);
const HALF_CLOSED_PROBES: u32 = 4;

/// Lets the kernel detect peers that have vanished. It sends a probe after the connection was silent for `idle`. Number
/// and interval of further probes are those of the system, because each setting is a system call per connection.
///
/// `TCP_USER_TIMEOUT` is not set. Linux also counts the time in which a live peer keeps its window closed, so a client
/// that pauses a download would be cut off.
pub(crate) fn set_keepalive(socket: &socket2::Socket, idle: Duration) -> io::Result<()> {
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))
}

/// The same for a client that has ended its sending direction, in short intervals. Such a client may be gone already, and
/// costs whoever makes it nothing, while the proxy keeps its socket and that of a backend. Few clients do this, so the
/// system calls do not matter.
pub(crate) fn expect_loss(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(HALF_CLOSED_IDLE)
        .with_interval(HALF_CLOSED_INTERVAL)
        .with_retries(HALF_CLOSED_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}
