//! Owns the engine, which runs the tasks that planning asks for and reports their results to it.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;

use crate::challenge;
use crate::client::{Ca, OpenedAccount, Registering, open};
use crate::clock::Now;
use crate::effects::{ChallengeAck, Effects, Input, Observation};
use crate::keys::{KeyError, PrivateKey};
use crate::leaf::Leaf;
use crate::open_accounts::OpenAccounts;
use crate::plan::{Done, EngineSettings, Event, GivenUp, PlanStep, Planner, Publish, Task, Ticket};
use crate::problem::{AcmeFailure, FailureKind};

/// Deadline for one task as a whole. The requests in it have deadlines of their own.
const DEADLINE: Duration = Duration::from_mins(5);
/// Deadline for closing an order that is given up.
const CLOSING: Duration = Duration::from_secs(20);

/// The engine that runs orders.
pub struct Engine<E> {
    planner: Planner,
    effects: Arc<E>,
    /// The wall clock, in seconds since 1970.
    wall: Box<dyn Fn() -> i64 + Send + Sync>,
    began: Instant,
    accounts: Arc<OpenAccounts<Ca>>,
    /// Running tasks with their results. The result is `None` if nothing waits for it.
    tasks: JoinSet<Option<Event>>,
    namespace: Arc<str>,
    /// The addresses that issuers of tenants may lead to.
    tenants: Arc<AuthorityRules>,
}

