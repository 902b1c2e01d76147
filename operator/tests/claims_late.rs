//! Writes with an unknown outcome: they may land at any time, or never. Whatever happens, the
//! object of a name that somebody is told to hold says so.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::protocol::Group;
use vestibule_operator::claims::{ClaimAction, ClaimRequest, WriteOutcome};
use vestibule_operator::translate::ClaimState;
use vestibule_operator_testing::claims::*;
use vestibule_test_support::properties::keep_failures_with_cases;

const TENANTS: [&str; 3] = ["a", "b", "c"];
const NAMES: usize = 3;
/// Beside the names there is a port.
const PORT: usize = NAMES;
/// An API server gives a request up by then.
const GIVEN_UP: Duration = Duration::from_mins(1);

#[test]
fn a_create_that_lands_late_takes_no_name_from_whoever_has_it_now() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.want(&shop, "a");
    let late = world.next_request().expect("a request");
    world.done(&late, WriteOutcome::Unknown);
    // Another one's turn has come before anything is known.
    world.want(&shop, "b");
    let read = world.next_request().expect("a request");
    assert_eq!(read.action, ClaimAction::Read, "it is made sure of first");
    let outcome = world.land(&read);
    world.done(&read, outcome);
    let create = world.next_request().expect("a request");
    assert!(matches!(world.land(&create), WriteOutcome::Known(Some(_))));
    // There is one object per name: the late one finds it.
    assert!(matches!(world.land(&late), WriteOutcome::Moved));
    let outcome = WriteOutcome::Known(world.seen(&create.name));
    world.done(&create, outcome);
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), Some("b"))
    );
}

/// A wildcard and a name inside it are two objects, so the API server does not decide between them. The leader does.
#[test]
fn a_create_of_a_former_leader_takes_no_name_out_of_a_wildcard() {
    let mut before = World::leading();
    let (wildcard, inside) = (name("*.example.com"), name("shop.example.com"));
    before.want(&inside, "b");
    let late = before.next_request().expect("a request");
    let mut world = before.restarted();
    // There is nothing about `b`'s name yet, so the wildcard has all names below it.
    world.give(&wildcard, "a");
    assert!(matches!(world.land(&late), WriteOutcome::Known(Some(_))));
    world.rest();
    assert_eq!(
        (world.holder(&inside), world.stands(&inside)),
        (None, None),
        "the leader takes it back"
    );
    assert_eq!(world.holder(&wildcard), Some("a"));
}

/// By a grant a namespace may have a name inside another's wildcard, and by being there first.
#[test]
fn a_create_that_lands_late_counts_where_it_could_be_made_now() {
    for granted in [true, false] {
        let mut before = World::leading();
        let (wildcard, inside) = (name("*.example.com"), name("shop.example.com"));
        before.want(&inside, "b");
        let late = before.next_request().expect("a request");
        let mut world = before.restarted();
        if granted {
            world.give(&wildcard, "a");
        }
        assert!(matches!(world.land(&late), WriteOutcome::Known(Some(_))));
        if granted {
            world.want(&inside, "b");
        }
        world.rest();
        assert_eq!(
            (world.holder(&inside), world.stands(&inside)),
            (Some("b"), Some("b"))
        );
    }
}

#[test]
fn a_create_that_lands_before_the_next_one_is_taken_for_what_it_is() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.want(&shop, "a");
    let late = world.next_request().expect("a request");
    world.done(&late, WriteOutcome::Unknown);
    world.want(&shop, "b");
    let read = world.next_request().expect("a request");
    let outcome = world.land(&read);
    world.done(&read, outcome);
    let create = world.next_request().expect("a request");
    assert!(matches!(world.land(&late), WriteOutcome::Known(Some(_))));
    let outcome = world.land(&create);
    assert!(matches!(outcome, WriteOutcome::Moved));
    world.done(&create, outcome);
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("a"), Some("a"))
    );
    // Nobody in `a` asks for it any more.
    world.say([(&shop, Some(ClaimState::Revoked))]);
    world.want(&shop, "b");
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), Some("b"))
    );
}

