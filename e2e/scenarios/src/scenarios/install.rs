//! The first and the last thing an admin does: install the chart, uninstall it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::api::{self, items, name, text};
use crate::conditions;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{CLASS, NAMESPACE, PROXY, RELEASE, Stage};

/// Bound within which Gateways and ListenerSets delete after an uninstall.
const DELETED_WITHIN: Duration = Duration::from_secs(30);

/// The admin installs the chart. Its class is accepted; a Gateway gets its Service, an address, Accepted
/// and Programmed.
pub(super) async fn chart_installs_and_a_gateway_is_served(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    for crd in ["gateways", "listenersets", "tlsroutes", "referencegrants"] {
        let crd = format!("{crd}.gateway.networking.k8s.io");
        ensure!(
            world.api.get(api::CRD, "", &crd).await?.is_some(),
            "{crd} is not installed; Gateway API's CRDs are the cluster's, not the chart's"
        );
    }
    let started = Instant::now();
    world.set_up().await?;
    let installed = started.elapsed();
    world.all_ready().await?;
    let nodes: BTreeSet<String> = world
        .pods(PROXY)
        .await?
        .iter()
        .map(|pod| text(pod, "/spec/nodeName").to_owned())
        .collect();
    let workers = world
        .api
        .list(api::NODE, "", "!node-role.kubernetes.io/control-plane")
        .await?;
    ensure!(
        workers.len() < 2 || nodes.len() == 2,
        "both proxies are on {nodes:?}"
    );

    stage
        .see(api::GATEWAY_CLASS, "", CLASS, |class| {
            conditions::of_object(class, "Accepted", "True", Some("Accepted")).map(drop)
        })
        .await?;

    let started = Instant::now();
    let (namespace, gateway) = stage.gateway().await?;
    let programmed = started.elapsed();
    let object = world
        .api
        .must_get(api::GATEWAY, &namespace, &gateway)
        .await?;
    let uid = text(&object, "/metadata/uid");
    let selector = format!("vestibule.dev/gateway-uid={uid}");
    let services = world.api.list(api::SERVICE, NAMESPACE, &selector).await?;
    let [service] = services.as_slice() else {
        bail!("{} Services in {NAMESPACE} for one Gateway", services.len());
    };
    let assigned = text(service, "/status/loadBalancer/ingress/0/ip");
    let published = text(&object, "/status/addresses/0/value");
    ensure!(
        assigned == published,
        "the Service has {assigned}, the Gateway says {published}"
    );
    let selector = format!("gateway.networking.k8s.io/gateway-name={gateway}");
    let aliases = world.api.list(api::SERVICE, &namespace, &selector).await?;
    let [alias] = aliases.as_slice() else {
        bail!("{} Services in {namespace} for one Gateway", aliases.len());
    };
    let target = format!("{}.{NAMESPACE}.svc.cluster.local", name(service));
    ensure!(
        text(alias, "/spec/externalName") == target,
        "it is not an alias of {target}"
    );
    Ok(Verdict::Passed(vec![
        format!(
            "chart ready {:.1} s after helm install",
            installed.as_secs_f64()
        ),
        format!(
            "Gateway programmed {:.1} s after kubectl apply",
            programmed.as_secs_f64()
        ),
    ]))
}

/// After `helm uninstall` no webhook configuration and no Service remains; Gateways and ListenerSets
/// delete.
pub(super) async fn uninstall_leaves_nothing(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    stage
        .backend(&team, &["a.uninstall.test", "p.uninstall.test"])
        .await?;
    let story = team.story("a.uninstall.test", "p.uninstall.test")?;
    team.kubectl.apply(&story).await?.must()?;
    team.served(stage).await?;

    let started = Instant::now();
    world
        .helm(&[
            "uninstall",
            RELEASE,
            "--namespace",
            NAMESPACE,
            "--wait",
            "--timeout",
            "240s",
        ])
        .await?
        .must()?;
    let uninstalled = started.elapsed();
    let ours = format!("app.kubernetes.io/instance={RELEASE}");
    let left = world.api.list(api::WEBHOOK, "", &ours).await?;
    ensure!(
        left.is_empty(),
        "{} webhook configurations remain",
        left.len()
    );
    let managed = format!("app.kubernetes.io/managed-by={RELEASE}");
    until("the Services to go", SOON, async || {
        let mut left = world.api.list(api::SERVICE, "", &managed).await?;
        left.extend(world.api.list(api::SERVICE, NAMESPACE, "").await?);
        let names: Vec<&str> = left.iter().map(name).collect();
        ensure!(left.is_empty(), "{names:?} remain");
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    // Without a webhook or an operator, nothing holds up or refuses a deletion.
    world
        .api
        .delete(api::LISTENER_SET, &team.namespace, "web")
        .await?;
    world
        .api
        .delete(api::GATEWAY, &gateway.0, &gateway.1)
        .await?;
    let started = Instant::now();
    until(
        "Gateway and ListenerSet to be gone",
        DELETED_WITHIN,
        async || {
            let set = world
                .api
                .get(api::LISTENER_SET, &team.namespace, "web")
                .await?;
            let gateway = world.api.get(api::GATEWAY, &gateway.0, &gateway.1).await?;
            ensure!(set.is_none() && gateway.is_none(), "still there");
            Ok::<_, anyhow::Error>(())
        },
    )
    .await?;
    let deleted = started.elapsed();
    let crd = world
        .api
        .get(api::CRD, "", "gatewayparameters.vestibule.dev")
        .await?;
    ensure!(
        crd.is_some(),
        "our own CRDs are kept on uninstall, and these are not"
    );
    world.tear_down().await?;
    Ok(Verdict::Passed(vec![
        format!("uninstalled in {:.1} s", uninstalled.as_secs_f64()),
        format!(
            "Gateway and ListenerSet gone {:.1} s after their deletion",
            deleted.as_secs_f64()
        ),
    ]))
}

/// Finalizers of an object.
pub(super) fn finalizers(object: &serde_json::Value) -> usize {
    items(object, "/metadata/finalizers").len()
}
