//! Notices that etcd was restored from a backup while this process ran.
//!
//! After a restore, objects have older versions than before, or are gone, and no watch says so: a watch that goes on
//! from a version that etcd does not know yet stays silent until etcd has come that far again. The versions of lists
//! do say so. They are revisions of etcd as a whole, which a consistent list never shows going back.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client};
use tracing::debug;

/// Time between two looks at etcd's revision.
const LOOK: Duration = Duration::from_secs(10);
/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// No cluster makes so many writes between two looks. A restore that raises the revision, so that watches end
/// (`etcdutl snapshot restore --bump-revision`), adds more: etcd's documentation recommends a billion.
const MOST_WRITES: u64 = 100_000_000;

/// The revisions of etcd that show that it was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    before: u64,
    after: u64,
}

impl Restored {
    fn between(before: u64, after: u64) -> Option<Self> {
        let writes = after.checked_sub(before);
        let is_restored = writes.is_none_or(|writes| writes > MOST_WRITES);
        is_restored.then_some(Self { before, after })
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after } = self;
        write!(
            out,
            "etcd was restored (its revision was {before}, and is {after} now)"
        )
    }
}

/// Completes when etcd was restored since the call. A process that holds objects then has to read everything anew, and
/// to forget what it knows of later versions: it ends, and is started again.
///
/// It lists one namespace each time, so it needs the right to list namespaces.
pub async fn restored(client: &Client) -> Restored {
    let mut last = None;
    loop {
        match revision(client).await {
            Ok(after) => {
                if let Some(restored) = last.and_then(|last| Restored::between(last, after)) {
                    return restored;
                }
                last = Some(after);
            }
            Err(error) => debug!(error, "cannot read etcd's revision; trying again"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The revision of etcd at this moment. Without a version in the request, the API server asks etcd for it.
async fn revision(client: &Client) -> Result<u64, String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let one = ListParams::default().limit(1);
    let list = tokio::time::timeout(PATIENCE, namespaces.list_metadata(&one)).await;
    let list = list.map_err(|_| "no answer".to_owned())?;
    let list = list.map_err(|error| error.to_string())?;
    let version = list.metadata.resource_version.unwrap_or_default();
    version
        .parse()
        .map_err(|_| format!("{version:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use futures::future::ready;
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;

    /// A client of a server whose lists have these versions, one after the other; `None` is a failure.
    fn client(versions: &[Option<&'static str>]) -> Client {
        let versions = Mutex::new(VecDeque::from(versions.to_vec()));
        let service = tower::service_fn(move |request: Request<Body>| {
            assert_eq!(request.uri().path(), "/api/v1/namespaces");
            assert!(!request.uri().query().unwrap().contains("resourceVersion"));
            let next = versions
                .lock()
                .pop_front()
                .expect("asked again after the end");
            let mut response = Response::new(Body::empty());
            match next {
                None => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
                Some(version) => {
                    let list = serde_json::json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                        "metadata": {"resourceVersion": version}, "items": [],
                    });
                    *response.body_mut() = list.to_string().into_bytes().into();
                }
            }
            ready(Ok::<_, Infallible>(response))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_goes_back_shows_a_restore() {
        let versions = [Some("100"), Some("100"), None, Some("1000"), Some("999")];
        let restored = restored(&client(&versions)).await;
        assert_eq!(
            restored.to_string(),
            "etcd was restored (its revision was 1000, and is 999 now)"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_was_raised_shows_a_restore() {
        let versions = [Some("100"), Some("100000100"), Some("1000000000")];
        let restored = restored(&client(&versions)).await;
        assert_eq!(
            (restored.before, restored.after),
            (100_000_100, 1_000_000_000)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_not_a_number_shows_nothing() {
        let versions = [Some("7"), Some("opaque"), Some("8"), Some("3")];
        let restored = restored(&client(&versions)).await;
        assert_eq!((restored.before, restored.after), (8, 3));
    }
}
