//! An open connection carries requests for any host that the client writes into them. The server name of the handshake
//! says which certificate the client saw, not whose name a request asks for.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::holds;
use crate::api;
use crate::conditions;
use crate::manifests;
use crate::requests::{Connection, Origin, Version};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team};

/// A name of A, with an HTTPS listener on port 443 and a route for one path.
const WANTED: &str = "wanted.authorities.test";
/// A name of A that has no listener on port 443.
const ELSEWHERE: &str = "elsewhere.authorities.test";
const PLAIN_PORT: u16 = 8080;
/// Names of B: one with a listener of its own, and one that only B's wildcard has.
const OWN: &str = "mine.authorities.test";
const OTHER: &str = "other.authorities.test";
const WILDCARD: &str = "*.authorities.test";
/// The paths that are asked for. A's route has the first one, B's routes have all.
const PATHS: [&str; 3] = [
    "/served/by/a",
    "/of/nobody",
    "/.well-known/acme-challenge/token",
];
/// Rounds of requests.
const ROUNDS: usize = 5;

/// B has a wildcard around A's names on the same port, and routes without a hostname that match every path. Requests
/// for A's names on B's connections, whatever server name these began with, never reach B: not for a path that A
/// does not serve, not where A has no listener on the port, and not while A is away and the record keeps its names.
pub(in super::super) async fn no_connection_serves_another_teams_name(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    tokio::try_join!(stage.backend(&a, &[WANTED]), stage.backend(&b, &[OWN]))?;
    let sets = ["web", "plain"];
    let of_a = objects_of_a(&a)?;
    a.kubectl.apply(&of_a).await?.must()?;
    served(stage, &a, &sets).await?;
    let of_b = objects_of_b(&b)?;
    b.kubectl.apply(&of_b).await?.must()?;
    served(stage, &b, &["web"]).await?;

    let scene = Scene {
        address: world.address(&gateway.0, &gateway.1, 443).await?,
        a: &a,
        b: &b,
    };
    let mut asked = 0;
    for _ in 0..ROUNDS {
        scene.present().await?;
        asked += scene.of_b_only_its_own().await?;
    }

    for set in sets {
        a.api.delete(api::LISTENER_SET, &a.namespace, set).await?;
    }
    until("the listeners to be gone", SOON, async || {
        let open = scene.open(&a, WANTED, Version::One).await;
        ensure!(open.is_err(), "{WANTED} has a listener still");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let mut away = 0;
    while away < ROUNDS {
        let answered = scene.of_b_only_its_own().await;
        // What was answered counts only if the record has said that the names are A's ever since.
        if !holds(stage, &a, &[WANTED, ELSEWHERE]).await? {
            break;
        }
        asked += answered?;
        away += 1;
    }
    ensure!(away > 0, "the names were free at once");
    if let Err(refused) = a.kubectl.apply(&of_a).await?.must() {
        // On a slow machine the names have become free meanwhile. From then on B's wildcard has them, until it goes and its
        // own time is up.
        ensure!(!holds(stage, &a, &[WANTED, ELSEWHERE]).await?, refused);
        b.api.delete(api::LISTENER_SET, &b.namespace, "web").await?;
        until("the names to be free again", SOON, async || {
            a.kubectl.apply(&of_a).await?.must()
        })
        .await?;
        served(stage, &a, &sets).await?;
        b.kubectl.apply(&of_b).await?.must()?;
        served(stage, &b, &["web"]).await?;
    } else {
        served(stage, &a, &sets).await?;
    }
    scene.present().await?;
    asked += scene.of_b_only_its_own().await?;
    Ok(Verdict::noting(format!(
        "{asked} requests for the names of another team on open connections, {away} rounds of them while the holder \
         was away: none was answered by anybody else"
    )))
}

struct Scene<'a> {
    /// The Gateway's, with port 443.
    address: SocketAddr,
    a: &'a Team,
    b: &'a Team,
}

impl Scene<'_> {
    /// A connection whose handshake named this host.
    async fn open(&self, team: &Team, server_name: &str, version: Version) -> Result<Connection> {
        let roots = team.authority.roots()?;
        let origin = Origin::tls(self.address, server_name, roots, version);
        let open = origin.open().await;
        open.map_err(|failure| anyhow!("{server_name}: {failure:?}"))
    }

    /// A's name is answered by A for the path that it serves and by nobody for others. B's names are not answered on
    /// A's connection.
    async fn present(&self) -> Result<()> {
        for version in [Version::One, Version::Two] {
            let mut open = self.open(self.a, WANTED, version).await?;
            for (number, path) in PATHS.into_iter().enumerate() {
                let answer = ask(&mut open, WANTED, path).await?;
                let expected = match number {
                    0 => Answer::By(self.a.namespace.clone()),
                    _ => Answer::Status(404),
                };
                ensure!(
                    answer == expected,
                    "{WANTED}{path} on its own connection: {answer:?}"
                );
            }
            for host in [OWN, OTHER] {
                let answer = ask(&mut open, host, PATHS[0]).await?;
                ensure!(
                    answer == Answer::Status(421),
                    "{host} on a connection to {WANTED}: {answer:?}"
                );
            }
        }
        Ok(())
    }

    /// Connections with B's server names carry B's names and none of A's. Says how many requests asked for A's names.
    async fn of_b_only_its_own(&self) -> Result<usize> {
        let mut asked = 0;
        for version in [Version::One, Version::Two] {
            for server_name in [OWN, OTHER] {
                let mut open = self.open(self.b, server_name, version).await?;
                for path in PATHS {
                    let answer = ask(&mut open, server_name, path).await?;
                    ensure!(
                        answer == Answer::By(self.b.namespace.clone()),
                        "{server_name}{path}: {answer:?}"
                    );
                    for host in [WANTED, ELSEWHERE] {
                        let answer = ask(&mut open, host, path).await?;
                        ensure!(
                            matches!(answer, Answer::Status(404 | 421)),
                            "{host}{path} on a connection to {server_name}: {answer:?}"
                        );
                        asked += 1;
                        if !open.is_open().await {
                            open = self.open(self.b, server_name, version).await?;
                        }
                    }
                }
            }
        }
        Ok(asked)
    }
}

