//! The report of `vestibule explain`, in the form of its JSON. Names and meanings are stable; fields may be added.

use serde::{Serialize, Serializer};
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName};
use vestibule_model::protocol::Protocol;

use super::conditions::{Difference, StatusSource};

/// Everything about one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The name in canonical form.
    pub(super) hostname: String,
    /// Overall state: the worst state of the places where somebody asks for the name. A place does not count if only
    /// namespaces ask there that may not serve the name, and its owner serves it elsewhere.
    pub(super) state: ServingState,
    /// The places where it is or could be served, one for each port of each Gateway.
    pub(super) places: Vec<PortReport>,
    /// Why nobody asks for the name at any place, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nowhere: Option<ChainStep>,
    /// If `nowhere` is set: the route that asks for it at a parent that may not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<RouteView>,
    /// What could not be read. The rest of the report may be incomplete because of it.
    pub(super) unread: Vec<String>,
    /// The same for people.
    #[serde(skip)]
    pub(super) unread_lines: Vec<String>,
    /// Whether there may be listeners that the caller cannot see.
    #[serde(skip)]
    pub(super) partial: bool,
}

/// Whether a name is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServingState {
    /// Connections reach a backend.
    Live,
    /// The objects that may be read do not tell.
    Unknown,
    /// Connections do not reach a backend.
    Down,
}

