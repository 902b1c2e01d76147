//! The result for a request, and which of two makers gives way to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vestibule_model::certificate::{
    AlternativeNames, CertificateOptions, KeyAlgorithm, KeyEncoding, KeyRotation, Mailbox,
    PrivateKeyOptions, Subject,
};
use vestibule_model::condition::Reason;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::{CertificateRequest, IssuanceState};
use vestibule_model::issuer::{Engine, IssuerRef};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};

use super::{
    APPLIED, Availability, CertManagerSettings, CertificateAction, CertificateAttempt,
    CertificateAttempts, CertificateVerdict, MANAGED_BY, Maker, PresentCertificate,
    PresentCertificates, desired, judge, stale,
};

const IDENTITY: &str = "system/vestibule";

pub(crate) fn settings(listener_sets: Maker) -> CertManagerSettings {
    CertManagerSettings {
        listener_sets,
        gateways: Maker::CertManager,
        identity: IDENTITY.into(),
    }
}

fn issuer() -> IssuerRef {
    IssuerRef {
        engine: Engine::CertManager,
        name: "ca".into(),
        kind: "Issuer".into(),
        group: "cert-manager.io".into(),
    }
}

/// ListenerSet `a/web` asks for `web.example.com` in Secret `a/web-tls`.
pub(crate) fn request(options: CertificateOptions) -> CertificateRequest {
    CertificateRequest {
        secret: ObjectName::new("a", "web-tls"),
        hostnames: BTreeSet::from([Hostname::parse("web.example.com").unwrap()]),
        issuer: Some(issuer()),
        owner: ObjectKey {
            kind: Kind::ListenerSet,
            name: ObjectName::new("a", "web"),
        },
        owner_uid: "set-uid".into(),
        gateway: ObjectName::new("infra", "shared"),
        gateway_uid: "gateway-uid".into(),
        options: Arc::new(options),
        reach: BTreeMap::new(),
    }
}

fn manifest(request: &CertificateRequest) -> Value {
    desired(request, &issuer(), IDENTITY).unwrap().manifest()
}

fn texts(values: &[&str]) -> Vec<Arc<str>> {
    values.iter().map(|value| (*value).into()).collect()
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(owned).collect()
}

#[test]
fn without_options_it_is_what_the_shim_makes() {
    let labels = map(&[
        ("team", "a"),
        ("applyset.kubernetes.io/part-of", "somewhere"),
    ]);
    let mut made = manifest(&request(CertificateOptions {
        labels,
        ..CertificateOptions::default()
    }));
    let annotations = made["metadata"]["annotations"].as_object_mut().unwrap();
    let digest = annotations.remove(APPLIED).unwrap();
    assert_eq!(digest.as_str().unwrap().len(), 16);
    assert_eq!(
        made,
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {
                "name": "web-tls", "namespace": "a",
                "labels": {"team": "a"},
                "annotations": {
                    "acme.cert-manager.io/http01-parentrefkind": "ListenerSet",
                    "acme.cert-manager.io/http01-parentrefname": "web",
                    MANAGED_BY: IDENTITY,
                },
                // No controller: the shim would take the Certificate for its own.
                "ownerReferences": [{
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                    "name": "web", "uid": "set-uid",
                }],
            },
            "spec": {
                "secretName": "web-tls",
                "dnsNames": ["web.example.com"],
                "issuerRef": {"name": "ca", "kind": "Issuer", "group": "cert-manager.io"},
                "usages": ["digital signature", "key encipherment"],
            },
        })
    );
}

#[test]
fn certificate_spec_adds_addresses_and_mailboxes_but_only_requested_hostnames() {
    let mut asked = request(CertificateOptions {
        alternative_names: AlternativeNames {
            hostnames: BTreeSet::from([Hostname::parse("more.example.com").unwrap()]),
            addresses: BTreeSet::from([
                "192.0.2.1".parse().unwrap(),
                "2001:db8::1".parse().unwrap(),
            ]),
            mailboxes: BTreeSet::from([Mailbox::parse("ops@example.com").unwrap()]),
        },
        ..CertificateOptions::default()
    });
    let spec = manifest(&asked)["spec"].clone();
    assert_eq!(spec["ipAddresses"], json!(["192.0.2.1", "2001:db8::1"]));
    assert_eq!(spec["emailAddresses"], json!(["ops@example.com"]));
    // Hostnames are those of the request: translation puts in what the namespace holds.
    assert_eq!(spec["dnsNames"], json!(["web.example.com"]));
    asked
        .hostnames
        .insert(Hostname::parse("more.example.com").unwrap());
    let names = json!(["more.example.com", "web.example.com"]);
    assert_eq!(manifest(&asked)["spec"]["dnsNames"], names);
}

