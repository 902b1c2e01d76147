//! Owns the handling of a request: it selects listener and rule, applies the filters of the rule, and returns the
//! response of a backend or of this proxy.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap,
    HeaderValue, LOCATION,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use vestibule_model::client_address::ForwardedHeaders;
use vestibule_model::pattern::Steps;

use super::authority::{Target, Unclear};
use super::authorization::{AUTH_DENIED, Answer, Approval, FAILED, Question, Subject};
use super::backend_http1::Upgraded;
use super::body::{TrailerFilter, Upload, UploadState};
use super::challenge::challenge;
use super::download::Download;
use super::exchange::{Attempts, Exchange};
use super::filters::{Changed, Edits, Head, Stop};
use super::forward::{Forwarded, forward};
use super::forwarded::HopInfo;
use super::guard::MAX_METHOD;
use super::headers::{self, ForwardedInfo, Passed};
use super::held_heads::HeldHead;
use super::local_reply::{Ends, LocalReply};
use super::received::Received;
use super::record::{Logged, RequestRecord, TOO_MANY_HEADS, logged_authority};
use super::shared::Shared;
use super::tunnel::Tunnel;
use super::{head_size, mirror, path};
use crate::backend::Protocol;
use crate::close_reason::CloseReason;
use crate::concerned::TenantKey;
use crate::gate;
use crate::grpc;
use crate::http_route::filter::Scheme;
use crate::http_route::header_edit::{HeaderEdit, join_cookies};
use crate::http_route::session;
use crate::http_route::session::Presented;
use crate::http_route::table::Found;
use crate::http_route::view::View;
use crate::lifetime::{Lifetime, in_ticks};
use crate::limits::{EscapedSlashes, HttpLimits, Underscores};
use crate::listener::{Layer, Listener, Mode};
use crate::overload::OverloadLevel;
use crate::table::Snapshot;

/// Most bytes of a request's body that are read although nobody needs them.
const MAX_DRAINED: u64 = 64 * 1024;

/// How often a request asks authorization servers at most. It asks more than once only if its route changes meanwhile.
const MOST_QUESTIONS: u32 = 4;

type Reply = Response<Logged<Download>>;

