//! What tests of the ACME engine need: Secrets in memory, a stand-in for the proxies that answers challenges on
//! loopback, a clock that can be put, and a real CA, Pebble.
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "tests call all of it: a panic fails the test, and nothing is called for no reason"
)]

pub mod answerer;
pub mod pebble;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use vestibule_acme::{
    Budgets, ChallengeAck, Effects, Engine, EngineSettings, Input, IssuerState, Observation,
    OrderOutcome, RememberedState, StoreError, StoredSecret, Write, Written, wall,
};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeType, Reach};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer::{Engine as Chosen, IssuerRef};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::AcmeIssuer;
use vestibule_model::selector::LabelSelector;
use zeroize::Zeroizing;

/// A Secret.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// What the engine reads and writes of it.
    pub record: StoredSecret,
    /// Its other entries.
    pub entries: BTreeMap<String, Vec<u8>>,
}

/// Where an engine is held up, to be killed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Before the n-th write of a certificate's Secret takes effect.
    BeforeWrite(usize),
    /// After it did, but before the engine hears of it.
    AfterWrite(usize),
    /// Challenges are out; nobody says that they are everywhere.
    Published,
}

/// What is around an engine: it takes the engine's effects, and tests look at them and change what there is.
#[derive(Debug)]
pub struct World {
    /// The Secrets that there are.
    pub secrets: Mutex<BTreeMap<ObjectName, Stored>>,
    /// The challenges that are published.
    pub challenges: Mutex<BTreeMap<ChallengeKey, ChallengeAnswer>>,
    /// What the engine last said of each certificate.
    pub said: Mutex<BTreeMap<ObjectName, Issuance>>,
    /// What the engine last said of each issuer.
    pub issuers: Mutex<BTreeMap<ObjectKey, IssuerState>>,
    /// The orders that ended, with how and why.
    pub ended: Mutex<Vec<(ObjectName, OrderOutcome, Arc<str>)>>,
    /// When each certificate is renewed, in seconds of Unix time.
    pub renewals: Mutex<BTreeMap<ObjectName, i64>>,
    /// Where the engine is held up, if anywhere.
    pub hold: Mutex<Option<Hold>>,
    held: AtomicBool,
    /// The CA is kept waiting for answers.
    pub slow: watch::Sender<bool>,
    /// The Secret whose reads wait until this names another one, or none.
    pub slow_secret: watch::Sender<Option<ObjectName>>,
    /// A name whose challenges are answered nowhere, though everybody says they are.
    pub deaf: Mutex<Option<Hostname>>,
    /// Writes of Secrets of certificates.
    pub writes: Mutex<Vec<ObjectName>>,
    /// Seconds by which the clock is put.
    shift: AtomicI64,
    /// Where issuers of tenants may lead.
    pub authorities: Mutex<AuthorityRules>,
    /// Everything the engine said in texts, to search for keys.
    pub texts: Mutex<String>,
    inputs: Mutex<Option<mpsc::Sender<Input>>>,
    changed: watch::Sender<u64>,
}

impl World {
    /// A world with nothing in it.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            secrets: Mutex::default(),
            challenges: Mutex::default(),
            said: Mutex::default(),
            issuers: Mutex::default(),
            ended: Mutex::default(),
            renewals: Mutex::default(),
            hold: Mutex::default(),
            held: AtomicBool::new(false),
            slow: watch::Sender::new(false),
            slow_secret: watch::Sender::new(None),
            deaf: Mutex::default(),
            writes: Mutex::default(),
            shift: AtomicI64::new(0),
            authorities: Mutex::new(AuthorityRules::Any),
            texts: Mutex::default(),
            inputs: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    /// Wakes those who wait in [`Self::until`].
    pub(crate) fn change(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until something holds, and fails with what is there if it does not within a minute and a half.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !holds(self) {
                // Some conditions are about Pebble's log, which tells nobody.
                let _ = tokio::time::timeout(Duration::from_millis(200), changed.changed()).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(90), wait)
            .await
            .is_err()
        {
            panic!(
                "{what}: {:#?}\n{:#?}\n{:#?}",
                self.said.lock(),
                self.issuers.lock(),
                self.ended.lock()
            );
        }
    }

    /// Waits until all of these certificates are issued.
    pub async fn until_issued(&self, names: &[&ObjectName]) {
        let issued = |world: &Self| {
            let said = world.said.lock();
            names.iter().all(|name| {
                said.get(*name)
                    .is_some_and(|said| said.state == IssuanceState::Issued)
            })
        };
        self.until("issued", issued).await;
    }

