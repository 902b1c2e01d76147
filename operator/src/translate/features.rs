//! The features of Gateway API that hold for every Gateway of ours: the one table behind
//! `GatewayClass.status.supportedFeatures` (names: upstream's `pkg/features`).

use super::Binds;

/// Where a feature holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Everywhere.
    Always,
    /// Where Gateways have Services, whose addresses and metadata it is about.
    WithServices,
}

/// Every feature that holds, in the order of names that the specification wants.
///
/// What is not here is not (wholly) true, or has no name: upstream has none for session persistence yet. Of HTTPRoute,
/// external authorization is not true.
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

/// The names of the features that hold, sorted.
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
