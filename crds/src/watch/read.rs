//! Reads the API server once: lists and single objects, as objects of the model. It is for callers that ask once
//! and may have few rights: a missing right is an answer, and nothing is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::{Client, Error};
use tokio::time::timeout;
use vestibule_model::key::{Kind, ObjectName};

use super::raw::Raw;
use super::served::{Served, served};
use super::{LARGE_PAGE, PAGE, Watched};
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
pub struct Reader {
    client: Client,
    served: BTreeMap<Kind, Option<Served>>,
}

impl Reader {
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

async fn bounded<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, ReadError> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ReadError::Failed(format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}
