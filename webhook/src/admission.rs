//! What admission knows, and its answers from it.
//!
//! A watch feeds it; reviews read it. The watch is always a little behind, and within that gap two
//! sets that conflict could both come in, one right after the other. So a ListenerSet that was just
//! admitted counts as there until the watch shows it, for at most [`REMEMBERED`]: the other replicas
//! do not know it, and a set that was admitted may still fail elsewhere, so this narrows the gap and
//! does not close it. The status decides.
//!
//! It counts beside what the watch showed of it, never in its place: whoever reaches the port can send
//! reviews, and one that was made up must not free what somebody holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockUpgradableReadGuard};
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::{Listener, ListenerSet, Object};
use vestibule_model::policy::Policy;

use crate::facts::Facts;
use crate::review::{Operation, Review, Reviewer};

/// How long an admitted ListenerSet counts as there without having been seen.
pub const REMEMBERED: Duration = Duration::from_secs(2);
/// Most ListenerSets that are remembered at one time; those admitted meanwhile are not.
const MAX_REMEMBERED: usize = 1024;
/// Most listeners of one that is remembered: as many as the CRD allows.
const MAX_LISTENERS: usize = 64;
/// What the name of a remembered set ends in while it counts; no object can be called so.
const ADMITTED: &str = "/admitted";

/// What is there, the release's policy, and the answers that follow.
#[derive(Debug)]
pub struct Admission {
    policy: Policy,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    facts: Facts,
    remembered: BTreeMap<ObjectName, Remembered>,
}

/// A ListenerSet that was admitted. `facts` have it under a name of its own.
#[derive(Debug)]
struct Remembered {
    set: Arc<ListenerSet>,
    since: Instant,
}

/// One review, asked for.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What is done.
    pub operation: Operation,
    /// The object as it is, if it is.
    pub old: Option<&'a Object>,
    /// The object as it shall be.
    pub new: &'a Object,
    /// Whether nothing comes of it.
    pub dry_run: bool,
}

impl Admission {
    /// Admission with nothing there yet, for the GatewayClasses of `controller`.
    pub fn new(controller: impl Into<Arc<str>>, policy: Policy) -> Self {
        Self {
            policy,
            state: RwLock::new(State {
                facts: Facts::new(controller),
                remembered: BTreeMap::new(),
            }),
        }
    }

    /// The release's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes a version of an object that the watch showed. Kinds that play no part are ignored.
    pub fn put(&self, object: Object) {
        let mut state = self.state.write();
        match object {
            Object::ListenerSet(set) => state.see(set),
            other => state.facts.put(other),
        }
    }

    /// Takes the removal of an object that the watch showed.
    pub fn remove(&self, key: &ObjectKey) {
        self.state.write().facts.remove(key);
    }

    /// Forgets admitted sets that were not seen within [`REMEMBERED`].
    pub fn expire(&self, now: Instant) {
        let mut state = self.state.write();
        let expired: Vec<ObjectName> = state
            .remembered
            .iter()
            .filter(|(_, remembered)| now.duration_since(remembered.since) >= REMEMBERED)
            .map(|(name, _)| name.clone())
            .collect();
        for name in expired {
            state.forget(&name);
        }
    }

    /// How many admitted sets are remembered now.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.state.read().remembered.len()
    }

    /// Answers a question.
    #[must_use]
    pub fn review(&self, question: Question<'_>, now: Instant) -> Review {
        let Question {
            operation,
            old,
            new,
            dry_run,
        } = question;
        let judge =
            |state: &State| Reviewer::new(&state.facts, &self.policy).review(operation, old, new);
        let Object::ListenerSet(set) = new else {
            return judge(&self.state.read());
        };
        let counts = !dry_run && !set.meta.deleting;
        // One at a time: of two that conflict, the second has to see the first.
        let state = self.state.upgradable_read();
        let Some(before) = state.remembered.get(&set.name).map(|r| Arc::clone(&r.set)) else {
            let review = judge(&state);
            if counts && review.allowed && state.is_news(set) {
                RwLockUpgradableReadGuard::upgrade(state).remember(Arc::new(set.clone()), now);
            }
            return review;
        };
        // It does not meet itself.
        let mut state = RwLockUpgradableReadGuard::upgrade(state);
        let since = state.forget(&set.name).unwrap_or(now);
        let review = judge(&state);
        if !(counts && review.allowed) {
            state.remember(before, since);
        } else if state.is_news(set) {
            state.remember(Arc::new(set.clone()), now);
        }
        review
    }
}

