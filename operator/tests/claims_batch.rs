//! Names that come in one batch, as at a start of `vestibule run` or after a restore without claims: who gets them is
//! decided by the precedence of Gateway API, and not by the order of arrival.

use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::claims::{Memory, Time};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::translate::{Change, ClaimMode, Settings, Status, Translator};
use vestibule_operator_testing::objects::*;

const WIDE: &str = "*.fresh.example.com";
const INNER: &str = "in.fresh.example.com";

/// A run of `vestibule run` since its start.
struct Run {
    control: ControlLoop<Memory>,
    time: Time,
}

impl Run {
    /// A start with these objects.
    fn of(objects: impl IntoIterator<Item = Object>) -> Self {
        let recorded = Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        };
        let time = Time {
            seconds: 1_000,
            now: Instant::now(),
        };
        let claims = Memory::new(Duration::from_mins(1), time);
        let registry = CertificateRegistry::new().0;
        let control = ControlLoop::new(Translator::new(recorded), claims, registry);
        let mut run = Self { control, time };
        let own = vec![passthrough("own", "own.example.org")];
        let first = [our_class(), gateway("one", own, NamespaceScope::All)];
        run.put(first.into_iter().chain(objects));
        run
    }

    fn put(&mut self, objects: impl IntoIterator<Item = Object>) {
        self.control.add(objects.into_iter().map(Change::Put));
        for _ in 0..20 {
            if self.control.step(self.time).is_none() {
                return;
            }
        }
        panic!("the run does not come to rest");
    }

    fn holder(&self, hostname: &str) -> Option<String> {
        let gateway = ObjectName::new("platform", "one");
        let key = ClaimKey::names(&gateway, &pattern(hostname));
        let holder = self.control.translator.merge().holder(&key)?;
        Some(holder.namespace.to_string())
    }

    /// Whether the listener of a tenant's set is in conflict with the holder of its name.
    fn is_refused(&self, tenant: &str) -> bool {
        let key = key(Kind::ListenerSet, tenant, "set");
        let Some(Status::Listeners(status)) = self.control.translator.statuses().get(&key) else {
            panic!("{tenant} has no status");
        };
        let mut conditions = status.listeners[0].conditions.iter();
        conditions.any(|condition| {
            condition.kind == ConditionType::Conflicted
                && condition.truth == Truth::True
                && condition.reason == Reason::HostnameConflict
        })
    }
}

fn asks(tenant: &str, created: i64, hostname: &str) -> Object {
    set(
        tenant,
        "set",
        created,
        "one",
        vec![passthrough("l", hostname)],
    )
}

/// The objects of a batch, in both orders.
fn both_orders(objects: [Object; 2]) -> [[Object; 2]; 2] {
    let [one, other] = objects.clone();
    [objects, [other, one]]
}

#[test]
fn an_older_wildcard_is_closed_to_younger_objects_of_the_same_batch() {
    for batch in both_orders([asks("a", 1, WIDE), asks("b", 5, INNER)]) {
        let run = Run::of(batch);
        assert_eq!(run.holder(WIDE).as_deref(), Some("a"));
        assert_eq!(run.holder(INNER), None);
        assert_eq!((run.is_refused("a"), run.is_refused("b")), (false, true));
    }
    // It is the same if the younger one comes later, and `run` starts again with both.
    let mut run = Run::of([asks("a", 1, WIDE)]);
    run.put([asks("b", 5, INNER)]);
    assert_eq!(run.holder(INNER), None);
    assert!(run.is_refused("b"));
}

#[test]
fn an_older_name_stays_beside_a_younger_wildcard_of_the_same_batch() {
    for batch in both_orders([asks("a", 5, WIDE), asks("b", 1, INNER)]) {
        let run = Run::of(batch);
        assert_eq!(run.holder(WIDE).as_deref(), Some("a"));
        assert_eq!(run.holder(INNER).as_deref(), Some("b"));
        assert_eq!((run.is_refused("a"), run.is_refused("b")), (false, false));
    }
}

/// What is recorded goes before all that is asked for, whatever the ages.
#[test]
fn a_name_that_is_recorded_stays_when_an_older_wildcard_comes() {
    let mut run = Run::of([asks("b", 5, INNER)]);
    run.put([asks("a", 1, WIDE)]);
    assert_eq!(run.holder(WIDE).as_deref(), Some("a"));
    assert_eq!(run.holder(INNER).as_deref(), Some("b"));
    assert_eq!((run.is_refused("a"), run.is_refused("b")), (false, false));
}

/// `vestibule check` says what a start of `vestibule run` does.
#[test]
fn a_check_of_the_batch_says_the_same() {
    for batch in both_orders([asks("a", 1, WIDE), asks("b", 5, INNER)]) {
        let own = vec![passthrough("own", "own.example.org")];
        let first = [our_class(), gateway("one", own, NamespaceScope::All)];
        let checked = translated(first.into_iter().chain(batch.clone()));
        let run = Run::of(batch);
        assert_eq!(checked.statuses(), run.control.translator.statuses());
        assert_eq!(checked.findings(), run.control.translator.findings());
    }
}
