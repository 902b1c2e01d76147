//! Listeners and routes that are refused or never served: what they ask for, keep and give away.

use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{ClaimState, Status};
use vestibule_operator_testing::objects::*;

use super::{
    ACCEPTED, FINE, LOST, OUT, PROTOCOL, Run, http_on_gateway, mistaken_on_gateway, names,
    on_gateway, on_set, one, open, parked, plain, shared, with_own,
};

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
    // A listener that is mistaken from the beginning asks for nothing.
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