#[test]
fn annotations_are_copied_and_ours_win() {
    let annotations = |options| manifest(&request(options))["metadata"]["annotations"].clone();
    let temporary = annotations(CertificateOptions {
        temporary: true,
        copied_annotations: map(&[
            ("venafi.cert-manager.io/custom-fields", "[]"),
            ("acme.cert-manager.io/http01-parentrefname", "other"),
            (MANAGED_BY, "other/release"),
        ]),
        ..CertificateOptions::default()
    });
    assert_eq!(
        temporary["cert-manager.io/issue-temporary-certificate"],
        "true"
    );
    assert_eq!(temporary["venafi.cert-manager.io/custom-fields"], "[]");
    assert_eq!(
        temporary["acme.cert-manager.io/http01-parentrefname"],
        "web"
    );
    assert_eq!(temporary[MANAGED_BY], IDENTITY);
    let in_place = annotations(CertificateOptions {
        http01_edit_in_place: true,
        ..CertificateOptions::default()
    });
    assert_eq!(
        in_place["acme.cert-manager.io/http01-override-ingress-name"],
        "web"
    );
    assert_eq!(
        in_place["cert-manager.io/issue-temporary-certificate"],
        "true"
    );
}

#[test]
fn every_option_is_carried_over() {
    let made = manifest(&request(CertificateOptions {
        common_name: Some("Web.example.com".into()),
        subject: Subject {
            organizations: texts(&["A", "B, C"]),
            organizational_units: texts(&["Web"]),
            countries: texts(&["CH"]),
            provinces: texts(&["ZH"]),
            localities: texts(&["Zürich"]),
            postal_codes: texts(&["8000"]),
            street_addresses: texts(&["Street 1"]),
            serial_number: Some("7".into()),
        },
        duration: Some(Duration::from_hours(2160)),
        renew_before: Some(Duration::from_millis(5_400_500)),
        renew_before_percentage: Some(25),
        usages: texts(&["server auth"]),
        revision_history_limit: Some(3),
        private_key: PrivateKeyOptions {
            algorithm: Some(KeyAlgorithm::Ecdsa),
            encoding: Some(KeyEncoding::Pkcs8),
            size: Some(384),
            rotation: Some(KeyRotation::Always),
        },
        secret_annotations: map(&[("note", "x")]),
        secret_labels: map(&[("team", "a")]),
        http01_ingress_class: Some("nginx".into()),
        http01_ingress_class_name: Some("nginx-2".into()),
        ..CertificateOptions::default()
    }));
    let mut spec = made["spec"].clone();
    let fields = spec.as_object_mut().unwrap();
    for field in ["secretName", "dnsNames", "issuerRef"] {
        fields.remove(field);
    }
    assert_eq!(
        spec,
        json!({
            "commonName": "Web.example.com",
            "subject": {
                "organizations": ["A", "B, C"], "organizationalUnits": ["Web"], "countries": ["CH"],
                "provinces": ["ZH"], "localities": ["Zürich"], "postalCodes": ["8000"],
                "streetAddresses": ["Street 1"], "serialNumber": "7",
            },
            "duration": "2160h0m0s",
            "renewBefore": "1h30m0.5s",
            "renewBeforePercentage": 25,
            "usages": ["server auth"],
            "revisionHistoryLimit": 3,
            "privateKey": {
                "algorithm": "ECDSA", "encoding": "PKCS8", "size": 384, "rotationPolicy": "Always",
            },
            "secretTemplate": {"annotations": {"note": "x"}, "labels": {"team": "a"}},
        })
    );
    let annotations = &made["metadata"]["annotations"];
    let class = "acme.cert-manager.io/http01-override-ingress-class";
    assert_eq!(annotations[class], "nginx");
    let class = "acme.cert-manager.io/http01-override-ingress-ingressclassname";
    assert_eq!(annotations[class], "nginx-2");
}

