//! What was so when a scenario failed, in one folder.

use std::path::Path;

use anyhow::Result;

use super::{NAMESPACE, OPERATOR, PROXY, WEBHOOK, World};
use crate::api::name;

/// Kinds whose state explains most failures.
const KINDS: &str = "gatewayclasses,gateways,listenersets,tlsroutes,services,endpointslices,pods,leases,\
                     acmeissuers,clusteracmeissuers,validatingwebhookconfigurations,referencegrants";

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
