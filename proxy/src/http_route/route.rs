//! Owns an HTTPRoute or GRPCRoute as requests see it: its rules, what they match, and the share of each backend.

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
use crate::quota::Account;
use crate::slot_map::Slot;
use crate::weight::by_weight;

/// A route. Immutable: an edit makes a new one, and requests keep the one they were given.
#[derive(Debug)]
pub struct HttpRoute {
    /// `<namespace>/<name>`. Routes of other kinds may have the same.
    pub key: Arc<str>,
    /// Namespace of the route.
    pub tenant: Arc<str>,
    /// Seconds since the Unix epoch: precedence between equal matches.
    pub created: i64,
    /// A GRPCRoute: it takes calls of gRPC only, and its backends are spoken to in HTTP/2.
    pub grpc: bool,
    /// What the connections of its requests count towards.
    pub(crate) account: Arc<Account>,
    rules: Box<[Rule]>,
}

impl HttpRoute {
    /// As the API names it.
    pub(crate) fn kind(&self) -> &'static str {
        if self.grpc { "GRPCRoute" } else { "HTTPRoute" }
    }

    pub(crate) fn new(
        (key, grpc): (Arc<str>, bool),
        account: Arc<Account>,
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

    /// Whether the two are versions of one route.
    pub(crate) fn is_version_of(&self, other: &Self) -> bool {
        self.key == other.key && self.grpc == other.grpc
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Every match of every rule, as the places of [`Self::at`].
    pub(crate) fn places(&self) -> impl Iterator<Item = (u16, u16)> {
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let rules = (0..).zip(&self.rules);
        rules.flat_map(move |(rule, of)| (0..count(of.matches.len())).map(move |at| (rule, at)))
    }

    /// A match and its rule.
    pub(crate) fn at(&self, (rule, at): (u16, u16)) -> Option<(&Rule, &Match)> {
        let rule = self.rules.get(usize::from(rule))?;
        Some((rule, rule.matches.get(usize::from(at))?))
    }
}

/// A rule of a route.
#[derive(Debug)]
pub(crate) struct Rule {
    /// For logs; may be empty.
    pub(crate) name: Box<str>,
    /// At least one.
    matches: Box<[Match]>,
    /// In the order they act.
    pub(crate) filters: Box<[Filter]>,
    backends: Box<[WeightedTarget]>,
    total: u64,
    /// From the head of the request to the end of the answer; zero: none, whatever the default is.
    pub(crate) request_timeout: Option<Duration>,
    /// For one try at a backend, up to the head of the answer.
    pub(crate) backend_timeout: Option<Duration>,
    /// When requests are made again.
    pub(crate) retry: Option<RetryPolicy>,
    /// How requests of one client stay at one endpoint.
    pub(crate) session: Option<Session>,
}

/// What a rule is made of.
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
    /// `None`: an invalid reference, which keeps its share.
    pub(crate) backend: Option<Slot<Backend>>,
    /// After the rule's own.
    pub(crate) filters: Box<[Filter]>,
}

impl Rule {
    pub(crate) fn backends(&self) -> &[WeightedTarget] {
        &self.backends
    }

    /// Where copies of requests go.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = Slot<Backend>> {
        let filters = self.backends.iter().flat_map(|backend| &backend.filters);
        self.filters.iter().chain(filters).filter_map(|filter| {
            let Filter::Mirror(mirror) = filter else {
                return None;
            };
            Some(mirror.backend)
        })
    }

    /// Everything that it refers to: where requests go, and where copies of them do.
    pub(crate) fn references(&self) -> impl Iterator<Item = Slot<Backend>> {
        let backends = self.backends.iter();
        backends
            .filter_map(|backend| backend.backend)
            .chain(self.mirrors())
    }

    pub(crate) fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// A backend by weight, chosen by the upper half of `random`; none if no backend has any.
    pub(crate) fn pick(&self, random: u64) -> Option<&WeightedTarget> {
        by_weight(&self.backends, |of| of.weight, self.total, random)
    }
}

/// What a request has to look like. All of it holds.
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
    /// Whether everything but the path holds.
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
                value.is_some_and(|value| param.value.accepts(value, steps))
            })
    }

    /// Whether all of it holds.
    pub(crate) fn accepts(&self, view: &View<'_>) -> bool {
        self.path.accepts(view.path, &view.steps) && self.accepts_rest(view)
    }
}

/// The path that a request has to have.
#[derive(Clone)]
pub(crate) enum PathMatch {
    /// The whole of it.
    Exact(Box<str>),
    /// The whole of it.
    Regex(Matcher),
    /// Its first elements: `/a/b` takes `/a/b` and `/a/b/c`. Without a slash at the end, so that the
    /// empty one takes everything.
    Prefix(Box<str>),
    /// A method of gRPC, `/<service>/<method>`. What is absent is any.
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

    /// What ranks it: exact over regular expression over prefix, then by length. Of methods of gRPC first the service
    /// counts and then the method, so that no method ranks above a service.
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

/// How a path is matched, and by how many characters: of the whole, or of a service and of a method.
pub(crate) type PathRank = [(u8, usize); 2];

/// Service and method of a call of gRPC, as its servers read them: the method is what is behind the last slash.
pub(crate) fn method_of(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.rsplit_once('/')
}

/// A field or parameter and what it has to be.
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
