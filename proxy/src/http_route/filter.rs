//! Owns the filters of rules, and their effect on requests and responses.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::cors::Cors;
use super::external_auth::ExternalAuth;
use super::header_edit::HeaderEdit;
use super::mirror::Mirror;
use super::view::rest_after;

/// The target of an OPTIONS request that has no path.
const ASTERISK: &str = "*";

/// One filter of a rule or of a backend reference.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    RequestHeaders(HeaderEdit),
    ResponseHeaders(HeaderEdit),
    Redirect(Redirect),
    Rewrite(Rewrite),
    Cors(Box<Cors>),
    Mirror(Mirror),
    /// A server is asked whether the request may pass. Rules have it, and backends do not.
    Auth(Arc<ExternalAuth>),
    /// Every request is answered with this status.
    Fail(StatusCode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A redirect.
#[derive(Clone, Debug)]
pub(crate) struct Redirect {
    /// `None` keeps the scheme of the request.
    pub(crate) scheme: Option<Scheme>,
    /// `None` keeps the hostname of the request.
    pub(crate) hostname: Option<Box<str>>,
    pub(crate) port: Option<u16>,
    pub(crate) path: Option<PathEdit>,
    pub(crate) status: StatusCode,
}

/// The parts of a request that a redirect uses.
pub(crate) struct Asked<'a> {
    pub(crate) scheme: Scheme,
    /// Host without port, with an IPv6 address in brackets. It is `None` for an HTTP/1.0 request without a host.
    pub(crate) host: Option<&'a str>,
    /// The port to which clients connect.
    pub(crate) port: u16,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    /// The prefix of the path that matched.
    pub(crate) prefix: &'a str,
}

impl Redirect {
    /// The value of `location`.
    pub(crate) fn location(&self, asked: &Asked<'_>) -> String {
        let scheme = self.scheme.unwrap_or(asked.scheme);
        let port = match (self.port, self.scheme) {
            (Some(port), _) => port,
            (None, Some(scheme)) => scheme.port(),
            (None, None) => asked.port,
        };
        let mut location = String::new();
        // Without a host, `location` is the path alone, which is relative to where the client is.
        if let Some(host) = self.hostname.as_deref().or(asked.host) {
            location.push_str(scheme.as_str());
            location.push_str("://");
            location.push_str(host);
            if port != scheme.port() {
                location.push(':');
                location.push_str(&port.to_string());
            }
        }
        let path = match &self.path {
            Some(edit) => edit.apply(asked.path, asked.prefix),
            // `*` asks about the whole server. It cannot be a part of a URL.
            None if asked.path == ASTERISK => Cow::Borrowed("/"),
            None => Cow::Borrowed(asked.path),
        };
        location.push_str(&path);
        if let Some(query) = asked.query {
            location.push('?');
            location.push_str(query);
        }
        location
    }
}

/// A rewrite of what the backend sees.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    pub(crate) hostname: Option<HeaderValue>,
    pub(crate) path: Option<PathEdit>,
}

/// A change of the path. The texts are valid parts of a URI.
#[derive(Clone, Debug)]
pub(crate) enum PathEdit {
    Full(Box<str>),
    /// Replaces the prefix that matched. It has no slash at the end.
    Prefix(Box<str>),
}

impl PathEdit {
    pub(crate) fn apply<'a>(&'a self, path: &'a str, prefix: &str) -> Cow<'a, str> {
        match self {
            Self::Full(full) => Cow::Borrowed(full),
            Self::Prefix(with) => {
                let rest = rest_after(path, prefix).filter(|rest| *rest != ASTERISK);
                let rest = rest.unwrap_or_default();
                match (with.is_empty(), rest) {
                    (true, "") => Cow::Borrowed("/"),
                    (true, rest) => Cow::Borrowed(rest),
                    (false, "") => Cow::Borrowed(with),
                    (false, rest) => Cow::Owned([with, rest].concat()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderMap, HeaderName};

    use super::*;

    /// The table of `replacePrefixMatch` in the API's types; what is configured comes without slashes
    /// at the end.
    #[test]
    fn prefixes_are_replaced_as_the_api_says() {
        for (path, prefix, with, result) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo", "", "/xyz", "/xyz/foo"),
            ("*", "", "/xyz", "/xyz"),
            ("*", "", "", "/"),
        ] {
            let edit = PathEdit::Prefix(with.into());
            assert_eq!(edit.apply(path, prefix), result, "{path} {prefix} {with}");
        }
        assert_eq!(PathEdit::Full("/x".into()).apply("/a/b", "/a"), "/x");
    }

    #[test]
    fn redirects_name_a_port_only_where_the_scheme_does_not() {
        use Scheme::{Http, Https};
        let location = |scheme, port, asked_scheme, asked_port| {
            let redirect = Redirect {
                scheme,
                hostname: None,
                port,
                path: None,
                status: StatusCode::FOUND,
            };
            redirect.location(&Asked {
                scheme: asked_scheme,
                host: Some("h"),
                port: asked_port,
                path: "/p",
                query: Some("q"),
                prefix: "",
            })
        };
        for (scheme, port, asked, on, result) in [
            (None, None, Http, 80, "http://h/p?q"),
            (None, None, Http, 8080, "http://h:8080/p?q"),
            (None, None, Https, 443, "https://h/p?q"),
            (None, None, Https, 8443, "https://h:8443/p?q"),
            (None, Some(80), Http, 8080, "http://h/p?q"),
            (None, Some(8443), Https, 443, "https://h:8443/p?q"),
            (Some(Https), None, Http, 8080, "https://h/p?q"),
            (Some(Http), None, Https, 443, "http://h/p?q"),
            (Some(Https), Some(80), Http, 80, "https://h:80/p?q"),
        ] {
            assert_eq!(location(scheme, port, asked, on), result);
        }
    }

    #[test]
    fn a_request_without_a_path_is_redirected_to_one() {
        for (path, host, result) in [
            (None, Some("h"), "https://h/"),
            (None, None, "/"),
            (
                Some(PathEdit::Prefix("/app".into())),
                Some("h"),
                "https://h/app",
            ),
            (
                Some(PathEdit::Full("/all".into())),
                Some("h"),
                "https://h/all",
            ),
        ] {
            let redirect = Redirect {
                scheme: Some(Scheme::Https),
                hostname: None,
                port: None,
                path,
                status: StatusCode::FOUND,
            };
            let location = redirect.location(&Asked {
                scheme: Scheme::Http,
                host,
                port: 80,
                path: "*",
                query: None,
                prefix: "",
            });
            assert_eq!(location, result);
        }
    }

    #[test]
    fn fields_are_set_added_and_removed() {
        let pair = |name: &'static str, value: &'static str| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let edit = HeaderEdit {
            set: [pair("a", "new"), pair("d", "4")].into(),
            add: [pair("b", "2"), pair("e", "5")].into(),
            remove: [HeaderName::from_static("c")].into(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [
            pair("a", "1"),
            pair("a", "2"),
            pair("b", "1"),
            pair("c", "3"),
        ] {
            headers.append(name, value);
        }
        edit.apply(&mut headers);
        let all = |name| {
            let values = headers.get_all(name).iter();
            values.map(|v| v.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all("a"), ["new"]);
        assert_eq!(all("b"), ["1", "2"]);
        assert_eq!(all("c"), [""; 0]);
        assert_eq!((all("d"), all("e")), (vec!["4"], vec!["5"]));
    }
}
