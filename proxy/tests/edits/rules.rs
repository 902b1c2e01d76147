//! The parts of routes that histories are made of: few, and all of them known to the model.

use std::collections::BTreeSet;

use vestibule_stream::{ResourceKind as Kind, proto};

use super::ledger::Config;
use super::model::ANSWERED;
use super::servers::ASKED;

use proto::http_filter::Filter;
use proto::resource::Resource as Wire;

/// What rules ask for beside the host: a path, a method, the value of a field.
pub(crate) type Of = (Path, &'static str, Option<&'static str>);

#[derive(Clone, Copy)]
pub(crate) enum Path {
    Prefix(&'static str),
    Exact(&'static str),
}

pub(crate) const MATCHES: [Of; 5] = [
    (Path::Prefix("/x"), "", None),
    (Path::Exact("/x/y"), "", None),
    (Path::Prefix("/x"), "POST", None),
    (Path::Prefix("/"), "", Some("blue")),
    (Path::Prefix("/x/y"), "", None),
];

/// A rule for requests of a kind, or for everything, whose filters write `version`.
pub(crate) fn rule(of: Option<Of>, version: &str) -> proto::HttpRule {
    proto::HttpRule {
        matches: of.map(one_match).into_iter().collect(),
        filters: stamps(version),
        ..Default::default()
    }
}

fn one_match((path, method, variant): Of) -> proto::HttpMatch {
    use proto::http_match::Path as Wire;
    let variant = variant.map(|value| proto::HttpValueMatch {
        name: "x-variant".into(),
        value: Some(proto::http_value_match::Value::Exact(value.into())),
    });
    proto::HttpMatch {
        path: Some(match path {
            Path::Prefix(prefix) => Wire::Prefix(prefix.into()),
            Path::Exact(path) => Wire::Exact(path.into()),
        }),
        headers: variant.into_iter().collect(),
        method: method.into(),
        ..Default::default()
    }
}

pub(crate) fn to(backend: &str, weight: u32) -> proto::HttpBackend {
    proto::HttpBackend {
        backend: backend.into(),
        weight,
        filters: Vec::new(),
    }
}

/// Filters that write into the request, for the backend to see, and into the answer.
pub(crate) fn stamps(version: &str) -> Vec<proto::HttpFilter> {
    let edit = |name: &str| proto::HeaderModifier {
        add: vec![proto::HttpField {
            name: name.into(),
            value: version.into(),
        }],
        ..Default::default()
    };
    vec![
        filter(Filter::RequestHeaders(edit(ASKED))),
        filter(Filter::ResponseHeaders(edit(ANSWERED))),
    ]
}

/// Replaces what a match took of the path.
pub(crate) fn rewrite(with: &str) -> proto::HttpFilter {
    use proto::path_modifier::Path;
    filter(Filter::Rewrite(proto::UrlRewrite {
        hostname: String::new(),
        path: Some(proto::PathModifier {
            path: Some(Path::Prefix(with.into())),
        }),
    }))
}

pub(crate) fn redirect(hostname: &str) -> proto::HttpFilter {
    filter(Filter::Redirect(proto::HttpRedirect {
        hostname: hostname.into(),
        status: 302,
        ..Default::default()
    }))
}

pub(crate) fn fail(status: u32) -> proto::HttpFilter {
    filter(Filter::Fail(status))
}

fn filter(filter: Filter) -> proto::HttpFilter {
    proto::HttpFilter {
        filter: Some(filter),
    }
}

/// The backends that routes lead to.
pub(crate) fn backends(config: &Config) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for kind in [Kind::HttpRoute, Kind::TlsRoute] {
        for (_, resource) in config.of(kind) {
            match &resource.resource {
                Some(Wire::HttpRoute(route)) => {
                    let all = route.rules.iter().flat_map(|rule| &rule.backends);
                    used.extend(all.map(|of| of.backend.clone()));
                }
                Some(Wire::TlsRoute(route)) => {
                    used.extend(route.backends.iter().map(|of| of.backend.clone()));
                }
                _ => {}
            }
        }
    }
    used
}
