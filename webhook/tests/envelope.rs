//! Reviews as bytes: what an API server sends, what goes wrong, and anything at all.

use std::time::Instant;

use proptest::prelude::*;
use serde_json::{Value, json};
use vestibule_model::condition::Reason;
use vestibule_model::key::Kind;
use vestibule_model::policy::{Mode, Policy};
use vestibule_test_support::properties::keep_failures;
use vestibule_webhook::{
    Admission, MAX_BYTES, ReviewOutcome, ReviewResponse, namespace_of, review_bytes,
    review_bytes_or_recheck,
};
use vestibule_webhook_testing::objects::{CONTROLLER, class, gateway, listener_set as set, object};

fn admission(mode: Mode) -> Admission {
    let admission = Admission::new(
        CONTROLLER,
        Policy {
            mode,
            exempt: ["exempt".to_owned()].into(),
            ..Policy::default()
        },
    );
    let theirs = set("bravo", "bravo-set", "app.example");
    for value in [class(), gateway(), theirs] {
        admission.put(object(value));
    }
    admission
}

fn route(version: &str, namespace: &str, hostnames: &[&str]) -> Value {
    json!({
        "apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": "TLSRoute",
        "metadata": {"namespace": namespace, "name": "r"},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": "infra"}],
            "hostnames": hostnames,
            "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
        },
    })
}

fn request(operation: &str, object: &Value, old: &Value) -> Value {
    let some = if object.is_null() { old } else { object };
    let (group, version) = some["apiVersion"]
        .as_str()
        .and_then(|text| text.rsplit_once('/'))
        .unwrap_or(("", "v1"));
    json!({
        "uid": "u-1",
        "kind": {"group": group, "version": version, "kind": some["kind"]},
        "name": some["metadata"]["name"],
        "namespace": some["metadata"]["namespace"],
        "operation": operation,
        "userInfo": {"username": "dev@alpha"},
        "object": object, "oldObject": old,
    })
}

