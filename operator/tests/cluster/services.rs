//! Services in front of Gateways: made, restored, swept; and what they must not do.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use vestibule_model::service::ServiceType;
use vestibule_operator::translate::Binds;
use vestibule_operator_testing::stream::Proxy;
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World};

const GATEWAY: (&str, &str, &str) = ("Gateway", "infra", "shared");

/// The Gateway `shared` is in force: an operator runs, and the proxy that has it.
async fn in_force(world: &World) -> (Manager, Proxy) {
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let manager = world.manager("one");
    let proxy = Network::of(&[&manager]).proxy("p-1");
    world
        .condition(GATEWAY, ("Programmed", "True", "Programmed"))
        .await;
    (manager, proxy)
}

/// The front of the only Gateway.
async fn front(world: &World) -> Value {
    eventually("a front", async || {
        world.list("Service", "sys").await.into_values().next()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn they_are_made_restored_and_swept() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    let made = front(&world).await;
    let object = world
        .get("Gateway", "infra", "shared")
        .await
        .expect("it is there");
    assert_eq!(
        object["status"]["addresses"],
        json!([{"type": "IPAddress", "value": made["spec"]["clusterIP"]}])
    );
    let alias = world
        .get("Service", "infra", "shared")
        .await
        .expect("an alias");
    assert_eq!(alias["spec"]["type"], "ExternalName");
    let name = made["metadata"]["name"].as_str().expect("a name");
    let host = format!("{name}.{}.svc.cluster.local", world.ns("sys"));
    assert_eq!(alias["spec"]["externalName"], host);

    // Another port: one more in the Service, the first as it was.
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let two = async || {
        let front = front(&world).await;
        (front["spec"]["ports"].as_array()?.len() == 2).then_some(front)
    };
    let grown = eventually("a second port", two).await;
    let target = |front: &Value, port: u16| {
        let ports = front["spec"]["ports"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        ports
            .into_iter()
            .find(|p| p["port"] == port)
            .map(|p| p["targetPort"].clone())
    };
    assert_eq!(target(&grown, 8443), target(&made, 8443));
    assert_eq!(grown["spec"]["clusterIP"], made["spec"]["clusterIP"]);

    // Somebody edits one and deletes the other.
    let mut edited = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": world.ns("sys")},
        "spec": {"selector": {"app": "mine"}},
    });
    world.apply(edited.clone()).await;
    world.delete("Service", "infra", "shared").await;
    let restored = async || {
        let front = world.get("Service", "sys", name).await?;
        let alias = world.get("Service", "infra", "shared").await;
        (front["spec"]["selector"]["app"] == "proxy" && alias.is_some()).then_some(())
    };
    eventually("Services as they were", restored).await;
    // What others add stays theirs.
    edited["spec"] = json!({"publishNotReadyAddresses": true});
    world.apply(edited).await;

    // The Gateway goes, and with it everything made for it.
    world.delete("ListenerSet", "a", "mine").await;
    world.delete("Gateway", "infra", "shared").await;
    let swept = async || {
        let services = [
            world.list("Service", "sys").await,
            world.list("Service", "infra").await,
        ];
        let ports = world
            .get("ConfigMap", "sys", &format!("{}-ports", world.release))
            .await?;
        let ports = ports["data"]["ports"].as_str()?.ends_with(r#""ports":{}}"#);
        (services.iter().all(std::collections::BTreeMap::is_empty) && ports).then_some(())
    };
    eventually("nothing that is left", swept).await;
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_class_that_is_created_again_costs_no_service() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    let made = front(&world).await;
    for pause in [0, 2] {
        world.delete("GatewayClass", "", &world.release).await;
        tokio::time::sleep(Duration::from_secs(pause)).await;
        world.class().await;
        let class = ("GatewayClass", "", world.release.as_str());
        world
            .condition(class, ("Accepted", "True", "Accepted"))
            .await;
    }
    // Another port shows that the operator has written the Service again.
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let grown = eventually("a second port", async || {
        let front = front(&world).await;
        (front["spec"]["ports"].as_array()?.len() == 2).then_some(front)
    })
    .await;
    assert_eq!(grown["metadata"]["uid"], made["metadata"]["uid"]);
    let own = |front: &Value| {
        let ports = front["spec"]["ports"].as_array().cloned();
        let mut ports = ports.unwrap_or_default().into_iter();
        ports.find(|port| port["port"] == 8443)
    };
    assert_eq!(own(&grown), own(&made));
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn additions_that_break_a_front_are_removed_and_a_lost_label_is_told() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    let made = front(&world).await;
    let name = made["metadata"]["name"].as_str().expect("a name");
    let change = async |patch: Value| {
        let api = world.api("Service", &world.ns("sys"));
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        patched.expect("a patch");
    };
    let mut ports = made["spec"]["ports"].as_array().cloned().expect("ports");
    ports.push(json!({"name": "more", "port": 9999, "targetPort": 15_000, "protocol": "TCP"}));
    let mut moved = made["spec"]["ports"].clone();
    moved[0]["port"] = json!(9999);
    for drift in [
        json!({"selector": {"x": "y"}}),
        json!({"ports": ports}),
        json!({"ports": moved}),
    ] {
        change(json!({"spec": drift})).await;
        let restored = async || {
            let front = world.get("Service", "sys", name).await?;
            (front["spec"] == made["spec"]).then_some(())
        };
        eventually("a Service as it was", restored).await;
    }

    let label = "app.kubernetes.io/managed-by";
    change(json!({"metadata": {"labels": {label: null}}})).await;
    let told = async || {
        let object = world.get("Gateway", "infra", "shared").await?;
        let programmed = crate::support::condition(&object, "Programmed")?;
        let message = programmed["message"].as_str()?;
        message.contains("restore its label").then_some(())
    };
    eventually("a message about the label", told).await;
    change(json!({"metadata": {"labels": {label: world.release}}})).await;
    world
        .condition(GATEWAY, ("Programmed", "True", "Programmed"))
        .await;
    let now = front(&world).await;
    assert_eq!(now["metadata"]["uid"], made["metadata"]["uid"]);
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn service_of_others_that_has_the_alias_name_is_reported_and_not_touched() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    // A Service of the name that the alias would have.
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "shared", "namespace": world.ns("infra")},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
    });
    let foreign = world.apply(foreign).await;
    world.apply(world.gateway("shared")).await;
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    let gateway = ("Gateway", "infra", "shared");
    world
        .condition(gateway, ("Programmed", "True", "Programmed"))
        .await;
    let told = async || {
        let object = world.get("Gateway", "infra", "shared").await?;
        let accepted = crate::support::condition(&object, "Accepted")?;
        accepted["message"]
            .as_str()?
            .contains("not Vestibule's")
            .then_some(())
    };
    eventually("a message about the name that is taken", told).await;
    let now = world
        .get("Service", "infra", "shared")
        .await
        .expect("it is there");
    assert_eq!(
        now["metadata"]["resourceVersion"],
        foreign["metadata"]["resourceVersion"]
    );
    // It makes room.
    world.delete("Service", "infra", "shared").await;
    let alias = async || {
        let service = world.get("Service", "infra", "shared").await?;
        (service["spec"]["type"] == "ExternalName").then_some(())
    };
    eventually("the alias", alias).await;
    manager.stop().await;
    let _ = world.get("Gateway", "infra", "shared").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn an_address_that_is_asked_for_is_had_or_said_not_to_be() {
    let world = World::new().await;
    let (manager, _proxy) = in_force(&world).await;
    let before = front(&world).await;
    let asking = |address: &str| {
        let mut gateway = world.gateway("shared");
        gateway["spec"]["addresses"] = json!([{"type": "IPAddress", "value": address}]);
        gateway
    };
    // Outside of the range of Services.
    world.apply(asking("192.0.2.77")).await;
    world
        .condition(GATEWAY, ("Programmed", "False", "AddressNotUsable"))
        .await;
    // The refused setting did not change the Service.
    assert_eq!(
        front(&world).await["metadata"]["uid"],
        before["metadata"]["uid"]
    );
    // One that is free: the Service is made anew with it, on the same internal port.
    let last = u8::from_str_radix(&world.release[3..5], 16).expect("hexadecimal");
    let next = u8::from_str_radix(&world.release[5..7], 16).expect("hexadecimal");
    let address = format!("10.96.{}.{}", 200 + last % 50, 1 + next % 250);
    world.apply(asking(&address)).await;
    world
        .condition(GATEWAY, ("Programmed", "True", "Programmed"))
        .await;
    let after = front(&world).await;
    assert_eq!(after["spec"]["clusterIP"], address);
    assert_eq!(
        after["spec"]["ports"][0]["targetPort"],
        before["spec"]["ports"][0]["targetPort"]
    );
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let object = world
        .get("Gateway", "infra", "shared")
        .await
        .expect("it is there");
    assert_eq!(
        object["status"]["addresses"],
        json!([{"type": "IPAddress", "value": address}])
    );
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn several_gateways_at_once_are_one_write_of_ports_and_never_share_one() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    let names: Vec<String> = (0..12).map(|n| format!("g-{n}")).collect();
    for name in &names {
        world.apply(world.gateway(name)).await;
    }
    let manager = world.manager("one");
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    for name in &names {
        world
            .condition(
                ("Gateway", "infra", name),
                ("Programmed", "True", "Programmed"),
            )
            .await;
    }
    let map = format!("configmaps/ {}/{}-ports", world.ns("sys"), world.release);
    let writes = world.writes(&manager.agent);
    assert_eq!(
        writes.iter().filter(|write| write.ends_with(&map)).count(),
        1,
        "{writes:#?}"
    );
    let service_states = world.list("Service", "sys").await;
    let targets: BTreeSet<u64> = service_states
        .values()
        .filter_map(|front| front["spec"]["ports"][0]["targetPort"].as_u64())
        .collect();
    assert_eq!(targets.len(), names.len());

    // The allocation is lost: what the Services use is taken up again.
    manager.stop().await;
    world
        .delete("ConfigMap", "sys", &format!("{}-ports", world.release))
        .await;
    let again = world.manager("two");
    let _proxy = Network::of(&[&again]).proxy("p-1");
    again.leading().await;
    let map = format!("{}-ports", world.release);
    eventually("an allocation", async || {
        world.get("ConfigMap", "sys", &map).await
    })
    .await;
    for name in &names {
        world
            .condition(
                ("Gateway", "infra", name),
                ("Programmed", "True", "Programmed"),
            )
            .await;
    }
    let after: BTreeSet<u64> = world
        .list("Service", "sys")
        .await
        .values()
        .filter_map(|front| front["spec"]["ports"][0]["targetPort"].as_u64())
        .collect();
    assert_eq!(after, targets);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn another_release_of_the_same_name_is_left_alone() {
    let world = World::new().await;
    world.class().await;
    world.ready(&[]).await;
    let service = |part: &str, name: &str, owner: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": world.ns(part),
                "labels": {
                    "app.kubernetes.io/managed-by": world.release,
                    "vestibule.dev/gateway-uid": "of-another-release",
                },
                "ownerReferences": [{
                    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                    "name": owner, "uid": owner,
                }],
            },
            "spec": {"type": "ExternalName", "externalName": "x.elsewhere.svc.cluster.local"},
        })
    };
    let theirs = world.apply(service("b", "theirs", "another-owner")).await;
    // One of ours whose Gateway is gone shows that it swept.
    let mut ours = service("infra", "ours", "none");
    ours["metadata"]
        .as_object_mut()
        .expect("metadata")
        .remove("ownerReferences");
    ours["spec"]["externalName"] = json!(format!("x.{}.svc.cluster.local", world.ns("sys")));
    world.apply(ours).await;
    let manager = world.manager("one");
    let swept = async || {
        world
            .get("Service", "infra", "ours")
            .await
            .is_none()
            .then_some(())
    };
    eventually("a sweep", swept).await;
    let now = world.get("Service", "b", "theirs").await.expect("it stays");
    assert_eq!(
        now["metadata"]["resourceVersion"],
        theirs["metadata"]["resourceVersion"]
    );
    manager.stop().await;
}

