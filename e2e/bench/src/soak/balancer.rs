//! What stands in front of the proxies, as a Service of type `LoadBalancer` does: it passes bytes, and gives new
//! connections to proxies that are ready and not about to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};

/// Where a proxy takes connections, and where the balancer does for all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doors {
    /// For TLS.
    pub(super) tls: SocketAddr,
    /// For plain TCP.
    pub(super) tcp: SocketAddr,
}

/// One of the doors.
type Door = fn(&Doors) -> SocketAddr;

/// A proxy behind it.
#[derive(Debug)]
pub(super) struct Upstream {
    doors: Doors,
    takes: AtomicBool,
}

impl Upstream {
    pub(super) fn new(doors: Doors) -> Self {
        Self {
            doors,
            takes: AtomicBool::new(true),
        }
    }

    /// Whether it gets new connections from now on.
    pub(super) fn set_takes(&self, takes: bool) {
        self.takes.store(takes, Ordering::Relaxed);
    }
}

/// The balancer.
#[derive(Debug)]
pub(super) struct Balancer {
    upstreams: Vec<Arc<Upstream>>,
    next: AtomicUsize,
    /// Proxies that did not take a connection though they were said to.
    pub(super) refused: AtomicUsize,
}

impl Balancer {
    /// Listens, and serves for as long as the runtime does.
    pub(super) async fn start(upstreams: Vec<Arc<Upstream>>) -> Result<(Doors, Arc<Self>)> {
        let balancer = Arc::new(Self {
            upstreams,
            next: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let doors = Doors {
            tls: balancer.listen(|doors| doors.tls).await?,
            tcp: balancer.listen(|doors| doors.tcp).await?,
        };
        Ok((doors, balancer))
    }

    /// Listens for what goes to one of the doors of the proxies.
    async fn listen(self: &Arc<Self>, door: Door) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                if let Ok((client, _)) = listener.accept().await {
                    let balancer = Arc::clone(&serving);
                    tokio::spawn(async move { balancer.pass(client, door).await });
                }
            }
        });
        Ok(address)
    }

    async fn pass(&self, mut client: TcpStream, door: Door) {
        let Ok(upstream) = self.choose() else { return };
        match TcpStream::connect(door(&upstream.doors)).await {
            Ok(mut proxy) => {
                let _ = (client.set_nodelay(true), proxy.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut proxy).await;
            }
            Err(_) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn choose(&self) -> Result<Arc<Upstream>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.upstreams.len();
        let in_turn = (0..count).filter_map(|n| self.upstreams.get((first + n) % count));
        let mut taking = in_turn.filter(|upstream| upstream.takes.load(Ordering::Relaxed));
        taking.next().cloned().context("nobody takes connections")
    }
}
