use proptest::prelude::*;
use serde_json::json;
use vestibule_model::key::Kind;
use vestibule_test_support::properties::quick;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(Kind::ListenerSet, namespace, name)
}

/// The status that an object should have: its generation, and whether every proxy has it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wish {
    generation: i64,
    acked: bool,
    routes: u8,
}

impl Wish {
    fn status(self) -> Value {
        let (truth, reason) = if self.acked {
            ("True", "Programmed")
        } else {
            ("False", "Pending")
        };
        json!({"routes": self.routes, "conditions": [{
            "type": "Programmed", "status": truth, "reason": reason,
            "observedGeneration": self.generation,
        }]})
    }
}

/// A server and the result of translation. It counts the writes that reach it.
struct World {
    now: Instant,
    planner: Planner,
    version: u64,
    server: BTreeMap<ObjectKey, LiveStatus>,
    desired_services: BTreeMap<ObjectKey, Wish>,
    writes: Vec<(ObjectKey, Value)>,
}

impl World {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            planner: Planner::new(StatusTiming::default()),
            version: 0,
            server: BTreeMap::new(),
            desired_services: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    fn leading() -> Self {
        let mut world = Self::new();
        // The last leader led long ago, so no proxy is expected to come back.
        world.planner.lead(world.now);
        world.pass(Duration::from_hours(1));
        world
    }

    /// Somebody writes the object. They wrote its spec if the generation differs.
    fn put(&mut self, key: &ObjectKey, generation: i64, status: &Value) {
        self.version += 1;
        let live = LiveStatus::new(self.version.to_string().into(), generation, status);
        self.server.insert(key.clone(), live);
    }

    fn show(&mut self, key: &ObjectKey) {
        self.planner.observe(key, self.server[key].clone());
    }

    fn desired(&mut self, key: &ObjectKey, generation: i64, acked: bool) {
        let desired = Wish {
            generation,
            acked,
            routes: 0,
        };
        self.desired_services.insert(key.clone(), desired);
        self.planner.touch(key);
    }

    fn job(&mut self) -> Option<Job> {
        loop {
            let desired_services = &self.desired_services;
            let judge = |key: &ObjectKey, _: &LiveStatus, _: &Value| {
                desired_services.get(key).map(|w| w.status().into())
            };
            match self.planner.next(self.now, 3, judge) {
                Next::Write(job) => return Some(job),
                Next::More => {}
                Next::Idle => return None,
            }
        }
    }

    /// A write arrives at the server.
    fn write(&mut self, job: &Job) -> Result<LiveStatus, WriteFailure> {
        let live = self
            .server
            .get(&job.key)
            .cloned()
            .ok_or(WriteFailure::Gone)?;
        if live.version != job.version {
            return Err(WriteFailure::Conflict);
        }
        self.writes.push((job.key.clone(), job.status.clone()));
        self.put(&job.key.clone(), live.generation, &job.status);
        Ok(self.server[&job.key].clone())
    }

    /// Writes what is due, and lets the watch show it.
    fn run(&mut self) {
        while let Some(job) = self.job() {
            let outcome = self.write(&job);
            self.planner.done(&job.key, outcome, self.now);
            self.show(&job.key);
        }
    }

    /// Lets time pass, with every deadline on the way.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while let Some(at) = self.planner.deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now + MILLISECOND);
            self.run();
        }
        self.now = end;
    }

    fn truth(&self, key: &ObjectKey) -> String {
        let status = self.server[key].status();
        status["conditions"][0]["status"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

#[test]
fn an_edit_is_one_write_if_the_proxies_are_quick() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    world.put(&key, 1, &Value::Null);
    world.desired(&key, 1, false);
    world.show(&key);
    world.pass(500 * MILLISECOND);
    assert_eq!(world.writes.len(), 0);
    assert_eq!(world.planner.waiting(), 1);
    world.desired(&key, 1, true);
    world.pass(Duration::from_secs(100));
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.truth(&key), "True");
    // An edit of it leads to another write.
    world.put(&key, 2, &world.server[&key].status());
    world.desired(&key, 2, false);
    world.show(&key);
    world.pass(Duration::from_secs(1));
    world.desired(&key, 2, true);
    world.pass(Duration::from_secs(100));
    assert_eq!(world.writes.len(), 2);
    assert_eq!(world.planner.waiting(), 0);
}

