//! An API server, cert-manager's controller and an engine, for one test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vestibule_model::certificate::CertificateOptions;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer::{IssuerAnnotations, IssuerRef};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_operator::certmanager::{CertManagerSettings, Maker};
use vestibule_operator::cluster::certmanager::{self, CertificateChannels};
use vestibule_operator::cluster::lease::elector::Role;
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::map_channel::{MapSender, MapView, map_channel};
use vestibule_operator_testing::apiserver;
use vestibule_test_support::{Look, within};

/// Longest wait for something that has to happen. Nothing waits so long unless it has failed.
const BOUND: Duration = Duration::from_mins(5);
/// How long nothing has to be written; a scenario on the real cluster takes a minute.
const REST: Duration = Duration::from_secs(6);
/// What requests of the engine are known by in the audit log.
const AGENT: &str = "vestibule-engine";
/// Value of the annotation on its Certificates.
pub(crate) const IDENTITY: &str = "system/vestibule";

/// Requested certificates, by Secret.
pub(crate) type Requests = BTreeMap<ObjectName, Arc<CertificateRequest>>;

/// Looks until it is so.
pub(crate) async fn eventually<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    within(BOUND, what, look).await
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What `e2e/tools/get` prints.
fn tool(arguments: &[&str]) -> String {
    let get = Command::new(repository().join("e2e/tools/get"))
        .args(arguments)
        .output()
        .expect("e2e/tools/get");
    assert!(
        get.status.success(),
        "{}",
        String::from_utf8_lossy(&get.stderr)
    );
    String::from_utf8(get.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// An API server of a test's own; it ends with the test.
pub(crate) struct Server {
    process: Child,
    kubeconfig: PathBuf,
    config: Config,
    client: Client,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends, and leaves nothing, when nobody holds its input any more.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        // Whoever runs the tests with an API server has the tools to start another one.
        let _ = apiserver::kubeconfig();
        let mut process = Command::new(repository().join("e2e/cluster/apiserver"))
            .arg("--stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("e2e/cluster/apiserver");
        let output = process.stdout.take().expect("its output");
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        let line = line.await.expect("no panic").expect("a line");
        let kubeconfig = PathBuf::from(line.trim());
        let config = apiserver::config(&kubeconfig).await;
        Self {
            client: Client::try_from(config.clone()).expect("a client"),
            process,
            kubeconfig,
            config,
        }
    }

    /// With cert-manager's kinds, a Gateway, and these namespaces.
    pub(crate) async fn ready(namespaces: &[&str]) -> Self {
        let server = Self::start().await;
        server.install();
        server.world(namespaces).await;
        server
    }

    fn kubectl_output(&self, arguments: &[&str]) -> Output {
        Command::new(tool(&["kubectl"]))
            .env("KUBECONFIG", &self.kubeconfig)
            .args(arguments)
            .output()
            .expect("kubectl")
    }

    fn kubectl(&self, arguments: &[&str]) {
        let done = self.kubectl_output(arguments);
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// kubectl on every one of cert-manager's kinds.
    fn on_kinds(&self, command: &[&str]) {
        let sources = tool(&["--sources", "cert-manager"]);
        let crds: Vec<String> = std::fs::read_dir(format!("{sources}/deploy/crds"))
            .expect("cert-manager's kinds")
            .map(|entry| entry.expect("a file").path())
            .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
            .map(|path| path.display().to_string())
            .collect();
        let mut arguments = command.to_vec();
        for path in &crds {
            arguments.extend(["-f", path]);
        }
        self.kubectl(&arguments);
    }

    /// Takes cert-manager's kinds away, and all of them with them.
    pub(crate) fn uninstall(&self) {
        self.on_kinds(&["delete", "--timeout=300s"]);
    }

    /// Installs cert-manager's kinds.
    pub(crate) fn install(&self) {
        self.on_kinds(&["apply", "--server-side"]);
        let wait = [
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd",
            "--all",
        ];
        // A busy API server takes long for kinds of this size. What is no fault of the server's load shows in the
        // conditions, so the last round prints them.
        if (0..4).any(|_| self.kubectl_output(&wait).status.success()) {
            return;
        }
        let conditions =
            "--output=jsonpath={range .items[*]}{.metadata.name}: {.status.conditions}\n{end}";
        let seen = self.kubectl_output(&["get", "crd", conditions]).stdout;
        panic!(
            "not every kind is established: {}",
            String::from_utf8_lossy(&seen)
        );
    }

    /// Namespaces, and Gateway `infra/shared`.
    pub(crate) async fn world(&self, namespaces: &[&str]) {
        for name in namespaces.iter().chain(&["infra"]) {
            self.apply(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            }))
            .await;
        }
        self.apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "shared", "namespace": "infra"},
            "spec": {
                "gatewayClassName": "vestibule", "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{"name": "own", "port": 80, "protocol": "HTTP"}],
            },
        }))
        .await;
    }

    pub(crate) fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = match kind {
            "Namespace" | "Secret" | "Event" => ("", "v1"),
            "Gateway" | "ListenerSet" => ("gateway.networking.k8s.io", "v1"),
            _ => ("cert-manager.io", "v1"),
        };
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let plural = format!("{}s", kind.to_lowercase());
        let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// Creates or changes an object, as a user would.
    pub(crate) async fn apply(&self, object: Value) -> Value {
        apiserver::apply(|kind, namespace| self.api(kind, namespace), &object).await
    }

    pub(crate) async fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        apiserver::get(&self.api(kind, namespace), name).await
    }

    pub(crate) async fn delete(&self, kind: &str, namespace: &str, name: &str) {
        apiserver::delete(&self.api(kind, namespace), name).await;
    }

    /// A self-signed root in `namespace`, and Issuers `ca` and `self`: CA and selfSigned.
    pub(crate) async fn issuers(&self, namespace: &str) {
        let issuer = |name: &str, spec: Value| {
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Issuer",
                "metadata": {"name": name, "namespace": namespace}, "spec": spec,
            })
        };
        self.apply(issuer("self", json!({"selfSigned": {}}))).await;
        self.apply(json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": {"name": "root", "namespace": namespace},
            "spec": {
                "isCA": true, "commonName": "root", "secretName": "root",
                "privateKey": {"algorithm": "ECDSA"}, "issuerRef": {"name": "self"},
            },
        }))
        .await;
        self.apply(issuer("ca", json!({"ca": {"secretName": "root"}})))
            .await;
    }

    /// `ClusterIssuer` `all`, with a root of its own.
    pub(crate) async fn cluster_issuer(&self) {
        let issuer = |name: &str, spec: Value| {
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer",
                "metadata": {"name": name}, "spec": spec,
            })
        };
        self.apply(issuer("self", json!({"selfSigned": {}}))).await;
        self.apply(json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": {"name": "cluster-root", "namespace": "kube-system"},
            "spec": {
                "isCA": true, "commonName": "cluster-root", "secretName": "cluster-root",
                "privateKey": {"algorithm": "ECDSA"}, "issuerRef": {"name": "self", "kind": "ClusterIssuer"},
            },
        }))
        .await;
        self.apply(issuer("all", json!({"ca": {"secretName": "cluster-root"}})))
            .await;
    }

    /// Waits until cert-manager has done everything that a Certificate says now.
    pub(crate) async fn settled(&self, namespace: &str, name: &str) {
        eventually(&format!("{name} as it says"), async || {
            let there = self.get("Certificate", namespace, name).await?;
            let conditions = there["status"]["conditions"].as_array()?;
            let holds = |wanted: &str| {
                let mut of_type = conditions.iter().filter(|c| c["type"] == wanted);
                of_type.any(|c| {
                    c["status"] == "True"
                        && c["observedGeneration"] == there["metadata"]["generation"]
                })
            };
            (holds("Ready") && !holds("Issuing")).then_some(())
        })
        .await;
    }

    /// Names of all objects of a kind in a namespace, in order.
    pub(crate) async fn list(&self, kind: &str, namespace: &str) -> Vec<String> {
        let list = self.api(kind, namespace).list(&ListParams::default()).await;
        let mut names: Vec<String> = list
            .expect("an answer")
            .into_iter()
            .filter_map(|object| object.metadata.name)
            .collect();
        names.sort_unstable();
        names
    }

    /// A ListenerSet of `infra/shared` with one TLS listener per (hostname, Secret); and what is requested for
    /// it where it is allowed and not conflicted.
    pub(crate) async fn set(
        &self,
        (namespace, name): (&str, &str),
        annotations: &[(&str, &str)],
        listeners: &[(&str, &str)],
    ) -> Requests {
        let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
        let entry = |(index, (hostname, secret)): (usize, &(&str, &str))| {
            json!({
                "name": format!("l-{index}"), "port": 8000 + index, "protocol": "HTTPS", "hostname": hostname,
                "tls": {"mode": "Terminate", "certificateRefs": [{"name": secret}]},
            })
        };
        let entries: Vec<Value> = listeners.iter().enumerate().map(entry).collect();
        let set = self
            .apply(json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                "metadata": {
                    "name": name, "namespace": namespace, "annotations": annotations,
                    "labels": {"team": namespace, "applyset.kubernetes.io/part-of": "somewhere"},
                },
                "spec": {"parentRef": {"name": "shared", "namespace": "infra"}, "listeners": entries},
            }))
            .await;
        requests(&set)
    }

    /// Writes to `resource` since the log had `from` bytes: `agent verb namespace/name/subresource`.
    pub(crate) fn writes(&self, resource: &str, from: usize) -> Vec<String> {
        let log = self.audit();
        let line = |line: &str| {
            let event: Value = serde_json::from_str(line).ok()?;
            let text = |pointer: &str| {
                let text = event.pointer(pointer).and_then(Value::as_str);
                text.unwrap_or_default().to_owned()
            };
            (text("/objectRef/resource") == resource).then(|| {
                format!(
                    "{} {} {}/{}/{}",
                    text("/userAgent"),
                    text("/verb"),
                    text("/objectRef/namespace"),
                    text("/objectRef/name"),
                    text("/objectRef/subresource"),
                )
            })
        };
        log.get(from..)
            .unwrap_or_default()
            .lines()
            .filter_map(line)
            .collect()
    }

    pub(crate) fn audit(&self) -> String {
        let log = self.kubeconfig.with_file_name("audit.log");
        std::fs::read_to_string(log).expect("an audit log")
    }

    /// Writes to Certificates while nothing happens for a while. What cert-manager still has to write when a
    /// certificate is ready may be done first: a fight would not end.
    pub(crate) async fn writes_at_rest(&self) -> Vec<String> {
        let mut writes = Vec::new();
        for _ in 0..10 {
            let from = self.audit().len();
            tokio::time::sleep(REST).await;
            writes = self.writes("certificates", from);
            if writes.is_empty() {
                break;
            }
        }
        writes
    }
}

