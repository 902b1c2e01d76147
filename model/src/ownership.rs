//! Permission for hostnames: what each `HostnameGrant` allows to each namespace on a Gateway.
//!
//! Grants are in the namespace of the Gateway. On a Gateway without grants, the first namespace that asks for a free
//! name gets it. If there is at least one grant, a namespace has only what grants give it. Several grants for a
//! namespace add up. The Gateway's own namespace needs none. A grant that cannot be read gives nothing, and still
//! counts as a grant.

mod grant_checks;
mod port_limits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::certificate::{ALTERNATIVE_NAMES, AlternativeNames};
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::hostname_grant::{ConnectionLimits, GrantLimits, HostnameGrant};
use crate::issuer::{Engine, IssuerRef};
use crate::key::ObjectName;
use crate::path::PathPrefix;
use crate::protocol::{Group, Port, Protocol};
use crate::selector::Labels;

pub(crate) use grant_checks::{
    GatewayTenant, GrantCheck, GrantChecks, too_many_certificates, too_many_listeners,
};
pub(crate) use port_limits::{PortAsk, PortFacts, PortLimits};

/// Ports where browsers go by default and certificate authorities look for proof of a domain (RFC 8555 section 8.3, RFC
/// 8737 section 3). They reach a port by address, so a TCP listener there gets the connections for every hostname.
const PORTS_OF_EVERY_NAME: [u16; 2] = [80, 443];

/// The grants that are in one namespace.
#[derive(Debug, Clone, Default)]
struct NamespaceGrants {
    grants: BTreeMap<Arc<str>, Arc<HostnameGrant>>,
    /// Grants by the namespaces they name.
    by_tenant: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Grants that select namespaces by label.
    by_label: BTreeSet<Arc<str>>,
    /// Those of them that limit connections.
    limiting_by_label: BTreeSet<Arc<str>>,
    /// Number of grants that limit connections.
    limiting: usize,
    /// Number of grants that are about every Gateway. `by_gateway` has the number for those that name Gateways.
    for_every: usize,
    by_gateway: BTreeMap<Arc<str>, usize>,
}

impl NamespaceGrants {
    fn index(&mut self, grant: &HostnameGrant, there: bool) {
        let name = &grant.name.name;
        for tenant in &grant.namespaces.names {
            let grants = self.by_tenant.entry(tenant.clone()).or_default();
            if there {
                grants.insert(name.clone());
            } else {
                grants.remove(name);
            }
            if grants.is_empty() {
                self.by_tenant.remove(tenant);
            }
        }
        if grant.namespaces.selector.is_some() {
            if there {
                self.by_label.insert(name.clone());
            } else {
                self.by_label.remove(name);
            }
            if there && !grant.limits.connections.is_empty() {
                self.limiting_by_label.insert(name.clone());
            } else {
                self.limiting_by_label.remove(name);
            }
        }
        let step = |count: &mut usize| {
            *count = if there {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        };
        if !grant.limits.connections.is_empty() {
            step(&mut self.limiting);
        }
        if grant.gateways.is_empty() {
            step(&mut self.for_every);
        }
        for gateway in &grant.gateways {
            let count = self.by_gateway.entry(gateway.clone()).or_default();
            step(count);
            if *count == 0 {
                self.by_gateway.remove(gateway);
            }
        }
    }

    fn guards(&self, gateway: &str) -> bool {
        self.for_every > 0 || self.by_gateway.contains_key(gateway)
    }
}

/// All grants, by the namespaces they are in.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostnameGrants(BTreeMap<Arc<str>, NamespaceGrants>);

impl HostnameGrants {
    /// Takes a grant, or its removal, and returns the former one.
    pub(crate) fn put(
        &mut self,
        name: &ObjectName,
        grant: Option<Arc<HostnameGrant>>,
    ) -> Option<Arc<HostnameGrant>> {
        let in_namespace = self.0.entry(name.namespace.clone()).or_default();
        let old = in_namespace.grants.remove(&name.name);
        if let Some(old) = &old {
            in_namespace.index(old, false);
        }
        if let Some(grant) = grant {
            in_namespace.index(&grant, true);
            in_namespace.grants.insert(name.name.clone(), grant);
        }
        if in_namespace.grants.is_empty() {
            self.0.remove(&name.namespace);
        }
        old
    }

