//! Owns hop-by-hop header fields, and the fields that tell a backend about the client.

use std::net::IpAddr;

use hyper::body::Body;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap,
    HeaderName, HeaderValue, InvalidHeaderValue, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Request, Response, StatusCode, Uri};

use vestibule_model::client_address::ForwardedHeader;

use super::field_names::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO, X_REQUEST_ID,
};
use super::forwarded::{self, HopInfo};
use super::guard::MAX_OPTIONS;
use crate::http_route::filter::Scheme;
use crate::limits::{HttpLimits, Underscores};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const X_FORWARDED: &str = "x-forwarded-";
const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
/// The name of this proxy in `CDN-Loop`. It is the same for every Gateway.
const OURS: &str = "vestibule.dev";
/// How often a request may have passed such a proxy before. A backend may be a client of another host here, and pass on
/// the request that it got. A request in a loop passes more often than that.
const MAX_PASSES: usize = 8;
/// From this number of passes on, a request may be in a loop, and is neither retried nor mirrored. Each of these would
/// begin the rest of the loop once more, and all of them at every pass.
const DEEP: usize = 2;
/// Most entries of `CDN-Loop`. A request that has passed so many proxies is in a loop.
const MAX_LOOP_ENTRIES: usize = 32;
/// Bytes from which a value counts as long.
const LONG: usize = 64;
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// Removes from a request the fields that are between the client and this proxy (RFC 9110 section 7.6.1). Returns
/// whether the request asks for a WebSocket. There are no upgrades to other protocols, because this proxy could not
/// read what is spoken then.
pub(super) fn strip_request(headers: &mut HeaderMap) -> bool {
    let upgrade = has_token(headers, &CONNECTION, "upgrade")
        && headers
            .get(UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()));
    let trailers = has_token(headers, &TE, "trailers");
    strip(headers);
    merge_lengths(headers);
    // A client of HTTP/1.1 is asked for the body by hyper, as soon as the backend reads it. In HTTP/2, hyper cannot do so,
    // and the client sends the body when it does not want to wait any longer.
    remove_if(headers, |name| *name == EXPECT || *name == HTTP2_SETTINGS);
    if trailers {
        headers.insert(TE, TRAILERS);
    }
    upgrade
}

/// Adds `te: trailers`. gRPC servers require it, whatever the client's version of HTTP was.
pub(super) fn take_trailers(headers: &mut HeaderMap) {
    headers.insert(TE, TRAILERS);
}

