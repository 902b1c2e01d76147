//! Matches of an HTTPRoute on the wire and their conversion.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{HttpMatch, PathMatch, ValueMatch};
use vestibule_model::key::Kind;
use vestibule_model::pattern::{MAX_PATTERN, Pattern};

use super::http_syntax::{is_path, is_token};
use crate::text::quote;

/// Matches per rule (`MaxItems`).
const MAX_MATCHES: usize = 64;
/// Matches per route (a rule of the CRD).
const MAX_MATCHES_OF_ROUTE: usize = 128;
/// Most bytes that the regular expressions of a route may take together when they are compiled. Every proxy holds them.
/// Most expressions take one to five KiB.
const MAX_PATTERNS_OF_ROUTE: usize = 512 << 10;
/// Headers, and query parameters, per match (`MaxItems`).
const MAX_VALUES: usize = 16;
/// Longest path, and longest value of a query parameter (`MaxLength`).
pub(super) const MAX_TEXT: usize = 1024;
/// Longest value of a header (`MaxLength`).
const MAX_HEADER: usize = 4096;
/// Methods (`Enum`).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// HTTPRouteMatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteMatch {
    /// Path; absent is the prefix "/".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<HTTPPathMatch>,
    /// Headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HTTPValueMatch>,
    /// Query parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query_params: Vec<HTTPValueMatch>,
    /// Method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// HTTPPathMatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPPathMatch {
    /// Exact, PathPrefix (the default) or RegularExpression.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Value; absent is "/".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// HTTPHeaderMatch and HTTPQueryParamMatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPValueMatch {
    /// Exact (the default) or RegularExpression.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the header or parameter.
    pub name: String,
    /// Value.
    pub value: String,
}

/// The limits of one route, and how much of them is used.
#[derive(Debug)]
pub(super) struct Budget {
    /// Kind of the route.
    kind: Kind,
    matches: usize,
    /// Bytes that compiled regular expressions take. An expression that is refused for its size counts as a large one,
    /// because finding that out takes as long.
    patterns: usize,
    /// A refusal of the whole route for each rule with more matches than count. If only the rule were refused, other
    /// rules would serve what the rest of its matches are for, perhaps without its filters.
    pub(super) refusals: Vec<Finding>,
}

impl Budget {
    /// The limits of a route of this kind.
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind,
            matches: 0,
            patterns: 0,
            refusals: Vec::new(),
        }
    }

    /// How many matches of the rule at `field` count. If there are more, the route is refused.
    pub(super) fn take(&mut self, count: usize, field: &str) -> usize {
        let room = MAX_MATCHES.min(MAX_MATCHES_OF_ROUTE - self.matches);
        if count > room {
            self.refusals.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.matches"),
                format!(
                    "has {count} entries, and at most {MAX_MATCHES} per rule and {MAX_MATCHES_OF_ROUTE} per \
                     route are allowed"
                ),
                format!("spread them over more {}s", self.kind),
            ));
        }
        let taken = count.min(room);
        self.matches += taken;
        taken
    }
}

/// The matches of a rule of an HTTPRoute that can be read. Every other one refuses the rule.
pub(super) fn convert_all(
    wire: Vec<HTTPRouteMatch>,
    field: &str,
    budget: &mut Budget,
    findings: &mut Vec<Finding>,
) -> Vec<HttpMatch> {
    convert_each(wire, field, budget, findings, read)
}

/// The matches of the rule at `field` that can be read. Every other one refuses the rule. `read` reads one match.
pub(super) fn convert_each<W>(
    wire: Vec<W>,
    field: &str,
    budget: &mut Budget,
    findings: &mut Vec<Finding>,
    read: impl Fn(&mut MatchReader<'_>, W) -> HttpMatch,
) -> Vec<HttpMatch> {
    let room = budget.take(wire.len(), field);
    let mut matches = Vec::new();
    for (index, wire) in wire.into_iter().take(room).enumerate() {
        let mut reader = MatchReader {
            field: format!("{field}.matches[{index}]"),
            budget,
            findings,
            whole: true,
        };
        let converted = read(&mut reader, wire);
        if reader.whole {
            matches.push(converted);
        }
    }
    matches
}

fn read(reader: &mut MatchReader<'_>, wire: HTTPRouteMatch) -> HttpMatch {
    let method = wire.method.map(Arc::from);
    if let Some(method) = &method
        && !METHODS.contains(&&**method)
    {
        reader.refuse(
            Reason::UnsupportedValue,
            "method",
            format!("{} is a method this release does not know", quote(method)),
            "use one of the standard methods, in upper case",
        );
    }
    HttpMatch {
        path: reader.path(&wire.path.unwrap_or_default()),
        headers: reader.values(wire.headers, "headers"),
        query: reader.values(wire.query_params, "queryParams"),
        method,
    }
}

/// Reads one match, and remembers whether all of it could be read.
pub(super) struct MatchReader<'a> {
    field: String,
    budget: &'a mut Budget,
    findings: &'a mut Vec<Finding>,
    whole: bool,
}

