//! What the edits of one lane are made to: a team with two backends, a set and routes, and the clients that ask for
//! them all the while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api::{self, Kind, name};
use crate::app;
use crate::client::Target;
use crate::conditions;
use crate::echo::Answer;
use crate::manifests::{self, Mode};
use crate::proxies::{self, Door};
use crate::requests::{Got, Origin, Version};
use crate::traffic::Clients;
use crate::wait::{LATER, until};
use crate::world::{CLASS, Stage, Team, World};

/// Name of the Gateway.
pub(super) const GATEWAY: &str = "shared";
/// The backend that is edited, and the one that is not.
pub(super) const WEB: &str = "web";
pub(super) const STILL: &str = "still";
/// New connections a second of each kind that comes for a lane.
const RATE: u32 = 4;

/// The platform's namespace and Gateway. Its own listener is HTTPS for everything below `own.<stage>.test`, with a
/// certificate of this team.
pub(super) async fn gateway(stage: &Stage) -> Result<(String, String)> {
    let namespace = stage.namespace("platform").await?;
    let gateway = manifests::gateway(&namespace, GATEWAY, CLASS, &[own_listener(stage, false)]);
    let gateway = manifests::open_to(gateway, &stage.name);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    until("an address", LATER, async || {
        stage.world.address(&namespace, GATEWAY, 443).await
    })
    .await?;
    Ok((namespace, GATEWAY.to_owned()))
}

/// The Gateway's own listener: narrow, or as wide as it was made.
pub(super) fn own_listener(stage: &Stage, narrow: bool) -> Value {
    let hostname = if narrow {
        own_host(&stage.name)
    } else {
        format!("*.own.{}.test", stage.name)
    };
    manifests::https_listener("own", &hostname, "own-tls")
}

/// The hostname that is asked for at the Gateway's own listener.
pub(super) fn own_host(stage: &str) -> String {
    format!("shop.own.{stage}.test")
}

/// What the edits of one lane are made to.
pub(super) struct Scene {
    pub(super) world: Arc<World>,
    pub(super) team: Team,
    /// What all hostnames of the lane end in.
    pub(super) domain: String,
    /// Address of the Gateway.
    pub(super) address: SocketAddr,
}

impl Scene {
    /// Makes it, and waits until all of it is served.
    pub(super) async fn new(
        stage: &Stage,
        lane: &str,
        gateway: &(String, String),
        replicas: usize,
    ) -> Result<Self> {
        let team = stage.team(lane, gateway).await?;
        let scene = Self {
            address: stage.world.address(&gateway.0, &gateway.1, 443).await?,
            world: stage.world.clone(),
            domain: format!("{lane}.{}.test", stage.name),
            team,
        };
        let objects = scene.objects(replicas)?;
        scene.world.kubectl.apply(&objects).await?.must()?;
        stage.available(&scene.team.namespace, WEB).await?;
        stage.available(&scene.team.namespace, STILL).await?;
        scene.recorded().await?;
        for host in [scene.host("www"), scene.host("still")] {
            scene.everywhere(&host, |_| Ok(())).await?;
        }
        for host in [scene.passed("www"), scene.passed("still")] {
            scene.passed_everywhere(&host, |_| Ok(())).await?;
        }
        Ok(scene)
    }

    fn objects(&self, replicas: usize) -> Result<Vec<Value>> {
        let space = &self.team.namespace;
        let image = self.world.image("e2e");
        let authority = &self.team.authority;
        let passed = format!("*.tls.{}", self.domain);
        let leaf = authority.leaf(&[&passed, INSIDE])?;
        let site = self.leaf()?;
        let listener = manifests::https_listener("site", &self.host("*"), "site-tls");
        let passing = manifests::listener("passed", &passed, Mode::Passthrough);
        let to = |listener| manifests::to_listener_set("web", Some(listener));
        let mut objects = vec![
            manifests::tls_secret(space, "app-tls", &leaf.chain, &leaf.key),
            manifests::tls_secret(space, "site-tls", &site.chain, &site.key),
            manifests::listener_set(space, "web", self.team.parent(), &[listener, passing]),
        ];
        for (backend, host, replicas) in [(WEB, "www", replicas), (STILL, "still", 1)] {
            objects.extend([
                app::deployment(space, backend, &image, replicas),
                app::service(space, backend, Some(backend)),
                manifests::http_route(space, backend, &to("site"), &self.host(host), (backend, 80)),
                manifests::tls_route(
                    space,
                    backend,
                    &to("passed"),
                    &self.passed(host),
                    (backend, 443),
                ),
            ]);
        }
        Ok(objects)
    }

    /// A certificate for the lane's HTTPS listener.
    pub(super) fn leaf(&self) -> Result<crate::certificate::Leaf> {
        self.team.authority.leaf(&[&self.host("*")])
    }

    /// A hostname of the HTTPS listener.
    pub(super) fn host(&self, label: &str) -> String {
        format!("{label}.{}", self.domain)
    }

    /// A hostname of the listener that passes TLS through.
    pub(super) fn passed(&self, label: &str) -> String {
        format!("{label}.tls.{}", self.domain)
    }

    /// A hostname of the team as an origin at the Gateway's address.
    pub(super) fn origin(&self, host: &str, version: Version) -> Result<Origin> {
        let roots = self.team.authority.roots()?;
        Ok(Origin::tls(self.address, host, roots, version))
    }

    fn target(&self, address: SocketAddr, host: &str) -> Result<Target> {
        Target::new(address, host, self.team.authority.roots()?)
    }

