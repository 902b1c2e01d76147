//! Owns the step from wire messages to typed values for HTTP routes.

use std::time::Duration;

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Method, StatusCode};
use vestibule_model::hostname::Hostname;
use vestibule_model::http::MAX_RETRIES;
use vestibule_model::origin::OriginPattern;
use vestibule_model::pattern::Matcher;
use vestibule_stream::proto;

use super::parse::attachments;
use super::reject::RejectReason;
use super::resource_names::{required, route_name};
use crate::attached_names::AttachedNames;
use crate::http_route::cors::{Allowed, Cors};
use crate::http_route::external_auth::AuthProtocol;
use crate::http_route::filter::{Filter, PathEdit, Redirect, Rewrite, Scheme};
use crate::http_route::header_edit::HeaderEdit;
use crate::http_route::retry_policy::RetryPolicy;
use crate::http_route::route::{Match, PathMatch, Value, ValueMatch};
use crate::http_route::session;
use crate::http_route::session::{Carrier, Session};

/// Most characters of a path in a match or filter, as in the CRD.
const MAX_PATH: usize = 1024;
/// Most rules of a route, and most matches and backends of a rule. The CRD allows far fewer.
const MAX_ITEMS: usize = 1024;

/// An HTTP route that can be put in force.
#[derive(Debug)]
pub(super) struct HttpRouteSpec {
    pub(super) tenant: String,
    pub(super) created: i64,
    pub(super) grpc: bool,
    /// By name of the listener.
    pub(super) attachments: Vec<(String, AttachedNames)>,
    pub(super) rules: Vec<RuleSpec>,
}

#[derive(Debug)]
pub(super) struct RuleSpec {
    pub(super) name: String,
    pub(super) matches: Vec<Match>,
    pub(super) filters: Vec<FilterSpec>,
    pub(super) backends: Vec<BackendSpec>,
    pub(super) request_timeout: Option<Duration>,
    pub(super) backend_timeout: Option<Duration>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) session: Option<Session>,
}

/// A filter. Its references are still names, and not slots of backends.
#[derive(Debug)]
pub(super) enum FilterSpec {
    Itself(Filter),
    Mirror {
        backend: String,
        numerator: u32,
        denominator: u32,
    },
    Auth {
        backend: String,
        protocol: AuthProtocol,
        max_body: u16,
    },
}

#[derive(Debug)]
pub(super) struct BackendSpec {
    /// `None`: invalid reference.
    pub(super) name: Option<String>,
    pub(super) weight: u32,
    pub(super) filters: Vec<FilterSpec>,
}

pub(super) fn route(
    name: &str,
    grpc: bool,
    wire: &proto::HttpRoute,
) -> Result<HttpRouteSpec, RejectReason> {
    route_name(name)?;
    bounded(wire.rules.len(), "the list of rules")?;
    let rules: Vec<RuleSpec> = wire.rules.iter().map(rule).collect::<Result<_, _>>()?;
    let mut matches = rules.iter().flat_map(|rule| &rule.matches);
    if matches.any(|of| matches!(of.path, PathMatch::Method { .. }) != grpc) {
        return Err(RejectReason::InvalidMatch("a path of the other kind"));
    }
    Ok(HttpRouteSpec {
        tenant: required(&wire.tenant, "tenant")?,
        created: wire.created,
        grpc,
        attachments: attachments(&wire.attachments)?,
        rules,
    })
}

fn bounded(length: usize, what: &'static str) -> Result<(), RejectReason> {
    if length > MAX_ITEMS {
        return Err(RejectReason::TooLarge(what));
    }
    Ok(())
}

