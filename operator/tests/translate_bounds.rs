//! What tenants' backends and certificates may not be.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use vestibule_model::certificate::{AddressBlock, MAX_CHAIN_BYTES};
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::http::{
    HeaderModifier, HttpFilter, HttpMatch, HttpRule, PathMatch, ValueMatch,
};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::pattern::Pattern;
use vestibule_model::protocol::{Port, Protocol, Transport};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Assigned, Change, Settings, Status, Translator};
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

/// A slice of Service app with these addresses.
fn slice_of(suffix: u8, addresses: &[&str]) -> Change {
    let mut object = slice("b", "app", suffix, 443, &[]);
    if let Object::EndpointSlice(slice) = &mut object {
        let addresses = addresses.iter().map(|text| text.parse::<IpAddr>());
        slice.addresses = addresses.collect::<Result<_, _>>().expect("addresses");
    }
    Change::Put(object)
}

fn endpoints(translator: &Translator) -> Vec<String> {
    let key = ResourceKey::new(ResourceKind::Backend, "b/app:443");
    let backend = translator.resources().get(&key);
    match backend.and_then(Encoded::decode) {
        Some(resource::Resource::Backend(backend)) => {
            backend.endpoints.into_iter().map(|of| of.address).collect()
        }
        _ => Vec::new(),
    }
}

/// What `ResolvedRefs` of the route says, if it is not true.
fn unresolved(translator: &Translator) -> Option<(&'static str, String)> {
    let Status::Route(status) = &translator.statuses()[&key(Kind::TlsRoute, "b", "web")] else {
        panic!("a route has parents")
    };
    let conditions = &status.parents[0].conditions;
    let refs = conditions
        .iter()
        .find(|c| c.kind.as_str() == "ResolvedRefs");
    let refs = refs.expect("the condition");
    (refs.reason.as_str() != "ResolvedRefs").then(|| (refs.reason.as_str(), refs.message.clone()))
}

/// A route of namespace b to Service app, without a slice.
fn with_route(settings: Settings) -> Translator {
    let mut translator = Translator::new(settings);
    translator.apply(
        [
            our_class(),
            gateway("one", Vec::new(), NamespaceScope::All),
            set(
                "b",
                "mine",
                1,
                "one",
                vec![passthrough("web", "web.b.test")],
            ),
            route(
                "b",
                "web",
                1,
                vec![parent("ListenerSet", None, "mine", None)],
                &["web.b.test"],
                vec![backend("b", "app", 443, 1)],
            ),
            service("b", "app", &[443]),
        ]
        .map(Change::Put),
    );
    translator
}

/// The same in a cluster.
fn in_a_cluster() -> Translator {
    with_route(cluster_settings())
}

#[test]
fn endpoints_that_only_proxies_reach_are_left_out_and_told() {
    let mut settings = settings();
    settings.policy.endpoints = EndpointRules {
        loopback: false,
        denied: vec![AddressBlock::parse("10.96.0.0/12").expect("a block")],
    };
    let mut translator = with_route(settings);
    assert_eq!(unresolved(&translator), None);
    for (bad, why) in [
        ("169.254.169.254", "link-local"),
        ("127.0.0.1", "loopback"),
        ("10.96.0.1", "10.96.0.0/12"),
        ("100.100.100.200", "metadata"),
    ] {
        // Nothing but that.
        translator.apply([slice_of(1, &[bad])]);
        let (reason, message) = unresolved(&translator).expect("it is told");
        assert_eq!(reason, "EndpointNotAllowed");
        assert!(message.contains(bad) && message.contains(why), "{message}");
        assert_eq!(endpoints(&translator), Vec::<String>::new());
        let of_slice = ObjectKey::new(Kind::EndpointSlice, "b", "app-1");
        assert_eq!(reasons(&translator, &of_slice), ["EndpointNotAllowed"]);
        // Beside a pod, in the same slice or in another one.
        translator.apply([slice_of(1, &[bad, "10.244.0.9"])]);
        assert_eq!(unresolved(&translator), None, "{bad}");
        assert_eq!(endpoints(&translator), ["10.244.0.9"]);
        translator.apply([slice_of(1, &[bad]), slice_of(2, &["10.244.0.8"])]);
        assert_eq!(unresolved(&translator), None, "{bad}");
        assert_eq!(endpoints(&translator), ["10.244.0.8"]);
        translator.apply([slice_of(2, &[])]);
        assert!(unresolved(&translator).is_some());
        translator.apply([slice_of(1, &["10.244.0.7"])]);
        assert_eq!(unresolved(&translator), None);
        assert_eq!(endpoints(&translator), ["10.244.0.7"]);
    }
}

