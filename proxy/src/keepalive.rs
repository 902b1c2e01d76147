//! Owns the settings by which the kernel detects peers that have vanished (TCP keepalive).

use std::io;
use std::time::Duration;

/// Lets the kernel detect peers that have vanished. It sends a probe after the connection was silent for `idle`. Number
/// and interval of further probes are those of the system, because each setting is a system call per connection.
///
/// `TCP_USER_TIMEOUT` is not set. Linux also counts the time in which a live peer keeps its window closed, so a client
/// that pauses a download would be cut off.
pub(crate) fn set_keepalive(socket: &socket2::Socket, idle: Duration) -> io::Result<()> {
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(idle))
}
