//! The watch against a server in memory that pages, hangs up, forgets, and does not serve every kind.
#![cfg(feature = "watch")]
// The time of these tests is paused: whatever waits, waits for nothing else.

mod watch_support;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio::time::timeout;
use vestibule_crds::watch::{CopiedAnnotations, Event, Scope, Watched, watch};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use watch_support::{PASS, Server};

const GATEWAYS: &str = "gateways";

/// What somebody who listens knows.
struct Listener {
    events: BoxStream<'static, Event>,
    objects: BTreeMap<ObjectKey, Watched>,
    synced: Vec<Kind>,
    /// Whether the watch is interrupted, and how often it was.
    is_interrupted: bool,
    interruptions: usize,
    puts: usize,
    touched: usize,
}

impl Listener {
    fn new(server: &Server, kinds: &[Kind]) -> Self {
        Self::of(watch(&server.client(), &Scope::new(kinds.to_vec())))
    }

    fn of(events: impl Stream<Item = Event> + Send + 'static) -> Self {
        Self {
            events: events.boxed(),
            objects: BTreeMap::new(),
            synced: Vec::new(),
            is_interrupted: false,
            interruptions: 0,
            puts: 0,
            touched: 0,
        }
    }

    async fn next(&mut self) -> Option<Event> {
        // An hour of paused time: whatever is retried has been by then.
        let event = timeout(Duration::from_hours(1), self.events.next())
            .await
            .ok()?;
        match event.as_ref().expect("it never ends") {
            Event::Put(watched) => {
                self.puts += 1;
                self.objects
                    .insert(watched.key.clone(), (**watched).clone());
            }
            Event::Touched(touched) => {
                self.touched += 1;
                let known = self.objects.get_mut(&touched.key);
                let known = known.expect("it was put");
                known.resource_version = touched.resource_version.clone();
                known.status = touched.status.clone();
            }
            Event::Remove(key) => {
                assert!(self.objects.remove(key).is_some(), "{key} was not put");
            }
            Event::Synced(kind) => {
                assert!(!self.synced.contains(kind), "{kind} is synced twice");
                self.synced.push(*kind);
            }
            Event::Interrupted(kind) => {
                assert!(self.synced.contains(kind), "{kind} is not synced");
                assert!(!self.is_interrupted, "{kind} is interrupted twice");
                self.is_interrupted = true;
                self.interruptions += 1;
            }
            Event::Resumed(kind) => {
                assert!(self.is_interrupted, "{kind} was not interrupted");
                self.is_interrupted = false;
            }
        }
        event
    }

    async fn until(&mut self, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            assert!(self.next().await.is_some(), "nothing comes any more");
        }
    }

    async fn synced(&mut self, kind: Kind) {
        self.until(|listener| listener.synced.contains(&kind)).await;
    }

    fn names(&self) -> Vec<&str> {
        self.objects.keys().map(|key| &*key.name.name).collect()
    }
}

fn gateway() -> Value {
    json!({"spec": {"gatewayClassName": "vestibule", "listeners": []}})
}

fn gateways(server: &Server) -> Listener {
    Listener::new(server, &[Kind::Gateway])
}

fn lists(server: &Server) -> usize {
    let of_list = |request: &String| request.contains("limit=") && !request.contains("watch=");
    server.requests().into_iter().filter(of_list).count()
}

/// Of annotations that nobody here reads, those that settings name are kept, if they are not too long.
#[tokio::test(start_paused = true)]
async fn annotations_to_copy_are_kept() {
    let server = Server::new();
    let mut noted = gateway();
    noted["metadata"]["annotations"] = json!({
        "a.example/x": "kept", "a.example/y": "left", "a.example/long": "l".repeat(8193),
    });
    server.put(GATEWAYS, "a", "g", noted);
    let mut scope = Scope::new([Kind::Gateway]);
    let keys = ["a.example/x", "a.example/long", "a.example/absent"];
    scope.copied = CopiedAnnotations::parse(keys).expect("keys");
    let mut listener = Listener::of(watch(&server.client(), &scope));
    listener.synced(Kind::Gateway).await;
    let watched = listener.objects.values().next().expect("the Gateway");
    let Object::Gateway(gateway) = &watched.object else {
        panic!("{watched:?}");
    };
    let copied = &gateway.certificates.options.copied_annotations;
    assert_eq!(
        copied,
        &BTreeMap::from([("a.example/x".into(), "kept".into())])
    );
    let [finding] = &gateway.certificates.findings[..] else {
        panic!("{:?}", gateway.certificates.findings);
    };
    assert!(finding.refuses() && finding.field.contains("a.example/long"));
}

