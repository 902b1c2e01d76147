//! Finds out whether the server serves a kind, and in which version.

use std::time::Duration;

use kube::core::{ApiResource, GroupVersion};
use kube::{Client, Error};
use vestibule_model::key::Kind;

use crate::decode::versions;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kind as the server serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) resource: ApiResource,
    /// Whether it is the version that Vestibule reads best.
    pub(super) preferred: bool,
}

/// The best version of `kind` that is served; `None` if there is none.
pub(super) async fn served(client: &Client, kind: Kind) -> Result<Option<Served>, Error> {
    for (index, version) in versions(kind).iter().enumerate() {
        let found = tokio::time::timeout(PATIENCE, lookup(client, kind, version));
        let found = found
            .await
            .map_err(|_| Error::Service("no answer within 30 s".into()))??;
        if let Some(resource) = found {
            return Ok(Some(Served {
                resource,
                preferred: index == 0,
            }));
        }
    }
    Ok(None)
}

async fn lookup(client: &Client, kind: Kind, version: &str) -> Result<Option<ApiResource>, Error> {
    let group_version = GroupVersion::gv(kind.group(), version);
    let list = if kind.group().is_empty() {
        client.list_core_api_resources(version).await
    } else {
        let path = group_version.api_version();
        client.list_api_group_resources(&path).await
    };
    let list = match list {
        Ok(list) => list,
        Err(Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    // Subresources have the same kind, and a name such as `gateways/status`.
    let found = list
        .resources
        .into_iter()
        .find(|resource| resource.kind == kind.as_str() && !resource.name.contains('/'));
    let gvk = group_version.with_kind(kind.as_str());
    Ok(found.map(|resource| ApiResource::from_gvk_with_plural(&gvk, &resource.name)))
}
