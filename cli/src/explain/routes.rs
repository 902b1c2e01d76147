//! Converts routes and their backends into the form of the report.

use std::collections::BTreeSet;

use vestibule_model::hostname::HostPattern;
use vestibule_model::http::{HttpFilter, HttpMatch, HttpRule, MethodMatch, PathMatch, ValueMatch};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::reference::BackendRef;
use vestibule_model::route::Route;

use super::candidates::{AttachedRoute, backend};
use super::cluster_state::ClusterState;
use super::report::{BackendView, RouteView, RuleView};

/// The views of routes, in order of precedence. Of routes that do not route single requests, the first one gets
/// everything.
pub(super) fn views(cluster_state: &ClusterState, attached: &[AttachedRoute]) -> Vec<RouteView> {
    let views = attached.iter().enumerate().filter_map(|(index, one)| {
        Some(RouteView {
            shadowed: index > 0 && !one.key.kind.routes_requests(),
            shared_paths: one.paths.clone(),
            ..view(cluster_state, &one.key, &one.rank)?
        })
    });
    views.collect()
}

/// The view of a route, with that of its hostnames which covers the name.
pub(super) fn view(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    hostname: &HostPattern,
) -> Option<RouteView> {
    let object = cluster_state.translator.object(key)?;
    let rules = match object.as_route()? {
        Route::Tls(route) => vec![of_connections(cluster_state, key, &route.backends)],
        Route::Port(route) => vec![of_connections(cluster_state, key, &route.backends)],
        Route::Http(route) => {
            let rules = route.rules.iter();
            rules
                .map(|rule| of_http(cluster_state, key, rule))
                .collect()
        }
    };
    Some(RouteView {
        object: key.into(),
        hostname: hostname.to_string(),
        shadowed: false,
        shared_paths: Vec::new(),
        rules,
        key: key.clone(),
    })
}

fn of_connections(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    backends: &[BackendRef],
) -> RuleView {
    let backends = backends.iter();
    RuleView {
        name: String::new(),
        matches: Vec::new(),
        filters: Vec::new(),
        backends: backends
            .map(|one| of_backend(cluster_state, key, one))
            .collect(),
        problem: String::new(),
    }
}

