//! A CA in trouble: bad nonces, slow validation, authorizations used again, names that do not resolve, the
//! network to it cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::{BY, ISSUED, address, issuer, served_by_all, site, target};
use crate::api::{self, items, text};
use crate::ca::{Ca, Troubles};
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::wait::until;
use crate::world::{PROXY, Stage, Team, World};

/// Hostnames, in sets of this many listeners.
const HOSTNAMES: usize = 20;
const LISTENERS: usize = 10;
/// How many of them do not resolve, where that is the trouble.
const LOST: usize = 5;
/// How many validations may fail by themselves: on a busy machine, the name server of a CA broke off a lookup (`EOF`).
const GLITCHES: usize = 2;
/// How many lose their certificate, where authorizations are used again.
const AGAIN: usize = 5;
/// Proxies meanwhile.
const PROXIES: u32 = 3;
/// How long the network is cut.
const CUT: Duration = Duration::from_secs(8);
/// Bound for a trouble to be over: a failure is tried again after a minute, with jitter, and again.
const OVER: Duration = Duration::from_mins(5);
/// New connections a second to the tenant whom all this is not about.
const RATE: u32 = 10;
/// The tenant that makes no trouble, and whose names do not resolve.
const CALM: &str = "calm";
const LOSING: &str = "dns";
/// The tenant's hostname whom all this is not about.
const BESIDE: &str = "beside.acme-troubles.test";

/// Three proxies, two operators, 20 hostnames and each trouble in turn: all are issued, or say what the CA
/// said, with a bounded number of orders. Another tenant's certificate and connections do not change.
pub(in super::super) async fn a_ca_in_trouble_troubles_nobody_else(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let beside = stage.team("b", &gateway).await?;
    let none = Troubles::default();
    let (calm, losing, nonces, slow, reuse, cut, ..) = tokio::try_join!(
        Ca::start(stage, CALM, none),
        Ca::start(stage, LOSING, none),
        Ca::start(
            stage,
            "nonces",
            Troubles {
                nonces_refused: 40,
                ..none
            }
        ),
        Ca::start(stage, "slow", Troubles { slow: 4, ..none }),
        Ca::start(stage, "reuse", Troubles { reuse: 100, ..none }),
        Ca::start(stage, "cut", none),
        stage.backend(&team, &[]),
        stage.backend(&beside, &[]),
    )?;
    world.scale(PROXY, PROXIES).await?;
    let scene = Scene {
        stage,
        team: &team,
        beside: &beside,
        calm: &calm,
        losing: &losing,
        nonces: &nonces,
        slow: &slow,
        reuse: &reuse,
        cut: &cut,
    };
    let result = scene.run().await;
    // Whatever came of it, scenarios after this one have two proxies and a network.
    cut.mend().await?;
    world.scale(PROXY, 2).await?;
    world.ready(PROXY, 2).await?;
    result.map(Verdict::Passed)
}

struct Scene<'a> {
    stage: &'a Stage,
    team: &'a Team,
    beside: &'a Team,
    calm: &'a Ca,
    losing: &'a Ca,
    nonces: &'a Ca,
    slow: &'a Ca,
    reuse: &'a Ca,
    cut: &'a Ca,
}