fn rule(wire: &proto::HttpRule) -> Result<RuleSpec, RejectReason> {
    bounded(wire.matches.len(), "a list of matches")?;
    bounded(wire.filters.len(), "a list of filters")?;
    bounded(wire.backends.len(), "a list of backends")?;
    let matches: Vec<Match> = wire
        .matches
        .iter()
        .map(one_match)
        .collect::<Result<_, _>>()?;
    let filters = filters(&wire.filters)?;
    let backends = wire.backends.iter().map(backend);
    let backends: Vec<BackendSpec> = backends.collect::<Result<_, _>>()?;
    let mut all = filters
        .iter()
        .chain(backends.iter().flat_map(|b| &b.filters));
    let no_prefix = |of: &Match| !matches!(of.path, PathMatch::Prefix(_));
    if all.any(replaces_prefix) && matches.iter().any(no_prefix) {
        return Err(RejectReason::InvalidFilter(
            "a prefix is replaced where a match has none",
        ));
    }
    let timeouts = wire.timeouts.unwrap_or_default();
    Ok(RuleSpec {
        name: wire.name.clone(),
        matches,
        filters,
        backends,
        // Zero is kept, because it means that there is no timeout, not even the default one.
        request_timeout: timeouts.request.map(Duration::from_millis),
        backend_timeout: timeout(timeouts.backend_request),
        retry: wire.retry.as_ref().map(retry).transpose()?,
        session: wire.session.as_ref().map(session).transpose()?,
    })
}

fn session(wire: &proto::HttpSession) -> Result<Session, RejectReason> {
    use proto::http_session::Carrier as Wire;

    let invalid = RejectReason::InvalidFilter;
    let timeout = wire.absolute_timeout.map(Duration::from_millis);
    let carrier = match &wire.carrier {
        None => return Err(RejectReason::UnknownResource("a session")),
        Some(Wire::Header(name)) => {
            let name = HeaderName::try_from(name);
            let name = name.ok().filter(|name| {
                !KEPT.contains(name) && *name != header::COOKIE && *name != header::SET_COOKIE
            });
            Carrier::Header(name.ok_or_else(|| invalid("the header of a session"))?)
        }
        Some(Wire::Cookie(cookie)) => {
            if !session::is_name(&cookie.name) {
                return Err(invalid("the name of a session's cookie"));
            }
            if !session::is_path(&cookie.path) {
                return Err(invalid("the path of a session's cookie"));
            }
            if cookie.permanent && timeout.is_none() {
                return Err(invalid("a permanent cookie without an end"));
            }
            Carrier::Cookie {
                name: cookie.name.as_str().into(),
                path: cookie.path.as_str().into(),
                permanent: cookie.permanent,
            }
        }
    };
    let keys = wire.keys.iter().map(|of| of.key.as_slice());
    Session::new(carrier, timeout, keys).ok_or(invalid("the keys of a session"))
}

fn retry(wire: &proto::HttpRetry) -> Result<RetryPolicy, RejectReason> {
    let code = |code: &u32| {
        let code = status_in(*code, 400..600);
        code.map(|code| code.as_u16())
            .map_err(|_| RejectReason::InvalidFilter("a status to retry"))
    };
    Ok(RetryPolicy {
        codes: wire.codes.iter().map(code).collect::<Result<_, _>>()?,
        attempts: wire.attempts.min(MAX_RETRIES),
        backoff: wire.backoff.map(Duration::from_millis),
    })
}

fn replaces_prefix(filter: &FilterSpec) -> bool {
    let path = match filter {
        FilterSpec::Itself(Filter::Redirect(redirect)) => &redirect.path,
        FilterSpec::Itself(Filter::Rewrite(rewrite)) => &rewrite.path,
        _ => return false,
    };
    matches!(path, Some(PathEdit::Prefix(_)))
}

fn timeout(milliseconds: Option<u64>) -> Option<Duration> {
    milliseconds.filter(|ms| *ms > 0).map(Duration::from_millis)
}

fn backend(wire: &proto::HttpBackend) -> Result<BackendSpec, RejectReason> {
    bounded(wire.filters.len(), "a list of filters")?;
    let filters = filters(&wire.filters)?;
    // Only the filters of rules act before a backend is chosen.
    if filters
        .iter()
        .any(|of| matches!(of, FilterSpec::Auth { .. }))
    {
        return Err(RejectReason::InvalidFilter(
            "authorization for a single backend",
        ));
    }
    Ok(BackendSpec {
        name: (!wire.backend.is_empty()).then(|| wire.backend.clone()),
        weight: wire.weight,
        filters,
    })
}