/// When a slice changes, the addresses of the others of its Service are not looked at again, though what routes say of
/// the endpoints depends on all of them.
#[test]
fn a_slice_is_judged_without_the_others_of_its_service() {
    let mut translator = in_a_cluster();
    translator.apply((1..=50).map(|n| slice_of(n, &[&format!("10.244.0.{n}")])));
    let mut work = |changes: Vec<Change>| {
        let work = translator.apply(changes).work;
        (work.slices, work.routes)
    };
    let good = |n: u8| slice_of(n, &["10.244.1.1"]);
    let bad = |n: u8| slice_of(n, &["169.254.169.254"]);
    assert_eq!(work(vec![good(1)]), (1, 0));
    assert_eq!(work(vec![bad(1)]), (1, 1));
    assert_eq!(work(vec![good(2)]), (1, 1));
    assert_eq!(work(vec![bad(3), good(3)]), (1, 1));
    assert_eq!(work(vec![good(1)]), (1, 1));
    assert_eq!(work(vec![good(2), good(3)]), (0, 0));
    assert_eq!(work(vec![slice_of(2, &["10.244.1.2"])]), (1, 0));
    let gone = Change::Remove(key(Kind::EndpointSlice, "b", "app-2"));
    assert_eq!(work(vec![gone]), (1, 0));
}

/// Whatever a namespace writes, what the proxies hold of its regular expressions is bounded; and its neighbours have
/// their own.
#[test]
fn regular_expressions_of_a_namespace_are_bounded() {
    let mut settings = settings();
    settings.policy.regex_mib = 1;
    let mut translator = Translator::new(settings);
    let routed = |namespace: &str, n: i64| {
        let of_gateway = vec![parent("Gateway", Some("platform"), "one", None)];
        let at = (namespace, &*format!("r{n}"), n);
        let host = format!("r{n}.{namespace}.test");
        let backends = [backend(namespace, "app", 80, 1)];
        let mut object = http_route(at, of_gateway, &[&host], &[Rule::Filtered], &backends);
        if let Object::HttpRoute(route) = &mut object {
            // Of the largest ones.
            let large = Pattern::parse("/[ab]*a[ab]{7}").expect("a pattern");
            let most = (400 << 10) / large.size();
            let one = |_| HttpMatch {
                path: PathMatch::Regex(large.clone()),
                ..HttpMatch::default()
            };
            route.rules[0].matches = (0..most).map(one).collect();
        }
        Change::Put(object)
    };
    let mut own = listener("web", 443, Protocol::Http, "", None);
    own.allowed_namespaces = NamespaceScope::All;
    translator.apply(
        [
            our_class(),
            gateway("one", vec![own], NamespaceScope::All),
            service("a", "app", &[80]),
            service("b", "app", &[80]),
        ]
        .map(Change::Put),
    );
    translator.apply((0..4).map(|n| routed("a", n)));
    translator.apply([routed("b", 0)]);
    assert_eq!(served(&translator), ["a/r0", "a/r1", "b/r0"]);
    for n in [2, 3] {
        let of_route = key(Kind::HttpRoute, "a", &format!("r{n}"));
        assert_eq!(reasons(&translator, &of_route), ["QuotaExceeded"]);
        let Status::Route(status) = &translator.statuses()[&of_route] else {
            panic!("a route has parents")
        };
        let accepted = &status.parents[0].conditions[0];
        assert_eq!(accepted.reason.as_str(), "QuotaExceeded");
        assert!(accepted.message.contains("1 MiB"), "{}", accepted.message);
    }
    // The next one in order has the room of one that goes.
    let output = translator.apply([Change::Remove(key(Kind::HttpRoute, "a", "r0"))]);
    assert_eq!(served(&translator), ["a/r1", "a/r2", "b/r0"]);
    assert!(output.work.routes <= 2, "{:?}", output.work);
}

/// The HTTPRoutes that the proxies get.
fn served(translator: &Translator) -> Vec<String> {
    let keys = translator.resources().keys();
    let of_routes = keys.filter(|key| key.kind() == ResourceKind::HttpRoute);
    of_routes.map(|key| key.name.clone()).collect()
}

