//! The case table: objects in, findings out, and a few objects whole.

use serde_json::{Value, json};
use vestibule_crds::{Decoded, decode, flatten, yaml};
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::parameters::{EscapedSlashes, HttpParameters, Underscores};
use vestibule_model::protocol::Transport;
use vestibule_model::selector::NamespaceScope;

fn line(finding: &Finding, within: &str) -> String {
    let severity = match finding.severity {
        Severity::Warning => "warning",
        Severity::Refused => "refused",
    };
    // A finding of a listener about a field elsewhere says which listener.
    let at = if finding.field.starts_with(within) {
        String::new()
    } else {
        format!("{within} ")
    };
    format!("{severity} {} {at}{finding}", finding.reason)
}

fn all(own: &[Finding], listeners: &[Listener]) -> Vec<String> {
    own.iter()
        .map(|f| line(f, ""))
        .chain(
            listeners
                .iter()
                .flat_map(|l| l.findings.iter().map(|f| line(f, &l.field))),
        )
        .collect()
}

fn lines(decoded: Decoded) -> Vec<String> {
    let (object, beside) = match decoded {
        Decoded::Object(object, beside) => (object, beside),
        Decoded::Unreadable(_, _, finding) => {
            return vec![format!("unreadable {} {finding}", finding.reason)];
        }
        other => panic!("{other:?}"),
    };
    let mut lines = match &*object {
        Object::GatewayClass(o) => all(&o.findings, &[]),
        Object::Gateway(o) => all(&o.findings, &o.listeners),
        Object::ListenerSet(o) => all(&o.findings, &o.listeners),
        Object::TlsRoute(o) => all(&o.findings, &[]),
        Object::PortRoute(o) => all(&o.findings, &[]),
        Object::HttpRoute(_) => object.findings().map(|f| line(f, "")).collect(),
        Object::GatewayParameters(o) => all(&o.findings, &[]),
        Object::EndpointSlice(o) => all(&o.findings, &[]),
        Object::BackendTlsPolicy(o) => all(&o.findings, &[]),
        Object::HostnameGrant(o) => all(&o.findings, &[]),
        Object::HostnameClaim(o) => all(&o.findings, &[]),
        _ => Vec::new(),
    };
    lines.extend(all(&beside, &[]));
    lines
}

fn cases() -> Vec<(u64, Value)> {
    let files = [
        include_str!("cases.yaml"),
        include_str!("http_routes.yaml"),
        include_str!("grpc_routes.yaml"),
    ];
    files
        .into_iter()
        .flat_map(|text| yaml::documents(text).unwrap())
        .collect()
}

#[test]
fn every_case_has_the_findings_it_says() {
    let mut wrong = Vec::new();
    for (at, case) in cases() {
        let expected: Vec<String> = serde_json::from_value(case["findings"].clone()).unwrap();
        let mut found = lines(decode(case["object"].clone()));
        let mut wanted = expected.clone();
        found.sort();
        wanted.sort();
        if found != wanted {
            wrong.push(format!(
                "line {at}, {}:\n  {}",
                case["case"],
                found.join("\n  ")
            ));
        }
    }
    assert!(wrong.is_empty(), "found instead:\n{}", wrong.join("\n"));
}