/// What the annotations of a set ask for, as if nothing stood in the way of its listeners.
pub(crate) fn requests(set: &Value) -> Requests {
    let uid = set["metadata"]["uid"].as_str().expect("a UID");
    let decoded = vestibule_crds::decode(set.clone()).into_object();
    let Some((object, _)) = decoded else {
        panic!("it does not decode: {set}")
    };
    let (key, options, issuers): (ObjectKey, Arc<CertificateOptions>, IssuerAnnotations) =
        match object {
            Object::ListenerSet(set) => (
                key(Kind::ListenerSet, &set.name),
                set.certificates.options.clone(),
                set.issuers.clone(),
            ),
            Object::Gateway(gateway) => (
                key(Kind::Gateway, &gateway.name),
                gateway.certificates.options.clone(),
                gateway.issuers.clone(),
            ),
            _ => panic!("it has no listeners: {set}"),
        };
    let issuer = issuers.choice().expect("no contradiction");
    let mut hostnames: BTreeMap<ObjectName, BTreeSet<Hostname>> = BTreeMap::new();
    for listener in set["spec"]["listeners"].as_array().into_iter().flatten() {
        let secrets = &listener["tls"]["certificateRefs"];
        for secret in secrets.as_array().into_iter().flatten() {
            let name = secret["name"].as_str().expect("a name");
            let secret = ObjectName::new(key.name.namespace.clone(), name);
            let hostname = listener["hostname"].as_str().expect("a hostname");
            let hostname = Hostname::parse(hostname).expect("a hostname");
            hostnames.entry(secret).or_default().insert(hostname);
        }
    }
    let request = |(secret, hostnames): (ObjectName, BTreeSet<Hostname>)| {
        let request = CertificateRequest {
            secret: secret.clone(),
            hostnames,
            issuer: issuer.clone(),
            owner: key.clone(),
            owner_uid: uid.into(),
            gateway: ObjectName::new("infra", "shared"),
            gateway_uid: "gateway".into(),
            options: Arc::clone(&options),
            reach: BTreeMap::new(),
        };
        (secret, Arc::new(request))
    };
    hostnames.into_iter().map(request).collect()
}

