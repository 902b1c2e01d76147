//! Both ends of terminated TLS: clients that show certificates, by the Gateway's settings, to the
//! listeners of a team; and TLS to the team's backend, which fails closed and is never plaintext.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::api::{self, items};
use crate::certificate::{Authority, Leaf};
use crate::client::Failure;
use crate::conditions;
use crate::curl::Curl;
use crate::manifests::{self, Mode};
use crate::openssl::Shown as Handshake;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team};

const SITE: &str = "site.tls-ends.test";
const BYTES: &str = "bytes.tls-ends.test";
/// What the backend is called inside.
const INSIDE: &str = "inside.tls-ends.test";
/// The port where clients without a valid certificate are let in all the same.
const LAX: u16 = 8443;

/// A team's HTTPS listeners, on a port where clients have to show a certificate and on one where they
/// need not, lead to a backend over TLS. Authorities and policies come, are exchanged and go; what does
/// not verify is closed or an error, and the backend never sees plaintext.
pub(super) async fn both_ends_of_terminated_tls_are_who_they_say(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let clients = Authority::new("clients")?;
    let root = manifests::authority(&gateway.0, "clients", clients.root());
    world.kubectl.apply(&[root]).await?.must()?;
    let settings = json!({"spec": {"tls": {"frontend": {
        "default": {"validation": validation("AllowValidOnly")},
        "perPort": [{"port": LAX, "tls": {"validation": validation("AllowInsecureFallback")}}],
    }}}});
    world
        .api
        .patch(api::GATEWAY, &gateway.0, &gateway.1, &settings)
        .await?;
    let team = stage.team("a", &gateway).await?;
    stage.backend(&team, &[INSIDE]).await?;
    let space = &team.namespace;
    let objects = [
        manifests::authority(space, "inside", team.authority.root()),
        policy(&team, "inside"),
    ];
    world.kubectl.apply(&objects).await?.must()?;
    team.kubectl.apply(&objects_of(&team)?).await?.must()?;
    stage
        .see(api::LISTENER_SET, space, "web", |set| {
            conditions::is_programmed(set, &[("strict", 1), ("lax", 1), ("bytes", 1)])
        })
        .await?;
    policy_is(stage, &team, "True", "Accepted", "ResolvedRefs").await?;
    stage
        .see(api::GATEWAY, &gateway.0, &gateway.1, |gateway| {
            let insecure = "InsecureFrontendValidationMode";
            conditions::of_object(gateway, insecure, "True", None).map(drop)
        })
        .await?;

    let ends = Ends {
        stage,
        strict: Curl::new(
            world,
            &team,
            world.address(&gateway.0, &gateway.1, 443).await?,
        )
        .await?,
        lax: Curl::new(
            world,
            &team,
            world.address(&gateway.0, &gateway.1, LAX).await?,
        )
        .await?,
        known: Shown::write(stage, "known", &clients.client()?).await?,
        stranger: Shown::write(stage, "stranger", &Authority::new("stranger")?.client()?).await?,
        team,
    };
    ends.clients().await.context("clients")?;
    ends.tickets(&gateway).await.context("tickets")?;
    ends.backend().await.context("backend")?;
    ends.authorities().await.context("authorities")?;
    Ok(Verdict::passed())
}

fn validation(mode: &str) -> Value {
    json!({
        "mode": mode,
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "clients"}],
    })
}

fn policy(team: &Team, authority: &str) -> Value {
    let service = ("web", "tls");
    manifests::backend_tls_policy(&team.namespace, "web", service, INSIDE, authority)
}

fn objects_of(team: &Team) -> Result<Vec<Value>> {
    let space = &team.namespace;
    let leaf = team.authority.leaf(&[SITE, BYTES])?;
    let mut strict = manifests::listener("strict", SITE, Mode::Terminate("site-tls"));
    strict["protocol"] = "HTTPS".into();
    let mut lax = strict.clone();
    lax["name"] = "lax".into();
    lax["port"] = LAX.into();
    let bytes = manifests::listener("bytes", BYTES, Mode::Terminate("site-tls"));
    let to = |listener| manifests::to_listener_set("web", Some(listener));
    let mut site = manifests::http_route(space, "site", &to("strict"), SITE, ("web", 443));
    site["spec"]["parentRefs"] = json!([to("strict"), to("lax")]);
    Ok(vec![
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::listener_set(space, "web", team.parent(), &[strict, lax, bytes]),
        site,
        manifests::tls_route(space, "bytes", &to("bytes"), BYTES, ("web", 443)),
    ])
}