/// Whatever a namespace writes, what its routes take in the proxies' tables is bounded. It is the product of listeners,
/// hostnames and matches that counts. Its neighbours have their own, and a route in service stays.
#[test]
fn entries_of_a_namespace_in_the_proxies_tables_are_bounded() {
    let mut settings = settings();
    settings.policy.route_entries = 100;
    let mut translator = Translator::new(settings);
    let nested = |namespace: &str, listeners: usize| {
        let one = |n: usize| {
            let host = format!("*.{}{namespace}.test", "a.".repeat(n));
            listener(&format!("l{n}"), 80, Protocol::Http, &host, None)
        };
        let all = (0..listeners).map(one).collect();
        Change::Put(set(namespace, "mine", 1, "one", all))
    };
    let routed = |(namespace, name, age): (&str, &str, i64),
                  section: Option<&str>,
                  matches: usize| {
        let parents = vec![parent("ListenerSet", None, "mine", section)];
        let hosts = ["x", "y"].map(|first| format!("{first}.{}{namespace}.test", "a.".repeat(9)));
        let hosts = hosts.each_ref().map(String::as_str);
        let backends = [backend(namespace, "app", 80, 1)];
        let at = (namespace, name, age);
        let mut object = http_route(at, parents, &hosts, &[Rule::Filtered], &backends);
        if let Object::HttpRoute(route) = &mut object {
            route.rules[0].matches = vec![HttpMatch::default(); matches];
        }
        Change::Put(object)
    };
    translator.apply(
        [
            our_class(),
            gateway("one", Vec::new(), NamespaceScope::All),
            service("a", "app", &[80]),
            service("b", "app", &[80]),
        ]
        .map(Change::Put),
    );
    translator.apply([nested("a", 10), nested("b", 10)]);
    // Each has 2 hostnames on 10 listeners: 60 entries, and 40 for a younger one.
    translator.apply([routed(("a", "old", 1), None, 3)]);
    translator.apply([
        routed(("a", "young", 2), None, 2),
        routed(("b", "r", 3), None, 5),
    ]);
    assert_eq!(served(&translator), ["a/old", "a/young", "b/r"]);
    // A newcomer does not fit, and changes nothing for the others.
    let output = translator.apply([routed(("a", "huge", 3), None, 128)]);
    assert_eq!(output.resources.len(), 0);
    let huge = key(Kind::HttpRoute, "a", "huge");
    assert_eq!(reasons(&translator, &huge), ["QuotaExceeded"]);
    let Status::Route(status) = &translator.statuses()[&huge] else {
        panic!("a route has parents")
    };
    let accepted = &status.parents[0].conditions[0];
    assert_eq!(accepted.reason.as_str(), "QuotaExceeded");
    for part in ["2569 entries", "the 100 ", "sectionName"] {
        assert!(accepted.message.contains(part), "{}", accepted.message);
    }
    // An older route that grows has a younger one go; one that names a listener has more room.
    translator.apply([routed(("a", "old", 1), None, 4)]);
    assert_eq!(served(&translator), ["a/old", "b/r"]);
    translator.apply([routed(("a", "old", 1), Some("l0"), 4)]);
    assert_eq!(served(&translator), ["a/old", "a/young", "b/r"]);
    // Only the listeners around its hostnames count: ten of the 25.
    translator.apply([nested("a", 25), routed(("a", "young", 2), None, 4)]);
    assert_eq!(served(&translator), ["a/old", "a/young", "b/r"]);
    // Fewer listeners are fewer entries, without a change of the route.
    translator.apply([routed(("a", "young", 2), None, 5)]);
    assert_eq!(served(&translator), ["a/old", "b/r"]);
    translator.apply([nested("a", 9)]);
    assert_eq!(served(&translator), ["a/old", "a/young", "b/r"]);
    translator.apply([nested("a", 10)]);
    assert_eq!(served(&translator), ["a/old", "b/r"]);
    // A route that goes makes room.
    let young = Change::Remove(key(Kind::HttpRoute, "a", "young"));
    translator.apply([young, routed(("a", "huge", 3), None, 4)]);
    assert_eq!(served(&translator), ["a/huge", "a/old", "b/r"]);
}

