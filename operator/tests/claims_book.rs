//! The book of claims: who keeps a name and who gets it, when writes fail, Gateways come back, objects are
//! changed by hand, and one tenant wants more than everybody else.

mod claims_support;

use std::time::Duration;

use claims_support::*;
use vestibule_model::key::ObjectName;
use vestibule_operator::claims::{AT_ONCE, Content, Counts, GRACED, Outcome, SLAB};
use vestibule_operator::translate::Standing;

const OVER: Duration = Duration::from_secs(61);

fn object(gateway: &str, namespace: &str, names: &[&str]) -> Content {
    Content {
        gateway: gateway.into(),
        gateway_uid: "uid-1".into(),
        namespace: namespace.into(),
        entries: names.iter().map(|name| entry(name)).collect(),
    }
}

fn page(name: &str) -> ObjectName {
    ObjectName::new("platform", name)
}

#[test]
fn a_holder_that_is_back_before_its_name_is_taken_out_keeps_it() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    for gone in [Standing::Left, Standing::Revoked] {
        world.say([(&shop, Some(gone))]);
        world.pass(OVER);
        world.say([(&shop, Some(Standing::Kept))]);
        assert_eq!(world.rest(), 0);
        assert_eq!(world.holder(&shop), Some("a"));
        assert_eq!(world.stands(&shop), ["a"]);
    }
}

#[test]
fn a_name_is_nobodys_from_when_it_is_being_taken_out_and_the_holders_again_if_that_fails() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    world.say([(&shop, Some(Standing::Left))]);
    world.pass(OVER);
    assert_eq!(world.holder(&shop), Some("a"));
    let write = world.next_write().expect("it is taken out");
    assert_eq!(world.holder(&shop), None);
    // A rival comes first by age, and waits all the same.
    world.wish(&shop, "b");
    assert!(world.next_write().is_none());
    world.done(&write, Outcome::Refused);
    assert_eq!(world.holder(&shop), Some("a"));
    world.say([(&shop, Some(Standing::Kept))]);
    assert_eq!(world.rest(), 0);
    assert_eq!(world.holder(&shop), Some("a"));

    world.say([(&shop, Some(Standing::Left))]);
    world.pass(OVER);
    let write = world.next_write().expect("it is taken out");
    world.wish(&shop, "b");
    let outcome = world.land(&write);
    world.done(&write, outcome);
    assert_eq!(world.holder(&shop), None);
    world.rest();
    assert_eq!(world.holder(&shop), Some("b"));
    assert_eq!(world.stands(&shop), ["b"]);
}

#[test]
fn names_of_a_gateway_that_is_not_ours_for_a_moment_come_free() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.give(&cart, "a");
    world.say([(&shop, Some(Standing::Left))]);
    world.pass(OVER);
    world.uids.clear();
    world.book.gateways_moved();
    world.say([(&shop, None), (&cart, None)]);
    assert!(world.next_write().is_none());
    assert_eq!(world.book.deadline(), None);
    world.pass(OVER * 10);
    assert_eq!(world.stands(&cart), ["a"], "what is not ours is left alone");

    world.uids.insert(edge(), "uid-1");
    world.book.gateways_moved();
    world.say([(&shop, Some(Standing::Left)), (&cart, Some(Standing::Kept))]);
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.holder(&cart)),
        (None, Some("a"))
    );
    world.give(&shop, "b");
}

