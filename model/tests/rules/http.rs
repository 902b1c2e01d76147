//! HTTPRoutes: patterns, and where they attach.

use vestibule_model::attach::{Attached, attach_route};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::HostPattern;
use vestibule_model::http::HttpRoute;
use vestibule_model::key::{Kind, ParentKey};
use vestibule_model::meta::Meta;
use vestibule_model::reference::ParentRef;
use vestibule_model::route::Route;

use crate::support::{listener, name, parent_ref, pattern};

fn attach(
    hostnames: &[HostPattern],
    reference: &ParentRef,
    listeners: &[Listener],
) -> Result<Vec<Attached>, Finding> {
    let route = HttpRoute {
        kind: Kind::HttpRoute,
        name: name("team/web"),
        meta: Meta::default(),
        parents: Vec::new(),
        hostnames: hostnames.iter().cloned().enumerate().collect(),
        rules: Vec::new(),
        findings: Vec::new(),
    };
    let parent = ParentKey::ListenerSet(name("team/set"));
    attach_route(Route::Http(&route), reference, &parent, listeners, None)
}

fn all_protocols() -> Vec<Listener> {
    ["HTTP", "HTTPS", "TLS", "TCP"]
        .into_iter()
        .enumerate()
        .map(|(index, protocol)| {
            let name = protocol.to_lowercase();
            listener(index, &name, 80, protocol, "*.example.com")
        })
        .collect()
}

#[test]
fn http_and_https_listeners_take_http_routes_and_no_others_do() {
    let reference = parent_ref("set", None, None);
    let attached = attach(&[HostPattern::Any], &reference, &all_protocols()).expect("attached");
    let names: Vec<&str> = attached.iter().map(|a| &*a.listener.listener).collect();
    assert_eq!(names, ["http", "https"]);
    let to_tls = ParentRef {
        section: Some("tls".into()),
        ..reference
    };
    let refused = attach(&[HostPattern::Any], &to_tls, &all_protocols()).expect_err("refused");
    assert_eq!(refused.reason, Reason::NotAllowedByListeners);
    assert!(refused.message.contains("HTTPRoutes"), "{refused}");
}

#[test]
fn a_route_for_every_name_has_those_of_the_listener_and_ranks_last() {
    let reference = parent_ref("set", None, None);
    let listeners = &all_protocols()[..1];
    let attached = attach(&[HostPattern::Any], &reference, listeners).expect("attached");
    let hostname = &attached[0].hostnames[0];
    assert_eq!(hostname.matches, pattern("*.example.com"));
    assert_eq!(hostname.rank, HostPattern::Any);

    let own = [pattern("a.example.com"), pattern("a.example.net")];
    let attached = attach(&own, &reference, listeners).expect("attached");
    assert_eq!(attached[0].hostnames.len(), 1);
    assert_eq!(attached[0].hostnames[0].matches, pattern("a.example.com"));

    let others = [pattern("example.com"), pattern("*.example.net")];
    let refused = attach(&others, &reference, listeners).expect_err("refused");
    assert_eq!(refused.reason, Reason::NoMatchingListenerHostname);
}