fn object(text: &str) -> Object {
    let (_, value) = yaml::documents(text).unwrap().remove(0);
    match decode(value) {
        Decoded::Object(object, _) => *object,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gateway_whole() {
    let Object::Gateway(gateway) = object(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: entrance
  namespace: platform
  uid: u-1
  generation: 3
  creationTimestamp: 2026-11-21T00:00:00Z
  annotations: {cert-manager.io/cluster-issuer: le, cert-manager.io/issuer: ''}
spec:
  gatewayClassName: vestibule
  allowedListeners:
    namespaces: {from: Selector, selector: {matchLabels: {tenant: 'yes'}}}
  listeners:
  - name: tls
    protocol: TLS
    port: 443
    hostname: '*.Example.com'
    tls: {certificateRefs: [{name: a}, {namespace: certs, name: b}]}
    allowedRoutes: {namespaces: {from: All}, kinds: [{kind: TLSRoute}]}
",
    ) else {
        panic!()
    };
    assert_eq!(gateway.name, ObjectName::new("platform", "entrance"));
    assert_eq!(&*gateway.meta.uid, "u-1");
    assert_eq!(gateway.meta.created, 1_795_219_200);
    assert_eq!(gateway.meta.generation, 3);
    assert_eq!(
        gateway.issuers.cert_manager_cluster_issuer.as_deref(),
        Some("le")
    );
    // Empty, and there all the same.
    assert_eq!(gateway.issuers.cert_manager_issuer.as_deref(), Some(""));
    let labels = [("tenant".to_owned(), "yes".to_owned())].into();
    assert!(
        gateway
            .allowed_listeners
            .admits("platform", "x", Some(&labels))
    );
    assert!(!gateway.allowed_listeners.admits("platform", "x", None));
    let listener = &gateway.listeners[0];
    assert_eq!(
        listener.hostname,
        HostPattern::parse("*.example.com").unwrap()
    );
    assert_eq!(listener.allowed_namespaces, NamespaceScope::All);
    assert_eq!(&*listener.allowed_kinds[0].0, "gateway.networking.k8s.io");
    let tls = listener.tls.as_ref().unwrap();
    assert_eq!(tls.mode, TlsMode::Terminate);
    assert!(tls.certificates.iter().all(|c| c.is(Kind::Secret)));
    assert_eq!(tls.certificates[0].target, ObjectName::new("platform", "a"));
    assert_eq!(tls.certificates[1].target, ObjectName::new("certs", "b"));
}

/// Findings of a ListenerSet with one listener that terminates TLS with these Secrets.
fn findings_with_secrets(names: &[String]) -> Vec<String> {
    let references: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    lines(decode(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ListenerSet",
        "metadata": {"name": "mine", "namespace": "orchard"},
        "spec": {
            "parentRef": {"name": "entrance"},
            "listeners": [{
                "name": "web",
                "protocol": "HTTPS",
                "port": 443,
                "tls": {"certificateRefs": references},
            }],
        },
    })))
}

/// The configuration has the names in each listener. With the longest ones, a ListenerSet within its limits would have 1.3 MB.
#[test]
fn names_of_certificates_of_a_listener_are_bounded() {
    let usual: Vec<String> = (0..64)
        .map(|n| format!("{n:02}{}", "n".repeat(22)))
        .collect();
    assert_eq!(findings_with_secrets(&usual), [""; 0]);
    // A name counts once, however often it is there.
    let long = vec!["n".repeat(253); 64];
    assert_eq!(findings_with_secrets(&long), [""; 0]);
    let long: Vec<String> = (0..64)
        .map(|n| format!("{n:02}{}", "n".repeat(251)))
        .collect();
    let [finding] = &findings_with_secrets(&long)[..] else {
        panic!("one finding")
    };
    for part in [
        "refused InvalidValue spec.listeners[0].tls.certificateRefs",
        "have 16704 bytes",
        "at most 4096",
        "several listeners",
    ] {
        assert!(finding.contains(part), "{finding}");
    }
}

#[test]
fn a_field_in_allowed_listeners_that_may_narrow_it_lets_nobody_in() {
    let Object::Gateway(gateway) = object(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: c
  allowedListeners: {namespaces: {from: All}, onlyOnSundays: true}
  listeners: [{name: a, protocol: HTTP, port: 80}]
",
    ) else {
        panic!()
    };
    assert!(matches!(
        gateway.allowed_listeners,
        NamespaceScope::Unknown(_)
    ));
    assert_eq!(gateway.findings.len(), 1);
}

#[test]
fn a_secret_from_data_and_string_data() {
    let Object::Secret(secret) = object(
        "
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: t}
type: kubernetes.io/tls
data: {tls.crt: Y2VydA==, tls.key: b2xk, other: eA==}
stringData: {tls.key: new}
",
    ) else {
        panic!()
    };
    assert_eq!(secret.certificate.as_deref(), Some(&b"cert"[..]));
    assert_eq!(&***secret.private_key.as_ref().unwrap(), b"new");
    assert_eq!(&*secret.secret_type, "kubernetes.io/tls");
    assert!(!format!("{secret:?}").contains("new"));
}

