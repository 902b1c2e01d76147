//! Reviews of manifests as users write them.

use proptest::prelude::*;
use serde_json::{Value, json};
use vestibule_crds::yaml;
use vestibule_model::condition::Reason;
use vestibule_model::object::Object;
use vestibule_model::policy::{Mode, Policy};
use vestibule_test_support::properties::keep_failures;
use vestibule_webhook::{AdmissionState, Operation, Review, Reviewer};
use vestibule_webhook_testing::objects::{CONTROLLER, object};

const PLATFORM: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: entrance}
spec:
  gatewayClassName: vestibule
  allowedListeners:
    namespaces: {from: All}
  listeners:
  - {name: own, port: 443, protocol: TLS, hostname: own.example, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: closed}
spec:
  gatewayClassName: vestibule
  listeners:
  - {name: own, port: 443, protocol: TLS, hostname: own.example, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: foreign}
spec:
  gatewayClassName: other
  listeners:
  - {name: own, port: 443, protocol: TLS, hostname: own.example, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {namespace: bravo, name: bravo-set, creationTimestamp: '2026-06-01T00:00:00Z'}
spec:
  parentRef: {namespace: infra, name: entrance}
  listeners:
  - {name: bravo-listener, port: 443, protocol: TLS, hostname: app.example, tls: {mode: Passthrough}}
";

fn read(text: &str) -> Object {
    let mut documents = yaml::documents(text).expect("YAML");
    assert_eq!(documents.len(), 1);
    object(documents.remove(0).1)
}

fn platform() -> AdmissionState {
    let mut state = AdmissionState::new(CONTROLLER);
    for (_, value) in yaml::documents(PLATFORM).expect("YAML") {
        state.put(object(value));
    }
    state
}

fn policy(mode: Mode) -> Policy {
    Policy {
        mode,
        exempt: ["gateway-conformance-infra".to_owned()].into(),
        ..Policy::default()
    }
}

fn create(state: &AdmissionState, mode: Mode, new: &Object) -> Review {
    Reviewer::new(state, &policy(mode)).review(Operation::Create, None, new)
}

fn update(state: &AdmissionState, old: &Object, new: &Object) -> Review {
    Reviewer::new(state, &policy(Mode::Enforce)).review(Operation::Update, Some(old), new)
}

fn route(namespace: &str, parent: &Value, hostnames: &[&str]) -> Object {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TLSRoute",
        "metadata": {"namespace": namespace, "name": "r"},
        "spec": {
            "parentRefs": [parent],
            "hostnames": hostnames,
            "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
        },
    }))
}

fn set_with(namespace: &str, parent: &str, created: &str, listeners: &Value) -> Object {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ListenerSet",
        "metadata": {"namespace": namespace, "name": "s", "creationTimestamp": created},
        "spec": {"parentRef": {"namespace": "infra", "name": parent}, "listeners": listeners},
    }))
}

const OLDER: &str = "2026-01-01T00:00:00Z";
const YOUNGER: &str = "2026-09-01T00:00:00Z";

fn tls(name: &str, hostname: &str) -> Value {
    json!({
        "name": name, "port": 443, "protocol": "TLS", "hostname": hostname,
        "tls": {"mode": "Passthrough"},
    })
}

#[test]
fn a_proper_object_comes_in_without_a_word() {
    let state = platform();
    for object in [
        route(
            "alpha",
            &json!({"kind": "ListenerSet", "name": "s"}),
            &["a.example"],
        ),
        set_with(
            "alpha",
            "entrance",
            YOUNGER,
            &json!([tls("a", "a.example")]),
        ),
    ] {
        let review = create(&state, Mode::Enforce, &object);
        assert_eq!(
            review,
            Review {
                allowed: true,
                message: None,
                warnings: vec![],
                findings: vec![],
            }
        );
    }
}

#[test]
fn a_wildcard_route_is_refused_where_policy_is_enforced() {
    let state = platform();
    let text = "spec.hostnames[1]: \"*.example\" is a wildcard, and here a TLSRoute names each \
                host; list the exact hostnames";
    for (mode, namespace, allowed, warned) in [
        (Mode::Enforce, "alpha", false, false),
        (Mode::Enforce, "gateway-conformance-infra", true, true),
        (Mode::Warn, "alpha", true, true),
        (Mode::Off, "alpha", true, false),
    ] {
        let wildcard = route(
            namespace,
            &json!({"kind": "ListenerSet", "name": "s"}),
            &["a.example", "*.example"],
        );
        let review = create(&state, mode, &wildcard);
        assert_eq!(review.allowed, allowed, "{mode} {namespace}");
        assert_eq!(review.message.as_deref(), (!allowed).then_some(text));
        assert_eq!(review.warnings, if warned { vec![text] } else { vec![] });
    }
}

