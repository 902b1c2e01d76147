//! Decides which namespace has the right to certificates for a hostname, over all Gateways.
//!
//! A claim is about one Gateway, and a certificate is good on all of them. An account serves all tenants of an
//! issuer, and CAs reuse its authorizations, so a tenant could get a certificate for the name of another one by asking
//! on a Gateway where the name is free. Therefore one namespace has the right to certificates for a hostname:
//!
//! - On each Gateway, the owner is looked up as for connections: by the nearest pattern around the hostname.
//! - If that pattern is an exact name of the Gateway's own namespace, that namespace comes first.
//! - Of tenants, the one whose claim is the oldest comes first, and of equally old claims the one on the Gateway whose
//!   name comes first. So nobody keeps the holder from a renewal by a claim on another Gateway.
//! - A claim to "every name that nobody else holds" does not count, and neither does a wildcard of the Gateway's own
//!   namespace. They keep nobody from a name.
//!
//! The Gateway's own namespace may certify what its own listeners have, whoever else has the name.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::ObjectName;

use super::{Dirty, Translator};

impl Translator {
    pub(super) fn take_since(
        &mut self,
        changes: BTreeMap<ClaimKey, Option<i64>>,
        dirty: &mut Dirty,
    ) {
        for (key, since) in changes {
            let old = match since {
                Some(since) => self.held_since.insert(key.clone(), since),
                None => self.held_since.remove(&key),
            };
            if let Claimed::Names(names) = key.of
                && old != since
            {
                dirty.aged.insert((key.gateway, names));
            }
        }
    }

    /// The namespace with the right to certificates for a hostname, if any has it. The cost is a few look-ups for each
    /// label of the hostname, on each Gateway.
    fn first_holder(&self, hostname: &Hostname) -> Option<&Arc<str>> {
        let names = HostPattern::Exact(hostname.clone());
        let holders = self.merge.gateways_with_names().filter_map(|gateway| {
            let (pattern, owner) = self.merge.nearest_owner(gateway, &names)?;
            let is_own = *owner == gateway.namespace;
            let counts = match pattern {
                HostPattern::Exact(_) => true,
                HostPattern::Wildcard(_) => !is_own,
                HostPattern::Any => false,
            };
            let since = if is_own {
                i64::MIN
            } else {
                let key = ClaimKey::names(gateway, pattern);
                // Without a record, the claim has yet to be written.
                self.held_since.get(&key).copied().unwrap_or(i64::MAX)
            };
            counts.then_some(((since, gateway), owner))
        });
        let first = holders.min_by_key(|(place, _)| *place);
        first.map(|(_, owner)| owner)
    }

    /// Whether another namespace than `namespace` has the right to certificates for a hostname, through whatever
    /// Gateway.
    pub(super) fn is_first_of_others(&self, hostname: &Hostname, namespace: &Arc<str>) -> bool {
        self.first_holder(hostname)
            .is_some_and(|first| first != namespace)
    }

    /// Whether a hostname may not be in a certificate of a namespace that asks on `gateway`, because of what another
    /// namespace has elsewhere.
    pub(super) fn is_held_elsewhere(
        &self,
        gateway: &ObjectName,
        hostname: &Hostname,
        namespace: &Arc<str>,
    ) -> bool {
        *namespace != gateway.namespace && self.is_first_of_others(hostname, namespace)
    }
}

/// Says that a hostname is another namespace's elsewhere, without naming it or the Gateway.
pub(super) fn held_elsewhere(field: impl Into<String>, hostname: &Hostname) -> Finding {
    Finding::refused(
        Reason::ServedByOthers,
        field,
        format!(
            "another namespace had \"{hostname}\" first, on another Gateway, so no certificate is requested for it"
        ),
        "use another hostname, or have it removed there first",
    )
}
