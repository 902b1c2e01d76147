//! What belongs to the whole cluster, as it is at one moment: a scenario that changes it for good is found out by
//! comparing two of these.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, ensure};
use serde_json::{Map, Value};

use super::{NAMESPACE, World};
use crate::api::{self, Kind, items, name};
use crate::wait::{LATER, until};

/// Cluster-scoped kinds that are compared whole, but for what [`Survey::essence`] leaves out.
const KINDS: [(Kind, &str); 11] = [
    (api::CRD, "CustomResourceDefinition"),
    (api::NAMESPACE, "Namespace"),
    (api::GATEWAY_CLASS, "GatewayClass"),
    (api::WEBHOOK, "ValidatingWebhookConfiguration"),
    (api::MUTATING_WEBHOOK, "MutatingWebhookConfiguration"),
    (api::ADMISSION_POLICY, "ValidatingAdmissionPolicy"),
    (
        api::ADMISSION_POLICY_BINDING,
        "ValidatingAdmissionPolicyBinding",
    ),
    (api::CLUSTER_ROLE, "ClusterRole"),
    (api::CLUSTER_ROLE_BINDING, "ClusterRoleBinding"),
    (api::CLUSTER_ACME_ISSUER, "ClusterACMEIssuer"),
    (api::CLUSTER_ISSUER, "ClusterIssuer"),
];
/// Annotations by which the conformance suite tells what CRDs are installed; it refuses a mixture.
const BUNDLE: [&str; 2] = [
    "gateway.networking.k8s.io/bundle-version",
    "gateway.networking.k8s.io/channel",
];
/// How many differences are named.
const SHOWN: usize = 8;
/// How many characters of a value are shown.
const SHOWN_OF_VALUE: usize = 100;

/// Kind and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id(&'static str, String);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// Objects of the whole cluster, and the release's Deployments.
#[derive(Debug, Default)]
pub(crate) struct Survey(BTreeMap<Id, Value>);

impl Survey {
    /// The cluster as it is now. Waits for an API server that is away, as after a scenario that failed with it.
    pub(crate) async fn take(world: &World) -> Result<Self> {
        until("a survey of the cluster", LATER, async || {
            Self::list(world).await
        })
        .await
    }

    async fn list(world: &World) -> Result<Self> {
        let mut survey = Self::default();
        for (kind, called) in KINDS {
            // A kind that is not installed has no objects.
            survey.add(called, &world.api.list(kind, "", "").await?);
        }
        let deployments = world.api.list(api::DEPLOYMENT, NAMESPACE, "").await?;
        survey.add("Deployment", &deployments);
        Ok(survey)
    }

