//! TLS towards clients and backends, as it is on the stream: what is trusted, what is closed, and that
//! nothing falls back to plaintext or to no check at all.

use std::sync::Arc;

use prost::Message;
use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_model::service::ServiceType;
use vestibule_model::tls_policy::PolicyTarget;
use vestibule_operator::translate::{Change, Status, Translator};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{
    PerPort, Trusts, config_map, core, gateway_tls, on_8443, policy, validation, with_tls,
};
use vestibule_stream::proto::{self, listener, resource, tls_listener};
use vestibule_stream::{ResourceKey, ResourceKind};

fn resource(translator: &Translator, kind: ResourceKind, name: &str) -> Option<resource::Resource> {
    let encoded = translator.resources().get(&ResourceKey::new(kind, name))?;
    let decoded = proto::Resource::decode(encoded.upsert().resource).expect("a resource");
    decoded.resource
}

fn bundle(translator: &Translator, name: &str) -> Option<usize> {
    match resource(translator, ResourceKind::TrustBundle, name)? {
        resource::Resource::TrustBundle(bundle) => Some(bundle.certificates.len()),
        other => panic!("{other:?}"),
    }
}

fn backend_tls(translator: &Translator, name: &str) -> Option<proto::BackendTls> {
    match resource(translator, ResourceKind::Backend, name).expect("a backend") {
        resource::Resource::Backend(backend) => backend.tls,
        other => panic!("{other:?}"),
    }
}

fn held_listener(translator: &Translator, name: &str) -> Option<proto::Listener> {
    match resource(translator, ResourceKind::Listener, name)? {
        resource::Resource::Listener(listener) => Some(listener),
        other => panic!("{other:?}"),
    }
}

/// The settings of a Gateway.
fn gateway_settings(translator: &Translator, name: &str) -> proto::GatewaySettings {
    match resource(translator, ResourceKind::GatewaySettings, name) {
        Some(resource::Resource::GatewaySettings(settings)) => settings,
        other => panic!("{other:?}"),
    }
}

/// What an HTTPS listener asks of clients.
fn asked(translator: &Translator, name: &str) -> Option<proto::ClientValidation> {
    let listener = held_listener(translator, name).expect("it is bound");
    match listener.protocol.expect("a protocol") {
        listener::Protocol::Http(http) => http.terminate.expect("TLS").client_validation,
        listener::Protocol::Tls(tls) => match tls.mode.expect("a mode") {
            tls_listener::Mode::Terminate(terminate) => terminate.client_validation,
            tls_listener::Mode::Passthrough(_) => None,
        },
        listener::Protocol::Tcp(_) | listener::Protocol::Udp(_) => None,
    }
}

/// `Type=Status/Reason` of a Gateway's listener.
fn conditions(translator: &Translator, object: &ObjectKey, listener: &str) -> Vec<String> {
    let Some(Status::Listeners(status)) = translator.statuses().get(object) else {
        panic!("{object} has no status");
    };
    let listener = status.listeners.iter().find(|l| &*l.name == listener);
    let conditions = &listener.expect("the listener").conditions;
    let shown = conditions
        .iter()
        .filter(|c| c.kind != ConditionType::Conflicted);
    shown
        .map(|c| format!("{}={}/{}", c.kind, c.truth.as_str(), c.reason))
        .collect()
}

fn ca(name: &str) -> vestibule_model::reference::Reference {
    core("ConfigMap", "platform", name, "spec.tls")
}

/// A Gateway with HTTPS on 443 and 8443 and terminated TLS on 9443, and a set with HTTPS on 8443.
fn world(tls: vestibule_model::tls_policy::GatewayTls) -> Vec<Object> {
    let terminate = || Some(Tls::Terminate("platform".into(), "cert".into()));
    let own = vec![
        listener("a", 443, Protocol::Https, "a.example.com", terminate()),
        listener("b", 8443, Protocol::Https, "b.example.com", terminate()),
        listener("t", 9443, Protocol::Tls, "t.example.com", terminate()),
    ];
    let of_set = Some(Tls::Terminate("a".into(), "cert".into()));
    let of_set = vec![listener(
        "s",
        8443,
        Protocol::Https,
        "s.example.com",
        of_set,
    )];
    vec![
        our_class(),
        with_tls(gateway("one", own, NamespaceScope::All), tls),
        set("a", "web", 1, "one", of_set),
        secret("platform", "cert", Holds::Pair(0)),
        secret("a", "cert", Holds::Pair(1)),
    ]
}

const A: &str = "Gateway/platform/one/a";
const B: &str = "Gateway/platform/one/b";
const T: &str = "Gateway/platform/one/t";
const S: &str = "ListenerSet/a/web/s";

fn one() -> ObjectKey {
    key(Kind::Gateway, "platform", "one")
}

