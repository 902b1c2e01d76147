//! A planner with a CA, Secrets and proxies around it. They lose requests and answers, and clocks
//! jump. Each step is checked against what it may do.

use vestibule_model::challenge::Reach;
use vestibule_model::key::Kind;
use zeroize::Zeroizing;

use super::fixtures::{issuer_at, limits, request_of};
use crate::client::{Name, Status};
use crate::plan::*;
use crate::problem::FailureKind;

pub(super) const DAY: i64 = 86_400;
/// Orders per hour for everybody, each issuer and each namespace.
pub(super) const RATES: [u32; 3] = [6, 5, 4];

pub(super) fn host(n: u8) -> Hostname {
    Hostname::parse(&format!("h{n}.test")).expect("a hostname")
}

pub(super) fn issuer_key() -> ObjectKey {
    ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca")
}

pub(super) fn issuer(profile: Option<&str>) -> Arc<AcmeIssuer> {
    Arc::new(AcmeIssuer {
        profile: profile.map(Into::into),
        ..issuer_at(issuer_key(), "https://ca.test/")
    })
}

pub(super) fn request(namespace: u8, hosts: &[u8], reach: [Reach; 2]) -> CertificateRequest {
    let first = hosts.first().copied().unwrap_or_default();
    let secret = ObjectName::new(format!("n{namespace}"), format!("s{first}"));
    let hostnames = hosts.iter().map(|n| host(*n)).collect();
    request_of(secret, &issuer_key(), hostnames, reach)
}

pub(super) fn opened(issuer: ObjectKey, ticket: Ticket, account: AccountInfo) -> Event {
    let result = Ok(OpenedAccount::Open {
        account,
        registered: None,
    });
    Event::Account {
        issuer,
        ticket,
        created: false,
        result,
    }
}

/// An order of the simulated CA.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) hostnames: BTreeSet<Hostname>,
    pub(super) checked: bool,
    pub(super) invalid: bool,
    pub(super) leaf: Option<Leaf>,
}

/// What happens to a request to the CA, or to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Well,
    /// The request never arrived.
    Lost,
    /// The answer never arrived.
    Unheard,
}

pub(super) struct Sim {
    pub(super) planner: Planner,
    pub(super) rates: [u32; 3],
    pub(super) in_flight: usize,
    pub(super) requests: BTreeMap<ObjectName, CertificateRequest>,
    pub(super) issuer: Arc<AcmeIssuer>,
    pub(super) secrets: BTreeMap<ObjectName, (StoredSecret, Option<Leaf>)>,
    pub(super) orders: Vec<Ordered>,
    pub(super) tasks: Vec<(ObjectName, Ticket, Task)>,
    pub(super) accounts: Vec<Ticket>,
    pub(super) published: BTreeMap<ChallengeKey, Arc<str>>,
    /// Whether the CA fails to check names.
    pub(super) failing: bool,
    pub(super) steady: Duration,
    pub(super) jumped: i64,
    /// When the present process asked for orders.
    pub(super) asked: Vec<(Duration, ObjectName)>,
    /// How many of them have been checked against the budgets.
    pub(super) held_against: usize,
    /// Deleted Secrets whose deletion planning may not know yet.
    pub(super) deleted: BTreeSet<ObjectName>,
    /// Number of events that may cost an extra order: crashes, lost answers, failures, changes.
    pub(super) excuses: usize,
}

impl Sim {
    pub(super) fn new(rates: [u32; 3], in_flight: usize) -> Self {
        let mut sim = Self {
            planner: Planner::new(limits(rates, in_flight)),
            rates,
            in_flight,
            requests: BTreeMap::new(),
            issuer: issuer(None),
            secrets: BTreeMap::new(),
            orders: Vec::new(),
            tasks: Vec::new(),
            accounts: Vec::new(),
            published: BTreeMap::new(),
            failing: false,
            steady: Duration::ZERO,
            jumped: 0,
            asked: Vec::new(),
            held_against: 0,
            deleted: BTreeSet::new(),
            excuses: 0,
        };
        sim.begin();
        sim
    }

    pub(super) fn truth(&self) -> i64 {
        20_000 * DAY + i64::try_from(self.steady.as_secs()).expect("fits")
    }

    pub(super) fn now(&self) -> Now {
        Now {
            wall: self.truth() + self.jumped,
            steady: self.steady,
        }
    }

