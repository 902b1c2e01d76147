//! Which certificates may order, and which wait: budgets, slots, and names that another one holds.

use vestibule_model::challenge::Reach;

use super::simulation::*;
use crate::plan::*;

#[test]
fn many_at_once_are_all_issued_and_renewals_do_not_wait_for_them() {
    let mut sim = Sim::new([10_000; 3], 16);
    for n in 0..5 {
        sim.set(request(9, &[n], [Reach::Ours; 2]));
    }
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty());
    // A tenant comes with many names and few orders per hour.
    sim.rates = [20, 20, 20];
    sim.crash();
    sim.jumped += 80 * DAY;
    for n in 100..140_u8 {
        for namespace in 0..2 {
            let mut new = request(namespace, &[n], [Reach::Ours; 2]);
            new.gateway = ObjectName::new("platform", format!("g{namespace}"));
            sim.set(new);
        }
    }
    let before = sim.orders.len();
    let began = sim.steady;
    let mut renewed_by = None;
    let old: Vec<Hostname> = (0..5).map(host).collect();
    while sim.steady < began + Duration::from_hours(12) && !sim.missing().is_empty() {
        sim.advance();
        let renewed = sim.orders.iter().skip(before).filter(|order| {
            old.iter().any(|name| order.hostnames.contains(name)) && order.leaf.is_some()
        });
        if renewed.count() >= 5 {
            renewed_by.get_or_insert(sim.steady.saturating_sub(began));
        }
        if sim.tasks.is_empty() && sim.published.is_empty() {
            sim.steady = sim.planner.next(sim.now());
        }
        sim.steady += Duration::from_millis(5);
        for _ in 0..16 {
            sim.complete(0, Fate::Well);
        }
        sim.ack();
    }
    assert!(sim.missing().is_empty(), "{} missing", sim.missing().len());
    assert!(
        renewed_by.is_some_and(|after| after < Duration::from_mins(10)),
        "{renewed_by:?}"
    );
}

#[test]
fn restarts_give_no_fresh_hour() {
    let mut sim = Sim::new([1000, 1000, 5], 4);
    for n in 0..40 {
        sim.set(request(0, &[n], [Reach::Ours; 2]));
    }
    for _ in 0..6 {
        for _ in 0..400 {
            sim.advance();
            sim.steady += Duration::from_millis(20);
            sim.complete(0, Fate::Well);
            sim.ack();
        }
        while !sim.tasks.is_empty() {
            sim.complete(0, Fate::Well);
            sim.advance();
        }
        sim.crash();
    }
    assert_eq!(sim.orders.len(), 5);
}

#[test]
fn a_proxy_that_is_held_up_holds_up_the_order_but_not_the_others_turn() {
    let mut sim = Sim::new([1000; 3], 2);
    sim.set(request(0, &[1], [Reach::Ours; 2]));
    sim.set(request(1, &[2], [Reach::Ours; 2]));
    for _ in 0..60 {
        sim.advance();
        sim.complete(0, Fate::Well);
    }
    assert!(!sim.published.is_empty());
    let declared = |sim: &Sim| sim.orders.iter().any(|order| order.checked);
    for _ in 0..40 {
        sim.steady += Duration::from_mins(1);
        sim.advance();
        sim.complete(0, Fate::Well);
        assert!(!declared(&sim), "not before every proxy has it");
    }
    assert_eq!(
        sim.published.len(),
        2,
        "both are out, though only one has a turn at a time"
    );
    assert_eq!(sim.planner.active.len(), 0, "nor does that take up a slot");
    sim.calm(Duration::from_mins(30));
    assert!(sim.missing().is_empty());
    assert_eq!(sim.orders.len(), 2);
}

#[test]
fn a_proxy_that_never_has_the_challenge_ends_the_order_after_its_hour() {
    let mut sim = Sim::new([1000; 3], 2);
    let one = request(0, &[1], [Reach::Ours; 2]);
    sim.set(one.clone());
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Well);
    for _ in 0..70 {
        sim.steady += Duration::from_mins(1);
        sim.advance();
        sim.complete(0, Fate::Well);
    }
    let (record, _) = &sim.secrets[&one.secret];
    let state = RememberedState::read(record.state.as_deref());
    let failure = state.failure.expect("the order has failed");
    assert!(
        failure
            .problem
            .contains("not every proxy had its challenge"),
        "{failure:?}"
    );
    assert!(sim.orders[0].invalid, "it is closed at the CA");
    // The next order is issued as soon as the proxies have its challenge.
    sim.calm(Duration::from_mins(30));
    assert!(sim.missing().is_empty(), "{:?}", sim.planner);
    assert_eq!(sim.orders.len(), 2);
}

#[test]
fn an_order_that_cannot_go_on_keeps_nobody_from_its_names() {
    let http = [Reach::NoListener, Reach::Ours];
    let mut sim = Sim::new(RATES, 3);
    sim.set(request(2, &[3], http));
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Lost);
    // Another namespace serves the name now, so the order waits until that changes.
    sim.set(request(2, &[3], [Reach::Others, Reach::NoListener]));
    sim.advance();
    sim.set(request(0, &[0, 3], http));
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty(), "{:?}", sim.planner);
}

#[test]
fn nor_does_one_whose_challenges_are_out() {
    let mut sim = Sim::new(RATES, 3);
    let first = request(2, &[3], [Reach::Ours; 2]);
    let secret = first.secret.clone();
    sim.set(first);
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Well);
    sim.advance();
    // The proxies are late, and the order gave up its turn.
    sim.steady += Duration::from_mins(5);
    sim.advance();
    assert!(!sim.published.is_empty());
    let (record, _) = sim.secrets.get_mut(&secret).expect("it has an order");
    record.ours = false;
    sim.tell(Input::SecretChanged(secret.clone()));
    sim.set(request(0, &[0, 3], [Reach::Ours; 2]));
    sim.calm(Duration::from_hours(1));
    assert_eq!(sim.missing(), [&secret], "{:?}", sim.planner);
    assert!(sim.published.is_empty());
}
