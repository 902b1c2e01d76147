//! Owners of hostnames: the proxy ignores listeners and routes of a namespace for a name that another one owns.

use super::*;

const OWN: &str = "Gateway/infra/edge/own";
const WILD_B: &str = "ListenerSet/team-b/wild/tls";

/// `names` are those for which a route is on a listener, each matched as it is written.
fn route_on(name: &str, listener: &str, names: &str) -> Resource {
    route(name, 1, &[(listener, names, names)], &[])
}

fn drop_owner(hostname: &str) -> ResourceKey {
    owner(hostname, "").key().unwrap()
}

#[test]
fn another_tenants_listeners_are_left_out_for_an_owned_name() {
    let mut h = Harness::new();
    let all = vec![
        owner("web.example.com", "team-a"),
        listener(OWN, ""),
        route_on("infra/all", OWN, ""),
        listener(B, "web.example.com"),
        listener(WILD_B, "*.example.com"),
        route_on("team-b/web", B, "web.example.com"),
        route_on("team-b/wild", WILD_B, "*.example.com"),
    ];
    assert_eq!(h.apply(all), []);
    // The same name, and a wildcard around it: the Gateway's own catch-all is what is left.
    assert_eq!(h.select("web.example.com"), found(OWN, Some("infra/all")));
    let others = found(WILD_B, Some("team-b/wild"));
    assert_eq!(h.select("other.example.com"), others);
    // On a port where the owner has nothing, nobody serves the name.
    let elsewhere = BindKey { port: 9, ..BIND };
    assert_eq!(
        h.apply(vec![listener_on(B, 9, "web.example.com", None)]),
        []
    );
    assert_eq!(
        h.select_on(&elsewhere, "web.example.com"),
        Err(Unmatched::NoListener)
    );
    // The same in plaintext.
    let plain = BindKey { port: 80, ..BIND };
    assert_eq!(h.apply(vec![http_on(B, 80, "web.example.com", None)]), []);
    assert_eq!(
        h.select_on(&plain, "web.example.com"),
        Err(Unmatched::NoListener)
    );
    // The owner's is served, beside the wildcard.
    let first = listener(A, "web.example.com");
    assert_eq!(
        h.apply(vec![first, route_on("team-a/web", A, "web.example.com")]),
        []
    );
    assert_eq!(h.select("web.example.com"), found(A, Some("team-a/web")));
}

#[test]
fn the_owner_of_a_wildcard_does_not_own_what_others_own_inside_it() {
    let mut h = Harness::new();
    let all = vec![
        owner("*.example.com", "team-a"),
        owner("*.b.example.com", "team-b"),
        owner("c.b.example.com", "team-a"),
        listener(A, "*.example.com"),
        listener(B, ""),
    ];
    assert_eq!(h.apply(all), []);
    assert_eq!(h.select("x.example.com"), found(A, None));
    assert_eq!(h.select("x.b.example.com"), found(B, None));
    assert_eq!(h.select("c.b.example.com"), found(A, None));
    // Nobody owns it, so the listener for all names serves it, whoever's it is.
    assert_eq!(h.select("example.com"), found(B, None));
    assert_eq!(h.select(""), found(B, None));
    // An owner of all names owns every name that has no owner of its own, and connections without a name.
    assert_eq!(h.apply(vec![owner("", "team-a")]), []);
    assert_eq!(h.select("example.org"), Err(Unmatched::NoListener));
    assert_eq!(h.select(""), Err(Unmatched::NoServerName));
    assert_eq!(h.select("x.b.example.com"), found(B, None));
}

#[test]
fn on_the_gateways_own_listener_each_route_is_judged() {
    let mut h = Harness::new();
    let shared = |shared| {
        let mut made = route_on("team-c/web", OWN, "web.example.com");
        if let Some(Wire::TlsRoute(route)) = &mut made.resource {
            route.created = 0;
            route.attachments[0].hostnames[0].shared = shared;
        }
        made
    };
    let all = vec![
        listener(OWN, "*.example.com"),
        owner("web.example.com", "team-a"),
        // As early as the owner's, and before it by name.
        route_on("aaa/web", OWN, "web.example.com"),
        route_on("aaa/wild", OWN, "*.example.com"),
        shared(false),
    ];
    assert_eq!(h.apply(all), []);
    assert_eq!(h.select("web.example.com"), found(OWN, None));
    assert_eq!(h.select("x.example.com"), found(OWN, Some("aaa/wild")));
    assert_eq!(
        h.apply(vec![route_on("infra/all", OWN, "*.example.com")]),
        []
    );
    assert_eq!(h.select("web.example.com"), found(OWN, Some("infra/all")));
    assert_eq!(
        h.apply(vec![route_on("team-a/web", OWN, "web.example.com")]),
        []
    );
    assert_eq!(h.select("web.example.com"), found(OWN, Some("team-a/web")));
    // Sharing lets one more in, by the API's order, and ends at once.
    assert_eq!(h.apply(vec![shared(true)]), []);
    assert_eq!(h.select("web.example.com"), found(OWN, Some("team-c/web")));
    assert_eq!(h.apply(vec![shared(false)]), []);
    assert_eq!(h.select("web.example.com"), found(OWN, Some("team-a/web")));
    // Without an owner all are equal.
    h.remove(vec![drop_owner("web.example.com")]);
    assert_eq!(h.select("web.example.com"), found(OWN, Some("team-c/web")));
}

