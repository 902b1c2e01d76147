//! What admission refuses, how it says so, and what holds without it.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::api;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::wait::{LATER, until};
use crate::world::{RELEASE, Stage, Team, World};

/// A wildcard TLSRoute, an IP-like hostname and a conflicting ListenerSet are refused: the message says
/// what, in which field and what to do, and names nothing of the other tenant.
pub(super) async fn hostnames_that_their_tenant_would_regret_are_refused_at_admission(
    stage: &Stage,
) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let a = stage.team("secretive", &gateway).await?;
    let b = stage.team("b", &gateway).await?;
    let taken = "shop.refused.test";
    let first = passing_set(&a, "holder-of-it", taken);
    a.kubectl.apply(&[first]).await?.must()?;
    stage
        .see(api::LISTENER_SET, &a.namespace, "holder-of-it", |set| {
            conditions::is_served(set, 0)
        })
        .await?;

    let parent = manifests::to_listener_set("web", None);
    let route =
        |hostname| manifests::tls_route(&b.namespace, "refused", &parent, hostname, ("web", 443));
    let mut notes = Vec::new();
    for (object, field, words) in [
        (
            route("*.refused.test"),
            "spec.hostnames[0]",
            ["*.refused.test", "wildcard"],
        ),
        // Upstream's CRD refuses dotted quads; clients read this one as 127.0.0.1, too.
        (route("127.1"), "spec.hostnames[0]", ["127.1", "IP address"]),
        (
            passing_set(&b, "late", taken),
            "spec.listeners[0].hostname",
            [taken, "hostname"],
        ),
    ] {
        let message = b.kubectl.apply(&[object]).await?.must_fail()?;
        for word in words.into_iter().chain([field]) {
            ensure!(message.contains(word), "{word:?} is not in: {message}");
        }
        for secret in [a.namespace.as_str(), "holder-of-it"] {
            ensure!(
                !message.contains(secret),
                "another tenant's {secret:?} is in: {message}"
            );
        }
        notes.push(message.trim().replace('\n', " "));
    }
    let quad = b.kubectl.apply(&[route("192.0.2.7")]).await?.must_fail()?;
    notes.push(quad.trim().replace('\n', " "));
    Ok(Verdict::Passed(notes))
}

/// A ListenerSet with one passed-through hostname.
pub(super) fn passing_set(team: &Team, name: &str, hostname: &str) -> Value {
    let listeners = [manifests::listener("site", hostname, Mode::Passthrough)];
    manifests::listener_set(&team.namespace, name, team.parent(), &listeners)
}

/// With the webhook configuration deleted, the same conflicting set gets Conflicted=True, and whoever
/// holds the hostname keeps serving.
pub(super) async fn without_the_webhook_a_conflict_is_a_status(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let a = stage.team("a", &gateway).await?;
    let b = stage.team("b", &gateway).await?;
    let (terminated, passed) = ("t.late.test", "p.late.test");
    stage.backend(&a, &[terminated, passed]).await?;
    a.kubectl
        .apply(&a.story(terminated, passed)?)
        .await?
        .must()?;
    a.served(stage).await?;
    let target = a.target(world, passed).await?;
    a.answers(&target).await?;
    let late = passing_set(&b, "late", passed);
    b.kubectl
        .apply(std::slice::from_ref(&late))
        .await?
        .must_fail()?;

    without_admission(world, conflicted(stage, &a, &b, &late)).await?;
    until("admission to be back", LATER, async || {
        let again = passing_set(&b, "again", passed);
        b.kubectl.apply(&[again]).await?.must_fail().map(drop)
    })
    .await?;
    a.answers(&target).await?;
    Ok(Verdict::passed())
}

/// Does something while nobody asks the webhook anything.
pub(super) async fn without_admission<T>(
    world: &World,
    meanwhile: impl Future<Output = Result<T>>,
) -> Result<T> {
    let selector = format!("app.kubernetes.io/instance={RELEASE}");
    let configurations = world.api.list(api::WEBHOOK, "", &selector).await?;
    ensure!(!configurations.is_empty(), "no webhook configuration");
    for configuration in &configurations {
        world
            .api
            .delete(api::WEBHOOK, "", api::name(configuration))
            .await?;
    }
    let result = meanwhile.await;
    // Back comes what the admin's next helm upgrade would bring, with the CA that the operator wrote.
    for mut configuration in configurations {
        configuration["metadata"]["resourceVersion"] = Value::Null;
        configuration["metadata"]["uid"] = Value::Null;
        configuration["metadata"]["managedFields"] = Value::Null;
        world.api.create(api::WEBHOOK, "", &configuration).await?;
    }
    result
}

/// Waits until a set is let in. The API server stops asking a moment after the configuration is gone.
pub(super) async fn let_in(team: &Team, object: &Value) -> Result<()> {
    until("the object to be let in", LATER, async || {
        team.kubectl
            .apply(std::slice::from_ref(object))
            .await?
            .must()
            .map(drop)
    })
    .await
}

async fn conflicted(stage: &Stage, holder: &Team, late: &Team, set: &Value) -> Result<()> {
    let_in(late, set).await?;
    let conflict = Some("HostnameConflict");
    stage
        .see(api::LISTENER_SET, &late.namespace, "late", |set| {
            conditions::of_listener(set, "site", "Conflicted", "True", conflict)?;
            conditions::of_listener(set, "site", "Accepted", "False", conflict)?;
            conditions::of_listener(set, "site", "Programmed", "False", conflict)?;
            let message =
                conditions::of_object(set, "Accepted", "False", Some("ListenersNotValid"))?;
            ensure!(
                !message.contains(&holder.namespace),
                "it names the holder: {message}"
            );
            Ok(())
        })
        .await?;
    let set = holder.get(api::LISTENER_SET, "web").await?;
    conditions::is_served(&set, 1)?;
    for hostname in ["t.late.test", "p.late.test"] {
        holder
            .answers(&holder.target(&stage.world, hostname).await?)
            .await?;
    }
    Ok(())
}
