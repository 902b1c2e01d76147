//! Settings of Gateways, and the listeners that serve by them.

use super::*;
use crate::limits::EscapedSlashes;

const GATEWAY: &str = "infra/edge";
/// Another listener of the namespace of `B`.
const C: &str = "ListenerSet/team-b/web/more";

fn tunnel_idle(millis: u64) -> Resource {
    let limits = proto::ListenerLimits {
        tunnel_idle: Some(millis),
        ..Default::default()
    };
    settings(proto::GatewaySettings {
        limits: Some(limits),
        ..Default::default()
    })
}

/// Settings that believe PROXY headers from these addresses.
fn believing(trusted: &str) -> Resource {
    let client_address = proto::ClientAddress {
        proxy_protocol: Some(proto::ProxyProtocol {
            mode: proto::ProxyProtocolMode::Strict.into(),
            trusted_cidrs: vec![trusted.into()],
        }),
        forwarded_headers: None,
    };
    settings(proto::GatewaySettings {
        client_address: Some(client_address),
        ..Default::default()
    })
}

/// The limit of the listener that is selected for a name, in milliseconds, if its Gateway sets one.
fn limit(h: &Harness, name: &str) -> Option<u128> {
    let name = Hostname::parse(name).unwrap();
    let selection = h.published.load().select(&BIND, Some(&name)).ok()?;
    let limit = selection.listener.overrides()?.tunnel_idle?;
    Some(limit.as_millis())
}

#[test]
fn a_listener_without_the_settings_of_its_gateway_serves_nothing() {
    let mut h = Harness::new();
    let both = vec![
        needs_settings(listener(A, "a.example.com")),
        needs_settings(listener(ANY, "")),
    ];
    assert_eq!(h.apply(both), []);
    let is_closed = |h: &Harness| h.published.load().beginning(&BIND).closed;
    let is_serving = |h: &Harness| {
        let dump = serde_json::to_value(h.state.dump()).unwrap();
        dump["listeners"][0]["serving"].clone()
    };
    // Its port is open, and no wider listener takes its names.
    assert!(h.published.load().has_bind(&BIND));
    assert!(is_closed(&h));
    assert_eq!(is_serving(&h), false);
    for name in ["a.example.com", "x.example.com"] {
        assert_eq!(h.select(name), Err(Unmatched::NoListener));
    }
    assert_eq!(h.apply(vec![tunnel_idle(7)]), []);
    assert!(!is_closed(&h));
    assert_eq!(is_serving(&h), true);
    assert_eq!(limit(&h, "a.example.com"), Some(7));
    assert_eq!(limit(&h, "x.example.com"), Some(7));
    assert_eq!(h.state.counts().gateway_settings, 1);
    h.remove(vec![key(ResourceKind::GatewaySettings, GATEWAY)]);
    assert!(is_closed(&h));
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoListener));
    assert_eq!(h.state.counts().gateway_settings, 0);
    // Without the need, the flags of the proxy decide.
    let both = vec![listener(A, "a.example.com"), listener(ANY, "")];
    assert_eq!(h.apply(both), []);
    assert_eq!(h.select("a.example.com"), found(A, None));
    assert_eq!(limit(&h, "a.example.com"), None);
}

#[test]
fn http_and_bytes_wait_for_the_settings_too() {
    let mut h = Harness::new();
    let web = needs_settings(http_on(A, BIND.port, "a.example.com", None));
    let mut bytes = needs_settings(listener_on(B, BIND.port + 1, "", None));
    if let Some(Wire::Listener(listener)) = &mut bytes.resource {
        listener.protocol = Some(proto::listener::Protocol::Tcp(proto::TcpListener {}));
    }
    let bind = BindKey {
        port: BIND.port + 1,
        ..BIND
    };
    assert_eq!(h.apply(vec![web, bytes]), []);
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoListener));
    let selected = h.published.load().select_by_port(&bind);
    assert_eq!(selected.err(), Some(Unmatched::NoBind));
    assert_eq!(h.apply(vec![tunnel_idle(7)]), []);
    assert_eq!(h.select("a.example.com"), found(A, None));
    let selected = h.published.load().select_by_port(&bind).unwrap();
    assert_eq!(&*selected.listener.key, B);
}

#[test]
fn the_order_within_a_batch_does_not_matter() {
    for turn in 0..2 {
        let mut h = Harness::new();
        let mut batch = vec![needs_settings(listener(A, "a.example.com")), tunnel_idle(7)];
        batch.rotate_left(turn);
        assert_eq!(h.apply(batch), []);
        assert_eq!(limit(&h, "a.example.com"), Some(7));
        let mut batch = vec![needs_settings(listener(B, "b.example.com")), tunnel_idle(8)];
        batch.rotate_left(turn);
        assert_eq!(h.apply(batch), []);
        assert_eq!(limit(&h, "a.example.com"), Some(8));
        assert_eq!(limit(&h, "b.example.com"), Some(8));
    }
}

#[test]
fn an_edit_of_settings_reaches_the_listeners_of_the_gateway_and_builds_nothing_else() {
    let mut h = Harness::new();
    let mut other = needs_settings(listener_on(ANY, BIND.port + 1, "", None));
    if let Some(Wire::Listener(listener)) = &mut other.resource {
        listener.gateway = "infra/other".into();
    }
    let all = vec![
        certificate("team-a/web", "a.example.com"),
        needs_settings(listener_on(
            A,
            BIND.port,
            "a.example.com",
            Some(&["team-a/web"]),
        )),
        needs_settings(listener(B, "b.example.com")),
        other,
        tunnel_idle(1),
    ];
    assert_eq!(h.apply(all), []);
    let before = h.state.work();
    assert_eq!(h.apply(vec![tunnel_idle(2)]), []);
    let work = h.state.work() - before;
    assert_eq!((work.places, work.tls_configs), (2, 0));
    assert_eq!(limit(&h, "a.example.com"), Some(2));
    assert_eq!(limit(&h, "b.example.com"), Some(2));
    let is_believing = |h: &Harness| {
        let beginning = h.published.load().beginning(&BIND);
        beginning.proxy_protocol().is_some()
    };
    assert!(!is_believing(&h));
    assert_eq!(h.apply(vec![believing("192.0.2.0/24")]), []);
    assert!(is_believing(&h));
    assert_eq!(limit(&h, "a.example.com"), None);
}

