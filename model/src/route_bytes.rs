//! How many bytes a route has in the configuration that every proxy gets. All functions here return upper bounds, and close
//! ones: they take every reference for one that resolves, and every number for a large one. So what a route counts for depends
//! on its spec and on its listeners, and not on other objects. In particular, it does not depend on which backends are over
//! a budget of their own, which in turn depends on the routes.

use std::sync::Arc;

use crate::finding::Finding;
use crate::hostname::HostPattern;
use crate::http::{
    AuthProtocol, Cors, CorsNames, ExposedHeaders, HeaderModifier, HttpBackend, HttpFilter,
    HttpMatch, HttpRule, PathMatch, PathModifier, Redirect, Retry, Rewrite, SessionCarrier,
    SessionPersistence, ValueMatch,
};
use crate::key::{ListenerKey, ObjectName};
use crate::namespace_budget;
use crate::path::PathPrefix;
use crate::reference::BackendRef;
use crate::route::Route;

/// The tag and the length of a text or of a message within another one.
const FIELD_FRAME: usize = 4;

/// A number of 32 bits, with its tag.
const NUMBER: usize = 6;

/// A number of 64 bits, with its tag.
const LONG_NUMBER: usize = 11;

/// The keys of a rule with session persistence: four of 32 bytes each.
const SESSION_KEYS: usize = 4 * (32 + 2 * FIELD_FRAME);

/// The name of the cookie of a rule that does not set one.
const OWN_COOKIE_NAME: usize = 64;

/// The length of what follows the name of a Service in the name of a backend: the port and the protocol.
const BACKEND_PORT: usize = ":65535/udp".len();

fn text(text: &str) -> usize {
    FIELD_FRAME + text.len()
}

fn message(bytes: impl IntoIterator<Item = usize>) -> usize {
    FIELD_FRAME + bytes.into_iter().sum::<usize>()
}

fn object(name: &ObjectName) -> usize {
    FIELD_FRAME + name.namespace.len() + "/".len() + name.name.len()
}

/// The bytes of a route apart from its listeners and hostnames.
pub(crate) fn of_content(route: Route<'_>) -> usize {
    let name = route.name();
    let (created, frame) = (LONG_NUMBER, namespace_budget::FRAME);
    message([
        object(name),
        text(&name.namespace),
        created,
        of_rules(route),
        frame,
    ])
}

/// The bytes of what the rules of a route say, with the names of its backends.
pub(crate) fn of_rules(route: Route<'_>) -> usize {
    match route {
        Route::Http(route) => route.rules.iter().map(rule).sum(),
        Route::Tls(route) => route.backends.iter().map(weighted).sum(),
        Route::Port(route) => route.backends.iter().map(weighted).sum(),
    }
}

/// The bytes that a route has for a listener that it is attached to, apart from its hostnames there.
pub(crate) fn of_listener(listener: &ListenerKey) -> usize {
    let name = listener.parent.name();
    let longest_kind = "ListenerSet/".len();
    message([longest_kind, object(name), text(&listener.listener)])
}

/// The bytes that a route has for a hostname on a listener. `paths` are those that a grant gives it there, if it gives only
/// some.
pub(crate) fn of_hostname(
    matches: &HostPattern,
    rank: &HostPattern,
    paths: &[PathPrefix],
) -> usize {
    let shared = NUMBER;
    let paths = paths.iter().map(|path| text(path.as_str())).sum();
    message([pattern(matches), pattern(rank), shared, paths])
}

fn pattern(pattern: &HostPattern) -> usize {
    match pattern {
        HostPattern::Any => 0,
        HostPattern::Wildcard(suffix) => text(suffix.as_str()) + "*.".len(),
        HostPattern::Exact(name) => text(name.as_str()),
    }
}

fn rule(rule: &HttpRule) -> usize {
    let HttpRule {
        name,
        field: _,
        matches,
        filters,
        backends,
        timeouts,
        retry,
        session,
        findings,
    } = rule;
    let name = name.as_deref().map_or(0, text);
    let backends = backends.iter().map(|HttpBackend { backend, filters }| {
        weighted(backend) + filters.iter().map(filter).sum::<usize>()
    });
    let timeouts = [timeouts.request, timeouts.backend_request];
    let timeouts = timeouts.into_iter().flatten().map(|_| LONG_NUMBER);
    // Requests of a rule that is refused get an error, which is a filter.
    let error = findings.iter().find(|finding| finding.refuses());
    message([
        name,
        matches.iter().map(one_match).sum(),
        filters.iter().map(filter).sum(),
        backends.sum(),
        message(timeouts),
        retry.as_ref().map_or(0, of_retry),
        session.as_ref().map_or(0, of_session),
        error.map_or(0, |_: &Finding| message([NUMBER])),
    ])
}

