//! The webhook's process beside a real API server: what `kubectl apply` shows, with the rights the
//! chart gives it and no more, and that no apply fails while its replicas are exchanged.
//!
//! Run by `e2e/cluster/apiserver run`, which sets `KUBECONFIG`; ignored without it.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use vestibule_model::claim::ClaimKey;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;
use vestibule_test_support::eventually;
use vestibule_webhook_testing::{TlsDir, get, loopback, readyz};

const WEBHOOK: &str = "enforced.vestibule.dev";
const PREFIX: &str = "vestibule-webhook-test";

/// `kubectl` with the rights of the kubeconfig.
#[derive(Clone)]
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

struct Ran {
    ok: bool,
    out: String,
    err: String,
}

impl Kubectl {
    fn find() -> Option<Self> {
        let kubeconfig = std::env::var_os("VESTIBULE_TEST_KUBECONFIG")
            .or_else(|| std::env::var_os("KUBECONFIG"))?;
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tools/get");
        let found = std::process::Command::new(tools)
            .arg("kubectl")
            .output()
            .expect("e2e/tools/get runs");
        let path = String::from_utf8(found.stdout).expect("a path");
        Some(Self {
            program: path.trim().into(),
            kubeconfig: kubeconfig.into(),
        })
    }

    fn run(&self, args: &[&str], input: &str) -> Ran {
        let mut child = std::process::Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input.as_bytes()).expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("kubectl ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Ran {
            ok: output.status.success(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    fn apply(&self, object: &Value) -> Ran {
        self.run(&["apply", "-f", "-"], &object.to_string())
    }

    fn must(&self, args: &[&str], input: &str) -> String {
        let ran = self.run(args, input);
        assert!(ran.ok, "{args:?}: {}", ran.err);
        ran.out
    }

    fn must_apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.must(&["apply", "-f", "-"], &list.to_string());
    }

    /// A kubeconfig of a ServiceAccount that may do what the chart lets the webhook do.
    fn for_webhook(&self, directory: &Path) -> PathBuf {
        let namespace = format!("{PREFIX}-system");
        let subject = json!({"kind": "ServiceAccount", "name": "webhook", "namespace": namespace});
        let (gateway, read) = ("gateway.networking.k8s.io", ["list", "watch"]);
        self.must_apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "webhook", "namespace": namespace},
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": PREFIX},
                "rules": [
                    {
                        "apiGroups": [gateway], "verbs": read,
                        "resources": ["gatewayclasses", "gateways", "listenersets", "referencegrants"],
                    },
                    {
                        "apiGroups": ["vestibule.dev"], "verbs": read,
                        "resources": ["hostnamegrants", "hostnameclaims"],
                    },
                    {"apiGroups": [""], "verbs": read, "resources": ["namespaces"]},
                ],
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": PREFIX}, "subjects": [subject],
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PREFIX,
                },
            }),
        ]);
        let token = self.must(&["create", "token", "webhook", "-n", &namespace], "");
        let view = ["config", "view", "--raw", "--minify", "-o", "json"];
        let mut config: Value = serde_json::from_str(&self.must(&view, "")).expect("JSON");
        config["users"][0]["user"] = json!({"token": token.trim()});
        let path = directory.join("kubeconfig");
        fs::write(&path, config.to_string()).expect("a file");
        path
    }
}

/// Takes away what would be in the way of others.
struct Cleanup(Kubectl);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let configuration = ["delete", "validatingwebhookconfiguration", PREFIX];
        self.0
            .run(&[&configuration[..], &["--ignore-not-found"]].concat(), "");
    }
}

/// A process of the webhook.
struct Process {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
    log: Arc<Mutex<Vec<Value>>>,
    reader: JoinHandle<()>,
}