/// One port of one Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortReport {
    pub(super) gateway: Name,
    pub(super) port: u16,
    /// The addresses of the Gateway.
    pub(super) addresses: Vec<String>,
    pub(super) state: ServingState,
    /// Whether a listener or a route names the name here. If none does anywhere, whether a route asks for it by the most
    /// specific hostname around it.
    pub(super) asked_for: bool,
    /// The listener that serves the name. If none does, it is the one that comes closest.
    pub(super) listener: ListenerView,
    /// `HostnameGrant`s that give the listener's hostname to its namespace. The list is empty if none is needed, or if
    /// they may not be read.
    pub(super) grants: Vec<ObjectView>,
    /// The holders of the listener's hostname, of the hostnames of routes that ask for the name there, and of the name
    /// itself. The list is empty if there are none, or if they may not be read.
    pub(super) holders: Vec<HolderView>,
    /// The certificate for clients, if TLS is terminated here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<CertificateView>,
    /// Routes of that listener for the name, in order of precedence.
    pub(super) routes: Vec<RouteView>,
    /// The steps from the class down to the proxies. The last one is the first that is wrong, if any is.
    pub(super) chain: Vec<ChainStep>,
    /// Other listeners whose hostname covers the name.
    pub(super) others: Vec<Other>,
    /// Statuses that differ from what follows from the objects.
    pub(super) differences: Vec<Disagreement>,
}

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl From<&ObjectName> for Name {
    fn from(name: &ObjectName) -> Self {
        Self {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
        }
    }
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ObjectView {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl From<&ObjectKey> for ObjectView {
    fn from(key: &ObjectKey) -> Self {
        Self {
            kind: key.kind.as_str(),
            namespace: key.name.namespace.to_string(),
            name: key.name.name.to_string(),
        }
    }
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ListenerView {
    /// The Gateway or ListenerSet that declares it.
    pub(super) object: ObjectView,
    pub(super) name: String,
    /// Its hostname. An empty one stands for every name.
    pub(super) hostname: String,
    #[serde(serialize_with = "text_of_protocol")]
    pub(super) protocol: Protocol,
    /// `Passthrough` or `Terminate`, if the protocol has TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<&'static str>,
    #[serde(skip)]
    pub(super) key: ListenerKey,
}

fn text_of_protocol<S: Serializer>(protocol: &Protocol, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(protocol.as_str())
}

/// The holder of a hostname.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HolderView {
    pub(super) namespace: String,
    /// When the holder got it (RFC 3339).
    pub(super) since: String,
    /// The hostname as the listener or route has it. An empty one stands for every name.
    pub(super) hostname: String,
    /// Whether the namespace has a listener or route for it. If not, another namespace can have it soon.
    pub(super) in_use: bool,
    /// The `HostnameClaim` that records this.
    pub(super) object: ObjectView,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CertificateView {
    pub(super) secret: Name,
    /// Names and addresses in it. The list is empty if it may not be read.
    pub(super) names: Vec<String>,
    /// Distinguished name of its issuer.
    pub(super) issuer: String,
    /// Beginning of its validity (RFC 3339). `not_after` is the end. They are empty if it may not be read.
    pub(super) not_before: String,
    pub(super) not_after: String,
    /// The issuer that annotations choose for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) requested_from: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RouteView {
    pub(super) object: ObjectView,
    /// The hostname of the route that covers the name. It is empty if the route has none.
    pub(super) hostname: String,
    /// The paths of the name to which the route is restricted, because a grant shares only these. If empty, it is not
    /// restricted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) shared_paths: Vec<String>,
    /// Whether an older or more specific TLSRoute has the name, or an older TCPRoute or UDPRoute the port.
    pub(super) shadowed: bool,
    pub(super) rules: Vec<RuleView>,
    #[serde(skip)]
    pub(super) key: ObjectKey,
}

/// A rule of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RuleView {
    /// Name of the rule. It may be empty.
    pub(super) name: String,
    /// Its matches, such as `GET /api/*`. If empty, it takes everything.
    pub(super) matches: Vec<String>,
    /// Its filters, such as `redirect 301`.
    pub(super) filters: Vec<String>,
    pub(super) backends: Vec<BackendView>,
    /// Why its requests are answered with an error, if so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) problem: String,
    /// The reason of the problem, as in conditions.
    #[serde(skip)]
    pub(super) reason: String,
    /// The remedy.
    #[serde(skip)]
    pub(super) remedy: String,
    /// Whether the endpoints of the server that authorizes its requests may not be read.
    #[serde(skip)]
    pub(super) is_authorizer_hidden: bool,
}

/// A backend of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackendView {
    pub(super) service: Name,
    pub(super) port: u16,
    pub(super) weight: u32,
    /// Number of ready endpoints; null if these may not be read.
    pub(super) ready: Option<usize>,
    /// The version of the PROXY header with which connections to it begin, `v1` or `v2`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy_protocol: Option<&'static str>,
    /// Why it cannot be used, as `Reason: message`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) problem: String,
    /// What to do about that.
    #[serde(skip)]
    pub(super) remedy: String,
}

/// The subject of a step of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Check {
    GatewayClass,
    Gateway,
    ListenerSet,
    Grant,
    Claim,
    Listener,
    Certificate,
    Route,
    Backends,
    Programmed,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepOutcome {
    Ok,
    /// There is a warning, and the name is served.
    Warning,
    /// The objects for this step may not be read.
    Unknown,
    /// The first thing that is wrong.
    Wrong,
}

/// One step of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ChainStep {
    pub(super) check: Check,
    pub(super) outcome: StepOutcome,
    /// The object, such as `ListenerSet a/web`.
    pub(super) subject: String,
    /// The reason, as in conditions. It is empty if nothing is wrong.
    pub(super) reason: String,
    pub(super) message: String,
    /// What to do. It may be empty.
    pub(super) action: String,
    /// The source of this verdict.
    pub(super) by: StatusSource,
}

/// Another listener whose hostname covers the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Other {
    pub(super) listener: ListenerView,
    /// `LessSpecific`, `NoRoute` or `NotServed`, or the reason why it is refused.
    pub(super) reason: String,
    pub(super) message: String,
}

/// A status that differs from what follows from the objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Disagreement {
    /// The object, with the listener or parent in it.
    pub(super) subject: String,
    /// Whether the status is about an older version, because the operator has not handled the new one yet.
    pub(super) stale: bool,
    /// Whether there is no status.
    pub(super) unwritten: bool,
    /// Conditions that differ.
    pub(super) conditions: Vec<Difference>,
}

/// The listener as text, such as `listener web of ListenerSet a/set`.
pub(super) fn listener_text(key: &ListenerKey) -> String {
    format!("listener {} of {}", key.listener, key.parent.object())
}
