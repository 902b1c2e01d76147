//! HTTPRoutes, as they are on the stream: every part of a rule, what is made of rules and references
//! that cannot be kept, and what follows when something else changes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use prost::Message;
use vestibule_crds::{decode, yaml};
use vestibule_model::condition::{ConditionType, Reason};
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_operator::translate::{Change, SessionKey, SessionKeys, Status, Translator};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::policy;
use vestibule_stream::proto::http_session::Carrier;
use vestibule_stream::proto::{
    self, BackendProtocol, SendProxyProtocol, external_auth, http_filter, http_match,
    http_value_match, path_modifier, resource,
};
use vestibule_stream::{ResourceKey, ResourceKind};
use zeroize::Zeroizing;

const WORLD: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: one, namespace: platform}
spec:
  gatewayClassName: vestibule
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: '*.example.com', allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: red}}}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: red, labels: {team: red}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: red}
spec:
  ports:
  - {name: plain, port: 80}
  - {name: h2c, port: 81, appProtocol: kubernetes.io/h2c}
  - {name: ws, port: 82, appProtocol: kubernetes.io/ws}
  - {name: safe, port: 83, appProtocol: https}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: blue}
spec: {ports: [{port: 80}]}
";

fn objects(text: &str) -> Vec<Object> {
    yaml::documents(text)
        .expect("YAML")
        .into_iter()
        .map(|(_, document)| decode(document).into_object().expect("an object").0)
        .collect()
}

fn world() -> Translator {
    translated(std::iter::once(our_class()).chain(objects(WORLD)))
}

fn put(world: &mut Translator, text: &str) -> vestibule_operator::translate::Output {
    world.apply(objects(text).into_iter().map(Change::Put))
}

/// An HTTPRoute `red/web` with these rules.
fn web(rules: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web, namespace: red, creationTimestamp: '1970-01-01T00:01:00Z'}}
spec:
  parentRefs: [{{name: one, namespace: platform}}]
  hostnames: [a.example.com, other.example.net]
  rules: {rules}
"
    )
}

fn resource(world: &Translator, kind: ResourceKind, name: &str) -> Option<resource::Resource> {
    let encoded = world.resources().get(&ResourceKey::new(kind, name))?;
    let decoded = proto::Resource::decode(encoded.upsert().resource).expect("a resource");
    decoded.resource
}

fn held(world: &Translator) -> Option<proto::HttpRoute> {
    match resource(world, ResourceKind::HttpRoute, "red/web")? {
        resource::Resource::HttpRoute(route) => Some(route),
        other => panic!("{other:?}"),
    }
}

fn protocol(world: &Translator, name: &str) -> Option<BackendProtocol> {
    match resource(world, ResourceKind::Backend, name)? {
        resource::Resource::Backend(backend) => Some(backend.protocol()),
        other => panic!("{other:?}"),
    }
}

/// `Type=Status/Reason` towards the only parent.
fn conditions(world: &Translator) -> String {
    let status = world.statuses().get(&key(Kind::HttpRoute, "red", "web"));
    let Some(Status::Route(status)) = status else {
        return String::new();
    };
    let mut text = String::new();
    for condition in &status.parents[0].conditions {
        let (kind, truth, reason) = (condition.kind, condition.truth.as_str(), condition.reason);
        write!(text, "{kind}={truth}/{reason} ").expect("a String takes all");
    }
    text.trim_end().to_owned()
}

fn attached(world: &Translator) -> usize {
    match &world.statuses()[&key(Kind::Gateway, "platform", "one")] {
        Status::Listeners(status) => status.listeners[0].attached_routes,
        other => panic!("{other:?}"),
    }
}

fn filter(filter: http_filter::Filter) -> proto::HttpFilter {
    proto::HttpFilter {
        filter: Some(filter),
    }
}

fn field(name: &str, value: &str) -> proto::HttpField {
    proto::HttpField {
        name: name.into(),
        value: value.into(),
    }
}

const FINE: &str = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs";

