//! Follows the API server: lists and watches kinds, and turns what comes into objects of the model. No other module
//! uses the watch protocol.
//!
//! - An object that does not decode arrives as [`Object::Unreadable`] under its key. It never delays the others.
//! - A kind that is not installed is [`Event::Synced`] at once, and is watched when it appears. A kind that is
//!   uninstalled loses its objects, unless it comes back in a moment: an API server that starts may not know all
//!   its kinds yet.
//! - A write that changes nothing that is read (mostly a status) is not decoded again, and arrives as
//!   [`Event::Touched`].
//! - After a new list, objects that vanished meanwhile arrive as [`Event::Remove`], and unchanged objects do not
//!   arrive again.
//! - Each kind is read and decoded in a task of its own, so that large objects of one kind do not delay edits of
//!   another.
//! - Memory is bounded: objects are taken one at a time out of a page, and only their names are kept.

mod copied;
mod print;
mod raw;
mod read;
mod restored;
mod served;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::ready;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt, once, select_all, unfold};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use vestibule_backoff::{Backoff, Delays, shortened};
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;

pub use copied::{CopiedAnnotations, CopiedError};
pub use read::{ObjectReader, ReadError, read_source};
pub use restored::{Restored, restored};

use raw::Raw;
use served::{Served, served};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// Secrets and ConfigMaps per page. Each may have 1 MiB, and a whole page is in memory.
const LARGE_PAGE: u32 = 50;
/// Common types of Secrets that contain no certificate. Such a Secret counts as one that does not exist, whether it is
/// watched, listed or read.
const LEFT_OUT: [&str; 3] = [
    "helm.sh/release.v1",
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];
/// Seconds after which the server ends a watch. The watch is then begun again.
const WATCH_SECONDS: u32 = 290;
/// Most events of a kind that are decoded before the consumer takes them.
const AHEAD: usize = 8;
/// Longest wait for the next object of a list. A page may have to be fetched in this time.
const LIST_PATIENCE: Duration = Duration::from_mins(1);
/// Time after which a watch that was begun again counts as established, though nothing has come from it. It is longer
/// than the time to connect, so an attempt that fails has failed by then.
const ESTABLISHED: Duration = Duration::from_secs(12);
/// Time to connect to the server.
const CONNECT: Duration = Duration::from_secs(10);
/// First wait after a failure.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// First wait before a kind that is not installed is looked for again.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Starts of a watch that may fail in a row by the server's word before everything is listed anew:
/// the resource version may be one that it will never have again.
const MAX_FAILED_STARTS: u32 = 3;

/// An event of the watch.
#[derive(Debug)]
pub enum Event {
    /// An object is new or changed.
    Put(Box<Watched>),
    /// An object was written again, and nothing that is decoded has changed.
    Touched(Box<Touched>),
    /// An object is gone.
    Remove(ObjectKey),
    /// All objects of this kind that existed at the start have been put. This comes once per kind.
    Synced(Kind),
    /// A watch of this kind is interrupted after it has shown everything: what is known of its objects may be old.
    Interrupted(Kind),
    /// The watch of this kind goes on. Changes of the time between may follow in a moment.
    Resumed(Kind),
}

/// An object as it is on the server.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// Its key: the kind that is watched, and the name on the server.
    pub key: ObjectKey,
    /// The object. It may be unreadable.
    pub object: Object,
    /// Findings that have no place in the object.
    pub findings: Vec<Finding>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Arc<str>,
    /// `status`, as it is; null if there is none.
    pub status: Value,
}

/// The changed parts of an object that is otherwise as before.
#[derive(Debug, Clone, PartialEq)]
pub struct Touched {
    /// Its key.
    pub key: ObjectKey,
    /// `metadata.generation`, which is the same as before.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: Arc<str>,
    /// `status`, as it is; null if there is none.
    pub status: Value,
}

/// What to watch.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The kinds to watch. They are watched in all namespaces, unless `namespaces` says otherwise.
    pub kinds: Vec<Kind>,
    /// Namespaces of those kinds that are watched in some namespaces only. If the objects in a namespace may not be
    /// read, that namespace counts as synced, because the right disappears together with a namespace.
    pub namespaces: BTreeMap<Kind, BTreeSet<String>>,
    /// Annotations of Gateways and ListenerSets that are kept for their Certificates, in addition to those that are
    /// always read.
    pub copied: CopiedAnnotations,
    /// How often to look for a kind that is not installed, or for a better version of a kind. At first, this happens
    /// more often.
    pub poll: Duration,
    /// Longest wait between attempts while the server fails.
    pub max_backoff: Duration,
}

