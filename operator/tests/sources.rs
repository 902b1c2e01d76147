//! A Secret that comes into use has to be read first. Until then only what needs it waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::claims::{self, ClaimStore};
use vestibule_operator::cluster::events::EventRecorder;
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::statuses::plan::{Next, Planner, Timing};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::cluster::store::{Channels, Store};
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::publish::{self, Publisher};
use vestibule_operator::translate::CONTROLLER;
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::resource;
use vestibule_stream::{ResourceKey, ResourceKind};

/// References of one listener.
const REFERENCES: usize = 64;

/// The store of an operator that leads, without an API server.
struct World {
    store: Store,
    publisher: Arc<Publisher>,
    now: Instant,
    version: u64,
}

impl World {
    fn new() -> Self {
        let publisher = Publisher::new(publish::Config::default());
        publisher.lead(1).expect("a first term");
        let (registry, _) = CertificateRegistry::new();
        let (event_recorder, _) = EventRecorder::new();
        let timing = Timing {
            patience: Duration::ZERO,
            ..Timing::default()
        };
        let mut store = Store::new(
            settings(),
            Arc::clone(&publisher),
            Planner::new(timing),
            Metrics::default(),
            None,
            ClaimStore::new(claims::GRACE),
            Channels {
                ports: watch::channel(None).0,
                services: watch::channel(None).0,
                certificates: registry,
                event_recorder,
            },
        );
        let now = Instant::now();
        store.sources_are_watched();
        store.take([Kind::Secret, Kind::ConfigMap].map(Event::Synced), now);
        store.send_desired(now);
        store.planner.lead(now);
        let mut world = Self {
            store,
            publisher,
            now,
            version: 0,
        };
        world.put(our_class());
        world.put(gateway("one", vec![], NamespaceScope::All));
        world
    }

    fn put(&mut self, object: Object) {
        self.version += 1;
        let watched = Watched {
            key: object.key(),
            object,
            findings: Vec::new(),
            uid: "".into(),
            resource_version: self.version.to_string().into(),
            status: Value::Null,
        };
        self.store.take([Event::Put(Box::new(watched))], self.now);
    }

    /// Lets the time pass after which translation gets to know what does not exist.
    fn look_on(&mut self) {
        self.now = self.store.look_at().expect("something to look at");
        self.store.look_on(self.now);
    }

    /// What the loop does at the end of each turn. Returns the statuses to write.
    fn turn(&mut self) -> BTreeMap<ObjectKey, Value> {
        self.store.publish(self.now);
        let mut statuses = BTreeMap::new();
        loop {
            let inputs = StatusInputs {
                translator: &self.store.control.translator,
                publisher: &self.publisher,
                controller: CONTROLLER,
                service_states: &self.store.service_states,
                orphans: &self.store.orphans,
                issuers: self.store.control.certificates.issuers(),
                issuer_selector: None,
                issuance_known: true,
            };
            let next = self.store.planner.next(self.now, 64, |key, live, old| {
                statuses::judge(&inputs, 0, (key, live, old))
            });
            match next {
                Next::Write(job) => {
                    statuses.insert(job.key, job.status);
                }
                Next::More => {}
                Next::Idle => return statuses,
            }
        }
    }

    fn get(&self, kind: ResourceKind, name: &str) -> Option<resource::Resource> {
        let key = ResourceKey::new(kind, name);
        self.publisher.resource(&key)?.decode()
    }
}

/// A ListenerSet of a tenant whose only listener has many certificates that differ with each edit.
fn flood(edit: usize) -> Object {
    let tls = Some(Tls::Terminate("aaa".into(), "none".into()));
    let mut listener = listener("web", 443, Protocol::Https, "aaa.example.com", tls);
    let references = (0..REFERENCES).map(|n| Reference {
        group: "".into(),
        kind: "Secret".into(),
        target: ObjectName::new("aaa", format!("none-{edit}-{n:02}")),
        field: format!("spec.listeners[web].tls.certificateRefs[{n}]"),
    });
    listener.tls.as_mut().expect("TLS").certificates = references.collect();
    set("aaa", "flood", 1, "one", vec![listener])
}

fn good() -> Object {
    let tls = Some(Tls::Terminate("zzz".into(), "good".into()));
    let listener = listener("web", 443, Protocol::Https, "zzz.example.com", tls);
    set("zzz", "set", 2, "one", vec![listener])
}

