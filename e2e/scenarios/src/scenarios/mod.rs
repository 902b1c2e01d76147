//! The scenarios, by topic. Each is named after what it shows.

mod acme;
mod admission;
mod authority;
mod bad_input;
mod bench;
mod cases;
mod certificates;
mod certmanager;
mod documentation;
mod edits;
mod failing;
mod faults;
mod handover;
mod http3;
mod install;
mod keys;
mod latency;
mod live_route;
mod memory_limit;
mod name_server;
mod one_port;
mod ownership;
mod programmed;
mod quiet;
mod ready;
mod restored;
mod scale;
mod tenants;
mod tls_ends;
mod upgrade;
mod webhook;

use futures::FutureExt as _;

use crate::runner::{Phase, Scenario};

/// A table entry: name of the function, which is the scenario's name with `-` for `_`. `lasting` behind it: the
/// cluster is another one afterwards, as it is meant to be.
macro_rules! scenario {
    ($phase:ident, $name:literal, $function:path) => {
        scenario!($phase, $name, $function, false)
    };
    ($phase:ident, $name:literal, $function:path, lasting) => {
        scenario!($phase, $name, $function, true)
    };
    ($phase:ident, $name:literal, $function:path, $lasting:literal) => {
        Scenario {
            name: $name,
            phase: Phase::$phase,
            lasting: $lasting,
            run: |stage| async move { $function(&stage).await }.boxed_local(),
        }
    };
}

