//! Owns an HTTPRoute or GRPCRoute as requests see it: its rules, their matches, and the share of each backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::HeaderName;
use vestibule_model::pattern::{Matcher, Steps};

use super::filter::Filter;
use super::retry_policy::RetryPolicy;
use super::session::Session;
use super::view::{View, rest_after};
use crate::backend::Backend;
use crate::quota::TenantQuota;
use crate::slot_map::Slot;
use crate::weight::by_weight;

/// A route. It is immutable: an edit makes a new one, and requests keep the version that they got.
#[derive(Debug)]
pub struct HttpRoute {
    /// `<namespace>/<name>`. A route of another kind may have the same.
    pub key: Arc<str>,
    /// Namespace of the route.
    pub tenant: Arc<str>,
    /// Creation, in seconds since the Unix epoch. Of equal matches, that of the older route has precedence.
    pub created: i64,
    /// Whether it is a GRPCRoute. Then it takes only gRPC calls, and its backends are spoken to by HTTP/2.
    pub grpc: bool,
    /// The quota to which the connections of its requests are charged.
    pub(crate) account: Arc<TenantQuota>,
    rules: Box<[Rule]>,
}

impl HttpRoute {
    /// The kind as the API names it.
    pub(crate) fn kind(&self) -> &'static str {
        if self.grpc { "GRPCRoute" } else { "HTTPRoute" }
    }

    pub(crate) fn new(
        (key, grpc): (Arc<str>, bool),
        account: Arc<TenantQuota>,
        created: i64,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Self {
        Self {
            key,
            tenant: Arc::clone(account.tenant()),
            created,
            grpc,
            account,
            rules: rules.into_iter().collect(),
        }
    }

    /// Whether both are versions of the same route.
    pub(crate) fn is_version_of(&self, other: &Self) -> bool {
        self.key == other.key && self.grpc == other.grpc
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The places of all matches of all rules, for [`Self::at`].
    pub(crate) fn places(&self) -> impl Iterator<Item = (u16, u16)> {
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let rules = (0..).zip(&self.rules);
        rules.flat_map(move |(rule, of)| (0..count(of.matches.len())).map(move |at| (rule, at)))
    }

    /// The match at a place, with its rule.
    pub(crate) fn at(&self, (rule, at): (u16, u16)) -> Option<(&Rule, &Match)> {
        let rule = self.rules.get(usize::from(rule))?;
        Some((rule, rule.matches.get(usize::from(at))?))
    }
}

/// A rule of a route.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Name for logs. It may be empty.
    pub(crate) name: Box<str>,
    /// At least one.
    matches: Box<[Match]>,
    /// Filters in the order in which they act.
    pub(crate) filters: Box<[Filter]>,
    backends: Box<[WeightedTarget]>,
    total: u64,
    /// Time from the head of the request to the end of the response. Zero means that there is no limit, whatever the
    /// default is.
    pub(crate) request_timeout: Option<Duration>,
    /// Time of one attempt at a backend, up to the head of the response.
    pub(crate) backend_timeout: Option<Duration>,
    /// When requests are made again.
    pub(crate) retry: Option<RetryPolicy>,
    /// How requests of one client stay at one endpoint.
    pub(crate) session: Option<Session>,
}

/// The parts from which a rule is made.
#[derive(Debug, Default)]
pub(crate) struct RuleParts {
    pub(crate) name: String,
    pub(crate) matches: Vec<Match>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) backends: Vec<WeightedTarget>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) backend_timeout: Option<Duration>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) session: Option<Session>,
}

impl From<RuleParts> for Rule {
    fn from(parts: RuleParts) -> Self {
        let mut matches = parts.matches;
        if matches.is_empty() {
            matches.push(Match::default());
        }
        let total = parts.backends.iter().map(|b| u64::from(b.weight)).sum();
        Self {
            name: parts.name.into(),
            matches: matches.into(),
            filters: parts.filters.into(),
            backends: parts.backends.into(),
            total,
            request_timeout: parts.request_timeout,
            backend_timeout: parts.backend_timeout,
            retry: parts.retry,
            session: parts.session,
        }
    }
}

