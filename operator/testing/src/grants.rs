//! Grants of the platform's, and what they give, read in the plainest way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::hostname_grant::{
    ConnectionLimits, GrantLimits, GrantedIssuer, GrantedNamespaces, HostnameGrant,
};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;
use vestibule_model::selector::{LabelSelector, Requirement};

use crate::objects::pattern;

/// A grant of `hostnames` ("*" is all) to namespaces, on every Gateway of the platform's.
pub fn hostname_grant(
    name: &str,
    namespaces: &[&'static str],
    hostnames: &[&'static str],
) -> HostnameGrant {
    HostnameGrant {
        name: ObjectName::new("platform", name),
        meta: Meta::default(),
        gateways: BTreeSet::new(),
        namespaces: GrantedNamespaces {
            names: namespaces.iter().copied().map(Into::into).collect(),
            selector: None,
        },
        hostnames: hostnames
            .iter()
            .map(|host| pattern(if *host == "*" { "" } else { host }))
            .collect(),
        shared: BTreeSet::new(),
        shared_paths: BTreeMap::new(),
        ports: BTreeSet::new(),
        protocols: BTreeSet::new(),
        issuers: None,
        certificates: Box::default(),
        limits: GrantLimits::default(),
        findings: Vec::new(),
    }
}

/// Some grant of the platform's, now and then one that cannot be read, or a tenant's own, which gives nothing.
pub fn a_hostname_grant(tenants: &'static [&'static str]) -> impl Strategy<Value = Object> {
    const NAMES: [&str; 5] = [
        "*",
        "*.example.com",
        "x.example.com",
        "y.example.com",
        "*.x.example.com",
    ];
    let limit = || prop::option::weighted(0.15, 0u32..4);
    let of_connections = || prop::option::weighted(0.3, 1u32..4);
    let connections = (of_connections(), of_connections())
        .prop_map(|(shares, most)| ConnectionLimits { shares, most });
    let issuers = prop::sample::select(vec![None, None, None, Some(None), Some(Some("ca"))]);
    let narrow = (
        prop::sample::select(vec![None, None, Some("one"), Some("two")]),
        prop::sample::select(vec![None, None, None, Some(443u16)]),
        issuers,
        (limit(), limit(), connections),
    );
    (
        prop::sample::select(vec!["platform", "platform", "platform", "platform", "a"]),
        prop::sample::select(vec!["one", "two", "three"]),
        prop::sample::subsequence(tenants.to_vec(), 0..=tenants.len()),
        prop::bool::ANY,
        prop::sample::subsequence(NAMES.to_vec(), 1..3),
        narrow,
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(at, name, to, red, hostnames, (gateway, port, issuers, limits), unreadable)| {
                if unreadable {
                    let finding = Finding::refused(Reason::Unreadable, "spec", "is not read", "");
                    let key = ObjectKey::new(Kind::HostnameGrant, at, name);
                    return Object::Unreadable(key, Meta::default(), finding);
                }
                let mut grant = hostname_grant(name, &to, &hostnames);
                grant.name = ObjectName::new(at, name);
                grant.namespaces.selector = red.then(|| LabelSelector {
                    requirements: vec![Requirement::In("team".into(), vec!["red".into()])],
                });
                grant.gateways.extend(gateway.map(Into::into));
                grant.ports.extend(port.and_then(Port::new));
                grant.issuers = issuers.map(|name: Option<&str>| {
                    let issuer = name.map(|name| GrantedIssuer {
                        group: "vestibule.dev".into(),
                        kind: "ACMEIssuer".into(),
                        name: Some(name.into()),
                    });
                    issuer.into_iter().collect()
                });
                let (listeners, certificates, connections) = limits;
                grant.limits = GrantLimits {
                    listeners,
                    certificates,
                    connections,
                    ..GrantLimits::default()
                };
                Object::HostnameGrant(Arc::new(grant))
            },
        )
}

/// What the grants among some objects give.
#[derive(Clone, Copy)]
pub struct Reading<'a>(pub &'a BTreeMap<ObjectKey, Object>);

