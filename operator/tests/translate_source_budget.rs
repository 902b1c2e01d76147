//! What the Secrets and ConfigMaps of one namespace bring into the configuration of the proxies is bounded, and so is what
//! those of all namespaces bring together.

use std::sync::{Arc, LazyLock};

use base64::Engine;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use vestibule_model::certificate::{MAX_BUNDLE_BYTES, MAX_CHAIN_BYTES, MAX_KEY_BYTES};
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::policy::ConfigurationTotals;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Settings, Translator};
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{Trusts, config_map, policy};
use vestibule_stream::limits::MAX_MESSAGE_BYTES;
use vestibule_stream::proto::resource;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};

/// The budget of each namespace in these tests.
const BUDGET: usize = 1 << 20;
/// Most Secrets in a namespace. They are more than fit into the budget if they are large.
const SECRETS: usize = 40;

/// A certificate that has nearly the size that a chain may have, with its key, in PEM.
static LARGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let pair = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
    let bytes = vec![0; MAX_CHAIN_BYTES - 1024];
    let extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1], bytes);
    params.custom_extensions.push(extension);
    let certificate = params.self_signed(&pair).expect("a certificate");
    (certificate.pem(), pair.serialize_pem())
});

fn with_budget() -> Settings {
    let mut settings = settings();
    settings.policy.certificate_mib = 1;
    settings
}

fn name(n: usize) -> String {
    format!("s{n:02}")
}

/// Secret `n` of a namespace. A larger number is a younger Secret.
fn numbered(namespace: &str, n: usize, holds: Holds) -> Object {
    let mut object = secret(namespace, &name(n), holds);
    if let Object::Secret(secret) = &mut object {
        secret.meta.created = i64::try_from(n).expect("few");
    }
    object
}

fn large(namespace: &str, n: usize) -> Object {
    let mut object = numbered(namespace, n, Holds::Pair(0));
    if let Object::Secret(secret) = &mut object {
        secret.certificate = Some(Arc::from(LARGE.0.clone().into_bytes()));
        secret.private_key = Some(Arc::new(LARGE.1.clone().into_bytes().into()));
    }
    object
}

/// A ListenerSet with a listener for each of the Secrets.
fn users(namespace: &str) -> Object {
    users_of(namespace, 0..SECRETS)
}

/// A ListenerSet with a listener for each of these Secrets.
fn users_of(namespace: &str, numbers: std::ops::Range<usize>) -> Object {
    let one = |n: usize| {
        let tls = Tls::Terminate(namespace.into(), name(n));
        let host = format!("{}.{namespace}.test", name(n));
        listener(&name(n), 443, Protocol::Https, &host, Some(tls))
    };
    set(namespace, "mine", 1, "one", numbers.map(one).collect())
}

fn entrance() -> [Object; 2] {
    let all = NamespaceScope::All;
    [our_class(), gateway("one", Vec::new(), all)]
}

fn put(objects: impl IntoIterator<Item = Object>) -> impl Iterator<Item = Change> {
    objects.into_iter().map(Change::Put)
}

fn remove(kind: Kind, namespace: &str, name: &str) -> Change {
    Change::Remove(key(kind, namespace, name))
}

/// The numbers of the Secrets of a namespace whose certificates the proxies get.
fn served(translator: &Translator, namespace: &str) -> Vec<usize> {
    let is_served = |n: &usize| {
        let name = format!("{namespace}/{}", name(*n));
        let key = ResourceKey::new(ResourceKind::Certificate, name);
        let encoded = translator.resources().get(&key).and_then(Encoded::decode);
        matches!(encoded, Some(resource::Resource::Certificate(of)) if !of.chain.is_empty())
    };
    (0..SECRETS).filter(is_served).collect()
}

/// How many bytes the certificates and trust bundles of a namespace have in the configuration.
fn bytes(translator: &Translator, namespace: &str) -> usize {
    let all = translator.resources().iter();
    let of_sources = all.filter(|(key, _)| {
        let name = match key.kind() {
            ResourceKind::Certificate => &*key.name,
            ResourceKind::TrustBundle => key.name.split_once('/').expect("a kind").1,
            _ => return false,
        };
        name.split_once('/').expect("a namespace").0 == namespace
    });
    of_sources.map(|(_, encoded)| encoded.len()).sum()
}

