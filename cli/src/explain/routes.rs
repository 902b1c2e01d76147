//! Routes and their backends as the report has them.

use vestibule_model::http::{HttpFilter, HttpMatch, HttpRule, PathMatch};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::{BackendRef, TlsRoute};
use vestibule_model::route::Route;

use super::candidates::{AttachedRoute, backend};
use super::picture::Picture;
use super::report::{BackendView, RouteView, RuleView};

/// The views of routes in order of precedence; of TLSRoutes the first has the connections.
pub(super) fn views(picture: &Picture, attached: &[AttachedRoute]) -> Vec<RouteView> {
    let views = attached.iter().enumerate().filter_map(|(index, one)| {
        let object = picture.translator.object(&one.key)?;
        let rules = match object.as_route()? {
            Route::Tls(route) => vec![of_tls(picture, &one.key, route)],
            Route::Http(route) => {
                let rules = route.rules.iter();
                rules.map(|rule| of_http(picture, &one.key, rule)).collect()
            }
        };
        Some(RouteView {
            object: (&one.key).into(),
            hostname: one.rank.to_string(),
            shadowed: index > 0 && one.key.kind == Kind::TlsRoute,
            rules,
        })
    });
    views.collect()
}

fn of_tls(picture: &Picture, key: &ObjectKey, route: &TlsRoute) -> RuleView {
    let backends = route.backends.iter();
    RuleView {
        name: String::new(),
        matches: Vec::new(),
        filters: Vec::new(),
        backends: backends.map(|one| of_backend(picture, key, one)).collect(),
        problem: String::new(),
    }
}

fn of_http(picture: &Picture, key: &ObjectKey, rule: &HttpRule) -> RuleView {
    let backends = rule.backends.iter();
    let all = HttpMatch::default();
    let takes_all = rule.matches.contains(&all);
    RuleView {
        name: rule.name.as_deref().unwrap_or_default().to_owned(),
        matches: if takes_all {
            Vec::new()
        } else {
            rule.matches.iter().map(match_text).collect()
        },
        filters: rule.filters.iter().map(filter_text).collect(),
        backends: backends
            .map(|one| of_backend(picture, key, &one.backend))
            .collect(),
        problem: rule.refusal().map(ToString::to_string).unwrap_or_default(),
    }
}

fn of_backend(picture: &Picture, route: &ObjectKey, one: &BackendRef) -> BackendView {
    let reference = &one.reference;
    let name = reference.target.clone();
    let of = |kind| ObjectKey {
        kind,
        name: name.clone(),
    };
    let hidden =
        picture.is_denied(&of(Kind::Service)) || picture.is_denied(&of(Kind::EndpointSlice));
    let findings = picture.translator.findings().get(route);
    let problem = findings
        .into_iter()
        .flatten()
        .find(|finding| finding.refuses() && finding.field == reference.field)
        .filter(|_| !hidden)
        .map(|finding| format!("{}: {}", finding.reason, finding.message));
    let ready = one
        .port
        .filter(|_| reference.is(Kind::Service))
        .and_then(|port| backend(&picture.translator, &name, port))
        .map(|backend| backend.endpoints.len());
    BackendView {
        service: (&name).into(),
        port: one.port.map_or(0, std::num::NonZeroU16::get),
        weight: one.weight,
        ready: if hidden {
            None
        } else {
            Some(ready.unwrap_or(0))
        },
        problem: problem.unwrap_or_default(),
    }
}

/// `GET /api/*, header x-a, query b`.
fn match_text(one: &HttpMatch) -> String {
    let path = match &one.path {
        PathMatch::Exact(path) => path.to_string(),
        PathMatch::Prefix(prefix) => match prefix.trim_end_matches('/') {
            "" => "/*".to_owned(),
            prefix => format!("{prefix}/*"),
        },
        PathMatch::Regex(pattern) => format!("~{}", pattern.as_str()),
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
        HttpFilter::Extension(_) => "unknown filter: answers 500".into(),
    }
}

/// Whether requests of a rule get an answer: from a backend, or from the rule itself.
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
