//! Arguments that commands share, and what they mean to translation.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use vestibule_model::policy::{Mode, Policy};
use vestibule_operator::translate::{Binds, CONTROLLER, Claims, Settings};

/// What admission does.
#[derive(Debug, Clone, Args)]
pub(crate) struct PolicyArgs {
    /// What becomes of objects that break a policy rule: Enforce refuses them, Warn tells, Off says
    /// nothing. Rules of the specification always hold
    #[arg(long, value_name = "Enforce|Warn|Off", default_value_t = Mode::Enforce)]
    admission_mode: Mode,
    /// A namespace that is only ever warned; may be given several times
    #[arg(long, value_name = "NAMESPACE")]
    exempt_namespace: Vec<String>,
}

impl PolicyArgs {
    /// As the model has it.
    #[must_use]
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            mode: self.admission_mode,
            exempt: self.exempt_namespace.iter().cloned().collect(),
        }
    }
}

/// Settings of the translator with listeners on `address`, their ports mapped by `ports`.
#[must_use]
pub(crate) fn settings(policy: Policy, address: IpAddr, ports: BTreeMap<u16, u16>) -> Settings {
    Settings {
        controller: CONTROLLER.into(),
        policy,
        claims: Claims::Assumed,
        binds: Binds::Direct { address, ports },
    }
}

/// Settings where nothing is served.
#[must_use]
pub(crate) fn settings_of_check(policy: Policy) -> Settings {
    settings(policy, Ipv4Addr::LOCALHOST.into(), BTreeMap::new())
}
