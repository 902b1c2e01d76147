//! Input that nobody should write: statuses say so, nothing crashes, no queue gets stuck.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::api::{self, items, name, text};
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::wait::{LATER, until};
use crate::world::{CLASS, EXEMPT, Stage, Team};

/// How many ListenerSets are applied at once.
const MANY: usize = 1000;
/// Bound within which their statuses are complete, with two cores for everything.
const MANY_WITHIN: Duration = Duration::from_mins(5);

/// A Secret of the wrong type, or with something else in it, closes its listener and no other; the status
/// says so.
pub(super) async fn a_secret_of_the_wrong_type_is_a_status(stage: &Stage) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let space = &team.namespace;
    let leaf = team.authority.leaf(&["good.secret.test"])?;
    let opaque = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "opaque", "namespace": space},
        "stringData": {"password": "not-to-be-shown"}});
    let set = manifests::listener_set(
        space,
        "web",
        team.parent(),
        &[
            manifests::listener("good", "good.secret.test", Mode::Terminate("good")),
            manifests::listener("opaque", "opaque.secret.test", Mode::Terminate("opaque")),
            manifests::listener("rubbish", "rubbish.secret.test", Mode::Terminate("rubbish")),
            manifests::listener("missing", "missing.secret.test", Mode::Terminate("missing")),
        ],
    );
    let objects = [
        manifests::tls_secret(space, "good", &leaf.chain, &leaf.key),
        manifests::tls_secret(space, "rubbish", "not-to-be-shown", "not-to-be-shown"),
        opaque,
        set,
    ];
    team.kubectl.apply(&objects).await?.must()?;
    stage
        .see(api::LISTENER_SET, space, "web", |set| {
            conditions::of_listener(set, "good", "Programmed", "True", None)?;
            for listener in ["opaque", "rubbish", "missing"] {
                let why = Some("InvalidCertificateRef");
                conditions::of_listener(set, listener, "ResolvedRefs", "False", why)?;
                conditions::of_listener(set, listener, "Programmed", "False", None)?;
            }
            ensure!(
                !set["status"].to_string().contains("not-to-be-shown"),
                "it shows the Secret"
            );
            Ok(())
        })
        .await?;
    stage.world.must_not_have_restarted().await?;
    Ok(Verdict::passed())
}

/// A Gateway whose name has 253 characters is served like any other.
pub(super) async fn a_gateway_with_a_name_of_253_characters_is_served(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let long = "a".repeat(253);
    let gateway = (format!("e2e-{}-team", stage.name), long.clone());
    let team = stage.team("team", &gateway).await?;
    let hostname = "one.long-name.test";
    stage.backend(&team, &[hostname]).await?;
    let listener = manifests::listener("site", hostname, Mode::Passthrough);
    let space = &team.namespace;
    let objects = [
        manifests::gateway(space, &long, CLASS, &[listener]),
        manifests::tls_route(
            space,
            "site",
            &manifests::to_gateway(&long),
            hostname,
            ("web", 443),
        ),
    ];
    world.kubectl.apply(&objects).await?.must()?;
    stage.gateway_served(space, &long).await?;
    team.answers(&team.target(world, hostname).await?).await?;
    let selector = format!("app.kubernetes.io/managed-by={}", crate::world::RELEASE);
    let aliases = world.api.list(api::SERVICE, space, &selector).await?;
    let [alias] = aliases.as_slice() else {
        anyhow::bail!("{} Services in its namespace", aliases.len());
    };
    for label in alias
        .pointer("/metadata/labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let length = label.1.as_str().unwrap_or_default().len();
        ensure!(length <= 63, "label {} has {length} characters", label.0);
    }
    Ok(Verdict::noting(format!("its Service is {}", name(alias))))
}

/// Objects that were written before the CRDs had their present checks get a status that says what is
/// wrong; what was fine stays fine.
pub(super) async fn objects_that_passed_older_checks_get_a_status_that_says_what_is_wrong(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let good = manifests::listener("good", "good.older.test", Mode::Passthrough);
    team.kubectl
        .apply(&[manifests::listener_set(
            &team.namespace,
            "good",
            team.parent(),
            &[good],
        )])
        .await?
        .must()?;
    let result = past_the_checks(stage, &team).await;
    // The namespace outlives the scenario, and whatever is in it would be judged with what comes later.
    for (kind, names) in [
        (api::TLS_ROUTE, &["ip-like", "long-label", "leftover"][..]),
        (api::LISTENER_SET, &["odd"][..]),
    ] {
        for name in names {
            world.api.delete(kind, EXEMPT, name).await?;
        }
    }
    let nobody = json!({"metadata": {"labels": {"vestibule-e2e": "exempt"}}});
    world.api.patch(api::NAMESPACE, "", EXEMPT, &nobody).await?;
    result.map(|()| Verdict::passed())
}

/// Writes wrong objects with loosened CRDs, and checks their treatment under today's.
async fn past_the_checks(stage: &Stage, team: &Team) -> Result<()> {
    let world = &stage.world;
    // Its ListenerSet has to be let in by the Gateway, too.
    let ours = json!({"metadata": {"labels": {"vestibule-e2e": stage.name}}});
    world.api.patch(api::NAMESPACE, "", EXEMPT, &ours).await?;
    let loosened = Loosened::start(stage, &["tlsroutes", "listenersets"]).await?;
    let written = write_past_the_checks(stage, team).await;
    loosened.restore().await?;
    written?;
    for route in ["ip-like", "long-label", "leftover"] {
        stage
            .see(api::TLS_ROUTE, EXEMPT, route, |route| {
                conditions::of_route(route, "Accepted", "False", None)
            })
            .await
            .with_context(|| route.to_owned())?;
    }
    stage
        .see(api::LISTENER_SET, EXEMPT, "odd", |set| {
            conditions::of_listener(set, "ip-like", "Accepted", "False", None)?;
            conditions::of_listener(set, "fine", "Programmed", "True", None).map(drop)
        })
        .await?;
    stage
        .see(api::LISTENER_SET, &team.namespace, "good", |set| {
            conditions::is_served(set, 0)
        })
        .await?;
    world.must_not_have_restarted().await
}