fn keeping_slashes() -> Resource {
    settings(proto::GatewaySettings {
        http: Some(proto::HttpSettings {
            escaped_slashes: proto::EscapedSlashes::Keep.into(),
            ..Default::default()
        }),
        ..Default::default()
    })
}

#[test]
fn the_treatment_of_requests_is_that_of_the_ports_of_a_gateway() {
    let mut h = Harness::new();
    let port = BIND.port + 1;
    let mut other = needs_settings(http_on(B, port, "a.example.com", None));
    if let Some(Wire::Listener(listener)) = &mut other.resource {
        listener.gateway = "infra/other".into();
    }
    let of_other = Resource::new(
        "infra/other",
        Wire::GatewaySettings(proto::GatewaySettings::default()),
    );
    let own = needs_settings(http_on(A, BIND.port, "a.example.com", None));
    assert_eq!(h.apply(vec![own, other, of_other, keeping_slashes()]), []);
    let slashes = |h: &Harness, bind: &BindKey| {
        let set = h.published.load().http_overrides(bind);
        assert_eq!(set.underscores, None);
        set.escaped_slashes
    };
    let of_other = BindKey { port, ..BIND };
    assert_eq!(slashes(&h, &BIND), Some(EscapedSlashes::Keep));
    assert_eq!(slashes(&h, &of_other), None);
    let dump = serde_json::to_value(h.state.dump()).unwrap();
    let expected = serde_json::json!([
        {"name": GATEWAY, "escaped_slashes": "Keep"},
        {"name": "infra/other"},
    ]);
    assert_eq!(dump["gateway_settings"], expected);
    // Other settings of the Gateway say nothing about it.
    assert_eq!(h.apply(vec![tunnel_idle(7)]), []);
    assert_eq!(slashes(&h, &BIND), None);
}

/// A listener that could not move to another port may stay beside those of the next Gateway of its port. When it leaves at
/// last, its settings leave with it.
#[test]
fn a_listener_that_leaves_takes_the_settings_of_its_gateway_along() {
    let mut h = Harness::new();
    let mut next = needs_settings(http_on(B, BIND.port, "b.example.com", None));
    if let Some(Wire::Listener(listener)) = &mut next.resource {
        listener.gateway = "infra/other".into();
    }
    let of_next = Resource::new(
        "infra/other",
        Wire::GatewaySettings(proto::GatewaySettings::default()),
    );
    let stays = needs_settings(http_on(A, BIND.port, "a.example.com", None));
    assert_eq!(h.apply(vec![stays, next, of_next]), []);
    // This places the listener that stayed once more, after the next one.
    assert_eq!(h.apply(vec![keeping_slashes()]), []);
    let slashes = |h: &Harness| h.published.load().http_overrides(&BIND).escaped_slashes;
    assert_eq!(slashes(&h), Some(EscapedSlashes::Keep));
    h.remove(vec![key(ResourceKind::Listener, A)]);
    assert_eq!(slashes(&h), None);
    let beginning = h.published.load().beginning(&BIND);
    assert!(!beginning.closed);
}

/// The listener that stayed is found first in the table, since it has an exact name.
#[test]
fn a_listener_that_leaves_does_not_hand_its_port_to_another_gateway() {
    let mut h = Harness::new();
    let of_next = |name: &str, hostname: &str| {
        let mut next = needs_settings(http_on(name, BIND.port, hostname, None));
        if let Some(Wire::Listener(listener)) = &mut next.resource {
            listener.gateway = "infra/other".into();
        }
        next
    };
    let settings = Resource::new(
        "infra/other",
        Wire::GatewaySettings(proto::GatewaySettings::default()),
    );
    let stays = needs_settings(http_on(A, BIND.port, "a.example.com", None));
    assert_eq!(h.apply(vec![stays, keeping_slashes()]), []);
    let [wide, leaves] = [(B, "*.example.net"), (C, "c.example.com")];
    let next = vec![
        of_next(wide.0, wide.1),
        of_next(leaves.0, leaves.1),
        settings,
    ];
    assert_eq!(h.apply(next), []);
    let slashes = |h: &Harness| h.published.load().http_overrides(&BIND).escaped_slashes;
    assert_eq!(slashes(&h), None);
    h.remove(vec![key(ResourceKind::Listener, C)]);
    assert_eq!(slashes(&h), None);
    h.remove(vec![key(ResourceKind::Listener, B)]);
    assert_eq!(slashes(&h), Some(EscapedSlashes::Keep));
}

#[test]
fn rejected_settings_leave_the_last_good_ones_or_none() {
    let mut h = Harness::new();
    let rejected = [(GATEWAY.to_owned(), "InvalidBlock".to_owned())];
    let first = vec![
        needs_settings(listener(A, "a.example.com")),
        believing("192.0.2.1/24"),
    ];
    assert_eq!(h.apply(first), rejected);
    assert_eq!(h.select("a.example.com"), Err(Unmatched::NoListener));
    assert_eq!(h.apply(vec![tunnel_idle(7)]), []);
    assert_eq!(h.apply(vec![believing("192.0.2.1/24")]), rejected);
    assert_eq!(limit(&h, "a.example.com"), Some(7));
}
