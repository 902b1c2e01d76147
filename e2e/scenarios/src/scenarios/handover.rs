//! A hostname that two teams want, and leave that is given and withdrawn: who has it, what statuses say,
//! and that no other hostname notices.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::api::{self, text};
use crate::client::Target;
use crate::conditions;
use crate::load::{Hold, Load, describe};
use crate::manifests::{self, Mode};
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{EXEMPT, Stage, Team};

const WANTED: &str = "wanted.handover.test";
const KEPT: &str = "kept.handover.test";
const OTHER: &str = "other.handover.test";
const BORROWED: &str = "borrowed.handover.test";
/// New connections a second to each hostname that must not notice.
const RATE: u32 = 40;

/// A has a hostname, B wants it too. B's coming does not affect A; A's leaving hands it to B, and what A
/// held open ends. A's namespace loses its label and gets it back; a route loses its grant. All
/// the while not one connection to another hostname fails.
pub(super) async fn a_hostname_changes_hands_and_no_other_notices(
    stage: &Stage,
) -> Result<Verdict> {
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let (of_a, of_b) = ([WANTED, KEPT], [WANTED, OTHER, BORROWED]);
    tokio::try_join!(stage.backend(&a, &of_a), stage.backend(&b, &of_b))?;
    let teams = Teams { stage, a, b };
    teams.start().await?;
    let result = teams.run().await;
    // It outlives the scenario, and whatever is in it would be judged with what comes later.
    let api = &stage.world.api;
    api.delete(api::LISTENER_SET, EXEMPT, "loser").await?;
    let nobody = json!({"metadata": {"labels": {"vestibule-e2e": "exempt"}}});
    api.patch(api::NAMESPACE, "", EXEMPT, &nobody).await?;
    result.map(Verdict::Passed)
}

struct Teams<'a> {
    stage: &'a Stage,
    a: Team,
    b: Team,
}