/// All of them, in their order inside a phase.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario!(
            First,
            "install",
            install::chart_installs_and_a_gateway_is_served,
            lasting
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
        scenario!(
            Together,
            "refused",
            admission::hostnames_that_their_tenant_would_regret_are_refused_at_admission
        ),
        scenario!(
            Together,
            "secret",
            bad_input::a_secret_of_the_wrong_type_is_a_status
        ),
        scenario!(
            Together,
            "long-name",
            bad_input::a_gateway_with_a_name_of_253_characters_is_served
        ),
        scenario!(
            Together,
            "one-port",
            one_port::kinds_and_tenants_share_one_port_by_name
        ),
        scenario!(
            Together,
            "name-server",
            name_server::tcp_and_udp_of_one_port_are_a_name_server
        ),
        scenario!(
            Together,
            "certificates",
            certificates::certificates_follow_their_references
        ),
        scenario!(
            Together,
            "tls-ends",
            tls_ends::both_ends_of_terminated_tls_are_who_they_say
        ),
        scenario!(Together, "cases", cases::the_case_table_holds_in_admission),
        scenario!(
            Together,
            "guides",
            documentation::the_guides_work_when_pasted
        ),
        scenario!(
            Together,
            "acme-issue",
            acme::certificates_come_by_both_challenges
        ),
        scenario!(
            Together,
            "acme-hijack",
            acme::certificate_is_not_issued_for_a_hostname_that_another_tenant_serves
        ),
        scenario!(
            Together,
            "grants",
            ownership::a_hostname_is_served_only_where_it_is_granted
        ),
        scenario!(
            Together,
            "back",
            ownership::listener_set_that_comes_back_in_time_has_lost_nothing
        ),
        scenario!(
            Together,
            "gateway-back",
            ownership::names_outlive_their_gateway
        ),
        scenario!(
            Together,
            "pairs",
            ownership::of_two_that_got_in_one_is_served
        ),
        scenario!(
            Together,
            "sharing",
            ownership::a_hostname_is_shared_for_as_long_as_a_grant_says
        ),
        scenario!(
            Together,
            "authorities",
            ownership::no_connection_serves_another_teams_name
        ),
        // The longest first; the others run beside it, one after another.
        scenario!(
            Heavy,
            "acme-troubles",
            acme::a_ca_in_trouble_troubles_nobody_else
        ),
        scenario!(
            Heavy,
            "rolled",
            webhook::webhook_fails_no_apply_whatever_happens_to_one_of_its_pods
        ),
        scenario!(Heavy, "hostile", webhook::hostile_requests_harm_nobody_else),
        scenario!(Heavy, "acme-many", acme::fifty_at_once),
        scenario!(
            Heavy,
            "taken",
            ownership::an_admin_takes_a_name_from_its_holder
        ),
        scenario!(
            Alone,
            "hijack",
            ownership::hostname_and_port_that_another_tenant_serves_cannot_be_taken
        ),
        scenario!(
            Alone,
            "shared",
            ownership::hostname_on_a_shared_listener_is_not_taken_by_another_tenant
        ),
        scenario!(
            Alone,
            "paths",
            ownership::a_part_of_a_hostname_is_another_teams
        ),
        scenario!(
            Alone,
            "attacks",
            ownership::every_way_to_another_teams_name_is_closed
        ),
        scenario!(
            Alone,
            "programmed",
            programmed::programmed_waits_for_every_ready_proxy
        ),
        scenario!(
            Alone,
            "handover",
            handover::a_hostname_changes_hands_and_no_other_notices
        ),
        scenario!(
            Alone,
            "late",
            admission::without_the_webhook_a_conflict_is_a_status
        ),
        scenario!(
            Alone,
            "older",
            bad_input::objects_that_passed_older_checks_get_a_status_that_says_what_is_wrong
        ),
        scenario!(Alone, "acme-held", acme::a_challenge_waits_for_every_proxy),
        scenario!(
            Alone,
            "cert-manager",
            certmanager::cert_manager_issues_what_sets_ask_for
        ),
        scenario!(Alone, "latency", latency::from_apply_to_the_first_request),
        scenario!(
            Alone,
            "quiet",
            quiet::nothing_is_written_while_nothing_changes
        ),
        scenario!(
            Alone,
            "no-webhook",
            webhook::without_webhooks_only_guarded_writes_are_refused
        ),
        scenario!(
            Alone,
            "ready",
            ready::the_first_request_after_the_status_succeeds
        ),
        scenario!(
            Alone,
            "live-route",
            live_route::a_route_that_serves_is_edited_all_the_time
        ),
        scenario!(
            Alone,
            "edits-few",
            edits::nothing_fails_while_anything_changes
        ),
        scenario!(
            Alone,
            "http3",
            http3::connections_of_http3_stay_with_their_backend
        ),
        scenario!(Alone, "acme-kill", acme::the_next_leader_resumes_the_order),
        scenario!(Alone, "takeover", faults::a_follower_takes_over),
        scenario!(
            Alone,
            "proxy-killed",
            faults::a_killed_proxy_breaks_its_own_connections_only
        ),
        scenario!(
            Alone,
            "no-operators",
            faults::without_operators_traffic_goes_on
        ),
        scenario!(
            Alone,
            "api-away",
            faults::the_api_server_is_gone_for_a_minute
        ),
        scenario!(
            Alone,
            "memory-limit",
            memory_limit::proxies_stay_below_their_memory_limit
        ),
        scenario!(Alone, "upgrade", upgrade::an_upgrade_breaks_nothing),
        // Its thousand objects are deleted for a minute.
        scenario!(Alone, "many", bad_input::a_thousand_listener_sets_at_once),
        scenario!(Asked, "scale", scale::thousands_of_routes),
        scenario!(
            Asked,
            "etcd-restored",
            restored::etcd_is_restored_from_a_backup
        ),
        scenario!(Asked, "dying-pod", failing::a_pod_dies_without_a_word),
        scenario!(Asked, "edits-many", edits::each_edit_two_hundred_times),
        scenario!(
            Asked,
            "edits-all",
            edits::everything_at_once_for_ten_minutes
        ),
        // Their names begin alike: `make bench-cluster` asks for all of them, and the table comes last.
        scenario!(Asked, "bench-attached", bench::attached_routes),
        scenario!(Asked, "bench-probe", bench::probe),
        scenario!(Asked, "bench-changes", bench::route_changes),
        scenario!(Asked, "bench-routes", bench::route_scale),
        scenario!(Asked, "bench-sets", bench::listener_set_scale),
        scenario!(Asked, "bench-failover", bench::backend_failover),
        scenario!(Asked, "bench-table", bench::table),
        scenario!(Asked, "twenty-acme", acme::twenty_certificates),
        scenario!(Asked, "five-hundred-acme", acme::five_hundred_at_once),
        scenario!(
            Asked,
            "twenty-certmanager",
            certmanager::twenty_certificates
        ),
        scenario!(
            Asked,
            "rest-certmanager",
            certmanager::nothing_is_written_at_rest
        ),
        scenario!(Last, "keys", keys::no_key_is_anywhere_but_in_its_secret),
        scenario!(
            Last,
            "uninstall",
            install::uninstall_leaves_nothing,
            lasting
        ),
    ]
}
