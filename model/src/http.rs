//! HTTPRoute and GRPCRoute: which requests their rules take and what becomes of them (`httproute_types.go`,
//! `grpcroute_types.go`). A call of gRPC is a request of HTTP/2, so the two have one form here; what differs is in
//! [`HttpRoute::kind`] and in [`PathMatch::Method`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::key::{Kind, ObjectKey, ObjectName};
use crate::meta::Meta;
use crate::origin::OriginPattern;
use crate::pattern::Pattern;
use crate::protocol::Port;
use crate::reference::{BackendRef, ParentRef, Reference};

/// HTTPRoute or GRPCRoute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoute {
    /// [`Kind::HttpRoute`] or [`Kind::GrpcRoute`].
    pub kind: Kind,
    /// Name.
    pub name: ObjectName,
    /// Metadata.
    pub meta: Meta,
    /// `spec.parentRefs`.
    pub parents: Vec<ParentRef>,
    /// `spec.hostnames` that are ones, with their index in the spec; findings name the others. Without
    /// any in the spec, the one that matches everything.
    pub hostnames: Vec<(usize, HostPattern)>,
    /// `spec.rules`, never empty.
    pub rules: Vec<HttpRule>,
    /// What is wrong outside the rules. A refusal here refuses the route.
    pub findings: Vec<Finding>,
}

impl HttpRoute {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind,
            name: self.name.clone(),
        }
    }

    /// Bytes that the regular expressions of its matches take when they are compiled.
    #[must_use]
    pub fn pattern_bytes(&self) -> usize {
        let matches = self.rules.iter().flat_map(|rule| &rule.matches);
        matches
            .flat_map(HttpMatch::patterns)
            .map(Pattern::size)
            .sum()
    }
}

/// A rule of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRule {
    /// Name, if it has one.
    pub name: Option<Arc<str>>,
    /// Path in the object, such as `spec.rules[0]`.
    pub field: String,
    /// Any of them takes a request; never empty unless none of them could be read.
    pub matches: Vec<HttpMatch>,
    /// What is done to requests and responses, in this order.
    pub filters: Vec<HttpFilter>,
    /// Where requests go.
    pub backends: Vec<HttpBackend>,
    /// How long a request may take.
    pub timeouts: HttpTimeouts,
    /// When a request is made again.
    pub retry: Option<Retry>,
    /// How the requests of one client stay at one endpoint.
    pub session: Option<SessionPersistence>,
    /// What is wrong with it. A refusal here refuses the rule.
    pub findings: Vec<Finding>,
}

impl HttpRule {
    /// Why the rule is refused, if it is.
    #[must_use]
    pub fn refusal(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.refuses())
    }

    /// Where its filters and those of its backends copy requests to.
    pub fn mirrors(&self) -> impl Iterator<Item = &BackendRef> {
        let backends = self.backends.iter().flat_map(|backend| &backend.filters);
        let filters = self.filters.iter().chain(backends);
        filters.filter_map(|filter| match filter {
            HttpFilter::Mirror(mirror) => Some(&mirror.backend),
            _ => None,
        })
    }
}

/// A match: it takes a request if all of its parts do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpMatch {
    /// Of the path.
    pub path: PathMatch,
    /// Of headers; names in lower case, each at most once.
    pub headers: Vec<(Arc<str>, ValueMatch)>,
    /// Of query parameters; each name at most once.
    pub query: Vec<(Arc<str>, ValueMatch)>,
    /// Of the method.
    pub method: Option<Arc<str>>,
}

impl HttpMatch {
    /// Its regular expressions.
    fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let (path, parts) = match &self.path {
            PathMatch::Regex(pattern) => (Some(pattern), [None, None]),
            PathMatch::Exact(_) | PathMatch::Prefix(_) => (None, [None, None]),
            PathMatch::Method(MethodMatch { service, method }) => {
                (None, [service.as_ref(), method.as_ref()])
            }
        };
        let values = self.headers.iter().chain(&self.query);
        let values = values.map(|(_, value)| value);
        let values = parts.into_iter().flatten().chain(values);
        let patterns = values.filter_map(|value| match value {
            ValueMatch::Regex(pattern) => Some(pattern),
            ValueMatch::Exact(_) => None,
        });
        path.into_iter().chain(patterns)
    }
}

impl Default for HttpMatch {
    fn default() -> Self {
        Self {
            path: PathMatch::Prefix("/".into()),
            headers: Vec::new(),
            query: Vec::new(),
            method: None,
        }
    }
}

/// How a path is matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// The whole path.
    Exact(Arc<str>),
    /// Whole path elements; a `/` at the end means nothing.
    Prefix(Arc<str>),
    /// The whole path.
    Regex(Pattern),
    /// A method of gRPC: the path `/<service>/<method>`. GRPCRoutes have no others, and they alone have it.
    Method(MethodMatch),
}

