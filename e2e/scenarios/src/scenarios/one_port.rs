//! One port for everybody: terminated and passed-through TLS, HTTPS, a wildcard of one tenant beside an
//! exact hostname of another. The server name tells them apart, however it is written.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::api;
use crate::client::Failure;
use crate::conditions::{self, listener_entry};
use crate::curl::Curl;
use crate::echo;
use crate::load::burst;
use crate::manifests::{self, Mode};
use crate::openssl::Shown;
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{Stage, Team};

const SHOP: &str = "shop.one-port.test";
const DEEP: &str = "deep.api.one-port.test";
const SECURE: &str = "secure.one-port.test";
const API: &str = "api.one-port.test";
const SHARED: &str = "shared.elsewhere.test";
const NONE: &str = "none.elsewhere.test";
/// Connections to a route half of whose backends do not exist.
const SAMPLE: usize = 80;

/// Team A has `*.one-port.test`, terminated, and an HTTPS hostname below it; team B passes
/// `api.one-port.test` through. Each name goes where the most specific listener sends it; ALPN, weights,
/// conditions and what is closed are as they have to be.
pub(super) async fn kinds_and_tenants_share_one_port_by_name(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let gateway = stage.gateway().await?;
    let (a, b) = tokio::try_join!(stage.team("a", &gateway), stage.team("b", &gateway))?;
    let of_b = [API, SHARED, NONE];
    tokio::try_join!(stage.backend(&a, &[SHOP]), stage.backend(&b, &of_b))?;
    // Without grants, what is below A's wildcard would be A's alone.
    let grants = [(&a, ["*.one-port.test"].as_slice()), (&b, &of_b)].map(|(team, hostnames)| {
        let spec = json!({"namespaces": {"names": [team.namespace]}, "hostnames": hostnames});
        manifests::hostname_grant(&gateway.0, &team.namespace, &spec)
    });
    world.kubectl.apply(&grants).await?.must()?;
    a.kubectl.apply(&objects_of_a(&a)?).await?.must()?;
    let of_b = objects_of_b(&b);
    // The webhook hears of grants by a watch of its own.
    until("the grant to be known", SOON, async || {
        b.kubectl.apply(&of_b).await?.must().map(drop)
    })
    .await?;
    conditions_are_exact(stage, &a, &b).await?;

    let address = world.address(&gateway.0, &gateway.1, 443).await?;
    names_find_their_listener(address, &a, &b).await?;
    alpn_is_whose_it_is(address, &a, &b).await?;

    requests_go_where_their_authority_says(&Curl::new(world, &a, address).await?, &a).await?;
    for name in [SHOP, DEEP] {
        a.answers(&a.target(world, name).await?).await?;
    }
    for name in [API, SHARED] {
        // The one with a dead half may need another try.
        b.answers(&b.target(world, name).await?).await?;
    }
    let counts = burst(&b.target(world, SHARED).await?, SAMPLE, 8).await;
    let closed = counts
        .failed
        .iter()
        .filter(|(_, failure)| matches!(failure, Failure::Closed | Failure::Reset))
        .count();
    ensure!(closed == counts.failed.len(), "other than closed: {counts}");
    // Of 80 fair coins, fewer than 15 or more than 65 heads come once in tens of millions.
    ensure!(
        (15..=65).contains(&closed),
        "the share of the invalid: {counts}"
    );
    let counts = burst(&b.target(world, NONE).await?, 8, 4).await;
    ensure!(counts.ok == 0, "all weights are 0: {counts}");
    Ok(Verdict::noting(format!(
        "of {SAMPLE} connections, half of them for a backend that does not exist, {closed} were closed"
    )))
}

fn objects_of_a(team: &Team) -> Result<Vec<Value>> {
    let space = &team.namespace;
    // A wildcard in a certificate is good for one label.
    let leaf = team
        .authority
        .leaf(&["*.one-port.test", "*.api.one-port.test"])?;
    let wild = manifests::listener("wild", "*.one-port.test", Mode::Terminate("site-tls"));
    let secure = manifests::https_listener("secure", SECURE, "site-tls");
    let to_wild = manifests::to_listener_set("web", Some("wild"));
    let to_secure = manifests::to_listener_set("web", Some("secure"));
    let plain = ("web", 80);
    Ok(vec![
        manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
        manifests::listener_set(space, "web", team.parent(), &[wild, secure]),
        manifests::tls_route(space, "shop", &to_wild, SHOP, plain),
        manifests::tls_route(space, "deep", &to_wild, DEEP, plain),
        manifests::http_route(space, "secure", &to_secure, SECURE, plain),
    ])
}

fn objects_of_b(team: &Team) -> Vec<Value> {
    let space = &team.namespace;
    let listeners = [("api", API), ("shared", SHARED), ("none", NONE)]
        .map(|(name, hostname)| manifests::listener(name, hostname, Mode::Passthrough));
    let to = |listener| manifests::to_listener_set("web", Some(listener));
    let tls = ("web", 443);
    let mut shared = manifests::tls_route(space, "shared", &to("shared"), SHARED, tls);
    shared["spec"]["rules"][0]["backendRefs"] = json!([
        {"name": "web", "port": 443, "weight": 3},
        {"name": "absent", "port": 443, "weight": 3},
        {"name": "absent-too", "port": 443, "weight": 0},
    ]);
    let mut none = manifests::tls_route(space, "none", &to("none"), NONE, tls);
    none["spec"]["rules"][0]["backendRefs"][0]["weight"] = 0.into();
    vec![
        manifests::listener_set(space, "web", team.parent(), &listeners),
        manifests::tls_route(space, "api", &to("api"), API, tls),
        shared,
        none,
    ]
}