/// Answers one request. The future is in a box, so that idle connections have no room for it.
pub(super) fn handle(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Pin<Box<dyn Future<Output = Reply> + Send>> {
    Box::pin(async move {
        let mut record = RequestRecord::new(Arc::clone(&shared), &request);
        let one = request.version() < Version::HTTP_2;
        let is_head = request.method() == Method::HEAD;
        // hyper sends `100 Continue` as soon as somebody reads the body.
        let may_drain = !request.headers().contains_key(EXPECT);
        let mut edits = Edits::default();
        let outcome = outcome(&shared, request, &mut record, &mut edits).await;
        let mut close = shared.activity.is_old()
            || shared.plane.is_leaving()
            || shared.plane.overload().step() >= OverloadLevel::KeepAlive;
        let mut response = match outcome {
            Ok(Outcome::Answer(response)) => {
                record.status = response.status();
                record.note_grpc_status(response.headers());
                record.reason = "Served";
                record.upload.decide();
                timed(response, record)
            }
            Ok(Outcome::Challenge(response)) => {
                record.status = response.status();
                record.reason = "Challenge";
                if one && !drain(&record.upload, may_drain) {
                    close = true;
                    shared.activity.linger();
                }
                let response = if is_head { head_of(response) } else { response };
                response.map(|body| Logged::new(body, Some(record)))
            }
            Ok(Outcome::Denied(response)) => {
                record.status = response.status();
                record.reason = AUTH_DENIED;
                if one && !drain(&record.upload, may_drain) {
                    close = true;
                    shared.activity.linger();
                }
                let response = if is_head { head_of(response) } else { response };
                timed(response, record)
            }
            Ok(Outcome::Upgrade(response, backend)) => {
                record.status = response.status();
                record.reason = "Upgraded";
                record.detach();
                shared.activity.upgrade();
                let found = record.found.as_ref();
                let tenant = found.map(|found| TenantKey::of(&found.route.account));
                *shared.tunnel.lock() = Some(Box::new(Tunnel {
                    backend,
                    lifetime: Lifetime {
                        idle: record.bounds.tunnel_idle.map(in_ticks),
                        end: shared.end,
                        tenant: tenant.unwrap_or_default(),
                    },
                    record,
                }));
                return response.map(|body| Logged::new(body, None));
            }
            Err(own) => {
                record.reason = own.reason;
                let ends = own.ends;
                let lingers = if ends.closes() {
                    // A connection that is one too many has to end at once.
                    own.status != StatusCode::SERVICE_UNAVAILABLE
                } else if close {
                    !record.upload.is_whole()
                } else {
                    !drain(&record.upload, may_drain)
                };
                close |= ends.closes() || lingers;
                if one && lingers {
                    shared.activity.linger();
                }
                if let Ends::Connection(reason) = ends {
                    shared.activity.end_connection(reason);
                }
                let response = own_response(own, &mut record);
                let response = if is_head { head_of(response) } else { response };
                response.map(|body| Logged::new(body, Some(record)))
            }
        };
        edits.apply(response.headers_mut());
        // An HTTP/2 connection gets a GOAWAY instead: when the sockets close, or at once if it ends with this response.
        if close && one {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    })
}

/// A response of a backend, with the record of its request, as long as it may take.
fn timed(response: Response<Download>, record: Box<RequestRecord>) -> Reply {
    // h2 keeps fields as long as the connection is open, and with them the head that they are slices of.
    let is_kept = record.version == Version::HTTP_2;
    let mut response = response.map(|body| Logged::new(body, Some(record)).timed());
    response.body_mut().throttle();
    if is_kept {
        headers::detach(response.headers_mut());
    }
    response
}

/// Reads and drops the rest of a request's body in HTTP/1, so that the next request on the connection can be read.
/// Returns false if that would be too much, or if nobody knows how much it is. Then the response has to announce the end
/// of the connection: hyper reads nothing after a body that nobody reads, so the client's next request would fail.
fn drain(upload: &UploadState, may_drain: bool) -> bool {
    if upload.is_whole() {
        return true;
    }
    let Some(mut body) = upload.take_unread() else {
        return false;
    };
    let length = body.size_hint().exact();
    if !may_drain || length.is_none_or(|length| length > MAX_DRAINED) {
        return false;
    }
    let draining = upload.drain();
    // This ends with the connection at the latest, because then the body breaks off.
    tokio::spawn(async move {
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
        drop(draining);
    });
    true
}

/// Makes a response of this proxy. A gRPC call gets a gRPC status. No cache may keep an error, because it says nothing of
/// what the backend would answer.
fn own_response(own: LocalReply, record: &mut RequestRecord) -> Response<Download> {
    let no_store = HeaderValue::from_static("no-store");
    if let Some(call) = &record.call
        && let Some(status) = grpc::Status::instead_of(own.status, own.reason)
    {
        let mut response = Response::new(Download::own(""));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, call.content_type.clone());
        headers.insert(CACHE_CONTROL, no_store);
        status.say(own.text.trim_end(), headers);
        record.status = response.status();
        record.grpc_status = Some(status);
        return response;
    }
    record.status = own.status;
    let mut response = Response::new(Download::own(own.text));
    *response.status_mut() = own.status;
    let headers = response.headers_mut();
    if let Some(location) = own.location {
        headers.insert(LOCATION, location);
    }
    if own.status.is_client_error() || own.status.is_server_error() {
        headers.insert(CACHE_CONTROL, no_store);
    }
    if own.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static(own.allow));
    }
    if !own.text.is_empty() {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, text);
    }
    response
}