#[test]
fn who_changes_a_hostname_again_and_again_does_not_keep_all_of_them_from_others() {
    let mut world = World::leading();
    let names: Vec<_> = (0..GRACED * 4)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    world.give(&name("other.example.com"), "b");
    for key in &names {
        world.wish(key, "a");
        world.time.now += Duration::from_millis(30);
        let write = world.begin_write().expect("a write");
        let outcome = world.land(&write);
        world.done(&write, outcome);
        world.say([(key, Some(Standing::Kept))]);
        world.say([(key, Some(Standing::Left))]);
        assert!(world.book.counts().grace <= GRACED);
    }
    world.rest();
    assert_eq!(world.book.counts().grace, GRACED);
    let (free, kept) = names.split_at(names.len() - GRACED);
    assert!(free.iter().all(|key| world.holder(key).is_none()));
    assert!(kept.iter().all(|key| world.holder(key) == Some("a")));
    world.give(&free[0], "b");
    // Nobody else's grace is the shorter for it.
    world.say([(&free[0], Some(Standing::Left))]);
    assert_eq!(world.book.counts().grace, GRACED + 1);
}

#[test]
fn whoever_had_many_names_has_them_all_again_within_the_grace() {
    let mut world = World::leading();
    let names: Vec<_> = (0..GRACED * 4)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    for key in &names {
        world.wish(key, "a");
    }
    world.rest();
    world.say(names.iter().map(|key| (key, Some(Standing::Kept))));
    // Long after they came, and under a leader that has seen only the half of it.
    world.pass(OVER * 100);
    let (first, second) = names.split_at(names.len() / 2);
    world.say(first.iter().map(|key| (key, Some(Standing::Left))));
    assert_eq!(world.book.counts().grace, first.len());
    world.pass(Duration::from_secs(20));
    let mut world = world.restarted();
    world.say(first.iter().map(|key| (key, Some(Standing::Left))));
    world.say(second.iter().map(|key| (key, Some(Standing::Left))));
    assert_eq!(world.book.counts().grace, names.len());
    world.pass(Duration::from_secs(30));
    assert_eq!(world.rest(), 0);
    assert!(names.iter().all(|key| world.holder(key) == Some("a")));
}

#[test]
fn one_name_does_not_wait_for_the_thousands_of_somebody_else() {
    let mut world = World::leading();
    for n in 0..10_000 {
        world.wish(&name(&format!("n{n}.example.com")), "aaa");
    }
    let shop = name("shop.example.com");
    world.time.now += Duration::from_millis(10);
    world.wish(&shop, "b");
    let first: Vec<_> = (0..2).filter_map(|_| world.next_write()).collect();
    assert!(
        first
            .iter()
            .any(|write| &*write.content.as_ref().unwrap().namespace == "b")
    );
    // Nobody has all the room either, be it that nothing is answered.
    let mut under_way = first.len();
    while world.next_write().is_some() {
        under_way += 1;
    }
    assert_eq!(under_way, AT_ONCE + 1);
    assert_eq!(
        world.book.deadline(),
        None,
        "a write that ends is waited for"
    );
    world.wish(&name("late.example.com"), "c");
    assert!(world.next_write().is_some());
}

#[test]
fn names_of_a_gateway_that_is_deleted_and_created_again_stay_with_their_holders() {
    // Whichever is first: that the garbage collector takes the objects, or that the Gateway is seen to be
    // gone, or to be there again.
    for collected in 0..3 {
        let mut world = World::leading();
        let shop = name("shop.example.com");
        world.give(&shop, "a");
        let object = world.objects.keys().next().unwrap().clone();
        if collected == 0 {
            world.by_hand(&object, None);
        }
        world.uids.clear();
        world.book.gateways_moved();
        world.say([(&shop, None)]);
        if collected == 1 {
            world.by_hand(&object, None);
        }
        world.pass(Duration::from_secs(30));
        assert_eq!(world.rest(), 0);
        assert_eq!(world.holder(&shop), Some("a"));
        world.uids.insert(edge(), "uid-2");
        world.book.gateways_moved();
        // The sets are not there again yet.
        world.say([(&shop, Some(Standing::Left))]);
        world.rest();
        assert_eq!(
            &*world.objects[&object].content.gateway_uid, "uid-2",
            "{collected}"
        );
        assert_eq!(world.stands(&shop), ["a"]);
        if collected == 2 {
            world.by_hand(&object, None);
            world.rest();
        }
        world.say([(&shop, Some(Standing::Kept))]);
        world.pass(OVER * 2);
        assert_eq!(world.rest(), 0);
        assert_eq!(
            (world.holder(&shop), world.stands(&shop)),
            (Some("a"), vec!["a"])
        );
    }
}