/// Says in HTTP/1.1 that `te` is for the neighbour alone, as its sender has to (RFC 9110 section 10.1.4). Otherwise a proxy
/// behind this one could pass it on, and get trailers that it does not understand. A request for a WebSocket has options of
/// its own and gets no trailers, so it does without.
pub(super) fn say_trailers(headers: &mut HeaderMap) {
    if headers.contains_key(UPGRADE) {
        headers.remove(TE);
    } else if headers.contains_key(TE) {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Whether a request in HTTP/2 has more fields than it may.
pub(super) fn are_too_many(headers: &HeaderMap, limits: &HttpLimits) -> bool {
    if headers.len() <= limits.fields {
        return false;
    }
    let crumbs = headers.get_all(COOKIE).iter().count();
    headers.len() - crumbs > limits.fields || crumbs > limits.crumbs()
}

/// Whether a value begins or ends with white space, which HTTP/2 forbids (RFC 9113 section 8.2.1). A reader of HTTP/1
/// would see another value, so it must not be matched as it is.
pub(super) fn have_outer_space(headers: &HeaderMap) -> bool {
    headers.values().any(has_outer_space)
}

fn has_outer_space(value: &HeaderValue) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let value = value.as_bytes();
    is_space(value.first()) || is_space(value.last())
}

/// Removes white space at the beginning and the end of values, as a reader of HTTP/1 does. HTTP/2 can carry it, and a client
/// may end its connection because of it.
fn trim(headers: &mut HeaderMap) {
    for value in headers.values_mut().filter(|value| has_outer_space(value)) {
        if let Ok(mut trimmed) = HeaderValue::from_bytes(value.as_bytes().trim_ascii()) {
            trimmed.set_sensitive(value.is_sensitive());
            *value = trimmed;
        }
    }
}

/// Removes from a response the fields that are between the backend and this proxy, and a length that it may not have
/// (RFC 9110 section 8.6, RFC 9112 section 6.3).
pub(super) fn strip_response<B>(response: &mut Response<B>) {
    let status = response.status();
    let headers = response.headers_mut();
    trim(headers);
    let without_length = status.is_informational()
        || status == StatusCode::NO_CONTENT
        || headers.contains_key(TRANSFER_ENCODING);
    if without_length {
        headers.remove(CONTENT_LENGTH);
    } else {
        merge_lengths(headers);
    }
    strip(headers);
}

/// Keeps one of several equal lengths, because some readers refuse a message that has two. Removes zeros before a number,
/// because some readers would take it for an octal one. Removes what is no number, and an empty field,
/// which h2 takes for 0. hyper refuses lengths that differ, unless the message has no body. Such lengths mean nothing,
/// so this removes them.
fn merge_lengths(headers: &mut HeaderMap) {
    if !headers.contains_key(CONTENT_LENGTH) {
        return;
    }
    let one = {
        let mut lengths = tokens(headers, &CONTENT_LENGTH);
        let one = lengths.next();
        let mut others = lengths.peekable();
        let is_number = |one: &str| one.bytes().all(|byte| byte.is_ascii_digit());
        let one = one.filter(|one| is_number(one));
        let is_usual = one.is_some_and(|one| one == "0" || !one.starts_with('0'));
        if is_usual && others.peek().is_none() {
            return;
        }
        let one = one.filter(|one| others.all(|other| other == *one));
        one.and_then(|one| {
            let number = one.trim_start_matches('0');
            HeaderValue::from_str(if number.is_empty() { "0" } else { number }).ok()
        })
    };
    headers.remove(CONTENT_LENGTH);
    if let Some(one) = one {
        headers.insert(CONTENT_LENGTH, one);
    }
}

/// Whether a response has no body, or a body with the transfer coding `chunked` or without one. The proxy cannot decode
/// another coding, and does not pass the field on. The client would take the encoded bytes for the body.
pub(super) fn has_known_coding<B: Body>(response: &Response<B>) -> bool {
    let mut codings = tokens(response.headers(), &TRANSFER_ENCODING);
    let is_chunked = |coding: &str| coding.eq_ignore_ascii_case("chunked");
    response.body().is_end_stream()
        || !response.headers().contains_key(TRANSFER_ENCODING)
        || codings.next().is_some_and(is_chunked) && codings.next().is_none()
}

/// Hop-by-hop fields, in addition to those that `Connection` names.
static HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::try_from(token).ok())
        .collect();
    for name in &named {
        headers.remove(name);
    }
    remove_if(headers, |name| HOP_BY_HOP.contains(name));
}

/// Whether a field has more entries than this, empty ones included. This looks for nothing but commas, so it costs a small
/// part of what it costs to look at each entry.
fn has_more_entries(headers: &HeaderMap, name: &HeaderName, most: usize) -> bool {
    let mut entries = 0;
    headers.get_all(name).iter().any(|value| {
        let commas = value.as_bytes().iter().filter(|byte| **byte == b',');
        entries += 1 + commas.count();
        entries > most
    })
}

/// Whether a request has a list of which this proxy would look at too many entries. In HTTP/2, a client can repeat a long
/// field with one byte.
pub(super) fn have_long_lists(headers: &HeaderMap) -> bool {
    has_too_many_options(headers) || has_more_entries(headers, &CDN_LOOP, MAX_LOOP_ENTRIES)
}

/// Whether `Connection` has more options than this proxy looks at.
pub(super) fn has_too_many_options(headers: &HeaderMap) -> bool {
    has_more_entries(headers, &CONNECTION, MAX_OPTIONS.into())
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|other| other.eq_ignore_ascii_case(token))
}

/// Asks the backend for a WebSocket.
pub(super) fn ask_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

/// Whether the backend agreed to a WebSocket.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, &UPGRADE, "websocket")
}