impl Scope {
    /// These kinds, in all namespaces.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self {
            kinds: kinds.into_iter().collect(),
            namespaces: BTreeMap::new(),
            copied: CopiedAnnotations::default(),
            poll: Duration::from_secs(20),
            max_backoff: Duration::from_secs(10),
        }
    }
}

/// Sets timeouts with which a client notices a server that has gone without closing its connections. By default, kube
/// waits for ever.
#[must_use]
pub fn configured(mut config: kube::Config) -> kube::Config {
    config.connect_timeout = Some(CONNECT);
    // This is longer than the time for which a watch may be silent.
    config.read_timeout = Some(Duration::from_secs(u64::from(WATCH_SECONDS) + 10));
    config
}

/// Watches `scope` for ever, in tasks of the present runtime. Failures are logged, and the attempt is repeated.
pub fn watch(client: &Client, scope: &Scope) -> impl Stream<Item = Event> + Send + use<> {
    let mut unsynced: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut interrupted: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut watches = Vec::new();
    for kind in scope.kinds.iter().copied().collect::<BTreeSet<_>>() {
        let places = match scope.namespaces.get(&kind) {
            Some(namespaces) => namespaces.iter().cloned().map(Some).collect(),
            None => vec![None],
        };
        unsynced.insert(kind, places.len().max(1));
        if places.is_empty() {
            watches.push(once(ready(Event::Synced(kind))).boxed());
        }
        for namespace in places {
            let one = KindWatch::new(client.clone(), (kind, namespace), scope);
            watches.push(one.run().boxed());
        }
    }
    select_all(watches).filter_map(move |event| {
        let known = match &event {
            Event::Synced(kind) => {
                let missing = unsynced.entry(*kind).or_default();
                *missing = missing.saturating_sub(1);
                *missing == 0
            }
            Event::Interrupted(kind) => {
                let watches = interrupted.entry(*kind).or_default();
                *watches += 1;
                *watches == 1
            }
            Event::Resumed(kind) => {
                let watches = interrupted.entry(*kind).or_default();
                *watches = watches.saturating_sub(1);
                *watches == 0
            }
            Event::Put(_) | Event::Touched(_) | Event::Remove(_) => true,
        };
        ready(known.then_some(event))
    })
}

/// The watch of one kind, in one namespace or in all.
struct KindWatch {
    client: Client,
    kind: Kind,
    namespace: Option<String>,
    copied: CopiedAnnotations,
    /// Objects that were put and not removed.
    known: BTreeMap<ObjectName, Known>,
    keys: RandomState,
    /// Objects in the part of a list that was read so far, while a list is being read.
    listed: Option<BTreeSet<ObjectName>>,
    synced: bool,
    /// The version that was watched last. It is empty if the kind was not found.
    served_as: Option<String>,
    /// Events that were not sent yet.
    queue: VecDeque<Event>,
    phase: Phase,
    poll: Duration,
    /// Between looks for a kind that is not there.
    look: Delays,
    /// Between attempts after a failure.
    retry: Delays,
    failed_starts: u32,
    /// When the kind stopped being served, while this may still be an error of an API server that starts.
    unserved: Option<Instant>,
    /// The failure that was logged last, if it still continues.
    trouble: Option<String>,
    /// Whether the consumer knows that the watch is interrupted.
    interrupted: bool,
    /// Whether to wait before the next attempt.
    waits: bool,
}

/// Data about an object that was put.
struct Known {
    /// Resource version. If it is empty, the object is put again even without a change.
    resource_version: Arc<str>,
    /// Fingerprint of the parts from which it was decoded.
    print: u64,
}

enum Phase {
    /// It is not known yet which version is served.
    Unknown,
    /// The kind was not installed at the last look.
    Missing,
    Watching(
        Served,
        BoxStream<'static, watcher::Result<watcher::Event<Raw>>>,
    ),
}

impl KindWatch {
    fn new(client: Client, (kind, namespace): (Kind, Option<String>), scope: &Scope) -> Self {
        let Scope {
            poll, max_backoff, ..
        } = *scope;
        Self {
            client,
            kind,
            namespace,
            copied: scope.copied.clone(),
            known: BTreeMap::new(),
            keys: RandomState::new(),
            listed: None,
            synced: false,
            served_as: None,
            queue: VecDeque::new(),
            phase: Phase::Unknown,
            poll,
            look: Backoff::new(FIRST_LOOK, poll).delays(),
            retry: Backoff::new(FIRST_RETRY, max_backoff).delays(),
            failed_starts: 0,
            unserved: None,
            trouble: None,
            interrupted: false,
            waits: false,
        }
    }

