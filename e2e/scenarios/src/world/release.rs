//! The release under test: installed, upgraded, its pods looked up and killed.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{CLASS, EXEMPT, HELPERS, NAMESPACE, RELEASE, TENANT_ROLE, World};
use crate::api::{self, items, name, text};
use crate::manifests::{self, BALANCER};
use crate::tools::Done;
use crate::wait::{LATER, SOON, until};

/// Component labels, as the chart sets them.
pub(crate) const OPERATOR: &str = "operator";
/// Component of the admission server.
pub(crate) const WEBHOOK: &str = "webhook";
/// Component of the data plane.
pub(crate) const PROXY: &str = "proxy";

/// Namespaces of the official suite: exempt, since it makes what our policy refuses.
const SUITE: [&str; 3] = [
    "gateway-conformance-infra",
    "gateway-conformance-app-backend",
    "gateway-conformance-web-backend",
];

impl World {
    /// Values of the release under test: images of this run, and a drain that a test can wait for.
    pub(crate) fn values(&self) -> Vec<String> {
        let exempt = [&SUITE[..], &[EXEMPT]].concat().join(",");
        [
            format!("image.registry={}", self.registry),
            format!("image.tag={}", self.tag),
            format!("gatewayClass.name={CLASS}"),
            format!("admission.exemptNamespaces={{{exempt}}}"),
            "proxy.shutdownDelaySeconds=5".to_owned(),
            "proxy.drainSeconds=15".to_owned(),
            "proxy.minReadySeconds=3".to_owned(),
            // Long enough for a set to be deleted and made again, short enough to wait for.
            "claims.gracePeriodSeconds=5".to_owned(),
            // What scenarios ask of their CAs in minutes is more than a cluster's in hours.
            "acme.budgets.global.ordersPerHour=5000".to_owned(),
            "acme.budgets.perIssuer.ordersPerHour=5000".to_owned(),
            "acme.budgets.perNamespace.ordersPerHour=5000".to_owned(),
            "acme.tenantIssuers.registrationsPerHost=5000".to_owned(),
            // Their CAs are Services.
            "acme.tenantIssuers.allowCidrs={10.0.0.0/8}".to_owned(),
            // Proxies log what they take from their streams.
            "logging.level=info\\,vestibule_stream=debug".to_owned(),
        ]
        .into_iter()
        .flat_map(|value| ["--set".to_owned(), value])
        .collect()
    }

    /// `helm upgrade --install` of the chart of this checkout, waiting until all is ready.
    pub(crate) async fn install(&self, further: &[&str]) -> Result<Done> {
        let chart = self.repository.join("charts/vestibule");
        let chart = chart.to_string_lossy();
        let values = self.values();
        let mut arguments = vec![
            "upgrade",
            "--install",
            RELEASE,
            &chart,
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            "240s",
        ];
        arguments.extend(values.iter().map(String::as_str));
        arguments.extend(further);
        self.helm(&arguments).await
    }

    /// Whether the release is there, whatever its state.
    pub(crate) async fn is_installed(&self) -> Result<bool> {
        let operator = self.component(OPERATOR);
        let found = self.api.get(api::DEPLOYMENT, NAMESPACE, &operator).await?;
        Ok(found.is_some())
    }

    /// Installs the chart, and beside it the load balancer that gives its Services addresses, the tenant Role,
    /// and the namespace in which admission refuses nothing.
    pub(crate) async fn set_up(&self) -> Result<()> {
        let role = self.repository.join("policies/tenant-role.yaml");
        let role = ["apply", "-f", &role.to_string_lossy()];
        self.kubectl.run(&role).await?.must()?;
        let mut helpers = manifests::load_balancer(HELPERS, &self.image("e2e"), &self.pool);
        helpers.push(manifests::namespace(EXEMPT, "exempt"));
        self.kubectl.apply(&helpers).await?.must()?;
        self.install(&[]).await?.must().map(drop)
    }

