//! Owns the question to an authorization server whether a request may pass (the filter `ExternalAuth`, GEP-1494).
//!
//! A request stops at such a filter until the server has allowed it. Then the request begins anew: rule and filters are
//! decided again, by the configuration that is in force by then, and with the [`Approval`] the filter lets it pass. An
//! approval is for the one version of the filter that asked, so a request asks again if its route has changed meanwhile.
//! A filter without its approval lets nothing pass, so no failure on the way can open it.

mod changes;
mod envoy;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::http::response;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Version};
use prost::Message;

pub(super) use self::changes::FieldChange;
use self::changes::InvalidField;
use self::envoy::CheckResponse;
use super::activity::Activity;
use super::authority::Target;
use super::body::{Upload, UploadError, UploadState};
use super::download::{BackendBody, Download};
use super::exchange::{Answered, Attempts, Ended, Exchange, ExchangeFailure, Trace};
use super::forward::{cleaned, for_client, has_no_content, too_late};
use super::head_size::FIELDS;
use super::headers::{self, ForwardedInfo, Passed};
use super::kept::{KeptBody, Room, Whole};
use super::local_reply::LocalReply;
use super::pool::Lease;
use super::record::RequestRecord;
use super::shared::Shared;
use super::timeouts::Allowed;
use crate::deadline::within;
use crate::grpc::Status;
use crate::http_route::external_auth::{AuthProtocol, ExternalAuth};
use crate::http_route::session;
use crate::http_route::table::Found;
use crate::listener::Listener;
use crate::quota::TenantQuota;
use crate::table::Snapshot;

/// How long a server may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Most changes in an answer in gRPC, which is as many as an answer in HTTP can have. Each costs time that neighbours wait.
const MOST_CHANGES: usize = FIELDS;
/// Most bytes of an answer in gRPC, and the part of it in front of the message.
const MOST_BYTES: usize = 64 * 1024;
const PREFIX: usize = 5;
/// The beginning of fields that describe the body of their own message.
const CONTENT: &str = "content-";

/// Outcomes, which are labels of their metric and words of the log.
const ALLOWED: &str = "Allowed";
const DENIED: &str = "Denied";
pub(super) const FAILED: &str = "Failed";

/// The reason in the log of a request that a server has refused.
pub(super) const AUTH_DENIED: &str = "AuthDenied";

/// The permission of a server for one request.
pub(super) struct Approval {
    auth: Arc<ExternalAuth>,
    request: Vec<FieldChange>,
    response: Vec<FieldChange>,
}

impl Approval {
    /// Whether it is for this filter, in this version.
    pub(super) fn is_of(&self, auth: &Arc<ExternalAuth>) -> bool {
        Arc::ptr_eq(&self.auth, auth)
    }

    /// The changes of the request on its way to the backend.
    pub(super) fn of_request(&self) -> &[FieldChange] {
        &self.request
    }

    /// The changes of the response.
    pub(super) fn of_response(&self) -> &[FieldChange] {
        &self.response
    }
}

/// The answer of a server.
pub(super) enum Answer {
    /// The request may pass, with this body.
    Allowed(Approval, Upload),
    /// The client gets this response.
    Denied(Response<Download>),
}

/// The request that is to be authorized, as far as filters before have changed it.
pub(super) struct Subject<'a, 'b> {
    pub(super) shared: &'a Shared,
    pub(super) snapshot: &'b Snapshot,
    pub(super) listener: &'b Listener,
    pub(super) request: &'b Request<Upload>,
    /// Its path and query.
    pub(super) path: PathAndQuery,
    pub(super) target: &'b Target,
    pub(super) info: &'b ForwardedInfo<'b>,
}

/// A question to a server.
pub(super) struct Question<'a> {
    auth: Arc<ExternalAuth>,
    found: Found,
    exchange: Exchange<'a>,
    head: Request<()>,
    /// The attributes of the request, in a call of gRPC, and the room that they take.
    attributes: Option<(envoy::CheckRequest, Room)>,
}

