//! Tests of the HTTP routes in force: what an edit costs, and random histories against the state from
//! scratch.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use hyper::Request;
use proptest::prelude::*;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::hostname::Hostname;
use vestibule_model::pattern::Steps;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{Change, Generation, Resource, ResourceKey, ResourceKind, proto};

use super::*;
use crate::apply::{Counts, NoSockets, Work};
use crate::bind::BindKey;
use crate::http_route::view::View;
use crate::listener::Layer;

const BIND: BindKey = BindKey::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const LISTENER: &str = "ListenerSet/team-a/web/http";

struct Harness {
    state: State,
    counter: u64,
}

impl Harness {
    fn new() -> Self {
        Self {
            state: State::new(Arc::default(), EndpointRules::with_loopback()).unwrap(),
            counter: 0,
        }
    }

    fn apply(&mut self, upserts: Vec<Resource>, removals: Vec<ResourceKey>) {
        self.counter += 1;
        let change = Change {
            generation: Generation::new(1, self.counter),
            full: false,
            upserts: upserts.into_iter().map(|r| (r.key().unwrap(), r)).collect(),
            removals,
        };
        assert_eq!(self.state.apply(&change, &mut NoSockets), []);
    }

    /// `route/rule` for a request.
    fn select(&self, host: &str, path: &str) -> Option<String> {
        let host = Hostname::parse(host).unwrap();
        let snapshot = self.state.snapshot();
        let selected = snapshot.select_http(&BIND, Layer::Plain, Some(&host))?;
        let request = Request::get(path).body(()).unwrap();
        let view = View::new(&request, None, selected.guard, Steps::default());
        let found = selected.routes.find(Some(&host), &view)?;
        Some(format!("{}/{}", found.route.key, found.rule_index()))
    }
}

fn listener(name: &str, hostname: &str) -> Resource {
    Resource::new(
        name,
        Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            tenant: "team-a".into(),
            hostname: hostname.into(),
            bind: Some(proto::Bind {
                address: BIND.address.to_string(),
                port: BIND.port.into(),
                transport: proto::Transport::Tcp.into(),
            }),
            protocol: Some(proto::listener::Protocol::Http(
                proto::HttpListener::default(),
            )),
            ..Default::default()
        }),
    )
}

fn route(name: &str, created: i64, at: &[(&str, &str)], prefixes: &[&str]) -> Resource {
    let rule = |prefix: &&str| proto::HttpRule {
        matches: vec![proto::HttpMatch {
            path: Some(proto::http_match::Path::Prefix((*prefix).into())),
            ..Default::default()
        }],
        backends: vec![proto::HttpBackend {
            backend: format!("{name}:80"),
            weight: 1,
            filters: Vec::new(),
        }],
        ..Default::default()
    };
    let attachment = |(listener, hostname): &(&str, &str)| proto::Attachment {
        listener: (*listener).into(),
        hostnames: vec![proto::RouteHostname {
            r#match: (*hostname).into(),
            rank: (*hostname).into(),
            shared: false,
            paths: Vec::new(),
        }],
    };
    Resource::new(
        name,
        Wire::HttpRoute(proto::HttpRoute {
            tenant: "team-a".into(),
            created,
            attachments: at.iter().map(attachment).collect(),
            rules: prefixes.iter().map(rule).collect(),
        }),
    )
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::HttpRoute, name)
}

/// The work of one edit with so many routes on the listener, each with a path of its own.
fn work_of_one_edit(routes: usize) -> Work {
    let mut h = Harness::new();
    let mut upserts = vec![listener(LISTENER, "")];
    for n in 0..routes {
        let name = format!("team-a/r{n}");
        let path = format!("/app/{n}");
        upserts.push(route(&name, 1, &[(LISTENER, "a.example.com")], &[&path]));
    }
    h.apply(upserts, Vec::new());
    assert_eq!(
        h.select("a.example.com", "/app/3/x").as_deref(),
        Some("team-a/r3/0")
    );
    let before = h.state.work();
    let edited = route(
        "team-a/r3",
        1,
        &[(LISTENER, "a.example.com")],
        &["/app/new"],
    );
    h.apply(vec![edited], Vec::new());
    assert_eq!(h.select("a.example.com", "/app/3/x"), None);
    assert_eq!(
        h.select("a.example.com", "/app/new").as_deref(),
        Some("team-a/r3/0")
    );
    h.state.work() - before
}

