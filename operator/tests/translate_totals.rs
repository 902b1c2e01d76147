//! What the listeners, routes and backends of all namespaces have together in the configuration is bounded, and namespaces
//! share the bound fairly. Certificates are in `translate_source_budget`.

use std::sync::Arc;
use vestibule_model::fair_total::Demand;
use vestibule_model::key::{Kind, ListenerKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::policy::{ConfigurationTotals, TotalBytes};
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::ServiceType;
use vestibule_operator::translate::{Change, Settings, Status, Translator};
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_stream::{Encoded, ResourceKind};

/// Each total in these tests, in bytes.
const TOTAL: usize = 1 << 20;

fn with_totals() -> Settings {
    let mut settings = settings();
    let totals = &mut settings.policy.totals;
    (totals.listeners_mib, totals.routes_mib, totals.backends_mib) = (1, 1, 1);
    settings
}

fn entrance() -> [Object; 2] {
    [our_class(), gateway("one", Vec::new(), NamespaceScope::All)]
}

fn put(objects: impl IntoIterator<Item = Object>) -> impl Iterator<Item = Change> {
    objects.into_iter().map(Change::Put)
}

/// How many resources of a kind a namespace has in the configuration.
fn served(translator: &Translator, kind: ResourceKind, namespace: &str) -> usize {
    let keys = translator.resources().keys();
    let of_kind = keys.filter(|key| key.kind() == kind);
    let parts = of_kind.map(|key| key.name.trim_start_matches("ListenerSet/"));
    let parts = parts.map(|name| name.trim_start_matches("Gateway/"));
    parts
        .filter(|name| name.split('/').next() == Some(namespace))
        .count()
}

/// How many bytes all resources of a kind have.
fn bytes(translator: &Translator, kind: ResourceKind) -> usize {
    let all = translator.resources().iter();
    let of_kind = all.filter(|(key, _)| key.kind() == kind);
    of_kind.map(|(_, encoded)| Encoded::len(encoded)).sum()
}

/// The texts of the findings that an object is over a limit.
fn over(translator: &Translator, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
    let findings = translator.findings().get(&key(kind, namespace, name));
    let findings = findings.into_iter().flatten();
    let of_limits = findings.filter(|finding| finding.reason.as_str() == "QuotaExceeded");
    of_limits.map(ToString::to_string).collect()
}

/// What a Gateway sets for its listeners counts once, and comes off first.
#[test]
fn the_settings_of_a_gateway_count_in_the_total_of_the_listeners() {
    let taken = |translator: &Translator| -> u64 {
        let totals = translator.totals();
        let of_listeners = totals.filter(|(part, _)| *part == "listeners");
        let demands = of_listeners.flat_map(|(_, total)| total.demands());
        let bytes = demands.map(|(_, demand)| match demand {
            Demand::Exempt(bytes) | Demand::Limited(bytes) => bytes,
        });
        bytes.sum()
    };
    let Object::GatewayClass(mut class) = our_class() else {
        unreachable!("a class")
    };
    class.parameters = Some(parameters_at("p"));
    let mut translator = Translator::new(with_totals());
    translator.apply(put(entrance()));
    assert_eq!(taken(&translator), 0);
    translator.apply(put([
        Object::GatewayClass(class),
        parameters_of("p", ServiceType::NodePort, true),
    ]));
    let of_one = taken(&translator);
    assert!((1..1024).contains(&of_one), "{of_one}");
    translator.apply(put([gateway("two", Vec::new(), NamespaceScope::All)]));
    assert_eq!(taken(&translator), 2 * of_one);
    translator.apply([Change::Remove(key(Kind::Gateway, "platform", "two"))]);
    assert_eq!(taken(&translator), of_one);
}

fn same(a: &Translator, b: &Translator) {
    assert_eq!(a.resources(), b.resources());
    assert_eq!(a.statuses(), b.statuses());
    assert_eq!(a.findings(), b.findings());
}

/// Listeners of each ListenerSet below.
const LISTENERS: usize = 50;

/// A ListenerSet with listeners that name as many Secrets as the API allows, with the longest names together that they may
/// have. A larger number is a younger one.
fn long_set(namespace: &str, number: usize) -> Object {
    let one = |n: usize| {
        let tls = Tls::Terminate(namespace.into(), "s".into());
        let host = format!("h{n}.n{number}.{namespace}.test");
        let mut listener = listener(&format!("l{n:02}"), 443, Protocol::Https, &host, Some(tls));
        let references = (0..60).map(|secret| Reference {
            group: "".into(),
            kind: "Secret".into(),
            target: ObjectName::new(namespace, format!("{secret:064}")),
            field: format!("{}.tls.certificateRefs[{secret}]", listener.field),
        });
        let references = references.collect();
        listener.tls.as_mut().expect("it has TLS").certificates = references;
        listener
    };
    let name = format!("set{number}");
    let age = i64::try_from(number).expect("few");
    set(
        namespace,
        &name,
        age,
        "one",
        (0..LISTENERS).map(one).collect(),
    )
}

/// One namespace alone could fill a batch with listeners that serve nothing.
#[test]
fn listeners_of_all_namespaces_have_a_total_that_they_share() {
    let listeners =
        |translator: &Translator, namespace| served(translator, ResourceKind::Listener, namespace);
    let sets = |namespace: &'static str, range: std::ops::Range<usize>| {
        put(range.map(move |number| long_set(namespace, number)))
    };
    let mut translator = Translator::new(with_totals());
    translator.apply(put(entrance()));
    let output = translator.apply(sets("a", 0..8));
    // Nobody has those that do not fit, so nobody is told that they are gone.
    assert!(output.resources.values().all(Option::is_some));
    let fit = listeners(&translator, "a");
    assert!((200..8 * LISTENERS).contains(&fit), "{fit}");
    let sent = |translator: &Translator| bytes(translator, ResourceKind::Listener);
    assert!((TOTAL * 9 / 10..=TOTAL).contains(&sent(&translator)));
    // The youngest are refused, and say why.
    assert_eq!(over(&translator, Kind::ListenerSet, "a", "set0").len(), 0);
    let told = over(&translator, Kind::ListenerSet, "a", "set7");
    assert_eq!(told.len(), LISTENERS);
    for part in [
        "namespace a",
        "have 1 MiB together",
        "tenants.allListenersMib",
    ] {
        assert!(told[0].contains(part), "{}", told[0]);
    }
    let Status::Listeners(status) = &translator.statuses()[&key(Kind::ListenerSet, "a", "set7")]
    else {
        panic!("a ListenerSet has listeners")
    };
    let accepted = status.listeners[0].conditions.iter();
    let accepted: Vec<_> = accepted.filter(|c| c.kind.as_str() == "Accepted").collect();
    assert_eq!(accepted[0].reason.as_str(), "QuotaExceeded");
    // A refused listener is still the one that has its name.
    let refused = ListenerKey::new(ParentKey::ListenerSet(ObjectName::new("a", "set7")), "l00");
    assert!(translator.merge().claim(&refused).is_some());
    let mut anew = Translator::new(with_totals());
    anew.apply(put(entrance()).chain(sets("a", 0..8)));
    same(&translator, &anew);

    // A newcomer asks for little, and has all of it. An older ListenerSet takes no place from what is in service.
    translator.keep_in_service();
    translator.apply(sets("b", 0..1));
    assert_eq!(listeners(&translator, "b"), LISTENERS);
    let left = listeners(&translator, "a");
    assert!(
        (fit - LISTENERS - 1..=fit - LISTENERS + 1).contains(&left),
        "{left} of {fit}"
    );
    let mut elder = long_set("a", 8);
    if let Object::ListenerSet(set) = &mut elder {
        Arc::make_mut(set).meta.created = -1;
    }
    let output = translator.apply(put([elder]));
    let mut changed = output.resources.iter();
    assert!(!changed.any(|(key, new)| key.kind() == ResourceKind::Listener && new.is_some()));
    assert_eq!(listeners(&translator, "a"), left);
    // However much it asks for, each has half.
    translator.apply(sets("b", 1..8));
    let half = listeners(&translator, "b");
    assert!(
        (fit / 2 - 2..=fit / 2 + 2).contains(&half),
        "{half} of {fit}"
    );
    assert!(listeners(&translator, "a").abs_diff(half) <= 2);
    assert!(sent(&translator) <= TOTAL);
    // The namespace of the Gateway is not limited, and leaves less to the others.
    translator.apply(sets("platform", 0..2));
    assert_eq!(listeners(&translator, "platform"), 2 * LISTENERS);
    let rest = listeners(&translator, "b");
    assert!((1..half).contains(&rest), "{rest} of {half}");
    assert!(sent(&translator) <= TOTAL);
    // When the others have gone, all have what they ask for.
    let gone = |namespace, range: std::ops::Range<usize>| {
        range.map(move |n| Change::Remove(key(Kind::ListenerSet, namespace, &format!("set{n}"))))
    };
    translator.apply(gone("b", 0..8).chain(gone("platform", 0..2)));
    assert_eq!(listeners(&translator, "a"), fit);
}

