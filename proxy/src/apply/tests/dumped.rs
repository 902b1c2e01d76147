//! The state as the admin endpoint shows it.

use super::*;

#[test]
fn limits_of_a_gateway_are_shown_and_outlive_a_new_certificate() {
    let mut h = Harness::new();
    let limited = listener_on(A, BIND.port, "a.example.com", Some(&["team-a/tls"]));
    let limits = proto::ListenerLimits {
        tunnel_idle: Some(0),
        request_body: Some(1000),
        ..Default::default()
    };
    let limits = settings(proto::GatewaySettings {
        limits: Some(limits),
        ..Default::default()
    });
    assert_eq!(h.apply(vec![needs_settings(limited), limits]), []);
    let shown = |h: &Harness| {
        let dump = serde_json::to_value(h.state.dump()).unwrap();
        dump["listeners"][0].clone()
    };
    let expected = serde_json::json!({"tunnel_idle_ms": 0, "request_body_bytes": 1000});
    assert_eq!(shown(&h)["limits"], expected);
    // The listener is made anew.
    assert_eq!(
        h.apply(vec![certificate("team-a/tls", "a.example.com")]),
        []
    );
    assert_eq!(shown(&h)["serving"], true);
    assert_eq!(shown(&h)["limits"], expected);
    let unlimited = listener_on(A, BIND.port, "a.example.com", Some(&["team-a/tls"]));
    assert_eq!(h.apply(vec![unlimited]), []);
    assert_eq!(shown(&h).get("limits"), None);
}

#[test]
fn the_dump_has_no_key_and_says_what_is_in_force() {
    let mut h = Harness::new();
    let certificate = certificate("team-a/web", "a.example.com");
    let Some(Wire::Certificate(wire)) = certificate.resource.clone() else {
        panic!("is a certificate")
    };
    h.apply(vec![
        listener_on(A, BIND.port, "a.example.com", Some(&["team-a/web"])),
        certificate,
        route(
            "team-a/web",
            1,
            &[(A, "a.example.com", "*.example.com")],
            &[("team-a/web:443", 1)],
        ),
        backend("team-a/web:443", &["[::1]:443"]),
    ]);
    let dump = serde_json::to_value(h.state.dump()).unwrap();
    assert_eq!(dump["generation"]["counter"], 1);
    assert_eq!(dump["listeners"][0]["serving"], true);
    assert_eq!(dump["routes"][0]["attachments"][0]["rank"], "*.example.com");
    assert_eq!(dump["backends"][0]["endpoints"][0], "[::1]:443");
    assert_eq!(dump["certificates"][0]["names"][0], "a.example.com");
    let text = format!("{dump} {:?}", h.state);
    let key_hex = tls::hex(&wire.private_key[40..56]);
    assert!(!text.contains(&key_hex));
    assert!(!text.contains("private"));
}
