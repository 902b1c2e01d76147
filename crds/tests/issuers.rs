//! `ACMEIssuer` and `ClusterACMEIssuer`: what of them is read, and what is refused where.

use std::sync::Arc;

use serde_json::{Value, json};
use vestibule_crds::decode;
use vestibule_crds::status::{Observed, issuer, issuer_controller, issuer_withdrawn};
use vestibule_model::challenge::ChallengeType;
use vestibule_model::condition::{Condition, ConditionType, IssuerError, IssuerStatus, Reason};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::{AcmeIssuer, ExternalAccount, Object};

const DIRECTORY: &str = "https://ca.example.com/directory";

fn read(kind: &str, spec: &Value) -> AcmeIssuer {
    let object = json!({
        "apiVersion": "vestibule.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "ca", "namespace": "team", "generation": 3},
        "spec": spec,
    });
    match decode(object).into_object() {
        Some((Object::AcmeIssuer(issuer), beside)) if beside.is_empty() => {
            Arc::unwrap_or_clone(issuer)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn little_is_needed() {
    let issuer = read("ACMEIssuer", &json!({"directory": DIRECTORY}));
    assert_eq!(issuer.key, ObjectKey::new(Kind::AcmeIssuer, "team", "ca"));
    assert_eq!(&*issuer.directory, DIRECTORY);
    assert_eq!(&*issuer.account_key_secret, "ca-acme-account");
    assert_eq!(issuer.challenges, ChallengeType::ALL);
    assert_eq!(issuer.findings, []);
    let cluster = read("ClusterACMEIssuer", &json!({"directory": DIRECTORY}));
    assert_eq!(
        cluster.key,
        ObjectKey::new(Kind::ClusterAcmeIssuer, "", "ca")
    );
}

#[test]
fn everything_is_read() {
    let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    let issuer = read(
        "ACMEIssuer",
        &json!({
            "directory": DIRECTORY,
            "contact": ["mailto:ops@example.com"],
            "accountKeySecretRef": {"name": "key"},
            "externalAccountBinding": {"keyID": "kid-1", "keySecretRef": {"name": "eab"}},
            "profile": "shortlived",
            "caBundle": pem,
            "challenges": ["HTTP-01"],
        }),
    );
    assert_eq!(issuer.findings, []);
    assert_eq!(&*issuer.contact[0], "mailto:ops@example.com");
    assert_eq!(&*issuer.account_key_secret, "key");
    assert_eq!(
        issuer.external_account,
        Some(ExternalAccount {
            key_id: "kid-1".into(),
            secret: "eab".into(),
            key: "secret".into(),
        })
    );
    assert_eq!(issuer.profile.as_deref(), Some("shortlived"));
    assert_eq!(issuer.ca_bundle.as_deref(), Some(pem));
    assert_eq!(issuer.challenges, [ChallengeType::Http01]);
}

#[test]
fn issuer_with_a_wrong_field_is_refused_at_that_field() {
    let cases = [
        ("directory", json!("http://ca.example.com/directory")),
        ("directory", json!("https:///directory")),
        ("directory", json!("https://user@ca.example.com/")),
        ("directory", json!("https://ca.example.com/a b")),
        ("contact[0]", json!(["ops@example.com"])),
        ("contact[1]", json!(["mailto:a@b", "mailto:a@b,c@d"])),
        ("accountKeySecretRef.name", json!({"name": "No Name"})),
        (
            "externalAccountBinding.keyID",
            json!({"keyID": "", "keySecretRef": {"name": "eab"}}),
        ),
        (
            "externalAccountBinding.keySecretRef.name",
            json!({"keyID": "a", "keySecretRef": {"name": "/"}}),
        ),
        ("profile", json!("")),
        ("caBundle", json!("no certificate")),
        ("challenges[0]", json!(["DNS-01"])),
        ("challenges[1]", json!(["HTTP-01", "HTTP-01"])),
    ];
    for (field, value) in cases {
        let mut spec = json!({"directory": DIRECTORY});
        let key = field.split(['.', '[']).next().expect("a field");
        spec[key] = value;
        let issuer = read("ClusterACMEIssuer", &spec);
        let refusal = issuer.refusal().unwrap_or_else(|| panic!("{field}"));
        assert_eq!(refusal.reason, Reason::InvalidParameters);
        assert_eq!(refusal.field, format!("spec.{field}"));
        assert_eq!(issuer.findings.len(), 1, "{field}");
    }
}

#[test]
fn a_status_says_how_it_stands_with_the_ca() {
    let observed = |now| Observed { generation: 3, now };
    let failed = IssuerStatus {
        conditions: vec![Condition::fails(
            ConditionType::Ready,
            Reason::OrderFailed,
            "The CA refuses the contact",
        )],
        account_url: None,
        last_error: Some(IssuerError {
            kind: Some("urn:ietf:params:acme:error:invalidContact".into()),
            message: "contact is no address".into(),
            at: 60,
        }),
    };
    let first = issuer(&json!({}), &failed, "vestibule.dev/one", observed(60));
    assert_eq!(first["conditions"][0]["status"], "False");
    assert_eq!(
        first["lastError"],
        json!({
            "type": "urn:ietf:params:acme:error:invalidContact",
            "message": "contact is no address",
            "time": "1970-01-01T00:01:00Z",
        })
    );
    let ready = IssuerStatus {
        conditions: vec![Condition::holds(
            ConditionType::Ready,
            Reason::Registered,
            "The CA knows the account",
        )],
        account_url: Some("https://ca.example.com/account/1".into()),
        last_error: None,
    };
    let second = issuer(&first, &ready, "vestibule.dev/one", observed(120));
    assert_eq!(second["accountURL"], "https://ca.example.com/account/1");
    assert_eq!(second.get("lastError"), None);
    assert_eq!(second["conditions"][0]["observedGeneration"], 3);
    assert_eq!(issuer_controller(&second), "vestibule.dev/one");
    assert_eq!(issuer_withdrawn(&second, "vestibule.dev/two"), None);
    let withdrawn = issuer_withdrawn(&second, "vestibule.dev/one");
    assert_eq!(withdrawn, Some(json!({"conditions": []})));
    // Equal input renders to equal output, whatever the time.
    assert_eq!(
        issuer(&second, &ready, "vestibule.dev/one", observed(180)),
        second
    );
}
