//! Challenges: which are taken, where they are found, and that the order of resources does not matter.

use proptest::prelude::*;
use rcgen::{CertificateParams, CustomExtension, KeyPair};

use super::*;
use crate::challenge::{ACME_TLS, ChallengeQuery, ChallengeReply};

const TOKEN: &str = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA";
const NAME: &str = "a.example.com";
const TLS_NAME: &str = "infra/edge/tls-alpn-01/a.example.com";

fn challenge(name: &str, edit: impl FnOnce(&mut proto::Challenge)) -> Resource {
    let parts: Vec<_> = name.split('/').collect();
    let token = parts.get(4).copied().unwrap_or(TOKEN);
    let mut wire = proto::Challenge {
        gateway: format!("{}/{}", parts[0], parts[1]),
        bind: Some(bind_on(BIND.port)),
        hostname: parts[3].into(),
        tenant: "team-a".into(),
        answer: Some(proto::challenge::Answer::Http01(proto::Http01 {
            token: token.into(),
            key_authorization: format!("{token}.thumb"),
        })),
    };
    edit(&mut wire);
    Resource::new(name, Wire::Challenge(wire))
}

fn http(hostname: &str) -> String {
    format!("infra/edge/http-01/{hostname}/{TOKEN}")
}

fn self_signed(names: &[&str], identifier: bool) -> proto::TlsAlpn01 {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    if identifier {
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
    }
    let key = KeyPair::generate().unwrap();
    proto::TlsAlpn01 {
        certificate: params.self_signed(&key).unwrap().der().to_vec(),
        private_key: key.serialize_der(),
    }
}

fn tls(answer: proto::TlsAlpn01) -> Resource {
    challenge(TLS_NAME, |wire| {
        wire.answer = Some(proto::challenge::Answer::TlsAlpn01(answer));
    })
}

/// Two binds of a Gateway, one for each layer.
fn harness() -> Harness {
    let mut h = Harness::new();
    let other = "Gateway/infra/edge/other";
    let rejects = h.apply(vec![
        listener(A, NAME),
        http_on(other, BIND.port + 1, "", None),
    ]);
    assert_eq!(rejects, []);
    h
}

/// As [`challenge`], on the bind for requests.
fn plain(name: &str) -> Resource {
    challenge(name, |wire| wire.bind = Some(bind_on(BIND.port + 1)))
}

fn asked(h: &Harness, port: u16, question: &ChallengeQuery) -> Option<String> {
    let bind = BindKey { port, ..BIND };
    let found = h.published.load().challenge(&bind, question.clone());
    found.map(|challenge| challenge.key.to_string())
}

fn over_http(hostname: &str, token: &str) -> ChallengeQuery {
    ChallengeQuery::Http(Hostname::parse(hostname).unwrap(), token.into())
}

fn good() -> proto::TlsAlpn01 {
    self_signed(&[NAME], true)
}

