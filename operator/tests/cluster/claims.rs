//! Names stay with those who hold them: on a real API server, across edits, leaders and deletions.

use std::time::Duration;

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vestibule_operator::cluster::OperatorSettings;
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World};

const NAME: &str = "shop.example.com";

fn graced(seconds: u64) -> impl FnOnce(&mut OperatorSettings) {
    move |settings| settings.claim_grace = Duration::from_secs(seconds)
}

async fn programmed(world: &World, part: &str, set: &str) {
    let wanted = ("Programmed", "True", "Programmed");
    world.condition(("ListenerSet", part, set), wanted).await;
}

/// Waits until the set's listener is in conflict, with this reason.
async fn conflicted(world: &World, part: &str, set: &str, reason: &str) {
    eventually("a listener in conflict", async || {
        let set = world.get("ListenerSet", part, set).await?;
        let current = &set["metadata"]["generation"];
        let conditions = set.pointer("/status/listeners/0/conditions")?.as_array()?;
        let found = conditions.iter().any(|c| {
            c["type"] == "Conflicted"
                && c["status"] == "True"
                && c["reason"] == reason
                && c["observedGeneration"] == *current
        });
        found.then_some(())
    })
    .await;
}

fn is_programmed(set: &Value) -> bool {
    crate::support::condition(set, "Programmed").is_some_and(|c| c["status"] == "True")
}

/// The holders of names and ports, by the objects.
async fn held(world: &World) -> Vec<(String, String)> {
    let mut held = Vec::new();
    for claim in world.list("HostnameClaim", "infra").await.values() {
        let spec = &claim["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let of = match spec["port"].as_i64() {
            Some(port) => format!("{port}/{}", text("protocol")),
            None => text("hostname"),
        };
        held.push((text("holder"), of));
    }
    held.sort();
    held
}

/// Waits until these are all the claims there are: the part of the world that holds it, and what.
async fn holds(world: &World, claims: &[(&str, &str)]) {
    let named = claims.iter();
    let mut expected: Vec<_> = named
        .map(|(part, of)| (world.ns(part), (*of).to_owned()))
        .collect();
    expected.sort();
    eventually("these claims, and no others", async || {
        (held(world).await == expected).then_some(())
    })
    .await;
}

