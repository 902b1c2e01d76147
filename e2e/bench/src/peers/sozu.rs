//! sozu's configuration: HTTP, and TCP by server name. It sets `x-forwarded-for`, `-proto` and `-port`, `forwarded`
//! and an id of the request by itself.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Role, Scenario};

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
) -> Result<Command> {
    let folder = scenario.folder;
    // Lines of requests are on the level `info`; standard output is a file.
    let level = if scenario.logs() { "info" } else { "error" };
    let protocol = match scenario.role {
        Role::Passthrough | Role::Terminate => "tcp",
        Role::Http => "http",
        Role::Https => "https",
    };
    let mut text = format!(
        "command_socket = \"{}/sozu.sock\"\nlog_level = \"{level}\"\nlog_target = \"stdout\"\nworker_count = {}\n\
         worker_automatic_restart = false\nhandle_process_affinity = false\nmax_connections = 25000\n\
         activate_listeners = true\n\n[[listeners]]\nprotocol = \"{protocol}\"\naddress = \"{listen}\"\n",
        folder.display(),
        scenario.setting.workers,
    );
    match scenario.role {
        Role::Passthrough | Role::Terminate => {
            for (index, (name, backend)) in scenario.routes().into_iter().enumerate() {
                write!(
                    text,
                    "\n[clusters.c{index}]\nprotocol = \"tcp\"\n\
                     frontends = [{{ address = \"{listen}\", hostname = \"{name}\" }}]\n\
                     backends = [{{ address = \"{backend}\" }}]\n"
                )?;
            }
        }
        Role::Http | Role::Https => {
            text.push_str("\n[clusters.web]\nprotocol = \"http\"\nfrontends = [\n");
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
        }
    }
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
