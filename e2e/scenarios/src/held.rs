//! Pods from the side of their node; and a proxy whose stream is held up: it is ready, serves what it has,
//! and learns nothing.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::api::{name, text};
use crate::wait::{LATER, until};
use crate::world::World;

/// Name of the nftables table in the held-up pod.
const TABLE: &str = "vestibule_e2e_hold";

/// The network of a pod, which a process of its node can enter.
pub(crate) struct PodNetwork {
    node: String,
    process: String,
}

impl PodNetwork {
    /// Of a pod that runs.
    pub(crate) async fn of(world: &World, pod: &Value) -> Result<Self> {
        let node = text(pod, "/spec/nodeName").to_owned();
        let id = text(pod, "/status/containerStatuses/0/containerID");
        let id = id.rsplit('/').next().unwrap_or_default();
        let inspect = [
            "crictl",
            "inspect",
            "-o",
            "go-template",
            "--template",
            "{{.info.pid}}",
            id,
        ];
        let process = until("the pod's process", LATER, async || {
            let process = world.on_node(&node, &inspect).await?.must()?;
            let process = process.trim().to_owned();
            ensure!(
                process.parse::<u32>().is_ok(),
                "{} has process {process:?}",
                name(pod)
            );
            Ok::<_, anyhow::Error>(process)
        })
        .await?;
        Ok(Self { node, process })
    }

    /// Runs a program of the node on the pod's network. Gives its output.
    pub(crate) async fn run(&self, world: &World, command: &[&str]) -> Result<String> {
        let enter = ["nsenter", "-t", &self.process, "-n"];
        let command = [&enter, command].concat();
        world.on_node(&self.node, &command).await?.must()
    }
}

/// A pod whose packets to the operator's stream are dropped, on its own network.
pub(crate) struct Held<'a> {
    world: &'a World,
    network: PodNetwork,
}

impl<'a> Held<'a> {
    /// Holds the pod's stream up.
    pub(crate) async fn start(world: &'a World, pod: &Value) -> Result<Self> {
        let network = PodNetwork::of(world, pod).await?;
        let held = Self { world, network };
        let rules = format!(
            "add table inet {TABLE}; \
             add chain inet {TABLE} out {{ type filter hook output priority 0; }}; \
             add chain inet {TABLE} in {{ type filter hook input priority 0; }}; \
             add rule inet {TABLE} out tcp dport 9443 drop; \
             add rule inet {TABLE} in tcp sport 9443 drop"
        );
        if let Err(error) = held.nft(&rules).await {
            held.nft(&format!("delete table inet {TABLE}")).await.ok();
            return Err(error);
        }
        Ok(held)
    }

    async fn nft(&self, rules: &str) -> Result<()> {
        self.network
            .run(self.world, &["nft", rules])
            .await
            .map(drop)
    }

    /// Lets it flow again.
    pub(crate) async fn release(self) -> Result<()> {
        self.nft(&format!("delete table inet {TABLE}")).await
    }
}
