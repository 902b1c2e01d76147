//! Owns session persistence. A client keeps a token, and the token says at which endpoint of each backend its requests
//! stay.
//!
//! A token is sealed with a key of its rule (AES-256-GCM-SIV), so nobody without the key can read it. It contains one
//! entry for each backend of the rule that the client has used: the backend, the beginning of the session, and the
//! address of the endpoint. So a client learns no address, cannot forge one, and cannot use the token of another rule.
//! All proxies have the same keys, so each accepts the tokens of the others. An address counts only if it is an
//! endpoint of the backend that was chosen by weight.
//!
//! The work that a client can cause is bounded: the proxy looks at `MAX_VALUES` values of at most `MAX_TEXT`
//! characters, and tries at most `MAX_KEYS` keys for each.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use rustls_pki_types::UnixTime;
use sha2::{Digest, Sha256};

use super::header_edit::HeaderEdit;

/// Most keys of a rule: the one that seals, former ones, and the one that will seal next.
pub const MAX_KEYS: usize = 4;
/// Most values of a request that are read. A client may have cookies of one name for several paths.
const MAX_VALUES: usize = 4;
/// Most backends in one token. A rule has no more than these (`MaxItems` of the CRD).
const MAX_ENTRIES: usize = 16;
/// Bytes of an entry: backend, beginning, address and port.
const ENTRY: usize = 4 + 4 + 16 + 2;
/// Bytes that AES-GCM-SIV adds at the end.
const TAG: usize = 16;
/// Length of the longest token in characters.
pub const MAX_TEXT: usize = (NONCE_LEN + MAX_ENTRIES * ENTRY + TAG).div_ceil(3) * 4;
/// Bytes of a key.
const KEY: usize = 32;
/// Additional authenticated data of a token. It names the form of the content, and a new form needs a new text.
const FORM: &[u8] = b"vestibule session 1";

/// The present time, in seconds since the Unix epoch. It is wrong from 2106 on, when sessions without an end begin
/// again.
pub(crate) fn now() -> u32 {
    u32::try_from(UnixTime::now().as_secs()).unwrap_or(u32::MAX)
}

/// Whether `text` can be the name of a cookie (RFC 6265: a token).
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=256).contains(&text.len()) && text.bytes().all(is_token)
}

/// Whether `text` can be the path of a cookie (RFC 6265: nothing that ends the attribute).
#[must_use]
pub fn is_path(text: &str) -> bool {
    let fits = |b: u8| (b' '..=b'~').contains(&b) && b != b';';
    text.starts_with('/') && text.len() <= 1024 && text.bytes().all(fits)
}

/// The session persistence of a rule.
pub struct Session {
    carrier: Carrier,
    /// How long a session lasts, in seconds.
    lifetime: Option<u32>,
    /// The keys. There is at least one, and the first one seals.
    keys: Box<[LessSafeKey]>,
}

/// How a client receives its token and sends it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carrier {
    /// As a cookie.
    Cookie {
        /// See [`is_name`].
        name: Box<str>,
        /// See [`is_path`].
        path: Box<str>,
        /// Whether the cookie outlives the browser.
        permanent: bool,
    },
    /// As a header of this name.
    Header(HeaderName),
}

impl fmt::Debug for Session {
    /// The output does not contain the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("carrier", &self.carrier)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// The form in the dump of the configuration.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.carrier {
            Carrier::Cookie { name, .. } => write!(f, "cookie {name}"),
            Carrier::Header(name) => write!(f, "header {name}"),
        }
    }
}

/// A session with one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    backend: u32,
    /// Beginning of the session, in seconds since the Unix epoch.
    began: u32,
    endpoint: SocketAddr,
}

/// The sessions with the backends of a rule that the token of a client contains.
#[derive(Debug, Default)]
pub struct Presented {
    /// Sessions that have not ended.
    entries: Vec<Entry>,
    /// Backends whose session has ended.
    ended: Vec<u32>,
    /// Whether the token was sealed with another key than the first.
    is_old: bool,
    /// Whether the client came over TLS.
    secure: bool,
    /// Why there is no session with a backend that is in neither list.
    otherwise: SessionOutcome,
}

