//! Which issuer the certificate of a listener comes from. An issuer is one value (engine, name, kind, group), so the
//! name of one annotation is never combined with the kind of another.
//!
//! The choice of a ListenerSet replaces that of its Gateway as a whole. (cert-manager differs: it copies `issuer-kind`
//! and `issuer-group` of the Gateway over those of the set.)

use std::sync::Arc;

use crate::certificate::CertificateOptions;
use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::ObjectName;

/// The issuer annotations of one object, as written. An annotation with an empty name is a choice too, although nothing
/// can be issued by it. cert-manager 1.21 looks at the presence of the annotation when a ListenerSet inherits, so a set
/// with an empty name inherits nothing from its Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IssuerAnnotations {
    /// `cert-manager.io/issuer`
    pub cert_manager_issuer: Option<Arc<str>>,
    /// `cert-manager.io/cluster-issuer`
    pub cert_manager_cluster_issuer: Option<Arc<str>>,
    /// `cert-manager.io/issuer-kind`
    pub cert_manager_kind: Option<Arc<str>>,
    /// `cert-manager.io/issuer-group`
    pub cert_manager_group: Option<Arc<str>>,
    /// `vestibule.dev/acme-issuer`
    pub acme_issuer: Option<Arc<str>>,
    /// `vestibule.dev/acme-cluster-issuer`
    pub acme_cluster_issuer: Option<Arc<str>>,
}

/// Annotation keys in the order of [`IssuerAnnotations`]' fields.
pub const ANNOTATIONS: [&str; 6] = [
    "cert-manager.io/issuer",
    "cert-manager.io/cluster-issuer",
    "cert-manager.io/issuer-kind",
    "cert-manager.io/issuer-group",
    "vestibule.dev/acme-issuer",
    "vestibule.dev/acme-cluster-issuer",
];

/// The engine that makes the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// cert-manager, by `Certificate` objects.
    CertManager,
    /// The built-in ACME client.
    Acme,
}

impl Engine {
    /// Whether the options of the object exclude a listener from this engine.
    #[must_use]
    pub fn ignores(self, options: &CertificateOptions, listener: &str) -> bool {
        match self {
            Self::CertManager => options.ignored_listeners.contains(listener),
            Self::Acme => options.acme_ignored_listeners.contains(listener),
        }
    }
}

/// The issuer chosen for an object's listeners.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IssuerRef {
    /// The engine that makes the certificate.
    pub engine: Engine,
    /// Name of the issuer.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its API group.
    pub group: Arc<str>,
}

impl IssuerAnnotations {
    /// The annotation that names an issuer. If several do, it is the first one.
    #[must_use]
    pub fn named(&self) -> Option<&'static str> {
        self.all_named().next()
    }

    fn all_named(&self) -> impl Iterator<Item = &'static str> {
        self.names().map(|(_, key)| key)
    }

    /// The annotation that should name an issuer and is empty, if there is one.
    fn empty(&self) -> Option<&'static str> {
        let mut empty = self.names().filter(|(name, _)| name.is_empty());
        empty.next().map(|(_, key)| key)
    }

    /// The names of issuers, each with its annotation.
    fn names(&self) -> impl Iterator<Item = (&Arc<str>, &'static str)> {
        let [issuer, cluster_issuer, _, _, acme, cluster_acme] = ANNOTATIONS;
        [
            (&self.cert_manager_issuer, issuer),
            (&self.cert_manager_cluster_issuer, cluster_issuer),
            (&self.acme_issuer, acme),
            (&self.acme_cluster_issuer, cluster_acme),
        ]
        .into_iter()
        .filter_map(|(name, key)| Some((name.as_ref()?, key)))
    }

    /// The issuer that this object names, if any.
    ///
    /// # Errors
    /// A finding that refuses, if several annotations name an issuer, if the name is empty, or if kind or group stand
    /// beside a cluster issuer.
    pub fn choice(&self) -> Result<Option<IssuerRef>, Finding> {
        let named: Vec<&str> = self.all_named().collect();
        if let [first, second, ..] = named[..] {
            return Err(contradiction(first, second));
        }
        if let Some(key) = self.empty() {
            return Err(Finding::refused(
                Reason::InvalidAnnotation,
                format!("metadata.annotations[{key}]"),
                "is empty, so no certificate is requested, and no issuer is taken over from a Gateway",
                "name an issuer, or remove the annotation",
            ));
        }
        let cert_manager = |name: &Arc<str>, kind: &str, group: &str| IssuerRef {
            engine: Engine::CertManager,
            name: name.clone(),
            kind: kind.into(),
            group: group.into(),
        };
        let acme = |name: &Arc<str>, kind: &str| IssuerRef {
            engine: Engine::Acme,
            name: name.clone(),
            kind: kind.into(),
            group: "vestibule.dev".into(),
        };
        Ok(if let Some(name) = &self.cert_manager_cluster_issuer {
            // cert-manager does the same: kind and group cannot be set for a cluster issuer.
            for (value, key) in [&self.cert_manager_kind, &self.cert_manager_group]
                .into_iter()
                .zip(&ANNOTATIONS[2..])
            {
                if value.is_some() {
                    return Err(contradiction(ANNOTATIONS[1], key));
                }
            }
            Some(cert_manager(name, "ClusterIssuer", "cert-manager.io"))
        } else if let Some(name) = &self.cert_manager_issuer {
            Some(cert_manager(
                name,
                self.cert_manager_kind.as_deref().unwrap_or("Issuer"),
                self.cert_manager_group
                    .as_deref()
                    .unwrap_or("cert-manager.io"),
            ))
        } else if let Some(name) = &self.acme_issuer {
            Some(acme(name, "ACMEIssuer"))
        } else {
            self.acme_cluster_issuer
                .as_ref()
                .map(|name| acme(name, "ClusterACMEIssuer"))
        })
    }
}

/// The issuer for the listeners of a ListenerSet: the choice of the set or, if it makes none, that of its Gateway,
/// which is called `name`.
///
/// # Errors
/// A finding, if the annotations that count are not valid. If those of the set are not, the annotations of the Gateway
/// are no substitute.
pub fn choose(
    set: &IssuerAnnotations,
    gateway: &IssuerAnnotations,
    name: &ObjectName,
) -> Result<Option<IssuerRef>, Finding> {
    match set.choice()? {
        Some(own) => Ok(Some(own)),
        None => gateway.choice().map_err(|finding| {
            let what = match finding.reason {
                Reason::ContradictingIssuers => "name issuers that contradict one another",
                _ => "have an empty name of an issuer",
            };
            Finding {
                field: "spec.parentRef".into(),
                message: format!(
                    "annotations of Gateway {name} {what}, so no certificate is requested"
                ),
                action: "name an issuer on the ListenerSet, or ask the owner of the Gateway".into(),
                ..finding
            }
        }),
    }
}

fn contradiction(first: &str, second: &str) -> Finding {
    Finding::refused(
        Reason::ContradictingIssuers,
        format!("metadata.annotations[{second}]"),
        format!("contradicts {first}, so no certificate is requested"),
        "keep one of the two",
    )
}