/// What forwarded headers tell the backend, taken from the connection and from a trusted hop.
pub(super) struct ForwardedInfo<'a> {
    /// The address of the connection: the client, or the nearest hop.
    pub(super) address: IpAddr,
    /// The same as a header value.
    pub(super) address_value: &'a HeaderValue,
    /// The scheme of the connection.
    pub(super) scheme: Scheme,
    /// The authority as the client wrote it.
    pub(super) authority: Option<&'a HeaderValue>,
    /// The port of the listener.
    pub(super) port: u16,
    /// The header in which hops in front list addresses, if there are trusted hops.
    pub(super) header: Option<ForwardedHeader>,
    /// What the nearest hop reported, if it is trusted.
    pub(super) hop_info: Option<&'a HopInfo>,
    pub(super) request_id: &'a HeaderValue,
}

impl ForwardedInfo<'_> {
    /// The address of the client.
    fn client(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        match self.hop_info {
            Some(hop_info) => HeaderValue::try_from(hop_info.client.to_string()),
            None => Ok(self.address_value.clone()),
        }
    }

    /// The scheme that the client used.
    pub(super) fn scheme(&self) -> Scheme {
        self.hop_info
            .and_then(|hop_info| hop_info.scheme)
            .unwrap_or(self.scheme)
    }

    /// The port that the client connected to.
    pub(super) fn port(&self) -> u16 {
        self.hop_info
            .and_then(|hop_info| hop_info.port)
            .unwrap_or(self.port)
    }
}

/// Whether a field describes the client. Only this proxy may set such fields.
fn is_claim(name: &str) -> bool {
    name.starts_with(X_FORWARDED)
        || [&FORWARDED, &X_REAL_IP, &X_REQUEST_ID]
            .into_iter()
            .any(|own| own.as_str() == name)
}

/// Whether a field is a hop-by-hop field, or says where a message ends or goes.
pub(super) fn is_of_connection(name: &str) -> bool {
    let framing = [HTTP2_SETTINGS, EXPECT, TRAILER, CONTENT_LENGTH, HOST];
    let mut all = HOP_BY_HOP.iter().chain(&framing);
    all.any(|own| own.as_str() == name)
}

fn has_underscore(name: &str) -> bool {
    name.contains('_')
}

/// Whether a field is removed because of an underscore in its name.
fn is_dropped(name: &str, underscores: Underscores) -> bool {
    if !has_underscore(name) {
        return false;
    }
    let dashed = || name.replace('_', "-");
    underscores != Underscores::Allow || is_claim(&dashed()) || is_of_connection(&dashed())
}

/// Removes fields in one pass. This costs less than to look for each of several names.
fn remove_if(headers: &mut HeaderMap, is_out: impl Fn(&HeaderName) -> bool) {
    let out: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_out(name))
        .cloned()
        .collect();
    for name in out {
        headers.remove(name);
    }
}

/// Whether any field has an underscore in its name.
pub(super) fn have_underscores(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| has_underscore(name.as_str()))
}

/// Removes the client's own statements about itself. This happens before routes are matched, because neither routes nor
/// backends could tell them from what this proxy states. The same holds for names with underscores.
pub(super) fn drop_claims(headers: &mut HeaderMap, underscores: Underscores) {
    remove_if(headers, |name| {
        let name = name.as_str();
        is_claim(name) || is_dropped(name, underscores)
    });
}

/// Removes from a request's trailers the fields that would not pass in its head, and those that may not be trailers
/// (RFC 9110 section 6.5.1). A backend may merge trailers into the head. `edited` are the fields that filters of the
/// route set or remove.
pub(super) fn strip_request_trailers(
    trailers: &mut HeaderMap,
    underscores: Underscores,
    edited: &[HeaderName],
) {
    strip(trailers);
    remove_if(trailers, |name| {
        let name = name.as_str();
        is_claim(name)
            || is_of_connection(name)
            || is_dropped(name, underscores)
            || [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE]
                .iter()
                .chain(edited)
                .any(|other| other.as_str() == name)
    });
}

/// Removes from a response's trailers the fields that are between the backend and this proxy.
pub(super) fn strip_response_trailers(trailers: &mut HeaderMap) {
    trim(trailers);
    strip(trailers);
    remove_if(trailers, |name| is_of_connection(name.as_str()));
}

/// The proxies that a request has passed, according to `CDN-Loop` (RFC 8586).
#[derive(Debug)]
pub(super) struct Passed {
    values: Vec<HeaderValue>,
    /// How often the request has passed this proxy.
    times: usize,
}

