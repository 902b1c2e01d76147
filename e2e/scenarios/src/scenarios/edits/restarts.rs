//! What serves, and what configures it, is restarted.

use anyhow::{Result, ensure};

use super::scene::Scene;
use crate::api::{self, name};
use crate::scenarios::quiet;
use crate::wait::{LATER, until};
use crate::world::{NAMESPACE, PROXY, World};

/// All proxies are replaced, one by one, and the old ones have drained.
pub(super) async fn proxies(scene: &Scene, _: usize) -> Result<()> {
    let world = &scene.world;
    let before = all_proxies(world).await?;
    let deployment = format!("deployment/{}", world.component(PROXY));
    let restart = ["rollout", "restart", &deployment, "-n", NAMESPACE];
    until("the restart", LATER, async || {
        world.kubectl.run(&restart).await?.must()
    })
    .await?;
    until("other proxies", LATER, async || {
        let now = all_proxies(world).await?;
        let left = now.iter().filter(|name| before.contains(name)).count();
        ensure!(left == 0, "{left} old ones are left");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    world.ready(PROXY, 2).await?;
    scene.recorded().await
}

/// Names of the proxies' pods, of those that drain as well.
async fn all_proxies(world: &World) -> Result<Vec<String>> {
    let selector = World::selector(PROXY);
    let pods = world.api.list(api::POD, NAMESPACE, &selector).await?;
    Ok(pods.iter().map(|pod| name(pod).to_owned()).collect())
}

/// Both operators are replaced.
pub(super) async fn operators(scene: &Scene, _: usize) -> Result<()> {
    until("the operators", LATER, async || {
        quiet::restarted(&scene.world).await
    })
    .await?;
    scene.recorded().await
}

/// The API server is killed and comes back.
pub(super) async fn api_server(scene: &Scene, _: usize) -> Result<()> {
    let world = &scene.world;
    world.fault(&["api-down"]).await?.must()?;
    world.fault(&["api-up"]).await?.must()?;
    world.all_ready().await?;
    scene.recorded().await
}
