//! cert-manager in the cluster: CRDs, rights, its controller, and a cluster's issuer with a CA's key.

use anyhow::{Context as _, Result, ensure};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::api;
use crate::ca::Ca;
use crate::certificate::Authority;
use crate::manifests;
use crate::tools::run;
use crate::wait::{LATER, until};
use crate::world::{Stage, World};

/// Name of the controller's objects.
const NAME: &str = "cert-manager";

/// An installed cert-manager.
pub(super) struct Stack<'a> {
    world: &'a World,
    namespace: String,
    issuer: String,
    crds: String,
    /// Where the controller looks names up.
    dns: String,
    /// What clients trust who trust the cluster's issuer, as PEM.
    root: String,
}

impl<'a> Stack<'a> {
    /// Installs it without its own support for ListenerSets, and waits until it runs.
    pub(super) async fn start(stage: &'a Stage, ca: &Ca) -> Result<Self> {
        let world: &World = &stage.world;
        let tools = world.repository.join("e2e/tools/get");
        let sources = run(&tools, &["--sources", NAME], &[], "").await?.must()?;
        let crds = format!("{}/deploy/crds", sources.trim());
        let kustomize = ["apply", "--server-side", "-f", &crds];
        world.kubectl.run(&kustomize).await?.must()?;
        let established = [
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "-f",
            &crds,
        ];
        // kubectl takes it for an error if the API server has not looked at a CRD yet.
        until("cert-manager's CRDs", LATER, async || {
            world.kubectl.run(&established).await?.must()
        })
        .await?;
        let authority = Authority::new("cert-manager's CA")?;
        let (chain, key) = authority.issuing();
        let stack = Self {
            world,
            namespace: stage.namespace("manager").await?,
            issuer: stage.name.clone(),
            crds,
            dns: ca.dns(),
            root: chain.to_owned(),
        };
        world.kubectl.apply(&stack.rights()).await?.must()?;
        let objects = [
            manifests::tls_secret(&stack.namespace, NAME, chain, &key),
            json!({
                "apiVersion": "cert-manager.io/v1",
                "kind": "ClusterIssuer",
                "metadata": {"name": stack.issuer},
                "spec": {"ca": {"secretName": NAME}},
            }),
        ];
        world.kubectl.apply(&objects).await?.must()?;
        stack.run(false).await?;
        Ok(stack)
    }

    /// Name of the cluster's issuer.
    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// What a client verifies with that trusts the cluster's issuer.
    pub(super) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.root.as_bytes()).context("own CA")?)?;
        Ok(roots)
    }

    /// Who the controller is for the API server.
    pub(super) fn account(&self) -> String {
        format!("system:serviceaccount:{}:{NAME}", self.namespace)
    }

    /// Has the controller run with its own support for ListenerSets off or on.
    pub(super) async fn run(&self, listener_sets: bool) -> Result<()> {
        let deployment = self.controller(listener_sets);
        self.world.kubectl.apply(&[deployment]).await?.must()?;
        let rollout = [
            "rollout",
            "status",
            "deployment",
            NAME,
            "-n",
            &self.namespace,
            "--timeout=180s",
        ];
        self.world.kubectl.run(&rollout).await?.must().map(drop)
    }

    /// Takes away what is not in the stage's namespaces.
    pub(super) async fn remove(&self) -> Result<()> {
        let binding = ["delete", "clusterrolebinding", &self.issuer];
        self.world.kubectl.run(&binding).await?.must()?;
        // Objects of the kinds go with them; none has a finalizer that nobody answers.
        let gone = [
            "delete",
            "-f",
            &self.crds,
            "--ignore-not-found",
            "--wait=false",
        ];
        self.world.kubectl.run(&gone).await?.must()?;
        until("cert-manager's kinds to go", LATER, async || {
            for kind in ["certificates", "issuers"] {
                let crd = format!("{kind}.cert-manager.io");
                let crd = self.world.api.get(api::CRD, "", &crd).await?;
                ensure!(crd.is_none(), "{kind} are still known");
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
        .context("uninstall of cert-manager")
    }

    /// An administrator's: what of it cert-manager needs is its own matter.
    fn rights(&self) -> [Value; 2] {
        [
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": NAME, "namespace": self.namespace}}),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": self.issuer},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": self.namespace}],
            }),
        ]
    }

    fn controller(&self, listener_sets: bool) -> Value {
        let mut arguments = vec![
            format!("--cluster-resource-namespace={}", self.namespace),
            format!(
                "--acme-http01-solver-image={}",
                self.world.image("cert-manager-acmesolver")
            ),
            format!("--acme-http01-solver-nameservers={}", self.dns),
            "--certificate-request-minimum-backoff-duration=1m".to_owned(),
            "--enable-gateway-api".to_owned(),
        ];
        if listener_sets {
            arguments.push("--enable-gateway-api-listenerset".to_owned());
            arguments.push("--feature-gates=ListenerSets=true".to_owned());
        }
        let containers = json!([{
            "name": "controller",
            "image": self.world.image(NAME),
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
        }]);
        let deployment = manifests::deployment(&self.namespace, NAME, &json!([]), &containers);
        manifests::with_account(deployment, NAME)
    }
}
