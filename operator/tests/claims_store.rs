//! The store of claims: who keeps a name and who gets it, when writes fail, Gateways come back, objects are
//! changed by hand, and one tenant wants more than everybody else.

use std::time::Duration;

use vestibule_model::key::ObjectName;
use vestibule_model::protocol::Group;
use vestibule_operator::claims::{AT_ONCE, ClaimAction, Counts, GRACED, NOTED_AFTER, WriteOutcome};
use vestibule_operator::translate::ClaimState;
use vestibule_operator_testing::claims::*;

const OVER: Duration = Duration::from_secs(61);

fn object(name: &str) -> ObjectName {
    ObjectName::new("platform", name)
}

#[test]
fn a_holder_that_is_back_before_its_name_is_taken_keeps_it() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    for gone in [ClaimState::Unused, ClaimState::Revoked] {
        world.say([(&shop, Some(gone))]);
        world.pass(OVER);
        assert_eq!(world.holder(&shop), None);
        // Nobody asks but who had it.
        world.want(&shop, "a");
        world.news();
        assert_eq!(world.holder(&shop), Some("a"));
        world.say([(&shop, Some(ClaimState::Used))]);
        assert_eq!(world.rest(), 0);
        assert_eq!(world.stands(&shop), Some("a"));
    }
}

#[test]
fn a_name_is_nobodys_from_when_it_is_taken_until_an_object_says_whose_it_is() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    world.say([(&shop, Some(ClaimState::Unused))]);
    world.pass(OVER);
    assert_eq!(world.holder(&shop), None);
    world.want(&shop, "b");
    let request = world.next_request().expect("it changes hands");
    assert!(
        matches!(request.action, ClaimAction::Replace { .. }),
        "one update"
    );
    assert_eq!(world.holder(&shop), None);
    world.done(&request, WriteOutcome::Refused);
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (None, Some("a"))
    );
    // The former holder asks first by age.
    world.want(&shop, "a");
    world.news();
    assert_eq!(world.holder(&shop), Some("a"));
    world.say([(&shop, Some(ClaimState::Used))]);
    assert_eq!(world.rest(), 0);

    world.say([(&shop, Some(ClaimState::Revoked))]);
    world.want(&shop, "b");
    assert_eq!(world.rest(), 1);
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), Some("b"))
    );
}

#[test]
fn a_name_that_nobody_else_wants_goes_with_its_object() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    world.say([(&shop, Some(ClaimState::Unused))]);
    world.pass(OVER);
    world.say([(&shop, None)]);
    let request = world.next_request().expect("its object goes");
    assert!(matches!(request.action, ClaimAction::Delete { .. }));
    let outcome = world.land(&request);
    world.done(&request, outcome);
    world.rest();
    assert_eq!(world.store.counts(), Counts::default());
    assert_eq!(world.store.deadline(), None);
}

#[test]
fn how_much_of_a_grace_is_over_survives_a_leader() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.give(&cart, "a");
    world.say([
        (&shop, Some(ClaimState::Unused)),
        (&cart, Some(ClaimState::Unused)),
    ]);
    // A namespace that is back soon costs no write.
    world.pass(NOTED_AFTER / 2);
    world.say([(&cart, Some(ClaimState::Used))]);
    assert_eq!(world.rest(), 0);
    world.pass(NOTED_AFTER);
    assert_eq!(world.rest(), 1);
    world.pass(Duration::from_secs(40));
    let mut next = world.restarted();
    next.say([
        (&shop, Some(ClaimState::Unused)),
        (&cart, Some(ClaimState::Used)),
    ]);
    assert_eq!(next.holder(&shop), Some("a"));
    next.pass(Duration::from_secs(15));
    assert_eq!(next.holder(&shop), None);
    // Back in time, the object says so again.
    let mut next = world.restarted();
    next.say([(&shop, Some(ClaimState::Used))]);
    assert_eq!(next.rest(), 1);
    next.pass(OVER);
    assert_eq!(next.rest(), 0);
    assert_eq!(next.holder(&shop), Some("a"));
}

