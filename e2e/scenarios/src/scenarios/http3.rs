//! HTTP/3 behind a UDPRoute: connections that end at the backend, many of them over each source port.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::api;
use crate::conditions;
use crate::echo::Answer;
use crate::http3::{Client, Connection};
use crate::manifests;
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, Team};

/// The two backends, with the number of their pods.
const BACKENDS: [(&str, usize); 2] = [("one", 2), ("two", 1)];
/// Port of the Gateway: that of HTTPS, by UDP.
const PORT: u16 = 443;
/// Port of the pods.
const POD_PORT: u16 = 8443;
/// Name in the certificate. The proxy does not see it.
const HOSTNAME: &str = "www.http3.test";
/// Secret with that certificate.
const SECRET: &str = "http3-tls";
/// Seconds that a pod goes on when it is told to stop.
const LINGER: u64 = 5;
/// Clients, each with a source port of its own: so many that sessions come to every pod.
const CLIENTS: usize = 24;
/// Connections of each client.
const CONNECTIONS: usize = 4;
/// Edits of the route. An even number, so that it leads to the first backend again.
const EDITS: usize = 4;
/// Between two requests on a connection.
const BETWEEN: Duration = Duration::from_millis(500);

/// An open connection.
struct Open {
    /// The client that opened it.
    client: usize,
    connection: Connection,
    /// Its first answer. All others are the same: the same pod, and to the pod the same peer, which is the session.
    first: Answer,
}

/// Many connections by quinn and h3 through one listener. All of a client come to one pod. They stay there while the
/// weights of the route are edited, and new clients come to the backend that has the weight. When a pod goes, the
/// connections to other pods stay, and its clients get another pod from the ports that they have.
pub(super) async fn connections_of_http3_stay_with_their_backend(stage: &Stage) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    backends(stage, &team).await?;
    team.kubectl.apply(&objects(&team)).await?.must()?;
    stage
        .see(
            api::UDP_ROUTE,
            &team.namespace,
            "http3",
            conditions::is_attached,
        )
        .await?;
    let address = stage.world.address(&gateway.0, &gateway.1, PORT).await?;
    let roots = team.authority.roots()?;
    let new_client = || Client::new(address, HOSTNAME, roots.clone());
    // kube-proxy may know the new port of the Gateway's Service a moment later than its status.
    let first = new_client()?;
    until("the first answer", SOON, async || answer_of(&first).await).await?;

    let clients: Vec<Client> = (0..CLIENTS).map(|_| new_client()).collect::<Result<_>>()?;
    let mut open = connect(&clients).await?;
    let edits = edit(stage, &team, &new_client);
    let mut answers = during(edits, &mut open).await?;

    let victim = open.first().context("connections")?.first.pod.clone();
    let (gone, mut staying): (Vec<Open>, Vec<Open>) =
        open.into_iter().partition(|open| open.first.pod == victim);
    let moved: BTreeSet<usize> = gone.iter().map(|open| open.client).collect();
    let moved: Vec<&Client> = moved
        .iter()
        .filter_map(|client| clients.get(*client))
        .collect();
    drop(gone);
    let replaced = replace(stage, &team, &victim, &moved);
    answers += during(replaced, &mut staying).await?;
    Ok(Verdict::noting(format!(
        "{} connections of {CLIENTS} clients, {answers} answers, {EDITS} edits; {} clients moved to another pod",
        CLIENTS * CONNECTIONS,
        moved.len(),
    )))
}

async fn answer_of(client: &Client) -> Result<Answer> {
    client.connect().await?.ask().await
}

/// Opens all connections. Those of a client come to one pod, and the clients to every pod of the first backend.
async fn connect(clients: &[Client]) -> Result<Vec<Open>> {
    let mut open: Vec<Open> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        for _ in 0..CONNECTIONS {
            let mut connection = client.connect().await?;
            let first = connection.ask().await?;
            let before = open.last().filter(|open| open.client == number);
            if let Some(before) = before {
                ensure!(first == before.first, "{first:?} after {:?}", before.first);
            }
            open.push(Open {
                client: number,
                connection,
                first,
            });
        }
    }
    let pods: BTreeSet<&str> = open.iter().map(|open| &*open.first.pod).collect();
    let (backend, replicas) = BACKENDS[0];
    ensure!(
        pods.len() == replicas && pods.iter().all(|pod| is_of(pod, backend)),
        "{CLIENTS} clients came to {pods:?}"
    );
    Ok(open)
}

/// Whether a pod is one of a backend.
fn is_of(pod: &str, backend: &str) -> bool {
    pod.strip_prefix(backend)
        .is_some_and(|rest| rest.starts_with('-'))
}

