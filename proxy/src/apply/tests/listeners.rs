//! Listeners: who holds a place, what a bind speaks, which certificate a listener gets, and ports in use.

use super::*;

#[test]
fn a_place_is_taken_once_and_can_be_handed_over_within_a_batch() {
    let mut h = Harness::new();
    assert_eq!(
        h.apply(vec![
            listener(A, "a.example.com"),
            listener(B, "b.example.com")
        ]),
        []
    );
    // Swapped within one batch.
    assert_eq!(
        h.apply(vec![
            listener(A, "b.example.com"),
            listener(B, "a.example.com")
        ]),
        []
    );
    assert_eq!(h.select("a.example.com"), found(B, None));
    assert_eq!(h.select("b.example.com"), found(A, None));
    // Taken: rejected, and the loser stays where it was.
    assert_eq!(
        h.apply(vec![listener(A, "a.example.com")]),
        [(A.to_owned(), "HostnameConflict".to_owned())]
    );
    assert_eq!(h.select("b.example.com"), found(A, None));
    // A chain: B wants A's place, A is rejected for C's sake and so stays, and so B is rejected too.
    let c = "ListenerSet/team-c/web/tls";
    assert_eq!(h.apply(vec![listener(c, "c.example.com")]), []);
    let mut rejects = h.apply(vec![
        listener(A, "c.example.com"),
        listener(B, "b.example.com"),
    ]);
    rejects.sort();
    assert_eq!(
        rejects,
        [
            (A.to_owned(), "HostnameConflict".to_owned()),
            (B.to_owned(), "HostnameConflict".to_owned())
        ]
    );
    assert_eq!(h.select("a.example.com"), found(B, None));
    // Handed over: the holder goes in the batch in which another one comes.
    let change = h.change(
        vec![listener(A, "a.example.com")],
        vec![key(ResourceKind::Listener, B)],
    );
    assert_eq!(h.state.apply(&change, &mut NoSockets), []);
    assert_eq!(h.select("a.example.com"), found(A, None));
}

#[test]
fn a_bind_speaks_tls_or_plaintext_and_never_both() {
    let mut h = Harness::new();
    let conflict = |name: &str| [(name.to_owned(), "ProtocolConflict".to_owned())];
    let rejects = h.apply(vec![
        listener(A, "a.example.com"),
        http_on(B, BIND.port, "b.example.com", None),
    ]);
    assert_eq!(rejects, conflict(B));
    assert_eq!(h.published.load().layer(&BIND), Layer::Tls);
    // HTTPS is TLS: the server name tells them apart.
    let https = http_on(B, BIND.port, "b.example.com", Some(&["team-b/web"]));
    assert_eq!(h.apply(vec![https]), []);
    assert_eq!(h.select("b.example.com"), found(B, None));
    // One of two cannot change what the port speaks; both together can.
    let plain_a = http_on(A, BIND.port, "a.example.com", None);
    let plain_b = http_on(B, BIND.port, "b.example.com", None);
    assert_eq!(h.apply(vec![plain_a.clone()]), conflict(A));
    assert_eq!(h.select("a.example.com"), found(A, None));
    assert_eq!(h.apply(vec![plain_a, plain_b]), []);
    assert_eq!(h.published.load().layer(&BIND), Layer::Plain);
    assert_eq!(h.select("b.example.com"), found(B, None));
    // With the last one of the one kind going, the other kind may come in the same batch.
    let change = h.change(
        vec![listener(ANY, "")],
        vec![
            key(ResourceKind::Listener, A),
            key(ResourceKind::Listener, B),
        ],
    );
    assert_eq!(h.state.apply(&change, &mut NoSockets), []);
    assert_eq!(h.published.load().layer(&BIND), Layer::Tls);
    assert_eq!(h.select("x.example.com"), found(ANY, None));
    h.remove(vec![key(ResourceKind::Listener, ANY)]);
    assert_eq!(h.published.load().binds().count(), 0);
}

