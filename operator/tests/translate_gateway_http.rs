//! How requests are treated that a backend could read in another way, as it is on the stream: from the parameters of a
//! Gateway and of its class, in the settings of the Gateway, and in those of no other one.

use std::sync::Arc;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectName;
use vestibule_model::object::Object;
use vestibule_model::parameters::{EscapedSlashes, GatewayParameters, HttpParameters, Underscores};
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::objects::{
    gateway, listener, our_class, parameters_at, set, translated,
};
use vestibule_operator_testing::parameters::{
    class_with, gateway_with, no_parameters, settings_of, unreadable_parameters,
};
use vestibule_stream::proto;

const ONE: &str = "platform/one";
const TWO: &str = "platform/two";

/// What the settings of a Gateway say.
fn said(translator: &Translator, gateway: &str) -> Option<proto::HttpSettings> {
    settings_of(translator, gateway).http
}

/// What settings say with these words; the first value of each stands for none.
fn words(slashes: proto::EscapedSlashes, underscores: proto::Underscores) -> proto::HttpSettings {
    proto::HttpSettings {
        escaped_slashes: slashes.into(),
        underscores: underscores.into(),
    }
}

/// What counts for parameters that are not known.
fn protecting() -> proto::HttpSettings {
    words(proto::EscapedSlashes::Refuse, proto::Underscores::Drop)
}

fn parameters(name: &str, http: HttpParameters, findings: Vec<Finding>) -> Object {
    Object::GatewayParameters(Arc::new(GatewayParameters {
        http,
        findings,
        ..no_parameters(name)
    }))
}

fn own(http: HttpParameters) -> Object {
    parameters("own", http, Vec::new())
}

const KEEP: HttpParameters = HttpParameters {
    escaped_slashes: Some(EscapedSlashes::Keep),
    underscores: None,
};

fn gateway_on(name: &str, port: u16) -> Object {
    let listeners = vec![listener("web", port, Protocol::Http, "", None)];
    gateway(name, listeners, NamespaceScope::All)
}

/// Two Gateways, the first with a ListenerSet and parameters of its own. Those of their class drop underscores.
fn world() -> Vec<Object> {
    let of_class = HttpParameters {
        escaped_slashes: None,
        underscores: Some(Underscores::Drop),
    };
    let of_set = vec![listener("s", 82, Protocol::Http, "s.example.com", None)];
    vec![
        class_with(parameters_at("class")),
        parameters("class", of_class, Vec::new()),
        gateway_with(gateway_on("one", 80), "own"),
        gateway_on("two", 81),
        set("a", "web", 1, "one", of_set),
    ]
}

fn world_with(own: Object) -> Translator {
    translated(world().into_iter().chain([own]))
}

#[test]
fn each_field_is_the_gateways_or_else_its_classs() {
    let translator = world_with(own(KEEP));
    let both = words(proto::EscapedSlashes::Keep, proto::Underscores::Drop);
    assert_eq!(said(&translator, ONE), Some(both));
    let of_class = words(proto::EscapedSlashes::Unspecified, proto::Underscores::Drop);
    assert_eq!(said(&translator, TWO), Some(of_class));
    // The Gateway's own word counts, also where it is the laxer one.
    for (underscores, expected) in [
        (Underscores::Allow, proto::Underscores::Allow),
        (Underscores::Refuse, proto::Underscores::Refuse),
    ] {
        let translator = world_with(own(HttpParameters {
            escaped_slashes: Some(EscapedSlashes::Refuse),
            underscores: Some(underscores),
        }));
        let expected = words(proto::EscapedSlashes::Refuse, expected);
        assert_eq!(said(&translator, ONE), Some(expected));
    }
}

#[test]
fn an_edit_is_one_resource_of_the_gateway_alone() {
    let mut translator = world_with(own(HttpParameters::default()));
    let of_two = said(&translator, TWO);
    assert_eq!(said(&translator, ONE), of_two);
    let output = translator.apply([Change::Put(own(KEEP))]);
    let changed: Vec<&str> = output.resources.keys().map(|key| &*key.name).collect();
    assert_eq!(changed, [ONE]);
    assert_eq!(said(&translator, TWO), of_two);
    // The same again is no news.
    let output = translator.apply([Change::Put(own(KEEP))]);
    assert!(output.resources.is_empty());
    // Where nothing is set, nothing is sent.
    let none = own(HttpParameters::default());
    translator.apply([Change::Put(none), Change::Put(our_class())]);
    for gateway in [ONE, TWO] {
        assert_eq!(said(&translator, gateway), None, "{gateway}");
    }
}

/// The parts that can be read count although the rest is refused: a typo elsewhere must not refuse the paths of a team.
#[test]
fn http_settings_count_although_another_parameter_is_refused() {
    let reason = Reason::InvalidParameters;
    let refused = Finding::refused(reason, "spec.service.type", "is none", "");
    let translator = world_with(parameters("own", KEEP, vec![refused]));
    let both = words(proto::EscapedSlashes::Keep, proto::Underscores::Drop);
    assert_eq!(said(&translator, ONE), Some(both));
}

/// Parameters that cannot be read might ask for protection. So nothing laxer counts, neither of the class nor of the
/// release, and underscores are dropped, which protects a backend as well as a refusal.
#[test]
fn parameters_that_cannot_be_read_protect_the_backend() {
    let lax = HttpParameters {
        escaped_slashes: Some(EscapedSlashes::Keep),
        underscores: Some(Underscores::Allow),
    };
    // They do not exist.
    let mut translator = translated(world());
    translator.apply([Change::Put(parameters("class", lax, Vec::new()))]);
    let of_two = said(&translator, TWO);
    let allowing = Some(words(
        proto::EscapedSlashes::Keep,
        proto::Underscores::Allow,
    ));
    assert_eq!(of_two, allowing);
    assert_eq!(said(&translator, ONE), Some(protecting()));
    translator.apply([Change::Put(own(lax))]);
    assert_eq!(said(&translator, ONE), allowing);
    // They do not decode.
    translator.apply([Change::Put(unreadable_parameters("own"))]);
    assert_eq!(said(&translator, ONE), Some(protecting()));
    assert_eq!(said(&translator, TWO), of_two);
    // Those of the class are unknown: the Gateway's own fields still count.
    translator.apply([
        Change::Put(own(KEEP)),
        Change::Put(unreadable_parameters("class")),
    ]);
    let of_own = Some(words(proto::EscapedSlashes::Keep, proto::Underscores::Drop));
    assert_eq!(said(&translator, ONE), of_own);
    assert_eq!(said(&translator, TWO), Some(protecting()));
    // The class names no namespace for them, so they are unknown too. Without a reference, nothing is set.
    translator.apply([Change::Put(our_class())]);
    assert_eq!(said(&translator, TWO), None);
    let mut nowhere = parameters_at("class");
    nowhere.target = ObjectName::new("", "class");
    translator.apply([
        Change::Put(parameters("class", lax, Vec::new())),
        Change::Put(class_with(nowhere)),
    ]);
    assert_eq!(said(&translator, ONE), of_own);
    assert_eq!(said(&translator, TWO), Some(protecting()));
}