impl Process {
    async fn start(kubeconfig: &Path, tls_dir: &Path, extra: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vestibule-webhook"))
            .env("KUBECONFIG", kubeconfig)
            .env_remove("RUST_LOG")
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .arg("--tls-dir")
            .arg(tls_dir)
            // Ended by a second signal, once the news has spread, however long that takes.
            .args(["--shutdown-delay-seconds", "600"])
            .args(extra)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the webhook runs");
        let log: Arc<Mutex<Vec<Value>>> = Arc::default();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let written = Arc::clone(&log);
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let line = serde_json::from_str(&line).expect("a line of JSON");
                written.lock().push(line);
            }
        });
        let mut addresses = None;
        eventually("serving", async || {
            let log = log.lock();
            let line = log.iter().find(|l| l["message"] == "the webhook runs");
            addresses = line.map(|line| {
                ["listen", "admin"].map(|key| {
                    let text = line[key].as_str().expect("an address");
                    text.parse().expect("an address")
                })
            });
            addresses.is_some()
        })
        .await;
        let [listen, admin] = addresses.expect("addresses");
        eventually("ready", async || readyz(admin).await == 200).await;
        Self {
            child,
            listen,
            admin,
            log,
            reader,
        }
    }

    /// As the kubelet does.
    fn terminate(&self) {
        let id = self.child.id().expect("it runs").to_string();
        let killed = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(killed.expect("kill runs").success());
    }

    async fn ended(&mut self) {
        let status = self.child.wait().await.expect("it ends");
        assert!(status.success(), "{status}");
        (&mut self.reader).await.expect("its log is read");
        let log = self.log.lock();
        let last = log.last().expect("a line");
        assert_eq!(last["message"], "the webhook ended", "{last}");
        assert_eq!(last["cut"], false, "{last}");
    }
}

/// Spreads connections over addresses, as a Service does.
struct Service {
    address: SocketAddr,
    endpoints: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind(loopback()).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let endpoints: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let (known, next) = (Arc::clone(&endpoints), AtomicUsize::new(0));
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.expect("a connection");
                let turn = next.fetch_add(1, Ordering::Relaxed);
                let chosen = {
                    let known = known.lock();
                    known.get(turn % known.len().max(1)).copied()
                };
                tokio::spawn(async move {
                    if let Some(endpoint) = chosen
                        && let Ok(mut server) = TcpStream::connect(endpoint).await
                    {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { address, endpoints }
    }

    fn add(&self, process: &Process) {
        self.endpoints.lock().push(process.listen);
    }

    fn remove(&self, process: &Process) {
        self.endpoints.lock().retain(|a| *a != process.listen);
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (group >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() {
                char::from(ALPHABET[index as usize])
            } else {
                '='
            });
        }
    }
    text
}

/// As the chart writes it, but for the URL.
fn configuration(address: SocketAddr, ca: &str) -> Value {
    let namespaces = ["a", "b", "exempt"].map(|name| format!("{PREFIX}-{name}"));
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": PREFIX},
        "webhooks": [{
            "name": WEBHOOK,
            "clientConfig": {"url": format!("https://{address}/validate"), "caBundle": base64(ca.as_bytes())},
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces},
            ]},
            "rules": [
                {
                    "apiGroups": ["gateway.networking.k8s.io"],
                    "apiVersions": ["v1", "v1alpha3", "v1alpha2"],
                    "resources": ["tlsroutes"], "operations": ["CREATE", "UPDATE"],
                    "scope": "Namespaced",
                },
                {
                    "apiGroups": ["gateway.networking.k8s.io"], "apiVersions": ["v1"],
                    "resources": ["listenersets", "httproutes", "grpcroutes"], "operations": ["CREATE", "UPDATE"],
                    "scope": "Namespaced",
                },
                {
                    "apiGroups": ["vestibule.dev"], "apiVersions": ["*"],
                    "resources": ["acmeissuers"], "operations": ["CREATE", "UPDATE"],
                    "scope": "Namespaced",
                },
            ],
        }],
    })
}

fn namespace(name: &str) -> String {
    format!("{PREFIX}-{name}")
}