/// Gives every load balancer in `sys` that comes without a class one, as the webhooks of some load balancers do. Returns when
/// the API server does so.
async fn set_classes(world: &World) {
    let name = format!("{}-class", world.release);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": world.ns("sys")},
                },
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["services"],
                }],
            },
            "matchConditions": [{
                "name": "without-class",
                "expression": "object.spec.type == 'LoadBalancer' && !has(object.spec.loadBalancerClass)",
            }],
            "mutations": [{
                "patchType": "JSONPatch",
                "jsonPatch": {"expression":
                    "[JSONPatch{op: 'add', path: '/spec/loadBalancerClass', value: 'service.k8s.aws/nlb'}]"},
            }],
        },
    });
    world.apply(policy).await;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    });
    world.apply(binding).await;
    let probe = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "probe", "namespace": world.ns("sys")},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    eventually("a class from the policy", async || {
        let made = world.apply(probe.clone()).await;
        world.delete("Service", "sys", "probe").await;
        (made["spec"]["loadBalancerClass"] == "service.k8s.aws/nlb").then_some(())
    })
    .await;
}

/// The front of the only Gateway, once it has this class.
async fn front_of_class(world: &World, class: &str) -> Value {
    eventually("a front of the class", async || {
        let front = world.list("Service", "sys").await.into_values().next()?;
        (front["spec"]["loadBalancerClass"] == class).then_some(front)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_class_that_a_webhook_sets_costs_no_address() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    set_classes(&world).await;
    world.apply(world.gateway("shared")).await;
    let manager = world.manager_with("one", |settings| {
        if let Binds::Allocated { services, .. } = &mut settings.translation.binds {
            services.defaults.service_type = Some(ServiceType::LoadBalancer);
        }
    });
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    let made = front(&world).await;
    assert_eq!(made["spec"]["loadBalancerClass"], "service.k8s.aws/nlb");
    // Another port shows that the operator has looked at the Service again.
    world
        .apply(world.set("a", "mine", "shared", "a.example.com"))
        .await;
    let grown = eventually("a second port", async || {
        let front = front(&world).await;
        (front["spec"]["ports"].as_array()?.len() == 2).then_some(front)
    })
    .await;
    assert_eq!(grown["metadata"]["uid"], made["metadata"]["uid"]);

    // A class that the parameters ask for takes its place. When they no longer do, it goes again.
    let parameters = |service: Value| {
        json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "GatewayParameters",
            "metadata": {"name": "edge", "namespace": world.ns("infra")},
            "spec": {"service": service},
        })
    };
    world
        .apply(parameters(json!({"loadBalancerClass": "example.net/edge"})))
        .await;
    let mut gateway = world.gateway("shared");
    gateway["spec"]["infrastructure"] = json!({
        "parametersRef": {"group": "vestibule.dev", "kind": "GatewayParameters", "name": "edge"},
    });
    world.apply(gateway).await;
    let asked = front_of_class(&world, "example.net/edge").await;
    assert_ne!(asked["metadata"]["uid"], made["metadata"]["uid"]);
    world.apply(parameters(json!({}))).await;
    front_of_class(&world, "service.k8s.aws/nlb").await;
    let front_path = format!("services/ {}/", world.ns("sys"));
    let deletions = world.writes(&manager.agent);
    let deletions = deletions
        .iter()
        .filter(|write| write.starts_with("delete ") && write.contains(&front_path));
    assert_eq!(deletions.count(), 2);
    manager.stop().await;
    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        let name = format!("{}-class", world.release);
        world.delete(kind, "", &name).await;
    }
}
