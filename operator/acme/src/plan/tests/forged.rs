//! Secrets in which a tenant has written what it likes. They cost no other tenant anything.

use vestibule_model::challenge::Reach;

use super::simulation::*;
use crate::plan::*;

/// What the Secret of a certificate remembers, as its tenant says.
fn says(sim: &mut Sim, secret: &ObjectName, state: &RememberedState) {
    let (record, _) = sim.secrets.entry(secret.clone()).or_default();
    let version = record.version.parse::<u64>().unwrap_or_default() + 1;
    record.version = version.to_string().into();
    record.ours = true;
    record.state = Some(state.write().into());
}

#[test]
fn orders_that_secrets_make_up_keep_nobody_else_from_ordering() {
    let mut sim = Sim::new(RATES, 16);
    let renews = request(1, &[20], [Reach::Ours; 2]);
    sim.set(renews.clone());
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty());
    // A certificate is due, and another tenant says that it has ordered all that everybody may order.
    sim.steady += Duration::from_hours(24 * 70);
    let now = sim.now().wall;
    for renewal in [false, true] {
        for n in 0..24 {
            let forged = request(0, &[100 + 24 * u8::from(renewal) + n], [Reach::Others; 2]);
            let state = RememberedState {
                ordered_at: Some(now),
                renewal,
                ..RememberedState::default()
            };
            says(&mut sim, &forged.secret, &state);
            sim.requests.insert(forged.secret.clone(), forged);
        }
    }
    let new = request(2, &[21], [Reach::Ours; 2]);
    sim.requests.insert(new.secret.clone(), new);
    sim.crash();
    let before = sim.orders.len();
    let end = sim.steady + Duration::from_mins(1);
    while sim.steady < end {
        sim.advance();
        sim.complete(0, Fate::Well);
        sim.ack();
        sim.steady += Duration::from_millis(100);
    }
    assert!(sim.missing().is_empty(), "{:?}", sim.missing());
    assert_eq!(sim.orders.len() - before, 2, "one is new, one is renewed");
}

#[test]
fn an_order_counts_once_however_often_its_request_goes_and_comes() {
    let mut sim = Sim::new(RATES, 16);
    let first = request(0, &[0], [Reach::Ours; 2]);
    sim.set(first.clone());
    sim.calm(Duration::from_hours(1));
    for _ in 0..20 {
        sim.remove(&first.secret);
        sim.set(first.clone());
        for _ in 0..4 {
            sim.advance();
            sim.complete(0, Fate::Well);
        }
    }
    // Four orders an hour are a namespace's, and one is made.
    for n in 1..4 {
        sim.set(request(0, &[n], [Reach::Ours; 2]));
    }
    sim.calm(Duration::from_mins(5));
    assert!(sim.missing().is_empty(), "{:?}", sim.missing());
}