/// The proxies get and hold the texts of filters and matches once, however few hostnames and listeners a route has.
#[test]
fn the_content_of_routes_counts_by_its_size() {
    let mut settings = settings();
    settings.policy.route_entries = 100;
    let mut translator = Translator::new(settings);
    let web = listener("web", 80, Protocol::Http, "x.a.test", None);
    translator.apply(
        [
            our_class(),
            gateway("one", Vec::new(), NamespaceScope::All),
            service("a", "app", &[80]),
            set("a", "mine", 1, "one", vec![web]),
        ]
        .map(Change::Put),
    );
    let long = |entries: usize| "y".repeat(entries * 128);
    let header = |entries| HeaderModifier {
        set: vec![("x".into(), long(entries).into())],
        ..HeaderModifier::default()
    };
    let fill: [fn(&mut HttpRule, HeaderModifier); 4] = [
        |rule, header| rule.filters.push(HttpFilter::RequestHeaders(header)),
        |rule, header| rule.filters.push(HttpFilter::ResponseHeaders(header)),
        |rule, header| {
            let filter = HttpFilter::ResponseHeaders(header);
            rule.backends[0].filters.push(filter);
        },
        |rule, header| {
            let (name, value) = header.set[0].clone();
            let one = &mut rule.matches[0];
            one.headers.push((name, ValueMatch::Exact(value)));
        },
    ];
    for fill in fill {
        for (entries, is_served) in [(90, true), (110, false), (90, true)] {
            let parents = vec![parent("ListenerSet", None, "mine", None)];
            let backends = [backend("a", "app", 80, 1)];
            let at = ("a", "r", 1);
            let mut object = http_route(at, parents, &["x.a.test"], &[Rule::Plain], &backends);
            if let Object::HttpRoute(route) = &mut object {
                fill(&mut route.rules[0], header(entries));
            }
            translator.apply([Change::Put(object)]);
            assert_eq!(served(&translator) == ["a/r"], is_served, "{entries}");
        }
    }
}

/// A world in which the namespaces a and b have a ListenerSet each, Service app with 40 ports and an older Service elder,
/// and whose backends have 100 entries for each namespace.
fn with_ports() -> Translator {
    let mut settings = settings();
    settings.policy.route_entries = 100;
    let mut translator = Translator::new(settings);
    translator
        .apply([our_class(), gateway("one", Vec::new(), NamespaceScope::All)].map(Change::Put));
    translator.apply(["a", "b", "platform"].into_iter().flat_map(tenant));
    translator
}

fn tenant(namespace: &str) -> Vec<Change> {
    let ports: Vec<u16> = (1..=40).collect();
    let aged = |name: &str, created| {
        let mut object = service(namespace, name, &ports);
        if let Object::Service(service) = &mut object {
            service.meta.created = created;
        }
        object
    };
    let web = listener(
        "web",
        80,
        Protocol::Http,
        &format!("*.{namespace}.test"),
        None,
    );
    let objects = [
        set(namespace, "mine", 1, "one", vec![web]),
        aged("app", 10),
        aged("elder", 1),
    ];
    objects.map(Change::Put).into()
}

/// So many endpoints of each of the ports. 100 endpoints have 25 entries.
fn with_endpoints(namespace: &str, service: &str, ports: &[u16], count: u8) -> Vec<Change> {
    let addresses: Vec<u8> = (1..=count).collect();
    let one = |port: &u16| {
        let suffix = u8::try_from(*port).expect("few");
        Change::Put(slice(namespace, service, suffix, *port, &addresses))
    };
    ports.iter().map(one).collect()
}

/// A route to a port of a Service. Its own entries are few.
fn to_port(namespace: &str, service: &str, port: u16) -> Change {
    let parents = vec![parent("ListenerSet", None, "mine", None)];
    let name = format!("{service}{port}");
    let backends = [backend(namespace, service, port, 1)];
    let host = format!("{name}.{namespace}.test");
    let at = (namespace, name.as_str(), 1);
    let object = http_route(at, parents, &[&host], &[Rule::Plain], &backends);
    Change::Put(object)
}

/// The backends that the proxies get.
fn backends_of(translator: &Translator) -> Vec<String> {
    let keys = translator.resources().keys();
    let of_backends = keys.filter(|key| key.kind() == ResourceKind::Backend);
    of_backends.map(|key| key.name.clone()).collect()
}