    /// What the engine last said of a certificate: the reason, and the message.
    pub fn message(&self, name: &ObjectName) -> String {
        let said = self.said.lock();
        said.get(name).map_or_else(String::new, |said| {
            format!("{}: {}", said.reason, said.message)
        })
    }

    /// What is stored for a certificate.
    pub fn record(&self, name: &ObjectName) -> StoredSecret {
        let secrets = self.secrets.lock();
        secrets.get(name).expect("a Secret").record.clone()
    }

    /// The state that is stored for a certificate.
    pub fn state(&self, name: &ObjectName) -> RememberedState {
        RememberedState::read(self.record(name).state.as_deref())
    }

    /// Gives the engine an input.
    pub async fn tell(&self, input: Input) {
        let sender = self.inputs.lock().clone().expect("an engine");
        sender.send(input).await.expect("the engine listens");
    }

    /// Puts the clock, and has this certificate looked at.
    pub async fn put_clock(&self, by: i64, name: &ObjectName) {
        self.shift.fetch_add(by, Ordering::SeqCst);
        self.tell(Input::SecretChanged(name.clone())).await;
    }

    /// Starts an engine on what is stored.
    pub async fn engine(
        self: &Arc<Self>,
        issuers: &[AcmeIssuer],
        requests: &[CertificateRequest],
    ) -> JoinHandle<()> {
        let (sender, inputs) = mpsc::channel(64);
        *self.inputs.lock() = Some(sender);
        let budgets = 10_000.try_into().expect("not zero");
        let settings = EngineSettings {
            namespace: "vestibule-system".into(),
            issuers: LabelSelector::default(),
            budgets: Budgets {
                per_hour: budgets,
                per_issuer: budgets,
                per_namespace: budgets,
            },
            in_flight: 8,
            registrations: budgets,
            authorities: self.authorities.lock().clone(),
            reach: Duration::ZERO,
            spread: Duration::ZERO,
            seed: 7,
        };
        let world = self.clone();
        let now = move || wall() + world.shift.load(Ordering::SeqCst);
        let engine = Engine::new(settings, self.clone(), now);
        let task = tokio::spawn(engine.run(inputs));
        let issuers = issuers
            .iter()
            .map(|issuer| (issuer.key.clone(), Some(Arc::new(issuer.clone()))));
        self.tell(Input::Issuers(issuers.collect())).await;
        let requests = requests
            .iter()
            .map(|request| (request.secret.clone(), Some(request.clone())));
        self.tell(Input::Requests(requests.collect())).await;
        task
    }

    /// Kills an engine: its challenges are gone with it, as they are from proxies of a new leader.
    pub async fn kill(&self, engine: JoinHandle<()>) {
        engine.abort();
        let _ = engine.await;
        *self.hold.lock() = None;
        self.held.store(false, Ordering::SeqCst);
        self.challenges.lock().clear();
        self.said.lock().clear();
    }

    /// Waits until the engine, or the CA, is held up.
    pub async fn until_held(&self) {
        self.until("held", |world| world.held.load(Ordering::SeqCst))
            .await;
    }

    /// Keeps a CA waiting that has come to check a name.
    pub(crate) async fn keep_waiting(&self) {
        let mut slow = self.slow.subscribe();
        if *slow.borrow_and_update() {
            self.held.store(true, Ordering::SeqCst);
            self.change();
            let _ = slow.wait_for(|slow| !slow).await;
        }
    }

    /// Keeps a read of this Secret waiting.
    async fn keep_reading(&self, secret: &ObjectName) {
        let mut slow = self.slow_secret.subscribe();
        let is_slow = slow.borrow_and_update().as_ref() == Some(secret);
        if is_slow {
            self.held.store(true, Ordering::SeqCst);
            self.change();
            let _ = slow.wait_for(|slow| slow.as_ref() != Some(secret)).await;
        }
    }

    async fn hold_here(&self) {
        self.held.store(true, Ordering::SeqCst);
        self.change();
        pending::<()>().await;
    }

    fn say(&self, text: &str) {
        self.texts.lock().push_str(text);
    }
}

impl Effects for World {
    async fn read(&self, secret: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
        self.keep_reading(secret).await;
        Ok(self
            .secrets
            .lock()
            .get(secret)
            .map(|stored| stored.record.clone()))
    }