/// Waits until both conditions of the policy are so, at the one Gateway it counts at.
async fn policy_is(
    stage: &Stage,
    team: &Team,
    status: &str,
    accepted: &str,
    resolved: &str,
) -> Result<()> {
    stage
        .see(api::BACKEND_TLS_POLICY, &team.namespace, "web", |policy| {
            let ancestors = items(policy, "/status/ancestors");
            let [ancestor] = ancestors else {
                anyhow::bail!("{} ancestors", ancestors.len());
            };
            let generation = policy["metadata"]["generation"].clone();
            for (kind, reason) in [("Accepted", accepted), ("ResolvedRefs", resolved)] {
                let conditions = items(ancestor, "/conditions");
                let is_so = conditions.iter().any(|c| {
                    c["type"] == kind
                        && c["status"] == status
                        && c["reason"] == reason
                        && c["observedGeneration"] == generation
                });
                ensure!(is_so, "{}", conditions::describe(conditions));
            }
            Ok(())
        })
        .await
        .map(drop)
}

/// A client's certificate and key as files.
struct Shown {
    certificate: PathBuf,
    key: PathBuf,
}

impl Shown {
    async fn write(stage: &Stage, name: &str, leaf: &Leaf) -> Result<Self> {
        let file = |end: &str| stage.world.out.join(format!("{}.{name}.{end}", stage.name));
        let (certificate, key) = (file("crt"), file("key"));
        tokio::fs::write(&certificate, &leaf.chain).await?;
        tokio::fs::write(&key, &leaf.key).await?;
        Ok(Self { certificate, key })
    }
}

struct Ends<'a> {
    stage: &'a Stage,
    team: Team,
    strict: Curl,
    lax: Curl,
    /// Of the authority that the Gateway names.
    known: Shown,
    /// Of another one.
    stranger: Shown,
}

