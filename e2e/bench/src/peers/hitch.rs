//! hitch's configuration: TLS 1.3 allowed (its default too), plain TCP behind.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};

use super::Scenario;

pub(super) fn command(scenario: &Scenario<'_>, listen: SocketAddr) -> Result<Command> {
    let leaf = scenario.leaves().first().context("no certificate")?;
    let backend = scenario.ports.plain;
    let text = format!(
        "frontend = \"[{}]:{}\"\nbackend = \"[{}]:{}\"\npem-file = \"{}\"\nworkers = {}\ndaemon = off\nquiet = on\n\
         user = \"nobody\"\ntls-protos = TLSv1.2 TLSv1.3\n",
        listen.ip(),
        listen.port(),
        backend.ip(),
        backend.port(),
        leaf.bundle.display(),
        scenario.setting.workers
    );
    let file = scenario.folder.join("hitch.conf");
    fs::write(&file, text)?;
    let mut command = Command::new("hitch");
    command.arg(format!("--config={}", file.display()));
    Ok(command)
}
