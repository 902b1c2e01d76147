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
/// What is not here is not (wholly) true. HTTPRoute: HTTP and HTTPS listeners are served, but no
/// HTTPRoute is read yet.
const FEATURES: &[(&str, Holds)] = &[
    ("Gateway", Holds::Always),
    ("GatewayAddressEmpty", Holds::WithServices),
    ("GatewayInfrastructure", Holds::WithServices),
    ("GatewayPort8080", Holds::Always),
    ("GatewayRouteHostnameIntersectionPrecedence", Holds::Always),
    ("GatewayStaticAddresses", Holds::WithServices),
    ("ListenerSet", Holds::Always),
    ("ReferenceGrant", Holds::Always),
    ("TLSRoute", Holds::Always),
    ("TLSRouteModeMixed", Holds::Always),
    ("TLSRouteModeTerminate", Holds::Always),
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