impl<'a> Question<'a> {
    /// The question of `auth` about a request.
    ///
    /// # Errors
    /// The response for the client, if the server cannot be asked.
    pub(super) fn new(
        auth: Arc<ExternalAuth>,
        found: &Found,
        passed: Passed,
        of: &Subject<'a, '_>,
    ) -> Result<Self, LocalReply> {
        // In a loop, each pass would ask and then go on, so all passes together would double at each of them.
        if passed.is_deep() {
            return Err(LocalReply::in_circles());
        }
        let backend = of.snapshot.backend(auth.backend);
        let backend = backend.ok_or_else(LocalReply::auth_unavailable)?;
        let mut head = Request::new(());
        let (path, authority, attributes) = match &auth.protocol {
            AuthProtocol::Http {
                path_prefix,
                request_headers,
                ..
            } => {
                head.method_mut().clone_from(of.request.method());
                copy(of.request.headers(), request_headers, head.headers_mut());
                let path = prefixed(path_prefix, &of.path);
                let path = path.ok_or_else(LocalReply::auth_unavailable)?;
                (path, of.target.value.clone(), None)
            }
            AuthProtocol::Grpc { request_headers } => {
                *head.method_mut() = Method::POST;
                let grpc = HeaderValue::from_static("application/grpc");
                head.headers_mut().insert(CONTENT_TYPE, grpc);
                let path = PathAndQuery::from_static(envoy::CHECK);
                let authority = HeaderValue::try_from(host_of_service(&backend.key)).ok();
                let attributes = attributes(of, request_headers);
                let mut room = Room::of(&found.route.tenant);
                if !room.grow_to(attributes.encoded_len()) {
                    return Err(LocalReply::auth_unavailable());
                }
                (path, authority, Some((attributes, room)))
            }
        };
        passed.say(head.headers_mut());
        let exchange = Exchange {
            plane: &of.shared.plane,
            credentials: of.snapshot.credentials(of.listener, backend),
            backend: Arc::clone(backend),
            authority,
            path,
            upgrade: false,
            grpc: attributes.is_some(),
            preferred: None,
            account: of.shared.account(),
        };
        Ok(Self {
            auth,
            found: found.clone(),
            exchange,
            head,
            attributes,
        })
    }

    /// The quota of the tenant whose route asks.
    pub(super) fn account(&self) -> &Arc<TenantQuota> {
        &self.found.route.account
    }

    /// Asks the server about a request with this body.
    ///
    /// # Errors
    /// The response for the client, if the server gave no answer.
    pub(super) async fn ask(
        mut self,
        body: Upload,
        record: &mut RequestRecord,
    ) -> Result<Answer, LocalReply> {
        let timeout = record.call.as_ref().and_then(|call| call.timeout);
        let allowed = self
            .found
            .rule()
            .map(|rule| Allowed::of(rule, &record.bounds));
        let allowed = allowed.unwrap_or_default().at_most(timeout);
        record.allowed = allowed.beginning_at(record.elapsed());
        let upload = Arc::clone(&record.upload);
        let activity = Arc::clone(&record.shared.activity);
        let judge = pin!(self.judge(body, &upload, &activity));
        let overload = record.shared.plane.overload();
        let judged = record.allowed.run(&upload.progress, overload, judge).await;
        let answer = judged.unwrap_or_else(|late| {
            record.given_up_by_client = record.allowed.is_of_client(late);
            Err(too_late(late, upload.is_owed()))
        });
        let outcome = match &answer {
            Ok(Answer::Allowed(..)) => ALLOWED,
            Ok(Answer::Denied(_)) => DENIED,
            Err(_) => FAILED,
        };
        record.authorized(outcome);
        // The backend has all of its time after this.
        upload.progress.moved();
        answer
    }

    async fn judge(
        &mut self,
        body: Upload,
        upload: &Arc<UploadState>,
        activity: &Arc<Activity>,
    ) -> Result<Answer, LocalReply> {
        let (whole, body) = self.read(body, upload).await?;
        let mut trace = Trace::default();
        let asked = within(DEADLINE, self.send_and_read(whole, activity, &mut trace)).await;
        let verdict = asked.unwrap_or(Err(NoAnswer::TooLate));
        let is_own = self.exchange.backend.is_in(&self.found.route.tenant);
        if matches!(verdict, Err(NoAnswer::TooLate)) && trace.awaited && is_own {
            self.exchange.no_answer(&trace, "Timeout");
        }
        match verdict {
            Ok(AuthorizationResult::Allowed { request, response }) => {
                let approval = Approval {
                    auth: Arc::clone(&self.auth),
                    request,
                    response,
                };
                Ok(Answer::Allowed(approval, body))
            }
            Ok(AuthorizationResult::Denied(response)) => Ok(Answer::Denied(*response)),
            Err(failure) => {
                let backend = &self.exchange.backend.key;
                tracing::debug!(%backend, ?failure, "an authorization server gave no answer");
                Err(LocalReply::auth_unavailable())
            }
        }
    }