/// The response to a HEAD request: the head of the response to a GET. hyper leaves out the body in HTTP/1.1 only.
fn head_of(response: Response<Download>) -> Response<Download> {
    let length = response.body().size_hint().exact();
    let mut response = response.map(|_| Download::own(""));
    if let Some(length) = length.filter(|length| *length > 0) {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response
}

enum Outcome {
    Answer(Response<Download>),
    /// The response to a CA that checks a hostname.
    Challenge(Response<Download>),
    /// The response of an authorization server that does not let the request pass.
    Denied(Response<Download>),
    /// The connection to the backend follows.
    Upgrade(Response<Download>, Upgraded),
}

/// Makes attempts until there is an outcome. Every attempt is decided again, by the snapshot that is in force when it
/// begins, because the old configuration may be the very reason why the attempt before failed.
async fn outcome(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    record: &mut RequestRecord,
    edits: &mut Edits,
) -> Result<Outcome, LocalReply> {
    let limits = &shared.plane.limits.http;
    if request.version() == Version::HTTP_2 {
        judge_head(shared, request.headers(), limits)?;
    }
    // It counts until this function returns, because `original` keeps the head as long.
    let _held = hold_head(shared, &request, record)?;
    pass(|| line(shared, &request), &request).await;
    judge_lists(shared, request.headers())?;
    let version = request.version();
    let mut request = request.map(|body| {
        let body = Received::new(body, version, limits.head_bytes);
        Upload::new(body, &record.upload)
    });
    // Only HTTP/1.1 can be upgraded.
    let upgradable = request.version() == Version::HTTP_11 && request.body().is_end_stream();
    request.extensions_mut().clear();
    unescape_slashes(shared, &mut request);
    join_cookies(request.headers_mut());
    if version == Version::HTTP_2 {
        // A value may share the buffer of a frame, even that of an earlier request. So may the path and the authority.
        headers::detach(request.headers_mut());
        headers::detach_target(&mut request);
    }
    let original = Original::of(&request);
    let mut attempts = Attempts::new(&shared.plane, &request);
    let mut steps = Steps::AT_ONCE;
    let (mut approval, mut questions) = (None, 0);
    loop {
        let for_attempt = ForAttempt {
            attempts: &mut attempts,
            upgradable,
            approval: approval.as_ref(),
        };
        let steps_now = Steps::new(steps);
        let decided = decide(
            shared,
            &mut request,
            (for_attempt, steps_now),
            record,
            edits,
        )?;
        let (exchange, found, presented) = match decided {
            Decision::Challenge(response) => return Ok(Outcome::Challenge(response)),
            Decision::SearchInTurn if steps < Steps::OF_A_REQUEST => {
                steps *= Steps::GROWTH;
                gate::pass_search(|| line(shared, &request), steps).await;
                continue;
            }
            // The search has stopped early, so its result may be a wrong rule, which could let through what the right
            // one would keep out.
            Decision::SearchInTurn => {
                let text = "it takes too long to find out who serves this request\n";
                let status = StatusCode::SERVICE_UNAVAILABLE;
                return Err(LocalReply::new(status, "TooMuchToMatch", text));
            }
            Decision::Ask(question) if questions < MOST_QUESTIONS => {
                questions += 1;
                let account = Arc::clone(question.account());
                // Few requests ask, and the others need no room for it.
                match Box::pin(question.ask(request.into_body(), record)).await? {
                    Answer::Denied(response) => return Ok(Outcome::Denied(response)),
                    Answer::Allowed(given, body) => {
                        approval = Some(given);
                        request = original.with(body);
                    }
                }
                edits.clear();
                steps = Steps::AT_ONCE;
                // What follows costs as much as a request.
                pass(|| gate::line(&account), &request).await;
                continue;
            }
            Decision::Ask(_) => {
                record.authorized(FAILED);
                return Err(LocalReply::auth_unavailable());
            }
            Decision::Forward(exchange, found, presented) => (exchange, found, presented),
        };
        steps = Steps::AT_ONCE;
        match forward(&exchange, &found, request, &mut attempts, record).await? {
            Forwarded::Again(body) => {
                request = original.with(body);
                edits.clear();
                // An attempt costs as much as a request.
                pass(|| gate::line(&found.route.account), &request).await;
            }
            Forwarded::Answer(response) => {
                edits.extend(keep_session(&exchange, &found, presented, record));
                return Ok(Outcome::Answer(response));
            }
            Forwarded::Upgrade(response, backend) => {
                edits.extend(keep_session(&exchange, &found, presented, record));
                if !upgradable {
                    return Err(LocalReply::unasked());
                }
                let mut response = response;
                edits.apply(response.headers_mut());
                return Ok(Outcome::Upgrade(response, backend));
            }
        }
    }
}

/// The line in which a request waits until its rule is found: that of the namespace for which its host is served.
fn line<B>(shared: &Shared, request: &Request<B>) -> usize {
    match Target::of(request) {
        Ok(target) => shared.line_of_host(target.host.as_ref()),
        Err(_) => shared.line(),
    }
}

/// Waits in a line at the gate for requests.
async fn pass<B>(line: impl FnOnce() -> usize, request: &Request<B>) {
    let (fields, bytes) = (request.headers().len(), head_size::of_request(request));
    gate::pass_request(line, fields, bytes).await;
}

/// The header change that gives the client its session token, if an endpoint has answered and the client does not have
/// the token yet.
fn keep_session(
    exchange: &Exchange<'_>,
    found: &Found,
    presented: Option<Presented>,
    record: &mut RequestRecord,
) -> Option<HeaderEdit> {
    let session = found.rule()?.session.as_ref()?;
    let answered = (&*exchange.backend.key, record.trace.endpoint?);
    let (outcome, token) = session.settle(presented?, answered, session::now());
    exchange.plane.metrics.session(outcome.as_str());
    record.session = Some(outcome.as_str());
    token
}

/// A copy of a request's head as it arrived. The next attempt begins with it, because filters change the one that is
/// sent.
struct Original(Request<()>);

impl Original {
    fn of(request: &Request<Upload>) -> Self {
        let mut head = Request::new(());
        head.method_mut().clone_from(request.method());
        head.uri_mut().clone_from(request.uri());
        head.headers_mut().clone_from(request.headers());
        *head.version_mut() = request.version();
        Self(head)
    }

    fn with(&self, body: Upload) -> Request<Upload> {
        self.0.clone().map(|()| body)
    }
}

/// What to do with a request that is not refused.
enum Decision<'a> {
    Challenge(Response<Download>),
    /// The steps were not enough to find the rule. The search may begin anew, with more of them, when it has its turn.
    SearchInTurn,
    /// Ask an authorization server first.
    Ask(Box<Question<'a>>),
    /// Forward it to a backend. If the rule has sessions, the last value is what the client's token says.
    Forward(Exchange<'a>, Found, Option<Presented>),
}

/// The host for which a request is, if the request can be served at all.
fn whom<B>(
    request: &Request<B>,
    slashes: EscapedSlashes,
    record: &mut RequestRecord,
) -> Result<Target, LocalReply> {
    if request.method() == Method::CONNECT {
        let text = "there are no tunnels here\n";
        let answer = LocalReply::new(StatusCode::METHOD_NOT_ALLOWED, "Connect", text);
        return Err(LocalReply {
            ends: Ends::Reading,
            ..answer
        });
    }
    let target = Target::of(request).map_err(|unclear| {
        record.authority = unclear_authority(request);
        let text = match unclear {
            Unclear::Malformed => {
                "the host of the request is neither a hostname nor an IP address\n"
            }
            _ => "it is not clear which host the request is for\n",
        };
        LocalReply::unclear("UnclearHost", text)
    })?;
    record.authority.clone_from(&target.text);
    // HTTP/1 refuses these before the end of the head.
    if request.method().as_str().len() > MAX_METHOD {
        let text = "the method of the request is too long\n";
        return Err(LocalReply::unclear("UnclearMethod", text));
    }
    if !has_path(request) {
        let text = "the target of the request has no path\n";
        return Err(LocalReply::unclear("UnclearPath", text));
    }
    let whole = request.uri().path_and_query();
    if !whole.is_none_or(|whole| whole.as_str().is_ascii()) {
        let text = "the target of the request has characters that are not ASCII\n";
        return Err(LocalReply::unclear("UnclearPath", text));
    }
    path::check(request.uri().path(), slashes)
        .map_err(|unclear| LocalReply::unclear("UnclearPath", unclear.text()))?;
    Ok(target)
}

/// Decodes the escaped slashes of the path, if the Gateway asks for it. Everything that follows sees this path: rules,
/// filters, authorization servers and backends. It happens once for all attempts, so an edit in the meantime cannot have a
/// backend get another path than an authorization server has allowed.
fn unescape_slashes<B>(shared: &Shared, request: &mut Request<B>) {
    // Most paths have no escape, and for these nothing is looked up.
    if !request.uri().path().contains('%') {
        return;
    }
    let snapshot = shared.plane.snapshot.load();
    if shared.ambiguity(&snapshot).escaped_slashes != EscapedSlashes::Unescape {
        return;
    }
    // A path that could not be replaced is refused, because it has an escaped slash.
    if let Some(uri) = unescaped(request.uri()) {
        *request.uri_mut() = uri;
    }
}

fn unescaped(uri: &Uri) -> Option<Uri> {
    let path = path::unescape(uri.path())?;
    let whole = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(whole).ok()?);
    Uri::from_parts(parts).ok()
}

/// Whether the target has a path that every reader takes for the same one. A host alone is only for CONNECT, and `*` for
/// OPTIONS (RFC 9112 section 3.2). In HTTP/1.1, an empty path behind a host is `/`: the parser does not
/// tell the two apart. In HTTP/2 there is no such form, and the path begins with a slash (RFC 9113 section 8.3.1).
fn has_path<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    let begins = match (request.version(), uri.path_and_query()) {
        (Version::HTTP_2, Some(whole)) => !is_without_slash(whole),
        _ => uri.path().starts_with('/'),
    };
    begins || uri.path() == "*" && request.method() == Method::OPTIONS
}

