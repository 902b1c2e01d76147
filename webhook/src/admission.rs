//! The objects that admission knows, and its answers to reviews.
//!
//! A watch feeds the objects, and reviews read them. An answer never depends on other reviews. Only its time may: a
//! ListenerSet that may conflict with one that was just admitted waits until the watch shows that one
//! ([`crate::pending`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vestibule_model::gateway::ListenerSet;
use vestibule_model::key::ObjectKey;
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;

use crate::admission_state::AdmissionState;
use crate::pending::{PATIENCE, Pending};
use crate::review::{Operation, Review, Reviewer};

/// The objects that exist, the policy of the release, and the answers that follow from them.
#[derive(Debug)]
pub struct Admission {
    policy: Policy,
    state: RwLock<AdmissionState>,
    /// If both locks are needed, this one is taken before `state`.
    pending: Mutex<Pending>,
}

/// The question of one review.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The operation on the object.
    pub operation: Operation,
    /// The present version of the object, if there is one.
    pub old: Option<&'a Object>,
    /// The version that would be written.
    pub new: &'a Object,
    /// Whether nothing will be written (`--dry-run=server`).
    pub dry_run: bool,
}

/// A ListenerSet that may conflict with one that was just admitted. It is judged again when the watch shows that one.
#[derive(Debug, Clone)]
pub struct Recheck(Arc<ListenerSet>);

impl Admission {
    /// Admission for the GatewayClasses of `controller`, without any objects yet.
    pub fn new(controller: impl Into<Arc<str>>, policy: Policy) -> Self {
        let state = AdmissionState::new(controller)
            .with_names_per_namespace(policy.names_per_namespace)
            .with_ports_per_namespace(policy.ports_per_namespace);
        Self {
            state: RwLock::new(state),
            policy,
            pending: Mutex::new(Pending::new(PATIENCE)),
        }
    }