#[test]
fn challenge_that_no_ca_could_be_answered_with_is_rejected() {
    let mut h = harness();
    let of_http = |edit: fn(&mut proto::Http01)| {
        let mut resource = plain(&http(NAME));
        if let Some(Wire::Challenge(wire)) = &mut resource.resource
            && let Some(proto::challenge::Answer::Http01(answer)) = &mut wire.answer
        {
            edit(answer);
        }
        resource
    };
    let of = |edit: fn(&mut proto::Challenge)| challenge(&http(NAME), edit);
    let bad = |edit: fn(&mut proto::TlsAlpn01)| {
        let mut answer = good();
        edit(&mut answer);
        tls(answer)
    };
    let cases = [
        ("UnknownResource", of(|c| c.answer = None)),
        ("MissingField", of(|c| c.gateway.clear())),
        ("MissingField", of(|c| c.tenant.clear())),
        ("MissingField", of(|c| c.bind = None)),
        ("InvalidBind", of(|c| c.bind.as_mut().unwrap().port = 0)),
        ("InvalidHostname", of(|c| c.hostname = "192.0.2.1".into())),
        (
            "InvalidChallenge",
            of(|c| c.hostname = "*.example.com".into()),
        ),
        ("InvalidChallenge", of(|c| c.hostname.clear())),
        ("InvalidName", of(|c| c.hostname = "b.example.com".into())),
        ("InvalidName", of(|c| c.gateway = "infra/other".into())),
        ("InvalidChallenge", of_http(|a| a.token.clear())),
        ("InvalidChallenge", of_http(|a| a.token = "a/b".into())),
        ("InvalidChallenge", of_http(|a| a.token = "a".repeat(257))),
        (
            "InvalidChallenge",
            of_http(|a| a.key_authorization.push('=')),
        ),
        (
            "InvalidChallenge",
            of_http(|a| a.key_authorization = format!("{TOKEN}.")),
        ),
        (
            "InvalidChallenge",
            of_http(|a| a.key_authorization = "other.thumb".into()),
        ),
        (
            "InvalidName",
            of_http(|a| {
                a.token = "other".into();
                a.key_authorization = "other.thumb".into();
            }),
        ),
        ("InvalidChallenge", tls(self_signed(&[NAME], false))),
        (
            "InvalidChallenge",
            tls(self_signed(&["b.example.com"], true)),
        ),
        (
            "InvalidChallenge",
            tls(self_signed(&[NAME, "b.example.com"], true)),
        ),
        (
            "InvalidChallenge",
            tls(self_signed(&["*.example.com"], true)),
        ),
        (
            "KeyMismatch",
            bad(|a| a.private_key = good().private_key.clone()),
        ),
        ("InvalidCertificate", bad(|a| a.certificate = vec![1, 2, 3])),
        ("InvalidKey", bad(|a| a.private_key = vec![1])),
        // Of the other layer than what is spoken there, of a port that is not open, and of a Gateway that
        // is not there.
        ("NoListener", challenge(&http(NAME), |_| {})),
        (
            "NoListener",
            challenge(&http(NAME), |c| c.bind = Some(bind_on(1))),
        ),
        ("NoListener", plain(&http(NAME).replace("edge", "other"))),
        ("InvalidName", plain("infra/edge/http-01/a.example.com")),
        ("InvalidName", plain("infra/edge/dns-01/a.example.com/x")),
    ];
    for (index, (reason, resource)) in cases.into_iter().enumerate() {
        let name = resource.name.clone();
        assert_eq!(
            h.apply(vec![resource]),
            [(name, reason.to_owned())],
            "{index}"
        );
    }
    assert_eq!(h.state.counts().challenges, 0);
    assert_eq!(h.apply(vec![tls(good()), plain(&http(NAME))]), []);
    assert_eq!(h.state.counts().challenges, 2);
}

