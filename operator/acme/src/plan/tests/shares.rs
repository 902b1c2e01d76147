//! Shares: CAs of tenants that never answer or never decide delay no other tenant.

use proptest::prelude::*;

use super::world::*;
use crate::effects::OrderOutcome;
use crate::plan::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A tenant's CA that never answers holds only its share of the slots, and the certificates of others come as
    /// usual.
    #[test]
    fn a_ca_that_answers_nothing_holds_a_quarter_and_nobody_up(
        in_flight in 4_usize..60,
        certificates in 1_usize..80,
        others in 1_usize..5,
    ) {
        let mut world = World::new(settings(in_flight));
        world.issuer("hog", "hog.test", Behaviour::Silent);
        let share = in_flight / 4;
        world.wants("hog", certificates);
        world.open_all();
        let new = share - share / 4;
        prop_assert_eq!(world.stuck.len(), certificates.min(new));
        let mut wanted = Vec::new();
        for n in 0..others {
            let namespace = format!("n{n}");
            world.issuer(&namespace, "prompt.test", Behaviour::Prompt);
            wanted.extend(world.wants(&namespace, 5));
        }
        world.open_all();
        world.run(Duration::from_secs(5));
        prop_assert!(wanted.iter().all(|secret| world.issued.contains(secret)));
        prop_assert!(world.stuck.len() <= share);
    }

    /// This holds for any number of namespaces with such a CA. When one of their requests is given up, a namespace that
    /// has nothing running gets its turn before any of them has one more.
    #[test]
    fn many_of_them_make_others_wait_for_one_request(
        in_flight in 4_usize..40,
        hogs in 4_usize..9,
        places in prop::collection::vec(any::<usize>(), 40),
    ) {
        let mut world = World::new(settings(in_flight));
        for n in 0..hogs {
            let namespace = format!("hog{n}");
            world.issuer(&namespace, &format!("{namespace}.test"), Behaviour::Silent);
            world.wants(&namespace, 30);
        }
        world.open_all();
        world.issuer("other", "prompt.test", Behaviour::Prompt);
        let wanted = world.wants("other", 3);
        world.open_all();
        let mut given_up = 0;
        for place in places {
            if wanted.iter().all(|secret| world.issued.contains(secret)) {
                break;
            }
            if world.stuck.is_empty() {
                world.run(Duration::from_secs(2));
                continue;
            }
            let waits = |secret: &ObjectName| {
                matches!(world.planner.entries[secret].phase, Phase::Queued(_))
            };
            let waits = wanted.iter().any(waits);
            let before = world.asked.len();
            given_up += 1;
            world.give_up(place);
            world.settle();
            let first = world.asked.get(before).map(|(secret, _)| secret.namespace.clone());
            let first = first.as_deref().unwrap_or_default();
            let held = world.stuck.iter().filter(|(of, ..)| &*of.namespace == first).count();
            prop_assert!(!waits || first == "other" || held == 1, "{first}: {held}");
            // The CA is asked again after a while.
            world.run(Duration::from_secs(2));
        }
        prop_assert!(wanted.iter().all(|secret| world.issued.contains(secret)), "{}", given_up);
    }
}

#[test]
fn orders_that_wait_for_their_ca_hold_no_slot_and_are_bounded() {
    let mut world = World::new(settings(16));
    world.issuer("hog", "hog.test", Behaviour::Undecided);
    let certificates = world.wants("hog", 100);
    world.open_all();
    world.run(Duration::from_mins(10));
    // Four times a namespace's share of 4, less the quarter that is kept for renewals.
    assert_eq!(world.orders, 12);
    assert_eq!(world.planner.under_way.len(), 12);
    assert_eq!(world.planner.active.len(), 0);
    let said = &world.words[&certificates[0]];
    assert!(said.message.contains("checks h0.ca.hog.test"), "{said:?}");
    // The others are not delayed by the polling.
    world.issuer("other", "prompt.test", Behaviour::Prompt);
    let wanted = world.wants("other", 20);
    world.open_all();
    world.run(Duration::from_secs(30));
    assert!(wanted.iter().all(|secret| world.issued.contains(secret)));
    let looks = world.asked_by("hog", "look");
    world.run(Duration::from_mins(30));
    let each = (world.asked_by("hog", "look") - looks) / 12;
    assert!(each <= 40, "{each} questions for an order in half an hour");
    assert!(
        world
            .ended
            .iter()
            .all(|(secret, ..)| &*secret.namespace == "other")
    );
}

#[test]
fn an_order_has_one_lifetime_through_every_step_and_leader() {
    for behaviour in [
        Behaviour::Undecided,
        Behaviour::Processing,
        Behaviour::Forgetful,
    ] {
        for restarts in [0, 3] {
            let mut world = World::new(settings(16));
            world.issuer("a", "a.test", behaviour);
            let secret = world.wants("a", 1).remove(0);
            world.open_all();
            // Leaders follow each other until just before the deadline of the order.
            for _ in 0..restarts {
                world.run(Duration::from_mins(14));
                let (wall, steady) = (world.now.wall, world.now.steady);
                world.restart();
                // The clocks of the new leader go on from there.
                world.now = Now { wall, steady };
                world.open_all();
            }
            let passed = Duration::from_mins(14) * restarts + Duration::from_mins(2);
            let left = LIFETIME.saturating_sub(passed);
            world.run(left);
            let ended = world.ended.clone();
            if behaviour == Behaviour::Forgetful {
                assert!(world.asked_by("a", "finalize") <= 5 * world.orders);
            } else {
                assert_eq!(ended, [], "{behaviour:?} {restarts}");
            }
            world.run(Duration::from_mins(4));
            let (_, outcome, message) = world.ended.first().expect("it is over");
            assert_eq!(*outcome, OrderOutcome::Failed);
            if behaviour != Behaviour::Forgetful {
                assert!(message.contains("not done within an hour"), "{message}");
                assert_eq!(world.ended.len(), 1, "{:?}", world.ended);
            }
            let state = RememberedState::read(world.secrets[&secret].state.as_deref());
            assert!(state.order.is_none() || world.orders > 1);
            let failure = state.failure.expect("it is remembered");
            assert!(failure.retry_at > failure.at);
        }
    }
}

#[test]
fn an_order_that_waited_for_proxies_or_a_network_does_not_wait_longer_each_time() {
    let mut world = World::new(settings(16));
    world.issuer("a", "a.test", Behaviour::Silent);
    let secret = world.wants("a", 1).remove(0);
    world.open_all();
    // Its order is made, and then the CA is unreachable for hours.
    world.behaviour.insert("a".into(), Behaviour::Undecided);
    world.give_up(0);
    world.run(Duration::from_secs(10));
    assert_eq!(world.orders, 1);
    world.behaviour.insert("a".into(), Behaviour::Silent);
    for _ in 0..60 {
        world.run(Duration::from_mins(3));
        if !world.stuck.is_empty() {
            world.give_up(0);
        }
    }
    let state = RememberedState::read(world.secrets[&secret].state.as_deref());
    let failure = state.failure.expect("the order is given up");
    assert_eq!(failure.count, 1);
    assert!(failure.problem.contains("within an hour"), "{failure:?}");
    assert!(failure.problem.contains("does not answer"), "{failure:?}");
    world.behaviour.insert("a".into(), Behaviour::Prompt);
    while !world.stuck.is_empty() {
        world.give_up(0);
    }
    world.run(Duration::from_mins(15));
    assert!(world.issued.contains(&secret));
}
