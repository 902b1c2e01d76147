//! A corner of the API server for one test: namespaces, a GatewayClass and an identity of its own, and
//! operators and proxies that run in the process of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use vestibule_crds::watch::CopiedAnnotations;
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::Policy;
use vestibule_model::service::ServiceType;
use vestibule_operator::certmanager::{self, Maker};
use vestibule_operator::cluster::health::Health;
use vestibule_operator::cluster::lease::{self, elector::ElectionTiming};
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::{self, Outside, statuses};
use vestibule_operator::publish::{self, InProcess, Publisher};
use vestibule_operator::translate::{self, Binds, ClaimMode, ServiceSettings};
use vestibule_stream::client::{Connect, ConnectError};
use vestibule_test_support::eventually;

use vestibule_operator_testing::apiserver;
use vestibule_operator_testing::stream::Proxy;

/// Longest wait for something that has to happen.
const BOUND: Duration = Duration::from_secs(90);

/// The corner of one test.
pub(crate) struct World {
    admin: Client,
    config: Config,
    pub(crate) release: String,
    audit: PathBuf,
}

impl World {
    pub(crate) async fn new() -> Self {
        let path = apiserver::kubeconfig();
        let config = apiserver::config(&path).await;
        let id = RandomState::new().build_hasher().finish() & 0xff_ffff;
        let world = Self {
            admin: Client::try_from(config.clone()).expect("a client"),
            config,
            release: format!("vt-{id:06x}"),
            audit: path.with_file_name("audit.log"),
        };
        for part in ["sys", "infra", "a", "b"] {
            world
                .apply(json!({
                    "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.ns(part)},
                }))
                .await;
        }
        world.rights().await;
        world
    }

    /// A namespace of this test: `sys` of the release, `infra` of Gateways, `a` and `b` of tenants.
    pub(crate) fn ns(&self, part: &str) -> String {
        format!("{}-{part}", self.release)
    }

    pub(crate) fn controller(&self) -> String {
        format!("vestibule.dev/{}", self.release)
    }

