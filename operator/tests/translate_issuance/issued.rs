//! What listeners say of the certificate that an engine makes, and of the one that is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::condition::{ConditionType, Reason, Truth};
use vestibule_model::issuance::{Issuance, IssuanceState};
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::ObjectName;
use vestibule_model::object::Object;
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::objects::*;

use super::{conditions, ends, said, tenant, with, world};

#[test]
fn how_far_it_is_is_the_engines_word() {
    let listeners = vec![ends("l", 443, "x.example.com", "a", "cert")];
    let mut world = world(
        vec![passthrough("own", "own.example.com")],
        [with(tenant("a", listeners), acme())],
    );
    let secret = ObjectName::new("a", "cert");
    for (state, reason, truth) in [
        (IssuanceState::Pending, Reason::OverBudget, Truth::False),
        (IssuanceState::Failed, Reason::OrderFailed, Truth::False),
        (IssuanceState::Issued, Reason::Issued, Truth::True),
    ] {
        let issuance = Issuance {
            state,
            reason,
            message: "so it is".into(),
        };
        let told = BTreeMap::from([(secret.clone(), Some(issuance))]);
        let output = world.issuance(told.clone());
        assert_eq!(output.statuses.len(), 1);
        assert!(output.resources.is_empty() && output.certificates.is_empty());
        assert_eq!(said(&world, "a", "l"), Some((truth, reason)));
        assert!(world.issuance(told).statuses.is_empty(), "no news");
    }
    world.issuance(BTreeMap::from([(secret, None)]));
    assert_eq!(
        said(&world, "a", "l"),
        Some((Truth::False, Reason::Pending))
    );
}

#[test]
fn a_secret_of_the_engines_without_a_certificate_is_being_issued() {
    let mut waiting = secret("a", "cert", Holds::NotPem);
    let listeners = vec![ends("l", 443, "x.example.com", "a", "cert")];
    let set = with(tenant("a", listeners), acme());
    let resource = |world: &Translator| {
        let mut keys = world.resources().keys();
        keys.any(|key| key.name == "a/cert")
    };
    if let Object::Secret(secret) = &mut waiting {
        secret.certificate = Some(Arc::from(&b""[..]));
    }
    let own = || vec![passthrough("own", "own.example.com")];
    // Somebody's own empty one leaves the last good one with the proxies.
    assert!(resource(&world(own(), [set.clone(), waiting.clone()])));
    if let Object::Secret(secret) = &mut waiting {
        secret.acme = true;
    }
    let world = world(own(), [set.clone(), waiting]);
    assert!(!resource(&world));
    let conditions = conditions(&world, &set.key(), "l");
    let resolved = conditions
        .iter()
        .find(|c| c.kind == ConditionType::ResolvedRefs);
    assert!(resolved.expect("one").message.contains("being issued"));
}

/// After an edit of the hostname, the certificate for the former one is there until the engine has the next one.
#[test]
fn a_certificate_that_an_engine_replaces_is_not_the_owners_to_replace() {
    let told = |issuers: IssuerAnnotations, is_ours: bool| {
        let mut former = secret("a", "cert", Holds::Pair(0));
        if let Object::Secret(secret) = &mut former {
            secret.acme = is_ours;
        }
        let listeners = vec![ends("l", 443, "x.example.com", "a", "cert")];
        let set = with(tenant("a", listeners), issuers);
        let own = vec![passthrough("own", "own.example.com")];
        let world = world(own, [set.clone(), former]);
        let mut conditions = conditions(&world, &set.key(), "l").iter();
        let resolved = conditions.find(|c| c.kind == ConditionType::ResolvedRefs);
        let in_status = resolved.expect("one").message.contains("is not valid for");
        let found = reasons(&world, &set.key()).contains(&"CertificateNameMismatch");
        assert_eq!(in_status, found);
        found
    };
    let nobody = IssuerAnnotations::default;
    assert!(!told(acme(), true));
    assert!(told(acme(), false), "the engine leaves it as it is");
    assert!(!told(cert_manager(), false));
    assert!(told(nobody(), false));
    assert!(told(nobody(), true), "no engine is asked any more");
}

/// The first second of a year.
fn year(year: i64) -> i64 {
    let leap_days = (year - 1969) / 4 - (year - 1901) / 100 + (year - 1601) / 400;
    ((year - 1970) * 365 + leap_days) * 86_400
}

