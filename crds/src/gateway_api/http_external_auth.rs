//! The filter that has requests authorized on the wire (`HTTPExternalAuthFilter`, GEP-1494) and its conversion.
//!
//! The schema demands `http` or `grpc`, while the text of the API says that absent settings are the defaults. The schema
//! also allows a `path` that does not begin with a slash, or that has dots in it. Here the text counts in the first case,
//! and in the second one such a path is refused, because it would lead to another place than its author means.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{AuthProtocol, ExternalAuth};

use super::http_match::path_problem;
use super::http_syntax::{FRAMING, is_token};
use super::route::{self, BackendRef};
use crate::text::quote;

/// Headers per list (`MaxItems`).
const MAX_HEADERS: usize = 64;
/// Longest name of a header.
const MAX_NAME: usize = 256;
/// Longest path (`MaxLength`).
const MAX_PATH: usize = 1024;
/// Headers that every server that speaks HTTP gets, whatever is listed.
const ALWAYS: [&str; 3] = ["authorization", "content-length", "host"];

/// HTTPExternalAuthFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPExternalAuthFilter {
    /// HTTP or GRPC.
    #[serde(default)]
    pub protocol: String,
    /// The authorization server; it has no weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_ref: Option<BackendRef>,
    /// Of protocol GRPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GRPCAuthConfig>,
    /// Of protocol HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HTTPAuthConfig>,
    /// Whether the server gets the body of the request; absent is no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_body: Option<ForwardBodyConfig>,
}

/// GRPCAuthConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GRPCAuthConfig {
    /// Headers of the request that the server gets; none is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_headers: Vec<String>,
}

/// HTTPAuthConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPAuthConfig {
    /// The prefix in front of the path of the request; absent or empty is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Headers of the request that the server gets, in addition to those that it always gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_headers: Vec<String>,
    /// Headers of the server's response that the backend gets; none is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_response_headers: Vec<String>,
}

/// ForwardBodyConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForwardBodyConfig {
    /// Most bytes of a body, as written; absent or 0 is no body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<i64>,
}

