//! Makes the requests by which Services and Certificates are written. The API server carries each out only if the object
//! is still the one that the action is for.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::text::problem;

/// Why an object was not created, as a message.
pub(super) enum CreateFailure {
    /// Another object, which does not belong to this release, has its name.
    NameTaken(String),
    /// The request failed, or the object is there already.
    Refused(String),
}

impl CreateFailure {
    /// Returns the failure if an object has the name already. `is_ours` says whether that object belongs to this release.
    /// Then a former leader created it, and the watch will show it soon.
    pub(super) fn exists(kind: &str, name: &str, is_ours: bool) -> Self {
        if is_ours {
            Self::Refused(format!(
                "the {kind} {name} is there already; waiting for the watch"
            ))
        } else {
            Self::NameTaken(format!("a {kind} {name} that is not Vestibule's is there"))
        }
    }
}

impl From<CreateFailure> for String {
    fn from(failure: CreateFailure) -> Self {
        match failure {
            CreateFailure::NameTaken(problem) | CreateFailure::Refused(problem) => problem,
        }
    }
}

/// Creates an object of this kind from a manifest, unless another one has its name. The watch has not shown that one as an
/// object of this release, so it is not touched.
pub(super) async fn create<K>(
    api: &Api<K>,
    manager: &str,
    kind: &str,
    name: &str,
    manifest: &Value,
) -> Result<K, CreateFailure>
where
    K: Clone + DeserializeOwned + Debug,
{
    let there = find(api, name).await;
    if there.map_err(CreateFailure::Refused)?.is_some() {
        return Err(CreateFailure::exists(kind, name, false));
    }
    let made = create_new(api, manager, name, manifest).await;
    made.map_err(CreateFailure::Refused)
}

/// Returns the object with this name, if there is one.
pub(super) async fn find<K>(api: &Api<K>, name: &str) -> Result<Option<K>, String>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.get_opt(name).await.map_err(problem)
}

/// Creates an object from a manifest. The caller has made sure that no object has its name. If another client creates one
/// meanwhile, the API server refuses what conflicts with that one, because this does not force the manifest on it.
pub(super) async fn create_new<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    manifest: &Value,
) -> Result<K, String>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = PatchParams::apply(manager);
    let made = api.patch(name, &parameters, &Patch::Apply(manifest)).await;
    made.map_err(problem)
}

/// Applies a manifest to the object with this UID.
pub(super) async fn apply<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    uid: &str,
    manifest: &Value,
) -> Result<K, String>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = PatchParams::apply(manager).force();
    let manifest = Patch::Apply(with_uid(manifest, uid));
    let made = api.patch(name, &parameters, &manifest).await;
    made.map_err(problem)
}

/// Merges a patch into the object with this UID. It can remove what others own, which an applied manifest leaves.
pub(super) async fn merge<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    uid: &str,
    patch: &Value,
) -> Result<K, String>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = PatchParams::apply(manager);
    let patch = Patch::Merge(with_uid(patch, uid));
    let made = api.patch(name, &parameters, &patch).await;
    made.map_err(problem)
}

/// A copy of a manifest or patch that is for the object with this UID alone.
fn with_uid(of: &Value, uid: &str) -> Value {
    let mut of = of.clone();
    let fields = of.as_object_mut();
    let metadata = fields.map(|of| of.entry("metadata").or_insert_with(|| json!({})));
    if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
        metadata.insert("uid".into(), uid.into());
    }
    of
}

/// Deletes the object with this UID. It is no error if the object is gone, or if another one has its name by now.
pub(super) async fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> Result<(), String>
where
    K: Clone + DeserializeOwned + Debug,
{
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match api.delete(name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(problem(error)),
    }
}
