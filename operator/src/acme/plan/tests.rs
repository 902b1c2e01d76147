//! Histories: crashes at any point, lost answers, clocks that jump, requests that come, change and go.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vestibule_model::challenge::Reach;
use vestibule_model::issuer::{Engine, IssuerRef};
use vestibule_model::key::Kind;
use vestibule_model::meta::Meta;
use vestibule_model::selector::Requirement;
use zeroize::Zeroizing;

use super::super::client::{Name, Status};
use super::super::problem::FailureKind;
use super::*;

const DAY: i64 = 86_400;
/// Orders per hour: for everybody, each issuer, each namespace.
const RATES: [u32; 3] = [6, 5, 4];

fn settings(rates: [u32; 3], in_flight: usize) -> Settings {
    let rate = |n: u32| n.try_into().expect("not zero");
    Settings {
        namespace: "vestibule-system".into(),
        issuers: LabelSelector::default(),
        budgets: Budgets {
            per_hour: rate(rates[0]),
            per_issuer: rate(rates[1]),
            per_namespace: rate(rates[2]),
        },
        in_flight,
        registrations: rate(8),
        authorities: AuthorityRules::Any,
        reach: Duration::ZERO,
        spread: Duration::from_mins(1),
        seed: 3,
    }
}

fn host(n: u8) -> Hostname {
    Hostname::parse(&format!("h{n}.test")).expect("a hostname")
}

fn issuer_key() -> ObjectKey {
    ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca")
}

fn issuer(profile: Option<&str>) -> Arc<AcmeIssuer> {
    Arc::new(AcmeIssuer {
        key: issuer_key(),
        meta: Meta::default(),
        labels: BTreeMap::new(),
        directory: "https://ca.test/".into(),
        contact: Vec::new(),
        account_key_secret: "account".into(),
        external_account: None,
        profile: profile.map(Into::into),
        ca_bundle: None,
        challenges: ChallengeType::ALL.to_vec(),
        findings: Vec::new(),
    })
}

fn request(namespace: u8, hosts: &[u8], reach: [Reach; 2]) -> CertificateRequest {
    let namespace = format!("n{namespace}");
    let first = hosts.first().copied().unwrap_or_default();
    let hostnames: BTreeSet<Hostname> = hosts.iter().map(|n| host(*n)).collect();
    CertificateRequest {
        secret: ObjectName::new(namespace.clone(), format!("s{first}")),
        reach: hostnames.iter().map(|name| (name.clone(), reach)).collect(),
        hostnames,
        issuer: Some(IssuerRef {
            engine: Engine::Acme,
            name: "ca".into(),
            kind: "ClusterACMEIssuer".into(),
            group: "vestibule.dev".into(),
        }),
        owner: ObjectKey::new(Kind::ListenerSet, namespace, "set"),
        owner_uid: "u".into(),
        gateway: ObjectName::new("platform", "shared"),
        gateway_uid: "u".into(),
        options: Arc::default(),
    }
}

