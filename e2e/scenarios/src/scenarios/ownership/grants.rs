//! What a platform grants, to whom, and what becomes of what it does not.

use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::ca::{Ca, Troubles};
use crate::client::Failure;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::scenarios::acme::{BY, ISSUED};
use crate::scenarios::admission::passing_set;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team};

/// What one team has, and what the other has.
const OF_A: &str = "shop.a.grants.test";
const OF_B: &str = "shop.b.grants.test";
/// Reasons of listeners.
const NOT_OWNED: &str = "HostnameNotOwned";
const OVER: &str = "QuotaExceeded";

/// Without grants every free name is anybody's. With the first grant only what is granted is served: what was
/// served before closes, new ones are refused, and no certificate is asked for. Grants go, are narrowed and
/// come back, each within seconds.
pub(in super::super) async fn a_hostname_is_served_only_where_it_is_granted(
    stage: &Stage,
) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let ca = tokio::try_join!(
        Ca::start(stage, "ca", Troubles::default()),
        stage.backend(&a, &[OF_A, "deep.shop.a.grants.test"]),
        stage.backend(&b, &[OF_B]),
    )?
    .0;
    let scene = Scene {
        stage,
        a: &a,
        b: &b,
        ca: &ca,
    };
    let mut notes = Vec::new();
    scene.by_default(&mut notes).await?;
    scene.refused(&mut notes).await?;
    scene.certificates(&mut notes).await?;
    scene.withdrawn(&mut notes).await?;
    Ok(Verdict::Passed(notes))
}

/// The error of a connection that should have been served.
#[expect(clippy::needless_pass_by_value, reason = "what is passed to map_err")]
fn failed(failure: Failure) -> anyhow::Error {
    anyhow!("{failure:?}")
}

struct Scene<'a> {
    stage: &'a Stage,
    a: &'a Team,
    b: &'a Team,
    ca: &'a Ca,
}

