//! Batches: their order does not matter, a snapshot stays true, and one edit is little work.

use futures::FutureExt;

use super::*;
use crate::concerned::TenantKey;

#[test]
fn order_within_and_between_batches_does_not_matter() {
    let route_a = || {
        route(
            "team-a/web",
            1,
            &[(A, "a.example.com", "a.example.com")],
            &[("team-a/web:443", 1), ("", 0)],
        )
    };
    let mut h = Harness::new();
    // Route and backend reference first, then backend, then listener.
    assert_eq!(h.apply(vec![route_a()]), []);
    assert_eq!(
        h.apply(vec![backend("team-a/web:443", &["127.0.0.1:7"])]),
        []
    );
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoBind));
    assert_eq!(h.apply(vec![listener(A, "a.example.com")]), []);
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    // The listener moves and takes its routes along.
    assert_eq!(h.apply(vec![listener_on(A, 9, "*.example.com", None)]), []);
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoBind));
    let moved = BindKey { port: 9, ..BIND };
    assert_eq!(
        h.select_on(&moved, "a.example.com"),
        found(A, Some("team-a/web"))
    );
    assert_eq!(h.select_on(&moved, "b.example.com"), found(A, None));
    // Gone and back.
    h.remove(vec![key(ResourceKind::Listener, A)]);
    assert_eq!(h.published.load().binds().count(), 0);
    assert_eq!(h.apply(vec![listener(A, "a.example.com")]), []);
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    // A removed backend stays referenced, without endpoints; removed routes let it go.
    h.remove(vec![key(ResourceKind::Backend, "team-a/web:443")]);
    assert_eq!(h.state.dump().backends.len(), 1);
    h.remove(vec![key(ResourceKind::TlsRoute, "team-a/web")]);
    assert_eq!(h.state.dump().backends.len(), 0);
    assert_eq!(h.state.tables.len(), 0);
}

#[test]
fn a_snapshot_stays_true_while_somebody_holds_it() {
    let mut h = Harness::new();
    let to = |backend| {
        let names = (A, "a.example.com", "a.example.com");
        route("team-a/web", 1, &[names], &[(backend, 1)])
    };
    h.apply(vec![
        listener(A, "a.example.com"),
        to("team-a/web:1"),
        backend("team-a/web:1", &["127.0.0.1:1"]),
    ]);
    let port = |snapshot: &Snapshot| {
        let name = Hostname::parse("a.example.com").unwrap();
        let route = snapshot.select(&BIND, Some(&name)).unwrap().route.unwrap();
        match route.pick(snapshot, 0) {
            Pick::Endpoint(address, _) => address.port(),
            other => panic!("{other:?}"),
        }
    };
    let first = h.published.load_full();
    // One change, as the operator makes it: the route leads elsewhere, and its old backend goes.
    h.counter += 1;
    let change = Change {
        generation: vestibule_stream::Generation::new(1, h.counter),
        full: false,
        upserts: [
            to("team-a/web:2"),
            backend("team-a/web:2", &["127.0.0.1:2"]),
        ]
        .map(|resource| (resource.key().unwrap(), resource))
        .into(),
        removals: vec![key(ResourceKind::Backend, "team-a/web:1")],
    };
    assert_eq!(h.state.apply(&change, &mut NoSockets), []);
    let second = h.published.load_full();
    // A third one takes the first one's slot, and the second one moves.
    h.apply(vec![
        backend("team-a/web:2", &["127.0.0.1:3"]),
        backend("team-a/web:4", &["127.0.0.1:4"]),
    ]);
    assert_eq!((port(&first), port(&second)), (1, 2));
    assert_eq!(port(&h.published.load()), 3);
    assert_eq!(h.state.dump().backends.len(), 2);
}

