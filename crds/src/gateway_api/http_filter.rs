//! Filters of an HTTPRoute on the wire and their conversion.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::Hostname;
use vestibule_model::http::{
    HeaderModifier, HttpFilter, HttpMatch, PathMatch, PathModifier, Redirect, Rewrite, Scheme,
};
use vestibule_model::key::Kind;

use super::http_cors::{self, HTTPCORSFilter};
use super::http_external_auth::{self, HTTPExternalAuthFilter};
use super::http_mirror::{self, HTTPRequestMirrorFilter};
use super::http_syntax::{FRAMING, is_path, is_token};
use super::listener::port;
use super::reference::LocalObjectReference;
use super::route::at_most;
use crate::names;
use crate::text::quote;

/// Filters per list (`MaxItems`).
pub(super) const MAX_FILTERS: usize = 16;
/// Headers per action (`MaxItems`).
const MAX_HEADERS: usize = 16;
/// Longest name of a header (`MaxLength`).
const MAX_NAME: usize = 256;
/// Longest value of a header (`MaxLength`).
const MAX_VALUE: usize = 4096;
/// Longest path (`MaxLength`).
const MAX_PATH: usize = 1024;

/// HTTPRouteFilter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteFilter {
    /// Which of the others it has.
    #[serde(rename = "type")]
    pub kind: String,
    /// RequestHeaderModifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HTTPHeaderFilter>,
    /// ResponseHeaderModifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HTTPHeaderFilter>,
    /// RequestMirror.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mirror: Option<HTTPRequestMirrorFilter>,
    /// RequestRedirect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<HTTPRequestRedirectFilter>,
    /// URLRewrite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_rewrite: Option<HTTPURLRewriteFilter>,
    /// CORS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<HTTPCORSFilter>,
    /// ExternalAuth (experimental).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_auth: Option<HTTPExternalAuthFilter>,
    /// ExtensionRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_ref: Option<LocalObjectReference>,
}

impl HTTPRouteFilter {
    /// Whether it answers with a redirect.
    pub(super) fn redirects(&self) -> bool {
        self.kind == "RequestRedirect"
    }

    /// The types for which it has settings.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        [
            (
                "RequestHeaderModifier",
                self.request_header_modifier.is_some(),
            ),
            (
                "ResponseHeaderModifier",
                self.response_header_modifier.is_some(),
            ),
            ("RequestMirror", self.request_mirror.is_some()),
            ("RequestRedirect", self.request_redirect.is_some()),
            ("URLRewrite", self.url_rewrite.is_some()),
            ("CORS", self.cors.is_some()),
            ("ExternalAuth", self.external_auth.is_some()),
            ("ExtensionRef", self.extension_ref.is_some()),
        ]
        .into_iter()
        .filter_map(|(kind, given)| given.then_some(kind))
    }
}

/// HTTPHeaderFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPHeaderFilter {
    /// Replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<HTTPHeader>,
    /// Appended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<HTTPHeader>,
    /// Removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// HTTPHeader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPHeader {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// HTTPRequestRedirectFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRequestRedirectFilter {
    /// http or https.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// Hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<HTTPPathModifier>,
    /// Port, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Status, as written; absent is 302.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i64>,
}

/// HTTPURLRewriteFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPURLRewriteFilter {
    /// Hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<HTTPPathModifier>,
}

/// HTTPPathModifier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPPathModifier {
    /// ReplaceFullPath or ReplacePrefixMatch.
    #[serde(rename = "type")]
    pub kind: String,
    /// For ReplaceFullPath.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    /// For ReplacePrefixMatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_prefix_match: Option<String>,
}

