//! GatewayParameters: settings of a GatewayClass or a Gateway that differ from the release's.

use std::collections::BTreeMap;
use std::str::FromStr;

use kube::CustomResource;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use vestibule_model::certificate::AddressBlock;
use vestibule_model::client_address::{
    ClientAddress, ForwardedHeader, ForwardedHeaders, MAX_HOPS, MAX_TRUSTED, ProxyProtocol,
    ProxyProtocolMode,
};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::parameters::{self, EscapedSlashes, HttpParameters, Underscores};
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::UnknownWord;

use super::selector::SelectorSpec;
use crate::gateway_api::scope;
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{duration, meta};

/// An IP address, or a block of them; which ones are read is for the reader to say.
const CIDR: &str = "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$";

/// Settings of the Gateways that refer to it, where they differ from the release's. A GatewayClass refers to it by
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
    /// The way to the address of a client where load balancers or other proxies are in front of the Gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddressSpec>,
    /// The treatment of HTTP requests that backends could read in another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// Limits on which backends are shown the client certificate of a Gateway (its
    /// spec.tls.backend.clientCertificateRef).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_client_certificate: Option<BackendClientCertificateSpec>,
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

/// The way to the address of a client. That address is in logs, counts for limits, and is what backends see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddressSpec {
    /// The PROXY protocol, versions 1 and 2, on every port of the Gateway. Replaces that of the GatewayClass's
    /// parameters as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocolSpec>,
    /// X-Forwarded-For and its like, or Forwarded, in requests. Replaces that of the GatewayClass's parameters as a
    /// whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_headers: Option<ForwardedHeadersSpec>,
}

/// The PROXY protocol: whether connections begin with its header, and whose header is believed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.mode == 'Disabled' || (has(self.trustedCIDRs) && size(self.trustedCIDRs) > 0)",
    "message": "must have trustedCIDRs, unless the mode is Disabled",
}]))]
pub struct ProxyProtocolSpec {
    /// Strict: every connection comes from a trusted address and begins with a header, or is closed. Optional:
    /// connections may come without; from other addresses than the trusted ones a header is refused. Disabled:
    /// there are no headers, whatever the GatewayClass's parameters say.
    #[schemars(extend("enum" = ["Strict", "Optional", "Disabled"]))]
    pub mode: String,
    /// Addresses of the load balancers, as the proxies see them: "192.0.2.1", or a block such as "192.0.2.0/24".
    #[serde(
        default,
        rename = "trustedCIDRs",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(transform = trusted_cidrs)]
    pub trusted_cidrs: Vec<String>,
}

/// Completes the schema of a list of addresses and blocks.
fn trusted_cidrs(schema: &mut Schema) {
    schema.insert("maxItems".into(), MAX_TRUSTED.into());
    let item = json!({"type": "string", "minLength": 2, "maxLength": 49, "pattern": CIDR});
    schema.insert("items".into(), item);
    schema.insert("x-kubernetes-list-type".into(), "set".into());
}

/// Hops in front of the Gateway that are believed about the requests that they pass on. With a number and with
/// addresses, a hop has to fit both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.trustedHops) || (has(self.trustedCIDRs) && size(self.trustedCIDRs) > 0)",
    "message": "must have trustedHops, trustedCIDRs, or both",
}]))]
pub struct ForwardedHeadersSpec {
    /// Header in which the hops list addresses: X-Forwarded-For (with X-Forwarded-Proto, -Host and -Port beside it), or
    /// Forwarded. The other one is never believed. Default: X-Forwarded-For.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["X-Forwarded-For", "Forwarded"]))]
    pub header: Option<String>,
    /// Number of proxies that requests pass before the Gateway. Without trustedCIDRs, nobody else may reach the
    /// Gateway: whoever does can say what they like. 0: nobody is believed, whatever the GatewayClass's parameters say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 0, "maximum" = MAX_HOPS))]
    pub trusted_hops: Option<i64>,
    /// Addresses of the proxies: "192.0.2.1", or a block such as "192.0.2.0/24".
    #[serde(
        default,
        rename = "trustedCIDRs",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(transform = trusted_cidrs)]
    pub trusted_cidrs: Vec<String>,
}