impl Presented {
    /// Adds the entry of a token, unless another token has a newer one for the same backend.
    fn add(&mut self, entry: Entry, is_old: bool) {
        let mut known = self.entries.iter_mut();
        match known.find(|known| known.backend == entry.backend) {
            Some(known) if known.began >= entry.began => return,
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        self.is_old |= is_old;
    }

    /// The endpoint of the session with this backend.
    #[must_use]
    pub fn at(&self, backend: &str) -> Option<SocketAddr> {
        let backend = number(backend);
        let found = self.entries.iter().find(|entry| entry.backend == backend);
        found.map(|entry| entry.endpoint)
    }
}

/// What happened to the client's session with the backend that answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SessionOutcome {
    /// The request was answered by the endpoint of its session.
    Kept,
    /// The client had no session with this backend, so there is a new one.
    #[default]
    Began,
    /// The endpoint is gone or failed, so there is a new session with another one.
    Moved,
    /// The session had ended, so there is a new one.
    Expired,
    /// The client sent something that is not a token of this rule, so there is a new session.
    Unreadable,
}

impl SessionOutcome {
    /// The metric label.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "Kept",
            Self::Began => "Began",
            Self::Moved => "Moved",
            Self::Expired => "Expired",
            Self::Unreadable => "Unreadable",
        }
    }
}

impl Session {
    /// The session persistence of a rule. It is `None` if a key is malformed, or if there are no keys or too many.
    pub fn new<'a>(
        carrier: Carrier,
        lifetime: Option<Duration>,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Self> {
        let key = |bytes: &[u8]| {
            let bytes = (bytes.len() == KEY).then_some(bytes)?;
            let key = UnboundKey::new(&AES_256_GCM_SIV, bytes).ok()?;
            Some(LessSafeKey::new(key))
        };
        let keys: Box<[LessSafeKey]> = keys.into_iter().map(key).collect::<Option<_>>()?;
        // A shorter time than a second counts as one second.
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1);
        (1..=MAX_KEYS).contains(&keys.len()).then_some(Self {
            carrier,
            lifetime: lifetime.map(seconds),
            keys,
        })
    }

    /// Reads the tokens in a request. `secure` says whether the client came over TLS.
    pub fn open(&self, headers: &HeaderMap, secure: bool, now: u32) -> Presented {
        let mut presented = Presented {
            secure,
            ..Presented::default()
        };
        let mut is_read = false;
        // A client sends all cookies of one name, even if they are for different paths. The newest entries count,
        // whichever cookie comes first.
        for value in self.values(headers) {
            let Some((entries, is_old)) = self.unseal(value) else {
                presented.otherwise = SessionOutcome::Unreadable;
                continue;
            };
            is_read = true;
            for entry in entries {
                if self.left(&entry, now) == Some(0) {
                    presented.ended.push(entry.backend);
                } else {
                    presented.add(entry, is_old);
                }
            }
        }
        if is_read {
            presented.otherwise = SessionOutcome::Began;
        }
        presented
    }

    /// Decides about the session after an endpoint has answered (`answered` is backend and endpoint). Returns the
    /// outcome and, if the client needs a new token, the header change that gives it to the client.
    pub(crate) fn settle(
        &self,
        presented: Presented,
        (backend, endpoint): (&str, SocketAddr),
        now: u32,
    ) -> (SessionOutcome, Option<HeaderEdit>) {
        let before = presented.at(backend);
        let outcome = match before {
            Some(before) if before == endpoint => SessionOutcome::Kept,
            Some(_) => SessionOutcome::Moved,
            None if presented.ended.contains(&number(backend)) => SessionOutcome::Expired,
            None => presented.otherwise,
        };
        let secure = presented.secure;
        let mut entries = presented.entries;
        if outcome == SessionOutcome::Kept {
            if !presented.is_old {
                return (outcome, None);
            }
        } else {
            let backend = number(backend);
            entries.retain(|entry| entry.backend != backend);
            // The newest entry comes first, so that it stays if there are too many.
            let began = now;
            entries.insert(
                0,
                Entry {
                    backend,
                    began,
                    endpoint,
                },
            );
            entries.truncate(MAX_ENTRIES);
        }
        (outcome, self.tell(&entries, secure, now))
    }

    /// The values of a request that may be tokens, up to `MAX_VALUES` of them.
    fn values<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
        let (field, cookie) = match &self.carrier {
            Carrier::Cookie { name, .. } => (&COOKIE, Some(name.as_bytes())),
            Carrier::Header(name) => (name, None),
        };
        let fields = headers.get_all(field).into_iter();
        let values = fields.flat_map(move |field| {
            let field = field.as_bytes();
            let pairs = cookie.map(|name| {
                let pairs = field.split(|byte| *byte == b';');
                pairs.filter_map(move |pair| {
                    let pair = pair.trim_ascii();
                    pair.strip_prefix(name)?.strip_prefix(b"=")
                })
            });
            let whole = cookie.is_none().then_some(field);
            pairs.into_iter().flatten().chain(whole)
        });
        values.take(MAX_VALUES)
    }

    /// The entries of a token, and whether it was sealed with an old key. It is `None` if the text is not a token of
    /// this rule.
    fn unseal(&self, text: &[u8]) -> Option<(Vec<Entry>, bool)> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed_again = sealed.to_vec();
        for (index, key) in self.keys.iter().enumerate() {
            // A failed attempt overwrites its input, so each one begins with a fresh copy.
            sealed_again.clear();
            sealed_again.extend_from_slice(sealed);
            let nonce = Nonce::assume_unique_for_key(*nonce);
            if let Ok(opened) = key.open_in_place(nonce, Aad::from(FORM), &mut sealed_again) {
                return Some((read(opened)?, index > 0));
            }
        }
        None
    }

    /// Makes a token. It is `None` if there is no randomness. Then the request is served without one.
    fn seal(&self, entries: &[Entry]) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = write(entries);
        let key = self.keys.first()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(FORM), &mut sealed)
            .ok()?;
        let mut token = nonce.to_vec();
        token.append(&mut sealed);
        Some(BASE64_URL_SAFE_NO_PAD.encode(token))
    }

    /// Seconds until a session ends; `None` if it never does.
    fn left(&self, entry: &Entry, now: u32) -> Option<u32> {
        // The clocks of proxies differ, so a session may seem to begin in the future. Then it begins now.
        let age = now.saturating_sub(entry.began);
        self.lifetime.map(|lifetime| lifetime.saturating_sub(age))
    }

    fn tell(&self, entries: &[Entry], secure: bool, now: u32) -> Option<HeaderEdit> {
        let token = self.seal(entries)?;
        let (name, path, permanent) = match &self.carrier {
            Carrier::Header(name) => {
                let value = HeaderValue::try_from(token).ok()?;
                return Some(HeaderEdit {
                    set: [(name.clone(), value)].into(),
                    ..HeaderEdit::default()
                });
            }
            Carrier::Cookie {
                name,
                path,
                permanent,
            } => (name, path, *permanent),
        };
        let mut text = format!("{name}={token}; Path={path}; HttpOnly; SameSite=Strict");
        if secure {
            text.push_str("; Secure");
        }
        let left = entries.iter().filter_map(|entry| self.left(entry, now));
        if let Some(seconds) = left.max().filter(|_| permanent) {
            text.push_str("; Max-Age=");
            text.push_str(&seconds.to_string());
        }
        let value = HeaderValue::try_from(text).ok()?;
        Some(HeaderEdit {
            add: [(SET_COOKIE, value)].into(),
            ..HeaderEdit::default()
        })
    }
}

