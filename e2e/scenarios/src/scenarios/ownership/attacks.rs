//! Everything that a team can write to get the requests of another team's hostname.

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::grants::site;
use super::hijack::a_second_later;
use super::holds;
use crate::api::{self, Kind, text};
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::manifests::{self, Mode};
use crate::requests::{Origin, Version};
use crate::runner::Verdict;
use crate::scenarios::admission::{let_in, passing_set, without_admission};
use crate::scenarios::quiet::restarted;
use crate::wait::{LATER, SOON, until};
use crate::world::{CLASS, Stage, Team};

/// Of A.
const WANTED: &str = "wanted.attacks.test";
/// Of B, by right.
const OWN: &str = "own.attacks.test";
/// Of B, by its wildcard.
const OTHER: &str = "other.attacks.test";
const WILDCARD: &str = "*.attacks.test";
/// Ports on which only B has listeners.
const HTTP: u16 = 8080;
const TLS: u16 = 8443;
/// Where a CA would look for a token that B's certbot answers with.
const TOKEN: &str = "/.well-known/acme-challenge/token";
/// New connections a second.
const RATE: u32 = 40;

/// A serves a name by an HTTPRoute on the Gateway's own port 80 and by a set on 443. Older objects of B ask for it on
/// the Gateway's own listeners (with a regular expression for a path, which outranks A's, and with the path of a CA's
/// HTTP-01), on ports of their own, and with another kind of route: admission refuses them. What is around the name may
/// be asked for, and does not include it. With admission gone all of it comes in: the statuses say that the name belongs
/// to another, no request of A's clients fails or comes to B, and B's own ports do not serve the name either; nor when
/// the operators start anew.
pub(in super::super) async fn every_way_to_another_teams_name_is_closed(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = open_gateway(stage).await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    tokio::try_join!(
        stage.backend(&a, &[WANTED]),
        stage.backend(&b, &[WANTED, OWN, OTHER])
    )?;
    // B's are the older ones.
    let old = [
        plain(&b, "old", &[OWN]),
        passing_set(&b, "old", "old.elsewhere.test"),
    ];
    b.kubectl.apply(&old).await?.must()?;
    a_second_later(world, &b, &passing_set(&a, "web", WANTED)).await?;
    a.kubectl
        .apply(&[plain(&a, "web", &[WANTED])])
        .await?
        .must()?;
    a.kubectl.apply(&site(&a, "web", WANTED)).await?.must()?;
    let scene = Scene {
        stage,
        a: &a,
        b: &b,
        by_tls: a.target(world, WANTED).await?,
        address: world.address(&gateway.0, &gateway.1, 80).await?,
    };
    a.answers(&scene.by_tls).await?;
    scene.answers(80, WANTED, &a).await?;
    scene.accepted(&a, api::HTTP_ROUTE, "plain-web").await?;

    b.kubectl.apply(&around(&b)).await?.must()?;
    let mut notes = Vec::new();
    let attacks = attacks(&b);
    for attack in &attacks {
        let attack = std::slice::from_ref(attack);
        let message = b.kubectl.apply(attack).await?.must_fail()?;
        ensure!(message.contains(WANTED), "another reason: {message}");
        ensure!(
            !message.contains(&a.namespace),
            "it names the holder: {message}"
        );
        let verdict = message.rsplit("admission webhook").next();
        notes.push(verdict.unwrap_or_default().trim().replace('\n', " "));
    }
    scene.only_by_a().await?;

    let hold = Hold::open(&scene.by_tls, 4).await;
    let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
    let load = Load::start(scene.by_tls.clone(), RATE);
    let result = without_admission(world, async {
        for attack in &attacks {
            let_in(&b, attack).await?;
        }
        scene.told().await
    })
    .await;
    let result = match result {
        Ok(()) => scene.only_by_a().await,
        Err(error) => Err(error),
    };
    let result = match result {
        Ok(()) => restarted(world).await,
        Err(error) => Err(error),
    };
    let (counts, ends) = (load.stop().await?, hold.finish().await?);
    result?;
    // The new operators judge as the old ones did.
    scene.told().await?;
    scene.only_by_a().await?;
    ensure!(counts.failed.is_empty(), "the holder: {counts}");
    ensure!(
        ends.iter().all(|end| end.failure.is_none()),
        "connections to the holder: {}",
        describe(&ends)
    );
    notes.push(format!("the holder, meanwhile: {counts}"));
    let asked = scene.while_away().await?;
    notes.push(format!(
        "while the holder was away: {asked} requests, none answered by another"
    ));
    Ok(Verdict::Passed(notes))
}

