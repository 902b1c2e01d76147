//! Connects translation with the built-in engine, in a cluster and in `vestibule run`. The engine gets the requested
//! certificates and the state of its challenges. Its results become input of translation.

mod directory;
mod engine_link;
mod registry;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use vestibule_acme::{ChallengeAck, Effects, Engine, Input};
use vestibule_model::challenge::ChallengeKey;
use vestibule_model::condition::Reason;
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use vestibule_stream::{ResourceKey, ResourceKind};

use crate::map_channel::{MapChanges, MapView};
use crate::publish::Publisher;
pub use directory::Directory;
pub use engine_link::{EngineLink, EngineUpdate};
pub use registry::CertificateRegistry;

/// Most messages to the engine that wait.
const INPUTS: usize = 64;
/// Time between two checks whether [`SETTLING`] is over.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time that statuses wait until the engine has reported the state of every certificate.
const SETTLING: Duration = Duration::from_secs(20);

/// The issuers of the built-in engine.
pub type Issuers = BTreeMap<ObjectKey, Arc<AcmeIssuer>>;

/// The inputs of the engine, and its link to the loop.
#[derive(Debug, Clone)]
pub struct EngineChannels {
    /// The requested certificates of all engines, by Secret. They are not known until every object is.
    pub requests: MapView<Arc<CertificateRequest>>,
    /// The issuers. They are sent before the requests that need them.
    pub issuers: watch::Receiver<Arc<Issuers>>,
    /// The link between the two.
    pub engine_link: EngineLink,
}

/// Runs the engine until the channel of requests is closed, or until the engine ends by itself. Call this when requests
/// are known. The future can be dropped at any time, since everything important is persisted; then call
/// [`EngineLink::end`].
pub async fn run<E: Effects>(
    settings: vestibule_acme::EngineSettings,
    effects: Arc<E>,
    wall: fn() -> i64,
    publisher: &Arc<Publisher>,
    channels: &mut EngineChannels,
) {
    let (inputs, receiver) = mpsc::channel(INPUTS);
    let engine = Engine::new(settings, effects, wall);
    let mut input_sender = InputSender::new(publisher, inputs);
    tokio::select! {
        () = engine.run(receiver) => {}
        () = input_sender.run(channels) => {}
    }
}

/// Replaces [`run`] if the engine is off. It refuses every certificate that is requested from the engine, for ever.
pub async fn refuse(channels: EngineChannels) {
    let off = Issuance {
        state: IssuanceState::Failed,
        reason: Reason::EngineNotAvailable,
        message: "the built-in ACME engine is off (acme.enabled of the chart)".into(),
    };
    let mut requests = channels.requests.follow();
    let mut told = BTreeSet::new();
    channels.engine_link.begin(BTreeSet::new());
    loop {
        let changes = for_engine(requests.take().unwrap_or_default(), &mut told);
        let refused =
            |(name, request): (ObjectName, Option<_>)| (name, request.map(|_| off.clone()));
        channels
            .engine_link
            .issuance(changes.into_iter().map(refused).collect());
        if requests.changed().await.is_err() {
            return;
        }
    }
}

/// Sends the inputs to the engine, each time they have changed.
struct InputSender<'a> {
    publisher: &'a Arc<Publisher>,
    inputs: mpsc::Sender<Input>,
    /// The certificates that the engine knows to be requested.
    told: BTreeSet<ObjectName>,
    issuers: Arc<Issuers>,
    /// The last state that was sent of each challenge, with the ticket of its request.
    acks: BTreeMap<ChallengeKey, (u64, ChallengeAck)>,
}

impl<'a> InputSender<'a> {
    fn new(publisher: &'a Arc<Publisher>, inputs: mpsc::Sender<Input>) -> Self {
        Self {
            publisher,
            inputs,
            told: BTreeSet::new(),
            issuers: Arc::default(),
            acks: BTreeMap::new(),
        }
    }

    /// Runs until one of the channels is closed.
    async fn run(&mut self, channels: &mut EngineChannels) {
        let mut acks = self.publisher.acks();
        let mut engine_link = channels.engine_link.for_engine();
        let mut requests = channels.requests.follow();
        let begun = Instant::now();
        let mut first = true;
        let mut look = tokio::time::interval(LOOK);
        loop {
            let to_tell = for_engine(requests.take().unwrap_or_default(), &mut self.told);
            if first {
                channels.engine_link.begin(self.told.clone());
            }
            let is_news = std::mem::take(&mut first) || !to_tell.is_empty();
            let to_tell = is_news.then_some(to_tell);
            if self.tell(channels, to_tell).await.is_err() {
                return;
            }
            let over = tokio::select! {
                changed = requests.changed() => changed.is_err(),
                changed = channels.issuers.changed() => changed.is_err(),
                changed = acks.changed(), if !channels.engine_link.seen().is_empty() => changed.is_err(),
                changed = engine_link.changed() => changed.is_err(),
                _ = look.tick() => {
                    if begun.elapsed() >= SETTLING {
                        channels.engine_link.known();
                    }
                    false
                }
            };
            if over {
                return;
            }
        }
    }

