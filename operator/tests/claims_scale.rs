//! Many names: what one edit costs does not depend on how many its tenant, or its Gateway, has.

#![expect(clippy::print_stdout, reason = "what it measures is for people")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::policy::Policy;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::claims::{ClaimStore, Counts, GRACE, GatewayPresence, Time, WriteOutcome};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::translate::{Change, ClaimMode, Output, Settings, Translator, Work};
use vestibule_operator_testing::objects::*;
use vestibule_stream::ResourceKind;

struct Leader {
    control: ControlLoop<ClaimStore>,
    time: Time,
    version: u64,
}

/// What a change cost: writes of objects, and units of translation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cost {
    writes: usize,
    work: Work,
}

impl Leader {
    fn new() -> Self {
        // A name that is renamed counts until its grace is over.
        let policy = Policy {
            names_per_namespace: 10_001,
            ..Policy::default()
        };
        let settings = Settings {
            claims: ClaimMode::Recorded,
            policy,
            ..settings()
        };
        let time = Time {
            seconds: 1_000,
            now: Instant::now(),
        };
        let mut leader = Self {
            control: ControlLoop::new(
                Translator::new(settings),
                ClaimStore::new(GRACE),
                CertificateRegistry::new().0,
            ),
            time,
            version: 0,
        };
        leader.control.claims.begin(time);
        leader.control.claims.lead(true, time);
        let own = vec![passthrough("own", "own.example.com")];
        let objects = [our_class(), gateway("one", own, NamespaceScope::All)];
        leader.make(objects.map(Change::Put));
        leader
    }

    fn make(&mut self, changes: impl IntoIterator<Item = Change>) -> Cost {
        let mut sum = Output::default();
        let mut cost = Cost::default();
        self.control.add(changes);
        loop {
            while let Some(output) = self.control.step(self.time) {
                sum.merge(output);
            }
            self.time.now += Duration::from_millis(50);
            let ours = |_: &_| GatewayPresence::Ours("uid".into());
            let Some(request) = self.control.claims.next_request(self.time.now, ours) else {
                break;
            };
            self.version += 1;
            cost.writes += 1;
            let seen = request.stored(self.version);
            let is_gone = seen.is_none();
            self.control
                .claims
                .done(&request.name, WriteOutcome::Known(seen), self.time);
            if is_gone {
                self.control.claims.observe(&request.name, None, self.time);
            }
        }
        cost.work = sum.work;
        cost
    }

    /// Sets with one hostname each, for so many namespaces.
    fn fill(&mut self, names: usize, namespaces: usize) -> Cost {
        let sets = (0..names).map(|n| {
            let listener = passthrough("l", &format!("host-{n}.example.com"));
            let tenant = format!("tenant-{}", n % namespaces);
            Change::Put(set(&tenant, &format!("set-{n}"), 1, "one", vec![listener]))
        });
        self.make(sets.collect::<Vec<_>>())
    }

    /// A tenant renames one name, another one asks for a name that is held, and a set goes.
    fn edits(&mut self) -> [Cost; 3] {
        let listener = vec![passthrough("l", "renamed.example.com")];
        let renamed = set("tenant-0", "set-0", 1, "one", listener);
        let listener = vec![passthrough("l", "host-1.example.com")];
        let hijack = set("aaa", "old", 0, "one", listener);
        let gone = ObjectKey::new(Kind::ListenerSet, "aaa", "old");
        [
            Change::Put(renamed),
            Change::Put(hijack),
            Change::Remove(gone),
        ]
        .map(|change| self.make([change]))
    }

    /// How many listeners are published.
    fn served(&self) -> usize {
        let published = self.control.translator.resources().keys();
        let listeners = published.filter(|key| key.kind() == ResourceKind::Listener);
        listeners.count()
    }
}

#[test]
fn one_edit_costs_the_same_however_many_names_there_are() {
    edits_cost_the_same([(100, 1), (1_000, 1), (2_000, 50)]);
}

#[test]
#[ignore = "takes minutes: the sizes that are promised"]
fn ten_thousand_names_of_one_namespace_and_forty_thousand_of_fifty() {
    edits_cost_the_same([(100, 1), (10_000, 1), (40_000, 50)]);
}

fn edits_cost_the_same(sizes: [(usize, usize); 3]) {
    let mut costs = BTreeMap::new();
    for (names, namespaces) in sizes {
        let mut leader = Leader::new();
        let begin = Instant::now();
        let cost = leader.fill(names, namespaces);
        let filled = begin.elapsed();
        assert_eq!(leader.served(), names + 1);
        // Every object is written once.
        assert_eq!(cost.writes, names);
        let counts = leader.control.claims.counts();
        assert_eq!((counts.held, counts.pending), (names, 0));
        let begin = Instant::now();
        let edits = leader.edits();
        println!(
            "{names} names of {namespaces} namespaces: {filled:?}, then three edits in {:?}: {edits:?}",
            begin.elapsed()
        );
        for cost in &edits {
            assert!(cost.writes <= 1, "{cost:?}");
        }
        costs.insert(names, edits.map(|cost| cost.work));
    }
    let mut costs = costs.values();
    let first = costs.next();
    assert!(costs.all(|other| Some(other) == first), "{costs:?}");
}

#[test]
fn names_that_are_let_go_leave_no_object_behind() {
    let mut leader = Leader::new();
    leader.fill(1_000, 1);
    let sets = (0..1_000).map(|n| {
        let key = ObjectKey::new(Kind::ListenerSet, "tenant-0", format!("set-{n}"));
        Change::Remove(key)
    });
    let cost = leader.make(sets.collect::<Vec<_>>());
    assert_eq!(cost.writes, 0, "they stay for the grace");
    assert_eq!(leader.control.claims.counts().grace, 1_000);
    leader.time.now += GRACE + Duration::from_secs(1);
    leader.control.claims.pass(leader.time);
    let cost = leader.make([]);
    assert_eq!(cost.writes, 1_000);
    assert_eq!(leader.control.claims.counts(), Counts::default());
    assert_eq!(leader.served(), 1);
}
