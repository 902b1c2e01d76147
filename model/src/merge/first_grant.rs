//! What the first grant of a Gateway takes from namespaces. Admission asks for it.

use super::Merge;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname_grant::HostnameGrant;

impl Merge {
    /// A warning for each Gateway without grants for which this grant would be the first. Everything that no grant gives
    /// is refused from then on, so the warning says how many of the hostnames that namespaces hold there now would be
    /// lost. There is none where nothing is lost.
    ///
    /// The cost grows with the hostnames that are held on those Gateways.
    #[must_use]
    pub fn lost_by_first_grant(&self, grant: &HostnameGrant) -> Vec<Finding> {
        let concerned = self.names.iter().filter(|(gateway, _)| {
            gateway.namespace == grant.name.namespace
                && grant.is_for(&gateway.name)
                && self.gateway(gateway).is_some()
                && !self.is_guarded(gateway)
        });
        let findings = concerned.filter_map(|(gateway, names)| {
            let lost = names.held().filter(|(names, holder)| {
                **holder != gateway.namespace
                    && !(grant.covers(names) && grant.selects(holder, self.labels(holder)))
            });
            let lost = lost.count();
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
                         give: {hostnames} would be lost that they hold now"
                    ),
                    "begin with a grant of \"*\" for all namespaces, and delete it when each of them has grants of its own",
                )
            })
        });
        findings.collect()
    }
}
