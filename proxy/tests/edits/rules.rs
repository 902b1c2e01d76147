//! The parts of routes that histories are made of: few, and all of them known to the model.

use std::collections::BTreeSet;

use vestibule_stream::{ResourceKind as Kind, proto};

use super::ledger::Config;
use super::model::ANSWERED;
use super::servers::ASKED;
use vestibule_proxy_testing::web::filter;

use proto::http_filter::Filter;
use proto::resource::Resource as Wire;

/// The field whose value rules ask for.
pub(crate) const VARIANT: &str = "x-variant";
/// The query parameter whose value rules ask for.
pub(crate) const PARAMETER: &str = "v";

/// A regular expression for `/x` and one more element.
pub(crate) const ONE_BELOW: &str = "/x/[a-z]+";
/// One for `/x/y` with or without one more element.
pub(crate) const TWO_BELOW: &str = "/x/y(/[a-z]+)?";
/// One for paths that have a `y` in them.
pub(crate) const ANY_Y: &str = "/.*y.*";
/// One for values that are numbers.
pub(crate) const NUMBER: &str = "[0-9]+";
/// One for values that are one of two words.
pub(crate) const WORDS: &str = "blue|green";

/// What a rule asks for beside the host.
#[derive(Clone, Copy)]
pub(crate) struct Asks {
    path: Path,
    method: &'static str,
    /// The value that [`VARIANT`] has to have.
    variant: Option<Value>,
    /// The value that [`PARAMETER`] has to have.
    parameter: Option<Value>,
}

#[derive(Clone, Copy)]
enum Path {
    Prefix(&'static str),
    Exact(&'static str),
    Regex(&'static str),
}

#[derive(Clone, Copy)]
enum Value {
    Exact(&'static str),
    Regex(&'static str),
}

impl Asks {
    const fn of(path: Path) -> Self {
        Self {
            path,
            method: "",
            variant: None,
            parameter: None,
        }
    }

    const fn post(self) -> Self {
        let method = "POST";
        Self { method, ..self }
    }

    const fn variant(self, value: Value) -> Self {
        let variant = Some(value);
        Self { variant, ..self }
    }

    const fn parameter(self, value: Value) -> Self {
        let parameter = Some(value);
        Self { parameter, ..self }
    }
}

/// The kinds of requests that rules take.
pub(crate) const MATCHES: [Asks; 14] = [
    Asks::of(Path::Prefix("/x")),
    Asks::of(Path::Exact("/x/y")),
    Asks::of(Path::Prefix("/x")).post(),
    Asks::of(Path::Prefix("/")).variant(Value::Exact("blue")),
    Asks::of(Path::Prefix("/x/y")),
    Asks::of(Path::Regex(ONE_BELOW)),
    Asks::of(Path::Regex(TWO_BELOW)),
    Asks::of(Path::Regex(ANY_Y)).variant(Value::Regex(WORDS)),
    Asks::of(Path::Regex(ANY_Y)).post(),
    Asks::of(Path::Prefix("/x")).parameter(Value::Exact("1")),
    Asks::of(Path::Prefix("/")).parameter(Value::Regex(NUMBER)),
    Asks::of(Path::Exact("/other")).parameter(Value::Exact("1 1")),
    Asks::of(Path::Regex(ONE_BELOW)).parameter(Value::Regex(NUMBER)),
    Asks::of(Path::Prefix("/"))
        .variant(Value::Regex(WORDS))
        .parameter(Value::Exact("1")),
];

/// A rule that takes requests of some kinds, or everything if there are none, and whose filters write `version`.
pub(crate) fn rule(of: &[Asks], version: &str) -> proto::HttpRule {
    proto::HttpRule {
        matches: matches(of),
        filters: stamps(version),
        ..Default::default()
    }
}

/// The matches of a rule that takes requests of some kinds.
pub(crate) fn matches(of: &[Asks]) -> Vec<proto::HttpMatch> {
    of.iter().map(one_match).collect()
}

fn one_match(of: &Asks) -> proto::HttpMatch {
    use proto::http_match::Path as Wire;
    proto::HttpMatch {
        path: Some(match of.path {
            Path::Prefix(prefix) => Wire::Prefix(prefix.into()),
            Path::Exact(path) => Wire::Exact(path.into()),
            Path::Regex(regex) => Wire::Regex(regex.into()),
        }),
        headers: one_value(VARIANT, of.variant),
        query: one_value(PARAMETER, of.parameter),
        method: of.method.into(),
    }
}

fn one_value(name: &str, value: Option<Value>) -> Vec<proto::HttpValueMatch> {
    use proto::http_value_match::Value as Wire;
    let value = value.map(|value| match value {
        Value::Exact(text) => Wire::Exact(text.into()),
        Value::Regex(regex) => Wire::Regex(regex.into()),
    });
    let name = name.to_owned();
    let found = value.map(|value| proto::HttpValueMatch {
        name,
        value: Some(value),
    });
    found.into_iter().collect()
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

/// Whether a filter replaces a prefix.
pub(crate) fn is_rewrite(of: &proto::HttpFilter) -> bool {
    matches!(of.filter, Some(Filter::Rewrite(_)))
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