impl Scene<'_> {
    /// Both serve while there is no grant. With one for A, B's name closes and says why.
    async fn by_default(&self, notes: &mut Vec<String>) -> Result<()> {
        let world = &self.stage.world;
        for (team, hostname) in [(self.a, OF_A), (self.b, OF_B)] {
            team.kubectl
                .apply(&site(team, "web", hostname))
                .await?
                .must()?;
        }
        let (of_a, of_b) = (
            self.a.target(world, OF_A).await?,
            self.b.target(world, OF_B).await?,
        );
        self.a.answers(&of_a).await?;
        self.b.answers(&of_b).await?;

        let started = Instant::now();
        self.grant(self.a, json!({"hostnames": ["*.a.grants.test"]}))
            .await?;
        of_b.closes().await?;
        notes.push(format!(
            "first grant, for another: closed after {} ms",
            started.elapsed().as_millis()
        ));
        let message = self.says(self.b, "web", "site", NOT_OWNED).await?;
        notes.push(format!("status: {message}"));
        self.a.answers(&of_a).await?;

        let started = Instant::now();
        self.grant(self.b, json!({"hostnames": [OF_B]})).await?;
        self.b.answers(&of_b).await?;
        notes.push(format!(
            "granted: served after {} ms",
            started.elapsed().as_millis()
        ));
        self.served(self.b, "web").await
    }

    /// What is not granted is refused at once: another's subtree, a wildcard above one's own, no hostname at
    /// all, another port, one listener too many. What is granted goes.
    async fn refused(&self, notes: &mut Vec<String>) -> Result<()> {
        let grant = json!({"hostnames": [OF_B, "*.more.b.grants.test"], "ports": [443], "limits": {"listeners": 2}});
        self.grant(self.b, grant).await?;
        let mut everything = passing_set(self.b, "x", OF_B);
        if let Some(listener) = everything["spec"]["listeners"][0].as_object_mut() {
            listener.remove("hostname");
        }
        let mut elsewhere = passing_set(self.b, "x", "x.more.b.grants.test");
        elsewhere["spec"]["listeners"][0]["port"] = json!(8443);
        for object in [
            passing_set(self.b, "x", "x.a.grants.test"),
            passing_set(self.b, "x", "*.b.grants.test"),
            passing_set(self.b, "x", "more.b.grants.test"),
            everything,
            elsewhere,
        ] {
            // The webhook hears of grants by a watch of its own.
            let message = until("the refusal", SOON, async || {
                self.b
                    .kubectl
                    .apply(std::slice::from_ref(&object))
                    .await?
                    .must_fail()
            })
            .await?;
            ensure!(
                message.contains("spec.listeners[0]") && message.contains(&self.b.gateway.1),
                "it does not say where, or not on which Gateway: {message}"
            );
            self.names_nobody(&message)?;
            notes.push(message.trim().replace('\n', " "));
        }
        let more = passing_set(self.b, "more", "x.more.b.grants.test");
        self.b.kubectl.apply(&[more]).await?.must()?;
        self.served_without_routes(self.b, "more").await?;
        let over = passing_set(self.b, "over", "y.more.b.grants.test");
        let message = until("the refusal of one too many", SOON, async || {
            self.b
                .kubectl
                .apply(std::slice::from_ref(&over))
                .await?
                .must_fail()
        })
        .await?;
        notes.push(message.trim().replace('\n', " "));
        // A smaller limit than what is there: what came last is over it.
        self.grant(
            self.b,
            json!({"hostnames": ["*"], "limits": {"listeners": 1}}),
        )
        .await?;
        self.says(self.b, "more", "site", OVER).await?;
        self.b
            .answers(&self.b.target(&self.stage.world, OF_B).await?)
            .await?;
        self.b
            .api
            .delete(api::LISTENER_SET, &self.b.namespace, "more")
            .await
    }

    /// No certificate is asked for where the issuer, or the name, is not granted; when both are, it is.
    async fn certificates(&self, notes: &mut Vec<String>) -> Result<()> {
        let space = &self.b.namespace;
        let world = &self.stage.world;
        let hostname = "tls.b.grants.test";
        let (platform, gateway) = self.b.parent();
        let address = world.address(platform, gateway, 443).await?;
        self.ca.resolve(hostname, address.ip()).await?;
        let listener = manifests::listener("site", hostname, Mode::Terminate("tls"));
        let set = manifests::listener_set(space, "tls", self.b.parent(), &[listener]);
        let set = manifests::annotated(set, &[(BY, "ca")]);
        let stated = async |status: &str, reason: Option<&str>| {
            self.stage
                .see(api::LISTENER_SET, space, "tls", |set| {
                    conditions::of_listener(set, "site", ISSUED, status, reason).map(drop)
                })
                .await
        };
        self.grant(self.b, json!({"hostnames": ["*"]})).await?;
        // There is no such issuer yet, so nothing can be asked for.
        until("the set to be let in", SOON, async || {
            let set = std::slice::from_ref(&set);
            self.b.kubectl.apply(set).await?.must().map(drop)
        })
        .await?;
        self.grant(self.b, json!({"hostnames": ["*"], "issuers": []}))
            .await?;
        stated("False", Some("IssuerNotAllowed")).await?;
        let issuer =
            manifests::acme_issuer(space, "ca", &self.ca.directory(), self.ca.bundle(), &[]);
        self.b.kubectl.apply(&[issuer]).await?.must()?;
        self.stage
            .see(api::ACME_ISSUER, space, "ca", |issuer| {
                // Nothing that may be issued needs it yet.
                conditions::of_object(issuer, "Ready", "Unknown", Some("NotRegistered")).map(drop)
            })
            .await?;
        stated("False", Some("IssuerNotAllowed")).await?;
        self.grant(self.b, json!({"hostnames": [OF_B]})).await?;
        self.says(self.b, "tls", "site", NOT_OWNED).await?;
        let orders = self.ca.log().await?.orders();
        ensure!(orders == 0, "{orders} orders for what is not granted");
        self.grant(self.b, json!({"hostnames": [OF_B, hostname]}))
            .await?;
        stated("True", None).await?;
        let orders = self.ca.log().await?.orders();
        ensure!(orders == 1, "{orders} orders for what is granted");
        notes.push("no order while issuer or hostname were not granted, one when they were".into());
        Ok(())
    }

    /// A's grant goes and comes back; it is narrowed.
    async fn withdrawn(&self, notes: &mut Vec<String>) -> Result<()> {
        let world = &self.stage.world;
        let of_a = self.a.target(world, OF_A).await?;
        self.a.answers(&of_a).await?;
        let mut tunnel = of_a.open().await.map_err(failed)?;
        tunnel.ask().await.map_err(failed)?;
        let started = Instant::now();
        let (platform, _) = &self.a.gateway;
        world
            .api
            .delete(api::HOSTNAME_GRANT, platform, &self.a.namespace)
            .await?;
        of_a.closes().await?;
        // A tunnel that was open before ends as well, though its client sends nothing.
        let ended = tokio::time::timeout(SOON, tunnel.ended()).await;
        ensure!(ended.is_ok(), "a tunnel outlived the grant");
        notes.push(format!(
            "grant removed: closed after {} ms",
            started.elapsed().as_millis()
        ));
        self.says(self.a, "web", "site", NOT_OWNED).await?;
        self.grant(self.a, json!({"hostnames": ["*.a.grants.test"]}))
            .await?;
        self.a.answers(&of_a).await?;
        let started = Instant::now();
        self.grant(self.a, json!({"hostnames": ["*.shop.a.grants.test"]}))
            .await?;
        of_a.closes().await?;
        notes.push(format!(
            "grant narrowed: closed after {} ms",
            started.elapsed().as_millis()
        ));
        self.says(self.a, "web", "site", NOT_OWNED).await?;
        // B meanwhile.
        self.b.answers(&self.b.target(world, OF_B).await?).await
    }

    /// Sets what a team is granted.
    async fn grant(&self, team: &Team, mut spec: Value) -> Result<()> {
        let (platform, gateway) = &team.gateway;
        spec["gateways"] = json!([gateway]);
        spec["namespaces"] = json!({"names": [team.namespace]});
        let grant = manifests::hostname_grant(platform, &team.namespace, &spec);
        self.stage
            .world
            .kubectl
            .apply(&[grant])
            .await?
            .must()
            .map(drop)
    }

    /// Waits until a listener says that it is not served for this reason. Gives the message.
    async fn says(&self, team: &Team, set: &str, listener: &str, reason: &str) -> Result<String> {
        let check = |set: &Value| {
            conditions::of_listener(set, listener, "Programmed", "False", None)?;
            conditions::of_listener(set, listener, "Accepted", "False", Some(reason))
        };
        let object = self
            .stage
            .see(api::LISTENER_SET, &team.namespace, set, |set| {
                check(set).map(drop)
            })
            .await?;
        let message = check(&object)?;
        ensure!(
            message.contains(&team.gateway.1),
            "it does not name the Gateway: {message}"
        );
        let other = if team.namespace == self.a.namespace {
            self.b
        } else {
            self.a
        };
        ensure!(
            !message.contains(&other.namespace),
            "it names another tenant: {message}"
        );
        Ok(message)
    }

    /// What B is told has nothing of A.
    fn names_nobody(&self, message: &str) -> Result<()> {
        for secret in [self.a.namespace.as_str(), OF_A] {
            ensure!(!message.contains(secret), "it names {secret}: {message}");
        }
        Ok(())
    }

    async fn served(&self, team: &Team, set: &str) -> Result<()> {
        self.programmed(team, set, 1).await
    }

    async fn served_without_routes(&self, team: &Team, set: &str) -> Result<()> {
        self.programmed(team, set, 0).await
    }

    async fn programmed(&self, team: &Team, set: &str, routes: u64) -> Result<()> {
        let check = |object: &Value| conditions::is_served(object, routes);
        self.stage
            .see(api::LISTENER_SET, &team.namespace, set, check)
            .await
            .map(drop)
    }
}

/// A set with one hostname that is passed through, and its route.
pub(super) fn site(team: &Team, name: &str, hostname: &str) -> Vec<Value> {
    let parent = manifests::to_listener_set(name, None);
    vec![
        passing_set(team, name, hostname),
        manifests::tls_route(&team.namespace, name, &parent, hostname, ("web", 443)),
    ]
}
