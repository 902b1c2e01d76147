//! Reviews beside claims: on one Gateway a hostname belongs to one namespace, on every port, for every protocol and
//! for every kind of route. `alpha` asks, and `bravo` is there already.

use serde_json::{Value, json};
use std::sync::Arc;
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_crds::yaml;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::condition::Reason;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_model::protocol::{Group, Port, Transport};
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
metadata: {namespace: infra, name: entrance}
spec:
  gatewayClassName: vestibule
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
  - {name: own, port: 443, protocol: TLS, hostname: status.example.com, tls: {mode: Passthrough}}
";

/// Ports with what they speak, the Gateway's own and others.
const PORTS: [(u16, &str); 7] = [
    (80, "HTTP"),
    (8080, "HTTP"),
    (443, "TLS"),
    (443, "HTTPS"),
    (8443, "TLS"),
    (8443, "HTTPS"),
    (65535, "HTTPS"),
];

const ROUTES: [&str; 3] = ["HTTPRoute", "TLSRoute", "GRPCRoute"];

/// The Gateway, with these hostnames held by `bravo`; "*" is every name that nobody else holds.
fn held(hostnames: &[&str]) -> AdmissionState {
    let mut state = AdmissionState::new("vestibule.dev/gateway-controller");
    for (_, value) in yaml::documents(PLATFORM).expect("YAML") {
        state.put(object(value));
    }
    for hostname in hostnames {
        state.put(claim(hostname, "bravo"));
    }
    state
}

fn claim(hostname: &str, holder: &str) -> Object {
    let names = match hostname {
        "*" => HostPattern::Any,
        other => HostPattern::parse(other).expect("a hostname"),
    };
    let key = ClaimKey::names(&ObjectName::new("infra", "entrance"), &names);
    let name = key.object_name();
    let spec = HostnameClaimSpec::new(&key, "", &Holder::from(holder), 0, None);
    object(json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec,
    }))
}

fn grant(state: &mut AdmissionState, namespace: &str, what: &Value) {
    let mut spec = json!({"namespaces": {"names": [namespace]}});
    for (field, value) in what.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    state.put(object(json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
        "metadata": {"namespace": "infra", "name": namespace}, "spec": spec,
    })));
}

fn review(state: &AdmissionState, old: Option<&Object>, new: &Object) -> Review {
    let operation = match old {
        Some(_) => Operation::Update,
        None => Operation::Create,
    };
    let policy = Policy::default();
    let review = Reviewer::new(state, &policy).review(operation, old, new);
    // Nobody learns whose a name is.
    if &*new.key().name.namespace != "bravo" {
        for text in review.message.iter().chain(&review.warnings) {
            assert!(!text.contains("bravo"), "{text}");
        }
    }
    review
}

fn create(state: &AdmissionState, new: &Object) -> Review {
    review(state, None, new)
}

/// What refuses, as (reason, field).
fn refusals(review: &Review) -> Vec<(Reason, &str)> {
    let refusing = review.findings.iter().filter(|f| f.refuses());
    refusing.map(|f| (f.reason, f.field.as_str())).collect()
}

/// A listener; an empty hostname is none.
fn listener(port: u16, protocol: &str, hostname: &str) -> Value {
    let name = hostname.replace(['*', '.'], "x");
    let mut listener =
        json!({"name": format!("l{port}{name}"), "port": port, "protocol": protocol});
    match protocol {
        "TLS" => listener["tls"] = json!({"mode": "Passthrough"}),
        "HTTPS" => listener["tls"] = json!({"certificateRefs": [{"name": "own"}]}),
        _ => {}
    }
    if !hostname.is_empty() {
        listener["hostname"] = json!(hostname);
    }
    listener
}

fn set_of(namespace: &str, listeners: &[Value]) -> Object {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": namespace, "name": "s"},
        "spec": {"parentRef": {"name": "entrance", "namespace": "infra"}, "listeners": listeners},
    }))
}

fn set(namespace: &str, port: u16, protocol: &str, hostname: &str) -> Object {
    set_of(namespace, &[listener(port, protocol, hostname)])
}

fn route_with(
    kind: &str,
    namespace: &str,
    parent: &Value,
    hostnames: &[&str],
    rule: &Value,
) -> Object {
    let mut rule = rule.clone();
    rule["backendRefs"] = json!([{"name": "app", "port": 443}]);
    let mut spec = json!({"parentRefs": [parent], "rules": [rule]});
    if !hostnames.is_empty() {
        spec["hostnames"] = json!(hostnames);
    }
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": "r"}, "spec": spec,
    }))
}

