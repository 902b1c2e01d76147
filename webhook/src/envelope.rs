//! The envelope of a review: `AdmissionReview` of `admission.k8s.io/v1`. It takes the bytes of a request and returns
//! the bytes of the response.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::time::Instant;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use vestibule_crds::{Decoded, decode};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::policy::Mode;

use crate::admission::{Admission, Question, Recheck};
use crate::review::{Operation, Review, Reviewer};
use crate::text;

/// Longest request in bytes. API servers accept objects of up to 3 MiB, and an update contains two.
pub const MAX_BYTES: usize = 8 << 20;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Longest UID that is echoed, in bytes. API servers send 36.
const MAX_UID: usize = 128;
/// Longest name that is logged, in characters.
const MAX_NAME: usize = 253;

/// The response to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewResponse {
    /// HTTP status: 200 for every valid review, refusals included, and 400 for everything else.
    pub status: u16,
    /// JSON if the status is 200, and otherwise a line of text.
    pub body: Vec<u8>,
    /// The record of the review, for logs and metrics.
    pub record: ReviewRecord,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReviewOutcome {
    /// It is not a review.
    Malformed,
    /// It is about a kind, operation or subresource that is not judged.
    Passed,
    /// The object is allowed without a warning.
    Allowed,
    /// The object is allowed with warnings.
    Warned,
    /// The object is refused.
    Refused,
}

impl ReviewOutcome {
    /// A metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Passed => "passed",
            Self::Allowed => "allowed",
            Self::Warned => "warned",
            Self::Refused => "refused",
        }
    }
}

/// The record of a review, for logs and metrics: who did what to which object. It contains nothing of the object's
/// content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewRecord {
    /// The outcome.
    pub outcome: ReviewOutcome,
    /// Kind, if it is one that is judged.
    pub kind: Option<Kind>,
    /// Mode in the object's namespace.
    pub mode: Mode,
    /// `CREATE` or `UPDATE`, if it was judged.
    pub operation: &'static str,
    /// Namespace, cut to a bounded length.
    pub namespace: String,
    /// Name, cut to a bounded length.
    pub name: String,
    /// The user who sent the request, cut to a bounded length.
    pub user: String,
    /// Whether nothing will be written.
    pub dry_run: bool,
    /// The reasons of all findings, sorted and without duplicates.
    pub reasons: Vec<Reason>,
}

impl ReviewRecord {
    /// The kind as a label.
    #[must_use]
    pub fn kind_label(&self) -> &'static str {
        self.kind.map_or("other", Kind::as_str)
    }
}

/// Answers the bytes of a request. It accepts any bytes.
#[must_use]
pub fn review_bytes(bytes: &[u8], admission: &Admission, now: Instant) -> ReviewResponse {
    let judge = |question: Question<'_>| Ok::<_, Infallible>(admission.review(question, now));
    match answer(bytes, admission, judge) {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

/// Answers the bytes of a request by [`Admission::review_or_recheck`].
///
/// # Errors
/// If the answer has to wait.
pub fn review_bytes_or_recheck(
    bytes: &[u8],
    admission: &Admission,
    now: Instant,
) -> Result<ReviewResponse, Recheck> {
    let judge = |question: Question<'_>| admission.review_or_recheck(question, now);
    answer(bytes, admission, judge)
}

fn answer<E>(
    bytes: &[u8],
    admission: &Admission,
    judge: impl FnOnce(Question<'_>) -> Result<Review, E>,
) -> Result<ReviewResponse, E> {
    match parse(bytes) {
        Ok(request) => request.answer(admission, judge),
        Err(why) => Ok(malformed(&why, admission.policy().mode)),
    }
}

/// The namespace of the object of a request. The object itself is not read, because API servers write the namespace
/// before it. It is `None` if the beginning of the request has no namespace, or if that is not a valid name.
#[must_use]
pub fn namespace_of(bytes: &[u8]) -> Option<String> {
    let beginning = bytes.get(..BEGINNING).unwrap_or(bytes);
    let mut found = None;
    // This mostly ends early with an error, because nothing after the namespace is needed.
    let _ = serde_json::Deserializer::from_slice(beginning).deserialize_map(Outer(&mut found));
    found.filter(|name| name.len() <= MAX_NAME)
}

/// Most bytes of a request before its object: names and versions. The user comes after them.
const BEGINNING: usize = 16 << 10;

/// Visitor that looks for the field `request`.
struct Outer<'a>(&'a mut Option<String>);

impl<'de> Visitor<'de> for Outer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an {KIND}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == "request" {
                return map.next_value_seed(Inner(self.0));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Visitor that looks for the field `namespace`.
struct Inner<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Inner<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Inner<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == "namespace" {
                *self.0 = Some(map.next_value()?);
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    request: Value,
}

/// `AdmissionRequest`, with the fields that are used.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    kind: GroupKind,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: String,
    #[serde(default)]
    user_info: UserInfo,
    object: Option<Value>,
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct GroupKind {
    #[serde(default)]
    group: String,
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

fn parse(bytes: &[u8]) -> Result<Request, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!("the request is longer than {MAX_BYTES} bytes"));
    }
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| {
        // The message of the decoder is not used, because it quotes parts of the input.
        let (line, column) = (error.line(), error.column());
        format!("the request is not an {KIND} in JSON: line {line}, column {column}")
    })?;
    if envelope.kind != KIND || envelope.api_version != API_VERSION {
        return Err(format!(
            "the request is {} of {}, and only {KIND} of {API_VERSION} is answered; set \
             admissionReviewVersions: [\"v1\"] in the webhook configuration",
            quote(&envelope.kind),
            quote(&envelope.api_version),
        ));
    }
    let request: Request = serde_json::from_value(envelope.request)
        .map_err(|_| format!("the {KIND} holds no request as {API_VERSION} has it"))?;
    if request.uid.is_empty() || request.uid.len() > MAX_UID {
        return Err(format!("the {KIND}'s request has no proper uid"));
    }
    Ok(request)
}