/// A word that cannot be read must not let more pass than any word that can.
#[test]
fn words_for_http_that_are_unknown_count_as_the_strictest() {
    let said = |http: Value| {
        let parameters = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "GatewayParameters",
            "metadata": {"name": "p", "namespace": "n"}, "spec": {"http": http}});
        match decode(parameters) {
            Decoded::Object(object, _) => match *object {
                Object::GatewayParameters(parameters) => parameters.http,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(said(Value::Null), HttpParameters::default());
    assert_eq!(said(json!({})), HttpParameters::default());
    let lax = HttpParameters {
        escaped_slashes: Some(EscapedSlashes::Keep),
        underscores: Some(Underscores::Allow),
    };
    let words = json!({"escapedSlashes": "Keep", "underscores": "Allow"});
    assert_eq!(said(words), lax);
    let strictest = HttpParameters {
        escaped_slashes: Some(EscapedSlashes::Refuse),
        underscores: Some(Underscores::Refuse),
    };
    for word in ["", "keep", "allow", "Redirect"] {
        let words = json!({"escapedSlashes": word, "underscores": word});
        assert_eq!(said(words), strictest, "{word:?}");
    }
    // An unknown word is about its own field alone.
    let one = said(json!({"escapedSlashes": "Keep", "underscores": "Pass"}));
    assert_eq!(one.escaped_slashes, Some(EscapedSlashes::Keep));
    assert_eq!(one.underscores, Some(Underscores::Refuse));
}

/// The reference stays, so that the parameters count as unknown and not as absent. Without a namespace it leads to no
/// object.
#[test]
fn a_class_keeps_the_reference_to_parameters_without_a_namespace() {
    for namespace in [Value::Null, json!("")] {
        let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "vestibule"},
            "spec": {"controllerName": "vestibule.dev/gateway-controller",
                "parametersRef": {"group": "vestibule.dev", "kind": "GatewayParameters",
                    "name": "p", "namespace": namespace}}});
        let Decoded::Object(object, _) = decode(class) else {
            panic!("{namespace}");
        };
        let Object::GatewayClass(class) = *object else {
            panic!("{namespace}");
        };
        let parameters = class.parameters.as_ref().expect("the reference");
        assert!(parameters.is(Kind::GatewayParameters));
        assert_eq!(parameters.target, ObjectName::new("", "p"));
        assert_eq!(class.findings.len(), 1, "{:?}", class.findings);
    }
}

