//! Names that belong to one namespace on a Gateway, and what its ports speak: who has which, case by case.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{GatewayClass, Listener};
use vestibule_model::hostname::Hostname;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::http::{HttpMatch, PathMatch};
use vestibule_model::key::{Kind, ObjectKey, ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::path::PathPrefix;
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
fn what_an_http_route_holds_is_no_listeners() {
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
fn what_an_admin_takes_goes_to_whoever_else_asks_and_stays_if_nobody_does() {
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
        Object::HostnameGrant(grant)
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
fn a_shared_name_is_served_by_the_routes_of_those_who_share_it() {
    let mut run = with_own(vec![plain(), shared()]);
    let mut all = hostname_grant("all", &["a"], &["*.example.com"]);
    run.put(Object::HostnameGrant(all.clone()));
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(
        run.http_accepted("b"),
        (Truth::False, Reason::HostnameNotOwned)
    );
    let mut share = hostname_grant("share", &["b"], &[]);
    share.shared = BTreeSet::from([Hostname::parse("x.example.com").expect("a hostname")]);
    run.put(Object::HostnameGrant(share));
    assert_eq!(run.http_accepted("b"), ACCEPTED);
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!((run.shares("a"), run.shares("b")), (false, true));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));
    // Neither for listeners nor for other routes, and nobody holds anything by it.
    run.put(on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(
        run.route_accepted("b"),
        (Truth::False, Reason::HostnameNotOwned)
    );
    run.put(one("b", 1, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("b"), None);
    all.hostnames = Vec::new();
    run.put(Object::HostnameGrant(all));
    assert_eq!(
        run.state(&names("x.example.com")),
        Some(&ClaimState::Revoked)
    );
    run.free("x.example.com");
    assert_eq!(run.holder("x.example.com"), None);
    assert_eq!(run.published("b"), ["x.example.com"]);
    // When the sharing ends, the name is lost at once.
    run.remove(Kind::HostnameGrant, "platform", "share");
    assert_eq!(run.published("b"), [""; 0]);
}

/// An HTTPRoute on the Gateway with these prefixes.
fn http_matching(tenant: &str, created: i64, hosts: &[&str], prefixes: &[&str]) -> Object {
    let Object::HttpRoute(mut route) = http_on_gateway(tenant, created, hosts) else {
        panic!("an HTTPRoute")
    };
    route.rules[0].matches = prefixes
        .iter()
        .map(|prefix| HttpMatch {
            path: PathMatch::Prefix((*prefix).into()),
            ..HttpMatch::default()
        })
        .collect();
    Object::HttpRoute(route)
}

fn shares_paths(name: &str, tenant: &'static str, paths: &[&str]) -> HostnameGrant {
    let paths = paths
        .iter()
        .map(|path| PathPrefix::parse(path).expect("a path"));
    let host = Hostname::parse("x.example.com").expect("a hostname");
    let mut grant = hostname_grant(name, &[tenant], &[]);
    grant.shared_paths = BTreeMap::from([(host, paths.collect())]);
    grant
}

#[test]
fn a_route_is_kept_to_the_paths_that_are_shared_with_its_namespace() {
    let mut run = with_own(vec![plain(), shared()]);
    run.put(Object::HostnameGrant(hostname_grant(
        "all",
        &["a"],
        &["*.example.com"],
    )));
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(Object::HostnameGrant(shares_paths(
        "share",
        "b",
        &["/api", "/docs"],
    )));
    // It is older than the holder's, and asks for everything.
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    let refused = (Truth::False, Reason::HostnameNotOwned);
    assert_eq!(run.http_accepted("b"), refused);
    assert_eq!(run.published("b"), [""; 0]);
    run.put(http_matching(
        "b",
        1,
        &["x.example.com"],
        &["/api/v1", "/docs"],
    ));
    assert_eq!(run.http_accepted("b"), ACCEPTED);
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.kept_to("b"), [["/api", "/docs"]]);
    // Older proxies take this for a name that is not shared at all.
    assert!(!run.shares("b"));
    assert_eq!(run.kept_to("a"), [[""; 0]]);
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    // An edit of the grant is an edit of the routes.
    run.put(Object::HostnameGrant(shares_paths(
        "share",
        "b",
        &["/api", "/docs/v2"],
    )));
    assert_eq!(run.http_accepted("b"), refused);
    assert_eq!(run.published("b"), [""; 0]);
    run.put(Object::HostnameGrant(shares_paths(
        "share",
        "b",
        &["/api/v1", "/docs"],
    )));
    assert_eq!(run.kept_to("b"), [["/api/v1", "/docs"]]);
    // Other hostnames of a route stay.
    run.put(Object::HostnameGrant(hostname_grant(
        "more",
        &["b"],
        &["b.example.com"],
    )));
    run.put(http_matching(
        "b",
        1,
        &["b.example.com", "x.example.com"],
        &["/"],
    ));
    assert_eq!(run.http_accepted("b"), ACCEPTED);
    assert_eq!(run.published("b"), ["b.example.com"]);
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    run.put(http_matching(
        "b",
        1,
        &["b.example.com", "x.example.com"],
        &["/docs"],
    ));
    assert_eq!(run.published("b"), ["b.example.com", "x.example.com"]);
    assert_eq!(run.kept_to("b"), [vec![], vec!["/api/v1", "/docs"]]);
    // The sharing ends, and the name is lost at once.
    run.remove(Kind::HostnameGrant, "platform", "share");
    assert_eq!(run.published("b"), ["b.example.com"]);
}

#[test]
fn who_holds_a_name_is_kept_to_nothing_and_who_lost_it_is_again() {
    let mut run = with_own(vec![plain(), shared()]);
    let mut given = hostname_grant("given", &["b"], &["x.example.com"]);
    run.put(Object::HostnameGrant(given.clone()));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    run.put(Object::HostnameGrant(shares_paths("share", "b", &["/api"])));
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    // A match inside would be in order either way.
    run.put(http_matching("b", 1, &["x.example.com"], &["/api"]));
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    given.hostnames = Vec::new();
    run.put(Object::HostnameGrant(given.clone()));
    assert_eq!(run.kept_to("b"), [["/api"]]);
    run.free("x.example.com");
    assert_eq!(run.kept_to("b"), [["/api"]]);
    assert_eq!(run.holder("x.example.com"), None);
    // It was granted again; nobody becomes a holder by a route that shares.
    given.hostnames = vec![pattern("x.example.com")];
    run.put(Object::HostnameGrant(given));
    assert_eq!(run.holder("x.example.com"), None);
    assert_eq!(run.kept_to("b"), [["/api"]]);
    // A listener holds it.
    run.put(one("b", 1, passthrough("l", "x.example.com")));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    // Recorded for somebody else, as the leader may tell.
    run.remove(Kind::ListenerSet, "b", "set");
    run.free("x.example.com");
    assert_eq!(run.kept_to("b"), [["/api"]]);
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

/// Where nobody keeps a record, as in a check of manifests.
#[test]
fn without_a_record_a_shared_name_is_served_as_well() {
    let mut share = hostname_grant("share", &["b"], &[]);
    share.shared = BTreeSet::from([Hostname::parse("x.example.com").expect("a hostname")]);
    let translator = translated([
        our_class(),
        gateway("one", vec![plain()], NamespaceScope::All),
        Object::HostnameGrant(hostname_grant("all", &["a"], &["*.example.com"])),
        Object::HostnameGrant(share),
        http_on_gateway("a", 5, &["x.example.com"]),
        http_on_gateway("b", 1, &["x.example.com"]),
    ]);
    let run = Run { translator };
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));
    assert_eq!((run.shares("a"), run.shares("b")), (false, true));
}

#[test]
fn what_a_port_speaks_is_held_as_long_as_anybody_is_there() {
    let mut run = with_own(Vec::new());
    run.put(one("a", 5, passthrough("l", "a.example.com")));
    assert_eq!(run.speaks(443), Some(("a".into(), Group::Tls)));
    run.put(one("b", 6, passthrough("l", "b.example.com")));
    // Older, and it speaks something else.
    run.put(one(
        "c",
        1,
        listener("l", 443, Protocol::Http, "c.example.com", None),
    ));
    assert_eq!(
        run.conflicted("c"),
        Some((Truth::True, Reason::ProtocolConflict))
    );
    assert_eq!(run.conflicted("b"), FINE);
    run.remove(Kind::ListenerSet, "a", "set");
    assert_eq!(run.speaks(443), Some(("b".into(), Group::Tls)));
    assert_eq!(run.state(&port(443)), Some(&ClaimState::Used));
    assert_eq!(
        run.conflicted("c"),
        Some((Truth::True, Reason::ProtocolConflict))
    );
    run.remove(Kind::ListenerSet, "b", "set");
    assert_eq!(run.state(&port(443)), Some(&ClaimState::Unused));
    assert_eq!(
        run.conflicted("c"),
        Some((Truth::True, Reason::ProtocolConflict))
    );
    run.apply(Change::Claims(BTreeMap::from([(port(443), None)])));
    assert_eq!(run.speaks(443), Some(("c".into(), Group::Http)));
    assert_eq!(run.conflicted("c"), FINE);
}

/// Not even its holder changes what a port speaks. So nobody who is alone there for a moment, while a neighbour deletes
/// its objects and makes them again, gets the neighbour's connections as raw bytes, or locks it out.
#[test]
fn what_a_port_speaks_changes_only_after_the_grace() {
    let mut run = with_own(vec![]);
    let tls = |host| Listener {
        port: NonZeroU16::new(9443),
        ..passthrough("l", host)
    };
    run.put(one("a", 2, tls("x.example.com")));
    run.put(one("b", 1, tls("y.example.com")));
    assert_eq!(run.speaks(9443), Some(("a".into(), Group::Tls)));
    run.remove(Kind::ListenerSet, "a", "set");
    assert_eq!(run.speaks(9443), Some(("b".into(), Group::Tls)));
    for taken in [raw(9443), web(9443, "y.example.com")] {
        run.put(one("b", 1, taken));
        assert_eq!(run.state(&port(9443)), Some(&ClaimState::Unused));
        assert_eq!(
            run.conflicted("b"),
            Some((Truth::True, Reason::ProtocolConflict))
        );
    }
    // The neighbour comes back within the grace, and finds the port as it was.
    run.put(one("a", 3, tls("x.example.com")));
    assert_eq!(run.speaks(9443), Some(("a".into(), Group::Tls)));
    assert_eq!(run.conflicted("a"), FINE);
    // After the grace of an unused port, what it speaks is given out anew.
    run.remove(Kind::ListenerSet, "a", "set");
    assert_eq!(run.state(&port(9443)), Some(&ClaimState::Unused));
    run.apply(Change::Claims(BTreeMap::from([(port(9443), None)])));
    assert_eq!(run.speaks(9443), Some(("b".into(), Group::Http)));
    assert_eq!(run.conflicted("b"), FINE);
}

#[test]
fn what_the_gateways_own_namespace_serves_is_no_tenants() {
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

#[test]
fn a_listener_that_is_never_served_asks_for_nothing() {
    let mut run = with_own(vec![shared()]);
    run.put(one("b", 1, parked("l", "x.example.com")));
    assert_eq!(run.state(&names("x.example.com")), None);
    run.put(on_gateway("a", 5, &["x.example.com"]));
    assert_eq!(run.published("a"), ["x.example.com"]);
    // Unparked it is too late.
    run.put(one("b", 1, passthrough("l", "x.example.com")));
    assert_eq!(run.conflicted("b"), OUT);
    assert_eq!(run.published("a"), ["x.example.com"]);
    run.put(on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.route_accepted("b"), LOST);
    // When a namespace lets go, the next one follows after the grace.
    run.remove(Kind::TlsRoute, "a", "web");
    assert_eq!(run.published("b"), [""; 0]);
    assert_eq!(run.conflicted("b"), OUT);
    run.free("x.example.com");
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.conflicted("b"), FINE);
}

#[test]
fn a_mistake_in_an_edit_gives_no_name_to_who_waits_for_it() {
    let mut run = with_own(vec![plain()]);
    // What is mistaken from the beginning asks for nothing.
    run.put(mistaken_on_gateway("a", 1, &["x.example.com"]));
    assert_eq!(run.state(&names("x.example.com")), None);

    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.http_accepted("b"), LOST);
    run.put(mistaken_on_gateway("a", 5, &["x.example.com"]));
    assert_eq!(run.published("a"), [""; 0]);
    assert_eq!(run.state(&names("x.example.com")), Some(&ClaimState::Used));
    assert_eq!(run.http_accepted("b"), LOST);
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    assert_eq!(run.published("a"), ["x.example.com"]);

    // The same for a listener.
    let mut mistaken = passthrough("l", "y.example.com");
    run.put(one("a", 5, mistaken.clone()));
    assert_eq!(run.holder("y.example.com").as_deref(), Some("a"));
    let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
    mistaken.findings.push(mistake);
    run.put(one("a", 5, mistaken));
    assert_eq!(run.state(&names("y.example.com")), Some(&ClaimState::Used));
    run.put(http_on_gateway("b", 1, &["y.example.com"]));
    assert_eq!(run.http_accepted("b"), LOST);

    // With the last object the grace begins.
    run.remove(Kind::ListenerSet, "a", "set");
    assert_eq!(
        run.state(&names("y.example.com")),
        Some(&ClaimState::Unused)
    );
    run.free("y.example.com");
    assert_eq!(run.published("b"), ["y.example.com"]);
}

