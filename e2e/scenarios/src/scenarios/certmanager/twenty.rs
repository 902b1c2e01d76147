//! How long a certificate by cert-manager takes.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{CLUSTER_ISSUER, Scene, hostname};
use crate::client::Target;
use crate::scenarios::acme::{figures, served};

/// How many.
const TWENTY: usize = 20;

impl Scene<'_> {
    /// Twenty hostnames under the cluster's issuer, which asks nobody, one after another.
    pub(super) async fn twenty(&self) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let (namespace, gateway) = self.team.parent();
        let at = world.address(namespace, gateway, 443).await?;
        let mut times: Vec<Duration> = Vec::with_capacity(TWENTY);
        for n in 0..TWENTY {
            let name = format!("n{n}");
            let target = Target::new(at, &hostname(&name), self.stack.roots()?)?;
            let started = Instant::now();
            self.apply(&name, &[(CLUSTER_ISSUER, self.stack.issuer())])
                .await?;
            served(&target, &name).await?;
            times.push(started.elapsed());
        }
        Ok(vec![format!(
            "kubectl apply to served certificate by cert-manager's CA issuer, one after another: {}",
            figures(&mut times)
        )])
    }
}