fn platform() -> Vec<Value> {
    let mut objects: Vec<Value> = ["a", "b", "exempt", "infra"]
        .map(|name| {
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(name)}})
        })
        .into();
    objects.push(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": PREFIX}, "spec": {"controllerName": format!("vestibule.dev/{PREFIX}")},
    }));
    objects.push(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": namespace("infra"), "name": "entrance"},
        "spec": {
            "gatewayClassName": PREFIX,
            "allowedListeners": {"namespaces": {"from": "All"}},
            "listeners": [{
                "name": "own", "port": 443, "protocol": "TLS", "hostname": "own.example",
                "tls": {"mode": "Passthrough"},
            }],
        },
    }));
    objects
}

fn set(in_namespace: &str, name: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": namespace(in_namespace), "name": name},
        "spec": {
            "parentRef": {"namespace": namespace("infra"), "name": "entrance"},
            "listeners": [{
                "name": "web", "port": 443, "protocol": "TLS", "hostname": hostname,
                "tls": {"mode": "Passthrough"},
            }],
        },
    })
}

fn route(version: &str, in_namespace: &str, name: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": "TLSRoute",
        "metadata": {"namespace": namespace(in_namespace), "name": name},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": namespace("infra")}],
            "hostnames": [hostname],
            "rules": [{"name": "r", "backendRefs": [{"name": "app", "port": 443}]}],
        },
    })
}

fn kubectl_shows_refusals_conflicts_and_warnings(kubectl: &Kubectl) {
    let refused = |object: &Value, words: &[&str]| {
        for args in [
            &["apply", "-f", "-"][..],
            &["apply", "--dry-run=server", "-f", "-"],
        ] {
            let ran = kubectl.run(args, &object.to_string());
            assert!(!ran.ok, "{object} came in: {}", ran.out);
            for word in words {
                assert!(ran.err.contains(word), "{word} in {}", ran.err);
            }
        }
    };
    let denied = format!(
        "Error from server (Forbidden): error when creating \"STDIN\": admission webhook \"{WEBHOOK}\" denied the request: "
    );
    refused(
        &route("v1", "a", "wildcard", "*.example.com"),
        &[
            &denied,
            "spec.hostnames[0]: \"*.example.com\" is a wildcard, and here a TLSRoute names each \
             host; list the exact hostnames",
        ],
    );
    // Refused by the CRD's own rules, which are asked first.
    refused(
        &route("v1", "a", "address", "1.2.3.4"),
        &["spec.hostnames", "IP"],
    );
    // What these rules let pass.
    for hostname in ["*.1.2.3.4", "0x7f.1", "2130706433"] {
        let object = route("v1", "a", "address", hostname);
        refused(&object, &[&denied, "spec.hostnames[0]: ", hostname]);
        refused(
            &set("a", "address", hostname),
            &[&denied, "spec.listeners[0].hostname: ", hostname],
        );
    }
    let served = kubectl.must(
        &[
            "get",
            "crd",
            "tlsroutes.gateway.networking.k8s.io",
            "-o",
            "jsonpath={range .spec.versions[?(@.served==true)]}{.name} {end}",
        ],
        "",
    );
    for version in served.split_whitespace() {
        refused(
            &route(version, "a", "old", "*.example.com"),
            &[&denied, "is a wildcard"],
        );
        refused(
            &route(version, "a", "old", "*.1.2.3.4"),
            &[&denied, "*.1.2.3.4"],
        );
    }

    kubectl.must_apply(&[
        set("a", "web", "app.example"),
        route("v1", "a", "web", "app.example"),
    ]);
    refused(
        &set("b", "web", "app.example"),
        &[
            &denied,
            "spec.listeners[0].hostname: hostname \"app.example\" on port 443 is taken by another \
             listener on Gateway vestibule-webhook-test-infra/entrance; use another hostname or \
             port, or have the present listener removed first",
        ],
    );
    let conflict = kubectl.apply(&set("b", "web", "app.example"));
    assert!(!conflict.err.contains(&namespace("a")), "{}", conflict.err);
    // The holder can go on editing, and let go.
    let mut edited = set("a", "web", "app.example");
    edited["metadata"]["labels"] = json!({"a": "b"});
    kubectl.must_apply(&[edited]);

    let exempt = kubectl.apply(&route("v1", "exempt", "wildcard", "*.example.com"));
    assert!(exempt.ok, "{}", exempt.err);
    assert!(
        exempt
            .err
            .starts_with("Warning: spec.hostnames[0]: \"*.example.com\" is a wildcard"),
        "{}",
        exempt.err
    );
    let exempt = kubectl.apply(&set("exempt", "web", "app.example"));
    assert!(
        exempt.ok && exempt.err.starts_with("Warning: "),
        "{}",
        exempt.err
    );

    for name in ["a", "exempt"] {
        let all = [
            "delete",
            "listenersets,tlsroutes",
            "--all",
            "-n",
            &namespace(name),
        ];
        kubectl.must(&all, "");
    }
}

