//! The engine: runs the tasks that planning asks for, and tells it what came of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::key::{ObjectKey, ObjectName};

use super::challenge;
use super::client::{Ca, open};
use super::clock::Now;
use super::effects::{Ack, Effects, Input, Observation};
use super::keys::{KeyError, PrivateKey};
use super::leaf::Leaf;
use super::plan::{Done, Event, Planner, Publish, Settings, Step, Task};
use super::problem::{Failure, FailureKind};

/// For one task as a whole, whose requests are bounded by themselves.
const DEADLINE: Duration = Duration::from_mins(5);

/// Runs orders.
pub struct Engine<E> {
    planner: Planner,
    effects: Arc<E>,
    /// Seconds since 1970.
    wall: Box<dyn Fn() -> i64 + Send + Sync>,
    began: Instant,
    cas: Cas,
    tasks: JoinSet<Event>,
    namespace: Arc<str>,
}

/// Accounts that are open.
type Cas = Arc<Mutex<BTreeMap<ObjectKey, Arc<Ca>>>>;

impl<E: Effects> Engine<E> {
    /// An engine that knows nothing yet. `wall`: seconds since 1970.
    pub fn new(
        settings: Settings,
        effects: Arc<E>,
        wall: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            namespace: settings.namespace.clone(),
            planner: Planner::new(settings),
            effects,
            wall: Box::new(wall),
            began: Instant::now(),
            cas: Cas::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Runs until nobody can tell it anything any more. Dropping the future stops everything at once: what
    /// was going on is in the Secrets, but for an order whose URL had not been written yet.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        loop {
            let now = self.now();
            let steps = self.planner.advance(now);
            self.perform(steps);
            let now = self.now();
            let next = self.planner.next(now);
            // Nothing is learnt from a second look within the same millisecond.
            let at = self.began + next.max(now.steady + Duration::from_millis(1));
            let event = tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => Event::Input(input),
                    None => return,
                },
                Some(done) = self.tasks.join_next() => match done {
                    Ok(event) => event,
                    Err(error) => {
                        // Its certificate waits for it in vain, which must not pass for patience.
                        warn!(%error, "a task of the ACME engine failed");
                        continue;
                    }
                },
                () = tokio::time::sleep_until(at) => continue,
            };
            let now = self.now();
            self.planner.learn(event, now);
        }
    }

    fn now(&self) -> Now {
        Now {
            wall: (self.wall)(),
            steady: self.began.elapsed(),
        }
    }

    fn perform(&mut self, steps: Vec<Step>) {
        let mut challenges: BTreeMap<ChallengeKey, Option<ChallengeAnswer>> = BTreeMap::new();
        let mut unanswerable = BTreeMap::new();
        let mut issuance = BTreeMap::new();
        let mut issuers = BTreeMap::new();
        for step in steps {
            match step {
                Step::Task(secret, ticket, task) => {
                    let (effects, cas) = (self.effects.clone(), self.cas.clone());
                    self.tasks.spawn(async move {
                        let done = run(&*effects, &cas, &secret, task).await;
                        Event::Done(secret, ticket, done)
                    });
                }
                Step::Account {
                    issuer,
                    ticket,
                    again,
                } => {
                    let (effects, cas) = (self.effects.clone(), self.cas.clone());
                    let namespace = self.namespace.clone();
                    self.tasks.spawn(async move {
                        let opening = open(&effects, &issuer, &namespace, again);
                        let result = match tokio::time::timeout(DEADLINE, opening).await {
                            Ok(result) => result,
                            Err(_) => Err(Failure::unreachable("the CA does not answer in time")),
                        };
                        let facts = result.map(|ca| {
                            let facts = ca.facts();
                            cas.lock().insert(issuer.key.clone(), Arc::new(ca));
                            facts
                        });
                        Event::Account(issuer.key.clone(), ticket, facts)
                    });
                }
                Step::Publish(key, publish) => match answer(&key, &publish) {
                    Ok(answer) => {
                        challenges.insert(key, Some(answer));
                    }
                    Err(error) => {
                        unanswerable.insert(key, Ack::Refused(error.to_string().into()));
                    }
                },
                Step::Withdraw(key) => {
                    challenges.insert(key, None);
                }
                Step::Issuance(secret, what) => {
                    issuance.insert(secret, what);
                }
                Step::Issuer(key, fact) => {
                    info!(issuer = %key, ready = fact.ready, "{}", fact.message);
                    issuers.insert(key, fact);
                }
                Step::Observe(observation) => {
                    if let Observation::OrderEnded {
                        secret,
                        issuer,
                        outcome,
                        message,
                    } = &observation
                    {
                        let outcome = outcome.as_str();
                        info!(%secret, %issuer, outcome, "order ended: {message}");
                    }
                    self.effects.observe(observation);
                }
                Step::Forget(issuer, url) => {
                    if let Some(ca) = self.cas.lock().get(&issuer) {
                        ca.forget(&url);
                    }
                }
            }
        }
        if !challenges.is_empty() {
            self.effects.challenges(challenges);
        }
        if !issuance.is_empty() {
            self.effects.issuance(issuance);
        }
        if !issuers.is_empty() {
            self.effects.issuers(issuers);
        }
        if !unanswerable.is_empty() {
            let now = self.now();
            let event = Event::Input(Input::Challenges(unanswerable));
            self.planner.learn(event, now);
        }
    }
}

