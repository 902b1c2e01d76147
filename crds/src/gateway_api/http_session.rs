//! Session persistence of the rules of HTTPRoutes and GRPCRoutes on the wire (`SessionPersistence`, GEP-1619), and its
//! conversion.
//!
//! v1.7 moved `sessionName` to `cookie.name` and `header.name`, and `cookieConfig` to `cookie`; v1.6 removed
//! `idleTimeout`. Objects of all three forms are read.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{HttpRule, SessionCarrier, SessionPersistence as Session};

use super::http_syntax::{FRAMING, is_token};
use crate::duration;
use crate::text::quote;

/// Most characters of a name (`CookieName`, `HeaderName`).
const MAX_NAME: usize = 256;
/// Most characters of the path of a cookie.
const MAX_PATH: usize = 1024;
/// Headers that have a meaning of their own. A token in one of them would change the meaning of a request or response.
const OTHERS: [&str; 18] = [
    "accept",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "forwarded",
    "host",
    "location",
    "origin",
    "set-cookie",
    "vary",
    "via",
    "www-authenticate",
    "x-request-id",
];
/// Beginnings of further such headers.
const OTHERS_BEGIN: [&str; 4] = ["access-control-", "grpc-", "sec-", "x-forwarded-"];
/// Shortest duration of a session. Sessions are counted in seconds.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// SessionPersistence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPersistence {
    /// Cookie (the default) or Header.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Time from the beginning of a session to its end (GEP-2257).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<String>,
    /// Of type Cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<CookieConfig>,
    /// Of type Header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderConfig>,
    /// Before v1.7: the name of the cookie or header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// Before v1.7: as `cookie`, with a lifetime only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_config: Option<CookieConfig>,
    /// Before v1.6, and honoured by nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
}

/// CookieConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CookieConfig {
    /// Name; absent is one that no other rule has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The attribute `Path`; absent is `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Session (the default) or Permanent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_type: Option<String>,
}

/// HeaderConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderConfig {
    /// Name.
    #[serde(default)]
    pub name: String,
}

