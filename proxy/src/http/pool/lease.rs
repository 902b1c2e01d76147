//! Owns a connection as long as a request has it: what is sent on it, and whether another request may have it next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::super::body::{Upload, UploadState};
use super::connection::{Key, Sender};
use super::{POOL, Shared};
use crate::upstream::{Meter, OnMeter};

/// A connection that a request has.
pub(in crate::http) struct Lease {
    key: Key,
    pub(in crate::http) sender: Sender,
    /// Counts the request until it is over. Its body has this too.
    active: Arc<OnMeter>,
    /// Whether no other request may have the connection.
    spent: bool,
    /// The request that was sent on it, as long as it has not ended.
    request: Option<SentRequest>,
}

/// A request that was sent on an HTTP/2 connection. If it is dropped before its end, the backend gets a reset.
struct SentRequest {
    given_up: Arc<AtomicUsize>,
    upload: Arc<UploadState>,
    /// Whether it has come to its end on both sides, or the backend itself ended it.
    ended: bool,
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Lease {
    /// A lease of a connection, as long as no request is sent on it.
    pub(super) fn of(key: Key, sender: Sender) -> Self {
        Self {
            key,
            active: Arc::new(OnMeter::new(sender.meter())),
            spent: false,
            request: None,
            sender,
        }
    }

    /// A lease of a new connection. From here on, other requests can use it if it is one of HTTP/2.
    pub(in crate::http) fn new(key: Key, sender: Sender) -> Self {
        let lease = Self::of(key, sender);
        if let Sender::Two(two) = &lease.sender {
            let shared = Shared {
                two: two.clone(),
                idle_since: Instant::now(),
            };
            let _ = POOL.try_with(|pool| {
                pool.borrow_mut()
                    .kept_for(lease.key.clone())
                    .two
                    .push_back(shared);
            });
        }
        lease
    }

    /// Records that a request is sent on the connection. Unless it [ends](Self::ended), it counts as given up.
    pub(in crate::http) fn sends(&mut self, upload: &mut Upload) {
        let Sender::Two(two) = &self.sender else {
            return upload.take_place(None);
        };
        upload.take_place(Some(Arc::clone(&self.active)));
        self.request = Some(SentRequest {
            given_up: Arc::clone(&two.given_up),
            upload: Arc::clone(upload.state()),
            ended: false,
        });
    }

    /// Records that the connection did not send the request, or that the backend ended it.
    pub(in crate::http) fn ended(&mut self) {
        if let Some(request) = &mut self.request {
            request.ended = true;
        }
    }

    /// Keeps the connection from being used again.
    pub(in crate::http) fn spend(&mut self) {
        self.spent = true;
    }

    /// The meter of the connection.
    pub(in crate::http) fn meter(&self) -> &Arc<Meter> {
        self.sender.meter()
    }

    pub(in crate::http) fn is_tls(&self) -> bool {
        self.key.tls.is_some()
    }

    /// Gives the connection back, because its response was read to the end. If its request has not been sent to the end yet, the
    /// connection ends after that.
    pub(in crate::http) fn give_back(self) {
        let Self {
            key,
            sender,
            active,
            spent,
            request,
        } = self;
        if let Some(mut request) = request {
            // A request whose response came early may still be sent. Its client may break it off.
            request.ended = request.upload.is_whole();
        }
        drop(active);
        let Sender::One(one) = sender else { return };
        if spent || !one.connection.is_reusable() {
            return one.connection.retire();
        }
        // If a connection does not stay in the pool, it is dropped outside of the borrow.
        let _ = POOL.try_with(|pool| pool.borrow_mut().put(key, one));
    }
}
