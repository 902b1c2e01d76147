//! HTTPRoutes and GRPCRoutes: which rules take effect, and the resource.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{
    AuthProtocol, Cors, CorsNames, ExternalAuth, HeaderModifier, HttpFilter, HttpMatch, HttpRoute,
    HttpRule, MethodMatch, Mirror, PathMatch, PathModifier, Redirect, Retry, Rewrite, ValueMatch,
};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::reference::Reference;
use vestibule_stream::proto::{
    self, external_auth, grpc_method, http_filter, http_match, http_value_match, path_modifier,
};

use super::Translator;
use super::route_parents::http_refusal;
use super::route_state::{Body, Judged, References};

/// Status of the response to requests that match a rule that cannot be used.
const BROKEN: u32 = 500;

impl Translator {
    pub(super) fn judge_http_route(&self, route: &HttpRoute) -> Judged {
        let key = route.key();
        let mut findings = route.findings.clone();
        findings.extend(route.rules.iter().flat_map(|rule| rule.findings.clone()));
        let mut dropped: Vec<(String, Finding)> = route
            .rules
            .iter()
            .filter_map(|rule| Some((rule.field.clone(), rule.refusal()?.clone())))
            .collect();
        let over = self.patterns.refusal(&key);
        findings.extend(over.clone());
        let refused = http_refusal(route).cloned().or(over);
        if refused.is_some() {
            dropped.clear();
        }
        let mut references = References::default();
        let rules = route
            .rules
            .iter()
            .filter_map(|rule| match rule.refusal() {
                None => Some(self.rule(&key, rule, &mut references)),
                Some(_) => self.dropped_rule(&key, rule, &mut references),
            })
            .collect();
        Judged {
            findings,
            refused,
            dropped,
            references,
            body: Body::Http {
                kind: route.kind,
                route: proto::HttpRoute {
                    tenant: route.name.namespace.to_string(),
                    created: route.meta.created,
                    attachments: Vec::new(),
                    rules,
                },
            },
        }
    }

    fn rule(
        &self,
        route: &ObjectKey,
        rule: &HttpRule,
        references: &mut References,
    ) -> proto::HttpRule {
        let filters = self.filters(route, &rule.filters, references);
        let backends = rule
            .backends
            .iter()
            .map(|backend| proto::HttpBackend {
                backend: self.resolve_backend(route, &backend.backend, references),
                weight: backend.backend.weight,
                filters: self.filters(route, &backend.filters, references),
            })
            .collect();
        let timeouts = rule.timeouts;
        let some = timeouts.request.is_some() || timeouts.backend_request.is_some();
        proto::HttpRule {
            name: rule.name.as_deref().unwrap_or_default().to_owned(),
            matches: rule.matches.iter().map(a_match).collect(),
            filters,
            backends,
            timeouts: some.then(|| proto::HttpTimeouts {
                request: timeouts.request.map(millis),
                backend_request: timeouts.backend_request.map(millis),
            }),
            retry: rule.retry.as_ref().map(retry),
            session: self.session(route, rule),
        }
    }

    fn filters(
        &self,
        route: &ObjectKey,
        filters: &[HttpFilter],
        references: &mut References,
    ) -> Vec<proto::HttpFilter> {
        let one = |filter: &HttpFilter| {
            let filter = match filter {
                HttpFilter::RequestHeaders(headers) => {
                    http_filter::Filter::RequestHeaders(modifier(headers))
                }
                HttpFilter::ResponseHeaders(headers) => {
                    http_filter::Filter::ResponseHeaders(modifier(headers))
                }
                HttpFilter::Redirect(to) => http_filter::Filter::Redirect(redirect(to)),
                HttpFilter::Rewrite(to) => http_filter::Filter::Rewrite(rewrite(to)),
                HttpFilter::Cors(of) => http_filter::Filter::Cors(cors(of)),
                HttpFilter::Mirror(to) => {
                    http_filter::Filter::Mirror(self.mirror(route, to, references)?)
                }
                HttpFilter::Auth(auth) => match self.external_auth(route, auth, references) {
                    Some(auth) => http_filter::Filter::ExternalAuth(auth),
                    None => return Some(fail()),
                },
                HttpFilter::Extension(reference) => {
                    references.broken(no_extension(reference));
                    return Some(fail());
                }
            };
            Some(proto::HttpFilter {
                filter: Some(filter),
            })
        };
        filters.iter().filter_map(one).collect()
    }