const PROTOCOL: Option<(Truth, Reason)> = Some((Truth::True, Reason::ProtocolConflict));

fn raw(number: u16) -> Listener {
    listener("l", number, Protocol::Tcp, "", None)
}

fn web(number: u16, hostname: &str) -> Listener {
    listener("l", number, Protocol::Http, hostname, None)
}

/// An older listener of somebody else is refused, and takes nothing out of service by being there.
#[test]
fn a_port_of_bytes_stays_in_service_beside_an_older_listener() {
    let mut run = with_own(vec![plain()]);
    run.put(one("a", 5, raw(9000)));
    assert_eq!(run.speaks(9000), Some(("a".into(), Group::Raw)));
    run.put(one("b", 1, raw(9000)));
    assert_eq!(run.conflicted("a"), FINE);
    assert_eq!(run.conflicted("b"), PROTOCOL);
    // The same if the older one was there first, and was not let in.
    run.remove(Kind::ListenerSet, "a", "set");
    run.apply(Change::Claims(BTreeMap::from([(port(9000), None)])));
    assert_eq!(run.speaks(9000), Some(("b".into(), Group::Raw)));
    run.put(one("a", 0, raw(9000)));
    assert_eq!(run.conflicted("b"), FINE);
    assert_eq!(run.conflicted("a"), PROTOCOL);
}

