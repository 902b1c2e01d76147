//! A challenge is declared ready when every proxy can answer it, and not before.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{ISSUER, address, issuer, served_by_all, site, stated, target};
use crate::ca::{Ca, Troubles};
use crate::held::Held;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{PROXY, Stage};

const HOSTNAME: &str = "waits.acme-held.test";
/// For how long nothing may be declared while a proxy is held up.
const WATCHED: Duration = Duration::from_secs(6);

/// With one proxy's stream held up the order is made and the challenge is not declared ready; released, it
/// is, and the certificate is there.
pub(in super::super) async fn a_challenge_waits_for_every_proxy(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    stage.backend(&team, &[HOSTNAME]).await?;
    let ca = Ca::start(stage, "ca", Troubles::default()).await?;
    ca.resolve(HOSTNAME, address(world, &team).await?).await?;
    let pods = world.ready(PROXY, 2).await?;
    let held = Held::start(world, pods.first().context("no proxy")?).await?;
    // Whatever comes of it, the stream must flow again for the scenarios after this one.
    let seen = async {
        let [set, route] = site(&team, "waits", HOSTNAME, ISSUER);
        let objects = [issuer(&team, ISSUER, &ca, &[]), set, route];
        team.kubectl.apply(&objects).await?.must()?;
        until("an order", SOON, async || {
            let orders = ca.log().await?.orders();
            ensure!(orders == 1, "{orders} orders");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        tokio::time::sleep(WATCHED).await;
        let log = ca.log().await?;
        ensure!(
            log.declared_ready() == 0,
            "declared ready while one of two proxies could not answer"
        );
        ensure!(log.orders() == 1, "{} orders", log.orders());
        stated(stage, &team, "waits", "False", Some("Pending")).await
    }
    .await;
    held.release().await?;
    let message = seen?;
    served_by_all(&target(world, &team, &ca, HOSTNAME).await?, 2).await?;
    stated(stage, &team, "waits", "True", None).await?;
    let log = ca.log().await?;
    ensure!(
        log.orders() == 1 && log.invalid() == 0,
        "{} orders, {} failed validations",
        log.orders(),
        log.invalid()
    );
    Ok(Verdict::noting(format!(
        "held up for {} s: not declared ready, {message:?}; then one order, issued",
        WATCHED.as_secs()
    )))
}
