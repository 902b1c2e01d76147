//! Owns finding the host for which a request is. Requests that two readers could read differently are refused.

use std::net::Ipv6Addr;
use std::sync::Arc;

use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Version};
use vestibule_model::hostname::{Hostname, ip_form};

/// The host for which a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The hostname without a port. It is `None` if the request has no host, or an IP address, which no listener can have.
    pub(super) host: Option<Hostname>,
    /// As the client wrote it, for the log.
    pub(super) text: Option<Arc<str>>,
    /// The same as a header value. It may share the buffer of the head, and then keeps all of it in memory.
    pub(super) value: Option<HeaderValue>,
}

impl Target {
    /// As the client wrote it, without port.
    pub(super) fn host_text(&self) -> Option<&str> {
        let text = self.text.as_deref()?;
        let literal = text.starts_with('[').then(|| text.find(']')).flatten();
        let end = literal.map_or_else(|| text.find(':'), |at| Some(at + 1));
        Some(end.and_then(|end| text.get(..end)).unwrap_or(text))
    }
}

/// Why the host of a request is not clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    /// There is none, although HTTP/1.1 and HTTP/2 require one (RFC 9112 section 3.2).
    #[error("the request names no host")]
    Missing,
    /// More than one `Host` field.
    #[error("the request has several Host fields")]
    Several,
    /// Not `host` or `host:port`.
    #[error("the request's host is malformed")]
    Malformed,
    /// The target has a scheme other than `http` and `https`. A backend never sees the scheme, and would take the request
    /// for one of HTTP.
    #[error("the request's target has a scheme other than http and https")]
    Scheme,
    /// The target and the `Host` field have different hosts or ports.
    #[error("the request's target and its Host field differ")]
    Differ,
}

impl Target {
    /// Reads the target's authority and the `Host` field.
    pub(super) fn of<B>(request: &Request<B>) -> Result<Self, Unclear> {
        let mut fields = request.headers().get_all(HOST).iter();
        let field = fields.next();
        if fields.next().is_some() {
            return Err(Unclear::Several);
        }
        let scheme = request.uri().scheme();
        if scheme.is_some_and(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS) {
            return Err(Unclear::Scheme);
        }
        let value = field;
        let field = match field {
            Some(value) => Some(value.to_str().map_err(|_| Unclear::Malformed)?),
            None => None,
        };
        let target = request.uri().authority().map(Authority::as_str);
        // HTTP/2 may leave the field out. HTTP/1.1 may not, even if the target has a host.
        let text = match (target, field) {
            // The target counts, and the field is ignored (RFC 9112 section 3.2.2).
            (Some(target), Some(field)) if !agree(target, field, scheme) => {
                return Err(Unclear::Differ);
            }
            (None | Some(_), None) if request.version() == Version::HTTP_11 => {
                return Err(Unclear::Missing);
            }
            (None, None) if request.version() == Version::HTTP_2 => return Err(Unclear::Missing),
            (Some(text), _) | (None, Some(text)) => text,
            (None, None) => {
                return Ok(Self {
                    host: None,
                    text: None,
                    value: None,
                });
            }
        };
        Ok(Self {
            host: read(text)?,
            text: Some(text.into()),
            value: match value {
                Some(value) if value == text => Some(value.clone()),
                _ => HeaderValue::try_from(text).ok(),
            },
        })
    }
}

/// Whether the authority of a target and the `Host` field are for the same host and port. Where no port is written, it is
/// the default of the target's scheme.
fn agree(target: &str, field: &str, scheme: Option<&Scheme>) -> bool {
    let default = match scheme {
        Some(scheme) if *scheme == Scheme::HTTP => "80",
        Some(scheme) if *scheme == Scheme::HTTPS => "443",
        _ => "",
    };
    let (host, port) = split(target, default);
    let (field_host, field_port) = split(field, default);
    host.eq_ignore_ascii_case(field_host) && port == field_port
}

/// The host and the port of an authority, as they are written. The port is `default` if it is left out or empty (RFC 3986
/// section 6.2.3).
fn split<'a>(authority: &'a str, default: &'a str) -> (&'a str, &'a str) {
    match authority.rsplit_once(':') {
        Some((host, "")) => (host, default),
        // Colons within brackets are those of an IPv6 address.
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, default),
    }
}

/// The hostname of an authority that was read before.
pub(super) fn host(text: &str) -> Option<Hostname> {
    read(text).ok().flatten()
}