impl Ends<'_> {
    /// Status and HTTP version; none where TLS fails. An answer of the backend says what it saw of TLS.
    async fn ask(&self, at: &Curl, shown: Option<&Shown>) -> Result<Option<String>> {
        let files = shown.map(|s| (s.certificate.to_string_lossy(), s.key.to_string_lossy()));
        let arguments = match &files {
            Some((certificate, key)) => vec!["--cert", certificate, "--key", key],
            None => Vec::new(),
        };
        let done = at.run(SITE, &arguments).await?;
        if !done.ok {
            return Ok(None);
        }
        let got = at.get(SITE, &arguments).await?;
        if got.status.starts_with("200") {
            let answer = got.answer()?;
            ensure!(answer.namespace == self.team.namespace, "{answer:?}");
            ensure!(answer.sni.as_deref() == Some(INSIDE), "it saw {answer:?}");
        }
        Ok(Some(got.status))
    }

    /// Waits until a client that shows this gets that.
    async fn gets(&self, at: &Curl, shown: Option<&Shown>, status: Option<&str>) -> Result<()> {
        until(&format!("an answer of {status:?}"), SOON, async || {
            let got = self.ask(at, shown).await?;
            let code = got.as_deref().and_then(|got| got.split(' ').next());
            ensure!(code == status, "it is {got:?}");
            Ok(())
        })
        .await
    }

    async fn clients(&self) -> Result<()> {
        let (known, stranger) = (Some(&self.known), Some(&self.stranger));
        self.gets(&self.strict, known, Some("200")).await?;
        self.gets(&self.strict, None, None).await?;
        self.gets(&self.strict, stranger, None).await?;
        for shown in [known, None, stranger] {
            self.gets(&self.lax, shown, Some("200")).await?;
        }
        // What is no HTTPS is asked for nothing.
        self.bytes(true).await
    }

    /// Whether the hostname that ends in bytes is served, by the backend over TLS.
    async fn bytes(&self, served: bool) -> Result<()> {
        let world = &self.stage.world;
        let target = self.team.target(world, BYTES).await?;
        until(&format!("{BYTES}, served: {served}"), SOON, async || {
            match target.ask().await {
                Ok(answer) => {
                    // Whatever is expected: nobody is answered who came in plaintext.
                    ensure!(answer.sni.as_deref() == Some(INSIDE), "it saw {answer:?}");
                    ensure!(served, "it is served");
                }
                Err(Failure::Closed | Failure::Reset) => ensure!(!served, "it is closed"),
                Err(failure) => anyhow::bail!("{failure:?}"),
            }
            Ok(())
        })
        .await
    }

    /// A session of a client without a certificate is taken up again where that is allowed, and not where
    /// a certificate is asked for.
    async fn tickets(&self, gateway: &(String, String)) -> Result<()> {
        let world = &self.stage.world;
        let file = world.out.join(format!("{}.session", self.stage.name));
        let file = file.to_string_lossy();
        // Of TLS 1.2, whose tickets are part of the handshake: there is nothing to wait for.
        let common = ["-servername", SITE, "-tls1_2"];
        let (lax, strict) = (
            world.address(&gateway.0, &gateway.1, LAX).await?,
            world.address(&gateway.0, &gateway.1, 443).await?,
        );
        let shown = Handshake::of(lax, &[&common[..], &["-sess_out", &file]].concat()).await?;
        ensure!(shown.finished(), "{shown:?}");
        let with_it = [&common[..], &["-sess_in", &file]].concat();
        // Each proxy has keys of its own, and it may be the other one's turn.
        until("a session that is taken up again", SOON, async || {
            let shown = Handshake::of(lax, &with_it).await?;
            ensure!(shown.resumed() && shown.finished(), "{shown:?}");
            Ok(())
        })
        .await?;
        for _ in 0..8 {
            let shown = Handshake::of(strict, &with_it).await?;
            ensure!(!shown.resumed() && !shown.finished(), "{shown:?}");
        }
        Ok(())
    }

    /// A policy whose authority is not there fails closed; one whose authority is another does not
    /// verify; each comes right again.
    async fn backend(&self) -> Result<()> {
        let (stage, team) = (self.stage, &self.team);
        let world = &stage.world;
        let known = Some(&self.known);
        world
            .kubectl
            .apply(&[policy(team, "absent")])
            .await?
            .must()?;
        let (accepted, resolved) = ("NoValidCACertificate", "InvalidCACertificateRef");
        policy_is(stage, team, "False", accepted, resolved).await?;
        self.gets(&self.strict, known, Some("500")).await?;
        self.bytes(false).await?;
        world
            .kubectl
            .apply(&[policy(team, "inside")])
            .await?
            .must()?;
        policy_is(stage, team, "True", "Accepted", "ResolvedRefs").await?;
        self.gets(&self.strict, known, Some("200")).await?;
        self.bytes(true).await?;

        let another = Authority::new("another")?;
        for (root, status, served) in [
            (another.root(), "503", false),
            (team.authority.root(), "200", true),
        ] {
            let change = json!({"data": {"ca.crt": root}});
            world
                .api
                .patch(api::CONFIG_MAP, &team.namespace, "inside", &change)
                .await?;
            // Connections that were made before may be used on; those of the bytes are all new.
            self.bytes(served).await?;
            self.gets(&self.strict, known, Some(status)).await?;
        }
        Ok(())
    }

    /// The clients' authority is exchanged, and is gone.
    async fn authorities(&self) -> Result<()> {
        let (stage, team) = (self.stage, &self.team);
        let world = &stage.world;
        let other = Authority::new("other")?;
        let change = json!({"data": {"ca.crt": other.root()}});
        let platform = &team.gateway.0;
        world
            .api
            .patch(api::CONFIG_MAP, platform, "clients", &change)
            .await?;
        self.gets(&self.strict, Some(&self.known), None).await?;
        let next = Shown::write(stage, "next", &other.client()?).await?;
        self.gets(&self.strict, Some(&next), Some("200")).await?;

        world
            .api
            .delete(api::CONFIG_MAP, platform, "clients")
            .await?;
        for shown in [Some(&next), None] {
            self.gets(&self.strict, shown, None).await?;
            self.gets(&self.lax, shown, None).await?;
        }
        stage
            .see(api::LISTENER_SET, &team.namespace, "web", |set| {
                for listener in ["strict", "lax"] {
                    let why = Some("InvalidCACertificateRef");
                    conditions::of_listener(set, listener, "ResolvedRefs", "False", why)?;
                    let why = Some("NoValidCACertificate");
                    conditions::of_listener(set, listener, "Accepted", "False", why)?;
                }
                conditions::of_listener(set, "bytes", "Programmed", "True", None).map(drop)
            })
            .await?;
        self.bytes(true).await
    }
}
