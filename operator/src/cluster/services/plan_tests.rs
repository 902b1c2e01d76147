use vestibule_model::service::ServiceType;

use super::*;

fn port(number: u16) -> Port {
    Port::new(number).expect("it is not 0")
}

pub(crate) fn desired(uid: &str) -> GatewayService {
    let labels = BTreeMap::from([
        ("app.kubernetes.io/managed-by".to_owned(), "r".to_owned()),
        ("vestibule.dev/gateway-uid".to_owned(), uid.to_owned()),
    ]);
    GatewayService {
        gateway: ObjectName::new("infra", "shared"),
        uid: uid.into(),
        front: ObjectName::new("sys", format!("r-gw-{uid}")),
        alias: ObjectName::new("infra", "shared"),
        service_type: ServiceType::ClusterIp,
        ports: BTreeMap::from([((port(443), Transport::Tcp), port(10_000))]),
        external_traffic_policy: None,
        ip_family_policy: None,
        ip_families: Vec::new(),
        load_balancer_class: None,
        load_balancer_node_ports: None,
        requested: Vec::new(),
        selector: BTreeMap::from([("app".to_owned(), "proxy".to_owned())]),
        front_labels: labels.clone(),
        front_annotations: BTreeMap::new(),
        alias_labels: labels,
        alias_annotations: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
        external_name: "r-gw.sys.svc.cluster.local".to_owned(),
    }
}

fn desired_services(all: &[&GatewayService]) -> BTreeMap<Arc<str>, DesiredService> {
    let make = |desired: &&GatewayService| {
        (
            desired.uid.clone(),
            DesiredService::Make(Box::new((*desired).clone())),
        )
    };
    all.iter().map(make).collect()
}

/// What the API server makes of a manifest: it adds defaults, numbers and an address.
fn served(manifest: &Value) -> PresentService {
    let mut object = manifest.clone();
    let label = object
        .pointer("/metadata/labels/vestibule.dev~1gateway-uid")
        .cloned();
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!("7");
    if object["spec"]["type"] == "ClusterIP" {
        object["spec"]["clusterIP"] = json!("10.96.0.9");
        object["spec"]["clusterIPs"] = json!(["10.96.0.9"]);
        object["spec"]["ports"][0]["nodePort"] = json!(31_000);
    }
    PresentService {
        uid: "u".into(),
        version: "7".into(),
        gateway: label
            .and_then(|l| l.as_str().map(Into::into))
            .unwrap_or_default(),
        deleting: false,
        sets_class: object.pointer("/spec/loadBalancerClass").is_some(),
        object,
    }
}

/// Carries out all planned actions.
fn carry_out(actions: &BTreeMap<ObjectName, ServiceAction>, present: &mut PresentServices) {
    for (name, action) in actions {
        match action {
            ServiceAction::Create(manifest) | ServiceAction::Apply(_, manifest) => {
                present.insert(name.clone(), served(manifest));
            }
            ServiceAction::Prune(_, patch) => {
                let there = present.get_mut(name).expect("it is there");
                merge(&mut there.object, patch);
            }
            ServiceAction::Anew(..) | ServiceAction::Delete(_) => {
                present.remove(name);
            }
        }
    }
}