    /// The mirror as a message; `None` if its reference does not resolve. Requests are then not copied.
    fn mirror(
        &self,
        route: &ObjectKey,
        mirror: &Mirror,
        references: &mut References,
    ) -> Option<proto::Mirror> {
        let backend = self.resolve_backend(route, &mirror.backend, references);
        (!backend.is_empty()).then_some(proto::Mirror {
            backend,
            numerator: mirror.numerator,
            denominator: mirror.denominator,
        })
    }

    /// The filter that has requests authorized as a message; `None` if the reference to its server does not resolve. No
    /// request may pass then.
    fn external_auth(
        &self,
        route: &ObjectKey,
        auth: &ExternalAuth,
        references: &mut References,
    ) -> Option<proto::ExternalAuth> {
        // A server that is called by gRPC gets such requests as the backend of a GRPCRoute.
        let (protocol, traffic) = match &auth.protocol {
            AuthProtocol::Http {
                path_prefix,
                request_headers,
                response_headers,
            } => {
                let http = proto::HttpAuth {
                    path_prefix: path_prefix.to_string(),
                    request_headers: texts(request_headers),
                    response_headers: texts(response_headers),
                };
                (external_auth::Protocol::Http(http), Kind::HttpRoute)
            }
            AuthProtocol::Grpc { request_headers } => {
                let grpc = proto::GrpcAuth {
                    request_headers: texts(request_headers),
                };
                (external_auth::Protocol::Grpc(grpc), Kind::GrpcRoute)
            }
        };
        let backend = self.resolve_backend_for(route, traffic, &auth.backend, references);
        (!backend.is_empty()).then_some(proto::ExternalAuth {
            backend,
            max_body: auth.max_body.into(),
            protocol: Some(protocol),
        })
    }

    /// The rule that takes the place of a refused one: it answers the requests that the refused rule
    /// would match with an error. Otherwise another rule would answer them, which may lack the
    /// conditions by which the refused rule keeps requests out.
    fn dropped_rule(
        &self,
        route: &ObjectKey,
        rule: &HttpRule,
        references: &mut References,
    ) -> Option<proto::HttpRule> {
        // The references of the rule are judged, but no request uses them.
        let mut own = References::default();
        self.rule(route, rule, &mut own);
        own.findings
            .into_iter()
            .for_each(|finding| references.broken(finding));
        // A rule without a match would match every request.
        (!rule.matches.is_empty()).then(|| proto::HttpRule {
            name: rule.name.as_deref().unwrap_or_default().to_owned(),
            matches: rule.matches.iter().map(a_match).collect(),
            filters: vec![fail()],
            ..Default::default()
        })
    }
}

fn fail() -> proto::HttpFilter {
    proto::HttpFilter {
        filter: Some(http_filter::Filter::Fail(BROKEN)),
    }
}

