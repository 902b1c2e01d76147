//! Follows a small selection of objects, for tasks that need other parts of them than translation does.

use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::api::Api;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use tracing::{info, warn};
use vestibule_backoff::{Backoff, Delays};

/// Waits after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Returns the events about the objects of `selection`, for ever. A failure to watch is logged once, with the name
/// `what`, and the watch is tried again.
pub(super) fn objects<K>(
    api: Api<K>,
    selection: Config,
    what: &'static str,
) -> impl Stream<Item = Event<K>> + Send
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api, selection)
        .backoff(Waits(BACKOFF.delays()))
        .boxed();
    stream::unfold(
        (events, None::<String>),
        move |(mut events, mut trouble)| async move {
            loop {
                match events.next().await? {
                    Ok(event) => {
                        // The start of a list is no success yet.
                        if !matches!(event, Event::Init) && trouble.take().is_some() {
                            info!(what, "watching objects again");
                        }
                        return Some((event, (events, trouble)));
                    }
                    Err(error) => {
                        let error = error.to_string();
                        if trouble.as_ref() != Some(&error) {
                            warn!(what, error, "cannot watch objects; trying again");
                            trouble = Some(error);
                        }
                    }
                }
            }
        },
    )
}

/// [`Delays`] as kube takes them.
struct Waits(Delays);

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.advance())
    }
}

impl kube::runtime::utils::Backoff for Waits {
    fn reset(&mut self) {
        self.0.reset();
    }
}