impl Passed {
    /// Reads the field; `None` if the request is in a loop.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let is_ours = |token: &&str| {
            let id = token.split(';').next().unwrap_or_default();
            id.trim().eq_ignore_ascii_case(OURS)
        };
        let times = tokens(headers, &CDN_LOOP).filter(is_ours).count();
        let values = headers.get_all(CDN_LOOP).iter();
        (times < MAX_PASSES).then(|| Self {
            values: values.cloned().collect(),
            times,
        })
    }

    /// Whether it has passed this proxy so often that it may be in a loop.
    pub(super) fn is_deep(&self) -> bool {
        self.times >= DEEP
    }

    /// Writes the field, with this proxy at the end. It replaces what filters have made of it, so that they cannot hide
    /// a loop.
    pub(super) fn say(self, headers: &mut HeaderMap) {
        let mut all = self
            .values
            .into_iter()
            .chain([HeaderValue::from_static(OURS)]);
        if let Some(first) = all.next() {
            let _: Result<_, hyper::header::MaxSizeReached> = headers.try_insert(CDN_LOOP, first);
        }
        for value in all {
            let _: Result<_, hyper::header::MaxSizeReached> = headers.try_append(CDN_LOOP, value);
        }
    }
}

/// Sets the fields that tell the backend about the client.
pub(super) fn set_forwarded(headers: &mut HeaderMap, info: &ForwardedInfo<'_>) {
    let mut say = |name: HeaderName, value: Result<HeaderValue, _>| {
        if let Ok(value) = value {
            let _: Result<_, hyper::header::MaxSizeReached> = headers.try_insert(name, value);
        }
    };
    let client = info.client();
    if let Ok(client) = &client {
        say(X_REAL_IP, Ok(client.clone()));
    }
    let list = info.hop_info.and_then(|hop_info| hop_info.list.as_deref());
    // A list that trusted hops wrote is kept, and the last hop is added at its end.
    let with = |last: String| match list {
        Some(list) => HeaderValue::try_from([list, last.as_bytes()].join(&b", "[..])),
        None => HeaderValue::try_from(last),
    };
    match info.header {
        Some(ForwardedHeader::XForwardedFor) => {
            say(X_FORWARDED_FOR, with(info.address.to_string()));
        }
        Some(ForwardedHeader::Forwarded) => {
            say(X_FORWARDED_FOR, client);
            let authority = info.authority.and_then(|authority| authority.to_str().ok());
            let element = forwarded::element(info.address, info.scheme, authority);
            say(FORWARDED, with(element));
        }
        None => say(X_FORWARDED_FOR, client),
    }
    let scheme = info.scheme().as_str();
    say(X_FORWARDED_PROTO, Ok(HeaderValue::from_static(scheme)));
    let port = match info.port() {
        80 => HeaderValue::from_static("80"),
        443 => HeaderValue::from_static("443"),
        port => HeaderValue::from(port),
    };
    say(X_FORWARDED_PORT, Ok(port));
    match (
        info.hop_info.and_then(|hop_info| hop_info.host.clone()),
        info.authority,
    ) {
        (Some(host), _) => say(X_FORWARDED_HOST, Ok(host)),
        (None, Some(authority)) => say(X_FORWARDED_HOST, Ok(authority.clone())),
        (None, None) => {}
    }
    say(X_REQUEST_ID, Ok(info.request_id.clone()));
}

/// Copies the values of a head. As they arrive, they share the buffer into which the head was read. So they would keep
/// all of it in memory until the client has read the head. Long values that share their bytes have one copy, because in
/// HTTP/2 a client can repeat a value without sending it again.
pub(super) fn detach(headers: &mut HeaderMap) {
    let mut copies: Vec<(usize, HeaderValue)> = Vec::new();
    for value in headers.values_mut() {
        let from = value.as_bytes().as_ptr().addr();
        let is_long = value.len() >= LONG;
        let is_copy = |(at, copy): &&(usize, HeaderValue)| *at == from && copy.len() == value.len();
        let known = is_long.then(|| copies.iter().find(is_copy)).flatten();
        let is_new = is_long && known.is_none();
        let detached = match known {
            Some((_, copy)) => Some(copy.clone()),
            None => copied(value),
        };
        if let Some(detached) = detached {
            if is_new {
                copies.push((from, detached.clone()));
            }
            *value = detached;
        }
    }
}

