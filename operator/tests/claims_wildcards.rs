//! The first claim to a wildcard is held back while names inside it that other namespaces may have are not recorded,
//! since a recorded wildcard closes them. Without such names it is written after a moment, and the wait has an end some
//! time after the last progress.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::key::ObjectName;
use vestibule_operator::claims::{
    ClaimAction, ClaimRequest, LONGEST_WILDCARD_WAIT, MOST_WILDCARD_WAIT, WILDCARD_GATHERING,
    WILDCARD_WAIT_STEP, WILDCARD_WAIT_STEPS, WriteOutcome,
};
use vestibule_operator::translate::ClaimState;
use vestibule_operator_testing::claims::*;
use vestibule_test_support::properties::keep_failures_with_cases;

/// The store gathers changes for 20 ms before it writes.
const SOON: Duration = Duration::from_millis(30);

/// The longest wait of `*.example.com`, which has one label more than the wildcards that wait longest.
const WAIT: Duration = LONGEST_WILDCARD_WAIT.saturating_sub(WILDCARD_WAIT_STEP);
/// The longest wait of `*.x.example.com`.
const INNER_WAIT: Duration = WAIT.saturating_sub(WILDCARD_WAIT_STEP);
/// A time between two names, shorter than each wait.
const TEN_SECONDS: Duration = Duration::from_secs(10);

fn wanted(namespace: &str) -> ClaimState {
    ClaimState::Wanted(namespace.into())
}

/// In one turn, `a` wants a wildcard and `b` wants a name inside it. The write of the name has begun.
fn name_under_way() -> (World, [ClaimKey; 2], ClaimRequest) {
    let mut world = World::leading();
    let (wide, shop) = (name("*.example.com"), name("shop.example.com"));
    world.say([(&wide, Some(wanted("a"))), (&shop, Some(wanted("b")))]);
    world.pass(SOON);
    let write = world.begin().expect("a request");
    assert_eq!(write.name, shop.object_name());
    assert_eq!(world.begin(), None);
    (world, [wide, shop], write)
}

/// Makes every request that is due after some time, and returns the objects that they are about.
fn begun_after(world: &mut World, time: Duration) -> BTreeSet<ObjectName> {
    world.pass(time);
    let requests = std::iter::from_fn(|| world.begin());
    requests.map(|request| request.name).collect()
}

/// Makes every request that is due after a short time, and returns the objects that they are about.
fn begun_soon(world: &mut World) -> BTreeSet<ObjectName> {
    begun_after(world, SOON)
}

fn only(key: &ClaimKey) -> BTreeSet<ObjectName> {
    BTreeSet::from([key.object_name()])
}

/// A write has begun, and the server carries it out and answers.
fn succeed(world: &mut World, write: &ClaimRequest) {
    let outcome = world.land(write);
    world.done(write, outcome);
}

