//! HostnameClaim: which namespace holds which names on which ports of a Gateway. Written by the operator.

use std::num::NonZeroU16;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::claim::{self, ClaimUse};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;

use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{meta, names};

/// Most entries of one object. The operator begins another one much earlier.
pub const MAX_ENTRIES: usize = 1024;

/// Names that a namespace holds on a Gateway. Vestibule writes these objects and puts right what others
/// change in them; to take a name away from a namespace, narrow its HostnameGrant or the Gateway's
/// allowedListeners.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource,
)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "HostnameClaim",
    plural = "hostnameclaims",
    singular = "hostnameclaim",
    shortname = "hclaim",
    category = "vestibule",
    namespaced,
    derive = "PartialEq",
    doc = "Which namespace holds which names on which ports of a Gateway. Written by Vestibule.",
    printcolumn = r#"{"name":"Gateway","type":"string","jsonPath":".spec.gateway.name"}"#,
    printcolumn = r#"{"name":"Holder","type":"string","jsonPath":".spec.namespace"}"#,
    printcolumn = r#"{"name":"Names","type":"integer","jsonPath":".spec.count"}"#,
    printcolumn = r#"{"name":"First","type":"string","jsonPath":".spec.entries[0].hostname","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct HostnameClaimSpec {
    /// The Gateway, in the same namespace.
    pub gateway: ClaimGateway,
    /// The namespace that holds the names.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub namespace: String,
    /// How many entries there are, for people.
    #[schemars(extend("minimum" = 0, "maximum" = MAX_ENTRIES))]
    pub count: i32,
    /// What it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MAX_ENTRIES))]
    pub entries: Vec<ClaimEntry>,
}

/// A Gateway in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimGateway {
    /// Its name.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("maxLength" = 128))]
    pub uid: String,
}

/// One name on one port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimEntry {
    /// The hostname, as the listener or the route writes it; absent: every name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("maxLength" = 253))]
    pub hostname: String,
    /// The port of the listeners.
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: i32,
    /// What for: HTTP, TLS (listeners that speak HTTPS or TLS), TCP or UDP (the whole port), or TLSRoute.
    #[serde(rename = "use")]
    #[schemars(extend("enum" = ["HTTP", "TLS", "TCP", "UDP", "TLSRoute"]))]
    pub use_: String,
    /// Since when.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
}

impl From<&claim::ClaimEntry> for ClaimEntry {
    fn from(entry: &claim::ClaimEntry) -> Self {
        let since = jiff::Timestamp::from_second(entry.since).unwrap_or_default();
        Self {
            hostname: entry.names.to_string(),
            port: entry.port.get().into(),
            use_: entry.use_.as_str(entry.transport).to_owned(),
            since: since.to_string(),
        }
    }
}

pub(crate) fn convert(wire: HostnameClaim, unknown: &UnknownFields) -> claim::HostnameClaim {
    let mut findings = unknown.warnings_outside(&[]);
    let spec = wire.spec;
    for (field, text) in [
        ("spec.gateway.name", &spec.gateway.name),
        ("spec.namespace", &spec.namespace),
    ] {
        if !names::is_subdomain(text) {
            findings.push(names::not_a_name(field, text));
        }
    }
    if spec.entries.len() > MAX_ENTRIES {
        findings.push(Finding::refused(
            Reason::InvalidValue,
            "spec.entries",
            format!("has more than {MAX_ENTRIES} entries"),
            "leave this object to Vestibule",
        ));
    }
    let mut entries = Vec::new();
    if !findings.iter().any(Finding::refuses) {
        for (index, wire) in spec.entries.iter().enumerate() {
            match entry(wire, &format!("spec.entries[{index}]")) {
                Ok(entry) => entries.push(entry),
                Err(finding) => findings.push(finding),
            }
        }
    }
    claim::HostnameClaim {
        name: meta::name(&wire.metadata),
        meta: meta::convert(&wire.metadata),
        gateway: spec.gateway.name.into(),
        gateway_uid: spec.gateway.uid.into(),
        namespace: spec.namespace.into(),
        entries,
        findings,
    }
}

fn entry(wire: &ClaimEntry, field: &str) -> Result<claim::ClaimEntry, Finding> {
    let invalid = |at: &str, message: String| {
        Finding::refused(
            Reason::InvalidValue,
            format!("{field}.{at}"),
            message,
            "leave this object to Vestibule",
        )
    };
    let names = HostPattern::parse(&wire.hostname).map_err(|error| {
        names::not_a_hostname(format!("{field}.hostname"), &wire.hostname, &error)
    })?;
    let port = u16::try_from(wire.port).ok().and_then(NonZeroU16::new);
    let port = port.ok_or_else(|| invalid("port", format!("{} is no port", wire.port)))?;
    let (use_, transport) = ClaimUse::from_text(&wire.use_)
        .ok_or_else(|| invalid("use", format!("{} is no use", quote(&wire.use_))))?;
    let since = wire.since.parse::<jiff::Timestamp>();
    let since =
        since.map_err(|_| invalid("since", format!("{} is no time", quote(&wire.since))))?;
    Ok(claim::ClaimEntry {
        port,
        transport,
        use_,
        names,
        since: since.as_second(),
    })
}
