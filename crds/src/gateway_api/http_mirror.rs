//! The filter that mirrors requests on the wire (`HTTPRequestMirrorFilter`) and its conversion.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::http::Mirror;

use super::route::{self, BackendRef};

/// HTTPRequestMirrorFilter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRequestMirrorFilter {
    /// The backend that gets the copies; it has no weight.
    pub backend_ref: BackendRef,
    /// How many of a hundred requests, as written; absent is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// How many requests, as a fraction; absent is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
}

/// Fraction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fraction {
    /// Numerator, as written.
    pub numerator: i64,
    /// Denominator, as written; absent is 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denominator: Option<i64>,
}

/// Converts the settings at `field`.
pub(super) fn convert(
    wire: HTTPRequestMirrorFilter,
    namespace: &Arc<str>,
    field: &str,
    findings: &mut Vec<Finding>,
) -> Mirror {
    if wire.percent.is_some() && wire.fraction.is_some() {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            field,
            "has both a percentage and a fraction",
            "remove one of them",
        ));
    }
    let (numerator, denominator, part) = match (wire.percent, wire.fraction) {
        (Some(percent), _) => (percent, 100, "percent"),
        (None, Some(fraction)) => {
            let denominator = fraction.denominator.unwrap_or(100);
            (fraction.numerator, denominator, "fraction")
        }
        (None, None) => (1, 1, ""),
    };
    let share = (u32::try_from(numerator), u32::try_from(denominator));
    let (numerator, denominator) = match share {
        (Ok(numerator), Ok(denominator)) if denominator > 0 && numerator <= denominator => {
            (numerator, denominator)
        }
        _ => {
            findings.push(Finding::refused(
                Reason::InvalidValue,
                format!("{field}.{part}"),
                format!("{numerator} of {denominator} is not a share"),
                "use a share from none to all",
            ));
            (0, 1)
        }
    };
    Mirror {
        backend: route::backend(
            BackendRef {
                weight: None,
                ..wire.backend_ref
            },
            namespace,
            format!("{field}.backendRef"),
            findings,
        ),
        numerator,
        denominator,
    }
}