#[test]
fn an_expired_certificate_is_served_only_if_nothing_better_exists() {
    let said = |secrets: [&str; 2]| {
        let mut of_both = ends("l", 443, "x.example.com", "a", secrets[0]);
        let second = ends("l", 443, "x.example.com", "a", secrets[1]);
        let certificates = second.tls.expect("TLS").certificates;
        of_both
            .tls
            .as_mut()
            .expect("TLS")
            .certificates
            .extend(certificates);
        let set = tenant("a", vec![of_both]);
        let old = [
            secret_of_age("a", "old", false),
            secret_of_age("a", "older", false),
        ];
        let valid = secret("a", "valid", Holds::Pair(0));
        let own = vec![passthrough("own", "own.example.com")];
        let mut world = world(own, old.into_iter().chain([set.clone(), valid]));
        world.apply([Change::Time(year(2026))]);
        assert!(reasons(&world, &set.key()).contains(&"Expired"));
        let mut conditions = conditions(&world, &set.key(), "l").iter();
        let resolved = conditions.find(|c| c.kind == ConditionType::ResolvedRefs);
        let resolved = resolved.expect("a condition");
        assert_eq!(resolved.truth, Truth::True);
        resolved.message.clone()
    };
    let alone = "it is served because nothing better exists";
    assert!(said(["old", "older"]).contains(alone));
    for secrets in [["old", "valid"], ["valid", "old"]] {
        let message = said(secrets);
        assert!(
            message.contains("Secret a/old expired at 2020-01-01"),
            "{message}"
        );
        assert!(!message.contains(alone), "{message}");
    }
}

#[test]
fn time_says_what_is_valid() {
    let listeners = vec![ends("l", 443, "aged.example.com", "a", "cert")];
    let set = tenant("a", listeners);
    let own = vec![passthrough("own", "own.example.com")];
    let mut world = world(own, [set.clone(), secret_of_age("a", "cert", true)]);
    let resource = |world: &Translator| {
        let key = |key: &&Arc<vestibule_stream::ResourceKey>| key.name == "a/cert";
        let found = world.resources().keys().find(key).cloned();
        found.map(|key| world.resources()[&key].hash())
    };
    let resolved = |world: &Translator| {
        let conditions = conditions(world, &set.key(), "l").iter();
        let mut of_kind = conditions.filter(|c| c.kind == ConditionType::ResolvedRefs);
        of_kind.next().cloned().expect("a condition")
    };
    // Without a clock nothing of it is judged.
    let good = resource(&world);
    assert_eq!(resolved(&world).truth, Truth::True);
    // Not yet: the proxies get an empty one, and go on with the last good one.
    world.apply([Change::Time(year(2026))]);
    assert_ne!(resource(&world), good);
    assert!(resource(&world).is_some());
    let before = resolved(&world);
    assert_eq!(
        (before.truth, before.reason),
        (Truth::False, Reason::InvalidCertificateRef)
    );
    assert!(
        before
            .message
            .contains("not valid before 2030-01-01T00:00:00Z"),
        "{before:?}"
    );
    assert!(before.message.contains("last good one"));
    // Nothing happens before its time.
    assert_eq!(world.next_deadline(), Some(year(2030)));
    let quiet = world.apply([Change::Time(year(2030) - 1)]);
    assert_eq!(quiet.work.certificates, 0);
    world.apply([Change::Time(year(2030))]);
    assert_eq!(resource(&world), good);
    assert_eq!(resolved(&world).message, "All references are resolved");
    // Expired: served, and said so.
    assert_eq!(world.next_deadline(), Some(year(2040) + 1));
    world.apply([Change::Time(year(2040) + 1)]);
    assert_eq!(resource(&world), good);
    let after = resolved(&world);
    assert_eq!(after.truth, Truth::True);
    assert!(
        after.message.contains("expired at 2040-01-01T00:00:00Z"),
        "{after:?}"
    );
    assert!(reasons(&world, &set.key()).contains(&"Expired"));
    // A clock that is set back is believed, though no certificate has another deadline.
    assert_eq!(world.next_deadline(), None);
    assert!(!world.needs_time(year(2050)));
    assert!(world.needs_time(year(2026)));
    world.apply([Change::Time(year(2026))]);
    assert_eq!(resolved(&world), before);
    assert!(!world.needs_time(year(2026)));
    assert!(!world.needs_time(year(2030) - 1));
    assert!(world.needs_time(year(2030)));
}