#[test]
fn hostname_outside_the_specification_is_refused_warned_of_or_passed_over() {
    let state = platform();
    let label = "a".repeat(64);
    for hostname in [
        "*.1.2.3.4",
        "0x7f.1",
        "2130706433",
        "example.10",
        &format!("{label}.example"),
    ] {
        for object in [
            route(
                "alpha",
                &json!({"name": "entrance", "namespace": "infra"}),
                &[hostname],
            ),
            set_with("alpha", "entrance", YOUNGER, &json!([tls("a", hostname)])),
        ] {
            let refused = create(&state, Mode::Enforce, &object);
            assert!(!refused.allowed, "{hostname}");
            assert_eq!(refused.findings[0].reason, Reason::InvalidHostname);
            let warned = create(&state, Mode::Warn, &object);
            assert!(warned.allowed);
            assert_eq!(warned.warnings.len(), refused.findings.len());
            let silent = create(&state, Mode::Off, &object);
            assert!(silent.allowed && silent.findings.is_empty() && silent.warnings.is_empty());
        }
    }
}

#[test]
fn a_set_that_would_conflict_is_refused_whatever_its_age() {
    let state = platform();
    for created in [OLDER, YOUNGER] {
        let set = set_with(
            "alpha",
            "entrance",
            created,
            &json!([
                tls("a", "app.example"),
                tls("b", "b.example"),
                {"name": "c", "port": 443, "protocol": "HTTP", "hostname": "c.example"},
            ]),
        );
        let review = create(&state, Mode::Enforce, &set);
        assert!(!review.allowed);
        assert_eq!(
            review.message.as_deref(),
            Some(
                "spec.listeners[0].hostname: hostname \"app.example\" on port 443 is taken by \
                 another listener on Gateway infra/entrance; use another hostname or port, or have \
                 the present listener removed first; spec.listeners[2].protocol: hostname \
                 \"c.example\" on port 443 cannot speak HTTP because another listener on Gateway \
                 infra/entrance speaks another protocol there; use another port, or the protocol \
                 that the port already speaks"
            )
        );
    }
}

#[test]
fn an_update_cannot_take_a_name_but_the_rest_can_be_edited() {
    let mut state = platform();
    let old = set_with("alpha", "entrance", OLDER, &json!([tls("a", "a.example")]));
    state.put(old.clone());
    let taking = set_with(
        "alpha",
        "entrance",
        OLDER,
        &json!([tls("a", "a.example"), tls("b", "app.example")]),
    );
    let review = update(&state, &old, &taking);
    assert!(!review.allowed);
    assert_eq!(review.findings[0].field, "spec.listeners[1].hostname");

    // It got in all the same (the webhook was down): now it is not punished for it again.
    state.put(taking.clone());
    let more = set_with(
        "alpha",
        "entrance",
        OLDER,
        &json!([
            tls("a", "a.example"),
            tls("b", "app.example"),
            tls("c", "c.example")
        ]),
    );
    assert!(update(&state, &taking, &more).allowed);
    // As a new object it would be.
    let mut without = platform();
    without.put(old);
    assert!(!create(&without, Mode::Enforce, &more).allowed);
}

#[test]
fn an_update_that_changes_nothing_that_counts_is_let_through() {
    let state = platform();
    let manifest = |metadata: &str, hostname: &str| {
        read(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {{namespace: alpha, name: r, {metadata}}}
spec:
  parentRefs: [{{name: entrance, namespace: infra}}]
  hostnames: ['{hostname}']
  rules: [{{backendRefs: [{{name: app, port: 443}}]}}]
"
        ))
    };
    let old = manifest("finalizers: [x.dev/f]", "*.example");
    let relabelled = manifest("generation: 2, labels: {a: b}", "*.example");
    assert_eq!(update(&state, &old, &relabelled).findings, []);
    assert!(!update(&state, &old, &manifest("", "*.a.example")).allowed);
    // Without the old version there is nothing to compare with.
    assert!(!create(&state, Mode::Enforce, &relabelled).allowed);
    let deleting = manifest("deletionTimestamp: '2026-09-01T00:00:00Z'", "*.b.example");
    assert_eq!(update(&state, &old, &deleting).findings, []);
}

