//! What was so when a scenario failed, in one folder.

use std::path::Path;

use anyhow::Result;

use super::{NAMESPACE, OPERATOR, PROXY, WEBHOOK, World};
use crate::api::{self, name, text};

/// Kinds whose state explains most failures.
const KINDS: &str = "gatewayclasses,gateways,listenersets,tlsroutes,services,endpointslices,pods,leases,\
                     validatingwebhookconfigurations,referencegrants";
/// Kinds about certificates that the chart brings, and those of cert-manager, which is there at times.
const ISSUERS: &str = "acmeissuers,clusteracmeissuers";
const CERT_MANAGER: &str =
    "certificates,certificaterequests,issuers,clusterissuers,orders,challenges";

impl World {
    /// Writes states, events and logs into a folder. What cannot be had is left out: the cluster may be
    /// what failed.
    pub(crate) async fn collect(&self, folder: &Path) -> Result<()> {
        tokio::fs::create_dir_all(folder).await?;
        let mut asked = vec![
            (
                "objects.yaml".to_owned(),
                vec!["get", KINDS, "-A", "-o", "yaml"],
            ),
            (
                "issuers.yaml".to_owned(),
                vec!["get", ISSUERS, "-A", "-o", "yaml"],
            ),
            (
                "cert-manager.yaml".to_owned(),
                vec!["get", CERT_MANAGER, "-A", "-o", "yaml"],
            ),
            (
                "summary.txt".to_owned(),
                vec!["get", KINDS, "-A", "-o", "wide"],
            ),
            (
                "events.txt".to_owned(),
                vec!["get", "events", "-A", "--sort-by=.lastTimestamp"],
            ),
            (
                "pods.txt".to_owned(),
                vec!["describe", "pods", "-n", NAMESPACE],
            ),
        ];
        let mut pods = Vec::new();
        for component in [OPERATOR, WEBHOOK, PROXY] {
            for pod in self.pods(component).await.unwrap_or_default() {
                pods.push(name(&pod).to_owned());
            }
        }
        for pod in &pods {
            let log = |previous| vec!["logs", pod, "-n", NAMESPACE, "--tail=20000", previous];
            asked.push((format!("{pod}.log"), log("--previous=false")));
            asked.push((format!("{pod}.previous.log"), log("--previous=true")));
        }
        let mut issuing = Vec::new();
        for app in ["app=ca", "app=cert-manager"] {
            for pod in self.api.list(api::POD, "", app).await.unwrap_or_default() {
                let namespace = text(&pod, "/metadata/namespace").to_owned();
                issuing.push((namespace, name(&pod).to_owned()));
            }
        }
        for (namespace, pod) in &issuing {
            let log = vec!["logs", pod, "-n", namespace, "--all-containers"];
            asked.push((format!("{namespace}.{pod}.log"), log));
        }
        for (file, arguments) in asked {
            if let Ok(done) = self.kubectl.run(&arguments).await
                && done.ok
            {
                tokio::fs::write(folder.join(file), done.stdout).await?;
            }
        }
        Ok(())
    }
}
