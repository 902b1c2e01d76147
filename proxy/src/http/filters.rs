//! Owns the application of a rule's filters to a request, and of what they say about its response.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, StatusCode};

use super::authorization::{Approval, FieldChange};
use super::local_reply::LocalReply;
use crate::http_route::cors::{self, Cors, CorsDecision};
use crate::http_route::external_auth::ExternalAuth;
use crate::http_route::filter::{Asked, Filter, Scheme};
use crate::http_route::header_edit::HeaderEdit;
use crate::http_route::mirror::Mirror;
use crate::http_route::table::Found;
use crate::metrics::Metrics;

/// A request's head as filters need it.
pub(super) struct Head<'a> {
    pub(super) host: Option<&'a str>,
    /// The scheme that the client used.
    pub(super) scheme: Scheme,
    /// The port to which the client connected.
    pub(super) port: u16,
    pub(super) found: &'a Found,
    pub(super) metrics: &'a Metrics,
    /// The permission of an authorization server, if one has given it.
    pub(super) approval: Option<&'a Approval>,
}

/// Why a request does not go on to its backend.
pub(super) enum Stop {
    /// A filter answers it.
    Reply(LocalReply),
    /// It needs the permission of an authorization server first.
    Ask(Arc<ExternalAuth>),
}

impl From<Stop> for LocalReply {
    /// The filters of backends never ask, so the question of one has no answer.
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Reply(reply) => reply,
            Stop::Ask(_) => Self::auth_unavailable(),
        }
    }
}

impl From<LocalReply> for Stop {
    fn from(reply: LocalReply) -> Self {
        Self::Reply(reply)
    }
}

/// How filters change the target of a request.
pub(super) struct Changed {
    pub(super) authority: Option<HeaderValue>,
    /// `None` keeps the path of the request.
    pub(super) path: Option<PathAndQuery>,
    /// Fields that filters set or remove. `None` means that nothing needs the list.
    pub(super) edited: Option<Vec<HeaderName>>,
    /// Backends that may get a copy.
    pub(super) mirrors: Vec<Mirror>,
}

/// How the head of a response has to be changed.
#[derive(Debug, Default)]
pub(super) struct Edits {
    /// Whether a CORS filter speaks for the backend.
    cors: bool,
    all: Vec<HeaderEdit>,
    /// The changes that an authorization server asks for.
    authorized: Vec<FieldChange>,
}

impl Edits {
    /// Adds a change, if there is one.
    pub(super) fn extend(&mut self, edit: Option<HeaderEdit>) {
        self.all.extend(edit);
    }

    /// Forgets all changes.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        if self.cors {
            cors::take_out(headers);
        }
        for edit in &self.all {
            edit.apply(headers);
        }
        FieldChange::apply_all(&self.authorized, headers);
    }
}

impl Head<'_> {
    /// Applies a CORS filter.
    ///
    /// # Errors
    /// The response, if this is a preflight request.
    fn judge_origin<B>(
        &self,
        cors: &Cors,
        filters: &[Filter],
        request: &Request<B>,
        edits: &mut Edits,
    ) -> Result<(), LocalReply> {
        let (verdict, edit) = cors.judge(request.method(), request.headers());
        edits.cors = true;
        edits.all.push(edit);
        // The rule always fails, so preflight requests get the same error.
        if filters.iter().any(|of| matches!(of, Filter::Fail(_))) {
            return Ok(());
        }
        match verdict {
            CorsDecision::Goes => Ok(()),
            CorsDecision::Preflight => {
                self.metrics.preflight("Allowed");
                Err(LocalReply::new(StatusCode::NO_CONTENT, "CorsPreflight", ""))
            }
            CorsDecision::Refused => {
                self.metrics.preflight("Refused");
                let text = "pages of this origin may not ask here\n";
                Err(LocalReply::new(StatusCode::FORBIDDEN, "CorsRefused", text))
            }
        }
    }

    /// Applies filters to the request, and collects in `edits` how the response has to be changed.
    ///
    /// # Errors
    /// The response, if a filter answers the request, or the filter that has to ask first.
    pub(super) fn apply<B>(
        &self,
        filters: &[Filter],
        request: &mut Request<B>,
        to: &mut Changed,
        edits: &mut Edits,
    ) -> Result<(), Stop> {
        // CORS filters come before all others, because a browser does not follow a redirect in response to a preflight
        // request.
        for filter in filters {
            if let Filter::Cors(cors) = filter {
                self.judge_origin(cors, filters, request, edits)?;
            }
        }
        // A response that a filter makes is changed as well, wherever these filters are in the list.
        for filter in filters {
            if let Filter::ResponseHeaders(edit) = filter {
                edits.all.push(edit.clone());
            }
        }
        for filter in filters {
            match filter {
                Filter::ResponseHeaders(_) | Filter::Cors(_) => {}
                Filter::Mirror(mirror) => to.mirrors.push(*mirror),
                Filter::RequestHeaders(edit) => {
                    edit.apply(request.headers_mut());
                    if let Some(edited) = &mut to.edited {
                        edited.extend(edit.replaced().cloned());
                    }
                }
                Filter::Rewrite(rewrite) => {
                    if let Some(hostname) = &rewrite.hostname {
                        to.authority = Some(hostname.clone());
                    }
                    if let Some(edit) = &rewrite.path {
                        let uri = request.uri();
                        let path = edit.apply(uri.path(), self.found.prefix());
                        let path = match uri.query() {
                            Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
                            None => PathAndQuery::try_from(&*path),
                        };
                        to.path = Some(path.map_err(|_| LocalReply::internal("RewriteFailed"))?);
                    }
                }
                Filter::Redirect(redirect) => {
                    let location = redirect.location(&Asked {
                        scheme: self.scheme,
                        host: self.host,
                        port: self.port,
                        path: request.uri().path(),
                        query: request.uri().query(),
                        prefix: self.found.prefix(),
                    });
                    let location = HeaderValue::try_from(location);
                    let location = location.map_err(|_| LocalReply::internal("RedirectFailed"))?;
                    return Err(Stop::Reply(LocalReply {
                        location: Some(location),
                        ..LocalReply::new(redirect.status, "Redirected", "")
                    }));
                }
                Filter::Auth(auth) => {
                    let approval = self.approval.filter(|approval| approval.is_of(auth));
                    let approval = approval.ok_or_else(|| Stop::Ask(Arc::clone(auth)))?;
                    let changes = approval.of_request();
                    FieldChange::apply_all(changes, request.headers_mut());
                    if let Some(edited) = &mut to.edited {
                        edited.extend(changes.iter().map(|change| change.name().clone()));
                    }
                    edits.authorized.extend_from_slice(approval.of_response());
                }
                Filter::Fail(status) => {
                    let text = "the route for this request cannot be followed\n";
                    return Err(Stop::Reply(LocalReply::new(*status, "Failed", text)));
                }
            }
        }
        Ok(())
    }
}