/// Whether a path does not begin with a slash. An empty one shows itself as `/`, and only a comparison tells the two
/// apart.
fn is_without_slash(whole: &PathAndQuery) -> bool {
    let text = whole.as_str();
    !text.starts_with('/') || text == "/" && *whole != PathAndQuery::from_static("/")
}

/// Removes header fields that clients may not set, and refuses a request that could be read in two ways.
fn clean<B>(request: &mut Request<B>, underscores: Underscores) -> Result<(), LocalReply> {
    if underscores == Underscores::Refuse && headers::have_underscores(request.headers()) {
        let text = "the name of a header has an underscore, which some read as a dash\n";
        return Err(LocalReply::unclear("UnclearHeader", text));
    }
    headers::drop_claims(request.headers_mut(), underscores);
    Ok(())
}

/// Refuses a head in HTTP/2 that could not be one in HTTP/1.
fn judge_head(shared: &Shared, headers: &HeaderMap, limits: &HttpLimits) -> Result<(), LocalReply> {
    if headers::are_too_many(headers, limits) {
        shared.activity.unserved();
        let text = "the head of the request has too many fields\n";
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(LocalReply::new(status, "TooManyFields", text));
    }
    if headers::have_outer_space(headers) {
        let text = "the value of a header begins or ends with white space\n";
        return Err(LocalReply::unclear("UnclearHeader", text));
    }
    Ok(())
}

