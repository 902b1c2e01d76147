//! Services in front of Gateways, golden: what is applied, and when it has to be made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use serde_json::{Value, json};
use vestibule_model::client_address::ClientAddress;
use vestibule_model::condition::{Address, ProgrammedBasis, Reason};
use vestibule_model::key::ObjectName;
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::parameters::{
    GatewayParameters, HttpParameters, LimitParameters, ServiceParameters,
};
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::{IpFamily, IpFamilyPolicy, ServiceType, TrafficPolicy};
use vestibule_operator::translate::{
    Assigned, Binds, Change, ClaimMode, DesiredPort, DesiredService, GatewayService,
    ServiceProblem, ServiceSettings, Settings, Status, Translator, immutable_difference,
};
use vestibule_stream::{ResourceKey, ResourceKind};

use vestibule_operator_testing::objects::{self, Tls, gateway, listener, our_class, set};

const UID: &str = "6a5e0f3e-2f0e-4f9c-9d35-8f1f0f6f7a11";

fn settings(defaults: ServiceParameters) -> Settings {
    Settings {
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Allocated {
            address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            services: ServiceSettings {
                release: "vestibule".into(),
                namespace: "vestibule-system".into(),
                cluster_domain: "cluster.local".into(),
                selector: labels(&[("app.kubernetes.io/component", "proxy")]),
                components: BTreeSet::new(),
                defaults,
            },
        },
        ..objects::settings()
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// A Gateway with the listener ports 80 and 443, changed by `edit`.
fn world(edit: impl FnOnce(&mut vestibule_model::gateway::Gateway)) -> Object {
    let listeners = vec![
        listener("http", 80, Protocol::Http, "", None),
        listener("tls", 443, Protocol::Tls, "", Some(Tls::Passthrough)),
    ];
    let Object::Gateway(mut gateway) = gateway("shared", listeners, NamespaceScope::All) else {
        unreachable!("a Gateway")
    };
    Arc::make_mut(&mut gateway).meta.uid = UID.into();
    edit(Arc::make_mut(&mut gateway));
    Object::Gateway(gateway)
}

/// Everything that is asked for, from 10000 up.
fn allocate(translator: &Translator) -> Change {
    let ports = (10_000..).zip(translator.ports().iter().cloned());
    Change::Ports(
        ports
            .map(|(internal, desired)| (desired, Port::new(internal)))
            .collect(),
    )
}

fn translated(defaults: ServiceParameters, objects: Vec<Object>) -> Translator {
    let mut translator = Translator::new(settings(defaults));
    translator.apply(objects.into_iter().map(Change::Put));
    let ports = allocate(&translator);
    translator.apply([ports]);
    translator
}

fn service_of(translator: &Translator) -> GatewayService {
    match &translator.services()[UID] {
        DesiredService::Make(service) => (**service).clone(),
        DesiredService::Keep => panic!("nothing is to be made"),
    }
}

fn service(defaults: ServiceParameters, objects: Vec<Object>) -> GatewayService {
    service_of(&translated(defaults, objects))
}

fn ask(ips: &[&str]) -> Object {
    world(|gateway| {
        gateway.addresses = ips
            .iter()
            .map(|ip| vestibule_model::gateway::AddressRequest {
                field: "spec.addresses[0]".into(),
                ip: Some(ip.parse().expect("an address")),
            })
            .collect();
    })
}

fn of_type(service_type: ServiceType) -> ServiceParameters {
    ServiceParameters {
        service_type: Some(service_type),
        ..ServiceParameters::default()
    }
}

#[test]
fn a_plain_gateway_gets_a_load_balancer_and_an_alias() {
    let service = service(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    assert_eq!(
        service.front(),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": "vestibule-system",
                "name": "vestibule-gw-27eb6e3213",
                "labels": {
                    "app.kubernetes.io/managed-by": "vestibule",
                    "vestibule.dev/gateway-uid": UID,
                },
                "annotations": {"vestibule.dev/gateway": "platform/shared"},
            },
            "spec": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "selector": {"app.kubernetes.io/component": "proxy"},
                "ports": [
                    {"name": "tcp-80", "protocol": "TCP", "port": 80, "targetPort": 10_000},
                    {"name": "tcp-443", "protocol": "TCP", "port": 443, "targetPort": 10_001},
                ],
            },
        })
    );
    assert_eq!(
        service.alias(),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": "platform",
                "name": "shared",
                "labels": {
                    "app.kubernetes.io/managed-by": "vestibule",
                    "gateway.networking.k8s.io/gateway-name": "shared",
                    "vestibule.dev/gateway-uid": UID,
                },
                "annotations": {"vestibule.dev/gateway": "platform/shared"},
            },
            "spec": {
                "type": "ExternalName",
                "externalName": "vestibule-gw-27eb6e3213.vestibule-system.svc.cluster.local",
            },
        })
    );
}