/// A route on the Gateway, as a whole.
fn route(kind: &str, namespace: &str, hostnames: &[&str]) -> Object {
    let parent = json!({"name": "entrance", "namespace": "infra"});
    route_with(kind, namespace, &parent, hostnames, &json!({}))
}

/// A route on the ListenerSet of a namespace.
fn route_on_set(kind: &str, namespace: &str, set: &str, hostnames: &[&str]) -> Object {
    let group = "gateway.networking.k8s.io";
    let parent = json!({"group": group, "kind": "ListenerSet", "name": "s", "namespace": set});
    route_with(kind, namespace, &parent, hostnames, &json!({}))
}

#[test]
fn no_listener_takes_a_held_name_on_any_port() {
    let state = held(&["shop.example.com", "*.held.example.com"]);
    for (port, protocol) in PORTS {
        for hostname in ["shop.example.com", "*.held.example.com"] {
            let taking = create(&state, &set("alpha", port, protocol, hostname));
            assert_eq!(
                refusals(&taking),
                [(Reason::HostnameConflict, "spec.listeners[0].hostname")],
                "{protocol} {port} {hostname}"
            );
            // The holder may have it on every port, beside what it has.
            let holders = create(&state, &set("bravo", port, protocol, hostname));
            assert_eq!(holders.findings, [], "{protocol} {port} {hostname}");
        }
    }
}

#[test]
fn no_route_takes_a_held_name() {
    let state = held(&["shop.example.com"]);
    for kind in ROUTES {
        let taking = create(
            &state,
            &route(kind, "alpha", &["a.example.com", "shop.example.com"]),
        );
        let expected = [(Reason::HostnameConflict, "spec.hostnames[1]")];
        assert_eq!(refusals(&taking), expected, "{kind}");
        let holders = create(&state, &route(kind, "bravo", &["shop.example.com"]));
        assert_eq!(holders.findings, [], "{kind}");
    }
    // However specific its rules are, and whichever listener it names.
    let paths = [
        json!({"type": "Exact", "value": "/.well-known/acme-challenge/x"}),
        json!({"type": "PathPrefix", "value": "/api"}),
        json!({"type": "RegularExpression", "value": "/.*"}),
    ];
    for path in paths {
        let parent = json!({"name": "entrance", "namespace": "infra", "sectionName": "web"});
        let rule = json!({"matches": [{"path": path, "method": "GET"}]});
        let taking = route_with("HTTPRoute", "alpha", &parent, &["shop.example.com"], &rule);
        let taking = create(&state, &taking);
        assert_eq!(
            refusals(&taking),
            [(Reason::HostnameConflict, "spec.hostnames[0]")]
        );
    }
}

#[test]
fn a_name_that_is_held_without_anything_that_uses_it_is_refused_too() {
    // It does not matter that the holder's objects are gone for a moment, because the claim is still there.
    let mut state = held(&["shop.example.com"]);
    assert!(!create(&state, &route("HTTPRoute", "alpha", &["shop.example.com"])).allowed);
    state.remove(&claim("shop.example.com", "bravo").key());
    for kind in ROUTES {
        assert_eq!(
            create(&state, &route(kind, "alpha", &["shop.example.com"])).findings,
            []
        );
    }
    for (port, protocol) in PORTS {
        assert_eq!(
            create(&state, &set("alpha", port, protocol, "shop.example.com")).findings,
            []
        );
    }
}

#[test]
fn a_wildcard_around_a_held_name_and_no_hostname_do_not_take_it_and_may_be_asked_for() {
    let state = held(&["shop.example.com"]);
    for hostname in ["*.example.com", ""] {
        let around = create(&state, &set("alpha", 8080, "HTTP", hostname));
        assert_eq!(refusals(&around), [], "{hostname}");
    }
    for hostnames in [&["*.example.com"][..], &[]] {
        let around = create(&state, &route("HTTPRoute", "alpha", hostnames));
        assert_eq!(refusals(&around), [], "{hostnames:?}");
    }
}