fn one_match(wire: &proto::HttpMatch) -> Result<Match, RejectReason> {
    use proto::http_match::Path;

    let path = match &wire.path {
        None => PathMatch::default(),
        Some(Path::Exact(text)) => PathMatch::Exact(path(text)?.into()),
        Some(Path::Prefix(text)) => {
            let text = path(text)?;
            PathMatch::Prefix(text.strip_suffix('/').unwrap_or(text).into())
        }
        Some(Path::Regex(text)) => PathMatch::Regex(pattern(text)?),
        Some(Path::GrpcMethod(wire)) => grpc_method(wire)?,
    };
    let method = match &*wire.method {
        "" => None,
        text => Some(
            Method::from_bytes(text.as_bytes())
                .map_err(|_| RejectReason::InvalidMatch("a method"))?,
        ),
    };
    let headers = wire.headers.iter().map(|header| {
        let name = HeaderName::try_from(&header.name);
        Ok(ValueMatch {
            name: name.map_err(|_| RejectReason::InvalidMatch("the name of a header"))?,
            value: value(header)?,
        })
    });
    let query = wire.query.iter().map(|param| {
        Ok(ValueMatch {
            name: required(&param.name, "the name of a query parameter")?.into(),
            value: value(param)?,
        })
    });
    Ok(Match {
        path,
        method,
        headers: headers.collect::<Result<_, _>>()?,
        query: query.collect::<Result<_, _>>()?,
    })
}

fn grpc_method(wire: &proto::GrpcMethod) -> Result<PathMatch, RejectReason> {
    use proto::grpc_method::{Method, Service};

    let exact = |text: &str| match text {
        "" => Err(RejectReason::InvalidMatch("a method of gRPC")),
        text if text.len() > MAX_PATH => Err(RejectReason::InvalidMatch("a method of gRPC")),
        text => Ok(Value::Exact(text.into())),
    };
    let service = match &wire.service {
        None => None,
        Some(Service::ExactService(text)) => Some(exact(text)?),
        Some(Service::ServiceRegex(text)) => Some(Value::Regex(pattern(text)?)),
    };
    let method = match &wire.method {
        None => None,
        Some(Method::ExactMethod(text)) => Some(exact(text)?),
        Some(Method::MethodRegex(text)) => Some(Value::Regex(pattern(text)?)),
    };
    Ok(PathMatch::Method { service, method })
}

fn value(wire: &proto::HttpValueMatch) -> Result<Value, RejectReason> {
    use proto::http_value_match::Value as Wire;

    match &wire.value {
        None => Err(RejectReason::UnknownResource("a match's value")),
        Some(Wire::Exact(text)) => Ok(Value::Exact(text.as_str().into())),
        Some(Wire::Regex(text)) => Ok(Value::Regex(pattern(text)?)),
    }
}

fn pattern(text: &str) -> Result<Matcher, RejectReason> {
    Matcher::compile(text).map_err(|error| RejectReason::InvalidRegex(error.to_string()))
}

/// A path as requests have it.
fn path(text: &str) -> Result<&str, RejectReason> {
    let invalid = RejectReason::InvalidMatch("a path");
    if !text.starts_with('/') || text.len() > MAX_PATH {
        return Err(invalid);
    }
    Ok(text)
}

fn filters(wire: &[proto::HttpFilter]) -> Result<Vec<FilterSpec>, RejectReason> {
    let spec = |wire: &proto::HttpFilter| match &wire.filter {
        // It is a filter of a newer release. If it were left out, the route could let through what the filter keeps
        // out.
        None => Err(RejectReason::UnknownResource("a filter")),
        Some(proto::http_filter::Filter::Mirror(wire)) => mirror(wire),
        Some(proto::http_filter::Filter::ExternalAuth(wire)) => external_auth(wire),
        Some(wire) => filter(wire).map(FilterSpec::Itself),
    };
    wire.iter().map(spec).collect()
}

fn mirror(wire: &proto::Mirror) -> Result<FilterSpec, RejectReason> {
    if wire.denominator == 0 || wire.numerator > wire.denominator {
        return Err(RejectReason::InvalidFilter("a mirror's share"));
    }
    Ok(FilterSpec::Mirror {
        backend: required(&wire.backend, "a mirror's backend")?,
        numerator: wire.numerator,
        denominator: wire.denominator,
    })
}

