//! Prints a report as text for people.

use std::fmt::{self, Formatter, Write as _};

use vestibule_model::key::Kind;
use vestibule_model::protocol::Protocol;

use super::report::{
    BackendView, CertificateView, ChainStep, Check, HolderView, ListenerView, PortReport, Report,
    RouteView, RuleView, ServingState, StepOutcome,
};

/// The report as text.
pub(super) struct Text<'a>(pub(super) &'a Report);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let name = &report.hostname;
        match report.state {
            ServingState::Live => writeln!(f, "{name} is live")?,
            ServingState::Down if report.partial => {
                writeln!(f, "{name} is not live, as far as you may see")?;
            }
            ServingState::Down => writeln!(f, "{name} is not live")?,
            ServingState::Unknown => writeln!(f, "whether {name} is live cannot be told")?,
        }
        if let Some(step) = &report.nowhere {
            writeln!(f)?;
            for route in &report.routes {
                write_route(f, route)?;
            }
            chain_step(f, step)?;
        }
        // Places where somebody asks for the name come first. Of the others, those are shown in short that have no route,
        // unless nobody asks for it anywhere.
        let (asked, idle): (Vec<_>, Vec<_>) = report.places.iter().partition(|p| p.asked_for);
        for port_report in &asked {
            writeln!(f)?;
            write_port(f, port_report)?;
        }
        for port_report in &idle {
            writeln!(f)?;
            let idle = !asked.is_empty() || report.nowhere.is_some();
            if !idle || !port_report.routes.is_empty() {
                write_port(f, port_report)?;
            } else {
                heading(f, port_report)?;
                line(f, "listener", &listener(&port_report.listener))?;
            }
        }
        write_unread(f, &report.unread_lines)
    }
}

/// Writes what could not be read.
pub(crate) fn write_unread(f: &mut Formatter<'_>, lines: &[String]) -> fmt::Result {
    if !lines.is_empty() {
        writeln!(f, "\nnot read:")?;
    }
    for line in lines {
        writeln!(f, "  {}", line.replace(char::is_control, " "))?;
    }
    Ok(())
}

fn heading(f: &mut Formatter<'_>, port_report: &PortReport) -> fmt::Result {
    let gateway = format!(
        "{}/{}",
        port_report.gateway.namespace, port_report.gateway.name
    );
    let state = match (port_report.state, port_report.asked_for) {
        (ServingState::Live, _) => "live",
        (ServingState::Unknown, _) => "cannot be told",
        (ServingState::Down, true) => "not live",
        (ServingState::Down, false) => "not asked for",
    };
    let port = port_report.port;
    // The transport is shown for UDP only, because a TCP port may have the same number.
    let transport = match port_report.listener.protocol {
        Protocol::Udp => " (UDP)",
        _ => "",
    };
    writeln!(f, "Gateway {gateway}, port {port}{transport}: {state}")
}

fn write_port(f: &mut Formatter<'_>, port_report: &PortReport) -> fmt::Result {
    heading(f, port_report)?;
    if !port_report.addresses.is_empty() {
        line(f, "address", &port_report.addresses.join(", "))?;
    }
    line(f, "listener", &listener(&port_report.listener))?;
    if !port_report.grants.is_empty() {
        let grants = port_report.grants.iter();
        let grants: Vec<String> = grants
            .map(|one| format!("{} {}/{}", one.kind, one.namespace, one.name))
            .collect();
        line(f, "granted by", &grants.join(", "))?;
    }
    for holder in &port_report.holders {
        line(f, "held by", &holder_text(holder))?;
    }
    if let Some(certificate) = &port_report.certificate {
        line(f, "certificate", &certificate_text(certificate))?;
    }
    for route in &port_report.routes {
        write_route(f, route)?;
    }
    let worth = |step: &&ChainStep| {
        port_report.state != ServingState::Live || step.outcome != StepOutcome::Ok
    };
    for step in port_report.chain.iter().filter(worth) {
        chain_step(f, step)?;
    }
    if port_report.state == ServingState::Live
        && let Some(last) = port_report
            .chain
            .last()
            .filter(|step| step.check == Check::Programmed && step.outcome == StepOutcome::Ok)
    {
        line(f, "proxies", &last.message)?;
    }
    for other in &port_report.others {
        let message = match other.message.as_str() {
            "" => other.reason.clone(),
            message => format!("{}: {message}", other.reason),
        };
        line(
            f,
            "also",
            &format!("{}: {message}", listener(&other.listener)),
        )?;
    }
    for one in &port_report.differences {
        let mut text = format!("the status of {}", one.subject);
        if one.unwritten {
            text.push_str(" is not written");
        } else if one.stale {
            text.push_str(" is about an older version of it");
        }
        for (index, condition) in one.conditions.iter().enumerate() {
            let written = match condition.written.as_str() {
                "" => "nothing",
                written => written,
            };
            let and = if index == 0 && !one.stale {
                " says"
            } else {
                "; it says"
            };
            let _ = write!(
                text,
                "{and} {}={written}, and it comes to {}",
                condition.kind, condition.computed
            );
        }
        line(f, "differs", &text)?;
    }
    Ok(())
}