    /// What the chart lets the operator do, for a user of the release's name.
    async fn rights(&self) {
        let (name, release) = (&self.release, &self.release);
        let gateway = "gateway.networking.k8s.io";
        let read = ["list", "watch"];
        let subject =
            json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]);
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [gateway], "verbs": read,
                 "resources": ["gatewayclasses", "gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes",
                               "tcproutes", "udproutes", "referencegrants", "backendtlspolicies"]},
                {"apiGroups": [gateway], "verbs": ["update"],
                 "resources": ["gatewayclasses/status", "gateways/status", "listenersets/status",
                               "httproutes/status", "grpcroutes/status", "tlsroutes/status", "tcproutes/status", "udproutes/status",
                               "backendtlspolicies/status"]},
                {"apiGroups": ["vestibule.dev"], "verbs": read,
                 "resources": ["gatewayparameters", "acmeissuers", "clusteracmeissuers", "hostnamegrants"]},
                {"apiGroups": ["vestibule.dev"], "resources": ["hostnameclaims"],
                 "verbs": ["get", "list", "watch", "create", "update", "delete"]},
                {"apiGroups": ["vestibule.dev"], "verbs": ["update"],
                 "resources": ["acmeissuers/status", "clusteracmeissuers/status",
                               "hostnamegrants/status"]},
                {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
                {"apiGroups": [""], "resources": ["namespaces"], "verbs": read},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["services"],
                 "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        }))
        .await;
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name}, "subjects": subject,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        }))
        .await;
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": format!("{name}-secrets")},
            "rules": [
                {"apiGroups": [""], "resources": ["secrets"],
                 "verbs": ["get", "list", "watch", "create", "update", "patch"]},
            ],
        }))
        .await;
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("{name}-secrets")}, "subjects": subject,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": format!("{name}-secrets"),
            },
        }))
        .await;
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name, "namespace": self.ns("sys")},
            "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                 "resourceNames": [format!("{release}-operator")],
                 "verbs": ["get", "list", "watch", "update"]},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["configmaps"],
                 "resourceNames": [format!("{release}-ports")], "verbs": ["get", "list", "watch", "update"]},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["secrets"],
                 "resourceNames": [format!("{release}-session-keys")],
                 "verbs": ["get", "list", "watch", "update"]},
            ],
        }))
        .await;
        self.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": self.ns("sys")}, "subjects": subject,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        }))
        .await;
    }

    /// In the place of the right to all Secrets: that to those of these namespaces.
    pub(crate) async fn only_secrets_of(&self, parts: &[&str]) {
        let name = format!("{}-secrets", self.release);
        self.delete("ClusterRoleBinding", "", &name).await;
        let subject = json!([
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.release},
        ]);
        for part in parts {
            self.apply(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": self.ns(part)}, "subjects": subject,
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name,
                },
            }))
            .await;
        }
    }

    /// A client with the operator's rights; `agent` is what the audit log has of it.
    fn operator(&self, agent: &str) -> Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(self.release.clone());
        let agent = agent.parse().expect("a header's value");
        config.headers.push((http::header::USER_AGENT, agent));
        Client::try_from(config).expect("a client")
    }

    pub(crate) fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = match kind {
            "Namespace" | "Service" | "Secret" | "ConfigMap" | "ResourceQuota" => ("", "v1"),
            "EndpointSlice" => ("discovery.k8s.io", "v1"),
            "Lease" => ("coordination.k8s.io", "v1"),
            "GatewayParameters" | "ACMEIssuer" | "ClusterACMEIssuer" | "HostnameGrant"
            | "HostnameClaim" => ("vestibule.dev", "v1alpha1"),
            "Event" => ("events.k8s.io", "v1"),
            "ValidatingAdmissionPolicy"
            | "ValidatingAdmissionPolicyBinding"
            | "MutatingAdmissionPolicy"
            | "MutatingAdmissionPolicyBinding" => ("admissionregistration.k8s.io", "v1"),
            kind if kind.contains("Role") && kind != "TLSRoute" => {
                ("rbac.authorization.k8s.io", "v1")
            }
            _ => ("gateway.networking.k8s.io", "v1"),
        };
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let plural = match kind {
            "GatewayClass" => "gatewayclasses".to_owned(),
            "GatewayParameters" => "gatewayparameters".to_owned(),
            "BackendTLSPolicy" => "backendtlspolicies".to_owned(),
            "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
            "MutatingAdmissionPolicy" => "mutatingadmissionpolicies".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
        match namespace {
            "" => Api::all_with(self.admin.clone(), &resource),
            namespace => Api::namespaced_with(self.admin.clone(), namespace, &resource),
        }
    }

    /// Creates or changes an object, as a user would.
    pub(crate) async fn apply(&self, object: Value) -> Value {
        apiserver::apply(|kind, namespace| self.api(kind, namespace), &object).await
    }

    /// The objects of a kind in the namespace of a part; of the whole cluster if the part has no name.
    fn of_part(&self, kind: &str, part: &str) -> Api<DynamicObject> {
        let namespace = if part.is_empty() {
            String::new()
        } else {
            self.ns(part)
        };
        self.api(kind, &namespace)
    }

    pub(crate) async fn get(&self, kind: &str, part: &str, name: &str) -> Option<Value> {
        apiserver::get(&self.of_part(kind, part), name).await
    }

    /// Every status that an object has from now on, each when it is written.
    pub(crate) fn statuses(&self, kind: &str, part: &str, name: &str) -> Statuses {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let api = self.api(kind, &self.ns(part));
        let of = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let into = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut objects = pin!(watcher(api, of).applied_objects());
            while let Some(object) = objects.next().await {
                let object = object.expect("an event of the API server");
                into.lock().push(object.data["status"].clone());
            }
        });
        Statuses { seen, task }
    }

    /// All of a kind in a namespace, by name.
    pub(crate) async fn list(&self, kind: &str, part: &str) -> BTreeMap<String, Value> {
        let api = self.api(kind, &self.ns(part));
        let list = api.list(&kube::api::ListParams::default()).await;
        let object = |object: DynamicObject| {
            let name = object.metadata.name.clone().expect("a name");
            (name, serde_json::to_value(object).expect("JSON"))
        };
        list.expect("an answer").into_iter().map(object).collect()
    }

    pub(crate) async fn delete(&self, kind: &str, part: &str, name: &str) {
        apiserver::delete(&self.of_part(kind, part), name).await;
    }

    /// The class, and the proxies that are ready.
    pub(crate) async fn class(&self) {
        self.apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": self.release},
            "spec": {"controllerName": self.controller()},
        }))
        .await;
    }

    pub(crate) async fn ready(&self, proxies: &[&str]) {
        let endpoints: Vec<Value> = proxies
            .iter()
            .map(|proxy| {
                json!({
                    "addresses": ["192.0.2.1"], "conditions": {"ready": true},
                    "targetRef": {"kind": "Pod", "name": proxy, "namespace": self.ns("sys")},
                })
            })
            .collect();
        let service = format!("{}-proxy", self.release);
        self.apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": service, "namespace": self.ns("sys"),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4", "endpoints": endpoints, "ports": [],
        }))
        .await;
    }

    /// A Gateway in `infra` with a TLS listener on 8443, open to everybody.
    pub(crate) fn gateway(&self, name: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name, "namespace": self.ns("infra")},
            "spec": {
                "gatewayClassName": self.release,
                "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{
                    "name": "own", "port": 8443, "protocol": "TLS", "hostname": "own.example.com",
                    "tls": {"mode": "Passthrough"},
                }],
            },
        })
    }

    /// A ListenerSet with one hostname on 443 that passes TLS through.
    pub(crate) fn set(&self, part: &str, name: &str, gateway: &str, hostname: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": name, "namespace": self.ns(part)},
            "spec": {
                "parentRef": {"name": gateway, "namespace": self.ns("infra")},
                "listeners": [{
                    "name": "web", "port": 443, "protocol": "TLS", "hostname": hostname,
                    "tls": {"mode": "Passthrough"},
                }],
            },
        })
    }

    /// A TLSRoute from a set to a Service that is not there.
    pub(crate) fn route(&self, part: &str, name: &str, set: &str, hostname: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
            "metadata": {"name": name, "namespace": self.ns(part)},
            "spec": {
                "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": set}],
                "hostnames": [hostname],
                "rules": [{"backendRefs": [{"name": "nobody", "port": 443}]}],
            },
        })
    }

    /// Waits for a condition of an object (or of its first listener) and returns it.
    pub(crate) async fn condition(
        &self,
        (kind, part, name): (&str, &str, &str),
        wanted: (&str, &str, &str),
    ) -> Value {
        let (r#type, status, reason) = wanted;
        let mut last = Value::Null;
        let end = Instant::now() + BOUND;
        while Instant::now() < end {
            let object = self.get(kind, part, name).await;
            let found = object.and_then(|object| condition(&object, r#type));
            if let Some(found) = found {
                if found["status"] == status && found["reason"] == reason {
                    return found;
                }
                last = found;
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        panic!("{kind} {name}: {type}={status}/{reason} is {last}");
    }

    /// Writes by this agent, Leases excepted: `verb resource/subresource namespace/name`.
    pub(crate) fn writes(&self, agent: &str) -> Vec<String> {
        let log = std::fs::read_to_string(&self.audit).expect("an audit log beside the kubeconfig");
        let mut writes = Vec::new();
        for line in log.lines() {
            let Ok(event) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            if text("/userAgent") == agent && text("/objectRef/resource") != "leases" {
                writes.push(format!(
                    "{} {}/{} {}/{}",
                    text("/verb"),
                    text("/objectRef/resource"),
                    text("/objectRef/subresource"),
                    text("/objectRef/namespace"),
                    text("/objectRef/name"),
                ));
            }
        }
        writes
    }

    /// Starts an operator with the Services' type set so that the API server alone gives addresses.
    pub(crate) fn manager(&self, name: &str) -> Manager {
        Manager::start(self, name, statuses::plan::StatusTiming::default(), |_| {})
    }

    /// The same with other settings.
    pub(crate) fn manager_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut cluster::OperatorSettings),
    ) -> Manager {
        Manager::start(self, name, statuses::plan::StatusTiming::default(), change)
    }

    /// The same, with all the time in the world for proxies to acknowledge: for tests that count writes.
    pub(crate) fn patient_manager(&self, name: &str) -> Manager {
        let timing = statuses::plan::StatusTiming {
            patience: Duration::from_secs(80),
            regress: Duration::from_secs(80),
            reconnect: Duration::from_secs(80),
            ..statuses::plan::StatusTiming::default()
        };
        Manager::start(self, name, timing, |_| {})
    }
}

/// The statuses that an object had, until it is dropped.
pub(crate) struct Statuses {
    seen: Arc<Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Statuses {
    /// Those that had been there, had gone, and came back: what was said in between was not worth saying.
    pub(crate) fn told_again(&self) -> Vec<Value> {
        let seen = self.seen.lock();
        let mut told: Vec<Value> = seen.iter().map(without_times).collect();
        told.dedup();
        let again = |(n, status): (usize, &Value)| told[..n].contains(status);
        let again = told.iter().enumerate().filter(|&at| again(at));
        again.map(|(_, status)| status.clone()).collect()
    }
}

/// A status but for the times of its transitions.
fn without_times(status: &Value) -> Value {
    match status {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| *name != "lastTransitionTime")
            .map(|(name, value)| (name.clone(), without_times(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_times).collect(),
        other => other.clone(),
    }
}

/// A condition of an object, of the first parent of a route, or of the first ancestor of a policy.
pub(crate) fn condition(object: &Value, r#type: &str) -> Option<Value> {
    let conditions = object
        .pointer("/status/conditions")
        .or_else(|| object.pointer("/status/parents/0/conditions"))
        .or_else(|| object.pointer("/status/ancestors/0/conditions"))?;
    let mut conditions = conditions.as_array()?.iter();
    conditions.find(|c| c["type"] == r#type).cloned()
}

/// An operator in this process.
pub(crate) struct Manager {
    pub(crate) agent: String,
    pub(crate) address: String,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) health: Health,
    registry: Registry,
    end: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Manager {
    fn start(
        world: &World,
        name: &str,
        timing: statuses::plan::StatusTiming,
        change: impl FnOnce(&mut cluster::OperatorSettings),
    ) -> Self {
        let agent = format!("{}-{name}", world.release);
        let address = format!("{name}:9443");
        let services = ServiceSettings {
            release: world.release.as_str().into(),
            namespace: world.ns("sys").into(),
            cluster_domain: "cluster.local".into(),
            selector: BTreeMap::from([("app".into(), "proxy".into())]),
            components: BTreeSet::from(["proxies".into()]),
            defaults: ServiceParameters {
                service_type: Some(ServiceType::ClusterIp),
                ..ServiceParameters::default()
            },
        };
        let mut settings = cluster::OperatorSettings {
            namespace: world.ns("sys"),
            release: world.release.clone(),
            translation: translate::Settings {
                controller: world.controller().into(),
                policy: Policy::default(),
                claims: ClaimMode::Recorded,
                shim_for_sets: false,
                binds: Binds::Allocated {
                    address: Ipv6Addr::UNSPECIFIED.into(),
                    services,
                },
            },
            lease: lease::Config {
                namespace: world.ns("sys"),
                name: format!("{}-operator", world.release),
                identity: agent.clone(),
                address: address.clone(),
                owner: None,
                timing: ElectionTiming {
                    duration: Duration::from_secs(10),
                    deadline: Duration::from_secs(8),
                    retry: Duration::from_millis(200),
                },
            },
            proxy_service: format!("{}-proxy", world.release),
            owner: None,
            statuses: timing,
            // It opens an account for every issuer of the server, whichever test's.
            acme: None,
            certmanager: cluster::certmanager::Config {
                settings: certmanager::CertManagerSettings {
                    listener_sets: Maker::Vestibule,
                    gateways: Maker::CertManager,
                    identity: format!("{}/{}", world.ns("sys"), world.release),
                },
                manager: world.release.clone(),
            },
            copied_annotations: CopiedAnnotations::default(),
            secret_namespaces: None,
            claim_grace: Duration::from_secs(2),
            instance: agent.clone(),
        };
        change(&mut settings);
        let client = world.operator(&agent);
        let publisher = Publisher::new(publish::Config::default());
        let (health, metrics) = (Health::default(), Metrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let (leading, _) = watch::channel(false);
        let outside = Outside {
            health: health.clone(),
            metrics,
            leading,
        };
        let end = CancellationToken::new();
        let running = cluster::run(
            client,
            settings,
            Arc::clone(&publisher),
            outside,
            end.clone(),
        );
        Self {
            agent,
            address,
            publisher,
            health,
            registry,
            end,
            task: tokio::spawn(running),
        }
    }

    /// Waits until it is ready, leading or not.
    pub(crate) async fn ready(&self) {
        eventually("an operator that is ready", async || {
            assert!(!self.task.is_finished(), "the operator ended");
            self.health.unready().is_none().then_some(())
        })
        .await;
    }

    pub(crate) fn leads(&self) -> bool {
        self.metric("vestibule_operator_leader ") == 1
    }

    pub(crate) async fn leading(&self) {
        eventually("an operator that leads", async || {
            self.leads().then_some(())
        })
        .await;
    }

    /// Ends it as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.end.cancel();
        self.task.await.expect("no panic").expect("an end in order");
    }

    /// Ends it as a crash does: nothing is given up, its connections are gone.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.publisher.follow(None);
    }

    /// The sum of the samples whose line begins so.
    pub(crate) fn metric(&self, begin: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text");
        text.lines()
            .filter(|line| line.starts_with(begin))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum()
    }
}

/// The network between proxies and operators.
#[derive(Clone, Default)]
pub(crate) struct Network(BTreeMap<String, (Arc<Publisher>, AbortHandle)>);

impl Network {
    pub(crate) fn of(managers: &[&Manager]) -> Self {
        let entry = |m: &&Manager| {
            let running = (Arc::clone(&m.publisher), m.task.abort_handle());
            (m.address.clone(), running)
        };
        Self(managers.iter().map(entry).collect())
    }

    pub(crate) fn proxy(&self, name: &str) -> Proxy {
        let addresses: Vec<String> = self.0.keys().cloned().collect();
        Proxy::start(name, &addresses, self.clone())
    }
}

impl Connect for Network {
    async fn connect(&self, address: &str) -> Result<Channel, ConnectError> {
        match self.0.get(address) {
            Some((publisher, running)) if !running.is_finished() => {
                InProcess::new(publisher).connect(address).await
            }
            _ => Err("nobody is there".into()),
        }
    }
}

impl World {
    /// Writes an entry into a route's status, as another controller would.
    pub(crate) async fn add_parent(&self, part: &str, name: &str, entry: &Value) {
        eventually("a status that nobody else wrote meanwhile", async || {
            let api = self.api("TLSRoute", &self.ns(part));
            let mut route = api.get(name).await.expect("an answer");
            route.data["status"]["parents"]
                .as_array_mut()?
                .push(entry.clone());
            api.replace_status(name, &kube::api::PostParams::default(), &route)
                .await
                .ok()
        })
        .await;
    }

    /// Writes the conditions of an object as another controller would that accepts it too. Returns the status.
    pub(crate) async fn take_over(&self, (kind, part, name): (&str, &str, &str)) -> Value {
        eventually("a status that nobody else wrote meanwhile", async || {
            let api = self.api(kind, &self.ns(part));
            let mut object = api.get(name).await.expect("an answer");
            let generation = object.metadata.generation;
            let conditions = ["Accepted", "Programmed"].map(|kind| {
                json!({
                    "type": kind, "status": "True", "reason": kind, "message": "Another controller says so",
                    "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            });
            object.data["status"]["conditions"] = json!(conditions);
            let written = api
                .replace_status(name, &kube::api::PostParams::default(), &object)
                .await;
            written.ok().map(|object| object.data["status"].clone())
        })
        .await
    }
}
