//! Keeps the writes of one kind of objects: which requests are under way, which failed and when they are tried again, and
//! the last write of each object. It also starts the requests. The reconcilers of Services and of Certificates share it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use vestibule_model::key::ObjectName;

use super::clock;
use super::failure::RepeatedFailure;

/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(15);

/// Makes the requests about one kind of objects.
pub(super) trait Requester: Clone + Send + Sync + 'static {
    /// An action on an object.
    type Action: Clone + Send + Sync + 'static;
    /// An object, as a response shows it.
    type Object: Send + 'static;
    /// Why a request failed.
    type Problem: From<String> + Send + 'static;

    /// Carries out an action. Returns the resulting object, if there is one.
    fn act(
        &self,
        name: &ObjectName,
        action: &Self::Action,
    ) -> impl Future<Output = Result<Option<Self::Object>, Self::Problem>> + Send;
}

/// A request and its result.
pub(super) struct Done<R: Requester> {
    pub(super) name: ObjectName,
    pub(super) action: R::Action,
    pub(super) outcome: Result<Option<R::Object>, R::Problem>,
}

/// The writes of one kind of objects. `A` is an action on one object.
pub(super) struct Writes<A> {
    under_way: BTreeSet<ObjectName>,
    /// UIDs of objects that were deleted while a request about them was under way. The response may be older than the
    /// deletion.
    ended: BTreeMap<ObjectName, String>,
    /// The actions that failed.
    pub(super) failures: BTreeMap<ObjectName, RepeatedFailure>,
    /// When the first of them is tried again.
    pub(super) retry_at: Option<Instant>,
    /// The last write of each object, and the version that it resulted in. If that version is not as desired,
    /// something such as an admission webhook changes the object on the way. Then it is left alone until it changes
    /// again; otherwise the two would write it for ever.
    pub(super) written: BTreeMap<ObjectName, (A, String)>,
}

impl<A> Writes<A> {
    pub(super) fn new() -> Self {
        Self {
            under_way: BTreeSet::new(),
            ended: BTreeMap::new(),
            failures: BTreeMap::new(),
            retry_at: None,
            written: BTreeMap::new(),
        }
    }

    /// The number of requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Of these actions, those that may begin now, and when the first of the others that failed is tried again. An action on
    /// an object with a request under way is neither.
    pub(super) fn due<'a>(
        &self,
        actions: impl Iterator<Item = (&'a ObjectName, &'a A)>,
        now: Instant,
    ) -> (Vec<(&'a ObjectName, &'a A)>, Option<Instant>)
    where
        A: 'a,
    {
        let until = |name: &ObjectName| self.failures.get(name).map(|failure| failure.until);
        let idle = actions.filter(|(name, _)| !self.under_way.contains(*name));
        let (later, due): (Vec<_>, Vec<_>) =
            idle.partition(|(name, _)| until(name).is_some_and(|until| now < until));
        let retry_at = later.iter().filter_map(|(name, _)| until(name)).min();
        (due, retry_at)
    }

    /// Whether an action would only repeat the last write of an object, which did not lead to the desired one: that write
    /// is like it, and `version`, which is there now, is the one that it resulted in.
    pub(super) fn repeats(
        &self,
        name: &ObjectName,
        version: Option<&str>,
        is_like: impl FnOnce(&A) -> bool,
    ) -> bool {
        let last = self.written.get(name);
        last.is_some_and(|(written, after)| version == Some(after.as_str()) && is_like(written))
    }

    /// Begins a request about an object. [`Self::end`] has to be told of its result.
    pub(super) fn begin<R: Requester<Action = A>>(
        &mut self,
        requester: &R,
        (name, action): (ObjectName, A),
        requests: &mut JoinSet<Done<R>>,
    ) where
        A: Send + Sync + 'static,
    {
        self.under_way.insert(name.clone());
        let requester = requester.clone();
        requests.spawn(async move {
            let outcome = clock::answered(PATIENCE, requester.act(&name, &action)).await;
            Done {
                name,
                action,
                outcome,
            }
        });
    }

    /// Notes that an object with this UID is gone.
    pub(super) fn gone(&mut self, name: &ObjectName, uid: String) {
        if self.under_way.contains(name) {
            self.ended.insert(name.clone(), uid);
        }
    }

    /// Notes that the request about an object is over. Returns the UID of the object if it was deleted meanwhile.
    pub(super) fn end(&mut self, name: &ObjectName) -> Option<String> {
        self.under_way.remove(name);
        self.ended.remove(name)
    }

    /// Notes that a request succeeded, with the version that it resulted in, if it wrote the object.
    pub(super) fn succeeded(&mut self, name: &ObjectName, written: Option<(A, String)>) {
        self.failures.remove(name);
        match written {
            Some(written) => self.written.insert(name.clone(), written),
            None => self.written.remove(name),
        };
    }

    /// Notes that a request failed.
    pub(super) fn failed(&mut self, name: ObjectName, problem: String) {
        let failure = RepeatedFailure::after(self.failures.get(&name), problem);
        self.failures.insert(name, failure);
    }

    /// Forgets what failed while this replica led. A follower makes no requests, so it has nothing to wait for.
    pub(super) fn follow(&mut self) {
        self.failures.clear();
        self.retry_at = None;
    }
}