/// Kinds are decoded side by side, on as many threads as there are.
#[tokio::test(start_paused = true)]
async fn each_kind_has_a_task_that_ends_with_the_stream() {
    let server = Server::new();
    for index in 0..100 {
        server.put(GATEWAYS, "a", &format!("g{index}"), gateway());
    }
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let client = server.client();
    let before = tasks();
    let events = watch(
        &client,
        &Scope::new([Kind::Gateway, Kind::Secret, Kind::Service]),
    );
    assert_eq!(tasks(), before + 3);
    let mut listener = Listener::of(events);
    listener.synced(Kind::Gateway).await;
    assert_eq!(listener.objects.len(), 100);
    drop(listener);
    let ended = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_hours(1), ended)
        .await
        .expect("they end");
}

/// An object of a generation with a status.
fn written(generation: i64, status: i64) -> Value {
    let mut object = gateway();
    object["metadata"]["generation"] = generation.into();
    object["status"] = json!({"observedGeneration": status});
    object
}

/// Writes of a status, by ourselves or by others, are not decoded.
#[tokio::test(start_paused = true)]
async fn watched_object_is_not_decoded_again_if_nothing_that_is_read_changes() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "g", written(1, 0));
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    let before = listener.objects.clone();
    for status in 1..=100 {
        server.put(GATEWAYS, "a", "g", written(1, status));
    }
    listener.until(|l| l.touched == 100).await;
    assert_eq!(listener.puts, 1);
    let (key, known) = listener.objects.first_key_value().expect("a Gateway");
    assert_eq!(known.status, json!({"observedGeneration": 100}));
    assert_ne!(known.resource_version, before[key].resource_version);
    assert_eq!(known.object, before[key].object);

    // Whatever is read of it is.
    let mut puts = 1;
    let changes: [fn(&mut Value); 5] = [
        |object| object["metadata"]["generation"] = 2.into(),
        |object| object["metadata"]["labels"] = json!({"a": "b"}),
        |object| object["metadata"]["annotations"] = json!({"a": "b"}),
        |object| object["metadata"]["uid"] = "another".into(),
        |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
    ];
    let mut object = written(1, 100);
    for change in changes {
        change(&mut object);
        server.put(GATEWAYS, "a", "g", object.clone());
        puts += 1;
        listener.until(|l| l.puts == puts).await;
    }
    assert_eq!(listener.touched, 100);

    // One that comes back by the same name is another one.
    server.delete(GATEWAYS, "a", "g");
    server.put(GATEWAYS, "a", "g", object);
    listener.until(|l| l.puts == puts + 1).await;
}

/// A restore of the server sets generations back: the same one may be another object then.
#[tokio::test(start_paused = true)]
async fn after_a_list_nobody_relies_on_generations() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "g", written(1, 0));
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    server.hang_up();
    let mut restored = written(1, 0);
    restored["spec"]["gatewayClassName"] = "another".into();
    server.put(GATEWAYS, "a", "g", restored);
    server.compact();
    listener.until(|l| l.puts == 2).await;
    let Some(Object::Gateway(gateway)) = listener.objects.values().next().map(|w| &w.object) else {
        panic!("{:?}", listener.objects);
    };
    assert_eq!(&*gateway.class, "another");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_many_pages_and_then_what_changes() {
    let server = Server::new();
    for index in 0..1201 {
        server.put(GATEWAYS, "a", &format!("g{index}"), gateway());
    }
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    assert_eq!(listener.objects.len(), 1201);
    assert_eq!(lists(&server), 3);

    server.put(GATEWAYS, "a", "new", gateway());
    server.delete(GATEWAYS, "a", "g7");
    listener
        .until(|l| l.names().contains(&"new") && !l.names().contains(&"g7"))
        .await;
    assert_eq!(lists(&server), 3);
}

