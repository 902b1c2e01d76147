//! sozu's configuration, for HTTP. It sets `x-forwarded-for`, `-proto` and `-port`, `forwarded`
//! and an id of the request by itself.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Role, Scenario};
use crate::sys;

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
) -> Result<Command> {
    let folder = scenario.folder;
    // Lines of requests are on the level `info`; standard output is a file.
    let level = if scenario.logs() { "info" } else { "error" };
    // It starts only with two open files for each connection that it would take.
    let files = sys::raise_open_files(0)?;
    let connections = (files / 2).saturating_sub(200).clamp(500, 25_000);
    let protocol = if scenario.role == Role::Https {
        "https"
    } else {
        "http"
    };
    let mut text = format!(
        "command_socket = \"{}/sozu.sock\"\nlog_level = \"{level}\"\nlog_target = \"stdout\"\nworker_count = {}\n\
         worker_automatic_restart = false\nhandle_process_affinity = false\nmax_connections = {connections}\n\
         max_buffers = {}\nactivate_listeners = true\n\n[[listeners]]\nprotocol = \"{protocol}\"\n\
         address = \"{listen}\"\n\n[clusters.web]\nprotocol = \"http\"\nfrontends = [\n",
        folder.display(),
        scenario.setting.workers,
        2 * connections,
    );
    for host in scenario.hosts() {
        let certificate = certificate(scenario, &host)?;
        for prefix in scenario.prefixes() {
            writeln!(
                text,
                "  {{ address = \"{listen}\", hostname = \"{host}\", path = \"{prefix}\"{certificate} }},"
            )?;
        }
    }
    write!(
        text,
        "]\nbackends = [{{ address = \"{}\" }}]\n",
        scenario.web
    )?;
    let file = folder.join("sozu.toml");
    fs::write(&file, text)?;
    let mut command = Command::new(binary);
    command.arg("start").arg("-c").arg(file);
    Ok(command)
}

/// The part of a frontend that names the certificate of its host, if it has one.
fn certificate(scenario: &Scenario<'_>, host: &str) -> Result<String> {
    let Some(leaf) = scenario.leaves().iter().find(|leaf| leaf.name == host) else {
        return Ok(String::new());
    };
    let [certificate, key] = ["certificate", "key"].map(|kind| {
        let name = format!("{host}-{kind}.pem");
        scenario.folder.join(name)
    });
    fs::write(&certificate, &leaf.certificate_pem)?;
    fs::write(&key, &leaf.key_pem)?;
    let (certificate, key) = (certificate.display(), key.display());
    Ok(format!(
        ", certificate = \"{certificate}\", key = \"{key}\", certificate_chain = \"{certificate}\""
    ))
}
