//! A certificate is good on every Gateway, so a name that a namespace has on one of them is certified for no other
//! namespace through another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::certificate::{AlternativeNames, CertificateAnnotations, CertificateOptions};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType};
use vestibule_model::condition::{Condition, ConditionType, Reason, Truth};
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::claims::{Memory, Time};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::translate::{
    Change, ClaimMode, Settings, Status, Translator, challenge_resource,
};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::*;

const GRACE: Duration = Duration::from_mins(1);
const NAME: &str = "shop.b.example.com";

/// A release that records claims, with the Gateways `one` and `two`. Every change comes a second after the last one.
struct World {
    control: ControlLoop<Memory>,
    time: Time,
}

impl World {
    fn new(own_of_one: Vec<Listener>) -> Self {
        let settings = Settings {
            claims: ClaimMode::Recorded,
            ..settings()
        };
        let time = Time {
            seconds: 1_790_000_000,
            now: Instant::now(),
        };
        let translator = Translator::new(settings);
        let registry = CertificateRegistry::new().0;
        let control = ControlLoop::new(translator, Memory::new(GRACE, time), registry);
        let mut world = Self { control, time };
        world.put(our_class());
        world.put(gateway("one", own_of_one, NamespaceScope::All));
        let own_of_two = listener("own", 80, Protocol::Http, "", None);
        world.put(gateway("two", vec![own_of_two], NamespaceScope::All));
        world
    }

    fn change(&mut self, change: Change, later: Duration) {
        self.time.now += later;
        self.time.seconds += i64::try_from(later.as_secs()).expect("a time");
        self.control.add([change]);
        while self.control.step(self.time).is_some() {}
    }

    fn put(&mut self, object: Object) {
        self.change(Change::Put(object), Duration::from_secs(1));
    }

    fn remove(&mut self, namespace: &str) {
        let set = key(Kind::ListenerSet, namespace, "set");
        self.change(Change::Remove(set), Duration::from_secs(1));
    }

    /// The hostnames of the certificate that is requested for a namespace.
    fn asked(&self, namespace: &str) -> Option<Vec<&str>> {
        let requests = self.control.translator.requests();
        let request = requests.get(&ObjectName::new(namespace, "cert"))?;
        Some(request.hostnames.iter().map(Hostname::as_str).collect())
    }

    /// The condition of the first listener of a namespace's set about its certificate.
    fn said(&self, namespace: &str) -> &Condition {
        let set = key(Kind::ListenerSet, namespace, "set");
        let Some(Status::Listeners(status)) = self.control.translator.statuses().get(&set) else {
            panic!("no status of {set}");
        };
        let mut conditions = status.listeners[0].conditions.iter();
        let found = conditions.find(|c| c.kind == ConditionType::CertificateIssued);
        found.expect("a condition about the certificate")
    }

    /// The namespace is refused, and learns neither who has the name nor where.
    fn assert_refused(&self, namespace: &str) {
        assert_eq!(self.asked(namespace), None);
        let said = self.said(namespace);
        assert_eq!(
            (said.truth, said.reason),
            (Truth::False, Reason::ServedByOthers)
        );
        for secret in ["\"b\"", "namespace b", "b/", "platform/one", "/one"] {
            assert!(!said.message.contains(secret), "{}", said.message);
        }
    }

    /// Whether the proxies answer a challenge for the name on Gateway `two` for this namespace.
    fn answers_on_two(&mut self, namespace: &str) -> bool {
        let key = ChallengeKey {
            gateway: ObjectName::new("platform", "two"),
            kind: ChallengeType::Http01,
            hostname: Hostname::parse(NAME).expect("a hostname"),
            token: "token".into(),
        };
        let answer = ChallengeAnswer {
            tenant: namespace.into(),
            answer: ChallengeProof::Http01 {
                key_authorization: "token.thumbprint".into(),
            },
        };
        let resource = challenge_resource(&key);
        let translator = &mut self.control.translator;
        translator.challenges([(key, Some(answer))].into());
        translator.resources().contains_key(&resource)
    }
}

/// A listener that terminates the hostname with the namespace's Secret, on a port that nobody else of these tests has.
fn ends(namespace: &str, port: u16, hostname: &str) -> Listener {
    let tls = Tls::Terminate(namespace.into(), "cert".into());
    listener("l", port, Protocol::Https, hostname, Some(tls))
}

fn tenant(namespace: &str, at: &str, of: Listener, issuers: IssuerAnnotations) -> Object {
    let mut set = set(namespace, "set", 1, at, vec![of]);
    if let Object::ListenerSet(set) = &mut set {
        Arc::make_mut(set).issuers = issuers;
    }
    set
}

#[test]
fn a_name_of_a_tenant_is_certified_for_no_other_one_through_another_gateway() {
    for issuers in [acme(), cert_manager()] {
        let mut world = World::new(Vec::new());
        let theirs = tenant("b", "one", ends("b", 443, NAME), issuers.clone());
        world.put(theirs.clone());
        assert_eq!(world.asked("b"), Some(vec![NAME]));
        // Neither is it if `a` serves the name there without a challenge on 443 and 80, nor if its set is the older one.
        let ours = tenant("a", "two", ends("a", 8443, NAME), issuers);
        world.put(ours);
        world.assert_refused("a");
        assert!(!world.answers_on_two("a"));
        assert_eq!(world.asked("b"), Some(vec![NAME]), "it keeps the right");
        // The name stays with `b` during the grace, and then it is free.
        world.remove("b");
        world.assert_refused("a");
        world.change(Change::Time(world.time.seconds), GRACE);
        assert_eq!(world.asked("a"), Some(vec![NAME]));
        assert!(world.answers_on_two("a"));
        // Now `b` is the one that comes second.
        world.put(theirs);
        world.assert_refused("b");
        assert_eq!(world.asked("a"), Some(vec![NAME]));
        assert!(world.answers_on_two("a"));
    }
}

