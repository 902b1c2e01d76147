//! TLS without sockets, for tests: a client and a server whose bytes go from one to the other in memory.

use rustls::{ClientConnection, ServerConnection};

/// Gives the server what the client has to send, and then the client what the server has to send.
pub(crate) fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    let mut left = &bytes[..];
    while !left.is_empty() {
        server.read_tls(&mut left).unwrap();
        server.process_new_packets().unwrap();
    }
    let mut bytes = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut bytes).unwrap();
    }
    let mut left = &bytes[..];
    while !left.is_empty() {
        client.read_tls(&mut left).unwrap();
        client.process_new_packets().unwrap();
    }
}
