//! What is asked for of certificate engines, what of CAs' challenges is answered, and what listeners say.

#[path = "translate_issuance/challenges.rs"]
mod challenges;
#[path = "translate_issuance/issued.rs"]
mod issued;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::certificate::{
    AddressBlock, AlternativeNames, CertificateAnnotations, CertificateOptions,
};
use vestibule_model::challenge::{
    ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType, Reach, Reaches,
};
use vestibule_model::condition::{Condition, ConditionType, Reason, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::Hostname;
use vestibule_model::hostname_grant::GrantedCertificates;
use vestibule_model::http::{HttpFilter, Redirect, Scheme};
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::issuer::{Engine, IssuerAnnotations};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Status, Translator};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;

const OURS: Reach = Reach::Ours;
const NONE: Reach = Reach::NoListener;

fn host(text: &str) -> Hostname {
    Hostname::parse(text).expect("a hostname")
}

/// A listener that terminates TLS with the Secret of its namespace.
fn ends(name: &str, port: u16, hostname: &str, namespace: &str, secret: &str) -> Listener {
    let tls = Tls::Terminate(namespace.into(), secret.into());
    listener(name, port, Protocol::Https, hostname, Some(tls))
}

fn http(name: &str, hostname: &str) -> Listener {
    listener(name, 80, Protocol::Http, hostname, None)
}

fn with(mut object: Object, issuers: IssuerAnnotations) -> Object {
    match &mut object {
        Object::Gateway(gateway) => Arc::make_mut(gateway).issuers = issuers,
        Object::ListenerSet(set) => Arc::make_mut(set).issuers = issuers,
        _ => unreachable!(),
    }
    object
}

fn with_options(mut object: Object, options: CertificateOptions) -> Object {
    if let Object::ListenerSet(set) = &mut object {
        Arc::make_mut(set).certificates = CertificateAnnotations {
            options: Arc::new(options),
            findings: Vec::new(),
        };
    }
    object
}

/// The platform's Gateway with these listeners, and whatever else there is.
fn world(own: Vec<Listener>, others: impl IntoIterator<Item = Object>) -> Translator {
    let base = [our_class(), gateway("one", own, NamespaceScope::All)];
    translated(base.into_iter().chain(others))
}

fn request<'a>(
    world: &'a Translator,
    namespace: &str,
    secret: &str,
) -> Option<&'a CertificateRequest> {
    let request = world.requests().get(&ObjectName::new(namespace, secret));
    request.map(AsRef::as_ref)
}

fn reach_of(world: &Translator, namespace: &str, secret: &str, name: &str) -> Option<Reaches> {
    request(world, namespace, secret)?
        .reach
        .get(&host(name))
        .copied()
}

fn conditions<'a>(world: &'a Translator, object: &ObjectKey, listener: &str) -> &'a [Condition] {
    let Some(Status::Listeners(status)) = world.statuses().get(object) else {
        panic!("no status of {object}");
    };
    let status = status.listeners.iter().find(|l| &*l.name == listener);
    &status.expect("the listener").conditions
}

/// What a listener of a tenant's set says about its certificate.
fn said(world: &Translator, namespace: &str, listener: &str) -> Option<(Truth, Reason)> {
    let object = key(Kind::ListenerSet, namespace, "set");
    let mut conditions = conditions(world, &object, listener).iter();
    let found = conditions.find(|c| c.kind == ConditionType::CertificateIssued);
    found.map(|c| (c.truth, c.reason))
}

fn tenant(namespace: &str, listeners: Vec<Listener>) -> Object {
    set(namespace, "set", 1, "one", listeners)
}

fn challenge(kind: ChallengeType, name: &str, tenant: &str) -> (ChallengeKey, ChallengeAnswer) {
    let key = ChallengeKey {
        gateway: ObjectName::new("platform", "one"),
        kind,
        hostname: host(name),
        token: match kind {
            ChallengeType::TlsAlpn01 => "".into(),
            ChallengeType::Http01 => "token".into(),
        },
    };
    let answer = match kind {
        ChallengeType::TlsAlpn01 => ChallengeProof::TlsAlpn01 {
            certificate: b"certificate".to_vec(),
            private_key: b"key".to_vec().into(),
        },
        ChallengeType::Http01 => ChallengeProof::Http01 {
            key_authorization: "token.thumbprint".into(),
        },
    };
    let tenant = tenant.into();
    (key, ChallengeAnswer { tenant, answer })
}

