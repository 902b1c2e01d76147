//! Reviews beside grants and claims: who may have which names, and who has them.

use serde_json::{Value, json};
use std::sync::Arc;
use vestibule_crds::yaml;
use vestibule_model::condition::Reason;
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::policy::{Mode, Policy};
use vestibule_webhook::{AdmissionState, Operation, Review, Reviewer};
use vestibule_webhook_testing::objects::object;

const PLATFORM: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: entrance, annotations: {vestibule.dev/acme-cluster-issuer: public}}
spec:
  gatewayClassName: vestibule
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - name: all
    port: 443
    protocol: TLS
    tls: {mode: Passthrough}
    allowedRoutes: {namespaces: {from: All}}
---
apiVersion: vestibule.dev/v1alpha1
kind: HostnameGrant
metadata: {namespace: infra, name: alpha}
spec:
  namespaces: {names: [alpha]}
  hostnames: ['*.alpha.example', shared.example]
  issuers: []
  limits: {listeners: 2}
---
apiVersion: vestibule.dev/v1alpha1
kind: HostnameGrant
metadata: {namespace: infra, name: qqbravoqq}
spec: {namespaces: {names: [bravo]}, hostnames: ['*.bravo.example', shared.example]}
---
apiVersion: vestibule.dev/v1alpha1
kind: HostnameClaim
metadata: {name: entrance-44f5747673b4116d588f69e5e2b2d371, namespace: infra}
spec: {gateway: {name: entrance}, hostname: shared.example, holder: bravo, since: '2026-01-01T00:00:00Z'}
";

fn platform() -> AdmissionState {
    let mut state = AdmissionState::new("vestibule.dev/gateway-controller");
    for (_, value) in yaml::documents(PLATFORM).expect("YAML") {
        state.put(object(value));
    }
    state
}

fn review(state: &AdmissionState, mode: Mode, old: Option<&Object>, new: &Object) -> Review {
    let policy = Policy {
        mode,
        ..Policy::default()
    };
    let operation = match old {
        Some(_) => Operation::Update,
        None => Operation::Create,
    };
    let review = Reviewer::new(state, &policy).review(operation, old, new);
    for text in review.message.iter().chain(&review.warnings) {
        assert!(!text.contains("bravo"), "{text}");
    }
    review
}

fn create(state: &AdmissionState, new: &Object) -> Review {
    review(state, Mode::Enforce, None, new)
}

fn route(kind: &str, namespace: &str, hostnames: &[&str]) -> Object {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": "r"},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": "infra"}],
            "hostnames": hostnames,
            "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
        },
    }))
}

fn set(name: &str, hostnames: &[&str]) -> Object {
    let listeners: Vec<Value> = hostnames
        .iter()
        .map(|hostname| {
            json!({
                "name": hostname.replace(['*', '.'], "x"), "port": 8443, "protocol": "TLS", "hostname": hostname,
                "tls": {"mode": "Passthrough"},
            })
        })
        .collect();
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": "alpha", "name": name},
        "spec": {"parentRef": {"name": "entrance", "namespace": "infra"}, "listeners": listeners},
    }))
}

/// What refuses, as (reason, field).
fn refusals(review: &Review) -> Vec<(Reason, &str)> {
    let refusing = review.findings.iter().filter(|f| f.refuses());
    refusing.map(|f| (f.reason, f.field.as_str())).collect()
}

#[test]
fn a_set_may_have_what_is_granted_and_no_more() {
    let mut state = platform();
    let granted = set("granted", &["a.alpha.example", "b.alpha.example"]);
    assert_eq!(create(&state, &granted).findings, []);
    let foreign = create(&state, &set("s", &["a.alpha.example", "a.other.example"]));
    let at_second = |reason| [(reason, "spec.listeners[1].hostname")];
    assert_eq!(refusals(&foreign), at_second(Reason::HostnameNotOwned));
    let wide = create(&state, &set("s", &["a.alpha.example", "*.example"]));
    assert_eq!(refusals(&wide), at_second(Reason::HostnameNotOwned));
    // Granted, and another namespace has it.
    let held = create(&state, &set("s", &["a.alpha.example", "shared.example"]));
    assert_eq!(refusals(&held), at_second(Reason::HostnameConflict));
    let warned = review(&state, Mode::Warn, None, &set("s", &["a.other.example"]));
    assert!(warned.allowed && warned.warnings.len() == 1);

    // An older object that is edited takes nothing either.
    state.put(granted.clone());
    let edited = set("granted", &["a.alpha.example", "shared.example"]);
    let taking = review(&state, Mode::Enforce, Some(&granted), &edited);
    assert_eq!(refusals(&taking), at_second(Reason::HostnameConflict));
    // Two are all it may have, in however many sets.
    let third = create(&state, &set("third", &["c.alpha.example"]));
    assert_eq!(refusals(&third)[0].0, Reason::QuotaExceeded);
    let same = set("granted", &["a.alpha.example", "c.alpha.example"]);
    assert!(review(&state, Mode::Enforce, Some(&granted), &same).allowed);
}

