//! Random histories: crashes at any point, lost answers, clocks that jump, and requests that come, change and go.

use proptest::prelude::*;
use vestibule_model::challenge::Reach;

use super::simulation::*;
use crate::plan::*;

#[derive(Debug, Clone)]
enum Happens {
    Completes(u8, Fate),
    Acked,
    Passes(u32),
    Jumps(i64),
    Crash,
    Asked(u8, Vec<u8>, u8),
    Gone(u8),
    Touched(u8),
    Deleted(u8),
    Failing(bool),
    Profile(bool),
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::*;
    let fate = prop_oneof![8 => Just(Fate::Well), 1 => Just(Fate::Lost), 1 => Just(Fate::Unheard)];
    prop_oneof![
        20 => (any::<u8>(), fate).prop_map(|(n, fate)| Completes(n, fate)),
        6 => Just(Acked),
        6 => (0_u32..3600).prop_map(Passes),
        1 => (-400 * DAY..400 * DAY).prop_map(Jumps),
        1 => Just(Crash),
        4 => (0_u8..3, prop::collection::vec(0_u8..5, 1..3), 0_u8..8).prop_map(|(n, h, r)| Asked(n, h, r)),
        1 => any::<u8>().prop_map(Gone),
        1 => any::<u8>().prop_map(Touched),
        1 => any::<u8>().prop_map(Deleted),
        1 => any::<bool>().prop_map(Failing),
        1 => any::<bool>().prop_map(Profile),
    ]
}

fn nth(sim: &Sim, n: u8) -> Option<ObjectName> {
    let place = usize::from(n) % sim.requests.len().max(1);
    sim.requests.keys().nth(place).cloned()
}

fn apply(sim: &mut Sim, happens: Happens) {
    match happens {
        Happens::Completes(n, fate) => sim.complete(n.into(), fate),
        Happens::Acked => sim.ack(),
        Happens::Passes(seconds) => sim.steady += Duration::from_secs(seconds.into()),
        Happens::Jumps(by) => {
            sim.jumped += by;
            sim.excuses += sim.requests.len();
        }
        Happens::Crash => sim.crash(),
        Happens::Asked(namespace, hosts, form) => {
            let reach = match form {
                0 => [Reach::Others, Reach::NoListener],
                1 => [Reach::NoListener, Reach::Ours],
                _ => [Reach::Ours; 2],
            };
            let mut asked = request(namespace, &hosts, reach);
            if form > 5 {
                asked.gateway = ObjectName::new("platform", "other");
            }
            sim.set(asked);
        }
        Happens::Gone(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.remove(&secret);
            }
        }
        Happens::Touched(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.tell(Input::SecretChanged(secret));
            }
        }
        Happens::Deleted(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.excuses += 1;
                sim.secrets.remove(&secret);
                sim.deleted.insert(secret.clone());
                sim.tell(Input::SecretChanged(secret));
            }
        }
        Happens::Failing(failing) => sim.failing = failing,
        Happens::Profile(set) => {
            sim.excuses += sim.requests.len();
            sim.issuer = issuer(set.then_some("short"));
            let issuers = BTreeMap::from([(issuer_key(), Some(sim.issuer.clone()))]);
            sim.tell(Input::Issuers(issuers));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever happens, the assertions of each step hold. Afterwards everybody gets a certificate, no challenge is
    /// left, and there are no more orders than the history explains.
    #[test]
    fn histories_end_with_all_certificates_no_challenges_and_no_excess_orders(history in prop::collection::vec(happens(), 1..220)) {
        let mut sim = Sim::new(RATES, 3);
        for happens in history {
            apply(&mut sim, happens);
            sim.advance();
        }
        sim.calm(Duration::from_hours(24 * 8));
        prop_assert!(sim.missing().is_empty(), "{:?} of {:?}", sim.missing(), sim.planner.entries);
        prop_assert!(sim.published.is_empty());
        let most = sim.requests.len() + sim.excuses;
        prop_assert!(sim.orders.len() <= most, "{} orders, {most} accounted for", sim.orders.len());
    }
}