#[test]
fn consumed_annotations_are_part_of_what_counts() {
    let state = platform();
    let manifest = |annotations: &str| {
        read(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{namespace: alpha, name: s, annotations: {{{annotations}}}}}
spec:
  parentRef: {{name: entrance, namespace: infra}}
  listeners:
  - {{name: a, port: 443, protocol: TLS, hostname: a.example, tls: {{mode: Passthrough}}}}
"
        ))
    };
    let old = manifest("");
    assert_eq!(update(&state, &old, &manifest("a/b: c")).findings, []);
    let review = update(
        &state,
        &old,
        &manifest("cert-manager.io/issuer: a, cert-manager.io/cluster-issuer: b"),
    );
    assert!(review.allowed);
    assert_eq!(review.findings[0].reason, Reason::ContradictingIssuers);
    assert_eq!(review.warnings.len(), 1);
    // Names that no grant gives are told of, and refuse nothing: the listener is the namespace's all the same.
    let review = update(
        &state,
        &old,
        &manifest("cert-manager.io/issuer: a, cert-manager.io/alt-names: victim.example"),
    );
    assert!(review.allowed);
    let [finding] = &review.findings[..] else {
        panic!("{:?}", review.findings);
    };
    assert_eq!(finding.reason, Reason::InvalidAnnotation);
    assert!(finding.message.contains("\"victim.example\""), "{finding}");
    // One line says what is wrong, and one what to do.
    assert_eq!(review.warnings.len(), 2, "{:?}", review.warnings);
}

#[test]
fn parent_that_is_missing_or_closed_is_no_reason_for_a_refusal() {
    let nothing = AdmissionState::new(CONTROLLER);
    let listeners = json!([tls("a", "own.example")]);
    assert!(
        create(
            &nothing,
            Mode::Enforce,
            &set_with("alpha", "entrance", OLDER, &listeners)
        )
        .allowed
    );
    let not_there = route(
        "alpha",
        &json!({"name": "nowhere", "sectionName": "x"}),
        &["a.example"],
    );
    assert!(create(&nothing, Mode::Enforce, &not_there).allowed);

    // Not let in (yet): the status will say so, and so does a warning.
    let review = create(
        &platform(),
        Mode::Enforce,
        &set_with("alpha", "closed", OLDER, &listeners),
    );
    assert!(review.allowed);
    assert_eq!(
        review.warnings,
        [
            "spec.parentRef: Gateway infra/closed does not allow ListenerSets from namespace \
             alpha; ask the owner of the Gateway to allow it in spec.allowedListeners.namespaces"
        ]
    );
    // What is wrong with the object itself is wrong without a parent too.
    let wildcard = route("alpha", &json!({"name": "nowhere"}), &["*.example"]);
    assert!(!create(&nothing, Mode::Enforce, &wildcard).allowed);
}

/// Envoy's CORS filter before Envoy's Gateway: what Vestibule has not is no reason to refuse what may not be its.
#[test]
fn object_that_may_be_foreign_is_not_refused_for_what_vestibule_lacks() {
    let route = |parents: Value, hostname: &str| {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"namespace": "alpha", "name": "r"},
            "spec": {
                "parentRefs": parents, "hostnames": [hostname],
                "rules": [{
                    "filters": [{"type": "CORS", "cors": {"allowOrigins": ["https://a.example"]}}],
                    "matches": [{"path": {"type": "RegularExpression", "value": "("}}],
                    "backendRefs": [{"name": "app", "port": 80}],
                }],
            },
        }))
    };
    let ours = json!({"name": "entrance", "namespace": "infra"});
    let foreign = json!({"name": "foreign", "namespace": "infra"});
    let nowhere = json!({"name": "nowhere"});
    let (state, nothing) = (platform(), AdmissionState::new(CONTROLLER));
    for parents in [json!([nowhere]), json!([foreign, nowhere])] {
        for state in [&state, &nothing] {
            let review = create(state, Mode::Enforce, &route(parents.clone(), "a.example"));
            assert!(review.allowed, "{:?}", review.message);
            assert!(!review.warnings.is_empty());
            // No controller could serve that.
            let address = route(parents.clone(), "*.0x7f");
            assert!(!create(state, Mode::Enforce, &address).allowed);
        }
    }
    let silent = create(&state, Mode::Enforce, &route(json!([foreign]), "a.example"));
    assert_eq!(silent.findings, []);
    let refused = create(
        &state,
        Mode::Enforce,
        &route(json!([foreign, ours]), "a.example"),
    );
    assert!(!refused.allowed);
    // Nobody can say to which namespace it belongs.
    let unread = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: alpha, name: r}
