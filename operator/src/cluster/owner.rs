//! What owns everything that this release makes, so that the cluster's garbage collection takes it when
//! the release goes.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use tracing::warn;

use super::health::Health;

/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);
/// How often to look whether it is still the same one.
pub const LOOK: Duration = Duration::from_secs(30);

/// A reference to the `ClusterRole` of that name, once there is one: what is made without it would stay
/// for ever. A cluster-scoped owner may own objects in any namespace. Waiting for an API server that is
/// away is no reason to be killed.
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
                warn!(cluster_role = %name, "there is no such ClusterRole, the owner of what is made; waiting for it");
            }
            Ok(Err(error)) => {
                warn!(cluster_role = %name, %error, "cannot read the owner of what is made; trying again");
            }
            Err(_) => {
                warn!(cluster_role = %name, "no answer about the owner of what is made; trying again");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Completes when another object has the name of `owner`. What is made in the name of one that is gone is
/// taken away by the cluster's garbage collection as often as it is made.
pub async fn replaced(client: &Client, owner: &OwnerReference, look: Duration) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    loop {
        tokio::time::sleep(look).await;
        let answer = tokio::time::timeout(PATIENCE, roles.get_metadata_opt(&owner.name)).await;
        // Whatever else goes wrong is no news of it.
        if let Ok(Ok(Some(role))) = answer
            && role.metadata.uid.as_ref() != Some(&owner.uid)
        {
            return;
        }
    }
}
