//! Attachment: who is let in where, and with which hostnames.

use vestibule_model::attach::{Attached, admit_set, attach_route, supported_kinds};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::key::{GATEWAY_GROUP, ParentKey};
use vestibule_model::reference::ParentRef;
use vestibule_model::route::{Route, TlsRoute};
use vestibule_model::selector::{LabelSelector, Labels, NamespaceScope, Requirement};

use crate::support::{gateway, listener, name, parent_ref, pattern, route, set};

fn selector(requirements: Vec<Requirement>) -> NamespaceScope {
    NamespaceScope::Selector(LabelSelector { requirements })
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn whose_listener_sets_a_gateway_lets_in() {
    use Requirement::{Absent, Exists, In, NotIn, Unknown};
    let tenant = labels(&[("tenant", "yes"), ("tier", "gold")]);
    let cases = [
        (NamespaceScope::None, "team", false),
        (NamespaceScope::None, "infra", false),
        (NamespaceScope::Same, "team", false),
        (NamespaceScope::Same, "infra", true),
        (NamespaceScope::All, "team", true),
        (NamespaceScope::Unknown("Few".into()), "infra", false),
        // An empty selector selects everything.
        (selector(vec![]), "team", true),
        (selector(vec![Exists("tenant".into())]), "team", true),
        (selector(vec![Exists("other".into())]), "team", false),
        (selector(vec![Absent("other".into())]), "team", true),
        (selector(vec![Absent("tenant".into())]), "team", false),
        (
            selector(vec![In("tier".into(), vec!["gold".into(), "iron".into()])]),
            "team",
            true,
        ),
        (
            selector(vec![In("tier".into(), vec!["iron".into()])]),
            "team",
            false,
        ),
        (selector(vec![In("other".into(), vec![])]), "team", false),
        (
            selector(vec![NotIn("tier".into(), vec!["iron".into()])]),
            "team",
            true,
        ),
        (
            selector(vec![NotIn("tier".into(), vec!["gold".into()])]),
            "team",
            false,
        ),
        (
            selector(vec![NotIn("other".into(), vec!["x".into()])]),
            "team",
            true,
        ),
        // Every requirement counts.
        (
            selector(vec![Exists("tenant".into()), Exists("other".into())]),
            "team",
            false,
        ),
        (selector(vec![Unknown("Near".into())]), "team", false),
    ];
    for (scope, namespace, admitted) in cases {
        let mut gateway = gateway("infra/gw", vec![]);
        gateway.allowed_listeners = scope.clone();
        let set = set(&format!("{namespace}/s"), "infra/gw", 1, vec![]);
        let verdict = admit_set(&gateway, &set, Some(&tenant));
        assert_eq!(verdict.is_ok(), admitted, "{scope:?} {namespace}");
        if let Err(finding) = verdict {
            assert_eq!(finding.reason, Reason::NotAllowed);
            assert_eq!(finding.field, "spec.parentRef");
        }
    }
}

#[test]
fn a_selector_by_name_needs_no_namespace_object_and_cannot_be_forged() {
    let by_name = selector(vec![Requirement::In(
        "kubernetes.io/metadata.name".into(),
        vec!["team".into()],
    )]);
    assert!(by_name.admits("infra", "team", None));
    let forged = labels(&[("kubernetes.io/metadata.name", "team")]);
    assert!(!by_name.admits("infra", "other", Some(&forged)));
}

/// The labels of a new namespace can arrive after its ListenerSets. Until then nothing is known about them, not even that
/// one is absent.
#[test]
fn a_namespace_that_is_not_known_yet_is_admitted_by_no_requirement_about_its_labels() {
    use Requirement::{Absent, Exists, In, NotIn, Unknown};
    let values = || vec!["x".to_owned()];
    for requirement in [
        In("tier".into(), values()),
        NotIn("tier".into(), values()),
        Exists("tier".into()),
        Absent("tier".into()),
        Unknown("Near".into()),
    ] {
        let scope = selector(vec![requirement.clone()]);
        assert!(!scope.admits("infra", "team", None), "{requirement:?}");
    }
    // As soon as its labels are known, they count.
    for requirement in [NotIn("tier".into(), values()), Absent("tier".into())] {
        let scope = selector(vec![requirement]);
        assert!(scope.admits("infra", "team", Some(&labels(&[]))));
        let other = labels(&[("tier", "x")]);
        assert!(!scope.admits("infra", "team", Some(&other)));
    }
    // These need no labels.
    assert!(NamespaceScope::All.admits("infra", "team", None));
    assert!(NamespaceScope::Same.admits("infra", "infra", None));
    assert!(selector(vec![]).admits("infra", "team", None));
    // The name is known without the Namespace object.
    let name = || "kubernetes.io/metadata.name".to_owned();
    let others = selector(vec![NotIn(name(), vec!["team".into()])]);
    assert!(!others.admits("infra", "team", None));
    assert!(others.admits("infra", "other", None));
    assert!(selector(vec![Exists(name())]).admits("infra", "team", None));
    assert!(!selector(vec![Absent(name())]).admits("infra", "team", None));
}

#[test]
fn route_kinds_of_a_listener() {
    let tls_route = (GATEWAY_GROUP, "TLSRoute");
    let kinds = |protocol: &str, kinds: &[(&str, &str)]| {
        let mut listener = listener(3, "l", 443, protocol, "");
        listener.allowed_kinds = kinds
            .iter()
            .map(|(g, k)| ((*g).into(), (*k).into()))
            .collect();
        let (supported, finding) = supported_kinds(&listener);
        (supported, finding.map(|f| (f.reason, f.field)))
    };
    let refused = |index: usize| {
        Some((
            Reason::InvalidRouteKinds,
            format!("spec.listeners[3].allowedRoutes.kinds[{index}]"),
        ))
    };
    assert_eq!(kinds("TLS", &[]), (vec![tls_route], None));
    assert_eq!(kinds("TLS", &[tls_route]), (vec![tls_route], None));
    assert_eq!(
        kinds("TLS", &[tls_route, (GATEWAY_GROUP, "HTTPRoute")]),
        (vec![tls_route], refused(1))
    );
    assert_eq!(
        kinds("TLS", &[(GATEWAY_GROUP, "HTTPRoute")]),
        (vec![], refused(0))
    );
    assert_eq!(
        kinds("TLS", &[("example.com", "TLSRoute")]),
        (vec![], refused(0))
    );
    let http_route = (GATEWAY_GROUP, "HTTPRoute");
    let grpc_route = (GATEWAY_GROUP, "GRPCRoute");
    for protocol in ["HTTP", "HTTPS"] {
        let both = vec![http_route, grpc_route];
        assert_eq!(kinds(protocol, &[]), (both.clone(), None));
        assert_eq!(kinds(protocol, &[tls_route]), (vec![], refused(0)));
        assert_eq!(kinds(protocol, &[grpc_route]), (vec![grpc_route], None));
        assert_eq!(
            kinds(
                protocol,
                &[grpc_route, (GATEWAY_GROUP, "TCPRoute"), http_route]
            ),
            (both, refused(1))
        );
    }
    let tcp_route = (GATEWAY_GROUP, "TCPRoute");
    assert_eq!(kinds("TCP", &[]), (vec![tcp_route], None));
    assert_eq!(kinds("TCP", &[tls_route]), (vec![], refused(0)));
    // Gateway API took TCPRoutes on TLS listeners back.
    assert_eq!(
        kinds("TLS", &[tcp_route, tls_route]),
        (vec![tls_route], refused(0))
    );
    let udp_route = (GATEWAY_GROUP, "UDPRoute");
    assert_eq!(kinds("UDP", &[]), (vec![udp_route], None));
    assert_eq!(
        kinds("UDP", &[tcp_route, udp_route]),
        (vec![udp_route], refused(0))
    );
    assert_eq!(kinds("TCP", &[udp_route]), (vec![], refused(0)));
    assert_eq!(kinds("SCTP", &[]), (vec![], None));
}

fn attach(
    route: &TlsRoute,
    reference: &ParentRef,
    parent: &ParentKey,
    listeners: &[Listener],
) -> Result<Vec<Attached>, Finding> {
    attach_route(Route::Tls(route), reference, parent, listeners, None)
}

/// Names of the listeners attached to and the hostnames left there; or the reason.
fn outcome(result: Result<Vec<Attached>, Finding>) -> Result<Vec<(String, Vec<String>)>, Reason> {
    result
        .map(|attached| {
            attached
                .into_iter()
                .map(|a| {
                    let names = a.hostnames.iter().map(|h| h.matches.to_string()).collect();
                    (a.listener.listener.to_string(), names)
                })
                .collect()
        })
        .map_err(|finding| finding.reason)
}

#[test]
fn which_listeners_a_reference_selects() {
    let parent = ParentKey::ListenerSet(name("team/s"));
    let listeners = [
        listener(0, "a", 443, "TLS", "*.example"),
        listener(1, "b", 8443, "TLS", "*.example"),
        listener(2, "http", 80, "HTTP", ""),
        listener(3, "https", 443, "HTTPS", ""),
    ];
    let route = route("team/r", &["x.example"]);
    let on = |names: &[&str]| {
        Ok(names
            .iter()
            .map(|n| ((*n).to_owned(), vec!["x.example".to_owned()]))
            .collect())
    };
    for (section, port, expected) in [
        (None, None, on(&["a", "b"])),
        (Some("a"), None, on(&["a"])),
        (None, Some(8443), on(&["b"])),
        // A port selects all of its listeners; one that takes the route suffices.
        (None, Some(443), on(&["a"])),
        (Some("a"), Some(443), on(&["a"])),
        (Some("a"), Some(8443), Err(Reason::NoMatchingParent)),
        (Some("none"), None, Err(Reason::NoMatchingParent)),
        (None, Some(1), Err(Reason::NoMatchingParent)),
        // Conformance, tlsroute-invalid-no-matching-listener.
        (Some("http"), None, Err(Reason::NotAllowedByListeners)),
        (Some("https"), None, Err(Reason::NotAllowedByListeners)),
    ] {
        let reference = parent_ref("s", section, port);
        assert_eq!(
            outcome(attach(&route, &reference, &parent, &listeners)),
            expected,
            "{section:?} {port:?}"
        );
    }
    assert_eq!(
        outcome(attach(&route, &parent_ref("s", None, None), &parent, &[])),
        Err(Reason::NoMatchingParent)
    );
}

#[test]
fn same_means_the_namespace_of_the_object_that_declares_the_listener() {
    let listeners = [listener(0, "l", 443, "TLS", "")];
    let reference = parent_ref("x", None, None);
    for (parent, from, expected) in [
        (ParentKey::ListenerSet(name("team/s")), "team/r", true),
        (ParentKey::ListenerSet(name("team/s")), "infra/r", false),
        (ParentKey::Gateway(name("infra/gw")), "infra/r", true),
        (ParentKey::Gateway(name("infra/gw")), "team/r", false),
    ] {
        let result = outcome(attach(
            &route(from, &["x.example"]),
            &reference,
            &parent,
            &listeners,
        ));
        if expected {
            assert!(result.is_ok(), "{parent} {from}");
        } else {
            assert_eq!(
                result,
                Err(Reason::NotAllowedByListeners),
                "{parent} {from}"
            );
        }
    }
}

#[test]
fn kinds_and_namespaces_have_to_fit_on_one_listener() {
    let parent = ParentKey::Gateway(name("infra/gw"));
    let mut open_http = listener(0, "http", 80, "HTTP", "");
    open_http.allowed_namespaces = NamespaceScope::All;
    let closed_tls = listener(1, "tls", 443, "TLS", "");
    let route = route("team/r", &["x.example"]);
    let reference = parent_ref("gw", None, None);
    assert_eq!(
        outcome(attach(
            &route,
            &reference,
            &parent,
            &[open_http, closed_tls]
        )),
        Err(Reason::NotAllowedByListeners)
    );
}

#[test]
fn hostnames_are_intersected_per_listener_and_rank_as_written() {
    let parent = ParentKey::ListenerSet(name("team/s"));
    let listeners = [
        listener(0, "exact", 443, "TLS", "abc.example.com"),
        listener(1, "wild", 443, "TLS", "*.example.com"),
        listener(2, "any", 443, "TLS", ""),
        listener(3, "other", 443, "TLS", "other.org"),
    ];
    let route = route("team/r", &["*.com", "abc.example.com", "example.com"]);
    let attached = attach(&route, &parent_ref("s", None, None), &parent, &listeners).unwrap();
    let got: Vec<(&str, Vec<(String, String)>)> = attached
        .iter()
        .map(|a| {
            let names = a
                .hostnames
                .iter()
                .map(|h| (h.matches.to_string(), h.rank.to_string()))
                .collect();
            (&*a.listener.listener, names)
        })
        .collect();
    let pair = |m: &str, r: &str| (m.to_owned(), r.to_owned());
    assert_eq!(
        got,
        [
            (
                "exact",
                vec![
                    pair("abc.example.com", "*.com"),
                    pair("abc.example.com", "abc.example.com")
                ]
            ),
            (
                "wild",
                vec![
                    pair("*.example.com", "*.com"),
                    pair("abc.example.com", "abc.example.com")
                ]
            ),
            (
                "any",
                vec![
                    pair("*.com", "*.com"),
                    pair("abc.example.com", "abc.example.com"),
                    pair("example.com", "example.com")
                ]
            ),
        ]
    );
}

#[test]
fn no_hostname_in_common() {
    let parent = ParentKey::ListenerSet(name("team/s"));
    let reference = parent_ref("s", None, None);
    for (listener_host, route_hosts) in [
        ("a.example", &["b.example"][..]),
        ("*.example", &["example"]),
        ("example", &["*.example"]),
        ("*.a.example", &["*.b.example", "x.c.example"]),
        // Objects of old API versions have none: nothing can match.
        ("", &[]),
    ] {
        let listeners = [listener(0, "l", 443, "TLS", listener_host)];
        let route = route("team/r", route_hosts);
        assert_eq!(
            outcome(attach(&route, &reference, &parent, &listeners)),
            Err(Reason::NoMatchingListenerHostname),
            "{listener_host} {route_hosts:?}"
        );
    }
}

#[test]
fn a_refused_listener_still_takes_routes() {
    let parent = ParentKey::ListenerSet(name("team/s"));
    let mut bad = listener(0, "l", 443, "TLS", "x.example");
    bad.findings
        .push(Finding::refused(Reason::UnsupportedValue, "", "", ""));
    let route = route("team/r", &["x.example"]);
    assert!(attach(&route, &parent_ref("s", None, None), &parent, &[bad]).is_ok());
}

#[test]
fn refusals_say_what_to_do() {
    let route = route("team/r", &["x.example"]);
    let listeners = [listener(0, "l", 443, "TLS", "y.example")];
    let text = |reference: &ParentRef, parent: &ParentKey| {
        attach(&route, reference, parent, &listeners)
            .unwrap_err()
            .to_string()
    };
    let of_gateway = ParentKey::Gateway(name("infra/gw"));
    let of_set = ParentKey::ListenerSet(name("team/s"));
    assert_eq!(
        text(&parent_ref("gw", Some("mine"), None), &of_gateway),
        "spec.parentRefs[0]: Gateway infra/gw does not declare a listener \"mine\"; name a listener \
         of the Gateway itself, or refer to the ListenerSet that declares it"
    );
    assert_eq!(
        text(&parent_ref("s", Some("mine"), Some(443)), &of_set),
        "spec.parentRefs[0]: ListenerSet team/s does not declare a listener \"mine\" on port 443; \
         name one of its listeners, or leave sectionName and port out"
    );
    assert_eq!(
        text(&parent_ref("gw", None, None), &of_gateway),
        "spec.parentRefs[0]: no listener of Gateway infra/gw takes TLSRoutes from namespace team; \
         refer to a TLS listener whose allowedRoutes include this namespace and kind"
    );
    assert_eq!(
        text(&parent_ref("s", None, None), &of_set),
        "spec.hostnames: none of the hostnames is one of a listener of ListenerSet team/s; use \
         hostnames that lie within a listener's hostname"
    );
    // Another listener of the parent may take the route, so the message is about the selected one alone.
    let elsewhere = [
        listener(0, "l", 443, "TLS", "y.example"),
        listener(1, "web", 80, "HTTP", ""),
        listener(2, "m", 443, "TLS", "x.example"),
    ];
    let text = |section, port| {
        let reference = parent_ref("s", section, port);
        let refusal = attach(&route, &reference, &of_set, &elsewhere).unwrap_err();
        refusal.message
    };
    assert_eq!(
        text(Some("web"), None),
        "no listener \"web\" of ListenerSet team/s takes TLSRoutes from namespace team"
    );
    assert_eq!(
        text(None, Some(80)),
        "no listener on port 80 of ListenerSet team/s takes TLSRoutes from namespace team"
    );
    assert_eq!(
        text(Some("l"), Some(443)),
        "none of the hostnames is one of listener \"l\" on port 443 of ListenerSet team/s"
    );
}

#[test]
fn parents_by_group_kind_and_namespace() {
    let reference = |group: Option<&str>, kind: Option<&str>, namespace: Option<&str>| ParentRef {
        group: group.map(Into::into),
        kind: kind.map(Into::into),
        namespace: namespace.map(Into::into),
        name: "x".into(),
        section: None,
        port: None,
        index: 0,
    };
    let own = "team".into();
    for (reference, parent) in [
        (
            reference(None, None, None),
            Some(ParentKey::Gateway(name("team/x"))),
        ),
        (
            reference(Some(GATEWAY_GROUP), Some("ListenerSet"), Some("other")),
            Some(ParentKey::ListenerSet(name("other/x"))),
        ),
        (reference(Some(""), Some("Service"), None), None),
        (reference(Some(""), Some("Gateway"), None), None),
        (reference(None, Some("Service"), None), None),
    ] {
        assert_eq!(reference.parent(&own), parent, "{reference:?}");
    }
    assert_eq!(pattern("x").to_string(), "x");
}
