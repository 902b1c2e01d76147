//! ACME by cert-manager: its challenge's route passes through our proxies as any other.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{ISSUER, Scene, hostname, secret};
use crate::api;
use crate::client::Target;
use crate::manifests::{self, Mode};
use crate::wait::{LATER, until};

impl Scene<'_> {
    /// A set with listeners on 443 and 80 for a name, and cert-manager's ACME issuer.
    pub(super) async fn by_acme(&self) -> Result<String> {
        let world = &self.stage.world;
        let space = &self.team.namespace;
        let (namespace, gateway) = self.team.parent();
        let at = world.address(namespace, gateway, 443).await?;
        let hostname = hostname("acme");
        self.ca.resolve(&hostname, at.ip()).await?;
        let issuer = json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Issuer",
            "metadata": {"name": "acme", "namespace": space},
            "spec": {"acme": {
                "server": self.ca.directory(),
                "caBundle": base64(self.ca.bundle()),
                "privateKeySecretRef": {"name": "acme-account"},
                "solvers": [{"http01": {"gatewayHTTPRoute": {"serviceType": "ClusterIP"}}}],
            }},
        });
        world.kubectl.apply(&[issuer]).await?.must()?;
        let terminated = manifests::listener("site", &hostname, Mode::Terminate("acme-tls"));
        let plain = json!({"name": "plain", "port": 80, "protocol": "HTTP", "hostname": hostname});
        let set = manifests::listener_set(space, "acme", self.team.parent(), &[terminated, plain]);
        let parent = manifests::to_listener_set("acme", Some("site"));
        let objects = [
            manifests::annotated(set, &[(ISSUER, "acme")]),
            manifests::tls_route(space, "acme", &parent, &hostname, ("web", 80)),
        ];
        let started = std::time::Instant::now();
        self.team.kubectl.apply(&objects).await?.must()?;
        let target = Target::new(at, &hostname, self.ca.roots().await?)?;
        until("cert-manager's ACME certificate", LATER, async || {
            target.ask().await.map_err(|failure| format!("{failure:?}"))
        })
        .await?;
        let took = started.elapsed().as_secs_f64();
        self.stated("acme", "True", None).await?;
        ensure!(
            self.ca.log().await?.asked_by_http(&hostname),
            "the CA did not ask by HTTP"
        );
        Ok(format!(
            "cert-manager's own ACME, its route through our proxies: kubectl apply to served certificate {took:.1} s"
        ))
    }

    /// Another passes a name through on 443, and the team would terminate it on 8443: refused, and no Certificate.
    pub(super) async fn of_another(&self) -> Result<String> {
        let world = &self.stage.world;
        let other = self.stage.team("b", &self.team.gateway).await?;
        let wanted = hostname("wanted");
        let listener = manifests::listener("passed", &wanted, Mode::Passthrough);
        let set = manifests::listener_set(&other.namespace, "web", other.parent(), &[listener]);
        other.kubectl.apply(&[set]).await?.must()?;
        self.stage
            .see(api::LISTENER_SET, &other.namespace, "web", |set| {
                crate::conditions::of_object(set, "Programmed", "True", None).map(drop)
            })
            .await?;
        let space = &self.team.namespace;
        let name = secret("wanted");
        let mut listener = manifests::listener("site", &wanted, Mode::Terminate(&name));
        listener["port"] = json!(8443);
        let set = manifests::listener_set(space, "wanted", self.team.parent(), &[listener]);
        let set = manifests::annotated(set, &[(ISSUER, "own")]);
        let message = self.team.kubectl.apply(&[set]).await?.must_fail()?;
        ensure!(message.contains(&wanted), "another reason: {message}");
        ensure!(
            !message.contains(&other.namespace),
            "it names another tenant: {message}"
        );
        self.no_certificate("wanted").await?;
        let issued = world.api.get(api::SECRET, space, &name).await?;
        ensure!(issued.is_none(), "there is a Secret");
        let message = message.trim().replace('\n', " ");
        Ok(format!(
            "another serves it on 443, by cert-manager: {message}"
        ))
    }
}

fn base64(text: &str) -> String {
    crate::encoding::base64(text.as_bytes())
}