/// Merges a patch as RFC 7396 says.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let fields = object.as_object_mut().expect("it is an object");
    for (field, value) in patch {
        if value.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

#[test]
fn services_that_are_made_are_not_made_again() {
    let (mut desired, mut present) = (desired("one"), PresentServices::new());
    let owner = json!({"kind": "ClusterRole", "name": "r", "uid": "o"});
    let actions = plan(&desired_services(&[&desired]), &present, Some(&owner));
    assert_eq!(actions.len(), 2);
    assert!(
        actions
            .values()
            .all(|action| matches!(action, ServiceAction::Create(_)))
    );
    carry_out(&actions, &mut present);
    assert_eq!(
        plan(&desired_services(&[&desired]), &present, Some(&owner)),
        BTreeMap::new()
    );
    assert_eq!(
        present[&desired.front].object["metadata"]["ownerReferences"],
        json!([owner])
    );
    let address = Address::Ip("10.96.0.9".parse().expect("an address"));
    assert_eq!(addresses(&desired, &present), Some(vec![address]));
    assert_eq!(ports(&desired, &present), desired.ports);
    // A desired port does not exist before it is written.
    desired
        .ports
        .insert((port(80), Transport::Tcp), port(10_001));
    assert_eq!(ports(&desired, &present).len(), 1);
    assert_eq!(
        ports(&desired, &PresentServices::new()),
        ServicePorts::new()
    );
}

#[test]
fn edits_are_undone_and_additions_are_left() {
    let (desired, mut present) = (desired("one"), PresentServices::new());
    carry_out(
        &plan(&desired_services(&[&desired]), &present, None),
        &mut present,
    );
    let before = present.clone();
    let front = &mut present.get_mut(&desired.front).expect("it is there").object;
    front["metadata"]["annotations"]["cloud"] = json!("x");
    front["spec"]["sessionAffinity"] = json!("None");
    front["spec"]["healthCheckNodePort"] = json!(31_001);
    assert_eq!(
        plan(&desired_services(&[&desired]), &present, None),
        BTreeMap::new()
    );
    front_of(&mut present, &desired)["spec"]["ports"][0]["targetPort"] = json!(1);
    let actions = plan(&desired_services(&[&desired]), &present, None);
    assert!(matches!(&actions[&desired.front], ServiceAction::Apply(uid, _) if uid == "u"));
    // A part that is no longer desired shows only in the digest.
    let mut less = desired.clone();
    less.alias_annotations.clear();
    let actions = plan(&desired_services(&[&less]), &before, None);
    assert_eq!(actions.keys().collect::<Vec<_>>(), [&desired.alias]);
}

#[test]
fn service_selector_and_port_additions_by_others_are_removed() {
    let (desired, mut present) = (desired("one"), PresentServices::new());
    let all = desired_services(&[&desired]);
    carry_out(&plan(&all, &present, None), &mut present);
    let before = present.clone();
    // With one more label, it selects no proxy.
    front_of(&mut present, &desired)["spec"]["selector"]["x"] = json!("y");
    let alias = present.get_mut(&desired.alias).expect("it is there");
    alias.object["spec"]["selector"] = json!({"x": "y"});
    let actions = plan(&all, &present, None);
    let prune = |selector: Value| {
        let patch = json!({"spec": {"selector": selector}});
        ServiceAction::Prune("u".into(), patch)
    };
    let of_front = prune(json!({"app": "proxy", "x": null}));
    assert_eq!(actions[&desired.front], of_front);
    assert_eq!(actions[&desired.alias], prune(json!({"x": null})));
    carry_out(&actions, &mut present);
    assert_eq!(plan(&all, &present, None), BTreeMap::new());
    assert_eq!(present[&desired.front], before[&desired.front]);

    // One more port. The others keep what the API server gave them.
    let ports = |present: &mut PresentServices, ports: Value| {
        front_of(present, &desired)["spec"]["ports"] = ports;
    };
    let ours = before[&desired.front].object["spec"]["ports"][0].clone();
    assert_eq!(ours["nodePort"], 31_000);
    for more in [
        json!({"name": "more", "port": 9999, "targetPort": 15_000, "protocol": "TCP"}),
        json!({"name": "more", "port": 443, "targetPort": 15_000, "protocol": "UDP"}),
    ] {
        ports(&mut present, json!([more, ours]));
        let actions = plan(&all, &present, None);
        let patch = json!({"spec": {"ports": [ours]}});
        let expected = ServiceAction::Prune("u".into(), patch);
        assert_eq!(actions[&desired.front], expected);
        carry_out(&actions, &mut present);
        assert_eq!(plan(&all, &present, None), BTreeMap::new());
    }

    // Of two ports of one name, the API server would refuse the second.
    let mut moved = ours.clone();
    moved["port"] = json!(444);
    ports(&mut present, json!([moved]));
    let actions = plan(&all, &present, None);
    assert!(matches!(&actions[&desired.front], ServiceAction::Prune(..)));
    carry_out(&actions, &mut present);
    assert_eq!(plan(&all, &present, None), BTreeMap::new());
    let now = front_of(&mut present, &desired)["spec"]["ports"].clone();
    assert_eq!(now.as_array().map(Vec::len), Some(1));
    assert_eq!(now[0]["port"], 443);

    // A port under another name, beside a change of the settings: applying comes first, and then the port goes.
    ports(
        &mut present,
        json!([{"name": "more", "port": 1, "targetPort": 1, "protocol": "TCP"}]),
    );
    let actions = plan(&all, &present, None);
    assert!(matches!(&actions[&desired.front], ServiceAction::Apply(..)));
}

#[test]
fn services_lose_what_the_chart_policy_refuses_before_anything_is_applied() {
    let (desired, mut present) = (desired("one"), PresentServices::new());
    let all = desired_services(&[&desired]);
    carry_out(&plan(&all, &present, None), &mut present);
    let before = present.clone();
    let prune = |spec: Value| ServiceAction::Prune("u".into(), json!({"spec": spec}));
    // In each case, the target port differs as well. Only applying the manifest restores it.
    for (selector, external, expected) in [
        (
            json!({"app": "proxy", "x": "y"}),
            json!([]),
            json!({"selector": {"app": "proxy", "x": null}}),
        ),
        (
            json!({"app": "proxy"}),
            json!(["198.51.100.1"]),
            json!({"externalIPs": null}),
        ),
        // The policy would refuse the removal of the address alone.
        (
            json!({"app": "mine"}),
            json!(["198.51.100.1"]),
            json!({"externalIPs": null, "selector": {"app": "proxy"}}),
        ),
    ] {
        let front = front_of(&mut present, &desired);
        front["spec"]["ports"][0]["targetPort"] = json!(1);
        front["spec"]["selector"] = selector;
        front["spec"]["externalIPs"] = external;
        let actions = plan(&all, &present, None);
        assert_eq!(actions[&desired.front], prune(expected));
        carry_out(&actions, &mut present);
        let actions = plan(&all, &present, None);
        assert!(matches!(&actions[&desired.front], ServiceAction::Apply(..)));
        carry_out(&actions, &mut present);
        assert_eq!(plan(&all, &present, None), BTreeMap::new());
        assert_eq!(present[&desired.front], before[&desired.front]);
    }
    // External addresses alone go too.
    front_of(&mut present, &desired)["spec"]["externalIPs"] = json!(["198.51.100.1"]);
    let actions = plan(&all, &present, None);
    assert_eq!(actions[&desired.front], prune(json!({"externalIPs": null})));
    carry_out(&actions, &mut present);
    assert_eq!(present[&desired.front], before[&desired.front]);
    // The alias becomes a name again in the same write in which its selector goes.
    let alias = &mut present.get_mut(&desired.alias).expect("it is there").object;
    alias["spec"]["type"] = json!("ClusterIP");
    alias["spec"]["selector"] = json!({"x": "y"});
    let actions = plan(&all, &present, None);
    let expected = prune(json!({"type": "ExternalName", "selector": {"x": null}}));
    assert_eq!(actions[&desired.alias], expected);
}

#[test]
fn every_address_of_a_front_is_told_with_its_ports() {
    let (mut desired, mut present) = (desired("one"), PresentServices::new());
    desired.service_type = ServiceType::ClusterIp;
    carry_out(
        &plan(&desired_services(&[&desired]), &present, None),
        &mut present,
    );
    let front = front_of(&mut present, &desired);
    front["spec"]["clusterIPs"] = json!(["10.96.0.9", "fd00::9"]);
    front["spec"]["externalIPs"] = json!(["198.51.100.1"]);
    front["spec"]["ports"] = json!([
        {"port": 443, "targetPort": 10_000, "protocol": "TCP"},
        {"port": 8443, "targetPort": 10_001},
        {"port": 443, "targetPort": 10_002, "protocol": "UDP"},
    ]);
    front["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "203.0.113.5"}, {"hostname": "lb.example.com"},
    ]}});
    let all = sockets(&desired, &present);
    let all: Vec<String> = all
        .iter()
        .map(|(ip, (port, by))| format!("{ip} {port} {}", by.as_str()))
        .collect();
    let ports = ["443 TCP", "443 UDP", "8443 TCP"];
    let expected: Vec<String> = ["10.96.0.9", "198.51.100.1", "203.0.113.5", "fd00::9"]
        .iter()
        .flat_map(|ip| ports.map(|port| format!("{ip} {port}")))
        .collect();
    assert_eq!(all, expected);
    desired.uid = "another".into();
    assert!(sockets(&desired, &present).is_empty());
}

