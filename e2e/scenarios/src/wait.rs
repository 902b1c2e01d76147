//! Waiting until something is so: polled, bounded, and with what was last seen in the error.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(150);
/// Bound for what a cluster does in seconds: pods start, addresses come, statuses settle.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// Bound for what is several such things after one another.
pub(crate) const LATER: Duration = Duration::from_mins(3);

/// Looks until `look` returns a value. Its error says why not yet, and ends up in the message when the
/// bound is reached.
pub(crate) async fn until<T, E: Display, F: AsyncFnMut() -> Result<T, E>>(
    what: &str,
    bound: Duration,
    mut look: F,
) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(why) if Instant::now() >= deadline => {
                bail!("waited {} s for {what}: {why:#}", bound.as_secs())
            }
            Err(_) => sleep(POLL).await,
        }
    }
}
