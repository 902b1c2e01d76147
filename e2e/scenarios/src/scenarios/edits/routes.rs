//! Edits of routes, and of the Services that they lead to.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::scene::{STILL, Scene, WEB};
use crate::api::{self, items};
use crate::app::{self, PLAIN, TLS};
use crate::echo::Answer;
use crate::wait::{LATER, until};

/// The ports of a Service that routes lead to at first.
const FIRST: [u16; 2] = [80, 443];
/// Its other ports.
const SECOND: [u16; 2] = [8080, 8443];
/// Ports that a Service gets and loses.
const MOVED: [u16; 2] = [81, 444];

fn none() -> Value {
    json!([])
}

fn is_of(deployment: &str) -> impl Fn(&Answer) -> Result<()> {
    move |answer| {
        let of = answer.pod.rsplitn(3, '-').nth(2).unwrap_or_default();
        ensure!(of == deployment, "answered by {}", answer.pod);
        Ok(())
    }
}

fn is_on(ports: [u16; 2]) -> impl Fn(&Answer) -> Result<()> {
    move |answer| {
        ensure!(ports.contains(&answer.port), "on port {}", answer.port);
        Ok(())
    }
}

/// The routes lead to another Service.
pub(super) async fn backend(scene: &Scene, number: usize) -> Result<()> {
    let to = [WEB, STILL][number % 2];
    scene.routes_lead_to(&[(to, FIRST, 1)], none()).await?;
    scene.answered_by(is_of(to)).await
}

/// The routes lead to another port of the Service.
pub(super) async fn port(scene: &Scene, number: usize) -> Result<()> {
    let (ports, seen) = [(FIRST, [PLAIN[0], TLS[0]]), (SECOND, [PLAIN[2], TLS[1]])][number % 2];
    scene.routes_lead_to(&[(WEB, ports, 1)], none()).await?;
    scene.answered_by(is_on(seen)).await
}

/// Two backends with other weights, one of them none at times.
pub(super) async fn weights(scene: &Scene, number: usize) -> Result<()> {
    let (web, still) = [(1, 1), (0, 1), (9, 1), (1, 0), (1, 9)][number % 5];
    let backends = [(WEB, FIRST, web), (STILL, FIRST, still)];
    scene.routes_lead_to(&backends, none()).await?;
    scene.recorded().await
}

/// Filters come, change and go.
pub(super) async fn filters(scene: &Scene, number: usize) -> Result<()> {
    const FIELD: &str = "x-edit";
    let value = number.to_string();
    let change = json!({"add": [{"name": FIELD, "value": value}]});
    let filters = match number % 3 {
        0 => none(),
        1 => json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": change}]),
        _ => json!([
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": change},
            {"type": "RequestHeaderModifier", "requestHeaderModifier": change},
            {"type": "URLRewrite", "urlRewrite": {"hostname": "rewritten.test"}},
        ]),
    };
    scene.routes_lead_to(&[(WEB, FIRST, 1)], filters).await?;
    let expected = (!number.is_multiple_of(3)).then_some(value.as_str());
    scene
        .everywhere(&scene.host("www"), |(got, _)| {
            let field = got.fields.get(FIELD).and_then(|value| value.to_str().ok());
            ensure!(field == expected, "{FIELD} is {field:?}");
            Ok(())
        })
        .await
}

/// The routes have another hostname beside the one that is asked for.
pub(super) async fn hostnames(scene: &Scene, number: usize) -> Result<()> {
    let label = format!("more-{}", number % 4);
    let change = |names: [String; 2]| json!({"spec": {"hostnames": names}});
    let (host, passed) = (scene.host(&label), scene.passed(&label));
    let named = change([scene.host("www"), host.clone()]);
    scene.patch(api::HTTP_ROUTE, WEB, &named).await?;
    let named = change([scene.passed("www"), passed.clone()]);
    scene.patch(api::TLS_ROUTE, WEB, &named).await?;
    scene.everywhere(&host, |_| Ok(())).await?;
    scene.passed_everywhere(&passed, |_| Ok(())).await
}

/// The Service's port gets another number, and its old one back: each time the new port is there before the routes
/// lead to it, and the old one goes when they do not any more.
pub(super) async fn service_port(scene: &Scene, _: usize) -> Result<()> {
    scene.routes_lead_to(&[(WEB, FIRST, 1)], none()).await?;
    scene.answered_by(is_on([PLAIN[0], TLS[0]])).await?;
    let usual = app::ports();
    let moved = [
        app::port("moved", MOVED[0], PLAIN[1]),
        app::port("moved-tls", MOVED[1], TLS[1]),
    ];
    let both = [&usual[..], &moved[..]].concat();
    let without = |gone: [u16; 2]| -> Vec<Value> {
        let stays = |port: &&Value| gone.iter().all(|gone| port["port"] != *gone);
        both.iter().filter(stays).cloned().collect()
    };
    let has = async |ports: &[Value]| {
        let change = json!({"spec": {"ports": ports}});
        scene.patch(api::SERVICE, WEB, &change).await.map(drop)
    };
    has(&both).await?;
    endpoints_have(scene, &both).await?;
    scene.routes_lead_to(&[(WEB, MOVED, 1)], none()).await?;
    scene.answered_by(is_on([PLAIN[1], TLS[1]])).await?;
    has(&without(FIRST)).await?;
    endpoints_have(scene, &without(FIRST)).await?;
    has(&both).await?;
    endpoints_have(scene, &both).await?;
    scene.routes_lead_to(&[(WEB, FIRST, 1)], none()).await?;
    scene.answered_by(is_on([PLAIN[0], TLS[0]])).await?;
    has(&without(MOVED)).await?;
    endpoints_have(scene, &without(MOVED)).await
}

/// Waits until the Service's endpoints have these ports and no others. Before, a route to one of them leads nowhere; and
/// Kubernetes may take a second to remove a port, also after the Service has it again.
async fn endpoints_have(scene: &Scene, ports: &[Value]) -> Result<()> {
    until("endpoints of all ports", LATER, async || {
        let selector = format!("kubernetes.io/service-name={WEB}");
        let (api, space) = (&scene.world.api, &scene.team.namespace);
        let slices = api.list(api::ENDPOINT_SLICE, space, &selector).await?;
        let of = |slice: &Value| -> BTreeSet<String> {
            let name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
            items(slice, "/ports").iter().map(name).collect()
        };
        let wanted = of(&json!({"ports": ports}));
        let has = |slice: &Value| of(slice) == wanted;
        ensure!(
            !slices.is_empty() && slices.iter().all(has),
            "they have others"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await
}

/// The Service's targetPort is another one of the pods, and the old one again.
pub(super) async fn target_port(scene: &Scene, _: usize) -> Result<()> {
    scene.routes_lead_to(&[(WEB, FIRST, 1)], none()).await?;
    let usual = app::ports();
    let mut other = usual.clone();
    other[0]["targetPort"] = PLAIN[1].into();
    other[2]["targetPort"] = TLS[1].into();
    for (ports, seen) in [(other, [PLAIN[1], TLS[1]]), (usual, [PLAIN[0], TLS[0]])] {
        let change = json!({"spec": {"ports": ports}});
        scene.patch(api::SERVICE, WEB, &change).await?;
        scene.answered_by(is_on(seen)).await?;
    }
    Ok(())
}
