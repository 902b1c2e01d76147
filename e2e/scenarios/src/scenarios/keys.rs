//! Checks that no private key of any Secret is anywhere else.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::acme;
use crate::api::{name, text};
use crate::held::PodNetwork;
use crate::needles::Needles;
use crate::runner::Verdict;
use crate::tools::run;
use crate::world::{NAMESPACE, OPERATOR, PROXY, Stage, WEBHOOK, World};

/// Kinds that anybody of us writes, or writes about.
const KINDS: &str = "gatewayclasses,gateways,listenersets,tlsroutes,httproutes,grpcroutes,tcproutes,udproutes,acmeissuers,clusteracmeissuers,\
                     configmaps,services,endpointslices,leases,pods,deployments,events,events.events.k8s.io";

/// Everything that components say is searched for the keys of all Secrets that there are, and were in the
/// scenarios before: logs, statuses, events, metrics, dumps.
pub(super) async fn no_key_is_anywhere_but_in_its_secret(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let hostname = acme::one_site(stage).await?;
    let mut keys = world.remembered_keys();
    keys.extend(world.stored_keys("").await?);
    keys.sort();
    keys.dedup();
    ensure!(keys.len() > 2, "only {} keys are known", keys.len());
    let mut needles = Needles::default();
    for key in &keys {
        needles.add(key)?;
        // The search must be able to find a key.
        ensure!(needles.are_in(key), "a key is not found in itself");
    }

    let texts = said(world, &hostname).await?;
    let mut bytes = 0;
    for (what, text) in &texts {
        bytes += text.len();
        // The name of the place, and nothing of what was found there.
        ensure!(!needles.are_in(text.as_bytes()), "{what} has key material");
    }
    Ok(Verdict::noting(format!(
        "{} keys, {} places, {:.1} MB: none of it has any of them",
        keys.len(),
        texts.len(),
        bytes as f64 / 1e6
    )))
}

/// All that components say, by where.
async fn said(world: &World, hostname: &str) -> Result<Vec<(String, String)>> {
    let objects = ["get", KINDS, "-A", "-o", "json"];
    let objects = world.kubectl.run(&objects).await?.must()?;
    let mut texts = vec![("objects".to_owned(), objects)];
    for component in [OPERATOR, WEBHOOK, PROXY] {
        let port = if component == PROXY { 15021 } else { 8080 };
        for pod in world.pods(component).await? {
            let pod_name = name(&pod);
            for previous in ["--previous=false", "--previous=true"] {
                let log = ["logs", pod_name, "-n", NAMESPACE, "--tail=-1", previous];
                let log = world.kubectl.run(&log).await?;
                // Most pods had no container before this one.
                if log.ok {
                    texts.push((format!("log of {pod_name}"), log.stdout));
                }
            }
            let metrics = format!("http://{}:{port}/metrics", text(&pod, "/status/podIP"));
            let metrics = ["--silent", "--show-error", "--fail", &metrics];
            let metrics = run("curl".as_ref(), &metrics, &[], "").await?.must()?;
            ensure!(!metrics.is_empty(), "{pod_name} has no metrics");
            texts.push((format!("metrics of {pod_name}"), metrics));
            if component == PROXY {
                let dump = dump(world, &pod).await?;
                ensure!(
                    dump.contains(hostname),
                    "{hostname} is not in the dump of {pod_name}"
                );
                texts.push((format!("dump of {pod_name}"), dump));
            }
        }
    }
    Ok(texts)
}

/// What a proxy has in force, from its admin port, which is open to itself only.
async fn dump(world: &World, pod: &Value) -> Result<String> {
    let network = PodNetwork::of(world, pod).await?;
    let command = [
        "curl",
        "--silent",
        "--fail",
        "http://127.0.0.1:15000/config",
    ];
    network.run(world, &command).await.context("dump")
}