#[test]
fn the_default_and_the_ports_cover_https_listeners_and_nothing_else() {
    let tls = gateway_tls(
        Some(validation(vec![ca("one")], false)),
        on_8443(Some(validation(vec![ca("two")], true))),
        None,
    );
    let mut objects = world(tls);
    objects.push(config_map("platform", "one", Trusts::Pair(0)));
    objects.push(config_map("platform", "two", Trusts::Both));
    let translator = translated(objects);
    let said = |name| {
        let asked = asked(&translator, name)?;
        Some((asked.trust_bundles.clone(), asked.mode()))
    };
    let strict = proto::ClientValidationMode::AllowValidOnly;
    let insecure = proto::ClientValidationMode::AllowInsecureFallback;
    assert_eq!(
        said(A),
        Some((vec!["ConfigMap/platform/one".into()], strict))
    );
    assert_eq!(
        said(B),
        Some((vec!["ConfigMap/platform/two".into()], insecure))
    );
    assert_eq!(said(S), said(B));
    assert_eq!(said(T), None);
    assert_eq!(bundle(&translator, "ConfigMap/platform/one"), Some(1));
    assert_eq!(bundle(&translator, "ConfigMap/platform/two"), Some(2));
    // Programmed waits for the bundles too.
    let listener = vestibule_model::key::ListenerKey::new(
        vestibule_model::key::ParentKey::Gateway(one().name),
        "b",
    );
    let needed = translator.resources_of(&listener);
    let name = ResourceKey::new(ResourceKind::TrustBundle, "ConfigMap/platform/two");
    assert!(needed.contains(&name), "{needed:?}");
    // So it does for the settings of the Gateway.
    let name = ResourceKey::new(ResourceKind::GatewaySettings, "platform/one");
    assert!(needed.contains(&name), "{needed:?}");
}

#[test]
fn a_port_may_ask_for_nothing() {
    let tls = gateway_tls(
        Some(validation(vec![ca("one")], false)),
        on_8443(None),
        None,
    );
    let mut objects = world(tls);
    objects.push(config_map("platform", "one", Trusts::Pair(0)));
    let translator = translated(objects);
    assert!(asked(&translator, A).is_some());
    assert_eq!(asked(&translator, B), None);
    assert_eq!(asked(&translator, S), None);
}

#[test]
fn a_secret_that_is_used_in_another_way_than_before_stays_in_use() {
    let pair = || core("Secret", "platform", "cert-2", "spec.tls");
    let shown = || gateway_tls(None, PerPort::default(), Some(pair()));
    let validating = || Some(validation(vec![pair()], false));
    let trusted = || gateway_tls(validating(), PerPort::default(), None);
    let both = || gateway_tls(validating(), PerPort::default(), Some(pair()));
    let gateway_with = |tls| world(tls).swap_remove(1);
    let source = key(Kind::Secret, "platform", "cert-2");
    let mut translator = translated(world(shown()));
    for tls in [trusted(), shown(), both(), trusted(), both(), shown()] {
        let output = translator.apply([Change::Put(gateway_with(tls))]);
        assert_eq!(output.sources.get(&source), None);
        assert!(translator.sources().any(|used| *used == source));
    }
    let none = gateway_tls(None, PerPort::default(), None);
    let output = translator.apply([Change::Put(gateway_with(none))]);
    assert_eq!(output.sources.get(&source), Some(&false));
}

#[test]
fn a_certificate_that_the_proxies_would_refuse_is_told() {
    let mut objects = world(gateway_tls(None, PerPort::default(), None));
    let (held, resource_name) = (secret("a", "cert", Holds::BrokenChain), "a/cert");
    *objects.last_mut().expect("a/cert") = held;
    let translator = translated(objects);
    assert_eq!(
        conditions(&translator, &key(Kind::ListenerSet, "a", "web"), "s"),
        [
            "Accepted=True/Accepted",
            "ResolvedRefs=False/InvalidCertificateRef"
        ]
    );
    let sent = resource(&translator, ResourceKind::Certificate, resource_name);
    let Some(resource::Resource::Certificate(sent)) = sent else {
        panic!("{sent:?}")
    };
    assert!(sent.chain.is_empty(), "an older one stays in use");
}

/// A Secret with a certificate for these names.
fn certified(namespace: &str, name: &str, names: &[&str]) -> Object {
    let names = names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let mut object = secret(namespace, name, Holds::Pair(0));
    if let Object::Secret(secret) = &mut object {
        secret.certificate = Some(Arc::from(made.cert.pem().into_bytes()));
        secret.private_key = Some(Arc::new(
            made.signing_key.serialize_pem().into_bytes().into(),
        ));
    }
    object
}

/// Truth and message of `ResolvedRefs` of a listener with these certificates, and the reasons of the findings about it.
fn resolved_with(hostname: &str, secrets: Vec<Object>) -> (Truth, String, Vec<&'static str>) {
    let of = |secret: &Object| {
        let name = secret.key().name;
        core("Secret", &name.namespace, &name.name, "certificateRefs")
    };
    let tls = Tls::Terminate("a".into(), "replaced".into());
    let mut ends = listener("l", 443, Protocol::Https, hostname, Some(tls));
    ends.tls.as_mut().expect("TLS").certificates = secrets.iter().map(of).collect();
    // The Gateway's own listener may have no hostname, whoever else uses the Gateway.
    let mut own = gateway("one", vec![ends], NamespaceScope::Same);
    if let Object::Gateway(gateway) = &mut own {
        Arc::make_mut(gateway).name = ObjectName::new("a", "one");
    }
    let permit = grant("b", "secrets", ("Gateway", "a"), "Secret");
    let translator = translated([our_class(), own, permit].into_iter().chain(secrets));
    let key = key(Kind::Gateway, "a", "one");
    let Some(Status::Listeners(status)) = translator.statuses().get(&key) else {
        panic!("no status");
    };
    let conditions = &status.listeners[0].conditions;
    let found = conditions
        .iter()
        .find(|c| c.kind == ConditionType::ResolvedRefs);
    let found = found.expect("the condition");
    (
        found.truth,
        found.message.clone(),
        reasons(&translator, &key),
    )
}

