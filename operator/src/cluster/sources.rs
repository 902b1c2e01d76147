//! Reads the Secrets and ConfigMaps that have come into use, in turns of the namespaces that wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use vestibule_crds::is_subdomain;
use vestibule_crds::watch::read_source;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;

use crate::claims::fair_queue::FairQueue;

/// A Secret or `ConfigMap` and the result of reading it: `None` if it does not exist, or why the read failed.
pub(super) type Read = (ObjectKey, Result<Option<Object>, ReadError>);

/// Why a Secret or `ConfigMap` could not be read, as a text for people. It contains nothing of the content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The API server answered something else.
    #[error("{0}")]
    Refused(String),
    /// The API server did not answer.
    #[error("{0}")]
    NoAnswer(String),
}

/// Largest number of Secrets and ConfigMaps that are being read at the same time.
pub(super) const READS: usize = 8;
/// Largest number of them that one namespace waits for. So there is room for others even if the API server answers
/// slowly.
const READS_OF_ONE: usize = READS / 2;

/// The sources that have to be read, and those that are being read. The namespaces of the objects that use them take
/// turns, so a namespace with a thousand references delays only itself. A source waits in the queue of each namespace
/// that uses it, and is read once.
#[derive(Debug)]
pub(super) struct ReadQueue {
    queue: FairQueue<ObjectKey>,
    /// Where each source waits, and since when.
    waiting: BTreeMap<ObjectKey, BTreeMap<Arc<str>, Instant>>,
    reading: BTreeMap<ObjectKey, Reading>,
    /// The sources that were asked for last without an answer.
    unanswered: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
struct Reading {
    /// The namespace whose turn it was.
    namespace: Arc<str>,
    /// Whether the watch has shown the source in the meantime. Then the result may be older.
    overtaken: bool,
}

impl ReadQueue {
    pub(super) fn new() -> Self {
        Self {
            queue: FairQueue::new(READS_OF_ONE),
            waiting: BTreeMap::new(),
            reading: BTreeMap::new(),
            unanswered: BTreeSet::new(),
        }
    }

    /// Has a source read for a namespace, unless it is being read.
    pub(super) fn insert(&mut self, namespace: &Arc<str>, source: &ObjectKey, now: Instant) {
        if self.reading.contains_key(source) {
            return;
        }
        let waiting = self.waiting.entry(source.clone()).or_default();
        if !waiting.contains_key(namespace) {
            waiting.insert(namespace.clone(), now);
            self.queue.insert(now, namespace, source);
        }
    }

    /// Removes a source that need not be read any more.
    pub(super) fn remove(&mut self, source: &ObjectKey) {
        self.unanswered.remove(source);
        self.leave(source);
    }

    fn leave(&mut self, source: &ObjectKey) {
        for (namespace, since) in self.waiting.remove(source).unwrap_or_default() {
            self.queue.remove(since, &namespace, source);
        }
    }

    /// Returns up to `count` sources to read now.
    pub(super) fn begin(&mut self, count: usize, now: Instant) -> Vec<ObjectKey> {
        let mut sources = Vec::new();
        while sources.len() < count
            && let Some((namespace, source)) = self.queue.next(now)
        {
            self.leave(&source);
            self.queue.begun(&namespace);
            let reading = Reading {
                namespace,
                overtaken: false,
            };
            self.reading.insert(source.clone(), reading);
            sources.push(source);
        }
        sources
    }

    /// Notes that the watch has shown a source.
    pub(super) fn overtake(&mut self, source: &ObjectKey) {
        if let Some(reading) = self.reading.get_mut(source) {
            reading.overtaken = true;
        }
    }

    /// Notes that a read ended, with or without an answer. Returns whether its result counts.
    pub(super) fn end(&mut self, source: &ObjectKey, is_answered: bool) -> bool {
        let Some(reading) = self.reading.remove(source) else {
            return false;
        };
        if is_answered || reading.overtaken {
            self.unanswered.remove(source);
        } else {
            self.unanswered.insert(source.clone());
        }
        self.queue.ended(&reading.namespace);
        !reading.overtaken
    }

