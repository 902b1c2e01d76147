//! Edits of what lies around a route: endpoints by hand, certificates, sets beside, the Gateway, TLS to backends, grants.

use anyhow::{Context as _, Result, ensure};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::scene::{GATEWAY, INSIDE, STILL, Scene, WEB, own_host, own_listener};
use crate::api::{self, text};
use crate::app::{self, EITHER};
use crate::certificate::Authority;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::requests::Version;
use crate::wait::{LATER, until};
use crate::world::Stage;

/// The Service whose endpoints are written by hand.
const SLICED: &str = "sliced";
/// Two ConfigMaps with the authority of the backends.
const INSIDES: [&str; 2] = ["inside", "inside-too"];

/// Makes what these edits need beside the scene, and waits until the Gateway's own hostname is served.
pub(super) async fn prepare(stage: &Stage, scene: &Scene) -> Result<()> {
    let space = &scene.team.namespace;
    let (platform, _) = &scene.team.gateway;
    let own = scene.team.authority.leaf(&[&own_host(&stage.name)])?;
    let mut to = manifests::to_gateway(GATEWAY);
    to["sectionName"] = "own".into();
    let host = own_host(&stage.name);
    let mut route = manifests::http_route(platform, "own", &to, &host, (STILL, 80));
    route["spec"]["rules"][0]["backendRefs"][0]["namespace"] = space.as_str().into();
    let two = scene.team.authority.root().to_owned() + Authority::new("another")?.root();
    let objects = [
        manifests::tls_secret(platform, "own-tls", &own.chain, &own.key),
        route,
        leave(scene, "own"),
        app::service(space, SLICED, None),
        manifests::authority(space, INSIDES[0], scene.team.authority.root()),
        manifests::authority(space, INSIDES[1], &two),
    ];
    scene.world.kubectl.apply(&objects).await?.must()?;
    for slice in ["one", "two"] {
        put_slice(scene, slice, &[WEB, STILL]).await?;
    }
    scene.everywhere(&host, |_| Ok(())).await
}

/// Lets routes of the platform lead to Services of the lane.
fn leave(scene: &Scene, name: &str) -> Value {
    let from = ("HTTPRoute", scene.team.gateway.0.as_str());
    manifests::reference_grant(&scene.team.namespace, name, from, "Service")
}

/// Writes a slice with the pods of these Deployments.
async fn put_slice(scene: &Scene, name: &str, deployments: &[&str]) -> Result<()> {
    let space = &scene.team.namespace;
    let api = &scene.world.api;
    let endpoints = until("the pods of a slice", LATER, async || {
        let mut endpoints = Vec::new();
        for deployment in deployments {
            let pods = api
                .list(api::POD, space, &format!("app={deployment}"))
                .await?;
            let pod = pods.first().context("no pod")?;
            let address = text(pod, "/status/podIP");
            endpoints.push(json!({"addresses": [address], "conditions": {"ready": true}}));
        }
        Ok::<_, anyhow::Error>(endpoints)
    })
    .await?;
    let ports: Vec<Value> = app::ports()
        .iter()
        .map(|port| json!({"name": port["name"], "port": port["targetPort"], "protocol": "TCP"}))
        .collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": space, "labels": {
            "kubernetes.io/service-name": SLICED,
            "endpointslice.kubernetes.io/managed-by": "e2e",
        }},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    });
    scene.put(api::ENDPOINT_SLICE, space, &slice).await
}

/// Two endpoints in one slice are split into two slices, one of them goes, and they are merged again.
pub(super) async fn slices(scene: &Scene, _: usize) -> Result<()> {
    let space = &scene.team.namespace;
    scene
        .routes_lead_to(&[(SLICED, [80, 443], 1)], json!([]))
        .await?;
    scene.recorded().await?;
    put_slice(scene, "two", &[STILL]).await?;
    put_slice(scene, "one", &[WEB]).await?;
    scene.delete(api::ENDPOINT_SLICE, space, "one").await?;
    let still = |pod: &str| {
        ensure!(pod.starts_with(STILL), "answered by {pod}");
        Ok(())
    };
    scene.answered_by(|answer| still(&answer.pod)).await?;
    put_slice(scene, "one", &[WEB, STILL]).await?;
    scene.delete(api::ENDPOINT_SLICE, space, "two").await
}