#[test]
fn https_without_a_certificate_is_bound_and_closed() {
    let mut h = Harness::new();
    h.apply(vec![http_on(A, BIND.port, "", Some(&["team-a/web"]))]);
    let mode = |h: &Harness| {
        let snapshot = h.published.load();
        let selected = snapshot.select_http(&BIND, Layer::Tls, None).unwrap();
        match &selected.listener.mode {
            Mode::Https(config) => config.clone().ok(),
            other => panic!("{other:?}"),
        }
    };
    assert!(mode(&h).is_none());
    assert_eq!(h.published.load().layer(&BIND), Layer::Tls);
    h.apply(vec![certificate("team-a/web", "a.example.com")]);
    let config = mode(&h).unwrap();
    assert_eq!(config.alpn_protocols, crate::http::ALPN.map(<[u8]>::to_vec));
    h.remove(vec![key(ResourceKind::Certificate, "team-a/web")]);
    assert!(mode(&h).is_none());
    let dump = serde_json::to_value(h.state.dump()).unwrap();
    assert_eq!(dump["listeners"][0]["mode"], "Https");
    assert_eq!(dump["listeners"][0]["serving"], false);
}

#[test]
fn a_certificate_of_another_secret_is_no_last_good_version_of_this_one() {
    const CERTIFICATE: &str = "team-a/web";
    let of = |uid: &str, mut resource: Resource| {
        if let Some(Wire::Certificate(wire)) = &mut resource.resource {
            wire.secret_uid = uid.to_owned();
        }
        resource
    };
    let good = |uid| of(uid, certificate(CERTIFICATE, "a.example.com"));
    let unusable = |uid| {
        let empty = Wire::Certificate(proto::Certificate::default());
        of(uid, Resource::new(CERTIFICATE, empty))
    };
    let serves = |h: &Harness| {
        let dump = serde_json::to_value(h.state.dump()).unwrap();
        dump["listeners"][0]["serving"].as_bool().unwrap()
    };
    let rejected = [(CERTIFICATE.to_owned(), "MissingField".to_owned())];
    let mut h = Harness::new();
    let terminating = listener_on(A, BIND.port, "a.example.com", Some(&[CERTIFICATE]));
    assert_eq!(h.apply(vec![terminating, good("first")]), []);
    assert_eq!(h.apply(vec![unusable("first")]), rejected);
    assert!(
        serves(&h),
        "the last good version of the same Secret serves"
    );
    // The Secret was deleted and made again, perhaps by another team in a namespace of the same name.
    assert_eq!(h.apply(vec![unusable("second")]), rejected);
    assert!(!serves(&h));
    assert!(h.state.certificates.is_empty());
    assert_eq!(h.state.expiries.len(), 0);
    for uid in ["second", "third"] {
        assert_eq!(h.apply(vec![good(uid)]), []);
        assert!(serves(&h));
    }
    assert_eq!(h.state.expiries.len(), 1);
}

#[test]
fn a_chain_that_is_too_long_is_rejected() {
    let mut long = certificate("team-a/web", "a.example.com");
    if let Some(Wire::Certificate(wire)) = &mut long.resource {
        let leaf = wire.chain[0].clone();
        wire.chain = vec![leaf.clone(); MAX_CHAIN_BYTES / leaf.len() + 1];
    }
    let rejected = [("team-a/web".to_owned(), "InvalidCertificate".to_owned())];
    assert_eq!(Harness::new().apply(vec![long]), rejected);
}

#[test]
fn a_handshake_costs_more_where_clients_are_validated() {
    let name = Hostname::parse("a.example.com").unwrap();
    let units = |validation: Option<proto::ClientValidation>| {
        let mut made = listener_on(A, BIND.port, "a.example.com", Some(&["team-a/web"]));
        if let Some(Wire::Listener(listener)) = &mut made.resource
            && let Some(proto::listener::Protocol::Tls(tls)) = &mut listener.protocol
            && let Some(proto::tls_listener::Mode::Terminate(terminate)) = &mut tls.mode
        {
            terminate.client_validation = validation;
        }
        let mut h = Harness::new();
        assert_eq!(
            h.apply(vec![made, certificate("team-a/web", "a.example.com")]),
            []
        );
        let selection = h.published.load().select(&BIND, Some(&name)).unwrap();
        selection.listener.handshake_units
    };
    let validation = proto::ClientValidation {
        trust_bundles: vec!["ConfigMap/team-a/clients".into()],
        mode: proto::ClientValidationMode::AllowValidOnly.into(),
    };
    assert_eq!((units(None), units(Some(validation))), (1, 5));
}