fn texts(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn retry(retry: &Retry) -> proto::HttpRetry {
    proto::HttpRetry {
        codes: retry.codes.iter().map(|code| u32::from(*code)).collect(),
        attempts: retry.attempts,
        backoff: retry.backoff.map(millis),
    }
}

fn cors(cors: &Cors) -> proto::Cors {
    let names = |names: &CorsNames| match names {
        CorsNames::All => vec!["*".to_owned()],
        CorsNames::Listed(names) => names.iter().map(ToString::to_string).collect(),
    };
    let exposed = &cors.exposed;
    let all = exposed.all.then(|| "*".to_owned());
    let listed = exposed.names.iter().map(ToString::to_string);
    proto::Cors {
        allow_origins: cors.origins.iter().map(ToString::to_string).collect(),
        allow_credentials: cors.credentials,
        allow_methods: names(&cors.methods),
        allow_headers: names(&cors.headers),
        expose_headers: all.into_iter().chain(listed).collect(),
        max_age: cors.max_age,
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

fn a_match(one: &HttpMatch) -> proto::HttpMatch {
    proto::HttpMatch {
        path: Some(match &one.path {
            PathMatch::Exact(path) => http_match::Path::Exact(path.to_string()),
            PathMatch::Prefix(path) => http_match::Path::Prefix(path.to_string()),
            PathMatch::Regex(pattern) => http_match::Path::Regex(pattern.as_str().to_owned()),
            PathMatch::Method(method) => http_match::Path::GrpcMethod(grpc_method(method)),
        }),
        headers: one.headers.iter().map(value).collect(),
        query: one.query.iter().map(value).collect(),
        method: one.method.as_deref().unwrap_or_default().to_owned(),
    }
}

fn grpc_method(one: &MethodMatch) -> proto::GrpcMethod {
    let text = |value: &ValueMatch| match value {
        ValueMatch::Exact(text) => (text.to_string(), false),
        ValueMatch::Regex(pattern) => (pattern.as_str().to_owned(), true),
    };
    proto::GrpcMethod {
        service: one.service.as_ref().map(|value| match text(value) {
            (text, false) => grpc_method::Service::ExactService(text),
            (text, true) => grpc_method::Service::ServiceRegex(text),
        }),
        method: one.method.as_ref().map(|value| match text(value) {
            (text, false) => grpc_method::Method::ExactMethod(text),
            (text, true) => grpc_method::Method::MethodRegex(text),
        }),
    }
}

fn value((name, value): &(Arc<str>, ValueMatch)) -> proto::HttpValueMatch {
    proto::HttpValueMatch {
        name: name.to_string(),
        value: Some(match value {
            ValueMatch::Exact(text) => http_value_match::Value::Exact(text.to_string()),
            ValueMatch::Regex(pattern) => {
                http_value_match::Value::Regex(pattern.as_str().to_owned())
            }
        }),
    }
}

/// The finding about a filter that does not exist here. It is a reference that does not resolve, and
/// the filter must not be skipped (GEP-1364).
fn no_extension(reference: &Reference) -> Finding {
    Finding::refused(
        Reason::InvalidKind,
        &reference.field,
        format!(
            "{:?} of group {:?} is no filter that this release knows, so its requests are answered \
             with {BROKEN}",
            reference.kind, reference.group
        ),
        "remove the filter",
    )
}

fn modifier(headers: &HeaderModifier) -> proto::HeaderModifier {
    let fields = |list: &[(Arc<str>, Arc<str>)]| {
        list.iter()
            .map(|(name, value)| proto::HttpField {
                name: name.to_string(),
                value: value.to_string(),
            })
            .collect()
    };
    proto::HeaderModifier {
        set: fields(&headers.set),
        add: fields(&headers.add),
        remove: headers.remove.iter().map(ToString::to_string).collect(),
    }
}

fn redirect(to: &Redirect) -> proto::HttpRedirect {
    proto::HttpRedirect {
        scheme: to.scheme.map_or("", |scheme| scheme.as_str()).to_owned(),
        hostname: to
            .hostname
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        port: to.port.map_or(0, |port| port.get().into()),
        path: to.path.as_ref().map(path),
        status: to.status.into(),
    }
}

fn rewrite(to: &Rewrite) -> proto::UrlRewrite {
    proto::UrlRewrite {
        hostname: to
            .hostname
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        path: to.path.as_ref().map(path),
    }
}

fn path(modifier: &PathModifier) -> proto::PathModifier {
    proto::PathModifier {
        path: Some(match modifier {
            PathModifier::Full(path) => path_modifier::Path::Full(path.to_string()),
            PathModifier::Prefix(path) => path_modifier::Path::Prefix(path.to_string()),
        }),
    }
}
