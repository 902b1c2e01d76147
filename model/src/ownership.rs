//! Who may use which hostnames on a Gateway: `HostnameGrant`, and the verdicts that follow from grants.
//!
//! Grants lie in the Gateway's namespace. A Gateway without any leaves every free name to whoever takes
//! it first; with at least one, a namespace has only what grants give it. Several grants for a namespace
//! add up. The Gateway's own namespace needs none. A grant that cannot be read gives nothing, and counts
//! as one that is there.

mod grant_checks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::certificate::{ALTERNATIVE_NAMES, AlternativeNames};
use crate::condition::Reason;
use crate::finding::Finding;
use crate::hostname::{HostPattern, Hostname};
use crate::hostname_grant::{GrantLimits, HostnameGrant};
use crate::issuer::{Engine, IssuerRef};
use crate::key::ObjectName;
use crate::path::PathPrefix;
use crate::protocol::{Group, Port, Protocol};
use crate::selector::Labels;

pub(crate) use grant_checks::{
    GatewayTenant, GrantCheck, GrantChecks, too_many_certificates, too_many_listeners,
};

/// The grants of one namespace.
#[derive(Debug, Clone, Default)]
struct NamespaceGrants {
    grants: BTreeMap<Arc<str>, Arc<HostnameGrant>>,
    /// Grants by the namespaces they name.
    by_tenant: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Grants that select namespaces by label.
    by_label: BTreeSet<Arc<str>>,
    /// Number of grants for every Gateway, and by Gateway.
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
        }
        let step = |count: &mut usize| {
            *count = if there {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        };
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
pub(crate) struct Grants(BTreeMap<Arc<str>, NamespaceGrants>);

impl Grants {
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

    /// What they come to for a namespace, whose labels are `labels`, on a Gateway.
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
                !grant.meta.deleting
                    && grant.is_for(&gateway.name)
                    && grant.selects(namespace, labels)
            });
        tenant_grants.grants = Some(grants.collect());
        tenant_grants
    }
}

/// What the grants come to for one namespace on one Gateway.
#[derive(Debug, Clone)]
pub(crate) struct TenantGrants<'a> {
    gateway: &'a ObjectName,
    namespace: &'a str,
    /// Those for the namespace; `None`: it needs none.
    grants: Option<Vec<&'a HostnameGrant>>,
}

impl TenantGrants<'_> {
    /// Whether there is anything that it might not have.
    pub(crate) fn is_limited(&self) -> bool {
        self.grants.is_some()
    }

    /// Whether all of `names` may be used on this port with this protocol. The field of the finding is
    /// one of a listener.
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

    /// The most specific pattern of those granted that covers all of `names`, on whatever port. All patterns that cover
    /// one name lie inside each other, so there is only one.
    pub(crate) fn granted(&self, names: &HostPattern) -> Option<&HostPattern> {
        let granted = self.grants.iter().flatten();
        let granted = granted.flat_map(|grant| &grant.hostnames);
        granted
            .filter(|granted| granted.covers(names))
            .max_by_key(|granted| granted.specificity())
    }

    /// Whether the namespace shares a name, or a part of it, with whoever holds it.
    pub(crate) fn shares(&self, name: &Hostname) -> bool {
        let mut grants = self.grants.iter().flatten();
        grants.any(|grant| grant.shared.contains(name) || grant.shared_paths.contains_key(name))
    }

    /// The parts of a name that the namespace shares, in order, if it does not share all of it; none: it shares all
    /// of it, or nothing.
    pub(crate) fn shared_paths(&self, name: &Hostname) -> BTreeSet<PathPrefix> {
        let grants = || self.grants.iter().flatten();
        if grants().any(|grant| grant.shared.contains(name)) {
            return BTreeSet::new();
        }
        let parts = grants().filter_map(|grant| grant.shared_paths.get(name));
        parts.flatten().cloned().collect()
    }

    /// Whether a certificate for a listener of `names` on this port with this protocol may come from `issuer`:
    /// what gives the listener says which issuers. The finding has no field.
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

    /// Whether certificates from `issuer` may have `names` beside the hostnames of their listeners, as far as grants
    /// say; that the namespace holds the hostnames is another question. Without a grant a tenant may have none. The
    /// built-in engine is asked for hostnames only.
    pub(crate) fn certifies(
        &self,
        issuer: &IssuerRef,
        names: &AlternativeNames,
    ) -> Result<(), Finding> {
        let Self {
            gateway, namespace, ..
        } = self;
        // It is the Gateway's owner who writes grants.
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

    /// How much the namespace may have there.
    pub(crate) fn limits(&self) -> GrantLimits {
        self.grants
            .iter()
            .flatten()
            .fold(GrantLimits::default(), |limits, grant| {
                limits.or_larger(grant.limits)
            })
    }
}
