//! HTTPRoutes of the small world.

use std::time::Duration;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::http::{
    AuthProtocol, ExternalAuth, HeaderModifier, HttpBackend, HttpFilter, HttpMatch, HttpRoute,
    HttpRule, HttpTimeouts, MethodMatch, Mirror, PathMatch, Retry, SessionCarrier,
    SessionPersistence, ValueMatch,
};
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::reference::{BackendRef, ParentRef, Reference};

use crate::objects::{meta, pattern};

/// What a rule is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every request, to the backends.
    Plain,
    /// A path, with a filter and a timeout.
    Filtered,
    /// A path, with a filter that is not there.
    Extension,
    /// A path, with a copy of its requests for the first backend, which also are made again.
    Mirrored,
    /// A path, whose requests the first backend authorizes.
    Authorized,
    /// A path, with sessions.
    Sticky,
    /// Refused, but its path can be read.
    Refused,
    /// Refused, and nothing can be read.
    Unreadable,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Filtered,
        Self::Extension,
        Self::Mirrored,
        Self::Authorized,
        Self::Sticky,
        Self::Refused,
        Self::Unreadable,
    ];

    fn build(self, index: usize, backends: &[BackendRef]) -> HttpRule {
        let field = format!("spec.rules[{index}]");
        let mut rule = HttpRule {
            name: None,
            field: field.clone(),
            matches: vec![HttpMatch {
                path: PathMatch::Prefix(format!("/{index}").into()),
                ..HttpMatch::default()
            }],
            filters: Vec::new(),
            backends: backends
                .iter()
                .map(|backend| HttpBackend {
                    backend: backend.clone(),
                    filters: Vec::new(),
                })
                .collect(),
            timeouts: HttpTimeouts::default(),
            retry: None,
            session: None,
            findings: Vec::new(),
        };
        let refusal = || Finding::refused(Reason::UnsupportedValue, &field, "is wrong", "");
        match self {
            Self::Plain => rule.matches = vec![HttpMatch::default()],
            Self::Filtered => {
                rule.filters
                    .push(HttpFilter::RequestHeaders(HeaderModifier {
                        remove: vec!["x-a".into()],
                        ..HeaderModifier::default()
                    }));
                rule.timeouts.request = Some(Duration::from_secs(1));
            }
            Self::Extension => rule.filters.push(HttpFilter::Extension(Reference {
                group: "example.com".into(),
                kind: "Limit".into(),
                target: ObjectName::new("a", "one"),
                field: format!("{field}.filters[0].extensionRef"),
            })),
            Self::Mirrored => {
                rule.filters.extend(backends.first().map(|backend| {
                    HttpFilter::Mirror(Mirror {
                        backend: backend.clone(),
                        numerator: 1,
                        denominator: 3,
                    })
                }));
                rule.retry = Some(Retry {
                    codes: [503].into(),
                    attempts: 2,
                    backoff: None,
                });
                // Nobody else uses the first backend.
                rule.backends.drain(..rule.backends.len().min(1));
            }
            Self::Authorized => {
                rule.filters.extend(backends.first().map(|backend| {
                    HttpFilter::Auth(ExternalAuth {
                        backend: backend.clone(),
                        protocol: AuthProtocol::Http {
                            path_prefix: "/check".into(),
                            request_headers: vec!["cookie".into()],
                            response_headers: Vec::new(),
                        },
                        max_body: 1024,
                    })
                }));
                // Nobody else uses the first backend.
                rule.backends.drain(..rule.backends.len().min(1));
            }
            Self::Sticky => {
                rule.session = Some(SessionPersistence {
                    carrier: SessionCarrier::Cookie {
                        name: None,
                        path: "/".into(),
                        permanent: false,
                    },
                    absolute_timeout: None,
                });
            }
            Self::Refused => rule.findings.push(refusal()),
            Self::Unreadable => {
                rule.matches.clear();
                rule.findings.push(refusal());
            }
        }
        rule
    }
}

/// An HTTPRoute; without hostnames it is for all of them.
pub fn http_route(
    (namespace, name, created): (&str, &str, i64),
    parents: Vec<ParentRef>,
    hostnames: &[&str],
    rules: &[Rule],
    backends: &[BackendRef],
) -> Object {
    let mut patterns: Vec<_> = hostnames.iter().map(|h| pattern(h)).enumerate().collect();
    if patterns.is_empty() {
        patterns.push((0, HostPattern::Any));
    }
    Object::HttpRoute(HttpRoute {
        kind: Kind::HttpRoute,
        name: ObjectName::new(namespace, name),
        meta: meta(created),
        parents,
        hostnames: patterns,
        rules: rules
            .iter()
            .enumerate()
            .map(|(index, rule)| rule.build(index, backends))
            .collect(),
        findings: Vec::new(),
    })
}

/// A GRPCRoute of the same: what a prefix takes of the paths of an HTTPRoute, a service takes of its calls. It has none of
/// the filters that are only for HTTPRoutes.
pub fn as_grpc(mut object: Object) -> Object {
    if let Object::HttpRoute(route) = &mut object {
        route.kind = Kind::GrpcRoute;
        for rule in &mut route.rules {
            rule.filters
                .retain(|filter| !matches!(filter, HttpFilter::Auth(_)));
        }
        for of in route.rules.iter_mut().flat_map(|rule| &mut rule.matches) {
            let service = match &of.path {
                PathMatch::Prefix(path) if path.len() > 1 => Some(format!("s{}", &path[1..])),
                _ => None,
            };
            of.path = PathMatch::Method(MethodMatch {
                service: service.map(|text| ValueMatch::Exact(text.into())),
                method: None,
            });
        }
    }
    object
}