/// A route is accepted on a listener that is not served, as Gateway API says, and its status says that nobody serves it.
#[test]
fn a_route_whose_listener_is_not_served_is_not_programmed() {
    let mut run = with_own(vec![plain()]);
    run.put(one("a", 5, passthrough("l", "x.example.com")));
    run.put(one("b", 1, passthrough("l", "x.example.com")));
    run.put(on_set("b", "b", 1, &["x.example.com"]));
    let programmed = |run: &Run| {
        let key = ObjectKey::new(Kind::TlsRoute, "b", "web");
        let Some(Status::Route(status)) = run.translator.statuses().get(&key) else {
            panic!("no status")
        };
        let mut conditions = status.parents[0].conditions.iter();
        let found = conditions.find(|c| c.kind == ConditionType::RouteProgrammed);
        found.map(|c| (c.truth, c.reason))
    };
    assert_eq!(run.route_accepted("b"), ACCEPTED);
    assert_eq!(programmed(&run), Some((Truth::False, Reason::Invalid)));
    // Otherwise the proxies' acknowledgements decide.
    run.remove(Kind::ListenerSet, "a", "set");
    run.free("x.example.com");
    assert_eq!(programmed(&run), None);
    run.put(one("b", 1, parked("l", "x.example.com")));
    run.put(one("b", 1, mistaken(passthrough("l", "x.example.com"))));
    assert_eq!(programmed(&run), Some((Truth::False, Reason::Invalid)));
}

