//! GRPCRoute on the wire (`grpcroute_types.go`) and its conversion.
//!
//! In the model it has the form of an HTTPRoute, whose filters and header matches it shares. A rule that is refused
//! does not affect the other rules.

use std::sync::Arc;

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{self, HttpMatch, HttpTimeouts, MethodMatch, PathMatch, ValueMatch};
use vestibule_model::key::Kind;

use super::http_filter::{self, HTTPRouteFilter, MAX_FILTERS};
use super::http_match::{self, Budget, HTTPValueMatch, MAX_TEXT, MatchReader};
use super::http_route::{self, HTTPBackendRef, RouteParts};
use super::http_session::{self, SessionPersistence};
use super::route::{ParentReference, at_most};
use crate::text::quote;
use crate::unknown::UnknownFields;

/// Types of filters that GRPCRoute has (`Enum`).
const FILTERS: [&str; 4] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestMirror",
    "ExtensionRef",
];

/// Spec of a GRPCRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "GRPCRoute",
    plural = "grpcroutes",
    namespaced,
    status = "Value",
    schema = "disabled",
    derive = "PartialEq",
    doc = "GRPCRoute."
)]
#[serde(rename_all = "camelCase")]
pub struct GRPCRouteSpec {
    /// Parents it wants to attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    /// Experimental: All or None, whether to attach to default Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_default_gateways: Option<String>,
    /// Hostnames; none is all of the listener's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Rules; none is one that takes every call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<GRPCRouteRule>,
}

/// GRPCRouteRule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GRPCRouteRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Any of them takes a call; none is every call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<GRPCRouteMatch>,
    /// Filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HTTPRouteFilter>,
    /// Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<HTTPBackendRef>,
    /// How the calls of one client stay at one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// GRPCRouteMatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GRPCRouteMatch {
    /// Service and method; absent is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GRPCMethodMatch>,
    /// Headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HTTPValueMatch>,
}

/// GRPCMethodMatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GRPCMethodMatch {
    /// Exact (the default) or RegularExpression.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Service; empty or absent is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method; empty or absent is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// Converts a route. A refusal outside the rules refuses the route. A refusal in a rule refuses only that rule.
pub(crate) fn convert(wire: GRPCRoute, unknown: &UnknownFields) -> http::HttpRoute {
    let parts = RouteParts {
        kind: Kind::GrpcRoute,
        metadata: wire.metadata,
        parent_refs: wire.spec.parent_refs,
        use_default_gateways: wire.spec.use_default_gateways,
        hostnames: wire.spec.hostnames,
        rules: wire.spec.rules,
    };
    parts.convert(unknown, rule)
}

fn rule(
    wire: GRPCRouteRule,
    index: usize,
    namespace: &Arc<str>,
    budget: &mut Budget,
    unknown: &UnknownFields,
) -> http::HttpRule {
    let field = format!("spec.rules[{index}]");
    let mut findings = unknown.refusals_below(&["spec", "rules", &index.to_string()]);
    let name = http_route::name_of_rule(wire.name, &field, &mut findings);
    let session = wire
        .session_persistence
        .map(|wire| http_session::convert(wire, &field, &mut findings));
    let matches = if wire.matches.is_empty() {
        vec![any_call()]
    } else {
        http_match::convert_each(wire.matches, &field, budget, &mut findings, read)
    };
    let filters = |wire: Vec<HTTPRouteFilter>, field: &str, findings: &mut Vec<Finding>| {
        let filters = format!("{field}.filters");
        let count = wire.len();
        at_most(Kind::GrpcRoute, count, MAX_FILTERS, &filters, findings);
        let wire: Vec<_> = wire.into_iter().take(MAX_FILTERS).collect();
        for (index, filter) in wire.iter().enumerate() {
            if http_filter::is_known(&filter.kind) && !FILTERS.contains(&&*filter.kind) {
                findings.push(Finding::refused(
                    Reason::UnsupportedValue,
                    format!("{filters}[{index}].type"),
                    format!("{} is no filter of GRPCRoutes", quote(&filter.kind)),
                    "remove the filter",
                ));
            }
        }
        http_filter::convert_all(wire, field, namespace, &matches, findings)
    };
    let own_filters = filters(wire.filters, &field, &mut findings);
    let backends = http_route::backends(
        Kind::GrpcRoute,
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
        timeouts: HttpTimeouts::default(),
        retry: None,
        session: session.flatten(),
        findings,
    }
}

fn any_call() -> HttpMatch {
    HttpMatch {
        path: PathMatch::Method(MethodMatch::default()),
        ..HttpMatch::default()
    }
}

fn read(reader: &mut MatchReader<'_>, wire: GRPCRouteMatch) -> HttpMatch {
    let method = wire.method.map(|wire| method(reader, wire));
    HttpMatch {
        path: PathMatch::Method(method.unwrap_or_default()),
        headers: reader.values(wire.headers, "headers"),
        ..HttpMatch::default()
    }
}

fn method(reader: &mut MatchReader<'_>, wire: GRPCMethodMatch) -> MethodMatch {
    let is_regex = match wire.kind.as_deref().unwrap_or("Exact") {
        "Exact" => false,
        "RegularExpression" => true,
        other => {
            reader.unknown_type("method.type", other);
            return MethodMatch::default();
        }
    };
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (service, method) = (given(wire.service), given(wire.method));
    if service.is_none() && method.is_none() {
        reader.refuse(
            Reason::InvalidValue,
            "method",
            "names neither a service nor a method".into(),
            "name one of them, or leave the whole match out for every call",
        );
    }
    let mut part = |text: Option<String>, part: &str, is_name: fn(&str) -> bool| {
        let text = text?;
        let field = format!("method.{part}");
        if text.len() > MAX_TEXT {
            reader.too_long(&field, MAX_TEXT);
        }
        if is_regex {
            return reader.pattern(&text, &field).map(ValueMatch::Regex);
        }
        if !is_name(&text) {
            let message = format!("{} is not the name of a {part}", quote(&text));
            let action = "use letters, digits and '_', and in a service '.' between them";
            reader.refuse(Reason::InvalidValue, &field, message, action);
        }
        Some(ValueMatch::Exact(text.into()))
    };
    MethodMatch {
        service: part(service, "service", is_service),
        method: part(method, "method", is_identifier),
    }
}

/// Whether `text` is the name of a service with its package, such as `shop.v1.Cart`. The API allows a dot in front,
/// which is matched like the rest.
fn is_service(text: &str) -> bool {
    let text = text.strip_prefix('.').unwrap_or(text);
    text.split('.').all(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next();
    first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
