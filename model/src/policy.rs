//! Policy: rules of ours about objects that are legal upstream. They refuse only where the admission
//! mode is Enforce and the namespace is not exempt, in admission and in status alike.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::condition::Reason;
use crate::finding::{Finding, Origin, Severity};
use crate::object::TlsRoute;

/// What admission does with what it would refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuses.
    #[default]
    Enforce,
    /// Lets it in with a warning.
    Warn,
    /// Says nothing.
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

/// Not a mode.
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// What admission does.
    pub mode: Mode,
    /// Namespaces that are only ever warned, by name.
    pub exempt: BTreeSet<String>,
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

    /// What the specification and this policy say against a TLSRoute by itself.
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

    /// A policy finding as heavy as the mode makes it; `None` if the mode is Off.
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