/// A backend that stays over the budget with other endpoints does not have its routes judged again.
#[test]
fn backend_over_its_budget_is_reported_independently_of_its_past() {
    let with = |counts: &[u8]| {
        let mut translator = with_ports();
        translator.apply(with_endpoints("a", "app", &[1, 2, 3, 4], 100));
        let (first, others) = counts.split_first().expect("a count");
        translator.apply(with_endpoints("a", "app", &[5], *first));
        translator.apply((1..=5).map(|port| to_port("a", "app", port)));
        for count in others {
            translator.apply(with_endpoints("a", "app", &[5], *count));
        }
        translator
    };
    let edited = with(&[200, 100]);
    let anew = with(&[100]);
    let of_route = key(Kind::HttpRoute, "a", "app5");
    assert_eq!(reasons(&edited, &of_route), ["QuotaExceeded"]);
    assert_eq!(edited.findings(), anew.findings());
    assert_eq!(edited.statuses(), anew.statuses());
}

/// Whatever ports of Services a namespace has routes to, and whatever it writes into EndpointSlices, what its backends take
/// in the proxies is bounded. Its neighbours have their own, and what is in service stays.
#[test]
fn entries_of_a_namespaces_backends_are_bounded() {
    let mut translator = with_ports();
    let ports: Vec<u16> = (1..=40).collect();
    for namespace in ["a", "b", "platform"] {
        translator.apply(with_endpoints(namespace, "app", &ports, 100));
        translator.apply(with_endpoints(namespace, "elder", &[1], 100));
    }
    translator.keep_in_service();
    translator.apply((1..=4).map(|port| to_port("a", "app", port)));
    let four = ["a/app:1", "a/app:2", "a/app:3", "a/app:4"];
    assert_eq!(backends_of(&translator), four);

    // A route to one more port, and one to a Service that is older than the others.
    for (service, port) in [("app", 5), ("elder", 1)] {
        let output = translator.apply([to_port("a", service, port)]);
        assert_eq!(backends_of(&translator), four);
        let of_route = key(Kind::HttpRoute, "a", &format!("{service}{port}"));
        let sent: Vec<&str> = output.resources.keys().map(|key| &*key.name).collect();
        assert_eq!(sent, [of_route.name.to_string()]);
        assert_eq!(reasons(&translator, &of_route), ["QuotaExceeded"]);
        let Status::Route(status) = &translator.statuses()[&of_route] else {
            panic!("a route has parents")
        };
        let conditions = status.parents[0].conditions.iter();
        let said: Vec<_> = conditions
            .map(|c| (c.kind.as_str(), c.reason.as_str()))
            .collect();
        assert!(said.contains(&("Accepted", "Accepted")), "{said:?}");
        assert!(
            said.contains(&("ResolvedRefs", "QuotaExceeded")),
            "{said:?}"
        );
        let text = translator.findings()[&of_route][0].to_string();
        let port = format!("{service}:{port}");
        for part in [
            &*port,
            "of its endpoints",
            "the 100 ",
            "namespace a",
            "tenants.routeEntries",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
    // The neighbour has its own, and the Gateway's namespace has no limit.
    translator.apply((1..=4).map(|port| to_port("b", "app", port)));
    translator.apply((1..=9).map(|port| to_port("platform", "app", port)));
    assert_eq!(backends_of(&translator).len(), 4 + 4 + 9);

    // The oldest of those that wait has the room of one that goes, and it stays.
    translator.apply([Change::Remove(key(Kind::HttpRoute, "a", "app2"))]);
    let with_elder = ["a/app:1", "a/app:3", "a/app:4", "a/elder:1"];
    assert_eq!(backends_of(&translator)[..4], with_elder);
    let of_elder = key(Kind::HttpRoute, "a", "elder1");
    assert_eq!(reasons(&translator, &of_elder), [""; 0]);
    translator.apply([to_port("a", "app", 2)]);
    assert_eq!(backends_of(&translator)[..4], with_elder);
    // The one that is back waits by its age, before one that has waited longer.
    translator.apply([Change::Remove(key(Kind::HttpRoute, "a", "elder1"))]);
    assert_eq!(backends_of(&translator)[..4], four);

    // More endpoints have the last one go, and fewer let others in. Small ones have the room that others do not fit in.
    translator.apply(with_endpoints("a", "app", &[1], 120));
    let three = ["a/app:1", "a/app:2", "a/app:3"];
    assert_eq!(backends_of(&translator)[..3], three);
    assert_eq!(backends_of(&translator).len(), 3 + 4 + 9);
    translator.apply(with_endpoints("a", "app", &[1], 3));
    assert_eq!(backends_of(&translator)[..4], four);
    // One that came first and grows has its room before those that came later. Only routes to these are judged again.
    let work = translator.apply(with_endpoints("a", "app", &[1], 255)).work;
    assert_eq!(backends_of(&translator).len(), 2 + 4 + 9);
    assert!(work.routes <= 3, "{work:?}");
    let output = translator.apply([Change::Remove(key(Kind::Gateway, "platform", "one"))]);
    assert!(!output.resources.is_empty());
    assert_eq!(backends_of(&translator).len(), 0);
}

#[test]
fn the_backends_in_service_depend_on_the_objects_alone_before_all_of_them_are_known() {
    let ports: Vec<u16> = (1..=10).collect();
    let mut changes = with_endpoints("a", "app", &ports, 100);
    changes.extend(with_endpoints("a", "elder", &[7], 100));
    changes.extend(ports.iter().map(|port| to_port("a", "app", *port)));
    changes.push(to_port("a", "elder", 7));
    let mut at_once = with_ports();
    at_once.apply(changes.clone());
    let mut backwards = with_ports();
    for change in changes.into_iter().rev() {
        backwards.apply([change]);
    }
    let oldest = ["a/app:1", "a/app:2", "a/app:3", "a/elder:7"];
    assert_eq!(backends_of(&at_once), oldest);
    assert_eq!(at_once.resources(), backwards.resources());
    assert_eq!(at_once.statuses(), backwards.statuses());
    assert_eq!(at_once.findings(), backwards.findings());
}

/// The slice of the release's own Service of proxies; `idle` are those that are not ready.
fn proxies(service: &str, ready: &[&str], idle: &[&str]) -> Change {
    let parse = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().expect("one"))
            .collect()
    };
    let mut object = slice("vestibule-system", service, 0, 1, &[]);
    if let Object::EndpointSlice(slice) = &mut object {
        slice.addresses = parse(ready);
        slice.idle = parse(idle);
    }
    Change::Put(object)
}