/// A condition of the only listener in a status: its value and its message.
fn condition(status: &Value, kind: &str) -> (String, String) {
    let conditions = status["listeners"][0]["conditions"].as_array();
    let mut conditions = conditions.expect("conditions").iter();
    let condition = conditions
        .find(|condition| condition["type"] == kind)
        .expect("the condition");
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

#[test]
fn references_of_one_namespace_hold_up_nothing_of_another() {
    let mut world = World::new();
    world.turn();
    let neighbour = key(Kind::ListenerSet, "zzz", "set");
    for edit in 0..3 {
        world.put(flood(edit));
        // Nobody has read anything of it, and a neighbour's change is published and has its status at once.
        let name = format!("{edit}.example.com");
        world.put(set(
            "zzz",
            "set",
            2,
            "one",
            vec![listener("web", 80, Protocol::Http, &name, None)],
        ));
        let statuses = world.turn();
        let published = world.get(ResourceKind::Listener, "ListenerSet/zzz/set/web");
        let Some(resource::Resource::Listener(published)) = published else {
            panic!("edit {edit} has no listener");
        };
        assert_eq!(published.hostname, name);
        let status = statuses.get(&neighbour);
        let (resolved, _) = condition(status.expect("a status"), "ResolvedRefs");
        assert_eq!(resolved, "True");
        let version = (edit + 1).to_string();
        let live = statuses::plan::LiveStatus::new(version.as_str().into(), 0, &Value::Null);
        world.store.planner.done(&neighbour, Ok(live), world.now);
    }
}

#[test]
fn a_good_secret_is_read_in_the_turn_of_its_namespace() {
    let mut world = World::new();
    for edit in 0..10 {
        world.put(flood(edit));
    }
    world.put(good());
    world.turn();
    let secret_key = key(Kind::Secret, "zzz", "good");
    let first = world.store.sources_to_read(2, world.now);
    assert!(first.contains(&secret_key), "{first:?}");
    let object = secret("zzz", "good", Holds::Pair(0));
    world
        .store
        .source_read(&secret_key, Ok(Some(object)), world.now);
    world.turn();
    assert!(world.get(ResourceKind::Certificate, "zzz/good").is_some());
    // What the tenant no longer refers to is not read, so the queue is as long as the last edit.
    let mut reads = 1;
    for source in first.iter().filter(|source| **source != secret_key) {
        world.store.source_read(source, Ok(None), world.now);
    }
    loop {
        let sources = world.store.sources_to_read(8, world.now);
        if sources.is_empty() {
            break;
        }
        reads += sources.len();
        for source in sources {
            world.store.source_read(&source, Ok(None), world.now);
        }
    }
    assert_eq!(reads, REFERENCES);
    // The answers are translated together, not one after the other.
    world.look_on();
    assert_eq!(world.store.look_at(), None);
    let flooded = key(Kind::ListenerSet, "aaa", "flood");
    assert!(!world.store.control.translator.is_undecided(&flooded));
}

#[test]
fn an_unread_source_is_pending_and_only_an_answer_says_that_it_does_not_exist() {
    let mut world = World::new();
    world.put(good());
    let set_key = key(Kind::ListenerSet, "zzz", "set");
    let source = key(Kind::Secret, "zzz", "good");
    let statuses = world.turn();
    let status = &statuses[&set_key];
    let (resolved, message) = condition(status, "ResolvedRefs");
    assert_eq!(resolved, "Unknown");
    assert!(
        message.contains("Secret zzz/good is being read"),
        "{message}"
    );
    assert_eq!(condition(status, "Programmed").1, message);
    let written = |world: &mut World| {
        let live = statuses::plan::LiveStatus::new("100".into(), 0, &Value::Null);
        world.store.planner.done(&set_key, Ok(live), world.now);
    };
    written(&mut world);
    // A read that fails says nothing about it.
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    world
        .store
        .source_read(&source, Err("no answer".into()), world.now);
    world.store.read_again(&source, world.now);
    let statuses = world.turn();
    assert_eq!(condition(&statuses[&set_key], "ResolvedRefs").0, "Unknown");
    written(&mut world);
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    world.store.source_read(&source, Ok(None), world.now);
    world.look_on();
    let statuses = world.turn();
    let (resolved, message) = condition(&statuses[&set_key], "ResolvedRefs");
    assert_eq!(resolved, "False");
    assert!(
        message.contains("Secret zzz/good does not exist"),
        "{message}"
    );
    written(&mut world);
    // It is created, and deleted again: the watch says so, and nothing has to be read.
    world.put(secret("zzz", "good", Holds::Pair(0)));
    let statuses = world.turn();
    assert_eq!(condition(&statuses[&set_key], "ResolvedRefs").0, "True");
    written(&mut world);
    world.store.take([Event::Remove(source.clone())], world.now);
    let statuses = world.turn();
    assert_eq!(condition(&statuses[&set_key], "ResolvedRefs").0, "False");
    assert_eq!(world.store.sources_to_read(8, world.now), []);
}

#[test]
fn what_did_not_exist_when_it_was_used_before_is_read_again() {
    let mut world = World::new();
    world.put(good());
    let source = key(Kind::Secret, "zzz", "good");
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    world.store.source_read(&source, Ok(None), world.now);
    // The Secret is created while nothing uses it, so its event is dropped.
    world.put(set(
        "zzz",
        "set",
        2,
        "one",
        vec![passthrough("web", "zzz.example.com")],
    ));
    world.put(secret("zzz", "good", Holds::Pair(0)));
    world.put(good());
    world.look_on();
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    // It is given up and used again while it is being read, and an event comes in between. Then the result is too old.
    world.put(set(
        "zzz",
        "set",
        2,
        "one",
        vec![passthrough("web", "zzz.example.com")],
    ));
    world.put(secret("zzz", "good", Holds::Pair(0)));
    world.put(good());
    assert_eq!(world.store.sources_to_read(8, world.now), []);
    world.store.source_read(&source, Ok(None), world.now);
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    let found = secret("zzz", "good", Holds::Pair(0));
    world.store.source_read(&source, Ok(Some(found)), world.now);
    world.turn();
    assert!(world.get(ResourceKind::Certificate, "zzz/good").is_some());
}
