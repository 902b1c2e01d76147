//! A holder keeps being served: whatever objects of other namespaces come, change and go, each name that a tenant's own
//! route serves is served by that route still. Neither the tenant, nor the Gateway's owner, nor grants change anything.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::world::{NAMES, World};
use crate::{HOSTS, Op, PORTS, RouteOf, TENANTS, Wanted, a_fate, histories};

/// The tenant whose names are watched.
const HOLDER: usize = 0;

/// A port and whether TLS is spoken there, and a hostname.
type Request = (u16, bool, &'static str);

/// Every request that a route of the holder answers, with that route. A name that belongs to nobody but through a
/// pattern for every name is left out: that pattern stands for what nobody else holds.
fn served(world: &World) -> BTreeMap<Request, String> {
    let table = world.leading().table();
    let mut served = BTreeMap::new();
    for port in PORTS {
        for tls in [false, true] {
            for name in NAMES {
                let held = table.owner_of(name).is_some_and(|(of, _)| !of.is_empty());
                let answer = table.answer_by(port.into(), tls, name);
                if let Some((tenant, route)) = answer.filter(|_| held)
                    && tenant == TENANTS[HOLDER]
                {
                    served.insert((port, tls, name), route.to_owned());
                }
            }
        }
    }
    served
}

/// Listeners and routes of tenants. A listener of the holder's takes no route of others.
fn an_object_of(tenants: &'static [usize]) -> impl Strategy<Value = Op> {
    let tenant = move || prop::sample::select(tenants);
    let listener = (0..3_usize, 0..8_usize, 0..HOSTS.len(), any::<bool>());
    let listeners = prop::collection::vec(listener, 0..3);
    let hosts = prop::collection::vec(0..HOSTS.len(), 1..3);
    let to = prop_oneof![
        2 => Just(None),
        1 => (prop::option::of(tenant()), 0..2_usize).prop_map(Some)
    ];
    let to = prop::collection::vec(to, 1..3);
    let of = move || (tenant(), 0..2_usize, any::<bool>());
    prop_oneof![
        3 => (tenant(), 0..2_usize, listeners).prop_map(|(tenant, set, listeners)| {
            let own = |(port, speaks, host, open): Wanted| {
                (port, speaks, host, open && tenant != HOLDER)
            };
            Op::Set(tenant, set, listeners.into_iter().map(own).collect())
        }),
        4 => (of(), hosts, to).prop_map(|(of, hosts, to): (RouteOf, _, Vec<_>)| {
            let to = to.into_iter().map(|to| to.map(|(t, s)| (t.unwrap_or(of.0), s)));
            Op::Route(of, hosts, to.collect())
        }),
    ]
}

/// Steps of others, and the fates of the operator meanwhile.
fn a_foreign_op() -> impl Strategy<Value = Op> {
    let of = || (1..3_usize, 0..2_usize, any::<bool>());
    prop_oneof![
        8 => an_object_of(&[1, 2]),
        2 => (1..3_usize, 0..2_usize).prop_map(|(t, s)| Op::DeleteSet(t, s)),
        2 => of().prop_map(Op::DeleteRoute),
        6 => (0..2_usize, 0..6_usize).prop_map(|(r, k)| Op::Show(r, k)),
        5 => a_fate().prop_map(Op::Write),
        1 => (0..2_usize).prop_map(Op::Restart),
        1 => (0..2_usize).prop_map(Op::Lead),
        2 => (1..90_u64).prop_map(Op::Pass),
        3 => Just(Op::Rest),
    ]
}

/// The objects of tenants when others begin. Names that nobody got are decided anew when a grace ends.
fn begun(before: Vec<Op>) -> World {
    let mut world = World::new();
    for op in before.into_iter().chain([Op::Rest, Op::Pass(90), Op::Rest]) {
        world.step(op);
    }
    world
}

fn a_beginning() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(an_object_of(&[0, 0, 0, 1, 2]), 1..12)
}

/// Otherwise the property would be about nothing.
#[test]
fn many_histories_have_a_holder_that_is_served() {
    let mut runner = TestRunner::deterministic();
    let mut sample = || {
        a_beginning()
            .new_tree(&mut runner)
            .expect("a value")
            .current()
    };
    let served = (0..40).filter(|_| !served(&begun(sample())).is_empty());
    assert!(served.count() >= 10);
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn a_holder_keeps_being_served(
        before in a_beginning(),
        after in prop::collection::vec(a_foreign_op(), 1..40),
    ) {
        let mut world = begun(before);
        let at_first = served(&world);
        for op in after {
            let what = format!("{op:?}");
            world.step(op);
            let now = served(&world);
            for (request, route) in &at_first {
                prop_assert_eq!(now.get(request), Some(route), "{:?} after {}", request, what);
            }
        }
    }
}