#[test]
fn every_name_that_nobody_else_holds_is_held_by_one_namespace_too() {
    let state = held(&["*"]);
    let taking = create(&state, &set("alpha", 8080, "HTTP", ""));
    assert_eq!(
        refusals(&taking),
        [(Reason::HostnameConflict, "spec.listeners[0].hostname")]
    );
    let catch_all = route("HTTPRoute", "alpha", &[]);
    let taking = create(&state, &catch_all);
    assert_eq!(
        refusals(&taking),
        [(Reason::HostnameConflict, "spec.hostnames")]
    );
    // It closes nothing.
    assert_eq!(
        create(&state, &route("HTTPRoute", "alpha", &["a.example.com"])).findings,
        []
    );
    // A route that lost it can be edited, and one that did not ask for it does not get it by an edit.
    let parent = json!({"name": "entrance", "namespace": "infra"});
    let path = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/x"}}]});
    let edited = route_with("HTTPRoute", "alpha", &parent, &[], &path);
    let lost = review(&state, Some(&catch_all), &edited);
    assert!(lost.allowed && lost.warnings.len() == 1, "{lost:?}");
    let named = route("HTTPRoute", "alpha", &["a.example.com"]);
    assert!(!review(&state, Some(&named), &catch_all).allowed);
}

#[test]
fn a_name_inside_a_wildcard_of_another_tenant_is_refused() {
    let state = held(&["*.shop.example.com"]);
    for kind in ROUTES {
        let inside = create(&state, &route(kind, "alpha", &["a.shop.example.com"]));
        assert_eq!(
            refusals(&inside),
            [(Reason::HostnameConflict, "spec.hostnames[0]")],
            "{kind}"
        );
        // The wildcard is not about its own name.
        assert_eq!(
            create(&state, &route(kind, "alpha", &["shop.example.com"])).findings,
            []
        );
    }
    for (port, protocol) in PORTS {
        for hostname in ["a.shop.example.com", "*.a.shop.example.com"] {
            let inside = create(&state, &set("alpha", port, protocol, hostname));
            assert!(!inside.allowed, "{protocol} {port} {hostname}");
        }
    }
    assert_eq!(
        create(
            &state,
            &route("HTTPRoute", "bravo", &["a.shop.example.com"])
        )
        .findings,
        []
    );
    // A grant of just that name opens it; one of a wildcard around both does not.
    for (granted, allowed) in [
        ("a.shop.example.com", true),
        ("*.shop.example.com", true),
        ("*.example.com", false),
    ] {
        let mut state = state.clone();
        grant(
            &mut state,
            "bravo",
            &json!({"hostnames": ["*.shop.example.com"]}),
        );
        grant(&mut state, "alpha", &json!({"hostnames": [granted]}));
        let inside = create(
            &state,
            &route("HTTPRoute", "alpha", &["a.shop.example.com"]),
        );
        assert_eq!(inside.allowed, allowed, "{granted}");
    }
}

#[test]
fn namespace_that_holds_all_the_names_it_may_gets_no_more() {
    let mut state = held(&["other.example.com"]);
    state.put(claim("one.example.com", "alpha"));
    let full = state.clone().with_names_per_namespace(1);
    for (kind, name) in ROUTES.into_iter().zip(["one", "two", "three"]) {
        let kept = route(kind, "alpha", &["one.example.com"]);
        assert!(create(&full, &kept).allowed, "{kind}");
        let more = route(kind, "alpha", &[&format!("{name}.more.example.com")]);
        let at_route = [(Reason::QuotaExceeded, "spec.hostnames[0]")];
        assert_eq!(refusals(&create(&full, &more)), at_route, "{kind}");
        assert!(create(&state, &more).allowed, "{kind}");
    }
    let more = set("alpha", 443, "TLS", "more.example.com");
    let at_listener = [(Reason::QuotaExceeded, "spec.listeners[0].hostname")];
    assert_eq!(refusals(&create(&full, &more)), at_listener);
    // A grant says otherwise, in either direction.
    let mut state = full;
    let limited = |most: u32| json!({"hostnames": ["*"], "limits": {"hostnames": most}});
    grant(&mut state, "alpha", &limited(2));
    assert!(create(&state, &more).allowed);
    grant(&mut state, "alpha", &limited(0));
    assert_eq!(refusals(&create(&state, &more)), at_listener);
}

