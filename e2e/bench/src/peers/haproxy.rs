//! `HAProxy`'s configuration: everything at its default but threads, logs, and what is measured.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{RETRIES, Role, Scenario};

pub(super) fn command(
    binary: &Path,
    scenario: &Scenario<'_>,
    listen: SocketAddr,
    splice: bool,
) -> Result<Command> {
    let mut text = format!("global\n  nbthread {}\n", scenario.setting.workers);
    if scenario.logs() {
        // Standard output is the file.
        text.push_str("  log stdout format raw local0\n");
    }
    text.push_str("defaults\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n");
    if splice {
        // Debian's 2.6 never starts splicing with splice-auto alone once it forwards on its fast path.
        text.push_str("  option splice-auto\n  option splice-request\n  option splice-response\n");
    }
    match scenario.role {
        Role::Passthrough | Role::Terminate => streams(&mut text, scenario, listen)?,
        Role::Tcp => port(&mut text, scenario, listen)?,
        Role::Http | Role::Https | Role::Grpc | Role::Retries => {
            http(&mut text, scenario, listen)?;
        }
        Role::Udp => bail!("HAProxy passes no datagrams"),
    }
    let file = scenario.folder.join("haproxy.cfg");
    fs::write(&file, text)?;
    let mut command = Command::new(binary);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

fn port(text: &mut String, scenario: &Scenario<'_>, listen: SocketAddr) -> Result<()> {
    text.push_str("  mode tcp\n");
    if scenario.logs() {
        text.push_str("  log global\n  option tcplog\n");
    }
    let backend = scenario.behind_port();
    write!(text, "listen f\n  bind {listen}\n  server s {backend}\n")?;
    Ok(())
}

fn streams(text: &mut String, scenario: &Scenario<'_>, listen: SocketAddr) -> Result<()> {
    let mut map = String::new();
    for (name, address) in scenario.routes() {
        writeln!(map, "{name} be_{}", address.port())?;
    }
    let map_file = scenario.folder.join("routes.map");
    fs::write(&map_file, map)?;
    text.push_str("  mode tcp\n");
    if scenario.logs() {
        text.push_str("  log global\n  option tcplog\n");
    }
    let map_file = map_file.display();
    if scenario.role == Role::Passthrough {
        write!(
            text,
            "frontend f\n  bind {listen}\n  tcp-request inspect-delay 5s\n  \
             tcp-request content accept if {{ req.ssl_hello_type 1 }}\n  \
             use_backend %[req.ssl_sni,lower,map({map_file})]\n"
        )?;
    } else {
        write!(
            text,
            "frontend f\n  bind {listen}{}\n  use_backend %[ssl_fc_sni,lower,map({map_file})]\n",
            certificates(scenario)?
        )?;
    }
    for address in [scenario.ports.raw, scenario.ports.plain, scenario.ports.tls] {
        write!(
            text,
            "backend be_{}\n  server s {address}\n",
            address.port()
        )?;
    }
    Ok(())
}

fn http(text: &mut String, scenario: &Scenario<'_>, listen: SocketAddr) -> Result<()> {
    let mut map = String::new();
    for host in scenario.hosts() {
        for prefix in scenario.prefixes() {
            writeln!(map, "{host}{prefix} web")?;
        }
    }
    let map_file = scenario.folder.join("routes.map");
    fs::write(&map_file, map)?;
    text.push_str("  mode http\n  http-reuse always\n");
    if scenario.logs() {
        text.push_str("  log global\n  option httplog\n");
    }
    let (bind, scheme) = match scenario.role {
        Role::Https => (
            format!("{} alpn h2,http/1.1", certificates(scenario)?),
            "https",
        ),
        Role::Grpc => (" proto h2".to_owned(), "http"),
        _ => (String::new(), "http"),
    };
    if scenario.role == Role::Retries {
        write!(text, "  retries {RETRIES}\n  retry-on 503\n")?;
    }
    write!(
        text,
        "frontend f\n  bind {listen}{bind}\n  \
         http-request set-header x-real-ip %[src]\n  \
         http-request set-header x-forwarded-for %[src]\n  \
         http-request set-header x-forwarded-proto {scheme}\n  \
         http-request set-header x-forwarded-host %[req.hdr(host)]\n  \
         http-request set-header x-forwarded-port %[dst_port]\n  \
         http-request set-header x-request-id %[uuid()]\n  \
         http-request set-header cdn-loop bench\n  \
         use_backend %[base,map_beg({})]\nbackend web\n",
        map_file.display()
    )?;
    let protocol = match scenario.role {
        Role::Grpc => " proto h2",
        _ => "",
    };
    for (number, endpoint) in scenario.endpoints().into_iter().enumerate() {
        writeln!(text, "  server s{number} {endpoint}{protocol}")?;
    }
    Ok(())
}

/// The part of a `bind` that names the certificates.
fn certificates(scenario: &Scenario<'_>) -> Result<String> {
    let list = scenario.folder.join("certificates");
    let lines: Vec<_> = scenario
        .leaves()
        .iter()
        .map(|leaf| leaf.bundle.display().to_string())
        .collect();
    fs::write(&list, lines.join("\n") + "\n")?;
    Ok(format!(" ssl crt-list {}", list.display()))
}
