//! `report`: what the components cost while nothing happens, as the kubelets measure it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::api::{self, items, name, text};
use crate::runner::print;
use crate::wait::{SOON, until};
use crate::world::{NAMESPACE, OPERATOR, PROXY, WEBHOOK, World};

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds to watch.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Prints a table.
pub(crate) async fn run(world: &World, args: &Args) -> Result<()> {
    let usage = Usage::start(world).await?;
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    for line in usage.finish(world).await? {
        print(&line);
    }
    for line in images(world).await? {
        print(&line);
    }
    Ok(())
}

/// One pod's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sample {
    /// CPU used since the container's start.
    cpu: Duration,
    /// Resident memory in bytes: anonymous pages, and with the binary's mapped ones.
    anonymous: u64,
    working_set: u64,
}

/// A period in which CPU is counted.
pub(crate) struct Usage {
    before: BTreeMap<String, Sample>,
    started: Instant,
}

impl Usage {
    /// Starts counting.
    pub(crate) async fn start(world: &World) -> Result<Self> {
        Ok(Self {
            before: samples(world).await?,
            started: Instant::now(),
        })
    }

    /// A line for each component's pod.
    pub(crate) async fn finish(&self, world: &World) -> Result<Vec<String>> {
        // Kubelets look every ten seconds or so: the last look has to be a new one.
        let after = until("fresh figures of the kubelets", SOON, async || {
            let after = samples(world).await?;
            let stale = after
                .iter()
                .any(|(pod, now)| self.before.get(pod).is_some_and(|b| b.cpu == now.cpu));
            anyhow::ensure!(!stale, "the same as at the start");
            Ok::<_, anyhow::Error>(after)
        })
        .await;
        let after = match after {
            Ok(after) => after,
            // A component that used no CPU at all is no reason to fail.
            Err(_) => samples(world).await?,
        };
        let seconds = self.started.elapsed().as_secs_f64();
        Ok(after
            .iter()
            .map(|(pod, now)| {
                let before = self.before.get(pod).copied().unwrap_or_default();
                let cpu = now.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds;
                format!(
                    "{pod}: resident {:.1} MB (anonymous {:.1} MB), CPU {:.1} m",
                    megabytes(now.working_set),
                    megabytes(now.anonymous),
                    cpu * 1000.0
                )
            })
            .collect())
    }
}

/// Resident memory (the working set) of the component's pod that has most, in megabytes.
pub(crate) async fn resident(world: &World, component: &str) -> Result<f64> {
    let samples = samples(world).await?;
    let prefix = world.component(component);
    let of = samples.iter().filter(|(pod, _)| pod.starts_with(&prefix));
    Ok(megabytes(of.map(|(_, s)| s.working_set).max().unwrap_or(0)))
}

/// Sizes of the images under test, as the nodes have them.
pub(crate) async fn images(world: &World) -> Result<Vec<String>> {
    let mut sizes = BTreeMap::new();
    for node in world.api.list(api::NODE, "", "").await? {
        for image in items(&node, "/status/images") {
            let size = image
                .get("sizeBytes")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            for reference in items(image, "/names").iter().filter_map(Value::as_str) {
                let component = reference
                    .strip_prefix(world.registry.as_str())
                    .and_then(|rest| {
                        rest.strip_prefix('/')?
                            .strip_suffix(&format!(":{}", world.tag))
                    });
                if let Some(component) = component {
                    sizes.insert(component.to_owned(), size);
                }
            }
        }
    }
    Ok(sizes
        .iter()
        .map(|(component, &size)| format!("image {component}: {:.1} MB", megabytes(size)))
        .collect())
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1_000_000.0
}

async fn samples(world: &World) -> Result<BTreeMap<String, Sample>> {
    let mut pods = Vec::new();
    for component in [OPERATOR, WEBHOOK, PROXY] {
        pods.extend(
            world
                .pods(component)
                .await?
                .iter()
                .map(|pod| name(pod).to_owned()),
        );
    }
    let mut samples = BTreeMap::new();
    for node in world.api.list(api::NODE, "", "").await? {
        let path = format!("/api/v1/nodes/{}/proxy/stats/summary", name(&node));
        let summary = world.api.raw(&path).await?;
        for pod in items(&summary, "/pods") {
            let pod_name = text(pod, "/podRef/name");
            if text(pod, "/podRef/namespace") == NAMESPACE && pods.iter().any(|p| p == pod_name) {
                samples.insert(pod_name.to_owned(), sample(pod));
            }
        }
    }
    Ok(samples)
}

fn sample(pod: &Value) -> Sample {
    let mut sum = Sample::default();
    for container in items(pod, "/containers") {
        let figure = |pointer| {
            container
                .pointer(pointer)
                .and_then(Value::as_u64)
                .unwrap_or_default()
        };
        sum.cpu += Duration::from_nanos(figure("/cpu/usageCoreNanoSeconds"));
        sum.anonymous += figure("/memory/rssBytes");
        sum.working_set += figure("/memory/workingSetBytes");
    }
    sum
}
