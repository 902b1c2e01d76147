//! Reads the API server once: lists and single objects, as objects of the model. It is for callers that ask once
//! and may have few rights: a missing right is an answer, and nothing is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use tokio::time::timeout;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;

use super::raw::Raw;
use super::served::{Served, served};
use super::{LARGE_PAGE, PAGE, Watched, field_selector};
use crate::text::one_line;

/// Longest wait for one response.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most objects of one list. In a larger cluster, the user has to choose a namespace.
const MAX_OBJECTS: usize = 500_000;

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The caller does not have the right.
    #[error("{0}")]
    Denied(String),
    /// The server does not serve the kind.
    #[error("the API server does not serve {0}")]
    NotInstalled(Kind),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(status) if status.code == 403 => Self::Denied(one_line(&status.message)),
            Error::Api(status) => Self::Failed(one_line(&status.message)),
            error => {
                // The message of kube names the operation, and its cause is what helps.
                let mut text = error.to_string();
                let mut cause = std::error::Error::source(&error);
                while let Some(error) = cause {
                    let more = error.to_string();
                    if !text.contains(&more) {
                        text.push_str(": ");
                        text.push_str(&more);
                    }
                    cause = error.source();
                }
                Self::Failed(one_line(&text))
            }
        }
    }
}

/// Reads objects. It remembers in which version each kind is served.
pub struct ObjectReader {
    client: Client,
    served: BTreeMap<Kind, Option<Served>>,
}

impl ObjectReader {
    /// A reader with the rights of `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            served: BTreeMap::new(),
        }
    }

    /// The objects of a kind, in one namespace or in all, whose labels match `labels` (a selector; if empty, all
    /// match).
    pub async fn list(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        labels: &str,
    ) -> Result<Vec<Watched>, ReadError> {
        let served = self.served(kind).await?;
        let api: Api<Raw> = match namespace {
            Some(namespace) => {
                Api::namespaced_with(self.client.clone(), namespace, &served.resource)
            }
            None => Api::all_with(self.client.clone(), &served.resource),
        };
        let large = matches!(kind, Kind::Secret | Kind::ConfigMap);
        let mut parameters = ListParams::default().limit(if large { LARGE_PAGE } else { PAGE });
        if !labels.is_empty() {
            parameters = parameters.labels(labels);
        }
        if let Some(fields) = field_selector(kind) {
            parameters = parameters.fields(&fields);
        }
        let mut objects = Vec::new();
        loop {
            let page = bounded(api.list(&parameters)).await?;
            let next = page.metadata.continue_.filter(|next| !next.is_empty());
            let version = &served.resource.api_version;
            objects.extend(page.items.into_iter().map(|raw| raw.decode(kind, version)));
            if objects.len() > MAX_OBJECTS {
                let message = format!("there are more than {MAX_OBJECTS} objects of kind {kind}");
                return Err(ReadError::Failed(message));
            }
            match next {
                Some(next) => parameters = parameters.continue_token(&next),
                None => return Ok(objects),
            }
        }
    }

    /// One object; `None` if there is none.
    pub async fn get(
        &mut self,
        kind: Kind,
        name: &ObjectName,
    ) -> Result<Option<Watched>, ReadError> {
        let served = self.served(kind).await?;
        let api: Api<Raw> = if kind.is_namespaced() {
            Api::namespaced_with(self.client.clone(), &name.namespace, &served.resource)
        } else {
            Api::all_with(self.client.clone(), &served.resource)
        };
        let found = bounded(api.get_opt(&name.name)).await?;
        let found = found.filter(|raw| !raw.is_left_out(kind));
        Ok(found.map(|raw| raw.decode(kind, &served.resource.api_version)))
    }

    async fn served(&mut self, kind: Kind) -> Result<Served, ReadError> {
        let known = if let Some(known) = self.served.get(&kind) {
            known.clone()
        } else {
            let found = served(&self.client, kind).await?;
            self.served.insert(kind, found.clone());
            found
        };
        known.ok_or(ReadError::NotInstalled(kind))
    }
}

