//! Certificates by cert-manager: its real controller, and who owns the Certificates.

mod matrix;
mod moves;
mod owners;
mod solver;
mod stack;
mod twenty;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::acme::ISSUED;
use crate::api::{self, text};
use crate::ca::{Ca, Troubles};
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::openssl::Shown;
use crate::runner::Verdict;
use crate::tools::Done;
use crate::wait::{LATER, until};
use crate::world::{Stage, Team};
use stack::Stack;

/// Annotations of cert-manager.
const ISSUER: &str = "cert-manager.io/issuer";
const CLUSTER_ISSUER: &str = "cert-manager.io/cluster-issuer";

/// How long nothing may be written at rest, for each of the settings: longer than a status is held back, so that two
/// who fight are seen. (`quiet` watches all else for a minute.)
const REST: Duration = Duration::from_secs(12);
/// The same where it was asked for.
const LONG_REST: Duration = Duration::from_mins(1);

/// The main rows of issuer precedence, ACME by a route of cert-manager's own, moves from one engine to the
/// other and back, and both settings of who owns Certificates, with cert-manager's own support for
/// ListenerSets off and on.
pub(super) async fn cert_manager_issues_what_sets_ask_for(stage: &Stage) -> Result<Verdict> {
    with_cert_manager(stage, async |scene| {
        let mut notes = scene.precedence().await?;
        notes.push(scene.by_acme().await?);
        notes.push(scene.of_another().await?);
        notes.extend(scene.moves().await?);
        notes.extend(scene.owners(REST).await?);
        Ok(notes)
    })
    .await
}

/// Nothing is written over a minute of rest, whoever owns the Certificates.
pub(super) async fn nothing_is_written_at_rest(stage: &Stage) -> Result<Verdict> {
    with_cert_manager(stage, async |scene| {
        scene.apply("rests", &[(ISSUER, "own")]).await?;
        scene.served("rests", None).await?;
        scene.owners(LONG_REST).await
    })
    .await
}

/// Twenty hostnames, one after another: from `kubectl apply` to a served certificate.
pub(super) async fn twenty_certificates(stage: &Stage) -> Result<Verdict> {
    with_cert_manager(stage, async |scene| scene.twenty().await).await
}

/// Has a cert-manager in the cluster, and takes it away again.
async fn with_cert_manager(
    stage: &Stage,
    run: impl AsyncFnOnce(&Scene<'_>) -> Result<Vec<String>>,
) -> Result<Verdict> {
    let ca = Ca::start(stage, "ca", Troubles::default()).await?;
    let stack = Stack::start(stage, &ca).await?;
    let result = match Scene::new(stage, &ca, &stack).await {
        Ok(scene) => run(&scene).await,
        Err(error) => Err(error),
    };
    // Whatever came of it, scenarios after this one know nothing of cert-manager.
    let released = stage.world.install(&[]).await.and_then(Done::must);
    stack.remove().await?;
    released?;
    stage.world.all_ready().await?;
    result.map(Verdict::Passed)
}

/// Gateway, team and issuers.
struct Scene<'a> {
    stage: &'a Stage,
    team: Team,
    ca: &'a Ca,
    stack: &'a Stack<'a>,
}

impl<'a> Scene<'a> {
    /// A Gateway that names the cluster's issuer, and a team with an issuer of its own.
    async fn new(stage: &'a Stage, ca: &'a Ca, stack: &'a Stack<'a>) -> Result<Self> {
        let gateway = stage.gateway().await?;
        let team = stage.team("a", &gateway).await?;
        stage.backend(&team, &[]).await?;
        let annotations = json!({"metadata": {"annotations": {CLUSTER_ISSUER: stack.issuer()}}});
        stage
            .world
            .api
            .patch(api::GATEWAY, &gateway.0, &gateway.1, &annotations)
            .await?;
        let own = json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Issuer",
            "metadata": {"name": "own", "namespace": team.namespace},
            "spec": {"selfSigned": {}},
        });
        stage.world.kubectl.apply(&[own]).await?.must()?;
        Ok(Self {
            stage,
            team,
            ca,
            stack,
        })
    }

    /// A set with one terminated hostname on port 443, with these annotations, and its route.
    async fn apply(&self, name: &str, annotations: &[(&str, &str)]) -> Result<()> {
        let space = &self.team.namespace;
        let hostname = hostname(name);
        let secret = secret(name);
        let listener = manifests::listener("site", &hostname, Mode::Terminate(&secret));
        let set = manifests::listener_set(space, name, self.team.parent(), &[listener]);
        let parent = manifests::to_listener_set(name, Some("site"));
        let objects = [
            manifests::annotated(set, annotations),
            manifests::tls_route(space, name, &parent, &hostname, ("web", 80)),
        ];
        self.team.kubectl.apply(&objects).await?.must().map(drop)
    }

    /// Waits until the Certificate of a set is by this issuer.
    async fn certificate(&self, name: &str, issuer: (&str, &str)) -> Result<Value> {
        self.stage
            .see(
                api::CERTIFICATE,
                &self.team.namespace,
                &secret(name),
                |certificate| {
                    let by = (
                        text(certificate, "/spec/issuerRef/kind"),
                        text(certificate, "/spec/issuerRef/name"),
                    );
                    ensure!(by == issuer, "its issuer is {by:?}, not {issuer:?}");
                    ensure!(
                        certificate["spec"]["dnsNames"] == json!([hostname(name)]),
                        "its names are {}",
                        certificate["spec"]["dnsNames"]
                    );
                    Ok(())
                },
            )
            .await
    }

    /// Waits until what the Secret has is served, and is not what it was before. Gives the certificate.
    async fn served(&self, name: &str, before: Option<&str>) -> Result<String> {
        let world = &self.stage.world;
        let (namespace, gateway) = self.team.parent();
        let at = world.address(namespace, gateway, 443).await?;
        let hostname = hostname(name);
        until(&format!("{hostname} to be served"), LATER, async || {
            let secret = world
                .api
                .must_get(api::SECRET, &self.team.namespace, &secret(name))
                .await?;
            let pem = api::data(&secret, "tls.crt")?;
            ensure!(
                !pem.is_empty() && Some(pem.as_str()) != before,
                "no new one"
            );
            Shown::of(at, &["-servername", &hostname])
                .await?
                .shows(&pem)?;
            Ok::<_, anyhow::Error>(pem)
        })
        .await
    }

    async fn stated(&self, name: &str, status: &str, reason: Option<&str>) -> Result<String> {
        let check = |set: &Value| conditions::of_listener(set, "site", ISSUED, status, reason);
        let set = self
            .stage
            .see(api::LISTENER_SET, &self.team.namespace, name, |set| {
                check(set).map(drop)
            })
            .await?;
        check(&set)
    }

    async fn no_certificate(&self, name: &str) -> Result<()> {
        let certificate = self
            .stage
            .world
            .api
            .get(api::CERTIFICATE, &self.team.namespace, &secret(name))
            .await?;
        ensure!(certificate.is_none(), "there is a Certificate for {name}");
        Ok(())
    }
}

fn hostname(name: &str) -> String {
    format!("{name}.cert-manager.test")
}

fn secret(name: &str) -> String {
    format!("{name}-tls")
}