/// Deletes objects of a team, as far as they are there: some have the same name.
async fn delete_all(team: &Team, objects: &[Value]) -> Result<()> {
    for object in objects {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let delete = [
            "delete",
            kind,
            name,
            "-n",
            &team.namespace,
            "--ignore-not-found",
        ];
        team.kubectl.run(&delete).await?.must()?;
    }
    Ok(())
}

struct Scene<'a> {
    stage: &'a Stage,
    a: &'a Team,
    b: &'a Team,
    /// A's name on port 443.
    by_tls: Target,
    /// The Gateway's, with port 80.
    address: SocketAddr,
}

impl Scene<'_> {
    fn plain(&self, port: u16, host: &str) -> Origin {
        let address = SocketAddr::new(self.address.ip(), port);
        Origin::plain(address, host, Version::One)
    }

    /// Waits until a hostname is answered in plaintext by a team.
    async fn answers(&self, port: u16, host: &str, team: &Team) -> Result<()> {
        let origin = self.plain(port, host);
        let answer = until("the first answer", SOON, async || {
            let got = origin
                .ask()
                .await
                .map_err(|failure| format!("{failure:?}"))?;
            got.answer().map_err(|failure| format!("{failure:?}"))
        })
        .await?;
        ensure!(
            answer.namespace == team.namespace,
            "{host} on {port} is answered by {}",
            answer.namespace
        );
        Ok(())
    }

    /// Checks that A answers for its name, twenty times in a row, and that B does on no port, while B's own names are
    /// served on each of them.
    async fn only_by_a(&self) -> Result<()> {
        let (a, b) = (self.a, self.b);
        let at = SocketAddr::new(self.address.ip(), TLS);
        let [other, wanted] =
            [OTHER, WANTED].map(|host| Target::new(at, host, b.authority.roots()?));
        b.answers(&other?).await?;
        self.answers(HTTP, OTHER, b).await?;
        self.answers(80, OTHER, b).await?;
        self.answers(80, OWN, b).await?;
        let wanted = wanted?;
        let aside = self.plain(HTTP, WANTED);
        for _ in 0..20 {
            a.answers(&self.by_tls).await?;
            let open = self.plain(80, WANTED).open().await;
            let mut open = open.map_err(|failure| anyhow!("{failure:?}"))?;
            for path in ["/", "/deep/path", TOKEN] {
                let got = open
                    .ask(path)
                    .await
                    .map_err(|failure| anyhow!("{failure:?}"))?;
                let answer = got.answer().map_err(|failure| anyhow!("{failure:?}"))?;
                ensure!(
                    answer.namespace == a.namespace,
                    "{path} is answered by {answer:?}"
                );
            }
            ensure!(wanted.ask().await.is_err(), "B answers on port {TLS}");
            if let Ok(got) = aside.ask().await {
                ensure!(got.status == 404, "on port {HTTP}: {got}");
            }
        }
        Ok(())
    }

    /// A deletes all that it has for its name. As long as the record says that the name is A's, B gets no request for
    /// it, although B's objects ask for it still; and A that comes back has it. Says how many requests there were.
    async fn while_away(&self) -> Result<u32> {
        let (a, stage) = (self.a, self.stage);
        let mine = [plain(a, "web", &[WANTED])]
            .into_iter()
            .chain(site(a, "web", WANTED));
        let mine: Vec<Value> = mine.collect();
        delete_all(a, &mine).await?;
        let by_http = self.plain(80, WANTED);
        let at = SocketAddr::new(self.address.ip(), 443);
        let of_b = Target::new(at, WANTED, self.b.authority.roots()?)?;
        let mut asked = 0;
        while asked < 60 {
            let mut answers = Vec::new();
            for path in ["/", "/deep/path", TOKEN] {
                if let Ok(mut open) = by_http.open().await {
                    let got = open.ask(path).await.and_then(|got| got.answer());
                    answers.extend(got.ok());
                }
            }
            // Whoever is answered with A's certificate is answered by A.
            answers.extend(of_b.ask().await.ok());
            if !holds(stage, a, &[WANTED]).await? {
                break;
            }
            asked += 4;
            let by_b = answers
                .iter()
                .find(|answer| answer.namespace != a.namespace);
            ensure!(by_b.is_none(), "another answers: {by_b:?}");
        }
        ensure!(asked > 0, "the name was free at once");
        if let Err(refused) = a.kubectl.apply(&mine).await?.must() {
            // On a slow machine the name has become free meanwhile, so it is B's until B's objects go and its own time is up.
            ensure!(!holds(stage, a, &[WANTED]).await?, refused);
            delete_all(self.b, &attacks(self.b)).await?;
            delete_all(self.b, &around(self.b)).await?;
            until("the name to be free again", LATER, async || {
                a.kubectl.apply(&mine).await?.must()
            })
            .await?;
        }
        a.answers(&self.by_tls).await?;
        self.answers(80, WANTED, a).await?;
        Ok(asked)
    }

    /// Waits until B's objects say that they lost, in words that name nothing of A.
    async fn told(&self) -> Result<()> {
        let conflict = Some("HostnameConflict");
        let names_nobody = |object: &Value| {
            let status = object["status"].to_string();
            ensure!(
                !status.contains(&self.a.namespace),
                "it names the holder: {status}"
            );
            Ok(())
        };
        let space = &self.b.namespace;
        for set in ["tls", "http"] {
            self.stage
                .see(api::LISTENER_SET, space, set, |set| {
                    for (kind, status) in [
                        ("Accepted", "False"),
                        ("Conflicted", "True"),
                        ("Programmed", "False"),
                    ] {
                        conditions::of_listener(set, "site", kind, status, conflict)?;
                    }
                    names_nobody(set)
                })
                .await?;
        }
        for (kind, route) in [
            (api::HTTP_ROUTE, "plain-regex"),
            (api::HTTP_ROUTE, "plain-certbot"),
            (api::TLS_ROUTE, "shared"),
        ] {
            self.stage
                .see(kind, space, route, |route| {
                    conditions::of_route(route, "Accepted", "False", conflict)?;
                    names_nobody(route)
                })
                .await?;
        }
        // It has the name beside its own.
        self.accepted(self.b, api::HTTP_ROUTE, "plain-old").await
    }

    async fn accepted(&self, team: &Team, kind: Kind, name: &str) -> Result<()> {
        self.stage
            .see(kind, &team.namespace, name, |route| {
                conditions::of_route(route, "Accepted", "True", None)
            })
            .await
            .map(drop)
    }
}

