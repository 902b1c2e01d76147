//! HTTPRoute on the wire (`httproute_types.go`) and its conversion.
//!
//! A rule that is refused does not affect the other rules: its findings belong to that rule.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::http::{self, HttpMatch, HttpTimeouts};
use vestibule_model::key::Kind;

use super::http_cors;
use super::http_filter::{self, HTTPRouteFilter};
use super::http_match::{self, Budget, HTTPRouteMatch};
use super::http_retry::{self, HTTPRouteRetry};
use super::http_session::{self, SessionPersistence};
use super::route::{self, BackendRef, MAX_BACKENDS, ParentReference, at_most};
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{duration, meta, names};

/// Hostnames per route of this form (`MaxItems`).
const MAX_HOSTNAMES: usize = 16;
/// Rules per route of this form (`MaxItems`).
const MAX_RULES: usize = 16;

/// Spec of an HTTPRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "HTTPRoute",
    plural = "httproutes",
    namespaced,
    status = "Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "HTTPRoute."
)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteSpec {
    /// Parents it wants to attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    /// Experimental: All or None, whether to attach to default Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<String>,
    /// Hostnames; none is all of the listener's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Rules; none is one that takes every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<HTTPRouteRule>,
}

/// HTTPRouteRule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Any of them takes a request; none is every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<HTTPRouteMatch>,
    /// Filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HTTPRouteFilter>,
    /// Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<HTTPBackendRef>,
    /// Timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HTTPRouteTimeouts>,
    /// When a request is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<HTTPRouteRetry>,
    /// How the requests of one client stay at one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// HTTPBackendRef, which GRPCBackendRef has the fields of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPBackendRef {
    /// API group; absent is core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind; absent is Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; absent is the route's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Port, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Weight, as written; absent is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
    /// Filters for what goes there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HTTPRouteFilter>,
}

/// HTTPRouteTimeouts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteTimeouts {
    /// Of a whole request (GEP-2257).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Of one try at a backend (GEP-2257).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<String>,
}

/// Converts a route. A refusal outside the rules refuses the route. A refusal in a rule refuses only that rule.
pub(crate) fn convert(wire: HTTPRoute, unknown: &UnknownFields) -> http::HttpRoute {
    let parts = RouteParts {
        kind: Kind::HttpRoute,
        metadata: wire.metadata,
        parent_refs: wire.spec.parent_refs,
        use_default_gateways: wire.spec.use_default_gateways,
        hostnames: wire.spec.hostnames,
        rules: wire.spec.rules,
    };
    parts.convert(unknown, rule)
}

/// A route on the wire whose kind has the form of an HTTPRoute. Its rules are of the type `R`.
pub(super) struct RouteParts<R> {
    pub(super) kind: Kind,
    pub(super) metadata: ObjectMeta,
    pub(super) parent_refs: Vec<ParentReference>,
    pub(super) use_default_gateways: Option<String>,
    pub(super) hostnames: Vec<String>,
    pub(super) rules: Vec<R>,
}

impl<R: Default> RouteParts<R> {
    /// Converts the route. `rule` converts the rule with an index of a route in a namespace.
    pub(super) fn convert(
        self,
        unknown: &UnknownFields,
        rule: impl Fn(R, usize, &Arc<str>, &mut Budget, &UnknownFields) -> http::HttpRule,
    ) -> http::HttpRoute {
        let kind = self.kind;
        let name = meta::name(&self.metadata);
        let mut findings = unknown.refusals_between(&["spec"], &["spec", "rules"]);
        findings.extend(unknown.warnings_outside(&[&["spec"]]));
        findings.extend(route::default_gateways(self.use_default_gateways));
        let hostnames = if self.hostnames.is_empty() {
            vec![(0, HostPattern::Any)]
        } else {
            route::hostnames(kind, &self.hostnames, MAX_HOSTNAMES, &mut findings)
        };
        let count = self.rules.len();
        at_most(kind, count, MAX_RULES, "spec.rules", &mut findings);
        let wire_rules = if self.rules.is_empty() {
            vec![R::default()]
        } else {
            self.rules
        };
        let mut budget = Budget::of(kind);
        let mut rule_names = BTreeSet::new();
        // If there are more, the route is refused as a whole, so no other rule takes what the rest are for.
        let mut rules: Vec<_> = wire_rules
            .into_iter()
            .take(MAX_RULES)
            .enumerate()
            .map(|(index, wire)| {
                let mut rule = rule(wire, index, &name.namespace, &mut budget, unknown);
                if let Some(name) = &rule.name
                    && !rule_names.insert(name.clone())
                {
                    rule.findings.push(Finding::refused(
                        Reason::Duplicate,
                        format!("{}.name", rule.field),
                        format!("{} is the name of an earlier rule", quote(name)),
                        "give each rule its own name",
                    ));
                }
                rule
            })
            .collect();
        findings.extend(budget.refusals);
        http_session::warn_of_shared_names(&mut rules);
        http::HttpRoute {
            kind,
            meta: meta::convert(&self.metadata),
            parents: route::parents(kind, self.parent_refs, &mut findings),
            hostnames,
            rules,
            findings,
            name,
        }
    }
}

