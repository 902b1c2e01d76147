//! No hijack, for random histories: two replicas, of which one leads, watch one API server that shows each of
//! them its kinds in any order; objects come, change and go, replicas restart and hand over, grants come and
//! go, the Gateway takes names itself. A name in service changes its owner only if its owner let go of it
//! and the grace is over, or was revoked, or the Gateway took it.
//!
//! Names are what listeners are published for, and what connections come to: the namespace whose route gets
//! them, read off the proxies' tables.

#[path = "../common/mod.rs"]
mod common;
mod service;
mod table;
mod world;

use proptest::prelude::*;
use vestibule_model::key::Kind;
use world::World;

const TENANTS: [&str; 3] = ["a", "b", "c"];
const HOSTS: [&str; 6] = [
    "x.example.com",
    "y.example.com",
    "*.example.com",
    "",
    "a.x.example.com",
    "*.x.example.com",
];
/// On the first one the Gateway has a listener now and then, on the second always one that it shares.
const PORTS: [u16; 2] = [443, 8443];

/// A listener of a tenant: its port, what it speaks, its hostname, and whether it takes everybody's routes.
type Wanted = (usize, usize, usize, bool);

#[derive(Debug, Clone)]
enum Op {
    /// A tenant's set gets these listeners; it is created if it is not there.
    Set(usize, usize, Vec<Wanted>),
    DeleteSet(usize, usize),
    /// A tenant's route gets these hostnames on these parents: the Gateway, or a tenant's set.
    Route(usize, usize, Vec<usize>, Vec<Option<(usize, usize)>>),
    DeleteRoute(usize, usize),
    /// Whether a tenant's sets are let in.
    Admit(usize, bool),
    /// Whether a tenant has a grant for every name; without any there, nobody needs one.
    Grant(usize, bool),
    /// The Gateway has a listener of its own for a hostname, or none.
    Own(Option<usize>),
    /// What the Gateway's shared listener speaks: TLS, or HTTP.
    Shared(bool),
    /// A replica is shown what waits of a kind.
    Show(usize, usize),
    /// The leader makes a write; whether it lives to see what came of it.
    Write(bool),
    Restart(usize),
    Lead(usize),
    Pass(u64),
    /// Somebody deletes a claim object.
    Vandal(usize),
    Rest,
}

const KINDS: [Kind; 5] = [
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::TlsRoute,
    Kind::HostnameClaim,
    Kind::HostnameGrant,
];

fn an_op() -> impl Strategy<Value = Op> {
    let port = || prop_oneof![2 => Just(0_usize), 3 => Just(1_usize)];
    let listener = (
        port(),
        0..7_usize,
        0..HOSTS.len(),
        prop::bool::weighted(0.3),
    );
    let listeners = prop::collection::vec(listener, 0..3);
    let hosts = prop::collection::vec(prop_oneof![3 => 0..2_usize, 1 => 0..HOSTS.len()], 1..3);
    let to_set = prop_oneof![3 => Just(None), 1 => (0..3_usize).prop_map(Some)];
    let to = prop_oneof![2 => Just(None), 1 => (to_set, 0..2_usize).prop_map(Some)];
    let route = (
        0..3_usize,
        0..2_usize,
        hosts,
        prop::collection::vec(to, 1..3),
    );
    prop_oneof![
        9 => (0..3_usize, 0..2_usize, listeners).prop_map(|(t, s, l)| Op::Set(t, s, l)),
        3 => (0..3_usize, 0..2_usize).prop_map(|(t, s)| Op::DeleteSet(t, s)),
        8 => route.prop_map(|(t, r, h, to)| {
            // Without another tenant it is its own set.
            let to = to.into_iter().map(|to| to.map(|(of, s)| (of.unwrap_or(t), s)));
            Op::Route(t, r, h, to.collect())
        }),
        2 => (0..3_usize, 0..2_usize).prop_map(|(t, r)| Op::DeleteRoute(t, r)),
        1 => (0..3_usize, any::<bool>()).prop_map(|(t, b)| Op::Admit(t, b)),
        1 => (0..3_usize, prop::bool::weighted(0.3)).prop_map(|(t, b)| Op::Grant(t, b)),
        1 => prop::option::of(0..HOSTS.len()).prop_map(Op::Own),
        1 => prop::bool::weighted(0.8).prop_map(Op::Shared),
        16 => (0..2_usize, 0..KINDS.len()).prop_map(|(r, k)| Op::Show(r, k)),
        10 => prop::bool::weighted(0.8).prop_map(Op::Write),
        1 => (0..2_usize).prop_map(Op::Restart),
        2 => (0..2_usize).prop_map(Op::Lead),
        4 => (1..90_u64).prop_map(Op::Pass),
        1 => (0..8_usize).prop_map(Op::Vandal),
        6 => Just(Op::Rest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 640, ..ProptestConfig::default() })]

    #[test]
    fn a_name_in_service_is_not_taken(ops in prop::collection::vec(an_op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.step(op);
        }
        world.check_end();
    }
}

/// A listener and a route of another namespace inside its names come to be at the same time.
#[test]
fn a_listener_and_a_route_inside_its_names_that_come_together() {
    let mut world = World::new();
    world.step(Op::Route(1, 0, vec![0], vec![None]));
    world.step(Op::Restart(1));
    world.step(Op::Set(0, 0, vec![(1, 0, 2, false)]));
    world.step(Op::Restart(0));
    world.check_end();
}

/// What the first leader served without claims, and did not live to write, is first come, first served again.
#[test]
fn a_leader_that_goes_before_its_first_write() {
    let mut world = World::new();
    world.step(Op::Route(0, 0, vec![0], vec![None]));
    world.step(Op::Restart(1));
    world.step(Op::Lead(1));
    world.step(Op::Restart(1));
    world.step(Op::Set(1, 0, vec![(1, 0, 2, false)]));
    world.step(Op::Rest);
    world.check_end();
}

/// The tenant's own doing, though the listeners of its two sets have one name.
#[test]
fn a_listener_of_another_set_of_the_tenant() {
    let mut world = World::new();
    let listener = |host| vec![(1, 0, host, false)];
    world.step(Op::Route(1, 0, vec![0], vec![Some((1, 1))]));
    world.step(Op::Set(1, 1, listener(2)));
    world.step(Op::Rest);
    world.step(Op::Set(1, 0, listener(0)));
    world.step(Op::Rest);
    world.check_end();
}
