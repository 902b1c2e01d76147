//! The review of one object.

use vestibule_model::finding::{Finding, Severity};
use vestibule_model::issuer::{problems_of_gateway, problems_of_set};
use vestibule_model::key::{Kind, ParentKey};
use vestibule_model::merge::{Merge, SetVerdict};
use vestibule_model::object::{Gateway, GatewayClass, ListenerSet, Object, TlsRoute};
use vestibule_model::policy::{Mode, Policy};

use crate::text;

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
    merge: &'a Merge,
    policy: &'a Policy,
}

impl<'a> Reviewer<'a> {
    /// A reviewer of objects that would join those of `merge`. It makes no difference whether the
    /// object under review is among them.
    #[must_use]
    pub fn new(merge: &'a Merge, policy: &'a Policy) -> Self {
        Self { merge, policy }
    }

    /// Reviews `new`, which takes the place of `old` if there is one.
    ///
    /// Objects that are known to be another controller's are let in in silence, and so are updates
    /// that change nothing Vestibule reads (so that finalizers and labels can be edited while a
    /// refusal is not yet mended) and whatever is being deleted. That a parent does not exist (yet),
    /// or does not let the object in (yet), refuses nothing: objects are applied in any order.
    #[must_use]
    pub fn review(&self, operation: Operation, old: Option<&Object>, new: &Object) -> Review {
        let old = old.filter(|_| operation == Operation::Update);
        if is_deleting(new) || old.is_some_and(|old| same_spec(old, new)) {
            return Review::of(Vec::new());
        }
        Review::of(match new {
            Object::TlsRoute(route) if self.concerns_route(route) => self.weigh(
                &route.name.namespace,
                self.policy.judge_route(route).into_iter(),
            ),
            Object::ListenerSet(set) if self.concerns_set(set) => {
                let old = match old {
                    Some(Object::ListenerSet(old)) => Some(old),
                    _ => None,
                };
                self.weigh(&set.name.namespace, self.set_findings(old, set))
            }
            Object::Gateway(gateway) if self.concerns_gateway(gateway) => {
                self.warn(&gateway.name.namespace, gateway_findings(gateway))
            }
            Object::GatewayClass(class) if *class.controller == *self.merge.controller() => {
                self.warn("", class.findings.iter().cloned())
            }
            Object::Unreadable(key, _, finding) => {
                let finding = std::iter::once(finding.clone());
                match key.kind {
                    Kind::TlsRoute | Kind::ListenerSet => self.weigh(&key.name.namespace, finding),
                    Kind::Gateway | Kind::GatewayClass => self.warn(&key.name.namespace, finding),
                    _ => Vec::new(),
                }
            }
            _ => Vec::new(),
        })
    }

    fn set_findings<'b>(
        &'b self,
        old: Option<&'b ListenerSet>,
        set: &'b ListenerSet,
    ) -> impl Iterator<Item = Finding> + 'b {
        let own = set.listeners.iter().flat_map(|l| &l.findings);
        let not_allowed = match self.merge.verdict(set) {
            SetVerdict::NotAllowed(finding) => Some(finding),
            SetVerdict::Allowed | SetVerdict::Orphan => None,
        };
        let gateway = set
            .gateway
            .as_ref()
            .and_then(|name| self.merge.gateway(name));
        set.findings
            .iter()
            .chain(own)
            .cloned()
            .chain(self.merge.conflicts_of_change(old, set))
            .chain(
                not_allowed
                    .into_iter()
                    .chain(problems_of_set(set, gateway.map(AsRef::as_ref)))
                    .map(warning),
            )
    }

    /// Whether any parent may be ours.
    fn concerns_route(&self, route: &TlsRoute) -> bool {
        route
            .parents
            .iter()
            .filter_map(|reference| reference.parent(&route.name.namespace))
            .any(|parent| match parent {
                ParentKey::Gateway(name) => !self.merge.is_foreign(&name),
                ParentKey::ListenerSet(name) => self
                    .merge
                    .set(&name)
                    .is_none_or(|set| self.concerns_set(set)),
            })
    }

    fn concerns_set(&self, set: &ListenerSet) -> bool {
        set.gateway
            .as_ref()
            .is_none_or(|gateway| !self.merge.is_foreign(gateway))
    }

    fn concerns_gateway(&self, gateway: &Gateway) -> bool {
        self.merge
            .class(&gateway.class)
            .is_none_or(|_| self.merge.is_our_class(&gateway.class))
    }

    /// Findings as heavy as they are in `namespace`.
    fn weigh(&self, namespace: &str, findings: impl Iterator<Item = Finding>) -> Vec<Finding> {
        match self.policy.mode_in(namespace) {
            Mode::Enforce => findings.collect(),
            Mode::Warn => findings.map(warning).collect(),
            Mode::Off => Vec::new(),
        }
    }

    /// Findings about what is the platform admin's own: never a refusal.
    fn warn(&self, namespace: &str, findings: impl Iterator<Item = Finding>) -> Vec<Finding> {
        self.weigh(namespace, findings.map(warning))
    }
}

fn gateway_findings(gateway: &Gateway) -> impl Iterator<Item = Finding> + '_ {
    let own = gateway.listeners.iter().flat_map(|l| &l.findings);
    gateway
        .findings
        .iter()
        .chain(own)
        .cloned()
        .chain(problems_of_gateway(gateway))
}

fn warning(finding: Finding) -> Finding {
    Finding {
        severity: Severity::Warning,
        ..finding
    }
}

fn is_deleting(object: &Object) -> bool {
    match object {
        Object::GatewayClass(o) => o.meta.deleting,
        Object::Gateway(o) => o.meta.deleting,
        Object::ListenerSet(o) => o.meta.deleting,
        Object::TlsRoute(o) => o.meta.deleting,
        Object::Unreadable(_, meta, _) => meta.deleting,
        _ => false,
    }
}

/// Whether two versions of an object say the same in all that Vestibule reads: metadata is not
/// looked at, but for the annotations that are part of the parsed object.
fn same_spec(old: &Object, new: &Object) -> bool {
    match (old, new) {
        (Object::GatewayClass(old), Object::GatewayClass(new)) => {
            *new == GatewayClass {
                meta: new.meta.clone(),
                ..old.clone()
            }
        }
        (Object::Gateway(old), Object::Gateway(new)) => {
            *new == Gateway {
                meta: new.meta.clone(),
                certificates: old.certificates.with_labels_of(&new.certificates),
                ..old.clone()
            }
        }
        (Object::ListenerSet(old), Object::ListenerSet(new)) => {
            *new == ListenerSet {
                meta: new.meta.clone(),
                certificates: old.certificates.with_labels_of(&new.certificates),
                ..old.clone()
            }
        }
        (Object::TlsRoute(old), Object::TlsRoute(new)) => {
            *new == TlsRoute {
                meta: new.meta.clone(),
                ..old.clone()
            }
        }
        (Object::Unreadable(old_key, _, old), Object::Unreadable(new_key, _, new)) => {
            old_key == new_key && old == new
        }
        _ => false,
    }
}