    /// Takes away what [`Self::set_up`] brought, where it is still there.
    pub(crate) async fn tear_down(&self) -> Result<()> {
        let uninstall = [
            "uninstall",
            RELEASE,
            "--namespace",
            NAMESPACE,
            "--ignore-not-found",
            "--wait",
            "--timeout",
            "240s",
        ];
        self.helm(&uninstall).await?.must()?;
        let (role, binding) = (api::CLUSTER_ROLE, api::CLUSTER_ROLE_BINDING);
        for (kind, name) in [(role, TENANT_ROLE), (role, BALANCER), (binding, BALANCER)] {
            self.api.delete(kind, "", name).await?;
        }
        for namespace in [NAMESPACE, HELPERS, EXEMPT] {
            self.api.delete(api::NAMESPACE, "", namespace).await?;
        }
        until("the namespaces to go", LATER, async || {
            for namespace in [NAMESPACE, HELPERS, EXEMPT] {
                let left = self.api.get(api::NAMESPACE, "", namespace).await?;
                ensure!(left.is_none(), "{namespace} is there");
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    /// Name of a component's Deployment, ServiceAccount and Service.
    #[expect(
        clippy::unused_self,
        reason = "names belong to the release of this world"
    )]
    pub(crate) fn component(&self, component: &str) -> String {
        format!("{RELEASE}-{component}")
    }

    /// Selector of a component's pods.
    pub(crate) fn selector(component: &str) -> String {
        format!("app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}")
    }

    /// A component's pods that are not being deleted.
    pub(crate) async fn pods(&self, component: &str) -> Result<Vec<Value>> {
        let mut pods = self.all_pods(component).await?;
        pods.retain(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
        Ok(pods)
    }

    /// A component's pods, with those that are being deleted.
    async fn all_pods(&self, component: &str) -> Result<Vec<Value>> {
        let selector = Self::selector(component);
        self.api.list(api::POD, NAMESPACE, &selector).await
    }

    /// Waits until exactly this many pods of a component are there, all ready.
    pub(crate) async fn ready(&self, component: &str, count: usize) -> Result<Vec<Value>> {
        let what = format!("{count} ready pods of {component}");
        until(&what, LATER, async || {
            must_be_ready(self.pods(component).await?, count)
        })
        .await
    }

    /// As [`Self::ready`], and waits until none is being deleted any more.
    pub(crate) async fn only(&self, component: &str, count: usize) -> Result<Vec<Value>> {
        let what = format!("{count} ready pods of {component}, and no others");
        until(&what, LATER, async || {
            must_be_ready(self.all_pods(component).await?, count)
        })
        .await
    }

    /// Waits until all that the chart starts is ready.
    pub(crate) async fn all_ready(&self) -> Result<()> {
        for component in [OPERATOR, WEBHOOK, PROXY] {
            self.ready(component, 2).await?;
        }
        Ok(())
    }

    /// Kills every pod of a component without giving it time.
    pub(crate) async fn kill_all(&self, component: &str) -> Result<()> {
        for pod in self.pods(component).await? {
            self.api.kill_pod(NAMESPACE, name(&pod)).await?;
        }
        Ok(())
    }

    /// Sets the number of replicas of a component.
    pub(crate) async fn scale(&self, component: &str, replicas: u32) -> Result<()> {
        let change = json!({"spec": {"replicas": replicas}});
        self.api
            .patch(
                api::DEPLOYMENT,
                NAMESPACE,
                &self.component(component),
                &change,
            )
            .await?;
        Ok(())
    }

    /// Name of the pod that holds the Lease.
    pub(crate) async fn leader(&self) -> Result<String> {
        let lease = self
            .api
            .must_get(api::LEASE, NAMESPACE, &self.component(OPERATOR))
            .await?;
        let holder = text(&lease, "/spec/holderIdentity");
        let pod = holder.rsplit_once('_').map_or(holder, |(pod, _)| pod);
        ensure!(!pod.is_empty(), "nobody holds the Lease");
        Ok(pod.to_owned())
    }

    /// When the leader last said that it leads.
    pub(crate) async fn leader_renewed(&self) -> Result<Timestamp> {
        let lease = self
            .api
            .must_get(api::LEASE, NAMESPACE, &self.component(OPERATOR))
            .await?;
        text(&lease, "/spec/renewTime").parse().context("renewTime")
    }

    /// Addresses of the proxies that Services send connections to.
    pub(crate) async fn proxy_endpoints(&self) -> Result<Vec<String>> {
        let service = self.component(PROXY);
        let selector = format!("kubernetes.io/service-name={service}");
        let mut addresses = Vec::new();
        for slice in self
            .api
            .list(api::ENDPOINT_SLICE, NAMESPACE, &selector)
            .await?
        {
            for endpoint in items(&slice, "/endpoints") {
                if endpoint.pointer("/conditions/ready") == Some(&Value::Bool(true)) {
                    addresses.push(text(endpoint, "/addresses/0").to_owned());
                }
            }
        }
        Ok(addresses)
    }

    /// Waits until an address is no endpoint of the proxies any more.
    pub(crate) async fn endpoint_gone(&self, address: &str) -> Result<()> {
        until("the endpoint to go", SOON, async || {
            let endpoints = self.proxy_endpoints().await?;
            ensure!(!endpoints.iter().any(|e| e == address), "{endpoints:?}");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        // kube-proxy programs the nodes at most once a second; its change cannot be seen from here.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// Checks that no container of the release was restarted.
    pub(crate) async fn must_not_have_restarted(&self) -> Result<()> {
        for component in [OPERATOR, WEBHOOK, PROXY] {
            for pod in self.pods(component).await? {
                for container in items(&pod, "/status/containerStatuses") {
                    let restarts = container.get("restartCount").and_then(Value::as_u64);
                    if restarts != Some(0) {
                        bail!("{} was restarted {restarts:?} times", name(&pod));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The pods, if there are so many of them and all are ready.
fn must_be_ready(pods: Vec<Value>, count: usize) -> Result<Vec<Value>> {
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    ensure!(
        pods.len() == count && ready == count,
        "{ready} of {} ready",
        pods.len()
    );
    Ok(pods)
}

/// Whether a pod says that it is ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    items(pod, "/status/conditions")
        .iter()
        .any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True")
}