/// The treatment of HTTP requests that backends could read in another way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpSpec {
    /// Requests whose path has a slash written as %2F, %5C or a backslash. Refuse: they are answered with 400.
    /// Unescape: %2F is decoded once, before the path is matched and passed on; the others are answered with 400. Keep:
    /// the path is matched and passed on as it is. Absent: as the class's parameters say, then as the release does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Refuse", "Unescape", "Keep"]))]
    pub escaped_slashes: Option<String>,
    /// Request headers whose name has an underscore. Drop: they are removed. Refuse: the request is answered with 400.
    /// Allow: they are passed on. Absent: as the class's parameters say, then as the release does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Drop", "Refuse", "Allow"]))]
    pub underscores: Option<String>,
}

/// Limits on which backends are shown the client certificate of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendClientCertificateSpec {
    /// Namespaces of the Services that are shown it, where they ask for one. Absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<CertificateNamespacesSpec>,
}

/// Namespaces of Services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.from == 'Selector') == has(self.selector)",
    "message": "a selector goes with from: Selector, and with nothing else",
}]))]
pub struct CertificateNamespacesSpec {
    /// All, Same (that of the Gateway) or Selector.
    #[schemars(extend("enum" = ["All", "Same", "Selector"]))]
    pub from: String,
    /// Their labels, with from: Selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorSpec>,
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
    /// The implementation of load balancers that takes the Service. It cannot be changed once it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 316))]
    pub load_balancer_class: Option<String>,
    /// Whether each port of a LoadBalancer also has a NodePort. Ports that have one keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocate_load_balancer_node_ports: Option<bool>,
}

pub(crate) fn convert(
    wire: GatewayParameters,
    unknown: &UnknownFields,
) -> parameters::GatewayParameters {
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
    let client_address = wire.spec.client_address.unwrap_or_default();
    let http = http(&wire.spec.http.unwrap_or_default(), &mut findings);
    parameters::GatewayParameters {
        name: meta::name(&wire.metadata),
        meta: meta::convert(&wire.metadata),
        client_address: ClientAddress {
            proxy_protocol: client_address
                .proxy_protocol
                .map(|spec| proxy_protocol(&spec, &mut findings)),
            forwarded: client_address
                .forwarded_headers
                .and_then(|spec| forwarded_headers(&spec, &mut findings)),
        },
        service: parameters::ServiceParameters {
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
            load_balancer_node_ports: service.allocate_load_balancer_node_ports,
        },
        limits,
        http,
        certificate_namespaces: wire
            .spec
            .backend_client_certificate
            .and_then(|certificate| certificate.namespaces)
            .map(|namespaces| certificate_namespaces(namespaces, &mut findings)),
        findings,
    }
}