/// How many large certificates fit into the budget.
fn fit() -> usize {
    let mut translator = Translator::new(settings());
    translator.apply(put(entrance()
        .into_iter()
        .chain([users("a"), large("a", 0)])));
    BUDGET / bytes(&translator, "a")
}

/// The findings of a ListenerSet, or of another object, that say that a budget is used up.
fn over(translator: &Translator, kind: Kind, namespace: &str, name: &str) -> Vec<Finding> {
    let findings = translator.findings().get(&key(kind, namespace, name));
    let findings = findings.into_iter().flatten();
    let over = findings.filter(|finding| finding.reason.as_str() == "QuotaExceeded");
    over.cloned().collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<usize> {
    range.collect()
}

#[test]
fn the_oldest_certificates_of_a_namespace_are_served_and_the_neighbours_have_their_own_budget() {
    let fit = fit();
    assert!((20..SECRETS - 4).contains(&fit), "{fit}");
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([users("a"), users("b")])));
    translator.apply(put((0..fit).map(|n| large("a", n))));
    translator.apply(put((0..3).map(|n| large("b", n))));
    assert_eq!(served(&translator, "a"), numbers(0..fit));
    assert_eq!(served(&translator, "b"), numbers(0..3));
    assert!(over(&translator, Kind::ListenerSet, "a", "mine").is_empty());

    // A newcomer does not fit, and changes nothing for the others.
    let output = translator.apply(put([large("a", fit)]));
    assert_eq!(output.resources.len(), 0, "{:?}", output.resources.keys());
    let over_now = over(&translator, Kind::ListenerSet, "a", "mine");
    let [finding] = over_now.as_slice() else {
        panic!("{over_now:?}")
    };
    let field = format!("spec.listeners[{}].tls.certificateRefs[0]", name(fit));
    assert_eq!(finding.field, field);
    let text = finding.to_string();
    for part in [
        &name(fit),
        "the 1 MiB",
        "namespace a",
        "tenants.certificateMib",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(bytes(&translator, "a") <= BUDGET);

    // An older one that goes makes room, and one that comes takes the place of the youngest.
    translator.apply([remove(Kind::Secret, "a", &name(3))]);
    let mut without = numbers(0..fit + 1);
    without.retain(|n| *n != 3);
    assert_eq!(served(&translator, "a"), without);
    assert!(over(&translator, Kind::ListenerSet, "a", "mine").is_empty());
    translator.apply(put([large("a", 3)]));
    assert_eq!(served(&translator, "a"), numbers(0..fit));
    // A small one has the room that the large one does not fit in.
    translator.apply(put([numbered("a", fit + 1, Holds::Pair(0))]));
    let mut with_small = numbers(0..fit);
    with_small.push(fit + 1);
    assert_eq!(served(&translator, "a"), with_small);
    // What nothing uses does not count.
    translator.apply([remove(Kind::ListenerSet, "a", "mine")]);
    assert_eq!(bytes(&translator, "a"), 0);
    translator.apply(put([users("a")]));
    assert_eq!(served(&translator, "a"), with_small);
    assert_eq!(served(&translator, "b"), numbers(0..3));
}

#[test]
fn the_result_depends_on_the_objects_and_not_on_their_order() {
    let objects = || {
        let secrets = (0..SECRETS).map(|n| large("a", n));
        entrance().into_iter().chain([users("a")]).chain(secrets)
    };
    let mut at_once = Translator::new(with_budget());
    at_once.apply(put(objects()));
    let mut backwards = Translator::new(with_budget());
    for object in objects().collect::<Vec<_>>().into_iter().rev() {
        backwards.apply(put([object]));
    }
    assert_eq!(at_once.resources(), backwards.resources());
    assert_eq!(at_once.statuses(), backwards.statuses());
    assert_eq!(at_once.findings(), backwards.findings());
    assert_eq!(served(&at_once, "a"), numbers(0..fit()));
}