/// Reads a Secret or ConfigMap as a watch would show it; `None` if there is none, or if watches leave it out.
pub async fn read_source(client: &Client, key: &ObjectKey) -> Result<Option<Object>, Error> {
    let plural = match key.kind {
        Kind::ConfigMap => "configmaps",
        _ => "secrets",
    };
    let kind = GroupVersionKind::gvk("", "v1", key.kind.as_str());
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let api: Api<Raw> = Api::namespaced_with(client.clone(), &key.name.namespace, &resource);
    let found = api.get_opt(&key.name.name).await?;
    let shown = found.filter(|raw| !raw.is_left_out(key.kind));
    let watched = shown.map(|raw| raw.decode(key.kind, &resource.api_version));
    Ok(watched
        .filter(|watched| watched.key == *key)
        .map(|watched| watched.object))
}

async fn bounded<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, ReadError> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ReadError::Failed(format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::super::LEFT_OUT;
    use super::*;

    /// Returns a client of an API server in which every Secret has this type. A list has none.
    fn client(secret_type: &'static str) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = match request.uri().path() {
                "/api/v1" => json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
                    "resources": [{
                        "name": "secrets", "singularName": "secret", "namespaced": true,
                        "kind": "Secret", "verbs": ["get", "list"],
                    }],
                }),
                "/api/v1/secrets" => {
                    let query = request.uri().query().unwrap_or_default();
                    for left_out in LEFT_OUT {
                        assert!(query.contains(&left_out.replace('/', "%2F")), "{query}");
                    }
                    json!({
                        "kind": "SecretList", "apiVersion": "v1",
                        "metadata": {"resourceVersion": "7"}, "items": [],
                    })
                }
                _ => secret(secret_type),
            };
            let body: Body = answer.to_string().into_bytes().into();
            ready(Ok::<_, Infallible>(Response::new(body)))
        });
        Client::new(service, "default")
    }

    fn secret(secret_type: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": secret_type,
            "metadata": {"namespace": "a", "name": "s", "resourceVersion": "7"},
            "data": {"ca.crt": "Y2VydA==", "tls.crt": "c2VjcmV0", "tls.key": "c2VjcmV0"},
        })
    }

    #[tokio::test]
    async fn a_secret_that_watches_leave_out_does_not_exist_for_readers() {
        let key = ObjectKey::new(Kind::Secret, "a", "s");
        for secret_type in LEFT_OUT {
            let client = client(secret_type);
            let mut reader = ObjectReader::new(client.clone());
            let found = reader.get(Kind::Secret, &key.name).await.unwrap();
            assert_eq!(found, None, "{secret_type}");
            let read = read_source(&client, &key).await.unwrap();
            assert_eq!(read, None, "{secret_type}");
        }
        let mut reader = ObjectReader::new(client("Opaque"));
        let listed = reader.list(Kind::Secret, None, "").await.unwrap();
        assert!(listed.is_empty());
        let found = reader.get(Kind::Secret, &key.name).await.unwrap();
        assert!(found.is_some());
    }

    #[tokio::test]
    async fn a_secret_is_read_without_a_key_unless_its_type_is_tls() {
        let key = ObjectKey::new(Kind::Secret, "a", "s");
        for (secret_type, is_tls) in [("kubernetes.io/tls", true), ("Opaque", false)] {
            let read = read_source(&client(secret_type), &key).await.unwrap();
            let Some(Object::Secret(secret)) = read else {
                panic!("{read:?}");
            };
            assert!(secret.authorities.is_some(), "{secret_type}");
            assert_eq!(secret.certificate.is_some(), is_tls, "{secret_type}");
            assert_eq!(secret.private_key.is_some(), is_tls, "{secret_type}");
        }
    }

    #[tokio::test]
    async fn an_answer_about_another_object_is_none() {
        let other = ObjectKey::new(Kind::Secret, "a", "other");
        let read = read_source(&client("Opaque"), &other).await.unwrap();
        assert_eq!(read, None);
    }
}
