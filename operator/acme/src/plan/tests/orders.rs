//! What happens to an order when its request, its issuer or its Gateway changes.

use vestibule_model::challenge::Reach;
use vestibule_model::selector::Requirement;
use zeroize::Zeroizing;

use super::fixtures::limits;
use super::simulation::*;
use crate::client::{Name, Status};
use crate::plan::*;
use crate::problem::FailureKind;
use crate::state::{Failed, Order, Wanted};

/// A planner whose only certificate has an order, and looks at it.
struct Ordering {
    planner: Planner,
    now: Now,
    steps: Vec<PlanStep>,
    secret: ObjectName,
    /// The look.
    ticket: Ticket,
}

impl Ordering {
    fn new() -> Self {
        let now = Now {
            wall: 1_000_000,
            steady: Duration::from_secs(1),
        };
        let one = request(0, &[0], [Reach::Ours; 2]);
        let secret = one.secret.clone();
        let mut ordering = Self {
            planner: Planner::new(limits(RATES, 4)),
            now,
            steps: Vec::new(),
            secret: secret.clone(),
            ticket: Ticket::default(),
        };
        let known = BTreeMap::from([(issuer_key(), Some(issuer(None)))]);
        ordering.learn(Event::Input(Input::Issuers(known)));
        let account_info = AccountInfo {
            url: "account".into(),
            thumbprint: "t".into(),
            renewal_info: false,
        };
        ordering.learn(opened(issuer_key(), 1, account_info));
        let wanted = BTreeMap::from([(secret, Some(one))]);
        let (ticket, task) = ordering
            .learn(Event::Input(Input::Requests(wanted)))
            .expect("read");
        assert_eq!(task, Task::Read);
        let (ticket, task) = ordering.done(ticket, Done::Read(Ok(None))).expect("order");
        assert!(matches!(task, Task::Order { given_up: None, .. }));
        let made = Done::Ordered(Ok(("first".into(), Zeroizing::new(b"key".to_vec()).into())));
        let (ticket, task) = ordering.done(ticket, made).expect("write");
        assert!(matches!(task, Task::Write(_)));
        let wrote = Done::Wrote(Ok(Written::Done("1".into())));
        let (ticket, task) = ordering.done(ticket, wrote).expect("look");
        assert!(matches!(task, Task::Look { .. }));
        ordering.ticket = ticket;
        ordering
    }

    /// The task that follows from the event at once, if there is one.
    fn learn(&mut self, event: Event) -> Option<(Ticket, Task)> {
        self.planner.learn(event, self.now);
        let new = self.planner.advance(self.now);
        let task = new.iter().rev().find_map(|step| match step {
            PlanStep::Task(_, ticket, task) => Some((*ticket, task.clone())),
            _ => None,
        });
        self.steps.extend(new);
        task
    }

    fn done(&mut self, ticket: Ticket, done: Done) -> Option<(Ticket, Task)> {
        self.learn(Event::Done(self.secret.clone(), ticket, done))
    }
}

#[test]
fn a_ca_that_wants_to_check_another_name_is_not_asked_again_at_once() {
    let mut ordering = Ordering::new();
    let foreign = Name {
        hostname: host(7),
        valid: false,
        offers: ChallengeType::ALL
            .map(|kind| (kind, "token".to_owned()))
            .to_vec(),
    };
    let view = View {
        names: vec![foreign],
        ..View::new(Status::Pending)
    };
    let mut next = ordering.done(ordering.ticket, Done::Looked(Ok(view)));
    // The failure may be written into the Secret. The next order comes later.
    while let Some((ticket, task)) = next {
        assert!(matches!(task, Task::Write(_)), "{task:?}");
        next = ordering.done(ticket, Done::Wrote(Ok(Written::Done("2".into()))));
    }
    assert!(
        !ordering
            .steps
            .iter()
            .any(|step| matches!(step, PlanStep::Publish(..))),
        "no challenge of that name"
    );
    let says_it = |step: &PlanStep| match step {
        PlanStep::Issuance(_, Some(said)) => said.message.contains("h7.test"),
        PlanStep::Observe(Observation::OrderEnded { message, .. }) => message.contains("h7.test"),
        _ => false,
    };
    assert!(
        !ordering.steps.iter().any(says_it),
        "that name is another's"
    );
}

