//! Ports of listeners of the Gateway itself: which namespace has one, and for how long.

use super::*;
use std::sync::Arc;

/// A Gateway with an own listener of this transport that takes the routes of red, blue and green, whose claims are
/// recorded when the test says so.
fn with_own_listener(by: Transport) -> Translator {
    let mut translator = Translator::new(Settings {
        claims: ClaimMode::Recorded,
        ..settings()
    });
    translator.apply([our_class(), own_listener(by, NamespaceScope::All)].map(Change::Put));
    translator
}

fn own_listener(by: Transport, routes: NamespaceScope) -> Object {
    let mut own = listener("own", 5432, protocol(by), "", None);
    own.allowed_namespaces = routes;
    gateway("one", vec![own], NamespaceScope::Same)
}

fn on_own(by: Transport, namespace: &str, created: i64) -> Change {
    let parents = vec![parent("Gateway", Some("platform"), "one", None)];
    let backends = vec![backend(namespace, "db", 1, 1)];
    let of = (namespace, "db", created);
    Change::Put(port_route(by, of, parents, backends))
}

fn claim_of(by: Transport) -> ClaimKey {
    ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: port(5432),
        transport: by,
    })
}

/// Writes down who is to hold the port, as the leader does.
fn record(translator: &mut Translator, by: Transport) -> String {
    let key = claim_of(by);
    let Some(ClaimState::Wanted(holder)) = translator.claim_states().get(&key) else {
        panic!("nobody asks: {:?}", translator.claim_states().get(&key));
    };
    let holder = holder.clone();
    assert_eq!(holder.speaks, Some(Group::Raw));
    let recorded = BTreeMap::from([(key, Some(holder.clone()))]);
    translator.apply([Change::Claims(recorded)]);
    holder.namespace.to_string()
}

fn let_go(translator: &mut Translator, by: Transport) {
    let nobody = BTreeMap::from([(claim_of(by), None)]);
    translator.apply([Change::Claims(nobody)]);
}

/// The namespaces whose routes the proxies have.
fn served(translator: &Translator, by: Transport) -> Vec<&'static str> {
    let of = ["platform", "red", "blue", "green"].into_iter();
    of.filter(|of| held_of(translator, by, of, "db").is_some())
        .collect()
}

/// Truth, reason and message of Accepted of a namespace's route on the Gateway's own listener.
fn on_own_accepted(
    translator: &Translator,
    by: Transport,
    namespace: &str,
) -> (Truth, Reason, String) {
    let key = key(Kind::of_port_route(by), namespace, "db");
    let Some(Status::Route(status)) = translator.statuses().get(&key) else {
        panic!("no status");
    };
    let mut conditions = status.parents.iter().flat_map(|parent| &parent.conditions);
    let accepted = conditions.find(|of| of.kind == ConditionType::Accepted);
    let accepted = accepted.expect("a condition");
    (accepted.truth, accepted.reason, accepted.message.clone())
}

/// An older route that is edited, or restored, does not take the port of the team that serves it.
#[test]
fn a_port_of_the_gateway_stays_with_the_namespace_that_serves_it() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        assert_eq!(served(&translator, by), [""; 0], "it is not recorded yet");
        assert_eq!(on_own_accepted(&translator, by, "red").0, Truth::True);
        assert_eq!(record(&mut translator, by), "red");
        assert_eq!(served(&translator, by), ["red"]);

        translator.apply([on_own(by, "blue", 1)]);
        translator.apply([on_own(by, "green", 9)]);
        translator.apply([on_own(by, "blue", 2)]);
        assert_eq!(served(&translator, by), ["red"]);
        for loser in ["blue", "green"] {
            let (truth, reason, message) = on_own_accepted(&translator, by, loser);
            assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
            let said = format!(
                "{} port 5432 of Gateway platform/one belongs to another namespace",
                by.as_str()
            );
            assert!(message.contains(&said), "{message}");
        }
        let (truth, reason, message) = on_own_accepted(&translator, by, "red");
        assert_eq!((truth, reason), (Truth::True, Reason::Accepted));
        assert_eq!(message, "The route is accepted");

        // Red is away for a moment, as with delete and apply: nobody else is served, and red comes back.
        let red = key(Kind::of_port_route(by), "red", "db");
        translator.apply([Change::Remove(red.clone())]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
        assert_eq!(served(&translator, by), [""; 0]);
        translator.apply([on_own(by, "red", 20)]);
        assert_eq!(served(&translator, by), ["red"]);

        // It is away for longer than the grace: the oldest of the others has it, and red is a newcomer.
        translator.apply([Change::Remove(red)]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "blue");
        translator.apply([on_own(by, "red", 0)]);
        assert_eq!(served(&translator, by), ["blue"]);
    }
}