#[test]
fn the_solvers_route_goes_to_the_set_or_to_its_gateway() {
    let parent = |request: &CertificateRequest| {
        let made = manifest(request);
        ["kind", "name", "namespace"].map(|part| {
            let key = format!("acme.cert-manager.io/http01-parentref{part}");
            made["metadata"]["annotations"][key]
                .as_str()
                .map(str::to_owned)
        })
    };
    let some = |text: &str| Some(text.to_owned());
    let fallback = CertificateOptions {
        http01_parent_fallback: true,
        ..CertificateOptions::default()
    };
    let mut set = request(fallback);
    let gateway = [some("Gateway"), some("shared"), some("infra")];
    assert_eq!(parent(&set), gateway);
    // A Gateway's own listeners: nothing to fall back to.
    set.owner = ObjectKey {
        kind: Kind::Gateway,
        name: ObjectName::new("infra", "shared"),
    };
    assert_eq!(parent(&set), [some("Gateway"), some("shared"), None]);
}

#[test]
fn a_common_name_is_no_way_to_another_name() {
    let named = |name: &str| {
        let options = CertificateOptions {
            common_name: Some(name.into()),
            ..CertificateOptions::default()
        };
        desired(&request(options), &issuer(), IDENTITY).is_ok()
    };
    assert!(named("web.example.com"));
    assert!(named("Our shop"));
    assert!(!named("other.example.com"));
    assert!(!named("OTHER.example.com."));
    assert!(!named("*.example.com"));
}

/// A Certificate as a server would have it.
fn there(name: &str, change: impl FnOnce(&mut Value)) -> PresentCertificates {
    let mut object = manifest(&request(CertificateOptions::default()));
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = "uid".into();
    object["metadata"]["generation"] = 1.into();
    object["metadata"]["resourceVersion"] = "7".into();
    change(&mut object);
    let mut all = PresentCertificates::default();
    let settings = settings(Maker::Vestibule);
    let (name, present) = PresentCertificate::of(object, &settings).unwrap();
    all.insert(name, present);
    all
}

fn foreign(object: &mut Value) {
    object["metadata"]["annotations"] = json!({});
    object["metadata"]["ownerReferences"] = json!([]);
}

fn by_shim(object: &mut Value) {
    foreign(object);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet", "name": "web",
        "uid": "set-uid", "controller": true,
    }]);
}

fn ready(object: &mut Value) {
    object["status"] = json!({
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Ready", "observedGeneration": 1},
        ],
        "notAfter": "2027-01-01T00:00:00Z", "renewalTime": "2026-12-01T00:00:00Z",
    });
}

fn verdict(maker: Maker, present: &PresentCertificates) -> CertificateVerdict {
    let request = request(CertificateOptions::default());
    let desired_certificate = desired(&request, &issuer(), IDENTITY);
    let attempts = CertificateAttempts::default();
    judge(
        &request,
        &desired_certificate,
        &settings(maker),
        Availability::Watched,
        present,
        &attempts,
    )
}

#[test]
fn ours_is_made_kept_and_reported() {
    let none = verdict(Maker::Vestibule, &PresentCertificates::default());
    assert!(matches!(none.action, Some(CertificateAction::Create(_))));
    assert_eq!(none.issuance.state, IssuanceState::Pending);

    let made = verdict(Maker::Vestibule, &there("web-tls", ready));
    assert_eq!(made.action, None);
    assert_eq!(made.issuance.state, IssuanceState::Issued);
    let text = &*made.issuance.message;
    assert!(text.contains("2027-01-01"), "{text}");

    // Vestibule leaves fields alone that others add.
    let added = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            object["metadata"]["labels"] = json!({"more": "x"});
            object["spec"]["keystores"] = json!({});
            let owners = object["metadata"]["ownerReferences"]
                .as_array_mut()
                .unwrap();
            owners.insert(0, json!({"kind": "Other", "name": "o", "uid": "u"}));
        }),
    );
    assert_eq!(added.action, None);
    // One more name is another certificate.
    let edited = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            object["spec"]["dnsNames"] = json!(["web.example.com", "other.example.com"]);
        }),
    );
    assert!(matches!(edited.action, Some(CertificateAction::Apply(uid, _)) if uid == "uid"));
    // Until cert-manager has seen the latest, what it says is of before.
    let newer = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            ready(object);
            object["metadata"]["generation"] = 2.into();
        }),
    );
    assert_eq!(newer.issuance.state, IssuanceState::Pending);
    let going = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            object["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z".into();
        }),
    );
    assert_eq!(going.action, None);
}

