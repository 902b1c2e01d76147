//! A listener of the Gateway's own that everybody attaches to: who serves a name there keeps it.

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::grants::site;
use super::hijack::a_second_later;
use crate::api;
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::scenarios::admission::{let_in, passing_set, without_admission};
use crate::scenarios::quiet::restarted;
use crate::world::{CLASS, Stage, Team};

const WANTED: &str = "wanted.shared.test";
/// Of B, by right.
const OWN: &str = "b.shared.test";
/// New connections a second.
const RATE: u32 = 40;

/// A serves a name by a TLSRoute on the Gateway's own listener `*.shared.test`. B has an older route there, which
/// takes the name up later; sets of B have a listener for just this name, one of which no route can attach to.
/// Admission refuses what would take the name. With admission gone all of it comes in, and takes nothing: not one
/// connection of A fails or comes to B, and not when the operators start anew.
pub(in super::super) async fn hostname_on_a_shared_listener_is_not_taken_by_another_tenant(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = open_gateway(stage).await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    tokio::try_join!(
        stage.backend(&a, &[WANTED]),
        stage.backend(&b, &[WANTED, OWN])
    )?;
    // B's are the older ones.
    let old = attached(&b, "old", &[OWN]);
    b.kubectl
        .apply(&[old, passing_set(&b, "old", "b.elsewhere.test")])
        .await?
        .must()?;
    let of_b = b.target(world, OWN).await?;
    b.answers(&of_b).await?;
    a_second_later(world, &b, &passing_set(&a, "web", WANTED)).await?;
    a.kubectl
        .apply(&[attached(&a, "web", &[WANTED])])
        .await?
        .must()?;
    let target = a.target(world, WANTED).await?;
    a.answers(&target).await?;
    accepted(stage, &a, "web").await?;

    let mut notes = Vec::new();
    let taken = [
        attached(&b, "old", &[OWN, WANTED]),
        passing_set(&b, "old", WANTED),
    ];
    for edit in &taken {
        let edit = std::slice::from_ref(edit);
        let message = b.kubectl.apply(edit).await?.must_fail()?;
        ensure!(
            !message.contains(&a.namespace),
            "it names the holder: {message}"
        );
        let verdict = message.rsplit("admission webhook").next();
        notes.push(verdict.unwrap_or_default().trim().replace('\n', " "));
    }

    let hold = Hold::open(&target, 4).await;
    let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
    let load = Load::start(target.clone(), RATE);
    let result = without_admission(world, async {
        for edit in &taken {
            let_in(&b, edit).await?;
        }
        b.kubectl
            .apply(&[
                site(&b, "old", WANTED).remove(1),
                parked(&b),
                attached(&b, "new", &[WANTED]),
            ])
            .await?
            .must()?;
        told(stage, &a, &b).await
    })
    .await;
    let result = match result {
        Ok(()) => restarted(world).await,
        Err(error) => Err(error),
    };
    let (counts, ends) = (load.stop().await?, hold.finish().await?);
    result?;
    told(stage, &a, &b).await?;
    only_by_a(&a, &target).await?;
    b.answers(&of_b).await?;
    accepted(stage, &a, "web").await?;
    ensure!(counts.failed.is_empty(), "the holder: {counts}");
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "connections to the holder: {}",
        describe(&ends)
    );
    notes.push(format!("the holder, meanwhile: {counts}"));
    Ok(Verdict::Passed(notes))
}

/// A Gateway whose own listener takes routes and sets of this stage's namespaces.
async fn open_gateway(stage: &Stage) -> Result<(String, String)> {
    let namespace = stage.namespace("platform").await?;
    let mut own = manifests::listener("shared", "*.shared.test", Mode::Passthrough);
    own["allowedRoutes"] = json!({"namespaces": {
        "from": "Selector",
        "selector": {"matchLabels": {"vestibule-e2e": stage.name}},
    }});
    let gateway = manifests::gateway(&namespace, "shared", CLASS, &[own]);
    let gateway = manifests::open_to(gateway, &stage.name);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    stage.gateway_served(&namespace, "shared").await?;
    Ok((namespace, "shared".to_owned()))
}

/// A team's TLSRoute on the Gateway's own listener.
fn attached(team: &Team, name: &str, hostnames: &[&str]) -> Value {
    let (namespace, gateway) = team.parent();
    let parent = json!({"namespace": namespace, "name": gateway, "sectionName": "shared"});
    let name = format!("shared-{name}");
    let mut route = manifests::tls_route(&team.namespace, &name, &parent, WANTED, ("web", 443));
    route["spec"]["hostnames"] = json!(hostnames);
    route
}

/// B's set for the name that no route can attach to.
fn parked(b: &Team) -> Value {
    let mut set = passing_set(b, "parked", WANTED);
    set["spec"]["listeners"][0]["allowedRoutes"] = json!({"kinds": [{"kind": "UDPRoute"}]});
    set
}

/// Waits until B's objects say that they lost, in words that name nothing of A.
async fn told(stage: &Stage, a: &Team, b: &Team) -> Result<()> {
    let space = &b.namespace;
    for set in ["old", "parked"] {
        stage
            .see(api::LISTENER_SET, space, set, |set| {
                let message = conditions::of_listener(set, "site", "Programmed", "False", None)?;
                ensure!(
                    !message.contains(&a.namespace),
                    "it names the holder: {message}"
                );
                Ok(())
            })
            .await?;
    }
    // One route has the name beside its own, the other has nothing else.
    accepted(stage, b, "old").await?;
    stage
        .see(api::TLS_ROUTE, space, "shared-new", |route| {
            let conflict = Some("HostnameConflict");
            conditions::of_route(route, "Accepted", "False", conflict)?;
            let status = route["status"].to_string();
            ensure!(
                !status.contains(&a.namespace),
                "it names the holder: {status}"
            );
            Ok(())
        })
        .await
        .map(drop)
}

async fn accepted(stage: &Stage, team: &Team, name: &str) -> Result<()> {
    let name = format!("shared-{name}");
    stage
        .see(api::TLS_ROUTE, &team.namespace, &name, |route| {
            conditions::of_route(route, "Accepted", "True", None).map(drop)
        })
        .await
        .map(drop)
}

/// Checks that A answers, twenty times in a row.
async fn only_by_a(a: &Team, target: &Target) -> Result<()> {
    for _ in 0..20 {
        a.answers(target).await?;
    }
    Ok(())
}