/// Copies the path and the authority of a request for the same reason, with one allocation for each. However short they are,
/// they would keep the buffer into which a connection reads its frames.
pub(super) fn detach_target<B>(request: &mut Request<B>) {
    let mut parts = request.uri().clone().into_parts();
    let path = parts.path_and_query.take();
    parts.path_and_query = path.map(|path| {
        // An empty path shows itself as `/`, so what is read of its text is another one.
        let copy = PathAndQuery::try_from(path.as_str()).ok();
        copy.filter(|copy| *copy == path).unwrap_or(path)
    });
    let authority = parts.authority.take();
    parts.authority =
        authority.map(|authority| Authority::try_from(authority.as_str()).unwrap_or(authority));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// A value that shares no memory with this one.
pub(super) fn copied(value: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_target_that_is_copied_is_the_same_and_keeps_no_frame() {
        let frame = Bytes::from(b"/path?query".to_vec());
        let other_frame = Bytes::from(b"a.example.com".to_vec());
        let mut parts = Uri::from_static("http://b.example.com").into_parts();
        parts.path_and_query = Some(PathAndQuery::from_maybe_shared(frame.clone()).unwrap());
        parts.authority = Some(Authority::from_maybe_shared(other_frame.clone()).unwrap());
        let shared = Uri::from_parts(parts).unwrap();
        let mut request = Request::new(());
        *request.uri_mut() = shared.clone();
        let host = |request: &Request<()>| request.uri().authority().unwrap().as_str().as_ptr();
        assert_eq!(request.uri().path().as_ptr(), frame.as_ptr());
        assert_eq!(host(&request), other_frame.as_ptr());
        detach_target(&mut request);
        assert_eq!(*request.uri(), shared);
        assert_ne!(request.uri().path().as_ptr(), frame.as_ptr());
        assert_ne!(host(&request), other_frame.as_ptr());
        // An empty path, and one without a host.
        for target in ["http://a.example.com", "*", "/path"] {
            let before = Uri::from_static(target).into_parts().path_and_query;
            let mut request = Request::get(target).body(()).unwrap();
            detach_target(&mut request);
            assert_eq!(request.uri().path_and_query(), before.as_ref(), "{target}");
        }
    }

    #[test]
    fn a_length_has_one_form() {
        for (given, expected) in [
            (&["5"][..], Some("5")),
            (&["0"], Some("0")),
            (&["00"], Some("0")),
            (&["010"], Some("10")),
            (&["05", "05"], Some("5")),
            (&["5, 5"], Some("5")),
            (&["5", "6"], None),
            (&["0x10"], None),
            (&["0-5"], None),
            (&[""], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(CONTENT_LENGTH, HeaderValue::from_static(value));
            }
            merge_lengths(&mut headers);
            let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
            let length = lengths.next().map(|value| value.to_str().unwrap());
            assert_eq!(length, expected, "{given:?}");
            assert_eq!(lengths.next(), None, "{given:?}");
        }
    }

    #[test]
    fn values_are_copied_once_however_often_they_are_there() {
        let buffer = Bytes::from(vec![b'b'; 4000]);
        let value =
            |at: std::ops::Range<usize>| HeaderValue::from_maybe_shared(buffer.slice(at)).unwrap();
        let mut headers = HeaderMap::new();
        for _ in 0..16 {
            headers.append("a", value(0..3900));
            headers.append("c", value(0..3000));
        }
        headers.append("b", value(0..10));
        let before = headers.clone();
        detach(&mut headers);
        assert_eq!(headers, before);
        let mut at: Vec<_> = headers
            .values()
            .map(|value| value.as_bytes().as_ptr().addr())
            .collect();
        assert!(!at.contains(&buffer.as_ptr().addr()));
        at.sort_unstable();
        at.dedup();
        assert_eq!(at.len(), 3);
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn circles_are_seen_and_other_ways_are_not() {
        let mut request = headers(&[("cdn-loop", "other.example; a=vestibule.dev, vestibule.dev")]);
        for passes in 1..=MAX_PASSES {
            let Some(passed) = Passed::of(&request) else {
                assert_eq!(passes, MAX_PASSES);
                return;
            };
            request.insert(CDN_LOOP, HeaderValue::from_static("from a filter"));
            passed.say(&mut request);
            let all = request.get_all(CDN_LOOP).iter();
            let all: Vec<_> = all.map(|value| value.to_str().unwrap()).collect();
            assert_eq!(all[0], "other.example; a=vestibule.dev, vestibule.dev");
            assert_eq!(all[1..], vec![OURS; passes]);
        }
        panic!("it goes on");
    }

    #[test]
    fn lists_have_a_number_of_entries() {
        let list = |name: &'static str, entry: &str, entries: usize| {
            let value = vec![entry; entries].join(",");
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::try_from(value).unwrap());
            headers
        };
        for (name, most) in [("connection", 64), ("cdn-loop", 32)] {
            for entry in ["a", "", " b "] {
                assert!(!have_long_lists(&list(name, entry, most)), "{name}");
                assert!(have_long_lists(&list(name, entry, most + 1)), "{name}");
            }
            // In one field or in several.
            let mut several = list(name, "a", most - 1);
            several.append(name, HeaderValue::from_static("b"));
            assert!(!have_long_lists(&several));
            several.append(name, HeaderValue::from_static(""));
            assert!(have_long_lists(&several));
        }
        assert!(!have_long_lists(&list("x-other", "a", 10_000)));
    }

    #[test]
    fn hop_by_hop_fields_stay_between_neighbours() {
        let mut request = headers(&[
            ("connection", "keep-alive, X-Own"),
            ("connection", "te"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("te", "gzip, trailers;q=1"),
            ("transfer-encoding", "chunked"),
            ("x-own", "1"),
            ("expect", "100-continue"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("authorization", "stays"),
        ]);
        assert!(!strip_request(&mut request));
        assert_eq!(request, headers(&[("authorization", "stays")]));
        let mut request = headers(&[("te", "trailers"), ("trailer", "x-sum")]);
        strip_request(&mut request);
        assert_eq!(
            request,
            headers(&[("trailer", "x-sum"), ("te", "trailers")])
        );
        let with = |upgrade| headers(&[("connection", "Upgrade"), ("upgrade", upgrade)]);
        assert!(strip_request(&mut with("WebSocket")));
        assert!(!strip_request(&mut with("h2c")));
        assert!(!strip_request(&mut headers(&[("upgrade", "websocket")])));
    }

    #[test]
    fn values_of_a_response_have_no_white_space_around_them() {
        let given = [
            ("x-a", " a\t"),
            ("x-b", "b c"),
            ("x-c", "\t \t"),
            ("x-d", ""),
        ];
        let trimmed = headers(&[("x-a", "a"), ("x-b", "b c"), ("x-c", ""), ("x-d", "")]);
        let mut response = Response::new(());
        *response.headers_mut() = headers(&given);
        strip_response(&mut response);
        assert_eq!(*response.headers(), trimmed);
        let mut trailers = headers(&given);
        strip_response_trailers(&mut trailers);
        assert_eq!(trailers, trimmed);
    }

    #[test]
    fn te_is_for_the_neighbour_alone() {
        let said = |given: &[_]| {
            let mut request = headers(given);
            say_trailers(&mut request);
            request
        };
        let te = ("te", "trailers");
        assert_eq!(said(&[te]), headers(&[te, ("connection", "te")]));
        // Twice, as when a connection has ended before the request is written.
        let again = [te, ("connection", "te")];
        assert_eq!(said(&again), headers(&again));
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        assert_eq!(said(&[&[te][..], &upgrade[..]].concat()), headers(&upgrade));
        assert_eq!(said(&[]), headers(&[]));
    }

    #[test]
    fn claims_of_a_client_are_replaced() {
        let mut request = headers(&[
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
            ("x-forwarded-prefix", "/evil"),
            ("forwarded", "for=192.0.2.1"),
            ("x-real-ip", "192.0.2.1"),
            ("x-request-id", "forged"),
            ("x-other", "stays"),
        ]);
        drop_claims(&mut request, Underscores::default());
        set_forwarded(
            &mut request,
            &ForwardedInfo {
                address: [198, 51, 100, 7].into(),
                address_value: &HeaderValue::from_static("198.51.100.7"),
                scheme: Scheme::Https,
                authority: Some(&HeaderValue::from_static("a.example.com:8443")),
                port: 443,
                header: None,
                hop_info: None,
                request_id: &HeaderValue::from_static("made"),
            },
        );
        let expected = headers(&[
            ("x-other", "stays"),
            ("x-real-ip", "198.51.100.7"),
            ("x-forwarded-for", "198.51.100.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-host", "a.example.com:8443"),
            ("x-request-id", "made"),
        ]);
        assert_eq!(request, expected);
    }

    #[test]
    fn claims_of_a_trusted_hop_are_kept_and_added_to() {
        let hop_info = HopInfo {
            client: [203, 0, 113, 9].into(),
            list: Some(b"192.0.2.1, 203.0.113.9".to_vec()),
            scheme: Some(Scheme::Https),
            host: Some(HeaderValue::from_static("a.example.com")),
            port: Some(443),
            request_id: None,
        };
        let say = |header| {
            let info = ForwardedInfo {
                address: [198, 51, 100, 7].into(),
                address_value: &HeaderValue::from_static("198.51.100.7"),
                scheme: Scheme::Http,
                authority: Some(&HeaderValue::from_static("inner:80")),
                port: 80,
                header: Some(header),
                hop_info: Some(&hop_info),
                request_id: &HeaderValue::from_static("kept"),
            };
            let mut request = HeaderMap::new();
            set_forwarded(&mut request, &info);
            request
        };
        let of_both = [
            ("x-real-ip", "203.0.113.9"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-host", "a.example.com"),
            ("x-request-id", "kept"),
        ];
        let mut expected = headers(&of_both);
        expected.append(
            X_FORWARDED_FOR,
            HeaderValue::from_static("192.0.2.1, 203.0.113.9, 198.51.100.7"),
        );
        assert_eq!(say(ForwardedHeader::XForwardedFor), expected);
        let mut expected = headers(&of_both);
        expected.append(X_FORWARDED_FOR, HeaderValue::from_static("203.0.113.9"));
        expected.append(
            FORWARDED,
            HeaderValue::from_static(
                "192.0.2.1, 203.0.113.9, for=198.51.100.7;host=\"inner:80\";proto=http",
            ),
        );
        assert_eq!(say(ForwardedHeader::Forwarded), expected);
    }

    #[test]
    fn underscores_are_dropped_or_cannot_pass_for_dashes() {
        let all = [
            ("x_forwarded_for", "192.0.2.1"),
            ("x-forwarded_proto", "https"),
            ("x_real_ip", "192.0.2.1"),
            ("transfer_encoding", "chunked"),
            ("content_length", "5"),
            ("x_own", "1"),
            ("x-other", "stays"),
        ];
        let mut request = headers(&all);
        assert!(have_underscores(&request));
        drop_claims(&mut request, Underscores::Drop);
        assert_eq!(request, headers(&[("x-other", "stays")]));
        assert!(!have_underscores(&request));
        let mut request = headers(&all);
        drop_claims(&mut request, Underscores::Allow);
        let expected = headers(&[("x_own", "1"), ("x-other", "stays")]);
        assert_eq!(request, expected);
    }

    #[test]
    fn trailers_are_no_way_around() {
        let all = [
            ("connection", "x-named"),
            ("x-named", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("host", "b.example.com"),
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
            ("x_forwarded_for", "192.0.2.1"),
            ("cookie", "a=1"),
            ("authorization", "x"),
            ("x-edited", "1"),
            ("x_own", "1"),
            ("x-sum", "42"),
        ];
        let edited = [HeaderName::from_static("x-edited")];
        let mut request = headers(&all);
        strip_request_trailers(&mut request, Underscores::Refuse, &edited);
        assert_eq!(request, headers(&[("x-sum", "42")]));
        let mut request = headers(&all);
        strip_request_trailers(&mut request, Underscores::Allow, &edited);
        assert_eq!(request, headers(&[("x_own", "1"), ("x-sum", "42")]));
        let mut response = headers(&[
            ("connection", "x-named"),
            ("x-named", "1"),
            ("te", "gzip"),
            ("content-length", "5"),
            ("grpc-status", "0"),
            ("grpc-message", "x"),
            ("x_own", "1"),
        ]);
        strip_response_trailers(&mut response);
        let expected = headers(&[("grpc-status", "0"), ("grpc-message", "x"), ("x_own", "1")]);
        assert_eq!(response, expected);
    }
}