#[test]
fn a_name_that_is_ours_on_443_is_asked_for() {
    let world = world(
        vec![http("http", "")],
        [with(
            tenant("a", vec![ends("l", 443, "x.example.com", "a", "cert")]),
            acme(),
        )],
    );
    let request = request(&world, "a", "cert").expect("a request");
    assert_eq!(request.hostnames, BTreeSet::from([host("x.example.com")]));
    assert_eq!(request.owner, key(Kind::ListenerSet, "a", "set"));
    assert_eq!(request.gateway, ObjectName::new("platform", "one"));
    let issuer = request.issuer.as_ref().expect("an issuer");
    assert_eq!(
        (issuer.engine, &*issuer.kind),
        (Engine::Acme, "ClusterACMEIssuer")
    );
    // On the Gateway's own port 80 no route has the name.
    assert_eq!(request.reach[&host("x.example.com")], [OURS, OURS]);
    assert_eq!(
        said(&world, "a", "l"),
        Some((Truth::False, Reason::Pending))
    );
}

#[test]
fn certificate_for_a_name_others_serve_on_443_is_not_issued_on_another_port() {
    // A terminates the name on 8443; B, who came first, passes it through on 443: by a listener of its own, or by a
    // route on the Gateway's.
    let theirs = [
        vec![tenant("b", vec![passthrough("l", "x.example.com")])],
        vec![route(
            "b",
            "route",
            1,
            vec![parent("Gateway", Some("platform"), "one", Some("shared"))],
            &["x.example.com"],
            vec![backend("b", "one", 1, 1)],
        )],
    ];
    for theirs in theirs {
        for issuers in [acme(), cert_manager(), IssuerAnnotations::default()] {
            for with_http in [false, true] {
                let mut shared = passthrough("shared", "");
                shared.allowed_namespaces = NamespaceScope::All;
                let mut ours = vec![ends("l", 8443, "x.example.com", "a", "cert")];
                if with_http {
                    // Nor by way of a listener of A's own on port 80.
                    ours.push(http("http", "x.example.com"));
                }
                let ours = with(set("a", "set", 2, "one", ours), issuers.clone());
                let mut world = world(vec![shared], theirs.clone().into_iter().chain([ours]));
                assert_eq!(request(&world, "a", "cert"), None);
                let object = key(Kind::ListenerSet, "a", "set");
                let mut of_a = conditions(&world, &object, "l").iter();
                assert!(of_a.any(|c| c.reason == Reason::HostnameConflict));
                assert_eq!(said(&world, "a", "l"), None);
                // Not even if somebody came to have an order.
                for kind in ChallengeType::ALL {
                    let (key, answer) = challenge(kind, "x.example.com", "a");
                    let output = world.challenges(BTreeMap::from([(key, Some(answer))]));
                    assert!(output.resources.is_empty());
                }
            }
        }
    }
}

#[test]
fn messages_name_nothing_of_others() {
    let world = world(
        vec![passthrough("own", "own.example.com")],
        [
            set(
                "secretive",
                "hidden",
                0,
                "one",
                vec![passthrough("covert", "x.example.com")],
            ),
            with(
                tenant("a", vec![ends("l", 8443, "x.example.com", "a", "cert")]),
                acme(),
            ),
        ],
    );
    let status = &world.statuses()[&key(Kind::ListenerSet, "a", "set")];
    let text = format!("{status:?} {:?}", world.findings());
    assert!(text.contains("belongs to another namespace"));
    for name in ["secretive", "hidden", "covert"] {
        let of_a = format!("{status:?}");
        assert!(!of_a.contains(name), "{of_a}");
    }
}