    /// Runs the watch in a task of its own, which ends with the stream.
    fn run(mut self) -> impl Stream<Item = Event> + Send {
        let (sender, events) = mpsc::channel(AHEAD);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let event = self.next().await;
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        unfold((events, task), |(mut events, mut task)| async move {
            if let Some(event) = events.recv().await {
                return Some((event, (events, task)));
            }
            // The task ends only by a panic, which is passed on to the caller.
            match task.join_next().await?.err()?.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            }
        })
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return event;
            }
            if std::mem::take(&mut self.waits) {
                wait(&mut self.retry).await;
            }
            match &self.phase {
                Phase::Unknown => self.look().await,
                Phase::Missing => {
                    wait(&mut self.look).await;
                    self.phase = Phase::Unknown;
                }
                Phase::Watching(..) => self.step().await,
            }
        }
    }

    /// Finds out which version is served.
    async fn look(&mut self) {
        match served(&self.client, self.kind).await {
            Ok(Some(served)) => self.begin(served),
            Ok(None) if self.is_doubtful() => {
                debug!(kind = %self.kind, "a kind is not served any more; the API server is asked again");
                self.interrupt();
            }
            Ok(None) => self.missing(),
            Err(error) => {
                self.unserved = None;
                self.failed(&error);
            }
        }
    }

    /// Whether a kind that is not served now has objects and was served a moment ago.
    fn is_doubtful(&mut self) -> bool {
        let since = *self.unserved.get_or_insert_with(Instant::now);
        !self.known.is_empty() && since.elapsed() < self.poll / 2
    }

    fn begin(&mut self, served: Served) {
        let version = served.resource.api_version.clone();
        if self.served_as.as_ref() != Some(&version) {
            info!(kind = %self.kind, api_version = %version, "watching a kind");
            // In another version, the same object may decode to something else.
            for known in self.known.values_mut() {
                known.resource_version = "".into();
            }
            self.served_as = Some(version);
        }
        let client = self.client.clone();
        let api: Api<Raw> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &served.resource),
            None => Api::all_with(client, &served.resource),
        };
        let large = matches!(self.kind, Kind::Secret | Kind::ConfigMap);
        let config = watcher::Config {
            field_selector: field_selector(self.kind),
            page_size: Some(if large { LARGE_PAGE } else { PAGE }),
            timeout: Some(WATCH_SECONDS),
            ..watcher::Config::default()
        };
        self.listed = None;
        self.unserved = None;
        self.look.reset();
        self.phase = Phase::Watching(served, watcher(api, config).boxed());
    }

    fn missing(&mut self) {
        if self.served_as.replace(String::new()).as_deref() != Some("") {
            info!(kind = %self.kind, "a kind is not installed; the API server is asked again from time to time");
        }
        self.recovered();
        self.listed = None;
        self.unserved = None;
        let kind = self.kind;
        let known = std::mem::take(&mut self.known);
        let removed = known
            .into_keys()
            .map(|name| Event::Remove(ObjectKey { kind, name }));
        self.queue.extend(removed);
        self.sync();
        self.phase = Phase::Missing;
    }

    /// Handles one event of the watch, or looks whether there is a better version now.
    async fn step(&mut self) {
        let Phase::Watching(served, stream) = &mut self.phase else {
            return;
        };
        let event = if self.listed.is_some() {
            let Ok(event) = timeout(LIST_PATIENCE, stream.next()).await else {
                self.phase = Phase::Unknown;
                return self.failed(&"the list does not go on");
            };
            event
        } else if self.interrupted {
            // A watch that goes on where it was says nothing if nothing has changed.
            let Ok(event) = timeout(ESTABLISHED, stream.next()).await else {
                return self.fine();
            };
            event
        } else if served.preferred {
            stream.next().await
        } else {
            let Ok(event) = timeout(self.poll, stream.next()).await else {
                return self.prefer().await;
            };
            event
        };
        match event {
            Some(Ok(event)) => self.take(event),
            Some(Err(error)) => self.watch_failed(&error),
            // The watch should never end. If it does, it is begun again.
            None => self.phase = Phase::Unknown,
        }
    }

    /// Changes to a better version, if there is one.
    async fn prefer(&mut self) {
        let found = served(&self.client, self.kind).await;
        if let (Ok(Some(found)), Phase::Watching(present, _)) = (found, &self.phase)
            && found != *present
        {
            self.begin(found);
        }
    }

    fn take(&mut self, event: watcher::Event<Raw>) {
        match event {
            watcher::Event::Init => self.listed = Some(BTreeSet::new()),
            watcher::Event::InitApply(raw) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(raw.name());
                }
                // After a list, the object may have been changed several times, or by a restore that sets its
                // generation back. So the generation cannot stand for its content.
                self.put(raw, false);
            }
            watcher::Event::Apply(raw) => {
                self.fine();
                self.put(raw, true);
            }
            watcher::Event::Delete(raw) => {
                self.fine();
                self.remove(raw.name());
            }
            watcher::Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let gone = self.known.keys().filter(|name| !listed.contains(*name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.remove(name);
                }
                self.sync();
                self.fine();
            }
        }
    }

    /// Handles an object. `next` says that it follows the known version by a single write.
    fn put(&mut self, raw: Raw, next: bool) {
        let Phase::Watching(served, _) = &self.phase else {
            return;
        };
        let name = raw.name();
        let print = raw.print(&self.keys, self.kind);
        if let Some(known) = self.known.get_mut(&name) {
            let version = raw.resource_version();
            if *known.resource_version == *version {
                return;
            }
            let same = next && !known.resource_version.is_empty() && known.print == print;
            // The writer of claims needs every version of a claim with its content.
            if same && self.kind != Kind::HostnameClaim {
                known.resource_version = version.into();
                let touched = raw.touched(self.kind);
                return self.queue.push_back(Event::Touched(Box::new(touched)));
            }
        }
        let copied = raw.annotations(&self.copied);
        let mut watched = raw.decode(self.kind, &served.resource.api_version);
        copied::note(&mut watched.object, copied);
        let known = Known {
            resource_version: Arc::clone(&watched.resource_version),
            print,
        };
        self.known.insert(name, known);
        self.queue.push_back(Event::Put(Box::new(watched)));
    }

    fn remove(&mut self, name: ObjectName) {
        if self.known.remove(&name).is_some() {
            let kind = self.kind;
            self.queue
                .push_back(Event::Remove(ObjectKey { kind, name }));
        }
    }

    fn sync(&mut self) {
        if !self.synced {
            self.synced = true;
            self.queue.push_back(Event::Synced(self.kind));
        }
    }

    fn watch_failed(&mut self, error: &watcher::Error) {
        match error {
            watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
                // The kind was uninstalled, or is no longer served in this version.
                self.phase = Phase::Unknown;
                debug!(kind = %self.kind, %error, "the list of a kind failed; the API server is asked which version it serves");
                return self.interrupt();
            }
            watcher::Error::InitialListFailed(kube::Error::Api(status))
                if status.code == 403 && self.namespace.is_some() =>
            {
                // The known objects stay. The kind counts as synced, so that nobody waits for it. For the same reason
                // the watch does not count as interrupted.
                self.listed = None;
                self.sync();
                self.note(error);
                self.resume();
                self.waits = true;
                return;
            }
            watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
                self.failed_starts += 1;
                if matches!(status.code, 404 | 410) || self.failed_starts >= MAX_FAILED_STARTS {
                    self.failed_starts = 0;
                    self.phase = Phase::Unknown;
                }
            }
            watcher::Error::WatchError(status) if status.code == 410 => {
                // This is part of normal operation: everything is listed again, at once.
                debug!(kind = %self.kind, "the watch of a kind is too far behind; its objects are listed again");
                self.interrupt();
                self.waits = false;
                return;
            }
            _ => {}
        }
        self.failed(error);
    }

    /// Notes a failure. The next attempt comes after a wait.
    fn failed(&mut self, error: &(impl fmt::Display + ?Sized)) {
        self.note(error);
        self.interrupt();
    }

    /// Logs a failure, once.
    fn note(&mut self, error: &(impl fmt::Display + ?Sized)) {
        let text = crate::text::one_line(&error.to_string());
        if self.trouble.as_ref() == Some(&text) {
            debug!(kind = %self.kind, error = %text, "cannot watch a kind; trying again");
        } else {
            warn!(kind = %self.kind, error = %text, "cannot watch a kind; trying again");
            self.trouble = Some(text);
        }
    }

    /// Has the next attempt wait, and says once that the watch is interrupted.
    fn interrupt(&mut self) {
        self.waits = true;
        if self.synced && !std::mem::replace(&mut self.interrupted, true) {
            self.queue.push_back(Event::Interrupted(self.kind));
        }
    }

    fn fine(&mut self) {
        self.failed_starts = 0;
        self.retry.reset();
        self.recovered();
    }

    fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            info!(kind = %self.kind, "watching a kind again");
        }
        self.resume();
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.interrupted) {
            self.queue.push_back(Event::Resumed(self.kind));
        }
    }
}

/// Returns a field selector without the types in [`LEFT_OUT`].
fn field_selector(kind: Kind) -> Option<String> {
    let others = LEFT_OUT.map(|left_out| format!("type!={left_out}"));
    (kind == Kind::Secret).then(|| others.join(","))
}

/// Sleeps for the next delay, shortened at random: replicas that lost the same server do not come back as one.
async fn wait(delays: &mut Delays) {
    sleep(shortened(delays.advance(), fastrand::u64(..))).await;
}
