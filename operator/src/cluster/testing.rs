//! Tests of tasks: a client whose requests a function answers instead of an API server, and a count of how often a task
//! runs.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// How often a task may run in a whole test. More often means that it never rests.
const MOST_POLLS: usize = 1000;

/// The body of an answer.
pub(super) enum Answer {
    /// A text, until it is taken.
    Text(Option<Bytes>),
    /// A watch in which nothing happens.
    Silence,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Silence => Poll::Pending,
        }
    }
}

/// Returns a client whose requests this function answers.
pub(super) fn client(
    answer: impl Fn(&Request<Body>) -> Response<Answer> + Send + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let response = answer(&request);
        ready(Ok::<_, Infallible>(response))
    });
    kube::Client::new(service, "default")
}

/// Whether a request begins a watch.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|part| part.starts_with("watch="))
}

/// Returns an object as the answer.
pub(super) fn object(object: &Value) -> Response<Answer> {
    Response::new(Answer::Text(Some(object.to_string().into())))
}

/// Returns an answer that goes on for ever and says nothing.
pub(super) fn silence() -> Response<Answer> {
    Response::new(Answer::Silence)
}

/// Returns a failure as the answer.
pub(super) fn failure(status: StatusCode) -> Response<Answer> {
    // The reasons of an API server are these words without spaces.
    let reason = status
        .canonical_reason()
        .unwrap_or_default()
        .replace(' ', "");
    let mut response = object(&json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "reason": reason, "code": status.as_u16(),
    }));
    *response.status_mut() = status;
    response
}

/// Counts how often a task runs.
#[derive(Clone, Default)]
pub(super) struct Polls(Arc<AtomicUsize>);

impl Polls {
    /// Starts a task. It panics if it never rests: time that is paused would not pass.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let (polls, mut task) = (self.clone(), Box::pin(task));
        tokio::spawn(poll_fn(move |context| {
            let before = polls.0.fetch_add(1, Ordering::Relaxed);
            assert!(before < MOST_POLLS, "the task never rests");
            task.as_mut().poll(context)
        }))
    }

    /// Returns how often the task has run.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