#[test]
fn a_certificate_for_other_names_is_told_in_the_status() {
    let own = |name: &str, names: &[&str]| certified("a", name, names);
    let resolved = "All references are resolved";
    for (hostname, secrets) in [
        ("a.test", vec![own("s", &["a.test"])]),
        ("x.a.test", vec![own("s", &["b.test", "*.a.test"])]),
        ("*.a.test", vec![own("s", &["*.a.test"])]),
        ("*.a.test", vec![own("s", &["*.x.a.test"])]),
        // Clients choose by the name that they ask for.
        (
            "*.a.test",
            vec![own("s", &["x.a.test"]), own("t", &["y.a.test"])],
        ),
        (
            "*.a.test",
            vec![own("s", &["b.test"]), own("t", &["y.a.test"])],
        ),
        ("a.test", vec![own("s", &["A.Test"])]),
        ("", vec![own("s", &["b.test"])]),
        ("a.test", vec![own("s", &["b.test"]), own("t", &["a.test"])]),
        ("a.test", vec![certified("b", "s", &["a.test"])]),
    ] {
        let (truth, message, reasons) = resolved_with(hostname, secrets);
        assert_eq!((truth, &*message), (Truth::True, resolved), "{hostname}");
        assert!(reasons.is_empty(), "{hostname}: {reasons:?}");
    }
    let five = ["a.a.test", "b.test", "*.c.test", "d.test", "e.test"];
    for (hostname, secrets, told) in [
        (
            "a.test",
            vec![own("s", &five)],
            "Secret a/s is not valid for a.test (it names *.c.test, a.a.test, b.test and 2 more), so clients refuse it for \
             this name",
        ),
        (
            "x.y.a.test",
            vec![certified("b", "s", &["*.a.test"])],
            "Secret b/s is not valid for x.y.a.test (it names *.a.test), so",
        ),
        (
            "*.a.test",
            vec![own("s", &["a.test", "*.test"])],
            "Secret a/s is not valid for *.a.test (it names *.test, a.test), so clients refuse it for all of these names",
        ),
        (
            "a.test",
            vec![own("s", &["192.0.2.1"])],
            "Secret a/s is not valid for a.test (it names no hostname that a listener can have), so",
        ),
        // Clients do not take it for the name without the dot.
        (
            "a.test",
            vec![own("s", &["a.test."])],
            "Secret a/s is not valid for a.test (it names no hostname that a listener can have), so",
        ),
        (
            "a.test",
            vec![own("s", &["b.test"]), own("t", &["c.test"])],
            "Secret a/s is not valid for a.test (it names b.test), and neither is another one of the listener, so clients \
             refuse them",
        ),
    ] {
        let (truth, message, reasons) = resolved_with(hostname, secrets);
        assert_eq!(truth, Truth::True, "{message}");
        let start = format!("{resolved}; certificateRefs: the certificate in {told}");
        assert!(message.starts_with(&start), "{message}");
        assert_eq!(reasons, ["CertificateNameMismatch"], "{hostname}");
    }
    // A reference that does not resolve may be the one to the certificate for the name.
    let broken = secret("a", "t", Holds::Mismatch);
    let (truth, _, reasons) = resolved_with("a.test", vec![own("s", &["b.test"]), broken]);
    assert_eq!(truth, Truth::False);
    assert_eq!(reasons, ["InvalidCertificateRef"]);
}

#[test]
fn a_certificate_that_is_replaced_by_one_for_the_hostname_ends_the_hint() {
    let tls = Tls::Terminate("a".into(), "cert".into());
    let ends = listener("s", 443, Protocol::Https, "s.test", Some(tls));
    let of_set = key(Kind::ListenerSet, "a", "web");
    let mut translator = translated([
        our_class(),
        gateway("one", Vec::new(), NamespaceScope::All),
        set("a", "web", 1, "one", vec![ends]),
        certified("a", "cert", &["t.test"]),
    ]);
    assert_eq!(reasons(&translator, &of_set), ["CertificateNameMismatch"]);
    translator.apply([Change::Put(certified("a", "cert", &["s.test"]))]);
    assert!(reasons(&translator, &of_set).is_empty());
}

