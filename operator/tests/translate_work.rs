//! One edit costs the same whoever else is there: translated units and bytes on the stream are
//! counted at 10 and at 2,500 ListenerSets.

use std::sync::Arc;
use vestibule_model::claim::ClaimKey;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::ServiceType;
use vestibule_operator::translate::{Change, Output, Translator, Work};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::resource;
use vestibule_stream::{ResourceKey, ResourceKind};

/// A world of `sets` ListenerSets over 50 namespaces, each with a passthrough and a terminate
/// listener and two routes.
fn world(sets: usize) -> Translator {
    let mut objects = vec![
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::All,
        ),
    ];
    for n in 0..sets {
        let tenant = format!("tenant-{}", n % 50);
        let name = format!("set-{n}");
        objects.push(set(
            &tenant,
            &name,
            1,
            "one",
            vec![
                passthrough("pass", &format!("pass-{n}.example.com")),
                listener(
                    "end",
                    443,
                    vestibule_model::protocol::Protocol::Tls,
                    &format!("end-{n}.example.com"),
                    Some(Tls::Terminate(tenant.clone(), format!("certificate-{n}"))),
                ),
            ],
        ));
        for (section, host) in [("pass", "pass"), ("end", "end")] {
            objects.push(route_of(
                n,
                section,
                &[&format!("{host}-{n}.example.com")],
                "web",
            ));
        }
        for (to, address) in [("web", 1), ("next", 3)] {
            let to = format!("{to}-{n}");
            objects.push(service(&tenant, &to, &[1]));
            objects.push(slice(&tenant, &to, 0, 1, &[address]));
        }
        objects.push(secret(&tenant, &format!("certificate-{n}"), Holds::Pair(0)));
    }
    translated(objects)
}

fn route_of(n: usize, section: &str, hosts: &[&str], to: &str) -> Object {
    let tenant = format!("tenant-{}", n % 50);
    route(
        &tenant,
        &format!("route-{n}-{section}"),
        1,
        vec![parent(
            "ListenerSet",
            None,
            &format!("set-{n}"),
            Some(section),
        )],
        hosts,
        vec![backend(&tenant, &format!("{to}-{n}"), 1, 1)],
    )
}

fn wildcard_of(tenant: &str) -> Object {
    let listeners = vec![passthrough("all", "*.example.com")];
    set(tenant, "wildcard", 9, "one", listeners)
}

fn cost(output: &Output) -> (Work, usize, usize) {
    let bytes = output
        .resources
        .iter()
        .map(|(key, resource)| {
            key.name.len() + resource.as_ref().map_or(0, vestibule_stream::Encoded::len)
        })
        .sum();
    (output.work, output.resources.len(), bytes)
}

/// The costs of an edit of each kind, in a fixed order.
fn costs(mut world: Translator) -> Vec<(&'static str, (Work, usize, usize))> {
    let put = |world: &mut Translator, object| cost(&world.apply([Change::Put(object)]));
    // It is told in the statuses of all whose names it covers, and takes no route from any.
    let (winner, ..) = put(&mut world, wildcard_of("tenant-3"));
    assert_eq!(winner.routes, 0, "{winner:?}");
    vec![
        (
            "a route's backend",
            put(
                &mut world,
                route_of(7, "pass", &["pass-7.example.com"], "next"),
            ),
        ),
        (
            "a route's hostname that matches nothing any more",
            put(
                &mut world,
                route_of(7, "pass", &["elsewhere.example.com"], "next"),
            ),
        ),
        (
            "a route gone",
            cost(&world.apply([Change::Remove(key(
                Kind::TlsRoute,
                "tenant-7",
                "route-7-end",
            ))])),
        ),
        (
            "an endpoint",
            put(&mut world, slice("tenant-7", "next-7", 0, 1, &[3, 4])),
        ),
        (
            "a listener that loses",
            put(&mut world, wildcard_of("tenant-4")),
        ),
        (
            "a listener that loses a name with routes",
            put(
                &mut world,
                set(
                    "tenant-5",
                    "another",
                    9,
                    "one",
                    vec![passthrough("pass", "pass-3.example.com")],
                ),
            ),
        ),
        (
            "a set's hostname",
            put(
                &mut world,
                set(
                    "tenant-7",
                    "set-7",
                    1,
                    "one",
                    vec![passthrough("pass", "new-7.example.com")],
                ),
            ),
        ),
    ]
}

