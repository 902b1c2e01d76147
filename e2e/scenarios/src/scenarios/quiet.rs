//! Checks that nothing is written where nothing changes, and measures what the components cost while nothing happens.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::api::{self, name, text};
use crate::clock;
use crate::report;
use crate::runner::Verdict;
use crate::wait::{LATER, until};
use crate::world::{NAMESPACE, OPERATOR, PROXY, Stage, WEBHOOK, World};

/// How long nothing may be written.
const IDLE: Duration = Duration::from_mins(1);

/// No API write by any of our identities while both operators restart and over 60 s idle after that, the Lease
/// excepted. Meanwhile: what memory and CPU the components use.
pub(super) async fn nothing_is_written_while_nothing_changes(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let Some(_) = world.audit_log().await? else {
        return Ok(Verdict::Skipped("the harness keeps no audit log".into()));
    };
    // Something to write about: a team that is served.
    let (_team, _target) = super::faults::served(stage).await?;
    settled(world).await?;
    let current = all_is_about_the_present(world).await?;
    let started = clock::now();
    restarted(world).await?;
    let usage = report::Usage::start(world).await?;
    tokio::time::sleep(IDLE).await;
    let mut notes = vec![
        format!("{current} conditions of all objects are about the present generation"),
        format!(
            "0 API writes while both operators restarted and in {} s idle after that, the Lease excepted",
            IDLE.as_secs()
        ),
    ];
    notes.extend(usage.finish(world).await?);
    let written = writes_since(world, started).await?;
    ensure!(written.is_empty(), "written while idle: {written:?}");
    Ok(Verdict::Passed(notes))
}

/// Both operators are others.
pub(super) async fn restarted(world: &World) -> Result<()> {
    let deployment = format!("deployment/{}", world.component(OPERATOR));
    for words in [
        ["rollout", "restart", &deployment].as_slice(),
        &["rollout", "status", &deployment, "--timeout=180s"],
    ] {
        let words = [words, &["-n", NAMESPACE]].concat();
        world.kubectl.run(&words).await?.must()?;
    }
    world.all_ready().await
}

/// Waits until ten seconds went by without a write: what scenarios before this one left is being cleaned up.
async fn settled(world: &World) -> Result<()> {
    at_rest("what was before", Duration::from_secs(10), async |since| {
        Ok(writes_since(world, since).await?.into_keys().collect())
    })
    .await
}

/// Waits until so long went by without what `writes` gives of an instant and all after it.
pub(super) async fn at_rest(
    what: &str,
    rest: Duration,
    writes: impl AsyncFn(Timestamp) -> Result<Vec<String>>,
) -> Result<()> {
    let started = clock::now();
    let rest = SignedDuration::try_from(rest)?;
    until(&format!("rest, {what}"), LATER, async || {
        // Reading the log takes a while, too.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let since = clock::now() - rest;
        let writes = writes(since.max(started)).await?;
        ensure!(writes.is_empty(), "{writes:?}");
        ensure!(since >= started, "it has only begun");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Checks that every condition in the cluster that anybody decided is about its object's present generation. Returns
/// how many there are.
async fn all_is_about_the_present(world: &World) -> Result<usize> {
    let kinds = [
        api::GATEWAY_CLASS,
        api::GATEWAY,
        api::LISTENER_SET,
        api::TLS_ROUTE,
        api::HTTP_ROUTE,
        api::BACKEND_TLS_POLICY,
    ];
    let mut conditions = 0;
    for kind in kinds {
        for object in world.api.list(kind, "", "").await? {
            let generation = &object["metadata"]["generation"];
            for condition in decided(&object["status"]) {
                ensure!(
                    condition["observedGeneration"] == *generation,
                    "{} {}/{}, generation {generation}: {condition}",
                    text(&object, "/kind"),
                    text(&object, "/metadata/namespace"),
                    name(&object)
                );
                conditions += 1;
            }
        }
    }
    Ok(conditions)
}

/// Conditions of a status and of the parts of its lists; those that only the schema put there are unknown.
fn decided(status: &Value) -> impl Iterator<Item = &Value> {
    let parts = ["listeners", "parents", "ancestors"]
        .into_iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten());
    parts
        .chain([status])
        .flat_map(|part| part["conditions"].as_array().into_iter().flatten())
        .filter(|condition| condition["status"] != "Unknown")
}

/// Finished writes by our own identities since then, Leases excepted, by what was written.
pub(super) async fn writes_since(
    world: &World,
    since: Timestamp,
) -> Result<BTreeMap<String, usize>> {
    let ours = [OPERATOR, WEBHOOK, PROXY].map(|component| {
        let account = world.component(component);
        format!("system:serviceaccount:{NAMESPACE}:{account}")
    });
    writes_by(world, since, &ours).await
}

/// The same by these users.
pub(super) async fn writes_by(
    world: &World,
    since: Timestamp,
    users: &[String],
) -> Result<BTreeMap<String, usize>> {
    let log = world.audit_log().await?.context("no audit log")?;
    count_writes(&log, since, users)
}

fn count_writes(log: &str, since: Timestamp, users: &[String]) -> Result<BTreeMap<String, usize>> {
    let mut writes = BTreeMap::new();
    // The end is what is new; a line that is being written is not whole yet.
    for line in log.lines().rev() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let at: Timestamp = text(&event, "/requestReceivedTimestamp").parse()?;
        if at < since {
            break;
        }
        let resource = text(&event, "/objectRef/resource");
        let verb = text(&event, "/verb");
        let written = ["create", "update", "patch", "delete", "deletecollection"].contains(&verb);
        // Reviews are questions that are asked by POST.
        let asked = resource.ends_with("reviews");
        if written
            && !asked
            && resource != "leases"
            && users.iter().any(|u| u == text(&event, "/user/username"))
        {
            let what = format!(
                "{verb} {resource}/{} {}/{}",
                text(&event, "/objectRef/subresource"),
                text(&event, "/objectRef/namespace"),
                text(&event, "/objectRef/name")
            );
            *writes.entry(what).or_default() += 1;
        }
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_our_own_writes_after_the_instant_count() {
        let event = |at: &str, user: &str, verb: &str, resource: &str| {
            json!({"requestReceivedTimestamp": at, "verb": verb,
                "user": {"username": format!("system:serviceaccount:{NAMESPACE}:{user}")},
                "objectRef": {"resource": resource, "namespace": "a", "name": "b"}})
            .to_string()
        };
        let log = [
            event(
                "2026-01-01T00:00:00.000000Z",
                "vestibule-operator",
                "patch",
                "services",
            ),
            event(
                "2026-01-01T00:00:10.000000Z",
                "vestibule-operator",
                "update",
                "leases",
            ),
            event(
                "2026-01-01T00:00:10.000000Z",
                "vestibule-operator",
                "create",
                "tokenreviews",
            ),
            event(
                "2026-01-01T00:00:10.000000Z",
                "somebody",
                "update",
                "gateways",
            ),
            event(
                "2026-01-01T00:00:11.000000Z",
                "vestibule-operator",
                "update",
                "gateways",
            ),
            "{\"cut".to_owned(),
        ]
        .join("\n");
        let since = "2026-01-01T00:00:05Z".parse().unwrap();
        let writes = count_writes(
            &log,
            since,
            &[format!(
                "system:serviceaccount:{NAMESPACE}:vestibule-operator"
            )],
        )
        .unwrap();
        assert_eq!(writes.len(), 1, "{writes:?}");
    }
}
