//! No hijack, for random histories: two replicas, of which one leads, watch one API server that shows each of
//! them its kinds in any order; objects come, change and go, replicas restart and hand over, writes get lost, grants
//! come and go, the Gateway takes names itself. Listeners on several ports, TLSRoutes and HTTPRoutes ask for names and
//! wildcards, and grants share names and paths of them. Whatever happens, no name is served for two namespaces on the Gateway, and one that somebody holds gets
//! another holder only if its holder let go of it and the grace is over, or was revoked, or the Gateway took it.
//!
//! A shared name is served by the namespaces that a grant names, inside of its paths, and keeps its holder.
//!
//! The objects say who holds a name. The published resources say for whom it is served.

mod history;
mod holder;
mod ports;
mod table;
mod view;
mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use vestibule_model::key::Kind;
use vestibule_test_support::properties::quick;
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
/// On the first one the Gateway has a listener now and then, on the second always one that it shares, and on the third
/// one for everybody's HTTPRoutes.
const PORTS: [u16; 3] = [443, 8443, 80];
/// What grants give.
const GRANTS: [&str; 3] = ["*", "*.example.com", "*.x.example.com"];

/// The path that grants share.
const PATH: &str = "/0";
/// Which of the names may be shared.
const EXACT: [usize; 3] = [0, 1, 4];

/// A listener of a tenant: its port, what it speaks, its hostname, and whether it takes everybody's routes.
type Wanted = (usize, usize, usize, bool);

/// A route of a tenant: its number, and whether it is an HTTPRoute.
type RouteOf = (usize, usize, bool);

#[derive(Debug, Clone)]
enum Op {
    /// A tenant's set gets these listeners; it is created if it is not there.
    Set(usize, usize, Vec<Wanted>),
    DeleteSet(usize, usize),
    /// A tenant's route gets these hostnames on these parents: the Gateway, or a tenant's set.
    Route(RouteOf, Vec<usize>, Vec<Option<(usize, usize)>>),
    DeleteRoute(RouteOf),
    /// Whether a tenant's sets are let in.
    Admit(usize, bool),
    /// Whether a tenant's routes are let in.
    AdmitRoutes(usize, bool),
    /// What a tenant has a grant for; without any there, nobody needs one.
    Grant(usize, Option<usize>),
    /// Which name a grant shares with a tenant, and whether only [`PATH`] of it.
    Share(usize, Option<(usize, bool)>),
    /// The Gateway has a listener of its own for a hostname, or none.
    Own(Option<usize>),
    /// The Gateway's own namespace has an HTTPRoute for a hostname, or none.
    OwnRoute(Option<usize>),
    /// What the Gateway's shared listener speaks: TLS, or HTTP.
    Shared(bool),
    /// A TCPRoute of a tenant, or with none of the Gateway's namespace, is on the Gateway's listener for bytes, as old
    /// as this many seconds; or it is deleted.
    Bytes(Option<usize>, Option<i64>),
    /// A replica is shown what waits of a kind.
    Show(usize, usize),
    /// The leader makes a write.
    Write(Fate),
    Restart(usize),
    Lead(usize),
    Pass(u64),
    /// Somebody deletes a claim object.
    Vandal(usize),
    /// An admin takes a name from whoever holds it.
    TakeAway(usize),
    Rest,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The leader knows the result.
    Known,
    /// The leader does not live to see it.
    Fatal,
    /// There is no answer, and it was made or was not.
    Unanswered(bool),
}

const KINDS: [Kind; 7] = [
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::TlsRoute,
    Kind::HttpRoute,
    Kind::HostnameClaim,
    Kind::HostnameGrant,
    Kind::TcpRoute,
];

fn a_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Known),
        2 => Just(Fate::Fatal),
        2 => any::<bool>().prop_map(Fate::Unanswered),
    ]
}

