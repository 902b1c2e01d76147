//! A certificate authority of a scenario's own: Pebble, which speaks ACME, and the DNS that it asks.
//!
//! It validates for real: it looks a hostname up in that DNS and connects to the address it finds there, on
//! port 443 or 80.

mod log;
mod manifests;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::api::{self, name, text};
use crate::certificate::Authority;
use crate::tools::run;
use crate::wait::{LATER, SOON, until};
use crate::world::{Stage, World};

pub(crate) use log::Log;

/// Name of everything of an authority in its namespace.
const NAME: &str = "ca";
/// Port of the directory in the pod.
const DIRECTORY_PORT: u16 = 14000;
/// Name of the nftables table that cuts the network.
const TABLE: &str = "vestibule_e2e_cut";

/// How an authority makes life hard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Troubles {
    /// Percentage of good nonces that it refuses.
    pub(crate) nonces_refused: u8,
    /// Validation begins after a random time of up to this many seconds.
    pub(crate) slow: u8,
    /// Percentage of authorizations that are used again.
    pub(crate) reuse: u8,
    /// Seconds after which it wants to be asked again for an order or an authorization.
    pub(crate) retry_after: u8,
}

impl Default for Troubles {
    /// An authority without moods.
    fn default() -> Self {
        Self {
            nonces_refused: 0,
            slow: 0,
            reuse: 0,
            retry_after: 1,
        }
    }
}

/// A running authority.
pub(crate) struct Ca {
    world: Arc<World>,
    namespace: String,
    host: String,
    address: IpAddr,
    /// Who signed the certificate of its directory.
    authority: Authority,
    root: PathBuf,
}

impl Ca {
    /// Starts one in a namespace of its own, named after the role. Waits until it answers.
    pub(crate) async fn start(stage: &Stage, role: &str, troubles: Troubles) -> Result<Self> {
        let world = stage.world.clone();
        let namespace = stage.namespace(role).await?;
        let authority = Authority::new(&namespace)?;
        let host = format!("{NAME}.{namespace}.svc.cluster.local");
        let leaf = authority.leaf(&[&host])?;
        let objects = manifests::all(&world, &namespace, &leaf, troubles);
        world.kubectl.apply(&objects).await?.must()?;
        stage.available(&namespace, NAME).await?;
        let service = world.api.must_get(api::SERVICE, &namespace, NAME).await?;
        let root = world.out.join(format!("{namespace}.root.pem"));
        tokio::fs::write(&root, authority.root()).await?;
        let ca = Self {
            world,
            host,
            address: text(&service, "/spec/clusterIP").parse()?,
            authority,
            root,
            namespace,
        };
        until("the authority's directory", LATER, async || {
            ca.curl(&format!("https://{}/dir", ca.host), None).await
        })
        .await?;
        Ok(ca)
    }

    /// URL of its ACME directory.
    pub(crate) fn directory(&self) -> String {
        format!("https://{}/dir", self.host)
    }

    /// PEM of the root that its directory is verified with.
    pub(crate) fn bundle(&self) -> &str {
        self.authority.root()
    }

    /// Where its DNS answers, as `host:port`.
    pub(crate) fn dns(&self) -> String {
        format!("{}:53", self.address)
    }

    /// Has a hostname resolve to an address.
    pub(crate) async fn resolve(&self, hostname: &str, address: IpAddr) -> Result<()> {
        let body = json!({"host": hostname, "addresses": [address.to_string()]});
        self.challenges("add-a", &body).await
    }

    /// Has every question for a hostname fail, or be answered again.
    pub(crate) async fn dns_fails(&self, hostname: &str, fails: bool) -> Result<()> {
        let path = if fails {
            "set-servfail"
        } else {
            "clear-servfail"
        };
        self.challenges(path, &json!({"host": hostname})).await
    }

    async fn challenges(&self, path: &str, body: &Value) -> Result<()> {
        let url = format!("http://{}:8055/{path}", self.address);
        // Probes that are late on a busy machine take it out of its Service for a while.
        until("the authority's DNS", SOON, async || {
            self.curl(&url, Some(body)).await.map(drop)
        })
        .await
    }

    /// The root of the certificates that it issues, as PEM.
    pub(crate) async fn root(&self) -> Result<String> {
        self.curl(&format!("https://{}:15000/roots/0", self.host), None)
            .await
    }

    /// What clients verify with that trust it.
    pub(crate) async fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.root().await?.as_bytes());
        roots.add(root.context("root of the authority")?)?;
        Ok(roots)
    }

    async fn curl(&self, url: &str, body: Option<&Value>) -> Result<String> {
        let root = self.root.to_string_lossy();
        let resolve = |port| format!("{}:{port}:{}", self.host, self.address);
        let resolve = [resolve(443), resolve(15000)];
        let mut arguments = vec![
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            "10",
            "--cacert",
            &root,
            "--resolve",
            &resolve[0],
            "--resolve",
            &resolve[1],
        ];
        let body = body.map(Value::to_string);
        if let Some(body) = &body {
            arguments.extend(["--data", body.as_str()]);
        }
        arguments.push(url);
        run("curl".as_ref(), &arguments, &[], "").await?.must()
    }

    /// What it has logged so far.
    pub(crate) async fn log(&self) -> Result<Log> {
        let pod = name(&self.pod().await?).to_owned();
        let arguments = [
            "logs",
            &pod,
            "-n",
            &self.namespace,
            "-c",
            "pebble",
            "--tail=-1",
        ];
        Ok(Log::new(self.world.kubectl.run(&arguments).await?.must()?))
    }

    async fn pod(&self) -> Result<Value> {
        let pods = self.world.api.list(api::POD, &self.namespace, "").await?;
        let running = pods
            .into_iter()
            .find(|pod| text(pod, "/status/phase") == "Running");
        running.context("the authority does not run")
    }

    /// Drops every packet to its directory, on every node; nobody hears of it.
    pub(crate) async fn cut(&self) -> Result<()> {
        let pod = self.pod().await?;
        let address = text(&pod, "/status/podIP");
        ensure!(!address.is_empty(), "the authority has no address");
        let rules = format!(
            "add table ip {TABLE}; \
             add chain ip {TABLE} forward {{ type filter hook forward priority -10; }}; \
             add rule ip {TABLE} forward ip daddr {address} tcp dport {DIRECTORY_PORT} drop"
        );
        self.on_nodes(&rules).await
    }

    /// Takes [`Self::cut`] back.
    pub(crate) async fn mend(&self) -> Result<()> {
        // A table that was not there is made first, so that this works whatever `cut` came to.
        self.on_nodes(&format!("add table ip {TABLE}; delete table ip {TABLE}"))
            .await
    }

    async fn on_nodes(&self, rules: &str) -> Result<()> {
        for node in self.world.api.list(api::NODE, "", "").await? {
            let done = self.world.on_node(name(&node), &["nft", rules]).await?;
            done.must()?;
        }
        Ok(())
    }
}
