//! Time of the cluster side, and waits for it; everything that decides takes time as an input.

use std::time::{Duration, Instant};

use crate::claims::Time;

pub(super) use crate::clock::now;

/// Milliseconds since 1970; 0 for a clock that is before.
#[must_use]
pub(super) fn millis() -> u64 {
    u64::try_from(now().as_millisecond()).unwrap_or_default()
}

/// Now, with the instant that it is.
#[must_use]
pub(super) fn both(now: Instant) -> Time {
    Time {
        seconds: self::now().as_second(),
        now,
    }
}

/// Until then; `None`: for ever.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// What comes of asking the API server, which has so long to answer.
pub(super) async fn answered<T>(
    patience: Duration,
    asking: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(patience, asking).await;
    answer.unwrap_or_else(|_| Err("no answer from the API server".into()))
}
