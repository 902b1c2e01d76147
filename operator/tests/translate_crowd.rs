//! A thousand ListenerSets at once: the work is counted, and every one of them is served.

use std::sync::Arc;
use vestibule_model::condition::ProgrammedBasis;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Assigned, Change, Status, Translator, Work};
use vestibule_operator_testing::objects::*;

const SETS: usize = 1000;

fn the_gateway() -> Object {
    let own = vec![passthrough("own", "own.example.com")];
    let mut object = gateway("one", own, NamespaceScope::All);
    if let Object::Gateway(gateway) = &mut object {
        Arc::make_mut(gateway).meta.uid = "uid".into();
    }
    object
}

fn the_sets() -> impl Iterator<Item = Change> {
    (0..SETS).map(|n| {
        let listener = passthrough("l", &format!("host-{n}.example.com"));
        let tenant = format!("tenant-{}", n % 50);
        Change::Put(set(&tenant, &format!("set-{n}"), 1, "one", vec![listener]))
    })
}

/// The port and the address of the one Gateway.
fn cluster(translator: &Translator) -> Vec<Change> {
    let ports = (10_000..).zip(translator.ports().iter().cloned());
    let ports = ports.map(|(internal, desired)| (desired, Port::new(internal)));
    let assigned = Assigned {
        addresses: vec![vestibule_model::condition::Address::Ip(
            [192, 0, 2, 1].into(),
        )],
        sockets: std::collections::BTreeSet::new(),
        problem: None,
    };
    vec![
        Change::Ports(ports.collect()),
        Change::Addresses("uid".into(), Some(assigned)),
    ]
}

fn all_served(translator: &Translator) {
    let sets = translator
        .statuses()
        .iter()
        .filter(|(key, _)| key.kind == Kind::ListenerSet);
    let mut served = 0;
    for (key, status) in sets {
        let Status::Listeners(status) = status else {
            panic!("{key} has listeners")
        };
        assert!(
            matches!(status.programmed, ProgrammedBasis::WhenAcknowledged(_)),
            "{key}"
        );
        served += 1;
    }
    assert_eq!(served, SETS);
    let gateway = ObjectKey::new(Kind::Gateway, "platform", "one");
    let Status::Listeners(status) = &translator.statuses()[&gateway] else {
        panic!("a Gateway has listeners")
    };
    assert_eq!(status.attached_listener_sets, SETS);
    // Each set's listener and whose its name is; the Gateway's listener, whose its name is, and the Gateway's settings.
    assert_eq!(translator.resources().len(), 2 * (SETS + 1) + 1);
}

#[test]
fn all_at_once_is_one_pass_over_each() {
    let mut translator = Translator::new(cluster_settings());
    let first = [our_class(), the_gateway()].map(Change::Put);
    let output = translator.apply(first.into_iter().chain(the_sets()));
    let expected = Work {
        listeners: SETS + 1,
        gateways: 1,
        // Each set's, the Gateway's and the class's.
        statuses: SETS + 2,
        // Each set's name, and the port.
        claims: SETS + 1,
        ..Work::default()
    };
    assert_eq!(output.work, expected);
    assert_eq!(output.ports.len(), 1);
    // The port comes for all of them, the address changes all their statuses.
    let inputs = cluster(&translator);
    let output = translator.apply(inputs);
    assert_eq!(output.work.listeners, SETS + 1);
    assert!(output.work.statuses <= SETS + 2);
    all_served(&translator);
}

#[test]
fn one_after_the_other_each_costs_the_same() {
    let mut translator = Translator::new(cluster_settings());
    translator.apply([our_class(), the_gateway()].map(Change::Put));
    let inputs = cluster(&translator);
    translator.apply(inputs);
    let mut sets = the_sets();
    // The first one settles what the sets speak on the port, which concerns everybody there.
    translator.apply(sets.next());
    for set in sets {
        let work = translator.apply([set]).work;
        // Its own listener; its own status and the Gateway's, which counts it.
        let expected = Work {
            listeners: 1,
            gateways: 1,
            statuses: 2,
            // Its name, and the port.
            claims: 2,
            ..Work::default()
        };
        assert_eq!(work, expected);
    }
    all_served(&translator);
}
