//! Between translation and the built-in engine, wherever both run: the engine is given the certificates
//! that are asked for and what became of its challenges; what it says comes back as input of translation.

mod desk;
mod directory;
mod register;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use vestibule_model::challenge::ChallengeKey;
use vestibule_model::condition::Reason;
use vestibule_model::issuance::{Issuance, IssuanceState};
use vestibule_model::issuer;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use vestibule_stream::{ResourceKey, ResourceKind};

use crate::acme::{self, Ack, Effects, Engine, Input};
use crate::publish::Publisher;
use crate::translate::CertificateRequest;
pub use desk::{Desk, Told};
pub use directory::Directory;
pub use register::Register;

/// Messages to the engine that wait.
const INPUTS: usize = 64;
/// How often to look whether enough was waited.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time that statuses wait for what the engine knows of every certificate.
const SETTLING: Duration = Duration::from_secs(20);

/// Certificates that are asked for, by Secret, whatever the engine.
pub type Requests = BTreeMap<ObjectName, Arc<CertificateRequest>>;
/// Issuers of the built-in engine.
pub type Issuers = BTreeMap<ObjectKey, Arc<AcmeIssuer>>;
/// How far certificates are, by Secret, as one engine says.
pub type Facts = BTreeMap<ObjectName, Issuance>;

/// What the engine takes, and where it meets the loop.
#[derive(Debug, Clone)]
pub struct Wires {
    /// Certificates for every engine; none as long as not everything is known.
    pub requests: watch::Receiver<Option<Arc<Requests>>>,
    /// Issuers; as current as the requests.
    pub issuers: watch::Receiver<Arc<Issuers>>,
    /// The desk.
    pub desk: Desk,
}

/// Runs the engine until nobody asks for certificates any more, or it ends by itself. To be begun once
/// requests are known; dropped, it leaves what is persisted, and [`Desk::end`] is to be called.
pub async fn run<E: Effects>(
    settings: acme::Settings,
    effects: Arc<E>,
    wall: fn() -> i64,
    publisher: &Arc<Publisher>,
    wires: &mut Wires,
) {
    let (inputs, receiver) = mpsc::channel(INPUTS);
    let engine = Engine::new(settings, effects, wall);
    let mut feeder = Feeder::new(publisher, inputs);
    tokio::select! {
        () = engine.run(receiver) => {}
        () = feeder.feed(wires) => {}
    }
}

/// In the place of [`run`] where the engine is off: says so to whoever asks for it, for ever.
pub async fn refuse(mut wires: Wires) {
    let off = Issuance {
        state: IssuanceState::Failed,
        reason: Reason::EngineNotAvailable,
        message: "the built-in ACME engine is off (acme.enabled of the chart)".into(),
    };
    let mut requests: Arc<Requests> = Arc::default();
    wires.desk.begin(BTreeSet::new());
    loop {
        let now = wires
            .requests
            .borrow_and_update()
            .clone()
            .unwrap_or_default();
        let changes = difference(&requests, &now, is_ours);
        requests = now;
        let facts = |(name, request): (ObjectName, Option<_>)| (name, request.map(|_| off.clone()));
        wires
            .desk
            .issuance(changes.into_iter().map(facts).collect());
        if wires.requests.changed().await.is_err() {
            return;
        }
    }
}

/// Tells the engine what it has to know, and only what has changed.
struct Feeder<'a> {
    publisher: &'a Arc<Publisher>,
    inputs: mpsc::Sender<Input>,
    requests: Arc<Requests>,
    issuers: Arc<Issuers>,
    /// What was said of each challenge last, by the ticket that it was asked for with.
    acks: BTreeMap<ChallengeKey, (u64, Ack)>,
}

impl<'a> Feeder<'a> {
    fn new(publisher: &'a Arc<Publisher>, inputs: mpsc::Sender<Input>) -> Self {
        Self {
            publisher,
            inputs,
            requests: Arc::default(),
            issuers: Arc::default(),
            acks: BTreeMap::new(),
        }
    }