#[test]
fn client_certificate_is_shown_to_the_namespaces_of_from_and_selector() {
    let said = |namespaces: Value| {
        let parameters = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "GatewayParameters",
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"backendClientCertificate": {"namespaces": namespaces}}});
        match decode(parameters) {
            Decoded::Object(object, _) => match *object {
                Object::GatewayParameters(parameters) => {
                    let refused = parameters.findings.iter().any(Finding::refuses);
                    (parameters.certificate_namespaces.clone(), refused)
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(said(Value::Null), (None, false));
    for (from, scope) in [("All", NamespaceScope::All), ("Same", NamespaceScope::Same)] {
        assert_eq!(said(json!({"from": from})), (Some(scope), false));
    }
    let labels = json!({"matchLabels": {"mesh": "inner"}});
    let (scope, refused) = said(json!({"from": "Selector", "selector": labels}));
    let labels = |mesh: &str| [("mesh".to_owned(), mesh.to_owned())].into();
    let admits = |mesh| {
        scope
            .as_ref()
            .unwrap()
            .admits("n", "t", Some(&labels(mesh)))
    };
    assert_eq!(
        (admits("inner"), admits("outer"), refused),
        (true, false, false)
    );
    // What cannot be read is refused, and shows it to nobody.
    let wrong = json!({"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]});
    let no_label = json!({"matchExpressions": [{"key": "a b", "operator": "DoesNotExist"}]});
    for bad in [
        json!({"from": "Everywhere"}),
        json!({"from": "Selector"}),
        json!({"from": "Selector", "selector": wrong}),
        json!({"from": "Selector", "selector": no_label}),
    ] {
        let (scope, refused) = said(bad.clone());
        assert!(refused, "{bad}");
        assert!(
            !scope.unwrap().admits("n", "n", Some(&labels("b"))),
            "{bad}"
        );
    }
}

#[test]
fn only_endpoints_that_are_ready_or_serve_until_they_end() {
    let Object::EndpointSlice(slice) = object(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, namespace: t, labels: {kubernetes.io/service-name: app}}
addressType: IPv6
endpoints:
- {addresses: ['2001:db8::1', '2001:db8::2']}
- {addresses: ['2001:db8::3'], conditions: {ready: false}}
- {addresses: ['2001:db8::4'], conditions: {ready: true}}
- {addresses: ['2001:db8::5'], conditions: {}}
- {addresses: ['2001:db8::6'], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ['2001:db8::7'], conditions: {ready: false, serving: false, terminating: true}}
- {addresses: ['2001:db8::8'], conditions: {ready: false, serving: true}}
ports: [{name: tls, port: 8443, protocol: TCP}, {name: quic, port: 8443, protocol: UDP}, {port: 80}, {port: 81, protocol: SCTP}]
",
    ) else {
        panic!()
    };
    let addresses: Vec<String> = slice.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["2001:db8::1", "2001:db8::4", "2001:db8::5"]);
    let ending: Vec<String> = slice.terminating.iter().map(ToString::to_string).collect();
    assert_eq!(ending, ["2001:db8::6"]);
    let idle: Vec<String> = slice.idle.iter().map(ToString::to_string).collect();
    assert_eq!(idle, ["2001:db8::3", "2001:db8::7", "2001:db8::8"]);
    assert_eq!(slice.service.as_deref(), Some("app"));
    let ports = slice.ports.iter();
    let ports: Vec<(&str, Option<Transport>, u16)> = ports
        .map(|port| (&*port.name, port.transport, port.number.get()))
        .collect();
    assert_eq!(
        ports,
        [
            ("tls", Some(Transport::Tcp), 8443),
            ("quic", Some(Transport::Udp), 8443),
            ("", Some(Transport::Tcp), 80),
            ("", None, 81),
        ]
    );
}

#[test]
fn listeners_over_64_are_surplus_and_the_others_are_not() {
    let listeners: Vec<Value> = (1..=66)
        .map(|i| json!({"name": format!("l{i}"), "port": i, "protocol": "HTTP"}))
        .collect();
    let set = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"name": "s"},
        "spec": {"parentRef": {"name": "g"}, "listeners": listeners}});
    let found = lines(decode(set));
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with("refused TooManyListeners spec.listeners[64]: "));
}

/// The proxies would connect to a target that is left out in plaintext.
#[test]
fn a_policy_with_too_many_targets_is_refused_and_keeps_all_of_them() {
    let policy = |kind: &str, count: usize| {
        let targets: Vec<Value> = (0..count)
            .map(|n| json!({"group": "", "kind": kind, "name": format!("s{n}")}))
            .collect();
        let policy = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"name": "p", "namespace": "t"},
        "spec": {
            "targetRefs": targets,
            "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"},
        }});
        match decode(policy) {
            Decoded::Object(object, _) => match *object {
                Object::BackendTlsPolicy(policy) => policy,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let many = policy("Service", 1000);
    let services: Vec<_> = many
        .places()
        .map(|place| place.service.name.clone())
        .collect();
    assert_eq!(services.len(), 1000);
    assert_eq!(&*services[999], "s999");
    let lines: Vec<String> = many.findings.iter().map(|f| line(f, "")).collect();
    assert_eq!(
        lines,
        [
            "refused InvalidValue spec.targetRefs: has 1000 entries, and at most 16 are allowed; leave some out"
        ]
    );
    assert_eq!(policy("Service", 16).findings, []);
    assert_eq!(policy("Gateway", 1000).findings.len(), 17);
}

/// Another rule would serve what a match that is left out is for.
#[test]
fn a_route_with_too_many_matches_is_refused_as_a_whole() {
    let matches = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|n| json!({"headers": [{"name": "n", "value": format!("{n}")}]}))
            .collect()
    };
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for (counts, refused) in [
            (vec![64, 64], None),
            (vec![1, 65], Some("spec.rules[1].matches")),
            (vec![64, 64, 1], Some("spec.rules[2].matches")),
        ] {
            let rules = counts
                .iter()
                .map(|count| json!({"matches": matches(*count)}));
            let rules: Vec<Value> = rules.collect();
            let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": "r", "namespace": "t"}, "spec": {"rules": rules}});
            let Decoded::Object(object, _) = decode(route) else {
                panic!("no object")
            };
            let Object::HttpRoute(route) = *object else {
                panic!("no route")
            };
            let refusal = route.findings.iter().find(|f| f.refuses());
            assert_eq!(refusal.map(|f| &*f.field), refused, "{kind} {counts:?}");
        }
    }
}