fn quote(text: &str) -> String {
    format!("{:?}", text::one_line(text, 64))
}

fn malformed(why: &str, mode: Mode) -> ReviewResponse {
    ReviewResponse {
        status: 400,
        body: format!("{why}\n").into_bytes(),
        record: ReviewRecord {
            outcome: ReviewOutcome::Malformed,
            kind: None,
            mode,
            operation: "",
            namespace: String::new(),
            name: String::new(),
            user: String::new(),
            dry_run: false,
            reasons: Vec::new(),
        },
    }
}

impl Request {
    fn answer<E>(
        mut self,
        admission: &Admission,
        judge: impl FnOnce(Question<'_>) -> Result<Review, E>,
    ) -> Result<ReviewResponse, E> {
        let judged = self.judged_kind().zip(self.judged_operation());
        let review = judged.map(|(kind, operation)| {
            let new = match self.object.take() {
                Some(value) => self.decode(kind, value),
                None => Ok(self.unreadable(kind, absent())),
            };
            let old = self.old_object.take().map(|value| self.decode(kind, value));
            match new {
                Ok(new) => {
                    let old = old.as_ref().and_then(|old| old.as_ref().ok());
                    let question = Question {
                        operation,
                        old,
                        new: &new,
                        dry_run: self.dry_run(),
                    };
                    judge(question)
                }
                Err(warning) => Ok(Review {
                    allowed: true,
                    message: None,
                    warnings: vec![warning],
                    findings: Vec::new(),
                }),
            }
        });
        let review = review.transpose()?;
        let outcome = match &review {
            None => ReviewOutcome::Passed,
            Some(review) if !review.allowed => ReviewOutcome::Refused,
            Some(review) if !review.warnings.is_empty() => ReviewOutcome::Warned,
            Some(_) => ReviewOutcome::Allowed,
        };
        let reasons = review.iter().flat_map(|r| &r.findings).map(|f| f.reason);
        let mut reasons: Vec<Reason> = reasons.collect();
        reasons.sort_unstable();
        reasons.dedup();
        let record = ReviewRecord {
            outcome,
            kind: self.judged_kind(),
            mode: admission.policy().mode_in(&self.namespace),
            operation: match judged {
                Some((_, Operation::Create)) => "CREATE",
                Some((_, Operation::Update)) => "UPDATE",
                None => "",
            },
            namespace: text::one_line(&self.namespace, MAX_NAME),
            name: text::one_line(&self.name, MAX_NAME),
            user: text::one_line(&self.user_info.username, MAX_NAME),
            dry_run: self.dry_run(),
            reasons,
        };
        let body = Reply {
            api_version: API_VERSION,
            kind: KIND,
            response: self.response(review.as_ref()),
        };
        Ok(match serde_json::to_vec(&body) {
            Ok(body) => ReviewResponse {
                status: 200,
                body,
                record,
            },
            // Text and numbers always serialize.
            Err(_) => malformed("the answer cannot be written", record.mode),
        })
    }

    fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or_default()
    }

