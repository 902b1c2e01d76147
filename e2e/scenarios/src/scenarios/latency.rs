//! Time from applying a ListenerSet and its route to the first served request.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::api;
use crate::load::percentile;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::Stage;

/// How many are measured.
const ROUNDS: usize = 50;
/// How often a hostname that is not served yet is tried. Bounds the resolution of the figure.
const TRY: Duration = Duration::from_millis(5);

/// Fifty ListenerSets, one after another: how long until each hostname is answered.
pub(super) async fn from_apply_to_the_first_request(stage: &Stage) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let hostnames: Vec<String> = (0..ROUNDS).map(|n| format!("n{n}.latency.test")).collect();
    let names: Vec<&str> = hostnames.iter().map(String::as_str).collect();
    stage.backend(&team, &names).await?;
    let space = &team.namespace;
    let mut served = Vec::with_capacity(ROUNDS);
    let mut programmed = Vec::with_capacity(ROUNDS);
    for (n, hostname) in hostnames.iter().enumerate() {
        let name = format!("set-{n}");
        let listener = manifests::listener("site", hostname, Mode::Passthrough);
        let set = manifests::listener_set(space, &name, team.parent(), &[listener]);
        let parent = manifests::to_listener_set(&name, None);
        let route = manifests::tls_route(space, &name, &parent, hostname, ("web", 443));
        let target = team.target(&stage.world, hostname).await?;
        // Made through the API under the team's identity, admission included; what `kubectl` needs to
        // start is not what is measured.
        let started = Instant::now();
        team.api.create(api::LISTENER_SET, space, &set).await?;
        team.api.create(api::TLS_ROUTE, space, &route).await?;
        loop {
            match target.ask().await {
                Ok(_) => break,
                Err(failure) if started.elapsed() > SOON => {
                    anyhow::bail!("{hostname}: {failure:?}")
                }
                Err(_) => tokio::time::sleep(TRY).await,
            }
        }
        served.push(started.elapsed());
        until("Programmed", SOON, async || {
            let set = team.get(api::LISTENER_SET, &name).await?;
            crate::conditions::is_served(&set, 1)
        })
        .await?;
        programmed.push(started.elapsed());
    }
    served.sort_unstable();
    programmed.sort_unstable();
    let line = |what: &str, values: &[Duration]| {
        format!(
            "{what}: p50 {} ms, p99 {} ms, max {} ms of {}",
            percentile(values, 0.5).as_millis(),
            percentile(values, 0.99).as_millis(),
            percentile(values, 1.0).as_millis(),
            values.len()
        )
    };
    Ok(Verdict::Passed(vec![
        line("apply to first served request", &served),
        line(
            "apply to complete status (looked at every 150 ms)",
            &programmed,
        ),
    ]))
}
