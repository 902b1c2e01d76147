//! Policy: rules of ours about objects that Gateway API allows. They refuse only where the admission mode is Enforce
//! and the namespace is not exempt. This holds for admission and for status.

#[cfg(feature = "arguments")]
mod arguments;
mod totals;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::condition::Reason;
use crate::endpoint::EndpointRules;
use crate::finding::{Finding, Origin, Severity};
use crate::hostname::HostPattern;
use crate::route::TlsRoute;

#[cfg(feature = "arguments")]
pub use arguments::PolicyArguments;
pub use totals::{ConfigurationTotals, TotalBytes, TotalsTooLarge, mib};

/// Top-level names in which nobody can register a domain (RFC 6761, RFC 2606, RFC 9476, and names that ICANN keeps
/// undelegated). Names below them are private, so a wildcard there does not affect others.
const PRIVATE_SUFFIXES: [&str; 15] = [
    "alt",
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "mail",
    "onion",
    "private",
    "test",
];

/// A warning about a hostname of a listener or route that is valid and unusual: a name of one label, or a wildcard that
/// covers names which others may register. It is never a refusal.
///
/// Which names others may register follows from the Public Suffix List, in its version at build time.
#[must_use]
pub fn advice(pattern: &HostPattern, field: &str) -> Option<Finding> {
    match pattern {
        HostPattern::Any => None,
        HostPattern::Exact(name) => {
            let single = !name.as_str().contains('.') && !is_private(name.as_str());
            single.then(|| {
                Finding::warning(
                    Reason::SingleLabelHostname,
                    field,
                    format!(
                        "{:?} is a single label: no public name, so no public CA certifies it",
                        name.as_str()
                    ),
                    "write the full name, such as \"app.example.com\", unless clients ask for just this",
                )
            })
        }
        HostPattern::Wildcard(suffix) => is_public_suffix(suffix.as_str()).then(|| {
            Finding::warning(
                Reason::PublicSuffixWildcard,
                field,
                format!(
                    "\"*.{suffix}\" covers names that anybody may register, and no public CA certifies it"
                ),
                "use a wildcard below a domain of your own, such as \"*.apps.example.com\"",
            )
        }),
    }
}

fn is_private(suffix: &str) -> bool {
    PRIVATE_SUFFIXES.contains(&suffix)
}

/// Whether anybody can register names directly below `suffix`, or every name directly below it is such a suffix itself,
/// as below `kawasaki.jp`. The answer comes from the Public Suffix List, with the suffixes of private registries such
/// as `github.io`. A top-level name that the list does not know counts as well, unless nobody can register names in it.
pub(crate) fn is_public_suffix(suffix: &str) -> bool {
    let top = suffix.rsplit('.').next().unwrap_or(suffix);
    let is_listed = |name: &str| {
        let found = psl::suffix(name.as_bytes());
        found.is_some_and(|found| found.as_bytes().len() == name.len())
    };
    !is_private(top) && (is_listed(suffix) || is_listed(&format!("x.{suffix}")))
}

/// The effect of a refusal by a policy rule at admission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuse the object.
    #[default]
    Enforce,
    /// Accept the object with a warning.
    Warn,
    /// Accept the object without a message.
    Off,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "Enforce" => Ok(Self::Enforce),
            "Warn" => Ok(Self::Warn),
            "Off" => Ok(Self::Off),
            other => Err(UnknownMode(other.into())),
        }
    }
}

/// The text is not a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown admission mode {0:?}: use Enforce, Warn or Off")]
pub struct UnknownMode(String);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforce => "Enforce",
            Self::Warn => "Warn",
            Self::Off => "Off",
        })
    }
}

/// The release-wide admission settings: one input, the same for webhook, operator and CLI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The effect on an object that breaks a rule.
    pub mode: Mode,
    /// Names of namespaces that only get warnings, in whichever mode.
    pub exempt: BTreeSet<String>,
    /// Most hostnames that a namespace may hold on a Gateway, unless a HostnameGrant says otherwise.
    pub names_per_namespace: u32,
    /// Most ports of a Gateway that the ListenerSets of a namespace may use, unless a HostnameGrant says otherwise.
    /// Ports on which the Gateway has a listener of its own do not count.
    pub ports_per_namespace: u32,
    /// Which addresses backends may not have.
    pub endpoints: EndpointRules,
    /// Largest RSA key that a certificate may have, in bits. The proxies sign with it in each handshake.
    pub max_rsa_bits: u16,
    /// How many MiB the regular expressions of all HTTPRoutes and GRPCRoutes of a namespace may take when they are
    /// compiled.
    pub regex_mib: u16,
    /// How many entries all routes of a namespace may have in the tables of every proxy, and how many all backends of its
    /// Services.
    pub route_entries: u32,
    /// How many MiB the certificates, keys and CA certificates in use of a namespace may have in the configuration of
    /// every proxy. The namespaces of Gateways have no such limit.
    pub certificate_mib: u16,
    /// How much of the configuration all namespaces together may fill.
    pub totals: ConfigurationTotals,
}