fn front_of<'a>(present: &'a mut PresentServices, desired: &GatewayService) -> &'a mut Value {
    &mut present.get_mut(&desired.front).expect("it is there").object
}

#[test]
fn service_with_an_immutable_change_is_made_anew_with_its_former_ports() {
    let (mut desired, mut present) = (desired("one"), PresentServices::new());
    carry_out(
        &plan(&desired_services(&[&desired]), &present, None),
        &mut present,
    );
    desired.requested = vec!["10.96.0.77".parse().expect("an address")];
    let actions = plan(&desired_services(&[&desired]), &present, None);
    assert!(matches!(&actions[&desired.front], ServiceAction::Anew(uid, _) if uid == "u"));
    // While it is being deleted, nothing more is done, and it has no address.
    present
        .get_mut(&desired.front)
        .expect("it is there")
        .deleting = true;
    assert!(!plan(&desired_services(&[&desired]), &present, None).contains_key(&desired.front));
    assert_eq!(addresses(&desired, &present), None);
    present.remove(&desired.front);
    let actions = plan(&desired_services(&[&desired]), &present, None);
    let ServiceAction::Create(manifest) = &actions[&desired.front] else {
        panic!("{actions:?}");
    };
    assert_eq!(manifest["spec"]["ports"][0]["targetPort"], 10_000);
}

