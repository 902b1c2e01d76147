//! A planner with CAs of tenants around it, each of which behaves as a test says. Secrets and
//! proxies do at once what they are asked for.

use vestibule_model::challenge::Reach;
use vestibule_model::key::Kind;
use zeroize::Zeroizing;

use super::fixtures::{issuer_at, limits, request_of};
use crate::client::{Name, Status};
use crate::effects::OrderOutcome;
use crate::plan::*;
use crate::problem::FailureKind;

pub(super) const WALL: i64 = 1_800_000_000;

/// How a CA behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// It issues at once.
    Prompt,
    /// It never answers, until a request is given up.
    Silent,
    /// It checks names for ever.
    Undecided,
    /// It makes the certificate for ever.
    Processing,
    /// It asks for the certificate signing request again and again.
    Forgetful,
}

/// CAs, Secrets and proxies around a planner. Everything that needs no CA is done at once.
pub(super) struct World {
    pub(super) planner: Planner,
    pub(super) settings: EngineSettings,
    pub(super) now: Now,
    pub(super) requests: BTreeMap<ObjectName, CertificateRequest>,
    pub(super) issuers: BTreeMap<ObjectKey, Arc<AcmeIssuer>>,
    /// How the CA of each issuer behaves, by namespace of the issuer.
    pub(super) behaviour: BTreeMap<String, Behaviour>,
    pub(super) secrets: BTreeMap<ObjectName, StoredSecret>,
    /// Orders whose challenges were declared, by URL.
    pub(super) declared: BTreeSet<String>,
    pub(super) finalized: BTreeMap<String, usize>,
    /// Requests that silent CAs have yet to answer.
    pub(super) stuck: Vec<(ObjectName, Ticket, Task)>,
    /// Accounts to be opened.
    pub(super) accounts: Vec<(ObjectKey, Ticket, Registering)>,
    /// Requests to CAs, by namespace of the certificate, in order.
    pub(super) asked: Vec<(ObjectName, &'static str)>,
    pub(super) issued: BTreeSet<ObjectName>,
    pub(super) ended: Vec<(ObjectName, OrderOutcome, Arc<str>)>,
    pub(super) said: BTreeMap<ObjectKey, IssuerState>,
    pub(super) words: BTreeMap<ObjectName, Issuance>,
    pub(super) orders: usize,
    pub(super) most_active: usize,
}

pub(super) fn key(namespace: &str) -> ObjectKey {
    ObjectKey::new(Kind::AcmeIssuer, namespace, "ca")
}

/// Settings with more orders and registrations than any test needs.
pub(super) fn settings(in_flight: usize) -> EngineSettings {
    const PLENTY: u32 = 100_000;
    EngineSettings {
        registrations: PLENTY.try_into().expect("not zero"),
        spread: Duration::ZERO,
        seed: 5,
        ..limits([PLENTY; 3], in_flight)
    }
}

impl World {
    pub(super) fn new(settings: EngineSettings) -> Self {
        let mut world = Self {
            planner: Planner::new(settings.clone()),
            settings,
            now: Now {
                wall: WALL,
                steady: Duration::from_secs(1),
            },
            requests: BTreeMap::new(),
            issuers: BTreeMap::new(),
            behaviour: BTreeMap::new(),
            secrets: BTreeMap::new(),
            declared: BTreeSet::new(),
            finalized: BTreeMap::new(),
            stuck: Vec::new(),
            accounts: Vec::new(),
            asked: Vec::new(),
            issued: BTreeSet::new(),
            ended: Vec::new(),
            said: BTreeMap::new(),
            words: BTreeMap::new(),
            orders: 0,
            most_active: 0,
        };
        world.tell(Input::Requests(BTreeMap::new()));
        world
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.planner.learn(Event::Input(input), self.now);
    }

    /// An `ACMEIssuer` of this namespace.
    pub(super) fn issuer(&mut self, namespace: &str, host: &str, behaviour: Behaviour) {
        self.issuer_called(key(namespace), host, behaviour);
    }

    pub(super) fn issuer_called(&mut self, key: ObjectKey, host: &str, behaviour: Behaviour) {
        let issuer = Arc::new(issuer_at(key.clone(), &format!("https://{host}/dir")));
        self.behaviour
            .insert(key.name.namespace.to_string(), behaviour);
        self.issuers.insert(key.clone(), issuer.clone());
        self.tell(Input::Issuers([(key, Some(issuer))].into()));
    }

    /// Certificates of a namespace, each for one name, of the issuer there.
    pub(super) fn wants(&mut self, namespace: &str, count: usize) -> Vec<ObjectName> {
        self.wants_of(namespace, "ca", count)
    }

