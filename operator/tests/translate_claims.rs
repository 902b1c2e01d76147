//! Names that belong to one namespace on a Gateway, and what its ports speak: who has which, case by case.

#[path = "translate_claims/mistakes.rs"]
mod mistakes;
#[path = "translate_claims/ports.rs"]
mod ports;
#[path = "translate_claims/routes.rs"]
mod routes;
#[path = "translate_claims/sharing.rs"]
mod sharing;

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::gateway::{GatewayClass, Listener};
use vestibule_model::hostname::Hostname;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::protocol::{Group, Port, Protocol, Transport};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{
    Change, ClaimMode, ClaimState, Output, Settings, Status, Translator,
};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::resource::Resource as Body;
use vestibule_stream::{ResourceKey, ResourceKind};

/// A translator whose wishes come true at once, as if they were written.
struct Run {
    translator: Translator,
}

fn open(mut listener: Listener) -> Listener {
    listener.allowed_namespaces = NamespaceScope::All;
    listener
}

fn shared() -> Listener {
    open(passthrough("shared", "*.example.com"))
}

/// The Gateway's own port 80, for everybody's routes.
fn plain() -> Listener {
    open(listener("plain", 80, Protocol::Http, "", None))
}

/// It takes no kind of route, so the proxies never get it.
fn parked(name: &str, hostname: &str) -> Listener {
    let mut listener = passthrough(name, hostname);
    listener.allowed_kinds = vec![("example.com".into(), "Other".into())];
    listener
}

fn with_own(own: Vec<Listener>) -> Run {
    let settings = Settings {
        claims: ClaimMode::Recorded,
        policy: Policy {
            mode: Mode::Off,
            ..settings().policy
        },
        ..settings()
    };
    let mut run = Run {
        translator: Translator::new(settings),
    };
    run.put(our_class());
    run.put(gateway("one", own, NamespaceScope::All));
    run
}

fn names(hostname: &str) -> ClaimKey {
    ClaimKey::names(&ObjectName::new("platform", "one"), &pattern(hostname))
}

fn port(number: u16) -> ClaimKey {
    ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: Port::new(number).expect("a port"),
        transport: Transport::Tcp,
    })
}

fn on_gateway(tenant: &str, created: i64, hosts: &[&str]) -> Object {
    let to = parent("Gateway", Some("platform"), "one", None);
    route(tenant, "web", created, vec![to], hosts, Vec::new())
}

fn http_on_gateway(tenant: &str, created: i64, hosts: &[&str]) -> Object {
    http_by_rule(tenant, created, hosts, Rule::Plain)
}

/// The same with a mistake for which it is refused.
fn mistaken_on_gateway(tenant: &str, created: i64, hosts: &[&str]) -> Object {
    http_by_rule(tenant, created, hosts, Rule::Refused)
}

fn http_by_rule(tenant: &str, created: i64, hosts: &[&str], rule: Rule) -> Object {
    let to = parent("Gateway", Some("platform"), "one", None);
    http_route((tenant, "web", created), vec![to], hosts, &[rule], &[])
}

fn on_set(tenant: &str, of: &str, created: i64, hosts: &[&str]) -> Object {
    let to = parent("ListenerSet", Some(of), "set", None);
    route(tenant, "web", created, vec![to], hosts, Vec::new())
}

fn one(tenant: &str, created: i64, listener: Listener) -> Object {
    set(tenant, "set", created, "one", vec![listener])
}