/// Whoever waits for a mistake in an edit of the only route gets nothing by it.
#[test]
fn a_mistake_in_an_edit_gives_no_port_to_who_waits_for_it() {
    for by in Transport::ALL {
        let mistaken_of = |namespace, created| {
            let Change::Put(Object::PortRoute(mut route)) = on_own(by, namespace, created) else {
                panic!("another change");
            };
            let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
            route.findings.push(mistake);
            Change::Put(Object::PortRoute(route))
        };
        let mistaken = |created| mistaken_of("red", created);
        let mut translator = with_own_listener(by);
        // A listener that is mistaken from the beginning asks for nothing.
        translator.apply([mistaken(5)]);
        assert_eq!(translator.claim_states().get(&claim_of(by)), None);

        translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
        assert_eq!(record(&mut translator, by), "blue");
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "blue", "db"))]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_own(by, "blue", 1), mistaken(5)]);
        assert_eq!(served(&translator, by), [""; 0]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Used));
        let (truth, reason, _) = on_own_accepted(&translator, by, "blue");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        translator.apply([on_own(by, "red", 5)]);
        assert_eq!(served(&translator, by), ["red"]);

        // The Gateway's own namespace keeps its port as well.
        translator.apply([on_own(by, "platform", 9)]);
        assert_eq!(served(&translator, by), ["platform"]);
        translator.apply([mistaken_of("platform", 9)]);
        assert_eq!(served(&translator, by), [""; 0]);
        translator.apply([Change::Remove(key(
            Kind::of_port_route(by),
            "platform",
            "db",
        ))]);
        assert_eq!(served(&translator, by), ["red"]);

        // With the route the port goes, mistaken or not.
        translator.apply([mistaken(5)]);
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "red", "db"))]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
    }
}