fn reached_at(sockets: &[(&str, u16)]) -> Change {
    reached_by(Transport::Tcp, sockets)
}

fn reached_by(transport: Transport, sockets: &[(&str, u16)]) -> Change {
    let sockets = sockets.iter().map(|(ip, number)| {
        let number = Port::new(*number).expect("a port");
        (ip.parse().expect("an address"), (number, transport))
    });
    let assigned = Assigned {
        sockets: sockets.collect(),
        ..Assigned::default()
    };
    Change::Addresses("uid-one".into(), Some(assigned))
}

#[test]
fn pods_of_the_release_are_nobodys_endpoints() {
    let mut translator = in_a_cluster();
    translator.apply([slice_of(1, &["10.244.0.5"]), slice_of(2, &["10.244.0.6"])]);
    let both = ["10.244.0.5", "10.244.0.6"];
    assert_eq!(endpoints(&translator), both);
    // Pods of others in the release's namespace are no concern of this.
    translator.apply([proxies("demo", &["10.244.0.5"], &[])]);
    assert_eq!(endpoints(&translator), both);
    // A proxy that is ready, and one that is not: its port of metrics answers all the same.
    for (ready, idle) in [(&["10.244.0.5"][..], &[][..]), (&[], &["10.244.0.5"])] {
        translator.apply([proxies("proxies", ready, idle)]);
        assert_eq!(endpoints(&translator), ["10.244.0.6"]);
        assert_eq!(unresolved(&translator), None);
        let of_slice = ObjectKey::new(Kind::EndpointSlice, "b", "app-1");
        assert_eq!(reasons(&translator, &of_slice), ["EndpointNotAllowed"]);
    }
    translator.apply([proxies("proxies", &["10.244.0.5", "10.244.0.6"], &[])]);
    let (reason, message) = unresolved(&translator).expect("it is told");
    assert_eq!(reason, "EndpointNotAllowed");
    assert!(message.contains("a pod of Vestibule itself"), "{message}");
    // In another way of writing it.
    translator.apply([
        slice_of(1, &["::ffff:10.244.0.5"]),
        slice_of(2, &["64:ff9b::af4:6"]),
    ]);
    assert_eq!(endpoints(&translator), Vec::<String>::new());
    // The proxies are gone, and their addresses are other pods'.
    translator.apply([slice_of(1, &[both[0]]), slice_of(2, &[both[1]])]);
    assert_eq!(endpoints(&translator), Vec::<String>::new());
    translator.apply([proxies("proxies", &["10.244.0.9"], &[])]);
    assert_eq!(endpoints(&translator), both);
    assert_eq!(unresolved(&translator), None);
}