#[test]
fn names_of_a_gateway_that_is_not_ours_for_a_moment_come_free() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.give(&cart, "a");
    world.say([(&shop, Some(ClaimState::Unused))]);
    world.pass(OVER);
    world.gateways.insert(edge(), None);
    world.store.gateways_changed();
    world.say([(&shop, None), (&cart, None)]);
    assert_eq!(world.rest(), 0);
    assert_eq!(world.store.deadline(), None);
    world.pass(OVER * 10);
    assert_eq!(
        (world.stands(&shop), world.stands(&cart)),
        (Some("a"), Some("a")),
        "what is not ours is left alone"
    );

    world.gateways.insert(edge(), Some("uid-1"));
    world.store.gateways_changed();
    world.say([(&cart, Some(ClaimState::Used))]);
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.holder(&cart)),
        (None, Some("a"))
    );
    world.give(&shop, "b");
}

#[test]
fn hostnames_that_a_holder_keeps_changing_stay_in_grace_up_to_its_limit() {
    let mut world = World::leading();
    let names: Vec<_> = (0..GRACED * 4)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    world.give(&name("other.example.com"), "b");
    for key in &names {
        world.want(key, "a");
        world.time.now += Duration::from_millis(30);
        while let Some(request) = world.begin() {
            let outcome = world.land(&request);
            world.done(&request, outcome);
        }
        world.say([(key, Some(ClaimState::Used))]);
        world.say([(key, Some(ClaimState::Unused))]);
        assert!(world.store.counts().grace <= GRACED);
    }
    world.rest();
    assert_eq!(world.store.counts().grace, GRACED);
    let (free, kept) = names.split_at(names.len() - GRACED);
    assert!(free.iter().all(|key| world.holder(key).is_none()));
    assert!(kept.iter().all(|key| world.holder(key) == Some("a")));
    world.give(&free[0], "b");
    // Nobody else's grace is the shorter for it.
    world.say([(&free[0], Some(ClaimState::Unused))]);
    assert_eq!(world.store.counts().grace, GRACED + 1);
}

#[test]
fn hostnames_of_a_holder_with_many_all_stay_with_it_during_the_grace() {
    let mut world = World::leading();
    let names: Vec<_> = (0..GRACED * 4)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    for key in &names {
        world.want(key, "a");
    }
    world.rest();
    world.say(names.iter().map(|key| (key, Some(ClaimState::Used))));
    // Long after they came, and under a leader that has seen only the half of it.
    world.pass(OVER * 100);
    let (first, second) = names.split_at(names.len() / 2);
    world.say(first.iter().map(|key| (key, Some(ClaimState::Unused))));
    assert_eq!(world.store.counts().grace, first.len());
    world.pass(Duration::from_secs(20));
    let mut world = world.restarted();
    world.say(first.iter().map(|key| (key, Some(ClaimState::Unused))));
    world.say(second.iter().map(|key| (key, Some(ClaimState::Unused))));
    assert_eq!(world.store.counts().grace, names.len());
    world.pass(Duration::from_secs(30));
    assert!(names.iter().all(|key| world.holder(key) == Some("a")));
}

#[test]
fn one_name_does_not_wait_for_the_thousands_of_somebody_else() {
    let mut world = World::leading();
    for n in 0..10_000 {
        world.want(&name(&format!("n{n}.example.com")), "aaa");
    }
    let shop = name("shop.example.com");
    world.time.now += Duration::from_millis(10);
    world.want(&shop, "b");
    let first: Vec<_> = (0..2).filter_map(|_| world.next_request()).collect();
    assert!(first.iter().any(
        |request| matches!(&request.action, ClaimAction::Create(of) if *of.holder.namespace == *"b")
    ));
    // Nobody has all the room either, be it that nothing is answered.
    let mut under_way = first.len();
    while world.next_request().is_some() {
        under_way += 1;
    }
    assert_eq!(under_way, AT_ONCE + 1);
    assert_eq!(
        world.store.deadline(),
        None,
        "a write that ends is waited for"
    );
    world.want(&name("late.example.com"), "c");
    assert!(world.next_request().is_some());
}

