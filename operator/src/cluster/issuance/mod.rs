//! Runs the built-in engine in a cluster while this replica leads. Everything important in it is persisted, so it is
//! simply stopped when leadership ends.

mod address_probes;
mod effects;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::lease::elector::Role;
use crate::issuance::{self, EngineChannels};
use crate::publish::Publisher;
pub(super) use address_probes::AddressProbes;
pub(super) use effects::ClusterEffects;

/// Time between two checks of leadership, even if nothing happens.
const LOOK: Duration = Duration::from_secs(1);
/// Wait before an engine that ended is started again.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs the engine whenever this replica leads, for ever.
pub(super) async fn run(
    settings: vestibule_acme::EngineSettings,
    cluster_effects: ClusterEffects,
    publisher: Arc<Publisher>,
    mut channels: EngineChannels,
) {
    let mut role = cluster_effects.role.clone();
    let cluster_effects = Arc::new(cluster_effects);
    loop {
        if !leads(&role) {
            if role.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            known = channels.requests.known() => if !known { return },
            () = lost(&mut role) => continue,
        }
        info!("the built-in engine begins");
        let effects = Arc::clone(&cluster_effects);
        let engine = issuance::run(
            settings.clone(),
            effects,
            vestibule_acme::wall,
            &publisher,
            &mut channels,
        );
        let ended = tokio::select! {
            () = engine => true,
            () = lost(&mut role) => false,
        };
        channels.engine_link.end();
        cluster_effects.metrics.certificates.renews_nothing();
        if ended {
            warn!("the built-in engine ended; it begins again");
            tokio::time::sleep(PAUSE).await;
        } else {
            info!("the built-in engine ends, since this replica does not lead any more");
        }
    }
}

fn leads(role: &watch::Receiver<Role>) -> bool {
    role.borrow().term(Instant::now()).is_some()
}

/// Waits until this replica no longer leads.
async fn lost(role: &mut watch::Receiver<Role>) {
    while leads(role) {
        tokio::select! {
            changed = role.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
