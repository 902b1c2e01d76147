//! Which listener, route and backend a connection gets.

use super::*;

#[test]
fn most_specific_listener_then_its_own_routes_only() {
    let mut h = Harness::new();
    let rejects = h.apply(vec![
        listener(ANY, ""),
        listener(A, "*.example.com"),
        listener(B, "deep.a.example.com"),
        route("infra/all", 1, &[(ANY, "", "")], &[]),
        route(
            "team-a/wild",
            5,
            &[
                (A, "*.example.com", "*.com"),
                (A, "x.example.com", "x.example.com"),
            ],
            &[],
        ),
        route("team-a/old", 1, &[(A, "*.example.com", "*.com")], &[]),
    ]);
    assert_eq!(rejects, []);
    assert_eq!(h.select("other.org"), found(ANY, Some("infra/all")));
    // One or more labels, never the apex.
    assert_eq!(h.select("example.com"), found(ANY, Some("infra/all")));
    assert_eq!(h.select("a.b.example.com"), found(A, Some("team-a/old")));
    // The hostname as written outranks age.
    assert_eq!(h.select("X.Example.com."), found(A, Some("team-a/wild")));
    // Matched, and no route: nobody else's route is used.
    assert_eq!(h.select("deep.a.example.com"), found(B, None));
    // No server name: the listener matches, no route does.
    assert_eq!(h.select(""), found(ANY, None));
    h.remove(vec![key(ResourceKind::Listener, ANY)]);
    assert_eq!(h.select(""), Err(Unmatched::NoServerName));
    assert_eq!(h.select("other.org"), Err(Unmatched::NoListener));
    let elsewhere = BindKey { port: 1, ..BIND };
    assert_eq!(h.select_on(&elsewhere, "a.org"), Err(Unmatched::NoBind));
}

#[test]
fn picks_follow_weights_and_invalid_references_keep_their_share() {
    let mut h = Harness::new();
    h.apply(vec![
        backend("a/one:1", &["127.0.0.1:1", "127.0.0.1:2"]),
        backend("a/none:1", &[]),
        route(
            "a/mixed",
            1,
            &[],
            &[("a/one:1", 2), ("", 1), ("a/none:1", 1), ("a/zero:1", 0)],
        ),
        route("a/zero", 1, &[], &[("a/one:1", 0)]),
        route("a/empty", 1, &[], &[]),
    ]);
    let pick = |name: &str, random| {
        let route = &h.state.routes.get(name).unwrap().route;
        route.pick(h.state.snapshot(), random)
    };
    let mut counts = [0_u32; 4];
    for step in 0..4096_u64 {
        // Evenly spread over both halves.
        let random = (step << 52) | ((step & 1) << 31);
        match pick("a/mixed", random) {
            Pick::Endpoint(address, _) => counts[usize::from(address.port()) - 1] += 1,
            Pick::InvalidBackend => counts[2] += 1,
            Pick::NoEndpoints => counts[3] += 1,
            Pick::NoWeight => panic!("there is weight"),
        }
    }
    assert_eq!(counts, [1024, 1024, 1024, 1024]);
    assert!(matches!(pick("a/mixed", u64::MAX), Pick::NoEndpoints));
    assert!(matches!(pick("a/zero", 7), Pick::NoWeight));
    assert!(matches!(pick("a/empty", 7), Pick::NoWeight));
}
