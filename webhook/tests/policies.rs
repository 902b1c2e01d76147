//! The case table of the workspace (`cli/tests/cases`) on a real API server with the
//! `ValidatingAdmissionPolicies` of `policies/admission` and no webhook: what of an object's verdict needs
//! nothing but the object is the same there.
//!
//! Run by `e2e/cluster/apiserver run`, which sets `VESTIBULE_TEST_KUBECONFIG`; ignored without it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use vestibule_crds::{decode, yaml};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_webhook::{AdmissionState, Operation, Reviewer};

const CONTROLLER: &str = "vestibule.dev/gateway-controller";
/// Longest wait until policies are in force, or out of it.
const PATIENCE: Duration = Duration::from_mins(1);

/// The result of applying an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ApplyOutcome {
    Allowed,
    Warned(Vec<String>),
    /// By a policy, in these words.
    Refused(String),
    /// By the rules of its CRD.
    Invalid(String),
}

/// The API server, spoken to as kubectl does.
struct Server(kube::Client);

impl Server {
    async fn connect() -> Self {
        let path =
            std::env::var("VESTIBULE_TEST_KUBECONFIG").expect("VESTIBULE_TEST_KUBECONFIG is set");
        let config = Kubeconfig::read_from(path).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
            .await
            .expect("a configuration");
        Self(kube::Client::try_from(config).expect("a client"))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Vec<String>, Value) {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .body(kube::client::Body::from(body.to_string().into_bytes()))
            .expect("a request");
        let response = self.0.send(request).await.expect("an answer");
        let status = response.status();
        let warnings = response.headers().get_all("warning").into_iter();
        let warnings = warnings
            .map(|value| value.to_str().expect("text").to_owned())
            .collect();
        let body = response.into_body().collect().await.expect("a body");
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        (status, warnings, body)
    }

    async fn must(&self, method: Method, path: &str, body: &Value) {
        let (status, _, answer) = self.send(method, path, body).await;
        assert!(status.is_success(), "{path}: {answer}");
    }

    /// The result if the object were new.
    async fn outcome(&self, object: &Value) -> ApplyOutcome {
        let path = format!("{}?dryRun=All&fieldValidation=Ignore", collection(object));
        let (status, warnings, answer) = self.send(Method::POST, &path, object).await;
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        if status.is_success() {
            let by_policy = |warning: &String| warning.contains("ValidatingAdmissionPolicy");
            let warnings: Vec<String> = warnings.into_iter().filter(by_policy).collect();
            if warnings.is_empty() {
                ApplyOutcome::Allowed
            } else {
                ApplyOutcome::Warned(warnings)
            }
        } else if message.contains("ValidatingAdmissionPolicy") {
            ApplyOutcome::Refused(message)
        } else {
            assert!(
                matches!(status.as_u16(), 400 | 422),
                "{status}: {message}: {object}"
            );
            ApplyOutcome::Invalid(message)
        }
    }

    async fn until(&self, what: &str, object: &Value, wanted: fn(&ApplyOutcome) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !wanted(&self.outcome(object).await) {
            assert!(tokio::time::Instant::now() < deadline, "not {what}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Where objects of its kind in its namespace are made.
fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().expect("an apiVersion");
    let kind = object["kind"].as_str().expect("a kind").to_lowercase();
    let plural = match kind.as_str() {
        "gatewayparameters" => kind,
        class if class.ends_with('s') => format!("{class}es"),
        policy if policy.ends_with("policy") => format!("{}ies", policy.trim_end_matches('y')),
        other => format!("{other}s"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/apis/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/apis/{version}/{plural}"),
    }
}

/// Where it is itself.
fn path_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().expect("a name");
    format!("{}/{name}", collection(object))
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn files(folder: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(repository(folder))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    paths
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let documents = yaml::documents(&text).expect("YAML");
    documents
        .into_iter()
        .map(|(_, document)| document)
        .collect()
}

/// Every object of the table with a place in a namespace, as it is written.
fn cases() -> Vec<(String, Value, Object)> {
    let mut cases = Vec::new();
    for path in files("cli/tests/cases") {
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        for mut document in documents(&path) {
            let Some((object, _)) = decode(document.clone()).into_object() else {
                continue;
            };
            let key = object.key();
            if !Reviewer::KINDS.contains(&key.kind) {
                continue;
            }
            let metadata = document["metadata"].as_object_mut().expect("metadata");
            if key.kind.is_namespaced() {
                metadata.insert("namespace".into(), (*key.name.namespace).into());
            }
            // What only a server writes; some cases have it, and one that is being deleted is not new.
            let deleting = metadata.contains_key("deletionTimestamp");
            for field in ["creationTimestamp", "uid", "generation", "resourceVersion"] {
                metadata.remove(field);
            }
            if !deleting {
                cases.push((name.clone(), document, object));
            }
        }
    }
    cases
}

/// What is said of an object while nothing else is there.
fn said(object: &Object) -> Vec<Finding> {
    let state = AdmissionState::new(CONTROLLER);
    let review = Reviewer::new(&state, &Policy::default()).review(Operation::Create, None, object);
    review.findings
}

/// Rules that need nothing but the object.
fn is_stateless(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::WildcardHostname
            | Reason::InvalidHostname
            | Reason::HostnameConflict
            | Reason::ProtocolConflict
            | Reason::ListenerConflict
            | Reason::SingleLabelHostname
            | Reason::PublicSuffixWildcard
    )
}

fn route(name: &str, hostnames: &[String]) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"namespace": "red", "name": name},
        "spec": {
            "parentRefs": [{"name": "g"}], "hostnames": hostnames,
            "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
        },
    })
}