#[test]
fn reach_is_of_the_listener_selected_on_the_port() {
    let ours = || {
        with(
            tenant("a", vec![ends("l", 8443, "x.example.com", "a", "cert")]),
            acme(),
        )
    };
    let reach = |own: Vec<Listener>, others: Vec<Object>| {
        let world = world(own, others.into_iter().chain([ours()]));
        reach_of(&world, "a", "cert", "x.example.com")
    };
    let elsewhere = || {
        vec![listener(
            "own",
            9443,
            Protocol::Tls,
            "",
            Some(Tls::Passthrough),
        )]
    };
    // Nothing listens on either port.
    assert_eq!(reach(elsewhere(), vec![]), Some([NONE, NONE]));
    // Something does, but not for the name.
    assert_eq!(
        reach(vec![passthrough("own", "own.example.com")], vec![]),
        Some([OURS, NONE])
    );
    // The Gateway's own, which no route uses.
    assert_eq!(
        reach(vec![passthrough("own", ""), http("http", "")], vec![]),
        Some([OURS, OURS])
    );
    // The tenant's own, more specific than somebody's wildcard.
    let specific = vec![
        set(
            "b",
            "wide",
            3,
            "one",
            vec![passthrough("l", "*.example.com")],
        ),
        set(
            "a",
            "pass",
            2,
            "one",
            vec![passthrough("l", "x.example.com")],
        ),
    ];
    assert_eq!(reach(elsewhere(), specific), Some([OURS, NONE]));
    // Somebody's on port 80 alone.
    let plain = vec![
        set(
            "a",
            "pass",
            2,
            "one",
            vec![passthrough("l", "x.example.com")],
        ),
        set("b", "plain", 2, "one", vec![http("l", "x.example.com")]),
    ];
    // It does not get the name there.
    assert_eq!(reach(elsewhere(), plain), Some([OURS, NONE]));
    // HTTPS on 443 of another protocol than the challenge's port takes: TCP is none of ours.
    let wrong = vec![listener("own", 443, Protocol::Http, "", None)];
    assert_eq!(reach(wrong, vec![]), Some([NONE, NONE]));
}

#[test]
fn on_the_gateways_own_listener_it_is_the_route_that_counts() {
    let shared = || {
        let mut tls = passthrough("tls", "");
        tls.allowed_namespaces = NamespaceScope::All;
        let mut http = http("http", "");
        http.allowed_namespaces = NamespaceScope::All;
        vec![tls, http]
    };
    let at = |section| vec![parent("Gateway", Some("platform"), "one", Some(section))];
    let to = || vec![backend("a", "one", 1, 1)];
    let ours = || {
        with(
            tenant("a", vec![ends("l", 8443, "x.example.com", "a", "cert")]),
            acme(),
        )
    };
    let reach = |routes: Vec<Object>| {
        let world = world(shared(), routes.into_iter().chain([ours()]));
        reach_of(&world, "a", "cert", "x.example.com")
    };
    let own = route("a", "own", 5, at("tls"), &["x.example.com"], to());
    assert_eq!(reach(vec![own.clone()]), Some([OURS, OURS]));
    // Another's route does not get the name, unless it is older than everything that asks for it.
    for (created, reached) in [(6, Some([OURS, OURS])), (0, None)] {
        let other = route("b", "same", created, at("tls"), &["x.example.com"], to());
        assert_eq!(reach(vec![own.clone(), other]), reached);
    }
    // The name is A's, so the proxies leave out what others have around it, and answer for A before anything else.
    let plain =
        |ns, hosts: &[&str]| http_route((ns, "plain", 1), at("http"), hosts, &[Rule::Plain], &to());
    assert_eq!(
        reach(vec![plain("a", &["x.example.com"])]),
        Some([OURS, OURS])
    );
    assert_eq!(reach(vec![plain("b", &[])]), Some([OURS, OURS]));
    assert_eq!(
        reach(vec![plain("a", &["x.example.com"]), plain("b", &[])]),
        Some([OURS, OURS])
    );
    // Nor is "everything to HTTPS" in the way, or what the platform has for all names.
    let redirect = |namespace| {
        let mut route = plain(namespace, &[]);
        if let Object::HttpRoute(route) = &mut route {
            route.rules[0].backends.clear();
            route.rules[0].filters = vec![HttpFilter::Redirect(Redirect {
                scheme: Some(Scheme::Https),
                hostname: None,
                port: None,
                path: None,
                status: 301,
            })];
        }
        route
    };
    assert_eq!(reach(vec![redirect("platform")]), Some([OURS, OURS]));
    assert_eq!(reach(vec![redirect("b")]), Some([OURS, OURS]));
    assert_eq!(reach(vec![plain("platform", &[])]), Some([OURS, OURS]));
}

