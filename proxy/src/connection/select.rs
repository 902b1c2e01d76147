//! Owns the selection for a connection: challenge, listener, route, backend, endpoint, and the client certificate for
//! the backend. All of it is decided by one snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::accesslog::ConnectionRecord;
use crate::backend::Backend;
use crate::challenge::{Challenge, ChallengeQuery};
use crate::close_reason::CloseReason;
use crate::gate::HandshakeCost;
use crate::listener::{Listener, Mode};
use crate::table::{Pick, Route, Selection, Snapshot};
use crate::upstream::Credentials;

/// The decision about a TLS connection.
pub(super) enum Decision {
    Challenge(Arc<Challenge>),
    Serve(Mode, HandshakeCost, Credentials),
}

/// Decides everything by one snapshot: challenge, listener, route, backend, endpoint, and the client certificate for
/// the backend.
pub(super) fn decide(
    record: &mut ConnectionRecord,
    question: Option<&ChallengeQuery>,
    random: u64,
) -> Result<Decision, CloseReason> {
    let plane = Arc::clone(record.plane());
    let snapshot = plane.snapshot.load();
    let challenge = question.and_then(|of| snapshot.challenge(record.bind(), of.clone()));
    if let Some(challenge) = challenge {
        return Ok(Decision::Challenge(challenge));
    }
    let selected = snapshot.select(record.bind(), record.basis.server_name.as_ref());
    let (mode, cost, credentials) = take(&snapshot, record, selected?, random)?;
    Ok(Decision::Serve(mode, cost, credentials))
}

/// Counts a connection for its listener and tenant, and chooses its backend unless its requests do that.
pub(super) fn take(
    snapshot: &Snapshot,
    record: &mut ConnectionRecord,
    selection: Selection,
    random: u64,
) -> Result<(Mode, HandshakeCost, Credentials), CloseReason> {
    let Selection {
        listener,
        route,
        account,
    } = selection;
    let mode = listener.mode.clone();
    let units = listener.handshake_units;
    record.select(Arc::clone(&listener));
    if !matches!(mode, Mode::Https(_)) {
        pick(snapshot, record, route, random, |backend| {
            backend.endpoint(random, |_| true)
        })?;
    }
    let backend = record.backend.as_ref();
    // Without a backend there are no credentials to choose: requests select backends of their own.
    let credentials = backend.map_or(Credentials::None, |(_, backend)| {
        snapshot.credentials(&listener, backend)
    });
    record.charge(&account)?;
    Ok((mode, HandshakeCost { account, units }, credentials))
}

/// Chooses a backend of a route, and an endpoint of it.
fn pick(
    snapshot: &Snapshot,
    record: &mut ConnectionRecord,
    route: Option<Arc<Route>>,
    random: u64,
    endpoint: impl FnOnce(&Backend) -> Option<SocketAddr>,
) -> Result<(), CloseReason> {
    let Some(route) = route else {
        let by_port = || {
            record
                .listener()
                .is_some_and(|of| matches!(of.mode, Mode::Tcp))
        };
        return Err(match record.basis.server_name {
            None if !by_port() => CloseReason::NoServerName,
            _ => CloseReason::NoRoute,
        });
    };
    let pick = route.pick_with(snapshot, random, endpoint);
    record.basis.route = Some(route);
    match pick {
        Pick::Endpoint(address, backend) => {
            record.backend = Some((address, backend));
            Ok(())
        }
        Pick::InvalidBackend => Err(CloseReason::InvalidBackend),
        Pick::NoEndpoints | Pick::NoWeight => Err(CloseReason::NoEndpoints),
    }
}

/// Chooses another endpoint by the snapshot in force, with the credentials for it. It is `None` if the present
/// configuration no longer serves this connection in the way in which it began.
pub(super) fn decide_again(
    record: &mut ConnectionRecord,
    random: u64,
    next: impl FnOnce(&Backend, &Credentials) -> Option<SocketAddr>,
) -> Option<Credentials> {
    let plane = Arc::clone(record.plane());
    let snapshot = plane.snapshot.load();
    // If TLS is terminated here, the client has seen the certificate of this listener, and was validated by it. So it
    // cannot move to another listener.
    let begun = record.listener()?;
    let is_tcp = |of: &Listener| matches!(of.mode, Mode::Tcp);
    let selected = if is_tcp(begun) {
        snapshot.select_by_port(record.bind())
    } else {
        snapshot.select(record.bind(), record.basis.server_name.as_ref())
    };
    let Selection {
        listener, route, ..
    } = selected.ok()?;
    let passes = |of: &Listener| matches!(of.mode, Mode::Passthrough);
    let same = Arc::ptr_eq(&listener, begun)
        || (passes(&listener) && passes(begun))
        || (is_tcp(&listener) && is_tcp(begun));
    if !same {
        return None;
    }
    let before = (record.basis.route.clone(), record.backend.clone());
    let mut shown = None;
    let picked = pick(&snapshot, record, route, random, |of| {
        let credentials = snapshot.credentials(&listener, of);
        next(of, shown.insert(credentials))
    });
    if picked.is_err() {
        (record.basis.route, record.backend) = before;
        return None;
    }
    shown
}