/// The filters of a rule or backend at `field`. A filter that is not supported refuses the rule.
pub(super) fn convert_all(
    wire: Vec<HTTPRouteFilter>,
    field: &str,
    namespace: &Arc<str>,
    matches: &[HttpMatch],
    findings: &mut Vec<Finding>,
) -> Vec<HttpFilter> {
    let field = format!("{field}.filters");
    at_most(Kind::HttpRoute, wire.len(), MAX_FILTERS, &field, findings);
    let by_prefix = matches!(matches, [one] if matches!(one.path, PathMatch::Prefix(_)));
    // If there are more, the rule is refused, so no request passes without the rest.
    let mut seen = BTreeSet::new();
    let mut filters = Vec::new();
    for (index, wire) in wire.into_iter().take(MAX_FILTERS).enumerate() {
        let field = format!("{field}[{index}]");
        let opposite = match wire.kind.as_str() {
            "RequestRedirect" => "URLRewrite",
            "URLRewrite" => "RequestRedirect",
            _ => "",
        };
        if seen.contains(opposite) {
            findings.push(Finding::refused(
                Reason::IncompatibleFilters,
                field.clone(),
                "stands beside its opposite: a request is either redirected or rewritten",
                "remove one of them",
            ));
        }
        let may_repeat = matches!(wire.kind.as_str(), "ExtensionRef" | "RequestMirror");
        if !seen.insert(wire.kind.clone()) && !may_repeat {
            findings.push(Finding::refused(
                Reason::IncompatibleFilters,
                field.clone(),
                format!("is a second filter of type {}", quote(&wire.kind)),
                "put all of it into one filter",
            ));
        }
        let mut reader = Reader {
            field,
            by_prefix,
            findings: &mut *findings,
        };
        filters.extend(reader.read(wire, namespace));
    }
    filters
}