/// Rules with every part that there is.
const EVERY_PART: &str = r#"
  - name: first
    matches:
    - path: {type: Exact, value: /a}
      method: GET
      headers: [{name: X-One, value: "1"}, {type: RegularExpression, name: X-Two, value: "[0-9]+"}]
      queryParams: [{name: Q, value: v}]
    - path: {type: RegularExpression, value: "/b.*"}
    filters:
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-A, value: a}], add: [{name: X-B, value: b}], remove: [X-C]}}
    - {type: URLRewrite, urlRewrite: {hostname: b.example.com, path: {type: ReplaceFullPath, replaceFullPath: /new}}}
    - {type: CORS, cors: {allowOrigins: ["https://*.example.com"], allowMethods: ["*"], allowHeaders: [X-One, x-two], exposeHeaders: [X-Three, "*"], allowCredentials: true}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: web, port: 81}, fraction: {numerator: 1, denominator: 8}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: web, port: 82}}}
    - {type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: web, port: 81}, http: {path: /check/, allowedHeaders: [Host, X-One], allowedResponseHeaders: [X-User]}, forwardBody: {maxSize: 8192}}}
    backendRefs:
    - {name: web, port: 80, weight: 3, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [X-D]}}]}
    timeouts: {request: 10s, backendRequest: 0s}
    retry: {codes: [503, 500, 503], backoff: 50ms}
    sessionPersistence: {type: Cookie, cookie: {name: sticky, lifetimeType: Permanent}, absoluteTimeout: 1h}
  - matches: [{path: {value: /old/}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {scheme: https, hostname: c.example.com, port: 8443, statusCode: 308, path: {type: ReplacePrefixMatch, replacePrefixMatch: ""}}}
  - {}
"#;

#[test]
#[expect(clippy::too_many_lines, reason = "it is every part")]
fn every_part_of_a_rule_is_on_the_stream() {
    let mut world = world();
    put(&mut world, &web(EVERY_PART));
    let regex = |text: &str| http_value_match::Value::Regex(text.into());
    let exact = |text: &str| http_value_match::Value::Exact(text.into());
    let value = |name: &str, value| proto::HttpValueMatch {
        name: name.into(),
        value: Some(value),
    };
    let path = |path| proto::HttpMatch {
        path: Some(path),
        ..proto::HttpMatch::default()
    };
    let first = proto::HttpRule {
        name: "first".into(),
        matches: vec![
            proto::HttpMatch {
                path: Some(http_match::Path::Exact("/a".into())),
                headers: vec![value("x-one", exact("1")), value("x-two", regex("[0-9]+"))],
                query: vec![value("Q", exact("v"))],
                method: "GET".into(),
            },
            path(http_match::Path::Regex("/b.*".into())),
        ],
        filters: vec![
            filter(http_filter::Filter::ResponseHeaders(
                proto::HeaderModifier {
                    set: vec![field("x-a", "a")],
                    add: vec![field("x-b", "b")],
                    remove: vec!["x-c".into()],
                },
            )),
            filter(http_filter::Filter::Rewrite(proto::UrlRewrite {
                hostname: "b.example.com".into(),
                path: Some(proto::PathModifier {
                    path: Some(path_modifier::Path::Full("/new".into())),
                }),
            })),
            filter(http_filter::Filter::Cors(proto::Cors {
                allow_origins: vec!["https://*.example.com".into()],
                allow_credentials: true,
                allow_methods: vec!["*".into()],
                allow_headers: vec!["x-one".into(), "x-two".into()],
                expose_headers: vec!["*".into(), "x-three".into()],
                max_age: 5,
            })),
            filter(http_filter::Filter::Mirror(proto::Mirror {
                backend: "red/web:81".into(),
                numerator: 1,
                denominator: 8,
            })),
            filter(http_filter::Filter::Mirror(proto::Mirror {
                backend: "red/web:82".into(),
                numerator: 1,
                denominator: 1,
            })),
            filter(http_filter::Filter::ExternalAuth(proto::ExternalAuth {
                backend: "red/web:81".into(),
                max_body: 8192,
                protocol: Some(external_auth::Protocol::Http(proto::HttpAuth {
                    path_prefix: "/check".into(),
                    request_headers: vec!["x-one".into()],
                    response_headers: vec!["x-user".into()],
                })),
            })),
        ],
        backends: vec![proto::HttpBackend {
            backend: "red/web:80".into(),
            weight: 3,
            filters: vec![filter(http_filter::Filter::RequestHeaders(
                proto::HeaderModifier {
                    remove: vec!["x-d".into()],
                    ..proto::HeaderModifier::default()
                },
            ))],
        }],
        timeouts: Some(proto::HttpTimeouts {
            request: Some(10_000),
            backend_request: Some(0),
        }),
        retry: Some(proto::HttpRetry {
            codes: vec![500, 503],
            attempts: 1,
            backoff: Some(50),
        }),
        // Without keys nobody keeps sessions.
        session: None,
    };
    let second = proto::HttpRule {
        matches: vec![path(http_match::Path::Prefix("/old/".into()))],
        filters: vec![filter(http_filter::Filter::Redirect(proto::HttpRedirect {
            scheme: "https".into(),
            hostname: "c.example.com".into(),
            port: 8443,
            path: Some(proto::PathModifier {
                path: Some(path_modifier::Path::Prefix(String::new())),
            }),
            status: 308,
        }))],
        ..proto::HttpRule::default()
    };
    let third = proto::HttpRule {
        matches: vec![path(http_match::Path::Prefix("/".into()))],
        ..proto::HttpRule::default()
    };
    let expected = proto::HttpRoute {
        tenant: "red".into(),
        created: 60,
        attachments: vec![proto::Attachment {
            listener: "Gateway/platform/one/http".into(),
            hostnames: vec![proto::RouteHostname {
                r#match: "a.example.com".into(),
                rank: "a.example.com".into(),
                shared: false,
                paths: Vec::new(),
            }],
        }],
        rules: vec![first, second, third],
    };
    assert_eq!(held(&world), Some(expected));
    assert_eq!(conditions(&world), FINE);
    assert_eq!(attached(&world), 1);
}

const SESSIONS: &str = r"
  - name: given
    matches: [{path: {value: /a}}]
    backendRefs: [{name: web, port: 80}]
    sessionPersistence: {type: Cookie, cookie: {name: sticky, path: /a, lifetimeType: Permanent}, absoluteTimeout: 1h}
  - matches: [{path: {value: /b}}]
    backendRefs: [{name: web, port: 80}]
    sessionPersistence: {}
  - matches: [{path: {value: /c}}]
    backendRefs: [{name: web, port: 80}]
    sessionPersistence: {type: Header, header: {name: X-Session}}
  - matches: [{path: {value: /d}}]
    backendRefs: [{name: web, port: 80}]
";

fn session_key(n: u8) -> SessionKey {
    SessionKey::new(Zeroizing::new([n; SessionKey::BYTES]))
}

fn session_keys(of: &[u8]) -> Change {
    Change::SessionKeys(SessionKeys::new(of.iter().copied().map(session_key)))
}

fn sessions(world: &Translator) -> Vec<Option<proto::HttpSession>> {
    let route = held(world).expect("the route");
    route.rules.into_iter().map(|rule| rule.session).collect()
}

#[test]
fn each_rule_with_sessions_gets_keys_of_its_own_and_new_ones_when_they_rotate() {
    let mut world = world();
    put(&mut world, &web(SESSIONS));
    assert_eq!(sessions(&world), [None, None, None, None]);
    let output = world.apply([session_keys(&[1])]);
    assert_eq!(output.resources.len(), 1);
    let first = sessions(&world);
    let without_keys = |session: &Option<proto::HttpSession>| {
        let session = session.as_ref()?;
        Some((session.carrier.clone(), session.absolute_timeout))
    };
    let cookie = |name: &str, path: &str, permanent| {
        Some(Carrier::Cookie(proto::SessionCookie {
            name: name.into(),
            path: path.into(),
            permanent,
        }))
    };
    let header = Some(Carrier::Header("x-session".into()));
    assert_eq!(
        first.iter().map(without_keys).collect::<Vec<_>>(),
        [
            Some((cookie("sticky", "/a", true), Some(3_600_000))),
            Some((cookie("session-e920df4eae1f3ea6", "/", false), None)),
            Some((header, None)),
            None,
        ]
    );
    let keys = |all: &[Option<proto::HttpSession>]| -> Vec<Vec<Vec<u8>>> {
        let sessions = all.iter().flatten();
        let keys = sessions.map(|session| session.keys.iter().map(|key| key.key.clone()).collect());
        keys.collect()
    };
    let before = keys(&first);
    assert!(
        before
            .iter()
            .all(|keys| keys.len() == 1 && keys[0].len() == 32)
    );
    let distinct: BTreeSet<_> = before.iter().flatten().collect();
    assert_eq!(distinct.len(), 3);
    // The same keys are no news, others are, and the old ones stay as they are told.
    assert!(world.apply([session_keys(&[1])]).resources.is_empty());
    let output = world.apply([session_keys(&[2, 1])]);
    assert_eq!(output.resources.len(), 1);
    let after = keys(&sessions(&world));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(after.len(), 2);
        assert!(after[0] != before[0] && after[1] == before[0]);
    }
    // Another route, or the same rules in another kind, has other keys; a rule that is named keeps its own wherever it is.
    let renamed = web(SESSIONS).replace("name: web, namespace: red", "name: other, namespace: red");
    put(&mut world, &renamed);
    let other = match resource(&world, ResourceKind::HttpRoute, "red/other") {
        Some(resource::Resource::HttpRoute(route)) => route,
        other => panic!("{other:?}"),
    };
    let other: Vec<_> = other.rules.into_iter().map(|rule| rule.session).collect();
    assert!(
        keys(&other)
            .iter()
            .flatten()
            .all(|key| !after.concat().contains(key))
    );
    let moved = format!("\n  - matches: [{{path: {{value: /new}}}}]{SESSIONS}");
    put(&mut world, &web(&moved));
    assert_eq!(keys(&sessions(&world))[0], after[0]);
}