#[test]
fn hostname_that_is_lost_stops_no_other_edit() {
    let mut state = platform();
    let lost = set("s", &["a.alpha.example", "gone.example"]);
    state.put(lost.clone());
    let edited = set("s", &["b.alpha.example", "gone.example"]);
    assert!(review(&state, Mode::Enforce, Some(&lost), &edited).allowed);

    let lost = route("TLSRoute", "alpha", &["gone.example"]);
    let edited = route("TLSRoute", "alpha", &["gone.example", "a.alpha.example"]);
    let update = review(&state, Mode::Enforce, Some(&lost), &edited);
    assert!(update.allowed);
    assert_eq!(update.warnings.len(), 1, "{:?}", update.warnings);
    let worse = route("TLSRoute", "alpha", &["gone.example", "other.example"]);
    let update = review(&state, Mode::Enforce, Some(&lost), &worse);
    assert!(!update.allowed);
}

#[test]
fn a_route_may_have_what_its_own_namespace_is_granted() {
    let state = platform();
    assert_eq!(
        create(&state, &route("TLSRoute", "alpha", &["a.alpha.example"])).findings,
        []
    );
    let part = create(
        &state,
        &route("TLSRoute", "alpha", &["a.alpha.example", "a.other.example"]),
    );
    assert_eq!(
        refusals(&part),
        [(Reason::HostnameNotOwned, "spec.hostnames[1]")]
    );
    let nothing = create(&state, &route("TLSRoute", "charlie", &["a.alpha.example"]));
    assert_eq!(refusals(&nothing)[0].0, Reason::HostnameNotOwned);
    // The Gateway's own namespace needs no grant, and stands above claims.
    for hostname in ["a.alpha.example", "shared.example"] {
        let own = create(&state, &route("TLSRoute", "infra", &[hostname]));
        assert_eq!(own.findings, [], "{hostname}");
    }
    // A listener that takes no such routes (yet) refuses nothing.
    let http = create(&state, &route("HTTPRoute", "alpha", &["a.other.example"]));
    assert_eq!(http.findings, []);
}

#[test]
fn a_hostname_that_another_namespace_serves_is_not_taken_by_a_route() {
    let mut state = platform();
    let taking = route("TLSRoute", "alpha", &["a.alpha.example", "shared.example"]);
    let held = create(&state, &taking);
    assert_eq!(
        refusals(&held),
        [(Reason::HostnameConflict, "spec.hostnames[1]")]
    );
    let holder = route("TLSRoute", "bravo", &["shared.example"]);
    let policy = Policy::default();
    let own = Reviewer::new(&state, &policy).review(Operation::Create, None, &holder);
    assert_eq!(own.findings, []);
    // By an update neither, and its other hostnames can be edited.
    let before = route("TLSRoute", "alpha", &["a.alpha.example"]);
    assert!(!review(&state, Mode::Enforce, Some(&before), &taking).allowed);
    let more = route(
        "TLSRoute",
        "alpha",
        &["b.alpha.example", "a.alpha.example", "shared.example"],
    );
    assert!(review(&state, Mode::Enforce, Some(&taking), &more).allowed);
    // Nobody holds it any more.
    for (_, value) in yaml::documents(PLATFORM).expect("YAML") {
        let key = object(value).key();
        if key.kind == Kind::HostnameClaim {
            state.remove(&key);
        }
    }
    assert_eq!(create(&state, &taking).findings, []);
}

#[test]
fn an_issuer_of_ones_own_choice_is_refused_and_an_inherited_one_told() {
    let state = platform();
    let terminating = |annotations: Value| {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "alpha", "name": "s", "annotations": annotations},
            "spec": {"parentRef": {"name": "entrance", "namespace": "infra"}, "listeners": [{
                "name": "a", "port": 443, "protocol": "HTTPS", "hostname": "a.alpha.example",
                "tls": {"certificateRefs": [{"name": "own"}]},
            }]},
        }))
    };
    let inherited = create(&state, &terminating(json!({})));
    assert!(inherited.allowed);
    assert_eq!(inherited.findings[0].reason, Reason::IssuerNotAllowed);
    let chosen = create(
        &state,
        &terminating(json!({"vestibule.dev/acme-issuer": "mine"})),
    );
    assert_eq!(refusals(&chosen)[0].0, Reason::IssuerNotAllowed);
}

#[test]
fn a_grant_that_cannot_be_read_is_refused_and_counts() {
    let mut state = platform();
    let broken = object(json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
        "metadata": {"namespace": "infra", "name": "alpha"}, "spec": 7,
    }));
    assert!(!create(&state, &broken).allowed);
    state.put(broken);
    let lost = create(&state, &set("s", &["a.alpha.example"]));
    assert_eq!(refusals(&lost)[0].0, Reason::HostnameNotOwned);
}

