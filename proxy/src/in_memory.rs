//! TLS without sockets, for tests: a client and a server whose bytes go from one to the other in memory.

use rustls::{ClientConnection, ConnectionCommon, ServerConnection};

/// Gives the server what the client has to send, and then the client what the server has to send.
pub(crate) fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) {
    carry(client, server);
    carry(server, client);
}

fn carry<A, B>(from: &mut ConnectionCommon<A>, to: &mut ConnectionCommon<B>) {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut left = &bytes[..];
    while !left.is_empty() {
        to.read_tls(&mut left).unwrap();
        to.process_new_packets().unwrap();
    }
}