    pub(crate) fn get(&self, name: &ObjectName) -> Option<&Arc<HostnameGrant>> {
        self.0.get(&name.namespace)?.grants.get(&name.name)
    }

    pub(crate) fn in_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = &Arc<HostnameGrant>> {
        let in_namespace = self.0.get(namespace).into_iter();
        in_namespace.flat_map(|in_namespace| in_namespace.grants.values())
    }

    /// Whether a Gateway has grants.
    pub(crate) fn guards(&self, gateway: &ObjectName) -> bool {
        self.0
            .get(&gateway.namespace)
            .is_some_and(|in_namespace| in_namespace.guards(&gateway.name))
    }

    /// Whether some grant limits connections.
    pub(crate) fn limit_connections(&self) -> bool {
        self.0
            .values()
            .any(|in_namespace| in_namespace.limiting > 0)
    }

    /// The limits that grants set for the connections of a namespace, whose labels are `labels`: of each kind of limit,
    /// the largest one in any of its grants that `counts`. Those in its own namespace do not count, so nobody can give
    /// themselves more.
    pub(crate) fn connection_limits(
        &self,
        namespace: &str,
        labels: Option<&Labels>,
        counts: impl Fn(&HostnameGrant) -> bool,
    ) -> ConnectionLimits {
        let others = self.0.iter().filter(|(at, _)| ***at != *namespace);
        let grants = others.flat_map(|(_, in_namespace)| {
            let named = in_namespace.by_tenant.get(namespace).into_iter().flatten();
            let all = named.chain(&in_namespace.limiting_by_label);
            all.filter_map(move |name| in_namespace.grants.get(name))
        });
        grants
            .filter(|grant| !grant.limits.connections.is_empty() && !grant.meta.deleting)
            .filter(|grant| grant.selects(namespace, labels) && counts(grant))
            .fold(ConnectionLimits::default(), |limits, grant| {
                limits.or_larger(grant.limits.connections)
            })
    }

    /// The grants for a namespace, whose labels are `labels`, on a Gateway.
    pub(crate) fn tenant_grants<'a>(
        &'a self,
        gateway: &'a ObjectName,
        namespace: &'a str,
        labels: Option<&Labels>,
    ) -> TenantGrants<'a> {
        let mut tenant_grants = TenantGrants {
            gateway,
            namespace,
            grants: None,
        };
        if *gateway.namespace == *namespace {
            return tenant_grants;
        }
        let Some(in_namespace) = self.0.get(&gateway.namespace) else {
            return tenant_grants;
        };
        if !in_namespace.guards(&gateway.name) {
            return tenant_grants;
        }
        let names: BTreeSet<&Arc<str>> = in_namespace
            .by_tenant
            .get(namespace)
            .into_iter()
            .flatten()
            .chain(&in_namespace.by_label)
            .collect();
        let grants = names
            .into_iter()
            .filter_map(|name| in_namespace.grants.get(name).map(Arc::as_ref))
            .filter(|grant| {
                // A grant that is being deleted gives nothing any more. It still guards the Gateway until it is gone,
                // so the Gateway does not open before.
                !grant.meta.deleting
                    && grant.is_for(&gateway.name)
                    && grant.selects(namespace, labels)
            });
        tenant_grants.grants = Some(grants.collect());
        tenant_grants
    }
}

/// The grants for one namespace on one Gateway, and what they allow together.
#[derive(Debug, Clone)]
pub(crate) struct TenantGrants<'a> {
    gateway: &'a ObjectName,
    namespace: &'a str,
    /// The grants for the namespace; `None` if it needs none.
    grants: Option<Vec<&'a HostnameGrant>>,
}

