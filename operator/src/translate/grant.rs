//! Statuses of `HostnameGrants`. The merge decides what a grant gives.

use vestibule_model::condition::{Condition, ConditionType, GrantStatus, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{ObjectKey, ObjectName};

use super::output::Status;
use super::report::{all_of, fails};
use super::{Output, Translator};

const ACCEPTED: ConditionType = ConditionType::Accepted;
const RESOLVED: ConditionType = ConditionType::ResolvedRefs;

impl Translator {
    pub(super) fn assemble_grant(&mut self, key: &ObjectKey, output: &mut Output) {
        let mut findings = self.own_findings(key);
        let status = self.merge.grant(&key.name).cloned().and_then(|grant| {
            for finding in &grant.findings {
                if !findings.contains(finding) {
                    findings.push(finding.clone());
                }
            }
            let absent = self.absent_gateways(&grant);
            findings.extend(absent.iter().cloned());
            self.concerns_us(&grant).then(|| {
                let conditions = vec![accepted(&grant), resolved(&absent)];
                Status::Grant(GrantStatus { conditions })
            })
        });
        self.settle_status(key.clone(), status, output);
        self.settle_findings(key, findings, output);
    }

    /// Warnings about Gateways that a grant names and that do not exist.
    fn absent_gateways(&self, grant: &HostnameGrant) -> Vec<Finding> {
        let namespace = &grant.name.namespace;
        if grant.gateways.is_empty() && self.merge.gateways_in(namespace).next().is_none() {
            return vec![Finding::warning(
                Reason::TargetNotFound,
                "metadata.namespace",
                format!("there is no Gateway in namespace {namespace}, so it grants nothing"),
                "put it into the namespace of the Gateway",
            )];
        }
        let absent = |name: &&std::sync::Arc<str>| {
            !self
                .merge
                .is_known_gateway(&ObjectName::new(namespace.clone(), (*name).clone()))
        };
        let absent = grant.gateways.iter().filter(absent);
        absent
            .map(|name| {
                Finding::warning(
                    Reason::TargetNotFound,
                    "spec.gateways",
                    format!("Gateway {namespace}/{name} does not exist"),
                    "create it, or correct the name; a grant is for Gateways of its own namespace",
                )
            })
            .collect()
    }

    /// Whether Vestibule writes the status of a grant. It does not if all Gateways that the grant is
    /// for belong to other controllers.
    fn concerns_us(&self, grant: &HostnameGrant) -> bool {
        let mut gateways = self
            .merge
            .gateways_in(&grant.name.namespace)
            .filter(|gateway| grant.is_for(&gateway.name))
            .peekable();
        gateways.peek().is_none() || gateways.any(|gateway| !self.merge.is_foreign(gateway))
    }
}

fn accepted(grant: &HostnameGrant) -> Condition {
    let refusal = grant.findings.iter().find(|finding| finding.refuses());
    match refusal {
        Some(finding) if grant.hostnames.is_empty() => {
            let mut condition = fails(ACCEPTED, finding);
            condition.message = format!("It grants nothing: {finding}");
            condition
        }
        Some(finding) => {
            let mut condition = fails(ACCEPTED, finding);
            condition.message = format!("Part of it grants nothing: {finding}");
            condition
        }
        None if grant.meta.deleting => Condition::fails(
            ACCEPTED,
            Reason::Pending,
            "It is being deleted, and grants nothing any more",
        ),
        None => Condition::holds(ACCEPTED, Reason::Accepted, "The grant is in force"),
    }
}

fn resolved(absent: &[Finding]) -> Condition {
    match absent.first() {
        None => Condition::holds(
            RESOLVED,
            Reason::ResolvedRefs,
            "Every Gateway that it names is there",
        ),
        Some(finding) => Condition::fails(RESOLVED, finding.reason, all_of(absent)),
    }
}