/// A mirror is no part of what a client gets: without it, the rule serves all the same.
#[test]
fn a_mirror_that_does_not_resolve_is_left_out() {
    let mut world = world();
    let mirrored = |namespace: &str, name: &str| {
        let reference = format!("{{namespace: {namespace}, name: {name}, port: 80}}");
        let filter = format!("{{type: RequestMirror, requestMirror: {{backendRef: {reference}}}}}");
        web(&format!(
            "[{{filters: [{filter}], backendRefs: [{{name: web, port: 80}}]}}]"
        ))
    };
    for (namespace, name, reason) in [
        ("red", "absent", "BackendNotFound"),
        ("elsewhere", "web", "RefNotPermitted"),
    ] {
        put(&mut world, &mirrored(namespace, name));
        let rules = held(&world).expect("held").rules;
        assert!(rules[0].filters.is_empty());
        assert_eq!(rules[0].backends[0].backend, "red/web:80");
        let expected = format!("Accepted=True/Accepted ResolvedRefs=False/{reason}");
        assert_eq!(conditions(&world), expected);
    }
    // It is there as soon as its Service is.
    put(&mut world, &mirrored("red", "late"));
    assert!(held(&world).expect("held").rules[0].filters.is_empty());
    let late = "
apiVersion: v1
kind: Service
metadata: {name: late, namespace: red}
spec: {ports: [{port: 80}]}
";
    put(&mut world, late);
    assert_eq!(held(&world).expect("held").rules[0].filters.len(), 1);
    assert_eq!(conditions(&world), FINE);
    assert!(protocol(&world, "red/late:80").is_some());
}