    async fn write(&self, secret: &ObjectName, write: Write) -> Result<Written, StoreError> {
        let of_certificate = secret.namespace.starts_with("team");
        let number = if of_certificate {
            let mut writes = self.writes.lock();
            writes.push(secret.clone());
            writes.len()
        } else {
            0
        };
        let hold = *self.hold.lock();
        if of_certificate && hold == Some(Hold::BeforeWrite(number)) {
            self.hold_here().await;
        }
        let version: Arc<str> = {
            let mut secrets = self.secrets.lock();
            let there = secrets
                .get(secret)
                .map(|stored| stored.record.version.clone());
            if there != write.expected {
                return Ok(Written::Conflict);
            }
            let stored = secrets.entry(secret.clone()).or_default();
            let record = &mut stored.record;
            let version = record.version.parse::<u64>().unwrap_or_default() + 1;
            record.version = version.to_string().into();
            record.ours = true;
            self.say(&write.state);
            record.state = Some(write.state);
            if let Some((certificate, key)) = write.pair {
                record.certificate = certificate;
                record.private_key = key;
            }
            record.next_key = write.next_key.unwrap_or_default();
            record.version.clone()
        };
        self.change();
        if of_certificate && hold == Some(Hold::AfterWrite(number)) {
            self.hold_here().await;
        }
        Ok(Written::Done(version))
    }

    async fn entry(
        &self,
        secret: &ObjectName,
        key: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let secrets = self.secrets.lock();
        let entry = secrets
            .get(secret)
            .and_then(|stored| stored.entries.get(key));
        Ok(entry.cloned().map(Zeroizing::new))
    }

    fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {
        let mut acks = BTreeMap::new();
        for (key, answer) in changes {
            match answer {
                Some(answer) => {
                    assert!(
                        self.secrets.lock().values().any(|stored| {
                            RememberedState::read(stored.record.state.as_deref())
                                .order
                                .is_some()
                        }),
                        "no challenge is published before an order is stored"
                    );
                    if self.deaf.lock().as_ref() != Some(&key.hostname) {
                        self.challenges.lock().insert(key.clone(), answer);
                    }
                    acks.insert(key, ChallengeAck::Everywhere);
                }
                None => {
                    self.challenges.lock().remove(&key);
                }
            }
        }
        if *self.hold.lock() == Some(Hold::Published) {
            self.held.store(!acks.is_empty(), Ordering::SeqCst);
            acks.clear();
        }
        self.change();
        if !acks.is_empty()
            && let Some(sender) = self.inputs.lock().clone()
        {
            tokio::spawn(async move { sender.send(Input::Challenges(acks)).await });
        }
    }

    fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>) {
        for (name, issuance) in changes {
            match issuance {
                Some(issuance) => {
                    self.say(&issuance.message);
                    self.said.lock().insert(name, issuance);
                }
                None => {
                    self.said.lock().remove(&name);
                }
            }
        }
        self.change();
    }

    fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>) {
        for fact in changes.values() {
            self.say(&format!("{fact:?}"));
        }
        self.issuers.lock().extend(changes);
        self.change();
    }

    fn observe(&self, observation: Observation) {
        self.say(&format!("{observation:?}"));
        match observation {
            Observation::OrderEnded {
                secret,
                outcome,
                message,
                ..
            } => self.ended.lock().push((secret, outcome, message)),
            Observation::RenewAt(secret, Some(at)) => {
                self.renewals.lock().insert(secret, at);
            }
            _ => {}
        }
        self.change();
    }
}

/// A hostname.
pub fn host(name: &str) -> Hostname {
    Hostname::parse(name).expect("a hostname")
}

/// A cluster's issuer.
pub fn issuer(directory: &str, bundle: &str, challenges: &[ChallengeType]) -> AcmeIssuer {
    AcmeIssuer {
        key: ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca"),
        meta: Meta::default(),
        labels: BTreeMap::new(),
        directory: directory.into(),
        contact: vec!["mailto:admin@platform.test".into()],
        account_key_secret: "ca-account".into(),
        external_account: None,
        profile: None,
        ca_bundle: Some(bundle.into()),
        challenges: challenges.to_vec(),
        findings: Vec::new(),
    }
}

/// A request of a team for names, all of them reachable in every way.
pub fn request(namespace: &str, names: &[&str]) -> CertificateRequest {
    let hostnames: BTreeSet<Hostname> = names.iter().map(|name| host(name)).collect();
    let first = names.first().copied().unwrap_or("none").replace('.', "-");
    CertificateRequest {
        secret: ObjectName::new(namespace, first),
        reach: hostnames
            .iter()
            .map(|name| (name.clone(), [Reach::Ours; 2]))
            .collect(),
        hostnames,
        issuer: Some(IssuerRef {
            engine: Chosen::Acme,
            name: "ca".into(),
            kind: "ClusterACMEIssuer".into(),
            group: "vestibule.dev".into(),
        }),
        owner: ObjectKey::new(Kind::ListenerSet, namespace, "set"),
        owner_uid: "uid".into(),
        gateway: ObjectName::new("platform", "shared"),
        gateway_uid: "uid".into(),
        options: Arc::default(),
    }
}