#[test]
fn pending_is_said_after_the_patience_and_not_before() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    world.put(&key, 1, &Value::Null);
    world.desired(&key, 1, false);
    world.show(&key);
    world.pass(Duration::from_millis(1_999));
    assert_eq!(world.writes.len(), 0);
    world.pass(10 * MILLISECOND);
    assert_eq!(world.truth(&key), "False");
    world.desired(&key, 1, true);
    world.pass(Duration::ZERO);
    assert_eq!(world.truth(&key), "True");
    assert_eq!(world.writes.len(), 2);
}

#[test]
fn a_new_leader_writes_nothing_that_is_there_or_comes_back() {
    let mut world = World::new();
    let keys: Vec<ObjectKey> = (0..50)
        .map(|n| key(&format!("ns-{}", n % 7), &n.to_string()))
        .collect();
    for key in &keys {
        let there = Wish {
            generation: 1,
            acked: true,
            routes: 0,
        };
        world.put(key, 1, &there.status());
        // No proxy has acknowledged anything to the new leader yet.
        world.desired(key, 1, false);
        world.show(key);
    }
    world.planner.lead(world.now);
    world.pass(Duration::from_secs(30));
    for key in &keys[1..] {
        world.desired(key, 1, true);
    }
    world.planner.touch_waiting();
    world.pass(Duration::from_secs(29));
    assert_eq!(world.writes.len(), 0);
    // A status that no proxy confirms is reported as pending in the end.
    world.pass(Duration::from_secs(100));
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.truth(&keys[0]), "False");
}

#[test]
fn status_change_in_routes_does_not_wait_for_proxies_to_come_back() {
    let (mut world, key) = (World::new(), key("a", "set"));
    let there = Wish {
        generation: 1,
        acked: true,
        routes: 0,
    };
    world.put(&key, 1, &there.status());
    world.show(&key);
    world.desired_services.insert(
        key.clone(),
        Wish {
            acked: false,
            routes: 1,
            ..there
        },
    );
    world.planner.lead(world.now);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.server[&key].status()["routes"], 1);
    assert_eq!(world.truth(&key), "True");
    world.pass(Duration::from_secs(100));
    assert_eq!(world.truth(&key), "False");
    assert_eq!(world.writes.len(), 2);
}

/// The status of an object with one listener: what its Programmed waits for, and the reason of the listener's
/// `ResolvedRefs`.
fn waiting_status(waits: (&str, &str), resolved: &str) -> Value {
    let (reason, message) = waits;
    json!({
        "conditions": [{
            "type": "Programmed", "status": "False", "reason": reason, "message": message,
            "observedGeneration": 1,
        }],
        "listeners": [{"name": "web", "conditions": [{
            "type": "ResolvedRefs", "status": "False", "reason": resolved, "observedGeneration": 1,
        }]}],
    })
}

/// Has everything looked at that is due, with `due` as the status of every object, and lets the writes succeed.
fn look(world: &mut World, due: &Due) -> usize {
    let before = world.writes.len();
    while let Next::Write(job) = world
        .planner
        .next(world.now, 99, |_, _, _| Some(due.clone()))
    {
        let outcome = world.write(&job);
        world.planner.done(&job.key, outcome, world.now);
        world.show(&job.key);
    }
    world.writes.len() - before
}

#[test]
fn status_part_that_waits_as_before_holds_nothing_else_back() {
    for waits in [
        ("AddressNotAssigned", "no address"),
        ("ParentNotProgrammed", "its Gateway is not programmed"),
        ("Pending", "0/1 acked; waiting for p-1"),
    ] {
        let (mut world, key) = (World::leading(), key("a", "set"));
        world.put(&key, 1, &waiting_status(waits, "ResolvedRefs"));
        world.show(&key);
        let mut due: Due = waiting_status(waits, "ResolvedRefs").into();
        assert_eq!(look(&mut world, &due), 0);
        // Not every proxy has it yet, so the write may wait, but not for longer than any other.
        due = Due {
            waits: true,
            ..waiting_status(waits, "RefNotPermitted").into()
        };
        world.planner.touch(&key);
        assert_eq!(look(&mut world, &due), 0);
        let patience = StatusTiming::default().patience;
        assert_eq!(world.planner.deadline(), Some(world.now + patience));
        world.now += patience;
        assert_eq!(look(&mut world, &due), 1, "{waits:?}");
        assert_eq!(world.server[&key].status(), due.status);
        // What every proxy has is told at once.
        due = waiting_status(waits, "InvalidCertificateRef").into();
        world.planner.touch(&key);
        assert_eq!(look(&mut world, &due), 1, "{waits:?}");
        assert_eq!(world.server[&key].status(), due.status);
    }
}

