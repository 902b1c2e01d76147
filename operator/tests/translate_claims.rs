//! Names held by listeners and routes of one port: who has which, case by case.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::grants::hostname_grant;
use common::*;
use vestibule_model::claim::{ClaimKey, ClaimUse};
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::conflict::Transport;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::merge::PortKey;
use vestibule_model::object::{Listener, Object, Port, Protocol};
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{
    Change, Claims, Output, Settings, Standing, Status, Translator,
};
use vestibule_stream::{ResourceKey, ResourceKind};

/// A translator whose wishes come true at once, as if they were written.
struct Run {
    translator: Translator,
    standings: BTreeMap<ClaimKey, Option<Standing>>,
}

fn shared() -> Listener {
    let mut shared = passthrough("shared", "*.example.com");
    shared.allowed_namespaces = NamespaceScope::All;
    shared
}

/// It takes no kind of route, so the proxies never get it.
fn parked(name: &str, hostname: &str) -> Listener {
    let mut listener = passthrough(name, hostname);
    listener.allowed_kinds = vec![("example.com".into(), "Other".into())];
    listener
}

fn with_own(own: Vec<Listener>) -> Run {
    let settings = Settings {
        claims: Claims::Told,
        policy: Policy {
            mode: Mode::Off,
            ..Policy::default()
        },
        ..settings()
    };
    let mut run = Run {
        translator: Translator::new(settings),
        standings: BTreeMap::new(),
    };
    run.put(our_class());
    run.put(gateway("one", own, NamespaceScope::All));
    run
}

fn key_of(use_: ClaimUse, hostname: &str) -> ClaimKey {
    let port = PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: Port::new(443).expect("a port"),
        transport: Transport::Tcp,
    };
    ClaimKey::new(&port, use_, &pattern(hostname))
}

fn on_gateway(tenant: &str, created: i64, hosts: &[&str]) -> Object {
    let to = parent("Gateway", Some("platform"), "one", None);
    route(tenant, "web", created, vec![to], hosts, Vec::new())
}

fn on_set(tenant: &str, of: &str, created: i64, hosts: &[&str]) -> Object {
    let to = parent("ListenerSet", Some(of), "set", None);
    route(tenant, "web", created, vec![to], hosts, Vec::new())
}

impl Run {
    fn apply(&mut self, change: Change) -> Output {
        let mut output = self.translator.apply([change]);
        self.standings.extend(output.claims.clone());
        for _ in 0..10 {
            let wished = self.translator.standings().iter();
            let wished = wished.filter_map(|(key, standing)| match standing {
                Standing::Wished(namespace) => Some((key.clone(), Some(namespace.clone()))),
                _ => None,
            });
            let told: BTreeMap<ClaimKey, Option<Arc<str>>> = wished.collect();
            if told.is_empty() {
                return output;
            }
            let later = self.translator.claims(told);
            self.standings.extend(later.claims.clone());
            output.merge(later);
        }
        panic!("wishes do not come to an end");
    }

    fn put(&mut self, object: Object) -> Output {
        self.apply(Change::Put(object))
    }

    fn remove(&mut self, kind: Kind, namespace: &str, name: &str) -> Output {
        self.apply(Change::Remove(key(kind, namespace, name)))
    }

    /// The grace is over.
    fn free(&mut self, use_: ClaimUse, hostname: &str) {
        let key = key_of(use_, hostname);
        self.apply(Change::Claims(BTreeMap::from([(key, None)])));
    }

    fn standing(&self, use_: ClaimUse, hostname: &str) -> Option<&Standing> {
        self.translator.standings().get(&key_of(use_, hostname))
    }

    fn holder(&self, use_: ClaimUse, hostname: &str) -> Option<&str> {
        let holder = self.translator.merge().holder(&key_of(use_, hostname));
        holder.map(AsRef::as_ref)
    }

