//! Owns the CORS filter of a rule, which decides what pages of other origins may do (CORS protocol of the Fetch
//! standard).
//!
//! The filter alone answers browsers: CORS fields in a backend's response are removed. The proxy always answers
//! preflight requests itself. A request that a page may not make is still served, because anything but a browser could
//! make it anyway. But its response lacks the fields without which a browser keeps it from the page.

use hyper::Method;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, VARY,
};
use vestibule_model::origin::OriginPattern;

use super::header_edit::HeaderEdit;

/// How the names of all fields of the protocol begin.
const PREFIX: &str = "access-control-";
/// Header fields that a filter sets. Those that it does not set are removed if another filter has set them before.
const OWN: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// A CORS filter.
#[derive(Clone, Debug)]
pub(crate) struct Cors {
    pub(crate) origins: Box<[OriginPattern]>,
    pub(crate) credentials: bool,
    pub(crate) methods: Allowed,
    pub(crate) headers: Allowed,
    /// The value of `access-control-expose-headers`, which has no `*` if `credentials` is true.
    pub(crate) exposed: Option<HeaderValue>,
    /// The value of `access-control-max-age`, in seconds.
    pub(crate) max_age: HeaderValue,
}

/// Which methods or headers a page may use.
#[derive(Clone, Debug)]
pub(crate) enum Allowed {
    /// Only those that every page may use.
    Nothing,
    /// All that it asks for.
    Asked,
    /// Those in this list.
    Listed(HeaderValue),
}

/// The decision of the filter about a request.
#[derive(Debug)]
pub(crate) enum CorsDecision {
    /// The request is served.
    Goes,
    /// It is a preflight request that succeeds.
    Preflight,
    /// It is a preflight request of an origin that is not allowed.
    Refused,
}