/// `kubectl apply` is refused in these words, and in none that name a tenant's objects.
async fn refused_in_time(kubectl: &Kubectl, object: &Value, words: &str) {
    // What the watch shows takes a moment.
    eventually("refused", async || {
        let ran = kubectl.run(
            &["apply", "--dry-run=server", "-f", "-"],
            &object.to_string(),
        );
        assert!(ran.ok || !ran.err.contains("holder"), "{}", ran.err);
        !ran.ok && ran.err.contains(words)
    })
    .await;
}

/// The CRD does not let an object be, whoever writes it.
fn refused_by_schema(kubectl: &Kubectl, object: &Value, words: &str) {
    let dry_run = ["apply", "--dry-run=server", "-f", "-"];
    let ran = kubectl.run(&dry_run, &object.to_string());
    assert!(!ran.ok && ran.err.contains(words), "{}", ran.err);
}

/// The HostnameClaim by which A holds a name.
fn claim_of_a() -> Value {
    let infra = namespace("infra");
    let names = HostPattern::parse("held.example").expect("a hostname");
    let gateway = ObjectName::new(infra.as_str(), "entrance");
    let name = ClaimKey::names(&gateway, &names).object_name().name.clone();
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"namespace": infra, "name": name},
        "spec": {
            "gateway": {"name": "entrance"}, "hostname": "held.example",
            "holder": namespace("a"), "since": "2026-01-01T00:00:00Z",
        },
    })
}

fn malformed_claims_are_refused(kubectl: &Kubectl, claim: &Value) {
    for (change, words) in [
        (
            json!({"port": 443, "protocol": "TLS"}),
            "must have a hostname or a port, and not both",
        ),
        (json!({"protocol": "TLS"}), "protocol goes with port"),
    ] {
        let mut both = claim.clone();
        for (field, value) in change.as_object().expect("fields") {
            both["spec"][field] = value.clone();
        }
        refused_by_schema(kubectl, &both, words);
    }
}

fn malformed_grants_are_refused(kubectl: &Kubectl, grant: &Value) {
    for (hostnames, words) in [
        (
            json!({"hostnames": []}),
            "must have hostnames, sharedHostnames or sharedPaths",
        ),
        (
            json!({"sharedPaths": [{"hostname": "b.example", "paths": ["/"]}]}),
            "spec.sharedPaths[0].paths[0]",
        ),
        (
            json!({"sharedPaths": [{"hostname": "b.example", "paths": ["/a/../b"]}]}),
            "must not have a path element of dots",
        ),
        (
            json!({"sharedPaths": [{"hostname": "b.example", "paths": ["/.well-known/acme-challenge"]}]}),
            "must not take in a path where CAs look for proof of a domain",
        ),
        (
            json!({"sharedPaths": [{"hostname": "b.example", "paths": ["/.well-known/pki-validation/x"]}]}),
            "must not take in a path where CAs look for proof of a domain",
        ),
        (
            json!({"sharedPaths": [{"hostname": "b.example"}]}),
            "spec.sharedPaths[0].paths",
        ),
        (
            json!({"sharedHostnames": ["*.b.example"]}),
            "spec.sharedHostnames[0]",
        ),
    ] {
        let mut wrong = grant.clone();
        for (field, value) in hostnames.as_object().expect("fields") {
            wrong["spec"][field] = value.clone();
        }
        refused_by_schema(kubectl, &wrong, words);
    }
}