#[test]
fn references_that_nobody_permits_are_told() {
    let mut state = platform();
    let reference = |kind: &str| {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "alpha", "name": "s"},
            "spec": {"parentRef": {"name": "entrance", "namespace": "infra"}, "listeners": [{
                "name": "a", "port": 443, "protocol": "HTTPS", "hostname": "a.alpha.example",
                "tls": {"certificateRefs": [{"name": "c", "namespace": "certificates", "kind": kind}]},
            }]},
        }))
    };
    let told = create(&state, &reference("Secret"));
    assert!(told.allowed);
    let reasons = |review: &Review| -> Vec<Reason> {
        let findings = review.findings.iter().map(|f| f.reason);
        findings.filter(|r| *r == Reason::RefNotPermitted).collect()
    };
    assert_eq!(reasons(&told).len(), 1);
    let grant = object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
        "metadata": {"namespace": "certificates", "name": "g"},
        "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "namespace": "alpha"}],
            "to": [{"group": "", "kind": "Secret"}],
        },
    }));
    state.put(grant.clone());
    assert_eq!(reasons(&create(&state, &reference("Secret"))), []);
    state.remove(&grant.key());
    assert_eq!(reasons(&create(&state, &reference("Secret"))).len(), 1);
}

#[test]
fn route_on_a_listener_set_without_its_gateway_is_not_refused() {
    let mut state = platform();
    let on_set = |namespace: &str| {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
            "metadata": {"namespace": namespace, "name": "r"},
            "spec": {
                "parentRefs": [{"kind": "ListenerSet", "group": "gateway.networking.k8s.io", "name": "s", "namespace": "alpha"}],
                "hostnames": ["a.other.example"],
                "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
            },
        }))
    };
    let mut elsewhere = set("s", &["a.other.example"]);
    if let Object::ListenerSet(set) = &mut elsewhere {
        Arc::make_mut(set).gateway = Some(vestibule_model::key::ObjectName::new("infra", "later"));
    }
    state.put(elsewhere);
    assert!(create(&state, &on_set("alpha")).allowed);
}

#[test]
fn a_bad_rule_that_was_there_before_stops_no_edit() {
    let state = platform();
    let route = |weight: u32, extra: bool| {
        let filter = json!({"type": "Throttle"});
        let bad = json!({"filters": [filter], "backendRefs": [{"name": "app", "port": 80}]});
        let good = json!({"backendRefs": [{"name": "app", "port": 80, "weight": weight}]});
        let mut rules = vec![bad.clone(), good];
        if extra {
            rules.push(json!({"filters": [{"type": "Unheard"}], "backendRefs": []}));
        }
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"namespace": "alpha", "name": "r"},
            "spec": {"parentRefs": [{"name": "entrance", "namespace": "infra"}], "rules": rules},
        }))
    };
    assert!(!create(&state, &route(1, false)).allowed);
    let old = route(1, false);
    let edited = review(&state, Mode::Enforce, Some(&old), &route(2, false));
    assert!(edited.allowed && !edited.warnings.is_empty());
    assert!(!review(&state, Mode::Enforce, Some(&old), &route(1, true)).allowed);
}

/// A route that asks for as much as it can is judged as fast as any other.
#[test]
fn a_route_on_very_many_listeners_is_let_in_and_told() {
    let mut state = platform();
    let mut parents = Vec::new();
    for number in 0..32 {
        let name = format!("s{number}");
        let listeners: Vec<Value> = (0..64)
            .map(|n| {
                json!({
                    "name": format!("l{n}"), "port": 1000 + number * 64 + n, "protocol": "TLS",
                    "hostname": "*.alpha.example", "tls": {"mode": "Passthrough"},
                })
            })
            .collect();
        state.put(object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "alpha", "name": name},
            "spec": {"parentRef": {"name": "entrance", "namespace": "infra"}, "listeners": listeners},
        })));
        parents.push(
            json!({"kind": "ListenerSet", "group": "gateway.networking.k8s.io", "name": name}),
        );
    }
    let hostnames: Vec<String> = (0..1024).map(|n| format!("h{n}.alpha.example")).collect();
    let route = |port: u16| {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
            "metadata": {"namespace": "alpha", "name": "r"},
            "spec": {"parentRefs": parents, "hostnames": hostnames, "rules": [{"backendRefs": [{"name": "app", "port": port}]}]},
        }))
    };
    let review = create(&state, &route(443));
    assert!(review.allowed);
    assert!(
        review.warnings.iter().any(|text| text.contains("8192")),
        "{:?}",
        review.warnings
    );
    // If it also takes more entries than its namespace may have, it can be edited as long as it takes no more.
    let policy = Policy {
        route_entries: 10,
        ..Policy::default()
    };
    let reviewer = Reviewer::new(&state, &policy);
    let created = reviewer.review(Operation::Create, None, &route(443));
    assert!(!created.allowed);
    let edited = reviewer.review(Operation::Update, Some(&route(443)), &route(8443));
    assert!(edited.allowed, "{:?}", edited.message);
}