#[test]
fn namespace_that_uses_all_the_ports_it_may_gets_no_more() {
    let mut state = held(&[]).with_ports_per_namespace(2);
    let on = |ports: &[u16]| {
        let listeners = ports
            .iter()
            .map(|port| listener(*port, "HTTP", "a.example.com"));
        set_of("alpha", &listeners.collect::<Vec<_>>())
    };
    // The Gateway's own port costs nothing, so the last one is one too many.
    let more = on(&[80, 8080, 8081, 8082]);
    let at_last = [(Reason::QuotaExceeded, "spec.listeners[3].port")];
    let refused = create(&state, &more);
    assert_eq!(refusals(&refused), at_last);
    let action = "HostnameGrant with a higher limits.ports";
    assert!(refused.message.is_some_and(|text| text.contains(action)));
    assert!(create(&state, &on(&[80, 8080, 8081])).allowed);
    // It came in while no webhook answered, and can be edited.
    state.put(more.clone());
    assert!(review(&state, Some(&more), &more).allowed);
    let fewer = on(&[80, 8080, 8082]);
    assert!(review(&state, Some(&more), &fewer).allowed);
    let others = on(&[80, 8080, 8081, 8082, 8083]);
    let at_new = [(Reason::QuotaExceeded, "spec.listeners[4].port")];
    assert_eq!(refusals(&review(&state, Some(&more), &others)), at_new);
    // A grant says otherwise, in either direction.
    let limited = |most: u32| json!({"hostnames": ["*"], "limits": {"ports": most}});
    grant(&mut state, "alpha", &limited(4));
    assert!(review(&state, Some(&more), &others).allowed);
    grant(&mut state, "alpha", &limited(0));
    let refused = review(&state, Some(&more), &others);
    assert_eq!(refusals(&refused), at_new);
}

#[test]
fn hostname_that_an_admin_takes_from_its_holder_is_open_to_others() {
    let mut state = held(&[]);
    let taken = |from: &str| {
        let mut claim = claim("shop.example.com", "bravo");
        if let Object::HostnameClaim(claim) = &mut claim {
            Arc::make_mut(claim).take_from = Some(from.into());
        }
        claim
    };
    // Not from whoever does not hold it.
    state.put(taken("charlie"));
    let asks = set("alpha", 443, "TLS", "shop.example.com");
    let at_listener = [(Reason::HostnameConflict, "spec.listeners[0].hostname")];
    assert_eq!(refusals(&create(&state, &asks)), at_listener);
    state.put(taken("bravo"));
    assert!(create(&state, &asks).allowed);
    // Its holder may go on.
    assert!(create(&state, &set("bravo", 443, "TLS", "shop.example.com")).allowed);
    state.put(claim("shop.example.com", "bravo"));
    assert_eq!(refusals(&create(&state, &asks)), at_listener);
}

#[test]
fn a_wildcard_directly_below_a_public_suffix_takes_a_grant() {
    let mut state = held(&[]);
    let at_listener = [(Reason::PublicSuffixWildcard, "spec.listeners[0].hostname")];
    let at_route = [(Reason::PublicSuffixWildcard, "spec.hostnames[0]")];
    for hostname in ["*.com", "*.co.uk", "*.kawasaki.jp", "*.github.io"] {
        for (port, protocol) in PORTS {
            let wide = create(&state, &set("alpha", port, protocol, hostname));
            assert_eq!(refusals(&wide), at_listener, "{hostname}");
        }
        let wide = create(&state, &route("HTTPRoute", "alpha", &[hostname]));
        assert_eq!(refusals(&wide), at_route, "{hostname}");
        // The Gateway's namespace is no tenant.
        assert!(
            create(&state, &set("infra", 8080, "HTTP", hostname)).allowed,
            "{hostname}"
        );
        assert!(
            create(&state, &route("HTTPRoute", "infra", &[hostname])).allowed,
            "{hostname}"
        );
    }
    assert_eq!(
        create(&state, &route("HTTPRoute", "alpha", &["*.example.com"])).findings,
        []
    );
    grant(&mut state, "alpha", &json!({"hostnames": ["*.com"]}));
    assert!(create(&state, &set("alpha", 8080, "HTTP", "*.com")).allowed);
    assert!(create(&state, &route("HTTPRoute", "alpha", &["*.com"])).allowed);
    let other = create(&state, &route("HTTPRoute", "alpha", &["*.co.uk"]));
    assert_eq!(
        refusals(&other),
        [(Reason::HostnameNotOwned, "spec.hostnames[0]")]
    );
}

#[test]
fn a_name_of_the_gateways_own_is_reserved_on_every_port() {
    let state = held(&[]);
    for (port, protocol) in PORTS {
        let taking = create(&state, &set("alpha", port, protocol, "status.example.com"));
        assert!(!taking.allowed, "{protocol} {port}");
        assert_eq!(
            taking.findings[0].reason,
            Reason::HostnameConflict,
            "{protocol} {port}"
        );
    }
    for kind in ROUTES {
        let taking = create(&state, &route(kind, "alpha", &["status.example.com"]));
        assert_eq!(
            refusals(&taking),
            [(Reason::HostnameConflict, "spec.hostnames[0]")],
            "{kind}"
        );
        assert_eq!(
            create(&state, &route(kind, "infra", &["status.example.com"])).findings,
            []
        );
    }
}

