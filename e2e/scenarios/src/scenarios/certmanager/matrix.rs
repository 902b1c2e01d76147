//! Which issuer a set's certificate comes from.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{CLUSTER_ISSUER, ISSUER, Scene};
use crate::api::{self, text};

impl Scene<'_> {
    /// The main rows: set, Gateway, both; the Gateway's when the set's goes; another group; contradictions.
    pub(super) async fn precedence(&self) -> Result<Vec<String>> {
        let cluster = ("ClusterIssuer", self.stack.issuer());
        self.apply("inherits", &[]).await?;
        self.apply("changes", &[(ISSUER, "own")]).await?;
        self.apply(
            "two",
            &[(ISSUER, "own"), (CLUSTER_ISSUER, self.stack.issuer())],
        )
        .await?;
        self.apply(
            "engines",
            &[(ISSUER, "own"), ("vestibule.dev/acme-issuer", "other")],
        )
        .await?;
        let foreign = [
            (ISSUER, "vault"),
            ("cert-manager.io/issuer-kind", "Vault"),
            ("cert-manager.io/issuer-group", "example.com"),
        ];
        self.apply("group", &foreign).await?;

        let certificate = self.certificate("inherits", cluster).await?;
        // A controller's reference would be cert-manager's own mark: it would take the object for its own.
        for owner in api::items(&certificate, "/metadata/ownerReferences") {
            ensure!(
                owner["controller"] != json!(true),
                "the set is a controller of the Certificate"
            );
        }
        self.served("inherits", None).await?;
        self.stated("inherits", "True", None).await?;
        self.certificate("changes", ("Issuer", "own")).await?;
        let selfsigned = self.served("changes", None).await?;
        self.stated("changes", "True", None).await?;

        let mut notes = Vec::new();
        for name in ["two", "engines"] {
            let message = self.stated(name, "False", None).await?;
            self.no_certificate(name).await?;
            notes.push(format!("contradiction ({name}): {message}"));
        }
        let certificate = self.certificate("group", ("Vault", "vault")).await?;
        ensure!(
            text(&certificate, "/spec/issuerRef/group") == "example.com",
            "the group of another issuer was lost"
        );

        // Without its own, the set has the Gateway's: issued anew, the old one serves until then.
        let change = json!({"metadata": {"annotations": {ISSUER: null}}});
        let space = &self.team.namespace;
        self.team
            .api
            .patch(api::LISTENER_SET, space, "changes", &change)
            .await?;
        self.certificate("changes", cluster).await?;
        self.served("changes", Some(&selfsigned)).await?;
        self.stated("changes", "True", None).await?;
        notes.push("set, Gateway, both, another group, fallback: as they should be".into());
        Ok(notes)
    }
}
