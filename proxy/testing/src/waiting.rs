//! Waiting with an end.

use std::future::Future;
use std::time::Duration;

/// How long a condition may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Polls a condition until it holds.
pub async fn wait(what: &str, condition: impl FnMut() -> bool) {
    wait_or(what, condition, String::new).await;
}

/// As [`wait`], and says what there is instead.
pub(crate) async fn wait_or(
    what: &str,
    mut condition: impl FnMut() -> bool,
    state: impl Fn() -> String,
) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        let in_time = tokio::time::Instant::now() < end;
        assert!(in_time, "waited in vain for {what}\n{}", state());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Bounds a step that would otherwise hang.
pub async fn within<T>(what: &str, step: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, step).await;
    done.unwrap_or_else(|_| panic!("{what} did not come"))
}
