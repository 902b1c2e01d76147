//! A proxy's table, fed with what translation puts out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use prost::Message as _;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::hostname::Hostname;
use vestibule_model::protocol::Transport;
use vestibule_proxy::apply::{NoSockets, State};
use vestibule_proxy::bind::BindKey;
use vestibule_proxy::listener::Layer;
use vestibule_proxy::table::{Route, Selection, Snapshot, Unmatched};
use vestibule_stream::{Change, Encoded, Generation, Resource, ResourceKey};

use crate::judge::Answer;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The state of a proxy without sockets.
pub(crate) struct Held {
    state: State,
    counter: u64,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            state: State::new(Arc::default(), EndpointRules::with_loopback()).expect("a state"),
            counter: 0,
        }
    }
}

impl Held {
    /// Applies one batch, which has to be taken whole.
    pub(crate) fn take(&mut self, resources: BTreeMap<ResourceKey, Option<Encoded>>) {
        self.counter += 1;
        let mut change = Change {
            generation: Generation::new(1, self.counter),
            full: false,
            upserts: Vec::new(),
            removals: Vec::new(),
        };
        for (key, resource) in resources {
            match resource {
                Some(encoded) => {
                    let resource = Resource::decode(encoded.upsert().resource);
                    change.upserts.push((key, resource.expect("a resource")));
                }
                None => change.removals.push(key),
            }
        }
        let rejects = self.state.apply(&change, &mut NoSockets);
        assert_eq!(rejects, [], "a proxy rejects what was published");
    }

    /// The configuration that the proxy goes by.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        self.state.snapshot()
    }

    /// The result of a connection or datagram where the port alone selects.
    pub(crate) fn port_answer(&self, by: Transport, port: u16) -> (Answer, Option<Arc<Route>>) {
        let bind = match by {
            Transport::Tcp => bind(port),
            Transport::Udp => BindKey::udp(LOCALHOST, port),
        };
        answer_of(self.state.snapshot().select_by_port(&bind))
    }

    /// The result of a TLS connection to a port.
    pub(crate) fn answer(&self, port: u16, name: Option<&str>) -> (Answer, Option<Arc<Route>>) {
        let bind = bind(port);
        let name = name.map(|name| Hostname::parse(name).expect("a hostname"));
        let snapshot = self.state.snapshot();
        if snapshot.layer(&bind) != Layer::Tls {
            return (Answer::Nobody, None);
        }
        answer_of(snapshot.select(&bind, name.as_ref()))
    }
}

fn bind(port: u16) -> BindKey {
    BindKey::tcp(LOCALHOST, port)
}

fn answer_of(selected: Result<Selection, Unmatched>) -> (Answer, Option<Arc<Route>>) {
    match selected {
        Ok(selection) => {
            let listener = selection.listener;
            let route = selection.route;
            let key = route.as_ref().map(|route| route.key.to_string());
            let serving = listener.mode.is_serving();
            (
                Answer::Listener(listener.key.to_string(), serving, key),
                route,
            )
        }
        Err(Unmatched::NoBind | Unmatched::NoListener | Unmatched::NoServerName) => {
            (Answer::Nobody, None)
        }
    }
}