#[test]
fn one_edit_costs_the_same_at_10_and_at_2500_listener_sets() {
    let small = costs(world(10));
    let large = costs(world(2500));
    for ((what, small), (_, large)) in small.iter().zip(&large) {
        assert_eq!(small, large, "{what}");
    }
    for (what, (work, ..)) in &large {
        let most = usize::from(!what.contains("listener"));
        assert!(work.routes <= most.max(1), "{what}: {work:?}");
    }
    let (_, (work, resources, bytes)) = small[0];
    // The route and its status; the backend it left, which its sibling still uses, and the new one.
    assert_eq!(
        (
            work.routes,
            work.listeners,
            work.backends,
            work.statuses,
            resources
        ),
        (1, 0, 2, 1, 2),
        "{small:#?}"
    );
    assert!((1..1024).contains(&bytes), "{bytes} bytes");
}

/// The messages about overlaps are computed apart from the edit that causes the overlaps, a few listeners at a time.
#[test]
fn a_wide_listener_costs_its_own_edit_however_many_are_inside() {
    let there = || Change::Put(wildcard_of("tenant-3"));
    let gone = || Change::Remove(key(Kind::ListenerSet, "tenant-3", "wildcard"));
    let costs_at = |sets: usize| {
        let mut world = world(sets);
        [there(), gone(), there()].map(|change| {
            let output = world.apply_within([change], 0);
            assert!(world.is_behind());
            cost(&output)
        })
    };
    let small = costs_at(10);
    assert_eq!(small, costs_at(1000));
    let alone = |work: &Work| work.overlaps == 0 && work.listeners <= 2 && work.requests == 0;
    assert!(small.iter().all(|(work, ..)| alone(work)), "{small:?}");

    let (mut at_once, mut in_turn) = (world(1000), world(1000));
    for there_now in [true, false] {
        let change = || if there_now { there() } else { gone() };
        at_once.apply([change()]);
        in_turn.apply_within([change()], 0);
        assert_ne!(at_once.statuses(), in_turn.statuses());
        let mut passes = 0;
        while in_turn.is_behind() {
            let work = in_turn.apply_within([], 64).work;
            assert!(work.overlaps <= 64 && work.listeners <= 64, "{work:?}");
            assert_eq!(work.routes, 0);
            passes += 1;
        }
        // Of 1,000 sets with two listeners each.
        assert!((2000 / 64..=2000 / 64 + 2).contains(&passes), "{passes}");
        assert_eq!(at_once.statuses(), in_turn.statuses());
        assert_eq!(at_once.resources(), in_turn.resources());
    }
}

/// Whatever changed, a key is in memory once: the map and the encoded resource share it.
#[test]
fn a_resource_that_changes_shares_its_key_again() {
    let mut world = world(10);
    let edited = route_of(7, "pass", &["pass-7.example.com"], "next");
    let output = world.apply([Change::Put(edited)]);
    let changed = output.resources.into_iter();
    let changed: Vec<ResourceKey> = changed
        .filter_map(|(key, resource)| resource.map(|_| key))
        .collect();
    let is_route = |key: &ResourceKey| key.kind() == ResourceKind::TlsRoute;
    assert!(changed.iter().any(is_route), "{changed:?}");
    for (key, encoded) in world.resources() {
        assert!(Arc::ptr_eq(key, encoded.shared_key()), "{key}");
    }
}

/// What a Gateway sets for all of its listeners is one resource. So an edit of it looks at no listener and sends none.
#[test]
fn an_edit_of_parameters_is_one_resource_however_many_listeners_the_gateway_has() {
    let cost_at = |sets: usize| {
        let mut world = world(sets);
        let Object::GatewayClass(mut class) = our_class() else {
            unreachable!("a class")
        };
        class.parameters = Some(parameters_at("p"));
        let parameters = |service_type| Change::Put(parameters_of("p", service_type, true));
        world.apply([
            Change::Put(Object::GatewayClass(class)),
            parameters(ServiceType::ClusterIp),
        ]);
        // Another limit, and a PROXY header.
        let output = world.apply([parameters(ServiceType::NodePort)]);
        let keys: Vec<_> = output.resources.keys().collect();
        let settings = ResourceKey::new(ResourceKind::GatewaySettings, "platform/one");
        assert_eq!(keys, [&settings]);
        assert_eq!((output.work.listeners, output.work.routes), (0, 0));
        cost(&output)
    };
    assert_eq!(cost_at(10), cost_at(1000));
}

/// Every listener needs the settings of its Gateway, so that no proxy serves it by laxer ones, and every Gateway has some.
#[test]
fn each_listener_needs_settings_that_are_sent() {
    let world = world(10);
    let settings = ResourceKey::new(ResourceKind::GatewaySettings, "platform/one");
    assert!(world.resources().contains_key(&settings));
    let mut listeners = 0;
    for encoded in world.resources().values() {
        if let Some(resource::Resource::Listener(listener)) = encoded.decode() {
            assert!(listener.needs_gateway_settings);
            assert_eq!(listener.gateway, settings.name);
            listeners += 1;
        }
    }
    assert_eq!(listeners, 21);
}

