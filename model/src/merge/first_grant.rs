//! Finds out what the first grant of a Gateway takes from namespaces, for admission.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Merge;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname_grant::HostnameGrant;

/// Most hostnames of a Gateway that a warning counts.
const MOST_LOOKED_AT: usize = 10_000;

impl Merge {
    /// A warning for each Gateway without grants for which this grant would be the first. Everything that no grant gives
    /// is refused from then on, so the warning says how many of the hostnames that namespaces hold there now would be
    /// lost, or may be where the grant names ports or protocols. There is none where no hostname is lost.
    ///
    /// At most 10,000 hostnames are looked at, and each namespace once, since anybody who reaches the webhook
    /// may ask.
    #[must_use]
    pub fn lost_by_first_grant(&self, grant: &HostnameGrant) -> Vec<Finding> {
        // A grant of some ports or protocols gives no hostname as a whole.
        let is_for_all = grant.ports.is_empty() && grant.protocols.is_empty();
        let would = if is_for_all { "would" } else { "may" };
        let concerned = self.names.iter().filter(|(gateway, _)| {
            gateway.namespace == grant.name.namespace
                && grant.is_for(&gateway.name)
                && self.gateway(gateway).is_some()
                && !self.is_guarded(gateway)
        });
        let findings = concerned.filter_map(|(gateway, names)| {
            let mut selected: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
            let gives = |names| is_for_all && grant.covers(names);
            let mut lost = 0;
            for (names, holder) in names.held().take(MOST_LOOKED_AT) {
                let is_selected = *selected
                    .entry(holder)
                    .or_insert_with(|| grant.selects(holder, self.labels(holder)));
                let is_kept = *holder == gateway.namespace || is_selected && gives(names);
                lost += usize::from(!is_kept);
            }
            (lost > 0).then(|| {
                let hostnames = if lost == 1 {
                    "1 hostname".to_owned()
                } else {
                    format!("{lost} hostnames")
                };
                Finding::warning(
                    Reason::HostnameNotOwned,
                    "spec",
                    format!(
                        "is the first HostnameGrant for Gateway {gateway}, so namespaces keep there only what grants \
                         give: {hostnames} {would} be lost that they hold now"
                    ),
                    "begin with a grant of \"*\" for all namespaces, and delete it when each of them has grants of its own",
                )
            })
        });
        findings.collect()
    }
}
