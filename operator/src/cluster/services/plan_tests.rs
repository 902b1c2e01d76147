use vestibule_model::service::ServiceType;

use super::*;

fn port(number: u16) -> Port {
    Port::new(number).expect("it is not 0")
}

fn wish(uid: &str) -> GatewayService {
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
        requested: Vec::new(),
        selector: BTreeMap::from([("app".to_owned(), "proxy".to_owned())]),
        front_labels: labels.clone(),
        front_annotations: BTreeMap::new(),
        alias_labels: labels,
        alias_annotations: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
        external_name: "r-gw.sys.svc.cluster.local".to_owned(),
    }
}

fn wishes(all: &[&GatewayService]) -> BTreeMap<Arc<str>, ServiceWish> {
    let make = |wish: &&GatewayService| {
        (
            wish.uid.clone(),
            ServiceWish::Make(Box::new((*wish).clone())),
        )
    };
    all.iter().map(make).collect()
}

/// What the API server makes of it: defaults, numbers, an address.
fn served(manifest: &Value) -> Present {
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
    Present {
        uid: "u".into(),
        version: "7".into(),
        gateway: label
            .and_then(|l| l.as_str().map(Into::into))
            .unwrap_or_default(),
        deleting: false,
        object,
    }
}

/// Does all that is planned.
fn carry_out(actions: &BTreeMap<ObjectName, Action>, present: &mut Services) {
    for (name, action) in actions {
        match action {
            Action::Create(manifest) | Action::Apply(_, manifest) => {
                present.insert(name.clone(), served(manifest));
            }
            Action::Anew(..) | Action::Delete(_) => {
                present.remove(name);
            }
        }
    }
}

#[test]
fn what_is_made_is_not_made_again() {
    let (mut wish, mut present) = (wish("one"), Services::new());
    let owner = json!({"kind": "ClusterRole", "name": "r", "uid": "o"});
    let actions = plan(&wishes(&[&wish]), &present, Some(&owner));
    assert_eq!(actions.len(), 2);
    assert!(
        actions
            .values()
            .all(|action| matches!(action, Action::Create(_)))
    );
    carry_out(&actions, &mut present);
    assert_eq!(
        plan(&wishes(&[&wish]), &present, Some(&owner)),
        BTreeMap::new()
    );
    assert_eq!(
        present[&wish.front].object["metadata"]["ownerReferences"],
        json!([owner])
    );
    let address = Address::Ip("10.96.0.9".parse().expect("an address"));
    assert_eq!(addresses(&wish, &present), Some(vec![address]));
    assert_eq!(ports(&wish, &present), wish.ports);
    // A port that is wished for is not there before it is written.
    wish.ports.insert((port(80), Transport::Tcp), port(10_001));
    assert_eq!(ports(&wish, &present).len(), 1);
    assert_eq!(ports(&wish, &Services::new()), FrontPorts::new());
}

#[test]
fn edits_are_undone_and_additions_are_left() {
    let (wish, mut present) = (wish("one"), Services::new());
    carry_out(&plan(&wishes(&[&wish]), &present, None), &mut present);
    let before = present.clone();
    let front = &mut present.get_mut(&wish.front).expect("it is there").object;
    front["metadata"]["annotations"]["cloud"] = json!("x");
    front["spec"]["sessionAffinity"] = json!("None");
    let more = json!({"name": "more", "port": 1, "targetPort": 1, "protocol": "TCP"});
    front["spec"]["ports"]
        .as_array_mut()
        .expect("ports")
        .push(more);
    assert_eq!(plan(&wishes(&[&wish]), &present, None), BTreeMap::new());
    front_of(&mut present, &wish)["spec"]["ports"][0]["targetPort"] = json!(1);
    let actions = plan(&wishes(&[&wish]), &present, None);
    assert!(matches!(&actions[&wish.front], Action::Apply(uid, _) if uid == "u"));
    // What is no longer wished shows by the digest alone.
    let mut less = wish.clone();
    less.alias_annotations.clear();
    let actions = plan(&wishes(&[&less]), &before, None);
    assert_eq!(actions.keys().collect::<Vec<_>>(), [&wish.alias]);
}

