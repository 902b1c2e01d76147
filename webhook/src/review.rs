//! The review of one object.

use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::gateway::{Gateway, ListenerSet};
use vestibule_model::key::{Kind, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::route::Route;

use crate::admission_state::AdmissionState;
use crate::same::{is_deleting, same_spec};
use crate::{rules, text};

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The object is new.
    Create,
    /// It replaces an older version of the object. Writes of a status are never reviewed.
    Update,
}

/// The answer to a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// Whether the object is allowed.
    pub allowed: bool,
    /// The message of a refusal for kubectl. It is one line, with `field: message; action` for each finding.
    pub message: Option<String>,
    /// Warnings for kubectl, one line each.
    pub warnings: Vec<String>,
    /// All findings, with the severity that they have here.
    pub findings: Vec<Finding>,
}

impl Review {
    fn of(findings: Vec<Finding>) -> Self {
        let refused = findings.iter().any(Finding::refuses);
        Self {
            allowed: !refused,
            message: refused.then(|| text::message(findings.iter().filter(|f| f.refuses()))),
            warnings: text::warnings(findings.iter().filter(|f| !f.refuses())),
            findings,
        }
    }
}

/// Reviews objects by the objects that exist and the policy of the release.
#[derive(Debug, Clone, Copy)]
pub struct Reviewer<'a> {
    state: &'a AdmissionState,
    policy: &'a Policy,
}

impl<'a> Reviewer<'a> {
    /// A reviewer of objects that would be added to `state`. It makes no difference whether an older version of the
    /// object is already there. The names of the state have to be [settled](AdmissionState::settle).
    #[must_use]
    pub fn new(state: &'a AdmissionState, policy: &'a Policy) -> Self {
        debug_assert!(state.is_settled(), "a verdict needs settled names");
        Self { state, policy }
    }

    /// The kinds for which there are rules.
    pub const KINDS: [Kind; 13] = [
        Kind::TlsRoute,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
        Kind::ListenerSet,
        Kind::Gateway,
        Kind::GatewayClass,
        Kind::BackendTlsPolicy,
        Kind::AcmeIssuer,
        Kind::ClusterAcmeIssuer,
        Kind::GatewayParameters,
        Kind::HostnameGrant,
    ];

    /// Reviews `new`, which replaces `old` if there is one.
    ///
    /// Some objects are always allowed without a warning: those that are known to belong to another controller, those
    /// that are being deleted, and updates without a change that Vestibule reads. (So finalizers and labels can be
    /// edited even if the object would be refused.)
    ///
    /// Objects are applied in any order. So an object is not refused because a parent does not exist (yet) or does not
    /// allow the object (yet).
    ///
    /// While no parent is known to be ours, the object may belong to another controller, which may support what
    /// Vestibule does not. Then it is refused only for hostnames that no controller could serve.
    #[must_use]
    pub fn review(&self, operation: Operation, old: Option<&Object>, new: &Object) -> Review {
        let old = old.filter(|_| operation == Operation::Update);
        if is_deleting(new) || old.is_some_and(|old| same_spec(old, new)) || !self.concerns(new) {
            return Review::of(Vec::new());
        }
        let key = new.key();
        let only_warned = is_only_warned(key.kind);
        let ours = self.is_ours(new);
        let weigh = |finding: Finding| match self.policy.mode_in(&key.name.namespace) {
            Mode::Enforce if !only_warned && (ours || is_nobodys_to_serve(finding.reason)) => {
                Some(finding)
            }
            Mode::Enforce | Mode::Warn => Some(warning(finding)),
            Mode::Off => None,
        };
        let findings = rules::findings(self.state, self.policy, old, new);
        Review::of(findings.into_iter().filter_map(weigh).collect())
    }

    /// Whether the object may concern our controller.
    fn concerns(&self, object: &Object) -> bool {
        let merge = self.state.merge();
        match object {
            Object::GatewayClass(class) => *class.controller == *merge.controller(),
            Object::Gateway(gateway) => self.concerns_gateway(gateway),
            Object::ListenerSet(set) => self.concerns_set(set),
            Object::Unreadable(key, ..) => Self::KINDS.contains(&key.kind),
            Object::BackendTlsPolicy(_)
            | Object::AcmeIssuer(_)
            | Object::GatewayParameters(_)
            | Object::HostnameGrant(_) => true,
            other => other
                .as_route()
                .is_some_and(|route| self.concerns_route(route)),
        }
    }

    /// Whether any parent may belong to our controller.
    fn concerns_route(&self, route: Route<'_>) -> bool {
        let merge = self.state.merge();
        route
            .parents()
            .iter()
            .filter_map(|reference| reference.parent(&route.name().namespace))
            .any(|parent| match parent {
                ParentKey::Gateway(name) => !merge.is_foreign(&name),
                ParentKey::ListenerSet(name) => {
                    merge.set(&name).is_none_or(|set| self.concerns_set(set))
                }
            })
    }

    fn concerns_set(&self, set: &ListenerSet) -> bool {
        set.gateway
            .as_ref()
            .is_none_or(|gateway| !self.state.merge().is_foreign(gateway))
    }

    /// Whether the object is known to concern our controller: it is of one of Vestibule's kinds, or has a parent of
    /// ours.
    fn is_ours(&self, object: &Object) -> bool {
        let merge = self.state.merge();
        let set_is_ours = |set: &ListenerSet| {
            set.gateway
                .as_ref()
                .is_some_and(|gateway| merge.gateway(gateway).is_some())
        };
        match object {
            Object::ListenerSet(set) => set_is_ours(set),
            // Nobody can tell to which controller it belongs. Other controllers depend on most kinds of routes, so
            // these are allowed. TLSRoutes take names on shared ports, so they are not allowed unread.
            Object::Unreadable(key, ..) => !key.kind.is_route() || key.kind == Kind::TlsRoute,
            other => other.as_route().is_none_or(|route| {
                let namespace = &route.name().namespace;
                let parents = route.parents().iter();
                parents
                    .filter_map(|reference| reference.parent(namespace))
                    .any(|parent| match parent {
                        ParentKey::Gateway(name) => merge.gateway(&name).is_some(),
                        ParentKey::ListenerSet(name) => {
                            merge.set(&name).is_some_and(|set| set_is_ours(set))
                        }
                    })
            }),
        }
    }

    fn concerns_gateway(&self, gateway: &Gateway) -> bool {
        let merge = self.state.merge();
        merge
            .class(&gateway.class)
            .is_none_or(|_| merge.is_our_class(&gateway.class))
    }
}

/// Whether objects of a kind are never refused. The platform admin writes Gateways and GatewayClasses, and may write
/// what they like. A `BackendTLSPolicy` refers to Services and not to a Gateway, so it may be meant for another
/// controller.
///
/// Objects of Vestibule's own kinds are refused for errors in themselves, even those of the admin. No other controller
/// reads them, and such an object would have no effect, or deny what it was meant to allow.
fn is_only_warned(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Gateway | Kind::GatewayClass | Kind::BackendTlsPolicy
    )
}

/// Whether a reason counts for every controller: names that cannot be served, names that TLSRoutes may not have, and
/// conflicts between listeners of one set.
fn is_nobodys_to_serve(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::InvalidHostname
            | Reason::WildcardHostname
            | Reason::HostnameConflict
            | Reason::ProtocolConflict
            | Reason::ListenerConflict
    )
}

fn warning(finding: Finding) -> Finding {
    Finding {
        severity: Severity::Warning,
        ..finding
    }
}
