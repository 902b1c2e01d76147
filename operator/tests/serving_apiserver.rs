//! Certificates of Vestibule's own servers, kept in a real API server. The clock is the test's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vestibule_internal_ca::CurrentCertificate;
use vestibule_internal_ca::rotation::RotationPolicy;
use vestibule_operator_testing::apiserver::{client, namespace};
use vestibule_test_support::eventually;

/// A release in a namespace of its own, and its replicas.
struct Release {
    client: Client,
    namespace: String,
    clock: Arc<AtomicI64>,
    replicas: Vec<JoinHandle<()>>,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.replicas.iter().for_each(JoinHandle::abort);
    }
}

impl Release {
    async fn new() -> Self {
        let client = client().await;
        let namespace = namespace(&client).await;
        #[expect(
            clippy::disallowed_methods,
            reason = "the API server has the real time"
        )]
        let now = jiff::Timestamp::now();
        let release = Self {
            client,
            namespace,
            clock: Arc::new(AtomicI64::new(now.as_second())),
            replicas: Vec::new(),
        };
        release.install_webhooks().await;
        release
    }

    /// As the chart does: without a bundle.
    async fn install_webhooks(&self) {
        let entry = |name: &str| {
            json!({
                "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore",
                "clientConfig": {"service": {"name": "r-webhook", "namespace": self.namespace,
                    "path": "/validate"}},
                "rules": [{"apiGroups": ["nothing.invalid"], "apiVersions": ["v1"],
                    "operations": ["CREATE"], "resources": ["things"]}],
            })
        };
        let configuration = json!({
            "metadata": {"name": self.namespace},
            "webhooks": [entry("enforced.vestibule.dev"), entry("exempt.vestibule.dev")],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &configuration)
            .await
            .unwrap();
    }

    /// Starts a replica that leads from the beginning, or never.
    fn replica(&mut self, leads: bool) -> CurrentCertificate {
        let mut config = vestibule_internal_ca::Config::new(&self.namespace, "r");
        config.webhook_configuration = Some(self.namespace.clone());
        let clock = Arc::clone(&self.clock);
        config.clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let (reconciler, certificates) = vestibule_internal_ca::start(self.client.clone(), config);
        self.replicas.push(tokio::spawn(async move {
            let (_leads, leading) = watch::channel(leads);
            reconciler.run(leading).await;
        }));
        certificates
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn entry(&self, secret: &str, key: &str) -> Option<Vec<u8>> {
        let secret = self.secrets().get_opt(secret).await.unwrap()?;
        secret.data?.remove(key).map(|bytes| bytes.0)
    }

    /// What proxies trust.
    async fn bundle(&self) -> Option<String> {
        let map = self.maps().get_opt("r-ca").await.unwrap()?;
        map.data?.remove("ca.crt")
    }

    /// What the API server trusts, of each entry.
    async fn ca_bundles(&self) -> Vec<Option<String>> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration = api.get(&self.namespace).await.unwrap();
        let entries = configuration.webhooks.unwrap_or_default().into_iter();
        let text = |bytes: ByteString| String::from_utf8(bytes.0).unwrap();
        entries
            .map(|entry| entry.client_config.ca_bundle.map(text))
            .collect()
    }

    /// Whether a certificate is for a name, and signed by what is trusted in `bundle`.
    async fn verifies(&self, secret: &str, name: &str, bundle: &str) -> bool {
        let Some(certificate) = self.entry(secret, "tls.crt").await else {
            return false;
        };
        let der = CertificateDer::from_pem_slice(&certificate).unwrap();
        let leaf = ParsedCertificate::try_from(&der).unwrap();
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        let now = u64::try_from(self.clock.load(Ordering::Relaxed)).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        let name = ServerName::try_from(name).unwrap();
        verify_server_name(&leaf, &name).unwrap();
        verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &[], now, algorithms.all).is_ok()
    }

    /// Waits until everything is there, published, and verifies, with so many authorities trusted.
    async fn at_rest(&self, authorities: usize) -> String {
        eventually(&format!("at rest with {authorities}"), || async {
            let bundle = self.bundle().await?;
            let published = self.ca_bundles().await;
            let everywhere = published.iter().all(|held| held.as_ref() == Some(&bundle));
            let stored = self.entry("r-ca", "ca.crt").await? == bundle.as_bytes();
            let good = everywhere
                && stored
                && bundle.matches("BEGIN CERTIFICATE").count() == authorities
                && self.marked().await
                && self
                    .verifies("r-operator-tls", &self.name("operator"), &bundle)
                    .await
                && self
                    .verifies("r-webhook-tls", &self.name("webhook"), &bundle)
                    .await;
            good.then_some(bundle)
        })
        .await
    }

    /// Whether it is taken down that the bundle is published.
    async fn marked(&self) -> bool {
        let secret = self.secrets().get("r-ca").await.unwrap();
        secret
            .annotations()
            .contains_key("vestibule.dev/bundle-published")
    }

    fn name(&self, server: &str) -> String {
        format!("r-{server}.{}.svc", self.namespace)
    }

    /// Time passes, and the leader has a reason to look.
    async fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::Relaxed);
        let poke = json!({"metadata": {"annotations":
            {"test/now": self.clock.load(Ordering::Relaxed).to_string()}}});
        self.patch_map(poke).await;
    }

    async fn patch_map(&self, patch: serde_json::Value) {
        let parameters = PatchParams::default();
        let patched = self.maps();
        patched
            .patch("r-ca", &parameters, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Versions of everything that is kept.
    async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let mut versions = BTreeMap::new();
        for secret in ["r-ca", "r-operator-tls", "r-webhook-tls"] {
            let version = self.secrets().get(secret).await.unwrap().resource_version();
            versions.insert(secret.to_owned(), version);
        }
        let map = self.maps().get("r-ca").await.unwrap();
        versions.insert("bundle".into(), map.resource_version());
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let webhooks = api.get(&self.namespace).await.unwrap();
        versions.insert("webhooks".into(), webhooks.resource_version());
        versions
    }
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn a_first_start_with_two_replicas_that_both_think_they_lead() {
    let mut release = Release::new().await;
    let mut certificates: Vec<_> = (0..3).map(|n| release.replica(n < 2)).collect();
    for certificates in &mut certificates {
        assert!(certificates.present().await);
    }
    release.at_rest(1).await;
    let secret = release.secrets().get("r-ca").await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    assert_eq!(secret.labels()["app.kubernetes.io/managed-by"], "r");

    // A third leader, later, finds nothing to do.
    let before = release.versions().await;
    let mut late = release.replica(true);
    assert!(late.present().await);
    release.pass(1).await;
    release.at_rest(1).await;
    let mut after = release.versions().await;
    after.insert("bundle".into(), before["bundle"].clone());
    assert_eq!(before, after);
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn trust_bundle_in_the_config_map_and_webhooks_is_restored_after_changes() {
    let mut release = Release::new().await;
    let certificates = release.replica(true);
    let bundle = release.at_rest(1).await;

    release
        .patch_map(json!({"data": {"ca.crt": "nonsense"}}))
        .await;
    eventually("the ConfigMap", || async {
        (release.bundle().await? == bundle).then_some(())
    })
    .await;
    release
        .maps()
        .delete("r-ca", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the ConfigMap", || async {
        (release.bundle().await? == bundle).then_some(())
    })
    .await;

    // As `helm upgrade` does it, to one entry, and to all with the configuration made anew.
    let api: Api<ValidatingWebhookConfiguration> = Api::all(release.client.clone());
    let patch = json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
    api.patch(&release.namespace, &PatchParams::default(), &patch)
        .await
        .unwrap();
    release.at_rest(1).await;
    api.delete(&release.namespace, &DeleteParams::default())
        .await
        .unwrap();
    release.install_webhooks().await;
    assert_eq!(release.at_rest(1).await, bundle);
    assert!(certificates.is_present());
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn a_rotation_phase_by_phase() {
    let mut release = Release::new().await;
    release.replica(true);
    let policy = RotationPolicy::default();
    let first = release.at_rest(1).await;
    let mut passed = 0;
    // Certificates are renewed by the same authority, four times in its life.
    while passed + policy.leaf / 3 * 2 < policy.authority / 3 * 2 {
        let leaf = release.entry("r-webhook-tls", "tls.crt").await;
        release.pass(policy.leaf / 3 * 2 - 60).await;
        assert_eq!(release.entry("r-webhook-tls", "tls.crt").await, leaf);
        release.pass(120).await;
        passed += policy.leaf / 3 * 2 + 60;
        eventually("a new certificate", || async {
            (release.entry("r-webhook-tls", "tls.crt").await != leaf).then_some(())
        })
        .await;
        assert_eq!(release.at_rest(1).await, first);
    }

    // The authority is due: the new one is trusted before anything is signed by it.
    release.pass(policy.authority / 3 * 2 - passed).await;
    let both = release.at_rest(2).await;
    assert!(both.contains(first.trim()));
    assert!(
        release
            .verifies("r-operator-tls", &release.name("operator"), &first)
            .await
    );
    release.pass(policy.overlap - 60).await;
    assert!(
        release
            .verifies("r-operator-tls", &release.name("operator"), &first)
            .await
    );
    release.pass(120).await;
    eventually("certificates of the new authority", || async {
        let old = release
            .verifies("r-operator-tls", &release.name("operator"), &first)
            .await
            || release
                .verifies("r-webhook-tls", &release.name("webhook"), &first)
                .await;
        (!old).then_some(())
    })
    .await;
    assert_eq!(release.at_rest(2).await, both);

    // The old one leaves when nobody can meet a certificate of it any more.
    release.pass(policy.overlap + 60).await;
    let second = release.at_rest(1).await;
    assert!(both.contains(second.trim()) && second != first);
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn certificate_secrets_that_are_broken_or_lost_are_made_anew() {
    let mut release = Release::new().await;
    release.replica(true);
    let first = release.at_rest(1).await;

    let nonsense = json!({"data": {"tls.key": "bm9uc2Vuc2U="}});
    let patch = Patch::Merge(nonsense);
    let secrets = release.secrets();
    let parameters = PatchParams::default();
    secrets
        .patch("r-operator-tls", &parameters, &patch)
        .await
        .unwrap();
    eventually("another key", || async {
        let key = release.entry("r-operator-tls", "tls.key").await?;
        key.starts_with(b"-----BEGIN").then_some(())
    })
    .await;
    assert_eq!(release.at_rest(1).await, first);

    // The authority's key is lost: what it signed is trusted on until it has been replaced.
    secrets
        .delete("r-ca", &DeleteParams::default())
        .await
        .unwrap();
    let both = release.at_rest(2).await;
    assert!(both.contains(first.trim()));
    assert!(
        release
            .verifies("r-webhook-tls", &release.name("webhook"), &first)
            .await
    );
    release.pass(RotationPolicy::default().overlap + 60).await;
    eventually("certificates of the new authority", || async {
        let old = release
            .verifies("r-webhook-tls", &release.name("webhook"), &first)
            .await;
        (!old).then_some(())
    })
    .await;

    secrets.patch("r-ca", &parameters, &patch).await.unwrap();
    release.at_rest(3).await;
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn a_follower_serves_and_does_not_write() {
    let mut release = Release::new().await;
    let follower = release.replica(false);
    let mut leader = release.replica(true);
    assert!(leader.present().await);
    let bundle = release.at_rest(1).await;
    eventually("the follower's", || async {
        follower.is_present().then_some(())
    })
    .await;
    release.replicas.remove(1).abort();

    let before = release.versions().await;
    release
        .secrets()
        .delete("r-webhook-tls", &DeleteParams::default())
        .await
        .unwrap();
    // Somebody leads later, and finds it missing.
    assert!(release.entry("r-webhook-tls", "tls.crt").await.is_none());
    let after = release
        .secrets()
        .get("r-ca")
        .await
        .unwrap()
        .resource_version();
    assert_eq!(before["r-ca"], after);
    release.replica(true);
    assert_eq!(release.at_rest(1).await, bundle);
}
