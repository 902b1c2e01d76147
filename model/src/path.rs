//! Path prefixes that a grant shares, and which matches of an HTTPRoute or GRPCRoute lie inside them.
//!
//! Paths are compared by element and as they are written, as proxies match them. Proxies refuse a path that a backend
//! could read as another one (`..`, `%2e`, an escaped slash), so what is written is what is meant.

use std::fmt;
use std::sync::Arc;

use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::http::{HttpMatch, HttpRoute, MethodMatch, PathMatch, ValueMatch};
use crate::key::{Kind, ObjectName};

/// Most bytes of a prefix.
pub const MAX_PREFIX: usize = 255;
/// Most prefixes that a finding lists.
const NAMED: usize = 5;
/// Where CAs look for proof of who controls a domain: tokens of ACME (RFC 8555 section 8.3), and files as the CA/Browser
/// Forum's Baseline Requirements have them (section 3.2.2.4.18). Whoever answers there gets certificates for the name.
const VALIDATION: [&str; 2] = ["/.well-known/acme-challenge", "/.well-known/pki-validation"];

/// The first elements of a path, at least one: `/api` is `/api` and everything below it, and not `/apix`. It has no
/// slash at its end, nothing percent-encoded, no element of dots, and takes in no path where CAs look for proof of a domain.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathPrefix(Arc<str>);

/// Why a text is no prefix that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathPrefixError {
    /// Without a slash at the beginning.
    #[error("does not begin with '/'")]
    Relative,
    /// `/`: that would be the whole name.
    #[error("is every path, and only a part of a name can be shared by path")]
    Everything,
    /// With a slash at the end, or two in a row.
    #[error("has an empty path element")]
    EmptyElement,
    /// `.` or `..`.
    #[error("has a path element of dots")]
    Dots,
    /// A character that is escaped, ends a path, or that backends read in several ways.
    #[error("has a character that a shared path cannot have")]
    Character,
    /// At, above or below a path where CAs look for proof of a domain.
    #[error("takes in a path where CAs look for proof of a domain, or is inside one")]
    Validation,
    /// More than [`MAX_PREFIX`] bytes.
    #[error("has more than 255 characters")]
    TooLong,
}

impl PathPrefix {
    /// Reads a prefix as a grant has it.
    ///
    /// # Errors
    /// If it is no such prefix.
    pub fn parse(text: &str) -> Result<Self, PathPrefixError> {
        let Some(elements) = text.strip_prefix('/') else {
            return Err(PathPrefixError::Relative);
        };
        if elements.is_empty() {
            return Err(PathPrefixError::Everything);
        }
        if text.len() > MAX_PREFIX {
            return Err(PathPrefixError::TooLong);
        }
        for element in elements.split('/') {
            if element.is_empty() {
                return Err(PathPrefixError::EmptyElement);
            }
            if matches!(element, "." | "..") {
                return Err(PathPrefixError::Dots);
            }
            if !element.bytes().all(is_plain) {
                return Err(PathPrefixError::Character);
            }
        }
        let meets = |path| is_at_or_below(text, path) || is_at_or_below(path, text);
        if VALIDATION.into_iter().any(meets) {
            return Err(PathPrefixError::Validation);
        }
        Ok(Self(text.into()))
    }

    /// The prefix as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its elements, of which there is at least one.
    pub fn elements(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').skip(1)
    }

    /// Whether a path as written lies inside. One that a backend could read as another path lies nowhere.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        is_at_or_below(path, &self.0) && is_clear(path)
    }

    /// Whether every request that a match takes has its path inside. A regular expression is not looked into.
    #[must_use]
    pub fn contains_match(&self, path: &PathMatch) -> bool {
        match path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => self.contains(path),
            PathMatch::Method(MethodMatch {
                service: Some(ValueMatch::Exact(service)),
                method,
            }) => match method {
                Some(ValueMatch::Exact(method)) => self.contains(&format!("/{service}/{method}")),
                _ => self.contains(&format!("/{service}")),
            },
            PathMatch::Regex(_) | PathMatch::Method(_) => false,
        }
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What a path element may have and everybody reads alike: RFC 3986's `pchar` without escapes and without `;`, behind
/// which some backends see parameters.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether no backend reads another path: no element of dots and no slash, escaped or not, alone or in front of `;`.
fn is_clear(path: &str) -> bool {
    let text = path.to_ascii_lowercase().replace("%2e", ".");
    let is_dots = |element: &str| {
        let name = element.split(';').next().unwrap_or_default();
        matches!(name.split("%3b").next(), Some("." | ".."))
    };
    !["%2f", "%5c", "\\"]
        .iter()
        .any(|slash| text.contains(slash))
        && !text.split('/').any(is_dots)
}

/// Why a route may not have a hostname of which its namespace has only these parts: its first match that reaches
/// outside them. A rule that is refused for another reason counts, too: it answers what it takes with an error.
#[must_use]
pub fn reaching_outside(
    route: &HttpRoute,
    parts: &[PathPrefix],
    names: &HostPattern,
    gateway: &ObjectName,
) -> Option<Finding> {
    let part = match route.kind {
        Kind::GrpcRoute => "method",
        _ => "path",
    };
    let is_inside = |of: &HttpMatch| parts.iter().any(|part| part.contains_match(&of.path));
    route.rules.iter().find_map(|rule| {
        let index = rule.matches.iter().position(|of| !is_inside(of))?;
        let field = match rule.refusal() {
            // Of matches that cannot be read there is no trace, so places are not what they are in the spec.
            Some(_) => format!("{}.matches", rule.field),
            None => format!("{}.matches[{index}].{part}", rule.field),
        };
        let why = match rule.matches.get(index).map(|of| &of.path) {
            Some(PathMatch::Regex(_)) => "a regular expression may reach outside",
            Some(PathMatch::Method(_)) => "this match takes calls of other services",
            _ => "this match reaches outside",
        };
        Some(Finding::refused(
            crate::condition::Reason::HostnameNotOwned,
            field,
            format!(
                "the namespace shares only {} of hostname \"{names}\" on Gateway {gateway}, and {why}",
                list(parts)
            ),
            if route.kind == Kind::GrpcRoute {
                "match a service that is inside it by type Exact, or leave the hostname to another GRPCRoute"
            } else {
                "use matches of type Exact or PathPrefix inside it, or leave the hostname to another HTTPRoute"
            },
        ))
    })
}

/// `path /api`, or `paths /api, /docs`.
#[must_use]
pub fn list(parts: &[PathPrefix]) -> String {
    let named: Vec<&str> = parts.iter().take(NAMED).map(PathPrefix::as_str).collect();
    let more = match parts.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = if parts.len() == 1 { "path" } else { "paths" };
    format!("{what} {}{more}", named.join(", "))
}
