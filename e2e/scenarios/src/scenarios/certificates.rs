//! Certificates by reference: in whose Secret, with whose leave, there or not, and exchanged while
//! connections go on.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::manifests::{self, Mode};
use crate::openssl::Shown;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team, World};

const GRANTED: &str = "granted.certificates.test";
const NOWHERE: &str = "nowhere.certificates.test";
const LATER: &str = "later.certificates.test";
const SIBLING: &str = "sibling.certificates.test";
/// New connections a second to the sibling, all the while.
const RATE: u32 = 20;

/// A set whose certificates are in another namespace, not there yet, and there: each listener is as its
/// own reference has it, and what comes, goes or is exchanged is served so within seconds, while not one
/// connection of the sibling fails.
pub(super) async fn certificates_follow_their_references(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let vault = stage.namespace("vault").await?;
    stage.backend(&team, &[SIBLING]).await?;
    world
        .kubectl
        .apply(&[vaulted(&team, &vault)?])
        .await?
        .must()?;
    team.kubectl.apply(&objects(&team, &vault)).await?.must()?;
    let references = References {
        stage,
        team: &team,
        vault: &vault,
        address: world.address(&gateway.0, &gateway.1, 443).await?,
    };
    let first = team.authority.leaf(&[SIBLING])?;
    references.put("sibling", &first.chain, &first.key).await?;
    references.see("sibling", "True", None).await?;
    let sibling = team.target(world, SIBLING).await?;
    team.answers(&sibling).await?;

    let hold = Hold::open(&sibling, 4).await;
    let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
    let load = Load::start(sibling.clone(), RATE);
    let result = references.run(&sibling).await;
    let (counts, ends) = (load.stop().await?, hold.finish().await?);
    let mut notes = result?;
    ensure!(counts.failed.is_empty(), "the sibling: {counts}");
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "held connections of the sibling: {}",
        describe(&ends)
    );
    notes.push(format!(
        "the sibling meanwhile: {counts}; held: {}",
        describe(&ends)
    ));

    // A certificate that is gone is not served from memory.
    team.api
        .delete(api::SECRET, &team.namespace, "sibling")
        .await?;
    references
        .see("sibling", "False", Some("InvalidCertificateRef"))
        .await?;
    references.closed(SIBLING).await?;
    Ok(Verdict::Passed(notes))
}

/// The Secret in the vault: a certificate of the team's authority, so that clients need one root.
fn vaulted(team: &Team, vault: &str) -> Result<Value> {
    let leaf = team.authority.leaf(&[GRANTED])?;
    Ok(manifests::tls_secret(vault, "site", &leaf.chain, &leaf.key))
}

fn objects(team: &Team, vault: &str) -> Vec<Value> {
    let space = &team.namespace;
    let in_vault = |name: &str, hostname: &str, secret: &str| {
        let mut listener = manifests::listener(name, hostname, Mode::Terminate(secret));
        listener["tls"]["certificateRefs"][0]["namespace"] = vault.into();
        listener
    };
    let listeners = [
        in_vault("granted", GRANTED, "site"),
        in_vault("nowhere", NOWHERE, "no-such-secret"),
        manifests::listener("later", LATER, Mode::Terminate("later")),
        manifests::listener("sibling", SIBLING, Mode::Terminate("sibling")),
    ];
    let mut objects = vec![manifests::listener_set(
        space,
        "web",
        team.parent(),
        &listeners,
    )];
    for (name, hostname) in [("granted", GRANTED), ("later", LATER), ("sibling", SIBLING)] {
        let parent = manifests::to_listener_set("web", Some(name));
        objects.push(manifests::tls_route(
            space,
            name,
            &parent,
            hostname,
            ("web", 80),
        ));
    }
    objects
}

struct References<'a> {
    stage: &'a Stage,
    team: &'a Team,
    vault: &'a str,
    address: SocketAddr,
}