#[test]
fn an_old_secret_that_comes_into_use_takes_no_place_from_one_in_service() {
    let fit = fit();
    let objects = || {
        let secrets = (0..SECRETS).map(|n| large("a", n));
        entrance().into_iter().chain(secrets)
    };
    let young = 4..fit + 4;
    let mut translator = Translator::new(with_budget());
    translator.apply(put(objects().chain([users_of("a", young.clone())])));
    translator.keep_in_service();
    assert_eq!(served(&translator, "a"), numbers(young.clone()));

    // An edit has the oldest Secrets used as well.
    let output = translator.apply(put([users_of("a", 0..fit + 4)]));
    assert_eq!(served(&translator, "a"), numbers(young.clone()));
    let sent = output.resources.keys();
    let sent = sent.filter(|key| key.kind() == ResourceKind::Certificate);
    assert_eq!(sent.count(), 0);
    let told = over(&translator, Kind::ListenerSet, "a", "mine");
    let told: Vec<&str> = told.iter().map(|finding| &*finding.field).collect();
    let field = |n| format!("spec.listeners[{}].tls.certificateRefs[0]", name(n));
    assert_eq!(told, [field(0), field(1), field(2), field(3)]);
    // A younger one that comes has its place behind them.
    translator.apply(put([users_of("a", 0..fit + 5)]));
    assert_eq!(served(&translator, "a"), numbers(young.clone()));
    // The first of them has the room of one that goes. It stays when that one is back.
    translator.apply([remove(Kind::Secret, "a", &name(4))]);
    let mut now = numbers(5..fit + 4);
    now.insert(0, 0);
    assert_eq!(served(&translator, "a"), now);
    translator.apply(put([users_of("a", 0..4)]));
    translator.apply(put([users_of("a", 0..fit + 4), large("a", 4)]));
    assert_eq!(served(&translator, "a")[..4], [0, 1, 2, 3]);

    // After a restart nobody knows what came into use when, so the ages count, in whatever order the Secrets are read.
    for is_reversed in [false, true] {
        let mut translator = Translator::new(with_budget()).reading_sources();
        translator.apply(put(entrance().into_iter().chain([users("a")])));
        let mut order = numbers(0..SECRETS);
        if is_reversed {
            order.reverse();
        }
        for n in order {
            translator.apply(put([large("a", n)]));
        }
        // The operator says so when it has read all that is in use.
        translator.keep_in_service();
        assert_eq!(served(&translator, "a"), numbers(0..fit));
    }
}

#[test]
fn an_old_secret_that_is_read_late_takes_no_place_from_what_is_served_meanwhile() {
    let fit = fit();
    let mut translator = Translator::new(with_budget()).reading_sources();
    translator.apply(put(entrance()));
    translator.keep_in_service();
    // They come into use together, while nothing of the namespace counts, and the oldest are read last.
    translator.apply(put([users_of("a", 0..fit + 4)]));
    for n in (0..fit + 4).rev() {
        translator.apply(put([large("a", n)]));
    }
    assert_eq!(served(&translator, "a"), numbers(4..fit + 4));
}

/// The users of a source that stays over the budget with another size are not judged again.
#[test]
fn source_over_its_budget_is_reported_independently_of_its_past() {
    let map = |bytes: usize| checked(2, bytes).into_iter().take(1);
    let with = |sizes: &[usize]| {
        let mut translator = Translator::new(with_budget());
        translator.apply(put(entrance().into_iter().chain([plain()])));
        let most = 430 << 10;
        translator.apply(put([checked(0, most), checked(1, most)].concat()));
        let (first, others) = sizes.split_first().expect("a size");
        translator.apply(put(checked(2, *first)));
        for bytes in others {
            translator.apply(put(map(*bytes)));
        }
        translator
    };
    let edited = with(&[430 << 10, 300 << 10]);
    let anew = with(&[300 << 10]);
    let of_policy = over(&edited, Kind::BackendTlsPolicy, "a", "p2");
    assert_eq!(of_policy.len(), 1);
    assert_eq!(edited.findings(), anew.findings());
    assert_eq!(edited.statuses(), anew.statuses());
}