    /// Reads the body to its end, if the server gets it. Returns it for the server, and for the backend.
    async fn read(
        &self,
        mut body: Upload,
        upload: &Arc<UploadState>,
    ) -> Result<(Option<Whole>, Upload), LocalReply> {
        let most = usize::from(self.auth.max_body);
        if most == 0 || body.is_end_stream() {
            return Ok((None, body));
        }
        let Some(kept) = body.keep(&self.found.route.tenant) else {
            return Ok((None, body));
        };
        let again = || {
            let reader = kept.again();
            let again = reader.map(|reader| Upload::kept(reader, upload));
            again.ok_or_else(LocalReply::auth_unavailable)
        };
        let mut reading = again()?;
        drop(body);
        reading.bound(Some(most as u64));
        if reading.is_said_too_large() {
            return Err(LocalReply::body_too_large());
        }
        while let Some(frame) = reading.frame().await {
            match frame {
                Ok(_) => {}
                Err(UploadError::TooLarge) => return Err(LocalReply::body_too_large()),
                Err(_) => return Err(LocalReply::broken_body()),
            }
            if !kept.is_kept() {
                return Err(LocalReply::auth_unavailable());
            }
        }
        drop(reading);
        let whole = kept.as_whole().ok_or_else(LocalReply::auth_unavailable)?;
        if whole.data().len() > most {
            return Err(LocalReply::body_too_large());
        }
        Ok((Some(whole), again()?))
    }

    async fn send_and_read(
        &mut self,
        whole: Option<Whole>,
        activity: &Arc<Activity>,
        trace: &mut Trace,
    ) -> Result<AuthorizationResult, NoAnswer> {
        let whole = match self.attributes.take() {
            None => whole.map(Whole::without_trailers),
            Some((attributes, mut room)) => {
                let call = call(attributes, whole.as_ref());
                if !room.grow_to(call.len()) {
                    return Err(NoAnswer::NoRoom);
                }
                Some(Whole::of(call, room))
            }
        };
        let (response, lease) = self.send(whole, activity, trace).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(NoAnswer::Invalid);
        }
        let response = cleaned(response).map_err(|_| NoAnswer::Invalid)?;
        match &self.auth.protocol {
            AuthProtocol::Http {
                response_headers, ..
            } => Ok(AuthorizationResult::of_response(response, lease, response_headers).await),
            AuthProtocol::Grpc { .. } => AuthorizationResult::of_call(response, lease).await,
        }
    }

    /// Sends the question, to another endpoint if one cannot be reached.
    async fn send(
        &self,
        whole: Option<Whole>,
        activity: &Arc<Activity>,
        trace: &mut Trace,
    ) -> Result<Answered, NoAnswer> {
        let mut head = self.head.clone();
        if !self.exchange.grpc {
            let length = whole.as_ref().map_or(0, |whole| whole.data().len());
            head.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        // The question has a body of its own. Whether the client has sent all of its body says nothing about the
        // connection to the server.
        let upload = UploadState::new(Arc::clone(activity));
        let reader = whole.and_then(|whole| KeptBody::whole(whole).again());
        let body = match reader {
            Some(reader) => Upload::kept(reader, &upload),
            None => Upload::none(&upload),
        };
        let mut request = head.clone().map(|()| body);
        let mut attempts = Attempts::new(self.exchange.plane, &request);
        loop {
            if let Some(failure) = self.exchange.refusal(&mut attempts) {
                return Err(NoAnswer::Exchange(failure));
            }
            match self.exchange.attempt(request, &mut attempts, trace).await {
                Ok(answered) => return Ok(answered),
                Err(Ended::Failed(failure)) => return Err(NoAnswer::Exchange(failure)),
                Err(Ended::Again(body)) => request = head.clone().map(|()| body),
            }
        }
    }
}

/// An answer that could be read.
enum AuthorizationResult {
    Allowed {
        request: Vec<FieldChange>,
        response: Vec<FieldChange>,
    },
    Denied(Box<Response<Download>>),
}

