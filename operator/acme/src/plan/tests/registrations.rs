//! Accounts of tenants are registered when a certificate needs them, within a budget of the CA's host.

use vestibule_model::challenge::Reach;
use vestibule_model::condition::Truth;
use vestibule_model::key::Kind;

use super::world::*;
use crate::budget::REGISTRATION_PERIOD;
use crate::plan::*;
use crate::problem::FailureKind;

#[test]
fn a_tenants_issuer_is_registered_when_a_certificate_needs_it() {
    let mut world = World::new(settings(16));
    world.issuer("a", "ca.test", Behaviour::Prompt);
    let platform = ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca");
    world.issuer_called(platform.clone(), "ca.test", Behaviour::Prompt);
    world.settle();
    // The cluster issuer is registered at once, and the tenant's is only opened if it exists.
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

    // A certificate that cannot be issued needs no account either.
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
    let mut world = World::new(EngineSettings {
        registrations: 8.try_into().expect("not zero"),
        ..settings(400)
    });
    let name = |n: usize| format!("ca{n}");
    let of = |namespace: &str, n| ObjectKey::new(Kind::AcmeIssuer, namespace.to_owned(), name(n));
    // One tenant comes with many issuers, and then others come with one each.
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
    // As time passes, those who have none come first, and in any three hours there are as many as the budget refills.
    for _ in 0..3 {
        world.run(REGISTRATION_PERIOD / 8);
        world.open_all();
    }
    assert_eq!((others(&world), registered(&world, "hog")), (9, 2));
    world.run(REGISTRATION_PERIOD);
    world.open_all();
    assert!(registered(&world, "hog") <= 5);
    // Nobody waits at another host.
    world.issuer_called(of("hog", 99), "other.test", Behaviour::Prompt);
    world.wants_of("hog", &name(99), 1);
    world.open_all();
    assert_eq!(world.said[&of("hog", 99)].ready, Truth::True);
}

#[test]
fn registrations_that_fail_are_not_counted_and_those_at_another_host_are() {
    let mut world = World::new(EngineSettings {
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
    // Its directory has accounts made at another host, so the registration counts there.
    let (issuer, ticket, _) = world.accounts.remove(0);
    let elsewhere = |issuer, ticket, host: &str| Event::Account {
        issuer,
        ticket,
        created: false,
        result: Ok(OpenedAccount::Unregistered {
            host: Some(host.into()),
        }),
    };
    let event = elsewhere(issuer, ticket, "ca.test");
    world.planner.learn(event, world.now);
    world.settle();
    let (issuer, ticket, how) = world.accounts.remove(0);
    assert_eq!(how, Registering::At("ca.test".into()));
    // A directory that names another host each time is not followed at once.
    let event = elsewhere(issuer, ticket, "evil.test");
    world.planner.learn(event, world.now);
    world.settle();
    assert!(world.accounts.is_empty());
    world.run(Duration::from_mins(2));
    let (issuer, ticket, _) = world.accounts.remove(0);
    // The issuer is removed meanwhile, but what it registered still counts.
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