/// Reads one filter.
struct Reader<'a> {
    field: String,
    /// Whether the rule has exactly one match, and that is one of a path prefix.
    by_prefix: bool,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    fn refuse(&mut self, reason: Reason, part: &str, message: String, action: &str) {
        let field = format!("{}.{part}", self.field);
        self.findings
            .push(Finding::refused(reason, field, message, action));
    }

    fn read(&mut self, wire: HTTPRouteFilter, namespace: &Arc<str>) -> Option<HttpFilter> {
        if let Some(other) = wire.given().find(|given| *given != wire.kind) {
            let message = format!(
                "is {}, and the filter has settings of {other}",
                quote(&wire.kind)
            );
            self.refuse(
                Reason::InvalidValue,
                "type",
                message,
                "make it one filter per type",
            );
        }
        let filter = match wire.kind.as_str() {
            "RequestHeaderModifier" => wire.request_header_modifier.map(|headers| {
                HttpFilter::RequestHeaders(self.headers(headers, "requestHeaderModifier"))
            }),
            "ResponseHeaderModifier" => wire.response_header_modifier.map(|headers| {
                HttpFilter::ResponseHeaders(self.headers(headers, "responseHeaderModifier"))
            }),
            "RequestRedirect" => wire
                .request_redirect
                .map(|redirect| HttpFilter::Redirect(self.redirect(redirect))),
            "URLRewrite" => wire
                .url_rewrite
                .map(|rewrite| HttpFilter::Rewrite(self.rewrite(rewrite))),
            "CORS" => wire.cors.map(|cors| {
                let field = format!("{}.cors", self.field);
                HttpFilter::Cors(http_cors::convert(cors, &field, self.findings))
            }),
            "RequestMirror" => wire.request_mirror.map(|mirror| {
                let field = format!("{}.requestMirror", self.field);
                let mirror = http_mirror::convert(mirror, namespace, &field, self.findings);
                HttpFilter::Mirror(mirror)
            }),
            "ExternalAuth" => match wire.external_auth {
                Some(auth) => {
                    let field = format!("{}.externalAuth", self.field);
                    let auth = http_external_auth::convert(auth, namespace, &field, self.findings);
                    return auth.map(HttpFilter::Auth);
                }
                None => None,
            },
            "ExtensionRef" => wire.extension_ref.map(|reference| {
                let field = format!("{}.extensionRef", self.field);
                HttpFilter::Extension(reference.convert(namespace, field))
            }),
            other => {
                let message = format!("{} is a type this release does not know", quote(other));
                let action = "remove the filter, or upgrade Vestibule";
                self.refuse(Reason::UnsupportedValue, "type", message, action);
                return None;
            }
        };
        if filter.is_none() {
            let message = format!("is {}, and its settings are absent", wire.kind);
            self.refuse(Reason::InvalidValue, "type", message, "add them");
        }
        filter
    }

    fn headers(&mut self, wire: HTTPHeaderFilter, part: &str) -> HeaderModifier {
        let mut modifier = HeaderModifier::default();
        // Each name may occur in one action only. Within an action, the first entry of a name counts.
        let mut elsewhere: BTreeSet<Arc<str>> = BTreeSet::new();
        for (action, list) in [("set", wire.set), ("add", wire.add)] {
            let part = format!("{part}.{action}");
            self.bounded(&part, list.len());
            let mut here = BTreeSet::new();
            let mut kept = Vec::new();
            for (index, header) in list.into_iter().take(MAX_HEADERS).enumerate() {
                let part = format!("{part}[{index}]");
                let name = self.header_name(&header.name, &part, &elsewhere);
                // White space around a value is not part of it.
                let value = header.value.trim_matches([' ', '\t']);
                if value.is_empty()
                    || value.len() > MAX_VALUE
                    || value
                        .bytes()
                        .any(|b| b != b'\t' && !(b' '..=b'~').contains(&b))
                {
                    let message = format!("{} is not a value of a header", quote(&header.value));
                    self.refuse(
                        Reason::InvalidValue,
                        &format!("{part}.value"),
                        message,
                        "use printable ASCII characters",
                    );
                }
                if here.insert(name.clone()) {
                    kept.push((name, value.into()));
                } else {
                    let field = format!("{}.{part}", self.field);
                    self.findings.push(Finding::warning(
                        Reason::Duplicate,
                        field,
                        format!("repeats the name {}, so it is left out", quote(&name)),
                        "join the values with a comma",
                    ));
                }
            }
            elsewhere.extend(here);
            match action {
                "set" => modifier.set = kept,
                _ => modifier.add = kept,
            }
        }
        let part = format!("{part}.remove");
        self.bounded(&part, wire.remove.len());
        let mut removed = BTreeSet::new();
        for (index, name) in wire.remove.iter().take(MAX_HEADERS).enumerate() {
            let name = self.header_name(name, &format!("{part}[{index}]"), &elsewhere);
            if removed.insert(name.clone()) {
                modifier.remove.push(name);
            }
        }
        modifier
    }

    fn bounded(&mut self, part: &str, count: usize) {
        if count > MAX_HEADERS {
            let message = format!("has {count} entries, and at most {MAX_HEADERS} are allowed");
            self.refuse(Reason::InvalidValue, part, message, "remove some");
        }
    }

    fn header_name(&mut self, name: &str, part: &str, elsewhere: &BTreeSet<Arc<str>>) -> Arc<str> {
        let lower: Arc<str> = name.to_ascii_lowercase().into();
        if !is_token(name) || name.len() > MAX_NAME {
            let message = format!("{} is not a name of a header", quote(name));
            self.refuse(
                Reason::InvalidValue,
                part,
                message,
                "use letters, digits and '-'",
            );
        } else if FRAMING.contains(&&*lower) {
            let message = format!("{} is the proxy's own to write", quote(name));
            self.refuse(Reason::UnsupportedValue, part, message, "remove it");
        } else if &*lower == "host" {
            let message = format!("{} decides where a request goes", quote(name));
            self.refuse(
                Reason::UnsupportedValue,
                part,
                message,
                "use a URLRewrite filter with a hostname",
            );
        } else if elsewhere.contains(&lower) {
            let message = format!("{} has another action in this filter", quote(name));
            self.refuse(
                Reason::InvalidValue,
                part,
                message,
                "give each header one action",
            );
        }
        lower
    }

    fn redirect(&mut self, wire: HTTPRequestRedirectFilter) -> Redirect {
        let scheme = match wire.scheme.as_deref() {
            None | Some("") => None,
            Some("http") => Some(Scheme::Http),
            Some("https") => Some(Scheme::Https),
            Some(other) => {
                let message = format!("{} is a scheme this release does not know", quote(other));
                self.refuse(
                    Reason::UnsupportedValue,
                    "requestRedirect.scheme",
                    message,
                    "use http or https",
                );
                None
            }
        };
        let status = match wire.status_code.unwrap_or(302) {
            301 => 301,
            303 => 303,
            307 => 307,
            308 => 308,
            302 => 302,
            other => {
                self.refuse(
                    Reason::UnsupportedValue,
                    "requestRedirect.statusCode",
                    format!("{other} is not a status of a redirection"),
                    "use 301, 302, 303, 307 or 308",
                );
                302
            }
        };
        let port_field = format!("{}.requestRedirect.port", self.field);
        Redirect {
            scheme,
            hostname: self.hostname(wire.hostname.as_deref(), "requestRedirect.hostname"),
            port: wire
                .port
                .and_then(|number| port(number, &port_field, self.findings)),
            path: wire
                .path
                .and_then(|path| self.path(path, "requestRedirect.path")),
            status,
        }
    }

    fn rewrite(&mut self, wire: HTTPURLRewriteFilter) -> Rewrite {
        Rewrite {
            hostname: self.hostname(wire.hostname.as_deref(), "urlRewrite.hostname"),
            path: wire
                .path
                .and_then(|path| self.path(path, "urlRewrite.path")),
        }
    }

    fn hostname(&mut self, text: Option<&str>, part: &str) -> Option<Hostname> {
        let text = text.filter(|text| !text.is_empty())?;
        match Hostname::parse(text) {
            Ok(hostname) => Some(hostname),
            Err(error) => {
                let field = format!("{}.{part}", self.field);
                self.findings
                    .push(names::not_a_hostname(field, text, &error));
                None
            }
        }
    }

    fn path(&mut self, wire: HTTPPathModifier, part: &str) -> Option<PathModifier> {
        let (value, name, full) = match wire.kind.as_str() {
            "ReplaceFullPath" => (wire.replace_full_path, "replaceFullPath", true),
            "ReplacePrefixMatch" => (wire.replace_prefix_match, "replacePrefixMatch", false),
            other => {
                let message = format!("{} is a type this release does not know", quote(other));
                self.refuse(
                    Reason::UnsupportedValue,
                    &format!("{part}.type"),
                    message,
                    "use ReplaceFullPath or ReplacePrefixMatch",
                );
                return None;
            }
        };
        let Some(value) = value else {
            self.refuse(
                Reason::InvalidValue,
                &format!("{part}.{name}"),
                "is absent".into(),
                "add it",
            );
            return None;
        };
        if !is_path(&value) || value.len() > MAX_PATH {
            let message = format!("{} is not a path", quote(&value));
            self.refuse(
                Reason::InvalidValue,
                &format!("{part}.{name}"),
                message,
                "use a path such as \"/new\", without a query",
            );
        }
        if !full && !self.by_prefix {
            self.refuse(
                Reason::InvalidValue,
                &format!("{part}.type"),
                "replaces a prefix, and the rule does not have exactly one match of type PathPrefix"
                    .into(),
                "give the rule one such match, or use ReplaceFullPath",
            );
        }
        // A path begins with '/'. Only an empty prefix does not.
        let value = if value.starts_with('/') || (value.is_empty() && !full) {
            value
        } else {
            format!("/{value}")
        };
        Some(if full {
            PathModifier::Full(value.into())
        } else {
            PathModifier::Prefix(value.into())
        })
    }
}

/// The findings about those filters of the backend at `field` that only rules have.
pub(super) fn only_of_rules(wire: &[HTTPRouteFilter], field: &str) -> Vec<Finding> {
    let filters = wire.iter().take(MAX_FILTERS).enumerate();
    let refused = filters.filter(|(_, filter)| filter.kind == "ExternalAuth");
    refused
        .map(|(index, _)| {
            Finding::refused(
                Reason::UnsupportedValue,
                format!("{field}.filters[{index}].type"),
                "ExternalAuth is a filter of rules, and not of single backends",
                "move it to the filters of the rule",
            )
        })
        .collect()
}

/// Whether some kind of route has this type of filter.
pub(super) fn is_known(kind: &str) -> bool {
    [
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestMirror",
        "RequestRedirect",
        "URLRewrite",
        "CORS",
        "ExternalAuth",
        "ExtensionRef",
    ]
    .contains(&kind)
}