#[test]
fn certificates_reach_the_listeners_that_name_them() {
    fn config(h: &Harness) -> Option<Arc<rustls::ServerConfig>> {
        let name = Hostname::parse("a.example.com").unwrap();
        let selection = h.published.load().select(&BIND, Some(&name)).unwrap();
        match &selection.listener.mode {
            Mode::Terminate(config) => config.clone().ok(),
            other => panic!("{other:?}"),
        }
    }
    let mut h = Harness::new();
    h.apply(vec![
        listener_on(
            A,
            BIND.port,
            "a.example.com",
            Some(&["team-a/first", "team-a/second"]),
        ),
        listener(B, "b.example.com"),
    ]);
    assert!(config(&h).is_none());
    h.apply(vec![certificate("team-a/second", "a.example.com")]);
    let second = config(&h).unwrap();
    h.apply(vec![certificate("team-a/first", "a.example.com")]);
    let first = config(&h).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    // Tickets outlive the rotation; nothing else is switched on.
    assert!(Arc::ptr_eq(&first.ticketer, &second.ticketer));
    assert_eq!(first.max_early_data_size, 0);
    assert!(first.alpn_protocols.is_empty());
    let ticket = first.ticketer.encrypt(b"x").unwrap();

    // A bad version is rejected and the good one goes on.
    let mut bad = certificate("team-a/first", "a.example.com");
    if let Some(Wire::Certificate(c)) = &mut bad.resource {
        c.private_key.truncate(10);
    }
    assert_eq!(
        h.apply(vec![bad]),
        [("team-a/first".to_owned(), "InvalidKey".to_owned())]
    );
    assert!(Arc::ptr_eq(&config(&h).unwrap(), &first));

    // Someone else's certificate builds nothing here.
    let built = h.state.work().tls_configs;
    h.apply(vec![certificate("team-b/other", "b.example.com")]);
    assert_eq!(h.state.work().tls_configs, built);

    h.remove(vec![key(ResourceKind::Certificate, "team-a/first")]);
    assert_eq!(config(&h).unwrap().ticketer.decrypt(&ticket).unwrap(), b"x");
    h.remove(vec![key(ResourceKind::Certificate, "team-a/second")]);
    assert!(config(&h).is_none());

    // Removed and made anew, a listener takes no ticket of its former self.
    h.apply(vec![certificate("team-a/first", "a.example.com")]);
    h.remove(vec![key(ResourceKind::Listener, A)]);
    h.apply(vec![listener_on(
        A,
        BIND.port,
        "a.example.com",
        Some(&["team-a/first"]),
    )]);
    assert_eq!(config(&h).unwrap().ticketer.decrypt(&ticket), None);
}

struct OnePortInUse(u16, Vec<BindKey>);

impl Binder for OnePortInUse {
    fn open(&mut self, bind: &BindKey) -> io::Result<()> {
        self.1.push(*bind);
        if bind.port == self.0 {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(())
    }

    fn settle(&mut self, _: &Snapshot) {}
}

#[test]
fn a_port_in_use_rejects_its_listeners_and_no_others() {
    let mut h = Harness::new();
    let mut binder = OnePortInUse(77, Vec::new());
    let change = h.change(vec![listener(A, ""), listener_on(B, 77, "", None)], vec![]);
    let rejects = h.state.apply(&change, &mut binder);
    assert_eq!(
        rejects[0].message.split(':').next(),
        Some("cannot listen on 127.0.0.1")
    );
    assert_eq!(
        reasons(rejects),
        [(B.to_owned(), "PortUnavailable".to_owned())]
    );
    assert_eq!(binder.1.len(), 2);
    assert_eq!(h.select("x.org"), found(A, None));
    // A bind that is open is not opened again.
    let change = h.change(vec![listener(A, "a.example.com")], vec![]);
    h.state.apply(&change, &mut binder);
    assert_eq!(binder.1.len(), 2);
}