    /// The hostnames that a tenant's route `web` has in the proxies' table.
    fn published(&self, tenant: &str) -> Vec<String> {
        use prost::Message as _;
        use vestibule_stream::proto::resource::Resource as Body;
        let resources = self.translator.resources().iter();
        let mut names = Vec::new();
        for (_, encoded) in resources.filter(|(key, _)| *key.name == *format!("{tenant}/web")) {
            let resource =
                vestibule_stream::proto::Resource::decode(encoded.upsert().resource.as_ref());
            if let Some(Body::TlsRoute(route)) = resource.expect("a resource").resource {
                let attached = route.attachments.into_iter().flat_map(|a| a.hostnames);
                names.extend(attached.map(|hostname| hostname.r#match));
            }
        }
        names
    }

    fn route_accepted(&self, tenant: &str) -> (Truth, Reason) {
        let Some(Status::Route(status)) =
            self.translator
                .statuses()
                .get(&ObjectKey::new(Kind::TlsRoute, tenant, "web"))
        else {
            panic!("no status")
        };
        let mut conditions = status.parents[0].conditions.iter();
        let accepted = conditions.find(|c| c.kind == ConditionType::Accepted);
        let accepted = accepted.expect("a condition");
        (accepted.truth, accepted.reason)
    }

    /// What the first listener of a tenant's set says of conflicts.
    fn conflicted(&self, tenant: &str) -> Option<(Truth, Reason)> {
        let Some(Status::Listeners(status)) =
            self.translator
                .statuses()
                .get(&ObjectKey::new(Kind::ListenerSet, tenant, "set"))
        else {
            panic!("no status")
        };
        let mut conditions = status.listeners[0].conditions.iter();
        let found = conditions.find(|c| c.kind == ConditionType::Conflicted);
        found.map(|c| (c.truth, c.reason))
    }
}

const LOST: (Truth, Reason) = (Truth::False, Reason::HostnameConflict);
const OUT: Option<(Truth, Reason)> = Some((Truth::True, Reason::HostnameConflict));

#[test]
fn what_the_gateways_own_namespace_serves_is_no_tenants() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("platform", 5, &["x.example.com"]));
    assert_eq!(
        run.holder(ClaimUse::TlsRoute, "x.example.com"),
        Some("platform")
    );
    let listener = vec![passthrough("l", "x.example.com")];
    run.put(set("a", "set", 1, "one", listener));
    assert_eq!(run.conflicted("a"), OUT);
    assert_eq!(run.published("platform"), ["x.example.com"]);
    // What a tenant holds for a route is the own namespace's once it has a route for it.
    run.put(on_gateway("a", 1, &["y.example.com"]));
    assert_eq!(run.holder(ClaimUse::TlsRoute, "y.example.com"), Some("a"));
    run.put(on_gateway(
        "platform",
        5,
        &["x.example.com", "y.example.com"],
    ));
    let revoked = run.standing(ClaimUse::TlsRoute, "y.example.com");
    assert_eq!(revoked, Some(&Standing::Revoked));
    run.free(ClaimUse::TlsRoute, "y.example.com");
    assert_eq!(
        run.holder(ClaimUse::TlsRoute, "y.example.com"),
        Some("platform")
    );
}

/// A tenant that wants its port for another protocol itself holds it for that one only.
#[test]
fn who_speaks_otherwise_lets_go() {
    let mut run = with_own(vec![]);
    run.put(set(
        "a",
        "set",
        2,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    assert_eq!(
        run.standing(ClaimUse::Tls, "x.example.com"),
        Some(&Standing::Kept)
    );
    let plain = listener("l", 443, Protocol::Http, "x.example.com", None);
    run.put(set("a", "older", 1, "one", vec![plain]));
    assert_eq!(
        run.standing(ClaimUse::Http, "x.example.com"),
        Some(&Standing::Kept)
    );
    assert_eq!(
        run.standing(ClaimUse::Tls, "x.example.com"),
        Some(&Standing::Left)
    );
}

#[test]
fn a_listener_that_is_never_served_does_not_switch_a_route_off() {
    for parked in [
        parked("l", "x.example.com"),
        passthrough("l", "x.example.com"),
    ] {
        let mut run = with_own(vec![shared()]);
        run.put(on_gateway("a", 5, &["x.example.com"]));
        assert_eq!(run.holder(ClaimUse::TlsRoute, "x.example.com"), Some("a"));
        // Older in everything.
        run.put(set("b", "set", 1, "one", vec![parked]));
        run.put(on_gateway("b", 1, &["x.example.com"]));
        assert_eq!(run.published("a"), ["x.example.com"]);
        assert_eq!(run.published("b"), [""; 0]);
        assert_eq!(run.route_accepted("b"), LOST);
        assert_eq!(run.conflicted("b"), OUT);
        assert_eq!(run.holder(ClaimUse::Tls, "x.example.com"), None);
        assert_eq!(
            run.standing(ClaimUse::TlsRoute, "x.example.com"),
            Some(&Standing::Kept)
        );
        // Who lets go is followed, after the grace.
        run.remove(Kind::TlsRoute, "a", "web");
        assert_eq!(run.published("b"), [""; 0]);
        assert_eq!(run.conflicted("b"), OUT);
        run.free(ClaimUse::TlsRoute, "x.example.com");
        assert_eq!(run.published("b"), ["x.example.com"]);
    }
}

#[test]
fn a_parked_listener_takes_no_name_from_routes_and_gets_no_claim() {
    let mut run = with_own(vec![shared()]);
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![parked("l", "x.example.com")],
    ));
    assert_eq!(run.standing(ClaimUse::Tls, "x.example.com"), None);
    run.put(on_gateway("a", 5, &["x.example.com"]));
    assert_eq!(run.published("a"), ["x.example.com"]);
    // Unparked it is too late.
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    assert_eq!(run.conflicted("b"), OUT);
    assert_eq!(run.published("a"), ["x.example.com"]);
}