#[test]
fn a_wildcard_of_another_namespace_is_in_no_owners_way() {
    let theirs = |port: u16| {
        let listener = match port {
            80 => http("l", "*.example.com"),
            _ => passthrough("l", "*.example.com"),
        };
        tenant("b", vec![listener])
    };
    for (issuers, port) in [
        (acme(), 80),
        (cert_manager(), 80),
        (acme(), 443),
        (cert_manager(), 443),
    ] {
        let ours = tenant("a", vec![ends("l", 8443, "x.example.com", "a", "cert")]);
        let own = passthrough("own", "own.example.com");
        let world = world(vec![own], [theirs(port), with(ours, issuers)]);
        let reach = reach_of(&world, "a", "cert", "x.example.com");
        let http = if port == 80 { OURS } else { Reach::NoListener };
        assert_eq!(reach, Some([OURS, http]), "{port}");
    }
}

#[test]
fn nothing_is_asked_for_what_is_not_in_force() {
    let wanting = |namespace: &str, created| {
        let listeners = vec![ends("l", 443, "x.example.com", namespace, "cert")];
        with(set(namespace, "set", created, "one", listeners), acme())
    };
    // Conflicted.
    let world_of =
        |objects: Vec<Object>| world(vec![passthrough("own", "own.example.com")], objects);
    let world = world_of(vec![wanting("a", 1), wanting("b", 2)]);
    assert!(request(&world, "a", "cert").is_some());
    assert_eq!(request(&world, "b", "cert"), None);
    assert_eq!(said(&world, "b", "l"), None);
    // Being deleted.
    let mut deleting = wanting("a", 1);
    if let Object::ListenerSet(set) = &mut deleting {
        Arc::make_mut(set).meta.deleting = true;
    }
    assert_eq!(request(&world_of(vec![deleting]), "a", "cert"), None);
    // Not let in.
    let closed = translated([
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::None,
        ),
        wanting("a", 1),
    ]);
    assert!(closed.requests().is_empty());
}

#[test]
fn certificate_that_cannot_be_issued_is_not_requested_but_reported() {
    let listeners = vec![
        ends("wild", 443, "*.example.com", "a", "wild"),
        ends("any", 8443, "", "a", "any"),
        ends("elsewhere", 443, "x.example.com", "b", "cert"),
        ends("good", 443, "y.example.com", "a", "good"),
    ];
    let world = world(
        vec![passthrough("own", "own.example.com")],
        [
            with(tenant("a", listeners), acme()),
            grant("b", "grant", ("ListenerSet", "a"), "Secret"),
        ],
    );
    let asked: Vec<String> = world.requests().keys().map(ToString::to_string).collect();
    assert_eq!(asked, ["a/good"]);
    for listener in ["wild", "any", "elsewhere"] {
        assert_eq!(
            said(&world, "a", listener),
            Some((Truth::False, Reason::NotIssuable)),
            "{listener}"
        );
    }
    // Without an issuer nobody expects one; with a certificate nobody lacks one.
    let quiet = vec![ends("wild", 443, "*.example.com", "a", "wild")];
    let silent = translated([
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::All,
        ),
        tenant("a", quiet.clone()),
    ]);
    assert_eq!(said(&silent, "a", "wild"), None);
    let served = translated([
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::All,
        ),
        with(tenant("a", quiet), acme()),
        secret("a", "wild", Holds::Pair(0)),
    ]);
    assert_eq!(said(&served, "a", "wild"), None);
}