fn envelope(request: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

fn answer(mode: Mode, value: &Value) -> ReviewResponse {
    review_bytes(
        value.to_string().as_bytes(),
        &admission(mode),
        Instant::now(),
    )
}

fn response(answer: &ReviewResponse) -> Value {
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(body["kind"], "AdmissionReview");
    body["response"].clone()
}

fn create(mode: Mode, object: &Value) -> (Value, ReviewResponse) {
    let answer = answer(mode, &envelope(&request("CREATE", object, &Value::Null)));
    (response(&answer), answer)
}

#[test]
fn a_proper_object_is_allowed_and_nothing_else_said() {
    let (response, answer) = create(Mode::Enforce, &set("alpha", "web", "a.example"));
    assert_eq!(response, json!({"uid": "u-1", "allowed": true}));
    assert_eq!(answer.record.outcome, ReviewOutcome::Allowed);
}

#[test]
fn a_refusal_says_what_where_and_what_to_do() {
    let (response, answer) = create(Mode::Enforce, &set("alpha", "web", "app.example"));
    let message = "spec.listeners[0].hostname: hostname \"app.example\" on port 443 is taken by \
                   another listener on Gateway infra/entrance; use another hostname or port, or \
                   have the present listener removed first";
    let (field, cause) = message.split_once(": ").unwrap();
    assert_eq!(
        response,
        json!({
            "uid": "u-1",
            "allowed": false,
            "status": {
                "status": "Failure", "code": 403, "reason": "Forbidden", "message": message,
                "details": {
                    "group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "web",
                    "causes": [{"reason": "HostnameConflict", "field": field, "message": cause}],
                },
            },
        })
    );
    assert!(!response.to_string().contains("bravo"));
    let record = answer.record;
    assert_eq!(record.outcome, ReviewOutcome::Refused);
    assert_eq!(record.kind, Some(Kind::ListenerSet));
    assert_eq!((&*record.namespace, &*record.name), ("alpha", "web"));
    assert_eq!((&*record.user, record.operation), ("dev@alpha", "CREATE"));
    assert_eq!(record.reasons, [Reason::HostnameConflict]);
}

#[test]
fn modes_and_exemption_weigh_what_is_found() {
    for version in ["v1", "v1alpha3", "v1alpha2"] {
        for hostname in ["*.example", "*.1.2.3.4", "1.2.3.4", "0x7f.1"] {
            let in_namespace = |mode, namespace: &str| {
                let (response, answer) = create(mode, &route(version, namespace, &[hostname]));
                (answer.record.outcome, response)
            };
            let (outcome, refused) = in_namespace(Mode::Enforce, "alpha");
            assert_eq!(outcome, ReviewOutcome::Refused, "{version} {hostname}");
            let message = refused["status"]["message"].as_str().unwrap();
            assert!(message.starts_with("spec.hostnames[0]: "), "{message}");
            for (mode, namespace) in [(Mode::Enforce, "exempt"), (Mode::Warn, "alpha")] {
                let (outcome, warned) = in_namespace(mode, namespace);
                assert_eq!(outcome, ReviewOutcome::Warned);
                assert_eq!(warned["warnings"], json!([message]));
            }
            let (outcome, silent) = in_namespace(Mode::Off, "alpha");
            assert_eq!(outcome, ReviewOutcome::Allowed);
            assert_eq!(silent, json!({"uid": "u-1", "allowed": true}));
        }
    }
}

#[test]
fn request_that_is_not_judged_passes() {
    let bad = route("v1", "alpha", &["*.example"]);
    let pass = |mut request: Value, field: &str, value: Value| {
        request[field] = value;
        let answer = answer(Mode::Enforce, &envelope(&request));
        assert_eq!(answer.record.outcome, ReviewOutcome::Passed, "{field}");
        assert_eq!(response(&answer), json!({"uid": "u-1", "allowed": true}));
    };
    let create = request("CREATE", &bad, &Value::Null);
    pass(create.clone(), "operation", "CONNECT".into());
    pass(request("DELETE", &Value::Null, &bad), "object", Value::Null);
    pass(create.clone(), "subResource", "status".into());
    let secret = json!({"group": "", "version": "v1", "kind": "Secret"});
    pass(create.clone(), "kind", secret);
    let unjudged = "ReferenceGrant";
    let grant = json!({"group": "gateway.networking.k8s.io", "version": "v1", "kind": unjudged});
    pass(create.clone(), "kind", grant);
    let other = json!({"group": "example.com", "version": "v1", "kind": "TLSRoute"});
    pass(create, "kind", other);
}

#[test]
fn an_update_is_judged_by_what_it_changes() {
    let bad = route("v1", "alpha", &["*.example"]);
    let mut labelled = bad.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let update = |new: &Value, old: &Value| {
        answer(Mode::Enforce, &envelope(&request("UPDATE", new, old)))
            .record
            .outcome
    };
    assert_eq!(update(&labelled, &bad), ReviewOutcome::Allowed);
    assert_eq!(
        update(&bad, &route("v1", "alpha", &["a.example"])),
        ReviewOutcome::Refused
    );
    // An old version that cannot be read excuses nothing.
    assert_eq!(update(&bad, &json!({"kind": 7})), ReviewOutcome::Refused);
}

#[test]
fn a_dry_run_has_the_same_answer_and_no_effect() {
    let admission = admission(Mode::Enforce);
    let ask = |namespace: &str, dry_run: bool| {
        let mut request = request("CREATE", &set(namespace, "s", "new.example"), &Value::Null);
        request["dryRun"] = dry_run.into();
        let bytes = envelope(&request).to_string();
        let answer = review_bytes_or_recheck(bytes.as_bytes(), &admission, Instant::now());
        answer.ok().map(|answer| answer.record.outcome)
    };
    assert_eq!(ask("alpha", true), Some(ReviewOutcome::Allowed));
    assert_eq!(ask("charlie", true), Some(ReviewOutcome::Allowed));
    assert_eq!(ask("charlie", false), Some(ReviewOutcome::Allowed));
    for dry_run in [true, false] {
        assert_eq!(ask("alpha", dry_run), None);
    }
    let shown = vestibule_crds::decode(set("charlie", "s", "new.example")).into_object();
    admission.put(shown.expect("an object").0);
    for dry_run in [true, false] {
        assert_eq!(ask("alpha", dry_run), Some(ReviewOutcome::Refused));
    }
}

#[test]
fn an_object_without_its_name_takes_the_requests() {
    let mut nameless = set("alpha", "x", "app.example");
    nameless["metadata"] = json!({"generateName": "web-"});
    let mut request = request("CREATE", &nameless, &Value::Null);
    request["namespace"] = "exempt".into();
    request["name"] = "web-x7".into();
    let answer = answer(Mode::Enforce, &envelope(&request));
    assert_eq!(answer.record.outcome, ReviewOutcome::Warned);
    assert_eq!(answer.record.reasons, [Reason::HostnameConflict]);
}

#[test]
fn object_that_does_not_decode_is_refused_warned_of_or_allowed_by_mode() {
    let broken = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"namespace": "alpha", "name": "r"}, "spec": {"hostnames": 7},
    });
    for (mode, expected) in [
        (Mode::Enforce, ReviewOutcome::Refused),
        (Mode::Warn, ReviewOutcome::Warned),
        (Mode::Off, ReviewOutcome::Allowed),
    ] {
        assert_eq!(create(mode, &broken).1.record.outcome, expected);
        let mut no_object = request("CREATE", &broken, &Value::Null);
        no_object["object"] = Value::Null;
        let without = answer(mode, &envelope(&no_object));
        assert_eq!(without.record.outcome, expected);
        no_object["object"] = 7.into();
        assert_eq!(answer(mode, &envelope(&no_object)).record.outcome, expected);
    }
}

