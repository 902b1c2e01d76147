//! The origins that a CORS filter allows (`CORSOrigin` of Gateway API), and the check of a request's `Origin` header.

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// Longest text of an origin in characters (`MaxLength` of the CRD).
const MAX_LENGTH: usize = 253;

/// A pattern of origins: all of them, or those with a scheme, a port, and a host or the hosts below one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginPattern(Pattern);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*`. It includes the origin `null`.
    Any,
    Of {
        scheme: Scheme,
        host: Host,
        port: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn parse(text: &str) -> Option<Self> {
        let is = |name: &str| text.eq_ignore_ascii_case(name);
        if is("http") {
            Some(Self::Http)
        } else {
            is("https").then_some(Self::Https)
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of an origin without one.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The host part of a pattern, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    Exact(Arc<str>),
    /// Every host that ends with this text, which begins with a dot: `.example.com`.
    Below(Arc<str>),
}

/// The text is not a pattern of origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is neither \"*\" nor an origin such as \"https://*.example.com:8443\"")]
pub struct OriginError;

impl OriginPattern {
    /// Reads a pattern as it is written in a filter.
    ///
    /// # Errors
    /// If the text is neither `*` nor an origin.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        if text == "*" {
            return Ok(Self(Pattern::Any));
        }
        if text.len() > MAX_LENGTH {
            return Err(OriginError);
        }
        let (scheme, host, port) = split(text).ok_or(OriginError)?;
        let lower: Arc<str> = host.to_ascii_lowercase().into();
        let host = match lower.strip_prefix('*') {
            Some("") => Host::Any,
            Some(below) => {
                let name = below.strip_prefix('.').ok_or(OriginError)?;
                is_host(name).then_some(()).ok_or(OriginError)?;
                Host::Below(below.into())
            }
            None => {
                is_host(&lower).then_some(()).ok_or(OriginError)?;
                Host::Exact(lower)
            }
        };
        Ok(Self(Pattern::Of { scheme, host, port }))
    }

    /// Whether the pattern matches every origin.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0 == Pattern::Any
    }

    /// Whether the pattern matches the `Origin` of a request.
    #[must_use]
    pub fn matches(&self, origin: &str) -> bool {
        let (scheme, host, port) = match &self.0 {
            Pattern::Any => return true,
            Pattern::Of { scheme, host, port } => (scheme, host, port),
        };
        let Some((of, name, at)) = split(origin) else {
            return false;
        };
        if (of, at) != (*scheme, *port) {
            return false;
        }
        match host {
            Host::Any => is_host_of_origin(name),
            Host::Exact(exact) => name.eq_ignore_ascii_case(exact),
            Host::Below(suffix) => {
                let labels = name.len().checked_sub(suffix.len());
                let end = labels
                    .filter(|labels| *labels > 0)
                    .and_then(|labels| name.get(labels..));
                end.is_some_and(|end| end.eq_ignore_ascii_case(suffix)) && is_host_of_origin(name)
            }
        }
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match &self.0 {
            Pattern::Any => return f.write_str("*"),
            Pattern::Of { scheme, host, port } => (scheme, host, port),
        };
        write!(f, "{}://", scheme.as_str())?;
        match host {
            Host::Any => f.write_str("*")?,
            Host::Exact(host) => f.write_str(host)?,
            Host::Below(suffix) => write!(f, "*{suffix}")?,
        }
        if *port != scheme.port() {
            write!(f, ":{port}")?;
        }
        Ok(())
    }
}

/// Scheme, host and port of `<scheme>://<host>[:<port>]`. The host of an IPv6 address keeps its brackets.
fn split(text: &str) -> Option<(Scheme, &str, u16)> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = Scheme::parse(scheme)?;
    let named = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => Some((host, port)),
        _ => None,
    };
    let Some((host, port)) = named else {
        return Some((scheme, rest, scheme.port()));
    };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port: u16 = digits.then(|| port.parse().ok()).flatten()?;
    (port > 0).then_some((scheme, host, port))
}