fn set_of(count: usize) -> Value {
    let listeners: Vec<Value> = (0..count)
        .map(|i| {
            json!({
                "name": format!("l{i}"), "port": 443, "protocol": "TLS",
                "hostname": format!("{}.{i}h.example.com", "a".repeat(63)), "tls": {"mode": "Passthrough"},
            })
        })
        .collect();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": "red", "name": "large"},
        "spec": {"parentRef": {"name": "g"}, "listeners": listeners},
    })
}

/// Objects that show whether each policy is in force, and whether it refuses.
fn probes() -> [(Value, bool); 4] {
    let set = |hostname: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "red", "name": "probe"},
            "spec": {"parentRef": {"name": "g"}, "listeners": [
                {"name": "a", "port": 80, "protocol": "HTTP", "hostname": hostname},
            ]},
        })
    };
    [
        (route("probe", &["*.example.com".into()]), true),
        (route("probe", &["intranet1".into()]), false),
        (set("*.0x7f"), true),
        (set("*.com"), false),
    ]
}

/// What CRDs refuse and Vestibule says elsewhere: of conflicts among a Gateway's own listeners the status says more.
const BY_THE_CRD_ALONE: [(&str, &str); 2] = [
    (
        "conflict-gateway-own",
        "spec.listeners: Invalid value: Combination",
    ),
    (
        "gateway-own-listeners-invalid",
        "spec.listeners[0].protocol",
    ),
];

/// Whether the outcome for an object agrees with the rules that need only the object.
fn is_right(case: &str, object: &Object, outcome: &ApplyOutcome) -> bool {
    let said = said(object);
    let stateless: Vec<&Finding> = said.iter().filter(|f| is_stateless(f.reason)).collect();
    let refusing: Vec<&&Finding> = stateless.iter().filter(|f| f.refuses()).collect();
    let kind = object.key().kind;
    // Of Gateways nothing is refused, and their hostnames are the admin's.
    let by_policies = matches!(
        kind,
        Kind::TlsRoute | Kind::HttpRoute | Kind::GrpcRoute | Kind::ListenerSet
    );
    match outcome {
        ApplyOutcome::Allowed if kind.group() == "vestibule.dev" => {
            !said.iter().any(refuses_what_is_there)
        }
        ApplyOutcome::Allowed => !by_policies || stateless.is_empty(),
        ApplyOutcome::Warned(_) => by_policies && refusing.is_empty() && !stateless.is_empty(),
        ApplyOutcome::Refused(message) => {
            let mut fields = refusing.iter().map(|f| field_in_policies(&f.field));
            by_policies && fields.any(|field| message.contains(field))
        }
        ApplyOutcome::Invalid(message) => {
            let mut alone = BY_THE_CRD_ALONE.iter();
            said.iter().any(|f| is_told_at(message, &f.field))
                || alone.any(|(name, words)| *name == case && message.contains(words))
        }
    }
}

/// Whether the rules of a CRD refuse what is at this field: there, or where a list or object is judged as a whole.
fn is_told_at(message: &str, field: &str) -> bool {
    let mut at = field;
    loop {
        if message.contains(at) {
            return true;
        }
        match at.rfind(['.', '[']) {
            Some(end) if at[..end].contains('.') => at = &at[..end],
            _ => return false,
        }
    }
}