/// Who answered, or with which status the proxy did.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The backend of this namespace.
    By(String),
    Status(u16),
}

async fn ask(open: &mut Connection, host: &str, path: &str) -> Result<Answer> {
    open.set_host(host);
    let got = open.ask(path).await;
    let got = got.map_err(|failure| anyhow!("{host}{path}: {failure:?}"))?;
    Ok(match got.answer() {
        Ok(answer) => Answer::By(answer.namespace),
        Err(_) => Answer::Status(got.status),
    })
}

/// Waits until these sets of a team are served, with one route on each listener.
async fn served(stage: &Stage, team: &Team, sets: &[&str]) -> Result<()> {
    for set in sets {
        stage
            .see(api::LISTENER_SET, &team.namespace, set, |set| {
                conditions::is_served(set, 1)
            })
            .await?;
        stage
            .see(
                api::HTTP_ROUTE,
                &team.namespace,
                set,
                conditions::is_attached,
            )
            .await?;
    }
    Ok(())
}

/// A set for each of A's names, and a route of the same name.
fn objects_of_a(a: &Team) -> Result<Vec<Value>> {
    let space = &a.namespace;
    let leaf = a.authority.leaf(&[WANTED])?;
    let site = manifests::https_listener("site", WANTED, "site-tls");
    let plain =
        json!({"name": "site", "port": PLAIN_PORT, "protocol": "HTTP", "hostname": ELSEWHERE});
    let route = |set: &str, host: &str| {
        let to = manifests::to_listener_set(set, Some("site"));
        manifests::http_route(space, set, &to, host, ("web", 80))
    };
    let mut web = route("web", WANTED);
    let path = json!({"type": "Exact", "value": PATHS[0]});
    web["spec"]["rules"][0]["matches"] = json!([{"path": path}]);
    Ok(vec![
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::listener_set(space, "web", a.parent(), &[site]),
        manifests::listener_set(space, "plain", a.parent(), &[plain]),
        web,
        route("plain", ELSEWHERE),
    ])
}

/// A set with a name of B and the wildcard around all names, and one route for both that names no host.
fn objects_of_b(b: &Team) -> Result<Vec<Value>> {
    let space = &b.namespace;
    // B's certificate covers A's names as well, so a client may use one connection for all of them.
    let leaf = b.authority.leaf(&[WILDCARD])?;
    let listeners = [("own", OWN), ("wildcard", WILDCARD)]
        .map(|(name, host)| manifests::https_listener(name, host, "site-tls"));
    let to = manifests::to_listener_set("web", None);
    let mut route = manifests::http_route(space, "web", &to, OWN, ("web", 80));
    if let Some(spec) = route["spec"].as_object_mut() {
        spec.remove("hostnames");
    }
    Ok(vec![
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::listener_set(space, "web", b.parent(), &listeners),
        route,
    ])
}
