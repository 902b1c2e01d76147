//! Writes `HostnameClaim` objects, as the book ([`crate::claims`]) says, and lists them for a new leader.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams, Preconditions};
use tracing::{debug, warn};
use vestibule_crds::decode;
use vestibule_crds::vestibule::{ClaimEntry, ClaimGateway, HostnameClaim, HostnameClaimSpec};
use vestibule_crds::watch::{Reader, Watched};
use vestibule_model::claim;
use vestibule_model::finding::Finding;
use vestibule_model::key::{GATEWAY_GROUP, Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Meta, Object};

use super::metrics::{Metrics, WriteResult};
use crate::claims::{Content, Outcome, Seen, Write};

/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// First and longest wait after a list failed.
const LIST_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Annotation that gives an object another version without saying anything else: a write of which nobody
/// knows what came of it goes by the former one, and so comes too late.
const FENCE: &str = "vestibule.dev/not-before";

/// Makes the writes.
#[derive(Clone)]
pub(super) struct Scribe {
    client: Client,
    /// Value of the label `app.kubernetes.io/managed-by`.
    manager: Arc<str>,
    metrics: Metrics,
}

impl Scribe {
    pub(super) fn new(client: Client, manager: &str, metrics: Metrics) -> Self {
        Self {
            client,
            manager: manager.into(),
            metrics,
        }
    }

