//! Shares: CAs of tenants that answer nobody, or never decide; and accounts that are registered when needed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vestibule_model::challenge::Reach;
use vestibule_model::condition::Truth;
use vestibule_model::issuer::{Engine, IssuerRef};
use vestibule_model::key::Kind;
use vestibule_model::meta::Meta;
use zeroize::Zeroizing;

use super::super::budget::REGISTRATION_PERIOD;
use super::super::client::{Name, Status};
use super::super::effects::OrderOutcome;
use super::super::problem::FailureKind;
use super::*;

const WALL: i64 = 1_800_000_000;

/// What a CA is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// It issues.
    Prompt,
    /// It answers nothing, until a request is given up.
    Silent,
    /// It checks names for ever.
    Undecided,
    /// It makes the certificate for ever.
    Processing,
    /// It wants the request for the certificate again and again.
    Forgetful,
}

/// CAs, Secrets and proxies around a planner. What is not asked of a CA is done at once.
struct World {
    planner: Planner,
    settings: Settings,
    now: Now,
    requests: BTreeMap<ObjectName, CertificateRequest>,
    issuers: BTreeMap<ObjectKey, Arc<AcmeIssuer>>,
    /// By namespace of the issuer.
    behaviour: BTreeMap<String, Behaviour>,
    secrets: BTreeMap<ObjectName, StoredSecret>,
    /// What orders have come to, by URL.
    declared: BTreeSet<String>,
    finalized: BTreeMap<String, usize>,
    /// Requests that silent CAs have yet to answer.
    stuck: Vec<(ObjectName, Ticket, Task)>,
    /// Accounts that are asked for.
    accounts: Vec<(ObjectKey, Ticket, Registering)>,
    /// Requests to CAs, by namespace of the certificate, in order.
    asked: Vec<(ObjectName, &'static str)>,
    issued: BTreeSet<ObjectName>,
    ended: Vec<(ObjectName, OrderOutcome, Arc<str>)>,
    said: BTreeMap<ObjectKey, IssuerState>,
    words: BTreeMap<ObjectName, Issuance>,
    orders: usize,
    most_active: usize,
}

fn key(namespace: &str) -> ObjectKey {
    ObjectKey::new(Kind::AcmeIssuer, namespace, "ca")
}

fn settings(in_flight: usize) -> Settings {
    let plenty = 100_000.try_into().expect("not zero");
    Settings {
        namespace: "vestibule-system".into(),
        issuers: LabelSelector::default(),
        budgets: Budgets {
            per_hour: plenty,
            per_issuer: plenty,
            per_namespace: plenty,
        },
        in_flight,
        registrations: plenty,
        authorities: AuthorityRules::Any,
        reach: Duration::ZERO,
        spread: Duration::ZERO,
        seed: 5,
    }
}

impl World {
    fn new(settings: Settings) -> Self {
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

    fn tell(&mut self, input: Input) {
        self.planner.learn(Event::Input(input), self.now);
    }

    /// An `ACMEIssuer` of this namespace.
    fn issuer(&mut self, namespace: &str, host: &str, behaviour: Behaviour) {
        self.issuer_called(key(namespace), host, behaviour);
    }

    fn issuer_called(&mut self, key: ObjectKey, host: &str, behaviour: Behaviour) {
        let issuer = Arc::new(AcmeIssuer {
            key: key.clone(),
            meta: Meta::default(),
            labels: BTreeMap::new(),
            directory: format!("https://{host}/dir").into(),
            contact: Vec::new(),
            account_key_secret: "account".into(),
            external_account: None,
            profile: None,
            ca_bundle: None,
            challenges: ChallengeType::ALL.to_vec(),
            findings: Vec::new(),
        });
        self.behaviour
            .insert(key.name.namespace.to_string(), behaviour);
        self.issuers.insert(key.clone(), issuer.clone());
        self.tell(Input::Issuers([(key, Some(issuer))].into()));
    }

    /// Certificates of a namespace, each for one name, of the issuer there.
    fn wants(&mut self, namespace: &str, count: usize) -> Vec<ObjectName> {
        self.wants_of(namespace, "ca", count)
    }

    fn wants_of(&mut self, namespace: &str, issuer: &str, count: usize) -> Vec<ObjectName> {
        let requests = (0..count).map(|n| {
            let secret = ObjectName::new(namespace.to_owned(), format!("{issuer}-{n}"));
            let hostname = Hostname::parse(&format!("h{n}.{issuer}.{namespace}.test"));
            let hostname = hostname.expect("a hostname");
            let request = CertificateRequest {
                secret: secret.clone(),
                reach: [(hostname.clone(), [Reach::Ours; 2])].into(),
                hostnames: [hostname].into(),
                issuer: Some(IssuerRef {
                    engine: Engine::Acme,
                    name: issuer.into(),
                    kind: "ACMEIssuer".into(),
                    group: "vestibule.dev".into(),
                }),
                owner: ObjectKey::new(Kind::ListenerSet, namespace.to_owned(), "set"),
                owner_uid: "u".into(),
                gateway: ObjectName::new("platform", "shared"),
                gateway_uid: "u".into(),
                options: Arc::default(),
            };
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

    /// A new leader, which knows the Secrets.
    fn restart(&mut self) {
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

    fn pass(&mut self, time: Duration) {
        self.now.steady += time;
        self.now.wall += i64::try_from(time.as_secs()).expect("fits");
    }

    /// Plans, and does what is to be done, until nothing is left to do now.
    fn settle(&mut self) {
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

    /// The same, step by step for so long.
    fn run(&mut self, time: Duration) {
        let end = self.now.steady + time;
        self.settle();
        while self.now.steady < end {
            let next = self.planner.next(self.now).min(end);
            let step = next.saturating_sub(self.now.steady);
            // The clock of the wall has seconds.
            self.pass(step.max(Duration::from_millis(1)));
            self.now.wall = WALL + i64::try_from(self.now.steady.as_secs()).expect("fits");
            self.settle();
        }
    }

    fn perform(&mut self, step: PlanStep) -> bool {
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

    fn execute(&mut self, secret: &ObjectName, task: Task) -> Done {
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

    fn view(
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
            names: names.collect(),
            problem: None,
            retry_after: None,
        }
    }

    /// Opens every account that is asked for.
    fn open_all(&mut self) {
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

    /// What came of an account: none, or one, and whether it is a new one.
    fn opened(&mut self, issuer: ObjectKey, ticket: Ticket, account: Option<bool>) {
        let result = Ok(match account {
            None => Opened::Unregistered { host: None },
            Some(_) => Opened::Open {
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

    /// One of the requests that silent CAs sit on is given up.
    fn give_up(&mut self, place: usize) -> ObjectName {
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

    fn asked_by(&self, namespace: &str, what: &str) -> usize {
        let of =
            |(secret, asks): &&(ObjectName, &str)| &*secret.namespace == namespace && *asks == what;
        self.asked.iter().filter(of).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// One tenant's CA that answers nothing holds its share of the slots, and the others' certificates come as
    /// if it were not there.
    #[test]
    fn a_ca_that_answers_nothing_holds_a_quarter_and_nobody_up(
        in_flight in 4_usize..60,
        certificates in 1_usize..80,
        others in 1_usize..5,
    ) {
        let mut world = World::new(settings(in_flight));
        world.issuer("hog", "hog.test", Behaviour::Silent);
        let share = in_flight / 4;
        world.wants("hog", certificates);
        world.open_all();
        let new = share - share / 4;
        prop_assert_eq!(world.stuck.len(), certificates.min(new));
        let mut wanted = Vec::new();
        for n in 0..others {
            let namespace = format!("n{n}");
            world.issuer(&namespace, "prompt.test", Behaviour::Prompt);
            wanted.extend(world.wants(&namespace, 5));
        }
        world.open_all();
        world.run(Duration::from_secs(5));
        prop_assert!(wanted.iter().all(|secret| world.issued.contains(secret)));
        prop_assert!(world.stuck.len() <= share);
    }

    /// However many namespaces have such a CA: when one of their requests is given up, it is the turn of a
    /// namespace that has none going on, before any of them has one more.
    #[test]
    fn many_of_them_make_others_wait_for_one_request(
        in_flight in 4_usize..40,
        hogs in 4_usize..9,
        places in prop::collection::vec(any::<usize>(), 40),
    ) {
        let mut world = World::new(settings(in_flight));
        for n in 0..hogs {
            let namespace = format!("hog{n}");
            world.issuer(&namespace, &format!("{namespace}.test"), Behaviour::Silent);
            world.wants(&namespace, 30);
        }
        world.open_all();
        world.issuer("other", "prompt.test", Behaviour::Prompt);
        let wanted = world.wants("other", 3);
        world.open_all();
        let mut given_up = 0;
        for place in places {
            if wanted.iter().all(|secret| world.issued.contains(secret)) {
                break;
            }
            if world.stuck.is_empty() {
                world.run(Duration::from_secs(2));
                continue;
            }
            let waits = |secret: &ObjectName| {
                matches!(world.planner.entries[secret].phase, Phase::Queued(_))
            };
            let waits = wanted.iter().any(waits);
            let before = world.asked.len();
            given_up += 1;
            world.give_up(place);
            world.settle();
            let first = world.asked.get(before).map(|(secret, _)| secret.namespace.clone());
            let first = first.as_deref().unwrap_or_default();
            let held = world.stuck.iter().filter(|(of, ..)| &*of.namespace == first).count();
            prop_assert!(!waits || first == "other" || held == 1, "{first}: {held}");
            // The CA is asked again after a while.
            world.run(Duration::from_secs(2));
        }
        prop_assert!(wanted.iter().all(|secret| world.issued.contains(secret)), "{}", given_up);
    }
}

#[test]
fn orders_that_wait_for_their_ca_hold_no_slot_and_are_bounded() {
    let mut world = World::new(settings(16));
    world.issuer("hog", "hog.test", Behaviour::Undecided);
    let certificates = world.wants("hog", 100);
    world.open_all();
    world.run(Duration::from_mins(10));
    // Four times a namespace's share of 4, less the quarter that is kept for renewals.
    assert_eq!(world.orders, 12);
    assert_eq!(world.planner.under_way.len(), 12);
    assert_eq!(world.planner.active.len(), 0);
    let said = &world.words[&certificates[0]];
    assert!(said.message.contains("checks h0.ca.hog.test"), "{said:?}");
    // The others are not held up, whatever is polled.
    world.issuer("other", "prompt.test", Behaviour::Prompt);
    let wanted = world.wants("other", 20);
    world.open_all();
    world.run(Duration::from_secs(30));
    assert!(wanted.iter().all(|secret| world.issued.contains(secret)));
    let looks = world.asked_by("hog", "look");
    world.run(Duration::from_mins(30));
    let each = (world.asked_by("hog", "look") - looks) / 12;
    assert!(each <= 40, "{each} questions for an order in half an hour");
    assert!(
        world
            .ended
            .iter()
            .all(|(secret, ..)| &*secret.namespace == "other")
    );
}

#[test]
fn an_order_has_one_lifetime_through_every_step_and_leader() {
    for behaviour in [
        Behaviour::Undecided,
        Behaviour::Processing,
        Behaviour::Forgetful,
    ] {
        for restarts in [0, 3] {
            let mut world = World::new(settings(16));
            world.issuer("a", "a.test", behaviour);
            let secret = world.wants("a", 1).remove(0);
            world.open_all();
            // Just before its end, whoever leads.
            for _ in 0..restarts {
                world.run(Duration::from_mins(14));
                let (wall, steady) = (world.now.wall, world.now.steady);
                world.restart();
                // The clocks of the new one go on from there.
                world.now = Now { wall, steady };
                world.open_all();
            }
            let passed = Duration::from_mins(14) * restarts + Duration::from_mins(2);
            let left = LIFETIME.saturating_sub(passed);
            world.run(left);
            let ended = world.ended.clone();
            if behaviour == Behaviour::Forgetful {
                assert!(world.asked_by("a", "finalize") <= 5 * world.orders);
            } else {
                assert_eq!(ended, [], "{behaviour:?} {restarts}");
            }
            world.run(Duration::from_mins(4));
            let (_, outcome, message) = world.ended.first().expect("it is over");
            assert_eq!(*outcome, OrderOutcome::Failed);
            if behaviour != Behaviour::Forgetful {
                assert!(message.contains("not done within an hour"), "{message}");
                assert_eq!(world.ended.len(), 1, "{:?}", world.ended);
            }
            let state = RememberedState::read(world.secrets[&secret].state.as_deref());
            assert!(state.order.is_none() || world.orders > 1);
            let failure = state.failure.expect("it is remembered");
            assert!(failure.retry_at > failure.at);
        }
    }
}

#[test]
fn an_order_that_waited_for_proxies_or_a_network_does_not_wait_longer_each_time() {
    let mut world = World::new(settings(16));
    world.issuer("a", "a.test", Behaviour::Silent);
    let secret = world.wants("a", 1).remove(0);
    world.open_all();
    // Its order is made, and then the CA is away for hours.
    world.behaviour.insert("a".into(), Behaviour::Undecided);
    world.give_up(0);
    world.run(Duration::from_secs(10));
    assert_eq!(world.orders, 1);
    world.behaviour.insert("a".into(), Behaviour::Silent);
    for _ in 0..60 {
        world.run(Duration::from_mins(3));
        if !world.stuck.is_empty() {
            world.give_up(0);
        }
    }
    let state = RememberedState::read(world.secrets[&secret].state.as_deref());
    let failure = state.failure.expect("the order is given up");
    assert_eq!(failure.count, 1);
    assert!(failure.problem.contains("within an hour"), "{failure:?}");
    assert!(failure.problem.contains("does not answer"), "{failure:?}");
    world.behaviour.insert("a".into(), Behaviour::Prompt);
    while !world.stuck.is_empty() {
        world.give_up(0);
    }
    world.run(Duration::from_mins(15));
    assert!(world.issued.contains(&secret));
}

#[test]
fn a_tenants_issuer_is_registered_when_a_certificate_needs_it() {
    let mut world = World::new(settings(16));
    world.issuer("a", "ca.test", Behaviour::Prompt);
    let platform = ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca");
    world.issuer_called(platform.clone(), "ca.test", Behaviour::Prompt);
    world.settle();
    // The platform's at once; of the tenant's only what there is.
    let mut asked: Vec<_> = std::mem::take(&mut world.accounts);
    asked.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let how: BTreeMap<_, _> = asked.iter().map(|(key, _, how)| (key, how)).collect();
    assert_eq!(how[&key("a")], &Registering::No);
    assert_eq!(how[&platform], &Registering::Anywhere);
    for (issuer, ticket, how) in asked {
        world.opened(issuer, ticket, (how != Registering::No).then_some(true));
    }
    world.settle();
    let said = &world.said[&key("a")];
    assert_eq!((said.ready, said.reason), (Truth::Unknown, "NotRegistered"));
    assert_eq!(world.said[&platform].ready, Truth::True);
    world.run(Duration::from_hours(1));
    assert!(world.accounts.is_empty());

    // A certificate that cannot be had needs none either.
    let mut nowhere = world.wants("a", 1);
    let mut request = world.requests[&nowhere.remove(0)].clone();
    request
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::NoListener; 2]);
    let secret = request.secret.clone();
    world.tell(Input::Requests(
        [(secret.clone(), Some(request.clone()))].into(),
    ));
    world.settle();
    assert!(world.accounts.is_empty());
    request
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::Ours; 2]);
    world.tell(Input::Requests([(secret.clone(), Some(request))].into()));
    world.settle();
    let (issuer, ticket, how) = world.accounts.remove(0);
    assert_eq!(how, Registering::At("ca.test".into()));
    let words = &world.words[&secret].message;
    assert!(words.contains("is being registered"), "{words}");
    world.opened(issuer, ticket, Some(true));
    world.open_all();
    world.run(Duration::from_secs(10));
    assert!(world.issued.contains(&secret));
    assert_eq!(world.said[&key("a")].reason, "Registered");
}

#[test]
fn registrations_at_one_host_are_bounded_and_shared() {
    let mut world = World::new(Settings {
        registrations: 8.try_into().expect("not zero"),
        ..settings(400)
    });
    let name = |n: usize| format!("ca{n}");
    let of = |namespace: &str, n| ObjectKey::new(Kind::AcmeIssuer, namespace.to_owned(), name(n));
    // One tenant comes with many issuers, and then others with one each.
    for n in 0..30 {
        world.issuer_called(of("hog", n), "ca.test", Behaviour::Prompt);
        world.wants_of("hog", &name(n), 1);
    }
    world.open_all();
    let registered = |world: &World, namespace: &str| {
        let all = world.said.iter();
        all.filter(|(key, issuer_state)| {
            &*key.name.namespace == namespace && issuer_state.ready == Truth::True
        })
        .count()
    };
    assert_eq!(registered(&world, "hog"), 2);
    let waits = world
        .said
        .values()
        .find(|issuer_state| issuer_state.reason == "OverBudget");
    let waits = waits.expect("one that waits").clone();
    assert_eq!(waits.ready, Truth::Unknown);
    assert!(
        waits.message.contains("registrations at ca.test"),
        "{waits:?}"
    );
    let said = world
        .words
        .values()
        .any(|said| said.message.contains("registrations at ca.test"));
    assert!(said, "{:?}", world.words);
    for n in 0..9 {
        let namespace = format!("n{n}");
        world.issuer_called(of(&namespace, 0), "CA.test", Behaviour::Prompt);
        world.wants_of(&namespace, &name(0), 1);
    }
    world.open_all();
    let others = |world: &World| {
        (0..9)
            .map(|n| registered(world, &format!("n{n}")))
            .sum::<usize>()
    };
    assert_eq!(others(&world), 6, "a quarter is the hog's, and no more");
    // As time passes, those who have none come first, and in any three hours there are as many as fill.
    for _ in 0..3 {
        world.run(REGISTRATION_PERIOD / 8);
        world.open_all();
    }
    assert_eq!((others(&world), registered(&world, "hog")), (9, 2));
    world.run(REGISTRATION_PERIOD);
    world.open_all();
    assert!(registered(&world, "hog") <= 5);
    // Elsewhere nobody waits.
    world.issuer_called(of("hog", 99), "other.test", Behaviour::Prompt);
    world.wants_of("hog", &name(99), 1);
    world.open_all();
    assert_eq!(world.said[&of("hog", 99)].ready, Truth::True);
}

#[test]
fn what_comes_to_no_account_is_not_counted_and_another_host_is() {
    let mut world = World::new(Settings {
        registrations: 4.try_into().expect("not zero"),
        ..settings(40)
    });
    world.issuer("a", "evil.test", Behaviour::Prompt);
    world.wants("a", 1);
    world.settle();
    let (issuer, ticket, _) = world.accounts.remove(0);
    world.opened(issuer, ticket, None);
    // A failure gives back what was taken.
    for n in 0..5 {
        world.settle();
        let (issuer, ticket, how) = world.accounts.remove(0);
        assert_eq!(how, Registering::At("evil.test".into()), "{n}");
        world.planner.learn(
            Event::Account {
                issuer,
                ticket,
                created: false,
                result: Err(AcmeFailure::new(FailureKind::NotAllowed, "not public")),
            },
            world.now,
        );
        world.settle();
        let said = &world.said[&key("a")];
        assert_eq!(
            (said.ready, said.reason),
            (Truth::False, "AddressNotAllowed")
        );
        world.run(Duration::from_hours(2));
    }
    // Its directory has accounts made at somebody else's: there it counts.
    let (issuer, ticket, _) = world.accounts.remove(0);
    let elsewhere = |issuer, ticket, host: &str| Event::Account {
        issuer,
        ticket,
        created: false,
        result: Ok(Opened::Unregistered {
            host: Some(host.into()),
        }),
    };
    let event = elsewhere(issuer, ticket, "ca.test");
    world.planner.learn(event, world.now);
    world.settle();
    let (issuer, ticket, how) = world.accounts.remove(0);
    assert_eq!(how, Registering::At("ca.test".into()));
    // One that says something else each time is not followed at once.
    let event = elsewhere(issuer, ticket, "evil.test");
    world.planner.learn(event, world.now);
    world.settle();
    assert!(world.accounts.is_empty());
    world.run(Duration::from_mins(2));
    let (issuer, ticket, _) = world.accounts.remove(0);
    // The issuer goes meanwhile, and what it registered counts all the same.
    world.tell(Input::Issuers([(key("a"), None)].into()));
    world.opened(issuer, ticket, Some(true));
    world.issuer("a", "evil.test", Behaviour::Prompt);
    world.settle();
    let (issuer, ticket, _) = world.accounts.remove(0);
    world.opened(issuer, ticket, None);
    world.settle();
    assert!(world.accounts.is_empty(), "a quarter of 4 is one");
    assert_eq!(world.said[&key("a")].reason, "OverBudget");
}