#[test]
fn progress_alone_is_told_from_time_to_time_and_else_with_the_rest() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    let acked = |n: u32, resolved: &str| -> Due {
        waiting_status(("Pending", &format!("{n}/9 acked")), resolved).into()
    };
    world.put(&key, 1, &acked(0, "ResolvedRefs").status);
    world.show(&key);
    let begin = world.now;
    let mut writes = 0;
    for n in 1..9 {
        world.planner.touch(&key);
        writes += look(&mut world, &acked(n, "ResolvedRefs"));
        world.now += Duration::from_secs(1);
    }
    assert_eq!(writes, 0);
    let regress = StatusTiming::default().regress;
    assert_eq!(world.planner.deadline(), Some(begin + regress));
    // Other news takes the progress with it, after the usual time.
    world.planner.touch(&key);
    let due = acked(8, "RefNotPermitted");
    assert_eq!(look(&mut world, &due), 0);
    world.now += Duration::from_secs(2);
    assert_eq!(look(&mut world, &due), 1);
    assert_eq!(world.server[&key].status(), due.status);
    // The time for progress begins anew.
    world.planner.touch(&key);
    assert_eq!(look(&mut world, &acked(7, "RefNotPermitted")), 0);
    assert_eq!(world.planner.deadline(), Some(world.now + regress));
}

/// A status that is no longer ours to write, as [`Due`].
fn lost() -> Due {
    Due {
        confirm: true,
        ..json!({"conditions": [{"type": "Programmed", "status": "Unknown"}]}).into()
    }
}

#[test]
fn the_status_of_an_object_that_is_lost_is_written_once() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    let ours = waiting_status(("Pending", "0/1 acked"), "ResolvedRefs");
    world.put(&key, 1, &ours);
    world.show(&key);
    // Its class may come back in a moment.
    assert_eq!(look(&mut world, &lost()), 0);
    world.now += StatusTiming::default().patience;
    let next = world.planner.next(world.now, 9, |_, _, _| Some(lost()));
    let Next::Write(job) = next else {
        panic!("{next:?}")
    };
    assert!(job.confirm);
    let outcome = world.write(&job);
    world.planner.done(&key, outcome, world.now);
    world.show(&key);
    assert_eq!(world.server[&key].status(), lost().status);
    // The next controller writes what it likes. It may even have the name of our field manager.
    for generation in 2..5 {
        world.put(&key, generation, &ours);
        world.show(&key);
        world.now += Duration::from_mins(1);
        assert_eq!(look(&mut world, &lost()), 0);
        assert_eq!(world.planner.deadline(), None);
    }
    // The object becomes ours, and is lost again.
    world.planner.touch(&key);
    let due = waiting_status(("Pending", "0/1 acked"), "RefNotPermitted").into();
    assert_eq!(look(&mut world, &due), 1);
    world.planner.touch(&key);
    assert_eq!(look(&mut world, &lost()), 0);
    world.now += StatusTiming::default().patience;
    assert_eq!(look(&mut world, &lost()), 1);
}

#[test]
fn a_status_of_others_is_asked_about_once_in_a_term() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    world.put(&key, 1, &json!({"theirs": 1}));
    world.show(&key);
    let asks = |world: &mut World| {
        let mut asks = 0;
        for _ in 0..5 {
            world.now += StatusTiming::default().patience;
            world.planner.touch(&key);
            let next = world.planner.next(world.now, 9, |_, _, _| Some(lost()));
            if let Next::Write(job) = next {
                assert!(job.confirm);
                asks += 1;
                let theirs = Err(WriteFailure::NotOurs);
                world.planner.done(&job.key, theirs, world.now);
            }
        }
        asks
    };
    assert_eq!(asks(&mut world), 1);
    world.put(&key, 2, &json!({"theirs": 2}));
    world.show(&key);
    assert_eq!(asks(&mut world), 0);
    assert_eq!(world.planner.waiting(), 0);
    assert_eq!(world.planner.deadline(), None);
    // Another replica may have led in between.
    world.planner.follow();
    world.planner.lead(world.now);
    assert_eq!(asks(&mut world), 1);
    assert_eq!(world.writes.len(), 0);
}

