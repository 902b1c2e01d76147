//! Names and paths that a grant shares with another namespace than the holder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::condition::{Reason, Truth};
use vestibule_model::hostname::Hostname;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::http::{HttpMatch, PathMatch};
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::path::PathPrefix;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::ClaimState;
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;

use super::{ACCEPTED, Run, http_on_gateway, names, on_gateway, one, plain, shared, with_own};

#[test]
fn a_shared_name_is_served_by_the_routes_of_those_who_share_it() {
    let mut run = with_own(vec![plain(), shared()]);
    let mut all = hostname_grant("all", &["a"], &["*.example.com"]);
    run.put(Object::HostnameGrant(Arc::new(all.clone())));
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(
        run.http_accepted("b"),
        (Truth::False, Reason::HostnameNotOwned)
    );
    let mut share = hostname_grant("share", &["b"], &[]);
    share.shared = BTreeSet::from([Hostname::parse("x.example.com").expect("a hostname")]);
    run.put(Object::HostnameGrant(Arc::new(share)));
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
    run.put(Object::HostnameGrant(Arc::new(all)));
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
    run.put(Object::HostnameGrant(Arc::new(hostname_grant(
        "all",
        &["a"],
        &["*.example.com"],
    ))));
    run.put(http_on_gateway("a", 5, &["x.example.com"]));
    run.put(Object::HostnameGrant(Arc::new(shares_paths(
        "share",
        "b",
        &["/api", "/docs"],
    ))));
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
    run.put(Object::HostnameGrant(Arc::new(shares_paths(
        "share",
        "b",
        &["/api", "/docs/v2"],
    ))));
    assert_eq!(run.http_accepted("b"), refused);
    assert_eq!(run.published("b"), [""; 0]);
    run.put(Object::HostnameGrant(Arc::new(shares_paths(
        "share",
        "b",
        &["/api/v1", "/docs"],
    ))));
    assert_eq!(run.kept_to("b"), [["/api/v1", "/docs"]]);
    // Other hostnames of a route stay.
    run.put(Object::HostnameGrant(Arc::new(hostname_grant(
        "more",
        &["b"],
        &["b.example.com"],
    ))));
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
fn holder_of_a_hostname_is_not_limited_to_shared_paths_until_it_loses_it() {
    let mut run = with_own(vec![plain(), shared()]);
    let mut given = hostname_grant("given", &["b"], &["x.example.com"]);
    run.put(Object::HostnameGrant(Arc::new(given.clone())));
    run.put(http_on_gateway("b", 1, &["x.example.com"]));
    assert_eq!(run.holder("x.example.com").as_deref(), Some("b"));
    run.put(Object::HostnameGrant(Arc::new(shares_paths(
        "share",
        "b",
        &["/api"],
    ))));
    assert_eq!(run.published("b"), ["x.example.com"]);
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    // A match inside would be in order either way.
    run.put(http_matching("b", 1, &["x.example.com"], &["/api"]));
    assert_eq!(run.kept_to("b"), [[""; 0]]);
    given.hostnames = Vec::new();
    run.put(Object::HostnameGrant(Arc::new(given.clone())));
    assert_eq!(run.kept_to("b"), [["/api"]]);
    run.free("x.example.com");
    assert_eq!(run.kept_to("b"), [["/api"]]);
    assert_eq!(run.holder("x.example.com"), None);
    // It was granted again; nobody becomes a holder by a route that shares.
    given.hostnames = vec![pattern("x.example.com")];
    run.put(Object::HostnameGrant(Arc::new(given)));
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

/// Where nobody keeps a record, as in a check of manifests.
#[test]
fn without_a_record_a_shared_name_is_served_as_well() {
    let mut share = hostname_grant("share", &["b"], &[]);
    share.shared = BTreeSet::from([Hostname::parse("x.example.com").expect("a hostname")]);
    let translator = translated([
        our_class(),
        gateway("one", vec![plain()], NamespaceScope::All),
        Object::HostnameGrant(Arc::new(hostname_grant("all", &["a"], &["*.example.com"]))),
        Object::HostnameGrant(Arc::new(share)),
        http_on_gateway("a", 5, &["x.example.com"]),
        http_on_gateway("b", 1, &["x.example.com"]),
    ]);
    let run = Run { translator };
    assert_eq!(run.owner("x.example.com").as_deref(), Some("a"));
    assert_eq!((run.shares("a"), run.shares("b")), (false, true));
}
