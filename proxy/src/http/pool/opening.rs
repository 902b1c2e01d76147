//! Owns the opening of HTTP/2 connections that many requests share: one request opens the connection, and the others wait
//! for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::connection::Key;
use super::{POOL, Pool};
use crate::close_reason::CloseReason;
use crate::deadline::within;

/// What a request does that needs an HTTP/2 connection which many requests can share.
pub(in crate::http) enum Turn {
    /// It opens the connection.
    Open(DialGuard),
    /// It looks for a connection, because another request has opened one, or because its patience is at its end.
    Look,
    /// It does without, because another request failed to open the connection.
    Failed(CloseReason),
}

/// An HTTP/2 connection that one request opens, and for which others wait.
#[derive(Default)]
pub(super) struct SharedDial {
    over: Notify,
    /// Why it cannot be opened.
    failure: OnceLock<CloseReason>,
    /// Whether the request that opened it is gone, and another one has to.
    vacant: AtomicBool,
}

/// A request holds it while it opens a connection. If it is dropped, one of the requests that wait opens the connection
/// instead.
pub(in crate::http) struct DialGuard {
    key: Key,
    attempt: Arc<SharedDial>,
    is_over: bool,
}

impl DialGuard {
    /// Tells the requests that wait about the connection as soon as its backend has said how many it takes, so that no more
    /// of them get it. If the backend does not say so in the time `allowed`, or the connection ends, that is their failure,
    /// and they go to another endpoint. If it `was_late`, the request that opened it had little time left, which says
    /// nothing to them, and another one opens a connection.
    pub(in crate::http) async fn end_when_settled(
        self,
        settles: impl Future<Output = bool>,
        allowed: Duration,
        was_late: bool,
    ) {
        match within(allowed, settles).await {
            Ok(true) => self.end(None),
            Ok(false) => self.end(Some(CloseReason::BackendReset)),
            Err(_) if was_late => drop(self),
            Err(_) => self.end(Some(CloseReason::BackendConnectTimeout)),
        }
    }

    /// Tells all requests that wait that the connection is open, or why it cannot be opened. All of them have the same
    /// failure, because one after the other would only fail again.
    pub(in crate::http) fn end(mut self, failure: Option<CloseReason>) {
        if let Some(failure) = failure {
            // This is the only place that sets it, and it comes here once.
            let _ = self.attempt.failure.set(failure);
        }
        self.is_over = true;
    }
}

impl Drop for DialGuard {
    fn drop(&mut self) {
        // The pool and this value have it, and each request that waits.
        let is_over = self.is_over || Arc::strong_count(&self.attempt) <= 2;
        if is_over {
            let removed = POOL.try_with(|pool| pool.borrow_mut().opening.remove(&self.key));
            drop(removed);
            self.attempt.over.notify_waiters();
        } else {
            self.attempt.vacant.store(true, Ordering::Relaxed);
            self.attempt.over.notify_one();
        }
    }
}

/// Asks whether to open an HTTP/2 connection, and waits, for as long as `patience` allows, if another request opens it.
pub(in crate::http) async fn turn(key: &Key, patience: Duration) -> Turn {
    let end = Instant::now() + patience;
    loop {
        let attempt = match POOL.with_borrow_mut(|pool| pool.begin(key)) {
            Ok(opening) => return Turn::Open(opening),
            Err(attempt) => attempt,
        };
        let left = end.saturating_duration_since(Instant::now());
        if within(left, attempt.over.notified()).await.is_err() {
            return Turn::Look;
        }
        if let Some(failure) = attempt.failure.get() {
            return Turn::Failed(*failure);
        }
        if !attempt.vacant.load(Ordering::Relaxed) {
            return Turn::Look;
        }
        // Nobody else was told that the request which opened it is gone, so this one does it without any further wait.
    }
}

impl Pool {
    /// Begins to open an HTTP/2 connection, unless another request does.
    fn begin(&mut self, key: &Key) -> Result<DialGuard, Arc<SharedDial>> {
        let attempt = match self.opening.get(key) {
            Some(attempt) if !attempt.vacant.swap(false, Ordering::Relaxed) => {
                return Err(Arc::clone(attempt));
            }
            Some(vacant) => Arc::clone(vacant),
            None => {
                let attempt = Arc::default();
                self.opening.insert(key.clone(), Arc::clone(&attempt));
                attempt
            }
        };
        Ok(DialGuard {
            key: key.clone(),
            attempt,
            is_over: false,
        })
    }
}