#[test]
fn names_of_a_gateway_that_is_deleted_and_created_again_stay_with_their_holders() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.give(&cart, "a");
    world.gateways.clear();
    world.store.gateways_changed();
    world.say([
        (&shop, Some(ClaimState::Unused)),
        (&cart, Some(ClaimState::Unused)),
    ]);
    // Somebody deletes an object meanwhile.
    world.by_hand(&shop.object_name(), None);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.rest(), 0);
    let mut world = [world.restarted(), world];
    for (n, world) in world.iter_mut().enumerate() {
        // A replica that starts now knows what the objects say.
        let remembers = n == 1;
        world.gateways.insert(edge(), Some("uid-2"));
        world.store.gateways_changed();
        world.say([(&cart, Some(ClaimState::Used))]);
        if remembers {
            assert_eq!(world.holder(&shop), Some("a"));
            world.say([(&shop, Some(ClaimState::Used))]);
        }
        world.rest();
        world.pass(OVER * 2);
        assert_eq!(world.rest(), 0);
        assert_eq!(
            (world.holder(&cart), world.stands(&cart)),
            (Some("a"), Some("a"))
        );
        assert_eq!(world.stands(&shop), remembers.then_some("a"));
    }
}

#[test]
fn names_of_a_gateway_that_stays_away_are_forgotten_after_the_grace() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    world.gateways.clear();
    world.store.gateways_changed();
    world.say([(&shop, Some(ClaimState::Unused))]);
    world.rest();
    assert_eq!(world.holder(&shop), Some("a"));
    world.pass(OVER);
    assert_eq!(world.holder(&shop), None);
    world.say([(&shop, None)]);
    world.rest();
    assert!(world.objects.is_empty());
    assert_eq!(world.store.counts(), Counts::default());
    assert_eq!(world.store.deadline(), None);
}

#[test]
fn a_gateway_without_claims_is_served_at_once_whatever_others_have() {
    let mut world = World::starting();
    let (fresh, known) = (edge(), ObjectName::new("platform", "known"));
    world.gateways.insert(known.clone(), Some("uid-1"));
    for gateway in [&known, &ObjectName::new("platform", "others")] {
        let key = name_on(gateway, "x.example.com");
        let mut content = content("x.example.com", "a");
        content.key = key.clone();
        world.by_hand(&key.object_name(), Some(content));
    }
    let (shop, cart, other) = (
        name("shop.example.com"),
        name("cart.example.com"),
        name_on(&known, "y.example.com"),
    );
    world.want(&shop, "a");
    world.want(&other, "a");
    world.store.begin(world.time);
    world.news();
    assert_eq!(world.holder(&shop), Some("a"));
    assert_eq!(world.holder(&other), None);
    // What depends on that was served before as well.
    world.want(&cart, "b");
    world.news();
    assert_eq!(world.holder(&cart), Some("b"));
    // From here on it is news.
    world.news();
    let late = name_on(&fresh, "late.example.com");
    world.want(&late, "c");
    world.news();
    assert_eq!(world.holder(&late), None);
    world.say([
        (&shop, Some(ClaimState::Used)),
        (&cart, Some(ClaimState::Used)),
    ]);
    world.store.lead(true, world.time);
    world.rest();
    for (key, holder) in [(&shop, "a"), (&cart, "b"), (&late, "c"), (&other, "a")] {
        assert_eq!(
            (world.holder(key), world.stands(key)),
            (Some(holder), Some(holder))
        );
    }
}

#[test]
fn objects_that_were_changed_or_made_by_hand_are_put_right_after_a_restart_too() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    let right = world.objects.clone();
    let of_shop = shop.object_name();
    let tampered = [
        // It is about another name than its own name says.
        (of_shop.clone(), content("cart.example.com", "a"), false),
        // It says that somebody else has the name.
        (of_shop.clone(), content("shop.example.com", "b"), true),
        (object("mine"), content("shop.example.com", "b"), false),
        (object("mine"), content("b.example.com", "b"), false),
    ];
    for (at, content, counts) in tampered {
        // A leader knows better.
        let sound = world.by_hand(&at, Some(content.clone()));
        assert_eq!(sound, counts, "{content:?}");
        assert_eq!(world.store.counts().void, usize::from(!counts));
        assert_eq!(world.holder(&shop), Some("a"));
        world.rest();
        let now: Vec<_> = world.objects.keys().collect();
        assert_eq!(now, right.keys().collect::<Vec<_>>());
        assert_eq!(world.stands(&shop), Some("a"));
        assert_eq!(world.store.counts().void, 0);
        // One that starts with it knows what counts.
        world.by_hand(&at, Some(content.clone()));
        let mut restarted = world.restarted();
        restarted.rest();
        assert_eq!(restarted.store.counts().void, 0);
        let expected = match (counts, at == of_shop) {
            (true, _) => Some("b"),
            (false, true) => None,
            (false, false) => Some("a"),
        };
        assert_eq!(restarted.stands(&shop), expected, "{content:?}");
        world.rest();
    }
    // What says nothing that counts about a Gateway that is not ours is theirs to put right.
    let mut theirs = content("x.example.com", "a");
    theirs.key = name_on(&object("theirs"), "x.example.com");
    world.by_hand(&object("anything"), Some(theirs));
    world.rest();
    assert_eq!((world.objects.len(), world.store.counts().void), (2, 1));
}

