//! HTTPRoute and GRPCRoute: which requests their rules match and what is done with these (`httproute_types.go`,
//! `grpcroute_types.go`). A gRPC call is an HTTP/2 request, so both kinds have the same form here. They differ in
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
    /// The valid ones of `spec.hostnames`, with their index in the spec. Findings name the others. If the spec has
    /// none, this is [`HostPattern::Any`] alone.
    pub hostnames: Vec<(usize, HostPattern)>,
    /// `spec.rules`, never empty.
    pub rules: Vec<HttpRule>,
    /// The findings outside the rules. If one of them refuses, the route is refused.
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

    /// How many bytes the regular expressions of its matches take when they are compiled.
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
    /// The rule takes a request if one of them does. The list is empty only if none of them could be read.
    pub matches: Vec<HttpMatch>,
    /// How requests and responses are changed, in this order.
    pub filters: Vec<HttpFilter>,
    /// Where requests go.
    pub backends: Vec<HttpBackend>,
    /// How long a request may take.
    pub timeouts: HttpTimeouts,
    /// When a request is made again.
    pub retry: Option<Retry>,
    /// How the requests of one client stay at one endpoint.
    pub session: Option<SessionPersistence>,
    /// The findings about it. If one of them refuses, the rule is refused.
    pub findings: Vec<Finding>,
}

impl HttpRule {
    /// Why the rule is refused, if it is.
    #[must_use]
    pub fn refusal(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.refuses())
    }

    /// The backends that its filters, and those of its backends, name: mirrors and authorization servers.
    pub fn backends_of_filters(&self) -> impl Iterator<Item = &BackendRef> {
        let backends = self.backends.iter().flat_map(|backend| &backend.filters);
        let filters = self.filters.iter().chain(backends);
        filters.filter_map(|filter| match filter {
            HttpFilter::Mirror(mirror) => Some(&mirror.backend),
            HttpFilter::Auth(auth) => Some(&auth.backend),
            _ => None,
        })
    }
}

/// A match. It takes a request if all of its parts match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpMatch {
    /// Match of the path.
    pub path: PathMatch,
    /// Matches of headers. Names are in lower case, and each occurs once at most.
    pub headers: Vec<(Arc<str>, ValueMatch)>,
    /// Matches of query parameters. Each name occurs once at most.
    pub query: Vec<(Arc<str>, ValueMatch)>,
    /// Match of the HTTP method.
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
    /// A prefix of whole path elements. A `/` at its end means nothing.
    Prefix(Arc<str>),
    /// The whole path.
    Regex(Pattern),
    /// A method of gRPC, which is the path `/<service>/<method>`. GRPCRoutes have only this form, and no other kind of
    /// route has it.
    Method(MethodMatch),
}

/// Which methods of gRPC are matched. Without any part, every call is matched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodMatch {
    /// The service with its package, such as `shop.v1.Cart`; `None` matches any.
    pub service: Option<ValueMatch>,
    /// The method; `None` matches any.
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
    /// `externalAuth`. Rules have it, and backends do not.
    Auth(ExternalAuth),
    /// `extensionRef`. There are no such filters, and a filter must not be skipped, so requests get an error.
    Extension(Reference),
}

/// Changes of headers. Every name is in lower case, and occurs once at most in all three lists together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    /// Replaced.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// Appended.
    pub add: Vec<(Arc<str>, Arc<str>)>,
    /// Removed.
    pub remove: Vec<Arc<str>>,
}

/// A redirect as the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Scheme; `None` keeps that of the request.
    pub scheme: Option<Scheme>,
    /// Hostname; `None` keeps that of the request.
    pub hostname: Option<Hostname>,
    /// Port; `None` is the well-known port of the scheme if one is set, and otherwise the port of the listener.
    pub port: Option<Port>,
    /// Path; `None` keeps that of the request.
    pub path: Option<PathModifier>,
    /// Status code: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Scheme of a redirect.
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

/// The host and path that the backend sees instead of those that the client asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Hostname; `None` keeps that of the request.
    pub hostname: Option<Hostname>,
    /// Path; `None` keeps that of the request.
    pub path: Option<PathModifier>,
}

/// Another path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathModifier {
    /// It replaces the whole path.
    Full(Arc<str>),
    /// It replaces the prefix that matched. The rule has exactly one match, and that is one of a prefix.
    Prefix(Arc<str>),
}