/// What a request names as its host, for the log, where that is not clear.
fn unclear_authority<B>(request: &Request<B>) -> Option<Arc<str>> {
    let target = request.uri().authority();
    let target = target.map(|authority| authority.as_str().as_bytes());
    let field = || request.headers().get(HOST).map(HeaderValue::as_bytes);
    target.or_else(field).map(logged_authority)
}

/// Counts a head in HTTP/2, and refuses it if the heads of its connection hold too much. In HTTP/1, a connection has one
/// request at a time.
fn hold_head<'a, B>(
    shared: &'a Shared,
    request: &Request<B>,
    record: &mut RequestRecord,
) -> Result<Option<HeldHead<'a>>, LocalReply> {
    if request.version() != Version::HTTP_2 {
        return Ok(None);
    }
    let held = shared.activity.held_heads.hold(request);
    if held.is_none() {
        shared.activity.refused();
        // Nobody selects a listener for this request, and the log has to say whose it was.
        record.listener.clone_from(&shared.listener);
        record.authority = match Target::of(request) {
            Ok(target) => target.text,
            Err(_) => unclear_authority(request),
        };
        let text = "the heads of the requests on this connection are too large together\n";
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(LocalReply::new(status, TOO_MANY_HEADS, text));
    }
    Ok(held)
}

/// Refuses a head with a list that is too long to look at each of its entries.
fn judge_lists(shared: &Shared, headers: &HeaderMap) -> Result<(), LocalReply> {
    if headers::have_long_lists(headers) {
        shared.activity.unserved();
        let text = "a header of the request is a list with too many entries\n";
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(LocalReply::new(status, "TooManyEntries", text));
    }
    Ok(())
}