fn external_auth(wire: &proto::ExternalAuth) -> Result<FilterSpec, RejectReason> {
    use proto::external_auth::Protocol;

    let names = |list: &[String]| {
        bounded(list.len(), "a list of headers")?;
        let name = |text: &String| {
            HeaderName::try_from(text)
                .map_err(|_| RejectReason::InvalidFilter("the name of a header"))
        };
        list.iter().map(name).collect::<Result<Box<[_]>, _>>()
    };
    let protocol = match &wire.protocol {
        None => return Err(RejectReason::UnknownResource("a protocol of authorization")),
        Some(Protocol::Http(http)) => AuthProtocol::Http {
            path_prefix: match http.path_prefix.trim_end_matches('/') {
                "" => "".into(),
                prefix => part_of_uri(prefix)?.into(),
            },
            request_headers: names(&http.request_headers)?,
            response_headers: names(&http.response_headers)?,
        },
        Some(Protocol::Grpc(grpc)) => AuthProtocol::Grpc {
            request_headers: names(&grpc.request_headers)?,
        },
    };
    let max_body = u16::try_from(wire.max_body);
    Ok(FilterSpec::Auth {
        backend: required(&wire.backend, "an authorization server")?,
        protocol,
        max_body: max_body.map_err(|_| RejectReason::InvalidFilter("the size of a body"))?,
    })
}

fn cors(wire: &proto::Cors) -> Result<Cors, RejectReason> {
    bounded(wire.allow_origins.len(), "a list of origins")?;
    let origin = |text: &String| {
        OriginPattern::parse(text).map_err(|_| RejectReason::InvalidFilter("an origin"))
    };
    let method = |text: &str| Method::from_bytes(text.as_bytes()).is_ok();
    let header = |text: &str| HeaderName::try_from(text).is_ok();
    let listed = |list: &[String], is_name: fn(&str) -> bool| match list {
        [] => Ok(Allowed::Nothing),
        [all] if all == "*" => Ok(Allowed::Asked),
        list => names(list, is_name).map(Allowed::Listed),
    };
    bounded(wire.expose_headers.len(), "a list of names")?;
    let mut exposed = wire.expose_headers.clone();
    if wire.allow_credentials {
        // Browsers do not accept `*` together with credentials.
        exposed.retain(|name| name != "*");
    }
    let exposed = match exposed.as_slice() {
        [] => None,
        list => Some(names(list, header)?),
    };
    let origins = wire.allow_origins.iter().map(origin);
    Ok(Cors {
        origins: origins.collect::<Result<_, _>>()?,
        credentials: wire.allow_credentials,
        methods: listed(&wire.allow_methods, method)?,
        headers: listed(&wire.allow_headers, header)?,
        exposed,
        max_age: HeaderValue::from(wire.max_age),
    })
}

/// A value with all of these names.
fn names(list: &[String], is_name: fn(&str) -> bool) -> Result<HeaderValue, RejectReason> {
    bounded(list.len(), "a list of names")?;
    let invalid = || RejectReason::InvalidFilter("a name in a CORS filter");
    if !list.iter().all(|name| is_name(name)) {
        return Err(invalid());
    }
    HeaderValue::try_from(list.join(", ")).map_err(|_| invalid())
}

fn filter(wire: &proto::http_filter::Filter) -> Result<Filter, RejectReason> {
    use proto::http_filter::Filter as Wire;

    match wire {
        Wire::RequestHeaders(edit) => Ok(Filter::RequestHeaders(header_edit(edit)?)),
        Wire::ResponseHeaders(edit) => Ok(Filter::ResponseHeaders(header_edit(edit)?)),
        Wire::Redirect(redirect) => Ok(Filter::Redirect(redirect_of(redirect)?)),
        Wire::Rewrite(rewrite) => {
            let hostname = match &*rewrite.hostname {
                "" => None,
                text => Some(hostname(text)?),
            };
            let value = hostname.map(|text| HeaderValue::try_from(&*text));
            let invalid = RejectReason::InvalidFilter("a rewrite's hostname");
            Ok(Filter::Rewrite(Rewrite {
                hostname: value.transpose().map_err(|_| invalid)?,
                path: path_edit(rewrite.path.as_ref())?,
            }))
        }
        Wire::Cors(wire) => Ok(Filter::Cors(Box::new(cors(wire)?))),
        // These have a reference to a backend, so they are read elsewhere.
        Wire::Mirror(_) | Wire::ExternalAuth(_) => Err(RejectReason::UnknownResource("a filter")),
        Wire::Fail(status) => Ok(Filter::Fail(status_in(*status, 400..600)?)),
    }
}