fn of_retry(retry: &Retry) -> usize {
    let codes = message(retry.codes.iter().map(|_| 2));
    message([codes, NUMBER, LONG_NUMBER])
}

fn of_session(session: &SessionPersistence) -> usize {
    let carrier = match &session.carrier {
        SessionCarrier::Cookie {
            name,
            path,
            permanent: _,
        } => {
            let name = name.as_deref().map_or(OWN_COOKIE_NAME, str::len);
            message([FIELD_FRAME + name, text(path), NUMBER])
        }
        SessionCarrier::Header(name) => text(name),
    };
    message([carrier, LONG_NUMBER, SESSION_KEYS])
}

/// A reference to a backend, with its weight.
fn weighted(backend: &BackendRef) -> usize {
    message([backend_name(backend), NUMBER])
}

fn backend_name(backend: &BackendRef) -> usize {
    object(&backend.reference.target) + BACKEND_PORT
}

fn one_match(one: &HttpMatch) -> usize {
    let HttpMatch {
        path,
        headers,
        query,
        method,
    } = one;
    let path = match path {
        PathMatch::Exact(path) | PathMatch::Prefix(path) => text(path),
        PathMatch::Regex(pattern) => text(pattern.as_str()),
        PathMatch::Method(one) => {
            let parts = [&one.service, &one.method].into_iter().flatten();
            message(parts.map(value))
        }
    };
    let values = headers.iter().chain(query);
    let values = values.map(|(name, of)| message([text(name), value(of)]));
    message([path, values.sum(), method.as_deref().map_or(0, text)])
}

fn value(value: &ValueMatch) -> usize {
    match value {
        ValueMatch::Exact(exact) => text(exact),
        ValueMatch::Regex(pattern) => text(pattern.as_str()),
    }
}

fn filter(filter: &HttpFilter) -> usize {
    let path = |path: &Option<PathModifier>| match path {
        Some(PathModifier::Full(path) | PathModifier::Prefix(path)) => message([text(path)]),
        None => 0,
    };
    let of_filter = match filter {
        HttpFilter::RequestHeaders(modifier) | HttpFilter::ResponseHeaders(modifier) => {
            let HeaderModifier { set, add, remove } = modifier;
            let fields = set.iter().chain(add);
            let fields = fields.map(|(name, value)| message([text(name), text(value)]));
            fields.chain(remove.iter().map(|name| text(name))).sum()
        }
        HttpFilter::Redirect(redirect) => {
            let Redirect {
                scheme,
                hostname,
                port: _,
                path: to,
                status: _,
            } = redirect;
            let scheme = scheme.map_or(0, |scheme| text(scheme.as_str()));
            let hostname = hostname.as_ref().map_or(0, |name| text(name.as_str()));
            scheme + hostname + path(to) + NUMBER + NUMBER
        }
        HttpFilter::Rewrite(Rewrite { hostname, path: to }) => {
            hostname.as_ref().map_or(0, |name| text(name.as_str())) + path(to)
        }
        HttpFilter::Cors(cors) => {
            let Cors {
                origins,
                credentials: _,
                methods,
                headers,
                exposed,
                max_age: _,
            } = cors;
            let names = [methods, headers].into_iter();
            let names = names.map(|names| match names {
                CorsNames::All => text("*"),
                CorsNames::Listed(names) => names.iter().map(|name| text(name)).sum(),
            });
            let ExposedHeaders { all, names: listed } = exposed;
            let exposed = listed.iter().map(|name| text(name));
            let exposed = exposed.chain(all.then(|| text("*")));
            let origins = origins.iter().map(|origin| text(&origin.to_string()));
            names.chain(exposed).chain(origins).sum::<usize>() + NUMBER + NUMBER
        }
        HttpFilter::Mirror(mirror) => backend_name(&mirror.backend) + NUMBER + NUMBER,
        HttpFilter::Auth(auth) => {
            let names = |list: &[Arc<str>]| list.iter().map(|name| text(name)).sum::<usize>();
            let protocol = match &auth.protocol {
                AuthProtocol::Http {
                    path_prefix,
                    request_headers,
                    response_headers,
                } => text(path_prefix) + names(request_headers) + names(response_headers),
                AuthProtocol::Grpc { request_headers } => names(request_headers),
            };
            backend_name(&auth.backend) + message([protocol]) + NUMBER
        }
        HttpFilter::Extension(_) => NUMBER,
    };
    message([message([of_filter])])
}
