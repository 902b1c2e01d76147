//! Statuses that others write, too: nothing of theirs is lost, and each edit costs one write of ours.

use kube::api::PostParams;
use serde_json::{Value, json};
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World};

/// How often each of the others writes.
const WRITES: usize = 25;
const SEEN: &str = "example.com/Seen";
const OTHER: &str = "example.com/other";

/// A condition of somebody else's, whose message counts.
fn seen(count: usize) -> Value {
    json!({
        "type": SEEN, "status": "True", "reason": "Seen", "message": count.to_string(),
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// Finds a list of conditions in the status of an object, and makes what is missing around it.
type FindConditions = fn(&mut Value) -> Option<&mut Vec<Value>>;

fn of_object(object: &mut Value) -> Option<&mut Vec<Value>> {
    object.pointer_mut("/status/conditions")?.as_array_mut()
}

fn of_listener(object: &mut Value) -> Option<&mut Vec<Value>> {
    let conditions = object.pointer_mut("/status/listeners/0/conditions");
    conditions?.as_array_mut()
}

/// The conditions of the other controller's entry for a route.
fn of_their_parent(object: &mut Value) -> Option<&mut Vec<Value>> {
    of_their_entry(object, "parents", "parentRef")
}

/// The same for a policy.
fn of_their_ancestor(object: &mut Value) -> Option<&mut Vec<Value>> {
    of_their_entry(object, "ancestors", "ancestorRef")
}

fn of_their_entry<'a>(
    object: &'a mut Value,
    list: &str,
    reference: &str,
) -> Option<&'a mut Vec<Value>> {
    let entries = object["status"][list].as_array_mut()?;
    let theirs = |entry: &Value| entry["controllerName"] == OTHER;
    if !entries.iter().any(theirs) {
        entries.push(json!({
            reference: {"name": "elsewhere"}, "controllerName": OTHER, "conditions": [],
        }));
    }
    let entry = entries.iter_mut().find(|entry| theirs(entry))?;
    entry["conditions"].as_array_mut()
}

fn count(conditions: &[Value]) -> Option<usize> {
    let seen = conditions.iter().find(|c| c["type"] == SEEN)?;
    seen["message"].as_str()?.parse().ok()
}

/// Counts up in a status, one write after another, each on top of what is there.
async fn count_up(
    world: &World,
    (kind, part, name): (&str, &str, &str),
    conditions_of: FindConditions,
) {
    let api = world.api(kind, &world.ns(part));
    for _ in 0..WRITES {
        eventually("a write of somebody else's", async || {
            let object = api.get(name).await.expect("it is there");
            let mut object = serde_json::to_value(object).expect("JSON");
            let conditions = conditions_of(&mut object)?;
            let next = count(conditions).unwrap_or_default() + 1;
            conditions.retain(|c| c["type"] != SEEN);
            conditions.push(seen(next));
            let object = serde_json::from_value(object).expect("an object");
            // In conflict with whoever was quicker: once more.
            let parameters = PostParams::default();
            api.replace_status(name, &parameters, &object).await.ok()
        })
        .await;
    }
}

/// Conditions that are ours and not about the present generation.
fn outdated(object: &Value) -> Vec<Value> {
    let mut lists = vec![&object["status"]["conditions"]];
    for parts in ["listeners", "parents", "ancestors"] {
        let parts = object["status"][parts].as_array();
        let ours = parts.into_iter().flatten();
        let ours = ours.filter(|part| part["controllerName"] != OTHER);
        lists.extend(ours.map(|part| &part["conditions"]));
    }
    lists
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter(|c| c["type"] != SEEN)
        .filter(|c| c["observedGeneration"] != object["metadata"]["generation"])
        .cloned()
        .collect()
}

/// Waits until nothing is left to write.
async fn at_rest(manager: &Manager) {
    let rest = async || (manager.metric("vestibule_operator_statuses_waiting ") == 0).then_some(());
    eventually("nothing that waits", rest).await;
}

/// A set that speaks HTTP, an HTTPRoute with this hostname, its Service, and a policy for that.
fn over_http(world: &World, hostname: &str) -> [Value; 4] {
    let mut set = world.set("a", "plain", "shared", "*.example.com");
    let listener = &mut set["spec"]["listeners"][0];
    listener["protocol"] = json!("HTTP");
    listener["port"] = json!(80);
    listener.as_object_mut().expect("an object").remove("tls");
    let mut route = world.route("a", "plain", "plain", hostname);
    route["kind"] = json!("HTTPRoute");
    route["spec"]["rules"][0]["backendRefs"][0]["name"] = json!("plain");
    let space = world.ns("a");
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "plain", "namespace": space},
        "spec": {"ports": [{"port": 443}], "clusterIP": "None"},
    });
    let policy = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"name": "plain", "namespace": space},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "plain"}],
            "validation": {
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "absent"}],
                "hostname": hostname,
            },
        },
    });
    [set, route, service, policy]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn status_conditions_that_others_write_at_the_same_time_are_not_lost() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let set = ("ListenerSet", "a", "mine");
    let route = ("TLSRoute", "a", "web");
    let hostname = |n: usize| format!("{n}.example.com");
    world
        .apply(world.set("a", "mine", "shared", &hostname(0)))
        .await;
    world
        .apply(world.route("a", "web", "mine", &hostname(0)))
        .await;
    let (plain, policy) = (
        ("HTTPRoute", "a", "plain"),
        ("BackendTLSPolicy", "a", "plain"),
    );
    for object in over_http(&world, &hostname(0)) {
        world.apply(object).await;
    }
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    world
        .condition(set, ("Programmed", "True", "Programmed"))
        .await;
    for route in [route, plain] {
        world
            .condition(route, ("Accepted", "True", "Accepted"))
            .await;
    }
    let no_map = ("Accepted", "False", "NoValidCACertificate");
    world.condition(policy, no_map).await;

    let gateway = ("Gateway", "infra", "shared");
    let others = [
        (gateway, of_object as FindConditions),
        (gateway, of_listener),
        (set, of_object),
        (set, of_listener),
        (route, of_their_parent),
        (plain, of_their_parent),
        (policy, of_their_ancestor),
    ];
    let writers = others
        .iter()
        .map(|(object, conditions_of)| count_up(&world, *object, *conditions_of));
    // Meanwhile there is always something that we have to write, about each of the objects.
    let user = async {
        for n in 1..=WRITES {
            world
                .apply(world.set("a", "mine", "shared", &hostname(n)))
                .await;
            world
                .apply(world.route("a", "web", "mine", &hostname(n)))
                .await;
            for object in over_http(&world, &hostname(n)) {
                world.apply(object).await;
            }
            let mut gateway = world.gateway("shared");
            gateway["spec"]["listeners"][0]["hostname"] = json!(format!("own-{n}.example.com"));
            world.apply(gateway).await;
        }
    };
    tokio::join!(futures::future::join_all(writers), user);

    for (kind, part, name) in [gateway, set, route, plain, policy] {
        let current = async || {
            let object = world.get(kind, part, name).await?;
            let programmed = object["status"].get("listeners").is_none() || {
                let c = object["status"]["conditions"].as_array()?;
                c.iter()
                    .any(|c| c["type"] == "Programmed" && c["status"] == "True")
            };
            (programmed && outdated(&object).is_empty()).then_some(())
        };
        eventually("conditions about the present generation", current).await;
    }
    at_rest(&manager).await;
    for ((kind, part, name), conditions_of) in others {
        let mut object = world.get(kind, part, name).await.expect("it is there");
        let conditions = conditions_of(&mut object).expect("conditions");
        let theirs: Vec<&Value> = conditions.iter().filter(|c| c["type"] == SEEN).collect();
        // As it was written, its time included, and not one of the writes undone.
        assert_eq!(theirs, [&seen(WRITES)], "{kind}");
    }
    let lists = [
        (route, "parents"),
        (plain, "parents"),
        (policy, "ancestors"),
    ];
    for ((kind, part, name), list) in lists {
        let object = world.get(kind, part, name).await.expect("it is there");
        let entries = object["status"][list].as_array().map(Vec::len);
        assert_eq!(entries, Some(2), "{object:#}");
    }
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn an_edit_is_one_write_of_each_object_that_it_concerns() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    for part in ["a", "b"] {
        let hostname = format!("{part}.example.com");
        let set = world.set(part, "mine", "shared", &hostname);
        world.apply(set).await;
        let route = world.route(part, "web", "mine", &hostname);
        world.apply(route).await;
    }
    let manager = world.patient_manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    for part in ["a", "b"] {
        let set = ("ListenerSet", part, "mine");
        world
            .condition(set, ("Programmed", "True", "Programmed"))
            .await;
        let route = ("TLSRoute", part, "web");
        world
            .condition(route, ("ResolvedRefs", "False", "BackendNotFound"))
            .await;
    }
    world
        .condition(
            ("Gateway", "infra", "shared"),
            ("Programmed", "True", "Programmed"),
        )
        .await;
    for part in ["a", "b"] {
        routes_count(&world, part, 1).await;
    }
    at_rest(&manager).await;

    let (tenant, infra) = (world.ns("a"), world.ns("infra"));
    let set = format!("update listenersets/status {tenant}/mine");
    let route = format!("update tlsroutes/status {tenant}/web");
    let gateway = format!("update gateways/status {infra}/shared");
    let mut before = status_writes(&world, &manager, 0).await.len();
    let mut since = async |what: &str, expected: &[&String]| {
        at_rest(&manager).await;
        let writes = status_writes(&world, &manager, before + expected.len())
            .await
            .split_off(before);
        before += writes.len();
        let mut writes: Vec<&String> = writes.iter().collect();
        writes.sort();
        assert_eq!(writes, expected, "{what}");
    };

    // Another hostname of the set, which the route does not have: both say so.
    world
        .apply(world.set("a", "mine", "shared", "other.example.com"))
        .await;
    world
        .condition(
            ("TLSRoute", "a", "web"),
            ("Accepted", "False", "NoMatchingListenerHostname"),
        )
        .await;
    generation_seen(&world, "ListenerSet", "mine").await;
    since("a set's hostname", &[&set, &route]).await;

    // The route follows: its own status, and the number in the set's.
    world
        .apply(world.route("a", "web", "mine", "other.example.com"))
        .await;
    generation_seen(&world, "TLSRoute", "web").await;
    routes_count(&world, "a", 1).await;
    since("a route's hostname", &[&set, &route]).await;

    // Its backend appears.
    world
        .apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "nobody", "namespace": tenant},
            "spec": {"ports": [{"port": 443}], "clusterIP": "None"},
        }))
        .await;
    world
        .condition(
            ("TLSRoute", "a", "web"),
            ("ResolvedRefs", "True", "ResolvedRefs"),
        )
        .await;
    since("a Service", &[&route]).await;

    // The route goes: the set counts one less.
    world.delete("TLSRoute", "a", "web").await;
    routes_count(&world, "a", 0).await;
    since("a route that goes", &[&set]).await;

    // The set goes: the Gateway counts one less. The other tenant's objects were never written.
    world.delete("ListenerSet", "a", "mine").await;
    eventually("one set less", async || {
        let gateway = world.get("Gateway", "infra", "shared").await?;
        (gateway["status"]["attachedListenerSets"] == 1).then_some(())
    })
    .await;
    since("a set that goes", &[&gateway]).await;
    manager.stop().await;
}

/// Waits until everything in an object's status is about its present generation.
async fn generation_seen(world: &World, kind: &str, name: &str) {
    eventually("a status about the present generation", async || {
        let object = world.get(kind, "a", name).await?;
        outdated(&object).is_empty().then_some(())
    })
    .await;
}

/// Every status written by an operator that is at rest, which are so many at least: both the log and the
/// count follow a little behind.
async fn status_writes(world: &World, manager: &Manager, least: usize) -> Vec<String> {
    eventually("a log that has all writes", async || {
        let writes = manager.metric("vestibule_operator_status_writes_total");
        let mut logged = world.writes(&manager.agent);
        logged.retain(|write| write.contains("/status "));
        let all = logged.len() as u64 == writes && logged.len() >= least;
        all.then_some(logged)
    })
    .await
}

/// Waits until the tenant's set counts so many routes.
async fn routes_count(world: &World, part: &str, routes: usize) {
    eventually("a number of routes", async || {
        let set = world.get("ListenerSet", part, "mine").await?;
        (set["status"]["listeners"][0]["attachedRoutes"] == routes).then_some(())
    })
    .await;
}
