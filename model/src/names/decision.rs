//! Decisions about names, and the finding that a refused namespace gets.

use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::key::ObjectName;

/// Whether a namespace may have a name on a Gateway. It does not say who else has the name, so no message that is made
/// from it can reveal that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameDecision {
    /// The namespace holds the name, or a grant lets it share the name or a part of it.
    Has,
    /// Nobody holds the name, and the namespace may hold it. It gets the name if nobody with a better rank asks, and
    /// the name is served as soon as the claim is recorded.
    Free,
    /// Another namespace holds exactly this pattern.
    Taken,
    /// The name lies inside a wildcard that another tenant holds, or should get because its request comes first. No grant
    /// at or below that wildcard gives the name.
    Inside,
    /// It is an exact name of the Gateway's own.
    Reserved,
    /// The Gateway has grants, and none of them gives the name to the namespace. Or the Gateway allows nothing from the
    /// namespace.
    NotGranted,
    /// It is a wildcard directly below a public suffix, on a Gateway without grants.
    TooWide,
    /// It is no single hostname. A route of another namespace asks, on a ListenerSet of the Gateway's own namespace.
    OnlyHostnames,
    /// The namespace holds as many names as it may.
    TooMany,
    /// A route of another namespace asks on a listener of the namespace, which holds as many names as guests may add to.
    TooManyOfGuests,
    /// The listener or route is refused, and the namespace does not hold the name.
    NotAsked,
}

impl NameDecision {
    /// Whether the namespace may neither have the name nor wait for it.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        !matches!(self, Self::Has | Self::Free)
    }

    /// The finding for the author of a listener or route that asks for `names` at `field`; `None` if the decision does
    /// not refuse.
    #[must_use]
    pub fn finding(
        self,
        field: impl Into<String>,
        names: &HostPattern,
        gateway: &ObjectName,
    ) -> Option<Finding> {
        let name = match names {
            HostPattern::Any => "every hostname".to_owned(),
            pattern => format!("hostname \"{pattern}\""),
        };
        let (reason, message, action) = match self {
            // Another finding says what refuses the listener or route.
            Self::Has | Self::Free | Self::NotAsked => return None,
            Self::Taken => (
                Reason::HostnameConflict,
                format!("{name} belongs to another namespace on every port of Gateway {gateway}"),
                "use another hostname, or ask the owner of the Gateway",
            ),
            Self::Inside => (
                Reason::HostnameConflict,
                format!(
                    "{name} is inside a wildcard that belongs to another namespace on Gateway {gateway}"
                ),
                "use another hostname, or ask the owner of the Gateway for a HostnameGrant of just this hostname",
            ),
            Self::Reserved => (
                Reason::HostnameConflict,
                format!("{name} is reserved for Gateway {gateway} itself on every port"),
                "use another hostname, or ask the owner of the Gateway",
            ),
            Self::NotGranted => (
                Reason::HostnameNotOwned,
                format!("{name} is not granted to the namespace on Gateway {gateway}"),
                "use a hostname that is granted to the namespace, or ask the owner of the Gateway for a HostnameGrant",
            ),
            Self::TooWide => (
                Reason::PublicSuffixWildcard,
                format!(
                    "{name} covers names that anybody may register, and Gateway {gateway} has no grant that gives it"
                ),
                "use a wildcard below a domain of your own, or ask the owner of the Gateway for a HostnameGrant",
            ),
            Self::OnlyHostnames => (
                Reason::HostnameNotOwned,
                format!(
                    "{name} is more than single hostnames, and routes of other namespaces get nothing else on a ListenerSet \
                     in the namespace of Gateway {gateway}"
                ),
                "list hostnames without a wildcard, attach the route to a listener of the Gateway itself, or ask the owner of \
                 the ListenerSet for a listener with this hostname",
            ),
            Self::TooMany => (
                Reason::QuotaExceeded,
                format!(
                    "{name} would be one more than the namespace may hold on Gateway {gateway}"
                ),
                "remove hostnames that the namespace does not need, or ask the owner of the Gateway for a HostnameGrant with a higher limits.hostnames",
            ),
            Self::TooManyOfGuests => (
                Reason::QuotaExceeded,
                format!(
                    "{name} would be held by the namespace of the ListenerSet, and routes of other namespaces get no \
                     further name there: it holds half of what it may hold on Gateway {gateway}"
                ),
                "ask the owner of the ListenerSet for a listener with this hostname",
            ),
        };
        Some(Finding::refused(reason, field, message, action))
    }
}
