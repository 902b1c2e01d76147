//! A data plane on several ports of loopback, which takes configurations whole.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{Domain, Socket, Type};
use vestibule_model::endpoint::EndpointRules;
use vestibule_proxy::apply::State;
use vestibule_proxy::limits::{HttpLimits, ProxyLimits};
use vestibule_proxy::metrics::Metrics;
use vestibule_proxy::plane::DataPlane;
use vestibule_proxy::table::Snapshot;
use vestibule_proxy::worker::Workers;
use vestibule_stream::{Change, Generation, Resource, ResourceKey};

use super::history::{Edit, Ports};
use super::ledger::{Config, difference};

/// A port that nobody else gets while this lives, and that can be listened on.
pub(crate) struct Reserved(Socket);

impl Reserved {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // Both, so that the proxy can bind it; not listening, this socket gets no connections.
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        Self(socket)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().as_socket().unwrap().port()
    }
}

pub(crate) struct Bed {
    state: State,
    workers: Workers,
    counter: u64,
    reserved: [Reserved; 3],
}

impl Bed {
    pub(crate) fn start() -> Self {
        let published = Arc::new(ArcSwap::<Snapshot>::default());
        let rules = EndpointRules::with_loopback();
        let state = State::new(Arc::clone(&published), rules).unwrap();
        let plane = Arc::new(DataPlane::new(
            published,
            Arc::new(Metrics::new()),
            limits(),
        ));
        let workers = Workers::start(plane, 2).unwrap();
        Self {
            state,
            workers,
            counter: 0,
            reserved: std::array::from_fn(|_| Reserved::new()),
        }
    }

    pub(crate) fn ports(&self) -> Ports {
        let [web, tls, flip] = &self.reserved;
        Ports {
            web: web.port(),
            tls: tls.port(),
            flip: flip.port(),
        }
    }

    /// Puts another configuration in force. What is rejected is what has to be.
    pub(crate) fn apply(&mut self, from: &Config, edit: &Edit) {
        let (mut upserts, removals) = difference(from, &edit.config);
        if edit.full {
            let all = edit.config.0.iter();
            upserts = all
                .map(|(key, resource)| (key.clone(), Resource::clone(resource)))
                .collect();
        }
        upserts.extend(edit.bad.iter().cloned());
        let mut expected: Vec<&ResourceKey> = edit.bad.iter().map(|(key, _)| key).collect();
        self.counter += 1;
        let change = Change {
            generation: Generation::new(1, self.counter),
            full: edit.full,
            upserts,
            removals,
        };
        let rejects = self.state.apply(&change, &mut self.workers.sockets());
        let mut rejected: Vec<_> = rejects.iter().filter_map(|of| of.key.as_ref()).collect();
        expected.sort_unstable();
        rejected.sort_unstable();
        assert_eq!(rejected, expected, "{rejects:?}");
    }
}

/// Nothing ends because a machine is slow.
fn limits() -> ProxyLimits {
    let long = Duration::from_mins(10);
    ProxyLimits {
        hello_deadline: long,
        handshake_deadline: long,
        connect_deadline: long,
        access_log: false,
        http: HttpLimits {
            head_deadline: long,
            idle: long,
            stall: long,
            ..HttpLimits::default()
        },
        ..ProxyLimits::default()
    }
}