#[test]
fn a_failure_whose_write_conflicts_is_not_forgotten_for_an_earlier_one() {
    let mut ordering = Ordering::new();
    let invalid = View {
        problem: Some(AcmeFailure::new(FailureKind::Validation, "the later one")),
        ..View::new(Status::Invalid)
    };
    let (ticket, task) = ordering
        .done(ordering.ticket, Done::Looked(Ok(invalid)))
        .expect("write");
    assert!(matches!(task, Task::Write(_)));
    let conflict = Done::Wrote(Ok(Written::Conflict));
    let (ticket, task) = ordering.done(ticket, conflict).expect("read");
    assert_eq!(task, Task::Read);
    // The Secret has the order, and a failure from before it.
    let wanted = Wanted::new(&issuer(None), &[host(0)].into()).all;
    let at = ordering.now.wall - 600;
    let state = RememberedState {
        order: Some(Order {
            url: "first".into(),
            account: "account".into(),
            wanted: wanted.clone(),
            since: at,
        }),
        failure: Some(Failed {
            wanted,
            count: 1,
            at,
            retry_at: at + 60,
            problem: "the earlier one".into(),
            rate_limited: false,
        }),
        ..RememberedState::default()
    };
    let record = StoredSecret {
        version: "2".into(),
        ours: true,
        state: Some(state.write().into()),
        next_key: Zeroizing::new(b"key".to_vec()).into(),
        ..StoredSecret::default()
    };
    let read = Done::Read(Ok(Some((record, None))));
    let (_, task) = ordering.done(ticket, read).expect("write");
    let Task::Write(write) = task else {
        panic!("{task:?}");
    };
    let state = RememberedState::read(Some(&*write.state));
    assert_eq!(state.order, None, "it is not taken up again");
    assert!(write.next_key.is_none());
    let failure = state.failure.expect("a failure");
    assert_eq!(failure.problem, "the later one");
    assert_eq!(failure.at, ordering.now.wall);
}

#[test]
fn the_account_of_an_issuer_that_changes_or_goes_is_dropped() {
    let mut ordering = Ordering::new();
    let mut drops = |spec: Option<Arc<AcmeIssuer>>| {
        let before = ordering.steps.len();
        ordering.learn(Event::Input(Input::Issuers([(issuer_key(), spec)].into())));
        let steps = ordering.steps[before..].iter();
        steps
            .filter(|step| matches!(step, PlanStep::DropAccount(key) if *key == issuer_key()))
            .count()
    };
    assert_eq!(drops(Some(issuer(None))), 0, "nothing changed");
    assert_eq!(drops(Some(issuer(Some("short")))), 1);
    assert_eq!(drops(None), 1);
    assert_eq!(drops(None), 0, "it is gone already");
    assert_eq!(drops(Some(issuer(None))), 0, "it is new");
}

#[test]
fn an_order_for_other_names_is_closed_before_the_next_one_is_made() {
    let mut ordering = Ordering::new();
    let secret = ordering.secret.clone();
    // With one more name, the running order cannot be used any more.
    let two = CertificateRequest {
        secret: secret.clone(),
        ..request(0, &[0, 1], [Reach::Ours; 2])
    };
    let wanted = BTreeMap::from([(secret.clone(), Some(two))]);
    let (_, task) = ordering
        .learn(Event::Input(Input::Requests(wanted)))
        .expect("order");
    let Task::Order {
        hostnames,
        given_up,
        ..
    } = task
    else {
        panic!("{task:?}");
    };
    assert_eq!(hostnames.len(), 2);
    let given_up = given_up.expect("the first order");
    assert_eq!(given_up.url, "first");
    assert_eq!(given_up.hostnames, [host(0)].into());
    assert!(
        !ordering
            .steps
            .iter()
            .any(|step| matches!(step, PlanStep::Close(..))),
        "not while the next one may be made"
    );
}

#[test]
fn an_issuer_of_another_release_is_asked_for_nothing() {
    let requirements = vec![Requirement::In("release".into(), vec!["ours".into()])];
    let mut planner = Planner::new(EngineSettings {
        issuers: LabelSelector { requirements },
        ..limits(RATES, 4)
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
    // Once its labels match, the issuer is registered.
    planner.learn(labelled("ours"), now);
    assert_eq!(accounts(&planner.advance(now)), 1);
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

#[test]
fn an_order_that_is_refused_leaves_its_issuer_to_the_others() {
    let mut sim = Sim::new([1000; 3], 16);
    let refused = request(0, &[0], [Reach::Ours; 2]);
    sim.set(refused.clone());
    until(&mut sim, |task| matches!(task, Task::Order { .. }));
    let place = sim
        .tasks
        .iter()
        .position(|(_, _, task)| matches!(task, Task::Order { .. }));
    let (secret, ticket, _) = sim.tasks.swap_remove(place.expect("an order"));
    let problem =
        br#"{"type":"urn:ietf:params:acme:error:unauthorized","detail":"not for h0.test"}"#;
    let problem = crate::problem::Problem::read(problem).expect("a problem");
    let failure = problem.failure(crate::problem::AcmeOperation::Order, 403, None);
    let now = sim.now();
    let done = Done::Ordered(Err(failure));
    sim.planner
        .learn(Event::Done(secret.clone(), ticket, done), now);
    sim.set(request(1, &[1], [Reach::Ours; 2]));
    for step in sim.planner.advance(now) {
        match step {
            PlanStep::Issuer(key, said) => panic!("{key}: {said:?}"),
            PlanStep::Task(secret, ticket, task) => sim.tasks.push((secret, ticket, task)),
            _ => {}
        }
    }
    let said = sim.planner.entries[&secret]
        .said
        .as_ref()
        .expect("its own state");
    assert!(said.message.contains("not for h0.test"), "{said:?}");
    sim.calm(Duration::from_mins(1));
    assert_eq!(
        sim.missing(),
        [&secret],
        "the other team has its certificate"
    );
}
