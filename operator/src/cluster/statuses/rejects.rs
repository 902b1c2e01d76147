//! Remembers what the proxies rejected, and says which objects have to be looked at when that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::key::ObjectKey;
use vestibule_stream::ResourceKey;

use crate::publish::{ProxyId, Rejects};

/// The resources that the proxies rejected, at the last look.
#[derive(Debug, Default)]
pub(in super::super) struct RejectLog {
    known: BTreeMap<ProxyId, Arc<Rejects>>,
    /// The objects whose statuses depended on each rejected resource when it was looked at. An object that has done
    /// without the resource since then still has to lose the reject from its status.
    concerned: BTreeMap<ResourceKey, BTreeSet<ObjectKey>>,
}

impl RejectLog {
    /// Takes what the proxies reject now. Returns the objects that the rejects concern that came, went or changed.
    /// `concerns` says whose statuses depend on a resource.
    pub(in super::super) fn update(
        &mut self,
        now: BTreeMap<ProxyId, Arc<Rejects>>,
        concerns: impl Fn(&ResourceKey) -> BTreeSet<ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        let none = Arc::<Rejects>::default();
        let mut changed = BTreeSet::new();
        for proxy in self.known.keys().chain(now.keys()) {
            let before = self.known.get(proxy).unwrap_or(&none);
            let after = now.get(proxy).unwrap_or(&none);
            if !Arc::ptr_eq(before, after) {
                let keys = before.keys().chain(after.keys());
                changed.extend(
                    keys.filter(|key| before.get(*key) != after.get(*key))
                        .cloned(),
                );
            }
        }
        let mut touched = BTreeSet::new();
        for resource in changed {
            touched.extend(self.concerned.remove(&resource).into_iter().flatten());
            let objects = concerns(&resource);
            touched.extend(objects.iter().cloned());
            if now.values().any(|rejects| rejects.contains_key(&resource)) {
                self.concerned.insert(resource, objects);
            }
        }
        self.known = now;
        touched
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use vestibule_model::key::Kind;
    use vestibule_stream::{Reject, ResourceKind};

    use super::*;

    fn resource(name: &str) -> ResourceKey {
        ResourceKey::new(ResourceKind::HttpRoute, name)
    }

    fn rejects(names: &[(&str, &str)]) -> Arc<Rejects> {
        let all = names.iter().map(|(name, why)| {
            let key = resource(name);
            (key.clone(), Reject::new(key, "Invalid", *why))
        });
        Arc::new(all.collect())
    }

    fn route(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, "a", name)
    }

    #[test]
    fn only_what_came_went_or_changed_is_looked_at() {
        let mut log = RejectLog::default();
        let asked = Cell::new(0);
        let mut update = |now: &[(&str, &Arc<Rejects>)]| {
            let now = now.iter();
            let now = now.map(|(proxy, all)| ((*proxy).to_owned(), Arc::clone(all)));
            let touched = log.update(now.collect(), |resource| {
                asked.set(asked.get() + 1);
                BTreeSet::from([route(&resource.name)])
            });
            touched
                .into_iter()
                .map(|key| key.name.name.to_string())
                .collect::<Vec<_>>()
        };
        let many: Vec<String> = (0..600).map(|n| format!("r{n:03}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "port")).collect();
        let first = rejects(&many);
        assert_eq!(update(&[("p-1", &first)]).len(), 600);
        asked.set(0);
        // Nothing new, and another proxy that rejects one of them.
        assert!(update(&[("p-1", &first)]).is_empty());
        let second = rejects(&[("r007", "port")]);
        assert_eq!(update(&[("p-1", &first), ("p-2", &second)]), ["r007"]);
        // Another reason, and one that goes.
        let mut other = many.clone();
        other[5].1 = "name";
        other.pop();
        let other = rejects(&other);
        let touched = update(&[("p-1", &other), ("p-2", &second)]);
        assert_eq!(touched, ["r005", "r599"]);
        // A proxy that goes takes its rejects with it.
        assert_eq!(update(&[("p-1", &other)]), ["r007"]);
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn an_object_that_no_longer_needs_the_resource_is_looked_at_when_the_reject_goes() {
        let mut log = RejectLog::default();
        let all = || BTreeMap::from([("p-1".to_owned(), rejects(&[("shared", "port")]))]);
        let users = |names: &[&str]| -> BTreeSet<ObjectKey> {
            names.iter().map(|name| route(name)).collect()
        };
        let came = log.update(all(), |_| users(&["one", "two"]));
        assert_eq!(came, users(&["one", "two"]));
        let went = log.update(BTreeMap::new(), |_| users(&["two", "three"]));
        assert_eq!(went, users(&["one", "three", "two"]));
        assert!(log.concerned.is_empty());
    }
}
