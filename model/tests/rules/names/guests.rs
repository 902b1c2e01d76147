//! Routes of other namespaces on the listeners of a set: the names that they get, and whose these are.

use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::names::AskedBy::{Guest, Listener};
use vestibule_model::names::NameDecision::{
    Free, Has, Inside, OnlyHostnames, Reserved, TooMany, TooManyOfGuests,
};
use vestibule_model::names::{NameClaimState, NameSource};

use super::{Edge, listener, own, refused, route};
use crate::support::{name, pattern};

#[test]
fn a_route_on_a_sets_listener_without_a_hostname_asks_for_the_sets_namespace() {
    let mut edge = Edge::free();
    let NameSource::Listener(any) = listener("t1/set", "any") else {
        unreachable!("it is a listener");
    };
    for guest in ["t2/r", "infra/r"] {
        let key = ObjectKey {
            kind: Kind::HttpRoute,
            name: name(guest),
        };
        let source = NameSource::Guest(Box::new((any.clone(), key)));
        edge.put(&source, 5, &["x.example.com"]);
        assert_eq!(edge.next("x.example.com"), Some("t1"));
        edge.hold("x.example.com", "t1");
        assert_eq!(
            edge.names.decision(&source, &pattern("x.example.com")),
            Some(Has)
        );
        assert!(edge.serves(&source, "x.example.com", "x.example.com"));
        edge.hold("y.example.com", "t2");
        // Also not where the guest's own namespace has the name.
        assert!(!edge.serves(&source, "y.example.com", "y.example.com"));
        edge.names.remove(&edge.grants, &source);
        edge.free_again("x.example.com");
    }
}

/// Routes of other namespaces on a set's listeners use up half of its namespace's limit at most.
#[test]
fn guests_leave_half_of_the_limit_to_their_host() {
    let mut edge = Edge::free();
    edge.grants.most.insert("t1".into(), 4);
    let NameSource::Listener(any) = listener("t1/set", "any") else {
        unreachable!("it is a listener");
    };
    let guest = |at: &str| {
        let (kind, name) = (Kind::HttpRoute, name(at));
        NameSource::Guest(Box::new((any.clone(), ObjectKey { kind, name })))
    };
    let all = ["1.com", "2.com", "3.com", "4.com", "5.com"];
    edge.put(&guest("t2/r"), 1, &all);
    // The leader records whatever somebody should get.
    let record = |edge: &mut Edge| {
        for names in all {
            if edge.claim_state(names).is_none()
                && let Some(next) = edge.names.next_holder(&pattern(names))
            {
                edge.hold_as(names, &next);
            }
        }
    };
    record(&mut edge);
    let decided = |edge: &Edge, source: &NameSource| {
        all.map(|names| edge.names.decision(source, &pattern(names)))
    };
    let full = Some(TooManyOfGuests);
    assert_eq!(
        decided(&edge, &guest("t2/r")),
        [Some(Has), Some(Has), full, full, full]
    );
    // The host gets the other half: by listeners, and by routes of its own on them.
    edge.put(&listener("t1/set", "own"), 5, &["3.com"]);
    edge.put(&guest("t1/r"), 5, &["4.com", "5.com"]);
    record(&mut edge);
    assert_eq!(edge.claim_state("3.com"), Some(NameClaimState::Used));
    assert_eq!(edge.claim_state("4.com"), Some(NameClaimState::Used));
    assert_eq!(edge.decide("t1", "5.com", Listener), TooMany);
    // The guests keep their names, also with a lower limit.
    edge.grants.most.insert("t1".into(), 1);
    edge.recheck("t1");
    assert_eq!(decided(&edge, &guest("t2/r"))[..2], [Some(Has), Some(Has)]);
    assert_eq!(edge.claim_state("1.com"), Some(NameClaimState::Used));
    edge.grants.most.insert("t1".into(), 4);
    edge.recheck("t1");
    // When the host lets go of a name that it had for itself, nothing is kept for guests. So guests cannot fill the host's
    // limit by asking for everything that the host ever had.
    edge.put(&listener("t1/set", "own"), 5, &[]);
    edge.put(&guest("t1/r"), 5, &[]);
    assert_eq!(decided(&edge, &guest("t2/r"))[2..4], [Some(Has), Some(Has)]);
    for names in ["3.com", "4.com"] {
        assert_eq!(edge.claim_state(names), Some(NameClaimState::Idle));
        edge.free_again(names);
        assert_eq!(edge.next(names), None);
    }
    assert_eq!(decided(&edge, &guest("t2/r"))[2..4], [full, full]);
}