impl Run {
    fn apply(&mut self, change: Change) -> Output {
        let mut output = self.translator.apply([change]);
        for _ in 0..10 {
            let told = self.translator.claim_states().iter();
            let told = told.filter_map(|(key, state)| {
                let holder = match state {
                    ClaimState::Wanted(holder) => Some(holder.clone()),
                    ClaimState::Passed(to) => {
                        let before = self.translator.merge().holder(key)?;
                        Some(Holder {
                            namespace: to.clone(),
                            ..before
                        })
                    }
                    // The name is taken away at once, a port only where something else waits for it.
                    ClaimState::Revoked if key.port_key().is_some() => None,
                    _ => return None,
                };
                Some((key.clone(), holder))
            });
            let told: BTreeMap<ClaimKey, Option<Holder>> = told.collect();
            if told.is_empty() {
                return output;
            }
            output.merge(self.translator.apply([Change::Claims(told)]));
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
    fn free(&mut self, hostname: &str) {
        self.apply(Change::Claims(BTreeMap::from([(names(hostname), None)])));
    }

    fn state(&self, key: &ClaimKey) -> Option<&ClaimState> {
        self.translator.claim_states().get(key)
    }

    fn holder(&self, hostname: &str) -> Option<String> {
        let holder = self.translator.merge().holder(&names(hostname));
        holder.map(|holder| holder.namespace.to_string())
    }

    /// The holder of a port, and its protocol.
    fn speaks(&self, number: u16) -> Option<(String, Group)> {
        let holder = self.translator.merge().holder(&port(number))?;
        Some((holder.namespace.to_string(), holder.speaks?))
    }

    /// The hostnames that a tenant's route `web` has in the proxies' table.
    fn published(&self, tenant: &str) -> Vec<String> {
        let mut names = Vec::new();
        let resources = self.translator.resources().iter();
        for (_, encoded) in resources.filter(|(key, _)| *key.name == *format!("{tenant}/web")) {
            let attachments = match encoded.decode() {
                Some(Body::TlsRoute(route)) => route.attachments,
                Some(Body::HttpRoute(route)) => route.attachments,
                _ => continue,
            };
            let attached = attachments.into_iter().flat_map(|a| a.hostnames);
            names.extend(attached.map(|hostname| hostname.r#match));
        }
        names
    }

    /// Whether the proxies are told that a tenant's HTTPRoute serves its names beside their owner.
    fn shares(&self, tenant: &str) -> bool {
        let key = ResourceKey::new(ResourceKind::HttpRoute, format!("{tenant}/web"));
        let held = self.translator.resources().get(&key);
        let Some(Body::HttpRoute(route)) = held.and_then(vestibule_stream::Encoded::decode) else {
            return false;
        };
        let mut attached = route.attachments.iter().flat_map(|a| &a.hostnames);
        attached.any(|hostname| hostname.shared)
    }

    /// The paths that the proxies keep a tenant's HTTPRoute to, for each of its hostnames.
    fn kept_to(&self, tenant: &str) -> Vec<Vec<String>> {
        let key = ResourceKey::new(ResourceKind::HttpRoute, format!("{tenant}/web"));
        let held = self.translator.resources().get(&key);
        let Some(Body::HttpRoute(route)) = held.and_then(vestibule_stream::Encoded::decode) else {
            return Vec::new();
        };
        let attached = route.attachments.into_iter().flat_map(|a| a.hostnames);
        attached.map(|hostname| hostname.paths).collect()
    }

    /// Whom the proxies are told that a pattern belongs to.
    fn owner(&self, hostname: &str) -> Option<String> {
        let key = ResourceKey::new(
            ResourceKind::HostnameOwner,
            format!("platform/one/{hostname}"),
        );
        match self.translator.resources().get(&key)?.decode()? {
            Body::HostnameOwner(owner) => Some(owner.tenant),
            other => panic!("{other:?}"),
        }
    }

    fn accepted(&self, kind: Kind, tenant: &str) -> (Truth, Reason) {
        let Some(Status::Route(status)) = self
            .translator
            .statuses()
            .get(&ObjectKey::new(kind, tenant, "web"))
        else {
            panic!("no status")
        };
        let mut conditions = status.parents[0].conditions.iter();
        let accepted = conditions.find(|c| c.kind == ConditionType::Accepted);
        let accepted = accepted.expect("a condition");
        (accepted.truth, accepted.reason)
    }

    fn route_accepted(&self, tenant: &str) -> (Truth, Reason) {
        self.accepted(Kind::TlsRoute, tenant)
    }

    fn http_accepted(&self, tenant: &str) -> (Truth, Reason) {
        self.accepted(Kind::HttpRoute, tenant)
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
const ACCEPTED: (Truth, Reason) = (Truth::True, Reason::Accepted);
const OUT: Option<(Truth, Reason)> = Some((Truth::True, Reason::HostnameConflict));
const FINE: Option<(Truth, Reason)> = Some((Truth::False, Reason::NoConflicts));
const PROTOCOL: Option<(Truth, Reason)> = Some((Truth::True, Reason::ProtocolConflict));

/// The attacks of issue 14: another team's name by an HTTPRoute on the Gateway's own port 80, or by a listener on
/// another port, by whatever is older than what the name's holder has.
#[test]
fn a_name_is_one_namespaces_on_every_port_and_for_every_kind_of_route() {
    let mut run = with_own(vec![plain(), shared()]);
    run.put(one("a", 5, passthrough("l", "x.example.com")));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));

    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.http_accepted("b"), LOST);
    assert_eq!(run.published("b"), [""; 0]);
    run.put(on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.route_accepted("b"), LOST);
    for attack in [
        listener("l", 80, Protocol::Http, "x.example.com", None),
        listener("l", 8080, Protocol::Http, "x.example.com", None),
        passthrough("l", "x.example.com"),
        listener(
            "l",
            8443,
            Protocol::Tls,
            "x.example.com",
            Some(Tls::Passthrough),
        ),
    ] {
        run.put(one("b", 1, attack));
        assert_eq!(run.conflicted("b"), OUT);
    }
    // A certificate for it is for its holder alone, whatever the port.
    let name = Hostname::parse("x.example.com").expect("a hostname");
    let of = run
        .translator
        .merge()
        .names(&ObjectName::new("platform", "one"));
    assert_eq!(of.and_then(|of| of.owner(&name)).as_deref(), Some("a"));

    // A wildcard and no hostname at all do not include it: the proxies know its owner.
    for wide in ["*.example.com", ""] {
        run.put(http_on_gateway("b", 1, &[wide]));
        assert_eq!(run.http_accepted("b"), ACCEPTED, "{wide}");
        assert_eq!(run.owner(wide).as_deref(), Some("b"), "{wide}");
        assert_eq!(run.owner("x.example.com").as_deref(), Some("a"), "{wide}");
    }

    // During the grace it is still its holder's.
    run.remove(Kind::ListenerSet, "a", "set");
    assert_eq!(
        run.state(&names("x.example.com")),
        Some(&ClaimState::Unused)
    );
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.http_accepted("b"), LOST);
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));
    run.free("x.example.com");
    assert_eq!(run.http_accepted("b"), ACCEPTED);
    assert_eq!(run.owner("x.example.com").as_deref(), Some("b"));
}