fn of_http(cluster_state: &ClusterState, key: &ObjectKey, rule: &HttpRule) -> RuleView {
    let backends = rule.backends.iter();
    let takes_all = rule.matches.iter().any(takes_all);
    RuleView {
        name: rule.name.as_deref().unwrap_or_default().to_owned(),
        matches: if takes_all {
            Vec::new()
        } else {
            rule.matches.iter().map(match_text).collect()
        },
        filters: rule.filters.iter().map(filter_text).collect(),
        backends: backends
            .map(|one| of_backend(cluster_state, key, &one.backend))
            .collect(),
        problem: rule.refusal().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Whether a match takes everything that routes of its kind take.
fn takes_all(one: &HttpMatch) -> bool {
    let any_call = HttpMatch {
        path: PathMatch::Method(MethodMatch::default()),
        ..HttpMatch::default()
    };
    [HttpMatch::default(), any_call].contains(one)
}

fn of_backend(cluster_state: &ClusterState, route: &ObjectKey, one: &BackendRef) -> BackendView {
    let reference = &one.reference;
    let name = reference.target.clone();
    let of = |kind| ObjectKey {
        kind,
        name: name.clone(),
    };
    let hidden = cluster_state.is_denied(&of(Kind::Service))
        || cluster_state.is_denied(&of(Kind::EndpointSlice));
    let findings = cluster_state.translator.findings().get(route);
    let problem = findings
        .into_iter()
        .flatten()
        .find(|finding| finding.refuses() && finding.field == reference.field)
        .filter(|_| !hidden)
        .map(|finding| {
            let problem = format!("{}: {}", finding.reason, finding.message);
            (problem, finding.action.clone())
        });
    let (problem, remedy) = problem.unwrap_or_default();
    let port = one.port.filter(|_| reference.is(Kind::Service));
    let ready = port.map(|port| {
        let port = (port, route.kind.transport());
        match backend(&cluster_state.translator, &name, port) {
            Some(backend) => backend.endpoints.len(),
            None => endpoints(cluster_state, &name),
        }
    });
    BackendView {
        service: (&name).into(),
        port: one.port.map_or(0, std::num::NonZeroU16::get),
        weight: one.weight,
        ready: if hidden {
            None
        } else {
            Some(ready.unwrap_or(0))
        },
        problem,
        remedy,
    }
}

/// Number of ready endpoints of a Service to which no route in force leads.
fn endpoints(cluster_state: &ClusterState, service: &ObjectName) -> usize {
    let slices = cluster_state
        .translator
        .objects()
        .filter_map(|(_, object)| match object.as_ref() {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
    let of_it = slices.filter(|slice| {
        slice.name.namespace == service.namespace && slice.service.as_ref() == Some(&service.name)
    });
    let addresses: BTreeSet<_> = of_it.flat_map(|slice| &slice.addresses).collect();
    addresses.len()
}

/// A match as text, such as `GET /api/*, header x-a, query b`.
fn match_text(one: &HttpMatch) -> String {
    let path = match &one.path {
        PathMatch::Exact(path) => path.to_string(),
        PathMatch::Prefix(prefix) => match prefix.trim_end_matches('/') {
            "" => "/*".to_owned(),
            prefix => format!("{prefix}/*"),
        },
        PathMatch::Regex(pattern) => format!("~{}", pattern.as_str()),
        PathMatch::Method(MethodMatch { service, method }) => {
            let text = |part: &Option<ValueMatch>| match part {
                Some(ValueMatch::Exact(text)) => text.to_string(),
                Some(ValueMatch::Regex(pattern)) => format!("~{}", pattern.as_str()),
                None => "*".to_owned(),
            };
            format!("/{}/{}", text(service), text(method))
        }
    };
    let mut text = match &one.method {
        Some(method) => format!("{method} {path}"),
        None => path,
    };
    for (what, list) in [("header", &one.headers), ("query", &one.query)] {
        for (name, _) in list {
            text.push_str(", ");
            text.push_str(what);
            text.push(' ');
            text.push_str(name);
        }
    }
    text
}

fn filter_text(filter: &HttpFilter) -> String {
    match filter {
        HttpFilter::RequestHeaders(_) => "request headers".into(),
        HttpFilter::ResponseHeaders(_) => "response headers".into(),
        HttpFilter::Redirect(to) => {
            let scheme = to.scheme.map(|scheme| format!(" to {}", scheme.as_str()));
            let scheme = scheme.unwrap_or_default();
            format!("redirect {}{scheme}", to.status)
        }
        HttpFilter::Rewrite(_) => "rewrite".into(),
        HttpFilter::Cors(_) => "CORS".into(),
        HttpFilter::Mirror(mirror) => {
            let to = &mirror.backend.reference.target;
            match (mirror.numerator, mirror.denominator) {
                (all, of) if all == of => format!("mirror to {to}"),
                (part, of) => format!("mirror {part} of {of} to {to}"),
            }
        }
        HttpFilter::Extension(_) => "unknown filter: answers 500".into(),
    }
}

/// Whether requests of a rule get a response, from a backend or from the rule itself. It is `None` if that is not
/// known.
pub(super) fn answers(rule: &RuleView) -> Option<bool> {
    if !rule.problem.is_empty() {
        return Some(false);
    }
    if rule
        .filters
        .iter()
        .any(|filter| filter.starts_with("redirect"))
    {
        return Some(true);
    }
    let used = || rule.backends.iter().filter(|one| one.weight > 0);
    if used().any(|one| one.problem.is_empty() && one.ready.is_some_and(|ready| ready > 0)) {
        return Some(true);
    }
    if used().any(|one| one.ready.is_none()) {
        return None;
    }
    Some(false)
}