#[test]
fn claim_that_a_late_write_may_take_is_settled_before_it_is_held_again() {
    for rival in [None, Some("b")] {
        let mut world = World::leading();
        let shop = name("shop.example.com");
        world.give(&shop, "a");
        world.say([(&shop, Some(ClaimState::Revoked))]);
        if let Some(rival) = rival {
            world.want(&shop, rival);
        }
        let late = world.next_request().expect("a request");
        world.done(&late, WriteOutcome::Unknown);
        // It is allowed again, and there at once.
        world.want(&shop, "a");
        world.news();
        assert_eq!(world.holder(&shop), None);
        world.rest();
        assert_eq!(world.holder(&shop), Some("a"));
        assert!(matches!(world.land(&late), WriteOutcome::Moved));
        assert_eq!(world.stands(&shop), Some("a"));
    }
}

#[test]
fn a_create_without_an_answer_that_is_refused_from_then_on_keeps_its_name_from_nobody() {
    let mut world = World::leading();
    let shop = name("shop.example.com");
    world.want(&shop, "a");
    let late = world.next_request().expect("a request");
    world.done(&late, WriteOutcome::Unknown);
    world.want(&shop, "b");
    for _ in 0..12 {
        world.pass(Duration::from_secs(10));
        while let Some(request) = world.begin() {
            let outcome = match request.action {
                ClaimAction::Read => world.land(&request),
                _ => WriteOutcome::Refused,
            };
            world.done(&request, outcome);
        }
    }
    assert_eq!(world.store.counts().pending, 1);
    world.pass(Duration::from_secs(40));
    world.rest();
    assert_eq!(
        (world.holder(&shop), world.stands(&shop)),
        (Some("b"), Some("b"))
    );
    assert_eq!(world.store.counts().pending, 0);
    assert_eq!(world.store.deadline(), None);
}

/// A pass of which nobody knows what came: its port can be passed on again, and be taken from whoever has it then.
#[test]
fn a_pass_that_lands_late_gives_no_port_back() {
    let mut world = World::leading();
    let port = port(443);
    let (a, b) = (speaking("a", Group::Tls), speaking("b", Group::Tls));
    world.give(&port, a);
    world.say([(&port, Some(ClaimState::Passed("b".into())))]);
    let late = world.next_request().expect("a request");
    world.done(&late, WriteOutcome::Unknown);
    assert_eq!(world.told.get(&port), Some(&b));
    world.say([(&port, Some(ClaimState::Passed("c".into())))]);
    world.rest();
    let c = speaking("c", Group::Tls);
    assert_eq!(
        (world.told.get(&port), world.says(&port)),
        (Some(&c), Some(&c))
    );
    assert!(matches!(world.land(&late), WriteOutcome::Moved));
    assert_eq!(world.says(&port), Some(&c));
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A tenant wants a name or the port, or no longer does.
    Want(usize, usize, bool),
    /// Whether a tenant wants the port for TLS; else for HTTP.
    Speak(usize, bool),
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
        6 => (0..TENANTS.len(), 0..=PORT, any::<bool>()).prop_map(|(t, n, b)| Op::Want(t, n, b)),
        2 => (0..TENANTS.len(), any::<bool>()).prop_map(|(t, b)| Op::Speak(t, b)),
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
    /// What each tenant wants the port for.
    speaks: [Group; TENANTS.len()],
    under_way: Vec<(ClaimRequest, Duration)>,
    late: Vec<(ClaimRequest, Duration)>,
    now: Duration,
}

impl Sim {
    fn new() -> Self {
        Self {
            world: World::leading(),
            keys: (0..NAMES)
                .map(|n| name(&format!("n{n}.example.com")))
                .chain([port(443)])
                .collect(),
            speaks: [Group::Tls; TENANTS.len()],
            wanted: BTreeSet::new(),
            allowed: (0..TENANTS.len()).collect(),
            under_way: Vec::new(),
            late: Vec::new(),
            now: Duration::ZERO,
        }
    }