/// A backend of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpBackend {
    /// The object that it refers to, and its weight.
    pub backend: BackendRef,
    /// Filters for requests that go to this backend. They apply after those of the rule.
    pub filters: Vec<HttpFilter>,
}

/// Which requests pages of other origins may make, and which parts of the responses they may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// The origins of the pages. One that stands for every origin is alone.
    pub origins: Vec<OriginPattern>,
    /// Whether their requests may carry credentials of the user, such as cookies.
    pub credentials: bool,
    /// Methods that they may use, in addition to those that are always allowed.
    pub methods: CorsNames,
    /// Headers they may send, in lower case.
    pub headers: CorsNames,
    /// Headers of responses that they may read.
    pub exposed: ExposedHeaders,
    /// How long a browser may cache the answer to a preflight request, in seconds; at least 1.
    pub max_age: u32,
}

/// Names in a CORS filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsNames {
    /// `*`
    All,
    /// These names. The list may be empty.
    Listed(Vec<Arc<str>>),
}

/// Headers of responses that pages of other origins may read, in addition to those that they always may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExposedHeaders {
    /// Whether `*` is among them. Browsers take it for every header, but not together with credentials.
    pub all: bool,
    /// The others, in lower case.
    pub names: Vec<Arc<str>>,
}

/// A filter that copies requests to another backend. The responses of that backend are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The backend that gets the copies. Its weight has no meaning.
    pub backend: BackendRef,
    /// Numerator of the fraction of requests that are copied.
    pub numerator: u32,
    /// Denominator of that fraction. It is at least 1, and at least the numerator.
    pub denominator: u32,
}

/// A filter that asks an authorization server whether a request may pass (GEP-1494).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAuth {
    /// The authorization server. Its weight has no meaning.
    pub backend: BackendRef,
    /// How the server is asked.
    pub protocol: AuthProtocol,
    /// Most bytes of a request's body that the server gets. A request with a larger body is refused. With 0, the server
    /// gets no body, and bodies may have any size.
    pub max_body: u16,
}

/// How an authorization server is asked. The names of headers are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthProtocol {
    /// By a request of the same method. The status 200 lets the request pass.
    Http {
        /// The prefix in front of the path of the request. It begins with `/` and does not end with one, or is empty.
        path_prefix: Arc<str>,
        /// Headers of the request that the server gets, in addition to `Host`, `Content-Length` and `Authorization`.
        request_headers: Vec<Arc<str>>,
        /// Headers of the server's response that the backend gets. If the list is empty, it gets all of them.
        response_headers: Vec<Arc<str>>,
    },
    /// By a call of `envoy.service.auth.v3.Authorization/Check`.
    Grpc {
        /// Headers of the request that the server gets. If the list is empty, it gets all of them.
        request_headers: Vec<Arc<str>>,
    },
}

/// Most times that a request is sent again. A larger number in a rule counts as this one.
pub const MAX_RETRIES: u32 = 100;

/// When a request is sent again: if its backend did not respond, or if it responded with one of these status codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Status codes from 400 to 599.
    pub codes: BTreeSet<u16>,
    /// Most times that it is sent again after the first time. With 0, it is never sent again, for whatever reason.
    pub attempts: u32,
    /// How long to wait before the first retry. The wait before each further retry is longer.
    pub backoff: Option<Duration>,
}

/// Session persistence (GEP-1619): further requests of a client go to the endpoint, of each backend, that answered the
/// first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPersistence {
    /// How the client receives its token and sends it back.
    pub carrier: SessionCarrier,
    /// How long a session lasts at most; at least one second.
    pub absolute_timeout: Option<Duration>,
}

/// How a client carries the token of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionCarrier {
    /// As a cookie.
    Cookie {
        /// Name of the cookie, which is a token in the sense of HTTP. `None` stands for a name that no other rule has.
        name: Option<Arc<str>>,
        /// Path of the cookie. It begins with `/`, and has no character that would end an attribute.
        path: Arc<str>,
        /// Whether the cookie outlives the browser, until the absolute timeout. Then there is such a timeout.
        permanent: bool,
    },
    /// As a header of this name, in lower case.
    Header(Arc<str>),
}

/// Timeouts. Zero switches a timeout off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// Timeout of a whole request.
    pub request: Option<Duration>,
    /// Timeout of one attempt at a backend.
    pub backend_request: Option<Duration>,
}