    /// Whether the API server was asked for a source, and has not answered.
    pub(super) fn is_unanswered(&self, source: &ObjectKey) -> bool {
        self.reading.contains_key(source) || self.unanswered.contains(source)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty()
    }
}

/// Longest wait for a response of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the Secret or ConfigMap as the watch shows it, if it exists.
///
/// The API does not restrict the names in references, and a request puts the name into its path. So a text that no object
/// can have as its name is not asked for: it could lead elsewhere, or fail again and again.
pub(super) async fn fetch(client: &Client, key: &ObjectKey) -> Result<Option<Object>, ReadError> {
    if ![&key.name.namespace, &key.name.name]
        .into_iter()
        .all(|name| is_subdomain(name))
    {
        return Ok(None);
    }
    let answer = tokio::time::timeout(PATIENCE, read_source(client, key)).await;
    match answer {
        Ok(Ok(source)) => Ok(source),
        Ok(Err(kube::Error::Api(status))) => Err(ReadError::Refused(status.message)),
        Ok(Err(kube::Error::BuildRequest(error))) => Err(ReadError::Refused(error.to_string())),
        Ok(Err(kube::Error::SerdeError(_))) => {
            Err(ReadError::Refused("the answer does not read".into()))
        }
        Ok(Err(error)) => Err(ReadError::NoAnswer(error.to_string())),
        Err(_) => Err(ReadError::NoAnswer("no answer from the API server".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::StreamExt;
    use http::StatusCode;
    use serde_json::{Value, json};
    use vestibule_crds::watch::{Event, Scope, Watched, watch};
    use vestibule_model::key::Kind;

    use super::*;
    use crate::cluster::testing;

    /// Types of Secrets. Each has a Secret in the API server of these tests.
    const TYPES: [&str; 5] = [
        "kubernetes.io/tls",
        "Opaque",
        "kubernetes.io/service-account-token",
        "helm.sh/release.v1",
        "bootstrap.kubernetes.io/token",
    ];

    fn name(secret_type: &str) -> String {
        secret_type.to_lowercase().replace('/', "-")
    }

    fn served(secret_type: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "aaa", "name": name(secret_type), "uid": "u", "resourceVersion": "7",
            },
            "type": secret_type,
            "data": {"ca.crt": "Y2VydA==", "tls.crt": "c2VjcmV0", "tls.key": "c2VjcmV0"},
        })
    }

    /// Returns a client of an API server that lists the types which the field selector does not name.
    fn client() -> Client {
        testing::client(|request| match request.uri().path() {
            "/api/v1" => testing::object(&json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
                "resources": [{
                    "name": "secrets", "singularName": "secret", "namespaced": true,
                    "kind": "Secret", "verbs": ["get", "list", "watch"],
                }],
            })),
            "/api/v1/secrets" if testing::is_watch(request) => testing::silence(),
            "/api/v1/secrets" => {
                let query = request.uri().query().unwrap_or_default();
                let selected = |of: &&str| !query.contains(&of.replace('/', "%2F"));
                let items: Vec<Value> = TYPES.into_iter().filter(selected).map(served).collect();
                testing::object(&json!({
                    "kind": "SecretList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "7"}, "items": items,
                }))
            }
            path => {
                let asked = |of: &&str| path.ends_with(&format!("/aaa/secrets/{}", name(of)));
                match TYPES.into_iter().find(asked) {
                    Some(secret_type) => testing::object(&served(secret_type)),
                    None => testing::failure(StatusCode::NOT_FOUND),
                }
            }
        })
    }

    #[tokio::test]
    async fn a_secret_comes_to_the_same_by_a_read_as_by_the_watch() {
        let client = client();
        let mut events = pin!(watch(&client, &Scope::new([Kind::Secret])));
        let mut shown = BTreeMap::new();
        loop {
            match events.next().await.expect("it goes on") {
                Event::Put(watched) => {
                    let Watched { key, object, .. } = *watched;
                    shown.insert(key, object);
                }
                Event::Synced(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(shown.len(), 2, "{shown:?}");
        for secret_type in TYPES {
            let key = secret("aaa", &name(secret_type));
            let read = fetch(&client, &key).await.expect("an answer");
            assert_eq!(read.as_ref(), shown.get(&key), "{secret_type}");
        }
        let absent = fetch(&client, &secret("aaa", "absent")).await;
        assert_eq!(absent, Ok(None));
    }

    #[tokio::test]
    async fn a_text_that_is_no_name_does_not_exist_and_is_not_asked_for() {
        let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other(
                request.uri().path().to_owned(),
            ))
        });
        let client = Client::new(service, "default");
        for name in [
            "a b",
            "..",
            "../../zzz/secrets/tls",
            "?watch=true",
            "tls#",
            "",
        ] {
            let answer = fetch(&client, &secret("aaa", name)).await;
            assert_eq!(answer, Ok(None), "{name}");
        }
        let asked = fetch(&client, &secret("aaa", "tls.v1")).await;
        let error = asked.expect_err("no answer");
        assert!(
            error.to_string().contains("/namespaces/aaa/secrets/tls.v1"),
            "{error}"
        );
    }

    fn secret(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(Kind::Secret, namespace, name)
    }

    #[test]
    fn namespaces_take_turns_and_none_takes_all_reads() {
        let now = Instant::now();
        let mut queue = ReadQueue::new();
        let (first, second): (Arc<str>, Arc<str>) = ("aaa".into(), "zzz".into());
        for n in 0..640 {
            queue.insert(&first, &secret("aaa", &format!("s{n:03}")), now);
        }
        let begun = queue.begin(READS, now);
        assert_eq!(begun.len(), READS_OF_ONE, "there is room for others");
        queue.insert(&second, &secret("zzz", "good"), now);
        assert_eq!(queue.begin(1, now), [secret("zzz", "good")]);
        // Each read that ends makes room for one more of the same namespace.
        assert!(queue.begin(READS, now).is_empty());
        assert!(queue.end(&begun[0], true));
        assert_eq!(queue.begin(READS, now).len(), 1);
        // If both wait, they take turns.
        for source in &begun[1..] {
            assert!(queue.end(source, true));
        }
        assert!(queue.end(&secret("zzz", "good"), true));
        for name in ["t1", "t2"] {
            queue.insert(&second, &secret("zzz", name), now);
        }
        let turns = queue.begin(4, now);
        let of = |namespace: &str| {
            let some = turns.iter().filter(|key| &*key.name.namespace == namespace);
            some.count()
        };
        assert_eq!((of("aaa"), of("zzz")), (2, 2));
    }

    #[test]
    fn a_source_that_another_namespace_queued_last_comes_in_the_turn_of_each_that_uses_it() {
        let now = Instant::now();
        let mut queue = ReadQueue::new();
        let (flood, owner): (Arc<str>, Arc<str>) = ("aaa".into(), "zzz".into());
        let shared = secret("zzz", "shared");
        for n in 0..100 {
            queue.insert(&flood, &secret("aaa", &format!("s{n:03}")), now);
        }
        queue.insert(&flood, &shared, now);
        queue.insert(&owner, &shared, now);
        assert!(queue.begin(2, now).contains(&shared));
        // It is read once, also if it is wanted meanwhile.
        queue.insert(&owner, &shared, now);
        assert!(queue.begin(1, now).iter().all(|source| *source != shared));
        queue.overtake(&shared);
        assert!(!queue.end(&shared, true), "the watch was faster");
        assert!(!queue.end(&shared, true));
        queue.insert(&owner, &shared, now);
        queue.remove(&shared);
        assert!(queue.begin(1, now).iter().all(|source| *source != shared));
    }
}