#[test]
fn infrastructure_goes_to_both_and_takes_nothing_of_ours() {
    let infra = world(|gateway| {
        gateway.infrastructure.labels = labels(&[
            ("key2", "value2"),
            ("vestibule.dev/gateway-uid", "forged"),
            ("app.kubernetes.io/managed-by", "forged"),
            ("gateway.networking.k8s.io/gateway-name", "forged"),
        ]);
        gateway.infrastructure.annotations =
            labels(&[("key1", "value1"), ("vestibule.dev/gateway", "forged")]);
    });
    let service = service(ServiceParameters::default(), vec![our_class(), infra]);
    for manifest in [service.front(), service.alias()] {
        let metadata = &manifest["metadata"];
        assert_eq!(metadata["labels"]["key2"], "value2");
        assert_eq!(metadata["annotations"]["key1"], "value1");
        assert_eq!(metadata["labels"]["vestibule.dev/gateway-uid"], UID);
        assert_eq!(
            metadata["labels"]["app.kubernetes.io/managed-by"],
            "vestibule"
        );
        assert_eq!(
            metadata["annotations"]["vestibule.dev/gateway"],
            "platform/shared"
        );
    }
    let name = "gateway.networking.k8s.io/gateway-name";
    assert_eq!(service.alias()["metadata"]["labels"][name], "shared");
}

#[test]
fn the_longest_name_fits_everywhere() {
    let name = "a".repeat(253);
    let long = world(|gateway| gateway.name = ObjectName::new("platform", name.as_str()));
    let service = service(ServiceParameters::default(), vec![our_class(), long]);
    assert!(service.alias.name.len() <= 63);
    let label = &service.alias()["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"];
    assert!(label.as_str().expect("a label").len() <= 63);
    // Where there is room, the whole name is found again.
    assert_eq!(
        service.alias()["metadata"]["annotations"]["vestibule.dev/gateway"],
        format!("platform/{name}")
    );
}

fn parameters(name: &str, service: ServiceParameters) -> Object {
    Object::GatewayParameters(Arc::new(GatewayParameters {
        name: ObjectName::new("platform", name),
        meta: Meta::default(),
        service,
        limits: LimitParameters::default(),
        client_address: ClientAddress::default(),
        http: HttpParameters::default(),
        certificate_namespaces: None,
        findings: Vec::new(),
    }))
}

fn reference(name: &str) -> Reference {
    Reference {
        group: "vestibule.dev".into(),
        kind: "GatewayParameters".into(),
        target: ObjectName::new("platform", name),
        field: "spec.parametersRef".into(),
    }
}