fn answer(key: &ChallengeKey, publish: &Publish) -> Result<ChallengeAnswer, KeyError> {
    let answer = challenge::answer(key.kind, &key.hostname, &publish.key_authorization)?;
    Ok(ChallengeAnswer {
        tenant: publish.tenant.clone(),
        answer,
    })
}

/// Runs a task. Whatever happens, something of the kind that is waited for comes out.
async fn run<E: Effects>(effects: &E, cas: &Cas, secret: &ObjectName, task: Task) -> Done {
    debug!(%secret, task = name(&task), "task");
    match task {
        Task::Read => Done::Read(bounded(read(effects, secret)).await),
        Task::Write(write) => Done::Wrote(
            bounded(async {
                let written = effects.write(secret, write).await;
                written.map_err(|error| Failure::unreachable(error.to_string()))
            })
            .await,
        ),
        Task::Order {
            issuer,
            hostnames,
            profile,
            replaces,
        } => Done::Ordered(
            bounded(async {
                // The key first: an order that is made is not lost for want of one.
                let key = PrivateKey::generate().map_err(of_key)?;
                let ca = ca(cas, &issuer)?;
                let url = ca
                    .order(&hostnames, profile.as_deref(), replaces.as_ref())
                    .await?;
                Ok((url, key))
            })
            .await,
        ),
        Task::Look { issuer, url } => {
            Done::Looked(bounded(async { ca(cas, &issuer)?.look(&url).await }).await)
        }
        Task::Declare { issuer, url, names } => {
            Done::Declared(bounded(async { ca(cas, &issuer)?.declare(&url, &names).await }).await)
        }
        Task::Finalize {
            issuer,
            url,
            hostnames,
            key,
        } => Done::Looked(
            bounded(async {
                let request = key.request(hostnames.iter()).map_err(of_key)?;
                ca(cas, &issuer)?.finalize(&url, &request).await
            })
            .await,
        ),
        Task::Download { issuer, url, key } => Done::Downloaded(
            bounded(async {
                let chain = ca(cas, &issuer)?.download(&url).await?;
                let leaf = Leaf::read(&chain, &key);
                Ok((chain, leaf))
            })
            .await,
        ),
        Task::Window { issuer, leaf } => {
            Done::Window(bounded(async { ca(cas, &issuer)?.window(&leaf).await }).await)
        }
    }
}

fn name(task: &Task) -> &'static str {
    match task {
        Task::Read => "read",
        Task::Write(_) => "write",
        Task::Order { .. } => "order",
        Task::Look { .. } => "look",
        Task::Declare { .. } => "declare",
        Task::Finalize { .. } => "finalize",
        Task::Download { .. } => "download",
        Task::Window { .. } => "window",
    }
}

async fn bounded<T>(task: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, task).await {
        Ok(result) => result,
        Err(_) => Err(Failure::unreachable("there is no answer in time")),
    }
}

async fn read<E: Effects>(
    effects: &E,
    secret: &ObjectName,
) -> Result<Option<(super::effects::Record, Option<Leaf>)>, Failure> {
    let record = effects
        .read(secret)
        .await
        .map_err(|error| Failure::unreachable(error.to_string()))?;
    Ok(record.map(|record| {
        let leaf = Leaf::read(&record.certificate, &record.private_key);
        (record, leaf)
    }))
}

fn ca(cas: &Cas, issuer: &ObjectKey) -> Result<Arc<Ca>, Failure> {
    let ca = cas.lock().get(issuer).cloned();
    ca.ok_or_else(|| Failure::unreachable("the account is not open"))
}

fn of_key(error: KeyError) -> Failure {
    Failure::new(FailureKind::Other, error.to_string())
}
