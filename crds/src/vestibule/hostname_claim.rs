//! HostnameClaim: which namespace holds a hostname or a port of a Gateway. The operator writes it.

use std::num::NonZeroU16;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::claim::{self, ClaimKey, Claimed, Holder};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{ObjectName, PortKey};
use vestibule_model::protocol::{Group, Transport};

use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{meta, names};

/// A claim says which namespace holds a hostname or a port of a Gateway. Vestibule writes these objects and reverts
/// changes that others make to them. To take a hostname from the namespace that holds it, annotate its claim with
/// vestibule.dev/take-from and that namespace: it goes to whoever else asks for it. A namespace that is not to have
/// the name at all must not be granted it, or not be let in by the Gateway.
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
    doc = "HostnameClaim says which namespace holds a hostname or a port of a Gateway. Vestibule writes it.",
    selectable = ".spec.gateway.name",
    selectable = ".spec.holder",
    selectable = ".spec.hostname",
    printcolumn = r#"{"name":"Gateway","type":"string","jsonPath":".spec.gateway.name"}"#,
    printcolumn = r#"{"name":"Hostname","type":"string","jsonPath":".spec.hostname"}"#,
    printcolumn = r#"{"name":"Port","type":"integer","jsonPath":".spec.port"}"#,
    printcolumn = r#"{"name":"Protocol","type":"string","jsonPath":".spec.protocol"}"#,
    printcolumn = r#"{"name":"Holder","type":"string","jsonPath":".spec.holder"}"#,
    printcolumn = r#"{"name":"Unused","type":"date","jsonPath":".spec.unusedSince"}"#,
    printcolumn = r#"{"name":"Since","type":"date","jsonPath":".spec.since"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.hostname) != has(self.port)",
        "message": "must have a hostname or a port, and not both",
    },
    {
        "rule": "has(self.port) == has(self.protocol)",
        "message": "protocol goes with port, and with nothing else",
    },
    {
        "rule": "has(self.hostname) || !has(self.forGuests) || !self.forGuests",
        "message": "forGuests goes with hostname",
    },
]))]
pub struct HostnameClaimSpec {
    /// The Gateway, in the same namespace.
    pub gateway: ClaimGateway,
    /// The hostname, on every port of the Gateway, as the listener or the route writes it; `*` is every name of which
    /// there is no other claim. Absent where the claim is to a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("minLength" = 1, "maxLength" = 253))]
    pub hostname: Option<String>,
    /// The port; absent where the claim is to a hostname.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", extend("minimum" = 1, "maximum" = 65535))]
    pub port: Option<i32>,
    /// Protocol of the port: HTTP, TLS (HTTPS as well), TCP or UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = ["HTTP", "TLS", "TCP", "UDP"]))]
    pub protocol: Option<String>,
    /// The namespace that holds it.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub holder: String,
    /// If true, the namespace got the hostname only because routes of other namespaces asked for it on listeners of its
    /// ListenerSets. They keep it in use. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_guests: bool,
    /// Time from which on the namespace has held it.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// Time from which on nothing in the namespace has asked for the name; absent: something does, or forGuests is
    /// true and a route of another namespace does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub unused_since: Option<String>,
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

impl HostnameClaimSpec {
    /// The claim of a namespace to a key; times are in seconds since the epoch.
    #[must_use]
    pub fn new(
        key: &ClaimKey,
        gateway_uid: &str,
        holder: &Holder,
        since: i64,
        unused_since: Option<i64>,
    ) -> Self {
        let (hostname, port, protocol) = match &key.of {
            Claimed::Names(HostPattern::Any) => (Some("*".to_owned()), None, None),
            Claimed::Names(names) => (Some(names.to_string()), None, None),
            Claimed::Port(port, transport) => {
                let protocol = match holder.speaks {
                    Some(Group::Http) => "HTTP",
                    Some(Group::Tls) => "TLS",
                    Some(Group::Raw) | None => transport.as_str(),
                };
                (None, Some(port.get().into()), Some(protocol.to_owned()))
            }
        };
        Self {
            gateway: ClaimGateway {
                name: key.gateway.name.to_string(),
                uid: gateway_uid.to_owned(),
            },
            hostname,
            port,
            protocol,
            holder: holder.namespace.to_string(),
            for_guests: holder.for_guests,
            since: time(since),
            unused_since: unused_since.map(time),
        }
    }
}

fn time(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds);
    time.unwrap_or_default().to_string()
}

