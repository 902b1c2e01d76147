//! The ownership of hostnames: grants of the platform, and namespaces that hold what they serve.

mod attacks;
mod authorities;
mod gateway;
mod grants;
mod hijack;
mod pairs;
mod paths;
mod shared;
mod sharing;
mod taken;

use anyhow::Result;

use crate::api::{self, text};
use crate::world::{Stage, Team};

pub(super) use attacks::every_way_to_another_teams_name_is_closed;
pub(super) use authorities::no_connection_serves_another_teams_name;
pub(super) use gateway::names_outlive_their_gateway;
pub(super) use grants::a_hostname_is_served_only_where_it_is_granted;
pub(super) use hijack::{
    hostname_and_port_that_another_tenant_serves_cannot_be_taken,
    listener_set_that_comes_back_in_time_has_lost_nothing,
};
pub(super) use pairs::of_two_that_got_in_one_is_served;
pub(super) use paths::a_part_of_a_hostname_is_another_teams;
pub(super) use shared::hostname_on_a_shared_listener_is_not_taken_by_another_tenant;
pub(super) use sharing::a_hostname_is_shared_for_as_long_as_a_grant_says;
pub(super) use taken::an_admin_takes_a_name_from_its_holder;

/// Whether the record has all of these hostnames as the team's.
async fn holds(stage: &Stage, team: &Team, hosts: &[&str]) -> Result<bool> {
    let api = &stage.world.api;
    let claims = api.list(api::HOSTNAME_CLAIM, &team.gateway.0, "").await?;
    Ok(hosts.iter().all(|host| {
        let mut claims = claims.iter();
        let claim = claims.find(|claim| text(claim, "/spec/hostname") == *host);
        claim.is_some_and(|claim| text(claim, "/spec/holder") == team.namespace)
    }))
}
