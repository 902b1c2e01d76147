//! The objects that hold authority, certificates and bundle: reading them all, writing one.
//!
//! Every write depends on the object as it was read. If it did not exist, it is created, and otherwise it is replaced with
//! its resource version as the condition. Of two writers, the second gets a conflict and reads again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use zeroize::Zeroize;

use super::material::{Pair, Signer, Trusted, read_bundle, read_leaf, write_bundle};
use super::rotation::{Authority, BundleTarget, CaState, Id, Leaf, Seconds, Stored};
use super::{BUNDLE_KEY, Config, InternalCaError};

/// Since when the published bundle contains the authority that signs, in seconds since the epoch.
const PUBLISHED: &str = "vestibule.dev/bundle-published";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Everything as read.
#[derive(Default)]
pub(crate) struct CaSnapshot {
    authority: Option<Secret>,
    leaves: BTreeMap<Leaf, Option<Secret>>,
    config_map: Option<ConfigMap>,
    webhooks: Option<ValidatingWebhookConfiguration>,
    pub(crate) signer: Option<Signer>,
    /// Authorities that clients trust, or did before the authority was lost.
    pub(crate) bundle: Vec<Trusted>,
}

impl Drop for CaSnapshot {
    fn drop(&mut self) {
        let leaves = self.leaves.values_mut().flatten();
        leaves.chain(self.authority.as_mut()).for_each(erase);
    }
}

/// Erases what a Secret holds.
pub(crate) fn erase(secret: &mut Secret) {
    for bytes in secret.data.iter_mut().flat_map(BTreeMap::values_mut) {
        bytes.0.zeroize();
    }
}

/// An entry of a Secret; empty if it is absent.
pub(crate) fn entry<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    data.map_or(&[], |bytes| &bytes.0)
}

/// The certificate and the key in a Secret.
pub(crate) fn pair_of(secret: &Secret) -> (&[u8], &[u8]) {
    (entry(secret, CERTIFICATE), entry(secret, KEY))
}

/// The way to the objects.
pub(crate) struct CaStore {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    webhooks: Api<ValidatingWebhookConfiguration>,
    config: Config,
}