#[test]
fn a_challenge_is_found_by_what_it_is_for() {
    let mut h = harness();
    let answer = self_signed(&[NAME], true);
    assert_eq!(
        h.apply(vec![tls(answer), plain(&http("B.Example.com"))]),
        []
    );
    let question = ChallengeQuery::Tls(Hostname::parse(NAME).unwrap());
    assert_eq!(asked(&h, BIND.port, &question).as_deref(), Some(TLS_NAME));
    assert_eq!(asked(&h, BIND.port + 1, &question), None);
    let found = h.published.load().challenge(&BIND, question.clone());
    let ChallengeReply::Tls(config) = &found.unwrap().answer else {
        panic!("another answer");
    };
    assert_eq!(config.alpn_protocols, [ACME_TLS]);
    assert!(!config.ticketer.enabled() && config.send_tls13_tickets == 0);

    let asked_http =
        |h: &Harness, token| asked(h, BIND.port + 1, &over_http("b.example.com", token));
    assert_eq!(asked_http(&h, TOKEN), Some(http("B.Example.com")));
    assert_eq!(asked_http(&h, "other"), None);
    // A rejected version leaves the last good one.
    let bad = challenge(TLS_NAME, |_| {});
    assert_eq!(
        h.apply(vec![bad]),
        [(TLS_NAME.to_owned(), "InvalidName".to_owned())]
    );
    assert!(asked(&h, BIND.port, &question).is_some());
    // One that moves is at one place.
    let moved = tls(self_signed(&[NAME], true));
    let mut port = listener_on(B, 7, "b.example.com", None);
    port.name = "Gateway/infra/edge/seven".into();
    let Some(Wire::Challenge(mut wire)) = moved.resource else {
        panic!("another resource");
    };
    wire.bind = Some(bind_on(7));
    assert_eq!(
        h.apply(vec![Resource::new(TLS_NAME, Wire::Challenge(wire)), port]),
        []
    );
    assert_eq!(asked(&h, BIND.port, &question), None);
    assert!(asked(&h, 7, &question).is_some());
    // Its port closes, and opens again.
    let gone = key(ResourceKind::Listener, "Gateway/infra/edge/seven");
    h.remove(vec![gone]);
    assert_eq!(asked(&h, 7, &question), None);
    assert_eq!(h.state.counts().challenges, 2);
    assert_eq!(
        h.apply(vec![listener_on("Gateway/infra/edge/x", 7, "", None)]),
        []
    );
    assert!(asked(&h, 7, &question).is_some());
    h.remove(vec![key(ResourceKind::Challenge, TLS_NAME)]);
    assert_eq!(asked(&h, 7, &question), None);
}

#[test]
fn nothing_shows_a_key() {
    let mut h = harness();
    let answer = self_signed(&[NAME], true);
    let secret = answer.private_key[40..52].to_vec();
    let resource = tls(answer);
    let text = format!("{resource:?}");
    assert_eq!(h.apply(vec![resource, plain(&http(NAME))]), []);
    let dump = serde_json::to_string(&h.state.dump()).unwrap();
    let found = h
        .published
        .load()
        .challenge(&BIND, ChallengeQuery::Tls(Hostname::parse(NAME).unwrap()));
    let texts = [
        text,
        dump,
        format!("{:?} {found:?} {:?}", h.state, h.published),
    ];
    let hex = tls::hex(&secret);
    let decimal = format!("{secret:?}");
    for text in &texts {
        assert!(!text.contains(&hex), "{text}");
        assert!(!text.contains(decimal.trim_matches(['[', ']'])), "{text}");
        assert!(!text.contains("thumb"), "{text}");
    }
    assert!(texts[1].contains("\"sha256\""), "{}", texts[1]);
}

#[test]
fn an_expired_certificate_serves_while_nothing_better_is_there() {
    let until = |year: i32| {
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        let wire = proto::Certificate {
            chain: vec![certificate.into()],
            private_key: key.serialize_der(),
            secret_uid: String::new(),
        };
        Resource::new("team-a/web", Wire::Certificate(wire))
    };
    let mut h = Harness::new();
    let expiry = |h: &Harness| h.state.certificates["team-a/web"].not_after;
    assert_eq!(h.apply(vec![until(2021)]), []);
    let first = expiry(&h);
    // Neither is of use: the newer one.
    assert_eq!(h.apply(vec![until(2022)]), []);
    assert!(expiry(&h) > first);
    assert_eq!(h.apply(vec![until(2090)]), []);
    let last = expiry(&h);
    let expired = [("team-a/web".to_owned(), "Expired".to_owned())];
    assert_eq!(h.apply(vec![until(2023)]), expired);
    assert_eq!(expiry(&h), last);
    // Shorter, and valid: what its owner wants.
    assert_eq!(h.apply(vec![until(2080)]), []);
    assert!(expiry(&h) < last);
    assert_eq!(h.state.expiries.len(), 1);
}