    pub(super) fn begin(&mut self) {
        let issuers = BTreeMap::from([(issuer_key(), Some(self.issuer.clone()))]);
        self.tell(Input::Issuers(issuers));
        let all = self.requests.iter();
        let all = all.map(|(name, request)| (name.clone(), Some(request.clone())));
        let all = all.collect();
        self.tell(Input::Requests(all));
    }

    pub(super) fn crash(&mut self) {
        self.planner = Planner::new(limits(self.rates, self.in_flight));
        // Tasks that were on their way may arrive all the same.
        let tasks = std::mem::take(&mut self.tasks);
        for (n, (secret, _, task)) in tasks.into_iter().enumerate() {
            if n % 2 == 0 {
                self.execute(&secret, task);
            }
        }
        self.accounts.clear();
        self.published.clear();
        self.asked.clear();
        self.held_against = 0;
        self.excuses += self.requests.len();
        self.begin();
    }

    pub(super) fn tell(&mut self, input: Input) {
        let now = self.now();
        self.planner.learn(Event::Input(input), now);
    }

    /// Takes a step of planning, and checks everything in it against what it may contain.
    pub(super) fn advance(&mut self) {
        let now = self.now();
        for step in self.planner.advance(now) {
            match step {
                PlanStep::Task(secret, ticket, task) => {
                    if let Task::Order { hostnames, .. } = &task {
                        let request = self.requests.get(&secret).expect("it is requested");
                        assert_eq!(request.hostnames, *hostnames);
                        assert!(
                            request
                                .reach
                                .values()
                                .all(|reach| reach.contains(&Reach::Ours))
                        );
                        self.asked.push((now.steady, secret.clone()));
                    }
                    self.tasks.push((secret, ticket, task));
                }
                PlanStep::Account { ticket, .. } => self.accounts.push(ticket),
                PlanStep::Publish(key, publish) => self.publish(&key, &publish),
                PlanStep::Withdraw(key) => {
                    self.published.remove(&key).expect("it was published");
                }
                PlanStep::Close(_, given_up) => self.close(&given_up),
                PlanStep::Observe(Observation::OrderEnded { message, .. })
                    if message.contains("not done within an hour") =>
                {
                    self.excuses += 1;
                }
                _ => {}
            }
        }
        for key in self.published.keys() {
            assert!(
                self.requests.values().any(|request| allows(request, key)),
                "{key} is answered for nobody"
            );
        }
        if self.asked.len() > self.held_against {
            self.held_against = self.asked.len();
            self.check_budget();
        }
    }

    pub(super) fn publish(&mut self, key: &ChallengeKey, publish: &Publish) {
        let (secret, _) = self
            .requests
            .iter()
            .find(|(name, request)| {
                name.namespace == publish.tenant && allows(request, key) && self.has_order(name)
            })
            .expect("a request with an order that is stored");
        let before = self.published.insert(key.clone(), secret.namespace.clone());
        assert_eq!(before, None, "{key} is answered for two");
    }

    pub(super) fn has_order(&self, secret: &ObjectName) -> bool {
        self.deleted.contains(secret)
            || self.secrets.get(secret).is_some_and(|(record, _)| {
                RememberedState::read(record.state.as_deref())
                    .order
                    .is_some()
                    && !record.next_key.is_empty()
            })
    }

    /// In no stretch of time are there more orders than two lanes allow.
    pub(super) fn check_budget(&self) {
        let Some((last, _)) = self.asked.last() else {
            return;
        };
        // This runs at every step, so it checks only some of them.
        for (first, _) in self.asked.iter().step_by(1 + self.asked.len() / 50) {
            let orders = |of: &dyn Fn(&ObjectName) -> bool| {
                let within = self
                    .asked
                    .iter()
                    .filter(|(at, name)| at >= first && of(name));
                u64::try_from(within.count()).expect("fits")
            };
            let allowed = |rate: u32| {
                let fills = last.saturating_sub(*first).as_secs() * u64::from(rate) / 3600;
                2 * (u64::from(rate) + fills + 1)
            };
            assert!(orders(&|_| true) <= allowed(self.rates[0].min(self.rates[1])));
            let tenants: BTreeSet<_> = self.asked.iter().map(|(_, name)| &name.namespace).collect();
            for tenant in tenants {
                assert!(orders(&|name| name.namespace == *tenant) <= allowed(self.rates[2]));
            }
        }
    }