/// Checks that exactly the listeners that overlap say so, that none is in conflict, and that counts and lengths are
/// exact.
async fn conditions_are_exact(stage: &Stage, a: &Team, b: &Team) -> Result<()> {
    let overlaps = |object: &Value, listener: &str, expected: bool| {
        let what = ("OverlappingTLSConfig", "True", Some("OverlappingHostnames"));
        let found = conditions::of_listener(object, listener, what.0, what.1, what.2);
        if expected {
            return found.map(drop);
        }
        let entry = listener_entry(object, listener)?;
        ensure!(!entry.to_string().contains(what.0), "{listener}: {entry}");
        Ok(())
    };
    stage
        .see(api::LISTENER_SET, &a.namespace, "web", |set| {
            conditions::is_programmed(set, &[("wild", 2), ("secure", 1)])?;
            overlaps(set, "wild", true)?;
            overlaps(set, "secure", true)
        })
        .await
        .context("set of A")?;
    stage
        .see(api::LISTENER_SET, &b.namespace, "web", |set| {
            conditions::is_programmed(set, &[("api", 1), ("shared", 1), ("none", 1)])?;
            overlaps(set, "api", true)?;
            overlaps(set, "shared", false)?;
            overlaps(set, "none", false)
        })
        .await
        .context("set of B")?;
    stage
        .see(api::GATEWAY, &a.gateway.0, &a.gateway.1, |gateway| {
            conditions::is_programmed(gateway, &[("own", 0)])?;
            // It is called own.one-port.test.
            overlaps(gateway, "own", true)?;
            conditions::counts_sets(gateway, 2)
        })
        .await
        .context("Gateway")?;
    stage
        .see(api::TLS_ROUTE, &b.namespace, "shared", |route| {
            conditions::of_route(route, "Accepted", "True", None)?;
            let why = Some("BackendNotFound");
            conditions::of_route(route, "ResolvedRefs", "False", why)
        })
        .await?;
    Ok(())
}

async fn names_find_their_listener(address: SocketAddr, a: &Team, b: &Team) -> Result<()> {
    let (of_a, of_b) = (
        a.authority.intermediate_name(),
        b.authority.intermediate_name(),
    );
    for (name, issuer) in [
        (SHOP, &of_a),
        ("Shop.ONE-PORT.Test", &of_a),
        ("shop.one-port.test.", &of_a),
        // Below the exact name of B is not B's.
        (DEEP, &of_a),
        (SECURE, &of_a),
        (API, &of_b),
        ("API.one-port.TEST", &of_b),
    ] {
        let shown = Shown::of(address, &["-servername", name]).await?;
        shown.issued_by(issuer).with_context(|| name.to_owned())?;
    }
    for (what, arguments) in [
        ("no server name", &["-noservername"][..]),
        ("a name of no listener", &["-servername", "nobody.test"]),
        ("an apex", &["-servername", "one-port.test"]),
        // The wildcard's listener has it and no route; nobody else is asked.
        (
            "a name of no route",
            &["-servername", "other.one-port.test"],
        ),
    ] {
        let shown = Shown::of(address, arguments).await?;
        shown.closed_silently().context(what)?;
    }
    Ok(())
}

async fn alpn_is_whose_it_is(address: SocketAddr, a: &Team, b: &Team) -> Result<()> {
    let of_backend = std::str::from_utf8(echo::OWN_ALPN)?;
    let offer = async |name: &str, protocols: &str| {
        Shown::of(address, &["-servername", name, "-alpn", protocols]).await
    };
    // What is terminated and goes on as bytes has no say about what they are.
    let shown = offer(SHOP, "h2,http/1.1").await?;
    shown.issued_by(&a.authority.intermediate_name())?;
    shown.agreed_on(None).context("terminated TLS")?;
    for (offered, agreed) in [
        ("h2,http/1.1", "h2"),
        ("http/1.1,h2", "h2"),
        ("http/1.1", "http/1.1"),
    ] {
        let shown = offer(SECURE, offered).await?;
        shown.agreed_on(Some(agreed)).context("HTTPS")?;
    }
    for (offered, agreed) in [
        (format!("h2,{of_backend}"), of_backend),
        ("h2,http/1.1".to_owned(), "http/1.1"),
    ] {
        let shown = offer(API, &offered).await?;
        shown.issued_by(&b.authority.intermediate_name())?;
        shown.agreed_on(Some(agreed)).context("passed through")?;
    }
    Ok(())
}

/// On the HTTPS listener's connections: its own hostname is served; one that another listener of the port
/// has is sent there (421), one that nobody has is not found.
async fn requests_go_where_their_authority_says(curl: &Curl, a: &Team) -> Result<()> {
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let got = curl.get(SECURE, &[flag]).await?;
        ensure!(got.status == format!("200 {version}"), "{got:?}");
        let answer = got.answer()?;
        ensure!(answer.namespace == a.namespace, "answered by {answer:?}");
        for (authority, status) in [(API, 421), (SHOP, 421), ("nobody.test", 404)] {
            let host = format!("host: {authority}");
            let got = curl.get(SECURE, &[flag, "--header", &host]).await?;
            let expected = format!("{status} {version}");
            ensure!(got.status == expected, "{authority}: {got:?}");
        }
    }
    Ok(())
}