impl Teams<'_> {
    /// A's two sets, B's hostname of its own.
    async fn start(&self) -> Result<()> {
        let (a, b) = (&self.a, &self.b);
        // B's set that wants A's hostname comes in where admission lets it, as it would by a race.
        let ours = json!({"metadata": {"labels": {"vestibule-e2e": self.stage.name}}});
        let api = &self.stage.world.api;
        api.patch(api::NAMESPACE, "", EXEMPT, &ours).await?;
        let mut objects = simple(a, "web", WANTED);
        objects.extend(simple(a, "kept", KEPT));
        a.kubectl.apply(&objects).await?.must()?;
        b.kubectl.apply(&simple(b, "other", OTHER)).await?.must()?;
        for (team, set) in [(a, "web"), (a, "kept"), (b, "other")] {
            self.served(team, set).await?;
        }
        Ok(())
    }

    async fn run(&self) -> Result<Vec<String>> {
        let world = &self.stage.world;
        let (a, b) = (&self.a, &self.b);
        let (kept, other) = (a.target(world, KEPT).await?, b.target(world, OTHER).await?);
        for (team, target) in [(a, &kept), (b, &other)] {
            team.answers(target).await?;
        }
        let wanted = a.target(world, WANTED).await?;
        a.answers(&wanted).await?;
        let hold = Hold::open(&wanted, 4).await;
        let hold = hold.map_err(|failure| anyhow!("{failure:?}"))?;
        let mut notes = Vec::new();

        let loads = [
            Load::start(kept.clone(), RATE),
            Load::start(other.clone(), RATE),
        ];
        let changed = self.hands(&wanted, &mut notes).await;
        for (load, name) in loads.into_iter().zip([KEPT, OTHER]) {
            let counts = load.stop().await?;
            ensure!(counts.failed.is_empty(), "{name}: {counts}");
            notes.push(format!("{name} meanwhile: {counts}"));
        }
        changed?;
        until(
            "the end of A's connections to what B has now",
            SOON,
            async || {
                let open = hold.still_open();
                ensure!(open == 0, "{open} are open");
                Ok::<_, anyhow::Error>(())
            },
        )
        .await?;
        let ends = hold.finish().await?;
        notes.push(format!("A's connections: {}", describe(&ends)));

        let load = Load::start(other, RATE);
        let changed = self.leave(&kept, &mut notes).await;
        let counts = load.stop().await?;
        ensure!(counts.failed.is_empty(), "{OTHER}: {counts}");
        notes.push(format!("{OTHER} while leave was withdrawn: {counts}"));
        changed.map(|()| notes)
    }

    /// B wants what A has; A goes.
    async fn hands(&self, wanted: &Target, notes: &mut Vec<String>) -> Result<()> {
        let (stage, world) = (self.stage, &self.stage.world);
        let (a, b) = (&self.a, &self.b);
        let before = self.statuses_of_a().await?;
        let [set, route] = loser(b);
        self.a_second_later(&set).await?;
        world.kubectl.apply(&[set]).await?.must()?;
        let of_loser = async |check: &dyn Fn(&Value) -> Result<()>| {
            stage.see(api::LISTENER_SET, EXEMPT, "loser", check).await
        };
        of_loser(&|set| {
            conditions::of_object(set, "Accepted", "True", Some("ListenersNotValid"))?;
            conditions::of_object(set, "Programmed", "True", Some("Programmed"))?;
            let why = Some("HostnameConflict");
            for (kind, status) in [
                ("Accepted", "False"),
                ("Programmed", "False"),
                ("Conflicted", "True"),
            ] {
                let message = conditions::of_listener(set, "wanted", kind, status, why)?;
                ensure!(!message.contains(&a.namespace), "it names A: {message}");
            }
            conditions::counts_routes(set, &[("wanted", 0), ("more", 0)])
        })
        .await?;
        self.counts_sets(4).await?;
        ensure!(
            self.statuses_of_a().await? == before,
            "a word of A's changed"
        );
        a.answers(wanted).await?;

        let taken = b.target(world, WANTED).await?;
        let started = Instant::now();
        a.api.delete(api::LISTENER_SET, &a.namespace, "web").await?;
        b.kubectl.apply(&[route]).await?.must()?;
        // For a while it stays A's, who may only have been about to make it again.
        until("the hostname to be free", LATER, async || {
            let answer = taken.ask().await;
            answer.map(drop).map_err(|failure| format!("{failure:?}"))
        })
        .await?;
        b.answers(&taken).await?;
        notes.push(format!(
            "handed over after {} ms",
            started.elapsed().as_millis()
        ));
        of_loser(&|set| {
            conditions::is_programmed(set, &[("wanted", 1), ("more", 0)])?;
            conditions::of_listener(set, "wanted", "Conflicted", "False", None).map(drop)
        })
        .await?;
        self.counts_sets(3).await?;

        // A tenant that comes back comes last, and is told so at once.
        let again = simple(a, "web", WANTED);
        let refused = a.kubectl.apply(&again[..1]).await?.must_fail()?;
        ensure!(refused.contains("belongs to another"), "{refused}");
        ensure!(!refused.contains(EXEMPT), "it names B's object: {refused}");
        Ok(())
    }

    /// A's namespace loses its label and gets it back; a route of A's gets and loses a grant of B's.
    async fn leave(&self, kept: &Target, notes: &mut Vec<String>) -> Result<()> {
        let (stage, world) = (self.stage, &self.stage.world);
        let (a, b) = (&self.a, &self.b);
        let label = async |value: &str| {
            let change = json!({"metadata": {"labels": {"vestibule-e2e": value}}});
            world
                .api
                .patch(api::NAMESPACE, "", &a.namespace, &change)
                .await
        };
        let started = Instant::now();
        label("elsewhere").await?;
        kept.closes().await?;
        notes.push(format!(
            "label gone: closed after {} ms",
            started.elapsed().as_millis()
        ));
        stage
            .see(api::LISTENER_SET, &a.namespace, "kept", |set| {
                conditions::of_object(set, "Accepted", "False", Some("NotAllowed"))?;
                conditions::of_object(set, "Programmed", "False", Some("NotAllowed"))?;
                conditions::counts_routes(set, &[])
            })
            .await?;
        self.counts_sets(2).await?;
        let started = Instant::now();
        label(&stage.name).await?;
        a.answers(kept).await?;
        notes.push(format!(
            "label back: served after {} ms",
            started.elapsed().as_millis()
        ));
        self.served(a, "kept").await?;
        self.counts_sets(3).await?;

        // A route to B's Service.
        let mut objects = simple(a, "borrowed", BORROWED);
        objects[1]["spec"]["rules"][0]["backendRefs"][0]["namespace"] = json!(b.namespace);
        a.kubectl.apply(&objects).await?.must()?;
        let resolved = async |status: &str, why: &str| {
            stage
                .see(api::TLS_ROUTE, &a.namespace, "borrowed", |route| {
                    conditions::of_route(route, "Accepted", "True", None)?;
                    conditions::of_route(route, "ResolvedRefs", status, Some(why))
                })
                .await
        };
        resolved("False", "RefNotPermitted").await?;
        // The backend is B's, and so is what it shows.
        let borrowed = b.target(world, BORROWED).await?;
        borrowed.closes().await?;
        let from = ("TLSRoute", a.namespace.as_str());
        let grant = manifests::reference_grant(&b.namespace, "lend", from, "Service");
        let started = Instant::now();
        b.api
            .create(api::REFERENCE_GRANT, &b.namespace, &grant)
            .await?;
        b.answers(&borrowed).await?;
        notes.push(format!(
            "grant: served after {} ms",
            started.elapsed().as_millis()
        ));
        resolved("True", "ResolvedRefs").await?;
        let started = Instant::now();
        b.api
            .delete(api::REFERENCE_GRANT, &b.namespace, "lend")
            .await?;
        borrowed.closes().await?;
        notes.push(format!(
            "grant gone: closed after {} ms",
            started.elapsed().as_millis()
        ));
        resolved("False", "RefNotPermitted").await.map(drop)
    }

    /// The API server's clock decides which object is older. It counts in seconds; within one second, names decide.
    async fn a_second_later(&self, set: &Value) -> Result<()> {
        let web = self.a.get(api::LISTENER_SET, "web").await?;
        let created = text(&web, "/metadata/creationTimestamp");
        let path = format!("{}?dryRun=All", api::path(api::LISTENER_SET, EXEMPT, ""));
        until("the next second", SOON, async || {
            let now = self.stage.world.api.post(&path, set).await?;
            let now = text(&now, "/metadata/creationTimestamp");
            ensure!(now > created, "it is still {now}");
            Ok(())
        })
        .await
    }

    /// What A's objects say, with their versions, so that a write of the same counts, too.
    async fn statuses_of_a(&self) -> Result<Vec<Value>> {
        let mut statuses = Vec::new();
        for (kind, name) in [(api::LISTENER_SET, "web"), (api::TLS_ROUTE, "web")] {
            let object = self.a.get(kind, name).await?;
            statuses.push(json!([
                object["status"],
                text(&object, "/metadata/resourceVersion"),
            ]));
        }
        Ok(statuses)
    }

    async fn served(&self, team: &Team, set: &str) -> Result<()> {
        let check = |object: &Value| conditions::is_served(object, 1);
        self.stage
            .see(api::LISTENER_SET, &team.namespace, set, check)
            .await
            .map(drop)
            .with_context(|| set.to_owned())
    }

    /// The Gateway counts this many sets, and says nothing of listeners that are not its own.
    async fn counts_sets(&self, sets: u64) -> Result<()> {
        let (namespace, name) = (&self.a.gateway.0, &self.a.gateway.1);
        self.stage
            .see(api::GATEWAY, namespace, name, |gateway| {
                conditions::is_programmed(gateway, &[("own", 0)])?;
                conditions::counts_sets(gateway, sets)
            })
            .await
            .map(drop)
    }
}

/// A set with one hostname that is passed through, and its route.
pub(super) fn simple(team: &Team, name: &str, hostname: &str) -> Vec<Value> {
    let space = &team.namespace;
    let listener = manifests::listener("site", hostname, Mode::Passthrough);
    let parent = manifests::to_listener_set(name, None);
    vec![
        manifests::listener_set(space, name, team.parent(), &[listener]),
        manifests::tls_route(space, name, &parent, hostname, ("web", 443)),
    ]
}

/// B's set that wants A's hostname, and its route.
fn loser(b: &Team) -> [Value; 2] {
    let mut wanted = manifests::listener("wanted", WANTED, Mode::Passthrough);
    wanted["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
    let more = manifests::listener("more", "more.handover.test", Mode::Passthrough);
    let set = manifests::listener_set(EXEMPT, "loser", b.parent(), &[wanted, more]);
    let mut parent = manifests::to_listener_set("loser", Some("wanted"));
    parent["namespace"] = EXEMPT.into();
    let space = &b.namespace;
    let route = manifests::tls_route(space, "wanted", &parent, WANTED, ("web", 443));
    [set, route]
}
