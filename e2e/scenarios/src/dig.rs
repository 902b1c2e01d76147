//! `dig`: DNS as users ask it.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use crate::tools::run;

/// What is asked over first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// Questions to one name server.
pub(crate) struct Dig {
    address: SocketAddr,
}

impl Dig {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Asks for the texts of a name so many times, each time over a socket of its own. Gives the text of each answer;
    /// all have to come. A datagram may be lost on the way as on any network, so each has three tries.
    pub(crate) async fn texts(
        &self,
        name: &str,
        over: Transport,
        times: usize,
    ) -> Result<Vec<String>> {
        let over = match over {
            Transport::Tcp => "+tcp",
            Transport::Udp => "+notcp",
        };
        let mut arguments = vec!["+short", "+tries=3", "+timeout=5"];
        for _ in 0..times {
            arguments.extend([name, "TXT", over]);
        }
        let texts = self.run(&arguments).await?;
        // Behind a semicolon it says that it tries again.
        let texts = texts.lines().filter(|line| !line.starts_with(';'));
        let texts: Vec<String> = texts.map(|line| line.replace('"', "")).collect();
        ensure!(texts.len() == times, "{times} questions: {texts:?}");
        Ok(texts)
    }

    /// Asks for the texts of a name without EDNS, so that an answer by UDP has 512 bytes at most. Gives all that is
    /// printed.
    pub(crate) async fn in_full(&self, name: &str) -> Result<String> {
        self.run(&["+noedns", "+tries=3", "+timeout=5", name, "TXT"])
            .await
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let server = format!("@{}", self.address.ip());
        let port = self.address.port().to_string();
        let common = [server.as_str(), "-p", &port];
        run("dig".as_ref(), &[&common, arguments].concat(), &[], "")
            .await?
            .must()
    }
}