#[test]
fn a_wildcard_listener_takes_no_held_name_unless_it_is_served_inside() {
    let mut any = shared();
    any.hostname = pattern("");
    let mut run = with_own(vec![any]);
    run.put(on_gateway("a", 5, &["x.example.com", "*.other.com"]));
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![passthrough("l", "*.example.com")],
    ));
    assert_eq!(run.conflicted("b"), OUT);
    // With a listener of its own inside, the name is not concerned any more.
    run.put(set(
        "a",
        "set",
        6,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    assert_eq!(run.holder(ClaimUse::Tls, "x.example.com"), Some("a"));
    assert_eq!(run.holder(ClaimUse::Tls, "*.example.com"), Some("b"));
    // A listener inside a wildcard that a route holds is free, without grants.
    run.put(set(
        "c",
        "set",
        7,
        "one",
        vec![passthrough("l", "y.other.com")],
    ));
    assert_eq!(run.holder(ClaimUse::Tls, "y.other.com"), Some("c"));
}

#[test]
fn a_loser_does_not_lock_out_who_holds_the_name_by_a_route() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("a", 5, &["x.example.com"]));
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    run.put(set(
        "a",
        "set",
        9,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    assert_eq!(run.holder(ClaimUse::Tls, "x.example.com"), Some("a"));
    assert_eq!(
        run.conflicted("a"),
        Some((Truth::False, Reason::NoConflicts))
    );
}

#[test]
fn what_a_listener_holds_is_not_for_routes_on_a_wider_one() {
    let mut run = with_own(vec![shared()]);
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    run.put(on_gateway("a", 0, &["x.example.com"]));
    assert_eq!(run.route_accepted("a"), LOST);
    // Made anew within the grace, it is as it was.
    run.remove(Kind::ListenerSet, "b", "set");
    assert_eq!(run.published("a"), [""; 0]);
    assert_eq!(
        run.standing(ClaimUse::Tls, "x.example.com"),
        Some(&Standing::Left)
    );
    run.free(ClaimUse::Tls, "x.example.com");
    assert_eq!(run.published("a"), ["x.example.com"]);
    assert_eq!(run.route_accepted("a"), (Truth::True, Reason::Accepted));
}

#[test]
fn a_route_on_anothers_listener_does_not_keep_that_listener_out() {
    let mut run = with_own(vec![shared()]);
    run.put(on_set("a", "b", 1, &["x.example.com"]));
    let mut open = passthrough("l", "x.example.com");
    open.allowed_namespaces = NamespaceScope::All;
    run.put(set("b", "set", 1, "one", vec![open]));
    assert_eq!(run.holder(ClaimUse::Tls, "x.example.com"), Some("b"));
    assert_eq!(run.holder(ClaimUse::TlsRoute, "x.example.com"), Some("a"));
    assert_eq!(run.published("a"), ["x.example.com"]);
}

#[test]
fn what_the_gateway_speaks_is_not_settled_by_what_is_held() {
    let mut run = with_own(Vec::new());
    run.put(set(
        "b",
        "set",
        1,
        "one",
        vec![listener("l", 443, Protocol::Http, "", None)],
    ));
    assert_eq!(run.holder(ClaimUse::Http, ""), Some("b"));
    run.put(set(
        "a",
        "set",
        2,
        "one",
        vec![passthrough("l", "x.example.com")],
    ));
    assert_eq!(
        run.conflicted("a"),
        Some((Truth::True, Reason::ProtocolConflict))
    );
    run.put(gateway("one", vec![shared()], NamespaceScope::All));
    assert_eq!(run.holder(ClaimUse::Tls, "x.example.com"), Some("a"));
    assert_eq!(
        run.conflicted("a"),
        Some((Truth::False, Reason::NoConflicts))
    );
    assert_eq!(run.standing(ClaimUse::Http, ""), Some(&Standing::Revoked));
}

#[test]
fn routes_contend_for_what_their_hostnames_and_the_listeners_have_in_common() {
    let mut own = passthrough("own", "a.example.com");
    own.allowed_namespaces = NamespaceScope::All;
    let mut run = with_own(vec![own.clone()]);
    // Whoever was there first, however it is written; a route without hostnames has its listener's.
    for first in [&["*.example.com"][..], &[""]] {
        run.put(on_gateway("a", 5, first));
        assert_eq!(run.holder(ClaimUse::TlsRoute, "a.example.com"), Some("a"));
        run.put(on_gateway("b", 1, &["a.example.com"]));
        assert_eq!(run.published("a"), ["a.example.com"]);
        assert_eq!(run.published("b"), [""; 0]);
        assert_eq!(run.route_accepted("b"), LOST);
        run.remove(Kind::TlsRoute, "b", "web");
    }
    // A grant for what is left is enough to hold it.
    run.put(Object::HostnameGrant(hostname_grant(
        "a",
        &["a"],
        &["a.example.com"],
    )));
    run.put(on_gateway("a", 5, &["*.example.com"]));
    assert_eq!(run.published("a"), ["a.example.com"]);
    run.remove(Kind::TlsRoute, "a", "web");
    assert_eq!(
        run.standing(ClaimUse::TlsRoute, "a.example.com"),
        Some(&Standing::Left)
    );
    run.put(Object::HostnameGrant(hostname_grant(
        "a",
        &["a"],
        &["b.example.com"],
    )));
    assert_eq!(
        run.standing(ClaimUse::TlsRoute, "a.example.com"),
        Some(&Standing::Revoked)
    );
}

#[test]
fn a_listener_of_the_gateway_that_lets_the_holders_routes_in_no_more_takes_the_name() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("a", 5, &["x.example.com"]));
    let own = passthrough("own", "x.example.com");
    run.put(gateway("one", vec![shared(), own], NamespaceScope::All));
    assert_eq!(
        run.standing(ClaimUse::TlsRoute, "x.example.com"),
        Some(&Standing::Revoked)
    );
}

