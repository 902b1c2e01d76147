//! Converts routes and their backends into the form of the report.

use std::collections::BTreeSet;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::TlsMode;
use vestibule_model::hostname::HostPattern;
use vestibule_model::http::{
    AuthProtocol, HttpFilter, HttpMatch, HttpRule, MethodMatch, PathMatch, ValueMatch,
};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::TransportPort;
use vestibule_model::reference::BackendRef;
use vestibule_model::route::Route;
use vestibule_model::send_proxy::HeaderVersion;
use vestibule_model::tls_policy::Authorities;

use super::candidates::{AttachedRoute, Candidate};
use super::cluster_state::ClusterState;
use super::report::{BackendView, RouteView, RuleView};
use crate::backend::{header_of, policy_of, translated};
use crate::hints::authorizer;

/// The views of the routes of a listener, in order of precedence. Of routes that do not route single requests, the first
/// one gets everything.
pub(super) fn views(
    cluster_state: &ClusterState,
    listener: &Candidate,
    attached: &[AttachedRoute],
) -> Vec<RouteView> {
    // On a passthrough listener the client makes the TLS connection, so no BackendTLSPolicy applies to it.
    let tls = listener.listener.tls.as_ref();
    let connects = tls.is_none_or(|tls| tls.mode == TlsMode::Terminate);
    let views = attached.iter().enumerate().filter_map(|(index, one)| {
        Some(RouteView {
            shadowed: index > 0 && !one.key.kind.routes_requests(),
            shared_paths: one.paths.clone(),
            ..view(cluster_state, &one.key, &one.rank, connects)?
        })
    });
    views.collect()
}

/// The view of a route, with that of its hostnames which covers the name. `connects` says whether BackendTLSPolicies
/// apply to the connections to its backends.
pub(super) fn view(
    cluster_state: &ClusterState,
    key: &ObjectKey,
    hostname: &HostPattern,
    connects: bool,
) -> Option<RouteView> {
    let object = cluster_state.translator.object(key)?;
    let of = RouteContext {
        cluster_state,
        key,
        connects,
    };
    let rules = match object.as_route()? {
        Route::Tls(route) => vec![of.connections(&route.backends)],
        Route::Port(route) => vec![of.connections(&route.backends)],
        Route::Http(route) => route.rules.iter().map(|rule| of.http(rule)).collect(),
    };
    Some(RouteView {
        object: key.into(),
        hostname: hostname.to_string(),
        shadowed: false,
        shared_paths: Vec::new(),
        rules,
        key: key.clone(),
    })
}

/// A route, for the views of its rules and backends.
struct RouteContext<'a> {
    cluster_state: &'a ClusterState,
    key: &'a ObjectKey,
    connects: bool,
}