#[tokio::test(start_paused = true)]
async fn watched_object_comes_with_its_uid_version_generation_and_status() {
    let server = Server::new();
    let mut object = gateway();
    object["metadata"] =
        json!({"uid": "u-1", "generation": 3, "managedFields": [{"manager": "x"}]});
    object["status"] = json!({"conditions": [{"type": "Programmed"}]});
    server.put(GATEWAYS, "a", "g", object);
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    let watched = &listener.objects[&ObjectKey::new(Kind::Gateway, "a", "g")];
    let Object::Gateway(gateway) = &watched.object else {
        panic!("{watched:?}");
    };
    assert_eq!(&*gateway.class, "vestibule");
    assert_eq!(gateway.meta.generation, 3);
    assert_eq!((&*watched.uid, &*watched.resource_version), ("u-1", "1"));
    assert_eq!(watched.status["conditions"][0]["type"], "Programmed");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_goes_on_where_it_was() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "one", gateway());
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    server.put(GATEWAYS, "a", "two", gateway());
    listener.until(|l| l.objects.len() == 2).await;

    server.hang_up();
    server.put(GATEWAYS, "a", "three", gateway());
    listener.until(|l| l.objects.len() == 3).await;
    assert_eq!(lists(&server), 1);
    assert_eq!(listener.puts, 3);
    assert_eq!(listener.interruptions, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_from_too_long_ago_what_vanished_is_removed_and_the_same_does_not_come_again()
{
    let server = Server::new();
    for name in ["kept", "changed", "gone"] {
        server.put(GATEWAYS, "a", name, gateway());
    }
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    // A watch is there before it is lost.
    server.put(GATEWAYS, "a", "seen", gateway());
    listener.until(|l| l.objects.len() == 4).await;

    server.hang_up();
    server.delete(GATEWAYS, "a", "gone");
    server.put(GATEWAYS, "a", "changed", gateway());
    server.compact();
    listener.until(|l| l.objects.len() == 3).await;
    assert_eq!(listener.names(), ["changed", "kept", "seen"]);
    assert_eq!(lists(&server), 2);
    assert_eq!(listener.puts, 5, "only `changed` came a second time");

    server.put(GATEWAYS, "a", "later", gateway());
    listener.until(|l| l.names().contains(&"later")).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_as_gone_does_not_stay_there() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "g", gateway());
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    server.fail([410]);
    server.hang_up();
    server.put(GATEWAYS, "a", "later", gateway());
    listener.until(|l| l.objects.len() == 2).await;
    assert_eq!(lists(&server), 2);
}

/// As when an API server is started anew under a list of several pages.
#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_removes_nothing() {
    let server = Server::new();
    for index in 0..1201 {
        server.put(GATEWAYS, "a", &format!("g{index}"), gateway());
    }
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    // The watch is refused; of three lists, two end after their first or second page.
    server.fail([410, PASS, 503, PASS, PASS, 410]);
    server.hang_up();
    server.delete(GATEWAYS, "a", "g7");
    server.put(GATEWAYS, "a", "later", gateway());
    listener
        .until(|l| {
            assert!(l.objects.len() >= 1200, "something is taken for gone");
            l.names().contains(&"later") && !l.names().contains(&"g7")
        })
        .await;
    assert_eq!(listener.objects.len(), 1201);
    assert_eq!(
        listener.puts, 1202,
        "what did not change does not come again"
    );
    assert!(lists(&server) >= 3 + 6, "{}", lists(&server));
}

#[tokio::test(start_paused = true)]
async fn failures_are_waited_out() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "g", gateway());
    server.fail([500, 503, 429, 403, 504, 500]);
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    assert_eq!(listener.objects.len(), 1);
    // Nobody relies on a kind before everything was read, so a failure until then interrupts nothing.
    assert_eq!(listener.interruptions, 0);
    server.fail([500, 503, 500, 500, 500]);
    server.hang_up();
    server.put(GATEWAYS, "a", "later", gateway());
    listener.until(|l| l.is_interrupted).await;
    assert_eq!(listener.objects.len(), 1);
    listener.until(|l| l.objects.len() == 2).await;
    listener.until(|l| !l.is_interrupted).await;
    assert_eq!(listener.interruptions, 1);
    // Nothing changes, so the watch that goes on says nothing. The next interruption is one all the same.
    let before = lists(&server);
    for count in [2, 3] {
        server.fail([500]);
        server.hang_up();
        listener.until(|l| l.is_interrupted).await;
        listener.until(|l| !l.is_interrupted).await;
        assert_eq!(listener.interruptions, count);
    }
    assert_eq!(lists(&server), before);
}

#[tokio::test(start_paused = true)]
async fn one_object_that_does_not_decode_holds_up_nothing() {
    let server = Server::new();
    server.put(GATEWAYS, "a", "before", gateway());
    server.put(GATEWAYS, "a", "broken", json!({"spec": {"listeners": 7}}));
    server.put(GATEWAYS, "a", "Not_A_Name", gateway());
    server.put(GATEWAYS, "a", "without", json!({}));
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    let unreadable = |listener: &Listener, name: &str| {
        let watched = &listener.objects[&ObjectKey::new(Kind::Gateway, "a", name)];
        matches!(watched.object, Object::Unreadable(..))
    };
    assert!(!unreadable(&listener, "before"));
    assert!(unreadable(&listener, "broken"));
    assert!(unreadable(&listener, "Not_A_Name"));

    // The same while it is watched; and it is mended.
    server.put(GATEWAYS, "a", "before", json!({"spec": "text"}));
    listener.until(|l| unreadable(l, "before")).await;
    server.put(GATEWAYS, "a", "broken", gateway());
    listener.until(|l| !unreadable(l, "broken")).await;
    server.delete(GATEWAYS, "a", "Not_A_Name");
    listener.until(|l| !l.names().contains(&"Not_A_Name")).await;
}