/// A Gateway with a listener for plaintext and one for TLS, which take routes of this stage's namespaces.
async fn open_gateway(stage: &Stage) -> Result<(String, String)> {
    let namespace = stage.namespace("platform").await?;
    let open = json!({"namespaces": {
        "from": "Selector",
        "selector": {"matchLabels": {"vestibule-e2e": stage.name}},
    }});
    let plain = json!({"name": "plain", "port": 80, "protocol": "HTTP", "allowedRoutes": open});
    let mut shared = manifests::listener("shared", WILDCARD, Mode::Passthrough);
    shared["allowedRoutes"] = open;
    let gateway = manifests::gateway(&namespace, "shared", CLASS, &[plain, shared]);
    let gateway = manifests::open_to(gateway, &stage.name);
    stage.world.kubectl.apply(&[gateway]).await?.must()?;
    stage.gateway_served(&namespace, "shared").await?;
    Ok((namespace, "shared".to_owned()))
}

/// A team's HTTPRoute on the Gateway's own port 80.
fn plain(team: &Team, name: &str, hostnames: &[&str]) -> Value {
    let (namespace, gateway) = team.parent();
    let parent = json!({"namespace": namespace, "name": gateway, "sectionName": "plain"});
    let name = format!("plain-{name}");
    let mut route = manifests::http_route(&team.namespace, &name, &parent, WANTED, ("web", 80));
    route["spec"]["hostnames"] = json!(hostnames);
    route
}