    /// What translation would say: the first tenant that wants something is to have it.
    fn translate(&mut self) {
        for _ in 0..6 {
            let keys = self.keys.iter().enumerate();
            let states: Vec<_> = keys
                .map(|(n, key)| match self.world.told.get(key) {
                    Some(holder) if n == PORT => (key.clone(), Some(self.state_of_port(holder))),
                    Some(holder) => (key.clone(), Some(self.state_of_name(n, holder))),
                    None => {
                        let first = self.wanting(n).next();
                        let wanted = first.map(|t| ClaimState::Wanted(self.holder_of(n, t)));
                        (key.clone(), wanted)
                    }
                })
                .collect();
            self.world
                .say(states.iter().map(|(key, s)| (key, s.clone())));
            if self.world.news().is_empty() {
                break;
            }
        }
        self.check();
    }

    fn wanting(&self, n: usize) -> impl Iterator<Item = usize> {
        (0..TENANTS.len())
            .filter(move |t| self.wanted.contains(&(*t, n)) && self.allowed.contains(t))
    }

    fn holder_of(&self, n: usize, tenant: usize) -> Holder {
        match n {
            PORT => speaking(TENANTS[tenant], self.speaks[tenant]),
            _ => TENANTS[tenant].into(),
        }
    }

    fn state_of_name(&self, n: usize, holder: &Holder) -> ClaimState {
        let tenant = tenant(holder);
        if !self.allowed.contains(&tenant) {
            ClaimState::Revoked
        } else if self.wanted.contains(&(tenant, n)) {
            ClaimState::Used
        } else {
            ClaimState::Unused
        }
    }

    fn state_of_port(&self, holder: &Holder) -> ClaimState {
        let of = tenant(holder);
        let speaks = |t: &usize| Some(self.speaks[*t]) == holder.speaks;
        let alone = self.wanting(PORT).eq([of]);
        if alone && !speaks(&of) {
            return ClaimState::Revoked;
        }
        let mut users: Vec<usize> = self.wanting(PORT).filter(speaks).collect();
        users.sort_by_key(|t| *t != of);
        match users.first() {
            Some(t) if *t == of => ClaimState::Used,
            Some(t) => ClaimState::Passed(TENANTS[*t].into()),
            None if self.allowed.contains(&of) => ClaimState::Unused,
            None => ClaimState::Revoked,
        }
    }

    fn check(&self) {
        for key in &self.keys {
            let Some(holder) = self.world.told.get(key) else {
                continue;
            };
            let says = self.world.says(key);
            if key.port_key().is_some() {
                // A port is passed on before that is written: what it speaks is the same.
                let group = says.map(|says| says.speaks);
                assert_eq!(
                    group,
                    Some(holder.speaks),
                    "{key} is told to be {holder:?}'s"
                );
            } else {
                assert_eq!(says, Some(holder), "{key} is told to be {holder:?}'s");
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
            Op::Speak(tenant, tls) => {
                self.speaks[tenant] = if tls { Group::Tls } else { Group::Http };
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
                if let Some(request) = self.world.begin() {
                    self.under_way.push((request, self.now));
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

    fn end(&mut self, write: &ClaimRequest, begun: Duration, known: Known, lands: bool) {
        let outcome = match known {
            Known::All => self.world.land(write),
            Known::Refused => WriteOutcome::Refused,
            Known::Nothing => {
                if lands {
                    self.world.land(write);
                } else {
                    self.late.push((write.clone(), begun));
                }
                WriteOutcome::Unknown
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
            let holder = self.world.told.get(key);
            assert_eq!(self.world.says(key), holder);
            let wanting = self.wanting(n).next();
            assert_eq!(holder.is_some(), wanting.is_some(), "{key}: {holder:?}");
        }
        let counts = self.world.store.counts();
        assert_eq!((counts.pending, counts.grace), (0, 0));
        assert_eq!(self.world.objects.len(), counts.held);
    }
}

fn tenant(holder: &Holder) -> usize {
    let mut tenants = TENANTS.iter();
    tenants
        .position(|t| **t == *holder.namespace)
        .expect("a tenant")
}

proptest! {
    #![proptest_config(keep_failures_with_cases(256))]

    #[test]
    fn claim_holder_that_is_told_so_has_the_claim_alone(ops in prop::collection::vec(an_op(), 1..120)) {
        let mut sim = Sim::new();
        for op in ops {
            sim.step(op);
        }
        sim.finish();
    }
}