#[test]
fn a_secret_that_was_made_again_is_told_from_the_one_before() {
    let of = |uid: &str, holds| {
        let mut object = secret("a", "cert", holds);
        if let Object::Secret(secret) = &mut object {
            secret.meta.uid = uid.into();
        }
        object
    };
    let mut translator = translated(world(gateway_tls(None, PerPort::default(), None)));
    for (uid, holds) in [
        ("first", Holds::Pair(0)),
        ("first", Holds::NotPem),
        // A proxy keeps the last good version for the same Secret alone.
        ("second", Holds::NotPem),
        ("second", Holds::Pair(0)),
    ] {
        translator.apply([Change::Put(of(uid, holds))]);
        let sent = resource(&translator, ResourceKind::Certificate, "a/cert");
        let Some(resource::Resource::Certificate(sent)) = sent else {
            panic!("{sent:?}")
        };
        assert_eq!(sent.secret_uid, uid);
        assert_eq!(sent.chain.is_empty(), holds == Holds::NotPem);
    }
}

#[test]
fn a_set_whose_listener_may_use_one_of_its_certificates_is_accepted() {
    let of_set = |secret: &str| {
        let tls = Some(Tls::Terminate("a".into(), secret.into()));
        let mut listener = listener("s", 8443, Protocol::Https, "s.example.com", tls);
        let forbidden = core("Secret", "platform", "cert", "forbidden");
        let tls = listener.tls.as_mut().expect("TLS");
        tls.certificates.insert(0, forbidden);
        set("a", "web", 1, "one", vec![listener])
    };
    let mut objects = world(gateway_tls(None, PerPort::default(), None));
    objects.push(of_set("cert"));
    let mut translator = translated(objects);
    let said = |translator: &Translator| {
        let set = key(Kind::ListenerSet, "a", "web");
        let Some(Status::Listeners(status)) = translator.statuses().get(&set) else {
            panic!("{set} has no status");
        };
        let accepted = &status.conditions[0];
        let gateway = translator.statuses().get(&one());
        let Some(Status::Listeners(gateway)) = gateway else {
            panic!("no status of the Gateway");
        };
        let listener = conditions(translator, &set, "s");
        let accepted = format!("{}={}", accepted.kind, accepted.truth.as_str());
        (accepted, listener, gateway.attached_listener_sets)
    };
    let expected = (
        "Accepted=True".to_owned(),
        vec![
            "Accepted=True/Accepted".to_owned(),
            "ResolvedRefs=False/RefNotPermitted".to_owned(),
        ],
        1,
    );
    assert_eq!(said(&translator), expected, "it is served");
    assert!(held_listener(&translator, S).is_some());
    // Whatever issues the certificate looks at accepted sets only.
    translator.apply([Change::Put(of_set("not-yet"))]);
    assert_eq!(said(&translator), expected, "it waits for its own Secret");
}

#[test]
fn one_reference_of_several_suffices_and_none_closes_the_port() {
    let tls = |names: &[&str]| {
        let references = names.iter().map(|name| ca(name)).collect();
        gateway_tls(
            Some(validation(references, false)),
            PerPort::default(),
            None,
        )
    };
    let mut objects = world(tls(&["one", "two"]));
    objects.push(config_map("platform", "two", Trusts::Pair(0)));
    let mut translator = translated(objects);
    assert_eq!(
        conditions(&translator, &one(), "a"),
        [
            "Accepted=True/Accepted",
            "ResolvedRefs=False/InvalidCACertificateRef"
        ]
    );
    let before = held_listener(&translator, A);

    for trusts in [Trusts::NotPem, Trusts::Nothing, Trusts::NoEntry] {
        translator.apply([Change::Put(config_map("platform", "two", trusts))]);
        assert_eq!(
            conditions(&translator, &one(), "a"),
            [
                "Accepted=False/NoValidCACertificate",
                "ResolvedRefs=False/InvalidCACertificateRef"
            ]
        );
        let set = key(Kind::ListenerSet, "a", "web");
        assert_eq!(
            conditions(&translator, &set, "s"),
            conditions(&translator, &one(), "a")
        );
        assert_eq!(
            conditions(&translator, &one(), "t")[0],
            "Accepted=True/Accepted"
        );
        // It stays bound, asks for what nobody can show, and no bundle is held.
        assert_eq!(held_listener(&translator, A), before);
        assert_eq!(bundle(&translator, "ConfigMap/platform/two"), None);
    }

    translator.apply([Change::Put(config_map("platform", "one", Trusts::Pair(1)))]);
    assert_eq!(
        conditions(&translator, &one(), "a"),
        [
            "Accepted=True/Accepted",
            "ResolvedRefs=False/InvalidCACertificateRef"
        ]
    );
    assert_eq!(held_listener(&translator, A), before);
}