    pub(super) fn complete(&mut self, place: usize, fate: Fate) {
        while let Some(ticket) = self.accounts.pop() {
            let account_info = AccountInfo {
                url: "https://ca.test/account/1".into(),
                thumbprint: "thumb".into(),
                renewal_info: true,
            };
            let now = self.now();
            self.planner
                .learn(opened(issuer_key(), ticket, account_info), now);
        }
        if self.tasks.is_empty() {
            return;
        }
        let place = place % self.tasks.len();
        let (secret, ticket, task) = self.tasks.swap_remove(place);
        let lost = lost(&task);
        let done = match fate {
            Fate::Well => self.execute(&secret, task),
            Fate::Lost => lost,
            Fate::Unheard => {
                self.excuses += 1;
                self.execute(&secret, task);
                lost
            }
        };
        let now = self.now();
        self.planner.learn(Event::Done(secret, ticket, done), now);
    }

    pub(super) fn execute(&mut self, secret: &ObjectName, task: Task) -> Done {
        match task {
            Task::Read => Done::Read(Ok(self.secrets.get(secret).cloned())),
            Task::Write(write) => Done::Wrote(Ok(self.write(secret, write))),
            Task::Order {
                hostnames,
                given_up,
                ..
            } => {
                if let Some(given_up) = given_up {
                    self.close(&given_up);
                }
                self.orders.push(Ordered {
                    hostnames,
                    checked: false,
                    invalid: false,
                    leaf: None,
                });
                let number = self.orders.len() - 1;
                let key = Zeroizing::new(format!("key {number}").into_bytes());
                Done::Ordered(Ok((number.to_string(), key.into())))
            }
            Task::Look { url, .. } => Done::Looked(Ok(self.view(&url))),
            Task::Declare { url, names, .. } => {
                let all = self.order(&url).hostnames.clone();
                let answered = all.iter().all(|hostname| {
                    let mut out = self.published.keys();
                    out.any(|key| key.hostname == *hostname)
                });
                assert!(all.len() >= names.len());
                let well = answered && !self.failing;
                self.excuses += usize::from(!well);
                let order = self.order(&url);
                order.checked = well;
                order.invalid = !well;
                Done::Declared(Ok(()))
            }
            Task::Finalize { url, .. } => {
                let (number, truth) = (self.orders.len(), self.truth());
                let order = self.order(&url);
                if order.checked && order.leaf.is_none() {
                    order.leaf = Some(Leaf {
                        not_before: truth - 3600,
                        not_after: truth + 90 * DAY,
                        hostnames: order.hostnames.clone(),
                        serial: number.to_be_bytes().to_vec(),
                        authority_key: Some(vec![1]),
                    });
                }
                Done::Looked(Ok(self.view(&url)))
            }
            Task::Download { url, .. } => {
                let leaf = self.order(&url).leaf.clone();
                Done::Downloaded(Ok((url.into_bytes(), leaf)))
            }
            Task::Window { leaf, .. } => {
                let window = Window {
                    start: leaf.not_after - 30 * DAY,
                    end: leaf.not_after - 28 * DAY,
                };
                Done::Window(Ok((window, Some(Duration::from_hours(6)))))
            }
        }
    }

    /// Makes an order invalid, unless the CA has checked its names already.
    pub(super) fn close(&mut self, given_up: &GivenUp) {
        let order = self.order(&given_up.url);
        assert_eq!(order.hostnames, given_up.hostnames, "it is another's");
        order.invalid = !order.checked;
        self.excuses += 1;
    }

    pub(super) fn order(&mut self, url: &str) -> &mut Ordered {
        let number: usize = url.parse().expect("a number");
        self.orders.get_mut(number).expect("an order")
    }

    pub(super) fn view(&mut self, url: &str) -> View {
        let order = self.order(url);
        let status = match (order.invalid, order.checked, &order.leaf) {
            (true, ..) => Status::Invalid,
            (_, false, _) => Status::Pending,
            (_, true, None) => Status::Ready,
            (_, true, Some(_)) => Status::Valid,
        };
        View {
            status,
            identifiers: Some(order.hostnames.iter().map(ToString::to_string).collect()),
            names: order
                .hostnames
                .iter()
                .map(|hostname| Name {
                    hostname: hostname.clone(),
                    valid: false,
                    offers: ChallengeType::ALL
                        .map(|kind| (kind, format!("t{url}")))
                        .to_vec(),
                })
                .collect(),
            problem: None,
            retry_after: None,
        }
    }

