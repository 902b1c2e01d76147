//! A Secret that comes into use has to be read first. Until then only what needs it waits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use serde_json::Value;
use tracing::{Level, Metadata, Subscriber, span};
use vestibule_crds::watch::Event;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::cluster::ReadError;
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::statuses::plan::{Next, StatusTiming};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::cluster::store::Store;
use vestibule_operator::publish::{self, Publisher};
use vestibule_operator::translate::CONTROLLER;
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::store::{leading_store, shown};
use vestibule_stream::proto::resource;
use vestibule_stream::{ResourceKey, ResourceKind};

/// References of one listener.
const REFERENCES: usize = 64;

/// ListenerSets that a tenant may have.
const SETS: usize = 20;
/// The counter of the statuses that translation assembled.
const STATUSES: &str = "vestibule_operator_translated_total{unit=\"status\"}";
/// The counter of the passes of translation.
const PASSES: &str = "vestibule_operator_translation_seconds_count";

/// The store of an operator that leads, without an API server.
struct World {
    store: Store,
    publisher: Arc<Publisher>,
    metrics: Registry,
    now: Instant,
    version: u64,
}

thread_local! {
    /// How many lines this thread has logged at the default level.
    static LINES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the lines of each thread. It is the subscriber of the whole process, because `tracing` would otherwise ask only the
/// thread that comes to a line first whether anybody wants it.
struct Lines;

impl Lines {
    fn begin() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Self).expect("the only one"));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Returns how many lines `work` logs.
fn lines_of(work: impl FnOnce()) -> usize {
    let before = LINES.get();
    work();
    LINES.get() - before
}

impl World {
    fn new() -> Self {
        Lines::begin();
        let publisher = Publisher::new(publish::Config::default());
        publisher.lead(1).expect("a first term");
        let timing = StatusTiming {
            patience: Duration::ZERO,
            ..StatusTiming::default()
        };
        let (metrics, mut registry_of_metrics) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry_of_metrics);
        let now = Instant::now();
        let store = leading_store(&publisher, timing, metrics, now);
        let mut world = Self {
            store,
            publisher,
            metrics: registry_of_metrics,
            now,
            version: 0,
        };
        world.put(our_class());
        world.put(gateway("one", vec![], NamespaceScope::All));
        world
    }

    fn put(&mut self, object: Object) {
        self.version += 1;
        self.store.take([shown(object, self.version)], self.now);
    }

    /// Lets the time pass after which translation gets to know what does not exist.
    fn look_on(&mut self) {
        self.now = self.store.look_at().expect("something to look at");
        self.store.look_on(self.now);
    }

    /// Reads every source that is wanted, as slowly as an API server that answers every read after 100 ms. None exists.
    fn read_slowly(&mut self) {
        loop {
            let sources = self.store.sources_to_read(8, self.now);
            if sources.is_empty() && self.store.look_at().is_none() {
                return;
            }
            let reads = sources.into_iter().map(|source| (source, Ok(None)));
            self.store.sources_read(reads, self.now);
            self.now += Duration::from_millis(100);
            if self.store.look_at().is_some_and(|at| at <= self.now) {
                self.store.look_on(self.now);
            }
        }
    }

    /// Returns the value of a counter.
    fn counter(&self, name: &str) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().expect("a number"))
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

