//! Datagrams that go back to where they came from.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread;

use socket2::SockRef;

use crate::client::datagrams::LARGEST;

/// What the kernel is asked to hold of what has not been read. It gives less where it is told to.
const QUEUE: usize = 4 << 20;

/// Echoes on a thread of its own, until the process ends. Without a runtime, which would ask twice for each datagram.
pub(super) fn serve(listen: SocketAddr) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind(listen)?;
    let address = socket.local_addr()?;
    SockRef::from(&socket).set_recv_buffer_size(QUEUE)?;
    thread::spawn(move || {
        let mut buffer = [0; LARGEST];
        loop {
            // What the proxy does not take any more says so here, and is nothing to the others.
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        }
    });
    Ok(address)
}