#[test]
fn a_version_of_the_future_is_let_in_with_a_warning() {
    let (response, answer) = create(Mode::Enforce, &route("v2", "alpha", &["*.example"]));
    assert_eq!(answer.record.outcome, ReviewOutcome::Warned);
    assert_eq!(
        response["warnings"],
        json!([
            "this release of Vestibule does not know TLSRoute of gateway.networking.k8s.io/v2, so \
             nothing was checked; upgrade Vestibule"
        ])
    );
}

#[test]
fn body_that_is_no_review_is_a_bad_request_in_plain_words() {
    let good = request("CREATE", &set("alpha", "web", "a.example"), &Value::Null);
    let mut beta = envelope(&good);
    beta["apiVersion"] = "admission.k8s.io/v1beta1".into();
    let mut no_uid = envelope(&good);
    no_uid["request"]["uid"] = "".into();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    for (body, expected) in [
        (
            beta.to_string(),
            "the request is \"AdmissionReview\" of \"admission.k8s.io/v1beta1\", and only \
             AdmissionReview of admission.k8s.io/v1 is answered; set admissionReviewVersions: \
             [\"v1\"] in the webhook configuration\n",
        ),
        (
            r#"{"apiVersion": "v1", "kind": "Secret", "data": {"k": "c2VjcmV0"}}"#.to_owned(),
            "the request is \"Secret\" of \"v1\", and only AdmissionReview of \
             admission.k8s.io/v1 is answered; set admissionReviewVersions: [\"v1\"] in the webhook \
             configuration\n",
        ),
        (
            String::new(),
            "the request is not an AdmissionReview in JSON: line 1, column 0\n",
        ),
        (
            "secret\u{0}".to_owned(),
            "the request is not an AdmissionReview in JSON: line 1, column 1\n",
        ),
        (
            format!(r#"{{"request": {deep}}}"#),
            "the request is not an AdmissionReview in JSON: line 1, column 139\n",
        ),
        (
            envelope(&Value::Null).to_string(),
            "the AdmissionReview holds no request as admission.k8s.io/v1 has it\n",
        ),
        (
            no_uid.to_string(),
            "the AdmissionReview's request has no proper uid\n",
        ),
        (
            " ".repeat(MAX_BYTES + 1),
            "the request is longer than 8388608 bytes\n",
        ),
    ] {
        let answer = review_bytes(body.as_bytes(), &admission(Mode::Off), Instant::now());
        assert_eq!(answer.status, 400);
        assert_eq!(String::from_utf8_lossy(&answer.body), expected);
        assert_eq!(answer.record.outcome, ReviewOutcome::Malformed);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        prop::sample::select(vec!["*.example", "1.2.3.4", "app.example", "alpha"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("\\PC{0,8}", inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// A review with one of its parts exchanged for anything.
fn any_review() -> impl Strategy<Value = Value> {
    let paths = vec![
        "/apiVersion",
        "/request",
        "/request/uid",
        "/request/kind",
        "/request/kind/kind",
        "/request/name",
        "/request/namespace",
        "/request/operation",
        "/request/userInfo",
        "/request/userInfo/username",
        "/request/object",
        "/request/object/metadata",
        "/request/object/metadata/name",
        "/request/object/spec",
        "/request/object/spec/listeners",
        "/request/object/spec/listeners/0",
        "/request/object/spec/listeners/0/hostname",
        "/request/object/spec/parentRef",
        "/request/oldObject",
    ];
    (
        prop::sample::select(vec!["app.example", "own.example", "a.example", "1.2.3.4"]),
        prop::sample::select(vec!["CREATE", "UPDATE"]),
        prop::collection::vec((prop::sample::select(paths), any_json()), 0..3),
    )
        .prop_map(|(hostname, operation, edits)| {
            let object = set("alpha", "s", hostname);
            let mut value = envelope(&request(operation, &object, &Value::Null));
            for (path, edit) in edits {
                if let Some(part) = value.pointer_mut(path) {
                    *part = edit;
                }
            }
            value
        })
}

fn holds(answer: &ReviewResponse, asked: Option<&Value>) -> Result<(), TestCaseError> {
    if answer.status != 200 {
        prop_assert_eq!(answer.status, 400);
        prop_assert!(answer.body.len() < 512);
        prop_assert!(std::str::from_utf8(&answer.body).is_ok());
        return Ok(());
    }
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let response = &body["response"];
    if let Some(asked) = asked {
        prop_assert_eq!(&response["uid"], &asked["request"]["uid"]);
    }
    let refused = response["allowed"] == false;
    prop_assert_eq!(refused, answer.record.outcome == ReviewOutcome::Refused);
    prop_assert_eq!(refused, response["status"]["code"] == 403);
    let said = response["status"].to_string() + &response["warnings"].to_string();
    prop_assert!(!said.contains("bravo"), "{}", said);
    prop_assert!(answer.body.len() < 64 << 10);
    Ok(())
}

proptest! {
    #![proptest_config(keep_failures())]

    #[test]
    fn any_bytes_have_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let answer = review_bytes(&bytes, &admission(Mode::Enforce), Instant::now());
        holds(&answer, None)?;
    }

    #[test]
    fn any_review_has_an_answer(value in any_review()) {
        let bytes = value.to_string();
        let answer = review_bytes(bytes.as_bytes(), &admission(Mode::Enforce), Instant::now());
        holds(&answer, Some(&value))?;
    }

    #[test]
    fn a_cut_review_is_malformed(value in any_review(), at in any::<prop::sample::Index>()) {
        let bytes = value.to_string();
        let cut = &bytes.as_bytes()[..at.index(bytes.len())];
        let answer = review_bytes(cut, &admission(Mode::Enforce), Instant::now());
        prop_assert_eq!(answer.record.outcome, ReviewOutcome::Malformed);
    }
}

/// The beginning of a review names the namespace whose turn it takes.
#[test]
fn the_namespace_is_known_before_the_object_is_read() {
    // As API servers write it.
    let review = |namespace: &str| {
        format!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"u",
            "kind":{{"group":"","version":"v1","kind":"ConfigMap"}},"requestKind":{{"namespace":"no"}},
            "name":"n","namespace":{namespace},"operation":"CREATE","userInfo":{{"groups":["a"]}},
            "object":{{"data":"{}"}}}}}}"#,
            "x".repeat(1 << 20)
        )
    };
    let of = |review: &str| namespace_of(review.as_bytes());
    let whole = review(r#""alpha""#);
    assert_eq!(of(&whole).as_deref(), Some("alpha"));
    assert_eq!(of(&whole[..300]).as_deref(), Some("alpha"));
    let long = format!("\"{}\"", "a".repeat(254));
    for none in [
        "",
        "{}",
        "[1]",
        r#"{"request":7}"#,
        r#"{"request":{"object":{"namespace":"no"}}}"#,
        r#"{"other":{"request":{"namespace":"no"}}}"#,
        &whole[..150],
        &review("7"),
        &review("null"),
        &review(&long),
        &format!(
            r#"{{"request":{{"uid":"{}","namespace":"far"}}}}"#,
            "u".repeat(16 << 10)
        ),
    ] {
        let shown = none.get(..60).unwrap_or(none);
        assert_eq!(of(none), None, "{shown}");
    }
}

proptest! {
    #![proptest_config(keep_failures())]

    #[test]
    fn any_bytes_have_a_namespace_or_none(bytes: Vec<u8>) {
        let _ = namespace_of(&bytes);
    }
}