/// What of B's is about A's name itself: an older route that is edited, younger ones with a match that outranks A's or
/// that is a CA's HTTP-01, a route of another kind, listeners on ports of their own, and routes on B's own wildcard.
fn attacks(b: &Team) -> [Value; 8] {
    let (namespace, gateway) = b.parent();
    let space = &b.namespace;
    let mut regex = plain(b, "regex", &[WANTED]);
    let path = json!({"type": "RegularExpression", "value": "/.*"});
    regex["spec"]["rules"][0]["matches"] = json!([{"path": path}]);
    let mut certbot = plain(b, "certbot", &[WANTED]);
    let path = json!({"type": "Exact", "value": TOKEN});
    certbot["spec"]["rules"][0]["matches"] = json!([{"path": path}]);
    let shared = json!({"namespace": namespace, "name": gateway, "sectionName": "shared"});
    let mut tls = passing_set(b, "tls", WANTED);
    tls["spec"]["listeners"][0]["port"] = json!(TLS);
    let http = json!({"name": "site", "port": HTTP, "protocol": "HTTP", "hostname": WANTED});
    let [by_tls, by_http] = on_wildcard(b, &[OTHER, WANTED]);
    [
        by_tls,
        by_http,
        plain(b, "old", &[OWN, WANTED]),
        regex,
        certbot,
        manifests::tls_route(space, "shared", &shared, WANTED, ("web", 443)),
        tls,
        manifests::listener_set(space, "http", b.parent(), &[http]),
    ]
}

/// What of B's is around A's name: a wildcard and a route without a hostname on port 80, a set with the wildcard on
/// ports of its own, and routes on it.
fn around(b: &Team) -> Vec<Value> {
    let space = &b.namespace;
    let mut tls = manifests::listener("tls", WILDCARD, Mode::Passthrough);
    tls["port"] = json!(TLS);
    let http = json!({"name": "http", "port": HTTP, "protocol": "HTTP", "hostname": WILDCARD});
    let [by_tls, by_http] = on_wildcard(b, &[OTHER]);
    let mut everything = plain(b, "everything", &[]);
    if let Some(spec) = everything["spec"].as_object_mut() {
        spec.remove("hostnames");
    }
    vec![
        plain(b, "wildcard", &[WILDCARD]),
        everything,
        manifests::listener_set(space, "around", b.parent(), &[tls, http]),
        by_tls,
        by_http,
    ]
}

/// Routes on the set of [`around`].
fn on_wildcard(b: &Team, hostnames: &[&str]) -> [Value; 2] {
    let space = &b.namespace;
    let to = |listener| manifests::to_listener_set("around", Some(listener));
    let mut by_tls = manifests::tls_route(space, "around", &to("tls"), OTHER, ("web", 443));
    let mut by_http = manifests::http_route(space, "around", &to("http"), OTHER, ("web", 80));
    for route in [&mut by_tls, &mut by_http] {
        route["spec"]["hostnames"] = json!(hostnames);
    }
    [by_tls, by_http]
}
