//! Converts namespace scopes: `from` and `selector` of allowedListeners and allowedRoutes. A scope that is not
//! understood allows no namespace.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::selector::{LabelSelector as Selector, NamespaceScope, Requirement};

use crate::text::quote;

/// The scope that `from` and `selector` describe. There is a warning if it allows nobody by mistake.
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

/// Reads a label selector in the JSON form of objects, with `matchLabels`, `matchExpressions`, both or neither.
///
/// # Errors
/// A text for people, if it cannot be read.
pub fn selector_from_json(text: &str) -> Result<Selector, String> {
    let fields: BTreeMap<String, Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let known = ["matchLabels", "matchExpressions"];
    if let Some(field) = fields.keys().find(|field| !known.contains(&field.as_str())) {
        // If the field were left out, the rest would select more than is meant.
        let field = quote(field);
        return Err(format!(
            "{field} is neither matchLabels nor matchExpressions"
        ));
    }
    let wire: LabelSelector = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let selector = requirements(wire);
    let unknown = selector.requirements.iter().find_map(|r| match r {
        Requirement::Unknown(operator) => Some(operator),
        _ => None,
    });
    match unknown {
        Some(operator) => Err(format!(
            "{} is no operator for these values: use In or NotIn with values, Exists or DoesNotExist without",
            quote(operator)
        )),
        None => Ok(selector),
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
        // The API server refuses all other combinations, because they have no meaning.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_whole_or_not_at_all() {
        let labels = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let all = selector_from_json("{}").expect("a selector");
        assert!(all.matches(&labels(&[])));
        let text = r#"{"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}"#;
        let some = selector_from_json(text).expect("a selector");
        assert!(some.matches(&labels(&[("a", "1"), ("c", "1")])));
        assert!(!some.matches(&labels(&[("a", "1"), ("b", "1")])));
        assert!(!some.matches(&labels(&[])));
        for text in [
            "",
            "[]",
            r#"{"a": "1"}"#,
            r#"{"matchLabels": ["a"]}"#,
            r#"{"matchExpressions": [{"key": "a", "operator": "In"}]}"#,
            r#"{"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}"#,
        ] {
            assert!(selector_from_json(text).is_err(), "{text}");
        }
    }
}
