//! Certificates by ACME, from a real CA (Pebble) that validates through the Service: issued, held up,
//! refused, resumed, in trouble, and many at once.

mod held;
mod hijack;
mod issue;
mod kill;
mod many;
mod troubles;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::ca::Ca;
use crate::client::Target;
use crate::conditions;
use crate::load::percentile;
use crate::manifests::{self, Mode};
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, Team, World};

pub(super) use held::a_challenge_waits_for_every_proxy;
pub(super) use hijack::certificate_is_not_issued_for_a_hostname_that_another_tenant_serves;
pub(super) use issue::{certificates_come_by_both_challenges, one_site, twenty_certificates};
pub(super) use kill::the_next_leader_resumes_the_order;
pub(super) use many::{fifty_at_once, five_hundred_at_once};
pub(super) use troubles::a_ca_in_trouble_troubles_nobody_else;

/// Condition of a listener that says how far its certificate is.
pub(super) const ISSUED: &str = "vestibule.dev/CertificateIssued";
/// Annotation that names an issuer of the object's own namespace.
pub(super) const BY: &str = "vestibule.dev/acme-issuer";
/// Name of a team's issuer.
const ISSUER: &str = "ca";
/// How often a hostname that is not served yet is tried.
const TRY: Duration = Duration::from_millis(20);

/// Address of a team's Gateway.
async fn address(world: &World, team: &Team) -> Result<IpAddr> {
    let (namespace, name) = team.parent();
    Ok(world.address(namespace, name, 443).await?.ip())
}

/// A team's issuer of this name for the CA, with these challenges (none: both).
fn issuer(team: &Team, name: &str, ca: &Ca, challenges: &[&str]) -> Value {
    let space = &team.namespace;
    manifests::acme_issuer(space, name, &ca.directory(), ca.bundle(), challenges)
}

/// A set with one terminated hostname on port 443 whose certificate is to come into the Secret `NAME-tls`,
/// and its route to the backend.
fn site(team: &Team, name: &str, hostname: &str, issuer: &str) -> [Value; 2] {
    let space = &team.namespace;
    let secret = format!("{name}-tls");
    let listener = manifests::listener("site", hostname, Mode::Terminate(&secret));
    let set = manifests::listener_set(space, name, team.parent(), &[listener]);
    let parent = manifests::to_listener_set(name, Some("site"));
    let route = manifests::tls_route(space, name, &parent, hostname, ("web", 80));
    [manifests::annotated(set, &[(BY, issuer)]), route]
}

/// Adds a plaintext listener for the hostname on port 80 to a set.
fn with_http(mut set: Value, hostname: &str) -> Value {
    if let Some(listeners) = set["spec"]["listeners"].as_array_mut() {
        listeners
            .push(json!({"name": "plain", "port": 80, "protocol": "HTTP", "hostname": hostname}));
    }
    set
}

/// Hostname of a team at its Gateway, verified with the CA's root.
async fn target(world: &World, team: &Team, ca: &Ca, hostname: &str) -> Result<Target> {
    let (namespace, name) = team.parent();
    let address = world.address(namespace, name, 443).await?;
    Target::new(address, hostname, ca.roots().await?)
}

/// Waits until the first answer under a certificate of the CA.
pub(super) async fn served(target: &Target, what: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        match target.ask().await {
            Ok(_) => return Ok(()),
            Err(failure) if started.elapsed() > LATER => bail!("{what}: {failure:?}"),
            Err(_) => tokio::time::sleep(TRY).await,
        }
    }
}

/// Waits until twenty connections in a row were answered under a certificate of the CA, by way of this many
/// proxies.
pub(super) async fn served_by_all(target: &Target, proxies: usize) -> Result<()> {
    let mut row = 0;
    let mut seen = BTreeSet::new();
    until("every proxy to serve the certificate", SOON, async || {
        match target.ask().await {
            Ok(answer) => {
                seen.insert(answer.peer);
                row += 1;
            }
            Err(failure) => {
                row = 0;
                bail!("{failure:?}");
            }
        }
        ensure!(
            row >= 20 && seen.len() == proxies,
            "{row} in a row by {seen:?}"
        );
        Ok(())
    })
    .await
}

/// Waits until the listener `site` of a set says this about its certificate. Gives the message.
async fn stated(
    stage: &Stage,
    team: &Team,
    set: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<String> {
    let check = |set: &Value| conditions::of_listener(set, "site", ISSUED, status, reason);
    let set = stage
        .see(api::LISTENER_SET, &team.namespace, set, |set| {
            check(set).map(drop)
        })
        .await?;
    check(&set)
}

/// Median and extremes of some times.
pub(super) fn figures(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share| percentile(times, share).as_secs_f64();
    let shortest = times.first().copied().unwrap_or_default().as_secs_f64();
    format!(
        "p50 {:.2} s, min {shortest:.2} s, max {:.2} s of {}",
        at(0.5),
        at(1.0),
        times.len()
    )
}
