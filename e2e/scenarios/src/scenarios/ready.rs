//! Ready means that the first request succeeds: asked of each proxy by itself, in the moment in which a status says so;
//! and nobody who asks for a name on its way in gets an error of the server, or loses it again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::future::join_all;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{self, Kind, items};
use crate::app;
use crate::client::Failure;
use crate::conditions;
use crate::load::percentile;
use crate::manifests;
use crate::proxies::{self, Door};
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{PROXY, Stage, Team};

/// New routes on a listener that is there.
const ROUTES: usize = 40;
/// New sets, each with a certificate and a route.
const SETS: usize = 20;
/// How often a status is looked at: the sooner it is seen, the stricter the test.
const LOOK: Duration = Duration::from_millis(4);
/// How often a name on its way in is asked for.
const ASK: Duration = Duration::from_millis(10);
/// Requests through the Gateway's address for each name that is ready: they find either proxy.
const THROUGH: usize = 4;

/// New routes, and new sets with certificates, one after another: in the moment in which the status says so, each proxy
/// answers, and those who asked meanwhile were told "not found" or refused, until they were served for good.
pub(super) async fn the_first_request_after_the_status_succeeds(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    world.ready(PROXY, 2).await?;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let doors = proxies::doors(world, team.parent(), 443).await;
    let scene = Scene {
        stage,
        doors: doors?,
        address: world.address(&gateway.0, &gateway.1, 443).await?,
        domain: format!("{}.test", stage.name),
        team,
    };
    scene.prepare().await?;
    let mut news = Vec::new();
    for number in 0..ROUTES {
        news.push(
            scene
                .route(number)
                .await
                .with_context(|| format!("route {number}"))?,
        );
    }
    let routes = summary("new routes", &news);
    let mut sets = Vec::new();
    for number in 0..SETS {
        sets.push(
            scene
                .set(number)
                .await
                .with_context(|| format!("set {number}"))?,
        );
    }
    let sets_line = summary("new sets with certificates", &sets);
    let wrong: Vec<String> = news
        .into_iter()
        .chain(sets)
        .flat_map(|new| new.wrong)
        .collect();
    ensure!(
        wrong.is_empty(),
        "{} wrong: {}\n      {routes}\n      {sets_line}",
        wrong.len(),
        wrong.join("\n      ")
    );
    Ok(Verdict::Passed(vec![routes, sets_line]))
}

fn summary(what: &str, news: &[New]) -> String {
    let mut stated: Vec<Duration> = news.iter().map(|new| new.stated).collect();
    stated.sort_unstable();
    let asked: usize = news.iter().map(|new| new.asked).sum();
    format!(
        "{} {what}: status after p50 {} ms, p99 {} ms; {asked} requests for them on their way in",
        news.len(),
        percentile(&stated, 0.5).as_millis(),
        percentile(&stated, 0.99).as_millis()
    )
}

/// A name that came in.
struct New {
    /// From its creation until the status said that it is served.
    stated: Duration,
    /// Requests meanwhile.
    asked: usize,
    /// What should not have been.
    wrong: Vec<String>,
}

struct Scene<'a> {
    stage: &'a Stage,
    team: Team,
    doors: Vec<Door>,
    address: std::net::SocketAddr,
    domain: String,
}

