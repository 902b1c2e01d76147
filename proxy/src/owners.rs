//! Owns the owners of hostnames. On one Gateway a hostname belongs to one namespace, on every port and for every
//! protocol. Listeners and routes of other namespaces are not selected for it.
//!
//! The operator decides who owns a name, and sends the owner of each pattern. The most specific pattern that matches a
//! hostname counts. So the owner of a wildcard does not own those names inside it that belong to others.

use std::sync::Arc;

use rpds::HashTrieMapSync;
use vestibule_model::hostname::{HostPattern, Hostname};

use crate::pattern_map::PatternMap;
use crate::quota::TenantQuota;

/// The owner of each pattern, by Gateway.
#[derive(Clone)]
pub(crate) struct Owners {
    gateways: HashTrieMapSync<Arc<str>, OwnedPatterns>,
    len: usize,
}

/// The owner of each pattern on one Gateway.
pub(crate) type OwnedPatterns = PatternMap<Arc<TenantQuota>>;

impl Default for Owners {
    fn default() -> Self {
        Self {
            gateways: HashTrieMapSync::new_sync(),
            len: 0,
        }
    }
}

impl Owners {
    /// The namespace that owns `host` on a Gateway. Requests and connections without a name belong to the owner of the
    /// pattern for every name, if there is one.
    pub(crate) fn owner<'a>(
        &'a self,
        gateway: &str,
        host: Option<&'a Hostname>,
    ) -> Option<&'a Arc<TenantQuota>> {
        self.gateways.get(gateway)?.matching_or_any(host).next()
    }

    /// The namespace to which a pattern itself was given on a Gateway.
    pub(crate) fn of(&self, gateway: &str, names: &HostPattern) -> Option<&Arc<TenantQuota>> {
        self.gateways.get(gateway)?.get(names)
    }

    /// The owners on a Gateway, if there are any.
    pub(crate) fn on(&self, gateway: &str) -> Option<&OwnedPatterns> {
        self.gateways.get(gateway)
    }

    /// Gives the names of a pattern to a namespace, in place of the former owner.
    pub(crate) fn set(&mut self, gateway: &Arc<str>, names: HostPattern, tenant: Arc<TenantQuota>) {
        let mut of = self.gateways.get(gateway).cloned();
        let of = of.get_or_insert_with(OwnedPatterns::new);
        self.len += usize::from(of.get(&names).is_none());
        of.insert(names, tenant);
        self.gateways.insert_mut(Arc::clone(gateway), of.clone());
    }

    /// Removes the owner of a pattern. Its names then belong to the owner of a wider pattern, if there is one.
    pub(crate) fn clear(&mut self, gateway: &str, names: &HostPattern) {
        let Some(mut of) = self.gateways.get(gateway).cloned() else {
            return;
        };
        self.len -= usize::from(of.get(names).is_some());
        of.remove(names);
        if of.is_empty() {
            self.gateways.remove_mut(gateway);
        } else if let Some((gateway, _)) = self.gateways.get_key_value(gateway) {
            let gateway = Arc::clone(gateway);
            self.gateways.insert_mut(gateway, of);
        }
    }

    /// How many patterns are owned.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gateway, pattern and owner of each entry, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, HostPattern, &Arc<TenantQuota>)> {
        self.gateways.iter().flat_map(|(gateway, of)| {
            let owned = of.iter();
            owned.map(move |(names, tenant)| (gateway, names, tenant))
        })
    }
}

/// Decides which routes of one of the Gateway's own listeners may serve a hostname.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostnameGuard<'a>(Option<Namespaces<'a>>);

#[derive(Debug, Clone, Copy)]
struct Namespaces<'a> {
    owner: &'a Arc<TenantQuota>,
    gateway: &'a str,
}

impl<'a> HostnameGuard<'a> {
    /// Admits every route, because nobody owns the hostname, or because the listener belongs to the owner.
    pub(crate) const OPEN: Self = Self(None);

    /// Admits the routes of the hostname's owner and those of the Gateway's namespace.
    pub(crate) fn new(owner: &'a Arc<TenantQuota>, gateway: &'a str) -> Self {
        Self(Some(Namespaces { owner, gateway }))
    }

    /// The owner of the hostname, if the listener does not belong to that namespace.
    pub(crate) fn owner(self) -> Option<&'a Arc<TenantQuota>> {
        self.0.map(|of| of.owner)
    }

    /// Whether routes of a namespace may serve the hostname.
    pub(crate) fn admits(self, tenant: &str) -> bool {
        self.0
            .is_none_or(|of| *tenant == **of.owner.tenant() || tenant == of.gateway)
    }
}
