//! Two sets for one name at the same time, through webhooks that have not heard of each other yet.

use anyhow::{Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;

use super::grants::site;
use crate::api;
use crate::conditions;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team};

/// Pairs, and how many of them at a time.
const PAIRS: usize = 200;
const AT_ONCE: usize = 8;

/// Two hundred conflicting pairs, back to back: most second ones are refused. Those that got in are told of
/// the conflict, and never served.
pub(in super::super) async fn of_two_that_got_in_one_is_served(stage: &Stage) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let all = ["*.pairs.test"];
    tokio::try_join!(stage.backend(&a, &all), stage.backend(&b, &all))?;
    let scene = Scene {
        stage,
        a: &a,
        b: &b,
    };
    let let_in: Vec<Option<usize>> = futures::stream::iter(0..PAIRS)
        .map(|number| scene.pair(number))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let let_in: Vec<usize> = let_in.into_iter().flatten().collect();
    let mut second = 0;
    for &number in &let_in {
        second += usize::from(scene.settled(number).await?);
    }
    Ok(Verdict::noting(format!(
        "of {PAIRS} second ones {} got in: of each of these pairs one is served and the other one conflicted ({second} \
         times it is the second one who is served)",
        let_in.len()
    )))
}

struct Scene<'a> {
    stage: &'a Stage,
    a: &'a Team,
    b: &'a Team,
}

impl Scene<'_> {
    /// A's set and at once B's. Gives the number if both got in.
    async fn pair(&self, number: usize) -> Result<Option<usize>> {
        let name = name(number);
        let hostname = hostname(number);
        // Every other time it is B who comes first.
        let (first, second) = if number.is_multiple_of(2) {
            (self.a, self.b)
        } else {
            (self.b, self.a)
        };
        let [one, other] = [first, second].map(|team| {
            (
                team,
                super::super::admission::passing_set(team, &name, &hostname),
            )
        });
        let create = async |(team, set): &(&Team, Value)| {
            team.api
                .apply(api::LISTENER_SET, &team.namespace, set)
                .await
        };
        let refused = create(&one).await?;
        ensure!(refused.is_none(), "the first of a pair: {refused:?}");
        match create(&other).await? {
            None => Ok(Some(number)),
            Some((403, _)) => Ok(None),
            Some(error) => bail!("the second of a pair: {error:?}"),
        }
    }

    /// Waits until one of a pair is told of the conflict and the other serves. True if it was the later one who
    /// serves.
    async fn settled(&self, number: usize) -> Result<bool> {
        let world = &self.stage.world;
        let (name, hostname) = (name(number), hostname(number));
        let conflicted = async |team: &Team| {
            let set = team.get(api::LISTENER_SET, &name).await?;
            let lost = conditions::of_listener(&set, "site", "Conflicted", "True", None).is_ok();
            if lost {
                conditions::of_listener(&set, "site", "Programmed", "False", None)?;
            } else {
                conditions::of_listener(&set, "site", "Programmed", "True", None)?;
            }
            Ok::<_, anyhow::Error>(lost)
        };
        let a_lost = until(&format!("{name} to be settled"), SOON, async || {
            let (a, b) = (conflicted(self.a).await?, conflicted(self.b).await?);
            ensure!(a != b, "both, or none: {a}");
            Ok(a)
        })
        .await?;
        let (winner, loser) = if a_lost {
            (self.b, self.a)
        } else {
            (self.a, self.b)
        };
        for team in [loser, winner] {
            let route = &site(team, &name, &hostname)[1..];
            team.kubectl.apply(route).await?.must()?;
        }
        let (of_winner, of_loser) = (
            winner.target(world, &hostname).await?,
            loser.target(world, &hostname).await?,
        );
        winner.answers(&of_winner).await?;
        for _ in 0..5 {
            ensure!(
                of_loser.ask().await.is_err(),
                "the loser of {name} is served"
            );
        }
        let first_is_a = number.is_multiple_of(2);
        Ok(first_is_a == a_lost)
    }
}

fn name(number: usize) -> String {
    format!("pair-{number}")
}

fn hostname(number: usize) -> String {
    format!("n{number}.pairs.test")
}
