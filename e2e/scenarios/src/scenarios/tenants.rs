//! Teams on one Gateway, and two Gateways side by side: what one does is not seen at the other.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::api::{self, items, text};
use crate::client::{Failure, Target};
use crate::load::{Hold, describe};
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::scenarios::install::finalizers;
use crate::tools::run;
use crate::wait::{SOON, until};
use crate::world::{CLASS, NAMESPACE, Stage, Team, World};

/// Team A applies a ListenerSet and routes under its own identity; `openssl` and `curl` see the right
/// chain and the right backend. Team B does the same with the same object names; nothing of A changes.
pub(super) async fn two_teams_with_the_same_names_do_not_touch(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let (terminated_a, passed_a) = ("shop.a.two-teams.test", "db.a.two-teams.test");
    let (terminated_b, passed_b) = ("shop.b.two-teams.test", "db.b.two-teams.test");
    let (names_a, names_b) = ([terminated_a, passed_a], [terminated_b, passed_b]);
    tokio::try_join!(stage.backend(&a, &names_a), stage.backend(&b, &names_b))?;

    a.kubectl
        .apply(&a.story(terminated_a, passed_a)?)
        .await?
        .must()?;
    a.served(stage).await?;
    sees_chain_and_backend(world, &a, terminated_a, passed_a).await?;

    let before = statuses(&a).await?;
    let target = a.target(world, terminated_a).await?;
    let hold = Hold::open(&target, 4)
        .await
        .map_err(|f| anyhow::anyhow!("{f:?}"))?;
    b.kubectl
        .apply(&b.story(terminated_b, passed_b)?)
        .await?
        .must()?;
    b.served(stage).await?;
    sees_chain_and_backend(world, &b, terminated_b, passed_b).await?;

    sees_chain_and_backend(world, &a, terminated_a, passed_a).await?;
    ensure!(
        statuses(&a).await? == before,
        "statuses of A changed when B came"
    );
    let ends = hold.finish().await?;
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "A's connections: {}",
        describe(&ends)
    );
    Ok(Verdict::passed())
}

/// The team's ListenerSet and routes, with what changes by itself taken out.
async fn statuses(team: &Team) -> Result<Vec<Value>> {
    Ok(vec![
        team.get(api::LISTENER_SET, "web").await?,
        team.get(api::TLS_ROUTE, "terminated").await?,
        team.get(api::TLS_ROUTE, "passed").await?,
    ])
}

/// What `openssl s_client` and `curl` see at both hostnames of a team.
async fn sees_chain_and_backend(
    world: &World,
    team: &Team,
    terminated: &str,
    passed: &str,
) -> Result<()> {
    let root = world.out.join(format!("{}.root.pem", team.namespace));
    tokio::fs::write(&root, team.authority.root()).await?;
    let root = root.to_string_lossy();
    for (hostname, sni) in [(terminated, None), (passed, Some(passed))] {
        team.answers(&team.target(world, hostname).await?).await?;
        let address = world.address(&team.gateway.0, &team.gateway.1, 443).await?;
        let connect = address.to_string();
        let shown = run(
            "openssl".as_ref(),
            &[
                "s_client",
                "-connect",
                &connect,
                "-servername",
                hostname,
                "-verify_hostname",
                hostname,
                "-verify_return_error",
                "-CAfile",
                &root,
                "-showcerts",
            ],
            &[],
            "",
        )
        .await?
        .must()?;
        ensure!(
            shown.contains("Verify return code: 0 (ok)"),
            "{hostname}: {shown}"
        );
        let certificates = shown.matches("BEGIN CERTIFICATE").count();
        ensure!(certificates == 2, "{hostname}: a chain of {certificates}");
        ensure!(
            shown.contains(&team.authority.intermediate_name()),
            "{hostname}: another CA's chain"
        );

        let resolve = format!("{hostname}:443:{}", address.ip());
        let url = format!("https://{hostname}/");
        let got = run(
            "curl".as_ref(),
            &[
                "--silent",
                "--show-error",
                "--fail",
                "--max-time",
                "20",
                "--resolve",
                &resolve,
                "--cacert",
                &root,
                &url,
            ],
            &[],
            "",
        )
        .await?
        .must()?;
        let answer: Value = serde_json::from_str(&got).context("curl's answer")?;
        ensure!(
            text(&answer, "/namespace") == team.namespace,
            "{hostname}: {got}"
        );
        // Only what is passed through reaches the backend's own TLS.
        ensure!(
            answer.get("sni").and_then(Value::as_str) == sni,
            "{hostname}: {got}"
        );
    }
    Ok(())
}

