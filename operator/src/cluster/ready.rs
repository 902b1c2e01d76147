//! Finds out which proxies are ready, from the EndpointSlices of their headless Service.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tracing::debug;

use super::follow;
use crate::publish::{ProxyId, Publisher};

/// Label of an EndpointSlice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Tells the publisher which proxies are ready, for ever. `synced` becomes true when this is known.
pub async fn run(
    client: kube::Client,
    namespace: String,
    service: String,
    publisher: Arc<Publisher>,
    synced: watch::Sender<bool>,
) {
    let api: Api<EndpointSlice> = Api::namespaced(client, &namespace);
    let selection = watcher::Config::default().labels(&format!("{SERVICE}={service}"));
    let mut events = pin!(follow::objects(api, selection, "which proxies are ready"));
    let mut slices = Slices::default();
    let mut last: Option<BTreeSet<ProxyId>> = None;
    while let Some(event) = events.next().await {
        let Some(ready) = slices.take(event) else {
            continue;
        };
        if last.as_ref() != Some(&ready) {
            debug!(proxies = ready.len(), "the proxies that are ready changed");
            publisher.set_ready(ready.clone());
            last = Some(ready);
        }
        synced.send_if_modified(|synced| !std::mem::replace(synced, true));
    }
}

/// The slices of one Service.
#[derive(Debug, Default)]
struct Slices {
    known: BTreeMap<String, BTreeSet<ProxyId>>,
    /// The list that is under way, if there is one.
    listed: Option<BTreeMap<String, BTreeSet<ProxyId>>>,
}

impl Slices {
    /// Returns the proxies that are ready after `event`; `None` while a list is under way.
    fn take(&mut self, event: Event<EndpointSlice>) -> Option<BTreeSet<ProxyId>> {
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(slice) => {
                self.listed
                    .get_or_insert_default()
                    .insert(name(&slice), ready(&slice));
            }
            Event::InitDone => self.known = self.listed.take().unwrap_or_default(),
            Event::Apply(slice) => {
                self.known.insert(name(&slice), ready(&slice));
            }
            Event::Delete(slice) => {
                self.known.remove(&name(&slice));
            }
        }
        if self.listed.is_some() {
            return None;
        }
        Some(self.known.values().flatten().cloned().collect())
    }
}

fn name(slice: &EndpointSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

/// Returns the names of the pods that are ready. If `ready` is absent, the API defines this as ready.
fn ready(slice: &EndpointSlice) -> BTreeSet<ProxyId> {
    slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|c| c.ready).unwrap_or(true)
        })
        .filter_map(|endpoint| {
            let target = endpoint.target_ref.as_ref()?;
            (target.kind.as_deref() == Some("Pod")).then(|| target.name.clone())?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, pods: &[(&str, Option<bool>)]) -> EndpointSlice {
        let endpoints: Vec<_> = pods
            .iter()
            .map(|(pod, ready)| {
                serde_json::json!({
                    "addresses": ["10.0.0.1"],
                    "conditions": {"ready": ready},
                    "targetRef": {"kind": "Pod", "name": pod},
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name},
            "addressType": "IPv4",
            "endpoints": endpoints,
        }))
        .expect("it is an EndpointSlice")
    }

    fn set(names: &[&str]) -> BTreeSet<ProxyId> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ready_pods_of_all_slices_count() {
        let mut slices = Slices::default();
        assert_eq!(slices.take(Event::Init), None);
        let four = slice("v4", &[("p-1", Some(true)), ("p-2", Some(false))]);
        assert_eq!(slices.take(Event::InitApply(four)), None);
        assert_eq!(slices.take(Event::InitDone), Some(set(&["p-1"])));
        let six = slice("v6", &[("p-2", None)]);
        assert_eq!(
            slices.take(Event::Apply(six.clone())),
            Some(set(&["p-1", "p-2"]))
        );
        let none = slice("v4", &[("p-1", Some(false))]);
        assert_eq!(slices.take(Event::Apply(none)), Some(set(&["p-2"])));
        // A new list replaces everything when it is complete.
        assert_eq!(slices.take(Event::Init), None);
        assert_eq!(
            slices.take(Event::InitApply(slice("v4", &[("p-3", Some(true))]))),
            None
        );
        assert_eq!(slices.take(Event::InitDone), Some(set(&["p-3"])));
        assert_eq!(slices.take(Event::Delete(slice("v4", &[]))), Some(set(&[])));
    }
}
