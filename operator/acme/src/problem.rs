//! Problems with a CA, in words that a person can act on.
//!
//! Texts of a CA are shown to tenants and go into objects, so they are cut and freed of control characters. Nothing of
//! an answer that is not a problem document is shown, because a tenant chooses the URL that is asked.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Deserialize;

/// Longest text of one detail, and of a whole message, in bytes.
const MAX_DETAIL: usize = 300;
const MAX_MESSAGE: usize = 900;
/// Longest type of a problem, in bytes.
const MAX_TYPE: usize = 200;
/// Largest number of subproblems that are shown.
const MAX_SUBPROBLEMS: usize = 5;
/// Prefix of the types in RFC 8555.
const ACME: &str = "urn:ietf:params:acme:error:";

/// The kind of failure, which decides when it is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The CA, or the store of Secrets, cannot be asked at the moment. Nothing is lost, and the same is tried again
    /// soon.
    Unreachable,
    /// The CA says that there were too many requests.
    RateLimited,
    /// An `ACMEIssuer` leads to an address that Vestibule does not connect to for tenants.
    NotAllowed,
    /// The CA refuses the account as a whole, which it says in answer to a request about the account.
    Account,
    /// The certificate being replaced has a successor already.
    AlreadyReplaced,
    /// The order does not exist any more, or is not in a state for the request.
    OrderGone,
    /// The CA could not check a name.
    Validation,
    /// The CA does not issue this. Trying again soon does not help.
    Rejected,
    /// Anything else.
    Other,
}

/// A failure of an order or an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcmeFailure {
    /// Its kind.
    pub(crate) kind: FailureKind,
    /// The explanation for people.
    pub(crate) message: String,
    /// Type of the CA's problem document, if it sent one.
    pub(crate) problem: Option<String>,
    /// How long the CA asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl AcmeFailure {
    /// A failure to reach something.
    #[must_use]
    pub(crate) fn unreachable(message: impl AsRef<str>) -> Self {
        Self::new(FailureKind::Unreachable, message)
    }

    /// Whether the CA may refuse the account as a whole, and not only what was asked with it.
    #[must_use]
    pub(crate) fn may_be_of_account(&self) -> bool {
        let kind = self.problem.as_deref();
        matches!(
            short(kind),
            "unauthorized" | "accountDoesNotExist" | "userActionRequired"
        )
    }

    /// Whether the CA says that a key has no account yet.
    #[must_use]
    pub(crate) fn is_of_unknown_key(&self) -> bool {
        let kind = self.problem.as_deref();
        matches!(
            short(kind),
            "accountDoesNotExist" | "externalAccountRequired"
        )
    }

    /// The same failure without what the CA says of it.
    #[must_use]
    pub(crate) fn without_words(self) -> Self {
        if self.problem.is_none() {
            return self;
        }
        Self {
            message: "the CA does not show the order for now".into(),
            ..self
        }
    }

    /// A failure of this kind. It makes the message fit to be shown.
    #[must_use]
    pub(crate) fn new(kind: FailureKind, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            message: clean(message.as_ref(), MAX_MESSAGE),
            problem: None,
            retry_after: None,
        }
    }
}

/// A problem document (RFC 7807 with RFC 8555's subproblems).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    /// Its type.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The CA's description of the problem.
    pub(crate) detail: Option<String>,
    /// One subproblem for each name.
    pub(crate) subproblems: Vec<Subproblem>,
}

/// The problem with one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Subproblem {
    /// Its type.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The CA's description of the problem.
    pub(crate) detail: Option<String>,
    /// The name that it concerns.
    pub(crate) identifier: Option<Identifier>,
}

/// A name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Identifier {
    /// The name.
    pub(crate) value: String,
}

