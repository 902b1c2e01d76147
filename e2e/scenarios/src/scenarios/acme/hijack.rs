//! A tenant that serves a name on one Gateway gets no certificate for it where another tenant serves it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{ISSUER, address, issuer, served_by_all, site, stated, target};
use crate::api;
use crate::ca::{Ca, Troubles};
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::world::{CLASS, Stage, Team};

const WANTED: &str = "wanted.acme-hijack.test";
const OWN: &str = "mine.acme-hijack.test";
const NOWHERE: &str = "nowhere.acme-hijack.test";
/// Name of the Gateway whose ports no challenge comes to.
const BARE: &str = "bare";

/// A passes a name through on 443, B would terminate it on 8443 and names an issuer: that is refused, in words that
/// name nobody, no order is made, and A goes on. B's name that nobody else serves is issued. A name without a
/// listener on a challenge's port is not ordered either.
pub(in super::super) async fn certificate_is_not_issued_for_a_hostname_that_another_tenant_serves(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let a = stage.team("a", &gateway).await?;
    let b = stage.team("b", &gateway).await?;
    stage.backend(&a, &[WANTED]).await?;
    stage.backend(&b, &[OWN]).await?;
    let ca = Ca::start(stage, "ca", Troubles::default()).await?;
    let at = address(world, &b).await?;
    for hostname in [WANTED, OWN, NOWHERE] {
        ca.resolve(hostname, at).await?;
    }
    a.kubectl.apply(&passed(&a)).await?.must()?;
    let theirs = a.target(world, WANTED).await?;
    a.answers(&theirs).await?;

    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;

    let [wanted, _] = aside(&b, "wanted", WANTED);
    let refused = b.kubectl.apply(&[wanted]).await?.must_fail()?;
    ensure!(refused.contains(WANTED), "another reason: {refused}");
    ensure!(
        !refused.contains(&a.namespace),
        "it names another tenant: {refused}"
    );
    let mut objects = vec![issuer(&b, ISSUER, &ca, &[])];
    let [mut nowhere, route] = aside(&b, "nowhere", NOWHERE);
    let bare = bare(stage).await?;
    nowhere["spec"]["parentRef"] = json!({"namespace": bare, "name": BARE});
    objects.extend([nowhere, route]);
    objects.extend(site(&b, "own", OWN, ISSUER));
    b.kubectl.apply(&objects).await?.must()?;
    served_by_all(&target(world, &b, &ca, OWN).await?, 2).await?;
    let without = stated(stage, &b, "nowhere", "False", Some("NoChallengeListener")).await?;
    for name in ["wanted", "nowhere"] {
        let secret = format!("{name}-tls");
        let secret = world.api.get(api::SECRET, &b.namespace, &secret).await?;
        ensure!(secret.is_none(), "there is a Secret for {name}");
    }
    let orders = ca.log().await?.orders();
    ensure!(orders == 1, "{orders} orders where one may be made");
    a.answers(&theirs).await?;
    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            conditions::is_served(set, 1)
        })
        .await?;
    Ok(Verdict::Passed(vec![
        format!(
            "another serves it on 443: {}",
            refused.trim().replace('\n', " ")
        ),
        format!("nothing listens on 443 or 80: {without}"),
    ]))
}

/// A Gateway without a listener on 443 or 80. Gives its namespace.
async fn bare(stage: &Stage) -> Result<String> {
    let space = stage.namespace("bare").await?;
    let mut own = manifests::listener("own", "own.bare.test", Mode::Passthrough);
    own["port"] = json!(8443);
    let gateway = manifests::gateway(&space, BARE, CLASS, &[own]);
    let gateway = manifests::open_to(gateway, &stage.name);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    stage.gateway_served(&space, BARE).await?;
    Ok(space)
}

fn passed(team: &Team) -> [Value; 2] {
    let space = &team.namespace;
    let listener = manifests::listener("passed", WANTED, Mode::Passthrough);
    let parent = manifests::to_listener_set("web", Some("passed"));
    [
        manifests::listener_set(space, "web", team.parent(), &[listener]),
        manifests::tls_route(space, "web", &parent, WANTED, ("web", 443)),
    ]
}

/// A set that terminates a hostname on 8443 only.
fn aside(team: &Team, name: &str, hostname: &str) -> [Value; 2] {
    let [mut set, route] = site(team, name, hostname, ISSUER);
    set["spec"]["listeners"][0]["port"] = json!(8443);
    [set, route]
}