/// The HTTPS listener has another certificate.
pub(super) async fn certificate(scene: &Scene, _: usize) -> Result<()> {
    let leaf = scene.leaf()?;
    let change = json!({"stringData": {"tls.crt": leaf.chain, "tls.key": leaf.key}});
    scene.patch(api::SECRET, "site-tls", &change).await?;
    let expected: CertificateDer<'_> = leaf.certificate()?;
    let origin = scene.origin(&scene.host("www"), Version::One)?;
    until("the new certificate on every proxy", LATER, async || {
        for door in scene.doors().await? {
            let connection = origin.at(door.address).open().await;
            let connection = connection.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
            ensure!(
                connection.certificate() == Some(&expected),
                "another on {}",
                door.pod
            );
        }
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// Another set of the team comes, changes and goes.
pub(super) async fn sets(scene: &Scene, number: usize) -> Result<()> {
    let space = &scene.team.namespace;
    let name = format!("beside-{number}");
    let host = |label: &str| format!("{label}-{number}.beside.{}", scene.domain);
    for label in ["first", "second"] {
        let site = manifests::https_listener("site", &host(label), "site-tls");
        let passed = format!("passed-{}", host(label));
        let passed = manifests::listener("passed", &passed, Mode::Passthrough);
        let set = manifests::listener_set(space, &name, scene.team.parent(), &[site, passed]);
        scene.put(api::LISTENER_SET, space, &set).await?;
        until("the set beside", LATER, async || {
            let api = &scene.world.api;
            let set = api.must_get(api::LISTENER_SET, space, &name).await?;
            conditions::is_programmed(&set, &[("site", 0), ("passed", 0)])
        })
        .await?;
    }
    scene.delete(api::LISTENER_SET, space, &name).await
}

/// The Gateway's own listener has a narrower or wider hostname, and another one beside it or not.
pub(super) async fn gateway_listener(stage: &Stage, scene: &Scene, number: usize) -> Result<()> {
    let narrow = number % 2 == 1;
    let mut listeners = vec![own_listener(stage, narrow)];
    if narrow {
        let hostname = format!("more.own.{}.test", stage.name);
        let mut more = manifests::listener("more", &hostname, Mode::Passthrough);
        more["port"] = 8443.into();
        listeners.push(more);
    }
    let (platform, gateway) = scene.team.parent();
    let change = json!({"spec": {"listeners": listeners}});
    scene
        .patch_in(api::GATEWAY, platform, gateway, &change)
        .await?;
    until("the Gateway's status", LATER, async || {
        let api = &scene.world.api;
        let object = api.must_get(api::GATEWAY, platform, gateway).await?;
        conditions::of_object(&object, "Programmed", "True", None)?;
        conditions::of_listener(&object, "own", "Programmed", "True", None)
    })
    .await?;
    scene.everywhere(&own_host(&stage.name), |_| Ok(())).await
}

/// TLS to the backend comes, has other authorities, and goes. The backend takes both.
pub(super) async fn backend_tls(scene: &Scene, number: usize) -> Result<()> {
    let space = &scene.team.namespace;
    scene
        .routes_lead_to(&[(WEB, [EITHER; 2], 1)], json!([]))
        .await?;
    scene
        .answered_by(|answer| {
            ensure!(answer.port == EITHER, "on port {}", answer.port);
            Ok(())
        })
        .await?;
    let authority = (number % 3).checked_sub(1).map(|which| INSIDES[which]);
    match authority {
        None => scene.delete(api::BACKEND_TLS_POLICY, space, WEB).await?,
        Some(authority) => {
            let service = (WEB, "either");
            let policy = manifests::backend_tls_policy(space, WEB, service, INSIDE, authority);
            scene.put(api::BACKEND_TLS_POLICY, space, &policy).await?;
        }
    }
    let expected = authority.map(|_| INSIDE);
    scene
        .everywhere(&scene.host("www"), |(_, answer)| {
            let sni = answer.sni.as_deref();
            ensure!(sni == expected, "the backend saw {sni:?}");
            Ok(())
        })
        .await
}

/// What a lane is granted, under a name.
pub(super) async fn grant(scene: &Scene, name: &str, hostname: &str) -> Result<()> {
    let (platform, gateway) = scene.team.parent();
    let spec = json!({
        "gateways": [gateway],
        "namespaces": {"names": [scene.team.namespace]},
        "hostnames": [hostname],
    });
    let grant = manifests::hostname_grant(platform, name, &spec);
    scene.put(api::HOSTNAME_GRANT, platform, &grant).await
}

/// A second grant gives what the first one gives, which is narrowed, widened and as it was. The same with the leave
/// that a route of another namespace has for the Service.
pub(super) async fn grants(scene: &Scene, _: usize) -> Result<()> {
    let space = &scene.team.namespace;
    let (platform, _) = scene.team.parent();
    let all = format!("*.{}", scene.domain);
    let narrow = format!("*.nothing.{}", scene.domain);
    let second = format!("{space}-spare");
    grant(scene, &second, &all).await?;
    for hostname in [narrow.as_str(), "*", &all] {
        grant(scene, space, hostname).await?;
    }
    scene.delete(api::HOSTNAME_GRANT, platform, &second).await?;
    for (comes, goes) in [("spare", "own"), ("own", "spare")] {
        let leave = leave(scene, comes);
        scene.put(api::REFERENCE_GRANT, space, &leave).await?;
        scene.delete(api::REFERENCE_GRANT, space, goes).await?;
    }
    scene.recorded().await
}