    /// Waits until the cluster is again as it was; what was deleted may take its time. With `keep`, namespaces
    /// may stay.
    pub(crate) async fn until_unchanged(&self, world: &World, keep: bool) -> Result<()> {
        until("the cluster to be as before", LATER, async || {
            let now = Self::list(world).await?;
            let mut differences = self.differences(&now);
            differences.retain(|(id, _)| !(keep && id.0 == "Namespace"));
            let said: Vec<String> = differences
                .iter()
                .take(SHOWN)
                .map(|(id, how)| format!("{id} {how}"))
                .collect();
            ensure!(said.is_empty(), "{}", said.join("; "));
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    fn add(&mut self, kind: &'static str, objects: &[Value]) {
        for object in objects {
            if let Some(essence) = Self::essence(kind, object) {
                self.0.insert(Id(kind, name(object).to_owned()), essence);
            }
        }
    }

    /// What is compared of an object: what somebody wrote, and not what the cluster says about it. None for a
    /// namespace that is being deleted.
    fn essence(kind: &str, object: &Value) -> Option<Value> {
        let metadata = &object["metadata"];
        let mut essence = object.as_object().cloned().unwrap_or_default();
        for key in ["apiVersion", "kind", "metadata", "status"] {
            essence.remove(key);
        }
        match kind {
            "Namespace" if !metadata["deletionTimestamp"].is_null() => return None,
            "Namespace" => {
                essence.clear();
                essence.insert("labels".to_owned(), metadata["labels"].clone());
            }
            "CustomResourceDefinition" => {
                for annotation in BUNDLE {
                    let value = metadata["annotations"][annotation].clone();
                    essence.insert(annotation.to_owned(), value);
                }
            }
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
                let webhooks = essence.get_mut("webhooks").and_then(Value::as_array_mut);
                for webhook in webhooks.into_iter().flatten() {
                    // It follows the webhook's certificate, which is renewed by itself.
                    if let Some(client) = webhook["clientConfig"].as_object_mut() {
                        client.remove("caBundle");
                    }
                }
            }
            // Labels and annotations of its pods say that it was rolled, which changes nothing that lasts.
            "Deployment" => {
                let containers = items(object, "/spec/template/spec/containers");
                essence = Map::from_iter([
                    ("replicas".to_owned(), object["spec"]["replicas"].clone()),
                    ("containers".to_owned(), Value::from(containers)),
                ]);
            }
            _ => {}
        }
        Some(Value::Object(essence))
    }

    /// Which objects are different there, and how.
    fn differences<'a>(&'a self, after: &'a Self) -> Vec<(&'a Id, String)> {
        let ids: BTreeSet<&Id> = self.0.keys().chain(after.0.keys()).collect();
        ids.into_iter()
            .filter_map(|id| {
                let how = match (self.0.get(id), after.0.get(id)) {
                    (Some(before), Some(after)) => first_difference(before, after, "")?,
                    (Some(_), None) => "is gone".to_owned(),
                    (None, _) => match after.0[id].get(BUNDLE[0]).and_then(Value::as_str) {
                        Some(version) => format!("is new ({version})"),
                        None => "is new".to_owned(),
                    },
                };
                Some((id, how))
            })
            .collect()
    }
}

/// The first place at which two values are different.
fn first_difference(before: &Value, after: &Value, place: &str) -> Option<String> {
    let inside = |key: &str, before: &Value, after: &Value| {
        first_difference(before, after, &format!("{place}/{key}"))
    };
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            keys.into_iter()
                .find_map(|key| inside(key, &before[key.as_str()], &after[key.as_str()]))
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => old
            .iter()
            .zip(new)
            .enumerate()
            .find_map(|(index, (old, new))| inside(&index.to_string(), old, new)),
        _ if before == after => None,
        _ => Some(format!(
            "has changed: {place} was {}, is {}",
            short(before),
            short(after)
        )),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN_OF_VALUE {
        return text;
    }
    text.chars().take(SHOWN_OF_VALUE).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn survey(objects: &[(&'static str, Value)]) -> Survey {
        let mut survey = Survey::default();
        for (kind, object) in objects {
            survey.add(kind, std::slice::from_ref(object));
        }
        survey
    }

    /// What is said of two listings, one object each line.
    fn said(before: &[(&'static str, Value)], after: &[(&'static str, Value)]) -> Vec<String> {
        let (before, after) = (survey(before), survey(after));
        let differences = before.differences(&after);
        differences
            .into_iter()
            .map(|(id, how)| format!("{id} {how}"))
            .collect()
    }

    fn crd(name: &str, version: &str) -> (&'static str, Value) {
        let object = json!({
            "metadata": {"name": name, "resourceVersion": version, "annotations": {BUNDLE[0]: version}},
            "spec": {"scope": "Namespaced", "versions": [{"name": "v1", "served": true}]},
            "status": {"storedVersions": [version]},
        });
        ("CustomResourceDefinition", object)
    }

    fn namespace(name: &str, label: &str) -> (&'static str, Value) {
        let object = json!({"metadata": {"name": name, "labels": {"vestibule-e2e": label}},
            "status": {"phase": "Active"}});
        ("Namespace", object)
    }

    #[test]
    fn a_crd_that_is_left_behind_is_named_with_its_version() {
        let gateways = crd("gateways", "v1.7.0");
        assert_eq!(
            said(
                std::slice::from_ref(&gateways),
                &[gateways.clone(), crd("xlistenersets", "v1.4.0")]
            ),
            ["CustomResourceDefinition xlistenersets is new (v1.4.0)"]
        );
    }

    #[test]
    fn an_older_crd_and_a_loosened_one_are_different() {
        let mut loosened = crd("gateways", "v1.7.0");
        loosened.1["spec"]["versions"][0]["schema"] =
            json!({"openAPIV3Schema": {"type": "object"}});
        assert_eq!(
            said(&[crd("gateways", "v1.7.0")], &[loosened]),
            [
                "CustomResourceDefinition gateways has changed: /spec/versions/0/schema was null, \
              is {\"openAPIV3Schema\":{\"type\":\"object\"}}"
            ]
        );
        let older = said(&[crd("gateways", "v1.7.0")], &[crd("gateways", "v1.4.0")]);
        assert_eq!(older.len(), 1);
        assert!(
            older[0].ends_with("was \"v1.7.0\", is \"v1.4.0\""),
            "{older:?}"
        );
    }

    #[test]
    fn a_namespace_may_be_on_its_way_out_and_must_keep_its_labels() {
        let mut going = namespace("e2e-x-team", "x");
        going.1["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(said(&[], &[going]).is_empty());
        assert_eq!(
            said(
                &[namespace("exempt", "exempt")],
                &[namespace("exempt", "older")]
            ),
            ["Namespace exempt has changed: /labels/vestibule-e2e was \"exempt\", is \"older\""]
        );
        assert_eq!(said(&[namespace("a", "a")], &[]), ["Namespace a is gone"]);
    }

    #[test]
    fn replicas_and_arguments_count_and_a_rollout_does_not() {
        let deployment = |replicas: u32, argument: &str, label: &str| {
            let template = json!({"metadata": {"labels": {"rolled": label}},
                "spec": {"containers": [{"name": "operator", "args": [argument]}]}});
            let object = json!({"metadata": {"name": "vestibule-operator", "generation": replicas},
                "spec": {"replicas": replicas, "template": template}});
            ("Deployment", object)
        };
        let before = [deployment(2, "--a", "no")];
        assert!(said(&before, &[deployment(2, "--a", "yes")]).is_empty());
        assert_eq!(
            said(&before, &[deployment(0, "--a", "no")]),
            ["Deployment vestibule-operator has changed: /replicas was 2, is 0"]
        );
        assert_eq!(
            said(&before, &[deployment(2, "--b", "no")]),
            [
                "Deployment vestibule-operator has changed: /containers/0/args/0 was \"--a\", is \"--b\""
            ]
        );
    }

    #[test]
    fn a_renewed_certificate_of_the_webhook_is_no_change() {
        let webhook = |bundle: &str, policy: &str| {
            let one = json!({"name": "a", "failurePolicy": policy,
                "clientConfig": {"service": {"name": "w"}, "caBundle": bundle}});
            let object = json!({"metadata": {"name": "vestibule"}, "webhooks": [one]});
            ("ValidatingWebhookConfiguration", object)
        };
        assert!(said(&[webhook("one", "Fail")], &[webhook("two", "Fail")]).is_empty());
        assert_eq!(
            said(&[webhook("one", "Fail")], &[webhook("one", "Ignore")]).len(),
            1
        );
    }
}