impl<'a> Reading<'a> {
    /// Those for a namespace on a Gateway; `None`: it needs none.
    fn grants(self, gateway: &ObjectName, namespace: &str) -> Option<Vec<&'a HostnameGrant>> {
        if *gateway.namespace == *namespace {
            return None;
        }
        let beside = self.0.iter().filter(|(key, _)| {
            key.kind == Kind::HostnameGrant && key.name.namespace == gateway.namespace
        });
        let here: Vec<Option<&HostnameGrant>> = beside
            .map(|(_, object)| match object {
                Object::HostnameGrant(grant) => Some(grant.as_ref()),
                _ => None,
            })
            .filter(|grant| {
                grant.is_none_or(|grant| {
                    grant.gateways.is_empty() || grant.gateways.contains(&gateway.name)
                })
            })
            .collect();
        if here.is_empty() {
            return None;
        }
        let space = ObjectKey::new(Kind::Namespace, "", namespace);
        let red = match self.0.get(&space) {
            Some(Object::Namespace(space)) => {
                space.labels.get("team").is_some_and(|team| team == "red")
            }
            _ => false,
        };
        let mine = here.into_iter().flatten().filter(|grant| {
            grant.namespaces.names.contains(namespace)
                || (red && grant.namespaces.selector.is_some())
        });
        Some(mine.collect())
    }

    /// Whether the namespace may use these names there, on this port or (`None`) on some.
    pub fn owns(
        self,
        gateway: &ObjectName,
        namespace: &str,
        port: Option<Port>,
        names: &HostPattern,
    ) -> bool {
        self.grants(gateway, namespace).is_none_or(|grants| {
            grants.iter().any(|grant| {
                let opens =
                    port.is_none_or(|port| grant.ports.is_empty() || grant.ports.contains(&port));
                opens && covers(grant, names)
            })
        })
    }

    /// Whether a grant gives the namespace these names by an entry that is `wildcard` or lies inside it.
    pub fn gives_inside(
        self,
        gateway: &ObjectName,
        namespace: &str,
        names: &HostPattern,
        wildcard: &HostPattern,
    ) -> bool {
        let grants = self.grants(gateway, namespace).unwrap_or_default();
        let mut given = grants.iter().flat_map(|grant| &grant.hostnames);
        given.any(|given| given.covers(names) && wildcard.covers(given))
    }

    /// Whether a certificate for a listener of the names, on one of the ports on which the namespace has one, may
    /// come from the issuer of that kind and name.
    pub fn allows(
        self,
        gateway: &ObjectName,
        namespace: &str,
        names: &HostPattern,
        issuer: (&str, &str),
    ) -> bool {
        let declared: BTreeSet<Port> = self
            .0
            .values()
            .filter_map(|object| match object {
                Object::ListenerSet(set) if *set.name.namespace == *namespace => Some(set),
                _ => None,
            })
            .flat_map(|set| &set.listeners)
            .filter(|listener| listener.hostname == *names)
            .filter_map(|listener| listener.port)
            .collect();
        self.grants(gateway, namespace).is_none_or(|grants| {
            let opens = |grant: &&&HostnameGrant| {
                grant.ports.is_empty() || !grant.ports.is_disjoint(&declared)
            };
            let giving = grants.iter().filter(|grant| covers(grant, names));
            giving.filter(opens).any(|grant| {
                grant.issuers.as_ref().is_none_or(|granted| {
                    granted
                        .iter()
                        .any(|i| (&*i.kind, i.name.as_deref()) == (issuer.0, Some(issuer.1)))
                })
            })
        })
    }

    /// How many listeners, and how many names with a certificate from an issuer, it may have there.
    pub fn limits(self, gateway: &ObjectName, namespace: &str) -> (usize, usize) {
        let grants = self.grants(gateway, namespace).unwrap_or_default();
        let most = |limit: fn(&GrantLimits) -> Option<u32>| {
            let stated = grants.iter().filter_map(|grant| limit(&grant.limits));
            stated.max().map_or(usize::MAX, |limit| limit as usize)
        };
        (most(|l| l.listeners), most(|l| l.certificates))
    }

    /// What grants on these Gateways state about the connections of a namespace: shares and limit.
    pub fn connections(
        self,
        gateways: &[ObjectName],
        namespace: &str,
    ) -> (Option<u32>, Option<u32>) {
        let grants = gateways
            .iter()
            .flat_map(|gateway| self.grants(gateway, namespace).unwrap_or_default());
        let stated = grants.map(|grant| grant.limits.connections);
        stated.fold((None, None), |(shares, most), of| {
            (shares.max(of.shares), most.max(of.most))
        })
    }
}

fn covers(grant: &HostnameGrant, names: &HostPattern) -> bool {
    let wanted = names.to_string();
    grant.hostnames.iter().any(|granted| {
        let granted = granted.to_string();
        match granted.strip_prefix('*') {
            Some(below) => wanted.trim_start_matches('*').ends_with(below),
            None => granted.is_empty() || granted == wanted,
        }
    })
}
