//! Path prefixes that a grant shares, and the check whether the matches of an HTTPRoute or GRPCRoute lie inside them.
//!
//! Paths are compared element by element and as they are written, in the same way as the proxies match them. The
//! proxies refuse a path that a backend could read as another one (`..`, `%2e`, an escaped slash). So a path cannot
//! look as if it were inside a prefix and be read as one outside.

use std::fmt;
use std::sync::Arc;

use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::http::{HttpMatch, HttpRoute, MethodMatch, PathMatch, ValueMatch};
use crate::key::{Kind, ObjectName};

/// Longest prefix in bytes.
pub const MAX_PREFIX: usize = 255;
/// Most prefixes that a finding lists.
const NAMED: usize = 5;
/// Paths where CAs look for proof of control over a domain: tokens of ACME (RFC 8555 section 8.3), and the files of the
/// CA/Browser Forum's Baseline Requirements (section 3.2.2.4.18). Anybody who answers there can get certificates for
/// the name, so a grant never shares these paths.
const VALIDATION: [&str; 2] = ["/.well-known/acme-challenge", "/.well-known/pki-validation"];

/// The first elements of a path, at least one: `/api` contains `/api` and everything below it, but not `/apix`.
///
/// A prefix has no slash at its end, nothing percent-encoded, and no element of dots. It contains no path where CAs
/// look for proof of control over a domain.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathPrefix(Arc<str>);

/// Why a text is not a prefix that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathPrefixError {
    /// It does not begin with a slash.
    #[error("does not begin with '/'")]
    Relative,
    /// It is `/`, which would share the whole name.
    #[error("is every path, and only a part of a name can be shared by path")]
    Everything,
    /// It ends with a slash, or has two in a row.
    #[error("has an empty path element")]
    EmptyElement,
    /// It has an element `.` or `..`.
    #[error("has a path element of dots")]
    Dots,
    /// It has a character that is escaped, that ends a path, or that backends read in different ways.
    #[error("has a character that a shared path cannot have")]
    Character,
    /// It is at, above or below a path where CAs look for proof of control over a domain.
    #[error("takes in a path where CAs look for proof of a domain, or is inside one")]
    Validation,
    /// It has more than [`MAX_PREFIX`] bytes.
    #[error("has more than 255 characters")]
    TooLong,
}

impl PathPrefix {
    /// Reads a prefix as it is written in a grant.
    ///
    /// # Errors
    /// If it is not a prefix that can be shared.
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

    /// Whether a path, as written, lies inside the prefix. A path that a backend could read as another one never does.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        is_at_or_below(path, &self.0) && is_clear(path)
    }

    /// Whether every request that a match takes has its path inside the prefix. Regular expressions are not analysed:
    /// they count as reaching outside.
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

/// Whether a path element may have this character, and every backend reads it in the same way. These are the `pchar` of
/// RFC 3986 without escapes and without `;`, which begins parameters for some backends.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether no backend can read `path` as another one. It must not have a backslash or an escaped slash, nor an element
/// of dots, escaped or not, alone or in front of `;`.
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

/// The finding for a route whose namespace has only these paths of a hostname, if one of its matches reaches outside of
/// them. It is about the first such match. A rule that is refused for another reason counts as well, because it answers
/// its requests with an error.
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
            // Matches that cannot be read are left out of the list, so an index may differ from the one in the spec.
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