impl RouteContext<'_> {
    fn connections(&self, backends: &[BackendRef]) -> RuleView {
        RuleView {
            name: String::new(),
            matches: Vec::new(),
            filters: Vec::new(),
            backends: backends.iter().map(|one| self.backend(one, &[])).collect(),
            problem: String::new(),
            reason: String::new(),
            remedy: String::new(),
            is_authorizer_hidden: false,
        }
    }

    fn http(&self, rule: &HttpRule) -> RuleView {
        let backends = rule.backends.iter();
        let takes_all = rule.matches.iter().any(takes_all);
        let refusal = rule.refusal().map(|finding| {
            let action = "correct the rule".to_owned();
            ("PartiallyInvalid".to_owned(), finding.to_string(), action)
        });
        let filter = || {
            let finding = self.unknown_filter(&rule.filters)?;
            let text = format!("{}: {}", finding.field, finding.message);
            Some((finding.reason.to_string(), text, finding.action.clone()))
        };
        let server = authorizer(&rule.filters).map(|auth| self.backend(&auth.backend, &[]));
        let silent = || server.as_ref().and_then(silence);
        let problem = refusal.or_else(filter).or_else(silent);
        let (reason, problem, remedy) = problem.unwrap_or_default();
        RuleView {
            name: rule.name.as_deref().unwrap_or_default().to_owned(),
            matches: if takes_all {
                Vec::new()
            } else {
                rule.matches.iter().map(match_text).collect()
            },
            filters: rule.filters.iter().map(filter_text).collect(),
            backends: backends
                .map(|one| self.backend(&one.backend, &one.filters))
                .collect(),
            problem,
            reason,
            remedy,
            is_authorizer_hidden: server.is_some_and(|server| server.ready.is_none()),
        }
    }

    /// The finding about a filter that this release does not know, if requests get to it: a redirect before it answers
    /// them.
    fn unknown_filter(&self, filters: &[HttpFilter]) -> Option<&Finding> {
        let first = filters.iter().find_map(|filter| match filter {
            HttpFilter::Redirect(_) => Some(None),
            HttpFilter::Extension(reference) => Some(Some(reference)),
            _ => None,
        });
        self.finding_at(&first.flatten()?.field)
    }

    /// The finding that refuses a field of the route.
    fn finding_at(&self, field: &str) -> Option<&Finding> {
        let findings = self.cluster_state.translator.findings().get(self.key)?;
        findings
            .iter()
            .find(|finding| finding.refuses() && finding.field == field)
    }

    fn backend(&self, one: &BackendRef, filters: &[HttpFilter]) -> BackendView {
        let cluster_state = self.cluster_state;
        let reference = &one.reference;
        let name = reference.target.clone();
        let of = |kind| ObjectKey {
            kind,
            name: name.clone(),
        };
        let hidden = cluster_state.is_denied(&of(Kind::Service))
            || cluster_state.is_denied(&of(Kind::EndpointSlice));
        let port = one.port.filter(|_| reference.is(Kind::Service));
        let port = port.map(|port| (port, self.key.kind.transport()));
        let backend = port.and_then(|port| translated(&cluster_state.translator, &name, port));
        let ready = port.map(|_| match &backend {
            Some(backend) => backend.endpoints.len(),
            None => endpoints(cluster_state, &name),
        });
        let text = |finding: &Finding| {
            let problem = format!("{}: {}", finding.reason, finding.message);
            (problem, finding.action.clone())
        };
        // On a listener where no policy applies, the finding about one is about other listeners of the route. If an
        // authority of the policy may not be read, nobody knows here whether the policy can be applied.
        let is_known = |finding: &Finding| {
            let hides = || port.is_some_and(|port| self.hides_authorities(&name, port));
            finding.reason != Reason::InvalidBackendTLSPolicy || (self.connects && !hides())
        };
        let problem = self
            .finding_at(&reference.field)
            .filter(|finding| !hidden && is_known(finding))
            .or_else(|| self.unknown_filter(filters))
            .map(text);
        let (problem, remedy) = problem.unwrap_or_default();
        let header = port.filter(|_| !hidden);
        let header = header.and_then(|port| header_of(&cluster_state.translator, &name, port));
        BackendView {
            service: (&name).into(),
            port: one.port.map_or(0, std::num::NonZeroU16::get),
            weight: one.weight,
            ready: if hidden {
                None
            } else {
                Some(ready.unwrap_or(0))
            },
            proxy_protocol: header.map(HeaderVersion::as_str),
            problem,
            remedy,
        }
    }

    /// Whether the policy for a port of a Service has authorities that may not be read.
    fn hides_authorities(&self, service: &ObjectName, port: TransportPort) -> bool {
        let policy = policy_of(&self.cluster_state.translator, service, port);
        let Some(Authorities::Bundles(bundles)) = policy.map(|policy| &policy.authorities) else {
            return false;
        };
        let mut keys = bundles.iter().map(|bundle| ObjectKey {
            kind: if bundle.is(Kind::Secret) {
                Kind::Secret
            } else {
                Kind::ConfigMap
            },
            name: bundle.target.clone(),
        });
        keys.any(|key| self.cluster_state.is_denied(&key))
    }
}

/// Why an authorization server answers nobody, if so: reason, problem and remedy. Then no request passes.
fn silence(server: &BackendView) -> Option<(String, String, String)> {
    let service = format!(
        "Service {}/{}",
        server.service.namespace, server.service.name
    );
    let (reason, problem, remedy) = match (server.problem.split_once(": "), server.ready) {
        (Some((reason, problem)), _) => (reason, problem.to_owned(), &*server.remedy),
        (None, Some(0)) => (
            "NoEndpoints",
            format!("{service} has no ready endpoint on port {}", server.port),
            "see whether its pods are ready and its selector fits them",
        ),
        (None, _) => return None,
    };
    let problem = format!("no request can be authorized, because {problem}");
    Some((reason.to_owned(), problem, remedy.to_owned()))
}

