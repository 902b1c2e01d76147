//! Hostnames and hostname patterns: one canonical form and one matcher for server names, listeners and routes.
//!
//! The rules come from Gateway API's `Hostname` and `PreciseHostname` (`shared_types.go`), GEP-2643, and
//! `site/content/en/docs/concepts/hostnames.md`. A wildcard matches one *or more* labels, and never the name after its
//! `*.`. An exact name is more specific than a wildcard, a longer wildcard is more specific than a shorter one, and
//! every hostname is more specific than none.

use std::cmp::Ordering;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// Longest hostname in characters, without a trailing dot (RFC 1035, section 2.3.4).
pub const MAX_HOSTNAME: usize = 253;
/// Longest label in characters (RFC 1035, section 2.3.4).
pub const MAX_LABEL: usize = 63;

/// Why a text is not a hostname that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// Nothing, or nothing but a trailing dot.
    #[error("is empty")]
    Empty,
    /// Over [`MAX_HOSTNAME`] characters.
    #[error("has {0} characters, and a hostname has at most {MAX_HOSTNAME}")]
    TooLong(usize),
    /// Two dots in a row or a leading dot.
    #[error("has an empty label")]
    EmptyLabel,
    /// A label over [`MAX_LABEL`] characters.
    #[error("has a label of {0} characters, and a label has at most {MAX_LABEL}")]
    LabelTooLong(usize),
    /// A character that RFC 1123 does not allow.
    #[error("has the character {0:?}, and a hostname has only letters, digits, '-' and '.'")]
    Character(char),
    /// A label that begins or ends with a hyphen.
    #[error("has a label that begins or ends with '-'")]
    Hyphen,
    /// A name outside ASCII; on the wire it is its A-label (RFC 5890).
    #[error("is not ASCII")]
    NotAscii {
        /// The A-label form to write instead, where there is one.
        a_label: Option<String>,
    },
    /// An IP address, in any of the forms that clients read as one. Clients send no server name for an address.
    #[error("is an IP address ({0}), and clients send no server name for an address")]
    IpAddress(IpForm),
    /// A '*' that is not the whole first label.
    #[error("has a '*' that is not the whole first label")]
    Wildcard,
}

impl HostnameError {
    /// The remedy for the author of the object.
    #[must_use]
    pub fn action(&self) -> String {
        match self {
            Self::NotAscii { a_label: Some(a) } => format!("write its A-label {a:?}"),
            Self::Wildcard => "use '*' only as the first label, as in \"*.example.com\"".into(),
            Self::IpAddress(_) => "use a DNS name".into(),
            _ => "use a DNS name such as \"app.example.com\"".into(),
        }
    }
}

/// The form in which an IP address was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpForm {
    /// Four decimal numbers: `192.0.2.1`.
    DottedQuad,
    /// Octal, hexadecimal, short or integer forms, such as `0300.0.2.1`, `0x7f.1` or `2130706433`. Any other name
    /// whose last label is a number counts as well: URL parsers (WHATWG URL, "ends in a number") read it as an IPv4
    /// address and fail.
    NumericV4,
    /// An IPv6 address.
    V6,
}

impl fmt::Display for IpForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DottedQuad => "IPv4",
            Self::NumericV4 => "IPv4 in a numeric form",
            Self::V6 => "IPv6",
        })
    }
}

/// The form of IP address for which clients would take `text`; `None` if they would not. A leading `*.` and one
/// trailing dot are ignored.
#[must_use]
pub fn ip_form(text: &str) -> Option<IpForm> {
    let text = text.strip_prefix("*.").unwrap_or(text);
    form_of(text.strip_suffix('.').unwrap_or(text))
}

fn form_of(text: &str) -> Option<IpForm> {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    if bare.contains(':') && bare.parse::<Ipv6Addr>().is_ok() {
        return Some(IpForm::V6);
    }
    let last = text.rsplit('.').next().unwrap_or(text);
    if !is_number(last) {
        return None;
    }
    let quad = text.split('.').count() == 4
        && text.split('.').all(|part| {
            part.parse::<u8>().is_ok() && (part == "0" || !part.starts_with(['0', '+']))
        });
    Some(if quad {
        IpForm::DottedQuad
    } else {
        IpForm::NumericV4
    })
}