    pub(super) fn write(&mut self, secret: &ObjectName, write: Write) -> Written {
        let there = self
            .secrets
            .get(secret)
            .map(|(record, _)| record.version.clone());
        if there != write.expected {
            return Written::Conflict;
        }
        let leaf = write.pair.as_ref().and_then(|(chain, _)| {
            let url = String::from_utf8(chain.clone()).expect("a number");
            self.order(&url).leaf.clone()
        });
        let (record, kept) = self.secrets.entry(secret.clone()).or_default();
        let version = record.version.parse::<u64>().unwrap_or_default() + 1;
        record.version = version.to_string().into();
        record.ours = true;
        record.state = Some(write.state);
        record.next_key = write.next_key.unwrap_or_default();
        if let Some((certificate, key)) = write.pair {
            record.certificate = certificate;
            record.private_key = key;
            *kept = leaf;
        }
        Written::Done(record.version.clone())
    }

    pub(super) fn ack(&mut self) {
        let acks = self
            .published
            .keys()
            .map(|key| (key.clone(), ChallengeAck::Everywhere));
        let acks = acks.collect();
        self.tell(Input::Challenges(acks));
    }

    pub(super) fn set(&mut self, request: CertificateRequest) {
        let secret = request.secret.clone();
        self.excuses += 1;
        self.requests.insert(secret.clone(), request.clone());
        self.tell(Input::Requests([(secret, Some(request))].into()));
    }

    pub(super) fn remove(&mut self, secret: &ObjectName) {
        if self.requests.remove(secret).is_some() {
            self.tell(Input::Requests([(secret.clone(), None)].into()));
        }
    }

    /// Lets everything succeed from now on, until this time is over or nothing is missing.
    pub(super) fn calm(&mut self, most: Duration) {
        self.failing = false;
        let end = self.steady + most;
        for steps in 0.. {
            assert!(steps < 100_000, "it comes to no rest: {:?}", self.planner);
            if self.steady >= end {
                return;
            }
            self.advance();
            if self.tasks.is_empty() && self.accounts.is_empty() && self.published.is_empty() {
                if self.missing().is_empty() {
                    return;
                }
                let next = self.planner.next(self.now());
                self.steady = next.max(self.steady + Duration::from_millis(1));
            } else {
                self.steady += Duration::from_millis(50);
            }
            self.complete(0, Fate::Well);
            self.ack();
        }
    }

    /// Requests that could have a certificate and have none.
    pub(super) fn missing(&self) -> Vec<&ObjectName> {
        let could = self.requests.values().filter(|request| {
            request
                .reach
                .values()
                .all(|reach| reach.contains(&Reach::Ours))
        });
        could
            .filter(|request| {
                let leaf = self.secrets.get(&request.secret);
                let leaf = leaf.and_then(|(_, leaf)| leaf.as_ref());
                leaf.is_none_or(|leaf| !leaf.hostnames.is_superset(&request.hostnames))
            })
            .map(|request| &request.secret)
            .collect()
    }
}

pub(super) fn allows(request: &CertificateRequest, key: &ChallengeKey) -> bool {
    let place = usize::from(key.kind == ChallengeType::Http01);
    request.gateway == key.gateway
        && request
            .reach
            .get(&key.hostname)
            .is_some_and(|reach| reach[place] == Reach::Ours)
}

pub(super) fn lost(task: &Task) -> Done {
    let failure = AcmeFailure::new(FailureKind::Unreachable, "lost");
    match task {
        Task::Read => Done::Read(Err(failure)),
        Task::Write(_) => Done::Wrote(Err(failure)),
        Task::Order { .. } => Done::Ordered(Err(failure)),
        Task::Look { .. } | Task::Finalize { .. } => Done::Looked(Err(failure)),
        Task::Declare { .. } => Done::Declared(Err(failure)),
        Task::Download { .. } => Done::Downloaded(Err(failure)),
        Task::Window { .. } => Done::Window(Err(failure)),
    }
}

/// Runs until a task of this kind is to be done.
pub(super) fn until(sim: &mut Sim, is: fn(&Task) -> bool) {
    for _ in 0..100 {
        sim.advance();
        if sim.tasks.iter().any(|(_, _, task)| is(task)) {
            return;
        }
        sim.complete(0, Fate::Well);
    }
    panic!("it never comes: {:?}", sim.planner);
}
