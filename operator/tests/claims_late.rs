//! Writes of which nobody knows what came of them: they may land at any time, or never. Whatever happens, a
//! name that anybody is told to hold stands in an object of theirs and in no one else's.

mod claims_support;

use std::collections::BTreeSet;
use std::time::Duration;

use claims_support::*;
use proptest::prelude::*;
use vestibule_model::claim::ClaimKey;
use vestibule_operator::claims::{Outcome, Write};
use vestibule_operator::translate::Standing;

const TENANTS: [&str; 3] = ["a", "b", "c"];
const NAMES: usize = 3;
/// An API server gives a request up by then.
const GIVEN_UP: Duration = Duration::from_mins(1);

#[test]
fn a_create_that_lands_late_takes_no_name_from_whoever_has_it_now() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.wish(&shop, "a");
    let late = world.next_write().expect("a write");
    world.done(&late, Outcome::Unknown);
    // The older set goes before anything is known, and the younger one's turn has come.
    world.wish(&shop, "b");
    world.pass(Duration::from_secs(2));
    let write = world.begin_write().expect("a write");
    assert_eq!(write.name, late.name, "it is made sure of first");
    world.done(&write, Outcome::Unknown);
    assert!(matches!(world.land(&late), Outcome::Written(_)));
    for _ in 0..4 {
        world.pass(Duration::from_secs(40));
        world.rest();
        if world.holder(&shop) == Some("a") {
            // Nobody in `a` wants it.
            world.say([(&shop, Some(Standing::Revoked))]);
        } else if world.holder(&shop).is_none() {
            world.wish(&shop, "b");
        }
    }
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), vec!["b"])
    );
}

#[test]
fn a_create_that_may_land_late_finds_its_place_taken_until_it_cannot() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.wish(&shop, "a");
    let late = world.next_write().expect("a write");
    world.done(&late, Outcome::Unknown);
    world.pass(Duration::from_secs(2));
    world.rest();
    assert_eq!(world.holder(&shop), Some("a"));
    world.say([(&shop, Some(Standing::Revoked))]);
    world.rest();
    assert_eq!(world.holder(&shop), None);
    world.give(&shop, "b");
    assert!(matches!(world.land(&late), Outcome::Moved));
    assert_eq!(world.stands(&shop), ["b"]);
    world.pass(GIVEN_UP * 2);
    world.rest();
    assert_eq!(world.objects.len(), 1, "nothing is left of it");
}

#[test]
fn a_removal_that_may_land_late_is_made_sure_of_before_the_holder_is_served_again() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.give(&shop, "a");
    world.give(&name("cart.example.com"), "a");
    world.say([(&shop, Some(Standing::Revoked))]);
    let late = world.next_write().expect("a write");
    world.done(&late, Outcome::Unknown);
    // It is allowed again, and there at once.
    world.wish(&shop, "a");
    assert_eq!(world.holder(&shop), None);
    world.pass(Duration::from_secs(2));
    world.rest();
    assert_eq!(world.holder(&shop), Some("a"));
    assert!(matches!(world.land(&late), Outcome::Moved));
    assert_eq!(world.stands(&shop), ["a"]);
}

#[test]
fn a_create_without_an_answer_that_is_refused_from_then_on_keeps_its_names_from_nobody_for_ever() {
    for ours in [true, false] {
        let mut world = World::leading();
        let shop = name("shop.example.com");
        world.wish(&shop, "a");
        let late = world.next_write().expect("a write");
        world.done(&late, Outcome::Unknown);
        world.wish(&shop, "b");
        if !ours {
            world.uids.clear();
            world.book.gateways_moved();
            world.say([(&shop, None)]);
        }
        for round in 0..12 {
            world.pass(Duration::from_secs(10));
            while let Some(write) = world.begin_write() {
                let outcome = if write.name == late.name {
                    Outcome::Refused
                } else {
                    assert!(round >= 8, "the create may land still");
                    world.land(&write)
                };
                world.done(&write, outcome);
            }
        }
        world.rest();
        assert_eq!(world.next_write(), None);
        let expected = ours.then_some("b");
        assert_eq!(world.holder(&shop), expected);
        assert_eq!(world.stands(&shop), Vec::from_iter(expected));
        assert_eq!(world.book.counts().pending, 0);
        assert_eq!(world.book.deadline(), None);
    }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A tenant wants a name, or no longer does.
    Want(usize, usize, bool),
    /// A tenant may have names, or may not.
    Allow(usize, bool),
    Pass(u64),
    Begin,
    /// A write under way ends: what is known of it, and whether it lands.
    End(usize, Known, bool),
    /// One of which nobody knows anything lands.
    Land(usize),
    Show,
}

#[derive(Debug, Clone, Copy)]
enum Known {
    All,
    Refused,
    Nothing,
}

fn an_op() -> impl Strategy<Value = Op> {
    let known =
        prop_oneof![4 => Just(Known::All), 1 => Just(Known::Refused), 4 => Just(Known::Nothing)];
    prop_oneof![
        6 => (0..TENANTS.len(), 0..NAMES, any::<bool>()).prop_map(|(t, n, b)| Op::Want(t, n, b)),
        1 => (0..TENANTS.len(), any::<bool>()).prop_map(|(t, b)| Op::Allow(t, b)),
        4 => (1..100_u64).prop_map(Op::Pass),
        6 => Just(Op::Begin),
        6 => (0..4_usize, known, any::<bool>()).prop_map(|(n, k, l)| Op::End(n, k, l)),
        4 => (0..4_usize).prop_map(Op::Land),
        4 => Just(Op::Show),
    ]
}