#[test]
fn a_class_that_a_webhook_sets_is_left_and_one_that_was_ours_goes() {
    let (mut desired, mut present) = (desired("one"), PresentServices::new());
    desired.service_type = ServiceType::LoadBalancer;
    // Whenever a Service comes without a class, the webhook of the load balancer adds its own.
    let settle = |desired: &GatewayService, present: &mut PresentServices| {
        carry_out(&plan(&desired_services(&[desired]), present, None), present);
        if let Some(front) = present.get_mut(&desired.front) {
            let spec = front.object["spec"].as_object_mut().expect("a spec");
            spec.entry("loadBalancerClass")
                .or_insert_with(|| json!("service.k8s.aws/nlb"));
        }
        plan(&desired_services(&[desired]), present, None)
    };
    let actions = settle(&desired, &mut present);
    assert_eq!(actions, BTreeMap::new());
    // The settings ask for another class.
    desired.load_balancer_class = Some("example.net/edge".into());
    let actions = plan(&desired_services(&[&desired]), &present, None);
    assert!(matches!(&actions[&desired.front], ServiceAction::Anew(uid, _) if uid == "u"));
    let actions = settle(&desired, &mut present);
    assert!(matches!(actions[&desired.front], ServiceAction::Create(_)));
    assert_eq!(settle(&desired, &mut present), BTreeMap::new());
    assert_eq!(
        front_of(&mut present, &desired)["spec"]["loadBalancerClass"],
        "example.net/edge"
    );
    // They no longer do. The class was ours, so it has to go, and that of the webhook takes its place.
    desired.load_balancer_class = None;
    let actions = plan(&desired_services(&[&desired]), &present, None);
    assert!(matches!(actions[&desired.front], ServiceAction::Anew(..)));
    let actions = settle(&desired, &mut present);
    assert!(matches!(actions[&desired.front], ServiceAction::Create(_)));
    assert_eq!(settle(&desired, &mut present), BTreeMap::new());
    assert_eq!(
        front_of(&mut present, &desired)["spec"]["loadBalancerClass"],
        "service.k8s.aws/nlb"
    );
}

#[test]
fn services_without_a_gateway_are_deleted_and_those_of_a_kept_gateway_stay() {
    let (one, two) = (desired("one"), desired("two"));
    let mut present = PresentServices::new();
    carry_out(
        &plan(&desired_services(&[&one]), &present, None),
        &mut present,
    );
    // A new Gateway of the same name replaces it: the alias changes hands, and the front is
    // deleted.
    let actions = plan(&desired_services(&[&two]), &present, None);
    assert!(matches!(actions[&one.front], ServiceAction::Delete(_)));
    assert!(matches!(actions[&two.front], ServiceAction::Create(_)));
    assert!(matches!(actions[&two.alias], ServiceAction::Apply(..)));
    // A Gateway that is not accepted keeps its Services.
    let keep = BTreeMap::from([(one.uid.clone(), DesiredService::Keep)]);
    assert_eq!(plan(&keep, &present, None), BTreeMap::new());
    // No Gateway is left.
    let actions = plan(&BTreeMap::new(), &present, None);
    assert_eq!(actions.len(), 2);
    assert!(
        actions
            .values()
            .all(|action| *action == ServiceAction::Delete("u".into()))
    );
}

