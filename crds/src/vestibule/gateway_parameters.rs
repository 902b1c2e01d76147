//! GatewayParameters: what a GatewayClass or a Gateway sets otherwise than the release.

use std::collections::BTreeMap;
use std::str::FromStr;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::object;
use vestibule_model::service::UnknownWord;

use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{duration, meta};

/// What the Gateways that refer to it set otherwise than the release. A GatewayClass refers to it by
/// spec.parametersRef, a Gateway by spec.infrastructure.parametersRef. A field that is absent is
/// decided by the GatewayClass's parameters, then by the release.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource,
)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "GatewayParameters",
    plural = "gatewayparameters",
    singular = "gatewayparameters",
    category = "gateway-api",
    namespaced,
    derive = "PartialEq",
    doc = "GatewayParameters says how Vestibule sets up the Gateways that refer to it."
)]
#[serde(rename_all = "camelCase")]
pub struct GatewayParametersSpec {
    /// The Service that gives a Gateway its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceSpec>,
    /// Limits of connections and requests on its listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
}

/// Limits of connections and requests on a Gateway's listeners. Each counts as it is written, tighter or
/// looser than the release's, and 0 means no limit. Durations are Gateway API's, such as 1h30m or 500ms, and are
/// rounded up to seconds but for requestTimeout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitsSpec {
    /// Time that an HTTP request may go without a byte of its body, its answer's head or its answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = duration::PATTERN))]
    pub stream_idle_timeout: Option<String>,
    /// Time from the head of an HTTP request to the end of its answer, for routes whose rule has no
    /// timeouts.request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = duration::PATTERN))]
    pub request_timeout: Option<String>,
    /// Time that a tunnel (a TLSRoute's connection or a WebSocket) may go without a byte in either direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = duration::PATTERN))]
    pub tunnel_idle_timeout: Option<String>,
    /// Age from which on a connection is to end, give or take a tenth. HTTP clients are told and their
    /// requests may end; tunnels are closed after as much time as they have at a shutdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = duration::PATTERN))]
    pub max_connection_age: Option<String>,
    /// Most bytes of an HTTP request's body. A larger one is answered with 413.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "format" = "int64"))]
    pub max_request_body_bytes: Option<i64>,
}

/// The Service that gives a Gateway its address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// LoadBalancer, ClusterIP or NodePort.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["LoadBalancer", "ClusterIP", "NodePort"]))]
    pub service_type: Option<String>,
    /// Annotations of the Service, for its load balancer. Those of the GatewayClass's and of the
    /// Gateway's parameters are merged key by key; the Gateway's win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: BTreeMap<String, String>,
    /// Local keeps the client's address; Cluster may lose it. For LoadBalancer and NodePort.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Local", "Cluster"]))]
    pub external_traffic_policy: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["SingleStack", "PreferDualStack", "RequireDualStack"]))]
    pub ip_family_policy: Option<String>,
    /// IPv4 and IPv6, the primary one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 2,
        "items" = {"type": "string", "enum": ["IPv4", "IPv6"]},
        "x-kubernetes-list-type" = "set",
    ))]
    pub ip_families: Vec<String>,
    /// Which implementation of load balancers takes the Service. Cannot be changed once it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 316))]
    pub load_balancer_class: Option<String>,
}

pub(crate) fn convert(
    wire: GatewayParameters,
    unknown: &UnknownFields,
) -> object::GatewayParameters {
    let mut findings = unknown.warnings_outside(&[]);
    let service = wire.spec.service.unwrap_or_default();
    let mut families = Vec::new();
    for (index, text) in service.ip_families.iter().enumerate() {
        let field = format!("spec.service.ipFamilies[{index}]");
        match word(Some(text), &field, &mut findings) {
            Some(family) if families.contains(&family) => {
                findings.push(malformed(
                    &field,
                    "is one too many",
                    "name each family once",
                ));
            }
            family => families.extend(family),
        }
    }
    let limits = limits(wire.spec.limits.unwrap_or_default(), &mut findings);
    object::GatewayParameters {
        name: meta::name(&wire.metadata),
        meta: meta::convert(&wire.metadata),
        service: object::ServiceParameters {
            service_type: word(
                service.service_type.as_deref(),
                "spec.service.type",
                &mut findings,
            ),
            annotations: service.annotations,
            external_traffic_policy: word(
                service.external_traffic_policy.as_deref(),
                "spec.service.externalTrafficPolicy",
                &mut findings,
            ),
            ip_family_policy: word(
                service.ip_family_policy.as_deref(),
                "spec.service.ipFamilyPolicy",
                &mut findings,
            ),
            ip_families: families,
            load_balancer_class: service.load_balancer_class.map(Into::into),
        },
        limits,
        findings,
    }
}

fn limits(wire: LimitsSpec, findings: &mut Vec<Finding>) -> object::LimitParameters {
    let mut time = |name: &str, text: Option<String>| {
        let text = text?;
        let duration = duration::parse(&text);
        if duration.is_none() {
            findings.push(malformed(
                &format!("spec.limits.{name}"),
                &format!("{} is not a duration", quote(&text)),
                "use numbers with the units h, m, s and ms, such as \"1m30s\"",
            ));
        }
        duration
    };
    let limits = object::LimitParameters {
        stream_idle: time("streamIdleTimeout", wire.stream_idle_timeout),
        request: time("requestTimeout", wire.request_timeout),
        tunnel_idle: time("tunnelIdleTimeout", wire.tunnel_idle_timeout),
        connection_age: time("maxConnectionAge", wire.max_connection_age),
        request_body: None,
    };
    let bytes = wire.max_request_body_bytes.map(u64::try_from);
    if let Some(Err(_)) = bytes {
        findings.push(malformed(
            "spec.limits.maxRequestBodyBytes",
            "is negative",
            "write 0 for no limit",
        ));
    }
    object::LimitParameters {
        request_body: bytes.and_then(Result::ok),
        ..limits
    }
}

/// A word of an enumeration, or `None` and a refusal.
fn word<T: FromStr<Err = UnknownWord>>(
    text: Option<&str>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Option<T> {
    let parsed: Result<T, UnknownWord> = text?.parse();
    parsed
        .map_err(|error| {
            findings.push(malformed(field, &error.to_string(), "use one of those"));
        })
        .ok()
}

fn malformed(field: &str, message: &str, action: &str) -> Finding {
    Finding::refused(Reason::InvalidParameters, field, message, action)
}
