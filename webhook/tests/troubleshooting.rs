//! The guide to reasons (`docs/troubleshooting.md`) has all of them.

use vestibule_model::condition::{ConditionType, Reason};

const GUIDE: &str = include_str!("../../docs/troubleshooting.md");

/// Every reason. A new one does not compile in [`is_listed`] until it is in both.
const REASONS: &[Reason] = &[
    Reason::Accepted,
    Reason::ResolvedRefs,
    Reason::Programmed,
    Reason::Pending,
    Reason::ListenersNotValid,
    Reason::NotAllowed,
    Reason::ParentNotAccepted,
    Reason::ParentNotProgrammed,
    Reason::Invalid,
    Reason::InvalidParameters,
    Reason::UnsupportedAddress,
    Reason::AddressNotUsable,
    Reason::AddressNotAssigned,
    Reason::PortUnavailable,
    Reason::UnsupportedProtocol,
    Reason::TooManyListeners,
    Reason::UnsupportedValue,
    Reason::HostnameConflict,
    Reason::ProtocolConflict,
    Reason::ListenerConflict,
    Reason::NoConflicts,
    Reason::OverlappingHostnames,
    Reason::InvalidCertificateRef,
    Reason::InvalidTLSConfig,
    Reason::InvalidRouteKinds,
    Reason::RefNotPermitted,
    Reason::NoValidCACertificate,
    Reason::InvalidCACertificateRef,
    Reason::InvalidCACertificateKind,
    Reason::InvalidClientCertificateRef,
    Reason::ListenersNotResolved,
    Reason::ConfigurationChanged,
    Reason::Conflicted,
    Reason::TargetNotFound,
    Reason::IncompatibleFilters,
    Reason::NotAllowedByListeners,
    Reason::NoMatchingListenerHostname,
    Reason::NoMatchingParent,
    Reason::BackendNotFound,
    Reason::InvalidKind,
    Reason::InvalidHostname,
    Reason::WildcardHostname,
    Reason::SingleLabelHostname,
    Reason::PublicSuffixWildcard,
    Reason::IssuerNotAllowed,
    Reason::QuotaExceeded,
    Reason::HostnameNotOwned,
    Reason::ListenerShared,
    Reason::PortConflict,
    Reason::EndpointNotAllowed,
    Reason::Unreadable,
    Reason::UnknownField,
    Reason::ContradictingIssuers,
    Reason::Issued,
    Reason::Registered,
    Reason::NotRegistered,
    Reason::AddressNotAllowed,
    Reason::InvalidAnnotation,
    Reason::NotIssuable,
    Reason::NoChallengeListener,
    Reason::ServedByOthers,
    Reason::RequestsDiffer,
    Reason::SecretNotOurs,
    Reason::CertificateNotOurs,
    Reason::IssuerNotFound,
    Reason::IssuerNotReady,
    Reason::EngineNotAvailable,
    Reason::OverBudget,
    Reason::OrderFailed,
    Reason::Unreachable,
    Reason::RenewalFailed,
    Reason::Expired,
    Reason::InvalidValue,
    Reason::Duplicate,
    Reason::Ignored,
];

/// Has to name every reason to compile.
fn is_listed(reason: Reason) -> bool {
    match reason {
        Reason::Accepted
        | Reason::ResolvedRefs
        | Reason::Programmed
        | Reason::Pending
        | Reason::ListenersNotValid
        | Reason::NotAllowed
        | Reason::ParentNotAccepted
        | Reason::ParentNotProgrammed
        | Reason::Invalid
        | Reason::InvalidParameters
        | Reason::UnsupportedAddress
        | Reason::AddressNotUsable
        | Reason::AddressNotAssigned
        | Reason::PortUnavailable
        | Reason::UnsupportedProtocol
        | Reason::TooManyListeners
        | Reason::UnsupportedValue
        | Reason::HostnameConflict
        | Reason::ProtocolConflict
        | Reason::ListenerConflict
        | Reason::NoConflicts
        | Reason::OverlappingHostnames
        | Reason::InvalidCertificateRef
        | Reason::InvalidTLSConfig
        | Reason::InvalidRouteKinds
        | Reason::RefNotPermitted
        | Reason::NoValidCACertificate
        | Reason::InvalidCACertificateRef
        | Reason::InvalidCACertificateKind
        | Reason::InvalidClientCertificateRef
        | Reason::ListenersNotResolved
        | Reason::ConfigurationChanged
        | Reason::Conflicted
        | Reason::TargetNotFound
        | Reason::IncompatibleFilters
        | Reason::NotAllowedByListeners
        | Reason::NoMatchingListenerHostname
        | Reason::NoMatchingParent
        | Reason::BackendNotFound
        | Reason::InvalidKind
        | Reason::InvalidHostname
        | Reason::WildcardHostname
        | Reason::SingleLabelHostname
        | Reason::PublicSuffixWildcard
        | Reason::IssuerNotAllowed
        | Reason::QuotaExceeded
        | Reason::HostnameNotOwned
        | Reason::ListenerShared
        | Reason::PortConflict
        | Reason::EndpointNotAllowed
        | Reason::Unreadable
        | Reason::UnknownField
        | Reason::ContradictingIssuers
        | Reason::Issued
        | Reason::Registered
        | Reason::NotRegistered
        | Reason::AddressNotAllowed
        | Reason::InvalidAnnotation
        | Reason::NotIssuable
        | Reason::NoChallengeListener
        | Reason::ServedByOthers
        | Reason::RequestsDiffer
        | Reason::SecretNotOurs
        | Reason::CertificateNotOurs
        | Reason::IssuerNotFound
        | Reason::IssuerNotReady
        | Reason::EngineNotAvailable
        | Reason::OverBudget
        | Reason::OrderFailed
        | Reason::Unreachable
        | Reason::RenewalFailed
        | Reason::Expired
        | Reason::InvalidValue
        | Reason::Duplicate
        | Reason::Ignored => REASONS.contains(&reason),
    }
}

#[test]
fn every_reason_is_in_the_guide() {
    for reason in REASONS {
        assert!(is_listed(*reason));
        assert!(GUIDE.contains(&format!("`{reason}`")), "{reason}");
    }
}

#[test]
fn every_condition_has_a_section() {
    for condition in [
        ConditionType::Accepted,
        ConditionType::ResolvedRefs,
        ConditionType::Programmed,
        ConditionType::Conflicted,
        ConditionType::OverlappingTLSConfig,
        ConditionType::PartiallyInvalid,
        ConditionType::InsecureFrontendValidationMode,
        ConditionType::CertificateIssued,
        ConditionType::RouteProgrammed,
        ConditionType::Ready,
    ] {
        assert!(
            GUIDE.contains(&format!("\n## {condition}\n")),
            "{condition}"
        );
    }
}
