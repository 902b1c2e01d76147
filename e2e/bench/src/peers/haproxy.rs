//! `HAProxy`'s configuration: everything at its default but one thread and what is measured.

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
    splice: bool,
    log: bool,
) -> Result<Command> {
    let folder = scenario.folder;
    let mut map = String::new();
    for (name, address) in scenario.routes() {
        writeln!(map, "{name} be_{}", address.port())?;
    }
    let map_file = folder.join("routes.map");
    fs::write(&map_file, map)?;

    let mut text = String::from("global\n  nbthread 1\n");
    if log {
        text.push_str("  log stderr format raw local0\n");
    }
    text.push_str(
        "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n",
    );
    if splice {
        // Debian's 2.6 never starts splicing with splice-auto alone once it forwards on its fast path.
        text.push_str("  option splice-auto\n  option splice-request\n  option splice-response\n");
    }
    if log {
        text.push_str("  log global\n  option tcplog\n");
    }
    let map_file = map_file.display();
    match scenario.role {
        Role::Passthrough => write!(
            text,
            "frontend f\n  bind {listen}\n  tcp-request inspect-delay 5s\n  \
             tcp-request content accept if {{ req.ssl_hello_type 1 }}\n  \
             use_backend %[req.ssl_sni,lower,map({map_file})]\n"
        )?,
        Role::Terminate => {
            let list = folder.join("certificates");
            let lines: Vec<_> = scenario
                .leaves
                .iter()
                .map(|leaf| leaf.bundle.display().to_string())
                .collect();
            fs::write(&list, lines.join("\n") + "\n")?;
            write!(
                text,
                "frontend f\n  bind {listen} ssl crt-list {}\n  use_backend %[ssl_fc_sni,lower,map({map_file})]\n",
                list.display()
            )?;
        }
    }
    for address in [scenario.ports.raw, scenario.ports.plain, scenario.ports.tls] {
        write!(
            text,
            "backend be_{}\n  server s {address}\n",
            address.port()
        )?;
    }
    let file = folder.join("haproxy.cfg");
    fs::write(&file, text)?;
    let mut command = Command::new(binary);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}