#[test]
fn addresses_of_gateways_with_their_ports_are_nobodys_endpoints() {
    let mut translator = in_a_cluster();
    // Its endpoints have port 8443.
    translator.apply([slice_of(1, &["192.0.2.7"])]);
    assert_eq!(endpoints(&translator), ["192.0.2.7"]);
    // Where load balancers are ports of nodes, the other ports are others', those of the other transport among them.
    for others in [
        reached_at(&[("192.0.2.7", 443)]),
        reached_by(Transport::Udp, &[("192.0.2.7", 8443)]),
    ] {
        translator.apply([others]);
        assert_eq!(endpoints(&translator), ["192.0.2.7"]);
        assert_eq!(unresolved(&translator), None);
    }
    translator.apply([reached_at(&[("192.0.2.7", 443), ("192.0.2.7", 8443)])]);
    assert_eq!(endpoints(&translator), Vec::<String>::new());
    let (reason, message) = unresolved(&translator).expect("it is told");
    assert_eq!(reason, "EndpointNotAllowed");
    assert!(message.contains("the address of a Gateway"), "{message}");
    translator.apply([Change::Addresses("uid-one".into(), None)]);
    assert_eq!(endpoints(&translator), ["192.0.2.7"]);
    assert_eq!(unresolved(&translator), None);
}

/// Only the platform may write there.
#[test]
fn the_namespace_of_the_release_may_name_what_it_likes() {
    let mut translator = in_a_cluster();
    translator.apply([
        reached_at(&[("10.244.0.5", 8001)]),
        proxies("proxies", &["10.244.0.5"], &[]),
        Change::Put(service("vestibule-system", "proxies", &[1])),
        Change::Put(route(
            "vestibule-system",
            "own",
            1,
            vec![parent("ListenerSet", None, "own", None)],
            &["own.test"],
            vec![backend("vestibule-system", "proxies", 1, 1)],
        )),
        Change::Put(set(
            "vestibule-system",
            "own",
            1,
            "one",
            vec![passthrough("own", "own.test")],
        )),
    ]);
    let key = ResourceKey::new(ResourceKind::Backend, "vestibule-system/proxies:1");
    let Some(resource::Resource::Backend(own)) =
        translator.resources().get(&key).and_then(Encoded::decode)
    else {
        panic!("a backend")
    };
    assert_eq!(own.endpoints.len(), 1);
}

#[test]
fn an_address_of_the_release_concerns_those_who_name_it() {
    let mut translator = in_a_cluster();
    let others = (0..200_u8).flat_map(|n| {
        let name = format!("other-{n}");
        let mut addresses = slice("c", &name, 0, 443, &[]);
        if let Object::EndpointSlice(slice) = &mut addresses {
            slice.addresses = vec![IpAddr::from([10, 245, 0, n])];
        }
        [
            service("c", &name, &[443]),
            addresses,
            route(
                "c",
                &name,
                1,
                vec![parent("ListenerSet", None, "others", None)],
                &["c.test"],
                vec![backend("c", &name, 443, 1)],
            ),
        ]
    });
    let listener = passthrough("web", "c.test");
    let listeners = set("c", "others", 1, "one", vec![listener]);
    translator.apply(others.chain([listeners]).map(Change::Put));
    let backends = translator.resources().keys();
    let backends = backends.filter(|key| key.kind() == ResourceKind::Backend);
    assert_eq!(backends.count(), 201);
    translator.apply([slice_of(1, &["10.244.0.5"])]);
    // While it has no other endpoint, the route does not use the backend.
    for (change, work) in [
        (
            proxies("proxies", &["10.244.0.5", "10.244.0.6"], &[]),
            (1, 1),
        ),
        (reached_at(&[("10.244.0.5", 8443)]), (0, 1)),
        (reached_at(&[("10.246.0.1", 8443)]), (0, 1)),
        (proxies("proxies", &["10.244.0.6"], &[]), (1, 1)),
        (proxies("proxies", &["10.244.0.7"], &[]), (0, 0)),
    ] {
        let work_done = translator.apply([change]).work;
        assert_eq!((work_done.backends, work_done.routes), work);
    }
}

