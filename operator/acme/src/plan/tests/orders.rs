//! What happens to an order when its request, its issuer or its Gateway changes.

use vestibule_model::challenge::Reach;
use vestibule_model::selector::Requirement;
use zeroize::Zeroizing;

use super::fixtures::limits;
use super::simulation::*;
use crate::plan::*;

#[test]
fn an_order_for_other_names_is_closed_before_the_next_one_is_made() {
    let mut planner = Planner::new(limits(RATES, 4));
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
    // With one more name, the running order cannot be used any more.
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
