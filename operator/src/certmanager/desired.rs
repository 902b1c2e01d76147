//! Builds the Certificate for a request, as cert-manager's `certificate-shim` (v1.21.2) would make it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use vestibule_model::certificate::{CertificateOptions, Subject};
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::issuer::IssuerRef;
use vestibule_model::key::Kind;

use super::{API_VERSION, APPLIED, MANAGED_BY};

/// Label that the shim does not copy: tools that prune by it would take the Certificate away.
const APPLYSET: &str = "applyset.kubernetes.io/part-of";

/// Which object the solver of an HTTP-01 challenge attaches its route to.
const PARENT_KIND: &str = "acme.cert-manager.io/http01-parentrefkind";
const PARENT_NAME: &str = "acme.cert-manager.io/http01-parentrefname";
const PARENT_NAMESPACE: &str = "acme.cert-manager.io/http01-parentrefnamespace";
/// The Ingress that a solver edits.
const INGRESS_NAME: &str = "acme.cert-manager.io/http01-override-ingress-name";
/// Has cert-manager write a self-signed certificate until there is another.
const TEMPORARY: &str = "cert-manager.io/issue-temporary-certificate";
/// Overrides of the issuer's ingress class.
const INGRESS_CLASS: &str = "acme.cert-manager.io/http01-override-ingress-class";
const INGRESS_CLASS_NAME: &str = "acme.cert-manager.io/http01-override-ingress-ingressclassname";

/// cert-manager's own default.
const USAGES: [&str; 2] = ["digital signature", "key encipherment"];

/// A Certificate, as far as Vestibule says what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    api_version: &'static str,
    kind: &'static str,
    /// Name, owner, labels and annotations.
    pub metadata: Metadata,
    /// The request to cert-manager.
    pub spec: Spec,
}

/// Metadata of a [`Certificate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// As the Secret.
    pub name: String,
    /// As the Secret.
    pub namespace: String,
    /// The owner's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Those that settings have copied, the parent of the solver's route, and whose Certificate it is.
    pub annotations: BTreeMap<String, String>,
    /// The object whose listeners ask; not as a controller.
    pub owner_references: Vec<Value>,
}

/// Spec of a [`Certificate`]: the fields that annotations can set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The Secret that cert-manager writes.
    pub secret_name: String,
    /// Hostnames of the listeners, and `alt-names`.
    pub dns_names: Vec<String>,
    /// `ip-sans`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// `email-sans`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub email_addresses: Vec<String>,
    /// The issuer.
    pub issuer_ref: Value,
    /// Usages of the key.
    pub usages: Vec<String>,
    /// `common-name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_name: Option<String>,
    /// `subject-*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Value>,
    /// `duration`, as Go writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// `renew-before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
    /// `renew-before-percentage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before_percentage: Option<u8>,
    /// `revision-history-limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// `private-key-*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<Value>,
    /// `secret-template`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_template: Option<Value>,
}

/// A name that the annotations ask for and no listener has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "common name {0:?} is a hostname of none of the listeners that use the Secret; a certificate has the names of \
     its listeners only"
)]
pub struct Foreign(String);

/// The Certificate for a request of this issuer; `identity` is the value of [`MANAGED_BY`].
pub fn desired(
    request: &CertificateRequest,
    issuer: &IssuerRef,
    identity: &str,
) -> Result<Certificate, Foreign> {
    let options = &*request.options;
    if let Some(name) = &options.common_name {
        // An ACME issuer asks for the common name like for any other.
        let hostname = Hostname::parse(name).ok();
        let asked = |hostname: &Hostname| request.hostnames.contains(hostname);
        let foreign = hostname.is_some_and(|hostname| !asked(&hostname)) || name.contains('*');
        if foreign {
            return Err(Foreign(name.chars().take(64).collect()));
        }
    }
    let added = &options.alternative_names;
    let mut annotations = options.copied_annotations.clone();
    let own = http01(request).into_iter();
    annotations.extend(own.map(|(key, value)| (key.to_owned(), value)));
    annotations.insert(MANAGED_BY.to_owned(), identity.to_owned());
    let mut labels = options.labels.clone();
    labels.remove(APPLYSET);
    let usages = if options.usages.is_empty() {
        USAGES.map(str::to_owned).to_vec()
    } else {
        options.usages.iter().map(ToString::to_string).collect()
    };
    let name = request.secret.name.to_string();
    let mut certificate = Certificate {
        api_version: API_VERSION,
        kind: "Certificate",
        metadata: Metadata {
            name: name.clone(),
            namespace: request.secret.namespace.to_string(),
            labels,
            annotations,
            owner_references: vec![json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": request.owner.kind.as_str(),
                "name": &*request.owner.name.name,
                "uid": &*request.owner_uid,
            })],
        },
        spec: Spec {
            secret_name: name,
            dns_names: request.hostnames.iter().map(Hostname::to_string).collect(),
            ip_addresses: added.addresses.iter().map(ToString::to_string).collect(),
            email_addresses: added.mailboxes.iter().map(ToString::to_string).collect(),
            issuer_ref: json!({
                "name": &*issuer.name,
                "kind": &*issuer.kind,
                "group": &*issuer.group,
            }),
            usages,
            common_name: options.common_name.as_deref().map(str::to_owned),
            subject: subject(&options.subject),
            duration: options.duration.map(go_duration),
            renew_before: options.renew_before.map(go_duration),
            renew_before_percentage: options.renew_before_percentage,
            revision_history_limit: options.revision_history_limit,
            private_key: private_key(options),
            secret_template: secret_template(options),
        },
    };
    let digest = digest(&certificate.manifest());
    certificate
        .metadata
        .annotations
        .insert(APPLIED.to_owned(), digest);
    Ok(certificate)
}