#[test]
fn objects_that_share_a_secret_are_one_request_if_they_agree() {
    let of = |name: &str, created, host: &str, issuers| {
        let listeners = vec![ends("l", 443, host, "a", "cert")];
        with(set("a", name, created, "one", listeners), issuers)
    };
    let first = of("first", 1, "x.example.com", acme());
    let own = || vec![passthrough("own", "own.example.com")];
    let agreeing = world(
        own(),
        [of("second", 2, "y.example.com", acme()), first.clone()],
    );
    let joined = request(&agreeing, "a", "cert").expect("a request");
    assert_eq!(joined.owner, key(Kind::ListenerSet, "a", "first"));
    assert_eq!(
        joined.hostnames,
        BTreeSet::from([host("x.example.com"), host("y.example.com")])
    );
    let differing = world(
        own(),
        [of("second", 2, "y.example.com", cert_manager()), first],
    );
    let alone = request(&differing, "a", "cert").expect("a request");
    assert_eq!(alone.hostnames, BTreeSet::from([host("x.example.com")]));
    let second = key(Kind::ListenerSet, "a", "second");
    let condition = conditions(&differing, &second, "l").last().expect("one");
    assert_eq!(condition.reason, Reason::RequestsDiffer);
    assert!(reasons(&differing, &second).contains(&"RequestsDiffer"));
}

#[test]
fn options_are_cert_managers() {
    let listeners = || {
        let mut two = ends("two", 443, "y.example.com", "a", "second");
        if let Some(tls) = &mut two.tls {
            let mut more = tls.certificates[0].clone();
            more.target = ObjectName::new("a", "third");
            tls.certificates.push(more);
        }
        vec![
            ends("one", 443, "x.example.com", "a", "first"),
            two,
            ends("ignored", 443, "z.example.com", "a", "ignored"),
        ]
    };
    let options = |name: &str| CertificateOptions {
        common_name: Some(name.into()),
        ignored_listeners: BTreeSet::from(["ignored".into()]),
        ..CertificateOptions::default()
    };
    let own = || vec![passthrough("own", "own.example.com")];
    let set = |issuers, name| {
        with(
            with_options(tenant("a", listeners()), options(name)),
            issuers,
        )
    };
    let world_of = |object| world(own(), [object]);
    let theirs = world_of(set(cert_manager(), "x.example.com"));
    let asked: Vec<String> = theirs.requests().keys().map(ToString::to_string).collect();
    // Every Secret of a listener, as cert-manager's own support has it.
    assert_eq!(asked, ["a/first", "a/second", "a/third"]);
    let name = |secret| {
        let request = request(&theirs, "a", secret).expect("a request");
        request.options.common_name.as_deref()
    };
    assert_eq!(name("first"), Some("x.example.com"));
    assert_eq!(name("second"), None);
    // A name that no listener of the object has.
    let foreign = world_of(set(cert_manager(), "victim.example.com"));
    assert!(foreign.requests().is_empty());
    assert_eq!(
        said(&foreign, "a", "one"),
        Some((Truth::False, Reason::InvalidAnnotation))
    );
    // To ACME they say nothing, and it is asked for the first Secret.
    let ours = world_of(set(acme(), "victim.example.com"));
    let asked: Vec<String> = ours.requests().keys().map(ToString::to_string).collect();
    assert_eq!(asked, ["a/first", "a/ignored", "a/second"]);
    // It has an annotation of its own for what it is not asked for.
    let options = CertificateOptions {
        acme_ignored_listeners: BTreeSet::from(["ignored".into()]),
        ..CertificateOptions::default()
    };
    let object = with(with_options(tenant("a", listeners()), options), acme());
    let ours = world_of(object);
    let asked: Vec<String> = ours.requests().keys().map(ToString::to_string).collect();
    assert_eq!(asked, ["a/first", "a/second"]);
}

