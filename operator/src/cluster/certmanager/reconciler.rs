//! Keeps the state of Certificates and of the requests under way. Each event marks the Certificates that it concerns,
//! and only those are judged again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use vestibule_model::condition::Reason;
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer::Engine;
use vestibule_model::key::ObjectName;

use super::super::failure::RepeatedFailure;
use super::super::metrics::Metrics;
use super::super::writes::{self, Writes};
use super::ApiClient;
use super::watch::{KindUpdate, WatchUpdate, WatchedKind};
use crate::certmanager::{
    Availability, CertManagerSettings, Certificate, CertificateAction, CertificateAttempt,
    CertificateAttempts, Foreign, PresentCertificate, PresentCertificates, desired, judge, stale,
};
use crate::map_channel::{MapChanges, MapSender};

/// Largest number of requests under way at the same time.
const CONCURRENT: usize = 8;

/// A request about a Certificate and its result.
pub(super) type Done = writes::Done<ApiClient>;

/// Whether cert-manager's kinds can be watched.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Watched,
    NotInstalled,
    Unreadable(String),
}

/// A requested certificate of this engine, and the Certificate object for it.
struct Wanted {
    request: Arc<CertificateRequest>,
    desired_certificate: Result<Certificate, Foreign>,
}

pub(super) struct Reconciler {
    api_client: ApiClient,
    settings: CertManagerSettings,
    metrics: Metrics,
    known: Known,
    wanted: BTreeMap<ObjectName, Wanted>,
    present: PresentCertificates,
    attempts: CertificateAttempts,
    /// Attempts that a list which is being read has not shown yet.
    unseen: BTreeSet<ObjectName>,
    /// A list that is being read.
    listed: Option<PresentCertificates>,
    dirty: BTreeSet<ObjectName>,
    /// The actions that are due, whether or not this replica leads.
    todo: BTreeMap<ObjectName, CertificateAction>,
    writes: Writes<CertificateAction>,
    issuances: MapSender<Issuance>,
}

impl Reconciler {
    pub(super) fn new(
        api_client: ApiClient,
        settings: CertManagerSettings,
        metrics: Metrics,
        issuances: MapSender<Issuance>,
    ) -> Self {
        Self {
            api_client,
            settings,
            metrics,
            known: Known::Nothing,
            wanted: BTreeMap::new(),
            present: PresentCertificates::default(),
            attempts: CertificateAttempts::default(),
            unseen: BTreeSet::new(),
            listed: None,
            dirty: BTreeSet::new(),
            todo: BTreeMap::new(),
            writes: Writes::new(),
            issuances,
        }
    }

    /// Takes an update of a watch.
    pub(super) fn seen(&mut self, seen: KindUpdate) {
        match seen {
            (WatchedKind::Certificate, WatchUpdate::NotInstalled) => {
                self.learn(Known::NotInstalled);
            }
            // The known objects stay known while the kind cannot be listed again.
            (WatchedKind::Certificate, WatchUpdate::Unreadable(_))
                if self.known == Known::Watched =>
            {
                self.listed = None;
            }
            (WatchedKind::Certificate, WatchUpdate::Unreadable(problem)) => {
                self.learn(Known::Unreadable(problem));
            }
            (WatchedKind::Certificate, WatchUpdate::Event(event)) => self.event(*event),
            (WatchedKind::Attempt, WatchUpdate::Event(event)) => self.attempt(*event),
            // Without these, the reported states only have fewer details.
            (WatchedKind::Attempt, WatchUpdate::NotInstalled | WatchUpdate::Unreadable(_)) => {}
        }
    }

    fn attempt(&mut self, event: Event<DynamicObject>) {
        let (object, gone) = match event {
            Event::Init => {
                self.unseen = self.attempts.names().cloned().collect();
                return;
            }
            Event::InitDone => {
                for name in std::mem::take(&mut self.unseen) {
                    self.dirty.extend(self.attempts.set(&name, None));
                }
                return;
            }
            Event::InitApply(object) | Event::Apply(object) => (object, false),
            Event::Delete(object) => (object, true),
        };
        let read = serde_json::to_value(object).ok();
        if let Some((name, attempt)) = read.as_ref().and_then(CertificateAttempt::of) {
            self.unseen.remove(&name);
            let about = self.attempts.set(&name, attempt.filter(|_| !gone));
            self.dirty.extend(about);
        }
    }

