//! Reads one Secret or ConfigMap that has come into use.

use std::time::Duration;

use kube::Client;
use kube::api::GetParams;
use kube::core::Request;
use serde_json::Value;
use vestibule_crds::decode;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the Secret or ConfigMap, if it exists. The error is a text for people, and contains nothing of its content.
pub(super) async fn fetch(client: &Client, key: &ObjectKey) -> Result<Option<Object>, String> {
    let plural = match key.kind {
        Kind::ConfigMap => "configmaps",
        _ => "secrets",
    };
    let name = &key.name;
    let path = format!("/api/v1/namespaces/{}/{plural}", name.namespace);
    let request = Request::new(path)
        .get(&name.name, &GetParams::default())
        .map_err(|error| error.to_string())?;
    let answer = tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await;
    match answer {
        Ok(Ok(value)) => Ok(decode(value).into_object().map(|(object, _)| object)),
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Ok(None),
        Ok(Err(kube::Error::Api(status))) => Err(status.message),
        Ok(Err(kube::Error::SerdeError(_))) => Err("the answer does not read".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer from the API server".into()),
    }
}
