//! What translation reports about an object of any kind: the findings that the object has by itself, and the changes
//! of its status and of its findings.

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::condition::{Condition, ConditionType, Truth};
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;

use super::output::{Output, Status};
use super::{Translator, source};

impl Translator {
    /// The findings that an object has by itself, other than those of listeners and routes.
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

    /// Records the status of an object, and reports it if it has changed.
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

    /// Records the findings of an object, and reports them if they have changed.
    pub(super) fn settle_findings(
        &mut self,
        key: &ObjectKey,
        mut findings: Vec<Finding>,
        output: &mut Output,
    ) {
        // The order stays, and each finding is reported once.
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

/// A condition that is False, with the reason and the message of a finding. If the finding says that a source is being
/// read, the condition is Unknown.
pub(super) fn fails(kind: ConditionType, finding: &Finding) -> Condition {
    let mut condition = Condition::fails(kind, finding.reason.in_condition(), finding.to_string());
    if source::is_unread(finding) {
        condition.truth = Truth::Unknown;
    }
    condition
}

/// The text of several findings, for the message of one condition.
pub(super) fn all_of(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
    texts.join(". ")
}