/// On a port that nobody holds, the oldest listener decides, whatever it speaks, and whether or not its name is recorded
/// yet.
#[test]
fn a_port_that_nobody_holds_speaks_what_the_oldest_listener_does() {
    let tls = || {
        listener(
            "l",
            8080,
            Protocol::Tls,
            "x.a.example.com",
            Some(Tls::Passthrough),
        )
    };
    for older in [web(8080, "x.a.example.com"), tls()] {
        let mut run = with_own(vec![plain()]);
        // The Gateway comes last, so everything is judged at one time.
        let own = gateway("one", vec![plain()], NamespaceScope::All);
        run.remove(Kind::Gateway, "platform", "one");
        run.put(one("b", 200, raw(8080)));
        run.put(one("a", 100, older));
        run.put(own);
        assert_eq!(run.speaks(8080).map(|(of, _)| of).as_deref(), Some("a"));
        assert_eq!(run.conflicted("a"), FINE);
        assert_eq!(run.conflicted("b"), PROTOCOL);
    }
}

/// A listener that loses its hostname gets no port recorded.
#[test]
fn a_port_is_not_held_for_a_listener_that_has_not_got_its_name() {
    let mut run = with_own(vec![plain()]);
    let own = gateway("one", vec![plain()], NamespaceScope::All);
    run.remove(Kind::Gateway, "platform", "one");
    let tls = listener(
        "l",
        8080,
        Protocol::Tls,
        "x.a.example.com",
        Some(Tls::Passthrough),
    );
    run.put(http_on_gateway("b", 10, &["x.a.example.com"]));
    run.put(one("c", 100, tls));
    run.put(one("a", 200, web(8080, "y.a.example.com")));
    run.put(own);
    assert_eq!(run.conflicted("c"), OUT);
    assert_eq!(run.speaks(8080), Some(("a".into(), Group::Http)));
    assert_eq!(run.conflicted("a"), FINE);
}