/// One of many ListenerSets of a tenant. Each has as many listeners as possible, and all refer to the same Secrets, as many
/// as possible, which do not exist.
fn crowd(index: usize) -> Object {
    let listeners = (0..64).map(|n| {
        let tls = Some(Tls::Terminate("aaa".into(), "none".into()));
        let hostname = format!("l{n}.s{index}.example.com");
        let mut listener = listener(&format!("l{n}"), 443, Protocol::Https, &hostname, tls);
        let references = (0..8).map(|r| Reference {
            group: "".into(),
            kind: "Secret".into(),
            target: ObjectName::new("aaa", format!("none-{n:02}-{r}")),
            field: format!("spec.listeners[l{n}].tls.certificateRefs[{r}]"),
        });
        listener.tls.as_mut().expect("TLS").certificates = references.collect();
        listener
    });
    let listeners = listeners.collect();
    set("aaa", &format!("s{index:02}"), 1, "one", listeners)
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
        .sources_read([(secret_key.clone(), Ok(Some(object)))], world.now);
    world.turn();
    assert!(world.get(ResourceKind::Certificate, "zzz/good").is_some());
    // What the tenant no longer refers to is not read, so the queue is as long as the last edit.
    let mut reads = 1;
    for source in first.iter().filter(|source| **source != secret_key) {
        world
            .store
            .sources_read([(source.clone(), Ok(None))], world.now);
    }
    loop {
        let sources = world.store.sources_to_read(8, world.now);
        if sources.is_empty() {
            break;
        }
        reads += sources.len();
        for source in sources {
            world.store.sources_read([(source, Ok(None))], world.now);
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
    world.store.sources_read(
        [(source.clone(), Err(ReadError::NoAnswer("no answer".into())))],
        world.now,
    );
    world.store.read_again(&source, world.now);
    let statuses = world.turn();
    assert_eq!(condition(&statuses[&set_key], "ResolvedRefs").0, "Unknown");
    written(&mut world);
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    world
        .store
        .sources_read([(source.clone(), Ok(None))], world.now);
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
fn source_that_was_absent_at_its_earlier_use_is_read_again() {
    let mut world = World::new();
    world.put(good());
    let source = key(Kind::Secret, "zzz", "good");
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    world
        .store
        .sources_read([(source.clone(), Ok(None))], world.now);
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
    assert_eq!(world.store.look_at(), None, "the answer is too old");
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
    world
        .store
        .sources_read([(source.clone(), Ok(None))], world.now);
    assert_eq!(
        world.store.sources_to_read(8, world.now),
        std::slice::from_ref(&source)
    );
    let found = secret("zzz", "good", Holds::Pair(0));
    world
        .store
        .sources_read([(source.clone(), Ok(Some(found)))], world.now);
    world.turn();
    assert!(world.get(ResourceKind::Certificate, "zzz/good").is_some());
}

#[test]
fn a_tenant_with_thousands_of_findings_does_not_flood_the_log() {
    let mut world = World::new();
    let begin = world.now;
    let before = world.counter(STATUSES);
    let lines = lines_of(|| {
        for index in 0..SETS {
            world.put(crowd(index));
        }
        world.read_slowly();
    });
    let seconds = usize::try_from((world.now - begin).as_secs()).expect("a number");
    assert!(
        (100..=102 + seconds + seconds / 10).contains(&lines),
        "{lines} lines in {seconds} s"
    );
    // All findings are known, and came in a few batches, not with each answer.
    let flooded = key(Kind::ListenerSet, "aaa", "s00");
    let findings = &world.store.control.translator.findings()[&flooded];
    assert!(findings.len() >= 512, "{} findings", findings.len());
    let statuses = world.counter(STATUSES) - before;
    assert!(statuses < SETS * 30, "{statuses} statuses");
}

#[test]
fn reads_that_fail_again_and_again_do_not_flood_the_log() {
    let mut world = World::new();
    let lines = lines_of(|| {
        world.put(crowd(0));
        for _ in 0..5 {
            let mut failed = Vec::new();
            loop {
                let sources = world.store.sources_to_read(8, world.now);
                if sources.is_empty() {
                    break;
                }
                failed.extend(sources.clone());
                let reads = sources
                    .into_iter()
                    .map(|source| (source, Err(ReadError::NoAnswer("no answer".into()))));
                world.store.sources_read(reads, world.now);
            }
            assert_eq!(failed.len(), 512);
            for source in failed {
                world.store.read_again(&source, world.now);
            }
        }
    });
    assert!((1..=100).contains(&lines), "{lines} lines");
}

#[test]
fn secrets_that_are_read_together_are_translated_together() {
    let mut world = World::new();
    world.put(crowd(0));
    let before = world.counter(PASSES);
    let sources = world.store.sources_to_read(8, world.now);
    assert_eq!(sources.len(), 4);
    let reads = sources.into_iter().map(|source| {
        let object = secret("aaa", &source.name.name, Holds::Pair(0));
        (source, Ok(Some(object)))
    });
    world.store.sources_read(reads, world.now);
    assert_eq!(world.counter(PASSES) - before, 1);
}

#[test]
fn a_clock_that_goes_back_is_passed_on_once() {
    let mut world = World::new();
    world.store.time(1_000, world.now);
    let before = world.counter(PASSES);
    // Each row is a time, and how many times were passed on until then.
    for (seconds, passed) in [
        (1_000, 0),
        (1_001, 0),
        (900, 1),
        (900, 1),
        (950, 1),
        (899, 2),
    ] {
        world.store.pass_time(seconds, world.now);
        assert_eq!(world.counter(PASSES) - before, passed, "{seconds}");
    }
}