    pub(super) fn wants_of(
        &mut self,
        namespace: &str,
        issuer: &str,
        count: usize,
    ) -> Vec<ObjectName> {
        let requests = (0..count).map(|n| {
            let secret = ObjectName::new(namespace.to_owned(), format!("{issuer}-{n}"));
            let hostname = Hostname::parse(&format!("h{n}.{issuer}.{namespace}.test"));
            let hostname = hostname.expect("a hostname");
            let issuer = ObjectKey::new(Kind::AcmeIssuer, namespace.to_owned(), issuer.to_owned());
            let reach = [Reach::Ours; 2];
            let request = request_of(secret.clone(), &issuer, [hostname].into(), reach);
            (secret, request)
        });
        let requests: Vec<_> = requests.collect();
        self.requests.extend(requests.iter().cloned());
        let told = requests.iter().cloned();
        self.tell(Input::Requests(
            told.map(|(secret, request)| (secret, Some(request)))
                .collect(),
        ));
        requests.into_iter().map(|(secret, _)| secret).collect()
    }

    /// Starts a new leader, which knows only the Secrets.
    pub(super) fn restart(&mut self) {
        self.planner = Planner::new(self.settings.clone());
        self.now.steady = Duration::from_secs(1);
        self.stuck.clear();
        let issuers = self
            .issuers
            .iter()
            .map(|(k, i)| (k.clone(), Some(i.clone())));
        let issuers = issuers.collect();
        self.tell(Input::Issuers(issuers));
        let requests = self
            .requests
            .iter()
            .map(|(k, r)| (k.clone(), Some(r.clone())));
        let requests = requests.collect();
        self.tell(Input::Requests(requests));
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now.steady += time;
        self.now.wall += i64::try_from(time.as_secs()).expect("fits");
    }

    /// Plans and performs steps until nothing is left to do now.
    pub(super) fn settle(&mut self) {
        for _ in 0..20_000 {
            let steps = self.planner.advance(self.now);
            self.most_active = self.most_active.max(self.planner.active.len());
            if !steps
                .into_iter()
                .fold(false, |any, step| self.perform(step) | any)
            {
                return;
            }
        }
        panic!("it comes to no rest: {:?}", self.planner);
    }

    /// Does the same for this time, step by step.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now.steady + time;
        self.settle();
        while self.now.steady < end {
            let next = self.planner.next(self.now).min(end);
            let step = next.saturating_sub(self.now.steady);
            // The wall clock has a resolution of seconds.
            self.pass(step.max(Duration::from_millis(1)));
            self.now.wall = WALL + i64::try_from(self.now.steady.as_secs()).expect("fits");
            self.settle();
        }
    }

    pub(super) fn perform(&mut self, step: PlanStep) -> bool {
        match step {
            PlanStep::Task(secret, ticket, task) => {
                let asks = match &task {
                    Task::Read | Task::Write(_) => None,
                    Task::Order { .. } => Some("order"),
                    Task::Look { .. } => Some("look"),
                    Task::Declare { .. } => Some("declare"),
                    Task::Finalize { .. } => Some("finalize"),
                    Task::Download { .. } => Some("download"),
                    Task::Window { .. } => Some("window"),
                };
                if let Some(asks) = asks {
                    self.asked.push((secret.clone(), asks));
                    if self.behaviour[&*secret.namespace] == Behaviour::Silent {
                        self.stuck.push((secret, ticket, task));
                        return true;
                    }
                }
                let done = self.execute(&secret, task);
                self.planner
                    .learn(Event::Done(secret, ticket, done), self.now);
                true
            }
            PlanStep::Account {
                issuer,
                ticket,
                registering,
                ..
            } => {
                self.accounts
                    .push((issuer.key.clone(), ticket, registering));
                false
            }
            PlanStep::Publish(key, _) => {
                self.tell(Input::Challenges([(key, ChallengeAck::Everywhere)].into()));
                true
            }
            PlanStep::Issuance(secret, Some(said)) => {
                self.words.insert(secret, said);
                false
            }
            PlanStep::Issuer(key, issuer_state) => {
                self.said.insert(key, issuer_state);
                false
            }
            PlanStep::Observe(Observation::OrderEnded {
                secret,
                outcome,
                message,
                ..
            }) => {
                self.ended.push((secret, outcome, message));
                false
            }
            _ => false,
        }
    }

