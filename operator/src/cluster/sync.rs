//! Tracks the start of a replica: what has to be known before it is ready and may lead. If a leader published before
//! everything is read, traffic would fail.

use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tracing::{info, warn};
use vestibule_model::key::{GATEWAY_GROUP, Kind};

/// Every kind that is watched.
pub(super) const KINDS: [Kind; Kind::ALL.len()] = Kind::ALL;

/// Time between two checks whether missing kinds are installed.
const LOOK: Duration = Duration::from_secs(5);

/// The progress of the start.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "parts that become known in any order"
)]
pub(super) struct StartProgress {
    /// Whether GatewayClass and Gateway are known to be installed.
    pub(super) installed: bool,
    /// Kinds whose objects are not all known.
    pub(super) missing: Vec<Kind>,
    /// Whether Secrets and ConfigMaps are watched.
    pub(super) sources: bool,
    /// Whether the persisted ports are known.
    pub(super) ports: bool,
    /// Whether the Services in front of Gateways are known.
    pub(super) services: bool,
    /// Whether the keys of sessions are known, or it is known that there are none.
    pub(super) session_keys: bool,
    /// Whether it is known which proxies are ready.
    pub(super) proxies: bool,
    /// Whether all of this has been known at one time.
    pub(super) ready: bool,
}

impl StartProgress {
    /// Whether everything except these kinds is known.
    pub(super) fn only_missing(&self, kinds: &[Kind]) -> bool {
        !self.missing.is_empty() && self.missing.iter().all(|kind| kinds.contains(kind))
    }

    /// Returns why this replica is not ready; `None` if it is.
    pub(super) fn unready(&self) -> Option<String> {
        if !self.installed {
            // They may be installed all the same, since nobody has looked at the start. Whether they are is logged by
            // `wait_for_gateway_api`.
            return Some("not found yet: GatewayClass and Gateway of the Gateway API".into());
        }
        if !self.missing.is_empty() {
            let kinds: Vec<&str> = self.missing.iter().map(|kind| kind.as_str()).collect();
            return Some(format!("not read yet: {}", kinds.join(", ")));
        }
        let parts = [
            (self.ports, "internal ports"),
            (self.services, "Services in front of Gateways"),
            (self.session_keys, "keys of sessions"),
            (self.proxies, "which proxies are ready"),
        ];
        let part = parts.into_iter().find(|(known, _)| !known);
        part.map(|(_, what)| format!("not read yet: {what}"))
    }
}

/// Sets `installed` once GatewayClass and Gateway are there. The other kinds are optional.
pub(super) async fn wait_for_gateway_api(client: Client, installed: watch::Sender<bool>) {
    let mut said = false;
    loop {
        match is_installed(&client).await {
            Ok(true) => break,
            Ok(false) if !said => {
                said = true;
                info!(
                    "GatewayClass and Gateway of the Gateway API are not installed; waiting for them"
                );
            }
            Ok(false) => {}
            Err(error) => warn!(%error, "cannot see which kinds are installed"),
        }
        tokio::time::sleep(LOOK).await;
    }
    installed.send_replace(true);
    // The channel stays open, since its end would mean that the task has failed.
    installed.closed().await;
}

async fn is_installed(client: &Client) -> kube::Result<bool> {
    for version in ["v1", "v1beta1"] {
        let group_version = format!("{GATEWAY_GROUP}/{version}");
        match client.list_api_group_resources(&group_version).await {
            Ok(list) => {
                let has = |kind: Kind| list.resources.iter().any(|r| r.kind == kind.as_str());
                if has(Kind::GatewayClass) && has(Kind::Gateway) {
                    return Ok(true);
                }
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