impl CaStore {
    pub(crate) fn new(client: &Client, config: Config) -> Self {
        let namespace = &config.namespace;
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client.clone(), namespace),
            webhooks: Api::all(client.clone()),
            config,
        }
    }

    /// Reads everything.
    pub(crate) async fn read(&self) -> Result<CaSnapshot, InternalCaError> {
        let mut read = CaSnapshot::default();
        read.authority = get(&self.secrets, &self.config.authority_secret).await?;
        read.config_map = get(&self.config_maps, &self.config.bundle_config_map).await?;
        for leaf in [Leaf::Operator, Leaf::Webhook] {
            let secret = get(&self.secrets, self.config.secret_of(leaf)).await?;
            read.leaves.insert(leaf, secret);
        }
        if let Some(name) = &self.config.webhook_configuration {
            read.webhooks = get(&self.webhooks, name).await?;
        }
        Ok(read)
    }

    /// Puts an authority into its Secret, and the bundle with it.
    pub(crate) async fn put_authority(
        &self,
        read: &CaSnapshot,
        authority: &Pair,
        bundle: &[&Trusted],
    ) -> Result<(), InternalCaError> {
        let name = &self.config.authority_secret;
        let mut secret = self.secret(read.authority.as_ref(), name);
        if let Some(annotations) = &mut secret.metadata.annotations {
            annotations.remove(PUBLISHED);
        }
        fill(&mut secret, authority);
        fill_bundle(&mut secret, bundle);
        self.put_secret(name, secret).await
    }

    /// Changes the bundle in the authority's Secret.
    pub(crate) async fn put_bundle(
        &self,
        read: &CaSnapshot,
        bundle: &[&Trusted],
    ) -> Result<(), InternalCaError> {
        let name = &self.config.authority_secret;
        let mut secret = self.secret(read.authority.as_ref(), name);
        fill_bundle(&mut secret, bundle);
        self.put_secret(name, secret).await
    }

    /// Takes down that the bundle has been published everywhere since `now`.
    pub(crate) async fn mark_published(
        &self,
        read: &CaSnapshot,
        now: Seconds,
    ) -> Result<(), InternalCaError> {
        let name = &self.config.authority_secret;
        let mut secret = self.secret(read.authority.as_ref(), name);
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(PUBLISHED.into(), now.to_string());
        self.put_secret(name, secret).await
    }

    /// Puts a certificate into its Secret.
    pub(crate) async fn put_leaf(
        &self,
        read: &CaSnapshot,
        leaf: Leaf,
        pair: &Pair,
    ) -> Result<(), InternalCaError> {
        let name = self.config.secret_of(leaf);
        let present = read.leaves.get(&leaf).and_then(Option::as_ref);
        let mut secret = self.secret(present, name);
        fill(&mut secret, pair);
        self.put_secret(name, secret).await
    }

    /// Publishes the bundle.
    pub(crate) async fn publish(
        &self,
        read: &CaSnapshot,
        place: BundleTarget,
    ) -> Result<(), InternalCaError> {
        let bundle = write_bundle(&read.bundle);
        match place {
            BundleTarget::ConfigMap => self.put_config_map(read, bundle).await,
            BundleTarget::WebhookConfiguration => self.patch_webhooks(read, bundle).await,
        }
    }

    async fn put_config_map(
        &self,
        read: &CaSnapshot,
        bundle: String,
    ) -> Result<(), InternalCaError> {
        let name = &self.config.bundle_config_map;
        let mut map = read.config_map.clone().unwrap_or_else(|| ConfigMap {
            metadata: self.metadata(name),
            ..ConfigMap::default()
        });
        let data = map.data.get_or_insert_default();
        data.insert(BUNDLE_KEY.into(), bundle);
        put(&self.config_maps, name, &map).await
    }

    /// Only the bundles: everything else is the chart's.
    async fn patch_webhooks(
        &self,
        read: &CaSnapshot,
        bundle: String,
    ) -> Result<(), InternalCaError> {
        let Some(present) = &read.webhooks else {
            return Ok(());
        };
        let bundle = ByteString(bundle.into_bytes());
        let entries = present.webhooks.iter().flatten();
        let entries: Vec<_> = entries
            .map(|entry| json!({"name": entry.name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        let patch = json!({
            "metadata": {"resourceVersion": present.metadata.resource_version},
            "webhooks": entries,
        });
        let name = present.metadata.name.as_deref().unwrap_or_default();
        let parameters = PatchParams {
            field_manager: Some(self.config.manager.clone()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(patch);
        let patched = self.webhooks.patch(name, &parameters, &patch);
        bounded("ValidatingWebhookConfiguration", name, patched).await?;
        Ok(())
    }

    fn secret(&self, present: Option<&Secret>, name: &str) -> Secret {
        present.cloned().unwrap_or_else(|| Secret {
            metadata: self.metadata(name),
            type_: Some("kubernetes.io/tls".into()),
            ..Secret::default()
        })
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        let owner = self.config.owner.clone();
        let label = ("app.kubernetes.io/managed-by", &self.config.manager);
        ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([label].map(|(k, v)| (k.to_owned(), v.clone())).into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    async fn put_secret(&self, name: &str, mut secret: Secret) -> Result<(), InternalCaError> {
        let done = put(&self.secrets, name, &secret).await;
        erase(&mut secret);
        done
    }
}

impl CaSnapshot {
    /// Derives the state from what was read. Parses the signer and the bundle on the way.
    pub(crate) fn state(&mut self, config: &Config) -> CaState {
        let authority = self.read_authority();
        let bundle = &self.bundle;
        let mut leaves = BTreeMap::new();
        for (leaf, secret) in &self.leaves {
            let names = config.names_of(*leaf);
            let stored = secret.as_ref().map_or(Stored::Absent, |secret| {
                let (certificate, key) = pair_of(secret);
                read_leaf(certificate, key, &names, bundle)
                    .map_or_else(Stored::Unusable, Stored::There)
            });
            leaves.insert(*leaf, stored);
        }
        CaState {
            authority,
            leaves,
            stale: self.stale(),
        }
    }

    fn read_authority(&mut self) -> Stored<Authority> {
        let Some(secret) = &self.authority else {
            self.bundle = self.published_bundle();
            return Stored::Absent;
        };
        let (certificate, key) = pair_of(secret);
        self.bundle = read_bundle(entry(secret, BUNDLE_KEY));
        let signer = match Signer::read(certificate, key) {
            Ok(signer) => signer,
            Err(why) => {
                if self.bundle.is_empty() {
                    self.bundle = self.published_bundle();
                }
                return Stored::Unusable(why);
            }
        };
        let annotations = secret.metadata.annotations.as_ref();
        let published = annotations.and_then(|all| all.get(PUBLISHED)?.parse().ok());
        let bundle = self.bundle.iter().map(|t| (t.id, t.validity));
        let authority = Authority {
            signer: signer.trusted.id,
            validity: signer.trusted.validity,
            published,
            bundle: bundle.collect(),
        };
        self.signer = Some(signer);
        Stored::There(authority)
    }

    /// The bundle that clients trust where the authority's Secret does not say it. Certificates that a
    /// lost authority signed stay in force until new ones are.
    fn published_bundle(&self) -> Vec<Trusted> {
        let data = self.config_map.as_ref().and_then(|map| map.data.as_ref());
        let text = data.and_then(|data| data.get(BUNDLE_KEY));
        text.map(|text| read_bundle(text.as_bytes()))
            .unwrap_or_default()
    }

    fn stale(&self) -> BTreeSet<BundleTarget> {
        let bundle = write_bundle(&self.bundle);
        let data = self.config_map.as_ref().and_then(|map| map.data.as_ref());
        let mut stale = BTreeSet::new();
        if data.and_then(|data| data.get(BUNDLE_KEY)) != Some(&bundle) {
            stale.insert(BundleTarget::ConfigMap);
        }
        let entries = self
            .webhooks
            .iter()
            .flat_map(|w| w.webhooks.iter().flatten());
        let mut held = entries.map(|entry| entry.client_config.ca_bundle.as_ref());
        if held.any(|held| held.is_none_or(|held| held.0 != bundle.as_bytes())) {
            stale.insert(BundleTarget::WebhookConfiguration);
        }
        stale
    }

    /// The bundle with these of it only, and the signer.
    pub(crate) fn bundle_of<'a>(&'a self, ids: &BTreeSet<Id>) -> Vec<&'a Trusted> {
        let signer = self.signer.as_ref().map(|signer| &signer.trusted);
        let others = self
            .bundle
            .iter()
            .filter(|trusted| signer.is_none_or(|signer| signer.id != trusted.id));
        signer
            .into_iter()
            .chain(others)
            .filter(|trusted| ids.contains(&trusted.id))
            .collect()
    }
}

fn fill(secret: &mut Secret, pair: &Pair) {
    erase(secret);
    let entries = [
        (CERTIFICATE, pair.certificate.as_bytes().to_vec()),
        (KEY, pair.key.to_vec()),
    ];
    let entries = entries.map(|(key, bytes)| (key.to_owned(), ByteString(bytes)));
    secret.data = Some(entries.into());
}

fn fill_bundle(secret: &mut Secret, bundle: &[&Trusted]) {
    let bundle = write_bundle(bundle.iter().copied()).into_bytes();
    let data = secret.data.get_or_insert_default();
    data.insert(BUNDLE_KEY.into(), ByteString(bundle));
}

async fn get<K>(api: &Api<K>, name: &str) -> Result<Option<K>, InternalCaError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    bounded(&K::kind(&()), name, api.get_opt(name)).await
}

/// Creates an object that was not there, or replaces the one that was read.
async fn put<K>(api: &Api<K>, name: &str, object: &K) -> Result<(), InternalCaError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let kind = K::kind(&());
    let parameters = PostParams::default();
    if object.meta().resource_version.is_none() {
        bounded(&kind, name, api.create(&parameters, object)).await?;
    } else {
        bounded(&kind, name, api.replace(name, &parameters, object)).await?;
    }
    Ok(())
}

async fn bounded<T>(
    kind: &str,
    name: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, InternalCaError> {
    let object = || format!("{kind} {name}");
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(done)) => Ok(done),
        // Created or changed meanwhile: to be read again.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            Err(InternalCaError::Conflict(object()))
        }
        Ok(Err(source)) => Err(InternalCaError::Api {
            object: object(),
            source: Box::new(source),
        }),
        Err(_) => Err(InternalCaError::Silent(object())),
    }
}
