//! The findings about an object under review: what is wrong with the object itself, and what is wrong with it together
//! with the objects that exist. All verdicts come from the model. This module decides which rules apply to which kind.

mod routes;

use vestibule_crds::gateway_api::{unsupported_parameters, unsupported_protocol};
use vestibule_model::annotations::{problems_of_gateway, problems_of_set};
use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::gateway::{Gateway, Listener, ListenerSet, TlsMode};
use vestibule_model::key::ObjectKey;
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_model::reference::Reference;
use vestibule_model::route::Route;

use crate::admission_state::AdmissionState;

/// The findings about `new`, which replaces `old` if there is one. Their severity does not depend on the mode yet.
pub(crate) fn findings(
    state: &AdmissionState,
    policy: &Policy,
    old: Option<&Object>,
    new: &Object,
) -> Vec<Finding> {
    match new {
        Object::TlsRoute(route) => {
            let mut findings = policy.judge_route(route);
            findings.extend(routes::findings(state, policy, old, Route::Tls(route)));
            findings
        }
        Object::HttpRoute(route) => {
            // A bad rule that the old version already had does not refuse the object, so that its other rules can be
            // edited.
            let had: Vec<&Finding> = old.into_iter().flat_map(Object::findings).collect();
            let kept = |finding: &Finding| {
                let same =
                    |old: &&Finding| old.reason == finding.reason && old.message == finding.message;
                had.iter().any(same)
            };
            let own = new.findings().cloned();
            let own = own.map(|f| if kept(&f) { warning(f) } else { f });
            let mut findings: Vec<Finding> = own.collect();
            findings.extend(routes::findings(state, policy, old, Route::Http(route)));
            findings
        }
        Object::PortRoute(route) => {
            let mut findings = route.findings.clone();
            findings.extend(routes::findings(state, policy, old, Route::Port(route)));
            findings
        }
        Object::ListenerSet(set) => {
            let old = match old {
                Some(Object::ListenerSet(old)) => Some(old.as_ref()),
                _ => None,
            };
            of_set(state, old, set)
        }
        Object::Gateway(gateway) => of_gateway(state, gateway),
        Object::GatewayClass(class) => {
            let unsupported = class.parameters.as_ref().and_then(unsupported_parameters);
            let own = class.findings.iter().cloned();
            own.chain(unsupported).collect()
        }
        Object::HostnameGrant(grant) => {
            let lost = state.merge().lost_by_first_grant(grant);
            grant.findings.iter().cloned().chain(lost).collect()
        }
        other => other.findings().cloned().collect(),
    }
}

fn of_set(state: &AdmissionState, old: Option<&ListenerSet>, set: &ListenerSet) -> Vec<Finding> {
    let merge = state.merge();
    let own = set.listeners.iter().flat_map(|l| &l.findings);
    let not_allowed = match merge.verdict(set) {
        SetVerdict::NotAllowed(finding) => Some(finding),
        SetVerdict::Allowed | SetVerdict::Orphan => None,
    };
    let gateway = set.gateway.as_ref().and_then(|name| merge.gateway(name));
    let key = set.parent_key().object();
    // Until the Gateway is known, the set may belong to a controller that serves the protocol.
    let unserved = set.listeners.iter().filter(|_| gateway.is_some());
    // If others can repair something without a change of this object, it is only a warning. So is a protocol that a
    // later release may serve: its listener alone is not accepted.
    let told = not_allowed
        .into_iter()
        .chain(problems_of_set(set, gateway.map(AsRef::as_ref)))
        .chain(merge.would_withhold(set))
        .chain(unserved.filter_map(unsupported_protocol))
        .chain(not_permitted(state, &key, certificates(&set.listeners)))
        .map(warning);
    set.findings
        .iter()
        .chain(own)
        .cloned()
        .chain(
            merge
                .ownership_of_change(old, set)
                .into_iter()
                .map(inherited_is_told),
        )
        .chain(merge.ports_of_change(old, set))
        .chain(merge.conflicts_of_change(old, set))
        .chain(told)
        .collect()
}

/// Turns a finding about an inherited issuer into a warning. The set did not choose the issuer, and may bring a
/// certificate of its own.
fn inherited_is_told(finding: Finding) -> Finding {
    if finding.reason == Reason::IssuerNotAllowed && finding.field == "spec.parentRef" {
        warning(finding)
    } else {
        finding
    }
}

fn of_gateway(state: &AdmissionState, gateway: &Gateway) -> Vec<Finding> {
    let own = gateway.listeners.iter().flat_map(|l| &l.findings);
    let key = gateway.parent_key().object();
    let parameters = gateway.infrastructure.parameters.as_ref();
    gateway
        .findings
        .iter()
        .chain(own)
        .cloned()
        .chain(parameters.and_then(unsupported_parameters))
        .chain(gateway.listeners.iter().filter_map(unsupported_protocol))
        .chain(problems_of_gateway(gateway))
        .chain(not_permitted(state, &key, certificates(&gateway.listeners)))
        .collect()
}

/// References to certificates, of those listeners that use them.
fn certificates(listeners: &[Listener]) -> impl Iterator<Item = &Reference> {
    listeners
        .iter()
        .filter_map(|listener| listener.tls.as_ref())
        .filter(|tls| tls.mode == TlsMode::Terminate)
        .flat_map(|tls| &tls.certificates)
}

/// Findings about references to other namespaces that no `ReferenceGrant` permits (yet).
fn not_permitted<'a>(
    state: &'a AdmissionState,
    referrer: &'a ObjectKey,
    references: impl Iterator<Item = &'a Reference> + 'a,
) -> impl Iterator<Item = Finding> + 'a {
    let grants = state.reference_grants();
    references.filter_map(move |reference| grants.permit(referrer, reference).err())
}

fn warning(finding: Finding) -> Finding {
    Finding {
        severity: Severity::Warning,
        ..finding
    }
}