/// The hostname of `host[:port]`; `None` for an IP address, in whatever form.
fn read(text: &str) -> Result<Option<Hostname>, Unclear> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(literal) => {
            let (address, rest) = literal.split_once(']').ok_or(Unclear::Malformed)?;
            let address: Result<Ipv6Addr, _> = address.parse();
            address.map_err(|_| Unclear::Malformed)?;
            (None, rest)
        }
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => {
                (Some(host), text.get(host.len()..).unwrap_or_default())
            }
            Some(_) => return Err(Unclear::Malformed),
            None => (Some(text), ""),
        },
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port,
        None if rest.is_empty() => "",
        None => return Err(Unclear::Malformed),
    };
    // An empty port is allowed (RFC 3986 section 3.2.3).
    if !port.is_empty() && (port.parse::<u16>().is_err() || port.starts_with('+')) {
        return Err(Unclear::Malformed);
    }
    let Some(host) = host else {
        return Ok(None);
    };
    // These are the characters of a registered name (RFC 3986 section 3.2.2). Percent-encoding is left out, because it
    // is a second way to write a name, and so is user information.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c);
    if host.is_empty() || !host.chars().all(allowed) {
        return Err(Unclear::Malformed);
    }
    if ip_form(host).is_some() {
        return Ok(None);
    }
    let host = Hostname::requested(host).map_err(|_| Unclear::Malformed)?;
    Ok(Some(host))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(version: Version, uri: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap()
    }

    fn of(version: Version, uri: &str, hosts: &[&str]) -> Result<Option<String>, Unclear> {
        let target = Target::of(&request(version, uri, hosts))?;
        Ok(target.host.map(|host| host.as_str().to_owned()))
    }

    #[test]
    fn the_host_is_read_without_its_port() {
        let one = |host: &str| of(Version::HTTP_11, "/", &[host]);
        let name = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(one("a.example.com"), name("a.example.com"));
        assert_eq!(one("A.Example.COM:8443"), name("a.example.com"));
        assert_eq!(one("a.example.com.:"), name("a.example.com"));
        // No pattern is one of these, and a wildcard around it matches it.
        for odd in ["a_b", "_a", "-a", "a-", "a~b", "a!", "*"] {
            let odd = format!("{odd}.example.com");
            assert_eq!(one(&odd), name(&odd), "{odd}");
        }
        for address in [
            "192.0.2.1",
            "192.0.2.1:80",
            "192.0.2.1.",
            "0x7f.1",
            "[2001:db8::1]",
            "[::1]:80",
        ] {
            assert_eq!(one(address), Ok(None), "{address}");
        }
    }

    #[test]
    fn the_text_of_a_host_has_no_port() {
        for (text, host) in [
            ("A.example.com:80", "A.example.com"),
            ("a", "a"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            let target = Target::of(&request(Version::HTTP_11, "/", &[text])).unwrap();
            assert_eq!(target.host_text(), Some(host));
        }
    }

    #[test]
    fn authority_that_is_unclear_is_refused() {
        for host in [
            "",
            ":80",
            "a..example.com",
            ".example.com",
            "a:b",
            "a:80:80",
            "a:+80",
            "a:65536",
            "a@b",
            "a b",
            "a/b",
            "[::1",
            "[::1]x",
            "[a]",
            "%61.example.com",
            "ä",
        ] {
            let got = of(Version::HTTP_11, "/", &[host]);
            assert_eq!(got, Err(Unclear::Malformed), "{host:?}");
        }
        let two = ["a", "a"];
        assert_eq!(of(Version::HTTP_11, "/", &two), Err(Unclear::Several));
        assert_eq!(of(Version::HTTP_11, "/", &[]), Err(Unclear::Missing));
        assert_eq!(
            of(Version::HTTP_11, "http://a/", &[]),
            Err(Unclear::Missing)
        );
        assert_eq!(of(Version::HTTP_2, "/", &[]), Err(Unclear::Missing));
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let got = of(version, "ftp://a/", &["a"]);
            assert_eq!(got, Err(Unclear::Scheme), "{version:?}");
        }
        assert_eq!(of(Version::HTTP_10, "/", &[]), Ok(None));
        let name = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(of(Version::HTTP_2, "https://a/", &[]), name("a"));
        assert_eq!(of(Version::HTTP_11, "http://a/", &["A"]), name("a"));
        assert_eq!(
            of(Version::HTTP_2, "https://a/", &["b"]),
            Err(Unclear::Differ)
        );
        assert_eq!(
            of(Version::HTTP_11, "http://a/", &["b"]),
            Err(Unclear::Differ)
        );
        assert_eq!(
            of(Version::HTTP_11, "http://x@a/", &["x@a"]),
            Err(Unclear::Malformed)
        );
    }

    #[test]
    fn a_default_port_may_be_left_out_on_either_side() {
        for (uri, field) in [
            ("http://a:80/", "a"),
            ("http://a/", "A:80"),
            ("http://a:/", "a"),
            ("http://a:80/", "a:"),
            ("http://a:8080/", "a:8080"),
            ("https://a:443/", "a"),
            ("https://A/", "a:443"),
            ("http://[::1]:80/", "[::1]"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let request = request(version, uri, &[field]);
                // What the client wrote in the target is passed on.
                let target = Target::of(&request).unwrap();
                let written = request.uri().authority().unwrap().as_str();
                assert_eq!(target.text.as_deref(), Some(written), "{uri} {field}");
                assert_eq!(target.value.unwrap(), written, "{uri} {field}");
            }
        }
        for (uri, field) in [
            ("http://a:80/", "b"),
            ("http://a:80/", "b:80"),
            ("http://a:443/", "a"),
            ("http://a/", "a:8080"),
            ("http://a:8080/", "a"),
            ("https://a:80/", "a"),
            ("https://a/", "a:80"),
            ("http://a/", "a:080"),
            ("http://a/", "a:80:80"),
            ("http://a/", "x@a:80"),
            ("http://[::1]/", "[::2]:80"),
            ("http://[::1]/", "[::1"),
        ] {
            let got = of(Version::HTTP_11, uri, &[field]);
            assert_eq!(got, Err(Unclear::Differ), "{uri} {field}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]:.@%a-z0-9 -]{0,24}") {
            if let Ok(Some(host)) = read(&text) {
                let lower = text.to_ascii_lowercase();
                prop_assert!(lower.starts_with(host.as_str()));
            }
        }
    }
}
