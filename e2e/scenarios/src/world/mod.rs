//! What all scenarios share: the cluster, the tools, the release under test.

mod collect;
mod release;
mod stage;
mod survey;

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api::{self, Api};
use crate::needles::Needles;
use crate::tools::{Done, Kubectl, run};

pub(crate) use release::{OPERATOR, PROXY, WEBHOOK, is_ready};
pub(crate) use stage::{Stage, Team, is_of_a_scenario};
pub(crate) use survey::Survey;

/// Name of the release under test.
pub(crate) const RELEASE: &str = "vestibule";
/// Its namespace.
pub(crate) const NAMESPACE: &str = "vestibule-system";
/// Its class.
pub(crate) const CLASS: &str = "vestibule";
/// Namespace of what belongs to the tests only.
pub(crate) const HELPERS: &str = "vestibule-e2e";
/// The tenant Role of `policies/`, as a cluster role that is bound in a namespace.
pub(crate) const TENANT_ROLE: &str = "vestibule-tenant";
/// A namespace in which admission refuses nothing.
pub(crate) const EXEMPT: &str = "e2e-exempt";

/// The cluster and the tools.
pub(crate) struct World {
    /// The API server, as its administrator.
    pub(crate) api: Api,
    /// `kubectl` as its administrator.
    pub(crate) kubectl: Kubectl,
    /// The administrator's kubeconfig, whole, as JSON.
    kubeconfig: Value,
    kubectl_program: PathBuf,
    helm_program: PathBuf,
    on_node: PathBuf,
    fault: PathBuf,
    audit_log: Option<String>,
    /// The checkout.
    pub(crate) repository: PathBuf,
    /// Registry and tag of the images under test.
    pub(crate) registry: String,
    /// Tag of the images under test.
    pub(crate) tag: String,
    /// The load balancer's pool, as a CIDR.
    pub(crate) pool: String,
    /// Where states of failures and files of this run go.
    pub(crate) out: PathBuf,
    /// Private keys (PEM) of the Secrets of scenarios that have passed.
    keys: Mutex<Vec<Vec<u8>>>,
}

impl World {
    /// Reads the environment and talks to the cluster once.
    pub(crate) async fn enter() -> Result<Self> {
        let setting = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.into());
        let kubectl_program = PathBuf::from(setting("KUBECTL", "kubectl"));
        let admin = PathBuf::from(env::var("KUBECONFIG").context(
            "KUBECONFIG is not set; start this with e2e/cluster/run, on a cluster of e2e/cluster/up",
        )?);
        let kubectl = Kubectl::new(kubectl_program.clone(), admin);
        let flat = [
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "-o",
            "json",
        ];
        let kubeconfig = kubectl.run(&flat).await?.must()?;
        let api = Api::new(&kubeconfig).await?;
        api.raw("/version")
            .await
            .context("the cluster does not answer")?;
        let out = match env::var_os("VESTIBULE_OUT") {
            Some(out) => PathBuf::from(out),
            None => env::temp_dir().join(format!("vestibule-e2e.{}", std::process::id())),
        };
        std::fs::create_dir_all(&out)?;
        Ok(Self {
            api,
            kubectl,
            kubeconfig: serde_json::from_str(&kubeconfig)?,
            kubectl_program,
            helm_program: PathBuf::from(setting("HELM", "helm")),
            on_node: PathBuf::from(setting("VESTIBULE_ON_NODE", "e2e/cluster/on-node")),
            fault: PathBuf::from(setting("VESTIBULE_FAULT", "e2e/cluster/fault")),
            audit_log: env::var("VESTIBULE_AUDIT_LOG").ok(),
            repository: env::current_dir()?,
            registry: setting("VESTIBULE_REGISTRY", "vestibule.dev"),
            tag: setting("VESTIBULE_TAG", env!("CARGO_PKG_VERSION")),
            pool: setting("VESTIBULE_LB_POOL", "172.31.240.0/24"),
            out: std::path::absolute(out)?,
            keys: Mutex::default(),
        })
    }

    /// Private keys of the Secrets that scenarios so far had.
    pub(crate) fn remembered_keys(&self) -> Vec<Vec<u8>> {
        self.keys.lock().clone()
    }

    /// Private keys of the Secrets that a namespace has now, or all namespaces have.
    pub(crate) async fn stored_keys(&self, namespace: &str) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for secret in self.api.list(api::SECRET, namespace, "").await? {
            for entry in ["tls.key", "next.key", "ca.key"] {
                // What is no text is no key.
                let key = api::data(&secret, entry).unwrap_or_default();
                if !key.is_empty() && Needles::default().add(key.as_bytes()).is_ok() {
                    keys.push(key.into_bytes());
                }
            }
        }
        Ok(keys)
    }

    /// An image under test.
    pub(crate) fn image(&self, component: &str) -> String {
        format!("{}/{component}:{}", self.registry, self.tag)
    }

    /// Programs and their directories, for scripts that call them by name.
    pub(crate) fn path(&self) -> std::ffi::OsString {
        let directories = [&self.kubectl_program, &self.helm_program]
            .into_iter()
            .filter_map(|program| program.parent())
            .filter(|directory| !directory.as_os_str().is_empty())
            .map(Path::to_owned);
        let inherited = env::var_os("PATH").unwrap_or_default();
        env::join_paths(directories.chain(env::split_paths(&inherited))).unwrap_or(inherited)
    }

    /// Runs `helm` as the administrator.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<Done> {
        let environment = [("KUBECONFIG", self.kubectl.kubeconfig().as_os_str())];
        run(&self.helm_program, arguments, &environment, "").await
    }

    /// Runs a command in a node's container.
    pub(crate) async fn on_node(&self, node: &str, command: &[&str]) -> Result<Done> {
        let arguments = [&[node], command].concat();
        run(&self.on_node, &arguments, &[], "").await
    }

    /// Has the harness break something.
    pub(crate) async fn fault(&self, arguments: &[&str]) -> Result<Done> {
        run(&self.fault, arguments, &[], "").await
    }

    /// The audit log as it is now; none where the harness keeps none.
    pub(crate) async fn audit_log(&self) -> Result<Option<String>> {
        let Some(place) = &self.audit_log else {
            return Ok(None);
        };
        // NODE:/path is in a node's container, anything else a file here.
        Ok(Some(match place.split_once(":/") {
            Some((node, path)) => self
                .on_node(node, &["cat", &format!("/{path}")])
                .await?
                .must()?,
            None => tokio::fs::read_to_string(place)
                .await
                .context("audit log")?,
        }))
    }

    /// Identity of a ServiceAccount: its kubeconfig as JSON.
    pub(crate) async fn identity(&self, namespace: &str, account: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200}});
        let token = self.api.post(&path, &request).await?;
        let mut kubeconfig = self.kubeconfig.clone();
        if let Some(user) = kubeconfig.pointer_mut("/users/0/user") {
            *user = json!({"token": api::text(&token, "/status/token")});
        }
        Ok(kubeconfig.to_string())
    }

    /// First IP address in a Gateway's status, with a port.
    pub(crate) async fn address(
        &self,
        namespace: &str,
        gateway: &str,
        port: u16,
    ) -> Result<SocketAddr> {
        let object = self.api.must_get(api::GATEWAY, namespace, gateway).await?;
        let address: IpAddr = api::text(&object, "/status/addresses/0/value")
            .parse()
            .with_context(|| format!("no address in the status of {namespace}/{gateway}"))?;
        Ok(SocketAddr::new(address, port))
    }
}
