//! Sends datagrams back to where they came from.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread;

use socket2::SockRef;

/// Longest datagram that a client sends, in bytes.
pub(crate) const LARGEST: usize = 2048;

/// Bytes of unread datagrams that the kernel is asked to hold. It holds less where `rmem_max` is lower.
const QUEUE: usize = 4 << 20;

/// Echoes on a thread of its own until the process ends, and returns its address. A runtime would make more system calls
/// for each datagram.
pub(super) fn serve(listen: SocketAddr) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind(listen)?;
    let address = socket.local_addr()?;
    SockRef::from(&socket).set_recv_buffer_size(QUEUE)?;
    thread::spawn(move || {
        let mut buffer = [0; LARGEST];
        loop {
            // An error belongs to one sender, such as a port that a proxy has closed. The others are served on.
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        }
    });
    Ok(address)
}
