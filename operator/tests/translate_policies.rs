//! BackendTLSPolicies that cannot be applied, as the routes to their targets say it.

use vestibule_crds::{decode, yaml};
use vestibule_model::condition::{Condition, ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_operator::translate::{Change, Status, Translator};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{Trusts, config_map, policy};

const WORLD: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own, namespace: red}
spec:
  gatewayClassName: vestibule
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: raw, port: 5432, protocol: TCP}
  - {name: datagrams, port: 53, protocol: UDP}
  - {name: ends, port: 443, protocol: TLS, hostname: ends.example.com, tls: {mode: Terminate, certificateRefs: [{name: none}]}}
  - {name: through, port: 443, protocol: TLS, hostname: through.example.com, tls: {mode: Passthrough}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: red}
spec: {ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: red}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: blue}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: red, namespace: blue}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: red}]
  to: [{group: '', kind: Service}]
";

/// Routes of each kind by the listener, with whether the policy for Service `web` applies to their connections.
const ROUTES: [(Kind, &str, &str, bool); 8] = [
    (Kind::HttpRoute, "http", TO_WEB, true),
    (Kind::GrpcRoute, "http", TO_WEB, true),
    (
        Kind::HttpRoute,
        "http",
        "{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: web, port: 80}}}], backendRefs: [{name: plain, port: 80}]}",
        true,
    ),
    (
        Kind::HttpRoute,
        "http",
        "{filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: web, port: 80}}}], backendRefs: [{name: plain, port: 80}]}",
        true,
    ),
    (Kind::TcpRoute, "raw", TO_WEB, true),
    (
        Kind::UdpRoute,
        "datagrams",
        "{backendRefs: [{name: web, port: 53}]}",
        false,
    ),
    (Kind::TlsRoute, "ends", TO_WEB, true),
    (Kind::TlsRoute, "through", TO_WEB, false),
];
const TO_WEB: &str = "{backendRefs: [{name: web, port: 80}]}";
const TO_BLUE: &str = "{backendRefs: [{name: web, namespace: blue, port: 80}]}";

fn objects(text: &str) -> Vec<Object> {
    yaml::documents(text)
        .expect("YAML")
        .into_iter()
        .map(|(_, document)| decode(document).into_object().expect("an object").0)
        .collect()
}

/// Route `red/r` on one listener of the Gateway, with one rule.
fn route_on(kind: Kind, listener: &str, rule: &str) -> Object {
    let hostnames = match kind {
        Kind::TlsRoute => format!("hostnames: [{listener}.example.com]"),
        _ => String::new(),
    };
    let text = format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: r, namespace: red}}
spec:
  parentRefs: [{{name: own, sectionName: {listener}}}]
  rules: [{rule}]
  {hostnames}
"
    );
    objects(&text).remove(0)
}

fn world(objects_of_test: impl IntoIterator<Item = Object>) -> Translator {
    let all = std::iter::once(our_class()).chain(objects(WORLD));
    translated(all.chain(objects_of_test))
}

/// A condition of route `red/r` towards its only parent.
fn condition(world: &Translator, kind: Kind, of: ConditionType) -> Condition {
    let Some(Status::Route(status)) = world.statuses().get(&key(kind, "red", "r")) else {
        panic!("no status of the {kind}")
    };
    let mut conditions = status.parents[0].conditions.iter();
    let found = conditions.find(|condition| condition.kind == of);
    found.expect("the condition").clone()
}

/// The truth and the reason of `ResolvedRefs` of route `red/r`.
fn resolved(world: &Translator, kind: Kind) -> (Truth, Reason) {
    let resolved = condition(world, kind, ConditionType::ResolvedRefs);
    (resolved.truth, resolved.reason)
}

const FINE: (Truth, Reason) = (Truth::True, Reason::ResolvedRefs);
const CLOSED: (Truth, Reason) = (Truth::False, Reason::InvalidBackendTLSPolicy);

#[test]
fn routes_say_that_the_policy_for_a_backend_cannot_be_applied() {
    for (kind, listener, rule, applies) in ROUTES {
        let mut world = world([route_on(kind, listener, rule)]);
        let mut after = |change: Change, closed: bool| {
            world.apply([change]);
            let expected = if closed && applies { CLOSED } else { FINE };
            assert_eq!(
                resolved(&world, kind),
                expected,
                "{kind} on {listener}: {rule}"
            );
            let accepted = condition(&world, kind, ConditionType::Accepted);
            assert_eq!(accepted.truth, Truth::True, "{accepted:?}");
        };
        let p = || policy("red", "p", 1, ("web", None), Some("ca"));
        after(Change::Remove(p().key()), false);
        after(Change::Put(p()), true);
        after(Change::Put(config_map("red", "ca", Trusts::Pair(0))), false);
        after(Change::Put(config_map("red", "ca", Trusts::NotPem)), true);
        after(Change::Put(config_map("red", "ca", Trusts::Both)), false);
        after(Change::Remove(key(Kind::ConfigMap, "red", "ca")), true);
        after(Change::Remove(p().key()), false);
        let unreadable = Object::Unreadable(
            p().key(),
            Meta::default(),
            Finding::refused(Reason::Unreadable, "spec", "does not decode", ""),
        );
        after(Change::Put(unreadable), true);
        after(
            Change::Put(policy("red", "p", 1, ("web", None), None)),
            false,
        );
    }
}

