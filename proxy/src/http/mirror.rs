//! Owns copies of requests for mirrors. It bounds how many there are at a time, and no request ever waits for a copy.
//!
//! A copy is sent when the request's body is whole, by a task of its own and to one endpoint only. Its result has no
//! effect on the request: the response is read and dropped.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::header::{EXPECT, HeaderValue};
use hyper::http::uri::PathAndQuery;

use super::body::{TrailerFilter, Upload, UploadState};
use super::download::Download;
use super::exchange::{Attempts, Exchange, Trace};
use super::kept::{KeptBody, LIMIT, Waiter, Whole};
use crate::backend::Backend;
use crate::deadline::within;
use crate::http_route::HttpRoute;
use crate::plane::DataPlane;
use crate::quota::TenantQuota;
use crate::shares::Shares;
use crate::table::{Attachments, RouteId, RouteKind, Snapshot};
use crate::upstream::Credentials;

/// Most copies that a worker has at a time, from the arrival of their request to the end of their response.
const IN_ALL: usize = 128;
/// How long a copy may take, from connecting to the end of its response.
const DEADLINE: Duration = Duration::from_secs(10);

/// Outcomes of copies, which are labels of their metric.
const ANSWERED: &str = "Answered";
const FAILED: &str = "Failed";
const TIMEOUT: &str = "Timeout";
const NO_LONGER_SERVED: &str = "NoLongerServed";

thread_local! {
    static PLACES: RefCell<Shares> = RefCell::new(Shares::new(IN_ALL));
}

/// One of the places for copies.
struct CopyPlace(Arc<str>);

impl CopyPlace {
    fn take(namespace: &Arc<str>) -> Option<Self> {
        let taken = PLACES.try_with(|places| places.borrow_mut().take(namespace, 1));
        taken.unwrap_or(false).then(|| Self(Arc::clone(namespace)))
    }
}

impl Drop for CopyPlace {
    fn drop(&mut self) {
        let _ = PLACES.try_with(|places| places.borrow_mut().give_back(&self.0, 1));
    }
}

/// Everything that a copy needs.
pub(super) struct Parts {
    pub(super) plane: Arc<DataPlane>,
    pub(super) backend: Arc<Backend>,
    pub(super) basis: MirrorBasis,
    pub(super) credentials: Credentials,
    pub(super) authority: Option<HeaderValue>,
    pub(super) path: PathAndQuery,
    pub(super) head: Request<()>,
    pub(super) filter_trailers: TrailerFilter,
    pub(super) state: Arc<UploadState>,
    /// Whether it is a gRPC call. Then it is sent by HTTP/2.
    pub(super) grpc: bool,
    /// The tenant for whom the request is, if that is known.
    pub(super) account: Option<Arc<TenantQuota>>,
}

/// The version of the route that asks for a copy. The client decides when the body of its request is whole, and until then the configuration may
/// have changed.
pub(super) struct MirrorBasis {
    /// The route with the mirror.
    route: RouteId,
    attachments: Arc<Attachments>,
}

impl MirrorBasis {
    /// `None` if the route is not in force any more.
    pub(super) fn of(route: &HttpRoute, snapshot: &Snapshot) -> Option<Self> {
        let id = (RouteKind::of_http(route.grpc), Arc::clone(&route.key));
        let attachments = Arc::clone(snapshot.attachments(&id)?);
        Some(Self {
            route: id,
            attachments,
        })
    }

    /// Whether neither the route nor its backend has changed since the request was selected. Which change it was makes
    /// no difference, because a copy is not owed to anybody.
    fn is_in_force(&self, backend: &Arc<Backend>, snapshot: &Snapshot) -> bool {
        let attachments = snapshot.attachments(&self.route);
        let version = snapshot.backend(backend.slot());
        attachments.is_some_and(|now| Arc::ptr_eq(now, &self.attachments))
            && version.is_some_and(|now| Arc::ptr_eq(now, backend))
    }
}

/// A copy that waits for the body of its request.
pub(super) struct Copy {
    parts: Parts,
    place: CopyPlace,
}

impl Copy {
    /// A copy of a request for a route in `namespace`; `None` if the namespace has as many copies as it may.
    pub(super) fn new(parts: Parts, namespace: &Arc<str>) -> Option<Self> {
        let Some(place) = CopyPlace::take(namespace) else {
            parts.plane.metrics.mirrored(LIMIT);
            return None;
        };
        Some(Self { parts, place })
    }
}

impl Waiter for Copy {
    fn give_up(self: Box<Self>, why: &'static str) {
        self.parts.plane.metrics.mirrored(why);
    }

    fn whole(self: Box<Self>, body: Whole) {
        let Parts {
            plane,
            basis,
            backend,
            ..
        } = &self.parts;
        if basis.is_in_force(backend, &plane.snapshot.load()) {
            self.send(Some(body));
        } else {
            self.give_up(NO_LONGER_SERVED);
        }
    }
}

impl Copy {
    /// Sends the copy in a task of its own, and returns at once.
    pub(super) fn send(self, body: Option<Whole>) {
        let Self { mut parts, place } = self;
        parts.head.headers_mut().remove(EXPECT);
        tokio::spawn(async move {
            let plane = Arc::clone(&parts.plane);
            let result = within(DEADLINE, exchange(parts, body)).await;
            plane.metrics.mirrored(result.unwrap_or(TIMEOUT));
            drop(place);
        });
    }
}

async fn exchange(parts: Parts, body: Option<Whole>) -> &'static str {
    let plane = &*parts.plane;
    let mut upload = match body {
        None => Upload::none(&parts.state),
        Some(whole) => match KeptBody::whole(whole).again() {
            Some(reader) => Upload::kept(reader, &parts.state),
            None => return FAILED,
        },
    };
    upload.filter_trailers(parts.filter_trailers);
    let exchange = Exchange {
        plane,
        credentials: parts.credentials,
        backend: parts.backend,
        authority: parts.authority,
        path: parts.path,
        upgrade: false,
        grpc: parts.grpc,
        preferred: None,
        account: parts.account,
    };
    let request = parts.head.map(|()| upload);
    let mut attempts = Attempts::once(plane);
    let mut trace = Trace::default();
    match exchange.attempt(request, &mut attempts, &mut trace).await {
        Ok((response, lease)) => {
            let (_, body) = response.into_parts();
            Download::backend(body, lease).read_away().await;
            ANSWERED
        }
        Err(_) => FAILED,
    }
}
