//! What translation reports of one object of any kind: its own findings, and its status and findings as they are now.

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::condition::{Condition, ConditionType};
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;

use super::Translator;
use super::output::{Output, Status};

pub(super) const WAITING_FOR_PORT: &str = "Waiting for an internal port";
/// What is said of a name until it stands in a `HostnameClaim`.
pub(crate) const WAITING_FOR_CLAIM: &str =
    "Waiting for its hostname or port to be recorded as held by its namespace";

impl Translator {
    /// What an object says against itself outside listeners and routes.
    pub(super) fn own_findings(&self, key: &ObjectKey) -> Vec<Finding> {
        match self.objects.get(key).map(Arc::as_ref) {
            Some(Object::Unreadable(_, _, finding)) => vec![finding.clone()],
            Some(Object::GatewayClass(class)) => class.findings.clone(),
            Some(Object::GatewayParameters(parameters)) => parameters.findings.clone(),
            Some(Object::EndpointSlice(slice)) => slice.findings.clone(),
            Some(Object::BackendTlsPolicy(policy)) => policy.findings.clone(),
            Some(Object::AcmeIssuer(issuer)) => issuer.findings.clone(),
            _ => Vec::new(),
        }
    }

    /// Records the status of an object, and reports it if that is news.
    pub(super) fn settle_status(
        &mut self,
        key: ObjectKey,
        status: Option<Status>,
        output: &mut Output,
    ) {
        output.work.statuses += 1;
        if self.statuses.get(&key) == status.as_ref() {
            return;
        }
        match &status {
            Some(status) => self.statuses.insert(key.clone(), status.clone()),
            None => self.statuses.remove(&key),
        };
        output.statuses.insert(key, status);
    }

    /// Records the findings of an object, and reports them if that is news.
    pub(super) fn settle_findings(
        &mut self,
        key: &ObjectKey,
        mut findings: Vec<Finding>,
        output: &mut Output,
    ) {
        // In spec order where there is one, without repetition.
        let mut seen = BTreeSet::new();
        findings.retain(|finding| seen.insert(finding.clone()));
        let old = self.findings.get(key);
        if old.map_or(findings.is_empty(), |old| *old == findings) {
            return;
        }
        if findings.is_empty() {
            self.findings.remove(key);
        } else {
            self.findings.insert(key.clone(), findings.clone());
        }
        output.findings.insert(key.clone(), findings);
    }
}

/// A condition that does not hold, for the reason of a finding.
pub(super) fn fails(kind: ConditionType, finding: &Finding) -> Condition {
    Condition::fails(kind, finding.reason.in_condition(), finding.to_string())
}