/// What a decision needs to know of the attempt for which it is.
struct ForAttempt<'a> {
    attempts: &'a mut Attempts,
    upgradable: bool,
    /// The permission of an authorization server, if one has given it.
    approval: Option<&'a Approval>,
}

/// A request whose rule is found, with what was read on the way.
struct Selection<'a> {
    snapshot: &'a Snapshot,
    listener: Arc<Listener>,
    found: Found,
    target: Target,
    trust: Option<&'a ForwardedHeaders>,
    hop_info: Option<HopInfo>,
    request_id: HeaderValue,
    /// The treatment of fields whose name has an underscore, for trailers.
    underscores: Underscores,
}

impl Selection<'_> {
    fn info<'b>(&'b self, shared: &'b Shared) -> ForwardedInfo<'b> {
        ForwardedInfo {
            address: shared.client.ip(),
            address_value: shared.client_value(),
            scheme: match shared.listener {
                Some(_) => Scheme::Https,
                None => Scheme::Http,
            },
            authority: self.target.value.as_ref(),
            port: self.listener.port,
            header: self.trust.map(ForwardedHeaders::header),
            hop_info: self.hop_info.as_ref(),
            request_id: &self.request_id,
        }
    }
}

/// Decides everything by the snapshot in force: challenge, listener, rule, filters, backend, and the client certificate
/// for the backend. The connection may be older than that snapshot.
fn decide<'a>(
    shared: &'a Shared,
    request: &mut Request<Upload>,
    (for_attempt, steps): (ForAttempt<'_>, Steps),
    record: &mut RequestRecord,
    edits: &mut Edits,
) -> Result<Decision<'a>, LocalReply> {
    let snapshot = shared.plane.snapshot.load();
    let how = snapshot.client_address(&shared.bind);
    let trust = how.and_then(|how| how.forwarded.as_ref());
    let peer = shared.client.ip();
    let hop_info = trust.and_then(|trust| HopInfo::read(request.headers(), trust, peer));
    let request_id = record.introduce(hop_info.as_ref());
    let ambiguity = shared.ambiguity(&snapshot);
    let target = whom(request, ambiguity.escaped_slashes, record)?;
    if let Some(response) = challenge(&snapshot, shared, &target, request, record)? {
        return Ok(Decision::Challenge(response));
    }
    clean(request, ambiguity.underscores)?;
    let (listener, found) = match select(&snapshot, shared, &target, (request, steps), record)? {
        Selected::Rule(listener, found) => (listener, found),
        Selected::TooFewSteps => return Ok(Decision::SearchInTurn),
    };
    let selection = Selection {
        snapshot: &snapshot,
        listener,
        found,
        target,
        trust,
        hop_info,
        request_id,
        underscores: ambiguity.underscores,
    };
    follow(shared, request, selection, for_attempt, record, edits)
}

