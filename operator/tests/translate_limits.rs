//! Limits of GatewayParameters on their way to the proxies: the settings of the Gateway have them, and an edit changes those
//! settings and nothing else.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::client_address::ClientAddress;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::parameters::{
    GatewayParameters, HttpParameters, LimitParameters, ServiceParameters,
};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Translator};
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{ResourceKey, ResourceKind, proto};

use vestibule_operator_testing::objects::{
    gateway, namespace, our_class, parameters_at, passthrough, set, translated,
};

const EDGE: &str = "platform/edge";
const OTHER: &str = "platform/other";

fn parameters(name: &str, limits: LimitParameters) -> GatewayParameters {
    GatewayParameters {
        name: ObjectName::new("platform", name),
        meta: Meta::default(),
        service: ServiceParameters::default(),
        client_address: ClientAddress::default(),
        certificate_namespaces: None,
        http: HttpParameters::default(),
        limits,
        findings: Vec::new(),
    }
}

/// Its class has parameters called `class`, the Gateway `edge` some called `own`.
fn world() -> Vec<Object> {
    let Object::GatewayClass(mut class) = our_class() else {
        unreachable!("a class")
    };
    class.parameters = Some(parameters_at("class"));
    let listeners = |host| vec![passthrough("own", host)];
    let edge = gateway("edge", listeners("own.example.com"), NamespaceScope::All);
    let Object::Gateway(mut edge) = edge else {
        unreachable!("a Gateway")
    };
    Arc::make_mut(&mut edge).infrastructure.parameters = Some(parameters_at("own"));
    let mut other = listeners("other.example.com");
    other[0].port = vestibule_model::protocol::Port::new(8443);
    vec![
        Object::GatewayClass(class),
        Object::Gateway(edge),
        gateway("other", other, NamespaceScope::Same),
        namespace("team-a", &[]),
        set(
            "team-a",
            "web",
            2,
            "edge",
            vec![passthrough("tls", "a.example.com")],
        ),
    ]
}

/// The limits in the settings of a Gateway.
fn limits(translator: &Translator, gateway: &str) -> Option<proto::ListenerLimits> {
    let key = ResourceKey::new(ResourceKind::GatewaySettings, gateway);
    let encoded = translator.resources().get(&key).expect("the settings");
    match encoded.decode() {
        Some(Wire::GatewaySettings(settings)) => settings.limits,
        other => panic!("{other:?} are no settings"),
    }
}

#[test]
fn a_gateway_has_limits_its_own_before_the_classs() {
    let of_class = LimitParameters {
        stream_idle: Some(Duration::from_mins(1)),
        tunnel_idle: Some(Duration::from_hours(2)),
        request_body: Some(1 << 20),
        ..LimitParameters::default()
    };
    let own = LimitParameters {
        tunnel_idle: Some(Duration::ZERO),
        request: Some(Duration::from_millis(1500)),
        connection_age: Some(Duration::from_hours(1)),
        ..LimitParameters::default()
    };
    let mut objects = world();
    objects.push(Object::GatewayParameters(Arc::new(parameters(
        "class", of_class,
    ))));
    objects.push(Object::GatewayParameters(Arc::new(parameters("own", own))));
    let mut translator = translated(objects);
    let of_class = proto::ListenerLimits {
        stream_idle: Some(60_000),
        tunnel_idle: Some(7_200_000),
        request_body: Some(1 << 20),
        ..Default::default()
    };
    let of_edge = proto::ListenerLimits {
        tunnel_idle: Some(0),
        request: Some(1500),
        connection_age: Some(3_600_000),
        ..of_class
    };
    assert_eq!(limits(&translator, EDGE), Some(of_edge));
    assert_eq!(limits(&translator, OTHER), Some(of_class));

    // An edit of a Gateway's own parameters is one resource.
    let longer = LimitParameters {
        request: Some(Duration::from_secs(30)),
        ..own
    };
    let edit = Object::GatewayParameters(Arc::new(parameters("own", longer)));
    let output = translator.apply([Change::Put(edit)]);
    let mut changed: Vec<_> = output.resources.keys().map(|key| &*key.name).collect();
    changed.sort_unstable();
    assert_eq!(changed, [EDGE]);
    assert_eq!(
        limits(&translator, EDGE).and_then(|limits| limits.request),
        Some(30_000)
    );

    // And where nothing is set, nothing is sent.
    for name in ["own", "class"] {
        let none =
            Object::GatewayParameters(Arc::new(parameters(name, LimitParameters::default())));
        translator.apply([Change::Put(none)]);
    }
    for gateway in [EDGE, OTHER] {
        assert_eq!(limits(&translator, gateway), None, "{gateway}");
    }
}

#[test]
fn parameters_that_cannot_be_used_set_no_limit() {
    let one = LimitParameters {
        request_body: Some(1),
        ..LimitParameters::default()
    };
    let mut objects = world();
    objects.push(Object::GatewayParameters(Arc::new(parameters(
        "class", one,
    ))));
    let mut broken = parameters("own", one);
    let reason = Reason::InvalidParameters;
    broken.findings = vec![Finding::refused(reason, "spec.limits", "is wrong", "")];
    objects.push(Object::GatewayParameters(Arc::new(broken)));
    let mut translator = translated(objects);
    assert_eq!(limits(&translator, EDGE), None);
    assert!(limits(&translator, OTHER).is_some());
    translator.apply([Change::Remove(ObjectKey {
        kind: Kind::GatewayParameters,
        name: ObjectName::new("platform", "class"),
    })]);
    assert_eq!(limits(&translator, OTHER), None);
}