/// Nor is an edit dearer below a wide hostname that thousands of listeners want.
#[test]
fn an_edit_costs_the_same_below_a_wide_name_of_many_listeners() {
    let cost_at = |wide: usize| {
        let mut world = world(10);
        world.apply((0..wide).map(|n| {
            let listeners = vec![passthrough("all", "*.example.com")];
            Change::Put(set("greedy", &format!("wide-{n}"), 9, "one", listeners))
        }));
        let edited = set(
            "tenant-7",
            "set-7",
            1,
            "one",
            vec![passthrough("pass", "new-7.example.com")],
        );
        let output = world.apply_within([Change::Put(edited)], 0);
        assert_eq!(output.work.overlaps, 0);
        cost(&output)
    };
    assert_eq!(cost_at(10), cost_at(1000));
}

/// Two who make wide listeners come and go again and again do not keep each other's neighbours from being looked at,
/// and whatever they do meanwhile, it comes out as if it had been looked at at once.
#[test]
fn listeners_that_change_while_they_are_judged_are_judged_again() {
    let (mut at_once, mut in_turn) = (world(100), world(100));
    let hosts = ["*.example.com", "pass-7.example.com", "end-3.example.com"];
    for round in 0..60_usize {
        let tenant = format!("greedy-{}", round % 3);
        let change = if round % 5 < 3 {
            let listeners = vec![passthrough("all", hosts[round % hosts.len()])];
            Change::Put(set(&tenant, "some", 9, "one", listeners))
        } else {
            Change::Remove(key(Kind::ListenerSet, &tenant, "some"))
        };
        at_once.apply([change.clone()]);
        in_turn.apply_within([change], 7);
    }
    while in_turn.is_behind() {
        in_turn.apply_within([], 7);
    }
    assert_eq!(at_once.statuses(), in_turn.statuses());
    assert_eq!(at_once.resources(), in_turn.resources());
}

/// With a grant for each tenant on one Gateway, a grant that is narrowed costs what its own tenant has there, and
/// what it closes; nobody else is looked at.
#[test]
fn a_grant_touches_its_own_namespace_alone() {
    let mut world = world(2500);
    let grant_of = |n: usize, hostnames: &[&'static str]| {
        let mut grant = hostname_grant(&format!("tenant-{n}"), &[], hostnames);
        let tenant = format!("tenant-{n}");
        grant.namespaces.names.insert(tenant.as_str().into());
        Change::Put(Object::HostnameGrant(Arc::new(grant)))
    };
    world.apply((0..50).map(|n| grant_of(n, &["*.example.com"])));
    let served = world.resources().len();
    // Of 100 listeners of tenant 7 one stays, and of its 100 routes the one on it.
    let output = world.apply([grant_of(7, &["pass-7.example.com"])]);
    assert_eq!((output.work.listeners, output.work.routes), (99, 100));
    // Tenant 7 has every fiftieth name.
    let of_tenant = |name: &str| {
        let number = name
            .rsplit_once('-')
            .unwrap()
            .1
            .trim_end_matches(".example.com");
        number.parse::<usize>().is_ok_and(|number| number % 50 == 7)
    };
    let foreign = |key: &&ResourceKey| match key.kind() {
        ResourceKind::HostnameOwner => !of_tenant(&key.name),
        _ => !key.name.contains("tenant-7/"),
    };
    assert_eq!(output.resources.keys().find(foreign), None);
    let of_others = |key: &&ObjectKey| {
        let is_own = &*key.name.namespace == "tenant-7" || &*key.name.name == "tenant-7";
        !is_own && key.kind != Kind::Gateway
    };
    assert_eq!(output.statuses.keys().find(of_others), None);
    assert!(world.resources().len() < served);
    // Back again, it is as it was.
    let output = world.apply([grant_of(7, &["*.example.com"])]);
    assert_eq!((output.work.listeners, output.work.routes), (99, 100));
    assert_eq!(world.resources().len(), served);
}

/// A route with deep hostnames on hundreds of nested wildcards: whose each hostname is depends on the Gateway, so it is
/// looked up once, and not again for each listener.
#[test]
fn the_owner_of_a_hostname_is_looked_up_once_however_many_listeners_it_is_on() {
    const HOSTNAMES: usize = 16;
    let looked_up_at = |sets: usize| {
        let mut objects = vec![our_class(), gateway("one", vec![], NamespaceScope::All)];
        let wildcards = |set: usize| {
            (0..12).map(move |n| {
                let labels = "a.".repeat(12 * set + n);
                passthrough(&format!("l{n}"), &format!("*.{labels}example.com"))
            })
        };
        objects.extend((0..sets).map(|n| {
            let listeners = wildcards(n).collect();
            set("tenant", &format!("set-{n}"), 1, "one", listeners)
        }));
        let mut world = translated(objects);
        let hostnames: Vec<String> = (0..HOSTNAMES)
            .map(|n| format!("h{n}.{}example.com", "a.".repeat(110)))
            .collect();
        let hostnames: Vec<&str> = hostnames.iter().map(String::as_str).collect();
        let parents = (0..sets).map(|n| parent("ListenerSet", None, &format!("set-{n}"), None));
        let backends = vec![backend("tenant", "web", 1, 1)];
        let deep = route("tenant", "deep", 1, parents.collect(), &hostnames, backends);
        let output = world.apply([Change::Put(deep)]);
        let listeners = output.resources.keys();
        assert!(listeners.count() > 0);
        (output.work.routes, output.work.owners)
    };
    assert_eq!(looked_up_at(1), (1, HOSTNAMES));
    assert_eq!(looked_up_at(8), (1, HOSTNAMES));
}