#[test]
fn the_gateways_namespace_stands_above_claims_with_its_routes_and_not_with_its_sets() {
    let state = held(&["shop.example.com"]);
    for kind in ROUTES {
        let own = create(&state, &route(kind, "infra", &["shop.example.com"]));
        assert_eq!(own.findings, [], "{kind}");
    }
    let own = create(&state, &set("infra", 8443, "TLS", "shop.example.com"));
    assert_eq!(
        refusals(&own),
        [(Reason::HostnameConflict, "spec.listeners[0].hostname")]
    );
}

#[test]
fn a_set_that_lost_a_name_can_be_edited_and_gets_no_other_that_is_taken() {
    let state = held(&["shop.example.com", "other.example.com"]);
    let lost = listener(8443, "TLS", "shop.example.com");
    let before = set_of("alpha", std::slice::from_ref(&lost));
    let free = set_of(
        "alpha",
        &[lost.clone(), listener(8443, "TLS", "a.example.com")],
    );
    assert!(review(&state, Some(&before), &free).allowed);
    let taken = set_of("alpha", &[lost, listener(8443, "TLS", "other.example.com")]);
    assert_eq!(
        refusals(&review(&state, Some(&before), &taken)),
        [(Reason::HostnameConflict, "spec.listeners[1].hostname")]
    );
    // A former version on another Gateway asked for nothing here.
    let mut elsewhere = before.clone();
    if let Object::ListenerSet(set) = &mut elsewhere {
        Arc::make_mut(set).gateway = Some(ObjectName::new("infra", "another"));
    }
    assert!(!review(&state, Some(&elsewhere), &before).allowed);
}

#[test]
fn a_route_that_lost_a_name_can_be_edited_and_gets_no_other_that_is_taken() {
    let state = held(&["shop.example.com", "other.example.com"]);
    for kind in ROUTES {
        let before = route(kind, "alpha", &["shop.example.com"]);
        let free = route(kind, "alpha", &["a.example.com", "shop.example.com"]);
        let edited = review(&state, Some(&before), &free);
        assert!(edited.allowed, "{kind}: {:?}", edited.message);
        assert_eq!(edited.warnings.len(), 1, "{kind}: {:?}", edited.warnings);
        let taken = route(kind, "alpha", &["shop.example.com", "other.example.com"]);
        assert_eq!(
            refusals(&review(&state, Some(&before), &taken)),
            [(Reason::HostnameConflict, "spec.hostnames[1]")],
            "{kind}"
        );
        // The same name by another kind of route is asked for anew.
        let other = ROUTES
            .iter()
            .find(|other| **other != kind)
            .expect("another");
        assert!(!create(&state, &route(other, "alpha", &["shop.example.com"])).allowed);
    }
}

#[test]
fn a_name_is_shared_with_httproutes_of_those_who_are_named() {
    let mut state = held(&["docs.example.com"]);
    grant(
        &mut state,
        "bravo",
        &json!({"hostnames": ["docs.example.com"]}),
    );
    grant(
        &mut state,
        "alpha",
        &json!({"sharedHostnames": ["docs.example.com"]}),
    );
    let at = |reason| [(reason, "spec.hostnames[0]")];

    let sharing = create(&state, &route("HTTPRoute", "alpha", &["docs.example.com"]));
    assert_eq!(sharing.findings, []);
    let passing = create(&state, &route("TLSRoute", "alpha", &["docs.example.com"]));
    assert_eq!(refusals(&passing), at(Reason::HostnameNotOwned));
    // A listener would have the whole name.
    for (port, protocol) in PORTS {
        let listener = create(&state, &set("alpha", port, protocol, "docs.example.com"));
        let refused = refusals(&listener);
        assert_eq!(
            refused,
            [(Reason::HostnameNotOwned, "spec.listeners[0].hostname")]
        );
    }
    // Neither anybody else nor any other name is meant.
    let other = create(
        &state,
        &route("HTTPRoute", "charlie", &["docs.example.com"]),
    );
    assert_eq!(refusals(&other), at(Reason::HostnameNotOwned));
    for hostname in ["*.example.com", "a.docs.example.com"] {
        let more = create(&state, &route("HTTPRoute", "alpha", &[hostname]));
        assert_eq!(refusals(&more), at(Reason::HostnameNotOwned), "{hostname}");
    }
    // The holder has it as before.
    for kind in ROUTES {
        assert_eq!(
            create(&state, &route(kind, "bravo", &["docs.example.com"])).findings,
            []
        );
    }
    // A namespace with a grant that shares another one's name has the name for routes of requests.
    let both = json!({"hostnames": ["*.example.com"], "sharedHostnames": ["docs.example.com"]});
    grant(&mut state, "alpha", &both);
    for kind in ["HTTPRoute", "GRPCRoute"] {
        assert_eq!(
            create(&state, &route(kind, "alpha", &["docs.example.com"])).findings,
            []
        );
    }
    let passing = create(&state, &route("TLSRoute", "alpha", &["docs.example.com"]));
    assert_eq!(refusals(&passing), at(Reason::HostnameConflict));
}