    async fn tell(
        &mut self,
        channels: &mut EngineChannels,
        requests: Option<MapChanges<Arc<CertificateRequest>>>,
    ) -> Result<(), Ended> {
        let issuers = channels.issuers.borrow_and_update().clone();
        let changes = difference(&self.issuers, &issuers);
        self.issuers = issuers;
        if !changes.is_empty() {
            self.send(Input::Issuers(changes)).await?;
        }
        if let Some(changes) = requests {
            let owned = |request: Arc<CertificateRequest>| (*request).clone();
            let changes = changes.into_iter().map(|(name, r)| (name, r.map(owned)));
            self.send(Input::Requests(changes.collect())).await?;
        }
        for secret in channels.engine_link.secrets() {
            if self.told.contains(&secret) {
                self.send(Input::SecretChanged(secret)).await?;
            }
        }
        let acks = self.acks(&channels.engine_link);
        let news: BTreeMap<ChallengeKey, ChallengeAck> = acks
            .iter()
            .filter(|(key, ack)| self.acks.get(*key) != Some(*ack))
            .map(|(key, (_, ack))| (key.clone(), ack.clone()))
            .collect();
        self.acks = acks;
        if !news.is_empty() {
            self.send(Input::Challenges(news)).await?;
        }
        Ok(())
    }

    async fn send(&self, input: Input) -> Result<(), Ended> {
        self.inputs.send(input).await.map_err(|_| Ended)
    }

    /// Returns the state of the challenges that the engine wants the proxies to answer.
    fn acks(&self, engine_link: &EngineLink) -> BTreeMap<ChallengeKey, (u64, ChallengeAck)> {
        let ack = |key: &ChallengeKey, published: bool| {
            if !published {
                return ChallengeAck::Refused(
                    "nobody but the one who serves the name may answer for it".into(),
                );
            }
            let resource = ResourceKey::new(ResourceKind::Challenge, key.to_string());
            let progress = self.publisher.programmed(&[resource]);
            if progress.acknowledged().is_some() {
                return ChallengeAck::Everywhere;
            }
            if let Some((proxy, reject)) = progress.rejects.first() {
                let why = format!("{proxy} rejected it: {}: {}", reject.reason, reject.message);
                return ChallengeAck::Refused(why.into());
            }
            ChallengeAck::Waiting {
                acked: progress.acked,
                of: progress.ready,
            }
        };
        let seen = engine_link.seen();
        let acks = seen
            .into_iter()
            .map(|(key, (ticket, published))| (key.clone(), (ticket, ack(&key, published))));
        acks.collect()
    }
}

/// The engine takes no more inputs.
struct Ended;

/// Whether the built-in engine issues this certificate.
#[must_use]
pub fn is_ours(request: &CertificateRequest) -> bool {
    let engine = request.issuer.as_ref().map(|issuer| issuer.engine);
    engine == Some(issuer::Engine::Acme)
}

/// Returns what the built-in engine has to know of changed requests. `told` are the certificates that it knows to be
/// requested; they are brought up to date.
fn for_engine(
    changes: MapChanges<Arc<CertificateRequest>>,
    told: &mut BTreeSet<ObjectName>,
) -> MapChanges<Arc<CertificateRequest>> {
    let changes = changes.into_iter().filter_map(|(name, request)| {
        let request = request.filter(|request| is_ours(request));
        let is_news = if request.is_some() {
            told.insert(name.clone());
            true
        } else {
            told.remove(&name)
        };
        is_news.then_some((name, request))
    });
    changes.collect()
}

/// Returns the entries that differ between the maps. Values are compared by pointer.
fn difference<K: Ord + Clone, T>(
    old: &BTreeMap<K, Arc<T>>,
    new: &BTreeMap<K, Arc<T>>,
) -> BTreeMap<K, Option<Arc<T>>> {
    let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
    let mut changes = BTreeMap::new();
    for key in keys {
        let (was, is) = (old.get(key), new.get(key));
        if was.map(Arc::as_ptr) != is.map(Arc::as_ptr) {
            changes.insert(key.clone(), is.cloned());
        }
    }
    changes
}