impl<E: Effects> Engine<E> {
    /// An engine that knows nothing yet. `wall` returns seconds since 1970.
    pub fn new(
        settings: EngineSettings,
        effects: Arc<E>,
        wall: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            namespace: settings.namespace.clone(),
            tenants: Arc::new(settings.authorities.clone()),
            planner: Planner::new(settings),
            effects,
            wall: Box::new(wall),
            began: Instant::now(),
            accounts: Arc::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Runs until all senders of inputs are gone. Dropping the future stops everything at once. The
    /// Secrets then have all orders, except one whose URL had not been written yet.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        loop {
            let now = self.now();
            let steps = self.planner.advance(now);
            self.perform(steps);
            let now = self.now();
            let next = self.planner.next(now);
            // A second look within the same millisecond would find nothing new.
            let at = self.began + next.max(now.steady + Duration::from_millis(1));
            let event = tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => Event::Input(input),
                    None => return,
                },
                Some(done) = self.tasks.join_next() => match done {
                    Ok(Some(event)) => event,
                    // `caught` turns a panic of a task into a failure that is tried again.
                    Ok(None) | Err(_) => continue,
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

    /// Opens the account of an issuer.
    fn open(&mut self, issuer: Arc<AcmeIssuer>, ticket: Ticket, how: Registering, again: bool) {
        let (effects, accounts) = (self.effects.clone(), self.accounts.clone());
        let namespace = self.namespace.clone();
        let rules = match issuer.key.kind {
            Kind::AcmeIssuer => self.tenants.clone(),
            _ => Arc::new(AuthorityRules::Any),
        };
        accounts.begin(&issuer.key, ticket);
        self.tasks.spawn(async move {
            let created = Arc::new(AtomicBool::new(false));
            let opening = open(&effects, &issuer, &namespace, rules, &how, &created, again);
            let opening = async {
                match tokio::time::timeout(DEADLINE, opening).await {
                    Ok(result) => result,
                    Err(_) => Err(AcmeFailure::unreachable("the CA does not answer in time")),
                }
            };
            let result = caught(&*effects, "account", opening).await;
            let result = result.unwrap_or_else(|| Err(own_fault()));
            let result = result.map(|opened| match opened {
                OpenedAccount::Open {
                    account,
                    registered,
                } => {
                    let account_info = account.account_info();
                    accounts.opened(&issuer.key, ticket, account);
                    OpenedAccount::Open {
                        account: account_info,
                        registered,
                    }
                }
                OpenedAccount::Unregistered { host } => OpenedAccount::Unregistered { host },
            });
            Some(Event::Account {
                issuer: issuer.key.clone(),
                ticket,
                created: created.load(Ordering::Relaxed),
                result,
            })
        });
    }

    fn perform(&mut self, steps: Vec<PlanStep>) {
        let mut challenges: BTreeMap<ChallengeKey, Option<ChallengeAnswer>> = BTreeMap::new();
        let mut unanswerable = BTreeMap::new();
        let mut issuance = BTreeMap::new();
        let mut issuers = BTreeMap::new();
        for step in steps {
            match step {
                PlanStep::Task(secret, ticket, task) => {
                    let (effects, accounts) = (self.effects.clone(), self.accounts.clone());
                    self.tasks.spawn(async move {
                        let (name, fault) = (name(&task), fault(&task));
                        let done =
                            caught(&*effects, name, run(&*effects, &accounts, &secret, task));
                        let done = done.await.unwrap_or(fault);
                        Some(Event::Done(secret, ticket, done))
                    });
                }
                PlanStep::Account {
                    issuer,
                    ticket,
                    registering,
                    again,
                } => self.open(issuer, ticket, registering, again),
                PlanStep::Publish(key, publish) => match answer(&key, &publish) {
                    Ok(answer) => {
                        challenges.insert(key, Some(answer));
                    }
                    Err(error) => {
                        unanswerable.insert(key, ChallengeAck::Refused(error.to_string().into()));
                    }
                },
                PlanStep::Withdraw(key) => {
                    challenges.insert(key, None);
                }
                PlanStep::Issuance(secret, what) => {
                    issuance.insert(secret, what);
                }
                PlanStep::Issuer(key, issuer_state) => {
                    info!(issuer = %key, ready = issuer_state.ready.as_str(), "{}", issuer_state.message);
                    issuers.insert(key, issuer_state);
                }
                PlanStep::Observe(observation) => {
                    if let Observation::OrderEnded {
                        secret,
                        issuer,
                        outcome,
                        message,
                    } = &observation
                    {
                        let outcome = outcome.as_str();
                        info!(%secret, %issuer, outcome, "an order ended: {message}");
                    }
                    self.effects.observe(observation);
                }
                PlanStep::Forget(issuer, url) => {
                    if let Some(ca) = self.accounts.get(&issuer) {
                        ca.forget(&url);
                    }
                }
                PlanStep::DropAccount(issuer) => self.accounts.remove(&issuer),
                PlanStep::Close(issuer, given_up) => {
                    let (effects, accounts) = (self.effects.clone(), self.accounts.clone());
                    self.tasks.spawn(async move {
                        caught(&*effects, "close", close(&accounts, &issuer, &given_up)).await;
                        None
                    });
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

/// Runs a task. Returns `None` if it panicked, which this logs and counts.
async fn caught<E: Effects, T>(
    effects: &E,
    task: &'static str,
    running: impl Future<Output = T>,
) -> Option<T> {
    // Unwinding is safe here: a task owns what it leaves half done, and everything else is behind
    // locks that do not poison.
    let outcome = AssertUnwindSafe(running).catch_unwind().await.ok();
    if outcome.is_none() {
        error!(
            task,
            "a task of the ACME engine panicked; it is tried again"
        );
        effects.observe(Observation::Panicked);
    }
    outcome
}

fn own_fault() -> AcmeFailure {
    AcmeFailure::unreachable("Vestibule failed by a fault of its own, which the operator's log has")
}

/// The result for a task that panicked. It is the same as if what the task needs could not be
/// reached.
fn fault(task: &Task) -> Done {
    match task {
        Task::Read => Done::Read(Err(own_fault())),
        Task::Write(_) => Done::Wrote(Err(own_fault())),
        Task::Order { .. } => Done::Ordered(Err(own_fault())),
        Task::Look { .. } | Task::Finalize { .. } => Done::Looked(Err(own_fault())),
        Task::Declare { .. } => Done::Declared(Err(own_fault())),
        Task::Download { .. } => Done::Downloaded(Err(own_fault())),
        Task::Window { .. } => Done::Window(Err(own_fault())),
    }
}

/// Closes an order as a courtesy to the CA, and gives up after a short time.
async fn close(accounts: &OpenAccounts<Ca>, issuer: &ObjectKey, given_up: &GivenUp) {
    let GivenUp { url, hostnames } = given_up;
    let closing = async { ca(accounts, issuer)?.close(url, hostnames).await };
    let outcome = match tokio::time::timeout(CLOSING, closing).await {
        Ok(Ok(())) => "closed".to_owned(),
        Ok(Err(failure)) => failure.message,
        Err(_) => "the CA does not answer in time".to_owned(),
    };
    debug!(%issuer, outcome, "an order that nobody needs any more was closed at the CA, if the CA allowed it");
}

/// Runs a task. In every case it returns a result of the kind that planning waits for.
async fn run<E: Effects>(
    effects: &E,
    accounts: &OpenAccounts<Ca>,
    secret: &ObjectName,
    task: Task,
) -> Done {
    debug!(%secret, task = name(&task), "a task of the ACME engine begins");
    match task {
        Task::Read => Done::Read(bounded(read(effects, secret)).await),
        Task::Write(write) => Done::Wrote(
            bounded(async {
                let written = effects.write(secret, write).await;
                written.map_err(|error| AcmeFailure::unreachable(error.to_string()))
            })
            .await,
        ),
        Task::Order {
            issuer,
            hostnames,
            profile,
            replaces,
            given_up,
        } => Done::Ordered(
            bounded(async {
                if let Some(given_up) = given_up {
                    close(accounts, &issuer, &given_up).await;
                }
                // Generate the key first, so that a failure to do so does not lose an order.
                let key = PrivateKey::generate().map_err(of_key)?;
                let ca = ca(accounts, &issuer)?;
                let made = ca.order(&hostnames, profile.as_deref(), replaces.as_ref());
                let url = ca.judged(made.await).await?;
                Ok((url, key))
            })
            .await,
        ),
        Task::Look {
            issuer,
            url,
            hostnames,
        } => Done::Looked(
            bounded(async {
                let ca = ca(accounts, &issuer)?;
                ca.judged(ca.look(&url, &hostnames).await).await
            })
            .await,
        ),
        Task::Declare {
            issuer,
            url,
            gateway,
            hostnames,
            names,
        } => Done::Declared(
            bounded(async {
                let kinds = names.iter().map(|(_, kind)| *kind).collect();
                effects.reachable(secret, &gateway, &kinds).await;
                let ca = ca(accounts, &issuer)?;
                ca.judged(ca.declare(&url, &hostnames, &names).await).await
            })
            .await,
        ),
        Task::Finalize {
            issuer,
            url,
            hostnames,
            key,
        } => Done::Looked(
            bounded(async {
                let request = key.request(hostnames.iter()).map_err(of_key)?;
                let ca = ca(accounts, &issuer)?;
                ca.judged(ca.finalize(&url, &hostnames, &request).await)
                    .await
            })
            .await,
        ),
        Task::Download { issuer, url, key } => Done::Downloaded(
            bounded(async {
                let ca = ca(accounts, &issuer)?;
                let chain = ca.judged(ca.download(&url).await).await?;
                let leaf = Leaf::read(&chain, &key);
                Ok((chain, leaf))
            })
            .await,
        ),
        Task::Window { issuer, leaf } => {
            Done::Window(bounded(async { ca(accounts, &issuer)?.window(&leaf).await }).await)
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

async fn bounded<T>(task: impl Future<Output = Result<T, AcmeFailure>>) -> Result<T, AcmeFailure> {
    match tokio::time::timeout(DEADLINE, task).await {
        Ok(result) => result,
        Err(_) => Err(AcmeFailure::unreachable("there is no answer in time")),
    }
}

async fn read<E: Effects>(
    effects: &E,
    secret: &ObjectName,
) -> Result<Option<(crate::effects::StoredSecret, Option<Leaf>)>, AcmeFailure> {
    let record = effects
        .read(secret)
        .await
        .map_err(|error| AcmeFailure::unreachable(error.to_string()))?;
    Ok(record.map(|record| {
        let leaf = Leaf::read(&record.certificate, &record.private_key);
        (record, leaf)
    }))
}

fn ca(accounts: &OpenAccounts<Ca>, issuer: &ObjectKey) -> Result<Arc<Ca>, AcmeFailure> {
    let ca = accounts.get(issuer);
    ca.ok_or_else(|| AcmeFailure::unreachable("the account is not open"))
}

fn of_key(error: KeyError) -> AcmeFailure {
    AcmeFailure::new(FailureKind::Other, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;
    use vestibule_model::hostname::Hostname;
    use vestibule_model::issuance::{CertificateRequest, Issuance};
    use vestibule_model::issuer::{self, IssuerRef};
    use vestibule_model::selector::LabelSelector;
    use zeroize::Zeroizing;

    use super::*;
    use crate::Budgets;
    use crate::effects::{IssuerState, StoreError, StoredSecret, Write, Written};

    /// Effects whose first two reads panic.
    #[derive(Debug, Default)]
    struct Faulty {
        reads: AtomicUsize,
        panics: AtomicUsize,
        read: Notify,
    }

    impl Effects for Faulty {
        async fn read(&self, _: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
            assert!(
                self.reads.fetch_add(1, Ordering::SeqCst) >= 2,
                "a fault of the test's"
            );
            self.read.notify_one();
            Ok(None)
        }

        async fn write(&self, _: &ObjectName, _: Write) -> Result<Written, StoreError> {
            Ok(Written::Conflict)
        }

        async fn entry(
            &self,
            _: &ObjectName,
            _: &str,
        ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
            Ok(None)
        }

        fn challenges(&self, _: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {}

        fn issuance(&self, _: BTreeMap<ObjectName, Option<Issuance>>) {}

        fn issuers(&self, _: BTreeMap<ObjectKey, IssuerState>) {}

        fn observe(&self, observation: Observation) {
            if observation == Observation::Panicked {
                self.panics.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_tried_again() {
        let effects = Arc::new(Faulty::default());
        let many = 10.try_into().expect("not zero");
        let settings = EngineSettings {
            namespace: "system".into(),
            issuers: LabelSelector::default(),
            budgets: Budgets {
                per_hour: many,
                per_issuer: many,
                per_namespace: many,
            },
            in_flight: 2,
            registrations: many,
            authorities: AuthorityRules::Any,
            reach: Duration::ZERO,
            spread: Duration::ZERO,
            seed: 1,
        };
        let (sender, inputs) = mpsc::channel(1);
        let engine = Engine::new(settings, effects.clone(), || 0);
        let engine = tokio::spawn(engine.run(inputs));
        let hostname = Hostname::parse("a.test").expect("a hostname");
        let secret = ObjectName::new("a", "tls");
        let request = CertificateRequest {
            secret: secret.clone(),
            hostnames: [hostname.clone()].into(),
            issuer: Some(IssuerRef {
                engine: issuer::Engine::Acme,
                name: "ca".into(),
                kind: Kind::ClusterAcmeIssuer.as_str().into(),
                group: "vestibule.dev".into(),
            }),
            owner: ObjectKey::new(Kind::ListenerSet, "a", "set"),
            owner_uid: "u".into(),
            gateway: ObjectName::new("platform", "shared"),
            gateway_uid: "u".into(),
            options: Arc::default(),
            reach: BTreeMap::new(),
        };
        let requests = Input::Requests([(secret, Some(request))].into());
        sender.send(requests).await.expect("it runs");
        effects.read.notified().await;
        assert_eq!(effects.panics.load(Ordering::SeqCst), 2);
        assert_eq!(effects.reads.load(Ordering::SeqCst), 3);
        assert!(!engine.is_finished());
        engine.abort();
    }
}