/// Follows the rule of a request: its filters, the choice of a backend, and the filters of that backend.
fn follow<'a>(
    shared: &'a Shared,
    request: &mut Request<Upload>,
    selection: Selection<'_>,
    for_attempt: ForAttempt<'_>,
    record: &mut RequestRecord,
    edits: &mut Edits,
) -> Result<Decision<'a>, LocalReply> {
    let Selection {
        snapshot,
        ref listener,
        ref found,
        ref target,
        ..
    } = selection;
    let attempts = for_attempt.attempts;
    request.body_mut().bound(record.bounds.request_body);
    // The client's own fields count here, before anything changes them.
    let passed = Passed::of(request.headers());
    let upgrade = headers::strip_request(request.headers_mut());
    let info = selection.info(shared);
    headers::set_forwarded(request.headers_mut(), &info);
    let head = Head {
        host: target.host_text(),
        scheme: info.scheme(),
        port: info.port(),
        found,
        metrics: &shared.plane.metrics,
        approval: for_attempt.approval,
    };
    let Some(rule) = found.rule() else {
        return Err(LocalReply::internal("NoBackend"));
    };
    // The token is read before filters change the request.
    let is_secure = info.scheme() == Scheme::Https;
    let session = rule.session.as_ref();
    let presented = session.map(|of| of.open(request.headers(), is_secure, session::now()));
    let mut to = Changed {
        authority: target.value.clone(),
        path: None,
        // A request without a body has no trailers.
        edited: (!request.body().is_end_stream()).then(Vec::new),
        mirrors: Vec::new(),
    };
    let stopped = head.apply(&rule.filters, request, &mut to, edits).err();
    if let Some(Stop::Reply(reply)) = stopped {
        return Err(reply);
    }
    let passed = admit(request, passed)?;
    if let Some(Stop::Ask(auth)) = stopped {
        let subject = Subject {
            shared,
            snapshot,
            listener,
            request,
            path: whole_path(request),
            target,
            info: &info,
        };
        let question = Question::new(auth, found, passed, &subject);
        let question = question.inspect_err(|_| record.authorized(FAILED))?;
        return Ok(Decision::Ask(Box::new(question)));
    }
    attempts.retries.deep = passed.is_deep();
    let picked = rule.pick(attempts.random);
    let picked = picked.ok_or_else(|| LocalReply::internal("NoBackend"))?;
    let backend = picked.backend.and_then(|slot| snapshot.backend(slot));
    let backend = backend.ok_or_else(|| LocalReply::internal("InvalidBackend"))?;
    record.backend = Some(Arc::clone(backend));
    head.apply(&picked.filters, request, &mut to, edits)
        .map_err(LocalReply::from)?;
    passed.say(request.headers_mut());

    let filter_trailers = TrailerFilter {
        underscores: selection.underscores,
        edited: to.edited.take().unwrap_or_default(),
    };
    let path = to.path.take().unwrap_or_else(|| whole_path(request));
    if rule.retry.as_ref().is_some_and(|retry| retry.attempts > 0) {
        attempts.retries.body = request.body_mut().keep(&found.route.tenant);
    }
    // Both sides have to speak HTTP/1.1 for an upgrade. Otherwise the request is an ordinary one, and mirrors get it.
    let two = found.route.grpc || backend.target.protocol == Protocol::H2c;
    let upgrade = upgrade && for_attempt.upgradable && !two;
    if !upgrade && !attempts.retries.deep {
        let way = (snapshot, &**listener, found);
        copy(
            shared,
            way,
            request,
            (&to, &path, &filter_trailers),
            attempts,
            record,
        );
    }
    request.body_mut().filter_trailers(filter_trailers);
    let exchange = Exchange {
        plane: &shared.plane,
        credentials: snapshot.credentials(listener, backend),
        backend: Arc::clone(backend),
        authority: to.authority,
        path,
        upgrade,
        grpc: found.route.grpc,
        preferred: presented.as_ref().and_then(|of| of.at(&backend.key)),
        account: shared.account(),
    };
    Ok(Decision::Forward(exchange, selection.found, presented))
}

/// Refuses a request that no backend gets, whichever the rule picks. This comes after the filters of the rule, because
/// those for responses hold for these answers as well: without the fields of CORS, a page could not read why it failed.
fn admit(request: &Request<Upload>, passed: Option<Passed>) -> Result<Passed, LocalReply> {
    if request.body().is_said_too_large() {
        return Err(LocalReply::body_too_large());
    }
    passed.ok_or_else(LocalReply::in_circles)
}

/// Sends mirrors a copy of a request, in the form in which its backend gets it. This happens once, even if the request
/// itself is sent several times.
fn copy(
    shared: &Shared,
    (snapshot, listener, found): (&Snapshot, &Listener, &Found),
    request: &mut Request<Upload>,
    (to, path, filter_trailers): (&Changed, &PathAndQuery, &TrailerFilter),
    attempts: &mut Attempts,
    record: &mut RequestRecord,
) {
    if std::mem::replace(&mut attempts.mirrored, true) {
        return;
    }
    let namespace = &found.route.tenant;
    for mirror in &to.mirrors {
        let Some(backend) = snapshot.backend(mirror.backend) else {
            continue;
        };
        if !mirror.is_due(shared.plane.random()) {
            continue;
        }
        let Some(basis) = mirror::MirrorBasis::of(&found.route, snapshot) else {
            continue;
        };
        let parts = mirror::Parts {
            plane: Arc::clone(&shared.plane),
            basis,
            credentials: snapshot.credentials(listener, backend),
            backend: Arc::clone(backend),
            authority: to.authority.clone(),
            path: path.clone(),
            head: Original::of(request).0,
            filter_trailers: filter_trailers.clone(),
            state: Arc::clone(&record.upload),
            grpc: found.route.grpc,
            account: shared.account(),
        };
        let Some(copy) = mirror::Copy::new(parts, namespace) else {
            continue;
        };
        record.mirrors += 1;
        match request.body_mut().keep(namespace) {
            Some(body) => body.copy_to(Box::new(copy)),
            None => copy.send(None),
        }
    }
}

