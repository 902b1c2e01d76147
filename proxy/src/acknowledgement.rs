//! Owns when the kernel acknowledges what a peer has sent: at once, or together with the reply.
//!
//! An acknowledgement by itself is a packet more for this proxy and for its peer. The kernel sends one for each of the
//! first packets of a connection, because it cannot know whether a reply follows. This proxy often does know. After the
//! first reply the kernel acknowledges with replies by itself.

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;

/// Lets the first acknowledgement wait for the first bytes that are sent. Sockets that a listening socket accepts inherit
/// this. If nothing is sent, the kernel acknowledges after about 40 ms.
pub(crate) fn with_reply(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_quickack(false)
}

/// Acknowledges at once what has arrived, and what arrives before the first reply.
///
/// This is needed when the peer may wait for it. A peer whose socket has Nagle's algorithm on (the default of sockets)
/// sends no second small packet before the first one is acknowledged.
pub(crate) fn at_once(socket: &impl AsFd) {
    // Without it, the connection is only slower.
    let _ = SockRef::from(socket).set_tcp_quickack(true);
}