/// An HTTPRoute on the Gateway whose one rule has these matches; none: no rule says any.
fn matching(namespace: &str, hostnames: &[&str], paths: &[(&str, &str)]) -> Object {
    let parent = json!({"name": "entrance", "namespace": "infra"});
    let matches: Vec<Value> = paths
        .iter()
        .map(|(kind, value)| json!({"path": {"type": kind, "value": value}}))
        .collect();
    let rule = if matches.is_empty() {
        json!({})
    } else {
        json!({"matches": matches})
    };
    route_with("HTTPRoute", namespace, &parent, hostnames, &rule)
}

#[test]
fn of_a_shared_name_a_part_is_had_by_matches_inside_it() {
    let mut state = held(&["docs.example.com"]);
    let part = json!([{"hostname": "docs.example.com", "paths": ["/api", "/team/b"]}]);
    grant(&mut state, "alpha", &json!({"sharedPaths": part}));
    let docs = &["docs.example.com"];
    let fine = [
        ("PathPrefix", "/api"),
        ("PathPrefix", "/api/"),
        ("Exact", "/team/b/x"),
    ];
    let inside = matching("alpha", docs, &fine);
    assert_eq!(create(&state, &inside).findings, []);
    for (paths, index) in [
        (&[("PathPrefix", "/")][..], 0),
        (&[("PathPrefix", "/api"), ("PathPrefix", "/team")], 1),
        (&[("Exact", "/apix")], 0),
        (&[("Exact", "/API")], 0),
        (&[("PathPrefix", "/api/%2e%2e")], 0),
        (&[("RegularExpression", "/api/.*")], 0),
        (&[("PathPrefix", "/.well-known/acme-challenge")], 0),
        (&[("PathPrefix", "/.well-known/pki-validation")], 0),
        (&[], 0),
    ] {
        let refused = create(&state, &matching("alpha", docs, paths));
        let field = format!("spec.rules[0].matches[{index}].path");
        let at = [(Reason::HostnameNotOwned, &*field)];
        assert_eq!(refusals(&refused), at, "{paths:?}");
        let message = refused.message.expect("a message");
        assert!(
            message.contains("shares only paths /api, /team/b of hostname"),
            "{message}"
        );
    }
    // It is for HTTPRoutes of those named, and for no listener.
    let other = create(&state, &matching("charlie", docs, &fine));
    assert_eq!(
        refusals(&other),
        [(Reason::HostnameNotOwned, "spec.hostnames[0]")]
    );
    let tls = create(&state, &route("TLSRoute", "alpha", docs));
    assert_eq!(
        refusals(&tls),
        [(Reason::HostnameNotOwned, "spec.hostnames[0]")]
    );
    let listener = create(&state, &set("alpha", 8080, "HTTP", "docs.example.com"));
    let at = [(Reason::HostnameNotOwned, "spec.listeners[0].hostname")];
    assert_eq!(refusals(&listener), at);

    // An object that was there before stays editable, but an edit may not make a listener wrong that was in order.
    let before = matching("alpha", docs, &[("PathPrefix", "/")]);
    let after = matching("alpha", docs, &[("PathPrefix", "/x"), ("Exact", "/y")]);
    let edited = review(&state, Some(&before), &after);
    assert!(edited.allowed, "{:?}", edited.message);
    assert_eq!((edited.findings.len(), refusals(&edited).len()), (1, 0));
    assert!(!edited.warnings.is_empty());
    let field = "spec.rules[0].matches[0].path";
    let reaching = review(&state, Some(&inside), &before);
    assert_eq!(refusals(&reaching), [(Reason::HostnameNotOwned, field)]);
    assert!(review(&state, Some(&before), &inside).allowed);
    // Nor does another hostname that is new to it.
    let free = matching("alpha", &["a.example.com"], &[("PathPrefix", "/")]);
    let more = review(&state, Some(&free), &before);
    assert_eq!(refusals(&more), [(Reason::HostnameNotOwned, field)]);

    // Beside a name of its own, the message says which hostname it is about.
    let both = json!({"hostnames": ["a.example.com"], "sharedPaths": part});
    grant(&mut state, "alpha", &both);
    let names = &["a.example.com", "docs.example.com"];
    let refused = create(&state, &matching("alpha", names, &[("PathPrefix", "/")]));
    assert_eq!(refusals(&refused), [(Reason::HostnameNotOwned, field)]);
    let message = refused.message.expect("a message");
    assert!(
        message.contains("of hostname \"docs.example.com\""),
        "{message}"
    );
    // All of the name is shared, too.
    let whole = json!({"sharedHostnames": ["docs.example.com"], "sharedPaths": part});
    grant(&mut state, "alpha", &whole);
    assert_eq!(create(&state, &before).findings, []);
}