fn opened(issuer: ObjectKey, ticket: Ticket, account: AccountInfo) -> Event {
    let result = Ok(Opened::Open {
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
struct Ordered {
    hostnames: BTreeSet<Hostname>,
    checked: bool,
    invalid: bool,
    leaf: Option<Leaf>,
}

/// What becomes of a request to the CA, or of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    /// It never arrived.
    Lost,
    /// Its answer never arrived.
    Unheard,
}

struct Sim {
    planner: Planner,
    rates: [u32; 3],
    in_flight: usize,
    requests: BTreeMap<ObjectName, CertificateRequest>,
    issuer: Arc<AcmeIssuer>,
    secrets: BTreeMap<ObjectName, (StoredSecret, Option<Leaf>)>,
    orders: Vec<Ordered>,
    tasks: Vec<(ObjectName, Ticket, Task)>,
    accounts: Vec<Ticket>,
    published: BTreeMap<ChallengeKey, Arc<str>>,
    /// The CA fails to check names.
    failing: bool,
    steady: Duration,
    jumped: i64,
    /// When orders were asked for, by the present process.
    asked: Vec<(Duration, ObjectName)>,
    /// How many of them have been held against the budgets.
    held_against: usize,
    /// Secrets that somebody deleted, which planning may not know yet.
    deleted: BTreeSet<ObjectName>,
    /// What may cost an order: crashes, lost answers, failures, changes.
    excuses: usize,
}

impl Sim {
    fn new(rates: [u32; 3], in_flight: usize) -> Self {
        let mut sim = Self {
            planner: Planner::new(settings(rates, in_flight)),
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

    fn truth(&self) -> i64 {
        20_000 * DAY + i64::try_from(self.steady.as_secs()).expect("fits")
    }

    fn now(&self) -> Now {
        Now {
            wall: self.truth() + self.jumped,
            steady: self.steady,
        }
    }

    fn begin(&mut self) {
        let issuers = BTreeMap::from([(issuer_key(), Some(self.issuer.clone()))]);
        self.tell(Input::Issuers(issuers));
        let all = self.requests.iter();
        let all = all.map(|(name, request)| (name.clone(), Some(request.clone())));
        let all = all.collect();
        self.tell(Input::Requests(all));
    }

    fn crash(&mut self) {
        self.planner = Planner::new(settings(self.rates, self.in_flight));
        // What was on its way may arrive all the same.
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

    fn tell(&mut self, input: Input) {
        let now = self.now();
        self.planner.learn(Event::Input(input), now);
    }

    /// Takes a step of planning, and holds everything that it wants against what it may want.
    fn advance(&mut self) {
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
                PlanStep::Close(_, url) => self.close(&url),
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

    fn publish(&mut self, key: &ChallengeKey, publish: &Publish) {
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

    fn has_order(&self, secret: &ObjectName) -> bool {
        self.deleted.contains(secret)
            || self.secrets.get(secret).is_some_and(|(record, _)| {
                RememberedState::read(record.state.as_deref())
                    .order
                    .is_some()
                    && !record.next_key.is_empty()
            })
    }

    /// In no stretch of time are there more orders than two lanes give.
    fn check_budget(&self) {
        let Some((last, _)) = self.asked.last() else {
            return;
        };
        // Of many, some: this is done at every step.
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

    fn complete(&mut self, place: usize, fate: Fate) {
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

    fn execute(&mut self, secret: &ObjectName, task: Task) -> Done {
        match task {
            Task::Read => Done::Read(Ok(self.secrets.get(secret).cloned())),
            Task::Write(write) => Done::Wrote(Ok(self.write(secret, write))),
            Task::Order {
                hostnames,
                given_up,
                ..
            } => {
                if let Some(url) = given_up {
                    self.close(&url);
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

    /// Names that are not checked yet will not be.
    fn close(&mut self, url: &str) {
        let order = self.order(url);
        order.invalid = !order.checked;
        self.excuses += 1;
    }

    fn order(&mut self, url: &str) -> &mut Ordered {
        let number: usize = url.parse().expect("a number");
        self.orders.get_mut(number).expect("an order")
    }

    fn view(&mut self, url: &str) -> View {
        let order = self.order(url);
        let status = match (order.invalid, order.checked, &order.leaf) {
            (true, ..) => Status::Invalid,
            (_, false, _) => Status::Pending,
            (_, true, None) => Status::Ready,
            (_, true, Some(_)) => Status::Valid,
        };
        View {
            status,
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

    fn write(&mut self, secret: &ObjectName, write: Write) -> Written {
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

    fn ack(&mut self) {
        let acks = self
            .published
            .keys()
            .map(|key| (key.clone(), ChallengeAck::Everywhere));
        let acks = acks.collect();
        self.tell(Input::Challenges(acks));
    }

    fn set(&mut self, request: CertificateRequest) {
        let secret = request.secret.clone();
        self.excuses += 1;
        self.requests.insert(secret.clone(), request.clone());
        self.tell(Input::Requests([(secret, Some(request))].into()));
    }

    fn remove(&mut self, secret: &ObjectName) {
        if self.requests.remove(secret).is_some() {
            self.tell(Input::Requests([(secret.clone(), None)].into()));
        }
    }

    /// Everything goes well from now on, for so long, or until nothing is missing.
    fn calm(&mut self, most: Duration) {
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
    fn missing(&self) -> Vec<&ObjectName> {
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

fn allows(request: &CertificateRequest, key: &ChallengeKey) -> bool {
    let place = usize::from(key.kind == ChallengeType::Http01);
    request.gateway == key.gateway
        && request
            .reach
            .get(&key.hostname)
            .is_some_and(|reach| reach[place] == Reach::Ours)
}

fn lost(task: &Task) -> Done {
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

#[derive(Debug, Clone)]
enum Happens {
    Completes(u8, Fate),
    Acked,
    Passes(u32),
    Jumps(i64),
    Crash,
    Asked(u8, Vec<u8>, u8),
    Gone(u8),
    Touched(u8),
    Deleted(u8),
    Failing(bool),
    Profile(bool),
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::*;
    let fate = prop_oneof![8 => Just(Fate::Well), 1 => Just(Fate::Lost), 1 => Just(Fate::Unheard)];
    prop_oneof![
        20 => (any::<u8>(), fate).prop_map(|(n, fate)| Completes(n, fate)),
        6 => Just(Acked),
        6 => (0_u32..3600).prop_map(Passes),
        1 => (-400 * DAY..400 * DAY).prop_map(Jumps),
        1 => Just(Crash),
        4 => (0_u8..3, prop::collection::vec(0_u8..5, 1..3), 0_u8..8).prop_map(|(n, h, r)| Asked(n, h, r)),
        1 => any::<u8>().prop_map(Gone),
        1 => any::<u8>().prop_map(Touched),
        1 => any::<u8>().prop_map(Deleted),
        1 => any::<bool>().prop_map(Failing),
        1 => any::<bool>().prop_map(Profile),
    ]
}

fn nth(sim: &Sim, n: u8) -> Option<ObjectName> {
    let place = usize::from(n) % sim.requests.len().max(1);
    sim.requests.keys().nth(place).cloned()
}

fn apply(sim: &mut Sim, happens: Happens) {
    match happens {
        Happens::Completes(n, fate) => sim.complete(n.into(), fate),
        Happens::Acked => sim.ack(),
        Happens::Passes(seconds) => sim.steady += Duration::from_secs(seconds.into()),
        Happens::Jumps(by) => {
            sim.jumped += by;
            sim.excuses += sim.requests.len();
        }
        Happens::Crash => sim.crash(),
        Happens::Asked(namespace, hosts, form) => {
            let reach = match form {
                0 => [Reach::Others, Reach::NoListener],
                1 => [Reach::NoListener, Reach::Ours],
                _ => [Reach::Ours; 2],
            };
            let mut asked = request(namespace, &hosts, reach);
            if form > 5 {
                asked.gateway = ObjectName::new("platform", "other");
            }
            sim.set(asked);
        }
        Happens::Gone(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.remove(&secret);
            }
        }
        Happens::Touched(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.tell(Input::SecretChanged(secret));
            }
        }
        Happens::Deleted(n) => {
            if let Some(secret) = nth(sim, n) {
                sim.excuses += 1;
                sim.secrets.remove(&secret);
                sim.deleted.insert(secret.clone());
                sim.tell(Input::SecretChanged(secret));
            }
        }
        Happens::Failing(failing) => sim.failing = failing,
        Happens::Profile(set) => {
            sim.excuses += sim.requests.len();
            sim.issuer = issuer(set.then_some("short"));
            let issuers = BTreeMap::from([(issuer_key(), Some(sim.issuer.clone()))]);
            sim.tell(Input::Issuers(issuers));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever happens: what is asserted at each step holds, afterwards everybody gets a certificate, no
    /// challenge is left, and there are no more orders than what happened accounts for.
    #[test]
    fn whatever_happens(history in prop::collection::vec(happens(), 1..220)) {
        let mut sim = Sim::new(RATES, 3);
        for happens in history {
            apply(&mut sim, happens);
            sim.advance();
        }
        sim.calm(Duration::from_hours(24 * 8));
        prop_assert!(sim.missing().is_empty(), "{:?} of {:?}", sim.missing(), sim.planner.entries);
        prop_assert!(sim.published.is_empty());
        let most = sim.requests.len() + sim.excuses;
        prop_assert!(sim.orders.len() <= most, "{} orders, {most} accounted for", sim.orders.len());
    }
}

#[test]
fn many_at_once_are_all_issued_and_renewals_do_not_wait_for_them() {
    let mut sim = Sim::new([10_000; 3], 16);
    for n in 0..5 {
        sim.set(request(9, &[n], [Reach::Ours; 2]));
    }
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty());
    // A tenant comes with many names and few orders per hour.
    sim.rates = [20, 20, 20];
    sim.crash();
    sim.jumped += 80 * DAY;
    for n in 100..140_u8 {
        for namespace in 0..2 {
            let mut new = request(namespace, &[n], [Reach::Ours; 2]);
            new.gateway = ObjectName::new("platform", format!("g{namespace}"));
            sim.set(new);
        }
    }
    let before = sim.orders.len();
    let began = sim.steady;
    let mut renewed_by = None;
    let old: Vec<Hostname> = (0..5).map(host).collect();
    while sim.steady < began + Duration::from_hours(12) && !sim.missing().is_empty() {
        sim.advance();
        let renewed = sim.orders.iter().skip(before).filter(|order| {
            old.iter().any(|name| order.hostnames.contains(name)) && order.leaf.is_some()
        });
        if renewed.count() >= 5 {
            renewed_by.get_or_insert(sim.steady.saturating_sub(began));
        }
        if sim.tasks.is_empty() && sim.published.is_empty() {
            sim.steady = sim.planner.next(sim.now());
        }
        sim.steady += Duration::from_millis(5);
        for _ in 0..16 {
            sim.complete(0, Fate::Well);
        }
        sim.ack();
    }
    assert!(sim.missing().is_empty(), "{} missing", sim.missing().len());
    assert!(
        renewed_by.is_some_and(|after| after < Duration::from_mins(10)),
        "{renewed_by:?}"
    );
}

#[test]
fn an_order_for_other_names_is_closed_before_the_next_one_is_made() {
    let mut planner = Planner::new(settings(RATES, 4));
    let now = Now {
        wall: 1_000_000,
        steady: Duration::from_secs(1),
    };
    let mut steps = Vec::new();
    let mut learn = |planner: &mut Planner, event: Event| {
        planner.learn(event, now);
        let new = planner.advance(now);
        let task = new.iter().rev().find_map(|step| match step {
            PlanStep::Task(_, ticket, task) => Some((*ticket, task.clone())),
            _ => None,
        });
        steps.extend(new);
        task
    };
    let one = request(0, &[0], [Reach::Ours; 2]);
    let secret = one.secret.clone();
    let known = BTreeMap::from([(issuer_key(), Some(issuer(None)))]);
    learn(&mut planner, Event::Input(Input::Issuers(known)));
    let account_info = AccountInfo {
        url: "account".into(),
        thumbprint: "t".into(),
        renewal_info: false,
    };
    learn(&mut planner, opened(issuer_key(), 1, account_info));
    let wanted = BTreeMap::from([(secret.clone(), Some(one.clone()))]);
    let (ticket, task) = learn(&mut planner, Event::Input(Input::Requests(wanted))).expect("read");
    assert_eq!(task, Task::Read);
    let done = |ticket, done| Event::Done(secret.clone(), ticket, done);
    let (ticket, task) = learn(&mut planner, done(ticket, Done::Read(Ok(None)))).expect("order");
    assert!(matches!(task, Task::Order { given_up: None, .. }));
    let made = Done::Ordered(Ok(("first".into(), Zeroizing::new(b"key".to_vec()).into())));
    let (ticket, task) = learn(&mut planner, done(ticket, made)).expect("write");
    assert!(matches!(task, Task::Write(_)));
    let wrote = Done::Wrote(Ok(Written::Done("1".into())));
    let (_, task) = learn(&mut planner, done(ticket, wrote)).expect("look");
    assert!(matches!(task, Task::Look { .. }));
    // One more name: what is ordered is of no use any more.
    let two = CertificateRequest {
        secret: secret.clone(),
        ..request(0, &[0, 1], [Reach::Ours; 2])
    };
    let wanted = BTreeMap::from([(secret.clone(), Some(two))]);
    let (_, task) = learn(&mut planner, Event::Input(Input::Requests(wanted))).expect("order");
    let Task::Order {
        hostnames,
        given_up,
        ..
    } = task
    else {
        panic!("{task:?}");
    };
    assert_eq!(hostnames.len(), 2);
    assert_eq!(given_up.as_deref(), Some("first"));
    assert!(
        !steps.iter().any(|step| matches!(step, PlanStep::Close(..))),
        "not while the next one may be made"
    );
}

#[test]
fn an_issuer_of_another_release_is_asked_for_nothing() {
    let requirements = vec![Requirement::In("release".into(), vec!["ours".into()])];
    let mut planner = Planner::new(Settings {
        issuers: LabelSelector { requirements },
        ..settings(RATES, 4)
    });
    let now = Now {
        wall: 1_000_000,
        steady: Duration::from_secs(1),
    };
    let one = request(0, &[0], [Reach::Ours; 2]);
    let secret = one.secret.clone();
    let wanted = BTreeMap::from([(secret.clone(), Some(one))]);
    planner.learn(Event::Input(Input::Requests(wanted)), now);
    let labelled = |release: &str| {
        let labels = [("release".to_owned(), release.to_owned())].into();
        let issuer = AcmeIssuer {
            labels,
            ..AcmeIssuer::clone(&issuer(None))
        };
        Event::Input(Input::Issuers(
            [(issuer_key(), Some(Arc::new(issuer)))].into(),
        ))
    };
    let accounts = |steps: &[PlanStep]| {
        let asks =
            |step: &&PlanStep| matches!(step, PlanStep::Account { .. } | PlanStep::Issuer(..));
        steps.iter().filter(asks).count()
    };
    planner.learn(labelled("theirs"), now);
    let steps = planner.advance(now);
    assert_eq!(accounts(&steps), 0);
    let ticket = steps.iter().find_map(|step| match step {
        PlanStep::Task(_, ticket, Task::Read) => Some(*ticket),
        _ => None,
    });
    let read = Event::Done(secret, ticket.expect("it is read"), Done::Read(Ok(None)));
    planner.learn(read, now);
    let steps = planner.advance(now);
    let said = steps.iter().find_map(|step| match step {
        PlanStep::Issuance(_, said) => said.clone(),
        _ => None,
    });
    let said = said.expect("something is said");
    assert_eq!(said.reason.as_str(), "IssuerNotFound");
    assert!(said.message.contains("acme.issuerSelector"), "{said:?}");
    // Given to us, it is registered.
    planner.learn(labelled("ours"), now);
    assert_eq!(accounts(&planner.advance(now)), 1);
}

#[test]
fn restarts_give_no_fresh_hour() {
    let mut sim = Sim::new([1000, 1000, 5], 4);
    for n in 0..40 {
        sim.set(request(0, &[n], [Reach::Ours; 2]));
    }
    for _ in 0..6 {
        for _ in 0..400 {
            sim.advance();
            sim.steady += Duration::from_millis(20);
            sim.complete(0, Fate::Well);
            sim.ack();
        }
        while !sim.tasks.is_empty() {
            sim.complete(0, Fate::Well);
            sim.advance();
        }
        sim.crash();
    }
    assert_eq!(sim.orders.len(), 5);
}

#[test]
fn a_proxy_that_is_held_up_holds_up_the_order_but_not_the_others_turn() {
    let mut sim = Sim::new([1000; 3], 2);
    sim.set(request(0, &[1], [Reach::Ours; 2]));
    sim.set(request(1, &[2], [Reach::Ours; 2]));
    for _ in 0..60 {
        sim.advance();
        sim.complete(0, Fate::Well);
    }
    assert!(!sim.published.is_empty());
    let declared = |sim: &Sim| sim.orders.iter().any(|order| order.checked);
    for _ in 0..40 {
        sim.steady += Duration::from_mins(1);
        sim.advance();
        sim.complete(0, Fate::Well);
        assert!(!declared(&sim), "not before every proxy has it");
    }
    assert_eq!(
        sim.published.len(),
        2,
        "both are out, though only one has a turn at a time"
    );
    assert_eq!(sim.planner.active.len(), 0, "nor does that take up a slot");
    sim.calm(Duration::from_mins(30));
    assert!(sim.missing().is_empty());
    assert_eq!(sim.orders.len(), 2);
}

/// Until a task of this kind is to be done.
fn until(sim: &mut Sim, is: fn(&Task) -> bool) {
    for _ in 0..100 {
        sim.advance();
        if sim.tasks.iter().any(|(_, _, task)| is(task)) {
            return;
        }
        sim.complete(0, Fate::Well);
    }
    panic!("it never comes: {:?}", sim.planner);
}

#[test]
fn an_order_that_cannot_go_on_keeps_nobody_from_its_names() {
    let http = [Reach::NoListener, Reach::Ours];
    let mut sim = Sim::new(RATES, 3);
    sim.set(request(2, &[3], http));
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Lost);
    // The name is served by others by now: the order waits until it is not.
    sim.set(request(2, &[3], [Reach::Others, Reach::NoListener]));
    sim.advance();
    sim.set(request(0, &[0, 3], http));
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty(), "{:?}", sim.planner);
}

#[test]
fn nor_does_one_whose_challenges_are_out() {
    let mut sim = Sim::new(RATES, 3);
    let first = request(2, &[3], [Reach::Ours; 2]);
    let secret = first.secret.clone();
    sim.set(first);
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Well);
    sim.advance();
    // The proxies are held up, and it gave up its turn.
    sim.steady += Duration::from_mins(5);
    sim.advance();
    assert!(!sim.published.is_empty());
    let (record, _) = sim.secrets.get_mut(&secret).expect("it has an order");
    record.ours = false;
    sim.tell(Input::SecretChanged(secret.clone()));
    sim.set(request(0, &[0, 3], [Reach::Ours; 2]));
    sim.calm(Duration::from_hours(1));
    assert_eq!(sim.missing(), [&secret], "{:?}", sim.planner);
    assert!(sim.published.is_empty());
}

#[test]
fn a_request_that_moves_to_another_gateway_goes_on_there() {
    let mut sim = Sim::new(RATES, 3);
    let mut moves = request(2, &[3], [Reach::Ours; 2]);
    sim.set(moves.clone());
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    moves.gateway = ObjectName::new("platform", "other");
    sim.set(moves);
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty(), "{:?}", sim.planner);
    assert_eq!(sim.orders.len(), 1);
}
