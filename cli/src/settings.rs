//! Arguments that several commands share, and the settings of translation that follow from them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use clap::Args;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::policy::{Mode, Policy, exempt_namespaces};
use vestibule_operator::translate::{Binds, CONTROLLER, ClaimMode, Settings};

/// What admission does.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyArgs {
    /// What becomes of objects that break a policy rule: Enforce refuses them, Warn tells, Off says
    /// nothing. Rules of the specification always hold [default: as the release has it where a cluster is
    /// looked at, else Enforce]
    #[arg(long, value_name = "Enforce|Warn|Off")]
    admission_mode: Option<Mode>,
    /// Namespaces that are only ever warned, separated by commas; may be given several times [default: as above, else none]
    #[arg(long, value_name = "NAMESPACES")]
    exempt_namespace: Vec<String>,
}

impl PolicyArgs {
    /// Returns the default policy with these arguments, except that backends may be on this host.
    #[must_use]
    pub(crate) fn policy(&self) -> Policy {
        self.policy_over(Policy {
            endpoints: EndpointRules::with_loopback(),
            ..Policy::default()
        })
    }

    /// Returns the policy of `release`, with these arguments in place of what they set.
    #[must_use]
    pub(crate) fn policy_over(&self, release: Policy) -> Policy {
        Policy {
            mode: self.admission_mode.unwrap_or(release.mode),
            exempt: if self.exempt_namespace.is_empty() {
                release.exempt
            } else {
                let said = self.exempt_namespace.iter();
                said.flat_map(|names| exempt_namespaces(names)).collect()
            },
            ..release
        }
    }

    /// Whether an argument sets what admission does.
    #[must_use]
    pub(crate) fn is_said(&self) -> bool {
        self.admission_mode.is_some()
    }
}

/// Returns the settings of the translator with listeners on `address` and their ports mapped by `ports`.
#[must_use]
pub(crate) fn settings(policy: Policy, address: IpAddr, ports: BTreeMap<u16, u16>) -> Settings {
    Settings {
        controller: CONTROLLER.into(),
        policy,
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Direct { address, ports },
    }
}

/// Returns the settings for commands that serve nothing.
#[must_use]
pub(crate) fn settings_of_check(policy: Policy, controller: &Arc<str>) -> Settings {
    Settings {
        controller: controller.clone(),
        ..settings(policy, Ipv4Addr::LOCALHOST.into(), BTreeMap::new())
    }
}