#[test]
fn hostname_held_by_an_http_route_is_refused_to_listeners_of_others() {
    let mut run = with_own(vec![plain()]);
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    assert_eq!(run.published("a"), ["x.example.com"]);
    run.put(one("b", 1, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("b"), OUT);
    run.put(one("a", 9, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("a"), FINE);
    // The listener keeps the name when the route goes.
    run.remove(Kind::HttpRoute, "a", "web");
    assert_eq!(run.state(&names("x.example.com")), Some(&ClaimState::Used));
}

#[test]
fn of_two_routes_without_hostnames_one_has_every_other_name() {
    let mut run = with_own(vec![plain()]);
    run.put(http_on_gateway("a", 5, &[]));
    run.put(http_on_gateway("b", 1, &[]));
    assert_eq!(run.http_accepted("a"), ACCEPTED);
    assert_eq!(run.http_accepted("b"), LOST);
    assert_eq!(run.owner("").as_deref(), Some("a"));
}

#[test]
fn hostname_taken_by_an_admin_goes_to_another_claimant_or_stays_if_none() {
    let mut run = with_own(vec![plain()]);
    run.put(http_on_gateway("a", 1, &["x.example.com"]));
    assert_eq!(run.published("a"), ["x.example.com"]);
    let take = |run: &mut Run, from: &str| {
        let taken = BTreeMap::from([(names("x.example.com"), Some(from.into()))]);
        run.apply(Change::Taken(taken));
    };
    take(&mut run, "a");
    assert_eq!(run.published("a"), ["x.example.com"]);
    assert_eq!(run.state(&names("x.example.com")), Some(&ClaimState::Used));
    // It is taken, and the record says so until it says who has it next. The former holder is older, and comes last.
    run.put(http_on_gateway("b", 9, &["x.example.com"]));
    let state = run.state(&names("x.example.com")).cloned();
    assert_eq!(state, Some(ClaimState::Revoked));
    assert_eq!(run.published("b"), [""; 0]);
    run.free("x.example.com");
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.http_accepted("a"), LOST);
    assert_eq!(run.published("a"), [""; 0]);
    // A command that comes late does not affect the next holder.
    take(&mut run, "a");
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.http_accepted("a"), LOST);
}

