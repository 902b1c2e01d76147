//! Marks the units that depend on a change, so that they are computed again.

use vestibule_model::backend_key::BackendKey;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::{Affected, Owners};
use vestibule_model::object::Object;
use vestibule_model::route::Route;

use super::{Dirty, Translator};

impl Translator {
    /// Marks what depends on a Gateway or set that changed: its listeners, the listeners that it
    /// had before, and its routes.
    pub(super) fn mark_parent(
        &mut self,
        parent: ParentKey,
        old: Option<&Object>,
        dirty: &mut Dirty,
    ) {
        let former = match old {
            Some(Object::Gateway(gateway)) => gateway.listeners.as_slice(),
            Some(Object::ListenerSet(set)) => set.listeners.as_slice(),
            _ => &[],
        };
        dirty
            .listeners
            .extend(former.iter().map(|listener| listener.key(&parent)));
        self.index.dirty_listeners(&parent, dirty);
        dirty.routes.extend(self.index.routes_to(&parent).cloned());
        dirty.parents.insert(parent);
    }

    /// Marks everything whose verdict in the merge may have changed.
    pub(super) fn spread(&mut self, affected: Affected, dirty: &mut Dirty) {
        for gateway in affected.gateways {
            // The statuses of the grants in the Gateway's namespace say which Gateways exist, and
            // depend on whose they are.
            let grants = self.merge.grants_in(&gateway.namespace);
            dirty.others.extend(grants.map(|grant| ObjectKey {
                kind: Kind::HostnameGrant,
                name: grant.name.clone(),
            }));
            dirty.entrances.insert(gateway.namespace.clone());
            dirty.gateways.insert(gateway.clone());
            dirty.tls.insert(gateway.clone());
            let parent = ParentKey::Gateway(gateway);
            self.index.dirty_listeners(&parent, dirty);
            dirty.routes.extend(self.index.routes_to(&parent).cloned());
            dirty.parents.insert(parent);
        }
        for name in affected.sets {
            let verdict = self.merge.set(&name).map(|set| self.merge.verdict(set));
            if self.verdicts.get(&name) != verdict.as_ref() {
                match verdict {
                    Some(verdict) => self.verdicts.insert(name.clone(), verdict),
                    None => self.verdicts.remove(&name),
                };
                let parent = ParentKey::ListenerSet(name);
                self.index.dirty_listeners(&parent, dirty);
                dirty.routes.extend(self.index.routes_to(&parent).cloned());
                dirty.parents.insert(parent);
            }
        }
        dirty.listeners.extend(affected.listeners);
        for place in affected.overlaps {
            self.overlaps.mark(place);
        }
        dirty.routes.extend(affected.routes);
        dirty.claims.extend(affected.claims);
        dirty.owned.extend(affected.owned);
        for owners in affected.owners {
            self.mark_owners(&owners, dirty);
        }
        for grant in affected.limiting {
            self.mark_selected(&grant, dirty);
        }
    }

    /// Marks the routes to listeners of a Gateway whose namespaces may own other hostnames now.
    fn mark_owners(&self, owners: &Owners, dirty: &mut Dirty) {
        for (namespace, routes) in self.index.routes_by_namespace() {
            if !self.merge.is_touched(owners, namespace) {
                continue;
            }
            let concerned = routes.iter().filter(|key| {
                let parents = self.route(key).into_iter().flat_map(Route::parents);
                parents
                    .filter_map(|reference| reference.parent(namespace))
                    .filter_map(|parent| self.merge.listeners(&parent))
                    .any(|(_, gateway)| *gateway == owners.gateway)
            });
            dirty.routes.extend(concerned.cloned());
        }
    }

    /// Marks every backend of a Service that is in use.
    pub(super) fn dirty_backends(&self, service: &ObjectName, dirty: &mut Dirty) {
        dirty.backends.extend(
            self.backend_users
                .range(BackendKey::range_of(service))
                .map(|(key, _)| key.clone()),
        );
    }
}
