//! The protocol of a port, and the namespace that holds it.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use vestibule_model::condition::{Reason, Truth};
use vestibule_model::gateway::Listener;
use vestibule_model::key::Kind;
use vestibule_model::protocol::{Group, Protocol};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, ClaimState};
use vestibule_operator_testing::objects::*;

use super::{FINE, OUT, PROTOCOL, http_on_gateway, one, plain, port, shared, with_own};

#[test]
fn port_protocol_is_held_as_long_as_any_listener_speaks_it() {
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
fn port_protocol_changes_only_after_the_grace() {
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
fn port_goes_to_nobody_who_waits_for_a_change_of_its_protocol() {
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

#[test]
fn gateway_listener_protocol_is_not_decided_by_a_held_port() {
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
