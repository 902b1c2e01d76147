//! The features of Gateway API that every Gateway of ours has. This table is the source of
//! `GatewayClass.status.supportedFeatures`. The names are those of upstream's `pkg/features`.

use super::Binds;

/// Where a feature is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Everywhere.
    Always,
    /// Where Gateways have Services, because the feature concerns their addresses or metadata.
    WithServices,
}

/// Every supported feature, in the order of names that the specification requires.
///
/// A feature that is missing here is not supported in full, or has no name upstream. Session persistence has no name
/// yet, and external authorization of HTTPRoute has none either.
const FEATURES: &[(&str, Holds)] = &[
    ("BackendTLSPolicy", Holds::Always),
    ("BackendTLSPolicySANValidation", Holds::Always),
    ("GRPCRoute", Holds::Always),
    ("GRPCRouteNamedRouteRule", Holds::Always),
    ("GRPCRouteRequestHeaderModifier", Holds::Always),
    ("Gateway", Holds::Always),
    ("GatewayAddressEmpty", Holds::WithServices),
    ("GatewayBackendClientCertificate", Holds::Always),
    ("GatewayFrontendClientCertificateValidation", Holds::Always),
    (
        "GatewayFrontendClientCertificateValidationInsecureFallback",
        Holds::Always,
    ),
    ("GatewayHTTPListenerIsolation", Holds::Always),
    (
        "GatewayHTTPSListenerDetectMisdirectedRequests",
        Holds::Always,
    ),
    ("GatewayInfrastructure", Holds::WithServices),
    ("GatewayPort8080", Holds::Always),
    ("GatewayRouteHostnameIntersectionPrecedence", Holds::Always),
    ("GatewayStaticAddresses", Holds::WithServices),
    ("HTTPRoute", Holds::Always),
    ("HTTPRoute303RedirectStatusCode", Holds::Always),
    ("HTTPRoute307RedirectStatusCode", Holds::Always),
    ("HTTPRoute308RedirectStatusCode", Holds::Always),
    ("HTTPRouteBackendProtocolH2C", Holds::Always),
    ("HTTPRouteBackendProtocolWebSocket", Holds::Always),
    ("HTTPRouteBackendRequestHeaderModification", Holds::Always),
    ("HTTPRouteBackendTimeout", Holds::Always),
    ("HTTPRouteBackendURLRewrite", Holds::Always),
    ("HTTPRouteCORS", Holds::Always),
    ("HTTPRouteDestinationPortMatching", Holds::Always),
    ("HTTPRouteHostRewrite", Holds::Always),
    ("HTTPRouteMethodMatching", Holds::Always),
    ("HTTPRouteNamedRouteRule", Holds::Always),
    ("HTTPRouteParentRefPort", Holds::Always),
    ("HTTPRoutePathRedirect", Holds::Always),
    ("HTTPRoutePathRewrite", Holds::Always),
    ("HTTPRoutePortRedirect", Holds::Always),
    ("HTTPRouteQueryParamMatching", Holds::Always),
    ("HTTPRouteRequestMirror", Holds::Always),
    ("HTTPRouteRequestMultipleMirrors", Holds::Always),
    ("HTTPRouteRequestPercentageMirror", Holds::Always),
    ("HTTPRouteRequestTimeout", Holds::Always),
    ("HTTPRouteResponseHeaderModification", Holds::Always),
    ("HTTPRouteRetryCodes", Holds::Always),
    ("HTTPRouteRetryConnectionError", Holds::Always),
    ("HTTPRouteSchemeRedirect", Holds::Always),
    ("ListenerSet", Holds::Always),
    ("ReferenceGrant", Holds::Always),
    ("TCPRoute", Holds::Always),
    ("TLSRoute", Holds::Always),
    ("TLSRouteModeMixed", Holds::Always),
    ("TLSRouteModeTerminate", Holds::Always),
    ("UDPRoute", Holds::Always),
];

/// The names of the supported features, sorted.
pub(super) fn supported(binds: &Binds) -> Vec<&'static str> {
    let services = binds.services().is_some();
    FEATURES
        .iter()
        .filter(|(_, holds)| services || *holds == Holds::Always)
        .map(|(name, _)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(FEATURES.is_sorted_by(|(a, _), (b, _)| a < b));
        // MaxItems of the CRD.
        assert!(FEATURES.len() <= 64);
    }
}