    /// Every object as etcd has it now: the watch may be behind without knowing. Tries until it succeeds.
    pub(super) async fn list(self) -> Vec<Watched> {
        let mut reader = Reader::new(self.client);
        let (mut pause, longest) = LIST_AGAIN;
        loop {
            // No resourceVersion is asked for, so what comes is no older than the request.
            match reader.list(Kind::HostnameClaim, None, "").await {
                Ok(objects) => return objects,
                Err(error) => {
                    warn!(%error, "cannot list HostnameClaims; no new name is served until that succeeds");
                }
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    /// Makes one write.
    pub(super) async fn write(self, write: Write) -> (ObjectName, Outcome) {
        let name = write.name.clone();
        let makes = write.version.is_none();
        let answer = tokio::time::timeout(PATIENCE, self.make(write)).await;
        let (outcome, result) = match answer {
            Ok(Ok(seen)) => {
                debug!(claim = %name, there = seen.is_some(), "written");
                (Outcome::Written(seen), WriteResult::Written)
            }
            Ok(Err(error)) => {
                let (outcome, result) = outcome_of(&error, makes);
                match &outcome {
                    Outcome::Moved => {
                        debug!(claim = %name, %error, "not written; what is there comes by the watch");
                    }
                    Outcome::Refused => {
                        warn!(claim = %name, %error, "cannot write a HostnameClaim; new names in it wait");
                    }
                    _ => {
                        warn!(claim = %name, %error, "perhaps not written; its names wait for a later write");
                    }
                }
                (outcome, result)
            }
            Err(_) => {
                warn!(claim = %name, "no answer to a write of a HostnameClaim; its names wait for a later write");
                (Outcome::Unknown, WriteResult::Unknown)
            }
        };
        self.metrics.claims.written(result);
        (name, outcome)
    }

    async fn make(&self, write: Write) -> Result<Option<Seen>, kube::Error> {
        let name = &write.name;
        let api: Api<HostnameClaim> = Api::namespaced(self.client.clone(), &name.namespace);
        let parameters = PostParams::default();
        let written = match (write.content, write.version) {
            (Some(content), version) => {
                let fence = write.fence;
                let object = self.object(name, &content, version.clone(), fence);
                match version {
                    None => api.create(&parameters, &object).await?,
                    Some(_) => api.replace(&name.name, &parameters, &object).await?,
                }
            }
            (None, version) => {
                let parameters = DeleteParams {
                    preconditions: Some(Preconditions {
                        resource_version: version,
                        uid: None,
                    }),
                    ..DeleteParams::default()
                };
                api.delete(&name.name, &parameters).await?;
                return Ok(None);
            }
        };
        let version = written
            .metadata
            .resource_version
            .clone()
            .unwrap_or_default();
        let value = serde_json::to_value(&written).map_err(kube::Error::SerdeError)?;
        let object = decode(value).into_object();
        let seen = object.and_then(|(object, _)| Some((read(&object)?, version)));
        // The client's type was read; a claim that is none after that does not come.
        let unread = || kube::Error::Service("the answer is no HostnameClaim".into());
        seen.map(Some).ok_or_else(unread)
    }

    fn object(
        &self,
        name: &ObjectName,
        content: &Content,
        version: Option<String>,
        fence: bool,
    ) -> HostnameClaim {
        let owner = OwnerReference {
            api_version: format!("{GATEWAY_GROUP}/v1"),
            kind: Kind::Gateway.as_str().to_owned(),
            name: content.gateway.to_string(),
            uid: content.gateway_uid.to_string(),
            ..OwnerReference::default()
        };
        let label = (super::MANAGED_BY.to_owned(), self.manager.to_string());
        HostnameClaim {
            metadata: ObjectMeta {
                name: Some(name.name.to_string()),
                namespace: Some(name.namespace.to_string()),
                labels: Some([label].into()),
                annotations: fence.then(|| {
                    let now = super::clock::millis().to_string();
                    [(FENCE.to_owned(), now)].into()
                }),
                owner_references: Some(vec![owner]),
                resource_version: version,
                ..ObjectMeta::default()
            },
            spec: HostnameClaimSpec {
                gateway: ClaimGateway {
                    name: content.gateway.to_string(),
                    uid: content.gateway_uid.to_string(),
                },
                namespace: content.namespace.to_string(),
                count: i32::try_from(content.entries.len()).unwrap_or(i32::MAX),
                entries: content.entries.iter().map(ClaimEntry::from).collect(),
            },
        }
    }
}

/// What came of a write that failed; `makes`: it was to make the object.
fn outcome_of(error: &kube::Error, makes: bool) -> (Outcome, WriteResult) {
    match error {
        // A create conflicts with other things as well, such as a quota that somebody else updates.
        kube::Error::Api(status) if makes && status.is_already_exists() => {
            (Outcome::Moved, WriteResult::Conflict)
        }
        kube::Error::Api(status) if !makes && (status.is_conflict() || status.is_not_found()) => {
            (Outcome::Moved, WriteResult::Conflict)
        }
        kube::Error::Api(status) if (400..500).contains(&status.code) => {
            (Outcome::Refused, WriteResult::Failed)
        }
        // The connection was lost, or the server does not know itself, such as when etcd does not answer.
        _ => (Outcome::Unknown, WriteResult::Unknown),
    }
}

/// What an object says. One that cannot be read says nothing, and is put right.
pub(super) fn read(object: &Object) -> Option<Arc<claim::HostnameClaim>> {
    match object {
        Object::HostnameClaim(claim) => Some(Arc::new(claim.clone())),
        Object::Unreadable(key, meta, finding) => {
            Some(Arc::new(unreadable(key, meta.clone(), finding.clone())))
        }
        _ => None,
    }
}

fn unreadable(key: &ObjectKey, meta: Meta, finding: Finding) -> claim::HostnameClaim {
    claim::HostnameClaim {
        name: key.name.clone(),
        meta,
        gateway: "".into(),
        gateway_uid: "".into(),
        namespace: "".into(),
        entries: Vec::new(),
        findings: vec![finding],
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_object_is_another_one_only_if_the_answer_is_about_it() {
        let outcome = |code, reason: &str, makes| {
            let status = Status::failure("no", reason).with_code(code);
            outcome_of(&kube::Error::Api(Box::new(status)), makes).0
        };
        let table = [
            (409, "AlreadyExists", true, "Moved"),
            (409, "Conflict", true, "Refused"),
            (403, "Forbidden", true, "Refused"),
            (404, "NotFound", true, "Refused"),
            (409, "Conflict", false, "Moved"),
            (404, "NotFound", false, "Moved"),
            (403, "Forbidden", false, "Refused"),
            (500, "InternalError", true, "Unknown"),
        ];
        for (code, reason, makes, expected) in table {
            let outcome = format!("{:?}", outcome(code, reason, makes));
            assert_eq!(outcome, expected, "{code} {reason} {makes}");
        }
    }
}