#[test]
fn sources_in_another_namespace_are_not_read_without_a_reference_grant() {
    let elsewhere = core("ConfigMap", "vault", "ca", "spec.tls");
    let client = core("Secret", "vault", "client", "spec.tls.backend");
    let tls = gateway_tls(
        Some(validation(vec![elsewhere], false)),
        PerPort::default(),
        Some(client),
    );
    let mut objects = world(tls);
    objects.push(config_map("vault", "ca", Trusts::Pair(0)));
    objects.push(secret("vault", "client", Holds::Pair(0)));
    let mut translator = translated(objects);
    let in_vault = |translator: &Translator| {
        let sources = translator.sources();
        sources
            .filter(|key| &*key.name.namespace == "vault")
            .count()
    };
    assert_eq!(in_vault(&translator), 0);
    assert_eq!(
        asked(&translator, A).expect("closed").trust_bundles,
        [""; 0]
    );
    // No certificate has this name, so there are no connections to backends over TLS.
    let shown =
        |translator: &Translator| gateway_settings(translator, "platform/one").backend_certificate;
    assert_eq!(shown(&translator), "Gateway/platform/one");

    translator.apply(
        [
            grant("vault", "maps", ("Gateway", "platform"), "ConfigMap"),
            grant("vault", "secrets", ("Gateway", "platform"), "Secret"),
        ]
        .map(Change::Put),
    );
    assert_eq!(in_vault(&translator), 2);
    assert_eq!(bundle(&translator, "ConfigMap/vault/ca"), Some(1));
    assert_eq!(shown(&translator), "vault/client");
    let certificate = ResourceKey::new(ResourceKind::Certificate, "vault/client");
    assert!(translator.resources().contains_key(&certificate));

    let output = translator.apply([Change::Remove(key(
        Kind::ReferenceGrant,
        "vault",
        "secrets",
    ))]);
    assert_eq!(
        output.resources.get(&certificate).map(Option::is_some),
        Some(false)
    );
    assert_eq!(shown(&translator), "Gateway/platform/one");
}

#[test]
fn of_a_secret_out_of_reach_it_is_not_said_that_it_does_not_exist() {
    let authority = core("Secret", "platform", "ca", "spec.tls");
    let tls = gateway_tls(
        Some(validation(vec![authority], false)),
        PerPort::default(),
        Some(core("Secret", "platform", "client", "spec.tls.backend")),
    );
    let mut objects = world(tls);
    objects.retain(|object| object.key().kind != Kind::Secret);
    let said = |namespaces: Option<&[&str]>| {
        let namespaces = namespaces.map(|all| Arc::new(all.iter().map(|n| (*n).into()).collect()));
        let mut translator = Translator::new(settings()).reading_secrets_of(namespaces);
        translator.apply(objects.iter().cloned().map(Change::Put));
        let findings = translator.findings().values().flatten();
        findings.map(ToString::to_string).collect::<Vec<_>>()
    };
    let count = |said: &[String], words: &str| said.iter().filter(|s| s.contains(words)).count();
    let (absent, hidden) = ("does not exist", "secrets.namespaces");
    for (namespaces, how_many) in [
        (None, (6, 0)),
        (Some(&["platform", "a"][..]), (6, 0)),
        // All but the set's.
        (Some(&["a"][..]), (1, 5)),
    ] {
        let said = said(namespaces);
        let counts = (count(&said, absent), count(&said, hidden));
        assert_eq!(counts, how_many, "{namespaces:?}: {said:#?}");
    }
}

/// A route of tenant `a` to port 1 of Service `one`, on a terminated listener.
fn routed() -> Vec<Object> {
    let mut objects = world(gateway_tls(None, PerPort::default(), None));
    let mut gateway = objects.remove(1);
    if let Object::Gateway(gateway) = &mut gateway {
        for listener in &mut Arc::make_mut(gateway).listeners {
            listener.allowed_namespaces = NamespaceScope::All;
        }
    }
    let parents = vec![parent("Gateway", Some("platform"), "one", Some("t"))];
    let backends = vec![backend("a", "one", 1, 1)];
    objects.push(gateway);
    objects.push(route("a", "r", 1, parents, &["t.example.com"], backends));
    objects.push(service("a", "one", &[1, 2]));
    objects.push(slice("a", "one", 0, 1, &[1]));
    objects
}

const BACKEND: &str = "a/one:1";

#[test]
fn a_policy_says_whom_to_trust_and_its_end_is_plaintext() {
    let mut objects = routed();
    objects.push(policy("a", "p", 1, ("one", Some("p1")), Some("ca")));
    objects.push(config_map("a", "ca", Trusts::Both));
    let mut translator = translated(objects);
    let tls = backend_tls(&translator, BACKEND).expect("TLS");
    assert_eq!(tls.hostname, "backend.example.com");
    assert_eq!(tls.trust_bundles, ["ConfigMap/a/ca"]);
    assert!(!tls.system_trust && !tls.invalid);
    assert_eq!(tls.subject_alt_names.len(), 1);
    assert_eq!(bundle(&translator, "ConfigMap/a/ca"), Some(2));

    // New certificates move nothing but the bundle.
    let put = Change::Put(config_map("a", "ca", Trusts::Pair(1)));
    let output = translator.apply([put]);
    let moved: Vec<_> = output.resources.keys().map(ResourceKey::kind).collect();
    assert_eq!(moved, [ResourceKind::TrustBundle]);
    assert!(output.statuses.is_empty());

    translator.apply([Change::Remove(key(Kind::BackendTlsPolicy, "a", "p"))]);
    assert_eq!(backend_tls(&translator, BACKEND), None);
    assert_eq!(bundle(&translator, "ConfigMap/a/ca"), None);
    assert!(!translator.sources().any(|key| key.kind == Kind::ConfigMap));
}