#[tokio::test(start_paused = true)]
async fn watch_goes_on_after_messages_that_are_no_events() {
    let server = Server::new();
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    server.put(GATEWAYS, "a", "one", gateway());
    listener.until(|l| l.objects.len() == 1).await;
    server.send(GATEWAYS, &json!({"type": "NEWS", "object": {}}));
    server.send(GATEWAYS, &json!([1, 2]));
    server.put(GATEWAYS, "a", "two", gateway());
    listener.until(|l| l.objects.len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_installed_is_synced_and_watched_when_it_appears() {
    let server = Server::new();
    let mut listener = Listener::new(&server, &[Kind::Gateway, Kind::TlsRoute]);
    listener.synced(Kind::TlsRoute).await;
    listener.synced(Kind::Gateway).await;

    server.serve("gateway.networking.k8s.io/v1", "TLSRoute", "tlsroutes");
    server.put(
        "tlsroutes",
        "a",
        "r",
        json!({"spec": {"hostnames": ["a.example"]}}),
    );
    listener.until(|l| l.names() == ["r"]).await;
    server.delete("tlsroutes", "a", "r");
    listener.until(|l| l.objects.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_uninstalled_loses_its_objects_and_can_come_back() {
    let server = Server::new();
    let group_version = "gateway.networking.k8s.io/v1";
    server.put(GATEWAYS, "a", "one", gateway());
    server.put(GATEWAYS, "a", "two", gateway());
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;

    server.uninstall(group_version, GATEWAYS);
    listener.until(|l| l.objects.is_empty()).await;
    server.serve(group_version, "Gateway", GATEWAYS);
    server.put(GATEWAYS, "a", "back", gateway());
    listener.until(|l| l.names() == ["back"]).await;
}

/// As an API server says while it starts, before it has looked at all of its CRDs.
#[tokio::test(start_paused = true)]
async fn a_moment_without_a_kind_removes_nothing() {
    let server = Server::new();
    let group_version = "gateway.networking.k8s.io/v1";
    server.put(GATEWAYS, "a", "one", gateway());
    let mut listener = gateways(&server);
    listener.synced(Kind::Gateway).await;
    server.uninstall(group_version, GATEWAYS);
    let looks = || {
        let of_discovery = |request: &&String| request.ends_with(group_version);
        server.requests().iter().filter(of_discovery).count()
    };
    let before = looks();
    let next = listener.next().await;
    assert!(matches!(next, Some(Event::Interrupted(_))), "{next:?}");
    let nothing = timeout(Duration::from_secs(3), listener.events.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert!(looks() > before, "it was looked for");
    server.put(GATEWAYS, "a", "one", gateway());
    server.put(GATEWAYS, "a", "two", gateway());
    server.serve(group_version, "Gateway", GATEWAYS);
    let next = listener.next().await;
    assert!(matches!(next, Some(Event::Put(_))), "{next:?}");
    listener.until(|l| l.names() == ["one", "two"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_older_version_is_read_until_there_is_a_better_one() {
    let server = Server::new();
    let route = json!({"spec": {"hostnames": ["a.example"], "rules": [{"backendRefs": []}]}});
    server.serve(
        "gateway.networking.k8s.io/v1alpha2",
        "TLSRoute",
        "tlsroutes",
    );
    server.put("tlsroutes", "a", "r", route);
    let mut listener = Listener::new(&server, &[Kind::TlsRoute]);
    listener.synced(Kind::TlsRoute).await;
    let key = ObjectKey::new(Kind::TlsRoute, "a", "r");
    assert!(matches!(listener.objects[&key].object, Object::TlsRoute(_)));

    server.serve("gateway.networking.k8s.io/v1", "TLSRoute", "tlsroutes");
    // It is read again in the new version, though it did not change.
    listener.until(|l| l.puts == 2).await;
    let last = server
        .requests()
        .into_iter()
        .rfind(|r| r.contains("/tlsroutes"));
    assert!(last.is_some_and(|request| request.contains("/v1/tlsroutes")));
}

#[tokio::test(start_paused = true)]
async fn secrets_that_are_no_certificates_are_not_asked_for() {
    let server = Server::new();
    let mut listener = Listener::new(&server, &[Kind::Secret]);
    listener.synced(Kind::Secret).await;
    let list = server.requests().into_iter().find(|r| r.contains("limit="));
    let list = list.expect("a list");
    for left_out in ["helm.sh", "service-account-token"] {
        assert!(
            list.contains("fieldSelector=") && list.contains(left_out),
            "{list}"
        );
    }
}
