//! A route says that it is accepted once every ready proxy has it; a listener says that it is programmed
//! once the Service of its Gateway leads to it as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::timeout;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Transport};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::cluster::services::{ServiceState, ServiceStates};
use vestibule_operator::cluster::statuses::plan::{Due, LiveStatus};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::publish::{self, Changes, Publisher};
use vestibule_operator::translate::{
    Assigned, CONTROLLER, Change, DesiredPort, Settings, Translator,
};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::stream::{BOUND, Proxy};
use vestibule_stream::{ResourceKey, ResourceKind};

/// An operator without an API server.
struct World {
    translator: Translator,
    publisher: Arc<Publisher>,
    service_states: ServiceStates,
}

impl World {
    fn new(settings: Settings, ready: &[&str]) -> Self {
        let publisher = Publisher::new(publish::Config::default());
        publisher.lead(1).expect("a first term");
        publisher.set_ready(ready.iter().map(ToString::to_string).collect());
        Self {
            translator: Translator::new(settings),
            publisher,
            service_states: ServiceStates::new(),
        }
    }

    fn put(&mut self, objects: impl IntoIterator<Item = Object>) {
        self.apply(objects.into_iter().map(Change::Put));
    }

    fn apply(&mut self, all: impl IntoIterator<Item = Change>) {
        let mut changes = Changes::new();
        for (key, resource) in self.translator.apply(all).resources {
            match resource {
                Some(resource) => changes.upsert_encoded(resource),
                None => changes.remove(key),
            }
        }
        self.publisher.update(changes);
    }

    fn judge(&self, key: &ObjectKey, generation: i64, old: &Value) -> Due {
        let facts = StatusInputs {
            translator: &self.translator,
            publisher: &self.publisher,
            controller: CONTROLLER,
            service_states: &self.service_states,
            orphans: &BTreeSet::new(),
            issuers: &BTreeMap::new(),
            issuer_selector: None,
            issuance_known: true,
        };
        let live = LiveStatus::new("1".into(), generation, old);
        statuses::judge(&facts, 0, (key, &live, old)).expect("a status")
    }

    async fn settled(&self) {
        let mut facts = self.publisher.acks();
        let settled = async {
            while !self.publisher.is_settled(|_| true) {
                facts.changed().await.expect("a publisher");
            }
        };
        timeout(BOUND, settled).await.expect("acknowledgements");
    }
}

fn objects() -> Vec<Object> {
    vec![
        our_class(),
        gateway(
            "one",
            vec![passthrough("l", "*.example.com")],
            NamespaceScope::All,
        ),
        service("platform", "app", &[1]),
        slice("platform", "app", 0, 1, &[1]),
        a_route(&["x.example.com"]),
    ]
}

fn a_route(hostnames: &[&str]) -> Object {
    let parents = vec![parent("Gateway", None, "one", None)];
    let backends = vec![backend("platform", "app", 1, 1)];
    route("platform", "web", 0, parents, hostnames, backends)
}

fn web() -> ObjectKey {
    key(Kind::TlsRoute, "platform", "web")
}

/// (status, reason, message) of a route's condition Accepted.
fn accepted(status: &Value) -> (String, String, String) {
    condition(status, "Accepted").expect("a condition")
}

fn programmed(status: &Value) -> Option<(String, String, String)> {
    condition(status, "vestibule.dev/Programmed")
}