fn status_in(status: u32, range: std::ops::Range<u16>) -> Result<StatusCode, RejectReason> {
    u16::try_from(status)
        .ok()
        .filter(|status| range.contains(status))
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or(RejectReason::InvalidFilter("a status code"))
}

fn redirect_of(wire: &proto::HttpRedirect) -> Result<Redirect, RejectReason> {
    let scheme = match &*wire.scheme {
        "" => None,
        "http" => Some(Scheme::Http),
        "https" => Some(Scheme::Https),
        _ => return Err(RejectReason::InvalidFilter("a redirect's scheme")),
    };
    let hostname = match &*wire.hostname {
        "" => None,
        text => Some(hostname(text)?),
    };
    let port = u16::try_from(wire.port).map_err(|_| RejectReason::InvalidFilter("a port"))?;
    Ok(Redirect {
        scheme,
        hostname,
        port: (port != 0).then_some(port),
        path: path_edit(wire.path.as_ref())?,
        status: status_in(wire.status, 300..400)?,
    })
}

fn hostname(text: &str) -> Result<Box<str>, RejectReason> {
    let invalid = || RejectReason::InvalidFilter("a hostname");
    let name = Hostname::parse(text).map_err(|_| invalid())?;
    Authority::try_from(name.as_str()).map_err(|_| invalid())?;
    Ok(name.as_str().into())
}

fn path_edit(wire: Option<&proto::PathModifier>) -> Result<Option<PathEdit>, RejectReason> {
    use proto::path_modifier::Path;

    let Some(wire) = wire else { return Ok(None) };
    match &wire.path {
        None => Err(RejectReason::UnknownResource("a path modifier")),
        Some(Path::Full(text)) => Ok(Some(PathEdit::Full(part_of_uri(text)?.into()))),
        Some(Path::Prefix(text)) => {
            let text = part_of_uri(text)?;
            let text = text.strip_suffix('/').unwrap_or(&text);
            Ok(Some(PathEdit::Prefix(text.into())))
        }
    }
}

/// A path that requests and `location` can have.
fn part_of_uri(text: &str) -> Result<String, RejectReason> {
    let path = if text.starts_with('/') {
        text.to_owned()
    } else {
        format!("/{text}")
    };
    let read = PathAndQuery::try_from(path.as_str());
    let whole = read.is_ok_and(|read| read.path() == path && read.query().is_none());
    if whole && path.len() <= MAX_PATH + 1 && path.is_ascii() {
        Ok(path)
    } else {
        Err(RejectReason::InvalidFilter("a path"))
    }
}

/// Headers that filters must not change. They say where a message ends or when it is sent, or where a request goes. A
/// connection to a backend carries requests of several routes, so one route could change the requests of another by them.
const KEPT: [HeaderName; 11] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