#[test]
fn parameters_count_field_by_field_the_gateways_first() {
    let defaults = ServiceParameters {
        service_type: Some(ServiceType::LoadBalancer),
        annotations: labels(&[("a", "release"), ("b", "release"), ("c", "release")]),
        external_traffic_policy: Some(TrafficPolicy::Local),
        ip_family_policy: Some(IpFamilyPolicy::SingleStack),
        ip_families: vec![IpFamily::V4],
        load_balancer_class: Some("release".into()),
        load_balancer_node_ports: Some(false),
    };
    let of_class = ServiceParameters {
        annotations: labels(&[("b", "class"), ("c", "class")]),
        external_traffic_policy: Some(TrafficPolicy::Cluster),
        ip_families: vec![IpFamily::V6, IpFamily::V4],
        ..ServiceParameters::default()
    };
    let own = ServiceParameters {
        annotations: labels(&[("c", "own")]),
        ip_family_policy: Some(IpFamilyPolicy::RequireDualStack),
        load_balancer_node_ports: Some(true),
        ..ServiceParameters::default()
    };
    let Object::GatewayClass(mut class) = our_class() else {
        unreachable!("a class")
    };
    class.parameters = Some(reference("class"));
    let objects = vec![
        Object::GatewayClass(class),
        world(|gateway| gateway.infrastructure.parameters = Some(reference("own"))),
        parameters("class", of_class),
        parameters("own", own),
    ];
    let service = service(defaults, objects);
    assert_eq!(service.service_type, ServiceType::LoadBalancer);
    assert_eq!(
        service.external_traffic_policy,
        Some(TrafficPolicy::Cluster)
    );
    assert_eq!(
        service.ip_family_policy,
        Some(IpFamilyPolicy::RequireDualStack)
    );
    let spec = &service.front()["spec"];
    assert_eq!(spec["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert_eq!(spec["ipFamilyPolicy"], "RequireDualStack");
    assert_eq!(spec["loadBalancerClass"], "release");
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    let annotations = &service.front()["metadata"]["annotations"];
    assert_eq!(annotations["a"], "release");
    assert_eq!(annotations["b"], "class");
    assert_eq!(annotations["c"], "own");
    // They are for the load balancer, which has nothing to do with the alias.
    assert_eq!(service.alias()["metadata"]["annotations"].get("a"), None);
}

#[test]
fn only_external_types_have_a_traffic_policy_and_only_load_balancers_a_class() {
    for service_type in ServiceType::ALL {
        let defaults = ServiceParameters {
            load_balancer_class: Some("example.net/edge".into()),
            load_balancer_node_ports: Some(false),
            ..of_type(*service_type)
        };
        let spec = service(defaults, vec![our_class(), world(|_| {})]).front()["spec"].clone();
        let external = *service_type != ServiceType::ClusterIp;
        assert_eq!(spec["type"], service_type.as_str());
        assert_eq!(spec.get("externalTrafficPolicy").is_some(), external);
        assert_eq!(
            spec.get("loadBalancerClass").is_some(),
            *service_type == ServiceType::LoadBalancer
        );
        let allocates = spec.get("allocateLoadBalancerNodePorts");
        let none = json!(false);
        let expected = (*service_type == ServiceType::LoadBalancer).then_some(&none);
        assert_eq!(allocates, expected);
    }
}

#[test]
fn addresses_are_asked_for_as_the_type_has_it() {
    let spec = |service_type, ips: &[&str]| {
        let objects = vec![our_class(), ask(ips)];
        service(of_type(service_type), objects).front()["spec"].clone()
    };
    let balanced = spec(ServiceType::LoadBalancer, &["192.0.2.1"]);
    assert_eq!(balanced["loadBalancerIP"], "192.0.2.1");
    assert_eq!(balanced.get("clusterIP"), None);
    let inside = spec(ServiceType::ClusterIp, &["10.96.0.9", "fd00::9"]);
    assert_eq!(inside["clusterIP"], "10.96.0.9");
    assert_eq!(inside["clusterIPs"], json!(["10.96.0.9", "fd00::9"]));
    assert_eq!(inside.get("loadBalancerIP"), None);
    // Two of a family cannot be had; what is there stays.
    let two = translated(
        of_type(ServiceType::ClusterIp),
        vec![our_class(), ask(&["10.96.0.9", "10.96.0.10"])],
    );
    assert_eq!(two.services()[UID], DesiredService::Keep);
}

#[test]
fn service_is_made_anew_only_for_differences_in_immutable_fields() {
    let with =
        |service_type, ips: &[&str]| service(of_type(service_type), vec![our_class(), ask(ips)]);
    let by_default = |defaults| service(defaults, vec![our_class(), world(|_| {})]);
    let difference = |service: &GatewayService, spec: Value| {
        immutable_difference(&service.front(), &json!({"spec": spec}))
    };
    let cluster = with(ServiceType::ClusterIp, &["10.96.0.9"]);
    let same = json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"]});
    assert_eq!(difference(&cluster, same), None);
    let other = json!({"type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]});
    assert_eq!(difference(&cluster, other.clone()), Some("spec.clusterIPs"));
    // A second address on top is the cluster's choice.
    let dual = json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.9", "fd00::9"]});
    assert_eq!(difference(&cluster, dual), None);
    // A request that is gone keeps what there is.
    let asks_nothing = with(ServiceType::ClusterIp, &[]);
    assert_eq!(difference(&asks_nothing, other.clone()), None);
    // Types and load balancer addresses can be changed in place.
    let balanced = with(ServiceType::LoadBalancer, &["192.0.2.1"]);
    assert_eq!(difference(&balanced, other), None);
    let six = by_default(ServiceParameters {
        ip_families: vec![IpFamily::V6],
        ..ServiceParameters::default()
    });
    let families = |family: &str| json!({"type": "LoadBalancer", "ipFamilies": [family]});
    assert_eq!(difference(&six, families("IPv4")), Some("spec.ipFamilies"));
    assert_eq!(difference(&six, families("IPv6")), None);
    // Without a class in the settings, any class may be there: a webhook of the load balancer may have set it.
    let of_class = |class: &str| json!({"type": "LoadBalancer", "loadBalancerClass": class});
    assert_eq!(difference(&balanced, of_class("example.net/edge")), None);
    let edge = by_default(ServiceParameters {
        load_balancer_class: Some("example.net/edge".into()),
        ..ServiceParameters::default()
    });
    assert_eq!(difference(&edge, of_class("example.net/edge")), None);
    for spec in [
        of_class("example.net/core"),
        json!({"type": "LoadBalancer"}),
    ] {
        assert_eq!(difference(&edge, spec), Some("spec.loadBalancerClass"));
    }
    // With the type, a class comes and goes in place.
    assert_eq!(difference(&edge, json!({"type": "NodePort"})), None);
}

#[test]
fn an_edit_that_is_wrong_costs_no_address() {
    let mut translator = translated(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    let addresses = Assigned {
        addresses: vec![Address::Ip([192, 0, 2, 1].into())],
        sockets: BTreeSet::new(),
        problem: None,
    };
    translator.apply([Change::Addresses(UID.into(), Some(addresses))]);
    let before = translator.resources().clone();
    let names = |resources: &BTreeMap<Arc<ResourceKey>, vestibule_stream::Encoded>| {
        resources.keys().cloned().collect::<Vec<_>>()
    };
    // Parameters that are not there.
    let broken = world(|gateway| gateway.infrastructure.parameters = Some(reference("absent")));
    let output = translator.apply([Change::Put(broken)]);
    assert_eq!(output.services[UID], Some(DesiredService::Keep));
    assert!(output.ports.is_empty());
    assert_eq!(names(translator.resources()), names(&before));
    // A set that is new is served on the ports that there are. Its status says so, and why it is not accepted.
    let passthrough = Some(Tls::Passthrough);
    let new = a_set(vec![listener(
        "new",
        443,
        Protocol::Tls,
        "new.example.com",
        passthrough,
    )]);
    let key = new.key();
    translator.apply([Change::Put(new)]);
    let resource = ResourceKey::new(ResourceKind::Listener, "ListenerSet/red/web/new");
    assert!(translator.resources().contains_key(&resource));
    assert_eq!(translator.services()[UID], DesiredService::Keep);
    let Some(Status::Listeners(status)) = translator.statuses().get(&key) else {
        panic!("no status");
    };
    let accepted = &status.conditions[0];
    assert_eq!(accepted.reason, Reason::ParentNotAccepted);
    assert!(accepted.message.contains("served all the same"));
    translator.apply([Change::Remove(key)]);
    // An object that cannot be read.
    let key = world(|_| {}).key();
    let meta = Meta {
        uid: UID.into(),
        ..Meta::default()
    };
    let finding = vestibule_model::finding::Finding::refused(
        Reason::Unreadable,
        "spec",
        "does not decode",
        "",
    );
    translator.apply([Change::Put(Object::Unreadable(key.clone(), meta, finding))]);
    assert_eq!(translator.services()[UID], DesiredService::Keep);
    // Gone is gone.
    let output = translator.apply([Change::Remove(key)]);
    assert_eq!(output.services[UID], None);
    assert!(translator.services().is_empty() && translator.ports().is_empty());
}

#[test]
fn a_class_that_is_created_again_costs_no_address_and_no_port() {
    let mut translator = translated(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    let (made, ports) = (service_of(&translator), translator.ports().clone());
    let class = our_class().key();
    let output = translator.apply([Change::Remove(class.clone())]);
    assert_eq!(output.services[UID], Some(DesiredService::Keep));
    assert_eq!(output.ports, BTreeMap::new());
    assert_eq!(*translator.ports(), ports);
    let output = translator.apply([Change::Put(our_class())]);
    assert_eq!(output.ports, BTreeMap::new());
    assert_eq!(service_of(&translator), made);
    // The class comes back as that of another controller.
    translator.apply([Change::Remove(class.clone())]);
    let Object::GatewayClass(mut theirs) = our_class() else {
        unreachable!("a class")
    };
    theirs.controller = "example.com/another".into();
    let output = translator.apply([Change::Put(Object::GatewayClass(theirs))]);
    assert_eq!(output.services[UID], None);
    assert!(translator.services().is_empty() && translator.ports().is_empty());

    // An operator that starts while there is no class keeps what is persisted, until the Gateway goes.
    let mut translator = Translator::new(settings(ServiceParameters::default()));
    translator.apply([Change::Put(world(|_| {}))]);
    assert!(translator.ports().is_empty());
    let told = BTreeMap::from([(desired(443), Port::new(10_500))]);
    let output = translator.apply([Change::Ports(told)]);
    assert_eq!(output.ports, BTreeMap::from([(desired(443), true)]));
    assert_eq!(translator.services()[UID], DesiredService::Keep);
    let again = world(|gateway| gateway.meta.uid = "another".into());
    let output = translator.apply([Change::Put(again.clone())]);
    assert_eq!(output.services[UID], None);
    assert_eq!(output.ports, BTreeMap::from([(desired(443), false)]));
    translator.apply([Change::Remove(again.key())]);
    assert!(translator.services().is_empty());
}

#[test]
fn a_gateway_says_why_its_service_is_not_as_desired() {
    let mut translator = translated(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    let key = world(|_| {}).key();
    let mut message = |problem| {
        let assigned = Assigned {
            problem: Some(problem),
            ..Assigned::default()
        };
        translator.apply([Change::Addresses(UID.into(), Some(assigned))]);
        let Some(Status::Listeners(status)) = translator.statuses().get(&key) else {
            panic!("no status");
        };
        match &status.programmed {
            ProgrammedBasis::NotPublished(Reason::AddressNotAssigned, message) => message.clone(),
            other => panic!("{other:?}"),
        }
    };
    let front = "Service vestibule-system/vestibule-gw-27eb6e3213";
    assert_eq!(
        message(ServiceProblem::Refused("over the quota".into())),
        format!(
            "The API server refuses {front}: over the quota; correct spec.infrastructure and the GatewayParameters"
        )
    );
    assert_eq!(
        message(ServiceProblem::NameTaken("it is there".into())),
        format!(
            "A {front} that is not Vestibule's exists; delete it, or restore its label app.kubernetes.io/managed-by"
        )
    );
    let changed = message(ServiceProblem::Changed("spec.loadBalancerClass"));
    let begin = "Something such as an admission webhook changes spec.loadBalancerClass of Service ";
    assert!(changed.starts_with(begin), "{changed}");
}

#[test]
fn a_gateway_of_the_same_name_is_another_one() {
    let mut translator = translated(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    let again = world(|gateway| gateway.meta.uid = "another".into());
    let output = translator.apply([Change::Put(again)]);
    assert_eq!(output.services[UID], None);
    let desired = |gateway: &str, port| DesiredPort {
        gateway: gateway.into(),
        port: Port::new(port).expect("a port"),
        transport: vestibule_model::protocol::Transport::Tcp,
    };
    assert_eq!(
        output.ports,
        BTreeMap::from([
            (desired(UID, 80), false),
            (desired(UID, 443), false),
            (desired("another", 80), true),
            (desired("another", 443), true),
        ])
    );
    assert_eq!(
        translator.services()["another"],
        DesiredService::Keep,
        "until its ports are allocated"
    );
}

#[test]
fn a_port_wish_reads_what_it_prints() {
    let text = format!("{UID}/443/TCP");
    let desired: DesiredPort = text.parse().expect("a wish");
    assert_eq!(desired.to_string(), text);
    for wrong in ["", "443/TCP", "uid/0/TCP", "uid/443/SCTP", "uid/65536/TCP"] {
        assert!(wrong.parse::<DesiredPort>().is_err(), "{wrong}");
    }
}

fn desired(port: u16) -> DesiredPort {
    DesiredPort {
        gateway: UID.into(),
        port: Port::new(port).expect("a port"),
        transport: vestibule_model::protocol::Transport::Tcp,
    }
}

fn a_set(listeners: Vec<vestibule_model::gateway::Listener>) -> Object {
    set("red", "web", 1, "shared", listeners)
}

#[test]
fn ports_come_and_go_with_the_listeners_of_sets() {
    let mut translator = translated(
        ServiceParameters::default(),
        vec![our_class(), world(|_| {})],
    );
    let extra = a_set(vec![listener("l", 8080, Protocol::Http, "", None)]);
    let output = translator.apply([Change::Put(extra.clone())]);
    assert_eq!(output.ports, BTreeMap::from([(desired(8080), true)]));
    // What is there goes on while the new one waits.
    let ports = |translator: &Translator| -> Vec<u16> {
        let service = service_of(translator);
        service.ports.keys().map(|(port, _)| port.get()).collect()
    };
    assert_eq!(ports(&translator), [80, 443]);
    let told = BTreeMap::from([(desired(8080), Port::new(10_500))]);
    let output = translator.apply([Change::Ports(told)]);
    assert!(matches!(
        output.services[UID],
        Some(DesiredService::Make(_))
    ));
    assert_eq!(ports(&translator), [80, 443, 8080]);
    let output = translator.apply([Change::Remove(extra.key())]);
    assert_eq!(output.ports, BTreeMap::from([(desired(8080), false)]));
    assert_eq!(ports(&translator), [80, 443]);
}

#[test]
fn where_nothing_is_served_the_first_own_port_keeps_the_address() {
    let of_no_use = world(|gateway| {
        gateway.listeners.truncate(1);
        gateway.listeners[0].allowed_kinds =
            vec![("gateway.networking.k8s.io".into(), "TCPRoute".into())];
    });
    let translator = translated(ServiceParameters::default(), vec![our_class(), of_no_use]);
    assert_eq!(
        translator.ports().iter().collect::<Vec<_>>(),
        [&desired(80)]
    );
    assert_eq!(service_of(&translator).ports.len(), 1);
    // The name is the Gateway's all the same.
    let mut kinds = translator.resources().keys().map(|key| key.kind());
    assert!(
        kinds.all(|kind| kind != ResourceKind::Listener),
        "nothing answers there"
    );
}

#[test]
fn sets_follow_whatever_their_gateway_lacks() {
    let objects = || {
        let listeners = vec![listener("l", 8080, Protocol::Http, "", None)];
        let Object::Gateway(gateway) = ask(&["192.0.2.1"]) else {
            unreachable!("a Gateway")
        };
        vec![our_class(), Object::Gateway(gateway), a_set(listeners)]
    };
    let of_set = |translator: &Translator| {
        let set = a_set(Vec::new()).key();
        translator.statuses()[&set].clone()
    };
    let mut step_by_step = translated(ServiceParameters::default(), objects());
    let other = Assigned {
        addresses: vec![Address::Ip([192, 0, 2, 9].into())],
        sockets: BTreeSet::new(),
        problem: None,
    };
    let right = Assigned {
        addresses: vec![Address::Ip([192, 0, 2, 1].into())],
        sockets: BTreeSet::new(),
        problem: None,
    };
    for assigned in [None, Some(other), Some(right), None] {
        let change = Change::Addresses(UID.into(), assigned);
        step_by_step.apply([change.clone()]);
        let mut scratch = translated(ServiceParameters::default(), objects());
        scratch.apply([change]);
        assert_eq!(of_set(&step_by_step), of_set(&scratch));
    }
}