/// (status, reason, message) of a route's condition for its first parent.
fn condition(status: &Value, kind: &str) -> Option<(String, String, String)> {
    let conditions = status["parents"][0]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let condition = conditions.find(|condition| condition["type"] == kind)?;
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn said(truth: &str, reason: &str, message: &str) -> (String, String, String) {
    (truth.into(), reason.into(), message.into())
}

#[tokio::test]
async fn a_route_is_accepted_once_every_ready_proxy_has_it() {
    let mut world = World::new(settings(), &["p-1", "p-2"]);
    let _first = Proxy::of("p-1", &world.publisher);
    world.put(objects());
    let none = json!({});
    let mut facts = world.publisher.acks();
    let lacks_one = async {
        loop {
            let due = world.judge(&web(), 1, &none);
            if accepted(&due.status).2 == "1/2 acked; waiting for p-2" {
                return due;
            }
            facts.changed().await.expect("a publisher");
        }
    };
    let due = timeout(BOUND, lacks_one).await.expect("one of two");
    assert!(due.waits);
    assert_eq!(
        accepted(&due.status),
        said("Unknown", "Pending", "1/2 acked; waiting for p-2")
    );
    assert_eq!(
        programmed(&due.status),
        Some(said("False", "Pending", "1/2 acked; waiting for p-2"))
    );
    let _second = Proxy::of("p-2", &world.publisher);
    world.settled().await;
    let due = world.judge(&web(), 1, &due.status);
    assert!(!due.waits);
    assert_eq!(
        accepted(&due.status),
        said("True", "Accepted", "The route is accepted")
    );
    assert_eq!(
        programmed(&due.status),
        Some(said("True", "Programmed", "In force in every ready proxy"))
    );
    // A change of its endpoints is no news of the route.
    world.put([slice("platform", "app", 0, 1, &[1, 2])]);
    let again = world.judge(&web(), 1, &due.status);
    assert_eq!(again, due);
}

#[tokio::test]
async fn a_route_that_was_accepted_stays_so_and_says_who_lacks_its_edit() {
    let mut world = World::new(settings(), &["p-1"]);
    let proxy = Proxy::of("p-1", &world.publisher);
    world.put(objects());
    world.settled().await;
    let before = world.judge(&web(), 1, &json!({})).status;
    drop(proxy);
    world.put([a_route(&["y.example.com"])]);
    let due = world.judge(&web(), 2, &before);
    assert!(due.waits);
    assert_eq!(
        accepted(&due.status),
        said("True", "Accepted", "The route is accepted")
    );
    assert_eq!(
        programmed(&due.status),
        Some(said("False", "Pending", "0/1 acked; waiting for p-1"))
    );
    let _proxy = Proxy::of("p-1", &world.publisher);
    world.settled().await;
    let due = world.judge(&web(), 2, &due.status);
    assert!(!due.waits);
    assert_eq!(
        programmed(&due.status).map(|said| said.0).as_deref(),
        Some("True")
    );
}

#[tokio::test]
async fn route_status_waits_for_a_route_that_is_published_later() {
    let mut world = World::new(settings(), &["p-1"]);
    let _proxy = Proxy::of("p-1", &world.publisher);
    world.put(objects());
    world.settled().await;
    let withheld = ResourceKey::new(ResourceKind::TlsRoute, "platform/web");
    let waits = |waits| BTreeMap::from([(withheld.clone(), waits)]);
    world.publisher.withhold(waits(true));
    assert!(!world.publisher.is_settled(|_| true));
    let due = world.judge(&web(), 1, &json!({}));
    assert!(due.waits);
    assert_eq!(accepted(&due.status).0, "Unknown");
    world.publisher.withhold(waits(false));
    assert!(!world.judge(&web(), 1, &json!({})).waits);
}

#[tokio::test]
async fn a_route_that_is_refused_waits_for_nobody() {
    let mut world = World::new(settings(), &["p-1"]);
    world.put(objects());
    world.put([a_route(&["elsewhere.example.org"])]);
    let due = world.judge(&web(), 1, &json!({}));
    assert!(!due.waits);
    assert_eq!(accepted(&due.status).0, "False");
    assert_eq!(programmed(&due.status), None);
}

#[tokio::test]
async fn counts_of_routes_wait_for_the_proxies() {
    let mut world = World::new(settings(), &["p-1"]);
    let one = key(Kind::Gateway, "platform", "one");
    world.put(objects());
    assert!(world.judge(&one, 1, &json!({})).waits);
    let _proxy = Proxy::of("p-1", &world.publisher);
    world.settled().await;
    let due = world.judge(&one, 1, &json!({}));
    assert!(!due.waits);
    assert_eq!(due.status["listeners"][0]["attachedRoutes"], 1);
    // A change of a route that it counts is waited for, and one of somebody else is not.
    let withhold = |name: &str| {
        let route = ResourceKey::new(ResourceKind::TlsRoute, name);
        world.publisher.withhold(BTreeMap::from([(route, true)]));
    };
    withhold("aaa/flood");
    assert!(!world.judge(&one, 1, &json!({})).waits);
    withhold("platform/web");
    assert!(world.judge(&one, 1, &json!({})).waits);
}

#[test]
fn a_status_that_is_full_of_entries_of_others_is_reported() {
    let mut world = World::new(settings(), &[]);
    world.put(objects());
    let full = |others: usize| {
        let entry = |n: usize| {
            json!({
                "controllerName": "example.com/other", "conditions": [],
                "parentRef": {"kind": "Gateway", "name": format!("other-{n}")},
            })
        };
        let entries: Vec<Value> = (0..others).map(entry).collect();
        json!({ "parents": entries })
    };
    let due = world.judge(&web(), 1, &full(31));
    assert_eq!(due.left_out.ours, 0);
    assert_eq!(due.status["parents"].as_array().map(Vec::len), Some(32));
    // It is still so when nothing changes any more.
    for old in [full(32), world.judge(&web(), 1, &full(32)).status] {
        let due = world.judge(&web(), 1, &old);
        assert_eq!((due.left_out.ours, due.left_out.foreign), (1, 32));
        assert_eq!(due.status, full(32));
    }
}

#[tokio::test]
async fn a_listener_is_programmed_once_the_service_has_its_port() {
    let mut world = World::new(cluster_settings(), &["p-1"]);
    let _proxy = Proxy::of("p-1", &world.publisher);
    let one = key(Kind::Gateway, "platform", "one");
    let port = |number| Port::new(number).expect("a port");
    let mut objects = objects();
    let Object::Gateway(gateway) = &mut objects[1] else {
        unreachable!()
    };
    Arc::make_mut(gateway).meta.uid = "uid".into();
    world.put(objects);
    let desired = DesiredPort {
        gateway: "uid".into(),
        port: port(443),
        transport: Transport::Tcp,
    };
    let assigned = Assigned {
        addresses: Vec::new(),
        sockets: BTreeSet::new(),
        problem: None,
    };
    world.apply([
        Change::Ports(BTreeMap::from([(desired, Some(port(10_000)))])),
        Change::Addresses("uid".into(), Some(assigned)),
    ]);
    world.settled().await;
    let programmed = |world: &World| {
        let status = world.judge(&one, 1, &json!({})).status;
        let listener = status["listeners"][0]["conditions"].as_array().cloned();
        let conditions = listener.unwrap_or_default();
        let found = conditions.iter().find(|c| c["type"] == "Programmed");
        found.map(|c| (c["status"].clone(), c["message"].clone()))
    };
    let waiting = json!("Waiting for port 443 on the Service of the Gateway");
    let waits = Some((json!("False"), waiting));
    // There is no Service at all, as for a new Gateway whose parameters do not exist.
    assert_eq!(programmed(&world), waits);
    world
        .service_states
        .insert("uid".into(), ServiceState::default());
    assert_eq!(programmed(&world), waits);
    let front = ServiceState {
        ports: BTreeMap::from([((port(443), Transport::Tcp), port(10_000))]),
        ..ServiceState::default()
    };
    world.service_states.insert("uid".into(), front);
    assert_eq!(
        programmed(&world),
        Some((json!("True"), json!("In force in 1 of 1 proxies")))
    );
}
