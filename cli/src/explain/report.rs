//! The report of `vestibule explain`, in the form of its JSON. Names and meanings are stable; fields may be added.

use serde::Serialize;
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName};

use super::conditions::{Difference, StatusSource};

/// Everything about one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The name in canonical form.
    pub(super) hostname: String,
    /// Overall state: the worst of the places where somebody asks for the name.
    pub(super) state: ServingState,
    /// Where it is, or could be, served: one for each port of each Gateway.
    pub(super) places: Vec<PortReport>,
    /// Why no place is asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nowhere: Option<ChainStep>,
    /// Then: the route that asks for it at a parent that may not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<RouteView>,
    /// What could not be read, so that the rest may lack something.
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
    /// Connections get to a backend.
    Live,
    /// What may be read does not tell.
    Unknown,
    /// They do not.
    Down,
}

/// One port of one Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortReport {
    pub(super) gateway: Name,
    pub(super) port: u16,
    /// Where the Gateway is reached.
    pub(super) addresses: Vec<String>,
    pub(super) state: ServingState,
    /// Whether a listener or a route names it here, rather than a wildcard listener just taking it in.
    pub(super) asked_for: bool,
    /// The listener that has the name; if none has, the one that comes closest.
    pub(super) listener: ListenerView,
    /// `HostnameGrant`s that give the listener's hostname to its namespace; empty if none is needed, or they
    /// may not be read.
    pub(super) grants: Vec<ObjectView>,
    /// Who holds the listener's hostname, and those of its TLSRoutes for the name; empty if nobody does, or
    /// that may not be read.
    pub(super) holders: Vec<HolderView>,
    /// What is shown to clients, where TLS ends here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<CertificateView>,
    /// Routes of that listener for the name, in order of precedence.
    pub(super) routes: Vec<RouteView>,
    /// From the class down to the proxies; ends with the first thing that is wrong.
    pub(super) chain: Vec<ChainStep>,
    /// Other listeners that take the name in.
    pub(super) others: Vec<Other>,
    /// Where a status says something else than its objects.
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
    /// Its hostname; empty for every name.
    pub(super) hostname: String,
    pub(super) protocol: String,
    /// `Passthrough` or `Terminate`, where there is TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<&'static str>,
    #[serde(skip)]
    pub(super) key: ListenerKey,
}

/// Who holds a hostname, so that nobody else takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HolderView {
    pub(super) namespace: String,
    /// RFC 3339.
    pub(super) since: String,
    /// As the listener or route writes it; empty for every name.
    pub(super) hostname: String,
    /// Whether the namespace has a listener or route for it; if not, it goes to others soon.
    pub(super) in_use: bool,
    /// The `HostnameClaim` that says so.
    pub(super) object: ObjectView,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CertificateView {
    pub(super) secret: Name,
    /// Names and addresses in it; empty if it may not be read.
    pub(super) names: Vec<String>,
    /// Distinguished name of who signed it.
    pub(super) issuer: String,
    /// RFC 3339; empty if it may not be read.
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
    /// The hostname of it that takes the name in; empty if it has none.
    pub(super) hostname: String,
    /// The only paths of it that a grant shares with the route's namespace; none: nothing is kept from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) shared_paths: Vec<String>,
    /// An older or more specific TLSRoute has the name, or an older TCPRoute or UDPRoute the port.
    pub(super) shadowed: bool,
    pub(super) rules: Vec<RuleView>,
    #[serde(skip)]
    pub(super) key: ObjectKey,
}

/// A rule of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RuleView {
    /// Name of the rule; may be empty.
    pub(super) name: String,
    /// What it takes, such as `GET /api/*`; empty: everything.
    pub(super) matches: Vec<String>,
    /// What it does by itself, such as `redirect 301`.
    pub(super) filters: Vec<String>,
    pub(super) backends: Vec<BackendView>,
    /// Why it is refused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) problem: String,
}

/// A backend of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct BackendView {
    pub(super) service: Name,
    pub(super) port: u16,
    pub(super) weight: u32,
    /// Ready endpoints; null if that may not be read.
    pub(super) ready: Option<usize>,
    /// Why it is no backend: `Reason: message`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) problem: String,
    /// Then: what to do.
    #[serde(skip)]
    pub(super) remedy: String,
}

/// What a step of the chain looks at.
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

/// What a step comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepOutcome {
    Ok,
    /// The name is served all the same.
    Warning,
    /// It may not be read.
    Unknown,
    /// The first thing that is wrong.
    Wrong,
}

/// One step of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ChainStep {
    pub(super) check: Check,
    pub(super) outcome: StepOutcome,
    /// What it is about, such as `ListenerSet a/web`.
    pub(super) subject: String,
    /// As in conditions; empty if nothing is wrong.
    pub(super) reason: String,
    pub(super) message: String,
    /// What to do; may be empty.
    pub(super) action: String,
    /// Who says so.
    pub(super) by: StatusSource,
}

/// Another listener that takes the name in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Other {
    pub(super) listener: ListenerView,
    /// `LessSpecific`, or why it is refused.
    pub(super) reason: String,
    pub(super) message: String,
}

/// A status that does not say what its objects come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Disagreement {
    /// The object, and the listener or parent in it.
    pub(super) subject: String,
    /// The status is about an older version, so the operator has not come to it yet.
    pub(super) stale: bool,
    /// There is no status.
    pub(super) unwritten: bool,
    /// Conditions that differ.
    pub(super) conditions: Vec<Difference>,
}

/// `listener web of ListenerSet a/set`.
pub(super) fn listener_text(key: &ListenerKey) -> String {
    format!("listener {} of {}", key.listener, key.parent.object())
}