/// A host can let a name go although a guest has it. Whoever else asks comes before the guest then.
#[test]
fn a_guest_does_not_keep_a_name_that_its_host_lets_go() {
    let mut edge = Edge::free();
    let NameSource::Listener(any) = listener("t1/set", "any") else {
        unreachable!("it is a listener");
    };
    let key = |at: &str| ObjectKey {
        kind: Kind::HttpRoute,
        name: name(at),
    };
    let guest = NameSource::Guest(Box::new((any.clone(), key("t2/r"))));
    let shop = "shop.com";
    let used = Some(NameClaimState::Used);
    for own in [
        listener("t1/set", "shop"),
        // A route of the host's own on its listener without a hostname.
        NameSource::Guest(Box::new((any.clone(), key("t1/r")))),
    ] {
        for guest in [guest.clone(), refused(&guest)] {
            edge.put(&own, 5, &[shop]);
            edge.hold_as(shop, &edge.names.next_holder(&pattern(shop)).unwrap());
            edge.put(&guest, 1, &[shop]);
            edge.put(&listener("t3/set", "shop"), 9, &[shop]);
            assert_eq!(edge.claim_state(shop), used);
            edge.put(&own, 5, &[]);
            assert_eq!(edge.claim_state(shop), Some(NameClaimState::Idle));
            assert_eq!(edge.owner(shop).as_deref(), Some("t1"));
            // The host comes back within the grace.
            edge.put(&own, 5, &[shop]);
            assert_eq!(edge.claim_state(shop), used);
            edge.put(&own, 5, &[]);
            // The grace is over. The guest is older, and comes last all the same.
            edge.free_again(shop);
            assert_eq!(edge.next(shop), Some("t3"));
            edge.put(&listener("t3/set", "shop"), 9, &[]);
            edge.put(&guest, 1, &[]);
        }
    }
    // If nobody else asks, the host has the name for its guest, who keeps it in use.
    edge.put(&guest, 1, &[shop]);
    let next = edge.names.next_holder(&pattern(shop)).unwrap();
    assert_eq!((&*next.namespace, next.for_guests), ("t1", true));
    edge.hold_as(shop, &next);
    edge.put(&listener("t3/set", "shop"), 0, &[shop]);
    assert_eq!(edge.claim_state(shop), used);
    // The guest had it first, so it keeps it when the host asks as well and lets go again.
    edge.put(&listener("t1/set", "shop"), 5, &[shop]);
    edge.put(&listener("t1/set", "shop"), 5, &[]);
    assert_eq!(edge.claim_state(shop), used);
    // The host invites it no more.
    edge.put(&guest, 1, &[]);
    assert_eq!(edge.claim_state(shop), Some(NameClaimState::Idle));
}

/// The Gateway's own namespace stands above claims. A route of another namespace on a set of it does not.
#[test]
fn guests_of_the_gateways_own_namespace_take_nothing_from_tenants_or_from_it() {
    for grants in [&[][..], &[("t1", "*.w.com"), ("t2", "*.com")]] {
        let mut edge = Edge::granting(grants);
        edge.hold("*.w.com", "t1");
        edge.put(&own("status"), 0, &["status.com"]);
        edge.put(&route(Kind::HttpRoute, "infra/r"), 0, &["docs.com"]);
        for (names, expected) in [
            ("bank.w.com", Inside),
            ("*.w.com", OnlyHostnames),
            ("*.b.w.com", OnlyHostnames),
            ("*.com", OnlyHostnames),
            ("", OnlyHostnames),
            ("status.com", Reserved),
            ("docs.com", Reserved),
            ("shop.com", Free),
        ] {
            assert_eq!(edge.decide("infra", names, Guest), expected, "{names}");
        }
        // The platform itself may still ask for every name on its set.
        assert_eq!(edge.decide("infra", "bank.w.com", Listener), Free);
        // A name that it has for a guest, and takes for a listener of its own.
        let NameSource::Listener(any) = listener("infra/set", "any") else {
            unreachable!("it is a listener");
        };
        let (kind, name) = (Kind::HttpRoute, name("t2/r"));
        let guest = NameSource::Guest(Box::new((any, ObjectKey { kind, name })));
        edge.put(&guest, 1, &["shop.com"]);
        edge.hold_as(
            "shop.com",
            &edge.names.next_holder(&pattern("shop.com")).unwrap(),
        );
        assert!(edge.serves(&guest, "shop.com", "shop.com"));
        edge.put(&own("shop"), 0, &["shop.com"]);
        assert_eq!(
            edge.names.decision(&guest, &pattern("shop.com")),
            Some(Reserved)
        );
        assert_eq!(edge.claim_state("shop.com"), Some(NameClaimState::Idle));
    }
}