/// Which methods of gRPC are matched; without any part, every call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodMatch {
    /// The service with its package, such as `shop.v1.Cart`; none: any.
    pub service: Option<ValueMatch>,
    /// The method; none: any.
    pub method: Option<ValueMatch>,
}

/// How a value is matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueMatch {
    /// The whole value.
    Exact(Arc<str>),
    /// The whole value.
    Regex(Pattern),
}

/// A filter of a rule or backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpFilter {
    /// `requestHeaderModifier`
    RequestHeaders(HeaderModifier),
    /// `responseHeaderModifier`
    ResponseHeaders(HeaderModifier),
    /// `requestRedirect`
    Redirect(Redirect),
    /// `urlRewrite`
    Rewrite(Rewrite),
    /// `cors`
    Cors(Cors),
    /// `requestMirror`
    Mirror(Mirror),
    /// `extensionRef`: nothing that it may refer to exists, and it must not be skipped.
    Extension(Reference),
}

/// Changes of headers; every name in lower case, at most once over all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    /// Replaced.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// Appended.
    pub add: Vec<(Arc<str>, Arc<str>)>,
    /// Removed.
    pub remove: Vec<Arc<str>>,
}

/// A redirection as the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Otherwise the request's.
    pub scheme: Option<Scheme>,
    /// Otherwise the request's.
    pub hostname: Option<Hostname>,
    /// Otherwise the scheme's, or the listener's.
    pub port: Option<Port>,
    /// Otherwise the request's.
    pub path: Option<PathModifier>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Scheme of a redirection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// http
    Http,
    /// https
    Https,
}

impl Scheme {
    /// The text the API uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// What the backend sees instead of what the client asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Otherwise the request's.
    pub hostname: Option<Hostname>,
    /// Otherwise the request's.
    pub path: Option<PathModifier>,
}

/// Another path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathModifier {
    /// In place of the whole path.
    Full(Arc<str>),
    /// In place of the prefix that matched. The rule has exactly one match, of a prefix.
    Prefix(Arc<str>),
}

/// A backend of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpBackend {
    /// What it refers to, and its share.
    pub backend: BackendRef,
    /// Applied after the rule's own, to requests that go there.
    pub filters: Vec<HttpFilter>,
}

/// The requests that pages of other origins may make, and the parts of answers that they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// The origins of the pages: one that is every origin, or others.
    pub origins: Vec<OriginPattern>,
    /// Whether they may ask with what the browser knows of its user, such as cookies.
    pub credentials: bool,
    /// Methods they may ask with, beside those that are always allowed.
    pub methods: CorsNames,
    /// Headers they may send, in lower case.
    pub headers: CorsNames,
    /// Headers of answers that they may read, in lower case.
    pub exposed: CorsNames,
    /// Seconds for which a browser may remember what it was told; at least 1.
    pub max_age: u32,
}

/// Names in a CORS filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsNames {
    /// `*`
    All,
    /// These, perhaps none.
    Listed(Vec<Arc<str>>),
}

/// A copy of requests for another backend, whose answers nobody gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The backend that gets the copies; its weight means nothing.
    pub backend: BackendRef,
    /// How many requests are copied,
    pub numerator: u32,
    /// of so many; at least 1, and at least the numerator.
    pub denominator: u32,
}

/// Times that a request is made again at most; more of them count as so many.
pub const MAX_RETRIES: u32 = 100;

/// When a request is made again, because its backend did not answer it, or with one of these statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Statuses from 400 to 599.
    pub codes: BTreeSet<u16>,
    /// How often at most, beyond the first time; 0: never, for whatever reason.
    pub attempts: u32,
    /// How long to wait first; more before each further time.
    pub backoff: Option<Duration>,
}

/// How the requests of one client stay at the endpoint of each backend that answered the first of them (GEP-1619).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPersistence {
    /// How the client gets its token and sends it.
    pub carrier: SessionCarrier,
    /// From the beginning of a session to its end; at least a second.
    pub absolute_timeout: Option<Duration>,
}

/// How a client carries the token of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionCarrier {
    /// As a cookie.
    Cookie {
        /// A token in the sense of HTTP; none: one that no other rule has.
        name: Option<Arc<str>>,
        /// Begins with `/`, and has nothing that ends an attribute.
        path: Arc<str>,
        /// It outlives the browser, up to the absolute timeout, which there is.
        permanent: bool,
    },
    /// As a header of this name, in lower case.
    Header(Arc<str>),
}

/// Limits on time; zero switches one off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// Of a whole request.
    pub request: Option<Duration>,
    /// Of one try at a backend.
    pub backend_request: Option<Duration>,
}