fn is_number(label: &str) -> bool {
    if label.is_empty() {
        return false;
    }
    if label.bytes().all(|b| b.is_ascii_digit()) {
        return true;
    }
    label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"))
        .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// An exact hostname in canonical form: lower case, no trailing dot, LDH labels, not an IP address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Arc<str>);

impl Hostname {
    /// Reads a hostname. It is converted to lower case, and one trailing dot is dropped.
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        Ok(Self(canonical(text, check_label)?.into()))
    }

    /// Reads the hostname of a request, whose labels may have every printable ASCII character, such as
    /// `a_b.example.com`. No pattern is such a name, but `*.example.com` matches it. Otherwise it would belong to whoever
    /// has the names that nobody holds, while browsers count it as a part of `example.com`.
    pub fn requested(text: &str) -> Result<Self, HostnameError> {
        let check = |label: &str| {
            let bad = label.chars().find(|c| !c.is_ascii_graphic());
            bad.map_or(Ok(()), |bad| Err(HostnameError::Character(bad)))
        };
        Ok(Self(canonical(text, check)?.into()))
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Number of labels, at least 1.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.0.split('.').count()
    }

    /// The texts after each dot, longest first: `b.c` and `c` for `a.b.c`. These are the suffixes of
    /// the wildcards that match this name, most specific first.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        let mut rest: &str = &self.0;
        std::iter::from_fn(move || {
            rest = rest.split_once('.')?.1;
            Some(rest)
        })
    }

    /// Whether this name lies below `suffix` by one or more labels.
    #[must_use]
    pub fn is_below(&self, suffix: &Self) -> bool {
        self.0
            .strip_suffix(&*suffix.0)
            .is_some_and(|head| head.len() > 1 && head.ends_with('.'))
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::borrow::Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The canonical form of a name, of whose labels `check` judges the characters.
fn canonical(
    text: &str,
    check: impl Fn(&str) -> Result<(), HostnameError>,
) -> Result<String, HostnameError> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        return Err(HostnameError::Empty);
    }
    if !text.is_ascii() {
        return Err(HostnameError::NotAscii {
            // Converting a very long text would only cost time. The result of a conversion may be no hostname either:
            // full-width digits become an IP address.
            a_label: (text.len() <= 4 * MAX_HOSTNAME)
                .then(|| idna::domain_to_ascii_strict(text).ok())
                .flatten()
                .and_then(|ascii| canonical(&ascii, check_label).ok()),
        });
    }
    if let Some(form) = form_of(text) {
        return Err(HostnameError::IpAddress(form));
    }
    if text.len() > MAX_HOSTNAME {
        return Err(HostnameError::TooLong(text.len()));
    }
    for label in text.split('.') {
        if label.is_empty() {
            return Err(HostnameError::EmptyLabel);
        }
        if label.len() > MAX_LABEL {
            return Err(HostnameError::LabelTooLong(label.len()));
        }
        check(label)?;
    }
    Ok(text.to_ascii_lowercase())
}

/// Whether a label has only letters, digits and hyphens, and no hyphen at an end.
fn check_label(label: &str) -> Result<(), HostnameError> {
    if let Some(bad) = label
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && *c != '-')
    {
        return Err(if bad == '*' {
            HostnameError::Wildcard
        } else {
            HostnameError::Character(bad)
        });
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(HostnameError::Hyphen);
    }
    Ok(())
}

/// A hostname as a listener or route has it: an exact name, a wildcard, or no restriction.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// Every name, and also connections without a name. A listener without a hostname has this pattern.
    Any,
    /// `*.suffix`: every name one or more labels below the suffix, never the suffix itself.
    Wildcard(Hostname),
    /// One name.
    Exact(Hostname),
}

