//! Label selectors and namespace scopes (`meta/v1` LabelSelector; `allowedListeners` and
//! `allowedRoutes` of `gateway_types.go`).

use std::collections::BTreeMap;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector: every requirement must hold. No requirement selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Requirements, `matchLabels` included.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// The label has one of the values.
    In(String, Vec<String>),
    /// The label is absent or has none of the values.
    NotIn(String, Vec<String>),
    /// The label is there.
    Exists(String),
    /// The label is absent.
    Absent(String),
    /// An operator that this release does not know. It never holds, so that nobody is allowed by mistake.
    Unknown(String),
}

impl LabelSelector {
    /// Whether `labels` fulfil every requirement.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|r| match r {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
            Requirement::Unknown(_) => false,
        })
    }
}

/// Which namespaces are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceScope {
    /// None.
    None,
    /// The namespace of the object with this setting.
    Same,
    /// Every namespace.
    All,
    /// Namespaces whose labels match.
    Selector(LabelSelector),
    /// A word that this release does not know. No namespace is allowed.
    Unknown(String),
}

impl NamespaceScope {
    /// Whether an object in `namespace`, whose labels are `labels`, is allowed by an object in `own`.
    ///
    /// The label `kubernetes.io/metadata.name` is taken from the namespace's name, which the API
    /// server guarantees, so that a selector on it works where no Namespace object is known.
    #[must_use]
    pub fn admits(&self, own: &str, namespace: &str, labels: Option<&Labels>) -> bool {
        match self {
            Self::None | Self::Unknown(_) => false,
            Self::Same => own == namespace,
            Self::All => true,
            Self::Selector(selector) => {
                let mut labels = labels.cloned().unwrap_or_default();
                labels.insert("kubernetes.io/metadata.name".into(), namespace.into());
                selector.matches(&labels)
            }
        }
    }
}
