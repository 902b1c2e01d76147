//! Parts of a hostname, by path, of two teams.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::conditions;
use crate::manifests;
use crate::requests::{Got, Origin, Version};
use crate::runner::Verdict;
use crate::scenarios::admission::{let_in, passing_set, without_admission};
use crate::wait::{SOON, until};
use crate::world::{CLASS, Stage, Team};

pub(super) const HOST: &str = "www.paths.test";
/// The reason of a route that reaches outside of its paths.
const NOT_OWNED: &str = "HostnameNotOwned";

/// A holds a hostname, and B has `/api` of it by a grant. Each team's route serves its part. What of B's reaches
/// outside is refused at admission; without admission its status says so, and it serves nothing. What A has inside of
/// `/api` does not affect B, and when B's route goes, A serves that part.
pub(in super::super) async fn a_part_of_a_hostname_is_another_teams(
    stage: &Stage,
) -> Result<Verdict> {
    let scene = Scene::open(stage).await?;
    let (world, a, b) = (&stage.world, &scene.a, &scene.b);
    scene
        .share(&json!({"sharedPaths": [{"hostname": HOST, "paths": ["/api"]}]}))
        .await?;

    let rest = path("PathPrefix", "/");
    scene.apply(a, "rest", &rest).await?;
    scene.answered("/api", a).await?;
    // B's own listener for the name is none of what is shared.
    let message = b
        .kubectl
        .apply(&[passing_set(b, "web", HOST)])
        .await?
        .must_fail()?;
    ensure!(message.contains(HOST), "another reason: {message}");
    scene
        .apply(b, "api", &path("PathPrefix", "/api/v1"))
        .await?;
    scene.accepted(b, "api").await?;
    scene.answered("/api/v1", b).await?;
    scene.divided("/api/v1").await?;
    scene.answered("/api/v2", a).await?;

    let outside = [
        ("root", path("PathPrefix", "/")),
        ("beside", path("PathPrefix", "/apix")),
        ("exact", path("Exact", "/admin")),
        ("regex", path("RegularExpression", "/api/.*")),
    ];
    let mut notes = Vec::new();
    for (name, of) in &outside {
        let route = [attached(b, name, of)];
        let message = b.kubectl.apply(&route).await?.must_fail()?;
        ensure!(message.contains("/api"), "another reason: {message}");
        ensure!(
            !message.contains(&a.namespace),
            "it names the holder: {message}"
        );
        let verdict = message.rsplit("admission webhook").next();
        notes.push(verdict.unwrap_or_default().trim().replace('\n', " "));
    }
    without_admission(world, async {
        for (name, of) in &outside {
            let_in(b, &attached(b, name, of)).await?;
        }
        for (name, _) in &outside {
            let status = scene.refused(name).await?;
            ensure!(
                status.contains("/api"),
                "it does not say what is shared: {status}"
            );
        }
        scene.divided("/api/v1").await
    })
    .await?;

    // B widens its part to all that it has. Nothing that A has inside reaches it.
    for (name, of) in [
        ("exact", path("Exact", "/api/x")),
        ("longer", path("PathPrefix", "/api/x")),
        ("regex", path("RegularExpression", "/api.*")),
    ] {
        scene.apply(a, name, &of).await?;
        scene.accepted(a, name).await?;
    }
    scene.apply(b, "api", &path("PathPrefix", "/api")).await?;
    scene.answered("/api/x", b).await?;
    scene.divided("/api").await?;

    scene.delete(b, "api").await?;
    scene.answered("/api/x", a).await?;
    scene.answered("/api", a).await?;
    Ok(Verdict::Passed(notes))
}

/// Two teams on a Gateway whose plaintext listener is for both of their routes. A is granted the hostname.
pub(super) struct Scene<'a> {
    pub(super) stage: &'a Stage,
    pub(super) a: Team,
    pub(super) b: Team,
    /// Namespace of the Gateway.
    pub(super) platform: String,
    /// The Gateway's, with port 80.
    pub(super) address: SocketAddr,
}

impl<'a> Scene<'a> {
    pub(super) async fn open(stage: &'a Stage) -> Result<Self> {
        let world = &stage.world;
        let gateway = open_gateway(stage).await?;
        let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
        tokio::try_join!(stage.backend(&a, &[HOST]), stage.backend(&b, &[HOST]))?;
        let address = world.address(&gateway.0, &gateway.1, 80).await?;
        let platform = gateway.0;
        let scene = Self {
            stage,
            a,
            b,
            platform,
            address,
        };
        let spec = json!({"hostnames": ["*.paths.test"]});
        scene.grant(&scene.a, &spec).await?;
        Ok(scene)
    }

    /// Grants something to B, in the place of what B was granted before.
    pub(super) async fn share(&self, spec: &Value) -> Result<()> {
        self.grant(&self.b, spec).await
    }