#[test]
fn each_lost_hostname_is_told_by_its_place_in_the_spec() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("a", 5, &["x.example.com", "y.example.com"]));
    let mut object = on_gateway("b", 1, &["z.example.com", "x.example.com", "y.example.com"]);
    // The second one in the spec could not be read.
    let Object::TlsRoute(route) = &mut object else {
        unreachable!()
    };
    route.hostnames[1].0 = 2;
    route.hostnames[2].0 = 3;
    run.put(object);
    let findings = &run.translator.findings()[&key(Kind::TlsRoute, "b", "web")];
    let fields: Vec<&str> = findings.iter().map(|f| f.field.as_str()).collect();
    assert_eq!(fields, ["spec.hostnames[2]", "spec.hostnames[3]"]);
}

#[test]
fn a_route_waits_until_its_name_is_recorded() {
    let mut run = with_own(vec![shared()]);
    run.translator
        .apply([Change::Put(on_gateway("a", 5, &["x.example.com"]))]);
    let web = key(Kind::TlsRoute, "a", "web");
    let waits = |run: &Run| run.translator.route_needs(&web, 0).waits.is_some();
    assert!(waits(&run));
    let before = run.translator.statuses()[&web].clone();
    let output = run.apply(Change::Claims(BTreeMap::new()));
    assert!(!waits(&run));
    assert_eq!(run.translator.route_needs(&web, 0).own.len(), 1);
    // Its status is written once.
    assert_eq!(run.translator.statuses()[&web], before);
    assert!(!output.statuses.contains_key(&web));
}

#[test]
fn a_listener_that_gets_a_wider_name_only_waits() {
    use vestibule_stream::proto::resource::Resource as Body;
    let mut run = with_own(vec![passthrough("own", "own.example.org")]);
    let edit = |hostname| set("a", "set", 1, "one", vec![passthrough("l", hostname)]);
    run.put(edit("x.example.com"));
    let key = ResourceKey::new(ResourceKind::Listener, "ListenerSet/a/set/l");
    let Some(Body::Listener(old)) = run.translator.resources()[&key].decode() else {
        panic!("a listener")
    };
    for (hostname, waits) in [("*.example.com", true), ("y.example.com", false)] {
        run.translator.apply([Change::Put(edit(hostname))]);
        // Its name is not recorded yet.
        assert!(!run.translator.resources().contains_key(&key));
        assert_eq!(
            run.translator.listener_waits(&key, &old),
            waits,
            "{hostname}"
        );
    }
    run.remove(Kind::ListenerSet, "a", "set");
    assert!(!run.translator.listener_waits(&key, &old));
}