/// Removes from the response of a backend everything that it says of the protocol, also by fields that this filter does not
/// know, such as those for private networks.
pub(crate) fn take_out(headers: &mut HeaderMap) {
    let names = headers.keys();
    let names = names.filter(|name| name.as_str().starts_with(PREFIX));
    let names: Vec<HeaderName> = names.cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

impl Cors {
    /// Decides about a request, and returns how the head of its response has to be changed.
    pub(crate) fn judge(&self, method: &Method, headers: &HeaderMap) -> (CorsDecision, HeaderEdit) {
        let mut set = Vec::new();
        let anybody = self.origins.iter().any(OriginPattern::is_any);
        // If the response is the same for every origin, caches can keep one for all.
        let constant = anybody && !self.credentials;
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next();
        let single = origins.next().is_none();
        let is_allowed = |origin: &HeaderValue| {
            let origin = origin.to_str().unwrap_or_default();
            single && self.origins.iter().any(|of| of.matches(origin))
        };
        let allowed = origin.filter(|origin| is_allowed(origin));
        if constant {
            set.push((ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")));
        } else if let Some(origin) = allowed {
            set.push((ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()));
        }
        if allowed.is_some() && self.credentials {
            let yes = HeaderValue::from_static("true");
            set.push((ACCESS_CONTROL_ALLOW_CREDENTIALS, yes));
        }
        if (constant || allowed.is_some())
            && let Some(exposed) = &self.exposed
        {
            set.push((ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone()));
        }
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        let verdict = match (origin, asked) {
            (Some(_), Some(asked)) if method == Method::OPTIONS => {
                if allowed.is_some() {
                    self.allow(asked, headers, &mut set);
                    CorsDecision::Preflight
                } else {
                    CorsDecision::Refused
                }
            }
            _ => CorsDecision::Goes,
        };
        let is_set = |name: &HeaderName| set.iter().any(|(of, _)| of == name);
        let remove = OWN.into_iter().filter(|name| !is_set(name)).collect();
        let vary = (VARY, HeaderValue::from_static("origin"));
        let edit = HeaderEdit {
            set: set.into(),
            add: if constant { [].into() } else { [vary].into() },
            remove,
        };
        (verdict, edit)
    }

    /// Adds the fields of a response to a preflight request: the methods and headers that are allowed.
    fn allow(
        &self,
        method: &HeaderValue,
        headers: &HeaderMap,
        set: &mut Vec<(HeaderName, HeaderValue)>,
    ) {
        let names = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let methods = self.methods.value(Some(method), is_method);
        let headers = self.headers.value(names, are_names);
        set.extend(methods.map(|value| (ACCESS_CONTROL_ALLOW_METHODS, value)));
        set.extend(headers.map(|value| (ACCESS_CONTROL_ALLOW_HEADERS, value)));
        set.push((ACCESS_CONTROL_MAX_AGE, self.max_age.clone()));
    }
}

impl Allowed {
    /// The value of such a field, if the page asks for `asked`.
    fn value(
        &self,
        asked: Option<&HeaderValue>,
        is_sound: fn(&[u8]) -> bool,
    ) -> Option<HeaderValue> {
        match self {
            Self::Nothing => None,
            Self::Asked => asked.filter(|asked| is_sound(asked.as_bytes())).cloned(),
            Self::Listed(value) => Some(value.clone()),
        }
    }
}

fn is_method(value: &[u8]) -> bool {
    Method::from_bytes(value).is_ok()
}

fn are_names(value: &[u8]) -> bool {
    let mut names = value.split(|byte| *byte == b',');
    names.all(|name| HeaderName::from_bytes(name.trim_ascii()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        let origins = origins.iter().map(|of| OriginPattern::parse(of).unwrap());
        Cors {
            origins: origins.collect(),
            credentials,
            methods: Allowed::Asked,
            headers: Allowed::Asked,
            exposed: Some(HeaderValue::from_static("x-b")),
            max_age: HeaderValue::from_static("5"),
        }
    }

    fn map(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name.clone(), HeaderValue::from_static(value));
        }
        map
    }

    /// The verdict, and the head of an answer whose backend allows everything.
    fn judged(cors: &Cors, method: &Method, headers: &HeaderMap) -> (CorsDecision, Vec<String>) {
        let (verdict, edit) = cors.judge(method, headers);
        let mut answer = map(&[
            (ACCESS_CONTROL_ALLOW_ORIGIN, "https://evil.example"),
            (ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
            (ACCESS_CONTROL_EXPOSE_HEADERS, "x-secret"),
            (ACCESS_CONTROL_ALLOW_METHODS, "DELETE"),
            (
                HeaderName::from_static("access-control-allow-private-network"),
                "true",
            ),
        ]);
        take_out(&mut answer);
        edit.apply(&mut answer);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            let name = name.as_str().trim_start_matches("access-control-");
            format!("{name}: {}", value.to_str().unwrap())
        };
        let mut lines: Vec<_> = answer.iter().map(line).collect();
        lines.sort();
        (verdict, lines)
    }

    #[test]
    fn cors_fields_of_a_backend_are_removed() {
        let few = cors(&["https://a.example"], true);
        for headers in [
            map(&[]),
            map(&[(ORIGIN, "https://evil.example")]),
            map(&[(ORIGIN, "null")]),
            map(&[
                (ORIGIN, "https://a.example"),
                (ORIGIN, "https://evil.example"),
            ]),
        ] {
            let (verdict, lines) = judged(&few, &Method::GET, &headers);
            assert!(matches!(verdict, CorsDecision::Goes));
            assert_eq!(lines, ["vary: origin"]);
        }
        let (_, lines) = judged(&few, &Method::GET, &map(&[(ORIGIN, "https://a.example")]));
        let all = [
            "allow-credentials: true",
            "allow-origin: https://a.example",
            "expose-headers: x-b",
            "vary: origin",
        ];
        assert_eq!(lines, all);
    }

    #[test]
    fn everybody_is_a_constant_unless_with_credentials() {
        let open = cors(&["*"], false);
        for headers in [map(&[]), map(&[(ORIGIN, "https://b.example")])] {
            let (_, lines) = judged(&open, &Method::GET, &headers);
            assert_eq!(lines, ["allow-origin: *", "expose-headers: x-b"]);
        }
        let with = cors(&["*"], true);
        let (_, lines) = judged(&with, &Method::GET, &map(&[(ORIGIN, "https://b.example")]));
        assert!(lines.contains(&"allow-origin: https://b.example".to_owned()));
        assert!(lines.contains(&"vary: origin".to_owned()));
    }

    #[test]
    fn preflight_method_and_headers_are_allowed_if_they_are_sound() {
        let open = cors(&["*"], true);
        let ask = |method, names| {
            let headers = map(&[
                (ORIGIN, "https://b.example"),
                (ACCESS_CONTROL_REQUEST_METHOD, method),
                (ACCESS_CONTROL_REQUEST_HEADERS, names),
            ]);
            let (verdict, lines) = judged(&open, &Method::OPTIONS, &headers);
            assert!(matches!(verdict, CorsDecision::Preflight));
            lines
        };
        let lines = ask("PUT", "x-a, x-b");
        assert!(lines.contains(&"allow-methods: PUT".to_owned()));
        assert!(lines.contains(&"allow-headers: x-a, x-b".to_owned()));
        assert!(lines.contains(&"max-age: 5".to_owned()));
        let lines = ask("PUT, GET", "x a");
        assert!(!lines.iter().any(|l| l.starts_with("allow-methods")));
        assert!(!lines.iter().any(|l| l.starts_with("allow-headers")));
    }

    #[test]
    fn a_preflight_request_is_one_with_origin_and_method() {
        let few = cors(&["https://a.example"], false);
        let verdict = |method: Method, pairs: &[_]| judged(&few, &method, &map(pairs)).0;
        let origin = (ORIGIN, "https://a.example");
        let asked = (ACCESS_CONTROL_REQUEST_METHOD, "GET");
        let whole = [origin.clone(), asked.clone()];
        assert!(matches!(
            verdict(Method::OPTIONS, &whole),
            CorsDecision::Preflight
        ));
        assert!(matches!(verdict(Method::GET, &whole), CorsDecision::Goes));
        assert!(matches!(
            verdict(Method::OPTIONS, &[origin]),
            CorsDecision::Goes
        ));
        assert!(matches!(
            verdict(Method::OPTIONS, std::slice::from_ref(&asked)),
            CorsDecision::Goes
        ));
        let other = [(ORIGIN, "https://b.example"), asked];
        assert!(matches!(
            verdict(Method::OPTIONS, &other),
            CorsDecision::Refused
        ));
    }
}