#[test]
fn a_namespace_holds_no_more_names_than_it_may() {
    let mut run = with_own(vec![plain()]);
    let limited = |most: u32| {
        let mut grant = hostname_grant("some", &["a", "b"], &["*"]);
        grant.limits.hostnames = Some(most);
        Object::HostnameGrant(Arc::new(grant))
    };
    run.put(limited(2));
    run.put(http_on_gateway("a", 1, &["1.example.com", "2.example.com"]));
    assert_eq!(run.published("a").len(), 2);
    let three = ["1.example.com", "2.example.com", "3.example.com"];
    run.put(http_on_gateway("a", 1, &three));
    assert_eq!(run.published("a"), three[..2]);
    assert_eq!(run.http_accepted("a"), ACCEPTED);
    // Nobody holds the names that it may not hold, so others can have them.
    run.put(http_on_gateway("b", 2, &["3.example.com"]));
    assert_eq!(run.published("b"), ["3.example.com"]);
    // A name that it lets go of makes room.
    run.put(http_on_gateway("a", 1, &["1.example.com", "4.example.com"]));
    assert_eq!(run.published("a"), ["1.example.com"]);
    run.free("2.example.com");
    assert_eq!(run.published("a"), ["1.example.com", "4.example.com"]);
    run.put(http_on_gateway("a", 1, &["5.example.com"]));
    assert_eq!(
        run.http_accepted("a"),
        (Truth::False, Reason::QuotaExceeded)
    );
    // A lower limit takes no name away.
    run.put(http_on_gateway("a", 1, &["1.example.com", "4.example.com"]));
    run.put(limited(1));
    assert_eq!(run.published("a"), ["1.example.com", "4.example.com"]);
}

#[test]
fn proxies_forget_whose_names_are_with_their_gateway() {
    let mut run = with_own(vec![shared()]);
    run.put(one("a", 5, passthrough("l", "x.example.com")));
    run.put(on_gateway("b", 5, &["y.example.com"]));
    let owners = |run: &Run| {
        let all = ["*.example.com", "x.example.com", "y.example.com"];
        all.map(|names| run.owner(names).unwrap_or_default())
    };
    assert_eq!(owners(&run), ["platform", "a", "b"]);
    run.remove(Kind::Gateway, "platform", "one");
    assert_eq!(run.translator.resources().len(), 0);
    run.put(gateway("one", vec![shared()], NamespaceScope::All));
    assert_eq!(owners(&run), ["platform", "a", "b"]);
    // Another controller's class.
    run.put(Object::GatewayClass(GatewayClass {
        controller: "example.com/other".into(),
        ..class_of_ours()
    }));
    assert_eq!(run.translator.resources().len(), 0);
}

