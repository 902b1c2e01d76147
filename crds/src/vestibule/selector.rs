//! Label selectors of namespaces in Vestibule's own kinds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as apimachinery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::selector::{LabelSelector, Requirement};

/// Most requirements of a selector.
pub(super) const MAX_REQUIREMENTS: usize = 16;
/// Most values of a requirement.
const MAX_VALUES: usize = 256;

/// The message of a finding about a selector for which [`has_unknown`] is true.
pub(super) const UNKNOWN: &str = "has a requirement that cannot be read";
/// The action of that finding.
pub(super) const KNOWN: &str = "use In or NotIn with values, Exists or DoesNotExist without";

/// A label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorSpec {
    /// Labels that a namespace has with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = MAX_REQUIREMENTS))]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements, all of which hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MAX_REQUIREMENTS, "x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<RequirementSpec>,
}

impl SelectorSpec {
    pub(super) fn into_wire(self) -> apimachinery::LabelSelector {
        let expressions = self.match_expressions.into_iter();
        let expressions = expressions.map(|e| apimachinery::LabelSelectorRequirement {
            key: e.key,
            operator: e.operator,
            values: Some(e.values),
        });
        apimachinery::LabelSelector {
            match_labels: Some(self.match_labels),
            match_expressions: Some(expressions.collect()),
        }
    }
}

/// A requirement of a label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "message": "values go with In and NotIn, and with nothing else",
}]))]
pub struct RequirementSpec {
    /// The label.
    #[schemars(extend("minLength" = 1, "maxLength" = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// Values of In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_VALUES,
        "items" = {"type": "string", "maxLength": 63},
        "x-kubernetes-list-type" = "atomic",
    ))]
    pub values: Vec<String>,
}

/// Whether a requirement of the selector cannot be read.
pub(super) fn has_unknown(selector: &LabelSelector) -> bool {
    let unknown = |requirement: &Requirement| matches!(requirement, Requirement::Unknown(_));
    selector.requirements.iter().any(unknown)
}