/// A filter `ExternalAuth` with these settings, in a rule that leads to `red/web:80`.
fn authorized(settings: &str) -> String {
    let filter = format!("{{type: ExternalAuth, externalAuth: {{{settings}}}}}");
    web(&format!(
        "[{{filters: [{filter}], backendRefs: [{{name: web, port: 80}}]}}]"
    ))
}

/// Without the server, nobody knows who may pass.
#[test]
fn an_authorization_server_that_does_not_resolve_lets_no_request_pass() {
    let mut world = world();
    let by = |namespace: &str, name: &str| {
        authorized(&format!(
            "protocol: HTTP, backendRef: {{namespace: {namespace}, name: {name}, port: 80}}"
        ))
    };
    let refused = [filter(http_filter::Filter::Fail(500))];
    for (namespace, name, reason) in [
        ("red", "absent", "BackendNotFound"),
        ("blue", "web", "RefNotPermitted"),
    ] {
        put(&mut world, &by(namespace, name));
        assert_eq!(held(&world).expect("held").rules[0].filters, refused);
        let expected = format!("Accepted=True/Accepted ResolvedRefs=False/{reason}");
        assert_eq!(conditions(&world), expected);
    }
    assert_eq!(protocol(&world, "blue/web:80"), None);
    let granted = "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: routes, namespace: blue}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: red}], to: [{group: '', kind: Service}]}
";
    put(&mut world, granted);
    assert_eq!(conditions(&world), FINE);
    assert!(protocol(&world, "blue/web:80").is_some());
    let rules = held(&world).expect("held").rules;
    let [
        proto::HttpFilter {
            filter: Some(http_filter::Filter::ExternalAuth(auth)),
        },
    ] = &*rules[0].filters
    else {
        panic!("{:?}", rules[0].filters)
    };
    assert_eq!(auth.backend, "blue/web:80");
    // It is there as soon as its Service is.
    put(&mut world, &by("red", "late"));
    assert_eq!(held(&world).expect("held").rules[0].filters, refused);
    let late = "
apiVersion: v1
kind: Service
metadata: {name: late, namespace: red}
spec: {ports: [{port: 80}]}
";
    put(&mut world, late);
    assert_ne!(held(&world).expect("held").rules[0].filters, refused);
    assert_eq!(conditions(&world), FINE);
    assert!(protocol(&world, "red/late:80").is_some());
}

