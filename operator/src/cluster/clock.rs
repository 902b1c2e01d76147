//! Reads the clocks, and waits for points in time. All code that decides takes time as an input instead.

use std::time::{Duration, Instant};

use crate::claims::Time;

pub(super) use crate::clock::now;

/// Returns the milliseconds since 1970, or 0 if the clock is before that.
#[must_use]
pub(super) fn millis() -> u64 {
    u64::try_from(now().as_millisecond()).unwrap_or_default()
}

/// Returns the current time of the system together with the monotonic time `now`.
#[must_use]
pub(super) fn both(now: Instant) -> Time {
    Time {
        seconds: self::now().as_second(),
        now,
    }
}

/// Waits until `time`, or for ever if it is `None`.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for a response of the API server, at most for the given time.
pub(super) async fn answered<T, E: From<String>>(
    patience: Duration,
    asking: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let answer = tokio::time::timeout(patience, asking).await;
    answer.unwrap_or_else(|_| Err(E::from("no answer from the API server".to_owned())))
}