#[test]
fn a_gateway_that_goes_takes_its_holders_with_it() {
    let mut world = World::new(Vec::new());
    world.put(tenant("b", "one", ends("b", 443, NAME), acme()));
    world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
    world.assert_refused("a");
    let one = gateway("one", Vec::new(), NamespaceScope::All);
    world.change(Change::Remove(one.key()), Duration::from_secs(1));
    assert_eq!(world.asked("a"), Some(vec![NAME]));
    // When it is back, its holders are the first ones again.
    world.put(one);
    world.assert_refused("a");
    assert_eq!(world.asked("b"), Some(vec![NAME]));
}

#[test]
fn a_wildcard_on_another_gateway_covers_the_names_inside() {
    let mut world = World::new(Vec::new());
    let wide = passthrough("l", "*.b.example.com");
    world.put(tenant("b", "one", wide, acme()));
    world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
    world.assert_refused("a");
    // A wildcard that comes later does not.
    let mut world = World::new(Vec::new());
    world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
    let wide = passthrough("l", "*.b.example.com");
    world.put(tenant("b", "one", wide, acme()));
    assert_eq!(world.asked("a"), Some(vec![NAME]));
}

#[test]
fn a_namespace_may_have_its_name_on_several_gateways() {
    let mut world = World::new(Vec::new());
    world.put(tenant("b", "one", ends("b", 443, NAME), acme()));
    world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
    // The right to the name is the namespace's, also where `a` came before it.
    let own = listener("own", 80, Protocol::Http, "", None);
    world.put(gateway("three", vec![own], NamespaceScope::All));
    let mut more = tenant("b", "three", ends("b", 9443, NAME), acme());
    if let Object::ListenerSet(set) = &mut more {
        Arc::make_mut(set).name = ObjectName::new("b", "more");
        Arc::make_mut(set).listeners = vec![listener(
            "l",
            9443,
            Protocol::Https,
            NAME,
            Some(Tls::Terminate("b".into(), "other".into())),
        )];
    }
    world.put(more);
    let requests = world.control.translator.requests();
    assert!(requests.contains_key(&ObjectName::new("b", "other")));
    assert!(requests.contains_key(&ObjectName::new("b", "cert")));
    world.assert_refused("a");
}

#[test]
fn names_of_a_gateways_own_listeners_are_the_platforms() {
    let own = |hostname| passthrough("own", hostname);
    // The platform comes first, also if its listener is the later one.
    let mut world = World::new(Vec::new());
    world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
    assert_eq!(world.asked("a"), Some(vec![NAME]));
    world.put(gateway("one", vec![own(NAME)], NamespaceScope::All));
    world.assert_refused("a");
    // Its wildcards, and listeners for all names, are for the tenants.
    for hostname in ["*.b.example.com", ""] {
        let mut world = World::new(vec![own(hostname)]);
        world.put(tenant("a", "two", ends("a", 8443, NAME), acme()));
        assert_eq!(world.asked("a"), Some(vec![NAME]), "{hostname}");
    }
    // And the platform may certify what its own listener has.
    let mut world = World::new(Vec::new());
    world.put(tenant("b", "one", ends("b", 443, NAME), acme()));
    let mut two = gateway(
        "two",
        vec![ends("platform", 8443, NAME)],
        NamespaceScope::All,
    );
    if let Object::Gateway(gateway) = &mut two {
        Arc::make_mut(gateway).issuers = acme();
    }
    world.put(two);
    assert_eq!(world.asked("platform"), Some(vec![NAME]));
}

#[test]
fn annotations_add_no_name_that_another_namespace_had_first_elsewhere() {
    let adding = |hostname: &str| {
        let name = Hostname::parse(hostname).expect("a hostname");
        let mut set = tenant("a", "two", ends("a", 8443, "a.example.com"), acme());
        if let Object::ListenerSet(set) = &mut set {
            Arc::make_mut(set).listeners.push(listener(
                "m",
                8443,
                Protocol::Tls,
                hostname,
                Some(Tls::Passthrough),
            ));
            let alternative_names = AlternativeNames {
                hostnames: [name].into(),
                ..AlternativeNames::default()
            };
            Arc::make_mut(set).certificates = CertificateAnnotations {
                options: Arc::new(CertificateOptions {
                    alternative_names,
                    ..CertificateOptions::default()
                }),
                findings: Vec::new(),
            };
        }
        set
    };
    let granted = || {
        let mut grant = hostname_grant("g", &["a", "b"], &["*.example.com"]);
        grant.certificates.alternative_names = true;
        Object::HostnameGrant(Arc::new(grant))
    };
    let mut world = World::new(Vec::new());
    world.put(granted());
    world.put(adding(NAME));
    assert_eq!(world.asked("a"), Some(vec!["a.example.com", NAME]));
    let mut world = World::new(Vec::new());
    world.put(granted());
    world.put(tenant("b", "one", ends("b", 443, NAME), acme()));
    world.put(adding(NAME));
    assert_eq!(world.asked("a"), Some(vec!["a.example.com"]));
    assert_eq!(world.said("a").reason, Reason::ServedByOthers);
}