#[test]
fn a_server_that_is_called_by_grpc_has_a_port_that_speaks_http2() {
    let mut world = world();
    let calls = |port: u16| {
        authorized(&format!(
            "protocol: GRPC, backendRef: {{name: web, port: {port}}}, grpc: {{allowedHeaders: [Cookie]}}"
        ))
    };
    put(&mut world, &calls(81));
    let expected = filter(http_filter::Filter::ExternalAuth(proto::ExternalAuth {
        backend: "red/web:81".into(),
        max_body: 0,
        protocol: Some(external_auth::Protocol::Grpc(proto::GrpcAuth {
            request_headers: vec!["cookie".into()],
        })),
    }));
    assert_eq!(held(&world).expect("held").rules[0].filters, [expected]);
    assert_eq!(conditions(&world), FINE);
    put(&mut world, &calls(82));
    assert_eq!(
        held(&world).expect("held").rules[0].filters,
        [filter(http_filter::Filter::Fail(500))]
    );
    assert_eq!(
        conditions(&world),
        "Accepted=True/Accepted ResolvedRefs=False/UnsupportedProtocol"
    );
}

/// A BackendTLSPolicy is for an authorization server as for any backend.
#[test]
fn a_policy_says_how_to_reach_an_authorization_server() {
    let mut world = world();
    put(
        &mut world,
        &authorized("protocol: HTTP, backendRef: {name: web, port: 83}"),
    );
    let refused = [filter(http_filter::Filter::Fail(500))];
    assert_eq!(held(&world).expect("held").rules[0].filters, refused);
    let policy = policy("red", "web", 0, ("web", Some("safe")), None);
    world.apply([Change::Put(policy)]);
    assert_ne!(held(&world).expect("held").rules[0].filters, refused);
    assert_eq!(conditions(&world), FINE);
    let Some(resource::Resource::Backend(backend)) =
        resource(&world, ResourceKind::Backend, "red/web:83")
    else {
        panic!("no backend")
    };
    assert!(backend.tls.is_some());
}

