//! The built-in engine in a cluster: it runs while this replica leads. What it holds is persisted or worth
//! nothing, so the end of leadership just ends it.

mod doors;
mod effects;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::lease::elector::Role;
use crate::acme;
use crate::issuance::{self, Wires};
use crate::publish::Publisher;
pub(super) use doors::Doors;
pub(super) use effects::Hand;

/// Leadership is looked at this often, though nothing happens.
const LOOK: Duration = Duration::from_secs(1);
/// Wait before an engine that ended begins again.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs the engine whenever this replica leads, for ever.
pub(super) async fn run(
    settings: acme::Settings,
    hand: Hand,
    publisher: Arc<Publisher>,
    mut wires: Wires,
) {
    let mut role = hand.role.clone();
    let hand = Arc::new(hand);
    loop {
        if !leads(&role) {
            if role.changed().await.is_err() {
                return;
            }
            continue;
        }
        if wires.requests.borrow().is_none() {
            tokio::select! {
                changed = wires.requests.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK) => {}
            }
            continue;
        }
        info!("the built-in engine begins");
        let effects = Arc::clone(&hand);
        let engine = issuance::run(
            settings.clone(),
            effects,
            acme::wall,
            &publisher,
            &mut wires,
        );
        let ended = tokio::select! {
            () = engine => true,
            () = lost(&mut role) => false,
        };
        wires.desk.end();
        hand.metrics.certificates.renews_nothing();
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

/// Until this replica does not lead any more.
async fn lost(role: &mut watch::Receiver<Role>) {
    while leads(role) {
        tokio::select! {
            changed = role.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
