//! Limits of GatewayParameters on their way to the proxies: the settings of the Gateway have them, and an edit changes those
//! settings and nothing else.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::parameters::{GatewayParameters, LimitParameters};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Translator};
use vestibule_stream::proto;

use vestibule_operator_testing::objects::{
    gateway, namespace, parameters_at, passthrough, set, translated,
};
use vestibule_operator_testing::parameters::{
    class_with, gateway_with, no_parameters, settings_of,
};

const EDGE: &str = "platform/edge";
const OTHER: &str = "platform/other";

fn parameters(name: &str, limits: LimitParameters) -> GatewayParameters {
    GatewayParameters {
        limits,
        ..no_parameters(name)
    }
}

/// Its class has parameters called `class`, the Gateway `edge` some called `own`.
fn world() -> Vec<Object> {
    let listeners = |host| vec![passthrough("own", host)];
    let edge = gateway("edge", listeners("own.example.com"), NamespaceScope::All);
    let mut other = listeners("other.example.com");
    other[0].port = vestibule_model::protocol::Port::new(8443);
    vec![
        class_with(parameters_at("class")),
        gateway_with(edge, "own"),
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
    settings_of(translator, gateway).limits
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
