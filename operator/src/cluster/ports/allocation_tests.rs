use proptest::prelude::*;

use vestibule_model::protocol::{Port, Transport};

use super::*;

fn id(gateway: &str, port: u16) -> DesiredPort {
    DesiredPort {
        gateway: gateway.into(),
        port: Port::new(port).expect("it is not 0"),
        transport: Transport::Tcp,
    }
}

fn ids(names: &[&str]) -> BTreeSet<DesiredPort> {
    names.iter().map(|name| id(name, 443)).collect()
}

#[test]
fn counts_up_and_keeps_what_is_given_out() {
    let first = Allocation::default().settle(&ids(&["a", "b"]));
    let a = id("a", 443);
    let b = id("b", 443);
    assert_eq!((first.get(&a), first.get(&b)), (Some(10_000), Some(10_001)));
    // b goes, c comes, and b comes back. Neither gets the port that b had.
    let second = first.settle(&ids(&["a", "c"]));
    assert_eq!(second.get(&id("c", 443)), Some(10_002));
    let third = second.settle(&ids(&["a", "b", "c"]));
    assert_eq!(third.get(&b), Some(10_003));
    assert_eq!(third.get(&a), Some(10_000));
    assert_eq!(third.settle(&ids(&["a", "b", "c"])), third);
}

#[test]
fn wraps_and_leaves_out_what_the_proxies_use_themselves() {
    let text = |next: u16| format!(r#"{{"next":{next},"ports":{{"x/1/TCP":10000}}}}"#);
    let wanted: BTreeSet<DesiredPort> = [id("x", 1)].into_iter().chain(ids(&["y", "z"])).collect();
    let settled = |next| {
        let allocation = Allocation::from_json(&text(next))
            .expect("it is JSON")
            .settle(&wanted);
        let port = |name| allocation.get(&id(name, 443));
        (port("y"), port("z"))
    };
    assert_eq!(settled(32_767), (Some(32_767), Some(10_001)));
    assert_eq!(settled(14_999), (Some(14_999), Some(15_100)));
}

#[test]
fn allocation_that_was_tampered_with_gives_no_two_gateways_the_same_port() {
    let text = r#"{"next":1,"ports":{"a/443/TCP":10005,"b/443/TCP":10005,"c/443/TCP":80}}"#;
    let allocation = Allocation::from_json(text).expect("it is JSON");
    assert_eq!(allocation.len(), 1);
    let settled = allocation.settle(&ids(&["a", "b", "c"]));
    let distinct: BTreeSet<u16> = settled.iter().map(|(_, port)| port).collect();
    assert_eq!(distinct.len(), 3);
    assert!(Allocation::from_json("{").is_err());
}

#[test]
fn without_a_port_left_the_others_keep_theirs() {
    let all: BTreeSet<DesiredPort> = (0..40_000_u32)
        .map(|n| id(&format!("{n:05}"), 443))
        .collect();
    let full = Allocation::default().settle(&all);
    assert_eq!(full.len(), MOST);
    assert_eq!(full.settle(&all), full);
}

#[test]
fn no_gateway_takes_the_ports_of_all_and_what_is_persisted_fits() {
    let uid = |n: u32| format!("{n:08}-0000-0000-0000-000000000000");
    let all: BTreeSet<DesiredPort> = (0..20)
        .flat_map(|gateway| (1..=2_000).map(move |port| id(&uid(gateway), port)))
        .collect();
    let full = Allocation::default().settle(&all);
    let of = |n: u32| {
        let uid = uid(n);
        full.iter().filter(|(id, _)| *id.gateway == *uid).count()
    };
    assert_eq!((of(0), of(15), full.len()), (1_000, 1_000, 16_000));
    // A ConfigMap has at most 1 MiB.
    assert!(full.to_json().len() < 1_000_000);
    assert_eq!(full.settle(&all), full);
    // A Gateway that has a port keeps it, even if others come before it in order.
    let kept = Allocation::default().settle(&[id("g", 60_000)].into());
    let crowd: BTreeSet<DesiredPort> = (1..=2_000)
        .chain([60_000])
        .map(|port| id("g", port))
        .collect();
    let crowded = kept.settle(&crowd);
    assert_eq!(crowded.get(&id("g", 60_000)), kept.get(&id("g", 60_000)));
    assert_eq!(crowded.len(), 1_000);
}

#[test]
fn takes_up_what_is_in_use() {
    let a = id("a", 443);
    let allocation = Allocation::default()
        .with(a.clone(), 20_000)
        .with(id("b", 443), 20_000)
        .with(a.clone(), 20_001)
        .with(id("c", 443), 99);
    assert_eq!(allocation.len(), 1);
    assert_eq!(allocation.get(&a), Some(20_000));
    let next = allocation.settle(&ids(&["a", "d"]));
    assert_eq!(next.get(&id("d", 443)), Some(20_001));
}

proptest! {
    /// Over any history, no port is given out twice at a time, and none changes as long as it is
    /// wanted. A port that was freed is not given out before all others were, and the persisted
    /// form is complete.
    #[test]
    fn any_history(history in prop::collection::vec(prop::collection::btree_set(0..40_u8, 0..20), 1..40)) {
        let mut allocation = Allocation::default();
        for wanted in history {
            let wanted: BTreeSet<DesiredPort> =
                wanted.iter().map(|n| id(&n.to_string(), 443)).collect();
            let before = allocation;
            allocation = before.settle(&wanted);
            prop_assert_eq!(allocation.len(), wanted.len());
            let distinct: BTreeSet<u16> = allocation.iter().map(|(_, port)| port).collect();
            prop_assert_eq!(distinct.len(), wanted.len());
            for (id, port) in allocation.iter() {
                match before.get(id) {
                    Some(kept) => prop_assert_eq!(kept, port),
                    None => prop_assert!(port >= before.next, "{port} is below {}", before.next),
                }
            }
            let again = Allocation::from_json(&allocation.to_json());
            prop_assert_eq!(again.ok(), Some(allocation.clone()));
        }
    }
}