/// The work of one route edit, with `routes` routes on one listener and as many listeners.
fn work_of_one_edit(routes: usize) -> Work {
    let mut h = Harness::new();
    let name = |n: usize| format!("team-a/r{n}");
    let host = |n: usize| format!("h{n}.example.com");
    let mut upserts = vec![listener(A, "*.example.com")];
    for n in 0..routes {
        let listener_name = format!("ListenerSet/team-b/s{n}/tls");
        upserts.push(listener(&listener_name, &format!("h{n}.example.org")));
        upserts.push(route(
            &name(n),
            1,
            &[(A, &host(n), &host(n))],
            &[("team-a/web:443", 1)],
        ));
    }
    assert_eq!(h.apply(upserts), []);
    let before = h.state.work();
    let edited = route(
        &name(3),
        2,
        &[(A, &host(3), &host(3))],
        &[("team-a/other:443", 1)],
    );
    assert_eq!(h.apply(vec![edited]), []);
    h.state.work() - before
}

#[test]
fn one_edit_is_the_same_work_at_ten_and_at_twenty_thousand_routes() {
    let few = work_of_one_edit(10);
    assert_eq!(few, work_of_one_edit(20_000));
    assert_eq!((few.places, few.route_entries), (1, 2));
}

const OWN: &str = "Gateway/infra/edge/own";

/// A state with two wildcards, each with so many routes of as many tenants: `*.example.com` on one listener of the
/// Gateway, and `*.example.org` with a listener for each route.
fn with_wildcards(routes: usize) -> Harness {
    let mut h = Harness::new();
    let mut upserts = vec![listener(OWN, "*.example.com")];
    for n in 0..routes {
        let own = format!("ListenerSet/team-{n}/web/tls");
        let (com, org) = (format!("h{n}.example.com"), format!("h{n}.example.org"));
        upserts.push(listener(&own, &org));
        let names = [(OWN, &*com, &*com), (&*own, &*org, &*org)];
        upserts.push(route(&format!("team-{n}/web"), 1, &names, &[]));
    }
    assert_eq!(h.apply(upserts), []);
    h
}

/// Changes that take a name or a wildcard from somebody.
fn taking(wildcard: bool) -> [(Vec<Resource>, Vec<ResourceKey>); 4] {
    let gone = |name: &str| (Vec::new(), vec![key(ResourceKind::Listener, name)]);
    if wildcard {
        [
            (vec![owner("*.example.com", "team-z")], Vec::new()),
            (vec![owner("*.example.org", "team-z")], Vec::new()),
            (vec![listener(ANY, "*.example.org")], Vec::new()),
            gone(OWN),
        ]
    } else {
        [
            (vec![owner("h3.example.com", "team-z")], Vec::new()),
            (vec![owner("h4.example.org", "team-z")], Vec::new()),
            (vec![listener(ANY, "h5.example.com")], Vec::new()),
            gone("ListenerSet/team-6/web/tls"),
        ]
    }
}

/// How much each of these changes had looked at.
fn looked_at(routes: usize, wildcard: bool) -> [u64; 4] {
    let mut h = with_wildcards(routes);
    taking(wildcard).map(|(upserts, removals)| {
        let before = h.state.work();
        let change = h.change(upserts, removals);
        assert_eq!(h.state.apply(&change, &mut NoSockets), []);
        (h.state.work() - before).looked_at
    })
}

#[test]
fn a_name_that_is_taken_away_costs_one_look_however_many_routes_there_are() {
    let few = looked_at(10, false);
    assert_eq!(few, [2; 4]);
    assert_eq!(few, looked_at(20_000, false));
}

#[test]
fn a_wildcard_that_is_taken_away_costs_a_look_at_each_of_its_names_and_routes() {
    // The third change gives no names to another listener, because each has a listener of its own.
    assert_eq!(looked_at(10, true), [10, 10, 0, 10]);
    assert_eq!(looked_at(2_000, true), [2_000, 2_000, 0, 2_000]);
}

/// How much changes of wildcards had looked at that have three names inside, beside so many other routes.
fn looked_at_inside(routes: usize) -> [u64; 5] {
    let mut h = with_wildcards(routes);
    let mut upserts = Vec::new();
    for n in 0..3 {
        let own = format!("ListenerSet/part-{n}/web/tls");
        let com = format!("x{n}.part.example.com");
        let org = format!("x{n}.part.example.org");
        upserts.push(listener(&own, &org));
        let names = [(OWN, &*com, &*com), (&*own, &*org, &*org)];
        upserts.push(route(&format!("part-{n}/web"), 1, &names, &[]));
    }
    assert_eq!(h.apply(upserts), []);
    let changes = [
        (vec![owner("*.part.example.com", "team-z")], Vec::new()),
        (vec![owner("*.part.example.org", "team-z")], Vec::new()),
        (vec![listener(ANY, "*.part.example.com")], Vec::new()),
        (vec![listener(ANY, "*.part.example.org")], Vec::new()),
        (Vec::new(), vec![key(ResourceKind::Listener, ANY)]),
    ];
    changes.map(|(upserts, removals)| {
        let before = h.state.work();
        let change = h.change(upserts, removals);
        assert_eq!(h.state.apply(&change, &mut NoSockets), []);
        (h.state.work() - before).looked_at
    })
}