fn key(kind: Kind, name: &ObjectName) -> ObjectKey {
    ObjectKey {
        kind,
        name: name.clone(),
    }
}

/// The issuer that a request names.
pub(crate) fn issuer_of(request: &CertificateRequest) -> &IssuerRef {
    request.issuer.as_ref().expect("an issuer")
}

/// cert-manager's controller; it ends with the test.
pub(crate) struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Controller {
    /// With its support for Gateways, and with or without that for ListenerSets.
    pub(crate) fn start(server: &Server, listener_sets: bool) -> Self {
        let log = server.kubeconfig.with_file_name("cert-manager.log");
        let log = std::fs::File::create(log).expect("a log");
        let process = Command::new(tool(&["cert-manager"]))
            .arg(format!("--kubeconfig={}", server.kubeconfig.display()))
            .args(["--enable-gateway-api", "--enable-gateway-api-listenerset"])
            .arg(format!("--feature-gates=ListenerSets={listener_sets}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("cert-manager's controller");
        Self(process)
    }
}

/// An engine that leads.
pub(crate) struct Engine {
    requests: Mutex<MapSender<Arc<CertificateRequest>>>,
    /// The certificates that are asked for.
    asked: Mutex<BTreeSet<ObjectName>>,
    issuances: MapView<Issuance>,
    _role: watch::Sender<Role>,
    registry: Registry,
    task: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    pub(crate) fn start(server: &Server, listener_sets: Maker) -> Self {
        let mut config = server.config.clone();
        let agent = AGENT.parse().expect("a header's value");
        config.headers.push((http::header::USER_AGENT, agent));
        let client = Client::try_from(config).expect("a client");
        let (requests, wanted) = map_channel();
        let (told, issuances) = map_channel();
        let until = Instant::now() + Duration::from_hours(1);
        let (leads, role) = watch::channel(Role::Leading { term: 1, until });
        let config = certmanager::Config {
            settings: CertManagerSettings {
                listener_sets,
                gateways: Maker::CertManager,
                identity: IDENTITY.into(),
            },
            manager: "vestibule".into(),
        };
        let channels = CertificateChannels {
            requests: wanted,
            role,
            issuances: told,
        };
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        Self {
            requests: Mutex::new(requests),
            asked: Mutex::default(),
            issuances,
            _role: leads,
            registry,
            task: tokio::spawn(certmanager::run(client, config, channels, metrics)),
        }
    }

    /// The number of a sample whose line begins so.
    pub(crate) fn metric(&self, begin: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text");
        let line = text.lines().find(|line| line.starts_with(begin));
        let number = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
        number.unwrap_or_default()
    }

    /// Asks for these, and for no others any more.
    pub(crate) fn ask(&self, requests: impl IntoIterator<Item = Requests>) {
        let all: Requests = requests.into_iter().flatten().collect();
        let mut sender = self.requests.lock();
        let names = all.keys().cloned().collect();
        let before = std::mem::replace(&mut *self.asked.lock(), names);
        for name in before {
            sender.set(name, None);
        }
        for (name, request) in all {
            sender.set(name, Some(request));
        }
        sender.publish();
    }

    pub(crate) fn fact(&self, namespace: &str, secret: &str) -> Option<Issuance> {
        self.issuances.get(&ObjectName::new(namespace, secret))
    }

    /// Waits for a fact with this state and text.
    pub(crate) async fn says(
        &self,
        (namespace, secret): (&str, &str),
        state: IssuanceState,
        text: &str,
    ) -> Issuance {
        let mut last = None;
        let end = Instant::now() + BOUND;
        while Instant::now() < end {
            last = self.fact(namespace, secret);
            let found = last
                .clone()
                .filter(|f| f.state == state && f.message.contains(text));
            if let Some(found) = found {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{namespace}/{secret} never said {state:?}, {text:?}, but {last:?}");
    }
}

/// Names, issuer and text of the certificate in a Secret.
pub(crate) fn certificate(secret: &Value) -> Option<(Vec<String>, String, Vec<u8>)> {
    let encoded = secret["data"]["tls.crt"].as_str()?;
    let pem: k8s_openapi::ByteString = serde_json::from_value(json!(encoded)).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem.0).ok()?;
    let parsed = pem.parse_x509().ok()?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map_or_else(Vec::new, |names| {
        let name = |name: &x509_parser::extensions::GeneralName<'_>| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => (*name).to_owned(),
            other => other.to_string(),
        };
        names.value.general_names.iter().map(name).collect()
    });
    Some((names, parsed.issuer().to_string(), pem.contents.clone()))
}