#[test]
fn an_object_that_is_lost_is_asked_about_again_after_a_failure() {
    for failure in [WriteFailure::Other, WriteFailure::Conflict] {
        let (mut world, key) = (World::leading(), key("a", "set"));
        world.put(&key, 1, &waiting_status(("Pending", ""), "ResolvedRefs"));
        world.show(&key);
        assert_eq!(look(&mut world, &lost()), 0);
        world.now += StatusTiming::default().patience;
        let next = world.planner.next(world.now, 9, |_, _, _| Some(lost()));
        let Next::Write(job) = next else {
            panic!("{next:?}")
        };
        world.planner.done(&job.key, Err(failure), world.now);
        let mut writes = 0;
        while let Some(at) = world.planner.deadline() {
            world.now = at;
            writes += look(&mut world, &lost());
        }
        assert_eq!(writes, 1, "{failure:?}");
    }
}

#[test]
fn a_conflict_waits_for_the_watch_in_either_order() {
    for seen_before_the_answer in [false, true] {
        let (mut world, key) = (World::leading(), key("a", "set"));
        world.put(&key, 1, &Value::Null);
        world.desired(&key, 1, true);
        world.show(&key);
        let job = world.job().expect("it is due");
        world.put(&key, 2, &Value::Null);
        world.desired(&key, 2, true);
        if seen_before_the_answer {
            world.show(&key);
        }
        let outcome = world.write(&job);
        assert_eq!(outcome, Err(WriteFailure::Conflict));
        world.planner.done(&key, outcome, world.now);
        if !seen_before_the_answer {
            assert_eq!(world.job(), None);
            world.show(&key);
        }
        world.pass(MILLISECOND);
        assert_eq!(world.writes.len(), 1);
    }
}

#[test]
fn failures_are_tried_again_less_and_less_often() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    world.put(&key, 1, &Value::Null);
    world.desired(&key, 1, true);
    world.show(&key);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let job = world.job().expect("it is due");
        world
            .planner
            .done(&job.key, Err(WriteFailure::Other), world.now);
        // Other changes of the object meanwhile do not make it write earlier.
        world.planner.touch(&key);
        assert_eq!(world.job(), None);
        let at = world.planner.deadline().expect("it is tried again");
        waits.push((at - world.now).as_secs());
        world.now = at;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn tenants_take_turns() {
    let mut world = World::leading();
    for n in 0..1_000 {
        let key = key("many", &format!("{n}"));
        world.put(&key, 1, &Value::Null);
        world.desired(&key, 1, true);
        world.show(&key);
    }
    for namespace in ["a", "z"] {
        let few = key(namespace, "one");
        world.put(&few, 1, &Value::Null);
        world.desired(&few, 1, true);
        world.show(&few);
    }
    let first: Vec<String> = (0..6)
        .filter_map(|_| world.job())
        .map(|job| job.key.name.namespace.to_string())
        .collect();
    assert!(
        first.contains(&"a".to_owned()) && first.contains(&"z".to_owned()),
        "{first:?}"
    );
}

#[test]
fn followers_write_nothing_and_rest() {
    let (mut world, key) = (World::new(), key("a", "set"));
    world.put(&key, 1, &Value::Null);
    world.desired(&key, 1, true);
    world.show(&key);
    assert_eq!(world.job(), None);
    world.planner.lead(world.now);
    let job = world.job().expect("it is due");
    world.planner.follow();
    world
        .planner
        .done(&job.key, Err(WriteFailure::Other), world.now);
    assert_eq!(world.job(), None);
    assert_eq!(world.planner.deadline(), None);
    // The next leader does what the last one left undone.
    world.planner.lead(world.now);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.writes.len(), 1);
}

#[test]
fn status_of_an_object_that_is_gone_is_forgotten() {
    let (mut world, key) = (World::leading(), key("a", "set"));
    world.put(&key, 1, &Value::Null);
    world.desired(&key, 1, false);
    world.show(&key);
    assert_eq!(world.job(), None);
    world.server.remove(&key);
    world.planner.forget(&key);
    world.pass(Duration::from_secs(100));
    assert_eq!(world.planner.waiting(), 0);
    assert_eq!(world.planner.deadline(), None);
}