/// The tenant Role lets a team write its listeners, routes and certificates, and nothing of the platform
/// or of another team.
pub(super) async fn a_team_can_do_no_more_than_its_role_says(stage: &Stage) -> Result<Verdict> {
    let platform = stage.namespace("platform").await?;
    let gateway = (platform.clone(), "shared".to_owned());
    let a = stage.team("a", &gateway).await?;
    let b = stage.team("b", &gateway).await?;
    for (verb, resource) in [
        ("create", "listenersets.gateway.networking.k8s.io"),
        ("delete", "listenersets.gateway.networking.k8s.io"),
        ("create", "tlsroutes.gateway.networking.k8s.io"),
    ] {
        ensure!(
            a.kubectl.can(verb, resource, &a.namespace).await?,
            "A cannot {verb} its {resource}"
        );
        ensure!(
            !a.kubectl.can(verb, resource, &b.namespace).await?,
            "A can {verb} B's {resource}"
        );
    }
    for (verb, resource, namespace) in [
        (
            "create",
            "gateways.gateway.networking.k8s.io",
            a.namespace.as_str(),
        ),
        ("patch", "gateways.gateway.networking.k8s.io", &platform),
        (
            "create",
            "gatewayclasses.gateway.networking.k8s.io",
            &a.namespace,
        ),
        (
            "update",
            "listenersets.gateway.networking.k8s.io/status",
            &a.namespace,
        ),
        (
            "update",
            "tlsroutes.gateway.networking.k8s.io/status",
            &a.namespace,
        ),
        ("get", "secrets", &b.namespace),
        ("get", "secrets", NAMESPACE),
        (
            "create",
            "rolebindings.rbac.authorization.k8s.io",
            &a.namespace,
        ),
        ("create", "pods", &a.namespace),
        (
            "delete",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
            "",
        ),
    ] {
        ensure!(
            !a.kubectl.can(verb, resource, namespace).await?,
            "A can {verb} {resource} in {namespace}"
        );
    }
    Ok(Verdict::passed())
}

/// Two Gateways on port 443 with the same hostname and different backends never meet.
pub(super) async fn gateways_with_the_same_hostname_never_meet(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let hostname = "one.same-hostname.test";
    let mut sides = Vec::new();
    for role in ["left", "right"] {
        let gateway = (format!("e2e-{}-{role}", stage.name), "own".to_owned());
        let team = stage.team(role, &gateway).await?;
        stage.backend(&team, &[hostname]).await?;
        let leaf = team.authority.leaf(&[hostname])?;
        let terminate = manifests::listener("site", hostname, Mode::Terminate("site-tls"));
        let space = &team.namespace;
        let objects = [
            manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
            manifests::gateway(space, "own", CLASS, &[terminate]),
            manifests::tls_route(
                space,
                "site",
                &manifests::to_gateway("own"),
                hostname,
                ("web", 80),
            ),
        ];
        world.kubectl.apply(&objects).await?.must()?;
        sides.push(team);
    }
    let mut addresses = Vec::new();
    for side in &sides {
        stage.gateway_served(&side.namespace, "own").await?;
        addresses.push(world.address(&side.namespace, "own", 443).await?);
        // The certificate is the team's own, too: it is verified against the team's root alone.
        side.answers(&side.target(world, hostname).await?).await?;
    }
    ensure!(addresses[0] != addresses[1], "both have {}", addresses[0]);
    for side in &sides {
        let target = side.target(world, hostname).await?;
        for _ in 0..50 {
            let answer = target.ask().await.map_err(|f| anyhow::anyhow!("{f:?}"))?;
            ensure!(
                answer.namespace == side.namespace,
                "answered by {}",
                answer.namespace
            );
        }
    }
    Ok(Verdict::noting(
        "100 connections, each answered by its own side",
    ))
}