#[test]
fn value_that_is_no_object_or_of_an_unknown_version_is_decoded_as_such() {
    for value in [
        json!(null),
        json!(1),
        json!([]),
        json!({}),
        json!({"apiVersion": "v1", "kind": "Service"}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "A/b"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": 1}}),
        json!({"apiVersion": 1, "kind": "Service", "metadata": {"name": "a"}}),
    ] {
        let decoded = decode(value.clone());
        assert!(
            matches!(decoded, Decoded::NotAnObject(_)),
            "{value}: {decoded:?}"
        );
    }
    let decoded = decode(
        json!({"apiVersion": "gateway.networking.k8s.io/v2", "kind": "Gateway",
        "metadata": {"name": "a", "namespace": "b\n"}}),
    );
    assert_eq!(
        decoded,
        Decoded::Unknown {
            api_version: "gateway.networking.k8s.io/v2".into(),
            kind: "Gateway".into(),
            name: "\"b\\n\"/a".into(),
        }
    );
}

#[test]
fn an_unreadable_object_keeps_its_key_and_metadata() {
    let decoded = decode(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "a", "namespace": "t", "generation": 4, "creationTimestamp": "1970-01-01T00:00:09Z"},
        "spec": {"ports": "x"}}));
    let Decoded::Unreadable(key, meta, finding) = decoded else {
        panic!("{decoded:?}")
    };
    assert_eq!(key, ObjectKey::new(Kind::Service, "t", "a"));
    assert_eq!((meta.generation, meta.created), (4, 9));
    assert_eq!(finding.field, "spec.ports");
}

#[test]
fn tenant_text_is_cut() {
    let long = "x".repeat(10_000);
    for value in [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": long}}),
        json!({"apiVersion": "v1", "kind": long, "metadata": {"name": long}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet", "metadata": {"name": "a"},
            "spec": {"parentRef": {"name": "g", "kind": long}, "listeners": [{"name": "a", "port": 1, "protocol": "HTTP", "hostname": long, (long.clone()): 1}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute", "metadata": {"name": "a"}, "spec": long}),
    ] {
        let text = match decode(value) {
            Decoded::Object(object, _) => lines(Decoded::Object(object, vec![])).join("\n"),
            Decoded::NotAnObject(f) | Decoded::Unreadable(_, _, f) => f.to_string(),
            Decoded::Unknown {
                api_version,
                kind,
                name,
            } => api_version + &kind + &name,
        };
        assert!(text.len() < 2_000, "{text}");
    }
}

#[test]
fn lists_are_flattened() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [service, {"apiVersion": "v1", "kind": "List", "items": [service]}]});
    assert_eq!(flatten(list), [service.clone(), service.clone()]);
    let typed =
        json!({"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}}]});
    assert_eq!(flatten(typed), std::slice::from_ref(&service));
    assert_eq!(flatten(service.clone()), [service]);
    let odd = json!({"kind": "List", "items": 5});
    assert_eq!(flatten(odd.clone()), [odd]);
}
