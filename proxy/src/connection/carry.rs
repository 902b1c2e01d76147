//! Owns the relay of a connection whose beginning is over, to its end.

use super::step::{Kind, Open, Opening};
use super::tunnel::{LAST_WORDS, part};
use crate::close_reason::CloseReason;
use crate::cut::{Cut, unless_cut};
use crate::deadline::within;
use crate::gate::InTurn;
use crate::lifetime::unless_over;
use crate::relay::Relay;
use crate::terminate::Tunnel;

/// Waits until the connection can be relayed, and relays it to its end.
///
/// The wait is part of this function. If another function waited and then called this one, each idle connection would
/// have room for the sockets and the record twice.
pub(super) async fn carry(opening: Opening) {
    let Some(Open {
        mut client,
        mut backend,
        mut record,
        kind,
        ending,
    }) = opening.await
    else {
        return;
    };
    let (line, lifetime) = (record.line(), record.lifetime());
    let ended = match kind {
        Kind::Passed(replay) => {
            let (basis, moved) = (&record.basis, &mut record.moved);
            let passed = Relay::new(&mut client, &mut backend, moved, line, replay);
            let passed = InTurn::new(passed, line);
            unless_cut(unless_over(lifetime, || basis.is_served(), passed))
                .await
                .map(|ended| ended.map(CloseReason::from))
        }
        Kind::Terminated(mut session) => {
            let (basis, moved) = (&record.basis, &mut record.moved);
            let tunnel = Tunnel::new(&mut client, &mut backend, moved, &mut session);
            let tunnel = InTurn::new(tunnel, line);
            // In a box, so that the future of passthrough connections has no room for it.
            let tunnel = unless_over(lifetime, || basis.is_served(), tunnel);
            unless_cut(Box::pin(tunnel))
                .await
                .map(|ended| ended.map(CloseReason::from))
        }
    };
    match ended {
        Ok(Ok(reason)) => record.reason = reason,
        Ok(Err(over)) => {
            record.reason = over.into();
            let parted = part(client, backend, ending);
            let _ = Box::pin(within(LAST_WORDS, parted)).await;
        }
        Err(Cut) => Box::pin(part(client, backend, ending)).await,
    }
}