/// GatewayParameters p, which say whose backends see the certificate.
fn shown_to(scope: Option<NamespaceScope>) -> Change {
    let mut object = parameters_of("p", ServiceType::ClusterIp, true);
    if let Object::GatewayParameters(parameters) = &mut object {
        Arc::make_mut(parameters).certificate_namespaces = scope;
    }
    Change::Put(object)
}

#[test]
fn the_client_certificate_is_for_the_namespaces_that_the_parameters_say() {
    let mut objects = routed();
    for object in &mut objects {
        if let Object::Gateway(gateway) = object {
            Arc::make_mut(gateway).infrastructure.parameters = Some(parameters_at("p"));
            let certificate = core("Secret", "platform", "cert", "spec.tls.backend");
            Arc::make_mut(gateway).tls.client_certificate = Some(certificate);
        }
    }
    objects.push(policy("a", "p", 1, ("one", Some("p1")), Some("ca")));
    objects.push(config_map("a", "ca", Trusts::Both));
    let mut translator = translated(objects);
    // What all are shown, what some are, and whether the backend is among them.
    let told = |translator: &Translator| {
        let settings = gateway_settings(translator, "platform/one");
        let backend = match resource(translator, ResourceKind::Backend, BACKEND) {
            Some(resource::Resource::Backend(backend)) => backend,
            other => panic!("{other:?}"),
        };
        (
            settings.backend_certificate,
            settings.selective_backend_certificate,
            backend.certificate_of,
        )
    };
    let none = Vec::<String>::new();
    let all = (String::from("platform/cert"), String::new(), none.clone());
    let nobody_here = (String::new(), String::from("platform/cert"), none);
    let here = (
        String::new(),
        String::from("platform/cert"),
        vec!["platform/one".to_owned()],
    );
    // There are no such parameters: what they say is not known.
    assert_eq!(told(&translator), nobody_here);
    translator.apply([shown_to(None)]);
    assert_eq!(told(&translator), all);
    translator.apply([shown_to(Some(NamespaceScope::Same))]);
    assert_eq!(told(&translator), nobody_here);
    translator.apply([shown_to(Some(NamespaceScope::All))]);
    assert_eq!(told(&translator), all);
    let with_label = NamespaceScope::Selector(LabelSelector {
        requirements: vec![Requirement::In("mesh".into(), vec!["inner".into()])],
    });
    translator.apply([shown_to(Some(with_label))]);
    assert_eq!(told(&translator), nobody_here);
    translator.apply([Change::Put(namespace("a", &[("mesh", "inner")]))]);
    assert_eq!(told(&translator), here);
    translator.apply([Change::Put(namespace("a", &[("mesh", "outer")]))]);
    assert_eq!(told(&translator), nobody_here);
    // In plaintext nobody is shown anything.
    translator.apply([Change::Put(namespace("a", &[("mesh", "inner")]))]);
    translator.apply([Change::Remove(key(Kind::BackendTlsPolicy, "a", "p"))]);
    assert_eq!(told(&translator), nobody_here);
}

#[test]
fn a_policy_that_is_not_valid_never_ends_in_plaintext() {
    let unreadable = Object::Unreadable(
        key(Kind::BackendTlsPolicy, "a", "p"),
        Meta::default(),
        Finding::refused(Reason::Unreadable, "spec", "does not decode", ""),
    );
    let refused = |mut object: Object| {
        if let Object::BackendTlsPolicy(policy) = &mut object {
            let field = "spec.validation.hostname";
            policy
                .findings
                .push(Finding::refused(Reason::InvalidHostname, field, "", ""));
        }
        object
    };
    for bad in [
        policy("a", "p", 1, ("one", None), Some("missing")),
        refused(policy("a", "p", 1, ("one", None), None)),
        unreadable,
    ] {
        let mut objects = routed();
        objects.push(bad.clone());
        let tls = backend_tls(&translated(objects), BACKEND).expect("no plaintext");
        assert!(tls.invalid, "{bad:?}");
    }
    // One of another namespace is none of this Service's business.
    let mut objects = routed();
    objects.push(policy("b", "p", 1, ("one", None), Some("missing")));
    assert_eq!(backend_tls(&translated(objects), BACKEND), None);
}

