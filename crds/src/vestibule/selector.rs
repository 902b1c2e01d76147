//! Label selectors of namespaces in Vestibule's own kinds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as apimachinery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most requirements of a selector.
pub(super) const MAX_REQUIREMENTS: usize = 16;
/// Most values of a requirement.
const MAX_VALUES: usize = 256;

/// The key of a label: a name, perhaps with a DNS subdomain and `/` before it.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The value of a label.
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// A label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorSpec {
    /// Labels that a namespace has with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = MAX_REQUIREMENTS,
        "additionalProperties" = {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
    ))]
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
    #[schemars(extend("minLength" = 1, "maxLength" = 317, "pattern" = LABEL_KEY))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// Values of In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_VALUES,
        "items" = {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
        "x-kubernetes-list-type" = "atomic",
    ))]
    pub values: Vec<String>,
}
