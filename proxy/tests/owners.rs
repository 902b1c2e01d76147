//! On one Gateway a hostname belongs to one namespace: the ways in which another one could get its requests, tried by
//! real clients on loopback.
//!
//! The operator refuses nearly all of what is configured here. This is about a proxy that is told of it all the same.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::resource::Resource as Wire;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, ResourceKind, proto};

const NAME: &str = "web.example.com";
/// A name around which team-b has a wildcard, and nobody else anything.
const OTHER: &str = "other.example.com";
/// The Gateway's own listener, and the one of team-b.
const OWN: &str = "Gateway/infra/edge/web";
const SET_OF_B: &str = "ListenerSet/team-b/web/web";
const SET_OF_A: &str = "ListenerSet/team-a/web/web";

fn regex() -> proto::http_match::Path {
    proto::http_match::Path::Regex("/.*".into())
}

fn shared(mut route: Resource) -> Resource {
    if let Some(Wire::HttpRoute(route)) = &mut route.resource {
        route.attachments[0].hostnames[0].shared = true;
    }
    route
}

/// The route has only these paths of the name, which are shared with its namespace.
fn in_part(mut route: Resource, paths: &[&str]) -> Resource {
    if let Some(Wire::HttpRoute(route)) = &mut route.resource {
        let hostname = &mut route.attachments[0].hostnames[0];
        hostname.paths = paths.iter().map(ToString::to_string).collect();
    }
    route
}

/// Both teams' backends.
async fn backends() -> ([Echo; 2], Vec<Resource>) {
    let echoes = [Echo::start("team-a").await, Echo::start("team-b").await];
    let resources = ["team-a/web:80", "team-b/web:80"].into_iter().zip(&echoes);
    let resources = resources.map(|(name, echo)| backend(name, &[echo.address]));
    let resources = resources.collect();
    (echoes, resources)
}

/// The team whose backend answered, or the status.
async fn answered(rig: &Rig, host: &str) -> String {
    answered_at(rig, host, "/").await
}

async fn answered_at(rig: &Rig, host: &str, path: &str) -> String {
    let answer = get(rig, host, path).await;
    let by = answer.header("x-backend").map(ToOwned::to_owned);
    by.unwrap_or_else(|| answer.status.to_string())
}