/// The same for a listener of a ListenerSet, and for the Gateway's own listener, where the mistake is its admin's.
#[test]
fn a_mistaken_listener_gives_no_port_to_who_waits_for_it() {
    let mistaken = |mut listener: Listener| {
        let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
        listener.findings.push(mistake);
        listener
    };
    for by in Transport::ALL {
        let on_set = |namespace, created, listener| {
            Change::Put(set(namespace, "db", created, "one", vec![listener]))
        };
        let raw = || listener("db", 5432, protocol(by), "", None);
        let unknown = || listener("db", 5432, Protocol::from_text("TPC"), "", None);
        let state = |translator: &Translator| translator.claim_states().get(&claim_of(by)).cloned();
        let mut translator = Translator::new(Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        });
        let named = vec![passthrough("own", "own.example.com")];
        let open = gateway("one", named, NamespaceScope::All);
        translator.apply([our_class(), open].map(Change::Put));
        // A listener that is mistaken from the beginning asks for nothing.
        translator.apply([on_set("red", 5, mistaken(raw()))]);
        assert_eq!(state(&translator), None);

        translator.apply([on_set("red", 5, raw())]);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_set("blue", 1, raw())]);
        for mistake in [mistaken(raw()), mistaken(unknown())] {
            translator.apply([on_set("red", 5, mistake)]);
            assert_eq!(state(&translator), Some(ClaimState::Used));
        }
        // A mistake on another port, or of somebody else, keeps nothing.
        let elsewhere = mistaken(listener("db", 6379, protocol(by), "", None));
        translator.apply([on_set("red", 5, elsewhere)]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([on_set("green", 1, mistaken(raw()))]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([on_set("red", 5, mistaken(raw()))]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        translator.apply([Change::Remove(key(Kind::ListenerSet, "red", "db"))]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));

        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
        record(&mut translator, by);
        translator.apply([Change::Remove(key(Kind::of_port_route(by), "blue", "db"))]);
        let_go(&mut translator, by);
        assert_eq!(record(&mut translator, by), "red");
        translator.apply([on_own(by, "blue", 1)]);
        let mut own = mistaken(listener("own", 5432, protocol(by), "", None));
        own.allowed_namespaces = NamespaceScope::All;
        let slip = gateway("one", vec![own], NamespaceScope::Same);
        translator.apply([Change::Put(slip)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        let (truth, reason, _) = on_own_accepted(&translator, by, "blue");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        translator.apply([Change::Put(own_listener(by, NamespaceScope::All))]);
        assert_eq!(served(&translator, by), ["red"]);
    }
}

#[test]
fn a_route_of_the_gateways_namespace_has_its_port_at_once() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 1)]);
        record(&mut translator, by);
        translator.apply([on_own(by, "platform", 9)]);
        assert_eq!(served(&translator, by), ["platform"]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Revoked));
        let (truth, reason, message) = on_own_accepted(&translator, by, "red");
        assert_eq!((truth, reason), (Truth::False, Reason::PortConflict));
        assert!(message.contains("is reserved for Gateway platform/one itself"));
        let_go(&mut translator, by);
        assert_eq!(translator.claim_states().get(&claim_of(by)), None);
        // It goes, and the first tenant has the port again.
        translator.apply([Change::Remove(key(
            Kind::of_port_route(by),
            "platform",
            "db",
        ))]);
        assert_eq!(record(&mut translator, by), "red");
        assert_eq!(served(&translator, by), ["red"]);
    }
}

/// Whoever may not have the port any more, by its grant or as the Gateway does not admit it, keeps nobody waiting.
#[test]
fn a_port_is_taken_from_whoever_may_not_have_it() {
    for by in Transport::ALL {
        let scope = |namespace: &str| {
            NamespaceScope::Selector(LabelSelector {
                requirements: vec![Requirement::In(
                    "kubernetes.io/metadata.name".into(),
                    vec![namespace.to_owned()],
                )],
            })
        };
        let granted_to = |namespace| {
            let mut grant = hostname_grant("db", &[namespace], &["*"]);
            grant.ports.insert(port(5432));
            grant.protocols.insert(protocol(by));
            Change::Put(Object::HostnameGrant(Arc::new(grant)))
        };
        for by_grant in [true, false] {
            let only_for = |namespace| {
                if by_grant {
                    granted_to(namespace)
                } else {
                    Change::Put(own_listener(by, scope(namespace)))
                }
            };
            let mut translator = with_own_listener(by);
            translator.apply([only_for("red")]);
            translator.apply([on_own(by, "red", 5), on_own(by, "blue", 1)]);
            assert_eq!(record(&mut translator, by), "red");
            assert_eq!(served(&translator, by), ["red"]);
            translator.apply([only_for("blue")]);
            assert_eq!(served(&translator, by), [""; 0]);
            let states = translator.claim_states();
            assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Revoked));
            let_go(&mut translator, by);
            assert_eq!(record(&mut translator, by), "blue");
            assert_eq!(served(&translator, by), ["blue"]);
        }
    }
}

