//! The retry policy of an HTTPRoute on the wire (`HTTPRouteRetry`) and its conversion.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::{MAX_RETRIES, Retry};

use crate::duration;
use crate::text::quote;

/// Longest wait before the first retry. The client waits just as long.
const MAX_BACKOFF: Duration = Duration::from_mins(1);

/// HTTPRouteRetry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteRetry {
    /// Statuses, as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<i64>,
    /// Times, as written; absent is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,
    /// Time to wait (GEP-2257).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
}

/// Converts the settings of the rule at `field`.
pub(super) fn convert(wire: HTTPRouteRetry, field: &str, findings: &mut Vec<Finding>) -> Retry {
    let field = format!("{field}.retry");
    let mut codes = BTreeSet::new();
    for (index, code) in wire.codes.iter().enumerate() {
        match u16::try_from(*code) {
            Ok(code) if (400..600).contains(&code) => _ = codes.insert(code),
            _ => findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.codes[{index}]"),
                format!("{code} is not a status of an error"),
                "use a number from 400 to 599",
            )),
        }
    }
    let written = wire.attempts.unwrap_or(1);
    let attempts = u32::try_from(written.min(MAX_RETRIES.into()));
    if attempts.is_err() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            format!("{field}.attempts"),
            format!("{written} is not a number of times"),
            "use 0 or more",
        ));
    } else if written > MAX_RETRIES.into() {
        findings.push(Finding::warning(
            Reason::UnsupportedValue,
            format!("{field}.attempts"),
            format!("{written} counts as {MAX_RETRIES}, which is the most"),
            format!("use {MAX_RETRIES} or less"),
        ));
    }
    let backoff = wire.backoff.and_then(|text| {
        let read = duration::parse(&text);
        match read {
            None => findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.backoff"),
                format!("{} is not a duration", quote(&text)),
                "use numbers with the units h, m, s and ms, such as \"500ms\"",
            )),
            Some(time) if time > MAX_BACKOFF => findings.push(Finding::refused(
                Reason::UnsupportedValue,
                format!("{field}.backoff"),
                format!("{} is longer than a request is kept waiting", quote(&text)),
                "use 1m or less",
            )),
            Some(_) => {}
        }
        read
    });
    Retry {
        codes,
        attempts: attempts.unwrap_or_default(),
        backoff,
    }
}