fn apply(rig: &mut Rig, upserts: Vec<Resource>) {
    assert_eq!(rig.apply(upserts), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_method_or_age_takes_a_name_on_the_gateways_listener() {
    let (echoes, backends) = backends().await;
    let mut rig = Rig::start(&quiet(), |port| {
        let listener = called(OWN, http(port, "web", "", None));
        [backends.clone(), vec![listener, owner(NAME, "team-a")]].concat()
    });
    apply(&mut rig, vec![route_of("team-a", OWN, NAME, all_paths())]);
    for path in [
        regex(),
        proto::http_match::Path::Exact("/".into()),
        all_paths(),
    ] {
        for hostname in [NAME, "*.example.com", "*.com", ""] {
            apply(
                &mut rig,
                vec![route_of("team-b", OWN, hostname, path.clone())],
            );
            assert_eq!(
                answered(&rig, NAME).await,
                "team-a",
                "{hostname:?} {path:?}"
            );
            assert_eq!(answered(&rig, "WEB.example.com.").await, "team-a");
            let expected = if hostname == NAME { "404" } else { "team-b" };
            assert_eq!(answered(&rig, OTHER).await, expected, "{hostname:?}");
        }
    }
    // The owner's route is gone, and the name is no less its.
    rig.remove(ResourceKind::HttpRoute, "team-a/web");
    assert_eq!(answered(&rig, NAME).await, "404");
    // It is shared: both answer, and the name is still the owner's.
    let both = vec![
        route_of("team-a", OWN, NAME, all_paths()),
        shared(route_of(
            "team-b",
            OWN,
            NAME,
            proto::http_match::Path::Prefix("/b".into()),
        )),
    ];
    apply(&mut rig, both);
    assert_eq!(answered(&rig, NAME).await, "team-a");
    let answer = get(&rig, NAME, "/b/x").await;
    assert_eq!(answer.header("x-backend"), Some("team-b"));
    assert!(echoes.iter().all(|echo| echo.requests() > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_for_the_name_or_around_it_gets_none_of_its_requests() {
    let (_echoes, backends) = backends().await;
    for hostname in [NAME, "*.example.com", ""] {
        let rig = Rig::start(&quiet(), |port| {
            let all = vec![
                called(SET_OF_B, http(port, "web", hostname, None)),
                owner(NAME, "team-a"),
                route_of("team-b", SET_OF_B, hostname, all_paths()),
            ];
            [backends.clone(), all].concat()
        });
        // The owner has nothing on this port.
        assert_eq!(answered(&rig, NAME).await, "404", "{hostname:?}");
        if hostname != NAME {
            assert_eq!(answered(&rig, OTHER).await, "team-b", "{hostname:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_changes_hands_is_anothers_with_the_next_request() {
    let (_echoes, backends) = backends().await;
    let mut rig = Rig::start(&quiet(), |port| {
        let all = vec![
            called(OWN, http(port, "web", "", None)),
            route_of("team-a", OWN, NAME, all_paths()),
            route_of("team-b", OWN, "*.example.com", all_paths()),
        ];
        [backends.clone(), all].concat()
    });
    let mut client = rig.connect().await;
    for (change, expected) in [
        (None, "team-a"),
        (Some("team-b"), "team-b"),
        (Some("team-a"), "team-a"),
        (Some("team-c"), "404"),
        (Some("infra"), "404"),
    ] {
        if let Some(tenant) = change {
            apply(&mut rig, vec![owner(NAME, tenant)]);
        }
        let text = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\n\r\n");
        client.write_all(text.as_bytes()).await.unwrap();
        let answer = one_answer(&mut client).await.unwrap();
        let by = answer.header("x-backend").map(ToOwned::to_owned);
        assert_eq!(by.unwrap_or_else(|| answer.status.to_string()), expected);
    }
    rig.remove(ResourceKind::HostnameOwner, &format!("infra/edge/{NAME}"));
    assert_eq!(answered(&rig, NAME).await, "team-a");
}

/// Browsers count such a name as a part of the domain, with its cookies.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_no_listener_can_have_is_the_wildcards() {
    let (_echoes, backends) = backends().await;
    let rig = Rig::start(&quiet(), |port| {
        let all = vec![
            called(OWN, http(port, "web", "", None)),
            owner("*.example.com", "team-a"),
            owner("", "team-b"),
            route_of("team-a", OWN, "*.example.com", all_paths()),
            route_of("team-b", OWN, "", all_paths()),
        ];
        [backends.clone(), all].concat()
    });
    for odd in ["a_b", "_a", "-a", "a-", "a~", "a!b"] {
        let host = format!("{odd}.example.com");
        assert_eq!(answered(&rig, &host).await, "team-a", "{host}");
        assert_eq!(answered(&rig, &format!("{odd}.com")).await, "team-b");
    }
}

/// A client has verified the certificate of the name's owner. What it then sends is not for the next owner, who may have
/// no certificate for the name at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_does_not_pass_to_the_next_owner_of_its_name() {
    let (_echoes, backends) = backends().await;
    let identity = Identity::new(NAME);
    for (former, tenant) in [(SET_OF_A, "team-a"), (OWN, "infra")] {
        let certificate = format!("{tenant}/web");
        let bind = Cell::new(0);
        let mut rig = Rig::start(&quiet(), |port| {
            let own = http(port, "web", NAME, Some(&certificate));
            bind.set(port);
            let all = vec![
                identity.resource(&certificate),
                identity.resource("team-b/web"),
                called(former, own),
                owner(NAME, "team-a"),
                route_of("team-a", former, NAME, all_paths()),
            ];
            [backends.clone(), all].concat()
        });
        let config = || client_config(&identity);
        let text = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\n\r\n");
        let mut client = tls(rig.connect().await, config(), NAME).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        let answer = one_answer(&mut client).await.unwrap();
        assert_eq!(answer.header("x-backend"), Some("team-a"), "{former}");
        rig.remove(ResourceKind::Listener, former);
        let next = vec![
            owner(NAME, "team-b"),
            called(SET_OF_B, http(bind.get(), "web", NAME, Some("team-b/web"))),
            route_of("team-b", SET_OF_B, NAME, all_paths()),
        ];
        apply(&mut rig, next);
        client.write_all(text.as_bytes()).await.unwrap();
        let answer = one_answer(&mut client).await.unwrap();
        assert_eq!(answer.status, 421, "{former}");
        assert_eq!(answer.header("connection"), Some("close"));
        // A new connection is the next owner's. It stays that one's when the Gateway's own listener takes over, with the
        // owner's route, and when the owner has a listener again.
        let mut client = tls(rig.connect().await, config(), NAME).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        let answer = one_answer(&mut client).await.unwrap();
        assert_eq!(answer.header("x-backend"), Some("team-b"), "{former}");
        let own = http(bind.get(), "web", NAME, Some("team-b/web"));
        let of_set = || called(SET_OF_B, http(bind.get(), "web", NAME, Some("team-b/web")));
        for (gone, next, at) in [(SET_OF_B, called(OWN, own), OWN), (OWN, of_set(), SET_OF_B)] {
            rig.remove(ResourceKind::Listener, gone);
            let next = vec![next, route_of("team-b", at, NAME, all_paths())];
            apply(&mut rig, next);
            client.write_all(text.as_bytes()).await.unwrap();
            let answer = one_answer(&mut client).await.unwrap();
            assert_eq!(answer.header("x-backend"), Some("team-b"), "{at}");
        }
    }
}

/// The same in HTTP/2, where GOAWAY tells the client. What is under way is answered by whom it was sent to.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_http2_ends_when_its_name_has_passed_to_the_next_owner() {
    let (go, waits) = watch::channel(false);
    let (held, asks) = counting(move |_: Request<Incoming>| {
        let mut waits = waits.clone();
        async move {
            waits.wait_for(|go| *go).await.unwrap();
            Response::new(Full::new(Bytes::from_static(b"whole")))
        }
    })
    .await;
    let identity = Identity::new(NAME);
    let bind = Cell::new(0);
    let mut rig = Rig::start(&quiet(), |port| {
        bind.set(port);
        vec![
            identity.resource("team-a/web"),
            identity.resource("team-b/web"),
            backend("team-a/web:80", &[held]),
            called(SET_OF_A, http(port, "web", NAME, Some("team-a/web"))),
            owner(NAME, "team-a"),
            route_of("team-a", SET_OF_A, NAME, all_paths()),
        ]
    });
    let mut config = client_config(&identity);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tls(rig.connect().await, config, NAME).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = || {
        let request = Request::get(format!("https://{NAME}/"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };
    let under_way = tokio::spawn(sender.send_request(request()));
    wait("the request", || asks.load(Ordering::SeqCst) == 1).await;
    rig.remove(ResourceKind::Listener, SET_OF_A);
    let next = vec![
        owner(NAME, "team-b"),
        called(SET_OF_B, http(bind.get(), "web", NAME, Some("team-b/web"))),
    ];
    apply(&mut rig, next);
    let answer = within("an answer", sender.send_request(request())).await;
    assert_eq!(answer.unwrap().status(), 421);
    // Others are refused in the same way until the client knows that the proxy takes no more.
    while let Ok(answer) = within("an answer", sender.send_request(request())).await {
        assert_eq!(answer.status(), 421);
    }
    assert!(!under_way.is_finished());
    assert_eq!(rig.plane.active(), 1);
    go.send_replace(true);
    let answer = within("the answer", under_way).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "whole");
    within("the end", connection).await.unwrap().unwrap();
    rig.wait_closed(CloseReason::NoLongerServed, 1).await;
    assert_eq!(asks.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn within_tls_the_requests_host_counts_and_not_the_server_name() {
    let (_echoes, backends) = backends().await;
    let identity = Identity::new("*.example.com");
    let rig = Rig::start(&quiet(), |port| {
        let all = vec![
            identity.resource("infra/edge"),
            called(OWN, http(port, "web", "*.example.com", Some("infra/edge"))),
            owner(NAME, "team-a"),
            route_of("team-b", OWN, "*.example.com", regex()),
        ];
        [backends.clone(), all].concat()
    });
    let mut config = client_config(&identity);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tls(rig.connect().await, config, OTHER).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    for (host, expected) in [(OTHER, "team-b"), (NAME, "404"), (OTHER, "team-b")] {
        let request = Request::get(format!("https://{host}/"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = within("an answer", sender.send_request(request))
            .await
            .unwrap();
        let by = answer.headers().get("x-backend").cloned();
        let by = by.map_or_else(
            || answer.status().as_str().to_owned(),
            |by| by.to_str().unwrap().to_owned(),
        );
        assert_eq!(by, expected, "{host}");
        answer.into_body().collect().await.unwrap();
    }
    drop(sender);
    connection.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_name_leads_to_its_owner_alone() {
    let identity = Identity::new(NAME);
    // Of team-b there are a wildcard that terminates, and one that passes through: to neither is the name.
    for certificate in [None, Some("team-b/web")] {
        let (address, _connection) = one_connection().await;
        let rig = Rig::start(&quiet(), |port| {
            let mut route = route("web", "*.example.com", Some("team-b/web:443"));
            if let Some(Wire::TlsRoute(route)) = &mut route.resource {
                "team-b".clone_into(&mut route.tenant);
                SET_OF_B.clone_into(&mut route.attachments[0].listener);
            }
            vec![
                identity.resource("team-b/web"),
                called(
                    SET_OF_B,
                    listener(port, "web", "*.example.com", certificate),
                ),
                owner(NAME, "team-a"),
                backend("team-b/web:443", &[address]),
                route,
            ]
        });
        let refused = tls(rig.connect().await, client_config(&identity), NAME).await;
        assert!(refused.is_err(), "{certificate:?}");
        rig.wait_closed(CloseReason::UnknownServerName, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_path_is_its_sharers_and_nothing_around_it() {
    use proto::http_match::Path;

    let (_echoes, backends) = backends().await;
    let mut rig = Rig::start(&quiet(), |port| {
        let all = vec![
            called(OWN, http(port, "web", "", None)),
            owner(NAME, "team-a"),
            route_of("team-a", OWN, NAME, all_paths()),
        ];
        [backends.clone(), all].concat()
    });
    // The operator refuses all of these but the last one. The proxy keeps to the part all the same.
    for taken in [
        all_paths(),
        regex(),
        Path::Exact("/admin".into()),
        Path::Prefix("/api".into()),
    ] {
        let route = route_of("team-b", OWN, NAME, taken.clone());
        apply(&mut rig, vec![in_part(route, &["/api"])]);
        let sharer = match &taken {
            Path::Exact(_) => "team-a",
            _ => "team-b",
        };
        for path in [
            "/api",
            "/api/",
            "/api/x",
            "/api//x",
            "/api/x?/../y",
            "/api/%61;b",
        ] {
            assert_eq!(
                answered_at(&rig, NAME, path).await,
                sharer,
                "{path} {taken:?}"
            );
        }
        for path in [
            "/",
            "/admin",
            "/apix",
            "/API",
            "/Api/x",
            "//api",
            "/x/api",
            "/%61pi/x",
            "/api;x/y",
            "/?/api",
            "/.well-known/acme-challenge/token",
        ] {
            assert_eq!(
                answered_at(&rig, NAME, path).await,
                "team-a",
                "{path} {taken:?}"
            );
        }
        // A path that a backend could read as one outside belongs to nobody.
        for path in [
            "/api/../admin",
            "/api/%2e%2e/admin",
            "/api/.%2E/admin",
            "/api/..;/admin",
            "/api/..%2fadmin",
            "/api/..\\admin",
            "/api%2fx",
            "/x/../api",
        ] {
            assert_eq!(
                answered_at(&rig, NAME, path).await,
                "400",
                "{path} {taken:?}"
            );
        }
        // Another name of the owner, and one that nobody owns.
        assert_eq!(answered_at(&rig, OTHER, "/api").await, "404", "{taken:?}");
    }
    rig.remove(ResourceKind::HttpRoute, "team-b/web");
    assert_eq!(answered_at(&rig, NAME, "/api/x").await, "team-a");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_does_not_reach_into_a_shared_path() {
    use proto::http_match::Path;

    let (_echoes, backends) = backends().await;
    let sharer = route_of("team-b", OWN, NAME, Path::Prefix("/api/v1".into()));
    let mut rig = Rig::start(&quiet(), |port| {
        let all = vec![
            called(OWN, http(port, "web", "", None)),
            owner(NAME, "team-a"),
            in_part(sharer.clone(), &["/api"]),
        ];
        [backends.clone(), all].concat()
    });
    for (of_owner, inside) in [
        (regex(), "404"),
        (Path::Exact("/api/login".into()), "404"),
        (Path::Prefix("/api/login".into()), "404"),
        (Path::Regex("/api/.+".into()), "404"),
        (Path::Prefix("/api".into()), "team-a"),
        (all_paths(), "team-a"),
    ] {
        apply(
            &mut rig,
            vec![route_of("team-a", OWN, NAME, of_owner.clone())],
        );
        for path in ["/api/v1", "/api/v1/login"] {
            assert_eq!(
                answered_at(&rig, NAME, path).await,
                "team-b",
                "{of_owner:?}"
            );
        }
        // Inside, and not matched by who has the part.
        assert_eq!(
            answered_at(&rig, NAME, "/api/login").await,
            inside,
            "{of_owner:?}"
        );
    }
    // An older route of the owner's, or of a third namespace, with the very prefix changes nothing.
    for tenant in ["team-a", "team-c"] {
        let mut older = route_of(tenant, OWN, NAME, Path::Prefix("/api/v1".into()));
        if let Some(Wire::HttpRoute(route)) = &mut older.resource {
            route.created = -1;
        }
        apply(&mut rig, vec![older]);
        assert_eq!(
            answered_at(&rig, NAME, "/api/v1").await,
            "team-b",
            "{tenant}"
        );
    }
    // With the sharer's route the paths are the owner's again.
    apply(&mut rig, vec![route_of("team-a", OWN, NAME, regex())]);
    rig.remove(ResourceKind::HttpRoute, "team-b/web");
    assert_eq!(answered_at(&rig, NAME, "/api/login").await, "team-a");
    assert_eq!(answered_at(&rig, NAME, "/api/v1").await, "team-a");
}