/// Every object of the table on the server. Returns those that a policy refused.
async fn table(server: &Server, cases: &[(String, Value, Object)]) -> Vec<Value> {
    let (mut wrong, mut refused, mut counts) = (Vec::new(), Vec::new(), [0; 4]);
    for (name, document, object) in cases {
        let outcome = server.outcome(document).await;
        counts[match &outcome {
            ApplyOutcome::Allowed => 0,
            ApplyOutcome::Warned(_) => 1,
            ApplyOutcome::Refused(_) => 2,
            ApplyOutcome::Invalid(_) => 3,
        }] += 1;
        if !is_right(name, object, &outcome) {
            let key = object.key();
            wrong.push(format!(
                "{name}: {key}: {outcome:?}, by itself {:?}",
                said(object)
            ));
        }
        if matches!(outcome, ApplyOutcome::Refused(_)) {
            refused.push(document.clone());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    refused
}

/// The largest objects there are cost less than a policy may.
async fn large_objects_are_judged(server: &Server) {
    let longest = |i: usize| format!("{i}.{}", ["a".repeat(60).as_str(); 4].join("."));
    let hosts: Vec<String> = (0..1024).map(longest).collect();
    let large = route("large", &hosts);
    assert_eq!(server.outcome(&large).await, ApplyOutcome::Allowed);
    assert_eq!(server.outcome(&set_of(64)).await, ApplyOutcome::Allowed);
}

/// What was there before can be labelled and deleted; its spec cannot be changed to another wrong one.
async fn route_that_was_there_can_be_deleted_but_not_get_another_wrong_spec(
    server: &Server,
    before: &Value,
) {
    let at = path_of(before);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    server.must(Method::PATCH, &at, &labels).await;
    let other = json!({"spec": {"hostnames": ["*.example.org"]}});
    let (status, _, answer) = server.send(Method::PATCH, &at, &other).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    server.must(Method::DELETE, &at, &Value::Null).await;
}

#[tokio::test]
#[ignore = "needs an API server: e2e/cluster/apiserver run cargo test -p vestibule-webhook --test policies -- --ignored"]
async fn every_case_comes_out_the_same_by_the_policies_alone() {
    let server = Server::connect().await;
    let cases = cases();
    let namespaces: BTreeSet<&str> = cases
        .iter()
        .filter_map(|(_, document, _)| document["metadata"]["namespace"].as_str())
        .chain(["red"])
        .collect();
    for namespace in namespaces {
        let body =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let (status, ..) = server.send(Method::POST, "/api/v1/namespaces", &body).await;
        let is_there = status.is_success() || status == StatusCode::CONFLICT;
        assert!(is_there, "{namespace}");
    }
    // It is there before the rules are.
    let before = route("before", &["*.example.com".into()]);
    server
        .must(Method::POST, &collection(&before), &before)
        .await;

    let manifests = files("policies/admission");
    let manifests: Vec<Value> = manifests.iter().flat_map(|p| documents(p)).collect();
    for manifest in &manifests {
        server
            .must(Method::POST, &collection(manifest), manifest)
            .await;
    }
    for (probe, refused) in probes() {
        let wanted: fn(&ApplyOutcome) -> bool = if refused {
            |outcome| matches!(outcome, ApplyOutcome::Refused(_))
        } else {
            |outcome| matches!(outcome, ApplyOutcome::Warned(_))
        };
        server.until("in force", &probe, wanted).await;
    }
    let refused = table(&server, &cases).await;
    large_objects_are_judged(&server).await;
    route_that_was_there_can_be_deleted_but_not_get_another_wrong_spec(&server, &before).await;

    // Where nothing is refused, the same is said.
    let bindings = manifests
        .iter()
        .filter(|m| m["kind"] == "ValidatingAdmissionPolicyBinding");
    for binding in bindings {
        let warn = json!({"spec": {"validationActions": ["Warn"]}});
        server.must(Method::PATCH, &path_of(binding), &warn).await;
    }
    let warned: fn(&ApplyOutcome) -> bool = |outcome| matches!(outcome, ApplyOutcome::Warned(_));
    for (probe, _) in probes() {
        server.until("only a warning", &probe, warned).await;
    }
    for document in refused {
        let outcome = server.outcome(&document).await;
        assert!(warned(&outcome), "{document}: {outcome:?}");
    }
    for manifest in &manifests {
        server
            .must(Method::DELETE, &path_of(manifest), &Value::Null)
            .await;
    }
}

/// API servers drop fields that a CRD does not have, so that nobody sees them.
fn refuses_what_is_there(finding: &Finding) -> bool {
    finding.refuses() && finding.reason != Reason::UnsupportedValue
}

/// Policies tell of conflicts by the listeners' names, so by no index.
fn field_in_policies(field: &str) -> &str {
    if field.ends_with(".hostname") || field.starts_with("spec.hostnames") {
        field
            .strip_prefix("spec.listeners")
            .map_or(field, |_| "spec.listeners")
    } else {
        "spec.listeners"
    }
}