    fn event(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed = Some(PresentCertificates::default()),
            Event::InitApply(object) => {
                if let Some((name, present)) = self.read(object) {
                    let listed = self.listed.get_or_insert_default();
                    listed.insert(name, present);
                }
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let before = std::mem::replace(&mut self.present, listed);
                self.dirty.extend(before.names().cloned());
                self.dirty.extend(self.present.names().cloned());
                self.dirty.extend(self.wanted.keys().cloned());
                self.known = Known::Watched;
            }
            Event::Apply(object) => {
                if let Some((name, present)) = self.read(object) {
                    self.put(name, present);
                }
            }
            Event::Delete(object) => {
                if let Some((name, present)) = self.read(object) {
                    self.writes.gone(&name, present.uid);
                    self.dirty
                        .extend(self.present.remove(&name).into_iter().flatten());
                    self.dirty.insert(name);
                }
            }
        }
    }

    fn read(&self, object: DynamicObject) -> Option<(ObjectName, PresentCertificate)> {
        let object = serde_json::to_value(object).ok()?;
        PresentCertificate::of(object, &self.settings)
    }

    fn put(&mut self, name: ObjectName, present: PresentCertificate) {
        self.dirty.insert(name.clone());
        self.dirty.extend(self.present.insert(name, present));
    }

    /// Notes that Certificates cannot be watched. Nothing is known about them from now on.
    fn learn(&mut self, known: Known) {
        if self.known == known {
            return;
        }
        if known == Known::NotInstalled && self.known == Known::Watched {
            let wanted = self.wanted.len();
            warn!(
                wanted,
                "cert-manager is not installed any more: no Certificates are made until it is back"
            );
        }
        self.known = known;
        self.listed = None;
        self.present = PresentCertificates::default();
        self.todo.clear();
        self.writes.failures.clear();
        self.writes.written.clear();
        self.dirty.extend(self.wanted.keys().cloned());
    }

    /// Takes the changes of the requested certificates.
    pub(super) fn requested(&mut self, changes: MapChanges<Arc<CertificateRequest>>) {
        for (name, request) in changes {
            let ours = request.as_ref().and_then(|request| {
                let issuer = request.issuer.as_ref()?;
                (issuer.engine == Engine::CertManager).then_some((request, issuer))
            });
            match ours {
                Some((request, issuer)) => {
                    let wanted = Wanted {
                        desired_certificate: desired(request, issuer, &self.settings.identity),
                        request: Arc::clone(request),
                    };
                    self.wanted.insert(name.clone(), wanted);
                }
                None => {
                    self.wanted.remove(&name);
                }
            }
            self.dirty.insert(name);
        }
    }

    /// Judges the Certificates that are marked.
    pub(super) fn judge(&mut self) {
        if self.known == Known::Nothing || self.listed.is_some() {
            return;
        }
        let availability = match &self.known {
            Known::Unreadable(problem) => Availability::Unreadable(problem),
            Known::NotInstalled => Availability::NotInstalled,
            Known::Nothing | Known::Watched => Availability::Watched,
        };
        for name in std::mem::take(&mut self.dirty) {
            let (action, issuance) = if let Some(wanted) = self.wanted.get(&name) {
                let verdict = judge(
                    &wanted.request,
                    &wanted.desired_certificate,
                    &self.settings,
                    availability,
                    &self.present,
                    &self.attempts,
                );
                (verdict.action, Some(verdict.issuance))
            } else {
                (self.present.get(&name).and_then(stale), None)
            };
            let issuance = match (self.writes.failures.get(&name), &action) {
                (Some(failure), Some(action)) => {
                    issuance.map(|issuance| refused(&name, action, failure, issuance))
                }
                _ => issuance,
            };
            if action.is_none() {
                self.writes.failures.remove(&name);
            }
            if self.present.get(&name).is_none() {
                self.writes.written.remove(&name);
            }
            match action {
                Some(action) => self.todo.insert(name.clone(), action),
                None => self.todo.remove(&name),
            };
            if self.issuances.get(&name) != issuance {
                self.issuances.set(name, issuance);
            }
        }
    }

    /// Starts the requests that are due. Those that have not failed before come first, so that failing requests do not
    /// hold up the others.
    pub(super) fn act(&mut self, requests: &mut JoinSet<Done>) {
        self.writes.retry_at = None;
        let free = CONCURRENT.saturating_sub(self.writes.under_way());
        if free == 0 || self.todo.is_empty() {
            // If there is no room, the end of a request wakes the loop.
            return;
        }
        let possible = self.todo.iter();
        let possible = possible.filter(|(name, action)| !self.is_fruitless(name, action));
        let (due, retry_at) = self.writes.due(possible, Instant::now());
        let (fresh, failed): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|(name, _)| !self.writes.failures.contains_key(*name));
        let next: Vec<(ObjectName, CertificateAction)> = fresh
            .into_iter()
            .chain(failed)
            .take(free)
            .map(|(name, action)| (name.clone(), action.clone()))
            .collect();
        self.writes.retry_at = retry_at;
        for action in next {
            self.writes.begin(&self.api_client, action, requests);
        }
    }

    /// Whether an action would only repeat the last write, which did not lead to the desired Certificate.
    fn is_fruitless(&self, name: &ObjectName, action: &CertificateAction) -> bool {
        let version = self.present.get(name).map(|there| there.version.as_str());
        self.writes
            .repeats(name, version, |written| written.is_like(action))
    }

    /// Forgets what failed while this replica led, and has the Certificates judged without it.
    pub(super) fn follow(&mut self) {
        self.dirty.extend(self.writes.failures.keys().cloned());
        self.writes.follow();
    }

    /// Takes the result of a request.
    pub(super) fn done(&mut self, done: Done) {
        let Done {
            name,
            action,
            outcome,
        } = done;
        self.dirty.insert(name.clone());
        let ended = self.writes.end(&name);
        let what = action.verb();
        self.metrics
            .certificates
            .wrote(action.verb(), outcome.is_ok());
        match outcome {
            Ok(made) => {
                info!(certificate = %name, what, "the request about a Certificate succeeded");
                let Some(made) = made else {
                    self.writes.succeeded(&name, None);
                    // Nothing more is done about it until the watch shows that it is gone.
                    self.present.deleting(&name);
                    return;
                };
                let written = (action, made.version.clone());
                self.writes.succeeded(&name, Some(written));
                if ended.as_ref() != Some(&made.uid) && made.is_after(self.present.get(&name)) {
                    self.put(name, made);
                }
            }
            Err(problem) => {
                let before = self.writes.failures.get(&name);
                // The message may differ each time, and without the kind it tells nothing new.
                if before.is_none() && self.known == Known::Watched {
                    warn!(certificate = %name, what, problem, "the request about a Certificate failed; trying again");
                } else {
                    debug!(certificate = %name, what, problem, "the request about a Certificate failed; trying again");
                }
                self.writes.failed(name, problem);
            }
        }
    }

    /// Returns the time at which there is something to do even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        self.writes.retry_at
    }

    /// Sends the states of the certificates to the loop, once they are known.
    pub(super) fn tell(&mut self) {
        let known = self.known != Known::Nothing && self.listed.is_none();
        if known || (!self.issuances.is_known() && self.wanted.is_empty()) {
            self.issuances.publish();
        }
    }
}

/// Returns the state of a certificate if the API server refuses the action on its Certificate.
fn refused(
    name: &ObjectName,
    action: &CertificateAction,
    failure: &RepeatedFailure,
    issuance: Issuance,
) -> Issuance {
    if issuance.state == IssuanceState::Issued {
        return issuance;
    }
    let message = format!(
        "Vestibule cannot {} Certificate {}: {}",
        action.verb(),
        name.name,
        failure.problem
    );
    Issuance {
        state: IssuanceState::Failed,
        reason: Reason::EngineNotAvailable,
        message: message.into(),
    }
}