/// What a step does to one of two Gateways, on one of two ports.
#[derive(Debug, Clone)]
enum Step {
    Listener(u8, u16),
    DropListener(u8, u16),
    Challenge(u8, u16, u8),
    DropChallenge(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (gateway, port, host) = (0..2_u8, 1..3_u16, 0..2_u8);
    prop_oneof![
        (gateway.clone(), port.clone()).prop_map(|(g, p)| Step::Listener(g, p)),
        (gateway.clone(), port.clone()).prop_map(|(g, p)| Step::DropListener(g, p)),
        (gateway.clone(), port, host.clone()).prop_map(|(g, p, h)| Step::Challenge(g, p, h)),
        (gateway, host).prop_map(|(g, h)| Step::DropChallenge(g, h)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Two Gateways on one port are nothing that the operator makes, and give conflicts.
    #[test]
    fn challenges_do_not_depend_on_the_order_and_are_each_at_their_place(
        batches in prop::collection::vec(prop::collection::vec(step(), 1..6), 1..8),
    ) {
        let mut forward = Harness::new();
        let mut backward = Harness::new();
        for steps in &batches {
            let mut upserts = BTreeMap::new();
            let mut removals = BTreeSet::new();
            for step in steps {
                let (resource, gone) = match step {
                    Step::Listener(g, p) => {
                        let name = format!("Gateway/infra/g{g}/l{p}");
                        let mut resource = http_on(&name, *p, &format!("g{g}.example.com"), None);
                        if let Some(Wire::Listener(wire)) = &mut resource.resource {
                            wire.gateway = format!("infra/g{g}");
                        }
                        (Some(resource), None)
                    }
                    Step::DropListener(g, p) => {
                        let name = format!("Gateway/infra/g{g}/l{p}");
                        (None, Some(key(ResourceKind::Listener, &name)))
                    }
                    Step::Challenge(g, p, h) => {
                        let name = format!("infra/g{g}/http-01/h{h}.example.com/{TOKEN}");
                        let on = |wire: &mut proto::Challenge| wire.bind = Some(bind_on(*p));
                        (Some(challenge(&name, on)), None)
                    }
                    Step::DropChallenge(g, h) => {
                        let name = format!("infra/g{g}/http-01/h{h}.example.com/{TOKEN}");
                        (None, Some(key(ResourceKind::Challenge, &name)))
                    }
                };
                if let Some(resource) = resource {
                    let key = resource.key().unwrap();
                    removals.remove(&key);
                    upserts.insert(key, resource);
                } else if let Some(key) = gone {
                    upserts.remove(&key);
                    removals.insert(key);
                }
            }
            let removals: Vec<_> = removals.into_iter().collect();
            let upserts: Vec<_> = upserts.into_values().collect();
            let mut rejected = Vec::new();
            for (h, turned) in [(&mut forward, false), (&mut backward, true)] {
                let (mut upserts, mut removals) = (upserts.clone(), removals.clone());
                if turned {
                    upserts.reverse();
                    removals.reverse();
                }
                let change = h.change(upserts, removals);
                let mut rejects = reasons(h.state.apply(&change, &mut NoSockets));
                rejects.sort();
                rejected.push(rejects);
            }
            prop_assert_eq!(&rejected[0], &rejected[1]);
            let dump = |h: &Harness| serde_json::to_value(h.state.dump().challenges).unwrap();
            prop_assert_eq!(dump(&forward), dump(&backward));
            for held in forward.state.dump().challenges {
                let parts: Vec<_> = held.name.split('/').collect();
                let port: u16 = held.bind.rsplit_once(':').unwrap().1.parse().unwrap();
                let open = forward.published.load().has_bind(&BindKey { port, ..BIND });
                let found = asked(&forward, port, &over_http(parts[3], TOKEN));
                prop_assert_eq!(found, open.then_some(held.name));
            }
            let places = forward.published.load().challenges();
            prop_assert_eq!(places, forward.state.counts().challenges);
        }
    }
}