/// One weighted reference of a rule.
#[derive(Debug)]
pub(crate) struct WeightedTarget {
    pub(crate) weight: u32,
    /// `None` for an invalid reference, which keeps its share.
    pub(crate) backend: Option<Slot<Backend>>,
    /// Filters that act after those of the rule.
    pub(crate) filters: Box<[Filter]>,
}

impl Rule {
    pub(crate) fn backends(&self) -> &[WeightedTarget] {
        &self.backends
    }

    /// The backends that get copies of requests.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = Slot<Backend>> {
        let filters = self.backends.iter().flat_map(|backend| &backend.filters);
        self.filters.iter().chain(filters).filter_map(|filter| {
            let Filter::Mirror(mirror) = filter else {
                return None;
            };
            Some(mirror.backend)
        })
    }

    /// The authorization servers that its filters ask.
    pub(crate) fn auth_servers(&self) -> impl Iterator<Item = Slot<Backend>> {
        self.filters.iter().filter_map(|filter| match filter {
            Filter::Auth(auth) => Some(auth.backend),
            _ => None,
        })
    }

    /// All backends to which it refers: those that get requests, those that get copies, and those that are asked.
    pub(crate) fn references(&self) -> impl Iterator<Item = Slot<Backend>> {
        let backends = self.backends.iter();
        backends
            .filter_map(|backend| backend.backend)
            .chain(self.mirrors())
            .chain(self.auth_servers())
    }

    pub(crate) fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// A backend, chosen by weight with the upper half of `random`. It is `None` if no backend has any weight.
    pub(crate) fn pick(&self, random: u64) -> Option<&WeightedTarget> {
        by_weight(&self.backends, |of| of.weight, self.total, random)
    }
}

/// A match. All of its parts have to hold.
#[derive(Debug, Default)]
pub(crate) struct Match {
    pub(crate) path: PathMatch,
    pub(crate) method: Option<Method>,
    pub(crate) headers: Box<[ValueMatch<HeaderName>]>,
    pub(crate) query: Box<[ValueMatch<Box<str>>]>,
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.as_ref().map_or("*", Method::as_str);
        write!(f, "{method} {:?}", self.path)
    }
}

impl Match {
    /// Whether all parts but the path hold.
    pub(crate) fn accepts_rest(&self, view: &View<'_>) -> bool {
        let steps = &view.steps;
        self.method
            .as_ref()
            .is_none_or(|method| method == view.method)
            && self.headers.iter().all(|header| {
                let value = view.header(&header.name);
                value.is_some_and(|value| header.value.accepts(&value, steps))
            })
            && self.query.iter().all(|param| {
                let value = view.query(param.name.as_bytes());
                value.is_some_and(|value| param.value.accepts(&value, steps))
            })
    }

    /// Whether all parts hold.
    pub(crate) fn accepts(&self, view: &View<'_>) -> bool {
        self.path.accepts(view.path, &view.steps) && self.accepts_rest(view)
    }
}

/// How the path of a request is matched.
#[derive(Clone)]
pub(crate) enum PathMatch {
    /// The whole path equals this text.
    Exact(Box<str>),
    /// The whole path matches this expression.
    Regex(Matcher),
    /// The first elements: `/a/b` takes `/a/b` and `/a/b/c`. The prefix has no slash at the end, so that the empty one
    /// takes everything.
    Prefix(Box<str>),
    /// A method of gRPC, `/<service>/<method>`. A part that is absent matches everything.
    Method {
        service: Option<Value>,
        method: Option<Value>,
    },
}

impl Default for PathMatch {
    fn default() -> Self {
        Self::Prefix(Box::default())
    }
}

impl fmt::Debug for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "{path}"),
            Self::Regex(pattern) => write!(f, "~{}", pattern.as_str()),
            Self::Prefix(path) => write!(f, "{path}/"),
            Self::Method { service, method } => {
                let any = Value::Exact("*".into());
                let [service, method] = [service, method].map(|part| part.as_ref().unwrap_or(&any));
                write!(f, "/{service}/{method}")
            }
        }
    }
}

