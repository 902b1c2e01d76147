//! An API server in memory, as far as discovery, lists and watches go, that can be made to misbehave.
#![allow(unreachable_pub, reason = "a module of one test binary")]

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use futures::channel::mpsc;
use futures::{StreamExt, future};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// In the place of a failure: the right answer.
pub const PASS: u16 = 0;

type Answer = UnsyncBoxBody<bytes::Bytes, Infallible>;

/// A server; clones are the same one.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Group and version (`v1` for core) to the kinds and plurals served there.
    served: BTreeMap<String, Vec<(String, String)>>,
    /// Plural to what is there.
    objects: BTreeMap<String, BTreeMap<(String, String), Value>>,
    /// Every event there ever was: version, plural, event.
    log: Vec<(u64, String, Value)>,
    version: u64,
    /// Watches from an older version are told that it is gone.
    oldest: u64,
    watches: Vec<(String, mpsc::Sender<Value>)>,
    /// Answers to the next lists and watches in the place of the right ones.
    failures: VecDeque<u16>,
    requests: Vec<String>,
}

impl Server {
    pub fn new() -> Self {
        let server = Self::default();
        server.serve("v1", "Secret", "secrets");
        server.serve("gateway.networking.k8s.io/v1", "Gateway", "gateways");
        server
    }

    pub fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let response = server.answer(&request);
            future::ready(Ok::<_, Infallible>(response))
        });
        kube::Client::new(service, "default")
    }

    pub fn serve(&self, group_version: &str, kind: &str, plural: &str) {
        let mut state = self.0.lock();
        let kinds = state.served.entry(group_version.to_owned()).or_default();
        kinds.push((kind.to_owned(), plural.to_owned()));
    }

    /// As when a CRD is deleted: its objects go, its watches end, its version is not known any more.
    pub fn uninstall(&self, group_version: &str, plural: &str) {
        let mut state = self.0.lock();
        state.served.remove(group_version);
        state.objects.remove(plural);
        state.watches.retain(|(of, _)| of != plural);
    }

    pub fn put(&self, plural: &str, namespace: &str, name: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version;
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let key = (namespace.to_owned(), name.to_owned());
        let objects = state.objects.entry(plural.to_owned()).or_default();
        let new = objects.insert(key, object.clone()).is_none();
        let event = json!({"type": if new { "ADDED" } else { "MODIFIED" }, "object": object});
        state.publish(plural, event);
    }

    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version;
        let key = (namespace.to_owned(), name.to_owned());
        let objects = state.objects.entry(plural.to_owned()).or_default();
        let mut object = objects.remove(&key).expect("it is there");
        object["metadata"]["resourceVersion"] = version.to_string().into();
        state.publish(plural, json!({"type": "DELETED", "object": object}));
    }

    /// Ends every watch.
    pub fn hang_up(&self) {
        self.0.lock().watches.clear();
    }

    /// Forgets the past: a watch can begin from now on only.
    pub fn compact(&self) {
        let mut state = self.0.lock();
        state.version += 1;
        state.oldest = state.version;
    }

    /// The next lists and watches fail with these HTTP statuses.
    pub fn fail(&self, statuses: impl IntoIterator<Item = u16>) {
        self.0.lock().failures.extend(statuses);
    }

    /// Sends something to the watches of a plural that is no event.
    pub fn send(&self, plural: &str, event: &Value) {
        self.0.lock().publish(plural, event.clone());
    }

    /// Path and query of every request so far.
    pub fn requests(&self) -> Vec<String> {
        self.0.lock().requests.clone()
    }

    fn answer(&self, request: &Request<Body>) -> Response<Answer> {
        let mut state = self.0.lock();
        state.requests.push(request.uri().to_string());
        let path: Vec<&str> = request.uri().path().split('/').skip(1).collect();
        let (group_version, plural) = match path[..] {
            ["api", version] => (version.to_owned(), None),
            ["api", version, plural] => (version.to_owned(), Some(plural)),
            ["apis", group, version] => (format!("{group}/{version}"), None),
            ["apis", group, version, plural] => (format!("{group}/{version}"), Some(plural)),
            _ => return status(400),
        };
        let Some(kinds) = state.served.get(&group_version).cloned() else {
            return status(404);
        };
        let Some(plural) = plural else {
            return document(&discovery(&group_version, &kinds));
        };
        if !kinds.iter().any(|(_, served)| served == plural) {
            return status(404);
        }
        if let Some(code) = state.failures.pop_front().filter(|code| *code != PASS) {
            return status(code);
        }
        let query = request.uri().query().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> =
            query.split('&').filter_map(|p| p.split_once('=')).collect();
        if parameters.contains_key("watch") {
            state.watch(plural, &parameters)
        } else {
            state.list(plural, &parameters)
        }
    }
}

impl State {
    fn publish(&mut self, plural: &str, event: Value) {
        let version = self.version;
        self.watches
            .retain_mut(|(of, sender)| of != plural || sender.try_send(event.clone()).is_ok());
        self.log.push((version, plural.to_owned(), event));
    }

    fn watch(&mut self, plural: &str, parameters: &BTreeMap<&str, &str>) -> Response<Answer> {
        let from: u64 = parameters["resourceVersion"].parse().expect("a number");
        let (mut sender, receiver) = mpsc::channel(10_000);
        if from < self.oldest {
            let gone = json!({"kind": "Status", "status": "Failure", "code": 410,
                "reason": "Expired", "message": "too old resource version"});
            let event = json!({"type": "ERROR", "object": gone});
            sender.try_send(event).expect("room");
        } else {
            for (version, of, event) in &self.log {
                if of == plural && *version > from {
                    sender.try_send(event.clone()).expect("room");
                }
            }
            self.watches.push((plural.to_owned(), sender));
        }
        let lines = receiver.map(|event| {
            let line = format!("{event}\n");
            Ok::<_, Infallible>(frame(line))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    fn list(&self, plural: &str, parameters: &BTreeMap<&str, &str>) -> Response<Answer> {
        let limit: usize = parameters["limit"].parse().expect("a number");
        let start: usize = parameters
            .get("continue")
            .map_or(0, |token| token.parse().expect("a number"));
        let objects = self.objects.get(plural);
        let all: Vec<&Value> = objects.into_iter().flat_map(BTreeMap::values).collect();
        let end = (start + limit).min(all.len());
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if end < all.len() {
            metadata["continue"] = end.to_string().into();
        }
        document(&json!({
            "kind": "List", "apiVersion": "v1", "metadata": metadata,
            "items": all[start..end],
        }))
    }
}

fn frame(line: String) -> hyper::body::Frame<bytes::Bytes> {
    hyper::body::Frame::data(line.into())
}

fn discovery(group_version: &str, kinds: &[(String, String)]) -> Value {
    let resources: Vec<Value> = kinds
        .iter()
        .flat_map(|(kind, plural)| {
            // The subresource comes first, to be stumbled over.
            [format!("{plural}/status"), plural.clone()].map(|name| {
                json!({"name": name, "singularName": "", "namespaced": true, "kind": kind,
                    "verbs": ["list", "watch"]})
            })
        })
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
        "resources": resources})
}

fn document(value: &Value) -> Response<Answer> {
    let text = value.to_string().into_bytes();
    Response::new(Full::from(text).boxed_unsync())
}

fn status(code: u16) -> Response<Answer> {
    let mut response = document(
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": "Made", "message": "made to fail"}),
    );
    *response.status_mut() = code.try_into().expect("a status");
    response
}
