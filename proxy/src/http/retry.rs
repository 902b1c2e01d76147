//! Owns when a request is made again because its route says so, how long that waits, and how many requests of a backend
//! may be made again at a time.
//!
//! What the route says nothing of is in `exchange`: a connection that could not be opened, or broke.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;

use super::exchange::{Answered, Ended, ExchangeFailure};
use super::kept::Kept;
use super::timeouts::Late;
use crate::backend::Backend;
use crate::close_reason::CloseReason;
use crate::retry_budget::{Active, Retrying};

/// How long to wait before the first retry where the route does not say.
const BACKOFF: Duration = Duration::from_millis(25);
/// How long at most, unless the route wants to begin with more.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// And for how many times what it begins with.
const MOST_FACTOR: u32 = 10;

/// What a route says of retries.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    /// Statuses of answers, 400 to 599.
    pub(crate) codes: BTreeSet<u16>,
    /// How often at most.
    pub(crate) attempts: u32,
    pub(crate) backoff: Option<Duration>,
}

impl Retry {
    /// Why a request is to be made again that was tried with this outcome, if it is.
    pub(super) fn reason(
        &self,
        method: &Method,
        outcome: &Result<Result<Answered, Ended>, Late>,
    ) -> Option<&'static str> {
        match outcome {
            Ok(Ok((response, _))) => {
                let listed = self.codes.contains(&response.status().as_u16());
                listed.then_some("Status")
            }
            Ok(Err(Ended::Failed(ExchangeFailure::Refused))) => Some("Refused"),
            Ok(Err(Ended::Failed(ExchangeFailure::Connect(reason)))) => {
                let certain = [CloseReason::BackendTlsInvalid, CloseReason::BackendLoop];
                (!certain.contains(reason)).then_some("Connect")
            }
            // The backend may have done what it was asked for.
            Err(Late::Backend) => {
                let asked = self.codes.contains(&504) || method.is_idempotent();
                asked.then_some("Timeout")
            }
            Ok(Err(_)) | Err(Late::Idle | Late::Request) => None,
        }
    }

    /// How long to wait before a retry when so many were made. `left` is what the request may still take: half of it is
    /// for the retry.
    pub(super) fn wait(&self, made: u32, random: u64, left: Option<Duration>) -> Duration {
        let base = self.backoff.unwrap_or(BACKOFF);
        let most = base.saturating_mul(MOST_FACTOR).min(LONGEST_BACKOFF);
        let doubled = base.saturating_mul(1_u32.checked_shl(made).unwrap_or(u32::MAX));
        let wait = doubled.min(most.max(base));
        // Up to half as much again, so that what failed together does not come again together.
        let parts = u32::try_from(random % 512).unwrap_or_default();
        let wait = wait + wait / 1024 * parts;
        left.map_or(wait, |left| wait.min(left / 2))
    }
}

/// The retries of one request.
#[derive(Default)]
pub(super) struct Retries {
    pub(super) made: u32,
    /// Its body, where it has one.
    pub(super) body: Option<Arc<Kept>>,
    retrying: Option<Retrying>,
    active: Option<Active>,
}

impl Retries {
    /// The request is under way at `backend`.
    pub(super) fn at(&mut self, backend: &Backend) {
        let budget = backend.retries();
        let other = |active: &Active| !active.is_of(budget);
        if self.active.as_ref().is_none_or(other) {
            self.retrying = None;
            self.active = Some(budget.enter());
        }
    }

    /// Whether it may be made again as far as the backend is concerned.
    pub(super) fn is_affordable(&mut self) -> bool {
        if self.retrying.is_none()
            && let Some(active) = &self.active
        {
            self.retrying = active.retry();
        }
        self.retrying.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(backoff: Option<u64>) -> Retry {
        Retry {
            codes: [503].into(),
            attempts: 3,
            backoff: backoff.map(Duration::from_millis),
        }
    }

    #[test]
    fn waits_double_up_to_a_bound_and_leave_time_for_the_retry() {
        let millis = |retry: &Retry, made, random, left: Option<u64>| {
            let left = left.map(Duration::from_millis);
            retry.wait(made, random, left).as_millis()
        };
        let waits = |retry: &Retry| [0, 1, 2, 3, 9, 99].map(|made| millis(retry, made, 0, None));
        assert_eq!(waits(&retry(None)), [25, 50, 100, 200, 250, 250]);
        assert_eq!(
            waits(&retry(Some(4000))),
            [4000, 8000, 10_000, 10_000, 10_000, 10_000]
        );
        // A route's own time is never shortened.
        assert_eq!(waits(&retry(Some(20_000))), [20_000; 6]);
        assert_eq!(waits(&retry(Some(0))), [0; 6]);
        assert!((140..150).contains(&millis(&retry(Some(100)), 0, 511, None)));
        assert_eq!(millis(&retry(Some(1000)), 0, 511, Some(200)), 100);
    }
}
