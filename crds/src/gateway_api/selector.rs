//! Converts namespace scopes: `from` and `selector` of allowedListeners and allowedRoutes. A scope that is not
//! understood allows no namespace.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::selector::{LabelSelector as Selector, NamespaceScope, Requirement};

use crate::names::{is_label_key, is_label_value};
use crate::text::quote;

/// Most problems of one selector that are told. More of them would add nothing.
const MAX_PROBLEMS: usize = 8;

/// Why a requirement of a selector cannot be read.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The part of the selector that has the requirement, such as `matchExpressions[2]`.
    pub(crate) part: String,
    /// The problem: a clause without a full stop.
    pub(crate) message: String,
    /// The remedy: an imperative clause without a full stop.
    pub(crate) action: &'static str,
    reason: Reason,
}

/// The scope that `from` and `selector` describe. There are warnings if it allows nobody by mistake.
pub(crate) fn scope(
    from: Option<String>,
    selector: Option<LabelSelector>,
    absent: NamespaceScope,
    field: &str,
) -> (NamespaceScope, Vec<Finding>) {
    let Some(from) = from else {
        return (absent, Vec::new());
    };
    match from.as_str() {
        "None" => (NamespaceScope::None, Vec::new()),
        "Same" => (NamespaceScope::Same, Vec::new()),
        "All" => (NamespaceScope::All, Vec::new()),
        "Selector" => {
            let field = format!("{field}.selector");
            let Some(selector) = selector else {
                let finding = Finding::warning(
                    Reason::InvalidValue,
                    field,
                    "is absent although from is Selector, so no namespace is let in",
                    "add a selector, or use from: Same or All",
                );
                return (NamespaceScope::None, vec![finding]);
            };
            let (selector, problems) = requirements(selector);
            let findings = problems.into_iter().map(|problem| {
                Finding::warning(
                    problem.reason,
                    format!("{field}.{}", problem.part),
                    format!("{}, so no namespace is let in", problem.message),
                    problem.action,
                )
            });
            (NamespaceScope::Selector(selector), findings.collect())
        }
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
            (NamespaceScope::Unknown(from), vec![finding])
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
    let (selector, problems) = requirements(wire);
    match problems.into_iter().next() {
        Some(problem) => Err(format!(
            "{} {}; {}",
            problem.part, problem.message, problem.action
        )),
        None => Ok(selector),
    }
}

/// The requirements of a selector, and what is wrong with them by the rules of Kubernetes (`LabelSelectorAsSelector`).
/// A wrong requirement never holds, so a selector that has one selects nothing.
///
/// The API server checks selectors in its own kinds only. The CRDs of Gateway API let any of them in.
pub(crate) fn requirements(selector: LabelSelector) -> (Selector, Vec<Problem>) {
    let labels = selector.match_labels.unwrap_or_default();
    let expressions = selector.match_expressions.unwrap_or_default();
    let by_label = labels.into_iter().map(|(key, value)| {
        let wire = LabelSelectorRequirement {
            key,
            operator: "In".to_owned(),
            values: Some(vec![value]),
        };
        ("matchLabels".to_owned(), wire)
    });
    let by_expression = expressions
        .into_iter()
        .enumerate()
        .map(|(index, wire)| (format!("matchExpressions[{index}]"), wire));
    let mut problems = Vec::new();
    let mut requirements = Vec::new();
    for (part, wire) in by_label.chain(by_expression) {
        let (reason, message, action) = match requirement(&wire) {
            Ok(requirement) => {
                requirements.push(requirement);
                continue;
            }
            Err(problem) => problem,
        };
        requirements.push(Requirement::Unknown(wire.operator));
        if problems.len() < MAX_PROBLEMS {
            problems.push(Problem {
                part,
                message,
                action,
                reason,
            });
        }
    }
    (Selector { requirements }, problems)
}

/// Reads a requirement.
///
/// # Errors
/// The requirement is not valid. The values are the reason, the message and the action of a [`Problem`].
fn requirement(
    wire: &LabelSelectorRequirement,
) -> Result<Requirement, (Reason, String, &'static str)> {
    let values = wire.values.as_deref().unwrap_or_default();
    if !is_label_key(&wire.key) {
        return Err((
            Reason::InvalidValue,
            format!(
                "has the key {}, which cannot be the key of a label",
                quote(&wire.key)
            ),
            "write at most 63 letters, digits, '-', '_' and '.', perhaps with a DNS name and '/' before them",
        ));
    }
    if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
        return Err((
            Reason::InvalidValue,
            format!(
                "has the value {}, which cannot be the value of a label",
                quote(value)
            ),
            "write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        ));
    }
    let key = wire.key.clone();
    match (wire.operator.as_str(), values) {
        ("In", [_, ..]) => Ok(Requirement::In(key, values.to_vec())),
        ("NotIn", [_, ..]) => Ok(Requirement::NotIn(key, values.to_vec())),
        ("Exists", []) => Ok(Requirement::Exists(key)),
        ("DoesNotExist", []) => Ok(Requirement::Absent(key)),
        ("In" | "NotIn", []) => Err((
            Reason::InvalidValue,
            format!("has operator {} without values", wire.operator),
            "list the values, or use Exists or DoesNotExist",
        )),
        ("Exists" | "DoesNotExist", [_, ..]) => Err((
            Reason::InvalidValue,
            format!("has operator {} with values", wire.operator),
            "remove the values, or use In or NotIn",
        )),
        (other, _) => Err((
            Reason::UnsupportedValue,
            format!(
                "has operator {}, which this release does not know",
                quote(other)
            ),
            "use In, NotIn, Exists or DoesNotExist",
        )),
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
            r#"{"matchExpressions": [{"key": "a b", "operator": "DoesNotExist"}]}"#,
            r#"{"matchLabels": {"a": "b c"}}"#,
        ] {
            assert!(selector_from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_requirement_that_cannot_be_read_never_holds() {
        for (key, operator, values) in [
            ("a b", "NotIn", vec!["x"]),
            ("a b", "DoesNotExist", vec![]),
            ("", "DoesNotExist", vec![]),
            ("a/b/c", "NotIn", vec!["x"]),
            ("a", "NotIn", vec!["x", "-"]),
            ("a", "NotIn", vec![]),
            ("a", "DoesNotExist", vec!["x"]),
            ("a", "notin", vec!["x"]),
        ] {
            let wire = LabelSelector {
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: key.to_owned(),
                    operator: operator.to_owned(),
                    values: Some(values.into_iter().map(str::to_owned).collect()),
                }]),
                ..LabelSelector::default()
            };
            let absent = NamespaceScope::Same;
            let (scope, findings) = scope(Some("Selector".into()), Some(wire), absent, "f");
            assert!(!scope.admits("t", "t", Some(&BTreeMap::new())), "{key:?}");
            let fields: Vec<&str> = findings.iter().map(|f| &*f.field).collect();
            assert_eq!(fields, ["f.selector.matchExpressions[0]"], "{key:?}");
        }
        let many = (0..20).map(|n| (format!("{n} "), String::new())).collect();
        let wire = LabelSelector {
            match_labels: Some(many),
            ..LabelSelector::default()
        };
        let (selector, problems) = requirements(wire);
        assert_eq!(selector.requirements.len(), 20);
        assert_eq!(problems.len(), MAX_PROBLEMS);
        assert!(problems.iter().all(|p| p.part == "matchLabels"));
    }
}
