//! The owner of the Certificates: a setting decides it, and the two makers do not overwrite each other.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::json;

use super::{ISSUER, Scene, secret};
use crate::api::{self, items};
use crate::conditions;
use crate::scenarios::quiet;

impl Scene<'_> {
    /// At rest nothing is written: with cert-manager's own support off; with it on while we own them; and
    /// with it on while it owns them, which it then makes.
    pub(super) async fn owners(&self, rest: Duration) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let mut notes = vec![self.rest("cert-manager's gate off, ours", rest).await?];

        self.stack.run(true).await?;
        notes.push(self.rest("gate on, ours", rest).await?);

        // A set of which cert-manager was the first to hear: its Certificate stays its own.
        let theirs = ["--set", "certManager.listenerSets=cert-manager"];
        world.install(&theirs).await?.must()?;
        self.apply("theirs", &[(ISSUER, "own")]).await?;
        self.certificate("theirs", ("Issuer", "own")).await?;
        self.served("theirs", None).await?;
        // The operators are new, and the one that leads may be, too.
        let space = &self.team.namespace;
        self.stage
            .see(api::LISTENER_SET, space, "theirs", |set| {
                conditions::is_served(set, 1)
            })
            .await?;
        let object = world
            .api
            .must_get(api::CERTIFICATE, space, &secret("theirs"))
            .await?;
        let controlled = items(&object, "/metadata/ownerReferences")
            .iter()
            .any(|owner| owner["controller"] == json!(true));
        ensure!(controlled, "it is not cert-manager's own Certificate");
        notes.push(self.rest("gate on, cert-manager's", rest).await?);

        // Both want them: we stand back and say what to set. What is there serves.
        world.install(&[]).await?.must()?;
        let message = self
            .stated("theirs", "True", Some("CertificateNotOurs"))
            .await?;
        ensure!(
            message.contains("certManager.listenerSets"),
            "it does not say what to set: {message}"
        );
        notes.push(format!("both at once: {message}"));
        notes.push(self.rest("both at once", rest).await?);
        Ok(notes)
    }

    /// Waits until nothing was written for a while. Who takes over may be seconds late, and hears of it by a
    /// status that is held back for ten; a fight has no end.
    async fn rest(&self, what: &str, rest: Duration) -> Result<String> {
        if self.stage.world.audit_log().await?.is_none() {
            return Ok(format!("{what}: no audit log, so writes are not counted"));
        }
        quiet::at_rest(what, rest, async |since| self.writes(since).await).await?;
        Ok(format!("{what}: 0 writes in {} s", rest.as_secs()))
    }

    /// What we wrote since then, and what cert-manager did.
    async fn writes(&self, since: Timestamp) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let mut writes: Vec<String> = quiet::writes_since(world, since)
            .await?
            .into_keys()
            .collect();
        let theirs = quiet::writes_by(world, since, &[self.stack.account()]).await?;
        // Theirs count where they are about what both could write.
        writes.extend(
            theirs
                .into_keys()
                .filter(|what| what.contains("certificates/")),
        );
        Ok(writes)
    }
}