    /// Clients of every kind for what is edited, who hold nothing.
    pub(super) fn clients(&self, pause: Duration) -> Result<Clients> {
        let mut clients = Clients::new();
        self.visit(&mut clients, &self.host("www"), pause)?;
        clients.arrive_passed(&self.target(self.address, &self.passed("www"))?, RATE);
        Ok(clients)
    }

    /// Adds those that hold a connection to the backend that stays. It ends with the proxy that it goes through.
    pub(super) fn hold(&self, clients: &mut Clients) -> Result<()> {
        clients.hold_websocket(&self.origin(&self.host("still"), Version::One)?);
        clients.hold_passed(&self.target(self.address, &self.passed("still"))?);
        Ok(())
    }

    /// Adds clients with requests for a hostname.
    pub(super) fn visit(&self, clients: &mut Clients, host: &str, pause: Duration) -> Result<()> {
        for version in [Version::One, Version::Two] {
            let origin = self.origin(host, version)?;
            clients.arrive(&origin, RATE);
            clients.stay(&origin, pause);
        }
        Ok(())
    }

    /// Each ready proxy.
    pub(super) async fn doors(&self) -> Result<Vec<Door>> {
        proxies::doors(&self.world, self.team.parent(), 443).await
    }

    /// Waits until every ready proxy answers a request for the hostname, and so that the check has nothing to say.
    pub(super) async fn everywhere(
        &self,
        host: &str,
        check: impl Fn(&(Got, Answer)) -> Result<()>,
    ) -> Result<()> {
        let origin = self.origin(host, Version::One)?;
        until(&format!("{host} on every proxy"), LATER, async || {
            for door in self.doors().await? {
                let got = origin.at(door.address).ask().await;
                let got = got.map_err(|failure| anyhow!("{}: {failure:?}", door.pod))?;
                let answer = got.answer();
                let answer = answer.map_err(|failure| anyhow!("{}: {failure:?}", door.pod))?;
                check(&(got, answer))?;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    /// The same of a hostname that is passed through.
    pub(super) async fn passed_everywhere(
        &self,
        host: &str,
        check: impl Fn(&Answer) -> Result<()>,
    ) -> Result<()> {
        until(&format!("{host} on every proxy"), LATER, async || {
            for door in self.doors().await? {
                let answer = self.target(door.address, host)?.ask().await;
                let answer = answer.map_err(|failure| anyhow!("{}: {failure:?}", door.pod))?;
                check(&answer)?;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    /// Waits until the set and the routes say of their present generation that they are served.
    pub(super) async fn recorded(&self) -> Result<()> {
        let space = &self.team.namespace;
        until("the statuses of an edit", LATER, async || {
            let api = &self.world.api;
            let set = api.must_get(api::LISTENER_SET, space, "web").await?;
            conditions::of_object(&set, "Programmed", "True", None)?;
            for kind in [api::HTTP_ROUTE, api::TLS_ROUTE] {
                conditions::is_attached(&api.must_get(kind, space, WEB).await?)?;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    /// Changes an object of the team. An API server that is away is waited for.
    pub(super) async fn patch(&self, kind: Kind, name: &str, change: &Value) -> Result<Value> {
        self.patch_in(kind, &self.team.namespace, name, change)
            .await
    }

    /// The same in any namespace.
    pub(super) async fn patch_in(
        &self,
        kind: Kind,
        space: &str,
        name: &str,
        change: &Value,
    ) -> Result<Value> {
        until("an edit to be taken", LATER, async || {
            self.world.api.patch(kind, space, name, change).await
        })
        .await
    }

    /// Makes or changes an object.
    pub(super) async fn put(&self, kind: Kind, space: &str, object: &Value) -> Result<()> {
        until("an object to be taken", LATER, async || {
            let refused = self.world.api.apply(kind, space, object).await?;
            ensure!(refused.is_none(), "{}: {refused:?}", name(object));
            Ok(())
        })
        .await
    }

    /// Deletes an object; one that is not there is fine.
    pub(super) async fn delete(&self, kind: Kind, space: &str, name: &str) -> Result<()> {
        until("an object to be deleted", LATER, async || {
            self.world.api.delete(kind, space, name).await
        })
        .await
    }

    /// Gives both routes these backends, each with the plain and the TLS port of its Service, and these filters.
    pub(super) async fn routes_lead_to(
        &self,
        backends: &[(&str, [u16; 2], u32)],
        filters: Value,
    ) -> Result<()> {
        let refs = |tls: usize| -> Vec<Value> {
            let reference = |&(name, ports, weight): &(&str, [u16; 2], u32)| json!({"name": name, "port": ports[tls], "weight": weight});
            backends.iter().map(reference).collect()
        };
        let change = json!({"spec": {"rules": [{"backendRefs": refs(0), "filters": filters}]}});
        self.patch(api::HTTP_ROUTE, WEB, &change).await?;
        let change = json!({"spec": {"rules": [{"backendRefs": refs(1)}]}});
        self.patch(api::TLS_ROUTE, WEB, &change).await?;
        Ok(())
    }

    /// Waits until both hostnames are answered so on every proxy.
    pub(super) async fn answered_by(&self, check: impl Fn(&Answer) -> Result<()>) -> Result<()> {
        self.everywhere(&self.host("www"), |(_, answer)| check(answer))
            .await?;
        self.passed_everywhere(&self.passed("www"), check).await
    }
}

/// What the backends are called inside, where a BackendTLSPolicy asks.
pub(super) const INSIDE: &str = "inside.edits.test";