    pub(super) fn execute(&mut self, secret: &ObjectName, task: Task) -> Done {
        let behaviour = self.behaviour[&*secret.namespace];
        match task {
            Task::Read => Done::Read(Ok(self
                .secrets
                .get(secret)
                .map(|record| (record.clone(), None)))),
            Task::Write(write) => {
                let record = self.secrets.entry(secret.clone()).or_default();
                record.ours = true;
                record.version = format!("{}.", record.version).into();
                record.state = Some(write.state);
                record.next_key = write.next_key.unwrap_or_default();
                if write.pair.is_some() {
                    self.issued.insert(secret.clone());
                }
                Done::Wrote(Ok(Written::Done(record.version.clone())))
            }
            Task::Order { .. } => {
                self.orders += 1;
                let key = Zeroizing::new(b"key".to_vec());
                Done::Ordered(Ok((format!("{secret}#{}", self.orders), key.into())))
            }
            Task::Look { url, .. } => {
                let declared = self.declared.contains(&url);
                let finalized = self.finalized.get(&url).copied().unwrap_or_default();
                Done::Looked(Ok(self.view(secret, behaviour, declared, finalized)))
            }
            Task::Declare { url, .. } => {
                self.declared.insert(url);
                Done::Declared(Ok(()))
            }
            Task::Finalize { url, .. } => {
                let finalized = self.finalized.entry(url).or_default();
                *finalized += 1;
                let finalized = *finalized;
                Done::Looked(Ok(self.view(secret, behaviour, true, finalized)))
            }
            Task::Download { .. } => {
                let leaf = Leaf {
                    not_before: self.now.wall,
                    not_after: self.now.wall + 90 * 86_400,
                    hostnames: self.requests[secret].hostnames.clone(),
                    serial: vec![1],
                    authority_key: None,
                };
                Done::Downloaded(Ok((b"chain".to_vec(), Some(leaf))))
            }
            Task::Window { .. } => {
                Done::Window(Err(AcmeFailure::new(FailureKind::Other, "there is none")))
            }
        }
    }

    pub(super) fn view(
        &self,
        secret: &ObjectName,
        behaviour: Behaviour,
        declared: bool,
        finalized: usize,
    ) -> View {
        let status = match (behaviour, declared, finalized) {
            (_, false, _) | (Behaviour::Undecided, ..) => Status::Pending,
            (_, true, 0) | (Behaviour::Forgetful, ..) => Status::Ready,
            (Behaviour::Processing, ..) => Status::Processing,
            _ => Status::Valid,
        };
        let names = self.requests[secret].hostnames.iter().map(|name| Name {
            hostname: name.clone(),
            valid: false,
            offers: vec![(ChallengeType::TlsAlpn01, "token".into())],
        });
        View {
            status,
            identifiers: Some(
                self.requests[secret]
                    .hostnames
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            ),
            names: names.collect(),
            problem: None,
            retry_after: None,
        }
    }

    /// Opens every account that is asked for.
    pub(super) fn open_all(&mut self) {
        self.settle();
        while !self.accounts.is_empty() {
            for (issuer, ticket, registering) in std::mem::take(&mut self.accounts) {
                match registering {
                    Registering::No => self.opened(issuer, ticket, None),
                    _ => self.opened(issuer, ticket, Some(true)),
                }
            }
            self.settle();
        }
    }

    /// Reports the result of an opening: no account, or one, and whether it is new.
    pub(super) fn opened(&mut self, issuer: ObjectKey, ticket: Ticket, account: Option<bool>) {
        let result = Ok(match account {
            None => OpenedAccount::Unregistered { host: None },
            Some(_) => OpenedAccount::Open {
                account: AccountInfo {
                    url: format!("https://{issuer}/account"),
                    thumbprint: "thumb".into(),
                    renewal_info: false,
                },
                registered: None,
            },
        });
        let event = Event::Account {
            issuer,
            ticket,
            created: account == Some(true),
            result,
        };
        self.planner.learn(event, self.now);
    }

    /// Gives up one of the requests that silent CAs do not answer.
    pub(super) fn give_up(&mut self, place: usize) -> ObjectName {
        let (secret, ticket, task) = self.stuck.swap_remove(place % self.stuck.len());
        let failure = AcmeFailure::unreachable("it does not answer in time");
        let done = match task {
            Task::Order { .. } => Done::Ordered(Err(failure)),
            Task::Declare { .. } => Done::Declared(Err(failure)),
            Task::Download { .. } => Done::Downloaded(Err(failure)),
            _ => Done::Looked(Err(failure)),
        };
        self.planner
            .learn(Event::Done(secret.clone(), ticket, done), self.now);
        secret
    }

    pub(super) fn asked_by(&self, namespace: &str, what: &str) -> usize {
        let of =
            |(secret, asks): &&(ObjectName, &str)| &*secret.namespace == namespace && *asks == what;
        self.asked.iter().filter(of).count()
    }
}