fn an_op() -> impl Strategy<Value = Op> {
    let port = || prop_oneof![2 => Just(0_usize), 3 => Just(1_usize), 1 => Just(2_usize)];
    let listener = (
        port(),
        0..8_usize,
        0..HOSTS.len(),
        prop::bool::weighted(0.3),
    );
    let listeners = prop::collection::vec(listener, 0..3);
    let hosts = prop::collection::vec(prop_oneof![3 => 0..2_usize, 2 => 0..HOSTS.len()], 1..3);
    let to_set = prop_oneof![3 => Just(None), 1 => (0..3_usize).prop_map(Some)];
    let to = prop_oneof![2 => Just(None), 1 => (to_set, 0..2_usize).prop_map(Some)];
    let of = || (0..3_usize, 0..2_usize, any::<bool>());
    let route = (of(), hosts, prop::collection::vec(to, 1..3));
    prop_oneof![
        9 => (0..3_usize, 0..2_usize, listeners).prop_map(|(t, s, l)| Op::Set(t, s, l)),
        3 => (0..3_usize, 0..2_usize).prop_map(|(t, s)| Op::DeleteSet(t, s)),
        10 => route.prop_map(|(of, hosts, to)| {
            // Without another tenant it is its own set.
            let to = to.into_iter().map(|to| to.map(|(t, s)| (t.unwrap_or(of.0), s)));
            Op::Route(of, hosts, to.collect())
        }),
        3 => of().prop_map(Op::DeleteRoute),
        1 => (0..3_usize, any::<bool>()).prop_map(|(t, b)| Op::Admit(t, b)),
        1 => (0..3_usize, prop::bool::weighted(0.7)).prop_map(|(t, b)| Op::AdmitRoutes(t, b)),
        1 => (0..3_usize, prop::option::weighted(0.4, 0..GRANTS.len()))
            .prop_map(|(t, g)| Op::Grant(t, g)),
        2 => (0..3_usize, prop::option::weighted(0.6, (0..EXACT.len(), any::<bool>())))
            .prop_map(|(t, share)| Op::Share(t, share.map(|(host, part)| (EXACT[host], part)))),
        1 => prop::option::of(0..HOSTS.len()).prop_map(Op::Own),
        1 => prop::option::of(0..HOSTS.len()).prop_map(Op::OwnRoute),
        1 => prop::bool::weighted(0.8).prop_map(Op::Shared),
        // No TCPRoute is there.
        18 => (0..2_usize, 0..KINDS.len() - 1).prop_map(|(r, k)| Op::Show(r, k)),
        10 => a_fate().prop_map(Op::Write),
        1 => (0..2_usize).prop_map(Op::Restart),
        2 => (0..2_usize).prop_map(Op::Lead),
        4 => (1..90_u64).prop_map(Op::Pass),
        1 => (0..8_usize).prop_map(Op::Vandal),
        1 => (0..8_usize).prop_map(Op::TakeAway),
        6 => Just(Op::Rest),
    ]
}

/// The same histories every day. `VESTIBULE_CLAIMS=n` looks for n others.
fn histories() -> ProptestConfig {
    let others = std::env::var("VESTIBULE_CLAIMS").ok();
    let others = others.and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: others.unwrap_or_else(|| quick(640)),
        rng_seed: others.map_or(RngSeed::Fixed(21), |_| RngSeed::Random),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn a_name_that_is_held_is_not_taken(ops in prop::collection::vec(an_op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.step(op);
        }
        world.check_end();
    }

    #[test]
    fn a_port_that_is_held_is_not_taken(ops in prop::collection::vec(ports::an_op(), 1..60)) {
        let mut world = World::with_bytes();
        for op in ops {
            world.step(op);
        }
        world.check_end();
    }
}

/// A listener of a tenant's first set on the shared port.
fn listener(host: usize) -> Vec<Wanted> {
    vec![(1, 0, host, false)]
}

/// A wildcard and a route of another namespace inside it come to be at the same time.
#[test]
fn a_wildcard_and_a_route_inside_it_that_come_together() {
    let mut world = World::new();
    world.step(Op::Route((1, 0, false), vec![0], vec![None]));
    world.step(Op::Restart(1));
    world.step(Op::Set(0, 0, listener(2)));
    world.step(Op::Restart(0));
    world.check_end();
}

/// One replica saw the wildcard first, and the other one both at once: what the leader writes counts.
#[test]
fn a_name_inside_a_wildcard_that_only_one_replica_takes_for_held() {
    for leads in [false, true] {
        let mut world = World::new();
        world.step(Op::Set(0, 0, listener(2)));
        world.step(Op::Restart(1));
        world.step(Op::Route((1, 0, true), vec![0], vec![None]));
        world.step(Op::Restart(0));
        world.step(Op::Rest);
        if leads {
            world.step(Op::Lead(0));
        }
        world.check_end();
    }
}

/// The leader takes a name inside a wildcard from whoever may not have it for a moment, and another replica learns of
/// that too late: it does not go on serving the name for ever.
#[test]
fn a_name_inside_a_wildcard_whose_holder_was_revoked_for_a_moment() {
    let mut world = World::new();
    world.step(Op::Route((1, 0, true), vec![4], vec![None]));
    world.step(Op::Rest);
    world.step(Op::Route((0, 0, true), vec![2], vec![None]));
    world.step(Op::Rest);
    world.step(Op::Admit(1, false));
    world.step(Op::AdmitRoutes(1, false));
    world.step(Op::AdmitRoutes(1, true));
    world.check_end();
}

/// A name that the first leader served without a claim, and did not live to record, is first come, first served again.
#[test]
fn a_leader_that_goes_before_its_first_write() {
    let mut world = World::new();
    world.step(Op::Route((0, 0, false), vec![0], vec![None]));
    world.step(Op::Restart(1));
    world.step(Op::Lead(1));
    world.step(Op::Restart(1));
    world.step(Op::Set(1, 0, listener(2)));
    world.step(Op::Rest);
    world.check_end();
}