struct Sim {
    world: World,
    keys: Vec<ClaimKey>,
    wanted: BTreeSet<(usize, usize)>,
    allowed: BTreeSet<usize>,
    under_way: Vec<(Write, Duration)>,
    late: Vec<(Write, Duration)>,
    now: Duration,
}

impl Sim {
    fn new() -> Self {
        Self {
            world: World::leading(),
            keys: (0..NAMES)
                .map(|n| name(&format!("n{n}.example.com")))
                .collect(),
            wanted: BTreeSet::new(),
            allowed: (0..TENANTS.len()).collect(),
            under_way: Vec::new(),
            late: Vec::new(),
            now: Duration::ZERO,
        }
    }

    /// What translation would say: the first tenant that wants a name is to have it.
    fn translate(&mut self) {
        for _ in 0..4 {
            let standings: Vec<_> = self
                .keys
                .iter()
                .enumerate()
                .map(|(n, key)| {
                    let wants =
                        |t: usize| self.wanted.contains(&(t, n)) && self.allowed.contains(&t);
                    let standing = match self.world.told.get(key) {
                        Some(holder) => {
                            let tenant = TENANTS.iter().position(|t| **t == **holder).unwrap();
                            Some(if !self.allowed.contains(&tenant) {
                                Standing::Revoked
                            } else if wants(tenant) {
                                Standing::Kept
                            } else {
                                Standing::Left
                            })
                        }
                        None => (0..TENANTS.len())
                            .find(|t| wants(*t))
                            .map(|t| Standing::Wished(TENANTS[t].into())),
                    };
                    (key.clone(), standing)
                })
                .collect();
            self.world
                .say(standings.iter().map(|(key, s)| (key, s.clone())));
            if self.world.news().is_empty() {
                break;
            }
        }
        self.check();
    }

    fn check(&self) {
        for key in &self.keys {
            let stands = self.world.stands(key);
            assert!(stands.len() <= 1, "{key} stands for {stands:?}");
            if let Some(holder) = self.world.holder(key) {
                assert_eq!(stands, [holder], "{key} is told to be {holder}'s");
            }
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Want(tenant, name, true) => {
                self.wanted.insert((tenant, name));
            }
            Op::Want(tenant, name, false) => {
                self.wanted.remove(&(tenant, name));
            }
            Op::Allow(tenant, true) => {
                self.allowed.insert(tenant);
            }
            Op::Allow(tenant, false) => {
                self.allowed.remove(&tenant);
            }
            Op::Pass(seconds) => {
                let time = Duration::from_secs(seconds);
                self.now += time;
                self.world.pass(time);
                let now = self.now;
                self.late
                    .retain(|(_, begun)| now.saturating_sub(*begun) < GIVEN_UP);
            }
            Op::Begin => {
                if let Some(write) = self.world.begin_write() {
                    self.under_way.push((write, self.now));
                }
            }
            Op::End(n, known, lands) => {
                if n < self.under_way.len() {
                    let (write, begun) = self.under_way.remove(n);
                    self.end(&write, begun, known, lands);
                }
            }
            Op::Land(n) => {
                if n < self.late.len() {
                    let (write, _) = self.late.remove(n);
                    self.world.land(&write);
                }
            }
            Op::Show => self.world.show_next(),
        }
        self.translate();
    }

    fn end(&mut self, write: &Write, begun: Duration, known: Known, lands: bool) {
        let outcome = match known {
            Known::All => self.world.land(write),
            Known::Refused => Outcome::Refused,
            Known::Nothing => {
                if lands {
                    self.world.land(write);
                } else {
                    self.late.push((write.clone(), begun));
                }
                Outcome::Unknown
            }
        };
        self.check();
        self.world.done(write, outcome);
    }

    /// Everything that is under way comes to its end.
    fn finish(&mut self) {
        self.late.clear();
        for (write, begun) in std::mem::take(&mut self.under_way) {
            self.end(&write, begun, Known::All, true);
            self.translate();
        }
        for _ in 0..12 {
            self.step(Op::Pass(40));
            for _ in 0..20 {
                self.step(Op::Show);
                self.step(Op::Begin);
                self.step(Op::End(0, Known::All, true));
            }
        }
        assert!(self.world.unseen.is_empty());
        for (n, key) in self.keys.clone().iter().enumerate() {
            let mut wanting = (0..TENANTS.len())
                .filter(|t| self.wanted.contains(&(*t, n)) && self.allowed.contains(t));
            let holder = self.world.holder(key);
            assert_eq!(
                self.world.stands(key),
                holder.into_iter().collect::<Vec<_>>()
            );
            assert_eq!(
                holder.is_some(),
                wanting.next().is_some(),
                "{key}: {holder:?}"
            );
        }
        let counts = self.world.book.counts();
        assert_eq!((counts.pending, counts.grace), (0, 0));
        assert!(
            self.world
                .objects
                .values()
                .all(|o| !o.content.entries.is_empty())
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn who_is_told_to_hold_a_name_has_it_alone(ops in prop::collection::vec(an_op(), 1..120)) {
        let mut sim = Sim::new();
        for op in ops {
            sim.step(op);
        }
        sim.finish();
    }
}