impl Certificate {
    /// As JSON.
    #[must_use]
    pub fn manifest(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Where an HTTP-01 solver attaches its route, which Ingress or class of Ingress it takes instead, and whether a
/// temporary certificate serves meanwhile.
fn http01(request: &CertificateRequest) -> BTreeMap<&'static str, String> {
    let options = &*request.options;
    let mut annotations = BTreeMap::new();
    let gateway = request.owner.kind == Kind::Gateway;
    let parent = if options.http01_parent_fallback && !gateway {
        let namespace = request.gateway.namespace.to_string();
        annotations.insert(PARENT_NAMESPACE, namespace);
        (Kind::Gateway, &request.gateway.name)
    } else {
        (request.owner.kind, &request.owner.name.name)
    };
    annotations.insert(PARENT_KIND, parent.0.as_str().to_owned());
    annotations.insert(PARENT_NAME, parent.1.to_string());
    for (key, class) in [
        (INGRESS_CLASS, &options.http01_ingress_class),
        (INGRESS_CLASS_NAME, &options.http01_ingress_class_name),
    ] {
        if let Some(class) = class.as_deref().filter(|class| !class.is_empty()) {
            annotations.insert(key, class.to_owned());
        }
    }
    if options.http01_edit_in_place {
        let name = request.owner.name.name.to_string();
        annotations.insert(INGRESS_NAME, name);
    }
    if options.temporary || options.http01_edit_in_place {
        annotations.insert(TEMPORARY, "true".to_owned());
    }
    annotations
}

fn subject(subject: &Subject) -> Option<Value> {
    let lists = [
        ("organizations", &subject.organizations),
        ("organizationalUnits", &subject.organizational_units),
        ("countries", &subject.countries),
        ("provinces", &subject.provinces),
        ("localities", &subject.localities),
        ("postalCodes", &subject.postal_codes),
        ("streetAddresses", &subject.street_addresses),
    ];
    let list = |(field, values): (&str, &Vec<_>)| (field.to_owned(), json!(texts(values)));
    let filled = lists.into_iter().filter(|(_, values)| !values.is_empty());
    let mut fields: serde_json::Map<String, Value> = filled.map(list).collect();
    if let Some(number) = &subject.serial_number {
        fields.insert("serialNumber".into(), (&**number).into());
    }
    (!fields.is_empty()).then(|| fields.into())
}

fn texts(values: &[std::sync::Arc<str>]) -> Vec<&str> {
    values.iter().map(|value| &**value).collect()
}

fn private_key(options: &CertificateOptions) -> Option<Value> {
    let key = options.private_key;
    let fields = [
        ("algorithm", key.algorithm.map(|word| word.as_str().into())),
        ("encoding", key.encoding.map(|word| word.as_str().into())),
        ("size", key.size.map(Value::from)),
        (
            "rotationPolicy",
            key.rotation.map(|word| word.as_str().into()),
        ),
    ];
    present(fields)
}

fn secret_template(options: &CertificateOptions) -> Option<Value> {
    let map = |map: &BTreeMap<String, String>| (!map.is_empty()).then(|| json!(map));
    present([
        ("annotations", map(&options.secret_annotations)),
        ("labels", map(&options.secret_labels)),
    ])
}

/// The fields that have a value, if any has.
fn present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Option<Value> {
    let fields: serde_json::Map<String, Value> = fields
        .into_iter()
        .filter_map(|(field, value)| Some((field.to_owned(), value?)))
        .collect();
    (!fields.is_empty()).then(|| fields.into())
}

/// A duration as Go writes it, so that nobody sees a difference where there is none.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let nanos = format!("{:09}", duration.subsec_nanos());
    let fraction = nanos.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    let _ = write!(text, "{rest}{dot}{fraction}s");
    text
}

/// Sixteen hexadecimal digits that change with the manifest.
fn digest(manifest: &Value) -> String {
    let digest = Sha256::digest(manifest.to_string());
    digest.iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