#[test]
fn a_rule_that_cannot_be_kept_answers_with_500_where_it_would_match() {
    let mut world = world();
    put(
        &mut world,
        &web(r#"
  - {backendRefs: [{name: web, port: 80}]}
  - matches: [{path: {value: /private}}, {path: {type: Glob, value: /x}}]
    filters: [{type: Throttle}]
    backendRefs: [{name: web, port: 81}]
  - {matches: [{path: {type: RegularExpression, value: "("}}], backendRefs: [{name: web, port: 82}]}
"#),
    );
    let rules = held(&world).expect("held").rules;
    // Of the last one there is nothing to match by.
    assert_eq!(rules.len(), 2);
    let paths: Vec<_> = rules[1].matches.iter().map(|m| m.path.clone()).collect();
    assert_eq!(
        paths,
        [Some(http_match::Path::Prefix("/private".into()))],
        "what can be read of it"
    );
    assert_eq!(rules[1].filters, [filter(http_filter::Filter::Fail(500))]);
    assert!(rules[1].backends.is_empty());
    assert_eq!(
        protocol(&world, "red/web:81"),
        None,
        "nothing is sent there"
    );
    assert_eq!(
        conditions(&world),
        format!("{FINE} PartiallyInvalid=True/UnsupportedValue")
    );
    let status = &world.statuses()[&key(Kind::HttpRoute, "red", "web")];
    let Status::Route(status) = status else {
        panic!("{status:?}")
    };
    let partially = &status.parents[0].conditions[2];
    assert_eq!(partially.kind, ConditionType::PartiallyInvalid);
    let beginning = "Dropped Rule spec.rules[1], spec.rules[2], whose requests are answered with 500 as far as its \
                     matches can be read: ";
    assert!(
        partially.message.starts_with(beginning),
        "{}",
        partially.message
    );

    put(&mut world, &web("[{matches: [{method: FETCH}]}]"));
    assert_eq!(held(&world), None);
    assert_eq!(
        conditions(&world),
        "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs"
    );
    assert_eq!(attached(&world), 0);
}

#[test]
fn a_filter_that_is_not_there_answers_with_500_in_its_place() {
    let mut world = world();
    let missing = "{type: ExtensionRef, extensionRef: {group: example.com, kind: Limit, name: a}}";
    put(
        &mut world,
        &web(&format!(
            "
  - {{filters: [{missing}], backendRefs: [{{name: web, port: 80}}]}}
  - {{backendRefs: [{{name: web, port: 80, filters: [{missing}]}}, {{name: web, port: 80}}]}}
"
        )),
    );
    let rules = held(&world).expect("held").rules;
    let fail = [filter(http_filter::Filter::Fail(500))];
    assert_eq!(rules[0].filters, fail);
    assert_eq!(rules[1].backends[0].filters, fail);
    assert_eq!(rules[1].backends[1].filters, []);
    assert_eq!(
        conditions(&world),
        "Accepted=True/Accepted ResolvedRefs=False/InvalidKind"
    );
}

/// The endpoints of a backend, as `address:port`.
fn endpoints(world: &Translator, name: &str) -> Option<Vec<String>> {
    match resource(world, ResourceKind::Backend, name)? {
        resource::Resource::Backend(backend) => Some(
            backend
                .endpoints
                .iter()
                .map(|endpoint| format!("{}:{}", endpoint.address, endpoint.port))
                .collect(),
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_port_is_looked_up_by_number_and_protocol() {
    let mut world = world();
    put(
        &mut world,
        "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: red}
spec:
  ports:
  - {name: quic, port: 443, protocol: UDP, appProtocol: quic}
  - {name: tcp, port: 443, appProtocol: kubernetes.io/h2c}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: red, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [127.0.0.7]}]
ports:
- {name: quic, port: 8443, protocol: UDP}
- {name: tcp, port: 8443, protocol: UDP}
- {name: tcp, port: 8080}
",
    );
    put(
        &mut world,
        &web("[{backendRefs: [{name: web, port: 443}]}]"),
    );
    assert_eq!(conditions(&world), FINE);
    assert_eq!(protocol(&world, "red/web:443"), Some(BackendProtocol::H2c));
    let only = vec!["127.0.0.7:8080".to_owned()];
    assert_eq!(endpoints(&world, "red/web:443"), Some(only));
}

#[test]
fn backends_that_do_not_resolve_keep_their_share_and_come_back() {
    let mut world = world();
    put(
        &mut world,
        &web(
            "[{backendRefs: [{name: web, namespace: blue, port: 80, weight: 7}, {name: web, port: 81}, {name: gone, port: 80, weight: 0}]}]",
        ),
    );
    let shares = |world: &Translator| -> Vec<(String, u32)> {
        let rules = held(world).expect("held").rules;
        let backends = rules[0].backends.iter();
        backends.map(|b| (b.backend.clone(), b.weight)).collect()
    };
    let closed = [
        (String::new(), 7),
        ("red/web:81".to_owned(), 1),
        (String::new(), 0),
    ];
    assert_eq!(shares(&world), closed);
    // The first one that does not resolve gives the reason.
    let refused = "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted";
    assert_eq!(conditions(&world), refused);

    let grant = grant("blue", "red", ("HTTPRoute", "red"), "Service");
    let granted = grant.key();
    world.apply([Change::Put(grant)]);
    assert_eq!(shares(&world)[0], ("blue/web:80".to_owned(), 7));
    assert_eq!(
        conditions(&world),
        "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"
    );
    world.apply([Change::Remove(granted)]);
    assert_eq!(shares(&world), closed);
    assert_eq!(protocol(&world, "blue/web:80"), None);
    assert_eq!(conditions(&world), refused);
}

#[test]
fn services_say_what_they_speak() {
    let mut world = world();
    put(
        &mut world,
        &web(
            "[{backendRefs: [{name: web, port: 80}, {name: web, port: 81}, {name: web, port: 82}, {name: web, port: 83}]}]",
        ),
    );
    let speak = |world: &Translator| {
        [80, 81, 82, 83].map(|port| protocol(world, &format!("red/web:{port}")))
    };
    let plain = Some(BackendProtocol::Unspecified);
    let (h2c, websocket) = (BackendProtocol::H2c, BackendProtocol::Websocket);
    assert_eq!(speak(&world), [plain, Some(h2c), Some(websocket), None]);
    assert_eq!(
        conditions(&world),
        "Accepted=True/Accepted ResolvedRefs=False/UnsupportedProtocol"
    );

    // TLS needs somebody who says whom to trust; a policy for another port does not.
    let policy = |section: &str| policy("red", "web", 0, ("web", Some(section)), None);
    world.apply([Change::Put(policy("h2c"))]);
    assert_eq!(speak(&world)[3], None);
    world.apply([Change::Put(policy("safe"))]);
    assert_eq!(speak(&world)[3], plain);
    assert_eq!(conditions(&world), FINE);
    world.apply([Change::Remove(policy("safe").key())]);
    assert_eq!(speak(&world)[3], None);
}

/// Requests of many clients share the connections to a backend, which begin with a header that names none of them.
#[test]
fn services_say_which_header_they_expect() {
    let mut world = world();
    put(&mut world, &web("[{backendRefs: [{name: web, port: 80}]}]"));
    let header = |world: &Translator| match resource(world, ResourceKind::Backend, "red/web:80")? {
        resource::Resource::Backend(backend) => Some(backend.send_proxy_protocol()),
        other => panic!("{other:?}"),
    };
    let service = |value: &str| {
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: red, annotations: {{vestibule.dev/send-proxy-protocol: '{value}'}}}}
spec: {{ports: [{{name: plain, port: 80}}, {{name: h2c, port: 81}}]}}
"
        )
    };
    assert_eq!(header(&world), Some(SendProxyProtocol::Unspecified));
    for (value, sent) in [
        ("v1", SendProxyProtocol::V1),
        ("plain=v2", SendProxyProtocol::V2),
        ("h2c=v2", SendProxyProtocol::Unspecified),
    ] {
        put(&mut world, &service(value));
        assert_eq!(header(&world), Some(sent), "{value}");
        assert_eq!(conditions(&world), FINE);
    }
    put(&mut world, &service("yes"));
    assert_eq!(header(&world), None);
    let refused = "Accepted=True/Accepted ResolvedRefs=False/InvalidAnnotation";
    assert_eq!(conditions(&world), refused);
}