/// The path and the query for a backend. An empty path becomes `/`.
fn whole_path<B>(request: &Request<B>) -> PathAndQuery {
    let whole = match request.uri().path_and_query() {
        Some(whole) if is_without_slash(whole) && whole.path() != "*" => {
            // Its text has the slash that the path does not have.
            PathAndQuery::try_from(whole.to_string()).ok()
        }
        whole => whole.cloned(),
    };
    whole.unwrap_or_else(|| PathAndQuery::from_static("/"))
}

/// Result of [`select`].
enum Selected {
    Rule(Arc<Listener>, Found),
    /// The steps were not enough.
    TooFewSteps,
}

/// Selects the listener and the rule for a request.
fn select<B>(
    snapshot: &Snapshot,
    shared: &Shared,
    target: &Target,
    (request, steps): (&Request<B>, Steps),
    record: &mut RequestRecord,
) -> Result<Selected, LocalReply> {
    let not_found = |reason, text| LocalReply::new(StatusCode::NOT_FOUND, reason, text);
    let host = target.host.as_ref();
    let layer = match &shared.listener {
        None => Layer::Plain,
        Some(own) => {
            record.listener = Some(Arc::clone(own));
            Layer::Tls
        }
    };
    let selected = snapshot.select_http(&shared.bind, layer, host);
    let Some(selected) = selected else {
        let text = "no listener is for this host\n";
        return Err(not_found("NoListener", text));
    };
    let listener = selected.listener;
    if let Some(own) = &shared.listener {
        let misdirected = |text| {
            let status = StatusCode::MISDIRECTED_REQUEST;
            LocalReply::new(status, "Misdirected", text)
        };
        // A client may reuse a connection for every name in the certificate (GEP-3567). That is right only if a new
        // connection for the same server name would get the listener of the request.
        let is_of = |other: &Listener| listener.key == other.key;
        let now = || snapshot.tls_listener(&shared.bind, shared.server_name.as_ref());
        if !is_of(own) && !now().is_some_and(|now| is_of(now)) {
            let text = "another listener is for this host; ask again on a connection of its own\n";
            return Err(misdirected(text));
        }
        // The name has passed to another namespace, and the client has seen the certificate of the former one, or of the
        // Gateway while the name was the former one's.
        let passed_on = || {
            listener.tenant != own.tenant
                && Some(snapshot.served_for(&listener, host)) != shared.served_for.as_ref()
        };
        // Or the listener no longer terminates TLS, or validates clients in another way than when this connection began.
        if !matches!(listener.mode, Mode::Https(_)) || passed_on() || !shared.is_admitted(&listener)
        {
            let text = "this host is served otherwise now; ask again on a new connection\n";
            return Err(LocalReply {
                ends: Ends::Connection(CloseReason::NoLongerServed),
                ..misdirected(text)
            });
        }
    }
    record.listener = Some(Arc::clone(&listener));
    record.bounds = shared.plane.bounds(&listener);
    let view = View::new(request, target.text.as_deref(), selected.guard, steps);
    let found = selected.routes.find(host, &view);
    if view.steps.have_run_out() {
        return Ok(Selected::TooFewSteps);
    }
    let Some(found) = found else {
        return Err(not_found("NoRoute", "no route is for this request\n"));
    };
    record.found = Some(found.clone());
    if !shared.charge(&found.route.account) {
        let text = "there are too many connections for this host\n";
        // One that counts for another namespace may carry that one's requests, and goes on without this one.
        let ends = if shared.is_charged() {
            Ends::Reading
        } else {
            Ends::Connection(CloseReason::TenantLimit)
        };
        return Err(LocalReply {
            ends,
            ..LocalReply::new(StatusCode::SERVICE_UNAVAILABLE, "TenantLimit", text)
        });
    }
    Ok(Selected::Rule(listener, found))
}
