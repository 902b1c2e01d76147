//! The case table of `cli/tests/cases`, put to the API server: what the table says is refused is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use vestibule_crds::yaml;

use crate::api::{self, Kind, name, text};
use crate::runner::Verdict;
use crate::wait::{SOON, until};
use crate::world::{EXEMPT, Stage};

/// The label with a namespace's name, which every one has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Status code of an object that the CRD's own schema refuses.
const INVALID: u16 = 422;

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    exempt: Vec<String>,
}

struct Case {
    name: String,
    header: Header,
    objects: Vec<Value>,
    expected: BTreeMap<String, Value>,
}

/// How many objects of a case were judged, and why it was given up if it was.
#[derive(Default)]
struct CaseOutcome {
    /// How many objects were judged.
    judged: usize,
    /// The object that cannot exist in this cluster.
    impossible: Option<String>,
}

/// Every case that can be put to this release is judged as the table says.
pub(super) async fn the_case_table_holds_in_admission(stage: &Stage) -> Result<Verdict> {
    let folder = stage.world.repository.join("cli/tests/cases");
    let mut files: Vec<_> = std::fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    let mut spaces = Spaces::default();
    let (mut cases, mut judged) = (0_usize, 0_usize);
    let mut notes = Vec::new();
    for file in files {
        let case = Case::read(&file)?;
        if case
            .header
            .mode
            .as_deref()
            .is_some_and(|mode| mode != "Enforce")
        {
            notes.push(format!("left out, the release enforces: {}", case.name));
            continue;
        }
        // Here the operator alone says who holds what, by what is there.
        let claims = |object: &Value| text(object, "/kind") == "HostnameClaim";
        if case.objects.iter().any(claims) {
            notes.push(format!("left out, has claims of its own: {}", case.name));
            continue;
        }
        spaces.clear(stage).await?;
        spaces.begin(&case);
        let outcome = case
            .judge(stage, &mut spaces)
            .await
            .context(case.name.clone())?;
        judged += outcome.judged;
        if let Some(object) = outcome.impossible {
            notes.push(format!("{}: the CRD does not let {object} be", case.name));
        }
        cases += 1;
    }
    spaces.clear(stage).await?;
    notes.insert(
        0,
        format!("{judged} objects of {cases} cases judged as the table says"),
    );
    Ok(Verdict::Passed(notes))
}

/// Namespaces of the cases: real ones with other names, used by one case after another. Those of Gateways are each
/// case's own: the names of a Gateway that is deleted stay with their holders for a minute.
#[derive(Default)]
struct Spaces {
    real: BTreeMap<String, String>,
    case: usize,
    of_gateways: BTreeSet<String>,
}

impl Spaces {
    fn begin(&mut self, case: &Case) {
        self.case += 1;
        let gateways = case.objects.iter();
        let gateways = gateways.filter(|object| text(object, "/kind") == "Gateway");
        let spaces = gateways.map(|gateway| text(gateway, "/metadata/namespace").to_owned());
        let former = std::mem::replace(&mut self.of_gateways, spaces.collect());
        let both = former.union(&self.of_gateways);
        for space in both {
            self.real.remove(space);
        }
    }

    async fn of(&mut self, stage: &Stage, header: &Header, name: &str) -> Result<String> {
        if header.exempt.iter().any(|exempt| exempt == name) {
            return Ok(EXEMPT.to_owned());
        }
        if let Some(real) = self.real.get(name) {
            return Ok(real.clone());
        }
        let real = if self.of_gateways.contains(name) {
            stage.namespace(&format!("{name}-{}", self.case)).await?
        } else {
            stage.namespace(name).await?
        };
        self.real.insert(name.to_owned(), real.clone());
        Ok(real)
    }

    /// Empties them.
    async fn clear(&self, stage: &Stage) -> Result<()> {
        let api = &stage.world.api;
        for space in self.real.values().map(String::as_str).chain([EXEMPT]) {
            for kind in [
                api::HOSTNAME_GRANT,
                api::TLS_ROUTE,
                api::LISTENER_SET,
                api::GATEWAY,
            ] {
                for object in api.list(kind, space, "").await? {
                    api.delete(kind, space, name(&object)).await?;
                }
            }
        }
        Ok(())
    }
}