impl PathMatch {
    fn accepts(&self, path: &str, steps: &Steps) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Regex(pattern) => pattern.is_match(path.as_bytes(), steps),
            Self::Prefix(prefix) => rest_after(path, prefix).is_some(),
            Self::Method {
                service: None,
                method: None,
            } => true,
            Self::Method { service, method } => {
                let accepts = |of: &Option<Value>, text: &str| {
                    let accepts = |value: &Value| value.accepts(text.as_bytes(), steps);
                    of.as_ref().is_none_or(accepts)
                };
                method_of(path).is_some_and(|(of_service, of_method)| {
                    accepts(service, of_service) && accepts(method, of_method)
                })
            }
        }
    }

    /// Its rank: exact matches are above regular expressions, and these above prefixes. Within each kind, the longer
    /// one is above. For gRPC, the service is compared first and the method only after that.
    pub(crate) fn rank(&self) -> PathRank {
        let of = |part: &Option<Value>| match part {
            Some(Value::Exact(text)) => (3, text.len()),
            Some(Value::Regex(pattern)) => (2, pattern.as_str().len()),
            None => (0, 0),
        };
        match self {
            Self::Exact(path) => [(3, path.len()), (0, 0)],
            Self::Regex(pattern) => [(2, pattern.as_str().len()), (0, 0)],
            Self::Prefix(path) => [(1, path.len()), (0, 0)],
            Self::Method { service, method } => [of(service), of(method)],
        }
    }
}

/// The kind of match and its number of characters: for a whole path, or for a service and a method.
pub(crate) type PathRank = [(u8, usize); 2];

/// Service and method of a gRPC call, as gRPC servers read them: the method is the part after the last slash.
pub(crate) fn method_of(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.rsplit_once('/')
}

/// A header field or query parameter, and the value that it must have.
#[derive(Clone, Debug)]
pub(crate) struct ValueMatch<N> {
    pub(crate) name: N,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Exact(Box<str>),
    Regex(Matcher),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Regex(pattern) => write!(f, "~{}", pattern.as_str()),
        }
    }
}

impl Value {
    fn accepts(&self, value: &[u8], steps: &Steps) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == value,
            Self::Regex(pattern) => pattern.is_match(value, steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot_map::SlotAllocator;

    #[test]
    fn a_prefix_takes_whole_elements() {
        let takes = |prefix: &str, path: &str| {
            PathMatch::Prefix(prefix.into()).accepts(path, &Steps::default())
        };
        for path in ["/a/b", "/a/b/", "/a/b/c"] {
            assert!(takes("/a/b", path), "{path}");
        }
        for path in ["/a", "/a/bc", "/", "/b/a/b"] {
            assert!(!takes("/a/b", path), "{path}");
        }
        assert!(takes("", "/") && takes("", "/x") && takes("", "*"));
    }

    #[test]
    fn backends_have_their_shares() {
        let mut slots = SlotAllocator::default();
        let [none, one, three] = std::array::from_fn(|_| slots.allocate());
        let backend = |weight, slot| WeightedTarget {
            weight,
            backend: Some(slot),
            filters: Box::default(),
        };
        let rule = |backends| {
            Rule::from(RuleParts {
                backends,
                ..RuleParts::default()
            })
        };
        let rule_of = rule(vec![backend(0, none), backend(1, one), backend(3, three)]);
        let mut counts = [0; 2];
        for step in 0..4000_u64 {
            let random = step.wrapping_mul(u64::MAX / 4000);
            let picked = rule_of.pick(random).unwrap().backend.unwrap();
            assert_ne!(picked, none);
            counts[usize::from(picked == three)] += 1;
        }
        assert!((995..1005).contains(&counts[0]), "{counts:?}");
        assert!(rule(vec![]).pick(7).is_none());
        assert!(rule(vec![backend(0, none)]).pick(7).is_none());
    }
}
