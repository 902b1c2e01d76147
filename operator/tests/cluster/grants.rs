//! Grants: a name that is no longer granted leaves the proxies and is told of, and comes back with its grant.

use kube::api::PostParams;
use serde_json::{Value, json};
use vestibule_test_support::eventually;

use crate::support::{Network, World};
use vestibule_operator_testing::stream::Proxy;

/// A grant in the Gateway's namespace to one part's namespace.
fn grant(world: &World, name: &str, to: &str, hostnames: &[&str]) -> Value {
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
        "metadata": {"name": name, "namespace": world.ns("infra")},
        "spec": {
            "gateways": ["shared"],
            "namespaces": {"names": [world.ns(to)]},
            "hostnames": hostnames,
        },
    })
}

/// Waits until the set's listener says this, and whether the proxy has the listener; returns the message.
async fn listener_is(world: &World, proxy: &Proxy, wanted: (&str, &str), held: bool) -> String {
    let name = format!("ListenerSet/{}/mine/web", world.ns("a"));
    eventually("a listener with this condition", async || {
        let set = world.get("ListenerSet", "a", "mine").await?;
        let conditions = set.pointer("/status/listeners/0/conditions")?.as_array()?;
        let accepted = conditions.iter().find(|c| c["type"] == "Accepted")?;
        let said = (accepted["status"].as_str()?, accepted["reason"].as_str()?);
        let holds = proxy.table.hashes().keys().any(|key| key.name == name);
        let message = accepted["message"].as_str()?.to_owned();
        (said == wanted && holds == held).then_some(message)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn listener_whose_hostname_is_no_longer_granted_closes_and_says_so() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let manager = world.manager("one");
    let proxy = Network::of(&[&manager]).proxy("p-1");
    let accepted = ("True", "Accepted");
    let not_owned = ("False", "HostnameNotOwned");
    listener_is(&world, &proxy, accepted, true).await;

    // The first grant on the Gateway is somebody else's.
    let theirs = grant(&world, "theirs", "b", &["*.example.com"]);
    world.apply(theirs).await;
    let message = listener_is(&world, &proxy, not_owned, false).await;
    assert!(message.contains("\"a.example.com\""), "{message}");
    let gateway = format!("{}/shared", world.ns("infra"));
    assert!(message.contains(&gateway), "{message}");
    assert!(!message.contains(&world.ns("b")), "{message}");
    let of_grant = ("HostnameGrant", "infra", "theirs");
    world
        .condition(of_grant, ("Accepted", "True", "Accepted"))
        .await;
    world
        .condition(of_grant, ("ResolvedRefs", "True", "ResolvedRefs"))
        .await;

    // Granted, narrowed, widened.
    world
        .apply(grant(&world, "ours", "a", &["a.example.com"]))
        .await;
    listener_is(&world, &proxy, accepted, true).await;
    world
        .apply(grant(&world, "ours", "a", &["*.a.example.com"]))
        .await;
    listener_is(&world, &proxy, not_owned, false).await;
    world.apply(grant(&world, "ours", "a", &["*"])).await;
    listener_is(&world, &proxy, accepted, true).await;

    world.delete("HostnameGrant", "infra", "ours").await;
    listener_is(&world, &proxy, not_owned, false).await;
    // The last one opens the Gateway.
    world.delete("HostnameGrant", "infra", "theirs").await;
    listener_is(&world, &proxy, accepted, true).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn the_api_server_refuses_grants_that_say_nothing_or_cannot_be_read() {
    let world = World::new().await;
    let api = world.api("HostnameGrant", &world.ns("infra"));
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let whole = json!({"names": ["a"]});
    let issuer =
        |name: &str| json!([{"group": "vestibule.dev", "kind": "ACMEIssuer", "name": name}]);
    let of = |key: &str, value: Value| {
        let mut spec = json!({"namespaces": whole.clone(), "hostnames": ["a.example.com"]});
        spec[key] = value;
        spec
    };
    let requirement = |operator: &str, values: &[&str]| json!({"selector": {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}});
    let good = [
        of("hostnames", json!(["*", "*.example.com", "a.example.com"])),
        of("namespaces", json!({"selector": {}})),
        of("namespaces", requirement("In", &["v"])),
        of("issuers", json!([])),
        of("issuers", issuer("ca")),
        of("ports", json!([443])),
        of("protocols", json!(["TLS", "HTTPS"])),
        of("limits", json!({"listeners": 0, "certificates": 100})),
    ];
    let bad = [
        of("namespaces", json!({})),
        of("namespaces", json!({"names": []})),
        of("namespaces", requirement("Exists", &["v"])),
        of("namespaces", requirement("NotIn", &[])),
        of("namespaces", requirement("Like", &["v"])),
        of("namespaces", requirement("NotIn", &["v", "-"])),
        of(
            "namespaces",
            json!({"selector": {"matchExpressions": [{"key": "a b", "operator": "Exists"}]}}),
        ),
        of(
            "namespaces",
            json!({"selector": {"matchLabels": {"a": "b c"}}}),
        ),
        of("hostnames", json!([])),
        of("hostnames", json!([""])),
        of("hostnames", json!(["*.*.example.com"])),
        of("hostnames", json!(["a.*.example.com"])),
        of("hostnames", json!(["a b"])),
        of("hostnames", json!(["a.example.com", "a.example.com"])),
        of("issuers", issuer("")),
        of("ports", json!([0])),
        of("ports", json!([65536])),
        of("protocols", json!(["QUIC"])),
        of("limits", json!({"listeners": -1})),
    ];
    for (specs, fine) in [(&good[..], true), (&bad[..], false)] {
        for spec in specs {
            let object = json!({
                "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
                "metadata": {"name": "tried"}, "spec": spec,
            });
            let object = serde_json::from_value(object).expect("an object");
            let answer = api.create(&parameters, &object).await;
            assert_eq!(answer.is_ok(), fine, "{spec}: {answer:?}");
        }
    }
}