spec: {rules: many}
",
    );
    let review = create(&state, Mode::Enforce, &unread);
    assert!(review.allowed && !review.warnings.is_empty());

    let set = |parent: &str, hostname: &str| {
        let filtered = json!({
            "name": "a", "port": 9443, "protocol": "example.com/Quic", "hostname": hostname,
            "filters": [{"type": "Unheard"}],
        });
        set_with("alpha", parent, OLDER, &json!([filtered]))
    };
    assert!(create(&state, Mode::Enforce, &set("nowhere", "a.example")).allowed);
    assert!(!create(&state, Mode::Enforce, &set("nowhere", "1.2.3.4")).allowed);
    assert!(!create(&state, Mode::Enforce, &set("entrance", "a.example")).allowed);
}

#[test]
fn another_controllers_objects_are_none_of_our_business() {
    let mut state = platform();
    let foreign_set = set_with(
        "alpha",
        "foreign",
        YOUNGER,
        &json!([tls("a", "1.2.3.4"), tls("a", "own.example")]),
    );
    assert_eq!(create(&state, Mode::Enforce, &foreign_set).findings, []);
    state.put(foreign_set);
    for parent in [
        json!({"name": "foreign", "namespace": "infra"}),
        json!({"kind": "ListenerSet", "name": "s"}),
        json!({"group": "", "kind": "Service", "name": "mesh"}),
    ] {
        let wildcard = route("alpha", &parent, &["*.example"]);
        assert_eq!(
            create(&state, Mode::Enforce, &wildcard).findings,
            [],
            "{parent}"
        );
    }
    let foreign_gateway = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: foreign-2}
spec:
  gatewayClassName: other
  listeners: [{name: a, port: 443, protocol: TLS, hostname: 1.2.3.4, tls: {mode: Passthrough}}]
",
    );
    assert_eq!(create(&state, Mode::Enforce, &foreign_gateway).findings, []);
}

#[test]
fn gateways_are_warned_of_at_most() {
    let state = platform();
    let gateway = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: entrance}
spec:
  gatewayClassName: vestibule
  listeners:
  - {name: a, port: 443, protocol: TLS, hostname: 1.2.3.4, tls: {mode: Passthrough}}
  - {name: b, port: 443, protocol: TLS, hostname: app.example, tls: {mode: Passthrough}}
",
    );
    let review = create(&state, Mode::Enforce, &gateway);
    assert!(review.allowed);
    // Its own mistake, and not that a set has the other name: the Gateway's word counts.
    assert_eq!(review.findings.len(), 1);
    assert_eq!(review.findings[0].field, "spec.listeners[0].hostname");
    assert_eq!(review.warnings.len(), 1);
    assert!(create(&state, Mode::Off, &gateway).warnings.is_empty());
}

#[test]
fn field_that_the_status_refuses_by_the_object_alone_is_a_warning() {
    let state = platform();
    let gateway = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: entrance}
spec:
  gatewayClassName: vestibule
  infrastructure: {parametersRef: {group: example.com, kind: Settings, name: s}}
  listeners:
  - {name: a, port: 80, protocol: HTTP}
  - {name: b, port: 81, protocol: example.com/foo}
",
    );
    let class = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec:
  controllerName: vestibule.dev/gateway-controller
  parametersRef: {group: '', kind: ConfigMap, namespace: infra, name: s}
