//! The arguments with which the operator and the webhook are told the policy of their release.

use clap::Args;

use super::{
    Mode, NAMES_PER_NAMESPACE, PORTS_PER_NAMESPACE, Policy, ROUTE_ENTRIES, exempt_namespaces,
};

/// The parts of a [`Policy`] that the operator and the webhook both judge by. The chart gives both the same values.
#[derive(Debug, Clone, Args)]
pub struct PolicyArguments {
    /// What becomes of objects that break a policy rule: Enforce, Warn or Off.
    #[arg(long, env = "VESTIBULE_POLICY_MODE", default_value_t = Mode::Enforce)]
    policy_mode: Mode,
    /// Namespaces that are only ever warned, separated by commas.
    #[arg(long, env = "VESTIBULE_EXEMPT_NAMESPACE")]
    exempt_namespace: Vec<String>,
    /// Most hostnames that a namespace may hold on a Gateway, unless a `HostnameGrant` says otherwise.
    #[arg(
        long,
        env = "VESTIBULE_NAMES_PER_NAMESPACE",
        default_value_t = NAMES_PER_NAMESPACE
    )]
    names_per_namespace: u32,
    /// Most ports of a Gateway that the `ListenerSets` of a namespace may use, unless a `HostnameGrant` says otherwise.
    /// Ports on which the Gateway has a listener of its own do not count.
    #[arg(
        long,
        env = "VESTIBULE_PORTS_PER_NAMESPACE",
        default_value_t = PORTS_PER_NAMESPACE
    )]
    ports_per_namespace: u32,
    /// Entries that all routes of one namespace may have in the tables of each proxy: one for each match and element of
    /// its path, under each hostname on each listener. The backends of its Services may have as many. The webhook refuses a
    /// single route with more.
    #[arg(
        long,
        env = "VESTIBULE_ROUTE_ENTRIES",
        default_value_t = ROUTE_ENTRIES,
        value_parser = clap::value_parser!(u32).range(1..=16_777_216)
    )]
    route_entries: u32,
}

impl PolicyArguments {
    /// The policy with these arguments. Everything else is as by default.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let exempt = self.exempt_namespace.iter();
        Policy {
            mode: self.policy_mode,
            exempt: exempt.flat_map(|names| exempt_namespaces(names)).collect(),
            names_per_namespace: self.names_per_namespace,
            ports_per_namespace: self.ports_per_namespace,
            route_entries: self.route_entries,
            ..Policy::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Binary {
        #[command(flatten)]
        policy: PolicyArguments,
    }

    #[test]
    fn the_arguments_become_a_policy_which_is_the_default_one_without_them() {
        Binary::command().debug_assert();
        let parse = |arguments: &[&str]| {
            let parsed = Binary::try_parse_from([&["binary"], arguments].concat());
            parsed.map(|binary| binary.policy.policy())
        };
        assert_eq!(parse(&[]).unwrap(), Policy::default());
        for wrong in ["--policy-mode=Maybe", "--route-entries=0"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        let policy = parse(&[
            "--policy-mode=Warn",
            "--exempt-namespace=a, b",
            "--exempt-namespace=c",
            "--exempt-namespace=",
            "--names-per-namespace=1",
            "--ports-per-namespace=2",
            "--route-entries=3",
        ]);
        let expected = Policy {
            mode: Mode::Warn,
            exempt: ["a", "b", "c"].map(str::to_owned).into(),
            names_per_namespace: 1,
            ports_per_namespace: 2,
            route_entries: 3,
            ..Policy::default()
        };
        assert_eq!(policy.unwrap(), expected);
    }
}