fn class_of_ours() -> GatewayClass {
    match our_class() {
        Object::GatewayClass(class) => class,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostname_that_the_gateways_own_namespace_serves_is_held_by_no_tenant() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("platform", 5, &["x.example.com"]));
    assert_eq!(run.holder("x.example.com"), None);
    assert_eq!(run.owner("x.example.com").as_deref(), Some("platform"));
    run.put(one("a", 1, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("a"), OUT);
    assert_eq!(run.published("platform"), ["x.example.com"]);
    // What a tenant holds is the own namespace's once it has a route for it.
    run.put(on_gateway("a", 1, &["y.example.com"]));
    assert_eq!(run.holder("y.example.com").as_deref(), Some("a"));
    run.put(on_gateway(
        "platform",
        5,
        &["x.example.com", "y.example.com"],
    ));
    assert_eq!(
        run.state(&names("y.example.com")),
        Some(&ClaimState::Revoked)
    );
    assert_eq!(run.route_accepted("a"), LOST);
    assert_eq!(run.owner("y.example.com").as_deref(), Some("platform"));
    run.free("y.example.com");
    assert_eq!(run.holder("y.example.com"), None);
}

/// A grant for TCP is for `*`, because TCP has no names. It gives no hostname.
#[test]
fn a_grant_for_bytes_does_not_keep_a_name_that_is_withdrawn() {
    let mut run = with_own(vec![plain()]);
    let grant = |name: &str, to: &'static str| hostname_grant(name, &[to], &["x.example.com"]);
    let mut raw = hostname_grant("raw", &["a"], &["*"]);
    raw.protocols.insert(Protocol::Tcp);
    for grant in [grant("a", "a"), grant("b", "b"), raw] {
        run.put(Object::HostnameGrant(Arc::new(grant)));
    }
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    run.remove(Kind::HostnameGrant, "platform", "a");
    let state = run.state(&names("x.example.com"));
    assert_eq!(state, Some(&ClaimState::Revoked));
}

#[test]
fn a_wildcard_stands_beside_names_inside_it_and_closes_the_others() {
    let mut run = with_own(vec![open(passthrough("any", ""))]);
    run.put(on_gateway("a", 5, &["x.example.com", "*.other.com"]));
    run.put(one("b", 1, passthrough("l", "*.example.com")));
    assert_eq!(run.conflicted("b"), FINE);
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));
    run.put(one("a", 6, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("a"), FINE);
    assert_eq!(run.holder("*.example.com").as_deref(), Some("b"));
    // A name inside a wildcard that another tenant holds is not free.
    run.put(one("c", 7, passthrough("l", "y.other.com")));
    assert_eq!(run.conflicted("c"), OUT);
    run.put(one("c", 7, passthrough("l", "*.com")));
    let wide = Some((Truth::False, Reason::PublicSuffixWildcard));
    let status = run
        .translator
        .statuses()
        .get(&key(Kind::ListenerSet, "c", "set"));
    let Some(Status::Listeners(status)) = status else {
        panic!("no status")
    };
    let mut conditions = status.listeners[0].conditions.iter();
    let accepted = conditions.find(|c| c.kind == ConditionType::Accepted);
    assert_eq!(accepted.map(|c| (c.truth, c.reason)), wide);
}

#[test]
fn a_listener_of_the_gateway_that_lets_the_holders_routes_in_no_more_takes_the_name() {
    let mut run = with_own(vec![shared()]);
    run.put(on_gateway("a", 5, &["x.example.com"]));
    let own = passthrough("own", "x.example.com");
    run.put(gateway("one", vec![shared(), own], NamespaceScope::All));
    assert_eq!(
        run.state(&names("x.example.com")),
        Some(&ClaimState::Revoked)
    );
}

#[test]
fn a_listener_that_gets_a_wider_name_only_waits() {
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