#[test]
fn a_wildcard_is_written_after_the_names_inside_it_however_long_they_take() {
    let (mut world, [wide, shop], write) = name_under_way();
    world.pass(INNER_WAIT);
    assert_eq!(world.begin(), None);
    succeed(&mut world, &write);
    assert_eq!(world.holder(&shop), Some("b"));
    // It does not gather once more.
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn a_wildcard_waits_for_a_name_that_is_asked_for_a_turn_later() {
    let mut world = World::leading();
    let (wide, shop) = (name("*.example.com"), name("shop.example.com"));
    let gathered = world.time.now + WILDCARD_GATHERING;
    world.want(&wide, "a");
    assert!(begun_soon(&mut world).is_empty());
    // Nothing is to be done before that time.
    assert_eq!(world.store.deadline(), Some(gathered));
    world.pass(SOON);
    world.want(&shop, "b");
    world.pass(SOON);
    assert!(world.time.now >= gathered);
    let write = world.begin().expect("a request");
    assert_eq!(write.name, shop.object_name());
    assert_eq!(world.begin(), None);
    succeed(&mut world, &write);
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn a_wildcard_gathers_to_the_end_even_if_a_name_inside_it_is_recorded_sooner() {
    let (mut world, [wide, _], write) = name_under_way();
    let gathered = world.time.now + WILDCARD_GATHERING.saturating_sub(SOON);
    succeed(&mut world, &write);
    assert!(begun_soon(&mut world).is_empty());
    assert_eq!(world.store.deadline(), Some(gathered));
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn a_wildcard_of_the_gateways_own_namespace_closes_nothing_and_waits_for_nothing() {
    let mut world = World::leading();
    let (wide, shop) = (name("*.example.com"), name("shop.example.com"));
    let own = &*wide.gateway.namespace;
    world.say([(&wide, Some(wanted(own))), (&shop, Some(wanted("b")))]);
    let both = BTreeSet::from([wide.object_name(), shop.object_name()]);
    assert_eq!(begun_soon(&mut world), both);
}

#[test]
fn a_wildcard_waits_while_the_write_of_a_name_is_tried_again() {
    let (mut world, [wide, shop], write) = name_under_way();
    world.done(&write, WriteOutcome::Unknown);
    let read = world.next_request().expect("a request");
    assert_eq!(
        (&read.name, &read.action),
        (&shop.object_name(), &ClaimAction::Read)
    );
    let outcome = world.land(&read);
    world.done(&read, outcome);
    for _ in 0..2 {
        let write = world.next_request().expect("a request");
        assert_eq!(write.name, shop.object_name());
        world.done(&write, WriteOutcome::Refused);
    }
    assert!(begun_soon(&mut world).is_empty(), "there is a pause");
    world.pass(Duration::from_secs(5));
    let write = world.begin().expect("a request");
    assert_eq!(write.name, shop.object_name());
    succeed(&mut world, &write);
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn a_wildcard_does_not_wait_for_ever() {
    let (mut world, [wide, _], _never_answered) = name_under_way();
    // Nothing is to be done before that time.
    let end = world.time.now + WAIT;
    assert_eq!(world.store.deadline(), Some(end));
    world.pass(WAIT);
    let write = world.begin().expect("a request");
    assert_eq!(write.name, wide.object_name());
    // If its own write fails, it does not wait once more, not even for a name that is asked for only now, or because another
    // one is no longer wanted.
    world.done(&write, WriteOutcome::Refused);
    let (late, gone) = (name("late.example.com"), name("gone.example.com"));
    world.want(&late, "c");
    world.want(&gone, "c");
    world.say([(&gone, None)]);
    let both = BTreeSet::from([wide.object_name(), late.object_name()]);
    assert!(begun_soon(&mut world).is_superset(&both));
}

/// In one turn, `a` wants a wildcard and `b` wants some names inside it. The writes of the names have begun.
fn names_under_way(hosts: usize) -> (World, ClaimKey, Vec<ClaimRequest>) {
    let mut world = World::leading();
    let wide = name("*.example.com");
    let hosts: Vec<ClaimKey> = (0..hosts)
        .map(|n| name(&format!("n{n}.example.com")))
        .collect();
    let wants = hosts.iter().map(|host| (host, Some(wanted("b"))));
    world.say(wants.chain([(&wide, Some(wanted("a")))]));
    world.pass(SOON);
    let writes: Vec<ClaimRequest> = std::iter::from_fn(|| world.begin()).collect();
    let begun: BTreeSet<ObjectName> = writes.iter().map(|write| write.name.clone()).collect();
    let expected: BTreeSet<ObjectName> = hosts.iter().map(ClaimKey::object_name).collect();
    assert_eq!(begun, expected);
    (world, wide, writes)
}

#[test]
fn a_wildcard_waits_for_all_names_as_long_as_one_after_another_is_recorded() {
    let (mut world, wide, writes) = names_under_way(12);
    for write in &writes {
        assert!(begun_after(&mut world, TEN_SECONDS).is_empty());
        succeed(&mut world, write);
    }
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn the_wait_of_a_wildcard_counts_from_the_last_name_that_was_recorded() {
    let (mut world, wide, writes) = names_under_way(3);
    for write in &writes[..2] {
        assert!(begun_after(&mut world, TEN_SECONDS).is_empty());
        succeed(&mut world, write);
    }
    assert!(begun_after(&mut world, WAIT.saturating_sub(SOON)).is_empty());
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn names_that_come_and_go_do_not_keep_a_wildcard_waiting_for_ever() {
    let (mut world, [wide, _], _never_answered) = name_under_way();
    let begin = world.time.now;
    let other = name("other.example.com");
    loop {
        world.want(&other, "b");
        world.say([(&other, None)]);
        if begun_after(&mut world, TEN_SECONDS).contains(&wide.object_name()) {
            break;
        }
        assert!(world.time.now - begin < MOST_WILDCARD_WAIT);
    }
    assert!(world.time.now - begin >= MOST_WILDCARD_WAIT.saturating_sub(WILDCARD_WAIT_STEP));
}

#[test]
fn a_name_that_another_namespace_wants_instead_does_not_prolong_the_wait() {
    let (mut world, [wide, _], _never_answered) = name_under_way();
    let other = name("other.example.com");
    world.want(&other, "b");
    assert_eq!(begun_after(&mut world, TEN_SECONDS), only(&other));
    world.want(&other, "c");
    let begun = begun_after(&mut world, WAIT.saturating_sub(TEN_SECONDS));
    assert!(begun.contains(&wide.object_name()));
}

#[test]
fn a_name_that_prolongs_the_wait_of_an_inner_wildcard_prolongs_that_of_the_outer_one() {
    let mut world = World::leading();
    let (wide, inner) = (name("*.example.com"), name("*.x.example.com"));
    let (own, host) = (name("m.x.example.com"), name("n.x.example.com"));
    world.say([
        (&wide, Some(wanted("a"))),
        (&inner, Some(wanted("b"))),
        // Only the inner wildcard waits for it.
        (&own, Some(wanted("a"))),
        (&host, Some(wanted("c"))),
    ]);
    world.pass(SOON);
    let writes: Vec<ClaimRequest> = std::iter::from_fn(|| world.begin()).collect();
    assert_eq!(writes.len(), 2);
    assert!(begun_after(&mut world, TEN_SECONDS).is_empty());
    // The other write is never answered.
    for write in writes.iter().filter(|of| of.name == own.object_name()) {
        succeed(&mut world, write);
    }
    assert!(begun_after(&mut world, INNER_WAIT.saturating_sub(SOON)).is_empty());
    assert_eq!(begun_soon(&mut world), only(&inner));
}

#[test]
fn of_nested_wildcards_that_wait_for_one_name_the_inner_one_stops_waiting_first() {
    let mut world = World::leading();
    let (wide, inner) = (name("*.example.com"), name("*.x.example.com"));
    let host = name("n.x.example.com");
    world.say([
        (&wide, Some(wanted("a"))),
        (&inner, Some(wanted("b"))),
        (&host, Some(wanted("c"))),
    ]);
    // This write is never answered.
    assert_eq!(begun_soon(&mut world), only(&host));
    world.pass(INNER_WAIT);
    let write = world.begin().expect("a request");
    assert_eq!(write.name, inner.object_name());
    assert_eq!(world.begin(), None);
    succeed(&mut world, &write);
    assert_eq!(world.holder(&inner), Some("b"));
    // That was progress, so the outer one waits once more for the name.
    assert!(begun_after(&mut world, WAIT.saturating_sub(SOON)).is_empty());
    assert_eq!(begun_soon(&mut world), only(&wide));
}

#[test]
fn a_wildcard_with_many_labels_waits_long_enough_for_a_request_without_an_answer() {
    let mut world = World::leading();
    let suffix = "a.b.c.d.e.f.g.h.i.j.example.com";
    let wide = name(&format!("*.{suffix}"));
    let host = name(&format!("n.{suffix}"));
    world.say([(&wide, Some(wanted("a"))), (&host, Some(wanted("b")))]);
    assert_eq!(begun_soon(&mut world), only(&host));
    let wait = LONGEST_WILDCARD_WAIT.saturating_sub(WILDCARD_WAIT_STEP * WILDCARD_WAIT_STEPS);
    assert!(wait > Duration::from_secs(10));
    assert_eq!(world.store.deadline(), Some(world.time.now + wait));
    assert_eq!(begun_after(&mut world, wait), only(&wide));
}

#[test]
fn a_wildcard_does_not_wait_for_ever_for_a_name_that_is_refused_again_and_again() {
    let (mut world, [wide, shop], write) = name_under_way();
    let begin = world.time.now;
    world.done(&write, WriteOutcome::Refused);
    let write = loop {
        match world.next_request() {
            Some(write) if write.name == shop.object_name() => {
                world.done(&write, WriteOutcome::Refused);
            }
            Some(write) => break write,
            None => {}
        }
        assert!(world.time.now - begin < WAIT * 2);
    };
    assert_eq!(write.name, wide.object_name());
    assert!(world.time.now - begin >= WAIT);
}

#[test]
fn a_wildcard_is_written_as_soon_as_the_name_is_not_wanted_for_another_namespace() {
    for state in [None, Some(wanted("a"))] {
        let (mut world, [wide, shop], write) = name_under_way();
        world.done(&write, WriteOutcome::Refused);
        world.say([(&shop, state)]);
        let begun = begun_after(&mut world, WILDCARD_GATHERING);
        assert!(begun.contains(&wide.object_name()));
    }
}

#[test]
fn a_wildcard_waits_only_for_names_of_others_inside_it_that_are_not_recorded() {
    let mut world = World::leading();
    world.give(&name("held.example.com"), "b");
    let names = [
        ("*.example.com", "a"),
        // The wildcard's own namespace keeps its names.
        ("shop.example.com", "a"),
        ("*.shop.example.com", "a"),
        // They are not inside it.
        ("example.com", "b"),
        ("shop.example.org", "b"),
        ("*.com", "a"),
        // It closes nothing, so it waits for nothing.
        ("", "c"),
    ];
    let names = names.map(|(hostname, namespace)| (name(hostname), Some(wanted(namespace))));
    world.say(names.iter().map(|(key, state)| (key, state.clone())));
    let mut expected: BTreeSet<_> = names.iter().map(|(key, _)| key.object_name()).collect();
    // `b` wants `example.com`, which is inside this one.
    expected.remove(&name("*.com").object_name());
    assert_eq!(begun_after(&mut world, WILDCARD_GATHERING), expected);
}

#[test]
fn of_nested_wildcards_the_innermost_is_written_first() {
    let mut world = World::leading();
    let names = [
        ("*.example.com", "a"),
        ("*.x.example.com", "b"),
        ("n.x.example.com", "c"),
    ];
    let names = names.map(|(hostname, namespace)| (name(hostname), Some(wanted(namespace))));
    world.say(names.iter().map(|(key, state)| (key, state.clone())));
    for (key, _) in names.iter().rev() {
        let write = world.next_request().expect("a request");
        assert_eq!(write.name, key.object_name());
        assert_eq!(world.begin(), None, "{key} is under way");
        succeed(&mut world, &write);
    }
}

#[test]
fn another_candidate_for_a_wildcard_has_a_wait_of_its_own() {
    let (mut world, [wide, _], _never_answered) = name_under_way();
    world.pass(INNER_WAIT);
    world.want(&wide, "c");
    world.pass(WILDCARD_WAIT_STEP * 2);
    assert_eq!(world.begin(), None);
    world.pass(WAIT);
    let write = world.begin().expect("a request");
    assert_eq!(write.name, wide.object_name());
}

#[test]
fn a_leader_that_comes_back_begins_with_no_waits() {
    let (mut world, [wide, shop], write) = name_under_way();
    world.done(&write, WriteOutcome::Refused);
    world.store.lead(false, world.time);
    world.say([(&shop, None)]);
    assert!(world.take_over());
    assert_eq!(begun_after(&mut world, WILDCARD_GATHERING), only(&wide));
}

const HOSTS: [&str; 7] = [
    "*.example.com",
    "*.x.example.com",
    "*.y.example.com",
    "a.x.example.com",
    "x.example.com",
    "example.com",
    "",
];
/// The Gateway's own namespace.
const OWN: &str = "platform";
const TENANTS: [&str; 4] = ["a", "b", "c", OWN];

#[derive(Debug, Clone)]
enum Op {
    /// These names are wanted for these tenants from now on, or for nobody.
    Want(Vec<(usize, Option<usize>)>),
    Pass(u64),
    /// The store is asked for a request after a short time.
    Begin,
    /// A request under way ends, and is answered or refused.
    End(usize, bool),
}

fn an_op() -> impl Strategy<Value = Op> {
    let tenant = prop::option::weighted(0.8, 0..TENANTS.len());
    let wants = prop::collection::vec((0..HOSTS.len(), tenant), 1..5);
    prop_oneof![
        3 => wants.prop_map(Op::Want),
        2 => (0..8_000_u64).prop_map(Op::Pass),
        6 => Just(Op::Begin),
        4 => (0..4_usize, prop::bool::weighted(0.7)).prop_map(|(n, known)| Op::End(n, known)),
    ]
}

/// The store, and a plain account of what is wanted.
struct Sim {
    world: World,
    keys: Vec<ClaimKey>,
    /// The tenant that each name is wanted for, and since when.
    wanted: BTreeMap<usize, (usize, Instant)>,
    /// Of each wildcard that is wanted, the time before which its wait for names inside it is not over.
    ends: BTreeMap<usize, Instant>,
    under_way: Vec<ClaimRequest>,
    /// Names of which a write was refused, so that the next attempt may take a while.
    refused: BTreeSet<usize>,
}

impl Sim {
    fn new() -> Self {
        Self {
            world: World::leading(),
            keys: HOSTS.iter().map(|host| name(host)).collect(),
            wanted: BTreeMap::new(),
            ends: BTreeMap::new(),
            under_way: Vec::new(),
            refused: BTreeSet::new(),
        }
    }

    /// The decision of translation: a name that has a holder stays in use.
    fn translate(&mut self) {
        let keys = self.keys.iter().enumerate();
        let states: Vec<_> = keys
            .map(|(n, key)| match (self.is_held(n), self.wanted.get(&n)) {
                (true, _) => (key.clone(), Some(ClaimState::Used)),
                (false, of) => (key.clone(), of.map(|(of, _)| wanted(TENANTS[*of]))),
            })
            .collect();
        let states = states.iter().map(|(key, state)| (key, state.clone()));
        self.world.say(states);
        self.world.news();
    }

    fn is_held(&self, n: usize) -> bool {
        self.world.holder(&self.keys[n]).is_some()
    }

    /// Whether this is a wildcard that is wanted for a tenant, so that it closes the names inside it.
    fn would_close(&self, n: usize) -> bool {
        let is_of_tenant = |(of, _): &(usize, Instant)| TENANTS[*of] != OWN;
        HOSTS[n].starts_with("*.") && self.wanted.get(&n).is_some_and(is_of_tenant)
    }

    /// Whether a wildcard may still be gathering.
    fn gathers(&self, n: usize) -> bool {
        self.would_close(n) && self.world.time.now - self.wanted[&n].1 < WILDCARD_GATHERING
    }

    /// The names that nobody holds and that are wanted inside a wildcard by another tenant than the wildcard.
    fn others(&self, wildcard: usize) -> BTreeSet<usize> {
        let Some((of, _)) = self.wanted.get(&wildcard) else {
            return BTreeSet::new();
        };
        let wanted = self.wanted.iter().filter(|(inside, (other, _))| {
            is_inside(&self.keys[**inside], &self.keys[wildcard])
                && other != of
                && !self.is_held(**inside)
        });
        wanted.map(|(inside, _)| *inside).collect()
    }

    /// Whether a wildcard may have to wait for names inside it.
    fn has_to_wait(&self, wildcard: usize) -> bool {
        self.would_close(wildcard) && !self.others(wildcard).is_empty()
    }

    fn step(&mut self, op: Op) {
        let before = self.wanted.clone();
        let others: Vec<_> = (0..HOSTS.len()).map(|n| self.others(n)).collect();
        self.carry_out(op);
        self.translate();
        for (n, others) in others.iter().enumerate() {
            self.follow(n, before.get(&n), others);
        }
    }

    /// Brings the end of a wildcard's wait up to date after a step, before which the wildcard was wanted in this way, and
    /// these were its others.
    fn follow(&mut self, n: usize, before: Option<&(usize, Instant)>, others: &BTreeSet<usize>) {
        let Some(of) = self.wanted.get(&n).filter(|_| HOSTS[n].starts_with("*.")) else {
            self.ends.remove(&n);
            return;
        };
        let (since, now) = (of.1, self.world.time.now);
        // The wait may begin later than this, and then it ends later, too.
        let first = since + longest_wait(HOSTS[n]);
        let end = match self.ends.get(&n) {
            Some(end) if before == Some(of) => *end,
            _ => first,
        };
        // If one name leaves and another one comes in one turn, the wildcard may have been without any for a moment. So one
        // has to be there all the time.
        let left = self.others(n);
        let is_progress = !others.is_subset(&left) && !others.is_disjoint(&left);
        let moves = before == Some(of) && is_progress && end > now;
        let latest = since + most_wait(HOSTS[n]);
        let later = latest.min(now + longest_wait(HOSTS[n]));
        self.ends.insert(n, if moves { later } else { end });
    }

    fn carry_out(&mut self, op: Op) {
        match op {
            Op::Want(wants) => {
                let before = self.wanted.clone();
                for (n, tenant) in wants {
                    match tenant {
                        Some(tenant) => self.wanted.insert(n, (tenant, self.world.time.now)),
                        None => self.wanted.remove(&n),
                    };
                }
                // A name that is wanted for the same tenant as before has been wanted since then.
                for (n, (tenant, since)) in &mut self.wanted {
                    if let Some((former, at)) = before.get(n)
                        && *former == *tenant
                    {
                        *since = *at;
                    }
                }
            }
            Op::Pass(millis) => self.world.pass(Duration::from_millis(millis)),
            Op::Begin => {
                self.world.pass(SOON);
                match self.world.begin() {
                    Some(request) => self.begun(request),
                    None => self.check_nothing_waits_in_vain(),
                }
            }
            Op::End(n, known) => {
                if n < self.under_way.len() {
                    let request = self.under_way.remove(n);
                    let outcome = if known {
                        self.world.land(&request)
                    } else {
                        let name = self.index(&request);
                        self.refused.insert(name);
                        WriteOutcome::Refused
                    };
                    self.world.done(&request, outcome);
                }
            }
        }
    }

    fn index(&self, request: &ClaimRequest) -> usize {
        let mut keys = self.keys.iter();
        keys.position(|key| key.object_name() == request.name)
            .expect("one of the names")
    }

    fn begun(&mut self, request: ClaimRequest) {
        let n = self.index(&request);
        let is_claim = matches!(
            request.action,
            ClaimAction::Create(_) | ClaimAction::Replace { .. }
        );
        if is_claim && !self.is_held(n) {
            assert!(!self.gathers(n), "{request:?}");
            if self.has_to_wait(n) {
                assert!(self.world.time.now >= self.ends[&n], "{request:?}");
            }
        }
        self.under_way.push(request);
    }

    /// No request is due: whatever is wanted waits for names inside it, or is under way.
    fn check_nothing_waits_in_vain(&self) {
        let under_way: BTreeSet<_> = self.under_way.iter().map(|r| self.index(r)).collect();
        for n in self.wanted.keys() {
            let waits = self.is_held(*n)
                || under_way.contains(n)
                || self.refused.contains(n)
                || self.gathers(*n)
                || self.has_to_wait(*n);
            assert!(waits, "{} is not written", self.keys[*n]);
        }
    }

    /// Everything that is wanted is recorded in the end.
    fn finish(&mut self) {
        while !self.under_way.is_empty() {
            self.step(Op::End(0, true));
        }
        for _ in 0..4 {
            self.world.pass(Duration::from_secs(40));
            self.world.rest();
            self.translate();
        }
        self.world.rest();
        for n in self.wanted.keys() {
            assert!(self.is_held(*n), "{} is not recorded", self.keys[*n]);
        }
        assert_eq!(self.world.store.deadline(), None);
    }
}

/// How much sooner the waits of a wildcard end than those of `*.com`. It has as many dots as labels after the `*`.
fn sooner(wildcard: &str) -> Duration {
    let labels = u32::try_from(wildcard.matches('.').count()).expect("few");
    WILDCARD_WAIT_STEP * (labels - 1)
}

/// The longest wait of a wildcard without progress.
fn longest_wait(wildcard: &str) -> Duration {
    LONGEST_WILDCARD_WAIT.saturating_sub(sooner(wildcard))
}

/// The longest wait of a wildcard, whatever progress there is.
fn most_wait(wildcard: &str) -> Duration {
    MOST_WILDCARD_WAIT.saturating_sub(sooner(wildcard))
}

fn is_inside(key: &ClaimKey, wildcard: &ClaimKey) -> bool {
    match (&key.of, &wildcard.of) {
        (Claimed::Names(names), Claimed::Names(wildcard)) => {
            wildcard.is_wildcard() && wildcard != names && wildcard.covers(names)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(256))]

    #[test]
    fn a_wildcard_waits_for_the_names_inside_it_and_for_nothing_else(
        ops in prop::collection::vec(an_op(), 1..80),
    ) {
        let mut sim = Sim::new();
        for op in ops {
            sim.step(op);
        }
        sim.finish();
    }
}
