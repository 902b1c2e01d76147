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

/// What is done to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It replaces an older version of itself. Never asked for statuses.
    Update,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// Whether it may come in.
    pub allowed: bool,
    /// What kubectl shows of a refusal: one line, `field: what; what to do` for each thing.
    pub message: Option<String>,
    /// What kubectl shows besides, one line each.
    pub warnings: Vec<String>,
    /// Everything found, as heavy as it is here.
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

/// Reviews objects from what is there and the release's policy.
#[derive(Debug, Clone, Copy)]
pub struct Reviewer<'a> {
    state: &'a AdmissionState,
    policy: &'a Policy,
}

impl<'a> Reviewer<'a> {
    /// A reviewer of objects that would join those of `state`. It makes no difference whether the
    /// object under review is among them.
    #[must_use]
    pub fn new(state: &'a AdmissionState, policy: &'a Policy) -> Self {
        Self { state, policy }
    }

    /// The kinds there are rules for.
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

    /// Reviews `new`, which takes the place of `old` if there is one.
    ///
    /// Objects that are known to be another controller's are let in in silence, and so are updates
    /// that change nothing Vestibule reads (so that finalizers and labels can be edited while a
    /// refusal is not yet mended) and whatever is being deleted. That a parent does not exist (yet),
    /// or does not let the object in (yet), refuses nothing: objects are applied in any order. While no
    /// parent is known to be ours, the object may be another controller's, which may well have what Vestibule
    /// has not: then it is refused for its hostnames only, which no controller could serve.
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

    /// Whether it may be ours to judge.
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

    /// Whether any parent may be ours.
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

    /// Whether it is known to be ours: Vestibule's own kinds, and what has a parent of ours.
    fn is_ours(&self, object: &Object) -> bool {
        let merge = self.state.merge();
        let set_is_ours = |set: &ListenerSet| {
            set.gateway
                .as_ref()
                .is_some_and(|gateway| merge.gateway(gateway).is_some())
        };
        match object {
            Object::ListenerSet(set) => set_is_ours(set),
            // Nobody can say whose it is. Most routes are what other controllers live on; what takes names on shared
            // ports is not let in unread.
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

/// Kinds of which nothing is refused. Gateways and GatewayClasses are the platform admin's, whose word
/// counts. A `BackendTLSPolicy` names Services and no Gateway, so it may be there for another controller.
///
/// Objects of Vestibule's own kinds are refused for what is wrong in themselves, the admin's too: nobody
/// else reads them, and such an object would have no effect, or deny what it was written to allow.
fn is_only_warned(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Gateway | Kind::GatewayClass | Kind::BackendTlsPolicy
    )
}

/// Reasons that hold whosever the object is: names that cannot be served or that TLSRoutes may not have, and
/// listeners of one set in each other's way.
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