impl State {
    fn is_news(&self, set: &ListenerSet) -> bool {
        self.remembered.len() < MAX_REMEMBERED
            && set.listeners.len() <= MAX_LISTENERS
            && self.facts.merge().set(&set.name).map(Arc::as_ref) != Some(set)
    }

    fn remember(&mut self, set: Arc<ListenerSet>, since: Instant) {
        let shadow = shadow(&set.name);
        // What is there already is not counted twice: there are limits on how many listeners one may have.
        let there = self.facts.merge().set(&set.name);
        let is_there = |new: &Listener| {
            there.is_some_and(|there| {
                there.gateway == set.gateway
                    && there.listeners.iter().any(|old| {
                        old.name == new.name
                            && old.port == new.port
                            && old.protocol == new.protocol
                            && old.hostname == new.hostname
                    })
            })
        };
        let listeners = set.listeners.iter().filter(|new| !is_there(new)).cloned();
        let counted = ListenerSet {
            name: shadow.clone(),
            listeners: listeners.collect(),
            ..ListenerSet::clone(&set)
        };
        self.facts.put_set(&shadow, Some(Arc::new(counted)));
        self.remembered
            .insert(set.name.clone(), Remembered { set, since });
    }

    /// Since when it was remembered.
    fn forget(&mut self, name: &ObjectName) -> Option<Instant> {
        let remembered = self.remembered.remove(name)?;
        self.facts.put_set(&shadow(name), None);
        Some(remembered.since)
    }

    /// Takes what the watch shows of a set.
    fn see(&mut self, set: ListenerSet) {
        if let Some(remembered) = self.remembered.get(&set.name)
            && *remembered.set == set
        {
            self.forget(&set.name);
        }
        self.facts.put(Object::ListenerSet(set));
    }
}