/// The webhook reads from objects who may have which names, and who has them.
async fn grants_and_claims_count(kubectl: &Kubectl) {
    let infra = namespace("infra");
    let claim = claim_of_a();
    malformed_claims_are_refused(kubectl, &claim);
    kubectl.must_apply(&[claim.clone(), set("b", "other", "free.example")]);
    let taken = "hostname \"held.example\" belongs to another namespace on every port";
    let new = set("b", "new", "held.example");
    refused_in_time(kubectl, &new, taken).await;
    let mut aside = new;
    aside["spec"]["listeners"][0]["port"] = json!(8443);
    refused_in_time(kubectl, &aside, taken).await;
    // Neither a new object nor an older one that is edited.
    refused_in_time(kubectl, &set("b", "other", "held.example"), taken).await;
    kubectl.must_apply(&[set("a", "back", "held.example")]);

    let grant = json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
        "metadata": {"namespace": infra, "name": "b"},
        "spec": {
            "gateways": ["entrance"], "hostnames": ["*.b.example"], "limits": {"listeners": 2},
            "namespaces": {"names": [namespace("b")]},
        },
    });
    malformed_grants_are_refused(kubectl, &grant);
    kubectl.must_apply(std::slice::from_ref(&grant));
    let words = "is not granted to namespace vestibule-webhook-test-b on Gateway vestibule-webhook-test-infra/entrance";
    refused_in_time(kubectl, &set("b", "new", "else.example"), words).await;
    kubectl.must_apply(&[
        set("b", "one", "one.b.example"),
        set("b", "two", "two.b.example"),
    ]);
    let words = "may have 2 listeners on Gateway";
    refused_in_time(kubectl, &set("b", "three", "three.b.example"), words).await;
    // A route on the Gateway's own listener, which takes only routes of its own namespace, is not refused for that.
    kubectl.must_apply(&[route("v1", "b", "elsewhere", "else.example")]);
    let mut wrong = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": namespace("b"), "name": "web"},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": infra}], "hostnames": ["*.0x7f"],
            "rules": [{"backendRefs": [{"name": "app", "port": 80}]}],
        },
    });
    refused_in_time(
        kubectl,
        &wrong,
        "spec.hostnames[0]: \"*.0x7f\" is an IP address",
    )
    .await;
    wrong["spec"]["hostnames"] = json!(["app.b.example"]);
    kubectl.must_apply(&[wrong]);

    for object in [grant, claim] {
        kubectl.must(&["delete", "-f", "-"], &object.to_string());
    }
    for name in ["a", "b"] {
        let all = [
            "delete",
            "listenersets,tlsroutes,httproutes,grpcroutes",
            "--all",
            "-n",
            &namespace(name),
        ];
        kubectl.must(&all, "");
    }
    // And no longer, once they are gone.
    eventually("free again", async || {
        let object = set("b", "new", "held.example").to_string();
        kubectl
            .run(&["apply", "--dry-run=server", "-f", "-"], &object)
            .ok
    })
    .await;
}

/// Applies one after the other until told to stop; any failure is one.
async fn applies(
    api: Api<DynamicObject>,
    worker: usize,
    stop: Arc<AtomicBool>,
    all: Arc<AtomicUsize>,
) -> usize {
    let (name, params) = (format!("w{worker}"), PatchParams::apply("test").force());
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let object = set("a", &name, &format!("h{worker}-{count}.example"));
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .unwrap_or_else(|error| panic!("apply {count} of {worker}: {error:?}"));
        count += 1;
        all.fetch_add(1, Ordering::Relaxed);
    }
    count
}

#[expect(clippy::print_stdout, reason = "a figure for whoever runs it")]
fn say(text: &str) {
    println!("{text}");
}