#[test]
fn an_invalid_policy_that_comes_first_is_not_replaced_by_the_next() {
    let mut objects = routed();
    objects.push(policy("a", "old", 1, ("one", None), Some("missing")));
    objects.push(policy("a", "young", 2, ("one", None), None));
    let mut translator = translated(objects);
    assert!(backend_tls(&translator, BACKEND).expect("TLS").invalid);
    let accepted = |translator: &Translator, name: &str| {
        let status = translator
            .statuses()
            .get(&key(Kind::BackendTlsPolicy, "a", name));
        let Some(Status::Policy(status)) = status else {
            panic!("{name} has no status")
        };
        let condition = &status.ancestors[0].conditions[0];
        (condition.truth, condition.reason)
    };
    assert_eq!(
        accepted(&translator, "old"),
        (Truth::False, Reason::NoValidCACertificate)
    );
    assert_eq!(
        accepted(&translator, "young"),
        (Truth::False, Reason::Conflicted)
    );

    // A port's own comes before the Service's, whatever their age.
    translator.apply([Change::Put(policy(
        "a",
        "port",
        3,
        ("one", Some("p1")),
        None,
    ))]);
    assert!(backend_tls(&translator, BACKEND).expect("TLS").system_trust);
    assert_eq!(
        accepted(&translator, "port"),
        (Truth::True, Reason::Accepted)
    );
    translator.apply([Change::Remove(key(Kind::BackendTlsPolicy, "a", "port"))]);
    translator.apply([Change::Remove(key(Kind::BackendTlsPolicy, "a", "old"))]);
    assert!(backend_tls(&translator, BACKEND).expect("TLS").system_trust);
    assert_eq!(
        accepted(&translator, "young"),
        (Truth::True, Reason::Accepted)
    );
}

/// However many policies there are for the same Services, an edit of one judges the others only if another one comes
/// first now. Otherwise whoever writes many of them delays everybody else's changes.
#[test]
fn a_policy_is_judged_without_the_others_unless_another_one_comes_first() {
    const OTHERS: usize = 40;
    let one = |n: usize, created: i64, trusts: Option<&str>| {
        let name = format!("p{n}");
        let mut object = policy("a", &name, created, ("one", None), trusts);
        if let (Object::BackendTlsPolicy(of), Object::BackendTlsPolicy(port)) = (
            &mut object,
            policy("a", &name, created, ("one", Some("p1")), None),
        ) {
            of.targets.extend(port.targets);
        }
        object
    };
    let winner_of = |translator: &Translator, n: usize| {
        let key = key(Kind::BackendTlsPolicy, "a", &format!("p{n}"));
        let Some(Status::Policy(status)) = translator.statuses().get(&key) else {
            panic!("p{n} has no status")
        };
        let accepted = &status.ancestors[0].conditions[0];
        let said = accepted.message.split("BackendTLSPolicy a/").nth(1);
        said.and_then(|said| said.split_whitespace().next().map(str::to_owned))
    };
    let mut objects = routed();
    objects.extend((0..=OTHERS).map(|n| one(n, 10, None)));
    let mut translator = translated(objects);
    assert_eq!(winner_of(&translator, 0), None);
    assert_eq!(winner_of(&translator, 7).as_deref(), Some("p0"));
    let mut work = |changes: Vec<Change>| {
        let work = translator.apply(changes).work;
        (work.policies, work.backends, work.routes)
    };
    let gone = |n: usize| Change::Remove(key(Kind::BackendTlsPolicy, "a", &format!("p{n}")));
    let put = |n: usize, created: i64, trusts| Change::Put(one(n, created, trusts));
    // One that comes later changes, goes and comes.
    assert_eq!(work(vec![put(7, 10, Some("ca"))]), (1, 0, 0));
    assert_eq!(work(vec![gone(7)]), (1, 0, 0));
    assert_eq!(work(vec![put(7, 10, None)]), (1, 0, 0));
    // The first one changes and stays the first.
    assert_eq!(work(vec![put(0, 9, None)]), (1, 1, 0));
    // It can no longer be applied, which the route says, and then it can again.
    assert_eq!(work(vec![put(0, 9, Some("ca"))]), (1, 1, 1));
    assert_eq!(work(vec![put(0, 9, None)]), (1, 1, 1));
    assert_eq!(
        work(vec![
            put(9, 1, None),
            put(0, 9, Some("ca")),
            put(9, 10, None)
        ]),
        (2, 1, 1)
    );
    assert_eq!(work(vec![gone(0), put(0, 9, Some("ca"))]), (1, 1, 0));
    // Another route uses the Service through the same Gateway.
    let parents = vec![parent("Gateway", Some("platform"), "one", Some("t"))];
    let backends = vec![backend("a", "one", 1, 1)];
    let second = route("a", "s", 2, parents, &["t.example.com"], backends);
    assert_eq!(work(vec![Change::Put(second)]).0, 0);
    assert_eq!(
        work(vec![Change::Remove(key(Kind::TlsRoute, "a", "r"))]).0,
        0
    );
    // Another one comes first.
    assert_eq!(work(vec![put(9, 1, None)]), (OTHERS + 1, 1, 1));
    assert_eq!(winner_of(&translator, 7).as_deref(), Some("p9"));
    assert_eq!(winner_of(&translator, 0).as_deref(), Some("p9"));
    translator.apply([gone(9)]);
    assert_eq!(winner_of(&translator, 7).as_deref(), Some("p0"));
    let left = (0..=OTHERS).map(gone);
    assert!(translator.apply(left).work.routes > 0);
    assert_eq!(backend_tls(&translator, BACKEND), None);
}