/// A Secret with a certificate of its own for `a.b.test`.
fn secret_with(params: &CertificateParams, pair: &KeyPair) -> Object {
    let certificate = params.self_signed(pair).expect("a certificate");
    let mut object = secret("b", "tls", Holds::Pair(0));
    if let Object::Secret(secret) = &mut object {
        secret.certificate = Some(Arc::from(certificate.pem().into_bytes()));
        secret.private_key = Some(Arc::new(pair.serialize_pem().into_bytes().into()));
    }
    object
}

/// Reason and message of `ResolvedRefs` of a listener that ends TLS with this Secret.
fn resolved_refs(secret: Object, settings: Settings) -> (String, String) {
    let mut translator = Translator::new(settings);
    let tls = Tls::Terminate("b".into(), "tls".into());
    let listener = listener("web", 443, Protocol::Tls, "a.b.test", Some(tls));
    translator.apply(
        [
            our_class(),
            gateway("one", Vec::new(), NamespaceScope::All),
            set("b", "mine", 1, "one", vec![listener]),
            secret,
        ]
        .map(Change::Put),
    );
    let Status::Listeners(status) = &translator.statuses()[&key(Kind::ListenerSet, "b", "mine")]
    else {
        panic!("a set has listeners")
    };
    let refs = status.listeners[0].conditions.iter();
    let mut refs = refs.filter(|c| c.kind.as_str() == "ResolvedRefs");
    let refs = refs.next().expect("the condition");
    (refs.reason.as_str().to_owned(), refs.message.clone())
}

fn params() -> CertificateParams {
    CertificateParams::new(vec!["a.b.test".to_owned()]).expect("a name")
}

#[test]
fn rsa_keys_are_bounded() {
    let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072).expect("a key");
    let long = secret_with(&params(), &pair);
    for (bits, served) in [(2048, false), (3071, false), (3072, true), (4096, true)] {
        let mut settings = settings();
        settings.policy.max_rsa_bits = bits;
        let (reason, message) = resolved_refs(long.clone(), settings);
        if served {
            assert_eq!(reason, "ResolvedRefs", "{message}");
        } else {
            assert_eq!(reason, "InvalidCertificateRef");
            assert!(message.contains("3072 bits"), "{message}");
            assert!(!message.contains("PRIVATE"));
        }
    }
}

#[test]
fn the_size_of_a_chain_is_bounded() {
    let pair = KeyPair::generate().expect("a key");
    let with = |bytes: usize| {
        let mut params = params();
        let extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1], vec![0; bytes]);
        params.custom_extensions.push(extension);
        resolved_refs(secret_with(&params, &pair), settings())
    };
    assert_eq!(with(MAX_CHAIN_BYTES - 1024).0, "ResolvedRefs");
    let (reason, message) = with(MAX_CHAIN_BYTES);
    assert_eq!(reason, "InvalidCertificateRef");
    assert!(message.contains("more than 32768 cost all"), "{message}");
}

#[test]
fn a_listener_has_the_name_of_each_of_its_certificates_once() {
    let tls = Tls::Terminate("a".into(), "one".into());
    let mut web = listener("web", 443, Protocol::Https, "web.a.test", Some(tls));
    let certificates = &mut web.tls.as_mut().expect("TLS").certificates;
    *certificates = ["one", "two", "one", "one"]
        .map(|name| {
            let mut reference = certificates[0].clone();
            reference.target = ObjectName::new("a", name);
            reference
        })
        .to_vec();
    let mut translator = Translator::new(settings());
    let gateway = gateway("one", Vec::new(), NamespaceScope::All);
    let mine = set("a", "mine", 1, "one", vec![web]);
    let secrets = ["one", "two"].map(|name| secret("a", name, Holds::Pair(0)));
    let objects = [our_class(), gateway, mine].into_iter().chain(secrets);
    translator.apply(objects.map(Change::Put));
    let is_listener = |key: &&Arc<ResourceKey>| key.kind() == ResourceKind::Listener;
    let key = translator.resources().keys().find(is_listener);
    let encoded = &translator.resources()[key.expect("a listener")];
    let Some(resource::Resource::Listener(of)) = encoded.decode() else {
        panic!("a listener")
    };
    let Some(proto::listener::Protocol::Http(http)) = of.protocol else {
        panic!("{of:?}")
    };
    let terminate = http.terminate.expect("TLS");
    assert_eq!(terminate.certificates, ["a/one", "a/two"]);
}
