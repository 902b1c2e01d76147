//! Makes the requests that the store of claims ([`crate::claims`]) asks for, and lists the objects for a new leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, PostParams, Preconditions,
};
use kube::core::Status;
use serde_json::Value;
use tracing::{debug, warn};
use vestibule_backoff::Backoff;
use vestibule_crds::decode;
use vestibule_crds::vestibule::{HostnameClaim, HostnameClaimSpec};
use vestibule_crds::watch::{ObjectReader, Watched};
use vestibule_model::claim::{self, Holder};
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;

use super::failure::FailureLines;
use super::metrics::{Metrics, WriteResult};
use crate::claims::{ClaimAction, ClaimContent, ClaimRequest, SeenClaim, WriteOutcome};

/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits after lists failed.
const LIST_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Annotation that changes the version of an object, but not its meaning. If the outcome of an earlier write is
/// unknown, that write requires the former version, so the API server refuses it from now on.
const FENCE: &str = "vestibule.dev/not-before";

/// Makes the requests.
#[derive(Clone)]
pub(super) struct ClaimWriter {
    client: Client,
    /// Value of the label `app.kubernetes.io/managed-by`.
    manager: Arc<str>,
    metrics: Metrics,
    /// The lines about writes that fail. A quota, for example, makes all of them fail.
    lines: FailureLines<()>,
}

impl ClaimWriter {
    pub(super) fn new(client: Client, manager: &str, metrics: Metrics) -> Self {
        Self {
            client,
            manager: manager.into(),
            metrics,
            lines: FailureLines::new(),
        }
    }

    /// Lists every object as it is in etcd now, since the watch may be behind without a sign of it. Tries until it
    /// succeeds.
    pub(super) async fn list(self) -> Vec<Watched> {
        let mut reader = ObjectReader::new(self.client);
        let mut delays = LIST_AGAIN.delays();
        loop {
            // No resourceVersion is asked for, so what comes is no older than the request.
            match reader.list(Kind::HostnameClaim, None, "").await {
                Ok(objects) => return objects,
                Err(error) => {
                    warn!(%error, "cannot list HostnameClaims; no new name is served until that succeeds");
                }
            }
            tokio::time::sleep(delays.advance()).await;
        }
    }

    /// Makes one request.
    pub(super) async fn make(self, request: ClaimRequest) -> (ObjectName, WriteOutcome) {
        let ClaimRequest { name, action } = request;
        let kind = RequestKind::of(&action);
        let answer = tokio::time::timeout(PATIENCE, self.ask(&name, action)).await;
        let (outcome, result) = match answer {
            Ok(Ok(seen)) => {
                debug!(claim = %name, there = seen.is_some(), "the state of a HostnameClaim is known");
                (WriteOutcome::Known(seen), WriteResult::Written)
            }
            Ok(Err(error)) => {
                let (outcome, result) = outcome_of(&error, kind);
                match &outcome {
                    WriteOutcome::Known(_) | WriteOutcome::Moved => {
                        debug!(claim = %name, %error, "a HostnameClaim is not written, because the object has changed");
                    }
                    WriteOutcome::Refused if self.may_log() => {
                        warn!(claim = %name, %error, "cannot write a HostnameClaim; its name waits");
                    }
                    WriteOutcome::Unknown if self.may_log() => {
                        warn!(claim = %name, %error, "a HostnameClaim is perhaps not written; its name waits until that is known");
                    }
                    WriteOutcome::Refused | WriteOutcome::Unknown => {
                        debug!(claim = %name, %error, "a HostnameClaim is not written");
                    }
                }
                (outcome, result)
            }
            Err(_) => {
                if self.may_log() {
                    warn!(claim = %name, "no answer about a HostnameClaim; its name waits until there is one");
                }
                (WriteOutcome::Unknown, WriteResult::Unknown)
            }
        };
        if kind != RequestKind::Read {
            self.metrics.claims.written(result);
        }
        (name, outcome)
    }

    fn may_log(&self) -> bool {
        self.lines.admit(&())
    }

    async fn ask(
        &self,
        name: &ObjectName,
        action: ClaimAction,
    ) -> Result<Option<SeenClaim>, kube::Error> {
        let api: Api<HostnameClaim> = Api::namespaced(self.client.clone(), &name.namespace);
        let parameters = PostParams::default();
        let written = match action {
            ClaimAction::Create(content) => {
                let object = self.object(name, &content, None, false);
                api.create(&parameters, &object).await?
            }
            ClaimAction::Replace {
                content,
                version,
                fence,
            } => {
                let object = self.object(name, &content, Some(version), fence);
                api.replace(&name.name, &parameters, &object).await?
            }
            ClaimAction::Delete { version, uid } => {
                let parameters = DeleteParams {
                    preconditions: Some(Preconditions {
                        resource_version: Some(version),
                        uid: Some(uid.to_string()).filter(|uid| !uid.is_empty()),
                    }),
                    ..DeleteParams::default()
                };
                let left = api.delete(&name.name, &parameters).await?.left();
                if left.is_some_and(|object| object.metadata.finalizers.is_some()) {
                    let status = Status::failure("a finalizer keeps it", "Invalid");
                    return Err(kube::Error::Api(Box::new(status.with_code(422))));
                }
                return Ok(None);
            }
            // No resourceVersion is asked for, so what comes is no older than the request.
            ClaimAction::Read => return self.read(name).await,
        };
        let version = written
            .metadata
            .resource_version
            .clone()
            .unwrap_or_default();
        let value = serde_json::to_value(&written).map_err(kube::Error::SerdeError)?;
        seen(value, version).map(Some)
    }

