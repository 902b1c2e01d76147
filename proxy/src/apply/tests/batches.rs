//! Batches: their order does not matter, a snapshot stays true, and one edit is little work.

use super::*;

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
fn a_wildcard_that_is_taken_away_costs_one_look_at_each_of_its_routes() {
    assert_eq!(looked_at(10, true), [10; 4]);
    assert_eq!(looked_at(2_000, true), [2_000; 4]);
}