impl Problem {
    /// Reads a problem document. It must have at least a type or a detail.
    #[must_use]
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(body)
            .ok()
            .filter(|problem| problem.kind.is_some() || problem.detail.is_some())
    }

    /// The type without the prefix of RFC 8555, or an empty text if it has another prefix.
    #[must_use]
    pub(crate) fn short(&self) -> &str {
        short(self.kind.as_deref())
    }

    /// Converts it to a failure. `asked` is what was asked of the CA.
    #[must_use]
    pub(crate) fn failure(
        &self,
        asked: AcmeOperation,
        status: u16,
        retry_after: Option<Duration>,
    ) -> AcmeFailure {
        // The reason for one name says more than the fact that several names have problems.
        let kind = match self.short() {
            "compound" => self
                .subproblems
                .first()
                .map_or("", |first| short(first.kind.as_deref())),
            kind => kind,
        };
        AcmeFailure {
            kind: classify(kind, asked, status),
            message: self.message(kind, asked),
            problem: self.kind.as_deref().map(|kind| clean(kind, MAX_TYPE)),
            retry_after,
        }
    }

    fn message(&self, kind: &str, asked: AcmeOperation) -> String {
        let mut text = String::from("the CA says: ");
        text.push_str(&clean(
            self.detail.as_deref().unwrap_or("(no detail)"),
            MAX_DETAIL,
        ));
        let shown = if kind.is_empty() {
            self.kind.as_deref().unwrap_or_default()
        } else {
            kind
        };
        if !shown.is_empty() {
            let _ = write!(text, " ({})", clean(shown, 80));
        }
        for part in self.subproblems.iter().take(MAX_SUBPROBLEMS) {
            let name = part
                .identifier
                .as_ref()
                .map_or("", |name| name.value.as_str());
            let detail = part.detail.as_deref().unwrap_or("(no detail)");
            let _ = write!(
                text,
                "; {}: {}",
                clean(name, 253),
                clean(detail, MAX_DETAIL)
            );
        }
        let hint = hint(kind, asked);
        if !hint.is_empty() {
            // The hint must not be cut off, so the rest is cut first.
            text = clean(&text, MAX_MESSAGE - hint.len() - 2);
            let _ = write!(text, ": {hint}");
        }
        clean(&text, MAX_MESSAGE)
    }
}

/// The operation that the CA refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcmeOperation {
    /// Something about an account.
    Account,
    /// A new order.
    Order,
    /// Something about an existing order.
    Progress,
}

fn short(kind: Option<&str>) -> &str {
    kind.and_then(|kind| kind.strip_prefix(ACME))
        .unwrap_or_default()
}

fn classify(kind: &str, asked: AcmeOperation, status: u16) -> FailureKind {
    match kind {
        "badNonce" => FailureKind::Unreachable,
        "rateLimited" => FailureKind::RateLimited,
        // A tenant chooses what is ordered, so no answer to an order is about the account that others use too.
        "accountDoesNotExist"
        | "externalAccountRequired"
        | "userActionRequired"
        | "invalidContact"
        | "unsupportedContact"
        | "badSignatureAlgorithm"
        | "badPublicKey"
            if asked == AcmeOperation::Account =>
        {
            FailureKind::Account
        }
        "unauthorized" => match asked {
            // The account's key does not belong to the account, or the account is deactivated.
            AcmeOperation::Account => FailureKind::Account,
            // The account may have no certificates for one of the names.
            AcmeOperation::Order => FailureKind::Rejected,
            AcmeOperation::Progress => FailureKind::Validation,
        },
        "alreadyReplaced" => FailureKind::AlreadyReplaced,
        "rejectedIdentifier" | "unsupportedIdentifier" | "caa" | "invalidProfile" | "badCSR" => {
            FailureKind::Rejected
        }
        "orderNotReady" => FailureKind::OrderGone,
        "connection" | "dns" | "tls" | "incorrectResponse" => FailureKind::Validation,
        _ if status == 429 => FailureKind::RateLimited,
        _ if status >= 500 => FailureKind::Unreachable,
        _ if asked == AcmeOperation::Progress && matches!(status, 404 | 410) => {
            FailureKind::OrderGone
        }
        _ if asked == AcmeOperation::Account => FailureKind::Account,
        _ => FailureKind::Other,
    }
}

/// Advice for a problem of this type, or an empty text.
fn hint(kind: &str, asked: AcmeOperation) -> &'static str {
    match kind {
        "unauthorized" if asked == AcmeOperation::Order => {
            "have the CA allow the issuer's account this hostname, or choose another hostname or issuer"
        }
        "unauthorized" if asked == AcmeOperation::Account => "",
        "dns" => "see to it that the hostname resolves to the Gateway's address",
        "connection" | "tls" => {
            "see to it that the hostname resolves to the Gateway's address, and that the CA can reach it there"
        }
        "unauthorized" | "incorrectResponse" => {
            "see to it that the hostname resolves to this Gateway's address and nothing in between answers for it"
        }
        "caa" => "allow this CA in the CAA records of the domain",
        "rateLimited" => "it is tried again when the CA allows it",
        "rejectedIdentifier" | "unsupportedIdentifier" => {
            "choose another hostname, or an issuer that issues for it"
        }
        "externalAccountRequired" => "set spec.externalAccountBinding of the issuer",
        "userActionRequired" => "agree to the CA's terms with its account, as its message says",
        "invalidProfile" => "choose a spec.profile of the issuer that the CA offers",
        "invalidContact" | "unsupportedContact" => "correct spec.contact of the issuer",
        "accountDoesNotExist" if asked == AcmeOperation::Account => {
            "the account is registered again"
        }
        _ => "",
    }
}