/// The tenant's own doing, though the listeners of its two sets have one name.
#[test]
fn a_listener_of_another_set_of_the_tenant() {
    let mut world = World::new();
    world.step(Op::Route((1, 0, false), vec![0], vec![Some((1, 1))]));
    world.step(Op::Set(1, 1, listener(2)));
    world.step(Op::Rest);
    world.step(Op::Set(1, 0, listener(0)));
    world.step(Op::Rest);
    world.check_end();
}

/// An HTTPRoute on the Gateway's own port 80 claims its name for every port, loses it to nobody, and hands it over when
/// it is gone and the grace is over; it loses it at once to the Gateway itself.
#[test]
fn routes_on_the_gateways_own_listener_claim_and_lose_names() {
    let mut world = World::new();
    let (a, b) = ((0, 0, true), (1, 0, true));
    let served = |world: &World| {
        let table = world.leading().table();
        let on = |port, tls| table.answer(port, tls, HOSTS[0]).map(str::to_owned);
        (on(80, false), on(8443, true))
    };
    let for_ = |tenant: &str| Some(tenant.to_owned());
    world.step(Op::Route(a, vec![0], vec![None]));
    assert_eq!(served(&world), (None, None), "before it is recorded");
    world.step(Op::Rest);
    assert_eq!(served(&world), (for_("a"), None));
    // Neither a route nor a listener of another namespace gets it, on whatever port.
    world.step(Op::Route(b, vec![0], vec![None]));
    world.step(Op::Set(1, 0, listener(0)));
    world.step(Op::Route((1, 1, false), vec![0], vec![None, Some((1, 0))]));
    world.step(Op::Rest);
    assert_eq!(served(&world), (for_("a"), None));
    world.step(Op::DeleteRoute(a));
    world.step(Op::Rest);
    assert_eq!(served(&world), (None, None), "the grace");
    world.step(Op::Pass(90));
    world.step(Op::Rest);
    assert_eq!(served(&world), (for_("b"), for_("b")));
    world.step(Op::OwnRoute(Some(0)));
    world.step(Op::Rest);
    assert_eq!(served(&world), (for_(view::OWN), None));
    world.check_end();
}

/// A grant shares a path of a name with another namespace: that one serves it beside the holder, holds nothing by it, and
/// has nothing when the grant goes. The holder keeps the name all the while.
#[test]
fn a_name_that_is_shared_stays_its_holders() {
    let mut world = World::new();
    // What is shared when everything has come to rest.
    let mut after = |ops: Vec<Op>| {
        for op in ops {
            world.step(op);
        }
        world.step(Op::Rest);
        let told = world.leading().told();
        (
            world.leading().table().shared(),
            told.get(HOSTS[0]).cloned(),
        )
    };
    let holder = Some(TENANTS[0].to_owned());
    let routes = vec![
        Op::Grant(0, Some(0)),
        Op::Route((0, 0, true), vec![0], vec![None]),
        // One of B's routes stays inside of the path, and the other one does not.
        Op::Route((1, 1, true), vec![0], vec![None]),
        Op::Route((1, 0, true), vec![0], vec![None]),
    ];
    assert_eq!(after(routes), (BTreeSet::new(), holder.clone()));
    let (shared, held) = after(vec![Op::Share(1, Some((0, true)))]);
    let routes: Vec<_> = shared.iter().map(|of| (&*of.route, &*of.paths)).collect();
    assert_eq!(routes, [("b/route-1", &[PATH.to_owned()][..])]);
    assert_eq!(held, holder);
    let (shared, held) = after(vec![Op::Share(1, Some((0, false)))]);
    assert_eq!((shared.len(), held), (2, holder.clone()));
    let (shared, held) = after(vec![Op::Share(1, None)]);
    assert_eq!((shared.len(), held), (0, holder));
    // The holder leaves, and who shares the name goes on without holding it.
    let leaves = vec![
        Op::Share(1, Some((0, false))),
        Op::DeleteRoute((0, 0, true)),
        Op::Rest,
        Op::Pass(90),
    ];
    let (shared, held) = after(leaves);
    assert_eq!((shared.len(), held), (2, None));
    world.check_end();
}

/// A namespace is revoked for a moment before its claim is written, and the leader sees that afterwards.
#[test]
fn a_name_that_was_revoked_before_it_was_written() {
    let mut world = World::new();
    world.step(Op::Set(2, 1, listener(1)));
    world.step(Op::Show(0, 1));
    world.step(Op::Grant(0, Some(0)));
    world.step(Op::Grant(2, Some(0)));
    world.step(Op::Set(2, 1, vec![]));
    world.step(Op::Write(Fate::Known));
    world.step(Op::Write(Fate::Known));
    world.check_end();
}