#[test]
fn names_of_a_gateway_that_stays_away_are_forgotten_after_the_grace() {
    for leads in [true, false] {
        let mut world = World::leading();
        let shop = name("shop.example.com");
        world.give(&shop, "a");
        world.book.lead(leads, world.time);
        world.uids.clear();
        world.book.gateways_moved();
        world.say([(&shop, None)]);
        let object = world.objects.keys().next().unwrap().clone();
        world.by_hand(&object, None);
        assert_eq!(world.holder(&shop), Some("a"));
        world.pass(OVER);
        assert_eq!(world.holder(&shop), None);
        world.next_write();
        assert_eq!(world.book.counts(), Counts::default());
        assert_eq!(world.book.deadline(), None);
    }
}

#[test]
fn a_gateway_without_claims_is_served_at_once_whatever_others_have() {
    let mut world = World::new();
    let (fresh, known) = (edge(), ObjectName::new("platform", "known"));
    world.uids.insert(known.clone(), "uid-1");
    world.by_hand(
        &page("known.a.0"),
        Some(object("known", "a", &["x.example.com"])),
    );
    world.by_hand(
        &page("others.a.0"),
        Some(object("others", "a", &["x.example.com"])),
    );
    let (shop, cart, other) = (
        name("shop.example.com"),
        name("cart.example.com"),
        name_on(&known, "y.example.com"),
    );
    world.wish(&shop, "a");
    world.wish(&other, "a");
    world.book.begin(world.time);
    world.news();
    assert_eq!(world.holder(&shop), Some("a"));
    assert_eq!(world.holder(&other), None);
    // What depends on that was served before as well.
    world.wish(&cart, "b");
    world.news();
    assert_eq!(world.holder(&cart), Some("b"));
    // From here on it is news.
    world.news();
    let late = name_on(&fresh, "late.example.com");
    world.wish(&late, "c");
    world.news();
    assert_eq!(world.holder(&late), None);
    world.say([(&shop, Some(Standing::Kept)), (&cart, Some(Standing::Kept))]);
    world.book.lead(true, world.time);
    world.rest();
    for (key, holder) in [(&shop, "a"), (&cart, "b"), (&late, "c"), (&other, "a")] {
        assert_eq!(
            (world.holder(key), world.stands(key)),
            (Some(holder), vec![holder])
        );
    }
}

#[test]
fn objects_that_were_changed_or_made_by_hand_are_put_right_after_a_restart_too() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    let right = world.objects.clone();
    let nobodys = object("No Such", "a", &["shop.example.com"]);
    let spoilt = [
        ("edge.a.0", nobodys.clone()),
        ("edge.a.0", object("edge", "b", &["shop.example.com"])),
        ("edge.b.7", object("edge", "Not A Name", &[])),
        (
            "mine",
            object("edge", "b", &["shop.example.com", "b.example.com"]),
        ),
        ("edge.b.x", object("edge", "b", &["b.example.com"])),
    ];
    for (at, content) in spoilt {
        // A leader that knows better.
        assert!(!world.by_hand(&page(at), Some(content.clone())), "{at}");
        assert_eq!(world.book.counts().spoilt, 1);
        assert_eq!(world.holder(&shop), Some("a"));
        world.rest();
        assert_eq!(
            world.objects.keys().collect::<Vec<_>>(),
            right.keys().collect::<Vec<_>>()
        );
        assert_eq!(world.stands(&shop), ["a"]);
        assert_eq!(world.book.counts().spoilt, 0);
        // One that starts with it.
        world.by_hand(&page(at), Some(content));
        let mut restarted = world.restarted();
        restarted.rest();
        assert_eq!(restarted.book.counts().spoilt, 0);
        assert_eq!(restarted.stands(&shop).len(), usize::from(at != "edge.a.0"));
        assert!(
            restarted.objects.len() <= 1,
            "{at}: {:?}",
            restarted.objects
        );
        world.rest();
    }
    // What belongs to somebody else's Gateway is theirs to put right.
    world.by_hand(&page("theirs.a.0"), Some(nobodys));
    world.rest();
    assert_eq!((world.objects.len(), world.book.counts().spoilt), (2, 1));
}