/// Whether a match takes everything that routes of its kind take.
fn takes_all(one: &HttpMatch) -> bool {
    let any_call = HttpMatch {
        path: PathMatch::Method(MethodMatch::default()),
        ..HttpMatch::default()
    };
    [HttpMatch::default(), any_call].contains(one)
}

/// Number of ready endpoints of a Service to which no route in force leads.
fn endpoints(cluster_state: &ClusterState, service: &ObjectName) -> usize {
    let slices = cluster_state
        .translator
        .objects()
        .filter_map(|(_, object)| match object.as_ref() {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
    let of_it = slices.filter(|slice| {
        slice.name.namespace == service.namespace && slice.service.as_ref() == Some(&service.name)
    });
    let addresses: BTreeSet<_> = of_it.flat_map(|slice| &slice.addresses).collect();
    addresses.len()
}

/// A match as text, such as `GET /api/*, header x-a, query b`.
fn match_text(one: &HttpMatch) -> String {
    let path = match &one.path {
        PathMatch::Exact(path) => path.to_string(),
        PathMatch::Prefix(prefix) => match prefix.trim_end_matches('/') {
            "" => "/*".to_owned(),
            prefix => format!("{prefix}/*"),
        },
        PathMatch::Regex(pattern) => format!("~{}", pattern.as_str()),
        PathMatch::Method(MethodMatch { service, method }) => {
            let text = |part: &Option<ValueMatch>| match part {
                Some(ValueMatch::Exact(text)) => text.to_string(),
                Some(ValueMatch::Regex(pattern)) => format!("~{}", pattern.as_str()),
                None => "*".to_owned(),
            };
            format!("/{}/{}", text(service), text(method))
        }
    };
    let mut text = match &one.method {
        Some(method) => format!("{method} {path}"),
        None => path,
    };
    for (what, list) in [("header", &one.headers), ("query", &one.query)] {
        for (name, _) in list {
            text.push_str(", ");
            text.push_str(what);
            text.push(' ');
            text.push_str(name);
        }
    }
    text
}

fn filter_text(filter: &HttpFilter) -> String {
    match filter {
        HttpFilter::RequestHeaders(_) => "request headers".into(),
        HttpFilter::ResponseHeaders(_) => "response headers".into(),
        HttpFilter::Redirect(to) => {
            let scheme = to.scheme.map(|scheme| format!(" to {}", scheme.as_str()));
            let scheme = scheme.unwrap_or_default();
            format!("redirect {}{scheme}", to.status)
        }
        HttpFilter::Rewrite(_) => "rewrite".into(),
        HttpFilter::Cors(_) => "CORS".into(),
        HttpFilter::Mirror(mirror) => {
            let to = &mirror.backend.reference.target;
            match (mirror.numerator, mirror.denominator) {
                (all, of) if all == of => format!("mirror to {to}"),
                (part, of) => format!("mirror {part} of {of} to {to}"),
            }
        }
        HttpFilter::Auth(auth) => {
            let protocol = match auth.protocol {
                AuthProtocol::Http { .. } => "HTTP",
                AuthProtocol::Grpc { .. } => "gRPC",
            };
            let by = &auth.backend.reference.target;
            format!("authorized by {by} ({protocol})")
        }
        HttpFilter::Extension(_) => "unknown filter: answers 500".into(),
    }
}

/// Whether requests of a rule get a response, from a backend or from the rule itself. It is `None` if that is not
/// known.
pub(super) fn answers(rule: &RuleView) -> Option<bool> {
    if !rule.problem.is_empty() {
        return Some(false);
    }
    match is_served(rule) {
        Some(true) if rule.is_authorizer_hidden => None,
        served => served,
    }
}

/// The same for requests that every filter lets pass.
fn is_served(rule: &RuleView) -> Option<bool> {
    if rule
        .filters
        .iter()
        .any(|filter| filter.starts_with("redirect"))
    {
        return Some(true);
    }
    let used = || rule.backends.iter().filter(|one| one.weight > 0);
    if used().any(|one| one.problem.is_empty() && one.ready.is_some_and(|ready| ready > 0)) {
        return Some(true);
    }
    if used().any(|one| one.problem.is_empty() && one.ready.is_none()) {
        return None;
    }
    Some(false)
}
