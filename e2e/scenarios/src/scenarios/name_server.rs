//! A name server behind one port number: its TCP port by a TCPRoute, its UDP port by a UDPRoute.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::conditions;
use crate::dig::{Dig, Transport};
use crate::manifests;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team, World};

/// The two servers. Each says its name.
const SERVERS: [&str; 2] = ["one", "two"];
/// The number of both ports of the Gateway.
const PORT: u16 = 53;
/// Port of the pods, TCP and UDP: `CoreDNS` need not be root for it.
const POD_PORT: u16 = 5353;
/// Edits of each route.
const EDITS: usize = 3;
/// Questions that one run of dig asks.
const QUESTIONS: usize = 10;
/// Between two runs of dig.
const BETWEEN: Duration = Duration::from_millis(50);
/// How many texts the long answer has, each of which is longer than half of what UDP takes without EDNS.
const LONG: usize = 4;

/// A team serves `CoreDNS` on port 53 of both transports. dig gets every answer by UDP and by TCP, and a truncated one
/// again over TCP. While both routes change from one server to the other and back, no question stays without an
/// answer; and as soon as a route says `Programmed`, the server that it names answers.
pub(super) async fn tcp_and_udp_of_one_port_are_a_name_server(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    servers(stage, &team).await?;
    team.kubectl.apply(&objects(&team)).await?.must()?;
    for kind in [api::TCP_ROUTE, api::UDP_ROUTE] {
        stage
            .see(kind, &team.namespace, "dns", conditions::is_attached)
            .await?;
    }
    let dig = Dig::new(world.address(&gateway.0, &gateway.1, PORT).await?);
    for over in [Transport::Udp, Transport::Tcp] {
        // kube-proxy may know the new port of the Gateway's Service a moment later than its status.
        let texts = until("the first answer", SOON, async || {
            dig.texts("which.test", over, 1).await
        })
        .await?;
        ensure!(texts == [SERVERS[0]], "{over:?}: {texts:?}");
    }
    let long = dig.in_full("long.test").await?;
    ensure!(
        long.contains("Truncated, retrying in TCP mode")
            && long.matches(&"x".repeat(200)).count() == LONG,
        "an answer that does not fit: {long}"
    );

    let is_done = Cell::new(false);
    let edited = async {
        let done = edit(stage, &team, &dig).await;
        is_done.set(true);
        done
    };
    let (edited, by_udp, by_tcp) = tokio::join!(
        edited,
        ask(&dig, Transport::Udp, &is_done),
        ask(&dig, Transport::Tcp, &is_done),
    );
    edited?;
    let (by_udp, by_tcp) = (by_udp?, by_tcp?);
    Ok(Verdict::noting(format!(
        "{} edits: {by_udp} answers by UDP, {by_tcp} by TCP",
        2 * EDITS
    )))
}

/// Edits both routes again and again. Each edit is served when it says so.
async fn edit(stage: &Stage, team: &Team, dig: &Dig) -> Result<()> {
    let space = &team.namespace;
    for edit in 1..=EDITS {
        let server = SERVERS[edit % SERVERS.len()];
        let change = json!({"spec": {"rules": [rule(server)]}});
        for (kind, over) in [
            (api::UDP_ROUTE, Transport::Udp),
            (api::TCP_ROUTE, Transport::Tcp),
        ] {
            team.api.patch(kind, space, "dns", &change).await?;
            stage
                .see(kind, space, "dns", |route| {
                    conditions::of_route(route, "vestibule.dev/Programmed", "True", None)
                })
                .await?;
            let texts = dig.texts("which.test", over, QUESTIONS).await?;
            ensure!(
                texts.iter().all(|text| text == server),
                "edit {edit} says that it is served, and {over:?} gives {texts:?} instead of {server}"
            );
        }
    }
    Ok(())
}

/// Asks until the edits are done. Gives the number of answers; there has to be one to each question.
async fn ask(dig: &Dig, over: Transport, is_done: &Cell<bool>) -> Result<usize> {
    let mut answers = 0;
    while !is_done.get() {
        let texts = dig.texts("which.test", over, QUESTIONS).await?;
        ensure!(
            texts.iter().all(|text| SERVERS.contains(&text.as_str())),
            "{over:?}: {texts:?}"
        );
        answers += texts.len();
        // Each question is a process, and others measure beside this.
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(answers)
}

/// Starts both servers. Waits for them.
async fn servers(stage: &Stage, team: &Team) -> Result<()> {
    let image = image(&stage.world).await?;
    let objects: Vec<Value> = SERVERS
        .iter()
        .flat_map(|name| server(&team.namespace, name, &image))
        .collect();
    stage.world.kubectl.apply(&objects).await?.must()?;
    for name in SERVERS {
        stage.available(&team.namespace, name).await?;
    }
    Ok(())
}

/// `CoreDNS` as the cluster itself has it: on every node already, whoever made the node's image.
async fn image(world: &World) -> Result<String> {
    let own = world
        .api
        .must_get(api::DEPLOYMENT, "kube-system", "coredns");
    let own = own.await?;
    let image = api::text(&own, "/spec/template/spec/containers/0/image");
    Some(image.to_owned())
        .filter(|image| !image.is_empty())
        .context("the cluster's CoreDNS has no image")
}

/// One server: its configuration, one pod, and a Service with TCP and UDP under one number.
fn server(space: &str, name: &str, image: &str) -> [Value; 3] {
    let metadata = json!({"name": name, "namespace": space});
    let answers: [String; LONG] = std::array::from_fn(|index| {
        let text = format!("{index}{}", "x".repeat(200));
        format!("    answer \"long.test. 0 IN TXT {text}\"\n")
    });
    let long = answers.concat();
    let which = format!("    answer \"which.test. 0 IN TXT {name}\"\n");
    let template = |zone: &str, answers: &str| {
        format!("{zone}:{POD_PORT} {{\n  template IN TXT {{\n{answers}  }}\n}}\n")
    };
    let configuration = template("which.test", &which) + &template("long.test", &long);
    let volumes = json!([{"name": "configuration", "configMap": {"name": name}}]);
    let containers = json!([{
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/configuration/Corefile"],
        "readinessProbe": {"tcpSocket": {"port": POD_PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "configuration", "mountPath": "/configuration", "readOnly": true}],
    }]);
    let port = |name: &str, protocol: &str| json!({"name": name, "port": PORT, "targetPort": POD_PORT, "protocol": protocol});
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"Corefile": configuration},
        }),
        manifests::deployment(space, name, &volumes, &containers),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"selector": {"app": name}, "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")]},
        }),
    ]
}

/// The team's listeners and routes, to the first server.
fn objects(team: &Team) -> Vec<Value> {
    let space = &team.namespace;
    let kinds = [("UDP", "udp"), ("TCP", "tcp")];
    let listeners =
        kinds.map(|(protocol, name)| json!({"name": name, "port": PORT, "protocol": protocol}));
    let mut objects = vec![manifests::listener_set(
        space,
        "dns",
        team.parent(),
        &listeners,
    )];
    for (protocol, listener) in kinds {
        objects.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": format!("{protocol}Route"),
            "metadata": {"name": "dns", "namespace": space},
            "spec": {
                "parentRefs": [manifests::to_listener_set("dns", Some(listener))],
                "rules": [rule(SERVERS[0])],
            },
        }));
    }
    objects
}

fn rule(server: &str) -> Value {
    json!({"backendRefs": [{"name": server, "port": PORT}]})
}