/// Makes a text fit to be shown: it has at most `most` bytes, one line, and no invisible characters.
#[must_use]
pub(crate) fn clean(text: &str, most: usize) -> String {
    let mut cleaned = String::new();
    for c in text.chars() {
        let c = match c {
            '\n' | '\r' | '\t' => ' ',
            // Text that runs backwards or is invisible could change what a message seems to say.
            c if c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}') =>
            {
                continue;
            }
            c => c,
        };
        if c == ' ' && cleaned.ends_with(' ') {
            continue;
        }
        if cleaned.len() + c.len_utf8() + 3 > most {
            cleaned.push_str("...");
            break;
        }
        cleaned.push(c);
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(json: &str) -> Problem {
        Problem::read(json.as_bytes()).expect("a problem")
    }

    #[test]
    fn says_what_to_do() {
        let failure = problem(
            r#"{"type":"urn:ietf:params:acme:error:caa","detail":"CAA record for x.example forbids issuance","status":403}"#,
        )
        .failure(AcmeOperation::Progress, 403, None);
        assert_eq!(failure.kind, FailureKind::Rejected);
        assert_eq!(
            failure.message,
            "the CA says: CAA record for x.example forbids issuance (caa): allow this CA in the CAA records of the domain"
        );
    }

    #[test]
    fn subproblems_name_their_hostname() {
        let failure = problem(
            r#"{"type":"urn:ietf:params:acme:error:compound","detail":"two names failed","subproblems":[
                {"type":"urn:ietf:params:acme:error:dns","detail":"NXDOMAIN\u0007","identifier":{"type":"dns","value":"a.example"}},
                {"type":"urn:ietf:params:acme:error:tls","detail":"no\nroute","identifier":{"type":"dns","value":"b.example"}}]}"#,
        )
        .failure(AcmeOperation::Progress, 400, None);
        assert_eq!(failure.kind, FailureKind::Validation);
        assert!(
            failure
                .message
                .starts_with("the CA says: two names failed (dns); a.example: NXDOMAIN; b.example: no route: see to it"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn problem_is_none_for_a_body_that_is_no_problem_document() {
        for body in ["", "<html>", "{}", "[]", "{\"type\":1}", "\"x\""] {
            assert_eq!(Problem::read(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn kinds() {
        let of = |kind: &str, asked, status| {
            problem(&format!(r#"{{"type":"{ACME}{kind}"}}"#))
                .failure(asked, status, None)
                .kind
        };
        assert_eq!(
            of("unauthorized", AcmeOperation::Account, 403),
            FailureKind::Account
        );
        assert_eq!(
            of("unauthorized", AcmeOperation::Order, 403),
            FailureKind::Rejected
        );
        for kind in ["accountDoesNotExist", "userActionRequired", "badPublicKey"] {
            assert_eq!(of(kind, AcmeOperation::Account, 400), FailureKind::Account);
            for asked in [AcmeOperation::Order, AcmeOperation::Progress] {
                assert_eq!(of(kind, asked, 400), FailureKind::Other, "{kind}");
            }
        }
        assert_eq!(
            of("unauthorized", AcmeOperation::Progress, 403),
            FailureKind::Validation
        );
        assert_eq!(
            of("serverInternal", AcmeOperation::Order, 500),
            FailureKind::Unreachable
        );
        assert_eq!(
            of("malformed", AcmeOperation::Progress, 404),
            FailureKind::OrderGone
        );
        assert_eq!(
            of("malformed", AcmeOperation::Order, 400),
            FailureKind::Other
        );
        assert_eq!(
            of("other", AcmeOperation::Order, 429),
            FailureKind::RateLimited
        );
    }

    proptest! {
        #[test]
        fn every_message_is_short_and_clean(kind in ".{0,200}", detail in ".{0,2000}", names in prop::collection::vec((".{0,300}", ".{0,900}"), 0..9)) {
            let problem = Problem {
                kind: Some(kind),
                detail: Some(detail),
                subproblems: names.into_iter().map(|(value, detail)| Subproblem {
                    kind: None,
                    detail: Some(detail),
                    identifier: Some(Identifier { value }),
                }).collect(),
            };
            let failure = problem.failure(AcmeOperation::Order, 400, None);
            prop_assert!(failure.message.len() <= MAX_MESSAGE);
            prop_assert!(!failure.message.chars().any(char::is_control));
            let kind = failure.problem.unwrap_or_default();
            prop_assert!(kind.len() <= MAX_TYPE && !kind.chars().any(char::is_control));
        }
    }
}