fn rule(
    wire: HTTPRouteRule,
    index: usize,
    namespace: &Arc<str>,
    budget: &mut Budget,
    unknown: &UnknownFields,
) -> http::HttpRule {
    let field = format!("spec.rules[{index}]");
    let mut findings = unknown.refusals_below(&["spec", "rules", &index.to_string()]);
    let name = name_of_rule(wire.name, &field, &mut findings);
    let matches = if wire.matches.is_empty() {
        vec![HttpMatch::default()]
    } else {
        http_match::convert_all(wire.matches, &field, budget, &mut findings)
    };
    let timeouts = timeouts(wire.timeouts, &field, &mut findings);
    let retry = wire
        .retry
        .map(|wire| http_retry::convert(wire, &field, &mut findings));
    let session = wire
        .session_persistence
        .map(|wire| http_session::convert(wire, &field, &mut findings));
    let answers = wire.filters.iter().any(HTTPRouteFilter::redirects);
    if answers && !wire.backend_refs.is_empty() {
        findings.push(Finding::refused(
            Reason::IncompatibleFilters,
            format!("{field}.backendRefs"),
            "stand beside a redirection, which answers every request itself",
            "remove the backends, or the filter",
        ));
    }
    let filters = |wire, field: &str, findings: &mut Vec<Finding>| {
        http_filter::convert_all(wire, field, namespace, &matches, findings)
    };
    let own_filters = filters(wire.filters, &field, &mut findings);
    findings.extend(http_cors::no_preflight(&own_filters, &matches, &field));
    let backends = backends(
        Kind::HttpRoute,
        wire.backend_refs,
        (&field, namespace),
        &mut findings,
        filters,
    );
    http::HttpRule {
        name: name.map(Into::into),
        field,
        matches,
        filters: own_filters,
        backends,
        timeouts,
        retry,
        session: session.flatten(),
        findings,
    }
}

/// The name of a rule, if it is valid.
pub(super) fn name_of_rule(
    name: Option<String>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    name.filter(|name| {
        let good = names::is_subdomain(name);
        if !good {
            findings.push(names::not_a_name(&format!("{field}.name"), name));
        }
        good
    })
}

/// The backends of the rule at `field`, for a route of this kind. `filters` converts the filters of one backend.
pub(super) fn backends(
    kind: Kind,
    wire: Vec<HTTPBackendRef>,
    (field, namespace): (&str, &Arc<str>),
    findings: &mut Vec<Finding>,
    filters: impl Fn(Vec<HTTPRouteFilter>, &str, &mut Vec<Finding>) -> Vec<http::HttpFilter>,
) -> Vec<http::HttpBackend> {
    let refs = format!("{field}.backendRefs");
    at_most(kind, wire.len(), MAX_BACKENDS, &refs, findings);
    // If there are more, the rule is refused and uses none of them.
    let wire = wire.into_iter().take(MAX_BACKENDS).enumerate();
    wire.map(|(index, wire)| {
        let field = format!("{refs}[{index}]");
        if kind == Kind::HttpRoute {
            findings.extend(http_filter::only_of_rules(&wire.filters, &field));
        }
        let mut filters = filters(wire.filters, &field, findings);
        filters.retain(|filter| !matches!(filter, http::HttpFilter::Auth(_)));
        let reference = BackendRef {
            group: wire.group,
            kind: wire.kind,
            name: wire.name,
            namespace: wire.namespace,
            port: wire.port,
            weight: wire.weight,
        };
        http::HttpBackend {
            backend: route::backend(reference, namespace, field, findings),
            filters,
        }
    })
    .collect()
}

fn timeouts(
    wire: Option<HTTPRouteTimeouts>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> HttpTimeouts {
    let wire = wire.unwrap_or_default();
    let mut read = |name: &str, text: Option<String>| {
        let text = text?;
        let duration = duration::parse(&text);
        if duration.is_none() {
            findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.timeouts.{name}"),
                format!("{} is not a duration", quote(&text)),
                "use numbers with the units h, m, s and ms, such as \"1m30s\"",
            ));
        }
        duration
    };
    let request = read("request", wire.request);
    let backend_request = read("backendRequest", wire.backend_request);
    if let (Some(request), Some(backend)) = (request, backend_request)
        && !request.is_zero()
        && backend > request
    {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            format!("{field}.timeouts.backendRequest"),
            "is longer than the timeout of the whole request",
            "make it as long or shorter",
        ));
    }
    HttpTimeouts {
        request,
        backend_request,
    }
}