fn limits(wire: LimitsSpec, findings: &mut Vec<Finding>) -> parameters::LimitParameters {
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
    let limits = parameters::LimitParameters {
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
    parameters::LimitParameters {
        request_body: bytes.and_then(Result::ok),
        ..limits
    }
}

/// Reads the settings of HTTP. A word that is unknown counts as the strictest one.
fn http(spec: &HttpSpec, findings: &mut Vec<Finding>) -> HttpParameters {
    let slashes = spec.escaped_slashes.as_deref().map(|text| {
        let read = word(Some(text), "spec.http.escapedSlashes", findings);
        read.unwrap_or(EscapedSlashes::Refuse)
    });
    let underscores = spec.underscores.as_deref().map(|text| {
        let read = word(Some(text), "spec.http.underscores", findings);
        read.unwrap_or(Underscores::Refuse)
    });
    HttpParameters {
        escaped_slashes: slashes,
        underscores,
    }
}

/// Reads the settings of the PROXY protocol. A value that cannot be read makes them stricter, and never less strict.
fn proxy_protocol(spec: &ProxyProtocolSpec, findings: &mut Vec<Finding>) -> ProxyProtocol {
    const FIELD: &str = "spec.clientAddress.proxyProtocol";
    let mode = word(Some(&spec.mode), &format!("{FIELD}.mode"), findings);
    let mode = mode.unwrap_or(ProxyProtocolMode::Strict);
    if spec.trusted_cidrs.is_empty() && mode != ProxyProtocolMode::Disabled {
        findings.push(malformed(
            &format!("{FIELD}.trustedCIDRs"),
            "is empty, so nobody's header would be believed",
            "list the addresses of the load balancers",
        ));
    }
    ProxyProtocol {
        mode,
        trusted: blocks(&spec.trusted_cidrs, FIELD, findings),
    }
}

fn forwarded_headers(
    spec: &ForwardedHeadersSpec,
    findings: &mut Vec<Finding>,
) -> Option<ForwardedHeaders> {
    const FIELD: &str = "spec.clientAddress.forwardedHeaders";
    let header = word(spec.header.as_deref(), &format!("{FIELD}.header"), findings);
    let hops = spec.trusted_hops.map(|hops| {
        let read = u8::try_from(hops).ok().filter(|hops| *hops <= MAX_HOPS);
        read.unwrap_or_else(|| {
            findings.push(malformed(
                &format!("{FIELD}.trustedHops"),
                &format!("{hops} is not a number from 0 to {MAX_HOPS}"),
                "write how many proxies requests pass before the Gateway",
            ));
            0
        })
    });
    let trusted =
        (!spec.trusted_cidrs.is_empty()).then(|| blocks(&spec.trusted_cidrs, FIELD, findings));
    let read = ForwardedHeaders::new(
        header.unwrap_or(ForwardedHeader::XForwardedFor),
        hops,
        trusted,
    );
    if read.is_none() {
        findings.push(malformed(
            FIELD,
            "believes everybody: it has neither trustedHops nor trustedCIDRs",
            "say which hops are believed",
        ));
    }
    read
}

/// The blocks of `trustedCIDRs`. Those that cannot be read are left out.
fn blocks(texts: &[String], field: &str, findings: &mut Vec<Finding>) -> Vec<AddressBlock> {
    if texts.len() > MAX_TRUSTED {
        findings.push(malformed(
            &format!("{field}.trustedCIDRs"),
            &format!("has {} entries, and may have {MAX_TRUSTED}", texts.len()),
            "trust larger blocks",
        ));
    }
    let mut read = Vec::new();
    // Those that are left out are not trusted.
    for (index, text) in texts.iter().take(MAX_TRUSTED).enumerate() {
        match AddressBlock::parse(text) {
            Some(block) => read.push(block),
            None => findings.push(malformed(
                &format!("{field}.trustedCIDRs[{index}]"),
                &format!("{text:?} is no address and no block of them"),
                "write an address, or a block whose bits after the prefix are zero, as in 192.0.2.0/24",
            )),
        }
    }
    read
}

/// The namespaces to whose backends a certificate is shown. If they cannot be read, there is a refusal, and it is shown
/// to nobody.
fn certificate_namespaces(
    spec: CertificateNamespacesSpec,
    findings: &mut Vec<Finding>,
) -> NamespaceScope {
    const FIELD: &str = "spec.backendClientCertificate.namespaces";
    let selector = spec.selector.map(SelectorSpec::into_wire);
    let (scope, warnings) = scope(Some(spec.from), selector, NamespaceScope::None, FIELD);
    for warning in warnings {
        findings.push(malformed(&warning.field, &warning.message, &warning.action));
    }
    scope
}

/// The value of an enumeration. If the word is unknown, it is `None`, and there is a refusal.
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