#[test]
fn a_name_changes_hands_within_one_batch() {
    let mut h = Harness::new();
    let all = vec![
        listener(A, "web.example.com"),
        listener(B, "*.example.com"),
        owner("web.example.com", "team-a"),
    ];
    assert_eq!(h.apply(all), []);
    let before = h.published.load_full();
    assert_eq!(h.apply(vec![owner("web.example.com", "team-b")]), []);
    assert_eq!(h.select("web.example.com"), found(B, None));
    // A decision by the older snapshot still sees the older owner.
    let name = Hostname::parse("web.example.com").unwrap();
    assert_eq!(&*before.select(&BIND, Some(&name)).unwrap().listener.key, A);
    h.remove(vec![drop_owner("web.example.com")]);
    assert_eq!(h.select("web.example.com"), found(A, None));
}

#[test]
fn another_gateways_owners_say_nothing_here() {
    let mut h = Harness::new();
    let mut other = owner("web.example.com", "team-b");
    if let Some(Wire::HostnameOwner(wire)) = &mut other.resource {
        wire.gateway = "infra/other".into();
        other.name = "infra/other/web.example.com".into();
    }
    assert_eq!(h.apply(vec![listener(A, "web.example.com"), other]), []);
    assert_eq!(h.select("web.example.com"), found(A, None));
    let dump = serde_json::to_value(h.state.dump().hostname_owners).unwrap();
    assert_eq!(dump[0]["gateway"], "infra/other");
    assert_eq!(dump[0]["tenant"], "team-b");
    h.remove(vec![key(
        ResourceKind::HostnameOwner,
        "infra/other/web.example.com",
    )]);
    assert_eq!(h.state.counts().hostname_owners, 0);
}

#[test]
fn an_owner_that_is_not_what_it_is_called_is_rejected() {
    let mut h = Harness::new();
    let named = |name: &str, hostname: &str, tenant: &str| {
        let made = owner(hostname, tenant);
        Resource {
            name: name.into(),
            ..made
        }
    };
    let cases = [
        (
            "InvalidName",
            named("infra/edge/b.example.com", "a.example.com", "team-a"),
        ),
        (
            "InvalidName",
            named("infra/other/a.example.com", "a.example.com", "team-a"),
        ),
        (
            "InvalidName",
            named("edge/a.example.com", "a.example.com", "team-a"),
        ),
        (
            "InvalidHostname",
            named("infra/edge/a..b", "a..b", "team-a"),
        ),
        (
            "MissingField",
            named("infra/edge/a.example.com", "a.example.com", ""),
        ),
    ];
    for (reason, resource) in cases {
        let name = resource.name.clone();
        assert_eq!(h.apply(vec![resource]), [(name, reason.to_owned())]);
    }
    assert_eq!(h.state.counts().hostname_owners, 0);
}

#[test]
fn paths_are_shared_of_one_name_and_with_http_routes_alone() {
    let mut h = Harness::new();
    assert_eq!(h.apply(vec![http_on(OWN, 80, "*.example.com", None)]), []);
    let wire = |hostname: &str, shared: bool, paths: &[&str]| proto::Attachment {
        listener: OWN.into(),
        hostnames: vec![proto::RouteHostname {
            r#match: hostname.into(),
            rank: hostname.into(),
            shared,
            paths: paths.iter().map(ToString::to_string).collect(),
        }],
    };
    let http = |attachment: proto::Attachment| {
        let route = proto::HttpRoute {
            tenant: "team-b".into(),
            attachments: vec![attachment],
            rules: vec![proto::HttpRule::default()],
            ..Default::default()
        };
        Resource::new("team-b/web", Wire::HttpRoute(route))
    };
    let tls = |attachment: proto::Attachment| {
        let route = proto::TlsRoute {
            tenant: "team-b".into(),
            attachments: vec![attachment],
            ..Default::default()
        };
        Resource::new("team-b/web", Wire::TlsRoute(route))
    };
    let name = "web.example.com";
    for bad in [
        tls(wire(name, false, &["/api"])),
        http(wire("*.example.com", false, &["/api"])),
        http(wire("", false, &["/api"])),
        http(wire(name, true, &["/api"])),
        http(wire(name, false, &["/"])),
        http(wire(name, false, &[""])),
        http(wire(name, false, &["/api", "/api/.."])),
        http(wire(name, false, &["/.well-known/acme-challenge"])),
    ] {
        let rejected = h.apply(vec![bad.clone()]);
        let expected = [("team-b/web".to_owned(), "InvalidPaths".to_owned())];
        assert_eq!(rejected, expected, "{bad:?}");
    }
    assert_eq!(
        h.apply(vec![http(wire(name, false, &["/b", "/api", "/b"]))]),
        []
    );
    let dump = serde_json::to_value(h.state.dump().http_routes).unwrap();
    let paths = &dump[0]["attachments"][0]["paths"];
    assert_eq!(*paths, serde_json::json!(["/api", "/b"]));
}

#[test]
fn a_request_is_of_the_namespace_for_which_its_host_is_served() {
    let mut h = Harness::new();
    let of_c = "ListenerSet/team-c/api/http";
    let all = vec![
        owner("web.example.com", "team-a"),
        http_on(OWN, 80, "", None),
        http_on(of_c, 80, "api.example.net", None),
    ];
    assert_eq!(h.apply(all), []);
    let plain = BindKey { port: 80, ..BIND };
    let of = |h: &Harness, bind: &BindKey, host: &str| {
        let host = Hostname::parse(host).unwrap();
        let snapshot = h.published.load();
        let namespace = snapshot.namespace_of(bind, Layer::Plain, Some(&host));
        namespace.map(ToString::to_string)
    };
    assert_eq!(of(&h, &plain, "web.example.com").as_deref(), Some("team-a"));
    assert_eq!(of(&h, &plain, "api.example.net").as_deref(), Some("team-c"));
    assert_eq!(
        of(&h, &plain, "nobodys.example.org").as_deref(),
        Some("infra")
    );
    assert_eq!(of(&h, &BIND, "web.example.com"), None);
}