#[test]
fn a_route_on_a_listener_without_a_hostname_asks_for_the_namespace_of_its_set() {
    let mut state = held(&["shop.example.com"]);
    state.put(claim("alpha.example.com", "alpha"));
    let mut open = listener(8443, "TLS", "");
    open["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
    let mut plain = listener(8080, "HTTP", "");
    plain["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
    state.put(set_of("alpha", &[open, plain]));
    for kind in ROUTES {
        for namespace in ["alpha", "charlie", "bravo"] {
            let invited = route_on_set(kind, namespace, "alpha", &["alpha.example.com"]);
            assert_eq!(create(&state, &invited).findings, [], "{kind} {namespace}");
            // Not even the holder of a name brings it to somebody else's listener.
            let taking = route_on_set(kind, namespace, "alpha", &["shop.example.com"]);
            assert_eq!(
                refusals(&create(&state, &taking)),
                [(Reason::HostnameConflict, "spec.hostnames[0]")],
                "{kind} {namespace}"
            );
        }
    }
}

#[test]
fn a_wildcard_of_ones_own_does_not_let_in_what_the_gateway_refuses() {
    let mut state = held(&["shop.example.com"]);
    state.put(set("alpha", 8080, "HTTP", "*.example.com"));
    let group = "gateway.networking.k8s.io";
    let both = |hostname: &str| {
        let mut route = json!({
            "apiVersion": format!("{group}/v1"), "kind": "HTTPRoute",
            "metadata": {"namespace": "alpha", "name": "r"},
            "spec": {
                "hostnames": [hostname],
                "rules": [{"backendRefs": [{"name": "app", "port": 80}]}],
            },
        });
        route["spec"]["parentRefs"] = json!([
            {"name": "entrance", "namespace": "infra"},
            {"group": group, "kind": "ListenerSet", "name": "s"},
        ]);
        object(route)
    };
    let taking = create(&state, &both("shop.example.com"));
    let at = [(Reason::HostnameConflict, "spec.hostnames[0]")];
    assert_eq!(refusals(&taking), at);
    assert_eq!(create(&state, &both("a.example.com")).findings, []);
    // What the Gateway reserves, the listener of one's own may not have either.
    assert_eq!(refusals(&create(&state, &both("status.example.com"))), at);
}

/// A TCPRoute or UDPRoute on the Gateway's own listener of port 5432.
fn raw_route(kind: &str, namespace: &str, backend: &str) -> Object {
    object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": "db"},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": "infra", "port": 5432}],
            "rules": [{"backendRefs": [{"name": backend, "port": 5432}]}],
        },
    }))
}