#[test]
fn a_policy_for_what_nobody_uses_is_left_to_others() {
    let objects = [
        our_class(),
        service("a", "one", &[1]),
        policy("a", "p", 1, ("one", None), Some("ca")),
        config_map("a", "ca", Trusts::Pair(0)),
    ];
    let translator = translated(objects);
    let key = key(Kind::BackendTlsPolicy, "a", "p");
    assert!(!translator.statuses().contains_key(&key));
    assert_eq!(translator.sources().count(), 0);
    assert!(translator.resources().is_empty());
}

/// The message and the truth of `Accepted` of policy a/p at its only Gateway.
fn accepted_of_policy(translator: &Translator) -> (Truth, String) {
    let policy = key(Kind::BackendTlsPolicy, "a", "p");
    let Some(Status::Policy(status)) = translator.statuses().get(&policy) else {
        panic!("no status");
    };
    assert_eq!(status.ancestors.len(), 1);
    let accepted = &status.ancestors[0].conditions[0];
    (accepted.truth, accepted.message.clone())
}

#[test]
fn a_policy_tells_of_each_target_for_which_it_does_not_hold() {
    let target = |index: usize, kind: &str, name: &str| PolicyTarget {
        reference: core(kind, "a", name, &format!("spec.targetRefs[{index}]")),
        section: None,
    };
    let mut several = policy("a", "p", 2, ("one", None), None);
    if let Object::BackendTlsPolicy(policy) = &mut several {
        // No route uses these. The first one is wrong in its kind, as its own finding says.
        policy.targets.extend([
            target(1, "ConfigMap", "one"),
            target(2, "Service", "typo"),
            target(3, "Service", "other"),
        ]);
        policy.findings.push(Finding::warning(
            Reason::InvalidKind,
            "spec.targetRefs[1]",
            "is no Service",
            "",
        ));
    }
    let mut objects = routed();
    objects.push(several);
    let mut translator = translated(objects);
    let (truth, message) = accepted_of_policy(&translator);
    assert_eq!(truth, Truth::True);
    for named in [
        "spec.targetRefs[1]: is no Service",
        "spec.targetRefs[2]: Service a/typo does not exist",
        "spec.targetRefs[3]: Service a/other does not exist",
    ] {
        assert!(message.contains(named), "{message}");
    }
    // Nor does it hold for the one that is used: all of them are named still.
    translator.apply([Change::Put(policy("a", "old", 1, ("one", None), None))]);
    let (truth, message) = accepted_of_policy(&translator);
    assert_eq!(truth, Truth::False);
    assert!(message.starts_with("spec.targetRefs[0]: BackendTLSPolicy a/old holds"));
    assert!(message.contains("spec.targetRefs[2]"), "{message}");
}

#[test]
fn a_grant_tells_of_each_gateway_that_is_not_there() {
    let mut grant = hostname_grant("g", &["a"], &["*"]);
    grant.gateways = ["one", "typo", "other"].map(Into::into).into();
    let mut objects = routed();
    objects.push(Object::HostnameGrant(Arc::new(grant)));
    let translator = translated(objects);
    let grant = key(Kind::HostnameGrant, "platform", "g");
    let Some(Status::Grant(status)) = translator.statuses().get(&grant) else {
        panic!("no status");
    };
    let message = &status.conditions[1].message;
    assert!(message.contains("Gateway platform/other does not exist"));
    assert!(message.contains("Gateway platform/typo does not exist"));
}

/// Every connection to a listener without a certificate is closed, so nothing of its routes is in force.
#[test]
fn a_route_whose_listener_has_no_certificate_is_not_programmed() {
    let programmed = |world: &Translator| {
        let key = ObjectKey::new(Kind::TlsRoute, "a", "web");
        let Some(Status::Route(status)) = world.statuses().get(&key) else {
            panic!("no status")
        };
        let mut conditions = status.parents[0].conditions.iter();
        let found = conditions.find(|c| c.kind == ConditionType::RouteProgrammed);
        found.map(|c| (c.truth, c.reason))
    };
    let ends = |namespace: &str| {
        let tls = Tls::Terminate(namespace.into(), "cert".into());
        let ends = listener("l", 443, Protocol::Tls, "x.example.com", Some(tls));
        set("a", "set", 1, "one", vec![ends])
    };
    let to = vec![parent("ListenerSet", None, "set", None)];
    let mut world = translated([
        our_class(),
        gateway("one", Vec::new(), NamespaceScope::All),
        ends("a"),
        route("a", "web", 1, to, &["x.example.com"], Vec::new()),
    ]);
    let nothing = Some((Truth::False, Reason::Invalid));
    assert_eq!(programmed(&world), nothing);
    // With one, the proxies' acknowledgements decide.
    world.apply([Change::Put(secret("a", "cert", Holds::Pair(0)))]);
    assert_eq!(programmed(&world), None);
    // The Secret of another namespace is not for it.
    world.apply([Change::Put(secret("b", "cert", Holds::Pair(0)))]);
    world.apply([Change::Put(ends("b"))]);
    assert_eq!(programmed(&world), nothing);
    world.apply([Change::Put(ends("a"))]);
    assert_eq!(programmed(&world), None);
    world.apply([Change::Remove(ObjectKey::new(Kind::Secret, "a", "cert"))]);
    assert_eq!(programmed(&world), nothing);
}