#[test]
fn a_load_balancers_addresses_are_those_it_was_given() {
    let (mut desired, mut present) = (desired("one"), PresentServices::new());
    desired.service_type = ServiceType::LoadBalancer;
    carry_out(
        &plan(&desired_services(&[&desired]), &present, None),
        &mut present,
    );
    assert_eq!(addresses(&desired, &present), Some(Vec::new()));
    front_of(&mut present, &desired)["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}, {"ip": "nonsense", "hostname": ""}, {},
    ]}});
    let expected = vec![
        Address::Ip("192.0.2.1".parse().expect("an address")),
        Address::Hostname("lb.example.com".into()),
    ];
    assert_eq!(addresses(&desired, &present), Some(expected));
}

#[test]
fn another_release_of_the_same_name_is_left_alone() {
    let owner = |name: &str| OwnerReference {
        kind: "ClusterRole".into(),
        name: name.into(),
        uid: name.into(),
        ..OwnerReference::default()
    };
    let release = |namespace: &str, of: Option<&str>| Release {
        namespace: namespace.into(),
        owner: of.map(owner),
    };
    let service = |namespace: &str, of: Option<&str>, name: &str| {
        let mut service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": "x"},
            "spec": {"type": "ExternalName", "externalName": name},
        }))
        .expect("a Service");
        service.metadata.owner_references = of.map(|of| vec![owner(of)]);
        service
    };
    let (mine, theirs) = (Some("r-one-owner"), Some("r-two-owner"));
    let alias = "r-gw-0.one.svc.cluster.local";
    // The owner decides, wherever the Service is and whatever somebody changed in it.
    for ours in [
        service("one", mine, ""),
        service("infra", mine, alias),
        service("infra", mine, "elsewhere.example.com"),
        service("one", None, ""),
        service("infra", None, alias),
    ] {
        assert!(release("one", mine).has(&ours), "{ours:?}");
        assert!(!release("two", theirs).has(&ours), "{ours:?}");
    }
    assert!(!release("one", None).has(&service("one", theirs, "")));
    assert!(!release("one", None).has(&service("infra", None, "one.example.com")));
    assert!(release("one", None).has(&service("infra", None, alias)));
    // Only a Service of the type ExternalName points to its name.
    let mut other_type = service("infra", None, alias);
    other_type.spec.as_mut().expect("a spec").type_ = Some("ClusterIP".into());
    assert!(!release("one", None).has(&other_type));
    // An owner of the same name may be another object.
    let mut other_owner = service("one", mine, "");
    let owners = other_owner.metadata.owner_references.as_mut();
    for owner in owners.expect("owners") {
        owner.uid = "another".into();
    }
    assert!(!release("one", mine).has(&other_owner));
}

#[test]
fn only_a_service_in_the_namespace_of_the_release_is_a_front() {
    let (desired, mut present) = (desired("one"), PresentServices::new());
    carry_out(
        &plan(&desired_services(&[&desired]), &present, None),
        &mut present,
    );
    let front = present[&desired.front].clone();
    // A tenant makes copies with the same labels. The namespace of one sorts before that of the release, the other after it.
    for namespace in ["a", "tenant"] {
        let mut forged = front.clone();
        forged.uid = "forged".into();
        present.insert(ObjectName::new(namespace, "forged"), forged);
    }
    let fronts = fronts(&present, "sys");
    assert_eq!(fronts.len(), 1);
    assert_eq!(*fronts["one"], front);
}

#[test]
fn an_answer_that_comes_late_takes_nothing_back() {
    let at = |version: &str| PresentService {
        version: version.into(),
        ..served(&json!({"metadata": {"name": "front", "namespace": "infra"}}))
    };
    assert!(at("9").is_after(None));
    assert!(at("10").is_after(Some(&at("9"))));
    // The address of the load balancer came with version 10, before the response to the creation.
    assert!(!at("9").is_after(Some(&at("10"))));
    assert!(!at("9").is_after(Some(&at("9"))));
    // If versions are not numbers, the watch will show every later one.
    assert!(!at("b").is_after(Some(&at("a"))));
}
