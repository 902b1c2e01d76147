//! The names of routes on listeners of sets and of the Gateway.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::gateway::Listener;
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, ClaimState};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;

use super::{
    ACCEPTED, FINE, LOST, OUT, Run, names, on_gateway, on_set, one, open, shared, with_own,
};

#[test]
fn a_route_inside_a_sets_wildcard_has_no_names_that_others_own() {
    let mut run = with_own(vec![open(passthrough("any", ""))]);
    run.put(on_gateway("b", 5, &["x.example.com"]));
    run.put(one("a", 1, passthrough("l", "*.example.com")));
    run.put(on_set("a", "a", 1, &["x.example.com"]));
    assert_eq!(run.route_accepted("a"), LOST);
    assert_eq!(run.published("a"), [""; 0]);
    // It keeps the other names that it has there.
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

    // A name that a guest asks for first is its host's for as long as the host invites the guest.
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
    run.put(Object::HostnameGrant(Arc::new(hostname_grant(
        "a",
        &["a"],
        &["a.example.com"],
    ))));
    run.put(on_gateway("a", 5, &["*.example.com"]));
    assert_eq!(run.published("a"), ["a.example.com"]);
    run.remove(Kind::TlsRoute, "a", "web");
    assert_eq!(
        run.state(&names("a.example.com")),
        Some(&ClaimState::Unused)
    );
    run.put(Object::HostnameGrant(Arc::new(hostname_grant(
        "a",
        &["a"],
        &["b.example.com"],
    ))));
    assert_eq!(
        run.state(&names("a.example.com")),
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
