//! Many hostnames at once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use rustls::RootCertStore;
use serde_json::{Value, json};

use super::{ISSUED, address};
use crate::api::{self, items, text};
use crate::ca::{Ca, Log, Troubles};
use crate::client::Target;
use crate::clock;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::scenarios::quiet;
use crate::wait::until;
use crate::world::{Stage, Team};

/// Listeners of a set.
const LISTENERS: usize = 10;
/// Bound for all certificates to be there.
const WITHIN: Duration = Duration::from_mins(20);
/// Requests, and connections, at a time.
const AT_ONCE: usize = 8;

/// Fifty new hostnames in five sets.
pub(in super::super) async fn fifty_at_once(stage: &Stage) -> Result<Verdict> {
    at_once(stage, 5).await
}

/// Five hundred new hostnames in fifty sets.
pub(in super::super) async fn five_hundred_at_once(stage: &Stage) -> Result<Verdict> {
    at_once(stage, 50).await
}

/// So many sets at once, under a cluster's issuer: all their hostnames are issued and served, with one order
/// each.
async fn at_once(stage: &Stage, sets: usize) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    stage.backend(&team, &[]).await?;
    let ca = Ca::start(stage, "ca", Troubles::default()).await?;
    let at = address(world, &team).await?;
    futures::stream::iter(0..sets * LISTENERS)
        .map(|number| {
            let (hostname, ca) = (hostname(stage, number), &ca);
            async move { ca.resolve(&hostname, at).await }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let issuer = cluster_issuer(stage, &ca);
    world.kubectl.apply(&[issuer]).await?.must()?;
    let many = Many {
        stage,
        team: &team,
        ca: &ca,
        at,
        sets,
    };
    let result = many.run().await;
    let gone = ["delete", "clusteracmeissuer", &stage.name];
    world.kubectl.run(&gone).await?.must()?;
    result.map(Verdict::Passed)
}

fn cluster_issuer(stage: &Stage, ca: &Ca) -> Value {
    let mut issuer = manifests::acme_issuer("", &stage.name, &ca.directory(), ca.bundle(), &[]);
    issuer["kind"] = "ClusterACMEIssuer".into();
    if let Some(metadata) = issuer["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    issuer
}

fn hostname(stage: &Stage, number: usize) -> String {
    format!("h{number}.{}.test", stage.name)
}

struct Many<'a> {
    stage: &'a Stage,
    team: &'a Team,
    ca: &'a Ca,
    at: IpAddr,
    sets: usize,
}

impl Many<'_> {
    async fn run(&self) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let space = &self.team.namespace;
        let began = clock::now();
        let started = Instant::now();
        futures::stream::iter(0..self.sets)
            .map(|set| async move {
                let [set, route] = self.objects(set);
                self.team.api.create(api::LISTENER_SET, space, &set).await?;
                self.team.api.create(api::TLS_ROUTE, space, &route).await
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<Value>>()
            .await?;
        let applied = started.elapsed();
        until("every certificate", WITHIN, async || {
            let sets = world.api.list(api::LISTENER_SET, space, "").await?;
            let mut due = BTreeMap::<String, usize>::new();
            for set in &sets {
                for listener in items(set, "/spec/listeners") {
                    let name = text(listener, "/name");
                    let issued = conditions::of_listener(set, name, ISSUED, "True", None);
                    if let Err(why) = issued {
                        *due.entry(format!("{why:#}")).or_default() += 1;
                    }
                }
            }
            ensure!(due.is_empty(), "not issued: {due:?}");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        let issued = started.elapsed();
        self.all_served().await?;
        let served = started.elapsed();
        self.notes(began, [applied, issued, served]).await
    }

    fn objects(&self, set: usize) -> [Value; 2] {
        let space = &self.team.namespace;
        let name = format!("set-{set}");
        let hostnames: Vec<String> = (0..LISTENERS)
            .map(|n| hostname(self.stage, set * LISTENERS + n))
            .collect();
        let listeners: Vec<Value> = hostnames
            .iter()
            .enumerate()
            .map(|(n, hostname)| {
                let secret = format!("{name}-{n}");
                manifests::listener(&format!("n{n}"), hostname, Mode::Terminate(&secret))
            })
            .collect();
        let object = manifests::listener_set(space, &name, self.team.parent(), &listeners);
        let by = [(
            "vestibule.dev/acme-cluster-issuer",
            self.stage.name.as_str(),
        )];
        let parent = manifests::to_listener_set(&name, None);
        let mut route = manifests::tls_route(space, &name, &parent, "", ("web", 80));
        route["spec"]["hostnames"] = json!(hostnames);
        [manifests::annotated(object, &by), route]
    }

    async fn all_served(&self) -> Result<()> {
        let roots = self.ca.roots().await?;
        futures::stream::iter(0..self.sets * LISTENERS)
            .map(|number| self.served(hostname(self.stage, number), roots.clone()))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await
            .map(drop)
    }

    async fn served(&self, hostname: String, roots: RootCertStore) -> Result<()> {
        let target = Target::new(SocketAddr::new(self.at, 443), &hostname, roots)?;
        until(&hostname, crate::wait::SOON, async || {
            target.ask().await.map_err(|failure| anyhow!("{failure:?}"))
        })
        .await
        .map(drop)
    }

    async fn notes(
        &self,
        began: Timestamp,
        [applied, issued, served]: [Duration; 3],
    ) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let count = self.sets * LISTENERS;
        let log: Log = self.ca.log().await?;
        ensure!(
            log.orders() == count && log.issued() == count,
            "{} orders and {} certificates for {count} hostnames",
            log.orders(),
            log.issued()
        );
        let each = |all: usize| all as f64 / count as f64;
        let mut notes = vec![format!(
            "{count} hostnames in {} sets: applied in {:.1} s, all issued {:.1} s and all served {:.1} s after the \
             start; {:.1} requests to the CA for each",
            self.sets,
            applied.as_secs_f64(),
            issued.as_secs_f64(),
            served.as_secs_f64(),
            each(log.requests())
        )];
        if world.audit_log().await?.is_some() {
            let mut kinds = BTreeMap::<String, usize>::new();
            for (what, times) in quiet::writes_since(world, began).await? {
                let kind = what.split(' ').take(2).collect::<Vec<_>>().join(" ");
                *kinds.entry(kind).or_default() += times;
            }
            let secrets: usize = kinds
                .iter()
                .filter(|(kind, _)| kind.contains(" secrets/"))
                .map(|(_, times)| times)
                .sum();
            ensure!(
                secrets <= 3 * count + 10,
                "{secrets} writes of Secrets for {count} certificates"
            );
            notes.push(format!(
                "{:.2} writes of Secrets for each; all writes: {kinds:?}",
                each(secrets)
            ));
        }
        Ok(notes)
    }
}