",
    );
    let quic = json!([
        {"name": "a", "port": 9443, "protocol": "QUIC", "hostname": "q.example"},
        tls("b", "b.example"),
    ]);
    let parameters = "refer to GatewayParameters of group vestibule.dev, or remove it";
    let protocols = "use HTTP, HTTPS, TLS, TCP or UDP";
    let of_gateway = [
        format!(
            "spec.infrastructure.parametersRef: \"Settings\" of group \"example.com\" is not supported; {parameters}"
        ),
        format!(
            "spec.listeners[1].protocol: this release does not serve \"example.com/foo\"; {protocols}"
        ),
    ];
    let of_class = [format!(
        "spec.parametersRef: \"ConfigMap\" of group \"\" is not supported; {parameters}"
    )];
    let of_set = [format!(
        "spec.listeners[0].protocol: this release does not serve \"QUIC\"; {protocols}"
    )];
    let set = |parent: &str| set_with("alpha", parent, OLDER, &quic);
    for (object, warnings) in [
        (gateway, &of_gateway[..]),
        (class, &of_class[..]),
        (set("entrance"), &of_set[..]),
        (set("nowhere"), &of_set[..0]),
    ] {
        let review = create(&state, Mode::Enforce, &object);
        assert!(review.allowed, "{review:?}");
        assert_eq!(review.warnings, warnings);
    }
}

#[test]
fn object_that_does_not_decode_is_refused_with_its_field() {
    let state = platform();
    let unreadable = read(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {namespace: alpha, name: r}
spec: {hostnames: 7}
",
    );
    let review = create(&state, Mode::Enforce, &unreadable);
    assert!(!review.allowed);
    assert_eq!(review.findings[0].field, "spec.hostnames");
    assert!(update(&state, &unreadable, &unreadable).allowed);
}

#[test]
fn other_kinds_are_let_in() {
    let state = platform();
    let secret = read("{apiVersion: v1, kind: Secret, metadata: {namespace: a, name: s}, data: 7}");
    assert!(create(&state, Mode::Enforce, &secret).allowed);
    let namespace = read("{apiVersion: v1, kind: Namespace, metadata: {name: a}}");
    assert!(create(&state, Mode::Enforce, &namespace).allowed);
}

#[test]
fn messages_are_bounded() {
    let state = platform();
    let hosts: Vec<String> = (0..1024).map(|i| format!("*.h{i}.example")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let parent = json!({"name": "entrance", "namespace": "infra"});
    let review = create(&state, Mode::Enforce, &route("alpha", &parent, &hosts));
    let message = review.message.expect("a refusal");
    assert!(
        message.ends_with("list the exact hostnames; and 1016 more"),
        "{message}"
    );
    assert!(message.len() < 2_000);
    assert_eq!(review.findings.len(), 1024);
    let warned = create(&state, Mode::Warn, &route("alpha", &parent, &hosts));
    assert_eq!(warned.warnings.len(), 9);
    assert_eq!(warned.warnings[8], "and 1016 more");
}

fn any_listener() -> impl Strategy<Value = Value> {
    (
        prop::sample::select(vec![80, 443, 0]),
        prop::sample::select(vec!["TLS", "TLS", "HTTPS", "HTTP", "TCP", "x\ny"]),
        prop_oneof![
            prop::sample::select(vec![
                "",
                "app.example",
                "*.example",
                "own.example",
                "1.2.3.4"
            ])
            .prop_map(str::to_owned),
            "\\PC{0,300}",
        ],
        "[a-d]|\\PC{0,40}",
    )
        .prop_map(|(port, protocol, hostname, name)| {
            json!({
                "name": name, "port": port, "protocol": protocol, "hostname": hostname,
                "tls": {"mode": "Passthrough"},
            })
        })
}

proptest! {
    #![proptest_config(keep_failures())]

    #[test]
    fn every_answer_is_one_bounded_line_and_names_nobody_else(
        listeners in prop::collection::vec(any_listener(), 0..12),
        parent in prop::sample::select(vec!["entrance", "closed", "nowhere"]),
        created in prop::sample::select(vec![OLDER, YOUNGER]),
        mode in prop::sample::select(vec![Mode::Enforce, Mode::Warn, Mode::Off]),
    ) {
        let state = platform();
        let set = set_with("alpha", parent, created, &Value::Array(listeners));
        let review = create(&state, mode, &set);
        prop_assert_eq!(review.allowed, review.message.is_none());
        prop_assert!(review.allowed || mode == Mode::Enforce);
        for text in review.message.iter().chain(&review.warnings) {
            prop_assert!(!text.contains("bravo"), "{}", text);
            prop_assert!(!text.contains(char::is_control), "{}", text);
            prop_assert!(text.chars().count() < 9 * 1100);
        }
    }
}