impl Scene<'_> {
    fn world(&self) -> &World {
        &self.stage.world
    }

    async fn run(&self) -> Result<Vec<String>> {
        let world = self.world();
        world.ready(PROXY, PROXIES as usize).await?;
        let at = address(world, self.team).await?;
        self.calm.resolve(BESIDE, at).await?;
        let troubled = [self.losing, self.nonces, self.slow, self.reuse, self.cut];
        futures::stream::iter(troubled.iter().flat_map(|ca| {
            (0..HOSTNAMES).flat_map(move |n| [(ca, hostname("a", n)), (ca, hostname("l", n))])
        }))
        .map(|(ca, hostname)| async move { ca.resolve(&hostname, at).await })
        .buffer_unordered(8)
        .try_collect::<Vec<()>>()
        .await?;
        let mut objects = vec![issuer(self.beside, CALM, self.calm, &[])];
        objects.extend(site(self.beside, "beside", BESIDE, CALM));
        self.beside.kubectl.apply(&objects).await?.must()?;
        let beside = target(world, self.beside, self.calm, BESIDE).await?;
        served_by_all(&beside, PROXIES as usize).await?;
        let certificate = shown(&beside).await?;

        let hold = Hold::open(&beside, 6).await;
        let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
        let load = Load::start(beside.clone(), RATE);
        let result = self.troubles().await;
        let (counts, ends) = (load.stop().await?, hold.finish().await?);
        let mut notes = result?;
        ensure!(counts.failed.is_empty(), "the tenant beside: {counts}");
        ensure!(
            ends.iter().all(|end| end.failure.is_none()),
            "held connections of the tenant beside: {}",
            describe(&ends)
        );
        ensure!(
            shown(&beside).await? == certificate,
            "the tenant beside has another certificate"
        );
        let orders = self.calm.log().await?.orders();
        ensure!(orders == 1, "{orders} orders for the tenant beside");
        notes.push(format!(
            "the tenant beside, meanwhile: {counts}; held: {}",
            describe(&ends)
        ));
        Ok(notes)
    }

    async fn troubles(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let issuers: Vec<Value> = [
            (LOSING, self.losing),
            ("nonces", self.nonces),
            ("slow", self.slow),
            ("reuse", self.reuse),
            ("cut", self.cut),
        ]
        .iter()
        .map(|(name, ca)| issuer(self.team, name, ca, &[]))
        .collect();
        self.team.kubectl.apply(&issuers).await?.must()?;

        // Those that do not resolve are on their own, and looked at again at the end: their next attempt is
        // a minute away.
        for n in 0..LOST {
            self.losing.dns_fails(&hostname("l", n), true).await?;
        }
        self.ask("l", LOSING).await?;
        let problem = self.lost().await?;
        for n in 0..LOST {
            self.losing.dns_fails(&hostname("l", n), false).await?;
        }
        let mended = Instant::now();
        notes.push(format!("{LOST} of {HOSTNAMES} do not resolve: {problem}"));

        for (name, ca) in [("nonces", self.nonces), ("slow", self.slow)] {
            let started = Instant::now();
            self.ask("a", name).await?;
            self.all_issued("a", ca).await?;
            let cost = (HOSTNAMES, GLITCHES);
            notes.push(self.orders(name, ca, started, cost).await?);
        }
        notes.push(self.used_again().await?);
        notes.push(self.away().await?);

        self.all_issued("l", self.losing).await?;
        notes.push(format!(
            "resolved again, issued at most {:.0} s later: {}",
            mended.elapsed().as_secs_f64(),
            // Each of the lost ones fails once, and one of them may fail once more late.
            self.orders("dns", self.losing, mended, (HOSTNAMES, 2 * LOST + GLITCHES))
                .await?
        ));
        Ok(notes)
    }

    /// The team's sets for 20 hostnames, all under one issuer.
    async fn ask(&self, group: &str, issuer: &str) -> Result<()> {
        let objects: Vec<Value> = (0..HOSTNAMES / LISTENERS)
            .flat_map(|set| self.sets(group, set, issuer))
            .collect();
        self.team.kubectl.apply(&objects).await?.must().map(drop)
    }

    fn sets(&self, group: &str, set: usize, issuer: &str) -> [Value; 2] {
        let space = &self.team.namespace;
        let name = format!("{group}{set}");
        let numbers = set * LISTENERS..(set + 1) * LISTENERS;
        let hostnames: Vec<String> = numbers.clone().map(|n| hostname(group, n)).collect();
        let listeners: Vec<Value> = numbers
            .zip(&hostnames)
            .map(|(n, hostname)| {
                let secret = secret(group, n);
                manifests::listener(&format!("n{n}"), hostname, Mode::Terminate(&secret))
            })
            .collect();
        let object = manifests::listener_set(space, &name, self.team.parent(), &listeners);
        let parent = manifests::to_listener_set(&name, None);
        let mut route = manifests::tls_route(space, &name, &parent, "", ("web", 80));
        route["spec"]["hostnames"] = json!(hostnames);
        [manifests::annotated(object, &[(BY, issuer)]), route]
    }

    /// Waits until the lost ones say what the CA said, and the others are issued. Gives one of the messages.
    async fn lost(&self) -> Result<String> {
        let space = &self.team.namespace;
        until("the CA's problem in the statuses", OVER, async || {
            let mut said = BTreeMap::new();
            for set in self.world().api.list(api::LISTENER_SET, space, "").await? {
                for listener in items(&set, "/spec/listeners") {
                    let name = text(listener, "/name").to_owned();
                    let n: usize = name.trim_start_matches('n').parse()?;
                    if n >= LOST {
                        conditions::of_listener(&set, &name, ISSUED, "True", None)?;
                        continue;
                    }
                    let message = conditions::of_listener(&set, &name, ISSUED, "False", None)?;
                    let problem = message.to_lowercase();
                    ensure!(
                        problem.contains("resolv") || problem.contains("dns"),
                        "{name}: {message}"
                    );
                    said.insert(name, message);
                }
            }
            ensure!(said.len() == LOST, "{} say so", said.len());
            said.into_values().next().context("nobody says so")
        })
        .await
    }

    /// Waits until every hostname of a group is served under a certificate of the CA.
    async fn all_issued(&self, group: &str, ca: &Ca) -> Result<()> {
        let (namespace, name) = self.team.parent();
        let at: SocketAddr = self.world().address(namespace, name, 443).await?;
        let roots = ca.roots().await?;
        let started = Instant::now();
        for n in 0..HOSTNAMES {
            let target = Target::new(at, &hostname(group, n), roots.clone())?;
            let left = OVER.saturating_sub(started.elapsed());
            until(
                &format!("{} from {}", hostname(group, n), ca.directory()),
                left,
                async || {
                    let asked = target.ask().await;
                    asked.map_err(|failure| anyhow!("{failure:?}")).map(drop)
                },
            )
            .await?;
        }
        Ok(())
    }

    /// Checks that so many certificates took one order each, and each failed validation one more. Returns a line about it.
    async fn orders(
        &self,
        what: &str,
        ca: &Ca,
        since: Instant,
        (certificates, most_failures): (usize, usize),
    ) -> Result<String> {
        let log = ca.log().await?;
        let (orders, failures) = (log.orders(), log.invalid());
        ensure!(
            orders <= certificates + failures && failures <= most_failures,
            "{what}: {orders} orders for {certificates} certificates, {failures} failed validations, \
             {most_failures} at most",
        );
        Ok(format!(
            "{what}: all {HOSTNAMES} issued after {:.0} s with {orders} orders, {failures} failed validations, {} requests",
            since.elapsed().as_secs_f64(),
            log.requests()
        ))
    }

    /// Issued; some Secrets are deleted; the CA wants no challenge for what it has authorized before.
    async fn used_again(&self) -> Result<String> {
        let started = Instant::now();
        self.ask("a", "reuse").await?;
        self.all_issued("a", self.reuse).await?;
        let before = self.reuse.log().await?;
        let space = &self.team.namespace;
        for n in 0..AGAIN {
            self.team
                .api
                .delete(api::SECRET, space, &secret("a", n))
                .await?;
        }
        until("the deleted ones to be issued again", OVER, async || {
            let issued = self.reuse.log().await?.issued();
            ensure!(issued == HOSTNAMES + AGAIN, "{issued} issued");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        self.all_issued("a", self.reuse).await?;
        let after = self.reuse.log().await?;
        ensure!(
            after.declared_ready() == before.declared_ready(),
            "challenges were declared ready that nobody asked for"
        );
        let cost = (HOSTNAMES + AGAIN, GLITCHES);
        let note = self.orders("reuse", self.reuse, started, cost).await?;
        Ok(format!(
            "{note}; {AGAIN} of them twice, without a challenge"
        ))
    }

    /// Nobody can reach the CA for a while; what is served stays.
    async fn away(&self) -> Result<String> {
        let started = Instant::now();
        self.cut.cut().await?;
        self.ask("a", "cut").await?;
        tokio::time::sleep(CUT).await;
        // The old ones serve on.
        self.all_issued("a", self.reuse).await?;
        self.cut.mend().await?;
        self.all_issued("a", self.cut).await?;
        let cost = (HOSTNAMES, GLITCHES);
        let note = self.orders("cut", self.cut, started, cost).await?;
        Ok(format!(
            "{note}; of these {} s without a network",
            CUT.as_secs()
        ))
    }
}

fn hostname(group: &str, number: usize) -> String {
    format!("{group}{number}.acme-troubles.test")
}

fn secret(group: &str, number: usize) -> String {
    format!("{group}-{number}-tls")
}

async fn shown(target: &Target) -> Result<Vec<u8>> {
    let conversation = target.open().await;
    let conversation = conversation.map_err(|failure| anyhow!("{failure:?}"))?;
    let shown = conversation
        .certificate()
        .context("no certificate")?
        .to_vec();
    conversation.close().await;
    Ok(shown)
}