/// A world where `b` serves the name, and `a` has an older set with another one.
async fn served(world: &World, manager: &Manager) {
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    manager.leading().await;
    // By age, and by name within one second, the set of `a` comes first.
    world
        .apply(world.set("a", "old", "shared", "old.example.com"))
        .await;
    programmed(world, "a", "old").await;
    world.apply(world.set("b", "shop", "shared", NAME)).await;
    programmed(world, "b", "shop").await;
    // The port is whose listener came first.
    holds(
        world,
        &[("a", "443/TLS"), ("a", "old.example.com"), ("b", NAME)],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn an_older_set_takes_nothing_from_who_serves_it() {
    let world = World::new().await;
    let first = world.manager_with("first", graced(600));
    first.leading().await;
    let second = world.manager_with("second", graced(600));
    let network = Network::of(&[&first, &second]);
    let _proxy = network.proxy("p-1");
    served(&world, &first).await;
    let told = world.statuses("ListenerSet", "b", "shop");

    world.apply(world.set("a", "old", "shared", NAME)).await;
    conflicted(&world, "a", "old", "HostnameConflict").await;

    // It tries to be quicker than the next leader.
    second.ready().await;
    first.stop().await;
    second.leading().await;
    // It asks for a name that it had, so that no further one is let go at its next edit.
    let mut plain = world.set("a", "old", "shared", "");
    plain["spec"]["listeners"] = json!([
        {"name": "web", "port": 443, "protocol": "HTTP", "hostname": "old.example.com"},
    ]);
    world.apply(plain).await;
    conflicted(&world, "a", "old", "ProtocolConflict").await;
    world.apply(world.set("a", "old", "shared", NAME)).await;
    conflicted(&world, "a", "old", "HostnameConflict").await;

    // What serves has not noticed: its status never said anything else.
    let set = world
        .get("ListenerSet", "b", "shop")
        .await
        .expect("it is there");
    assert!(is_programmed(&set));
    assert_eq!(told.told_again(), Vec::<Value>::new());

    // Deleted and made anew within the grace it has its name again.
    world.delete("ListenerSet", "b", "shop").await;
    // Two names, and the port on which nobody is left.
    eventually("names that nobody serves", async || {
        (second.metric("vestibule_operator_claims_grace ") == 3).then_some(())
    })
    .await;
    let old = world
        .get("ListenerSet", "a", "old")
        .await
        .expect("it is there");
    assert!(!is_programmed(&old));
    world.apply(world.set("b", "shop", "shared", NAME)).await;
    programmed(&world, "b", "shop").await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_name_that_was_let_go_is_handed_over_after_the_grace() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(1));
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    served(&world, &manager).await;
    world.apply(world.set("a", "old", "shared", NAME)).await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    world.delete("ListenerSet", "b", "shop").await;
    programmed(&world, "a", "old").await;
    // Its old name is free, and nothing is left of `b`, which had the port in between.
    holds(&world, &[("a", "443/TLS"), ("a", NAME)]).await;
    world.delete("ListenerSet", "a", "old").await;
    eventually("no claim left", async || {
        let claims = world.list("HostnameClaim", "infra").await;
        claims.is_empty().then_some(())
    })
    .await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn claims_that_others_delete_or_edit_are_restored() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(600));
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    served(&world, &manager).await;
    world.apply(world.set("a", "old", "shared", NAME)).await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    // `a` has nothing on the port any more, so it is `b`'s.
    let right = [("b", "443/TLS"), ("a", "old.example.com"), ("b", NAME)];
    holds(&world, &right).await;
    let claim = async || {
        let claims = world.list("HostnameClaim", "infra").await;
        let mut claims = claims.into_iter();
        claims.find(|(_, claim)| claim["spec"]["hostname"] == NAME)
    };

    let (name, before) = claim().await.expect("the claim to the name");
    world.delete("HostnameClaim", "infra", &name).await;
    let again = eventually("the claim again", async || {
        let (_, again) = claim().await?;
        (again["metadata"]["uid"] != before["metadata"]["uid"]).then_some(again)
    })
    .await;
    assert_eq!(again["spec"], before["spec"]);
    assert_eq!(again["metadata"]["ownerReferences"], Value::Null);

    let mut stolen = before.clone();
    stolen["spec"]["holder"] = json!(world.ns("a"));
    stolen["metadata"] = json!({"name": name, "namespace": world.ns("infra")});
    world.apply(stolen).await;
    holds(&world, &right).await;
    let set = world
        .get("ListenerSet", "b", "shop")
        .await
        .expect("it is there");
    assert!(is_programmed(&set));
    conflicted(&world, "a", "old", "HostnameConflict").await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_gateway_that_is_made_anew_finds_its_names_with_their_holders() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(600));
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    served(&world, &manager).await;
    let uid = async || {
        let gateway = world.get("Gateway", "infra", "shared").await?;
        Some(gateway["metadata"]["uid"].clone())
    };
    let old = uid().await.expect("it is there");
    world.delete("Gateway", "infra", "shared").await;
    // Older, and there first: by age it would get the name.
    world.apply(world.set("a", "old", "shared", NAME)).await;
    world.apply(world.gateway("shared")).await;
    let new = uid().await.expect("it is there again");
    assert_ne!(new, old);
    programmed(&world, "b", "shop").await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    // No name has another holder; the port is `b`'s, who alone is left on it.
    holds(
        &world,
        &[("b", "443/TLS"), ("a", "old.example.com"), ("b", NAME)],
    )
    .await;
    manager.stop().await;
}

