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
    /// A requirement that cannot be read: its operator is unknown, or its key or values are not allowed. It has the text
    /// of the operator. It never holds, so that nobody is allowed by mistake.
    Unknown(String),
}

/// The label that the API server gives each namespace: its name.
const NAME: &str = "kubernetes.io/metadata.name";

impl LabelSelector {
    /// Whether `labels` fulfil every requirement.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        let mut all = self.requirements.iter();
        all.all(|of| of.holds(labels.get(of.key()).map(String::as_str)))
    }

    /// Whether a namespace fulfils every requirement. `labels` is `None` if nothing but its name is known.
    pub(crate) fn selects(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        self.requirements.iter().all(|of| {
            if of.key() == NAME {
                return of.holds(Some(namespace));
            }
            // A label that nobody has read is not absent: `NotIn` and `DoesNotExist` do not hold either.
            labels.is_some_and(|labels| of.holds(labels.get(of.key()).map(String::as_str)))
        })
    }
}

impl Requirement {
    /// The key of the label, or the operator if the requirement cannot be read.
    fn key(&self) -> &str {
        match self {
            Self::In(key, _)
            | Self::NotIn(key, _)
            | Self::Exists(key)
            | Self::Absent(key)
            | Self::Unknown(key) => key,
        }
    }

    /// Whether it holds for an object where the label has this value; `None`: where it is absent.
    fn holds(&self, value: Option<&str>) -> bool {
        let is_in = |values: &[String]| value.is_some_and(|v| values.iter().any(|of| of == v));
        match self {
            Self::In(_, values) => is_in(values),
            Self::NotIn(_, values) => !is_in(values),
            Self::Exists(_) => value.is_some(),
            Self::Absent(_) => value.is_none(),
            Self::Unknown(_) => false,
        }
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
    ///
    /// Without `labels`, no other requirement holds, whatever its operator. The labels of a new namespace can arrive
    /// after its objects, and a namespace that a selector keeps out must not be let in until then. `All`, `Same` and
    /// a selector without requirements need no labels.
    #[must_use]
    pub fn admits(&self, own: &str, namespace: &str, labels: Option<&Labels>) -> bool {
        match self {
            Self::None | Self::Unknown(_) => false,
            Self::Same => own == namespace,
            Self::All => true,
            Self::Selector(selector) => selector.selects(namespace, labels),
        }
    }
}
