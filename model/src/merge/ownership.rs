//! Ownership in the merge: what grants allow to listeners, routes and issuers, now or after a change of an object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Merge, first_of_name};
use crate::attach::Attached;
use crate::finding::Finding;
use crate::gateway::{Listener, ListenerSet, TlsMode};
use crate::hostname::{HostPattern, Hostname};
use crate::hostname_grant::{ConnectionLimits, GrantLimits, HostnameGrant};
use crate::issuer::{self, IssuerRef};
use crate::key::{Kind, ListenerKey, ObjectName, ParentKey};
use crate::ownership::{GatewayTenant, GrantCheck, too_many_certificates, too_many_listeners};
use crate::protocol::{Port, Protocol};
use crate::route::{Route, field_of_hostname};

/// Namespaces that may own other hostnames on a Gateway after a change of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The Gateway.
    pub gateway: ObjectName,
    /// The grant before and after the change. `None` stands for every namespace, because the Gateway got its first
    /// grant or lost its last one.
    pub(super) grants: Option<Vec<Arc<HostnameGrant>>>,
}

impl Merge {
    /// A HostnameGrant.
    #[must_use]
    pub fn grant(&self, name: &ObjectName) -> Option<&Arc<HostnameGrant>> {
        self.grants.get(name)
    }

    /// The grants of a namespace, in order of their names.
    pub fn grants_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<HostnameGrant>> {
        self.grants.in_namespace(namespace)
    }

    /// Whether a Gateway has grants. Then a namespace may use only what a grant gives it.
    #[must_use]
    pub fn is_guarded(&self, gateway: &ObjectName) -> bool {
        self.grants.guards(gateway)
    }

    /// Whether a namespace is one of `owners`.
    #[must_use]
    pub fn is_touched(&self, owners: &Owners, namespace: &str) -> bool {
        *owners.gateway.namespace != *namespace
            && owners.grants.as_ref().is_none_or(|grants| {
                let labels = self.labels(namespace);
                grants.iter().any(|grant| grant.selects(namespace, labels))
            })
    }

    /// Whether a namespace may use all of `names` on a port of a Gateway. The finding's field is one of a
    /// listener: "hostname", "port" or "protocol".
    ///
    /// # Errors
    /// If no grant gives them to it, and the Gateway has grants.
    pub fn owns(
        &self,
        gateway: &ObjectName,
        namespace: &str,
        port: Port,
        protocol: &Protocol,
        names: &HostPattern,
    ) -> Result<(), Finding> {
        self.grants
            .tenant_grants(gateway, namespace, self.labels(namespace))
            .owns(port, protocol, names)
    }

    /// Whether a ListenerSet of a namespace may have a listener that gets connections for every hostname, if this one
    /// does.
    ///
    /// # Errors
    /// If no grant gives it.
    pub(super) fn takes_every_name(
        &self,
        gateway: &ObjectName,
        namespace: &str,
        port: Port,
        protocol: &Protocol,
    ) -> Result<(), Finding> {
        self.grants
            .tenant_grants(gateway, namespace, self.labels(namespace))
            .takes_every_name(port, protocol)
    }

    /// Why the namespace of a ListenerSet may not have one of its listeners: no grant gives the hostname, or the
    /// listener or its port is over the limit. Such a listener makes no claim.
    #[must_use]
    pub fn not_owned(&self, listener: &ListenerKey) -> Option<&Finding> {
        match &listener.parent {
            ParentKey::Gateway(_) => None,
            ParentKey::ListenerSet(set) => self
                .grant_checks
                .refusal(set, listener)
                .or_else(|| self.port_limits.refusal(set, listener)),
        }
    }

    /// Why a ListenerSet's listener gets no certificate from the issuer that the set names or inherits: the namespace
    /// may not use the issuer, or it is over its limit on certificates.
    #[must_use]
    pub fn not_issued(&self, listener: &ListenerKey) -> Option<&Finding> {
        match &listener.parent {
            ParentKey::Gateway(_) => None,
            ParentKey::ListenerSet(set) => self.grant_checks.unissued(set, listener),
        }
    }

    /// Why the names that a ListenerSet's annotations add may not be in its certificates: no grant gives them to its
    /// namespace. Then nothing is requested from cert-manager, and the built-in engine is asked only for the hostnames
    /// of the listeners.
    #[must_use]
    pub fn withheld(&self, set: &ObjectName) -> Option<&Finding> {
        self.grant_checks.withheld(set)
    }

    /// The same for a version of a ListenerSet that is not applied yet. Admission asks this.
    #[must_use]
    pub fn would_withhold(&self, set: &ListenerSet) -> Option<Finding> {
        self.check_grants(set)?.1.withheld
    }

    /// Removes from a route's attachments to one parent the hostnames that its namespace does not own. An attachment
    /// that loses all of its hostnames is removed.
    ///
    /// The first value is what is left. The findings are about what was removed: one refusal if nothing is left, and
    /// otherwise a warning for each hostname.
    #[must_use]
    pub fn owned_by_route(
        &self,
        route: Route<'_>,
        parent: &ParentKey,
        attached: Vec<Attached>,
    ) -> (Vec<Attached>, Vec<Finding>) {
        let (left, mut findings) = self.left_to_route(route, parent, attached);
        if left.is_empty() {
            findings.truncate(1);
        } else {
            for finding in &mut findings {
                finding.severity = crate::finding::Severity::Warning;
            }
        }
        (left, findings)
    }