#[test]
fn certificate_that_is_not_ours_is_left_alone_and_named_in_the_message() {
    let shim = verdict(Maker::Vestibule, &there("web-tls", by_shim));
    assert_eq!(shim.action, None);
    assert_eq!(shim.issuance.state, IssuanceState::Failed);
    assert_eq!(shim.issuance.reason, Reason::CertificateNotOurs);
    let text = &*shim.issuance.message;
    assert!(
        text.contains("set certManager.listenerSets to cert-manager"),
        "{text}"
    );
    // It does its work all the same.
    let shim = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            by_shim(object);
            ready(object);
        }),
    );
    assert_eq!(shim.issuance.state, IssuanceState::Issued);
    assert_eq!(shim.issuance.reason, Reason::CertificateNotOurs);
    // Somebody's own, and one of another name that writes the same Secret.
    for name in ["web-tls", "by-hand"] {
        let hand = verdict(Maker::Vestibule, &there(name, foreign));
        assert_eq!(hand.action, None, "{name}");
        assert_eq!(hand.issuance.reason, Reason::CertificateNotOurs);
        assert!(hand.issuance.message.contains(name));
    }
    // One with our annotation and a controller is the controller's.
    let controlled = verdict(
        Maker::Vestibule,
        &there("web-tls", |object| {
            object["metadata"]["ownerReferences"] =
                json!([{"kind": "X", "name": "x", "controller": true}]);
        }),
    );
    assert_eq!(controlled.action, None);
    assert!(controlled.issuance.message.contains("X x"));
}

#[test]
fn where_cert_manager_makes_them_ours_make_room() {
    let none = verdict(Maker::CertManager, &PresentCertificates::default());
    assert_eq!(none.action, None);
    assert_eq!(none.issuance.state, IssuanceState::Pending);
    assert!(none.issuance.message.contains("ListenerSets=true"));
    let ours = verdict(Maker::CertManager, &there("web-tls", ready));
    assert_eq!(ours.action, Some(CertificateAction::Delete("uid".into())));
    let shim = verdict(
        Maker::CertManager,
        &there("web-tls", |object| {
            by_shim(object);
            ready(object);
        }),
    );
    assert_eq!(shim.action, None);
    assert_eq!(shim.issuance.state, IssuanceState::Issued);
    assert_eq!(shim.issuance.reason, Reason::Issued);
}

#[test]
fn certificate_that_nobody_requests_is_deleted_only_if_it_is_ours() {
    let name = ObjectName::new("a", "web-tls");
    let of = |change: fn(&mut Value)| stale(there("web-tls", change).get(&name).unwrap());
    assert_eq!(of(|_| ()), Some(CertificateAction::Delete("uid".into())));
    assert_eq!(of(foreign), None);
    assert_eq!(of(by_shim), None);
    // Another release's.
    let other =
        of(|object| object["metadata"]["annotations"][MANAGED_BY] = "other/vestibule".into());
    assert_eq!(other, None);
}

#[test]
fn cert_managers_words_are_passed_on_in_bounds() {
    let say = |ready: Value, issuing: Value| {
        verdict(
            Maker::Vestibule,
            &there("web-tls", |object| {
                object["status"] = json!({"conditions": [ready, issuing]});
            }),
        )
        .issuance
    };
    let not_ready = json!({
        "type": "Ready", "status": "False", "reason": "DoesNotExist", "observedGeneration": 1,
        "message": "no Secret",
    });
    let issuing = say(
        not_ready.clone(),
        json!({"type": "Issuing", "status": "True", "message": "as Secret does not exist"}),
    );
    assert_eq!(issuing.state, IssuanceState::Pending);
    assert!(issuing.message.contains("as Secret does not exist"));
    let failed = say(
        not_ready.clone(),
        json!({
            "type": "Issuing", "status": "False", "reason": "Failed",
            "message": format!("the CA said\nno {}", "x".repeat(5000)),
        }),
    );
    assert_eq!(failed.state, IssuanceState::Failed);
    assert_eq!(failed.reason, Reason::OrderFailed);
    assert!(failed.message.contains("the CA said no"));
    assert!(failed.message.len() < 700);
    let done = say(
        not_ready,
        json!({"type": "Issuing", "status": "False", "reason": "Issued", "message": "issued"}),
    );
    assert_eq!(done.state, IssuanceState::Pending);
    assert!(done.message.contains("no Secret"));
    // A renewal that fails is no reason to say that there is nothing.
    let ready = json!({"type": "Ready", "status": "True", "observedGeneration": 1});
    let renewal = say(
        ready,
        json!({"type": "Issuing", "status": "False", "reason": "Failed", "message": "no luck"}),
    );
    assert_eq!(renewal.state, IssuanceState::Issued);
    assert_eq!(renewal.reason, Reason::RenewalFailed);
    // Nonsense says nothing.
    let nonsense = say(json!(7), json!({"type": "Ready", "status": []}));
    assert_eq!(nonsense.state, IssuanceState::Pending);
}