/// B deletes its ListenerSet while A holds connections: A's survive, B's hostnames close and come back
/// when it is applied again. A deleted Gateway leaves no Service, port, finalizer or Lease behind.
pub(super) async fn a_team_leaves_and_comes_back(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let (terminated_a, passed_a) = ("t.a.leave.test", "p.a.leave.test");
    let (terminated_b, passed_b) = ("t.b.leave.test", "p.b.leave.test");
    let (names_a, names_b) = ([terminated_a, passed_a], [terminated_b, passed_b]);
    tokio::try_join!(stage.backend(&a, &names_a), stage.backend(&b, &names_b))?;
    let story_b = b.story(terminated_b, passed_b)?;
    a.kubectl
        .apply(&a.story(terminated_a, passed_a)?)
        .await?
        .must()?;
    b.kubectl.apply(&story_b).await?.must()?;
    a.served(stage).await?;
    b.served(stage).await?;
    let mut holds = Vec::new();
    for hostname in [terminated_a, passed_a] {
        let target = a.target(world, hostname).await?;
        holds.push(
            Hold::open(&target, 5)
                .await
                .map_err(|f| anyhow::anyhow!("{f:?}"))?,
        );
    }
    let targets = [
        b.target(world, terminated_b).await?,
        b.target(world, passed_b).await?,
    ];
    for target in &targets {
        b.answers(target).await?;
    }

    b.kubectl
        .run(&["delete", "listenerset", "web", "-n", &b.namespace])
        .await?
        .must()?;
    for target in &targets {
        closed(target).await?;
    }
    b.kubectl.apply(&story_b).await?.must()?;
    b.served(stage).await?;
    for target in &targets {
        b.answers(target).await?;
    }
    let mut ends = Vec::new();
    for hold in holds {
        ends.extend(hold.finish().await?);
    }
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "A's connections: {}",
        describe(&ends)
    );

    deleted_gateway_leaves_nothing(stage, &gateway).await?;
    Ok(Verdict::noting(format!(
        "A's connections meanwhile: {}",
        describe(&ends)
    )))
}

/// Waits until a hostname is closed: no certificate, no answer.
async fn closed(target: &Target) -> Result<()> {
    until("the hostname to close", SOON, async || {
        match target.ask().await {
            Err(Failure::Closed | Failure::Reset | Failure::Refused) => Ok(()),
            Err(failure) => bail!("{failure:?}"),
            Ok(answer) => bail!("answered by {}", answer.pod),
        }
    })
    .await
}

async fn deleted_gateway_leaves_nothing(stage: &Stage, gateway: &(String, String)) -> Result<()> {
    let world = &stage.world;
    let object = world
        .api
        .must_get(api::GATEWAY, &gateway.0, &gateway.1)
        .await?;
    ensure!(finalizers(&object) == 0, "the Gateway has a finalizer");
    let uid = text(&object, "/metadata/uid").to_owned();
    let leases = |leases: Vec<Value>| leases.len();
    let before = leases(world.api.list(api::LEASE, NAMESPACE, "").await?);
    world
        .api
        .delete(api::GATEWAY, &gateway.0, &gateway.1)
        .await?;
    until("what the Gateway had to go", SOON, async || {
        let gone = world
            .api
            .get(api::GATEWAY, &gateway.0, &gateway.1)
            .await?
            .is_none();
        ensure!(gone, "the Gateway is still there");
        let services = world
            .api
            .list(
                api::SERVICE,
                "",
                &format!("vestibule.dev/gateway-uid={uid}"),
            )
            .await?;
        ensure!(services.is_empty(), "{} Services remain", services.len());
        for map in world.api.list(api::CONFIG_MAP, NAMESPACE, "").await? {
            ensure!(
                !map.to_string().contains(&uid),
                "a ConfigMap still names it: {map}"
            );
        }
        let leases = leases(world.api.list(api::LEASE, NAMESPACE, "").await?);
        ensure!(leases <= before, "{leases} Leases, {before} before");
        Ok(())
    })
    .await?;
    let sets = world.api.list(api::LISTENER_SET, "", "").await?;
    let held = sets
        .iter()
        .filter(|set| text(set, "/spec/parentRef/namespace") == gateway.0)
        .find(|set| !items(set, "/metadata/finalizers").is_empty());
    ensure!(held.is_none(), "a ListenerSet has a finalizer: {held:?}");
    Ok(())
}
