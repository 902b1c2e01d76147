//! Owns how the kernel finds out about peers that vanished.

use std::io;
use std::time::Duration;

/// Has the kernel find out about peers that vanished: asks after `idle`, and gives up after as many
/// questions as the system's settings say. Each setting is a system call per connection.
///
/// There is no `TCP_USER_TIMEOUT`: Linux also counts the time that a live peer keeps its window
/// closed, so it would cut who pauses a download.
pub(crate) fn set_keepalive(socket: &socket2::Socket, idle: Duration) -> io::Result<()> {
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(idle))
}
