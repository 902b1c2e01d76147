//! The CORS filter of an HTTPRoute on the wire (`HTTPCORSFilter`) and its conversion.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{Cors, CorsNames, ExposedHeaders, HttpFilter, HttpMatch};
use vestibule_model::origin::OriginPattern;

use super::http_syntax::is_token;
use crate::text::quote;

/// Origins, and headers of either kind (`MaxItems`).
const MAX_ITEMS: usize = 64;
/// Methods (`MaxItems`).
const MAX_METHODS: usize = 9;
/// Longest name of a header (`MaxLength`).
const MAX_NAME: usize = 256;
/// Default of `maxAge` in seconds.
const MAX_AGE: i64 = 5;
/// The methods that `allowMethods` may list, apart from `*`.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// HTTPCORSFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPCORSFilter {
    /// The origins of the pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// Whether with cookies and the like; absent is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_credentials: Option<bool>,
    /// Methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_methods: Vec<String>,
    /// Headers of requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_headers: Vec<String>,
    /// Headers of answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose_headers: Vec<String>,
    /// Seconds, as written; absent is 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<i64>,
}

/// Converts the settings at `field`.
pub(super) fn convert(wire: HTTPCORSFilter, field: &str, findings: &mut Vec<Finding>) -> Cors {
    let credentials = wire.allow_credentials.unwrap_or_default();
    let origins = origins(&wire.allow_origins, credentials, field, findings);
    let mut names = |list: Vec<String>, name: &str, what: &Listed| {
        what.read(list, &format!("{field}.{name}"), findings)
    };
    let methods = names(wire.allow_methods, "allowMethods", &Listed::METHODS);
    let headers = names(wire.allow_headers, "allowHeaders", &Listed::HEADERS);
    let exposed = exposed(wire.expose_headers, credentials, field, findings);
    let max_age = wire.max_age.unwrap_or(MAX_AGE);
    let seconds = u32::try_from(max_age).ok().filter(|age| *age > 0);
    if seconds.is_none() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            format!("{field}.maxAge"),
            format!("{max_age} is not a number of seconds"),
            "use 1 or more",
        ));
    }
    Cors {
        origins,
        credentials,
        methods,
        headers,
        exposed,
        max_age: seconds.unwrap_or(1),
    }
}

/// The headers of `exposeHeaders`, where other names may stand beside `*`.
fn exposed(
    list: Vec<String>,
    credentials: bool,
    field: &str,
    findings: &mut Vec<Finding>,
) -> ExposedHeaders {
    let field = format!("{field}.exposeHeaders");
    let mut names = Listed::HEADERS.names(list, &field, findings);
    // It is a token like other names.
    let count = names.len();
    names.retain(|name| &**name != "*");
    let all = names.len() < count;
    if all && credentials {
        let message = if names.is_empty() {
            "is \"*\", which browsers do not take together with credentials, so it has no effect"
        } else {
            "has \"*\", which browsers do not take together with credentials, so pages may read only the other headers"
        };
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            field,
            message,
            "list the headers",
        ));
    }
    ExposedHeaders { all, names }
}

fn origins(
    texts: &[String],
    credentials: bool,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Vec<OriginPattern> {
    let field = format!("{field}.allowOrigins");
    bounded(texts.len(), MAX_ITEMS, &field, findings);
    let mut origins = Vec::new();
    for (index, text) in texts.iter().take(MAX_ITEMS).enumerate() {
        match OriginPattern::parse(text) {
            Ok(origin) => origins.push(origin),
            Err(error) => findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}[{index}]"),
                format!("{} {error}", quote(text)),
                "use a scheme, a host and perhaps a port, without a path",
            )),
        }
    }
    let any = origins.iter().any(OriginPattern::is_any);
    if any && texts.len() > 1 {
        findings.push(alone(&field));
    }
    if any && credentials {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            field,
            "is \"*\" together with allowCredentials, so every website may act here as the user who visits it",
            "list the origins that may",
        ));
    } else if texts.is_empty() {
        findings.push(Finding::warning(
            Reason::InvalidValue,
            field,
            "is empty, so the filter allows no origin anything",
            "list the origins that may ask",
        ));
    }
    origins
}