pub(crate) fn convert(wire: HostnameClaim, unknown: &UnknownFields) -> claim::HostnameClaim {
    let mut findings = unknown.warnings_outside(&[]);
    let spec = wire.spec;
    for (field, text) in [
        ("spec.gateway.name", &spec.gateway.name),
        ("spec.holder", &spec.holder),
    ] {
        if !names::is_subdomain(text) {
            findings.push(names::not_a_name(field, text));
        }
    }
    let name = meta::name(&wire.metadata);
    let about = about(&spec, &name)
        .map_err(|finding| findings.push(finding))
        .ok();
    let speaks = about.as_ref().and_then(|(_, speaks)| *speaks);
    let key = about.map(|(key, _)| key);
    let mut seconds = |field: &str, text: &str| {
        let time = text.parse::<jiff::Timestamp>();
        let time = time.map_err(|_| invalid(field, format!("{} is no time", quote(text))));
        time.map_err(|finding| findings.push(finding))
            .map(jiff::Timestamp::as_second)
    };
    let since = seconds("spec.since", &spec.since).unwrap_or_default();
    let unused_since = spec.unused_since.as_deref();
    let unused_since = unused_since.and_then(|text| seconds("spec.unusedSince", text).ok());
    let annotations = wire.metadata.annotations.as_ref();
    let take_from = annotations.and_then(|all| all.get(claim::TAKE_FROM));
    let claim = claim::HostnameClaim {
        name,
        meta: meta::convert(&wire.metadata),
        gateway: spec.gateway.name.into(),
        gateway_uid: spec.gateway.uid.into(),
        key,
        holder: Holder {
            namespace: spec.holder.into(),
            speaks,
            for_guests: spec.for_guests,
        },
        since,
        unused_since,
        take_from: take_from.map(|namespace| namespace.as_str().into()),
        findings,
    };
    with_its_name(claim)
}

/// Refuses a claim whose name is not the one that belongs to its key.
fn with_its_name(mut claim: claim::HostnameClaim) -> claim::HostnameClaim {
    if let Some(key) = &claim.key
        && key.object_name() != claim.name
    {
        let finding = invalid(
            "metadata.name",
            format!(
                "is not the name of the claim to what it says, which is {}",
                key.object_name().name
            ),
        );
        claim.findings.push(finding);
    }
    claim
}

fn invalid(field: &str, message: String) -> Finding {
    Finding::refused(
        Reason::InvalidValue,
        field,
        message,
        "leave this object to Vestibule",
    )
}

/// The key of a claim and, for a port, its group of protocols.
fn about(
    spec: &HostnameClaimSpec,
    name: &ObjectName,
) -> Result<(ClaimKey, Option<Group>), Finding> {
    let gateway = ObjectName::new(name.namespace.clone(), spec.gateway.name.as_str());
    let (port, protocol) = match (&spec.hostname, spec.port, spec.protocol.as_deref()) {
        (Some(hostname), None, None) => {
            let pattern = match hostname.as_str() {
                "*" => Ok(HostPattern::Any),
                "" => Err(invalid("spec.hostname", "is empty".to_owned())),
                text => HostPattern::parse(text).map_err(|error| {
                    names::not_a_hostname("spec.hostname".to_owned(), text, &error)
                }),
            };
            return Ok((ClaimKey::names(&gateway, &pattern?), None));
        }
        (None, Some(port), Some(protocol)) => (port, protocol),
        _ => {
            let message = "is to a hostname, or to a port with a protocol".to_owned();
            return Err(invalid("spec", message));
        }
    };
    let number = u16::try_from(port).ok().and_then(NonZeroU16::new);
    let number = number.ok_or_else(|| invalid("spec.port", format!("{port} is no port")))?;
    let (group, transport) = match protocol {
        "HTTP" => (Group::Http, Transport::Tcp),
        "TLS" => (Group::Tls, Transport::Tcp),
        "TCP" => (Group::Raw, Transport::Tcp),
        "UDP" => (Group::Raw, Transport::Udp),
        other => {
            let message = format!("{} is no protocol", quote(other));
            return Err(invalid("spec.protocol", message));
        }
    };
    let port = PortKey {
        gateway,
        port: number,
        transport,
    };
    Ok((ClaimKey::port(&port), Some(group)))
}