#[derive(Debug, Clone)]
enum Happening {
    /// Somebody edits an object: its spec, or only its metadata.
    Edit(usize, bool),
    Acked(usize, bool),
    Routes(usize, u8),
    /// The watch shows an object.
    Show(usize),
    /// A write begins.
    Begin,
    /// The oldest write ends in this way.
    End(Ending),
    Leadership(bool),
    Pass(u64),
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Well,
    /// The write is lost on the way.
    Lost,
    /// The write succeeds, but the response is lost.
    Unknown,
}

fn happening() -> impl Strategy<Value = Happening> {
    let ending =
        prop_oneof![3 => Just(Ending::Well), 1 => Just(Ending::Lost), 1 => Just(Ending::Unknown)];
    prop_oneof![
        2 => (0..4_usize, any::<bool>()).prop_map(|(n, spec)| Happening::Edit(n, spec)),
        3 => (0..4_usize, any::<bool>()).prop_map(|(n, acked)| Happening::Acked(n, acked)),
        1 => (0..4_usize, 0..3_u8).prop_map(|(n, routes)| Happening::Routes(n, routes)),
        4 => (0..4_usize).prop_map(Happening::Show),
        4 => Just(Happening::Begin),
        4 => ending.prop_map(Happening::End),
        1 => any::<bool>().prop_map(Happening::Leadership),
        4 => (0..5_000_u64).prop_map(Happening::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(quick(256)))]

    /// Whatever happens, in the end every status is what it should be, after a bounded number of
    /// writes, and then nothing more is written.
    #[test]
    fn statuses_all_become_right_in_bounded_writes_and_then_nothing_is_written(happenings in prop::collection::vec(happening(), 1..120)) {
        let mut world = World::leading();
        let keys: Vec<ObjectKey> = (0..4).map(|n| key(&format!("{}", n % 2), &format!("{n}"))).collect();
        for key in &keys {
            world.put(key, 1, &Value::Null);
            world.desired(key, 1, false);
            world.show(key);
        }
        let mut under_way = VecDeque::new();
        for happening in &happenings {
            match happening {
                Happening::Edit(n, spec) => {
                    let key = &keys[*n];
                    let live = world.server[key].clone();
                    let generation = live.generation + i64::from(*spec);
                    world.put(key, generation, &live.status());
                    if *spec {
                        world.desired(key, generation, false);
                    }
                }
                Happening::Acked(n, acked) => {
                    world.desired_services.get_mut(&keys[*n]).expect("it is there").acked = *acked;
                    world.planner.touch(&keys[*n]);
                }
                Happening::Routes(n, routes) => {
                    world.desired_services.get_mut(&keys[*n]).expect("it is there").routes = *routes;
                    world.planner.touch(&keys[*n]);
                }
                Happening::Show(n) => world.show(&keys[*n]),
                Happening::Begin => under_way.extend(world.job()),
                Happening::End(ending) => {
                    if let Some(job) = under_way.pop_front() {
                        let outcome = match ending {
                            Ending::Well => world.write(&job),
                            Ending::Lost => Err(WriteFailure::Other),
                            Ending::Unknown => world.write(&job).and(Err(WriteFailure::Other)),
                        };
                        world.planner.done(&job.key, outcome, world.now);
                    }
                }
                Happening::Leadership(true) => world.planner.lead(world.now),
                Happening::Leadership(false) => world.planner.follow(),
                Happening::Pass(millis) => world.now += Duration::from_millis(*millis),
            }
        }
        world.planner.lead(world.now);
        for job in under_way {
            let outcome = world.write(&job);
            world.planner.done(&job.key, outcome, world.now);
        }
        for key in &keys {
            world.show(key);
        }
        world.pass(Duration::from_mins(10));
        for key in &keys {
            prop_assert_eq!(world.server[key].status(), world.desired_services[key].status());
        }
        let writes = world.writes.len();
        world.planner.touch_all();
        world.pass(Duration::from_mins(10));
        prop_assert_eq!(world.writes.len(), writes);
        prop_assert!(writes <= happenings.len() + 2 * keys.len(), "{writes} writes");
    }
}
