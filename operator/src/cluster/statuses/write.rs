//! Writes a status with a PUT of the status subresource. The request contains the version of the object for which the
//! status was computed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta, TypeMeta};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::{debug, warn};
use vestibule_model::key::{Kind, ObjectKey};

use super::super::failure::FailureLines;
use super::super::metrics::{Metrics, WriteResult};
use super::authorship::has_written;
use super::plan::{Job, LiveStatus, WriteFailure};

/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(15);

/// Writes statuses. Clones share what they know.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    manager: Arc<str>,
    metrics: Metrics,
    /// The API version of each kind that was needed so far.
    served: Arc<Mutex<BTreeMap<Kind, ApiResource>>>,
    /// The lines of each namespace about writes that fail.
    lines: FailureLines<Arc<str>>,
}

impl Writer {
    /// Returns a writer with the field manager `manager`.
    #[must_use]
    pub fn new(client: Client, manager: &str, metrics: Metrics) -> Self {
        Self {
            client,
            manager: manager.into(),
            metrics,
            served: Arc::default(),
            lines: FailureLines::new(),
        }
    }

    /// Makes a write, and returns its result.
    pub async fn write(self, job: Job) -> (ObjectKey, Result<LiveStatus, WriteFailure>) {
        let Job {
            key,
            version,
            status,
            confirm,
        } = job;
        let written = self.put(&key, &version, status, confirm);
        let outcome = match tokio::time::timeout(PATIENCE, written).await {
            Ok(Ok(Some(live))) => {
                debug!(object = %key, "the status of an object is written");
                Ok(live)
            }
            Ok(Ok(None)) => {
                debug!(object = %key, "the status of an object belongs to another controller");
                Err(WriteFailure::NotOurs)
            }
            Ok(Err(kube::Error::Api(answer))) if answer.is_conflict() => {
                Err(WriteFailure::Conflict)
            }
            Ok(Err(kube::Error::Api(answer))) if answer.is_not_found() => {
                // Either the object is gone, or the API version of its kind is no longer served.
                self.served.lock().remove(&key.kind);
                Err(WriteFailure::Gone)
            }
            Ok(Err(error)) => {
                self.failed(&key, &error);
                Err(WriteFailure::Other)
            }
            Err(_) => {
                self.failed(&key, &"no answer");
                Err(WriteFailure::Other)
            }
        };
        let result = match &outcome {
            Ok(_) => WriteResult::Written,
            Err(WriteFailure::Conflict) => WriteResult::Conflict,
            Err(WriteFailure::Gone) => WriteResult::Gone,
            Err(WriteFailure::Other) => WriteResult::Failed,
            // Nothing was written, and nothing had to be.
            Err(WriteFailure::NotOurs) => return (key, outcome),
        };
        self.metrics.status(key.kind, result);
        (key, outcome)
    }

    fn failed(&self, key: &ObjectKey, error: &dyn Display) {
        if self.lines.admit(&key.name.namespace) {
            warn!(object = %key, %error, "cannot write the status of an object; trying again");
        } else {
            debug!(object = %key, %error, "cannot write the status of an object; trying again");
        }
    }

    /// Writes a status. Returns the object's status as it is then; `None` if the write has to be confirmed, and the
    /// present status is not by this field manager.
    async fn put(
        &self,
        key: &ObjectKey,
        version: &str,
        status: Value,
        confirm: bool,
    ) -> kube::Result<Option<LiveStatus>> {
        let resource = self.resource(key.kind).await?;
        let api: Api<DynamicObject> = if key.kind.is_namespaced() {
            Api::namespaced_with(self.client.clone(), &key.name.namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        // If somebody writes the object after this, the write fails because of its version.
        if confirm && !self.is_own(&api, &key.name.name).await? {
            return Ok(None);
        }
        // When the status is written, the server ignores everything else in the object.
        let object = DynamicObject {
            types: Some(TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            }),
            metadata: ObjectMeta {
                name: Some(key.name.name.to_string()),
                namespace: key
                    .kind
                    .is_namespaced()
                    .then(|| key.name.namespace.to_string()),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            data: json!({"status": status}),
        };
        let parameters = PostParams {
            field_manager: Some(self.manager.to_string()),
            ..PostParams::default()
        };
        let written = api
            .replace_status(&key.name.name, &parameters, &object)
            .await?;
        Ok(Some(LiveStatus::new(
            written.metadata.resource_version.unwrap_or_default().into(),
            written.metadata.generation.unwrap_or_default(),
            written.data.get("status").unwrap_or(&Value::Null),
        )))
    }

    /// Asks the API server whether the present status of an object is by this field manager. The watch drops the field
    /// that says so, because it is large. The operator may list objects, but not get them.
    async fn is_own(&self, api: &Api<DynamicObject>, name: &str) -> kube::Result<bool> {
        let one = ListParams::default().fields(&format!("metadata.name={name}"));
        let list = api.list(&one).await?;
        let fields = list.items.first().map(|object| &object.metadata);
        let fields = fields.and_then(|metadata| metadata.managed_fields.as_deref());
        Ok(has_written(fields.unwrap_or_default(), &self.manager))
    }

    /// Returns the API version in which to write `kind`: the first one that is served.
    async fn resource(&self, kind: Kind) -> kube::Result<ApiResource> {
        if let Some(known) = self.served.lock().get(&kind) {
            return Ok(known.clone());
        }
        let versions: &[&str] = match kind {
            Kind::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
            Kind::GrpcRoute | Kind::TcpRoute | Kind::UdpRoute => &["v1", "v1alpha2"],
            Kind::BackendTlsPolicy => &["v1", "v1alpha3"],
            Kind::AcmeIssuer | Kind::ClusterAcmeIssuer | Kind::HostnameGrant => &["v1alpha1"],
            _ => &["v1", "v1beta1"],
        };
        let mut first = None;
        for version in versions {
            let group_version = format!("{}/{version}", kind.group());
            let list = match self.client.list_api_group_resources(&group_version).await {
                Ok(list) => list,
                Err(kube::Error::Api(answer)) if answer.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            let found = list
                .resources
                .iter()
                .find(|r| r.kind == kind.as_str() && !r.name.contains('/'));
            if let Some(found) = found {
                let gvk = GroupVersionKind::gvk(kind.group(), version, kind.as_str());
                first = Some(ApiResource::from_gvk_with_plural(&gvk, &found.name));
                break;
            }
        }
        let resource = first.unwrap_or_else(|| {
            // The kind is gone, and the write will fail for this reason.
            ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1", kind.as_str()))
        });
        self.served.lock().insert(kind, resource.clone());
        Ok(resource)
    }
}
