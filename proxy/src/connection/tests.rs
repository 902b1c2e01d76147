use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt;

use super::*;
use crate::bind::BindKey;
use crate::limits::ProxyLimits;
use crate::metrics::Metrics;
use crate::plane::DataPlane;

#[tokio::test]
async fn opening_state_of_a_connection_is_gone_while_http_is_served() {
    let (mut client, accepted, record, permit) = connection().await;
    client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut beginning = Beginning::default();
    beginning.layer = Layer::Plain;
    let opening = open(accepted, record, permit, beginning);
    let size = size_of_val(&opening);
    assert!(size <= 8 * 1024, "{size} bytes until the hello is there");
    let Opened::Otherwise(rest) = opening.await else {
        panic!("HTTP is served");
    };
    let size = size_of_val(&*rest);
    assert!(size <= 1024, "{size} bytes beside what hyper has");
}

#[tokio::test]
async fn an_idle_connection_is_small() {
    let (_client, accepted, record, permit) = connection().await;
    let future = serve(accepted, record, permit, Beginning::default());
    let size = size_of_val(&future);
    assert!(size <= 560, "{size} bytes per connection");
}

/// A client, and what a worker has of it once it was accepted.
async fn connection() -> (TcpStream, TcpStream, ConnectionRecord, HelloPermit) {
    let plane = Arc::new(DataPlane::new(
        Arc::default(),
        Arc::new(Metrics::new()),
        ProxyLimits::default(),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, (accepted, peer)) = (client.unwrap(), accepted.unwrap());
    let bind = BindKey::tcp(Ipv4Addr::LOCALHOST.into(), 443);
    let record = ConnectionRecord::new(Arc::clone(&plane), peer, bind);
    let permit = plane.permit(peer.ip()).unwrap();
    (client, accepted, record, permit)
}