    async fn grant(&self, team: &Team, spec: &Value) -> Result<()> {
        let mut spec = spec.clone();
        spec["namespaces"] = json!({"names": [team.namespace]});
        let grant = manifests::hostname_grant(&self.platform, &team.namespace, &spec);
        self.stage.world.kubectl.apply(&[grant]).await?.must()?;
        Ok(())
    }

    pub(super) async fn apply(&self, team: &Team, name: &str, of: &Value) -> Result<()> {
        let route = [attached(team, name, of)];
        team.kubectl.apply(&route).await?.must().map(drop)
    }

    pub(super) async fn delete(&self, team: &Team, name: &str) -> Result<()> {
        let name = format!("paths-{name}");
        let api = &self.stage.world.api;
        api.delete(api::HTTP_ROUTE, &team.namespace, &name).await
    }

    /// Who answers for a path now.
    async fn asked(&self, path: &str) -> Result<String> {
        let failed = |failure| anyhow!("{path}: {failure:?}");
        let got = self.got(path).await?;
        Ok(got.answer().map_err(failed)?.namespace)
    }

    /// What comes back for a path now, whatever it is.
    pub(super) async fn got(&self, path: &str) -> Result<Got> {
        let failed = |failure| anyhow!("{path}: {failure:?}");
        let mut open = self.origin().open().await.map_err(failed)?;
        open.ask(path).await.map_err(failed)
    }

    pub(super) fn origin(&self) -> Origin {
        Origin::plain(self.address, HOST, Version::One)
    }

    /// Waits until a team answers for a path.
    pub(super) async fn answered(&self, path: &str, team: &Team) -> Result<()> {
        until("the team's answer", SOON, async || {
            let namespace = self.asked(path).await?;
            ensure!(
                namespace == team.namespace,
                "{path} is answered by {namespace}"
            );
            Ok(())
        })
        .await
    }

    /// Checks that B answers for `part` and below, and A for all else, ten times in a row.
    async fn divided(&self, part: &str) -> Result<()> {
        let [below, beside] = ["/deep", "x"].map(|more| format!("{part}{more}"));
        for _ in 0..10 {
            for (path, team) in [
                (part, &self.b),
                (&below, &self.b),
                ("/", &self.a),
                ("/admin", &self.a),
                (&beside, &self.a),
            ] {
                let namespace = self.asked(path).await?;
                ensure!(
                    namespace == team.namespace,
                    "{path} is answered by {namespace}"
                );
            }
        }
        Ok(())
    }

    pub(super) async fn accepted(&self, team: &Team, name: &str) -> Result<()> {
        let name = format!("paths-{name}");
        self.stage
            .see(api::HTTP_ROUTE, &team.namespace, &name, |route| {
                conditions::of_route(route, "Accepted", "True", None)
            })
            .await
            .map(drop)
    }

    /// Waits until a route of B's says that its namespace does not have the hostname, and returns its status.
    pub(super) async fn refused(&self, name: &str) -> Result<String> {
        let name = format!("paths-{name}");
        let route = self
            .stage
            .see(api::HTTP_ROUTE, &self.b.namespace, &name, |route| {
                conditions::of_route(route, "Accepted", "False", Some(NOT_OWNED)).map(drop)
            })
            .await?;
        Ok(route["status"].to_string())
    }
}

/// A Gateway whose plaintext listener takes routes of this stage's namespaces.
async fn open_gateway(stage: &Stage) -> Result<(String, String)> {
    let namespace = stage.namespace("platform").await?;
    let open = json!({"namespaces": {
        "from": "Selector",
        "selector": {"matchLabels": {"vestibule-e2e": stage.name}},
    }});
    let plain = json!({"name": "plain", "port": 80, "protocol": "HTTP", "allowedRoutes": open});
    let gateway = manifests::gateway(&namespace, "shared", CLASS, &[plain]);
    let gateway = manifests::open_to(gateway, &stage.name);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    stage.gateway_served(&namespace, "shared").await?;
    Ok((namespace, "shared".to_owned()))
}

pub(super) fn path(kind: &str, value: &str) -> Value {
    json!({"type": kind, "value": value})
}

/// A team's HTTPRoute for one path of the hostname on the Gateway's own listener.
pub(super) fn attached(team: &Team, name: &str, path: &Value) -> Value {
    let (namespace, gateway) = team.parent();
    let parent = json!({"namespace": namespace, "name": gateway, "sectionName": "plain"});
    let name = format!("paths-{name}");
    let mut route = manifests::http_route(&team.namespace, &name, &parent, HOST, ("web", 80));
    route["spec"]["rules"][0]["matches"] = json!([{"path": path}]);
    route
}