#[test]
fn an_old_bundle_that_comes_into_use_takes_no_place_from_one_in_service() {
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([plain()])));
    let most = 430 << 10;
    translator.apply(put([checked(1, most), checked(2, most)].concat()));
    translator.keep_in_service();
    let output = translator.apply(put(checked(0, most)));
    assert!(connects(&translator, 1) && connects(&translator, 2));
    assert!(!connects(&translator, 0));
    let of_policy = over(&translator, Kind::BackendTlsPolicy, "a", "p0");
    assert_eq!(of_policy.len(), 1);
    let mut sent = output.resources.keys();
    assert!(sent.all(|key| key.kind() != ResourceKind::TrustBundle));
    // It has the room of one that is no longer used, and keeps it.
    translator.apply([remove(Kind::BackendTlsPolicy, "a", "p1")]);
    assert!(connects(&translator, 0) && connects(&translator, 2));
    translator.apply(put(checked(1, most)));
    assert!(connects(&translator, 0) && connects(&translator, 2));
    assert!(!connects(&translator, 1));
}

/// The proxies keep the last good version of a Secret that cannot be used. If it counted as nothing, a namespace could have
/// any number of them.
#[test]
fn a_secret_that_cannot_be_used_counts_as_the_largest() {
    let most = BUDGET / (MAX_CHAIN_BYTES + MAX_KEY_BYTES);
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([users("a")])));
    translator.apply(put((0..most).map(|n| large("a", n))));
    translator.apply(put((0..most).map(|n| numbered("a", n, Holds::NotPem))));
    // They are sent without a chain, so that the proxies keep what they have.
    let sent = |translator: &Translator| {
        let keys = translator.resources().keys();
        keys.filter(|key| key.kind() == ResourceKind::Certificate)
            .count()
    };
    assert_eq!(sent(&translator), most);
    translator.apply(put((most..SECRETS).map(|n| large("a", n))));
    assert!(served(&translator, "a").len() <= 1);
    assert!(sent(&translator) <= most + 1);
    // One that is over all the same is told both.
    translator.apply(put([numbered("a", SECRETS - 1, Holds::NotPem)]));
    let findings = &translator.findings()[&key(Kind::ListenerSet, "a", "mine")];
    let of_last = findings
        .iter()
        .map(ToString::to_string)
        .find(|text| text.contains(&name(SECRETS - 1)))
        .expect("a finding");
    for part in [
        "holds no certificate",
        "no former version",
        "tenants.certificateMib",
    ] {
        assert!(of_last.contains(part), "{of_last}");
    }
    // Older ones that break have a younger one go, and the proxies do not keep that one either.
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([users("a")])));
    let fit = fit();
    translator.apply(put((0..fit).map(|n| large("a", n))));
    translator.apply(put((0..3).map(|n| numbered("a", n, Holds::NotPem))));
    assert_eq!(served(&translator, "a"), numbers(3..fit - 1));
    assert_eq!(sent(&translator), fit - 1);
}

#[test]
fn the_namespace_of_a_gateway_has_no_limit() {
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([users("platform")])));
    translator.apply(put((0..SECRETS).map(|n| large("platform", n))));
    assert_eq!(served(&translator, "platform"), numbers(0..SECRETS));
    // A tenant that gets a Gateway of its own, and gives it up.
    translator.apply(put([users("a")]));
    translator.apply(put((0..SECRETS).map(|n| large("a", n))));
    let fit = fit();
    assert_eq!(served(&translator, "a"), numbers(0..fit));
    let mut second = gateway("second", Vec::new(), NamespaceScope::All);
    if let Object::Gateway(gateway) = &mut second {
        Arc::make_mut(gateway).name = ObjectName::new("a", "second");
    }
    translator.apply(put([second]));
    assert_eq!(served(&translator, "a"), numbers(0..SECRETS));
    translator.apply([remove(Kind::Gateway, "a", "second")]);
    assert_eq!(served(&translator, "a"), numbers(0..fit));
}