/// Whoever asks for what they do not get keeps the holder from nothing, and gets nothing by a change of the holder's.
#[test]
fn nobody_who_waits_for_a_change_of_a_ports_protocol_gets_the_port() {
    let mut run = with_own(vec![plain()]);
    run.put(one("a", 200, web(9000, "x.a.example.com")));
    assert_eq!(run.speaks(9000), Some(("a".into(), Group::Http)));
    run.put(one("b", 100, raw(9000)));
    assert_eq!(run.conflicted("b"), PROTOCOL);
    // The holder has to let the port go first. It can take that back all the time.
    run.put(one("a", 200, raw(9000)));
    assert_eq!(run.state(&port(9000)), Some(&ClaimState::Unused));
    assert_eq!(run.conflicted("a"), PROTOCOL);
    assert_eq!(run.conflicted("b"), PROTOCOL);
    run.put(one("a", 200, web(9000, "x.a.example.com")));
    assert_eq!(run.speaks(9000), Some(("a".into(), Group::Http)));
    assert_eq!(run.conflicted("a"), FINE);
    assert_eq!(run.conflicted("b"), PROTOCOL);
}

/// A grant for TCP is for `*`, because TCP has no names. It gives no hostname.
#[test]
fn a_grant_for_bytes_does_not_keep_a_name_that_is_withdrawn() {
    let mut run = with_own(vec![plain()]);
    let grant = |name: &str, to: &'static str| hostname_grant(name, &[to], &["x.example.com"]);
    let mut raw = hostname_grant("raw", &["a"], &["*"]);
    raw.protocols.insert(Protocol::Tcp);
    for grant in [grant("a", "a"), grant("b", "b"), raw] {
        run.put(Object::HostnameGrant(grant));
    }
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    run.remove(Kind::HostnameGrant, "platform", "a");
    let state = run.state(&names("x.example.com"));
    assert_eq!(state, Some(&ClaimState::Revoked));
}

fn mistaken(mut listener: Listener) -> Listener {
    let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
    listener.findings.push(mistake);
    listener
}

