//! From cert-manager to the built-in engine, and back.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::json;

use super::{CLUSTER_ISSUER, Scene, hostname, secret};
use crate::api;
use crate::client::Target;
use crate::load::{Hold, Load, describe};
use crate::manifests;
use crate::scenarios::acme::{BY, served_by_all};
use crate::wait::{LATER, until};
use crate::world::PROXY;

/// Name of the set, of what is made for it, and of the built-in engine's issuer.
const NAME: &str = "moves";
/// New connections a second meanwhile, and connections that stay open.
const RATE: u32 = 20;
const OPEN: usize = 10;

impl Scene<'_> {
    /// Both moves, as the guide says them. Clients who trust both issuers meet no gap, and what is open stays
    /// open.
    pub(super) async fn moves(&self) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let (namespace, gateway) = self.team.parent();
        let at = world.address(namespace, gateway, 443).await?;
        let name = hostname(NAME);
        self.ca.resolve(&name, at.ip()).await?;
        let issuer = manifests::acme_issuer(
            &self.team.namespace,
            NAME,
            &self.ca.directory(),
            self.ca.bundle(),
            &[],
        );
        self.team.kubectl.apply(&[issuer]).await?.must()?;
        self.apply(NAME, &[(CLUSTER_ISSUER, self.stack.issuer())])
            .await?;

        let (theirs, ours) = (self.stack.roots()?, self.ca.roots().await?);
        let mut both = theirs.clone();
        both.extend(ours.roots.iter().cloned());
        let theirs = Target::new(at, &name, theirs)?;
        let ours = Target::new(at, &name, ours)?;
        let both = Target::new(at, &name, both)?;
        let proxies = world.pods(PROXY).await?.len();
        served_by_all(&theirs, proxies).await?;

        let hold = Hold::open(&both, OPEN).await;
        let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
        let load = Load::start(both, RATE);
        let moved = self.there_and_back(&theirs, &ours, proxies).await;
        let (counts, ends) = (load.stop().await?, hold.finish().await?);
        let [there, back] = moved?;
        ensure!(counts.failed.is_empty(), "while it moved: {counts}");
        ensure!(
            ends.iter().all(|end| end.failure.is_none()),
            "connections that were open: {}",
            describe(&ends)
        );
        Ok(vec![
            format!(
                "cert-manager to built-in: the new certificate by all proxies after {:.1} s; back: after {:.1} s",
                there.as_secs_f64(),
                back.as_secs_f64()
            ),
            format!("meanwhile: {counts}; held: {}", describe(&ends)),
        ])
    }

    async fn there_and_back(
        &self,
        theirs: &Target,
        ours: &Target,
        proxies: usize,
    ) -> Result<[Duration; 2]> {
        let world = &self.stage.world;
        let space = &self.team.namespace;
        let secret = secret(NAME);
        let started = Instant::now();
        self.annotate(&[(CLUSTER_ISSUER, None), (BY, Some(NAME))])
            .await?;
        until("the Certificate to go", LATER, async || {
            let left = world.api.get(api::CERTIFICATE, space, &secret).await?;
            ensure!(left.is_none(), "it is there");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        self.stated(NAME, "False", Some("SecretNotOurs")).await?;
        ensure!(theirs.ask().await.is_ok(), "the old one serves no more");
        for words in [
            [
                "annotate",
                "secret",
                &secret,
                "cert-manager.io/certificate-name-",
            ]
            .as_slice(),
            &[
                "label",
                "secret",
                &secret,
                "--overwrite",
                "app.kubernetes.io/managed-by=vestibule",
                "vestibule.dev/acme=true",
            ],
        ] {
            let words = [words, &["-n", space.as_str()]].concat();
            self.team.kubectl.run(&words).await?.must()?;
        }
        served_by_all(ours, proxies).await?;
        self.stated(NAME, "True", None).await?;
        let there = started.elapsed();

        let started = Instant::now();
        self.annotate(&[(CLUSTER_ISSUER, Some(self.stack.issuer())), (BY, None)])
            .await?;
        served_by_all(theirs, proxies).await?;
        self.stated(NAME, "True", None).await?;
        Ok([there, started.elapsed()])
    }

    async fn annotate(&self, annotations: &[(&str, Option<&str>)]) -> Result<()> {
        let mut change = json!({});
        for (key, value) in annotations {
            change["metadata"]["annotations"][*key] = json!(value);
        }
        let space = &self.team.namespace;
        self.team
            .api
            .patch(api::LISTENER_SET, space, NAME, &change)
            .await
            .map(drop)
    }
}
