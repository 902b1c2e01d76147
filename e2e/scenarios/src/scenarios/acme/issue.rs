//! Issued by either challenge, and how long it takes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    ISSUER, address, figures, issuer, served, served_by_all, site, stated, target, with_http,
};
use crate::api::{self, name, text};
use crate::ca::{Ca, Troubles};
use crate::conditions;
use crate::runner::Verdict;
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, Team, World};

const BY_TLS: &str = "tls.acme-issue.test";
const BY_HTTP: &str = "http.acme-issue.test";
/// How many are timed in the ordinary run, and when that is what is asked for.
const FEW: usize = 5;
const TWENTY: usize = 20;

/// A set names an issuer and a hostname: the CA connects to the Gateway's address and both proxies serve
/// the certificate, by TLS-ALPN-01 and by HTTP-01. A Secret that is deleted comes back as another one.
pub(in super::super) async fn certificates_come_by_both_challenges(
    stage: &Stage,
) -> Result<Verdict> {
    let world = &stage.world;
    let (team, ca) = place(stage, &[BY_TLS, BY_HTTP]).await?;
    for hostname in [BY_TLS, BY_HTTP] {
        ca.resolve(hostname, address(world, &team).await?).await?;
    }
    let [tls, tls_route] = site(&team, "by-tls", BY_TLS, "alpn");
    let [http, http_route] = site(&team, "by-http", BY_HTTP, "http");
    let http = with_http(http, BY_HTTP);
    // The port is the Gateway's first on 80. Proxies know it before the nodes do, and the CA asks once.
    let mut without = http.clone();
    without["metadata"]["annotations"] = json!({});
    team.kubectl.apply(&[without]).await?.must()?;
    reached_on_every_node(world, SocketAddr::new(address(world, &team).await?, 80)).await?;
    let objects = [
        issuer(&team, "alpn", &ca, &["TLS-ALPN-01"]),
        issuer(&team, "http", &ca, &["HTTP-01"]),
        tls,
        tls_route,
        http,
        http_route,
    ];
    team.kubectl.apply(&objects).await?.must()?;
    for (set, hostname) in [("by-tls", BY_TLS), ("by-http", BY_HTTP)] {
        let target = target(world, &team, &ca, hostname).await?;
        served(&target, hostname).await?;
        served_by_all(&target, 2).await?;
        stated(stage, &team, set, "True", Some("Issued")).await?;
        stage
            .see(api::LISTENER_SET, &team.namespace, set, |set| {
                conditions::of_listener(set, "site", "Programmed", "True", None).map(drop)
            })
            .await?;
    }
    for name in ["alpn", "http"] {
        stage
            .see(api::ACME_ISSUER, &team.namespace, name, |issuer| {
                conditions::of_object(issuer, "Ready", "True", None)?;
                let url = text(issuer, "/status/accountURL");
                ensure!(url.starts_with("https://"), "account URL: {url:?}");
                Ok(())
            })
            .await?;
    }
    let log = ca.log().await?;
    ensure!(
        log.asked_by_http(BY_HTTP),
        "{BY_HTTP} was not validated by HTTP"
    );
    ensure!(!log.asked_by_http(BY_TLS), "{BY_TLS} was validated by HTTP");
    ensure!(
        log.orders() == 2,
        "{} orders for two hostnames",
        log.orders()
    );
    let requests = format!(
        "{} requests for 2 accounts and 2 certificates",
        log.requests()
    );

    let renewed = again(stage, &team, &ca).await?;
    let mut notes = vec![requests, renewed];
    notes.push(rounds(stage, &team, &ca, FEW).await?);
    Ok(Verdict::Passed(notes))
}

/// Waits until connections to an address come through from every node.
async fn reached_on_every_node(world: &World, at: SocketAddr) -> Result<()> {
    let url = format!("http://{at}/");
    for node in world.api.list(api::NODE, "", "").await? {
        until("the port to be open", SOON, async || {
            // Any answer will do.
            let curl = ["curl", "--silent", "--max-time", "5", &url];
            world.on_node(name(&node), &curl).await?.must()
        })
        .await?;
    }
    Ok(())
}

/// The Secret is deleted: a new certificate, with a new key, is served.
async fn again(stage: &Stage, team: &Team, ca: &Ca) -> Result<String> {
    let world = &stage.world;
    let target = target(world, team, ca, BY_TLS).await?;
    let conversation = target.open().await;
    let conversation = conversation.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    let before = conversation.certificate().context("no certificate")?;
    conversation.close().await;
    let started = Instant::now();
    team.api
        .delete(api::SECRET, &team.namespace, "by-tls-tls")
        .await?;
    until("another certificate", LATER, async || {
        let conversation = target.open().await;
        let conversation = conversation.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        let shown = conversation.certificate().context("no certificate")?;
        conversation.close().await;
        ensure!(shown != before, "the one that was deleted");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    Ok(format!(
        "Secret deleted: another certificate after {:.1} s",
        started.elapsed().as_secs_f64()
    ))
}

/// Twenty hostnames, one after another: from `kubectl apply` to a served certificate.
pub(in super::super) async fn twenty_certificates(stage: &Stage) -> Result<Verdict> {
    let (team, ca) = place(stage, &[]).await?;
    rounds(stage, &team, &ca, TWENTY).await.map(Verdict::noting)
}

/// A team with one hostname that has its certificate. Gives the hostname.
pub(in super::super) async fn one_site(stage: &Stage) -> Result<String> {
    let (team, ca) = place(stage, &[]).await?;
    let hostname = format!("one.{}.test", stage.name);
    ca.resolve(&hostname, address(&stage.world, &team).await?)
        .await?;
    let [set, route] = site(&team, "one", &hostname, ISSUER);
    let objects = [issuer(&team, ISSUER, &ca, &[]), set, route];
    team.kubectl.apply(&objects).await?.must()?;
    served_by_all(&target(&stage.world, &team, &ca, &hostname).await?, 2).await?;
    Ok(hostname)
}

async fn place(stage: &Stage, hostnames: &[&str]) -> Result<(Team, Ca)> {
    let gateway = stage.gateway().await?;
    let team = stage.team("a", &gateway).await?;
    let (backend, ca) = tokio::join!(
        stage.backend(&team, hostnames),
        Ca::start(stage, "ca", Troubles::default())
    );
    backend?;
    Ok((team, ca?))
}

async fn rounds(stage: &Stage, team: &Team, ca: &Ca, count: usize) -> Result<String> {
    let world = &stage.world;
    let objects = [issuer(team, ISSUER, ca, &[])];
    team.kubectl.apply(&objects).await?.must()?;
    let at = address(world, team).await?;
    let before = ca.log().await?;
    let mut times: Vec<Duration> = Vec::with_capacity(count);
    for n in 0..count {
        let hostname = format!("n{n}.{}.test", stage.name);
        ca.resolve(&hostname, at).await?;
        let target = target(world, team, ca, &hostname).await?;
        let objects = site(team, &format!("n{n}"), &hostname, ISSUER);
        let started = Instant::now();
        team.kubectl.apply(&objects).await?.must()?;
        served(&target, &hostname).await?;
        times.push(started.elapsed());
    }
    let after = ca.log().await?;
    let orders = after.orders() - before.orders();
    ensure!(orders == count, "{orders} orders for {count} hostnames");
    let requests = (after.requests() - before.requests()) as f64 / count as f64;
    let which = json!(after.by_kind());
    Ok(format!(
        "kubectl apply to served certificate, one after another: {}; {requests:.1} requests to the CA each; \
         all requests: {which}",
        figures(&mut times)
    ))
}