impl References<'_> {
    async fn run(&self, sibling: &Target) -> Result<Vec<String>> {
        let world: &World = &self.stage.world;
        let (team, vault) = (self.team, self.vault);
        let mut notes = Vec::new();
        // Without leave nobody learns whether there is anything.
        for name in ["granted", "nowhere"] {
            self.see(name, "False", Some("RefNotPermitted")).await?;
        }
        self.see("later", "False", Some("InvalidCertificateRef"))
            .await?;
        for hostname in [GRANTED, NOWHERE, LATER] {
            self.closed(hostname).await?;
        }

        // Leave for the Gateway is none for the set.
        let of_gateway = ("Gateway", team.gateway.0.as_str());
        let of_gateway = manifests::reference_grant(vault, "gateway", of_gateway, "Secret");
        let of_set = ("ListenerSet", team.namespace.as_str());
        let of_set = manifests::reference_grant(vault, "set", of_set, "Secret");
        world.kubectl.apply(&[of_gateway]).await?.must()?;
        self.see("granted", "False", Some("RefNotPermitted"))
            .await?;
        let granted = team.target(world, GRANTED).await?;
        let started = Instant::now();
        world
            .api
            .create(api::REFERENCE_GRANT, vault, &of_set)
            .await?;
        team.answers(&granted).await?;
        notes.push(format!(
            "granted: served after {} ms",
            started.elapsed().as_millis()
        ));
        self.see("granted", "True", None).await?;
        self.see("nowhere", "False", Some("InvalidCertificateRef"))
            .await?;

        // What was missing comes.
        let leaf = team.authority.leaf(&[LATER])?;
        let started = Instant::now();
        self.put("later", &leaf.chain, &leaf.key).await?;
        team.answers(&team.target(world, LATER).await?).await?;
        notes.push(format!(
            "there at last: served after {} ms",
            started.elapsed().as_millis()
        ));
        self.see("later", "True", None).await?;

        // The sibling's is exchanged, under load.
        let next = team.authority.leaf(&[SIBLING])?;
        let started = Instant::now();
        self.put("sibling", &next.chain, &next.key).await?;
        let next = next.certificate()?;
        // Each proxy takes it by itself.
        let mut in_a_row = 0;
        until("the new certificate", SOON, async || {
            let conversation = sibling.open().await.map_err(|f| anyhow!("{f:?}"))?;
            let shown = conversation.certificate().context("no certificate")?;
            conversation.close().await;
            in_a_row = if shown == next { in_a_row + 1 } else { 0 };
            ensure!(in_a_row > 10, "{in_a_row} in a row");
            Ok(())
        })
        .await?;
        notes.push(format!(
            "exchanged: served by all after {} ms",
            started.elapsed().as_millis()
        ));

        // Leave is withdrawn.
        let started = Instant::now();
        world.api.delete(api::REFERENCE_GRANT, vault, "set").await?;
        self.closed(GRANTED).await?;
        notes.push(format!(
            "withdrawn: closed after {} ms",
            started.elapsed().as_millis()
        ));
        self.see("granted", "False", Some("RefNotPermitted"))
            .await?;
        Ok(notes)
    }

    /// Writes one of the team's Secrets.
    async fn put(&self, name: &str, chain: &str, key: &str) -> Result<()> {
        let space = &self.team.namespace;
        let secret = manifests::tls_secret(space, name, chain, key);
        if self.team.api.get(api::SECRET, space, name).await?.is_none() {
            self.team.api.create(api::SECRET, space, &secret).await?;
        } else {
            let change = json!({"stringData": secret["stringData"]});
            self.team
                .api
                .patch(api::SECRET, space, name, &change)
                .await?;
        }
        Ok(())
    }

    /// Waits until a listener's reference is resolved or not; the listener is accepted all the same, and
    /// programmed exactly where it is resolved. The set goes on with those that are.
    async fn see(&self, listener: &str, resolved: &str, why: Option<&str>) -> Result<()> {
        self.stage
            .see(api::LISTENER_SET, &self.team.namespace, "web", |set| {
                conditions::of_object(set, "Accepted", "True", None)?;
                conditions::of_listener(set, listener, "Accepted", "True", None)?;
                conditions::of_listener(set, listener, "ResolvedRefs", resolved, why)?;
                conditions::of_listener(set, listener, "Programmed", resolved, None).map(drop)
            })
            .await
            .map(drop)
            .with_context(|| format!("{listener}, ResolvedRefs={resolved} {why:?}"))
    }

    /// Waits until a hostname is closed, without a certificate.
    async fn closed(&self, hostname: &str) -> Result<()> {
        until(&format!("{hostname} to be closed"), SOON, async || {
            let shown = Shown::of(self.address, &["-servername", hostname]).await?;
            shown.closed_silently()
        })
        .await
    }
}