#[test]
fn an_object_takes_names_back_even_if_others_have_their_room() {
    let mut world = World::leading();
    let names: Vec<_> = (0..SLAB)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    for key in &names {
        world.give(key, "a");
    }
    for key in &names {
        world.say([(key, Some(Standing::Revoked))]);
    }
    for n in 0..SLAB {
        world.wish(&name(&format!("more{n}.example.com")), "a");
    }
    for key in &names {
        world.say([(key, Some(Standing::Kept))]);
    }
    world.rest();
    assert!(names.iter().all(|key| world.stands(key) == ["a"]));
    assert!(
        world
            .objects
            .values()
            .all(|o| o.content.entries.len() <= 2 * SLAB)
    );
}

/// A replica that knows nothing later than what `leader` has shown it, and that follows.
fn behind(leader: &World, told: &[(&vestibule_model::claim::ClaimKey, Standing)]) -> World {
    let mut world = leader.restarted();
    world.book.lead(false, world.time);
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
    let mut next = behind(&first, &[(&shop, Standing::Kept), (&cart, Standing::Kept)]);
    let history = first.version;
    for key in [&shop, &cart] {
        first.say([(key, Some(Standing::Revoked))]);
    }
    first.rest();
    assert!(first.objects.is_empty());
    first.give(&shop, "b");
    next.objects.clone_from(&first.objects);
    next.version = first.version;

    assert!(next.take_over());
    assert_eq!(next.holder(&shop), Some("b"));
    next.rest();
    assert_eq!(
        (next.holder(&shop), next.stands(&shop)),
        (Some("b"), vec!["b"])
    );
    // What the watch shows of the time before changes nothing.
    assert!(history < next.version);
    let old = object("edge", "a", &["shop.example.com"]);
    let stored = Stored {
        content: old,
        version: history + 1,
    };
    next.show(&page("edge.a.0"), Some(&stored));
    assert_eq!(next.holder(&shop), Some("b"));
    next.show(&page("edge.a.0"), None);
    next.rest();
    assert_eq!(
        (next.holder(&shop), next.stands(&shop)),
        (Some("b"), vec!["b"])
    );
}

#[test]
fn what_happens_while_claims_are_being_listed_is_neither_lost_nor_brought_back() {
    let mut world = World::leading();
    let (shop, cart) = (name("shop.example.com"), name("cart.example.com"));
    world.give(&shop, "a");
    world.book.lead(false, world.time);
    let listed = [(page("edge.a.0"), world.seen(&page("edge.a.0")).unwrap())];
    world.book.list(world.time.now);
    // After the list was read, one goes and one comes.
    world.by_hand(&page("edge.a.0"), None);
    world.by_hand(
        &page("edge.b.0"),
        Some(object("edge", "b", &["cart.example.com"])),
    );
    assert!(!world.book.catch_up(listed.into(), world.time));
    world.news();
    assert_eq!(world.holder(&cart), Some("b"));
    assert_eq!(world.book.counts().objects, 1);
    assert!(world.take_over());
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.holder(&cart)),
        (Some("a"), Some("b"))
    );
    assert_eq!(
        (world.stands(&shop), world.stands(&cart)),
        (vec!["a"], vec!["b"])
    );
}
