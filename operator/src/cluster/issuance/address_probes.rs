//! Probes whether the addresses of Gateways accept connections, before a CA is told to connect. A new port reaches the
//! proxies before nodes and load balancers forward it. If the CA connects too early, it counts this as a failure.
//!
//! The probes run inside the cluster, on one node. Some addresses cannot be reached from there, because there is no
//! hairpin routing or because of a `NetworkPolicy`. The first order for such an address waits without success, and this
//! is logged. Then the address is not probed for a while, and the CA connects without a probe.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info};
use vestibule_backoff::Backoff;
use vestibule_model::condition::Address;
use vestibule_model::key::ObjectName;

use super::super::services::ServiceStates;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Waits between two attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// An address that did not open in time is not probed again within this time.
const LEFT_ALONE: Duration = Duration::from_mins(10);
/// Largest number of addresses and ports that are probed for one order.
const MOST: usize = 8;
const MOST_LEFT_ALONE: usize = 1024;

/// An address and a port to probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeTarget {
    host: Arc<str>,
    port: u16,
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.host, self.port)
    }
}

/// Probes the addresses of Gateways. Clones share the same state.
#[derive(Debug, Clone)]
pub(in super::super) struct AddressProbes {
    service_states: watch::Receiver<Option<Arc<ServiceStates>>>,
    patience: Duration,
    /// The addresses that did not open in time, and until when they are not probed.
    left_alone: Arc<Mutex<BTreeMap<ProbeTarget, Instant>>>,
}

impl AddressProbes {
    /// Returns probes for the addresses of the Services of Gateways. An address that accepts no connection is tried for
    /// `patience`. If that is zero, no address is probed.
    pub(in super::super) fn new(
        service_states: watch::Receiver<Option<Arc<ServiceStates>>>,
        patience: Duration,
    ) -> Self {
        Self {
            service_states,
            patience,
            left_alone: Arc::default(),
        }
    }

    /// Waits until the addresses of a Gateway accept connections on these ports, but not longer than the patience.
    pub(super) async fn open(&self, gateway: &ObjectName, uid: &str, ports: &BTreeSet<u16>) {
        if self.patience.is_zero() {
            return;
        }
        let service_states = self.service_states.borrow().clone();
        let front = service_states
            .as_deref()
            .and_then(|service_states| service_states.get(uid));
        let assigned = front.and_then(|front| front.assigned.as_ref());
        let addresses = assigned
            .into_iter()
            .flat_map(|assigned| &assigned.addresses);
        let address_probes = addresses.flat_map(|address| {
            let host: Arc<str> = match address {
                Address::Ip(ip) => ip.to_string().into(),
                Address::Hostname(name) => name.clone(),
            };
            ports.iter().map(move |port| ProbeTarget {
                host: host.clone(),
                port: *port,
            })
        });
        let address_probes = address_probes
            .take(MOST)
            .filter(|probe_target| !self.is_left_alone(probe_target));
        join_all(address_probes.map(|probe_target| self.wait(gateway, probe_target))).await;
    }

    async fn wait(&self, gateway: &ObjectName, probe_target: ProbeTarget) {
        let until = Instant::now() + self.patience;
        let mut delays = BACKOFF.delays();
        loop {
            let connecting = TcpStream::connect((&*probe_target.host, probe_target.port));
            let problem = match tokio::time::timeout(CONNECT, connecting).await {
                Ok(Ok(_)) => {
                    debug!(%gateway, %probe_target, "an address of a Gateway takes connections");
                    return;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            let wait = delays.advance();
            if Instant::now() + wait >= until {
                info!(
                    %gateway,
                    address = %probe_target,
                    problem,
                    "an address of a Gateway takes no connections from the operator; the CA is asked all the same"
                );
                return self.leave_alone(probe_target);
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn is_left_alone(&self, probe_target: &ProbeTarget) -> bool {
        let left_alone = self.left_alone.lock();
        left_alone
            .get(probe_target)
            .is_some_and(|until| Instant::now() < *until)
    }

    fn leave_alone(&self, probe_target: ProbeTarget) {
        let now = Instant::now();
        let mut left_alone = self.left_alone.lock();
        if left_alone.len() >= MOST_LEFT_ALONE {
            left_alone.retain(|_, until| now < *until);
        }
        if left_alone.len() < MOST_LEFT_ALONE {
            left_alone.insert(probe_target, now + LEFT_ALONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::super::services::ServiceState;
    use super::*;
    use crate::translate::Assigned;

    const GATEWAY: &str = "uid";

    /// Probes of a Gateway with this address, and the sender that keeps their channel open.
    fn address_probes(
        address: &str,
        patience: Duration,
    ) -> (
        AddressProbes,
        watch::Sender<Option<Arc<ServiceStates>>>,
        ObjectName,
    ) {
        let front = ServiceState {
            assigned: Some(Assigned {
                addresses: vec![Address::Ip(address.parse().expect("an address"))],
                sockets: BTreeSet::new(),
                problem: None,
            }),
            ..ServiceState::default()
        };
        let service_states = ServiceStates::from([(GATEWAY.into(), front)]);
        let (sender, service_states) = watch::channel(Some(Arc::new(service_states)));
        let address_probes = AddressProbes::new(service_states, patience);
        (address_probes, sender, ObjectName::new("platform", "edge"))
    }

    /// A port that nobody listens on. The address belongs to one test alone.
    async fn closed(address: &str) -> u16 {
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        listener.local_addr().expect("an address").port()
    }

    #[tokio::test]
    async fn one_that_opens_late_is_waited_for() {
        let address = "127.83.11.1";
        let port = closed(address).await;
        let (address_probes, _fronts, gateway) = address_probes(address, Duration::from_hours(1));
        let ports = BTreeSet::from([port]);
        let open = address_probes.open(&gateway, GATEWAY, &ports);
        tokio::pin!(open);
        // The address refuses connections at least once.
        tokio::select! {
            () = &mut open => panic!("nobody listens"),
            () = tokio::time::sleep(Duration::from_millis(150)) => {}
        }
        let listener = TcpListener::bind((address, port)).await.expect("the port");
        let ((), connection) = tokio::join!(open, listener.accept());
        connection.expect("a connection");
        assert!(address_probes.left_alone.lock().is_empty());
    }

    #[tokio::test]
    async fn one_that_stays_closed_is_waited_for_once() {
        let address = "127.83.11.2";
        let port = closed(address).await;
        let (address_probes, _fronts, gateway) = address_probes(address, Duration::from_millis(1));
        let ports = BTreeSet::from([port]);
        address_probes.open(&gateway, GATEWAY, &ports).await;
        assert_eq!(address_probes.left_alone.lock().len(), 1);
        // The next order does not probe the address, which would accept connections now.
        let listener = TcpListener::bind((address, port)).await.expect("the port");
        address_probes.open(&gateway, GATEWAY, &ports).await;
        tokio::select! {
            biased;
            _ = listener.accept() => panic!("it knocked"),
            () = std::future::ready(()) => {}
        }
        // Another Gateway is not affected.
        address_probes.open(&gateway, "another", &ports).await;
    }

    #[tokio::test]
    async fn probe_targets_that_are_left_alone_are_bounded_in_number() {
        let (address_probes, _fronts, _) = address_probes("127.83.11.3", Duration::ZERO);
        for port in 0..=u16::try_from(MOST_LEFT_ALONE).expect("a port") {
            address_probes.leave_alone(ProbeTarget {
                host: "a".into(),
                port,
            });
        }
        assert_eq!(address_probes.left_alone.lock().len(), MOST_LEFT_ALONE);
    }
}