/// A slip in an edit of the Gateway, mended a moment later, hands no port to an older route of somebody else.
#[test]
fn a_port_whose_listener_is_away_for_a_moment_stays_with_its_holder() {
    for by in Transport::ALL {
        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        translator.apply([on_own(by, "blue", 1)]);
        let mut slip = listener("own", 5433, protocol(by), "", None);
        slip.allowed_namespaces = NamespaceScope::All;
        let slip = gateway("one", vec![slip], NamespaceScope::Same);
        translator.apply([Change::Put(slip)]);
        let states = translator.claim_states();
        assert_eq!(states.get(&claim_of(by)), Some(&ClaimState::Unused));
        translator.apply([Change::Put(own_listener(by, NamespaceScope::All))]);
        assert_eq!(served(&translator, by), ["red"]);
    }
}

/// Nobody waits for a grace of somebody who cannot come back: whose grant is withdrawn after the route, or whose routes
/// the Gateway's listener takes no more, though its ListenerSets are let in.
#[test]
fn a_port_that_its_holder_cannot_have_again_is_free_at_once() {
    for by in Transport::ALL {
        let granted_to = |name: &str, namespaces: &[&'static str]| {
            let mut grant = hostname_grant(name, namespaces, &["*"]);
            grant.ports.insert(port(5432));
            grant.protocols.insert(protocol(by));
            Change::Put(Object::HostnameGrant(Arc::new(grant)))
        };
        let state = |translator: &Translator| translator.claim_states().get(&claim_of(by)).cloned();
        let gone = |namespace: &str| Change::Remove(key(Kind::of_port_route(by), namespace, "db"));
        let mut translator = with_own_listener(by);
        translator.apply([granted_to("red", &["red"]), granted_to("blue", &["blue"])]);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        translator.apply([gone("red")]);
        assert_eq!(state(&translator), Some(ClaimState::Unused));
        translator.apply([Change::Remove(key(Kind::HostnameGrant, "platform", "red"))]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));

        let mut translator = with_own_listener(by);
        translator.apply([on_own(by, "red", 5)]);
        record(&mut translator, by);
        let mut own = listener("own", 5432, protocol(by), "", None);
        own.allowed_namespaces = NamespaceScope::Same;
        let narrowed = gateway("one", vec![own], NamespaceScope::All);
        translator.apply([Change::Put(narrowed)]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
    }
}