/// Why there is no answer.
#[derive(Debug)]
enum NoAnswer {
    Exchange(#[expect(dead_code, reason = "it is written to the log")] ExchangeFailure),
    TooLate,
    /// The namespace has as many bytes of bodies and questions as it may.
    NoRoom,
    /// It is not what the protocol says.
    Invalid,
    /// The call failed with this number.
    Status(#[expect(dead_code, reason = "it is written to the log")] u16),
    /// The server asks for changes that this release does not know. Without them, the backend could do what it should not.
    Unsupported,
}

impl From<InvalidField> for NoAnswer {
    fn from(_: InvalidField) -> Self {
        Self::Invalid
    }
}

impl AuthorizationResult {
    /// The answer of a server that is asked by HTTP. The backend gets the fields with these names; if there are none, it
    /// gets all but those that describe the body of the answer itself.
    async fn of_response(
        response: Response<BackendBody>,
        lease: Lease,
        response_headers: &[HeaderName],
    ) -> Self {
        if response.status() != StatusCode::OK {
            return Self::Denied(Box::new(for_client(response, lease)));
        }
        let (head, body) = response.into_parts();
        Download::backend(body, lease).read_away().await;
        let is_passed = |name: &HeaderName| match response_headers {
            [] => !name.as_str().starts_with(CONTENT),
            listed => listed.contains(name),
        };
        let mut request = FieldChange::replacing(&head.headers, is_passed);
        // The backend takes a listed field for a statement of the server, so it must not come from the client. What the
        // client shows to the server as its own credentials stays.
        let is_absent = |name: &&HeaderName| !head.headers.contains_key(*name);
        let is_claimed = |name: &&HeaderName| ![AUTHORIZATION, COOKIE].contains(name);
        let claimed = response_headers.iter().filter(is_absent).filter(is_claimed);
        request.extend(claimed.filter_map(|name| FieldChange::removal(name.as_str())));
        Self::Allowed {
            request,
            response: Vec::new(),
        }
    }

    /// The answer of a server that is asked by gRPC.
    async fn of_call(response: Response<BackendBody>, lease: Lease) -> Result<Self, NoAnswer> {
        let (head, body) = response.into_parts();
        let message = message(&head, Download::backend(body, lease)).await?;
        Self::of_message(&message)
    }

    fn of_message(message: &[u8]) -> Result<Self, NoAnswer> {
        let answer = CheckResponse::decode(message).map_err(|_| NoAnswer::Invalid)?;
        // A server that says nothing allows nothing, although 0 is the code of OK.
        let code = answer.status.map(|status| status.code);
        if code != Some(0) || answer.denied.is_some() {
            let response = refusal(&answer.denied.unwrap_or_default())?;
            return Ok(Self::Denied(Box::new(response)));
        }
        let ok = answer.ok.unwrap_or_default();
        let changes =
            ok.headers.len() + ok.headers_to_remove.len() + ok.response_headers_to_add.len();
        if changes > MOST_CHANGES {
            return Err(NoAnswer::Invalid);
        }
        if !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty() {
            return Err(NoAnswer::Unsupported);
        }
        let mut request = read_all(&ok.headers, false)?;
        let removed = ok.headers_to_remove.iter();
        request.extend(removed.filter_map(|name| FieldChange::removal(name)));
        Ok(Self::Allowed {
            request,
            response: read_all(&ok.response_headers_to_add, true)?,
        })
    }
}

/// The response for a client whose request is denied.
fn refusal(denied: &envoy::DeniedResponse) -> Result<Response<Download>, NoAnswer> {
    let status = denied.status.as_ref().map_or(0, |status| status.code);
    let status = u16::try_from(status)
        .ok()
        .filter(|code| (200..600).contains(code));
    let status = status.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.unwrap_or(StatusCode::FORBIDDEN);
    if denied.headers.len() > MOST_CHANGES {
        return Err(NoAnswer::Invalid);
    }
    // In HTTP/2, a body would follow even where there must be none.
    let body = if has_no_content(status) {
        ""
    } else {
        &denied.body
    };
    let mut response = Response::new(Download::own(body.to_owned()));
    *response.status_mut() = status;
    FieldChange::apply_all(&read_all(&denied.headers, false)?, response.headers_mut());
    Ok(response)
}

fn read_all(
    options: &[envoy::HeaderOption],
    is_appended: bool,
) -> Result<Vec<FieldChange>, InvalidField> {
    let changes = options.iter();
    let changes = changes.filter_map(|option| FieldChange::read(option, is_appended).transpose());
    changes.collect()
}

/// Reads the only message of a call that has succeeded.
async fn message(head: &response::Parts, mut body: Download) -> Result<Bytes, NoAnswer> {
    if head.status != StatusCode::OK {
        return Err(NoAnswer::Invalid);
    }
    let mut status = Status::read(&head.headers);
    let mut data = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| NoAnswer::Invalid)?;
        match frame.into_data() {
            Ok(piece) if data.len() + piece.len() > MOST_BYTES => return Err(NoAnswer::Invalid),
            Ok(piece) => data.extend_from_slice(&piece),
            Err(frame) => status = frame.trailers_ref().and_then(Status::read).or(status),
        }
    }
    match status.map(Status::number) {
        Some(0) => {}
        Some(number) => return Err(NoAnswer::Status(number)),
        None => return Err(NoAnswer::Invalid),
    }
    let data = data.freeze();
    let Some((&[0, a, b, c, d], message)) = data.split_first_chunk::<PREFIX>() else {
        return Err(NoAnswer::Invalid);
    };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d]));
    if length != Ok(message.len()) {
        return Err(NoAnswer::Invalid);
    }
    Ok(data.slice(PREFIX..))
}