    async fn read(&self, name: &ObjectName) -> Result<Option<SeenClaim>, kube::Error> {
        // The object may have any form, since somebody may have made it by hand.
        let resource = ApiResource::erase::<HostnameClaim>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let Some(object) = api.get_opt(&name.name).await? else {
            return Ok(None);
        };
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let value = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
        seen(value, version).map(Some)
    }

    fn object(
        &self,
        name: &ObjectName,
        content: &ClaimContent,
        version: Option<String>,
        fence: bool,
    ) -> HostnameClaim {
        let label = (super::MANAGED_BY.to_owned(), self.manager.to_string());
        let mut annotations = BTreeMap::new();
        if fence {
            annotations.insert(FENCE.to_owned(), super::clock::millis().to_string());
        }
        if content.is_taken {
            let holder = content.holder.namespace.to_string();
            annotations.insert(claim::TAKE_FROM.to_owned(), holder);
        }
        HostnameClaim {
            metadata: ObjectMeta {
                name: Some(name.name.to_string()),
                namespace: Some(name.namespace.to_string()),
                labels: Some([label].into()),
                annotations: (!annotations.is_empty()).then_some(annotations),
                resource_version: version,
                ..ObjectMeta::default()
            },
            spec: HostnameClaimSpec::new(
                &content.key,
                &content.gateway_uid,
                &content.holder,
                content.since,
                content.unused_since,
            ),
        }
    }
}

/// Reads the object in a response.
fn seen(value: Value, version: String) -> Result<SeenClaim, kube::Error> {
    let object = decode(value).into_object();
    let claim = object.and_then(|(object, _)| read(&object));
    let unread = || kube::Error::Service("the answer is no HostnameClaim".into());
    Ok((claim.ok_or_else(unread)?, version))
}

/// Kinds of requests for which the same error means different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Read,
    Create,
    /// A request that requires a version of the object.
    Change,
}

impl RequestKind {
    fn of(action: &ClaimAction) -> Self {
        match action {
            ClaimAction::Read => Self::Read,
            ClaimAction::Create(_) => Self::Create,
            ClaimAction::Replace { .. } | ClaimAction::Delete { .. } => Self::Change,
        }
    }
}

/// Returns the outcome of a request that failed.
fn outcome_of(error: &kube::Error, kind: RequestKind) -> (WriteOutcome, WriteResult) {
    match (error, kind) {
        // Only "already exists" means that the object exists. A create can also conflict for other reasons, such as a
        // quota that another request updates.
        (kube::Error::Api(status), RequestKind::Create) if status.is_already_exists() => {
            (WriteOutcome::Moved, WriteResult::Conflict)
        }
        (kube::Error::Api(status), RequestKind::Change)
            if status.is_conflict() || status.is_not_found() =>
        {
            (WriteOutcome::Moved, WriteResult::Conflict)
        }
        (kube::Error::Api(status), _) if (400..500).contains(&status.code) => {
            (WriteOutcome::Refused, WriteResult::Failed)
        }
        // The connection was lost, or the server itself does not know the outcome, for example because etcd does not
        // respond.
        _ => (WriteOutcome::Unknown, WriteResult::Unknown),
    }
}

/// Returns the claim in an object. An object that cannot be read gives a claim that does not count, and the leader
/// corrects it.
pub(super) fn read(object: &Object) -> Option<Arc<claim::HostnameClaim>> {
    match object {
        Object::HostnameClaim(claim) => Some(Arc::clone(claim)),
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
        key: None,
        holder: Holder::from(""),
        since: 0,
        unused_since: None,
        take_from: None,
        findings: vec![finding],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_another_one_only_if_the_answer_is_about_it() {
        let outcome = |code, reason: &str, sort| {
            let status = Status::failure("no", reason).with_code(code);
            outcome_of(&kube::Error::Api(Box::new(status)), sort).0
        };
        let table = [
            (409, "AlreadyExists", RequestKind::Create, "Moved"),
            (409, "Conflict", RequestKind::Create, "Refused"),
            (403, "Forbidden", RequestKind::Create, "Refused"),
            (404, "NotFound", RequestKind::Create, "Refused"),
            (409, "Conflict", RequestKind::Change, "Moved"),
            (404, "NotFound", RequestKind::Change, "Moved"),
            (403, "Forbidden", RequestKind::Change, "Refused"),
            (500, "InternalError", RequestKind::Create, "Unknown"),
            (403, "Forbidden", RequestKind::Read, "Refused"),
        ];
        for (code, reason, sort, expected) in table {
            let outcome = format!("{:?}", outcome(code, reason, sort));
            assert_eq!(outcome, expected, "{code} {reason} {sort:?}");
        }
    }
}