/// Asks on all connections until something is done. Gives the number of answers.
async fn during(something: impl Future<Output = Result<()>>, open: &mut [Open]) -> Result<usize> {
    let is_done = Cell::new(false);
    let something = async {
        let done = something.await;
        is_done.set(true);
        done
    };
    let asked = try_join_all(open.iter_mut().map(|open| ask(open, &is_done)));
    let (done, answers) = tokio::join!(something, asked);
    done?;
    Ok(answers?.into_iter().sum())
}

async fn ask(open: &mut Open, is_done: &Cell<bool>) -> Result<usize> {
    let mut answers = 0;
    while !is_done.get() {
        let asked = open.connection.ask().await;
        let answer = asked.with_context(|| format!("connection to {:?}", open.first))?;
        ensure!(
            answer == open.first,
            "{answer:?} on a connection to {:?}",
            open.first
        );
        answers += 1;
        // Others measure beside this.
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(answers)
}

/// Moves the weight again and again. As soon as the route says that it is served, a new client comes to the backend
/// that has the weight.
async fn edit(stage: &Stage, team: &Team, new_client: &impl Fn() -> Result<Client>) -> Result<()> {
    let space = &team.namespace;
    for edit in 1..=EDITS {
        let (backend, _) = BACKENDS[edit % BACKENDS.len()];
        let change = json!({"spec": {"rules": [rule(backend)]}});
        team.api
            .patch(api::UDP_ROUTE, space, "http3", &change)
            .await?;
        stage
            .see(api::UDP_ROUTE, space, "http3", |route| {
                conditions::of_route(route, "vestibule.dev/Programmed", "True", None)
            })
            .await?;
        let answer = answer_of(&new_client()?).await?;
        ensure!(
            is_of(&answer.pod, backend),
            "edit {edit} says that it is served, and a new client comes to {} instead of {backend}",
            answer.pod
        );
    }
    Ok(())
}

/// Has a pod replaced. Its clients come to another one, all connections of each to the same.
async fn replace(stage: &Stage, team: &Team, victim: &str, clients: &[&Client]) -> Result<()> {
    let api = &stage.world.api;
    api.delete(api::POD, &team.namespace, victim).await?;
    try_join_all(clients.iter().map(|client| async move {
        until("another pod", LATER, async || {
            let answer = answer_of(client).await?;
            ensure!(answer.pod != victim, "{victim} is still there");
            let second = answer_of(client).await?;
            ensure!(answer == second, "{answer:?}, and then {second:?}");
            Ok::<_, anyhow::Error>(())
        })
        .await
    }))
    .await?;
    Ok(())
}

/// Starts both backends. Waits for them.
async fn backends(stage: &Stage, team: &Team) -> Result<()> {
    let space = &team.namespace;
    let leaf = team.authority.leaf(&[HOSTNAME])?;
    let mut objects = vec![manifests::tls_secret(space, SECRET, &leaf.chain, &leaf.key)];
    let image = stage.world.image("e2e");
    for (name, replicas) in BACKENDS {
        objects.extend(backend(space, name, &image, replicas));
    }
    stage.world.kubectl.apply(&objects).await?.must()?;
    for (name, _) in BACKENDS {
        stage.available(space, name).await?;
    }
    Ok(())
}

fn backend(space: &str, name: &str, image: &str, replicas: usize) -> [Value; 2] {
    let arguments = [
        "http3".to_owned(),
        format!("--listen=0.0.0.0:{POD_PORT}"),
        "--certificate=/tls".to_owned(),
        format!("--linger={LINGER}"),
    ];
    let server = manifests::server("http3", image, &arguments, POD_PORT);
    let volumes = manifests::tls_volume(SECRET);
    let deployment = manifests::deployment(space, name, &volumes, &json!([server]));
    [
        manifests::of_pods(deployment, replicas, LINGER + 10),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": space},
            "spec": {
                "selector": {"app": name},
                "ports": [{"name": "http3", "port": PORT, "targetPort": POD_PORT, "protocol": "UDP"}],
            },
        }),
    ]
}

/// The team's listener and route, to the first backend.
fn objects(team: &Team) -> [Value; 2] {
    let space = &team.namespace;
    let listener = json!({"name": "http3", "port": PORT, "protocol": "UDP"});
    [
        manifests::listener_set(space, "http3", team.parent(), &[listener]),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "UDPRoute",
            "metadata": {"name": "http3", "namespace": space},
            "spec": {
                "parentRefs": [manifests::to_listener_set("http3", Some("http3"))],
                "rules": [rule(BACKENDS[0].0)],
            },
        }),
    ]
}

/// New sessions come to `chosen`. The other backend stays in the rule, or the sessions that it has would end.
fn rule(chosen: &str) -> Value {
    let references = BACKENDS
        .map(|(name, _)| json!({"name": name, "port": PORT, "weight": u8::from(name == chosen)}));
    json!({"backendRefs": references})
}
