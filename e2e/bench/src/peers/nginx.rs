//! nginx's stream module: one process, everything else at its default.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Role, Scenario};

pub(super) fn command(scenario: &Scenario<'_>, listen: SocketAddr) -> Result<Command> {
    let folder = scenario.folder;
    let module = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so");
    let mut text = String::new();
    if module.exists() {
        writeln!(text, "load_module {};", module.display())?;
    }
    write!(
        text,
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {0}/nginx.pid;\nerror_log stderr error;\n\
         events {{ worker_connections 65536; }}\nstream {{\n",
        folder.display()
    )?;
    match scenario.role {
        Role::Passthrough => {
            text.push_str("  map $ssl_preread_server_name $backend {\n");
            for (name, address) in scenario.routes() {
                writeln!(text, "    {name} {address};")?;
            }
            write!(
                text,
                "  }}\n  server {{ listen {listen}; ssl_preread on; proxy_pass $backend; }}\n}}\n"
            )?;
        }
        Role::Terminate => {
            let leaf = scenario.leaves.first().context("no certificate")?;
            write!(
                text,
                "  server {{ listen {listen} ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {0}; \
                 ssl_certificate_key {0}; proxy_pass {1}; }}\n}}\n",
                leaf.bundle.display(),
                scenario.ports.plain
            )?;
        }
    }
    let file = folder.join("nginx.conf");
    fs::write(&file, text)?;
    let mut command = Command::new("nginx");
    command
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(folder)
        .arg("-c")
        .arg(file);
    Ok(command)
}