    /// The same, but with a refusal for each hostname that was removed, in the order of the route's hostnames on each
    /// listener.
    #[must_use]
    pub fn left_to_route(
        &self,
        route: Route<'_>,
        parent: &ParentKey,
        attached: Vec<Attached>,
    ) -> (Vec<Attached>, Vec<Finding>) {
        let Some((listeners, gateway)) = self.listeners(parent) else {
            return (attached, Vec::new());
        };
        let namespace = &route.name().namespace;
        let tenant_grants = self
            .grants
            .tenant_grants(gateway, namespace, self.labels(namespace));
        if !tenant_grants.is_limited() {
            return (attached, Vec::new());
        }
        // A tenant can give a route a thousand hostnames on a thousand listeners. With this index, each look-up is
        // cheap. The order is reversed so that the first of equal hostnames counts.
        let indexes: BTreeMap<&HostPattern, usize> = route
            .hostnames()
            .iter()
            .rev()
            .map(|(index, name)| (name, *index))
            .collect();
        let (mut findings, mut said) = (Vec::new(), BTreeSet::new());
        let mut left = Vec::with_capacity(attached.len());
        for mut attached in attached {
            let listener = listeners
                .iter()
                .find(|listener| listener.name == attached.listener.listener);
            let Some((listener, port)) = listener.and_then(|l| Some((l, l.port?))) else {
                left.push(attached);
                continue;
            };
            let shares = |names: &HostPattern| match (route, parent, names) {
                (Route::Http(_), ParentKey::Gateway(_), HostPattern::Exact(name)) => {
                    tenant_grants.shares(name)
                }
                _ => false,
            };
            attached.hostnames.retain(|hostname| {
                if shares(&hostname.matches) {
                    return true;
                }
                let verdict = tenant_grants.owns(port, &listener.protocol, &hostname.matches);
                let refused = verdict.map_err(|finding| {
                    let field = if route.has_names() {
                        field_of_hostname(indexes.get(&hostname.rank).copied(), &hostname.rank)
                    } else {
                        "spec.parentRefs".to_owned()
                    };
                    let finding = Finding { field, ..finding };
                    if said.insert(finding.clone()) {
                        findings.push(finding);
                    }
                });
                refused.is_ok()
            });
            if !attached.hostnames.is_empty() {
                left.push(attached);
            }
        }
        (left, findings)
    }

    /// Findings about what a ListenerSet would get by a change from `old`, and its namespace may not have: listeners
    /// without a grant or over the limit, and issuers.
    ///
    /// Whatever `old` already has is not judged again, so that a set whose grant is gone can still be edited in other
    /// places. There are no findings if its Gateway does not allow it or does not exist (yet).
    #[must_use]
    pub fn ownership_of_change(
        &self,
        old: Option<&ListenerSet>,
        set: &ListenerSet,
    ) -> Vec<Finding> {
        let Some((at, check)) = self.check_grants(set) else {
            return Vec::new();
        };
        let old = old.filter(|old| old.gateway == set.gateway);
        let before = old.and_then(|old| Some((old, self.check_grants(old)?.1)));
        // Whether a former listener with the same claim had the same finding; `has` looks at its index.
        let had = |listener: &Listener, has: fn(&GrantCheck, usize) -> bool| {
            before.as_ref().is_some_and(|(old, check)| {
                old.listeners.iter().enumerate().any(|(index, former)| {
                    former.name == listener.name
                        && former.hostname == listener.hostname
                        && former.port == listener.port
                        && former.protocol == listener.protocol
                        && has(check, index)
                })
            })
        };
        let mut findings = Vec::new();
        for (index, listener) in set.listeners.iter().enumerate() {
            if let Some(finding) = check.refused.get(&index)
                && !had(listener, |s, n| s.refused.contains_key(&n))
            {
                findings.push(finding.clone());
            }
            if let Some(finding) = check.unissued.get(&index)
                && !had(listener, |s, n| s.unissued.contains_key(&n))
            {
                findings.push(finding.clone());
            }
        }
        let limits = self.limits(&at.gateway, &at.namespace);
        if limits == GrantLimits::default() {
            return findings;
        }
        let (others, mut names) = self.grant_checks.others(&at, &set.name);
        let empty = GrantCheck::default();
        let former = before.as_ref().map_or(&empty, |(_, check)| check);
        if let Some(limit) = limits.listeners
            && check.counted.len() > former.counted.len()
        {
            let room = usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .saturating_sub(others);
            let over = check.counted.iter().skip(room.max(former.counted.len()));
            let over = over.filter_map(|index| set.listeners.get(*index));
            findings.extend(over.map(|listener| too_many_listeners(&at, limit, listener)));
        }
        if let Some(limit) = limits.certificates {
            let limit_of_names = usize::try_from(limit).unwrap_or(usize::MAX);
            // Names that the set has already are not new, so that a set beyond a lower limit can still be edited.
            names.extend(former.asking.iter().map(|(_, name)| name));
            for (index, name) in &check.asking {
                let is_new = !names.contains(name);
                if is_new && names.len() >= limit_of_names {
                    let listener = set.listeners.get(*index);
                    findings.extend(listener.map(|l| too_many_certificates(&at, limit, l)));
                } else {
                    names.insert(name);
                }
            }
        }
        findings
    }

