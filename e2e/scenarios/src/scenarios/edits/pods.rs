//! Pods that come and go behind a Service.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::scene::{Scene, WEB};
use crate::api::{self, items, name};
use crate::clock;
use crate::wait::{LATER, until};
use crate::world::is_ready;

/// Replicas at rest.
pub(super) const REPLICAS: usize = 2;

/// All pods are replaced, one by one.
pub(super) async fn rolled(scene: &Scene, number: usize) -> Result<()> {
    let before = names(&pods(scene).await?);
    let stamp = format!("{number} at {}", clock::now());
    let change = json!({"spec": {"template": {"metadata": {"annotations": {"rolled": stamp}}}}});
    scene.patch(api::DEPLOYMENT, WEB, &change).await?;
    settled(scene, REPLICAS, |pod| {
        !before.contains(&name(pod).to_owned())
    })
    .await
}

/// To one replica, and back.
pub(super) async fn scaled(scene: &Scene, _: usize) -> Result<()> {
    for replicas in [1, REPLICAS] {
        let change = json!({"spec": {"replicas": replicas}});
        scene.patch(api::DEPLOYMENT, WEB, &change).await?;
        settled(scene, replicas, |_| true).await?;
    }
    Ok(())
}

/// One of them is deleted; another one takes its place.
pub(super) async fn deleted(scene: &Scene, _: usize) -> Result<()> {
    let victim = names(&pods(scene).await?).into_iter().next();
    let Some(victim) = victim else {
        anyhow::bail!("no pods");
    };
    let space = &scene.team.namespace;
    scene.delete(api::POD, space, &victim).await?;
    settled(scene, REPLICAS, |pod| name(pod) != victim).await
}

/// Those that nobody has told to stop.
async fn pods(scene: &Scene) -> Result<Vec<Value>> {
    until("the pods", LATER, async || {
        let space = &scene.team.namespace;
        let selector = format!("app={WEB}");
        let mut pods = scene.world.api.list(api::POD, space, &selector).await?;
        pods.retain(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
        Ok::<_, anyhow::Error>(pods)
    })
    .await
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| name(pod).to_owned()).collect()
}

/// Waits until there are so many pods, all of them ready and such, and as many ready endpoints.
async fn settled(scene: &Scene, count: usize, such: impl Fn(&Value) -> bool) -> Result<()> {
    until(&format!("{count} ready pods"), LATER, async || {
        let pods = pods(scene).await?;
        let good = pods.iter().filter(|pod| is_ready(pod) && such(pod)).count();
        ensure!(
            pods.len() == count && good == count,
            "{good} of {}",
            pods.len()
        );
        let selector = format!("kubernetes.io/service-name={WEB}");
        let space = &scene.team.namespace;
        let api = &scene.world.api;
        let slices = api.list(api::ENDPOINT_SLICE, space, &selector).await?;
        let ready = slices
            .iter()
            .flat_map(|slice| items(slice, "/endpoints"))
            .filter(|endpoint| endpoint.pointer("/conditions/ready") == Some(&true.into()))
            .count();
        ensure!(ready == count, "{ready} ready endpoints");
        Ok::<_, anyhow::Error>(())
    })
    .await
}