fn alone(field: &str) -> Finding {
    Finding::refused(
        Reason::InvalidValue,
        field,
        "has \"*\" beside others",
        "remove the others, or \"*\"",
    )
}

fn bounded(count: usize, max: usize, field: &str, findings: &mut Vec<Finding>) {
    if count > max {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            format!("has {count} entries, and at most {max} are allowed"),
            "remove some",
        ));
    }
}

/// A list of names of methods or headers.
struct Listed {
    max: usize,
    methods: bool,
}

impl Listed {
    const METHODS: Self = Self {
        max: MAX_METHODS,
        methods: true,
    };
    const HEADERS: Self = Self {
        max: MAX_ITEMS,
        methods: false,
    };

    /// The names, or `*` alone.
    fn read(&self, list: Vec<String>, field: &str, findings: &mut Vec<Finding>) -> CorsNames {
        if list.iter().any(|name| name == "*") {
            bounded(list.len(), self.max, field, findings);
            if list.len() > 1 {
                findings.push(alone(field));
            }
            return CorsNames::All;
        }
        CorsNames::Listed(self.names(list, field, findings))
    }

    /// The names, each once. Those of headers are in lower case.
    fn names(&self, list: Vec<String>, field: &str, findings: &mut Vec<Finding>) -> Vec<Arc<str>> {
        bounded(list.len(), self.max, field, findings);
        let mut seen = BTreeSet::new();
        let mut names: Vec<Arc<str>> = Vec::new();
        for (index, name) in list.into_iter().take(self.max).enumerate() {
            let (good, action) = if self.methods {
                let known = METHODS.contains(&name.as_str());
                (known, "use a method of HTTP in capital letters, or \"*\"")
            } else {
                let token = is_token(&name) && name.len() <= MAX_NAME;
                (token, "use letters, digits and '-'")
            };
            if !good {
                let what = if self.methods {
                    "a method"
                } else {
                    "a name of a header"
                };
                findings.push(Finding::refused(
                    Reason::InvalidValue,
                    format!("{field}[{index}]"),
                    format!("{} is not {what}", quote(&name)),
                    action,
                ));
            }
            let name = if self.methods {
                name
            } else {
                name.to_ascii_lowercase()
            };
            if seen.insert(name.clone()) {
                names.push(name.into());
            }
        }
        names
    }
}

/// A warning if no preflight request can reach a rule with such a filter.
pub(super) fn no_preflight(
    filters: &[HttpFilter],
    matches: &[HttpMatch],
    field: &str,
) -> Option<Finding> {
    let cors = filters.iter().any(|of| matches!(of, HttpFilter::Cors(_)));
    let others = |of: &HttpMatch| of.method.as_deref().is_some_and(|of| of != "OPTIONS");
    (cors && !matches.is_empty() && matches.iter().all(others)).then(|| {
        Finding::warning(
            Reason::UnsupportedValue,
            format!("{field}.matches"),
            "take no OPTIONS requests, so the CORS filter of the rule does not see preflight requests",
            "add a match with the method OPTIONS",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_the_wildcard_are_exposed_by_name() {
        for (list, credentials, all, names, warnings) in [
            (&["*", "X-A"][..], true, true, &["x-a"][..], 1),
            (&["X-A", "*", "x-a", "X-B"], false, true, &["x-a", "x-b"], 0),
            (&["X-A"], true, false, &["x-a"], 0),
            (&["*"], true, true, &[], 1),
            (&["*"], false, true, &[], 0),
            (&[], true, false, &[], 0),
        ] {
            let wire = HTTPCORSFilter {
                allow_origins: vec!["https://a.example".into()],
                allow_credentials: Some(credentials),
                expose_headers: list.iter().map(ToString::to_string).collect(),
                ..HTTPCORSFilter::default()
            };
            let mut findings = Vec::new();
            let cors = convert(wire, "cors", &mut findings);
            let expected = ExposedHeaders {
                all,
                names: names.iter().map(|name| Arc::from(*name)).collect(),
            };
            assert_eq!(cors.exposed, expected, "{list:?}");
            assert_eq!(findings.len(), warnings, "{list:?}: {findings:?}");
        }
    }
}