fn write_route(f: &mut Formatter<'_>, route: &RouteView) -> fmt::Result {
    let object = &route.object;
    let mut text = format!("{} {}/{}", object.kind, object.namespace, object.name);
    let has_port = route.key.kind.routes_ports();
    match route.hostname.as_str() {
        "" if has_port => {}
        "" => text.push_str(" (every name)"),
        hostname => {
            let _ = write!(text, " (hostname {hostname})");
        }
    }
    match route.shared_paths.as_slice() {
        [] => {}
        [path] => _ = write!(text, ", shared: path {path}"),
        paths => _ = write!(text, ", shared: paths {}", paths.join(", ")),
    }
    if route.shadowed {
        let has = if has_port {
            "comes first and has the port"
        } else {
            "has the name"
        };
        let _ = write!(text, ", which gets nothing: the route above {has}");
    }
    line(f, "route", &text)?;
    if route.shadowed {
        return Ok(());
    }
    for rule in &route.rules {
        line(f, "", &rule_text(rule, route.key.kind))?;
    }
    Ok(())
}

/// A rule of a route of this kind.
fn rule_text(rule: &RuleView, kind: Kind) -> String {
    let mut text = match rule.matches.as_slice() {
        [] => String::new(),
        matches => format!("{} ", matches.join(" or ")),
    };
    if !rule.filters.is_empty() {
        let _ = write!(text, "[{}] ", rule.filters.join(", "));
    }
    let weights = rule.backends.len() > 1;
    let backends: Vec<String> = rule
        .backends
        .iter()
        .map(|backend| backend_text(backend, weights, kind))
        .collect();
    if !rule.problem.is_empty() {
        let _ = write!(text, "-> refused: {}", rule.problem);
    } else if !backends.is_empty() {
        let _ = write!(text, "-> {}", backends.join(", "));
    } else if !rule
        .filters
        .iter()
        .any(|filter| filter.starts_with("redirect"))
    {
        text.push_str("-> no backend");
    }
    text.trim_end().to_owned()
}

fn backend_text(backend: &BackendView, weights: bool, kind: Kind) -> String {
    let service = &backend.service;
    let mut text = format!(
        "Service {}/{}:{}",
        service.namespace, service.name, backend.port
    );
    if weights {
        let _ = write!(text, " weight {}", backend.weight);
    }
    let header = backend.proxy_protocol;
    let header = header.map_or_else(String::new, |version| {
        // Requests of many clients share the connection.
        let names = if kind.routes_requests() {
            " that names no client"
        } else {
            ""
        };
        format!(", gets a PROXY header of {version}{names}")
    });
    let _ = match (backend.problem.as_str(), backend.ready) {
        ("", Some(ready)) => write!(text, " ({ready} ready{header})"),
        ("", None) => write!(text, " (endpoints not readable{header})"),
        (problem, _) => write!(text, " ({problem})"),
    };
    text
}

fn holder_text(holder: &HolderView) -> String {
    let mut text = format!("namespace {}", holder.namespace);
    let _ = write!(text, " since {}", holder.since);
    if !holder.in_use {
        text.push_str(", which no longer uses it; it becomes free soon");
    }
    text
}

fn certificate_text(certificate: &CertificateView) -> String {
    let secret = &certificate.secret;
    let mut text = format!("Secret {}/{}", secret.namespace, secret.name);
    if !certificate.not_after.is_empty() {
        const NAMED: usize = 5;
        let named: Vec<&str> = certificate
            .names
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect();
        let more = match certificate.names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = write!(
            text,
            " for {}{more}, by {}, until {}",
            named.join(", "),
            certificate.issuer,
            certificate.not_after
        );
    }
    if let Some(from) = &certificate.requested_from {
        let _ = write!(text, ", requested from {from}");
    }
    text
}

fn listener(view: &ListenerView) -> String {
    let object = &view.object;
    // Connections and datagrams of TCP and UDP carry no name, so the listener gets all of them, whatever name a client
    // looked up.
    let is_raw = matches!(view.protocol, Protocol::Tcp | Protocol::Udp);
    let hostname = match view.hostname.as_str() {
        "" if is_raw => "the whole port".to_owned(),
        "" => "every name".to_owned(),
        hostname => format!("hostname {hostname}"),
    };
    let tls = view.tls.map(|tls| format!(" {tls}")).unwrap_or_default();
    format!(
        "{} of {} {}/{} ({}{tls}, {hostname})",
        view.name, object.kind, object.namespace, object.name, view.protocol
    )
}

fn line(f: &mut Formatter<'_>, what: &str, text: &str) -> fmt::Result {
    // Others write statuses and certificates, so control characters are removed, which a terminal would obey.
    let text = text.replace(char::is_control, " ");
    writeln!(f, "  {what:<12} {text}")
}

fn chain_step(f: &mut Formatter<'_>, step: &ChainStep) -> fmt::Result {
    let mark = match step.outcome {
        StepOutcome::Ok => "ok",
        StepOutcome::Warning => "warning",
        StepOutcome::Unknown => "unknown",
        StepOutcome::Wrong => "WRONG",
    };
    let mut text = step.subject.clone();
    if !step.reason.is_empty() {
        let _ = write!(text, ": {}:", step.reason);
    }
    let _ = write!(text, " {}", step.message);
    line(f, mark, &text)?;
    if !step.action.is_empty() && step.outcome != StepOutcome::Ok {
        line(f, "", &format!("-> {}", step.action))?;
    }
    Ok(())
}