#[test]
fn only_the_policy_that_comes_first_closes_a_backend() {
    let kind = Kind::HttpRoute;
    let good = |name: &str, created, section| policy("red", name, created, ("web", section), None);
    let bad = policy("red", "bad", 2, ("web", None), Some("missing"));
    let mut world = world([
        route_on(kind, "http", TO_WEB),
        good("good", 1, None),
        bad.clone(),
    ]);
    assert_eq!(resolved(&world, kind), FINE);
    // The other one comes first now.
    world.apply([Change::Put(good("good", 3, None))]);
    assert_eq!(resolved(&world, kind), CLOSED);
    // One for the port comes before those for the Service.
    world.apply([Change::Put(good("port", 4, Some("web")))]);
    assert_eq!(resolved(&world, kind), FINE);
    world.apply([Change::Remove(key(Kind::BackendTlsPolicy, "red", "port"))]);
    assert_eq!(resolved(&world, kind), CLOSED);
    world.apply([Change::Remove(bad.key())]);
    assert_eq!(resolved(&world, kind), FINE);
}

#[test]
fn a_route_that_begins_to_use_a_backend_says_it_at_once() {
    let kind = Kind::HttpRoute;
    let bad = policy("red", "bad", 2, ("web", None), Some("missing"));
    let mut world = world([bad]);
    world.apply([Change::Put(route_on(kind, "http", TO_WEB))]);
    assert_eq!(resolved(&world, kind), CLOSED);
    // A route that is attached nowhere has no connections, and the policy is not judged.
    world.apply([Change::Put(route_on(kind, "absent", TO_WEB))]);
    assert_eq!(resolved(&world, kind), FINE);
}

#[test]
fn the_message_names_what_the_team_may_know() {
    let kind = Kind::HttpRoute;
    let bad = |namespace| policy(namespace, "private", 1, ("web", None), Some("hidden"));
    let message = |world: &Translator| {
        assert_eq!(resolved(world, kind), CLOSED);
        condition(world, kind, ConditionType::ResolvedRefs).message
    };
    let mut world = world([bad("red"), bad("blue"), route_on(kind, "http", TO_WEB)]);
    assert_eq!(
        message(&world),
        "spec.rules[0].backendRefs[0]: the proxies do not connect to port 80 of Service red/web, because BackendTLSPolicy \
         red/private cannot be applied: spec.validation.caCertificateRefs[0]: ConfigMap red/hidden does not exist; create it, \
         with PEM certificates in \"ca.crt\""
    );
    world.apply([Change::Put(route_on(kind, "http", TO_BLUE))]);
    assert_eq!(
        message(&world),
        "spec.rules[0].backendRefs[0]: the proxies do not connect to port 80 of Service blue/web, because the \
         BackendTLSPolicy for it cannot be applied; have the owner of the Service correct it"
    );
}

#[test]
fn nothing_is_known_while_the_authorities_are_being_read() {
    let kind = Kind::HttpRoute;
    for (rule, namespace, said) in [
        (TO_WEB, "red", "ConfigMap red/hidden is being read"),
        (
            TO_BLUE,
            "blue",
            "what the BackendTLSPolicy for Service blue/web refers to is being read",
        ),
    ] {
        let all = std::iter::once(our_class()).chain(objects(WORLD)).chain([
            policy(namespace, "private", 1, ("web", None), Some("hidden")),
            route_on(kind, "http", rule),
        ]);
        let mut world = Translator::new(settings()).reading_sources();
        world.apply(all.map(Change::Put));
        assert_eq!(resolved(&world, kind), (Truth::Unknown, Reason::Pending));
        let message = condition(&world, kind, ConditionType::ResolvedRefs).message;
        assert!(message.contains(said), "{message}");
        assert!(world.is_undecided(&key(kind, "red", "r")));
        let accepted = condition(&world, kind, ConditionType::Accepted);
        assert_eq!(accepted.message, "The route is accepted");
        let source = ObjectKey::new(Kind::ConfigMap, namespace, "hidden");
        world.apply([Change::Absent(source)]);
        assert_eq!(resolved(&world, kind), CLOSED);
        assert!(!world.is_undecided(&key(kind, "red", "r")));
        world.apply([Change::Put(config_map(namespace, "hidden", Trusts::Both))]);
        assert_eq!(resolved(&world, kind), FINE);
    }
}
