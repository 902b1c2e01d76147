//! BackendTLSPolicies and the ConfigMaps they refer to: only those in use are read, what they hold is
//! followed, and what other controllers say of a policy stays.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World};

const POLICY: (&str, &str, &str) = ("BackendTLSPolicy", "a", "backend");

fn authority() -> String {
    let key = rcgen::generate_simple_self_signed(vec!["ca.example.com".to_owned()]);
    key.expect("a certificate").cert.pem()
}

fn map(world: &World, name: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": world.ns("a")},
        "data": {"ca.crt": pem},
    })
}

/// A Gateway, a set that ends TLS, a route to a Service, and a policy for that.
async fn routed(world: &World) {
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let mut set = world.set("a", "mine", "shared", "a.example.com");
    set["spec"]["listeners"][0]["tls"] =
        json!({"mode": "Terminate", "certificateRefs": [{"name": "none"}]});
    world.apply(set).await;
    let mut route = world.route("a", "web", "mine", "a.example.com");
    route["spec"]["rules"][0]["backendRefs"][0]["name"] = json!("backend");
    world.apply(route).await;
    world
        .apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "backend", "namespace": world.ns("a")},
            "spec": {"ports": [{"name": "https", "port": 443}], "selector": {"app": "backend"}},
        }))
        .await;
    world
        .apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": {"name": "backend", "namespace": world.ns("a")},
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "backend"}],
                "validation": {
                    "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "used"}],
                    "hostname": "backend.example.com",
                },
            },
        }))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn only_config_maps_that_are_used_are_kept_and_what_they_hold_is_followed() {
    let world = World::new().await;
    let pem = authority();
    for n in 0..5 {
        world.apply(map(&world, &format!("unused-{n}"), &pem)).await;
    }
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    routed(&world).await;
    manager.leading().await;
    let kept = |manager: &Manager| manager.metric("vestibule_operator_sources ");
    let accepted = ("Accepted", "True", "Accepted");
    let nobody = ("Accepted", "False", "NoValidCACertificate");

    world.condition(POLICY, nobody).await;
    assert_eq!(kept(&manager), 0);
    world.apply(map(&world, "used", &pem)).await;
    world.condition(POLICY, accepted).await;
    assert_eq!(kept(&manager), 1);
    world.apply(map(&world, "used", "")).await;
    world.condition(POLICY, nobody).await;
    world.apply(map(&world, "used", &pem)).await;
    world.condition(POLICY, accepted).await;

    // One that was there before it was referred to.
    let api = world.api(POLICY.0, &world.ns("a"));
    let refer_to = async |name: &str| {
        let patch = json!([{
            "op": "replace", "path": "/spec/validation/caCertificateRefs/0/name", "value": name,
        }]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch).expect("a patch"));
        let parameters = PatchParams::default();
        let patched = api.patch(POLICY.2, &parameters, &patch).await;
        patched.expect("patched").metadata.generation
    };
    let generation = refer_to("unused-3").await;
    let seen = async || {
        let found = world.get(POLICY.0, POLICY.1, POLICY.2).await?;
        let conditions = found["status"]["ancestors"][0]["conditions"].as_array()?;
        let current = |c: &&Value| c["observedGeneration"].as_i64() == generation;
        let all = conditions.iter().filter(current).count() == 2;
        (all && conditions[0]["status"] == "True").then_some(())
    };
    eventually("the other authority", seen).await;
    assert_eq!(kept(&manager), 1);

    // Without a route the policy concerns no Gateway, and nothing is kept of it.
    world.delete("TLSRoute", "a", "web").await;
    let withdrawn = async || {
        let found = world.get(POLICY.0, POLICY.1, POLICY.2).await?;
        let ancestors = found["status"]["ancestors"].as_array()?;
        (ancestors.is_empty() && kept(&manager) == 0).then_some(())
    };
    eventually("a policy without ancestors", withdrawn).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn policy_status_entries_of_others_stay_and_a_restart_writes_nothing() {
    let world = World::new().await;
    world.apply(map(&world, "used", &authority())).await;
    routed(&world).await;
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    world
        .condition(POLICY, ("Accepted", "True", "Accepted"))
        .await;

    let api = world.api(POLICY.0, &world.ns("a"));
    let theirs = json!({
        "ancestorRef": {"name": "elsewhere", "kind": "Gateway"},
        "controllerName": "example.com/other",
        "conditions": [{
            "type": "Accepted", "status": "False", "reason": "Invalid", "message": "no",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    // Again and again at the same time as we write.
    for round in 0..10 {
        let edited = json!({"spec": {"validation": {"hostname": format!("b{round}.example.com")}}});
        let merge = Patch::Merge(edited);
        api.patch(POLICY.2, &PatchParams::default(), &merge)
            .await
            .expect("patched");
        eventually("a write of somebody else's", async || {
            let mut object = api.get(POLICY.2).await.expect("it is there");
            let ancestors = object.data["status"]["ancestors"].as_array_mut()?;
            ancestors.retain(|entry| entry["controllerName"] != "example.com/other");
            let mut theirs = theirs.clone();
            theirs["conditions"][0]["message"] = json!(format!("no {round}"));
            ancestors.push(theirs);
            let parameters = PostParams::default();
            api.replace_status(POLICY.2, &parameters, &object)
                .await
                .ok()
        })
        .await;
    }
    let settled = async || {
        let found = world.get(POLICY.0, POLICY.1, POLICY.2).await?;
        let ancestors = found["status"]["ancestors"].as_array()?;
        let of = |name: &str| {
            ancestors
                .iter()
                .find(|entry| entry["controllerName"] == name)
        };
        let ours = of(&world.controller())?;
        let current = &found["metadata"]["generation"];
        let conditions = ours["conditions"].as_array()?;
        let all = conditions
            .iter()
            .all(|c| c["observedGeneration"] == *current);
        let kept = of("example.com/other")?["conditions"][0]["message"] == "no 9";
        (all && kept && ancestors.len() == 2).then_some(found)
    };
    let before = eventually("both entries", settled).await;
    let ancestors = before["status"]["ancestors"].as_array().expect("a list");
    let ours = ancestors
        .iter()
        .find(|entry| entry["controllerName"] == world.controller());
    assert_eq!(
        ours.expect("ours")["ancestorRef"],
        json!({
            "group": "gateway.networking.k8s.io", "kind": "Gateway",
            "namespace": world.ns("infra"), "name": "shared",
        })
    );
    manager.stop().await;

    let again = world.patient_manager("two");
    let _proxy = Network::of(&[&again]).proxy("p-1");
    again.leading().await;
    let rest = async || (again.metric("vestibule_operator_statuses_waiting ") == 0).then_some(());
    eventually("nothing that waits", rest).await;
    // It is at work: an edit gets its status.
    world
        .apply(world.set("b", "other", "shared", "b.example.com"))
        .await;
    let other = ("ListenerSet", "b", "other");
    world
        .condition(other, ("Programmed", "True", "Programmed"))
        .await;
    assert_eq!(world.get(POLICY.0, POLICY.1, POLICY.2).await, Some(before));
    again.stop().await;
}