/// Whether a pattern can have this host.
fn is_host(text: &str) -> bool {
    is_name(text, |b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Whether a browser can send this as the host of an origin: a name, which may have underscores there, or an IPv6 address
/// in brackets. A text with anything else, such as a path or a user, is no origin.
fn is_host_of_origin(text: &str) -> bool {
    let address = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_name(text, |b| {
            b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
        }),
    }
}

/// Whether the text is labels of these bytes.
fn is_name(text: &str, is_part: impl Fn(u8) -> bool) -> bool {
    text.split('.')
        .all(|label| !label.is_empty() && label.bytes().all(&is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> OriginPattern {
        OriginPattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_match_as_the_api_says() {
        for (text, origin, matches) in [
            ("*", "https://a.example", true),
            ("*", "null", true),
            ("https://www.foo.com", "https://www.foo.com", true),
            ("https://www.foo.com", "https://WWW.foo.com", true),
            ("https://www.foo.com", "https://www.foo.com:443", true),
            ("https://www.foo.com", "https://www.foo.com:8443", false),
            ("https://www.foo.com", "http://www.foo.com", false),
            ("https://www.foo.com", "https://www.foo.com.evil.com", false),
            ("https://www.foo.com", "https://evil.com/www.foo.com", false),
            ("https://*.bar.com", "https://www.bar.com", true),
            ("https://*.bar.com", "https://xpto.www.bar.com", true),
            ("https://*.bar.com", "https://bar.com", false),
            ("https://*.bar.com", "https://.bar.com", false),
            ("https://*.bar.com", "https://evilbar.com", false),
            ("https://*.bar.com", "https://www.bar.com:80", false),
            ("https://*.bar.com:8443", "https://a.bar.com:8443", true),
            ("http://a.com:80", "http://a.com", true),
            ("https://*", "https://anybody.example", true),
            ("https://*", "https://[2001:db8::1]", true),
            ("https://*", "http://anybody.example", false),
            ("https://*", "https://anybody.example:8443", false),
            ("https://*.bar.com", "https://my_app.bar.com", true),
            ("https://*.bar.com", "https://evil.com#.bar.com", false),
            ("https://*.bar.com", "https://evil.com/.bar.com", false),
            ("https://*.bar.com", "https://evil.com?.bar.com", false),
            ("https://*.bar.com", "https://evil.com\\.bar.com", false),
            ("https://*.bar.com", "https://a@b.bar.com", false),
            ("https://*.bar.com", "https://a:b@c.bar.com", false),
            ("https://*.bar.com", "https://a b.bar.com", false),
            ("https://*.bar.com", "https://a%2fb.bar.com", false),
            ("https://*.bar.com", "https://a..bar.com", false),
            ("https://*.bar.com", "https://https://a.bar.com", false),
            ("https://*", "https://evil.com/", false),
            ("https://*", "https://evil.com/#a", false),
            ("https://*", "https://a@b", false),
            ("https://*", "https://[::1", false),
            ("https://*", "https://[a.b]", false),
            ("https://*", "https://", false),
            ("https://*", "null", false),
            ("https://*", "", false),
        ] {
            assert_eq!(pattern(text).matches(origin), matches, "{text} {origin}");
        }
    }

    #[test]
    fn origin_pattern_refuses_text_that_is_no_pattern() {
        for text in [
            "",
            "**",
            "null",
            "www.foo.com",
            "ftp://www.foo.com",
            "https://",
            "https://*foo.com",
            "https://a.*.com",
            "https://*.",
            "https://a..com",
            "https://a.com/",
            "https://a.com:0",
            "https://a.com:65536",
            "https://a.com:+1",
            "https://a.com:",
            "https://[::1]",
            "https://a_b.com",
        ] {
            assert_eq!(OriginPattern::parse(text), Err(OriginError), "{text}");
        }
        let long = format!("https://{}.com", "a".repeat(MAX_LENGTH));
        assert_eq!(OriginPattern::parse(&long), Err(OriginError));
    }

    #[test]
    fn patterns_print_as_they_are_written() {
        for text in ["*", "https://*", "http://*.a.com", "https://a.com:8443"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        assert_eq!(pattern("HTTPS://A.com:443").to_string(), "https://a.com");
    }

    /// Matches as the API describes it: it compares each part of the texts by itself.
    fn naive(pattern: &str, origin: &str) -> bool {
        let parts = |text: &str| {
            let (scheme, rest) = text.split_once("://")?;
            let port = if scheme == "https" { "443" } else { "80" };
            let (host, port) = rest.split_once(':').unwrap_or((rest, port));
            Some((scheme.to_owned(), host.to_owned(), port.to_owned()))
        };
        let (Some(pattern), Some(origin)) = (parts(pattern), parts(origin)) else {
            return pattern == "*";
        };
        let host = match pattern.1.strip_prefix('*') {
            Some(suffix) => origin.1.len() > suffix.len() && origin.1.ends_with(suffix),
            None => origin.1 == pattern.1,
        };
        (origin.0, origin.2) == (pattern.0, pattern.2) && host
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_pattern_that_prints_as_itself_or_none(text in r"(https?://)?[*.a:/0-9 é\[\]-]{0,12}") {
            if let Ok(pattern) = OriginPattern::parse(&text) {
                let printed = pattern.to_string();
                proptest::prop_assert_eq!(OriginPattern::parse(&printed), Ok(pattern.clone()));
                // If an origin has the text of the pattern, matching does not panic.
                let _ = pattern.matches(&text);
            }
        }

        #[test]
        fn matches_are_those_of_the_parts(
            pattern in r"\*|https?://(\*\.)?(a|b|a\.b|b\.a)(:80|:443|:8080)?|https?://\*",
            origin in r"null|https?://(a|b|a\.b|b\.a|b\.b\.a|ba|xa\.b)(:80|:443|:8080)?",
        ) {
            let parsed = OriginPattern::parse(&pattern).unwrap();
            proptest::prop_assert_eq!(parsed.matches(&origin), naive(&pattern, &origin));
        }
    }
}