/// A listener for all names of a namespace.
fn web(namespace: &str) -> Object {
    let host = format!("*.{namespace}.test");
    let web = listener("web", 80, Protocol::Http, &host, None);
    set(namespace, "mine", 1, "one", vec![web])
}

/// A route with 16 hostnames that are nearly as long as a name can be. It has 16 entries.
fn long_route(namespace: &str, number: usize) -> Object {
    let label = "x".repeat(60);
    let host = |n: usize| format!("h{n}.r{number}.{label}.{label}.{label}.{namespace}.test");
    let hosts: Vec<String> = (0..16).map(host).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let parents = vec![parent("ListenerSet", None, "mine", None)];
    let age = i64::try_from(number).expect("few");
    let name = format!("r{number:03}");
    let at = (namespace, name.as_str(), age);
    http_route(
        at,
        parents,
        &hosts,
        &[Rule::Plain],
        &[backend(namespace, "app", 80, 1)],
    )
}

/// Few entries have many bytes if their names are long.
#[test]
fn routes_of_all_namespaces_have_a_total_that_they_share() {
    let routes =
        |translator: &Translator, namespace| served(translator, ResourceKind::HttpRoute, namespace);
    let many = |namespace: &'static str, range: std::ops::Range<usize>| {
        put(range.map(move |number| long_route(namespace, number)))
    };
    let tenants = || ["a", "b"].map(|name| [web(name), service(name, "app", &[80])]);
    let tenants = || {
        put(entrance()
            .into_iter()
            .chain(tenants().into_iter().flatten()))
    };
    let mut translator = Translator::new(with_totals());
    translator.apply(tenants());
    translator.apply(many("a", 0..200));
    let fit = routes(&translator, "a");
    assert!((100..200).contains(&fit), "{fit}");
    let sent = |translator: &Translator| bytes(translator, ResourceKind::HttpRoute);
    // What is counted is an upper bound, and a close one.
    assert!((TOTAL * 9 / 10..=TOTAL).contains(&sent(&translator)));
    let told = over(&translator, Kind::HttpRoute, "a", "r199");
    for part in ["namespace a", "have 1 MiB together", "tenants.allRoutesMib"] {
        assert!(told[0].contains(part), "{told:?}");
    }
    translator.apply(many("b", 0..10));
    assert_eq!(routes(&translator, "b"), 10);
    let left = routes(&translator, "a");
    assert!((fit - 11..=fit - 9).contains(&left), "{left} of {fit}");
    let mut anew = Translator::new(with_totals());
    anew.apply(tenants().chain(many("b", 0..10)).chain(many("a", 0..200)));
    same(&translator, &anew);
    translator.apply(many("b", 10..200));
    let half = routes(&translator, "b");
    assert!(
        (fit / 2 - 1..=fit / 2 + 1).contains(&half),
        "{half} of {fit}"
    );
    assert!(sent(&translator) <= TOTAL);
}