    /// The kind of the object, if there are rules for it.
    fn judged_kind(&self) -> Option<Kind> {
        Reviewer::KINDS
            .into_iter()
            .find(|kind| kind.group() == self.kind.group && kind.as_str() == self.kind.kind)
    }

    /// The operation, if it is one that writes a specification.
    fn judged_operation(&self) -> Option<Operation> {
        if !self.sub_resource.is_empty() {
            return None;
        }
        match self.operation.as_str() {
            "CREATE" => Some(Operation::Create),
            "UPDATE" => Some(Operation::Update),
            _ => None,
        }
    }

    /// The decoded object.
    ///
    /// # Errors
    /// A warning, if the version of the object is not known.
    fn decode(&self, kind: Kind, mut value: Value) -> Result<Object, String> {
        // Name and namespace are taken from the request, because the object may lack them.
        if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
            for (field, text) in [("namespace", &self.namespace), ("name", &self.name)] {
                let absent = metadata.get(field).and_then(Value::as_str).is_none();
                if absent && !text.is_empty() {
                    metadata.insert(field.to_owned(), text.as_str().into());
                }
            }
        }
        match decode(value) {
            Decoded::Object(object, _) => Ok(*object),
            Decoded::Unreadable(key, meta, finding) => Ok(Object::Unreadable(key, meta, finding)),
            Decoded::NotAnObject(finding) => Ok(self.unreadable(kind, finding)),
            Decoded::Unknown { api_version, .. } => Err(text::one_line(
                &format!(
                    "this release of Vestibule does not know {kind} of {api_version}, so nothing \
                     was checked; upgrade Vestibule"
                ),
                256,
            )),
        }
    }

    fn unreadable(&self, kind: Kind, finding: Finding) -> Object {
        let namespace = text::one_line(&self.namespace, MAX_NAME);
        let name = text::one_line(&self.name, MAX_NAME);
        Object::Unreadable(
            ObjectKey::new(kind, namespace, name),
            Meta::default(),
            finding,
        )
    }

    fn response(&self, review: Option<&Review>) -> Response<'_> {
        let refusal = review.filter(|review| !review.allowed);
        Response {
            uid: &self.uid,
            allowed: refusal.is_none(),
            status: refusal.map(|review| self.refusal(review)),
            warnings: review.map(|r| r.warnings.clone()).unwrap_or_default(),
        }
    }

    fn refusal(&self, review: &Review) -> Refusal {
        let causes = review.findings.iter().filter(|f| f.refuses());
        Refusal {
            status: "Failure",
            message: review.message.clone().unwrap_or_default(),
            reason: "Forbidden",
            code: 403,
            details: Details {
                group: text::one_line(&self.kind.group, MAX_NAME),
                kind: text::one_line(&self.kind.kind, MAX_NAME),
                name: text::one_line(&self.name, MAX_NAME),
                causes: causes.take(text::MAX_TOLD).map(Cause::of).collect(),
            },
        }
    }
}

fn absent() -> Finding {
    Finding::refused(
        Reason::Unreadable,
        "",
        "the request holds no object",
        "send one",
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reply<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Refusal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// `Status` of `meta/v1`. Its reason is not `Invalid`, because kubectl then shows the causes and drops the message.
#[derive(Serialize)]
struct Refusal {
    status: &'static str,
    message: String,
    reason: &'static str,
    code: u16,
    details: Details,
}

/// The same as the message, for programs.
#[derive(Serialize)]
struct Details {
    group: String,
    kind: String,
    name: String,
    causes: Vec<Cause>,
}

#[derive(Serialize)]
struct Cause {
    reason: &'static str,
    message: String,
    field: String,
}

impl Cause {
    fn of(finding: &Finding) -> Self {
        let without_field = Finding {
            field: String::new(),
            ..finding.clone()
        };
        Self {
            reason: finding.reason.as_str(),
            message: text::one_line(&without_field.to_string(), 1024),
            field: text::one_line(&finding.field, 1024),
        }
    }
}