impl HostPattern {
    /// Reads a pattern; the empty text is [`HostPattern::Any`].
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        if text.is_empty() {
            return Ok(Self::Any);
        }
        let Some(suffix) = text.strip_prefix("*.") else {
            return Hostname::parse(text).map(Self::Exact);
        };
        match Hostname::parse(suffix) {
            // The limit counts for the whole text with its `*.`. No name fits below a longer suffix.
            Ok(suffix) if suffix.as_str().len() > MAX_HOSTNAME - 2 => {
                Err(HostnameError::TooLong(suffix.as_str().len() + 2))
            }
            Ok(suffix) => Ok(Self::Wildcard(suffix)),
            Err(HostnameError::NotAscii { a_label }) => Err(HostnameError::NotAscii {
                a_label: a_label.map(|suffix| format!("*.{suffix}")),
            }),
            Err(error) => Err(error),
        }
    }

    /// Whether the pattern matches `name`.
    #[must_use]
    pub fn matches(&self, name: &Hostname) -> bool {
        match self {
            Self::Any => true,
            Self::Wildcard(suffix) => name.is_below(suffix),
            Self::Exact(exact) => exact == name,
        }
    }

    /// Whether every name that `other` matches is matched by this pattern too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Any) | (Self::Exact(_), Self::Wildcard(_)) => false,
            (Self::Wildcard(suffix), Self::Wildcard(narrower)) => {
                suffix == narrower || narrower.is_below(suffix)
            }
            (pattern, Self::Exact(name)) => pattern.matches(name),
        }
    }

    /// Whether some name is matched by both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The names matched by both: of two patterns that overlap, always the more specific one.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }

    /// The names in certificates, in canonical form, that make a certificate valid for this name, or for every name one
    /// label below the suffix of this wildcard. A wildcard in a certificate stands for one label (RFC 9525, section 6.3),
    /// unlike one in a listener.
    pub fn certifying_names(&self) -> impl Iterator<Item = String> {
        let (own, above) = match self {
            Self::Any => (None, None),
            Self::Wildcard(_) => (Some(self.to_string()), None),
            Self::Exact(host) => {
                let above = host.parents().next().map(|parent| format!("*.{parent}"));
                (Some(host.to_string()), above)
            }
        };
        own.into_iter().chain(above)
    }

    /// The pattern of a name in a certificate; `None` if it is no hostname. Clients do not take a name with a dot at its end for
    /// the one without it.
    #[must_use]
    pub fn in_certificate(name: &str) -> Option<Self> {
        if name.ends_with('.') {
            return None;
        }
        Self::parse(name).ok()
    }

    /// Whether a certificate with the name `name`, in any case, is valid for all that [`Self::certifying_names`] says.
    #[must_use]
    pub fn is_certified_by(&self, name: &str) -> bool {
        self.certifying_names()
            .any(|certifying| certifying.eq_ignore_ascii_case(name))
    }

    /// How specific the pattern is. A greater value is more specific. If two patterns match a common name, their values
    /// are equal only if the patterns are.
    #[must_use]
    pub fn specificity(&self) -> Specificity {
        match self {
            Self::Any => Specificity(0, 0),
            // A hostname has at most 127 labels.
            Self::Wildcard(suffix) => {
                Specificity(1, u8::try_from(suffix.labels()).unwrap_or(u8::MAX))
            }
            Self::Exact(_) => Specificity(2, 0),
        }
    }

    /// Whether this is a wildcard (`*.` something).
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Self::Wildcard(_))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
            Self::Exact(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Debug for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Rank of a pattern by how specific it is; see [`HostPattern::specificity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity(u8, u8);

/// Precedence of two routes that match one name, each given as (hostname, creation in seconds since the Unix epoch,
/// `namespace/name`). The route with the more specific hostname *as written* comes first, then the older route, then
/// the one with the lesser `namespace/name` (v1.7.0, "Routes rank by original hostname").
///
/// `Less` means that `a` comes first.
#[must_use]
pub fn route_precedence(a: (&HostPattern, i64, &str), b: (&HostPattern, i64, &str)) -> Ordering {
    b.0.specificity()
        .cmp(&a.0.specificity())
        .then(a.1.cmp(&b.1))
        .then_with(|| a.2.cmp(b.2))
}