/// A quota that lets no claims be made in `infra`, and is in force.
async fn no_claims(world: &World) -> String {
    let namespace = world.ns("infra");
    let hard = json!({"count/hostnameclaims.vestibule.dev": "0"});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "no-claims", "namespace": namespace}, "spec": {"hard": hard},
    });
    world.apply(quota).await;
    // Nobody counts in this cluster.
    let counted = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "status": {"hard": hard, "used": hard},
    });
    let parameters = PatchParams::apply("counter").force();
    let quotas = world.api("ResourceQuota", &namespace);
    quotas
        .patch_status("no-claims", &parameters, &Patch::Apply(counted))
        .await
        .expect("counted");
    let claim: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"name": "edge-0", "namespace": namespace},
        "spec": {
            "gateway": {"name": "edge"}, "hostname": NAME, "holder": "a",
            "since": "2026-01-01T00:00:00Z",
        },
    }))
    .expect("an object");
    eventually("a quota in force", async || {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let claims = world.api("HostnameClaim", &namespace);
        claims.create(&parameters, &claim).await.err().map(drop)
    })
    .await;
    "no-claims".to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_record_that_is_refused_is_told_and_keeps_nobody_else() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(1));
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    world.class().await;
    world.ready(&["p-1"]).await;
    manager.leading().await;
    let quota = no_claims(&world).await;
    world.apply(world.gateway("shared")).await;
    let mut elsewhere = world.gateway("elsewhere");
    elsewhere["metadata"]["namespace"] = json!(world.ns("sys"));
    elsewhere["spec"]["listeners"][0]["port"] = json!(9443);
    world.apply(elsewhere).await;
    world.apply(world.set("b", "shop", "shared", NAME)).await;
    eventually("a listener that waits, and why", async || {
        let set = world.get("ListenerSet", "b", "shop").await?;
        let conditions = set.pointer("/status/listeners/0/conditions")?.as_array()?;
        let found = conditions.iter().any(|c| {
            c["type"] == "Programmed"
                && c["reason"] == "Pending"
                && c["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("API server refuses"))
        });
        found.then_some(())
    })
    .await;
    assert!(manager.metric("vestibule_operator_claims_writes_total{result=\"Failed\"") > 0);
    // Those of other tests, which other operators hand over meanwhile, may be counted as well.
    eventually("a name and a port that wait", async || {
        (manager.metric("vestibule_operator_claims_waiting ") >= 2).then_some(())
    })
    .await;
    let mut other = world.set("b", "other", "elsewhere", "other.example.com");
    other["spec"]["parentRef"]["namespace"] = json!(world.ns("sys"));
    world.apply(other).await;
    programmed(&world, "b", "other").await;

    world.delete("ResourceQuota", "infra", &quota).await;
    programmed(&world, "b", "shop").await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_claim_that_cannot_be_read_is_put_right_after_a_restart() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(600));
    let network = Network::of(&[&manager]);
    let _proxy = network.proxy("p-1");
    served(&world, &manager).await;
    let right = held(&world).await;
    manager.stop().await;
    let claims = world.list("HostnameClaim", "infra").await;
    for (name, mut claim) in claims {
        let spec = &mut claim["spec"];
        if spec["holder"] == world.ns("a") {
            spec["gateway"]["name"] = json!("No Such Gateway");
        } else {
            spec["hostname"] = json!("no hostname");
        }
        claim["metadata"] = json!({"name": name, "namespace": world.ns("infra")});
        world.apply(claim).await;
    }
    let manager = world.manager_with("two", graced(600));
    manager.leading().await;
    eventually("claims as they were", async || {
        (held(&world).await == right).then_some(())
    })
    .await;
    eventually("nothing that is not right", async || {
        (manager.metric("vestibule_operator_claims_void ") == 0).then_some(())
    })
    .await;
    manager.stop().await;
}
