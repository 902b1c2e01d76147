//! Statuses: complete, written once, and not written again.

use serde_json::{Value, json};
use vestibule_operator_testing::stream::Proxy;
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World, condition};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn each_object_is_written_once_and_a_restart_writes_nothing() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let manager = world.patient_manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    manager.leading().await;
    world
        .condition(
            ("Gateway", "infra", "shared"),
            ("Programmed", "True", "Programmed"),
        )
        .await;

    // What the tenant applies is in force before its status is first written.
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    world
        .apply(world.route("a", "web", "mine", "a.example.com"))
        .await;
    let set = ("ListenerSet", "a", "mine");
    world
        .condition(set, ("Programmed", "True", "Programmed"))
        .await;
    world
        .condition(("TLSRoute", "a", "web"), ("Accepted", "True", "Accepted"))
        .await;
    let attached = async || {
        let set = world.get("ListenerSet", "a", "mine").await?;
        (set["status"]["listeners"][0]["attachedRoutes"] == 1).then_some(set)
    };
    let before = eventually("a route that counts", attached).await;
    assert_eq!(
        before["status"]["listeners"][0]["conditions"]
            .as_array()
            .map(Vec::len),
        Some(4)
    );
    // The listener's hostname, which the route uses, and the port are held, and that is written.
    let held = async || (world.list("HostnameClaim", "infra").await.len() == 2).then_some(());
    eventually("a claim to the name and one to the port", held).await;
    let writes = world.writes(&manager.agent);
    let of = |name: &str| writes.iter().filter(|write| write.ends_with(name)).count();
    let tenant = world.ns("a");
    // Once by itself, and once for the route that came later.
    assert!(
        (1..=2).contains(&of(&format!("listenersets/status {tenant}/mine"))),
        "{writes:#?}"
    );
    assert_eq!(
        of(&format!("tlsroutes/status {tenant}/web")),
        1,
        "{writes:#?}"
    );
    assert_eq!(
        of(&format!(
            "configmaps/ {}/{}-ports",
            world.ns("sys"),
            world.release
        )),
        2,
        "{writes:#?}"
    );

    manager.stop().await;
    let again = world.patient_manager("two");
    let _proxy = Network::of(&[&again]).proxy("p-1");
    again.leading().await;
    // It is at work: an edit gets its status.
    let mut edited = world.set("b", "other", "shared", "b.example.com");
    edited["spec"]["listeners"][0]["port"] = json!(8443);
    world.apply(edited).await;
    world
        .condition(
            ("ListenerSet", "b", "other"),
            ("Programmed", "True", "Programmed"),
        )
        .await;
    let rest = async || (again.metric("vestibule_operator_statuses_waiting ") == 0).then_some(());
    eventually("nothing that waits", rest).await;
    let writes = world.writes(&again.agent);
    // With it come the claims to its hostname and its port.
    let claims = format!(" hostnameclaims/ {}/", world.ns("infra"));
    let about_new = |write: &String| {
        write.ends_with("/other") || write.ends_with("infra/shared") || write.contains(&claims)
    };
    assert!(writes.iter().all(about_new), "{writes:#?}");
    assert!(writes.len() <= 4, "{writes:#?}");
    assert_eq!(world.get("ListenerSet", "a", "mine").await, Some(before));
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_proxy_that_is_held_up_keeps_it_pending_and_is_named() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1", "p-2"]).await;
    world.apply(world.gateway("shared")).await;
    let manager = world.manager("one");
    let network = Network::of(&[&manager]);
    let _first = network.proxy("p-1");
    let gateway = ("Gateway", "infra", "shared");
    let pending = world
        .condition(gateway, ("Programmed", "False", "Pending"))
        .await;
    assert_eq!(pending["message"], "1/2 acked; waiting for p-2");
    let _second = network.proxy("p-2");
    world
        .condition(gateway, ("Programmed", "True", "Programmed"))
        .await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_route_is_accepted_once_every_ready_proxy_has_it() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1", "p-2"]).await;
    world.apply(world.gateway("shared")).await;
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let manager = world.manager("one");
    let network = Network::of(&[&manager]);
    let _first = network.proxy("p-1");
    let second = network.proxy("p-2");
    world
        .condition(
            ("ListenerSet", "a", "mine"),
            ("Programmed", "True", "Programmed"),
        )
        .await;
    drop(second);
    world
        .apply(world.route("a", "web", "mine", "a.example.com"))
        .await;
    let accepted = async |status: &str, message: &str| {
        eventually(message, async || {
            let route = world.get("TLSRoute", "a", "web").await?;
            let parent = route["status"]["parents"].as_array()?.first()?.clone();
            let conditions = parent["conditions"].as_array()?.clone();
            let accepted = conditions.iter().find(|c| c["type"] == "Accepted")?;
            assert!(
                status == "True" || accepted["status"] != "True",
                "too early"
            );
            (accepted["status"] == status && accepted["message"] == message).then_some(())
        })
        .await;
    };
    accepted("Unknown", "1/2 acked; waiting for p-2").await;
    let _second = network.proxy("p-2");
    accepted("True", "The route is accepted").await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn route_that_leaves_our_gateway_loses_our_status_entry_and_keeps_others() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    world
        .apply(world.route("a", "web", "mine", "a.example.com"))
        .await;
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    let route = ("TLSRoute", "a", "web");
    world
        .condition(route, ("Accepted", "True", "Accepted"))
        .await;
    let foreign = json!({
        "parentRef": {
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "elsewhere",
        }, "controllerName": "example.com/other",
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    world.add_parent("a", "web", &foreign).await;
    // The route leaves our Gateway.
    let mut moved = world.route("a", "web", "mine", "a.example.com");
    moved["spec"]["parentRefs"] = json!([{"name": "elsewhere"}]);
    world.apply(moved).await;
    let left = async || {
        let route = world.get("TLSRoute", "a", "web").await?;
        (route["status"]["parents"] == json!([foreign])).then_some(())
    };
    eventually("a route with the other controller's entry alone", left).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_set_whose_gateway_is_gone_is_as_nobody_had_looked_at_it() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    let set = ("ListenerSet", "a", "mine");
    world
        .condition(set, ("Programmed", "True", "Programmed"))
        .await;
    world.delete("Gateway", "infra", "shared").await;
    world
        .condition(set, ("Programmed", "Unknown", "Pending"))
        .await;
    let object = world
        .get("ListenerSet", "a", "mine")
        .await
        .expect("it is there");
    assert_eq!(object["status"]["listeners"], json!([]));
    let accepted = condition(&object, "Accepted").expect("a condition");
    assert_eq!(accepted["status"], "Unknown");
    // It comes back.
    world.apply(world.gateway("shared")).await;
    world
        .condition(set, ("Programmed", "True", "Programmed"))
        .await;
    manager.stop().await;
}

/// A Gateway `shared` and a ListenerSet `mine` of namespace `a` that are in force, with the proxy that has them.
async fn in_force(world: &World) -> (Manager, Proxy) {
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let manager = world.manager("one");
    let proxy = Network::of(&[&manager]).proxy("p-1");
    for object in [GATEWAY, SET] {
        world
            .condition(object, ("Programmed", "True", "Programmed"))
            .await;
    }
    (manager, proxy)
}

const GATEWAY: (&str, &str, &str) = ("Gateway", "infra", "shared");
const SET: (&str, &str, &str) = ("ListenerSet", "a", "mine");

/// Waits until an object says that no controller has looked at it.
async fn is_as_new(world: &World, object: (&str, &str, &str)) {
    for kind in ["Programmed", "Accepted"] {
        world.condition(object, (kind, "Unknown", "Pending")).await;
    }
    let (kind, part, name) = object;
    let object = world.get(kind, part, name).await.expect("it is there");
    assert_eq!(object["status"]["listeners"], json!([]));
    assert_eq!(object["status"].get("addresses"), None);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn statuses_of_a_gateway_and_its_set_return_to_pending_without_a_class() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    world.delete("GatewayClass", "", &world.release).await;
    is_as_new(&world, GATEWAY).await;
    is_as_new(&world, SET).await;
    // The class comes back.
    world.class().await;
    world
        .condition(SET, ("Programmed", "True", "Programmed"))
        .await;
    // The Gateway gets a class that does not exist.
    let mut moved = world.gateway("shared");
    moved["spec"]["gatewayClassName"] = json!(format!("{}-none", world.release));
    world.apply(moved).await;
    is_as_new(&world, GATEWAY).await;
    is_as_new(&world, SET).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn listener_set_whose_gateway_goes_while_no_operator_runs_becomes_pending() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    manager.stop().await;
    world.delete("Gateway", "infra", "shared").await;
    let manager = world.manager("two");
    is_as_new(&world, SET).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn the_next_controller_has_the_last_word() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    manager.stop().await;
    // While no operator runs, the Gateway changes to another controller, which takes over its status and not yet that
    // of the ListenerSet.
    let other = format!("{}-other", world.release);
    world
        .apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": other}, "spec": {"controllerName": "example.com/other"},
        }))
        .await;
    let mut moved = world.gateway("shared");
    moved["spec"]["gatewayClassName"] = json!(other);
    world.apply(moved).await;
    let their_gateway = world.take_over(GATEWAY).await;
    let manager = world.manager("two");
    is_as_new(&world, SET).await;
    let their_set = world.take_over(SET).await;
    // Edits do not make it write again.
    world
        .apply(world.set("a", "mine", "shared", "b.example.com"))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    for ((kind, part, name), theirs) in [(GATEWAY, their_gateway), (SET, their_set)] {
        let object = world.get(kind, part, name).await.expect("it is there");
        assert_eq!(object["status"], theirs, "{kind}");
    }
    let agent = manager.agent.clone();
    manager.stop().await;
    let writes = world.writes(&agent);
    let of = |object: &str| {
        let of = writes.iter();
        of.filter(|write| write.contains("/status ") && write.ends_with(object))
            .count()
    };
    assert_eq!((of("/shared"), of("/mine")), (0, 1), "{writes:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn only_secrets_that_are_used_are_kept() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let secret = |name: &str| {
        let key = rcgen::generate_simple_self_signed(vec!["a.example.com".to_owned()])
            .expect("a certificate");
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": world.ns("a")},
            "stringData": {"tls.crt": key.cert.pem(), "tls.key": key.signing_key.serialize_pem()},
        })
    };
    world.apply(secret("used")).await;
    for n in 0..5 {
        world.apply(secret(&format!("unused-{n}"))).await;
    }
    let manager = world.patient_manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    manager.leading().await;
    let kept = |manager: &Manager| manager.metric("vestibule_operator_sources ");
    assert_eq!(kept(&manager), 0);
    // One that was there before it was referred to.
    let mut set = world.set("a", "mine", "shared", "a.example.com");
    set["spec"]["listeners"][0]["tls"] =
        json!({"mode": "Terminate", "certificateRefs": [{"name": "used"}]});
    world.apply(set).await;
    let key = ("ListenerSet", "a", "mine");
    world
        .condition(key, ("Programmed", "True", "Programmed"))
        .await;
    assert_eq!(kept(&manager), 1);
    // It never was said to be missing: it was read before anything was said.
    let written = world
        .get("ListenerSet", "a", "mine")
        .await
        .expect("it is there");
    assert_eq!(
        written["status"]["listeners"][0]["conditions"][1]["reason"],
        "ResolvedRefs"
    );
    // The log follows a little behind what can be read.
    let own = async || {
        let mut writes = world.writes(&manager.agent);
        writes.retain(|write| write.ends_with("/mine"));
        (!writes.is_empty()).then_some(writes)
    };
    let writes = eventually("a write in the log", own).await;
    assert_eq!(writes.len(), 1, "{writes:#?}");

    world.delete("Secret", "a", "used").await;
    let unresolved = async || {
        let set = world.get("ListenerSet", "a", "mine").await?;
        let conditions = set["status"]["listeners"][0]["conditions"]
            .as_array()?
            .clone();
        let refs = conditions.iter().find(|c| c["type"] == "ResolvedRefs")?;
        (refs["reason"] == "InvalidCertificateRef").then_some(())
    };
    eventually("a listener without its certificate", unresolved).await;
    assert_eq!(kept(&manager), 0);
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn objects_of_other_controllers_are_left_alone() {
    let world = World::new().await;
    world.class().await;
    world.ready(&[]).await;
    let other = format!("{}-other", world.release);
    world
        .apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": other}, "spec": {"controllerName": "example.com/other"},
        }))
        .await;
    let mut theirs = world.gateway("theirs");
    theirs["spec"]["gatewayClassName"] = json!(other);
    let theirs = world.apply(theirs).await;
    let manager = world.manager("one");
    world
        .condition(
            ("GatewayClass", "", &world.release),
            ("Accepted", "True", "Accepted"),
        )
        .await;
    let class = world
        .get("GatewayClass", "", &other)
        .await
        .expect("it is there");
    assert_eq!(
        condition(&class, "Accepted").map(|c| c["status"].clone()),
        Some(json!("Unknown"))
    );
    let now = world
        .get("Gateway", "infra", "theirs")
        .await
        .expect("it is there");
    assert_eq!(
        now["metadata"]["resourceVersion"],
        theirs["metadata"]["resourceVersion"]
    );
    assert!(world.list("Service", "infra").await.is_empty());
    assert_eq!(
        world
            .get("GatewayClass", "", "nothing")
            .await
            .unwrap_or(Value::Null),
        Value::Null
    );
    manager.stop().await;
}