/// The body of a call that asks about a request with this body.
fn call(mut attributes: envoy::CheckRequest, whole: Option<&Whole>) -> Bytes {
    let request = attributes.attributes.as_mut();
    let http = request.and_then(|of| of.request.as_mut()?.http.as_mut());
    if let (Some(http), Some(whole)) = (http, whole) {
        let body = whole.data();
        http.size = i64::try_from(body.len()).unwrap_or(i64::MAX);
        match str::from_utf8(body) {
            Ok(text) => text.clone_into(&mut http.body),
            Err(_) => http.raw_body = body.to_vec(),
        }
    }
    let length = attributes.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX + length);
    data.put_u8(0);
    data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A buffer of this size has room for all of it.
    let _ = attributes.encode(&mut data);
    data.freeze()
}

/// Copies the fields that a server gets.
fn copy(from: &HeaderMap, listed: &[HeaderName], to: &mut HeaderMap) {
    let names = listed.iter().filter(|name| **name != AUTHORIZATION);
    let names = names.filter(|name| !headers::is_of_connection(name.as_str()));
    for name in [AUTHORIZATION].iter().chain(names) {
        for value in from.get_all(name) {
            let _ = to.try_append(name.clone(), value.clone());
        }
    }
}

/// The path for the server: the prefix, and after it the path and the query of the request. It is `None` if that is too
/// long. The server must not be asked without the prefix, because what it says there may be no permission.
fn prefixed(prefix: &str, path: &PathAndQuery) -> Option<PathAndQuery> {
    if prefix.is_empty() {
        return Some(path.clone());
    }
    let rest = path.as_str();
    // The target of a request about the whole server is `*`, which is no part of a path.
    let rest = if rest.starts_with('/') { rest } else { "/" };
    PathAndQuery::try_from([prefix, rest].concat()).ok()
}

/// The host of a Service from the name of its backend, which is `<namespace>/<service>:<port>`.
fn host_of_service(key: &str) -> String {
    match key
        .split_once('/')
        .map(|(namespace, rest)| (namespace, rest.split_once(':')))
    {
        Some((namespace, Some((service, port)))) => format!("{service}.{namespace}.svc:{port}"),
        _ => String::new(),
    }
}

/// A request as Envoy describes it.
fn attributes(of: &Subject<'_, '_>, listed: &[HeaderName]) -> envoy::CheckRequest {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let (request, info) = (of.request, of.info);
    let host = of.target.value.as_ref().map(text).unwrap_or_default();
    let method = request.method().as_str();
    let scheme = info.scheme().as_str();
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    if listed.is_empty() {
        let pseudo = [
            (":method", method),
            (":scheme", scheme),
            (":authority", &host),
            (":path", of.path.as_str()),
        ];
        fields.extend(pseudo.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    let is_sent = |name: &HeaderName| listed.is_empty() || listed.contains(name);
    for name in request.headers().keys().filter(|name| is_sent(name)) {
        let values = request.headers().get_all(name).iter().map(text);
        fields.insert(name.to_string(), values.collect::<Vec<_>>().join(","));
    }
    let size = request.body().size_hint().exact();
    let http = envoy::HttpRequest {
        id: text(info.request_id),
        method: method.to_owned(),
        headers: fields,
        path: of.path.to_string(),
        host,
        scheme: scheme.to_owned(),
        size: size.and_then(|size| i64::try_from(size).ok()).unwrap_or(-1),
        protocol: match request.version() {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
        .to_owned(),
        body: String::new(),
        raw_body: Vec::new(),
    };
    let client = info.hop_info.map(|hop| hop.client);
    let address = envoy::SocketAddress {
        address: client.unwrap_or(info.address).to_string(),
        port_value: Some(if client.is_some() {
            0
        } else {
            of.shared.client.port().into()
        }),
    };
    let sni = of.shared.server_name.as_ref();
    envoy::CheckRequest {
        attributes: Some(envoy::AttributeContext {
            source: Some(envoy::Peer {
                address: Some(envoy::Address {
                    socket_address: Some(address),
                }),
            }),
            request: Some(envoy::AttributeRequest {
                time: Some(envoy::Timestamp {
                    seconds: session::now().into(),
                    nanos: 0,
                }),
                http: Some(http),
            }),
            tls_session: sni.map(|name| envoy::TlsSession {
                sni: name.as_str().to_owned(),
            }),
        }),
    }
}

#[cfg(test)]
mod tests;
