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

/// The operator leaves out these endpoints by the same rules. It may have other rules for a moment, as during an
/// upgrade.
#[test]
fn endpoints_that_no_backend_may_have_do_not_stop_the_others() {
    let mut h = Harness::with(EndpointRules {
        denied: vec![AddressBlock::parse("10.96.0.0/12").unwrap()],
        ..EndpointRules::default()
    });
    let endpoints = |h: &Harness, name: &str| -> Vec<String> {
        let backend = h.state.present(name).into_iter();
        let all = backend.flat_map(|backend| backend.target.endpoints.iter());
        all.map(ToString::to_string).collect()
    };
    let rejects = h.apply(vec![
        backend(
            "team-a/mixed:443",
            &["127.0.0.1:443", "10.0.0.1:443", "10.97.0.1:443"],
        ),
        backend("team-a/good:443", &["10.0.0.2:443"]),
        backend("team-b/bad:443", &["127.0.0.1:443", "10.97.0.1:443"]),
    ]);
    let invalid = ("team-b/bad:443".to_owned(), "InvalidEndpoint".to_owned());
    assert_eq!(rejects, [invalid]);
    assert_eq!(endpoints(&h, "team-a/mixed:443"), ["10.0.0.1:443"]);
    assert_eq!(endpoints(&h, "team-a/good:443"), ["10.0.0.2:443"]);
    assert!(endpoints(&h, "team-b/bad:443").is_empty());
    assert_eq!(h.state.counts().backends, 2);
    // The backend without any is a reject, and counts as such.
    assert_eq!(h.state.endpoints_left_out(), 2);

    // The next version has the others only.
    assert_eq!(
        h.apply(vec![backend("team-a/mixed:443", &["10.0.0.3:443"])]),
        []
    );
    assert_eq!(endpoints(&h, "team-a/mixed:443"), ["10.0.0.3:443"]);
    assert_eq!(h.state.endpoints_left_out(), 2);
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