/// A mistake in the Gateway's own listener, the only one on its port, opens the port to nobody, and takes no name from
/// whose route is attached to it.
#[test]
fn a_mistake_in_the_gateways_own_listener_gives_nothing_away() {
    let own = || passthrough("own", "edge.example.com");
    let mut run = with_own(vec![own()]);
    let other = listener("l", 443, Protocol::Http, "y.b.example.com", None);
    run.put(one("b", 1, other));
    run.put(one("a", 5, passthrough("l", "x.a.example.com")));
    assert_eq!(run.conflicted("b"), PROTOCOL);
    assert_eq!(run.conflicted("a"), FINE);
    run.put(gateway("one", vec![mistaken(own())], NamespaceScope::All));
    assert_eq!(run.conflicted("b"), PROTOCOL);
    assert_eq!(run.conflicted("a"), FINE);
    assert_eq!(run.speaks(443), None);
    run.put(one("c", 7, passthrough("l", "z.c.example.com")));
    assert_eq!(run.conflicted("c"), FINE);
    // Where the Gateway has another one on the port, that one decides.
    let other = listener("other", 443, Protocol::Tcp, "", None);
    run.put(gateway(
        "one",
        vec![own(), mistaken(other)],
        NamespaceScope::All,
    ));
    assert_eq!(run.conflicted("a"), FINE);

    let shop = || {
        open(listener(
            "shop",
            80,
            Protocol::Http,
            "shop.example.com",
            None,
        ))
    };
    let mut run = with_own(vec![shop()]);
    run.put(http_on_gateway("a", 700, &["shop.example.com"]));
    run.put(http_on_gateway("b", 100, &["shop.example.com"]));
    assert_eq!(run.holder("shop.example.com").as_deref(), Some("a"));
    run.put(gateway("one", vec![mistaken(shop())], NamespaceScope::All));
    assert_eq!(run.http_accepted("a"), ACCEPTED);
    assert_eq!(
        run.state(&names("shop.example.com")),
        Some(&ClaimState::Used)
    );
    assert_ne!(run.http_accepted("b"), ACCEPTED);
    run.put(gateway("one", vec![shop()], NamespaceScope::All));
    assert_eq!(run.published("a"), ["shop.example.com"]);
    assert_eq!(run.http_accepted("b"), LOST);
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
fn a_route_inside_a_sets_wildcard_has_no_names_that_others_own() {
    let mut run = with_own(vec![open(passthrough("any", ""))]);
    run.put(on_gateway("b", 5, &["x.example.com"]));
    run.put(one("a", 1, passthrough("l", "*.example.com")));
    run.put(on_set("a", "a", 1, &["x.example.com"]));
    assert_eq!(run.route_accepted("a"), LOST);
    assert_eq!(run.published("a"), [""; 0]);
    // What else it has there it keeps.
    let both = ["x.example.com", "x.y.example.com"];
    run.put(on_set("a", "a", 1, &both));
    assert_eq!(run.route_accepted("a"), ACCEPTED);
    assert_eq!(run.published("a"), ["x.y.example.com"]);
    run.remove(Kind::TlsRoute, "b", "web");
    assert_eq!(run.published("a"), ["x.y.example.com"], "the grace");
    run.free("x.example.com");
    assert_eq!(run.published("a"), both);
    // The Gateway's own names stand above, exact ones and narrower wildcards.
    let own = |hostname: &str| vec![open(passthrough("any", "")), passthrough("own", hostname)];
    for (hostname, left) in [
        ("x.example.com", "x.y.example.com"),
        ("*.y.example.com", "x.example.com"),
    ] {
        run.put(gateway("one", own(hostname), NamespaceScope::All));
        assert_eq!(run.published("a"), [left]);
        run.put(on_set(
            "a",
            "a",
            1,
            &both[usize::from(left == both[0])..][..1],
        ));
        assert_eq!(run.route_accepted("a"), LOST);
        run.put(on_set("a", "a", 1, &both));
    }
    run.put(gateway("one", own("*.com"), NamespaceScope::All));
    assert_eq!(run.published("a"), both);
}

#[test]
fn a_route_on_anothers_listener_uses_that_ones_name() {
    let mut run = with_own(vec![shared()]);
    run.put(on_set("a", "b", 1, &["x.example.com"]));
    run.put(one("b", 1, open(passthrough("l", "x.example.com"))));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    assert_eq!(run.published("a"), ["x.example.com"]);
    // On a listener without a hostname it asks for the set's namespace.
    run.put(one("b", 1, open(passthrough("l", ""))));
    assert_eq!(run.holder("").as_deref(), Some("b"));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    run.put(one("c", 1, passthrough("l", "y.example.com")));
    run.put(on_set("a", "b", 1, &["y.example.com"]));
    assert_eq!(run.published("a"), [""; 0]);
    assert_eq!(run.route_accepted("a"), LOST);
}

/// A host can let go of a name that a guest of its listener without a hostname has as well. It waits for the host for
/// the grace, and then whoever else asks has it.
#[test]
fn a_guest_does_not_keep_a_name_that_its_host_lets_go() {
    let mut run = with_own(Vec::new());
    let web = |hostname: &str| listener("web", 80, Protocol::Http, hostname, None);
    let guest = |hosts: &[&str]| {
        let to = parent("ListenerSet", Some("host"), "set", None);
        http_route(("guest", "web", 1), vec![to], hosts, &[Rule::Plain], &[])
    };
    let shop = names("shop.example.com");
    run.put(one("host", 1, open(web(""))));
    let own = Listener {
        port: Port::new(8080),
        ..web("shop.example.com")
    };
    run.put(set("host", "own", 2, "one", vec![own]));
    run.put(guest(&["shop.example.com"]));
    run.put(one("other", 9, web("shop.example.com")));
    assert_eq!(run.published("guest"), ["shop.example.com"]);
    assert_eq!(run.conflicted("other"), OUT);

    // The host has the guest's route on its listener still, and nothing of its own for the name.
    run.remove(Kind::ListenerSet, "host", "own");
    assert_eq!(run.state(&shop), Some(&ClaimState::Unused));
    assert_eq!(run.owner("shop.example.com").as_deref(), Some("host"));
    assert_eq!(run.published("guest"), ["shop.example.com"]);
    assert_eq!(run.conflicted("other"), OUT);
    run.free("shop.example.com");
    assert_eq!(run.owner("shop.example.com").as_deref(), Some("other"));
    assert_eq!(run.conflicted("other"), FINE);
    assert_eq!(run.published("guest"), [""; 0]);
    assert_eq!(run.http_accepted("guest"), LOST);

    // What a guest asks for first is its host's for as long as the host invites the guest.
    run.put(guest(&["cart.example.com"]));
    run.put(one("other", 0, web("cart.example.com")));
    let cart = names("cart.example.com");
    assert_eq!(run.holder("cart.example.com").as_deref(), Some("host"));
    assert_eq!(run.state(&cart), Some(&ClaimState::Used));
    assert_eq!(run.conflicted("other"), OUT);
    run.put(one("host", 1, web("")));
    assert_eq!(run.state(&cart), Some(&ClaimState::Unused));
    assert_eq!(run.published("guest"), [""; 0]);
    run.free("cart.example.com");
    assert_eq!(run.owner("cart.example.com").as_deref(), Some("other"));
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
    assert_eq!(run.speaks(443), Some(("b".into(), Group::Http)));
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
    assert_eq!(run.holder("x.example.com").as_deref(), Some("a"));
    assert_eq!(
        run.conflicted("a"),
        Some((Truth::False, Reason::NoConflicts))
    );
    assert_eq!(run.speaks(443), None);
}

#[test]
fn routes_contend_for_what_their_hostnames_and_the_listeners_have_in_common() {
    let mut own = passthrough("own", "a.example.com");
    own.allowed_namespaces = NamespaceScope::All;
    let mut run = with_own(vec![own.clone()]);
    // Whoever was there first, however it is written; a route without hostnames has its listener's.
    for first in [&["*.example.com"][..], &[""]] {
        run.put(on_gateway("a", 5, first));
        assert_eq!(run.holder("a.example.com").as_deref(), Some("a"));
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
        run.state(&names("a.example.com")),
        Some(&ClaimState::Unused)
    );
    run.put(Object::HostnameGrant(hostname_grant(
        "a",
        &["a"],
        &["b.example.com"],
    )));
    assert_eq!(
        run.state(&names("a.example.com")),
        Some(&ClaimState::Revoked)
    );
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