/// What a tenant's grant says about certificates.
fn granted(hostnames: &[&'static str], certificates: GrantedCertificates) -> Object {
    let mut grant = hostname_grant("g", &["a", "b"], hostnames);
    *grant.certificates = certificates;
    Object::HostnameGrant(Arc::new(grant))
}

fn alternative_names() -> GrantedCertificates {
    GrantedCertificates {
        alternative_names: true,
        ..GrantedCertificates::default()
    }
}

fn adding(hostnames: &[&str], addresses: &[&str]) -> CertificateOptions {
    CertificateOptions {
        alternative_names: AlternativeNames {
            hostnames: hostnames.iter().map(|name| host(name)).collect(),
            addresses: addresses
                .iter()
                .map(|a| a.parse().expect("an address"))
                .collect(),
            ..AlternativeNames::default()
        },
        ..CertificateOptions::default()
    }
}

/// The names of a request.
fn names_of(world: &Translator, namespace: &str, secret: &str) -> Option<Vec<String>> {
    let request = request(world, namespace, secret)?;
    assert!(request.hostnames.iter().eq(request.reach.keys()));
    Some(request.hostnames.iter().map(ToString::to_string).collect())
}

#[test]
fn names_beside_the_listeners_have_to_be_granted_and_held() {
    let own = || vec![passthrough("own", "own.example.com")];
    let listeners = || vec![ends("l", 443, "x.example.com", "a", "cert")];
    let asks = |issuers, options| with(with_options(tenant("a", listeners()), options), issuers);
    let holds = |namespace: &str, name: &str| {
        set(namespace, "holds", 2, "one", vec![passthrough("h", name)])
    };
    let all = || granted(&["*.example.com"], alternative_names());
    let more = || adding(&["more.example.com"], &[]);
    let both = Some(vec![
        "more.example.com".to_owned(),
        "x.example.com".to_owned(),
    ]);
    let one = Some(vec!["x.example.com".to_owned()]);
    let invalid = Some((Truth::False, Reason::InvalidAnnotation));
    let foreign = Some((Truth::False, Reason::HostnameNotOwned));
    let pending = Some((Truth::False, Reason::Pending));
    for (issuers, theirs) in [(cert_manager(), true), (acme(), false)] {
        let beside = |objects: Vec<Object>| {
            world(
                own(),
                objects.into_iter().chain([asks(issuers.clone(), more())]),
            )
        };
        let outcome = |world: &Translator| (names_of(world, "a", "cert"), said(world, "a", "l"));
        // Granted and held.
        let held = beside(vec![all(), holds("a", "more.example.com")]);
        assert_eq!(outcome(&held), (both.clone(), pending));
        // Held, and not granted: cert-manager is not asked, and the built-in engine for the listener's name.
        let silent = granted(&["*.example.com"], GrantedCertificates::default());
        let withheld = if theirs {
            (None, invalid)
        } else {
            (one.clone(), pending)
        };
        for grants in [
            vec![silent],
            vec![granted(&["x.example.com"], alternative_names())],
            vec![],
        ] {
            let objects = grants.into_iter().chain([holds("a", "more.example.com")]);
            assert_eq!(outcome(&beside(objects.collect())), withheld);
        }
        // The name is granted, but another tenant or the Gateway holds it, or nobody: the certificate is without it.
        for not_held in [vec![holds("b", "more.example.com")], vec![]] {
            let objects = not_held.into_iter().chain([all()]).collect();
            assert_eq!(outcome(&beside(objects)), (one.clone(), foreign));
        }
        let gateways = with(
            with_options(tenant("a", listeners()), adding(&["own.example.com"], &[])),
            issuers.clone(),
        );
        let gateways = world(own(), [all(), gateways]);
        assert_eq!(outcome(&gateways), (one.clone(), foreign));
    }
}

#[test]
fn names_beside_the_listeners_go_and_come_with_what_allows_them() {
    let own = vec![passthrough("own", "own.example.com")];
    let listeners = vec![ends("l", 443, "x.example.com", "a", "cert")];
    let options = adding(&["more.example.com"], &[]);
    let asking = with(
        with_options(tenant("a", listeners), options),
        cert_manager(),
    );
    let holds = set(
        "a",
        "holds",
        2,
        "one",
        vec![passthrough("h", "more.example.com")],
    );
    let grant = granted(&["*.example.com"], alternative_names());
    let mut world = world(own, [grant.clone(), asking, holds.clone()]);
    let count = |world: &Translator| names_of(world, "a", "cert").map(|names| names.len());
    assert_eq!(count(&world), Some(2));
    world.apply([Change::Remove(holds.key())]);
    assert_eq!(count(&world), Some(1));
    assert_eq!(
        said(&world, "a", "l"),
        Some((Truth::False, Reason::HostnameNotOwned))
    );
    world.apply([Change::Put(holds)]);
    assert_eq!(count(&world), Some(2));
    assert_eq!(
        said(&world, "a", "l"),
        Some((Truth::False, Reason::Pending))
    );
    let silent = granted(&["*.example.com"], GrantedCertificates::default());
    world.apply([Change::Put(silent)]);
    assert_eq!(count(&world), None);
    world.apply([Change::Put(grant.clone())]);
    assert_eq!(count(&world), Some(2));
    // The last grant opens the Gateway for names, and not for these.
    world.apply([Change::Remove(grant.key())]);
    assert_eq!(count(&world), None);
    assert_eq!(
        said(&world, "a", "l"),
        Some((Truth::False, Reason::InvalidAnnotation))
    );
}

#[test]
fn addresses_are_cert_managers_alone() {
    let own = || vec![passthrough("own", "own.example.com")];
    let asking = |issuers, address| {
        let listeners = vec![ends("l", 443, "x.example.com", "a", "cert")];
        with(
            with_options(tenant("a", listeners), adding(&[], &[address])),
            issuers,
        )
    };
    let grant = || {
        let addresses = vec![AddressBlock::parse("192.0.2.0/24").expect("a block")];
        let certificates = GrantedCertificates {
            addresses,
            ..GrantedCertificates::default()
        };
        granted(&["*"], certificates)
    };
    let addresses = |world: &Translator| {
        request(world, "a", "cert").map(|r| r.options.alternative_names.addresses.len())
    };
    let theirs = world(own(), [grant(), asking(cert_manager(), "192.0.2.1")]);
    assert_eq!(addresses(&theirs), Some(1));
    let foreign = world(own(), [grant(), asking(cert_manager(), "198.51.100.1")]);
    assert_eq!(addresses(&foreign), None);
    let ours = world(own(), [grant(), asking(acme(), "192.0.2.1")]);
    assert_eq!(addresses(&ours), Some(0));
    let object = key(Kind::ListenerSet, "a", "set");
    assert!(reasons(&ours, &object).contains(&"InvalidAnnotation"));
}

#[test]
fn the_gateways_own_certificates_have_no_tenants_names() {
    let own = vec![ends("own", 443, "own.example.com", "platform", "cert")];
    let gateway = |name: &str| {
        let mut object = with(
            gateway("one", own.clone(), NamespaceScope::All),
            cert_manager(),
        );
        if let Object::Gateway(gateway) = &mut object {
            Arc::make_mut(gateway).certificates.options = Arc::new(adding(&[name], &[]));
        }
        object
    };
    let held = || tenant("a", vec![passthrough("h", "held.example.com")]);
    let world = |name| translated([our_class(), gateway(name), held()]);
    let free = world("free.example.com");
    assert_eq!(
        names_of(&free, "platform", "cert").map(|names| names.len()),
        Some(2)
    );
    let tenants = world("held.example.com");
    let names = names_of(&tenants, "platform", "cert");
    assert_eq!(names, Some(vec!["own.example.com".to_owned()]));
}

#[test]
fn a_bad_annotation_asks_for_nothing() {
    let mut object = tenant("a", vec![ends("l", 443, "x.example.com", "a", "cert")]);
    if let Object::ListenerSet(set) = &mut object {
        Arc::make_mut(set).certificates.findings = vec![Finding::refused(
            Reason::InvalidAnnotation,
            "metadata.annotations[cert-manager.io/duration]",
            "is wrong",
            "mend it",
        )];
    }
    let own = || vec![passthrough("own", "own.example.com")];
    let theirs = world(own(), [with(object.clone(), cert_manager())]);
    assert!(theirs.requests().is_empty());
    assert_eq!(
        said(&theirs, "a", "l"),
        Some((Truth::False, Reason::InvalidAnnotation))
    );
    assert_eq!(world(own(), [with(object, acme())]).requests().len(), 1);
}
