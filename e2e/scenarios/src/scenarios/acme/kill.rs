//! The operator that leads is killed while an order is under way.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{ISSUER, address, issuer, served_by_all, site, stated, target};
use crate::api::{self, text};
use crate::ca::{Ca, Log, Troubles};
use crate::held::Held;
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{NAMESPACE, OPERATOR, PROXY, Stage, Team, World};

/// Where an operator is killed, in turn.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// As soon as the CA has the order.
    Ordered,
    /// While a proxy keeps the challenge from being declared ready.
    Waiting,
    /// While the CA validates.
    Validating,
}

/// The leader is killed at three moments of an order. The next one resumes it: the same order where it was
/// persisted, and at most one that nobody knows of where the crash came before that.
pub(in super::super) async fn the_next_leader_resumes_the_order(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    stage.backend(&team, &[]).await?;
    // Validation takes up to four seconds: there is time to kill somebody.
    let slow = Troubles {
        slow: 5,
        ..Troubles::default()
    };
    let ca = Ca::start(stage, "ca", slow).await?;
    let objects = [issuer(&team, ISSUER, &ca, &["TLS-ALPN-01"])];
    team.kubectl.apply(&objects).await?.must()?;
    let mut notes = Vec::new();
    for (name, moment) in [
        ("waiting", Moment::Waiting),
        ("validating", Moment::Validating),
        ("ordered", Moment::Ordered),
    ] {
        world.ready(OPERATOR, 2).await?;
        let round = Round {
            world,
            team: &team,
            ca: &ca,
            name,
            hostname: format!("{name}.acme-kill.test"),
        };
        notes.push(round.run(stage, moment).await?);
    }
    world.all_ready().await?;
    Ok(Verdict::Passed(notes))
}

struct Round<'a> {
    world: &'a World,
    team: &'a Team,
    ca: &'a Ca,
    name: &'a str,
    hostname: String,
}

impl Round<'_> {
    async fn run(&self, stage: &Stage, moment: Moment) -> Result<String> {
        let world = self.world;
        let before = self.ca.log().await?;
        self.ca
            .resolve(&self.hostname, address(world, self.team).await?)
            .await?;
        let held = match moment {
            Moment::Waiting => {
                let pods = world.ready(PROXY, 2).await?;
                Some(Held::start(world, pods.first().context("no proxy")?).await?)
            }
            Moment::Ordered | Moment::Validating => None,
        };
        let killed = self.until_killed(moment, &before).await;
        let next = match &killed {
            Ok((leader, _)) => self.next_leader(leader).await,
            Err(_) => Ok(Duration::ZERO),
        };
        if let Some(held) = held {
            held.release().await?;
        }
        let (next, (_, order)) = (next?, killed?);
        let target = target(world, self.team, self.ca, &self.hostname).await?;
        served_by_all(&target, 2).await?;
        stated(stage, self.team, self.name, "True", None).await?;
        let after = self.ca.log().await?;
        let orders = after.orders() - before.orders();
        let issued = after.issued() - before.issued();
        // Only what was not persisted when the operator died may be made a second time.
        let most = if order.is_empty() { 2 } else { 1 };
        ensure!(
            (1..=most).contains(&orders) && issued == 1,
            "{moment:?}: {orders} orders and {issued} certificates; persisted: {order:?}"
        );
        Ok(format!(
            "killed while {}: next leader after {:.1} s, {orders} order(s) for one certificate, {}",
            self.name,
            next.as_secs_f64(),
            if order.is_empty() {
                "killed before the order was persisted"
            } else {
                "the persisted one"
            }
        ))
    }

    /// Applies the set, waits for the moment and kills the leader. Gives its name, and the order that was
    /// persisted by then.
    async fn until_killed(&self, moment: Moment, before: &Log) -> Result<(String, String)> {
        let leader = self.world.leader().await?;
        let objects = site(self.team, self.name, &self.hostname, ISSUER);
        self.team.kubectl.apply(&objects).await?.must()?;
        until("the moment", SOON, async || {
            let log = self.ca.log().await?;
            match moment {
                Moment::Ordered => ensure!(log.orders() > before.orders(), "no order"),
                Moment::Validating => {
                    let declared = log.declared_ready() > before.declared_ready();
                    ensure!(declared, "nothing is validated");
                }
                Moment::Waiting => {
                    let order = self.persisted().await?;
                    ensure!(!order.is_empty(), "no order is persisted");
                }
            }
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        self.world.api.kill_pod(NAMESPACE, &leader).await?;
        Ok((leader, self.persisted().await?))
    }

    /// What the Secret says of an order under way; empty if it says nothing.
    async fn persisted(&self) -> Result<String> {
        let secret = format!("{}-tls", self.name);
        let space = &self.team.namespace;
        let secret = self.world.api.get(api::SECRET, space, &secret).await?;
        let state = secret.map(|secret| {
            text(&secret, "/metadata/annotations/vestibule.dev~1acme-state").to_owned()
        });
        Ok(state.filter(|s| s.contains("my-order")).unwrap_or_default())
    }

    async fn next_leader(&self, before: &str) -> Result<Duration> {
        let started = Instant::now();
        until("another leader", LATER, async || {
            let now = self.world.leader().await?;
            ensure!(now != before, "still {before}");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        Ok(started.elapsed())
    }
}