#[test]
fn one_edit_is_the_same_work_at_ten_and_at_ten_thousand_routes() {
    let few = work_of_one_edit(10);
    assert_eq!(few, work_of_one_edit(10_000));
    assert_eq!((few.places, few.route_entries), (1, 2));
}

#[test]
fn the_dump_says_what_is_in_force() {
    let mut h = Harness::new();
    let made = route(
        "team-a/web",
        7,
        &[(LISTENER, "*.example.com")],
        &["/a/", "/"],
    );
    h.apply(vec![listener(LISTENER, ""), made], Vec::new());
    let dump = serde_json::to_value(h.state.dump()).unwrap();
    let route = &dump["http_routes"][0];
    assert_eq!(route["name"], "team-a/web");
    assert_eq!(route["attachments"][0]["match"], "*.example.com");
    assert_eq!(route["rules"][0]["matches"][0], "* /a/");
    assert_eq!(route["rules"][1]["backends"][0]["backend"], "team-a/web:80");
    assert_eq!(dump["backends"][0]["held"], false);
}

const HOSTS: [&str; 4] = ["", "*.com", "*.a.com", "x.a.com"];
const LISTENERS: [(&str, &str); 3] = [
    ("ListenerSet/team-a/any/http", ""),
    ("ListenerSet/team-a/wild/http", "*.a.com"),
    ("ListenerSet/team-a/exact/http", "x.a.com"),
];
const PATHS: [&str; 4] = ["/", "/a", "/a/b", "/c"];

#[derive(Clone, Debug)]
struct Edit {
    name: usize,
    /// `None` removes it.
    to: Option<To>,
}

/// Creation, places, paths.
type To = (i64, Vec<(usize, usize)>, Vec<usize>);

fn edit() -> impl Strategy<Value = Edit> {
    let at = prop::collection::vec((0..LISTENERS.len(), 0..HOSTS.len()), 0..4);
    let rules = prop::collection::vec(0..PATHS.len(), 0..4);
    let to = prop::option::weighted(0.8, (0..3_i64, at, rules));
    (0..8_usize, to).prop_map(|(name, to)| Edit { name, to })
}

fn everything(h: &Harness) -> Vec<Option<String>> {
    let mut all = Vec::new();
    for host in ["x.a.com", "y.a.com", "b.com", "org"] {
        for path in ["/", "/a", "/a/b/c", "/ab", "/c"] {
            all.push(h.select(host, path));
        }
    }
    all
}

proptest! {
    #[test]
    fn a_history_is_its_result(edits in prop::collection::vec(edit(), 0..24)) {
        let listeners = || LISTENERS.map(|(name, hostname)| listener(name, hostname)).to_vec();
        let mut h = Harness::new();
        h.apply(listeners(), Vec::new());
        let mut held = BTreeMap::new();
        for Edit { name, to } in edits {
            let name = format!("team-a/r{name}");
            if let Some((created, at, rules)) = to {
                    let at: Vec<_> = at
                        .iter()
                        .map(|(listener, host)| (LISTENERS[*listener].0, HOSTS[*host]))
                        .collect();
                    let rules: Vec<_> = rules.iter().map(|rule| PATHS[*rule]).collect();
                    let made = route(&name, created, &at, &rules);
                    h.apply(vec![made.clone()], Vec::new());
                    held.insert(name, made);
            } else {
                h.apply(Vec::new(), vec![key(&name)]);
                held.remove(&name);
            }
        }
        let mut scratch = Harness::new();
        scratch.apply([listeners(), held.values().cloned().collect()].concat(), Vec::new());
        prop_assert_eq!(everything(&h), everything(&scratch));
        let dump = |h: &Harness| serde_json::to_value(h.state.dump().http_routes).unwrap();
        prop_assert_eq!(dump(&h), dump(&scratch));

        let gone = held.keys().map(|name| key(name));
        let listeners = LISTENERS.map(|(name, _)| ResourceKey::new(ResourceKind::Listener, name));
        h.apply(Vec::new(), gone.chain(listeners).collect());
        prop_assert_eq!(h.state.counts(), Counts::default());
        prop_assert_eq!(h.state.tables.len(), 0);
        prop_assert_eq!(h.state.backends.len(), 0);
    }
}
