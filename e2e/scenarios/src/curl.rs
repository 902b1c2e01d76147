//! `curl`: HTTP as users speak it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::echo::Answer;
use crate::tools::{Done, run};
use crate::world::{Team, World};

/// Requests to one address, verified with one root.
pub(crate) struct Curl {
    address: SocketAddr,
    root: PathBuf,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Got {
    /// Status and HTTP version, such as `200 2`.
    pub(crate) status: String,
    body: String,
}

impl Got {
    /// The answer of a backend.
    pub(crate) fn answer(&self) -> Result<Answer> {
        serde_json::from_str(&self.body).with_context(|| format!("{self:?}"))
    }
}

impl Curl {
    /// Requests to this address for hostnames of this team.
    pub(crate) async fn new(world: &World, team: &Team, address: SocketAddr) -> Result<Self> {
        let root = world.out.join(format!("{}.root.pem", team.namespace));
        tokio::fs::write(&root, team.authority.root()).await?;
        Ok(Self { address, root })
    }

    /// Asks for `/` of a hostname over TLS, with further arguments; whatever comes of it.
    pub(crate) async fn run(&self, hostname: &str, arguments: &[&str]) -> Result<Done> {
        let (port, root) = (self.address.port(), self.root.to_string_lossy());
        let resolve = format!("{hostname}:{port}:{}", self.address.ip());
        let url = format!("https://{hostname}:{port}/");
        let common = [
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--write-out",
            "\n%{http_code} %{http_version}",
            "--resolve",
            &resolve,
            "--cacert",
            &root,
            &url,
        ];
        run("curl".as_ref(), &[&common, arguments].concat(), &[], "").await
    }

    /// The same; there has to be an answer of whatever status.
    pub(crate) async fn get(&self, hostname: &str, arguments: &[&str]) -> Result<Got> {
        let output = self.run(hostname, arguments).await?.must()?;
        let (body, status) = output.rsplit_once('\n').context("no status")?;
        Ok(Got {
            status: status.to_owned(),
            body: body.to_owned(),
        })
    }
}
