//! Gateway API v1.7.0 on the wire (`apis/v1`, both channels), written by hand, and its conversion into the model.
//!
//! Enumerations are strings and numbers are wide, so that a value of a newer API, or one out of range, decodes. The
//! conversion then judges the part that has it. The conversion also fills in the defaults of the CRD schemas,
//! because manifests never went through an API server.

mod backend_tls_policy;
mod gateway;
mod gateway_class;
mod gateway_tls;
mod grpc_route;
mod http_cors;
mod http_external_auth;
mod http_filter;
mod http_match;
mod http_mirror;
mod http_retry;
mod http_route;
mod http_session;
mod http_syntax;
mod listener;
mod listener_set;
mod port_route;
mod reference;
mod reference_grant;
mod route;
mod selector;
mod tls_route;
mod unsupported;

pub use backend_tls_policy::{
    BackendTLSPolicy, BackendTLSPolicySpec, BackendTLSPolicyValidation, PolicyTargetReference,
    SubjectAltName,
};
pub use gateway::{
    AllowedListeners, Gateway, GatewayAddress, GatewayInfrastructure, GatewayListenerNamespaces,
    GatewaySpec,
};
pub use gateway_class::{GatewayClass, GatewayClassSpec};
pub use gateway_tls::{
    FrontendTls, FrontendTlsConfig, FrontendTlsPort, FrontendTlsValidation, GatewayBackendTls,
    GatewayTls,
};
pub use grpc_route::{GRPCMethodMatch, GRPCRoute, GRPCRouteMatch, GRPCRouteRule, GRPCRouteSpec};
pub use http_cors::HTTPCORSFilter;
pub use http_external_auth::{
    ForwardBodyConfig, GRPCAuthConfig, HTTPAuthConfig, HTTPExternalAuthFilter,
};
pub use http_filter::{
    HTTPHeader, HTTPHeaderFilter, HTTPPathModifier, HTTPRequestRedirectFilter, HTTPRouteFilter,
    HTTPURLRewriteFilter,
};
pub use http_match::{HTTPPathMatch, HTTPRouteMatch, HTTPValueMatch};
pub use http_mirror::{Fraction, HTTPRequestMirrorFilter};
pub use http_retry::HTTPRouteRetry;
pub use http_route::{HTTPBackendRef, HTTPRoute, HTTPRouteRule, HTTPRouteSpec, HTTPRouteTimeouts};
pub use http_session::{CookieConfig, HeaderConfig, SessionPersistence};
pub use listener::{AllowedRoutes, Listener, ListenerTls, RouteGroupKind, RouteNamespaces};
pub use listener_set::{ListenerSet, ListenerSetSpec, ParentGatewayReference};
pub use port_route::{
    PortRouteRule, PortRouteSpec, TCPRoute, TCPRouteSpec, UDPRoute, UDPRouteSpec,
};
pub use reference::{
    LocalObjectReference, LocalParametersReference, ObjectReference, ParametersReference,
    SecretReference,
};
pub use reference_grant::{
    ReferenceGrant, ReferenceGrantFrom, ReferenceGrantSpec, ReferenceGrantTo,
};
pub use route::{BackendRef, ParentReference};
pub use selector::selector_from_json;
pub use tls_route::{TLSRoute, TLSRouteRule, TLSRouteSpec};
pub use unsupported::{unsupported_parameters, unsupported_protocol};

pub(crate) use backend_tls_policy::convert as convert_backend_tls_policy;
pub(crate) use gateway::convert as convert_gateway;
pub(crate) use gateway_class::convert as convert_gateway_class;
pub(crate) use grpc_route::convert as convert_grpc_route;
pub(crate) use http_route::convert as convert_http_route;
pub(crate) use listener::port;
pub(crate) use listener_set::convert as convert_listener_set;
pub(crate) use port_route::convert as convert_port_route;
pub(crate) use reference_grant::convert as convert_reference_grant;
pub(crate) use selector::{requirements, scope};
pub(crate) use tls_route::convert as convert_tls_route;