/// Translation with a budget for each namespace, and a total of twice as much.
fn with_total() -> Settings {
    let mut settings = with_budget();
    settings.policy.totals.certificates_mib = 2;
    settings
}

/// Three namespaces that each stay within their own budgets could still fill the batch for a new proxy together.
#[test]
fn certificates_of_all_namespaces_have_a_total_that_they_share() {
    let fit = fit();
    let all = |translator: &Translator| -> usize {
        let namespaces = ["a", "b", "c", "platform"];
        namespaces.map(|name| bytes(translator, name)).iter().sum()
    };
    let texts = |translator: &Translator, namespace: &str| -> Vec<String> {
        let findings = over(translator, Kind::ListenerSet, namespace, "mine");
        findings.iter().map(ToString::to_string).collect()
    };
    let secrets = |namespace: &'static str, range: std::ops::Range<usize>| {
        range.map(move |n| large(namespace, n))
    };
    let sets = || ["a", "b", "c", "platform"].map(users);
    let mut translator = Translator::new(with_total());
    translator.apply(put(entrance().into_iter().chain(sets())));
    translator.apply(put(secrets("a", 0..fit + 1).chain(secrets("b", 0..fit))));
    translator.keep_in_service();
    assert_eq!(served(&translator, "a"), numbers(0..fit));
    assert_eq!(served(&translator, "b"), numbers(0..fit));
    let before = texts(&translator, "a");
    assert_eq!(before.len(), 1);
    assert!(before[0].contains("tenants.certificateMib"), "{before:?}");

    // The third one needs little, and has all of that. The others lose their youngest, and are told why.
    translator.apply(put(secrets("c", 0..10)));
    assert_eq!(served(&translator, "c"), numbers(0..10));
    let share = served(&translator, "a").len();
    assert_eq!(served(&translator, "a"), numbers(0..share));
    assert_eq!(served(&translator, "b"), numbers(0..share));
    assert!((fit - 7..fit - 3).contains(&share), "{share} of {fit}");
    assert!(all(&translator) <= 2 * BUDGET);
    let told = texts(&translator, "a");
    assert_eq!(told.len(), fit + 1 - share);
    assert_eq!(texts(&translator, "b").len(), fit - share);
    for text in &told {
        for part in [
            "namespace a",
            "have 2 MiB together",
            "tenants.allCertificatesMib",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
    // This is what somebody says who sees all objects at once.
    let mut anew = Translator::new(with_total());
    let objects = entrance().into_iter().chain(sets());
    let objects = objects.chain(secrets("a", 0..fit + 1));
    anew.apply(put(objects
        .chain(secrets("b", 0..fit))
        .chain(secrets("c", 0..10))));
    assert_eq!(translator.resources(), anew.resources());
    assert_eq!(translator.statuses(), anew.statuses());
    assert_eq!(translator.findings(), anew.findings());

    // However much it asks for, each of the three has a third.
    translator.apply(put(secrets("c", 10..SECRETS)));
    let third = served(&translator, "c").len();
    assert!(
        (fit / 3 * 2 - 2..=fit / 3 * 2 + 2).contains(&third),
        "{third} of {fit}"
    );
    for namespace in ["a", "b", "c"] {
        assert_eq!(served(&translator, namespace), numbers(0..third));
    }
    assert!(all(&translator) <= 2 * BUDGET);
    // The Gateway's namespace is not limited, and leaves less to the others.
    translator.apply(put(secrets("platform", 0..SECRETS)));
    assert_eq!(served(&translator, "platform"), numbers(0..SECRETS));
    let rest = served(&translator, "c").len();
    assert!((1..third).contains(&rest), "{rest} of {third}");
    assert!(all(&translator) <= 2 * BUDGET);
    // When they have gone, all is as before.
    let gone = ["c", "platform"].map(|name| remove(Kind::ListenerSet, name, "mine"));
    translator.apply(gone);
    assert_eq!(served(&translator, "a"), numbers(0..fit));
    assert_eq!(served(&translator, "b"), numbers(0..fit));
    assert_eq!(texts(&translator, "a"), before);
}

/// A Secret that breaks counts 40 KiB in its namespace, because the proxies keep its last good version. In a batch it has next
/// to nothing, so it is not over a share that is smaller than that.
#[test]
fn a_broken_secret_keeps_its_last_good_version_whatever_the_share() {
    let mut translator = Translator::new(with_total());
    let many: Vec<String> = (0..60).map(|n| format!("n{n:02}")).collect();
    translator.apply(put(entrance()));
    for namespace in &many {
        let two = (0..2).map(|n| large(namespace, n));
        translator.apply(put(two.chain([users_of(namespace, 0..2)])));
    }
    let one = numbered("small", 0, Holds::Pair(0));
    translator.apply(put([users_of("small", 0..1), one]));
    translator.keep_in_service();
    let all_served = |translator: &Translator| -> Vec<usize> {
        many.iter()
            .map(|name| served(translator, name).len())
            .collect()
    };
    let before = all_served(&translator);
    assert_eq!(before, [1; 60]);
    assert_eq!(served(&translator, "small"), [0]);

    let output = translator.apply(put([numbered("small", 0, Holds::NotPem)]));
    // It is sent without a chain, and not removed.
    let sent = ResourceKey::new(ResourceKind::Certificate, format!("small/{}", name(0)));
    assert!(output.resources[&sent].is_some());
    let of_set = key(Kind::ListenerSet, "small", "mine");
    assert_eq!(reasons(&translator, &of_set), ["InvalidCertificateRef"]);
    // Very many of them do not affect others.
    translator.apply(put((0..20).map(|n| numbered("small", n, Holds::NotPem))));
    translator.apply(put([users_of("small", 0..20)]));
    assert_eq!(all_served(&translator), before);
}

/// A batch has room for all totals, and for the rest of a configuration.
const _: () = {
    let most = (ConfigurationTotals::MOST_MIB as usize) << 20;
    assert!(most + (16 << 20) <= MAX_MESSAGE_BYTES);
};

/// CA certificates of so many bytes, at least.
fn authorities(bytes: usize) -> Vec<u8> {
    let each = MAX_CHAIN_BYTES - 1024;
    LARGE.0.repeat(bytes.div_ceil(each)).into_bytes()
}

/// A ConfigMap with CA certificates, a Service whose backends are checked by them, and a route to it.
fn checked(n: usize, bytes: usize) -> Vec<Object> {
    let mut map = config_map("a", &format!("ca{n}"), Trusts::Both);
    if let Object::ConfigMap(map) = &mut map {
        map.created = i64::try_from(n).expect("few");
        map.authorities = Some(Arc::from(authorities(bytes)));
    }
    let service_name = format!("app{n}");
    let host = format!("app{n}.a.test");
    let parents = vec![parent("ListenerSet", None, "plain", None)];
    let backends = [backend("a", &service_name, 1, 1)];
    let at = ("a", service_name.as_str(), 1);
    vec![
        map,
        service("a", &service_name, &[1]),
        slice("a", &service_name, 0, 1, &[1]),
        policy(
            "a",
            &format!("p{n}"),
            1,
            (&service_name, None),
            Some(&format!("ca{n}")),
        ),
        http_route(at, parents, &[&host], &[Rule::Filtered], &backends),
    ]
}

fn plain() -> Object {
    let web = listener("web", 80, Protocol::Http, "*.a.test", None);
    set("a", "plain", 1, "one", vec![web])
}

/// Whether the proxies connect to the backend of service `n`.
fn connects(translator: &Translator, n: usize) -> bool {
    let key = ResourceKey::new(ResourceKind::Backend, format!("a/app{n}:1"));
    match translator.resources().get(&key).and_then(Encoded::decode) {
        Some(resource::Resource::Backend(backend)) => !backend.tls.expect("a policy").invalid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_size_of_a_bundle_is_bounded() {
    let mut translator = Translator::new(settings());
    translator.apply(put(entrance().into_iter().chain([plain()])));
    translator.apply(put(checked(0, MAX_BUNDLE_BYTES - MAX_CHAIN_BYTES)));
    assert!(connects(&translator, 0));
    translator.apply(put(checked(0, MAX_BUNDLE_BYTES + 1)));
    assert!(!connects(&translator, 0));
    assert_eq!(bytes(&translator, "a"), 0);
    let of_policy = key(Kind::BackendTlsPolicy, "a", "p0");
    assert_eq!(
        reasons(&translator, &of_policy),
        ["InvalidCACertificateRef"]
    );
    let finding = &translator.findings()[&of_policy][0];
    assert!(
        finding.message.contains("more than 524288 cost all"),
        "{finding}"
    );
}

#[test]
fn bundles_and_certificates_share_the_budget_of_their_namespace() {
    let mut translator = Translator::new(with_budget());
    translator.apply(put(entrance().into_iter().chain([plain(), users("a")])));
    let most = 430 << 10;
    translator.apply(put([checked(0, most), checked(1, most)].concat()));
    assert!(connects(&translator, 0) && connects(&translator, 1));
    // The third one does not fit, so nothing is connected to without the check.
    let output = translator.apply(put(checked(2, most)));
    assert!(!connects(&translator, 2));
    assert!(connects(&translator, 0) && connects(&translator, 1));
    assert!(
        output
            .resources
            .keys()
            .all(|key| key.kind() != ResourceKind::TrustBundle)
    );
    assert_eq!(
        over(&translator, Kind::BackendTlsPolicy, "a", "p2").len(),
        1
    );
    // There is room for a few certificates beside the two.
    translator.apply(put((10..20).map(|n| large("a", n))));
    let few = served(&translator, "a").len();
    assert!((1..10).contains(&few), "{few}");
    assert!(bytes(&translator, "a") <= BUDGET);
    // The third bundle is older than the certificates, so it gets the room of the first one.
    translator.apply([remove(Kind::BackendTlsPolicy, "a", "p0")]);
    assert!(connects(&translator, 2));
    assert_eq!(served(&translator, "a").len(), few);
    translator.apply([remove(Kind::BackendTlsPolicy, "a", "p1")]);
    assert_eq!(served(&translator, "a"), numbers(10..20));
}

/// An elliptic key with so many bytes of attributes beside it, as DER.
fn with_attributes(key: &[u8], bytes: usize) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
    // The length of the sequence has one byte, or two that begin with 0x81.
    let header = 2 + usize::from(key[1] & 0x80 != 0);
    let mut content = key[header..].to_vec();
    content.extend([0xa0, 0x82]);
    content.extend(length(bytes));
    content.resize(content.len() + bytes, 0);
    let mut der = vec![0x30, 0x82];
    der.extend(length(content.len()));
    der.extend(content);
    der
}

#[test]
fn the_size_of_a_key_is_bounded() {
    let pair = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
    let certificate = params.self_signed(&pair).expect("a certificate").pem();
    let served_with = |attributes: usize| {
        let der = with_attributes(&pair.serialize_der(), attributes);
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
        let mut object = secret("a", &name(0), Holds::Pair(0));
        if let Object::Secret(secret) = &mut object {
            secret.certificate = Some(Arc::from(certificate.clone().into_bytes()));
            secret.private_key = Some(Arc::new(pem.into_bytes().into()));
        }
        let mut translator = Translator::new(settings());
        translator.apply(put(entrance().into_iter().chain([users("a"), object])));
        let findings = &translator.findings()[&key(Kind::ListenerSet, "a", "mine")];
        (served(&translator, "a").len(), findings[0].to_string())
    };
    let (served, problem) = served_with(MAX_KEY_BYTES);
    assert_eq!(served, 0);
    assert!(problem.contains("more than 8192 bytes"), "{problem}");
}
