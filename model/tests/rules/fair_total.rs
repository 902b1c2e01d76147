//! A total that namespaces share in max-min fair shares.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::fair_total::{Demand, FairTotal};

use Demand::{Exempt, Limited};

fn total_of(total: u64, demands: &[(&str, Demand)]) -> FairTotal {
    let mut fair = FairTotal::new(total);
    for (namespace, demand) in demands {
        fair.put(&Arc::from(*namespace), *demand);
    }
    fair
}

#[test]
fn namespace_that_asks_for_less_than_the_share_gets_all_of_it() {
    let share = |demands: &[(&str, Demand)]| total_of(100, demands).share();
    assert_eq!(share(&[]), None);
    assert_eq!(share(&[("a", Limited(60)), ("b", Limited(40))]), None);
    assert_eq!(share(&[("a", Limited(u64::MAX))]), Some(100));
    assert_eq!(share(&[("a", Limited(60)), ("b", Limited(60))]), Some(50));
    // Both others get equal parts of what the small one leaves.
    let with_small = [("a", Limited(60)), ("b", Limited(60)), ("c", Limited(10))];
    assert_eq!(share(&with_small), Some(45));
    let with_middle = [("a", Limited(90)), ("b", Limited(40)), ("c", Limited(10))];
    assert_eq!(share(&with_middle), Some(50));
    // An exempt one comes first, even with more than there is.
    let beside = |takes| share(&[("a", Limited(60)), ("b", Limited(30)), ("p", Exempt(takes))]);
    assert_eq!(beside(10), None);
    assert_eq!(beside(20), Some(50));
    assert_eq!(beside(60), Some(20));
    assert_eq!([beside(100), beside(u64::MAX)], [Some(0), Some(0)]);

    let fair = total_of(100, &with_middle);
    let above = |share| fair.above(share).map(|name| &**name).collect::<Vec<_>>();
    assert_eq!(above(90), [""; 0]);
    assert_eq!(above(40), ["a"]);
    assert_eq!(above(39), ["a", "b"]);
}

/// The share by its definition: the part of the total that is left for each, as long as one of them needs less.
fn share_of(total: u64, demands: &BTreeMap<u8, Demand>) -> Option<u64> {
    let mut left = u128::from(total);
    let mut asks = Vec::new();
    for demand in demands.values() {
        match demand {
            Exempt(takes) => left = left.saturating_sub((*takes).into()),
            Limited(asked) => asks.push(u128::from(*asked)),
        }
    }
    if asks.iter().sum::<u128>() <= left {
        return None;
    }
    asks.sort_unstable();
    for (done, asked) in asks.iter().enumerate() {
        let share = left / (asks.len() - done) as u128;
        if *asked > share {
            return Some(u64::try_from(share).expect("at most the total"));
        }
        left -= asked;
    }
    unreachable!("they ask for more than there is")
}

fn a_demand() -> impl Strategy<Value = Demand> {
    let amount = || prop_oneof![12 => 0_u64..40, 1 => Just(u64::MAX)];
    prop_oneof![6 => amount().prop_map(Limited), 1 => amount().prop_map(Exempt)]
}

proptest! {
    /// After any history the share is the one that is right for what is asked for now. The sum stays within the total, and
    /// nobody has less than what they ask for or an equal part.
    #[test]
    fn each_has_its_fair_share_whatever_the_history(
        total in 0_u64..100,
        steps in prop::collection::vec((0_u8..8, a_demand()), 1..40),
    ) {
        let mut fair = FairTotal::new(total);
        let mut demands = BTreeMap::new();
        for (n, demand) in steps {
            fair.put(&Arc::from(n.to_string()), demand);
            if matches!(demand, Limited(0) | Exempt(0)) {
                demands.remove(&n);
            } else {
                demands.insert(n, demand);
            }
            let share = fair.share();
            prop_assert_eq!(share, share_of(total, &demands));
            let mut scratch = FairTotal::new(total);
            for (n, demand) in demands.iter().rev() {
                scratch.put(&Arc::from(n.to_string()), *demand);
            }
            prop_assert_eq!(&scratch, &fair);

            let share = share.unwrap_or(u64::MAX);
            let (mut sum, mut taken, mut asking) = (0_u128, 0_u128, Vec::new());
            for demand in demands.values() {
                match demand {
                    Exempt(takes) => taken += u128::from(*takes),
                    Limited(asks) => {
                        sum += u128::from(*asks.min(&share));
                        asking.push(*asks);
                    }
                }
            }
            let left = u128::from(total).saturating_sub(taken);
            prop_assert!(sum <= left);
            for asks in &asking {
                let equal = left / asking.len() as u128;
                prop_assert!(u128::from(*asks.min(&share)) >= equal.min((*asks).into()));
            }
        }
    }
}