    /// Checks a set against the grants, whether it is applied or not. `None` means that the set takes no part: it is
    /// being deleted, or its Gateway does not allow it.
    pub(crate) fn check_grants(&self, set: &ListenerSet) -> Option<(GatewayTenant, GrantCheck)> {
        let gateway = self.gateway_in_force(set)?;
        let namespace = &set.name.namespace;
        let at = GatewayTenant {
            gateway: gateway.name.clone(),
            namespace: namespace.clone(),
        };
        let added = &set.certificates.options.alternative_names;
        let limited = self.is_guarded(&gateway.name);
        // The owner of the Gateway writes the grants, so its own sets need none and are not counted.
        if gateway.name.namespace == *namespace {
            return Some((at, GrantCheck::default()));
        }
        let tenant_grants =
            self.grants
                .tenant_grants(&gateway.name, namespace, self.labels(namespace));
        let issuer = issuer::choose(&set.issuers, &gateway.issuers, &gateway.name)
            .ok()
            .flatten();
        let mut check = GrantCheck {
            withheld: issuer
                .as_ref()
                .and_then(|issuer| tenant_grants.certifies(issuer, added).err()),
            ..GrantCheck::default()
        };
        for (index, listener) in first_of_name(&set.listeners) {
            let port = listener
                .port
                .filter(|_| listener.protocol.transport().is_some() && !listener.is_refused());
            let Some(port) = port else { continue };
            let verdict = tenant_grants
                .owns(port, &listener.protocol, &listener.hostname)
                .and_then(|()| tenant_grants.takes_every_name(port, &listener.protocol));
            if let Err(mut finding) = verdict {
                finding.field = format!("{}.{}", listener.field, finding.field);
                check.refused.insert(index, finding);
                continue;
            }
            // Without grants a namespace may have everything else, except names in certificates that no listener has.
            if !limited {
                continue;
            }
            check.counted.push(index);
            let Some(issuer) = &issuer else { continue };
            let Some(hostname) = asks(set, listener, issuer) else {
                continue;
            };
            match tenant_grants.allows(port, &listener.protocol, &listener.hostname, issuer) {
                Ok(()) => {
                    check.asking.push((index, hostname.clone()));
                    // Every certificate of the set gets the names that its annotations add. Each name is counted once.
                    if check.withheld.is_none() {
                        let added = added.hostnames.iter().cloned();
                        check.asking.extend(added.map(|name| (index, name)));
                    }
                }
                Err(mut finding) => {
                    finding.field = issuer_field(set);
                    check.unissued.insert(index, finding);
                }
            }
        }
        Some((at, check))
    }

    /// How much a namespace may have on a Gateway.
    #[must_use]
    pub fn limits(&self, gateway: &ObjectName, namespace: &str) -> GrantLimits {
        self.grants
            .tenant_grants(gateway, namespace, self.labels(namespace))
            .limits()
    }

    /// Whether some grant limits connections. If not, [`Self::connection_limits`] are empty for every namespace.
    #[must_use]
    pub fn limits_connections(&self) -> bool {
        self.grants.limit_connections()
    }

    /// How a namespace shares the connections of the proxies with others, as all its grants together say. A grant counts if
    /// it is for a Gateway of ours that exists.
    #[must_use]
    pub fn connection_limits(&self, namespace: &str) -> ConnectionLimits {
        let counts = |grant: &HostnameGrant| {
            let mut gateways = self.gateways_in(&grant.name.namespace);
            gateways.any(|gateway| grant.is_for(&gateway.name) && self.gateway(gateway).is_some())
        };
        self.grants
            .connection_limits(namespace, self.labels(namespace), counts)
    }
}

/// The hostname for which a listener requests a certificate from the issuer.
fn asks<'a>(set: &ListenerSet, listener: &'a Listener, issuer: &IssuerRef) -> Option<&'a Hostname> {
    let tls = listener
        .tls
        .as_ref()
        .filter(|tls| tls.mode == TlsMode::Terminate)?;
    let HostPattern::Exact(hostname) = &listener.hostname else {
        return None;
    };
    let first = tls.certificates.first()?;
    if !first.is(Kind::Secret) || first.target.namespace != set.name.namespace {
        return None;
    }
    let options = &set.certificates.options;
    (!issuer.engine.ignores(options, &listener.name)).then_some(hostname)
}

/// The field that names the issuer of a set: its own annotation or, if the Gateway's counts, `spec.parentRef`.
fn issuer_field(set: &ListenerSet) -> String {
    match set.issuers.named() {
        Some(annotation) => format!("metadata.annotations[{annotation}]"),
        None => "spec.parentRef".into(),
    }
}