impl TenantGrants<'_> {
    /// Whether grants restrict the namespace.
    pub(crate) fn is_limited(&self) -> bool {
        self.grants.is_some()
    }

    /// Checks whether the namespace may use all of `names` on this port with this protocol.
    ///
    /// # Errors
    /// A finding whose field is one of a listener: `hostname`, `port` or `protocol`.
    pub(crate) fn owns(
        &self,
        port: Port,
        protocol: &Protocol,
        names: &HostPattern,
    ) -> Result<(), Finding> {
        let Some(grants) = &self.grants else {
            return Ok(());
        };
        if grants
            .iter()
            .any(|grant| grant.gives(port, protocol, names))
        {
            return Ok(());
        }
        let covering = || grants.iter().filter(|grant| grant.covers(names));
        let Self {
            gateway, namespace, ..
        } = self;
        let refused = |field: &str, message: String, action: &str| {
            Err(Finding::refused(
                Reason::HostnameNotOwned,
                field,
                message,
                action,
            ))
        };
        if protocol.group() == Group::Raw {
            return refused(
                "protocol",
                format!(
                    "{protocol} on port {port} of Gateway {gateway} is not granted to namespace {namespace}"
                ),
                "ask the owner of the Gateway for a HostnameGrant with this protocol and port and the hostname \"*\"",
            );
        }
        let what = match names {
            HostPattern::Any => "every hostname".to_owned(),
            HostPattern::Wildcard(_) => format!("hostname \"{names}\", all of it,"),
            HostPattern::Exact(_) => format!("hostname \"{names}\""),
        };
        if covering().next().is_none() {
            return refused(
                "hostname",
                format!("{what} is not granted to namespace {namespace} on Gateway {gateway}"),
                match names {
                    HostPattern::Any => "set a hostname that is granted to the namespace",
                    _ => {
                        "use a hostname that is granted to the namespace, or ask the owner of the Gateway for a HostnameGrant"
                    }
                },
            );
        }
        let (field, with) = if covering().any(|grant| grant.opens(port)) {
            ("protocol", format!("with {protocol} on port {port}"))
        } else {
            ("port", format!("on port {port}"))
        };
        refused(
            field,
            format!("{what} is not granted to namespace {namespace} {with} of Gateway {gateway}"),
            "use what is granted to the namespace, or ask the owner of the Gateway for a HostnameGrant",
        )
    }

    /// Checks whether a ListenerSet of the namespace may have a listener on this port that gets connections for every
    /// hostname, whoever holds it: TCP on port 80 or 443. With it, one could get a certificate for any hostname of the
    /// Gateway. So a grant has to name the protocol; one that does not say which protocols it gives is not enough.
    ///
    /// # Errors
    /// A finding whose field is `protocol`.
    pub(crate) fn takes_every_name(&self, port: Port, protocol: &Protocol) -> Result<(), Finding> {
        let Self {
            gateway, namespace, ..
        } = self;
        let takes = *protocol == Protocol::Tcp && PORTS_OF_EVERY_NAME.contains(&port.get());
        let mut grants = self.grants.iter().flatten();
        if !takes
            || *gateway.namespace == **namespace
            || grants.any(|grant| {
                grant.protocols.contains(protocol) && grant.gives(port, protocol, &HostPattern::Any)
            })
        {
            return Ok(());
        }
        Err(Finding::refused(
            Reason::HostnameNotOwned,
            "protocol",
            format!(
                "{protocol} on port {port} of Gateway {gateway} would get the connections for every hostname, and is not granted to namespace {namespace}"
            ),
            "use another port, or HTTP on port 80 and HTTPS or TLS on port 443, or ask the owner of the Gateway for a HostnameGrant that names this protocol, with the hostname \"*\"",
        ))
    }

    /// The most specific granted pattern that covers all of `names`, on any port. All patterns that cover one name lie
    /// inside each other, so there is only one. Grants for TCP and UDP alone do not count, because these carry no names:
    /// their pattern is `*`, and it would cover every name.
    pub(crate) fn granted(&self, names: &HostPattern) -> Option<&HostPattern> {
        let granted = self.grants.iter().flatten();
        let granted = granted.filter(|grant| grant.gives_names());
        let granted = granted.flat_map(|grant| &grant.hostnames);
        granted
            .filter(|granted| granted.covers(names))
            .max_by_key(|granted| granted.specificity())
    }

    /// Whether the namespace shares a name, or some paths of it, with the holder.
    pub(crate) fn shares(&self, name: &Hostname) -> bool {
        let mut grants = self.grants.iter().flatten();
        grants.any(|grant| grant.shared.contains(name) || grant.shared_paths.contains_key(name))
    }

    /// The paths of a name that the namespace shares, in order. The set is empty if it shares the whole name, or
    /// nothing of it.
    pub(crate) fn shared_paths(&self, name: &Hostname) -> BTreeSet<PathPrefix> {
        let grants = || self.grants.iter().flatten();
        if grants().any(|grant| grant.shared.contains(name)) {
            return BTreeSet::new();
        }
        let parts = grants().filter_map(|grant| grant.shared_paths.get(name));
        parts.flatten().cloned().collect()
    }

    /// Checks whether a certificate for a listener of `names`, on this port with this protocol, may come from `issuer`.
    /// One and the same grant must give the listener and allow the issuer.
    ///
    /// # Errors
    /// A finding without a field.
    pub(crate) fn allows(
        &self,
        port: Port,
        protocol: &Protocol,
        names: &HostPattern,
        issuer: &IssuerRef,
    ) -> Result<(), Finding> {
        let allowed = self.grants.as_ref().is_none_or(|grants| {
            grants
                .iter()
                .any(|grant| grant.gives(port, protocol, names) && grant.allows(issuer))
        });
        if allowed {
            return Ok(());
        }
        Err(Finding::refused(
            Reason::IssuerNotAllowed,
            "",
            format!(
                "{} {} is no issuer that namespace {} may use for \"{names}\" on Gateway {}, so no certificate is requested",
                issuer.kind, issuer.name, self.namespace, self.gateway
            ),
            "use an issuer that is granted to the namespace, or ask the owner of the Gateway",
        ))
    }

    /// Checks whether grants allow certificates from `issuer` to have `names` in addition to the hostnames of their
    /// listeners. Without a grant, a tenant may have none of them. Whether the namespace holds the hostnames is checked
    /// elsewhere. Addresses and mailboxes are not checked for the built-in engine, which requests hostnames only.
    ///
    /// # Errors
    /// A finding about the first name that no grant gives.
    pub(crate) fn certifies(
        &self,
        issuer: &IssuerRef,
        names: &AlternativeNames,
    ) -> Result<(), Finding> {
        let Self {
            gateway, namespace, ..
        } = self;
        // The owner of the Gateway writes the grants, so the Gateway's own namespace needs none.
        if *gateway.namespace == **namespace {
            return Ok(());
        }
        let grants = self.grants.iter().flatten();
        let grants: Vec<&HostnameGrant> = grants
            .copied()
            .filter(|grant| grant.allows(issuer))
            .collect();
        let hostname = names.hostnames.iter().find(|name| {
            let name = HostPattern::Exact((*name).clone());
            let gives = |grant: &&HostnameGrant| {
                grant.certificates.alternative_names && grant.covers(&name)
            };
            !grants.iter().any(gives)
        });
        let address = names.addresses.iter().find(|address| {
            let mut blocks = grants
                .iter()
                .flat_map(|grant| &grant.certificates.addresses);
            !blocks.any(|block| block.covers(**address))
        });
        let mailbox = names.mailboxes.iter().find(|mailbox| {
            let mut given = grants
                .iter()
                .flat_map(|grant| &grant.certificates.mailboxes);
            !given.any(|given| given.covers(mailbox))
        });
        let (consequence, beyond) = match issuer.engine {
            Engine::CertManager => ("no certificate is requested", true),
            Engine::Acme => ("certificates are without the names that it adds", false),
        };
        let instead = match hostname {
            Some(_) => "remove it and add a listener for the hostname",
            None => "remove it",
        };
        let [of_hostnames, of_addresses, of_mailboxes] = ALTERNATIVE_NAMES;
        let (annotation, name, field) = if let Some(name) = hostname {
            (of_hostnames, name.to_string(), "alternativeNames")
        } else if let Some(name) = address.filter(|_| beyond) {
            (of_addresses, name.to_string(), "ipAddresses")
        } else if let Some(name) = mailbox.filter(|_| beyond) {
            (of_mailboxes, name.to_string(), "emailAddresses")
        } else {
            return Ok(());
        };
        Err(Finding::refused(
            Reason::InvalidAnnotation,
            format!("metadata.annotations[{annotation}]"),
            format!(
                "adds \"{name}\", which no HostnameGrant gives namespace {namespace} for certificates from {} {} on Gateway {gateway}, so {consequence}",
                issuer.kind, issuer.name
            ),
            format!(
                "{instead}, or ask the owner of the Gateway for a HostnameGrant with certificates.{field}"
            ),
        ))
    }

    /// The limits of the namespace on the Gateway: of each kind, the largest one in any of its grants.
    pub(crate) fn limits(&self) -> GrantLimits {
        self.grants
            .iter()
            .flatten()
            .fold(GrantLimits::default(), |limits, grant| {
                limits.or_larger(grant.limits)
            })
    }
}