/// What a remembered set is called in the merge.
fn shadow(name: &ObjectName) -> ObjectName {
    ObjectName::new(&*name.namespace, format!("{}{ADMITTED}", name.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vestibule_model::policy::Mode;

    use super::*;

    const CONTROLLER: &str = "vestibule.dev/gateway-controller";

    fn object(value: serde_json::Value) -> Object {
        vestibule_crds::decode(value).into_object().unwrap().0
    }

    fn set(namespace: &str, hostname: &str) -> Object {
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "ListenerSet",
            "metadata": {"namespace": namespace, "name": "web"},
            "spec": {
                "parentRef": {"namespace": "infra", "name": "entrance"},
                "listeners": [{
                    "name": "a", "port": 443, "protocol": "TLS", "hostname": hostname,
                    "tls": {"mode": "Passthrough"},
                }],
            },
        }))
    }

    fn admission() -> Admission {
        let admission = Admission::new(
            CONTROLLER,
            Policy {
                mode: Mode::Enforce,
                ..Policy::default()
            },
        );
        admission.put(object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": "vestibule"},
            "spec": {"controllerName": CONTROLLER},
        })));
        admission.put(object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "entrance"},
            "spec": {
                "gatewayClassName": "vestibule",
                "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{
                    "name": "own", "port": 443, "protocol": "TLS", "hostname": "own.example",
                    "tls": {"mode": "Passthrough"},
                }],
            },
        })));
        admission
    }

    fn create(admission: &Admission, new: &Object, now: Instant) -> bool {
        ask(admission, None, new, false, now)
    }

    fn ask(
        admission: &Admission,
        old: Option<&Object>,
        new: &Object,
        dry_run: bool,
        now: Instant,
    ) -> bool {
        let operation = match old {
            Some(_) => Operation::Update,
            None => Operation::Create,
        };
        let question = Question {
            operation,
            old,
            new,
            dry_run,
        };
        admission.review(question, now).allowed
    }

    #[test]
    fn a_second_set_is_refused_before_the_watch_shows_the_first() {
        let (admission, now) = (admission(), Instant::now());
        assert!(create(&admission, &set("alpha", "a.example"), now));
        assert!(!create(&admission, &set("bravo", "a.example"), now));
        // The first one again, as clients retry.
        assert!(create(&admission, &set("alpha", "a.example"), now));
    }

    #[test]
    fn what_never_shows_is_forgotten() {
        let (admission, now) = (admission(), Instant::now());
        assert!(create(&admission, &set("alpha", "a.example"), now));
        admission.expire(now + REMEMBERED / 2);
        assert!(!create(&admission, &set("bravo", "a.example"), now));
        admission.expire(now + REMEMBERED);
        assert_eq!(admission.remembered(), 0);
        assert!(create(&admission, &set("bravo", "a.example"), now));
    }

    #[test]
    fn a_dry_run_leaves_nothing() {
        let (admission, now) = (admission(), Instant::now());
        assert!(ask(&admission, None, &set("alpha", "a.example"), true, now));
        assert_eq!(admission.remembered(), 0);
        assert!(create(&admission, &set("bravo", "a.example"), now));
    }

    #[test]
    fn a_refused_set_leaves_nothing() {
        let (admission, now) = (admission(), Instant::now());
        assert!(!create(&admission, &set("alpha", "own.example"), now));
        assert_eq!(admission.remembered(), 0);
    }

    #[test]
    fn the_watch_confirms_and_then_decides() {
        let (admission, now) = (admission(), Instant::now());
        let (one, two) = (set("alpha", "a.example"), set("alpha", "b.example"));
        assert!(create(&admission, &one, now));
        admission.put(one.clone());
        assert_eq!(admission.remembered(), 0);

        assert!(ask(&admission, Some(&one), &two, false, now));
        // A status of the older version comes by late.
        admission.put(one.clone());
        assert!(!create(&admission, &set("bravo", "b.example"), now));
        admission.put(two);
        admission.expire(now + REMEMBERED);
        assert!(!create(&admission, &set("bravo", "b.example"), now));

        admission.remove(&one.key());
        assert!(create(&admission, &set("bravo", "b.example"), now));
    }

    #[test]
    fn an_update_that_failed_elsewhere_gives_way_to_what_is_there() {
        let (admission, now) = (admission(), Instant::now());
        let (one, two) = (set("alpha", "a.example"), set("alpha", "b.example"));
        admission.put(one.clone());
        assert!(ask(&admission, Some(&one), &two, false, now));
        admission.expire(now + REMEMBERED);
        assert!(!create(&admission, &set("bravo", "a.example"), now));
        assert!(create(&admission, &set("bravo", "b.example"), now));
    }

    /// Whoever reaches the port can claim to be the API server.
    #[test]
    fn a_review_that_was_made_up_frees_nothing_that_is_held() {
        let (admission, now) = (admission(), Instant::now());
        let held = set("alpha", "a.example");
        admission.put(held.clone());
        let elsewhere = object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "ListenerSet",
            "metadata": {"namespace": "alpha", "name": "web"},
            "spec": {
                "parentRef": {"namespace": "infra", "name": "other"},
                "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}],
            },
        }));
        for forged in [set("alpha", "b.example"), elsewhere] {
            assert!(ask(&admission, Some(&held), &forged, false, now));
            assert_eq!(admission.remembered(), 1);
            assert!(!create(&admission, &set("bravo", "a.example"), now));
        }
        // And the present holder is not in its own way.
        assert!(ask(&admission, Some(&held), &held, false, now));
        assert_eq!(admission.remembered(), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (admission, now) = (admission(), Instant::now());
        for i in 0..=MAX_REMEMBERED {
            let new = set(&format!("n{i}"), &format!("h{i}.example"));
            assert!(create(&admission, &new, now));
        }
        assert_eq!(admission.remembered(), MAX_REMEMBERED);
    }

    /// An edit that was admitted is there beside what it edits until it shows.
    #[test]
    fn an_admitted_edit_is_not_counted_twice() {
        let (admission, now) = (admission(), Instant::now());
        admission.put(object(json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "infra", "name": "alpha"},
            "spec": {
                "namespaces": {"names": ["alpha"]}, "hostnames": ["*.example"],
                "limits": {"listeners": 3},
            },
        })));
        let sets = |name: &str, hostnames: &[&str]| {
            let listeners: Vec<_> = hostnames
                .iter()
                .map(|hostname| {
                    json!({
                        "name": hostname.replace('.', "-"), "port": 443, "protocol": "TLS",
                        "hostname": hostname, "tls": {"mode": "Passthrough"},
                    })
                })
                .collect();
            object(json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                "metadata": {"namespace": "alpha", "name": name},
                "spec": {
                    "parentRef": {"namespace": "infra", "name": "entrance"},
                    "listeners": listeners,
                },
            }))
        };
        let one = sets("one", &["a.example"]);
        admission.put(one.clone());
        let more = sets("one", &["a.example", "b.example"]);
        assert!(ask(&admission, Some(&one), &more, false, now));
        assert_eq!(admission.remembered(), 1);
        assert!(create(&admission, &sets("two", &["c.example"]), now));
        assert!(!create(&admission, &sets("three", &["d.example"]), now));
    }

    #[test]
    fn an_unreadable_gateway_takes_no_part() {
        let (admission, now) = (admission(), Instant::now());
        let broken = object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "entrance"},
            "spec": 7,
        }));
        assert!(matches!(broken, Object::Unreadable(..)));
        admission.put(broken);
        assert!(create(&admission, &set("alpha", "own.example"), now));
    }
}