#[test]
fn a_route_for_a_port_of_the_gateway_that_another_namespace_holds_is_refused() {
    for (kind, transport) in [("TCPRoute", Transport::Tcp), ("UDPRoute", Transport::Udp)] {
        let mut state = held(&[]);
        state.put(object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "entrance"},
            "spec": {"gatewayClassName": "vestibule", "listeners": [{
                "name": "db", "port": 5432, "protocol": transport.as_str(),
                "allowedRoutes": {"namespaces": {"from": "All"}},
            }]},
        })));
        let asking = raw_route(kind, "alpha", "db");
        assert!(create(&state, &asking).allowed, "nobody holds it");

        let key = ClaimKey::port(&PortKey {
            gateway: ObjectName::new("infra", "entrance"),
            port: Port::new(5432).expect("a port"),
            transport,
        });
        let holder = Holder::of_port("bravo".into(), Group::Raw);
        let spec = HostnameClaimSpec::new(&key, "", &holder, 0, None);
        let name = key.object_name();
        state.put(object(json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
            "metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec,
        })));
        let review = create(&state, &asking);
        assert_eq!(
            refusals(&review),
            [(Reason::PortConflict, "spec.parentRefs")],
            "{kind}"
        );
        // The holder, and the Gateway's own namespace.
        for namespace in ["bravo", "infra"] {
            assert!(create(&state, &raw_route(kind, namespace, "db")).allowed);
        }
        // A route that got in while the webhook was down can be edited.
        let edited = raw_route(kind, "alpha", "other");
        let review = self::review(&state, Some(&asking), &edited);
        assert!(review.allowed, "{:?}", review.message);
        assert_eq!(review.warnings.len(), 1, "{:?}", review.warnings);
    }
}

/// The operator refuses a route that does not fit as a whole. So an edit must not make it too large, or what the former
/// version serves would end.
#[test]
fn an_edit_that_takes_more_entries_than_a_namespace_may_have_is_refused() {
    let state = held(&[]);
    let policy = Policy {
        route_entries: 10,
        ..Policy::default()
    };
    let parent = json!({"name": "entrance", "namespace": "infra", "sectionName": "web"});
    let sized = |matches: usize| {
        let one = |n: usize| json!({"path": {"type": "Exact", "value": format!("/{n}")}});
        let rule = json!({"matches": (0..matches).map(one).collect::<Vec<_>>()});
        route_with(
            "HTTPRoute",
            "alpha",
            &parent,
            &["a.example", "b.example"],
            &rule,
        )
    };
    let review = |old: Option<usize>, new: usize| {
        let operation = old.map_or(Operation::Create, |_| Operation::Update);
        let old = old.map(sized);
        Reviewer::new(&state, &policy).review(operation, old.as_ref(), &sized(new))
    };
    let too_many = [(Reason::QuotaExceeded, "spec")];
    assert!(review(None, 5).allowed);
    for refused in [review(None, 6), review(Some(5), 6), review(Some(6), 7)] {
        assert_eq!(refusals(&refused), too_many);
    }
    let message = review(Some(5), 6).message.expect("a message");
    for part in ["takes 12 entries", "the 10 that", "sectionName"] {
        assert!(message.contains(part), "{message}");
    }
    // One that was too large before can become smaller, and is told what is left.
    let smaller = review(Some(8), 7);
    assert!(smaller.allowed);
    assert_eq!(smaller.findings.len(), 1, "{:?}", smaller.findings);
    assert!(review(Some(7), 7).allowed);
    assert_eq!(review(Some(8), 5).findings, []);
}

/// Whoever writes the first grant of a Gateway learns how many names would be lost by it.
#[test]
fn the_first_grant_is_told_how_many_names_would_be_lost() {
    let mut state = held(&["shop.example.com", "cart.example.com", "*.example.org", "*"]);
    state.put(claim("own.example.com", "infra"));
    let granting = |namespaces: Value, hostnames: &[&str]| {
        object(json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "infra", "name": "first"},
            "spec": {"namespaces": namespaces, "hostnames": hostnames},
        }))
    };
    let bravo = || json!({"names": ["bravo"]});
    let told = |state: &AdmissionState, grant: &Object| {
        let review = create(state, grant);
        assert!(review.allowed);
        review.warnings
    };
    let everybody = json!({"selector": {}});
    assert_eq!(told(&state, &granting(everybody, &["*"])), [""; 0]);
    let alpha = json!({"names": ["alpha"]});
    for (namespaces, hostnames, lost) in [
        (
            bravo(),
            vec!["*.example.com", "*.example.org"],
            "1 hostname would",
        ),
        (bravo(), vec!["*.example.com"], "2 hostnames would"),
        (bravo(), vec!["www.example.org"], "4 hostnames would"),
        (alpha, vec!["*"], "4 hostnames would"),
    ] {
        let warnings = told(&state, &granting(namespaces, &hostnames));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(lost), "{warnings:?}");
        assert!(warnings[0].contains("infra/entrance"), "{warnings:?}");
    }
    // A further grant takes no name away.
    grant(
        &mut state,
        "other",
        &json!({"hostnames": ["*.other.example"]}),
    );
    assert_eq!(
        told(&state, &granting(bravo(), &["*.example.com"])),
        [""; 0]
    );
}
