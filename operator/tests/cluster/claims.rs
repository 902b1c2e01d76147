//! Names stay with those who hold them: on a real API server, across edits, leaders and deletions.

use std::time::Duration;

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vestibule_operator::cluster::Settings;

use crate::support::{Manager, Network, World, eventually};

const NAME: &str = "shop.example.com";

fn graced(seconds: u64) -> impl FnOnce(&mut Settings) {
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

/// Who holds which names, by the objects.
async fn held(world: &World) -> Vec<(String, String, String)> {
    let mut held = Vec::new();
    for claim in world.list("HostnameClaim", "infra").await.values() {
        for entry in claim["spec"]["entries"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            held.push((
                text(&claim["spec"]["namespace"]),
                text(&entry["use"]),
                text(&entry["hostname"]),
            ));
        }
    }
    held.sort();
    held
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
    let mut tcp = world.set("a", "old", "shared", "");
    tcp["spec"]["listeners"] = json!([{"name": "web", "port": 443, "protocol": "TCP"}]);
    world.apply(tcp).await;
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
    eventually("a name that nobody serves", async || {
        (second.metric("vestibule_operator_claims_grace ") == 2).then_some(())
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
    // Its old name is free, and nothing is left of `b`.
    let ours = (world.ns("a"), "TLS".to_owned(), NAME.to_owned());
    eventually("claims of what is served, and nothing else", async || {
        (held(&world).await == [ours.clone()]).then_some(())
    })
    .await;
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
async fn what_others_do_to_claims_is_put_right() {
    let world = World::new().await;
    let manager = world.manager_with("one", graced(600));
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    served(&world, &manager).await;
    world.apply(world.set("a", "old", "shared", NAME)).await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    let right = held(&world).await;
    let of_b = world.ns("b");
    let claim = async || {
        let claims = world.list("HostnameClaim", "infra").await;
        let mut claims = claims.into_iter();
        claims.find(|(_, claim)| claim["spec"]["namespace"] == *of_b)
    };

    let (name, before) = claim().await.expect("a claim of b");
    world.delete("HostnameClaim", "infra", &name).await;
    let again = eventually("the claim again", async || {
        let (_, again) = claim().await?;
        (again["metadata"]["uid"] != before["metadata"]["uid"]).then_some(again)
    })
    .await;
    assert_eq!(again["spec"], before["spec"]);
    assert_eq!(again["metadata"]["ownerReferences"][0]["kind"], "Gateway");

    let mut stolen = before.clone();
    stolen["spec"]["namespace"] = json!(world.ns("a"));
    stolen["metadata"] = json!({"name": name, "namespace": world.ns("infra")});
    world.apply(stolen).await;
    eventually("the claim as it was", async || {
        (held(&world).await == right).then_some(())
    })
    .await;
    let set = world
        .get("ListenerSet", "b", "shop")
        .await
        .expect("it is there");
    assert!(is_programmed(&set));
    conflicted(&world, "a", "old", "HostnameConflict").await;
    manager.stop().await;
}

/// What the garbage collector does once a Gateway is gone; there is none in this cluster.
async fn collect(world: &World) {
    eventually("no claim of a Gateway that is gone", async || {
        let claims = world.list("HostnameClaim", "infra").await;
        for name in claims.keys() {
            world.delete("HostnameClaim", "infra", name).await;
        }
        claims.is_empty().then_some(())
    })
    .await;
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
    let before = held(&world).await;
    let old = uid().await.expect("it is there");
    world.delete("Gateway", "infra", "shared").await;
    collect(&world).await;
    // Older, and there first: by age it would get the name.
    world.apply(world.set("a", "old", "shared", NAME)).await;
    world.apply(world.gateway("shared")).await;
    let new = uid().await.expect("it is there again");
    assert_ne!(new, old);
    programmed(&world, "b", "shop").await;
    conflicted(&world, "a", "old", "HostnameConflict").await;
    eventually("claims of the new Gateway", async || {
        let claims = world.list("HostnameClaim", "infra").await;
        let right = claims.values().all(|claim| {
            claim["spec"]["gateway"]["uid"] == new
                && claim["metadata"]["ownerReferences"][0]["uid"] == new
        });
        (right && held(&world).await == before).then_some(())
    })
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
        "metadata": {"name": "edge.a.0", "namespace": namespace},
        "spec": {"gateway": {"name": "edge"}, "namespace": "a", "count": 0},
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
    eventually("one that waits", async || {
        (manager.metric("vestibule_operator_claims_waiting ") == 1).then_some(())
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
        let spoilt = &mut claim["spec"];
        if spoilt["namespace"] == world.ns("a") {
            spoilt["gateway"]["name"] = json!("No Such Gateway");
        } else {
            spoilt["entries"][0]["hostname"] = json!("no hostname");
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
        (manager.metric("vestibule_operator_claims_spoilt_objects ") == 0).then_some(())
    })
    .await;
    manager.stop().await;
}