#[test]
fn every_address_of_a_front_is_told_with_its_tcp_ports() {
    let (mut wish, mut present) = (wish("one"), Services::new());
    wish.service_type = ServiceType::ClusterIp;
    carry_out(&plan(&wishes(&[&wish]), &present, None), &mut present);
    let front = front_of(&mut present, &wish);
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
    let all = sockets(&wish, &present);
    let all: Vec<String> = all
        .iter()
        .map(|(ip, port)| format!("{ip} {port}"))
        .collect();
    let expected: Vec<String> = ["10.96.0.9", "198.51.100.1", "203.0.113.5", "fd00::9"]
        .iter()
        .flat_map(|ip| [443, 8443].map(|port| format!("{ip} {port}")))
        .collect();
    assert_eq!(all, expected);
    wish.uid = "another".into();
    assert!(sockets(&wish, &present).is_empty());
}

fn front_of<'a>(present: &'a mut Services, wish: &GatewayService) -> &'a mut Value {
    &mut present.get_mut(&wish.front).expect("it is there").object
}

#[test]
fn what_is_immutable_is_made_anew_with_the_ports_it_had() {
    let (mut wish, mut present) = (wish("one"), Services::new());
    carry_out(&plan(&wishes(&[&wish]), &present, None), &mut present);
    wish.requested = vec!["10.96.0.77".parse().expect("an address")];
    let actions = plan(&wishes(&[&wish]), &present, None);
    assert!(matches!(&actions[&wish.front], Action::Anew(uid, _) if uid == "u"));
    // While it goes, nothing more is done, and it has no address.
    present.get_mut(&wish.front).expect("it is there").deleting = true;
    assert!(!plan(&wishes(&[&wish]), &present, None).contains_key(&wish.front));
    assert_eq!(addresses(&wish, &present), None);
    present.remove(&wish.front);
    let actions = plan(&wishes(&[&wish]), &present, None);
    let Action::Create(manifest) = &actions[&wish.front] else {
        panic!("{actions:?}");
    };
    assert_eq!(manifest["spec"]["ports"][0]["targetPort"], 10_000);
}

#[test]
fn what_belongs_to_no_gateway_goes_and_what_is_kept_stays() {
    let (one, two) = (wish("one"), wish("two"));
    let mut present = Services::new();
    carry_out(&plan(&wishes(&[&one]), &present, None), &mut present);
    // A Gateway of the same name comes in its place: the alias changes hands, the front goes.
    let actions = plan(&wishes(&[&two]), &present, None);
    assert!(matches!(actions[&one.front], Action::Delete(_)));
    assert!(matches!(actions[&two.front], Action::Create(_)));
    assert!(matches!(actions[&two.alias], Action::Apply(..)));
    // One that is not accepted keeps what it has.
    let keep = BTreeMap::from([(one.uid.clone(), ServiceWish::Keep)]);
    assert_eq!(plan(&keep, &present, None), BTreeMap::new());
    // None at all.
    let actions = plan(&BTreeMap::new(), &present, None);
    assert_eq!(actions.len(), 2);
    assert!(
        actions
            .values()
            .all(|action| *action == Action::Delete("u".into()))
    );
}

#[test]
fn a_load_balancers_addresses_are_those_it_was_given() {
    let (mut wish, mut present) = (wish("one"), Services::new());
    wish.service_type = ServiceType::LoadBalancer;
    carry_out(&plan(&wishes(&[&wish]), &present, None), &mut present);
    assert_eq!(addresses(&wish, &present), Some(Vec::new()));
    front_of(&mut present, &wish)["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}, {"ip": "nonsense", "hostname": ""}, {},
    ]}});
    let expected = vec![
        Address::Ip("192.0.2.1".parse().expect("an address")),
        Address::Hostname("lb.example.com".into()),
    ];
    assert_eq!(addresses(&wish, &present), Some(expected));
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
            "metadata": {"namespace": namespace, "name": "x"}, "spec": {"externalName": name},
        }))
        .expect("a Service");
        service.metadata.owner_references = of.map(|of| vec![owner(of)]);
        service
    };
    let (mine, theirs) = (Some("r-one-owner"), Some("r-two-owner"));
    let alias = "r-gw-0.one.svc.cluster.local";
    // By the owner, wherever it is, and whatever somebody made of it.
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
}

#[test]
fn an_answer_that_comes_late_takes_nothing_back() {
    let at = |version: &str| Present {
        version: version.into(),
        ..served(&json!({"metadata": {"name": "front", "namespace": "infra"}}))
    };
    assert!(at("9").is_after(None));
    assert!(at("10").is_after(Some(&at("9"))));
    // The load balancer's address came with version 10 before the answer to the creation.
    assert!(!at("9").is_after(Some(&at("10"))));
    assert!(!at("9").is_after(Some(&at("9"))));
    // Whatever is later comes by the watch.
    assert!(!at("b").is_after(Some(&at("a"))));
}