/// Writes what today's CRDs would refuse, in an exempt namespace, so that admission lets it in.
async fn write_past_the_checks(stage: &Stage, team: &Team) -> Result<()> {
    let api = &stage.world.api;
    let parent = manifests::to_listener_set("odd", None);
    let long = format!("{}.older.test", "l".repeat(64));
    let route =
        |name, hostname: &str| manifests::tls_route(EXEMPT, name, &parent, hostname, ("web", 443));
    let odd = manifests::listener_set(
        EXEMPT,
        "odd",
        team.parent(),
        &[
            manifests::listener("ip-like", "*.1.2.3.4", Mode::Passthrough),
            manifests::listener("fine", "fine.older.test", Mode::Passthrough),
        ],
    );
    // The leftover of v1alpha2 has no hostnames, which v1 requires.
    let mut leftover = route("leftover", "x.older.test");
    if let Some(spec) = leftover["spec"].as_object_mut() {
        spec.remove("hostnames");
    }
    for (kind, object) in [
        (api::LISTENER_SET, odd),
        (api::TLS_ROUTE, route("ip-like", "*.1.2.3.4")),
        (api::TLS_ROUTE, route("long-label", &long)),
        (api::TLS_ROUTE, leftover),
    ] {
        until("the loosened schema", LATER, async || {
            let verdict = api.verdict(kind, EXEMPT, &object, false).await?;
            ensure!(verdict.is_none(), "{}: {verdict:?}", name(&object));
            Ok::<_, anyhow::Error>(())
        })
        .await?;
    }
    Ok(())
}

/// CRDs whose schemas let anything in for a while.
struct Loosened<'a> {
    stage: &'a Stage,
    originals: Vec<Value>,
}

impl<'a> Loosened<'a> {
    async fn start(stage: &'a Stage, plurals: &[&str]) -> Result<Self> {
        let mut loosened = Self {
            stage,
            originals: Vec::new(),
        };
        for plural in plurals {
            let crd = format!("{plural}.gateway.networking.k8s.io");
            let original = stage.world.api.must_get(api::CRD, "", &crd).await?;
            let mut versions = original["spec"]["versions"].clone();
            for version in versions.as_array_mut().into_iter().flatten() {
                version["schema"] = json!({"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
            }
            loosened.originals.push(original);
            let change = json!({"spec": {"versions": versions}});
            if let Err(error) = stage.world.api.patch(api::CRD, "", &crd, &change).await {
                loosened.restore().await?;
                return Err(error);
            }
        }
        Ok(loosened)
    }

    async fn restore(self) -> Result<()> {
        for original in self.originals {
            let change = json!({"spec": {"versions": original["spec"]["versions"]}});
            self.stage
                .world
                .api
                .patch(api::CRD, "", name(&original), &change)
                .await?;
        }
        Ok(())
    }
}

/// A thousand ListenerSets applied at once: every status is complete, and the queue is not stuck.
pub(super) async fn a_thousand_listener_sets_at_once(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let sets: Vec<Value> = (0..MANY)
        .map(|n| {
            let listener =
                manifests::listener("site", &format!("n{n}.many.test"), Mode::Passthrough);
            manifests::listener_set(
                &team.namespace,
                &format!("set-{n}"),
                team.parent(),
                &[listener],
            )
        })
        .collect();
    let started = Instant::now();
    team.kubectl.apply_on_server(&sets).await?.must()?;
    let applied = started.elapsed();
    until("1000 complete statuses", MANY_WITHIN, async || {
        let sets = world
            .api
            .list(api::LISTENER_SET, &team.namespace, "")
            .await?;
        ensure!(sets.len() == MANY, "{} sets", sets.len());
        let complete = sets
            .iter()
            .filter(|set| conditions::is_served(set, 0).is_ok())
            .count();
        ensure!(complete == MANY, "{complete} complete");
        // Looking at a thousand objects costs the machine, too.
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let complete = started.elapsed();
    let object = world
        .api
        .must_get(api::GATEWAY, &gateway.0, &gateway.1)
        .await?;
    let attached = object
        .pointer("/status/attachedListenerSets")
        .and_then(Value::as_u64);
    ensure!(
        attached == Some(MANY as u64),
        "the Gateway counts {attached:?} sets"
    );

    // An edit behind the thousand is not waiting for anything.
    let edited = Instant::now();
    let listener = manifests::listener("site", "edited.many.test", Mode::Passthrough);
    let set = manifests::listener_set(&team.namespace, "set-500", team.parent(), &[listener]);
    team.kubectl.apply_on_server(&[set]).await?.must()?;
    stage
        .see(api::LISTENER_SET, &team.namespace, "set-500", |set| {
            ensure!(
                text(&items(set, "/spec/listeners")[0], "/hostname") == "edited.many.test",
                "old"
            );
            conditions::is_served(set, 0)
        })
        .await?;
    let edited = edited.elapsed();
    world.must_not_have_restarted().await?;
    Ok(Verdict::Passed(vec![
        format!(
            "{MANY} ListenerSets: kubectl apply took {:.1} s, all statuses complete after {:.1} s",
            applied.as_secs_f64(),
            complete.as_secs_f64()
        ),
        format!(
            "one edit among them: complete after {:.1} s",
            edited.as_secs_f64()
        ),
    ]))
}