/// Names that are held and not made use of are judged again where their holders may have them no more, or again.
#[test]
fn idle_names_are_judged_where_something_changes_for_them() {
    const TENANTS: usize = 50;
    const NAMES: usize = 20;
    let own = || vec![passthrough("own", "own.example.com")];
    let gateways = ["one", "two"].map(|name| gateway(name, own(), NamespaceScope::All));
    let mut world = translated([our_class()].into_iter().chain(gateways));
    let held = ["one", "two"].into_iter().flat_map(|gateway| {
        let gateway = ObjectName::new("platform", gateway);
        (0..TENANTS * NAMES).map(move |n| {
            let names = pattern(&format!("idle-{n}.example.com"));
            let tenant = format!("tenant-{}", n % TENANTS);
            let key = ClaimKey::names(&gateway, &names);
            (key, Some(tenant.as_str().into()))
        })
    });
    let output = world.apply([Change::Claims(held.collect())]);
    assert_eq!(output.work.claims, 2 * TENANTS * NAMES);
    let mut judged = |object| world.apply([Change::Put(object)]).work.claims;
    assert_eq!(judged(namespace("tenant-7", &[("team", "red")])), 0);
    // By the first grant everybody else loses what they had, by another one its own have it again.
    let grant_of = |tenant: &'static str| {
        Object::HostnameGrant(Arc::new(hostname_grant(
            tenant,
            &[tenant],
            &["*.example.com"],
        )))
    };
    assert_eq!(judged(grant_of("tenant-7")), 2 * (TENANTS - 1) * NAMES);
    assert_eq!(judged(grant_of("tenant-8")), 2 * NAMES);
    assert_eq!(
        judged(gateway("two", own(), NamespaceScope::Same)),
        2 * NAMES
    );
}

/// Of those who refer into a namespace, an edit of a ReferenceGrant there judges again only those to whom the grant
/// speaks, or spoke before. Otherwise whoever writes references and grants delays everybody else's changes.
#[test]
fn a_reference_grant_touches_those_of_whom_it_speaks_alone() {
    let mut objects = vec![our_class(), gateway("one", vec![], NamespaceScope::All)];
    for tenant in ["a", "b"] {
        let tls = Tls::Terminate("certs".into(), "tls".into());
        let end = listener(
            "end",
            443,
            vestibule_model::protocol::Protocol::Tls,
            &format!("end.{tenant}.test"),
            Some(tls),
        );
        let pass = passthrough("pass", &format!("pass.{tenant}.test"));
        objects.push(set(tenant, "mine", 1, "one", vec![pass, end]));
        let parents = vec![parent("ListenerSet", None, "mine", Some("pass"))];
        let backends = vec![backend("certs", "web", 1, 1)];
        let host = format!("pass.{tenant}.test");
        objects.push(route(tenant, "r", 1, parents, &[&host], backends));
    }
    objects.push(service("certs", "web", &[1]));
    objects.push(secret("certs", "tls", Holds::Pair(0)));
    let mut world = translated(objects);
    let mut judged = |change| {
        let work = world.apply([change]).work;
        (work.listeners, work.routes)
    };
    let put = |from, to| Change::Put(grant("certs", "g", from, to));
    assert_eq!(judged(put(("ListenerSet", "elsewhere"), "Secret")), (0, 0));
    assert_eq!(judged(put(("TCPRoute", "a"), "Service")), (0, 0));
    assert_eq!(judged(put(("Unknown", "a"), "Service")), (0, 0));
    assert_eq!(judged(put(("TLSRoute", "a"), "Service")), (0, 1));
    // It spoke to one of them before.
    assert_eq!(judged(put(("TLSRoute", "b"), "Service")), (0, 2));
    let (listeners, routes) = judged(put(("ListenerSet", "b"), "Secret"));
    assert_eq!((listeners, routes), (2, 1));
    let gone = Change::Remove(key(Kind::ReferenceGrant, "certs", "g"));
    assert_eq!(judged(gone), (2, 0));
}