/// The number of a backend in a token.
fn number(backend: &str) -> u32 {
    let digest = Sha256::digest(backend.as_bytes());
    digest.first_chunk().copied().map_or(0, u32::from_be_bytes)
}

fn write(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY + TAG);
    for entry in entries {
        let ip = match entry.endpoint.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes.extend_from_slice(&entry.backend.to_be_bytes());
        bytes.extend_from_slice(&entry.began.to_be_bytes());
        bytes.extend_from_slice(&ip.octets());
        bytes.extend_from_slice(&entry.endpoint.port().to_be_bytes());
    }
    bytes
}

/// Reads entries; `None` if [`write`] did not make the bytes.
fn read(mut bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(bytes.len() / ENTRY);
    while !bytes.is_empty() {
        let (backend, rest) = bytes.split_first_chunk()?;
        let (began, rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk()?;
        bytes = rest;
        let ip = Ipv6Addr::from(*ip).to_canonical();
        entries.push(Entry {
            backend: u32::from_be_bytes(*backend),
            began: u32::from_be_bytes(*began),
            endpoint: SocketAddr::new(ip, u16::from_be_bytes(*port)),
        });
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u32 = 1_800_000_000;
    const WEB: &str = "team-a/web:80";
    const OTHER: &str = "team-a/other:80";

    fn endpoint(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 8080).into()
    }

    fn cookie(permanent: bool) -> Carrier {
        Carrier::Cookie {
            name: "sticky".into(),
            path: "/".into(),
            permanent,
        }
    }

    fn session(carrier: Carrier, lifetime: Option<u64>, keys: &[u8]) -> Session {
        let keys: Vec<[u8; KEY]> = keys.iter().map(|n| [*n; KEY]).collect();
        let keys = keys.iter().map(<[u8; KEY]>::as_slice);
        Session::new(carrier, lifetime.map(Duration::from_secs), keys).unwrap()
    }

    fn plain(keys: &[u8]) -> Session {
        session(cookie(false), None, keys)
    }

    fn cookies(text: &str) -> HeaderMap {
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        HeaderMap::from_iter([(COOKIE, value)])
    }

    fn told(edit: Option<HeaderEdit>) -> String {
        let mut headers = HeaderMap::new();
        edit.expect("the client is told").apply(&mut headers);
        let value = headers.values().next().unwrap();
        value.to_str().unwrap().to_owned()
    }

    /// `name=token` of a new session.
    fn begin(session: &Session, backend: &str, at: SocketAddr, now: u32) -> String {
        let fresh = session.open(&HeaderMap::new(), false, now);
        let (outcome, edit) = session.settle(fresh, (backend, at), now);
        assert_eq!(outcome, SessionOutcome::Began);
        told(edit).split(';').next().unwrap().to_owned()
    }

    #[test]
    fn a_token_names_one_endpoint_of_each_backend() {
        let session = plain(&[1]);
        let first = begin(&session, WEB, endpoint(1), NOW);
        let presented = session.open(&cookies(&first), false, NOW + 5);
        assert_eq!(presented.at(WEB), Some(endpoint(1)));
        assert_eq!(presented.at(OTHER), None);
        // The client already knows this session, so the response does not repeat it.
        let (outcome, edit) = session.settle(presented, (WEB, endpoint(1)), NOW + 5);
        assert!(edit.is_none());
        assert_eq!(outcome, SessionOutcome::Kept);
        // A session with another backend leaves the first one where it is.
        let presented = session.open(&cookies(&first), false, NOW + 5);
        let (outcome, edit) = session.settle(presented, (OTHER, endpoint(9)), NOW + 5);
        assert_eq!(outcome, SessionOutcome::Began);
        let presented = session.open(&cookies(&told(edit)), false, NOW + 5);
        let both = [WEB, OTHER].map(|backend| presented.at(backend));
        assert_eq!(both, [Some(endpoint(1)), Some(endpoint(9))]);
        // A session that moves to another endpoint replaces the one before.
        let (outcome, edit) = session.settle(presented, (WEB, endpoint(2)), NOW + 6);
        assert_eq!(outcome, SessionOutcome::Moved);
        let presented = session.open(&cookies(&told(edit)), false, NOW + 6);
        let both = [WEB, OTHER].map(|backend| presented.at(backend));
        assert_eq!(both, [Some(endpoint(2)), Some(endpoint(9))]);
    }

    #[test]
    fn cookies_have_attributes_by_how_they_are_asked_for() {
        let attributes = |carrier, lifetime, secure| {
            let session = session(carrier, lifetime, &[1]);
            let fresh = session.open(&HeaderMap::new(), secure, NOW);
            let (_, edit) = session.settle(fresh, (WEB, endpoint(1)), NOW);
            let told = told(edit);
            told.split_once("; ").unwrap().1.to_owned()
        };
        let base = "Path=/; HttpOnly; SameSite=Strict";
        assert_eq!(attributes(cookie(false), None, false), base);
        assert_eq!(attributes(cookie(false), Some(300), false), base);
        let secure = format!("{base}; Secure");
        assert_eq!(attributes(cookie(false), None, true), secure);
        let permanent = format!("{base}; Secure; Max-Age=300");
        assert_eq!(attributes(cookie(true), Some(300), true), permanent);
    }

    #[test]
    fn a_header_carries_the_token_alone() {
        let name = HeaderName::from_static("x-session");
        let session = session(Carrier::Header(name.clone()), None, &[1]);
        let fresh = session.open(&HeaderMap::new(), true, NOW);
        let (_, edit) = session.settle(fresh, (WEB, endpoint(1)), NOW);
        let mut headers = HeaderMap::new();
        edit.unwrap().apply(&mut headers);
        let presented = session.open(&headers, true, NOW);
        assert_eq!(presented.at(WEB), Some(endpoint(1)));
        assert_eq!(headers.keys().collect::<Vec<_>>(), [&name]);
    }

    #[test]
    fn the_end_of_a_session_is_in_its_token() {
        let session = session(cookie(true), Some(60), &[1]);
        let first = begin(&session, WEB, endpoint(1), NOW);
        let at = |now: u32| session.open(&cookies(&first), false, now).at(WEB);
        assert_eq!(at(NOW + 59), Some(endpoint(1)));
        assert_eq!(at(NOW + 60), None);
        // The clock of another proxy.
        assert_eq!(at(NOW - 7), Some(endpoint(1)));
        let presented = session.open(&cookies(&first), false, NOW + 60);
        let (outcome, edit) = session.settle(presented, (WEB, endpoint(2)), NOW + 60);
        assert_eq!(outcome, SessionOutcome::Expired);
        assert!(told(edit).ends_with("Max-Age=60"));
        // A session that the client never had cannot expire.
        let presented = session.open(&cookies(&first), false, NOW + 60);
        let (outcome, _) = session.settle(presented, (OTHER, endpoint(9)), NOW + 60);
        assert_eq!(outcome, SessionOutcome::Began);
        // A session with another backend does not lengthen it.
        let presented = session.open(&cookies(&first), false, NOW + 30);
        let (_, edit) = session.settle(presented, (OTHER, endpoint(9)), NOW + 30);
        let presented = session.open(&cookies(&told(edit)), false, NOW + 70);
        let both = [WEB, OTHER].map(|backend| presented.at(backend));
        assert_eq!(both, [None, Some(endpoint(9))]);
    }

    #[test]
    fn tokens_of_the_key_before_are_honoured_and_sealed_anew() {
        let old = begin(&plain(&[1]), WEB, endpoint(1), NOW);
        let session = plain(&[2, 1]);
        let presented = session.open(&cookies(&old), false, NOW + 9);
        assert_eq!(presented.at(WEB), Some(endpoint(1)));
        let (outcome, edit) = session.settle(presented, (WEB, endpoint(1)), NOW + 9);
        assert_eq!(outcome, SessionOutcome::Kept);
        let renewed = told(edit);
        let only_new = plain(&[2]);
        let presented = only_new.open(&cookies(&renewed), false, NOW + 9);
        assert_eq!(presented.at(WEB), Some(endpoint(1)));
        // The time of its beginning stays the same.
        assert_eq!(presented.entries[0].began, NOW);
        let presented = only_new.open(&cookies(&old), false, NOW + 9);
        assert_eq!(presented.at(WEB), None);
        let (outcome, _) = only_new.settle(presented, (WEB, endpoint(3)), NOW + 9);
        assert_eq!(outcome, SessionOutcome::Unreadable);
    }

    /// Cookies of several paths: a client sends that of the longest path first.
    #[test]
    fn the_newest_token_counts_whichever_comes_first() {
        let session = session(cookie(false), Some(60), &[1]);
        let old = begin(&session, WEB, endpoint(1), NOW);
        let new = begin(&session, WEB, endpoint(2), NOW + 30);
        for text in [format!("{old}; {new}"), format!("{new}; {old}")] {
            for now in [NOW + 31, NOW + 70] {
                let presented = session.open(&cookies(&text), false, now);
                assert_eq!(presented.at(WEB), Some(endpoint(2)), "{now}");
            }
        }
    }

    #[test]
    fn one_cookie_of_several_with_the_name_is_enough() {
        let session = plain(&[1]);
        let token = begin(&session, WEB, endpoint(1), NOW);
        let at = |text: &str| session.open(&cookies(text), false, NOW).at(WEB);
        let found = Some(endpoint(1));
        assert_eq!(at(&format!("a=b; sticky=forged; {token}; c")), found);
        assert_eq!(at(&format!("a=b;{token};c=d")), found);
        assert_eq!(at(&format!("un{token}")), None);
        assert_eq!(at(&token.replace("sticky", "Sticky")), None);
        // Values after the first `MAX_VALUES` are ignored.
        let many = "sticky=x; ".repeat(MAX_VALUES);
        assert_eq!(at(&format!("{many}{token}")), None);
        let fewer = "sticky=x; ".repeat(MAX_VALUES - 1);
        assert_eq!(at(&format!("{fewer}{token}")), found);
    }

    #[test]
    fn a_token_stays_bounded_however_many_backends_there_were() {
        let session = plain(&[1]);
        let mut cookie = begin(&session, WEB, endpoint(1), NOW);
        for n in 0..40 {
            let backend = format!("team-a/b{n}:80");
            let presented = session.open(&cookies(&cookie), false, NOW);
            let (_, edit) = session.settle(presented, (&backend, endpoint(n)), NOW);
            cookie = told(edit).split(';').next().unwrap().to_owned();
            assert!(cookie.len() <= "sticky=".len() + MAX_TEXT);
            let presented = session.open(&cookies(&cookie), false, NOW);
            assert_eq!(presented.at(&backend), Some(endpoint(n)));
        }
        let presented = session.open(&cookies(&cookie), false, NOW);
        assert_eq!(presented.entries.len(), MAX_ENTRIES);
        assert_eq!(presented.at(WEB), None);
    }

    #[test]
    fn keys_are_checked_and_not_shown() {
        let keys = |keys: &[&[u8]]| Session::new(cookie(false), None, keys.iter().copied());
        assert!(keys(&[]).is_none());
        assert!(keys(&[&[1; 31]]).is_none());
        assert!(keys(&[&[1; 33]]).is_none());
        assert!(keys(&[&[1; 32][..]; MAX_KEYS + 1]).is_none());
        let session = keys(&[&[0xAB; 32][..]; MAX_KEYS]).unwrap();
        let shown = format!("{session:?} {session}").to_lowercase();
        assert!(
            !shown.contains("ab, ab") && !shown.contains("171"),
            "{shown}"
        );
    }

    #[test]
    fn names_and_paths_cannot_carry_other_attributes() {
        assert!(is_name("JSESSIONID") && is_name("__Host-x.1"));
        let long = "a".repeat(257);
        for name in ["", "a b", "a=b", "a;b", "ä", "a\r", &*long] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_path("/") && is_path("/a b/c,d"));
        for path in ["", "a", "/a;b", "/\r\n", "/ä"] {
            assert!(!is_path(path), "{path:?}");
        }
    }

    fn an_endpoint() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(|ip| Ipv6Addr::from(ip).to_canonical()),
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn token_with_any_entries_is_opened_by_its_key_alone(
            entries in prop::collection::vec((any::<u32>(), any::<u32>(), an_endpoint()), 0..=MAX_ENTRIES),
            keys in prop::collection::hash_set(any::<u8>(), 2..=2),
        ) {
            let entries: Vec<Entry> = entries
                .into_iter()
                .map(|(backend, began, endpoint)| Entry { backend, began, endpoint })
                .collect();
            let keys: Vec<u8> = keys.into_iter().collect();
            let token = plain(&keys[..1]).seal(&entries).unwrap();
            prop_assert!(token.len() <= MAX_TEXT);
            let other = plain(&keys[1..]);
            prop_assert!(other.unseal(token.as_bytes()).is_none());
            let (read, _) = plain(&keys).unseal(token.as_bytes()).unwrap();
            prop_assert_eq!(read, entries);
        }

        #[test]
        fn a_token_that_was_changed_is_none(
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let session = plain(&[1]);
            let token = begin(&session, WEB, endpoint(1), NOW);
            let token = token.strip_prefix("sticky=").unwrap().as_bytes();
            prop_assert!(session.unseal(token).is_some());
            prop_assert!(session.unseal(&token[..cut.index(token.len())]).is_none());
            let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let changed = BASE64_URL_SAFE_NO_PAD.encode(bytes);
            prop_assert!(session.unseal(changed.as_bytes()).is_none());
        }

        #[test]
        fn no_value_of_a_client_is_trusted(text in prop::collection::vec(any::<u8>(), 0..2000)) {
            let session = plain(&[1, 2, 3, 4]);
            prop_assert!(session.unseal(&text).is_none());
            let mut value = b"sticky=".to_vec();
            value.extend(text.iter().filter(|byte| **byte >= b' ' && **byte != 127));
            let headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_bytes(&value).unwrap())]);
            let presented = session.open(&headers, false, NOW);
            prop_assert!(presented.entries.is_empty());
            let (outcome, edit) = session.settle(presented, (WEB, endpoint(1)), NOW);
            prop_assert_eq!(outcome, SessionOutcome::Unreadable);
            prop_assert!(edit.is_some());
        }
    }
}