/// A replica that follows and took a name and a wildcard around it for held at the beginning; the leader has written
/// the wildcard.
fn assuming(around: &str) -> World {
    let mut world = World::starting();
    let (shop, wide) = (name("shop.example.com"), name("*.example.com"));
    world.want(&shop, "b");
    world.want(&wide, around);
    world.store.begin(world.time);
    world.news();
    assert_eq!(world.holder(&shop), Some("b"));
    world.say([
        (&shop, Some(ClaimState::Used)),
        (&wide, Some(ClaimState::Used)),
    ]);
    world.by_hand(&wide.object_name(), Some(content("*.example.com", around)));
    world
}

#[test]
fn a_name_inside_anothers_wildcard_that_the_leader_does_not_write_is_given_up() {
    let shop = name("shop.example.com");
    let of_shop = shop.object_name();
    // Nothing stops being served while the leader is writing.
    let mut world = assuming("a");
    world.pass(Duration::from_secs(50));
    world.say([(&shop, Some(ClaimState::Used))]);
    assert_eq!(world.holder(&shop), Some("b"));
    world.pass(OVER);
    assert_eq!(world.holder(&shop), None);

    let mut world = assuming("a");
    world.pass(Duration::from_secs(50));
    world.by_hand(&of_shop, Some(content("shop.example.com", "b")));
    world.pass(OVER);
    assert_eq!(world.holder(&shop), Some("b"));
    // The same if the leader deletes it, and this replica does not know why.
    world.by_hand(&of_shop, None);
    assert_eq!(world.holder(&shop), Some("b"));
    world.pass(OVER);
    assert_eq!(world.holder(&shop), None);

    // A wildcard of the same namespace keeps nobody out.
    let mut world = assuming("b");
    world.pass(OVER * 10);
    assert_eq!(world.holder(&shop), Some("b"));
}

#[test]
fn a_new_leader_writes_nothing_inside_anothers_wildcard_that_it_only_took_for_held() {
    let shop = name("shop.example.com");
    let mut world = assuming("a");
    assert!(world.take_over());
    assert_eq!(world.holder(&shop), None);
    world.say([(&shop, None)]);
    assert_eq!(world.rest(), 0);

    // What stood in an object it remembers, and writes again.
    let mut world = assuming("a");
    let of_shop = shop.object_name();
    world.by_hand(&of_shop, Some(content("shop.example.com", "b")));
    world.by_hand(&of_shop, None);
    assert!(world.take_over());
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), Some("b"))
    );

    // A former leader may have been about to write it.
    let mut world = assuming("b");
    assert!(world.take_over());
    world.by_hand(
        &name("*.example.com").object_name(),
        Some(content("*.example.com", "a")),
    );
    world.store.lead(false, world.time);
    world.news();
    world.pass(OVER);
    assert_eq!(world.holder(&shop), None);
}