/// A protocol that nobody can read may be a mistake for one that the namespace may have. It does not keep a port for
/// bytes that the namespace may no longer have.
#[test]
fn a_port_is_taken_from_whoever_may_not_have_it_though_a_mistake_hides_the_protocol() {
    let at = ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: port(443),
        transport: Transport::Tcp,
    });
    let granted = |name: &str, protocols: &[Protocol]| {
        let mut grant = hostname_grant(name, &["red"], &["*"]);
        grant.ports.insert(port(443));
        grant.protocols.extend(protocols.iter().cloned());
        Change::Put(Object::HostnameGrant(Arc::new(grant)))
    };
    let withdrawn = |name: &str| Change::Remove(key(Kind::HostnameGrant, "platform", name));
    let on_set = |protocol: Protocol| {
        let mut listener = listener("db", 443, protocol.clone(), "", None);
        if protocol != Protocol::Tcp {
            let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
            listener.findings.push(mistake);
        }
        Change::Put(set("red", "db", 5, "one", vec![listener]))
    };
    let state = |translator: &Translator| translator.claim_states().get(&at).cloned();
    for mistake in [Protocol::from_text("TPC"), Protocol::Tls] {
        let mut translator = Translator::new(Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        });
        let open = gateway("one", Vec::new(), NamespaceScope::All);
        translator.apply([our_class(), open].map(Change::Put));
        translator.apply([granted("names", &[]), granted("bytes", &[Protocol::Tcp])]);
        translator.apply([on_set(Protocol::Tcp)]);
        let Some(ClaimState::Wanted(holder)) = state(&translator) else {
            panic!("nobody asks: {:?}", state(&translator));
        };
        let recorded = BTreeMap::from([(at.clone(), Some(holder))]);
        translator.apply([Change::Claims(recorded)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        translator.apply([on_set(mistake)]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        // What is left gives it names on the port.
        translator.apply([withdrawn("bytes")]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
        translator.apply([granted("bytes", &[Protocol::Tcp])]);
        assert_eq!(state(&translator), Some(ClaimState::Used));
        // Without any grant, everybody may have names, and nobody the bytes of all of them.
        translator.apply([withdrawn("bytes"), withdrawn("names")]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
        translator.apply([on_set(Protocol::Tcp)]);
        assert_eq!(state(&translator), Some(ClaimState::Revoked));
    }
}

/// The grant of a namespace names the only protocol that it may have. A protocol that nobody can read may be that one.
#[test]
fn a_misspelt_protocol_keeps_a_port_that_is_granted_for_one_protocol() {
    let at = ClaimKey::port(&PortKey {
        gateway: ObjectName::new("platform", "one"),
        port: port(8443),
        transport: Transport::Tcp,
    });
    let mut grant = hostname_grant("names", &["red"], &["*.red.example.com"]);
    grant.ports.insert(port(8443));
    grant.protocols.insert(Protocol::Tls);
    let on_set = |protocol: Protocol, hostname: &str| {
        let mut listener = passthrough("db", hostname);
        listener.port = Some(port(8443));
        if protocol != Protocol::Tls {
            let mistake = Finding::refused(Reason::UnsupportedValue, "", "", "");
            listener.findings.push(mistake);
        }
        listener.protocol = protocol;
        Change::Put(set("red", "db", 5, "one", vec![listener]))
    };
    let state = |translator: &Translator| translator.claim_states().get(&at).cloned();
    let mut translator = Translator::new(Settings {
        claims: ClaimMode::Recorded,
        ..settings()
    });
    let open = gateway("one", Vec::new(), NamespaceScope::All);
    let world = [our_class(), open, Object::HostnameGrant(Arc::new(grant))];
    translator.apply(world.map(Change::Put));
    translator.apply([on_set(Protocol::Tls, "db.red.example.com")]);
    // The name, and then the port.
    for _ in 0..2 {
        let wanted = translator.claim_states().iter();
        let wanted = wanted.filter_map(|(key, state)| match state {
            ClaimState::Wanted(holder) => Some((key.clone(), Some(holder.clone()))),
            _ => None,
        });
        let wanted = wanted.collect();
        translator.apply([Change::Claims(wanted)]);
    }
    assert_eq!(state(&translator), Some(ClaimState::Used));
    let misspelt = || Protocol::from_text("TSL");
    translator.apply([on_set(misspelt(), "db.red.example.com")]);
    assert_eq!(state(&translator), Some(ClaimState::Used));
    // Names that the namespace may have with no protocol keep nothing.
    translator.apply([on_set(misspelt(), "db.blue.example.com")]);
    assert_eq!(state(&translator), Some(ClaimState::Unused));
}

/// TCP and UDP of one number are two ports, with a holder each.
#[test]
fn a_port_of_the_other_transport_is_another_port() {
    let mut translator = with_own_listener(Transport::Tcp);
    let mut listeners = Vec::new();
    for by in Transport::ALL {
        let mut own = listener(by.as_str(), 5432, protocol(by), "", None);
        own.allowed_namespaces = NamespaceScope::All;
        listeners.push(own);
    }
    let both = gateway("one", listeners, NamespaceScope::Same);
    translator.apply([Change::Put(both)]);
    translator.apply([on_own(Transport::Tcp, "red", 1)]);
    translator.apply([on_own(Transport::Udp, "blue", 1)]);
    assert_eq!(record(&mut translator, Transport::Tcp), "red");
    assert_eq!(record(&mut translator, Transport::Udp), "blue");
    assert_eq!(served(&translator, Transport::Tcp), ["red"]);
    assert_eq!(served(&translator, Transport::Udp), ["blue"]);
}