#[test]
fn without_cert_manager_it_is_said_so() {
    let request = request(CertificateOptions::default());
    let desired_certificate = desired(&request, &issuer(), IDENTITY);
    let say = |availability| {
        let settings = settings(Maker::Vestibule);
        let (none, attempts) = (
            PresentCertificates::default(),
            CertificateAttempts::default(),
        );
        judge(
            &request,
            &desired_certificate,
            &settings,
            availability,
            &none,
            &attempts,
        )
    };
    for availability in [
        Availability::NotInstalled,
        Availability::Unreadable("forbidden"),
    ] {
        let verdict = say(availability);
        assert_eq!(verdict.action, None);
        assert_eq!(verdict.issuance.reason, Reason::EngineNotAvailable);
    }
}

#[test]
fn a_secret_knows_who_writes_it() {
    let mut all = there("by-hand", foreign);
    let secret = ObjectName::new("a", "web-tls");
    assert_eq!(&**all.other_of(&secret).unwrap().0, "by-hand");
    // It turns to another Secret: both are told of.
    let moved = there("by-hand", |object| {
        foreign(object);
        object["spec"]["secretName"] = "else".into();
    });
    let name = ObjectName::new("a", "by-hand");
    let about = all.insert(name.clone(), moved.get(&name).unwrap().clone());
    assert_eq!(about, [ObjectName::new("a", "else"), secret.clone()]);
    assert!(all.other_of(&secret).is_none());
    assert!(all.remove(&name).is_some());
    assert!(all.names().next().is_none());
}

#[test]
fn an_attempt_says_what_it_waits_for() {
    let attempt = |name: &str, revision: &str, truth: &str, message: &str| {
        json!({
            "metadata": {
                "namespace": "a", "name": name,
                "annotations": {
                    "cert-manager.io/certificate-name": "web-tls",
                    "cert-manager.io/certificate-revision": revision,
                },
            },
            "status": {"conditions": [
                {"type": "Approved", "status": "True", "message": "approved"},
                {"type": "Ready", "status": truth, "reason": "Pending", "message": message},
            ]},
        })
    };
    let mut attempts = CertificateAttempts::default();
    let mut set = |object: Value| {
        let (name, attempt) = CertificateAttempt::of(&object).unwrap();
        let about = attempts.set(&name, attempt);
        let web = ObjectName::new("a", "web-tls");
        assert!(about.iter().all(|name| *name == web));
        let request = request(CertificateOptions::default());
        let desired_certificate = desired(&request, &issuer(), IDENTITY);
        let present = there("web-tls", |object| {
            let issuing = json!({"type": "Issuing", "status": "True", "message": "no Secret"});
            object["status"] = json!({"conditions": [issuing]});
        });
        let settings = settings(Maker::Vestibule);
        let watched = Availability::Watched;
        let verdict = judge(
            &request,
            &desired_certificate,
            &settings,
            watched,
            &present,
            &attempts,
        );
        (about.len(), verdict.issuance.message.to_string())
    };
    let (about, text) = set(attempt("web-tls-9", "9", "False", "no such issuer"));
    assert_eq!(about, 1);
    assert!(text.ends_with(": no such issuer"), "{text}");
    // The ninth came before the tenth, and the same again is no news.
    let (_, text) = set(attempt("web-tls-10", "10", "False", "the order is pending"));
    assert!(text.ends_with(": the order is pending"), "{text}");
    let (about, _) = set(attempt("web-tls-10", "10", "False", "the order is pending"));
    assert_eq!(about, 0);
    set(attempt("web-tls-10", "10", "True", "issued"));
    let (about, text) = set(attempt("web-tls-9", "9", "True", "issued"));
    assert_eq!(about, 1);
    assert!(text.ends_with(": no Secret"), "{text}");
    assert!(CertificateAttempt::of(&json!({"metadata": {"name": 7}})).is_none());
}