#[test]
fn a_name_that_an_admin_takes_goes_to_whoever_else_asks_in_one_write() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    let stored = world
        .objects
        .get_mut(&shop.object_name())
        .expect("an object");
    stored.content.is_taken = true;
    world.version += 1;
    stored.version = world.version;
    let stored = stored.clone();
    world.show(&shop.object_name(), Some(&stored));
    // Translation is told, and while nobody else asks nothing else changes, whatever is written of the claim.
    let taken = world.store.take_taken();
    assert_eq!(taken.get(&shop), Some(&Some("a".into())));
    world.say([(&shop, Some(ClaimState::Unused))]);
    world.pass(NOTED_AFTER);
    assert_eq!(world.rest(), 1);
    assert!(world.objects[&shop.object_name()].content.is_taken);
    world.say([(&shop, Some(ClaimState::Used))]);
    assert_eq!(world.rest(), 1);
    assert_eq!(world.holder(&shop), Some("a"));
    assert!(world.store.take_taken().is_empty());
    // Somebody does.
    world.say([(&shop, Some(ClaimState::Revoked))]);
    world.news();
    assert_eq!(world.holder(&shop), None);
    world.want(&shop, "b");
    let request = world.next_request().expect("a write");
    let ClaimAction::Replace { content, .. } = &request.action else {
        panic!("not one update: {request:?}");
    };
    assert_eq!((&*content.holder.namespace, content.is_taken), ("b", false));
    let outcome = world.land(&request);
    world.done(&request, outcome);
    assert_eq!(world.rest(), 0);
    assert_eq!(world.holder(&shop), Some("b"));
    assert_eq!(world.store.take_taken().get(&shop), Some(&None));
}

#[test]
fn a_port_is_passed_on_in_one_write() {
    let mut world = World::leading();
    let port = port(443);
    let (a, b) = (speaking("a", Group::Tls), speaking("b", Group::Tls));
    world.give(&port, a.clone());
    world.pass(Duration::from_secs(100));
    // `a` has nothing there for a moment, and then `b` has.
    world.say([(&port, Some(ClaimState::Unused))]);
    world.pass(Duration::from_secs(1));
    world.say([(&port, Some(ClaimState::Passed("b".into())))]);
    world.news();
    // What the port speaks stays the same, so nobody waits for the write.
    assert_eq!(world.told.get(&port), Some(&b));
    assert_eq!(world.store.counts().pending, 1);
    world.say([(&port, Some(ClaimState::Used))]);
    let request = world.next_request().expect("a write");
    let ClaimAction::Replace { content, .. } = &request.action else {
        panic!("not one update: {request:?}");
    };
    assert_eq!(
        (&content.holder, content.since, content.unused_since),
        (&b, 1_101, None)
    );
    let outcome = world.land(&request);
    world.done(&request, outcome);
    assert_eq!(world.rest(), 0);
    assert_eq!(world.says(&port), Some(&b));
    let held = Counts {
        held: 1,
        objects: 1,
        ..Counts::default()
    };
    assert_eq!(world.store.counts(), held);
    assert_eq!(world.store.deadline(), None);
}

#[test]
fn port_passed_on_while_unused_has_a_whole_grace_for_its_new_holder() {
    let mut world = World::leading();
    let port = port(443);
    world.give(&port, speaking("a", Group::Tls));
    world.say([(&port, Some(ClaimState::Unused))]);
    world.pass(Duration::from_secs(50));
    assert_eq!(world.rest(), 1, "the object says that it is unused");
    world.say([(&port, Some(ClaimState::Passed("b".into())))]);
    world.news();
    // `b` goes before that is written.
    world.say([(&port, Some(ClaimState::Unused))]);
    world.pass(Duration::from_secs(50));
    assert_eq!(world.told.get(&port), Some(&speaking("b", Group::Tls)));
    world.rest();
    assert_eq!(world.stands(&port), Some("b"));
    world.pass(OVER);
    assert_eq!(world.holder(&port), None);
}

#[test]
fn a_port_is_passed_on_by_the_leader_alone_and_served_meanwhile() {
    let mut first = World::leading();
    let port = port(443);
    let (a, b) = (speaking("a", Group::Tls), speaking("b", Group::Tls));
    first.give(&port, a.clone());
    let passed = [(&port, ClaimState::Passed("b".into()))];
    let mut next = behind(&first, &passed);
    assert_eq!(next.told.get(&port), Some(&a));
    // Somebody deletes the object: what is served goes on, until the leader has written it again.
    next.by_hand(&port.object_name(), None);
    assert_eq!(next.told.get(&port), Some(&a));
    assert!(next.take_over());
    assert_eq!(next.told.get(&port), Some(&b));
    next.say([(&port, Some(ClaimState::Used))]);
    assert_eq!(next.rest(), 1);
    assert_eq!(next.says(&port), Some(&b));

    // A replica that is shown the object only sees one change.
    let mut follower = behind(&first, &passed);
    let stored = next.objects.get(&port.object_name());
    follower.show(&port.object_name(), stored);
    assert_eq!(follower.told.get(&port), Some(&b));
}