/// The ports of a Service in the test below.
const PORTS: u16 = 240;

#[test]
fn backends_of_all_namespaces_have_a_total_that_they_share() {
    let backends =
        |translator: &Translator, namespace| served(translator, ResourceKind::Backend, namespace);
    let to_ports = |namespace: &'static str, ports: std::ops::RangeInclusive<u16>| {
        put(ports.map(move |port| {
            let parents = vec![parent("ListenerSet", None, "mine", None)];
            let name = format!("r{port:03}");
            let host = format!("{name}.{namespace}.test");
            let backends = [backend(namespace, "app", port, 1)];
            let at = (namespace, name.as_str(), 1);
            http_route(at, parents, &[&host], &[Rule::Plain], &backends)
        }))
    };
    let addresses: Vec<u8> = (1..=254).collect();
    let ports: Vec<u16> = (1..=PORTS).collect();
    let tenant = |namespace: &str| {
        let slices = ports.iter().map(|port| {
            let suffix = u8::try_from(*port).expect("few");
            slice(namespace, "app", suffix, *port, &addresses)
        });
        let slices: Vec<Object> = slices.collect();
        [web(namespace), service(namespace, "app", &ports)]
            .into_iter()
            .chain(slices)
    };
    let mut translator = Translator::new(with_totals());
    translator.apply(put(entrance()));
    translator.apply(put(["a", "b"].into_iter().flat_map(tenant)));
    translator.keep_in_service();
    translator.apply(to_ports("a", 1..=PORTS));
    let fit = backends(&translator, "a");
    assert!((60..usize::from(PORTS)).contains(&fit), "{fit}");
    assert!(bytes(&translator, ResourceKind::Backend) <= TOTAL);
    let told = over(&translator, Kind::HttpRoute, "a", &format!("r{PORTS}"));
    for part in [
        "namespace a",
        "have 1 MiB together",
        "tenants.allBackendsMib",
    ] {
        assert!(told[0].contains(part), "{told:?}");
    }
    // The neighbour has all of the little that it asks for.
    translator.apply(to_ports("b", 1..=5));
    assert_eq!(backends(&translator, "b"), 5);
    let left = backends(&translator, "a");
    assert!((fit - 9..=fit - 5).contains(&left), "{left} of {fit}");
    translator.apply(to_ports("b", 6..=PORTS));
    for namespace in ["a", "b"] {
        let half = backends(&translator, namespace);
        assert!((fit / 2 - 2..=fit / 2).contains(&half), "{half} of {fit}");
    }
}