    /// Until nobody asks or listens any more.
    async fn feed(&mut self, wires: &mut Wires) {
        let mut facts = self.publisher.facts();
        let mut desk = wires.desk.for_engine();
        let first = wires.requests.borrow().clone().unwrap_or_default();
        let names = first.iter().filter(|(_, request)| is_ours(request));
        wires
            .desk
            .begin(names.map(|(name, _)| name.clone()).collect());
        let begun = Instant::now();
        let mut first = true;
        let mut look = tokio::time::interval(LOOK);
        loop {
            if self.tell(wires, std::mem::take(&mut first)).await.is_err() {
                return;
            }
            let over = tokio::select! {
                changed = wires.requests.changed() => changed.is_err(),
                changed = wires.issuers.changed() => changed.is_err(),
                changed = facts.changed(), if !wires.desk.seen().is_empty() => changed.is_err(),
                changed = desk.changed() => changed.is_err(),
                _ = look.tick() => {
                    if begun.elapsed() >= SETTLING {
                        wires.desk.known();
                    }
                    false
                }
            };
            if over {
                return;
            }
        }
    }

    async fn tell(&mut self, wires: &mut Wires, first: bool) -> Result<(), Ended> {
        let issuers = wires.issuers.borrow_and_update().clone();
        let changes = difference(&self.issuers, &issuers, |_| true);
        self.issuers = issuers;
        if !changes.is_empty() {
            self.send(Input::Issuers(changes)).await?;
        }
        let requests = wires.requests.borrow_and_update().clone();
        if let Some(requests) = requests {
            let changes = difference(&self.requests, &requests, is_ours);
            self.requests = requests;
            if first || !changes.is_empty() {
                let owned = |request: Arc<CertificateRequest>| (*request).clone();
                let changes = changes.into_iter().map(|(name, r)| (name, r.map(owned)));
                self.send(Input::Requests(changes.collect())).await?;
            }
        }
        for secret in wires.desk.secrets() {
            if self.requests.get(&secret).is_some_and(|r| is_ours(r)) {
                self.send(Input::SecretChanged(secret)).await?;
            }
        }
        let acks = self.acks(&wires.desk);
        let news: BTreeMap<ChallengeKey, Ack> = acks
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

    /// What became of the challenges that the engine wants answered.
    fn acks(&self, desk: &Desk) -> BTreeMap<ChallengeKey, (u64, Ack)> {
        let ack = |key: &ChallengeKey, published: bool| {
            if !published {
                return Ack::Refused(
                    "nobody but the one who serves the name may answer for it".into(),
                );
            }
            let resource = ResourceKey::new(ResourceKind::Challenge, key.to_string());
            let facts = self.publisher.programmed(&[resource]);
            if facts.fact().is_some() {
                return Ack::Everywhere;
            }
            if let Some((proxy, reject)) = facts.rejects.first() {
                let why = format!("{proxy} rejected it: {}: {}", reject.reason, reject.message);
                return Ack::Refused(why.into());
            }
            Ack::Waiting {
                acked: facts.acked,
                of: facts.ready,
            }
        };
        let seen = desk.seen();
        let acks = seen
            .into_iter()
            .map(|(key, (ticket, published))| (key.clone(), (ticket, ack(&key, published))));
        acks.collect()
    }
}

/// Nobody takes inputs any more.
struct Ended;

/// Whether the built-in engine is to issue it.
#[must_use]
pub fn is_ours(request: &CertificateRequest) -> bool {
    let engine = request.issuer.as_ref().map(|issuer| issuer.engine);
    engine == Some(issuer::Engine::Acme)
}

/// What is different in `new`, of what `wanted` takes; by identity.
fn difference<K: Ord + Clone, T>(
    old: &BTreeMap<K, Arc<T>>,
    new: &BTreeMap<K, Arc<T>>,
    wanted: impl Fn(&T) -> bool,
) -> BTreeMap<K, Option<Arc<T>>> {
    let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
    let mut changes = BTreeMap::new();
    for key in keys {
        let was = old.get(key).filter(|was| wanted(was));
        let is = new.get(key).filter(|is| wanted(is));
        let same = match (was, is) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            _ => false,
        };
        if !same {
            changes.insert(key.clone(), is.cloned());
        }
    }
    changes
}