impl MatchReader<'_> {
    pub(super) fn refuse(&mut self, reason: Reason, part: &str, message: String, action: &str) {
        self.whole = false;
        let field = format!("{}.{part}", self.field);
        self.findings
            .push(Finding::refused(reason, field, message, action));
    }

    fn path(&mut self, wire: &HTTPPathMatch) -> PathMatch {
        let value: Arc<str> = wire.value.as_deref().unwrap_or("/").into();
        if value.len() > MAX_TEXT {
            self.too_long("path.value", MAX_TEXT);
        }
        match wire.kind.as_deref().unwrap_or("PathPrefix") {
            "RegularExpression" => {
                return match self.pattern(&value, "path.value") {
                    Some(pattern) => PathMatch::Regex(pattern),
                    None => PathMatch::Exact(value),
                };
            }
            kind @ ("Exact" | "PathPrefix") => {
                if let Some((problem, action)) = path_problem(&value) {
                    let message = format!("{} {problem}", quote(&value));
                    self.refuse(Reason::InvalidValue, "path.value", message, action);
                }
                if kind == "PathPrefix" {
                    return PathMatch::Prefix(value);
                }
            }
            other => self.unknown_type("path.type", other),
        }
        PathMatch::Exact(value)
    }

    pub(super) fn values(
        &mut self,
        wire: Vec<HTTPValueMatch>,
        part: &str,
    ) -> Vec<(Arc<str>, ValueMatch)> {
        if wire.len() > MAX_VALUES {
            let message = format!(
                "has {} entries, and at most {MAX_VALUES} are allowed",
                wire.len()
            );
            self.refuse(Reason::InvalidValue, part, message, "remove some");
        }
        let headers = part == "headers";
        let mut seen = BTreeSet::new();
        let mut values = Vec::new();
        for (index, wire) in wire.into_iter().take(MAX_VALUES).enumerate() {
            let part = format!("{part}[{index}]");
            if !is_token(&wire.name) {
                let message = format!("{} is not a name", quote(&wire.name));
                let action = "use letters, digits and '-'";
                self.refuse(
                    Reason::InvalidValue,
                    &format!("{part}.name"),
                    message,
                    action,
                );
            }
            let name: Arc<str> = if headers {
                wire.name.to_ascii_lowercase().into()
            } else {
                wire.name.into()
            };
            // Of several entries with one name, only the first counts.
            if !seen.insert(name.clone()) {
                let field = format!("{}.{part}", self.field);
                self.findings.push(Finding::warning(
                    Reason::Duplicate,
                    field,
                    format!("repeats the name {}, so it is left out", quote(&name)),
                    "remove it",
                ));
                continue;
            }
            let value = self.value(&wire.value, wire.kind.as_deref(), headers, &part);
            values.push((name, value));
        }
        values
    }

    fn value(&mut self, text: &str, kind: Option<&str>, headers: bool, part: &str) -> ValueMatch {
        let max = if headers { MAX_HEADER } else { MAX_TEXT };
        if text.len() > max {
            self.too_long(&format!("{part}.value"), max);
        }
        match kind.unwrap_or("Exact") {
            "Exact" => {}
            "RegularExpression" => {
                if let Some(pattern) = self.pattern(text, &format!("{part}.value")) {
                    return ValueMatch::Regex(pattern);
                }
            }
            other => self.unknown_type(&format!("{part}.type"), other),
        }
        ValueMatch::Exact(text.into())
    }

    pub(super) fn pattern(&mut self, text: &str, part: &str) -> Option<Pattern> {
        // If the budget is already used up, the expression is not even compiled.
        let is_over = self.budget.patterns >= MAX_PATTERNS_OF_ROUTE;
        let parsed = (!is_over).then(|| Pattern::parse(text));
        self.budget.patterns += match &parsed {
            Some(Ok(pattern)) => pattern.size(),
            Some(Err(_)) => MAX_PATTERN,
            None => 0,
        };
        match parsed {
            Some(Ok(pattern)) if self.budget.patterns <= MAX_PATTERNS_OF_ROUTE => {
                return Some(pattern);
            }
            Some(Err(error)) => {
                let message = format!("{} {error}", quote(text));
                self.refuse(Reason::InvalidValue, part, message, error.action());
            }
            Some(Ok(_)) | None => self.refuse(
                Reason::InvalidValue,
                part,
                format!(
                    "is beyond the {} KiB that the regular expressions of one route may take when \
                     they are compiled",
                    MAX_PATTERNS_OF_ROUTE >> 10
                ),
                &format!(
                    "use exact values{}, or spread the matches over more {}s",
                    if self.budget.kind == Kind::HttpRoute {
                        " or prefixes"
                    } else {
                        ""
                    },
                    self.budget.kind
                ),
            ),
        }
        None
    }

    pub(super) fn too_long(&mut self, part: &str, max: usize) {
        let message = format!("is longer than {max} bytes");
        self.refuse(Reason::InvalidValue, part, message, "shorten it");
    }

    pub(super) fn unknown_type(&mut self, part: &str, kind: &str) {
        self.refuse(
            Reason::UnsupportedValue,
            part,
            format!("{} is a type this release does not know", quote(kind)),
            &format!(
                "use one that the API of {} has, or upgrade Vestibule",
                self.budget.kind
            ),
        );
    }
}

/// Why a path cannot be matched, if so, and what to do. Proxies and backends may read such paths differently, so
/// requests with them are refused.
pub(super) fn path_problem(path: &str) -> Option<(&'static str, &'static str)> {
    let lower = path.to_ascii_lowercase();
    let ends = |end: &str| path.ends_with(end);
    if !path.starts_with('/') {
        Some(("does not begin with '/'", "begin it with '/'"))
    } else if path.contains("//") {
        Some(("has an empty path element", "remove the second '/'"))
    } else if ["/./", "/../"].iter().any(|dots| path.contains(dots)) || ends("/.") || ends("/..") {
        Some(("has a path element of dots", "write the path that it means"))
    } else if lower.contains("%2f") {
        Some(("has an encoded '/'", "write '/'"))
    } else if !is_path(path) {
        Some((
            "has characters that a path cannot have",
            "percent-encode them",
        ))
    } else {
        None
    }
}
