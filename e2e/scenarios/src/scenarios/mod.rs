//! The scenarios, by topic. Each is named after what it shows.

mod install;
mod tenants;

use futures::FutureExt as _;

use crate::runner::{Phase, Scenario};

/// A table entry: name of the function, which is the scenario's name with `-` for `_`.
macro_rules! scenario {
    ($phase:ident, $name:literal, $function:path) => {
        Scenario {
            name: $name,
            phase: Phase::$phase,
            run: |stage| async move { $function(&stage).await }.boxed_local(),
        }
    };
}

/// All of them, in their order inside a phase.
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario!(
            First,
            "install",
            install::chart_installs_and_a_gateway_is_served
        ),
        scenario!(
            Together,
            "two-teams",
            tenants::two_teams_with_the_same_names_do_not_touch
        ),
        scenario!(
            Together,
            "tenant-role",
            tenants::a_team_can_do_no_more_than_its_role_says
        ),
        scenario!(
            Together,
            "same-hostname",
            tenants::gateways_with_the_same_hostname_never_meet
        ),
        scenario!(
            Together,
            "leave-return",
            tenants::a_team_leaves_and_comes_back
        ),
        scenario!(Last, "uninstall", install::uninstall_leaves_nothing),
    ]
}