/// The exempt namespaces that one argument names: a list with commas, with or without spaces around a name. Operator, webhook
/// and CLI read it by this. An empty list may come as one empty name.
pub fn exempt_namespaces(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Default of [`Policy::names_per_namespace`].
pub const NAMES_PER_NAMESPACE: u32 = 10_000;

/// Default of [`Policy::ports_per_namespace`]. More than sixty namespaces have room on a Gateway, which has at most
/// 1,000 ports.
pub const PORTS_PER_NAMESPACE: u32 = 16;

/// Default of [`Policy::max_rsa_bits`]. A signature with a key of 8192 bits costs six times as much.
pub const MAX_RSA_BITS: u16 = 4096;

/// Default of [`Policy::regex_mib`]. Most regular expressions take one to five KiB.
pub const REGEX_MIB: u16 = 16;

/// Default of [`Policy::route_entries`]. A proxy needs about 60 MB for them.
pub const ROUTE_ENTRIES: u32 = 131_072;

/// Default of [`Policy::certificate_mib`]. It is enough for 8,000 RSA certificates of a public CA, or for 12,000 ECDSA
/// ones.
pub const CERTIFICATE_MIB: u16 = 32;

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            exempt: BTreeSet::new(),
            names_per_namespace: NAMES_PER_NAMESPACE,
            ports_per_namespace: PORTS_PER_NAMESPACE,
            endpoints: EndpointRules::default(),
            max_rsa_bits: MAX_RSA_BITS,
            regex_mib: REGEX_MIB,
            route_entries: ROUTE_ENTRIES,
            certificate_mib: CERTIFICATE_MIB,
            totals: ConfigurationTotals::DEFAULT,
        }
    }
}

impl Policy {
    /// The mode that applies in a namespace.
    #[must_use]
    pub fn mode_in(&self, namespace: &str) -> Mode {
        if self.mode == Mode::Enforce && self.exempt.contains(namespace) {
            Mode::Warn
        } else {
            self.mode
        }
    }

    /// The findings, by the specification and by this policy, about a TLSRoute alone.
    #[must_use]
    pub fn judge_route(&self, route: &TlsRoute) -> Vec<Finding> {
        let mut findings = route.findings.clone();
        findings.extend(
            route
                .hostnames
                .iter()
                .filter(|(_, pattern)| pattern.is_wildcard())
                .filter_map(|(index, pattern)| {
                    self.weigh(
                        &route.name.namespace,
                        Finding::refused(
                            Reason::WildcardHostname,
                            format!("spec.hostnames[{index}]"),
                            format!(
                                "{:?} is a wildcard, and here a TLSRoute names each host",
                                pattern.to_string()
                            ),
                            "list the exact hostnames",
                        ),
                    )
                }),
        );
        findings
    }

    /// The finding with the severity that the mode of the namespace gives it; `None` if the mode is Off.
    fn weigh(&self, namespace: &str, finding: Finding) -> Option<Finding> {
        let severity = match self.mode_in(namespace) {
            Mode::Enforce => Severity::Refused,
            Mode::Warn => Severity::Warning,
            Mode::Off => return None,
        };
        Some(Finding {
            severity,
            origin: Origin::Policy,
            ..finding
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_names_are_told_and_others_are_not() {
        let reason = |text: &str| {
            let pattern = HostPattern::parse(text).unwrap();
            advice(&pattern, "f").map(|finding| {
                assert!(!finding.refuses());
                finding.reason
            })
        };
        for usual in [
            "",
            "localhost",
            "a.b",
            "co.uk",
            "*.apps.example.com",
            "*.example.co.uk",
            "*.localhost",
            "*.internal",
            "*.com.example",
            "*.team.fr",
            "*.ne.example.jp",
            "*.city.kawasaki.jp",
            "*.team.github.io",
        ] {
            assert_eq!(reason(usual), None, "{usual}");
        }
        for single in ["intranet1", "com", "Web."] {
            assert_eq!(
                reason(single),
                Some(Reason::SingleLabelHostname),
                "{single}"
            );
        }
        for public in [
            "*.com",
            "*.COM.",
            "*.xn--p1ai",
            "*.co.uk",
            "*.com.au",
            "*.or.jp",
            // Everything directly below is a suffix.
            "*.kawasaki.jp",
            "*.ck",
            // This suffix is in the private section of the list.
            "*.github.io",
            // The list has this suffix in its own script, and DNS has it in ASCII.
            "*.xn--55qx5d.cn",
            "*.unknown-to-the-list",
        ] {
            assert_eq!(
                reason(public),
                Some(Reason::PublicSuffixWildcard),
                "{public}"
            );
        }
    }
}