    /// The same, but it waits for `patience` instead of [`PATIENCE`].
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self {
            pending: Mutex::new(Pending::new(patience)),
            ..self
        }
    }

    /// The release's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes a version of an object from the watch. Kinds that play no part are ignored.
    pub fn put(&self, object: Object) {
        // The object is removed from `pending` only after it is in `state`. So it is always in at least one of them.
        let mut pending = self.pending.lock();
        if let Object::ListenerSet(set) = &object {
            pending.see(set);
        }
        self.state.write().put_unsettled(object);
    }

    /// Takes the removal of an object from the watch.
    pub fn remove(&self, key: &ObjectKey) {
        self.state.write().remove_unsettled(key);
    }

    /// Completes the work that changes from the watch leave to the next review: names inside wildcards are decided
    /// again. The server calls this when everything there is has been read, so no review has to wait for all of it.
    pub fn settle(&self) {
        drop(self.settled());
    }

    /// Forgets admitted sets that the watch did not show in time.
    pub fn expire(&self, now: Instant) {
        self.pending.lock().expire(now);
    }

    /// How many admitted sets are remembered now.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.pending.lock().len()
    }

    /// Answers a question from the objects that exist.
    #[must_use]
    pub fn review(&self, question: Question<'_>, now: Instant) -> Review {
        let Object::ListenerSet(set) = question.new else {
            return self.judge(question);
        };
        let mut pending = self.pending.lock();
        let review = self.judge(question);
        if review.allowed && !question.dry_run && self.is_news(set) {
            pending.admit(set, now);
        }
        review
    }

    /// Answers a question from the objects that exist.
    ///
    /// # Errors
    ///
    /// Fails if the question is about a ListenerSet that would be allowed and may conflict with one that was just
    /// admitted. Then wait while [`is_pending`](Self::is_pending) is true, for [`patience`](Self::patience) at most,
    /// and call [`review`](Self::review).
    pub fn review_or_recheck(
        &self,
        question: Question<'_>,
        now: Instant,
    ) -> Result<Review, Recheck> {
        let Object::ListenerSet(set) = question.new else {
            return Ok(self.judge(question));
        };
        // Reviews of sets happen one at a time, so that of two sets that conflict, the second sees the first.
        let mut pending = self.pending.lock();
        let review = self.judge(question);
        if review.allowed && self.is_news(set) {
            if pending.meets(set, now) {
                return Err(Recheck(Arc::clone(set)));
            }
            if !question.dry_run {
                pending.admit(set, now);
            }
        }
        Ok(review)
    }

    /// Whether the watch has not yet shown the set with which it may conflict.
    #[must_use]
    pub fn is_pending(&self, recheck: &Recheck, now: Instant) -> bool {
        self.pending.lock().meets(&recheck.0, now)
    }

    /// The longest time to wait for that.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.pending.lock().patience()
    }

    /// The state for a verdict. The first verdict after changes settles names for all of these changes at once. At the
    /// start, every name is unheld until its claim has come. If each object settled names, a namespace with many sets
    /// for one wildcard would cost, for each set, a pass over all names inside the wildcard.
    fn settled(&self) -> RwLockReadGuard<'_, AdmissionState> {
        let state = self.state.read();
        if state.is_settled() {
            return state;
        }
        drop(state);
        let mut state = self.state.write();
        state.settle();
        // Nothing changes between the settling and the verdict, because the lock is held throughout.
        RwLockWriteGuard::downgrade(state)
    }

    fn judge(&self, question: Question<'_>) -> Review {
        let state = self.settled();
        Reviewer::new(&state, &self.policy).review(question.operation, question.old, question.new)
    }

    /// Whether the set asks for something that it does not have yet.
    fn is_news(&self, set: &ListenerSet) -> bool {
        let state = self.settled();
        let merge = state.merge();
        let there = merge.set(&set.name);
        !set.meta.deleting
            && merge.verdict(set) == SetVerdict::Allowed
            && there.is_none_or(|there| {
                there.gateway != set.gateway || there.listeners != set.listeners
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vestibule_model::key::ObjectName;
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

    /// Whether the object is allowed; `None`: the answer has to wait.
    fn ask(
        admission: &Admission,
        old: Option<&Object>,
        new: &Object,
        dry_run: bool,
        now: Instant,
    ) -> Option<bool> {
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
        let answer = admission.review_or_recheck(question, now);
        answer.ok().map(|review| review.allowed)
    }

    fn create(admission: &Admission, new: &Object, now: Instant) -> Option<bool> {
        ask(admission, None, new, false, now)
    }

    /// The answer to a question that has waited long enough.
    fn at_last(admission: &Admission, new: &Object, now: Instant) -> bool {
        let question = Question {
            operation: Operation::Create,
            old: None,
            new,
            dry_run: false,
        };
        admission.review(question, now).allowed
    }

    #[test]
    fn a_second_set_waits_until_the_watch_shows_the_first_and_is_refused() {
        let (admission, now) = (admission(), Instant::now());
        let (first, second) = (set("alpha", "a.example"), set("bravo", "a.example"));
        assert_eq!(create(&admission, &first, now), Some(true));
        let question = Question {
            operation: Operation::Create,
            old: None,
            new: &second,
            dry_run: true,
        };
        let recheck = admission.review_or_recheck(question, now).unwrap_err();
        assert!(admission.is_pending(&recheck, now));
        // A retry of the first set is admitted, and so is a set with another name.
        assert_eq!(create(&admission, &first, now), Some(true));
        let beside = set("charlie", "b.example");
        assert_eq!(create(&admission, &beside, now), Some(true));
        admission.put(first);
        assert!(!admission.is_pending(&recheck, now));
        assert_eq!(create(&admission, &second, now), Some(false));
    }

    #[test]
    fn listener_set_that_never_shows_is_waited_for_only_until_patience_ends() {
        let (admission, now) = (admission(), Instant::now());
        let second = set("bravo", "a.example");
        assert_eq!(
            create(&admission, &set("alpha", "a.example"), now),
            Some(true)
        );
        assert_eq!(create(&admission, &second, now + PATIENCE / 2), None);
        assert_eq!(create(&admission, &second, now + PATIENCE), Some(true));
        admission.expire(now + PATIENCE * 2);
        assert_eq!(admission.remembered(), 0);
    }

    #[test]
    fn a_dry_run_waits_like_the_others_and_leaves_nothing() {
        let (admission, now) = (admission(), Instant::now());
        let (first, second) = (set("alpha", "a.example"), set("bravo", "a.example"));
        assert_eq!(ask(&admission, None, &first, true, now), Some(true));
        assert_eq!(admission.remembered(), 0);
        assert_eq!(create(&admission, &second, now), Some(true));
        assert_eq!(ask(&admission, None, &first, true, now), None);
    }

    /// The first review after changes settles names, and the changes themselves do not.
    #[test]
    fn names_are_settled_before_each_verdict() {
        let (admission, now) = (admission(), Instant::now());
        let is_settled = || admission.state.read().is_settled();
        assert!(!is_settled());
        let wildcard = set("alpha", "*.a.example");
        let _ = create(&admission, &wildcard, now);
        assert!(is_settled());
        admission.put(wildcard.clone());
        assert!(!is_settled());
        let inside = set("bravo", "b.a.example");
        let _ = create(&admission, &inside, now);
        assert!(is_settled());
        admission.remove(&wildcard.key());
        assert!(!is_settled());
        admission.settle();
        assert!(is_settled());
    }

    #[test]
    fn a_refused_set_leaves_nothing() {
        let (admission, now) = (admission(), Instant::now());
        let refused = set("alpha", "own.example");
        assert_eq!(create(&admission, &refused, now), Some(false));
        assert_eq!(admission.remembered(), 0);
    }

    #[test]
    fn an_older_version_does_not_confirm() {
        let (admission, now) = (admission(), Instant::now());
        let (one, two) = (set("alpha", "a.example"), set("alpha", "b.example"));
        assert_eq!(create(&admission, &one, now), Some(true));
        admission.put(one.clone());
        assert_eq!(admission.remembered(), 0);

        assert_eq!(ask(&admission, Some(&one), &two, false, now), Some(true));
        // An event with the older version arrives late.
        admission.put(one.clone());
        let rival = set("bravo", "b.example");
        assert_eq!(create(&admission, &rival, now), None);
        admission.put(two);
        assert_eq!(create(&admission, &rival, now), Some(false));
        admission.remove(&one.key());
        assert_eq!(create(&admission, &rival, now), Some(true));
    }

    /// Whoever reaches the port can claim to be the API server.
    #[test]
    fn a_review_that_was_made_up_frees_nothing_and_takes_nothing() {
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
        let forged = set("alpha", "b.example");
        for forged in [&forged, &elsewhere] {
            assert_eq!(ask(&admission, Some(&held), forged, false, now), Some(true));
            let rival = set("bravo", "a.example");
            assert_eq!(create(&admission, &rival, now), Some(false));
        }
        // A made-up review for a name makes others wait for the name, but they get it, however often the review is
        // sent.
        let wanted = set("charlie", "b.example");
        assert_eq!(create(&admission, &forged, now), Some(true));
        assert_eq!(create(&admission, &wanted, now), None);
        assert_eq!(create(&admission, &forged, now), Some(true));
        assert!(at_last(&admission, &wanted, now));
        assert_eq!(ask(&admission, Some(&held), &held, false, now), Some(true));
    }

    /// A made-up review that claims a namespace does not use up the limits of that namespace.
    #[test]
    fn a_review_that_was_made_up_uses_up_no_limit() {
        let (admission, now) = (admission(), Instant::now());
        admission.put(object(json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
            "metadata": {"namespace": "infra", "name": "alpha"},
            "spec": {
                "namespaces": {"names": ["alpha"]}, "hostnames": ["*.example"],
                "limits": {"listeners": 1},
            },
        })));
        let mut forged = set("alpha", "b.example");
        if let Object::ListenerSet(set) = &mut forged {
            Arc::make_mut(set).name = ObjectName::new("alpha", "forged");
        }
        assert_eq!(create(&admission, &forged, now), Some(true));
        let wanted = set("alpha", "a.example");
        assert_eq!(create(&admission, &wanted, now), Some(true));
    }

    #[test]
    fn another_protocol_on_the_port_is_waited_for_too() {
        let (admission, now) = (admission(), Instant::now());
        let with = |namespace: &str, protocol: &str, hostname: Option<&str>| {
            let tls = (protocol == "TLS").then(|| json!({"mode": "Passthrough"}));
            object(json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "ListenerSet",
                "metadata": {"namespace": namespace, "name": "web"},
                "spec": {
                    "parentRef": {"namespace": "infra", "name": "entrance"},
                    "listeners": [{
                        "name": "a", "port": 9000, "protocol": protocol, "hostname": hostname, "tls": tls,
                    }],
                },
            }))
        };
        let first = with("alpha", "TLS", Some("a.example"));
        assert_eq!(create(&admission, &first, now), Some(true));
        for (protocol, hostname, expected) in [
            ("TCP", None, None),
            ("HTTP", Some("b.example"), None),
            ("UDP", None, Some(true)),
            ("TLS", Some("b.example"), Some(true)),
        ] {
            let second = with("bravo", protocol, hostname);
            let answer = ask(&admission, None, &second, true, now);
            assert_eq!(answer, expected, "{protocol}");
        }
    }

    #[test]
    fn listener_sets_that_admission_remembers_are_bounded_in_number() {
        let (admission, now) = (admission(), Instant::now());
        for i in 0..1100 {
            let new = set(&format!("n{i}"), &format!("h{i}.example"));
            assert_eq!(create(&admission, &new, now), Some(true));
        }
        assert_eq!(admission.remembered(), 1024);
        // Room is made for those that come later.
        let later = now + PATIENCE;
        assert_eq!(
            create(&admission, &set("late", "late.example"), later),
            Some(true)
        );
        assert_eq!(admission.remembered(), 1);
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
        let own = set("alpha", "own.example");
        assert_eq!(create(&admission, &own, now), Some(true));
    }
}
