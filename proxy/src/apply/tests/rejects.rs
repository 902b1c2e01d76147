//! Resources that fail their check.

use super::*;

#[test]
fn rejected_resources_keep_their_last_good_version() {
    let mut h = Harness::new();
    assert_eq!(
        h.apply(vec![
            listener(A, "a.example.com"),
            route(
                "team-a/web",
                1,
                &[(A, "a.example.com", "a.example.com")],
                &[("team-a/web:443", 1)]
            ),
            backend("team-a/web:443", &["127.0.0.1:1"]),
        ]),
        []
    );
    let rejects = h.apply(vec![
        listener(A, "a..b"),
        listener(B, "b.example.com"),
        route("team-a/web", 1, &[(A, "*.*", "")], &[]),
        backend("team-a/web:443", &["0.0.0.0:1"]),
    ]);
    assert_eq!(
        rejects,
        [
            (A.to_owned(), "InvalidHostname".to_owned()),
            ("team-a/web".to_owned(), "InvalidHostname".to_owned()),
            ("team-a/web:443".to_owned(), "InvalidEndpoint".to_owned()),
        ]
    );
    assert_eq!(h.select("a.example.com"), found(A, Some("team-a/web")));
    assert_eq!(h.select("b.example.com"), found(B, None));
    let name = Hostname::parse("a.example.com").unwrap();
    let snapshot = h.published.load();
    let selection = snapshot.select(&BIND, Some(&name)).unwrap();
    assert!(matches!(
        selection.route.unwrap().pick(&snapshot, 0),
        Pick::Endpoint(..)
    ));
}

#[test]
fn unknown_resources_are_rejected() {
    let mut h = Harness::new();
    let mut unknown = listener(A, "a.example.com");
    unknown.resource = None;
    let change = Change {
        generation: vestibule_stream::Generation::new(1, 1),
        full: true,
        upserts: vec![(key(ResourceKind::Listener, A), unknown)],
        removals: vec![],
    };
    let rejects = h.state.apply(&change, &mut NoSockets);
    assert_eq!(
        reasons(rejects),
        [(A.to_owned(), "UnknownResource".to_owned())]
    );
}
