//! The case table of the workspace (`cli/tests/cases`), through the server: real TLS, and reviews as
//! API servers send them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use vestibule_crds::{decode, yaml};
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_webhook::{AdmissionState, Operation, Reviewer};
use vestibule_webhook_testing::objects::CONTROLLER;
use vestibule_webhook_testing::{Certificate, Client, TlsDir, created, ready};

#[derive(Debug, Deserialize)]
struct Header {
    mode: Option<String>,
    #[serde(default)]
    exempt: BTreeSet<String>,
    /// The specs of the `HostnameClaims` in namespace `platform` that say what translation assumes.
    #[serde(default)]
    recorded: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Expected {
    admission: String,
}

struct Case {
    policy: Policy,
    recorded: Vec<Object>,
    documents: Vec<Value>,
    expected: BTreeMap<String, Expected>,
}

impl Case {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a readable case");
        let documents = yaml::documents(&text).expect("YAML");
        let mut documents: Vec<Value> = documents.into_iter().map(|(_, d)| d).collect();
        let header: Header = serde_json::from_value(documents.remove(0)).expect("a header");
        let expected = documents
            .pop_if(|last| last.get("expected").is_some())
            .map_or_else(|| json!({}), |mut last| last["expected"].take());
        let mode = header.mode.as_deref().unwrap_or("Enforce");
        Self {
            policy: Policy {
                mode: mode.parse().expect("a mode"),
                exempt: header.exempt,
                ..Policy::default()
            },
            recorded: header.recorded.iter().map(recorded).collect(),
            documents,
            expected: match expected {
                Value::Null => BTreeMap::new(),
                other => serde_json::from_value(other).expect("expectations"),
            },
        }
    }
}

/// A `HostnameClaim` with the name that belongs to its spec.
fn recorded(spec: &Value) -> Object {
    let decoded = decode(json!({
        "apiVersion": "vestibule.dev/v1alpha1",
        "kind": "HostnameClaim",
        "metadata": {"namespace": "platform", "name": "claim"},
        "spec": spec,
    }));
    let Some((Object::HostnameClaim(mut claim), _)) = decoded.into_object() else {
        panic!("no claim");
    };
    Arc::make_mut(&mut claim).name = claim.key.as_ref().expect("a key").object_name();
    // It told that the name was another one.
    Arc::make_mut(&mut claim).findings.clear();
    Object::HostnameClaim(claim)
}

/// What the rules say without a server, from the objects before.
fn judged(state: &mut AdmissionState, policy: &Policy, object: &Object) -> (bool, Option<String>) {
    let review = Reviewer::new(state, policy).review(Operation::Create, None, object);
    state.put(object.clone());
    (review.allowed, review.message)
}

async fn run(path: &Path, dir: &TlsDir, certificate: &Certificate) -> usize {
    let name = path
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let case = Case::read(path);
    let webhook = ready(dir, case.policy.clone(), Vec::new()).await;
    let mut client = Client::connect(webhook.address(), std::slice::from_ref(&certificate.der))
        .await
        .expect("a connection");
    let mut state = AdmissionState::new(CONTROLLER);
    let mut reviews = 0;
    for claim in case.recorded {
        state.put(claim.clone());
        webhook.admission().put(claim);
    }
    for document in &case.documents {
        let Some((object, _)) = decode(document.clone()).into_object() else {
            continue;
        };
        let key = object.key();
        if Reviewer::KINDS.contains(&key.kind) {
            let mut sent = document.clone();
            if key.kind.is_namespaced() {
                sent["metadata"]["namespace"] = (*key.name.namespace).into();
            }
            let answer = client
                .post(created(&sent).to_string())
                .await
                .expect("an answer")
                .json();
            let response = &answer["response"];
            let outcome = match (&response["allowed"], &response["warnings"]) {
                (Value::Bool(false), _) => "refused",
                (_, Value::Null) => "allowed",
                (_, _) => "warned",
            };
            let expected = case.expected.get(&key.to_string());
            let expected = expected.map_or("allowed", |e| e.admission.as_str());
            // Only the first of several grants is warned of, and the order is another one here.
            let is_first = key.kind.as_str() == "HostnameGrant" && expected == "warned";
            assert!(
                outcome == expected || is_first && outcome == "allowed",
                "{name}: {key}: {expected}, not {answer}"
            );
            let (allowed, message) = judged(&mut state, &case.policy, &object);
            assert_eq!(response["allowed"], allowed, "{name}: {key}");
            assert_eq!(
                response["status"]["message"].as_str(),
                message.as_deref(),
                "{name}: {key}"
            );
            reviews += 1;
        } else {
            judged(&mut state, &case.policy, &object);
        }
        // Whether or not it was refused: the table is about objects that are there.
        webhook.admission().put(object);
    }
    reviews
}

#[tokio::test]
async fn every_case_comes_out_the_same_through_the_server() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/cases");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .expect("the cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let (dir, certificate) = (TlsDir::new("cases"), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let mut reviews = 0;
    for path in paths {
        reviews += run(&path, &dir, &certificate).await;
    }
    assert!(reviews > 50, "{reviews}");
}
