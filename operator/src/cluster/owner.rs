//! Finds the owner of everything that this release creates. When the release is removed, the garbage collection of the
//! cluster then deletes all of it.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use tracing::warn;

use super::health::Health;

/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between two checks whether the owner is still the same object.
pub const LOOK: Duration = Duration::from_secs(30);

/// Waits for the `ClusterRole` called `name`, and returns a reference to it. Objects without an owner would stay for
/// ever, so nothing is created before. The owner is cluster-scoped, because such an object may own objects in any
/// namespace. The process counts as alive during the wait, since a restart would not help.
pub async fn find(client: &Client, name: &str, health: &Health) -> OwnerReference {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    loop {
        health.beat();
        let answer = tokio::time::timeout(PATIENCE, roles.get_opt(name)).await;
        match answer {
            Ok(Ok(Some(role))) => {
                return OwnerReference {
                    api_version: "rbac.authorization.k8s.io/v1".into(),
                    kind: "ClusterRole".into(),
                    name: name.into(),
                    uid: role.metadata.uid.unwrap_or_default(),
                    ..OwnerReference::default()
                };
            }
            Ok(Ok(None)) => {
                warn!(cluster_role = %name, "the ClusterRole that owns the operator's objects does not exist; waiting for it");
            }
            Ok(Err(error)) => {
                warn!(cluster_role = %name, %error, "cannot read the ClusterRole that owns the operator's objects; trying again");
            }
            Err(_) => {
                warn!(cluster_role = %name, "the API server does not answer about the ClusterRole that owns the operator's objects; trying again");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Completes when another object has the name of `owner`. If the former owner is gone, the garbage collection deletes
/// every object that is created with a reference to it.
pub async fn replaced(client: &Client, owner: &OwnerReference, look: Duration) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    loop {
        tokio::time::sleep(look).await;
        let answer = tokio::time::timeout(PATIENCE, roles.get_metadata_opt(&owner.name)).await;
        // Other failures tell nothing about the owner.
        if let Ok(Ok(Some(role))) = answer
            && role.metadata.uid.as_ref() != Some(&owner.uid)
        {
            return;
        }
    }
}