#[test]
fn a_route_goes_with_what_let_it_in() {
    let mut world = world();
    put(&mut world, &web("[{backendRefs: [{name: web, port: 80}]}]"));
    assert!(held(&world).is_some());

    // The namespace's label, the listener, the route itself.
    world.apply([Change::Put(namespace("red", &[]))]);
    assert_eq!(held(&world), None);
    assert_eq!(protocol(&world, "red/web:80"), None, "it has no user");
    assert_eq!(
        conditions(&world),
        "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs"
    );
    world.apply([Change::Put(namespace("red", &[("team", "red")]))]);
    assert!(held(&world).is_some());
    let gateway = key(Kind::Gateway, "platform", "one");
    world.apply([Change::Remove(gateway)]);
    assert_eq!(held(&world), None);
    assert_eq!(conditions(&world), "", "it leads to no Gateway of ours");
    put(&mut world, WORLD);
    assert_eq!(attached(&world), 1);
    let route = key(Kind::HttpRoute, "red", "web");
    let output = world.apply([Change::Remove(route)]);
    let touched = output.resources.len();
    assert_eq!(touched, 3, "the route, its backend, and whose its name is");
    assert_eq!(attached(&world), 0);
}

#[test]
fn an_edit_of_a_route_is_one_route() {
    let mut world = world();
    let mut many = String::new();
    for n in 0..50 {
        many += &web("[{backendRefs: [{name: web, port: 80}]}]").replace(
            "name: web, namespace: red, c",
            &format!("name: r{n}, namespace: red, c"),
        );
        many += "---\n";
    }
    put(&mut world, &many);
    put(&mut world, &web("[{backendRefs: [{name: web, port: 80}]}]"));
    let output = put(
        &mut world,
        &web("[{backendRefs: [{name: web, port: 80, weight: 2}]}]"),
    );
    let work = output.work;
    assert_eq!(
        (work.routes, work.listeners, work.backends, work.statuses),
        (1, 0, 0, 1)
    );
    assert_eq!(output.resources.len(), 1);
}