impl Scene<'_> {
    /// A backend with as many Services as there will be routes, and a set with a wildcard for some of these.
    async fn prepare(&self) -> Result<()> {
        let world = &self.stage.world;
        let space = &self.team.namespace;
        let leaf = self.team.authority.leaf(&[&self.domain])?;
        let site = self.team.authority.leaf(&[&format!("*.{}", self.domain)])?;
        let mut objects = vec![
            manifests::tls_secret(space, "app-tls", &leaf.chain, &leaf.key),
            manifests::tls_secret(space, "site-tls", &site.chain, &site.key),
            app::deployment(space, "web", &world.image("e2e"), 1),
            self.listeners("web", &format!("*.{}", self.domain), "site-tls"),
        ];
        let services = (0..ROUTES + SETS).map(service_name);
        objects.extend(services.map(|name| app::service(space, &name, Some("web"))));
        world.kubectl.apply(&objects).await?.must()?;
        self.stage.available(space, "web").await?;
        self.stage
            .see(api::LISTENER_SET, space, "web", |set| {
                conditions::is_served(set, 0)
            })
            .await?;
        until("endpoints of all Services", SOON, async || {
            let slices = world.api.list(api::ENDPOINT_SLICE, space, "").await?;
            let ready = |slice: &&Value| {
                let endpoints = items(slice, "/endpoints");
                let ready = |e: &Value| e.pointer("/conditions/ready") == Some(&true.into());
                endpoints.iter().any(ready)
            };
            let ready = slices.iter().filter(ready).count();
            ensure!(ready == ROUTES + SETS, "{ready} of {}", ROUTES + SETS);
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    fn listeners(&self, name: &str, hostname: &str, secret: &str) -> Value {
        let listener = manifests::https_listener("site", hostname, secret);
        let space = &self.team.namespace;
        manifests::listener_set(space, name, self.team.parent(), &[listener])
    }

    fn origin(&self, host: &str) -> Result<Origin> {
        let roots = self.team.authority.roots()?;
        Ok(Origin::tls(self.address, host, roots, Version::One))
    }

    /// A route for a new hostname below the wildcard.
    async fn route(&self, number: usize) -> Result<New> {
        let host = format!("n{number}.{}", self.domain);
        let space = &self.team.namespace;
        let name = format!("route-{number}");
        let parent = manifests::to_listener_set("web", None);
        let service = service_name(number);
        let route = manifests::http_route(space, &name, &parent, &host, (&service, 80));
        let origin = self.origin(&host)?;
        let probers = self.probers(&origin, false).await?;
        let started = Instant::now();
        self.team.api.create(api::HTTP_ROUTE, space, &route).await?;
        self.stated(api::HTTP_ROUTE, &name, conditions::is_attached)
            .await?;
        let took = started.elapsed();
        let mut wrong = self.must_answer(&origin, "the route's status").await;
        let asked = finish(probers, &mut wrong).await?;
        Ok(New {
            stated: took,
            asked,
            wrong,
        })
    }

    /// A set with a certificate of its own, and its route. The two statuses come in any order, and each counts.
    async fn set(&self, number: usize) -> Result<New> {
        // Not below the wildcard: until the set is there, nobody has the name.
        let host = format!("site.s{number}.sets-{}", self.domain);
        let space = &self.team.namespace;
        let name = format!("set-{number}");
        let leaf = self.team.authority.leaf(&[&host])?;
        let secret = manifests::tls_secret(space, &name, &leaf.chain, &leaf.key);
        let parent = manifests::to_listener_set(&name, None);
        let service = service_name(ROUTES + number);
        let route = manifests::http_route(space, &name, &parent, &host, (&service, 80));
        let set = self.listeners(&name, &host, &name);
        let origin = self.origin(&host)?;
        let probers = self.probers(&origin, true).await?;
        let started = Instant::now();
        let api = &self.team.api;
        api.create(api::SECRET, space, &secret).await?;
        api.create(api::LISTENER_SET, space, &set).await?;
        api.create(api::HTTP_ROUTE, space, &route).await?;
        let (of_set, of_route) = tokio::join!(
            async {
                self.stated(api::LISTENER_SET, &name, |set| {
                    conditions::of_object(set, "Programmed", "True", None)?;
                    conditions::of_listener(set, "site", "Programmed", "True", None).map(drop)
                })
                .await?;
                Ok::<_, anyhow::Error>(self.must_shake_hands(&origin).await)
            },
            async {
                self.stated(api::HTTP_ROUTE, &name, conditions::is_attached)
                    .await?;
                Ok::<_, anyhow::Error>(self.must_answer(&origin, "the route's status").await)
            }
        );
        let (mut wrong, of_route) = (of_set?, of_route?);
        wrong.extend(of_route);
        let took = started.elapsed();
        wrong.extend(self.must_answer(&origin, "both statuses").await);
        let asked = finish(probers, &mut wrong).await?;
        Ok(New {
            stated: took,
            asked,
            wrong,
        })
    }

    /// Looks at an object until its status says so.
    async fn stated(
        &self,
        kind: Kind,
        name: &str,
        says: impl Fn(&Value) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            let object = self.team.get(kind, name).await?;
            match says(&object) {
                Ok(()) => return Ok(()),
                Err(why) if started.elapsed() > SOON => bail!("{name}: {why:#}"),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Asks each proxy, and through the Gateway's address, all at the same time. Gives what was not answered.
    async fn must_answer(&self, origin: &Origin, after: &str) -> Vec<String> {
        let direct = self
            .doors
            .iter()
            .map(|door| async move { (door.pod.as_str(), origin.at(door.address).ask().await) });
        let through = (0..THROUGH).map(|_| async { ("the Gateway", origin.ask().await) });
        let (direct, through) = tokio::join!(join_all(direct), join_all(through));
        let all = direct.into_iter().chain(through);
        all.filter_map(|(whom, got)| {
            let answered = got.and_then(|got| got.answer());
            let why = answered.err()?;
            Some(format!("{} at {whom} after {after}: {why:?}", origin.host))
        })
        .collect()
    }

    /// Each proxy shows the certificate. Gives who does not.
    async fn must_shake_hands(&self, origin: &Origin) -> Vec<String> {
        let all = self.doors.iter().map(|door| async move {
            let why = origin.at(door.address).open().await.err()?;
            Some(format!(
                "{} at {} after the set's Programmed: {why:?}",
                origin.host, door.pod
            ))
        });
        join_all(all).await.into_iter().flatten().collect()
    }

    /// Begins to ask each proxy for a name that is not there yet; each has asked once when this returns.
    async fn probers(&self, origin: &Origin, closed: bool) -> Result<Vec<Prober>> {
        let mut probers = Vec::new();
        for door in &self.doors {
            probers.push(Prober::start(origin.at(door.address), &door.pod, closed).await?);
        }
        Ok(probers)
    }
}

fn service_name(number: usize) -> String {
    format!("web-{number}")
}

/// Asks one proxy for a name, over and over, on new connections.
struct Prober {
    stop: watch::Sender<bool>,
    running: JoinHandle<(usize, Vec<String>)>,
}

impl Prober {
    async fn start(origin: Origin, pod: &str, closed: bool) -> Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let (asked, first) = tokio::sync::oneshot::channel();
        let pod: Arc<str> = pod.into();
        let running = tokio::spawn(async move {
            let (mut served, mut count, mut wrong) = (false, 0, Vec::new());
            let mut asked = Some(asked);
            loop {
                let got = origin.ask().await;
                count += 1;
                match &got {
                    Ok(got) if got.status == 200 => served = true,
                    Ok(got) if got.status == 404 && !served => {}
                    // There is nobody for the name yet.
                    Err(Failure::Closed | Failure::Reset) if closed && !served => {}
                    other => wrong.push(format!(
                        "{} at {pod}, request {count}, {}: {other:?}",
                        origin.host,
                        if served {
                            "after the first 200"
                        } else {
                            "on its way in"
                        }
                    )),
                }
                if let Some(asked) = asked.take() {
                    let _ = asked.send(());
                }
                if tokio::time::timeout(ASK, stopped.changed()).await.is_ok() {
                    return (count, wrong);
                }
            }
        });
        first.await.map_err(|_| anyhow!("a prober ended"))?;
        Ok(Self { stop, running })
    }
}

/// Ends probers a little later, adds what they saw wrong, and gives how often they asked.
async fn finish(probers: Vec<Prober>, wrong: &mut Vec<String>) -> Result<usize> {
    tokio::time::sleep(ASK * 10).await;
    let mut asked = 0;
    for prober in probers {
        prober.stop.send_replace(true);
        let (count, seen) = prober.running.await?;
        asked += count;
        wrong.extend(seen);
    }
    Ok(asked)
}