async fn client(kubectl: &Kubectl) -> kube::Client {
    let config = Kubeconfig::read_from(&kubectl.kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    kube::Client::try_from(config).expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an API server: e2e/cluster/apiserver run cargo test -p vestibule-webhook --test apiserver -- --ignored"]
async fn beside_a_real_api_server() {
    let kubectl = Kubectl::find().expect("KUBECONFIG is set");
    let dir = TlsDir::new("apiserver");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.self_signed(&key).expect("a certificate");
    dir.put(&certificate.pem(), &key.serialize_pem());
    kubectl.must_apply(&platform());
    let webhook_config = kubectl.for_webhook(&dir.path);
    let controller = format!("vestibule.dev/{PREFIX}");
    let exempt = namespace("exempt");
    let args = ["--controller", &controller, "--exempt-namespace", &exempt];
    let start = async || Process::start(&webhook_config, &dir.path, &args).await;

    let service = Service::start().await;
    let mut processes = vec![start().await, start().await];
    for process in &processes {
        service.add(process);
    }
    let _cleanup = Cleanup(kubectl.clone());
    kubectl.must_apply(&[configuration(service.address, &certificate.pem())]);
    // The configuration takes a moment to reach admission: until then everything comes in.
    eventually("in force", async || {
        let probe = route("v1", "a", "probe", "*.example.com");
        let args = ["apply", "--dry-run=server", "-f", "-"];
        !kubectl.run(&args, &probe.to_string()).ok
    })
    .await;

    kubectl_shows_refusals_conflicts_and_warnings(&kubectl);
    grants_and_claims_count(&kubectl).await;
    let refusals: Vec<Value> = processes
        .iter()
        .flat_map(|p| p.log.lock().clone())
        .filter(|line| line["message"] == "a review was refused")
        .collect();
    let refusal = refusals
        .iter()
        .find(|line| line["reasons"] == "HostnameConflict")
        .expect("a line for the refusal");
    assert_eq!(refusal["namespace"], namespace("b").as_str());
    assert_eq!(refusal["name"], "web");
    assert_eq!(refusal["user"], "admin");
    assert!(!refusal.to_string().contains("app.example"), "{refusal}");

    // Every process is exchanged, twice, under a stream of applies.
    let client = client(&kubectl).await;
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "ListenerSet");
    let sets = ApiResource::from_gvk_with_plural(&kind, "listenersets");
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let api = Api::namespaced_with(client.clone(), &namespace("a"), &sets);
            tokio::spawn(applies(api, worker, Arc::clone(&stop), Arc::clone(&count)))
        })
        .collect();
    for _ in 0..4 {
        let mut old = processes.remove(0);
        let new = start().await;
        service.add(&new);
        old.terminate();
        eventually("unready", async || {
            // Gone already is as good.
            TcpStream::connect(old.admin).await.is_err() || get(old.admin, "/readyz").await.0 == 503
        })
        .await;
        // News take time to spread: meanwhile connections still go to it as well.
        let before = count.load(Ordering::Relaxed);
        eventually("going on", async || {
            count.load(Ordering::Relaxed) > before + 40
        })
        .await;
        service.remove(&old);
        old.terminate();
        old.ended().await;
        processes.push(new);
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        let applied = worker.await.expect("no apply failed");
        assert!(applied > 10, "{applied}");
    }
    say(&format!(
        "{} applies while 4 webhook processes were exchanged, 0 failed",
        count.load(Ordering::Relaxed)
    ));
    let reviewed = async |process: &Process| {
        let metrics = get(process.admin, "/metrics").await.1;
        metrics
            .lines()
            .filter(|l| l.starts_with("vestibule_webhook_reviews_total{kind=\"ListenerSet\""))
            .filter_map(|l| l.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum::<u64>()
    };
    // Those that came last serve too: connections moved on.
    assert!(reviewed(&processes[0]).await + reviewed(&processes[1]).await > 0);
}