#[test]
fn claim_that_is_revoked_has_a_new_holder_at_once() {
    let mut world = World::leading();
    let (shop, port) = (name("shop.example.com"), port(443));
    world.give(&shop, "a");
    world.give(&port, speaking("a", Group::Tls));
    // The Gateway takes the port, and `b` asks for the name that `a` may not have.
    world.say([
        (&shop, Some(ClaimState::Revoked)),
        (&port, Some(ClaimState::Revoked)),
    ]);
    world.news();
    assert_eq!((world.holder(&shop), world.holder(&port)), (None, None));
    let plain = speaking("a", Group::Http);
    world.want(&shop, "b");
    world.want(&port, plain.clone());
    // Both wait to be written, though the port's namespace stays the same.
    assert_eq!(world.store.counts().pending, 2);
    let before = world.time.now;
    assert_eq!(world.rest(), 2, "one update each");
    assert!(world.time.now - before < Duration::from_secs(2), "no grace");
    assert_eq!(
        (world.stands(&shop), world.says(&port)),
        (Some("b"), Some(&plain))
    );
    assert_eq!(world.told.get(&port), Some(&plain));
    assert_eq!(world.store.counts().pending, 0);
}

/// A replica that knows nothing later than what `leader` has shown it, and that follows.
fn behind(leader: &World, told: &[(&vestibule_model::claim::ClaimKey, ClaimState)]) -> World {
    let mut world = leader.restarted();
    world.store.lead(false, world.time);
    world.say(told.iter().map(|(key, s)| (*key, Some(s.clone()))));
    world.news();
    world
}

#[test]
fn a_new_leader_that_is_behind_takes_no_name_from_whoever_has_it_now() {
    let mut first = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    first.give(&shop, "a");
    first.give(&cart, "a");
    let mut next = behind(
        &first,
        &[(&shop, ClaimState::Used), (&cart, ClaimState::Used)],
    );
    let (history, old) = (first.version, first.objects[&shop.object_name()].clone());
    first.say([
        (&shop, Some(ClaimState::Revoked)),
        (&cart, Some(ClaimState::Revoked)),
    ]);
    first.want(&shop, "b");
    first.rest();
    assert_eq!((first.objects.len(), first.holder(&shop)), (1, Some("b")));
    next.objects.clone_from(&first.objects);
    next.version = first.version;

    assert!(next.take_over());
    assert_eq!(next.holder(&shop), Some("b"));
    next.rest();
    assert_eq!(
        (next.holder(&shop), next.stands(&shop)),
        (Some("b"), Some("b"))
    );
    // What the watch shows of the time before changes nothing.
    assert!(history < next.version);
    next.show(&shop.object_name(), Some(&old));
    assert_eq!(next.holder(&shop), Some("b"));
    next.rest();
    assert_eq!(next.stands(&shop), Some("b"));
}

#[test]
fn claims_changed_during_a_listing_are_neither_lost_nor_brought_back() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.store.lead(false, world.time);
    let listed = [(shop.object_name(), world.seen(&shop.object_name()).unwrap())];
    world.store.list();
    // After the list was read, one goes and one comes.
    world.by_hand(&shop.object_name(), None);
    world.by_hand(&cart.object_name(), Some(content("cart.example.com", "b")));
    assert!(!world.store.catch_up(listed.into(), world.time));
    world.news();
    assert_eq!(world.holder(&cart), Some("b"));
    assert_eq!(world.store.counts().objects, 1);
    assert!(world.take_over());
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.holder(&cart)),
        (Some("a"), Some("b"))
    );
    assert_eq!(
        (world.stands(&shop), world.stands(&cart)),
        (Some("a"), Some("b"))
    );
}
