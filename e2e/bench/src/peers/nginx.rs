//! nginx: its stream module, or its HTTP proxy. Everything at its default but workers, logs, connections that are
//! kept, and what is measured.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{RETRIES, Role, Scenario};

pub(super) fn command(scenario: &Scenario<'_>, listen: SocketAddr) -> Result<Command> {
    let folder = scenario.folder;
    let mut text = String::new();
    let module = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so");
    if module.exists() {
        writeln!(text, "load_module {};", module.display())?;
    }
    let workers = scenario.setting.workers;
    write!(
        text,
        "daemon off;\nmaster_process {};\nworker_processes {workers};\npid {}/nginx.pid;\nerror_log stderr error;\n\
         worker_rlimit_nofile 65536;\nevents {{ worker_connections 65536; }}\n",
        if workers > 1 { "on" } else { "off" },
        folder.display(),
    )?;
    match scenario.role {
        Role::Passthrough | Role::Terminate | Role::Tcp | Role::Udp => {
            stream(&mut text, scenario, listen)?;
        }
        Role::Http | Role::Https | Role::Grpc | Role::Retries => {
            http(&mut text, scenario, listen)?;
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

fn stream(text: &mut String, scenario: &Scenario<'_>, listen: SocketAddr) -> Result<()> {
    text.push_str("stream {\n");
    if scenario.logs() {
        // The stream module has no format of its own.
        write!(
            text,
            "  log_format c '$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time';\n  \
             access_log {} c;\n",
            scenario.access_log().display()
        )?;
    }
    let backend = scenario.behind_port();
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
        Role::Tcp => write!(
            text,
            "  server {{ listen {listen}; proxy_pass {backend}; }}\n}}\n"
        )?,
        // A client's datagrams have to come to the same worker each time.
        Role::Udp => write!(
            text,
            "  server {{ listen {listen} udp reuseport; proxy_pass {backend}; }}\n}}\n"
        )?,
        _ => write!(
            text,
            "  server {{ listen {listen} ssl; {} proxy_pass {backend}; }}\n}}\n",
            certificate(scenario)?
        )?,
    }
    Ok(())
}

fn http(text: &mut String, scenario: &Scenario<'_>, listen: SocketAddr) -> Result<()> {
    let log = if scenario.logs() {
        scenario.access_log().display().to_string()
    } else {
        "off".to_owned()
    };
    let mut endpoints = String::new();
    for endpoint in scenario.endpoints() {
        write!(endpoints, "server {endpoint}; ")?;
    }
    write!(
        text,
        "http {{\n  access_log {log};\n  upstream web {{ {endpoints}keepalive 256; keepalive_requests 1000000000; }}\n  \
         map $http_upgrade $hop {{ default upgrade; '' ''; }}\n  \
         keepalive_requests 1000000000;\n  keepalive_timeout 1h;\n  server_names_hash_max_size 65536;\n  \
         client_max_body_size 0;\n"
    )?;
    let pass = if scenario.role == Role::Grpc {
        fields(text, "grpc_set_header")?;
        "grpc_pass grpc://web"
    } else {
        text.push_str(
            "  proxy_request_buffering off;\n  proxy_max_temp_file_size 0;\n  proxy_http_version 1.1;\n  \
             proxy_set_header Connection $hop;\n  proxy_set_header Upgrade $http_upgrade;\n",
        );
        fields(text, "proxy_set_header")?;
        "proxy_pass http://web"
    };
    if scenario.role == Role::Retries {
        writeln!(text, "  proxy_next_upstream error timeout http_503;")?;
        writeln!(text, "  proxy_next_upstream_tries {};", RETRIES + 1)?;
    }
    let listen = match scenario.role {
        Role::Https => format!("{listen} ssl http2; {}", certificate(scenario)?),
        Role::Grpc => format!("{listen} http2;"),
        _ => format!("{listen};"),
    };
    for host in scenario.hosts() {
        write!(text, "  server {{ listen {listen} server_name {host};")?;
        for prefix in scenario.prefixes() {
            write!(text, " location {prefix} {{ {pass}; }}")?;
        }
        text.push_str(" }\n");
    }
    text.push_str("}\n");
    Ok(())
}

/// What every peer tells the backend.
fn fields(text: &mut String, set: &str) -> Result<()> {
    for (name, value) in [
        ("Host", "$http_host"),
        ("X-Real-IP", "$remote_addr"),
        ("X-Forwarded-For", "$remote_addr"),
        ("X-Forwarded-Proto", "$scheme"),
        ("X-Forwarded-Host", "$http_host"),
        ("X-Forwarded-Port", "$server_port"),
        ("X-Request-ID", "$request_id"),
        ("CDN-Loop", "bench"),
    ] {
        writeln!(text, "  {set} {name} {value};")?;
    }
    Ok(())
}

/// Directives of the one certificate.
fn certificate(scenario: &Scenario<'_>) -> Result<String> {
    let leaf = scenario.leaves().first().context("no certificate")?;
    let bundle = leaf.bundle.display();
    Ok(format!(
        "ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {bundle}; ssl_certificate_key {bundle};"
    ))
}
