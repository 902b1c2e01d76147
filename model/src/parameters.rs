//! `GatewayParameters`: settings of a GatewayClass or a Gateway that replace those of the release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client_address::ClientAddress;
use crate::finding::Finding;
use crate::key::ObjectName;
use crate::meta::Meta;
use crate::selector::NamespaceScope;
use crate::service::{IpFamily, IpFamilyPolicy, ServiceType, TrafficPolicy, words};

/// `GatewayParameters`, a kind of Vestibule: settings of a GatewayClass or a Gateway that replace those of the release.
/// Settings that are absent stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayParameters {
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.service`.
    pub service: ServiceParameters,
    /// `spec.limits`.
    pub limits: LimitParameters,
    /// `spec.clientAddress`.
    pub client_address: ClientAddress,
    /// `spec.http`.
    pub http: HttpParameters,
    /// `spec.backendClientCertificate.namespaces`: the namespaces to whose backends the proxies show the Gateway's
    /// client certificate.
    pub certificate_namespaces: Option<NamespaceScope>,
    /// The findings about it.
    pub findings: Vec<Finding>,
}

/// Limits of connections and requests. A limit that is absent is not set here. Zero means that there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitParameters {
    /// `streamIdleTimeout`.
    pub stream_idle: Option<Duration>,
    /// `requestTimeout`.
    pub request: Option<Duration>,
    /// `tunnelIdleTimeout`.
    pub tunnel_idle: Option<Duration>,
    /// `maxConnectionAge`.
    pub connection_age: Option<Duration>,
    /// `maxRequestBodyBytes`, in bytes.
    pub request_body: Option<u64>,
}

impl LimitParameters {
    /// These limits, with those that are absent taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            stream_idle: self.stream_idle.or(others.stream_idle),
            request: self.request.or(others.request),
            tunnel_idle: self.tunnel_idle.or(others.tunnel_idle),
            connection_age: self.connection_age.or(others.connection_age),
            request_body: self.request_body.or(others.request_body),
        }
    }
}

words! {
    /// The treatment of requests whose path has a slash that is written as `%2F`, `\` or `%5C`. Routes do not take it for
    /// a slash, while a backend may.
    #[derive(Default)]
    EscapedSlashes {
        /// They are refused.
        #[default]
        Refuse = "Refuse",
        /// Each `%2F` is decoded to `/`, once, before the path is matched and passed on. Those with `\` or `%5C` are
        /// refused.
        Unescape = "Unescape",
        /// They are matched and passed on as they are written.
        Keep = "Keep",
    }
}

words! {
    /// The treatment of request headers whose name has an underscore. Backends with CGI, WSGI and similar interfaces take
    /// `x_forwarded_for` and `x-forwarded-for` for the same name, so a client could set the second by the first.
    #[derive(Default)]
    Underscores {
        /// They are removed.
        #[default]
        Drop = "Drop",
        /// The request is refused.
        Refuse = "Refuse",
        /// They are passed on, unless the proxy sets or removes the field of the same name with dashes.
        Allow = "Allow",
    }
}

/// The treatment of HTTP requests that a backend could read in another way than the proxies. A setting that is absent is
/// not set here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HttpParameters {
    /// `escapedSlashes`.
    pub escaped_slashes: Option<EscapedSlashes>,
    /// `underscores`.
    pub underscores: Option<Underscores>,
}

impl HttpParameters {
    /// The settings that stand for parameters that are not known. They protect a backend as well as any other settings do.
    /// Fields with an underscore are dropped and not refused: the backend gets them in neither case, and clients that send
    /// some are served while the parameters are away for a moment.
    pub const FOR_UNKNOWN: Self = Self {
        escaped_slashes: Some(EscapedSlashes::Refuse),
        underscores: Some(Underscores::Drop),
    };

    /// These settings, with those that are absent taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            escaped_slashes: self.escaped_slashes.or(others.escaped_slashes),
            underscores: self.underscores.or(others.underscores),
        }
    }
}

/// Settings of the Service in front of the proxies. A setting that is absent is not set here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceParameters {
    /// `type`.
    pub service_type: Option<ServiceType>,
    /// Annotations. They are merged, key by key, with those from other places.
    pub annotations: BTreeMap<String, String>,
    /// `externalTrafficPolicy`, for the types that have one.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// `ipFamilyPolicy`.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `ipFamilies`, the primary one first. If empty, it is not set.
    pub ip_families: Vec<IpFamily>,
    /// `loadBalancerClass`, for type `LoadBalancer`.
    pub load_balancer_class: Option<Arc<str>>,
    /// `allocateLoadBalancerNodePorts`, for type `LoadBalancer`.
    pub load_balancer_node_ports: Option<bool>,
}