/// Converts the settings at `field`. It is `None` if nothing can be made of them, and then a finding refuses the rule.
pub(super) fn convert(
    wire: HTTPExternalAuthFilter,
    namespace: &Arc<str>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Option<ExternalAuth> {
    let mut reader = Reader { field, findings };
    let protocol = reader.protocol(&wire.protocol, wire.http, wire.grpc);
    let max_body = reader.max_body(&wire.forward_body.unwrap_or_default());
    let Some(backend_ref) = wire.backend_ref else {
        let message = "is absent, and it names the server that authorizes requests";
        reader.refuse(Reason::InvalidValue, "backendRef", message.into(), "add it");
        return None;
    };
    let backend = route::backend(
        BackendRef {
            weight: None,
            ..backend_ref
        },
        namespace,
        format!("{field}.backendRef"),
        findings,
    );
    Some(ExternalAuth {
        backend,
        protocol: protocol?,
        max_body,
    })
}

struct Reader<'a> {
    field: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    fn refuse(&mut self, reason: Reason, part: &str, message: String, action: &str) {
        let field = format!("{}.{part}", self.field);
        self.findings
            .push(Finding::refused(reason, field, message, action));
    }

    fn protocol(
        &mut self,
        name: &str,
        http: Option<HTTPAuthConfig>,
        grpc: Option<GRPCAuthConfig>,
    ) -> Option<AuthProtocol> {
        match name {
            "HTTP" => {
                if grpc.is_some() {
                    self.belongs_to("grpc", "GRPC");
                }
                let http = http.unwrap_or_default();
                let mut request_headers =
                    self.request_headers(&http.allowed_headers, "http.allowedHeaders");
                request_headers.retain(|name| !ALWAYS.contains(&&**name));
                Some(AuthProtocol::Http {
                    path_prefix: self.path(&http.path.unwrap_or_default()),
                    request_headers,
                    response_headers: self.response_headers(&http.allowed_response_headers),
                })
            }
            "GRPC" => {
                if http.is_some() {
                    self.belongs_to("http", "HTTP");
                }
                let grpc = grpc.unwrap_or_default();
                Some(AuthProtocol::Grpc {
                    request_headers: self
                        .request_headers(&grpc.allowed_headers, "grpc.allowedHeaders"),
                })
            }
            other => {
                let message = format!("{} is a protocol this release does not know", quote(other));
                self.refuse(
                    Reason::UnsupportedValue,
                    "protocol",
                    message,
                    "use HTTP or GRPC",
                );
                None
            }
        }
    }

    fn belongs_to(&mut self, part: &str, protocol: &str) {
        let message = format!("is for protocol {protocol}");
        let action = "remove it, or change the protocol";
        self.refuse(Reason::InvalidValue, part, message, action);
    }

    /// The prefix without slashes at its end.
    fn path(&mut self, path: &str) -> Arc<str> {
        let part = "http.path";
        if path.len() > MAX_PATH {
            let message = format!("is longer than {MAX_PATH} bytes");
            self.refuse(Reason::InvalidValue, part, message, "shorten it");
        } else if let Some((problem, action)) = prefix_problem(path) {
            let message = format!("{} {problem}", quote(path));
            self.refuse(Reason::InvalidValue, part, message, action);
        }
        path.trim_end_matches('/').into()
    }

    /// Headers of requests. Those that say where a body ends or that are about one connection are the proxy's own in a
    /// request to the server, except that everybody may know the length of the body.
    fn request_headers(&mut self, names: &[String], part: &str) -> Vec<Arc<str>> {
        let may_be = |name: &str| name == "content-length" || !FRAMING.contains(&name);
        self.headers(names, part, may_be)
    }

    /// Headers of responses, which become headers of the request to the backend. There the proxy writes those that say
    /// where a body ends, and the host decides where the request goes.
    fn response_headers(&mut self, names: &[String]) -> Vec<Arc<str>> {
        let may_be = |name: &str| name != "host" && !FRAMING.contains(&name);
        self.headers(names, "http.allowedResponseHeaders", may_be)
    }

    /// The names in lower case, each once.
    fn headers(
        &mut self,
        names: &[String],
        part: &str,
        may_be: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        let count = names.len();
        if count > MAX_HEADERS {
            let message = format!("has {count} entries, and at most {MAX_HEADERS} are allowed");
            self.refuse(Reason::InvalidValue, part, message, "remove some");
        }
        let mut seen = BTreeSet::new();
        let mut read: Vec<Arc<str>> = Vec::new();
        for (index, name) in names.iter().take(MAX_HEADERS).enumerate() {
            let lower: Arc<str> = name.to_ascii_lowercase().into();
            if !is_token(name) || name.len() > MAX_NAME {
                let message = format!("{} is not a name of a header", quote(name));
                self.refuse(
                    Reason::InvalidValue,
                    &format!("{part}[{index}]"),
                    message,
                    "use letters, digits and '-'",
                );
            } else if !may_be(&lower) {
                let message = format!("{} is the proxy's own to write", quote(name));
                self.refuse(
                    Reason::UnsupportedValue,
                    &format!("{part}[{index}]"),
                    message,
                    "remove it",
                );
            } else if seen.insert(lower.clone()) {
                read.push(lower);
            }
        }
        read
    }

    fn max_body(&mut self, wire: &ForwardBodyConfig) -> u16 {
        let bytes = wire.max_size.unwrap_or_default();
        u16::try_from(bytes).unwrap_or_else(|_| {
            self.refuse(
                Reason::InvalidValue,
                "forwardBody.maxSize",
                format!("{bytes} is not a number of bytes that a server can get"),
                "use a number from 0 to 65535",
            );
            0
        })
    }
}

/// Why a path cannot stand before the paths of requests, if so, and what to do. An empty one is none.
fn prefix_problem(path: &str) -> Option<(&'static str, &'static str)> {
    if path.is_empty() {
        return None;
    }
    let problem = path_problem(path);
    problem.or_else(|| {
        let lower = path.to_ascii_lowercase();
        // A server may cut off what follows a semicolon, and see dots then.
        let is_dots = |element: &str| matches!(element.split(';').next(), Some("." | ".."));
        if lower.contains("%2e") {
            Some(("has an encoded '.'", "write '.'"))
        } else if lower.contains("%5c") {
            Some(("has an encoded '\\'", "use other characters"))
        } else if path.split('/').any(is_dots) {
            Some(("has a path element of dots", "write the path that it means"))
        } else {
            None
        }
    })
}
