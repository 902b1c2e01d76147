//! Objects that every replica reads and the leader writes: their metadata, their watch, and the outcome of a write. Their
//! content is up to [`super::ports`] and [`super::session_keys`].

use std::fmt::Debug;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::error::Elapsed;
use tracing::warn;
use vestibule_backoff::Backoff;

use super::follow;

/// Longest wait for the outcome of a write.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Which object it is, and whose.
#[derive(Debug, Clone)]
pub(super) struct KeptObjectConfig {
    /// Namespace of the object.
    pub(super) namespace: String,
    /// Name of the object.
    pub(super) name: String,
    /// Value of the label `app.kubernetes.io/managed-by`.
    pub(super) manager: String,
    /// The owner of the object, if it has one.
    pub(super) owner: Option<OwnerReference>,
}

/// What messages say about the content of the object, and how long failed writes wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptContent {
    /// What the content is.
    pub(super) name: &'static str,
    /// What happens until it can be stored.
    pub(super) meanwhile: &'static str,
    /// Waits after failed writes.
    pub(super) backoff: Backoff,
}

/// An object that every replica reads and the leader writes.
pub(super) struct KeptObject<K> {
    api: Api<K>,
    config: KeptObjectConfig,
    content: KeptContent,
    /// How many writes in a row have failed.
    failures: u32,
}

impl<K> KeptObject<K>
where
    K: kube::Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    /// An object in the namespace of `api`, which is that of `config`.
    pub(super) fn new(api: Api<K>, config: KeptObjectConfig, content: KeptContent) -> Self {
        Self {
            api,
            config,
            content,
            failures: 0,
        }
    }

    /// Which object it is, and whose.
    pub(super) fn config(&self) -> &KeptObjectConfig {
        &self.config
    }

    /// Returns the events about the object, for ever.
    pub(super) fn events(&self) -> impl Stream<Item = Event<K>> + Send + use<K> {
        let field = format!("metadata.name={}", self.config.name);
        let selection = watcher::Config::default().fields(&field);
        follow::objects(self.api.clone(), selection, self.content.name)
    }

    /// Returns the metadata to write. `present` is the metadata of the object on the server, if it is there.
    pub(super) fn metadata(&self, present: Option<&ObjectMeta>) -> ObjectMeta {
        let config = &self.config;
        let mut metadata = present.cloned().unwrap_or_else(|| ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            owner_references: config.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        });
        metadata.managed_fields = None;
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(super::MANAGED_BY.to_owned(), config.manager.clone());
        metadata
    }

    /// Replaces the object if it `exists`, and creates it otherwise. The caller bounds this with [`PATIENCE`], and tells
    /// the outcome to [`Self::settle`].
    pub(super) async fn write(&self, object: &K, exists: bool) -> Result<K, kube::Error> {
        let parameters = PostParams::default();
        if exists {
            let name = &self.config.name;
            self.api.replace(name, &parameters, object).await
        } else {
            self.api.create(&parameters, object).await
        }
    }

    /// Takes the outcome of a write. Returns the object as it was written, if it was.
    pub(super) fn settle(&mut self, outcome: Result<Result<K, kube::Error>, Elapsed>) -> Option<K> {
        let object = &self.config.name;
        let KeptContent {
            name, meanwhile, ..
        } = self.content;
        match outcome {
            Ok(Ok(written)) => {
                self.failures = 0;
                return Some(written);
            }
            // The watch will show the present version.
            Ok(Err(kube::Error::Api(status)))
                if status.is_conflict() || status.is_already_exists() => {}
            Ok(Err(error)) => {
                warn!(%object, %error, "the operator cannot store {name}; {meanwhile}");
            }
            Err(_) => {
                warn!(%object, "the API server does not answer to a write of {name}; {meanwhile}");
            }
        }
        self.failed();
        None
    }

    /// Counts a write that could not be tried.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns how long the next write waits, if the last one failed.
    pub(super) fn pause(&self) -> Option<Duration> {
        let before = self.failures.checked_sub(1)?;
        Some(self.content.backoff.delay(before))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::core::Status;

    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

    fn kept_object() -> KeptObject<ConfigMap> {
        let nobody = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let config = KeptObjectConfig {
            namespace: "system".into(),
            name: "kept".into(),
            manager: "vestibule".into(),
            owner: None,
        };
        let content = KeptContent {
            name: "the content",
            meanwhile: "it waits",
            backoff: BACKOFF,
        };
        let client = kube::Client::new(nobody, "default");
        KeptObject::new(Api::namespaced(client, "system"), config, content)
    }

    #[tokio::test]
    async fn writes_wait_longer_with_each_failure_until_one_succeeds() {
        let mut kept = kept_object();
        assert_eq!(kept.pause(), None);
        let conflict = Status::failure("no", "Conflict").with_code(409);
        let conflict = kube::Error::Api(Box::new(conflict));
        assert_eq!(kept.settle(Ok(Err(conflict))), None);
        assert_eq!(kept.pause(), Some(BACKOFF.delay(0)));
        let failure = kube::Error::Service("no connection".into());
        assert_eq!(kept.settle(Ok(Err(failure))), None);
        assert_eq!(kept.pause(), Some(BACKOFF.delay(1)));
        kept.failed();
        assert_eq!(kept.pause(), Some(BACKOFF.delay(2)));
        let written = ConfigMap::default();
        assert_eq!(kept.settle(Ok(Ok(written.clone()))), Some(written));
        assert_eq!(kept.pause(), None);
    }

    #[tokio::test]
    async fn metadata_on_the_server_stay_except_the_managed_fields() {
        let kept = kept_object();
        let new = kept.metadata(None);
        assert_eq!(new.name.as_deref(), Some("kept"));
        assert_eq!(new.namespace.as_deref(), Some("system"));
        let present = ObjectMeta {
            resource_version: Some("7".into()),
            managed_fields: Some(Vec::new()),
            ..new.clone()
        };
        let next = kept.metadata(Some(&present));
        assert_eq!(next.resource_version.as_deref(), Some("7"));
        assert_eq!(next.managed_fields, None);
        assert_eq!(next.labels, new.labels);
        assert!(
            new.labels
                .is_some_and(|labels| labels[super::super::MANAGED_BY] == "vestibule")
        );
    }
}