impl Case {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut documents: Vec<Value> = yaml::documents(&text)
            .ok()
            .with_context(|| format!("{name} is not YAML"))?
            .into_iter()
            .map(|(_, document)| document)
            .collect();
        ensure!(!documents.is_empty(), "{name} is empty");
        let header = serde_json::from_value(documents.remove(0))?;
        let expected = documents
            .pop_if(|last| last.get("expected").is_some())
            .and_then(|last| serde_json::from_value(last.get("expected")?.clone()).ok())
            .unwrap_or_default();
        Ok(Self {
            name,
            header,
            objects: documents,
            expected,
        })
    }

    /// Makes the objects one after another.
    async fn judge(&self, stage: &Stage, spaces: &mut Spaces) -> Result<CaseOutcome> {
        let mut outcome = CaseOutcome::default();
        let mut kept_out = BTreeSet::new();
        for object in &self.objects {
            let (kind, policed) = match text(object, "/kind") {
                "Gateway" => (api::GATEWAY, false),
                "ListenerSet" => (api::LISTENER_SET, true),
                "TLSRoute" => (api::TLS_ROUTE, true),
                "HostnameGrant" => (api::HOSTNAME_GRANT, true),
                "Namespace" => {
                    let real = spaces.of(stage, &self.header, name(object)).await?;
                    let labels =
                        serde_json::json!({"metadata": {"labels": object["metadata"]["labels"]}});
                    stage
                        .world
                        .api
                        .patch(api::NAMESPACE, "", &real, &labels)
                        .await?;
                    continue;
                }
                // Other kinds matter to statuses, not to admission.
                _ => continue,
            };
            let original = format!(
                "{} {}/{}",
                text(object, "/kind"),
                text(object, "/metadata/namespace"),
                name(object)
            );
            // The table has the set that it refuses; here it is not there to be a parent.
            if parents(object).iter().any(|set| kept_out.contains(set)) {
                continue;
            }
            let mut real = object.clone();
            self.rename(stage, spaces, &mut real).await?;
            let expected = self
                .expected
                .get(&original)
                .map_or("allowed", |expected| text(expected, "/admission"));
            let possible = put(stage, kind, &real, policed && expected == "refused")
                .await
                .with_context(|| format!("{original}, expected to be {expected}"))?;
            let refused = policed && expected == "refused";
            if refused {
                kept_out.insert(original.clone());
            }
            if !possible || refused && kind == api::HOSTNAME_GRANT {
                // What comes after it is about a world with it.
                outcome.impossible = Some(original);
                break;
            }
            outcome.judged += usize::from(policed);
        }
        Ok(outcome)
    }

    /// Puts the real namespaces in place of the table's, wherever a namespace is named.
    async fn rename(&self, stage: &Stage, spaces: &mut Spaces, object: &mut Value) -> Result<()> {
        for name in namespaces_in(object) {
            *name = spaces.of(stage, &self.header, name).await?;
        }
        Ok(())
    }
}

/// Every place of an object that names a namespace: its own, those of references, those of a grant by name, and
/// those of selectors by the label that every namespace has.
fn namespaces_in(object: &mut Value) -> Vec<&mut String> {
    let mut found = Vec::new();
    // What a field `namespaces` has is told apart: `names` are a grant's.
    let mut pending = vec![(false, object)];
    while let Some((chooses, value)) = pending.pop() {
        match value {
            Value::Array(values) => pending.extend(values.iter_mut().map(|value| (false, value))),
            Value::Object(fields) => {
                let about_names = fields.get("key").is_some_and(|key| key == NAME_LABEL);
                for (field, value) in fields {
                    let names = match field.as_str() {
                        "namespace" | NAME_LABEL => true,
                        "values" => about_names,
                        "names" => chooses,
                        _ => false,
                    };
                    if names {
                        found.extend(texts(value));
                    } else {
                        pending.push((field == "namespaces", value));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

fn texts(value: &mut Value) -> Vec<&mut String> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.iter_mut().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// The ListenerSets that a route names, as the table calls them.
fn parents(object: &Value) -> Vec<String> {
    let parents = object["spec"]["parentRefs"].as_array();
    let parents = parents.into_iter().flatten();
    let sets = parents.filter(|parent| text(parent, "/kind") == "ListenerSet");
    sets.map(|parent| {
        let namespace = match text(parent, "/namespace") {
            "" => text(object, "/metadata/namespace"),
            named => named,
        };
        format!("ListenerSet {namespace}/{}", text(parent, "/name"))
    })
    .collect()
}

/// Makes an object, or sees it refused. False if it should have been let in and the schema refuses it: the
/// table is also about what is older than today's schema. Asked again for a while, because the webhook follows the API
/// server with a lag; an object that is to be refused is asked about in dry runs first, so that it does not come in by
/// that lag.
async fn put(stage: &Stage, kind: Kind, object: &Value, refused: bool) -> Result<bool> {
    let space = text(object, "/metadata/namespace");
    until("the verdict", SOON, async || {
        let verdict = stage
            .world
            .api
            .verdict(kind, space, object, refused)
            .await?;
        match (verdict, refused) {
            (None, true) => bail!("it was allowed"),
            (Some((INVALID, _)), false) => Ok(false),
            (Some((_, why)), false) => bail!("it was refused: {why}"),
            _ => Ok(true),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_grant_names_namespaces_by_name_and_by_label() {
        let mut grant = json!({
            "metadata": {"namespace": "infra", "name": "red"},
            "spec": {
                "namespaces": {
                    "names": ["red", "green"],
                    "selector": {
                        "matchLabels": {"kubernetes.io/metadata.name": "blue", "team": "red"},
                        "matchExpressions": [
                            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["black"]},
                            {"key": "team", "operator": "In", "values": ["red"]},
                        ],
                    },
                },
                "hostnames": ["red"],
            },
        });
        for name in namespaces_in(&mut grant) {
            name.insert_str(0, "real-");
        }
        assert_eq!(
            grant,
            json!({
                "metadata": {"namespace": "real-infra", "name": "red"},
                "spec": {
                    "namespaces": {
                        "names": ["real-red", "real-green"],
                        "selector": {
                            "matchLabels": {"kubernetes.io/metadata.name": "real-blue", "team": "red"},
                            "matchExpressions": [
                                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["real-black"]},
                                {"key": "team", "operator": "In", "values": ["red"]},
                            ],
                        },
                    },
                    "hostnames": ["red"],
                },
            })
        );
    }
}