/// Converts the session persistence of the rule at `field`; `None` if it is refused.
pub(super) fn convert(
    wire: SessionPersistence,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Option<Session> {
    let before = findings.len();
    let mut reader = Reader {
        field: format!("{field}.sessionPersistence"),
        findings,
    };
    let session = reader.read(wire);
    let refused = findings.iter().skip(before).any(Finding::refuses);
    session.filter(|_| !refused)
}

/// Warns about rules of one route that use one name for two sessions. The token of one would replace that of the other,
/// so a client that uses both keeps neither session.
pub(super) fn warn_of_shared_names(rules: &mut [HttpRule]) {
    for index in 1..rules.len() {
        let (before, rest) = rules.split_at_mut(index);
        let Some(rule) = rest.first_mut() else {
            return;
        };
        let Some(carrier) = rule.session.as_ref().map(|session| &session.carrier) else {
            continue;
        };
        let is_same = |other: &SessionCarrier| match (carrier, other) {
            (SessionCarrier::Header(name), SessionCarrier::Header(other)) => name == other,
            (
                SessionCarrier::Cookie {
                    name: Some(name),
                    path,
                    ..
                },
                SessionCarrier::Cookie {
                    name: Some(other),
                    path: elsewhere,
                    ..
                },
            ) => name == other && path == elsewhere,
            _ => false,
        };
        let mut others = before.iter().filter_map(|rule| rule.session.as_ref());
        if others.any(|other| is_same(&other.carrier)) {
            rule.findings.push(Finding::warning(
                Reason::Duplicate,
                format!("{}.sessionPersistence", rule.field),
                "has the name of an earlier rule's session, so a client that uses both rules loses its sessions",
                "give each rule a name of its own for its sessions",
            ));
        }
    }
}

struct Reader<'a> {
    field: String,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    fn refuse(&mut self, reason: Reason, part: &str, message: String, action: &str) {
        let field = format!("{}.{part}", self.field);
        self.findings
            .push(Finding::refused(reason, field, message, action));
    }

    fn warn(&mut self, part: &str, message: &str, action: &str) {
        let field = format!("{}.{part}", self.field);
        let reason = Reason::UnsupportedValue;
        self.findings
            .push(Finding::warning(reason, field, message, action));
    }

    fn read(&mut self, wire: SessionPersistence) -> Option<Session> {
        if wire.idle_timeout.is_some() {
            let message = "was removed from the API in v1.6 and has no effect";
            self.warn("idleTimeout", message, "remove it, or use absoluteTimeout");
        }
        let absolute_timeout = wire.absolute_timeout.and_then(|text| self.timeout(&text));
        let carrier = match wire.kind.as_deref().unwrap_or("Cookie") {
            "Cookie" => {
                if wire.header.is_some() {
                    self.belongs_to("header", "Header");
                }
                let old = wire.cookie_config.is_some() || wire.session_name.is_some();
                if wire.cookie.is_some() && old {
                    let message = "has no effect beside cookie, which took its place in v1.7";
                    let part = match wire.session_name {
                        Some(_) => "sessionName",
                        None => "cookieConfig",
                    };
                    self.warn(part, message, "remove it");
                }
                let (part, cookie) = match (wire.cookie, wire.cookie_config) {
                    (Some(cookie), _) => ("cookie", cookie),
                    (None, old) => (
                        "cookieConfig",
                        CookieConfig {
                            name: wire.session_name,
                            ..old.unwrap_or_default()
                        },
                    ),
                };
                self.cookie(part, cookie, absolute_timeout)?
            }
            "Header" => {
                for (is_there, part) in [
                    (wire.cookie.is_some(), "cookie"),
                    (wire.cookie_config.is_some(), "cookieConfig"),
                ] {
                    if is_there {
                        self.belongs_to(part, "Cookie");
                    }
                }
                let (part, name) = match wire.header {
                    Some(header) => ("header.name", Some(header.name)),
                    None => ("sessionName", wire.session_name),
                };
                let Some(name) = name else {
                    let message = "is absent, and clients have to know which header to send back";
                    self.refuse(
                        Reason::InvalidValue,
                        "header.name",
                        message.into(),
                        "add it",
                    );
                    return None;
                };
                self.header(part, &name)?
            }
            other => {
                let message = format!("{} is a type this release does not know", quote(other));
                self.refuse(
                    Reason::UnsupportedValue,
                    "type",
                    message,
                    "use Cookie or Header",
                );
                return None;
            }
        };
        Some(Session {
            carrier,
            absolute_timeout,
        })
    }

    fn belongs_to(&mut self, part: &str, kind: &str) {
        let message = format!("is for sessions of type {kind}");
        let action = "remove it, or change the type";
        self.refuse(Reason::InvalidValue, part, message, action);
    }

    fn timeout(&mut self, text: &str) -> Option<Duration> {
        let read = duration::parse(text);
        match read {
            None => self.refuse(
                Reason::InvalidValue,
                "absoluteTimeout",
                format!("{} is not a duration", quote(text)),
                "use numbers with the units h, m, s and ms, such as \"1h30m\"",
            ),
            Some(time) if time < MIN_TIMEOUT => self.refuse(
                Reason::UnsupportedValue,
                "absoluteTimeout",
                format!("{} is too short for a session", quote(text)),
                "use 1s or more",
            ),
            Some(_) => {}
        }
        read
    }

    fn cookie(
        &mut self,
        part: &str,
        wire: CookieConfig,
        absolute_timeout: Option<Duration>,
    ) -> Option<SessionCarrier> {
        let permanent = match wire.lifetime_type.as_deref().unwrap_or("Session") {
            "Session" => false,
            "Permanent" => true,
            other => {
                let message = format!("{} is a type this release does not know", quote(other));
                let part = format!("{part}.lifetimeType");
                let action = "use Session or Permanent";
                self.refuse(Reason::UnsupportedValue, &part, message, action);
                return None;
            }
        };
        if permanent && absolute_timeout.is_none() {
            self.refuse(
                Reason::InvalidValue,
                "absoluteTimeout",
                "is absent or no duration, and a permanent cookie needs one".into(),
                "add it, such as \"24h\"",
            );
        }
        if let Some(name) = &wire.name
            && !(is_token(name) && name.len() <= MAX_NAME)
        {
            let name_part = match part {
                "cookie" => "cookie.name",
                _ => "sessionName",
            };
            let message = format!("{} is not the name of a cookie", quote(name));
            let action = "use letters, digits, '-', '_' and '.', at most 256";
            self.refuse(Reason::InvalidValue, name_part, message, action);
        }
        let path = wire.path.unwrap_or_else(|| "/".to_owned());
        let fits = |b: u8| (b' '..=b'~').contains(&b) && b != b';';
        if !path.starts_with('/') || path.len() > MAX_PATH || !path.bytes().all(fits) {
            let message = format!("{} is not the path of a cookie", quote(&path));
            let action = "begin it with '/', and use neither ';' nor characters beyond ASCII";
            self.refuse(
                Reason::InvalidValue,
                &format!("{part}.path"),
                message,
                action,
            );
        }
        Some(SessionCarrier::Cookie {
            name: wire.name.map(Into::into),
            path: path.into(),
            permanent,
        })
    }

    fn header(&mut self, part: &str, name: &str) -> Option<SessionCarrier> {
        let lower = name.to_ascii_lowercase();
        if !is_token(name) || name.len() > MAX_NAME {
            let message = format!("{} is not the name of a header", quote(name));
            let action = "use letters, digits and '-', at most 256";
            self.refuse(Reason::InvalidValue, part, message, action);
            return None;
        }
        let is_other = OTHERS.contains(&&*lower)
            || FRAMING.contains(&&*lower)
            || OTHERS_BEGIN.iter().any(|begin| lower.starts_with(begin));
        if is_other {
            let message = format!("{} has another meaning in HTTP", quote(name));
            let action = "use a name of your own, such as X-Session";
            self.refuse(Reason::UnsupportedValue, part, message, action);
            return None;
        }
        if lower.contains('_') {
            let message = "has an underscore, and by default proxies drop such headers of requests";
            self.warn(part, message, "use '-' instead");
        }
        Some(SessionCarrier::Header(lower.into()))
    }
}