#[test]
fn a_wildcard_costs_a_look_at_what_lies_inside_it_however_much_lies_beside_it() {
    let few = looked_at_inside(10);
    assert_eq!(few, [3, 3, 3, 0, 0]);
    assert_eq!(few, looked_at_inside(20_000));
}

#[test]
fn a_wildcard_around_names_with_owners_of_their_own_concerns_nobody() {
    let mut h = with_wildcards(10);
    let domains = ["com", "org"];
    let hosts = (0..10).flat_map(|n| domains.map(|domain| (n, format!("h{n}.example.{domain}"))));
    let owned = hosts.map(|(n, host)| owner(&host, &format!("team-{n}")));
    assert_eq!(h.apply(owned.collect()), []);
    let mut inbox = h.state.snapshot.concerned().subscribe();
    let (wide, theirs) = ("Gateway/infra/edge/wide", "ListenerSet/team-z/web/tls");
    for upsert in [
        listener(wide, ""),
        listener(theirs, "*.example.org"),
        owner("*.example.com", "team-z"),
        owner("*.example.org", "team-z"),
        owner("", "team-z"),
    ] {
        assert_eq!(h.apply(vec![upsert]), []);
        assert_eq!(inbox.next().now_or_never(), None);
    }
    h.remove(vec![
        owner("", "").key().unwrap(),
        owner("*.example.com", "").key().unwrap(),
        owner("*.example.org", "").key().unwrap(),
        key(ResourceKind::Listener, wide),
        key(ResourceKind::Listener, theirs),
    ]);
    assert_eq!(inbox.next().now_or_never(), None);
    // Whoever has no owner of their own is concerned.
    h.remove(vec![owner("h3.example.com", "").key().unwrap()]);
    inbox.next().now_or_never();
    assert_eq!(h.apply(vec![owner("*.example.com", "team-z")]), []);
    let account = h.state.accounts.find("team-3").unwrap();
    let told = inbox.next().now_or_never().flatten();
    assert_eq!(told, Some(vec![TenantKey::of(&account)]));
}

/// How long this thread was on a processor so far.
fn on_cpu() -> std::time::Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = text.split(' ').next().unwrap().parse().unwrap();
    std::time::Duration::from_nanos(nanos)
}

/// How long changes of wildcards take with 40,000 routes. Run it optimised, alone and with `--nocapture`.
#[test]
#[ignore = "it measures, and asserts nothing about the figures"]
#[allow(clippy::print_stderr, reason = "a measurement for people")]
fn how_long_a_change_of_a_wildcard_takes() {
    let mut h = with_wildcards(40_000);
    let changes = taking(true).into_iter().chain([
        (vec![owner("*.example.org", "team-y")], Vec::new()),
        (vec![listener(OWN, "*.example.com")], Vec::new()),
        (vec![listener("ListenerSet/team-z/web/tls", "")], Vec::new()),
        (vec![owner("", "team-z")], Vec::new()),
        (Vec::new(), vec![owner("*.example.org", "").key().unwrap()]),
        (vec![owner("*.org", "team-x")], Vec::new()),
    ]);
    for (upserts, removals) in changes {
        let what = format!("{:?} {removals:?}", upserts.first().map(|of| &of.name));
        let change = h.change(upserts, removals);
        let (before, begun) = (h.state.work(), on_cpu());
        h.state.apply(&change, &mut NoSockets);
        let took = on_cpu().saturating_sub(begun);
        let looked_at = (h.state.work() - before).looked_at;
        eprintln!("{took:?}, {looked_at} looked at: {what}");
    }
}