fn header_edit(wire: &proto::HeaderModifier) -> Result<HeaderEdit, RejectReason> {
    bounded(wire.set.len(), "a list of headers")?;
    bounded(wire.add.len(), "a list of headers")?;
    bounded(wire.remove.len(), "a list of headers")?;
    let name = |text: &str| match HeaderName::try_from(text) {
        Ok(name) if !KEPT.contains(&name) => Ok(name),
        Ok(_) => Err(RejectReason::InvalidFilter(
            "a header that filters must not change",
        )),
        Err(_) => Err(RejectReason::InvalidFilter("the name of a header")),
    };
    let field = |field: &proto::HttpField| {
        let value = HeaderValue::try_from(&field.value);
        let value = value.map_err(|_| RejectReason::InvalidFilter("the value of a header"))?;
        Ok((name(&field.name)?, value))
    };
    Ok(HeaderEdit {
        set: wire.set.iter().map(field).collect::<Result<_, _>>()?,
        add: wire.add.iter().map(field).collect::<Result<_, _>>()?,
        remove: wire
            .remove
            .iter()
            .map(|text| name(text))
            .collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(rule: proto::HttpRule) -> proto::HttpRoute {
        proto::HttpRoute {
            tenant: "team-a".into(),
            rules: vec![rule],
            ..Default::default()
        }
    }

    fn reason(rule: proto::HttpRule) -> &'static str {
        route("team-a/web", false, &wire(rule)).map_or_else(|error| error.reason(), |_| "")
    }

    fn with_match(of: proto::HttpMatch) -> proto::HttpRule {
        proto::HttpRule {
            matches: vec![of],
            ..Default::default()
        }
    }

    fn with_path(path: proto::http_match::Path) -> proto::HttpRule {
        with_match(proto::HttpMatch {
            path: Some(path),
            ..Default::default()
        })
    }

    fn with_filter(filter: proto::http_filter::Filter) -> proto::HttpRule {
        proto::HttpRule {
            filters: vec![proto::HttpFilter {
                filter: Some(filter),
            }],
            ..Default::default()
        }
    }

    #[test]
    fn bad_matches_say_why() {
        use proto::http_match::Path;

        assert_eq!(reason(proto::HttpRule::default()), "");
        assert_eq!(reason(with_path(Path::Exact("/a".into()))), "");
        assert_eq!(reason(with_path(Path::Exact("a".into()))), "InvalidMatch");
        assert_eq!(
            reason(with_path(Path::Prefix(String::new()))),
            "InvalidMatch"
        );
        let long = format!("/{}", "a".repeat(MAX_PATH));
        assert_eq!(reason(with_path(Path::Prefix(long))), "InvalidMatch");
        assert_eq!(reason(with_path(Path::Regex("/a|b".into()))), "");
        assert_eq!(reason(with_path(Path::Regex("(".into()))), "InvalidRegex");
        assert_eq!(
            reason(with_path(Path::Regex("a)|(b".into()))),
            "InvalidRegex"
        );
        let huge = with_path(Path::Regex("((a{99}){99}){99}".into()));
        assert_eq!(reason(huge), "InvalidRegex");
        let method = proto::HttpMatch {
            method: "G T".into(),
            ..Default::default()
        };
        assert_eq!(reason(with_match(method)), "InvalidMatch");
        let header = |name: &str, value| proto::HttpMatch {
            headers: vec![proto::HttpValueMatch {
                name: name.into(),
                value,
            }],
            ..Default::default()
        };
        let exact = Some(proto::http_value_match::Value::Exact("x".into()));
        assert_eq!(reason(with_match(header("a", exact.clone()))), "");
        assert_eq!(reason(with_match(header("a b", exact))), "InvalidMatch");
        assert_eq!(reason(with_match(header("a", None))), "UnknownResource");
    }

    #[test]
    fn a_bad_authorization_says_why() {
        use proto::http_filter::Filter as Wire;

        let auth = |backend: &str, path_prefix: &str, header: &str, max_body| {
            with_filter(Wire::ExternalAuth(proto::ExternalAuth {
                backend: backend.into(),
                protocol: Some(proto::external_auth::Protocol::Http(proto::HttpAuth {
                    path_prefix: path_prefix.into(),
                    request_headers: vec![header.into()],
                    response_headers: Vec::new(),
                })),
                max_body,
            }))
        };
        assert_eq!(reason(auth("team-a/auth:80", "", "x-a", 0)), "");
        assert_eq!(reason(auth("team-a/auth:80", "/check", "x-a", 65_535)), "");
        assert_eq!(reason(auth("", "", "x-a", 0)), "MissingField");
        assert_eq!(
            reason(auth("team-a/auth:80", "/a?b", "x-a", 0)),
            "InvalidFilter"
        );
        assert_eq!(
            reason(auth("team-a/auth:80", "", "x a", 0)),
            "InvalidFilter"
        );
        assert_eq!(
            reason(auth("team-a/auth:80", "", "x-a", 65_536)),
            "InvalidFilter"
        );
        let asked_how = with_filter(Wire::ExternalAuth(proto::ExternalAuth {
            backend: "team-a/auth:80".into(),
            protocol: None,
            max_body: 0,
        }));
        assert_eq!(reason(asked_how), "UnknownResource");
        let rule_of_backend = proto::HttpRule {
            backends: vec![proto::HttpBackend {
                filters: auth("team-a/auth:80", "", "x-a", 0).filters,
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(reason(rule_of_backend), "InvalidFilter");
    }

    #[test]
    fn bad_filters_say_why() {
        use proto::http_filter::Filter as Wire;
        use proto::path_modifier::Path;

        let headers = |name: &str, value: &str| {
            with_filter(Wire::RequestHeaders(proto::HeaderModifier {
                set: vec![proto::HttpField {
                    name: name.into(),
                    value: value.into(),
                }],
                ..Default::default()
            }))
        };
        assert_eq!(reason(headers("x-a", "b")), "");
        assert_eq!(reason(headers("x a", "b")), "InvalidFilter");
        assert_eq!(reason(headers("x-a", "b\r\nc: d")), "InvalidFilter");
        assert_eq!(reason(headers("Content-Length", "1")), "InvalidFilter");
        for name in [
            "transfer-encoding",
            "expect",
            "http2-settings",
            "keep-alive",
        ] {
            assert_eq!(reason(headers(name, "a")), "InvalidFilter", "{name}");
        }
        let redirect = |scheme: &str, hostname: &str, port, status| {
            with_filter(Wire::Redirect(proto::HttpRedirect {
                scheme: scheme.into(),
                hostname: hostname.into(),
                port,
                path: None,
                status,
            }))
        };
        assert_eq!(reason(redirect("https", "a.example.com", 8443, 308)), "");
        assert_eq!(reason(redirect("ftp", "", 0, 302)), "InvalidFilter");
        assert_eq!(reason(redirect("", "a/b", 0, 302)), "InvalidFilter");
        assert_eq!(reason(redirect("", "", 65_536, 302)), "InvalidFilter");
        assert_eq!(reason(redirect("", "", 0, 200)), "InvalidFilter");
        assert_eq!(reason(with_filter(Wire::Fail(500))), "");
        assert_eq!(reason(with_filter(Wire::Fail(200))), "InvalidFilter");
        let mirror = |backend: &str, numerator, denominator| {
            with_filter(Wire::Mirror(proto::Mirror {
                backend: backend.into(),
                numerator,
                denominator,
            }))
        };
        assert_eq!(reason(mirror("team-a/two:80", 0, 1)), "");
        assert_eq!(reason(mirror("team-a/two:80", 2, 1)), "InvalidFilter");
        assert_eq!(reason(mirror("team-a/two:80", 0, 0)), "InvalidFilter");
        assert_eq!(reason(mirror("", 1, 1)), "MissingField");
        let cors = |origin: &str, method: &str, header: &str| {
            with_filter(Wire::Cors(proto::Cors {
                allow_origins: vec![origin.into()],
                allow_methods: vec![method.into()],
                allow_headers: vec![header.into()],
                ..Default::default()
            }))
        };
        assert_eq!(reason(cors("https://*.a.example", "GET", "x-a")), "");
        assert_eq!(reason(cors("*", "*", "*")), "");
        assert_eq!(reason(cors("a.example", "GET", "x-a")), "InvalidFilter");
        assert_eq!(reason(cors("*", "G T", "x-a")), "InvalidFilter");
        assert_eq!(reason(cors("*", "GET", "x-a\r\nb")), "InvalidFilter");
        let retry = |code| proto::HttpRule {
            retry: Some(proto::HttpRetry {
                codes: vec![code],
                attempts: u32::MAX,
                backoff: Some(u64::MAX),
            }),
            ..Default::default()
        };
        assert_eq!(reason(retry(503)), "");
        assert_eq!(reason(retry(200)), "InvalidFilter");
        assert_eq!(reason(retry(70_000)), "InvalidFilter");
        let rewrite = |path| {
            with_filter(Wire::Rewrite(proto::UrlRewrite {
                hostname: String::new(),
                path: Some(proto::PathModifier { path: Some(path) }),
            }))
        };
        assert_eq!(reason(rewrite(Path::Full("/a".into()))), "");
        for path in ["/a?b", "/a#b", "/a b", "/ä", "/a\r\nb"] {
            let full = rewrite(Path::Full(path.into()));
            assert_eq!(reason(full), "InvalidFilter", "{path}");
        }
        let mut prefix = rewrite(Path::Prefix("/x/".into()));
        assert_eq!(reason(prefix.clone()), "");
        prefix.matches.push(proto::HttpMatch {
            path: Some(proto::http_match::Path::Exact("/a".into())),
            ..Default::default()
        });
        assert_eq!(reason(prefix), "InvalidFilter");
        let unknown = proto::HttpRule {
            filters: vec![proto::HttpFilter { filter: None }],
            ..Default::default()
        };
        assert_eq!(reason(unknown), "UnknownResource");
    }
}