#[test]
fn a_route_that_proxies_could_not_take_says_so() {
    let mut settings = settings();
    settings.policy.ports_per_namespace = 32 * 64;
    let mut world = Translator::new(settings);
    world.apply([Change::Put(our_class())]);
    // Each listener takes each hostname: together they are more than a message may be.
    let hosts: Vec<String> = (0..16)
        .map(|n| {
            format!(
                "'*.{n}.{}.example.com'",
                ["x".repeat(60).as_str(); 3].join(".")
            )
        })
        .collect();
    let mut text = String::new();
    let mut parents = Vec::new();
    for n in 0..32 {
        write!(
            text,
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: s{n}, namespace: red}}
spec:
  parentRef: {{name: one, namespace: platform}}
  listeners: ["
        )
        .expect("a String takes all");
        for port in 0..64 {
            let port = 1000 + n * 64 + port;
            write!(text, "{{name: l{port}, port: {port}, protocol: HTTP}},").expect("as above");
        }
        text += "]\n---\n";
        parents.push(format!("{{kind: ListenerSet, name: s{n}}}"));
    }
    let gateway = gateway(
        "one",
        vec![passthrough("l", "")],
        vestibule_model::selector::NamespaceScope::All,
    );
    world.apply([Change::Put(gateway)]);
    put(&mut world, &text);
    let route = web("[{}]")
        .replace(
            "[{name: one, namespace: platform}]",
            &format!("[{}]", parents.join(",")),
        )
        .replace(
            "[a.example.com, other.example.net]",
            &format!("[{}]", hosts.join(",")),
        );
    put(&mut world, &route);
    assert_eq!(held(&world), None);
    let reasons = reasons(&world, &key(Kind::HttpRoute, "red", "web"));
    assert_eq!(reasons, [Reason::UnsupportedValue.as_str()]);
    assert!(conditions(&world).starts_with("Accepted=False/UnsupportedValue"));
}

/// A GRPCRoute `red/web` with these rules, beside an HTTPRoute of the same name.
fn calls(rules: &str) -> String {
    web(rules).replace("HTTPRoute", "GRPCRoute")
}

#[test]
fn a_grpc_route_is_a_resource_of_its_own_with_matches_of_methods() {
    use proto::grpc_method::{Method, Service};

    let mut world = world();
    put(&mut world, &web("[{backendRefs: [{name: web, port: 80}]}]"));
    put(
        &mut world,
        &calls(
            r#"
  - name: cart
    matches:
    - {method: {service: shop.v1.Cart, method: Add}, headers: [{name: X-One, value: "1"}]}
    - {method: {service: shop.v1.Cart}}
    - {method: {type: RegularExpression, service: "shop[.].*", method: "Get.*"}}
    backendRefs: [{name: web, port: 80, weight: 3}]
  - {backendRefs: [{name: web, port: 80}]}
"#,
        ),
    );
    let route = resource(&world, ResourceKind::GrpcRoute, "red/web");
    let Some(resource::Resource::GrpcRoute(route)) = route else {
        panic!("{route:?}")
    };
    let web = held(&world).expect("the HTTPRoute stays");
    assert_eq!(route.attachments, web.attachments);
    let method = |service: Option<Service>, method: Option<Method>| {
        Some(http_match::Path::GrpcMethod(proto::GrpcMethod {
            service,
            method,
        }))
    };
    let cart = || Some(Service::ExactService("shop.v1.Cart".into()));
    let paths = |rule: &proto::HttpRule| -> Vec<_> {
        rule.matches.iter().map(|of| of.path.clone()).collect()
    };
    assert_eq!(
        paths(&route.rules[0]),
        [
            method(cart(), Some(Method::ExactMethod("Add".into()))),
            method(cart(), None),
            method(
                Some(Service::ServiceRegex("shop[.].*".into())),
                Some(Method::MethodRegex("Get.*".into()))
            ),
        ]
    );
    assert_eq!(route.rules[0].name, "cart");
    assert_eq!(route.rules[0].matches[0].headers.len(), 1);
    assert_eq!(route.rules[0].backends[0].weight, 3);
    assert_eq!(paths(&route.rules[1]), [method(None, None)]);
    // Both are counted, and one goes without the other.
    assert_eq!(attached(&world), 2);
    world.apply([Change::Remove(key(Kind::HttpRoute, "red", "web"))]);
    assert_eq!(attached(&world), 1);
    assert!(resource(&world, ResourceKind::GrpcRoute, "red/web").is_some());
    assert!(resource(&world, ResourceKind::Backend, "red/web:80").is_some());
}