/// A route that is attached nowhere uses no backend, and has its references resolved all the same.
#[test]
fn a_route_that_is_attached_nowhere_says_which_backends_are_over_a_total_at_present() {
    let totals = TotalBytes {
        backends: 100,
        ..ConfigurationTotals::DEFAULT.into()
    };
    let empty = || Translator::new(settings()).with_totals(totals);
    let route = |name: &str, parent_set: &str| {
        let parents = vec![parent("ListenerSet", None, parent_set, None)];
        let backends = [backend("a", "app", 80, 1)];
        let at = ("a", name, 1);
        http_route(at, parents, &["x.a.test"], &[Rule::Plain], &backends)
    };
    let objects: Vec<Object> = entrance()
        .into_iter()
        .chain([
            web("a"),
            service("a", "app", &[80]),
            route("served", "mine"),
            route("stray", "missing"),
        ])
        .collect();
    let mut at_once = empty();
    at_once.apply(put(objects.clone()));
    let told = |translator: &Translator, name: &str| over(translator, Kind::HttpRoute, "a", name);
    assert_eq!(told(&at_once, "served").len(), 1);
    assert_eq!(told(&at_once, "served"), told(&at_once, "stray"));
    for order in [objects.clone(), objects.into_iter().rev().collect()] {
        let mut one_by_one = empty();
        for object in order {
            one_by_one.apply(put([object]));
        }
        same(&at_once, &one_by_one);
    }
    // A backend that nobody uses is over no limit.
    at_once.apply([Change::Remove(key(Kind::HttpRoute, "a", "served"))]);
    assert!(told(&at_once, "stray").is_empty());
}
