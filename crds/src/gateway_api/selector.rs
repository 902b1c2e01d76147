//! Namespace scopes: `from` and `selector` of allowedListeners and allowedRoutes, into the model.
//! Whatever is not understood lets nobody in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::selector::{LabelSelector as Selector, NamespaceScope, Requirement};

use crate::text::quote;

/// The scope that `from` and `selector` describe, and a warning if it lets nobody in by mistake.
pub(crate) fn scope(
    from: Option<String>,
    selector: Option<LabelSelector>,
    absent: NamespaceScope,
    field: &str,
) -> (NamespaceScope, Option<Finding>) {
    let Some(from) = from else {
        return (absent, None);
    };
    match from.as_str() {
        "None" => (NamespaceScope::None, None),
        "Same" => (NamespaceScope::Same, None),
        "All" => (NamespaceScope::All, None),
        "Selector" => match selector {
            Some(selector) => (NamespaceScope::Selector(requirements(selector)), None),
            None => (
                NamespaceScope::None,
                Some(Finding::warning(
                    Reason::InvalidValue,
                    format!("{field}.selector"),
                    "is absent although from is Selector, so no namespace is let in",
                    "add a selector, or use from: Same or All",
                )),
            ),
        },
        _ => {
            let finding = Finding::warning(
                Reason::UnsupportedValue,
                format!("{field}.from"),
                format!(
                    "{} is a value this release does not know, so no namespace is let in",
                    quote(&from)
                ),
                "use All, Same, Selector or None",
            );
            (NamespaceScope::Unknown(from), Some(finding))
        }
    }
}

pub(crate) fn requirements(selector: LabelSelector) -> Selector {
    let labels = selector.match_labels.unwrap_or_default();
    let expressions = selector.match_expressions.unwrap_or_default();
    let by_label = labels
        .into_iter()
        .map(|(key, value)| Requirement::In(key, vec![value]));
    let by_expression = expressions.into_iter().map(|e| {
        let values = e.values.unwrap_or_default();
        // The API server refuses the combinations that are left over, for they mean nothing.
        match (e.operator.as_str(), values.is_empty()) {
            ("In", false) => Requirement::In(e.key, values),
            ("NotIn", false) => Requirement::NotIn(e.key, values),
            ("Exists", true) => Requirement::Exists(e.key),
            ("DoesNotExist", true) => Requirement::Absent(e.key),
            _ => Requirement::Unknown(e.operator),
        }
    });
    Selector {
        requirements: by_label.chain(by_expression).collect(),
    }
}
